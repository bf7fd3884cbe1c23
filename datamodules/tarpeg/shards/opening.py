"""The source of a split: shards, images, or an object of the user. Nothing else asks which one it is."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from pathlib import Path

from ..errors import ShardError, warn
from ..progress import waiting_for
from .classes import classes_beside
from .manifest import FORMAT, MANIFEST, CodecEntry, Manifest, parsed, read_manifest
from .mapped import Shards
from .paths import Paths, expand, identity, left_out_beside, resolved
from .source import Source, completed, is_source
from .stream import expand_urls
from .unlabelled import find_images
from .urls import HTTP, file_system, is_url, public_url, shard_errors
from .walk import left_out_line

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
        paths = expand(given, is_split=True)
        left_out = left_out_line(left_out_beside(given, all_folders=False))
        if left_out and is_first:
            log.warning("%s: %s", given, left_out)
        return Shards(paths, several=several)
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


def reducers_of(given: Paths | Source) -> dict[str, CodecEntry]:
    """Return the codecs that have reduced the images of caches, by the cache. Raises as ``open_source``."""
    if is_source(given) or find_images(given) is not None:
        return {}
    return reducers_among(expand_urls(given))


def reducers_among(names: Iterable[str]) -> dict[str, CodecEntry]:
    """Return the codecs that have reduced the images of caches, by the cache.

    Args:
        names: Absolute paths and URLs of shards. Of a cache whose manifest a server does not send, and of
            commands, nothing is known.
    """
    shards = (name.partition("?")[0] if HTTP.match(name) else name for name in names if name[:5] != "pipe:")
    folders = sorted({shard.rpartition("/")[0] or "/" for shard in shards})
    manifests = {folder: _manifest_at(folder) for folder in folders}
    return {
        public_url(folder): found.reducer for folder, found in manifests.items() if found and found.reducer
    }


def _manifest_at(folder: str) -> Manifest | None:
    if not is_url(folder):
        return read_manifest(folder)
    url = f"{folder}/{MANIFEST}"
    try:
        with shard_errors(url):
            system, path = file_system(url)
            with waiting_for(public_url(url)):
                text = system.cat_file(path)
    except ShardError as error:  # also if there is none: then the shards are no cache
        log.debug("no manifest: %s", error)
        return None
    # Some servers send a page for whatever is asked for.
    return parsed(text, Path(path)) if FORMAT.encode() in text else None


def _place(given: object) -> Hashable:
    try:
        hash(given)
    except TypeError:
        return id(given)
    return given
