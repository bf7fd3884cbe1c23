"""The writer of all tars: of caches and of other shards. Headers, contents and end depend on nothing else."""

from __future__ import annotations

import hashlib
import tarfile
from typing import Any, BinaryIO

from .wds_index import Component

BLOCK = 512
RECORD = 20 * BLOCK
"""Bytes of which tar and webdataset write a multiple; caches do not."""
OWNER = "tarpeg"
"""User and group of each member. It marks the shards that make_shards may replace."""


def tar_nbytes(nbytes: Any) -> Any:
    """Return the bytes that a member of so many bytes takes in a tar, with its header; also for arrays."""
    return BLOCK - (-nbytes // BLOCK) * BLOCK


class TarWriter:
    """Writes a tar whose bytes depend only on names and contents, and computes its checksum.

    ``position``: bytes written so far.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.position = 0
        self._file, self._sha = file, hashlib.sha256()

    def add(self, key: str, extension: str, data: bytes) -> Component:
        """Write one member and return its place in the tar."""
        name = f"{key}.{extension}"
        self._put(tar_header(name, len(data)))
        component = Component(extension, self.position, len(data), name)
        self._put(data)
        self._put(bytes(-len(data) % BLOCK))
        return component

    def finish(self, record: int = BLOCK) -> str:
        """Write the end of the tar, which becomes a multiple of ``record`` bytes; return its sha256."""
        self._put(bytes(2 * BLOCK))
        self._put(bytes(-self.position % record))
        return self._sha.hexdigest()

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._sha.update(data)
        self.position += len(data)


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
