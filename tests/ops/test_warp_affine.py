"""warp_affine: equal to its reference, to OpenCV and to grid_sample; types and orders; wrong input."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import tarpeg
import torch
from helpers import pictures, reference
from helpers.pictures import ORDERS, TOLERANCE, drawn, noise, shrinking
from hypothesis import given, settings, strategies as st
from tarpeg.ops import matrices as mx


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_equals_the_reference(dtype, order, channels):
    for size, target in (((37, 53), (41, 38)), ((1, 1), (3, 9)), ((2, 300), (20, 520)), ((8, 8), (8, 8))):
        images = noise(3, channels, *size, dtype=dtype).contiguous(memory_format=order)
        matrices = drawn(3, *size)
        fill = [7.0, 99.0, 150.0, 200.0][:channels]
        result = tarpeg.warp_affine(images, matrices, target, fill=fill)
        assert result.dtype == dtype
        assert size == (1, 1) or result.is_contiguous(memory_format=order)  # one pixel is in both orders
        expected = reference.warp_affine(images, matrices, target, fill=fill)
        assert (result.double() - expected).abs().max() <= TOLERANCE[dtype], (size, target)
        result = tarpeg.warp_affine(images, matrices, target, "nearest", 5, True)
        expected = reference.warp_affine(images, matrices, target, "nearest", 5, True)
        # Positions within 1/1000 pixel of a half.
        assert (result.double() != expected).double().mean() < 0.002


@settings(max_examples=60, deadline=None)
@given(
    *(st.integers(1, 40), st.integers(1, 70)),
    *(st.tuples(st.integers(0, 40), st.integers(0, 300)), st.integers(0, 10_000)),
)
def test_any_shape(height, width, size, seed):
    images, matrices = noise(2, 3, height, width, seed=seed), drawn(2, height, width, seed)
    expected = reference.warp_affine(images, matrices, size)
    for order in ORDERS:
        result = tarpeg.warp_affine(images.contiguous(memory_format=order), matrices, size)
        assert result.shape == expected.shape
        assert torch.all((result - expected).abs() <= 0.53)


def test_positions_stay_exact_in_wide_images():
    images = torch.arange(65_536, dtype=torch.float32).expand(1, 1, 2, 65_536).contiguous()
    matrix = mx.translation(0.25, 0)[None]
    result = tarpeg.warp_affine(images, matrix, (1, 65_000))[0, 0, 0, 1:]
    assert (result.double() - (torch.arange(1, 65_000) - 0.25)).abs().max() <= 0.004  # float32 of 65000


@pytest.mark.parametrize("step", [2.3, 19.7, 50.3, 100.7, 301.9])
def test_positions_are_exact_relative_to_the_step(step):
    alternating = (torch.arange(90_000) % 2).float()
    images = alternating.expand(1, 1, 2, -1).contiguous()
    matrix = torch.tensor([[[step, 0, 0.3], [0, 1, 0]]], dtype=torch.float64)
    result = tarpeg.warp_affine(images, matrix, (1, 290), inverse=True)
    expected = reference.warp_affine(images, matrix, (1, 290), inverse=True)
    assert (result - expected).abs().max() <= max(1e-3, step / 20_000)


@pytest.mark.sweep
@pytest.mark.parametrize("order", ORDERS)
def test_images_that_shrink_to_nothing(order):
    """If a span's steps leave the range of int32, its pixels lie outside, as in the reference."""
    image = torch.full((1, 3, 32, 32), 200, dtype=torch.uint8)
    across = mx.scale(math.cos(math.pi / 2), 1.0, (15.5, 15.5))
    point = mx.compose(mx.scale(1e-9), mx.translation(100, 100))
    matrices, size = torch.cat((across[None], point[None], shrinking())), (33, 256)
    images = image.expand(len(matrices), -1, -1, -1).contiguous(memory_format=order)
    for way in ("bilinear", "nearest"):
        covered = reference.warp_affine(images, matrices, size, way) >= 0.5
        for dtype in (torch.uint8, torch.float32):
            result = tarpeg.warp_affine(images.to(dtype), matrices, size, way)
            assert torch.equal(result >= 0.5, covered)
        if way == "bilinear":
            result = tarpeg.augment_batch(images, matrix=matrices, size=size, dtype=torch.uint8)
            assert torch.equal(result >= 0.5, covered)


def test_agrees_with_opencv():
    """On smooth images within 4 levels and 0.2 on average: cv2 rounds positions to 1/32 pixel."""
    image = cv2.GaussianBlur(noise(90, 120, 3).numpy(), (0, 0), 4)
    image = cv2.normalize(image, None, 0, 255, cv2.NORM_MINMAX)
    images = torch.from_numpy(image).permute(2, 0, 1)[None].expand(4, -1, -1, -1).contiguous()
    matrices = drawn(4, 90, 120)
    for inverse, flags in ((False, cv2.INTER_LINEAR), (True, cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)):
        result = tarpeg.warp_affine(images, matrices, (80, 130), fill=30, inverse=inverse)
        for ours, matrix in zip(result.permute(0, 2, 3, 1).numpy(), matrices.numpy(), strict=True):
            theirs = cv2.warpAffine(image, matrix, (130, 80), flags=flags, borderValue=(30,) * 3)
            difference = np.abs(ours.astype(int) - theirs)
            assert difference.max() <= 4 and difference.mean() < 0.2


def test_agrees_with_grid_sample():
    images = noise(4, 3, 31, 47, dtype=torch.float32)
    matrices, size = drawn(4, 31, 47), (29, 61)
    theta = reference.theta(matrices, (31, 47), size).float()
    grid = torch.nn.functional.affine_grid(theta, [4, 3, *size], align_corners=False)
    smooth, nearest = (
        tarpeg.warp_affine(images, matrices, size, way)
        - torch.nn.functional.grid_sample(images, grid, way, "zeros", align_corners=False)
        for way in ("bilinear", "nearest")
    )
    assert smooth.abs().max() < 0.05  # their grid is float32
    assert (nearest != 0).float().mean() < 0.002  # positions half-way


def test_whole_pixels_are_exact_and_borders_are_floored():
    images = noise(1, 3, 9, 13)
    for x, y in ((0, 0), (4, -3), (-20, 2)):
        result = tarpeg.warp_affine(images, mx.translation(x, y)[None], (9, 13), fill=77)
        padded = torch.nn.functional.pad(images, (20, 20, 20, 20), value=77)
        expected = padded[:, :, 20 - y : 29 - y, 20 - x : 33 - x]
        assert torch.equal(result, expected)
    # At -0.5 the result is half fill; truncation would use pixel 0 alone.
    white = torch.full((1, 3, 1, 4), 200, dtype=torch.uint8)
    blended = tarpeg.warp_affine(white, mx.translation(0.5, 0)[None], (1, 6))
    assert blended[0, 0, 0].tolist() == [100, 200, 200, 200, 100, 0]
    nearest = tarpeg.warp_affine(white, mx.translation(0.7, 0)[None], (1, 6), "nearest")
    assert nearest[0, 0, 0].tolist() == [0, 200, 200, 200, 200, 0]


def test_empty_batches_and_targets():
    assert tarpeg.warp_affine(noise(0, 3, 4, 4), torch.zeros(0, 2, 3), 7).shape == (0, 3, 7, 7)
    assert tarpeg.warp_affine(noise(2, 3, 4, 4), mx.identity(2), (0, 7)).shape == (2, 3, 0, 7)
    empty = tarpeg.warp_affine(noise(2, 3, 0, 4), mx.identity(2), 5, fill=9)
    assert empty.shape == (2, 3, 5, 5) and bool((empty == 9).all())


def test_out_is_written_and_returned_and_images_may_be_a_view():
    images, matrices = noise(2, 3, 20, 30), drawn(2, 20, 30)
    expected = tarpeg.warp_affine(images, matrices, (15, 25))
    for order in ORDERS:
        out = torch.full((2, 3, 15, 25), 3, dtype=torch.uint8).contiguous(memory_format=order)
        assert tarpeg.warp_affine(images, matrices, (15, 25), out=out) is out
        assert torch.equal(out, expected)
    view = images[:, :, 3:17, 5:25]  # a crop
    expected = tarpeg.warp_affine(view.contiguous(), matrices, 16)
    assert torch.equal(tarpeg.warp_affine(view, matrices, 16), expected)


IMAGES = noise(1, 3, 4, 4)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"images": noise(3, 4, 4)}, r"images must be uint8, float32.* got torch.uint8 \[3, 4, 4\]"),
        ({"images": IMAGES.long()}, r"images must be .* got torch.int64"),
        ({"images": "cat"}, "images must be .* got str"),
        ({"matrices": mx.identity(2)}, r"matrices must be .*\[1, 2, 3\], got torch.float64 \[2, 2, 3\]"),
        ({"matrices": torch.zeros(1, 2, 3).long()}, r"matrices must be float32 or float64"),
        ({"matrices": torch.zeros(1, 2, 3)}, r"matrices\[0\] must be invertible"),
        ({"matrices": torch.full((1, 2, 3), torch.nan)}, r"matrices\[0\] must be finite, got \[\[nan"),
        ({"matrices": torch.full((1, 2, 3), torch.inf), "inverse": True}, r"matrices\[0\] must be finite"),
        ({"size": (3, -1)}, r"size must be \(height, width\)"),
        ({"size": (3, 4, 5)}, r"size must be \(height, width\)"),
        ({"size": 1 << 29}, r"size must be .* from 0 to 268435456"),
        ({"interpolation": "cubic"}, "interpolation must be 'bilinear' or 'nearest', got 'cubic'"),
        ({"fill": (1, 2)}, "fill must be one finite number, or one for each of 3 channels"),
        ({"fill": float("nan")}, "fill must be one finite number"),
        ({"fill": (0, 1e300, 0)}, r"fill must be .* at most 3.4e38 .* got \(0, 1e\+300, 0\)"),
        ({"out": IMAGES.float()}, r"out must be torch.uint8 \[1, 3, 4, 4\] on cpu, got torch.float32"),
        ({"out": noise(1, 3, 4, 8)[..., ::2]}, "out must be contiguous or channels_last"),
        ({"out": IMAGES}, "out must not share memory with images"),
    ],
)
def test_errors_contain_the_name_of_the_argument(change, text):
    arguments = {"images": IMAGES, "matrices": mx.identity(1), "size": 4, **change}
    with pytest.raises(ValueError, match=text):
        tarpeg.warp_affine(**arguments)


def test_unchecked_matrices_have_a_defined_result():
    """Matrices on a GPU and inside torch.compile reach the operator unchecked: the result is fill."""
    images, matrices = noise(5, 3, 6, 300), mx.identity(5)
    matrices[0], matrices[1, 0, 0], matrices[2] = torch.nan, torch.inf, 0
    matrices[3] = torch.tensor([[1e300, 0, 0], [0, 1e300, 0]], dtype=torch.float64)
    out = torch.zeros(5, 3, 6, 300, dtype=torch.uint8)
    torch.ops.tarpeg.warp_affine(images, matrices, [9.0], False, False, False, out)
    assert bool((out[:3] == 9).all())
    assert torch.equal(out[4], images[4])
    for scale in (1e300, 1e30, 1e9, -1e9):
        matrices[:] = torch.tensor([[scale, 0, 0], [0, scale, 0]], dtype=torch.float64)
        for nearest in (False, True):
            torch.ops.tarpeg.warp_affine(images, matrices, [9.0], nearest, True, False, out)
            assert torch.equal(out[:, :, 0, 0], images[:, :, 0, 0])
            assert bool((out[:, :, 1:, 1:] == 9).all())


def test_operator_checks_memory():
    images, out = noise(2, 3, 8, 8), noise(2, 3, 8, 8)
    good = mx.identity(2)
    for matrices in (good.float(), good[:1], good.transpose(1, 2), good.expand(2, 2, 3)[..., ::2]):
        with pytest.raises(RuntimeError, match="matrices must be"):
            torch.ops.tarpeg.warp_affine(images, matrices, [0.0], False, False, False, out)
    with pytest.raises(RuntimeError, match="out must"):
        torch.ops.tarpeg.warp_affine(images, good, [0.0], False, False, False, noise(2, 3, 8, 16)[..., ::2])
    with pytest.raises(RuntimeError, match="fill must"):
        torch.ops.tarpeg.warp_affine(images, good, [0.0, 1.0], False, False, False, out)


def test_portable_code_gives_the_same_bits():
    pictures.assert_portable_is_equal("""
for order, dtype, way in product(ORDERS, pictures.TOLERANCE, ("bilinear", "nearest")):
    for size in ((33, 47), (5, 600), (2, 2)):
        images = noise(3, 3, *size, dtype=dtype).contiguous(memory_format=order)
        write(tarpeg.warp_affine(images, drawn(3, *size), (40, 530), way, (1, 2, 3)))
    many = noise(len(shrinking()), 3, 32, 40, dtype=dtype).contiguous(memory_format=order)
    write(tarpeg.warp_affine(many, shrinking(), (9, 300), way))
""")


def test_opcheck_and_one_graph():
    matrices = drawn(2, 20, 30)
    for dtype in (torch.uint8, torch.float32):
        images, out = noise(2, 3, 20, 30, dtype=dtype), torch.zeros(2, 3, 16, 16, dtype=dtype)
        arguments = (images, matrices, [1.0], False, False, True, out)
        torch.library.opcheck(torch.ops.tarpeg.warp_affine.default, arguments)
    pictures.assert_one_graph(lambda x, m: tarpeg.warp_affine(x, m, (16, 24), fill=4) / 2, images, matrices)
