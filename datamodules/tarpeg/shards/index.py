"""Where the members of a tar lie: built once with Python's tarfile, saved, and checked on every load."""
# MERGED: The samples of many shards as one struct of arrays, small enough for millions of them.

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import platformdirs

from ..errors import ShardError
from .tar import grouped, regular_members

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "ppm", "gif")
# Pillow's other plugins are not for data from anywhere: that for EPS runs Ghostscript on it.
PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "TIFF", "PPM", "GIF")
SAVED_SUFFIX = ".tarpeg.npz"

_VERSION = 1
# Note [One parser]: numpy parses the header of an array as Python, and CPython 3.11 fails now and then where
# two threads parse at once ("AST constructor recursion depth mismatch", its issue 106905).
_one_parser = threading.Lock()
# A damaged saved index reaches numpy's innards, which raise more than their own exceptions.
_BROKEN_SAVED = (
    *(OSError, ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, MemoryError),
    *(SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error),
)

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TarIndex:
    """The samples of one tar that have an image, as a struct of arrays (S samples, M members).

    keys: uint8, all keys in UTF-8 (surrogateescape), one after another. samples: int64 [3, S], rows KEY_END
    (where the key ends in keys), MEMBER_END (one past its last member), IMAGE (the member that is its image).
    members: int64 [3, M], rows EXTENSION (an index into extensions), OFFSET and SIZE (bytes in the tar).
    left_out counts the samples without an image; first_left_out is the key of the first.
    """

    tar_size: int
    tar_mtime_ns: int
    keys: npt.NDArray[np.uint8]
    samples: Int64
    members: Int64
    extensions: tuple[str, ...]
    left_out: int
    first_left_out: str


KEY_END, MEMBER_END, IMAGE = range(3)
EXTENSION, OFFSET, SIZE = range(3)


def load_or_build(path: Path) -> TarIndex:
    """Index the tar at path: the saved index where it still fits, otherwise a new one, saved where possible.

    Raises ShardError where the tar is missing, unreadable, no uncompressed tar, truncated or without images.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise ShardError(f"shard {path} cannot be read: {error.strerror}. Check the path.") from error
    if not stat.S_ISREG(found.st_mode):
        raise ShardError(f"shard {path} is not a regular file. Give a .tar file (a folder: its .tar files).")
    places = _places(path)
    for place in places:
        index = load(place, found.st_size, found.st_mtime_ns)
        if index is not None:
            return index
    index = build(path)
    # Without a place to write there is nothing to tell: the next process indexes again.
    any(save(index, place) for place in places)
    return index


def build(path: Path) -> TarIndex:
    """Read the headers of the tar at path into an index. Raises ShardError as load_or_build does."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            return build_from(file, path, found.st_size, found.st_mtime_ns)
    except OSError as error:
        raise ShardError(f"shard {path} cannot be read: {error}. Check permissions and disk.") from error


def build_from(file: BinaryIO, path: object, size: int, mtime_ns: int) -> TarIndex:
    """Index a tar of `size` bytes that is read forwards, but for a block at a time; `path` is its name."""
    keys: list[bytes] = []
    samples: list[tuple[int, int, int]] = []
    members: list[tuple[int, int, int]] = []
    codes: dict[str, int] = {}
    left_out: list[str] = []
    key_end = 0
    found = ((name, (offset, length)) for name, offset, length in regular_members(file, path, size))
    for key, sample in grouped(found, path):
        image = image_of(sample)
        if image is None:
            left_out.append(key)
            continue
        keys.append(key.encode("utf-8", "surrogateescape"))
        key_end += len(keys[-1])
        samples.append((key_end, len(members) + len(sample), len(members) + list(sample).index(image)))
        for extension, (offset, length) in sample.items():
            members.append((codes.setdefault(extension, len(codes)), offset, length))
    if not samples:
        seen = f"its first key is {left_out[0]!r}" if left_out else "it has no key.extension members at all"
        raise ShardError(
            f"shard {path} holds no image: {seen}. Images are named KEY.EXTENSION, with an extension of "
            f"{', '.join(IMAGE_EXTENSIONS)}, and the key ends at the first dot of the file name."
        )
    return TarIndex(
        tar_size=size,
        tar_mtime_ns=mtime_ns,
        keys=np.frombuffer(b"".join(keys), np.uint8),
        samples=np.array(samples, np.int64).T.copy(),
        members=np.array(members, np.int64).T.copy(),
        extensions=tuple(codes),
        left_out=len(left_out),
        first_left_out=left_out[0] if left_out else "",
    )


def image_of(extensions: Collection[str]) -> str | None:
    """Choose the member that is the sample's image; None where it has none."""
    return next((extension for extension in IMAGE_EXTENSIONS if extension in extensions), None)


def _places(path: Path) -> tuple[Path, Path]:
    """Where the index of the tar at path may be saved: beside it, or in the user's cache directory."""
    name = path.stem if path.suffix == ".tar" else path.name
    digest = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
    cache = platformdirs.user_cache_path("tarpeg") / "index"
    return path.with_name(name + SAVED_SUFFIX), cache / f"{digest}.npz"


def save(index: TarIndex, place: Path) -> bool:
    """Save the index, whole or not at all: another process may read at any time. False where it cannot."""
    texts = json.dumps({"extensions": index.extensions, "first_left_out": index.first_left_out})
    # Not tempfile: its mode 0600 would keep the index from others who share the shards.
    aside = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("xb") as file:
                np.savez(
                    file,
                    head=np.array([_VERSION, index.tar_size, index.tar_mtime_ns, index.left_out], np.int64),
                    keys=index.keys,
                    samples=index.samples,
                    members=index.members,
                    texts=np.frombuffer(texts.encode("ascii"), np.uint8),
                )
            aside.replace(place)
        finally:
            aside.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def load(place: Path, size: int, mtime_ns: int) -> TarIndex | None:
    """Load a saved index; None where there is none, or it is damaged, or of a tar of another size or time."""
    try:
        data = io.BytesIO(place.read_bytes())
        with _one_parser, np.load(data, allow_pickle=False) as saved:
            version, tar_size, tar_mtime_ns, left_out = saved["head"].tolist()
            if (version, tar_size, tar_mtime_ns) != (_VERSION, size, mtime_ns):
                return None
            texts = json.loads(saved["texts"].tobytes())
            arrays = (saved["keys"], saved["samples"], saved["members"])
            names = tuple(texts["extensions"])
            index = TarIndex(tar_size, tar_mtime_ns, *arrays, names, left_out, texts["first_left_out"])
            return index if _is_sound(index) else None
    except _BROKEN_SAVED:
        return None


def _is_sound(index: TarIndex) -> bool:
    """Say whether all numbers stay inside the tar and the tables: they are about to address memory."""
    samples, members = index.samples, index.members
    if any(rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[0] != 3 for rows in (samples, members)):
        return False
    if index.keys.dtype != np.uint8 or index.keys.ndim != 1 or samples.shape[1] == 0:
        return False
    ends = samples[MEMBER_END]
    starts = np.concatenate(([0], ends[:-1]))
    return bool(
        (np.diff(samples[KEY_END], prepend=0) >= 0).all()
        and samples[KEY_END, -1] == len(index.keys)
        and (ends > starts).all()
        and ends[-1] == members.shape[1]
        and ((samples[IMAGE] >= starts) & (samples[IMAGE] < ends)).all()
        and ((members[EXTENSION] >= 0) & (members[EXTENSION] < len(index.extensions))).all()
        and (members[OFFSET:] >= 0).all()
        and (members[OFFSET] <= index.tar_size - members[SIZE]).all()
    )


Ints = npt.NDArray[np.integer]

_COLUMNS = ("samples", "keys", "key_sizes", "members", "image", "extension", "offset", "size")


@dataclass(frozen=True)
class Run:
    """The samples of consecutive shards (N shards, S samples, M members), in the smallest integers that do.

    samples: [N], of each shard. keys: uint8, one after another; key_sizes: [S], bytes of each. members: [S],
    how many a sample has; image: [S], which of them is its image, from 0. extension: [M], an index into
    extensions. offset, size: [M], bytes in the tar.
    """

    samples: Ints
    keys: npt.NDArray[np.uint8]
    key_sizes: Ints
    members: Ints
    image: Ints
    extensions: tuple[str, ...]
    extension: Ints
    offset: Ints
    size: Ints

    @classmethod
    def of(cls, index: TarIndex) -> Run:
        """Take over the index of one tar."""
        ends = index.samples[MEMBER_END]
        members = np.diff(ends, prepend=0)
        return cls(
            samples=np.array([len(ends)]),
            keys=index.keys,
            key_sizes=small(np.diff(index.samples[KEY_END], prepend=0)),
            members=small(members),
            image=small(index.samples[IMAGE] - (ends - members)),
            extensions=index.extensions,
            extension=small(index.members[EXTENSION]),
            offset=index.members[OFFSET].copy(),
            size=small(index.members[SIZE]),
        )


@dataclass(frozen=True)
class Table:
    """The samples of all shards, S samples and M members.

    shard: int32 [S]. key_ends: int64 [S + 1], sample s has keys[key_ends[s]:key_ends[s + 1]]. member_ends:
    int64 [S + 1], likewise among the members. image, extension, offset, size: as in Run.
    """

    shard: npt.NDArray[np.int32]
    keys: npt.NDArray[np.uint8]
    key_ends: Int64
    member_ends: Int64
    image: Ints
    extensions: dict[str, int]
    extension: Ints
    offset: Ints
    size: Ints


def join(runs: Iterable[Run], shards: int = 1) -> Table:
    """Join runs. shards: how many they have together, which says how much room will be needed.

    Each is copied to its final place as it comes: to collect them first would take twice the memory.
    """
    codes: dict[str, int] = {}
    columns = {name: _Column() for name in _COLUMNS}
    for run in runs:
        renumbered = np.array([codes.setdefault(name, len(codes)) for name in run.extensions])
        share = len(run.samples) / shards
        for name, column in columns.items():
            values = getattr(run, name)
            column.extend(small(renumbered[values]) if name == "extension" else values, share)
    samples: Ints = columns["samples"].values()
    return Table(
        shard=np.repeat(np.arange(len(samples), dtype=np.int32), samples),
        keys=columns["keys"].values(),
        key_ends=_ends(columns.pop("key_sizes").values()),
        member_ends=_ends(columns.pop("members").values()),
        image=columns["image"].values(),
        extensions=codes,
        extension=columns["extension"].values(),
        offset=columns["offset"].values(),
        size=columns["size"].values(),
    )


class _Column:
    """An array that grows. Room that is never written to takes no memory."""

    def __init__(self) -> None:
        self._array: npt.NDArray[Any] = np.empty(0, np.uint8)
        self._count = 0

    def extend(self, values: npt.NDArray[Any], share: float) -> None:
        """Add values, which are about that share of all there will be."""
        stop = self._count + len(values)
        dtype = np.promote_types(self._array.dtype, values.dtype)
        if stop > len(self._array) or dtype != self._array.dtype:
            room = max(stop, int(1.2 * (len(values) / share if not self._count else stop)), len(self._array))
            grown = np.empty(room, dtype)
            grown[: self._count] = self._array[: self._count]
            self._array = grown
        self._array[self._count : stop] = values
        self._count = stop

    def values(self) -> npt.NDArray[Any]:
        return self._array[: self._count]


def small(numbers: Ints) -> Ints:
    """Copy non-negative integers into the smallest unsigned type that holds them all."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _ends(sizes: Ints) -> Int64:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends
