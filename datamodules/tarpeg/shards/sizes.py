"""Sizes of the images of a shard, saved beside the tar: by the cache builder, otherwise at the first use."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import saved
from .index import ShardIndex
from .pillow import as_tensor, header_sizes

if TYPE_CHECKING:
    from torch import Tensor

_VERSION = 2  # to be raised if the same image has another size
_AT_ONCE, _BYTES_AT_ONCE = 64, 8 << 20  # images whose headers are read together
Sizes = npt.NDArray[np.int32]


class SizesReader:
    """Reads the sizes of the images of a shard while it is written, a few at once."""

    def __init__(self) -> None:
        self._waiting: list[Tensor] = []
        self._nbytes = 0
        self._found: list[Sizes] = []

    def add(self, image: bytes) -> None:
        """Add an encoded image."""
        self._waiting.append(as_tensor(image or b"\0"))  # torch refuses no bytes; neither is an image
        self._nbytes += len(image)
        if len(self._waiting) == _AT_ONCE or self._nbytes >= _BYTES_AT_ONCE:
            self._read()

    def sizes(self) -> Sizes:
        """Return (height, width) of all images that were added: [S, 2]."""
        self._read()
        return np.concatenate([np.empty((0, 2), np.int32), *self._found])

    def _read(self) -> None:
        if self._waiting:
            self._found.append(header_sizes(self._waiting))
            self._waiting, self._nbytes = [], 0


def stamp_of(sha256: str) -> int:
    """Return the stamp of a shard of a cache: a part of its checksum, which stays when a cache is copied."""
    return int(sha256[:15], 16)


def sizes_file(sizes: Sizes, nbytes: int, stamp: int, index: ShardIndex, rows: slice) -> bytes:
    """Return the content of the file with the sizes of a tar's images; arguments as of load_or_read."""
    return saved.encoded(saved.SIZES, _VERSION, _identity(nbytes, stamp, index, rows), [sizes])


def load_or_read(
    path: Path, nbytes: int, stamp: int, index: ShardIndex, rows: slice, read: Callable[[], Sizes]
) -> Sizes:
    """Return the upright (height, width) of the images of a tar: [S, 2].

    Args:
        path: The tar.
        nbytes: Its size.
        stamp: A number that changes with the tar: ``stamp_of`` in a cache, otherwise its time of
            modification (ns).
        index: Index with its samples.
        rows: The samples of the tar in that index.
        read: Function that reads the sizes from the images.
    """
    numbers = _identity(nbytes, stamp, index, rows)
    for place in saved.places(path, saved.SIZES):
        found = saved.read(place, saved.SIZES, _VERSION)
        if found is not None and found[0] == numbers and len(found[1]) == 1:
            column = found[1][0]
            if column.nbytes == 8 * numbers[2] and (held := column.view("<i4").reshape(-1, 2)).min() >= 0:
                return held
    sizes = read()
    written = sizes_file(sizes, nbytes, stamp, index, rows)
    # If no place is writable, the next process reads the headers again: not an error.
    any(saved.write(place, written) for place in saved.places(path, saved.SIZES))
    return sizes


def _identity(nbytes: int, stamp: int, index: ShardIndex, rows: slice) -> list[int]:
    """Return the numbers of the file, which belong to one tar."""
    # With a checksum of keys and places: a tar may be replaced by another of the same size and time.
    keys = index.keys[index.key_ends[rows.start] : index.key_ends[rows.stop]]
    members = index.member_ends[rows] + index.image[rows]
    places = np.stack([index.offset[members], index.nbytes[members]]).astype("<i8")
    checksum = zlib.crc32(places.tobytes(), zlib.crc32(keys.tobytes()))
    return [nbytes, stamp, rows.stop - rows.start, checksum]
