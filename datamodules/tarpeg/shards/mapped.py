"""Opening shards: those of a cache by its manifest and their .idx, all others by walking the tar once."""
# MERGED: Local shards: reading samples out of memory-mapped tars by number.

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CacheError, ShardError
from ..progress import progress
from .index import Run, join, load_or_build
from .labels import LONGEST, integer, missing, no_integer
from .manifest import BUILDING, MANIFEST, ShardEntry, read_manifest
from .wds_index import parse

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


_CHUNK = 1 << 16  # samples that are looked through at once: of millions, temporary arrays would be felt

Int64 = npt.NDArray[np.int64]


class Shards:
    """The samples of local tars, numbered 0..len-1 in the order of the shards.

    Tars are indexed once (see tarindex) and mapped when first touched; images are views on the map.
    Pickles without the maps: another process maps anew. Raises ShardError for a tar that is missing, broken,
    without images, or changed since it was indexed; warns once per shard about samples without an image.
    """

    def __init__(self, paths: Sequence[Path], *, threads: int = 8) -> None:
        """Index the tars at paths, threads of them at once (this hides the latency of disks)."""
        if not paths:
            raise ShardError("paths=[] names no shard. Give at least one tar.")
        # Absolute, because a worker or Hydra may have changed the working directory when a map is opened.
        self._paths = [Path(path).absolute() for path in paths]
        self._stats: list[tuple[int, int]] = []
        self._table = join(self._opened(threads), len(self._paths))
        self._maps: list[torch.Tensor | None] = [None] * len(self._paths)
        self._views: list[memoryview | None] = [None] * len(self._paths)
        self._columns: dict[str, npt.NDArray[np.int32]] = {}

    def _opened(self, threads: int) -> Iterator[Run]:
        with progress("shards indexed", len(self._paths)) as show:
            for opened in open_all(self._paths, threads):
                if opened.warning:
                    warnings.warn(opened.warning, UserWarning, stacklevel=4)
                self._stats += opened.stats
                yield opened.run
                show(len(self._stats))

    def __len__(self) -> int:
        return len(self._table.shard)

    def __getstate__(self) -> dict[str, object]:
        nothing = [None] * len(self._paths)
        return {**self.__dict__, "_maps": nothing, "_views": nothing.copy(), "_columns": {}}

    def images(self, ids: npt.ArrayLike) -> list[torch.Tensor]:
        """Take the images of samples ids [B]: uint8 [n] each, views on the map (never write to them).

        A member of 0 bytes gives an empty tensor. Raises IndexError for an id outside 0..len-1.
        """
        rows = self._checked(ids)
        table = self._table
        members = table.member_ends[rows] + table.image[rows]
        maps = self._maps
        views = []
        for shard, offset, size in zip(
            table.shard[rows].tolist(),
            table.offset[members].tolist(),
            table.size[members].tolist(),
            strict=True,
        ):
            tar = maps[shard]
            if tar is None:
                tar = self._map(shard)
            views.append(tar.narrow(0, offset, size))
        return views

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> torch.Tensor:
        """Read the labels of samples ids [B]: int64 [B], ASCII integers in the members of that extension.

        Raises ShardError, with shard and key, where the member is missing or holds no integer.
        """
        rows = self._checked(ids)
        members = self._members(rows, _plain(extension))
        if (members < 0).any():
            raise missing(self, int(rows[members < 0][0]), _plain(extension))
        shards, offsets = self._table.shard[rows].tolist(), self._table.offset[members].tolist()
        sizes = np.minimum(self._table.size[members], LONGEST + 1).tolist()
        labels = []
        for row, (shard, offset, size) in enumerate(zip(shards, offsets, sizes, strict=True)):
            text = self._bytes(shard, offset, size)
            label = integer(text)
            if label is None:
                raise no_integer(self, int(rows[row]), _plain(extension), text)
            labels.append(label)
        return torch.tensor(labels, dtype=torch.int64)

    def member(self, id: int, extension: str) -> bytes | None:
        """Read the sample's member of that extension as bytes, or None where it has none."""
        rows = self._checked([id])
        (member,) = self._members(rows, _plain(extension)).tolist()
        if member < 0:
            return None
        table = self._table
        return self._bytes(int(table.shard[rows[0]]), int(table.offset[member]), int(table.size[member]))

    def extensions(self, id: int) -> list[str]:
        """List the extensions of the sample's members, lowercase, without the dot, in the tar's order."""
        (row,) = self._checked([id]).tolist()
        names = list(self._table.extensions)
        codes = self._table.extension[self._table.member_ends[row] : self._table.member_ends[row + 1]]
        return [names[code] for code in codes.tolist()]

    def key(self, id: int) -> str:
        """Name the sample: its key, with its folders."""
        (row,) = self._checked([id]).tolist()
        start, stop = self._table.key_ends[row : row + 2].tolist()
        return self._table.keys[start:stop].tobytes().decode("utf-8", "surrogateescape")

    def shard(self, id: int) -> Path:
        """Name the tar that holds the sample, by its absolute path."""
        (row,) = self._checked([id]).tolist()
        return self._paths[int(self._table.shard[row])]

    @property
    def total_bytes(self) -> int:
        """How large the tars are together."""
        return sum(size for size, _ in self._stats)

    def _checked(self, ids: npt.ArrayLike) -> Int64:
        rows = np.asarray(ids)
        if rows.size == 0:
            return np.empty(0, np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise TypeError(f"ids must be integers [B], not {rows.dtype} {list(rows.shape)}")
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"ids must be in 0..{len(self) - 1}, not {rows.min()}..{rows.max()}")
        return rows.astype(np.int64, copy=False)

    def _bytes(self, shard: int, offset: int, size: int) -> bytes:
        view = self._views[shard] or self._map(shard).numpy().data
        return bytes(view[offset : offset + size])

    def _members(self, rows: Int64, extension: str) -> Int64:
        """Find the samples' members of that extension, -1 where they have none."""
        column = self._columns.get(extension)
        if column is None:
            column = self._columns[extension] = self._column(self._table.extensions.get(extension, -1))
        place = column[rows]
        return np.where(place < 0, -1, self._table.member_ends[rows] + place)

    def _column(self, code: int) -> npt.NDArray[np.int32]:
        """Say which of each sample's members has that extension, from 0, -1 for none."""
        table = self._table
        column = np.full(len(self), -1, np.int32)
        for start in range(0, len(self), _CHUNK):
            ends = table.member_ends[start : start + _CHUNK + 1]
            members = ends[0] + np.flatnonzero(table.extension[ends[0] : ends[-1]] == code)
            rows = np.searchsorted(ends, members, side="right") - 1
            column[start + rows] = members - ends[rows]
        return column

    def _map(self, shard: int) -> torch.Tensor:
        """Map a tar. Offsets beyond a file that shrank would be a bus error, hence the check before."""
        path = self._paths[shard]
        try:
            found = path.stat()
            if (found.st_size, found.st_mtime_ns) != self._stats[shard]:
                raise ShardError(f"shard {path} changed since it was indexed. Start again to index it anew.")
            # from_file maps privately, and keeps no file descriptor, of which 1000 shards would need 1000.
            tar = torch.from_file(str(path), shared=False, size=found.st_size, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            if isinstance(error, ShardError):
                raise
            raise ShardError(
                f"shard {path} cannot be mapped: {error}. Check the file and the free memory."
            ) from error
        self._views[shard] = tar.numpy().data
        self._maps[shard] = tar
        return tar


def _plain(extension: str) -> str:
    return extension.removeprefix(".").lower()
