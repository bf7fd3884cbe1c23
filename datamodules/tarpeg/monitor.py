"""Where a training run's time goes."""

from __future__ import annotations

import time
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback


class DataStallMonitor(Callback):
    """Measure how much of the training time is spent waiting for the next batch, and the images a second.

    Logs ``data/wait_share`` (0 to 1) and ``data/images_per_second`` at the end of each epoch; ``wait_share``
    and ``images_per_second`` hold the same of the whole run. Time between two training batches counts as
    waiting, that inside a training step as work; validation counts as neither.
    """

    def __init__(self) -> None:
        self._waiting = self._working = 0.0
        self._images = 0
        self._mark: float | None = None

    @property
    def wait_share(self) -> float:
        """Share of the training time spent waiting for data, 0 to 1."""
        total = self._waiting + self._working
        return self._waiting / total if total else 0.0

    @property
    def images_per_second(self) -> float:
        """Training images a second, over all ranks alike: this rank's."""
        total = self._waiting + self._working
        return self._images / total if total else 0.0

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Begin to wait for the epoch's first batch."""
        self._mark = time.perf_counter()

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """End waiting, begin working."""
        now = time.perf_counter()
        self._waiting += now - self._mark if self._mark is not None else 0.0
        self._mark = now
        self._images += len(batch[0]) if isinstance(batch, (tuple, list)) else 0

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
        now = time.perf_counter()
        self._working += now - self._mark if self._mark is not None else 0.0
        self._mark = now

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stop the clock."""
        self._mark = None

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start it again."""
        self._mark = time.perf_counter()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Log both figures."""
        pl_module.log("data/wait_share", self.wait_share)
        pl_module.log("data/images_per_second", self.images_per_second)
