"""The pipelines that the article and dali suites replay, and the numbers of a batch to compare them by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..augment import Augment
from ..crops import CenterCrop, Crop, RandomCrop, RandomResizedCrop, Whole
from ..distortions import Mask

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
