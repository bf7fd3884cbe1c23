"""Mosaic: the parts of its results, as Ultralytics' Mosaic and RandomPerspective place them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.mosaics import drawn_by, moved_point
from hypothesis import given, settings, strategies as st
from tarpeg import LetterBox, Mosaic, Progressive, RandomCrop, View

RNG = np.random.default_rng(5)
side = st.integers(1, 2000)
number = st.sampled_from([0.0, 0.5, 1 - 2**-53]) | st.floats(0, 1, exclude_max=True)


def random_sizes(count, most=900):
    sizes = RNG.integers(1, most, (count, 4, 2))
    sizes[::17], sizes[::19, 0] = 1, [1, most]
    return sizes


@settings(deadline=None, max_examples=100)
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    sizes=st.lists(st.lists(st.tuples(side, side), min_size=4, max_size=4), min_size=1, max_size=4),
    p=st.sampled_from([0.0, 0.5, 1.0]),
    data=st.data(),
)
def test_parts_lie_in_images_and_cells_cover_the_results(size, sizes, p, data):
    rows = st.lists(number, min_size=6, max_size=6)
    draws = data.draw(st.lists(rows, min_size=len(sizes), max_size=len(sizes)))
    check_parts(Mosaic(size, p=p), np.array(sizes), np.array(draws))


def check_parts(crop, sizes, draws):
    parts = crop.parts(sizes, draws)
    results, images = parts.results, parts.images
    for boxes, bounds in ((parts.boxes, sizes[results, images]), (parts.places, crop.size)):
        assert boxes.dtype == np.int32 and (boxes[:, :2] >= 0).all() and (boxes[:, 2:] >= 1).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= bounds).all()
    counts = np.zeros((len(sizes), *crop.size), np.int64)
    for result, place, (top, left, height, width) in zip(results, parts.places, parts.cells, strict=True):
        counts[result, top : top + height, left : left + width] += 1
        assert top <= place[0] and place[0] + place[2] <= top + height
        assert left <= place[1] and place[1] + place[3] <= left + width
    assert (counts == 1).all()
    first = np.unique(results, return_index=True)[1]
    assert len(first) == len(sizes) and (images[first] == 0).all(), "the sample itself is visible"
    return parts


def test_parts_of_many_sizes():
    for size in ((33, 50), (7, 3), (1, 1)):
        found = check_parts(Mosaic(size, p=0.7), random_sizes(300), RNG.random((300, 6)))
    assert (np.bincount(found.results) == 1).all()  # one pixel has room for one


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_points_are_where_ultralytics_steps_put_them(p):
    """Within the rounding: half a pixel of the source, and a pixel of the result and of the resized image."""
    crop, count = Mosaic((96, 160), p=p), 300
    sizes, draws = random_sizes(count, 500), RNG.random((count, 6))
    sizes = sizes.clip(150)  # of shapes that are visible in a mosaic
    parts = crop.parts(sizes, draws)
    view = View(
        sizes[parts.results, parts.images],
        parts.boxes,
        np.zeros(len(parts.results), np.bool_),
        crop.size,
        places=parts.places,
    )
    checked = 0
    for part, (result, image) in enumerate(zip(parts.results, parts.images, strict=True)):
        source, numbers = sizes[result, image], draws[result]
        (top, left, height, width), place = parts.boxes[part], parts.places[part]
        if min(place[2:]) < 8:  # ratios of a few whole pixels
            continue
        quarter = None
        if p:
            _, factor, shift = drawn_by(numbers, crop.size, crop.scale, crop.translate)
            centre = drawn_by(numbers, crop.size, crop.scale, crop.translate)[0]
            seam = (centre - crop.size) * factor + shift
            middle = place[:2] + place[2:] / 2
            quarter = 2 * (middle[0] > seam[0]) + (middle[1] > seam[1])
        for share in ((0, 0), (1, 1), (0.3, 0.6)):
            point = [top + share[0] * height, left + share[1] * width]
            wanted = moved_point(point, source, quarter, numbers, crop.size)
            found = view.parts().row(part).points([point[::-1]])[0, ::-1]
            scale = place[2:] / np.array([height, width])
            assert (np.abs(found - wanted) <= 0.51 * scale + 2.1).all()
            checked += 1
    assert checked > 500


def test_alone_without_scale_it_is_the_letter_box():
    crop, sizes = Mosaic((64, 90), p=0, scale=(1, 1), translate=0), random_sizes(200)
    wanted = LetterBox((64, 90)).boxes(sizes[:, 0])
    assert np.array_equal(crop.boxes(sizes[:, 0], RNG.random((200, 6))), wanted)
    parts = crop.parts(sizes, RNG.random((200, 6)))
    assert np.array_equal(np.concatenate([parts.boxes, parts.places], axis=1), wanted)
    assert (parts.cells == [0, 0, 64, 90]).all()


def test_the_sample_itself_has_the_largest_quarter_and_the_others_the_rest():
    sizes, draws = np.full((500, 4, 2), 100), RNG.random((500, 6))
    crop = Mosaic(64)
    parts = crop.parts(sizes, draws)
    areas = np.zeros((500, 4))
    areas[parts.results, parts.images] = parts.places[:, 2:].prod(axis=1)
    rounding = 2 * (64 + 64)
    assert (areas[:, 0] >= areas.max(axis=1) - rounding).all()
    assert 3.3 < len(parts.results) / 500 < 3.8 and len(np.unique(parts.images)) == 4


def test_an_image_that_a_mosaic_would_not_show_is_alone():
    draws = np.array([[0.0, 0.0, 0.0, 1 - 2**-53, 0.5, 0.5]])  # centre at the corner of the window's outside
    sizes = np.array([[[1000, 3], [100, 100], [100, 100], [100, 100]]])
    parts = Mosaic(64).parts(sizes, draws)
    assert parts.images.tolist() == [0] and parts.cells.tolist() == [[0, 0, 64, 64]]


def test_another_crop_from_an_epoch_on():
    crop = Progressive(Mosaic(64), {3: Mosaic(64, p=0), 5: 96, 7: RandomCrop(32)})
    assert crop.at(2) == Mosaic(64) and crop.at(4) == Mosaic(64, p=0)
    assert crop.at(6) == Mosaic(96) and crop.at(7) == RandomCrop(32)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"p": 1.5}, "p=1.5"),
        ({"scale": (0, 1)}, r"scale=\(0, 1\)"),
        ({"scale": 0.5}, "scale=0.5"),
        ({"translate": 0.5}, "translate=0.5 of Mosaic"),
        ({"translate": "a"}, "translate='a' of Mosaic"),
        ({"fill": 256}, "fill=256 of Mosaic"),
    ],
)
def test_wrong_settings(options, text):
    with pytest.raises(ValueError, match=text):
        Mosaic(64, **options)
