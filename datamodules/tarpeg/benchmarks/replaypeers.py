"""The others of the article and dali suites, on torch: webdataset, a decoder and torchvision's transforms."""

from __future__ import annotations

import importlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate

from . import cropskip
from .benchaugment import normalised
from .contestants import SIZE, decode_jpeg, functional
from .loaderdata import LoaderData
from .loaderpeers import Batches, from_webdataset
from .replayjobs import CELLS, CROP, MASKED, RATIO, SCALE, SHORTER, Numbers

# (Y, Cb, Cr) of (R, G, B), both in 0..1 but for a half that Cb and Cr are moved by: BT.601, full range.
YCBCR = (
    (0.299, 0.587, 0.114),
    (-0.299 / 1.772, -0.587 / 1.772, 0.886 / 1.772),
    (0.701 / 1.402, -0.587 / 1.402, -0.114 / 1.402),
)
BLACK = (0.0, 128 / 255, 128 / 255)

Cropped = Callable[[bytes, float, float], Tensor]
"""Decodes a crop of CROP x CROP; where among all places: down and across, each from 0 to below 1."""


def by_torchvision(jpeg: bytes, down: float, across: float) -> Tensor:
    """Decode everything, then crop."""
    return _cut(_decoded(jpeg), down, across)


def by_pillow(jpeg: bytes, down: float, across: float) -> Tensor:
    """Decode everything, then crop."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return _cut(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1), down, across)


@dataclass(frozen=True)
class BySkipping:
    """libjpeg-turbo's crop and skip, the article's way."""

    library: Path

    def __call__(self, jpeg: bytes, down: float, across: float) -> Tensor:
        """Decode the crop."""
        return cropskip.decode(self.library, jpeg, (CROP, CROP), down, across)


class _EachImage(ABC):
    """A pipeline that makes one image after the other, in webdataset's workers."""

    def batches(self, data: LoaderData, workers: int) -> Batches:
        """Give batches for ever."""
        # torch's collation writes straight into the memory that the worker shares; webdataset's costs a copy.
        return from_webdataset(data, workers, self, collation_fn=default_collate)

    @abstractmethod
    def __call__(self, jpeg: bytes) -> Tensor:
        """Make what goes into the batch."""


@dataclass(frozen=True)
class Article(_EachImage):
    """The article's step on torch, image by image in the worker: by batches it takes twice as long."""

    cropped: Cropped

    def __call__(self, jpeg: bytes) -> Tensor:
        """Take a random crop, converted, scaled and masked."""
        down, across = torch.rand(2).tolist()
        return _converted(self.cropped(jpeg, down, across), torch.rand(CELLS, CELLS) < MASKED)

    def made(self, numbers: Numbers) -> Tensor:
        """Make the batch of those numbers."""
        assert numbers.masks is not None
        images = []
        for jpeg, size, box, mask in zip(*numbers[1:4], numbers.masks, strict=True):
            images.append(_converted(self.cropped(jpeg, *shares(size, box)), mask))
        return torch.stack(images)


@dataclass(frozen=True)
class Imagenet(_EachImage):
    """One of the dali suite's pipelines by torchvision v2: training, validation or prediction."""

    group: str

    def __call__(self, jpeg: bytes) -> Tensor:
        """Decode, crop, resize and normalise."""
        v2: Any = importlib.import_module("torchvision.transforms.v2")
        image = _decoded(jpeg)
        if self.group == "training":
            image = v2.RandomResizedCrop(SIZE, SCALE, RATIO, antialias=True)(image)
            return normalised(v2.RandomHorizontalFlip()(image))
        if self.group == "validation":
            image = functional.resize(image, [SHORTER], antialias=True)
            return normalised(functional.center_crop(image, [SIZE, SIZE]))
        how = functional.InterpolationMode.NEAREST_EXACT
        return normalised(functional.resize(image, [SIZE, SIZE], how))

    def made(self, numbers: Numbers) -> Tensor:
        """Make the batch of those numbers."""
        if self.group != "training":
            return torch.stack([self(jpeg) for jpeg in numbers.jpegs])
        images = []
        for jpeg, box, flip in zip(numbers.jpegs, numbers.boxes.tolist(), numbers.flips, strict=True):
            image = functional.resized_crop(_decoded(jpeg), *box, [SIZE, SIZE], antialias=True)
            images.append(normalised(functional.horizontal_flip(image) if flip else image))
        return torch.stack(images)


def shares(size: Tensor, box: Tensor) -> tuple[float, float]:
    """Say where among all places a box of CROP x CROP is, down and across."""
    down, across = ((box[:2] + 0.5) / (size - CROP + 1)).tolist()
    return down, across


def _decoded(jpeg: bytes) -> Tensor:
    return decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8))


def _cut(image: Tensor, down: float, across: float) -> Tensor:
    height, width = image.shape[1:]
    top, left = int(down * (height - CROP + 1)), int(across * (width - CROP + 1))
    return image[:, top : top + CROP, left : left + CROP]


def _converted(image: Tensor, drawn: Tensor) -> Tensor:
    """Convert [3, CROP, CROP] to YCbCr in 0..1; cells that were drawn and their neighbours become black."""
    near = torch.nn.functional.pad(drawn, (1, 1, 1, 1))
    masked = near[1:-1, 1:-1] | near[:-2, 1:-1] | near[2:, 1:-1] | near[1:-1, :-2] | near[1:-1, 2:]
    side = CROP // CELLS
    masked = masked.repeat_interleave(side, 0).repeat_interleave(side, 1)
    black = torch.tensor(BLACK)[:, None]
    values = torch.addmm(black, torch.tensor(YCBCR) / 255, image.reshape(3, -1).float())
    return torch.where(masked, black[..., None], values.view(3, CROP, CROP))
