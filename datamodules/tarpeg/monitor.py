"""Where a training run's time goes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback


@dataclass
class _Tally:
    waiting: float = 0.0  # seconds
    working: float = 0.0  # seconds
    images: int = 0

    @property
    def wait_share(self) -> float:
        total = self.waiting + self.working
        return self.waiting / total if total else 0.0

    @property
    def images_per_second(self) -> float:
        total = self.waiting + self.working
        return self.images / total if total else 0.0


class DataStallMonitor(Callback):
    """Measure how much of the training time is spent waiting for the next batch, and the images a second.

    Logs ``data/wait_share`` (0 to 1) and ``data/images_per_second`` of each epoch, and ``data/substituted``,
    the images so far that others stood in for on this rank; the properties ``wait_share`` and
    ``images_per_second`` hold the same of the whole run. Time between two training batches
    counts as waiting, that inside a training step as work; validation counts as neither. Times are this
    rank's, images are those of all ranks.
    """

    def __init__(self) -> None:
        self._run, self._epoch = _Tally(), _Tally()
        self._mark: float | None = None

    @property
    def wait_share(self) -> float:
        """Share of the training time spent waiting for data, 0 to 1."""
        return self._run.wait_share

    @property
    def images_per_second(self) -> float:
        """Training images a second, over all ranks."""
        return self._run.images_per_second

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Begin to wait for the epoch's first batch."""
        self._epoch = _Tally()
        self._mark = time.perf_counter()

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """End waiting, begin working."""
        elapsed = self._lap()
        images = trainer.world_size * len(batch[0]) if isinstance(batch, (tuple, list)) else 0
        for tally in (self._run, self._epoch):
            tally.waiting += elapsed
            tally.images += images

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """End working, begin to wait."""
        if trainer.strategy.root_device.type == "cuda" and trainer.is_last_batch:
            torch.cuda.synchronize()
        elapsed = self._lap()
        for tally in (self._run, self._epoch):
            tally.working += elapsed

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stop the clock."""
        self._mark = None

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start it again."""
        self._mark = time.perf_counter()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Log the figures."""
        pl_module.log("data/wait_share", self._epoch.wait_share)
        pl_module.log("data/images_per_second", self._epoch.images_per_second)
        substituted = getattr(getattr(trainer, "train_dataloader", None), "substituted", None)
        if substituted is not None:
            pl_module.log("data/substituted", float(substituted))

    def _lap(self) -> float:
        """Seconds since the last mark, which is now; 0 where the clock stood still."""
        now = time.perf_counter()
        elapsed = now - self._mark if self._mark is not None else 0.0
        self._mark = now
        return elapsed
