"""Images on their way into shards: what a source lists, and what is read of each image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol


class Reading(NamedTuple):
    """What was read of an image: its members, the image first; or why it is left out.

    Attributes:
        members: By extension; empty if the image is left out.
        reason: Why it is left out, because something is broken.
        dropped: Objects without a size, that are left out of the document.
    """

    members: dict[str, bytes]
    reason: str = ""
    dropped: tuple[str, ...] = ()


class Item(Protocol):
    """One image to pack, read when it is packed; pickled to the process that reads it."""

    @property
    def key(self) -> str:
        """Key of its sample."""

    def read(self) -> Reading:
        """Read the image and what belongs to it. Raises ShardError."""


class Listing(NamedTuple):
    """The images of a data set.

    Attributes:
        images: In the order of the shards.
        classes: Labels by name; None without.
        broken: Why images or annotations are left out, as far as known before the images are read.
        notes: What else the user should know.
        root: Folder whose directories are the classes, in which shards would become one; None without.
    """

    images: Sequence[Item]
    classes: dict[str, int] | None
    broken: Sequence[str] = ()
    notes: Sequence[str] = ()
    root: Path | None = None
