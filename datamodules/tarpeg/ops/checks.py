"""Checks and preparation of arguments that the operators on batches of pixels share."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from . import library

MAX_SIDE = 1 << 28
"""The longest side of an image, in pixels."""


def check_images(images: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    """Raise ValueError unless `images` is a batch of one of `dtypes`, on a device that has the operators."""
    if not isinstance(images, Tensor) or images.ndim != 4 or images.dtype not in dtypes:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        got = f"{images.dtype} {list(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"images must be {names} [B, C, H, W], got {got}")
    if images.device.type not in ("cpu", "cuda"):
        raise ValueError(f"images must be on the CPU or on a CUDA device, got {images.device}")
    if images.device.type == "cuda" and not torch.compiler.is_compiling():
        library.require_cuda(images.device)


def dense(images: Tensor) -> Tensor:
    """Return `images` in one of the two dense orders; a copy only if they are in neither."""
    if images.is_contiguous(memory_format=torch.channels_last) or images.is_contiguous():
        return images
    if not _forks or images.is_cuda:
        return images.contiguous()
    # torch's copy would wait for threads of OpenMP that exist in the parent only.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return images.contiguous()
    finally:
        torch.set_num_threads(threads)


_forks: list[bool] = []  # not empty in a process that was forked
os.register_at_fork(after_in_child=lambda: _forks.append(True))


def on_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Return `numbers`, contiguous, on the device of the images."""
    # A copy to a GPU is ordered before the kernel by its stream; from a GPU the CPU must wait for it.
    return numbers.to(device, non_blocking=device.type == "cuda").contiguous()


def output(
    out: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    images: Tensor,
    order: torch.memory_format | None = None,
) -> Tensor:
    """Return `out`, or a new tensor in `order`, by default that of `images`.

    Raises ValueError if `out` differs from the result in shape, dtype, device or order, or overlaps `images`.
    """
    if out is None:
        order = order or (torch.contiguous_format if images.is_contiguous() else torch.channels_last)
        return torch.empty(shape, dtype=dtype, device=images.device, memory_format=order)
    if tuple(out.shape) != shape or out.dtype != dtype or out.device != images.device:
        got = f"{out.dtype} {list(out.shape)} on {out.device}"
        raise ValueError(f"out must be {dtype} {list(shape)} on {images.device}, got {got}")
    if not (out.is_contiguous() or out.is_contiguous(memory_format=torch.channels_last)):
        raise ValueError(f"out must be contiguous or channels_last, got strides {list(out.stride())}")
    if not torch.compiler.is_compiling() and out.numel() and images.numel():
        (begin, end), (low, high) = ((t.data_ptr(), t.data_ptr() + t.nbytes) for t in (images, out))
        if begin < high and low < end:
            raise ValueError("out must not share memory with images")
    if order is not None and not out.is_contiguous(memory_format=order):
        raise ValueError(f"out must be in memory_format={order}")
    return out


def checked_size(size: int | Sequence[int], least: int = 0, most: int = MAX_SIDE) -> tuple[int, int]:
    """Return (height, width) from an int or a pair."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(least <= side <= most for side in pair):
        raise ValueError(f"size must be (height, width) or an int, each from {least} to {most}, got {size!r}")
    return pair[0], pair[1]


def require(name: str, values: Tensor, fits: Tensor, wanted: str) -> None:
    """Raise ValueError for the first image whose entries of `fits`, bool ``[B, ...]``, are not all true."""
    if bool(fits.all()):
        return
    index = int((~fits.flatten(1).all(1) if fits.ndim > 1 else ~fits).nonzero()[0, 0])
    raise ValueError(f"{name}[{index}] must be {wanted}, got {values[index].tolist()}")


def is_readable(values: Tensor) -> bool:
    """Whether values can be read without waiting for a GPU or leaving a compiled graph."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()
