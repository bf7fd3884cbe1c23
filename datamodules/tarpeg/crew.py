"""Forked processes that answer jobs over sockets.

Note [Children that hang at birth]: a fork copies locks as they are. Where another thread is at the moment
attaching itself to the interpreter, which gloo's and NCCL's threads do when they let go of a tensor, CPython
before 3.12.1 leaves the child waiting for ever in ``PyOS_AfterFork_Child`` (its issue 112275; seen
now and then with two ranks on two busy cores). Its parent then waits for ever for the first batch. So a child
says hello; one that is not heard of in time is killed, and another is forked.
"""

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
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

from .teams import Work, emptied, failure

log = logging.getLogger(__name__)

# Seconds to wait for each try. A child needs milliseconds; one of a large process on a busy machine, seconds.
_PATIENCE = (3.0, 15.0, 60.0)
# Seconds in which who is told to end has done so.
_GRACE = 5.0
# Seconds between two looks at whether the other side still lives, where its socket does not tell.
_LOOK = 5.0
_HELLO = b"."


class Crew:
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
        self._end = weakref.finalize(self, _told_to_end, self._members, os.getpid())
        _crews.add(self)
        try:
            for number in range(count):
                self._members.append(_started(work, number))
        except BaseException:
            self.close()
            raise

    def ask(self, job: Any) -> None:
        """Send the job to the process whose turn it is."""
        member = self._members[(self._answered + self.pending) % len(self._members)]
        try:
            member.line.send_bytes(pickle.dumps(job))
        except OSError as error:
            raise self._death_of(member) from error
        self.pending += 1

    def answer(self) -> Any:
        """Receive the oldest pending job's answer."""
        answer = self._next()
        if isinstance(answer, _Failed):
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


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


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
    """Answer jobs until nobody sends any more; runs in the child."""
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


class _Failed(NamedTuple):
    error: Exception
    told: str


def _failed(error: BaseException, number: int) -> bytes:
    told = f"in worker process {number}:\n" + "".join(
        traceback.format_exception(type(error), error, error.__traceback__)
    )
    try:
        content = pickle.dumps(_Failed(failure(error), told))
        pickle.loads(content)
    except Exception:  # noqa: BLE001 - of a local class, or one that is not made of its message
        content = pickle.dumps(_Failed(RuntimeError(f"{type(error).__name__}: {error}"), told))
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


def _told_to_end(members: Sequence[_Member], owner: int) -> bool | None:
    if os.getpid() != owner:
        return None
    for member in members:
        # Children that were forked later hold the line too: closing it would not tell.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(member.line.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    return True
