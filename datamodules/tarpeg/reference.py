"""A slow, readable twin of every operator, on Pillow and torch: the tests' oracle. Only tests import it."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor


def decode(jpeg: Tensor) -> Tensor:
    """Decode the whole image as Pillow shows it: upright, RGB. uint8 ``[n]`` -> uint8 ``[3, H, W]``."""
    with Image.open(io.BytesIO(bytes(jpeg.numpy()))) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


def decode_crop(jpeg: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """Twin of ``tarpeg.decode_crop``: decode everything, then crop."""
    return decode(jpeg)[:, top : top + height, left : left + width]


def image_sizes(jpegs: Sequence[Tensor]) -> Tensor:
    """Twin of ``tarpeg.image_sizes``, for images that Pillow opens."""
    return torch.tensor([decode(jpeg).shape[1:] for jpeg in jpegs], dtype=torch.int32).reshape(-1, 2)


def resize(image: Tensor, size: tuple[int, int], interpolation: str, antialias: bool) -> Tensor:
    """Do what torchvision v2's resize does to a uint8 image: ``interpolate``, in integers."""
    if interpolation == "nearest":
        return torch.nn.functional.interpolate(image[None], size, mode="nearest")[0]
    return torch.nn.functional.interpolate(image[None], size, mode="bilinear", antialias=antialias)[0]


def decode_batch(
    jpegs: Sequence[Tensor],
    boxes: Tensor,
    size: tuple[int, int],
    flip: Tensor | None = None,
    *,
    interpolation: str = "bilinear",
    antialias: bool = True,
) -> Tensor:
    """Twin of ``tarpeg.decode_batch`` for images that decode: crop, resize, flip. uint8 ``[B, 3, H, W]``."""
    images = []
    for index, jpeg in enumerate(jpegs):
        top, left, height, width = boxes[index].tolist()
        image = resize(decode_crop(jpeg, top, left, height, width), size, interpolation, antialias)
        images.append(image.flip(-1) if flip is not None and bool(flip[index]) else image)
    return torch.stack(images) if images else torch.empty((0, 3, *size), dtype=torch.uint8)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Turn uint8 ``[B, 3, H, W]`` into float64 (value / 255 - mean) / std."""
    center = torch.tensor(list(mean), dtype=torch.float64).reshape(1, 3, 1, 1)
    deviation = torch.tensor(list(std), dtype=torch.float64).reshape(1, 3, 1, 1)
    return (images.double() / 255 - center) / deviation
