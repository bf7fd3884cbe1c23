"""Which local shards a folder, a path, a glob, a brace pattern or a list of these names."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from braceexpand import braceexpand

from ..errors import ShardError
from . import mapped
from .index import SAVED_SUFFIX
from .manifest import MANIFEST

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|pipe:")
_SHOWN = 3  # names of what a folder holds instead


def expand(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Name the shards of a source: a path, a folder, a glob, a brace pattern, or a list of these.

    A folder means all *.tar in it (not below it), sorted; a glob's matches are sorted too; otherwise the
    order is as given. Braces as in bash: "train-{000..009}.tar". Of a cache, shards that its manifest lists
    are named even where they are missing. Raises ShardError for whatever names no
    local file, and for a shard that is named twice.
    """
    parts = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not parts:
        raise ShardError("source=[] names no shard. Give a folder, a glob, a brace pattern or paths.")
    paths = [path for part in parts for path in _expand_one(os.fspath(part))]
    seen: set[str] = set()
    for path in paths:
        absolute = os.path.normpath(path.absolute())
        if absolute in seen:
            raise ShardError(
                f"shard {path} is named twice by source={source!r}: its samples would come twice."
            )
        seen.add(absolute)
    return paths


def is_url(text: str) -> bool:
    """Say whether a shard's name is a URL or a "pipe:" command."""
    return _URL.match(text) is not None


def _expand_one(text: str) -> Iterator[Path]:
    if is_url(text):
        raise ShardError(
            f"source={text!r} is not local. Give Split(..., streaming=True), or copy it to a local folder, "
            "of which more can be promised (see tarpeg.Streaming)."
        )
    if text.startswith("~/"):
        text = str(Path.home() / text[2:])
    # An existing name wins over its reading as a pattern: folders with brackets or braces do occur.
    if not text or os.path.lexists(text):
        yield from _expand_existing(text)
    elif "{" in text or "}" in text:
        yield from _expand_braces(text)
    elif glob.has_magic(text):
        names = glob.glob(text, recursive=True)  # noqa: PTH207 (Path.glob refuses absolute patterns)
        # A pattern such as "train-*" also matches the indexes beside the shards.
        names = [name for name in names if not name.endswith((SAVED_SUFFIX, ".idx", MANIFEST))]
        found = {path for path in map(Path, names) if path.is_file()}
        # A shard that a cache has lost is named all the same, so that whoever opens it complains.
        listed = {path for folder in {file.parent for file in found} for path in mapped.listed(folder)}
        last = Path(text).name
        files = sorted(found | {path for path in listed if fnmatch.fnmatchcase(path.name, last)})
        if not files:
            raise ShardError(
                f"source={text!r}: no file matches this pattern; {_held(Path(text).absolute().parent)}."
            )
        yield from files
    else:
        raise ShardError(_missing(text))


def _expand_existing(text: str) -> Iterator[Path]:
    path = Path(text)
    if not text:
        raise ShardError("source='' names no shard. Give a folder, a glob, a brace pattern or paths.")
    if not path.is_dir():
        yield path
        return
    try:
        found = {entry for entry in path.iterdir() if _is_visible_tar(entry)}
    except OSError as error:
        raise ShardError(f"source={text!r}: the folder cannot be read: {error.strerror}.") from error
    files = sorted(found | set(mapped.listed(path)))
    if not files:
        raise ShardError(
            f"source={text!r}: the folder holds no .tar file. Expected are .tar files right in it or, for "
            "build_cache and FolderShards only, one sub-directory per class with its images."
        )
    yield from files


def _is_visible_tar(path: Path) -> bool:
    # Dot files are what macOS ("._a.tar") and unfinished copies leave behind.
    return path.suffix == ".tar" and not path.name.startswith(".") and path.is_file()


def _expand_braces(text: str) -> Iterator[Path]:
    try:
        names = list(braceexpand(text))
    except ValueError as error:
        raise ShardError(
            f"source={text!r}: the braces do not match. Write it like train-{{000..009}}.tar."
        ) from error
    for name in names:
        if name == text or "{" in name:
            raise ShardError(_missing(text))
        yield from _expand_one(name)


def _held(folder: Path) -> str:
    if glob.has_magic(str(folder)):
        return "check each part of it"
    if not folder.is_dir():
        return f"there is no folder {folder}"
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    more = f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
    return f"its folder {folder} holds {', '.join(names[:_SHOWN]) or 'nothing'}{more}"


def _missing(text: str) -> str:
    folder = Path(text).absolute().parent
    if not folder.is_dir():
        return f"shard {text} does not exist, nor does its folder {folder}. Check the path."
    count = sum(1 for entry in folder.iterdir() if _is_visible_tar(entry))
    return f"shard {text} does not exist; its folder {folder} holds {count} .tar files. Check the name."
