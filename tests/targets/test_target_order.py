"""Targets with the crops of detection: the same batches for any workers and ranks, and when a run goes on."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.loaders import load
from helpers.masks import png, regions
from helpers.scenes import Scenes, objects
from tarpeg import (
    Boxes,
    CenterCrop,
    CopyPaste,
    FloatMap,
    InstanceMap,
    InstanceMasks,
    LetterBox,
    Masks,
    PadMask,
    RandomIoUCrop,
    RandomShortestSize,
    ScaleJitter,
    Split,
    Whole,
)

CROPS = {
    "ScaleJitter": ScaleJitter(32, scale_range=(0.3, 2.0)),
    "RandomShortestSize": RandomShortestSize([24, 32], max_size=48, multiple=16),
    "RandomIoUCrop": RandomIoUCrop(32),
    "LetterBox": LetterBox(40),
}
COUNT = 24


def members(number):
    rng = np.random.default_rng(number)
    found = []
    for _ in range(3):
        x, y, width, height = (rng.uniform(2, 20, 4)).tolist()
        corners = [x, y, x + width, y, x + width, y + height]
        found.append({"bbox": [x, y, width, height], "category_id": 1, "segmentation": [corners]})
    return {**objects(*found), "png": png(regions(48, 64, number))}


SOURCE = Scenes({number: members(number) for number in range(COUNT)}, count=COUNT)


def loader_of(crop, **options):
    targets = [Boxes("json:objects"), InstanceMasks("json:objects"), Masks("png"), PadMask()]
    return load(None, split=Split(SOURCE, CROPS[crop], flip=0.5, targets=targets), seed=5, **options)


def samples_of(batches):
    """By number, the targets and the image of each sample, as tuples of tensors."""
    found = {}
    for batch in batches:
        for key, image, target in zip(batch.key, batch.image, batch.targets, strict=True):
            found[key] = (image, *(torch.as_tensor(target[name]) for name in sorted(target)))
    return found


def assert_same(found, wanted, but_size=False):
    assert found.keys() == wanted.keys()
    for key, tensors in found.items():
        for one, other in zip(tensors, wanted[key], strict=True):
            if but_size and one.dim() >= 2:  # the padding of a batch depends on its other images
                shape = [slice(min(sides)) for sides in zip(one.shape, other.shape, strict=True)]
                one, other = one[tuple(shape)], other[tuple(shape)]
            assert torch.equal(one, other)


@pytest.mark.parametrize("crop", CROPS)
def test_any_ranks_give_the_targets_of_one(crop):
    wanted = samples_of(loader_of(crop, workers=0, threads=0))
    assert len(wanted) == COUNT
    found = {}
    for rank in range(2):
        part = samples_of(loader_of(crop, workers=0, threads=2, rank=rank, world=2))
        assert not part.keys() & found.keys()
        found |= part
    assert_same(found, wanted, but_size=crop == "RandomShortestSize")


@pytest.mark.parametrize("crop", CROPS)
def test_a_run_goes_on_with_the_same_targets(crop):
    whole = [*loader_of(crop, workers=0, threads=0)]
    first, second = (loader_of(crop, workers=0, threads=0) for _ in range(2))
    for _, _ in zip(range(2), first, strict=False):
        pass
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert_same(samples_of(second), samples_of(whole[2:]))


def test_any_workers_give_the_same_targets():
    for crop, workers in (*((name, 2) for name in CROPS), ("ScaleJitter", 1)):
        loader = loader_of(crop, workers=workers)
        assert_same(samples_of(loader), samples_of(loader_of(crop, workers=0, threads=0)))
        loader.close()


LEAVES = {
    "Masks": Masks("png"),
    "Boxes": Boxes("json:objects"),
    "InstanceMasks": InstanceMasks("json:objects"),
    "InstanceMap": InstanceMap("png"),
    "FloatMap": FloatMap("png"),
    "all": [Boxes("json:objects"), InstanceMasks("json:objects"), Masks("png"), PadMask()],
}


RAGGED = CROPS["ScaleJitter"]
EMPTIED = [
    *((name, crop) for name in LEAVES for crop in (RAGGED, Whole(32), [Whole(32), CenterCrop(24)])),
    ("all", CopyPaste(RAGGED)),
    ("all", RandomIoUCrop(32)),
]


@pytest.mark.parametrize(("name", "crop"), EMPTIED)
def test_a_batch_of_which_all_is_left_out_is_empty(name, crop):
    """A batch of one sample, say, whose image is damaged; or its target."""
    for extension in ("jpg", "png" if "M" in name and name != "InstanceMasks" else "json"):
        contents = {number: members(number) for number in range(3)}
        contents[1][extension] = b"not what it is"
        split = Split(Scenes(contents, count=3), crop, targets=LEAVES[name])
        loader = load(
            None, split=split, batch_size=1, shuffle=False, workers=0, on_error="leave_out", max_bad=1.0
        )
        with pytest.warns(UserWarning, match=r"scene/001.*left out"):
            batches = [*loader]
        assert [batch.key for batch in batches] == [["scene/000"], [], ["scene/002"]]
        views = batches[1].targets if isinstance(crop, list) else [batches[1].targets]
        assert not any(len(view.get("mask", ())) if isinstance(view, dict) else len(view) for view in views)
