"""Crops: boxes inside the image, distributed and placed as torchvision's, and checked options."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from omegaconf import ListConfig
from tarpeg.sampling.buckets import AspectBuckets
from tarpeg.sampling.crops import CenterCrop, Progressive, RandomCrop, RandomResizedCrop, Whole
from tarpeg.sampling.patches import Patches
from tarpeg.sampling.rng import uniforms
from torchvision.transforms import v2

CROPS = [
    RandomResizedCrop(224),
    RandomResizedCrop((32, 100), scale=(1e-4, 0.2), ratio=(0.1, 12.0)),
    RandomResizedCrop(8, scale=(0.5, 3.0), ratio=(2.0, 2.0)),
    RandomCrop(224, enlarge_if_needed=True),
    RandomCrop((7, 300), enlarge_if_needed=True),
    RandomCrop((1, 4000), enlarge_if_needed=True),
    CenterCrop(224),
    CenterCrop((500, 3)),
    CenterCrop(224, shorter=256),
    CenterCrop((100, 400), shorter=120),
    Whole(224),
    Whole((500, 3)),
]
side = st.one_of(st.integers(1, 12), st.integers(1, 5000), st.sampled_from([65535, 224, 223, 225]))


def boxes_of(crop, *sizes, seed=0):
    return crop.boxes(np.array(sizes), uniforms(seed, 0, range(len(sizes)), crop.draws))


def check_boxes(boxes, sizes):
    assert boxes.dtype == np.int32 and boxes.shape == (len(sizes), 4)
    top, left, height, width = boxes.astype(np.int64).T
    assert (top >= 0).all() and (left >= 0).all() and (height >= 1).all() and (width >= 1).all()
    assert (top + height <= sizes[:, 0]).all() and (left + width <= sizes[:, 1]).all()


# --- all of them


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(side, side), min_size=1, max_size=20), st.integers(0, 99))
def test_boxes_are_inside_the_image(sizes, seed):
    for crop in CROPS:
        check_boxes(boxes_of(crop, *sizes, seed=seed), np.array(sizes))


@pytest.mark.parametrize("crop", CROPS, ids=repr)
def test_ends_of_the_draws_undecodable_rows_and_empty_batches(crop):
    ends = np.array([(1, 1), (1, 9), (9, 1), (500, 375), (224, 224), (65535, 65535), (3, 60000)])
    for draw in (0.0, 0.5, 1 - 2**-53, 1.0):
        check_boxes(crop.boxes(ends, np.full((7, crop.draws), draw)), ends)
    boxes = boxes_of(crop, (300, 400), (0, 0), (0, 5), (-1, 7))
    assert boxes[1:].tolist() == [[0, 0, 1, 1]] * 3
    assert (boxes[:1] == boxes_of(crop, (300, 400))).all()
    assert crop.boxes(np.empty((0, 2), np.int32), np.empty((0, crop.draws))).shape == (0, 4)
    with pytest.raises(ValueError, match=r"^draws "):
        crop.boxes([(3, 4)], np.zeros((1, crop.draws + 1)))
    for sizes in ([(3.0, 4.0)], [3, 4], [(1, 2, 3)]):
        with pytest.raises(ValueError, match=r"^sizes .*\[B, 2\]"):
            crop.boxes(sizes, np.zeros((1, crop.draws)))


@pytest.mark.parametrize("make", [RandomResizedCrop, RandomCrop, CenterCrop, Whole])
def test_size_of_every_kind(make):
    assert make(224).size == make(np.int64(224)).size == make([224, 224]).size == (224, 224)
    crop = make(ListConfig([5, 7]))
    assert crop.size == (5, 7) and type(crop.size) is tuple and type(crop.size[0]) is int
    assert crop == make(size=(5, 7)) != make((7, 5)) and hash(crop) == hash(make((5, 7)))
    assert pickle.loads(pickle.dumps(crop)) == copy.deepcopy(crop) == dataclasses.replace(crop) == crop
    assert "size=(5, 7)" in repr(crop) and dataclasses.asdict(crop)["size"] == (5, 7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        crop.size = 3
    for wrong in (0, -1, (5, 0), (1, 2, 3), (), "ab", "224", 2.5, (2.5, 3), None):
        with pytest.raises(ValueError, match="size="):
            make(wrong)
    with pytest.raises(TypeError):
        make()


def test_scale_and_ratio_become_tuples_of_floats():
    crop = RandomResizedCrop(9, scale=ListConfig([0.5, 1]), ratio=[1, 1])
    assert crop.scale == (0.5, 1.0) and crop.ratio == (1.0, 1.0) and hash(crop)


NOT_RANGES = [(1.0, 0.5), (0.0, 1.0), (-1, 1), (0.5,), (1, 2, 3), (math.nan, 1), (1, math.inf), 0.5, "ab"]


class Plain:
    size, draws = (8, 8), 0

    def boxes(self, sizes, draws):
        return np.tile([0, 0, 8, 8], (len(sizes), 1))


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        *(
            (RandomResizedCrop, {name: wrong}, f"{name}=")
            for name in ("scale", "ratio")
            for wrong in NOT_RANGES
        ),
        *((CenterCrop, {"shorter": wrong}, "shorter=") for wrong in (0, -5, 2.5, "256")),
        (CenterCrop, {"shorter": 8}, r"shorter=8 .*size=\(9, 9\)"),
        (CenterCrop, {"size": (12, 9), "shorter": 8}, "shorter=8 .* 9"),
        (Progressive, {"crop": CenterCrop(8, shorter=8), "sizes": {3: 9}}, "shorter=8 .* 9"),
        (Progressive, {"sizes": {}}, "sizes={}"),
        (Progressive, {"sizes": 128}, "sizes=128"),
        (Progressive, {"sizes": {-1: 8}}, "epoch -1"),
        (Progressive, {"sizes": {"0": 8}}, "epoch '0'"),
        (Progressive, {"sizes": {0: 0}}, "size=0"),
        (Progressive, {"sizes": {0: 8}, "crop": Plain()}, "frozen dataclass .*size"),
        (
            Progressive,
            {"sizes": {1: AspectBuckets(96, 16)}, "crop": CenterCrop(8)},
            "second run with the other crop goes on",
        ),
        (
            Progressive,
            {"sizes": {1: CenterCrop(8)}, "crop": Patches(8, [16], 64)},
            "second run with the other crop goes on",
        ),
    ],
)
def test_wrong_options_are_refused(make, options, text):
    required = {"crop": RandomResizedCrop(32)} if make is Progressive else {"size": 9}
    with pytest.raises(ValueError, match=text):
        make(**required | options)


# --- RandomResizedCrop


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((375, 500), {}),
        ((100, 300), {}),
        ((40, 37), {}),
        ((200, 200), {"scale": (0.5, 1.0), "ratio": (0.3, 3.0)}),
        ((90, 400), {"scale": (0.3, 1.0)}),  # often no try fits
    ],
)
def test_random_resized_crop_is_distributed_as_torchvisions(size, options):
    torch.manual_seed(0)
    theirs, image = v2.RandomResizedCrop(8, **options), torch.empty(3, *size, dtype=torch.uint8)
    make = [theirs.make_params([image]) for _ in range(2000)]
    their_boxes = np.array([(p["top"], p["left"], p["height"], p["width"]) for p in make], float)
    n = 20000
    our_boxes = boxes_of(RandomResizedCrop(8, **options), *[size] * n).astype(float)

    def features(boxes):
        top, left, height, width = boxes.T
        free = np.stack([size[0] - height, size[1] - width])
        places = np.stack([top, left]) / np.maximum(free, 1)
        whole = (height == size[0]) | (width == size[1])
        return [height * width / (size[0] * size[1]), np.log(width / height), *places, whole.astype(float)]

    for ours, other in zip(features(our_boxes), features(their_boxes), strict=True):
        spread = max(other.std(), ours.std()) / math.sqrt(len(other))
        assert abs(ours.mean() - other.mean()) < 5 * spread + 1e-12
        # Kolmogorov-Smirnov at 1e-6: sqrt(ln(2e6) / 2) = 2.7.
        grid = np.unique(np.concatenate([ours, other]))
        cdf = [np.searchsorted(np.sort(x), grid, side="right") / len(x) for x in (ours, other)]
        assert abs(cdf[0] - cdf[1]).max() < 2.7 * math.sqrt(1 / len(other) + 1 / n)


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((10, 1000), (0, 493, 10, 13)),  # h * 4/3 = 13.33
        ((1000, 10), (493, 0, 13, 10)),
        ((1, 50), (0, 24, 1, 1)),
        ((1, 1), (0, 0, 1, 1)),
        ((2, 3), (0, 0, 2, 3)),
        ((30, 40), (0, 0, 30, 40)),
    ],
)
def test_fallback_is_torchvisions_central_crop(size, box):
    # Shares above 1 never fit, so every row falls back; 2x3 has ratio 1.5 > 4/3: round(2 * 4/3) = 3.
    assert boxes_of(RandomResizedCrop(8, scale=(4.0, 5.0)), size).tolist() == [list(box)]
    params = v2.RandomResizedCrop(8, scale=(4.0, 5.0)).make_params([torch.empty(3, *size)])
    assert tuple(params.values()) == box


def test_the_first_try_that_fits_is_taken():
    crop = RandomResizedCrop(8, scale=(0.25, 1.0), ratio=(0.25, 4.0))
    draws = np.full((1, crop.draws), 0.999)  # nearly all of the area at ratio 4: does not fit a square
    draws[0, 3], draws[0, 13] = 0.0, 0.5  # try 3: a quarter of the area at ratio 1
    draws[0, 20:] = 0.5, 0.0
    assert crop.boxes([(100, 100)], draws).tolist() == [[25, 0, 50, 50]]


# --- RandomCrop and CenterCrop


def test_random_crop_places_are_even():
    boxes = boxes_of(RandomCrop((3, 4)), *[(5, 8)] * 15000)
    assert (boxes[:, 2:] == (3, 4)).all()
    counts = np.bincount(boxes[:, 0] * 5 + boxes[:, 1], minlength=15)
    assert len(counts) == 15 and abs(counts - 1000).max() < 6 * math.sqrt(1000)


def test_random_crop_of_a_smaller_image_is_an_error_as_in_torchvision():
    crop = RandomCrop((40, 50))
    for size in [(39, 200), (200, 49), (1, 1)]:
        with pytest.raises(
            ValueError, match=r"RandomCrop\(\(40, 50\)\).*enlarge_if_needed.*pad_if_needed"
        ) as info:
            boxes_of(crop, (40, 50), size)
        assert f" {size[0]} x {size[1]}" in str(info.value)
        with pytest.raises(ValueError, match="larger"):
            v2.RandomCrop((40, 50))(torch.zeros(3, *size))
    assert boxes_of(crop, (40, 50)).tolist() == [[0, 0, 40, 50]]
    fits = [(40, 50), (400, 300), (41, 50)]
    enlarging = RandomCrop((40, 50), enlarge_if_needed=True)
    assert (boxes_of(crop, *fits) == boxes_of(enlarging, *fits)).all()
    with pytest.raises(ValueError, match="enlarge_if_needed=3"):
        RandomCrop(224, enlarge_if_needed=3)


def enlarging(size):
    return RandomCrop(size, enlarge_if_needed=True)


@pytest.mark.parametrize("make", [enlarging, CenterCrop])
@settings(deadline=None)
@given(side, side, st.integers(1, 300), st.integers(1, 300))
@example(height=10, width=100, crop_height=2, crop_width=1000)  # 0.2 rows become one
def test_largest_box_touches_a_side_and_has_the_shape(make, height, width, crop_height, crop_width):
    _, _, box_height, box_width = boxes_of(make((crop_height, crop_width)), (height, width))[0].tolist()
    if crop_height > height or crop_width > width:
        assert box_height == height or box_width == width
        wish = min(height / crop_height, width / crop_width)
        assert abs(box_height - max(1, wish * crop_height)) <= 0.5 + 1e-6
        assert abs(box_width - max(1, wish * crop_width)) <= 0.5 + 1e-6
    else:
        assert (box_height, box_width) == (crop_height, crop_width)


@settings(deadline=None)
@given(st.integers(50, 400), st.integers(50, 400), st.integers(1, 50), st.integers(1, 50))
def test_center_crop_equals_torchvisions(height, width, crop_height, crop_width):
    rows = torch.arange(height * width).reshape(1, height, width)
    first = int(v2.functional.center_crop(rows, [crop_height, crop_width])[0, 0, 0])
    box = boxes_of(CenterCrop((crop_height, crop_width)), (height, width))[0].tolist()
    assert box == [first // width, first % width, crop_height, crop_width]


@pytest.mark.parametrize(
    ("crop", "size", "box"),
    [
        (Whole((7, 9)), (30, 400), [0, 0, 30, 400]),
        (CenterCrop(224, shorter=256), (256, 256), [16, 16, 224, 224]),
        (CenterCrop(224, shorter=256), (512, 1024), [32, 288, 448, 448]),
        # 375 * 224 / 256 = 328.125; (375 - 328) / 2 = 23.5, to even
        (CenterCrop(224, shorter=256), (375, 500), [24, 86, 328, 328]),
        (CenterCrop(224, shorter=256), (1, 1), [0, 0, 1, 1]),
        (CenterCrop((100, 200), shorter=100), (50, 200), [0, 50, 50, 100]),
        (CenterCrop((100, 200), shorter=100), (60, 60), [15, 0, 30, 60]),
        (CenterCrop(256, shorter=256), (512, 600), [0, 44, 512, 512]),
    ],
)
def test_boxes_of_whole_and_of_center_crop_with_shorter(crop, size, box):
    assert crop.boxes([size]).tolist() == [box]


def test_only_the_size_changes():
    crop = Progressive(RandomResizedCrop(224, scale=(0.3, 1.0)), {0: 128, 4: 192})
    assert crop.at(3) == RandomResizedCrop(128, scale=(0.3, 1.0))
    assert pickle.loads(pickle.dumps(crop)).at(4).size == (192, 192)
    sizes, draws = np.array([[300, 400]]), np.full((1, RandomResizedCrop.draws), 0.4)
    assert (crop.at(0).boxes(sizes, draws) == crop.at(9).boxes(sizes, draws)).all()
