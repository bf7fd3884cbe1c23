"""Targets behind pasted objects: what is left of the masks, boxes and points that ``CopyPaste`` covers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..sampling.geometry import Bool
from ..sampling.rng import Float64, Int64

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.int64)


class Cover(NamedTuple):
    """Objects that lose pixels to those that are pasted over them; numbers count all objects of a batch.

    Attributes:
        numbers: int64 [n], the objects.
        pixels: int64 [n], pixels that are left of each.
        shares: float64 [n], their share of those before.
        bounds: float64 [n, 4], (x1, y1, x2, y2) of them; zeros if none is left.
        masks: Where objects are pasted, bool [H, W], by the number of the part that is behind them.
    """

    numbers: Int64
    pixels: Int64
    shares: Float64
    bounds: Float64
    masks: Mapping[int, Bool]


def cover_of(bits: npt.NDArray[np.uint8], counts: Int64, batch_rows: Int64, canvas: tuple[int, int]) -> Cover:
    """Take the pixels of pasted objects from the masks of those behind them, in place.

    Args:
        bits: uint8 [N, bytes], of the masks of the objects of all parts.
        counts: int64 [n], objects of each part; those of all but the first part of a row are pasted.
        batch_rows: int64 [n], the row of each part.
        canvas: (height, width) of the results.
    """
    ends = np.concatenate([[0], np.cumsum(counts)])
    height, width = canvas
    numbers, pixels, before, bounds, masks = [], [], [], [np.zeros((0, 4))], {}
    for first, last in _rows_of(batch_rows):
        if last == first + 1:
            continue
        begin, middle, end = ends[first], ends[first + 1], ends[last]
        pasted = np.bitwise_or.reduce(bits[middle:end], axis=0)
        masks[first] = np.unpackbits(pasted, count=height * width).reshape(height, width).view(np.bool_)
        behind = bits[begin:middle]
        is_cut = (behind & pasted).any(axis=1)
        pixels_before = _ONES[behind[is_cut]].sum(axis=1)
        behind &= ~pasted
        left = np.unpackbits(behind[is_cut], axis=1, count=height * width).reshape(-1, height, width)
        numbers.append(begin + np.flatnonzero(is_cut))
        before.append(pixels_before)
        pixels.append(left.sum(axis=(1, 2), dtype=np.int64))
        bounds.append(bounds_of(left))
    empty = [np.zeros(0, np.int64)]
    lost, left_of = (np.concatenate(empty + each) for each in (numbers, pixels))
    return Cover(lost, left_of, left_of / np.concatenate(empty + before), np.concatenate(bounds), masks)


def bounds_of(masks: npt.NDArray[np.uint8]) -> Float64:
    """Return the bounds of masks [N, H, W]: float64 [N, 4], (x1, y1, x2, y2), edges of pixels; 0 for none."""
    return _bounds(*(np.logical_or.reduce(masks, axis=1 + axis) for axis in (0, 1)))


def bounds_of_bits(bits: npt.NDArray[np.uint8], canvas: tuple[int, int]) -> Float64:
    """Return the bounds of masks as ``bounds_of``, from their bits [N, bytes], in an eighth of the time."""
    height, width = canvas
    if width % 8:
        return bounds_of(np.unpackbits(bits, axis=1, count=height * width).reshape(-1, height, width))
    lines = bits.reshape(-1, height, width // 8)
    return _bounds(
        np.unpackbits(np.bitwise_or.reduce(lines, axis=1), axis=1).view(np.bool_),
        np.logical_or.reduce(lines, axis=2),
    )


def pixels_of_bits(bits: npt.NDArray[np.uint8]) -> Int64:
    """Return the number of pixels of masks, int64 [N], from their bits [N, bytes]."""
    return np.array([_ONES[each].sum() for each in bits], np.int64)


def _bounds(columns: Bool, rows: Bool) -> Float64:
    """Return the bounds of masks from which columns [N, W] and rows [N, H] they are in."""
    found = np.zeros((len(rows), 4))
    for axis, line in enumerate((columns, rows)):
        found[:, axis] = line.argmax(axis=1)
        found[:, 2 + axis] = np.where(line.any(axis=1), line.shape[1] - line[:, ::-1].argmax(axis=1), 0)
    return found


def _rows_of(batch_rows: Int64) -> list[tuple[int, int]]:
    """Return the first part of each row, and that behind its last."""
    first = np.flatnonzero(np.diff(batch_rows, prepend=-1))
    return list(itertools.pairwise([*first.tolist(), len(batch_rows)]))


def cut(pictures: npt.NDArray[Any], fill: float, cover: Cover, batch_rows: Int64) -> npt.NDArray[Any]:
    """Return the pictures of parts, each ``fill`` where another part of its row is visible."""
    found = pictures.copy()
    for first, last in _rows_of(batch_rows):
        if first in cover.masks:
            found[first][cover.masks[first]] = fill
            for other in range(first + 1, last):
                found[other][~cover.masks[first]] = fill
    return found
