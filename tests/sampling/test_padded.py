"""Crops that pad: boxes and places as torchvision's and Ultralytics' transforms have them."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers.padded import moved_by_torchvision
from hypothesis import given, settings, strategies as st
from tarpeg import LetterBox, RandomCrop, RandomShortestSize, ScaleJitter, View
from tarpeg.sampling.padded import mirrored, within
from torchvision import tv_tensors
from torchvision.transforms import v2

side = st.integers(1, 2000)
RNG = np.random.default_rng(3)


def drawn(crop, sizes):
    """Boxes and places of a crop for images of these sizes, split."""
    found = crop.boxes(np.array(sizes), RNG.random((len(sizes), crop.draws)))
    assert found.dtype == np.int32 and found.shape == (len(sizes), 8)
    return found[:, :4], found[:, 4:]


CROPS = [
    LetterBox((64, 96)),
    LetterBox(300, scaleup=False, center=False),
    ScaleJitter((64, 96)),
    ScaleJitter(200, (0.5, 0.5), target_size=(10, 700)),
    RandomCrop((33, 40), padding=(3, 32), pad_if_needed=True),
    RandomCrop(32, padding=31, pad_if_needed=True),
    RandomShortestSize([20, 40], 60, multiple=16),
]


@pytest.mark.parametrize("crop", CROPS)
@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.tuples(side, side), min_size=1, max_size=6), data=st.data())
def test_boxes_lie_in_images_and_places_in_results(crop, sizes, data):
    number = st.sampled_from([0.0, 1 - 2**-53]) | st.floats(0, 1, exclude_max=True)
    draws = data.draw(
        st.lists(
            st.lists(number, min_size=crop.draws, max_size=crop.draws),
            min_size=len(sizes),
            max_size=len(sizes),
        )
    )
    images = np.array(sizes)
    found = crop.boxes(images, np.array(draws).reshape(len(sizes), crop.draws)).astype(np.int64)
    size = np.array(crop.size)
    if hasattr(crop, "padded_size"):
        size = np.array(crop.padded_size(images, np.array(draws)))
        assert (size <= crop.size).all() and (size % crop.multiple == 0).all()
    for begin, bounds in ((found[:, :4], images), (found[:, 4:], size)):
        assert (begin[:, :2] >= 0).all() and (begin[:, 2:] >= 1).all()
        assert (begin[:, :2] + begin[:, 2:] <= bounds).all()


def test_letterbox_is_that_of_ultralytics():
    sizes = RNG.integers(1, 3000, (500, 2))
    for center, scaleup, shape in [
        (True, True, (640, 512)),
        (True, False, (700, 700)),
        (False, True, (97, 64)),
    ]:
        boxes, places = drawn(LetterBox(shape, scaleup, center), sizes)
        for (height, width), box, place in zip(sizes.tolist(), boxes.tolist(), places.tolist(), strict=True):
            # As ultralytics.data.augment.LetterBox.__call__.
            ratio = min(shape[0] / height, shape[1] / width)
            ratio = ratio if scaleup else min(ratio, 1.0)
            new = round(width * ratio), round(height * ratio)
            dw, dh = shape[1] - new[0], shape[0] - new[1]
            dw, dh = (dw / 2, dh / 2) if center else (dw, dh)
            top, left = (round(dh - 0.1), round(dw - 0.1)) if center else (0, 0)
            assert box == [0, 0, height, width]
            assert place == [top, left, max(new[1], 1), max(new[0], 1)]


def test_random_crop_of_a_padded_image_is_torchvisions():
    """All places are equally likely, of images larger and smaller than the crop."""
    for size, options in [
        ((6, 5), {"padding": 2}),
        ((3, 9), {"padding": (1, 0), "pad_if_needed": True}),
        ((2, 2), {"pad_if_needed": True}),
        ((5, 4), {"padding": [0, 1, 2, 3]}),
    ]:
        boxes, places = drawn(RandomCrop(4, **options), [size] * 6000)
        corners, counts = np.unique(boxes[:, :2] - places[:, :2], axis=0, return_counts=True)
        theirs, crop = set(), v2.RandomCrop(4, **options)
        image = tv_tensors.Image(torch.zeros(1, *size))
        for _ in range(600):
            made = crop.make_params([image])
            left, top = made["padding"][:2] if made["needs_pad"] else (0, 0)
            theirs.add((made["top"] - top, made["left"] - left))
        assert set(map(tuple, corners.tolist())) == theirs
        assert counts.min() > 0.7 * counts.mean() and counts.max() < 1.3 * counts.mean()
        assert (boxes[:, 2:] == places[:, 2:]).all()


def test_scale_jitter_is_distributed_as_torchvisions():
    # Squares: with other shapes torchvision compares the height with target_size[1].
    size, crop = (300, 400), ScaleJitter((192, 192), (0.3, 2.0))
    boxes, places = drawn(crop, [size] * 8000)
    scale, shown = [], []
    torch.manual_seed(0)
    image, theirs = tv_tensors.Image(torch.zeros(1, *size)), v2.ScaleJitter((192, 192), (0.3, 2.0))
    for _ in range(8000):
        height, width = theirs.make_params([image])["size"]
        scale.append(height / size[0])
        shown.append(min(192, height) * min(192, width))
    mine = (places[:, 3] / boxes[:, 3]).astype(float)
    quantiles = np.linspace(0.05, 0.95, 10)
    np.testing.assert_allclose(np.quantile(mine, quantiles), np.quantile(scale, quantiles), atol=0.02)
    np.testing.assert_allclose(places[:, 2:].prod(1).mean(), np.mean(shown), rtol=0.03)
    assert (places[:, :2] == 0).all()
    # Uniform over the places where the box fits.
    large = boxes[boxes[:, 2] < 250]
    share = large[:, 0] / (300 - large[:, 2])
    assert abs(share.mean() - 0.5) < 0.02 and share.min() < 0.01 and share.max() > 0.99


def test_shortest_sizes_are_torchvisions():
    crop = RandomShortestSize([48, 64, 80], max_size=133)
    sizes = RNG.integers(1, 900, (300, 2)).tolist()
    boxes, places = drawn(crop, sizes)
    for size, box, place in zip(sizes, boxes.tolist(), places.tolist(), strict=True):
        options = set()
        for shortest in (48, 64, 80):
            theirs = v2.RandomShortestSize(shortest, 133)
            made = theirs.make_params([tv_tensors.Image(torch.zeros(1, *size))])["size"]
            options.add(tuple(max(each, 1) for each in made))
        assert box == [0, 0, *size] and place[:2] == [0, 0] and tuple(place[2:]) in options
    _, places = drawn(crop, [(100, 100)] * 3000)
    _, counts = np.unique(places[:, 2], return_counts=True)
    assert len(counts) == 3 and counts.min() > 900


def test_substitutes_fit_the_batch():
    boxes = np.array([[0, 0, 40, 80, 0, 0, 40, 80], [0, 0, 10, 10, 0, 0, 10, 10]], np.int32)
    assert within(boxes, (40, 80)) is boxes
    assert within(boxes, (30, 40)).tolist() == [[0, 0, 40, 80, 0, 0, 20, 40], [0, 0, 10, 10, 0, 0, 10, 10]]


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: LetterBox(64, fill=256), "fill=256 of LetterBox"),
        (lambda: LetterBox(64, fill=(1, 2)), r"fill=\(1, 2\) of LetterBox"),
        (lambda: LetterBox(64, center=1), "center=1"),
        (lambda: LetterBox(0), "size=0"),
        (lambda: ScaleJitter(64, (0, 1)), r"scale_range=\(0, 1\)"),
        (lambda: ScaleJitter(64, target_size=0.5), r"target_size=0\.5"),
        (lambda: RandomShortestSize([], 9), r"min_size=\[\]"),
        (lambda: RandomShortestSize([8, 10], 9), "min_size=10"),
        (lambda: RandomShortestSize(8, None), "max_size=None"),
        (lambda: RandomShortestSize(8, 9, multiple=0), "multiple=0"),
        (lambda: RandomCrop(32, padding=32), r"padding=32.*size=\(32, 32\)"),
        (lambda: RandomCrop(32, padding=-1), "padding=-1"),
        (lambda: RandomCrop(32, padding=(1, 2, 3)), r"padding=\(1, 2, 3\)"),
        (lambda: RandomCrop(32, pad_if_needed=2), "pad_if_needed=2"),
        (lambda: RandomCrop(32, padding=1, enlarge_if_needed=True), "enlarge_if_needed=True and padding=1"),
    ],
)
def test_odd_arguments_are_errors(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_an_image_smaller_than_crop_and_padding_is_an_error():
    with pytest.raises(ValueError, match="pad_if_needed=True"):
        RandomCrop(32, padding=4).boxes(np.array([[23, 40]]), np.zeros((1, 2)))


@st.composite
def placed_rows(draw):
    """A source, a box in it, a place in a result, and whether it is mirrored."""
    (height, width), (rows, columns) = draw(st.tuples(side, side)), draw(st.tuples(side, side))
    found = []
    for high, wide in ((height, width), (rows, columns)):
        top, left = draw(st.integers(0, high - 1)), draw(st.integers(0, wide - 1))
        found.append((top, left, draw(st.integers(1, high - top)), draw(st.integers(1, wide - left))))
    return (height, width), (rows, columns), *found, draw(st.booleans())


@settings(deadline=None)
@given(placed_rows(), st.integers(0, 2**32 - 1))
def test_boxes_and_points_move_as_by_torchvision(row, seed):
    source, size, box, place, flip = row
    view = View(np.array([source]), np.array([box]), np.array([flip]), size, None, np.array([place]))
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.uniform(0, 1, (5, 2, 2)), axis=1) * source[::-1]
    given = tv_tensors.BoundingBoxes(
        torch.from_numpy(corners.reshape(5, 4)), format="XYXY", canvas_size=source, clamping_mode="soft"
    )
    moved, visible = view.rectangles(corners.reshape(5, 4))
    # Torchvision clips to the canvas last, after padding: not to the place.
    there = visible > 0
    expected = moved_by_torchvision(given, box, place, size, flip).numpy()[there]
    top, left, height, width = place
    expected[:, 0::2] = expected[:, 0::2].clip(left, left + width)
    expected[:, 1::2] = expected[:, 1::2].clip(top, top + height)
    np.testing.assert_allclose(moved[there], expected, atol=1e-4)
    points = view.points(corners[:, 0])
    scale = np.array([width / box[3], height / box[2]])
    inner = (corners[:, 0] - (box[1], box[0])) * scale
    inner[:, 0] = width - inner[:, 0] if flip else inner[:, 0]
    np.testing.assert_allclose(points, inner + np.array([left, top]), rtol=1e-9, atol=1e-6)
    assert view.row(0).rows([0]).places.tolist() == [list(place)]


def test_places_are_mirrored_with_their_results():
    places, flips = np.array([[1, 2, 3, 4], [1, 2, 3, 4]], np.int32), np.array([True, False])
    assert mirrored(places, flips, 20).tolist() == [[1, 14, 3, 4], [1, 2, 3, 4]]


def test_a_view_without_places_is_the_whole_result():
    view = View.whole((40, 60), (20, 30))
    assert view.places is None and view.all_places.tolist() == [[0, 0, 20, 30]]
    placed = View(view.sizes, view.boxes, view.flips, view.size, None, np.array([[1, 1, 5, 5]], np.int32))
    placed.put(0, view)
    assert placed.places.tolist() == [[0, 0, 20, 30]]


def test_public_names():
    assert tarpeg.LetterBox is LetterBox and tarpeg.PadMask.fields == ("pad_mask",)
