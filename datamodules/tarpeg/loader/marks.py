"""Which sample a worker works on: written by the worker, read by the consumer if a batch does not come."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

from ..shards.source import Source, where_of
from ..shards.stream import StreamedSamples

_FORM = struct.Struct("q248s")
MARK_BYTES = _FORM.size

Explain = Callable[[int, str], str]
"""Returns the text of a warning, for the id and the description that were marked."""


class Mark(threading.local):
    """Memory of a thread for the sample that it works on; a worker process shares it with its parent."""

    memory: Any = bytearray(MARK_BYTES)

    def set(self, id: int = -1, text: str = "") -> None:
        """Write the id of the sample, and its description if the consumer does not have the samples.

        Without arguments: no sample.
        """
        _FORM.pack_into(self.memory, 0, id, text.encode(errors="replace"))


mark = Mark()


def mark_sample(source: Source, id: int) -> None:
    """Record that a function of a user's is called with this sample, in case it does not return."""
    mark.set(id, where_of(source, id) if isinstance(source, StreamedSamples) else "")


def marked(memory: Any) -> tuple[int, str]:
    """Return the id and the description in the memory of a mark."""
    id, text = _FORM.unpack(memory)
    return id, text.rstrip(b"\0").decode(errors="replace")


def no_more(id: int, text: str) -> str:
    """Return all that a mark alone shows."""
    return text or f"sample {id}"
