"""The format of delivered images, and the conversion to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class PixelFormat:
    """Format of delivered images: uint8, or (value / 255 - mean) / std in a floating-point ``dtype``.

    ``mean`` and ``std``: one number per channel, for values in 0..1; None with uint8. ``worker_augment``: an
    ``Augment``, or a ``ModuleList`` of one per view, that the worker applies to the decoded uint8 images; it
    returns images of that ``dtype``. ``distorts``: with random distortions of each sample. ``moves``: the
    ``Augment``, or a ``ModuleList``, that will distort the images where they arrive: the worker moves targets
    as it will move the images.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    dtype: torch.dtype = torch.uint8
    worker_augment: nn.Module | None = None
    distorts: bool = False
    moves: nn.Module | None = None


def normalised(images: Tensor, levels: PixelFormat | None, out: Tensor | None = None) -> Tensor:
    """Return uint8 images ``[B, 3, H, W]`` in the format ``levels``; into ``out`` if given."""
    # Importing ops.augment loads the native library; importing this module must not.
    from ..ops.augment import augment_batch

    assert levels is not None
    return augment_batch(images, mean=levels.mean, std=levels.std, dtype=levels.dtype, out=out)
