"""Memory for batches that is used again and again, and the runners that have workers fill it."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import pickle
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ShardError, warn
from ..sampling.sampler import Request
from ..shards.marks import IF_IT_HANGS, SLOW, Watch, mark
from ..shards.source import where_of
from ..shards.stream import StreamRequest
from ..targets.pictures import lend_room, store_pictures, stored_pictures, with_pictures
from ..targets.protocols import Stored
from . import pinning
from .batch import (
    ExtraBatch,
    FetchResult,
    Images,
    KeyedTargetBatch,
    Shape,
    TargetBatch,
    by_size,
    of_sizes,
)
from .messages import (
    Answer,
    Job,
    JobMessage,
    ResultMessage,
    answer_message,
    answer_of,
    job_message,
    job_of,
    values_of_users,
)
from .text import as_tensors, collated
from .workers import ProcessPool, ThreadPool, WorkerPool

# _READ: its tensors are gone, and a GPU may still copy from it.
_FREE, _ACQUIRED, _LENT, _READ = range(4)
_POPULATE_READ = 22  # of madvise, for which Python has no name
# Batches that a consumer may hold before it gets copies: the one it works on, the one that it receives while
# it still holds that, and one to spare.
MOST_LENT = 3
# Threads of this process that fetch batches: while one waits for the native threads, or runs the Python part
# of a batch, the other keeps them busy.
_FETCHING_THREADS = 2
# Seconds for which close() waits for a GPU that reads the memory. It may hang, if another rank has died.
_GRACE = 1.0

_PICKLE_ERRORS = (pickle.PicklingError, TypeError, AttributeError)


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
    ``pins``: each buffer is registered with CUDA's driver when it is first lent, if CUDA is in use then; it
    is free again when no copy from it goes on, see Note [pinned batches].
    """

    def __init__(self, nbytes: int, ahead: int, shared: bool, pins: bool = False) -> None:
        pinning.sweep()
        is_shared = shared or (pins and torch.cuda.is_initialized())
        self.nbytes = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        count = ahead + 1 + MOST_LENT
        kind = mmap.MAP_SHARED if is_shared else mmap.MAP_PRIVATE
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
        self._mapped, self._memory = memory, np.frombuffer(memory, np.uint8)
        self._prepared = [0] * count  # bytes, in this process
        self._is_pinned, self._pins = bytearray(count), pins and is_shared
        self._mapping: pinning.Mapping | None = None
        self._marks: list[pinning.Mark | None] = [None] * count  # of those that are read
        self._state = bytearray(count)
        self._lent: list[_LentArray | None] = [None] * count
        # A tensor may die between any two lines, in any thread, and Python discards what is raised at that
        # moment: Ctrl-C would be lost if this were Python code. A deque's own method is not.
        self._gone: deque[_LentArray] = deque()

    def acquire(self) -> int:
        """Return the number of a free buffer, to be filled; then ``lend`` or ``release`` it."""
        self._release_gone()
        if _FREE not in self._state and _READ in self._state:
            self._wait_for_device()
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
        self._register(number, array)
        return _as_images(array, shape, dtype)

    def prepare(self, number: int, nbytes: int) -> None:
        """Map the first bytes of a buffer into a worker process by one call, at its first use there.

        Each process that writes into shared memory has a page fault per 4 KiB: with 16 workers and 36 buffers
        38 per image in the first 280 batches, a fifth of their time. A read maps 16 pages at once.
        """
        done = self._prepared[number] // mmap.PAGESIZE * mmap.PAGESIZE
        if nbytes <= self._prepared[number]:
            return
        self._prepared[number] = nbytes
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # before Linux 5.14
                self._mapped.madvise(_POPULATE_READ, number * self.nbytes + done, nbytes - done)

    def memory(self, number: int) -> npt.NDArray[np.uint8]:
        """Return all bytes of a buffer."""
        memory: npt.NDArray[np.uint8] = self._memory[number * self.nbytes : (number + 1) * self.nbytes]
        return memory

    def lend_all(
        self, number: int, shape: Shape, dtype: torch.dtype, places: Sequence[Stored]
    ) -> tuple[Images, list[Tensor]]:
        """Return a buffer's images and pictures, as ``lend``: all are of one storage."""
        self._release_gone()
        array = self.memory(number)
        numbers = torch.from_numpy(array)
        count = sum(map(math.prod, by_size(shape))) * dtype.itemsize
        images = _of_numbers(numbers[:count].view(dtype), shape)
        pictures = [
            numbers[place.begin : place.begin + math.prod(place.shape)].view(place.shape) for place in places
        ]
        if self._state.count(_LENT) >= MOST_LENT:
            copies = of_sizes([part.clone() for part in by_size(images)])
            self._state[number] = _FREE
            return copies, [picture.clone() for picture in pictures]
        self._register(number, array)
        return images, pictures

    def _register(self, number: int, array: npt.NDArray[np.uint8]) -> None:
        """Free a buffer when the array, to which the storage of all its tensors refers, is gone."""
        if self._pins and not self._is_pinned[number] and torch.cuda.is_initialized():
            self._pin(number)
        lent = _LentArray(array, self._gone.append)
        lent.number = number
        self._lent[number] = lent
        self._state[number] = _LENT

    def _pin(self, number: int) -> None:
        """Register a buffer with CUDA's driver, if that is possible."""
        if pinning.can_register():
            self._mapping = self._mapping or pinning.Mapping.of(self._memory)
            address = self._memory.ctypes.data + number * self.nbytes
            # First: Ctrl-C may come when it is registered, and a Runner goes on with these buffers.
            self._is_pinned[number] = True
            self._is_pinned[number] = self._mapping.register(address, self.nbytes, self._mapped)

    def _release_gone(self) -> None:
        while self._gone:
            number = self._gone.popleft().number
            self._state[number] = _READ if self._is_pinned[number] else _FREE
        if _READ in self._state:
            self._release_read()
        if pinning.gone:
            pinning.sweep()

    def _release_read(self) -> None:
        """Free the buffers from which all copies have ended."""
        new = None
        for number in [number for number, state in enumerate(self._state) if state == _READ]:
            if self._marks[number] is None:
                new = new or pinning.mark()
                self._marks[number] = new
            of_copies = self._marks[number]
            if of_copies is not None and of_copies.is_over():
                # In this order: Ctrl-C between the two must not leave a mark of now for later.
                self._marks[number] = None
                self._state[number] = _FREE

    def _wait_for_device(self) -> None:
        """Wait until a buffer is free."""
        slow = time.monotonic() + SLOW
        while _FREE not in self._state:
            time.sleep(pinning.POLL)
            self._release_gone()
            if time.monotonic() > slow:
                slow = math.inf
                warn(
                    f"no memory for batches is free: for {SLOW:.0f} seconds the GPU has not ended what it "
                    "had been given. If it runs a kernel that never ends, give pin=False"
                )

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
    return _of_numbers(numbers.view(dtype), shape)


def _of_numbers(numbers: Tensor, shape: Shape) -> Images:
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

    Args:
        fetcher: Fetcher of the batches.
        threads: Native threads that decode a batch.
        pin: Register the memory of batches with CUDA's driver, if CUDA is in use.
    """

    def __init__(self, fetcher: Any, threads: int = 1, *, pin: bool = False) -> None:
        self._fetcher, self._threads, self._pin = fetcher, threads, pin
        self._buffers: BatchBuffers | None = None
        self._owner = 0  # process of the buffers

    @property
    def ready(self) -> int:
        """Number of batches that were fetched ahead and are done."""
        return 0

    def run(self, requests: Iterable[Any], nbytes: int) -> Iterator[FetchResult]:
        """Yield the result of each request, in order; the images of a batch take at most ``nbytes``.

        Invalidates the iterator that was returned before.
        """
        if self._buffers is None or self._buffers.nbytes < nbytes or self._owner != os.getpid():
            self._owner = os.getpid()
            self._buffers = BatchBuffers(nbytes, 0, shared=False, pins=self._pin)
        buffers, dtype = self._buffers, self._fetcher.dtype
        buffers.release_acquired()
        watch = Watch(functools.partial(_explain_slow, self._fetcher))
        try:
            for request in requests:
                job = Job(buffers.acquire(), request)
                # The batch is in no variable of this frame: only the consumer may hold it.
                yield _lend(self._answer(job, buffers, watch), job, buffers, dtype)
        finally:
            watch.stop()
            mark.set()

    def _answer(self, job: Job, buffers: BatchBuffers, watch: Watch) -> Answer:
        """Do a job in this thread."""
        watch.begin(job.request)
        answer = _fetch_into(self._fetcher, buffers, self._threads, None, job)
        watch.end()
        return answer

    def close(self) -> None:
        """End all workers, wait until they have ended, and free the buffers. ``run`` starts new ones."""
        self._buffers = None
        pinning.sweep(_GRACE)


class PrefetchRunner(Runner):
    """Fetches in ``workers`` processes, ``prefetch`` batches ahead in each, or in this process if it is 0.

    The buffers are shared with the processes, each of which decodes on one thread; request k is sent to
    process k modulo ``workers``.

    Args:
        fetcher: Fetcher of the batches.
        workers: Number of processes.
        threads: Native threads that decode a batch in this process.
        prefetch: Batches ahead.
        to_request: Called by the worker with each item of ``requests``; returns the request for the fetcher,
            or the result itself.
        pin: As of ``Runner``.
    """

    def __init__(
        self,
        fetcher: Any,
        workers: int,
        threads: int,
        prefetch: int,
        to_request: ToRequest | None = None,
        *,
        pin: bool = False,
    ) -> None:
        super().__init__(fetcher, threads, pin=pin)
        self._workers, self._to_request = workers, to_request
        self._depth = workers * max(1, prefetch) if workers else max(prefetch, _FETCHING_THREADS)
        self._pool: WorkerPool | None = None

    @property
    def ready(self) -> int:
        """Number of batches that were fetched ahead and are done."""
        return 0 if self._pool is None else self._pool.ready

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
            submitted: deque[Job] = deque()
            for request in requests:
                job = Job(buffers.acquire(), request)
                submitted.append(job)
                pool.submit(job_message(job) if self._workers else job)
                if pool.pending > self._depth:
                    job = submitted.popleft()
                    yield _lend(self._taken(pool, job), job, buffers, dtype)
            while submitted:
                job = submitted.popleft()
                yield _lend(self._taken(pool, job), job, buffers, dtype)
        except GeneratorExit:
            raise
        except BaseException as error:
            # Ctrl-C may come within a message or between two counters, or leave a job whose result is
            # never taken and that still fills its buffer. The next run, as in a notebook, starts a new pool.
            self._close(is_interrupted=isinstance(error, KeyboardInterrupt))
            raise

    def _taken(self, pool: WorkerPool, job: Job) -> Answer:
        """Wait for the answer to the oldest job."""
        answer = pool.result(functools.partial(_explain_slow, self._fetcher, job.request))
        return answer_of(answer, job.request) if self._workers else cast(Answer, answer)

    def close(self) -> None:
        """End all workers, wait until they have ended, and free the buffers. ``run`` starts new ones."""
        self._close(is_interrupted=False)

    def _close(self, *, is_interrupted: bool) -> None:
        pool, self._pool, self._buffers = self._pool, None, None
        if pool is not None:
            pool.close(is_interrupted=is_interrupted)
            del pool  # its work has the buffers
        pinning.sweep(0.0 if is_interrupted else _GRACE)

    def _start(self, nbytes: int) -> tuple[BatchBuffers, WorkerPool]:
        buffers = BatchBuffers(nbytes, self._depth, shared=self._workers > 0, pins=self._pin)
        work = functools.partial(_fetch_into, self._fetcher, buffers, self._threads or 1, self._to_request)
        if self._workers:
            work = functools.partial(work, is_process=True)
            dumps = functools.partial(_dumps, self._fetcher)
            return buffers, ProcessPool(functools.partial(_answer, work), self._workers, dumps)
        return buffers, ThreadPool(work, _FETCHING_THREADS)


def _explain_slow(fetcher: Any, request: Any, id: int, where: str) -> str:
    """Return the warning about a batch that does not come, from the sample that its worker has marked."""
    if id >= 0:
        if not where:
            where = where_of(request.samples, id) if isinstance(request, StreamRequest) else fetcher.where(id)
        return f"transform= or targets= works on {where}. {IF_IT_HANGS}"
    if isinstance(request, StreamRequest):
        return f"it works on the batch that begins with {where_of(request.samples, int(request.ids[0]))}"
    if hasattr(request, "ids"):
        return f"it works on the batch that begins with {fetcher.first_of(request)}"
    return "it waits for a stream"


def _answer(work: Callable[[Job], Answer], message: JobMessage) -> ResultMessage:
    """Do the work of a message; called by a worker process."""
    job = job_of(message)
    return answer_message(work(job), job)


def _dumps(fetcher: Any, message: ResultMessage, job: JobMessage) -> bytes:
    """Return the bytes of a message; called by a worker process.

    Raises ShardError for what a function of the user's returned that does not pickle, with shard and key if
    the samples are indexed.
    """
    try:
        return pickle.dumps(message)
    except _PICKLE_ERRORS:
        request = job_of(job).request
        for argument, row, value in values_of_users(message, fetcher.split):
            try:
                pickle.dumps(value)
            except _PICKLE_ERRORS as error:
                where = fetcher.where(int(request.ids[row])) if isinstance(request, Request) else "a stream"
                raise ShardError(
                    f"{where}: {argument} returned a {type(value).__name__} that a worker process cannot "
                    f"send, because it does not pickle ({error}). Return numbers, texts, arrays or tensors, "
                    "in lists or dicts; or give workers=0, which uses threads"
                ) from error
        raise


def _fetch_into(
    fetcher: Any,
    buffers: BatchBuffers,
    threads: int,
    to_request: ToRequest | None,
    job: Job,
    *,
    is_process: bool = False,
) -> Answer:
    """Fetch a batch into its buffer; called by a worker. ``is_process``: by one with memory of its own."""
    request = job.request
    if to_request is not None:
        request = to_request(request)
        if isinstance(request, FetchResult):
            return Answer((), request)
    shape: Shape = ()

    def place(of_images: Shape) -> Images:
        nonlocal shape
        shape = of_images
        lend_room(buffers.memory(job.buffer), used())
        if is_process:
            buffers.prepare(job.buffer, used())
        return buffers.view(job.buffer, shape, fetcher.dtype)

    def used() -> int:
        return sum(map(math.prod, by_size(shape))) * int(fetcher.dtype.itemsize)

    try:
        result = fetcher.fetch(request, place, threads)
    finally:
        lend_room(None)
    if isinstance(result.batch, (TargetBatch, KeyedTargetBatch)):
        store_pictures(result.batch.targets, buffers.memory(job.buffer), used())
    elif isinstance(result.batch, ExtraBatch) and fetcher.split.texts:
        result.batch = result.batch._replace(extra=collated(fetcher.split.texts, result.batch.extra))
    return Answer(shape, result)


def _lend(answer: Answer, job: Job, buffers: BatchBuffers, dtype: torch.dtype) -> FetchResult:
    """Return the result of a job with the images in its buffer, as the consumer may hold them."""
    result, shape = answer.result, answer.shape
    batch = result.batch
    if batch is None:
        buffers.release(job.buffer)
    elif isinstance(batch, (TargetBatch, KeyedTargetBatch)):
        result.batch = _lend_targets(batch, buffers, shape, dtype, job.buffer)
    else:
        result.batch = batch._replace(image=buffers.lend(job.buffer, shape, dtype))
        if isinstance(result.batch, ExtraBatch):
            result.batch = result.batch._replace(extra=as_tensors(result.batch.extra))
    return result


def _lend_targets(
    batch: TargetBatch | KeyedTargetBatch,
    buffers: BatchBuffers,
    shape: Shape,
    dtype: torch.dtype,
    number: int,
) -> TargetBatch | KeyedTargetBatch:
    """Return a batch with the images and the targets as the consumer gets them."""
    moved, places = batch.targets, stored_pictures(batch.targets)
    if places:
        images, pictures = buffers.lend_all(number, shape, dtype, places)
        with_pictures(moved, pictures)
    else:
        images = buffers.lend(number, shape, dtype)
    return batch._replace(image=images, targets=of_sizes([each.lists() for each in moved]))
