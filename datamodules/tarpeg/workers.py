"""Processes that make samples: plain children that import this package and nothing of the caller's.

Neither fork (the caller may hold threads and locks, torch's and CUDA's, that break in a forked child) nor
multiprocessing's spawn (it runs the caller's script again: seconds for a training script, an error for one
without a main guard or read from standard input). A child ends with its pipe: a killed caller leaves none.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from .errors import ShardError

_Block = TypeVar("_Block")
_Result = TypeVar("_Result")

_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tarpeg.workers import serve; serve()"


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
