"""Augmentation policies: from uniform draws to a program of operations per image, for ``run_programs``.

Ranges, signs and probabilities are those of torchvision v2 on uint8, or of timm where a class says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import check_integer
from ..sampling.rng import Float64
from .distortions import Range, _between, _set_range, check_probabilities
from .tables import (
    AUTO,
    CODES,
    FACTORS,
    KINDS,
    MIXED,
    PAIRS,
    RAND,
    STANDARD,
    TIMM,
    WIDE,
    codes_of,
    pairs_of,
    table_of,
    timm_amount,
    values_of,
)

Interpolation = Literal["nearest", "bilinear"]


class Program(NamedTuple):
    """Arguments of ``run_programs`` for B images, c chains and n operations.

    Attributes:
        ops: int32 ``[B, c, n]``.
        values: float32 ``[B, c, n, 6]``.
        weights: float32 ``[B, c + 1]``; None for one chain whose result is the image.
    """

    ops: Tensor
    values: Tensor
    weights: Tensor | None = None


class Policy:
    """Base class of the policies: ``Augment(policy=...)`` takes one or a list.

    A policy of your own is a frozen dataclass with ``draws``, the count of random numbers per image, and
    ``program(uniforms, size)``, which turns them into operations of ``run_programs``.

    Attributes:
        interpolation: "nearest" or "bilinear", of shears, translations and rotations; None if the policy has
            none of these operations.
        fill: Level in 0 to 255, or three levels, of pixels from outside the image; None is black.

    Example:
        >>> policies = [tarpeg.RandAugment(2, 9), tarpeg.Grayscale(0.1)]
        >>> all(isinstance(policy, tarpeg.Policy) for policy in policies)
        True
        >>> augment = tarpeg.Augment(policy=policies)
    """

    interpolation: Interpolation | None = None
    fill: float | Sequence[float] | None = None
    chains: ClassVar[bool] = False  # program() returns weights

    @property
    def draws(self) -> int:
        """Number of uniform draws per image."""
        raise NotImplementedError

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Return the programs of images of (height, width) from draws [B, draws] in [0, 1)."""
        raise NotImplementedError


def run_policies(policies: Sequence[Policy], images: Tensor, draw: Callable[[int, int], Float64]) -> Tensor:
    """Return uint8 images ``[B, 3, H, W]`` after policies; ``draw(k, count)``: of policy k, [B, count]."""
    height, width = images.shape[-2:]
    return run_drawn(policies, drawn_programs(policies, draw, (height, width)), images)


def drawn_programs(
    policies: Sequence[Policy], draw: Callable[[int, int], Float64], size: tuple[int, int]
) -> list[Program]:
    """Return the programs of policies for images of that (height, width); ``draw``: see run_policies."""
    return [policy.program(draw(number, policy.draws), size) for number, policy in enumerate(policies)]


def run_drawn(policies: Sequence[Policy], programs: Sequence[Program], images: Tensor) -> Tensor:
    """Return uint8 images ``[B, 3, H, W]`` after the programs that were drawn for these policies."""
    from ..ops.programs import run_programs  # loads the native library, which this module must not

    for policy, program in zip(policies, programs, strict=True):
        images = run_programs(images, *program, nearest=policy.interpolation != "bilinear", fill=policy.fill)
    return images


@dataclass(frozen=True)
class RandAugment(Policy):
    """Apply ``num_ops`` random operations of one magnitude per image: torchvision's RandAugment.

    Args:
        num_ops: Operations per image.
        magnitude: Strength, 0 to ``num_magnitude_bins`` - 1.
        num_magnitude_bins: Number of strengths.
        interpolation: "nearest" or "bilinear", of shears, translations and rotations.
        fill: Level in 0 to 255, or three levels, of pixels from outside the image; None is black.

    Example:
        >>> augment = tarpeg.Augment(policy=tarpeg.RandAugment(num_ops=2, magnitude=9))
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_integer("num_ops", self.num_ops, 1, 64, of=self)
        check_integer("num_magnitude_bins", self.num_magnitude_bins, 2, 1 << 16, of=self)
        most = self.num_magnitude_bins - 1
        check_integer("magnitude", self.magnitude, 0, most, of=self, hint=" (num_magnitude_bins - 1)")
        _check_geometry(self)

    @property
    def draws(self) -> int:
        """Two draws per operation: which, and its sign."""
        return 2 * self.num_ops

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of one chain of ``num_ops`` operations, from draws [B, 2 num_ops]."""
        codes, values = table_of(RAND, STANDARD, self.num_magnitude_bins, size)
        which, sign = np.moveaxis(uniforms.reshape(-1, 1, self.num_ops, 2), -1, 0)
        index = _index(which, len(codes))
        return _program(codes[index], values[index, _index(sign, 2), self.magnitude])


@dataclass(frozen=True)
class TrivialAugmentWide(Policy):
    """Apply one random operation of random magnitude per image: torchvision's TrivialAugmentWide.

    Args:
        num_magnitude_bins: Number of strengths.
        interpolation: "nearest" or "bilinear", of shears, translations and rotations.
        fill: Level in 0 to 255, or three levels, of pixels from outside the image; None is black.

    Example:
        >>> augment = tarpeg.Augment(policy=tarpeg.TrivialAugmentWide(interpolation="bilinear"))
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: float | Sequence[float] | None = None

    draws: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_integer("num_magnitude_bins", self.num_magnitude_bins, 2, 1 << 16, of=self)
        _check_geometry(self)

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of one operation, from draws [B, 3]: which, magnitude and sign."""
        codes, values = table_of(RAND, WIDE, self.num_magnitude_bins, size)
        which, magnitude, sign = uniforms.T[:, :, None, None]
        index = _index(which, len(codes))
        chosen = values[index, _index(sign, 2), _index(magnitude, self.num_magnitude_bins)]
        return _program(codes[index], chosen)


@dataclass(frozen=True)
class AutoAugment(Policy):
    """Apply one of 25 pairs of operations, each with its probability, per image: torchvision's AutoAugment.

    Args:
        policy: Data set on which the pairs were learned: "imagenet", "cifar10" or "svhn".
        interpolation: "nearest" or "bilinear", of shears, translations and rotations.
        fill: Level in 0 to 255, or three levels, of pixels from outside the image; None is black.

    Example:
        >>> augment = tarpeg.Augment(policy=tarpeg.AutoAugment("cifar10"))
        >>> augment(torch.zeros(8, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([8, 3, 32, 32])
    """

    policy: str = "imagenet"
    interpolation: Interpolation = "nearest"
    fill: float | Sequence[float] | None = None

    draws: ClassVar[int] = 5

    def __post_init__(self) -> None:
        if self.policy not in PAIRS:
            raise ValueError(f"policy={self.policy!r} must be one of {', '.join(map(repr, PAIRS))}")
        _check_geometry(self)

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of two operations, from draws [B, 5]: the pair, and for each whether, and its sign."""
        kinds, probabilities, magnitudes = pairs_of(self.policy)
        codes, values = table_of(AUTO, STANDARD, 10, size)
        pair = _index(uniforms[:, 0], len(kinds))
        whether, sign = uniforms[:, 1:].reshape(-1, 2, 2).transpose(2, 0, 1)
        ops = np.where(whether < probabilities[pair], codes[kinds[pair]], CODES["IDENTITY"])
        return _program(ops[:, None], values[kinds[pair], _index(sign, 2), magnitudes[pair]][:, None])


@dataclass(frozen=True)
class AugMix(Policy):
    """Mix each image with several chains of random operations: torchvision's AugMix.

    Args:
        severity: Strength of the operations, 1 to 10.
        mixture_width: Number of chains.
        chain_depth: Operations per chain; -1 for a random number of 1 to 3.
        alpha: Parameter of the Dirichlet distributions of the shares.
        all_ops: Also change brightness, colour, contrast and sharpness.
        interpolation: "nearest" or "bilinear", of shears, translations and rotations.
        fill: Level in 0 to 255, or three levels, of pixels from outside the image; None is black.

    Example:
        >>> augment = tarpeg.Augment(policy=tarpeg.AugMix(severity=3))
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Interpolation = "bilinear"
    fill: float | Sequence[float] | None = None

    chains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer("severity", self.severity, 1, 10, of=self)
        check_integer("mixture_width", self.mixture_width, 1, 64, of=self)
        if self.chain_depth != -1:
            check_integer(
                "chain_depth", self.chain_depth, 1, 64, of=self, hint=" (64, or -1 for a random 1 to 3)"
            )
        if not 0.1 <= self.alpha <= 1e3:
            raise ValueError(f"alpha={self.alpha!r} of AugMix must be in 0.1..1000")
        _check_geometry(self)

    @property
    def draws(self) -> int:
        """Two for the image's share; a share and a depth per chain; three per operation."""
        return 2 + self.mixture_width * (2 + 3 * self._depth)

    @property
    def _depth(self) -> int:
        return self.chain_depth if self.chain_depth > 0 else 3

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of ``mixture_width`` chains, and weights, from draws [B, draws]."""
        kinds = tuple(kind for kind in KINDS if self.all_ops or kind not in FACTORS)
        codes, values = table_of(kinds, MIXED, 10, size)
        width, depth = self.mixture_width, self._depth
        own, shares, depths, rest = np.split(uniforms, [2, 2 + width, 2 + 2 * width], axis=1)
        which, magnitude, sign = np.moveaxis(rest.reshape(len(uniforms), width, depth, 3), -1, 0)
        index = _index(which, len(codes))
        ops = codes[index]
        if self.chain_depth < 0:
            ops[np.arange(depth) > _index(depths, depth)[..., None]] = CODES["IDENTITY"]
        image, mixed = _dirichlet(self.alpha, own).T[:, :, None]
        weights = np.concatenate([image, mixed * _dirichlet(self.alpha, shares)], axis=1)
        chosen = values[index, _index(sign, 2), _index(magnitude, self.severity)]
        return _program(ops, chosen, weights)


@dataclass(frozen=True)
class TimmRandAugment(Policy):
    """timm's RandAugment, given as its ``--aa``: "rand-m7-mstd0.5-inc1" (ResNet strikes back, A2).

    Different from timm, which runs Pillow, interpolation is always bilinear (timm's is bilinear or bicubic at
    random), and colours may differ by one level.

    Args:
        config: "rand", then in any order m (magnitude, 0 to 10), n (operations, 2), p (probability of each,
            0.5), mstd (standard deviation of the magnitude; above 100: uniform in 0 to m), mmax (its upper
            bound, 10) and inc1 (all operations become stronger with the magnitude).
        interpolation: "nearest" or "bilinear", of shears, translations and rotations.
        fill: Level in 0 to 255, or three levels, of pixels from outside the image; default as in timm.

    Example:
        >>> augment = tarpeg.Augment(policy=tarpeg.TimmRandAugment("rand-m7-mstd0.5-inc1"))
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    config: str = "rand-m9-mstd0.5-inc1"
    interpolation: Interpolation = "bilinear"
    fill: float | Sequence[float] = (124.0, 116.0, 104.0)

    def __post_init__(self) -> None:
        _check_geometry(self)
        if not 0 <= self._settings["p"] <= 1:
            raise ValueError(f"config={self.config!r}: p must be a probability in 0..1")
        if not 0 <= self._settings["m"] <= self._settings["mmax"]:
            raise ValueError(f"config={self.config!r}: m must be in 0..{self._settings['mmax']:g}")
        if not 1 <= self._settings["n"] <= 64 or self._settings["n"] % 1:
            raise ValueError(f"config={self.config!r}: n must be an integer in 1..64")

    @property
    def draws(self) -> int:
        """Four draws per operation: which, whether, its magnitude and its sign."""
        return 4 * int(self._settings["n"])

    @cached_property
    def _settings(self) -> dict[str, float]:
        settings = {"m": 10.0, "n": 2.0, "p": 0.5, "mstd": 0.0, "mmax": 10.0, "inc": 0.0}
        head, *parts = str(self.config).split("-")
        matches = [re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", part) for part in parts]
        if head != "rand" or not all(match and match[1] in settings for match in matches):
            raise ValueError(
                f"config={self.config!r} must be such as 'rand-m9-mstd0.5-inc1', of m, n, p, mstd, mmax, inc"
            )
        return settings | {match[1]: float(match[2]) for match in matches if match}

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of one chain of n operations, from draws [B, 4 n]."""
        settings = self._settings
        which, whether, noise, sign = np.moveaxis(uniforms.reshape(-1, 1, self.draws // 4, 4), -1, 0)
        magnitude = np.full_like(noise, settings["m"])
        if settings["mstd"] > 100:
            magnitude *= noise
        elif settings["mstd"] > 0:
            magnitude += settings["mstd"] * torch.special.ndtri(torch.from_numpy(noise)).numpy()
        level = np.clip(magnitude, 0.0, settings["mmax"]) / 10
        index = _index(which, len(TIMM))
        values = np.zeros((*index.shape, 6))
        signed = np.where(sign < 0.5, level, -level)
        for number, kind in enumerate(TIMM):
            chosen = index == number
            amount = timm_amount(kind, level[chosen], signed[chosen], bool(settings["inc"]), size)
            values[chosen] = values_of(kind, amount, size)
        codes = codes_of(TIMM)
        return _program(np.where(whether < settings["p"], codes[index], CODES["IDENTITY"]), values)


@dataclass(frozen=True)
class ThreeAugment(Policy):
    """One of grayscale, solarise and Gaussian blur per image: 3-Augment of DeiT III, timm's "3a".

    Images are solarised from level 128 on, and blurred with a sigma of 0.1 to 2. The colour jitter that
    follows in DeiT III is a ``ColorJitter`` of 0.3.

    Example:
        >>> policy = [tarpeg.ThreeAugment(), tarpeg.ColorJitter(0.3, 0.3, 0.3)]
        >>> augment = tarpeg.Augment(policy=policy)
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    draws: ClassVar[int] = 2

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of one operation, from draws [B, 2]: which, and sigma."""
        index, sigma = _index(uniforms[:, 0], 3), 0.1 + 1.9 * uniforms[:, 1]
        ops = np.array([CODES[name] for name in ("SOLARIZE", "GRAYSCALE", "BLUR")], np.int32)[index]
        values = np.zeros((len(uniforms), 6))
        values[:, 0] = np.select([index == 0, index == 2], [128.0, sigma])
        values[:, 1] = np.where(index == 2, 2 * np.ceil(3 * sigma) + 1, 0)  # up to 3 sigma on both sides
        return _program(ops[:, None, None], values[:, None, None])


@dataclass(frozen=True)
class ColorJitter(Policy):
    """Change brightness, contrast, saturation and hue: torchvision's ColorJitter.

    They apply in random order and are rounded to levels after each, as torchvision does.
    ``Augment(color=...)`` is the last policy: it and ``Augment(policy=...)`` give the same bytes.

    Args:
        brightness: Range (low, high) of the factor, where 1 changes nothing; n means max(0, 1 - n) to 1 + n.
        contrast: As ``brightness``.
        saturation: As ``brightness``.
        hue: Range of the shift, in turns of the colour circle within -0.5 to 0.5; n means -n to n.
        probability: Probability, 0 to 1, of changing an image.

    Example:
        >>> augment = tarpeg.Augment(color=tarpeg.ColorJitter(brightness=0.4, hue=0.1))
        >>> jittered = tarpeg.Augment(policy=tarpeg.ColorJitter(0.4, 0.4, 0.2, 0.1, probability=0.8))
        >>> jittered(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    brightness: Range = 0.0
    contrast: Range = 0.0
    saturation: Range = 0.0
    hue: Range = 0.0
    probability: float = 1.0

    draws: ClassVar[int] = 9

    def __post_init__(self) -> None:
        check_probabilities(self, "probability")
        for name in ("brightness", "contrast", "saturation"):
            _set_range(self, name, 0.0, math.inf, around=1.0)
        _set_range(self, "hue", -0.5, 0.5, around=0.0)

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of four operations, from draws [B, 9]: four places, four amounts, and whether."""
        codes, values = np.zeros(4, np.int32), np.zeros((len(uniforms), 4, 6))
        neutral = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
        for column, (name, value) in enumerate(neutral.items()):
            bounds = getattr(self, name)
            if bounds != (value, value):
                codes[column] = CODES[name.upper()]
                values[:, column, 0] = _between(bounds, uniforms[:, 4 + column])
        order = uniforms[:, :4].argsort(1)
        ops = np.where(uniforms[:, 8:] < self.probability, codes[order], CODES["IDENTITY"])
        return _program(ops[:, None], np.take_along_axis(values, order[..., None], 1)[:, None])


@dataclass(frozen=True)
class GaussianBlur(Policy):
    """Blur with a Gaussian kernel: torchvision's GaussianBlur.

    Args:
        kernel_size: Side of the kernel in pixels, odd.
        sigma: Range of the standard deviation in pixels; n means exactly n.
        probability: Probability, 0 to 1, of blurring an image.

    Example:
        >>> augment = tarpeg.Augment(policy=tarpeg.GaussianBlur(9, sigma=(0.1, 2.0), probability=0.5))
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    kernel_size: int = 23
    sigma: Range = (0.1, 2.0)
    probability: float = 1.0

    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_probabilities(self, "probability")
        check_integer("kernel_size", self.kernel_size, 1, 255, of=self)
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size={self.kernel_size} of GaussianBlur must be odd")
        _set_range(self, "sigma", 1e-3, math.inf)

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of one operation, from draws [B, 2]: sigma, and whether."""
        if self.kernel_size // 2 >= min(size):
            raise ValueError(
                f"kernel_size={self.kernel_size} of GaussianBlur needs images of more than "
                f"{self.kernel_size // 2} pixels per side, got {size[0]} x {size[1]}"
            )
        return applied(
            "BLUR", uniforms[:, 1] < self.probability, _between(self.sigma, uniforms[:, 0]), self.kernel_size
        )


@dataclass(frozen=True)
class Solarize(Policy):
    """Invert all values from a threshold on: torchvision's RandomSolarize.

    Args:
        threshold: Level, 0 to 256.
        probability: Probability, 0 to 1, of changing an image.

    Example:
        >>> augment = tarpeg.Augment(policy=tarpeg.Solarize(128, probability=0.2))
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    threshold: float = 128.0
    probability: float = 1.0

    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_probabilities(self, "probability")
        if not isinstance(self.threshold, (int, float)) or not 0 <= self.threshold <= 256:
            raise ValueError(f"threshold={self.threshold!r} of Solarize must be a level in 0..256")

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of one operation, from draws [B, 1]."""
        return applied("SOLARIZE", uniforms[:, 0] < self.probability, self.threshold)


@dataclass(frozen=True)
class Grayscale(Policy):
    """Turn an image to gray, in three equal channels: torchvision's RandomGrayscale.

    Args:
        probability: Probability, 0 to 1, of changing an image.

    Example:
        >>> augment = tarpeg.Augment(policy=tarpeg.Grayscale(0.2))
        >>> augment(torch.zeros(8, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([8, 3, 64, 64])
    """

    probability: float = 1.0

    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_probabilities(self, "probability")

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of one operation, from draws [B, 1]."""
        return applied("GRAYSCALE", uniforms[:, 0] < self.probability)


def applied(name: str, whether: npt.NDArray[np.bool_], *values: npt.ArrayLike) -> Program:
    """Programs of one operation, applied where ``whether`` [B] is true, with ``values``: numbers or [B]."""
    table = np.zeros((len(whether), 1, 1, 6))
    for column, value in enumerate(values):
        table[:, 0, 0, column] = value
    return _program(np.where(whether, CODES[name], CODES["IDENTITY"])[:, None, None], table)


def _program(ops: npt.ArrayLike, values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Program:
    numbers = None if weights is None else torch.from_numpy(np.asarray(weights, np.float32))
    ops, values = np.ascontiguousarray(ops, np.int32), np.ascontiguousarray(values, np.float32)
    return Program(torch.from_numpy(ops), torch.from_numpy(values), numbers)


def _index(uniforms: Float64, count: int) -> npt.NDArray[np.int64]:
    """Return integers in 0..count-1: u count is below count for all u < 1, also when it is rounded."""
    return (uniforms * count).astype(np.int64)


@lru_cache(maxsize=8)
def _gamma(alpha: float) -> tuple[Float64, Float64]:
    """Return logarithms of the Gamma distribution's function, and of the numbers that it belongs to."""
    least = (math.lgamma(alpha + 1) - 55 * math.log(2)) / alpha  # x**alpha / Gamma(alpha + 1) for small x
    logs = torch.linspace(least, math.log(4 * alpha + 100), 1 << 16, dtype=torch.float64, device="cpu")
    order = torch.tensor(alpha, dtype=torch.float64, device="cpu")
    return torch.special.gammainc(order, logs.exp()).log().numpy(), logs.numpy()


def _dirichlet(alpha: float, uniforms: Float64) -> Float64:
    """Return shares [B, n], a draw of the symmetric Dirichlet distribution per row of uniforms [B, n]."""
    logs = np.interp(np.log(np.maximum(uniforms, 2.0**-54)), *_gamma(float(alpha)))
    shares = np.exp(logs - logs.max(1, keepdims=True))
    result: Float64 = shares / shares.sum(1, keepdims=True)
    return result


def _check_geometry(policy: Policy) -> None:
    """Check ``interpolation`` and ``fill``; a sequence becomes a tuple, which is hashable."""
    if policy.interpolation not in ("nearest", "bilinear"):
        raise ValueError(f"interpolation={policy.interpolation!r} must be 'nearest' or 'bilinear'")
    fill = policy.fill
    levels = tuple(fill) if isinstance(fill, Sequence) else (fill or 0.0,)
    if len(levels) not in (1, 3) or not all(0 <= level <= 255 for level in levels):
        raise ValueError(f"fill={fill!r} of {type(policy).__name__} must be a level in 0..255, or three")
    if isinstance(fill, Sequence):
        object.__setattr__(policy, "fill", tuple(map(float, levels)))
