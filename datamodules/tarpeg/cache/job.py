"""What one job of a cache build does: read its samples, encode the images, put one whole shard in place.

Jobs run in other processes, perhaps on other machines that share the folder, and may outlive the builder that
sent them. What they write lies in DEST/.building, locked while its writer lives; only under the commit lock,
and only while the build there is still theirs, is a record written and the shard renamed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import socket
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from ..errors import CacheError, DecodeError
from ..files import write_json
from ..shards.index import build_from, save
from ..shards.manifest import BUILDING, MANIFEST, CodecEntry
from ..shards.pillow import image_extension
from ..shards.wds_index import Component, index_text
from .codecs import Codec
from .sources import Input, Sample, Shard

COMMIT_LOCK, BUILD = ".commit.lock", "build.fingerprint"
OWNER = "tarpeg"  # every member's user, as in shards of make_shards
_BLOCK = 512
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


@dataclass(frozen=True)
class Job:
    """One shard to write: DEST/NAME.tar, of what source reads. build: the fingerprint of the whole build."""

    dest: str
    name: str
    source: Input
    codec: Codec
    build: str

    @property
    def fingerprint(self) -> str:
        """Tell what this shard is made of, and how."""
        return digest([self.source.identity(), describe(self.codec)])


@dataclass
class Record:
    """What became of a job: the shard, and how its images fared.

    bytes: of the tar; source_bytes: of a tar of the samples as they came. tiles: images by width of tile in
    pixels; untiled: images by reason; quarantine: (source shard, key, reason).
    """

    name: str
    fingerprint: str
    samples: int = 0
    bytes: int = 0
    sha256: str = ""
    idx_sha256: str = ""
    source_bytes: int = 0
    tiles: dict[str, int] = field(default_factory=dict)
    untiled: dict[str, int] = field(default_factory=dict)
    quarantine: list[tuple[str, str, str]] = field(default_factory=list)
    mtime_ns: int = 0


def run(job: Job) -> Record:
    """Write the shard of one job; the same bytes wherever and however often it runs.

    Raises ShardError where the source cannot be read, and CacheError where the shard cannot be written.
    """
    folder = Path(job.dest)
    record = Record(job.name, job.fingerprint)
    _check_current(job)
    try:
        with temporary(folder, f"{job.name}.tar") as tar, temporary(folder, f"{job.name}.idx") as idx:
            _write(job, record, tar, idx)
            with FileLock(folder / COMMIT_LOCK):
                _check_current(job)
                record.mtime_ns = os.fstat(tar.fileno()).st_mtime_ns
                write_json(folder / BUILDING / f"{job.name}.json", asdict(record))
                # From here on the folder is not what an earlier manifest says.
                (folder / MANIFEST).unlink(missing_ok=True)
                # The index first: a shard under its final name has one. Of no samples there is neither.
                for file, kind in ((idx, "idx"), (tar, "tar")):
                    path = folder / f"{job.name}.{kind}"
                    Path(file.name).replace(path) if record.samples else path.unlink(missing_ok=True)
    except OSError as error:
        raise CacheError(
            f"cannot write {folder / job.name}.tar: {error.strerror or error}. Whatever is finished is kept: "
            "make room, or see to the disk, and start again."
        ) from error
    return record


def _write(job: Job, record: Record, tar: BinaryIO, idx: BinaryIO) -> None:
    writer, written, last = _Writer(tar), [], None
    for sample in job.source.read():
        record.source_bytes += sum(tar_size(len(data)) for data in sample.members.values())
        try:
            members = _encoded(job.codec, sample, record)
        except DecodeError as error:
            record.quarantine.append((sample.shard, _plain(sample.key), str(error)))
            continue
        # Readers take neighbours of one key for one sample: cut anew, or beside one in quarantine.
        key = sample.key if sample.key != last else f"{sample.key}_2"
        last = key
        written.append([writer.add(key, extension, data) for extension, data in members.items()])
    writer.end()
    record.samples, record.bytes, record.sha256 = len(written), writer.position, writer.digest()
    text = index_text(written)
    idx.write(text)
    record.idx_sha256 = hashlib.sha256(text).hexdigest()
    for file in (tar, idx):
        file.flush()
        os.fsync(file.fileno())


def _encoded(codec: Codec, sample: Sample, record: Record) -> dict[str, bytes]:
    """Give the sample's members with the image encoded, in their order."""
    image = image_extension(sample.members)
    if image is None:
        raise DecodeError(f"there is no image among its members {list(sample.members)}")
    data, extension, tile, untiled = codec.encode(sample.members[image], image)
    members = {extension if name == image else name: content for name, content in sample.members.items()}
    if len(members) < len(sample.members) or image_extension(members) != extension:
        raise CacheError(
            f"shard {sample.shard}, key {sample.key!r}: as KEY.{extension} its image would be mistaken: "
            f"there is a member {image_extension(members)!r} too. Take another codec, or rename it."
        )
    members[extension] = data
    counts, name = (record.untiled, untiled) if tile is None else (record.tiles, str(tile))
    counts[name] = counts.get(name, 0) + 1
    return members


class _Writer:
    """A tar in the making: headers that depend on names and sizes alone, and a checksum on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self.position = 0
        self._file, self._sha = file, hashlib.sha256()

    def add(self, key: str, extension: str, data: bytes) -> Component:
        """Write one member; returns where it lies."""
        name = f"{key}.{extension}"
        self._put(header(name, len(data)))
        component = Component(extension, self.position, len(data), name)
        self._put(data)
        self._put(bytes(-len(data) % _BLOCK))
        return component

    def end(self) -> None:
        self._put(bytes(2 * _BLOCK))

    def digest(self) -> str:
        return self._sha.hexdigest()

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._sha.update(data)
        self.position += len(data)


def header(name: str, size: int) -> bytes:
    """Make the header of a member in a tar; it depends on name and size alone.

    What fits into plain ustar is filled in here: tarfile takes 40 us for the same bytes.
    """
    if name.isascii() and len(name) <= _LONGEST_NAME and size < 8**11:
        filled = bytearray(_EMPTY)
        plain, digits = name.encode("ascii"), b"%011o" % size
        filled[: len(plain)], filled[124:135] = plain, digits
        filled[148:154] = b"%06o" % (_EMPTY_SUM + sum(plain) + sum(digits) - 11 * ord("0"))
        return bytes(filled)
    return _slow_header(name, size)


def _slow_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.uname, info.gname = size, 0o644, OWNER, OWNER
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


_LONGEST_NAME = 100
_EMPTY = _slow_header("", 0)
_EMPTY_SUM = int(_EMPTY[148:154], 8)


@contextlib.contextmanager
def temporary(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open a file in DEST/.building that is locked, so that others see it is in the making, until the end."""
    path = folder / BUILDING / f"{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    file = create(path)
    try:
        with file:
            # Between creation and lock somebody may have taken it for a dead builder's: gone, then.
            if not lock(file) or not path.exists():
                raise FileNotFoundError(errno.ENOENT, "another builder removed a temporary file", str(path))
            yield file
    finally:
        path.unlink(missing_ok=True)


def create(path: Path) -> BinaryIO:
    """Create a file to write."""
    return path.open("xb", buffering=32 << 10)  # images go past the buffer, headers do not


def remove_temporaries(folder: Path) -> None:
    """Remove what dead builders have left: files that nobody has locked. Call under the commit lock."""
    for path in (folder / BUILDING).glob("*.tmp"):
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            if lock(file):
                path.unlink()


def lock(file: BinaryIO) -> bool:
    """Lock a file while it is open; False where another has it. CacheError where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise CacheError(
                f"{file.name}: this file system has no file locks (flock), without which builders cannot "
                "tell each other's files. Build the cache on another, and copy it."
            ) from error
        raise
    return True


def _check_current(job: Job) -> None:
    """Raise CacheError unless the build in the folder is the job's: its builder may have died meanwhile."""
    path = Path(job.dest) / BUILDING / BUILD
    try:
        build = json.loads(path.read_bytes()).get("fingerprint")
    except FileNotFoundError as error:
        raise CacheError(
            f"{path} is not there on {socket.gethostname()}: the build has ended, or this machine does not "
            "share the folder, as all workers must."
        ) from error
    if build != job.build:
        raise CacheError(f"{path}: another build has taken over; this one's shard {job.name} is dropped.")


def index(shard: Shard, place: str) -> None:
    """Index a source shard behind a URL, and save the index at place."""
    stamp = stamp_of(shard)
    with shard.opened() as file:
        found = build_from(file, shard.name, shard.size, stamp)
    if not save(found, Path(place)):
        raise CacheError(f"cannot write {place}: make room, or see to the disk, and start again.")


def stamp_of(shard: Shard) -> int:
    """Turn what tells a shard's version into a number, where a local index has a time of modification."""
    return int(digest(shard.stamp)[:15], 16)


def describe(codec: Codec) -> CodecEntry:
    """Name a codec and its parameters in plain values."""
    return {"name": type(codec).__name__, "parameters": asdict(codec)}  # type: ignore[call-overload]


def digest(content: object) -> str:
    """Hash plain values: sha256, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _plain(key: str) -> str:
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def tar_size(size: Any) -> Any:
    """Count the bytes that a member of that size takes in a tar, its header included; for arrays too."""
    return _BLOCK - (-size // _BLOCK) * _BLOCK
