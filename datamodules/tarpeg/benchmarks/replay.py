"""The article and dali suites: published pipelines, from shards to normalised batches, by each library.

Every contestant first makes the same given batch, that of our own loader, and its pixels are compared. As in
the loader suite, each contestant runs in a process of its own.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from ..augment.distortions import Mask
from ..augment.module import Augment
from ..errors import BuildError
from ..loader.batch import augmented, pixels_of
from ..loader.config import LoaderConfig
from ..loader.loader import Loader
from ..loader.split import Split
from ..ops import decode
from ..processes import ProcessExecutor
from ..sampling.crops import CenterCrop, Crop, RandomCrop, RandomResizedCrop, Whole
from ..sampling.sampler import Request
from . import replay_peers
from .decode_peers import BATCH
from .loader import ENGINES, Compare, LoaderContestant, LoaderRun
from .loader_data import LoaderData, size_label
from .loader_peers import Batches, as_value_error
from .replay_peers import CELLS, CROP, MASKED, RATIO, SCALE, SHORTER, GivenBatch
from .report import INSTALL_ERRORS, Report, Row, left_out

SKIPPING = "webdataset + crop and skip"
"""Contestant that decodes as the article did."""
_KINDS = ("ordinary", "tiled")
_SEED = 0


@dataclass(frozen=True)
class Recipe:
    """A pipeline: crop and flip each photograph, then apply ``augment(dilate)`` to the batch.

    ``makes``: short description. ``dilate``: whether the neighbours of a drawn cell are masked, too.
    ``is_training``: shuffled, and distorted at random.
    """

    makes: str
    crop: Crop
    augment: Callable[[bool], Augment]
    flip: float = 0.0
    interpolation: Literal["bilinear", "nearest-exact"] = "bilinear"
    is_training: bool = False

    def augmentation(self, dilate: bool = True) -> Augment:
        """Return the Augment, in training or evaluation mode."""
        augment = self.augment(dilate)
        augment.train(self.is_training)
        return augment

    def difference(self, images: Tensor, others: Tensor) -> tuple[float, float]:
        """Mean and largest difference of normalised images [B, 3, H, W], in levels of 0 to 255."""
        levels = 255 * torch.tensor(self.augment(True).std)[:, None, None]
        difference = (images - others).abs() * levels
        return float(difference.mean()), float(difference.max())

    def loader(self, data: LoaderData, kind: str, config: LoaderConfig) -> Loader:
        """Our loader for shards of this kind."""
        split = Split(data.shards(kind), self.crop, flip=self.flip, interpolation=self.interpolation)
        return Loader(split.open(), split, config, shuffle=self.is_training, keys=False, rank=0, world=1)


def _article(dilate: bool) -> Augment:
    mask = Mask(MASKED, CELLS, dilate)
    return Augment((0, 0, 0), (1, 1, 1), mask=mask, space="ycbcr", fill=(0, 128, 128))


def _normalise(dilate: bool) -> Augment:
    return Augment()


RECIPES: dict[str, dict[str, Recipe]] = {
    "article": {
        "training": Recipe("float32 YCbCr, masked", RandomCrop(CROP), _article, is_training=True),
    },
    "dali": {
        "training": Recipe(
            "area 0.6 to 1, aspect ratio 0.8 to 1.25, half of them flipped",
            RandomResizedCrop(224, SCALE, RATIO),
            _normalise,
            flip=0.5,
            is_training=True,
        ),
        "validation": Recipe(
            "shorter side to 256, central 224", CenterCrop(224, shorter=SHORTER), _normalise
        ),
        "prediction": Recipe("whole image, nearest neighbours", Whole(224), _normalise, 0.0, "nearest-exact"),
    },
}
"""By suite and group."""

_WORK = {
    "article": "the article's step, shards -> random 256x256 crop, YCbCr, scaled, masked -> batches of 64",
    "dali": "DALI's three pipelines, shards -> 224x224, normalised -> batches of 64",
}


class _Pipeline(Protocol):
    def batches(self, data: LoaderData, workers: int) -> Batches: ...
    def replay(self, given: GivenBatch) -> Tensor: ...


class _Peer(NamedTuple):
    """A peer: packages that pip installs for it, its module, and the function that makes its pipeline."""

    packages: str
    module: str
    make: Callable[[LoaderData], _Pipeline]


@dataclass(frozen=True)
class ReplayContestant(LoaderContestant):
    """A contestant of ``suite``; the group is one of its recipes."""

    suite: str = "article"

    @property
    def recipe(self) -> Recipe:
        """Recipe of the group."""
        return RECIPES[self.suite][self.group]

    def batches(self) -> Batches:
        """Endless batches; ValueError if they cannot be made here."""
        with as_value_error():
            pipeline = self._pipeline()
            return self._ours() if pipeline is None else pipeline.batches(self.data, self.workers)

    def expects(self, images: Tensor) -> bool:
        """Whether images have the shape and dtype of the recipe."""
        return tuple(images.shape) == (BATCH, 3, *self.recipe.crop.size) and images.dtype == torch.float32

    def replay(self, given: GivenBatch) -> Tensor:
        """Make the given batch; ours is the first batch of our loader, as contiguous planes."""
        pipeline = self._pipeline()
        if pipeline is not None:
            return pipeline.replay(given)
        loader = self._loader()
        image, request = next(self._augmented(loader))
        if request is None or request.ids.tolist() != given.ids:
            raise ValueError(f"{self.name}: the first batch is not that of samples {given.ids[:3]} ...")
        image = image.contiguous()
        loader.close()
        return image

    def absent(self) -> str | None:
        """Return a note with the packages to install if this contestant cannot run here, otherwise None."""
        peer = _PEERS[self.suite, self.group].get(self.name)
        if peer is not None:
            try:
                importlib.import_module(peer.module)
                peer.make(self.data)
            except (*INSTALL_ERRORS, BuildError) as error:
                return left_out(error, peer.packages, self.name)
        return None

    def _pipeline(self) -> _Pipeline | None:
        peer = _PEERS[self.suite, self.group].get(self.name)
        return None if peer is None else peer.make(self.data)

    def _ours(self) -> Iterator[tuple[Tensor]]:
        loader = self._loader()
        while True:
            for image, _ in self._augmented(loader):
                yield (image,)

    def _loader(self) -> Loader:
        (workers, threads), recipe = self.engine, self.recipe
        pixels = pixels_of(recipe.augmentation(), recipe.is_training, workers)
        config = LoaderConfig(BATCH, seed=_SEED, workers=workers, threads=threads, pixels=pixels)
        return recipe.loader(self.data, self.kind, config)

    def _augmented(self, loader: Loader) -> Iterator[tuple[Tensor, Request | None]]:
        """Batches with the rest of the augmentation applied in this process, as the data module does."""
        augment = self.recipe.augmentation()
        is_augmented = loader.fetcher.dtype != torch.uint8
        for batch in loader:
            request = loader.claim()
            yield augmented(augment, batch, _SEED, request, is_augmented=is_augmented).image, request


def given_batch(suite: str, group: str, data: LoaderData) -> GivenBatch:
    """First batch of our loader: its JPEGs and the parameters of each image."""
    recipe = RECIPES[suite][group]
    loader = recipe.loader(data, "ordinary", LoaderConfig(BATCH, seed=_SEED, workers=0, threads=0))
    next(iter(loader))
    request = loader.claim()
    assert request is not None
    files = loader.fetcher.shards.images(request.ids)
    sizes = decode.image_sizes(files)
    boxes, flips = loader.fetcher.boxes_and_flips(request, sizes.numpy())
    augment = recipe.augmentation(dilate=False)
    params = augment.params(
        request.ids, recipe.crop.size, seed=_SEED, epoch=request.epoch, occurrence=request.occurrence
    )
    jpegs = [bytes(file.numpy()) for file in files]
    flip = torch.from_numpy(flips[0])
    return GivenBatch(
        request.ids.tolist(), jpegs, sizes, torch.from_numpy(boxes[0]), flip, params.get("mask")
    )


def replay_in_process(who: ReplayContestant, given: GivenBatch) -> Tensor:
    """Make the given batch in ``who``'s process; ValueError if that fails."""
    with as_value_error():
        return who.replay(given)


def contestant_names(suite: str, group: str) -> list[str]:
    """Names of all contestants in the order of the table; the first is the reference."""
    return [*_PEERS[suite, group], *(f"tarpeg, {kind}, {engine}" for kind in _KINDS for engine in ENGINES)]


def measure_replays(suite: str, run: LoaderRun) -> Report:
    """Measure every pipeline of the suite with every library that is installed."""
    if suite == "article" and not all(map(_is_large, run.photos.size)):
        raise ValueError(
            f"size={size_label(run.photos)} must be article, big, or sides of at least {CROP}: "
            f"suite=article crops {CROP}x{CROP}"
        )
    run.data.make(_KINDS, run.advance)
    load = os.getloadavg()[0]
    rows: list[Row] = []
    missing: list[str] = []
    for group in RECIPES[suite]:
        contestants = []
        for name in run.settings.selected(contestant_names(suite, group)):
            who = ReplayContestant(name, group, run.data, run.settings.workers, suite)
            note = who.absent()
            if note is None:
                contestants.append(who)
            else:
                missing.append(note)
        measured, failed = run.measure(contestants, _comparison(suite, group, run.data))
        rows += measured
        missing += failed
    gains = [row.ratio for row in rows if row.name == SKIPPING]
    figures = tuple(f"speed of the article's own technique, crop and skip: {ratio:.2f}x" for ratio in gains)
    groups = {group: f"{group}: {recipe.makes}" for group, recipe in RECIPES[suite].items()}
    return run.report(suite, rows, missing, load, work=_WORK[suite], groups=groups, figures=figures)


def _is_large(size: str | tuple[int, int]) -> bool:
    return size in ("article", "big") if isinstance(size, str) else min(size) >= CROP


def _comparison(suite: str, group: str, data: LoaderData) -> Compare:
    """Return a function that compares a contestant's given batch with that of the first contestant."""
    recipe, given = RECIPES[suite][group], given_batch(suite, group, data)
    reference: Tensor | None = None

    def compare(who: ReplayContestant, child: ProcessExecutor) -> tuple[float, float]:
        nonlocal reference
        images: Tensor = child.submit(replay_in_process, who, given).result()
        reference = images if reference is None else reference
        return recipe.difference(images, reference)

    return compare


def _torch(
    pipeline: replay_peers.Article | replay_peers.Imagenet, packages: str = "webdataset torchvision"
) -> _Peer:
    return _Peer(packages, "webdataset", lambda data: pipeline)


def _skipping(data: LoaderData) -> _Pipeline:
    return replay_peers.Article(replay_peers.BySkipping(replay_peers.compile_crop_skip(data.folder)))


def _dali(graph: replay_peers.Graph) -> _Peer:
    return _Peer("nvidia-dali-cuda130", "nvidia.dali", lambda data: replay_peers.Dali(graph))


# By suite and group; the first of each is the reference.
_PEERS: dict[tuple[str, str], dict[str, _Peer]] = {
    ("article", "training"): {
        "webdataset + torchvision": _torch(replay_peers.Article(replay_peers.by_torchvision)),
        "webdataset + Pillow": _torch(replay_peers.Article(replay_peers.by_pillow)),
        SKIPPING: _Peer("", "webdataset", _skipping),
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
