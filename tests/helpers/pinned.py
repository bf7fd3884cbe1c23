"""Numbered batches, and a driver of CUDA whose copies are done late, for tests of pinned memory."""

# ruff: noqa: N802 - names of the driver

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tarpeg.loader import pinning
from tarpeg.loader.batch import Batch, FetchResult
from torch import Tensor

SHAPE = (4, 3, 8, 8)


class Numbered:
    """Fetches batches whose bytes are the number of their request."""

    dtype = torch.uint8

    def __init__(self, shape: tuple[int, ...] = SHAPE) -> None:
        self.shape = shape

    def fetch(self, request: int, place: Callable[[Any], Tensor], threads: int) -> FetchResult:
        images = place(self.shape).fill_(request % 251)
        return FetchResult(Batch(images, torch.full(self.shape[:1], request)))


class LateDriver:
    """The functions of libcuda for one device, that does a piece of its work when an event is queried.

    Its streams are unequal: the side stream works only when the main stream has nothing to do.

    Args:
        refuses: Error of a registration.
        every: Queries until a piece of work is done.
    """

    def __init__(self, refuses: int = 0, every: int = 3) -> None:
        self.refuses, self.every = refuses, every
        self.registered: dict[int, int] = {}
        self.asked: list[int] = []  # addresses to be registered
        self.unregistered: list[int] = []
        self.record_error = 0
        self.query_error = 0
        self._work: list[tuple[int, str, Callable[[], Any]]] = []
        self._count = 0
        self._events: dict[int, int] = {}  # work before an event
        self._queries = 0
        self._process = os.getpid()

    def copy(self, images: Tensor, stream: str = "main") -> Tensor:
        """Copy a tensor as `.to("cuda", non_blocking=True)`: later if its memory is registered."""
        address, nbytes = images.data_ptr(), images.untyped_storage().nbytes()
        found = torch.empty(nbytes, dtype=torch.uint8)
        work = lambda: ctypes.memmove(found.data_ptr(), address, nbytes)  # noqa: E731
        if any(first <= address < first + length for first, length in self.registered.items()):
            self._count += 1
            self._work.append((self._count, stream, work))
        else:
            work()
        return found

    def finish(self) -> None:
        """Do all work."""
        while self._work:
            self._do_a_piece()

    def _do_a_piece(self) -> None:
        if self._work:
            first = min(range(len(self._work)), key=lambda place: self._work[place][1])
            self._work.pop(first)[2]()

    def cuDeviceGetCount(self, count: Any) -> int:
        assert os.getpid() == self._process, "CUDA in a child"
        count._obj.value = 1
        return 0

    def cuDevicePrimaryCtxGetState(self, device: int, flags: Any, is_active: Any) -> int:
        is_active._obj.value = 1
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        context._obj.value = 1 << 20
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        assert context.value == 1 << 20 and os.getpid() == self._process
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        return 0

    def cuCtxSynchronize(self) -> int:
        self.finish()
        return 0

    def cuMemHostRegister_v2(self, address: Any, nbytes: Any, flags: Any) -> int:
        assert is_mapped_shared(address.value, nbytes.value) and flags.value == 1
        assert address.value not in self.registered
        self.asked.append(address.value)
        if not self.refuses:
            self.registered[address.value] = nbytes.value
        return self.refuses

    def cuMemHostUnregister(self, address: Any) -> int:
        assert not self._work, "a copy from this memory may go on"
        if address.value not in self.registered:
            return 713  # CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
        assert is_mapped_shared(address.value, self.registered.pop(address.value))
        self.unregistered.append(address.value)
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"out of locked memory"
        return 0

    def cuEventCreate(self, event: Any, flags: Any) -> int:
        event._obj.value = 1 + len(self._events)
        self._events[event._obj.value] = 0
        return 0

    def cuCtxRecordEvent(self, context: Any, event: Any) -> int:
        assert os.getpid() == self._process
        if not self.record_error:
            self._events[event.value] = self._count
        return self.record_error

    def cuEventQuery(self, event: Any) -> int:
        if self.query_error:
            return self.query_error
        self._queries += 1
        if self._queries % self.every == 0:
            self._do_a_piece()
        return 600 if any(number <= self._events[event.value] for number, _, _ in self._work) else 0


def is_mapped_shared(address: int, nbytes: int) -> bool:
    """Whether memory is mapped here, and shared with processes that are forked."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, rights = line.split()[:2]
        first, end = (int(place, 16) for place in places.split("-"))
        if first <= address and address + nbytes <= end:
            return rights.endswith("s")
    return False


@contextlib.contextmanager
def in_use(monkeypatch: Any, library: LateDriver):
    """CUDA is in use in this process, with this library."""
    driver, process = pinning.Driver(library), os.getpid()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: os.getpid() == process)
    monkeypatch.setattr(pinning, "driver", lambda: driver)
    yield driver
