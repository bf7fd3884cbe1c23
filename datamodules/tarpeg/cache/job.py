"""One job of a cache build: read samples, encode the images, write one shard.

Jobs run in other processes, possibly on other machines that share the folder, and may outlive the builder
that submitted them. They write to temporary files in DEST/.building that are locked while they are written.
Under the commit lock, and only if the build in the folder is still theirs, they write the shard's result and
rename the shard to its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import itertools
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from ..errors import CacheError, DecodeError
from ..files import read_regular, write_json
from ..shards.image_names import PACKED, pattern_of, stored_names
from ..shards.index import build_from, save
from ..shards.labels import DATA_ERRORS
from ..shards.manifest import BUILDING, MANIFEST, CodecEntry, Finding
from ..shards.pillow import (
    IMAGE_EXTENSIONS,
    NATIVE,
    as_tensor,
    first_image,
    format_name,
    header_sizes,
    image_extension,
    is_animated,
)
from ..shards.saved import SIZES_SUFFIX
from ..shards.sizes import sizes_file, stamp_of
from ..shards.source import is_label, label_text
from ..shards.tar_writer import BLOCK, tar_header, tar_nbytes, write_tar
from ..shards.wds_index import index_text, parse
from . import masks
from .codecs import Codec, Encoded
from .sources import Sample, ShardInput, SourceShard

NO_LABEL = "samples without a label (a member cls)"
WRONG_LABEL = "labels that are not 64-bit integers, at which training stops"
NO_IMAGE = "samples without one of their images, which training replaces"
NO_MASK = "samples without a mask, which training replaces"
BROKEN_MASK = "masks that are broken or do not fit their image, which training replaces"
NO_IMAGE_AMONG = "there is no image among its members"
FRAMES = "images with several frames or pages, of which the first is in the cache"
COMMIT_LOCK, CURRENT_BUILD = ".commit.lock", "build.fingerprint"
_TILE = re.compile("[1-9][0-9]{0,5}")  # as in the manifest
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
        images: Members that are images, of samples with several: a pattern, or extensions.
        of_cache: Whether the source may be a cache, in which left.ppm may have been left.png.
    """

    dest: str
    name: str
    source: ShardInput
    codec: Codec
    build: str
    masks: tuple[str, ...] = ()
    images: str | tuple[str, ...] = ()
    of_cache: bool = False

    @property
    def fingerprint(self) -> str:
        """Hash of the samples, as far as known without reading them, of the codec and the masks."""
        images = [{"images": self.images}] if self.images else []
        return hash_of([self.source.identity(), describe_codec(self.codec), *self.masks, *images])


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


def index_remote_shard(shard: SourceShard, path: str, several: bool) -> None:
    """Index a remote shard by reading it through, and save the index at `path`."""
    with shard.open() as file:
        index = build_from(file, shard.name, shard.nbytes, version_number(shard), several=several)
    if not save(index, Path(path), several=several):
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
        for name, data in sample.members.items():  # headers of names that are long or not ASCII are longer
            header = tar_header(f"{sample.key}.{name}", len(data))
            result.source_bytes += tar_nbytes(len(data)) + len(header) - BLOCK
        try:
            wanted = _wanted(job, sample)
            chosen = _images_of(job, sample, wanted)
            members, names = _encode(job, sample, chosen, wanted, result)
            _check_readers(job.images, wanted, names, members)
            _write_bands(job.masks, sample, chosen, members, result)
        except DecodeError as error:
            is_apart = sample.key in seen and image_extension(sample.members) is None
            apart = (
                f"key {sample.key!r} occurs twice, its members are not together: {list(sample.members)} later"
            )
            result.quarantine.append((sample.shard, sample.key, apart if is_apart else str(error)))
            continue
        finally:
            seen.add(sample.key)
        _find(result, sample, chosen)
        _find_missing(result, sample, wanted)
        # Consecutive members of one key are one sample; a cut or a quarantined sample may join two samples.
        key = sample.key if sample.key != last else f"{sample.key}_2"
        last = key
        yield key, members


def _find(result: ShardResult, sample: Sample, images: Sequence[str]) -> None:
    """Count in `result` what is unusual about a sample, but no reason to leave it out."""
    label = sample.members.get("cls")
    found = {} if label is not None else {NO_LABEL: ""}
    if label is not None and not is_label(label):
        found[WRONG_LABEL] = label_text(label)
    if any(is_animated(sample.members[image]) for image in images):
        found[FRAMES] = ""
    for kind, content in found.items():
        _count(result, sample, kind, content)


def _find_missing(result: ShardResult, sample: Sample, wanted: Mapping[str, str | None]) -> None:
    """Count a sample without one of its images in `result`."""
    for name, member in wanted.items():
        if member is None:
            _count(result, sample, NO_IMAGE, f"no member {name!r}")
            return


def _count(result: ShardResult, sample: Sample, kind: str, content: str) -> None:
    first = result.findings.get(kind) or Finding(0, sample.shard, sample.key, content)
    result.findings[kind] = first._replace(samples=first.samples + 1)


def _write_bands(
    names: Sequence[str],
    sample: Sample,
    images: Sequence[str],
    members: dict[str, bytes],
    result: ShardResult,
) -> None:
    """Write the masks of a sample again, in bands; count those that are missing or broken in `result`."""
    image = str(first_image(members))
    for name in names:
        if name == image or name in images:  # a sample without another image
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


def _wanted(job: ShardJob, sample: Sample) -> dict[str, str | None]:
    """Return the member of each image that ``images=`` means; None for one that is missing in a list."""
    pattern = pattern_of(job.images)
    if pattern is not None:
        chosen = dataclasses.replace(pattern, is_cached=job.of_cache).chosen(sample.members)
        return {name: name for name in chosen}
    return {
        name: next((n for n in stored_names(name, is_cached=job.of_cache) if n in sample.members), None)
        for name in job.images
    }


def _images_of(job: ShardJob, sample: Sample, wanted: Mapping[str, str | None]) -> list[str]:
    """Return the extensions of a sample's images: of its own, and of those that were asked for."""
    members, images = sample.members, job.images
    asked_for = [name for name in wanted.values() if name is not None]
    image = image_extension([name for name in members if name not in job.masks or name in asked_for])
    own = image_extension(members)
    if own in job.masks and image is None and not asked_for:
        if len({*members} & {*job.masks}) == 1:  # otherwise the mask is another one of them
            other = next((name for name in members if name.endswith(f".{own}")), None)
            remedy = "" if other is None else f"; if {other!r} is the mask, give masks={other!r}"
            raise DecodeError(f"it has no image: its member {own!r} is a mask, by masks={remedy}")
        image = own
    found = [] if image is None else [image]
    found += asked_for
    if not found:
        asked = f", and none that images={images!r} means" if images else ""
        raise DecodeError(f"{NO_IMAGE_AMONG} {list(members)}{asked}")
    return list(dict.fromkeys(found))


def _check_readers(
    images: str | tuple[str, ...],
    wanted: Mapping[str, str | None],
    names: Mapping[str, str],
    members: Mapping[str, bytes],
) -> None:
    """Raise DecodeError if readers of the cache would take another member for one of the images.

    Args:
        images: As of the job.
        wanted: The images, of ``_wanted``.
        names: New extensions of the members.
        members: By their new extensions.
    """
    pattern = pattern_of(images)
    if pattern is not None:
        new = {names[name] for name in wanted}
        others = [(name, images) for name in pattern.chosen(members) if name not in new]
    else:
        own = {names[name] for name in wanted.values() if name is not None}
        lost = [name for name, member in wanted.items() if member is None]
        others = [
            (each, name)
            for name in lost
            for each in stored_names(name)
            if each in members and each not in own
        ]
    if others:
        member, image = others[0]
        raise DecodeError(
            f"its member {member!r} would be taken for an image {image!r} in a cache, whose images may have "
            "other formats: rename it, or leave it out of the shard"
        )


def _encode(
    job: ShardJob,
    sample: Sample,
    images: Sequence[str],
    wanted: Mapping[str, str | None],
    result: ShardResult,
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the sample's members, in order, with the images encoded, and their new names.

    An image keeps its name if readers would not find the new one: of a pattern, a JPEG in place of a PNG; and
    a PNG that is named .jpg, beside a mask that is named .png. Counts the images in `result`.
    """
    names, encoded = {name: name for name in sample.members}, {}
    pattern = pattern_of(job.images)
    for image in images:
        stem, dot, _ = image.rpartition(".")
        found = _encoded_image(job.codec, sample, image)
        name = f"{stem}{dot}{found.extension}"
        if pattern is None or image not in wanted or pattern(name):
            names[image] = name
        encoded[image] = found
    own = image_extension(images)
    if own is not None and image_extension(names.values()) != names[own] and encoded[own].extension != PACKED:
        names[own] = own
    members = {names[name]: content for name, content in sample.members.items()}
    taken = [*names.values()]
    clashes = [(names[each], names[each]) for each in images if taken.count(names[each]) > 1]
    if own is None:
        clashes += [(names[each], names[each]) for each in images if names[each] == image_extension(members)]
    elif own not in wanted.values() and image_extension(members) != names[own]:
        clashes.append((names[own], str(image_extension(members))))
    clashes += _mixed_up(images, names)
    if clashes:
        is_free = own is not None and own not in wanted.values()
        named = f"; or give images=[{own!r}], and Split(image={own!r})" if is_free else ""
        raise CacheError(
            f"shard {sample.shard}, key {sample.key!r}: the encoded image {clashes[0][0]!r} clashes with the "
            f"member {clashes[0][1]!r}, which readers would take for the image. Choose another "
            f"codec, or rename that member{named}."
        )
    for image in images:
        members[names[image]] = encoded[image].data
        _count_encoded(sample.members[image], image, encoded[image], result)
    return members, names


def _encoded_image(codec: Codec, sample: Sample, image: str) -> Encoded:
    """Return what a codec, which may be one of the user, makes of an image.

    Raises DecodeError if it cannot be decoded, and CacheError if the codec fails or returns something else.
    """
    try:
        found = codec.encode(sample.members[image], image.rpartition(".")[2])
    except DecodeError as error:
        if "." not in image:
            raise
        raise DecodeError(f"member {image!r}: {error}") from error
    except DATA_ERRORS as error:
        raise _codec_error(codec, sample, image, f"failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, Encoded):
        raise _codec_error(codec, sample, image, f"returned {type(found).__name__}")
    is_right = {
        "data": isinstance(found.data, (bytes, bytearray)),
        "extension": found.extension in IMAGE_EXTENSIONS,
        "tile": found.tile is None or _TILE.fullmatch(str(found.tile)),
        "untiled": isinstance(found.untiled, str),
    }
    wrong = next((name for name, is_it in is_right.items() if not is_it), None)
    if wrong is None and not found.data and sample.members[image]:  # codec Original keeps an empty file
        wrong = "data"
    if wrong is not None:
        raise _codec_error(codec, sample, image, f"returned {wrong}={getattr(found, wrong)!r:.60}")
    if not type(codec).__module__.startswith("tarpeg.") and getattr(codec, "shorter", None) is None:
        _check_size(codec, sample, image, found)
    return found


def _check_size(codec: Codec, sample: Sample, image: str, found: Encoded) -> None:
    """Raise CacheError for an image of another size than before: targets in pixels are not moved."""
    files = [as_tensor(bytes(each)) for each in (sample.members[image], found.data)]
    before, after = (sizes[::-1] for sizes in header_sizes(files).tolist())
    if before == after or 0 in (*before, *after):
        return
    raise CacheError(
        f"shard {sample.shard}, key {sample.key!r}: encode() of codec={codec!r} made {after[0]}x{after[1]} "
        f"pixels of {before[0]}x{before[1]}, for the member {image!r}. A codec that reduces images has a "
        "field 'shorter' that is not None: caches with it refuse targets in pixels"
    )


def _codec_error(codec: Codec, sample: Sample, image: str, what: str) -> CacheError:
    return CacheError(
        f"shard {sample.shard}, key {sample.key!r}: encode() of codec={codec!r} {what}, for the member "
        f"{image!r}. It returns tarpeg.codecs.Encoded(data, extension, tile, untiled): bytes; one of "
        f"{', '.join(IMAGE_EXTENSIONS)}; the width of its tiles in pixels, or None; and a text, why it has "
        "none. For an image that is to be left out it raises tarpeg.DecodeError."
    )


def _mixed_up(images: Sequence[str], names: dict[str, str]) -> list[tuple[str, str]]:
    """Return new names of images that do not show which is which, or would come in another order.

    0.tpj and 0.ppm may have been 0.jpg and 0.png, or 0.png and 0.jpg.
    """
    return [
        (names[one], names[other])
        for one, other in itertools.combinations(sorted(images), 2)
        if one.rpartition(".")[0] == other.rpartition(".")[0]
        and ((names[one] != one and names[other] != other) or names[one] > names[other])
    ]


def _count_encoded(source: bytes, image: str, encoded: Encoded, result: ShardResult) -> None:
    """Count an encoded image in `result`."""
    data, _, tile, untiled = encoded
    if data.startswith(NATIVE) and not source.startswith(NATIVE):
        kind = format_name(source) or image.upper()
        result.converted[kind] = result.converted.get(kind, 0) + 1
    counts, name = (result.untiled, untiled) if tile is None else (result.tiles, str(tile))
    counts[name] = counts.get(name, 0) + 1


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
