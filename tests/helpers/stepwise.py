"""The slow twin of targets under several geometric steps: each step is applied, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import tarpeg
import torch
from tarpeg.augment.policies import Program
from tarpeg.augment.tables import CODES

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Moves(tarpeg.Policy):
    """Some random steps that turn, shear, scale, shift or mirror an image, or leave it."""

    steps: int = 3
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Sequence[float] = (255.0, 0.0, 255.0)
    shift: float = 0.6

    @property
    def draws(self):
        return 6 * self.steps

    def program(self, uniforms, size):
        uniforms = uniforms.reshape(len(uniforms), self.steps, 6)
        kind, turn, shear, x, y, scale = np.moveaxis(uniforms, -1, 0)
        angle, slope, factor = (turn - 0.5) * 2, (shear - 0.5) * 0.8, 0.7 + 0.6 * scale
        cos, sin = np.cos(angle), np.sin(angle)
        turned = [cos, -sin + slope, sin, cos]
        plain = kind < 0.4  # whole pixels, as those of RandAugment
        linear = [
            np.where(plain, each, part * factor) for each, part in zip((1, 0, 0, 1), turned, strict=True)
        ]
        across, down = (
            np.trunc((part - 0.5) * 2 * self.shift * side)
            for part, side in zip((x, y), size[::-1], strict=True)
        )
        values = np.stack([linear[0], linear[1], across, linear[2], linear[3], down], -1)
        ops = np.full(kind.shape, CODES["AFFINE"])
        ops[kind > 0.8], ops[kind > 0.9] = CODES["FLIP"], CODES["IDENTITY"]
        return Program(torch.from_numpy(ops[:, None]).int(), torch.from_numpy(values[:, None]).float())


def shown(matrices: np.ndarray, nearest: bool, size: tuple[int, int]) -> np.ndarray:
    """Which pixels of a result, bool [H, W], show a pixel of the image after steps, [K, 2, 3].

    Each pixel is followed back, step by step. With ``nearest`` it becomes the nearest pixel at each.
    """
    y, x = np.indices(size)
    at = np.stack([x, y], -1) + 0.5
    found = np.ones(size, np.bool_)
    for matrix in matrices[::-1]:
        at = (at - matrix[:, 2]) @ np.linalg.inv(matrix[:, :2]).T
        if nearest:
            at = np.round(at - 0.5) + 0.5
        found &= ((at > 0) & (at < size[::-1])).all(axis=-1)
    return found


def is_shown(point: tuple[float, float], matrices: np.ndarray, size: tuple[int, int]) -> bool:
    """Whether a point of the image is in the frame after each step."""
    for matrix in matrices:
        point = tuple(matrix[:, :2] @ point + matrix[:, 2])
        if not (0 <= point[0] <= size[1] and 0 <= point[1] <= size[0]):
            return False
    return True


def box_left(box: Sequence[float], matrices: np.ndarray, size: tuple[int, int]) -> tuple[list[float], float]:
    """What steps leave of a box, (x1, y1, x2, y2) before them: its bounds, and the share of its area.

    The quadrangle is clipped by the frame before each step that does more than mirror; the bounds, by that
    of the result.
    """
    mirror = np.array([[-1, 0, size[1]], [0, 1, 0]])
    plain = [any(np.array_equal(matrix, each) for each in (np.eye(2, 3), mirror)) for matrix in matrices]
    x1, y1, x2, y2 = box
    corners: Points = [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]
    share = 1.0
    for number, matrix in enumerate(matrices):
        corners = [tuple(matrix[:, :2] @ corner + matrix[:, 2]) for corner in corners]
        if not all(plain[number + 1 :]):
            before = area(corners)
            for axis, sign, limit in ((0, 1, 0), (0, -1, size[1]), (1, 1, 0), (1, -1, size[0])):
                corners = _half(corners, axis, sign, limit)
            share *= area(corners) / before
        if not corners:
            return [0.0] * 4, 0.0
    x, y = zip(*corners, strict=True)
    whole = [min(x), min(y), max(x), max(y)]
    left = [min(max(value, 0), most) for value, most in zip(whole, (*size[::-1], *size[::-1]), strict=True)]
    return left, share * (left[2] - left[0]) * (left[3] - left[1]) / (
        (whole[2] - whole[0]) * (whole[3] - whole[1]) or 1.0
    )


def area(corners: Points) -> float:
    """Area of a polygon."""
    return (
        abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(corners, corners[1:] + corners[:1], strict=True)))
        / 2
    )


def _half(corners: Points, axis: int, sign: int, limit: float) -> Points:
    """The part of a polygon on one side of a line: Sutherland and Hodgman."""
    found: Points = []
    for one, other in zip(corners, corners[1:] + corners[:1], strict=True):
        here, there = sign * (one[axis] - limit), sign * (other[axis] - limit)
        if here >= 0:
            found.append(one)
        if (here >= 0) != (there >= 0):
            way = here / (here - there)
            found.append((one[0] + way * (other[0] - one[0]), one[1] + way * (other[1] - one[1])))
    return found
