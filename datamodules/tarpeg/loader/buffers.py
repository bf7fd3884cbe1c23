"""Memory for batches that is used again and again."""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_FREE, _ACQUIRED, _LENT = range(3)
# Batches that a consumer may hold at once before it is given copies: the one it works on, the one that it is
# handed while it still has that, and one to spare.
MOST_LENT = 3


class _Lent(weakref.ref[np.ndarray]):
    """A slot's array that a consumer has a tensor on."""

    slot: int


class BatchBuffers:
    """BatchBuffers of equal size, lent as tensors; a slot is free again when the last tensor on it is gone.

    A fresh batch costs a page fault for every 4 KiB, which takes as long as decoding a fifth of it.
    ``ahead``: how many slots are filled while the consumer works. A consumer that keeps more than
    ``MOST_LENT`` batches is given copies, so there is always a slot to fill, and what it keeps is never
    written to again.

    The memory is anonymous. ``shared``: processes forked from now on write to the same; it has neither a name
    nor a file descriptor, so nothing is left behind however a process ends, and the size of /dev/shm, small
    in containers, is no limit. One thread takes and lends; tensors may die in any.
    """

    def __init__(self, size: int, ahead: int, shared: bool) -> None:
        self.nbytes = max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE
        count = ahead + 1 + MOST_LENT
        kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        memory = mmap.mmap(-1, count * self.nbytes, flags=kind | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel that was built without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(memory, np.uint8)
        self._state = bytearray(count)
        self._lent: list[_Lent | None] = [None] * count
        # A tensor's end may interrupt any line, in any thread, and Python drops what is raised there: Ctrl-C
        # that came while it runs would be lost. A deque's own method is no Python code.
        self._gone: deque[_Lent] = deque()

    def acquire(self) -> int:
        """Return the number of a free slot, to be filled; then ``lend`` it or ``release``."""
        self._collect()
        slot = self._state.index(_FREE)
        self._state[slot] = _ACQUIRED
        return slot

    def release(self, slot: int) -> None:
        """Free the slot."""
        self._state[slot] = _FREE

    def release_acquired(self) -> None:
        """Free the slots that were taken and not lent: nobody fills them any more."""
        for slot, state in enumerate(self._state):
            if state == _ACQUIRED:
                self._state[slot] = _FREE

    def view(self, slot: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """View the slot as images ``[..., 3, H, W]`` in channels_last order, to fill them."""
        return _images(self._bytes_of(slot, shape, dtype), shape, dtype)

    def lend(self, slot: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Hand out the slot's images; frees it when no tensor, view or storage refers to them any more."""
        self._collect()
        if self._state.count(_LENT) >= MOST_LENT:
            images = self.view(slot, shape, dtype).clone()
            self.release(slot)
            return images
        # The tensor's storage holds this array, and every view of the tensor holds the storage.
        view = self._bytes_of(slot, shape, dtype)
        lent = _Lent(view, self._gone.append)
        lent.slot = slot
        self._lent[slot] = lent
        self._state[slot] = _LENT
        return _images(view, shape, dtype)

    def _collect(self) -> None:
        """Free the slots whose last tensor is gone."""
        while self._gone:
            self.release(self._gone.popleft().slot)

    def _bytes_of(self, slot: int, shape: Sequence[int], dtype: torch.dtype) -> np.ndarray:
        begin = slot * self.nbytes
        return self._bytes[begin : begin + image_bytes(shape, dtype)]


def image_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return how many bytes a dense tensor of that shape and type takes."""
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _images(view: np.ndarray, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    *lead, channels, height, width = shape
    return torch.from_numpy(view).view(dtype).view(*lead, height, width, channels).movedim(-1, -3)
