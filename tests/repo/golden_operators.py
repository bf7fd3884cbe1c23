"""Cases of test_golden_batches.py: every operator by itself."""

from __future__ import annotations

from typing import Any

import tarpeg
import torch
from golden_cases import GOLDEN, Sources, case, names_in, noise
from helpers.pictures import tensor
from torch import Tensor

NATIVE = [name for name in names_in("images") if name.endswith((".jpg", ".ppm"))]


def jpeg(name: str, folder: str = "images") -> Tensor:
    """Bytes of a picture, uint8 [n]."""
    return tensor((GOLDEN / folder / name).read_bytes())


BROKEN = [jpeg(name, "broken") for name in names_in("broken")]


def crops_of(data: Tensor) -> list[Tensor]:
    """Whole picture and some boxes of it."""
    height, width = tarpeg.image_sizes([data])[0].tolist()
    boxes = [(0, 0, height, width), (height // 3, width // 4, height // 2, width // 3)]
    boxes += [(height - 1, width - 1, 1, 1), (0, width // 2, height, 2), (17, 9, 16, 16)]
    return [tarpeg.decode_crop(data, *box) for box in boxes]


def decode(sources: Sources, name: str) -> object:
    return crops_of(jpeg(name))


def tile(sources: Sources, name: str) -> object:
    tiled = [tarpeg.tile_jpeg(jpeg(name), width) for width in (8, 32, 100)]
    return [tiled, [crops_of(data) for data in tiled]]


for _name in NATIVE:
    case(f"decode_crop/{_name}", name=_name)(decode)
    if _name.endswith(".jpg"):
        case(f"tile_jpeg/{_name}", name=_name)(tile)


@case("image_sizes")
def sizes(sources: Sources) -> object:
    return tarpeg.image_sizes([*(jpeg(name) for name in names_in("images")), *BROKEN])


@case("decode_batch/bilinear", interpolation="bilinear")
@case("decode_batch/exact", fidelity="exact")
@case("decode_batch/not_antialiased", antialias=False)
@case("decode_batch/nearest", interpolation="nearest")
@case("decode_batch/nearest_exact", interpolation="nearest-exact")
@case("decode_batch/float32", dtype=torch.float32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
@case("decode_batch/float16", dtype=torch.float16, fidelity="exact")
@case("decode_batch/bfloat16", dtype=torch.bfloat16, mean=(0.1, 0.2, 0.3), std=(1, 2, 3))
@case("decode_batch/threads", threads=3)
def decode_batch(sources: Sources, **options: Any) -> object:
    images = [jpeg(name) for name in NATIVE]
    height, width = tarpeg.image_sizes(images).unbind(1)
    zero, one = torch.zeros_like(height), torch.ones(len(BROKEN), dtype=torch.int32)
    flip = torch.arange(len(images) + len(BROKEN)) % 3 == 0
    found = []
    for size in ((9, 14), 24, (70, 41), 130):
        for rows in ((zero, zero, height, width), (height // 4, width // 5, height // 2, width // 2)):
            boxes = torch.cat([torch.stack(rows, 1), torch.stack([0 * one, 0 * one, one, one], 1)]).int()
            found.append(tarpeg.decode_batch([*images, *BROKEN], boxes, size, flip, **options))
            found.append(tarpeg.decode_batch(images, boxes[: len(images)], size, **options))
    return found


MATRICES = [
    [[1, 0, 3], [0, 1, -2]],
    [[0.9, 0.2, -1.5], [-0.3, 1.1, 4.25]],
    [[-1, 0, 19], [0, 1, 0]],
    [[0.05, 0, 2], [0, 0.07, 1]],
    [[2.5, 0.4, -8], [0.1, 1.75, -3]],
]


@case("warp_affine/uint8", dtype=torch.uint8)
@case("warp_affine/float32", dtype=torch.float32)
@case("warp_affine/float16", dtype=torch.float16)
@case("warp_affine/bfloat16", dtype=torch.bfloat16)
def warp(sources: Sources, dtype: torch.dtype) -> object:
    matrices, found = torch.tensor(MATRICES, dtype=torch.float64), []
    for channels, fill in ((1, 9.0), (3, (10.0, 20.0, 30.0)), (4, 0.0)):
        images = noise(5, channels, 33, 41, dtype=dtype)
        for order in (torch.contiguous_format, torch.channels_last):
            for interpolation, inverse, size in (("bilinear", False, (27, 50)), ("nearest", True, 20)):
                arranged = images.contiguous(memory_format=order)
                found.append(tarpeg.warp_affine(arranged, matrices, size, interpolation, fill, inverse))
                found.append(tarpeg.warp_affine(arranged, matrices.float(), size, "bilinear", fill))
    return found


@case("augment_batch/uint8", dtype=torch.uint8)
@case("augment_batch/float32", dtype=torch.float32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
@case("augment_batch/float16", dtype=torch.float16)
@case("augment_batch/bfloat16", dtype=torch.bfloat16, mean=(0.5, 0.4, 0.3))
def augment_batch(sources: Sources, **options: Any) -> object:
    factors = torch.tensor([0.0, 0.5, 1.0, 1.4, 2.5])
    colours = torch.tensor([[0.3, 0.6, 0.1, 0], [-0.2, -0.3, 0.5, 128], [0.5, -0.4, -0.1, 128]])
    boxes = torch.tensor([[[0, 0, 5, 6]], [[10, 3, 7, 9]], [[0, 0, 0, 0]], [[3, 3, 1, 1]], [[20, 20, 4, 4]]])
    parts: dict[str, Any] = {
        "flip": [True, False, True, False, True],
        "matrix": torch.tensor(MATRICES, dtype=torch.float64),
        "brightness": factors,
        "contrast": factors.flip(0),
        "saturation": 1.3,
        "hue": torch.linspace(-0.5, 0.5, 5),
        "colour_matrix": colours,
        "erase_boxes": boxes.int(),
        "mask": noise(5, 4, 3) > 200,
    }
    found = []
    for order in (torch.contiguous_format, torch.channels_last):
        images = noise(5, 3, 30, 37).contiguous(memory_format=order)
        for given in ({}, *({name: value} for name, value in parts.items()), parts):
            found.append(tarpeg.augment_batch(images, fill=(5, 60, 200), **given, **options))
        found.append(tarpeg.augment_batch(images, size=(24, 44), **parts, **options))
    return found
