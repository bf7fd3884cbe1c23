"""The buckets of kohya's scripts, by their published rules: what AspectBuckets is compared with."""

from __future__ import annotations

import math


def shapes(resolution: int, step: int, low: int, high: int) -> list[tuple[int, int]]:
    """Return the shapes (width, height) of a resolution."""
    pixels = resolution**2
    side = int(math.sqrt(pixels) // step) * step
    found = {(side, side)}
    for width in range(low, high + 1, step):
        height = min(high, pixels // width // step * step)
        if height >= low:
            found |= {(width, height), (height, width)}
    return sorted(found)


def bucket_of(
    height: int, width: int, resolution: int, step: int, low: int, high: int, *, upscale: bool
) -> tuple[int, int]:
    """Return the (height, width) of the bucket of an image."""
    if upscale:
        options = shapes(resolution, step, low, high)
        if (width, height) not in options:
            ratio = width / height
            width, height = min(options, key=lambda shape: abs(shape[0] / shape[1] - ratio))
        return height, width
    resized = resized_to(height, width, resolution, step)
    return resized[0] // step * step, resized[1] // step * step


def resized_to(height: int, width: int, resolution: int, step: int) -> tuple[int, int]:
    """Return the (height, width) to which an image is resized before it is cropped, without enlarging.

    A small image keeps its size, so that more of it is cut off than its bucket's ratio would need.
    """
    ratio = width / height
    if height * width > resolution**2:
        reduced = math.sqrt(resolution**2 * ratio)
        width_down = _down(reduced, step)
        height_down = _down(resolution**2 / reduced, step)
        by_width = _ratio(width_down, _down(width_down / ratio, step))
        by_height = _ratio(_down(height_down * ratio, step), height_down)
        if abs(by_width - ratio) < abs(by_height - ratio):
            return int(width_down / ratio + 0.5), width_down
        return height_down, int(height_down * ratio + 0.5)
    return height, width


def _down(side: float, step: int) -> int:
    return int(side + 0.5) // step * step


def _ratio(width: int, height: int) -> float:
    return width / height if height else math.inf
