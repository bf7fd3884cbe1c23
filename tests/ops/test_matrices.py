"""matrices: effect on points, equality with OpenCV, laws of composition."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from helpers import reference
from hypothesis import given, settings, strategies as st
from tarpeg.ops import matrices as mx

factor, angle, slope = st.floats(0.1, 10), st.floats(-720, 720), st.floats(-60, 60)
pair = st.tuples(st.floats(-50, 50), st.floats(-50, 50))


def moved(matrix: torch.Tensor, *point: float) -> list[float]:
    return mx.apply(matrix, [list(point)])[0].tolist()


def test_effect_on_a_point():
    assert moved(mx.identity(), 3, 4) == [3, 4]
    assert moved(mx.translation(2, -1), 3, 4) == [5, 3]
    assert moved(mx.scale(2), 3, 4) == [6, 8]
    assert moved(mx.scale(2, 3, center=(1, 1)), 3, 4) == [5, 10]
    assert moved(mx.rotation(90), 1, 0) == pytest.approx([0, -1])  # from the right to the top
    assert moved(mx.shear(45), 1, 2) == pytest.approx([3, 2])
    assert moved(mx.shear(0, 45), 1, 2) == pytest.approx([1, 3])


@settings(deadline=None)
@given(angle, factor, pair)
def test_rotation_equals_opencv(degrees, scale, center):
    ours = mx.compose(mx.rotation(degrees, center), mx.scale(scale, center=center))
    expected = cv2.getRotationMatrix2D(center, degrees, scale)
    np.testing.assert_allclose(ours, expected, atol=1e-4)  # float32 centre


@settings(deadline=None)
@given(angle, factor, factor, slope, pair)
def test_the_centre_is_a_fixed_point(degrees, x, y, slant, center):
    for matrix in (mx.rotation(degrees, center), mx.scale(x, y, center), mx.shear(slant, -slant / 2, center)):
        assert moved(matrix, *center) == pytest.approx(center, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(angle, factor, slope, pair, pair)
def test_composition_and_inverse(degrees, scale, slant, move, point):
    parts = (mx.rotation(degrees, move), mx.scale(scale), mx.shear(slant), mx.translation(*move))
    whole, place = mx.compose(*parts), list(point)
    for part in parts:
        place = moved(part, *place)
    assert moved(whole, *point) == pytest.approx(place, abs=1e-7)
    assert moved(reference.inverse(whole), *place) == pytest.approx(point, abs=1e-6)


def test_many_at_once():
    degrees, count = torch.linspace(0, 90, 7), 7
    many = mx.compose(mx.rotation(degrees, (3, 4)), mx.scale(torch.ones(7) * 2, 3), mx.translation(1, 2))
    assert many.shape == (count, 2, 3) and many.dtype == torch.float64
    for index in range(count):
        one = mx.compose(mx.rotation(float(degrees[index]), (3, 4)), mx.scale(2.0, 3.0), mx.translation(1, 2))
        torch.testing.assert_close(many[index], one)
    composed = mx.compose(many, reference.inverse(many))
    torch.testing.assert_close(composed, mx.identity(count), atol=1e-12, rtol=0)
    assert mx.apply(many, torch.rand(7, 3, 2)).shape == (7, 3, 2)
    centers = torch.rand(7, 2).double()
    kept = mx.apply(mx.rotation(30, centers), centers[:, None])[:, 0]
    torch.testing.assert_close(kept, centers)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: mx.compose(torch.zeros(3, 3)), r"matrix must be \[..., 2, 3\], got \[3, 3\]"),
        (lambda: mx.apply(mx.identity(), [1, 2, 3]), r"points must be points \(x, y\)"),
        (lambda: mx.rotation(3, (1, 2, 3)), r"center must be points"),
        (lambda: mx.compose(), "at least one"),
    ],
)
def test_errors_contain_the_name_of_the_argument(call, text):
    with pytest.raises(ValueError, match=text):
        call()
