"""Memory of batches that is registered with CUDA's driver, and the end of the copies from it.

Note [pinned batches]: a copy to a GPU from memory that the driver knows ("pinned") goes on after
``.to(device, non_blocking=True)`` has returned, also when the tensor is gone. So a buffer is used again only
when all has ended that the GPU was given before its tensors were gone. To which stream a copy was given is
not known: loops that prefetch have streams of their own, and an event of any one stream could say too early
that the memory is free. Hence an event of the whole context, ``cuCtxRecordEvent``, which is queried, and
waited for only if no other buffer is free. With a driver that is too old for it nothing is registered.

These are functions of the driver, not of the runtime (``torch.cuda.cudart()``), which has no such event, and
would keep the error of a registration until the next kernel launch, which would then raise it.

Memory is registered, and events are recorded, where CUDA is in use already: not in worker processes, which
are forked and cannot use it, and not where the CPU alone trains. And by the main thread only: an event of the
context breaks off the capture of a CUDA graph by another thread. Registered memory is shared memory, because
a fork copies private memory, and might leave the pages that a GPU reads to the child. It is unregistered
before it is unmapped, when nothing refers to it and no device reads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import mmap
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..errors import warn

log = logging.getLogger(__name__)

# Seconds between two looks at an event that is waited for.
POLL = 2e-4
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for all devices
_WITHOUT_TIMES = 2  # CU_EVENT_DISABLE_TIMING
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_OF_CAPTURES = range(900, 910)  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and the following


class Driver:
    """The functions of CUDA's driver that are used here.

    Args:
        library: libcuda, or what has its functions.

    Attributes:
        has_refused: Whether memory could not be registered: it is not tried again.
    """

    def __init__(self, library: Any) -> None:
        self.has_refused = False
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._idle: dict[int, list[ctypes.c_void_p]] = {}  # events that are over, by device

    def contexts(self) -> dict[int, ctypes.c_void_p]:
        """Return the contexts of the devices that this process uses, by the number of the device."""
        count = ctypes.c_int()
        self._library.cuDeviceGetCount(ctypes.byref(count))
        for device in range(count.value):
            flags, is_active, context = ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p()
            if device in self._contexts:
                continue
            self._library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(is_active))
            if is_active.value and not self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
                self._contexts[device] = context
        return self._contexts

    def register(self, address: int, nbytes: int) -> str:
        """Register memory; return the error, or "". There has to be a context."""
        with self._in_first_context():
            code = self._library.cuMemHostRegister_v2(
                ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_uint(_PORTABLE)
            )
        if not code:
            return ""
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return f"{(text.value or b'').decode()}, error {code}"

    def unregister(self, address: int) -> None:
        """Undo ``register``."""
        with self._in_first_context():
            self._library.cuMemHostUnregister(ctypes.c_void_p(address))

    def mark(self) -> Mark | None:
        """Record an event of each context; None if that is impossible now, as a graph is being captured."""
        events = []
        for device, context in [*self.contexts().items()]:
            event = self._event(device, context)
            code = self._library.cuCtxRecordEvent(context, event)
            if not code:
                events.append((device, event))
            elif not self._ends(device, code):
                for each in (*events, (device, event)):
                    self.put_back(*each)
                return None
        return Mark(self, events)

    def is_over(self, device: int, event: ctypes.c_void_p) -> bool:
        """Whether all that came before an event has ended."""
        code = self._library.cuEventQuery(event)
        return not code or (code != _NOT_READY and self._ends(device, code))

    def _ends(self, device: int, code: int) -> bool:
        """Wait for a device whose events fail with this error; return whether it has ended all work.

        A context that is broken, by a failed assertion of a kernel, say, does no work any more.
        """
        if code in _OF_CAPTURES:
            return False
        with self._in(self._contexts[device]):
            return self._library.cuCtxSynchronize() not in _OF_CAPTURES

    def put_back(self, device: int, event: ctypes.c_void_p) -> None:
        """Keep an event for the next mark."""
        self._idle.setdefault(device, []).append(event)

    def _event(self, device: int, context: ctypes.c_void_p) -> ctypes.c_void_p:
        with contextlib.suppress(LookupError):  # not asked first: another thread may take the last one
            return self._idle[device].pop()
        event = ctypes.c_void_p()
        with self._in(context):
            self._library.cuEventCreate(ctypes.byref(event), ctypes.c_uint(_WITHOUT_TIMES))
        return event

    def _in_first_context(self) -> contextlib.AbstractContextManager[None]:
        return self._in(next(iter(self._contexts.values())))

    @contextlib.contextmanager
    def _in(self, context: ctypes.c_void_p) -> Iterator[None]:
        self._library.cuCtxPushCurrent_v2(context)
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


class Mark:
    """All that the devices of this process had been given at some moment.

    Args:
        driver: What recorded the events.
        events: An event of each device, with its number.
    """

    def __init__(self, driver: Driver, events: list[tuple[int, ctypes.c_void_p]]) -> None:
        self._driver, self._events = driver, events

    def is_over(self) -> bool:
        """Whether all of it has ended."""
        while self._events:
            if not self._driver.is_over(*self._events[-1]):
                return False
            self._driver.put_back(*self._events.pop())
        return True


@functools.cache
def driver() -> Driver | None:
    """Return CUDA's driver; None if there is none that has events of contexts."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        library.cuCtxRecordEvent  # noqa: B018 - raises AttributeError
    except (OSError, AttributeError) as error:
        log.info("batches are not pinned: %s. Drivers of CUDA 12.6 and newer have it", error)
        return None
    return Driver(library)


class Mapping(weakref.ref[np.ndarray]):
    """The array over mapped memory with registered parts, to which all tensors on it refer.

    It is in ``gone`` when that array is gone.
    """

    addresses: list[int]
    mark: Mark | None = None

    @classmethod
    def of(cls, array: np.ndarray) -> Mapping:
        """Return the mapping of an array, of which nothing is registered yet."""
        # A deque's own method, as in BatchBuffers: the array may be gone in any thread, at any line.
        mapping = cls(array, gone.append)
        mapping.addresses = []
        return mapping

    def register(self, address: int, nbytes: int, memory: mmap.mmap) -> bool:
        """Register a part of the memory, if ``can_register()``; return whether the driver did so.

        Warns if the driver refuses, which is the last time that it is asked.
        """
        found = driver()
        assert found is not None
        # Remembered first: Ctrl-C may come when it is registered.
        self.addresses.append(address)
        _registered[id(self)] = self, memory
        error = found.register(address, nbytes)
        if error:
            found.has_refused = True
            self.addresses.pop()
            if not self.addresses:
                del _registered[id(self)]
            warn(
                f"batches are not pinned: CUDA's driver cannot register {nbytes / 1e6:.1f} MB of memory "
                f"({error}). Training goes on, and waits for each copy to the GPU. Raise the limit of locked "
                "memory (ulimit -l; of a container --ulimit memlock=-1), or give pin=False"
            )
        return not error


# What is registered, with its memory, by identity: it stays mapped. And mappings whose arrays are gone.
_registered: dict[int, tuple[Mapping, mmap.mmap]] = {}
gone: deque[Mapping] = deque()


def can_register() -> bool:
    """Whether this is the main thread of a process that uses CUDA, whose driver has refused nothing."""
    found = _usable_driver()
    return found is not None and not found.has_refused and bool(found.contexts())


def mark() -> Mark | None:
    """Return a mark of now; None if it cannot be made now."""
    found = driver()
    return None if found is None else found.mark()


def sweep(seconds: float = 0.0) -> None:
    """Unregister and unmap memory to which nothing refers any more, if no device reads it.

    What is read for longer than ``seconds`` is left to the next call: nothing waits for a GPU that hangs.
    """
    found = _usable_driver() if gone else None
    end = time.monotonic() + seconds
    while found is not None and gone:
        is_any_read = False
        for _ in range(len(gone)):
            mapping = gone[0]  # stays there until it is done with: Ctrl-C may come at any line
            mapping.mark = mapping.mark or found.mark()
            if mapping.mark is None or not mapping.mark.is_over():
                is_any_read = True
                gone.rotate(-1)
                continue
            while mapping.addresses:
                found.unregister(mapping.addresses[-1])
                mapping.addresses.pop()
            _registered.pop(id(mapping), None)
            gone.popleft()
        if time.monotonic() >= end:
            return
        time.sleep(POLL if is_any_read else 0)


def _usable_driver() -> Driver | None:
    """Return the driver if this is the main thread of a process that uses CUDA. Initialises nothing."""
    if not torch.cuda.is_initialized() or threading.current_thread() is not threading.main_thread():
        return None
    return driver()
