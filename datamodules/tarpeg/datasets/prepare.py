"""Callables that make the shards of a data set if they are missing: `prepare` of ShardDataModule."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from ..errors import ShardError, check_integer
from ..files import read_regular, write_json
from ..remedies import Message, Setting
from ..shards.folder import Folder
from ..shards.image_names import ImageNames, plain_list
from ..shards.manifest import read_manifest
from ..shards.urls import local_folder
from .synthetic import Photos
from .writer import make_shards

if TYPE_CHECKING:
    from ..cache.codecs import Codec
    from ..cache.layout import Layout
    from ..cache.sources import Source

log = logging.getLogger("tarpeg")

_LISTED = 3  # classes in the message about changed images
_OUT = Setting("prepare", "out")
_FORMAT = 1  # raise it if the same parameters give other shards


@dataclass(frozen=True)
class SyntheticShards:
    """Callable that draws ``out/{train,val}-*.tar`` of synthetic photographs if they are missing.

    Several processes may call at once: one works, the others wait.

    Args:
        out: Folder of the shards.
        train: Number of photographs for training, at least 1.
        val: Number of photographs for validation, at least 1.
        photos: ``Photos``, or a mapping of its fields.
        samples_per_shard: Largest number of photographs in a shard.
        workers: Processes; None chooses.

    Raises:
        ValueError: When constructed, for a value out of range.
        ShardError: When called, if ``out`` has shards made with other parameters.

    Example:
        >>> photos = tarpeg.Photos(size=96)
        >>> prepare = tarpeg.SyntheticShards(str(tmp), train=8, val=4, photos=photos, workers=0)
        >>> split = tarpeg.Split(tmp / "train-*.tar", tarpeg.RandomCrop(64))
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=4, workers=0, prepare=prepare)
        >>> len(data.train_dataloader())
        2
    """

    out: str
    train: int = 2000
    val: int = 500
    photos: Photos | Mapping[str, Any] = field(default_factory=Photos)
    samples_per_shard: int = 500
    workers: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", local_folder("out", self.out))
        # A plain Photos, so that unpickling in another process needs no config library.
        object.__setattr__(self, "photos", Photos.of(self.photos))
        for name in ("train", "val", "samples_per_shard"):
            check_integer(name, getattr(self, name), 1)

    def __call__(self) -> Path:
        """Make the shards if they are missing; return `out`."""
        parameters = {"kind": "synthetic", **dataclasses.asdict(self)}
        splits = {"train": (self.photos, self.train), "val": (self.photos, self.val)}
        return _make_once(parameters, splits, f"drawing {self.train + self.val} photographs")


@dataclass(frozen=True)
class FolderShards:
    """Callable that packs a folder of images into ``out/{train,val}-*.tar`` if they are missing.

    It also writes ``out/classes.json``. Files that are left out are counted in a warning. A later call raises
    if the images in ``root`` have changed; if ``root`` is missing or empty, it uses the existing shards.

    Args:
        root: Folder of images; its directories train, val and test (or others of the names in ``Folder``) are
            the splits, and test becomes ``out/test-*.tar``.
        out: Folder of the shards.
        val_share: Without a directory for val: the share of the images, drawn evenly over the classes, that
            are val. Of other images it is another one: see ``Folder``.
        seed: Seed of the order and of the images of val.
        samples_per_shard: Largest number of images in a shard.
        workers: Threads that read the files; None chooses.

    Raises:
        ValueError: When constructed, for a value out of range.
        ShardError: When called, for a folder without images, or if ``out`` was made with other parameters or
            from other images.

    Example:
        >>> prepare = tarpeg.FolderShards(str(folder), str(tmp), val_share=0.25, workers=0)
        >>> sorted(path.name for path in prepare().glob("*.tar"))
        ['train-000000.tar', 'val-000000.tar']
    """

    root: str
    out: str
    val_share: float = 0.1
    seed: int = 0
    samples_per_shard: int = 1000
    workers: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", str(self.root))
        object.__setattr__(self, "out", local_folder("out", self.out))
        self._folder("all")  # checks the values

    def __call__(self) -> Path:
        """Make the shards if they are missing; return `out`."""
        parameters = {"kind": "folder", **dataclasses.asdict(self), "root": os.path.realpath(self.root)}
        names = ["train", "val", *(["test"] if "test" in self._folder("all").parts() else [])]
        splits = {split: (self._folder(split), None) for split in names}
        return _make_once(parameters, splits, f"packing the images of {self.root}", self._contents)

    def _folder(self, split: str) -> Folder:
        return Folder(self.root, seed=self.seed, split=split, val_share=self.val_share)

    def _contents(self) -> dict[str, Any]:
        root = Path(self.root)
        return self._folder("all").contents() if root.is_dir() and any(root.iterdir()) else {}


@dataclass(frozen=True)
class CachedShards:
    """Callable that builds the cache of a source in ``out`` if it is missing; see ``tarpeg.build_cache``.

    Several processes may call at once: one works, the others wait. A later call completes a killed build.
    Samples that the build leaves out are counted in a warning.

    Args:
        source: Shards or a folder of images, as for ``build_cache``; or a callable that makes them and
            returns their place, such as ``SyntheticShards``. Shards keep their names: ``out/train-*.tar`` are
            the source's train shards.
        out: Folder of the cache.
        codec: Codec of the images; None is ``Tiled()``.
        layout: As for ``build_cache``.
        max_bad: As for ``build_cache``.
        workers: Processes; None as in ``build_cache``.
        refresh: Compare the cache with the source in every call, and build missing or changed shards. False
            uses a complete cache of this codec and layout without reading the source, which may be gone.
        images: As for ``build_cache``.

    Raises:
        ValueError: When called, for a value out of range.
        ShardError: When called, if the source cannot be read.
        CacheError: When called, if too many images are undecodable, the cache cannot be written, or ``out``
            holds the cache of another source or codec, or of more shards than this one.

    Example:
        >>> prepare = tarpeg.CachedShards(shards, str(tmp), codec=tarpeg.Packed(), workers=0)
        >>> split = tarpeg.Split(tmp / "train-*.tar", tarpeg.RandomCrop(64))
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=8, workers=0, prepare=prepare)
        >>> len(data.train_dataloader())
        4
    """

    source: Folder | Sequence[str | os.PathLike[str]] | str | Callable[[], Source] | Source
    out: str
    codec: Codec | None = None
    layout: Layout | None = None
    max_bad: float = 0.01
    workers: int | None = None
    refresh: bool = True
    images: ImageNames | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", local_folder("out", self.out))

    def __call__(self) -> Path:
        """Build the missing part of the cache; return `out`."""
        # Imported here because they import torch, which a process that only draws photographs need not.
        from ..cache.build import build_cache
        from ..cache.report import left_out_lines, progress_bar

        if self.refresh and not os.access(self.out, os.W_OK) and self._is_complete():
            log.warning(
                "%s is read as it is, as it cannot be written: not compared with its source", self.out
            )
        elif self.refresh or not self._is_complete():
            source = self.source() if callable(self.source) else self.source
            build = partial(build_cache, layout=self.layout, images=self.images, max_bad=self.max_bad)
            with progress_bar() as update:
                report = build(source, self.out, self.codec, self.workers, progress=update)
            for line in left_out_lines(report):
                log.warning("%s: %s", self.out, line)
        return Path(self.out)

    def _is_complete(self) -> bool:
        from ..cache.codecs import Tiled
        from ..cache.job import describe_codec
        from ..cache.layout import Layout

        manifest = read_manifest(self.out)
        requested: list[Any] = [
            describe_codec(self.codec or Tiled()),
            dataclasses.asdict(self.layout or Layout()),
        ]
        requested.append([] if self.images is None else plain_list(self.images))
        return manifest is not None and [manifest.codec, manifest.layout, manifest.images] == requested


def _make_once(
    parameters: dict[str, Any],
    splits: Mapping[str, tuple[Photos | Mapping[str, object] | Folder, int | None]],
    task: str,
    contents: Callable[[], dict[str, Any]] = dict,
) -> Path:
    """Make shards under a lock unless ``out/shards.json``, written last, records the same parameters.

    Args:
        parameters: All parameters of the shards.
        splits: Source and number of samples of each split.
        task: Description of the work, for the log.
        contents: Function that returns a description of the source, which must not change later; empty if it
            is unknown.
    """
    directory = Path(parameters["out"])
    options = {name: parameters[name] for name in ("samples_per_shard", "workers")}
    # The place and the number of processes do not change the shards. JSON turns tuples into lists.
    requested = {name: value for name, value in parameters.items() if name not in ("out", "workers")}
    requested = json.loads(json.dumps({"format": _FORMAT, **requested}))
    try:
        if _is_made(directory, requested, contents):
            return directory
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / ".lock"):
            if not _is_made(directory, requested, contents):
                log.warning("%s into %s (once)", task, directory)
                before = contents()  # read first: the next call detects what changes during the packing
                made = [
                    make_shards(directory, *source, prefix=name, **options) for name, source in splits.items()
                ]
                names = [shard.name for report in made for shard in report.shards]
                record = {"parameters": requested, "contents": before, "shards": names}
                write_json(directory / "shards.json", record)
    except OSError as error:
        raise ShardError(f"cannot make shards in {directory}: {error}") from error
    return directory


def _is_made(directory: Path, requested: dict[str, Any], contents: Callable[[], dict[str, Any]]) -> bool:
    path = directory / "shards.json"
    try:
        record = json.loads(read_regular(path))
        parameters, names = dict(record["parameters"]), list(record["shards"])
        then = dict(record.get("contents") or {})  # early versions did not record them
    except FileNotFoundError:
        return False
    except (ValueError, TypeError, KeyError) as error:
        remedy = Message(f"{path} is damaged: delete the folder, or choose another ", _OUT)
        raise ShardError(remedy) from error
    old, new = _flat(parameters), _flat(requested)
    differing = [
        f"{name} ({old.get(name)!r} there, {new.get(name)!r} requested)"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    if differing:
        raise ShardError(
            Message(
                f"{directory} has shards made with other parameters: {', '.join(differing)}: choose another ",
                _OUT,
                ", or delete the folder",
            )
        )
    if not all((directory / name).is_file() for name in names):
        return False
    now = contents() if then else {}
    if now and not _is_same(then, now):
        raise ShardError(
            Message(
                f"the images in {parameters.get('root')} have changed since they were packed into "
                f"{directory} ({_changes(then, now)}): choose another ",
                _OUT,
                f", or delete {directory} to pack them again. If val is a share of the images, it is then "
                "drawn again: a network that is trained has seen most of it. A cache of the folder "
                "(build_cache or CachedShards) is updated instead, and only in what changed",
            )
        )
    return True


def _is_same(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether two contents of a folder are the same images.

    A copy may lose the fractions of all seconds; and early versions recorded none.
    """
    known = {name: then.get(name) for name in now}
    if now.get("fractions") is None or "fractions" not in then:
        known["fractions"] = now.get("fractions")
    return known == now


def _changes(then: dict[str, Any], now: dict[str, Any]) -> str:
    before, after = dict(then.get("classes") or {}), now["classes"]
    changes = [
        f"{name}: {before.get(name, 0)} then, {after.get(name, 0)} now"
        for name in sorted({*before, *after})
        if before.get(name, 0) != after.get(name, 0)
    ]
    more = f"; and {len(changes) - _LISTED} more" * (len(changes) > _LISTED)
    return "; ".join(changes[:_LISTED]) + more or "other names, sizes or dates of files"


def _flat(parameters: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
