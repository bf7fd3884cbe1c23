"""Atomic writes, and reads of regular files only: any other kind may wait for ever, or never end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

LARGEST = 2 << 30
"""Most bytes of an index or a manifest; that of ImageNet has 100 kB."""


LARGEST_IMAGE = 1 << 30
"""Most bytes of a file with one image, which is read whole."""
_NOT_REGULAR = "it is not a regular file"


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to read. Raises OSError for a FIFO, a socket, a device or a folder."""
    # First without opening it, which some devices take for a command.
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
        raise OSError(errno.EINVAL, _NOT_REGULAR, os.fspath(path))
    # Without O_NONBLOCK, opening a FIFO, which may have taken its place, waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NOT_REGULAR, os.fspath(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: str | os.PathLike[str], most: int = LARGEST) -> bytes:
    """Read a regular file whole. Raises OSError, also if it has more bytes than ``most``.

    As many bytes as its size says: files of the kernel such as /proc/kmsg, which count as regular, have the
    size 0 and may have no end.
    """
    with open_regular(path) as file:
        return file.read(checked_size(file, most))


def checked_size(file: BinaryIO, most: int) -> int:
    """Return the bytes of an open file. Raises OSError if they are more than ``most``."""
    nbytes = os.fstat(file.fileno()).st_size
    if nbytes > most:
        raise OSError(errno.EFBIG, f"it has {nbytes} bytes, more than {most}")
    return nbytes


@contextlib.contextmanager
def renamed(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file, to write, that is renamed to ``path`` at the end of the block.

    If the block raises, the temporary file is removed and ``path`` stays as it was. Writers of one path do
    not disturb each other: the last rename wins. Only a killed process leaves its ``.NAME.PID-RANDOM.tmp``
    behind.

    Args:
        path: The final path.
        durable: Sync the file and its folder. Without it, a power failure may leave a damaged file under
            ``path``.
    """
    # Not tempfile: its mode 0600 would keep the file from other users of the folder.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    stream = temporary.open("xb")
    try:
        with stream:
            yield stream
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON to `path`, atomically."""
    # Keys that are not UTF-8 have lone surrogates, which become JSON's own escapes.
    text = json.dumps(content, indent=2, ensure_ascii=False)
    with renamed(path) as stream:
        stream.write(text.encode("utf-8", "backslashreplace") + b"\n")
