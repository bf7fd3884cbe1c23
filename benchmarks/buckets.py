"""The buckets suite: batches of several shapes, one per batch, by torchvision and by this library.

Each photograph covers the shape of its bucket: what the shape shows of it is cropped at a random place,
resized and mirrored. The peer is what trainings write by hand: a dataset of files, whose sizes are known,
and a batch sampler that sorts them by shape.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tarpeg.loader.config import LoaderConfig
from tarpeg.loader.loader import Loader
from tarpeg.loader.split import Split
from tarpeg.sampling.buckets import AspectBuckets, Shape
from tarpeg.shards.mapped import Shards
from tarpeg.shards.pillow import as_tensor
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from .decode_peers import BATCH, decode_jpeg
from .loader import DataLoaderContestant, LoaderRun, speeds
from .loader_data import REPEATS, LoaderData
from .loader_peers import Batches, Peer, for_ever
from .report import Report

CROP = AspectBuckets(resolution=512, step=64, upscale=True)
SIZES = ((768, 1024), (1024, 768), (683, 1024), (1024, 683), (800, 800), (576, 1024))
"""Default sizes of the photographs."""


def files_of(data: LoaderData) -> Path:
    """Return the folder of the photographs as NUMBER.jpg."""

    def make(folder: Path) -> None:
        shards = Shards(data.shards("ordinary", 1))
        folder.mkdir()
        for number in range(len(shards)):
            (folder / f"{number:08d}.jpg").write_bytes(bytes(shards.images([number])[0].numpy()))

    return data.cached("numbered", make)


class BucketFiles:
    """Files of several sizes as a map-style dataset: each as uint8 [3, height, width] of its shape.

    folder: of NUMBER.jpg. is_random: crop at a random place and mirror half of the images; False: the centre.
    """

    def __init__(self, folder: Path, *, is_random: bool = True) -> None:
        self._paths, self._is_random = sorted(folder.glob("*.jpg")), is_random
        self._sizes = [_size_of(path) for path in self._paths]
        self.shapes: list[Shape] = [*map(tuple, CROP.shapes_of(self._sizes).tolist())]
        self._functions = importlib.import_module("torchvision.transforms.v2.functional")

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Tensor:
        (height, width), shape = self._sizes[number], self.shapes[number]
        scale = max(shape[0] / height, shape[1] / width)
        box = min(round(shape[0] / scale), height), min(round(shape[1] / scale), width)
        free = torch.tensor([height - box[0], width - box[1]])
        place = torch.rand(2) if self._is_random else torch.full((2,), 0.5)
        corner = (place * free).round().int().tolist()
        image = decode_jpeg(as_tensor(self._paths[number].read_bytes()))
        # Cropped first: fewer pixels are resized than by Resize and RandomCrop, which give the same.
        image = self._functions.resized_crop(image, *corner, *box, list(shape), antialias=True)
        if self._is_random and torch.rand(()) < 0.5:
            image = self._functions.horizontal_flip(image)
        made: Tensor = image
        return made


def _size_of(path: Path) -> Shape:
    with Image.open(path) as image:
        return image.height, image.width


class BucketSampler(Sampler[list[int]]):
    """Batches of one shape in a random order, as trainings write them by hand; the remainders come last."""

    def __init__(self, shapes: list[Shape], batch: int) -> None:
        self._shapes, self._batch = shapes, batch

    def __iter__(self) -> Iterator[list[int]]:
        waiting: dict[Shape, list[int]] = {}
        for place in torch.randperm(len(self._shapes) * REPEATS).tolist():
            number = place % len(self._shapes)
            batch = waiting.setdefault(self._shapes[number], [])
            batch.append(number)
            if len(batch) == self._batch:
                yield waiting.pop(self._shapes[number])
        yield from waiting.values()


def _by_torchvision(data: LoaderData, group: str, workers: int) -> Batches:
    files: Any = BucketFiles(files_of(data))
    loader = DataLoader(
        files,
        batch_sampler=BucketSampler(files.shapes, BATCH),
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    return ((images,) for images in for_ever(loader))


PEERS = {"files + bucket sampler + torchvision v2": Peer("torchvision", "torchvision", _by_torchvision)}
_OURS = tuple(
    f"tarpeg, {kind}" for kind in ("ordinary, workers", "tiled, workers", "tiled, threads", "packed, workers")
)


@dataclass(frozen=True)
class BucketContestant(DataLoaderContestant):
    """A contestant of this suite."""

    peers = PEERS

    def loader(self, shards: list[Path]) -> Loader:
        """Loader of this library's contestant."""
        workers, threads = self.engine
        return Loader(self.split(shards), config=LoaderConfig(BATCH, workers=workers, threads=threads))

    def split(self, shards: list[Path]) -> Split:
        """Split that this library's contestant reads."""
        return Split(shards, CROP, flip=0.5)

    def expects(self, images: Tensor) -> bool:
        """Whether images have one of the shapes, and the dtype of this suite."""
        is_small = images.ndim == 4 and len(images) <= BATCH
        return is_small and tuple(images.shape[2:]) in CROP.shapes and images.dtype == torch.uint8


def measure_buckets(run: LoaderRun) -> Report:
    """Measure both on photographs of several sizes."""

    def contestants(group: str) -> list[BucketContestant]:
        names = [*PEERS, *_OURS]
        return [BucketContestant(name, group, run.data, run.settings.workers) for name in names]

    files_of(run.data)
    report = run.measure(("ordinary", "tiled", "packed"), {"uint8": "uint8 images"}, contestants)
    work = (
        f"photographs -> the nearest shape of {CROP.resolution} in steps of {CROP.step} -> batches of {BATCH}"
    )
    return replace(report, work=work, figures=tuple(speeds(report.rows)))
