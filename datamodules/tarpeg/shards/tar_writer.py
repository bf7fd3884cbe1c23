"""The writer of all tars: of caches and of other shards. Headers, contents and end depend on nothing else."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, NamedTuple

from .wds_index import Component

BLOCK = 512
RECORD = 20 * BLOCK
"""Bytes of which tar and webdataset write a multiple; caches do not."""
OWNER = "tarpeg"
"""User and group of each member. It marks the shards that make_shards may replace."""


def tar_nbytes(nbytes: Any) -> Any:
    """Return the bytes that a member of so many bytes takes in a tar, with its header; also for arrays."""
    return BLOCK - (-nbytes // BLOCK) * BLOCK


class Written(NamedTuple):
    """A tar that was written.

    Attributes:
        samples: Places of the members of each sample.
        nbytes: Bytes of the tar.
        sha256: Checksum of the tar.
    """

    samples: list[list[Component]]
    nbytes: int
    sha256: str


def write_tar(
    file: BinaryIO, samples: Iterable[tuple[str, Mapping[str, bytes]]], record: int = BLOCK
) -> Written:
    """Write a tar whose bytes depend only on keys and contents.

    Args:
        file: File to write.
        samples: Key and members, by extension, of each sample.
        record: The tar becomes a multiple of that many bytes.
    """
    written: list[list[Component]] = []
    checksum = hashlib.sha256()
    position = 0

    def put(data: bytes) -> None:
        nonlocal position
        file.write(data)
        checksum.update(data)
        position += len(data)

    for key, members in samples:
        written.append([])
        for extension, data in members.items():
            name = f"{key}.{extension}"
            put(tar_header(name, len(data)))
            written[-1].append(Component(extension, position, len(data), name))
            put(data)
            put(bytes(-len(data) % BLOCK))
    put(bytes(2 * BLOCK))
    put(bytes(-position % record))
    return Written(written, position, checksum.hexdigest())


def tar_header(name: str, nbytes: int) -> bytes:
    """Return the header of a member in a tar; it depends only on name and size.

    Plain ustar headers are filled in here: tarfile takes 40 us for the same bytes.
    """
    if name.isascii() and len(name) <= _LONGEST_NAME and nbytes < 8**11 and "\0" not in name:
        filled = bytearray(_EMPTY)
        plain, digits = name.encode("ascii"), b"%011o" % nbytes
        filled[: len(plain)], filled[124:135] = plain, digits
        filled[148:154] = b"%06o" % (_EMPTY_SUM + sum(plain) + sum(digits) - 11 * ord("0"))
        return bytes(filled)
    return _tarfile_header(name, nbytes)


def _tarfile_header(name: str, nbytes: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.uname, info.gname = nbytes, 0o644, OWNER, OWNER
    if "\0" in name:  # which ends the name in a plain header
        info.pax_headers = {"path": name}
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


_LONGEST_NAME = 100
_EMPTY = _tarfile_header("", 0)
_EMPTY_SUM = int(_EMPTY[148:154], 8)
