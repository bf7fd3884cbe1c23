"""Which sample a worker works on: written by the worker, read if its batch does not come.

The consumer reads it; without workers, in which the consumer does the work, a thread that watches it.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import warn
from .source import Source, where_of
from .stream import StreamedSamples

_FORM = struct.Struct("q248s")
MARK_BYTES = _FORM.size

# Seconds of waiting for one batch after which a warning shows where its worker is.
SLOW = 60.0
# Seconds between checks of a worker that has not answered.
CHECK_INTERVAL = 5.0

Explain = Callable[[int, str], str]
"""Returns the text of a warning, for the id and the description that were marked."""


class Mark(threading.local):
    """Memory of a thread for the sample that it works on; a worker process shares it with its parent."""

    def __init__(self) -> None:  # called in each thread
        self.memory: Any = bytearray(MARK_BYTES)

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


IF_IT_HANGS = "If it hangs: Ctrl-C ends the program, and shows the line with workers=0"


def warn_of_slow(name: str, explain: Explain, memory: Any) -> None:
    """Warn about a worker that has not finished, with the sample in the memory of its mark."""
    warn(f"{name} has not finished for {SLOW:g} s: {explain(*marked(memory))}")


class Watch:
    """A thread that warns if one batch takes a minute in the thread that iterates over the loader.

    It sleeps, and looks every few seconds. Call ``stop`` at the end.

    Args:
        explain: As for a worker, with the request before the other arguments.
    """

    job: tuple[Any, Any] | None = None
    """Request that is worked on, and the memory of the thread's mark: set before it, and None after it."""

    def __init__(self, explain: Callable[[Any, int, str], str]) -> None:
        self._explain = explain
        # Not an Event: see Note [Ctrl-C and locks].
        self._stopped: queue.SimpleQueue[None] = queue.SimpleQueue()
        with contextlib.suppress(RuntimeError):  # no thread can be started
            _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """End the thread."""
        self._stopped.put(None)

    def _run(self) -> None:
        seen: tuple[Any, Any] | None = None
        waited = 0.0
        while True:
            with contextlib.suppress(queue.Empty):
                return self._stopped.get(timeout=CHECK_INTERVAL)
            job = self.job
            if job is None or job is not seen:
                seen, waited = job, 0.0
                continue
            waited += CHECK_INTERVAL
            if waited - CHECK_INTERVAL < SLOW <= waited:  # once per batch
                self._warn(*job)

    def _warn(self, request: Any, memory: Any) -> None:
        warn_of_slow("this process", lambda *mark: self._explain(request, *mark), memory)


@contextlib.contextmanager
def watching(where: Callable[[], str]) -> Iterator[None]:
    """Warn if the block, in which ``transform=`` is tried on a sample, takes a minute."""
    watch = Watch(lambda where, id, text: f"transform= is tried on {where()}. {IF_IT_HANGS}")
    watch.job = where, mark.memory
    try:
        yield
    finally:
        watch.stop()
