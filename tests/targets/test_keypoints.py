"""Keypoints of JSON members: they follow the image, left and right change places, and broken ones."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers.chains import (
    chain,
    moved_by_torchvision,
    orientation_of,
    turned_by_torchvision,
    upright_points,
    view_of,
)
from helpers.loaders import load
from helpers.scenes import Scenes, number_of, objects
from tarpeg import Augment, Boxes, Keypoints, ShardError, Split, View, Whole
from torchvision import tv_tensors

HERE = {"workers": 0, "threads": 0}
PAIRS = [(0, 2)]


def people(*points, box=(1, 1, 60, 40)):
    """A member with objects of these points and one box."""
    return objects(*({"keypoints": each, "bbox": list(box), "category_id": 1} for each in points))


def moved(content, view=None, **options):
    """The keypoints of one image of 48 x 64, whole unless a view is given."""
    target = Keypoints("json:objects", **{"flip_pairs": PAIRS, "count": 3, **options})
    (value,) = target.read(Scenes({0: content}, count=1), np.array([0]))
    if isinstance(value, Exception):
        raise value
    (reason,) = target.misfits([value], np.array([[48, 64]], np.int32))
    if reason:
        raise ShardError(reason)
    return target.move(value, view or View.whole((48, 64), (48, 64)))["keypoints"]


ONE = [10, 20, 2, 30, 40, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "given", [ONE, [[10, 20, 2], [30, 40, 1], [0, 0, 0]], [[10, 20], [30, 40, 1], [0, 0, 0]]], ids=str
)
def test_forms_of_points(given):
    found = moved(people(given))
    assert found.tolist() == [[[10, 20, 2], [30, 40, 1], [0, 0, 0]]] and found.dtype == torch.float32


def test_left_and_right_change_places_if_the_image_is_mirrored():
    mirrored = View(np.array([[48, 64]]), np.array([[0, 0, 48, 64]]), np.array([True]), (48, 64))
    assert moved(people(ONE), mirrored).tolist() == [[[0, 0, 0], [34, 40, 1], [54, 20, 2]]]
    assert moved(people(ONE), mirrored, flip_pairs=[]).tolist() == [[[54, 20, 2], [34, 40, 1], [0, 0, 0]]]
    twice = mirrored.then(np.array([[[-1.0, 0, 64], [0, 1, 0]]]))
    assert moved(people(ONE), twice).tolist() == moved(people(ONE)).tolist()


def test_mirrored_by_augment():
    for flip, wanted in ((0.0, [10, 20, 2]), (1.0, [0, 0, 0])):
        split = Split(
            Scenes({0: people(ONE)}, count=1),
            Whole((48, 64)),
            targets=Keypoints("json:objects", flip_pairs=PAIRS, count=3),
        )
        config = tarpeg.LoaderConfig(batch_size=1, **HERE)
        _, targets = next(iter(tarpeg.Loader(split, augment=Augment(flip=flip), config=config)))
        assert targets[0]["keypoints"][0, 0].tolist() == wanted


def test_points_outside_the_crop_are_not_labelled():
    view = View(np.array([[48, 64]]), np.array([[10, 10, 20, 20]]), np.array([False]), (40, 40))
    inside, edge = [10, 29, 2], [30, 15, 2]  # the crop covers 10 to 30, and 30 is the next pixel
    found = moved(people([inside, edge, [0, 0, 0]]), view)
    assert found.tolist() == [[[0, 38, 2], [0, 0, 0], [0, 0, 0]]]
    assert len(moved(people([inside, edge, [0, 0, 0]]), view, min_visible=2)) == 0
    assert moved(people(), view).shape == (0, 3, 3)


def test_pairs_of_coco():
    assert Keypoints("json", "coco")._order.tolist() == [
        0,
        2,
        1,
        4,
        3,
        6,
        5,
        8,
        7,
        10,
        9,
        12,
        11,
        14,
        13,
        16,
        15,
    ]


def test_boxes_and_keypoints_of_the_same_objects_are_one_dict_and_dropped_together():
    small, large, hidden = (
        {"keypoints": points, "bbox": box, "category_id": 1}
        for points, box in (
            (ONE, [9, 19, 2, 2]),
            (ONE, [5, 5, 40, 40]),
            ([0] * 9, [5, 5, 30, 30]),
        )
    )
    boxes = Boxes("json:objects", min_size=5)
    points = Keypoints("json:objects", PAIRS, count=3, min_visible=1)
    other = Keypoints("json:people", PAIRS, count=3)
    content = objects(small, large, hidden, people=[{"keypoints": ONE}, {"keypoints": ONE}])
    for workers in (0, 1):
        for targets in ([boxes, points], {"a": boxes, "b": points}):
            split = Split(Scenes({0: content}, count=1), Whole((48, 64)), targets=targets)
            _, (found,), _ = next(iter(load(None, split=split, workers=workers)))
            assert found["boxes"].tolist() == [[5, 5, 45, 45]] and found["labels"].tolist() == [1]
            assert found["keypoints"].shape == (1, 3, 3) and found["image_id"] == 0
    split = Split(Scenes({0: content}, count=1), Whole((48, 64)), targets=[boxes, other])
    _, (found,), _ = next(iter(load(None, split=split, **HERE)))
    assert len(found["boxes"]) == 2 and len(found["keypoints"]) == 2  # of other objects


def test_keypoints_are_torchvisions_over_random_chains(chains=300):
    """But for mirrored ones: torchvision mirrors numbers of pixels, 0 to W - 1, and scales edges, 0 to W."""
    rng, seen = np.random.default_rng(0), 0
    for _ in range(chains):
        drawn = chain(rng)
        (height, width), (top, left, rows, columns), size, flip, affine = drawn
        places = rng.uniform(0, 1, (4, 5, 2)) * [columns, rows] + [left, top]
        orientation, stored = orientation_of(rng, (height, width))
        # The orientation that turns back: 6 and 8 are each other's, the others their own.
        raw = upright_points(places, (height, width), {6: 8, 8: 6}.get(orientation, orientation))
        given = np.concatenate([places, np.full((4, 5, 1), 2.0)], axis=-1)
        target = Keypoints("json", [], count=5)
        value = tarpeg.targets.keypoints.Points(given, 0)
        found = target.move(value, view_of(*drawn))["keypoints"].double().numpy()
        wanted = tv_tensors.KeyPoints(torch.from_numpy(raw), canvas_size=stored)
        wanted = turned_by_torchvision(wanted, orientation)
        wanted[..., 0] += orientation in (2, 3, 7)
        wanted[..., 1] += orientation in (3, 4, 5)
        wanted = tv_tensors.KeyPoints(wanted.as_subclass(torch.Tensor), canvas_size=(height, width))
        wanted = moved_by_torchvision(wanted, *drawn[:3], flip, None)
        wanted[..., 0] += flip
        wanted = moved_by_torchvision(wanted, size, (0, 0, *size), size, False, affine).numpy()
        is_there = found[..., 2] > 0
        seen += is_there.sum()
        assert np.abs(found[..., :2] - wanted)[is_there].max(initial=0) < 1e-4, drawn
        is_inside = ((wanted > 1e-4) & (wanted < np.array(size[::-1]) - 1e-4)).all(axis=-1)
        assert (is_there | ~is_inside).all()
    assert seen > 1000


BROKEN = {
    "numbers": ([1, 2, 2, 3], r"'objects\.1\.keypoints' is \[1, 2, 2, 3\].*count"),
    "points": ([[1, 2]] * 4, r"'objects\.1\.keypoints'.*count= is 3; .*give Keypoints\(count=4\)"),
    "flat": ([1, 2, 2] * 5, r"'objects\.1\.keypoints'.*count= is 3; for 5 points .*Keypoints\(count=5\)"),
    "nan": ([[1, 2], [1, float("nan")], [1, 2]], r"'objects\.1\.keypoints': point 1 is \[1, NaN, 2\]"),
    "text": ([[1, 2], [1, "2"], [1, 2]], r"'objects\.1\.keypoints': point 1"),
    "visibility": ([[1, 2], [1, 2, 3], [1, 2]], r"'objects\.1\.keypoints': point 1 has the visibility 3"),
    "outside": ([[1, 2], [65, 2], [1, 2]], r"'objects\.1\.keypoints': point 1.*outside the image of 48 x 64"),
    "negative": ([[-1, 2], [5, 2], [1, 2]], r"'objects\.1\.keypoints': point 0.*outside the image"),
    "a number": (3, r"'objects\.1\.keypoints' is 3"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_points_follow_on_error(name):
    given, text = BROKEN[name]
    scenes = {number: people([[number, 3]] * 3, ONE) for number in range(12)}
    split = Split(
        Scenes({**scenes, 5: people(ONE, given)}),
        Whole((48, 64)),
        targets=Keypoints("json:objects", PAIRS, count=3),
    )
    with pytest.raises(ShardError, match=rf"key 'scene/005'.*{text}"):
        list(load(None, split=split, on_error="raise", **HERE))
    with pytest.warns(UserWarning, match=rf"key 'scene/005'.*{text}.*its place"):
        batches = list(load(None, split=split, **HERE))
    for image, target in (row for batch in batches for row in zip(batch.image, batch.targets, strict=True)):
        assert number_of(image) == target["keypoints"][0, 0, 0] != 5


def test_points_that_are_missing_are_broken():
    with pytest.raises(ShardError, match=r"'objects\.0\.keypoints' is missing"):
        moved(objects((1, 2, 3, 4)))


@pytest.mark.parametrize(
    "options",
    [
        {"flip_pairs": [(0, 3)]},
        {"flip_pairs": [(0, 0)]},
        {"flip_pairs": [(0, 1), (1, 2)]},
        {"flip_pairs": [0, 1]},
        {"flip_pairs": "coco"},
        {"flip_pairs": None},
        {"count": 0},
        {"min_visible": 4},
        {"image_id": 5},
        {"points": ""},
    ],
    ids=repr,
)
def test_wrong_settings(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Keypoints("json:objects", **{"flip_pairs": [], "count": 3, **options})
