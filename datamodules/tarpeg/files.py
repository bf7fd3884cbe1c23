"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def renamed(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that becomes `path`, synced, when the block ends well, and vanishes otherwise."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as JSON to `path`, whole or not at all."""
    with renamed(path) as stream:
        # Keys that are not UTF-8 have lone surrogates, which become JSON's own escapes.
        text = json.dumps(content, indent=2, ensure_ascii=False)
        stream.write(text.encode("utf-8", "backslashreplace") + b"\n")
