"""The batches of a mixture for one rank: which samples of which source they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..sampling.mixing import Mixing
from ..sampling.rng import Int64
from ..sampling.sampler import EpochCounter, Request, Sampler
from .batch import FetchResult
from .buffers import Runner

_ORDERS = 2  # epochs of a source whose order is kept: a batch may have the end of one and the next


@dataclass(frozen=True)
class Parts:
    """One rank's part of a batch.

    Attributes:
        epoch: Of the mixture.
        parts: Number of a source, and what is fetched of it.
        ids: Numbers of the samples over all sources, int64 [B].
        occurrence: How often each came before in the epoch of the mixture, int64 [B].
    """

    epoch: int
    parts: list[tuple[int, Request]]
    ids: Int64
    occurrence: Int64

    @property
    def request(self) -> Request:
        """The request as the consumer sees it, with the numbers over all sources."""
        return Request(self.epoch, self.ids, self.occurrence)


class _Epochs(EpochCounter):
    """Remembers the epoch that has begun: epochs of a mixture have several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.current = 0

    def begin(self) -> tuple[int, int]:
        """Return the epoch that begins now and its first batch, and advance."""
        self.current, first = super().begin()
        return self.current, first


class MixedFeed:
    """Batches of a mixture for one rank: a ``Feed``."""

    candidates: Int64 | None = None
    to_request = None

    def __init__(
        self, mixing: Mixing, orders: list[Sampler], rank: int, world: int, *, training: bool
    ) -> None:
        self.mixing, self._orders, self._rank, self._world = mixing, orders, rank, world
        self._offsets = np.cumsum([0, *(order.samples for order in orders)])
        self.epochs = _Epochs()
        # No closure over the feed: see ``IndexedFeed.results``.
        self.continues: Callable[[int], bool] = (lambda epoch: True) if training else (lambda epoch: False)

    @property
    def length(self) -> int:
        """Batches of the epoch that has begun, equal on every rank."""
        return self.mixing.length(self.epochs.current)

    def length_in_state(self, delivered: int) -> int:
        """Batches of the epoch."""
        return self.length

    def samples_per_rank(self, delivered: int) -> float:
        """Return the samples per epoch and rank."""
        return self.length * self.mixing.global_batch / self._world

    def shapes(self) -> dict[tuple[int, int], int]:
        """Return nothing: no source has buckets."""
        return {}

    def sources_of(self, ids: Int64) -> Int64:
        """Return the source of samples, by their numbers over all sources."""
        return np.searchsorted(self._offsets, ids, side="right") - 1

    def offset(self, source: int) -> int:
        """Return the number over all sources of the first sample of a source."""
        return int(self._offsets[source])

    def requests(self, epoch: int) -> Iterator[Request]:
        """Return the requests of an epoch, with the numbers over all sources."""
        for parts in self.parts(epoch, 0, lambda _: False):
            yield parts.request

    def parts(self, epoch: int, first: int, continues: Callable[[int], bool]) -> Iterator[Parts]:
        """Yield what this rank fetches, from batch ``first`` of an epoch on."""
        return _parts_of(
            self.mixing, self._orders, self._offsets, (self._rank, self._world), epoch, first, continues
        )

    def results(self, fetcher: Any, runner: Runner, epoch: int, first: int) -> Iterator[FetchResult]:
        """Begin to fetch, at batch ``first`` of an epoch. Ends all results that were begun before."""
        nbytes = fetcher.nbytes(self.mixing.largest(self._rank, self._world))
        return runner.run(self.parts(epoch, first, self.continues), nbytes)


def _parts_of(
    mixing: Mixing,
    orders: list[Sampler],
    offsets: Int64,
    part: tuple[int, int],
    epoch: int,
    first: int,
    continues: Callable[[int], bool],
) -> Iterator[Parts]:
    drawn: list[dict[int, tuple[Int64, Int64 | None]]] = [{} for _ in orders]
    while True:
        before = mixing.first_positions(epoch) // np.asarray(mixing.sizes)
        for k in range(first, mixing.length(epoch)):
            parts, ids, occurrences = [], [], []
            for source, number, places in mixing.slices(epoch, k, *part):
                known = drawn[source]
                if number not in known:
                    known[number] = orders[source].draw_epoch(number)
                    for old in sorted(known)[:-_ORDERS]:
                        del known[old]
                order, again = known.get(number) or orders[source].draw_epoch(number)
                occurrence = None if again is None else again[places]
                parts.append((source, Request(number, order[places], occurrence)))
                ids.append(offsets[source] + order[places])
                times = np.full(len(places), number - before[source], np.int64)
                occurrences.append(times if occurrence is None else times + occurrence)
            yield Parts(epoch, parts, np.concatenate(ids), np.concatenate(occurrences))
        epoch, first = epoch + 1, 0
        if not continues(epoch):
            return
