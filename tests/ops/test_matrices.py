"""matrices: what each does to points, against OpenCV where it has the same, and the laws of composition."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from helpers import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from tarpeg.ops import matrices as mx

number = st.floats(-50, 50)
factor = st.floats(0.1, 10)
angle = st.floats(-720, 720)
pair = st.tuples(number, number)


def moved(matrix: torch.Tensor, *point: float) -> list[float]:
    return mx.apply(matrix, [list(point)])[0].tolist()


def test_what_each_does_to_a_point():
    assert moved(mx.identity(), 3, 4) == [3, 4]
    assert moved(mx.translation(2, -1), 3, 4) == [5, 3]
    assert moved(mx.scale(2), 3, 4) == [6, 8]
    assert moved(mx.scale(2, 3, center=(1, 1)), 3, 4) == [5, 10]
    assert moved(mx.rotation(90), 1, 0) == pytest.approx([0, -1])  # from the right to the top
    assert moved(mx.shear(45), 1, 2) == pytest.approx([3, 2])
    assert moved(mx.shear(0, 45), 1, 2) == pytest.approx([1, 3])


@settings(deadline=None)
@given(angle, factor, pair)
def test_rotation_is_that_of_opencv(degrees, scale, center):
    ours = mx.compose(mx.rotation(degrees, center), mx.scale(scale, center=center))
    np.testing.assert_allclose(
        ours, cv2.getRotationMatrix2D(center, degrees, scale), atol=1e-4
    )  # float32 centre


@settings(deadline=None)
@given(angle, factor, factor, st.floats(-60, 60), pair)
def test_a_centre_stays_where_it_is(degrees, x, y, slant, center):
    for matrix in (mx.rotation(degrees, center), mx.scale(x, y, center), mx.shear(slant, -slant / 2, center)):
        assert moved(matrix, *center) == pytest.approx(center, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(angle, factor, st.floats(-60, 60), pair, pair)
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
    torch.testing.assert_close(
        mx.compose(many, reference.inverse(many)), mx.identity(count), atol=1e-12, rtol=0
    )
    points = torch.rand(7, 3, 2)
    assert mx.apply(many, points).shape == (7, 3, 2)
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
def test_what_is_refused_is_named(call, text):
    with pytest.raises(ValueError, match=text):
        call()
