"""Geometric steps of augmentation, one after another: what their frames leave of an image. Numbers only.

A step moves the whole image within its frame, (0, 0) to (width, height). What it moves out of the frame is
lost, also if a later step moves that place back: there the result has the colour of the fill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .rng import Float64

Bool = npt.NDArray[np.bool_]

_MARGIN = 1e-6
"""Pixels by which a point may be outside of a frame: matrices are inexact."""


@dataclass(frozen=True, eq=False)
class Steps:
    """The geometric steps of the rows of a view, in their order, of K steps each at most.

    Args:
        matrices: float64 [B, K, 2, 3], how each step moves points, in pixel edges; the identity if it moves
            none.
        is_nearest: bool [B, K], whether it takes the nearest pixel; otherwise it is bilinear.
    """

    matrices: Float64
    is_nearest: Bool

    @classmethod
    def of(cls, affine: Float64, *, is_nearest: bool = False) -> Steps:
        """Return one step per row, from matrices [B, 2, 3]."""
        return cls(np.asarray(affine, np.float64)[:, None], np.full((len(affine), 1), is_nearest))

    @classmethod
    def none(cls, count: int) -> Steps:
        """Return the steps of rows that are not moved."""
        return cls(np.zeros((count, 0, 2, 3)), np.zeros((count, 0), np.bool_))

    def rows(self, chosen: npt.NDArray[Any] | slice) -> Steps:
        """Return the steps of some rows, by number, by a mask or as a slice."""
        return Steps(self.matrices[chosen], self.is_nearest[chosen])

    def then(self, after: Steps) -> Steps:
        """Return these steps, and others after them."""
        matrices = np.concatenate([self.matrices, after.matrices], axis=1)
        return Steps(matrices, np.concatenate([self.is_nearest, after.is_nearest], axis=1))

    @property
    def are_moves(self) -> Bool:
        """Which steps move anything: bool [B, K]."""
        return np.asarray((self.matrices != np.eye(2, 3)).any(axis=(2, 3)))

    def are_mirrors(self, size: tuple[int, int]) -> Bool:
        """Return which steps mirror a frame of (height, width): bool [B, K]."""
        mirror = np.array([[-1.0, 0.0, size[1]], [0.0, 1.0, 0.0]])
        return np.asarray((self.matrices == mirror).all(axis=(2, 3)))

    def may_lose(self, size: tuple[int, int]) -> Bool:
        """Return which rows have two steps or more that do not map a frame of (height, width) onto itself.

        In others nothing is lost between two steps: bool [B].
        """
        if self.matrices.shape[1] < 2:
            return np.zeros(len(self.matrices), np.bool_)
        return np.asarray(self._may_lose(size).sum(axis=1) > 1)

    def _may_lose(self, size: tuple[int, int]) -> Bool:
        """Return which steps may move something out of the frame, or back: bool [B, K]."""
        return self.are_moves & ~self.are_mirrors(size)

    def _have_later(self, size: tuple[int, int]) -> Bool:
        """Return behind which steps there is one that may move something back: bool [B, K].

        The frame behind the last of these is that of the result.
        """
        steps = self._may_lose(size)[:, ::-1]
        are_before: Bool = np.asarray(np.cumsum(steps, axis=1) > steps)
        return are_before[:, ::-1]

    def keep(self, points: Float64, size: tuple[int, int]) -> Bool:
        """Return which points are within each frame between two steps.

        Args:
            points: float64 [B, N, 2], (x, y) before the first step.
            size: (height, width) of the frames.
        """
        is_there = np.ones(points.shape[:2], np.bool_)
        most = np.array(size[::-1]) + _MARGIN
        later: Iterable[Bool] = self._have_later(size).T
        for matrices, have_later in zip(self.matrices.swapaxes(0, 1), later, strict=True):
            points = _moved(points, matrices)
            is_in = np.asarray(((points >= -_MARGIN) & (points <= most)).all(axis=-1))
            is_there &= is_in | ~have_later[:, None]
        return is_there

    def clipped(self, quads: Float64, size: tuple[int, int]) -> tuple[Float64, Float64]:
        """Clip convex quadrangles by each frame between two steps, and move them by all steps.

        Args:
            quads: float64 [B, 4, 2], corners (x, y) before the first step, one after another.
            size: (height, width) of the frames.

        Returns:
            The corners of what is left, float64 [B, V, 2], some of them several times, zeros if nothing is;
            and the share of the area that is left, float64 [B].
        """
        polygons, shares = quads, np.ones(len(quads))
        later: Iterable[Bool] = self._have_later(size).T
        for matrices, have_later in zip(self.matrices.swapaxes(0, 1), later, strict=True):
            polygons = _moved(polygons, matrices)
            if not have_later.any():
                continue
            before = _area(polygons)
            for axis, most in ((0, size[1]), (1, size[0])):
                polygons = _above(polygons, axis, 1.0, 0.0, have_later)
                polygons = _above(polygons, axis, -1.0, float(most), have_later)
            left = _area(polygons)
            shares *= np.divide(left, before, out=np.zeros(len(left)), where=before > 0)
        polygons[shares == 0] = 0.0
        return polygons, shares


def joined_steps(parts: Sequence[Steps]) -> Steps:
    """Return the steps of the rows of several parts, one after another."""
    most = max(part.matrices.shape[1] for part in parts)
    whole = [part.then(_identity(len(part.matrices), most - part.matrices.shape[1])) for part in parts]
    matrices = np.concatenate([part.matrices for part in whole])
    return Steps(matrices, np.concatenate([part.is_nearest for part in whole]))


def _identity(count: int, steps: int) -> Steps:
    return Steps(np.tile(np.eye(2, 3), (count, steps, 1, 1)), np.zeros((count, steps), np.bool_))


def _moved(points: Float64, matrices: Float64) -> Float64:
    """Return points [B, N, 2] moved by matrices [B, 2, 3]."""
    moved: Float64 = points @ matrices[:, :, :2].transpose(0, 2, 1) + matrices[:, None, :, 2]
    return moved


def _area(polygons: Float64) -> Float64:
    """Return the areas of polygons [B, V, 2]."""
    x, y = polygons[..., 0], polygons[..., 1]
    doubled = (x * np.roll(y, -1, axis=1) - np.roll(x, -1, axis=1) * y).sum(axis=1)
    return np.asarray(np.abs(doubled) / 2)


def _above(polygons: Float64, axis: int, sign: float, shift: float, rows: Bool) -> Float64:
    """Return the parts of convex polygons [B, V, 2] where sign * coordinate + shift is not negative.

    Polygons of fewer corners than others repeat their first one at the end. Only those of ``rows``, bool [B],
    are cut.
    """
    distances = sign * polygons[..., axis] + shift
    is_in = (distances >= 0) | ~rows[:, None]
    if is_in.all():
        return polygons
    following, next_distances = np.roll(polygons, -1, axis=1), np.roll(distances, -1, axis=1)
    crosses = is_in != np.roll(is_in, -1, axis=1)
    way = np.divide(distances, distances - next_distances, out=np.zeros_like(distances), where=crosses)
    borders = polygons + way[..., None] * (following - polygons)
    # Behind each corner the place where its edge crosses the border: of all these, those that are there.
    corners = np.stack([polygons, borders], axis=2).reshape(len(polygons), -1, 2)
    are_there = np.stack([is_in, crosses], axis=2).reshape(len(polygons), -1)
    order = np.argsort(~are_there, axis=1, kind="stable")
    counts = are_there.sum(axis=1)
    found = np.take_along_axis(corners, order[..., None], axis=1)[:, : max(int(counts.max()), 1)]
    is_rest = np.arange(found.shape[1]) >= counts[:, None]
    return np.asarray(np.where(is_rest[..., None], found[:, :1], found))
