"""Files that are no files: what waits for ever, or never ends, for a reader that does not look first."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def odd_files(folder: Path, extension: str) -> list[Path]:
    """A FIFO, a socket and a link to a device that has no end, of that extension."""
    fifo, link, end = (
        folder / f"fifo.{extension}",
        folder / f"zero.{extension}",
        folder / f"socket.{extension}",
    )
    os.mkfifo(fifo)
    link.symlink_to("/dev/zero")
    before = Path.cwd()
    os.chdir(folder)  # the paths of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(end.name)
    finally:
        os.chdir(before)
    return [fifo, end, link]


def kernel_log(folder: Path, extension: str) -> Path:
    """A link to a file that counts as regular, has the size 0, and waits for the next message."""
    link = folder / f"kernel.{extension}"
    link.symlink_to("/proc/kmsg")
    return link
