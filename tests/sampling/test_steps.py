"""Steps of an augmentation: what a step moves out of its frame is lost, though a later one moves it back."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.stepwise import Moves, box_left, is_shown
from hypothesis import given, settings, strategies as st
from tarpeg import Augment
from tarpeg.augment.geometry import affine_and_steps
from tarpeg.loader.messages import _view_message, _view_of
from tarpeg.sampling.geometry import View, joined
from tarpeg.sampling.steps import Steps

SIZE = (40, 52)
SHIFT = np.array([[[1.0, 0.0, 30.0], [0.0, 1.0, 0.0]]])
BACK = np.array([[[1.0, 0.0, -30.0], [0.0, 1.0, 0.0]]])


def view_of(count, steps, seed=0, **options):
    """Views of whole images under random steps."""
    augment = Augment(flip=0.5, policy=Moves(steps, **options))
    params = augment.params(np.arange(count), SIZE, seed=seed)
    return View.whole(SIZE, SIZE, count).then(*affine_and_steps(augment.moves(params, SIZE)))


def boxes_of(rng, count):
    low = rng.uniform(0, 0.8, (count, 2)) * SIZE[::-1]
    return np.concatenate([low, low + rng.uniform(0.05, 0.2, (count, 2)) * SIZE[::-1]], axis=1)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.integers(0, 1 << 30))
def test_points_and_boxes_are_those_of_the_steps_one_after_another(steps, seed):
    rng, view = np.random.default_rng(seed), view_of(8, steps, seed)
    assert view.steps is not None
    rows = np.repeat(np.arange(8), 5)
    boxes, points = boxes_of(rng, 40), rng.uniform(0, 1, (40, 3, 2)) * SIZE[::-1]
    found, visible = view.rectangles(boxes, rows)
    shows = view.shows(points, rows)
    for number, row in enumerate(rows.tolist()):
        matrices = view.steps.matrices[row]
        wanted, share = box_left(boxes[number], matrices, SIZE)
        np.testing.assert_allclose(visible[number], share, atol=1e-6)
        if share > 1e-9:
            np.testing.assert_allclose(found[number], wanted, atol=1e-5)
        assert shows[number].tolist() == [is_shown(point, matrices, SIZE) for point in points[number]]


def test_what_no_step_loses_has_the_bits_of_the_composed_affine():
    view = view_of(200, 3)
    assert view.steps is not None and view.affine is not None
    alone = View.whole(SIZE, SIZE, 200, view.affine)
    assert alone.steps is None
    rows = np.repeat(np.arange(200), 5)
    boxes = boxes_of(np.random.default_rng(0), 1000)
    corners = boxes[:, [[0, 1], [2, 1], [0, 3], [2, 3]]]
    keeps = ~view.loses(corners, rows).any(axis=1)
    assert 100 < keeps.sum() < 900
    for one, other in zip(view.rectangles(boxes, rows), alone.rectangles(boxes, rows), strict=True):
        assert np.array_equal(one[keeps], other[keeps])
        assert not np.array_equal(one, other)
    assert np.array_equal(view.matrices(), alone.matrices())


def test_one_step_and_mirrors_lose_nothing():
    moves = view_of(400, 2).steps
    assert moves is not None
    mirror = np.array([[-1.0, 0.0, SIZE[1]], [0.0, 1.0, 0.0]])
    is_plain = [
        [np.array_equal(each, np.eye(2, 3)) or np.array_equal(each, mirror) for each in row]
        for row in moves.matrices
    ]
    assert moves.may_lose(SIZE).tolist() == [row.count(False) > 1 for row in is_plain]
    assert not Steps.of(SHIFT).may_lose(SIZE).any() and not Steps.none(3).may_lose(SIZE).any()


def test_a_box_is_what_is_left_of_it():
    view = View.whole((100, 100), (100, 100)).then(SHIFT).then(BACK)
    boxes, visible = view.rectangles([[60, 10, 80, 20], [10, 10, 20, 20], [75, 0, 99, 9]])
    assert boxes.tolist() == [[60, 10, 70, 20], [10, 10, 20, 20], [0, 0, 0, 0]]
    assert visible.tolist() == [0.5, 1, 0]
    assert view.shows([[69, 5], [71, 5]]).tolist() == [True, False]
    assert view.shows([]).tolist() == []


def test_points_outside_of_the_crop_are_not_shown_though_an_affine_moves_them_in():
    view = View(np.array([[100, 100]]), np.array([[0, 50, 50, 50]]), np.array([False]), (50, 50)).then(SHIFT)
    assert view.points([[40, 10], [60, 10]]).tolist() == [[20, 10], [40, 10]]
    assert view.shows([[40, 10], [60, 10]]).tolist() == [False, True]
    with pytest.raises(ValueError, match=r"points must be.* got \[1, 3\]"):
        view.shows([[1, 2, 3]])


def test_rows_are_chosen_joined_overwritten_and_sent_with_their_steps():
    one, two = view_of(6, 1), view_of(4, 3, seed=1)
    plain = View.whole(SIZE, SIZE, 2)
    points = np.random.default_rng(0).uniform(0, 1, (12, 9, 2)) * SIZE[::-1]
    rows = np.arange(12)
    whole = joined([one, two, plain])
    wanted = np.concatenate(
        [
            view.shows(points[part], np.arange(len(view)))
            for view, part in ((one, rows[:6]), (two, rows[6:10]), (plain, rows[10:]))
        ]
    )
    assert np.array_equal(whole.shows(points, rows), wanted) and not wanted.all()
    for copy in (_view_of(_view_message(whole)), whole.rows(rows)):
        assert np.array_equal(copy.shows(points, rows), wanted)
    chosen = whole.rows([7, 1])
    assert np.array_equal(chosen.shows(points[[7, 1]], [0, 1]), wanted[[7, 1]])
    put = joined([plain, one])
    put.put(0, two.row(3))
    put.put(slice(4, 6), two.rows([0, 1]))
    order = np.array(
        [two.row(3), plain.row(1), one.row(0), one.row(1), two.row(0), two.row(1), one.row(4)], object
    )
    for row, view in enumerate(order):
        assert np.array_equal(put.row(row).shows(points[0]), view.shows(points[0])), row
    put.forget(0)
    assert put.steps is not None and not put.steps.are_moves[0].any()
    plain.put(1, two.row(2))
    assert np.array_equal(plain.row(1).shows(points[1]), two.row(2).shows(points[1]))
    empty = _view_of(_view_message(whole.rows(np.zeros(0, np.int64))))
    assert len(empty) == 0 and empty.steps is not None
