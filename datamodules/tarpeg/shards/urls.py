"""URLs of shards: what they mean, and how they are opened: by fsspec, or by webdataset's commands.

Credentials and endpoints are configured for fsspec: environment variables, or ~/.config/fsspec.

gcsfs and huggingface_hub bound each request and repeat it with growing pauses. fsspec's http waits for five
minutes and repeats nothing; s3fs repeats what it repeats, up to 125 requests per read. Here both have a
bound, and a read of a range is tried four times; so has curl's output, and other streams have what their
command or fsspec brings.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import http
import importlib
import io
import itertools
import logging
import os
import re
import select
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from ..errors import ShardError
from ..files import open_regular
from ..progress import SAY_EVERY, waiting_for

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = logging.getLogger("tarpeg")

_Read = TypeVar("_Read")

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OTHER_TAR = re.compile(r"\.(tar(\.\w+)?|tgz|tbz2?|txz)$", re.IGNORECASE)
HTTP = re.compile(r"https?://", re.IGNORECASE)
_S3 = re.compile(r"s3a?://", re.IGNORECASE)
_FILE = re.compile(r"file://(localhost(?=/))?", re.IGNORECASE)
# fsspec's "zip://*.tar::/a.zip" and "simplecache::s3://b"; not an http URL, nor an IPv6 address in brackets.
_CHAIN = re.compile(
    r"(?!https?:|pipe:)[a-z][a-z0-9+.-]*(::.*://|://(?!([^/@]*@)?\[[^]/]*::).*::)", re.IGNORECASE
)
_URL_IN_TEXT = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"]+")
_REMEDY = "Check address, access rights and network."
_SECONDS = 60.0  # that a server may be silent
_SECRET_NAME = r"[\w-]*(?:pass|token|secret|key|cookie|cred|auth)[\w-]*"
SECRET_OPTION = re.compile(
    rf"""((?:(?-i:\s-[A-Za-z]*[uHb])|\s--?(?:header|user|{_SECRET_NAME})|\b{_SECRET_NAME}(?=[=:])|sshpass\s+-p)"""
    r"""[\s=:]?)\s*(?:"[^"]*"|'[^']*'|[^\s"']+)""",
    re.IGNORECASE,
)
"""An option, or a variable, of a command, with a value that may be a password or a token."""
_QUERY = re.compile(r"""(https?://[^\s"'?]*)\?[^\s"']*""", re.IGNORECASE)
_PAUSES = (1.0, 4.0, 16.0)  # before a read over http is repeated, in seconds
_SHOWN = 3  # names of a folder in a message
_OUTPUT_BUFFER = 1 << 16  # bytes
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # answers of http
# pathlib joins two slashes; one letter before the colon is a drive.
_URL_OR_ITS_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
# Commands that copy a folder to a bucket, by protocol.
_COPY = {"s3": "aws s3 sync", "gs": "gcloud storage rsync --recursive"}
# The version of an object, by the names that the file systems of fsspec have for it.
_VERSION_FIELDS = (
    *("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "blob_id", "generation"),
    *("LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created"),
)


_loops: list[Any] = []  # of fsspec, while this process forks


def _remember_loop() -> None:
    asyn: Any = sys.modules.get("fsspec.asyn")
    _loops[:] = [] if asyn is None else [asyn.loop[0]]


def _leave_loop() -> None:
    """Keep a forked worker from closing the connections that fsspec holds in its parent.

    Their objects are destroyed in the child, too. asyncio would then remove the connections from the epoll
    that both share, and the parent would wait for answers that have come. A closed loop removes nothing.
    """
    for loop in filter(None, _loops):
        with suppress(AttributeError):  # of another kind of loop
            loop._closed = True


os.register_at_fork(before=_remember_loop, after_in_child=_leave_loop)


# --- what they mean


def is_url(text: str) -> bool:
    """Return whether a shard is a URL or a "pipe:" command."""
    return text.startswith("pipe:") or URL.match(text) is not None


def local_or_url(text: str) -> str:
    """Return the path of a file:// URL; any other path or URL as it is. ShardError for a chain of URLs."""
    if found := _FILE.match(text):
        if text[found.end() :][:1] != "/":
            raise ShardError(f"{text!r} must have three slashes, as file:///data/a.tar has, or be a path.")
        return unquote(text[found.end() :])
    if _CHAIN.match(text):
        shown = "::".join(map(public_url, text.split("::")))
        raise ShardError(
            f"{shown!r} is a chain of URLs, by its '::', and shards are not read through one. Give the URL "
            "of the shards themselves; unpack those of an archive first."
        )
    return text


def public_url(url: str) -> str:
    """Return a URL without its query, which may be a signature, and without a password.

    A "pipe:" command is shown without these, and without the values of ``SECRET_OPTION``.
    """
    if url.startswith("pipe:"):
        url = _QUERY.sub(r"\1", SECRET_OPTION.sub(r"\1...", url))
    text = url.partition("?")[0] if HTTP.match(url) else url
    return re.sub(r"(?<=://)[^/@]*@", "", text)


def file_name(url: str) -> str:
    """Return the name of the shard of a URL, a path or a "pipe:" command, without what may be a secret."""
    if url.startswith("pipe:"):
        names = re.findall(r"[\w.-]+\.(?:tar|tgz)[\w.]*", url)
        return names[0] if names else f"pipe {hashlib.sha256(url.encode()).hexdigest()[:16]}"
    return public_url(url).rstrip("/").rpartition("/")[2]


def local_folder(argument: str, given: str | os.PathLike[str]) -> str:
    """Return a folder to write to, as text. Raises ValueError for an empty one, and for a URL.

    Args:
        argument: Name of the argument, for the message.
        given: Its value. An empty one would be the working directory; a URL, a folder of that name in it.
    """
    name = os.fspath(given) if isinstance(given, (str, os.PathLike)) else ""
    if not name:
        raise ValueError(f"{argument}={given!r} must be a folder")
    found = _URL_OR_ITS_PATH.match(name)
    if found is None:
        return name
    protocol, place = found[1].lower(), name[found.end() :]
    if protocol == "file":
        raise ValueError(f"{argument}={name!r} must be a path: give {argument}='/{place}'")
    url = public_url(f"{protocol}://{place}")
    raise ValueError(
        f"{argument}={url!r} must be a local folder: results are not written to URLs. Write to a folder of "
        f"this machine, then copy it there with {_copying(protocol, 'FOLDER', url)}"
    )


def local_images(url: str) -> str:
    """Return the remedy for a folder of images at a URL, for messages."""
    protocol, place = url.partition("://")[0].lower(), public_url(url)
    return f"a folder of images must be local: copy it with {_copying(protocol, place, 'FOLDER')}"


def _copying(protocol: str, source: str, dest: str) -> str:
    """Return the command that copies a folder from or to a URL of a protocol, for messages."""
    if protocol not in _COPY:
        return "the tool of that storage, or rclone"
    return f"`{_COPY[protocol]} {source} {dest}`"


def is_pattern(url: str) -> bool:
    """Return whether a URL is a glob, or ends in a slash: a folder."""
    path = URL.sub("", url).partition("/")[2]  # the host may be an IPv6 address in brackets
    # In an http URL a question mark begins the query.
    has_magic = re.search(r"[*\[]", path.partition("?")[0]) if HTTP.match(url) else re.search(r"[*?\[]", path)
    return has_magic is not None or url.endswith("/")


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path there. Raises ShardError."""
    try:
        system, path = importlib.import_module("fsspec.core").url_to_fs(url, **_options(url))
    except ImportError as error:
        raise ShardError(
            f"{public_url(url)!r} cannot be opened: {error} (pip install 'tarpeg[remote]' installs "
            "s3fs, gcsfs, aiohttp and huggingface_hub)"
        ) from error
    except ValueError as error:
        raise ShardError(f"{public_url(url)!r} cannot be opened: {error}. Check the address") from error
    if _S3.match(url):
        system.retries = 1
    return system, path


def _options(url: str) -> dict[str, Any]:
    """Return fsspec's options of http and S3: those of its configuration, and a bound on silence."""
    if not _repeats_here(url):
        return {}
    conf, scheme = importlib.import_module("fsspec.config").conf, url.partition(":")[0].lower()
    configured = conf.get(scheme, {})
    if _S3.match(url):
        configured = {**conf.get("s3", {}), **configured}
        # One more request for what botocore repeats, such as a server that is busy.
        bounds = {"read_timeout": _SECONDS, "retries": {"max_attempts": 1}}
        return {"config_kwargs": {**bounds, **configured.get("config_kwargs", {})}}
    # aiohttp's default is five minutes in total, which a large shard may take.
    timeout = importlib.import_module("aiohttp").ClientTimeout(
        total=None, sock_connect=_SECONDS, sock_read=_SECONDS
    )
    return {"client_kwargs": {"timeout": timeout, **configured.get("client_kwargs", {})}}


def _repeats_here(url: str) -> bool:
    """Return whether ``patiently`` repeats reads of a URL, because its file system does not, or too often."""
    return bool(HTTP.match(url) or _S3.match(url))


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
        names = sorted(map(str, system.ls(path, detail=False)))
        paths = [name for name in names if name.endswith(".tar")]
        # Buckets list the folder itself, and pages of http their own order.
        others = [file_name(name) for name in names if public_url(name).strip("/") != path.strip("/")]
        if others and not paths:
            place, remedy = public_url(url), f"Give a folder of shards; {local_images(url)}"
            if tar := next(filter(_OTHER_TAR.search, others), ""):
                ending = _OTHER_TAR.search(tar)
                assert ending is not None
                remedy = f"Give a pattern of its shards: {place.rstrip('/')}/*{ending[0]}"
            raise ShardError(
                f"{place!r} is a folder without a .tar, but with {', '.join(map(repr, others[:_SHOWN]))}"
                f"{' and others' * (len(others) > _SHOWN)}. {remedy}"
            )
    else:
        paths = [path]
    if not paths and HTTP.match(url):
        with suppress(FileNotFoundError):  # any other error is the reason: fsspec's glob of http hides them
            system.ls(_page_of(url))
    if not paths:
        hint = " In it ? is any letter: versions of objects, ?versionId=, are not read." * ("?" in url)
        raise ShardError(f"{public_url(url)!r} matches no shard. Check the URL and the pattern.{hint}")
    return system, paths


def _page_of(url: str) -> str:
    """Return the last page of an http URL before its first pattern."""
    found = re.match(r"[^:/]+://[^/]*/(?:[^*\[/]*/)*", url)
    return found[0] if found else url


def expand_url(url: str) -> list[str]:
    """Return the URLs of a pattern's shards, sorted; any other URL as it is. Raises ShardError."""
    if not URL.match(url) or not is_pattern(url):
        return [url]
    with shard_errors(url):
        system, paths = find_objects(url)
        return [system.unstrip_protocol(path) for path in paths]


# --- how they are opened


def open_stream(url: str) -> Any:
    """Open a URL by webdataset's commands (curl, gsutil, pipe:), else by fsspec; a path as a file.

    Reads forwards only. A command, or fsspec, raises errors of its own: see failures().
    """
    from webdataset.gopen import gopen, gopen_schemes

    scheme = url.partition(":")[0].lower() if is_url(url) else ""
    is_supported = not scheme or scheme in gopen_schemes
    if not scheme and url != "-":  # a FIFO would wait for ever, and /dev/zero has no end
        return open_regular(url)
    if is_supported and not (scheme in ("http", "https") and shutil.which("curl") is None):
        opened = gopen(url)
        if scheme in ("http", "https"):
            opened.stream = io.BufferedReader(_Output(url, opened.stream.raw), _OUTPUT_BUFFER)
        return opened
    import fsspec

    return fsspec.open(url, "rb").open()


class _Output(io.RawIOBase):
    """Output of curl, which ends with a TimeoutError if nothing comes for some time.

    curl has a bound of its own, --speed-time, but repeats then what it has written already.
    """

    def __init__(self, url: str, raw: io.RawIOBase) -> None:
        self._url, self._raw, self._poll = url, raw, select.poll()
        self._poll.register(raw, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        waited = 0.0
        while not self._poll.poll(1000 * (step := min(SAY_EVERY, _SECONDS - waited))):
            waited += step
            if waited >= _SECONDS:
                raise TimeoutError(f"no answer for {_SECONDS:g} s")
            log.warning("waiting for %s, since %.0f s", public_url(self._url), waited)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def open_ranges(url: str, nbytes: int, chunk: int, *, whole: bool = True) -> tuple[Any, bool]:
    """Open an object for reading in ranges; return the file, and whether a failed read can be repeated.

    Args:
        url: Its URL.
        nbytes: Its size.
        chunk: Bytes that are requested at once.
        whole: Open it as one stream if the server has no ranges. Otherwise that is a ShardError.
    """
    system, path = file_system(url)
    file = system.open(path, "rb", block_size=chunk, cache_type="none", size=nbytes)
    if not HTTP.match(url) or nbytes < 2:
        return file, _repeats_here(url)
    try:
        file.seek(1)
        patiently(url, partial(file.read, 1))
        file.seek(0)
        return file, True
    except ValueError as error:
        file.close()
        if not whole:
            raise ShardError(
                f"shard {public_url(url)}: the server sends only whole files, but parts are needed to "
                "shuffle or to change the size of shards. Build a cache without that, then another from it."
            ) from error
    with waiting_for(public_url(url)):
        return system.open(path, "rb", block_size=0, size=nbytes), False


def read_ranges(ranges: Sequence[tuple[str, int, int]], remedy: str = _REMEDY) -> list[bytes]:
    """Read ranges of objects, (url, start, stop) in bytes, many at once. Raises ShardError."""
    blobs: list[bytes] = []
    located = [(*file_system(one[0]), *one) for one in ranges]
    for system, group in itertools.groupby(located, lambda one: one[0]):
        given = [*group]
        url, found = given[0][2], dict[int, bytes]()
        parts = [(path, start, stop) for _, path, _, start, stop in given]
        with shard_errors(url, remedy):
            patiently(url, partial(_read_missing, system, parts, found))
        blobs += [found[place] for place in range(len(given))]
    for (url, start, stop), blob in zip(ranges, blobs, strict=True):
        if len(blob) != stop - start:
            raise ShardError(
                f"shard {public_url(url)}: {len(blob)} bytes arrived instead of those from {start} to "
                f"{stop}. It may have changed: start again."
            )
    return blobs


def _read_missing(system: Any, ranges: Sequence[tuple[str, int, int]], found: dict[int, bytes]) -> None:
    """Read those ranges, (path, start, stop), that were not found yet; raise the error of one of them."""
    missing = [place for place in range(len(ranges)) if place not in found]
    paths, starts, stops = (
        list(column) for column in zip(*(ranges[place] for place in missing), strict=True)
    )
    results = system.cat_ranges(paths, starts, stops, on_error="return")
    found |= {
        place: result
        for place, result in zip(missing, results, strict=True)
        if not isinstance(result, BaseException)
    }
    for result in results:
        if isinstance(result, BaseException):
            raise result


def patiently(url: str, read: Callable[[], _Read], *, is_repeatable: bool | None = None) -> _Read:
    """Call a function that reads from a server; repeat it, with growing pauses, while that may help.

    Args:
        url: What is read, for the log.
        read: Function.
        is_repeatable: Whether to repeat it. By default over http and S3: other file systems do it themselves.
    """
    if is_repeatable is None:
        is_repeatable = _repeats_here(url)
    for pause in _PAUSES if is_repeatable else ():
        try:
            with waiting_for(public_url(url)):
                return read()
        except failures() as error:
            if not _is_transient(error):
                raise
            log.warning("%s: %s; next try in %g s", public_url(url), reason_of(error, url), pause)
        time.sleep(pause)
    with waiting_for(public_url(url)):
        return read()


def size_and_version(info: dict[str, Any]) -> tuple[int | None, str]:
    """Return size and version of an object, by what its file system knows; None and "" if it does not."""
    nbytes = info.get("size")
    version = next((str(info[name]) for name in _VERSION_FIELDS if info.get(name)), "")
    return None if nbytes is None else int(nbytes), version


# --- errors


def failures(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the errors of fsspec's file systems that have been imported, and more."""
    found = _errors_of("aiohttp", "ClientError") + _errors_of("botocore.exceptions", "BotoCoreError")
    found += _errors_of("httpx", "HTTPError") + _errors_of("httpx2", "HTTPError")  # of huggingface_hub
    if "s3fs" in sys.modules:
        found += (IndexError,)  # of s3fs, which looks for the first argument of a timeout
    return (OSError, ValueError, EOFError, asyncio.TimeoutError, *found, *more)


def _errors_of(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Return exceptions of a package if it has been imported: only then they can be raised."""
    if module.partition(".")[0] not in sys.modules:
        return ()
    return tuple(getattr(importlib.import_module(module), name) for name in names)


@contextmanager
def shard_errors(url: str, remedy: str = _REMEDY) -> Iterator[None]:
    """Re-raise the errors of a file system as ShardError with the URL."""
    try:
        yield
    except failures() as error:
        if isinstance(error, IndexError) and error.__context__ is None:
            raise  # of other code than s3fs, such as a mistake in tarpeg
        raise ShardError(f"{public_url(url)} cannot be read: {reason_of(error, url)}. {remedy}") from error


def _is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later: no answer, a broken connection, a busy server."""
    error = _without_index_error(error)
    # Also of an answer to the question for a size. Without one the address may be wrong.
    status = getattr(_error_of_http(error), "status", None)
    if isinstance(status, int) and status:
        return status in _TRANSIENT
    # FSTimeoutError is asyncio's, which was not Python's before 3.11.
    lost = _errors_of("aiohttp", "ClientConnectionError", "ClientPayloadError")
    lost += _errors_of("botocore.exceptions", "HTTPClientError")
    # s3fs's for "SlowDown" and for "InternalError".
    is_busy = isinstance(error, OSError) and error.errno in (errno.EBUSY, getattr(errno, "EREMOTEIO", None))
    return is_busy or isinstance(error, (ConnectionError, TimeoutError, asyncio.TimeoutError, *lost))


def _without_index_error(error: BaseException) -> BaseException:
    """Return what s3fs handled when it raised an IndexError; any other error as it is."""
    if isinstance(error, IndexError) and error.__context__ is not None:
        return error.__context__
    return error


def _error_of_http(error: BaseException) -> BaseException:
    """Return the cause of a FileNotFoundError, which fsspec raises for every error of http; others as is."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def reason_of(error: BaseException, url: str) -> str:
    """Return the reason of an error: of http, status and name, such as "404 Not Found"."""
    error = _error_of_http(_without_index_error(error))
    status = getattr(error, "status", None)
    if isinstance(status, int) and status:
        return status_name(status)
    if HTTP.match(url) and isinstance(error, FileNotFoundError):
        return status_name(404)
    if isinstance(error, FileNotFoundError) and error.errno is None:
        return "it was not found"
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)) and _repeats_here(url):
        return f"no answer for {_SECONDS:g} s"
    return _URL_IN_TEXT.sub(lambda found: public_url(found[0]), str(error)) or type(error).__name__


def requested_status(url: str) -> str:
    """Request a URL again, after a command that does not report the status, and return status and name."""
    parts = urllib.parse.urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")  # urllib takes all of it for the host
    request = urllib.request.Request(parts._replace(netloc=host).geturl())
    if at:
        name = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        request.add_header("Authorization", f"Basic {name}")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
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
