"""Callbacks of ``train.py``: the configured ones, a run's first line, signals that end it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import tarpeg
from hydra.utils import instantiate
from tarpeg.shards.urls import public_url

from .reports import is_first_rank, show

# What a run reads: the splits whose names begin so.
_SHOWN = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}


def make_callbacks(given: Mapping[str, Any], has_val: bool) -> dict[str, lightning.Callback]:
    """Return callbacks by name, without those that monitor a validation if there is none."""
    found = {name: instantiate(each) for name, each in given.items() if each}
    return found if has_val else {name: each for name, each in found.items() if not _is_monitoring_val(each)}


def _is_monitoring_val(callback: object) -> bool:
    return str(getattr(callback, "monitor", "")).startswith("val/")


def note_on(data: Mapping[str, Any]) -> str:
    """Return a remark on data that is drawn; "" for other data."""
    is_drawn = "tarpeg.SyntheticShards" in str(data.get("prepare"))
    if "tarpeg.Scenes" in str(data.get("prepare")):
        return ". Synthetic scenes; docs/targets.md for your own"
    return ". Synthetic photographs; data=shards or data=folder for your own" if is_drawn else ""


def _public(shards: object) -> str:
    """Return the shards of a split as text, of URLs and commands without passwords and signatures."""
    listed = shards if isinstance(shards, (list, tuple)) else [shards]
    shown = [public_url(each) if isinstance(each, str) else each for each in listed]
    return str(shown if listed is shards else shown[0])


class DataSummary(lightning.Callback):
    """Print at the start what is trained on, or measured, or predicted.

    Args:
        note: added to the line.
    """

    def __init__(self, note: str = "") -> None:
        self.note = note

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Print it after the data module's own setup, which raises if shards are missing."""
        if not trainer.is_global_zero:
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        parts = []
        for name, split in data.splits.items():
            if split is not None and name.startswith(_SHOWN[stage]):
                count = "" if split.streaming else f" ({len(data.samples(name))} images)"
                parts.append(f"{name}: {_public(split.shards)}{count}")
        if data.num_classes:
            parts.append(f"{data.num_classes} classes")
        note = self.note if stage != "predict" else ""  # of the data of the training
        show(f"{'; '.join(parts)}{note}")

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Print how many shapes the batches will have, if they have several."""
        loader: Any = trainer.train_dataloader
        if trainer.is_global_zero and isinstance(loader, tarpeg.Loader) and (text := loader.shapes_text()):
            show(text)


class KeepOthers(lightning.Callback):
    """Keep a checkpoint behind a URL that another run has written, from which this one goes on.

    Lightning's ``ModelCheckpoint`` removes it when it saves its own; a local file it keeps.
    """

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Forget those that are not in the folder of this run."""
        for writer in trainer.checkpoint_callbacks:
            best, folder = getattr(writer, "best_model_path", ""), str(getattr(writer, "dirpath", ""))
            if "://" in best and best.rpartition("/")[0] != folder.rstrip("/"):
                writer.best_model_path = ""  # type: ignore[attr-defined]


class Interrupt(lightning.Callback):
    """Ctrl-C or SIGTERM ends the run after the current batch, with a checkpoint of exactly that place.

    With ``accumulate_grad_batches`` it ends after the batches of a step.

    Several ranks end together, after at most ``log_every_n_steps`` batches. During a validation it ends after
    it. A second one ends the run at once, without a checkpoint.

    Args:
        folder: of the checkpoint, ``interrupted.ckpt``.

    Attributes:
        saved: path of the checkpoint, "" if there is none.
        number: the signal that ended the run; SIGINT if it was another rank's.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "interrupted.ckpt"
        self.saved = ""
        self.is_asked = False
        self.number = signal.SIGINT
        self._others: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Handle both from now on; Lightning ends at SIGTERM without a checkpoint."""
        if threading.current_thread() is threading.main_thread():
            self._others = {
                number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)
            }

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Leave them to those who had them before."""
        for number, other in self._others.items():
            if signal.getsignal(number) == self._ask:
                signal.signal(number, other)

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """End the run if any rank was interrupted; several ranks look now and then."""
        # Ranks ask each other only now and then: each time they wait for their GPUs. After the last batch of
        # an epoch, on_train_epoch_end does.
        every = 1 if trainer.world_size == 1 else getattr(trainer, "log_every_n_steps", 0) or 50
        step = trainer.accumulate_grad_batches  # whose gradients a checkpoint does not have
        every = step * max(1, every // step)
        if (batch_idx + 1) % every == 0 and batch_idx + 1 < trainer.num_training_batches:
            self._end_if_asked(trainer, partial(pl_module.on_train_batch_end, outputs, batch, batch_idx))

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """End the run if any rank was interrupted."""
        self._end_if_asked(trainer, pl_module.on_train_epoch_end)

    def _ask(self, number: int, _: Any) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked, self.number = True, signal.Signals(number)
        if is_first_rank():  # print() might be interrupted within itself
            name = "Ctrl-C" if number == signal.SIGINT else self.number.name
            os.write(2, f"\n{name}: ends after this batch or validation; once more: at once\n".encode())

    def _end_if_asked(self, trainer: lightning.Trainer, hook: Callable[[], None]) -> None:
        """Save and end if any rank was interrupted, on all ranks at the same step.

        ``hook``: of the module, which Lightning would call after those of callbacks.
        """
        if trainer.strategy.reduce_boolean_decision(self.is_asked, all=False):
            self.is_asked = True
            hook()
            trainer.save_checkpoint(self.path, weights_only=False)
            self.saved = str(self.path)
            raise KeyboardInterrupt
