"""Where a cache comes from: shards, here or behind a URL, or a folder of images; read sample by sample."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, cast

from braceexpand import braceexpand

from ..errors import ShardError
from ..shards.folder import Folder, ImageFile
from ..shards.paths import expand
from ..shards.tar import grouped, regular_members
from . import remote

_BATCH_BYTES, _BATCH_SAMPLES = 32 << 20, 256
_GAP = 16 << 10  # bytes between two ranges that are cheaper read than skipped

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Folder


class Sample(NamedTuple):
    """One sample: the shard (or folder) and key it has there, and its members by lowercase extension."""

    shard: str
    key: str
    members: dict[str, bytes]


@dataclass(frozen=True)
class Shard:
    """A source shard. place: absolute path or URL; name: what it is called in words and in the manifest.

    size in bytes; stamp: changes when the content does (time of modification, ETag).
    """

    place: str
    name: str
    size: int
    stamp: str

    @property
    def is_remote(self) -> bool:
        """Say whether it lies behind a URL."""
        return remote.URL.match(self.place) is not None

    @property
    def identity(self) -> tuple[str, int, str]:
        """Tell it from others, and from itself after a change; the same wherever a local folder is moved."""
        return (self.name if self.is_remote else Path(self.name).name, self.size, self.stamp)

    @property
    def found(self) -> remote.Found:
        """Name the object behind the URL, with the version that is meant."""
        return remote.Found(self.place, self.size, self.stamp)

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open it to be read forwards. ShardError where it cannot be, or has changed, at the end too."""
        if self.is_remote:
            with remote.opened(self.place, self.size) as ahead:
                yield cast(BinaryIO, ahead)
            remote.check_unchanged([self.found])
            return
        try:
            with Path(self.place).open("rb") as file:
                self._check(file)
                yield file
                self._check(file)
        except OSError as error:
            raise ShardError(f"shard {self.place} cannot be read: {error}. Check its disk.") from error

    def _check(self, file: BinaryIO) -> None:
        now = os.fstat(file.fileno())
        if (now.st_size, str(now.st_mtime_ns)) != (self.size, self.stamp):
            raise ShardError(f"shard {self.place} changed while it was read. Start again.")


class Input(Protocol):
    """What one job reads; pickled to wherever the job runs."""

    def identity(self) -> object:
        """Give plain values that differ where the samples may."""
        ...

    def read(self) -> Iterator[Sample]:
        """Read the samples in order. Raises ShardError."""
        ...


@dataclass(frozen=True)
class Whole:
    """All samples of one shard, in its order."""

    shard: Shard

    def identity(self) -> object:
        """Give plain values that differ where the samples may."""
        return ["whole", *self.shard.identity]

    def read(self) -> Iterator[Sample]:
        """Read the samples in order, one pass forwards. Raises ShardError."""
        with self.shard.opened() as file:
            members = regular_members(file, self.shard.name, self.shard.size)
            read = ((name, _read_at(file, offset, size)) for name, offset, size in members)
            for key, sample in grouped(read, self.shard.name):
                yield Sample(self.shard.name, key, sample)


class Row(NamedTuple):
    """A sample inside a shard: the shard's number, the key, and (extension, offset, size) of its members."""

    shard: int
    key: str
    members: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Picked:
    """Some samples of some shards, in any order, by where they lie. shards: those that are used."""

    shards: dict[int, Shard]
    rows: tuple[Row, ...]

    def identity(self) -> object:
        """Give plain values that differ where the samples may."""
        names = {number: self.shards[number].identity for number in sorted(self.shards)}
        return ["picked", *((names[row.shard], row.key, row.members) for row in self.rows)]

    def read(self) -> Iterator[Sample]:
        """Read the samples in order, some megabytes at a time. Raises ShardError."""
        far = [shard for shard in self.shards.values() if shard.is_remote]
        if far:
            remote.check_ranges(far[0].place, far[0].size)
        start = total = 0
        for stop, row in enumerate(self.rows, 1):
            total += sum(size for _, _, size in row.members)
            if total >= _BATCH_BYTES or stop - start >= _BATCH_SAMPLES or stop == len(self.rows):
                yield from self._batch(self.rows[start:stop])
                start, total = stop, 0
        remote.check_unchanged([shard.found for shard in far])

    def _batch(self, rows: Sequence[Row]) -> Iterator[Sample]:
        spans = [
            (row.shard, min(m[1] for m in row.members), max(m[1] + m[2] for m in row.members)) for row in rows
        ]
        joined: list[tuple[int, int, int]] = []
        place = [0] * len(rows)
        for at in sorted(range(len(rows)), key=spans.__getitem__):
            shard, start, stop = spans[at]
            if joined and joined[-1][0] == shard and start - joined[-1][2] <= _GAP:
                joined[-1] = (shard, joined[-1][1], max(stop, joined[-1][2]))
            else:
                joined.append((shard, start, stop))
            place[at] = len(joined) - 1
        blobs = self._blobs(joined)
        for row, at in zip(rows, place, strict=True):
            blob, base = blobs[at], joined[at][1]
            members = {name: blob[offset - base : offset - base + size] for name, offset, size in row.members}
            yield Sample(self.shards[row.shard].name, row.key, members)

    def _blobs(self, spans: Sequence[tuple[int, int, int]]) -> list[bytes]:
        far = [span for span in spans if self.shards[span[0]].is_remote]
        read = remote.read_ranges([(self.shards[number].place, a, b) for number, a, b in far])
        blobs = dict(zip(far, read, strict=True))
        for number, near in itertools.groupby((s for s in spans if s not in blobs), lambda span: span[0]):
            with self.shards[number].opened() as file:
                blobs.update({span: _read_at(file, span[1], span[2] - span[1]) for span in near})
        return [blobs[span] for span in spans]


@dataclass(frozen=True)
class Files:
    """Images of a folder, each with its label. stamps: (size in bytes, time of modification in ns)."""

    root: str
    files: tuple[ImageFile, ...]
    stamps: tuple[tuple[int, int], ...]

    def identity(self) -> object:
        """Give plain values that differ where the samples may."""
        rows = zip(self.files, self.stamps, strict=True)
        return ["files", *((file.key, Path(file.path).suffix, file.label, *stamp) for file, stamp in rows)]

    def read(self) -> Iterator[Sample]:
        """Read the samples in order. Raises ShardError."""
        for file in self.files:
            try:
                data = Path(file.path).read_bytes()
            except OSError as error:
                raise ShardError(f"cannot read {file.path}: {error.strerror}") from error
            extension = Path(file.path).suffix[1:].lower()
            yield Sample(self.root, file.key, {extension: data, "cls": b"%d" % file.label})


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise ShardError(f"a shard ended at byte {offset + len(data)} while it was read. Has it changed?")
    return data


def find(source: Source) -> list[Shard] | Folder:
    """List the shards of a source in order, or recognise a folder of images.

    source: a folder of shards, a path, a glob, a brace pattern, a URL or a pattern of those, or a list of
    these; a directory with one sub-directory of images per class and no shard in it; or a Folder. Raises
    ShardError.
    """
    if isinstance(source, Folder):
        return source
    parts = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if len(parts) == 1 and not remote.URL.match(os.fspath(parts[0])):
        root = Path(parts[0]).expanduser()
        # Path.glob gives nothing for what is no directory.
        if not any(root.glob("*.tar")) and any(entry.is_dir() for entry in root.glob("[!.]*")):
            return Folder(str(root))
    if not parts:
        expand([])
    shards: list[Shard] = []
    for part in [os.fspath(part) for part in parts]:
        shards += _behind(part) if remote.URL.match(part) else [_local(path) for path in expand(part)]
    seen: set[str] = set()
    for shard in shards:
        if shard.place in seen:
            raise ShardError(f"shard {shard.name} is named twice by source={source!r}.")
        seen.add(shard.place)
    unknown = [shard.name for shard in shards if not shard.stamp]
    if unknown:
        warnings.warn(
            f"{len(unknown)} shards, such as {unknown[0]}: the server tells neither an ETag nor a time of "
            "modification. Where one is replaced by another of equal size, no build will notice.",
            stacklevel=2,
        )
    return shards


def _local(path: Path) -> Shard:
    try:
        found = path.stat()
    except OSError as error:
        raise ShardError(f"shard {path} cannot be read: {error.strerror}. Check the path.") from error
    place = os.path.normpath(path.absolute())
    return Shard(place, str(path), found.st_size, str(found.st_mtime_ns))


def _behind(url: str) -> list[Shard]:
    try:
        urls = list(braceexpand(url)) if "{" in url else [url]
    except ValueError as error:
        raise ShardError(
            f"source={remote.public(url)!r}: the braces do not match. Write it like train-{{000..009}}.tar."
        ) from error
    found = [shard for one in urls for shard in remote.find(one)]
    return [Shard(shard.url, remote.public(shard.url), shard.size, shard.stamp) for shard in found]
