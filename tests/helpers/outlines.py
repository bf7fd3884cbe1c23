"""Twin of the operator fill_outlines, in numpy: toggles of whole images, and the pixels that they cover."""

from __future__ import annotations

import numpy as np
from tarpeg.targets.masks import places_of

SCALE = 5.0  # pycocotools traces polygons in fifths of pixels


def fill(parts, size, box, result, flip, place, centres=True):
    """The bits of one mask, uint8 [bytes], and the number of its pixels.

    parts: float64 [K, 2] of polygons, int64 [n] of toggles; the mask is their union.
    """
    mask = np.zeros(result, np.uint8)
    mode = "nearest-exact" if centres else "nearest"
    above, before, lines, across = place
    rows, columns = box[0] + places_of(box[2], lines, mode), box[1] + places_of(box[3], across, mode)
    part = mask[above : above + lines, before : before + across]
    toggles = [_traced(each, *size) if each.ndim == 2 else each for each in parts]
    fill_pixels(toggles, size[0], rows, columns, part[:, ::-1] if flip else part)
    return np.packbits(mask), int(mask.sum())


def _traced(polygon, height, width):
    """Return the toggles of a polygon: those of pycocotools' ``frPyObjects``, in its arithmetic."""
    corners = (SCALE * polygon + 0.5).astype(np.int64)
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
    x = (np.where(u[moved] < u[moved - 1], u[moved], u[moved] - 1) + 0.5) / SCALE - 0.5
    y = (np.minimum(v[moved], v[moved - 1]) + 0.5) / SCALE - 0.5
    is_column = (np.floor(x) == x) & (x >= 0) & (x <= width - 1)
    rows = np.ceil(np.clip(y[is_column], 0, height)).astype(np.int64)
    return np.sort(x[is_column].astype(np.int64) * height + rows)


def fill_pixels(parts, height, rows, columns, out):
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
