"""What a user's transform becomes: steps that the decoder does, and the others per sample in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..augment.geometry import may_move
from ..augment.policies import Policy
from ..sampling.crops import CenterCrop, Crop, Progressive, RandomCrop, Whole
from .adapters import Albumentations, OnePolicy, OnPil, adapted, original
from .pixels import PixelFormat
from .torchvision import (
    CROPS,
    DETECTION_CROPS,
    GEOMETRIC,
    NOTHING,
    OF_TARGETS,
    Levels,
    Step,
    Transform,
    crop_of,
    detection_crop_of,
    flattened,
    is_v2,
    method_of,
    name_of,
    pair,
    shorter_side,
    shown_step,
)

# How a conversion in front of a native crop or resize differs from torchvision's.
_ROUNDED = "where levels are rounded to whole numbers"


class Place(Enum):
    """Where a native step runs."""

    DECODER = auto()
    WHOLE_IMAGE = auto()  # in the decoder, which makes the whole image for the steps in Python
    RESIZED_IMAGE = auto()  # the same, resized
    BATCH = auto()  # a policy
    FINAL_PASS = auto()  # the pass over the batch that converts and normalises
    NOTHING = auto()  # the images already have that form


@dataclass(frozen=True)
class NativeStep:
    """A native step of a transform.

    Attributes:
        step: The step in one line.
        place: Where it runs.
        note: What is particular to this step there.
        hint: What would be faster.
    """

    step: str
    place: Place
    note: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Uncropped:
    """The whole image, one at a time: uncropped, or with its shorter side resized to ``shorter`` pixels."""

    shorter: int | None = None

    size = (1, 1)  # unknown before an image is read
    draws = 0

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike | None = None) -> npt.NDArray[np.int32]:
        """Boxes, int32 [B, 4], from upright image sizes [B, 2]."""
        return Whole(1).boxes(sizes)

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the result for an image, rounded as by torchvision."""
        if self.shorter is None:
            return height, width
        short, long = sorted((height, width))
        longer = int(self.shorter * long / short)
        return (self.shorter, longer) if height <= width else (longer, self.shorter)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """How one view is made: by the decoder (``crop``, ``flip``), by ``policies``, then by ``python``.

    Attributes:
        crop: Crop of the decoder.
        flip: Probability of mirroring.
        interpolation: Interpolation of the crop.
        antialias: Whether the crop is antialiased.
        policies: Policies on the crops, run natively.
        python: Steps in Python.
        levels: The format that conversions and Normalize make of uint8 images, after ``python``, or before it
            if ``levels_first``; None without them.
        levels_first: Whether ``levels`` come before ``python``.
        tail: These steps at the end, for results of ``python`` that are not uint8 ``[3, H, W]``.
        least: ``uncropped`` runs on images smaller than this (height, width), or of unknown size, instead of
            everything before ``tail``.
        uncropped: Steps for images that are smaller than ``least``.
        head: The native steps at the beginning.
    """

    crop: Crop | Progressive | Uncropped
    flip: float = 0.0
    interpolation: Any = "bilinear"  # a name of ops.decode
    antialias: bool = True
    policies: tuple[Policy, ...] = ()
    python: tuple[Step, ...] = ()
    levels: PixelFormat | None = None
    levels_first: bool = False
    tail: tuple[Step, ...] = ()
    least: tuple[int, int] | None = None
    uncropped: tuple[Step, ...] = ()
    head: tuple[NativeStep, ...] = ()

    @property
    def runs_python(self) -> bool:
        """Whether all samples are processed one by one in Python."""
        return bool(self.python) or isinstance(self.crop, Uncropped)

    @property
    def moves_pixels_in_python(self) -> bool:
        """Whether a step in Python may crop, resize or turn images: its geometry is not known.

        Functions of the user's own count as steps that do not.
        """
        return any(map(_moves_pixels, self.python))

    @property
    def geometry_remedy(self) -> str:
        """Why the geometry of all results is unknown, and what to do; "" if it is known."""
        moving = next((shown_step(original(step)) for step in self.python if _moves_pixels(step)), "")
        if isinstance(self.crop, Uncropped):
            first = moving or "the decoder takes no crop from it"
            crop = next((step.hint.partition(" decodes")[0] for step in self.head if step.hint), "")
            remedy = f"give {crop} in place of these steps" if crop else "begin with the crop, or give crop="
            return f"transform= crops in Python ({first}): {remedy}"
        return f"{moving} in transform= runs in Python: leave it out" if moving else ""

    @property
    def moves_targets_in_python(self) -> bool:
        """Whether steps in Python get the targets of an image with it."""
        return (
            self.moves_pixels_in_python
            or isinstance(self.crop, Uncropped)
            or any(name_of(step) in OF_TARGETS or (is_v2(step) and not name_of(step)) for step in self.python)
        )

    @property
    def steps_without_targets(self) -> list[Any]:
        """Steps in Python that move pixels and do not take targets."""
        return without_targets(self.python)

    @property
    def takes_planes(self) -> bool:
        """Whether the memory of images for Python is in planes: torchvision's steps take 0.8 of the time."""
        first = [step for step in self.python[:1] if not isinstance(step, (Albumentations, OnPil))]
        return any(name_of(step) != "ToPILImage" for step in first)


def _moves_pixels(step: Step) -> bool:
    is_policy = isinstance(step, OnePolicy) and may_move(step.step)
    return is_policy or name_of(step) in GEOMETRIC or isinstance(step, (Albumentations, OnPil))


def without_targets(steps: Sequence[Step]) -> list[Any]:
    """Return those of the steps that move pixels and do not take targets."""
    return [
        original(step)
        for step in steps
        if (name_of(step) in GEOMETRIC and not is_v2(step))
        or isinstance(step, OnPil)
        or (isinstance(step, OnePolicy) and may_move(step.step))
    ]


def pipeline_of(
    transform: Transform | None,
    crop: Crop | Progressive | None,
    flip: float,
    interpolation: str,
    least_boxes: tuple[float, float] | None = None,
) -> Pipeline:
    """Return how a view is made by ``transform``, after ``crop``, ``flip`` and ``interpolation`` if given.

    Raises ValueError for a transform that cannot be called.

    Args:
        transform: Of ``Split``.
        crop: Of ``Split``.
        flip: Of ``Split``.
        interpolation: Of ``Split``.
        least_boxes: Side and area of the smallest boxes that all targets with boxes keep; None without any.
    """
    steps = [] if transform is None else flattened(transform)
    given: list[NativeStep] = []
    if crop is not None:
        given.append(NativeStep(repr(crop), Place.DECODER, interpolation))
        if flip:
            given.append(NativeStep(f"flip={flip:g}", Place.DECODER))
    head = _Head(crop, flip, interpolation, least_boxes)
    while head.position < len(steps) and head.absorb(steps):
        head.position += 1
    if head.crop is None:
        head, steps = _uncropped(steps)
    rest = steps[head.position :]
    start, levels = _tail(rest)
    is_float = head.levels.dtype != torch.uint8
    if is_float:
        start, levels = len(rest), head.levels
    # ToImage has changed the type for the steps in Python.
    python = [*head.wrapping, *rest[:start]] if start else []
    levels_first = bool(python) and is_float
    before = [
        step
        for position, step in enumerate(steps[: head.position + start])
        if levels_first or position not in head.conversions
    ]
    native = head.native
    if levels_first:
        native = [
            replace(step, place=Place.FINAL_PASS, note="") if position in head.conversions else step
            for position, step in enumerate(native)
        ]
    return Pipeline(
        crop=head.crop,
        flip=head.flip,
        interpolation=head.interpolation,
        antialias=head.antialias,
        policies=tuple(head.policies),
        python=tuple(map(adapted, python)),
        levels=levels.format(),
        levels_first=levels_first,
        tail=tuple(map(adapted, rest[start:])),
        least=head.least,
        uncropped=tuple(map(adapted, before)) if head.least else (),
        head=(*given, *native),
    )


class _Head:
    """The native steps at the beginning of a list.

    Attributes:
        position: The first step that is not native.
        native: One for each step before ``position``.
        conversions: Positions of those that make floats.
        wrapping: The ToImage whose type the steps in Python get, if there is one.
    """

    def __init__(
        self,
        crop: Any,
        flip: float = 0.0,
        interpolation: str = "bilinear",
        least_boxes: tuple[float, float] | None = None,
    ) -> None:
        self.crop = crop
        self.least_boxes = least_boxes
        self.last = -1  # position of the last step of the crop, if that is several
        self.flip = flip
        self.interpolation = interpolation
        self.antialias = True
        self.least: tuple[int, int] | None = None
        self.policies: list[Policy] = []
        self.levels = Levels()
        self.conversions: set[int] = set()
        self.wrapping: list[Step] = []
        self.native: list[NativeStep] = []
        self.position = 0

    def absorb(self, steps: list[Any]) -> bool:
        """Whether the step at ``position`` is native; if so, it is added."""
        step = steps[self.position]
        if name_of(step) in CROPS and self.crop is None:
            return self._absorb_crop(steps)
        if name_of(step) in DETECTION_CROPS and self.crop is None:
            return self._absorb_detection_crop(steps)
        if self.position == self.last:
            self._add(step, Place.DECODER, "with the crop")
            return True
        if name_of(step) == "SanitizeBoundingBoxes" and self._is_sanitized(step):
            self._add(step, Place.NOTHING, "as targets= drops such boxes")
            return True
        is_uint8 = self.levels.dtype == torch.uint8
        if isinstance(step, Policy) and self.crop is not None and is_uint8:
            self.policies.append(step)
            self._add(step, Place.BATCH)
            return True
        if self._is_flip(step):
            # The centre of an odd number of pixels is another one after mirroring.
            if self.crop is None and "CenterCrop" in map(name_of, steps[self.position :]):
                return False
            self.flip = float(step.p)
            self._add(step, Place.DECODER)
            return True
        return self._absorb_conversion(step)

    def _is_flip(self, step: Any) -> bool:
        is_first = self.flip == 0 and not self.policies
        return name_of(step) == "RandomHorizontalFlip" and is_first and 0 <= step.p <= 1

    def _absorb_crop(self, steps: list[Any]) -> bool:
        step = steps[self.position]
        crop, method = crop_of(step), method_of(steps, self.position)
        if crop is None or method is None:
            return False
        self.crop = crop
        self.interpolation, self.antialias = method
        pads = isinstance(crop, RandomCrop) and (crop.padding is not None or crop.pad_if_needed)
        if isinstance(crop, (RandomCrop, CenterCrop)) and not pads:
            self.least = crop.size
        self._add(step, Place.DECODER, "which decodes that part only")
        return True

    def _absorb_detection_crop(self, steps: list[Any]) -> bool:
        step, is_uint8 = steps[self.position], self.levels.dtype == torch.uint8
        found = detection_crop_of(steps, self.position) if is_uint8 else None
        method = None if found is None else method_of(steps, found.resize)
        if found is None or method is None:
            return False
        self.crop, self.last = found.crop, found.last
        self.interpolation, self.antialias = method
        self._add(step, Place.DECODER, "which decodes that part only")
        return True

    def _is_sanitized(self, step: Any) -> bool:
        """Whether targets drop what a SanitizeBoundingBoxes behind the crop drops."""
        if self.crop is None or self.least_boxes is None:
            return False
        side, area = self.least_boxes
        return bool(step.min_size <= side and step.min_area <= max(area, side * side))

    def _absorb_conversion(self, step: Any) -> bool:
        name = name_of(step)
        was_uint8 = self.levels.dtype == torch.uint8
        if not self.levels.absorb(step):
            return False
        if name in NOTHING or (was_uint8 and self.levels.dtype == torch.uint8):
            if name == "ToImage":
                self.wrapping = [step]
            elif name == "ToPureTensor":
                self.wrapping = []
            self._add(step, Place.NOTHING)
            return True
        self.conversions.add(self.position)
        if self.crop is None:
            self._add(step, Place.DECODER, f"after the crop, {_ROUNDED}")
        else:
            self._add(step, Place.FINAL_PASS if self.policies else Place.DECODER)
        return True

    def _add(self, step: Any, place: Place, note: str = "") -> None:
        self.native.append(NativeStep(shown_step(step), place, note))


def _uncropped(steps: list[Any]) -> tuple[_Head, list[Any]]:
    """Return the head of a list that does not begin with a native crop, and the steps without it."""
    head = _Head(Uncropped())
    levels = Levels()
    first = next((position for position, step in enumerate(steps) if not levels.absorb(step)), 0)
    resize = steps[first] if steps else None
    shorter = shorter_side(resize) if name_of(resize) == "Resize" else None
    method = method_of(steps, first) if shorter else None
    if not shorter or method is None:
        head.native = [NativeStep("decode", Place.WHOLE_IMAGE)]
        return head, steps
    head.crop = Uncropped(shorter)
    head.interpolation, head.antialias = method
    note = _ROUNDED if levels.dtype != torch.uint8 else ""
    hint = ""
    crop: Any = next((step for step in steps[first + 1 :] if name_of(step) not in NOTHING), None)
    if name_of(crop) == "CenterCrop":
        size = f"{pair(crop.size)}, shorter={shorter}"
        hint = f"crop=tarpeg.CenterCrop({size}) decodes less, a box of whole pixels of the source"
    head.native = [NativeStep(shown_step(resize), Place.RESIZED_IMAGE, note, hint)]
    before = (step for step in steps[:first] if name_of(step) not in NOTHING - {"ToImage"})
    return head, [*before, *steps[first + 1 :]]


def _tail(steps: list[Step]) -> tuple[int, Levels]:
    """Return where the conversions at the end begin, and what they make of uint8 images."""
    for start in range(len(steps)):
        levels = Levels()
        if all(levels.absorb(step) for step in steps[start:]):
            return start, levels
    return len(steps), Levels()
