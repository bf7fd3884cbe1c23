"""Processes that make samples: plain children that import this package and nothing of the caller's.

Neither fork (the caller may hold threads and locks, torch's and CUDA's, that break in a forked child) nor
multiprocessing's spawn (it runs the caller's script again: seconds for a training script, an error for one
without a main guard or read from standard input). A child ends with its pipe: a killed caller leaves none.
"""

from __future__ import annotations

import json
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
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
    idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
    children: list[_Child] = []

    def call(block: _Block) -> Any:
        child = idle.get()
        try:
            return child.call(function, block)
        finally:
            idle.put(child)

    pending: deque[Future[_Result]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for _ in range(workers):
            children.append(_Child())
            idle.put(children[-1])
        for block in blocks:
            pending.append(pool.submit(call, block))
            if len(pending) > 4 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        for child in children:
            child.close()


class _Child:
    def __init__(self) -> None:
        command = [sys.executable, "-c", _CHILD, json.dumps(sys.path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((function, argument), self._process.stdin)
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
            function, argument = pickle.load(requests)
        except EOFError:
            return
        reply: tuple[Exception | None, Any]
        try:
            reply = (None, function(argument))
        except (ShardError, ValueError, OSError, MemoryError) as error:
            reply = (error, None)
        try:
            pickle.dump(reply, replies)
            replies.flush()
        except BrokenPipeError:
            return
