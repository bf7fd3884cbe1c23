"""Worker processes that have been heard of: a forked child may hang before its first line of Python.

Note [Children that hang at birth]: a fork copies locks as they are. Where another thread is at the moment
attaching itself to the interpreter, which gloo's and NCCL's threads do when they let go of a tensor, CPython
before 3.12.1 leaves the child waiting for ever in ``PyOS_AfterFork_Child`` (its issue 112275; about one run
in a hundred with two ranks on two busy cores). Its parent then waits for ever for the first batch, and the
child outlives the run, for it never gets to ask for its parent's end. So a child says hello; one that is not
heard of in time is killed, and another is forked.
"""

from __future__ import annotations

import logging
import os
import select
import signal
from multiprocessing import context, popen_fork
from typing import Any

log = logging.getLogger(__name__)

# Seconds to wait for each try. A child needs milliseconds; one of a large process on a busy machine, seconds.
_PATIENCE = (3.0, 15.0, 60.0)


class _Popen(popen_fork.Popen):
    def _launch(self, process_obj: Any) -> None:
        for seconds in _PATIENCE:
            process_obj.hello = hears, says = os.pipe()
            is_heard = False
            try:
                super()._launch(process_obj)  # type: ignore[misc]
                is_heard = bool(select.select([hears], [], [], seconds)[0])
            finally:
                os.close(hears)
                os.close(says)
                if not is_heard:  # Ctrl-C while one waits is a reason too
                    self._end()
            if is_heard:
                return
            log.warning("a worker process hung before it began, for %g s: another is started", seconds)
        raise RuntimeError(
            f"{len(_PATIENCE)} worker processes in turn hung before they began, as they may where other "
            "threads are at work (CPython before 3.12.1). Use threads (workers=0), or a newer Python."
        )

    def _end(self) -> None:
        if getattr(self, "pid", None) is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            del self.pid  # it may be another's from now on
            self.finalizer()  # type: ignore[misc]


class _Process(context.ForkProcess):
    hello = (-1, -1)

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:  # noqa: N802
        return _Popen(process_obj)

    def run(self) -> None:
        hears, says = self.hello
        os.close(hears)
        os.write(says, b".")
        os.close(says)
        super().run()


class HeardFork(context.ForkContext):
    """The context of forked processes, for ``DataLoader(multiprocessing_context=...)``."""

    Process = _Process
