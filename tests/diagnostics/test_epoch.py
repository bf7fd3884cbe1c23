"""The plan of an epoch is what the epoch will be."""

from __future__ import annotations

import json
import math

import pytest
import tarpeg
from helpers.pictures import jpeg
from tarpeg import AspectBuckets, LetterBox, Loader, RandomCrop, RandomShortestSize, Split, plan_epoch

SHAPES = [
    (48, 64),
    (64, 48),
    (40, 100),
    (33, 33),
    (90, 70),
    (120, 64),
    (70, 71),
    (36, 52),
    (80, 40),
    (50, 50),
]


class Pictures(tarpeg.Source):
    """JPEGs of several shapes."""

    def __init__(self):
        self.files = [jpeg("420", *shape, seed) for seed, shape in enumerate(SHAPES)]
        self.reads = 0

    def __len__(self):
        return len(self.files)

    def keys(self, ids):
        return [str(id) for id in ids]

    def members(self, ids, extension):
        content = {"cls": b"7", "json": json.dumps({"objects": []}).encode()}
        return [self.files[id] if extension == "jpg" else content.get(extension) for id in ids]

    def extensions(self, id):
        return ["jpg", "cls"]


CROPS = [
    RandomCrop(32),
    LetterBox((48, 40)),
    RandomShortestSize([32, 48], 64, multiple=16),
    AspectBuckets(buckets=[(32, 64), (48, 48), (64, 32)], upscale=True),
]


@pytest.mark.parametrize("crop", CROPS, ids=lambda crop: type(crop).__name__)
@pytest.mark.parametrize("world", [1, 2])
def test_the_plan_is_what_comes(crop, world):
    loader = Loader(Split(Pictures(), crop, flip=0.5), batch_size=3, workers=0, rank=world - 1, world=world)
    plan = plan_epoch(loader, 1)
    loader.sampler.set_epoch(1)
    shapes, pixels, shown, padding, enlarged, samples = {}, 0, 0.0, 0, 0, 0
    for images, _ in loader:
        (view,) = loader.claim().views
        assert view.size == tuple(images.shape[2:])
        shapes.setdefault(view.size, []).append(len(images))
        pixels += len(images) * math.prod(view.size)
        for row in range(len(images)):
            samples += 1
            shown += math.prod(view.boxes[row, 2:].tolist()) / math.prod(view.sizes[row].tolist())
            padding += math.prod(view.size) - math.prod(view.all_places[row, 2:].tolist())
            enlarged += bool((view.boxes[row, 2:] < view.all_places[row, 2:]).any())
    assert (plan.samples, plan.batches, plan.world, plan.pixels) == (len(SHAPES), len(loader), world, pixels)
    found = {each.shape: (each.batches, each.samples, each.smallest, each.largest) for each in plan.shapes}
    assert found == {shape: (len(each), sum(each), min(each), max(each)) for shape, each in shapes.items()}
    assert plan.shown == pytest.approx(shown / samples)
    assert plan.padding == pytest.approx(padding / pixels)
    assert plan.enlarged == pytest.approx(enlarged / samples)
    text = str(plan)
    assert f"epoch 1: {len(SHAPES)} samples" in text and "are padding" in text


def test_a_stream_has_no_plan(tmp_path):
    tarpeg.make_shards(tmp_path, tarpeg.Photos(size=48), samples=4, workers=0)
    loader = Loader(Split(tmp_path / "*.tar", RandomCrop(32), streaming=True), workers=0)
    with pytest.raises(ValueError, match="stream"):
        plan_epoch(loader)
