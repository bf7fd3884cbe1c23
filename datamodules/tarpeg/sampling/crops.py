"""Crops: which box of each image is decoded, as pure functions of image sizes and uniform draws.

Boxes are (top, left, height, width) in upright pixels, always inside the image and at least one pixel. An
image of size (0, 0), which could not be decoded, gets the box (0, 0, 1, 1).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


class Crop(Protocol):
    """What the loader asks of a crop: the size of its output, how many draws it needs, and its boxes."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the output, in pixels."""

    @property
    def draws(self) -> int:
        """How many uniform draws a box takes."""

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """int32 [B, 4] boxes from upright image sizes [B, 2] and uniform draws float [B, draws]."""


class _Size:
    """A field that takes an int (a square) or (height, width) and holds the tuple (height, width)."""

    @overload
    def __get__(self, instance: None, owner: type) -> _Size: ...
    @overload
    def __get__(self, instance: object, owner: type) -> tuple[int, int]: ...
    def __get__(self, instance: object | None, owner: type) -> _Size | tuple[int, int]:
        if instance is None:
            # To dataclass this says: a field without a default.
            raise AttributeError("size")
        size: tuple[int, int] = instance.__dict__["size"]
        return size

    def __set__(self, instance: object, value: SupportsIndex | Sequence[int]) -> None:
        pair = tuple(value) if isinstance(value, Sequence) else (value, value)
        try:
            height, width = (operator.index(side) for side in pair)
        except (TypeError, ValueError):
            raise ValueError(f"size={value!r} must be an int or (height, width), in whole pixels") from None
        if min(height, width) < 1:
            raise ValueError(f"size={value!r} must be positive")
        instance.__dict__["size"] = (height, width)


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and shape, resized to size; distributed as torchvision.transforms.v2's.

    size: an int for a square or (height, width). scale: the box's share of the image's area. ratio: its width
    by its height, drawn evenly in the logarithm. The first of ten tries that fits is taken, otherwise the
    largest central box whose shape is within ratio. Raises ValueError for bounds not positive or not ordered.
    """

    size: _Size = _Size()
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)

    tries: ClassVar[int] = 10
    draws: ClassVar[int] = 2 * tries + 2

    def __post_init__(self) -> None:
        for name in ("scale", "ratio"):
            object.__setattr__(self, name, _range(name, getattr(self, name)))

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """int32 [B, 4] boxes from upright image sizes [B, 2] and uniform draws float [B, 22]."""
        image, drawn = _checked(sizes, draws, self.draws)
        height, width = image[:, :1], image[:, 1:]
        low, high = self.scale
        areas = (height * width) * (low + drawn[:, : self.tries] * (high - low))
        low, high = (math.log(bound) for bound in self.ratio)
        ratios = np.exp(low + drawn[:, self.tries : 2 * self.tries] * (high - low))
        widths, heights = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
        fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
        first = fits.argmax(axis=1)[:, None]
        box = np.take_along_axis(np.stack([heights, widths], axis=-1), first[..., None], axis=1)[:, 0]

        shape = np.clip(width / height, self.ratio[0], self.ratio[1])
        central = np.rint(
            np.concatenate([np.minimum(height, width / shape), np.minimum(width, height * shape)], 1)
        )
        central = np.maximum(central, 1).astype(np.int64)
        found = fits.any(axis=1, keepdims=True)
        size = np.where(found, box, central).astype(np.int64)
        return _joined(np.where(found, _placed(image, size, drawn[:, -2:]), (image - central) // 2), size)


@dataclass(frozen=True)
class RandomCrop:
    """A box of the crop's own size, in source pixels, at a random place; all places are equally likely.

    size: an int for a square or (height, width). Where the image is smaller than the crop, the largest box of
    the crop's shape that fits, which is then resized up.
    """

    size: _Size = _Size()

    draws: ClassVar[int] = 2

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """int32 [B, 4] boxes from upright image sizes [B, 2] and uniform draws float [B, 2]."""
        image, drawn = _checked(sizes, draws, self.draws)
        size = _fitted(image, np.broadcast_to(np.array(self.size, np.int64), image.shape), self.size)
        return _joined(_placed(image, size, drawn), size)


@dataclass(frozen=True)
class CenterCrop:
    """The central box of the crop's size, an int for a square or (height, width); nothing is random.

    With shorter, what "resize the shorter side to that many pixels, then crop the centre" shows, taken as one
    box from the source: size / shorter of the source's shorter side. Where the box does not fit into the
    image, the largest box of the crop's shape that does, as in RandomCrop.
    """

    size: _Size = _Size()
    shorter: int | None = None

    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.shorter is not None and not (isinstance(self.shorter, int) and self.shorter >= 1):
            raise ValueError(f"shorter={self.shorter!r} must be a positive int (pixels), or None")

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike | None = None) -> Int32:
        """int32 [B, 4] boxes from upright image sizes [B, 2]; draws ([B, 0], or None) are not used."""
        image, _ = _checked(sizes, _undrawn(sizes) if draws is None else draws, self.draws)
        wish = np.broadcast_to(np.array(self.size, np.int64), image.shape)
        if self.shorter is not None:
            wish = _divided(wish * image.min(axis=1, keepdims=True), self.shorter)
        size = _fitted(image, wish, self.size)
        # torchvision's center_crop rounds half to even; so do we, to show the same pixels.
        return _joined(np.rint((image - size) / 2).astype(np.int64), size)


@dataclass(frozen=True)
class Whole:
    """The whole image, resized to size whatever its shape: torchvision's Resize((height, width)).

    size: an int for a square or (height, width). Nothing is random.
    """

    size: _Size = _Size()

    draws: ClassVar[int] = 0

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike | None = None) -> Int32:
        """int32 [B, 4] boxes from upright image sizes [B, 2]; draws ([B, 0], or None) are not used."""
        image, _ = _checked(sizes, _undrawn(sizes) if draws is None else draws, self.draws)
        return _joined(np.zeros_like(image), image)


@dataclass(frozen=True)
class Progressive:
    """A crop whose size changes with the epoch: small images at first, which train faster.

    crop: RandomResizedCrop, RandomCrop, CenterCrop, Whole, or a frozen dataclass of one's own with a field
    size. sizes: from which epoch on which size, an int for a square or (height, width): {0: 128, 10: 192, 16:
    224}; before the first of these epochs the crop's own size holds. Nothing else of the crop changes.
    """

    crop: Crop
    sizes: Mapping[int, int | Sequence[int]]

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Mapping) or not self.sizes:
            raise ValueError(
                f"sizes={self.sizes!r} must say from which epoch on which size, such as {{0: 128}}"
            )
        for epoch in self.sizes:
            if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
                raise ValueError(f"sizes={self.sizes!r}: {epoch!r} is no epoch, which is an int from 0")
            self.at(epoch)

    def at(self, epoch: int) -> Crop:
        """Tell the crop of an epoch."""
        begun = [start for start in self.sizes if start <= epoch]
        if not begun:
            return self.crop
        crop: Any = self.crop
        try:
            sized: Crop = replace(crop, size=self.sizes[max(begun)])
        except TypeError as error:
            raise ValueError(f"crop={crop!r} cannot be given another size: {error}") from error
        return sized


def crop_at(crop: Crop | Progressive, epoch: int) -> Crop:
    """Tell the crop of an epoch, which for most is themselves."""
    return crop.at(epoch) if isinstance(crop, Progressive) else crop


def _range(name: str, value: Sequence[float]) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in value)
        if 0 < low <= high < math.inf:
            return low, high
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{name}={value!r} must be two positive numbers, the lower one first")


def _undrawn(sizes: npt.ArrayLike) -> Float64:
    return np.empty((len(np.asarray(sizes)), 0))


def _checked(sizes: npt.ArrayLike, draws: npt.ArrayLike, count: int) -> tuple[Int64, Float64]:
    image, drawn = np.asarray(sizes), np.asarray(draws, np.float64)
    if image.ndim != 2 or image.shape[1] != 2 or image.dtype.kind not in "iu":
        raise ValueError(f"sizes must be integers [B, 2], not {image.dtype} {list(image.shape)}")
    if drawn.shape != (len(image), count):
        raise ValueError(f"draws must be [{len(image)}, {count}], not {list(drawn.shape)}")
    # What cannot be decoded has size (0, 0); as one pixel it gets a box that harms nobody.
    return np.where(image.min(axis=1, keepdims=True, initial=1) < 1, 1, image).astype(np.int64), drawn


def _fitted(image: Int64, wish: Int64, shape: tuple[int, int]) -> Int64:
    """Keep the wished box [B, 2] where it fits into the image, else take the largest of that shape."""
    height, width = image[:, :1], image[:, 1:]
    wide, high = _divided(height * shape[1], shape[0]), _divided(width * shape[0], shape[1])
    largest = np.concatenate([np.minimum(height, high), np.minimum(width, wide)], axis=1)
    fitted: Int64 = np.maximum(np.where((wish <= image).all(axis=1, keepdims=True), wish, largest), 1)
    return fitted


def _divided(numbers: Int64, by: int) -> Int64:
    """Divide and round to the nearest integer, halves up: exact, unlike a detour through float."""
    quotients: Int64 = (2 * numbers + by) // (2 * by)
    return quotients


def _placed(image: Int64, size: Int64, drawn: Float64) -> Int64:
    """Pick top and left [B, 2], evenly among all places where the box is inside the image."""
    places = image - size + 1
    place: Int64 = np.minimum((drawn * places).astype(np.int64), places - 1)
    return place


def _joined(place: Int64, size: Int64) -> Int32:
    return np.concatenate([place, size], axis=1).astype(np.int32)
