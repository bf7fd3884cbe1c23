"""The article and dali suites: published pipelines, from shards to normalised batches, by each library.

Every contestant first makes the same given batch, that of our own loader, and its pixels are compared. As in
the loader suite, each contestant runs in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from tarpeg.augment.distortions import GridMask
from tarpeg.augment.module import Augment
from tarpeg.loader.augmenting import augment_on_arrival, pixels_of
from tarpeg.loader.config import LoaderConfig
from tarpeg.loader.loader import Loader
from tarpeg.loader.split import Split
from tarpeg.ops import decode
from tarpeg.processes import ProcessExecutor
from tarpeg.sampling.crops import CenterCrop, Crop, RandomCrop, RandomResizedCrop, Whole
from tarpeg.sampling.sampler import Request
from torch import Tensor

from . import replay_peers
from .decode_peers import BATCH, Graph
from .loader import ENGINES, Compare, LoaderContestant, LoaderRun
from .loader_data import LoaderData
from .loader_peers import Batches, Peer, as_value_error, for_ever
from .replay_peers import CELLS, CROP, MASKED, RATIO, SCALE, SHORTER, GivenBatch
from .report import Report

SKIPPING = "webdataset + crop and skip"
"""Contestant that decodes as the article did."""
_KINDS = ("ordinary", "tiled")
_SEED = 0


@dataclass(frozen=True)
class Recipe:
    """A pipeline: crop and flip each photograph, then apply ``augment()`` to the batch.

    ``makes``: short description. ``is_training``: shuffled, and distorted at random.
    """

    makes: str
    crop: Crop
    augment: Callable[[], Augment] = Augment
    flip: float = 0.0
    interpolation: Literal["bilinear", "nearest-exact"] = "bilinear"
    is_training: bool = False

    def augmentation(self) -> Augment:
        """Return the Augment, in training or evaluation mode."""
        return self.augment().train(self.is_training)

    def difference(self, images: Tensor, others: Tensor) -> tuple[float, float]:
        """Mean and largest difference of normalised images [B, 3, H, W], in levels of 0 to 255."""
        levels = 255 * torch.tensor(self.augment().std)[:, None, None]
        difference = (images - others).abs() * levels
        return float(difference.mean()), float(difference.max())


def _article() -> Augment:
    mask = GridMask(MASKED, CELLS, dilate=True)
    return Augment((0, 0, 0), (1, 1, 1), mask=mask, space="ycbcr", fill=(0, 128, 128))


RECIPES: dict[str, dict[str, Recipe]] = {
    "article": {
        "training": Recipe("float32 YCbCr, masked", RandomCrop(CROP), _article, is_training=True),
    },
    "dali": {
        "training": Recipe(
            "area 0.6 to 1, aspect ratio 0.8 to 1.25, half of them flipped",
            RandomResizedCrop(224, SCALE, RATIO),
            flip=0.5,
            is_training=True,
        ),
        "validation": Recipe("shorter side to 256, central 224", CenterCrop(224, shorter=SHORTER)),
        "prediction": Recipe("whole image, nearest neighbours", Whole(224), interpolation="nearest-exact"),
    },
}
"""By suite and group."""

_WORK = {
    "article": "the article's step, shards -> random 256x256 crop, YCbCr, scaled, masked -> batches of 64",
    "dali": "DALI's three pipelines, shards -> 224x224, normalised -> batches of 64",
}


@dataclass(frozen=True)
class ReplayContestant(LoaderContestant):
    """A contestant of ``suite``; the group is one of its recipes."""

    suite: str = "article"

    @property
    def recipe(self) -> Recipe:
        """Recipe of the group."""
        return RECIPES[self.suite][self.group]

    @property
    def peer(self) -> Peer | None:
        """Library of this contestant; None for this library."""
        return _PEERS[self.suite, self.group].get(self.name)

    def batches(self) -> Batches:
        """Endless batches; ValueError if they cannot be made here."""
        with as_value_error():
            if self.peer is not None:
                pipeline: _Pipeline = self.peer.make(self.data.folder)
                return pipeline.batches(self.data, self.workers)
            return self._ours()

    def expects(self, images: Tensor) -> bool:
        """Whether images have the shape and dtype of the recipe."""
        return tuple(images.shape) == (BATCH, 3, *self.recipe.crop.size) and images.dtype == torch.float32

    def replay(self, given: GivenBatch) -> Tensor:
        """Make the given batch, ValueError if that fails; ours is the first of our loader, as planes."""
        with as_value_error():
            if self.peer is not None:
                pipeline: _Pipeline = self.peer.make(self.data.folder)
                return pipeline.replay(given)
            loader = self.replay_loader()
            image, request = next(self._augmented(loader))
            if request is None or request.ids.tolist() != given.ids:
                raise ValueError(f"{self.name}: the first batch is not that of samples {given.ids[:3]} ...")
            image = image.contiguous()
            loader.close()
            return image

    def _ours(self) -> Batches:
        for image, _ in self._augmented(self.replay_loader()):
            yield (image,)

    def replay_loader(self) -> Loader:
        """Loader of this library's contestant."""
        (workers, threads), recipe = self.engine, self.recipe
        pixels = pixels_of(recipe.augmentation(), recipe.is_training, workers)
        config = LoaderConfig(BATCH, seed=_SEED, workers=workers, threads=threads)
        shards, interpolation = self.data.shards(self.kind), recipe.interpolation
        split = Split(shards, recipe.crop, flip=recipe.flip, interpolation=interpolation)
        loader = Loader(split, training=recipe.is_training, config=config)
        loader.pixels = pixels
        return loader

    def _augmented(self, loader: Loader) -> Iterator[tuple[Tensor, Request | None]]:
        """Endless batches, the rest of the augmentation applied in this process as by the data module."""
        augment = self.recipe.augmentation()
        is_augmented = loader.fetcher.dtype != torch.uint8
        for batch in for_ever(loader):
            request = loader.claim()
            yield augment_on_arrival(augment, batch, _SEED, request, is_augmented=is_augmented).image, request


def given_batch(suite: str, group: str, data: LoaderData) -> GivenBatch:
    """First batch of our loader: its JPEGs and the parameters of each image."""
    ours = ReplayContestant("tarpeg, ordinary, threads", group, data, 0, suite)
    recipe, loader = ours.recipe, ours.replay_loader()
    next(iter(loader))
    request = loader.claim()
    assert request is not None
    files = loader.fetcher.shards.images(request.ids)
    sizes = decode.image_sizes(files)
    augment = recipe.augmentation()
    # Masking the neighbours of the drawn cells is a part of the pipelines.
    masks = {s: part for s, part in augment.distortions.items() if isinstance(part, GridMask)}
    augment.distortions = {s: replace(mask, dilate=False) for s, mask in masks.items()}
    params = augment.params(
        request.ids, recipe.crop.size, seed=_SEED, epoch=request.epoch, occurrence=request.occurrence
    )
    jpegs = [bytes(file.numpy()) for file in files]
    view = request.views[0]
    box, flip = torch.from_numpy(view.boxes), torch.from_numpy(view.flips)
    return GivenBatch(
        ids=request.ids.tolist(), jpegs=jpegs, sizes=sizes, boxes=box, flips=flip, masks=params.get("mask")
    )


def contestant_names(suite: str, group: str) -> list[str]:
    """Names of all contestants in the order of the table; the first is the reference."""
    return [*_PEERS[suite, group], *(f"tarpeg, {kind}, {engine}" for kind in _KINDS for engine in ENGINES)]


def measure_replays(run: LoaderRun) -> Report:
    """Measure every pipeline of the suite with every library that is installed."""
    suite, data = run.report.suite, run.data
    sizes = [size for size in run.photos.size if size not in ("article", "big")]
    if suite == "article" and any(isinstance(size, str) or min(size) < CROP for size in sizes):
        raise ValueError(
            f"size={run.report.size} must be article, big, or sides of at least {CROP}: "
            f"suite=article crops {CROP}x{CROP}"
        )

    def contestants(group: str) -> list[ReplayContestant]:
        names = contestant_names(suite, group)
        return [ReplayContestant(name, group, data, run.settings.workers, suite) for name in names]

    groups = {group: f"{group}: {recipe.makes}" for group, recipe in RECIPES[suite].items()}
    report = run.measure(_KINDS, groups, contestants, lambda group: _comparison(suite, group, data))
    gains = [row.ratio for row in report.rows if row.name == SKIPPING]
    figures = tuple(f"speed of the article's own technique, crop and skip: {ratio:.2f}x" for ratio in gains)
    return replace(report, work=_WORK[suite], figures=figures)


def _comparison(suite: str, group: str, data: LoaderData) -> Compare:
    """Return a function that compares a contestant's given batch with that of the first contestant."""
    recipe, given = RECIPES[suite][group], given_batch(suite, group, data)
    reference: Tensor | None = None

    def compare(who: ReplayContestant, child: ProcessExecutor) -> tuple[float, float]:
        nonlocal reference
        images: Tensor = child.submit(ReplayContestant.replay, who, given).result()
        reference = images if reference is None else reference
        return recipe.difference(images, reference)

    return compare


_Pipeline = replay_peers.Article | replay_peers.Imagenet | replay_peers.Dali


def _torch(pipeline: _Pipeline) -> Peer:
    return Peer("webdataset torchvision", "webdataset", lambda folder: pipeline)


def _skipping(folder: Path) -> _Pipeline:
    library = replay_peers.compile_crop_skip(folder)
    return replay_peers.Article(partial(replay_peers.decode_by_skipping, library, (CROP, CROP)))


def _dali(graph: Graph) -> Peer:
    return Peer("nvidia-dali-cuda130", "nvidia.dali", lambda folder: replay_peers.Dali(graph))


def _imagenet(group: str, graph: Graph, has_antialias: bool = True) -> dict[str, Peer]:
    peers = {"webdataset + torchvision v2": _torch(replay_peers.Imagenet(group)), "DALI": _dali(graph)}
    if has_antialias:
        peers["DALI, antialias=False"] = _dali(partial(graph, antialias=False))
    return peers


# By suite and group, made with the folder of the photographs; the first of each is the reference.
_PEERS: dict[tuple[str, str], dict[str, Peer]] = {
    ("article", "training"): {
        "webdataset + torchvision": _torch(replay_peers.Article(replay_peers.by_torchvision)),
        "webdataset + Pillow": _torch(replay_peers.Article(replay_peers.by_pillow)),
        SKIPPING: Peer("", "webdataset", _skipping, replay_peers.compile_crop_skip),
        "DALI": _dali(replay_peers.article),
    },
    ("dali", "training"): _imagenet("training", replay_peers.training),
    ("dali", "validation"): _imagenet("validation", replay_peers.validation),
    ("dali", "prediction"): _imagenet("prediction", replay_peers.prediction, has_antialias=False),
}
