"""Where the time of training steps goes: a Lightning callback, and its clocks for the CPU and the GPU."""

from __future__ import annotations

import os
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
from .figures import Measured, by_rank, metrics_of, slowest_of, table_of
from .openmetrics import MetricsFile, check_metrics

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
    known; and ``data/substituted``, the number of images so far that were replaced by others. Of tarpeg's
    loaders also ``data/queue``, the decoded batches that were ready when the next one was asked for, and
    ``data/megabytes_read``, of encoded images. On several ranks these and the rate are of each of them,
    ``data/rank3/queue``, up to 64; ``data/slowest_rank`` is the one that waits most. ``shares``,
    ``wait_share`` and ``images_per_second`` are of the whole run. ``verdict``, logged at the end, is where
    the time went and one piece of advice; ``advice`` is the same in parts, and ``table`` has a line per rank.

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
        metrics: Path of a file ``NAME.prom``, which is replaced every 10 seconds by sums of seconds, images
            and bytes so far, as OpenMetrics text for node_exporter's textfile collector. Each of several
            processes has its own, ``NAME.rank3.prom``. It needs prometheus-client: the extra ``metrics``.

    Raises:
        ValueError: For an argument out of range; when training begins, if the folder of ``metrics`` is not
            there.
        ImportError: For ``metrics`` without prometheus-client.

    Example:
        >>> import lightning
        >>> monitor = tarpeg.DataStallMonitor(sample_seconds=0)
        >>> options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        >>> trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[monitor], **options)
    """

    def __init__(self, sample_seconds: float = 1.0, metrics: str | os.PathLike[str] | None = None) -> None:
        if sample_seconds < 0:
            raise ValueError(f"sample_seconds={sample_seconds!r} must not be negative")
        if metrics is not None:
            check_metrics(metrics)
        self._sample_seconds, self._metrics = sample_seconds, metrics
        self._watch: _Watch | None = None
        self._begin(Timeline())

    def _begin(self, timeline: Timeline) -> None:
        """Forget what was measured."""
        self.verdict, self.table = "", ""
        self.advice: Advice = ()
        self._timeline = timeline
        self._steps, self._images = 0, 0
        self._loaders = _Loaders()
        self._ranks: list[Measured] = []  # of the whole run, after its end
        self._epoch = Measured()
        self._rank = 0
        self._slowest: int | None = None  # rank, of the last epoch
        self._file: MetricsFile | None = None

    @property
    def shares(self) -> dict[str, float]:
        """Share, 0 to 1, that wait, transfer, augment, compute and other take of the training steps."""
        return slowest_of(self._ranks or [self._measured()]).shares

    @property
    def wait_share(self) -> float:
        """Share of the training steps spent waiting for data, 0 to 1."""
        return self.shares["wait"]

    @property
    def images_per_second(self) -> float:
        """Training images per second, over all ranks; of this rank alone until training ends."""
        return sum(each.images_per_second for each in self._ranks or [self._measured()])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to measure."""
        is_cuda = trainer.strategy.root_device.type == "cuda"
        self._begin(DeviceTimeline() if is_cuda else Timeline())
        self._rank, _ = rank_of_strategy(trainer.strategy)
        if self._metrics is not None:
            self._file = MetricsFile(self._metrics, trainer.global_rank, trainer.world_size)
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
        self._loaders.look(trainer.train_dataloader)
        if self._watch is None or not self._watch.sees_fetching:
            self._timeline.begin("wait")
        if self._steps == _WARMUP:
            self._timeline.reset()
            self._images = 0
            self._loaders.reset()
            self._epoch = self._measured()
        self._timeline.read()
        if self._file is not None and self._file.is_due(now := time.perf_counter()):
            self._file.update(now, self._measured(), self._slowest)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock; fetching the next batch starts it again."""
        self._timeline.pause()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch's figures."""
        self._timeline.pause()
        self._timeline.read(wait=True)
        before, self._epoch = self._epoch, self._measured()
        ranks = by_rank(_over_processes(self._epoch.since(before), trainer))
        slowest = slowest_of(ranks)
        self._slowest = slowest.rank
        for stage in STAGES:
            pl_module.log(f"data/{stage}_share", slowest.shares[stage], sync_dist=True)
        if rate := sum(each.images_per_second for each in ranks):
            pl_module.log("data/images_per_second", rate, sync_dist=True)
        if self._epoch.nbytes is not None:  # the loaders are tarpeg's
            substituted = sum(each.substituted for each in ranks)
            pl_module.log("data/substituted", float(substituted), sync_dist=True)
        # Not by log(), which would communicate for each name.
        if metrics := metrics_of(ranks):
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=max(trainer.global_step - 1, 0))
        self._update_file()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the verdict and the table on rank 0."""
        self._restore_profiler(trainer)
        self._timeline.pause()
        self._timeline.read(wait=True)
        self._ranks = by_rank(_over_processes(self._measured(), trainer))
        self.table = table_of(self._ranks)
        if trainer.is_global_zero:
            shares = self.shares
            run = _run_facts(trainer, self._sample_seconds if shares["wait"] > 0 else 0.0)
            rate = self.images_per_second / len(self._ranks)
            self.advice = advise(shares, self._steps - _WARMUP, rate, run)
            self.verdict = "".join(map(str, self.advice))
            rank_zero_info(f"data: {self.verdict}")
            rank_zero_info(f"data: by rank\n{self.table}")
        self._update_file()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop to measure."""
        self._restore_profiler(trainer)

    def _measured(self) -> Measured:
        """Return what this process has measured."""
        loaders = self._loaders
        return Measured(
            self._rank,
            dict(self._timeline.seconds),
            self._images,
            loaders.substituted,
            loaders.looks,
            loaders.queued,
            loaders.nbytes,
        )

    def _update_file(self) -> None:
        if self._file is not None:
            self._file.update(time.perf_counter(), self._measured(), self._slowest)

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


class _Loaders:
    """Bytes, queues and waiting times of the loaders of a training, if they are tarpeg's.

    Attributes:
        looks: How often ``look`` was called.
        queued: Sum over these of the batches that were ready; None of other loaders.
        nbytes: Bytes of the encoded images since ``reset``; None as above.
    """

    def __init__(self) -> None:
        self._given: Any = None
        self._loaders: list[Loader] = []
        self._before = 0  # bytes that the loaders had read at the last look
        self._replaced = 0  # images, by the loaders before these
        self.looks = 0
        self.queued: int | None = None
        self.nbytes: int | None = None

    @property
    def substituted(self) -> int:
        """Images that were replaced, also by the loaders before a reload."""
        return self._replaced + sum(loader.substituted for loader in self._loaders)

    def look(self, given: Any) -> None:
        """Add their present values, at the end of a step. ``given``: loaders of the Trainer, in any form."""
        if given is not self._given:
            self._replaced = self.substituted
            self._given, self._before = given, 0
            self._loaders = [each for each in CombinedLoader(given).flattened if isinstance(each, Loader)]
        self.looks += 1
        if self._loaders:
            read = sum(loader.bytes_read for loader in self._loaders)
            self.nbytes = (self.nbytes or 0) + read - self._before
            self.queued = (self.queued or 0) + sum(loader.ready for loader in self._loaders)
            self._before = read

    def reset(self) -> None:
        """Forget the sums."""
        self.looks = 0
        if self._loaders:
            self.queued, self.nbytes = 0, 0


def _over_processes(measured: Measured, trainer: Trainer) -> list[Measured]:
    """Return what all processes measured. A collective."""
    if trainer.world_size == 1 or not (
        torch.distributed.is_available() and torch.distributed.is_initialized()
    ):
        return [measured]
    found: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(found, measured)
    return found


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
    is_mixture = len(loader.fetchers()) > 1  # what an image costs is that of its source
    is_gathering = loader.config.decodes_on_device
    if not (split.streaming or is_mixture or is_gathering):
        costs = measure_costs(loader.fetcher, max(trainer.current_epoch - 1, 0), seconds)
    return run._replace(
        source=None if is_mixture or is_source(split.shards) else cast(Any, split.shards),
        is_streaming=bool(split.streaming),
        workers=workers,
        threads=threads,
        augment=names[0] if names else None,
        is_random=any(getattr(module, "is_random", False) for module in modules),
        has_operators=device != "cuda" or library.has_cuda(),
        costs=costs,
        is_gathering=is_gathering,
    )
