"""Which steps of torchvision, and of timm under torchvision's names, the decoder does.

Both are recognised by the modules of their classes and never imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ..augment.policies import Policy
from ..sampling.crops import CenterCrop, Crop, RandomCrop, RandomResizedCrop, Whole
from ..sampling.iou_crop import RandomIoUCrop
from ..sampling.padded import RandomShortestSize, ScaleJitter
from .pixels import PixelFormat

Step = Callable[[Any], Any]
Transform = Callable[[Any], Any]

# Steps that leave a uint8 RGB tensor as it is.
NOTHING = {"ToImage", "PILToTensor", "ToPureTensor", "Identity", "RGB"}
CONVERSIONS = {"ToDtype", "ConvertImageDtype", "ToTensor"}
# Steps that take PIL images in most lists, and make tensors of them.
_FROM_PIL = {"ToImage", "PILToTensor", "ToTensor"}
CROPS = {"RandomResizedCrop", "RandomCrop", "CenterCrop", "Resize"}
DETECTION_CROPS = {"RandomIoUCrop", "ScaleJitter", "RandomShortestSize"}
# Steps that move pixels.
GEOMETRIC = {
    *CROPS,
    *(
        "AugMix",
        "AutoAugment",
        "RandAugment",
        "TrivialAugmentWide",
        "RandomApply",
        "RandomChoice",
        "RandomOrder",
    ),
    *("ElasticTransform", "RandomAffine", "RandomPerspective", "RandomRotation", "RandomZoomOut", "Pad"),
    *("RandomHorizontalFlip", "RandomVerticalFlip", "RandomIoUCrop", "RandomResize", "RandomShortestSize"),
    *("FiveCrop", "TenCrop", "ScaleJitter", "Lambda"),
}
# Steps that change targets alone.
OF_TARGETS = {
    *("SanitizeBoundingBoxes", "ClampBoundingBoxes", "ConvertBoundingBoxFormat", "SetClampingMode"),
    *("SanitizeKeyPoints", "ClampKeyPoints"),
}
_INTERPOLATIONS = {"bilinear", "bicubic", "lanczos", "box", "nearest", "nearest-exact"}
_BY_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
# timm's names for steps of torchvision.
_OF_TIMM = {
    "MaybeToTensor": "ToTensor",
    "MaybePILToTensor": "PILToTensor",
    "RandomResizedCropAndInterpolation": "RandomResizedCrop",
}
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Levels:
    """What conversions and Normalize make of uint8 images: (level / 255 - mean) / std in ``dtype``."""

    def __init__(self) -> None:
        self.dtype = torch.uint8
        self.mean: tuple[float, ...] = (0.0, 0.0, 0.0)
        self.std: tuple[float, ...] = (1.0, 1.0, 1.0)
        self._is_normalised = False
        self._unit = 1.0  # 255 for floating-point images of 0..255

    def format(self) -> PixelFormat | None:
        """Return the format of the images; None if they stay uint8."""
        return None if self.dtype == torch.uint8 else PixelFormat(self.mean, self.std, self.dtype)

    def absorb(self, step: Any) -> bool:
        """Whether the step is such a conversion; if so, remember it."""
        name = name_of(step)
        if name in CONVERSIONS:
            dtype = torch.float32 if name == "ToTensor" else step.dtype
            if self.dtype == torch.uint8 and dtype in _FLOATS and not getattr(step, "scale", True):
                self._unit, self.std = 255.0, (1 / 255,) * 3
            is_known = dtype in _FLOATS or dtype == self.dtype == torch.uint8
            self.dtype = dtype if is_known else self.dtype
            return is_known
        if name != "Normalize" or self.dtype == torch.uint8 or self._is_normalised:
            return name in NOTHING
        given = (np.ravel(values).astype(float) for values in (step.mean, step.std))  # or numbers
        mean, std = ((values / self._unit).tolist() for values in given)
        mean, std = (values * 3 if len(values) == 1 else values for values in (mean, std))
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            return False
        self.mean, self.std, self._is_normalised = tuple(mean), tuple(std), True
        return True


def crop_of(step: Any) -> Crop | None:
    """Return the crop of a step of torchvision; None for one that the decoder cannot do."""
    name = name_of(step)
    try:
        if name == "RandomResizedCrop":
            return RandomResizedCrop(pair(step.size), tuple(step.scale), tuple(step.ratio))
        if name == "RandomCrop":
            return _random_crop(step)
        if name == "CenterCrop":
            return CenterCrop(pair(step.size))
        if shorter_side(step) is None and step.size is not None and step.max_size is None:
            return Whole(pair(step.size))
    except ValueError:  # numbers that only torchvision takes
        pass
    return None


def _random_crop(step: Any) -> RandomCrop | None:
    """Return the crop of a RandomCrop; raises ValueError for numbers that the decoder does not take."""
    if not step.padding and not step.pad_if_needed:
        # Smaller images are not enlarged: they go through the step itself, see Pipeline.least.
        return RandomCrop(pair(step.size), enlarge_if_needed=True)
    padding, fill = step.padding, 0 if step.fill is None else step.fill
    if isinstance(padding, Sequence) and type(step).__module__.startswith("torchvision.transforms.v2"):
        left, right, top, bottom = padding  # v2 has put them into this order
        padding = (left, top, right, bottom)
    if step.padding_mode != "constant" or not isinstance(fill, (int, Sequence)):
        return None
    return RandomCrop(pair(step.size), padding=padding, pad_if_needed=bool(step.pad_if_needed), fill=fill)


class DetectionCrop(NamedTuple):
    """A crop that several steps of torchvision are together.

    Attributes:
        crop: The crop.
        last: Position of the last of these steps.
        resize: Position of the one that resizes.
    """

    crop: Crop
    last: int
    resize: int


def detection_crop_of(steps: list[Step], position: int) -> DetectionCrop | None:
    """Return the crop that begins with a RandomIoUCrop, ScaleJitter or RandomShortestSize; None for others.

    Images of several sizes are no batch: the first two need the step behind them that makes one size, and
    images of RandomShortestSize are padded to the largest.
    """
    step: Any = steps[position]
    try:
        if name_of(step) == "RandomShortestSize":
            names = {name_of(each) for each in steps[position + 1 :]}
            if step.max_size is None or names & GEOMETRIC - {"RandomHorizontalFlip"}:
                return None
            shortest = RandomShortestSize([*step.min_size], int(step.max_size))
            return DetectionCrop(shortest, position, position)
        last = _sizing(steps, position)
        if last is None:
            return None
        sizing: Any = steps[last]
        if name_of(step) == "ScaleJitter":
            given = _random_crop(sizing)
            if given is None or not given.pad_if_needed or given.padding is not None:
                return None
            # torchvision compares the second number of target_size with the height.
            jitter = ScaleJitter(
                given.size, tuple(step.scale_range), pair(step.target_size)[::-1], given.fill, anywhere=True
            )
            return DetectionCrop(jitter, last, position)
        size = pair(sizing.size)
        overlaps = RandomIoUCrop(
            size,
            step.min_scale,
            step.max_scale,
            step.min_aspect_ratio,
            step.max_aspect_ratio,
            tuple(step.options),
            step.trials,
        )
        return DetectionCrop(overlaps, last, last)
    except ValueError:  # numbers that only torchvision takes
        return None


def _sizing(steps: list[Step], position: int) -> int | None:
    """Return the position of the step that gives all images one size; None if there is another one before."""
    wanted = {"ScaleJitter": "RandomCrop", "RandomIoUCrop": "Resize"}[name_of(steps[position])]
    between = {*NOTHING, "RandomHorizontalFlip", "SanitizeBoundingBoxes"}
    for last in range(position + 1, len(steps)):
        step: Any = steps[last]
        name = name_of(step)
        if name == wanted:
            is_one_size = wanted == "RandomCrop" or (step.max_size is None and shorter_side(step) is None)
            return last if is_one_size and step.size is not None else None
        if name not in between:
            return None
    return None


def pair(size: Any) -> tuple[int, int]:
    """Return height and width of a size as torchvision takes it."""
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    return int(height), int(width)


def shorter_side(step: Any) -> int | None:
    """Return the size of the shorter side of a Resize that has only that."""
    size = step.size
    if size is None or step.max_size is not None:
        return None
    if isinstance(size, int):
        return size
    return int(size[0]) if len(size) == 1 else None


def method_of(steps: list[Step], position: int) -> tuple[str, bool] | None:
    """Return the interpolation of a step and whether it is antialiased; None if the decoder has it not.

    A list that makes tensors later takes PIL images, which are always antialiased, and of which "nearest" is
    the sample under the centre.
    """
    step: Any = steps[position]
    if not hasattr(step, "interpolation"):
        return "bilinear", True
    given = getattr(step.interpolation, "value", step.interpolation)
    mode = _BY_PILLOW.get(given, given) if isinstance(given, int) else given
    names = [name_of(each) for each in steps]
    takes_pil = not _FROM_PIL & {*names[:position]} and bool(_FROM_PIL & {*names[position:]})
    antialias = takes_pil or bool(getattr(step, "antialias", True))  # timm's have none
    if takes_pil and mode == "nearest":
        mode = "nearest-exact"
    if mode not in _INTERPOLATIONS or (mode in ("lanczos", "box") and not antialias):
        return None
    return mode, antialias or mode in ("nearest", "nearest-exact")


def flattened(transform: Any) -> list[Step]:
    """Return the steps of nested compositions of torchvision and torch."""
    if name_of(transform) == "Compose":
        return [step for part in transform.transforms for step in flattened(part)]
    if type(transform) is nn.Sequential:
        return [step for part in transform for step in flattened(part)]
    is_step = callable(transform) or isinstance(transform, Policy)
    if isinstance(transform, type) or not is_step:
        hint = ""
        if is_step:
            hint = ", an instance, not a class"
        elif hasattr(transform, "boxes"):
            hint = "; crops belong in crop="
        raise ValueError(
            f"transform= or a step of it is {transform!r}: it must be a callable that takes a uint8 image "
            f"[3, H, W], such as torchvision's v2.Compose([...]){hint}"
        )
    return [transform]


def name_of(step: Any) -> str:
    """Return the name of a class of torchvision, or of timm's for the same; "" for all others."""
    kind = type(step)
    if kind.__module__ == "timm.data.transforms":
        return _OF_TIMM.get(kind.__name__, "")
    return kind.__name__ if kind.__module__.startswith("torchvision.transforms.") else ""


def is_v2(step: Any) -> bool:
    """Whether a step is one of torchvision's v2, or of a class derived from one, which takes targets too."""
    return any(base.__module__.startswith("torchvision.transforms.v2") for base in type(step).__mro__)


def shown_step(step: Any) -> str:
    """Return a step in one line."""
    name = getattr(step, "__qualname__", None) or type(step).__name__
    text = " ".join(repr(step).split()) if isinstance(step, nn.Module) or name_of(step) else name
    return text if len(text) <= 90 else f"{text[:87]}..."
