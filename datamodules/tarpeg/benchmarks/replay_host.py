"""The contestants of the article and dali suites, each in a process of its own; see loaderhost.

A first batch is made by everybody from the same photographs and numbers, those of our own first batch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import BuildError
from ..loader.batch import augmented, pixels_of
from ..loader.config import LoaderConfig
from ..loader.loader import Loader
from ..loader.split import Split
from ..ops import decode
from ..sampling.sampler import Request
from . import crop_skip, replay_peers
from .contestants import BATCH
from .loader import LoaderData
from .loader_host import Contestant
from .replay import JOBS, Job, Numbers

_KINDS = ("ordinary", "tiled")
_ENGINES = ("threads", "workers")
_SEED = 0
SKIPPING = "webdataset + crop and skip"
"""Who does as the article did."""


class _Way(Protocol):
    def batches(self, data: LoaderData, workers: int) -> Iterator[Any]: ...
    def made(self, numbers: Numbers) -> Tensor: ...


@dataclass(frozen=True)
class Replayed(Contestant):
    """Who takes part in ``suite``; the group is one of its pipelines."""

    suite: str = "article"

    @property
    def job(self) -> Job:
        """What is to be done."""
        return JOBS[self.suite][self.group]

    def batches(self) -> Iterator[Any]:
        """Begin to make batches, for ever."""
        way = self._way()
        if way is None:
            return self._ours()
        try:
            return way.batches(self.data, self.workers)
        except (ImportError, RuntimeError, AttributeError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error

    def expects(self, images: Tensor) -> bool:
        """Say whether images are of the shape and type that was asked for."""
        return tuple(images.shape) == (BATCH, 3, *self.job.crop.size) and images.dtype == torch.float32

    def made(self, numbers: Numbers) -> Tensor:
        """Make the batch of those numbers: ours is the first that our loader delivers, in the same memory."""
        way = self._way()
        if way is not None:
            return way.made(numbers)
        loader = self._loader()
        batches = self._augmented(loader)
        image, request = next(batches)
        if request is None or request.ids.tolist() != numbers.ids:
            raise ValueError(f"{self.name}: the first batch is not that of samples {numbers.ids[:3]} ...")
        image = image.contiguous()
        loader.close()
        return image

    def _way(self) -> _Way | None:
        made = _PEERS[self.suite, self.group].get(self.name)
        return None if made is None else made[2](self.data)

    def _ours(self) -> Iterator[tuple[Tensor]]:
        loader = self._loader()
        while True:
            for image, _ in self._augmented(loader):
                yield (image,)

    def _loader(self) -> Loader:
        kind = next(kind for kind in _KINDS if kind in self.name)
        workers, threads = (0, self.workers) if self.name.endswith("threads") else (self.workers, 0)
        job = self.job
        pixels = pixels_of(job.augmented(), job.is_training, workers)
        config = LoaderConfig(BATCH, seed=_SEED, workers=workers, threads=threads, pixels=pixels)
        return _loader(job, self.data.shards(kind), config)

    def _augmented(self, loader: Loader) -> Iterator[tuple[Tensor, Request | None]]:
        """Do what is left of the augmentation where the batches arrive, as the data module does."""
        augment = self.job.augmented()
        is_augmented = loader.fetcher.dtype != torch.uint8
        for batch in loader:
            request = loader.claim()
            yield augmented(augment, batch, _SEED, request, is_augmented=is_augmented).image, request


def numbers(suite: str, group: str, data: LoaderData) -> Numbers:
    """Tell what our loader does to the images of its first batch."""
    job = JOBS[suite][group]
    loader = _loader(job, data.shards("ordinary"), LoaderConfig(BATCH, seed=_SEED, workers=0, threads=0))
    next(iter(loader))
    request = loader.claim()
    assert request is not None
    files = loader.fetcher.shards.images(request.ids)
    sizes = decode.image_sizes(files)
    boxes, flips = loader.fetcher.boxes_and_flips(request, sizes.numpy())
    augment = job.augmented(dilate=False)
    drawn = augment.params(
        request.ids, job.crop.size, seed=_SEED, epoch=request.epoch, occurrence=request.occurrence
    )
    jpegs = [bytes(file.numpy()) for file in files]
    flip = torch.from_numpy(flips[0])
    return Numbers(request.ids.tolist(), jpegs, sizes, torch.from_numpy(boxes[0]), flip, drawn.get("mask"))


def made(who: Replayed, wished: Numbers) -> Tensor:
    """Have ``who`` make the batch of those numbers; runs in its process."""
    try:
        return who.made(wished)
    except (ImportError, RuntimeError, AttributeError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error


def names(suite: str, group: str) -> list[str]:
    """Name everybody in the order of the table: whom the others are measured against comes first."""
    return [*_PEERS[suite, group], *(f"tarpeg, {kind}, {engine}" for kind in _KINDS for engine in _ENGINES)]


def absent(who: Replayed) -> str | None:
    """Say what to install where ``who`` is not; None where everything is there."""
    packages, module, make = _PEERS[who.suite, who.group].get(who.name, ("", "torch", None))
    try:
        importlib.import_module(module)
        if make is not None:
            make(who.data)
    except (ImportError, OSError, RuntimeError, BuildError) as error:
        reason = str(error).strip().partition("\n")[0]
        what = f"pip install {packages} ({reason})" if packages else reason
        return f"left out: {who.name}: {what}"
    return None


def _loader(job: Job, shards: list[Path], config: LoaderConfig) -> Loader:
    split = Split(shards, job.crop, flip=job.flip, interpolation=job.interpolation)
    return Loader(split.open(), split, config, shuffle=job.is_training, keys=False, rank=0, world=1)


def _skipping(data: LoaderData) -> _Way:
    return replay_peers.Article(replay_peers.BySkipping(crop_skip.library(data.folder)))


def _dali(graph: replay_peers.Graph) -> tuple[str, str, Callable[[LoaderData], _Way]]:
    return "nvidia-dali-cuda130", "nvidia.dali", lambda data: replay_peers.Dali(graph)


def _torch(
    way: _Way, packages: str = "webdataset torchvision"
) -> tuple[str, str, Callable[[LoaderData], _Way]]:
    return packages, "webdataset", lambda data: way


# What to install, the module that must be there, and what makes the batches; the first is the reference.
_PEERS: dict[tuple[str, str], dict[str, tuple[str, str, Callable[[LoaderData], _Way]]]] = {
    ("article", "training"): {
        "webdataset + torchvision": _torch(replay_peers.Article(replay_peers.by_torchvision)),
        "webdataset + Pillow": _torch(replay_peers.Article(replay_peers.by_pillow)),
        SKIPPING: ("", "webdataset", _skipping),
        "DALI": _dali(replay_peers.article),
    },
    ("dali", "training"): {
        "webdataset + torchvision v2": _torch(replay_peers.Imagenet("training")),
        "DALI": _dali(replay_peers.training),
        "DALI, antialias=False": _dali(partial(replay_peers.training, antialias=False)),
    },
    ("dali", "validation"): {
        "webdataset + torchvision v2": _torch(replay_peers.Imagenet("validation")),
        "DALI": _dali(replay_peers.validation),
        "DALI, antialias=False": _dali(partial(replay_peers.validation, antialias=False)),
    },
    ("dali", "prediction"): {
        "webdataset + torchvision v2": _torch(replay_peers.Imagenet("prediction")),
        "DALI": _dali(replay_peers.prediction),
    },
}
