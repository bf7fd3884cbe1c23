"""Masks in a cache: PNGs that are written again in bands of rows, which decode alone."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..shards import pillow
from ..shards.source import plain

BANDS = b"tpRB"
"""Type of the chunk that holds the rows of a band, see docs/formats.md."""
RUNS = b"tpRL"
"""Type of the chunk that holds the rows as runs."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_ROWS = 32  # fewer need more bytes, more decode rows that are not needed
_MOST_RUNS = 254  # of a row; the numbers beside 1 to 254 are those of rows that are coded otherwise
_AS_ABOVE, _MOVED = b"\0", b"\xff"
_MOST_WIDTH = 0xFFFF
_MOST_BYTES = 2  # of runs per byte of DEFLATE
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
    bands = [*_compressed(rows, zlib.Z_DEFAULT_STRATEGY)]
    runs = _runs(values, sum(map(len, bands)))
    if runs is None:
        bands = [*_compressed(rows, zlib.Z_FIXED)]
    else:
        found.append(_Chunk(RUNS, b"\1" + bands[-1][-4:] + runs))  # zlib's checksum of the rows
    for chunk in chunks:
        if chunk.kind != b"IDAT":
            found += [chunk] * _is_safe_to_copy(chunk.kind)
            continue
        if found[-1].kind != b"IDAT":
            found += [_Chunk(b"IDAT", data) for data in bands]
    result = _SIGNATURE + b"".join(map(_written, found))
    return result if _is_equal(result, content) else content


def _compressed(rows: npt.NDArray[np.uint8], strategy: int) -> Iterator[bytes]:
    """Yield the bands of a mask, one DEFLATE stream.

    Without runs in the fixed code, which takes 1.3 to 1.5 times the bytes: to read a code of its own takes
    half of the time in which a band is decoded.
    """
    deflate = zlib.compressobj(9, strategy=strategy)
    for top in range(0, len(rows), _ROWS):
        data = deflate.compress(rows[top : top + _ROWS].tobytes())
        yield data + deflate.flush(zlib.Z_FULL_FLUSH if top + _ROWS < len(rows) else zlib.Z_FINISH)


def _runs(values: npt.NDArray[np.uint8], compressed: int) -> bytes | None:
    """Return the rows of a mask as runs, in bands; None if a row has too many, or they take too many bytes.

    Args:
        values: uint8 [H, W].
        compressed: Bytes of the mask in DEFLATE.
    """
    height, width = values.shape
    if width > _MOST_WIDTH:
        return None
    is_end = values[:, 1:] != values[:, :-1]
    counts = is_end.sum(axis=1)
    if counts.max(initial=0) >= _MOST_RUNS or counts.sum() > _MOST_BYTES * compressed:
        return None
    ends = np.split(np.nonzero(is_end)[1] + 1, np.cumsum(counts)[:-1])
    bands = []
    for top in range(0, height, _ROWS):
        parts: list[bytes] = []
        before: tuple[npt.NDArray[Any], bytes] | None = None
        for row in range(top, min(top + _ROWS, height)):
            own = values[row, np.append(0, ends[row])].tobytes()
            parts.append(_coded(ends[row], own, before))
            before = ends[row], own
        bands.append(b"".join(parts))
    if sum(map(len, bands)) > _MOST_BYTES * compressed:
        return None
    sizes = struct.pack(f">I{len(bands)}I", _ROWS, *map(len, bands))
    return sizes + b"".join(bands)


def _coded(ends: npt.NDArray[Any], values: bytes, before: tuple[npt.NDArray[Any], bytes] | None) -> bytes:
    """Return a row, from the ends of its runs but the last, the values of all, and those of the row above."""
    if before is not None and before[1] == values:
        moves = ends - before[0]
        if not moves.any():
            return _AS_ABOVE
        if np.abs(moves).max() < 128:
            return b"%b%b" % (_MOVED, moves.astype(np.int8).tobytes())
    runs = np.zeros((len(values), 3), np.uint8)
    runs[:, 0] = np.frombuffer(values, np.uint8)
    runs[:-1, 1], runs[:-1, 2] = ends >> 8, ends & 0xFF
    return b"%c%b" % (len(values), runs.tobytes()[:-2])


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
