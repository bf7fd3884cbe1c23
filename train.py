"""Train: compose the configuration, instantiate, fit. ``python train.py --help`` lists the groups."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "datamodules"))

import hydra
import lightning
import tarpeg
import torch
import torchmetrics
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console
from torch import Tensor, nn


class Classifier(lightning.LightningModule):
    """Cross entropy and accuracy around any torchvision classifier."""

    def __init__(self, net: nn.Module, optimizer: object, classes: int) -> None:
        super().__init__()
        self.net = net
        self.optimizer = optimizer
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(classes, average="micro")

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: tarpeg.Batch, _: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tarpeg.Batch, _: int) -> None:
        images, labels = batch
        scores = self(images)
        self.accuracy(scores, labels)
        loss = nn.functional.cross_entropy(scores, labels)
        self.log("val/loss", loss, sync_dist=True, batch_size=len(labels))
        self.log("val/accuracy", self.accuracy, prog_bar=True, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters())


@hydra.main(config_path="conf", config_name="train", version_base="1.3")
def main(config: DictConfig) -> None:
    """Fit, then print one line."""
    lightning.seed_everything(config.seed, verbose=False)
    augment = instantiate(config.augment) if config.augment else None
    data = instantiate(config.data, augment=augment)
    model = Classifier(
        instantiate(config.model.net), instantiate(config.model.optimizer), config.model.net.num_classes
    )
    callbacks = {name: instantiate(callback) for name, callback in (config.callbacks or {}).items()}
    trainer = instantiate(
        config.trainer,
        logger=[instantiate(logger) for logger in (config.logger or {}).values()] or False,
        callbacks=list(callbacks.values()),
    )
    trainer.fit(model, datamodule=data, ckpt_path=config.ckpt_path)
    if trainer.is_global_zero:
        Console().print(_summary(trainer, callbacks), highlight=False, soft_wrap=True)


def _summary(trainer: lightning.Trainer, callbacks: dict[str, object]) -> str:
    parts = [f"{trainer.global_step} steps"]
    for callback in callbacks.values():
        if isinstance(callback, tarpeg.DataStallMonitor):
            parts.append(f"{callback.images_per_second:.0f} images/s")
            parts.append(f"{callback.wait_share:.0%} of the time waiting for data")
    if "val/accuracy" in trainer.callback_metrics:
        parts.append(f"validation accuracy {trainer.callback_metrics['val/accuracy']:.3f}")
    return "trained: " + ", ".join(parts)


if __name__ == "__main__":
    main()
