"""The tables of the policies: operations by torchvision's and timm's names, their amounts, learned pairs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..sampling.rng import Float64

# The codes of ops.programs.Op, in order; importing that module would load the native library.
_NAMES = (
    "IDENTITY FLIP AFFINE BRIGHTNESS CONTRAST SATURATION HUE SHARPNESS POSTERIZE SOLARIZE AUTOCONTRAST "
    "EQUALIZE INVERT GRAYSCALE BLUR SOLARIZE_ADD"
)
CODES = {name: code for code, name in enumerate(_NAMES.split())}

# Operations by torchvision's and timm's names.
WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")
KINDS = (*WARPS, *FACTORS, "Posterize", "Solarize", "AutoContrast", "Equalize")
RAND, AUTO, TIMM = ("Identity", *KINDS), (*KINDS, "Invert"), (*KINDS, "Invert", "SolarizeAdd")


class Ranges(NamedTuple):
    """The strongest amount of each kind of operation, and the bits that posterisation keeps."""

    shear: float
    translate: float  # a fraction of the side, or pixels
    rotate: float  # degrees
    factor: float  # change of a factor
    most_bits: int  # of the weakest posterisation
    least_bits: int  # of the strongest


STANDARD = Ranges(0.3, 150 / 331, 30.0, 0.9, 8, 4)
WIDE = Ranges(0.99, 32.0, 135.0, 0.99, 8, 2)
MIXED = Ranges(0.3, 1 / 3, 30.0, 0.9, 4, 0)

IntArray = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


@lru_cache(maxsize=32)
def table_of(
    kinds: tuple[str, ...], ranges: Ranges, bins: int, size: tuple[int, int]
) -> tuple[IntArray, Float32]:
    """Return codes [kinds] and values [kinds, 2 signs, bins, 6] for images of (height, width)."""
    rows = []
    for kind in kinds:
        # In torch's float32 as torchvision, so that integers are rounded and cut to the same side.
        if kind == "Posterize":
            step = (bins - 1) / (ranges.most_bits - ranges.least_bits)
            amounts = (ranges.most_bits - torch.arange(bins, device="cpu") / step).round()
        elif kind == "Solarize":
            amounts = torch.linspace(1.0, 0.0, bins, device="cpu")
        else:
            amounts = torch.linspace(0.0, _strongest(kind, ranges, size), bins, device="cpu")
        exact = amounts.double().numpy() * (255 if kind == "Solarize" else 1)
        exact = np.trunc(exact) if kind.startswith("Translate") else exact
        second = -exact if kind in (*WARPS, *FACTORS) else exact
        rows.append([values_of(kind, exact, size), values_of(kind, second, size)])
    return codes_of(kinds), np.array(rows, np.float32)


def _strongest(kind: str, ranges: Ranges, size: tuple[int, int]) -> float:
    height, width = size
    match kind:
        case "ShearX" | "ShearY":
            return ranges.shear
        case "TranslateX" | "TranslateY" if ranges.translate < 1:
            return ranges.translate * (width if kind == "TranslateX" else height)
        case "TranslateX" | "TranslateY":
            return ranges.translate
        case "Rotate":
            return ranges.rotate
        case _:
            return ranges.factor if kind in FACTORS else 0.0


def codes_of(kinds: Sequence[str]) -> IntArray:
    """Return the codes [kinds] of ``run_programs``."""
    names = {**dict.fromkeys(WARPS, "AFFINE"), "Color": "SATURATION", "SolarizeAdd": "SOLARIZE_ADD"}
    return np.array([CODES[names.get(kind, kind.upper())] for kind in kinds], np.int32)


def values_of(kind: str, amounts: Float64, size: tuple[int, int]) -> Float64:
    """Return the values [..., 6] of an operation.

    Args:
        kind: Name of the operation.
        amounts: Tangents, pixels, degrees, factors minus 1, bits, thresholds, or levels to add.
        size: Height and width of the images.
    """
    height, width = size
    values = np.zeros((*amounts.shape, 6))
    if kind in WARPS:  # the inverse map about the centre; shears keep the corner (0, 0)
        values[..., [0, 4]] = 1.0
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
            values[..., 0], values[..., 4] = cosine, cosine
            values[..., 1], values[..., 3] = -sine, sine
        case "SolarizeAdd":
            values[..., 0], values[..., 1] = amounts, 128.0
        case _:
            values[..., 0] = 1.0 + amounts if kind in FACTORS else amounts
    return values


def timm_amount(
    kind: str, level: Float64, signed: Float64, increasing: bool, size: tuple[int, int]
) -> Float64:
    """Return the amounts of timm's operations.

    Args:
        kind: Name of the operation.
        level: 0 to 1, or more with mmax.
        signed: The same with a random sign.
        increasing: All operations become stronger with the level.
        size: (height, width) of the images.
    """
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
        case _ if kind in FACTORS:
            return np.maximum(0.9 * signed, -0.9) if increasing else 1.8 * level - 0.9
        case _:
            return np.zeros_like(level)


PAIRS = {
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
def pairs_of(policy: str) -> tuple[npt.NDArray[np.int64], Float64, npt.NDArray[np.int64]]:
    """Return indices into AUTO, probabilities and magnitudes, each [pairs, 2]."""
    pairs = [[part.split() for part in pair.split(",")] for pair in PAIRS[policy].split(";")]
    kinds = np.array([[AUTO.index(kind) for kind, *_ in pair] for pair in pairs])
    probabilities = np.array([[float(part[1]) for part in pair] for pair in pairs])
    return kinds, probabilities, np.array([[int((*part, "0")[2]) for part in pair] for pair in pairs])
