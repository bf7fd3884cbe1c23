"""Where the members of a tar lie: built once with Python's tarfile, saved, and checked on every load.

Samples are grouped as in webdataset 1.0.2 (its ``tariterators.py``): consecutive members of equal key form a
sample, and the first dot of the basename parts the key from the extension.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import platformdirs

from .errors import ShardError

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "ppm", "gif")
SAVED_SUFFIX = ".tarpeg.npz"

_VERSION = 1
_BLOCK = 512
_KEY_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META = re.compile(r"__[^/]*__($|/)")
# A damaged tar or saved index reaches the parsers' innards, which raise more than their own exceptions.
_BROKEN_TAR = (tarfile.TarError, ValueError, OverflowError, EOFError, IndexError, MemoryError, RecursionError)
_BROKEN_SAVED = (
    *(OSError, ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, MemoryError),
    *(SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error),
)
_PACKED = "is compressed; shards are memory-mapped and must be uncompressed: run {} on it"
_FOREIGN = (
    (b"\x1f\x8b", _PACKED.format("gunzip")),
    (b"BZh", _PACKED.format("bunzip2")),
    (b"\xfd7zXZ", _PACKED.format("unxz")),
    (b"\x28\xb5\x2f\xfd", _PACKED.format("unzstd")),
    (b"PK\x03\x04", "is a zip file, not a tar: repack it as an uncompressed tar"),
    (b"version https://git-lfs", "is a git-lfs pointer, not the tar itself: run git lfs pull"),
    (b"<", "is not a tar but looks like HTML or XML (a failed download?): download it again"),
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
        index = _load(place, found)
        if index is not None:
            return index
    index = build(path)
    # Without a place to write there is nothing to tell: the next process indexes again.
    any(_save(index, place) for place in places)
    return index


def build(path: Path) -> TarIndex:
    """Read the headers of the tar at path into an index. Raises ShardError as load_or_build does."""
    try:
        with path.open("rb") as file:
            return _build(file, path)
    except OSError as error:
        raise ShardError(
            f"shard {path} cannot be read: {error}. Check its permissions and its disk."
        ) from error


def _build(file: BinaryIO, path: Path) -> TarIndex:
    found = os.fstat(file.fileno())
    keys: list[bytes] = []
    samples: list[tuple[int, int, int]] = []
    members: list[tuple[int, int, int]] = []
    codes: dict[str, int] = {}
    left_out: list[str] = []
    sample: dict[str, tuple[int, int]] = {}
    key_end = 0

    def close(key: str) -> None:
        nonlocal key_end
        image = next((extension for extension in IMAGE_EXTENSIONS if extension in sample), None)
        if image is None:
            left_out.append(key)
            return
        keys.append(key.encode("utf-8", "surrogateescape"))
        key_end += len(keys[-1])
        samples.append((key_end, len(members) + len(sample), len(members) + list(sample).index(image)))
        for extension, (offset, size) in sample.items():
            members.append((codes.setdefault(extension, len(codes)), offset, size))

    current: str | None = None
    for name, offset, size in _regular_members(file, path, found.st_size):
        match = _KEY_AND_EXTENSION.match(name)
        if match is None or _META.match(name):
            continue
        key, extension = match[1], match[2].lower()
        if key != current:
            if current is not None:
                close(current)
            current, sample = key, {}
        if extension in sample:
            raise ShardError(
                f"shard {path}: key {key!r} has two members {extension!r}, the second at byte {offset}. "
                "Write each member once; a key ends at the first dot of the file name."
            )
        sample[extension] = (offset, size)
    if current is not None:
        close(current)
    if not samples:
        seen = f"its first key is {left_out[0]!r}" if left_out else "it has no key.extension members at all"
        raise ShardError(
            f"shard {path} holds no image: {seen}. Images are named KEY.EXTENSION, with an extension of "
            f"{', '.join(IMAGE_EXTENSIONS)}, and the key ends at the first dot of the file name."
        )
    return TarIndex(
        tar_size=found.st_size,
        tar_mtime_ns=found.st_mtime_ns,
        keys=np.frombuffer(b"".join(keys), np.uint8),
        samples=np.array(samples, np.int64).T.copy(),
        members=np.array(members, np.int64).T.copy(),
        extensions=tuple(codes),
        left_out=len(left_out),
        first_left_out=left_out[0] if left_out else "",
    )


def _regular_members(file: BinaryIO, path: Path, tar_size: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size (bytes) of all regular members; ShardError where the tar is not whole."""
    head = file.read(32)
    file.seek(0)
    if not head:
        raise ShardError(f"shard {path} is empty (0 bytes). Write or download it again.")
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            while (member := tar.next()) is not None:
                # TarFile remembers each member (about 2 kB), which a tar of millions would feel.
                tar.members = []  # type: ignore[attr-defined]
                if not member.isreg():
                    continue
                if member.issparse():
                    raise ShardError(
                        f"shard {path}: {member.name!r} is stored sparse. Repack without --sparse."
                    )
                if member.size < 0 or member.offset_data + member.size > tar_size:
                    raise ShardError(
                        f"shard {path} is truncated or damaged: member {member.name!r} is said to be "
                        f"{member.size} bytes at {member.offset_data}, but the file has {tar_size}. "
                        "Copy or download it again."
                    )
                yield member.name, member.offset_data, member.size
            end = tar.offset
    except _BROKEN_TAR as error:
        for magic, what in _FOREIGN:
            if head.lstrip().startswith(magic):
                raise ShardError(f"shard {path} {what}.") from error
        what = "another format, or truncated or damaged: write or download it again"
        raise ShardError(f"shard {path} is not a whole tar ({error}). It is {what}.") from error
    # tarfile takes a broken header behind the first member for the end, so look what it stopped at.
    file.seek(end)
    block = file.read(_BLOCK)
    if len(block) < _BLOCK:
        raise ShardError(
            f"shard {path} is truncated: it ends at byte {tar_size} without the end-of-archive block. "
            "Copy or download it again."
        )
    if any(block):
        raise ShardError(f"shard {path} is damaged: no tar header at byte {end}. Copy or download it again.")
    while rest := file.read(1 << 20):
        if rest.count(0) != len(rest):
            raise ShardError(
                f"shard {path} goes on behind its end-of-archive block at byte {end} (tars joined with "
                "cat?); readers would stop there. Use the tars apart, or join them with tar --concatenate."
            )


def _places(path: Path) -> tuple[Path, Path]:
    """Where the index of the tar at path may be saved: beside it, or in the user's cache directory."""
    name = path.stem if path.suffix == ".tar" else path.name
    digest = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
    cache = platformdirs.user_cache_path("tarpeg") / "index"
    return path.with_name(name + SAVED_SUFFIX), cache / f"{digest}.npz"


def _save(index: TarIndex, place: Path) -> bool:
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


def _load(place: Path, found: os.stat_result) -> TarIndex | None:
    """Load a saved index; None where there is none, or it is damaged, or not of the tar that was found."""
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as saved:
            version, tar_size, tar_mtime_ns, left_out = saved["head"].tolist()
            if (version, tar_size, tar_mtime_ns) != (_VERSION, found.st_size, found.st_mtime_ns):
                return None
            texts = json.loads(saved["texts"].tobytes())
            index = TarIndex(
                tar_size,
                tar_mtime_ns,
                saved["keys"],
                saved["samples"],
                saved["members"],
                tuple(texts["extensions"]),
                left_out,
                texts["first_left_out"],
            )
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
