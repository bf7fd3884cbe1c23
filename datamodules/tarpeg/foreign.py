"""Images that are no JPEG, by way of Pillow: decoded here, cropped and resized by the native operator."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

_JPEG = bytes([0xFF, 0xD8, 0xFF])
# Damaged data reaches the innards of Pillow's plugins, which raise more than OSError.
_BROKEN = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError, ArithmeticError, RuntimeError),
    *(AttributeError, AssertionError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError),
)


def to_ppm(data: Tensor) -> Tensor | None:
    """Turn a PNG, WebP, BMP, TIFF, GIF (its first frame) or whatever else Pillow opens into a binary PPM.

    ``data``: uint8 ``[n]``. Returns uint8 ``[m]``, upright RGB, for ``tarpeg.decode_batch``; None where
    Pillow cannot decode it, and for JPEGs, which the native decoder has already judged.
    """
    content = data.numpy().tobytes()
    if content.startswith(_JPEG):
        return None
    try:
        with Image.open(io.BytesIO(content)) as image:
            pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except _BROKEN:
        return None
    height, width, _ = pixels.shape
    header = np.frombuffer(b"P6 %d %d 255\n" % (width, height), dtype=np.uint8)
    return torch.from_numpy(np.concatenate([header, pixels.reshape(-1)]))
