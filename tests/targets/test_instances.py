"""InstanceMasks: the pixels of pycocotools, cut as the image is, and dropped with the boxes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.chains import chain, view_of
from helpers.loaders import load
from helpers.pictures import saved
from helpers.scenes import Scenes, objects
from PIL import Image
from tarpeg import (
    Boxes,
    InstanceMap,
    InstanceMasks,
    Masks,
    Mosaic,
    RandomResizedCrop,
    ShardError,
    Split,
    View,
    Whole,
)
from tarpeg.targets import annotations, instances
from torchvision import tv_tensors

MASKS = InstanceMasks("json:objects")
HERE = {"workers": 0, "threads": 0}


def value_of(*segmentations, **options):
    content = objects(*({"segmentation": each} for each in segmentations))
    (value,) = InstanceMasks("json:objects", **options).read(Scenes({0: content}, count=1), np.array([0]))
    if isinstance(value, Exception):
        raise value
    return value


def compressed(counts):
    """COCO's text of run lengths: rleToString of pycocotools."""
    text = ""
    for number, count in enumerate(counts):
        rest = count - (counts[number - 2] if number > 2 else 0)
        while True:
            digit, rest = rest & 0x1F, rest >> 5
            is_more = rest != (-1 if digit & 0x10 else 0)
            text += chr(digit + 0x20 * is_more + 48)
            if not is_more:
                break
    return text


def counts_of(mask):
    flat = np.concatenate([[0], mask.T.reshape(-1)])
    changes = np.flatnonzero(np.diff(flat)).tolist()
    return np.diff([0, *changes, mask.size]).tolist()


def test_polygons_are_those_of_the_reference():
    rng = np.random.default_rng(0)
    for _ in range(60):
        height, width = rng.integers(5, 60, 2).tolist()
        polygons = []
        for _ in range(int(rng.integers(1, 4))):
            corners = rng.uniform(-0.3, 1.3, (int(rng.integers(3, 9)), 2)) * (width, height)
            polygons.append((corners.round() if rng.random() < 0.3 else corners).reshape(-1).tolist())
        wanted = np.logical_or.reduce([reference.mask_of_polygon(each, height, width) for each in polygons])
        found = InstanceMasks("json:objects", min_pixels=0).move(
            value_of(polygons), View.whole((height, width), (height, width))
        )
        assert np.array_equal(found["masks"][0].numpy(), wanted.astype(np.uint8))


@pytest.mark.parametrize("interpolation", ["nearest-exact", "nearest"])
def test_run_lengths_are_moved_as_semantic_masks_over_random_chains(interpolation):
    rng = np.random.default_rng(1)
    semantic = Masks("png", interpolation=interpolation, fill=0)
    instances = InstanceMasks("json:objects", interpolation=interpolation, min_pixels=0)
    for number in range(40):
        source, box, size, flip, affine = chain(rng, most=120)
        view = view_of(source, box, size, flip, affine)
        masks = [
            rng.random(source) < 0.4,
            np.zeros(source, bool),
            np.ones(source, bool),
            reference.mask_of_polygon((rng.random((6, 2)) * source[::-1]).reshape(-1).tolist(), *source),
        ]
        counts = [counts_of(mask.astype(np.uint8)) for mask in masks]
        runs = [{"size": [*source], "counts": compressed(each) if number % 2 else each} for each in counts]
        found = instances.move(value_of(*runs), view)["masks"]
        for mask, one in zip(masks, found, strict=True):
            assert torch.equal(one, semantic.move(mask.astype(np.uint8), view).as_subclass(torch.Tensor))


def test_masks_and_boxes_of_an_object_are_dropped_together():
    square = {"segmentation": [[10, 10, 20, 10, 20, 20, 10, 20]], "bbox": [10, 10, 10, 10], "category_id": 3}
    thin = {"segmentation": [[40, 30, 41, 30, 41, 40, 40, 40]], "bbox": [40, 30, 1, 10], "category_id": 5}
    empty = {"segmentation": {"size": [48, 64], "counts": [48 * 64]}, "bbox": [1, 1, 9, 9], "category_id": 7}
    source = Scenes(dict.fromkeys(range(12), objects(square, thin, empty)))
    targets = [Boxes("json:objects", min_size=2), MASKS]
    found = []
    for options in (HERE, {"workers": 1}):
        split = Split(source, RandomResizedCrop(64), flip=0.5, targets=targets)
        loader = load(None, split=split, **options)
        batches = [target for batch in loader for target in batch.targets]
        loader.close()
        found.append(batches)
        for target in batches:
            assert set(target["labels"].tolist()) <= {3, 5}
            assert isinstance(target["masks"], tv_tensors.Mask)
            assert target["masks"].shape == (len(target["boxes"]), 64, 64)
            for box, mask in zip(target["boxes"].numpy(), target["masks"].numpy(), strict=True):
                y, x = np.nonzero(mask)
                bounds = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
                assert np.abs(bounds - box).max() <= 0.501
    for one, other in zip(*found, strict=True):
        assert torch.equal(one["masks"], other["masks"])
    (only,) = (MASKS.move(value_of(square["segmentation"]), View.whole((48, 64), (48, 64)))["masks"],)
    assert only.sum() == 100


BROKEN = {
    "text": ("abc", "neither"),
    "none": ([], "is missing or empty"),
    "two points": ([[1, 2, 3, 4]], "polygon"),
    "odd": ([[1, 2, 3, 4, 5, 6, 7]], "polygon"),
    "NaN": ([[1, 2, 3, 4, 5, float("nan")]], "pixels"),
    "far": ([[1, 2, 3, 4, 5, 1e9]], "pixels"),
    "long": ([[0, 0, 9e6, 0, 9e6, 9e6]], "pixels long"),
    "size": ({"size": [4, 4], "counts": [16]}, r"size \[4, 4\].*48 x 64"),
    "sum": ({"size": [48, 64], "counts": [16]}, "16 pixels, not 48 x 64"),
    "negative": ({"size": [48, 64], "counts": [-16]}, "run lengths"),
    "damaged": ({"size": [48, 64], "counts": "oo"}, "run lengths"),
    "no size": ({"counts": [16]}, "run lengths"),
    "floats": ({"size": [48, 64], "counts": [48 * 64.0]}, "run lengths"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_outlines_follow_on_error(name):
    segmentation, text = BROKEN[name]
    good = objects({"segmentation": [[10, 10, 20, 10, 20, 20, 10, 20]]})
    members = dict.fromkeys(range(12), good) | {5: objects({"segmentation": segmentation})}
    split = Split(Scenes(members), Whole(16), targets=MASKS)
    with pytest.raises(ShardError, match=f"key 'scene/005'.*objects.0.segmentation.*{text}"):
        list(load(None, split=split, on_error="raise", **HERE))
    with pytest.warns(UserWarning, match="key 'scene/005'.*takes its place"):
        assert sum(len(batch.targets) for batch in load(None, split=split, **HERE)) == 12


def test_a_missing_field_is_named():
    with pytest.raises(ShardError, match=r"objects\.1\.outline.*missing"):
        content = objects({"outline": [[1, 1, 2, 2, 3, 1]]}, {"segmentation": []})
        masks = InstanceMasks("json:objects", outline="outline")
        raise masks.read(Scenes({0: content}, count=1), np.array([0]))[0]


def test_json_is_parsed_once_for_all_targets_of_the_same_samples(monkeypatch):
    calls = []
    real = annotations.document_of
    monkeypatch.setattr(annotations, "document_of", lambda *given: calls.append(given) or real(*given))
    square = {"segmentation": [[1, 1, 9, 1, 9, 9]], "bbox": [1, 1, 8, 8], "category_id": 1}
    content = objects(square, more=np.nan)
    source = Scenes(dict.fromkeys(range(3), content), count=3)  # NaN is left to Python's parser
    for ids in (np.arange(3), np.arange(2)):
        del calls[:]
        for target in (Boxes("json:objects"), MASKS, Boxes("json:objects", label=None)):
            assert len(target.read(source, ids)) == len(ids)
        assert len(calls) == len(ids)


def test_the_pixels_of_all_masks_of_an_image_are_bounded(monkeypatch):
    monkeypatch.setattr(instances, "_MOST_PIXELS", 2 * 48 * 64)
    value = value_of(*[[[1, 1, 9, 1, 9, 9]]] * 3)
    (reason,) = MASKS.misfits([value], np.array([[48, 64]], np.int32))
    assert "3 objects" in reason and "pixels" in reason
    assert MASKS.misfits([value_of(*[[[1, 1, 9, 1, 9, 9]]] * 2)], np.array([[48, 64]], np.int32)) == [""]


def test_the_length_of_outlines_is_bounded_per_object():
    most = (1 << 20) / 5  # pixels
    value_of([[0, 0, most / 2 - 1, 0, 0, 0]], [[0, 0, most / 2 - 1, 0, 0, 0]])
    with pytest.raises(ShardError, match=r"objects\.1\.segmentation.*pixels long"):
        value_of([[0, 0, 9, 0, 0, 9]], [[0, 0, most / 2, 0, 0, 0], [0, 0, 9, 0, 0, 9]])


def test_a_batch_without_rows():
    view = View.whole((48, 64), (16, 16), 0)
    assert MASKS.move_all([], view).bits["masks"].shape == (0, 32)


def test_images_without_objects_have_no_masks():
    source = Scenes(dict.fromkeys(range(12), objects()))
    split = Split(source, Whole(16), targets=[Boxes("json:objects"), MASKS])
    target = next(iter(load(None, split=split, **HERE))).targets[0]
    assert target["masks"].shape == (0, 16, 16)


@pytest.mark.parametrize(
    "options",
    [{"objects": "json:"}, {"outline": ""}, {"min_pixels": -1}, {"interpolation": "linear"}, {"image_id": 3}],
    ids=repr,
)
def test_wrong_settings(options):
    name = "first argument" if "objects" in options else next(iter(options))
    with pytest.raises(ValueError, match=name):
        InstanceMasks(**{"objects": "json:objects", **options})


@pytest.mark.parametrize("crop", [Whole((48, 64)), Mosaic(64)])
@pytest.mark.parametrize("form", ["boxes first", "boxes last", "by name", "asked twice", "a map"])
def test_the_image_id_of_several_targets_is_the_one_that_was_asked_for(form, crop):
    square = [[10, 10, 20, 10, 20, 20, 10, 20]]
    annotation = {"bbox": [10, 10, 10, 10], "category_id": 1, "segmentation": square, "number": 1}
    picture = np.zeros((48, 64), np.uint8)
    picture[10:20, 10:20] = 1
    png = saved(Image.fromarray(picture), "PNG")
    source = Scenes({number: objects(annotation, id=300 - number) | {"png": png} for number in range(12)})
    boxes, masks = Boxes("json:objects", image_id="id"), InstanceMasks("json:objects")
    targets = {
        "boxes first": [boxes, masks],
        "boxes last": [masks, boxes],
        "by name": {"a": boxes, "b": masks},
        "asked twice": [Boxes("json:objects"), replace(masks, image_id="id")],
        "a map": [boxes, InstanceMap("png", objects="json:objects", id="number")],
    }[form]
    split = Split(source, crop, targets=targets)
    batches = list(load(None, split=split, **HERE))
    assert len(batches) > 1
    for batch in batches:
        assert [target["image_id"] for target in batch.targets] == [300 - int(key[-3:]) for key in batch.key]
