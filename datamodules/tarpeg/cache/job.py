"""One job of a cache build: read samples, encode the images, write one shard.

Jobs run in other processes, possibly on other machines that share the folder, and may outlive the builder
that submitted them. They write to temporary files in DEST/.building that are locked while they are written.
Under the commit lock, and only if the build in the folder is still theirs, they write the shard's result and
rename the shard to its place.
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from ..errors import CacheError, DecodeError
from ..files import read_regular, write_json
from ..shards.index import build_from, save
from ..shards.manifest import BUILDING, MANIFEST, CodecEntry, Finding
from ..shards.pillow import NATIVE, format_name, image_extension, is_animated
from ..shards.saved import SIZES_SUFFIX
from ..shards.sizes import sizes_file, stamp_of
from ..shards.source import is_label, label_text
from ..shards.tar_writer import tar_nbytes, write_tar
from ..shards.wds_index import index_text, parse
from . import masks
from .codecs import Codec
from .sources import Sample, ShardInput, SourceShard

NO_LABEL = "samples without a label (a member cls)"
WRONG_LABEL = "labels that are not 64-bit integers, at which training stops"
NO_MASK = "samples without a mask, which training replaces"
BROKEN_MASK = "masks that are broken or do not fit their image, which training replaces"
FRAMES = "images with several frames or pages, of which the first is in the cache"
COMMIT_LOCK, CURRENT_BUILD = ".commit.lock", "build.fingerprint"
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


@dataclass(frozen=True)
class ShardJob:
    """One shard to write, DEST/NAME.tar.

    Attributes:
        dest: Folder of the cache.
        name: Name of the shard without ".tar".
        source: Samples of the shard.
        codec: Codec of the images.
        build: Fingerprint of the build.
        masks: Extensions of the members that are masks.
    """

    dest: str
    name: str
    source: ShardInput
    codec: Codec
    build: str
    masks: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hash of the samples, as far as known without reading them, of the codec and the masks."""
        return hash_of([self.source.identity(), describe_codec(self.codec), *self.masks])


@dataclass
class ShardResult:
    """Result of one job; DEST/.building/NAME.json has the same fields.

    Attributes:
        name: Name of the shard without ".tar".
        fingerprint: Hash of the job's samples and codec.
        samples: Number of samples in the shard.
        bytes: Bytes of the tar.
        sha256: Checksum of the tar.
        idx_sha256: Checksum of its index.
        source_bytes: Bytes of a tar of the samples before encoding.
        tiles: Number of images by width of tile in pixels.
        untiled: Number of images without tiles, by reason.
        converted: Number of files that became JPEGs, by format; not in the manifest.
        findings: As in the manifest.
        quarantine: Samples that were left out: (source shard, key, reason).
        mtime_ns: Time of modification of the tar.
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
    converted: dict[str, int] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    quarantine: list[tuple[str, str, str]] = field(default_factory=list)
    mtime_ns: int = 0


def run_job(job: ShardJob) -> ShardResult:
    """Write the shard of one job; the bytes do not depend on where and how often it runs.

    Raises ShardError if the source cannot be read, and CacheError if the shard cannot be written.
    """
    folder = Path(job.dest)
    result = ShardResult(job.name, job.fingerprint)
    _check_current(job)
    try:
        with (
            locked_temporary(folder, f"{job.name}.tar") as tar,
            locked_temporary(folder, f"{job.name}.idx") as idx,
            locked_temporary(folder, f"{job.name}{SIZES_SUFFIX}") as sizes,
        ):
            _write_shard(job, result, tar, idx, sizes)
            with FileLock(folder / COMMIT_LOCK):
                _check_current(job)
                result.mtime_ns = os.fstat(tar.fileno()).st_mtime_ns
                write_json(folder / BUILDING / f"{job.name}.json", asdict(result))
                # From here on an earlier manifest does not describe the folder.
                (folder / MANIFEST).unlink(missing_ok=True)
                # The tar last, so that every shard in place has an index. Without samples there are no files.
                for file, suffix in ((sizes, SIZES_SUFFIX), (idx, ".idx"), (tar, ".tar")):
                    path = folder / f"{job.name}{suffix}"
                    if result.samples:
                        Path(file.name).replace(path)
                    else:
                        path.unlink(missing_ok=True)
    except OSError as error:
        path = error.filename2 or folder / f"{job.name}.tar"  # the second is that of a rename
        raise CacheError(
            f"cannot write {path}: {error.strerror or error}. Finished shards are kept: make room or check "
            "the disk, then start again."
        ) from error
    return result


def index_remote_shard(shard: SourceShard, path: str) -> None:
    """Index a remote shard by reading it through, and save the index at `path`."""
    with shard.open() as file:
        index = build_from(file, shard.name, shard.nbytes, version_number(shard))
    if not save(index, Path(path)):
        raise CacheError(f"cannot write {path}: make room or check the disk, then start again.")


def version_number(shard: SourceShard) -> int:
    """Hash of a shard's version, saved in the place where the index of a local tar has a time."""
    return int(hash_of(shard.version)[:15], 16)


def describe_codec(codec: Codec) -> CodecEntry:
    """Return name and parameters of a codec as plain values."""
    return {"name": type(codec).__name__, "parameters": asdict(codec)}  # type: ignore[call-overload]


def hash_of(content: object) -> str:
    """Return the sha256 of plain values in hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write_shard(job: ShardJob, result: ShardResult, tar: BinaryIO, idx: BinaryIO, sizes: BinaryIO) -> None:
    written = write_tar(tar, _encoded(job, result))
    result.samples, result.bytes, result.sha256 = len(written.samples), written.nbytes, written.sha256
    text = index_text(written.samples)
    idx.write(text)
    result.idx_sha256 = hashlib.sha256(text).hexdigest()
    for file in (tar, idx):
        file.flush()
        os.fsync(file.fileno())
    if result.samples:
        index = parse([text], [Path(idx.name)], [written.nbytes])
        # Without them, and after a power failure, which may damage the file, readers find the sizes.
        with contextlib.suppress(OSError):
            sizes.write(sizes_file(Path(tar.name), written.nbytes, stamp_of(written.sha256), index))
            sizes.flush()


def _encoded(job: ShardJob, result: ShardResult) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield key and members of each sample with its image encoded; count all and list the bad in `result`."""
    last = None
    seen: set[str] = set()
    for sample in job.source.read():
        result.source_bytes += sum(tar_nbytes(len(data)) for data in sample.members.values())
        try:
            members = _encode(job.codec, sample, result)
            _write_bands(job.masks, sample, members, result)
        except DecodeError as error:
            is_apart = sample.key in seen and image_extension(sample.members) is None
            apart = (
                f"key {sample.key!r} occurs twice, its members are not together: {list(sample.members)} later"
            )
            result.quarantine.append((sample.shard, sample.key, apart if is_apart else str(error)))
            continue
        finally:
            seen.add(sample.key)
        _find(result, sample)
        # Consecutive members of one key are one sample; a cut or a quarantined sample may join two samples.
        key = sample.key if sample.key != last else f"{sample.key}_2"
        last = key
        yield key, members


def _find(result: ShardResult, sample: Sample) -> None:
    """Count in `result` what is unusual about a sample, but no reason to leave it out."""
    label = sample.members.get("cls")
    found = {} if label is not None else {NO_LABEL: ""}
    if label is not None and not is_label(label):
        found[WRONG_LABEL] = label_text(label)
    if is_animated(sample.members[str(image_extension(sample.members))]):
        found[FRAMES] = ""
    for kind, content in found.items():
        _count(result, sample, kind, content)


def _count(result: ShardResult, sample: Sample, kind: str, content: str) -> None:
    first = result.findings.get(kind) or Finding(0, sample.shard, sample.key, content)
    result.findings[kind] = first._replace(samples=first.samples + 1)


def _write_bands(
    names: Sequence[str], sample: Sample, members: dict[str, bytes], result: ShardResult
) -> None:
    """Write the masks of a sample again, in bands; count those that are missing or broken in `result`."""
    image = str(image_extension(members))
    for name in names:
        if name in (image, image_extension(sample.members)):  # a sample without another image
            continue
        if name not in members:
            _count(result, sample, NO_MASK, f"no member {name!r}")
            continue
        try:
            members[name] = masks.banded(sample.members[name])
            reason = masks.misfit(sample.members[name], members[image])
        except DecodeError as error:
            reason = str(error)
        if reason:
            _count(result, sample, BROKEN_MASK, f"member {name!r}: {reason}")


def _encode(codec: Codec, sample: Sample, result: ShardResult) -> dict[str, bytes]:
    """Return the sample's members, in order, with the image encoded; count it in `result`."""
    image = image_extension(sample.members)
    if image is None:
        raise DecodeError(f"there is no image among its members {list(sample.members)}")
    data, extension, tile, untiled = codec.encode(sample.members[image], image)
    members = {extension if name == image else name: content for name, content in sample.members.items()}
    if len(members) < len(sample.members) or image_extension(members) != extension:
        raise CacheError(
            f"shard {sample.shard}, key {sample.key!r}: the encoded image {extension!r} clashes with the "
            f"member {image_extension(members)!r}, which readers would take for the image. Choose another "
            "codec, or rename that member."
        )
    members[extension] = data
    if data.startswith(NATIVE) and not sample.members[image].startswith(NATIVE):
        kind = format_name(sample.members[image]) or image.upper()
        result.converted[kind] = result.converted.get(kind, 0) + 1
    counts, name = (result.untiled, untiled) if tile is None else (result.tiles, str(tile))
    counts[name] = counts.get(name, 0) + 1
    return members


@contextlib.contextmanager
def locked_temporary(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open a temporary file in DEST/.building; its lock shows other builders that its writer lives."""
    path = folder / BUILDING / f"{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    file = create_file(path)
    try:
        with file:
            # Before it was locked, another builder may have removed it as the file of a dead one.
            if not try_lock(file) or not path.exists():
                raise FileNotFoundError(errno.ENOENT, "another builder removed a temporary file", str(path))
            yield file
    finally:
        path.unlink(missing_ok=True)


def create_file(path: Path) -> BinaryIO:
    """Create a file for writing; headers are buffered, images are written directly."""
    return path.open("xb", buffering=32 << 10)


def remove_temporaries(folder: Path) -> None:
    """Remove files that are not locked: their builders are dead. Call under the commit lock."""
    for path in (folder / BUILDING).glob("*.tmp"):
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            if try_lock(file):
                path.unlink()


def try_lock(file: BinaryIO) -> bool:
    """Lock a file until it is closed; False if another has the lock. CacheError if there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise CacheError(
                f"{file.name}: this file system has no file locks (flock), which builders need to share a "
                "folder. Build the cache on another file system, then copy it."
            ) from error
        raise
    return True


def _check_current(job: ShardJob) -> None:
    """Raise CacheError unless the build in the folder is the job's: its builder may have died."""
    path = Path(job.dest) / BUILDING / CURRENT_BUILD
    try:
        build = json.loads(read_regular(path)).get("fingerprint")
    except FileNotFoundError as error:
        raise CacheError(
            f"{path} does not exist on {socket.gethostname()}: the build has ended, or this machine does not "
            "share the folder, as all workers must."
        ) from error
    if build != job.build:
        raise CacheError(f"{path}: another build has taken over; shard {job.name} of this one is dropped.")
