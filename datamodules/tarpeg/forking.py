"""Worker processes that have been heard of: a forked child may hang before its first line of Python.

Note [Children that hang at birth]: a fork copies locks as they are. Where another thread is at the moment
attaching itself to the interpreter, which gloo's and NCCL's threads do when they let go of a tensor, CPython
before 3.12.1 leaves the child waiting for ever in ``PyOS_AfterFork_Child`` (its issue 112275; seen
now and then with two ranks on two busy cores). Its parent then waits for ever for the first batch, and the
child outlives the run, for it never gets to ask for its parent's end. So a child says hello, and begins when
it is answered; one that is not heard of in time is killed, and another is forked.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from multiprocessing import context, popen_fork
from multiprocessing.connection import wait
from typing import Any

log = logging.getLogger(__name__)

# Seconds to wait for each try. A child needs milliseconds; one of a large process on a busy machine, seconds.
_PATIENCE = (3.0, 15.0, 60.0)
_HELLO = b"."


class _Popen(popen_fork.Popen):
    def _launch(self, process_obj: Any) -> None:
        fate = ""
        for seconds in _PATIENCE:
            ours, theirs = process_obj.hello = socket.socketpair()
            is_heard = False
            try:
                super()._launch(process_obj)  # type: ignore[misc]
                theirs.close()
                fate = f"was not heard of for {seconds:g} s"
                if wait([ours], seconds):
                    fate = "died"
                    is_heard = ours.recv(1) == _HELLO
                if is_heard:
                    ours.send(_HELLO)
            finally:
                ours.close()
                theirs.close()
                if not is_heard:  # Ctrl-C while one waits is a reason too
                    self._end()
            if is_heard:
                return
            log.warning("a worker process %s before it began: another is started", fate)
        raise RuntimeError(
            f"{len(_PATIENCE)} worker processes in turn did not begin to work; the last {fate}. They may "
            "hang where other threads are at work (CPython before 3.12.1), or die for want of memory. Use "
            "threads (workers=0), or a newer Python."
        )

    def _end(self) -> None:
        if getattr(self, "pid", None) is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            del self.pid  # it may be another's from now on
        if self.finalizer is not None:
            self.finalizer()


class _Process(context.ForkProcess):
    hello: tuple[socket.socket, socket.socket]

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:  # noqa: N802
        return _Popen(process_obj)

    def run(self) -> None:
        parents, own = self.hello
        parents.close()
        own.send(_HELLO)
        # Without the answer nobody waits for this process any more; killed while it held the lock of its
        # queue, it would keep the one after it from ever getting a request.
        if own.recv(1) != _HELLO:
            os._exit(1)
        own.close()
        super().run()


class HeardFork(context.ForkContext):
    """The context of forked processes, for ``DataLoader(multiprocessing_context=...)``."""

    Process = _Process
