"""Which samples an epoch consists of, and in which order."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from . import rng

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Numbers = Sequence[float] | npt.NDArray[np.generic] | str | os.PathLike[str]

# What a permutation is drawn for: see rng.permutation.
_EPOCH, _BLOCKS, _WITHIN, _RESAMPLING, _SUBSET = range(5)
_START, _OFFSET = 0, 1  # draws of a whole epoch, which are those of sample 0 in a stream of their own
_STREAM = 1 << 32
# An expected count this close to a whole number is one: 0.1 / 0.3 * 3 is not 1 in floating point.
_WHOLE = 1e-9


class Request(NamedTuple):
    """One rank's part of one batch: what the parent process hands to a worker.

    ``occurrence``: where samples may come more than once an epoch, which occurrence each is, from 0.
    """

    epoch: int
    ids: npt.NDArray[np.int64]
    occurrence: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Blocks:
    """Shuffling for disks where random access is slow: blocks of neighbours, mixed within a buffer.

    Every epoch the samples are cut into blocks of ``size`` neighbours, at other places each time; the blocks
    are shuffled, and each ``buffer`` of them together are shuffled sample by sample. What is read at a time
    lies in ``buffer`` runs of ``size`` samples. How well it mixes: of two samples that come one after another
    at most 1 in ``buffer`` are from the same block (a full permutation: 1 in as many as there are blocks),
    and the place in the epoch says nothing about the place on the disk.
    """

    size: int = 256
    buffer: int = 16

    def __post_init__(self) -> None:
        for name in ("size", "buffer"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} of Blocks must be a whole number of at least 1")


@dataclass(frozen=True)
class Sampler:
    """The samples of every epoch of one split: a pure function of (seed, epoch).

    ``samples``: how many there are to choose from. ``shuffle``: a new permutation every epoch, none, or
    ``Blocks``. ``subset``: the sample ids that take part, int64, all where it is None. ``weights``: float64
    ``[samples]``; an epoch then holds each sample the floor or the ceiling of
    ``len * weight / sum of the weights`` times, and exactly ``len`` samples in all (systematic resampling
    over a permutation of the epoch's own).
    """

    samples: int
    seed: int
    shuffle: bool | Blocks
    subset: Int64 | None = None
    weights: Float64 | None = None
    _latest: list[tuple[int, Int64, Int64 | None]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __len__(self) -> int:
        return self.samples if self.subset is None else len(self.subset)

    def ids(self, epoch: int) -> Int64:
        """List the epoch's sample ids, int64 ``[len]``, over all ranks."""
        return self._drawn(epoch)[0]

    def request(self, epoch: int, start: int, stop: int) -> Request:
        """Ask for the samples from ``start`` to ``stop`` of the epoch's order."""
        ids, occurrence = self._drawn(epoch)
        return Request(epoch, ids[start:stop], None if occurrence is None else occurrence[start:stop])

    def fingerprint(self) -> int:
        """Sum up what, beside seed and epoch, says which samples come and when: equal where that is equal."""
        parts = [
            repr(self.shuffle).encode(),
            *(b"" if a is None else a.tobytes() for a in (self.subset, self.weights)),
        ]
        return zlib.crc32(b"/".join(parts))

    def candidates(self) -> Int64 | None:
        """List the ids of the samples that may come at all, int64; None where all may."""
        if self.weights is None:
            return self.subset
        taking_part: Int64 = np.arange(self.samples) if self.subset is None else self.subset
        return taking_part[self.weights[taking_part] > 0]

    def _drawn(self, epoch: int) -> tuple[Int64, Int64 | None]:
        """Tell the epoch's ids, and which occurrence of its sample each is; the latest are kept."""
        for known, ids, occurrence in list(self._latest):
            if known == epoch:
                return ids, occurrence
        place = self._places(epoch)
        if place is not None and self.subset is None and self.weights is None:
            ids, occurrence = place, None
        else:
            ids, occurrence = self._occurrences(epoch)
            if place is not None:
                ids, occurrence = ids[place], None if occurrence is None else occurrence[place]
        self._latest[:] = [(epoch, ids, occurrence)]
        return ids, occurrence

    def _occurrences(self, epoch: int) -> tuple[Int64, Int64 | None]:
        chosen = np.arange(self.samples, dtype=np.int64) if self.subset is None else self.subset
        if self.weights is None:
            return chosen, None
        # Over a permutation: in the order of the shards equal weights of 1/2 would take every other sample.
        place = rng.permutation(self.seed, epoch, len(chosen), _RESAMPLING)
        (start,) = rng.uniforms(self.seed, epoch, [_START], 1, _STREAM)[0]
        counts = np.empty(len(chosen), np.int64)
        counts[place] = _systematic(self.weights[chosen][place], float(start))
        occurrence = np.arange(len(chosen)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(chosen, counts), occurrence

    def _places(self, epoch: int) -> Int64 | None:
        """Shuffle the places 0..len-1 of the epoch; None where they stay."""
        n = len(self)
        if isinstance(self.shuffle, Blocks):
            (draw,) = rng.uniforms(self.seed, epoch, [_OFFSET], 1, _STREAM)[0]
            block = (np.arange(n) + int(draw * self.shuffle.size)) // self.shuffle.size
            count = int(block[-1]) + 1 if n else 0
            turn = np.argsort(rng.permutation(self.seed, epoch, count, _BLOCKS))
            # As many groups as hold `buffer` blocks each; what is left over is spread among them.
            groups = max(1, n // (self.shuffle.size * self.shuffle.buffer))
            group = turn[block] * groups // max(1, count)
            places = rng.permutation(self.seed, epoch, n, _WITHIN)
            # numpy sorts short integers by radix.
            mixed: Int64 = places[np.argsort(group.astype(np.min_scalar_type(groups))[places], kind="stable")]
            return mixed
        return rng.permutation(self.seed, epoch, n, _EPOCH) if self.shuffle else None


def _systematic(weights: Float64, start: float) -> Int64:
    """Say how often each comes when as many are drawn as there are weights: floor or ceiling of its share.

    weights: non-negative, not all 0. start: where the comb begins, in [0, 1).
    """
    expected = weights / weights.sum() * len(weights)
    counts: Int64 = np.floor(expected + _WHOLE).astype(np.int64)
    rest = np.where(expected - counts < _WHOLE, 0.0, expected - counts)
    left = len(weights) - int(counts.sum())
    if left:
        # Whole shares get nothing more, whatever the sum's rounding says.
        open_to_more = np.flatnonzero(rest)
        ends = np.cumsum(rest[open_to_more])
        ends *= left / ends[-1]
        ends[-1] = left
        teeth = np.minimum(np.floor(ends + start), left).astype(np.int64)
        counts[open_to_more] += np.diff(teeth, prepend=0)
    return counts


def subset_ids(subset: float | Numbers | None, samples: int) -> Int64 | None:
    """Turn a split's ``subset`` into the ids that take part, int64; None for all of them.

    A fraction takes the samples with the smallest hashes of their numbers: the same for every seed, and a
    smaller fraction is part of a larger one. Raises ValueError for what is no subset of 0..samples-1.
    """
    if subset is None:
        return None
    if is_fraction(subset):
        count = max(1, round(subset * samples))
        return None if count == samples else np.sort(rng.permutation(0, 0, samples, _SUBSET)[:count])
    ids = _array("subset", subset)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.size == 0:
        raise ValueError(
            f"subset={shown(subset)} must be sample numbers (integers, at least one) or a fraction above 0 "
            f"and up to 1, not {ids.dtype} {list(ids.shape)}"
        )
    if ids.min() < 0 or ids.max() >= samples:
        raise ValueError(
            f"subset={shown(subset)} must be within 0..{samples - 1}: there are {samples} samples"
        )
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        twice = int(unique[counts > 1][0])
        raise ValueError(
            f"subset={shown(subset)} names sample {twice} more than once; weights= repeats samples"
        )
    return ids.astype(np.int64)


def is_fraction(subset: object) -> TypeGuard[float]:
    """Say whether a subset is a number; ValueError where that is not above 0 and at most 1."""
    if not isinstance(subset, (int, float)) or isinstance(subset, bool):
        return False
    if not 0 < subset <= 1:
        raise ValueError(f"subset={subset!r} is a fraction of the samples, above 0 and up to 1")
    return True


def checked_weights(weights: Numbers | None, samples: int, subset: Int64 | None) -> Float64 | None:
    """Turn a split's ``weights`` into float64 ``[samples]``, the sum over the subset being positive.

    Raises ValueError, naming the argument, for another length, negative or not finite weights, or all 0.
    """
    if weights is None:
        return None
    values = _array("weights", weights)
    if values.ndim != 1 or values.dtype.kind not in "iuf" or len(values) != samples:
        raise ValueError(
            f"weights={shown(weights)} must be one number for each of the {samples} samples of the shards, "
            f"not {values.dtype} {list(values.shape)}"
        )
    values = values.astype(np.float64, copy=False)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(f"weights[{at}]={values[at]} must be a finite number of at least 0")
    with np.errstate(over="ignore"):
        total = float(np.sum(values if subset is None else values[subset]))
    if not 0 < total < float("inf"):
        raise ValueError(f"weights={shown(weights)} of the samples that take part have the sum {total}")
    return values


def _array(name: str, value: object) -> npt.NDArray[Any]:
    if isinstance(value, (str, os.PathLike)):
        try:
            return np.asarray(np.load(value, allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{name}={os.fspath(value)!r} cannot be read as a .npy file: {error}") from error
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be a list of numbers: {error}") from error


def shown(value: object) -> str:
    """Write a value for a message, cut where it is long."""
    text = repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
    return text if len(text) <= 60 else text[:57] + "..."
