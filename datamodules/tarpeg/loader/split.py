"""Split: a data set, and how its samples are chosen, cropped and labelled."""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ..augment.policies import Policy
from ..errors import ShardError, check_integer, check_probability, explains_arguments, similar
from ..sampling.buckets import AspectBuckets
from ..sampling.crops import Crop, Progressive, crop_at, methods_of
from ..sampling.patches import Patches
from ..sampling.sampler import Blocks, Numbers, Sampler, checked_weights, is_fraction, shown, subset_ids
from ..shards.image_names import Pattern, check_images, listed, pattern_of
from ..shards.label import Form, Label, Labels, given_labels, labels_in_members
from ..shards.labels import Decode, Target, check_target, read_labels
from ..shards.opening import classes_of, open_source, places_of, reducers_of
from ..shards.paths import Paths, by_prefix, expand, identity, resolved
from ..shards.pillow import FILE_EXTENSIONS
from ..shards.source import Source, is_source
from ..shards.stream import Streaming, expand_urls
from ..shards.table_labels import form_of_table, streamed_table_labels, table_labels
from ..shards.tables import is_frame, local_path, read_table
from ..targets.classes import (
    Classes,
    agree,
    class_names as class_names_of,
    class_tables,
    classes_by_kind,
    numbered,
)
from ..targets.protocols import check_targets, has_flat, type_names
from ..targets.reduced import in_pixels, refuse_reduced
from ..targets.steps import have_rectangles, least_boxes
from ..transforms.pipeline import Pipeline, Uncropped, pipeline_of
from ..transforms.plan import Plan, plan_of
from ..transforms.torchvision import Transform, name_of, shown_step
from .carried import carrier_of
from .conditions import SizeAndCrop, check_conditions, names_of
from .config import DecodeOn, LoaderConfig
from .many_checks import check_many
from .pasting import check_pasted
from .text import Text, check_texts, texts_of

# The names of ops.decode, which loads the native library.
Interpolation = Literal["bilinear", "bicubic", "lanczos", "box", "area", "nearest", "nearest-exact"]


_OF_DATA = [*(field.name for field in fields(LoaderConfig)), "num_workers", "augment", "keys", "prepare"]

_OF_CLASSES = ("classes.json", "manifest.json")  # files beside shards
_MOST_SHARDS = 64  # whose objects are compared with the names of classes


class _Reader(NamedTuple):
    """What reads the labels of a source, for a split, a hash of its subset, and the stamp of its table."""

    split: Any
    chosen: bytes
    labels: Labels | None
    stamp: tuple[int, int] | None


_READERS: WeakKeyDictionary[Source, _Reader] = WeakKeyDictionary()


@explains_arguments(
    {name: f"ShardDataModule has {name.removeprefix('num_')}=" for name in _OF_DATA}
    | {"size": "give it to a crop, such as crop=RandomResizedCrop(224)"}
)
@dataclass(frozen=True)
class Split:
    """Shards or another source, and how their samples are chosen, cropped and labelled.

    Args:
        shards: A folder, path, glob, brace pattern ("train-{000..009}.tar") or a list of these; a folder or
            glob of images without labels; or a ``Source``. A folder with both train-* and val-* is an error.
        crop: ``RandomResizedCrop``, ``RandomCrop``, ``CenterCrop`` or ``Whole``, or one of these in
            ``Progressive``; a list is one crop per view.
        flip: Probability, 0 to 1, of mirroring left to right.
        shuffle: True, a new permutation per epoch; False; or "blocks" (or ``Blocks``), for disks with slow
            random access. Default: True for training, otherwise False.
        target: The integer label: the extension of a member, "cls"; a field of a JSON member, such as
            "json:object.0.id" (numbers and lists of them are float32); a list of n of these, for ``[B, n]``;
            None: labels are -1. A ``Label`` for names of classes, several classes, and missing labels.
        subset: Numbers of samples (list, array or .npy file), or a fraction up to 1, the same for every seed.
        weights: One number per sample, as a list, array or .npy file. An epoch keeps its length, and each
            sample comes as often as its share, rounded down or up, every time with another crop.
        views: Number of crops of each image; images are then ``[views, B, 3, H, W]``, see ``Batch``.
        members: Extensions of members that are passed to ``decode``; "txt?" may be missing. Or captions: a
            ``Text``, or a dict of them by name; also of ``SizeAndCrop``, SDXL's conditions.
        decode: Function ``decode(key, {extension: bytes})``, whose results are in ``extra`` of
            ``ExtraBatch``. With worker processes it must pickle. Nothing is unpickled from a shard.
        streaming: True or ``Streaming``: read shards that are not local as streams, with weaker guarantees.
        interpolation: "bilinear", "bicubic", "lanczos", "box" (or "area"), "nearest" or "nearest-exact".
        fidelity: "fast", or "exact": within one level of torchvision at every pixel, see ``decode_batch``.
        channels: 3, RGB; or 1, gray, decoded faster, for ``Augment`` with one mean and std.
        repeats: Repeated augmentation, for training: each sample comes so many times in a row. An epoch keeps
            its length. Not with ``weights``, ``streaming`` or ``shuffle=False``.
        targets: A ``Target``, or a dict of them by name, in place of the label: what is read from a sample
            and moved as its image is; the fields of tarpeg's targets have names of their own. Batches are
            ``TargetBatch``. With a list ``image=``, they are those of
            the first image, and ``targets`` has them as each of the images shows them.
        labels: A table with the labels: the path of a CSV or Parquet file, or a DataFrame; ``target`` are
            columns of it. A column of names is a class, one of whole numbers int64, others float32.
        key: Column of ``labels`` with the names of the images: keys or paths, with or without extension and
            folders. Each image has one row; rows of others are left out.
        transform: torchvision's ``v2.Compose([...])`` or any callable of a uint8 tensor ``[3, H, W]``, in
            place of ``crop`` and ``flip`` or after them; a list is one per view. See ``plan()``.
        image: Samples with several images. A list of extensions, ["left.jpg", "right.jpg"]: they are views,
            in that order. A pattern, "*.jpg": all that match, in natural order, as ``RaggedImages``.
        shared_box: Whether the images of a sample show the same part, with one flip: the box of the first, as
            shares of height and width. False: each draws its own. Default: True for a list.

    Raises:
        ValueError: For an argument out of range.
        ShardError: When the split is opened, if a shard is missing, damaged or has no labels.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.RandomResizedCrop(96), flip=0.5, subset=0.5)
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=8, workers=0)
        >>> images, labels = next(iter(data.train_dataloader()))
        >>> images.shape, images.dtype
        (torch.Size([8, 3, 96, 96]), torch.uint8)
    """

    shards: Paths | Source
    crop: Crop | Progressive | Sequence[Crop | Progressive] | None = None
    flip: float = 0.0
    shuffle: bool | str | Blocks | None = None
    target: Target | Label = "cls"
    subset: float | Numbers | None = None
    weights: Numbers | None = None
    views: int = 1
    members: Sequence[str] | Text | SizeAndCrop | Mapping[str, Text | SizeAndCrop] = ()
    decode: Decode | None = None
    streaming: bool | Streaming = False
    interpolation: Interpolation = "bilinear"
    fidelity: Literal["fast", "exact"] = "fast"
    channels: Literal[1, 3] = 3
    repeats: int = 1
    transform: Sequence[Transform] | Transform | None = None
    targets: Any = None  # a Target or a dict of them: jsonargparse would compare annotations of methods
    labels: Any = None  # a path or a DataFrame, of whatever library
    key: str | None = None
    image: Sequence[str] | str | None = None
    shared_box: bool | None = None

    def __post_init__(self) -> None:
        shards: Any = self.shards
        if isinstance(shards, Iterator):  # Path.glob(); it is read more than once
            object.__setattr__(self, "shards", [*shards])
        if not _may_be_shards(self.shards):
            raise ValueError(
                f"shards={shown(self.shards)} must be a folder, a path, a glob, a brace pattern, a list of "
                "these, or a tarpeg.Source"
            )
        check_probability("flip", self.flip)
        if self.image is not None:
            check_images("image", self.image)
        self._check_views()
        self._check_steps()
        self._check_sizes()
        check_many(self)
        if (mode := self.interpolation) not in (modes := get_args(Interpolation)):
            near = similar(getattr(mode, "value", mode), modes)
            raise ValueError(f"interpolation={mode!r} must be one of {', '.join(map(repr, modes))}{near}")
        if self.fidelity not in ("fast", "exact"):
            raise ValueError(f"fidelity={self.fidelity!r} must be 'fast' or 'exact'")
        if not (self.shuffle in (None, True, False, "blocks") or isinstance(self.shuffle, Blocks)):
            raise ValueError(f"shuffle={self.shuffle!r} must be True, False, 'blocks' or tarpeg.Blocks(...)")
        if repr(self.channels) not in ("1", "3"):  # True and 1.0 equal 1
            raise ValueError(f"channels={self.channels!r} must be 3, RGB, or 1, gray")
        if self.channels == 1 and self.transform is not None:
            raise ValueError(
                "channels=1 has no transform=, which takes RGB: end the list with v2.Grayscale()"
            )
        self._check_repeats()
        self._check_buckets()
        self._check_patches()
        self._check_target()
        is_fraction(self.subset)  # raises if out of range
        self._check_members()
        if self.streaming:
            self._check_streaming()
        if self.targets is not None:
            self._check_targets()
        if self.has_parts:
            self._check_parts()
        for crop in self.all_crops():
            if methods_of(crop).boxes_among and not have_rectangles(self.targets):
                raise ValueError(
                    f"crop={crop!r} depends on the boxes of an image: give targets=tarpeg.Boxes(...), or a "
                    "list or dict with it"
                )

        together = [views for views in self.view_groups if len(views) > 1 and not self.shares_box]
        shared = [self.view_crops()[views[0]] for views in together]
        for each, epoch in product(shared, self.crop_epochs):
            if methods_of(crop := crop_at(each, epoch)).padded_size:
                raise ValueError(
                    f"crop={crop!r} draws a size for each view, and these views have one: leave views= out, "
                    "or give ScaleJitter, whose size is fixed"
                )

    def open(self, *, is_first: bool = True) -> Source:
        """Index the shards, or list the images. Raises ``ShardError`` if any is missing or damaged.

        ``is_first``: Whether this process logs what all processes would log.
        """
        target = None if self.labels is not None else self.target
        source = open_source(self.shards, target, is_first=is_first, several=self.image is not None)
        self.check_not_reduced()
        return source

    def check_not_reduced(self) -> None:
        """Raise CacheError for targets in pixels, of a cache whose codec has reduced the images."""
        if in_pixels(self.targets):
            for folder, codec in reducers_of(self.shards).items():
                refuse_reduced(self.targets, codec, f"the cache {folder}")

    def check_labels(self, source: Source) -> None:
        """Raise ShardError if the first sample has no label, before a loss meets it, or a table is wrong.

        Integers of a ``subset`` are not checked.
        """
        if self.target is None or not len(source):
            return
        if self.labels is None and self.subset is None and not source.has_labels:
            raise ShardError(
                f"shards={self.shards!r} has only images, such as {source.keys([0])[0]!r}, which have no "
                "labels. Pack a folder with a sub-directory per class with tarpeg.build_cache(...) or "
                "tarpeg.FolderShards(...); give a table, Split(labels=...); to train without labels, give "
                "Split(target=None)."
            )
        labels = self.label_reader(source)
        if labels is None and self.subset is None:
            target: Any = self.target
            read_labels(source, np.zeros(1, np.int64), target)

    def label_reader(self, source: Source | None) -> Labels | None:
        """Return what reads the labels of a source, made once for a subset; None for plain integers.

        Args:
            source: The opened samples; None for a stream.

        Raises:
            ShardError: For a table that cannot be read or has no label of a sample, and for a first sample
                with a wrong label.
        """
        target: Any = self.target
        label = target if isinstance(target, Label) or target is None else Label(target)
        if label is None or (source is not None and not len(source)):
            return None
        ids, chosen = None, b""
        if source is not None and self.subset is not None and not is_fraction(self.subset):
            ids = subset_ids(self.subset, len(source))  # a file or an array may be another now
            chosen = b"" if ids is None else hashlib.blake2b(ids.tobytes()).digest()
        known = None if source is None else _READERS.get(source)
        if known is not None and known.split is not self:
            known = None
        if known is not None and known.chosen == chosen:
            return known.labels
        if source is not None and ids is None:
            ids = subset_ids(self.subset, len(source))
        found: Labels | None
        stamp: tuple[int, int] | None = None
        if self.labels is not None:
            stamp = None if is_frame(self.labels) else _stamp(local_path(self.labels))
            if known is not None and known.stamp != stamp:  # other splits have labels of the earlier one
                raise ShardError(
                    f"labels={os.fspath(self.labels)!r} has changed since it was read, and subset= too: "
                    "call data.teardown(), which reads both again, or make a new Split"
                )
            table = read_table(self.labels, self.key, label.places)
            vars(self)["_form_of_table"] = form_of_table(table, label)  # as it is now
            if source is None:
                return streamed_table_labels(table, label)
            found = table_labels(table, label, source, ids)
        elif source is None:
            return given_labels(label) if label is target else None
        else:
            first = 0 if ids is None else int(ids[0])
            found = labels_in_members(source, first, label, is_given=label is target)
        _READERS[source] = _Reader(self, chosen, found, stamp)
        return found

    @property
    def dtype(self) -> torch.dtype | None:
        """Type of the images, as far as it is known before a transform in Python runs; otherwise None."""
        last = self.pipelines[0]
        if last.levels is not None:
            return last.levels.dtype
        return None if last.runs_python else torch.uint8

    def places(self) -> dict[Hashable, str]:
        """Return the paths and URLs of the shards or images by ``identity``. Raises as ``open``."""
        if self.streaming:
            return {identity(name): resolved(name) for name in self.urls()}
        return places_of(self.shards)

    def urls(self) -> tuple[str, ...]:
        """URLs and paths of the shards of ``streaming``. Raises ``ShardError`` as ``open``."""
        return expand_urls(cast("Paths", self.shards))

    def classes(self) -> list[str] | None:
        """Names of the classes by label, from ``manifest.json`` or ``classes.json`` beside the shards.

        With ``targets``, those of the objects and masks, or of the table that their ``labels=`` is; or those
        of ``target``, or of the column of ``labels``. None without these, for another ``target`` than "cls",
        for streams and images, and if one folder of shards has no names. Raises ``ShardError`` as ``open``,
        and if two folders have other names for a label.
        """
        if self.labels is not None and self.target is not None:
            return self._label.names or self._form_of_table.classes
        if isinstance(self.target, Label):
            return self.target.names
        if self.targets is not None:
            return self._classes_of_targets
        return classes_of(self.shards) if self.target == "cls" and not self.streaming else None

    @cached_property
    def _classes_of_targets(self) -> list[str] | None:
        assert self.targets is not None
        tables = class_tables(self.targets)
        if tables:
            names = class_names_of(tables)
            return names if names and all(agree(names, each.seen) for each in self._kinds.values()) else None
        if tables is None or self.streaming:
            return None
        if not self._kinds:
            return classes_of(self.shards)
        found = [each.names for each in self._kinds.values() if not each.are_others]
        return found[0] if found and all(found) else None

    @cached_property
    def _kinds(self) -> dict[str, Classes]:
        """The classes of ``targets``."""
        if self.targets is None:
            return {}
        if self.streaming:
            return classes_by_kind(self.targets, lambda: None, None)
        sources = None if is_source(self.shards) else functools.cache(self._first_sources)
        return classes_by_kind(self.targets, self._stored_classes, sources)

    def _stored_classes(self) -> list[str] | None:
        """Return the names beside the shards; [] if two folders have others, and tables can make them one."""
        assert self.targets is not None
        try:
            return classes_of(self.shards)
        except ShardError:
            if not class_tables(self.targets):
                raise
            return []

    def _first_sources(self) -> list[Source]:
        """Open some shards of each group that was packed at once."""
        assert not is_source(self.shards)
        several = self.image is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # opened again, they warn
            return [
                open_source(part[:_MOST_SHARDS], None, is_first=False, several=several)
                for part in by_prefix(expand(self.shards, is_split=True))
            ]

    def class_numbers(self) -> dict[str, Mapping[str, int]]:
        """Return the label of each class by its name, also if not every label has one.

        Those of ``labels``, and apart from these those of targets with other classes, such as masks beside
        boxes: "mask". Only what is known. Raises as ``classes``.
        """
        if self.labels is not None and self.target is not None:
            numbers = self._label.numbers or self._form_of_table.numbers
            found = {"labels": numbered(self.classes()) or numbers}
        elif isinstance(self.target, Label):
            found = {"labels": numbered(self.target.names) or self.target.numbers}
        elif self.targets is None:
            found = {"labels": numbered(self.classes())}
        else:
            found = {kind: classes.numbers for kind, classes in self._kinds.items()}
            if not found:
                found = {"labels": numbered(self.classes())}
        return {kind: numbers for kind, numbers in found.items() if numbers}

    def is_sure_of(self, kind: str) -> bool:
        """Whether the numbers of a kind of classes are stated, not only seen in masks."""
        return kind not in self._kinds or self._kinds[kind].is_sure

    @property
    def has_one_numbering(self) -> bool:
        """Whether the masks of all shards have the same labels, as far as they show them."""
        return all(each.is_one for each in self._kinds.values())

    def merged_labels(self, kind: str) -> set[int]:
        """Return the labels that ``targets`` give to several values: objects with other names have them."""
        return self._kinds[kind].merged if kind in self._kinds else set()

    @property
    def mask_table(self) -> Mapping[Any, int] | None:
        """Labels of masks by the number in their files; None if they are as in the files."""
        return self._kinds["mask"].table if "mask" in self._kinds else None

    @property
    def label_places(self) -> list[str]:
        """Where the numbers of a label are, in their order; empty without labels."""
        return [] if self.target is None else self._label.places

    @property
    def _label(self) -> Label:
        target: Any = self.target
        return target if isinstance(target, Label) else Label(target)

    @cached_property
    def _form_of_table(self) -> Form:
        return form_of_table(read_table(self.labels, self.key, self._label.places), self._label)

    def forget(self) -> None:
        """Forget what was read of classes: files may have changed when the split is opened next."""
        for name in ("_classes_of_targets", "_kinds", "_form_of_table"):
            vars(self).pop(name, None)

    def signature(self) -> Any:
        """Return what changes if a local file of the split does; None if that is not known.

        Raises ShardError as ``open``.
        """
        if self.streaming or is_source(self.shards) or not isinstance(self.labels, (str, Path, type(None))):
            return None
        places = sorted(self.places().values())
        # Images are opened when they are read.
        shards = {Path(name) for name in places if name.rpartition(".")[2].lower() not in FILE_EXTENSIONS}
        beside = {folder / name for folder in {file.parent for file in shards} for name in _OF_CLASSES}
        table = set() if self.labels is None else {local_path(self.labels)}
        return places, [(str(file), _stamp(file)) for file in sorted(shards | beside | table)]

    def in_order(self) -> Split:
        """Return this split in order and without ``weights``, to overfit: each epoch has the same samples.

        With ``repeats`` too, which a split of the user's own refuses: there it would be a mistake.
        """
        ordered = copy(self)
        object.__setattr__(ordered, "shuffle", False)
        object.__setattr__(ordered, "weights", None)
        return ordered

    def sampler(self, source: Source, seed: int, shuffle: bool) -> Sampler:
        """Return the sampler of this split; ``shuffle`` is the default of the split's own setting."""
        wanted = shuffle if self.shuffle is None else self.shuffle
        subset = subset_ids(self.subset, len(source))
        weights = checked_weights(self.weights, len(source), subset)
        order = Blocks() if isinstance(wanted, str) else wanted
        return Sampler(
            samples=len(source),
            seed=seed,
            shuffle=order,
            subset=subset,
            weights=weights,
            repeats=self.repeats,
        )

    def view_crops(self) -> tuple[Crop | Progressive, ...]:
        """Return the crop of each view, which may be the first step of its transform."""
        return tuple(pipeline.crop for pipeline in self.pipelines)

    @cached_property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """How each view is made."""
        given = (self.crop, self.transform, self.image_names)
        views = max(self.views, *(len(each) for each in given if isinstance(each, Sequence)), 1)
        crops = self.crop if isinstance(self.crop, Sequence) else (self.crop,) * views
        transforms = self.transform if isinstance(self.transform, Sequence) else (self.transform,) * views
        known: dict[tuple[int, int], Pipeline] = {}  # a transform of several views is read once
        for crop, transform in zip(crops, transforms, strict=True):
            if (id(crop), id(transform)) not in known:
                least = least_boxes(self.targets)
                pipeline = pipeline_of(transform, crop, self.flip, self.interpolation, least)
                known[id(crop), id(transform)] = pipeline
        return tuple(
            known[id(crop), id(transform)] for crop, transform in zip(crops, transforms, strict=True)
        )

    @cached_property
    def image_names(self) -> tuple[str, ...]:
        """The extensions of a list ``image=``; empty for a pattern, and without it."""
        return () if self.image is None else listed(self.image)

    @cached_property
    def image_pattern(self) -> Pattern | None:
        """The pattern of ``image=``; None for a list, and without it."""
        return None if self.image is None else pattern_of(self.image)

    @property
    def shares_box(self) -> bool:
        """``shared_box``, or its default."""
        return bool(self.image_names) if self.shared_box is None else self.shared_box

    @cached_property
    def runs_python(self) -> bool:
        """Whether samples may be processed in Python: all, or those that are smaller than their crop."""
        return any(pipeline.runs_python or pipeline.least for pipeline in self.pipelines)

    @cached_property
    def has_parts(self) -> bool:
        """Whether images are made of several samples, in some epoch."""
        return any(methods_of(crop).partners for crop in self.all_crops())

    def all_crops(self) -> list[Crop]:
        """Return the crops of all views in all epochs."""
        return [crop_at(crop, epoch) for epoch in self.crop_epochs for crop in self.view_crops()]

    @property
    def crop_epochs(self) -> list[int]:
        """The epochs from which crops change, and 0."""
        return sorted({0}.union(*(crop.sizes for crop in self.view_crops() if isinstance(crop, Progressive))))

    @cached_property
    def is_decoded_only(self) -> bool:
        """Whether the decoder writes the results of all views, apart from images smaller than their crop."""
        has_more = any(pipeline.policies or pipeline.runs_python for pipeline in self.pipelines)
        return len({pipeline.levels for pipeline in self.pipelines}) == 1 and not has_more

    def plan(self, *, measure: bool = True, decode: DecodeOn = "auto") -> Plan:
        """Return what is done natively and what in Python, with its cost; ``print(split.plan())``.

        Args:
            measure: Run the steps in Python on a synthetic image, and time them.
            decode: That of the loader: where images are decoded.
        """
        carrier = carrier_of(self.targets)
        example = carrier.example if carrier else None
        return plan_of(
            self.pipelines,
            self.fidelity,
            self.channels,
            measure=measure,
            decodes_on_device=decode == "device",
            example=example,
        )

    @cached_property
    def view_groups(self) -> list[list[int]]:
        """Numbers of the views of each size, sizes in the order of their first view.

        The groups are the same in all epochs; the sizes may change.
        """
        return _groups(self.view_crops(), 0)

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions of ``members``; empty for captions."""
        return () if self.texts or self.conditions else tuple(cast("Sequence[str]", self.members))

    @cached_property
    def texts(self) -> dict[str, Text]:
        """The ``Text``s of ``members`` by name, "" for a single one; empty for extensions."""
        return texts_of(self.members)

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """The names of ``SizeAndCrop`` in ``members``, "" if it is alone; empty without."""
        return names_of(self.members)

    @property
    def buckets(self) -> AspectBuckets | None:
        """The ``AspectBuckets`` of the crops; None without."""
        return next((crop for crop in self.view_crops() if isinstance(crop, AspectBuckets)), None)

    def _check_buckets(self) -> None:
        crop = self.buckets
        if crop is None:
            return
        if any(each != crop for each in self.view_crops()):
            raise ValueError(
                f"crop={self.crop!r}: a batch has one shape, that of its bucket, so that all views need the "
                "same AspectBuckets"
            )
        given = {"weights": self.weights is not None, "repeats": self.repeats > 1}
        for name, is_given in {**given, "streaming": bool(self.streaming)}.items():
            if is_given:
                raise ValueError(
                    f"{name}={shown(getattr(self, name))} and crop={crop!r}: buckets need the size of each "
                    "sample before an epoch begins, and each sample once per epoch"
                )

    @cached_property
    def patches(self) -> Patches | None:
        """The ``Patches`` of the crops; None without."""
        return next((crop for crop in self.view_crops() if isinstance(crop, Patches)), None)

    def _check_patches(self) -> None:
        crop = self.patches
        if crop is None:
            return
        refused = {
            "weights": self.weights is not None,
            "repeats": self.repeats > 1,
            "streaming": bool(self.streaming),
            "transform": self.transform is not None,
            "targets": self.targets is not None,
            "views": len(self.pipelines) > 1,
        }
        for name, is_given in refused.items():
            if is_given:
                raise ValueError(
                    f"{name}={shown(getattr(self, name))} and crop={crop!r}: sequences of patches are whole "
                    "images, one view of each sample per epoch, and nothing else can move with them"
                )

    def _check_repeats(self) -> None:
        repeats = self.repeats
        check_integer("repeats", repeats, 1)
        if repeats == 1:
            return
        if self.weights is not None:
            raise ValueError(
                f"repeats={repeats!r} and weights={shown(self.weights)}: both set how often a sample comes; "
                "give one of them"
            )
        if self.streaming:
            raise ValueError(f"repeats={repeats!r} needs an index, which streaming=True does not have")
        if self.shuffle is False:
            raise ValueError(
                f"repeats={repeats!r} needs shuffle=True or 'blocks': without, every epoch has the same "
                f"1/{repeats} of the samples"
            )

    def _check_target(self) -> None:
        """Check target=, labels= and key=."""
        target: Any = self.target
        if self.labels is None:
            if self.key is not None:
                raise ValueError(f"key={self.key!r} is a column of labels=: give it a table")
            check_target(target.place if isinstance(target, Label) else target)
            if isinstance(target, Label) and self.streaming and target.kind is None:
                raise ValueError(f"target={target!r} needs kind= for a stream, which has no first sample")
            return
        if not isinstance(self.labels, (str, os.PathLike)) and not is_frame(self.labels):
            raise ValueError(
                f"labels={shown(self.labels)} must be the path of a CSV or Parquet file, or a DataFrame"
            )
        if self.targets is not None:
            raise ValueError("labels= and targets= are both given: a batch has targets or labels")
        if not isinstance(target, Label) and target is not None:
            Label(target)  # raises ValueError

    def _check_members(self) -> None:
        """Check members= and decode=."""
        members: Any = self.members
        check_texts(members, SizeAndCrop)
        is_named = bool(self.texts or self.conditions)
        if self.conditions:
            check_conditions(self)
        is_list = isinstance(members, Sequence) and not isinstance(members, str)
        names = members if is_list else ["?"]
        if not is_named and not all(isinstance(n, str) and n not in ("?", ".?") for n in names):
            raise ValueError(
                f"members={members!r} must be a list of extensions: ['json', 'txt?']; or, for captions, a "
                "tarpeg.Text(...) or a dict of them by name"
            )
        if self.decode is not None and (is_named or not (callable(self.decode) and members)):
            raise ValueError(
                f"decode={self.decode!r} must be a function (key, {{extension: bytes}}), and members= must "
                "list the extensions that are passed to it. Where images are decoded is the decode= of "
                "ShardDataModule and Loader"
            )

    def _check_targets(self) -> None:
        check_targets(self.targets)
        if isinstance(self.target, Label) or self.target not in ("cls", None):
            raise ValueError(
                f"targets={self.targets!r} and target={self.target!r}: a batch has targets or labels. Give "
                "the label as one of the targets: targets={'label': ..., 'boxes': ...}"
            )
        if self.members:
            raise ValueError(
                f"targets={self.targets!r} and members={self.members!r}: the read() of a target reads members"
            )
        for remedy in (pipeline.geometry_remedy for pipeline in self.pipelines):
            is_carried = carrier_of(self.targets) is not None
            if remedy and has_flat(self.targets) and not is_carried:  # others may not depend on the geometry
                raise ValueError(
                    f"targets={type_names(self.targets)} cannot follow their images: {remedy}. "
                    "split.plan() of a split without targets= shows the steps"
                )
        object.__setattr__(self, "target", None)  # no labels are read

    def _check_parts(self) -> None:
        """Check a split whose images are made of several samples."""
        crop: Any = next(crop for crop in self.all_crops() if methods_of(crop).partners)
        if len(self.pipelines) > 1:
            raise ValueError(f"crop={crop!r} is for one view, not {len(self.pipelines)}")
        if self.runs_python:
            raise ValueError(
                f"crop={crop!r} takes no steps of transform= in Python behind it: leave them out, or give "
                "those that Augment or a policy has. split.plan() shows the steps"
            )
        for each in self.all_crops():
            if methods_of(each).is_pasted:
                check_pasted(each, self.targets)
        if self.texts:
            raise ValueError(f"crop={crop!r} shows several samples, and members= are captions of one")
        if self.targets is None and self.target is not None:
            raise ValueError(
                f"crop={crop!r} shows several samples, and target={self.target!r} is the label of one: give "
                "targets=tarpeg.Boxes(...), or target=None; Augment(mix=tarpeg.Mix(...)) mixes labels"
            )

    def _check_streaming(self) -> None:
        for name, value in (("subset", self.subset), ("weights", self.weights)):
            if value is not None:
                raise ValueError(f"{name}={shown(value)} needs an index, which streaming=True does not have")
        if not isinstance(self.shuffle, (bool, type(None))):
            raise ValueError(
                f"shuffle={self.shuffle!r} must be True or False: streams are shuffled within a buffer"
            )
        if is_source(self.shards):
            raise ValueError(
                f"streaming={self.streaming!r} is for shards, and shards={self.shards!r} is read by number: "
                "leave streaming out"
            )
        if not isinstance(self.streaming, (bool, Streaming)):
            raise ValueError(f"streaming={self.streaming!r} must be True, False or tarpeg.Streaming(...)")

    def _check_views(self) -> None:
        """Check views=, crop=, transform= and what belongs to them, before the pipelines are made."""
        check_integer("views", self.views, 1)
        for name, given in (("crop", self.crop), ("transform", self.transform)):
            if isinstance(given, str):
                raise ValueError(
                    f"{name}={given!r} must be an object, such as RandomResizedCrop(224), not its name"
                )
        if self.crop is None and self.transform is None:
            raise ValueError(
                "crop=None: give crop=RandomResizedCrop(224), or transform=, torchvision's for example"
            )
        names = self.image_names
        if names and self.views != 1:
            raise ValueError(
                f"views={self.views!r} and image={self.image!r}: the images of a sample are its views; leave "
                "views= out"
            )
        count = len(names) or self.views
        for name, given in (("crop", self.crop), ("transform", self.transform)):
            if not isinstance(given, Sequence):
                continue
            if not given:
                raise ValueError(
                    f"{name}={given!r} is empty: give a {name}, or one per view: [RandomResizedCrop(224)] * 2"
                )
            if count not in (1, len(given)):
                views = f"views={count!r}" if count == self.views else f"crop= has {count} crops"
                views = f"image= has {count} images" if count == len(names) else views
                raise ValueError(f"{views}, but {name}= has {len(given)} {name}s: give one per view")
            count = len(given)
        if self.crop is None and self.flip:
            raise ValueError(
                f"flip={self.flip!r} belongs to crop=. Give it in transform=, as RandomHorizontalFlip; or "
                "give crop="
            )
        if self.crop is None and self.interpolation != "bilinear":
            raise ValueError(
                f"interpolation={self.interpolation!r} belongs to crop=. Give it in transform=, as "
                "interpolation= of its crop or Resize; or give crop="
            )

    def _check_steps(self) -> None:
        """Check what the pipelines were made of."""
        if self.crop is None and isinstance(self.transform, Sequence) and len(self.transform) > 1:
            for step, pipeline in zip(self.transform, self.pipelines, strict=True):
                is_step = isinstance(step, Policy) or name_of(step) not in ("", "Compose")
                if is_step and isinstance(pipeline.crop, Uncropped):
                    raise ValueError(
                        f"transform=[...] has one transform per view, and {shown_step(step)} would be a view "
                        "of whole images. For one pipeline of these steps give transform=v2.Compose([...]); "
                        "for such a view, v2.Compose of this step"
                    )
        names = {name_of(step) for pipeline in self.pipelines for step in pipeline.python}
        for name in sorted(names & {"MixUp", "CutMix"}):
            raise ValueError(
                f"transform= has {name}, which mixes the images of a batch: leave it out, and give the data "
                "module augment=tarpeg.Augment(mix=tarpeg.Mix(classes=10))"
            )
        if len({(each.interpolation, each.antialias) for each in self.pipelines}) > 1:
            raise ValueError(
                "transform= has views with several kinds of interpolation= or antialias=: give all the same"
            )

    def _check_sizes(self) -> None:
        """Check the crops of all views in all epochs."""
        epochs = {0}
        for crop in self.view_crops():
            if isinstance(crop, Progressive):
                epochs |= set(crop.sizes)
            elif not all(hasattr(crop, name) for name in ("size", "draws", "boxes")):
                hint = " Transforms of torchvision belong in transform=" * bool(name_of(crop))
                raise ValueError(
                    f"crop={crop!r} must have size, draws and boxes(sizes, draws); for example "
                    f"RandomResizedCrop(224).{hint}"
                )
        for epoch in sorted(epochs):
            for crop in self.view_crops():
                _check_size(crop_at(crop, epoch))
            if (groups := _groups(self.view_crops(), epoch)) != (first := self.view_groups):
                raise ValueError(
                    f"crop={self.crop!r}: the views of one size are {first} in epoch 0 and {groups} in epoch "
                    f"{epoch}, but must be the same in all epochs. Change their sizes together."
                )


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _may_be_shards(given: Any) -> bool:
    """Whether the type is one of ``shards=``, and not an empty string; an empty list is found by ``open``."""
    if isinstance(given, (str, os.PathLike)) or is_source(given):
        return not isinstance(given, str) or bool(given)
    is_list = isinstance(given, Iterable) and not isinstance(given, (bytes, bytearray))
    return is_list and (
        not isinstance(given, Sequence) or all(isinstance(each, (str, os.PathLike)) for each in given)
    )


def _groups(crops: Sequence[Crop | Progressive], epoch: int) -> list[list[int]]:
    """Return the numbers of the views of each size.

    Crops whose size depends on the images are in one group if they are equal.
    """
    groups: list[tuple[object, list[int]]] = []
    for view, each in enumerate(crops):
        crop = crop_at(each, epoch)
        key = tuple(crop.size), crop if methods_of(crop).has_many_sizes else None
        for other, numbers in groups:
            if other == key:
                numbers.append(view)
                break
        else:
            groups.append((key, [view]))
    return [numbers for _, numbers in groups]


def _check_size(crop: Crop) -> None:
    """Raise ValueError for a crop of a user's own without a size; other crops check theirs."""
    try:
        height, width = (operator.index(side) for side in crop.size)
        if min(height, width) >= 1:
            return
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"crop={crop!r} has size={crop.size!r}: it must be (height, width), positive integers, in pixels"
    )
