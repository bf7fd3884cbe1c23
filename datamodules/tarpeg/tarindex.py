"""Where the members of a tar lie: built once with Python's tarfile, saved, and checked on every load."""

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
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import platformdirs

from .errors import ShardError
from .tarmembers import grouped, regular_members

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
