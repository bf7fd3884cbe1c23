"""Samples of local shards by number, read from memory-mapped tars.

Shards of a cache are opened by its manifest and their .idx files, all others by walking the tar once.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CacheError, ShardError, warn
from ..files import read_regular
from ..progress import progress
from .classes import classes_beside
from .index import NBYTES, Int64, ShardIndex, build, load_or_build, rebuild
from .manifest import MANIFEST, ShardEntry, entries, read_manifest
from .pillow import IMAGE_EXTENSIONS, is_image_name
from .sizes import Sizes, load_or_read, stamp_of
from .source import LONGEST, Source, digest, integers, missing, plain
from .spans import Spans
from .tar import header_end, is_member
from .wds_index import index_path, parse

if TYPE_CHECKING:
    from ..ops.decode import Files

# Indexes of a cache that are parsed together, some 100 kB each, and the most threads that parse: numpy is
# fastest with arrays of that length, and the arrays of all threads add up to the peak memory.
_TOGETHER, _PARSERS = 8, 4
_READERS = 8  # threads that read the headers of images
_CHUNK = 1 << 16  # samples searched at once: for millions, temporary arrays would take too much memory

_Map = tuple[torch.Tensor, npt.NDArray[np.uint8], npt.NDArray[np.uint8]]  # a tar's bytes, twice, and torn


class Shards(Source):
    """The samples of local tars, numbered 0..len-1 in the order of the shards.

    Tars are indexed once (see ``index``) and mapped when first used; images are views on the map. Pickles
    without the maps: another process maps again. Raises ShardError for a tar that is missing, broken, without
    images, or changed since it was indexed, and CacheError for a shard that does not match the manifest of
    its cache; warns once per shard about samples without an image.
    """

    def __init__(self, paths: Sequence[Path], *, threads: int = 8, several: bool = False) -> None:
        """Index the tars.

        Args:
            paths: The tars.
            several: Also samples whose images are members such as left.jpg; then ``images()`` are the first
                of each sample.
            threads: Tars indexed at the same time, which hides the latency of the disk.
        """
        if not paths:
            raise ShardError("paths=[] has no shards. Give at least one tar.")
        # Absolute, because the working directory may have changed when a tar is mapped.
        self._paths = [Path(path).absolute() for path in paths]
        self._stats: list[tuple[int, int]] = []
        self._stamps: list[int] = []
        self._contents: list[str] = []
        self._apart: list[str] = []
        self._cached_images: tuple[str, ...] | None = None
        self._several = several
        self._take(ShardIndex.join(self._opened(threads), len(self._paths)))
        if not several:
            self._refuse_several()

    def _take(self, index: ShardIndex) -> None:
        """Set the index, and all that is not known yet."""
        self._index = index
        self._header_ends = [header_end(extension) for extension in self._index.extensions]
        self._header_text = np.frombuffer(b"".join(self._header_ends), np.uint8)
        self._header_stops = np.cumsum([0, *map(len, self._header_ends)])
        self._maps: dict[int, _Map]
        self._addresses: Int64  # of the maps; 0 for a tar that is not mapped
        self._columns: dict[str, npt.NDArray[np.int32]]
        self._sizes: Sizes  # of all images, of the shards that were asked for
        self._sized: set[int]
        self._files: Files | None
        self.__dict__ |= self._unmapped()
        self._walked: set[int] = set()  # shards whose index was compared with all headers

    @classmethod
    def joined(cls, parts: Sequence[Shards]) -> Shards:
        """Return the samples of several ``Shards`` as those of one, which is read by one call.

        The parts stay as they are, and share most of the memory of its index.
        """
        found = cls.__new__(cls)
        found._several = parts[0]._several
        for name in ("_paths", "_stats", "_stamps", "_contents", "_apart"):
            setattr(found, name, [each for part in parts for each in getattr(part, name)])
        found._take(ShardIndex.join((part._index for part in parts), len(found._paths)))
        first = 0
        for part in parts:
            part._index = part._index.shared(found._index, first)  # with equal numbers: it may be in use
            first += len(part)
        return found

    def _refuse_several(self) -> None:
        """Raise ShardError for a cache with samples of several images, of which none is the image."""
        index = self._index
        odd = [
            code
            for code, name in enumerate(index.extensions)
            if name not in IMAGE_EXTENSIONS and is_image_name(name)
        ]
        if not odd:
            return
        codes = index.extension[index.member_ends[:-1] + index.image]
        found = np.flatnonzero(np.isin(codes, odd))
        if found.size:
            row = int(found[0])
            names = [name for name, _, _ in index.members(row) if is_image_name(name)]
            raise ShardError(
                f"shard {self.shard(row)}, key {index.key(row)!r} has several images and none that is the "
                f"sample's: give Split(image={names}), or a pattern."
            )

    def _opened(self, threads: int) -> Iterator[ShardIndex]:
        with progress("shards indexed", len(self._paths)) as show:
            for opened in _open_all(self._paths, threads, self._several):
                if opened.warning:
                    warn(opened.warning)
                self._stats += opened.stats
                self._stamps += opened.stamps
                self._contents += opened.contents
                self._apart += opened.apart
                if opened.cached_images is not None:
                    self._cached_images = (*(self._cached_images or ()), *opened.cached_images)
                yield opened.index
                show(len(self._stats))

    def __len__(self) -> int:
        return len(self._index)

    def __getstate__(self) -> dict[str, object]:
        own = self._unmapped().keys()
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__ |= state
        self.__dict__ |= self._unmapped()

    def _unmapped(self) -> dict[str, Any]:
        """Return the fields that belong to one process, empty."""
        return {
            "_maps": {},
            "_addresses": np.zeros(len(self._paths), np.int64),
            "_columns": {},
            "_sizes": np.zeros((len(self._index), 2), np.int32),
            "_sized": set(),
            "_files": None,
        }

    def images(self, ids: npt.ArrayLike, *, check: bool = True) -> list[torch.Tensor]:
        """Return the encoded images of samples ids [B]: uint8 [n] each, views on the map (never write).

        A member of 0 bytes gives an empty tensor.

        Args:
            ids: Sample ids [B].
            check: Compare key and size with the headers in the tar, which reads them.

        Raises:
            IndexError: For an id outside 0..len-1.
        """
        return list(self._views(self._image_places(ids, check), 0))

    def spans(self, ids: npt.ArrayLike) -> Spans:
        """Return the encoded images of samples ids [B] as ``images``, without a tensor of each."""
        places = self._image_places(ids, check=True)
        shards, places[0] = np.unique(places[0], return_inverse=True)
        return Spans([(self._maps.get(shard) or self._map(shard))[0] for shard in shards.tolist()], places)

    def _image_places(self, ids: npt.ArrayLike, check: bool) -> Int64:
        rows = self._checked(ids)
        members = self._index.member_ends[rows] + self._index.image[rows]
        places = self._places(rows, members)
        if check:
            self._compare(rows, members, places)
        return places

    def member_images(self, ids: npt.ArrayLike, extension: str) -> list[torch.Tensor | None]:
        """Return images as ``images``, in the members of that extension; None for samples without."""
        rows = self._checked(ids)
        members = self._members(rows, extension)
        found = members >= 0
        places = self._places(rows[found], members[found])
        self._compare(rows[found], members[found], places)
        views = self._views(places, 0)
        return [next(views) if is_there else None for is_there in found.tolist()]

    def count_members(self, is_counted: Callable[[str], bool]) -> Int64:
        """Return how many members of each sample have an extension for which the function is true: [len]."""
        index = self._index
        is_named = np.array([is_counted(name) for name in index.extensions], np.bool_)
        counts: Int64 = np.add.reduceat(is_named[index.extension], index.member_ends[:-1], dtype=np.int64)
        return counts

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> torch.Tensor:
        """Read the labels of samples ids [B]: int64 [B], ASCII integers in the members of that extension.

        Raises ShardError, with shard and key, if the member is missing or is not an integer.
        """
        rows = self._checked(ids)
        members = self._members(rows, extension)
        if (members < 0).any():
            raise missing(self, int(rows[members < 0][0]), extension)
        places = self._places(rows, members)
        self._compare(rows, members, places)
        from ..ops.decode import read_integers

        labels = read_integers(self._addresses[places[0]] + places[1], places[2])
        if labels is not None:
            return torch.from_numpy(labels)
        texts = (view[: LONGEST + 1].tobytes() for view in self._views(places, 1))
        return integers(self, rows.tolist(), extension, texts)

    def members(self, ids: npt.ArrayLike, extension: str) -> list[bytes | None]:
        """Read the members of samples ids [B] of that extension; None for samples without."""
        rows = self._checked(ids)
        members = self._members(rows, extension)
        found = members >= 0
        places = self._places(rows[found], members[found])
        self._compare(rows[found], members[found], places)
        views = self._views(places, 1)
        return [next(views).tobytes() if is_there else None for is_there in found.tolist()]

    def image_is(self, ids: npt.ArrayLike, extension: str) -> list[bool]:
        """Whether the image of each sample is its member of that extension; False with several images."""
        rows = self._checked(ids)
        members = self._members(rows, extension)
        found: list[bool] = (members == self._index.member_ends[rows] + self._index.image[rows]).tolist()
        return [False] * len(found) if self._several else found

    def extensions(self, id: int) -> list[str]:
        """Extensions of the sample's members, lowercase, without the dot, in the tar's order."""
        (row,) = self._checked([id]).tolist()
        return [extension for extension, _, _ in self._index.members(row)]

    def keys(self, ids: npt.ArrayLike) -> list[str]:
        """Keys of samples ids [B], with their folders."""
        return [self._index.key(row) for row in self._checked(ids).tolist()]

    def shard(self, id: int) -> Path:
        """Absolute path of the tar with the sample."""
        (row,) = self._checked([id]).tolist()
        return self._paths[int(self._index.shard[row])]

    def sizes(self, ids: npt.ArrayLike) -> Sizes:
        """Return (height, width), upright, of the images of samples ids [B]: int32 [B, 2]; (0, 0): unknown.

        Headers are read once per shard and the sizes saved beside it, or in the user's cache directory.
        """
        rows = self._checked(ids)
        unread = list({*np.unique(self._index.shard[rows]).tolist()} - self._sized)
        if unread:
            # The headers of images are far apart: several threads hide the latency of the disk.
            with ThreadPoolExecutor(_READERS) as threads:
                for shard, sizes in zip(unread, threads.map(self._sizes_of, unread), strict=True):
                    self._sizes[self._rows_of(shard)] = sizes
                    self._sized.add(shard)
        return self._sizes[rows]

    def classes(self) -> list[str] | None:
        """Names of the classes by label, as stored beside the shards; None if unknown."""
        return classes_beside(self._paths)

    def identity(self) -> str:
        """Return a hash of ``identities()``."""
        return digest(self._contents)

    def identities(self) -> list[str]:
        """Name of each shard, in order, with its checksum in a cache, otherwise its size and a hash of keys.

        The folder is left out: data may be moved.
        """
        return self._contents

    def will_need(self, ids: npt.ArrayLike) -> None:
        """Ask the system to read the images of samples ids [B], and return at once. Raises ShardError."""
        advise = ctypes.CDLL(None, use_errno=True).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for view in self._whole_samples(ids) if self._several else self.images(ids, check=False):
            start = view.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
            nbytes = view.data_ptr() + view.numel() - start
            if nbytes and advise(start, nbytes, mmap.MADV_WILLNEED) and ctypes.get_errno() != errno.EAGAIN:
                reason = os.strerror(ctypes.get_errno())
                raise ShardError(f"reading ahead failed: {reason}. Set readahead=0 to turn it off.")

    def _whole_samples(self, ids: npt.ArrayLike) -> list[torch.Tensor]:
        """Return the bytes from the first to the last member of samples ids [B], which follow each other."""
        index, rows = self._index, self._checked(ids)
        first, last = index.member_ends[rows], index.member_ends[rows + 1] - 1
        places = self._places(rows, first)
        places[2] = index.offset[last].astype(np.int64) + index.nbytes[last] - places[1]
        return list(self._views(places, 0))

    def check_unchanged(self, ids: npt.ArrayLike) -> None:
        """Raise ShardError if a tar with one of these samples has changed. Call it after they were read.

        What was read from a tar that is written to, or cut, is undefined. A removed tar stays mapped.
        """
        from ..ops.decode import Files

        shards = list(set(self._index.shard[self._checked(ids)].tolist()))
        self._files = self._files or Files(self._paths, self._stats)
        is_torn = any(self._maps[shard][2][0] for shard in shards if shard in self._maps)
        if not is_torn and self._files.are_unchanged(np.array(shards, np.int64)):
            return
        for shard in shards:
            path, mapped, reason = self._paths[shard], self._maps.get(shard), ""
            try:
                found = path.stat()
                if found.st_size != self._stats[shard][0]:
                    reason = f"it has {found.st_size} bytes instead of {self._stats[shard][0]}"
                elif found.st_mtime_ns != self._stats[shard][1]:
                    reason = "its time of modification is another"
            except FileNotFoundError:
                pass
            except OSError as error:
                reason = str(error.strerror)
            if mapped is not None and mapped[2][0]:
                reason = reason or "a part of it cannot be read"
            if reason:
                raise ShardError(
                    f"shard {path} changed while it was read: {reason}. Do not write to shards in use, and "
                    "check the disk. Open it again to read it as it is now."
                )

    def why_missing(self, id: int) -> str:
        """Return why members of the sample's shard may be missing, and the remedy; "" if nothing is known."""
        (row,) = self._checked([id]).tolist()
        key = self._apart[int(self._index.shard[row])]
        return _apart(key) if key else ""

    @property
    def cached_images(self) -> tuple[str, ...] | None:  # noqa: D102
        return self._cached_images

    @property
    def total_bytes(self) -> int:
        """Size of all tars together."""
        return sum(nbytes for nbytes, _ in self._stats)

    def _rows_of(self, shard: int) -> slice:
        """Return the samples of a shard, which are consecutive."""
        start, stop = np.searchsorted(self._index.shard, (shard, shard + 1)).tolist()
        return slice(start, stop)

    def _sizes_of(self, shard: int) -> Sizes:
        rows = self._rows_of(shard)

        def read() -> Sizes:
            ids = np.arange(rows.start, rows.stop)
            sizes = Source.sizes(self, ids)
            self.check_unchanged(ids)
            return sizes

        nbytes, _ = self._stats[shard]
        return load_or_read(self._paths[shard], nbytes, self._stamps[shard], self._index, rows, read)

    def _checked(self, ids: npt.ArrayLike) -> Int64:
        rows = np.asarray(ids)
        if rows.size == 0:
            return np.empty(0, np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise TypeError(f"ids must be integers [B], not {rows.dtype} {list(rows.shape)}")
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"ids must be in 0..{len(self) - 1}, not {rows.min()}..{rows.max()}")
        return rows.astype(np.int64, copy=False)

    def _places(self, rows: Int64, members: Int64) -> Int64:
        """Return the shard, offset and size (bytes) of one member of each sample: int64 [3, B]."""
        index, places = self._index, np.empty((3, len(rows)), np.int64)
        places[0], places[1], places[2] = index.shard[rows], index.offset[members], index.nbytes[members]
        return places

    def _views(self, places: Int64, form: int) -> Iterator[Any]:
        """Yield the bytes of members, views on the maps: tensors (0) or arrays (1)."""
        starts, stops = places[1].tolist(), (places[1] + places[2]).tolist()
        for shard, start, stop in zip(places[0].tolist(), starts, stops, strict=True):
            yield (self._maps.get(shard) or self._map(shard))[form][start:stop]

    def _compare(self, rows: Int64, members: Int64, places: Int64) -> None:
        """Compare key and size of one member of each sample with its header in the tar. Raises ShardError."""
        from ..ops.decode import first_unusual, guard_maps

        guard_maps()  # once per batch: faulthandler, for one, may have been enabled after the last map
        index, shards = self._index, places[0]
        while not (addresses := self._addresses[shards]).all():
            self._map(int(shards[addresses.argmin()]))
        extensions, stops = index.extension[members], self._header_stops
        columns = np.empty((7, len(rows)), np.int64)
        columns[0], columns[1:3] = addresses + places[1], places[1:]
        columns[3], columns[4] = index.key_ends[rows], index.key_ends[rows + 1]
        columns[5], columns[6] = stops[extensions], stops[1:][extensions]
        row = -1
        while (row := first_unusual(columns, row + 1, index.keys, self._header_text)) < len(rows):
            shard, offset, nbytes = places[:, row].tolist()
            tar, key = self._maps[shard][1], index.key_bytes(int(rows[row]))
            if not is_member(tar.data, offset, nbytes, key, self._header_ends[extensions[row]]):
                self._walk(shard)

    def _members(self, rows: Int64, extension: str) -> Int64:
        """Positions of the samples' members of that extension; -1 for samples without."""
        extension = plain(extension)
        column = self._columns.get(extension)
        if column is None:
            column = self._column(extension)
            self._columns[extension] = column
        place = column[rows]
        return np.where(place < 0, -1, self._index.member_ends[rows] + place)

    def _column(self, extension: str) -> npt.NDArray[np.int32]:
        """Which of each sample's members has that extension, from 0; -1 for none."""
        index = self._index
        column = np.full(len(self), -1, np.int32)
        code = index.extensions.index(extension) if extension in index.extensions else -1
        for start in range(0, len(self), _CHUNK):
            ends = index.member_ends[start : start + _CHUNK + 1]
            members = ends[0] + np.flatnonzero(index.extension[ends[0] : ends[-1]] == code)
            rows = np.searchsorted(ends, members, side="right") - 1
            column[start + rows] = members - ends[rows]
        return column

    def _walk(self, shard: int) -> None:
        """Compare the index of a shard with all headers of its tar, once. Raises ShardError if they differ.

        They do if the tar was replaced by another of the same size and time; otherwise a header is unusual.
        """
        if shard in self._walked:
            return
        path = self._paths[shard]
        self.check_unchanged(np.searchsorted(self._index.shard, [shard]))
        is_cached = path.with_name(MANIFEST).exists()
        several = self._several or is_cached
        headers = ShardIndex.of(build(path, several=several) if is_cached else rebuild(path, several=several))
        difference = self._index.difference(headers, *np.searchsorted(self._index.shard, (shard, shard + 1)))
        if difference is None:
            self._walked.add(shard)
            return
        what = f"shard {path}, key {difference[0]!r}: {difference[1]}"
        if is_cached:
            raise CacheError(
                f"{what}. Copy {path.name} and {index_path(path).name} again, or delete {path.name} and run "
                "the build again."
            )
        raise ShardError(
            f"{what}: the file was replaced by another of the same size and time. It was indexed again: "
            "start again."
        )

    def _map(self, shard: int) -> _Map:
        """Map a tar: its bytes as a tensor and as an array, and the flag of map_file."""
        # This import loads the operators; opening shards must not.
        from ..ops.decode import map_file

        path = self._paths[shard]
        try:
            found = path.stat()
            if (found.st_size, found.st_mtime_ns) != self._stats[shard]:
                raise ShardError(
                    f"shard {path} changed since it was opened. Open it again, with a new loader or data "
                    "module, to read it as it is now."
                )
            # No file descriptor stays open: 1000 shards would need 1000.
            tar, torn = map_file(str(path), found.st_size)
        except (OSError, RuntimeError) as error:
            if isinstance(error, ShardError):
                raise
            raise ShardError(
                f"shard {path} cannot be mapped: {error}. Check the file and the free memory."
            ) from error
        # Another thread may have mapped it meanwhile: the address must be that of the map that stays.
        mapped = self._maps.setdefault(shard, (tar, tar.numpy(), torn))
        self._addresses[shard] = mapped[0].data_ptr()
        return mapped


@dataclass(frozen=True)
class _Opened:
    """Consecutive shards.

    Attributes:
        index: Their samples.
        stats: Size (bytes) and time of modification (ns) of each tar.
        stamps: A number for each tar, that changes with its content: see ``sizes.load_or_read``.
        contents: Texts of ``identities()``.
        apart: Of each tar, a key whose members are not together, or "".
        warning: Warning about samples that were left out.
        cached_images: As of ``Source``.
    """

    index: ShardIndex
    stats: list[tuple[int, int]]
    stamps: list[int]
    contents: list[str]
    apart: list[str]
    warning: str = ""
    cached_images: tuple[str, ...] | None = None


def _open_all(paths: Sequence[Path], threads: int, several: bool) -> Iterator[_Opened]:
    """Open shards in order, with that many threads; those of a cache are checked against its manifest."""
    caches = {folder: entries(folder) for folder in {path.parent for path in paths}}
    groups: list[list[tuple[Path, ShardEntry | None]]] = []
    for path in paths:
        listed = caches[path.parent]
        entry = None if listed is None else listed.get(path.name)
        if listed is not None and entry is None:
            raise CacheError(
                f"shard {path} is not in {path.with_name(MANIFEST)}, which lists the {len(listed)} shards of "
                "this cache: move it elsewhere, or build the cache again."
            )
        if entry is None or not groups or groups[-1][0][1] is None or len(groups[-1]) == _TOGETHER:
            groups.append([])
        groups[-1].append((path, entry))
    most = threads if None in caches.values() else min(threads, _PARSERS)
    with ThreadPoolExecutor(max(1, min(most, len(groups)))) as pool:
        yield from pool.map(partial(_open, several=several), groups)


def _open(group: list[tuple[Path, ShardEntry | None]], several: bool) -> _Opened:
    paths = [path for path, _ in group]
    listed = [entry for _, entry in group if entry is not None]
    if listed:
        opened = _open_cached(paths, listed)
        if several and (manifest := read_manifest(paths[0].parent)) is not None:
            opened = replace(opened, cached_images=tuple(manifest.images))
        return opened
    (path,) = paths
    index = load_or_build(path, several=several)
    warning = index.left_out and (
        f"shard {path}: {index.left_out} samples have no image and are left out, "
        f"the first is key {index.first_left_out!r}"
    )
    apart = index.apart  # found anew at each look
    if apart and index.left_out:
        warning = f"shard {path}: {index.left_out} samples have no image and are left out. {_apart(apart)}"
    elif apart:
        warning = (
            f"shard {path}: several samples have the key {apart!r}, and all of them come. If it is "
            f"one: {_apart(apart)}"
        )
    # The size alone says little: a tar is filled up to whole blocks, often of 10 KiB.
    found = hashlib.sha256(index.keys.tobytes() + index.members[NBYTES].tobytes()).hexdigest()[:16]
    contents = [f"{path.name} ({index.tar_nbytes} bytes, {index.samples.shape[1]} samples, {found})"]
    return _Opened(
        index=ShardIndex.of(index),
        stats=[(index.tar_nbytes, index.tar_mtime_ns)],
        stamps=[index.tar_mtime_ns],
        contents=contents,
        apart=[apart],
        warning=warning or "",
    )


def _apart(key: str) -> str:
    return (
        f"The members of key {key!r} are not next to each other in the tar, as those of each sample must be: "
        "write it again, sorted by name, as tar --sort=name does."
    )


def _open_cached(paths: Sequence[Path], listed: Sequence[ShardEntry]) -> _Opened:
    stats, texts = [], []
    indexes = [index_path(path) for path in paths]
    for path, place, entry in zip(paths, indexes, listed, strict=True):
        try:
            found = path.stat()
            if found.st_size != entry.bytes:
                raise CacheError(
                    f"shard {path} has {found.st_size} bytes, but {entry.bytes} in {MANIFEST}: it is not "
                    "complete, or not of this build. Copy it again, or run the build again."
                )
            stats.append((found.st_size, found.st_mtime_ns))
            texts.append(read_regular(place))
            # A damaged index is still an index, of other keys and lengths.
            if hashlib.sha256(texts[-1]).hexdigest() != entry.idx_sha256:
                raise CacheError(
                    f"{place} is damaged, or not of this build: its checksum is not the one in {MANIFEST}. "
                    "Copy it again, or run the build again."
                )
        except OSError as error:
            raise CacheError(
                f"{error.filename or place}, which {MANIFEST} lists, cannot be read: {error.strerror}. Copy "
                "the cache again, or run its build again, which writes the missing files."
            ) from error
    index = parse(texts, indexes, [nbytes for nbytes, _ in stats])
    for place, entry, samples in zip(indexes, listed, np.bincount(index.shard).tolist(), strict=True):
        if samples != entry.samples:
            raise CacheError(
                f"{place} has {samples} samples, but {entry.samples} in {MANIFEST}. Run the build again."
            )
    return _Opened(
        index=index,
        stats=stats,
        stamps=[stamp_of(entry.sha256) for entry in listed],
        contents=[f"{entry.name} (sha256 {entry.sha256[:32]})" for entry in listed],
        apart=[""] * len(listed),
        cached_images=(),
    )
