"""run_programs: every operation equal to torchvision's, programs, mixtures, orders, threads, wrong input."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import tarpeg
import torch
from helpers import pictures, reference
from helpers.pictures import ORDERS, noise, programs
from tarpeg.datasets.synthetic import Photos, photograph
from tarpeg.ops.programs import Op, run_programs
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode, functional
from torchvision.transforms.v2.functional._geometry import _affine_grid, _get_inverse_affine_matrix

SIZES = ((1, 1), (3, 5), (2, 40), (37, 53), (223, 225))
FACTORS = (0.0, 0.1, 0.5, 1.0, 1.3, 1.9, 20.0)
CASES: list[tuple[Op, tuple[float, ...]]] = [
    *((op, ()) for op in (Op.IDENTITY, Op.FLIP, Op.AUTOCONTRAST, Op.EQUALIZE, Op.INVERT, Op.GRAYSCALE)),
    *itertools.product(
        (Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.SHARPNESS), ((factor,) for factor in FACTORS)
    ),
    *((Op.HUE, (hue,)) for hue in (-0.5, -0.1, 0.0, 0.05, 0.5)),
    *((Op.POSTERIZE, (float(bits),)) for bits in range(9)),
    *((Op.SOLARIZE, (threshold,)) for threshold in (0.0, 0.5, 128.0, 255.0, 256.0)),
    *((Op.SOLARIZE_ADD, numbers) for numbers in ((110.0, 128.0), (-30.0, 256.0), (7.0, 0.0))),
    *((Op.BLUR, numbers) for numbers in ((0.1, 3.0), (0.5, 5.0), (1.3, 23.0), (2.0, 23.0), (9.0, 1.0))),
]
AFFINES = (  # angle, translation, shear, center
    (0.0, (0, 0), (math.degrees(math.atan(0.3)), 0.0), (0, 0)),
    (0.0, (0, 0), (0.0, math.degrees(math.atan(-0.27))), (0, 0)),
    (0.0, (7, 0), (0.0, 0.0), None),
    (30.0, (0, 0), (0.0, 0.0), None),
    (-13.7, (3, 1), (2.0, 4.0), None),
    (90.0, (0, 0), (0.0, 0.0), None),
)


@functools.cache
def photo(height: int, width: int, seed: int = 0) -> Tensor:
    """uint8 [3, height, width]: a photograph made smaller, or noise and edges."""
    if min(height, width) < 20:
        return torch.from_numpy(pictures.pixels(height, width, seed)).permute(2, 0, 1).contiguous()
    image = reference.decode(pictures.tensor(photograph(Photos(size=300), seed).jpeg))
    return functional.resize(image, [height, width], antialias=True).contiguous()


@functools.cache
def rounds_as_torch() -> bool:
    """Whether torch computes on this processor what the operator repeats; elsewhere its own rounding differs.

    It fuses multiplications with additions where vectors can, but not in the matrix product of a grid.
    """
    matrix = torch.tensor([[[0.891, -0.454, 1.7], [0.454, 0.891, -3.1]]])
    grid = _affine_grid(matrix.clone(), 53, 37, 53, 37)[0].numpy()
    x, y = (np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2) for side in (53, 37))
    a, b, c = matrix[0, 0].numpy() / np.float32(26.5)
    return bool((grid[..., 0] == x * a + y[:, None] * b + c).all()) and (
        torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    )


def program(*steps: tuple[int, Sequence[float]]) -> tuple[Tensor, Tensor]:
    """ops and values of one image: [1, 1, n] and [1, 1, n, 6]"""
    values = torch.zeros(1, 1, len(steps), 6)
    for index, (_, numbers) in enumerate(steps):
        values[0, 0, index, : len(numbers)] = torch.tensor(numbers)
    return torch.tensor([[[op for op, _ in steps]]], dtype=torch.int32), values


def check_levels(result: Tensor, expected: Tensor, is_blurred: bool) -> None:
    """Equal; after a blur within one level, because torchvision adds up k * k products in another order."""
    difference = (result.int() - expected.int()).abs()
    if is_blurred or rounds_as_torch():
        assert difference.max() <= is_blurred and (difference > 0).float().mean() <= 0.001 * is_blurred
    assert difference.max() <= 1


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_operation_is_torchvisions(size):
    for seed in range(2 if size[0] < 200 else 1):
        image = photo(*size, seed)
        for op, numbers in CASES:
            if op == Op.BLUR and numbers[1] // 2 >= min(size):
                continue  # torchvision refuses it
            ops, values = program((op, numbers))
            expected = reference.operation(image, op, values.flatten().tolist())
            check_levels(run_programs(image[None], ops, values)[0], expected, op == Op.BLUR)


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
            result = run_programs(image[None], *program((Op.AFFINE, matrix)), nearest=nearest, fill=fill)[0]
            differing = (result != expected).float().mean()
            assert differing <= (0 if rounds_as_torch() else 0.01), (angle, translate, shear, fill)


def test_images_of_few_levels():
    """A constant image, two levels, one channel that is constant: no division by zero, as in torchvision."""
    flat = torch.full((3, 30, 40), 77, dtype=torch.uint8)
    two = torch.where(noise(3, 30, 40) < 128, 10, 200).to(torch.uint8)
    gray = noise(1, 30, 40).expand(3, 30, 40)
    for image in (flat, two, gray.contiguous(), torch.stack((flat[0], two[0], noise(30, 40)))):
        for op, numbers in CASES:
            ops, values = program((op, numbers))
            if op == Op.BLUR and numbers[1] > 5:
                continue
            expected = reference.operation(image, op, values.flatten().tolist())
            check_levels(run_programs(image[None], ops, values)[0], expected, op == Op.BLUR)


@pytest.mark.parametrize("nearest", [True, False], ids=["nearest", "bilinear"])
def test_programs_are_the_operations_in_order(nearest):
    """Random programs: operations that become one table, tables before and after others, and mixtures."""
    if not rounds_as_torch():
        pytest.skip("torch rounds differently here, and operations such as equalize enlarge the difference")
    images = torch.stack([photo(41, 50, seed % 4) for seed in range(12)])
    for length in range(1, 5):
        ops, values, _ = programs(12, 1, length, seed=length, without=[Op.BLUR])
        expected = reference.run_programs(images, ops, values, nearest=nearest, fill=(5, 60, 200))
        assert torch.equal(run_programs(images, ops, values, nearest=nearest, fill=(5, 60, 200)), expected)
    ops, values, weights = programs(12, 3, 3, seed=9, without=[Op.BLUR])
    expected = reference.run_programs(images, ops, values, weights, nearest=nearest)
    assert torch.equal(run_programs(images, ops, values, weights, nearest=nearest), expected)


def test_colour_jitter_in_any_order():
    image = photo(50, 60)
    steps = [(Op.BRIGHTNESS, [1.2]), (Op.CONTRAST, [0.7]), (Op.SATURATION, [1.4]), (Op.HUE, [0.07])]
    for order in itertools.permutations(steps):
        ops, values = program(*order)
        expected = reference.run_programs(image[None], ops, values)
        assert torch.equal(run_programs(image[None], ops, values), expected), order


def test_memory_orders_out_threads_and_views():
    images = torch.stack([photo(37, 41, seed % 4) for seed in range(9)])
    for chains, mixed in ((1, False), (1, True), (3, True)):
        ops, values, weights = programs(9, chains, 3, seed=chains)
        given = (ops, values, weights if mixed else None)
        expected = run_programs(images, *given, threads=1)
        for order, out_order in itertools.product(ORDERS, ORDERS):
            arranged = images.contiguous(memory_format=order)
            result = run_programs(arranged, *given, threads=3)
            assert torch.equal(result, expected) and result.is_contiguous(memory_format=order)
            out = torch.full_like(images, 3).contiguous(memory_format=out_order)
            assert run_programs(arranged, *given, out=out) is out
            assert torch.equal(out, expected)
            assert torch.equal(arranged, images), "images are not changed"
        wide = torch.zeros(9, 3, 50, 60, dtype=torch.uint8)
        wide[:, :, 5:42, 10:51] = images
        assert torch.equal(run_programs(wide[:, :, 5:42, 10:51], *given), expected)
        assert torch.equal(run_programs(images, ops[...], values.double().float(), given[2]), expected)


def test_a_kernel_larger_than_the_image_reflects_repeatedly():
    image = torch.tensor([[10, 200]], dtype=torch.uint8).expand(3, 1, 2).contiguous()
    result = run_programs(image[None], *program((Op.BLUR, (2.0, 9.0))))
    at = torch.arange(-4, 5)
    weights = torch.exp(-(at.double() ** 2) / 8)
    is_even = at % 2 == 0
    share = float(weights[is_even].sum() / weights.sum())
    assert result[0, 0, 0].tolist() == [
        round(10 * share + 200 * (1 - share)),
        round(200 * share + 10 * (1 - share)),
    ]


def test_an_empty_batch_and_empty_programs():
    ops, values = torch.zeros(0, 1, 2, dtype=torch.int32), torch.zeros(0, 1, 2, 6)
    assert run_programs(noise(0, 3, 4, 4), ops, values).shape == (0, 3, 4, 4)
    images = noise(2, 3, 5, 4)
    ops, values = torch.zeros(2, 1, 0, dtype=torch.int32), torch.zeros(2, 1, 0, 6)
    assert torch.equal(run_programs(images, ops, values), images)
    assert run_programs(images[:, :, :0], ops, values).shape == (2, 3, 0, 4)


IMAGES = noise(1, 3, 4, 4)
OPS, VALUES = program((Op.INVERT, ()), (Op.BRIGHTNESS, (1.0,)))


def change(op: int, *numbers: float) -> dict[str, Tensor]:
    return dict(zip(("ops", "values"), program((Op.IDENTITY, ()), (op, numbers)), strict=True))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"images": IMAGES.float()}, r"images must be uint8 .* got torch.float32"),
        ({"images": noise(1, 1, 4, 4)}, r"images must be RGB, .* got \[1, 1, 4, 4\]"),
        ({"ops": OPS.long()}, r"ops must be int32 \[1, c, n\] .* got torch.int64 \[1, 1, 2\]"),
        ({"ops": OPS[:, 0]}, r"ops must be int32 .* got torch.int32 \[1, 2\]"),
        ({"values": VALUES.double()}, r"values must be float32 \[1, 1, 2, 6\], got torch.float64"),
        ({"values": VALUES[:, :, :1]}, r"values must be float32 .* got torch.float32 \[1, 1, 1, 6\]"),
        (
            {"ops": OPS.repeat(1, 2, 1), "values": VALUES.repeat(1, 2, 1, 1)},
            r"ops must have one chain if weights is None, \[1, 1, n\], got torch.int32 \[1, 2, 2\]",
        ),
        ({"weights": torch.ones(1, 3)}, r"weights must be float32 \[1, 2\], got torch.float32 \[1, 3\]"),
        (
            {"weights": torch.tensor([[1.0, -1.0]])},
            r"weights\[0\] must be finite and at least 0, got \[1.0, -1",
        ),
        (change(16), r"ops\[0, 0, 1\] must be a code of Op, 0 to 15, got 16"),
        (change(-1), r"ops\[0, 0, 1\] must be a code of Op, 0 to 15, got -1"),
        (change(Op.BRIGHTNESS, -0.5), r"values\[0, 0, 1, 0\] of BRIGHTNESS must be .* at least 0, got -0.5"),
        (change(Op.CONTRAST, math.inf), r"values\[0, 0, 1, 0\] of CONTRAST must be finite and .* got inf"),
        (change(Op.HUE, 0.6), r"values\[0, 0, 1, 0\] of HUE must be from -0.5 to 0.5, got 0.6"),
        (change(Op.POSTERIZE, 9), r"values\[0, 0, 1, 0\] of POSTERIZE must be from 0 to 8, whole, got 9"),
        (change(Op.POSTERIZE, 2.5), r"of POSTERIZE must be from 0 to 8, whole, got 2.5"),
        (change(Op.SOLARIZE, 257), r"of SOLARIZE must be from 0 to 256, got 257"),
        (change(Op.BLUR, 0.0, 3), r"values\[0, 0, 1, 0\] of BLUR must be finite and above 0, got 0"),
        (change(Op.BLUR, 1.0, 4), r"values\[0, 0, 1, 1\] of BLUR must be from 1 to 255, odd, got 4"),
        (
            change(Op.AFFINE, 1, 0, 0, 0, 1, math.nan),
            r"values\[0, 0, 1, 5\] of AFFINE must be finite, got nan",
        ),
        ({"fill": 256}, "fill must be a level of 0 to 255, three of them or None, got 256"),
        ({"fill": (1, 2)}, r"fill must be .* got \(1, 2\)"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"out": IMAGES.float()}, r"out must be torch.uint8 \[1, 3, 4, 4\] on cpu, got torch.float32"),
        ({"out": IMAGES}, "out must not share memory with images"),
    ],
)
def test_errors_contain_argument_index_and_value(change, text):
    arguments = {"images": IMAGES, "ops": OPS, "values": VALUES, **change}
    with pytest.raises(ValueError, match=text):
        tarpeg.run_programs(**arguments)


def test_the_operator_checks_memory():
    images, out = noise(2, 3, 8, 8), noise(2, 3, 8, 8)
    ops, values, weights = programs(2, 2, 3)
    good = {"images": images, "ops": ops, "values": values, "weights": weights, "out": out}
    good |= {"nearest": True, "border": [], "fresh": False, "threads": 1}
    good |= {"numbers": None, "parts": 0, "boxes": None, "mask": None, "constants": []}
    torch.ops.tarpeg.run_batch(**good)
    for change, text in (
        ({"ops": ops.long()}, "ops must be a contiguous int32"),
        ({"ops": ops.transpose(1, 2)}, "ops must be a contiguous int32"),
        ({"values": values[:, :, :1]}, "values must be a contiguous float32"),
        ({"weights": None}, "ops must be of one chain"),
        ({"weights": weights[:, :1]}, "weights must be a contiguous float32"),
        ({"border": [1.0]}, "border must be no or three"),
        ({"images": images[:, :1].contiguous()}, "must have the same number of images, with 3 channels"),
        ({"ops": None}, "ops or numbers must be given"),
        ({"out": out.float()}, "images and out must be uint8 tensors of the same shape"),
        ({"out": out[:, :, :4]}, "must"),
        ({"out": images}, "out must not share memory"),
    ):
        with pytest.raises(RuntimeError, match=text):
            torch.ops.tarpeg.run_batch(**(good | change))


WILD = """
run_batch, no_pass = torch.ops.tarpeg.run_batch, (None, 0, None, None, [])
ops = torch.arange(-2, 18, dtype=torch.int32).reshape(20, 1, 1)
for number in (float("nan"), float("inf"), -float("inf"), 1e30, -1e30, -5.0, 1e-30, 300.5):
    for second in (number, 3.0):
        values = torch.full((20, 1, 1, 6), second)
        values[..., 0] = number
        for nearest, fill in product((True, False), ([], [9.0, 8.0, 7.0])):
            images, out = noise(20, 3, 9, 40), torch.zeros(20, 3, 9, 40, dtype=torch.uint8)
            run_batch(images, ops, values, None, nearest, fill, *no_pass, False, out, 1)
            assert torch.equal(out[[0, 1, -2, -1]], images[[0, 1, -2, -1]]), "unknown codes change nothing"
            write(out)
"""


def test_portable_code_gives_the_same_bits_and_unchecked_values_are_defined():
    pictures.assert_portable_is_equal(
        """
for order, nearest, size in product(ORDERS, (True, False), ((1, 1), (3, 5), (33, 47), (5, 300))):
    images = noise(16, 3, *size).contiguous(memory_format=order)
    for seed, fill in enumerate((None, (1, 60, 200))):
        ops, values, weights = programs(16, 2, 3, seed)
        write(tarpeg.run_programs(images, ops, values, weights, nearest=nearest, fill=fill))
    ops, values, _ = programs(16, 1, 1)
    write(tarpeg.run_programs(images, ops, values, nearest=nearest))
"""
        + WILD
    )


def test_opcheck_and_one_graph():
    images, (ops, values, weights) = noise(2, 3, 20, 30), programs(2, 2, 3)
    given, out = (images, ops, values, weights, True, [1.0, 2.0, 3.0]), torch.zeros_like(images)
    arguments = (*given, None, 0, None, None, [], True, out, 1)
    torch.library.opcheck(torch.ops.tarpeg.run_batch.default, arguments)
    pictures.assert_one_graph(
        lambda *given: tarpeg.run_programs(*given, fill=4) / 2, images, ops, values, weights
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chains", [1, 2])
def test_programs_and_augment_batch_in_one_call_give_the_bytes_of_two(order, chains):
    """Colours go on with the program, and the final pass reads what it wrote; in every type."""
    images = noise(16, 3, 33, 47).contiguous(memory_format=order)
    ops, values, weights = programs(16, chains, 3)
    program = {"ops": ops, "values": values, "weights": weights if chains > 1 else None, "fill": 7}
    whole = pictures.parts(16, 33, 47)
    for names, dtype in itertools.product(((), ("flip",), ("matrix", "contrast"), whole), pictures.TOLERANCE):
        given = {name: whole[name] for name in names} | {"dtype": dtype, "fill": (9, 8, 7)}
        levels = tarpeg.run_programs(images, **program)
        expected = tarpeg.augment_batch(levels, **given)
        assert torch.equal(tarpeg.augment_batch(images, programs=program, **given), expected), (names, dtype)
    small = tarpeg.augment_batch(images, programs=program, size=(20, 9), matrix=whole["matrix"])
    assert torch.equal(small, tarpeg.augment_batch(levels, size=(20, 9), matrix=whole["matrix"]))
    with pytest.raises(ValueError, match=r"images must be RGB, \[B, 3, H, W\]"):
        tarpeg.augment_batch(images[:, :1], programs=program)
