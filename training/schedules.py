"""Learning rates that change with every step, or every epoch."""

from __future__ import annotations

import math
from typing import Any

import lightning
import tarpeg
import torch
from torch.optim.lr_scheduler import LambdaLR

from .checks import ConfigError

NO_END = (
    "the learning rate falls until the end of the training, which is not known: give trainer.max_epochs=, "
    "and for a stream the samples per epoch, 'data.train.streaming={_target_: tarpeg.Streaming, samples: N}'"
)


def with_cosine(module: lightning.LightningModule, optimizer: torch.optim.Optimizer, warmup: int) -> Any:
    """Return what ``configure_optimizers`` returns: a linear rise, and a cosine to 0 at the end.

    Args:
        module: of the training, whose Trainer knows its steps.
        optimizer: with the largest learning rate.
        warmup: steps of the rise.
    """
    steps = max(1, _steps(module.trainer))

    def share(step: int) -> float:
        return min(1.0, (step + 1) / max(1, warmup)) * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2

    # Not OneCycleLR: a run that goes on for more epochs would keep the steps of the first.
    schedule = _Shares(optimizer, share)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def by_epochs(optimizer: torch.optim.Optimizer, epochs: int, warmup: int, start: float, end: float) -> Any:
    """Return a schedule that is called once per epoch: a linear rise, then a cosine.

    Args:
        optimizer: with the largest learning rate.
        epochs: of the training.
        warmup: epochs of the rise.
        start: learning rate of the first epoch, as a share of the largest.
        end: the same after the last epoch.
    """

    def share(epoch: int) -> float:
        if epoch < warmup:
            return start + (1 - start) * epoch / warmup
        done = min(1.0, (epoch - warmup) / max(1, epochs - warmup))
        return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2

    # Not CosineAnnealingLR, whose state has the epochs of the run before: a longer one would rise again.
    return _Shares(optimizer, share)


class _Shares(LambdaLR):
    """Shares of the largest learning rate; a run that goes on has its own ones from its first step."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at that epoch or step, of this class or any other."""
        self.last_epoch = state_dict["last_epoch"]
        self._step_count = self.last_epoch + 1
        groups = self.optimizer.param_groups
        self.base_lrs = [group.get("initial_lr", group["lr"]) for group in groups]
        self._last_lr = []
        for group, lr, share in zip(groups, self.base_lrs, self.lr_lambdas, strict=True):
            group["lr"] = lr * share(self.last_epoch)
            self._last_lr.append(group["lr"])


def _steps(trainer: lightning.Trainer) -> int:
    """Return the steps of the training; Lightning takes every epoch for as long as the first."""
    found, data = trainer.estimated_stepping_batches, getattr(trainer, "datamodule", None)
    if not 0 <= found < math.inf:  # -1 of a stream without a length
        raise ConfigError(NO_END)
    steps = int(found)
    if not isinstance(data, tarpeg.ShardDataModule):
        return steps
    epochs = trainer.max_epochs
    if epochs is None or epochs < 0 or not isinstance(trainer.train_dataloader, tarpeg.MixtureLoader):
        return steps
    counts = [data.batches_in(epoch) for epoch in range(epochs)]
    total = sum(math.ceil(count / trainer.accumulate_grad_batches) for count in counts)
    return min(total, trainer.max_steps) if trainer.max_steps != -1 else total
