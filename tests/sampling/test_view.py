"""Views: points move as box, resize, flip and affine say, one after another."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from hypothesis import given, settings, strategies as st
from tarpeg.sampling.geometry import View

side = st.integers(1, 3000)
place = st.floats(-2.0, 2.0)


@st.composite
def rows(draw):
    """A source (height, width), a box inside it, and whether it is mirrored."""
    height, width = draw(side), draw(side)
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    box = (top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left)))
    return (height, width), box, draw(st.booleans())


affines = st.lists(st.floats(-3, 3), min_size=6, max_size=6)
views = st.tuples(st.lists(rows(), min_size=1, max_size=5), st.tuples(side, side))


def view_of(drawn, size, affine=None):
    sizes, boxes, flips = zip(*drawn, strict=True)
    return View(np.array(sizes, np.int32), np.array(boxes, np.int32), np.array(flips), size, affine)


@settings(deadline=None)
@given(views, st.lists(st.tuples(place, place), min_size=1, max_size=4), st.data())
def test_points_move_as_box_resize_flip_and_affine_one_after_another(drawn, places, data):
    drawn, size = drawn
    affine = data.draw(st.none() | st.lists(affines, min_size=len(drawn), max_size=len(drawn)))
    affine = None if affine is None else np.array(affine).reshape(-1, 2, 3)
    view = view_of(drawn, size, affine)
    matrices = view.matrices()
    assert matrices.shape == (len(drawn), 3, 3) and (matrices[:, 2] == (0, 0, 1)).all()
    for number, (_, (top, left, height, width), flip) in enumerate(drawn):
        points = np.array([(left + x * width, top + y * height) for x, y in places])
        expected = (points - (left, top)) * (size[1] / width, size[0] / height)
        if flip:
            expected[:, 0] = size[1] - expected[:, 0]
        if affine is not None:
            expected = expected @ affine[number, :, :2].T + affine[number, :, 2]
        moved = view.row(number).points(points)
        np.testing.assert_allclose(moved, expected, rtol=1e-9, atol=1e-6)
        homogeneous = np.concatenate([points, np.ones((len(points), 1))], axis=1)
        np.testing.assert_allclose((homogeneous @ matrices[number].T)[:, :2], moved, rtol=1e-9, atol=1e-6)


@given(views)
def test_the_box_becomes_the_result(drawn):
    view = view_of(*drawn)
    top, left, height, width = view.boxes.T
    corners = np.stack([np.stack([left, top], 1), np.stack([left + width, top + height], 1)], 1)
    moved = np.sort(view.points(corners), axis=1)
    height, width = view.size
    np.testing.assert_allclose(moved, np.tile([[[0, 0], [width, height]]], (len(view), 1, 1)), atol=1e-6)


@given(views, affines, affines)
def test_affines_compose(drawn, first, second):
    view = view_of(*drawn)
    first, second = (np.tile(np.array(each).reshape(1, 2, 3), (len(view), 1, 1)) for each in (first, second))
    points = np.arange(4.0).reshape(1, 2, 2).repeat(len(view), 0)
    whole = view_of([(view.size, (0, 0, *view.size), False)] * len(view), view.size)
    after_one = whole.then(second).points(view.then(first).points(points))
    np.testing.assert_allclose(view.then(first).then(second).points(points), after_one, rtol=1e-9, atol=1e-6)
    assert view.then(None) is view


def test_rows_are_chosen_and_overwritten():
    drawn = [((9, 8), (1, 2, 3, 4), True), ((7, 6), (0, 0, 7, 6), False), ((5, 5), (1, 1, 2, 2), False)]
    affine = np.arange(18.0).reshape(3, 2, 3)
    view = view_of(drawn, (4, 4), affine)
    part = view.rows([2, 0])
    assert part.boxes.tolist() == [[1, 1, 2, 2], [1, 2, 3, 4]] and part.flips.tolist() == [False, True]
    assert (part.affine == affine[[2, 0]]).all() and part.size == (4, 4) and len(view.row(1)) == 1
    view.put(0, view.row(1))
    assert view.sizes[0].tolist() == [7, 6] and view.boxes[0].tolist() == [0, 0, 7, 6] and not view.flips[0]


def test_a_row_without_a_box_is_an_error():
    view = View(np.zeros((1, 2), np.int32), np.zeros((1, 4), np.int32), np.array([True]), (4, 4))
    assert not view.is_known[0]
    with pytest.raises(ValueError, match=r"row 0, .*0 x 0"):
        view.points([[1, 2]])


def test_augments_geometry_is_an_affine_of_a_view():
    augment = tarpeg.Augment(flip=1.0)
    affine = augment.geometry(augment.params([7], (20, 30)), (20, 30)).numpy()
    view = View.whole((20, 30), (20, 30))
    mirrored = view_of([((20, 30), (0, 0, 20, 30), True)], (20, 30))
    np.testing.assert_allclose(view.then(affine).matrices(), mirrored.matrices())


def test_points_are_those_of_the_pixels():
    """A pixel that is alone in its box is where its point is."""
    image = torch.zeros((3, 40, 60), dtype=torch.uint8)
    image[:, 13, 47] = 255
    view = view_of([((40, 60), (10, 40, 8, 10), True)], (8, 10))
    ((x, y),) = view.points([[47.5, 13.5]])
    part = image[:, 10:18, 40:50].flip(-1)
    assert part[0, int(y), int(x)] == 255


@pytest.mark.parametrize("points", [[1, 2], [[1, 2, 3]], [[[1, 2]]]])
def test_points_of_another_shape(points):
    view = view_of([((9, 8), (1, 2, 3, 4), True)] * 2, (4, 4))
    with pytest.raises(ValueError, match="points must be"):
        view.points(points)
