"""The shard writer: synthetic photographs and scenes, or a folder's images."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from ..errors import ShardError, check_integer
from ..files import open_regular, renamed
from ..machine import usable_cores
from ..processes import ProcessExecutor, map_in_order
from ..progress import progress
from ..remedies import Message, Setting
from ..shards.classes import joined_classes, write_classes
from ..shards.folder import (
    NESTED,
    SHORTENED,
    Folder,
    ImageFile,
    left_out_line,
    only_nested,
    only_shortened,
    stats_of,
)
from ..shards.pillow import BROKEN, PILLOW_FORMATS
from ..shards.tar_writer import OWNER, RECORD, write_tar
from ..shards.urls import local_folder
from .synthetic import Photos

log = logging.getLogger("tarpeg")

_BLOCK = 16  # samples per task of a worker
_COMPARED = 8  # samples of an earlier shard that are compared with the source


@dataclass(frozen=True)
class ShardReport:
    """Result of make_shards.

    Attributes:
        shards: Paths of the shards.
        samples: Number of samples.
        bytes: Bytes of the images.
        bits_per_pixel: That of the images whose header is readable.
        seconds: Duration.
    """

    shards: tuple[Path, ...]
    samples: int
    bytes: int
    bits_per_pixel: float
    seconds: float


class _Photo(NamedTuple):
    """A photograph or scene to draw."""

    photos: Photos
    number: int
    split: str

    @property
    def key(self) -> str:
        return f"{self.number:08d}"

    def members(self) -> dict[str, bytes]:
        return self.photos.members(self.number, self.split)


_Item = _Photo | ImageFile  # a sample: its key and, read or drawn at the call, its members, the image first
_Find = Callable[[str], _Item | None]  # the sample of the source with that key
_Sample = tuple[str, dict[str, bytes]]  # key, members


def make_shards(
    out: str | os.PathLike[str],
    source: Photos | Folder | Mapping[str, object],
    samples: int | None = None,
    *,
    prefix: str = "train",
    samples_per_shard: int = 1000,
    workers: int | None = None,
    replace: bool = False,
) -> ShardReport:
    """Write a source to shards ``out/{prefix}-000000.tar`` and following, with ``key.jpg`` and ``key.cls``.

    Scenes have ``key.json`` and ``key.png`` in place of ``key.cls``. A shard gets its name when it is
    complete. Shards that ``make_shards`` wrote under this prefix are replaced if one of their first samples
    is in the source; those of another source only with ``replace``.

    Args:
        out: Folder of the shards.
        source: ``Photos`` (or a mapping of its fields) or ``Scenes`` to draw, or a ``Folder`` to pack. The
            names of the classes of scenes and folders are written to ``classes.json``.
        samples: Number of samples; None is 1000 photographs, or all files.
        prefix: Beginning of the shards' names; another one has other photographs.
        samples_per_shard: Largest number of samples in a shard.
        workers: Processes that draw, or threads that read files; 0 does all in this thread, None chooses.
            The bytes do not depend on it.
        replace: Replace shards of another source under this prefix.

    Returns:
        Paths, number of samples, bytes of the images, bits per pixel, and seconds.

    Raises:
        ValueError: For an argument out of range.
        ShardError: For a folder without images, an unreadable file, or shards of another source or writer.

    Example:
        >>> report = tarpeg.make_shards(tmp, tarpeg.Folder(folder), samples_per_shard=10, workers=0)
        >>> report.samples, [path.name for path in report.shards]
        (16, ['train-000000.tar', 'train-000001.tar'])
    """
    if not isinstance(prefix, str) or not re.fullmatch(r"[\w][\w.-]*", prefix):
        raise ValueError(f"prefix={prefix!r} must consist of letters, digits, '_', '.' and '-'")
    if samples is not None:
        check_integer("samples", samples, 1)
    check_integer("samples_per_shard", samples_per_shard, 1)
    if workers is not None:
        check_integer("workers", workers, 0)
    directory = Path(local_folder("out", out))
    items: Sequence[_Item]
    find: _Find
    if isinstance(source, Folder):
        files = _files(source, directory, samples)
        items, find = files[:samples], {file.key: file for file in files}.get
    else:
        photos = Photos.of(source)
        find = lambda key: _Photo(photos, int(key), prefix) if key.isdigit() else None  # noqa: E731
        items = [_Photo(photos, index, prefix) for index in range(1000 if samples is None else samples)]
    if workers is None:
        # Starting a process takes about a second.
        workers = min(usable_cores(), len(items) // 64)
        workers = workers if workers > 1 else 0
    try:
        directory.mkdir(parents=True, exist_ok=True)
        classes = source.classes() if isinstance(source, Folder) else photos.class_names()
        if classes is not None:
            others = (path for path in directory.glob("*.tar") if not path.name.startswith(f"{prefix}-"))
            name = source.root if isinstance(source, Folder) else "scenes"
            classes = joined_classes(directory, others, classes, name)
        _remove_old(directory, prefix, None if replace else find)
        report = _write(directory, prefix, items, samples_per_shard, workers)
        if classes is not None:
            write_classes(directory, classes)
    except OSError as error:
        raise ShardError(f"cannot write shards in {directory}: {error}") from error
    return report


def _files(folder: Folder, out: Path, samples: int | None) -> list[ImageFile]:
    if folder.directory().resolve() in out.resolve().parents:
        raise ValueError(f"out={str(out)!r} must not be inside {folder.directory()}: it would become a class")
    if "" not in (parts := folder.parts()):
        raise ShardError(
            f"root={folder.root!r} has folders {' and '.join(parts)}, which are not classes: build a "
            "cache of it, which packs each of them (build_cache; in Python FolderShards too), or pack one of "
            f"them alone: root={str(next(iter(parts.values())).directory())!r}"
        )
    files = folder.files()
    stats_of([file.path for file in files])  # before hours of packing
    if folder.split in ("all", "train"):  # once for all splits
        kinds = {NESTED: only_nested(files), SHORTENED: only_shortened(files)}
        keys = {kind: [file.key for file in own] for kind, own in kinds.items() if own}
        found = [f"{kind}: {len(own)}, the first is key {min(own)!r}" for kind, own in keys.items()]
        for line in filter(None, (left_out_line(folder.left_out()), *found)):
            log.warning("%s: %s", folder.root, line)
    if samples is not None and samples > len(files):
        raise ValueError(f"samples={samples} must be at most {len(files)}, the images of {folder.root}")
    return files


def _write(
    directory: Path, prefix: str, items: Sequence[_Item], samples_per_shard: int, workers: int
) -> ShardReport:
    started = time.monotonic()
    names = [f"{prefix}-{number:06d}.tar" for number in range(-(-len(items) // samples_per_shard))]
    counts = Counter[str]()
    with progress(prefix, len(items)) as update, contextlib.closing(_samples(items, workers)) as samples:

        def counted() -> Iterator[_Sample]:
            for key, members in islice(samples, samples_per_shard):
                image, *_ = members.values()
                pixels = _pixels(image)
                counts.update(samples=1, bytes=len(image), pixels=pixels, readable=len(image) * (pixels > 0))
                rate = counts["samples"] / max(time.monotonic() - started, 1e-3)
                update(counts["samples"], f"{rate:.0f} images/s")
                yield key, dict(sorted(members.items()))  # as webdataset's writer does

        for name in names:
            with renamed(directory / name) as stream:
                write_tar(stream, counted(), RECORD)
    bits = 8 * counts["readable"] / max(counts["pixels"], 1)
    paths = tuple(directory / name for name in names)
    return ShardReport(paths, len(items), counts["bytes"], bits, time.monotonic() - started)


def _samples(items: Sequence[_Item], workers: int) -> Generator[_Sample, None, None]:
    """Draw photographs in processes, or read files in threads; in order."""
    if workers == 0:
        yield from _read(items)
        return
    blocks = (items[start : start + _BLOCK] for start in range(0, len(items), _BLOCK))
    kind = ThreadPoolExecutor if isinstance(items[0], ImageFile) else ProcessExecutor
    with contextlib.closing(map_in_order(_read_block, blocks, workers, kind)) as results:
        yield from chain.from_iterable(results)


def _read(items: Iterable[_Item]) -> Iterator[_Sample]:
    return ((item.key, item.members()) for item in items)


def _read_block(items: Sequence[_Item]) -> list[_Sample]:
    return list(_read(items))


def _remove_old(directory: Path, prefix: str, find: _Find | None) -> None:
    """Remove shards and temporary files of an earlier run.

    ShardError if a shard is not from make_shards or, with `find`, if the first one is of another source.
    """
    name = re.compile(rf"(\.?){re.escape(prefix)}-\d{{6}}\.tar((\.[\w-]+)?\.tmp)?")
    old = sorted(path for path in directory.iterdir() if name.fullmatch(path.name))
    for path in old:
        if path.suffix == ".tar" and not _is_ours(path):
            raise ShardError(
                Message(
                    f"{path} was not written by make_shards, which does not replace it: choose another ",
                    Setting("make_shards", "out"),
                    " or ",
                    Setting("make_shards", "prefix"),
                    ", or move the file away",
                )
            )
    first = next((path for path in old if path.suffix == ".tar"), None)
    if find is not None and first is not None and not _is_of_source(first, find):
        raise ShardError(
            Message(
                f"{first} has samples of another source: choose another ",
                Setting("make_shards", "out"),
                " or ",
                Setting("make_shards", "prefix"),
                ", move the shards away, or give ",
                Setting("make_shards", "replace", True),
            )
        )
    for path in old:
        path.unlink()


def _is_of_source(path: Path, find: _Find) -> bool:
    """Whether one of the first samples of a shard is in the source, byte for byte."""
    with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        images = (member for member in tar if not member.name.endswith(".cls"))
        for member in islice(images, _COMPARED):
            item, content = find(member.name.partition(".")[0]), tar.extractfile(member)
            if item is not None and content is not None and content.read() in item.members().values():
                return True
    return False


def _is_ours(path: Path) -> bool:
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            first = tar.next()
    except (tarfile.TarError, OSError):
        return False
    return first is not None and first.uname == OWNER


def _pixels(data: bytes) -> int:
    try:
        with Image.open(io.BytesIO(data), formats=PILLOW_FORMATS) as image:
            return image.width * image.height
    except BROKEN:
        return 0  # packed unchanged; its readers have a policy for bad images
