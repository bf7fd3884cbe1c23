"""Who answers the requests for batches: worker processes, threads, or the caller itself.

Every engine answers in the order of the requests, with the same bytes, in memory that is used again.
"""

from __future__ import annotations

import contextlib
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader

from .batch import Answer, Request
from .forking import HeardFork
from .memory import Slots

if TYPE_CHECKING:
    from .reading import Reader

# While one waits for the native threads, or is at the Python part of a batch, another keeps them busy.
_FEEDERS = 2


class Engine(Protocol):
    """Answers requests."""

    def answers(self, requests: Iterable[Request], size: int) -> Iterator[Answer]:
        """Answer each request, in order; images take at most ``size`` bytes. Retires the iterator before."""

    def close(self) -> None:
        """End processes and threads, and wait for their end. Idempotent; asking again starts new ones."""


class InCaller:
    """Decodes in the thread that asks, one batch when it is asked for: slow, and easy to debug."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._slots: Slots | None = None

    def answers(self, requests: Iterable[Request], size: int) -> Iterator[Answer]:
        """Answer each request when it is asked for."""
        slots = self._slots
        if slots is None or slots.size < size:
            slots = self._slots = Slots(size, 0, shared=False)
        slots.give_back_taken()
        for request in requests:
            slot = slots.take()
            yield _lent(slots, _answered(self._reader, slots, slot, request, 1))

    def close(self) -> None:
        """Give the memory back."""
        self._slots = None


class InThreads:
    """Decodes ``prefetch`` batches ahead in this process, on ``threads`` native threads."""

    def __init__(self, reader: Reader, threads: int, prefetch: int) -> None:
        self._reader = reader
        self._threads = threads
        self._prefetch = max(prefetch, _FEEDERS)
        self._feeders: ThreadPoolExecutor | None = None
        self._slots: Slots | None = None
        self._pending: deque[Future[_Filled]] = deque()

    def answers(self, requests: Iterable[Request], size: int) -> Iterator[Answer]:
        """Answer each request; the next ones are worked at meanwhile."""
        with _ended_if_interrupted(self):
            self._drain()
            slots = self._slots
            if slots is None or slots.size < size:
                slots = self._slots = Slots(size, self._prefetch, shared=False)
            slots.give_back_taken()
            if self._feeders is None:
                self._feeders = ThreadPoolExecutor(_FEEDERS, "tarpeg-feeder")
            feeders = self._feeders
            for request in requests:
                job = (self._reader, slots, slots.take(), request, self._threads)
                self._pending.append(feeders.submit(_answered, *job))
                if len(self._pending) > self._prefetch:
                    yield _lent(slots, self._pending.popleft().result())
            while self._pending:
                yield _lent(slots, self._pending.popleft().result())

    def close(self) -> None:
        """End the threads."""
        feeders, self._feeders, self._slots, self._pending = self._feeders, None, None, deque()
        if feeders is not None:
            feeders.shutdown(cancel_futures=True)

    def _drain(self) -> None:
        while self._pending:
            pending = self._pending.pop()
            if not pending.cancel():
                pending.exception()


class InProcesses:
    """Decodes ``prefetch`` batches ahead in each of ``workers`` processes, into memory shared with this one.

    The processes are torch's DataLoader's, which sees to their end. They are forked: one that is spawned
    imports torch anew, which takes seconds. See Note [Children that hang at birth].
    """

    def __init__(self, reader: Reader, workers: int, prefetch: int) -> None:
        self._reader = reader
        self._workers = workers
        self._prefetch = max(1, prefetch)
        self._requests: _Slotted | None = None
        self._loader: DataLoader[_Filled] | None = None

    def answers(self, requests: Iterable[Request], size: int) -> Iterator[Answer]:
        """Answer each request; starts the processes, or new ones where a batch outgrew the memory."""
        if self._requests is not None and self._requests.slots.size < size:
            self.close()
        with _ended_if_interrupted(self):
            if self._requests is None or self._loader is None:
                self._requests = _Slotted(Slots(size, self._workers * self._prefetch, shared=True))
                self._loader = self._started(self._requests)
            slots = self._requests.slots
            self._requests.requests = requests
            for filled in self._loader:
                yield _lent(slots, filled)

    def close(self) -> None:
        """End the processes."""
        loader, self._loader, self._requests = self._loader, None, None
        # torch ends them when nobody refers to its iterator any more, which a traceback in flight does.
        shutdown = getattr(getattr(loader, "_iterator", None), "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()

    def _started(self, requests: _Slotted) -> DataLoader[_Filled]:
        return DataLoader(
            _Filling(self._reader, requests.slots),  # type: ignore[arg-type]
            batch_sampler=requests,  # type: ignore[arg-type]
            num_workers=self._workers,
            prefetch_factor=self._prefetch,
            collate_fn=as_it_is,
            persistent_workers=True,
            generator=torch.Generator(),  # otherwise each epoch would draw from the caller's
            multiprocessing_context=HeardFork(),
            worker_init_fn=begin_worker,
        )


@contextlib.contextmanager
def _ended_if_interrupted(engine: Engine) -> Iterator[None]:
    """End the engine's processes and threads where it is left by an exception.

    Ctrl-C may come in the midst of a message or of a queue's own accounts, or leave a job behind that nobody
    waits for any more, and that still fills its slot. Who goes on, as one does in a notebook, gets new ones.
    """
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException:
        engine.close()
        raise


class _Filled(NamedTuple):
    """An answer whose images are in a slot."""

    slot: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    answer: Answer


def _answered(reader: Reader, slots: Slots, slot: int, request: Request, threads: int) -> _Filled:
    shape, dtype = reader.shape(request), reader.dtype
    answer = reader.answer(request, slots.tensor(slot, shape, dtype), threads)
    batch: Any = answer.batch
    if batch is not None:
        answer = answer._replace(batch=batch._replace(image=None))
    return _Filled(slot, shape, dtype, answer)


def _lent(slots: Slots, filled: _Filled) -> Answer:
    answer = filled.answer
    if answer.batch is None:
        slots.give_back(filled.slot)
        return answer
    image = slots.lend(filled.slot, filled.shape, filled.dtype)
    label = torch.as_tensor(answer.batch.label)
    return answer._replace(batch=answer.batch._replace(image=image, label=label))


@dataclass
class _Slotted:
    """Requests with the slots that they are to fill; what the DataLoader takes for a batch sampler."""

    slots: Slots
    requests: Iterable[Request] = ()

    def __iter__(self) -> Iterator[tuple[int, Request]]:
        # The DataLoader begins an epoch after every worker has said that it is done with the one before.
        self.slots.give_back_taken()
        for request in self.requests:
            yield self.slots.take(), request


@dataclass(frozen=True)
class _Filling:
    """A map-style data set for ``torch.utils.data.DataLoader`` that is asked for whole batches."""

    reader: Reader
    slots: Slots

    def __getitems__(self, request: tuple[int, Request]) -> _Filled:
        filled = _answered(self.reader, self.slots, *request, threads=1)
        batch: Any = filled.answer.batch
        if batch is None:
            return filled
        # A tensor would travel in shared memory of its own, under a file descriptor of its own.
        batch = batch._replace(label=batch.label.numpy())
        return filled._replace(answer=filled.answer._replace(batch=batch))


def as_it_is(answer: Any) -> Any:
    """Collate nothing: what the worker made is a batch."""
    return answer


def begin_worker(_: int) -> None:
    """Prepare a worker process."""
    # Ctrl-C reaches the whole group: the parent decides. (torch sees to SIGTERM, and to a parent that dies.)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
