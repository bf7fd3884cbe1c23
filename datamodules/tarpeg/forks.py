"""Functions of a user that fork this process: the child ends where it returns, and the parent raises.

Otherwise both would go on with the user's program, or with the jobs of a worker process.
"""

from __future__ import annotations

import mmap
import os

FORKED = (
    "A step of transform= or another function of yours has called os.fork(), and the child returned from it. "
    "A child has to end by os._exit(); to run a command, use subprocess."
)
has_returned = mmap.mmap(-1, 1)
"""Shared with children that are forked from now on; the first byte is 1 if one of them has returned."""


def renew() -> None:
    """Call this first in a worker process: its children are none of its parent's."""
    global has_returned
    has_returned = mmap.mmap(-1, 1)


def end_child(process: int) -> None:
    """End this process unless it is that one, in which a function of a user was called."""
    if os.getpid() != process:
        has_returned[0] = 1
        os._exit(1)


def check_children() -> None:
    """Raise RuntimeError, once, if ``end_child`` has ended a child of this process."""
    if has_returned[0]:
        has_returned[0] = 0
        raise RuntimeError(FORKED)
