"""Pools of worker threads or forked worker processes, which answer jobs in order.

Note [Ctrl-C and locks]: Python handles Ctrl-C in the main thread between any two instructions, hence also
between acquiring a lock (of a Condition, a Future, a multiprocessing.Queue) and entering the ``with`` block
that releases it. The lock then stays taken, and everything that needs it later, even to shut down, waits for
ever. (Seen within a thousand interrupted loops over small batches, with torch's DataLoader too;
ThreadPoolExecutor failed with an error of its lock.) The thread that submits jobs therefore uses only
``SimpleQueue``, which is written in C, and sockets, which need no lock; a pool that was interrupted is closed
and never used again.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import logging
import mmap
import multiprocessing.util  # its exit hook has to be registered before _close_all
import os
import pickle
import queue
import random
import select
import signal
import socket
import struct
import sysconfig
import threading
import time
import traceback
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import current_process, get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

from ..forks import FORKED, check_children, end_child, renew
from ..shards import marks
from ..shards.marks import MARK_BYTES, Explain, mark, no_more

log = logging.getLogger(__name__)

Work = Callable[[Any], Any]
Dumps = Callable[[Any, Any], bytes]

# Seconds that each attempt to start a process may take. A child needs milliseconds; one of a large process
# on a busy machine, seconds.
_START_TIMEOUTS = (3.0, 15.0, 60.0)
# Grace period before a worker process is killed, in seconds. Ctrl-C ends a program in twice that time.
_GRACE = 1.5
# Seconds in which the system reports how a process died whose socket is closed.
_DEATH_TIMEOUT = 5.0
# Code that is not the user's.
_NOT_OF_USERS = (str(Path(__file__).parents[1]), sysconfig.get_paths()["stdlib"], "<frozen")
_READY = b"ready"
_HEAD = struct.Struct("<QQ")  # of a message: number and length
_CHUNK = 1 << 16  # bytes that are received at once: a whole message, nearly always


class WorkerPool(ABC):
    """Workers that run ``work(job)``; results come in the order of submission. One thread submits.

    ``kind``: of the workers, in messages.
    """

    kind = ""

    def __init__(self, count: int) -> None:
        self.pending = 0  # jobs that were submitted and whose results were not returned
        self._returned = 0
        # What each worker works on. Anonymous, and shared with processes that are forked from now on.
        self._marks = memoryview(mmap.mmap(-1, count * MARK_BYTES))
        self._count = count
        _close_all_with(os.getpid())

    @abstractmethod
    def submit(self, job: Any) -> None:
        """Add a job."""

    @property
    @abstractmethod
    def ready(self) -> int:
        """Number of jobs that are done and whose results were not returned."""

    def result(self, explain: Explain = no_more) -> Any:
        """Wait for the oldest pending job; return its result or raise its error.

        ``explain``: called after a minute of waiting with what the worker has marked; returns the text of
        the warning, behind the worker's name.
        """
        result = self._next(explain)
        if isinstance(result, _Failure):
            try:
                if result.trace:
                    log.info("%s", result.trace)
                if result.place:
                    raise result.error from RuntimeError(result.place)
                raise result.error
            finally:
                del result  # the error refers to this frame, which must not refer to the error
        return result

    def drain(self) -> None:
        """Discard all pending jobs; when this returns, no worker runs one."""
        while self.pending:
            self._next(no_more)

    @abstractmethod
    def close(self, *, is_interrupted: bool = False) -> None:
        """End all workers and wait until they have ended. Idempotent.

        ``is_interrupted``: by Ctrl-C, which must end the program also if a worker hangs: threads that do not
        end soon are left behind. The workers of a pool that is garbage-collected end too, but nothing waits
        for them.
        """

    @abstractmethod
    def _next(self, explain: Explain) -> Any:
        """Wait for the oldest pending job; return its result or its _Failure."""

    def _mark_of(self, number: int) -> memoryview:
        return self._marks[number * MARK_BYTES : (number + 1) * MARK_BYTES]

    def _warn_of_slow(self, number: int, explain: Explain) -> None:
        marks.warn_of_slow(f"{self.kind} {number} of {self._count}", explain, self._mark_of(number))


class _Failure(NamedTuple):
    """An error of a worker; from another process with its traceback, and its place in the user's code."""

    error: Exception
    trace: str = ""
    place: str = ""


def _as_exception(error: BaseException) -> Exception:
    """Wrap SystemExit, KeyboardInterrupt and the like, which would end the thread that takes the result."""
    if isinstance(error, Exception):
        return error
    wrapper = RuntimeError(f"{type(error).__name__} was raised while a batch was fetched: {error}")
    wrapper.__cause__ = error
    return wrapper


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_exiting = threading.Event()


# Called before multiprocessing's own exit hook, which would wait for processes after a signal that they
# ignore. A thread that returns from native code while the interpreter ends is unwound through C++: an abort.
@atexit.register
def _close_all() -> None:
    _exiting.set()
    for pool in list(_pools):
        pool.close()
    for thread in list(_threads):
        thread.join()


@functools.cache
def _close_all_with(process: int) -> None:
    """Have multiprocessing call ``_close_all`` when this process ends: its children run no ``atexit`` hooks.

    The priority is higher than those of its pools and managers (15 and 0), which ``work`` may use.
    """
    multiprocessing.util.Finalize(None, _close_all, exitpriority=100)


class ThreadPool(WorkerPool):
    """``count`` threads of this process; each takes the next job when it is free."""

    kind = "thread"

    def __init__(self, work: Work, count: int) -> None:
        super().__init__(count)
        self._begun: list[int | None] = [None] * count  # the number of each thread's job
        self._jobs: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._early: dict[int, Any] = {}
        arguments = (work, self._jobs, self._results, self._begun)
        self._threads = [
            threading.Thread(
                target=_run_thread,
                args=(*arguments, k, self._mark_of(k)),
                name=f"tarpeg-worker-{k}",
                daemon=True,
            )
            for k in range(count)
        ]
        # A finalizer must not wait: it may run in any thread, and Ctrl-C would be lost in it.
        self._stop = weakref.finalize(self, _stop_threads, self._jobs, count)
        _pools.add(self)
        for thread in self._threads:
            thread.start()
            _threads.add(thread)

    def submit(self, job: Any) -> None:
        """Queue the job for the next free thread."""
        self._jobs.put((self._returned + self.pending, job))
        self.pending += 1

    @property
    def ready(self) -> int:
        """Number of jobs that are done and whose results were not returned."""
        return self._results.qsize() + len(self._early)

    def drain(self) -> None:
        """Remove the jobs that no thread has begun, and wait for the others."""
        self.pending -= _empty(self._jobs)
        super().drain()

    def close(self, *, is_interrupted: bool = False) -> None:
        """End the threads and wait until they have ended."""
        self._stop()
        end = time.monotonic() + _GRACE
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()) if is_interrupted else None)
            if thread.is_alive():
                _threads.discard(thread)
        if is_interrupted:
            self._threads.clear()

    def _next(self, explain: Explain) -> Any:
        seconds: float | None = marks.SLOW
        while self._returned not in self._early:
            try:
                number, result = self._results.get(timeout=seconds)
            except queue.Empty:
                seconds = None
                with contextlib.suppress(ValueError):  # no thread is at it
                    self._warn_of_slow(self._begun.index(self._returned), explain)
                continue
            self._early[number] = result
            del result
        self.pending -= 1
        self._returned += 1
        return self._early.pop(self._returned - 1)


def _run_thread(
    work: Work,
    jobs: queue.SimpleQueue[Any],
    results: queue.SimpleQueue[Any],
    begun: list[int | None],
    place: int,
    memory: memoryview,
) -> None:
    mark.memory = memory
    for number, job in iter(jobs.get, None):
        begun[place] = number
        mark.set()
        result: Any
        try:
            result = work(job)
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            result = _Failure(_as_exception(error))
        results.put((number, result))
        del result, job


def _empty(jobs: queue.SimpleQueue[Any]) -> int:
    """Remove everything from the queue; return how many items that were."""
    count = 0
    with contextlib.suppress(queue.Empty):
        while True:
            jobs.get_nowait()
            count += 1
    return count


def _stop_threads(jobs: queue.SimpleQueue[Any], count: int) -> None:
    _empty(jobs)
    for _ in range(count):
        jobs.put(None)


class ProcessPool(WorkerPool):
    """``count`` forked processes; job k after a ``drain()`` runs in process k modulo ``count``.

    Note [Numbered jobs]: a job has a number, which its result brings back. Code of a user that forks (a step
    of ``transform=`` with ``os.fork()``, say) may return in both processes: there would be two results for
    one job, and all later ones would be taken for those of the job before. The child is ended where a worker
    next looks (``forks.end_child``), before it writes to the memory of batches, and the worker reports it;
    any other number than the expected one is an error too.

    They are forked because a spawned process imports torch again, which takes seconds. They end with this
    process, however it ends, and ignore every signal that can be ignored. An error of ``work`` is raised
    by ``result()``, as a ``RuntimeError`` of the same text if it cannot be pickled; the death of a process is
    a ``RuntimeError``. ``dumps(result, job)`` pickles what ``work`` returned.
    """

    kind = "worker process"

    def __init__(self, work: Work, count: int, dumps: Dumps | None = None) -> None:
        if current_process().daemon:
            raise RuntimeError(
                f"workers={count}: this process is daemonic, as those of multiprocessing.Pool are, and may "
                "start no others. Give workers=0, which uses threads, or make the loader in a process of "
                "concurrent.futures.ProcessPoolExecutor"
            )
        super().__init__(count)
        work = functools.partial(_pickled, work, dumps or _dumps)
        # Jobs that each process has done, shared as the marks are.
        self._done = memoryview(mmap.mmap(-1, count * 8)).cast("q")
        self._first = 0  # number of the first job after a drain()
        self._workers: list[_Worker] = []
        self._owner = os.getpid()
        # A finalizer must not wait: it may run in any thread, and Ctrl-C would be lost in it.
        self._dropped = weakref.finalize(self, _drop_processes, self._workers, self._owner)
        _pools.add(self)
        try:
            for number in range(count):
                self._workers.append(_start_process(work, number, self._mark_of(number), self._done))
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            raise OSError(
                error.errno,
                f"worker process {number} of {count} cannot start: {error.strerror}. Use fewer workers or "
                "threads (workers=0), or raise the limits of open files and processes (ulimit -n and -u).",
            ) from error

    def submit(self, job: Any) -> None:
        """Send the job to the next process in turn."""
        number = self._returned + self.pending
        worker = self._workers[(number - self._first) % self._count]
        try:
            worker.channel.send(number, pickle.dumps(job))
        except OSError as error:
            raise self._death_of(worker) from error
        self.pending += 1

    @property
    def ready(self) -> int:
        """Number of jobs that are done and whose results were not returned."""
        return max(0, sum(self._done) - self._returned)

    def drain(self) -> None:
        """Wait for all pending jobs; the next job goes to the first process."""
        super().drain()
        self._first = self._returned

    def close(self, *, is_interrupted: bool = False) -> None:
        """End the processes and wait until they have ended; those that hang are killed."""
        if self._dropped.detach() and _stop_processes(self._workers, self._owner):
            _reap(self._workers)
            for worker in self._workers:
                # An iterator that was left early, or a traceback, may hold the pool: its descriptors go now.
                worker.process.close()

    def _next(self, explain: Explain) -> Any:
        expected = self._returned
        place = (expected - self._first) % self._count
        worker = self._workers[place]
        slow = functools.partial(self._warn_of_slow, place, explain)
        try:
            number, content = worker.channel.receive(worker.process.is_alive, slow)
        except (EOFError, OSError) as error:
            raise self._death_of(worker) from error
        if number != expected:
            raise RuntimeError(
                f"worker process {place} of {self._count} sent the result of job {number} instead of "
                f"{expected}: another process uses its socket. {FORKED}"
            )
        result = pickle.loads(content)
        self.pending -= 1
        self._returned += 1
        return result

    def _death_of(self, worker: _Worker) -> RuntimeError:
        if _exiting.is_set() and threading.current_thread().daemon:
            raise SystemExit  # ends this thread without a message: the interpreter ends it anyway
        status: int | None = 0
        with contextlib.suppress(ValueError):  # close() has released it
            worker.process.join(_DEATH_TIMEOUT)
            status = worker.process.exitcode
        if status == -signal.SIGKILL:
            cause = "was killed by SIGKILL, usually because memory ran out"
        elif status == -signal.SIGBUS:
            cause = "was killed by SIGBUS: a file that it had mapped was cut, or its disk failed"
        elif status is not None and status < 0:
            cause = f"was killed by signal {-status} ({signal.strsignal(-status)})"
        elif status == 0:
            cause = "was ended by close()"
        else:
            cause = f"ended with status {status}; its own messages are above"
        name = f"worker process {self._workers.index(worker)} of {len(self._workers)}"
        return RuntimeError(
            f"{name} {cause}. Use fewer workers, a smaller batch, or threads of this process (workers=0)."
        )


def _pickled(work: Work, dumps: Dumps, job: Any) -> bytes:
    return dumps(work(job), job)


def _dumps(result: Any, job: Any) -> bytes:
    # Plain pickle: torch's pickler would send each tensor as a file descriptor.
    return pickle.dumps(result)


class _Channel:
    """One end of a socket pair. A message is its number and its length in 8 bytes each, and its bytes."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(None)  # whatever socket.setdefaulttimeout() was called with
        self._end = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._held = bytearray()  # received, and not yet returned

    def send(self, number: int, message: bytes) -> None:
        self._end.sendall(_HEAD.pack(number, len(message)) + message)

    def receive(
        self, is_alive: Callable[[], bool], slow: Callable[[], None] | None = None
    ) -> tuple[int, bytearray]:
        """Wait for a message; return its number and bytes. ``slow`` is called once, after a minute.

        EOFError or OSError if the other end is closed, or its process not alive.
        """
        held, end, waited = self._held, _HEAD.size, 0.0
        while len(held) < end or len(held) < (end := _HEAD.size + _HEAD.unpack_from(held)[1]):
            # The socket alone does not show the end of the process while another one holds a copy of it.
            if not self._poll.poll(marks.CHECK_INTERVAL * 1000):
                if not is_alive() and not self._poll.poll(0):
                    raise EOFError
                waited += marks.CHECK_INTERVAL
                if slow is not None and waited >= marks.SLOW:
                    slow()
                    slow = None
                continue
            content = self._end.recv(_CHUNK)
            if not content:
                raise EOFError
            held += content
        self._held = held[end:]
        return _HEAD.unpack_from(held)[0], held[_HEAD.size : end]

    def is_readable(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for a message or the end."""
        return bool(self._poll.poll(seconds * 1000))

    def close(self, *, shut_down: bool = False) -> None:
        """Close this copy of the end; ``shut_down``: the copies in other processes too."""
        with contextlib.suppress(OSError):
            if shut_down:
                self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


class _Worker(NamedTuple):
    process: ForkProcess
    channel: _Channel


def _start_process(work: Work, number: int, memory: memoryview, done: memoryview) -> _Worker:
    """Fork a process and wait for its first message.

    Note [Children that hang at birth]: a fork copies locks as they are. If another thread is just attaching
    itself to the interpreter, as the threads of gloo and NCCL do when they release a tensor, CPython before
    3.12.1 lets the child wait for ever in ``PyOS_AfterFork_Child`` (its issue 112275; seen now and then with
    two ranks on two busy cores), and the parent for its first batch. A child that sends nothing in time is
    therefore killed and replaced.
    """
    fate = ""
    for seconds in _START_TIMEOUTS:
        ours, theirs = (_Channel(end) for end in socket.socketpair())
        arguments = (work, number, memory, done, ours, theirs, os.getpid())
        process = get_context("fork").Process(target=_run_process, args=arguments, daemon=True)
        is_ready = False
        try:
            with _postpone_ctrl_c():
                process.start()
            theirs.close()
            fate = f"did not answer within {seconds:g} s"
            if ours.is_readable(seconds):
                fate = "died"
                with contextlib.suppress(EOFError, ConnectionResetError):
                    is_ready = ours.receive(process.is_alive)[1] == _READY
        finally:
            theirs.close()
            if not is_ready:  # after Ctrl-C too
                ours.close()
                if process.pid is not None:
                    process.kill()
                    process.join()
        if is_ready:
            return _Worker(process, ours)
        log.warning("a worker process %s at its start: another is started", fate)
    raise RuntimeError(
        f"{len(_START_TIMEOUTS)} worker processes in a row did not start; the last {fate}. They may hang if "
        "other threads run (CPython before 3.12.1), or die if memory runs out. Use threads (workers=0), or a "
        "newer Python."
    )


@contextlib.contextmanager
def _postpone_ctrl_c() -> Iterator[None]:
    """Handle Ctrl-C at the end of the block: Python discards what is raised in the hooks of a fork."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])


_process: int | None = None  # of this worker


def end_if_forked() -> None:
    """End this process if it was forked by a function of a user's that ran in a worker process."""
    if _process is not None:
        end_child(_process)


def _run_process(
    work: Work,
    number: int,
    memory: memoryview,
    done: memoryview,
    ours: _Channel,
    theirs: _Channel,
    parent: int,
) -> None:
    """Run jobs until the parent closes the socket; called in the child."""
    global _process
    caught = _ignore_signals()
    # What a user's function forks would ignore SIGTERM too, and outlive the program.
    os.register_at_fork(after_in_child=functools.partial(_restore_signals, caught))
    _process = os.getpid()
    renew()
    mark.memory = memory
    ours.close()
    torch.set_num_threads(1)  # the threads of the parent's pool do not exist in a fork
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(number)  # so that a user's function draws different numbers in each process
    jobs: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
    # A thread receives the jobs, so that the parent can always send one while this process sends a result.
    threading.Thread(target=_receive_jobs, args=(theirs, jobs, parent), daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent has closed the socket
        theirs.send(0, _READY)
        for job_number, job in iter(jobs.get, None):
            mark.set()
            try:
                result = work(job)
                end_if_forked()
                check_children()
            except BaseException as error:  # noqa: BLE001 - raised again by result()
                result = _pickle_failure(error, number)
            end_if_forked()
            done[number] += 1
            theirs.send(job_number, result)
            del result, job


def _ignore_signals() -> list[signal.Signals]:
    """Ignore signals sent to the process group (Ctrl-C, a batch system's); the parent handles them.

    Returns those that are handled by a function that does nothing.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    caught = []
    for number in signal.valid_signals() - {signal.SIGINT}:
        if callable(signal.getsignal(number)) or number == signal.SIGTERM:
            # Commands that a user's function runs would inherit SIG_IGN, and could not be terminated.
            signal.signal(number, lambda *_: None)
            caught.append(signal.Signals(number))
    return caught


def _restore_signals(caught: Sequence[signal.Signals]) -> None:
    for number in caught:
        signal.signal(number, signal.SIG_DFL)


def _pickle_failure(error: BaseException, number: int) -> bytes:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    trace, place = f"in worker process {number}:\n" + "".join(lines), _place_of(error)
    if place:
        place = f"in worker process {number}: {place}. Its traceback is in the log, {__name__!r}, level INFO"
    try:
        content = pickle.dumps(_Failure(_as_exception(error), trace, place))
        pickle.loads(content)
    except Exception:  # noqa: BLE001 - of a local class, or of one whose arguments are not its message
        content = pickle.dumps(_Failure(RuntimeError(f"{type(error).__name__}: {error}"), trace, place))
    return content


def _place_of(error: BaseException) -> str:
    """Return the last line of the user's code in a traceback, of the first cause; "" if there is none."""
    place, seen = "", set[int]()
    part: BaseException | None = error
    while part is not None and id(part) not in seen:  # `raise error from error` is a cycle
        seen.add(id(part))
        for frame in traceback.extract_tb(part.__traceback__):
            if not frame.filename.startswith(_NOT_OF_USERS) and "site-packages" not in frame.filename:
                place = f"{frame.filename}, line {frame.lineno}, in {frame.name}"
        part = part.__cause__ or part.__context__
    return place


def _receive_jobs(channel: _Channel, jobs: queue.SimpleQueue[Any], parent: int) -> None:
    try:
        while True:
            number, content = channel.receive(lambda: os.getppid() == parent)
            jobs.put((number, pickle.loads(content)))
    except (EOFError, OSError):
        pass  # the parent has ended, or has closed the pool
    finally:
        _empty(jobs)
        jobs.put(None)
        time.sleep(_GRACE)
        os._exit(1)  # the current job may wait for a network that does not answer


def _stop_processes(workers: Sequence[_Worker], owner: int) -> bool:
    """Close the sockets; whether this process owns the workers: if it is a fork, they are the parent's."""
    is_owner = os.getpid() == owner
    for worker in workers:
        # Workers that were forked later hold copies of the end, so closing it alone has no effect.
        worker.channel.close(shut_down=is_owner)
    return is_owner


def _reap(workers: Sequence[_Worker]) -> None:
    """Wait until processes that were stopped have ended, for all of them together."""
    end = time.monotonic() + _GRACE
    for process, _ in workers:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _drop_processes(workers: Sequence[_Worker], owner: int) -> None:
    """Stop processes without waiting: a thread reaps them, which frees their ids and descriptors."""
    if _stop_processes(workers, owner):
        with contextlib.suppress(RuntimeError):  # the interpreter is ending, or no thread can be started
            _thread.start_new_thread(_reap, (workers,))  # threading would wait for the start
