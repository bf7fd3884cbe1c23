"""Forked processes that answer jobs over sockets.

Note [Children that hang at birth]: a fork copies locks as they are. Where another thread is at the moment
attaching itself to the interpreter, which gloo's and NCCL's threads do when they let go of a tensor, CPython
before 3.12.1 leaves the child waiting for ever in ``PyOS_AfterFork_Child`` (its issue 112275; seen
now and then with two ranks on two busy cores). Its parent then waits for ever for the first batch. So a child
says hello; one that is not heard of in time is killed, and another is forked.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper

from .teams import GRACE, Work, emptied

log = logging.getLogger(__name__)

# Seconds to wait for each try. A child needs milliseconds; one of a large process on a busy machine, seconds.
_PATIENCE = (3.0, 15.0, 60.0)
# Seconds between two looks at whether the other side still lives, where its socket does not tell.
_LOOK = 5.0
_HELLO = b"."


class Crew:
    """``count`` forked processes that call ``work(job)``, each at the jobs that it has the turn for.

    They are forked: a process that is spawned imports torch anew, which takes seconds. They end with this
    process, however it ends. What ``work`` raises is raised here, of the same type where that can be made of
    a message; a process that dies is a ``RuntimeError``.
    """

    def __init__(self, work: Work, count: int) -> None:
        self.pending = 0
        self._answered = 0
        self._members: list[_Member] = []
        self._end = weakref.finalize(self, _end_members, self._members, os.getpid())
        for number in range(count):
            self._members.append(_started(work, number))

    def ask(self, job: Any) -> None:
        """Send the job to the process whose turn it is."""
        member = self._members[(self._answered + self.pending) % len(self._members)]
        try:
            member.line.send(job)
        except OSError as error:
            raise self._death_of(member) from error
        self.pending += 1

    def answer(self) -> Any:
        """Receive the oldest pending job's answer."""
        answer = self._next()
        if isinstance(answer, ExceptionWrapper):
            answer.reraise()  # type: ignore[no-untyped-call]
        return answer

    def drain(self) -> None:
        """Wait for all that was asked; the next job is the first process's."""
        while self.pending:
            self._next()
        self._answered = 0

    def close(self) -> None:
        """End the processes, and wait for their end."""
        self._end()

    def _next(self) -> Any:
        member = self._members[self._answered % len(self._members)]
        try:
            while not member.line.poll(_LOOK):
                if not member.process.is_alive() and not member.line.poll():
                    raise self._death_of(member)
            answer = member.line.recv()
        except (EOFError, OSError) as error:
            raise self._death_of(member) from error
        self.pending -= 1
        self._answered += 1
        return answer

    def _death_of(self, member: _Member) -> RuntimeError:
        member.process.join(GRACE)
        status = member.process.exitcode
        if status is not None and status < 0:
            fate = (
                f"was killed by {signal.Signals(-status).name}, by the system most often for want of memory"
            )
        else:
            fate = f"ended with status {status}; what it had to say stands above"
        who = f"worker process {self._members.index(member)} of {len(self._members)}"
        return RuntimeError(
            f"{who} {fate}. Try fewer workers, a smaller batch, or threads in this process (workers=0)."
        )


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
                    is_heard = ours.recv() == _HELLO
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
    # Ctrl-C reaches the whole group: the parent decides. Its handler of SIGTERM is not meant for a child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ours.close()
    torch.set_num_threads(1)  # the pool of the parent's threads did not come along
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(number)  # a user's function that draws numbers draws others in each process
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # A thread of its own takes the jobs, so that the parent never waits where it sends one while this
    # process waits to be rid of an answer.
    threading.Thread(target=_receive, args=(theirs, jobs, parent), daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody waits any more
        theirs.send(_HELLO)
        for job in iter(jobs.get, None):
            answer: Any
            try:
                answer = work(job)
            except BaseException:  # noqa: BLE001 - raised again where the answer is asked for
                where = f"in worker process {number}"
                answer = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
            theirs.send(answer)
            del answer, job


def _receive(line: Connection, jobs: queue.SimpleQueue[Any], parent: int) -> None:
    with contextlib.suppress(EOFError, OSError):
        while os.getppid() == parent:
            if line.poll(_LOOK):
                jobs.put(line.recv())
    emptied(jobs)
    jobs.put(None)
    time.sleep(GRACE)
    os._exit(1)  # the job at hand may wait for a network that does not answer


def _end_members(members: Sequence[_Member], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the process whose they are
        return
    for member in members:
        # Children that were forked later hold the line too: closing it would not tell.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(member.line.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    for member in members:
        member.process.join(GRACE)
        if member.process.is_alive():
            member.process.kill()
            member.process.join()
        member.line.close()
