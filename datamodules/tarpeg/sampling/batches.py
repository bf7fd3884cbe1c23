"""Epochs cut into batches over ranks, from any batch on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..errors import ShardError, warn
from .sampler import Request, Sampler


@dataclass(frozen=True)
class DistributedBatchSampler:
    """An epoch cut into global batches, and each global batch into one slice per rank.

    ``samples`` and ``global_batch``: samples per epoch and per batch, over all ranks. Every sample belongs to
    exactly one slice. All ranks have the same number of batches; in each batch a rank has at least one sample
    and at most one more than another rank. A tail smaller than ``world`` joins the batch before it;
    ``drop_last`` drops an incomplete batch. ``takes_turns``: the samples of a batch go to the ranks in turn,
    instead of one run of neighbours to each. Raises ValueError for arguments out of range, and ShardError if
    there are too few samples.
    """

    samples: int
    global_batch: int
    world: int = 1
    drop_last: bool = False
    takes_turns: bool = False

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
                "Add shards or use fewer ranks."
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
        """Start and stop of global batch k in the epoch's samples. Raises IndexError outside 0..len-1."""
        if not 0 <= k < len(self):
            raise IndexError(f"k={k} must be in 0..{len(self) - 1}")
        start = k * self.global_batch
        takes_the_tail = k == len(self) - 1 and not self.drop_last
        return start, self.samples if takes_the_tail else start + self.global_batch

    def rank_bounds(self, k: int, rank: int) -> tuple[int, int]:
        """Start and stop of the rank's slice of global batch k in the epoch's samples."""
        if not 0 <= rank < self.world:
            raise IndexError(f"rank={rank} must be in 0..{self.world - 1}")
        start, stop = self.bounds(k)
        count = stop - start
        return start + count * rank // self.world, start + count * (rank + 1) // self.world

    def rank_places(self, k: int, rank: int) -> slice:
        """Places of the rank's part of global batch k in the epoch's samples."""
        start, stop = self.rank_bounds(k, rank)
        if not self.takes_turns:
            return slice(start, stop)
        start, stop = self.bounds(k)
        return slice(start + rank, stop, self.world)

    def largest(self, rank: int) -> int:
        """Count the samples of the rank's largest batch: the first, or the last one with its tail."""
        places = (self.rank_places(k, rank).indices(self.samples) for k in (0, len(self) - 1))
        return max(len(range(*each)) for each in places)

    def requests(
        self, sampler: Sampler, rank: int, epoch: int, first: int, continues: Callable[[int], bool]
    ) -> Iterator[Request]:
        """Yield one rank's requests from batch ``first`` of an epoch on.

        At the end of an epoch, the next one follows if ``continues(next epoch)`` is true.
        """
        count = len(self)
        low, high = (self.global_batch * r // self.world for r in (rank, rank + 1))
        while True:
            ids, occurrence = sampler.draw_epoch(epoch)
            for k in range(first, count):
                start = k * self.global_batch
                if self.takes_turns or k == count - 1:
                    places = self.rank_places(k, rank)
                else:
                    places = slice(start + low, start + high)
                yield Request(epoch, ids[places], None if occurrence is None else occurrence[places])
            epoch, first = epoch + 1, 0
            if not continues(epoch):
                return


class EpochCounter:
    """Epoch and first batch of the next iteration: the object behind ``loader.sampler``.

    Lightning calls ``set_epoch``, which holds for the next ``iter()`` only. ``on_epoch``: called first.
    ``epoch``: the next one, if ``set_epoch`` is not called.
    """

    def __init__(self) -> None:
        self.on_epoch: Callable[[], None] | None = None
        self.epoch = 0
        self._set: int | None = None
        self._resumed: tuple[int, int, bool] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter()``."""
        if self.on_epoch is not None:
            self.on_epoch()
        self._set = epoch

    def resume(self, epoch: int, batch: int, is_end: bool) -> None:
        """Begin that epoch at that batch. ``is_end``: the next ``iter()`` is the epoch after it."""
        self.epoch = epoch + is_end
        self._resumed = (epoch, batch, is_end)

    def begin(self) -> tuple[int, int]:
        """Return the epoch that begins now and its first batch, and advance."""
        epoch = self.epoch if self._set is None else self._set
        resumed, first, is_end = self._resumed or (epoch, 0, False)
        if resumed < epoch and first and not is_end:
            warn(
                f"the checkpoint is at batch {first} of epoch {resumed}, but epoch {epoch} begins: the other "
                f"batches of epoch {resumed} are left out. Lightning takes an epoch for finished if "
                "max_steps ended the run in it; checkpoints of ModelCheckpoint(every_n_train_steps=n) go on "
                "within it."
            )
        self._set = self._resumed = None
        self.epoch = epoch + 1
        return epoch, first if resumed == epoch else 0
