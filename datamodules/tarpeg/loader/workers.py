"""Who works beside the caller: threads here, processes in ``crew``. Both answer in the order of asking.

Note [Ctrl-C and locks]: the main thread handles Ctrl-C between any two instructions, so also where Python
code has taken a lock (a Condition's, a Future's, a multiprocessing.Queue's) and the ``with`` does not know of
it yet. Nobody releases it then, and whoever needs it, be it to end, waits for ever. (Seen within a thousand
interrupted loops over small batches: so with torch's DataLoader, an error of the lock's own with
ThreadPoolExecutor.) So who asks here uses ``SimpleQueue``, which is C throughout, and sockets, which need no
lock; and a team that was interrupted in the midst of something is ended, not used again.
"""
# MERGED: Forked processes that answer jobs over sockets.
# MERGED: Who answers the requests for batches: worker processes, threads, or the caller itself.

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import queue
import random
import signal
import socket
import threading
import time
import traceback
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from ..sampling.sampler import Request
from .batch import FetchResult
from .buffers import BatchBuffers

if TYPE_CHECKING:
    from .fetch import Fetcher

Work = Callable[[Any], Any]


class WorkerPool(Protocol):
    """Answers jobs in the order of asking; one thread asks."""

    pending: int  # jobs that were asked and not answered

    def submit(self, job: Any) -> None:
        """Have somebody do the job."""

    def result(self) -> Any:
        """Wait for the oldest pending job; return or raise what came of it."""

    def drain(self) -> None:
        """Give up all pending jobs; when it returns, nobody works at one."""

    def close(self) -> None:
        """End all, and wait for their end. Idempotent; a team that is forgotten ends too, by and by."""


class ThreadPool:
    """``count`` threads that call ``work(job)``."""

    def __init__(self, work: Work, count: int) -> None:
        self.pending = 0
        self._answered = 0
        self._jobs: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._early: dict[int, Any] = {}
        arguments = (work, self._jobs, self._done)
        self._threads = [
            threading.Thread(target=_serve_queue, args=arguments, name=f"tarpeg-feeder-{k}", daemon=True)
            for k in range(count)
        ]
        # A finalizer waits for nobody: it may run in any thread, and Ctrl-C would be lost in it.
        self._end = weakref.finalize(self, _told_to_end, self._jobs, count)
        _teams.add(self)
        for thread in self._threads:
            thread.start()
            _threads.add(thread)

    def submit(self, job: Any) -> None:
        """Put the job into the queue."""
        self._jobs.put((self._answered + self.pending, job))
        self.pending += 1

    def result(self) -> Any:
        """Wait for the oldest pending job."""
        answer = self._next()
        if isinstance(answer, _Failed):
            try:
                raise answer.error
            finally:
                del answer  # the error holds this frame, which must not hold the error
        return answer

    def drain(self) -> None:
        """Take back what nobody has begun, and wait for the rest."""
        self.pending -= emptied(self._jobs)
        while self.pending:
            self._next()

    def close(self) -> None:
        """End the threads, and wait for their end."""
        self._end()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _next(self) -> Any:
        while self._answered not in self._early:
            number, answer = self._done.get()
            self._early[number] = answer
            del answer
        self.pending -= 1
        self._answered += 1
        return self._early.pop(self._answered - 1)


_teams: weakref.WeakSet[ThreadPool] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _wait_for_all() -> None:
    # One that comes back from native code while the interpreter ends is unwound through C++, which aborts.
    for team in list(_teams):
        team.close()
    for thread in list(_threads):
        thread.join()


def failure(error: BaseException) -> Exception:
    """Return the error itself, or, of one that means something to the asking thread, another about it."""
    if isinstance(error, Exception):
        return error
    said = RuntimeError(f"{type(error).__name__} was raised where a batch is made: {error}")
    said.__cause__ = error
    return said


class _Failed(NamedTuple):
    error: Exception


def _serve_queue(work: Work, jobs: queue.SimpleQueue[Any], done: queue.SimpleQueue[tuple[int, Any]]) -> None:
    for number, job in iter(jobs.get, None):
        answer: Any
        try:
            answer = work(job)
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is asked for
            answer = _Failed(failure(error))
        done.put((number, answer))
        del answer, job


def emptied(jobs: queue.SimpleQueue[Any]) -> int:
    """Take out all that waits; return how many that were."""
    count = 0
    with contextlib.suppress(queue.Empty):
        while True:
            jobs.get_nowait()
            count += 1
    return count


def _told_to_end(jobs: queue.SimpleQueue[Any], threads: int) -> None:
    emptied(jobs)
    for _ in range(threads):
        jobs.put(None)


log = logging.getLogger(__name__)

# Seconds to wait for each try. A child needs milliseconds; one of a large process on a busy machine, seconds.
_PATIENCE = (3.0, 15.0, 60.0)
# Seconds in which who is told to end has done so.
_GRACE = 5.0
# Seconds between two looks at whether the other side still lives, where its socket does not tell.
_LOOK = 5.0
_HELLO = b"."


class ProcessPool:
    """``count`` forked processes that call ``work(job)``, each at the jobs that it has the turn for.

    They are forked: a process that is spawned imports torch anew, which takes seconds. They end with this
    process, however it ends, and mind no signal but SIGKILL. What ``work`` raises is raised here, where it
    cannot be pickled as a ``RuntimeError`` of the same words; and so is the death of a process.
    """

    def __init__(self, work: Work, count: int) -> None:
        self.pending = 0
        self._answered = 0
        self._members: list[_Member] = []
        # A finalizer waits for nobody: it may run in any thread, and Ctrl-C would be lost in it.
        self._end = weakref.finalize(self, _processes_told_to_end, self._members, os.getpid())
        _crews.add(self)
        try:
            for number in range(count):
                self._members.append(_started(work, number))
        except BaseException:
            self.close()
            raise

    def submit(self, job: Any) -> None:
        """Send the job to the process whose turn it is."""
        member = self._members[(self._answered + self.pending) % len(self._members)]
        try:
            member.line.send_bytes(pickle.dumps(job))
        except OSError as error:
            raise self._death_of(member) from error
        self.pending += 1

    def result(self) -> Any:
        """Receive the oldest pending job's answer."""
        answer = self._next()
        if isinstance(answer, _FailedProcess):
            try:
                raise answer.error from RuntimeError(answer.told)
            finally:
                del answer  # the error holds this frame, which must not hold the error
        return answer

    def drain(self) -> None:
        """Wait for all that was asked; the next job is the first process's."""
        while self.pending:
            self._next()
        self._answered = 0

    def close(self) -> None:
        """End the processes, and wait for their end."""
        if self._end() is None:  # it has been called, or this is a fork of the process whose they are
            return
        for member in self._members:
            member.process.join(_GRACE)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.line.close()

    def _next(self) -> Any:
        member = self._members[self._answered % len(self._members)]
        try:
            while not member.line.poll(_LOOK):
                if not member.process.is_alive() and not member.line.poll():
                    raise self._death_of(member)
            answer = pickle.loads(member.line.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._death_of(member) from error
        self.pending -= 1
        self._answered += 1
        return answer

    def _death_of(self, member: _Member) -> RuntimeError:
        member.process.join(_GRACE)
        status = member.process.exitcode
        if status == -signal.SIGKILL:
            fate = "was killed by SIGKILL, by the system most often for want of memory"
        elif status is not None and status < 0:
            fate = f"was killed by signal {-status} ({signal.strsignal(-status)})"
        elif status == 0:
            fate = "was ended, as close() does"
        else:
            fate = f"ended with status {status}; what it had to say stands above"
        who = f"worker process {self._members.index(member)} of {len(self._members)}"
        return RuntimeError(
            f"{who} {fate}. Try fewer workers, a smaller batch, or threads in this process (workers=0)."
        )


_crews: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


# Registered after multiprocessing's own hook, so called before it: that sends a signal which they ignore.
@atexit.register
def _end_all() -> None:
    for crew in list(_crews):
        crew.close()


class _Member(NamedTuple):
    process: ForkProcess
    line: Connection


def _started(work: Work, number: int) -> _Member:
    """Fork a process that has been heard of: see Note [Children that hang at birth]."""
    fate = ""
    for seconds in _PATIENCE:
        ours, theirs = Pipe()
        arguments = (work, number, ours, theirs, os.getpid())
        process = get_context("fork").Process(target=_serve_line, args=arguments, daemon=True)
        is_heard = False
        try:
            with _ctrl_c_waits():
                process.start()
            theirs.close()
            fate = f"was not heard of for {seconds:g} s"
            if ours.poll(seconds):
                fate = "died"
                with contextlib.suppress(EOFError):
                    is_heard = ours.recv_bytes() == _HELLO
        finally:
            theirs.close()
            if not is_heard:  # Ctrl-C while one waits is a reason too
                ours.close()
                if process.pid is not None:
                    process.kill()
                    process.join()
        if is_heard:
            return _Member(process, ours)
        log.warning("a worker process %s before it began: another is started", fate)
    raise RuntimeError(
        f"{len(_PATIENCE)} worker processes in turn did not begin to work; the last {fate}. They may "
        "hang where other threads are at work (CPython before 3.12.1), or die for want of memory. Use "
        "threads (workers=0), or a newer Python."
    )


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Handle Ctrl-C afterwards: Python drops what is raised in the hooks of a fork."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    heard: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if heard:
            handler(*heard[0])


def _serve_line(work: Work, number: int, ours: Connection, theirs: Connection, parent: int) -> None:
    """FetchResult jobs until nobody sends any more; runs in the child."""
    _leave_signals_to_the_parent()
    ours.close()
    torch.set_num_threads(1)  # the pool of the parent's threads did not come along
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(number)  # a user's function that draws numbers draws others in each process
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # A thread of its own takes the jobs, so that the parent never waits where it sends one while this
    # process waits to be rid of an answer.
    threading.Thread(target=_receive, args=(theirs, jobs, parent), daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody waits any more
        theirs.send_bytes(_HELLO)
        for job in iter(jobs.get, None):
            try:
                # Not send(): torch would have each tensor travel as a file descriptor.
                answer = pickle.dumps(work(job))
            except BaseException as error:  # noqa: BLE001 - raised again where the answer is asked for
                answer = _failed(error, number)
            theirs.send_bytes(answer)
            del answer, job


def _leave_signals_to_the_parent() -> None:
    """Mind nothing that reaches the whole group (Ctrl-C, a batch system's): the parent decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGINT}:
        if callable(signal.getsignal(number)) or number == signal.SIGTERM:
            # Not SIG_IGN, which a command that a user's function runs would inherit: none could terminate it.
            signal.signal(number, lambda *_: None)


class _FailedProcess(NamedTuple):
    error: Exception
    told: str


def _failed(error: BaseException, number: int) -> bytes:
    told = f"in worker process {number}:\n" + "".join(
        traceback.format_exception(type(error), error, error.__traceback__)
    )
    try:
        content = pickle.dumps(_FailedProcess(failure(error), told))
        pickle.loads(content)
    except Exception:  # noqa: BLE001 - of a local class, or one that is not made of its message
        content = pickle.dumps(_FailedProcess(RuntimeError(f"{type(error).__name__}: {error}"), told))
    return content


def _receive(line: Connection, jobs: queue.SimpleQueue[Any], parent: int) -> None:
    try:
        while os.getppid() == parent:
            if line.poll(_LOOK):
                jobs.put(pickle.loads(line.recv_bytes()))
    except (EOFError, OSError):
        pass  # the parent has ended, or wishes this to end
    finally:
        emptied(jobs)
        jobs.put(None)
        time.sleep(_GRACE)
        os._exit(1)  # the job at hand may wait for a network that does not answer


def _processes_told_to_end(members: Sequence[_Member], owner: int) -> bool | None:
    if os.getpid() != owner:
        return None
    for member in members:
        # Children that were forked later hold the line too: closing it would not tell.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(member.line.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    return True


# While one waits for the native threads, or is at the Python part of a batch, another keeps them busy.
_FEEDERS = 2


Taken = Callable[[Any], Request | FetchResult]


class Runner(Protocol):
    """Answers requests."""

    def run(self, requests: Iterable[Request], size: int) -> Iterator[FetchResult]:
        """FetchResult each request, in order; images take at most ``size`` bytes. Retires the iterator before."""

    def close(self) -> None:
        """End processes and threads, and wait for their end. Idempotent; asking again starts new ones."""


class SerialRunner:
    """Decodes in the thread that asks, one batch when it is asked for: slow, and easy to debug."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._slots: BatchBuffers | None = None

    def run(self, requests: Iterable[Request], size: int) -> Iterator[FetchResult]:
        """FetchResult each request when it is asked for."""
        slots = self._slots
        if slots is None or slots.nbytes < size:
            slots = self._slots = BatchBuffers(size, 0, shared=False)
        slots.release_acquired()
        for request in requests:
            slot = slots.acquire()
            yield _lent(slots, _answered(self._fetcher, slots, 1, (slot, request)))

    def close(self) -> None:
        """Give the memory back."""
        self._slots = None


class _PrefetchRunner(ABC):
    """Keeps a team busy with the requests to come, ``ahead`` of the one that is answered."""

    def __init__(self, fetcher: Any, ahead: int) -> None:
        self._fetcher = fetcher
        self._ahead = ahead
        self._slots: BatchBuffers | None = None
        self._team: WorkerPool | None = None
        self._owner = 0

    @abstractmethod
    def _started(self, size: int) -> tuple[BatchBuffers, WorkerPool]:
        """Make the memory and those who fill it."""

    def run(self, requests: Iterable[Request], size: int) -> Iterator[FetchResult]:
        """FetchResult each request; starts a team, or a new one where a batch outgrew the memory."""
        is_inherited = self._owner != os.getpid()  # by a fork: those who work belong to the parent
        if self._slots is not None and (self._slots.nbytes < size or is_inherited):
            self.close()
        self._owner = os.getpid()
        with _ended_if_interrupted(self):
            if self._slots is None or self._team is None:
                self._slots, self._team = self._started(size)
            slots, team = self._slots, self._team
            team.drain()
            slots.release_acquired()
            for request in requests:
                team.submit((slots.acquire(), request))
                if team.pending > self._ahead:
                    yield _lent(slots, team.result())
            while team.pending:
                yield _lent(slots, team.result())

    def close(self) -> None:
        """End the team."""
        team, self._team, self._slots = self._team, None, None
        if team is not None:
            team.close()


class ThreadRunner(_PrefetchRunner):
    """Decodes ``prefetch`` batches ahead in this process, on ``threads`` native threads."""

    def __init__(self, fetcher: Any, threads: int, prefetch: int) -> None:
        super().__init__(fetcher, max(prefetch, _FEEDERS))
        self._threads = threads

    def _started(self, size: int) -> tuple[BatchBuffers, WorkerPool]:
        slots = BatchBuffers(size, self._ahead, shared=False)
        return slots, ThreadPool(partial(_answered, self._fetcher, slots, self._threads), _FEEDERS)


class ProcessRunner(_PrefetchRunner):
    """Decodes ``prefetch`` batches ahead in each of ``workers`` processes, into memory shared with this one.

    The processes take turns at the requests, beginning with the first. ``taken``: called where a request is
    answered, makes the request itself of what was sent, or the answer at once.
    """

    def __init__(self, fetcher: Any, workers: int, prefetch: int, taken: Taken | None = None) -> None:
        super().__init__(fetcher, workers * max(1, prefetch))
        self._workers, self._taken = workers, taken

    def _started(self, size: int) -> tuple[BatchBuffers, WorkerPool]:
        slots = BatchBuffers(size, self._ahead, shared=True)
        return slots, ProcessPool(partial(_sent, self._fetcher, self._taken, slots), self._workers)


@contextlib.contextmanager
def _ended_if_interrupted(engine: Runner) -> Iterator[None]:
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
    answer: FetchResult


def _answered(fetcher: Any, slots: BatchBuffers, threads: int, job: tuple[int, Any]) -> _Filled:
    slot, request = job
    shape, dtype = fetcher.shape(request), fetcher.dtype
    answer = fetcher.fetch(request, slots.view(slot, shape, dtype), threads)
    batch: Any = answer.batch
    if batch is not None:
        answer = answer._replace(batch=batch._replace(image=None))
    return _Filled(slot, shape, dtype, answer)


def _sent(fetcher: Any, taken: Taken | None, slots: BatchBuffers, job: tuple[int, Any]) -> _Filled:
    if taken is not None:
        slot, request = job[0], taken(job[1])
        if isinstance(request, FetchResult):
            return _Filled(slot, (), fetcher.dtype, request)
        job = slot, request
    filled = _answered(fetcher, slots, 1, job)
    batch: Any = filled.answer.batch
    if batch is None:
        return filled
    # A tensor would travel in shared memory of its own, under a file descriptor of its own.
    return filled._replace(answer=filled.answer._replace(batch=batch._replace(label=batch.label.numpy())))


def _lent(slots: BatchBuffers, filled: _Filled) -> FetchResult:
    answer = filled.answer
    if answer.batch is None:
        slots.release(filled.slot)
        return answer
    image = slots.lend(filled.slot, filled.shape, filled.dtype)
    label = torch.as_tensor(answer.batch.label)
    return answer._replace(batch=answer.batch._replace(image=image, label=label))
