"""Random distortions: from uniform draws to parameters of ``augment_batch``, one set per image.

A range is a pair (low, high), or one number n with the meaning that its class documents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import check_probability
from ..ops import matrices
from ..sampling.rng import Float64

Range = float | Sequence[float]
Params = dict[str, Tensor]

# A mask takes one draw per cell, and a view of a sample has 2**16 draws.
_MAX_CELLS = 1 << 15


class Distortion(Protocol):
    """Interface of the parts of ``Augment``."""

    @property
    def draws(self) -> int:
        """Number of uniform draws per image."""

    def params(self, uniforms: Float64, size: tuple[int, int]) -> Params:
        """Return arguments of ``augment_batch`` from draws [B, draws], for images of (height, width)."""


@dataclass(frozen=True)
class Affine:
    """Scale, shear and rotate around the centre, then translate, as torchvision's RandomAffine; bilinear.

    A range is (low, high).

    Args:
        degrees: Range of the rotation; n means -n to n.
        scale: Range of the factor; n means that factor.
        shear: Range of the shear along x in degrees; n means -n to n.
        translate: Range of the shift, drawn separately for x and y, in fractions of width and height; n means
            -n to n.
        probability: Probability, 0 to 1, of transforming an image.

    Example:
        >>> augment = tarpeg.Augment(affine=tarpeg.Affine(degrees=15, scale=(0.8, 1.2), translate=0.1))
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).dtype
        torch.float32
    """

    degrees: Range = 0.0
    scale: Range = (1.0, 1.0)
    shear: Range = 0.0
    translate: Range = 0.0
    probability: float = 1.0

    draws: ClassVar[int] = 6

    def __post_init__(self) -> None:
        check_probabilities(self, "probability")
        for name, limit in (("degrees", math.inf), ("shear", 89.0), ("translate", math.inf)):
            _set_range(self, name, -limit, limit, around=0.0)
        _set_range(self, "scale", 1e-3, 1e3)

    def params(self, uniforms: Float64, size: tuple[int, int]) -> Params:
        """``matrix`` from draws [B, 6]."""
        height, width = size
        center = ((width - 1) / 2, (height - 1) / 2)
        ranges = (self.degrees, self.scale, self.shear, self.translate, self.translate)
        degrees, scale, shear, x, y = (
            torch.from_numpy(_between(bounds, uniforms[:, column])) for column, bounds in enumerate(ranges)
        )
        matrix = matrices.compose(
            matrices.scale(scale, center=center),
            matrices.shear(shear, center=center),
            matrices.rotation(degrees, center),
            matrices.translation(x * width, y * height),
        )
        matrix[torch.from_numpy(uniforms[:, 5] >= self.probability)] = torch.eye(
            2, 3, dtype=matrix.dtype, device="cpu"
        )
        return {"matrix": matrix}


@dataclass(frozen=True)
class Erase:
    """Erase a box of random area and shape, as torchvision's RandomErasing.

    The first of ten tries that fits is used; if none fits, nothing is erased. A box may be as high or as wide
    as the image, which torchvision's and timm's are not: 1 of 1000 boxes at 224x224, 5 at 32x32.

    Args:
        probability: Probability, 0 to 1, of erasing a box.
        area: Range of the erased fraction of the image, within 0 to 1.
        aspect: Range of height / width, which is uniform in the logarithm.
        pixels: Erased pixels become normal random numbers in place of normalised values, as in timm's mode
            "pixel"; otherwise they become ``fill`` of ``Augment``.

    Example:
        >>> augment = tarpeg.Augment(erase=tarpeg.Erase(probability=0.25, pixels=True))
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    probability: float = 0.5
    area: Range = (0.02, 1 / 3)
    aspect: Range = (0.3, 3.3)
    pixels: bool = False

    tries: ClassVar[int] = 10

    def __post_init__(self) -> None:
        check_probabilities(self, "probability")
        if not isinstance(self.pixels, bool):
            raise ValueError(
                f"pixels={self.pixels!r} of Erase must be True, as timm's mode 'pixel', or False, as 'const'"
            )
        _set_range(self, "area", 1e-9, 1.0)
        _set_range(self, "aspect", 1e-9, math.inf)

    @property
    def draws(self) -> int:
        """Two per try, three for the place and whether, and one for random pixels."""
        return 2 * self.tries + 3 + self.pixels

    def params(self, uniforms: Float64, size: tuple[int, int]) -> Params:
        """``erase_boxes`` and, with ``pixels``, ``erase_keys``, from draws [B, draws]."""
        height, width = size
        *places, chance = uniforms.T[2 * self.tries : 2 * self.tries + 3]
        areas = height * width * _between(self.area, uniforms[:, : self.tries])
        low, high = self.aspect  # type: ignore[misc]  # a pair, see _set_range
        ratios = np.exp(_between((math.log(low), math.log(high)), uniforms[:, self.tries : 2 * self.tries]))
        sides = np.rint(np.stack([np.sqrt(areas * ratios), np.sqrt(areas / ratios)], axis=-1))
        fits = ((sides >= 1) & (sides <= size)).all(-1)
        first = fits.argmax(1)
        box = np.take_along_axis(sides, first[:, None, None], axis=1)[:, 0]
        is_erased = fits.any(1) & (chance < self.probability)
        box = np.where(is_erased[:, None], box, 0)
        positions = np.array(size) - box + 1
        position = np.minimum(np.stack(places, 1) * positions, positions - 1)
        boxes = np.concatenate([np.floor(position), box], axis=1).astype(np.int32)
        params = {"erase_boxes": torch.from_numpy(boxes)[:, None]}
        if self.pixels:
            params["erase_keys"] = torch.from_numpy((uniforms[:, -1:] * 2.0**53).astype(np.int64))
        return params


@dataclass(frozen=True)
class GridMask:
    """Erase cells of a grid, drawn independently: RandomMask of the article series.

    Args:
        ratio: Probability, 0 to 1, of each cell.
        cells: Cells of the grid: (height, width), or an int for both.
        dilate: Also erase the four neighbours of each drawn cell; with ``ratio=0.25`` this erases 76%.
        probability: Probability, 0 to 1, of masking an image.

    Example:
        >>> augment = tarpeg.Augment(mask=tarpeg.GridMask(ratio=0.25, cells=8), space="ycbcr")
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    ratio: float = 0.25
    cells: int | Sequence[int] = 16
    dilate: bool = True
    probability: float = 1.0

    def __post_init__(self) -> None:
        check_probabilities(self, "probability", "ratio")
        cells = (self.cells, self.cells) if isinstance(self.cells, int) else tuple(self.cells)
        is_grid = len(cells) == 2 and all(isinstance(side, int) and side >= 1 for side in cells)
        if not is_grid or cells[0] * cells[1] > _MAX_CELLS:
            raise ValueError(
                f"cells={self.cells!r} must be an int or (height, width), at least 1 each and at most "
                f"{_MAX_CELLS} in all"
            )
        object.__setattr__(self, "cells", cells)

    @property
    def draws(self) -> int:
        """One draw per cell, and one for the image."""
        return 1 + int(np.prod(self.cells))

    def params(self, uniforms: Float64, size: tuple[int, int]) -> Params:
        """``mask`` from draws [B, draws]."""
        rows, columns = self.cells  # type: ignore[misc]  # a tuple, see __post_init__
        is_masked = (uniforms[:, 1:] < self.ratio) & (uniforms[:, :1] < self.probability)
        mask = torch.from_numpy(is_masked.reshape(len(uniforms), rows, columns))
        return {"mask": _dilated(mask) if self.dilate else mask}


def check_probabilities(owner: object, *names: str) -> None:
    """Raise ValueError unless these attributes are numbers in 0..1."""
    for name in names:
        check_probability(name, getattr(owner, name), of=owner)


def _dilated(mask: Tensor) -> Tensor:
    """Grow each true cell of a mask, bool [B, h, w], over its four neighbours."""
    grown = mask.clone()
    grown[:, 1:] |= mask[:, :-1]
    grown[:, :-1] |= mask[:, 1:]
    grown[..., 1:] |= mask[..., :-1]
    grown[..., :-1] |= mask[..., 1:]
    return grown


def _between(bounds: Range, uniforms: Float64) -> Float64:
    low, high = bounds  # type: ignore[misc]  # a pair, see _set_range
    return low + uniforms * (high - low)


def _set_range(owner: object, name: str, least: float, most: float, *, around: float | None = None) -> None:
    """Store a range as a pair of finite floats, after a check of its bounds.

    A number n means n..n or, with ``around``, around - n..around + n without negative factors.
    """
    value = getattr(owner, name)
    if isinstance(value, (int, float)) and around is not None:
        if not value >= 0:
            raise ValueError(f"{name}={value!r} must not be negative, or must be a pair (low, high)")
        value = (around - value if around == 0 else max(0.0, around - value), around + value)
    elif isinstance(value, (int, float)):
        value = (value, value)
    try:
        low, high = (float(bound) for bound in value)
        if least <= low <= high <= most and math.isfinite(low) and math.isfinite(high):
            object.__setattr__(owner, name, (low, high))
            return
    except (TypeError, ValueError):
        pass
    limits = [f"at least {least}"] * math.isfinite(least)
    limits += ["finite" if math.isinf(most) else f"at most {most}"]
    raise ValueError(
        f"{name}={value!r} of {type(owner).__name__} must be a number or a pair (low, high), "
        f"{', '.join(limits)}"
    )
