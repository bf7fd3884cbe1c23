"""Shards of a source: local ones (a folder, a path, a glob, a brace pattern or a list of these), and URLs.

Credentials and endpoints of URLs are configured for fsspec: environment variables, or ~/.config/fsspec.
"""

from __future__ import annotations

import fnmatch
import glob
import http
import importlib
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from braceexpand import braceexpand

from ..errors import ShardError
from .index import SAVED_SUFFIX
from .manifest import MANIFEST, listed

# PathLike comes last, because jsonargparse would make a string of anything for it.
Source = Sequence[str | os.PathLike[str]] | str | os.PathLike[str]

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
HTTP = re.compile(r"https?://", re.IGNORECASE)
_URL_IN_TEXT = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"]+")
_SHOWN = 3  # file names of a folder in a message


def expand(source: Source) -> list[Path]:
    """Expand a source to the paths of its shards.

    A folder means all *.tar in it (not below it), sorted; matches of a glob are sorted too; otherwise the
    order is as given. Braces as in bash: "train-{000..009}.tar". Shards in the manifest of a cache are
    included even if their files are missing. Raises ShardError if a part of the source does not match a local
    file, and for a shard that comes twice.
    """
    parts = parts_of(source)
    if not parts:
        raise ShardError("shards=[] has no shards. Give a folder, a glob, a brace pattern or paths.")
    paths = [path for part in parts for path in _expand_one(part)]
    refuse_twice(list(map(str, paths)), source)
    return paths


def parts_of(source: Source) -> list[str]:
    """Return the source as a list of strings. ShardError for an empty one, which is no folder."""
    parts = [os.fspath(part) for part in ([source] if isinstance(source, (str, os.PathLike)) else source)]
    if not all(parts):
        raise ShardError(f"{source!r} has no shards. Give a folder, a glob, a brace pattern or paths.")
    return parts


def resolved(name: str) -> str:
    """Return a path without links, to compare it with others; a URL as it is."""
    return name if is_url(name) else os.path.realpath(name)


def identity(name: str) -> object:
    """Return a value that is equal for all links to one file, hard links too; a URL as it is."""
    try:
        found = None if is_url(name) else os.stat(name)  # noqa: PTH116
    except OSError:  # opening it reports the reason
        found = None
    return resolved(name) if found is None else (found.st_dev, found.st_ino)


def refuse_twice(names: Sequence[str], source: Source) -> None:
    """Raise ShardError for a shard that the source has twice, also by a symbolic link."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(place := resolved(name))) is not None:
            link = f" (also as {other})" if other != name else ""
            raise ShardError(f"shard {name}{link} is there twice in {source!r}. Give each shard once.")
        seen[place] = name


def is_url(text: str) -> bool:
    """Return whether a shard is a URL or a "pipe:" command."""
    return text.startswith("pipe:") or URL.match(text) is not None


def _expand_one(text: str) -> Iterator[Path]:
    if is_url(text):
        raise ShardError(
            f"shards {text!r} is not local. Give Split(..., streaming=True), or copy it to a local folder, "
            "for which more is guaranteed (see tarpeg.Streaming)."
        )
    if text.startswith("~/"):
        text = str(Path.home() / text[2:])
    # An existing path is taken literally, not as a pattern: folders with brackets or braces do occur.
    if os.path.lexists(text):
        yield from _expand_existing(text)
    elif "{" in text or "}" in text:
        yield from _expand_braces(text)
    elif glob.has_magic(text):
        names = glob.glob(text, recursive=True)  # noqa: PTH207 (Path.glob refuses absolute patterns)
        # A pattern such as "train-*" also matches the indexes beside the shards.
        names = [name for name in names if not name.endswith((SAVED_SUFFIX, ".idx", MANIFEST))]
        found = {path for path in map(Path, names) if path.is_file()}
        # A shard that a cache has lost is included, so that opening it is an error.
        expected = {path for folder in {file.parent for file in found} for path in listed(folder)}
        last = Path(text).name
        files = sorted(found | {path for path in expected if fnmatch.fnmatchcase(path.name, last)})
        if not files:
            raise ShardError(
                f"shards {text!r}: no file matches this pattern; {_content(Path(text).absolute().parent)}."
            )
        yield from files
    else:
        raise ShardError(_missing(text))


def _expand_existing(text: str) -> Iterator[Path]:
    path = Path(text)
    if not path.is_dir():
        yield path
        return
    try:
        # Dot files are left by macOS ("._a.tar") and by unfinished copies.
        tars = (entry for entry in path.iterdir() if entry.suffix == ".tar" and entry.is_file())
        found = {entry for entry in tars if not entry.name.startswith(".")}
    except OSError as error:
        raise ShardError(f"shards {text!r}: the folder cannot be read: {error.strerror}.") from error
    files = sorted(found | set(listed(path)))
    if not files:
        raise ShardError(
            f"shards {text!r}: the folder has no .tar file. Expected are .tar files directly in it or, for "
            "build_cache and FolderShards only, one sub-directory per class with its images."
        )
    yield from files


def expand_braces(text: str, shown: str) -> list[str]:
    """Expand braces as in bash; ShardError, with the text to show, if they do not match."""
    try:
        return list(braceexpand(text))
    except ValueError as error:
        raise ShardError(
            f"shards {shown!r}: the braces do not match. Write it like train-{{000..009}}.tar."
        ) from error


def _expand_braces(text: str) -> Iterator[Path]:
    for name in expand_braces(text, text):
        if name == text or "{" in name:
            raise ShardError(_missing(text))
        yield from _expand_one(name)


def _missing(text: str) -> str:
    return f"shard {text} does not exist; {_content(Path(text).absolute().parent)}. Check the path."


def _content(folder: Path) -> str:
    if glob.has_magic(str(folder)):
        return "check each part of it"
    if not folder.is_dir():
        return f"there is no folder {folder}"
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    more = f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
    return f"its folder {folder} has {', '.join(names[:_SHOWN]) or 'no files'}{more}"


# --- URLs


def public_url(url: str) -> str:
    """Return a URL without its query, which may be a signature, and without a password."""
    text = url.partition("?")[0] if HTTP.match(url) else url
    return re.sub(r"(?<=://)[^/@]*@", "", text)


def is_pattern(url: str) -> bool:
    """Return whether a URL is a glob, or ends in a slash: a folder."""
    path = URL.sub("", url).partition("/")[2]  # the host may be an IPv6 address in brackets
    # In an http URL a question mark begins the query.
    has_magic = re.search(r"[*\[]", path.partition("?")[0]) if HTTP.match(url) else re.search(r"[*?\[]", path)
    return has_magic is not None or url.endswith("/")


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path there. Raises ShardError."""
    try:
        return importlib.import_module("fsspec.core").url_to_fs(url)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        raise ShardError(
            f"{public_url(url)!r} cannot be opened: {error} (pip install 'tarpeg[remote]' installs "
            "s3fs, gcsfs, aiohttp and huggingface_hub)"
        ) from error


def find_objects(url: str) -> tuple[Any, list[str]]:
    """Return the file system of a URL and the paths of its shards there, sorted.

    These are the matches of a glob, the *.tar in a folder, or one object, which may not exist. Raises
    ShardError if there are none, and the errors of the file system.
    """
    system, path = file_system(url)
    system.invalidate_cache()  # of listings, from an earlier build in this process
    if is_pattern(url) and not url.endswith("/"):
        paths = sorted(system.glob(path))
    elif url.endswith("/") or (not HTTP.match(url) and system.isdir(path)):
        paths = sorted(name for name in system.ls(path, detail=False) if str(name).endswith(".tar"))
    else:
        paths = [path]
    if not paths:
        raise ShardError(f"{public_url(url)!r} matches no shard. Check the URL and the pattern.")
    return system, paths


def expand_url(url: str) -> list[str]:
    """Return the URLs of a pattern's shards, sorted; any other URL as it is. Raises ShardError."""
    if not URL.match(url) or not is_pattern(url):
        return [url]
    with shard_errors(url, "Check address, access rights and network."):
        system, paths = find_objects(url)
        return [system.unstrip_protocol(path) for path in paths]


def failures(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the errors of fsspec's file systems that have been imported, and more."""
    found: tuple[type[Exception], ...] = (OSError, ValueError, EOFError, *more)
    if "aiohttp" in sys.modules:
        found += (sys.modules["aiohttp"].ClientError,)
    if "botocore" in sys.modules:
        found += (importlib.import_module("botocore.exceptions").BotoCoreError,)
    return found


@contextmanager
def shard_errors(url: str, remedy: str) -> Iterator[None]:
    """Re-raise the errors of a file system as ShardError with the URL."""
    try:
        yield
    except failures() as error:
        raise ShardError(f"{public_url(url)} cannot be read: {reason_of(error, url)}. {remedy}") from error


def reason_of(error: BaseException, url: str) -> str:
    """Return the reason of an error: of http, status and name, such as "404 Not Found"."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # fsspec raises it for every error of http
    status = getattr(error, "status", None)
    if isinstance(status, int) and status:
        return status_name(status)
    if HTTP.match(url) and isinstance(error, FileNotFoundError):
        return status_name(404)
    return _URL_IN_TEXT.sub(lambda found: public_url(found[0]), str(error)) or type(error).__name__


def requested_status(url: str) -> str:
    """Request a URL again, after a command that does not report the status, and return status and name."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return status_name(response.status)
    except urllib.error.HTTPError as error:
        return status_name(error.code)
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def status_name(status: int) -> str:
    """Return a status of http with its name."""
    try:
        return f"{status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
