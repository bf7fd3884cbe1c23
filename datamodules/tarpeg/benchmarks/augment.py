"""The benchmark's augment suite: what is done to a decoded batch, ours beside torchvision v2 and Kornia."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..ops import matrices
from ..ops.augment import augment_batch
from ..ops.decode import decode_batch
from .contestants import MEAN, SIZE, STD, Contestant, functional

PLAIN, CHAIN = "flip, normalise", "the whole chain"
_FACTORS = ("brightness", "contrast", "saturation", "hue")
_ERASED = 56  # the side of what is erased, in pixels


class AugmentBlock(NamedTuple):
    """At most contestants.BATCH decoded pictures and the numbers of each, made before the clock runs."""

    jpegs: list[bytes]
    planar: Tensor  # uint8 [B, 3, SIZE, SIZE]
    last: Tensor  # the same in channels_last order
    flips: Tensor  # bool [B]
    angles: list[float]  # degrees, counterclockwise
    scales: list[float]
    matrix: Tensor  # [B, 2, 3]: both of them around the centre
    factors: dict[str, Tensor]  # float32 [B]
    boxes: Tensor  # int32 [B, 1, 4]


def block(jpegs: list[bytes], tensors: list[Tensor], sizes: Tensor, seed: int, device: str) -> AugmentBlock:
    """Decode pictures whole to SIZE x SIZE and draw an augmentation for each; `sizes`: int32 [B, 2]."""
    count, generator = len(jpegs), np.random.default_rng(seed)

    def drawn(low: float, high: float) -> Tensor:
        return torch.from_numpy(generator.uniform(low, high, count)).float()

    images, _ = decode_batch(tensors, torch.cat((torch.zeros_like(sizes), sizes), 1), SIZE)
    angles, scales, center = drawn(-30, 30), drawn(0.8, 1.25), ((SIZE - 1) / 2, (SIZE - 1) / 2)
    matrix = matrices.compose(matrices.rotation(angles, center), matrices.scale(scales, center=center))
    factors = {name: drawn(0.6, 1.4) for name in _FACTORS[:3]} | {"hue": drawn(-0.1, 0.1)}
    corners = torch.from_numpy(generator.integers(0, SIZE - _ERASED, (count, 1, 2), dtype=np.int32))
    return AugmentBlock(
        jpegs,
        images.contiguous().to(device),
        images.to(device),
        (drawn(0, 1) < 0.5).to(device),
        angles.tolist(),
        scales.tolist(),
        matrix.to(device),
        {name: values.to(device) for name, values in factors.items()},
        torch.cat((corners, torch.full_like(corners, _ERASED)), 2).to(device),
    )


def contestants() -> list[Contestant]:
    """Who augments, torchvision first; one of its ways draws once for the whole batch."""
    return [
        _timed("torchvision v2", _torchvision_plain, PLAIN),
        _timed("torchvision v2, normalising in place", partial(_torchvision_plain, inplace=True), PLAIN),
        *_ours(PLAIN),
        _timed("torchvision v2", _torchvision_chain, CHAIN),
        Contestant(
            "torchvision v2, one draw for all",
            whole=_synchronised(_torchvision_at_once),
            group=CHAIN,
            compared=False,
        ),
        *_ours(CHAIN),
    ]


def _synchronised(make: Callable[[AugmentBlock], Tensor]) -> Callable[[Any], Tensor]:
    def whole(block: AugmentBlock) -> Tensor:
        made = make(block)
        if made.is_cuda:
            torch.cuda.synchronize()
        return made

    return whole


def _timed(name: str, make: Callable[[AugmentBlock], Tensor], group: str) -> Contestant:
    return Contestant(name, whole=_synchronised(make), group=group)


def normalised(images: Tensor, inplace: bool = False) -> Tensor:
    """Turn uint8 images, or one, into float32 as torchvision v2 does."""
    values = functional.to_dtype(images, torch.float32, scale=True)
    made: Tensor = functional.normalize(values, list(MEAN), list(STD), inplace=inplace)
    return made


def _torchvision_plain(block: AugmentBlock, inplace: bool = False) -> Tensor:
    flips = block.flips.tolist()
    images = [
        functional.horizontal_flip(image) if flip else image
        for image, flip in zip(block.planar, flips, strict=True)
    ]
    return normalised(torch.stack(images), inplace)


def _torchvision_chain(block: AugmentBlock) -> Tensor:
    flips, boxes = block.flips.tolist(), block.boxes[:, 0].tolist()
    factors = [values.tolist() for values in block.factors.values()]
    images = []
    for index, image in enumerate(block.planar):
        image = functional.horizontal_flip(image) if flips[index] else image
        images.append(_changed(image, block, index, [values[index] for values in factors], boxes[index]))
    return normalised(torch.stack(images))


def _torchvision_at_once(block: AugmentBlock) -> Tensor:
    factors = [float(values[0]) for values in block.factors.values()]
    images = functional.horizontal_flip(block.planar)
    return normalised(_changed(images, block, 0, factors, block.boxes[0, 0].tolist()))


def _changed(image: Tensor, block: AugmentBlock, index: int, factors: list[float], box: list[int]) -> Tensor:
    way = functional.InterpolationMode.BILINEAR
    turned = functional.affine(image, -block.angles[index], [0, 0], block.scales[index], [0.0, 0.0], way)
    for name, factor in zip(_FACTORS, factors, strict=True):
        turned = getattr(functional, f"adjust_{name}")(turned, factor)
    nothing = torch.zeros(3, 1, 1, dtype=image.dtype, device=image.device)
    made: Tensor = functional.erase(turned, *box, nothing)
    return made


def _ours(group: str) -> list[Contestant]:
    """augment_batch into memory that is used again, as a loop would, and into fresh memory."""

    def contestant(kind: str, dtype: torch.dtype, is_reused: bool) -> Contestant:
        out: Tensor | None = None

        def make(block: AugmentBlock) -> Tensor:
            nonlocal out
            images = block.last if kind == "channels_last" else block.planar
            given: dict[str, Any] = {"flip": block.flips}
            if group == CHAIN:
                given |= {"matrix": block.matrix, "erase_boxes": block.boxes, **block.factors}
            kept = out[: len(images)] if out is not None and len(out) >= len(images) else None
            made = augment_batch(images, mean=MEAN, std=STD, dtype=dtype, out=kept, **given)
            out = made if is_reused and kept is None else out
            return made

        name = ", ".join(("tarpeg", kind, str(dtype).removeprefix("torch.")))
        return _timed(name + ("" if is_reused else ", fresh memory"), make, group)

    return [
        contestant("contiguous", torch.float32, True),
        contestant("contiguous", torch.float32, False),
        contestant("channels_last", torch.float32, True),
        contestant("channels_last", torch.bfloat16, True),
    ]


def kornia_plain() -> Contestant:
    """Kornia's functions on the whole batch."""
    enhance = importlib.import_module("kornia.enhance")

    def make(block: AugmentBlock) -> Tensor:
        values = _mirrored(block)
        made: Tensor = enhance.normalize(values, torch.tensor(MEAN), torch.tensor(STD))
        return made

    return _timed("Kornia", make, PLAIN)


def kornia_chain() -> Contestant:
    """Kornia's functions on the whole batch, with numbers for each image."""
    enhance = importlib.import_module("kornia.enhance")
    transform = importlib.import_module("kornia.geometry.transform")

    def make(block: AugmentBlock) -> Tensor:
        factors = block.factors
        values = transform.warp_affine(_mirrored(block), block.matrix.float(), (SIZE, SIZE))
        values = enhance.adjust_brightness_accumulative(values, factors["brightness"])
        values = enhance.adjust_contrast_with_mean_subtraction(values, factors["contrast"])
        values = enhance.adjust_saturation_with_gray_subtraction(values, factors["saturation"])
        values = enhance.adjust_hue(values, factors["hue"] * (2 * torch.pi))
        for image, (top, left, height, width) in zip(values, block.boxes[:, 0].tolist(), strict=True):
            image[:, top : top + height, left : left + width] = 0
        made: Tensor = enhance.normalize(values, torch.tensor(MEAN), torch.tensor(STD))
        return made

    return _timed("Kornia", make, CHAIN)


def _mirrored(block: AugmentBlock) -> Tensor:
    values = block.planar.float() / 255
    return torch.where(block.flips[:, None, None, None], values.flip(-1), values)
