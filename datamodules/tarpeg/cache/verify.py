"""Verification of a finished cache: checksums, indexes, and every image decoded."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CacheError, DecodeError, ShardError, Status
from ..files import read_regular
from ..ops import library
from ..processes import completed, open_executor
from ..shards import pillow
from ..shards.image_names import pattern_of, stored_names
from ..shards.index import ShardIndex, build
from ..shards.manifest import BUILDING, MANIFEST, ShardEntry, read_manifest
from ..shards.saved import SUFFIXES
from ..shards.urls import local_folder
from ..shards.wds_index import index_path, parse
from ..targets.reduced import refuse_reduced
from .build import Progress
from .codecs import row_index_fits
from .masks import is_banded
from .targets import Problem, broken_targets

_SMALL = 200 << 20  # bytes that one process checks before others have started
_OF_ROWS = "the index of its rows of tiles is not that of its tiles"
_LOCK = re.compile(r"\..*lock|\.lock")


@dataclass(frozen=True)
class VerifyReport:
    """Result of ``verify_cache``.

    Attributes:
        dest: Folder of the cache.
        shards: Number of shards in the manifest.
        samples: Number of samples in the manifest.
        bytes: Bytes of the shards in the manifest.
        problems: What is wrong, in the order of the shards; each has ``shard``, ``key`` and ``what``.
        extra: Names of other files in the folder, which are harmless.
        seconds: Duration of the check.
        broken_targets: Targets that training replaces, with the image: they are no problem of the cache.
        undecodable: Images of a cache of ``Original`` that cannot be decoded, as in its source: no problem.

    Example:
        >>> report = tarpeg.build_cache(shards, tmp, executor=0)
        >>> tarpeg.verify_cache(tmp, executor=0).is_good
        True
    """

    dest: Path
    shards: int
    samples: int
    bytes: int
    problems: tuple[Problem, ...]
    extra: tuple[str, ...]
    seconds: float
    broken_targets: tuple[Problem, ...] = ()
    undecodable: tuple[Problem, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def bad_shards(self) -> tuple[str, ...]:
        """Names of the shards with problems, in order."""
        return tuple(dict.fromkeys(problem.shard for problem in self.problems))


def verify_cache(
    dest: str | os.PathLike[str],
    executor: Executor | int | None = None,
    *,
    targets: Any = None,
    progress: Callable[[Progress], object] | None = None,
) -> VerifyReport:
    """Check size and checksums of every shard, its index against its headers, and decode each whole image.

    Packed images have a checksum each, so that those of a damaged shard are found. Masks in bands
    (``build_cache(masks=...)``) are decoded too.

    Args:
        dest: Folder of the cache.
        executor: Executor of the checks, one call per shard; or a number of local processes (0: this
            process); by default one per core, or this process for a small cache.
        targets: Targets as of ``Split``, such as ``tarpeg.Boxes("json:objects")`` or a list: they are read
            as training reads them, and ``report.broken_targets`` has shard, key, member and field of each
            that is broken or does not fit its image. Those of other classes than tarpeg's are only read.
        progress: Called after each shard.

    Raises:
        CacheError: If the folder holds no finished cache, or its manifest is damaged; or if ``targets`` are
            in pixels and its codec has reduced the images.

    Example:
        >>> report = tarpeg.build_cache(shards, tmp, executor=0)
        >>> (tmp / "train-000001.tar").unlink()
        >>> tarpeg.verify_cache(tmp, executor=0).bad_shards
        ('train-000001.tar',)
    """
    started = time.monotonic()
    folder = Path(local_folder("dest", dest)).expanduser().absolute()
    manifest = read_manifest(folder)
    if manifest is None:
        found = "an unfinished build: run it again" if (folder / BUILDING).exists() else "no cache"
        raise CacheError(f"{folder} holds {found} (there is no {MANIFEST}).")
    refuse_reduced(targets, manifest.reducer, f"the cache {folder}")
    if executor is None and manifest.bytes < _SMALL:
        executor = 0
    library.load()  # compiles the operators if necessary: once, not in every worker
    problems_of: dict[str, list[Problem]] = {}
    broken_of: dict[str, list[Problem]] = {}
    samples, nbytes = 0, 0
    with open_executor(executor, len(manifest.shards)) as pool:
        calls = ((str(folder), entry, targets, manifest.images) for entry in manifest.shards)
        for entry, problems, broken in completed(pool, check_shard, calls, lambda: None):
            problems_of[entry.name], broken_of[entry.name] = problems, broken
            samples, nbytes = samples + entry.samples, nbytes + entry.bytes
            if progress is not None:
                progress(
                    Progress(
                        shards=len(problems_of),
                        shards_total=len(manifest.shards),
                        kept=0,
                        samples=samples,
                        bytes=nbytes,
                        bytes_total=manifest.bytes,
                        quarantined=sum(map(bool, problems_of.values())),
                    )
                )
    undecodable: list[Problem] = []
    if manifest.codec["name"] == "Original":
        for entry in manifest.shards:
            own = problems_of[entry.name]
            if all(problem.is_decoding for problem in own):
                undecodable += own  # as they were in the source: the checksums are right
                problems_of[entry.name] = []
    problems = [problem for entry in manifest.shards for problem in problems_of[entry.name]]
    extra = []
    known = {MANIFEST} | {name for entry in manifest.shards for name in _files(entry)}
    for name in sorted(path.name for path in folder.iterdir() if path.name not in known):
        if name.endswith((".tar", ".idx")) and not name.startswith("."):
            problems.append(Problem(name, "", f"it is in the folder, but not in {MANIFEST}"))
        elif not _LOCK.fullmatch(name) and not name.endswith(SUFFIXES):
            extra.append(name)
    return VerifyReport(
        dest=folder,
        shards=len(manifest.shards),
        samples=manifest.samples,
        bytes=manifest.bytes,
        problems=tuple(problems),
        extra=tuple(extra),
        seconds=time.monotonic() - started,
        broken_targets=tuple(each for entry in manifest.shards for each in broken_of[entry.name]),
        undecodable=tuple(undecodable),
    )


def check_shard(
    dest: str, entry: ShardEntry, targets: Any = None, images: Sequence[str] = ()
) -> tuple[ShardEntry, list[Problem], list[Problem]]:
    """Return the problems of one shard, and its broken targets unless it has problems; runs in a worker."""
    problems = list(_problems(Path(dest), entry, images))
    broken: list[Problem] = []
    if targets is not None and not problems:
        _, broken = broken_targets(dest, entry.name, targets)
    return entry, problems, broken


def _files(entry: ShardEntry) -> tuple[str, str]:
    return entry.name, index_path(Path(entry.name)).name


def _problems(folder: Path, entry: ShardEntry, images: Sequence[str]) -> Iterator[Problem]:
    tar, idx = (folder / name for name in _files(entry))
    try:
        nbytes = tar.stat().st_size
        if nbytes != entry.bytes:
            yield Problem(entry.name, "", f"it has {nbytes} bytes instead of {entry.bytes} as in {MANIFEST}")
        elif _sha256(tar) != entry.sha256:
            yield Problem(entry.name, "", f"its checksum differs from {MANIFEST}")
    except OSError as error:
        yield Problem(entry.name, "", f"it cannot be read: {error.strerror}")
        return
    headers: ShardIndex | ShardError
    try:
        headers = ShardIndex.of(build(tar, several=True))
    except ShardError as error:
        headers = error
        yield Problem(entry.name, "", str(error))
    index: ShardIndex | None = None
    try:
        text = read_regular(idx)
        if hashlib.sha256(text).hexdigest() != entry.idx_sha256:
            yield Problem(entry.name, "", f"the checksum of {idx.name} differs from {MANIFEST}")
        index = parse([text], [idx], [nbytes])
    except CacheError as error:
        yield Problem(entry.name, "", str(error))
    except OSError as error:
        yield Problem(entry.name, "", f"its index {idx.name} cannot be read: {error.strerror}")
    if isinstance(headers, ShardIndex) and index is not None:
        difference = index.difference(headers)
        if difference is not None:
            key, what = difference
            yield Problem(entry.name, key, what)
    readable = headers if isinstance(headers, ShardIndex) else index
    if readable is None:
        return
    count = len(readable)
    if count != entry.samples:
        yield Problem(entry.name, "", f"it has {count} samples instead of {entry.samples} as in {MANIFEST}")
    yield from _undecodable(tar, entry, readable, images)


def _sha256(path: Path) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _undecodable(tar: Path, entry: ShardEntry, index: ShardIndex, images: Sequence[str]) -> Iterator[Problem]:
    from ..ops import decode

    # Members were checked to lie inside the file.
    data, torn = decode.map_file(str(tar), tar.stat().st_size)
    for row, name, offset, nbytes in _images_in(index, images):
        image = data.narrow(0, offset, nbytes)
        content = image.numpy().data
        if content[:4] == pillow.PACKED:
            try:
                pillow.check_packed(content)
            except DecodeError as error:
                yield Problem(entry.name, index.key(row), f"{name} is {error}", is_decoding=True)
                continue
        sides = decode.image_sizes([image]).clamp(min=1)
        box = torch.cat([torch.zeros_like(sides), sides], dim=1)
        # Reduced to one pixel: every coefficient of the image is decoded.
        status = Status(int(decode.decode_batch([image], box, 1)[1]))
        if status != Status.OK:
            if not _is_other_format(bytes(content)):
                what = f"{name} is {status.name} ({int(status)})"
                yield Problem(entry.name, index.key(row), what, is_decoding=True)
        elif content[:3] == pillow.JPEG and not row_index_fits(bytes(content)):
            yield Problem(
                entry.name, index.key(row), f"{_OF_ROWS} of {name}" if name != "image" else _OF_ROWS
            )
    yield from _broken_masks(data.numpy().data, entry, index)
    if torn[0]:
        yield Problem(entry.name, "", "it was cut while it was read, or its disk failed")


def _images_in(index: ShardIndex, images: Sequence[str]) -> Iterator[tuple[int, str, int, int]]:
    """Yield row, name for messages, offset and bytes of each image.

    Args:
        index: Of the shard.
        images: Of the manifest: a pattern, or extensions.
    """
    patterns = [pattern for each in images if (pattern := pattern_of(each)) is not None]
    names = {stored for each in images if pattern_of(each) is None for stored in stored_names(each)}
    for row, image in enumerate(index.image.tolist()):
        for number, (name, offset, nbytes) in enumerate(index.members(row)):
            if number == image:
                yield row, "image" if "." not in name else f"image {name!r}", offset, nbytes
            elif name in names or any(pattern(name) for pattern in patterns):
                yield row, f"image {name!r}", offset, nbytes


def _broken_masks(data: memoryview, entry: ShardEntry, index: ShardIndex) -> Iterator[Problem]:
    """Yield a problem for each mask in bands that Pillow cannot decode."""
    for row in range(len(index)):
        for member in range(*index.member_ends[row : row + 2].tolist()):
            offset, nbytes = int(index.offset[member]), int(index.nbytes[member])
            content = data[offset : offset + nbytes]
            if is_banded(content):
                try:
                    pillow.open_values(bytes(content))
                except DecodeError as error:
                    yield Problem(entry.name, index.key(row), f"a mask is broken: {error}")


def _is_other_format(content: bytes) -> bool:
    """Whether Pillow decodes a file that was kept as it is, such as a PNG."""
    if content.startswith(pillow.NATIVE):
        return False
    try:
        pillow.open_rgb(content)
    except DecodeError:
        return False
    return True
