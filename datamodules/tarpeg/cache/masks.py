"""Masks in a cache: PNGs that are written again in bands of rows, which decode alone."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..shards import pillow
from ..shards.source import plain

BANDS = b"tpRB"
"""Type of the chunk that holds the rows of a band, see docs/formats.md."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_ROWS = 32  # fewer need more bytes, more decode rows that are not needed
_KEPT = (b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"cICP", b"sBIT", b"bKGD", b"hIST", b"tIME")
_MAY_TURN = (b"Raw profile type", b"XML:com.adobe.xmp", b"exif")


class _Chunk(NamedTuple):
    kind: bytes
    content: bytes


def names_of(masks: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the extensions of masks; raises ValueError for anything else."""
    names = (masks,) if isinstance(masks, str) else masks or ()
    is_list = isinstance(names, Sequence)
    if not is_list or not all(isinstance(name, str) and plain(name) and ":" not in name for name in names):
        raise ValueError(
            f'masks={masks!r} must be extensions of members, such as "png" or ["png", "seg.png"]'
        )
    return tuple(plain(name) for name in names)


def is_banded(content: bytes | memoryview) -> bool:
    """Whether a file is a PNG that ``banded`` wrote: the chunk is the second."""
    return bytes(content[:8]) == _SIGNATURE and bytes(content[37:41]) == BANDS


def banded(content: bytes) -> bytes:
    """Write a PNG again so that bands of its rows decode alone; any program reads it, with the same pixels.

    A mask that is not a PNG with a byte per pixel, gray or of a palette (whose numbers may have fewer bits),
    or is turned by EXIF data, is returned as it is.

    Raises:
        DecodeError: Pillow cannot decode it.
    """
    values = pillow.open_values(content)
    if not content.startswith(_SIGNATURE):
        return content
    header, *chunks = _chunks(content)
    width, height, depth, colour, *_ = struct.unpack(">IIBBBBB", header.content)
    is_of_bytes = (colour == 3 or (colour == 0 and depth == 8)) and values.dtype == np.uint8
    if not is_of_bytes or any(map(_is_special, chunks)):
        return content
    rows = np.zeros((height, width + 1), np.uint8)  # each begins with the number of its filter, 0 for none
    rows[:, 1:] = values
    found = [_Chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))]
    found.append(_Chunk(BANDS, struct.pack(">BI", 1, _ROWS)))
    for chunk in chunks:
        if chunk.kind != b"IDAT":
            found += [chunk] * _is_safe_to_copy(chunk.kind)
            continue
        if found[-1].kind != b"IDAT":
            found += [_Chunk(b"IDAT", data) for data in _compressed(rows)]
    result = _SIGNATURE + b"".join(map(_written, found))
    return result if _is_equal(result, content) else content


def _compressed(rows: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield the bands of a mask, one DEFLATE stream.

    In the fixed code, which takes 1.3 to 1.5 times the bytes: to read a code of its own takes half of the
    time in which a band is decoded.
    """
    deflate = zlib.compressobj(9, strategy=zlib.Z_FIXED)
    for top in range(0, len(rows), _ROWS):
        data = deflate.compress(rows[top : top + _ROWS].tobytes())
        yield data + deflate.flush(zlib.Z_FULL_FLUSH if top + _ROWS < len(rows) else zlib.Z_FINISH)


def _chunks(content: bytes) -> Iterator[_Chunk]:
    """Yield the chunks of a PNG that Pillow decodes, up to the last complete one."""
    at = len(_SIGNATURE)
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        yield _Chunk(content[at + 4 : at + 8], content[at + 8 : at + 8 + length])
        at += 12 + length


def _is_special(chunk: _Chunk) -> bool:
    """Whether a PNG with this chunk is animated, or may be turned."""
    is_text = chunk.kind in (b"tEXt", b"zTXt", b"iTXt")
    return chunk.kind in (b"acTL", b"eXIf") or (is_text and chunk.content.startswith(_MAY_TURN))


def _is_safe_to_copy(kind: bytes) -> bool:
    """Whether a chunk may be copied when the compressed data change: iDOT has places in these."""
    is_ancillary, is_safe = kind[:1].islower(), kind[3:].islower()
    return not is_ancillary or is_safe or kind in _KEPT


def _written(chunk: _Chunk) -> bytes:
    kind, content = chunk
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _is_equal(result: bytes, content: bytes) -> bool:
    """Whether Pillow decodes both to the same image."""
    found = []
    for each in (result, content):
        with Image.open(io.BytesIO(each), formats=["PNG"]) as image:
            found.append((image.mode, image.getpalette(), np.asarray(image)))
    (mode, palette, values), (other_mode, other_palette, other) = found
    return (mode, palette) == (other_mode, other_palette) and np.array_equal(values, other)


def misfit(content: bytes, image: bytes) -> str:
    """Return why a mask does not fit its image: "" if it does, or if a size is not known.

    Raises:
        DecodeError: Pillow cannot decode it.
    """
    from ..ops import decode  # loads the operators: not when the package is imported

    values = pillow.open_values(content)
    height, width = decode.image_sizes([pillow.as_tensor(image)])[0].tolist() if image else (0, 0)
    if not height:
        height, width = pillow.upright_size(image)
    if not height or values.shape[:2] == (height, width):
        return ""
    return f"it is {values.shape[0]} x {values.shape[1]}, and its image {height} x {width}"
