"""Who answers the requests for batches: worker processes, threads, or the caller itself.

Every engine answers in the order of the requests, with the same bytes, in memory that is used again.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from .batch import Answer, Request
from .crew import Crew
from .memory import Slots
from .teams import Team, Threads

if TYPE_CHECKING:
    from .reading import Reader

# While one waits for the native threads, or is at the Python part of a batch, another keeps them busy.
_FEEDERS = 2


Taken = Callable[[Any], Request | Answer]


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
            yield _lent(slots, _answered(self._reader, slots, 1, (slot, request)))

    def close(self) -> None:
        """Give the memory back."""
        self._slots = None


class _Ahead(ABC):
    """Keeps a team busy with the requests to come, ``ahead`` of the one that is answered."""

    def __init__(self, reader: Any, ahead: int) -> None:
        self._reader = reader
        self._ahead = ahead
        self._slots: Slots | None = None
        self._team: Team | None = None
        self._owner = 0

    @abstractmethod
    def _started(self, size: int) -> tuple[Slots, Team]:
        """Make the memory and those who fill it."""

    def answers(self, requests: Iterable[Request], size: int) -> Iterator[Answer]:
        """Answer each request; starts a team, or a new one where a batch outgrew the memory."""
        is_inherited = self._owner != os.getpid()  # by a fork: those who work belong to the parent
        if self._slots is not None and (self._slots.size < size or is_inherited):
            self.close()
        self._owner = os.getpid()
        with _ended_if_interrupted(self):
            if self._slots is None or self._team is None:
                self._slots, self._team = self._started(size)
            slots, team = self._slots, self._team
            team.drain()
            slots.give_back_taken()
            for request in requests:
                team.ask((slots.take(), request))
                if team.pending > self._ahead:
                    yield _lent(slots, team.answer())
            while team.pending:
                yield _lent(slots, team.answer())

    def close(self) -> None:
        """End the team."""
        team, self._team, self._slots = self._team, None, None
        if team is not None:
            team.close()


class InThreads(_Ahead):
    """Decodes ``prefetch`` batches ahead in this process, on ``threads`` native threads."""

    def __init__(self, reader: Any, threads: int, prefetch: int) -> None:
        super().__init__(reader, max(prefetch, _FEEDERS))
        self._threads = threads

    def _started(self, size: int) -> tuple[Slots, Team]:
        slots = Slots(size, self._ahead, shared=False)
        return slots, Threads(partial(_answered, self._reader, slots, self._threads), _FEEDERS)


class InProcesses(_Ahead):
    """Decodes ``prefetch`` batches ahead in each of ``workers`` processes, into memory shared with this one.

    The processes take turns at the requests, beginning with the first. ``taken``: called where a request is
    answered, makes the request itself of what was sent, or the answer at once.
    """

    def __init__(self, reader: Any, workers: int, prefetch: int, taken: Taken | None = None) -> None:
        super().__init__(reader, workers * max(1, prefetch))
        self._workers, self._taken = workers, taken

    def _started(self, size: int) -> tuple[Slots, Team]:
        slots = Slots(size, self._ahead, shared=True)
        return slots, Crew(partial(_sent, self._reader, self._taken, slots), self._workers)


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


def _answered(reader: Any, slots: Slots, threads: int, job: tuple[int, Any]) -> _Filled:
    slot, request = job
    shape, dtype = reader.shape(request), reader.dtype
    answer = reader.answer(request, slots.tensor(slot, shape, dtype), threads)
    batch: Any = answer.batch
    if batch is not None:
        answer = answer._replace(batch=batch._replace(image=None))
    return _Filled(slot, shape, dtype, answer)


def _sent(reader: Any, taken: Taken | None, slots: Slots, job: tuple[int, Any]) -> _Filled:
    if taken is not None:
        slot, request = job[0], taken(job[1])
        if isinstance(request, Answer):
            return _Filled(slot, (), reader.dtype, request)
        job = slot, request
    filled = _answered(reader, slots, 1, job)
    batch: Any = filled.answer.batch
    if batch is None:
        return filled
    # A tensor would travel in shared memory of its own, under a file descriptor of its own.
    return filled._replace(answer=filled.answer._replace(batch=batch._replace(label=batch.label.numpy())))


def _lent(slots: Slots, filled: _Filled) -> Answer:
    answer = filled.answer
    if answer.batch is None:
        slots.give_back(filled.slot)
        return answer
    image = slots.lend(filled.slot, filled.shape, filled.dtype)
    label = torch.as_tensor(answer.batch.label)
    return answer._replace(batch=answer.batch._replace(image=image, label=label))
