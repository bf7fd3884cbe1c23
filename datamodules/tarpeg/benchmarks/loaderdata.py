"""What the loader benchmark reads: the same photographs in every form that is taken, kept on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cache import build_cache
from ..codecs import Raw, Tiled
from ..packing import make_shards
from ..shards import Shards
from ..synth import Photos

Advance = Callable[[str, float], None]
"""Is told what is being done, and the share of it that is done."""

_REPEATS = 8
_SHARDS = 4


@dataclass(frozen=True)
class LoaderData:
    """``images`` photographs as ``photos`` draws them, under ``folder``; each form is made at first use.

    An epoch shows every photograph eight times, each time as another sample, so that what happens between
    epochs has the weight that it has where epochs are long.
    """

    folder: Path
    photos: Photos
    images: int
    tile: int

    @property
    def epoch(self) -> int:
        """Samples an epoch."""
        return _REPEATS * self.images

    def make(self, kinds: Sequence[str], advance: Advance) -> None:
        """Make the shards of those kinds that are missing; tells ``advance`` how far it is."""
        for done, kind in enumerate(kinds):
            advance(f"making {kind} shards", done / len(kinds))
            self.shards(kind)

    def shards(self, kind: str, repeats: int = _REPEATS) -> list[Path]:
        """Name the shards of an epoch, or of ``repeats`` times every photograph.

        ``kind``: "ordinary" JPEGs, "tiled" ones or "raw" pixels (binary PPM).
        """
        folder = self.made(f"{kind}-{self.tile}" if kind == "tiled" else kind, self._writer(kind))
        return sorted(folder.glob(f"[0-{repeats - 1}]-*.tar"))

    def samples(self) -> Iterator[tuple[bytes, int]]:
        """Give each photograph's JPEG and label."""
        shards = Shards(self.shards("ordinary", 1))
        labels = shards.labels(range(len(shards))).tolist()
        for number, label in enumerate(labels):
            yield bytes(shards.images([number])[0].numpy()), label

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the folder or file ``name``, made by ``make`` under another name where there is none yet."""
        path = self.folder / f"{self.images}-{_label(self.photos)}" / name
        if not path.exists():
            aside = path.with_name(f".{name}")
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(parents=True, exist_ok=True)
            make(aside)
            aside.rename(path)
        return path

    def _writer(self, kind: str) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            within = folder / kind
            if kind == "ordinary":
                make_shards(within, self.photos, self.images, samples_per_shard=-(-self.images // _SHARDS))
            else:
                codec = Tiled(self.tile) if kind == "tiled" else Raw()
                build_cache(self.shards("ordinary", 1), within, codec)
            # Other names for the same files are other samples, and share their pages.
            for path in within.glob("*.tar"):
                for turn in range(_REPEATS):
                    folder.joinpath(f"{turn}-{path.name}").symlink_to(path.relative_to(folder))

        return write


def _label(photos: Photos) -> str:
    sizes = "-".join(size if isinstance(size, str) else "x".join(map(str, size)) for size in photos.size)
    return f"{sizes}-seed{photos.seed}"
