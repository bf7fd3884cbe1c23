"""Checks of splits and of ``augment=``, which raise before time is spent on training."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

from ..augment.distortions import Affine
from ..augment.geometry import may_move
from ..augment.module import Augment
from ..errors import ShardError, warn
from ..remedies import Message, Setting
from ..shards.labels import read_labels
from ..shards.source import Source, where_of
from ..targets.instance_map import InstanceMap
from ..targets.instances import InstanceMasks
from ..targets.maps import FloatMap
from ..targets.masks import Masks
from ..targets.protocols import by_name
from .augmenting import contains_augment, mixes_of, modules_of, uncompiled
from .carried import check_carried
from .split import Split

log = logging.getLogger(__name__)

# What torch's losses report about a label beyond the classes, on the CPU and on a GPU.
_LABEL_REFUSED = re.compile(r"Target -?\d+ is out of bounds|device-side assert")
_PIXELS = (Masks, InstanceMasks, InstanceMap, FloatMap)  # targets that are resized as images are
_MOST_LABELS = 100_000  # that are read to explain it
_TORCHVISION = "torchvision.transforms"
# Its transforms without randomness, in v1 or v2. All others are refused, those of later versions too.
_FIXED = {
    *("ToDtype", "ConvertImageDtype", "ToImage", "ToPureTensor", "Normalize", "LinearTransformation"),
    *("Resize", "CenterCrop", "Pad", "Grayscale", "RGB", "Identity"),
}
# timm's classes that mix a batch, which are no modules.
_MIXERS = {"Mixup", "FastCollateMixup"}
# Those of them that move no pixels.
_IN_PLACE = _FIXED - {"LinearTransformation", "Resize", "CenterCrop", "Pad"}


def named_splits(kind: str, splits: Split | Sequence[Split] | Mapping[str, Split]) -> dict[str, Split]:
    """Return the splits of one kind by name: "val" of a single one, "val/0" of a list, "val/clean" of a dict.

    Raises ValueError for what is not a Split, and for several splits of train or predict.
    """
    if isinstance(splits, Split):
        return {kind: splits}
    found: dict[Any, Split] = {}
    wanted = "one tarpeg.Split(...)"
    if kind in ("val", "test"):
        wanted = "a tarpeg.Split(...) or a list or dict of them"
        if isinstance(splits, Mapping):
            found = dict(splits)
        elif isinstance(splits, Sequence):
            found = dict(enumerate(splits))
    if not found or not all(isinstance(split, Split) for split in found.values()):
        is_filled = isinstance(splits, (list, tuple, Mapping)) and len(splits) > 0
        given = type(splits).__name__ if is_filled else repr(splits)
        raise ValueError(f"{kind}={given} must be {wanted}")
    return {f"{kind}/{name}": split for name, split in found.items()}


def check_types(splits: Mapping[str, Split | None]) -> None:
    """Raise ValueError if the model would get uint8 images of one split, and floats of another."""
    known = {name: split.dtype for name, split in splits.items() if split and name != "predict"}
    floats = [name for name, dtype in known.items() if dtype and dtype.is_floating_point]
    integers = [name for name, dtype in known.items() if dtype and not dtype.is_floating_point]
    if floats and integers:
        raise ValueError(
            f"{floats[0]} has {known[floats[0]]} images, which its transform= converts, and {integers[0]} "
            "has uint8 ones: give both the same ToDtype and Normalize in transform=, or leave them out and "
            "give augment=tarpeg.Augment()"
        )


def kind_of(name: str) -> str:
    """Return the kind of a split by its name: "val" of "val" and of "val/clean"."""
    return name.partition("/")[0]


def checked_augment(augment: nn.Module | Sequence[nn.Module] | None) -> nn.Module | None:
    """Return ``augment=``, a list as a ModuleList.

    Raises ValueError if it is no module, and for random transforms of torchvision, in a container too.
    """
    is_list = isinstance(augment, (Sequence, nn.ModuleList))
    modules: list[Any] = [augment]
    if isinstance(augment, (Sequence, nn.ModuleList)):
        modules = list(augment)
    _refuse_random_transforms(modules)
    if not all(isinstance(module, nn.Module) or (module is None and not is_list) for module in modules):
        remedy = ""
        if any(type(module).__name__ in _MIXERS for module in modules):
            remedy = ". MixUp and CutMix are tarpeg.Augment(mix=tarpeg.Mix(classes=...))"
        raise ValueError(
            f"augment={augment!r} must be a torch.nn.Module such as tarpeg.Augment(), a list of one module "
            f"per view, or None{remedy}"
        )
    return nn.ModuleList(modules) if is_list else modules[0]


def _refuse_random_transforms(modules: Sequence[Any]) -> None:
    parts = [*modules]
    given = [uncompiled(module) for module in modules]
    for part in map(uncompiled, parts):  # grows by the parts of containers
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


def check_device(device: Any) -> None:
    """Raise ValueError for a device that this machine does not have."""
    if device is None:
        return
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r} must be a device of torch, such as 'cuda' or 'cuda:1': {error}"
        ) from None
    count = torch.cuda.device_count()
    if wanted.type == "cuda" and (wanted.index or 0) >= count:
        found = f"has {count} of CUDA" if count else "has none of CUDA, or this torch is not built for it"
        raise ValueError(f"device={device!r}: this machine {found}. Give device='cpu', or leave it out")


def check_split(name: str, split: Split, augment: nn.Module | None, *, training: bool) -> None:
    """Raise ValueError for a split that does not suit its use, or whose images ``augment`` does not take."""
    if split.repeats > 1 and not training:
        raise ValueError(
            f"{name}=Split(repeats={split.repeats}) would have 1/{split.repeats} of the samples, "
            f"{split.repeats} times each: repeats is for training"
        )
    if split.patches is not None:
        _check_normalises(name, augment, "crop=tarpeg.Patches(...), whose patches")
    if split.image_pattern is not None:
        _check_normalises(
            name, augment, f"image={split.image!r}, of whose images some are of one sample, which"
        )
    if split.shares_box and training and len(split.pipelines) > 1:
        _check_moves_together(name, split, augment)
    if training:
        _check_mix(name, split, augment)
    if contains_augment(augment):
        for pipeline in split.pipelines:
            _check_uint8(name, torch.uint8 if pipeline.levels is None else pipeline.levels.dtype)
    if split.targets is not None:
        _check_targets_follow(name, augment)
        _check_masks_follow(name, split)
        for pipeline in split.pipelines:
            check_carried(name, pipeline, split.targets)
    if isinstance(augment, nn.ModuleList):
        count = len(split.view_crops())
        if count != len(augment) and (training or count > 1 or not len(augment)):
            raise ValueError(
                f"augment= has {len(augment)} modules, but {name} has {count} views: give one module per "
                "view, or a single one for all"
            )
    if split.transform is not None:  # it may change the channels
        return
    for module in map(uncompiled, modules_of(augment)):
        if isinstance(module, Augment) and len(module.mean) != split.channels:
            remedy = "Augment(mean=[0.5], std=[0.25])" if split.channels == 1 else "three numbers each"
            raise ValueError(
                f"{name} has channels={split.channels}, but augment= has mean={list(module.mean)}: give "
                f"{remedy}"
            )


def _check_mix(name: str, split: Split, augment: nn.Module | None) -> None:
    """Raise ValueError if ``augment`` would mix images or labels that cannot be mixed."""
    mixes = mixes_of(augment)
    if not mixes:
        return
    mixing = f"augment= mixes images and labels, mix={mixes[0]!r}, but {name} has"
    if split.targets is not None:
        raise ValueError(f"{mixing} targets= and no labels: give Augment(mix=None)")
    if (views := len(split.view_crops())) > 1:
        raise ValueError(f"{mixing} {views} views of each image: give one crop, or Augment(mix=None)")
    if split.target is None and split.labels is None:
        raise ValueError(f"{mixing} target=None, no labels: leave target= out, or give Augment(mix=None)")


def _check_normalises(name: str, augment: nn.Module | None, what: str) -> None:
    """Raise ValueError if ``augment`` would do more to the images than normalise them."""
    for module in map(uncompiled, modules_of(augment)):
        if not isinstance(module, Augment) or module.is_random or module.mix is not None:
            raise ValueError(
                f"{name} has {what} augment={type(module).__name__} would "
                "take for images of samples: give tarpeg.Augment(), which normalises them, and Split(flip=) "
                "for flips"
            )


def _check_moves_together(name: str, split: Split, augment: nn.Module | None) -> None:
    """Raise ValueError if ``augment`` would move the images of a sample apart, which share a box."""
    for module in map(uncompiled, modules_of(augment)):
        if not isinstance(module, Augment):
            continue
        has_affine = any(isinstance(part, Affine) for part in module.distortions.values())
        if module.flip or has_affine or any(map(may_move, module.policies)):
            raise ValueError(
                f"augment= moves each image of a sample by itself, and {name} has image={split.image!r} with "
                "one box for all: give Split(flip=) for flips, leave the affine of augment= out, or give "
                "shared_box=False"
            )


def _check_targets_follow(name: str, augment: nn.Module | None) -> None:
    """Raise ValueError if ``augment`` would move the images of a split without their targets."""
    for module in map(uncompiled, modules_of(augment)):
        if not isinstance(module, Augment) and not _stays_in_place(module):
            raise ValueError(
                f"{name} has targets=, which would stay where they are if augment={type(module).__name__} "
                "moves the images: give a tarpeg.Augment; or, to a module that moves no pixels, a method "
                "geometry(params, size) that returns None, as Augment.geometry does"
            )


def _check_masks_follow(name: str, split: Split) -> None:
    """Raise ValueError for masks of images that are resized whole and then cropped."""
    from .resize_first import crops_behind_a_resize  # it loads the operators, which a split does not

    crops = crops_behind_a_resize(split)
    has_pixels = any(isinstance(each, _PIXELS) for each in by_name(split.targets or ()).values())
    if has_pixels and crops:
        raise ValueError(
            f"{name} has targets= with Masks, crop={crops[0]!r} and fidelity='exact', which "
            "resizes whole images before it crops them; masks are cropped first: give fidelity='fast'"
        )


def _stays_in_place(module: nn.Module) -> bool:
    kind: Any = type(module)
    if isinstance(module, nn.Sequential) and kind.forward is nn.Sequential.forward:
        return all(map(_stays_in_place, module.children()))
    if str(kind.__module__).startswith(_TORCHVISION) and kind.__name__ in _IN_PLACE:
        return True
    return kind is nn.Identity or callable(getattr(module, "geometry", None))


def check_transform_result(name: str, fetcher: Any, augment: nn.Module | None) -> None:
    """Raise ValueError if ``transform=`` of a split returns what a ``tarpeg.Augment`` does not take."""
    if fetcher.split.transform is None or not contains_augment(augment):
        return
    dtype, shape = fetcher.transform_result
    _check_uint8(name, dtype)
    if len(shape) < 3:
        raise ValueError(
            Message(
                f"augment= is a tarpeg.Augment, which takes images [C, H, W], but transform= of {name} "
                f"returns uint8 {list(shape)}: return images, or give ",
                Setting("ShardDataModule", "augment", None),
            )
        )


def check_mixed_labels(name: str, fetcher: Any, augment: nn.Module | None) -> None:
    """Raise ValueError if ``augment`` would mix labels of a split that cannot be mixed."""
    form = None if fetcher.labels is None else fetcher.labels.form
    mixes = mixes_of(augment)
    if form is None or not mixes or form.kind in ("integer", "class"):
        return
    if form.kind == "number":
        raise ValueError(
            f"augment= mixes labels, mix={mixes[0]!r}, and those of {name} are numbers, not classes: give "
            "Augment(mix=None)"
        )
    if form.outputs != mixes[0].classes:
        raise ValueError(f"mix={mixes[0]!r} of augment= needs classes={form.outputs}, as {name} has")


def _check_uint8(name: str, dtype: torch.dtype) -> None:
    """Raise ValueError if the transform of a split normalises, as Augment would once more."""
    if dtype != torch.uint8:
        raise ValueError(
            Message(
                f"augment= is a tarpeg.Augment, which normalises uint8 images, but transform= of {name} "
                f"returns {dtype}: leave its ToDtype or ToTensor and its Normalize out, or give ",
                Setting("ShardDataModule", "augment", None),
                " and normalise in transform= of all splits",
            )
        )


def open_split(split: Split, *, is_first: bool = True, needs_labels: bool = True) -> Source:
    """Open the samples of a split.

    Args:
        split: Not streamed.
        is_first: Whether this process warns and logs; the others would warn about the same shards.
        needs_labels: Check that the first sample has one, unless the split has ``target=None``.
    """
    with warnings.catch_warnings():
        if not is_first:
            warnings.simplefilter("ignore")
        if needs_labels and split.subset is None:  # check_labels raises instead
            warnings.filterwarnings("ignore", ".* has only images, which have no labels")
        source = split.open(is_first=is_first)
        if needs_labels:
            split.check_labels(source)
            split.class_numbers()  # raises if a label of its folders has two names, or a name two labels
    return source


def check_on_error(on_error: str) -> None:
    """Raise ValueError for ``on_error`` of a training that would make its batches smaller."""
    if on_error == "leave_out":
        raise ValueError(
            "on_error='leave_out' makes batches smaller, for validation and prediction alone: choose "
            "'substitute' or 'raise'. ShardDataModule leaves out undecodable images of predict= by itself"
        )


def check_overlap(splits: Mapping[str, Split]) -> bool:
    """Compare the shards of train with those of val and test, whose scores would be too good.

    Args:
        splits: By name: "train", "val", "val/NAME", "test", ...

    Returns:
        Whether the shards of all splits are known; those that cannot be opened are left out.

    Raises:
        ShardError: If train shares a shard with another split.
    """
    places: dict[str, dict[object, str]] = {}
    for name, split in splits.items():
        with suppress(ShardError):  # opening it raises
            places[name] = split.places()
    train: dict[object, str] = {}
    for name in (name for name in places if kind_of(name) == "train"):
        train |= places[name]
    for name in (name for name in places if kind_of(name) != "train"):
        other = places[name]
        if shared := train.keys() & other.keys():
            first = min(shared, key=train.__getitem__)
            link = f" (in {name}: {other[first]})" if train[first] != other[first] else ""
            raise ShardError(
                Message(
                    f"train and {name} have {len(shared)} shard{'s' * (len(shared) > 1)} in common, such as "
                    f"{train[first]}{link}, so {name} would measure samples of the training. Give each its "
                    f"own, such as 'train-*.tar' and '{kind_of(name)}-*.tar'; or give ",
                    Setting("ShardDataModule", "allow_overlap", True),
                    ".",
                )
            )
    return len(places) == len(splits)


def check_num_classes(given: object, classes: Sequence[str]) -> None:
    """Raise ShardError if a network has too few classes, before its loss fails without that reason.

    Args:
        given: Number of classes of the network; ignored if it is not a positive integer.
        classes: Names of the classes by label.
    """
    is_binary = given == 1 and len(classes) == 2
    if not isinstance(given, int) or given < 1 or is_binary:
        return
    if given < (count := len(classes)):
        raise ShardError(
            Message(
                f"labels 0..{count - 1} need ",
                Setting("network", "num_classes", count),
                f", and the network has {given}: label {given} is {classes[given]!r}",
            )
        )


def explain_refused_label(error: BaseException, split: Split, source: Source) -> None:
    """Add a note about the labels to the error of a loss that refused one; do nothing to other errors."""
    if not _LABEL_REFUSED.search(str(error)):
        return
    with suppress(ShardError):  # the error itself is more important
        reader: Any = split.label_reader(source) or split.target
        if reader is None:
            return
        ids = np.unique(np.linspace(0, len(source) - 1, _MOST_LABELS, dtype=np.int64))
        labels = reader.read(source, ids) if hasattr(reader, "form") else read_labels(source, ids, reader)
        if labels.is_floating_point():
            return
        low, high = (int(bound) for bound in labels.aminmax())
        place = where_of(source, int(ids[int(labels.reshape(len(ids), -1).amax(1).argmax())]))
        few = f" (of {len(ids)} of the {len(source)} samples)" * (len(ids) < len(source))
        note = f"labels {low}..{high}{few} need num_classes={high + 1}; the first {high}: {place}"
        getattr(error, "add_note", log.warning)(note)  # add_note: Python 3.11


def explain_single_sample(error: BaseException) -> None:
    """Add a note to the error of a batch norm, or such a layer, that got one sample, the rest of an epoch."""
    if "Expected more than 1 value per channel when training" in str(error):
        note = (
            "the layer cannot train on one sample, and the last batch of an epoch may have one on a rank: "
            "drop_last=True of the data module leaves that batch out; another batch size has another rest"
        )
        getattr(error, "add_note", log.warning)(note)
