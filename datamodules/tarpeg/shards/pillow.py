"""Image formats: their extensions, and images that are not JPEG, which Pillow decodes."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ..errors import DecodeError, Status

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
MAX_PIXELS = 1 << 26
"""Default bound of the loader on images that Pillow decodes whole, with up to 22 bytes per pixel."""
# Damaged data reaches the internals of Pillow's plugins, which raise more than OSError.
_BROKEN = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError, ArithmeticError, RuntimeError),
    *(AttributeError, AssertionError, MemoryError, struct.error, zlib.error),
)


def image_extension(extensions: Collection[str]) -> str | None:
    """Return the extension of the member that is a sample's image; None without an image."""
    return next((extension for extension in IMAGE_EXTENSIONS if extension in extensions), None)


def as_tensor(content: bytes) -> Tensor:
    """Copy bytes into a tensor, uint8 ``[n]``, that may be written to."""
    import torch  # here, because the torch-free part of the package uses the tables above

    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


class RefusedError(DecodeError):
    """An image that Pillow cannot decode, that is too large, or that does not convert to 8 bits."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(status, reason)  # all arguments, for pickle
        self.status, self.reason = status, reason

    def __str__(self) -> str:
        return self.reason


def too_large(height: int, width: int, max_pixels: int) -> str:
    """Return the reason why an image of that size is refused."""
    return f"{height} x {width} pixels are more than max_pixels={max_pixels}"


def open_upright(content: bytes, max_pixels: int | None = None) -> Image.Image:
    """Decode an image of PILLOW_FORMATS (of a GIF the first frame): upright, at most 8 bits per sample.

    Samples of 16 bits keep the upper 8, as Pillow does by itself if there are several per pixel. Raises
    ``RefusedError``.
    """
    try:
        with Image.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
            if max_pixels is not None and image.width * image.height > max_pixels:
                raise RefusedError(Status.TOO_LARGE, too_large(image.height, image.width, max_pixels))
            # Pillow decodes gray PNGs and PNMs of 16 bits as I;16 or, by its version, as I.
            is_wide = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
            if image.mode in ("I", "F") and not is_wide:
                raise RefusedError(
                    Status.UNSUPPORTED,
                    "its samples are signed, 32-bit or floating-point numbers, whose black and white are not "
                    "defined: convert it to 8 or 16 bits",
                )
            ImageOps.exif_transpose(image, in_place=True)
            return _upper_8_bits(image) if is_wide else image
    except RefusedError:
        raise
    except Image.DecompressionBombError as error:
        raise RefusedError(Status.TOO_LARGE, f"{error} (PIL.Image.MAX_IMAGE_PIXELS)") from error
    except UnidentifiedImageError as error:
        raise RefusedError(Status.NOT_AN_IMAGE, "Pillow cannot decode it") from error
    except _BROKEN as error:
        raise RefusedError(Status.CORRUPT, "Pillow cannot decode it") from error


def open_rgb(content: bytes) -> Image.Image:
    """Decode an image as ``open_upright``, to RGB, with its metadata in ``info``."""
    return to_rgb(open_upright(content))


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB, with the metadata of the source."""
    if image.mode == "RGB":
        return image
    converted = image.convert("RGB")
    converted.info = image.info  # Pillow adds a profile with the time of day to an image that was LAB
    return converted


def _upper_8_bits(image: Image.Image) -> Image.Image:
    tags = getattr(image, "tag_v2", {})  # of TIFF; 258: bits per sample, 262: 0 if 0 is white
    levels = (np.asarray(image) >> (4 if tags.get(258) == (12,) else 8)).astype(np.uint8)
    return Image.fromarray(255 - levels if tags.get(262) == 0 else levels)


def ppm(image: Image.Image) -> bytes:
    """Encode an RGB image as a binary PPM."""
    return b"P6 %d %d 255\n" % image.size + image.tobytes()
