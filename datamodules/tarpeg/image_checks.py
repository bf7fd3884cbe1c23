"""What warp_affine and augment_batch ask of their arguments.

Numbers are checked where they lie on the CPU and outside ``torch.compile``; numbers on a GPU are not looked
at, which would wait for it, and have a defined result whatever they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import _load
from .ops import scale_and_shift

MAX_SIDE = 1 << 28
"""The longest side of an image, in pixels."""

Number = float | Sequence[float] | Tensor


def check_images(images: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    """Refuse what is no batch of images of one of `dtypes` on a device that has the operators."""
    if not isinstance(images, Tensor) or images.ndim != 4 or images.dtype not in dtypes:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        got = f"{images.dtype} {list(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"images must be {names} [B, C, H, W], got {got}")
    if images.device.type not in ("cpu", "cuda"):
        raise ValueError(f"images must be on the CPU or on a CUDA device, got {images.device}")
    if images.device.type == "cuda" and not torch.compiler.is_compiling():
        _load.require_cuda(images.device)


def dense(images: Tensor) -> Tensor:
    """Return `images` in one of the two dense orders, themselves where they are."""
    if images.is_contiguous() or images.is_contiguous(memory_format=torch.channels_last):
        return images
    return images.contiguous()


def on_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Return `numbers`, dense, on the device of the images, ready for an operator."""
    # To a GPU the copy is in its stream, ahead of the kernel; the CPU's operators would read before it ends.
    return numbers.to(device, non_blocking=device.type == "cuda").contiguous()


def check_out(out: Tensor, shape: tuple[int, ...], dtype: torch.dtype, images: Tensor) -> None:
    """Refuse an `out` that is not what would be returned, or that overlaps `images`."""
    if tuple(out.shape) != shape or out.dtype != dtype or out.device != images.device:
        raise ValueError(
            f"out must be {dtype} {list(shape)} on {images.device}, "
            f"got {out.dtype} {list(out.shape)} on {out.device}"
        )
    if not (out.is_contiguous() or out.is_contiguous(memory_format=torch.channels_last)):
        raise ValueError(f"out must be contiguous or channels_last, got strides {list(out.stride())}")
    if torch.compiler.is_compiling() or not out.numel() or not images.numel():
        return
    (first, size), (second, room) = ((t.data_ptr(), t.numel() * t.element_size()) for t in (images, out))
    if first < second + room and second < first + size:
        raise ValueError("out must not share memory with images")


def target_size(size: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) from an int or a pair."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(0 <= side <= MAX_SIDE for side in pair):
        raise ValueError(f"size must be (height, width) or an int, each from 0 to {MAX_SIDE}, got {size!r}")
    return pair[0], pair[1]


def constants_of(
    fill: float | Sequence[float],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    dtype: torch.dtype,
) -> list[float]:
    """Return fill, scale and shift, three numbers each."""
    fills = [float(fill)] * 3 if isinstance(fill, (int, float)) else [float(level) for level in fill]
    if len(fills) != 3 or not all(0 <= level <= 255 for level in fills):
        raise ValueError(f"fill must be a level of 0 to 255, or three, got {fill!r}")
    return fills + (scale_and_shift(mean, std, dtype) or [1.0] * 3 + [0.0] * 3)


def per_image(name: str, value: Number | Sequence[bool], count: int, shape: tuple[int, ...]) -> Tensor:
    """Return `value`, given once or for each image, as ``[count, *shape]``."""
    tensor = torch.as_tensor(value)
    if tuple(tensor.shape) not in (shape, (count, *shape)):
        wanted = f"{list(shape)} or {[count, *shape]}" if shape else f"one number or [{count}]"
        raise ValueError(f"{name} must be {wanted}, got {list(tensor.shape)}")
    return tensor.expand(count, *shape)


def _refuse(name: str, values: Tensor, fits: Tensor, wanted: str) -> None:
    """Raise for the first image where `fits`, bool ``[B, ...]``, is not all true."""
    if bool(fits.all()):
        return
    index = int((~fits.flatten(1).all(1) if fits.ndim > 1 else ~fits).nonzero()[0, 0])
    raise ValueError(f"{name}[{index}] must be {wanted}, got {values[index].tolist()}")


def _is_readable(values: Tensor) -> bool:
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def check_range(name: str, values: Tensor, low: float, high: float) -> None:
    """Refuse numbers that are not finite and within the bounds, where they can be read."""
    if not _is_readable(values):
        return
    fits = torch.isfinite(values) & (values >= low) & (values <= high)
    bounds = {0.0: "finite and at least 0", -0.5: "from -0.5 to 0.5"}
    _refuse(name, values, fits, bounds.get(low, "finite"))


def check_matrices(name: str, matrices: Tensor, inverse: bool) -> None:
    """Refuse matrices ``[B, 2, 3]`` that are not finite, or not invertible though `inverse` is not set."""
    if not _is_readable(matrices):
        return
    _refuse(name, matrices, torch.isfinite(matrices), "finite")
    if not inverse:
        m = matrices.double()
        determinant = m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1] * m[:, 1, 0]
        _refuse(name, matrices, torch.isfinite(1 / determinant), "invertible")


def checked_boxes(boxes: Tensor | None, target: tuple[int, int, int], device: torch.device) -> Tensor | None:
    """Return the boxes to erase on the device of the images. target: count, height, width."""
    if boxes is None:
        return None
    count, height, width = target
    if boxes.dtype != torch.int32 or boxes.ndim != 3 or boxes.shape[0] != count or boxes.shape[2] != 4:
        raise ValueError(f"erase_boxes must be int32 [{count}, n, 4], got {boxes.dtype} {list(boxes.shape)}")
    if _is_readable(boxes):
        begin, extent = boxes[..., :2].long(), boxes[..., 2:].long()
        end = begin + extent
        fits = (begin >= 0) & (extent >= 0) & (end <= torch.tensor([height, width]))
        _refuse("erase_boxes", boxes, fits, f"(top, left, height, width) inside {height} x {width}")
    return on_device(boxes, device)


def checked_mask(mask: Tensor | None, target: tuple[int, int, int], device: torch.device) -> Tensor | None:
    """Return the mask on the device of the images. target: count, height, width."""
    if mask is None:
        return None
    count, height, width = target
    fits = mask.dtype == torch.bool and mask.ndim == 3 and mask.shape[0] == count
    if not fits or not (1 <= mask.shape[1] <= max(height, 1) and 1 <= mask.shape[2] <= max(width, 1)):
        raise ValueError(
            f"mask must be bool [{count}, h, w] with h from 1 to {height} and w from 1 to {width}, "
            f"got {mask.dtype} {list(mask.shape)}"
        )
    return on_device(mask, device)
