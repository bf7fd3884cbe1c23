"""What one rank asks for: which samples, in which batch, from which batch on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import ShardError
from .sampler import Request, Sampler


@dataclass(frozen=True)
class BatchPlan:
    """How an epoch is cut into global batches, and each of these into one slice per rank.

    All counts are samples. Every sample belongs to exactly one slice; ranks see equally many batches, and in
    each at least one sample and at most one more than another rank. A tail smaller than the world joins the
    batch before it; drop_last drops any incomplete batch. Raises ValueError where a number is out of range
    and ShardError where there are too few samples.
    """

    samples: int
    global_batch: int
    world: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.world < 1:
            raise ValueError(f"world={self.world} must be at least 1")
        if self.global_batch < self.world:
            raise ValueError(
                f"global_batch={self.global_batch} is smaller than world={self.world}: each rank needs "
                "a sample of every batch. Raise the batch size."
            )
        if self.samples < self.world:
            raise ShardError(
                f"samples={self.samples} are too few for world={self.world} ranks: each needs at least one. "
                "Give more shards or use fewer ranks."
            )
        if self.drop_last and self.samples < self.global_batch:
            raise ShardError(
                f"samples={self.samples} are fewer than global_batch={self.global_batch}, so drop_last=True "
                "leaves no batch. Lower the batch size or set drop_last=False."
            )

    def __len__(self) -> int:
        full, tail = divmod(self.samples, self.global_batch)
        return full if self.drop_last else full + (tail >= self.world)

    def bounds(self, k: int) -> tuple[int, int]:
        """Start and stop of global batch k in the epoch's order. Raises IndexError outside 0..len-1."""
        if not 0 <= k < len(self):
            raise IndexError(f"k={k} must be in 0..{len(self) - 1}")
        start = k * self.global_batch
        is_open_end = k == len(self) - 1 and not self.drop_last
        return start, self.samples if is_open_end else start + self.global_batch

    def rank_bounds(self, k: int, rank: int) -> tuple[int, int]:
        """Start and stop of the rank's slice of global batch k in the epoch's order."""
        if not 0 <= rank < self.world:
            raise IndexError(f"rank={rank} must be in 0..{self.world - 1}")
        start, stop = self.bounds(k)
        count = stop - start
        return start + count * rank // self.world, start + count * (rank + 1) // self.world


class EpochCounter:
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
    order: Sampler
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
