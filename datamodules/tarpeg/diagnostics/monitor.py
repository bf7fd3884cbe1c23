"""Where the time of training steps goes: a Lightning callback, and its clocks for the CPU and the GPU."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, cast

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info
from torch import Tensor

from .. import machine
from ..loader.augmenting import modules_of, uncompiled
from ..loader.loader import Loader
from ..loader.ranks import rank_of_strategy
from ..ops import library
from ..shards.source import is_source
from .advice import STAGES, Advice, RunFacts, advise, measure_costs

# The first step starts processes, compiles and allocates: it is not measured.
_WARMUP = 1
# Lightning's actions, as it passes them to every profiler, without the class in front; and their stages.
_ACTIONS = {
    "train_dataloader_next": "wait",
    "transfer_batch_to_device": "transfer",
    "on_after_batch_transfer": "augment",
    "run_training_batch": "compute",
}


class DataStallMonitor(Callback):
    """Measure the share of the training steps spent waiting for data, and give advice at the end.

    After each epoch it logs ``data/X_share`` for X = wait, transfer, augment, compute and other (callbacks
    and loggers), which add up to 1; ``data/images_per_second`` over all ranks, if the lengths of batches are
    known; and ``data/substituted``, the number of images so far that were replaced by others. ``shares``,
    ``wait_share`` and ``images_per_second`` are of the whole run. ``verdict``, logged at the end, is where
    the time went and one piece of advice; ``advice`` is the same in parts.

    Validation, work between two epochs and the first step are not counted. The shares are those of the rank
    that waits most, because the others wait for it. On CUDA they are shares of the GPU's time, by events:
    only the ends of epochs synchronise. On other devices it is the time of the training process. Measuring
    takes 27 microseconds per step (one core of an AMD EPYC). If the loader augments, because the CPU trains,
    augmentation is a part of waiting. A resumed run is measured from there on.

    Steps are observed through the profiler interface of the Trainer, whose own profiler continues, so this
    works with any data. With a Lightning that uses other names, the time between two steps is waiting.

    Args:
        sample_seconds: Time for which rank 0 decodes images of the train split at the end, to estimate the
            gain of the advice; 0 for none.

    Example:
        >>> import lightning
        >>> monitor = tarpeg.DataStallMonitor(sample_seconds=0)
        >>> options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        >>> trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[monitor], **options)
    """

    def __init__(self, sample_seconds: float = 1.0) -> None:
        if sample_seconds < 0:
            raise ValueError(f"sample_seconds={sample_seconds!r} must not be negative")
        self.verdict = ""
        self.advice: Advice = ()
        self._sample_seconds = sample_seconds
        self._timeline = Timeline()
        self._seconds: Mapping[str, float] = self._timeline.seconds
        self._steps, self._images = 0, 0
        self._rate: float | None = None
        self._watch: _Watch | None = None
        self._epoch = self._totals()

    @property
    def shares(self) -> dict[str, float]:
        """Share, 0 to 1, that wait, transfer, augment, compute and other take of the training steps."""
        return _shares(self._seconds)

    @property
    def wait_share(self) -> float:
        """Share of the training steps spent waiting for data, 0 to 1."""
        return self.shares["wait"]

    @property
    def images_per_second(self) -> float:
        """Training images per second, over all ranks; of this rank alone until training ends."""
        if self._rate is not None:
            return self._rate
        seconds = sum(self._seconds.values())
        return self._images / seconds if seconds else 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to measure."""
        is_cuda = trainer.strategy.root_device.type == "cuda"
        self._timeline = DeviceTimeline() if is_cuda else Timeline()
        self._seconds, self._rate = self._timeline.seconds, None
        self.verdict, self.advice = "", ()
        self._steps, self._images = 0, 0
        self._epoch = self._totals()
        watched: Any = trainer  # Lightning declares neither profiler nor datamodule
        self._watch = _Watch(watched.profiler, self._timeline)
        watched.profiler = self._watch

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the compute stage if the profiler does not see when waiting ends."""
        if self._watch is None or not self._watch.sees_fetching:
            self._timeline.begin("compute")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the images."""
        self._images += _length(batch, trainer.train_dataloader)
        self._steps += 1
        if self._watch is None or not self._watch.sees_fetching:
            self._timeline.begin("wait")
        if self._steps == _WARMUP:
            self._timeline.reset()
            self._images = 0
            self._epoch = self._totals()
        self._timeline.read()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock; fetching the next batch starts it again."""
        self._timeline.pause()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch's figures."""
        self._timeline.pause()
        self._timeline.read(wait=True)
        before, self._epoch = self._epoch, self._totals()
        taken = [now - then for now, then in zip(self._epoch, before, strict=True)]
        shares, rate, substituted = _over_ranks(taken, trainer)
        for stage in STAGES:
            pl_module.log(f"data/{stage}_share", shares[stage], sync_dist=True)
        if rate:
            pl_module.log("data/images_per_second", rate, sync_dist=True)
        if hasattr(trainer.train_dataloader, "substituted"):
            pl_module.log("data/substituted", substituted, sync_dist=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the verdict on rank 0."""
        self._restore_profiler(trainer)
        self._timeline.pause()
        self._timeline.read(wait=True)
        shares, rate, _ = _over_ranks(self._totals(), trainer)
        self._seconds, self._rate = shares, rate
        if trainer.is_global_zero:
            run = _run_facts(trainer, self._sample_seconds if shares["wait"] > 0 else 0.0)
            _, world = rank_of_strategy(trainer.strategy)
            self.advice = advise(shares, self._steps - _WARMUP, rate / world, run)
            self.verdict = "".join(map(str, self.advice))
            rank_zero_info(f"data: {self.verdict}")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop to measure."""
        self._restore_profiler(trainer)

    def _totals(self) -> list[float]:
        """Seconds of each stage, then the number of images."""
        return [*self._timeline.seconds.values(), self._images]

    def _restore_profiler(self, trainer: Trainer) -> None:
        holder, name = cast(Any, trainer), "profiler"
        # Another monitor may have wrapped the profiler after this one.
        while isinstance(watch := getattr(holder, name), _Watch):
            if watch is self._watch:
                setattr(holder, name, watch.inner)
                return
            holder, name = watch, "inner"


class Timeline:
    """Seconds per stage by the CPU's clock: ``enter`` and ``leave`` nest; time in no stage is "other".

    It is stopped before ``begin`` and after ``pause``. ``seconds``: as of the last ``read``.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._stage: str | None = None  # None: stopped
        self._outer: list[str | None] = []
        self._mark = 0.0

    @property
    def is_running(self) -> bool:
        """Whether time is counted."""
        return self._stage is not None

    def begin(self, stage: str = "other") -> None:
        """Start to count time, in ``stage``."""
        self._outer.clear()
        self._switch(stage)

    def pause(self) -> None:
        """Stop to count time and leave all stages."""
        self._outer.clear()
        self._switch(None)

    def enter(self, stage: str) -> None:
        """Begin a stage within the current one, to which ``leave`` returns."""
        self._outer.append(self._stage)
        if self._stage is not None:
            self._switch(stage)

    def leave(self) -> None:
        """End the stage that was entered last."""
        outer = self._outer.pop() if self._outer else None
        if outer is not None and self._stage is not None:
            self._switch(outer)

    def read(self, *, wait: bool = False) -> None:
        """Update ``seconds``; ``wait``: until the device has done all work so far."""
        self._switch(self._stage)

    def reset(self) -> None:
        """Set all seconds to zero."""
        self._switch(self._stage)
        self.seconds.update(dict.fromkeys(STAGES, 0.0))

    def _switch(self, stage: str | None) -> None:
        now = time.perf_counter()
        if self._stage is not None:
            self.seconds[self._stage] += now - self._mark
        self._mark, self._stage = now, stage


_cuda_event = partial(torch.cuda.Event, enable_timing=True)


class DeviceTimeline(Timeline):
    """A Timeline of the GPU's time: marks go into its queue and are read after it has passed them.

    Nothing waits for the GPU. If the program waits while the GPU is busy with the step before, that wait
    takes no time here.

    Args:
        event: Function that makes a mark with the methods of ``torch.cuda.Event``.
    """

    def __init__(self, event: Callable[[], Any] = _cuda_event) -> None:
        super().__init__()
        self._event = event
        self._pending: deque[tuple[Any, str | None]] = deque()  # marks, and the stages that begin there
        self._spare: list[Any] = []

    def read(self, *, wait: bool = False) -> None:
        """Add the time between marks that the GPU has passed."""
        if wait and self._pending:
            self._switch(self._stage)
            self._pending[-1][0].synchronize()
        while len(self._pending) > 1 and self._pending[1][0].query():
            mark, stage = self._pending.popleft()
            if stage is not None:
                self.seconds[stage] += mark.elapsed_time(self._pending[0][0]) / 1e3
            self._spare.append(mark)

    def reset(self) -> None:
        """Set all seconds to zero and drop what is not read yet."""
        super().reset()
        while len(self._pending) > 1:
            self._pending.popleft()

    def _switch(self, stage: str | None) -> None:
        mark = self._spare.pop() if self._spare else self._event()
        mark.record()
        self._pending.append((mark, stage))
        self._stage = stage


@cache
def _stage_of(action_name: str) -> str | None:
    """Stage of an action: the part of its name after the last dot; None if it has no stage."""
    return _ACTIONS.get(action_name.rpartition(".")[2])


class _Watch(Profiler):
    """A profiler that switches the timeline's stages and passes all actions on to the Trainer's profiler.

    Attributes:
        inner: The profiler of the Trainer.
        sees_fetching: Whether an action of fetching a batch was seen.
    """

    def __init__(self, inner: Profiler, timeline: Timeline) -> None:
        super().__init__(inner.dirpath, inner.filename)
        self.inner = inner
        self.sees_fetching = False
        self._timeline = timeline
        self._passes_on = not isinstance(inner, PassThroughProfiler)

    def start(self, action_name: str) -> None:
        if self._passes_on:
            self.inner.start(action_name)
        stage = _stage_of(action_name)
        if stage is None:
            return
        if stage == "wait" and not self._timeline.is_running:
            self.sees_fetching = True
            self._timeline.begin()
        self._timeline.enter(stage)

    def stop(self, action_name: str) -> None:
        if _stage_of(action_name) is not None:
            self._timeline.leave()
        if self._passes_on:
            self.inner.stop(action_name)

    def summary(self) -> str:
        return self.inner.summary()

    def describe(self) -> None:
        self.inner.describe()


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    total = sum(seconds.values())
    return {stage: seconds[stage] / total if total else 0.0 for stage in STAGES}


def _over_ranks(measured: list[float], trainer: Trainer) -> tuple[dict[str, float], float, float]:
    """Shares of the rank that waits most; images per second and substituted images, both over all ranks.

    Processes of one data-parallel rank train on the same images, which count once.
    """
    rank, _ = rank_of_strategy(trainer.strategy)
    mine = (rank, [*measured, float(getattr(trainer.train_dataloader, "substituted", 0))])
    ranks: list[Any] = [mine]
    if trainer.world_size > 1 and torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = [None] * trainer.world_size
        torch.distributed.all_gather_object(ranks, mine)
    seconds = [dict(zip(STAGES, each, strict=False)) for _, each in ranks]
    shares = max(map(_shares, seconds), key=lambda each: each["wait"])
    totals = {rank: sum(each.values()) for (rank, _), each in zip(ranks, seconds, strict=True)}
    figures = dict(ranks)
    rate = sum(figures[rank][-2] / total for rank, total in totals.items() if total)
    return shares, rate, sum(each[-1] for each in figures.values())


def _length(batch: Any, loader: Any = None) -> int:
    """Return the number of samples in a batch, by its labels if possible: images may have several views.

    For several loaders, in a dict or list, the sum over their batches. 0: unknown.
    """
    if isinstance(loader, Mapping) and isinstance(batch, Mapping):
        return sum(_length(batch.get(name), each) for name, each in loader.items())
    if isinstance(loader, (tuple, list)) and isinstance(batch, (tuple, list)):
        return sum(map(_length, batch, loader))
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(parts, (tuple, list)):
        parts = [parts]
    for part in (getattr(batch, "label", None), *parts):
        if isinstance(part, Tensor) and part.ndim:
            return len(part)
    # An inner list may as well be one of samples, as in detection.
    return next(filter(None, (_length(part) for part in parts if isinstance(part, Mapping))), 0)


def _workers(loader: Any) -> int | None:
    """Return the worker processes of a DataLoader, the fewest of several; None: no such setting."""
    counts = [getattr(each, "num_workers", None) for each in CombinedLoader(loader).flattened]
    return min((count for count in counts if count is not None), default=None)


def _run_facts(trainer: Trainer, seconds: float) -> RunFacts:
    """Collect the facts that advice depends on, apart from the shares."""
    device = trainer.strategy.root_device.type
    cores = max(1, machine.read_machine().usable_cores // trainer.num_devices)
    profiler = cast(Any, trainer).profiler
    while isinstance(profiler, _Watch):
        profiler = profiler.inner
    is_profiled = not isinstance(profiler, PassThroughProfiler)
    run = RunFacts(device, cores, torch.get_num_threads(), is_profiled=is_profiled)
    loader = trainer.train_dataloader
    if not isinstance(loader, Loader):
        return run._replace(other_workers=_workers(loader))
    split, (workers, threads) = loader.split, loader.config.workers_and_threads
    modules = modules_of(getattr(getattr(trainer, "datamodule", None), "augment", None))
    # Of several modules, one per view, the first that is not tarpeg's explains the time best.
    names = sorted([type(uncompiled(module)).__name__ for module in modules], key="Augment".__eq__)
    costs = None
    if not split.streaming:
        costs = measure_costs(loader.fetcher, max(trainer.current_epoch - 1, 0), seconds)
    return run._replace(
        source=None if is_source(split.shards) else cast(Any, split.shards),
        is_streaming=bool(split.streaming),
        workers=workers,
        threads=threads,
        augment=names[0] if names else None,
        is_random=any(getattr(module, "is_random", False) for module in modules),
        has_operators=device != "cuda" or library.has_cuda(),
        costs=costs,
    )
