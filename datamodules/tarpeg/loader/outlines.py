"""Masks of objects in COCO's forms, run lengths and polygons, and the pixels that they cover.

A mask is a list of toggles here: sorted places at which it begins or ends, in the columns of the image, one
after another (x * height + y).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..sampling.rng import Float64, Int64
from .annotations import FAR, FieldError, as_json, is_finite

_SCALE = 5.0  # pycocotools traces polygons in fifths of pixels
_MOST_STEPS = 1 << 20
"""Fifths of pixels along the outlines of an object, beyond which it is an error."""


class Runs(NamedTuple):
    """Run lengths.

    Args:
        size: (height, width) of the mask.
        toggles: int64 [n].
    """

    size: tuple[int, int]
    toggles: Int64


Outline = Runs | list[Float64]
"""Run lengths, or polygons: float64 [K, 2] each, (x, y) in pixels."""


def outline_of(field: str, value: Any) -> Outline:
    """Return the outline in a field of an object; raises FieldError.

    Args:
        field: Its place, for messages.
        value: {"size": [height, width], "counts": [...] or "..."}, or a list of polygons [x, y, x, y, ...].
    """
    if isinstance(value, dict):
        return _runs_of(field, value)
    wrong = FieldError(
        f"field {field!r} is {as_json(value)}, neither polygons [[x, y, ...], ...] nor run lengths"
    )
    if not isinstance(value, list) or not value:
        raise wrong
    polygons = []
    for polygon in value:
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
            raise FieldError(f"field {field!r}: {as_json(polygon)} is not a polygon of three points or more")
        if not all(map(is_finite, polygon)) or max(map(abs, polygon)) > FAR:
            raise FieldError(f"field {field!r}: {as_json(polygon)} has numbers that are no pixels")
        polygons.append(np.array(polygon, np.float64).reshape(-1, 2))
    steps = sum(float(np.abs(each - np.roll(each, -1, 0)).max(1).sum()) for each in polygons) * _SCALE
    if steps > _MOST_STEPS:
        raise FieldError(f"field {field!r}: its polygons are {steps / _SCALE:.0f} pixels long")
    return polygons


def _runs_of(field: str, value: dict[str, Any]) -> Runs:
    size, counts = value.get("size"), value.get("counts")
    is_size = (
        isinstance(size, list) and [*map(type, size)] == [int, int] and 0 < min(size) <= max(size) <= FAR
    )
    found = None
    if isinstance(counts, str):
        found = _uncompressed(counts.encode())
    elif (
        isinstance(counts, list) and {*map(type, counts)} <= {int} and all(0 <= n <= 1 << 40 for n in counts)
    ):
        found = np.array(counts, np.int64)
    if not isinstance(size, list) or not is_size or found is None:
        raise FieldError(
            f'field {field!r} is {as_json(value)}, not run lengths {{"size": [height, width], '
            '"counts": [...]}'
        )
    height, width = size
    if (found < 0).any() or found.sum() != height * width:
        raise FieldError(
            f"field {field!r}: its run lengths cover {int(found.sum())} pixels, not {height} x {width}"
        )
    return Runs((height, width), np.cumsum(found)[:-1])


def _uncompressed(text: bytes) -> Int64 | None:
    """Return the counts of COCO's compressed run lengths; None if they are none."""
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    ends = np.flatnonzero((codes & 0x20) == 0)
    if not len(ends) or codes.min() < 0 or codes.max() > 63 or ends[-1] != len(codes) - 1:
        return None
    starts = np.r_[0, ends[:-1] + 1]
    lengths = ends + 1 - starts
    if lengths.max() > 8:
        return None
    shifts = 5 * (np.arange(len(codes)) - np.repeat(starts, lengths))
    counts = np.add.reduceat((codes & 0x1F) << shifts, starts)
    counts -= np.where(codes[ends] & 0x10, np.int64(1) << (5 * lengths), 0)
    # From the fourth on they are differences to the last but one.
    counts[1::2] = np.cumsum(counts[1::2])
    counts[2::2] = np.cumsum(counts[2::2])
    return counts


def toggles_of(outline: Outline, size: tuple[int, int]) -> list[Int64]:
    """Return the toggles of the parts of an outline, whose union is the mask, in an image of that size."""
    if isinstance(outline, Runs):
        return [outline.toggles]
    return [_traced(polygon, *size) for polygon in outline]


def _traced(polygon: Float64, height: int, width: int) -> Int64:
    """Return the toggles of a polygon: those of pycocotools' ``frPyObjects``, in its arithmetic."""
    corners = (_SCALE * polygon + 0.5).astype(np.int64)
    begins, ends = corners, np.roll(corners, -1, 0)
    sides = np.abs(ends - begins)
    is_wide = sides[:, 0] >= sides[:, 1]
    along, across = np.where(is_wide, 0, 1), np.where(is_wide, 1, 0)
    edges = np.arange(len(corners))
    is_flipped = begins[edges, along] > ends[edges, along]
    first = np.where(is_flipped[:, None], ends, begins)
    last = np.where(is_flipped[:, None], begins, ends)
    steps = sides[edges, along]
    rise = last[edges, across] - first[edges, across]
    slope = np.divide(rise, steps, out=np.zeros(len(edges)), where=steps > 0)
    # All points of all edges, one after another.
    of = np.repeat(edges, steps + 1)
    step = np.arange(len(of)) - np.repeat(np.cumsum(steps + 1) - (steps + 1), steps + 1)
    step = np.where(is_flipped[of], steps[of] - step, step)
    main = step + first[of, along[of]]
    other = (first[of, across[of]] + slope[of] * step + 0.5).astype(np.int64)
    u, v = np.where(is_wide[of], main, other), np.where(is_wide[of], other, main)
    moved = np.flatnonzero(u[1:] != u[:-1]) + 1
    x = (np.where(u[moved] < u[moved - 1], u[moved], u[moved] - 1) + 0.5) / _SCALE - 0.5
    y = (np.minimum(v[moved], v[moved - 1]) + 0.5) / _SCALE - 0.5
    is_column = (np.floor(x) == x) & (x >= 0) & (x <= width - 1)
    rows = np.ceil(np.clip(y[is_column], 0, height)).astype(np.int64)
    return np.sort(x[is_column].astype(np.int64) * height + rows)


def fill_pixels(
    parts: list[Int64], height: int, rows: Int64, columns: Int64, out: npt.NDArray[np.uint8]
) -> None:
    """Set the pixels that a mask covers to 1.

    Args:
        parts: Toggles; the mask is their union.
        height: Of the image.
        rows: Row of the image for each row of ``out``: int64 [H].
        columns: Column of the image for each column of ``out``, ascending: int64 [W].
        out: uint8 [H, W].
    """
    for toggles in parts:
        if not len(toggles):
            continue
        last = int(columns[-1]) + 1
        begin = max(int(toggles[0]) // height, int(columns[0]))
        end = last if len(toggles) % 2 else min(-(-int(toggles[-1]) // height), last)  # odd: to the end
        low, high = np.searchsorted(columns, (begin, end)).tolist()
        if low >= high:
            continue
        # Whether it is within the mask at the first of these pixels, and how often it changes at each.
        inside = np.searchsorted(toggles, (begin * height, end * height), side="right").tolist()
        total = (end - begin) * height
        changes = np.minimum(toggles[inside[0] : inside[1]] - begin * height, total)
        lengths = np.diff(changes, prepend=0, append=total)
        bits = np.repeat((np.arange(len(lengths)) + inside[0]).astype(np.uint8) & 1, lengths)
        part = bits.reshape(end - begin, height)[columns[low:high] - begin]
        out[:, low:high] |= part[:, rows].T
