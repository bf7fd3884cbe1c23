"""Pixels of results that augmentation has lost: one step moved them out of the frame, a later one back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..sampling.geometry import Bool, View


def lost_pixels(view: View) -> dict[int, Bool]:
    """Return by row which pixels of the result a step has lost, bool [H, W].

    Only of rows with two steps or more. The images' own operator moves a white image over a black fill by the
    steps: so what is black in the end is where the images show their fill, pixel for pixel with "nearest".
    With "bilinear" it is what is more fill than image. In both the last step back, to the image, counts too.
    """
    steps = view.steps
    rows = np.zeros(0, np.int64) if steps is None else np.flatnonzero(steps.may_lose(view.size))
    if steps is None or not len(rows):
        return {}
    from ..ops.programs import Op, run_programs  # here, because it loads the operators

    steps = steps.rows(rows)
    are_moves, are_mirrors = steps.are_moves, steps.are_mirrors(view.size)
    codes = np.where(are_mirrors, Op.FLIP, np.where(are_moves, Op.AFFINE, Op.IDENTITY)).astype(np.int32)
    values = _values_of(steps.matrices, view.size)
    white = torch.full((len(rows), 3, *view.size), 255, dtype=torch.uint8)
    count = codes.shape[1]
    of_moves = steps.is_nearest[are_moves]
    has_one_way = bool(of_moves.all() or not of_moves.any())
    for part in [slice(count)] if has_one_way else [slice(at, at + 1) for at in range(count)]:
        for nearest in (True, False):
            own = np.where(steps.is_nearest[:, part] == nearest, codes[:, part], np.int32(Op.IDENTITY))
            if own.any():
                ops, numbers = (torch.from_numpy(each[:, None]) for each in (own, values[:, part]))
                white = run_programs(white, ops, numbers, nearest=nearest)
    lost = white[:, 0].numpy() < 128
    return {row: each for row, each in zip(rows.tolist(), lost, strict=True) if each.any()}


def lose(pictures: npt.NDArray[Any], view: View, fill: float) -> None:
    """Fill what the steps of a view have lost, in pictures [B, H, W] of its rows."""
    for row, lost in lost_pixels(view).items():
        pictures[row][lost] = fill


def _values_of(matrices: npt.NDArray[np.float64], size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return the values of ``Op.AFFINE``, [B, K, 6]: from result to source, about the centre of the image."""
    centre = np.array([[size[1] / 2], [size[0] / 2]])
    back = np.linalg.inv(matrices[..., :2])
    shift = back @ (centre - matrices[..., 2:]) - centre
    values = np.concatenate([back, shift], axis=-1).reshape(*matrices.shape[:2], 6)
    return np.ascontiguousarray(values, np.float32)
