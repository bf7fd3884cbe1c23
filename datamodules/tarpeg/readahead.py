"""Telling the system which bytes will be wanted soon, for shards that are larger than the memory."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from .batch import Request, Samples
from .errors import ShardError
from .shards import Shards

# Batches, where nobody said how many: at 64 images of 100 kB some 50 MB.
_BATCHES = 8


def depth_of(shards: Samples, wish: int | None) -> int:
    """Return how many batches ahead bytes are asked for.

    ``wish`` None: 8 where mapped shards take more than half of the memory, as then most of what an epoch
    reads has been dropped since the epoch before; otherwise 0: asking for what is there costs a little.
    """
    if not isinstance(shards, Shards):
        return 0
    if wish is not None:
        return wish
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _BATCHES if shards.total_bytes > memory / 2 else 0


def ahead(requests: Iterable[Request], depth: int, soon: Callable[[Request], None]) -> Iterator[Request]:
    """Pass the requests on, each ``depth`` requests after ``soon`` was called with it."""
    waiting: deque[Request] = deque()
    for request in requests:
        soon(request)
        waiting.append(request)
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting


def will_need(shards: Samples, request: Request) -> None:
    """Have the system begin to read the images of ``request``, and return at once."""
    advise = _madvise()
    for view in shards.images(request.ids):
        start = view.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        size = view.data_ptr() + view.numel() - start
        if size and advise(start, size, mmap.MADV_WILLNEED) and ctypes.get_errno() != errno.EAGAIN:
            raise ShardError(
                f"reading ahead failed: {os.strerror(ctypes.get_errno())}. readahead=0 does without."
            )


def _madvise() -> Callable[[int, int, int], int]:
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    call.restype = ctypes.c_int
    return call
