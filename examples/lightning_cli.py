"""tarpeg with LightningCLI: python lightning_cli.py fit --config lightning_cli.yaml --data.batch_size=16."""

import os

# OpenMP's threads spin while they wait, on cores that worker processes need; before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import lightning
import tarpeg
import torch
from lightning.pytorch.cli import LightningCLI
from torch import Tensor, nn


class Net(lightning.LightningModule):
    """Any network. ``num_classes`` is compared with the data before training starts."""

    def __init__(self, num_classes: int = 10, lr: float = 0.05) -> None:
        super().__init__()
        self.num_classes, self.lr = num_classes, lr
        head = (nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, num_classes))
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
        return torch.optim.SGD(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    usage = {"usage": "%(prog)s [--config YAML] [--KEY VALUE ...]"}  # otherwise 70 lines before an error
    try:
        cli = LightningCLI(
            Net, tarpeg.ShardDataModule, save_config_kwargs={"overwrite": True}, parser_kwargs={"fit": usage}
        )
    except tarpeg.ShardError as error:  # one line in place of a traceback
        raise SystemExit(f"ShardError: {error}") from None
    print(f"{cli.trainer.global_step} steps, {dict(cli.trainer.callback_metrics)}")
