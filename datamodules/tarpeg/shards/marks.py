"""Which sample a worker works on: written by the worker, read if its batch does not come.

The consumer reads it; without workers, in which the consumer does the work, a thread that watches it.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import struct
import threading
import weakref
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

    def __init__(self, explain: Callable[[Any, int, str], str]) -> None:
        self._explain = explain
        self._job: tuple[Any, Any] | None = None  # the request, and the memory of the mark of its thread
        self._begun = 0
        # Not an Event: see Note [Ctrl-C and locks].
        self._stopped: queue.SimpleQueue[None] = queue.SimpleQueue()
        # The thread must not be the last to hold what belongs to a loader: a tensor that it deletes while the
        # interpreter ends aborts the process, because torch waits for Python's lock in a destructor.
        with contextlib.suppress(RuntimeError):  # no thread can be started
            _thread.start_new_thread(_look_now_and_then, (weakref.ref(self), self._stopped))

    def begin(self, request: Any) -> None:
        """Watch the work on a request, which this thread begins now."""
        self._begun += 1
        self._job = request, mark.memory

    def end(self) -> None:
        """Watch nothing until the next request."""
        self._job = None

    def stop(self) -> None:
        """End the thread."""
        self._stopped.put(None)

    @property
    def running(self) -> int:
        """Number of the request that is worked on, counted from 1; 0 for none."""
        return self._begun if self._job is not None else 0

    def warn(self) -> None:
        """Warn about the request that is worked on."""
        job = self._job
        if job is not None:
            request, memory = job
            warn_of_slow("this process", lambda *mark: self._explain(request, *mark), memory)


def _look_now_and_then(to_watch: weakref.ref[Watch], stopped: queue.SimpleQueue[None]) -> None:
    seen, waited = 0, 0.0
    while True:
        with contextlib.suppress(queue.Empty):
            return stopped.get(timeout=CHECK_INTERVAL)
        watch = to_watch()
        if watch is None:
            return None
        running = watch.running
        if running == 0 or running != seen:
            seen, waited = running, 0.0
        else:
            waited += CHECK_INTERVAL
            if waited - CHECK_INTERVAL < SLOW <= waited:  # once per batch
                watch.warn()
        del watch


@contextlib.contextmanager
def watching(where: Callable[[], str]) -> Iterator[None]:
    """Warn if the block, in which ``transform=`` is tried on a sample, takes a minute."""
    watch = Watch(lambda where, id, text: f"transform= is tried on {where()}. {IF_IT_HANGS}")
    watch.begin(where)
    try:
        yield
    finally:
        watch.stop()
