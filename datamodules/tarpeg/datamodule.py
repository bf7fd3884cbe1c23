"""The LightningDataModule: Lightning's hooks create, resume and close the loaders."""

from __future__ import annotations

import logging
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from types import FunctionType
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from .augment.module import Augment
from .errors import ShardError, explains_arguments, warn
from .loader.batch import (
    AnyBatch,
    Batch,
    ExtraBatch,
    KeyedBatch,
    augmented,
    by_size,
    modules_of,
    of_sizes,
    pixels_of,
    uncompiled,
)
from .loader.config import LoaderConfig, OnError, PixelFormat
from .loader.loader import BaseLoader, Loader
from .loader.split import Split, check_types, kind_of, named_splits
from .loader.stream_loader import StreamingLoader
from .machine import warn_about_spinning_threads
from .ops import library
from .sampling.sampler import Request
from .shards.labels import Samples, check_classes, read_labels, where_of

# What torch's losses report about a label beyond the classes, on the CPU and on a GPU.
_LABEL_REFUSED = re.compile(r"Target -?\d+ is out of bounds|device-side assert")
_MOST_LABELS = 100_000  # that are read to explain it

log = logging.getLogger(__name__)

_NOT_AUGMENTED = (
    "augment= is not applied to these batches of train: give a Trainer the ShardDataModule itself, "
    "trainer.fit(model, data); in a loop of your own, iterate data.augmented(data.train_dataloader())"
)
_TORCHVISION = "torchvision.transforms"
# Its transforms without randomness, in v1 or v2. All others are refused, those of later versions too.
_FIXED = {
    *("ToDtype", "ConvertImageDtype", "ToImage", "ToPureTensor", "Normalize", "LinearTransformation"),
    *("Resize", "CenterCrop", "Pad", "Grayscale", "RGB", "Identity"),
}


@explains_arguments(
    {"num_workers": "did you mean 'workers'?"}
    | {part.name: f"give it to a Split({part.name}=...)" for part in fields(Split)}
    | {
        f"{kind}_{part.name}": f"give {kind}=Split({part.name}=...)"
        for kind in ("train", "val", "test", "predict")
        for part in fields(Split)
    }
)
class ShardDataModule(lightning.LightningDataModule):
    """Read WebDataset shards for a Lightning run or a plain loop.

    Args:
        train: split for training: shuffled, every sample once per epoch over all ranks.
        val: split for validation, in order; or several, as a list or a dict by name. ``splits`` then has them
            as ``"val/0"`` or ``"val/NAME"``, and ``val_dataloader()`` returns a list in their order.
        test: split or splits for testing, as ``val``.
        predict: split for prediction, in order, as ``KeyedBatch``; labels are -1 with ``target=None``.
        batch_size: samples per rank and batch; an attribute too, for ``Tuner.scale_batch_size``.
        global_batch_size: samples per batch over all ranks; overrides ``batch_size``.
        seed: seed of order, crops, flips and augmentation.
        workers: worker processes; one per core by default, at most 8.
        threads: decoding threads of this process if ``workers=0``; one per core by default, at most 8. 0:
            the thread that requests a batch decodes it.
        prefetch: batches prefetched per worker (in total, for threads).
        readahead: batches for which the disk is asked ahead; by default 8 if the shards take more than half
            of the memory, otherwise 0.
        augment: module called with the uint8 images on their device, in validation too: then it is in
            evaluation mode. Random transforms of torchvision ignore the mode and are refused. The random
            params of ``tarpeg.Augment`` are a function of seed, epoch and sample. Or a list of modules, one
            per view; a split of one view, for validation, then takes the first of them.
        on_error: ``"substitute"`` replaces an undecodable image by another sample, chosen deterministically,
            with a warning, and leaves it out of its batch in prediction; ``"raise"`` raises ``DecodeError``.
        max_bad: largest fraction of undecodable images per epoch; ten are allowed, unless it is 0.
        max_pixels: images with more pixels are undecodable; default 178,956,970 for JPEG and PPM, 67,108,864
            for other formats, of which Pillow decodes the whole image (up to 22 bytes per pixel and worker).
        drop_last: leave out an incomplete last batch, in training only.
        keys: add the samples' keys to every batch.
        prepare: called before shards are opened, e.g. ``tarpeg.SyntheticShards``: once per node under
            Lightning, otherwise once per process.
        allow_overlap: allow train to share shards with val or test, for example with other samples of them
            (``Split(subset=...)``); otherwise this is a ``ShardError``.

    Only rank 0 warns, but all count substituted images: ``data/substituted``; in val and test a warning each.

    A batch is ``(image, label)``: uint8 ``[B, 3, H, W]`` and int64 ``[B]``, see ``Batch`` for views and gray;
    ``augment`` replaces the image.
    If the CPU trains, the decoder normalises for a ``tarpeg.Augment`` that does nothing else, and worker
    processes do any other ``tarpeg.Augment``; hooks before it then get float32. Outside Lightning: ``for
    images, labels in dm.augmented(dm.train_dataloader())``, as fast, or ``dm.train_dataloader()``, of uint8.
    """

    def __init__(
        self,
        train: Split | None = None,
        val: Split | Sequence[Split] | Mapping[str, Split] | None = None,
        test: Split | Sequence[Split] | Mapping[str, Split] | None = None,
        predict: Split | None = None,
        *,
        batch_size: int = 64,
        global_batch_size: int | None = None,
        seed: int = 0,
        workers: int | None = None,
        threads: int | None = None,
        prefetch: int = 2,
        readahead: int | None = None,
        augment: nn.Module | Sequence[nn.Module] | None = None,
        on_error: OnError = "substitute",
        max_bad: float = 0.01,
        max_pixels: int | None = None,
        drop_last: bool = False,
        keys: bool = False,
        prepare: Callable[[], Any] | None = None,
        allow_overlap: bool = False,
    ) -> None:
        super().__init__()
        self.splits: dict[str, Split | None] = {}
        for kind, given in {"train": train, "val": val, "test": test, "predict": predict}.items():
            self.splits |= {kind: None} if given is None else named_splits(kind, given)
        if all(split is None for split in self.splits.values()):
            raise ValueError(
                "ShardDataModule() needs at least one split: pass train=, val=, test= or predict=Split(...)"
            )
        self.augment = _checked_augment(augment, self.splits)
        _check_splits(self.splits, self.augment)
        if augment is None and self._has_own_hook:
            check_types(self.splits)
        first = (batch_size, global_batch_size, seed, workers, threads, prefetch, readahead)
        self._config = LoaderConfig(*first, on_error, max_bad, max_pixels=max_pixels)
        self._drop_last, self._keys, self._prepare = drop_last, keys, prepare
        self._is_prepared = self._has_same_labels = self._is_in_hook = False
        self._is_apart = allow_overlap
        self._names: list[str] = []  # of the classes, of the first split that has them
        self._stored: list[str] = []  # of the classes of the last checkpoint
        self._shards: dict[str, Samples] = {}
        self._loaders: list[tuple[str, BaseLoader]] = []
        self._train: BaseLoader | None = None
        self._resume: dict[str, int] | None = None

    @property
    def batch_size(self) -> int:
        """Samples per rank and batch; a new value is that of loaders that are made afterwards."""
        return self._config.batch_size

    @batch_size.setter
    def batch_size(self, value: int) -> None:
        if (total := self._config.global_batch_size) is not None:
            raise ValueError(
                f"batch_size={value!r} has no effect with global_batch_size={total}, of all ranks. "
                "Create the ShardDataModule without global_batch_size."
            )
        self._config = replace(self._config, batch_size=value)

    def __str__(self) -> str:
        """Return the names of the splits: Lightning's text fails for loaders that are not DataLoaders."""
        return f"{type(self).__name__}({', '.join(name for name, split in self.splits.items() if split)})"

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes by label, of the labelled splits, or of the checkpoint; None if unknown.

        Calls ``prepare_data()`` first outside a Trainer, unless it was called.
        """
        if self.trainer is None and not self._is_prepared:
            self.prepare_data()
        found = (split.classes() for split in self._labelled().values())
        names = next(filter(None, found), None) or self._stored
        # Labels of the predict split may be those of other classes.
        return names or ((predict := self.splits["predict"]) and predict.classes()) or None

    @property
    def num_classes(self) -> int | None:
        """Number of ``classes``, with those that have no image; None if they are unknown."""
        return None if (classes := self.classes) is None else len(classes)

    def prepare_data(self) -> None:
        """Load or compile the native operators and call ``prepare``; once per node."""
        library.load()
        if self._prepare is not None:
            self._prepare()
        self._is_prepared = True

    def setup(self, stage: str | None = None) -> None:
        """Index the shards of the splits of ``stage``; of all splits if it is None."""
        warnings.filterwarnings("ignore", "You have overridden `on_after_batch_transfer` in both")  # both run
        self._check_overlap()
        self._check_labels()
        self._check_network()
        wanted = {"train", "val"} if stage == "fit" else {"val" if stage == "validate" else stage}
        for name, split in self.splits.items():
            if split is not None and not split.streaming and (stage is None or kind_of(name) in wanted):
                self.samples(name)

    def train_dataloader(self) -> BaseLoader:
        """Return the loader of the train split; it continues at the position of a resumed checkpoint."""
        loader = self._train = self._loader("train")
        if self._resume is not None:
            loader.load_state_dict(self._resume)
            self._resume = None
        if self.trainer is not None:
            loader.sampler.on_epoch = partial(_forget_a_finished_epoch, weakref.proxy(self.trainer))
        return loader

    def val_dataloader(self) -> BaseLoader | list[BaseLoader]:
        """Return the loader of the val split, a list for several; in a fit without one, an empty list."""
        is_asked = self.trainer is not None and self.trainer.state.fn == TrainerFn.VALIDATING
        if self.splits.get("val", True) or is_asked:
            return self._loaders_of("val")
        warnings.filterwarnings("ignore", "Total length of `list` across ranks is zero")  # as intended
        return []

    def test_dataloader(self) -> BaseLoader | list[BaseLoader]:
        """Return the loader of the test split, a list for several."""
        return self._loaders_of("test")

    def predict_dataloader(self) -> BaseLoader:
        """Return the loader of the predict split; its batches carry keys."""
        return self._loader("predict")

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Augment the images on their device, then call the hook of this name of the LightningModule."""
        if self._is_in_hook:  # which may call this one
            return batch
        if self.augment is not None and isinstance(batch, (Batch, KeyedBatch, ExtraBatch)):
            is_training = self.augment.training if self.trainer is None else self.trainer.training
            loader = self._train if is_training else None
            request, split = None if loader is None else loader.claim(), self._split_of(dataloader_idx)
            batch = self._augmented(batch, is_training, request, split, self._pixels(is_training, split))
        if self.trainer is None:
            return batch
        self._is_in_hook = True
        try:  # Lightning leaves it out
            return self.trainer.lightning_module.on_after_batch_transfer(batch, dataloader_idx)
        finally:
            self._is_in_hook = False

    def augmented(self, loader: BaseLoader, device: torch.device | str | None = None) -> Iterator[AnyBatch]:
        """Yield the loader's next epoch, augmented on ``device``: for loops without Lightning.

        ``for images, labels in data.augmented(data.train_dataloader(), "cuda"): ...``. Batches of the train
        split are distorted with the same params as under Lightning; those of other splits are not. On the CPU
        the loader does as much of it as under Lightning. Raises ``ValueError`` for anything but one loader.
        """
        if not isinstance(loader, BaseLoader):
            raise ValueError(
                f"loader={type(loader).__name__} must be one loader of this ShardDataModule: "
                "data.train_dataloader(), or an item of the list that data.val_dataloader() returns"
            )
        return self._augmented_batches(loader, device)

    def _augmented_batches(self, loader: BaseLoader, device: Any) -> Iterator[AnyBatch]:
        is_training = any(name == "train" and known is loader for name, known in self._loaders)
        pixels = loader.config.pixels
        if device is None or torch.device(device).type == "cpu":
            pixels = self._pixels_on_cpu(is_training, loader.split)
        for batch in loader.batches(pixels):
            *images, label = (
                part.to(device, non_blocking=True) for part in (*by_size(batch.image), batch.label)
            )
            moved = batch._replace(image=of_sizes(images), label=label)
            yield self._augmented(moved, is_training, loader.claim(), loader.split, pixels)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the train split, and the classes, for Lightning's checkpoints."""
        if self._train is None:
            return {}
        return {"train": self._train.state_dict(), "classes": self._names or self._stored}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Compare the classes, and continue training at the position, ignored in validation and so on."""
        # Lightning saves and restores the loader's own state too, but loses it if
        # trainer.estimated_stepping_batches is read first (its issue 20550); this method is called earlier.
        self._stored, state = state_dict.get("classes") or [], state_dict.get("train")
        check_classes(self._stored, self._names)
        if state is None or self.trainer is None or self.trainer.state.fn != TrainerFn.FITTING:
            return
        # An existing loader may be from a previous run; some strategies load after the loader is created.
        self._resume = state
        if self._train is not None:
            self._train.load_state_dict(state)

    def teardown(self, stage: str | None = None) -> None:
        """Stop the worker processes."""
        self._close()

    def on_exception(self, exception: BaseException) -> None:
        """Stop the worker processes after a failure; explain labels that were refused."""
        self._close()
        train, target = self._shards.get("train"), getattr(self.splits["train"], "target", None)
        if train is None or target is None or not _LABEL_REFUSED.search(str(exception)):
            return
        with suppress(ShardError):  # the exception is more important
            ids = np.unique(np.linspace(0, len(train) - 1, _MOST_LABELS, dtype=np.int64))
            labels = read_labels(train, ids, target)
            low, high = (int(bound) for bound in labels.aminmax())
            place = where_of(train, int(ids[int(labels.reshape(len(ids), -1).amax(1).argmax())]))
            few = f" (of {len(ids)} of the {len(train)} samples)" * (len(ids) < len(train))
            note = f"labels {low}..{high}{few} need num_classes={high + 1}; the first {high}: {place}"
            getattr(exception, "add_note", log.warning)(note)  # add_note: Python 3.11

    def _augmented(
        self,
        batch: AnyBatch,
        is_training: bool,
        request: Request | None,
        split: Split | None,
        pixels: PixelFormat,
    ) -> AnyBatch:
        if self.augment is None:
            return batch
        self.augment.train(is_training)
        options: dict[str, Any] = {"is_augmented": pixels.dtype != torch.uint8}
        if split is not None:
            options |= {"views": split.view_groups, "repeats": split.repeats}
        return augmented(self.augment, batch, self._config.seed, request, **options)

    def _split_of(self, dataloader_idx: int) -> Split | None:
        """Return the split of the batches that the Trainer is at; None without a Trainer."""
        if self.trainer is None or self.trainer.state.stage is None:
            return None
        stage = self.trainer.state.stage.value
        kind = {"sanity_check": "val", "validate": "val"}.get(stage, stage)
        splits = [split for name, split in self.splits.items() if kind_of(name) == kind]
        return splits[dataloader_idx] if dataloader_idx < len(splits) else None

    def _close(self) -> None:
        for _, loader in self._loaders:
            loader.close()
        self._loaders.clear()
        self._resume = None

    def samples(self, name: str) -> Samples:
        """Return the samples of a split, which is opened once. Raises ``KeyError`` if there is none."""
        if name not in self._shards and (split := self.splits[name]) is not None:
            with warnings.catch_warnings():
                if self._rank_and_world()[0]:
                    warnings.simplefilter("ignore")  # rank 0 warns about the same shards
                if name != "predict" and split.subset is None:  # check_labels raises instead
                    warnings.filterwarnings("ignore", ".* has only images, which have no labels")
                self._shards[name] = split.open()
                if name != "predict":
                    split.check_labels(self._shards[name])
        return self._shards[name]

    def _labelled(self) -> dict[str, Split]:
        return {name: split for name, split in self.splits.items() if split and name != "predict"}

    def _check_overlap(self) -> None:
        """Raise ShardError if train shares a shard with val or test, whose scores would be too good."""
        if self._is_apart:
            return
        places: dict[str, dict[object, str]] = {}
        splits = self._labelled()
        others = [name for name in splits if name != "train"]
        for name, split in splits.items():
            with suppress(ShardError):  # opening it raises
                places[name] = split.places()
        for name in others:
            train, other = places.get("train", {}), places.get(name, {})
            if shared := train.keys() & other.keys():
                first = min(shared, key=train.__getitem__)
                link = f" (in {name}: {other[first]})" if train[first] != other[first] else ""
                raise ShardError(
                    f"train and {name} have {len(shared)} shard{'s' * (len(shared) > 1)} in common, such as "
                    f"{train[first]}{link}, so {name} would measure samples of the training. Give each its "
                    f"own, such as 'train-*.tar' and '{kind_of(name)}-*.tar'; or give allow_overlap=True."
                )
        self._is_apart = len(places) == len(splits)

    def _check_labels(self) -> None:
        """Raise ShardError if a label has two names: the shards of the splits were packed one by one."""
        if self._has_same_labels:
            return
        names: dict[str, list[str] | None] = {}
        splits = self._labelled()
        for name, split in splits.items():
            with suppress(ShardError):  # opening it raises
                names[name] = split.classes()
        known = {name: found for name, found in names.items() if found}
        first = next(iter(known), "")
        for name, found in known.items():
            for label, (one, other) in enumerate(zip(known[first], found, strict=False)):
                if one != other:
                    raise ShardError(
                        f"label {label} is {one!r} in {first} and {other!r} in {name}, which would be "
                        "measured by other labels. Make the shards of all splits from one folder that holds "
                        "train and val: Folder(root, split=...), FolderShards(root, out) or build_cache()."
                    )
        self._names, self._has_same_labels = known.get(first, []), len(names) == len(splits)

    def _check_network(self) -> None:
        """Raise ShardError if the network has too few classes, before its loss fails without that reason."""
        net = None if self.trainer is None else self.trainer.lightning_module
        given = getattr(net, "num_classes", getattr(net, "hparams", {}).get("num_classes"))
        if not isinstance(given, int) or given < 1 or given == len(self._names) - 1 == 1:  # 1: of two classes
            return
        if given < (count := len(self._names)):
            raise ShardError(
                f"labels 0..{count - 1} need num_classes={count}, and the network has {given}: label {given} "
                f"is {self._names[given]!r}"
            )

    def _pixels(self, is_train: bool, split: Split | None) -> PixelFormat:
        """Return the format of the images of a split's loader: uint8, unless the CPU trains."""
        is_on_cpu = self._has_own_hook and self._trains_on_cpu
        return self._pixels_on_cpu(is_train, split) if is_on_cpu else PixelFormat()

    def _pixels_on_cpu(self, is_train: bool, split: Split | None) -> PixelFormat:
        views = 1 if split is None else len(split.view_crops())
        return pixels_of(self.augment, is_train, self._config.workers_and_threads[0], views)

    @property
    def _has_own_hook(self) -> bool:
        return type(self).on_after_batch_transfer is ShardDataModule.on_after_batch_transfer

    @property
    def _trains_on_cpu(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cpu"

    def _rank_and_world(self) -> tuple[int, int]:
        if self.trainer is not None:
            return self.trainer.global_rank, self.trainer.world_size
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    def _loaders_of(self, kind: str) -> BaseLoader | list[BaseLoader]:
        names = [name for name in self.splits if kind_of(name) == kind]
        return self._loader(kind) if names == [kind] else [self._loader(name) for name in names]

    def _loader(self, name: str) -> BaseLoader:
        split = self.splits[name]
        if split is None:
            raise ValueError(f"there is no {name} split: pass ShardDataModule({name}=Split(...))")
        if self.trainer is None and not self._is_prepared:
            self.prepare_data()  # Lightning calls it, a plain loop does not
        self._check_overlap()
        rank, world = self._rank_and_world()
        is_train = name == "train"
        # Lightning warns that overfit_batches turns shuffling off, but does not do it.
        is_overfitting = getattr(self.trainer, "overfit_batches", 0) > 0
        config = replace(
            self._config,
            drop_last=self._drop_last and is_train,
            pixels=self._pixels(is_train, split),
            leaves_out=name == "predict",
        )
        options: dict[str, Any] = {"shuffle": is_train and not is_overfitting, "rank": rank, "world": world}
        options["keys"] = self._keys or name == "predict"
        loader: BaseLoader
        if split.streaming:
            loader = StreamingLoader(split, config, **options)
        else:
            loader = Loader(self.samples(name), split, config, **options)
        if split.transform is not None and _takes_uint8(self.augment):
            dtype, shape = loader.fetcher.transform_result
            _check_uint8(name, dtype)
            if len(shape) < 3:
                raise ValueError(
                    f"augment= is a tarpeg.Augment, which takes images [C, H, W], but transform= of {name} "
                    f"returns uint8 {list(shape)}: return images, or give augment=None"
                )
        for known, other in self._loaders:
            if known == name and self.trainer is not None:
                other.close()  # replaced, with reload_dataloaders_every_n_epochs
        self._loaders.append((name, loader))
        if self.trainer is not None and self.augment is not None:
            loader.uint8_notice = ""  # augment= converts them
        loader.measured = "" if split.streaming or kind_of(name) not in ("val", "test") else name
        if is_train and not rank and self.augment is not None and self._has_own_hook:
            loader.unclaimed_notice = _NOT_AUGMENTED
        has_helpers = any(config.workers_and_threads) and torch.get_num_threads() > 1
        if is_train and not rank and self._trains_on_cpu and has_helpers:
            warn_about_spinning_threads()
        loader.compare_over_ranks(name)
        return loader


def _checked_augment(augment: Any, splits: Mapping[str, Split | None]) -> nn.Module | None:
    """Return ``augment=``, a list as a ModuleList; ValueError if it does not suit the splits or is no module.

    Random transforms of torchvision are refused, in a container too.
    """
    is_list = isinstance(augment, (Sequence, nn.ModuleList))
    modules = list(augment) if is_list else [augment]
    parts: list[Any] = [*modules]
    given = [uncompiled(module) for module in modules]
    for part in map(uncompiled, parts):
        kind: Any = type(part)
        if isinstance(part, Augment) and part.is_random and not any(part is one for one in given):
            warn(
                "augment= holds a tarpeg.Augment within other modules: it counts images by itself, and a "
                "resumed run distorts them differently. Give the tarpeg.Augment alone."
            )
        if isinstance(part, nn.Sequential) and kind.forward is nn.Sequential.forward:
            parts += part.children()
        # A subclass with a forward() of its own may respect the mode.
        code = part if isinstance(part, FunctionType) else getattr(kind, "forward", kind)
        if not str(code.__module__).startswith(_TORCHVISION):
            continue
        bases = [base.__name__ for base in kind.__mro__ if base.__module__.startswith(_TORCHVISION)]
        if bases and bases[0] == "Compose":
            parts += part.transforms
        elif not bases or bases[0] not in _FIXED:
            name = part.__name__ if isinstance(part, FunctionType) else kind.__name__
            raise ValueError(
                f"augment={name} of torchvision would also run in validation, with one draw per batch. Give "
                "it to the training split, Split(transform=v2.Compose([...])), where every sample has its "
                "own draw (not MixUp and CutMix: they are tarpeg.Augment(mix=)); or tarpeg.Augment(flip=, "
                "policy=, affine=, color=, erase=, mix=), or a torch.nn.Module of your own that distorts "
                "only if self.training. Fixed steps, such as v2.Normalize, always run: give them as they are."
            )
    if not all(isinstance(module, nn.Module) or (module is None and not is_list) for module in modules):
        raise ValueError(
            f"augment={augment!r} must be a torch.nn.Module such as tarpeg.Augment(), a list of one module "
            "per view, or None"
        )
    for name, split in splits.items() if any(map(_takes_uint8, modules)) else ():
        for levels in () if split is None else (pipeline.levels for pipeline in split.pipelines):
            _check_uint8(name, torch.uint8 if levels is None else levels.dtype)
    for name, split in splits.items() if is_list else ():
        count = 0 if split is None else len(split.view_crops())
        if count and count != len(modules) and (name == "train" or count > 1 or not modules):
            raise ValueError(
                f"augment= has {len(modules)} modules, but {name} has {count} views: give one module per "
                "view, or a single one for all"
            )
    return nn.ModuleList(modules) if is_list else augment


def _check_splits(splits: Mapping[str, Split | None], augment: nn.Module | None) -> None:
    """Raise ValueError for repeats outside of training, and for images that ``augment`` does not take."""
    own = [module for module in map(uncompiled, modules_of(augment)) if isinstance(module, Augment)]
    for name, split in splits.items():
        if split is None:
            continue
        if split.repeats > 1 and name != "train":
            raise ValueError(
                f"{name}=Split(repeats={split.repeats}) would have 1/{split.repeats} of the samples, "
                f"{split.repeats} times each: repeats is for train"
            )
        for module in own if split.transform is None else ():  # a transform may change the channels
            if len(module.mean) != split.channels:
                remedy = "Augment(mean=[0.5], std=[0.25])" if split.channels == 1 else "three numbers each"
                raise ValueError(
                    f"{name} has channels={split.channels}, but augment= has mean={list(module.mean)}: give "
                    f"{remedy}"
                )


def _takes_uint8(augment: nn.Module | None) -> bool:
    return any(isinstance(uncompiled(module), Augment) for module in modules_of(augment))


def _check_uint8(name: str, dtype: torch.dtype) -> None:
    """Raise ValueError if the transform of a split normalises, as Augment would once more."""
    if dtype != torch.uint8:
        raise ValueError(
            f"augment= is a tarpeg.Augment, which normalises uint8 images, but transform= of {name} returns "
            f"{dtype}: leave its ToDtype or ToTensor and its Normalize out, or give augment=None and "
            "normalise in transform= of all splits"
        )


def _forget_a_finished_epoch(trainer: lightning.Trainer) -> None:
    """Continue a checkpoint of an epoch's end with the next epoch also if ``max_steps`` is set.

    Lightning 2.6.6 restarts such a run within the finished epoch (``_FitLoop.restarting``), which then has no
    batches. These attributes are private: nothing is changed in a version without them.
    """
    loop = trainer.fit_loop
    progress = getattr(getattr(loop, "epoch_progress", None), "current", None)
    if progress is None or not hasattr(loop, "_restarting") or not hasattr(loop.epoch_loop, "restarting"):
        return
    if loop.restarting and progress.ready == progress.started == progress.processed > 0:
        loop._restarting = False
        loop.epoch_loop.restarting = False
        loop.reset_restart_stage()
