"""Random distortions: from uniform draws to the numbers that ``augment_batch`` takes, for each image.

A range is two numbers, the lower one first, or one number n for what its field says that means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..ops import matrices

Float64 = npt.NDArray[np.float64]
Range = float | Sequence[float]
Params = dict[str, Tensor]

# A mask takes a draw for each cell, and a view of a sample has 2**16 draws.
_MOST_CELLS = 1 << 15


class Distortion(Protocol):
    """What ``Augment`` asks of a distortion."""

    @property
    def draws(self) -> int:
        """How many uniform draws an image takes."""

    def params(self, uniforms: Float64, size: tuple[int, int]) -> Params:
        """Arguments of ``augment_batch`` from draws [B, draws], for images of that height and width."""


@dataclass(frozen=True)
class Affine:
    """Scale, slant and turn around the image's centre, then move it; bilinear, as torchvision's RandomAffine.

    ``degrees``: a range; n means -n..n. ``scale``: a range of factors. ``shear``: degrees along x; n means
    -n..n. ``translate``: shares of width and height, drawn for each; n means -n..n. ``probability``: of
    doing anything at all.
    """

    degrees: Range = 0.0
    scale: Range = (1.0, 1.0)
    shear: Range = 0.0
    translate: Range = 0.0
    probability: float = 1.0

    draws: ClassVar[int] = 6

    def __post_init__(self) -> None:
        _probability(self)
        for name, limit in (("degrees", math.inf), ("shear", 89.0), ("translate", math.inf)):
            _set(self, name, _around(name, getattr(self, name), 0.0), -limit, limit)
        pair = (self.scale, self.scale) if isinstance(self.scale, (int, float)) else self.scale
        _set(self, "scale", pair, 1e-3, 1e3)

    def params(self, uniforms: Float64, size: tuple[int, int]) -> Params:
        """``matrix`` from draws [B, 6]."""
        height, width = size
        center = ((width - 1) / 2, (height - 1) / 2)
        degrees, scale, shear = (
            torch.from_numpy(_between(bounds, uniforms[:, column]))
            for column, bounds in enumerate((self.degrees, self.scale, self.shear))
        )
        x, y = (torch.from_numpy(_between(self.translate, uniforms[:, column])) for column in (3, 4))
        matrix = matrices.compose(
            matrices.scale(scale, center=center),
            matrices.shear(shear, center=center),
            matrices.rotation(degrees, center),
            matrices.translation(x * width, y * height),
        )
        matrix[torch.from_numpy(uniforms[:, 5] >= self.probability)] = matrices.identity()
        return {"matrix": matrix}


@dataclass(frozen=True)
class Color:
    """Change brightness, contrast, saturation and hue, in that order.

    The first three are ranges of factors, where 1 changes nothing; n means max(0, 1 - n)..1 + n. ``hue``: a
    range of turns within -0.5..0.5; n means -n..n. ``probability``: of doing anything at all. Distributed as
    torchvision's ColorJitter, which shuffles the order.
    """

    brightness: Range = 0.0
    contrast: Range = 0.0
    saturation: Range = 0.0
    hue: Range = 0.0
    probability: float = 1.0

    draws: ClassVar[int] = 5

    def __post_init__(self) -> None:
        _probability(self)
        for name in ("brightness", "contrast", "saturation"):
            _set(self, name, _around(name, getattr(self, name), 1.0), 0.0, math.inf)
        _set(self, "hue", _around("hue", self.hue, 0.0), -0.5, 0.5)

    def params(self, uniforms: Float64, size: tuple[int, int]) -> Params:
        """``brightness``, ``contrast``, ``saturation`` and ``hue``, those that change anything."""
        params, is_changed = {}, uniforms[:, 4] < self.probability
        for column, name in enumerate(("brightness", "contrast", "saturation", "hue")):
            bounds, neutral = getattr(self, name), 0.0 if name == "hue" else 1.0
            if bounds != (neutral, neutral):
                values = np.where(is_changed, _between(bounds, uniforms[:, column]), neutral)
                params[name] = torch.from_numpy(values)
        return params


@dataclass(frozen=True)
class Erase:
    """Erase a box, of random area and shape, as torchvision's RandomErasing.

    ``area``: its share of the image, a range within 0..1. ``aspect``: its height by its width, drawn evenly
    in the logarithm. The first of ten tries that fits is taken; where none does, nothing is erased.
    """

    probability: float = 0.5
    area: Range = (0.02, 1 / 3)
    aspect: Range = (0.3, 3.3)

    tries: ClassVar[int] = 10
    draws: ClassVar[int] = 2 * tries + 3

    def __post_init__(self) -> None:
        _probability(self)
        for name, limit in (("area", 1.0), ("aspect", math.inf)):
            value = getattr(self, name)
            _set(self, name, (value, value) if isinstance(value, (int, float)) else value, 1e-9, limit)

    def params(self, uniforms: Float64, size: tuple[int, int]) -> Params:
        """``erase_boxes`` from draws [B, 23]."""
        height, width = size
        areas = height * width * _between(self.area, uniforms[:, : self.tries])
        low, high = _pair(self.aspect)
        ratios = np.exp(_between((math.log(low), math.log(high)), uniforms[:, self.tries : 2 * self.tries]))
        sides = np.rint(np.stack([np.sqrt(areas * ratios), np.sqrt(areas / ratios)], axis=-1))
        fits = ((sides >= 1) & (sides <= size)).all(-1)
        first = fits.argmax(1)
        box = np.take_along_axis(sides, first[:, None, None], axis=1)[:, 0]
        is_erased = fits.any(1) & (uniforms[:, -1] < self.probability)
        box = np.where(is_erased[:, None], box, 0)
        places = np.array(size) - box + 1
        place = np.minimum(uniforms[:, -3:-1] * places, places - 1)
        boxes = np.concatenate([np.floor(place), box], axis=1).astype(np.int32)
        return {"erase_boxes": torch.from_numpy(boxes)[:, None]}


@dataclass(frozen=True)
class Mask:
    """Erase cells of a grid, drawn one by one: the article series' RandomMask.

    ``ratio``: the probability of each cell. ``cells``: of the grid, (height, width) or an int for both.
    ``dilate``: each cell that is drawn takes its four neighbours along: of ratio 0.25, 76% are erased then.
    ``probability``: of masking an image at all.
    """

    ratio: float = 0.25
    cells: int | Sequence[int] = 16
    dilate: bool = True
    probability: float = 1.0

    def __post_init__(self) -> None:
        _probability(self, "probability", "ratio")
        cells = (self.cells, self.cells) if isinstance(self.cells, int) else tuple(self.cells)
        is_grid = len(cells) == 2 and all(isinstance(side, int) and side >= 1 for side in cells)
        if not is_grid or cells[0] * cells[1] > _MOST_CELLS:
            raise ValueError(
                f"cells={self.cells!r} must be an int or (height, width), at least 1 each and at most "
                f"{_MOST_CELLS} in all"
            )
        object.__setattr__(self, "cells", cells)

    @property
    def draws(self) -> int:
        """One for each cell, and one."""
        return 1 + int(np.prod(self.cells))

    def params(self, uniforms: Float64, size: tuple[int, int]) -> Params:
        """``mask`` from draws [B, draws]."""
        # Importing this loads the operators; importing this module must not.
        from ..ops.augment import dilate

        is_masked = (uniforms[:, 1:] < self.ratio) & (uniforms[:, :1] < self.probability)
        mask = torch.from_numpy(is_masked.reshape(len(uniforms), *self._grid()))
        return {"mask": dilate(mask) if self.dilate else mask}

    def _grid(self) -> tuple[int, int]:
        height, width = self.cells  # type: ignore[misc]
        return height, width


def _between(bounds: Range, uniforms: Float64) -> Float64:
    low, high = _pair(bounds)
    return low + uniforms * (high - low)


def _pair(bounds: Range) -> tuple[float, float]:
    low, high = bounds  # type: ignore[misc]
    return low, high


def _around(name: str, value: Range, neutral: float) -> Range:
    """Turn one number n into the range around what changes nothing."""
    if not isinstance(value, (int, float)):
        return value
    if not value >= 0:
        raise ValueError(f"{name}={value!r} must not be negative, or be two numbers")
    return (neutral - value if neutral == 0 else max(0.0, neutral - value), neutral + value)


def _set(owner: object, name: str, value: Range, least: float, most: float) -> None:
    try:
        low, high = (float(bound) for bound in value)  # type: ignore[union-attr]
        if least <= low <= high <= most and math.isfinite(low) and math.isfinite(high):
            object.__setattr__(owner, name, (low, high))
            return
    except (TypeError, ValueError):
        pass
    bounds = "finite" if math.isinf(most) else f"at most {most}"
    raise ValueError(
        f"{name}={value!r} of {type(owner).__name__} must be a number or two, the lower one first"
        + (f", at least {least}" if math.isfinite(least) else "")
        + f", {bounds}"
    )


def _probability(owner: object, *names: str) -> None:
    for name in names or ("probability",):
        value = getattr(owner, name)
        if not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ValueError(f"{name}={value!r} of {type(owner).__name__} is a probability, from 0 to 1")
