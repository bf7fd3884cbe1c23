"""What is done to a batch of images on their own device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Augment(nn.Module):
    """Turn uint8 images into what the network eats: (image / 255 - mean) / std.

    ``mean`` and ``std``: one number for each of R, G, B, for values in 0..1. ``forward`` takes uint8
    ``[B, 3, H, W]`` and returns float32 of that shape and memory order, on the same device.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> None:
        super().__init__()
        if len(mean) != 3 or len(std) != 3:
            raise ValueError(
                f"mean={list(mean)!r} and std={list(std)!r} must have three numbers each: R, G, B"
            )
        if min(std) <= 0:
            raise ValueError(f"std={list(std)!r} must be positive")
        scale = 1 / (255 * torch.tensor(list(std), dtype=torch.float64))
        shift = -255 * torch.tensor(list(mean), dtype=torch.float64) * scale
        self.register_buffer("scale", scale.float().reshape(1, 3, 1, 1), persistent=False)
        self.register_buffer("shift", shift.float().reshape(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Normalise ``images``, uint8 ``[B, 3, H, W]``."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be uint8 [B, 3, H, W], got {images.dtype} {list(images.shape)}")
        if self.scale.device != images.device:  # a data module is no nn.Module: nobody moves its parts
            self.to(images.device)
        return torch.addcmul(self.shift, images.float(), self.scale)
