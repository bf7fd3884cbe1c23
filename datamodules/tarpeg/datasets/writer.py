"""Write shards: synthetic photographs or the images of a folder, through webdataset's own writer."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from PIL import Image

from ..errors import ShardError
from ..files import renamed, write_json
from ..machine import usable_cores
from ..processes import map_in_processes
from ..progress import progress
from ..shards.folder import Folder
from ..shards.pillow import PILLOW_FORMATS
from .synthetic import Photos, photograph

_OWNER = "tarpeg"  # every member's user: how a shard of ours is told from somebody's own
_BLOCK = 16  # samples that a worker process hands over at once


@dataclass(frozen=True)
class ShardReport:
    """What make_shards wrote: shard paths, samples, bytes of images, bits a pixel (whole images), seconds."""

    shards: tuple[Path, ...]
    samples: int
    bytes: int
    bits_per_pixel: float
    seconds: float


class _Record(NamedTuple):
    key: str
    extension: str
    data: bytes
    label: int
    pixels: int  # 0 where unknown


class _Item(Protocol):
    """A sample yet to be made; pickled to a worker process."""

    def read(self) -> _Record: ...


@dataclass(frozen=True)
class _PhotoItem:
    photos: Photos
    split: str
    index: int

    def read(self) -> _Record:
        photo = photograph(self.photos, self.index, self.split)
        return _Record(f"{self.index:08d}", "jpg", photo.jpeg, photo.label, photo.pixels)


@dataclass(frozen=True)
class _FileItem:
    path: str
    key: str
    label: int

    def read(self) -> _Record:
        try:
            data = Path(self.path).read_bytes()
        except OSError as error:
            raise ShardError(f"cannot read {self.path}: {error.strerror}") from error
        return _Record(self.key, Path(self.path).suffix[1:].lower(), data, self.label, _pixels(data))


def make_shards(
    out: str | os.PathLike[str],
    source: Photos | Folder | Mapping[str, Any],
    samples: int | None = None,
    *,
    prefix: str = "train",
    samples_per_shard: int = 1000,
    workers: int | None = None,
) -> ShardReport:
    """Write `source` as shards `out/{prefix}-000000.tar` and on, of `key.jpg` and `key.cls` each.

    source: Photos (or a mapping of its fields) to draw, or a Folder to pack, which leaves `classes.json` too.
    samples: how many; None means 1000 photographs, or every file. Another prefix draws other photographs.
    workers: processes; 0 works in this one, None chooses. The shards are the same bytes for any number.

    Shards are named only once they are whole. Shards of ours under the same prefix are replaced.

    Raises:
        ValueError: for an argument out of range.
        ShardError: for a folder without images, a file that cannot be read, or shards that are not ours.
    """
    if not isinstance(prefix, str) or not re.fullmatch(r"[\w][\w.-]*", prefix):
        raise ValueError(f"prefix: expected letters, digits, '_', '.' or '-', got {prefix!r}")
    _check_count("samples", samples, 1, optional=True)
    _check_count("samples_per_shard", samples_per_shard, 1)
    _check_count("workers", workers, 0, optional=True)
    directory = Path(out)
    items: Sequence[_Item]
    if isinstance(source, Folder):
        if source.directory().resolve() in directory.resolve().parents:
            raise ValueError(
                f"out: {directory} lies inside {source.directory()} and would become a class there"
            )
        if "train" in source.parts():
            raise ShardError(
                f"root: {source.root} holds train and val, which are no classes: give Folder(split=...) or "
                "FolderShards, which keep them apart, or build a cache of it with tarpeg.build_cache"
            )
        files = source.files()
        if samples is not None and samples > len(files):
            raise ValueError(
                f"samples: expected at most the {len(files)} images of {source.root}, got {samples}"
            )
        items = [_FileItem(*file) for file in files[:samples]]
    else:
        photos = Photos.of(source)
        items = [_PhotoItem(photos, prefix, index) for index in range(1000 if samples is None else samples)]
    if workers is None:
        # Starting processes takes a second or so: not worth it for a handful.
        workers = min(usable_cores(), len(items) // 64)
        workers = workers if workers > 1 else 0
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _clear(directory, prefix)
        report = _write(directory, prefix, items, samples_per_shard, workers)
        if isinstance(source, Folder):
            write_json(directory / "classes.json", source.classes())
    except OSError as error:
        raise ShardError(f"cannot write shards in {directory}: {error}") from error
    return report


def _write(
    directory: Path, prefix: str, items: Sequence[_Item], samples_per_shard: int, workers: int
) -> ShardReport:
    from webdataset.writer import TarWriter  # imports torch: two seconds that worker processes need not spend

    started = time.monotonic()
    shards = []
    total = whole = pixels = 0
    with contextlib.closing(_records(items, workers)) as made:
        records = _shown(made, len(items), prefix)
        for number in range(-(-len(items) // samples_per_shard)):
            path = directory / f"{prefix}-{number:06d}.tar"
            options = {"user": _OWNER, "group": _OWNER, "mode": 0o644, "mtime": 0, "encoder": False}
            with renamed(path) as stream, TarWriter(stream, **options) as tar:
                for record in islice(records, samples_per_shard):
                    label = str(record.label).encode("ascii")
                    tar.write({"__key__": record.key, record.extension: record.data, "cls": label})
                    total += len(record.data)
                    whole += len(record.data) if record.pixels else 0
                    pixels += record.pixels
            shards.append(path)
    seconds = time.monotonic() - started
    return ShardReport(tuple(shards), len(items), total, 8 * whole / pixels if pixels else 0.0, seconds)


def _records(items: Sequence[_Item], workers: int) -> Generator[_Record, None, None]:
    """Yield the items' records in order."""
    if workers == 0:
        yield from (item.read() for item in items)
        return
    blocks = (items[start : start + _BLOCK] for start in range(0, len(items), _BLOCK))
    with contextlib.closing(map_in_processes(_read_block, blocks, workers)) as made:
        for records in made:
            yield from records


def _read_block(items: Sequence[_Item]) -> list[_Record]:
    return [item.read() for item in items]


def _shown(records: Iterator[_Record], count: int, what: str) -> Iterator[_Record]:
    """Pass records on while it is shown how far that is."""
    with progress(what, count) as show:
        started = time.monotonic()
        for done, record in enumerate(records, start=1):
            yield record
            show(done, f"{done / max(time.monotonic() - started, 1e-3):.0f} images/s")


def _clear(directory: Path, prefix: str) -> None:
    """Remove what an earlier run left under `prefix`; ShardError for shards that are not ours."""
    name = re.compile(rf"(\.?){re.escape(prefix)}-\d{{6}}\.tar((\.[\w-]+)?\.tmp)?")
    old = sorted(path for path in directory.iterdir() if name.fullmatch(path.name))
    for path in old:
        if path.suffix == ".tar" and not _is_ours(path):
            raise ShardError(
                f"{path} is in the way and was not written by make_shards: choose another out= or prefix=, "
                "or move it away"
            )
    for path in old:
        path.unlink()


def _is_ours(path: Path) -> bool:
    try:
        with tarfile.open(path, "r:") as tar:
            first = tar.next()
    except tarfile.TarError:
        return False
    return first is not None and first.uname == _OWNER


def _pixels(data: bytes) -> int:
    try:
        with Image.open(io.BytesIO(data), formats=PILLOW_FORMATS) as image:
            return image.width * image.height
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return 0  # packed as it is all the same: whoever reads it has a policy for bad images


def _check_count(name: str, value: Any, least: int, *, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: expected an integer of {least} or more, got {value!r}")
