"""Sequences of patches in the memory of a batch, and as the dict that timm's NaFlex models take.

A sequence is kept as an image of one column of patches, ``[C, N * P, P]`` in channels_last order. These are
the bytes of ``[N, P * P * C]``: the memory of batches, and what normalises images, need not know of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..sampling.geometry import View
from .batch import AnyBatch


def write_patches(column: Tensor, image: Tensor) -> None:
    """Cut an image into patches, row by row, and write them to a column, with zeros behind them.

    Args:
        column: ``[C, N * P, P]``, channels_last.
        image: ``[C, H, W]``, channels_last, whose sides are multiples of P.
    """
    (channels, height, width), side = image.shape, column.shape[-1]
    rows, columns = height // side, width // side
    into = column.movedim(0, -1).numpy().reshape(-1, side, side * channels)
    pixels = image.movedim(0, -1).numpy().reshape(rows, side, columns, side * channels)
    into[: rows * columns].reshape(rows, columns, side, -1)[...] = pixels.swapaxes(1, 2)
    into[rows * columns :] = 0


def with_sequences(batch: AnyBatch, view: View) -> AnyBatch:
    """Return a batch of columns with the dict of NaFlex in place of its images.

    Args:
        batch: Its images are ``[B, C, N * P, P]``.
        view: What was drawn for it: its places have the sizes of the images.
    """
    images: Any = batch.image
    side = images.shape[-1]
    length = images.shape[-2] // side
    patches = view.all_places[:, 2:].astype(np.int64) // side
    numbers = np.arange(length)[None]
    valid = numbers < patches.prod(axis=1, keepdims=True)
    coordinates = np.stack(np.divmod(numbers, patches[:, 1:]), axis=2)
    coordinates[~valid] = 0
    sequences: Any = {
        "patches": _sequences(images),
        "patch_coord": torch.from_numpy(coordinates),
        "patch_valid": torch.from_numpy(valid),
    }
    return batch._replace(image=sequences)


def columns_of(sequences: dict[str, Tensor]) -> Tensor:
    """Return the patches of a dict of NaFlex as images of one column each, ``[B, C, N * P, P]``."""
    patches = sequences["patches"]
    count, length, numbers = patches.shape
    # P * P * 3 is never a square.
    channels = 1 if math.isqrt(numbers) ** 2 == numbers else 3
    side = math.isqrt(numbers // channels)
    return patches.view(count, length * side, side, channels).movedim(-1, -3)


def with_columns(sequences: dict[str, Tensor], columns: Tensor) -> dict[str, Tensor]:
    """Return the dict with the patches of these columns."""
    return {**sequences, "patches": _sequences(columns)}


def image_of(sequences: dict[str, Tensor], row: int) -> Tensor:
    """Return the image of one row of a dict of NaFlex, ``[C, H, W]``, put together from its patches."""
    count = int(sequences["patch_valid"][row].sum())
    rows, columns = (sequences["patch_coord"][row, count - 1] + 1).tolist()
    channels, _, side = columns_of(sequences)[row].shape
    patches = sequences["patches"][row, :count].view(rows, columns, side, side, channels)
    return patches.permute(4, 0, 2, 1, 3).reshape(channels, rows * side, columns * side)


def _sequences(columns: Tensor) -> Tensor:
    """Return columns ``[B, C, N * P, P]`` as ``[B, N, P * P * C]``, without a copy if channels_last."""
    count, channels, height, side = columns.shape
    return columns.movedim(-3, -1).reshape(count, height // side, side * side * channels)
