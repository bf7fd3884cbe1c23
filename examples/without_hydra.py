"""tarpeg in a Lightning project without Hydra: python without_hydra.py TRAIN_SHARDS VAL_SHARDS."""

import os
import sys

# OpenMP's threads spin while they wait, on cores that worker processes need; before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import lightning
import tarpeg
import torch
from torch import Tensor, nn


class Net(lightning.LightningModule):
    """Any network."""

    def __init__(self) -> None:
        super().__init__()
        head = (nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
        self.layers = nn.Sequential(nn.Conv2d(3, 32, 7, stride=4), *head)

    def training_step(self, batch: tarpeg.Batch, _: int) -> Tensor:
        """Return the loss."""
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def validation_step(self, batch: tarpeg.Batch, _: int) -> None:
        """Log the accuracy."""
        images, labels = batch
        right = (self.layers(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main(train: str, val: str) -> None:
    """Train for an epoch."""
    data = tarpeg.ShardDataModule(
        train=tarpeg.Split(train, tarpeg.RandomResizedCrop(64), flip=0.5),
        val=tarpeg.Split(val, tarpeg.CenterCrop(64, shorter=72)),
        batch_size=32,
        seed=0,
        augment=tarpeg.Augment(),  # uint8 -> normalised float32, on the device
    )
    trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False)
    trainer.fit(Net(), datamodule=data)
    print(f"accuracy {trainer.callback_metrics['accuracy']:.3f} after {trainer.global_step} steps")


if __name__ == "__main__":
    main(*sys.argv[1:3])
