"""Affine matrices, many at once: creation, composition and application. Public as ``tarpeg.matrices``.

A matrix ``[2, 3]`` maps source pixels to target pixels, as in ``cv2.warpAffine``:

    x' = m[0, 0] x + m[0, 1] y + m[0, 2]        y' = m[1, 0] x + m[1, 1] y + m[1, 2]

x points to the right and y down, and whole numbers are at the centres of pixels: the image's own centre is
at ((width - 1) / 2, (height - 1) / 2). Numbers may be floats, sequences or tensors, one for each matrix;
their shapes broadcast. Every function returns float64 ``[..., 2, 3]`` on the device of its arguments.
Centres and points are (x, y).

Example:
    >>> turn = tarpeg.matrices.rotation([0.0, 90.0], center=(31.5, 31.5))  # two matrices
    >>> both = tarpeg.matrices.compose(turn, tarpeg.matrices.translation(2, 0))
    >>> both.shape
    torch.Size([2, 2, 3])
    >>> tarpeg.matrices.apply(both[1], [[0.0, 0.0]]).round().tolist()
    [[2.0, 63.0]]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Numbers = float | Sequence[float] | Tensor
Points = Sequence[float] | Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]] | Tensor


def identity(count: int | None = None) -> Tensor:
    """Return the identity: ``[2, 3]``, or ``[count, 2, 3]``."""
    matrix = torch.eye(2, 3, dtype=torch.float64)
    return matrix if count is None else matrix.expand(count, 2, 3).contiguous()


def translation(x: Numbers, y: Numbers) -> Tensor:
    """Move by (x, y) pixels: right and down."""
    x, y = _numbers(x, y)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    return _matrix(one, zero, x, zero, one, y)


def scale(x: Numbers, y: Numbers | None = None, center: Points = (0.0, 0.0)) -> Tensor:
    """Scale the width by x and the height by y (by default also x) around `center`."""
    x, y = _numbers(x, x if y is None else y)
    zero = torch.zeros_like(x)
    return _around(_matrix(x, zero, zero, zero, y, zero), center)


def rotation(degrees: Numbers, center: Points = (0.0, 0.0)) -> Tensor:
    """Rotate counterclockwise around `center`, as cv2.getRotationMatrix2D does."""
    (angle,) = _numbers(degrees)
    angle = torch.deg2rad(angle)
    cos, sin, zero = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)
    return _around(_matrix(cos, sin, zero, -sin, cos, zero), center)


def shear(x_degrees: Numbers, y_degrees: Numbers = 0.0, center: Points = (0.0, 0.0)) -> Tensor:
    """Slant: x' = x + tan(x_degrees) y, y' = y + tan(y_degrees) x, around `center`."""
    x, y = _numbers(x_degrees, y_degrees)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    x, y = torch.tan(torch.deg2rad(x)), torch.tan(torch.deg2rad(y))
    return _around(_matrix(one, x, zero, y, one, zero), center)


def compose(*matrices: Tensor) -> Tensor:
    """Return the matrix that applies the first, then the second, and so on."""
    if not matrices:
        raise ValueError("matrices: expected at least one to compose")
    result, *others = (_square(matrix) for matrix in matrices)
    for matrix in others:
        result = matrix @ result
    return result[..., :2, :].contiguous()


def apply(matrix: Tensor, points: Points) -> Tensor:
    """Map points ``[..., n, 2]``, (x, y): float64 of that shape."""
    square, points = _square(matrix), _points(points, "points")
    return points @ square[..., :2, :2].transpose(-1, -2) + square[..., None, :2, 2]


def _numbers(*values: Numbers) -> list[Tensor]:
    given = next((value.device for value in values if isinstance(value, Tensor) and value.ndim), None)
    tensors = [_as_tensor(value, given) for value in values]
    device = next((tensor.device for tensor in tensors if tensor.ndim), tensors[0].device)
    tensors = [tensor.to(device) for tensor in tensors]
    return list(torch.broadcast_tensors(*tensors))


def _as_tensor(value: Numbers | Points, device: torch.device | None) -> Tensor:
    """Return float64; a tensor stays on its device: as_tensor would move it to torch's default device."""
    if isinstance(value, Tensor):
        return value.to(device or value.device, torch.float64)
    return torch.as_tensor(value, dtype=torch.float64, device=device)


def _points(value: Points, name: str, device: torch.device | None = None) -> Tensor:
    points = _as_tensor(value, device)
    if points.ndim < 1 or points.shape[-1] != 2:
        raise ValueError(f"{name} must be points (x, y), [..., 2], got {list(points.shape)}")
    return points


def _matrix(a: Tensor, b: Tensor, x: Tensor, c: Tensor, d: Tensor, y: Tensor) -> Tensor:
    rows = torch.stack((a, b, x, c, d, y), -1)
    return rows.reshape(*rows.shape[:-1], 2, 3)


def _around(matrix: Tensor, center: Points) -> Tensor:
    """Add the translation that keeps `center` in place."""
    point = _points(center, "center", matrix.device)
    linear = matrix[..., :2]
    moved = point - (linear @ point[..., None])[..., 0]
    return torch.cat((linear.expand(*moved.shape, 2), moved[..., None]), -1)


def _square(matrix: Tensor) -> Tensor:
    if matrix.ndim < 2 or matrix.shape[-2:] != (2, 3):
        raise ValueError(f"matrix must be [..., 2, 3], got {list(matrix.shape)}")
    last = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64, device=matrix.device)
    return torch.cat((matrix.double(), last.expand(*matrix.shape[:-2], 1, 3)), -2)
