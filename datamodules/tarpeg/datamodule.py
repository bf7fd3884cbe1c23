"""Lightning hooks -> loaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lightning
import torch
from torch import nn

from . import _load
from .batch import Batch, KeyedBatch, OnError
from .loader import Delivery, Loader, Split, default_workers
from .shards import Shards


class ShardDataModule(lightning.LightningDataModule):
    """Feed a Lightning run, or a plain loop, from WebDataset shards.

    Args:
        train: what to train on: shuffled, every sample once an epoch over all ranks.
        val: what to validate on, in order.
        test: what to test on, in order.
        predict: what to predict on, in order; batches are ``KeyedBatch``, labels are -1 with ``target=None``.
        batch_size: samples a rank and batch.
        global_batch_size: samples a batch over all ranks; takes precedence over ``batch_size``.
        seed: of order, crops and flips.
        workers: worker processes; by default one for each core, at most 8. 0 decodes in this process.
        augment: a module called with the uint8 images on their device, e.g. ``tarpeg.Augment``.
        on_error: what becomes of an image that cannot be decoded: ``"substitute"`` takes another sample,
            chosen deterministically, with a warning; ``"raise"`` raises ``DecodeError``.
        drop_last: leave out a last batch that is not full. Training only.
        keys: add the samples' keys to every batch.
        prepare: called before anything is opened, e.g. ``tarpeg.SyntheticShards``: once a node under
            Lightning, otherwise once a process.

    A batch is ``(image, label)``: uint8 ``[B, 3, H, W]`` and int64 ``[B]``; after ``augment`` the image is
    what that made of it. Outside Lightning: ``for images, labels in dm.train_dataloader(): ...``.
    """

    def __init__(
        self,
        train: Split | None = None,
        val: Split | None = None,
        test: Split | None = None,
        predict: Split | None = None,
        *,
        batch_size: int = 64,
        global_batch_size: int | None = None,
        seed: int = 0,
        workers: int | None = None,
        augment: nn.Module | None = None,
        on_error: OnError = "substitute",
        drop_last: bool = False,
        keys: bool = False,
        prepare: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__()
        self.splits = {"train": train, "val": val, "test": test, "predict": predict}
        if all(split is None for split in self.splits.values()):
            raise ValueError(
                "ShardDataModule was given no split: pass train=, val=, test= or predict=Split(...)"
            )
        self.augment = augment
        workers = default_workers() if workers is None else workers
        self._delivery = Delivery(batch_size, global_batch_size, seed, workers, on_error)
        self._drop_last = drop_last
        self._keys = keys
        self._prepare = prepare
        self._is_prepared = False
        self._shards: dict[str, Shards] = {}
        self._loaders: list[Loader] = []

    def prepare_data(self) -> None:
        """Build the native operators, and make the shards where ``prepare`` is given. Once a node."""
        _load.load()
        if self._prepare is not None:
            self._prepare()
        self._is_prepared = True

    def setup(self, stage: str | None = None) -> None:
        """Index the shards of the splits that ``stage`` uses; all of them where it is None."""
        wanted = {"train", "val"} if stage == "fit" else {"val" if stage == "validate" else stage}
        for name, split in self.splits.items():
            if split is not None and (stage is None or name in wanted):
                self._open(name)

    def train_dataloader(self) -> Loader:
        """Return the loader of the train split."""
        return self._loader("train")

    def val_dataloader(self) -> Loader | list[Loader]:
        """Return the loader of the val split; none where there is no such split."""
        return self._loader("val") if self.splits["val"] is not None else []

    def test_dataloader(self) -> Loader:
        """Return the loader of the test split."""
        return self._loader("test")

    def predict_dataloader(self) -> Loader:
        """Return the loader of the predict split; its batches carry keys."""
        return self._loader("predict")

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Augment the images on the device where they are now."""
        if self.augment is None or not isinstance(batch, (Batch, KeyedBatch)):
            return batch
        if self.trainer is not None:
            self.augment.train(self.trainer.training)
        return batch._replace(image=self.augment(batch.image))

    def teardown(self, stage: str | None = None) -> None:
        """End the worker processes."""
        self._close()

    def on_exception(self, exception: BaseException) -> None:
        """End the worker processes when the run fails."""
        self._close()

    def _close(self) -> None:
        for loader in self._loaders:
            loader.close()
        self._loaders.clear()

    def _open(self, name: str) -> Shards:
        split = self.splits[name]
        assert split is not None
        if name not in self._shards:
            self._shards[name] = split.open()
        return self._shards[name]

    def _rank_and_world(self) -> tuple[int, int]:
        if self.trainer is not None:
            return self.trainer.global_rank, self.trainer.world_size
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    def _loader(self, name: str) -> Loader:
        split = self.splits[name]
        if split is None:
            raise ValueError(f"there is no {name} split: pass ShardDataModule({name}=Split(...))")
        if self.trainer is None and not self._is_prepared:
            self.prepare_data()  # in a plain loop nobody else does
        rank, world = self._rank_and_world()
        is_train = name == "train"
        delivery = replace(self._delivery, drop_last=self._drop_last and is_train)
        loader = Loader(
            self._open(name),
            split,
            delivery,
            shuffle=is_train,
            keys=self._keys or name == "predict",
            rank=rank,
            world=world,
        )
        self._loaders.append(loader)
        return loader
