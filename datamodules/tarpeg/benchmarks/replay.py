"""The pipelines that the article and dali suites replay, and the numbers of a batch to compare them by."""
# MERGED: The article and dali suites: known pipelines, from shards to normalised batches, by everybody's way.

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..augment.distortions import Mask
from ..augment.module import Augment
from ..datasets.synthetic import Photos
from ..processes import Processes
from ..sampling.crops import CenterCrop, Crop, RandomCrop, RandomResizedCrop, Whole
from . import replay_host
from .loader import Advance, Compare, LoaderData, LoaderSettings, label_of, take_turns
from .loader_host import Contestant
from .replay_host import Replayed
from .report import LoaderReport, LoaderRow

SCALE, RATIO = (0.6, 1.0), (0.8, 1.25)
"""Area and shape of DALI's crops in training."""
SHORTER = 256
"""What the shorter side is resized to in validation, in pixels."""
CROP, CELLS, MASKED = 256, 16, 0.25
"""The article's crop in pixels, the cells of its mask each way, and the share of them that is drawn."""


@dataclass(frozen=True)
class Job:
    """What becomes of a photograph: crop and flip, then what ``augment(dilate)`` does.

    ``makes``: said in a few words. ``dilate``: whether the neighbours of a masked cell are masked too.
    ``is_training``: shuffled, and distorted at random.
    """

    makes: str
    crop: Crop
    augment: Callable[[bool], Augment]
    flip: float = 0.0
    interpolation: Literal["bilinear", "nearest-exact"] = "bilinear"
    is_training: bool = False

    def augmented(self, dilate: bool = True) -> Augment:
        """Make the Augment, in its mode."""
        augment = self.augment(dilate)
        augment.train(self.is_training)
        return augment

    def apart(self, images: Tensor, others: Tensor) -> tuple[float, float]:
        """Compare images [B, 3, H, W]: the mean and the largest difference, in levels of 0..255."""
        levels = 255 * torch.tensor(self.augment(True).std)[:, None, None]
        difference = (images - others).abs() * levels
        return float(difference.mean()), float(difference.max())


class Numbers(NamedTuple):
    """A batch that everybody is to make alike: ordinary JPEGs and what is done to each."""

    ids: list[int]
    jpegs: list[bytes]
    sizes: Tensor  # int32 [B, 2]: height, width
    boxes: Tensor  # int32 [B, 4]: top, left, height, width
    flips: Tensor  # bool [B]
    masks: Tensor | None  # bool [B, CELLS, CELLS]: the cells that were drawn, without their neighbours


def _article(dilate: bool) -> Augment:
    mask = Mask(MASKED, CELLS, dilate)
    return Augment((0, 0, 0), (1, 1, 1), mask=mask, space="ycbcr", fill=(0, 128, 128))


def _normalised(dilate: bool) -> Augment:
    return Augment()


JOBS: dict[str, dict[str, Job]] = {
    "article": {
        "training": Job("float32 YCbCr, masked", RandomCrop(CROP), _article, is_training=True),
    },
    "dali": {
        "training": Job(
            "area 0.6 to 1, shape 0.8 to 1.25, mirrored by half",
            RandomResizedCrop(224, SCALE, RATIO),
            _normalised,
            flip=0.5,
            is_training=True,
        ),
        "validation": Job(
            "the shorter side to 256, the central 224", CenterCrop(224, shorter=SHORTER), _normalised
        ),
        "prediction": Job("all of it, nearest neighbours", Whole(224), _normalised, 0.0, "nearest-exact"),
    },
}
"""By suite and group."""


_WORK = {
    "article": "the article's step, shards -> random 256x256 crop, YCbCr, scaled, masked -> batches of 64",
    "dali": "DALI's three pipelines, shards -> 224x224, normalised -> batches of 64",
}


def measure(
    suite: str,
    photos: Photos,
    images: int,
    rounds: int,
    tile: int,
    clock: str,
    settings: LoaderSettings,
    advance: Advance,
) -> LoaderReport:
    """Measure everybody who is installed; see ``bench.measure``."""
    if suite == "article" and not all(map(_is_large, photos.size)):
        raise ValueError(
            f"size: suite=article crops {CROP}x{CROP}: expected article, big, or sides of at least {CROP}, "
            f"got {label_of(photos)}"
        )
    data = LoaderData(Path(settings.data).absolute(), photos, images, tile)
    data.make(("ordinary", "tiled"), advance)
    busy = [os.getloadavg()[0]]
    rows: list[LoaderRow] = []
    missing: list[str] = []
    for group in JOBS[suite]:
        field, absent = _field(suite, group, data, settings)
        made, failed = take_turns(field, rounds, clock, settings, advance, _compared(suite, group, data))
        rows += made
        missing += [*absent, *failed]
    busy.append(os.getloadavg()[0])
    return LoaderReport(
        suite,
        _WORK[suite],
        {group: f"{group}: {job.makes}" for group, job in JOBS[suite].items()},
        label_of(photos),
        images,
        rounds,
        clock,
        settings.workers,
        tuple(rows),
        tuple(_gains(rows)),
        tuple(dict.fromkeys(missing)),
        (busy[0], busy[1]),
    )


def _is_large(size: str | tuple[int, int]) -> bool:
    return size in ("article", "big") if isinstance(size, str) else min(size) >= CROP


def _gains(rows: list[LoaderRow]) -> Iterator[tuple[str, str]]:
    """Tell what the article's technique gains by itself, which in its whole step made 1.5 times."""
    for row in rows:
        if row.name == replay_host.SKIPPING:
            yield "the article's own technique, crop and skip, gains", f"{row.ratio:.2f}x"


def _field(
    suite: str, group: str, data: LoaderData, settings: LoaderSettings
) -> tuple[list[Replayed], list[str]]:
    found, missing = [], []
    for number, name in enumerate(replay_host.names(suite, group)):
        if number and not settings.names(name):
            continue
        who = Replayed(name, group, data, settings.workers, suite)
        absent = replay_host.absent(who)
        if absent is None:
            found.append(who)
        else:
            missing.append(absent)
    return found, missing


def _compared(suite: str, group: str, data: LoaderData) -> Compare:
    """Have everybody make the same batch, and compare it with what the first of them makes."""
    job = JOBS[suite][group]
    numbers = replay_host.numbers(suite, group, data)
    reference = None

    def compare(who: Contestant, child: Processes) -> tuple[float, float]:
        nonlocal reference
        images = child.submit(replay_host.made, who, numbers).result()
        reference = images if reference is None else reference
        return job.apart(images, reference)

    return compare
