"""Operator on masks: decode the part of each PNG that is under a box, by nearest neighbour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import library

MOST_PIXELS = 1 << 26
"""Pixels of a mask, beyond which it is not decoded."""

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

    Returns:
        uint8 [B, height, width], and int32 [B, 3]: a status, and height and width of the mask. A status that
        is not 0 does not make a mask a damaged one: other PNGs, a box outside the mask and values that may
        not occur have one too.
    """
    data = torch.frombuffer(bytearray(b"".join([*files, b"\0"])), dtype=torch.uint8)  # not empty
    out = torch.zeros((len(files), *size), dtype=torch.uint8, device="cpu")
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
        out,
        threads,
    )
    return out.numpy(), found.numpy()


def _as_tensor(array: npt.NDArray[np.generic] | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(np.ascontiguousarray(array))


@torch.library.register_fake("tarpeg::read_masks")  # type: ignore[untyped-decorator]
def _fake_read_masks(files: Tensor, ends: Tensor, boxes: Tensor, *options: object) -> Tensor:
    return boxes.new_empty((len(boxes), 3), dtype=torch.int32)
