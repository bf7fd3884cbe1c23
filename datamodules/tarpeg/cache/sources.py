"""Sources of a cache: local or remote shards, or images of a folder; each job reads its samples from one."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, cast

from ..errors import ShardError, warn
from ..files import open_regular
from ..shards.folder import Folder, ImageFile
from ..shards.manifest import MANIFEST
from ..shards.paths import Paths, expand, expand_braces, parts_of, refuse_twice
from ..shards.tar import grouped, regular_members
from ..shards.urls import URL, public_url
from . import remote

_BATCH_BYTES, _BATCH_SAMPLES = 32 << 20, 256
_GAP = 16 << 10  # bytes between two ranges that are faster to read than to skip

# PathLike comes last, because jsonargparse would make a string of anything for it.
Source = Folder | Sequence[str | os.PathLike[str]] | str | os.PathLike[str]


class Sample(NamedTuple):
    """One sample: the name of its source shard (or folder), its key there, its members by extension."""

    shard: str
    key: str
    members: dict[str, bytes]


@dataclass(frozen=True)
class SourceShard:
    """A shard of the source.

    Attributes:
        location: Absolute path or URL.
        name: Name for messages and the manifest.
        nbytes: Size of the tar.
        version: Text that changes with the content (time of modification, ETag).
    """

    location: str
    name: str
    nbytes: int
    version: str

    @property
    def is_remote(self) -> bool:
        """Whether the location is a URL."""
        return URL.match(self.location) is not None

    @property
    def may_be_cached(self) -> bool:
        """Whether it may be of a cache, whose images may have other extensions than those of their source."""
        return self.is_remote or (Path(self.location).parent / MANIFEST).exists()

    @property
    def identity(self) -> tuple[str, int, str]:
        """Name, size and version; of a local shard without its folder, which may be moved."""
        return (self.name if self.is_remote else Path(self.name).name, self.nbytes, self.version)

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the shard for reading forwards. ShardError if it cannot be read, or changes meanwhile."""
        if self.is_remote:
            with remote.open_object(self.location, self.nbytes) as reader:
                yield cast(BinaryIO, reader)
            _check_unchanged([self])
            return
        try:
            with open_regular(self.location) as file:
                self._check(file)
                yield file
                self._check(file)
        except OSError as error:
            raise ShardError(f"shard {self.location} cannot be read: {error}. Check its disk.") from error

    def _check(self, file: BinaryIO) -> None:
        now = os.fstat(file.fileno())
        if (now.st_size, str(now.st_mtime_ns)) != (self.nbytes, self.version):
            raise ShardError(f"shard {self.location} changed while it was read. Start again.")


class ShardInput(Protocol):
    """The samples of one shard of the cache; pickled to the process that runs the job."""

    def identity(self) -> object:
        """Return plain values that change if the samples may have changed."""

    def read(self) -> Iterator[Sample]:
        """Read the samples in order. Raises ShardError."""


@dataclass(frozen=True)
class WholeShard:
    """All samples of one shard, in its order."""

    shard: SourceShard

    def identity(self) -> object:
        """Return plain values that change if the samples may have changed."""
        return ["whole", *self.shard.identity]

    def read(self) -> Iterator[Sample]:
        """Read the samples in order, in one pass forwards. Raises ShardError."""
        with self.shard.open() as file:
            members = regular_members(file, self.shard.name, self.shard.nbytes)
            contents = (
                (name, _read_at(file, self.shard.name, offset, nbytes)) for name, offset, nbytes in members
            )
            for key, sample in grouped(contents, self.shard.name):
                yield Sample(self.shard.name, key, sample)


class SampleRanges(NamedTuple):
    """A sample in a tar: number of the shard, key, and (extension, offset, bytes) of each member."""

    shard: int
    key: str
    members: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class PickedSamples:
    """Some samples of some shards, in any order.

    Attributes:
        shards: The shards that have them, by number.
        samples: Ranges of the samples' members.
    """

    shards: dict[int, SourceShard]
    samples: tuple[SampleRanges, ...]

    def identity(self) -> object:
        """Return plain values that change if the samples may have changed."""
        names = {number: self.shards[number].identity for number in sorted(self.shards)}
        return ["picked", *((names[sample.shard], sample.key, sample.members) for sample in self.samples)]

    def read(self) -> Iterator[Sample]:
        """Read the samples in order, up to 32 MB at once. Raises ShardError."""
        remote_shards = [shard for shard in self.shards.values() if shard.is_remote]
        if remote_shards:
            remote.check_ranges(remote_shards[0].location, remote_shards[0].nbytes)
        start, total = 0, 0
        for stop, sample in enumerate(self.samples, 1):
            total += sum(nbytes for _, _, nbytes in sample.members)
            if total >= _BATCH_BYTES or stop - start >= _BATCH_SAMPLES or stop == len(self.samples):
                yield from self._read_batch(self.samples[start:stop])
                start, total = stop, 0
        _check_unchanged(remote_shards)

    def _read_batch(self, samples: Sequence[SampleRanges]) -> Iterator[Sample]:
        """Read samples through (shard, start, stop) spans, joined if they are close together."""
        spans = [
            (shard, min(start for _, start, _ in members), max(start + count for _, start, count in members))
            for shard, _, members in samples
        ]
        joined: list[tuple[int, int, int]] = []
        span_of = [0] * len(samples)
        for row in sorted(range(len(samples)), key=spans.__getitem__):
            shard, start, stop = spans[row]
            if joined and joined[-1][0] == shard and start - joined[-1][2] <= _GAP:
                joined[-1] = (shard, joined[-1][1], max(stop, joined[-1][2]))
            else:
                joined.append((shard, start, stop))
            span_of[row] = len(joined) - 1
        blobs = self._read_spans(joined)
        for sample, span in zip(samples, span_of, strict=True):
            blob, base = blobs[span], joined[span][1]
            members = {name: blob[at - base : at - base + count] for name, at, count in sample.members}
            yield Sample(self.shards[sample.shard].name, sample.key, members)

    def _read_spans(self, spans: Sequence[tuple[int, int, int]]) -> list[bytes]:
        far = [span for span in spans if self.shards[span[0]].is_remote]
        ranges = [(self.shards[number].location, start, stop) for number, start, stop in far]
        blobs = dict(zip(far, remote.read_ranges(ranges), strict=True))
        for number, near in itertools.groupby((s for s in spans if s not in blobs), lambda span: span[0]):
            shard = self.shards[number]
            with shard.open() as file:
                blobs.update({span: _read_at(file, shard.name, span[1], span[2] - span[1]) for span in near})
        return [blobs[span] for span in spans]


@dataclass(frozen=True)
class ImageFiles:
    """Images of a folder with their labels.

    Attributes:
        root: The folder.
        files: Images, in the order of the shard.
        stats: (bytes, time of modification in ns) of each image.
    """

    root: str
    files: tuple[ImageFile, ...]
    stats: tuple[tuple[int, int], ...]

    def identity(self) -> object:
        """Return plain values that change if the samples may have changed."""
        rows = zip(self.files, self.stats, strict=True)
        return ["files", *((file.key, Path(file.path).suffix, file.label, *stat) for file, stat in rows)]

    def read(self) -> Iterator[Sample]:
        """Read the samples in order. Raises ShardError."""
        for file in self.files:
            yield Sample(self.root, file.key, file.read().members)


def _check_unchanged(shards: Sequence[SourceShard]) -> None:
    """Raise ShardError if the server now has another version of one of the shards; call after reading."""
    with ThreadPoolExecutor(16) as threads:
        found = threads.map(remote.nbytes_and_version, [shard.location for shard in shards])
        for shard, now in zip(shards, found, strict=True):
            if now != (shard.nbytes, shard.version):
                raise ShardError(f"shard {shard.name} changed while it was read. Start again.")


def _read_at(file: BinaryIO, name: str, offset: int, nbytes: int) -> bytes:
    file.seek(offset)
    data = file.read(nbytes)
    if len(data) != nbytes:
        raise ShardError(
            f"shard {name} ended at byte {offset + len(data)} while it was read. It may have changed: start "
            "again."
        )
    return data


def _refuse_equal_paths(shards: Sequence[SourceShard]) -> None:
    """Raise ShardError for URLs that differ in their query alone: it is in no name."""
    seen: dict[str, str] = {}
    for shard in (each for each in shards if each.is_remote):
        if seen.setdefault(shard.name, shard.location) != shard.location:
            raise ShardError(
                f"shard {shard.name} has two URLs that differ in the query after '?' alone, and a cache "
                "names its shards by the path. Give each shard once; if these are several, copy them to a "
                "local folder first, or read them as a stream."
            )


def list_source(source: Paths) -> list[SourceShard]:
    """List the shards of a source in order.

    Args:
        source: A folder of shards, a path, a glob, a brace pattern, a URL or a pattern of URLs, or a list of
            these.

    Raises:
        ShardError: If shards are missing, or named twice.
    """
    parts = parts_of(source)
    if not parts:
        expand([])  # raises
    shards: list[SourceShard] = []
    for part in parts:
        if part.startswith("pipe:"):
            raise ShardError(
                "source='pipe:...' is a command: its output has no size, and no parts to read again. "
                "Give a URL, or write the output to a file"
            )
        shards += _remote_shards(part) if URL.match(part) else map(_local_shard, expand(part))
    _refuse_equal_paths(shards)
    refuse_twice([shard.name if shard.is_remote else shard.location for shard in shards], source)
    unknown = [shard.name for shard in shards if not shard.version]
    if unknown:
        warn(
            f"{len(unknown)} shards, such as {unknown[0]}: the server sends neither an ETag nor a time of "
            "modification. A shard that is replaced by another of equal size will not be built again."
        )
    return shards


def _local_shard(path: Path) -> SourceShard:
    try:
        found = path.stat()
    except OSError as error:
        raise ShardError(f"shard {path} cannot be read: {error.strerror}. Check the path.") from error
    location = os.path.normpath(path.absolute())
    return SourceShard(location, str(path), found.st_size, str(found.st_mtime_ns))


def _remote_shards(url: str) -> list[SourceShard]:
    urls = expand_braces(url, public_url(url)) if "{" in url else [url]
    found = [entry for one in urls for entry in remote.list_shards(one)]
    return [SourceShard(one, public_url(one), nbytes, version) for one, nbytes, version in found]
