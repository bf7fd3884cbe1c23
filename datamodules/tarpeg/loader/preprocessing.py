"""How validation prepares images, as plain values in a checkpoint, and what is made of them elsewhere."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ..augment.module import Augment
from ..errors import ResumeError
from ..files import open_regular
from ..remedies import Message, Setting
from ..sampling import crops, iou_crop, padded
from ..sampling.rng import LATER_PASS
from ..shards.paths import Paths
from ..shards.source import Source
from ..shards.urls import is_url, public_url
from ..transforms.torchvision import flattened, method_of, name_of
from .augmenting import modules_of, uncompiled
from .classes import stored_classes
from .split import Split

_CROPS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(crops.CenterCrop, crops.Whole, crops.RandomCrop, crops.RandomResizedCrop),
        *(padded.LetterBox, padded.ScaleJitter, padded.RandomShortestSize, iou_crop.RandomIoUCrop),
    )
}
_LAST_EPOCH = LATER_PASS - 1  # Progressive ends with its last size
# Attributes of torchvision's steps without randomness, which are their arguments, too.
_STEPS: dict[str, tuple[str, ...]] = {
    "Resize": ("size", "interpolation", "max_size", "antialias"),
    "CenterCrop": ("size",),
    "ToDtype": ("dtype", "scale"),
    "ConvertImageDtype": ("dtype",),
    "Normalize": ("mean", "std"),
    "Grayscale": ("num_output_channels",),
    **dict.fromkeys(("ToImage", "PILToTensor", "ToTensor", "ToPureTensor", "RGB", "Identity"), ()),
}
_DTYPES = ("float32", "float16", "bfloat16", "uint8")
_LONGEST = 500  # of the representation of an object that cannot be made again

Stored = dict[str, Any]
"""Plain values: they are written by torch.save and read with ``weights_only=True``."""


@dataclass(frozen=True)
class Preprocessing:
    """How the validation of a checkpoint prepares images; ``tarpeg.preprocessing`` returns it.

    Args:
        crop: Crop, or one per view; None if ``steps`` crop.
        steps: Of ``transform=``, as they are stored.
        interpolation: As in ``Split``.
        fidelity: As in ``Split``.
        channels: As in ``Split``.
        mean: Of ``tarpeg.Augment``, for values in 0..1; None without it.
        std: As ``mean``.
        space: Of ``tarpeg.Augment``: "rgb", or "ycbcr".
        classes: Names of the classes by label; empty if they are unknown.

    Example:
        >>> crop = tarpeg.CenterCrop(64, shorter=72)
        >>> known = tarpeg.Preprocessing(crop, mean=[0.5] * 3, std=[0.25] * 3)
        >>> known.split(shards).crop == crop
        True
        >>> known.compose()(torch.zeros(3, 200, 300, dtype=torch.uint8)).shape
        torch.Size([3, 64, 64])
    """

    crop: Any = None
    steps: Sequence[Stored] | None = None
    interpolation: Any = "bilinear"
    fidelity: Any = "fast"
    channels: Any = 3
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    space: Any = "rgb"
    classes: Sequence[str] = ()

    def split(self, shards: Paths | Source, **options: Any) -> Split:
        """Return a split of these shards, prepared in the same way; options: others of ``Split``."""
        names = ("crop", "interpolation", "fidelity", "channels")
        same = {name: getattr(self, name) for name in names}
        if self.steps is not None:
            from torchvision.transforms import v2

            same["transform"] = v2.Compose([_step_of(step) for step in self.steps])
        return Split(shards, **{**same, **options})

    def augment(self) -> Augment | None:
        """Return the module that normalises, for ``ShardDataModule(augment=...)``; None without one."""
        if self.mean is None or self.std is None:
            return None
        return Augment(self.mean, self.std, space=self.space)

    def compose(self) -> Any:
        """Return a ``v2.Compose`` that does the same to one image.

        It takes the bytes of a file, which it reads as loaders do; an image of Pillow's, upright; or uint8
        ``[C, H, W]``.

        It crops as the split does, and resizes with torchvision's arithmetic: see docs/fidelity.md.

        Raises:
            ValueError: For a random crop, several views, and an interpolation that torchvision does not have
                for tensors.
        """
        from torchvision.transforms import InterpolationMode, v2

        from ..transforms.boxed import Boxed
        from ..transforms.opened import Opened

        parts: list[Any] = [Opened(self.channels)]
        if self.crop is not None:
            if isinstance(self.crop, list) or self.crop.draws:
                raise ValueError(f"crop={self.crop!r} is not one fixed crop: use split()")
            if self.interpolation in ("lanczos", "box", "area"):
                raise ValueError(
                    f"interpolation={self.interpolation!r} of tensors is not in torchvision: use split()"
                )
            if self.fidelity == "exact" and isinstance(self.crop, crops.CenterCrop) and self.crop.shorter:
                mode = InterpolationMode(self.interpolation)
                parts += [v2.Resize(self.crop.shorter, mode), v2.CenterCrop(self.crop.size)]
            else:
                parts.append(Boxed(self.crop, self.interpolation))
        steps: list[Any] = []
        if self.steps:
            steps = flattened(v2.Compose([_step_of(step) for step in self.steps]))
        for place, step in enumerate(steps):
            if name_of(step) == "Resize" and (method := method_of(steps, place)) is not None:
                mode = InterpolationMode(method[0])  # as loaders read a list for PIL images
                steps[place] = v2.Resize(step.size, mode, step.max_size, antialias=method[1])
        parts += steps
        if self.space != "rgb":
            parts.append(_OneImage(self.augment()))
        elif self.mean is not None and self.std is not None:
            parts += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(self.mean), list(self.std))]
        return v2.Compose(parts)


class _OneImage(nn.Module):
    """Calls a module of batches with one image ``[C, H, W]``."""

    def __init__(self, module: nn.Module | None) -> None:
        super().__init__()
        self.module = nn.Identity() if module is None else module.eval()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.module(image[None])[0]  # type: ignore[no-any-return]


def preprocessing(checkpoint: str | os.PathLike[str] | Mapping[str, Any]) -> Preprocessing:
    """Return how the validation of a checkpoint of ``ShardDataModule`` prepares images.

    Args:
        checkpoint: A file, of which nothing is executed; or the dict that ``torch.load`` returned for it.

    Raises:
        ResumeError: If it is not a checkpoint, was saved without this, or has a crop, transform or augment of
            a class that only its own project can make.

    Example:
        >>> crop = tarpeg.CenterCrop(64, shorter=72)
        >>> data = tarpeg.ShardDataModule(val=tarpeg.Split(shards, crop), augment=tarpeg.Augment())
        >>> known = tarpeg.preprocessing({"ShardDataModule": data.state_dict()})
        >>> known.crop
        CenterCrop(size=(64, 64), shorter=72)
        >>> images = known.compose()  # a v2.Compose, of one image
        >>> new = known.split(shards, target=None)  # a Split, of other shards
    """
    content: Any = checkpoint
    if not isinstance(checkpoint, Mapping):
        content = _read(checkpoint)
    stored, classes = stored_in(content)
    if stored is None:
        raise ResumeError(
            "the checkpoint does not say how its validation prepared images: a ShardDataModule with val= has "
            "to be in its training, of this version of tarpeg or a later one"
        )
    return restored(stored, classes)


def _read(path: Any) -> Mapping[str, Any]:
    """Read a checkpoint of which nothing is executed. Raise ResumeError if it is none."""
    if isinstance(path, (str, os.PathLike)) and is_url(str(os.fspath(path))):
        raise ResumeError(
            f"checkpoint={public_url(os.fspath(path))!r} is not local: copy it, or give the dict that "
            "torch.load(file, weights_only=True) returns for it"
        )
    try:
        open_regular(path).close()  # a FIFO would wait for ever
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        reason = str(error).partition("WeightsUnpickler error:")[2].strip().partition("\n")[0]
        raise ResumeError(
            f"checkpoint={str(path)!r} has more than tensors and numbers: {reason or 'unknown objects'}. "
            "If you trust its author, give tarpeg.preprocessing(torch.load(path, weights_only=False))"
        ) from error
    except (RuntimeError, EOFError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise ResumeError(
            f"checkpoint={str(path)!r} is not a checkpoint that torch.load can read: {type(error).__name__}: "
            f"{reason}. Give the file that the Trainer saved, *.ckpt"
        ) from error
    if not isinstance(content, Mapping):
        raise ResumeError(
            f"checkpoint={str(path)!r} has a {type(content).__name__}, not the dict of a checkpoint: give "
            "the file that the Trainer saved, *.ckpt"
        )
    return content


def stored_in(content: Mapping[str, Any]) -> tuple[Stored | None, list[str]]:
    """Return what ``described`` stored in a checkpoint, by whatever data module, and the classes."""
    for state in content.values():
        if isinstance(state, Mapping) and isinstance(found := state.get("preprocessing"), dict):
            return found, stored_classes(state).names
    return None, []


def described(split: Split, augment: nn.Module | None) -> Stored:
    """Return how a split is prepared, in validation, as plain values."""
    if isinstance(split.crop, Sequence):
        crop: Any = [_crop(each) for each in split.crop]
    else:
        crop = _crop(split.crop)
    found: Stored = {"crop": crop, "transform": _transform(split.transform)}
    found |= {name: getattr(split, name) for name in ("interpolation", "fidelity", "channels")}
    module = uncompiled(next(iter(modules_of(augment)), None))
    if isinstance(module, Augment) and type(module).forward is Augment.forward:
        return {**found, "mean": list(module.mean), "std": list(module.std), "space": module.space}
    own = None if module is None else _own(module)
    return {**found, "mean": own, "std": own}


def restored(stored: Stored, classes: Sequence[str] = ()) -> Preprocessing:
    """Return what ``described`` stored. Raises ResumeError for what cannot be made again."""
    for name, value in stored.items():
        if own := next((part for part in _parts(value) if "own" in part), None):
            raise ResumeError(
                f"the checkpoint has {name}={own['own']}, which only its own project can make: use its "
                "Split(...) and augment="
            )
    try:
        crop = stored["crop"]
        same = {name: stored[name] for name in ("interpolation", "fidelity", "channels", "mean", "std")}
        made = [_crop_of(each) for each in crop] if isinstance(crop, list) else crop and _crop_of(crop)
        steps = stored["transform"]
        if steps is not None:
            steps = [{**step, "name": _known_step(step["name"])} for step in steps]
        space = stored.get("space", "rgb")  # states of earlier versions have none
        found = Preprocessing(crop=made, steps=steps, classes=classes, space=space, **same)
        found.augment()  # raises for numbers that are none
    except (KeyError, TypeError, ValueError) as error:
        raise ResumeError(f"preprocessing={stored} of the checkpoint cannot be read: {error!r}") from error
    return found


def check_preprocessing(name: str, now: Stored, before: object) -> None:
    """Raise ResumeError with both if a split is prepared otherwise than the validation of a checkpoint.

    Args:
        name: Of the split.
        now: Of ``described``.
        before: Of the checkpoint; anything but a dict, as in states of earlier versions, is not compared.
    """
    if not isinstance(before, dict):
        return
    for part, value in now.items():
        if part in before and _written_out(before[part]) != _written_out(value):
            raise ResumeError(
                Message(
                    f"{name} has {part}={shown_part(value)}, but the validation of the checkpoint had {part}="
                    f"{shown_part(before[part])}: scores and predictions would be others. Give the same, "
                    "which tarpeg.preprocessing(checkpoint) returns; or, to use it all the same, give ",
                    Setting("ShardDataModule", "allow_other_data", True),
                    ".",
                )
            )


def _written_out(value: Any) -> Any:
    """Return a stored value; of a list of steps, those of two in one as ``_step_of`` makes them."""
    if not isinstance(value, list):
        return value
    steps = list[Any]()
    for step in value:
        if isinstance(step, dict) and step.get("name") in ("ToTensor", "ConvertImageDtype"):
            dtype = step.get("dtype", _DTYPES[0])
            steps += [{"name": "ToImage"}, {"name": "ToDtype", "dtype": dtype, "scale": True}]
        else:
            steps.append(step)
    return steps


def shown_part(value: Any) -> str:
    """Return a stored value as it was written in Python, for messages."""
    if isinstance(value, list):
        return f"[{', '.join(map(shown_part, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    if "own" in value:
        return str(value["own"])
    given = ", ".join(f"{name}={part}" for name, part in value.items() if name != "name")
    return f"{value.get('name')}({given})"


def _crop(crop: Any) -> Any:
    if crop is None:
        return None
    crop = crops.crop_at(crop, _LAST_EPOCH)
    if _CROPS.get(type(crop).__name__) is not type(crop) or not is_dataclass(crop):
        return _own(crop)
    values = {part.name: getattr(crop, part.name) for part in fields(crop)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"name": type(crop).__name__, **plain}


def _crop_of(stored: Stored) -> Any:
    given = {name: value for name, value in stored.items() if name != "name"}
    return _CROPS[stored["name"]](**given)


def _transform(transform: Any) -> Any:
    if transform is None:
        return None
    steps = [transform] if not isinstance(transform, Sequence) else [*transform]
    if len(steps) > 1:  # one per view
        return [_own(step) for step in steps]
    return [_step(step) for step in flattened(steps[0])]


def _step(step: Any) -> Stored:
    name = name_of(step)
    if name not in _STEPS:
        return _own(step)
    values = {part: _plain(getattr(step, part)) for part in _STEPS[name] if hasattr(step, part)}
    return {"name": name, **values}


def _known_step(name: Any) -> str:
    if not isinstance(name, str) or name not in _STEPS:
        raise ValueError(f"transform={name!r} must be of {', '.join(_STEPS)}")
    return name


def _step_of(stored: Stored) -> Any:
    from torchvision.transforms import InterpolationMode, v2

    name = stored["name"]
    given = {part: stored[part] for part in _STEPS[name] if part in stored}
    if name in ("ToTensor", "ConvertImageDtype"):
        dtype = _DTYPES[0] if name == "ToTensor" else given["dtype"]
        steps = [v2.ToImage(), v2.ToDtype(_dtype(dtype), scale=True)]
        return v2.Compose(steps)
    if name == "Normalize":
        given = {part: value if isinstance(value, list) else [value] for part, value in given.items()}
    if "dtype" in given:
        given["dtype"] = _dtype(given["dtype"])
    if "interpolation" in given:
        given["interpolation"] = InterpolationMode(given["interpolation"])
    return getattr(v2, name)(**given)


def _plain(value: Any) -> Any:
    value = getattr(value, "value", value)  # of InterpolationMode
    if isinstance(value, (torch.Tensor, np.ndarray)):  # timm's mean
        value = value.tolist()
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return value if is_plain else _own(value)


def _dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise ValueError(f"dtype={name!r} must be one of {', '.join(_DTYPES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def _own(part: Any) -> Stored:
    """Return an object that cannot be made again: its words, to compare them."""
    text = " ".join(repr(part).split())
    name = f"{type(part).__module__}.{type(part).__qualname__}"
    text = name if " at 0x" in text else text  # an address is another one in each process
    return {"own": text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."}


def _parts(value: Any) -> list[Stored]:
    """Return all dicts in a stored value."""
    if isinstance(value, list):
        return [part for each in value for part in _parts(each)]
    return (
        [value, *(part for each in value.values() for part in _parts(each))]
        if isinstance(value, dict)
        else []
    )
