"""Callables that make a data set's shards if they are not there yet, for ShardDataModule and for configs."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from ..errors import ShardError
from ..files import write_json
from ..shards.folder import Folder
from ..shards.manifest import read_manifest
from .synthetic import Photos
from .writer import ShardReport, make_shards

if TYPE_CHECKING:
    from ..cache.codecs import Codec
    from ..cache.plan import Layout
    from ..cache.sources import Source

log = logging.getLogger("tarpeg")

_SHOWN = 3  # classes whose images are others
_FORMAT = 1  # raise it when the same parameters give other shards


@dataclass(frozen=True)
class SyntheticShards:
    """Call it to have `out/train-*.tar` and `out/val-*.tar` of synthetic photographs, made where missing.

    train, val: number of photographs, 1 or more; photos: Photos, or a mapping of its fields; workers:
    processes, None chooses. Several processes may call at once: one works, the others wait.

    Raises:
        ValueError: for a value out of range, when constructed.
        ShardError: when called, if `out` holds shards made with other parameters.
    """

    out: str
    train: int = 2000
    val: int = 500
    photos: Photos | Mapping[str, Any] = field(default_factory=Photos)
    samples_per_shard: int = 500
    workers: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", str(self.out))
        # A plain Photos, so that what is pickled to other processes needs no config library.
        object.__setattr__(self, "photos", Photos.of(self.photos))
        for name in ("train", "val", "samples_per_shard"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}: expected an integer of 1 or more, got {value!r}")

    def __call__(self) -> Path:
        """Make the shards where they are missing; returns `out`."""
        parameters = dataclasses.asdict(self)
        return _once(self.out, {"kind": "synthetic", **parameters}, self._make, self._told())

    def _told(self) -> str:
        return f"drawing {self.train + self.val} photographs"

    def _make(self) -> list[ShardReport]:
        counts = {"train": self.train, "val": self.val}
        per_shard, workers = self.samples_per_shard, self.workers
        return [
            make_shards(self.out, self.photos, n, prefix=split, samples_per_shard=per_shard, workers=workers)
            for split, n in counts.items()
        ]


@dataclass(frozen=True)
class FolderShards:
    """Call it to have `out/train-*.tar`, `out/val-*.tar`, `out/classes.json` of a folder of images.

    Where root/train and root/val both exist they are the splits; otherwise `val_share` of the images, drawn
    by `seed` evenly over the classes, are val. Called again where the images in `root` are others, it
    raises; where `root` is gone or empty, it takes the shards as they are.

    Raises:
        ValueError: for a value out of range, when constructed.
        ShardError: when called, for a folder without images, or if `out` was made with other parameters, or
            of other images.
    """

    root: str
    out: str
    val_share: float = 0.1
    seed: int = 0
    samples_per_shard: int = 1000
    workers: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", str(self.root))
        object.__setattr__(self, "out", str(self.out))
        self._folder("all")

    def __call__(self) -> Path:
        """Make the shards where they are missing; returns `out`."""
        parameters = {**dataclasses.asdict(self), "root": os.path.realpath(self.root)}
        told = f"packing the images of {self.root}"
        return _once(self.out, {"kind": "folder", **parameters}, self._make, told, self._contents)

    def _folder(self, split: str) -> Folder:
        return Folder(self.root, seed=self.seed, split=split, val_share=self.val_share)

    def _contents(self) -> dict[str, Any]:
        root = Path(self.root)
        return self._folder("all").contents() if root.is_dir() and any(root.iterdir()) else {}

    def _make(self) -> list[ShardReport]:
        folders = {split: self._folder(split) for split in ("train", "val")}
        per_shard, workers = self.samples_per_shard, self.workers
        return [
            make_shards(self.out, folder, prefix=split, samples_per_shard=per_shard, workers=workers)
            for split, folder in folders.items()
        ]


@dataclass(frozen=True)
class CachedShards:
    """Call it to have the cache of a source in `out`, built where it is missing, see `tarpeg.build_cache`.

    source: shards or a folder of images, as there; or another callable that makes them and returns where,
    such as SyntheticShards. Shards keep their names, so that `out/train-*.tar` are those of the source.
    codec: Tiled() unless told. layout, max_bad: as there. workers: processes, None for one a core. refresh:
    look at the source every time, and build what is missing or changed; False takes a finished cache of that
    codec and layout as it is, and the source need not be there any more.

    Several processes may call at once: one works, the others wait. A build that was killed goes on.

    Raises:
        ValueError: when called, for a value out of range.
        ShardError: when called, if the source cannot be read.
        CacheError: when called, if too much of it is undecodable, or the cache cannot be written.
    """

    source: Source | Callable[[], Source]
    out: str
    codec: Codec | None = None
    layout: Layout | None = None
    max_bad: float = 0.01
    workers: int | None = None
    refresh: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", str(self.out))

    def __call__(self) -> Path:
        """Build what is missing of the cache; returns `out`."""
        # Not above: they load torch, which a process that only draws photographs need not.
        from ..cache.build import build_cache
        from ..cache.report import progress_bar

        if self.refresh or not self._is_there():
            source = self.source() if callable(self.source) else self.source
            with progress_bar() as show:
                build_cache(
                    source,
                    self.out,
                    self.codec,
                    self.workers,
                    layout=self.layout,
                    max_bad=self.max_bad,
                    progress=show,
                )
        return Path(self.out)

    def _is_there(self) -> bool:
        from ..cache.codecs import Tiled
        from ..cache.job import describe
        from ..cache.plan import Layout

        manifest = read_manifest(self.out)
        wished = [describe(self.codec or Tiled()), dataclasses.asdict(self.layout or Layout())]
        return manifest is not None and [manifest.codec, manifest.layout] == wished


def _once(
    out: str,
    parameters: dict[str, Any],
    make: Callable[[], list[ShardReport]],
    told: str,
    contents: Callable[[], dict[str, Any]] = dict,
) -> Path:
    """Run `make` under a lock unless `out/shards.json`, written last, says that it was run before.

    contents: what they are made of, which must be the same as then; empty where there is no telling.
    """
    directory = Path(out)
    # Neither place nor number of processes changes what the shards hold. JSON turns tuples into lists.
    wished = {name: value for name, value in parameters.items() if name not in ("out", "workers")}
    wished = json.loads(json.dumps({"format": _FORMAT, **wished}))
    try:
        if _is_made(directory, wished, contents):
            return directory
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / ".lock"):
            if not _is_made(directory, wished, contents):
                log.warning("%s into %s (once)", told, directory)
                content = contents()  # before: of what changes meanwhile, the next run tells
                names = [shard.name for report in make() for shard in report.shards]
                write_json(
                    directory / "shards.json", {"parameters": wished, "contents": content, "shards": names}
                )
    except OSError as error:
        raise ShardError(f"cannot make shards in {directory}: {error}") from error
    return directory


def _is_made(directory: Path, wished: dict[str, Any], contents: Callable[[], dict[str, Any]]) -> bool:
    path = directory / "shards.json"
    try:
        content = json.loads(path.read_bytes())
        made, names = dict(content["parameters"]), list(content["shards"])
        then = dict(content.get("contents") or {})  # older shards have none
    except FileNotFoundError:
        return False
    except (ValueError, TypeError, KeyError) as error:
        raise ShardError(f"{path} is damaged: delete the folder, or choose another out=") from error
    flat_made, flat_wished = _flat(made), _flat(wished)
    differing = [
        f"{name} ({flat_made.get(name)!r} there, {flat_wished.get(name)!r} wished)"
        for name in sorted({*flat_made, *flat_wished})
        if flat_made.get(name) != flat_wished.get(name)
    ]
    if differing:
        raise ShardError(
            f"{directory} holds shards made with other parameters: {', '.join(differing)}; "
            "choose another out= or delete the folder"
        )
    if not all((directory / name).is_file() for name in names):
        return False
    now = contents() if then else {}
    if now and now != then:
        raise ShardError(
            f"the images in {made.get('root')} are others than those {directory} was packed from "
            f"({_changes(then, now)}): choose another out= (with train.py, data.prepare.out=NEW), or delete "
            f"{directory}, to pack them anew"
        )
    return True


def _changes(then: dict[str, Any], now: dict[str, Any]) -> str:
    before, after = dict(then.get("classes") or {}), now["classes"]
    changes = [
        f"{name}: {before.get(name, 0)} then, {after.get(name, 0)} now"
        for name in sorted({*before, *after})
        if before.get(name, 0) != after.get(name, 0)
    ]
    more = f"; and {len(changes) - _SHOWN} more" * (len(changes) > _SHOWN)
    return "; ".join(changes[:_SHOWN]) + more or "other names, sizes or dates of files"


def _flat(parameters: dict[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in parameters.items() if not isinstance(value, dict)}
    for outer, inner in parameters.items():
        if isinstance(inner, dict):
            flat.update({f"{outer}.{name}": value for name, value in inner.items()})
    return flat
