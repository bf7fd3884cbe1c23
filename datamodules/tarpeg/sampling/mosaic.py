"""Mosaic: results that are made of parts of several images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import check_probability
from .crops import Fill, Int32, Size, _checked, _range, _Size, checked_fill
from .geometry import Bool
from .rng import Float64, Int64


class Parts(NamedTuple):
    """Visible parts of results, in the order of the results; rectangles are (top, left, height, width).

    Attributes:
        results: int64 [n], number of the result.
        images: int64 [n], number of the image among those of the result.
        boxes: int32 [n, 4], in the image.
        places: int32 [n, 4], part of the result that the box becomes.
        cells: int32 [n, 4], part of the result with the place and the padding around it. The cells of a
            result cover all of it, and do not overlap.
    """

    results: Int64
    images: Int64
    boxes: Int32
    places: Int32
    cells: Int32


@dataclass(frozen=True)
class Mosaic:
    """Four images around a random centre, and a window of them at a random scale: Ultralytics' Mosaic.

    Each image is made as large as ``size`` holds it. On a canvas of twice ``size`` the four meet at a centre
    that is uniform in the middle half of it. A window of the canvas becomes the result, as by Ultralytics'
    ``RandomPerspective(scale, translate)`` behind its Mosaic. Of the four images only what lies in the window
    is decoded, at the scale of the result.

    The first image is the sample itself, in the quarter with the largest part of the window, so that it is
    visible in each of its rows; the other three are drawn from all samples of the split. The parts follow
    their images by whole pixels: the box of each is up to half a pixel of the source from Ultralytics'.

    Args:
        size: Size of the result in pixels: (height, width), or an int for a square.
        scale: Bounds of the scale, which is uniform: Ultralytics' 1 - scale and 1 + scale.
        translate: The middle of the canvas is up to this share of ``size`` from the middle of the result.
        p: Probability of a mosaic. Another row is the image alone as ``LetterBox`` puts it, at a random scale
            and place too, as in Ultralytics; so is one whose own image would not be visible.
        fill: Colour of the padding: a level from 0 to 255, or (red, green, blue).

    Raises:
        ValueError: For an argument out of range; in ``Split``, with labels instead of ``targets=``, with
            several views, and with steps of ``transform=`` in Python.

    Example:
        >>> mosaic = tarpeg.Mosaic(96)
        >>> crop = tarpeg.Progressive(mosaic, {90: tarpeg.Mosaic(96, p=0)})  # none from epoch 90 on
        >>> split = tarpeg.Split(shards, crop, flip=0.5, target=None)
        >>> loader = tarpeg.Loader(split, batch_size=8, workers=0)
        >>> next(iter(loader)).image.shape
        torch.Size([8, 3, 96, 96])
        >>> view = loader.claim().views[0]  # has a row per part
        >>> int(view.batch_rows.max()), len(view) > 8
        (7, True)
    """

    size: Size = _Size()  # noqa: RUF009
    scale: Sequence[float] = (0.5, 1.5)
    translate: float = 0.1
    p: float = 1.0
    fill: Fill = 114

    draws: ClassVar[int] = 6
    partners: ClassVar[int] = 3

    def __post_init__(self) -> None:
        checked_fill(self)
        object.__setattr__(self, "scale", _range("scale", self.scale))
        check_probability("p", self.p)
        if not isinstance(self.translate, (int, float)) or not 0 <= self.translate < 0.5:
            raise ValueError(
                f"translate={self.translate!r} of Mosaic must be a share of size, 0 to below 0.5"
            )

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """Boxes and places, int32 [B, 8], of images alone, from sizes [B, 2] and uniform numbers [B, 6]."""
        image, uniforms = _checked(sizes, draws, self.draws)
        _, boxes, places, _ = self._rectangles(image[:, None], uniforms, np.ones(len(image), np.bool_))
        return np.concatenate([boxes[:, 0], places[:, 0]], axis=1)

    def parts(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Parts:
        """Visible parts of B results.

        Args:
            sizes: Upright image sizes, int [B, 4, 2], the first of each row that of the sample itself.
            draws: Uniform numbers, float [B, 6].
        """
        given = np.asarray(sizes)
        image, _ = _checked(given.reshape(-1, 2), None, 0)
        image, uniforms = image.reshape(given.shape), np.asarray(draws, np.float64)
        is_alone = uniforms[:, 0] >= self.p
        seen, boxes, places, cells = self._rectangles(image, uniforms, is_alone)
        if not seen[:, 0].all():
            is_alone = is_alone | ~seen[:, 0]
            seen, boxes, places, cells = self._rectangles(image, uniforms, is_alone)
        results, images = np.nonzero(seen)
        return Parts(results, images, boxes[seen], places[seen], cells[seen])

    def _rectangles(
        self, image: Int64, uniforms: Float64, is_alone: Bool
    ) -> tuple[Bool, Int32, Int32, Int32]:
        """Return which images [B, K, 2] are visible, [B, K], and boxes, places and cells, int32 [B, K, 4]."""
        low, high = self.scale
        scale = low + uniforms[:, 3] * (high - low)
        number = np.arange(image.shape[1])
        side = np.array(self.size)
        ratio = (side / image).min(axis=2, keepdims=True)
        resized = np.maximum(np.rint(image * ratio), 1)
        axes = [
            _Axis.of(
                side[axis], uniforms[:, 1 + axis], scale, uniforms[:, 4 + axis], self.translate, is_alone
            )
            for axis in (0, 1)
        ]
        # The sample itself is in the quarter of which most is visible, the others follow clockwise or not.
        own = 2 * axes[0].is_after + axes[1].is_after
        quarter = own[:, None] ^ number
        after = [quarter // 2 == 1, quarter % 2 == 1]
        found = [axes[axis].spans(image[..., axis], resized[..., axis], after[axis]) for axis in (0, 1)]
        seen = (found[0][3] > 0) & (found[1][3] > 0) & (~is_alone[:, None] | (number == 0))
        boxes = np.stack([found[0][0], found[1][0], found[0][1], found[1][1]], axis=2)
        places = np.stack([found[0][2], found[1][2], found[0][3], found[1][3]], axis=2)
        if not seen[is_alone, 0].all():  # thinner than half a pixel
            seen[is_alone, 0] = True
            places[..., 2:] = np.maximum(places[..., 2:], 1)
            places[..., :2] = np.minimum(places[..., :2], side - places[..., 2:])
        # A quarter without a visible image belongs to the cell beside it, and half a result to the other.
        there = np.zeros((len(image), 4), np.bool_)
        np.put_along_axis(there, quarter, seen, axis=1)
        has_beside = np.take_along_axis(there, quarter ^ 1, axis=1)
        has_other = np.take_along_axis(there, quarter ^ 2, axis=1) | np.take_along_axis(there, quarter ^ 3, 1)
        rows, columns = (
            _cell(axes[axis].seam, int(side[axis]), after[axis], is_cut)
            for axis, is_cut in ((0, has_other), (1, has_beside))
        )
        cells = np.stack([rows[0], columns[0], rows[1], columns[1]], axis=2)
        return seen, boxes.astype(np.int32), places.astype(np.int32), cells.astype(np.int32)


class _Axis(NamedTuple):
    """One direction of canvas and window; all are [B].

    Attributes:
        side: Of the result, an int.
        canvas: Length of the canvas.
        centre: Where the images meet on it; NaN for an image alone.
        scale: Pixels of the result per pixel of the canvas.
        shift: Of the canvas in the result, in its pixels.
        is_after: Whether an image behind the centre shows more than one before it.
    """

    side: int
    canvas: Float64
    centre: Float64
    scale: Float64
    shift: Float64
    is_after: Int64

    @classmethod
    def of(
        cls, side: int, place: Float64, scale: Float64, moved: Float64, translate: float, is_alone: Bool
    ) -> _Axis:
        canvas = np.where(is_alone, side, 2.0 * side)
        centre = np.where(is_alone, np.nan, np.floor(side / 2 + place * side))
        shift = (0.5 + translate * (2 * moved - 1)) * side - scale * canvas / 2
        axis = cls(side, canvas, centre, scale, shift, np.zeros(len(place), np.int64))
        lengths = []
        for is_after in (False, True):
            begin, end = axis._visible(centre - side * (not is_after), np.full(len(place), float(side)))
            lengths.append(end - begin)
        return axis._replace(is_after=(lengths[1] > lengths[0]).astype(np.int64))  # 0 for an image alone

    @property
    def seam(self) -> Int64:
        """Where the images meet in the result, within it; 0 for an image alone."""
        place = np.rint(np.nan_to_num(self.centre) * self.scale + self.shift).clip(0, self.side)
        return np.where(np.isnan(self.centre), 0, place).astype(np.int64)

    def _visible(self, start: Float64, length: Float64) -> tuple[Float64, Float64]:
        """Return which part of the canvas shows an image that begins and ends there."""
        begin = np.maximum(np.maximum(start, 0.0), -self.shift / self.scale)
        end = np.minimum(np.minimum(start + length, self.canvas), (self.side - self.shift) / self.scale)
        return begin, end

    def spans(self, source: Int64, resized: Float64, after: Bool) -> tuple[Int64, Int64, Int64, Int64]:
        """Begin and length in the source and in the result of images [B, K]; no length: not visible."""
        canvas, centre, scale, shift = (each[:, None] for each in self[1:5])
        axis = _Axis(self.side, canvas, centre, scale, shift, self.is_after)
        alone = np.rint((self.side - resized) / 2 - 0.1)  # as LetterBox
        before = np.where(after, axis.centre, axis.centre - resized)
        start = np.where(np.isnan(axis.centre), alone, before)
        begin, end = axis._visible(start, resized)
        edges = [np.rint(each * axis.scale + axis.shift).clip(0, self.side) for each in (begin, end)]
        place, length = edges[0].astype(np.int64), np.maximum(edges[1] - edges[0], 0).astype(np.int64)
        length[end <= begin] = 0
        first, last = (np.rint((each - start) * source / resized).astype(np.int64) for each in (begin, end))
        first = first.clip(0, source - 1)
        return first, np.maximum(np.minimum(last, source) - first, 1), place, length


def _cell(seam: Int64, side: int, after: Bool, is_cut: Bool) -> tuple[Int64, Int64]:
    """Return begin and length of cells [B, K], which end at the seam if they are cut there."""
    begin = np.where(is_cut & after, seam[:, None], 0)
    end = np.where(is_cut & ~after, seam[:, None], side)
    return begin, end - begin
