"""Time of a loader per image with a mask in each of its forms: the table in docs/targets.md.

``python -m benchmarks.mask_forms PHOTOGRAPHS [IMAGES]`` prints it: PHOTOGRAPHS is a folder, of which so many
parts are taken (128; of large ones half).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

from tarpeg import Loader, LoaderConfig, Masks, RandomResizedCrop, Split, build_cache, make_shards
from tarpeg.sampling.geometry import View

from .photos import FolderPhotos
from .targets import annotated

_SIZES = (((480, 640), 224, 1), ((480, 640), 512, 1), ((1500, 2000), 224, 2))
_BATCH = 32
_ROUNDS = 15


@dataclass(frozen=True)
class _ByPillow(Masks):
    """Masks that are decoded whole."""

    def read_views(self, source: Any, ids: Any, views: Sequence[View], threads: int) -> list[Any]:
        return self.read(source, ids)


def _batches(shards: Path, size: int, targets: Any) -> Iterator[Any]:
    split = Split(str(shards / "*.tar"), RandomResizedCrop(size), flip=0.5, target=None, targets=targets)
    loader = Loader(split, config=LoaderConfig(_BATCH, workers=0, threads=0))
    while True:
        yield from loader


def _times(folder: Path, photographs: str, source: tuple[int, int], size: int, count: int) -> list[float]:
    """Return processor time per image, in ms: without masks, and with each form of them."""
    photos = FolderPhotos(folder=photographs, size=source, parts=max(1, count // 16))
    make_shards(folder / "shards", annotated(photos), count)
    build_cache(folder / "shards", folder / "plain")
    build_cache(folder / "shards", folder / "bands", masks="png")
    forms = (("bands", None), ("bands", Masks("png")), ("plain", Masks("png")), ("plain", _ByPillow("png")))
    loaders = [_batches(folder / name, size, targets) for name, targets in forms]
    times: list[list[float]] = [[] for _ in forms]
    for number in range(_ROUNDS + 2):
        for form in np.roll(np.arange(len(forms)), number).tolist():
            began = time.process_time()
            batch = next(loaders[form])
            took = time.process_time() - began
            if number > 1:
                times[form].append(took / len(batch.image) * 1e3)
            del batch
    return [float(np.median(each)) for each in times]


def main(photographs: str, images: int = 128) -> None:
    """Print the table."""
    sys.stdout.write("| | no targets | masks in a cache | ordinary PNGs | decoded whole by Pillow |\n")
    for source, size, share in _SIZES:
        with tempfile.TemporaryDirectory() as folder:
            found = _times(Path(folder), photographs, source, size, images // share)
        cells = " | ".join(f"{each:.2f} ms" for each in found)
        sys.stdout.write(f"| {source[1]} x {source[0]} to {size} | {cells} |\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
