"""How drawn parameters of ``Augment`` move the pixels of each image, for boxes, masks and points.

Coordinates are those of pixel edges: pixel i covers [i, i + 1), and an image of width w lies between 0 and w.
``tarpeg.matrices`` and ``augment_batch`` count from the centres of pixels instead, half a pixel less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..ops import matrices
from .policies import Policy, Program
from .tables import CODES


def affines(params: Mapping[str, Tensor], size: Sequence[int]) -> Tensor | None:
    """Return ``Augment.geometry(params, size)``."""
    height, width = size
    moves: list[Tensor] = []
    number = 0
    while f"ops{number}" in params:
        if f"weights{number}" not in params:
            moves += _program_moves(params[f"ops{number}"], params[f"values{number}"], (height, width))
        number += 1
    if "flip" in params:
        sign = 1.0 - 2.0 * params["flip"].double()
        moves.append(_about(_linear(sign), (width / 2, height / 2)))
    if "matrix" in params:
        moves.append(_about(params["matrix"], (0.5, 0.5)))
    return matrices.compose(*moves) if moves else None


def may_move(policy: Policy) -> bool:
    """Whether a policy may move pixels: one of the user's own may mirror them without any interpolation."""
    return policy.interpolation is not None or type(policy).__module__ != Policy.__module__


def policy_affines(
    policies: Sequence[Policy], programs: Sequence[Program], size: tuple[int, int]
) -> Tensor | None:
    """Return how ``run_drawn(policies, programs, images)`` moves the pixels of images of that size."""
    moves: list[Tensor] = []
    for policy, program in zip(policies, programs, strict=True):
        if may_move(policy) and program.weights is None:
            moves += _program_moves(program.ops, program.values, size)
    return matrices.compose(*moves) if moves else None


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
