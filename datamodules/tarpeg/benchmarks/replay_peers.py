"""The others of the article and dali suites, on torch: webdataset, a decoder and torchvision's transforms."""
# MERGED: DALI in the article and dali suites: the same graphs, with random numbers or with given ones.

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

from . import crop_skip
from .augment import normalised
from .contestants import MEAN, SIZE, STD, decode_jpeg, functional
from .loader import LoaderData
from .loader_peers import Batches, from_dali, from_webdataset
from .replay import CELLS, CROP, MASKED, RATIO, SCALE, SHORTER, Numbers

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
        return crop_skip.decode(self.library, jpeg, (CROP, CROP), down, across)


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


Given = Callable[[str], Any]
Graph = Callable[[Any, Any, Any, Given | None], Any]
"""Of fn, types, JPEGs, and what gives a number of each image by name, where DALI does not draw its own."""


@dataclass(frozen=True)
class Dali:
    """One of DALI's pipelines."""

    graph: Graph

    def batches(self, data: LoaderData, workers: int) -> Batches:
        """Give batches for ever, from shards that DALI reads."""
        return from_dali(data, workers, lambda fn, types, jpegs: self.graph(fn, types, jpegs, None))

    def made(self, numbers: Numbers) -> Tensor:
        """Make the batch of those numbers."""
        dali, fn = importlib.import_module("nvidia.dali"), importlib.import_module("nvidia.dali.fn")
        types = importlib.import_module("nvidia.dali.types")
        feeds = {"jpegs": [np.frombuffer(jpeg, np.uint8) for jpeg in numbers.jpegs]}

        def given(name: str) -> Any:
            feeds[name] = _values(name, numbers)
            first = feeds[name][0]
            return fn.external_source(name=name, dtype=types.to_dali_type(first.dtype), ndim=first.ndim)

        options = {"exec_pipelined": False, "exec_async": False, "prefetch_queue_depth": 1}
        pipeline = dali.Pipeline(batch_size=len(numbers.ids), num_threads=1, device_id=None, **options)
        with pipeline:
            jpegs = fn.external_source(name="jpegs", dtype=types.UINT8, ndim=1)
            pipeline.set_outputs(self.graph(fn, types, jpegs, given))
        pipeline.build()
        for name, values in feeds.items():
            pipeline.feed_input(name, values)
        return torch.from_numpy(pipeline.run()[0].as_array().copy())


def _values(name: str, numbers: Numbers) -> list[Any]:
    boxes = numbers.boxes.numpy()
    if name in ("down", "across"):
        places = [shares(*pair) for pair in zip(numbers.sizes, numbers.boxes, strict=True)]
        return [np.float32(place[name == "across"]) for place in places]
    if name == "mask":
        assert numbers.masks is not None
        return list(numbers.masks.numpy().astype(np.uint8))
    return list({"start": boxes[:, :2], "shape": boxes[:, 2:], "flip": numbers.flips.int().numpy()}[name])


def article(fn: Any, types: Any, jpegs: Any, given: Given | None) -> Any:
    """Build the article's step, of whose conversion and mask DALI has the parts alone."""
    if given is None:
        down, across = (fn.random.uniform(range=[0.0, 1.0]) for _ in range(2))
        drawn = fn.random.coin_flip(probability=MASKED, shape=[CELLS, CELLS], dtype=types.UINT8)
    else:
        down, across, drawn = given("down"), given("across"), given("mask")
    images = fn.decoders.image_crop(
        jpegs, crop=(CROP, CROP), crop_pos_x=across, crop_pos_y=down, output_type=types.RGB
    )
    masked = drawn
    for start in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        shifted = fn.slice(drawn, start, (CELLS, CELLS), axes=(0, 1), out_of_bounds_policy="pad")
        masked = masked | shifted
    kept = fn.reshape(fn.cast(masked == 0, dtype=types.UINT8), shape=[CELLS, CELLS, 1], layout="HWC")
    kept = fn.resize(kept, size=[CROP, CROP], interp_type=types.INTERP_NN)
    matrix = [number / 255 for row in YCBCR for number in row]
    values = fn.coord_transform(images, M=matrix, dtype=types.FLOAT) * kept
    # Black is also what the conversion adds: added last, it is there where a cell is masked as well.
    return fn.crop_mirror_normalize(values, mean=[-level for level in BLACK], std=[1, 1, 1], **_planes(types))


def training(fn: Any, types: Any, jpegs: Any, given: Given | None, antialias: bool = True) -> Any:
    """Take a box of random area and shape, resize it, mirror by half, normalise."""
    if given is None:
        images = fn.decoders.image_random_crop(
            jpegs, random_area=list(SCALE), random_aspect_ratio=list(RATIO), output_type=types.RGB
        )
        flip = fn.random.coin_flip()
    else:
        images = fn.decoders.image_slice(
            jpegs, given("start"), given("shape"), axes=(0, 1), output_type=types.RGB
        )
        flip = given("flip")
    return _normalised(fn, types, fn.resize(images, size=[SIZE, SIZE], antialias=antialias), flip)


def validation(fn: Any, types: Any, jpegs: Any, given: Given | None, antialias: bool = True) -> Any:
    """Resize the shorter side, crop the centre, normalise."""
    images = fn.decoders.image(jpegs, output_type=types.RGB)
    return _normalised(fn, types, fn.resize(images, resize_shorter=SHORTER, antialias=antialias), 0)


def prediction(fn: Any, types: Any, jpegs: Any, given: Given | None) -> Any:
    """Resize all of the image by nearest neighbours, normalise."""
    images = fn.decoders.image(jpegs, output_type=types.RGB)
    return _normalised(fn, types, fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_NN), 0)


def _normalised(fn: Any, types: Any, images: Any, flip: Any) -> Any:
    mean, std = ([255 * x for x in values] for values in (MEAN, STD))
    options = {"crop": (SIZE, SIZE), "mean": mean, "std": std, **_planes(types)}
    return fn.crop_mirror_normalize(images, mirror=flip, **options)


def _planes(types: Any) -> dict[str, Any]:
    return {"dtype": types.FLOAT, "output_layout": "CHW"}
