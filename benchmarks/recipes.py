"""The recipes suite: the data sides of published trainings, by torchvision and by this library.

Each recipe is that of the experiment of its name in conf/experiment, as Python objects; a test compares them.
As in the loader suite, each contestant runs in a process of its own.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from PIL import Image
from tarpeg.augment.distortions import Erase
from tarpeg.augment.mixing import Mix
from tarpeg.augment.module import Augment
from tarpeg.augment.policies import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    Policy,
    Solarize,
    ThreeAugment,
    TimmRandAugment,
    TrivialAugmentWide,
)
from tarpeg.loader.augmenting import augment_on_arrival, pixels_of
from tarpeg.loader.batch import by_size
from tarpeg.loader.config import LoaderConfig
from tarpeg.loader.loader import Loader
from tarpeg.loader.split import Split
from tarpeg.sampling.crops import RandomResizedCrop
from tarpeg.shards.pillow import as_tensor
from torch import Tensor, nn
from torch.utils.data import default_collate

from .decode_peers import BATCH, MEAN, STD, decode_jpeg
from .loader import DataLoaderContestant, LoaderRun
from .loader_data import LoaderData
from .loader_peers import Batches, Peer, for_ever, from_webdataset
from .report import Report

_CLASSES = 1000
_SEED = 0


@dataclass(frozen=True)
class Recipe:
    """The data side of a training.

    ``makes``: short description. ``split``: options of the training ``Split``. ``augment``: returns the
    module for its batches. ``torchvision``: returns the steps from an image to views, given the module v2
    and the last steps, which normalise. ``mixing``: alphas of MixUp and CutMix; one of them mixes each batch.
    """

    makes: str
    split: Mapping[str, Any]
    augment: Callable[[], nn.Module]
    torchvision: Callable[[Any, list[Any]], Callable[[Any], Any]]
    mixing: tuple[float, float] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the first view."""
        crop = self.split["crop"]
        size: tuple[int, int] = (crop[0] if isinstance(crop, list) else crop).size
        return size


_LARGE, _SMALL = RandomResizedCrop(224, (0.4, 1.0)), RandomResizedCrop(96, (0.05, 0.4))
_MIXES = {"resnet50_v2": (0.2, 1.0), "rsb_a2": (0.1, 1.0), "deit3_s": (0.8, 1.0)}


def _mixing(name: str, **parts: Any) -> Callable[[], nn.Module]:
    return lambda: Augment(mix=Mix(_CLASSES, *_MIXES[name]), **parts)


def _dino() -> nn.Module:
    same: list[Policy] = [ColorJitter(0.4, 0.4, 0.2, 0.1, probability=0.8), Grayscale(probability=0.2)]
    first = Augment(policy=[*same, GaussianBlur(probability=1.0)])
    second = Augment(policy=[*same, GaussianBlur(probability=0.1), Solarize(probability=0.2)])
    return nn.ModuleList([first, second, *[Augment(policy=[*same, GaussianBlur(probability=0.5)])] * 8])


def _resnet50_v2_by_torchvision(v2: Any, last: list[Any]) -> Callable[[Any], Any]:
    policy = v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR)
    steps = [v2.RandomResizedCrop(176, antialias=True), v2.RandomHorizontalFlip(), policy]
    result: Callable[[Any], Any] = v2.Compose([*steps, *last, v2.RandomErasing(0.1)])
    return result


def _rsb_a2_by_torchvision(v2: Any, last: list[Any]) -> Callable[[Any], Any]:
    bilinear, bicubic = v2.InterpolationMode.BILINEAR, v2.InterpolationMode.BICUBIC
    crop = v2.RandomResizedCrop(224, interpolation=bicubic, antialias=True)
    policy = v2.RandAugment(2, 21, interpolation=bilinear)  # 7 of timm's 10 levels
    result: Callable[[Any], Any] = v2.Compose([crop, v2.RandomHorizontalFlip(), policy, *last])
    return result


def _deit3_s_by_torchvision(v2: Any, last: list[Any]) -> Callable[[Any], Any]:
    crop = v2.RandomResizedCrop(224, interpolation=v2.InterpolationMode.BICUBIC, antialias=True)
    parts = [v2.Grayscale(3), v2.RandomSolarize(128, 1.0), v2.GaussianBlur(13, (0.1, 2.0))]
    steps = [crop, v2.RandomHorizontalFlip(), v2.RandomChoice(parts), v2.ColorJitter(0.3, 0.3, 0.3)]
    result: Callable[[Any], Any] = v2.Compose([*steps, *last])
    return result


def _dino_by_torchvision(v2: Any, last: list[Any]) -> Callable[[Any], Any]:
    def view(crop: RandomResizedCrop, blur: float, *rest: Any) -> Any:
        bicubic = v2.InterpolationMode.BICUBIC
        return v2.Compose(
            [
                v2.RandomResizedCrop(crop.size, crop.scale, interpolation=bicubic, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
                v2.RandomGrayscale(0.2),
                v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], blur),
                *rest,
                *last,
            ]
        )

    views = [view(_LARGE, 1.0), view(_LARGE, 0.1, v2.RandomSolarize(128, 0.2)), *[view(_SMALL, 0.5)] * 8]
    return lambda image: [view(image) for view in views]


RECIPES = {
    "resnet50_v2": Recipe(
        "torchvision's ResNet-50 v2: RandomResizedCrop(176), TrivialAugmentWide, erasing, mixing",
        {"crop": RandomResizedCrop(176), "flip": 0.5, "repeats": 4},
        _mixing(
            "resnet50_v2", policy=TrivialAugmentWide(interpolation="bilinear"), erase=Erase(0.1, (0.02, 0.33))
        ),
        _resnet50_v2_by_torchvision,
        _MIXES["resnet50_v2"],
    ),
    "rsb_a2": Recipe(
        "ResNet strikes back A2: RandomResizedCrop(224), bicubic, RandAugment, mixing",
        {"crop": RandomResizedCrop(224), "flip": 0.5, "interpolation": "bicubic", "repeats": 3},
        _mixing("rsb_a2", policy=TimmRandAugment("rand-m7-mstd0.5-inc1")),
        _rsb_a2_by_torchvision,
        _MIXES["rsb_a2"],
    ),
    "deit3_s": Recipe(
        "DeiT III-S: RandomResizedCrop(224), bicubic, 3-Augment, colour jitter, mixing",
        {"crop": RandomResizedCrop(224), "flip": 0.5, "interpolation": "bicubic", "repeats": 3},
        _mixing("deit3_s", policy=[ThreeAugment(), ColorJitter(0.3, 0.3, 0.3)]),
        _deit3_s_by_torchvision,
        _MIXES["deit3_s"],
    ),
    "dino": Recipe(
        "DINO: 2 views of 224 and 8 of 96, bicubic, colour jitter, blur, solarise",
        {"crop": [_LARGE] * 2 + [_SMALL] * 8, "flip": 0.5, "interpolation": "bicubic", "target": None},
        _dino,
        _dino_by_torchvision,
    ),
}
"""By name of the experiment."""


@dataclass(frozen=True)
class RecipeContestant(DataLoaderContestant):
    """A contestant of a recipe, the group. Its batches begin with the images of the first view."""

    @property
    def recipe(self) -> Recipe:
        """Recipe of the group."""
        return RECIPES[self.group]

    @property
    def peer(self) -> Peer | None:
        """Library of this contestant; None for this library."""
        return PEERS.get(self.name)

    def expects(self, images: Tensor) -> bool:
        """Whether images have the shape and dtype of the first view."""
        return tuple(images.shape) == (BATCH, 3, *self.recipe.size) and images.dtype == torch.float32

    def _ours(self) -> Batches:
        (workers, threads), augment = self.engine, self.recipe.augment().train()
        # In trainings on several ranks the repeats of a sample go to different ranks: the images of a batch
        # are of different files, as the peers' are.
        options: Any = {**self.recipe.split, "repeats": 1}
        split = Split(self.data.shards(self.kind), **options)
        views = split.view_groups
        pixels = pixels_of(augment, True, workers, sum(map(len, views)))
        config = LoaderConfig(BATCH, seed=_SEED, workers=workers, threads=threads)
        loader = Loader(split, config=config)
        loader.pixels = pixels
        is_augmented = loader.fetcher.dtype != torch.uint8
        for batch in for_ever(loader):
            request = loader.claim()
            made = augment_on_arrival(augment, batch, _SEED, request, is_augmented=is_augmented, views=views)
            first = by_size(made.image)[0]
            yield (first if first.ndim == 4 else first[0], made)


def _webdataset(is_pillow: bool, data: LoaderData, group: str, workers: int) -> Batches:
    """Batches by webdataset and torchvision v2, on tensors or on Pillow's images."""
    v2, recipe = importlib.import_module("torchvision.transforms.v2"), RECIPES[group]
    last = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(MEAN), list(STD))]
    transform = recipe.torchvision(v2, last)
    mixes: list[Any] = []
    if recipe.mixing is not None:
        mixup, cutmix = recipe.mixing
        kinds = ((v2.MixUp, mixup), (v2.CutMix, cutmix))
        mixes.append(v2.RandomChoice([kind(alpha=alpha, num_classes=_CLASSES) for kind, alpha in kinds]))

    def sample(content: bytes) -> Any:
        return transform(_by_pillow(content) if is_pillow else decode_jpeg(as_tensor(content)))

    def collate(samples: list[Any]) -> Any:
        images, labels = default_collate(samples)
        for mix in mixes:
            images, labels = mix(images, labels)
        return (images[0] if isinstance(images, list) else images, images, labels)

    return from_webdataset(data, workers, sample, collation_fn=collate)


def _by_pillow(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content)) as image:
        return image.convert("RGB")


PEERS = {
    "webdataset + torchvision v2": Peer("webdataset", "webdataset", partial(_webdataset, False)),
    "webdataset + torchvision v2 on Pillow's images": Peer(
        "webdataset", "webdataset", partial(_webdataset, True)
    ),
}
_OURS = ("tarpeg, ordinary, workers", "tarpeg, tiled, workers")


def measure_recipes(run: LoaderRun) -> Report:
    """Measure the data side of every recipe."""

    def contestants(group: str) -> list[RecipeContestant]:
        names = [*PEERS, *_OURS]
        return [RecipeContestant(name, group, run.data, run.settings.workers) for name in names]

    groups = {name: f"{name}: {recipe.makes}" for name, recipe in RECIPES.items()}
    report = run.measure(("ordinary", "tiled"), groups, contestants)
    return replace(report, work=f"data sides of published recipes, shards -> float32 batches of {BATCH}")
