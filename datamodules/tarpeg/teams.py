"""Who works beside the caller: threads here, processes in ``crew``. Both answer in the order of asking.

Note [Ctrl-C and locks]: the main thread handles Ctrl-C between any two instructions, so also where Python
code has taken a lock (a Condition's, a Future's, a multiprocessing.Queue's) and the ``with`` does not know of
it yet. Nobody releases it then, and whoever needs it, be it to end, waits for ever. (Seen within a thousand
interrupted loops over small batches: so with torch's DataLoader, an error of the lock's own with
ThreadPoolExecutor.) So who asks here uses ``SimpleQueue``, which is C throughout, and sockets, which need no
lock; and a team that was interrupted in the midst of something is ended, not used again.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

Work = Callable[[Any], Any]


class Team(Protocol):
    """Answers jobs in the order of asking; one thread asks."""

    pending: int  # jobs that were asked and not answered

    def ask(self, job: Any) -> None:
        """Have somebody do the job."""

    def answer(self) -> Any:
        """Wait for the oldest pending job; return or raise what came of it."""

    def drain(self) -> None:
        """Give up all pending jobs; when it returns, nobody works at one."""

    def close(self) -> None:
        """End all, and wait for their end. Idempotent; a team that is forgotten ends too, by and by."""


class Threads:
    """``count`` threads that call ``work(job)``."""

    def __init__(self, work: Work, count: int) -> None:
        self.pending = 0
        self._answered = 0
        self._jobs: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._early: dict[int, Any] = {}
        arguments = (work, self._jobs, self._done)
        self._threads = [
            threading.Thread(target=_serve_queue, args=arguments, name=f"tarpeg-feeder-{k}", daemon=True)
            for k in range(count)
        ]
        # A finalizer waits for nobody: it may run in any thread, and Ctrl-C would be lost in it.
        self._end = weakref.finalize(self, _told_to_end, self._jobs, count)
        _teams.add(self)
        for thread in self._threads:
            thread.start()
            _threads.add(thread)

    def ask(self, job: Any) -> None:
        """Put the job into the queue."""
        self._jobs.put((self._answered + self.pending, job))
        self.pending += 1

    def answer(self) -> Any:
        """Wait for the oldest pending job."""
        answer = self._next()
        if isinstance(answer, _Failed):
            try:
                raise answer.error
            finally:
                del answer  # the error holds this frame, which must not hold the error
        return answer

    def drain(self) -> None:
        """Take back what nobody has begun, and wait for the rest."""
        self.pending -= emptied(self._jobs)
        while self.pending:
            self._next()

    def close(self) -> None:
        """End the threads, and wait for their end."""
        self._end()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _next(self) -> Any:
        while self._answered not in self._early:
            number, answer = self._done.get()
            self._early[number] = answer
            del answer
        self.pending -= 1
        self._answered += 1
        return self._early.pop(self._answered - 1)


_teams: weakref.WeakSet[Threads] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _wait_for_all() -> None:
    # One that comes back from native code while the interpreter ends is unwound through C++, which aborts.
    for team in list(_teams):
        team.close()
    for thread in list(_threads):
        thread.join()


def failure(error: BaseException) -> Exception:
    """Return the error itself, or, of one that means something to the asking thread, another about it."""
    if isinstance(error, Exception):
        return error
    said = RuntimeError(f"{type(error).__name__} was raised where a batch is made: {error}")
    said.__cause__ = error
    return said


class _Failed(NamedTuple):
    error: Exception


def _serve_queue(work: Work, jobs: queue.SimpleQueue[Any], done: queue.SimpleQueue[tuple[int, Any]]) -> None:
    for number, job in iter(jobs.get, None):
        answer: Any
        try:
            answer = work(job)
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is asked for
            answer = _Failed(failure(error))
        done.put((number, answer))
        del answer, job


def emptied(jobs: queue.SimpleQueue[Any]) -> int:
    """Take out all that waits; return how many that were."""
    count = 0
    with contextlib.suppress(queue.Empty):
        while True:
            jobs.get_nowait()
            count += 1
    return count


def _told_to_end(jobs: queue.SimpleQueue[Any], threads: int) -> None:
    emptied(jobs)
    for _ in range(threads):
        jobs.put(None)
