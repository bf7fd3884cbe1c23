"""Crops whose images do not fill the result: each has a place in it, and the rest is padding.

Their ``boxes()`` are int32 [B, 8]: the box in the source, and the place in the result, (top, left, height,
width) each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import check_integer
from .crops import Fill, Int32, Size, _checked, _placed, _range, _Size, checked_fill
from .rng import Int64


@dataclass(frozen=True)
class LetterBox:
    """The whole image at its own shape, as large as ``size`` holds it, and padding: Ultralytics' LetterBox.

    Not random. The image is resized, and rounded to whole pixels, as Ultralytics does it.

    Args:
        size: Size of the result in pixels: (height, width), or an int for a square.
        scaleup: Enlarge images that are smaller than ``size``; False: they keep their size.
        center: Put the image in the centre; False: at the top left.
        fill: Colour of the padding: a level from 0 to 255, or (red, green, blue).

    Raises:
        ValueError: For an argument out of range.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.LetterBox(128))
        >>> data = tarpeg.ShardDataModule(val=split, batch_size=8, workers=0)
        >>> next(iter(data.val_dataloader())).image[0, :, 0, 0].tolist()  # the padding
        [114, 114, 114]
    """

    size: Size = _Size()  # noqa: RUF009
    scaleup: bool = True
    center: bool = True
    fill: Fill = 114

    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        checked_fill(self)
        for name in ("scaleup", "center"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} of LetterBox must be True or False")

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike | None = None) -> Int32:
        """Boxes and places, int32 [B, 8], from upright image sizes [B, 2]; draws ([B, 0], or None)."""
        image, _ = _checked(sizes, draws, self.draws)
        canvas = np.array(self.size)
        ratios = canvas / image
        ratio = np.minimum(ratios[:, :1], ratios[:, 1:])
        if not self.scaleup:
            ratio = np.minimum(ratio, 1.0)
        size = np.maximum(np.rint(image * ratio), 1)
        boxes = np.zeros((len(image), 8), np.int32)  # filled in place: of a few rows, calls are the cost
        boxes[:, 2:4], boxes[:, 6:] = image, size
        if self.center:
            boxes[:, 4:6] = np.rint((canvas - size) / 2 - 0.1)
        return boxes


@dataclass(frozen=True)
class ScaleJitter:
    """The image at a random scale, then a box of ``size`` at a random place of it: large scale jitter.

    Distributed as torchvision's ``ScaleJitter(target_size, scale_range)`` and a random crop of what is larger
    than ``size``. What is smaller is padded at the right and at the bottom, as by ``FixedSizeCrop`` of
    torchvision's and Detectron2's references. The box has whole pixels of the source: it is up to half a
    pixel from torchvision's, which resizes the whole image.

    Args:
        size: Size of the result in pixels: (height, width), or an int for a square.
        scale_range: Bounds of the scale, which is uniform; 1 is the scale at which the image just fits into
            ``target_size``.
        target_size: (height, width); None: ``size``.
        fill: Colour of the padding: a level from 0 to 255, or (red, green, blue).
        anywhere: Put an image that is smaller than ``size`` at a random place of it, as torchvision's
            ``RandomCrop(size, pad_if_needed=True)``; False: at the top left.

    Raises:
        ValueError: For an argument out of range.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.ScaleJitter(128, scale_range=(0.5, 2.0)), flip=0.5)
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=8, workers=0)
        >>> next(iter(data.train_dataloader())).image.shape
        torch.Size([8, 3, 128, 128])
    """

    size: Size = _Size()  # noqa: RUF009
    scale_range: Sequence[float] = (0.1, 2.0)
    target_size: int | Sequence[int] | None = None
    fill: Fill = 0
    anywhere: bool = False

    draws: ClassVar[int] = 3

    def __post_init__(self) -> None:
        checked_fill(self)
        object.__setattr__(self, "scale_range", _range("scale_range", self.scale_range))
        if self.target_size is not None:
            object.__setattr__(self, "target_size", _pair("target_size", self.target_size))
        if not isinstance(self.anywhere, bool):
            raise ValueError(f"anywhere={self.anywhere!r} of ScaleJitter must be True or False")

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """Boxes and places, int32 [B, 8], from upright image sizes [B, 2] and uniform numbers [B, 3]."""
        image, uniforms = _checked(sizes, draws, self.draws)
        low, high = self.scale_range
        target = np.array(self.size if self.target_size is None else self.target_size)
        ratio = (target / image).min(axis=1) * (low + uniforms[:, 0] * (high - low))
        resized = np.maximum((image * ratio[:, None]).astype(np.int64), 1)
        window = np.minimum(resized, self.size)
        corner = _placed(resized, window, uniforms[:, 1:])
        scale = image / resized
        begin = np.minimum(np.rint(corner * scale).astype(np.int64), image - 1)
        end = np.minimum(np.rint((corner + window) * scale).astype(np.int64), image)
        place = np.zeros_like(window)
        if self.anywhere:  # an axis is either cut or padded
            place = _placed(np.tile(np.array(self.size), (len(image), 1)), window, uniforms[:, 1:])
        return _joined(begin, np.maximum(end - begin, 1), place, window)


@dataclass(frozen=True)
class RandomShortestSize:
    """The whole image, its shorter side resized to one of several sizes: torchvision's RandomShortestSize.

    Each image has its own size. A batch is as large as its largest image, rounded up to ``multiple``: images
    are at the top left, and the rest is padding. ``tarpeg.PadMask`` is where, as DETR takes it.

    Args:
        min_size: Sizes of the shorter side in pixels, one of which is drawn for each image; or one.
        max_size: Largest size of the longer side: images that would be larger are resized to it.
        multiple: Height and width of a batch are multiples of this.
        fill: Colour of the padding: a level from 0 to 255, or (red, green, blue).

    Raises:
        ValueError: For an argument out of range.

    Example:
        >>> crop = tarpeg.RandomShortestSize([96, 112, 128], max_size=160, multiple=32)
        >>> split = tarpeg.Split(shards, crop, flip=0.5)
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=8, workers=0)
        >>> [side % 32 for side in next(iter(data.train_dataloader())).image.shape[2:]]
        [0, 0]
    """

    min_size: int | Sequence[int]
    max_size: int
    multiple: int = 1
    fill: Fill = 0

    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        checked_fill(self)
        for name in ("max_size", "multiple"):
            check_integer(name, getattr(self, name), 1, of=self)
        given = tuple(self.min_size) if isinstance(self.min_size, Sequence) else (self.min_size,)
        if not given:
            raise ValueError(
                f"min_size={self.min_size!r} of RandomShortestSize must be an int or a list of ints"
            )
        for each in given:
            check_integer("min_size", each, 1, self.max_size, of=self)
        object.__setattr__(self, "min_size", given)

    @property
    def size(self) -> tuple[int, int]:
        """The largest height and width of a batch."""
        side = _up(self.max_size, self.multiple)
        return side, side

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """Boxes and places, int32 [B, 8], from upright image sizes [B, 2] and uniform numbers [B, 1]."""
        image, uniforms = _checked(sizes, draws, self.draws)
        options = np.array(self.min_size)
        drawn = options[(uniforms[:, 0] * len(options)).astype(np.int64)]
        # In torchvision's order: the next number below a whole one is another size.
        ratio = np.minimum(drawn / image.min(axis=1), self.max_size / image.max(axis=1))
        size = np.clip((image * ratio[:, None]).astype(np.int64), 1, self.max_size)
        return _joined(np.zeros_like(image), image, np.zeros_like(image), size)

    def padded_size(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> tuple[int, int]:
        """Height and width of a batch of images of these sizes."""
        places = self.boxes(sizes, draws)[:, 6:]
        height, width = places.max(axis=0, initial=1).tolist()
        return _up(height, self.multiple), _up(width, self.multiple)


def within(boxes: Int32, size: tuple[int, int]) -> Int32:
    """Return boxes and places [B, 8] whose places are no larger than a batch: a substitute may be."""
    sides, bounds = boxes[:, 6:], np.array(size)
    if (sides <= bounds).all():
        return boxes
    ratio = np.minimum((bounds / sides).min(axis=1, keepdims=True), 1.0)
    fitted = np.clip((sides * ratio).astype(np.int32), 1, bounds.astype(np.int32))
    return np.concatenate([boxes[:, :6], fitted], axis=1)


def mirrored(places: Int32, flips: npt.NDArray[np.bool_], width: int) -> Int32:
    """Return places [B, 4] in a result of that width, mirrored with it where ``flips``."""
    found = places.astype(np.int32)
    np.copyto(found[:, 1], width - found[:, 1] - found[:, 3], where=flips)
    return found


def _joined(*columns: Int64) -> Int32:
    return np.concatenate(columns, axis=1).astype(np.int32)


def _up(side: int, multiple: int) -> int:
    return -(-side // multiple) * multiple


def _pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
        raise ValueError(f"{name}={value!r} must be an int or (height, width), positive, in whole pixels")
    return pair[0], pair[1]
