"""Which stage of a training step time belongs to, by the clock of the CPU or of the GPU."""
# MERGED: Where a training run's time goes, and what to do about it: a Lightning callback.

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from .. import machine
from ..loader.loader import Loader
from ..ops import library
from .advice import Feed, costs_of, verdict

STAGES = ("wait", "transfer", "augment", "compute", "other")


class Timeline:
    """Adds up the seconds of each stage: ``enter`` and ``leave`` nest, what is in no stage is "other".

    It stands still until ``begin``, and again from ``pause`` on. ``seconds``: what ``read`` knows of so far.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._stage: str | None = None  # None: it stands still
        self._outer: list[str | None] = []
        self._mark = 0.0

    @property
    def is_running(self) -> bool:
        """Whether time counts."""
        return self._stage is not None

    def begin(self, stage: str = "other") -> None:
        """Count from now on."""
        self._outer.clear()
        self._turn(stage)

    def pause(self) -> None:
        """Count no more, whatever was entered."""
        self._outer.clear()
        self._turn(None)

    def enter(self, stage: str) -> None:
        """Begin a stage within the present one; ``leave`` goes back to that."""
        self._outer.append(self._stage)
        if self._stage is not None:
            self._turn(stage)

    def leave(self) -> None:
        """End the stage that was entered last."""
        outer = self._outer.pop() if self._outer else None
        if outer is not None and self._stage is not None:
            self._turn(outer)

    def read(self, *, all_of_it: bool = False) -> None:
        """Bring ``seconds`` up to date; ``all_of_it`` may wait for a device that is behind."""
        self._turn(self._stage)

    def forget(self) -> None:
        """Count anew from now on."""
        self._turn(self._stage)
        self.seconds.update(dict.fromkeys(STAGES, 0.0))

    def _turn(self, stage: str | None) -> None:
        now = time.perf_counter()
        if self._stage is not None:
            self.seconds[self._stage] += now - self._mark
        self._mark, self._stage = now, stage


class Event(Protocol):
    """A mark in a device's queue of work: what ``torch.cuda.Event(enable_timing=True)`` is."""

    def record(self) -> None:
        """Put the mark behind all work there is so far."""

    def query(self) -> bool:
        """Tell whether the device has come there, without waiting."""

    def synchronize(self) -> None:
        """Wait until it has."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this mark to another."""


def _cuda_event() -> Event:
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return cast(Event, event)


class DeviceTimeline(Timeline):
    """A Timeline of the GPU's time: marks go into its queue and are read once it has passed them.

    Nothing waits for the GPU. While it is still busy with the step before, a wait of the program's is no wait
    of the GPU's and takes no time here.
    """

    def __init__(self, event: Callable[[], Event] = _cuda_event) -> None:
        super().__init__()
        self._event = event
        self._passing: deque[tuple[Event, str | None]] = deque()  # marks, and the stages that begin there
        self._spare: list[Event] = []

    def read(self, *, all_of_it: bool = False) -> None:
        """Add up what lies between marks that the GPU has passed."""
        if all_of_it and self._passing:
            self._turn(self._stage)
            self._passing[-1][0].synchronize()
        while len(self._passing) > 1 and self._passing[1][0].query():
            mark, stage = self._passing.popleft()
            if stage is not None:
                self.seconds[stage] += mark.elapsed_time(self._passing[0][0]) / 1e3
            self._spare.append(mark)

    def forget(self) -> None:
        """Count anew from now on."""
        self._turn(self._stage)
        while len(self._passing) > 1:
            self._passing.popleft()
        self.seconds.update(dict.fromkeys(STAGES, 0.0))

    def _turn(self, stage: str | None) -> None:
        mark = self._spare.pop() if self._spare else self._event()
        mark.record()
        self._passing.append((mark, stage))
        self._stage = stage


# The first step starts processes, compiles and allocates: no part of what a step takes.
_WARMUP = 1
# Lightning's names of what it does, without the class that does it: what it hands to every profiler.
_ACTIONS = {
    "train_dataloader_next": "wait",
    "transfer_batch_to_device": "transfer",
    "on_after_batch_transfer": "augment",
    "run_training_batch": "compute",
}


class DataStallMonitor(Callback):
    """Measure which share of the training steps is spent waiting for data, and say at the end what helps.

    Logs after each epoch ``data/wait_share``, ``data/transfer_share``, ``data/augment_share``,
    ``data/compute_share`` and ``data/other_share`` (callbacks, loggers; the five add up to 1),
    ``data/images_per_second`` over all ranks, where batches tell how many images they hold, and
    ``data/substituted``, the images so far that others stood in for. The properties ``shares``,
    ``wait_share`` and ``images_per_second`` hold the same of the whole run. ``verdict``, which is also logged
    when training ends, says where the time went and gives one piece of advice: a setting or a command. To
    tell what it would gain, rank 0 decodes some images of the train split then, for about ``sample_seconds``
    (0: it does not).

    Validation, whatever comes between two epochs and the first step count for nothing. Each rank measures
    itself; shares are those of the rank that waits most, as the others wait for it. On CUDA they are shares
    of the GPU's time, by events that are read later: nothing synchronises but the ends of epochs. On other
    devices it is the program's time. Watching takes 27 microseconds a step (one core of an AMD EPYC). Where
    worker processes or the decoder augment, because the CPU trains, that is a part of waiting. A run that is
    resumed is measured from there on.

    Steps are watched through the profiler interface of the Trainer, whose own profiler goes on as before, so
    this works with any data. With a Lightning that has other names for what it does, time between two steps
    counts as waiting.
    """

    def __init__(self, sample_seconds: float = 1.0) -> None:
        if sample_seconds < 0:
            raise ValueError(f"sample_seconds={sample_seconds!r} must not be negative")
        self.verdict = ""
        self._sample_seconds = sample_seconds
        self._timeline = Timeline()
        self._seconds: Mapping[str, float] = self._timeline.seconds
        self._steps = self._images = 0
        self._rate: float | None = None
        self._watch: _Watch | None = None
        self._epoch = self._now()

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
        """Training images a second, over all ranks; of this rank alone until training ends."""
        total = sum(self._seconds.values())
        return self._rate if self._rate is not None else self._images / total if total else 0.0

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Begin to watch."""
        is_cuda = trainer.strategy.root_device.type == "cuda"
        self._timeline = DeviceTimeline() if is_cuda else Timeline()
        self._seconds, self._rate, self.verdict = self._timeline.seconds, None, ""
        self._steps = self._images = 0
        self._epoch = self._now()
        watched: Any = trainer  # Lightning declares neither profiler nor datamodule
        watched.profiler = self._watch = _Watch(watched.profiler, self._timeline)

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Work, where nothing else tells when waiting ends."""
        if self._watch is None or not self._watch.knows:
            self._timeline.begin("compute")

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count the images."""
        self._images += _length(batch, trainer.train_dataloader)
        self._steps += 1
        if self._watch is None or not self._watch.knows:
            self._timeline.begin("wait")
        if self._steps == _WARMUP:
            self._timeline.forget()
            self._images = 0
            self._epoch = self._now()
        self._timeline.read()

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stop the clock; the next batch that is fetched starts it again."""
        self._timeline.pause()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Log the epoch's figures."""
        self._timeline.pause()
        self._timeline.read(all_of_it=True)
        before, self._epoch = self._epoch, self._now()
        taken = [now - then for now, then in zip(self._epoch, before, strict=True)]
        shares, rate, substituted = _over_ranks(taken, trainer)
        for stage in STAGES:
            pl_module.log(f"data/{stage}_share", shares[stage], sync_dist=True)
        if rate:
            pl_module.log("data/images_per_second", rate, sync_dist=True)
        if hasattr(trainer.train_dataloader, "substituted"):
            pl_module.log("data/substituted", substituted, sync_dist=True)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Say where the time went, on rank 0."""
        self._give_back(trainer)
        self._timeline.pause()
        self._timeline.read(all_of_it=True)
        shares, rate, _ = _over_ranks(self._now(), trainer)
        self._seconds, self._rate = shares, rate
        if trainer.is_global_zero:
            feed = _feed(trainer, self._sample_seconds if shares["wait"] > 0 else 0.0)
            self.verdict = verdict(shares, self._steps - _WARMUP, rate / trainer.world_size, feed)
            rank_zero_info(f"data: {self.verdict}")

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Watch no more."""
        self._give_back(trainer)

    def _now(self) -> list[float]:
        return [*self._timeline.seconds.values(), self._images]

    def _give_back(self, trainer: lightning.Trainer) -> None:
        holder, name = cast(Any, trainer), "profiler"
        # Another monitor may have begun to watch after this one.
        while isinstance(watch := getattr(holder, name), _Watch):
            if watch is self._watch:
                setattr(holder, name, watch.inner)
                return
            holder, name = watch, "inner"


class _Watch(Profiler):
    """Passes everything on to the Trainer's own profiler, and tells the timeline what begins and ends.

    ``knows``: whether it has seen a batch being fetched.
    """

    def __init__(self, inner: Profiler, timeline: Timeline) -> None:
        super().__init__(inner.dirpath, inner.filename)
        self.inner = inner
        self.knows = False
        self._timeline = timeline
        self._stages = _StageOf()
        self._passes_on = not isinstance(inner, PassThroughProfiler)

    def start(self, action_name: str) -> None:
        """Begin a stage, if this is one."""
        if self._passes_on:
            self.inner.start(action_name)
        stage = self._stages[action_name]
        if stage is None:
            return
        if stage == "wait" and not self._timeline.is_running:
            self.knows = True
            self._timeline.begin()
        self._timeline.enter(stage)

    def stop(self, action_name: str) -> None:
        """End a stage."""
        if self._stages[action_name] is not None:
            self._timeline.leave()
        if self._passes_on:
            self.inner.stop(action_name)

    def summary(self) -> str:
        """Tell what the Trainer's own profiler has seen."""
        return self.inner.summary()

    def describe(self) -> None:
        """Have the Trainer's own profiler log what it has seen."""
        self.inner.describe()


class _StageOf(dict[str, str | None]):
    """The stage that an action of Lightning's belongs to, or None; looked up once for each name."""

    def __missing__(self, action: str) -> str | None:
        stage = self[action] = _ACTIONS.get(action.rpartition(".")[2])
        return stage


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    total = sum(seconds.values())
    return {stage: seconds[stage] / total if total else 0.0 for stage in STAGES}


def _over_ranks(measured: list[float], trainer: lightning.Trainer) -> tuple[dict[str, float], float, float]:
    """Shares of the rank that waits most, images a second of all, images that were substituted on all."""
    mine = [*measured, float(getattr(trainer.train_dataloader, "substituted", 0))]
    every: list[Any] = [mine]
    if trainer.world_size > 1 and torch.distributed.is_available() and torch.distributed.is_initialized():
        every = [None] * trainer.world_size
        torch.distributed.all_gather_object(every, mine)
    seconds = [dict(zip(STAGES, each, strict=False)) for each in every]
    shares = max(map(_shares, seconds), key=lambda each: each["wait"])
    totals = [sum(each.values()) for each in seconds]
    rate = sum(each[-2] / total for each, total in zip(every, totals, strict=True) if total)
    return shares, rate, sum(each[-1] for each in every)


def _length(batch: Any, loader: Any = None) -> int:
    """Count a batch's samples, of its labels where it has any: images may come as several views.

    Of several loaders, a dict or list of them, the sum over their batches. 0: it cannot be told.
    """
    if isinstance(loader, Mapping) and isinstance(batch, Mapping):
        return sum(_length(batch.get(name), each) for name, each in loader.items())
    if isinstance(loader, (tuple, list)) and isinstance(batch, (tuple, list)):
        return sum(map(_length, batch, loader))
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(parts, (tuple, list)):
        label = getattr(batch, "label", None)
        tensors = [part for part in (label, *parts) if isinstance(part, Tensor) and part.ndim]
        if tensors:
            return len(tensors[0])
        # A list within is as likely one of samples, as in detection.
        return next(filter(None, (_length(part) for part in parts if isinstance(part, Mapping))), 0)
    return len(parts) if isinstance(parts, Tensor) and parts.ndim else 0


def _workers(loader: Any) -> int | None:
    """Tell how many worker processes a DataLoader has; of several, the fewest. None: no such setting."""
    loaders = list(loader.values()) if isinstance(loader, Mapping) else loader
    if isinstance(loaders, (tuple, list)):
        return min((count for each in loaders if (count := _workers(each)) is not None), default=None)
    return getattr(loader, "num_workers", None)


def _feed(trainer: lightning.Trainer, seconds: float) -> Feed:
    """Find out what the verdict depends on, apart from the shares."""
    device = trainer.strategy.root_device.type
    cores = max(1, machine.read_machine().usable_cores // trainer.num_devices)
    profiler = cast(Any, trainer).profiler
    while isinstance(profiler, _Watch):
        profiler = profiler.inner
    feed = Feed(device, cores, torch.get_num_threads())
    feed = feed._replace(is_profiled=not isinstance(profiler, PassThroughProfiler))
    loader = trainer.train_dataloader
    if not isinstance(loader, Loader):
        return feed._replace(other_workers=_workers(loader))
    config, split = loader.config, loader.split
    workers, threads = config.workers_and_threads
    augment = getattr(getattr(trainer, "datamodule", None), "augment", None)
    return feed._replace(
        source=split.shards if isinstance(split.shards, (str, os.PathLike)) else list(split.shards),
        is_streaming=bool(split.streaming),
        workers=workers,
        threads=threads,
        augment=None if augment is None else type(augment).__name__,
        is_random=bool(getattr(augment, "is_random", False)),
        has_operators=device != "cuda" or library.has_cuda(),
        costs=None
        if split.streaming
        else costs_of(loader.fetcher, max(trainer.current_epoch - 1, 0), seconds),
    )
