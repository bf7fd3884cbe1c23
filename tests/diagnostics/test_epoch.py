"""The plan of an epoch is what the epoch will be."""

from __future__ import annotations

import json
import math

import pytest
import tarpeg
from helpers.captions import Captioned, tokenize
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
    assert f"a crop shows {shown / samples:.1%} of its image on average" in text


def test_a_stream_has_no_plan(tmp_path):
    tarpeg.make_shards(tmp_path, tarpeg.Photos(size=48), samples=4, workers=0)
    loader = Loader(Split(tmp_path / "*.tar", RandomCrop(32), streaming=True), workers=0)
    with pytest.raises(ValueError, match="stream"):
        plan_epoch(loader)


def tokenize_and_pad(text):
    """As a tokenizer of transformers that pads to 12."""
    tokens = tokenize(text)
    rest = 12 - len(tokens)
    return {"input_ids": tokens + [5] * rest, "attention_mask": [1] * len(tokens) + [0] * rest}


@pytest.mark.parametrize("choose", ["random", "all"])
@pytest.mark.parametrize("max_length", [None, 4])
def test_the_tokens_of_captions_are_those_that_come(choose, max_length):
    texts = {
        "short": tarpeg.Text("json:one", tokenize, max_length=max_length),
        "long": tarpeg.Text("txt", tokenize, max_length=max_length, choose=choose, lines=True),
        "masked": tarpeg.Text("json:one", tokenize_and_pad, max_length=max_length),
        "plain": tarpeg.Text("txt", lines=True),
    }
    loader = Loader(Split(Captioned(), RandomCrop(32), members=texts), batch_size=5, workers=0)
    plan = plan_epoch(loader)
    expected = {name: [0, 0, 0] for name in ("short", "long", "masked")}
    for batch in loader:
        for name, found in expected.items():
            mask = batch.extra[name].attention_mask
            found[0] += int((mask.sum(-1) > 0).sum())
            found[1] += int(mask.sum())
            found[2] += mask.numel()
    assert {each.name: [each.captions, each.tokens, each.places] for each in plan.captions} == expected
    (short, *_), (_, tokens, places) = plan.captions, expected["short"]
    assert short.samples == 23 and short.broken == 0 and short.padding == pytest.approx(1 - tokens / places)
    text = f"captions 'short' of 23 samples: {tokens / 23:.1f} tokens each, {short.longest} at most"
    assert text in str(plan) and ("have max_length=4" in str(plan)) == (max_length == 4)
    assert [each.samples for each in plan_epoch(loader, captions=7).captions] == [10, 10, 10]
    assert plan_epoch(loader, captions=0).captions == []


def test_the_captions_of_a_mixture_and_broken_ones():
    text = tarpeg.Text("txt", tokenize, lines=True)
    sources = {"a": Captioned(9), "b": Captioned(6, seed=1, k2={"txt": b" "})}
    splits = {name: Split(source, RandomCrop(32), members=text) for name, source in sources.items()}
    mixture = tarpeg.Mixture(splits, repeat={"a": 1, "b": 1})
    (plan,) = plan_epoch(tarpeg.MixtureLoader(mixture, 5, workers=0)).captions
    assert (plan.name, plan.samples, plan.captions, plan.broken) == ("", 15, 14, 1)
    assert "1 samples have none or a broken one" in str(plan)


@pytest.mark.parametrize("world", [1, 2])
def test_the_plan_of_a_mixture_has_the_samples_of_each_source(world):
    splits = {name: Split(Captioned(count), RandomCrop(32)) for name, count in (("a", 9), ("b", 6))}
    weights = {0: {"a": 1, "b": 0}, 2: {"a": 0.5, "b": 0.5}}
    mixture = tarpeg.Mixture(splits, weights=weights, stopping="all_exhausted")
    loader = tarpeg.MixtureLoader(mixture, 4 // world, workers=0, rank=0, world=world)
    assert plan_epoch(loader).sources == {"a": (12, pytest.approx(12 / 9)), "b": (0, 0)}
    plan = plan_epoch(loader, 2)
    assert plan.sources == {"a": (10, pytest.approx(10 / 9)), "b": (10, pytest.approx(10 / 6))}
    assert "\n  a: 10 samples, 1.11 of its epochs\n  b: 10 samples, 1.67 of its epochs\n" in str(plan)


def test_a_batch_of_several_views_or_parts_counts_once():
    crops = {2: [RandomCrop(32)] * 2, 3: [RandomCrop(32), RandomCrop(16), RandomCrop(32)]}
    for count, crop in crops.items():
        plan = plan_epoch(Loader(Split(Pictures(), crop), batch_size=4, workers=0))
        samples = plan.samples
        assert {(each.batches, each.samples) for each in plan.shapes} == {(plan.batches, samples)}
        assert plan.pixels == samples * {2: 2 * 32 * 32, 3: 2 * 32 * 32 + 16 * 16}[count]
    split = Split(Pictures(), tarpeg.Mosaic(32), target=None)
    plan = plan_epoch(Loader(split, batch_size=4, workers=0))
    assert [(each.batches, each.samples) for each in plan.shapes] == [(plan.batches, plan.samples)]
    assert plan.pixels == plan.samples * 32 * 32 and 0 <= plan.padding < 1
