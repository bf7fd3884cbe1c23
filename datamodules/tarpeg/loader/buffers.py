"""Memory for batches that is used again and again."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_FREE, _ACQUIRED, _LENT = range(3)
# Batches that a consumer may hold before it gets copies: the one it works on, the one that it receives while
# it still holds that, and one to spare.
MOST_LENT = 3


class _LentArray(weakref.ref[np.ndarray]):
    """The array under a lent tensor."""

    number: int


class BatchBuffers:
    """Numbered buffers of ``nbytes`` each (rounded up to pages), lent to a consumer as tensors.

    A lent buffer is free again when the last tensor on it is gone. Fresh memory would cost a page fault per
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

    def view(self, number: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """View a buffer as images ``[..., 3, H, W]`` in channels_last order, to be filled."""
        return _as_images(self._array(number, shape, dtype), shape, dtype)

    def lend(self, number: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a buffer's images; it is free when no tensor, view or storage refers to them any more."""
        self._release_gone()
        if self._state.count(_LENT) >= MOST_LENT:
            images = self.view(number, shape, dtype).clone()
            self._state[number] = _FREE
            return images
        # The tensor's storage refers to this array, and every view of the tensor to the storage.
        array = self._array(number, shape, dtype)
        lent = self._lent[number] = _LentArray(array, self._gone.append)
        lent.number = number
        self._state[number] = _LENT
        return _as_images(array, shape, dtype)

    def _release_gone(self) -> None:
        while self._gone:
            self._state[self._gone.popleft().number] = _FREE

    def _array(self, number: int, shape: Sequence[int], dtype: torch.dtype) -> np.ndarray:
        begin = number * self.nbytes
        return self._memory[begin : begin + math.prod(map(int, shape)) * dtype.itemsize]


def _as_images(array: np.ndarray, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    *lead, channels, height, width = shape
    return torch.from_numpy(array).view(dtype).view(*lead, height, width, channels).movedim(-1, -3)
