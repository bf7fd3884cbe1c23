"""Which shards a cache will have, and which samples of the source go into each."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .. import processes
from ..errors import CacheError
from ..sampling import rng
from ..shards.folder import Folder
from ..shards.index import EXTENSION, KEY_END, MEMBER_END, NBYTES, OFFSET, TarIndex, load, load_or_build
from ..shards.manifest import BUILDING, Quarantined
from . import job
from .job import tar_size
from .sources import Files, Input, Picked, Row, Shard, Whole

Int64 = npt.NDArray[np.int64]
_FOLDER_SHARD = 1000
_NO_IMAGE = "no image: one of the shard's samples without, of which this key is the first"


@dataclass(frozen=True)
class Layout:
    """How samples are distributed over the shards of a cache; by default as the source has them.

    samples_per_shard, bytes_per_shard: cut anew, at whichever comes first, the bytes being the source's; a
    folder of images is cut at 1000 samples unless told. shuffle: put the samples of all shards in one random
    order, by seed, cut into as many shards as there were unless told; the images of a folder are in such an
    order anyway.
    """

    samples_per_shard: int | None = None
    bytes_per_shard: int | None = None
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples_per_shard", "bytes_per_shard"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name}={value!r} must be a positive integer, or None")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"seed={self.seed!r} must be an integer")

    @property
    def is_cut(self) -> bool:
        """Say whether it tells where to cut."""
        return self.samples_per_shard is not None or self.bytes_per_shard is not None


class Plan(Protocol):
    """Shards to write: how many, and how many bytes of source go into them.

    left_out: samples without an image, where that is known by now; shards tell the others.
    """

    shards: int
    source_bytes: int
    left_out: tuple[Quarantined, ...]

    def inputs(self) -> Iterator[tuple[str, Input]]:
        """Give the name, without .tar, and the input of each shard, in order."""
        ...


class OneToOne:
    """A shard for each of the source, of its name."""

    left_out: tuple[Quarantined, ...] = ()

    def __init__(self, listing: Sequence[Shard]) -> None:
        self._listing = listing
        self.shards = len(listing)
        self.source_bytes = sum(shard.size for shard in listing)

    def inputs(self) -> Iterator[tuple[str, Input]]:
        """Give the name and the input of each shard, in order."""
        taken: set[str] = set()
        for shard in self._listing:
            plain = re.sub(r"[^\w.-]+", "_", posixpath.basename(shard.name).removesuffix(".tar")).lstrip(".")
            name, copies = plain or "shard", 1
            while name in taken:
                copies += 1
                name = f"{plain}-{copies}"
            taken.add(name)
            yield name, Whole(shard)


class FolderPlan:
    """The images of a folder, in the folder's shuffled order; its train and val apart, where it has these."""

    left_out: tuple[Quarantined, ...] = ()

    def __init__(self, folder: Folder, layout: Layout) -> None:
        samples = _FOLDER_SHARD if not layout.is_cut else layout.samples_per_shard
        self._inputs: list[tuple[str, Files]] = []
        self.source_bytes = 0
        for split, part in folder.parts().items():
            files = part.files()
            found = [Path(file.path).stat() for file in files]
            stamps = [(entry.st_size, entry.st_mtime_ns) for entry in found]
            sizes = tar_size(np.array([size for size, _ in stamps], np.int64)) + tar_size(1)
            self.source_bytes += int(sizes.sum())
            for number, (start, stop) in enumerate(cuts(sizes, samples, layout.bytes_per_shard)):
                name = f"{split}-{number:06d}" if split else f"{number:06d}"
                held = Files(str(part.directory()), tuple(files[start:stop]), tuple(stamps[start:stop]))
                self._inputs.append((name, held))
        self.shards = len(self._inputs)

    def inputs(self) -> Iterator[tuple[str, Input]]:
        """Give the name and the input of each shard, in order."""
        yield from self._inputs


class Recut:
    """The samples of indexed shards, cut anew, shuffled or not.

    Holds some 100 bytes a sample, and some 460 a sample of the shards whose jobs wait: see processes.window.
    """

    def __init__(self, listing: Sequence[Shard], indexes: Sequence[TarIndex], layout: Layout) -> None:
        self._listing, self._indexes = listing, indexes
        counts = [index.samples.shape[1] for index in indexes]
        self._first = np.cumsum([0, *counts])
        total = int(self._first[-1])
        self._order = (
            rng.permutation(layout.seed, 0, total) if layout.shuffle else np.arange(total, dtype=np.int64)
        )
        sizes = np.concatenate([_sample_sizes(index) for index in indexes])
        self.source_bytes = int(sizes.sum())
        samples = layout.samples_per_shard if layout.is_cut else -(-total // len(listing))
        self._cuts = list(cuts(sizes[self._order], samples, layout.bytes_per_shard))
        self.shards = len(self._cuts)
        self.left_out = tuple(
            Quarantined(shard.name, index.first_left_out, f"{_NO_IMAGE} (number {number})", "")
            for shard, index in zip(listing, indexes, strict=True)
            for number in range(1, index.left_out + 1)
        )

    def inputs(self) -> Iterator[tuple[str, Input]]:
        """Give the name and the input of each shard, in order."""
        for number, (start, stop) in enumerate(self._cuts):
            samples = self._order[start:stop]
            shards = np.searchsorted(self._first, samples, side="right") - 1
            places = zip(shards.tolist(), (samples - self._first[shards]).tolist(), strict=True)
            rows = tuple(_row(shard, self._indexes[shard], sample) for shard, sample in places)
            used = {shard: self._listing[shard] for shard in sorted({row.shard for row in rows})}
            yield f"{number:06d}", Picked(used, rows)


def indexes(
    listing: Sequence[Shard], folder: Path, pool: Executor, withdraw: Callable[[], None]
) -> list[TarIndex]:
    """Index shards: local ones as ever; those behind URLs by reading them through, once for a build.

    Going from header to header would take a request each, and longer: members are small beside what comes in
    the time of a request.
    """
    far = {s: folder / BUILDING / f"{job.digest(s.identity)[:32]}.npz" for s in listing if s.is_remote}

    def saved(shard: Shard) -> TarIndex | None:
        return load(far[shard], shard.size, job.stamp_of(shard))

    calls = [(shard, str(place)) for shard, place in far.items() if saved(shard) is None]
    list(processes.results(pool, job.index, calls, withdraw))
    found = []
    with ThreadPoolExecutor(8) as threads:
        near = threads.map(
            lambda shard: saved(shard) if shard.is_remote else load_or_build(Path(shard.place)),
            listing,
        )
        for shard, index in zip(listing, near, strict=True):
            if index is None:
                raise CacheError(
                    f"{far[shard]}: the index of {shard.name} cannot be read again. Start again."
                )
            found.append(index)
    return found


def cuts(sizes: Int64, samples: int | None, limit: int | None) -> Iterator[tuple[int, int]]:
    """Cut samples of those sizes, in bytes, in order, at so many samples or bytes; a sample is never cut."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        stop = len(sizes) if samples is None else min(start + samples, len(sizes))
        if limit is not None:
            before = int(ends[start - 1]) if start else 0
            stop = min(stop, max(start + 1, int(np.searchsorted(ends, before + limit, side="right"))))
        yield start, stop
        start = stop


def _sample_sizes(index: TarIndex) -> Int64:
    ends = np.concatenate([[0], np.cumsum(tar_size(index.members[NBYTES]))])
    bounds = np.concatenate([[0], index.samples[MEMBER_END]])
    sizes: Int64 = np.diff(ends[bounds])
    return sizes


def _row(shard: int, index: TarIndex, sample: int) -> Row:
    key_start, start = index.samples[[KEY_END, MEMBER_END], sample - 1].tolist() if sample else (0, 0)
    key_end, stop = index.samples[[KEY_END, MEMBER_END], sample].tolist()
    members = index.members[:, start:stop]
    names = [index.extensions[code] for code in members[EXTENSION].tolist()]
    places = zip(names, members[OFFSET].tolist(), members[NBYTES].tolist(), strict=True)
    return Row(
        shard, index.keys[key_start:key_end].tobytes().decode("utf-8", "surrogateescape"), tuple(places)
    )
