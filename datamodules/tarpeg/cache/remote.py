"""Shards behind a URL (s3, gs, http, hf, ...), by way of fsspec, whose own retries and settings hold.

Credentials and endpoints are fsspec's business too: environment variables, or ~/.config/fsspec.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from ..errors import ShardError

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

_CHUNK = 8 << 20
_KEPT = 2048  # bytes behind the reader: tarfile steps back by up to a block
_HTTP = re.compile(r"https?://")
_URL_IN_TEXT = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"]+")
# What tells one version of an object from the next, under the names that the file systems give it.
_STAMPS = (
    *(
        "ETag",
        "etag",
        "md5Hash",
        "content_md5",
        "Content-MD5",
        "blob_id",
        "generation",
        "LastModified",
        "Last-Modified",
    ),
    *("last_modified", "updated", "mtime", "created"),
)


class Found(NamedTuple):
    """An object behind a URL: its size in bytes and what tells its version, "" where none does."""

    url: str
    size: int
    stamp: str


def find(url: str) -> list[Found]:
    """List the shards of a URL: one object, a glob, or a folder (all *.tar in it), sorted.

    Raises ShardError where there are none, or the server does not answer.
    """
    with _told(url):
        system, path = _system(url)
        system.invalidate_cache()  # an earlier listing, by an earlier build of this process
        is_http = _HTTP.match(url) is not None
        # In an http URL a question mark begins the query.
        if re.search(r"[*\[]" if is_http else r"[*?\[]", path):
            paths = sorted(system.glob(path))
        elif path.endswith("/") or url.endswith("/") or (not is_http and system.isdir(path)):
            paths = sorted(name for name in system.ls(path, detail=False) if str(name).endswith(".tar"))
        else:
            paths = [path]
        if not paths:
            raise ShardError(f"source={public(url)!r}: no shard is there. Check the URL and the pattern.")
        with ThreadPoolExecutor(min(16, len(paths))) as pool:
            infos = list(pool.map(system.info, paths))
    found = []
    for path, info in zip(paths, infos, strict=True):
        size, stamp = _version(info)
        if size is None:
            raise ShardError(f"shard {public(path)}: the server does not tell its size. Copy it first.")
        found.append(Found(system.unstrip_protocol(path), size, stamp))
    return found


def check_unchanged(found: Sequence[Found]) -> None:
    """Ask again, after reading, for the versions of objects; ShardError where one is another by now."""
    if not found:
        return

    def check(object: Found) -> None:
        with _told(object.url):
            system, path = _system(object.url)
            system.invalidate_cache()
            now = _version(system.info(path))
        if now != (object.size, object.stamp):
            raise ShardError(f"shard {public(object.url)} changed while it was read. Start again.")

    with ThreadPoolExecutor(min(16, len(found))) as pool:
        list(pool.map(check, found))


def _version(info: dict[str, Any]) -> tuple[int | None, str]:
    size = info.get("size")
    stamp = next((str(info[name]) for name in _STAMPS if info.get(name)), "")
    return None if size is None else int(size), stamp


def public(url: str) -> str:
    """Name a URL without its query, which may be a signature, and without a password."""
    text = url.partition("?")[0] if _HTTP.match(url) else url
    return re.sub(r"(?<=://)[^/@]*@", "", text)


@contextlib.contextmanager
def opened(url: str, size: int) -> Iterator[Ahead]:
    """Open a shard to read it forwards, while the next 8 MB are under way."""
    with _told(url):
        file = _file(url, size)
        try:
            reader = Ahead(file)
            try:
                yield reader
            finally:
                reader.close()
        finally:
            file.close()


def read_ranges(ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Read ranges of objects, (url, start, stop) in bytes, many at once. ShardError where one cannot be."""
    results: list[bytes] = [b""] * len(ranges)
    systems: dict[int, tuple[Any, list[int], list[str]]] = {}
    for number, (url, _, _) in enumerate(ranges):
        system, path = _system(url)
        _, numbers, paths = systems.setdefault(id(system), (system, [], []))
        numbers.append(number)
        paths.append(path)
    for system, numbers, paths in systems.values():
        starts, stops = ([ranges[number][i] for number in numbers] for i in (1, 2))
        with _told(ranges[numbers[0]][0]):
            blobs = system.cat_ranges(paths, starts, stops, on_error="raise")
        for number, blob in zip(numbers, blobs, strict=True):
            results[number] = blob
    for (url, start, stop), blob in zip(ranges, results, strict=True):
        if len(blob) != stop - start:
            raise ShardError(
                f"shard {public(url)}: {len(blob)} bytes came instead of those from {start} to {stop}. "
                "Has it changed?"
            )
    return results


def check_ranges(url: str, size: int) -> None:
    """Raise ShardError where the server cannot send a part of an object."""
    with _told(url):
        _file(url, size, whole=False).close()


class Ahead:
    """A file that is read forwards, but for the last 2 kB, in chunks of 8 MB, the next one read ahead."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._pool = ThreadPoolExecutor(1)
        self._held, self._start, self._at = b"", 0, 0
        self._next: Future[bytes] = self._pool.submit(self._chunk)

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, fewer at the end; all that is left where it is negative."""
        parts = []
        while size:
            begin = self._at - self._start
            part = self._held[begin : begin + size] if size > 0 else self._held[begin:]
            if not part and not self._advance():
                break
            parts.append(part)
            self._at += len(part)
            size -= len(part) if size > 0 else 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seek(self, position: int) -> int:
        """Go to a position; what lies before it is read and dropped."""
        while position > self._start + len(self._held) and self._advance():
            pass
        if position < self._start:
            raise ValueError(f"cannot go back to byte {position}")
        self._at = min(position, self._start + len(self._held))
        return self._at

    def tell(self) -> int:
        """Say where the next byte will be read."""
        return self._at

    def close(self) -> None:
        """End the reading ahead."""
        self._pool.shutdown(cancel_futures=True)

    def _advance(self) -> bool:
        chunk = self._next.result()
        if not chunk:
            return False
        self._next = self._pool.submit(self._chunk)
        kept = self._held[-_KEPT:]
        self._start += len(self._held) - len(kept)
        self._held = kept + chunk
        return True

    def _chunk(self) -> bytes:
        parts, missing = [], _CHUNK
        while missing and (part := self._file.read(missing)):  # a stream gives what has arrived
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def _file(url: str, size: int, *, whole: bool = True) -> Any:
    """Open an object to be read in ranges; where the server knows none, as one stream if `whole`."""
    system, path = _system(url)
    file = system.open(path, "rb", block_size=_CHUNK, cache_type="none", size=size)
    if not _HTTP.match(url) or size < 2:
        return file
    try:
        file.seek(1)
        file.read(1)
        file.seek(0)
        return file
    except ValueError as error:
        file.close()
        if not whole:
            raise ShardError(
                f"shard {public(url)}: the server sends whole files only, but shuffling and cutting anew "
                "need parts. Build the cache without, then another from it."
            ) from error
    # Not aiohttp's five minutes for the whole: a large shard takes longer.
    timeout = importlib.import_module("aiohttp").ClientTimeout(total=None, sock_connect=60, sock_read=60)
    return system.open(path, "rb", block_size=0, size=size, timeout=timeout)


def _system(url: str) -> tuple[Any, str]:
    try:
        return importlib.import_module("fsspec.core").url_to_fs(url)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        raise ShardError(
            f"source={public(url)!r} cannot be opened: {error} (pip install 'tarpeg[remote]' brings s3fs, "
            "gcsfs, aiohttp and huggingface_hub)"
        ) from error


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Name the URL in whatever goes wrong with it."""
    failures: tuple[type[BaseException], ...] = (OSError, ValueError, EOFError)
    if "aiohttp" in sys.modules:
        failures += (sys.modules["aiohttp"].ClientError,)
    if "botocore" in sys.modules:
        failures += (importlib.import_module("botocore.exceptions").BotoCoreError,)
    try:
        yield
    except failures as error:
        words = _URL_IN_TEXT.sub(lambda found: public(found[0]), str(error)) or type(error).__name__
        raise ShardError(
            f"{public(url)} cannot be read: {words}. Check address, access rights and network, then start "
            "again: what is finished is kept."
        ) from error
