"""Images that are no JPEG, by way of Pillow: decoded here, cropped and resized by the native operator."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from .index import PILLOW_FORMATS

JPEG = bytes([0xFF, 0xD8, 0xFF])  # what every JPEG begins with
# Damaged data reaches the innards of Pillow's plugins, which raise more than OSError.
_BROKEN = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError, ArithmeticError, RuntimeError),
    *(AttributeError, AssertionError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError),
)


def to_ppm(data: Tensor) -> Tensor | None:
    """Turn a PNG, WebP, BMP, TIFF, PNM or GIF (its first frame) into a binary PPM, by way of Pillow.

    ``data``: uint8 ``[n]``. Returns uint8 ``[m]``, upright RGB, for ``tarpeg.decode_batch``; None where
    Pillow cannot decode it, and for JPEGs, which the native decoder has already judged.
    """
    content = data.numpy().tobytes()
    image = None if content.startswith(JPEG) else open_rgb(content)
    return None if image is None else torch.from_numpy(np.frombuffer(ppm(image), dtype=np.uint8).copy())


def open_rgb(content: bytes) -> Image.Image | None:
    """Decode an image of PILLOW_FORMATS: upright, RGB, with its metadata in ``info``; None if damaged."""
    try:
        with Image.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except _BROKEN:
        return None


def ppm(image: Image.Image) -> bytes:
    """Write an RGB image as a binary PPM."""
    return b"P6 %d %d 255\n" % image.size + image.tobytes()
