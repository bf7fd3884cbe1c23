"""Progress of a long task: a bar on a terminal, otherwise a log line now and then, as while one waits."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

log = logging.getLogger(__name__)

_BAR_AFTER, _LOG_EVERY = 1.0, 30.0  # seconds; a shorter task needs no bar
SAY_EVERY = 15.0
"""Seconds between messages of one that waits."""


class Update(Protocol):
    """Function that reports progress."""

    def __call__(self, done: int, note: str = "", total: int | None = None) -> None:
        """Show how far the work is.

        Args:
            done: Number of items that are done.
            note: Remark behind the numbers, for example a rate.
            total: Number of all items, if it has changed.
        """


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Update]:
    """Show on standard error how many of ``what`` are done; only on the first rank of each node."""
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    is_terminal = sys.stderr.isatty()
    started = time.monotonic()
    logged = started
    with contextlib.ExitStack() as stack:
        bar: Any = None

        def update(done: int, note: str = "", total: int | None = total) -> None:
            nonlocal bar, logged
            now = time.monotonic()
            if not is_first:
                return
            if is_terminal and bar is None and now - started >= _BAR_AFTER:
                bar = stack.enter_context(_bar(what))
            if bar is not None:
                bar.update(0, completed=done, total=total, note=note)
            if not is_terminal and now - logged >= _LOG_EVERY:
                logged = now
                log.info("%s: %d of %s%s", what, done, total or "unknown", f", {note}" * bool(note))

        yield update


def _bar(what: str) -> Any:
    # Imported here because short tasks need no bar.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (name, MofNCompleteColumn(), BarColumn(), note, TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    bar.add_task(what, total=None, note="")
    return bar


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Log now and then that the block still waits for a server, or for other processes."""
    done, started = threading.Event(), time.monotonic()

    def say() -> None:
        while not done.wait(SAY_EVERY):
            log.warning("waiting for %s, since %.0f s", what, time.monotonic() - started)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
