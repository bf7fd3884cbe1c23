"""The batches of a mixture for one rank: which samples of which source they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..sampling.epochs import EpochCounter
from ..sampling.mixing import Mixing
from ..sampling.rng import Float64, Int64, Numbered
from ..sampling.sampler import Origin, Request, Sampler
from .batch import FetchResult
from .buffers import Runner

_ORDERS = 2  # epochs of a source whose order is kept: a batch may have the end of one and the next
_AHEAD = 16  # batches whose samples are found by one call, which takes as long as that for one
# Rows whose numbers are drawn by one call. After a batch the processor's caches no longer hold its code: by a
# call for each batch, numbers of 64 rows take five times as long. Those of more rows do not fit into them.
_DRAWN_AHEAD = 1024


class _Epochs(EpochCounter):
    """Remembers the epoch that has begun: epochs of a mixture have several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.current = 0

    @property
    def counted(self) -> int:
        """The epoch whose batches count: the one that was set, otherwise the one that has begun."""
        return self.epoch if self.is_set else self.current

    def begin(self, is_further: bool = False) -> tuple[int, int]:
        """Return the epoch that begins now and its first batch, and advance."""
        self.current, first = super().begin(is_further)
        return self.current, first

    def follow(self, other: EpochCounter) -> tuple[int, int]:
        """Take over the next iteration of another counter; return its epoch and first batch."""
        self.current, first = super().follow(other)
        return self.current, first


class MixedFeed:
    """Batches of a mixture for one rank: a ``Feed``.

    Attributes:
        draw: Draws the first numbers of views ahead; None: they are drawn with each batch.
    """

    candidates: Int64 | None = None
    to_request = None

    def __init__(
        self, mixing: Mixing, orders: list[Sampler], rank: int, world: int, *, training: bool
    ) -> None:
        self.mixing, self._orders, self._rank, self._world = mixing, orders, rank, world
        self.draw: Callable[[Numbered], Float64] | None = None
        self._offsets = np.cumsum([0, *(order.samples for order in orders)])
        self.epochs = _Epochs()
        self.epochs.varies = not mixing.is_fixed
        # No closure over the feed: see ``IndexedFeed.results``.
        self.continues: Callable[[int], bool] = (lambda epoch: True) if training else (lambda epoch: False)

    @property
    def length(self) -> int:
        """Batches of the epoch that was set or has begun, equal on every rank."""
        return self.mixing.length(self.epochs.counted)

    def length_in_state(self, delivered: int) -> int:
        """Batches of the epoch that has begun."""
        return self.mixing.length(self.epochs.current)

    def samples_per_rank(self, delivered: int) -> float:
        """Return the samples per epoch and rank."""
        return self.length * self.mixing.global_batch / self._world

    def shapes(self) -> dict[tuple[int, int], int]:
        """Return nothing: no source has buckets."""
        return {}

    def offset(self, source: int) -> int:
        """Return the number over all sources of the first sample of a source."""
        return int(self._offsets[source])

    def requests(
        self, epoch: int, first: int = 0, continues: Callable[[int], bool] = lambda _: False
    ) -> Iterator[Request]:
        """Yield the requests from batch ``first`` of an epoch on, with the numbers over all sources."""
        part = self._rank, self._world
        return _requests_of(
            self.mixing, self._orders, self._offsets, part, self.draw, epoch, first, continues
        )

    def results(self, fetcher: Any, runner: Runner, epoch: int, first: int) -> Iterator[FetchResult]:
        """Begin to fetch, at batch ``first`` of an epoch. Ends all results that were begun before."""
        nbytes = fetcher.nbytes(self.mixing.largest(self._rank, self._world))
        return runner.run(self.requests(epoch, first, self.continues), nbytes)


def _requests_of(
    mixing: Mixing,
    orders: list[Sampler],
    offsets: Int64,
    part: tuple[int, int],
    draw: Callable[[Numbered], Float64] | None,
    epoch: int,
    first: int,
    continues: Callable[[int], bool],
) -> Iterator[Request]:
    drawn: list[dict[int, tuple[Int64, Int64 | None]]] = [{} for _ in orders]
    while True:
        positions = mixing.first_positions(epoch)
        before, length = positions // np.asarray(mixing.sizes), mixing.length(epoch)
        for k in range(first, length, _AHEAD):
            sources, epochs, places = mixing.rows(epoch, k, _AHEAD, *part, positions)
            ids, again = np.empty_like(places), np.zeros_like(places)
            for source, known in enumerate(drawn):
                _fill(ids, again, places, np.where(sources == source, epochs, -1), orders[source], known)
            times, numbers = epochs - before[sources] + again, offsets[sources] + ids
            together = _DRAWN_AHEAD // ids.shape[1]  # batches
            draws: list[Float64 | None] = [None] * len(ids)
            for row in range(len(ids)):
                if draw is not None and together > 1 and row % together == 0:
                    rows = slice(row, row + together)
                    numbered = Numbered(epochs[rows].ravel(), ids[rows].ravel(), again[rows].ravel())
                    draws[rows] = np.split(draw(numbered), len(ids[rows]))
                origin = Origin(sources[row], epochs[row], ids[row], again[row], draws[row])
                yield Request(epoch, numbers[row], times[row], origin=origin)
        epoch, first = epoch + 1, 0
        if not continues(epoch):
            return


def _fill(
    ids: Int64,
    again: Int64,
    places: Int64,
    epochs: Int64,
    order: Sampler,
    known: dict[int, tuple[Int64, Int64 | None]],
) -> None:
    """Write the samples of one source, and how often each came before in its epoch.

    Args:
        ids: Written, where the rows are of this source.
        again: As ``ids``.
        places: Of the rows in the order of their epoch.
        epochs: Of the source; -1 in the rows of others.
        order: Of its samples.
        known: The orders of its latest epochs.
    """
    for number in np.unique(epochs[epochs >= 0]).tolist():
        if number not in known:
            known[number] = order.draw_epoch(number)
            for old in sorted(known)[:-_ORDERS]:
                del known[old]
        samples, occurrence = known.get(number) or order.draw_epoch(number)
        rows = epochs == number
        ids[rows] = samples[places[rows]]
        if occurrence is not None:
            again[rows] = occurrence[places[rows]]
