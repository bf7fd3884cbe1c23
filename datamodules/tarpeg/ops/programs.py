"""Operator that runs each image's own program of operations, and the checks of its arguments."""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from . import library
from .checks import check_images, dense, is_readable, on_device, output, require

library.load()


class Op(enum.IntEnum):
    """Operations of a program, and their values; see ``run_programs``.

    Example:
        >>> tarpeg.Op.INVERT in tarpeg.Op
        True
    """

    IDENTITY = 0
    FLIP = 1
    AFFINE = 2
    BRIGHTNESS = 3
    CONTRAST = 4
    SATURATION = 5
    HUE = 6
    SHARPNESS = 7
    POSTERIZE = 8
    SOLARIZE = 9
    AUTOCONTRAST = 10
    EQUALIZE = 11
    INVERT = 12
    GRAYSCALE = 13
    BLUR = 14
    SOLARIZE_ADD = 15


VALUES = 6
"""Numbers of each operation."""
MAX_KERNEL = 255
"""Largest kernel of a blur, in pixels."""

# Bounds of the first values of each operation. All values are finite.
_INF = torch.inf
_BOUNDS: dict[Op, list[tuple[float, float]]] = {
    Op.BRIGHTNESS: [(0, _INF)],
    Op.CONTRAST: [(0, _INF)],
    Op.SATURATION: [(0, _INF)],
    Op.SHARPNESS: [(0, _INF)],
    Op.HUE: [(-0.5, 0.5)],
    Op.POSTERIZE: [(0, 8)],
    Op.SOLARIZE: [(0, 256)],
    Op.SOLARIZE_ADD: [(-255, 255), (0, 256)],
    Op.BLUR: [(0, _INF), (1, MAX_KERNEL)],
}


def run_programs(
    images: Tensor,
    ops: Tensor,
    values: Tensor,
    weights: Tensor | None = None,
    *,
    nearest: bool = True,
    fill: float | Sequence[float] | None = None,
    out: Tensor | None = None,
    threads: int | None = None,
) -> Tensor:
    """Run a program of operations on each image, on the device of ``images``.

    Each operation does what torchvision v2's function of that name does to a uint8 image, with the same
    rounding. Its first values are:

    - ``AFFINE``: six numbers a to f; the result's pixel (x, y) comes from (a x + b y + c, d x + e y + f),
      with (0, 0) at the centre of the image.
    - ``BRIGHTNESS``, ``CONTRAST``, ``SATURATION``, ``SHARPNESS``: factor, at least 0. ``HUE``: -0.5 to 0.5.
    - ``POSTERIZE``: bits kept, 0 to 8. ``SOLARIZE``: threshold, 0 to 256. ``SOLARIZE_ADD``: levels to add to
      levels below a threshold, the second value (as timm).
    - ``BLUR``: sigma above 0 and the kernel's size, odd, 1 to 255. An image that is smaller than half the
      kernel is reflected repeatedly.
    - ``FLIP`` (left to right), ``AUTOCONTRAST``, ``EQUALIZE``, ``INVERT``, ``GRAYSCALE`` and ``IDENTITY``:
      none.

    CPU and CUDA compute the same bits.

    Args:
        images: uint8 ``[B, 3, H, W]``, RGB, contiguous or channels_last (others are copied first).
        ops: int32 ``[B, c, n]``, codes of ``Op``: c chains of n operations.
        values: float32 ``[B, c, n, 6]``, the values of each operation.
        weights: float32 ``[B, c + 1]``: the result is weights[0] * image + the sum of weights[i + 1] * chain
            i, rounded to whole levels (AugMix). Without weights there is one chain, whose last image is the
            result.
        nearest: ``AFFINE`` takes the nearest pixel; otherwise it is bilinear.
        fill: Level or three levels, 0 to 255, outside of the image; None is black, as in torchvision.
        out: uint8 tensor of the shape of ``images`` to write to and return; by default a new one in the
            memory order of ``images``.
        threads: Number of threads on the CPU, by default ``torch.get_num_threads()``.

    Returns:
        uint8, of the shape of ``images``.

    Raises:
        ValueError: For unknown codes and values out of range. On a GPU and inside ``torch.compile`` values
            are not checked: an unknown code changes nothing, and every value has a defined result.

    Example:
        >>> images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
        >>> ops = torch.tensor([[[tarpeg.Op.INVERT]], [[tarpeg.Op.SOLARIZE]]], dtype=torch.int32)
        >>> values = torch.zeros(2, 1, 1, 6)
        >>> values[1, 0, 0, 0] = 128
        >>> result = tarpeg.run_programs(images, ops, values)
        >>> torch.equal(result[0], 255 - images[0])
        True
    """
    check_images(images, (torch.uint8,))
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    arguments = checked_programs(images, ops, values, weights, nearest=nearest, fill=fill)
    images = dense(images)
    fresh, out = out is None, output(out, tuple(images.shape), torch.uint8, images)
    # Without a final pass: no numbers, parts, boxes, mask and constants of it.
    torch.ops.tarpeg.run_batch(images, *arguments, None, 0, None, None, [], fresh, out, threads or 0)
    return out


Arguments = tuple[Tensor | None, Tensor | None, Tensor | None, bool, list[float]]
NO_PROGRAMS: Arguments = (None, None, None, True, [])


def checked_programs(
    images: Tensor,
    ops: Tensor,
    values: Tensor,
    weights: Tensor | None = None,
    *,
    nearest: bool = True,
    fill: float | Sequence[float] | None = None,
) -> Arguments:
    """Check the arguments of ``run_programs`` and return those of the operator, on the device of `images`."""
    if images.shape[1] != 3:
        raise ValueError(f"images must be RGB, [B, 3, H, W], got {list(images.shape)}")
    count = images.shape[0]
    if ops.dtype != torch.int32 or ops.ndim != 3 or ops.shape[0] != count or ops.shape[1] < 1:
        raise ValueError(f"ops must be int32 [{count}, c, n] with c at least 1, got {_kind(ops)}")
    chains, length = ops.shape[1:]
    if values.dtype != torch.float32 or tuple(values.shape) != (count, chains, length, VALUES):
        wanted = f"float32 {[count, chains, length, VALUES]}"
        raise ValueError(f"values must be {wanted}, got {_kind(values)}")
    if weights is None and chains != 1:
        raise ValueError(f"ops must have one chain if weights is None, [{count}, 1, n], got {_kind(ops)}")
    if weights is not None and (
        weights.dtype != torch.float32 or tuple(weights.shape) != (count, chains + 1)
    ):
        raise ValueError(f"weights must be float32 {[count, chains + 1]}, got {_kind(weights)}")
    if fill is None:
        levels = []
    elif isinstance(fill, (int, float)):
        levels = [float(fill)] * 3
    else:
        levels = [float(level) for level in fill]
    if len(levels) not in (0, 3) or not all(0 <= level <= 255 for level in levels):
        raise ValueError(f"fill must be a level of 0 to 255, three of them or None, got {fill!r}")
    if is_readable(ops) and is_readable(values):
        _check_steps(ops, values)
    if weights is not None and is_readable(weights):
        fits = torch.isfinite(weights) & (weights >= 0)
        require("weights", weights, fits, "finite and at least 0")
    steps = [on_device(tensor, images.device) for tensor in (ops, values)]
    shares = None if weights is None else on_device(weights, images.device)
    return steps[0], steps[1], shares, nearest, levels


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


@functools.cache
def _bounds() -> tuple[Tensor, Tensor]:
    """Least and largest values of each operation, float32 ``[16, 6]`` each."""
    low, high = (torch.full((len(Op), VALUES), bound, device="cpu") for bound in (-_INF, _INF))
    for op, bounds in _BOUNDS.items():
        for column, (least, most) in enumerate(bounds):
            low[op, column], high[op, column] = least, most
    return low, high


def _check_steps(ops: Tensor, values: Tensor) -> None:
    """Raise ValueError for the first operation that is unknown or has a value out of range."""
    is_known = (ops >= 0) & (ops < len(Op))
    low, high = _bounds()
    codes = torch.where(is_known, ops, 0).long()
    fits = torch.isfinite(values) & (values >= low[codes]) & (values <= high[codes])
    is_blur = codes == Op.BLUR
    fits[..., 0] &= ~is_blur | (values[..., 0] > 0)
    fits[..., 1] &= ~is_blur | (values[..., 1] % 2 == 1)
    fits[..., 0] &= (codes != Op.POSTERIZE) | (values[..., 0] % 1 == 0)
    if bool((is_known & fits.all(-1)).all()):
        return
    image, chain, at = (~(is_known & fits.all(-1))).nonzero()[0].tolist()
    where = f"[{image}, {chain}, {at}"
    if not is_known[image, chain, at]:
        raise ValueError(
            f"ops{where}] must be a code of Op, 0 to {len(Op) - 1}, got {int(ops[image, chain, at])}"
        )
    op, column = Op(int(ops[image, chain, at])), int((~fits[image, chain, at]).nonzero()[0, 0])
    least, most = float(low[op, column]), float(high[op, column])
    wanted = "finite" if least == -_INF else f"from {least:g} to {most:g}"
    if most == _INF and least != -_INF:
        wanted = f"finite and {'above' if op == Op.BLUR else 'at least'} 0"
    wanted += {(Op.POSTERIZE, 0): ", whole", (Op.BLUR, 1): ", odd"}.get((op, column), "")
    got = float(values[image, chain, at, column])
    raise ValueError(f"values{where}, {column}] of {op.name} must be {wanted}, got {got:g}")


@torch.library.register_fake("tarpeg::run_batch")  # type: ignore[untyped-decorator]
def _fake(*arguments: object) -> None:
    """Return nothing: the operator writes to `out`."""
