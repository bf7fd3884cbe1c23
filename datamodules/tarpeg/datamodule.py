"""The LightningDataModule: Lightning's hooks create, resume and close the loaders."""

from __future__ import annotations

import inspect
import logging
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import Any, NoReturn

import lightning
import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from torch import nn

from .errors import ResumeError, ShardError, explains_arguments, warn
from .loader.arrivals import GatheredImages
from .loader.augmenting import augment_on_arrival, moving, pixels_of
from .loader.batch import TARGET_BATCHES, AnyBatch
from .loader.checks import (
    check_mixed_labels,
    check_num_classes,
    check_on_error,
    check_overlap,
    check_split,
    check_transform_result,
    check_types,
    checked_augment,
    explain_refused_label,
    explain_single_sample,
    kind_of,
    named_splits,
    open_split,
)
from .loader.classes import CommonClasses, common_classes, names_of_all, stored_classes
from .loader.config import DecodeOn, LoaderConfig, OnError
from .loader.loader import Loader
from .loader.mixture import Mixture, MixtureLoader
from .loader.preprocessing import check_preprocessing, described
from .loader.ranks import Mesh, data_rank, rank_of_strategy, warn_if_alone
from .loader.split import Split
from .machine import warn_about_spinning_threads
from .ops import library
from .sampling.epochs import EpochCounter, hook_at_work, warn_of_left_out
from .sampling.sampler import shown
from .shards.source import Source
from .transforms.pixels import PixelFormat

log = logging.getLogger("tarpeg")

_SAME_CLASSES = (
    "Names in a table are numbered in sorted order: give classes=[...] to its Label, with all that may come; "
    "to targets, labels={...}."
)
_NOT_AUGMENTED = (
    "augment= is not applied to these batches of train: give a Trainer the ShardDataModule itself, "
    "trainer.fit(model, data), whose on_after_batch_transfer() gets the batches as they are; in a loop of "
    "your own, iterate data.augmented(data.train_dataloader())"
)


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

    A batch is ``(image, label)``: uint8 ``[B, 3, H, W]`` and int64 ``[B]``, see ``Batch`` for views and gray;
    ``augment`` replaces the image. If the CPU trains, the decoder normalises for a ``tarpeg.Augment`` that
    does nothing else, and worker processes do any other ``tarpeg.Augment``; hooks before it then get float32.

    Without Lightning use ``tarpeg.Loader``. Each rank warns of broken images that it reads, and
    counts them: ``data/substituted``. Other warnings are rank 0's.

    Args:
        train: Split for training: shuffled, every sample once per epoch over all ranks. Or a
            ``tarpeg.Mixture`` of several, which ``splits`` then has as ``"train/NAME"``.
        val: Split for validation, in order; or several, as a list or a dict by name. ``splits`` then has them
            as ``"val/0"`` or ``"val/NAME"``, and ``val_dataloader()`` returns a list in their order.
        test: Split or splits for testing, as ``val``.
        predict: Split for prediction, in order, as ``KeyedBatch``; labels are -1 with ``target=None``.
        batch_size: Samples per rank and batch; an attribute too, for ``Tuner.scale_batch_size``.
        global_batch_size: Samples per batch over all ranks; overrides ``batch_size``.
        seed: Seed of order, crops, flips and augmentation.
        workers: Worker processes; one per core by default, at most 8.
        threads: Decoding threads of this process if ``workers=0``; one per core by default, at most 8. 0:
            the thread that requests a batch decodes it.
        prefetch: Batches prefetched per worker (in total, for threads).
        readahead: Batches for which the disk is asked ahead; by default 8 if the shards take more than half
            of the memory, otherwise 0.
        augment: Module called with the uint8 images on their device, in validation too: then it is in
            evaluation mode, in which it may not be random (transforms of torchvision and Kornia ignore the
            mode and are refused). The random params of ``tarpeg.Augment`` are a function of seed, epoch and
            sample; for other modules the global generators are seeded per batch. Or a list of modules, one
            per view; a split of one view, for validation, then takes the first of them.
        on_error: ``"substitute"`` replaces an undecodable image by another sample, chosen deterministically,
            with a warning, and leaves it out of its batch in prediction; ``"raise"`` raises ``DecodeError``.
            Without train, ``"leave_out"`` leaves it out in val and test, where a batch may then be empty.
        max_bad: Largest fraction of undecodable images per epoch and rank; ten are allowed, unless it is 0.
        max_pixels: Images with more pixels are undecodable; default 178,956,970 for JPEG and PPM, 67,108,864
            for other formats, of which Pillow decodes the whole image (up to 22 bytes per pixel and worker).
        decode: ``"device"``: workers gather the tiles under the crops, and the batch is decoded on the device
            of the training, before ``augment``, to the same bytes; for shards of ``build_cache``.
            ``"auto"`` is ``"cpu"``: workers decode.
        pin: Register the memory of batches with CUDA's driver where a GPU trains, so that nothing waits for
            copies to it. See ``LoaderConfig``.
        drop_last: Leave out an incomplete last batch, in training only.
        keys: Add the samples' keys to every batch.
        prepare: Called before shards are opened, e.g. ``tarpeg.SyntheticShards``: once per node under
            Lightning, otherwise once per process.
        allow_overlap: Allow train to share shards with val or test, for example with other samples of them
            (``Split(subset=...)``); otherwise this is a ``ShardError``.
        allow_other_data: Go on from a checkpoint of other shards, or of another order of them, and validate
            or predict one with other crops or another normalisation; otherwise this is a ``ResumeError``.
        mesh: For loops without a Trainer, the data-parallel dimension, as for ``tarpeg.Loader``:
            ``(mesh, "dp")``. A Trainer's strategy has its own.

    Example:
        >>> data = tarpeg.ShardDataModule(
        ...     train=tarpeg.Split(shards, tarpeg.RandomResizedCrop(96), flip=0.5),
        ...     batch_size=8,
        ...     augment=tarpeg.Augment(),
        ... )
        >>> images, labels = next(iter(data.augmented(data.train_dataloader())))
        >>> images.shape, images.dtype, labels.dtype
        (torch.Size([8, 3, 96, 96]), torch.float32, torch.int64)
        >>> data.teardown()
    """

    _trainer: lightning.Trainer | None = None

    def __init__(
        self,
        train: Split | Mixture | None = None,
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
        decode: DecodeOn = "auto",
        pin: bool = True,
        drop_last: bool = False,
        keys: bool = False,
        prepare: Callable[[], Any] | None = None,
        allow_overlap: bool = False,
        allow_other_data: bool = False,
        mesh: Mesh = None,
    ) -> None:
        super().__init__()
        self.splits: dict[str, Split | None] = {}
        self._mixture = train if isinstance(train, Mixture) else None
        if isinstance(train, Mixture):
            self.splits |= {f"train/{name}": split for name, split in train.sources.items()}
            if keys:
                raise ValueError(
                    f"keys={keys!r}: batches of a Mixture have no keys. Leave it out; with members= in all "
                    "of its splits they have"
                )
        else:
            self.splits |= {"train": None} if train is None else named_splits("train", train)
        for kind, given in {"val": val, "test": test, "predict": predict}.items():
            self.splits |= {kind: None} if given is None else named_splits(kind, given)
        if all(split is None for split in self.splits.values()):
            raise ValueError(
                "ShardDataModule() needs at least one split: pass train=, val=, test= or predict=Split(...)"
            )
        self._augment = self._checked(augment)
        if augment is None and self._has_own_hook:
            check_types(self.splits)
        self._config = LoaderConfig(
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            seed=seed,
            workers=workers,
            threads=threads,
            prefetch=prefetch,
            readahead=readahead,
            on_error=on_error,
            max_bad=max_bad,
            max_pixels=max_pixels,
            decode=decode,
            pin=pin,
            allow_other_data=allow_other_data,
        )
        if train is not None:
            check_on_error(on_error)
        self._drop_last = drop_last
        self._keys = keys
        if mesh is not None:
            data_rank(mesh=mesh)  # raises ValueError
        self._mesh = mesh
        self._prepare = prepare
        self._is_prepared = False
        self._is_in_hook = False
        self._allow_overlap = self._has_separate_shards = allow_overlap
        self._common = self._stored = CommonClasses([], {}, {}, False, set())  # stored: of a checkpoint
        self._fitted: Loader | None = None  # train of the last training of a Trainer, and its classes
        self._learnt: CommonClasses | None = None
        self._samples: dict[str, tuple[Split, Source]] = {}
        # Of the files of the splits, when these were opened.
        self._signatures: dict[str, tuple[Split, Any]] = {}
        self._is_stale = True  # files may have changed
        self._reloaded: int | None = None  # epoch of the last reload; None before the first loader of a run
        # Those that are still in use, and their Trainers: a loader that is not any more ends its workers.
        self._loaders: list[tuple[weakref.ref[Loader], Callable[[], lightning.Trainer | None]]] = []
        self._train: Loader | None = None
        # Those that run: of several, each but the first works within the one before, such as in a callback.
        self._trainers: list[weakref.ref[lightning.Trainer]] = []
        self._previous: Loader | None = None  # of train, without a Trainer, until teardown()
        self._resume: Mapping[str, Any] | None = None
        self._place: Mapping[str, Any] | None = None  # where train begins without a Trainer
        self._plain: list[weakref.ref[Loader]] = []  # loaders of train, made without a Trainer

    @property
    def trainer(self) -> lightning.Trainer | None:
        """The Trainer of a run, until the next use after its end; Lightning sets it first of all."""
        return self._trainer

    @trainer.setter
    def trainer(self, given: lightning.Trainer | None) -> None:
        if given is not None and given is not self._trainer:
            self._begin_run()  # of the one within which this one works, if a subclass has its own setup()
        self._trainer = given

    @property
    def augment(self) -> nn.Module | None:
        """Module called with the images; another one counts from the next epoch of each loader."""
        return self._augment

    @augment.setter
    def augment(self, given: nn.Module | Sequence[nn.Module] | None) -> None:
        # A hook of a subclass may choose one for each batch.
        self._augment = self._checked(given) if self._has_own_hook or isinstance(given, Sequence) else given

    def _checked(self, given: nn.Module | Sequence[nn.Module] | None) -> nn.Module | None:
        """Return a module for ``augment``. Raises ValueError for one that does not suit a split."""
        augment = checked_augment(given)
        for name, split in self._given().items():
            check_split(name, split, augment, training=kind_of(name) == "train")
        return augment

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
        self._adopt_train()
        return f"{type(self).__name__}({', '.join(name for name, split in self.splits.items() if split)})"

    def __repr__(self) -> str:
        """Return the splits with their shards, and the size of a batch."""
        self._adopt_train()
        parts = [f"{name}={shown(split.shards)}" for name, split in self.splits.items() if split]
        total = self._config.global_batch_size
        size = f"batch_size={self._config.batch_size}" if total is None else f"global_batch_size={total}"
        return f"{type(self).__name__}({', '.join([*parts, size])})"

    def __iter__(self) -> NoReturn:
        """Refuse a loop: it needs the loader of a split."""
        raise TypeError(
            f"{type(self).__name__} cannot be iterated or indexed and has no length. Iterate over the loader "
            "of a split: for images, labels in data.augmented(data.train_dataloader()); for a tool that "
            "takes a DataLoader: DataLoader(tarpeg.Dataset(data.train_dataloader()), batch_size=None)"
        )

    def __len__(self) -> NoReturn:
        """Refuse a length, which a DataLoader would ask for."""
        self.__iter__()

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse an index, which a DataLoader would use."""
        self.__iter__()

    def __bool__(self) -> bool:
        """Return True: ``if data:`` would ask for the length."""
        return True

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes by label, of the labelled splits, or of the checkpoint; None if unknown.

        Calls ``prepare_data()`` first outside a Trainer, unless it was called.
        """
        if self.trainer is None and not self._is_prepared:
            self.prepare_data()
        if self._is_stale:
            self._refresh()
        splits = self._labelled().values()
        has_own = any(split.class_numbers() for split in splits)
        names = names_of_all(splits) if has_own else self._stored.names
        predict = self.splits["predict"]
        if not names and not has_own and predict is not None:  # its labels may be those of other classes
            names = predict.classes() or []
        return names or None

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
        # Of keys and members, which it counts too. It takes the first size that it finds: that of the images.
        warnings.filterwarnings("ignore", "Trying to infer the `batch_size` from an ambiguous collection")
        self._begin_run(hook_at_work(sys._getframe(1), self.trainer) == "setup")
        if self._is_stale:
            self._refresh()
        self._check_overlap()
        self._compare_classes()
        self._check_network()
        kinds = {"fit": {"train", "val"}, "validate": {"val"}}.get(stage or "", {stage})
        for name, split in self._given().items():
            if not split.streaming and (stage is None or kind_of(name) in kinds):
                self.samples(name)

    def train_dataloader(self) -> Loader:
        """Return the loader of the train split; it continues at the position of a resumed checkpoint.

        Without a Trainer a second call returns a loader that begins with the next epoch, as
        ``for images, labels in data.train_dataloader()`` in a loop over epochs expects it.
        """
        self._forget_ended()
        outer = self._outer()
        if outer is not None and outer.state.fn == TrainerFn.FITTING:
            raise RuntimeError(
                "another Trainer trains with this ShardDataModule at the moment: make one for each of them"
            )
        loader, before = self._loader("train"), self._train
        is_look = self._is_within_hook("train")
        if before is not None and is_look:  # the run goes on with its own
            return loader
        loader.on_begin = partial(_begin_epoch, weakref.ref(self), weakref.ref(loader), is_train=True)
        is_beside = self.trainer is None and self._previous is not None and self._previous.is_at_work
        if not is_beside:
            self._train = loader
        is_later = self.trainer is not None and self.trainer.current_epoch > 0
        if is_later and isinstance(loader, MixtureLoader) and isinstance(before, MixtureLoader):
            loader.warn_of_batch_size(before)
        if loader.ranks.rank == 0 and (text := loader.shapes_text()):
            log.info("%s", text)
        if self.trainer is None:
            if self._previous is not None:
                loader.follow(self._previous)
            elif self._place is not None:
                loader.load_state_dict(self._place)
            if not is_beside:
                self._previous = loader
            self._plain = [weakref.ref(each) for each in (*self._plain_loaders(), loader)]
        self._place = None
        if self._resume is not None:
            loader.load_state_dict(self._resume)
            if not is_look:  # after which the run makes its own
                self._resume = None
        if self.trainer is not None:
            if self.trainer.state.fn == TrainerFn.FITTING:
                self._fitted, self._learnt = loader, self._common
            trainer, sampler = weakref.proxy(self.trainer), loader.sampler
            sampler.on_epoch = partial(_epoch_of_a_restart, trainer, weakref.proxy(sampler))
            loader.unused = partial(_batches_under_way, weakref.ref(self.trainer))
            if isinstance(loader, MixtureLoader):
                sampler.on_set = partial(_count_batches, weakref.ref(self.trainer), weakref.ref(loader))
        return loader

    def _plain_loaders(self) -> list[Loader]:
        """Return the loaders of train that live and were made without a Trainer."""
        return [loader for reference in self._plain if (loader := reference()) is not None]

    def batches_in(self, epoch: int) -> int:
        """Return how many batches of an epoch of train a Trainer takes, for schedules of a mixture.

        With shares by epoch, epochs of a mixture have several lengths, and
        ``trainer.estimated_stepping_batches`` takes all for as long as the one in which it is read.

        Raises:
            RuntimeError: Without a Trainer, and before Lightning has called ``train_dataloader``.
        """
        if self.trainer is None or self._train is None:
            raise RuntimeError(
                "batches_in() needs a Trainer that trains. In configure_optimizers, read "
                "trainer.estimated_stepping_batches first, which makes the loader; in a loop of your own, "
                "loader.batches_in(epoch) returns the batches"
            )
        return _batches_taken(self.trainer, self._train.batches_in(epoch))

    def source_dataloader(self, name: str) -> Loader:
        """Return the loader of one split, such as ``"train/NAME"`` of a mixture, to look at its samples."""
        return self._loader(name)

    def val_dataloader(self) -> Loader | list[Loader]:
        """Return the loader of the val split, or a list of the loaders of several.

        A fit without a val split gets an empty list, for which Lightning skips validation.
        """
        is_asked = self.trainer is not None and self.trainer.state.fn == TrainerFn.VALIDATING
        if self.splits.get("val", True) or is_asked:
            return self._loaders_of("val")
        warnings.filterwarnings("ignore", "Total length of `list` across ranks is zero")  # as intended
        return []

    def test_dataloader(self) -> Loader | list[Loader]:
        """Return the loader of the test split, or a list of the loaders of several."""
        return self._loaders_of("test")

    def predict_dataloader(self) -> Loader:
        """Return the loader of the predict split; its batches carry keys."""
        loader = self._loader("predict")
        self._warn_of_learnt()
        return loader

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Augment the images on their device, then call the hook of this name of the LightningModule."""
        if self._is_in_hook:  # which may call this one
            return batch
        if self._outer() is not None:
            self._forget_ended()  # teardown() of a subclass may not have done so
        if isinstance(batch, AnyBatch):
            batch = self._arrived(batch, self._split_of(dataloader_idx))
        elif self.trainer is not None:
            batch = self._with_own_arrived(batch, _loaders_at_work(self.trainer))
        if self.trainer is None:
            return batch
        self._is_in_hook = True
        try:  # Lightning leaves it out
            return self.trainer.lightning_module.on_after_batch_transfer(batch, dataloader_idx)
        finally:
            self._is_in_hook = False

    def augmented(self, loader: Loader, device: torch.device | str | None = None) -> Iterator[Any]:
        """Yield the loader's next epoch, augmented on ``device``: for loops without Lightning.

        ``for images, labels in data.augmented(data.train_dataloader(), "cuda"): ...``. Batches of the train
        split are distorted with the same params as under Lightning; those of other splits are not. On the CPU
        the loader does as much of it as under Lightning. Raises ``ValueError`` for anything but one loader.
        """
        if not isinstance(loader, Loader):
            raise ValueError(
                f"loader={type(loader).__name__} must be one loader of this ShardDataModule: "
                "data.train_dataloader(), or an item of the list that data.val_dataloader() returns"
            )
        return loader.deliver(self.augment, device, evaluates=self._evaluates)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the train split, the classes, and how validation prepares images.

        For Lightning's checkpoints. ``tarpeg.preprocessing`` reads the last of these.
        """
        name = self._first_of("val")
        # A Trainer saves the place of its training and the classes that were learnt there, whatever has been
        # looked at, or changed, since.
        is_saved = self._fitted is not None and hook_at_work(sys._getframe(1)) == "state_dict"
        train = self._fitted if is_saved else self._train
        own = self._learnt if self._learnt is not None and train is self._fitted else self._common
        state = (own if own.numbers or own.seen else self._stored).state()
        pending = self._place
        if self.trainer is not None and not self._has_ended:
            pending = self._resume if self._train is None else None
        if pending is not None:  # loaded, and no loader was made since
            state["train"] = dict(pending)
        elif train is not None:
            state["train"] = train.state_dict()
        if name is not None:
            state["preprocessing"] = self._described(name)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Compare the classes, and continue training at the position, ignored in validation and so on.

        Without a Trainer, loaders go on there; a Trainer begins at the first batch without ``ckpt_path=``.
        """
        # Lightning saves and restores the loader's own state too, but loses it if
        # trainer.estimated_stepping_batches is read first (its issue 20550); this method is called earlier.
        self._stored, state = stored_classes(state_dict), state_dict.get("train")
        if not self._measures:
            self._fitted = self._learnt = None
        elif self._outer() is None and (self._stored.numbers or self._stored.seen):
            self._learnt = self._stored
        self._common.check_since(self._stored)
        self._check_preprocessing(state_dict.get("preprocessing"))
        self._forget_ended()
        if self.trainer is None:
            if state is None:  # of one that had made no loader
                self._previous = self._place = None
            elif self._previous is None:
                self._place = state
            else:  # which the next loader follows, if it is not a look beside that of the loop
                self._previous.load_state_dict(state)
                for loader in {*self._plain_loaders()} - {self._previous}:
                    with suppress(ResumeError):  # of a split that was replaced, or another size of batches
                        loader.load_state_dict(state)
        elif state is not None and self.trainer.state.fn == TrainerFn.FITTING:
            # An existing loader may be from a previous run; some strategies load after the loader is created.
            self._resume = state
            if self._train is not None:
                self._train.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: all but Trainer and loaders, which it gets for itself.

        Without a Trainer, it goes on where train was.
        """
        state = {**self.__dict__, "_trainer": None, "_trainers": [], "_loaders": [], "_plain": []}
        state |= {"_train": None, "_fitted": None, "_previous": None}
        state["_learnt"] = self._learnt if self._train is self._fitted else None
        if self._place is None and self._previous is not None:
            state["_place"] = self._previous.state_dict()
        return state

    def teardown(self, stage: str | None = None) -> None:
        """Stop the worker processes; with ``decode="device"``, report what the last batches had damaged."""
        in_use, is_inner = self._in_use(), self._outer() is not None
        self._close()
        for loader in in_use:
            loader.settle()
        self._leave()
        self._is_stale |= not is_inner

    def _refresh(self, names: Sequence[str] | None = None) -> None:
        """Open again what has changed since it was opened: tables, lists of shards, and splits.

        ``names``: of the splits to look at, by default all.
        """
        if names is None:
            self._is_stale = False
        for name, split in self._given().items():
            if names is not None and name not in names:
                continue
            now = None
            with suppress(ShardError):  # opening it raises
                now = split.signature()
            before = self._signatures.get(name)
            if before is None or before[0] is not split or now is None or before[1] != now:
                split.forget()
                self._samples.pop(name, None)
                self._has_separate_shards = self._allow_overlap
                self._common = self._common._replace(is_whole=False)
            self._signatures[name] = split, now

    def _refresh_if_needed(self, is_look: bool) -> None:
        """Open again after the end of a run, for a reload of Lightning's, and if splits were replaced."""
        trainer, is_new = self.trainer, self._is_stale
        is_reload = getattr(trainer, "reload_dataloaders_every_n_epochs", 0) and self._outer() is None
        if is_reload and not is_look and trainer is not None and trainer.state.fn == TrainerFn.FITTING:
            is_new |= self._reloaded not in (None, trainer.current_epoch)
            self._reloaded = trainer.current_epoch
        if is_new:
            self._refresh()
            return
        given = self._given().items()
        self._refresh([name for name, split in given if self._signatures.get(name, (None,))[0] is not split])

    def on_exception(self, exception: BaseException) -> None:
        """Stop the worker processes after a failure; explain labels that were refused."""
        is_inner = self._outer() is not None
        for loader in () if is_inner else (self._train, self._fitted):
            if loader is not None:  # a checkpoint that is written later is of this place, too
                loader.unused = partial(int, loader.unused())
        self._close()
        self._leave()
        self._is_stale |= not is_inner
        if not self._drop_last and self._mixture is None and self._config.batch_size > 1:
            explain_single_sample(exception)
        for name, (split, source) in self._samples.items():
            if kind_of(name) == "train":
                explain_refused_label(exception, split, source)

    def _with_own_arrived(self, batch: Any, loaders: Any) -> Any:
        """Return a batch of several loaders, in a dict or list as they are; those of others as they are."""
        if isinstance(loaders, Loader):
            is_own = isinstance(batch, AnyBatch) and loaders in self._in_use()
            return self._arrived(batch, loaders.split, loaders) if is_own else batch
        if isinstance(loaders, Mapping) and isinstance(batch, dict) and {*loaders} == {*batch}:
            return {name: self._with_own_arrived(part, loaders[name]) for name, part in batch.items()}
        is_list = isinstance(loaders, (list, tuple)) and type(batch) in (list, tuple)
        if is_list and len(loaders) == len(batch):
            pairs = zip(batch, loaders, strict=True)
            return type(batch)(self._with_own_arrived(part, loader) for part, loader in pairs)
        return batch

    def _arrived(self, batch: AnyBatch, split: Split | None, loader: Loader | None = None) -> AnyBatch:
        """Decode and augment a batch, for the Trainer's stage; without one, for the mode of ``augment``."""
        if isinstance(batch.image, GatheredImages):
            batch = batch.image.loader.arrived(batch, self.augment)
        augment = self.augment
        is_training = augment is not None and augment.training
        is_training = is_training if self.trainer is None else self.trainer.training
        is_training &= loader is None or loader.training
        loader = self._train if loader is None else loader
        pixels = None
        is_prepared = self._has_own_hook or isinstance(batch, TARGET_BATCHES)
        if is_training and loader is not None and is_prepared:  # as its epoch began: augment= may be another
            augment, pixels = loader.prepares_for, loader.pixels
        if augment is None:
            return batch
        pixels = self._pixels(is_training, split) if pixels is None else pixels
        request = loader.claim() if is_training and loader is not None else None
        if request is not None and isinstance(batch, TARGET_BATCHES) and not self._runs_hook:
            raise ValueError(
                f"the targets of this batch were not moved as augment= would move its images: let "
                f"on_after_batch_transfer() of {type(self).__name__} call super().on_after_batch_transfer() "
                "in its own lines, not by another function"
            )
        options: dict[str, Any] = {"is_augmented": pixels.dtype != torch.uint8}
        if split is not None:
            options |= {"views": split.view_groups, "repeats": split.repeats}
        options["evaluates"] = self._evaluates
        augment.train(is_training)
        return augment_on_arrival(augment, batch, self._config.seed, request, **options)

    def _split_of(self, dataloader_idx: int) -> Split | None:
        """Return the split of the batches that the Trainer is at; None without a Trainer."""
        if self.trainer is None or self.trainer.state.stage is None:
            return None
        stage = self.trainer.state.stage.value
        kind = {"sanity_check": "val", "validate": "val"}.get(stage, stage)
        splits = [split for name, split in self.splits.items() if kind_of(name) == kind]
        return splits[dataloader_idx] if dataloader_idx < len(splits) else None

    def _close(self) -> None:
        """Close all loaders; of a Trainer that measures, or works within another one, its own alone."""
        for loader in self._in_use():
            loader.close()
        if self._has_all:
            self._loaders.clear()
            self._previous = None
            self._resume = self._place = None
        else:
            self._loaders = [each for each in self._loaders if each[1]() is not self.trainer]

    def _outer(self) -> lightning.Trainer | None:
        """Return the Trainer within which the present one works; None without one."""
        found = (reference() for reference in reversed(self._trainers))
        running = (each for each in found if each and each.state.status == TrainerStatus.RUNNING)
        return next((each for each in running if each is not self.trainer), None)

    def _leave(self) -> None:
        """Go back to the Trainer within which the present one, which ends, has worked."""
        outer, ended = self._outer(), self.trainer
        self._trainers = [each for each in self._trainers if each() not in (None, ended)]
        self._trainer = outer or ended

    def _begin_run(self, is_certain: bool = False) -> None:
        """Note a run that begins: with ``setup``, or with the first loader if a subclass has its own.

        ``is_certain``: Lightning calls ``setup``, which users call too, before runs, within and after them.
        """
        trainer = self.trainer
        is_new = all(each() is not trainer for each in self._trainers)
        if trainer is None or not (is_certain or (is_new and trainer.state.status == TrainerStatus.RUNNING)):
            return
        self._trainers.append(weakref.ref(trainer))
        if self._outer() is None:  # a look before, and a run that failed, may have opened others
            self._is_stale = True
            self._reloaded = None
            if trainer.state.fn == TrainerFn.FITTING:  # not from the place of the run before
                self._train = self._fitted = self._learnt = None

    def _forget_ended(self) -> None:
        """Forget a Trainer whose run has ended, which Lightning does not: loops go on without one.

        Or with the one within which it has worked.
        """
        if self._has_ended:
            self._trainer = self._outer()

    @property
    def _has_ended(self) -> bool:
        status = getattr(getattr(self.trainer, "state", None), "status", None)
        return status in (TrainerStatus.FINISHED, TrainerStatus.INTERRUPTED)

    @property
    def _measures(self) -> bool:
        """Whether a Trainer reads other splits than train: a loop over that, without a Trainer, goes on."""
        fn = getattr(getattr(self.trainer, "state", None), "fn", None)
        return fn in (TrainerFn.VALIDATING, TrainerFn.TESTING, TrainerFn.PREDICTING)

    @property
    def _has_all(self) -> bool:
        """Whether all loaders are the present Trainer's: it neither measures nor works within another."""
        return self._outer() is None and not self._measures

    def _trainer_reference(self) -> Callable[[], lightning.Trainer | None]:
        return _no_trainer if self.trainer is None else weakref.ref(self.trainer)

    def samples(self, name: str) -> Source:
        """Return the samples of a split, which is opened once. Raises ``KeyError`` if there is none."""
        self._adopt_train()
        if self._is_stale:
            self._refresh()
        split = self.splits[name]
        if split is None:
            return self._samples[name][1]
        opened, source = self._samples.get(name, (None, None))
        if source is None or opened is not split:  # another was put into splits
            is_first = data_rank(**self._ranks()).is_first
            source = open_split(split, is_first=is_first, needs_labels=name != "predict")
            self._samples[name] = split, source
        return source

    def _first_of(self, kind: str) -> str | None:
        """Return the name of the split of a kind, "val" or "test", the first of several; None without one."""
        return next((name for name in self._given() if kind_of(name) == kind), None)

    def _described(self, name: str) -> dict[str, Any]:
        return described(self._given()[name], self.augment)

    def _check_preprocessing(self, stored: object) -> None:
        """Raise ResumeError if a Trainer would measure or predict with other images than the checkpoint's."""
        fn = None if self.trainer is None else self.trainer.state.fn
        names = {
            TrainerFn.VALIDATING: self._first_of("val"),
            TrainerFn.TESTING: self._first_of("test"),
            TrainerFn.PREDICTING: "predict",
        }
        name = None if fn is None else names.get(fn)
        if name in self._given() and not self._config.allow_other_data:
            check_preprocessing(name, self._described(name), stored)

    def _given(self) -> dict[str, Split]:
        self._adopt_train()
        return {name: split for name, split in self.splits.items() if split is not None}

    @property
    def _evaluates(self) -> bool:
        return any(kind_of(name) in ("val", "test") for name in self._given())

    def _labelled(self) -> dict[str, Split]:
        return {name: split for name, split in self._given().items() if name != "predict"}

    def _check_overlap(self) -> None:
        if not self._has_separate_shards:
            self._has_separate_shards = check_overlap(self._labelled())

    def _compare_classes(self) -> None:
        if not self._common.is_whole:
            with warnings.catch_warnings():
                if not data_rank(**self._ranks()).is_first:
                    warnings.simplefilter("ignore")
                self._common = common_classes(self._labelled())

    def _warn_of_learnt(self) -> None:
        """Warn if a run that measures or predicts has other labels of classes than the training before it."""
        if self._learnt is None or not self._measures or not data_rank(**self._ranks()).is_first:
            return
        try:
            self._common.check_since(self._learnt, then_is="in the training before", remedy=_SAME_CLASSES)
        except ShardError as error:
            warn(f"{error} This run is right for a network of the new labels alone")

    def _check_reloaded(self, before: CommonClasses) -> None:
        """Raise ShardError if a reload of a training gives classes other labels, or too many."""
        if self.trainer is None or self.trainer.state.fn != TrainerFn.FITTING:
            return
        with warnings.catch_warnings():
            if not data_rank(**self._ranks()).is_first:
                warnings.simplefilter("ignore")
            self._common.check_since(before, then_is="before this reload", remedy=_SAME_CLASSES)
        self._check_network()

    def _check_network(self) -> None:
        """Raise ShardError if the network has too few classes for labels; targets have tables."""
        if any(split.targets is not None for split in self._labelled().values()):
            return
        net = None if self.trainer is None else self.trainer.lightning_module
        given = getattr(net, "num_classes", getattr(net, "hparams", {}).get("num_classes"))
        check_num_classes(given, self._common.names)

    def _pixels(self, is_train: bool, split: Split | None) -> PixelFormat:
        """Return the format of the images of a split's loader: uint8, unless the CPU trains."""
        if self.trainer is None or not self._runs_hook:
            return PixelFormat()
        pixels = PixelFormat()
        # A hook of a subclass gets uint8.
        is_by_worker = self._trains_on_cpu and self._has_own_hook and not self._config.decodes_on_device
        if is_by_worker and (split is None or split.patches is None):
            views = 1 if split is None else len(split.view_crops())
            workers, _ = self._config.workers_and_threads
            workers = workers if split is None or split.image_pattern is None else 0
            pixels = pixels_of(self.augment, is_train, workers, views)
        return moving(pixels, self.augment, split, training=is_train)

    @property
    def _runs_hook(self) -> bool:
        """Whether batches come to the hook of this class: one of a subclass has to call it."""
        name = "on_after_batch_transfer"
        kinds = type(self).__mro__[: type(self).__mro__.index(ShardDataModule)]
        hooks = (inspect.unwrap(vars(kind)[name]) for kind in kinds if name in vars(kind))
        names = [{*hook.__code__.co_names} if inspect.isfunction(hook) else set[str]() for hook in hooks]
        return all(name in each and each & {"super", "ShardDataModule"} for each in names)

    @property
    def _has_own_hook(self) -> bool:
        return type(self).on_after_batch_transfer is ShardDataModule.on_after_batch_transfer

    @property
    def _trains_on_cpu(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cpu"

    def _ranks(self) -> dict[str, Any]:
        """Return the arguments of a loader for its rank: those of the Trainer's strategy, or ``mesh``."""
        if self.trainer is None:
            return {"mesh": self._mesh}
        if self._mesh is not None:
            raise ValueError(
                f"mesh={self._mesh!r} is for loops without a Trainer, whose strategy has the data-parallel "
                "ranks: leave it out"
            )
        rank, world = rank_of_strategy(self.trainer.strategy)
        return {"rank": rank, "world": world}

    def _loaders_of(self, kind: str) -> Loader | list[Loader]:
        names = [name for name in self.splits if kind_of(name) == kind]
        loaders = [self._loader(name) for name in names]
        self._warn_of_learnt()
        return loaders[0] if names == [kind] else loaders

    def _loader(self, name: str) -> Loader:
        self._forget_ended()
        is_look = self._is_within_hook(kind_of(name))
        if not is_look:
            self._begin_run()
        self._adopt_train()
        is_train, mixture = kind_of(name) == "train", self._mixture if name == "train" else None
        split = self.splits.get(name) if mixture is None else next(iter(mixture.sources.values()))
        if split is None:
            raise ValueError(f"there is no {name} split: pass ShardDataModule({name}=Split(...))")
        if self.trainer is None and not self._is_prepared:
            self.prepare_data()  # Lightning calls it, a plain loop does not
        before = self._common
        self._refresh_if_needed(is_look)
        self._check_overlap()
        self._compare_classes()  # a plain loop does not call setup()
        if before.is_whole and before != self._common:
            self._check_reloaded(before)
        if is_train and getattr(self.trainer, "overfit_batches", 0) > 0:
            # Lightning warns that overfit_batches turns shuffling off, but does not do it.
            split = split.in_order()
            mixture = None if mixture is None else mixture.in_order()
        config = replace(self._config, drop_last=self._drop_last and is_train)
        if name == "predict" and config.on_error == "substitute":
            config = replace(config, on_error="leave_out")
        if mixture is not None:
            loader: Loader = MixtureLoader(
                mixture,
                config=config,
                sources={part: self.samples(f"train/{part}") for part in mixture.sources},
                name=name,
                **self._ranks(),
            )
        else:
            loader = Loader(
                split,
                training=is_train,
                keys=self._keys or name == "predict",
                config=config,
                source=None if split.streaming else self.samples(name),
                name=name,
                **self._ranks(),
            )
        loader.yields_gathered = self.trainer is not None and self._has_own_hook
        self._prepare_images(loader)
        loader.on_begin = partial(_begin_epoch, weakref.ref(self), weakref.ref(loader))
        self._keep(loader, is_only=self.trainer is not None and not is_look)
        is_plain = self.augment is not None and loader.pixels.dtype == torch.uint8
        if is_train and loader.ranks.is_first and is_plain and self._runs_hook:
            loader.unclaimed_notice = _NOT_AUGMENTED
        if self.trainer is not None:
            if self.augment is not None:
                loader.uint8_notice = ""  # augment= converts them
            has_helpers = any(config.workers_and_threads) and torch.get_num_threads() > 1
            if is_train and loader.ranks.is_first and self._trains_on_cpu and has_helpers:
                warn_about_spinning_threads()
            if self.trainer.world_size > 1:  # a Trainer of one device may run on one process of several
                loader.compare_over_ranks()
            elif is_train:
                warn_if_alone("Give Trainer(strategy='ddp', devices=...), with the processes of a node.")
        return loader

    def _prepare_images(self, loader: Loader) -> None:
        """Have a loader prepare the images of its next epochs for the module that ``augment`` is now."""
        loader.pixels = self._pixels(loader.training, loader.split)
        loader.prepares_for = self.augment
        loader.distorted_by = self.augment if loader.training else None
        for part, fetcher in loader.fetchers().items():
            check_transform_result(part, fetcher, self.augment)
            if loader.training:
                check_mixed_labels(part, fetcher, self.augment)

    def _adopt_train(self) -> None:
        """Train on what ``splits`` has now: a mixture, a split in place of it, or others of its sources.

        Raises ValueError for a source that the mixture does not have.
        """
        train: Any = self.splits.get("train")
        names = [name for name in self.splits if name.startswith("train/")]
        if isinstance(train, Mixture) or (train is not None and self._mixture is not None):
            for name in ["train", *names]:
                self.splits.pop(name, None)
            self._mixture = train if isinstance(train, Mixture) else None
            if isinstance(train, Mixture):
                for name, split in train.sources.items():
                    self.splits[f"train/{name}"] = split
            else:
                self.splits["train"] = train
        elif self._mixture is not None:
            sources: dict[str, Any] = {name.partition("/")[2]: self.splits[name] for name in names}
            if {*sources} != {*self._mixture.sources} or None in sources.values():
                raise ValueError(
                    f"splits has the sources {[*sources]} of the mixture of {self._mixture.names}: give "
                    'splits["train"] = tarpeg.Mixture(...)'
                )
            if any(sources[name] is not split for name, split in self._mixture.sources.items()):
                sources = {name: sources[name] for name in self._mixture.sources}
                self._mixture = replace(self._mixture, sources=sources)

    def _is_within_hook(self, kind: str) -> bool:
        """Whether a hook of the user makes a loader within a run, for a look, beside that of the run."""
        is_running = self.trainer is not None and not self._has_ended
        return is_running and hook_at_work(sys._getframe(2), self.trainer) not in ("", f"{kind}_dataloader")

    def _keep(self, loader: Loader, is_only: bool) -> None:
        """Keep a loader to close it; it replaces those of its split that are not used any more.

        These are all of it, if it is the only one of a Trainer, for reload_dataloaders_every_n_epochs;
        without a Trainer those that ended.
        """
        ended = set[Loader]()
        for other in self._in_use():
            is_unused = self.trainer is None and other.has_ended and not other.is_at_work
            if other.name == loader.name and (is_only or is_unused):
                other.close()
                ended.add(other)
        self._loaders = [each for each in self._loaders if each[0]() not in (None, *ended)]
        self._loaders.append((weakref.ref(loader), self._trainer_reference()))

    def _in_use(self) -> list[Loader]:
        """Return the loaders that live; of a Trainer that measures or works within another, its own."""
        has_all = self._has_all
        own = (found for found, of in self._loaders if has_all or of() is self.trainer)
        return [loader for found in own if (loader := found()) is not None]


def _loaders_at_work(trainer: lightning.Trainer) -> Any:
    """Return the loaders of the Trainer's stage, in a dict or list as they were given."""
    if trainer.training:
        return trainer.train_dataloader
    if trainer.validating or trainer.sanity_checking:
        return trainer.val_dataloaders
    return trainer.test_dataloaders if trainer.testing else trainer.predict_dataloaders


def _no_trainer() -> None:
    return None


def _begin_epoch(
    data_of: weakref.ref[ShardDataModule], loader_of: weakref.ref[Loader], is_train: bool = False
) -> None:
    """Note another ``augment``; and of ``train_dataloader()`` which one a loop without a Trainer reads."""
    data, loader = data_of(), loader_of()
    if data is None or loader is None:
        return
    data._forget_ended()
    if loader.prepares_for is not data.augment:
        data._prepare_images(loader)
    if is_train and data.trainer is None:
        data._train = data._previous = loader


def _batches_under_way(reference: weakref.ref[lightning.Trainer]) -> int:
    """Return how many batches the trainer has taken from the loader and not trained on.

    One within a step, for checkpoints that an exception or a signal writes; and one that Lightning fetches
    ahead of a stream without a length. The attributes are private: 0 in a version without them, and if
    ``training_step`` itself takes batches from an iterator, as many as it likes.
    """
    trainer = reference()
    loop: Any = None if trainer is None else trainer.fit_loop
    fetcher: Any = getattr(loop, "_data_fetcher", None)
    if not hasattr(fetcher, "fetched") or hasattr(fetcher, "iterator_wrapper"):
        return 0
    ahead, done = len(getattr(fetcher, "batches", ())), loop.epoch_loop.batch_progress.current.processed
    # Less than none: before a resumed epoch goes on, whose batches are not counted as fetched yet.
    return int(ahead + max(fetcher.fetched - ahead - done, 0))


def _batches_taken(trainer: lightning.Trainer, length: int) -> int:
    """Return the batches of an epoch that a Trainer takes of so many."""
    limit = trainer.limit_train_batches
    return min(length, limit) if isinstance(limit, int) else max(1, int(length * limit))


def _count_batches(trainer_of: weakref.ref[lightning.Trainer], loader_of: weakref.ref[Loader]) -> None:
    """Set the Trainer's number of batches to that of the epoch that was set.

    Lightning 2.6.6 counts those of the first epoch, and ends longer ones there; of shorter ones it never
    reaches the batch after which it would validate. Some of these attributes are private: nothing is changed
    in a version without them.
    """
    trainer, loader = trainer_of(), loader_of()
    loop: Any = None if trainer is None else trainer.fit_loop
    combined, fetcher = getattr(loop, "_combined_loader", None), getattr(loop, "_data_fetcher", None)
    if trainer is None or loader is None or combined is None or fetcher is None or not combined.limits:
        return
    limits = list(combined.limits)
    for place, each in enumerate(combined.flattened):
        if each is loader:
            limits[place] = _batches_taken(trainer, len(loader))
    if limits == combined.limits or not hasattr(combined, "_iterator"):
        return
    combined.limits = limits
    if combined._iterator is not None:  # changed in place: a new one would lose the states of others
        combined._iterator.limits = limits
        fetcher.length = sized_len(combined)
        fetcher.done = False
    loop.max_batches = math.inf if fetcher.length is None else fetcher.length
    interval = getattr(trainer, "val_check_interval", None)  # none for one in time
    if isinstance(interval, float) and isinstance(trainer.val_check_batch, int):
        trainer.val_check_batch = max(1, int(loop.max_batches * interval))


def _epoch_of_a_restart(trainer: lightning.Trainer, sampler: EpochCounter, epoch: int) -> int:
    """Return the epoch that begins; Lightning has chosen ``epoch`` for a restart.

    If ``max_steps`` is set, Lightning 2.6.6 restarts within an epoch that has finished, which then has no
    batches (``_FitLoop.restarting``); and it counts an epoch as finished in which ``max_steps`` ended the run
    before. It forgets a batch that was under way, of which it made no step, in the counts of the epoch alone,
    and takes the batch before the last for the last. These attributes are private: nothing is changed in a
    version without them.
    """
    loop = trainer.fit_loop
    progress = getattr(getattr(loop, "epoch_progress", None), "current", None)
    if progress is None or not hasattr(loop, "_restarting") or not hasattr(loop.epoch_loop, "restarting"):
        return epoch
    if loop.restarting and not sampler.has_state:
        warn_of_left_out(loop.epoch_loop)
    batches: Any = loop.epoch_loop.batch_progress
    done, is_over = batches.current.processed, progress.ready == progress.started == progress.processed
    if sampler.is_within and not loop.restarting and sampler.place[0] == epoch:
        warn(
            f"the checkpoint is at batch {sampler.place[1]} of epoch {epoch}, and the Trainer begins that "
            "epoch: the batches before do not come in it. Callbacks that train before the run, such as "
            "LearningRateFinder, forget where it was: leave them out of a run with ckpt_path=."
        )
    if sampler.is_unfinished and batches.is_last_batch:
        if is_over or done == trainer.num_training_batches:  # by limit_train_batches
            sampler.resume(epoch - 1, 0, is_end=True)
        elif done < trainer.num_training_batches:  # that batch was under way
            batches.is_last_batch = False
        # Otherwise the limit is smaller now, and Lightning makes one more step in that epoch.
    if loop.restarting:
        batches.total.ready -= batches.current.ready - done
        batches.total.started -= batches.current.started - done
    if not loop.restarting or not is_over or not progress.processed:
        return epoch
    if sampler.is_within:
        total: Any = loop.epoch_progress.total
        progress.processed -= 1
        total.processed -= 1
        return epoch - 1
    if progress.completed < progress.processed:
        loop.epoch_progress.increment_completed()  # as for an epoch that ended without max_steps
    loop._restarting = False
    loop.epoch_loop.restarting = False
    loop.reset_restart_stage()
    return epoch
