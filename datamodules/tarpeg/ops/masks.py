"""Operators on masks: PNGs and outlines of objects, cut out by a box and resized by nearest neighbour."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import library

MOST_PIXELS = 1 << 26
"""Pixels of a mask, beyond which it is not decoded."""

_last = threading.local()

library.load()


def read_masks(
    files: Sequence[bytes],
    boxes: npt.NDArray[np.int32],
    size: tuple[int, int],
    flips: npt.NDArray[np.bool_] | None = None,
    places: npt.NDArray[np.int32] | None = None,
    *,
    centres: bool = True,
    table: npt.NDArray[np.int32] | None = None,
    fill: int = 255,
    threads: int = 1,
    out: npt.NDArray[np.uint8] | None = None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Decode the boxes of PNGs with a byte per pixel, gray or of a palette, and resize them.

    Only rows under the box are decoded if the PNG is in bands (see docs/formats.md), otherwise those before
    it too. Their checksums are compared.

    Args:
        files: B PNGs.
        boxes: int32 [B, 4], (top, left, height, width).
        size: (height, width) of the results.
        flips: bool [B], which of them are mirrored.
        places: int32 [B, 4], (top, left, height, width) of the part of the result that shows the box; None:
            all of it.
        centres: Take the pixel under the centre of the result's; otherwise, as torch's "nearest", that under
            its corner.
        table: int32 [256], what becomes of each value, 0..255; negative for values that may not occur.
        fill: Value outside of the places, 0..255.
        threads: Number of threads.
        out: uint8 [B, height, width], memory for the results; None: its own.

    Returns:
        uint8 [B, height, width], and int32 [B, 3]: a status, and height and width of the mask. A status that
        is not 0 does not make a mask a damaged one: other PNGs, a box outside the mask and values that may
        not occur have one too.
    """
    data = torch.frombuffer(bytearray().join([*files, b"\0"]), dtype=torch.uint8)  # not empty
    masks = _memory("decoded", (len(files), *size)) if out is None else out
    found = torch.ops.tarpeg.read_masks(
        data,
        torch.from_numpy(np.cumsum([len(file) for file in files], dtype=np.int64)),
        _as_tensor(boxes),
        _as_tensor(flips),
        _as_tensor(places),
        _as_tensor(table),
        centres,
        fill,
        MOST_PIXELS,
        torch.from_numpy(masks),
        threads,
    )
    facts: npt.NDArray[np.int32] = found.numpy()
    masks[facts[:, 0] != 0] = 0
    return masks, facts


def _memory(use: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return memory for masks: that of the thread's last ones of that use, if none of them is in use.

    New memory costs a third of the time in which masks are decoded, and most of that in which they are
    unpacked, for page faults.
    """
    count = math.prod(shape)
    kept, references = getattr(_last, use, (None, 0))
    # Python 3.14 counts fewer references of a function's own than earlier versions.
    is_free = kept is not None and sys.getrefcount(kept) <= references
    if kept is None or not is_free or not count <= len(kept) <= 2 * count:
        kept = np.empty(count + count // 4, np.uint8)
        references = sys.getrefcount(kept) + 1  # that of the tuple
        setattr(_last, use, (kept, references))
    return kept[:count].reshape(shape)


def fill_outlines(
    points: npt.NDArray[np.float64],
    toggles: npt.NDArray[np.int64],
    parts: npt.NDArray[np.int64],
    objects: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
    boxes: npt.NDArray[np.int32],
    size: tuple[int, int],
    flips: npt.NDArray[np.bool_],
    places: npt.NDArray[np.int32],
    *,
    centres: bool = True,
    threads: int = 1,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Fill polygons and run lengths, which cover the pixels that they cover in pycocotools.

    All parts of all objects of all images are given one after another.

    Args:
        points: float64 [n, 2], the corners of all polygons, (x, y) in pixels, -1e7 to 1e7.
        toggles: int64 [m], the places at which masks begin or end, from 0, in the columns of an image one
            after another (x * height + y).
        parts: int64 [P, 2], how many points and toggles each part has; a mask is the union of its parts.
        objects: int64 [N], how many parts each object has.
        counts: int64 [B], how many objects each image has.
        sizes: int32 [B, 2], (height, width) of the images.
        boxes: int32 [B, 4], (top, left, height, width), within the images.
        size: (height, width) of the results.
        flips: bool [B], which of them are mirrored.
        places: int32 [B, 4], (top, left, height, width) of the part of the result that shows the box.
        centres: As of ``read_masks``.
        threads: Number of threads.

    Returns:
        uint8 [N, bytes], the bits of each mask as ``numpy.packbits`` orders them, and int32 [N], the number
        of pixels of each.
    """
    bits = np.empty((len(objects), -(-size[0] * size[1] // 8)), np.uint8)
    out = torch.from_numpy(bits)
    given: list[npt.NDArray[Any]] = [np.asarray(points, np.float64)]
    given += [np.asarray(array, np.int64) for array in (toggles, parts, objects, counts)]
    given += [np.asarray(array, np.int32) for array in (sizes, boxes)]
    given += [flips, np.asarray(places, np.int32)]
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in given]
    pixels: Tensor = torch.ops.tarpeg.fill_outlines(*tensors, centres, *size, out, threads)
    return bits, pixels.numpy()


def unpack_masks(bits: Tensor, size: tuple[int, int], threads: int = 1) -> Tensor:
    """Return masks, uint8 [N, height, width] of 0 and 1, from the bits of ``fill_outlines``, [N, bytes]."""
    out = torch.from_numpy(_memory("unpacked", (len(bits), size[0] * size[1])))
    torch.ops.tarpeg.unpack_masks(bits.contiguous(), out, threads)
    return out.view(-1, *size)


def _as_tensor(array: npt.NDArray[np.generic] | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(np.ascontiguousarray(array))


@torch.library.register_fake("tarpeg::read_masks")  # type: ignore[untyped-decorator]
def _fake_read_masks(files: Tensor, ends: Tensor, boxes: Tensor, *options: object) -> Tensor:
    return boxes.new_empty((len(boxes), 3), dtype=torch.int32)


@torch.library.register_fake("tarpeg::fill_outlines")  # type: ignore[untyped-decorator]
def _fake_fill_outlines(
    points: Tensor, toggles: Tensor, parts: Tensor, objects: Tensor, *_: object
) -> Tensor:
    return objects.new_empty(len(objects), dtype=torch.int32)


@torch.library.register_fake("tarpeg::unpack_masks")  # type: ignore[untyped-decorator]
def _fake_unpack_masks(bits: Tensor, out: Tensor, threads: int) -> None:
    pass
