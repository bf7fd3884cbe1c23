"""How drawn parameters of ``Augment`` move the pixels of each image, for boxes, masks and points.

Coordinates are those of pixel edges: pixel i covers [i, i + 1), and an image of width w lies between 0 and w.
``tarpeg.matrices`` and ``augment_batch`` count from the centres of pixels instead, half a pixel less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..ops import matrices
from ..sampling.rng import Float64
from ..sampling.steps import Steps
from .policies import Policy, Program
from .tables import CODES


class Move(NamedTuple):
    """One geometric step of the images of a batch.

    Attributes:
        matrices: float64 [B, 2, 3].
        is_nearest: Whether it takes the nearest pixel; otherwise it is bilinear.
    """

    matrices: Tensor
    is_nearest: bool


def moves(params: Mapping[str, Tensor], size: Sequence[int], are_nearest: Sequence[bool]) -> list[Move]:
    """Return ``Augment.moves(params, size)``; ``are_nearest``: of the programs of each stage."""
    height, width = size
    found: list[Move] = []
    for number, is_nearest in enumerate(are_nearest):
        if f"ops{number}" in params and f"weights{number}" not in params:
            ops, values = params[f"ops{number}"], params[f"values{number}"]
            found += [Move(each, is_nearest) for each in _program_moves(ops, values, (height, width))]
    if "flip" in params:
        sign = 1.0 - 2.0 * params["flip"].double()
        found.append(Move(_about(_linear(sign), (width / 2, height / 2)), is_nearest=False))
    if "matrix" in params:
        found.append(Move(_about(params["matrix"], (0.5, 0.5)), is_nearest=False))
    return found


def composed(steps: Sequence[Move]) -> Tensor | None:
    """Return the product of steps, float64 [B, 2, 3]; None if there are none."""
    return matrices.compose(*(each.matrices for each in steps)) if steps else None


def affine_and_steps(found: Sequence[Move]) -> tuple[Float64 | None, Steps | None]:
    """Return steps as arguments of ``View.then``."""
    affine = composed(found)
    if affine is None:
        return None, None
    are_nearest = np.array([each.is_nearest for each in found])
    steps = torch.stack([each.matrices for each in found], 1).numpy()
    return affine.numpy(), Steps(steps, np.tile(are_nearest, (len(steps), 1)))


def may_move(policy: Policy) -> bool:
    """Whether a policy may move pixels: one of the user's own may mirror them without any interpolation."""
    return policy.interpolation is not None or type(policy).__module__ != Policy.__module__


def policy_moves(
    policies: Sequence[Policy], programs: Sequence[Program], size: tuple[int, int]
) -> list[Move]:
    """Return how ``run_drawn(policies, programs, images)`` moves the pixels of images of that size."""
    found: list[Move] = []
    for policy, program in zip(policies, programs, strict=True):
        if may_move(policy) and program.weights is None:
            is_nearest = policy.interpolation != "bilinear"
            found += [Move(each, is_nearest) for each in _program_moves(program.ops, program.values, size)]
    return found


def _program_moves(ops: Tensor, values: Tensor, size: tuple[int, int]) -> list[Tensor]:
    """Return the matrices of the operations of one chain that move pixels, in order."""
    height, width = size
    moves = []
    for codes, numbers in zip(ops[:, 0].unbind(1), values[:, 0].unbind(1), strict=True):
        is_flip, is_affine = codes == CODES["FLIP"], codes == CODES["AFFINE"]
        if not bool((is_flip | is_affine).any()):
            continue
        back = _linear(1.0 - 2.0 * is_flip.double())  # result to source, about the centre of the image
        back[is_affine] = numbers[is_affine].double().reshape(-1, 2, 3)
        inverse = torch.linalg.inv(back[..., :2])
        shift = -(inverse @ back[..., 2:])
        moves.append(_about(torch.cat([inverse, shift], -1), (width / 2, height / 2)))
    return moves


def _linear(x_factor: Tensor) -> Tensor:
    """Return the matrices [B, 2, 3] that scale x, by 1 or -1."""
    return matrices.scale(x_factor, torch.ones_like(x_factor))


def _about(matrix: Tensor, origin: tuple[float, float]) -> Tensor:
    """Return a matrix for coordinates in which the origin of `matrix` is at (x, y)."""
    x, y = origin
    device = matrix.device
    to, back = matrices.translation(-x, -y).to(device), matrices.translation(x, y).to(device)
    return matrices.compose(to, matrix, back)
