"""Split: a data set, and how its samples are chosen, cropped and labelled."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import warn
from ..sampling.crops import Crop, Progressive, crop_at
from ..sampling.sampler import Blocks, Numbers, Sampler, checked_weights, is_fraction, shown, subset_ids
from ..shards.folder import find_images
from ..shards.labels import Decode, Samples, Target, check_target
from ..shards.manifest import stored_classes
from ..shards.mapped import Shards
from ..shards.paths import Source, expand, identity, resolved
from ..shards.stream import Streaming, expand_urls

# The names of ops.decode, which loads the native library.
Interpolation = Literal["bilinear", "bicubic", "lanczos", "box", "area", "nearest", "nearest-exact"]


@dataclass(frozen=True)
class Split:
    """Shards, and how their samples are chosen, cropped and labelled.

    ``shards``: a folder, a path, a glob, a brace pattern ("train-{000..009}.tar") or a list of these; or a
    folder of images, searched with its sub-folders, or a glob of images (see ``UnlabelledImages``).
    ``crop``: ``RandomResizedCrop``, ``RandomCrop``, ``CenterCrop`` or ``Whole``, or one of these in
    ``Progressive``.
    ``flip``: probability, 0 to 1, of mirroring left to right.
    ``interpolation``: how a crop is resized, by torchvision's names: "bilinear", "bicubic", "lanczos" or
    "box" (also named "area"), all antialiased, "nearest" or "nearest-exact" (the sample under the centre of
    each pixel, as in Pillow and DALI). ``fidelity``: "fast", or "exact", within one level of torchvision at
    every pixel, for evaluations that are compared with it; see ``decode_batch``.

    ``shuffle``: True, a new permutation per epoch; False; or "blocks", for disks with slow random access
    (``tarpeg.Blocks`` sets the sizes of the blocks). Default: True for training, otherwise False.

    ``target``: the integer label: the extension of a member, "cls"; a field of a JSON member, "json:label" or
    "json:object.0.id"; a list of n such names, for labels ``[B, n]``; or None if there is none (labels are
    then -1).

    ``subset``: a part of the samples: a list, array or .npy file of sample numbers, or a fraction above 0 and
    up to 1 (the same part for every seed; a smaller fraction is part of a larger one). ``weights``: a number
    for each sample of the shards, as a list, array or .npy file: an epoch keeps its length, and has each
    sample the floor or the ceiling of its expected count, every time with another crop.

    ``repeats``: repeated augmentation, for training: each sample comes n times in a row, every time with
    another crop and augmentation, and on another rank if there are several. An epoch keeps its length, so it
    has 1/n of the samples, others each time: the order of timm's ``RepeatAugSampler``, which also rounds the
    epoch down to a multiple of 256 samples. Not with ``weights``, ``streaming`` or ``shuffle=False``.

    ``channels``: 3, RGB; or 1, gray images ``[B, 1, H, W]``, decoded faster, see ``decode_batch``; they need
    ``Augment`` with one mean and std: ``Augment(mean=[0.5], std=[0.25])``.

    ``views``: n crops of each image, of which the bytes are read once; images are then ``[n, B, 3, H, W]``,
    where ``image[v]`` is an ordinary batch. A list of n crops is one crop per view. With crops of several
    sizes ``image`` is a list with one tensor ``[n, B, 3, H, W]`` per size, sizes in the order of their first
    crop: ``[RandomResizedCrop(224)] * 2 + [RandomResizedCrop(96)] * 6`` is ``[2, B, 3, 224, 224]`` and
    ``[6, B, 3, 96, 96]``.

    ``members``: extensions of members whose bytes are passed to ``decode(key, {extension: bytes})``, a
    function that pickles if there are worker processes; its results are in ``extra``, a list of B (batches
    are ``ExtraBatch``). Without ``decode`` they are the bytes. A sample without one of them is an error,
    unless its name here ends in "?": ``["json", "txt?"]``. Nothing from a shard is unpickled here.

    ``streaming``: read shards that are not local (http, s3, "pipe:curl ...") as streams, by webdataset: True
    or ``tarpeg.Streaming``, which documents the guarantees and sets the length of an epoch.
    """

    shards: Source
    crop: Crop | Progressive | Sequence[Crop | Progressive]
    flip: float = 0.0
    shuffle: bool | str | Blocks | None = None
    target: Target = "cls"
    subset: float | Numbers | None = None
    weights: Numbers | None = None
    views: int = 1
    members: Sequence[str] = ()
    decode: Decode | None = None
    streaming: bool | Streaming = False
    interpolation: Interpolation = "bilinear"
    fidelity: Literal["fast", "exact"] = "fast"
    channels: Literal[1, 3] = 3
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.shards is None or self.shards == "":
            raise ValueError(
                f"shards={self.shards!r} must be a folder, a path, a glob, a brace pattern or a list of these"
            )
        if not 0.0 <= self.flip <= 1.0:
            raise ValueError(f"flip={self.flip!r} must be a probability in 0..1")
        self._check_crops()
        if (mode := self.interpolation) not in (modes := get_args(Interpolation)):
            raise ValueError(f"interpolation={mode!r} must be one of {', '.join(map(repr, modes))}")
        if self.fidelity not in ("fast", "exact"):
            raise ValueError(f"fidelity={self.fidelity!r} must be 'fast' or 'exact'")
        if not (self.shuffle in (None, True, False, "blocks") or isinstance(self.shuffle, Blocks)):
            raise ValueError(f"shuffle={self.shuffle!r} must be True, False, 'blocks' or tarpeg.Blocks(...)")
        if isinstance(self.channels, bool) or self.channels not in (1, 3):
            raise ValueError(f"channels={self.channels!r} must be 3, RGB, or 1, gray")
        self._check_repeats()
        check_target(self.target)
        is_fraction(self.subset)  # raises if out of range
        names = [self.members] if isinstance(self.members, str) else self.members
        if names is not self.members or not all(isinstance(n, str) and n not in ("?", ".?") for n in names):
            raise ValueError(f"members={self.members!r} must be a list of extensions: ['json', 'txt?']")
        if self.decode is not None and not (callable(self.decode) and self.members):
            raise ValueError(
                f"decode={self.decode!r} must be a function (key, {{extension: bytes}}), and members= "
                "must list the extensions that are passed to it"
            )
        if self.streaming:
            self._check_streaming()

    def open(self) -> Samples:
        """Index the shards, or list the images. Raises ``ShardError`` if any is missing or damaged."""
        images = find_images(self.shards)
        if images is None:
            return Shards(expand(self.shards))
        if self.target is not None:
            warn(
                f"shards={self.shards!r} is a folder of images, which have no labels: they will be -1. "
                "Confirm with target=None; tarpeg.FolderShards packs a folder with a sub-directory per "
                "class."
            )
        return images

    def places(self) -> dict[object, str]:
        """Return the paths and URLs of the shards or images by ``identity``. Raises as ``open``."""
        images = None if self.streaming else find_images(self.shards)
        if images is not None:
            return {path: path for path in images.paths()}
        return {identity(name): resolved(name) for name in expand_urls(self.shards)}

    def classes(self) -> list[str] | None:
        """Names of the classes by label, from ``manifest.json`` or ``classes.json`` beside the shards.

        None without these, for other targets than "cls", for streams and images, and for shards in folders
        with different classes. Raises ``ShardError`` as ``open``.
        """
        if self.streaming or self.target != "cls" or find_images(self.shards) is not None:
            return None
        found = [stored_classes(folder) for folder in {path.parent for path in expand(self.shards)}]
        return found[0] if found.count(found[0]) == len(found) else None

    def sampler(self, shards: Samples, seed: int, shuffle: bool) -> Sampler:
        """Return the sampler of this split; ``shuffle`` is the default of the split's own setting."""
        wanted = shuffle if self.shuffle is None else self.shuffle
        subset = subset_ids(self.subset, len(shards))
        weights = checked_weights(self.weights, len(shards), subset)
        order = Blocks() if isinstance(wanted, str) else wanted
        return Sampler(len(shards), seed, order, subset, weights, self.repeats)

    def view_crops(self) -> tuple[Crop | Progressive, ...]:
        """Return the crop of each view."""
        return tuple(self.crop) if isinstance(self.crop, Sequence) else (self.crop,) * self.views

    def view_groups(self) -> list[list[int]]:
        """Return the numbers of the views of each size, sizes in the order of their first view.

        The groups are the same in all epochs; the sizes may change.
        """
        return _groups(self.view_crops(), 0)

    def _check_repeats(self) -> None:
        repeats = self.repeats
        if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
            raise ValueError(f"repeats={repeats!r} must be an integer of at least 1")
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

    def _check_streaming(self) -> None:
        for name, value in (("subset", self.subset), ("weights", self.weights)):
            if value is not None:
                raise ValueError(f"{name}={shown(value)} needs an index, which streaming=True does not have")
        if not isinstance(self.shuffle, (bool, type(None))):
            raise ValueError(
                f"shuffle={self.shuffle!r} must be True or False: streams are shuffled within a buffer"
            )
        if not isinstance(self.streaming, (bool, Streaming)):
            raise ValueError(f"streaming={self.streaming!r} must be True, False or tarpeg.Streaming(...)")

    def _check_crops(self) -> None:
        if not isinstance(self.views, int) or self.views < 1:
            raise ValueError(f"views={self.views!r} must be an integer of at least 1")
        if isinstance(self.crop, Sequence) and not self.crop:
            raise ValueError(
                f"crop={self.crop!r} is empty: give a crop, or one per view: [RandomResizedCrop(224)] * 2"
            )
        if isinstance(self.crop, Sequence) and self.views not in (1, len(self.crop)):
            raise ValueError(f"views={self.views!r}, but crop= has {len(self.crop)} crops: give one per view")
        epochs = {0}
        for crop in self.view_crops():
            if isinstance(crop, Progressive):
                epochs |= set(crop.sizes)
            elif not all(hasattr(crop, name) for name in ("size", "draws", "boxes")):
                raise ValueError(
                    f"crop={crop!r} must have size, draws and boxes(sizes, draws); for example "
                    "RandomResizedCrop(224)"
                )
        for epoch in sorted(epochs):
            for crop in self.view_crops():
                _check_size(crop_at(crop, epoch))
            if (groups := _groups(self.view_crops(), epoch)) != (first := self.view_groups()):
                raise ValueError(
                    f"crop={self.crop!r}: the views of one size are {first} in epoch 0 and {groups} in epoch "
                    f"{epoch}, but must be the same in all epochs. Change their sizes together."
                )


def _groups(crops: Sequence[Crop | Progressive], epoch: int) -> list[list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for view, crop in enumerate(crops):
        groups.setdefault(tuple(crop_at(crop, epoch).size), []).append(view)
    return list(groups.values())


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


def named_splits(kind: str, splits: Split | Sequence[Split] | Mapping[str, Split]) -> dict[str, Split]:
    """Return the splits of one kind by name: "val" of a single one, "val/0" of a list, "val/clean" of a dict.

    Raises ValueError for what is not a Split, and for several splits of train or predict.
    """
    if isinstance(splits, Split):
        return {kind: splits}
    is_several = kind in ("val", "test") and isinstance(splits, (Sequence, Mapping)) and len(splits) > 0
    found = dict(splits if isinstance(splits, Mapping) else enumerate(splits)) if is_several else {}
    if not found or not all(isinstance(split, Split) for split in found.values()):
        several = " or a list or dict of them" * (kind in ("val", "test"))
        raise ValueError(f"{kind}={splits!r} must be a tarpeg.Split(...){several}")
    return {f"{kind}/{name}": split for name, split in found.items()}


def kind_of(name: str) -> str:
    """Return the kind of a split by its name: "val" of "val" and of "val/clean"."""
    return name.partition("/")[0]
