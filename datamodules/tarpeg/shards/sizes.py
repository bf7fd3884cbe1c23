"""Sizes of the images of a shard: read from their headers once, and saved beside the tar."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import saved
from .index import ShardIndex

_VERSION = 2  # to be raised if the same image has another size
Sizes = npt.NDArray[np.int32]


def load_or_read(
    path: Path, stat: tuple[int, int], index: ShardIndex, rows: slice, read: Callable[[], Sizes]
) -> Sizes:
    """Return the upright (height, width) of the images of a tar: [S, 2].

    Args:
        path: The tar.
        stat: Its size (bytes) and time of modification (ns).
        index: Index with its samples.
        rows: The samples of the tar in that index.
        read: Function that reads the sizes from the images.
    """
    numbers = [*stat, rows.stop - rows.start, _checksum(index, rows)]
    for place in saved.places(path, saved.SIZES):
        found = saved.read(place, saved.SIZES, _VERSION)
        if found is not None and found[0] == numbers and len(found[1]) == 1:
            column = found[1][0]
            if column.nbytes == 8 * numbers[2] and (held := column.view("<i4").reshape(-1, 2)).min() >= 0:
                return held
    sizes = read()
    # If no place is writable, the next process reads the headers again: not an error.
    any(
        saved.write(place, saved.SIZES, _VERSION, numbers, [sizes])
        for place in saved.places(path, saved.SIZES)
    )
    return sizes


def _checksum(index: ShardIndex, rows: slice) -> int:
    """Return a checksum of keys and places: a tar may be replaced by another of the same size and time."""
    keys = index.keys[index.key_ends[rows.start] : index.key_ends[rows.stop]]
    members = index.member_ends[rows] + index.image[rows]
    places = np.stack([index.offset[members], index.nbytes[members]]).astype("<i8")
    return zlib.crc32(places.tobytes(), zlib.crc32(keys.tobytes()))
