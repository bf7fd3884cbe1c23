"""Opening shards: those of a cache by its manifest and their .idx, all others by walking the tar once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .dali_index import parse
from .errors import CacheError
from .manifest import BUILDING, MANIFEST, ShardEntry, read_manifest
from .table import Run
from .tarindex import load_or_build

# How many indexes of a cache are read at once, some 100 kB each, and by how many threads at most: numpy is
# quick with arrays of that length, and what all threads have in hand adds up to the process's memory.
_TOGETHER, _PARSERS = 8, 4


@dataclass(frozen=True)
class Opened:
    """Consecutive shards. stats: size (bytes) and mtime (ns) of each tar; warning: of what was left out."""

    run: Run
    stats: list[tuple[int, int]]
    warning: str = ""


def listed(folder: Path) -> list[Path]:
    """Name the shards of the cache in a folder; none where the folder is no cache.

    Raises CacheError for a manifest that is damaged, foreign or newer.
    """
    return [folder / name for name in _entries(folder) or ()]


def open_all(paths: Sequence[Path], threads: int) -> Iterator[Opened]:
    """Index shards in order, threads of them at once.

    Those in the folder of a cache are checked against its manifest, by name, size and count of samples.
    Raises CacheError where they differ or the build was not finished, and ShardError as tarindex does.
    """
    caches = {folder: _entries(folder) for folder in {path.parent for path in paths}}
    groups: list[list[tuple[Path, ShardEntry | None]]] = []
    for path in paths:
        entries = caches[path.parent]
        entry = None if entries is None else _entry(entries, path)
        if entry is None or not groups or groups[-1][0][1] is None or len(groups[-1]) == _TOGETHER:
            groups.append([])
        groups[-1].append((path, entry))
    most = threads if None in caches.values() else min(threads, _PARSERS)
    with ThreadPoolExecutor(max(1, min(most, len(groups)))) as pool:
        yield from pool.map(_open, groups)


def _entries(folder: Path) -> dict[str, ShardEntry] | None:
    """Read the manifest of a folder: its entries by name, or None where the folder is no cache."""
    manifest = read_manifest(folder)
    if manifest is not None:
        return {entry.name: entry for entry in manifest.shards}
    if (folder / BUILDING).exists():
        raise CacheError(
            f"{folder} is a cache whose build was not finished (there is {BUILDING}, but no {MANIFEST}): run "
            "the same build again, which continues it, or tells what stops it."
        )
    return None


def _entry(entries: dict[str, ShardEntry], path: Path) -> ShardEntry:
    if path.name not in entries:
        raise CacheError(
            f"shard {path} is not in {path.with_name(MANIFEST)}, which lists the {len(entries)} shards of "
            "this cache: move it elsewhere, or build the cache anew."
        )
    return entries[path.name]


def _open(group: list[tuple[Path, ShardEntry | None]]) -> Opened:
    places = [path for path, _ in group]
    entries = [entry for _, entry in group if entry is not None]
    if entries:
        return _open_cached(places, entries)
    (path,) = places
    index = load_or_build(path)
    warning = index.left_out and (
        f"shard {path}: {index.left_out} samples have no image and are left out, "
        f"the first is key {index.first_left_out!r}"
    )
    return Opened(Run.of(index), [(index.tar_size, index.tar_mtime_ns)], warning or "")


def _open_cached(paths: Sequence[Path], entries: Sequence[ShardEntry]) -> Opened:
    stats, texts = [], []
    indexes = [index_path(path) for path in paths]
    for path, index, entry in zip(paths, indexes, entries, strict=True):
        found = _found(path)
        if found.st_size != entry.bytes:
            raise CacheError(
                f"shard {path} has {found.st_size} bytes, and {MANIFEST} says {entry.bytes}: it is not "
                "whole, or not of this build. Copy it again, or run the build again."
            )
        stats.append((found.st_size, found.st_mtime_ns))
        try:
            texts.append(index.read_bytes())
        except OSError as error:
            raise _unreadable(index, error) from error
    run = parse(texts, indexes, [size for size, _ in stats])
    for index, entry, samples in zip(indexes, entries, run.samples.tolist(), strict=True):
        if samples != entry.samples:
            raise CacheError(
                f"{index} lists {samples} samples, and {MANIFEST} says {entry.samples}. Run the build again."
            )
    return Opened(run, stats)


def index_path(shard: Path) -> Path:
    """Name the index beside a shard of a cache: NAME.idx for NAME.tar."""
    return shard.with_suffix(".idx")


def _found(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CacheError:
    return CacheError(
        f"{path}, which {MANIFEST} lists, cannot be read: {error.strerror}. Copy the cache again, or run its "
        "build again, which makes what is missing."
    )
