"""run_programs: every operation equal to torchvision's, programs, mixtures, orders, threads, wrong input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from helpers import pictures
from helpers.pictures import noise
from tarpeg.datasets.synthetic import Photos, photograph
from tarpeg.ops.programs import Op, run_programs
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode, functional
from torchvision.transforms.v2.functional._geometry import _get_inverse_affine_matrix

SIZES = ((1, 1), (3, 5), (2, 40), (37, 53), (223, 225))
FACTORS = (0.0, 0.1, 0.5, 1.0, 1.3, 1.9)
AFFINES = (  # angle, translation, shear, center
    (0.0, (0, 0), (math.degrees(math.atan(0.3)), 0.0), (0, 0)),
    (0.0, (0, 0), (0.0, math.degrees(math.atan(-0.27))), (0, 0)),
    (0.0, (7, 0), (0.0, 0.0), None),
    (30.0, (0, 0), (0.0, 0.0), None),
    (-13.7, (3, 1), (2.0, 4.0), None),
)


def photo(height: int, width: int, seed: int = 0) -> Tensor:
    """uint8 [3, height, width]: a photograph made smaller, or noise and edges."""
    if min(height, width) < 20:
        return torch.from_numpy(pictures.pixels(height, width, seed)).permute(2, 0, 1).contiguous()
    image = pictures.reference.decode(pictures.tensor(photograph(Photos(size=300), seed).jpeg))
    return functional.resize(image, [height, width], antialias=True).contiguous()


def program(*steps: tuple[Op, Sequence[float]]) -> tuple[Tensor, Tensor]:
    """ops and values of one image: [1, 1, n] and [1, 1, n, 6]"""
    values = torch.zeros(1, 1, len(steps), 6)
    for index, (_, numbers) in enumerate(steps):
        values[0, 0, index, : len(numbers)] = torch.tensor(numbers)
    return torch.tensor([[[op for op, _ in steps]]], dtype=torch.int32), values


def single(image: Tensor, op: Op, *numbers: float, **options) -> Tensor:
    return run_programs(image[None], *program((op, numbers)), **options)[0]


def as_float32(number: float) -> float:
    return float(torch.tensor(number, dtype=torch.float32))


def cases(size: tuple[int, int]) -> list[tuple[Op, tuple[float, ...], Callable[[Tensor], Tensor]]]:
    """Operations with values, and torchvision's function of the same."""
    found: list[tuple[Op, tuple[float, ...], Callable[[Tensor], Tensor]]] = [
        (Op.IDENTITY, (), lambda x: x),
        (Op.FLIP, (), functional.horizontal_flip),
        (Op.AUTOCONTRAST, (), functional.autocontrast),
        (Op.EQUALIZE, (), functional.equalize),
        (Op.INVERT, (), functional.invert),
        (Op.GRAYSCALE, (), lambda x: functional.rgb_to_grayscale(x, 3)),
    ]
    for op, function in (
        (Op.BRIGHTNESS, functional.adjust_brightness),
        (Op.CONTRAST, functional.adjust_contrast),
        (Op.SATURATION, functional.adjust_saturation),
        (Op.SHARPNESS, functional.adjust_sharpness),
    ):
        for factor in map(as_float32, FACTORS):
            found.append((op, (factor,), lambda x, f=function, a=factor: f(x, a)))
    for hue in map(as_float32, (-0.5, -0.1, 0.0, 0.05, 0.5)):
        found.append((Op.HUE, (hue,), lambda x, a=hue: functional.adjust_hue(x, a)))
    for bits in range(9):
        found.append((Op.POSTERIZE, (float(bits),), lambda x, a=bits: functional.posterize(x, a)))
    for threshold in (0.0, 0.5, 128.0, 255.0):
        found.append((Op.SOLARIZE, (threshold,), lambda x, a=threshold: functional.solarize(x, a)))
    for sigma, kernel in ((0.1, 3), (0.5, 5), (1.3, 23), (2.0, 23)):
        if kernel // 2 < min(size):
            blurred = [kernel, kernel], [as_float32(sigma)] * 2
            found.append(
                (Op.BLUR, (sigma, float(kernel)), lambda x, a=blurred: functional.gaussian_blur(x, *a))
            )
    return found


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_operation_is_torchvisions(size):
    for seed in range(2):
        image = photo(*size, seed)
        for op, numbers, function in cases(size):
            result, expected = single(image, op, *numbers), function(image)
            if op == Op.BLUR:  # torchvision adds up k * k products in another order
                difference = (result.int() - expected.int()).abs()
                assert difference.max() <= 1 and (difference > 0).float().mean() < 0.001, numbers
            else:
                assert torch.equal(result, expected), (op.name, numbers)


@pytest.mark.parametrize("nearest", [True, False], ids=["nearest", "bilinear"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_affine_is_torchvisions(size, nearest):
    image, way = photo(*size), InterpolationMode.NEAREST if nearest else InterpolationMode.BILINEAR
    for angle, translate, shear, center in AFFINES:
        middle = [0.0, 0.0] if center is None else [-size[1] * 0.5, -size[0] * 0.5]
        matrix = _get_inverse_affine_matrix(middle, angle, list(translate), 1.0, list(shear))
        for fill in (None, 0.0, (10.0, 20.0, 200.5)):
            options = {"interpolation": way, "fill": fill, "center": center}
            expected = functional.affine(image, angle, list(translate), 1.0, list(shear), **options)
            result = single(image, Op.AFFINE, *matrix, nearest=nearest, fill=fill)
            assert torch.equal(result, expected), (angle, translate, shear, fill)


def test_an_empty_batch_and_empty_programs():
    ops, values = torch.zeros(0, 1, 2, dtype=torch.int32), torch.zeros(0, 1, 2, 6)
    assert run_programs(noise(0, 3, 4, 4), ops, values).shape == (0, 3, 4, 4)
    images = noise(2, 3, 5, 4)
    ops, values = torch.zeros(2, 1, 0, dtype=torch.int32), torch.zeros(2, 1, 0, 6)
    assert torch.equal(run_programs(images, ops, values), images)
