"""The source of a split: shards, images, or an object of the user. Nothing else asks which one it is."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from pathlib import Path

from ..errors import warn
from .classes import classes_beside
from .folder import find_images, left_out_line
from .mapped import Shards
from .paths import Paths, expand, identity, refuse_several_splits, resolved
from .source import Source, completed, is_source

log = logging.getLogger(__name__)


def open_source(given: Paths | Source, target: object = None) -> Source:
    """Index the shards, or list the images of a folder; an object of the user is returned as a ``Source``.

    Args:
        given: Shards, a folder of images, or an object of the user.
        target: Target of the split; a warning if it is not None and there are no labels.

    Raises:
        ShardError: If a file is missing or damaged.
        ValueError: If an attribute of the object takes the place of a method.
    """
    if is_source(given):
        return completed(given)
    images = find_images(given)
    if images is None:
        return Shards(_shards_of(given))
    if line := left_out_line(images.left_out):
        log.warning("%s: %s", given, line)
    if target is not None:
        warn(
            f"shards={given!r} has only images, which have no labels: they will be -1. "
            "Confirm with target=None; tarpeg.FolderShards packs a folder with a sub-directory per "
            "class."
        )
    return images


def places_of(given: Paths | Source) -> dict[Hashable, str]:
    """Return the paths of the shards or images, by a value that is equal for all links to one file.

    A source of the user is one place: the object, or what it is equal to. Raises as ``open_source``.
    """
    if is_source(given):
        return {_place(given): f"the source {type(given).__name__}"}
    images = find_images(given)
    if images is not None:
        return {path: path for path in images.paths()}
    return {identity(str(path)): resolved(str(path)) for path in _shards_of(given)}


def classes_of(given: Paths | Source) -> list[str] | None:
    """Names of the classes by label, without opening the source; None if they are unknown."""
    if is_source(given):
        return open_source(given).classes()
    return None if find_images(given) is not None else classes_beside(_shards_of(given))


def _shards_of(given: Paths) -> list[Path]:
    refuse_several_splits(given)
    return expand(given)


def _place(given: object) -> Hashable:
    try:
        hash(given)
    except TypeError:
        return id(given)
    return given
