"""What one rank asks for: which samples, in which batch, from which batch on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .batch import Request
from .order import Order
from .sampling import BatchPlan


class Sampler:
    """Which epoch comes next, and which batch of it first.

    Lightning calls ``set_epoch`` on a loader's ``sampler``, for the next ``iter()`` only. ``on_epoch`` is
    called before.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.on_epoch: Callable[[], None] | None = None
        self._said: int | None = None
        self._resume: tuple[int, int] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next ``iter()`` is."""
        if self.on_epoch is not None:
            self.on_epoch()
        self._said = epoch

    def resume(self, epoch: int, batch: int, is_end: bool) -> None:
        """Go on at that batch where the next epoch is that epoch, which it is unless this is its end."""
        self.epoch = epoch + is_end
        self._resume = (epoch, batch)

    def begin(self) -> tuple[int, int]:
        """Return the epoch that begins now, and its first batch."""
        epoch = self.epoch if self._said is None else self._said
        resumed, first = self._resume or (epoch, 0)
        self._said = self._resume = None
        self.epoch = epoch + 1
        return epoch, first if resumed == epoch else 0


@dataclass
class Requests:
    """One rank's requests, in order, from the batch on that ``begin`` named.

    ``bytes_of``: how many bytes the images take that a request is answered with. Where it ``continues``, the
    epochs after follow: what begins the next is decoded while this one ends.
    """

    plan: BatchPlan
    order: Order
    rank: int
    bytes_of: Callable[[Request], int]
    continues: bool
    size: int = 0
    _epoch: int = 0
    _first: int = 0

    def begin(self, epoch: int, first: int) -> None:
        """Begin at that batch of that epoch; ``size`` is then what its largest batch takes."""
        self._epoch, self._first = epoch, first
        self.size = self._largest(epoch)

    def follow(self, epoch: int) -> bool:
        """Say whether that later epoch's requests follow, as they do while its batches are no larger."""
        return self.continues and self._largest(epoch) <= self.size

    def __iter__(self) -> Iterator[Request]:
        epoch, first = self._epoch, self._first
        while True:
            for k in range(first, len(self.plan)):
                yield self.order.request(epoch, *self.plan.rank_bounds(k, self.rank))
            epoch, first = epoch + 1, 0
            if not self.follow(epoch):
                return

    def _largest(self, epoch: int) -> int:
        bounds = [self.plan.rank_bounds(k, self.rank) for k in (0, len(self.plan) - 1)]
        ids = np.zeros(max(stop - start for start, stop in bounds), np.int64)
        return self.bytes_of(Request(epoch, ids))
