"""The shard writer: synthetic photographs and scenes, a folder's images, or images with annotations."""

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
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from ..errors import ShardError, allowed_bad, check_integer, check_probability
from ..files import open_regular, renamed
from ..machine import usable_cores
from ..processes import ProcessExecutor, map_in_order
from ..progress import progress
from ..remedies import Message, Setting
from ..shards.classes import joined_classes, write_classes
from ..shards.folder import Folder
from ..shards.packing import Item, Reading
from ..shards.pillow import BROKEN, PILLOW_FORMATS
from ..shards.saved import SUFFIXES
from ..shards.sizes import write_sizes
from ..shards.tar_writer import OWNER, RECORD, write_tar
from ..shards.urls import local_folder
from .annotated import Annotated
from .synthetic import Photos

log = logging.getLogger("tarpeg")

_BLOCK = 16  # samples per task of a worker
_COMPARED = 8  # samples of an earlier shard that are compared with the source
_LEFT_OUT = "-left-out.txt"
_SHOWN = 3  # broken images in a message


@dataclass(frozen=True)
class ShardReport:
    """Result of make_shards.

    Attributes:
        shards: Paths of the shards.
        samples: Number of samples.
        bytes: Bytes of the images.
        bits_per_pixel: That of the images whose header is readable.
        seconds: Duration.
        left_out: A text for each image, annotation or object of ``Coco`` and the like that is left out, in
            the order of the shards; ``out/{prefix}-left-out.txt`` has them, too.
    """

    shards: tuple[Path, ...]
    samples: int
    bytes: int
    bits_per_pixel: float
    seconds: float
    left_out: tuple[str, ...] = ()


class _Photo(NamedTuple):
    """A photograph or scene to draw."""

    photos: Photos
    number: int
    split: str

    @property
    def key(self) -> str:
        return f"{self.number:08d}"

    def read(self) -> Reading:
        return Reading(self.photos.members(self.number, self.split))


_Find = Callable[[str], Item | None]  # the sample of the source with that key


class _Sample(NamedTuple):
    key: str
    reading: Reading


def make_shards(
    out: str | os.PathLike[str],
    source: Photos | Folder | Annotated | Mapping[str, object],
    samples: int | None = None,
    *,
    prefix: str = "train",
    samples_per_shard: int = 1000,
    workers: int | None = None,
    replace: bool = False,
    max_bad: float = 0.01,
) -> ShardReport:
    """Write a source to shards ``out/{prefix}-000000.tar`` and following, with ``key.jpg`` and ``key.cls``.

    Scenes and images with annotations have ``key.json`` and ``key.png`` in place of ``key.cls``. A shard gets
    its name when it is complete, and beside it a file with the sizes of its images, ``.tarpeg.sizes``. Shards
    that ``make_shards`` wrote under this prefix are replaced if one of their first samples is in the source;
    those of another source only with ``replace``.

    Args:
        out: Folder of the shards.
        source: ``Photos`` (or a mapping of its fields) or ``Scenes`` to draw; a ``Folder``, ``Coco``,
            ``Voc``, ``Yolo`` or ``MaskFolder`` to pack. The names of the classes, if there are any, are
            written to ``classes.json``.
        samples: Number of samples; None is 1000 photographs, or all files.
        prefix: Beginning of the shards' names; another one has other photographs.
        samples_per_shard: Largest number of samples in a shard.
        workers: Processes that draw, or threads that read files; 0 does all in this thread, None chooses.
            The bytes do not depend on it.
        replace: Replace shards of another source under this prefix.
        max_bad: Largest share of images with annotations that may be broken; ten are always allowed, unless
            it is 0. They are left out, counted in warnings and listed.

    Returns:
        Paths, number of samples, bytes of the images, bits per pixel, seconds, and what is left out.

    Raises:
        ValueError: For an argument out of range.
        ShardError: For a folder without images, an unreadable file, or shards of another source or writer;
            if too many images with annotations are broken.

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
    check_probability("max_bad", max_bad)
    given: object = source
    if isinstance(given, (str, os.PathLike)):
        raise ValueError(
            f"source={os.fspath(given)!r} is a path: give the folder of the shards first, and then "
            "tarpeg.Folder(path), Coco, Voc, Yolo or MaskFolder"
        )
    items: Sequence[Item]
    find: _Find
    broken: Sequence[str] = ()
    classes: Mapping[str, int] | None
    if isinstance(source, (Photos, Mapping)):
        photos = Photos.of(source)
        find = lambda key: _Photo(photos, int(key), prefix) if key.isdigit() else None  # noqa: E731
        items = [_Photo(photos, index, prefix) for index in range(1000 if samples is None else samples)]
        classes, name = photos.class_names(), "scenes"
    else:
        images, classes, broken, notes, root = source.listing()
        name = source.place()
        if root is not None and root.resolve() in directory.resolve().parents:
            raise ValueError(f"out={str(directory)!r} must not be inside {root}: it would become a class")
        for note in notes:
            log.warning("%s: %s", name, note)
        _check_number(samples, len(images), name)
        items, find = images[:samples], {image.key: image for image in images}.get
    if workers is None:
        # Starting a process takes about a second.
        workers = min(usable_cores(), len(items) // 64)
        workers = workers if workers > 1 else 0
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if classes is not None:
            others = (path for path in directory.glob("*.tar") if not path.name.startswith(f"{prefix}-"))
            classes = joined_classes(directory, others, classes, name)
        _remove_old(directory, prefix, None if replace else find)
        left_out = _LeftOut(name, allowed_bad(max_bad, len(items)), list(broken))
        report = _write(directory, prefix, items, samples_per_shard, workers, left_out)
        if classes is not None:
            write_classes(directory, classes)
    except OSError as error:
        raise ShardError(f"cannot write shards in {directory}: {error}") from error
    return report


def _check_number(samples: int | None, most: int, place: str) -> None:
    if samples is not None and samples > most:
        raise ValueError(f"samples={samples} must be at most {most}, the images of {place}")


def _write(
    directory: Path,
    prefix: str,
    items: Sequence[Item],
    samples_per_shard: int,
    workers: int,
    left_out: _LeftOut,
) -> ShardReport:
    started = time.monotonic()
    paths: list[Path] = []
    counts = Counter[str]()
    with progress(prefix, len(items)) as update, contextlib.closing(_samples(items, workers)) as samples:

        def kept() -> Iterator[tuple[str, dict[str, bytes]]]:
            for key, reading in samples:
                left_out.add(reading)
                if reading.members:
                    image, *_ = reading.members.values()
                    pixels = _pixels(image)
                    readable = len(image) * (pixels > 0)
                    counts.update(samples=1, bytes=len(image), pixels=pixels, readable=readable)
                    rate = counts["samples"] / max(time.monotonic() - started, 1e-3)
                    update(counts["samples"], f"{rate:.0f} images/s")
                    yield key, dict(sorted(reading.members.items()))  # as webdataset's writer does

        left_out.check()
        rest, has_operators = kept(), True
        for first in rest:
            paths.append(directory / f"{prefix}-{len(paths):06d}.tar")
            with renamed(paths[-1]) as stream:
                written = write_tar(stream, chain([first], islice(rest, samples_per_shard - 1)), RECORD)
            has_operators = has_operators and write_sizes(paths[-1], written)
    listed = left_out.write(directory / f"{prefix}{_LEFT_OUT}")
    if not paths:
        raise ShardError(f"no image of {left_out.place} is left to pack{listed}")
    bits = 8 * counts["readable"] / max(counts["pixels"], 1)
    seconds = time.monotonic() - started
    return ShardReport(
        tuple(paths), counts["samples"], counts["bytes"], bits, seconds, (*left_out.broken, *left_out.dropped)
    )


@dataclass
class _LeftOut:
    """What is left out of images with annotations.

    Attributes:
        place: Where these are.
        allowed: Most broken ones.
        broken: A text for each image or annotation that is broken.
        dropped: A text for each object without a size.
        empty: Number of images without objects that are left out.
    """

    place: str
    allowed: float
    broken: list[str]
    dropped: list[str] = field(default_factory=list)
    empty: int = 0

    def add(self, reading: Reading) -> None:
        """Add what one image leaves out; raises ShardError if these are too many."""
        self.dropped += reading.dropped
        if reading.reason:
            self.broken.append(reading.reason)
            self.check()
        elif not reading.members:
            self.empty += 1

    def check(self) -> None:
        """Raise ShardError if too many are broken."""
        if len(self.broken) > self.allowed:
            shown = "; ".join(self.broken[-_SHOWN:])
            raise ShardError(
                Message(
                    f"{len(self.broken)} images or annotations of {self.place} are broken, the last of them: "
                    f"{shown}. Repair them, or leave out more with ",
                    Setting("make_shards", "max_bad", ...),
                )
            )

    def write(self, path: Path) -> str:
        """Warn of what is left out, and list it in a file; return where, for a message."""
        path.unlink(missing_ok=True)
        if self.empty:
            log.warning("%s: images without objects that are left out: %d", self.place, self.empty)
        if not (lines := [*self.broken, *self.dropped]):
            return ""
        with renamed(path) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
        for kind, own in (("broken and left out", self.broken), ("objects without a size", self.dropped)):
            if own:
                log.warning(
                    "%s: %s: %d, listed in %s; the first: %s", self.place, kind, len(own), path, own[0]
                )
        return f": {lines[0]} ({path} has all {len(lines)})"


def _samples(items: Sequence[Item], workers: int) -> Generator[_Sample, None, None]:
    """Draw photographs in processes, or read files in threads; in order."""
    if workers == 0:
        yield from _read(items)
        return
    blocks = (items[start : start + _BLOCK] for start in range(0, len(items), _BLOCK))
    kind = ProcessExecutor if isinstance(items[0], _Photo) else ThreadPoolExecutor
    with contextlib.closing(map_in_order(_read_block, blocks, workers, kind)) as results:
        yield from chain.from_iterable(results)


def _read(items: Iterable[Item]) -> Iterator[_Sample]:
    for item in items:
        yield _Sample(item.key, item.read())


def _read_block(items: Sequence[Item]) -> list[_Sample]:
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
        for suffix in SUFFIXES if path.suffix == ".tar" else ():
            path.with_name(f"{path.stem}{suffix}").unlink(missing_ok=True)


def _is_of_source(path: Path, find: _Find) -> bool:
    """Whether one of the first samples of a shard is in the source, byte for byte."""
    with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        images = (member for member in tar if not member.name.endswith(".cls"))
        for member in islice(images, _COMPARED):
            item, content = find(member.name.partition(".")[0]), tar.extractfile(member)
            if item is not None and content is not None and content.read() in item.read().members.values():
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
