"""Crops: the box of each image that is decoded, as pure functions of image sizes and uniform numbers.

Boxes are (top, left, height, width) in upright pixels, always inside the image and at least one pixel. An
image of size (0, 0), which could not be decoded, gets the box (0, 0, 1, 1). Of crops that pad, each box is
followed by its place in the result (``padded``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from .rng import LATER_PASS, Float64, Int64

Int32 = npt.NDArray[np.int32]


class SmallImageError(ValueError):
    """An image is smaller than a crop that does not enlarge it. ``row``: of the first such image."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message, row)
        self.message, self.row = message, row

    def __str__(self) -> str:
        return self.message


class Crop(Protocol):
    """Interface of a crop: the size of its output, the count of numbers per box, and the boxes.

    It may have more methods: see ``CropMethods``.
    """

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the output, in pixels."""

    @property
    def draws(self) -> int:
        """Count of uniform random numbers per box."""

    # Any: jsonargparse compares annotations with those of your own crop, and Any equals all of them.
    def boxes(self, sizes: Any, draws: Any, /) -> Any:
        """Boxes, int32 [B, 4], from upright image sizes [B, 2] and uniform numbers float [B, draws].

        Or int32 [B, 8]: each box and the part of the result that it becomes, (top, left, height, width). The
        rest has the colour ``fill``, an attribute of the crop: a level, or three, 0 to 255; without it black.
        """


class _Size:
    """A dataclass field: accepts an int (a square) or (height, width), holds the tuple (height, width)."""

    def __get__(self, instance: object | None, owner: type) -> tuple[int, int]:
        if instance is None:
            # dataclass then treats the field as one without a default.
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


# The annotation of the field: for type checkers the descriptor; for tools that read annotations at run time,
# such as jsonargparse (which evaluates ``if TYPE_CHECKING:`` itself), the values that it accepts.
Size = _Size
if not TYPE_CHECKING:
    Size = int | Sequence[int]


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and shape, resized to ``size``; distributed as torchvision's RandomResizedCrop.

    The first of ten tries that fits into the image is taken, otherwise the largest central box with a shape
    within ``ratio``.

    Args:
        size: Size of the result in pixels: (height, width), or an int for a square.
        scale: Bounds of the box's share of the image's area.
        ratio: Bounds of width / height, which is uniform in the logarithm.

    Raises:
        ValueError: If bounds are not positive or not in order.

    Example:
        >>> crop = tarpeg.RandomResizedCrop(224, scale=(0.25, 1.0))
        >>> split = tarpeg.Split(shards, crop, flip=0.5)
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=8, workers=0)
        >>> next(iter(data.train_dataloader())).image.shape
        torch.Size([8, 3, 224, 224])
    """

    size: Size = _Size()
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)

    tries: ClassVar[int] = 10
    draws: ClassVar[int] = 2 * tries + 2

    def __post_init__(self) -> None:
        for name in ("scale", "ratio"):
            object.__setattr__(self, name, _range(name, getattr(self, name)))

    @cached_property
    def _logarithms(self) -> tuple[float, float]:
        low, high = self.ratio
        return math.log(low), math.log(high)

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """Boxes, int32 [B, 4], from upright image sizes [B, 2] and uniform numbers float [B, 22]."""
        image, uniforms = _checked(sizes, draws, self.draws)
        height, width = image[:, :1], image[:, 1:]
        low, high = self.scale
        areas = (height * width) * (low + uniforms[:, : self.tries] * (high - low))
        low, high = self._logarithms
        ratios = np.exp(low + uniforms[:, self.tries : 2 * self.tries] * (high - low))
        # Of a few rows the number of calls is the cost: heights and widths are one array.
        sides = np.empty((2, *areas.shape))
        np.divide(areas, ratios, out=sides[0])
        np.multiply(areas, ratios, out=sides[1])
        np.rint(np.sqrt(sides, out=sides), out=sides)
        inside = sides <= image.T[:, :, None]
        fits = inside[0] & inside[1]
        if sides.min(initial=1) < 1:
            fits &= (sides >= 1).all(axis=0)
        rows, first = np.arange(len(fits)), fits.argmax(axis=1)
        size = sides[:, rows, first].T.astype(np.int64)
        found = fits[rows, first]
        if found.all():  # mostly
            return _joined(_placed(image, size, uniforms[:, -2:]), size)
        found = found[:, None]
        shape = np.clip(width / height, self.ratio[0], self.ratio[1])
        central = np.concatenate([np.minimum(height, width / shape), np.minimum(width, height * shape)], 1)
        size = np.where(found, size, np.maximum(np.rint(central), 1).astype(np.int64))
        place = _placed(image, size, uniforms[:, -2:])
        return _joined(np.where(found, place, (image - size) // 2), size)


Fill = int | Sequence[int]
"""Colour of padding: a level from 0 to 255, or (red, green, blue)."""


def gray_of(colour: tuple[int, int, int]) -> int:
    """Return the gray of a colour, as Pillow's ``convert("L")``."""
    red, green, blue = colour
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def checked_fill(crop: Any) -> None:
    """Raise ValueError unless ``fill`` of a crop is a colour."""
    colour_of(crop)


def colour_of(crop: Any) -> tuple[int, int, int]:
    """Return red, green and blue of a crop's padding; a crop of a user's own may have no ``fill``."""
    fill = getattr(crop, "fill", 0)
    colour = tuple(fill) if isinstance(fill, Sequence) and not isinstance(fill, str) else (fill,) * 3
    if len(colour) != 3 or not all(type(level) is int and 0 <= level <= 255 for level in colour):
        raise ValueError(
            f"fill={fill!r} of {type(crop).__name__} must be a level from 0 to 255, or (red, green, blue)"
        )
    return colour[0], colour[1], colour[2]


def levels_of(crop: Any, channels: int) -> list[int]:
    """Return the level of each of ``channels``, 1 or 3, in a crop's padding."""
    colour = colour_of(crop)
    return [gray_of(colour)] if channels == 1 else list(colour)


@dataclass(frozen=True)
class RandomCrop:
    """A box of the crop's own size, in source pixels, at a random place; all places are equally likely.

    An image that is smaller than the crop is an error, as in torchvision.

    Args:
        size: Size of the box and of the result in pixels: (height, width), or an int for a square.
        enlarge_if_needed: Of an image smaller than the crop, take the largest box of the crop's shape,
            and resize it up.
        padding: Pixels around the image, in which the box may lie too: an int; (left and right, top and
            bottom); or (left, top, right, bottom), as in torchvision. Less than the crop's own side.
        pad_if_needed: Put an image that is smaller than the crop at a random place of the result, as
            torchvision does.
        fill: Colour of the padding: a level from 0 to 255, or (red, green, blue).

    Raises:
        ValueError: For an argument out of range; in ``boxes``, for an image that is smaller than the crop.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.RandomCrop((96, 128)))
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=8, workers=0)
        >>> next(iter(data.train_dataloader())).image.shape
        torch.Size([8, 3, 96, 128])
    """

    size: Size = _Size()
    enlarge_if_needed: bool = False
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: Fill = 0

    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        for name in ("enlarge_if_needed", "pad_if_needed"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        checked_fill(self)
        left, top, right, bottom = self._margins()
        height, width = self.size
        if max(left, right) >= width or max(top, bottom) >= height:
            raise ValueError(f"padding={self.padding!r} of RandomCrop must be less than size={self.size}")
        if self.enlarge_if_needed and (self.pad_if_needed or self.padding is not None):
            raise ValueError(
                f"enlarge_if_needed=True and padding={self.padding!r}, pad_if_needed={self.pad_if_needed}: "
                "small images are enlarged or padded; give one of them"
            )

    def _margins(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the padding."""
        given = self.padding
        numbers = tuple(given) if isinstance(given, Sequence) else (0 if given is None else given,)
        if len(numbers) in (1, 2, 4) and all(type(each) is int and each >= 0 for each in numbers):
            left, top, right, bottom = numbers * (4 // len(numbers))
            return left, top, right, bottom
        raise ValueError(
            f"padding={given!r} of RandomCrop must be pixels, of at least 0: an int, (left and right, top "
            "and bottom), or (left, top, right, bottom)"
        )

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """Boxes, int32 [B, 4], from upright image sizes [B, 2] and uniform numbers float [B, 2].

        With ``padding`` or ``pad_if_needed`` int32 [B, 8], boxes and their places in the result.
        """
        image, uniforms = _checked(sizes, draws, self.draws)
        if self.padding is not None or self.pad_if_needed:
            return self._padded(np.asarray(sizes), image, uniforms)
        size = np.array(self.size)
        if (size <= image).all():  # mostly
            return _joined(_placed(image, size, uniforms), size)
        size = _fitted(image, size, self.size)
        if not self.enlarge_if_needed:
            self._refuse_small(np.asarray(sizes), size)
        return _joined(_placed(image, size, uniforms), size)

    def _padded(self, sizes: Int64, image: Int64, uniforms: Float64) -> Int32:
        """Boxes and places [B, 8] of crops of the padded image."""
        left, top, right, bottom = self._margins()
        crop, before = np.array(self.size), np.array([top, left])
        whole = image + before + np.array([bottom, right])
        if not self.pad_if_needed:
            self._refuse_small(sizes, np.minimum(whole, crop))
        missing = np.maximum(crop - whole, 0)  # torchvision pads both sides by all of it
        corner = _placed(whole + 2 * missing, np.broadcast_to(crop, image.shape), uniforms) - missing - before
        begin, end = np.maximum(corner, 0), np.minimum(corner + crop, image)
        return np.concatenate([begin, end - begin, begin - corner, end - begin], axis=1).astype(np.int32)

    def _refuse_small(self, sizes: Int64, fitted: Int64) -> None:
        is_fitted = fitted != self.size
        if not is_fitted.any():
            return
        is_small = is_fitted.any(axis=1) & (sizes.min(axis=1, initial=1) > 0)
        if is_small.any():
            row = int(is_small.argmax())
            height, width = sizes[row].tolist()
            raise SmallImageError(
                f"crop=RandomCrop({self.size}) is larger than the image of {height} x {width}. Give "
                f"RandomCrop({self.size}, enlarge_if_needed=True) to resize such images up, or "
                "pad_if_needed=True to pad them",
                row,
            )


@dataclass(frozen=True)
class CenterCrop:
    """The central box of the crop's size; not random.

    If the box does not fit into the image, it is the largest box of the crop's shape that does, and is
    resized up.

    Args:
        size: Size of the result in pixels: (height, width), or an int for a square.
        shorter: Resize the shorter side to that many pixels, then crop the centre. At least the smaller side
            of ``size``. ``Split(fidelity="exact")`` does this as torchvision, bit for bit, on the whole
            image. ``"fast"`` decodes one box, whose shorter side is size / shorter of the image's: it lies on
            whole pixels of the source, up to half a pixel from torchvision's.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.CenterCrop(128, shorter=144))
        >>> data = tarpeg.ShardDataModule(val=split, batch_size=8, workers=0)
        >>> next(iter(data.val_dataloader())).image.shape
        torch.Size([8, 3, 128, 128])
    """

    size: Size = _Size()
    shorter: int | None = None

    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.shorter is not None and not (isinstance(self.shorter, int) and self.shorter >= 1):
            raise ValueError(f"shorter={self.shorter!r} must be a positive int (pixels), or None")
        if self.shorter is not None and self.shorter < (least := min(self.size)):
            raise ValueError(
                f"shorter={self.shorter!r} must be at least {least}, the smaller side of size={self.size}: "
                f"this crop fits into no image whose shorter side is {self.shorter}"
            )

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike | None = None) -> Int32:
        """Boxes, int32 [B, 4], from upright image sizes [B, 2]; draws ([B, 0], or None) is not used."""
        image, _ = _checked(sizes, draws, self.draws)
        wanted = np.array(self.size)
        if self.shorter is not None:
            wanted = _divided(wanted * np.minimum(image[:, :1], image[:, 1:]), self.shorter)
        size = _fitted(image, wanted, self.size)
        # torchvision's center_crop rounds half to even; so do we, to take the same pixels.
        return _joined(np.rint((image - size) / 2), size)


@dataclass(frozen=True)
class Whole:
    """The whole image, resized whatever its shape: torchvision's Resize((height, width)). Not random.

    Args:
        size: Size of the result in pixels: (height, width), or an int for a square.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.Whole((96, 128)))
        >>> data = tarpeg.ShardDataModule(val=split, batch_size=8, workers=0)
        >>> next(iter(data.val_dataloader())).image.shape
        torch.Size([8, 3, 96, 128])
    """

    size: Size = _Size()

    draws: ClassVar[int] = 0

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike | None = None) -> Int32:
        """Boxes, int32 [B, 4], from upright image sizes [B, 2]; draws ([B, 0], or None) is not used."""
        image, _ = _checked(sizes, draws, self.draws)
        return _joined(np.zeros_like(image), image)


@dataclass(frozen=True)
class Progressive:
    """A crop that changes with the epoch: small images at first, which train faster; or another crop.

    Before the first epoch in ``sizes`` it is the crop itself. With a size, nothing but the size changes.

    Args:
        crop: ``RandomResizedCrop``, ``RandomCrop``, ``CenterCrop``, ``Whole``, or a frozen dataclass of your
            own with a field ``size``.
        sizes: First epoch of each size, which is (height, width) or an int for a square, or of a crop that is
            used instead, such as ``{90: Mosaic(640, p=0)}``.

    Example:
        >>> crop = tarpeg.Progressive(tarpeg.RandomResizedCrop(224), {0: 128, 10: 192, 16: 224})
        >>> crop.at(0).size, crop.at(12).size
        ((128, 128), (192, 192))
    """

    crop: Crop
    sizes: Mapping[int, int | Sequence[int] | Crop]

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Mapping) or not self.sizes:
            raise ValueError(f"sizes={self.sizes!r} must map epochs to sizes, such as {{0: 128, 10: 224}}")
        for epoch in self.sizes:
            if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
                raise ValueError(f"sizes={self.sizes!r}: epoch {epoch!r} must be an int of at least 0")
            self.at(epoch)
        for crop in (self.crop, *map(self.at, self.sizes)):
            if hasattr(crop, "at_size") or hasattr(crop, "patch_size"):
                raise ValueError(
                    f"Progressive with {crop!r}: an epoch's batches of many shapes are planned before the "
                    "first one. Train with one after another: a second run with the other crop goes on from "
                    "the last checkpoint of the first"
                )

    def at(self, epoch: int) -> Crop:
        """Return the crop of an epoch."""
        starts = [start for start in self.sizes if start <= epoch % LATER_PASS]
        if not starts:
            return self.crop
        crop: Any = self.crop
        given: Any = self.sizes[max(starts)]
        if hasattr(given, "boxes"):
            own: Crop = given
            return own
        try:
            resized: Crop = replace(crop, size=given)
        except TypeError as error:
            raise ValueError(
                f"crop={crop!r} must be a frozen dataclass with a field size, to change its size: {error}"
            ) from error
        return resized


def crop_at(crop: Crop | Progressive, epoch: int) -> Crop:
    """Return the crop of an epoch; only ``Progressive`` changes with it."""
    return crop.at(epoch) if isinstance(crop, Progressive) else crop


@dataclass(frozen=True, eq=False)
class CropMethods:
    """A crop with all methods that a loader may call: ``Crop`` has those that each crop has.

    A crop of a user's own needs no base class: ``methods_of`` looks once which of the others it has.

    Args:
        crop: The crop.
        parts: For images that are made of several samples, see ``Mosaic.parts``; None: of one each.
        partners: How many samples are drawn to be in the image of each.
        is_pasted: Whether objects are pasted into an image, see ``CopyPaste.is_pasted``.
        boxes_among: For boxes that depend on the objects of an image, see ``RandomIoUCrop.boxes_among``.
        drops_by_centre: See ``View``.
        size_of: Size of a batch from the sizes of its images, ``(sizes) -> (height, width)``.
        padded_size: The same for a crop that draws it, and pads, see ``RandomShortestSize.padded_size``.
        at_size: The crop for a batch whose size is given by its request, see ``AspectBuckets.at_size``.
        patch_size: Side of the patches that results are cut into, of ``Patches``; 0 for images.
    """

    crop: Crop
    parts: Callable[[Any, Any], Any] | None = None
    partners: int = 0
    is_pasted: Callable[[Any], Any] | None = None
    boxes_among: Callable[[Any, Any, Any], Any] | None = None
    drops_by_centre: bool = False
    size_of: Callable[[Any], Any] | None = None
    padded_size: Callable[[Any, Any], Any] | None = None
    at_size: Callable[[Any], Crop] | None = None
    patch_size: int = 0

    @property
    def has_many_sizes(self) -> bool:
        """Whether the size of a batch depends on its images."""
        return self.size_of is not None or self.padded_size is not None


def methods_of(crop: Any) -> CropMethods:
    """Return the methods of a crop, of this package or of a user's own."""
    given: dict[str, Any] = {
        each.name: getattr(crop, each.name, each.default) for each in fields(CropMethods)[1:]
    }
    return CropMethods(crop, **given)


def _range(name: str, value: Sequence[float]) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in value)
        if 0 < low <= high < math.inf:
            return low, high
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{name}={value!r} must be two positive numbers, the lower one first")


def _checked(sizes: npt.ArrayLike, draws: npt.ArrayLike | None, count: int) -> tuple[Int64, Float64]:
    """Image sizes of at least 1 pixel, int64 [B, 2], and uniform numbers [B, count]; draws None: [B, 0]."""
    image = np.asarray(sizes)
    uniforms = np.empty((len(image), 0)) if draws is None else np.asarray(draws, np.float64)
    if image.ndim != 2 or image.shape[1] != 2 or image.dtype.kind not in "iu":
        raise ValueError(f"sizes must be integers [B, 2], not {image.dtype} {list(image.shape)}")
    if uniforms.shape != (len(image), count):
        raise ValueError(f"draws must be [{len(image)}, {count}], not {list(uniforms.shape)}")
    if image.size and image.min() >= 1:
        return image.astype(np.int64), uniforms
    # An undecodable image has size (0, 0); as one pixel it gets a valid box.
    return np.where(image.min(axis=1, keepdims=True, initial=1) < 1, 1, image).astype(np.int64), uniforms


def _fitted(image: Int64, wanted: Int64, shape: tuple[int, int]) -> Int64:
    """Box sizes [B, 2]: ``wanted``, [2] or [B, 2], if it fits, else the largest box of that shape."""
    if (wanted <= image).all():
        same = np.empty_like(image)
        return np.maximum(wanted, 1, out=same)
    height, width = image[:, :1], image[:, 1:]
    wide, high = _divided(height * shape[1], shape[0]), _divided(width * shape[0], shape[1])
    largest = np.concatenate([np.minimum(height, high), np.minimum(width, wide)], axis=1)
    fitted: Int64 = np.maximum(np.where((wanted <= image).all(axis=1, keepdims=True), wanted, largest), 1)
    return fitted


def _divided(numbers: Int64, by: int) -> Int64:
    """Quotients rounded to the nearest integer, halves up; exact, unlike division of floats."""
    quotients: Int64 = (2 * numbers + by) // (2 * by)
    return quotients


def _placed(image: Int64, size: Int64, uniforms: Float64) -> Int64:
    """Top and left [B, 2], uniform over all places where the box is inside the image."""
    room = image - size
    place: Int64 = np.minimum((uniforms * (room + 1)).astype(np.int64), room)
    return place


def _joined(place: Int64 | Float64, size: Int64) -> Int32:
    """Boxes [B, 4] of places in whole pixels, [B, 2], and of a size for each or for all."""
    boxes = np.empty((len(place), 4), np.int32)
    boxes[:, :2] = place
    boxes[:, 2:] = size
    return boxes
