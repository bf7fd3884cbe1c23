"""Processes that make samples: plain children that import this package and nothing of the caller's.

Neither fork (the caller may hold threads and locks, torch's and CUDA's, that break in a forked child) nor
multiprocessing's spawn (it runs the caller's script again: seconds for a training script, an error for one
without a main guard or read from standard input). A child ends with its pipe: a killed caller leaves none.
"""
# MERGED: Where the jobs of a build run: any Executor, or processes of our own.

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

_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tarpeg.processes import serve; serve()"
)


def map_in_processes(
    function: Callable[[_Block], _Result], blocks: Iterable[_Block], workers: int
) -> Generator[_Result, None, None]:
    """Yield `function(block)` in order, made by `workers` processes a few blocks ahead; raise what it raises.

    `function` is a module's own function, found by name in the child.
    """
    pending: deque[Future[_Result]] = deque()
    pool = Processes(workers)
    try:
        for block in blocks:
            pending.append(pool.submit(function, block))
            if len(pending) > 4 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Processes(Executor):
    """Child processes as an Executor, for modules' own functions, of positional arguments that pickle."""

    def __init__(self, workers: int) -> None:
        """Start `workers` processes."""
        self.workers = workers
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._children: list[_Child] = []
        self._pool = ThreadPoolExecutor(workers)
        try:
            for _ in range(workers):
                self._children.append(_Child())
                self._idle.put(self._children[-1])
        except BaseException:
            self.shutdown()
            raise

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Have the next idle process call `fn`."""
        if named:
            raise TypeError("positional arguments only")
        return self._pool.submit(self._call, fn, arguments)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes when their calls are done; it always waits for those."""
        self._pool.shutdown(cancel_futures=cancel_futures)
        for child in self._children:
            child.close()

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        child = self._idle.get()
        try:
            return child.call(function, arguments)
        finally:
            self._idle.put(child)


class _Child:
    def __init__(self) -> None:
        command = [sys.executable, "-c", _CHILD, json.dumps(sys.path)]
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
                f"a worker process died with status {code} (-9: killed, most often for want of memory); "
                "try fewer workers, or workers=0 to do the work in this process"
            ) from broken
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        # communicate() closes the pipe to the child, which ends it, and drains what it may still be writing.
        self._process.communicate()


def serve() -> None:
    """Answer calls read from standard input until it ends; runs in the child."""
    # Ctrl-C reaches the whole group: the parent decides, and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            function, arguments = pickle.load(requests)
        except EOFError:
            sys.stderr.flush()
            # The interpreter would take half a second to take torch apart, one child after the other.
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


# Calls that are handed over at once: a job of a cache cut anew holds some 460 bytes a sample.
_WINDOW = 256  # to an executor, which may be a cluster: it does not tell its size
_WINDOW_EACH = 3  # to each process of our own


@contextlib.contextmanager
def pool(executor: Executor | int | None, jobs: int) -> Iterator[Executor]:
    """Give the executor, or one of local processes: that many, or one a core; 0 or 1: this one."""
    if isinstance(executor, Executor):
        yield executor
        return
    count = min(usable_cores() if executor is None else executor, jobs)
    own = Processes(count) if count > 1 else _Here(1)
    try:
        yield own
    finally:
        own.shutdown(cancel_futures=True)


@contextlib.contextmanager
def dask(address: str | None) -> Iterator[Executor]:
    """Give the workers of a Dask cluster as an executor; address: of its scheduler, tcp://HOST:PORT."""
    if not address:
        raise ValueError("address: which Dask scheduler? give address=tcp://HOST:PORT")
    try:
        client = importlib.import_module("distributed").Client(address)
    except ImportError as error:
        raise CacheError("executor=dask needs Dask: pip install 'tarpeg[cluster]'") from error
    except OSError as error:
        raise CacheError(f"address={address}: no Dask scheduler answers there: {error}") from error
    with client:
        yield client.get_executor(pure=False)


def results(
    executor: Executor,
    function: Callable[..., _Result],
    calls: Iterable[tuple[Any, ...]],
    withdraw: Callable[[], None],
) -> Iterator[_Result]:
    """Yield the results of the calls as they come; raise what they raise.

    When that happens, or the caller stops, those that wait are cancelled, and those under way are waited for,
    since they write. withdraw: called where they cannot be cancelled, and are many.
    """
    pending: set[Future[_Result]] = set()
    most = window(executor)
    try:
        for call in calls:
            pending.add(executor.submit(function, *call))
            done, pending = wait(pending, 0 if len(pending) < most else None, FIRST_COMPLETED)
            for future in done:
                yield future.result()
        while pending:
            done, pending = wait(pending, None, FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        left = [future for future in pending if not future.cancel()]
        if len(left) > usable_cores():
            withdraw()
        wait(left)


def window(executor: Executor) -> int:
    """Tell how many calls wait or run at once: some for each process of our own, more for an executor."""
    if isinstance(executor, Processes):
        return _WINDOW_EACH * executor.workers
    return _WINDOW_EACH if isinstance(executor, _Here) else _WINDOW


class _Here(ThreadPoolExecutor):
    """The one thread of this process that stands for processes."""
