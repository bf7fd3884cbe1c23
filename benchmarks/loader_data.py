"""Settings of the loader, article and dali suites, and the photographs that they read."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from tarpeg.cache.build import build_cache
from tarpeg.cache.codecs import Codec, Packed, Raw, Tiled
from tarpeg.datasets.synthetic import Photos
from tarpeg.datasets.writer import make_shards
from tarpeg.errors import check_integer
from tarpeg.shards.mapped import Shards

from .photos import FolderPhotos

Advance = Callable[[str, float], None]
"""Callback of the progress bar: what is being done, and the finished fraction of it."""
Show = Callable[[str], None]
"""Callback that shows a line above the progress bar: a result, as soon as it is measured."""

REPEATS = 8
"""Samples of each photograph per epoch."""
_SHARDS = 4


def check_names(group: str, settings: type[Any], value: Mapping[str, Any]) -> None:
    """Raise ValueError for a key that is not a field of the dataclass ``settings``."""
    known = [one.name for one in fields(settings)]
    for name in value:
        if name not in known:
            raise ValueError(f"{group} has no setting {name!r}; it has {', '.join(known)}")


@dataclass(frozen=True)
class LoaderSettings:
    """Further settings of the loader, article and dali suites.

    data: folder of the photographs, which are kept for the next run. workers: processes or threads of each
    contestant. seconds: length of one measurement. epochs: length of the loader suite's memory check; 0 skips
    it. only: measure a contestant if its name contains one of these; the first one is always measured.
    """

    data: str = "outputs/bench/data"
    workers: int = 2
    seconds: float = 1.0
    epochs: int = 20
    only: tuple[str, ...] | list[str] = ()

    def __post_init__(self) -> None:
        check_integer("loader.workers", self.workers, 1)
        check_integer("loader.epochs", self.epochs, 0)
        if not isinstance(self.seconds, (int, float)) or not self.seconds > 0:
            raise ValueError(f"loader.seconds={self.seconds!r} must be a positive number")

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> LoaderSettings:
        """Return settings from a mapping; ValueError for an unknown key."""
        check_names("loader", cls, value)
        return cls(**value)

    def selects(self, name: str) -> bool:
        """Whether ``only`` includes this contestant."""
        return not self.only or any(part in name for part in self.only)


@dataclass(frozen=True)
class LoaderData:
    """``images`` photographs drawn by ``photos``, under ``folder``; each form is made at its first use.

    tile: requested width of tiles in pixels. An epoch has every photograph eight times, each time as another
    sample: with fewer samples the work between epochs would have more weight than in real training.
    """

    folder: Path
    photos: Photos
    images: int
    tile: int

    def shards(self, kind: str, repeats: int = REPEATS) -> list[Path]:
        """Paths of the shards that hold every photograph ``repeats`` times, made if they are missing.

        ``kind``: "ordinary" JPEGs, or a codec: "tiled" JPEGs, "packed" images or "raw" pixels (binary PPM).
        """
        name = f"{kind}-{self.tile}" if kind in ("tiled", "packed") else kind
        return sorted(self.cached(name, partial(self._write, kind)).glob(f"[0-{repeats - 1}]-*.tar"))

    def samples(self) -> Iterator[tuple[bytes, int]]:
        """JPEG and label of each photograph."""
        shards = Shards(self.shards("ordinary", 1))
        for number, label in enumerate(shards.labels(range(len(shards))).tolist()):
            yield bytes(shards.images([number])[0].numpy()), label

    def cached(self, name: str, make: Callable[[Path], object]) -> Path:
        """Path of the folder or file ``name``, written by ``make`` under a temporary name if missing."""
        label = "-".join(map(size_label, self.photos.size))
        if isinstance(self.photos, FolderPhotos):
            source = Path(self.photos.folder).resolve()
            label = f"{source.name}-{zlib.crc32(bytes(source)):08x}-{label}"
        path = self.folder / f"{self.images}x{REPEATS}-copies-{label}-seed{self.photos.seed}" / name
        if not path.exists():
            temporary = path.with_name(f".{name}")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.parent.mkdir(parents=True, exist_ok=True)
            make(temporary)
            temporary.rename(path)
        return path

    def build(self, kind: str, within: Path) -> None:
        """Write the photographs once."""
        if kind == "ordinary":
            make_shards(within, self.photos, self.images, samples_per_shard=-(-self.images // _SHARDS))
            return
        codecs: dict[str, Codec] = {"raw": Raw()}
        codecs |= {"tiled": Tiled(self.tile), "packed": Packed(tile=self.tile)}
        build_cache(self.shards("ordinary", 1), within, codecs[kind])

    def _write(self, kind: str, folder: Path) -> None:
        within = folder / kind
        self.build(kind, within)
        # Copies under other names are other samples; links to one file are refused as one shard.
        for path in within.glob("*.tar"):
            for number in range(REPEATS):
                shutil.copyfile(path, folder / f"{number}-{path.name}")


def size_label(size: str | tuple[int, int]) -> str:
    """Size of photographs as text, such as "article" or "300x200"."""
    return size if isinstance(size, str) else "x".join(map(str, size))
