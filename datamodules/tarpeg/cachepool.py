"""Where the jobs of a build run: any Executor, or processes of our own."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from .errors import CacheError
from .surroundings import usable_cores
from .workers import Processes

# Calls that are handed over at once: a job of a cache cut anew holds some 460 bytes a sample.
_WINDOW = 256  # to an executor, which may be a cluster: it does not tell its size
_WINDOW_EACH = 3  # to each process of our own

_Result = TypeVar("_Result")


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
