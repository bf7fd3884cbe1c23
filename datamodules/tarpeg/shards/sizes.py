"""Sizes of the images of a shard, saved beside the tar: by whatever writes it, otherwise at the first use."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import BuildError
from . import saved
from .index import ShardIndex
from .pillow import header_sizes
from .tar_writer import Written
from .wds_index import index_text, parse

_VERSION = 2  # to be raised if the same image has another size
Sizes = npt.NDArray[np.int32]


def stamp_of(sha256: str) -> int:
    """Return the stamp of a shard of a cache: a part of its checksum, which stays when a cache is copied."""
    return int(sha256[:15], 16)


def sizes_file(tar: Path, nbytes: int, stamp: int, index: ShardIndex) -> bytes:
    """Return the content of the file with the sizes of a tar that was just written.

    Arguments as of load_or_read; the index has the samples of that tar alone. Raises OSError if it
    cannot be mapped or read.
    """
    from ..ops.decode import map_file  # loads the operators

    # The tar is still in memory; to copy each image while it is written takes twice as long.
    mapped, torn = map_file(str(tar), nbytes)
    members = index.member_ends[:-1] + index.image
    starts, lengths = index.offset[members].tolist(), index.nbytes[members].tolist()
    images = [mapped[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    sizes = header_sizes(images)
    if torn[0]:
        raise OSError(errno.EIO, "a part of it cannot be read", str(tar))
    return saved.encoded(
        saved.SIZES, _VERSION, _identity(nbytes, stamp, index, slice(0, len(index))), [sizes]
    )


def write_sizes(tar: Path, written: Written) -> bool:
    """Write the file with the sizes of a tar that is no cache's, and was just written, beside it.

    If it cannot be written, readers find the sizes. Return False if the operators cannot be loaded.
    """
    index, mtime_ns = parse([index_text(written.samples)], [tar], [written.nbytes]), tar.stat().st_mtime_ns
    try:
        content = sizes_file(tar, written.nbytes, mtime_ns, index)
    except BuildError:
        return False
    except OSError:
        return True
    saved.write(saved.places(tar, saved.SIZES)[0], content)
    return True


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
    written = saved.encoded(saved.SIZES, _VERSION, numbers, [sizes])
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
