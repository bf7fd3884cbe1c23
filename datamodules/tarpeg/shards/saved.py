"""Small binary files that are kept to save time: indexes of tars, and sizes of images. See docs/formats.md.

A file has numbers and columns of bytes, and a checksum of both. Whatever is wrong with it, it is made again.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import platformdirs

from ..files import read_regular, renamed

INDEX, SEVERAL, SIZES, OLD_INDEX = "index", "images", "sizes", "npz"
_KINDS = {INDEX: b"tarpegIX", SEVERAL: b"tarpegIM", SIZES: b"tarpegSZ"}
SIZES_SUFFIX = ".tarpeg.sizes"
SUFFIXES = (".tarpeg.index", ".tarpeg.images", SIZES_SUFFIX, ".tarpeg.npz")
"""How the names of files beside shards end; the last is that of indexes of early versions."""

_HEAD = struct.Struct("<8sIIII")  # kind, version, checksum of what follows; numbers, columns
_ALIGNED = 8


def places(tar: Path, kind: str) -> tuple[Path, Path]:
    """Return the paths of a tar's file of that kind: beside the tar, and in the user's cache directory."""
    name = tar.stem if tar.suffix == ".tar" else tar.name
    digest = hashlib.sha256(os.fsencode(tar.absolute())).hexdigest()[:32]
    cache = platformdirs.user_cache_path("tarpeg") / "index"
    return tar.with_name(f"{name}.tarpeg.{kind}"), cache / f"{digest}.{kind}"


def encoded(
    kind: str, version: int, numbers: Sequence[int], columns: Sequence[npt.NDArray[np.generic]]
) -> bytes:
    """Return the content of a file."""
    lengths = [column.nbytes for column in columns]
    parts = [np.array([*numbers, *lengths], "<i8").tobytes()]
    for column in columns:
        parts += [column.tobytes(), bytes(-column.nbytes % _ALIGNED)]
    content = b"".join(parts)
    counts = struct.pack("<II", len(numbers), len(columns))
    checksum = zlib.crc32(content, zlib.crc32(counts))
    return _HEAD.pack(_KINDS[kind], version, checksum, len(numbers), len(columns)) + content


def write(place: Path, content: bytes) -> bool:
    """Write a file atomically, because other processes may be reading; return False if it cannot be."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        # Not durable: a file that a power failure damages is detected and written again.
        with renamed(place, durable=False) as file:
            file.write(content)
    except OSError:
        return False
    return True


def read(place: Path, kind: str, version: int) -> tuple[list[int], list[npt.NDArray[np.uint8]]] | None:
    """Return the numbers and the columns of a file; None if there is none, or if it is damaged."""
    try:
        data = read_regular(place)
        magic, found, checksum, numbers, columns = _HEAD.unpack_from(data)
    except (OSError, struct.error):
        return None
    counts = memoryview(data)[_HEAD.size - 8 :]
    if (magic, found) != (_KINDS[kind], version) or zlib.crc32(counts) != checksum:
        return None
    start = _HEAD.size + 8 * (numbers + columns)
    if start > len(data):
        return None
    values = np.frombuffer(data, "<i8", numbers + columns, _HEAD.size).tolist()
    parts = []
    for length in values[numbers:]:
        if not 0 <= length <= len(data) - start:
            return None
        parts.append(np.frombuffer(data, np.uint8, length, start))
        start += length + -length % _ALIGNED
    return values[:numbers], parts
