"""Mixtures of several sources: which samples of each a global batch has, as functions of numbers."""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import ShardError
from .rng import LATER_PASS, Float64, Int64

Stopping = Literal["first_exhausted", "all_exhausted"]
Batches = Literal["stratified", "per_source"]
# 0.1 * 30 is not 3 in floating point.
_TOLERANCE = 1e-9
_FURTHER = 40  # bit of the position in a source's sequence where further passes of an epoch begin
_GOLDEN = (math.sqrt(5) - 1) / 2


class Rows(NamedTuple):
    """The rows of several batches, source after source, int64 [batches, rows of a batch] each.

    Attributes:
        sources: Number of the source.
        epochs: Epoch of the source, which ascends from row to row of a source.
        places: Place in the order of that epoch.
    """

    sources: Int64
    epochs: Int64
    places: Int64


class Shares(NamedTuple):
    """The shares of the sources from one epoch on.

    Attributes:
        epoch: The first epoch.
        values: float64 [sources], with the sum 1.
        samples: Samples of an epoch, about; None as ``stopping`` says.
    """

    epoch: int
    values: Float64
    samples: float | None = None


@dataclass(frozen=True, eq=False)
class Stage:
    """The batches of an epoch with one set of shares.

    In each batch a source has its share of the batch, rounded down or up; over the epoch its share of all
    rows, rounded down or up. The rows that are left after rounding down go to the sources as teeth of a comb
    whose offset takes each of ``length`` values once per epoch, in an order that spreads them.

    Args:
        shares: float64 [sources], with the sum 1.
        global_batch: Samples per batch, over all ranks.
        length: Batches of the epoch.
        batches: See ``Mixture``.
    """

    shares: Float64
    global_batch: int
    length: int
    batches: Batches

    @cached_property
    def counts(self) -> Int64:
        """Samples of each source in each batch, int64 [length, sources]."""
        is_stratified = self.batches == "stratified"
        expected = self.shares * (self.global_batch if is_stratified else 1)
        whole = np.floor(expected + _TOLERANCE)
        rest = np.maximum(expected - whole, 0.0)
        left = (self.global_batch if is_stratified else 1) - int(whole.sum())
        counts = np.repeat(whole.astype(np.int64)[None], self.length, axis=0)
        if left:
            open_to_more = np.flatnonzero(rest > _TOLERANCE)
            ends = np.cumsum(rest[open_to_more])
            ends *= left / ends[-1]
            ends[-1] = left
            offsets = (_spread(self.length) + 0.5) / self.length
            teeth = np.floor(ends[None] + offsets[:, None]).astype(np.int64)
            counts[:, open_to_more] += np.diff(teeth, axis=1, prepend=0)
        return counts if is_stratified else counts * self.global_batch

    @cached_property
    def begins(self) -> Int64:
        """Samples of each source before each batch, and before the end, int64 [length + 1, sources]."""
        return np.concatenate([np.zeros((1, len(self.shares)), np.int64), np.cumsum(self.counts, axis=0)])


@dataclass(frozen=True, eq=False)
class Mixing:
    """The schedule of a mixture: which samples of which source a batch has.

    Each source is an endless sequence, its epochs one after another. The batches take from it in order, so
    that every sample comes exactly once per epoch of its source, wherever the epochs of the mixture end.

    Args:
        sizes: Samples per epoch of each source.
        shares: By their first epoch; that of the first is 0.
        global_batch: Samples per batch, over all ranks.
        stopping: See ``Mixture``.
        batches: See ``Mixture``.
        names: Of the sources, for messages.
        is_fixed: Whether all epochs have the samples of the first.

    Raises:
        ShardError: If no batch is left.
    """

    sizes: Sequence[int]
    shares: Sequence[Shares]
    global_batch: int
    stopping: Stopping = "first_exhausted"
    batches: Batches = "stratified"
    names: Sequence[str] = ()
    is_fixed: bool = False

    @cached_property
    def stages(self) -> list[Stage]:
        """What the epochs are, one for each of ``shares``."""
        return [
            Stage(shares.values, self.global_batch, self._length(shares), self.batches)
            for shares in self.shares
        ]

    def length(self, epoch: int) -> int:
        """Return the batches of an epoch."""
        return self.stages[self._stage(epoch)].length

    def counts(self, epoch: int, k: int) -> Int64:
        """Return the samples of each source in batch ``k`` of an epoch, over all ranks, int64 [sources]."""
        counts: Int64 = self.stages[self._stage(epoch)].counts[k]
        return counts

    def first_positions(self, epoch: int) -> Int64:
        """Return the samples of each source before an epoch, int64 [sources]."""
        if self.is_fixed:
            return np.zeros(len(self.sizes), np.int64)
        further, epoch = divmod(epoch, LATER_PASS)
        found = np.full(len(self.sizes), further << _FURTHER, np.int64)
        last = self._stage(epoch)
        for number in range(last + 1):
            end = epoch if number == last else self.shares[number + 1].epoch
            found += (end - self.shares[number].epoch) * self.stages[number].begins[-1]
        return found

    def rows(
        self,
        epoch: int,
        first: int,
        count: int = 1,
        rank: int = 0,
        world: int = 1,
        before: Int64 | None = None,
    ) -> Rows:
        """Return a rank's part of ``count`` batches of an epoch, from batch ``first`` on.

        The rows of a batch, source after source, go to the ranks in turn. ``before``: ``first_positions`` of
        the epoch, if they are known.
        """
        stage = self.stages[self._stage(epoch)]
        counts = stage.counts[first : first + count]
        begins = stage.begins[first : first + len(counts)]
        begins = begins + (self.first_positions(epoch) if before is None else before)
        rows, ends = np.arange(rank, self.global_batch, world), np.cumsum(counts, axis=1)
        sources = (rows[:, None] >= ends[:, None, :]).sum(axis=2)
        # A row's position in the endless sequence of its source is its number in the batch, and this:
        shifts = begins - (ends - counts)
        positions = np.take_along_axis(shifts, sources, axis=1) + rows
        return Rows(sources, *np.divmod(positions, np.asarray(self.sizes)[sources]))

    def largest(self, rank: int, world: int) -> int:
        """Count the samples of the rank's part of each batch."""
        return len(range(rank, self.global_batch, world))

    def fingerprint(self) -> int:
        """Checksum of what the batches depend on beside the order of the sources."""
        shares = [(each.epoch, each.values.tolist(), each.samples) for each in self.shares]
        return zlib.crc32(repr((shares, list(self.sizes), self.stopping, self.batches)).encode())

    def _stage(self, epoch: int) -> int:
        if self.is_fixed:
            return 0
        return bisect_right([shares.epoch for shares in self.shares], epoch % LATER_PASS) - 1

    def _length(self, shares: Shares) -> int:
        if shares.samples is not None:
            return max(1, round(shares.samples / self.global_batch))
        takes_part = shares.values > 0
        batches = np.asarray(self.sizes)[takes_part] / (shares.values[takes_part] * self.global_batch)
        if self.stopping == "all_exhausted":
            return math.ceil(float(batches.max()) - _TOLERANCE)
        length = int(float(batches.min()) + _TOLERANCE)
        if not length:
            source = int(np.flatnonzero(takes_part)[batches.argmin()])
            name = self.names[source] if self.names else source
            raise ShardError(
                f"source {name!r} of the mixture has {self.sizes[source]} samples, fewer than its share of "
                f"one batch of {self.global_batch}, so stopping='first_exhausted' leaves no batch. Lower the "
                "batch size or its weight, or give stopping='all_exhausted'."
            )
        return length


def checked_shares(
    name: str, given: Mapping[str, float] | Mapping[int, Mapping[str, float]], sizes: Mapping[str, int]
) -> list[Shares]:
    """Return the shares of the sources by the first epoch that has them.

    Args:
        name: "weights" or "repeat", of which 1 is an epoch of a source.
        given: A number for each source, or such by epoch, from 0 on.
        sizes: Samples per epoch of each source.

    Raises:
        ValueError: With the argument and the source.
    """
    by_epoch = given if given and all(isinstance(each, Mapping) for each in given.values()) else {0: given}
    found: list[Shares] = []
    for epoch, values in by_epoch.items():
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"{name}={given!r} of Mixture: the epoch {epoch!r} must be an integer from 0 on")
        assert isinstance(values, Mapping)
        numbers = _numbers(f"{name}={dict(values)!r} of Mixture", values, name, sizes)
        total = float(numbers.sum())
        found.append(Shares(epoch, numbers / total, total if name == "repeat" else None))
    found.sort(key=lambda shares: shares.epoch)
    if found[0].epoch != 0:
        raise ValueError(f"{name}={given!r} of Mixture must begin with epoch 0")
    return found


def _numbers(where: str, values: Mapping[Any, Any], name: str, sizes: Mapping[str, int]) -> Float64:
    for source in values:
        if source not in sizes:
            raise ValueError(f"{where}: there is no source {source!r}, only {list(sizes)}")
    for source in sizes:
        value = values.get(source)
        if value is None:
            raise ValueError(f"{where} has no number for the source {source!r}")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            raise ValueError(f"{where}: that of {source!r} must be a finite number of at least 0")
        if name == "repeat" and value == 0:
            raise ValueError(f"{where}: that of {source!r} must be above 0; leave the source out")
    numbers = np.array([float(values[source]) for source in sizes])
    if name == "repeat":
        numbers *= list(sizes.values())
    total = float(numbers.sum())
    if not 0 < total < math.inf:
        raise ValueError(f"{where} must have a positive, finite sum")
    return numbers


def _spread(count: int) -> Int64:
    """Return 0..count-1 in an order in which any run of neighbours is spread evenly."""
    step = max(1, round(count * _GOLDEN))
    while math.gcd(step, count) > 1:
        step += 1
    found: Int64 = np.arange(count, dtype=np.int64) * step % count
    return found
