"""Memory for batches that is used again and again, and the runners that have workers fill it."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..sampling.sampler import Request
from .batch import Batch, ExtraBatch, FetchResult, Images, KeyedBatch, Shape, by_size, of_sizes
from .workers import ProcessPool, ThreadPool, WorkerPool

_FREE, _ACQUIRED, _LENT = range(3)
# Batches that a consumer may hold before it gets copies: the one it works on, the one that it receives while
# it still holds that, and one to spare.
MOST_LENT = 3
# Threads of this process that fetch batches: while one waits for the native threads, or runs the Python part
# of a batch, the other keeps them busy.
_FETCHING_THREADS = 2


class _LentArray(weakref.ref[np.ndarray]):
    """The array under a lent tensor."""

    number: int


class BatchBuffers:
    """Numbered buffers of ``nbytes`` each (rounded up to pages), lent to a consumer as tensors.

    A buffer holds the images of a batch: one tensor, or a list with one per size for a list of shapes. A lent
    buffer is free again when the last tensor on it is gone. Fresh memory would cost a page fault per
    4 KiB, a fifth of the time it takes to decode the batch. ``ahead``: buffers that are filled while the
    consumer works. A consumer that keeps more than ``MOST_LENT`` batches gets copies: there is always a
    buffer to fill, and a batch that is kept is never overwritten.

    The memory is anonymous. ``shared``: it is shared with processes forked from now on; it has neither a name
    nor a file descriptor, so nothing is left however a process ends, and it is not limited by the size of
    /dev/shm, which is small in containers. One thread acquires and lends; tensors may die in any thread.
    """

    def __init__(self, nbytes: int, ahead: int, shared: bool) -> None:
        self.nbytes = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        count = ahead + 1 + MOST_LENT
        kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        try:
            memory = mmap.mmap(-1, count * self.nbytes, flags=kind | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{count} batches of {self.nbytes / 1e6:,.1f} MB cannot be allocated: {error.strerror}. "
                "Lower batch_size, the size of the crop or views; or workers or prefetch, for fewer batches.",
            ) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel that was built without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._memory = np.frombuffer(memory, np.uint8)
        self._state = bytearray(count)
        self._lent: list[_LentArray | None] = [None] * count
        # A tensor may die between any two lines, in any thread, and Python discards what is raised at that
        # moment: Ctrl-C would be lost if this were Python code. A deque's own method is not.
        self._gone: deque[_LentArray] = deque()

    def acquire(self) -> int:
        """Return the number of a free buffer, to be filled; then ``lend`` or ``release`` it."""
        self._release_gone()
        number = self._state.index(_FREE)
        self._state[number] = _ACQUIRED
        return number

    def release(self, number: int) -> None:
        """Free a buffer."""
        self._state[number] = _FREE

    def release_acquired(self) -> None:
        """Free all buffers that were acquired and not lent: no worker fills them any more."""
        self._state = self._state.replace(bytes([_ACQUIRED]), bytes([_FREE]))

    def view(self, number: int, shape: Shape, dtype: torch.dtype) -> Images:
        """View a buffer as images ``[..., C, H, W]`` in channels_last order, to be filled."""
        return _as_images(self._array(number, shape, dtype), shape, dtype)

    def lend(self, number: int, shape: Shape, dtype: torch.dtype) -> Images:
        """Return a buffer's images; it is free when no tensor, view or storage refers to them any more."""
        self._release_gone()
        if self._state.count(_LENT) >= MOST_LENT:
            copies = [part.clone() for part in by_size(self.view(number, shape, dtype))]
            self._state[number] = _FREE
            return of_sizes(copies)
        # The storage of all tensors refers to this array, and every view of a tensor to the storage.
        array = self._array(number, shape, dtype)
        lent = self._lent[number] = _LentArray(array, self._gone.append)
        lent.number = number
        self._state[number] = _LENT
        return _as_images(array, shape, dtype)

    def _release_gone(self) -> None:
        while self._gone:
            self._state[self._gone.popleft().number] = _FREE

    def _array(self, number: int, shape: Shape, dtype: torch.dtype) -> np.ndarray:
        begin = number * self.nbytes
        count = sum(map(math.prod, shape)) if isinstance(shape, list) else math.prod(shape)
        array = self._memory[begin : begin + count * dtype.itemsize]
        if isinstance(shape, list) or len(shape) < 4 or dtype != torch.uint8:
            return array
        # With its final shape: torch would take longer for it.
        *lead, channels, height, width = shape
        return array.reshape(*lead, height, width, channels).transpose(*range(len(lead)), -1, -3, -2)


def _as_images(array: np.ndarray, shape: Shape, dtype: torch.dtype) -> Images:
    numbers = torch.from_numpy(array)
    if array.ndim > 1:
        return numbers
    numbers = numbers.view(dtype)
    if isinstance(shape, list):
        parts = numbers.split_with_sizes(list(map(math.prod, shape)))
        return [_as_image(part, each) for part, each in zip(parts, shape, strict=True)]
    return _as_image(numbers, shape)


def _as_image(numbers: Tensor, shape: tuple[int, ...]) -> Tensor:
    if len(shape) < 4:  # a transform's results that are not images
        return numbers.view(shape)
    *lead, channels, height, width = shape
    return numbers.view(*lead, height, width, channels).movedim(-1, -3)


ToRequest = Callable[[Any], Request | FetchResult]


class Runner:
    """Fetches the batches of a series of requests in the calling thread: slow, and easy to debug.

    ``threads``: native threads that decode a batch.
    """

    def __init__(self, fetcher: Any, threads: int = 1) -> None:
        self._fetcher, self._threads = fetcher, threads
        self._buffers: BatchBuffers | None = None

    def run(self, requests: Iterable[Any], nbytes: int) -> Iterator[FetchResult]:
        """Yield the result of each request, in order; the images of a batch take at most ``nbytes``.

        Invalidates the iterator that was returned before.
        """
        if self._buffers is None or self._buffers.nbytes < nbytes:
            self._buffers = BatchBuffers(nbytes, 0, shared=False)
        buffers, dtype = self._buffers, self._fetcher.dtype
        buffers.release_acquired()
        for request in requests:
            job = buffers.acquire(), request
            yield _lend(_fetch_into(self._fetcher, buffers, self._threads, None, job), buffers, dtype, *job)

    def close(self) -> None:
        """End all workers, wait until they have ended, and free the buffers. ``run`` starts new ones."""
        self._buffers = None


class PrefetchRunner(Runner):
    """Fetches in ``workers`` processes, ``prefetch`` batches ahead in each, or in this process if it is 0.

    The buffers are shared with the processes, each of which decodes on one thread; request k is sent to
    process k modulo ``workers``. Otherwise ``threads`` native threads decode, ``prefetch`` batches ahead.
    ``to_request``: called by the worker with each item of ``requests``; returns the request for the fetcher,
    or the result itself.
    """

    def __init__(
        self, fetcher: Any, workers: int, threads: int, prefetch: int, to_request: ToRequest | None = None
    ) -> None:
        super().__init__(fetcher, threads)
        self._workers, self._to_request = workers, to_request
        self._depth = workers * max(1, prefetch) if workers else max(prefetch, _FETCHING_THREADS)
        self._pool: WorkerPool | None = None
        self._owner = 0

    def run(self, requests: Iterable[Any], nbytes: int) -> Iterator[FetchResult]:
        """Yield the result of each request; starts a new pool if the batches have outgrown the buffers."""
        is_inherited = self._owner != os.getpid()  # by a fork: the workers belong to the parent
        if self._buffers is not None and (self._buffers.nbytes < nbytes or is_inherited):
            self.close()
        self._owner = os.getpid()
        try:
            if self._buffers is None or self._pool is None:
                self._buffers, self._pool = self._start(nbytes)
            buffers, pool, dtype = self._buffers, self._pool, self._fetcher.dtype
            pool.drain()
            buffers.release_acquired()
            jobs: deque[tuple[int, Any]] = deque()
            for request in requests:
                jobs.append((buffers.acquire(), request))
                pool.submit(_to_plain(*jobs[-1]) if self._workers else jobs[-1])
                if pool.pending > self._depth:
                    yield _lend(pool.result(), buffers, dtype, *jobs.popleft())
            while jobs:
                yield _lend(pool.result(), buffers, dtype, *jobs.popleft())
        except GeneratorExit:
            raise
        except BaseException:
            # Ctrl-C may come within a message or between two counters, or leave a job whose result is
            # never taken and that still fills its buffer. The next run, as in a notebook, starts a new pool.
            self.close()
            raise

    def close(self) -> None:
        """End all workers, wait until they have ended, and free the buffers. ``run`` starts new ones."""
        pool, self._pool, self._buffers = self._pool, None, None
        if pool is not None:
            pool.close()

    def _start(self, nbytes: int) -> tuple[BatchBuffers, WorkerPool]:
        buffers = BatchBuffers(nbytes, self._depth, shared=self._workers > 0)
        work = functools.partial(_fetch_into, self._fetcher, buffers, self._threads or 1, self._to_request)
        if self._workers:
            return buffers, ProcessPool(work, self._workers)
        return buffers, ThreadPool(work, _FETCHING_THREADS)


# A FetchResult without its images, which are in a buffer: their shape, the place of the type in _KINDS
# (None: there is no batch), its fields after the images, and the result's fields after the batch. Jobs and
# results are plain tuples with the bytes of arrays: after a batch the processor's caches no longer hold the
# code that pickles objects, and it would take 3% of the time.
_Packed = tuple[Any, ...]
_KINDS = (Batch, KeyedBatch, ExtraBatch)


def _to_plain(number: int, request: Any) -> tuple[int, Any]:
    if not isinstance(request, Request):
        return number, request
    epoch, ids, occurrence = request
    return number, (epoch, ids.tobytes(), None if occurrence is None else occurrence.tobytes())


def _fetch_into(
    fetcher: Any, buffers: BatchBuffers, threads: int, to_request: ToRequest | None, job: tuple[int, Any]
) -> _Packed:
    """Fetch a batch into its buffer; called by a worker."""
    number, request = job
    if type(request) is tuple:
        epoch, *parts = request
        request = Request(epoch, *(part and np.frombuffer(bytearray(part), np.int64) for part in parts))
    elif to_request is not None:
        request = to_request(request)
        if isinstance(request, FetchResult):
            return (), None, (), *request[1:]
    shape = fetcher.shape(request)
    result = fetcher.fetch(request, buffers.view(number, shape, fetcher.dtype), threads)
    batch = result.batch
    if batch is None:
        return shape, None, (), *result[1:]
    label = batch.label.numpy()
    return shape, _KINDS.index(type(batch)), (label.tobytes(), label.shape, *batch[2:]), *result[1:]


def _lend(
    packed: _Packed, buffers: BatchBuffers, dtype: torch.dtype, number: int, request: Any
) -> FetchResult:
    """Complete a worker's result by the images in buffer ``number`` and by the request."""
    shape, kind, fields, substituted, non_jpeg, error, notes, own_request, left_out = packed
    if kind is None:
        buffers.release(number)
        batch = None
    else:
        content, lengths, *rest = fields
        label = torch.from_numpy(np.frombuffer(bytearray(content), np.int64).reshape(lengths))
        batch = _KINDS[kind](buffers.lend(number, shape, dtype), label, *rest)
    return FetchResult(batch, substituted, non_jpeg, error, notes, own_request or request, left_out)
