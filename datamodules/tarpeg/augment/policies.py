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

from ..sampling.rng import Float64
from .distortions import Range, _between, _set_range, check_probabilities

# The codes of ops.programs.Op, in order; importing that module would load the native library.
_NAMES = (
    "IDENTITY FLIP AFFINE BRIGHTNESS CONTRAST SATURATION HUE SHARPNESS POSTERIZE SOLARIZE AUTOCONTRAST "
    "EQUALIZE INVERT GRAYSCALE BLUR SOLARIZE_ADD"
)
CODES = {name: code for code, name in enumerate(_NAMES.split())}

# Operations by torchvision's and timm's names.
_WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")
_KINDS = (*_WARPS, *_FACTORS, "Posterize", "Solarize", "AutoContrast", "Equalize")
_RAND, _AUTO, _TIMM = ("Identity", *_KINDS), (*_KINDS, "Invert"), (*_KINDS, "Invert", "SolarizeAdd")

# The strongest shear, translation (a fraction of the side, or pixels), rotation and change of a factor, and
# the bits that the weakest and the strongest posterisation keep.
_Ranges = tuple[float, float, float, float, int, int]
_STANDARD: _Ranges = (0.3, 150 / 331, 30.0, 0.9, 8, 4)
_WIDE: _Ranges = (0.99, 32.0, 135.0, 0.99, 8, 2)
_MIXED: _Ranges = (0.3, 1 / 3, 30.0, 0.9, 4, 0)

Interpolation = Literal["nearest", "bilinear"]


class Program(NamedTuple):
    """Arguments of ``run_programs`` for B images, c chains and n operations.

    ``ops``: int32 ``[B, c, n]``. ``values``: float32 ``[B, c, n, 6]``. ``weights``: float32
    ``[B, c + 1]``, or None for one chain whose result is the image.
    """

    ops: Tensor
    values: Tensor
    weights: Tensor | None = None


class Policy:
    """Base class of the policies: ``Augment(policy=...)`` takes one or a list.

    ``interpolation`` and ``fill`` (a level in 0..255, or three) hold for shears, translations and rotations.
    fill None is black; interpolation None: the policy has none of these operations.
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
    from ..ops.programs import run_programs  # loads the native library, which this module must not

    height, width = images.shape[-2:]
    for number, policy in enumerate(policies):
        program = policy.program(draw(number, policy.draws), (height, width))
        images = run_programs(images, *program, nearest=policy.interpolation != "bilinear", fill=policy.fill)
    return images


@dataclass(frozen=True)
class RandAugment(Policy):
    """``num_ops`` random operations of one magnitude per image: torchvision's RandAugment.

    ``magnitude``: 0 to ``num_magnitude_bins`` - 1, where the last is the strongest.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        _check_int(self, "num_ops", 1, 64)
        _check_int(self, "num_magnitude_bins", 2, 1 << 16)
        _check_int(self, "magnitude", 0, self.num_magnitude_bins - 1, "num_magnitude_bins - 1")
        _check_geometry(self)

    @property
    def draws(self) -> int:
        """Two draws per operation: which, and its sign."""
        return 2 * self.num_ops

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of one chain of ``num_ops`` operations, from draws [B, 2 num_ops]."""
        codes, values = _table(_RAND, _STANDARD, self.num_magnitude_bins, size)
        which, sign = np.moveaxis(uniforms.reshape(-1, 1, self.num_ops, 2), -1, 0)
        index = _index(which, len(codes))
        return _program(codes[index], values[index, _index(sign, 2), self.magnitude])


@dataclass(frozen=True)
class TrivialAugmentWide(Policy):
    """One random operation of random magnitude per image: torchvision's TrivialAugmentWide."""

    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: float | Sequence[float] | None = None

    draws: ClassVar[int] = 3

    def __post_init__(self) -> None:
        _check_int(self, "num_magnitude_bins", 2, 1 << 16)
        _check_geometry(self)

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of one operation, from draws [B, 3]: which, magnitude and sign."""
        codes, values = _table(_RAND, _WIDE, self.num_magnitude_bins, size)
        which, magnitude, sign = uniforms.T[:, :, None, None]
        index = _index(which, len(codes))
        chosen = values[index, _index(sign, 2), _index(magnitude, self.num_magnitude_bins)]
        return _program(codes[index], chosen)


@dataclass(frozen=True)
class AutoAugment(Policy):
    """One of 25 pairs of operations per image, each with its own probability: torchvision's AutoAugment.

    ``policy``: "imagenet", "cifar10" or "svhn", the data set on which the pairs were learned.
    """

    policy: str = "imagenet"
    interpolation: Interpolation = "nearest"
    fill: float | Sequence[float] | None = None

    draws: ClassVar[int] = 5

    def __post_init__(self) -> None:
        if self.policy not in _PAIRS:
            raise ValueError(f"policy={self.policy!r} must be one of {', '.join(map(repr, _PAIRS))}")
        _check_geometry(self)

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of two operations, from draws [B, 5]: the pair, and for each whether, and its sign."""
        kinds, probabilities, magnitudes = _pairs(self.policy)
        codes, values = _table(_AUTO, _STANDARD, 10, size)
        pair = _index(uniforms[:, 0], len(kinds))
        whether, sign = uniforms[:, 1:].reshape(-1, 2, 2).transpose(2, 0, 1)
        ops = np.where(whether < probabilities[pair], codes[kinds[pair]], CODES["IDENTITY"])
        return _program(ops[:, None], values[kinds[pair], _index(sign, 2), magnitudes[pair]][:, None])


@dataclass(frozen=True)
class AugMix(Policy):
    """The image mixed with several chains of random operations: torchvision's AugMix.

    ``severity``: 1 to 10. ``mixture_width``: number of chains. ``chain_depth``: operations per chain, -1 for
    a random 1 to 3. ``alpha``: of the Dirichlet distributions of the shares. ``all_ops``: also brightness,
    color, contrast and sharpness.
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
        _check_int(self, "severity", 1, 10)
        _check_int(self, "mixture_width", 1, 64)
        if self.chain_depth != -1:
            _check_int(self, "chain_depth", 1, 64, "64, or -1 for a random 1 to 3")
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
        kinds = tuple(kind for kind in _KINDS if self.all_ops or kind not in _FACTORS)
        codes, values = _table(kinds, _MIXED, 10, size)
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

    ``config``: "rand", then in any order m (magnitude, 0 to 10), n (operations, 2), p (probability of each,
    0.5), mstd (standard deviation of the magnitude; above 100: uniform in 0..m), mmax (its upper bound, 10)
    and inc1 (all operations become stronger with the magnitude). ``fill``: ImageNet's mean, as in timm.

    Different from timm, which runs Pillow: interpolation is always bilinear (timm: bilinear or bicubic, at
    random), and colours may differ by one level.
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
        index = _index(which, len(_TIMM))
        values = np.zeros((*index.shape, 6))
        signed = np.where(sign < 0.5, level, -level)
        for number, kind in enumerate(_TIMM):
            chosen = index == number
            amount = _timm_amount(kind, level[chosen], signed[chosen], bool(settings["inc"]), size)
            values[chosen] = _values(kind, amount, size)
        codes = _codes(_TIMM)
        return _program(np.where(whether < settings["p"], codes[index], CODES["IDENTITY"]), values)


@dataclass(frozen=True)
class ThreeAugment(Policy):
    """One of grayscale, solarise and Gaussian blur per image: 3-Augment of DeiT III, timm's "3a".

    Solarised from level 128 on; blurred with sigma 0.1 to 2. Its colour jitter of 0.3 is a ``ColorJitter``.
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
    """Change brightness, contrast, saturation and hue in random order: torchvision's ColorJitter.

    The first three are ranges of factors, 1 changes nothing; n means max(0, 1 - n)..1 + n. ``hue``: a range
    in turns of the colour circle, within -0.5..0.5; n means -n..n. ``probability``: of applying it.
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
        count, codes = len(uniforms), np.zeros(4, np.int32)
        amounts = np.zeros((count, 4, 6))
        for column, name in enumerate(("brightness", "contrast", "saturation", "hue")):
            bounds, neutral = getattr(self, name), 0.0 if name == "hue" else 1.0
            if bounds != (neutral, neutral):
                codes[column] = CODES[name.upper()]
                amounts[:, column, 0] = _between(bounds, uniforms[:, 4 + column])
        order = uniforms[:, :4].argsort(1)
        ops = np.where(uniforms[:, 8:] < self.probability, codes[order], CODES["IDENTITY"])
        return _program(ops[:, None], np.take_along_axis(amounts, order[..., None], 1)[:, None])


@dataclass(frozen=True)
class GaussianBlur(Policy):
    """Blur with a Gaussian kernel: torchvision's GaussianBlur.

    ``kernel_size``: odd, in pixels. ``sigma``: a range, in pixels; n means n. ``probability``: of blurring an
    image.
    """

    kernel_size: int = 23
    sigma: Range = (0.1, 2.0)
    probability: float = 1.0

    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_probabilities(self, "probability")
        _check_int(self, "kernel_size", 1, 255)
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
    """Invert all values from ``threshold`` on, a level of 0 to 256: torchvision's RandomSolarize."""

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
    """Turn to gray, in three equal channels: torchvision's RandomGrayscale."""

    probability: float = 1.0

    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_probabilities(self, "probability")

    def program(self, uniforms: Float64, size: tuple[int, int]) -> Program:
        """Programs of one operation, from draws [B, 1]."""
        return applied("GRAYSCALE", uniforms[:, 0] < self.probability)


_IntArray = npt.NDArray[np.int32]
_Float32 = npt.NDArray[np.float32]


@lru_cache(maxsize=32)
def _table(
    kinds: tuple[str, ...], ranges: _Ranges, bins: int, size: tuple[int, int]
) -> tuple[_IntArray, _Float32]:
    """Return codes [kinds] and values [kinds, 2 signs, bins, 6] for images of (height, width)."""
    shear, translate, rotate, factor, first, last = ranges
    rows = []
    for kind in kinds:
        side = size[kind != "TranslateY"]
        most = {"S": shear, "T": translate * (side if translate < 1 else 1), "R": rotate}
        # In torch's float32 as torchvision, so that integers are rounded and cut to the same side.
        if kind == "Posterize":
            amounts = (first - torch.arange(bins, device="cpu") / ((bins - 1) / (first - last))).round()
        elif kind == "Solarize":
            amounts = torch.linspace(1.0, 0.0, bins, device="cpu")
        else:
            high = most[kind[0]] if kind in _WARPS else factor * (kind in _FACTORS)
            amounts = torch.linspace(0.0, high, bins, device="cpu")
        exact = amounts.double().numpy() * (255 if kind == "Solarize" else 1)
        exact = np.trunc(exact) if kind.startswith("Translate") else exact
        second = -exact if kind in (*_WARPS, *_FACTORS) else exact
        rows.append([_values(kind, exact, size), _values(kind, second, size)])
    return _codes(kinds), np.array(rows, np.float32)


def _codes(kinds: Sequence[str]) -> _IntArray:
    names = {**dict.fromkeys(_WARPS, "AFFINE"), "Color": "SATURATION", "SolarizeAdd": "SOLARIZE_ADD"}
    return np.array([CODES[names.get(kind, kind.upper())] for kind in kinds], np.int32)


def _values(kind: str, amounts: Float64, size: tuple[int, int]) -> Float64:
    """Return the values [..., 6] of an operation.

    amounts: tangents, pixels, degrees, factors minus 1, bits, thresholds, or levels to add.
    """
    height, width = size
    values = np.zeros((*amounts.shape, 6))
    if kind in _WARPS:  # the inverse map about the centre; shears keep the corner (0, 0)
        values[..., 0] = values[..., 4] = 1.0
    match kind:
        case "ShearX":
            values[..., 1], values[..., 2] = amounts, amounts * height / 2
        case "ShearY":
            values[..., 3], values[..., 5] = amounts, amounts * width / 2
        case "TranslateX":
            values[..., 2] = -amounts
        case "TranslateY":
            values[..., 5] = -amounts
        case "Rotate":
            cosine, sine = np.cos(np.radians(amounts)), np.sin(np.radians(amounts))
            values[..., 0] = values[..., 4] = cosine
            values[..., 1], values[..., 3] = -sine, sine
        case "SolarizeAdd":
            values[..., 0], values[..., 1] = amounts, 128.0
        case _:
            values[..., 0] = 1.0 + amounts if kind in _FACTORS else amounts
    return values


def _timm_amount(
    kind: str, level: Float64, signed: Float64, increasing: bool, size: tuple[int, int]
) -> Float64:
    """Return the amounts of timm's operations; level: 0..1, or more with mmax; signed: with a random sign."""
    match kind:
        case "ShearX" | "ShearY":
            return 0.3 * signed
        case "TranslateX" | "TranslateY":
            return 0.45 * size[kind == "TranslateX"] * signed
        case "Rotate":
            return 30.0 * signed
        case "Posterize":
            dropped = np.trunc(4 * level)
            return np.maximum(4 - dropped, 0) if increasing else dropped
        case "Solarize":
            threshold = np.minimum(np.trunc(256 * level), 256)
            return 256 - threshold if increasing else threshold
        case "SolarizeAdd":
            return np.minimum(np.trunc(110 * level), 128)
        case _ if kind in _FACTORS:
            return np.maximum(0.9 * signed, -0.9) if increasing else 1.8 * level - 0.9
        case _:
            return np.zeros_like(level)


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


def _check_int(owner: object, name: str, low: int, high: int, bound: str = "") -> None:
    value = getattr(owner, name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        where = f"{low}..{high}" + (f" ({bound})" if bound else "")
        raise ValueError(f"{name}={value!r} of {type(owner).__name__} must be an integer in {where}")


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


_PAIRS = {
    "imagenet": """
        Posterize .4 8, Rotate .6 9; Solarize .6 5, AutoContrast .6; Equalize .8, Equalize .6;
        Posterize .6 7, Posterize .6 6; Equalize .4, Solarize .2 4; Equalize .4, Rotate .8 8;
        Solarize .6 3, Equalize .6; Posterize .8 5, Equalize 1; Rotate .2 3, Solarize .6 8;
        Equalize .6, Posterize .4 6; Rotate .8 8, Color .4 0; Rotate .4 9, Equalize .6;
        Equalize 0, Equalize .8; Invert .6, Equalize 1; Color .6 4, Contrast 1 8;
        Rotate .8 8, Color 1 2; Color .8 8, Solarize .8 7; Sharpness .4 7, Invert .6;
        ShearX .6 5, Equalize 1; Color .4 0, Equalize .6; Equalize .4, Solarize .2 4;
        Solarize .6 5, AutoContrast .6; Invert .6, Equalize 1; Color .6 4, Contrast 1 8;
        Equalize .8, Equalize .6""",
    "cifar10": """
        Invert .1, Contrast .2 6; Rotate .7 2, TranslateX .3 9; Sharpness .8 1, Sharpness .9 3;
        ShearY .5 8, TranslateY .7 9; AutoContrast .5, Equalize .9; ShearY .2 7, Posterize .3 7;
        Color .4 3, Brightness .6 7; Sharpness .3 9, Brightness .7 9; Equalize .6, Equalize .5;
        Contrast .6 7, Sharpness .6 5; Color .7 7, TranslateX .5 8; Equalize .3, AutoContrast .4;
        TranslateY .4 3, Sharpness .2 6; Brightness .9 6, Color .2 8; Solarize .5 2, Invert 0;
        Equalize .2, AutoContrast .6; Equalize .2, Equalize .6; Color .9 9, Equalize .6;
        AutoContrast .8, Solarize .2 8; Brightness .1 3, Color .7 0; Solarize .4 5, AutoContrast .9;
        TranslateY .9 9, TranslateY .7 9; AutoContrast .9, Solarize .8 3; Equalize .8, Invert .1;
        TranslateY .7 9, AutoContrast .9""",
    "svhn": """
        ShearX .9 4, Invert .2; ShearY .9 8, Invert .7; Equalize .6, Solarize .6 6;
        Invert .9, Equalize .6; Equalize .6, Rotate .9 3; ShearX .9 4, AutoContrast .8;
        ShearY .9 8, Invert .4; ShearY .9 5, Solarize .2 6; Invert .9, AutoContrast .8;
        Equalize .6, Rotate .9 3; ShearX .9 4, Solarize .3 3; ShearY .8 8, Invert .7;
        Equalize .9, TranslateY .6 6; Invert .9, Equalize .6; Contrast .3 3, Rotate .8 4;
        Invert .8, TranslateY 0 2; ShearY .7 6, Solarize .4 8; Invert .6, Rotate .8 4;
        ShearY .3 7, TranslateX .9 3; ShearX .1 6, Invert .6; Solarize .7 2, TranslateY .6 7;
        ShearY .8 4, Invert .8; ShearX .7 9, TranslateY .8 3; ShearY .8 5, AutoContrast .7;
        ShearX .7 2, Invert .1""",
}


@lru_cache
def _pairs(policy: str) -> tuple[npt.NDArray[np.int64], Float64, npt.NDArray[np.int64]]:
    """Return indices into _AUTO, probabilities and magnitudes, each [pairs, 2]."""
    pairs = [[part.split() for part in pair.split(",")] for pair in _PAIRS[policy].split(";")]
    kinds = np.array([[_AUTO.index(kind) for kind, *_ in pair] for pair in pairs])
    probabilities = np.array([[float(part[1]) for part in pair] for pair in pairs])
    return kinds, probabilities, np.array([[int((*part, "0")[2]) for part in pair] for pair in pairs])
