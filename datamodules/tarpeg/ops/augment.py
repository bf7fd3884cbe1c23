"""Operators on batches of pixels, on the device of the images: warp, augment, and their argument checks.

Values on the CPU are checked, except inside ``torch.compile``. Values on a GPU are not read, because that
would wait for the GPU; every value has a defined result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from . import library
from .checks import check_images, checked_size, dense, is_readable, on_device, output, require
from .programs import NO_PROGRAMS, VALUES, Op, checked_programs, run_programs

library.load()

Number = float | Sequence[float] | Tensor

_DTYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16)

# Bits and columns: the same as Part and Column in native/batch/final_pass.h.
_MATRIX, _FLIP, _COLOUR = (1 << bit for bit in range(3))
_COLUMNS = 19
_COLOURS = {"brightness": Op.BRIGHTNESS, "contrast": Op.CONTRAST, "saturation": Op.SATURATION, "hue": Op.HUE}


def warp_affine(
    images: Tensor,
    matrices: Tensor,
    size: int | Sequence[int],
    interpolation: Literal["bilinear", "nearest"] = "bilinear",
    fill: float | Sequence[float] = 0.0,
    inverse: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Warp each image by its own matrix, on the device of ``images``.

    Positions are exact to 1/1000 source pixel, or to 1/20,000 of the distance between two target pixels if
    the image shrinks more than 20 times; from 2 million source pixels per target pixel on, single pixels may
    remain ``fill``. CPU and CUDA compute the same bits.

    Args:
        images: uint8, float32, float16 or bfloat16 ``[B, C, H, W]``, contiguous or channels_last (others are
            copied first).
        matrices: float32 or float64 ``[B, 2, 3]``, source pixels to target pixels as for ``cv2.warpAffine``,
            see ``tarpeg.matrices``.
        size: Size of the result: (height, width), or an int for a square, 0 to 2^28.
        interpolation: "bilinear", or "nearest": the pixel at floor(position + 0.5).
        fill: Value outside of an image, one number or one per channel for up to 16 channels; bilinear
            interpolation blends with it at the edges.
        inverse: Matrices map target pixels to source pixels.
        out: Tensor of the result's shape and type, contiguous or channels_last, to write to and return.

    Returns:
        ``[B, C, height, width]`` in the type and memory order of ``images``; uint8 is rounded to the nearest
        level.

    Raises:
        ValueError: For a matrix that is not finite or, unless ``inverse``, singular. On a GPU and inside
            ``torch.compile`` that image is all ``fill`` instead.

    Example:
        >>> images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
        >>> matrices = tarpeg.matrices.rotation([10.0, -10.0], center=(31.5, 31.5))
        >>> tarpeg.warp_affine(images, matrices, size=64).shape
        torch.Size([2, 3, 64, 64])
    """
    check_images(images, _DTYPES)
    if interpolation not in ("bilinear", "nearest"):
        raise ValueError(f"interpolation must be 'bilinear' or 'nearest', got {interpolation!r}")
    height, width = checked_size(size)
    count, channels = images.shape[:2]
    if matrices.dtype not in (torch.float32, torch.float64) or tuple(matrices.shape) != (count, 2, 3):
        got = f"{matrices.dtype} {list(matrices.shape)}"
        raise ValueError(f"matrices must be float32 or float64 [{count}, 2, 3], got {got}")
    _check_matrices("matrices", matrices, inverse)
    fills = [float(fill)] if isinstance(fill, (int, float)) else [float(level) for level in fill]
    if len(fills) not in (1, channels) or len(fills) > 16 or not all(abs(level) <= 3.4e38 for level in fills):
        raise ValueError(
            f"fill must be one finite number, or one for each of {channels} channels, of at most 3.4e38 "
            f"(float32), got {fill!r}"
        )
    images = dense(images)
    fresh, out = out is None, output(out, (count, channels, height, width), images.dtype, images)
    table = on_device(matrices.double(), images.device)
    torch.ops.tarpeg.warp_affine(images, table, fills, interpolation == "nearest", inverse, fresh, out)
    return out


def augment_batch(
    images: Tensor,
    *,
    programs: Mapping[str, Any] | None = None,
    brightness: Number | None = None,
    contrast: Number | None = None,
    saturation: Number | None = None,
    hue: Number | None = None,
    flip: bool | Sequence[bool] | Tensor | None = None,
    matrix: Tensor | None = None,
    size: int | Sequence[int] | None = None,
    colour_matrix: Tensor | None = None,
    erase_boxes: Tensor | None = None,
    erase_keys: Tensor | None = None,
    mask: Tensor | None = None,
    fill: float | Sequence[float] = 0.0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Augment and normalise a batch of uint8 images in one pass, on the device of ``images``.

    Each argument has one value for all images or one per image, ``[B]``; omitted ones cost nothing. They
    apply in the order of this list. ``programs`` and the four changes of colour are operations of
    ``run_programs``: on levels, as torchvision v2 does it on uint8. What follows them is float32, without
    rounding in between, and within 1/255 of exact arithmetic on values in 0 to 1. CPU and CUDA compute the
    same bits.

    Args:
        images: uint8 ``[B, 3, H, W]``, RGB, or ``[B, 1, H, W]``, gray, without changes of colour; contiguous
            or channels_last (others are copied first).
        programs: Arguments of ``run_programs`` by name, ``ops``, ``values`` and the others up to ``fill``.
        brightness: Factor, at least 0, of ``adjust_brightness``.
        contrast: Factor, at least 0, of ``adjust_contrast``.
        saturation: Factor, at least 0, of ``adjust_saturation``.
        hue: Argument of ``adjust_hue``, -0.5 to 0.5 of a full circle.
        flip: Mirrored left to right if true.
        matrix: ``[2, 3]`` or ``[B, 2, 3]``: as in ``warp_affine``, bilinear.
        size: (height, width) of the result, or an int for a square; by default that of ``images``.
            ``matrix=tarpeg.matrices.translation(-left, -top)`` is then a crop; whole pixels stay exact.
        colour_matrix: ``[3, 4]`` or ``[B, 3, 4]``: M[:, :3] (R, G, B) + M[:, 3]; not clamped.
        erase_boxes: int32 ``[B, n, 4]``, (top, left, height, width) in the result; an empty box erases
            nothing.
        erase_keys: int64 ``[B, n]``: erased pixels become random numbers of the standard normal distribution,
            after normalisation: hashes of the box's key, the pixel and the channel.
        mask: bool ``[B, h, w]``, h and w at most the result's: pixel (y, x) is erased if the cell
            (y h // height, x w // width) is true.
        fill: Level of 0 to 255, or one per channel, of pixels outside the source (before ``colour_matrix``)
            and of erased pixels.
        mean: Mean of each channel, for values in 0 to 1; by default 0. The result is (x / 255 - mean) / std.
        std: Standard deviation of each channel, for values in 0 to 1; by default 1.
        dtype: float32, float16, bfloat16, or uint8, which allows neither ``mean`` nor ``std``: clamped to
            0..255 and rounded.
        memory_format: Memory order of the result; by default that of ``images``.
        out: Tensor of the result's shape and type to write to and return.

    Returns:
        ``[B, C, height, width]`` of ``dtype``.

    Raises:
        ValueError: For values out of range, or a box outside the result. On a GPU and inside
            ``torch.compile`` values are not checked: an image whose matrix is not finite and invertible is
            all ``fill``, boxes are clipped, a NaN in ``colour_matrix`` yields NaN (0 in uint8), and every
            value of a program has a defined result.

    Example:
        >>> images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
        >>> result = tarpeg.augment_batch(images, flip=[True, False], brightness=1.2, mean=[0.5] * 3)
        >>> result.shape, result.dtype
        (torch.Size([2, 3, 64, 64]), torch.float32)
    """
    check_images(images, (torch.uint8,))
    count, channels, *image_size = images.shape
    if channels not in (1, 3):
        raise ValueError(f"images must be RGB, [B, 3, H, W], or gray, [B, 1, H, W], got {list(images.shape)}")
    height, width = checked_size(image_size if size is None else size)
    fills = [float(fill)] * channels if isinstance(fill, (int, float)) else [float(level) for level in fill]
    if len(fills) != channels or not all(0 <= level <= 255 for level in fills):
        wanted = "or three" if channels == 3 else "one for gray images"
        raise ValueError(f"fill must be a level of 0 to 255, {wanted}, got {fill!r}")
    numbers_of = scale_and_shift(mean, std, dtype, channels) or [1.0] * channels + [0.0] * channels
    # Three of each for the operator, whatever the channels are.
    constants = [number for number in fills + numbers_of for _ in range(3 // channels)]
    colours = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    for name, value in {**colours, "colour_matrix": colour_matrix}.items():
        if channels == 1 and value is not None:
            raise ValueError(f"{name} needs RGB images, [B, 3, H, W], got {list(images.shape)}")
    images, programs = _with_colours(images, programs, colours)
    given = (flip, matrix, colour_matrix)
    is_there = any(isinstance(value, Tensor) and value.device == images.device for value in given)
    numbers = torch.zeros((count, _COLUMNS), dtype=torch.float64, device=images.device if is_there else "cpu")
    parts = 0
    if matrix is not None:
        rows = _per_image("matrix", matrix, count, (2, 3))
        _check_matrices("matrix", rows, False)
        numbers[:, :6] = rows.flatten(1)
        parts |= _MATRIX
    if flip is not None:
        flips = _as_tensor(flip)
        if flips.dtype != torch.bool:
            raise ValueError(f"flip must be bool [{count}], got {flips.dtype} {list(flips.shape)}")
        numbers[:, 6] = _per_image("flip", flips, count, ())
        parts |= _FLIP
    if colour_matrix is not None:
        rows = _per_image("colour_matrix", colour_matrix, count, (3, 4))
        _check_range("colour_matrix", rows, -torch.inf, torch.inf)
        numbers[:, 7:] = rows.flatten(1)
        parts |= _COLOUR
    images, target = dense(images), (count, height, width)
    table = on_device(numbers, images.device)
    boxes = _checked_boxes(erase_boxes, erase_keys, target, images.device)
    if erase_keys is not None and dtype == torch.uint8:
        raise ValueError("erase_keys needs a floating-point dtype, got dtype=torch.uint8")
    cells = _checked_mask(mask, target, images.device)
    arguments = NO_PROGRAMS if programs is None else checked_programs(images, **programs)
    fresh, out = out is None, output(out, (count, channels, height, width), dtype, images, memory_format)
    final = (table, parts, boxes, cells, constants)
    torch.ops.tarpeg.run_batch(images, *arguments, *final, fresh, out, 0)
    return out


def _with_colours(
    images: Tensor, programs: Mapping[str, Any] | None, colours: Mapping[str, Number | None]
) -> tuple[Tensor, Mapping[str, Any] | None]:
    """Return the images and the arguments of ``run_programs`` that end with the given changes of colour."""
    count = images.shape[0]  # a symbol in torch.export; len() is a number there
    given: dict[str, Tensor] = {}
    for name, value in colours.items():
        if value is not None:
            given[name] = _per_image(name, value, count, ())
            _check_range(name, given[name], *((-0.5, 0.5) if name == "hue" else (0.0, torch.inf)))
    if not given:
        return images, programs
    if programs is not None and programs.get("weights") is not None:  # the mixture comes first
        images, programs = run_programs(images, **programs), None
    is_there = any(factors.device == images.device for factors in given.values())
    device = images.device if is_there or programs is not None else torch.device("cpu")
    values = torch.zeros((count, 1, len(given), VALUES), device=device)
    # Filled where it is: a copy to a GPU would wait for it, and cannot be captured in a graph.
    ops = torch.empty((count, 1, len(given)), dtype=torch.int32, device=device)
    for at, (name, factors) in enumerate(given.items()):
        values[:, 0, at, 0] = factors
        ops[:, 0, at] = _COLOURS[name]
    added = {"ops": ops, "values": values}
    if programs is None:
        return images, added
    checked_programs(images, **programs)  # what can be joined
    joined = {name: torch.cat((on_device(programs[name], device), added[name]), 2) for name in added}
    return images, {**programs, **joined}


def scale_and_shift(
    mean: Sequence[float] | None, std: Sequence[float] | None, dtype: torch.dtype, channels: int = 3
) -> list[float] | None:
    """Return scale and shift, a number each per channel, of (value / 255 - mean) / std; None for uint8."""
    if dtype == torch.uint8:
        if mean is not None or std is not None:
            raise ValueError("mean and std need a floating-point dtype, got dtype=torch.uint8")
        return None
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"dtype must be torch.uint8, float32, float16 or bfloat16, got {dtype}")
    mean = [0.0] * channels if mean is None else list(mean)
    std = [1.0] * channels if std is None else list(std)
    is_fit = len(mean) == len(std) == channels and all(map(math.isfinite, (*mean, *std))) and min(std) > 0
    if not is_fit:
        wanted = "three numbers each: R, G, B" if channels == 3 else "one number each: gray"
        raise ValueError(f"mean={mean!r} and std={std!r} must be {wanted}; std positive")
    scale = [1 / (255 * deviation) for deviation in std]
    shift = [-center / deviation for center, deviation in zip(mean, std, strict=True)]
    return scale + shift


def _as_tensor(value: Number | Sequence[bool]) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")


def _per_image(name: str, value: Number | Sequence[bool], count: int, shape: tuple[int, ...]) -> Tensor:
    """Return `value`, given once or for each image, as ``[count, *shape]``."""
    tensor = _as_tensor(value)
    if tuple(tensor.shape) not in (shape, (count, *shape)):
        wanted = f"{list(shape)} or {[count, *shape]}" if shape else f"one number or [{count}]"
        raise ValueError(f"{name} must be {wanted}, got {list(tensor.shape)}")
    return tensor.expand(count, *shape)


def _check_range(name: str, values: Tensor, low: float, high: float) -> None:
    """Raise ValueError for numbers that are not finite or out of bounds, if they can be read."""
    if not is_readable(values):
        return
    fits = torch.isfinite(values) & (values >= low) & (values <= high)
    bounds = {0.0: "finite and at least 0", -0.5: "from -0.5 to 0.5"}
    require(name, values, fits, bounds.get(low, "finite"))


def _check_matrices(name: str, matrices: Tensor, inverse: bool) -> None:
    """Raise ValueError for a matrix that is not finite or, unless `inverse`, not invertible."""
    if not is_readable(matrices):
        return
    require(name, matrices, torch.isfinite(matrices), "finite")
    if not inverse:
        m = matrices.double()
        determinant = m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1] * m[:, 1, 0]
        require(name, matrices, torch.isfinite(1 / determinant), "invertible")


def _checked_boxes(
    boxes: Tensor | None, keys: Tensor | None, target: tuple[int, int, int], device: torch.device
) -> Tensor | None:
    """Return boxes with their keys, on the device of the images. target: count, height, width."""
    if boxes is None:
        if keys is not None:
            raise ValueError("erase_keys needs erase_boxes")
        return None
    count, height, width = target
    if boxes.dtype != torch.int32 or boxes.ndim != 3 or boxes.shape[0] != count or boxes.shape[2] != 4:
        raise ValueError(f"erase_boxes must be int32 [{count}, n, 4], got {boxes.dtype} {list(boxes.shape)}")
    if is_readable(boxes):
        begin, extent = boxes[..., :2].long(), boxes[..., 2:].long()
        end = begin + extent
        fits = (begin >= 0) & (extent >= 0) & (end <= torch.tensor([height, width], device="cpu"))
        require("erase_boxes", boxes, fits, f"(top, left, height, width) inside {height} x {width}")
    if keys is not None:
        if keys.dtype != torch.int64 or keys.shape != boxes.shape[:2]:
            wanted = f"int64 {list(boxes.shape[:2])}"
            raise ValueError(f"erase_keys must be {wanted}, got {keys.dtype} {list(keys.shape)}")
        boxes = torch.cat([boxes, keys.to(boxes.device)[..., None].contiguous().view(torch.int32)], 2)
    return on_device(boxes, device)


def _checked_mask(mask: Tensor | None, target: tuple[int, int, int], device: torch.device) -> Tensor | None:
    """Return the mask on the device of the images. target: count, height, width."""
    if mask is None:
        return None
    count, height, width = target
    fits = mask.dtype == torch.bool and mask.ndim == 3 and mask.shape[0] == count
    if not fits or not (1 <= mask.shape[1] <= max(height, 1) and 1 <= mask.shape[2] <= max(width, 1)):
        wanted = f"bool [{count}, h, w] with h from 1 to {height} and w from 1 to {width}"
        raise ValueError(f"mask must be {wanted}, got {mask.dtype} {list(mask.shape)}")
    return on_device(mask, device)


@torch.library.register_fake("tarpeg::warp_affine")  # type: ignore[untyped-decorator]
def _fake(*arguments: object) -> None:
    """Return nothing: the operator writes to `out`."""
