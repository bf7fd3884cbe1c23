"""A project of its own: its network and its configuration, tarpeg's data."""

import os

# OpenMP's threads spin while they wait, on cores that worker processes need; before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hydra
import lightning
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy


class Net(lightning.LightningModule):
    """Three convolutions and a linear layer."""

    def __init__(self, classes: int, width: int, lr: float) -> None:
        super().__init__()
        self.lr = lr
        layers: list[nn.Module] = []
        for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))
        self.layers = nn.Sequential(*layers, *head)
        self.accuracy = MulticlassAccuracy(classes, average="micro")

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """Return the loss of images, float32 [B, 3, H, W] by now, and labels, int64 [B]."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        """Log the accuracy: exact for any number of processes, whose batches may differ in size."""
        images, labels = batch
        self.accuracy(self.layers(images), labels)
        self.log("val/accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    """Fit; returns the accuracy, for Hydra's sweepers to optimise."""
    data = instantiate(cfg.data)
    trainer = lightning.Trainer(**cfg.trainer)
    trainer.fit(Net(**cfg.net), datamodule=data)
    accuracy = float(trainer.callback_metrics["val/accuracy"])
    print(f"accuracy {accuracy:.3f} after {trainer.global_step} steps")
    return accuracy


if __name__ == "__main__":
    main()
