"""What the benchmark measures: torchvision, Pillow and ourselves, each taking a crop as it does best."""

from __future__ import annotations

import importlib
import inspect
import io
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..ops import decode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchvision 0.29 deprecates its decoders; they are what people have
    decode_jpeg: Callable[[Tensor], Tensor] = importlib.import_module("torchvision.io").decode_jpeg
    functional: Any = importlib.import_module("torchvision.transforms.v2.functional")

BATCH = 64
"""How many images are handed at once to those who take batches."""
SIZE = 224
"""The side of the output in the resize suite, in pixels."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(NamedTuple):
    """At most BATCH pictures in every form that a contestant takes, made before the clock runs."""

    jpegs: list[bytes]
    tensors: list[Tensor]  # the same bytes, uint8 [n]
    arrays: list[NDArray[np.uint8]]
    tiled: list[Tensor]  # tile_jpeg of them
    alone: list[Tensor]  # each crop stored as a JPEG of its own; empty in the resize suite
    boxes: Tensor  # int32 [B, 4]: top, left, height, width
    places: list[tuple[int, int, int, int]]  # the same numbers
    flips: Tensor  # bool [B]; only where the output is normalised


@dataclass(frozen=True)
class Contestant:
    """One way to do the work: image by image, or a block at once.

    group: what it makes; the first contestant of a group is what the others are measured against.
    compared: whether its pixels should be those of the reference.
    """

    name: str
    one: Callable[[Block, int], Any] | None = None
    whole: Callable[[Any], Any] | None = None
    group: str = "uint8"
    compared: bool = True

    def run(self, block: Block) -> None:
        """Do the work and drop the pixels: this is what is timed."""
        if self.whole is not None:
            self.whole(block)
        elif self.one is not None:
            for index in range(len(block.jpegs)):
                self.one(block, index)

    def pixels(self, block: Block) -> list[Tensor]:
        """Do the work and return a copy of the pixels, a [3, H, W] for each picture, in levels of 0..255."""
        made: Iterable[Any]
        if self.whole is not None:
            made = self.whole(block)
        else:
            assert self.one is not None
            made = (self.one(block, index) for index in range(len(block.jpegs)))
        return [_levels(image) for image in made]


def _levels(image: Any) -> Tensor:
    """uint8 or normalised float, tensor [3, H, W] or array [H, W, 3] -> float32 [3, H, W] in levels."""
    tensor = image.cpu() if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
    if not isinstance(image, Tensor) and tensor.shape[-1] == 3:
        tensor = tensor.permute(2, 0, 1)
    if not tensor.is_floating_point():
        return tensor.float()
    return (tensor.float() * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255


def of_crop() -> list[Contestant]:
    """Who crops, torchvision first."""

    def torchvision(block: Block, index: int) -> Tensor:
        top, left, height, width = block.places[index]
        return decode_jpeg(block.tensors[index])[:, top : top + height, left : left + width]

    def pillow(block: Block, index: int) -> NDArray[np.uint8]:
        return np.asarray(_pillow(block, index))

    return [
        Contestant("torchvision", torchvision),
        Contestant("Pillow", pillow),
        Contestant("tarpeg, ordinary", lambda b, i: decode.decode_crop(b.tensors[i], *b.places[i])),
        Contestant("tarpeg, tiled", lambda b, i: decode.decode_crop(b.tiled[i], *b.places[i])),
        Contestant(
            "bound: the crop alone, torchvision",
            lambda b, i: decode_jpeg(b.alone[i]),
            compared=False,
        ),
        Contestant(
            "bound: the crop alone, tarpeg",
            lambda b, i: decode.decode_crop(b.alone[i], 0, 0, *b.places[i][2:]),
            compared=False,
        ),
    ]


def of_resize() -> list[Contestant]:
    """Who crops and resizes to SIZE, antialiased: to uint8, and flipped and normalised to float32 too."""

    def torchvision(block: Block, index: int) -> Tensor:
        image = decode_jpeg(block.tensors[index])
        resized: Tensor = functional.resized_crop(image, *block.places[index], [SIZE, SIZE], antialias=True)
        return resized

    def normalised(block: Block, index: int) -> Tensor:
        image = torchvision(block, index)
        image = functional.horizontal_flip(image) if block.flips[index] else image
        image = functional.to_dtype(image, torch.float32, scale=True)
        result: Tensor = functional.normalize(image, list(MEAN), list(STD))
        return result

    def pillow(block: Block, index: int) -> NDArray[np.uint8]:
        return np.asarray(_pillow(block, index).resize((SIZE, SIZE), Image.Resampling.BILINEAR))

    found = [Contestant("torchvision v2", torchvision), Contestant("Pillow", pillow), *_ours("uint8")]
    found.append(Contestant("torchvision v2", normalised, group="float32"))
    return found + _ours("float32")


def _pillow(block: Block, index: int) -> Image.Image:
    top, left, height, width = block.places[index]
    with Image.open(io.BytesIO(block.jpegs[index])) as image:
        return image.convert("RGB").crop((left, top, left + width, top + height))


def _ours(group: str) -> list[Contestant]:
    """decode_batch on ordinary and tiled JPEGs, at each fidelity, into memory that is used again."""
    operator: Callable[..., tuple[Tensor, Tensor]] = decode.decode_batch
    known = inspect.signature(operator).parameters
    options: dict[str, Any] = {}
    if group == "float32":
        if "dtype" not in known:
            return []
        options = {"mean": MEAN, "std": STD, "dtype": torch.float32}

    def contestant(kind: str, fidelity: str | None) -> Contestant:
        chosen = options if fidelity is None else {**options, "fidelity": fidelity}
        out: Tensor | None = None

        def whole(block: Block) -> Tensor:
            nonlocal out
            jpegs = block.tiled if kind == "tiled" else block.tensors
            flips = block.flips if group == "float32" else None
            reused = None if out is None or len(out) < len(jpegs) else out[: len(jpegs)]
            images = operator(jpegs, block.boxes, SIZE, flips, out=reused, **chosen)[0]
            out = images if reused is None else out
            return images

        name = f"tarpeg, {kind}" + (f", {fidelity}" if fidelity else "")
        return Contestant(name, whole=whole, group=group)

    fidelities = ["fast", "exact"] if "fidelity" in known else [None]
    return [contestant(kind, fidelity) for kind in ("ordinary", "tiled") for fidelity in fidelities]
