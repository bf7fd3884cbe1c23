"""Image formats: their extensions, and images that are not JPEG, which Pillow decodes."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Collection
from typing import TYPE_CHECKING

from PIL import Image, ImageOps

if TYPE_CHECKING:
    from torch import Tensor

# In the order of preference: if a sample has several of these members, the first one is its image.
IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "ppm", "gif")
# Also taken from a folder without classes, where no other member can be meant.
FILE_EXTENSIONS = (*IMAGE_EXTENSIONS, "jpe", "jfif", "dib", "pgm", "pbm", "pnm")
# Pillow's other plugins are unsafe for untrusted data: EPS runs Ghostscript on it.
PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "TIFF", "PPM", "GIF")
JPEG = bytes([0xFF, 0xD8, 0xFF])
"""First bytes of every JPEG."""
# Damaged data reaches the internals of Pillow's plugins, which raise more than OSError.
_BROKEN = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError, ArithmeticError, RuntimeError),
    *(AttributeError, AssertionError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError),
)


def image_extension(extensions: Collection[str]) -> str | None:
    """Return the extension of the member that is a sample's image; None without an image."""
    return next((extension for extension in IMAGE_EXTENSIONS if extension in extensions), None)


def as_tensor(content: bytes) -> Tensor:
    """Copy bytes into a tensor, uint8 ``[n]``, that may be written to."""
    import torch  # here, because the torch-free part of the package uses the tables above

    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def to_ppm(data: Tensor) -> Tensor | None:
    """Convert a PNG, WebP, BMP, TIFF, PNM or GIF (its first frame) to a binary PPM.

    ``data``: uint8 ``[n]``. Returns uint8 ``[m]``, upright RGB, for ``tarpeg.decode_batch``; None if Pillow
    cannot decode it, and for JPEGs, which the native decoder has already judged.
    """
    content = data.numpy().tobytes()
    image = None if content.startswith(JPEG) else open_rgb(content)
    return None if image is None else as_tensor(ppm(image))


def open_rgb(content: bytes) -> Image.Image | None:
    """Decode an image of PILLOW_FORMATS: upright, RGB, with its metadata in ``info``; None if damaged."""
    try:
        with Image.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except _BROKEN:
        return None


def ppm(image: Image.Image) -> bytes:
    """Encode an RGB image as a binary PPM."""
    return b"P6 %d %d 255\n" % image.size + image.tobytes()
