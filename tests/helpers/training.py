"""A data module over the ``photos`` fixture, a network that records its batches, and a silent trainer."""

from __future__ import annotations

import lightning
import torch
from tarpeg import (
    Affine,
    Augment,
    AugMix,
    CenterCrop,
    ColorJitter,
    Erase,
    GaussianBlur,
    GridMask,
    RandAugment,
    RandomResizedCrop,
    ShardDataModule,
    Split,
)
from torch import nn
from torch.utils.data import IterableDataset


def module(photos, **settings):
    """A data module with all four splits, batches of 4 with keys, decoded in this process."""
    train = Split(photos, RandomResizedCrop(16), flip=0.5)
    val = Split(photos, CenterCrop(16))
    settings = {"batch_size": 4, "workers": 0, "keys": True, "allow_overlap": True, **settings}
    return ShardDataModule(train, val, val, val, **settings)


def heavy(**settings):
    """An Augment with all kinds of distortions."""
    parts = {
        "affine": Affine(30, translate=0.1),
        "color": ColorJitter(0.4, hue=0.1),
        "erase": Erase(pixels=True),
    }
    policies = {"flip": 0.5, "policy": [GaussianBlur(3), AugMix(), RandAugment()]}
    return Augment(**{**parts, **policies, "mask": GridMask(0.1, 4), **settings})


class Net(lightning.LightningModule):
    """A linear layer on mean colours. ``seen``: the batches of each stage; ``epochs``: of the training."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.net = nn.Linear(3, 5)
        self.fails_at, self.epochs = fails_at, []
        self.seen = {"train": [], "validate": [], "test": [], "predict": []}

    def _see(self, batch):
        stage = str(self.trainer.state.stage.value).replace("sanity_check", "validate")
        self.seen[stage].append(batch)
        if self.fails_at == stage:
            raise ArithmeticError("as asked")
        images = batch.image[0] if isinstance(batch.image, list) else batch.image
        images = images if images.ndim == 4 else images[0]  # of several views the first
        colours = images.to(self.net.weight.dtype).mean((2, 3))
        return nn.functional.cross_entropy(self.net(colours), batch.label)

    def training_step(self, batch, _):
        self.epochs.append(self.current_epoch)
        return self._see(batch)

    def validation_step(self, batch, _):
        self._see(batch)

    test_step = validation_step

    def predict_step(self, batch, _):
        self.seen["predict"].append(batch)  # which may have no labels
        return batch.key

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def keys(self, stage, epochs=1):
        """The keys of a stage, one list per epoch."""
        keys = [key for batch in self.seen[stage] for key in batch.key]
        share = len(keys) // epochs
        return [keys[share * epoch : share * (epoch + 1)] for epoch in range(epochs)]


class OfOwn(Net):
    """A network that trains on the part "own" of a dict of batches, and on other batches as they are."""

    def training_step(self, batch, index):
        return super().training_step(batch["own"] if isinstance(batch, dict) else batch, index)


class Unsized(IterableDataset):
    """Numbers from 0, without a length and without a state."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


def trainer(tmp_path, **settings):
    """A trainer of one epoch on the CPU that neither logs nor saves."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "devices": 1, "default_root_dir": tmp_path}
    return lightning.Trainer(**{**quiet, "max_epochs": 1, **settings})


def fitted(folder, data, net=None, ckpt_path=None, **settings):
    """Train a network (a new ``Net`` by default) on the data module, and return it."""
    net = net or Net()
    trainer(folder, **settings).fit(net, datamodule=data, ckpt_path=ckpt_path)
    return net
