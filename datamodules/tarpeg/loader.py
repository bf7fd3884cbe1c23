"""Batches in order: which samples, which rank, which worker."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader

from . import sampling
from .batch import Answer, Batch, KeyedBatch, OnError, Request
from .crops import Crop
from .shards import Shards, expand

# A data set where every tenth image is broken should not fill the terminal.
_MOST_WARNINGS = 20


@dataclass(frozen=True)
class Split:
    """Which shards, and what to take of each image.

    ``shards``: a folder, a path, a glob, a brace pattern ("train-{000..009}.tar") or a list of these.
    ``crop``: ``RandomResizedCrop``, ``RandomCrop`` or ``CenterCrop``. ``flip``: the probability, 0 to 1, of
    mirroring left to right. ``shuffle``: a new permutation every epoch; by default for training only.
    ``target``: the member that holds the integer label; None where there is none (labels are then -1).
    """

    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    crop: Crop
    flip: float = 0.0
    shuffle: bool | None = None
    target: str | None = "cls"

    def __post_init__(self) -> None:
        if not 0.0 <= self.flip <= 1.0:
            raise ValueError(f"flip={self.flip!r} is a probability, from 0 to 1")
        if not (hasattr(self.crop, "boxes") and hasattr(self.crop, "draws") and hasattr(self.crop, "size")):
            raise ValueError(
                f"crop={self.crop!r} is no crop, such as RandomResizedCrop, RandomCrop or CenterCrop: "
                "something with size, draws and boxes(sizes, draws)"
            )

    def open(self) -> Shards:
        """Index the shards; ``ShardError`` names what is missing or broken."""
        return Shards(expand(self.shards))


@dataclass(frozen=True)
class Delivery:
    """How batches are cut and made; the same for all splits of a data module.

    ``batch_size`` is per rank; ``global_batch_size`` fixes the sum over all ranks instead. ``workers``:
    worker processes, 0 for none.
    """

    batch_size: int = 64
    global_batch_size: int | None = None
    seed: int = 0
    workers: int = 0
    on_error: OnError = "substitute"
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "global_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value!r} must be at least 1")
        if self.workers < 0:
            raise ValueError(f"workers={self.workers!r} must not be negative")
        if self.on_error not in ("substitute", "raise"):
            raise ValueError(f"on_error={self.on_error!r} must be 'substitute' or 'raise'")


@dataclass
class _Sampler:
    """Which epoch comes next. Lightning calls ``set_epoch`` on a loader's ``sampler``."""

    epoch: int = 0
    _said: int | None = field(default=None, repr=False)

    def set_epoch(self, epoch: int) -> None:
        self._said = epoch

    def begin(self) -> int:
        epoch = self.epoch if self._said is None else self._said
        self._said = None
        self.epoch = epoch + 1
        return epoch


@dataclass
class _Requests:
    """The requests of one rank for one epoch, in order; what the DataLoader takes for a batch sampler."""

    plan: sampling.BatchPlan
    seed: int
    rank: int
    shuffle: bool
    epoch: int = 0

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[Request]:
        epoch, order = self.epoch, self.order()
        for k in range(len(self.plan)):
            start, stop = self.plan.rank_bounds(k, self.rank)
            yield Request(epoch, order[start:stop])

    def order(self) -> npt.NDArray[np.int64]:
        if self.shuffle:
            return sampling.permutation(self.seed, self.epoch, self.plan.samples)
        return np.arange(self.plan.samples, dtype=np.int64)


class Loader:
    """Batches of one split for one rank; iterate it again for the next epoch.

    Each ``iter()`` advances the epoch by itself, unless ``loader.sampler.set_epoch(e)`` said which. Every
    sample comes exactly once an epoch over all ranks; order and crops are a function of seed and epoch.
    A new iterator retires the one before it. ``substituted`` counts the images that others stood in for.
    """

    # Lightning looks for both; a loader without them is taken for a shuffling one, or crashes.
    batch_sampler = None

    def __init__(
        self,
        shards: Shards,
        split: Split,
        delivery: Delivery,
        *,
        shuffle: bool,
        keys: bool,
        rank: int,
        world: int,
    ) -> None:
        # Importing this loads the operators; importing this module must not.
        from .reading import Reader

        self.sampler = _Sampler()
        self.substituted = 0
        shuffle = shuffle if split.shuffle is None else split.shuffle
        total = delivery.global_batch_size or delivery.batch_size * world
        plan = sampling.BatchPlan(len(shards), total, world, delivery.drop_last)
        self._requests = _Requests(plan, delivery.seed, rank, shuffle)
        self._reader = Reader(
            shards, split.crop, split.flip, split.target, delivery.seed, delivery.on_error, keys
        )
        self._workers = delivery.workers
        self._answers: DataLoader[Answer] | None = None
        self._turn = 0
        self._told_of_foreign = False

    def __len__(self) -> int:
        """Batches an epoch, equal on every rank."""
        return len(self._requests)

    def __iter__(self) -> Iterator[Batch | KeyedBatch]:
        # Lightning makes an iterator before it says which epoch: a generator asks at the first next().
        self._turn += 1
        turn = self._turn
        self._requests.epoch = self.sampler.begin()
        if self._answers is None:
            self._answers = self._started()
        for answer in self._answers:
            self._tell(answer)
            if answer.error is not None:
                self.close()
                try:
                    raise answer.error
                finally:
                    del answer  # the error holds this frame, which must not hold the error
            assert answer.batch is not None
            yield answer.batch
            if self._turn != turn:
                raise RuntimeError(
                    "this iterator was retired by a newer one of the same loader, or by close(); "
                    "ask the data module for a loader of its own"
                )

    def close(self) -> None:
        """End the worker processes and the iterator. Idempotent; iterating again starts new ones."""
        self._turn += 1
        answers, self._answers = self._answers, None
        # torch ends them when nobody refers to its iterator any more, which a traceback in flight does.
        shutdown = getattr(getattr(answers, "_iterator", None), "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()

    @property
    def _iterator(self) -> None:
        """Lightning sets this to None when a run ends, whichever way it ends: see _iterator.setter."""

    @_iterator.setter
    def _iterator(self, value: None) -> None:
        self.close()

    def _started(self) -> DataLoader[Answer]:
        options: dict[str, Any] = {}
        if self._workers:
            options = {"persistent_workers": True, "worker_init_fn": _begin_worker}
        return DataLoader(
            self._reader,  # type: ignore[arg-type]
            batch_sampler=self._requests,  # type: ignore[arg-type]
            num_workers=self._workers,
            collate_fn=_as_it_is,
            **options,
        )

    def _tell(self, answer: Answer) -> None:
        """Warn, on behalf of the frame that iterates, of what a worker met."""
        if answer.foreign is not None and not self._told_of_foreign:
            self._told_of_foreign = True
            warnings.warn(
                f"{answer.foreign}: such images are decoded by Pillow, several times slower than a JPEG "
                "(told once)",
                stacklevel=3,
            )
        for text in answer.substituted:
            self.substituted += 1
            if self.substituted <= _MOST_WARNINGS:
                last = "; the loader counts the others in silence" * (self.substituted == _MOST_WARNINGS)
                warnings.warn(text + last, stacklevel=3)


def _as_it_is(answer: Any) -> Any:
    return answer


def _begin_worker(_: int) -> None:
    # Ctrl-C reaches the whole group: the parent decides. (torch sees to SIGTERM, and to a parent that dies.)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def default_workers() -> int:
    """One worker for each core this process may use, at most 8."""
    if hasattr(os, "sched_getaffinity"):
        return min(8, len(os.sched_getaffinity(0)))
    return min(8, os.cpu_count() or 1)
