"""The layout of a cache: its shards, and the samples of the source that are assigned to each."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import processes
from ..errors import CacheError, check_integer
from ..sampling import rng
from ..shards.folder import (
    Folder,
    ImageFile,
    unusual,
)
from ..shards.index import Int64, ShardIndex, TarIndex, build, load
from ..shards.manifest import BUILDING, Finding, Quarantined
from ..shards.tar_writer import tar_nbytes
from ..shards.walk import look_at
from .job import hash_of, index_remote_shard, version_number
from .sources import ImageFiles, PickedSamples, SampleRanges, ShardInput, SourceShard, WholeShard

_FOLDER_SHARD = 1000
_NO_IMAGE = "no image: one of the shard's samples without, of which this key is the first"


@dataclass(frozen=True)
class Layout:
    """Distribution of the samples over the shards of a cache; by default that of the source.

    A shard ends at the limit that is reached first. Images of a folder are always shuffled.

    Args:
        samples_per_shard: Largest number of samples in a shard; 1000 by default for a folder of images.
        bytes_per_shard: Largest number of bytes of the source in a shard.
        shuffle: Put the samples of all shards in one random order; without limits into as many shards as the
            source has.
        seed: Seed of the order.

    Example:
        >>> layout = tarpeg.Layout(samples_per_shard=10, shuffle=True)
        >>> tarpeg.build_cache(shards, tmp, layout=layout, executor=0).shards
        4
    """

    samples_per_shard: int | None = None
    bytes_per_shard: int | None = None
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples_per_shard", "bytes_per_shard"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, hint=", or None")
        check_integer("seed", self.seed, 0, rng.LARGEST_SEED)

    @property
    def is_cut(self) -> bool:
        """Whether a limit of samples or bytes is set."""
        return self.samples_per_shard is not None or self.bytes_per_shard is not None


@dataclass(frozen=True)
class Assignment:
    """Shards to write.

    Attributes:
        shards: Number of shards.
        source_bytes: Bytes of the source that go into them.
        inputs: Name, without ".tar", and input of each shard, in order; may be a generator.
        left_out: Samples without an image that indexing has found, and unreadable files of a folder. The
            results of jobs contain the others.
        findings: As in the manifest.
    """

    shards: int
    source_bytes: int
    inputs: Iterable[tuple[str, ShardInput]]
    left_out: tuple[Quarantined, ...] = ()
    findings: dict[str, Finding] = field(default_factory=dict)


def assign_copies(listing: Sequence[SourceShard]) -> Assignment:
    """One shard of the same name for each shard of the source."""
    inputs: dict[str, ShardInput] = {}
    for shard in listing:
        plain = re.sub(r"[^\w.-]+", "_", posixpath.basename(shard.name).removesuffix(".tar")).lstrip(".")
        name, copies = plain or "shard", 1
        while name in inputs:
            copies += 1
            name = f"{plain}-{copies}"
        inputs[name] = WholeShard(shard)
    return Assignment(len(listing), sum(shard.nbytes for shard in listing), inputs.items())


def assign_files(folder: Folder, layout: Layout) -> Assignment:
    """Shards of the images of a folder, in its shuffled order; train and val apart, if it has these."""
    samples = layout.samples_per_shard if layout.is_cut else _FOLDER_SHARD
    inputs: list[tuple[str, ShardInput]] = []
    lost: list[Quarantined] = []
    found_of: dict[str, list[ImageFile]] = {}
    source_bytes = 0
    for split, part in folder.parts().items():
        files, stats, listed = [], [], part.files()
        for kind, own in unusual(listed).items():
            found_of.setdefault(kind, []).extend(own)
        for file in listed:
            found, reason = look_at(file.path)
            if found is None or reason:
                lost.append(Quarantined(str(part.directory()), file.key, f"unreadable: {reason}", ""))
            else:
                files.append(file)
                stats.append((found.st_size, found.st_mtime_ns))
        nbytes = tar_nbytes(np.array([count for count, _ in stats], np.int64)) + tar_nbytes(1)
        source_bytes += int(nbytes.sum())
        for number, (start, stop) in enumerate(cuts(nbytes, samples, layout.bytes_per_shard)):
            name = f"{split}-{number:06d}" if split else f"{number:06d}"
            images = ImageFiles(str(part.directory()), tuple(files[start:stop]), tuple(stats[start:stop]))
            inputs.append((name, images))
    findings = {
        kind: Finding(len(own), folder.root, min(file.key for file in own), "")
        for kind, own in found_of.items()
        if own
    }
    return Assignment(len(inputs), source_bytes, inputs, tuple(lost), findings)


def assign_samples(listing: Sequence[SourceShard], indexes: Sequence[TarIndex], layout: Layout) -> Assignment:
    """Distribute the samples of indexed shards over shards of another size, shuffled or not.

    Takes about 150 bytes per sample, 70 of them until the build ends, and 460 per sample of the waiting jobs,
    see processes.max_pending.
    """
    index = ShardIndex.join(map(ShardIndex.of, indexes), len(indexes))
    total = len(index)
    order = rng.permutation(layout.seed, 0, total) if layout.shuffle else np.arange(total, dtype=np.int64)
    nbytes = np.add.reduceat(tar_nbytes(index.nbytes.astype(np.int64)), index.member_ends[:-1])
    per_shard = layout.samples_per_shard if layout.is_cut else -(-total // len(listing))
    bounds = list(cuts(nbytes[order], per_shard, layout.bytes_per_shard))

    def inputs() -> Iterator[tuple[str, ShardInput]]:
        for number, (start, stop) in enumerate(bounds):
            ranges = tuple(
                SampleRanges(int(index.shard[sample]), index.key(sample), tuple(index.members(sample)))
                for sample in order[start:stop].tolist()
            )
            used = {shard: listing[shard] for shard in sorted({sample.shard for sample in ranges})}
            yield f"{number:06d}", PickedSamples(used, ranges)

    left_out = tuple(
        Quarantined(shard.name, own.first_left_out, f"{_no_image(own)} (number {number})", "")
        for shard, own in zip(listing, indexes, strict=True)
        for number in range(1, own.left_out + 1)
    )
    return Assignment(len(bounds), int(nbytes.sum()), inputs(), left_out)


def _no_image(index: TarIndex) -> str:
    """Return the reason why samples without an image are left out, of which an index has the first key."""
    if index.apart:
        return f"key {index.apart!r} occurs twice, its members are not together; one of such in the shard"
    return _NO_IMAGE


def index_shards(
    listing: Sequence[SourceShard],
    folder: Path,
    executor: Executor,
    on_abandon: Callable[[], None],
    several: bool,
) -> list[TarIndex]:
    """Index shards: local ones in threads, remote ones by reading them through in jobs, once per build.

    A request per header would take longer: most members are smaller than what arrives during one request.
    """
    saved = {s: folder / BUILDING / f"{hash_of(s.identity)[:32]}.index" for s in listing if s.is_remote}

    def load_saved(shard: SourceShard) -> TarIndex | None:
        return load(saved[shard], shard.nbytes, version_number(shard), several=several)

    calls = [(shard, str(path), several) for shard, path in saved.items() if load_saved(shard) is None]
    list(processes.completed(executor, index_remote_shard, calls, on_abandon))

    def load_index(shard: SourceShard) -> TarIndex:
        # A saved index may be of an earlier tar of the same size and time, and a cache keeps what it reads.
        path = Path(shard.location)
        index = load_saved(shard) if shard.is_remote else build(path, several=several)
        if index is None:
            raise CacheError(f"{saved[shard]}: the index of {shard.name} cannot be read. Start again.")
        return index

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(load_index, listing))


def cuts(nbytes: Int64, samples: int | None, limit: int | None) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive shards.

    Args:
        nbytes: Bytes of each sample, int64 [S].
        samples: Largest number of samples of a shard.
        limit: Largest number of bytes of a shard; a larger sample is a shard of its own.
    """
    ends = np.cumsum(nbytes)
    start = 0
    while start < len(nbytes):
        stop = len(nbytes) if samples is None else min(start + samples, len(nbytes))
        if limit is not None:
            before = int(ends[start - 1]) if start else 0
            stop = min(stop, max(start + 1, int(np.searchsorted(ends, before + limit, side="right"))))
        yield start, stop
        start = stop
