"""How far something long is: a bar on a terminal, elsewhere a line in the log now and then."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

log = logging.getLogger(__name__)

# Seconds before a bar is shown: what is done by then needs none. Seconds between two lines of a log.
_SOON, _NOW_AND_THEN = 1.0, 30.0


class Show(Protocol):
    """Tells how far it is."""

    def __call__(self, done: int, note: str = "", total: int | None = None) -> None:
        """``done`` of ``total``, which may be said here first; ``note``: how fast, for example."""


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Show]:
    """Show on standard error how many of ``what`` are done; of the ranks of a node, the first one does."""
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    is_terminal = sys.stderr.isatty()
    started = told = time.monotonic()
    with contextlib.ExitStack() as shown:
        bar: Any = None

        def show(done: int, note: str = "", total: int | None = total) -> None:
            nonlocal bar, told
            now = time.monotonic()
            if not is_first:
                return
            if is_terminal and bar is None and now - started >= _SOON:
                bar = shown.enter_context(_bar(what))
            if bar is not None:
                bar.update(0, completed=done, total=total, note=note)
            if not is_terminal and now - told >= _NOW_AND_THEN:
                told = now
                log.info("%s: %d of %s%s", what, done, total or "unknown", f", {note}" * bool(note))

        yield show


def _bar(what: str) -> Any:
    # Not above: what is done soon need not wait for these imports.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (name, MofNCompleteColumn(), BarColumn(), note, TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    bar.add_task(what, total=None, note="")
    return bar
