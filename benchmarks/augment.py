"""Contestants of the augment suite: torchvision v2, Kornia and this library on decoded batches."""

from __future__ import annotations

import importlib
import itertools
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from tarpeg.augment.policies import AugMix, AutoAugment, GaussianBlur, Policy, RandAugment, TrivialAugmentWide
from tarpeg.ops import matrices
from tarpeg.ops.augment import augment_batch
from tarpeg.ops.decode import decode_batch, image_sizes
from tarpeg.ops.programs import run_programs
from tarpeg.sampling import rng
from tarpeg.shards.pillow import as_tensor
from torch import Tensor

from .decode_peers import (
    MEAN,
    SIZE,
    STD,
    InProcessContestant,
    Peer,
    functional,
    normalised,
    with_buffer,
)

PLAIN, CHAIN = "flip, normalise", "the whole chain"
_FACTORS = ("brightness", "contrast", "saturation", "hue")
_ERASED = 56  # side of the erased square, in pixels
_POLICIES = {  # and torchvision's of the same arguments
    "RandAugment(2, 9)": RandAugment(2, 9),
    "TrivialAugmentWide()": TrivialAugmentWide(),
    "AutoAugment()": AutoAugment(),
    "AugMix()": AugMix(),
    "GaussianBlur(23)": GaussianBlur(23),
}


class AugmentInput(NamedTuple):
    """At most BATCH decoded photographs and the parameters of each, made before the measurement."""

    jpegs: list[bytes]
    planar: Tensor  # uint8 [B, 3, SIZE, SIZE], contiguous
    last: Tensor  # the same, channels_last
    flips: Tensor  # bool [B]
    angles: list[float]  # degrees, counterclockwise
    scales: list[float]
    matrix: Tensor  # [B, 2, 3]: rotation and scale around the centre
    factors: dict[str, Tensor]  # float32 [B]
    boxes: Tensor  # int32 [B, 1, 4]


def augment_input(jpegs: list[bytes], seed: int, device: str) -> AugmentInput:
    """Resize whole photographs to SIZE x SIZE and draw an augmentation for each."""
    count, generator = len(jpegs), np.random.default_rng(seed)

    def uniform(low: float, high: float) -> Tensor:
        return torch.from_numpy(generator.uniform(low, high, count)).float()

    tensors = [as_tensor(jpeg) for jpeg in jpegs]
    sizes = image_sizes(tensors)
    images, _ = decode_batch(tensors, torch.cat((torch.zeros_like(sizes), sizes), 1), SIZE)
    angles, scales, center = uniform(-30, 30), uniform(0.8, 1.25), ((SIZE - 1) / 2, (SIZE - 1) / 2)
    matrix = matrices.compose(matrices.rotation(angles, center), matrices.scale(scales, center=center))
    factors = {name: uniform(0.6, 1.4) for name in _FACTORS[:3]} | {"hue": uniform(-0.1, 0.1)}
    corners = torch.from_numpy(generator.integers(0, SIZE - _ERASED, (count, 1, 2), dtype=np.int32))
    return AugmentInput(
        jpegs=jpegs,
        planar=images.contiguous().to(device),
        last=images.to(device),
        flips=(uniform(0, 1) < 0.5).to(device),
        angles=angles.tolist(),
        scales=scales.tolist(),
        matrix=matrix.to(device),
        factors={name: values.to(device) for name, values in factors.items()},
        boxes=torch.cat((corners, torch.full_like(corners, _ERASED)), 2).to(device),
    )


def augment_contestants() -> list[InProcessContestant]:
    """Contestants that are always installed, torchvision first."""
    return [
        InProcessContestant("torchvision v2", _torchvision_plain, PLAIN),
        InProcessContestant(
            "torchvision v2, normalising in place", partial(_torchvision_plain, inplace=True), PLAIN
        ),
        *_augment_batch(PLAIN),
        InProcessContestant("torchvision v2", _torchvision_chain, CHAIN),
        InProcessContestant("torchvision v2, one draw for all", _torchvision_at_once, CHAIN, compared=False),
        *_augment_batch(CHAIN),
        *(contestant for name, policy in _POLICIES.items() for contestant in _policy(name, policy)),
    ]


def _flipped(inputs: AugmentInput) -> list[Tensor]:
    pairs = zip(inputs.planar, inputs.flips.tolist(), strict=True)
    return [functional.horizontal_flip(image) if flip else image for image, flip in pairs]


def _torchvision_plain(inputs: AugmentInput, inplace: bool = False) -> Tensor:
    return normalised(torch.stack(_flipped(inputs)), inplace)


def _torchvision_chain(inputs: AugmentInput) -> Tensor:
    boxes = inputs.boxes[:, 0].tolist()
    factors = list(zip(*(values.tolist() for values in inputs.factors.values()), strict=True))
    images = [
        _distorted(image, inputs, index, factors[index], boxes[index])
        for index, image in enumerate(inputs.planar)
    ]
    return normalised(torch.stack(images))


def _torchvision_at_once(inputs: AugmentInput) -> Tensor:
    """Apply the parameters of the first image to the whole batch."""
    factors = tuple(float(values[0]) for values in inputs.factors.values())
    return normalised(_distorted(inputs.planar, inputs, 0, factors, inputs.boxes[0, 0].tolist()))


def _distorted(
    image: Tensor, inputs: AugmentInput, index: int, factors: tuple[float, ...], box: list[int]
) -> Tensor:
    mode = functional.InterpolationMode.BILINEAR
    angle, scale = -inputs.angles[index], inputs.scales[index]
    for name, factor in zip(_FACTORS, factors, strict=True):
        image = getattr(functional, f"adjust_{name}")(image, factor)
    mirrored = functional.horizontal_flip(image) if bool(inputs.flips[index]) else image
    warped = functional.affine(mirrored, angle, [0, 0], scale, [0.0, 0.0], mode)
    black = torch.zeros(3, 1, 1, dtype=image.dtype, device=image.device)
    result: Tensor = functional.erase(warped, *box, black)
    return result


def _augment_batch(group: str) -> list[InProcessContestant]:
    """augment_batch with one output buffer for all batches, as in training, and with fresh memory."""

    def contestant(kind: str, dtype: torch.dtype, is_reused: bool = True) -> InProcessContestant:
        def augment(inputs: AugmentInput, out: Tensor | None = None) -> Tensor:
            images = inputs.last if kind == "channels_last" else inputs.planar
            params: dict[str, Any] = {"flip": inputs.flips}
            if group == CHAIN:
                params |= {"matrix": inputs.matrix, "erase_boxes": inputs.boxes, **inputs.factors}
            return augment_batch(images, mean=MEAN, std=STD, dtype=dtype, out=out, **params)

        name = f"tarpeg, {kind}, {str(dtype).removeprefix('torch.')}"
        if is_reused:
            return InProcessContestant(name, with_buffer(augment), group)
        return InProcessContestant(f"{name}, fresh memory", augment, group)

    return [
        contestant("contiguous", torch.float32),
        contestant("contiguous", torch.float32, is_reused=False),
        contestant("channels_last", torch.float32),
        contestant("channels_last", torch.bfloat16),
    ]


def _policy(group: str, policy: Policy) -> list[InProcessContestant]:
    """Torchvision's policy on each image, ours on the batch; uint8 to uint8, each with draws of its own."""
    transforms: Any = importlib.import_module("torchvision.transforms.v2")
    name, _, arguments = group.removesuffix(")").partition("(")
    each: Any = getattr(transforms, name)(*map(int, arguments.split(", ") if arguments else ()))

    def contestant(order: str) -> InProcessContestant:
        drawn = itertools.count()

        def augment(inputs: AugmentInput, out: Tensor | None = None) -> Tensor:
            images = inputs.last if order == "channels_last" else inputs.planar
            uniforms = rng.uniforms(0, next(drawn), np.arange(len(images)), policy.draws)
            program, nearest = policy.program(uniforms, (SIZE, SIZE)), policy.interpolation == "nearest"
            return run_programs(images, *program, nearest=nearest, fill=policy.fill, out=out)

        return InProcessContestant(f"tarpeg, {order}, uint8", with_buffer(augment), group, compared=False)

    def torchvision(inputs: AugmentInput) -> Tensor:
        return torch.stack([each(image) for image in inputs.planar])

    reference = InProcessContestant("torchvision v2", torchvision, group, compared=False)
    return [reference, contestant("contiguous"), contestant("channels_last")]


def _kornia(group: str) -> InProcessContestant:
    enhance = importlib.import_module("kornia.enhance")
    transform = importlib.import_module("kornia.geometry.transform")

    def augment(inputs: AugmentInput) -> Tensor:
        values, factors = inputs.planar.float() / 255, inputs.factors
        if group == CHAIN:
            values = enhance.adjust_brightness_accumulative(values, factors["brightness"])
            values = enhance.adjust_contrast_with_mean_subtraction(values, factors["contrast"])
            values = enhance.adjust_saturation_with_gray_subtraction(values, factors["saturation"])
            values = enhance.adjust_hue(values, factors["hue"] * (2 * torch.pi))
        values = torch.where(inputs.flips[:, None, None, None], values.flip(-1), values)
        if group == CHAIN:
            values = transform.warp_affine(values, inputs.matrix.float(), (SIZE, SIZE))
            for image, (top, left, height, width) in zip(values, inputs.boxes[:, 0].tolist(), strict=True):
                image[:, top : top + height, left : left + width] = 0
        result: Tensor = enhance.normalize(values, torch.tensor(MEAN), torch.tensor(STD))
        return result

    return InProcessContestant("Kornia", augment, group)


AUGMENT_PEERS: tuple[Peer, ...] = (("kornia", partial(_kornia, PLAIN)), ("kornia", partial(_kornia, CHAIN)))
