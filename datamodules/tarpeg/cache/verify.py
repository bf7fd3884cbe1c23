"""Checking a finished cache to the last byte: checksums, indexes, and every image decoded."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .. import processes
from ..errors import CacheError, ShardError, Status
from ..ops import library
from ..shards.index import ShardIndex, build
from ..shards.manifest import BUILDING, MANIFEST, ShardEntry, read_manifest
from ..shards.wds_index import index_path, parse
from .build import Progress

_SMALL = 200 << 20  # bytes that are checked in the time that processes take to start
_LOCK = re.compile(r"\..*lock|\.lock")


@dataclass(frozen=True)
class Problem:
    """What is wrong with a shard; with one sample of it, where key is not empty."""

    shard: str
    key: str
    what: str

    def __str__(self) -> str:
        """Name shard and key, and what is wrong."""
        return f"shard {self.shard}{f', key {self.key!r}' if self.key else ''}: {self.what}"


@dataclass(frozen=True)
class VerifyReport:
    """What a check has found. shards, samples, bytes: what the manifest lists.

    problems: of shards, in their order. extra: names of other files in the folder, which do no harm.
    """

    dest: Path
    shards: int
    samples: int
    bytes: int
    problems: tuple[Problem, ...]
    extra: tuple[str, ...]
    seconds: float

    @property
    def is_good(self) -> bool:
        """Say whether everything is as it was built."""
        return not self.problems

    @property
    def bad_shards(self) -> tuple[str, ...]:
        """Name the shards with problems, in their order."""
        return tuple(dict.fromkeys(problem.shard for problem in self.problems))


def verify_cache(
    dest: str | os.PathLike[str],
    executor: Executor | int | None = None,
    *,
    progress: Callable[[Progress], object] | None = None,
) -> VerifyReport:
    """Check every shard of a cache: its size and checksums, its index against its headers, each image whole.

    executor: where to check, a shard at a time; or a number of local processes (0: this one), by default one
    a core where they pay. progress: called after each shard.

    Raises CacheError where the folder holds no finished cache, or its manifest is damaged.
    """
    started = time.monotonic()
    folder = Path(dest).expanduser().absolute()
    manifest = read_manifest(folder)
    if manifest is None:
        what = "a build that was not finished: run it again" if (folder / BUILDING).exists() else "no cache"
        raise CacheError(f"{folder} holds {what} (there is no {MANIFEST}).")
    if executor is None and manifest.bytes < _SMALL:
        executor = 0
    library.load()  # builds the operators where that has not happened: once, not in every worker
    found: dict[str, list[Problem]] = {}
    samples = size = 0
    with processes.pool(executor, len(manifest.shards)) as pool:
        calls = ((str(folder), entry) for entry in manifest.shards)
        for entry, problems in processes.results(pool, check, calls, lambda: None):
            found[entry.name] = problems
            samples, size = samples + entry.samples, size + entry.bytes
            if progress is not None:
                bad = sum(map(bool, found.values()))
                progress(Progress(len(found), len(manifest.shards), 0, samples, size, manifest.bytes, bad))
    problems = [problem for entry in manifest.shards for problem in found[entry.name]]
    extra = []
    known = {MANIFEST} | {name for entry in manifest.shards for name in _files(entry)}
    for name in sorted(path.name for path in folder.iterdir() if path.name not in known):
        if name.endswith((".tar", ".idx")) and not name.startswith("."):
            problems.append(Problem(name, "", f"it is in the folder, but not in {MANIFEST}"))
        elif not _LOCK.fullmatch(name):
            extra.append(name)
    seconds = time.monotonic() - started
    counts = (len(manifest.shards), manifest.samples, manifest.bytes)
    return VerifyReport(folder, *counts, tuple(problems), tuple(extra), seconds)


def check(dest: str, entry: ShardEntry) -> tuple[ShardEntry, list[Problem]]:
    """Check one shard; runs in a worker."""
    return entry, list(_problems(Path(dest), entry))


def _files(entry: ShardEntry) -> tuple[str, str]:
    return entry.name, index_path(Path(entry.name)).name


def _problems(folder: Path, entry: ShardEntry) -> Iterator[Problem]:
    tar, idx = (folder / name for name in _files(entry))
    try:
        size = tar.stat().st_size
        if size != entry.bytes:
            yield Problem(entry.name, "", f"it has {size} bytes, and {MANIFEST} says {entry.bytes}")
        elif _sha256(tar) != entry.sha256:
            yield Problem(entry.name, "", f"its checksum is not the one in {MANIFEST}")
    except OSError as error:
        yield Problem(entry.name, "", f"it cannot be read: {error.strerror}")
        return
    headers: ShardIndex | ShardError
    try:
        headers = ShardIndex.of(build(tar))
    except ShardError as error:
        headers = error
        yield Problem(entry.name, "", str(error))
    index: ShardIndex | None = None
    try:
        text = idx.read_bytes()
        if hashlib.sha256(text).hexdigest() != entry.idx_sha256:
            yield Problem(entry.name, "", f"the checksum of {idx.name} is not the one in {MANIFEST}")
        index = parse([text], [idx], [size])
    except CacheError as error:
        yield Problem(entry.name, "", str(error))
    except OSError as error:
        yield Problem(entry.name, "", f"its index {idx.name} cannot be read: {error.strerror}")
    if isinstance(headers, ShardIndex) and index is not None:
        yield from _compare(entry, headers, index)
    readable = headers if isinstance(headers, ShardIndex) else index
    if readable is None:
        return
    count = len(readable)
    if count != entry.samples:
        yield Problem(entry.name, "", f"it has {count} samples, and {MANIFEST} says {entry.samples}")
    yield from _undecodable(tar, entry, readable)


def _sha256(path: Path) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _compare(entry: ShardEntry, headers: ShardIndex, index: ShardIndex) -> Iterator[Problem]:
    """Name the first sample that the index tells otherwise than the headers."""
    for row in range(min(len(headers), len(index))):
        one, other = _sample(headers, row), _sample(index, row)
        if one != other:
            yield Problem(entry.name, one[0], f"the index says {other[0]!r} {other[1]}, the tar {one[1]}")
            return
    if len(headers) != len(index):
        counts = f"the index lists {len(index)} samples, the tar has {len(headers)}"
        yield Problem(entry.name, "", counts)


def _sample(index: ShardIndex, row: int) -> tuple[str, list[tuple[str, int, int]]]:
    start, stop = index.member_ends[row : row + 2].tolist()
    extensions = [index.extensions[code] for code in index.extension[start:stop].tolist()]
    places = zip(
        extensions, index.offset[start:stop].tolist(), index.nbytes[start:stop].tolist(), strict=True
    )
    # Members without an extension have no place in the index.
    return index.key(row), [place for place in places if place[0]]


def _undecodable(tar: Path, entry: ShardEntry, index: ShardIndex) -> Iterator[Problem]:
    from ..ops import decode

    # Mapped as Shards does; members were checked to lie inside of what the file has.
    data = torch.from_file(str(tar), shared=False, size=tar.stat().st_size, dtype=torch.uint8)
    members = index.member_ends[:-1] + index.image
    places = zip(index.offset[members].tolist(), index.nbytes[members].tolist(), strict=True)
    for row, (offset, size) in enumerate(places):
        image = data.narrow(0, offset, size)
        sides = np.maximum(decode.image_sizes([image]).numpy(), 1)
        box = torch.from_numpy(np.concatenate([np.zeros_like(sides), sides], axis=1))
        # The mean of the whole image: every coefficient takes part in it.
        status = Status(int(decode.decode_batch([image], box, 1)[1]))
        if status != Status.OK:
            yield Problem(entry.name, index.key(row), f"image is {status.name} ({int(status)})")


def summary(report: VerifyReport) -> list[str]:
    """Say in a few lines what a check has found; every problem is named."""
    what = f"{report.samples} samples, {report.bytes / 1e6:.1f} MB, {report.seconds:.1f} s"
    bad = f"{len(report.bad_shards)} BAD" if report.problems else "all good"
    lines = [str(problem) for problem in report.problems]
    if report.extra:
        lines.append(f"also in the folder, no part of the cache: {', '.join(report.extra)}")
    return [*lines, f"{report.dest}: {report.shards} shards, {bad} ({what})"]
