"""What Mosaic does to one point, as Ultralytics' steps one after another: slow, and without its rounding."""

from __future__ import annotations

import numpy as np


def drawn_by(draws, size, scale, translate):
    """Centre on the canvas, scale, and shift in the result, (y, x) each, of uniform numbers [6]."""
    side = np.array(size, np.float64)
    centre = np.floor(side / 2 + draws[1:3] * side)
    factor = scale[0] + draws[3] * (scale[1] - scale[0])
    return centre, factor, (0.5 + translate * (2 * draws[4:] - 1)) * side


def moved_point(point, image, quarter, draws, size, scale=(0.5, 1.5), translate=0.1):
    """Where a point (y, x) of an image of (height, width) is in the result; quarter None: the image alone."""
    side = np.array(size, np.float64)
    centre, factor, shift = drawn_by(draws, size, scale, translate)
    ratio = (side / image).min()
    resized = np.array(image) * ratio
    point = np.array(point) * ratio
    if quarter is None:
        point, middle = point + (side - resized) / 2, side / 2
    else:
        for axis, is_after in enumerate(divmod(quarter, 2)):
            point[axis] += centre[axis] - (0 if is_after else resized[axis])
        middle = side
    return (point - middle) * factor + shift
