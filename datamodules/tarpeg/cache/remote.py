"""Objects behind URLs (s3, gs, http, hf, ...), read by fsspec, whose retries and settings apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from ..errors import ShardError
from ..shards import urls
from ..shards.urls import (
    file_system,
    find_objects,
    open_ranges,
    public_url,
    shard_errors,
    size_and_version,
)

_REMEDY = "Check address, access rights and network, then start again: finished shards are kept."
_shard_errors = partial(shard_errors, remedy=_REMEDY)
_CHUNK = 8 << 20
_KEPT = 2048  # bytes kept behind the read position: tarfile seeks back by up to a block


def list_shards(url: str) -> list[tuple[str, int, str]]:
    """List the shards behind a URL, sorted: one object, the matches of a glob, or the *.tar in a folder.

    Returns URL, size (bytes) and version of each, "" if the server sends none. Raises ShardError if there are
    no shards, or the server does not answer.
    """
    with _shard_errors(url):
        system, paths = urls.patiently(url, partial(find_objects, url))
        with ThreadPoolExecutor(16) as threads:
            infos = list(threads.map(partial(_info, url, system), paths))
    shards = []
    for path, info in zip(paths, infos, strict=True):
        nbytes, version = size_and_version(info)
        if nbytes is None:
            raise ShardError(f"shard {public_url(path)}: the server does not send its size. Copy it first.")
        shards.append((system.unstrip_protocol(path), nbytes, version))
    return shards


def _info(url: str, system: Any, path: str) -> dict[str, Any]:
    """Ask the server for what it has about an object."""
    return urls.patiently(url, partial(system.info, path))


def nbytes_and_version(url: str) -> tuple[int | None, str]:
    """Ask the server for the present size and version of an object. Raises ShardError."""
    with _shard_errors(url):
        system, path = file_system(url)
        system.invalidate_cache()
        return size_and_version(_info(url, system, path))


@contextmanager
def open_object(url: str, nbytes: int) -> Iterator[ReadAhead]:
    """Open an object for reading forwards; the next 8 MB are fetched meanwhile."""
    with _shard_errors(url):
        file, is_repeatable = open_ranges(url, nbytes, _CHUNK)
        repeat = partial(urls.patiently, url, is_repeatable=is_repeatable)
        with closing(file), closing(ReadAhead(file, repeat)) as reader:
            yield reader


def read_ranges(ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Read ranges of objects, (url, start, stop) in bytes, many at once. Raises ShardError."""
    return urls.read_ranges(ranges, _REMEDY)


def check_ranges(url: str, nbytes: int) -> None:
    """Raise ShardError if the server cannot send a part of an object."""
    with _shard_errors(url):
        open_ranges(url, nbytes, _CHUNK, whole=False)[0].close()


class ReadAhead:
    """A file for reading forwards in chunks of 8 MB; the next chunk is fetched in a thread.

    It can seek back by up to 2 kB. fsspec's "background" cache is as fast for ranges, but does not read
    streams ahead, and fetches blocks twice if one read spans more of them than it keeps.
    """

    def __init__(self, file: Any, repeat: Callable[[Callable[[], bytes]], bytes]) -> None:
        """Begin to read ahead. repeat: calls a function, again if it fails; a failed read moves no file."""
        self._file, self._repeat = file, repeat
        self._parts: list[bytes] = []  # of the next chunk
        self._thread = ThreadPoolExecutor(1)
        self._held, self._start, self._position = b"", 0, 0
        self._next: Future[bytes] = self._thread.submit(self._fetch)

    def read(self, nbytes: int) -> bytes:
        """Read so many bytes, fewer at the end of the file."""
        parts = []
        while nbytes:
            begin = self._position - self._start
            part = self._held[begin : begin + nbytes]
            if not part and not self._advance():
                break
            parts.append(part)
            self._position += len(part)
            nbytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seek(self, position: int) -> int:
        """Move to a position, at most the end of the file; bytes in between are read and dropped."""
        while position > self._start + len(self._held) and self._advance():
            pass
        if position < self._start:
            raise ValueError(f"cannot seek back to byte {position}")
        self._position = min(position, self._start + len(self._held))
        return self._position

    def tell(self) -> int:
        """Position of the next byte that is read."""
        return self._position

    def close(self) -> None:
        """Stop reading ahead."""
        self._thread.shutdown(cancel_futures=True)

    def _advance(self) -> bool:
        chunk = self._repeat(self._arrived)
        if not chunk:
            return False
        self._next = self._thread.submit(self._fetch)
        kept = self._held[-_KEPT:]
        self._start += len(self._held) - len(kept)
        self._held = kept + chunk
        return True

    def _arrived(self) -> bytes:
        """Wait for the next chunk, fetching it again if that has failed."""
        if self._next.done() and self._next.exception() is not None:
            self._next = self._thread.submit(self._fetch)
        return self._next.result()

    def _fetch(self) -> bytes:
        missing = _CHUNK - sum(map(len, self._parts))
        while missing and (part := self._file.read(missing)):  # a stream returns the bytes that have arrived
            self._parts.append(part)
            missing -= len(part)
        chunk, self._parts = b"".join(self._parts), []
        return chunk
