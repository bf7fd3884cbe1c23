"""DALI in the article and dali suites: the same graphs, with random numbers or with given ones."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .contestants import MEAN, SIZE, STD
from .loaderdata import LoaderData
from .loaderpeers import Batches, from_dali
from .replayjobs import CELLS, CROP, MASKED, RATIO, SCALE, SHORTER, Numbers
from .replaypeers import BLACK, YCBCR, shares

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
