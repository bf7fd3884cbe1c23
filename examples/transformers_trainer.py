"""tarpeg with the Trainer of transformers: python transformers_trainer.py SHARDS OUT [CHECKPOINT].

On several GPUs: torchrun --nproc-per-node 2 transformers_trainer.py SHARDS OUT [CHECKPOINT].
"""

import os
import sys
from typing import Any

# OpenMP's threads spin while they wait, on cores that worker processes need; before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tarpeg
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments


class Net(nn.Module):
    """Any model of transformers, or one with such a forward()."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        head = (nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, classes))
        self.layers = nn.Sequential(nn.Conv2d(3, 32, 7, stride=4), *head)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss and the logits."""
        logits = self.layers(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def inputs(batch: Any) -> dict[str, Tensor]:
    """Return a batch as the arguments of forward()."""
    return {"pixel_values": batch.image, "labels": batch.label}


class ShardTrainer(Trainer):
    """A Trainer whose batches come from tarpeg, on any number of processes."""

    def __init__(self, data: tarpeg.ShardDataModule, **arguments: Any) -> None:
        self.data = data
        super().__init__(**arguments)
        self.add_callback(SetEpoch(self))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the batches of this process; prepare() of Accelerate would divide them a second time."""
        self.train_loader = self.data.train_dataloader()
        dataset = tarpeg.Dataset(self.train_loader, self.data.augmented)
        return DataLoader(dataset, batch_size=None, collate_fn=inputs)


class SetEpoch(TrainerCallback):
    """Set the loader's epoch, which is not 0 if a checkpoint is resumed."""

    def __init__(self, trainer: ShardTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set it, before each epoch."""
        self.trainer.train_loader.sampler.set_epoch(int(state.epoch or 0))


def main(shards: str, out: str, checkpoint: str | None = None) -> None:
    """Train for two epochs, or continue a checkpoint to that end."""
    arguments = TrainingArguments(
        out,
        num_train_epochs=2,
        save_steps=2,
        logging_steps=1,
        # Without a GPU, processes of torchrun would not train together unless it is set.
        use_cpu=not torch.accelerator.is_available(),
        report_to="none",
    )
    torch.manual_seed(0)
    data = tarpeg.ShardDataModule(
        train=tarpeg.Split(shards, tarpeg.RandomResizedCrop(64), flip=0.5),
        batch_size=arguments.per_device_train_batch_size,
        augment=tarpeg.Augment(),
    )
    trainer = ShardTrainer(data, model=Net(), args=arguments)
    trainer.train(resume_from_checkpoint=checkpoint)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"{trainer.state.global_step} steps, losses {losses}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
