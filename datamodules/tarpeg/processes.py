"""Child processes as an Executor, and a bound on the calls that wait in an executor.

Note [Plain children]: the children are new interpreters that import this package and nothing of the caller.
fork is unsafe: the caller may hold threads and locks (torch's, CUDA's) that break in a forked child. The
spawn method of multiprocessing runs the caller's script again: seconds for a training script, an error for
one without a main guard or one read from standard input. A child ends when its pipe is closed, so a killed
caller leaves no children behind.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from .errors import CacheError, ShardError
from .machine import usable_cores

_Block = TypeVar("_Block")
_Result = TypeVar("_Result")

# Calls that wait or run at once; a job of a resharding build holds about 460 bytes per sample.
_PENDING = 256  # in the caller's executor, which may be a cluster of unknown size
_PENDING_EACH = 3  # per process of ours
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tarpeg.processes import serve; serve()"
)


def completed(
    executor: Executor,
    function: Callable[..., _Result],
    calls: Iterable[tuple[Any, ...]],
    on_abandon: Callable[[], None],
) -> Iterator[_Result]:
    """Yield ``function(*call)`` for each of the calls, in the order of completion; raise what they raise.

    After an exception, or if the caller stops iterating, waiting calls are cancelled and running ones are
    waited for, because they write files. Ctrl-C kills child processes instead: unfinished files have
    temporary names.

    Args:
        executor: Executor of the calls.
        function: Function to call.
        calls: Arguments of each call.
        on_abandon: Called before waiting, if more calls than cores are still running.
    """
    pending: set[Future[_Result]] = set()
    limit = max_pending(executor)
    try:
        if isinstance(executor, _Caller):
            # What making a call does, such as counting shards that a build keeps, happens as early as in
            # executors in which calls wait.
            calls = made_ahead(calls, limit - 1)
        for call in calls:
            pending.add(executor.submit(function, *call))
            done, pending = wait(pending, 0 if len(pending) < limit else None, FIRST_COMPLETED)
            yield from (future.result() for future in done)
        while pending:
            done, pending = wait(pending, None, FIRST_COMPLETED)
            yield from (future.result() for future in done)
    except KeyboardInterrupt:
        if isinstance(executor, ProcessExecutor):
            executor.kill()
        raise
    finally:
        running = [future for future in pending if not future.cancel()]
        if len(running) > usable_cores():
            on_abandon()
        wait(running)


def made_ahead(items: Iterable[_Block], depth: int) -> Iterator[_Block]:
    """Yield the items, each after `depth` further ones were made, for what making them does."""
    waiting: deque[_Block] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting


def max_pending(executor: Executor) -> int:
    """Return how many calls may wait or run at once: few per process of ours, more in another executor."""
    if isinstance(executor, ProcessExecutor):
        return _PENDING_EACH * executor.workers
    return _PENDING_EACH if isinstance(executor, _Caller) else _PENDING


@contextlib.contextmanager
def open_executor(executor: Executor | int | None, jobs: int) -> Iterator[Executor]:
    """Yield the executor itself, or one with so many child processes, at most one per job.

    None: one process per core. With 0 or 1 processes the caller's thread does the work.
    """
    if isinstance(executor, Executor):
        yield executor
        return
    workers = min(usable_cores() if executor is None else executor, jobs)
    own = ProcessExecutor(workers) if workers > 1 else _Caller()
    try:
        yield own
    finally:
        own.shutdown(cancel_futures=True)


@contextlib.contextmanager
def dask_executor(address: str | None) -> Iterator[Executor]:
    """Yield the workers of a Dask cluster as an executor.

    Args:
        address: Address of its scheduler, tcp://HOST:PORT.

    Raises:
        ValueError: Without an address.
        CacheError: If Dask is not installed, or no scheduler answers there.
    """
    if not address:
        raise ValueError(f"address={address!r} must be that of a Dask scheduler, such as tcp://HOST:8786")
    try:
        client = importlib.import_module("distributed").Client(address)
    except ImportError as error:
        raise CacheError("Dask is not installed: pip install 'tarpeg[cluster]'") from error
    except OSError as error:
        raise CacheError(f"address={address!r}: no Dask scheduler answers there: {error}") from error
    with client:
        yield client.get_executor(pure=False)


class ProcessExecutor(Executor):
    """Child processes as an Executor, see Note [Plain children].

    Functions must be defined at the top level of a module; arguments are positional and must pickle.
    """

    def __init__(self, workers: int) -> None:
        """Start `workers` processes."""
        self.workers = workers
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._children: list[_Child] = []
        self._threads = ThreadPoolExecutor(workers)
        try:
            for _ in range(workers):
                self._children.append(_Child())
                self._idle.put(self._children[-1])
        except BaseException:
            self.shutdown()
            raise

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Call `fn` in the next idle process."""
        if named:
            raise TypeError("positional arguments only")
        return self._threads.submit(self._call, fn, arguments)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes after their calls; always waits for running calls."""
        self._threads.shutdown(cancel_futures=cancel_futures)
        for child in self._children:
            child.close()

    def kill(self) -> None:
        """End the processes at once: running calls fail. ``shutdown`` is still to be called."""
        for child in self._children:
            child.kill()

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        child = self._idle.get()
        try:
            return child.call(function, arguments)
        finally:
            self._idle.put(child)


def map_in_order(
    function: Callable[[_Block], _Result],
    blocks: Iterable[_Block],
    workers: int,
    kind: Callable[[int], Executor] = ProcessExecutor,
) -> Generator[_Result, None, None]:
    """Yield `function(block)` in order, computed a few blocks ahead; raise what it raises.

    Args:
        function: Function, for processes defined at the top level of a module.
        blocks: Its arguments.
        workers: Number of workers.
        kind: Class of their executor.
    """
    pending: deque[Future[_Result]] = deque()
    executor = kind(workers)
    try:
        for block in blocks:
            pending.append(executor.submit(function, block))
            if len(pending) > 4 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


class _Caller(Executor):
    """The caller's thread, used instead of a single child process: Ctrl-C interrupts the call itself."""

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Call `fn` before returning, and raise what it raises."""
        future: Future[Any] = Future()
        future.set_result(fn(*arguments, **named))
        return future


class _Child:
    """One child process that runs `serve`."""

    def __init__(self) -> None:
        command = [
            sys.executable,
            "-c",
            _CHILD,
            json.dumps([each for each in sys.path if isinstance(each, str)]),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((function, arguments), self._process.stdin)
            self._process.stdin.flush()
            error, result = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as broken:
            code = self._process.wait()
            raise ShardError(
                f"a worker process died with status {code} (-9: killed, usually for lack of memory; 1: its "
                "error is above, such as a class of the script itself: it belongs in a module that workers "
                "can import); use fewer workers, or none, which work in this process: workers=0, or "
                "executor=0 of build_cache"
            ) from broken
        if error is not None:
            raise error
        return result

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        # communicate() closes the pipe to the child, which ends it, and reads what it may still write.
        self._process.communicate()


def serve() -> None:
    """Answer calls from standard input until it is closed; runs in the child."""
    # Ctrl-C reaches the whole process group: the parent handles it and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what programs and libraries print that a call starts
    sys.stdout = sys.stderr
    while True:
        try:
            function, arguments = pickle.load(requests)
        except EOFError:
            sys.stderr.flush()
            # A normal exit spends half a second on unloading torch, one child after the other.
            os._exit(0)
        reply: tuple[Exception | None, Any]
        try:
            reply = (None, function(*arguments))
        except (ShardError, ValueError, OSError, MemoryError) as error:
            reply = (error, None)
        try:
            pickle.dump(reply, replies)
            replies.flush()
        except BrokenPipeError:
            return
