"""The source of a split: shards, images, or an object of the user. Nothing else asks which one it is."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from pathlib import Path

from ..errors import ShardError, warn
from .classes import classes_beside
from .manifest import CodecEntry, read_manifest
from .mapped import Shards
from .paths import Paths, expand, identity, resolved
from .source import Source, completed, is_source
from .stream import expand_urls
from .unlabelled import find_images
from .urls import is_url

log = logging.getLogger(__name__)


def open_source(
    given: Paths | Source, target: object = None, *, is_first: bool = True, several: bool = False
) -> Source:
    """Index the shards, or list the images of a folder; an object of the user is returned as a ``Source``.

    Args:
        given: Shards, a folder of images, or an object of the user.
        target: Target of the split; a warning if it is not None and there are no labels.
        is_first: Whether this process logs the number of files that are left out, as others would, too.
        several: Whether samples have several images, see ``Shards``.

    Raises:
        ShardError: If a file is missing or damaged.
        ValueError: If an attribute of the object takes the place of a method.
    """
    if is_source(given):
        return completed(given)
    images = find_images(given)
    if images is None:
        return Shards(expand(given, is_split=True), several=several)
    if several:
        raise ShardError(
            f"shards={given!r} is a folder of images, one per sample: image= is for shards, whose samples "
            "have several, such as KEY.left.jpg and KEY.right.jpg"
        )
    if images.left_out and is_first:
        log.warning("%s: %s", given, images.left_out)
    for text in images.odd:
        warn(text)
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
    return {identity(str(path)): resolved(str(path)) for path in expand(given, is_split=True)}


def classes_of(given: Paths | Source) -> list[str] | None:
    """Names of the classes by label, without opening the source; None if they are unknown."""
    if is_source(given):
        return open_source(given).classes()
    return None if find_images(given) is not None else classes_beside(expand(given, is_split=True))


def codecs_of(given: Paths | Source) -> dict[Path, CodecEntry]:
    """Return the codecs of the local caches that shards are of, by folder. Raises as ``open_source``."""
    if is_source(given) or find_images(given) is not None:
        return {}
    folders = sorted({Path(name).parent for name in expand_urls(given) if not is_url(name)})
    manifests = {folder: read_manifest(folder) for folder in folders}
    return {folder: found.codec for folder, found in manifests.items() if found is not None}


def _place(given: object) -> Hashable:
    try:
        hash(given)
    except TypeError:
        return id(given)
    return given
