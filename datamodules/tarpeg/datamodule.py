"""Lightning hooks -> loaders."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import lightning
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from .errors import ShardError
from .loader.batch import AnyBatch, Batch, ExtraBatch, KeyedBatch, augmented, pixels_of
from .loader.config import LoaderConfig, OnError, PixelFormat
from .loader.loader import BaseLoader, Loader
from .loader.split import Split
from .loader.stream_loader import StreamingLoader
from .machine import warn_about_spinning_threads
from .ops import library
from .sampling.sampler import Request
from .shards.labels import Samples


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
        workers: worker processes; by default one for each core, at most 8.
        threads: with workers=0, threads of this process that decode; by default one for each core, at most 8.
            0 decodes in the thread that asks for the batch.
        prefetch: batches that each worker, or the threads together, are ahead.
        readahead: batches ahead for which the disk is asked to begin reading; by default 8 where the shards
            take more than half of the memory, otherwise 0.
        augment: a module called with the uint8 images on their device, e.g. ``tarpeg.Augment``, whose random
            numbers are a function of seed, epoch and sample.
        on_error: what becomes of an image that cannot be decoded: ``"substitute"`` takes another sample,
            chosen deterministically, with a warning; ``"raise"`` raises ``DecodeError``.
        max_bad: the share of an epoch's samples, beyond ten, that others may stand in for.
        drop_last: leave out a last batch that is not full. Training only.
        keys: add the samples' keys to every batch.
        prepare: called before anything is opened, e.g. ``tarpeg.SyntheticShards``: once a node under
            Lightning, otherwise once a process.

    On several ranks rank 0 alone warns; the others count what they substituted (``data/substituted``).

    A batch is ``(image, label)``: uint8 ``[B, 3, H, W]`` and int64 ``[B]``; after ``augment`` the image is
    what that made of it. Where the CPU trains, the decoder does what a ``tarpeg.Augment`` does that only
    normalises, and worker processes do all else; hooks before it then see float32. Outside Lightning: ``for
    images, labels in dm.train_dataloader(): ...``, or ``dm.augmented(dm.train_dataloader())``.
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
        threads: int | None = None,
        prefetch: int = 2,
        readahead: int | None = None,
        augment: nn.Module | None = None,
        on_error: OnError = "substitute",
        max_bad: float = 0.01,
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
        self._config = LoaderConfig(
            batch_size, global_batch_size, seed, workers, threads, prefetch, readahead, on_error, max_bad
        )
        self._drop_last = drop_last
        self._keys = keys
        self._prepare = prepare
        self._is_prepared = False
        self._shards: dict[str, Samples] = {}
        self._loaders: list[tuple[str, BaseLoader]] = []
        self._train: BaseLoader | None = None
        self._resume: dict[str, int] | None = None

    def prepare_data(self) -> None:
        """Build the native operators, and make the shards where ``prepare`` is given. Once a node."""
        library.load()
        if self._prepare is not None:
            self._prepare()
        self._is_prepared = True

    def setup(self, stage: str | None = None) -> None:
        """Index the shards of the splits that ``stage`` uses; all of them where it is None."""
        wanted = {"train", "val"} if stage == "fit" else {"val" if stage == "validate" else stage}
        for name, split in self.splits.items():
            if split is not None and not split.streaming and (stage is None or name in wanted):
                self._open(name)

    def train_dataloader(self) -> BaseLoader:
        """Return the loader of the train split; it goes on where the checkpoint that is resumed was made."""
        loader = self._train = self._loader("train")
        if self._resume is not None:
            loader.load_state_dict(self._resume)
            self._resume = None
        if self.trainer is not None:
            loader.sampler.on_epoch = partial(_forget_a_finished_epoch, weakref.proxy(self.trainer))
        return loader

    def val_dataloader(self) -> BaseLoader | list[BaseLoader]:
        """Return the loader of the val split; none where there is no such split."""
        return self._loader("val") if self.splits["val"] is not None else []

    def test_dataloader(self) -> BaseLoader:
        """Return the loader of the test split."""
        return self._loader("test")

    def predict_dataloader(self) -> BaseLoader:
        """Return the loader of the predict split; its batches carry keys."""
        return self._loader("predict")

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Augment the images on the device where they are now."""
        if self.augment is None or not isinstance(batch, (Batch, KeyedBatch, ExtraBatch)):
            return batch
        is_training = self.augment.training if self.trainer is None else self.trainer.training
        loader = self._train if is_training else None
        return self._augmented(batch, is_training, None if loader is None else loader.claim())

    def augmented(self, loader: BaseLoader, device: torch.device | str | None = None) -> Iterator[AnyBatch]:
        """Yield the loader's next epoch, augmented on ``device``: for loops that are not Lightning's.

        ``for images, labels in data.augmented(data.train_dataloader(), "cuda"): ...``. Batches of the train
        split are augmented as in training, with the same numbers as under Lightning; others are normalised.
        """
        is_training = any(name == "train" and known is loader for name, known in self._loaders)
        for batch in loader:
            image, label = (part.to(device, non_blocking=True) for part in (batch.image, batch.label))
            yield self._augmented(batch._replace(image=image, label=label), is_training, loader.claim())

    def state_dict(self) -> dict[str, Any]:
        """Say which batch of the train split comes next; Lightning saves it in its checkpoints."""
        return {} if self._train is None else {"train": self._train.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on training where the state was made; validating or testing a checkpoint is no such thing.

        Lightning saves and restores the loader's own state too, but loses it when
        ``trainer.estimated_stepping_batches`` is read before (its issue 20550); this comes before all that.
        """
        state = state_dict.get("train")
        if state is None or self.trainer is None or self.trainer.state.fn != TrainerFn.FITTING:
            return
        # The loader that there is may be that of a run before; a strategy may load when there is one already.
        self._resume = state
        if self._train is not None:
            self._train.load_state_dict(state)

    def teardown(self, stage: str | None = None) -> None:
        """End the worker processes."""
        self._close()

    def on_exception(self, exception: BaseException) -> None:
        """End the worker processes when the run fails."""
        self._close()

    def _augmented(self, batch: AnyBatch, is_training: bool, request: Request | None) -> AnyBatch:
        if self.augment is None:
            return batch
        self.augment.train(is_training)
        is_augmented = self._pixels(is_training).dtype != torch.uint8
        return augmented(self.augment, batch, self._config.seed, request, is_augmented=is_augmented)

    def _close(self) -> None:
        for _, loader in self._loaders:
            loader.close()
        self._loaders.clear()
        self._resume = None

    def _open(self, name: str) -> Samples:
        split = self.splits[name]
        assert split is not None
        if name not in self._shards:
            with warnings.catch_warnings():
                if self._rank_and_world()[0]:
                    warnings.simplefilter("ignore")  # rank 0 has the same shards
                self._shards[name] = split.open()
        return self._shards[name]

    def _pixels(self, is_train: bool) -> PixelFormat:
        """Say what the loader makes of the images; more than uint8 where the CPU trains."""
        own = type(self).on_after_batch_transfer is ShardDataModule.on_after_batch_transfer
        if not own or not self._trains_on_cpu:
            return PixelFormat()
        return pixels_of(self.augment, is_train, self._config.workers_and_threads[0])

    @property
    def _trains_on_cpu(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cpu"

    def _rank_and_world(self) -> tuple[int, int]:
        if self.trainer is not None:
            return self.trainer.global_rank, self.trainer.world_size
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    def _loader(self, name: str) -> BaseLoader:
        split = self.splits[name]
        if split is None:
            raise ValueError(f"there is no {name} split: pass ShardDataModule({name}=Split(...))")
        if self.trainer is None and not self._is_prepared:
            self.prepare_data()  # in a plain loop nobody else does
        rank, world = self._rank_and_world()
        is_train = name == "train"
        # Lightning warns that overfit_batches turns shuffling off, and leaves that to us.
        is_overfitting = getattr(self.trainer, "overfit_batches", 0) > 0
        config = replace(self._config, drop_last=self._drop_last and is_train, pixels=self._pixels(is_train))
        keys, shuffle = self._keys or name == "predict", is_train and not is_overfitting
        if split.streaming:
            loader: BaseLoader = StreamingLoader(
                split, config, shuffle=shuffle, keys=keys, rank=rank, world=world
            )
        else:
            loader = Loader(
                self._open(name), split, config, shuffle=shuffle, keys=keys, rank=rank, world=world
            )
        for of, other in self._loaders:
            if of == name and self.trainer is not None:
                other.close()  # Lightning asks for another with reload_dataloaders_every_n_epochs
        self._loaders.append((name, loader))
        has_helpers = any(config.workers_and_threads) and torch.get_num_threads() > 1
        if is_train and not rank and self._trains_on_cpu and has_helpers:
            warn_about_spinning_threads()
        _compare_over_ranks(loader, name, rank, world)
        return loader


def _compare_over_ranks(loader: BaseLoader, name: str, rank: int, world: int) -> None:
    """Raise where ranks would make other batches: unequal numbers of them pair wrong collectives, or hang."""
    if world == 1 or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    mine = {"batches": len(loader), **loader.facts()}
    all_of_them: list[Any] = [None] * world
    torch.distributed.all_gather_object(all_of_them, mine)
    for other, theirs in enumerate(all_of_them):
        if theirs != all_of_them[0]:
            raise ShardError(
                f"the {name} split is {all_of_them[0]} on rank 0 but {theirs} on rank {other}. "
                "Give every rank the same shards, seed and batch size."
            )


def _forget_a_finished_epoch(trainer: lightning.Trainer) -> None:
    """Let a checkpoint of an epoch's end go on with the next epoch where ``max_steps`` is set.

    Lightning 2.6.6 takes such a run for one that stopped within its epoch (``_FitLoop.restarting``) and
    counts an epoch that has no batches. What is looked at is private: left alone where it looks different.
    """
    loop = trainer.fit_loop
    progress = getattr(getattr(loop, "epoch_progress", None), "current", None)
    if progress is None or not hasattr(loop, "_restarting") or not hasattr(loop.epoch_loop, "restarting"):
        return
    if loop.restarting and progress.ready == progress.started == progress.processed > 0:
        loop._restarting = False
        loop.epoch_loop.restarting = False
        loop.reset_restart_stage()
