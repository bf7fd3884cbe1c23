"""States of loaders with buckets: any number of samples, batch sizes, budgets, remainders and ranks."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tarpeg
from helpers.pictures import jpeg
from hypothesis import given, settings, strategies as st
from tarpeg import AspectBuckets, Loader, LoaderConfig, RandomCrop, ResumeError, Split
from torchdata.stateful_dataloader import StatefulDataLoader

SIDES = [(24, 60), (60, 24), (40, 40), (33, 48), (48, 33), (30, 70)]
FILES = [jpeg("420", *side, seed) for seed, side in enumerate(SIDES)]
BUCKETS = [(8, 16), (16, 8), (12, 12), (8, 12)]


class Pictures(tarpeg.Source):
    """Few JPEGs of several shapes, each of which comes often."""

    def __init__(self, kinds):
        self.kinds = kinds

    def __len__(self):
        return len(self.kinds)

    def keys(self, ids):
        return [str(id) for id in ids]

    def members(self, ids, extension):
        return [FILES[self.kinds[id]] if extension == "jpg" else str(id).encode() for id in ids]

    def extensions(self, id):
        return ["jpg", "cls"]


@st.composite
def loaders(draw):
    """Arguments of a loader, and a number of ranks."""
    world = draw(st.integers(1, 3))
    kinds = draw(st.lists(st.integers(0, len(SIDES) - 1), min_size=world, max_size=40))
    budget = draw(st.sampled_from([None, 144, 300, 700]))
    batch = draw(st.integers(world, 9))
    crop = AspectBuckets(
        buckets=BUCKETS,
        upscale=True,
        remainder=draw(st.sampled_from(["smaller", "merge"])),
        max_pixels_per_batch=budget,
        min_batch=1 if budget else draw(st.integers(1, min(batch, 4))),
    )
    config = LoaderConfig(global_batch_size=batch, workers=0, threads=0, seed=draw(st.integers(0, 3)))
    return Split(Pictures(kinds), crop, flip=0.5), config, world


def labels(batches):
    return [(tuple(batch.image.shape[2:]), batch.label.tolist()) for batch in batches]


@settings(max_examples=60, deadline=None)
@given(loaders(), st.data())
def test_a_state_of_any_step_continues_there(arguments, data):
    split, config, world = arguments
    ranks = [Loader(split, config=config, rank=rank, world=world) for rank in range(world)]
    count = len(ranks[0])
    step = data.draw(st.integers(0, 2 * count), label="step")
    rest, state = [], None
    for loader in ranks:
        whole = []
        for _ in range(3):
            for batch in loader:
                whole += labels([batch])
                if len(whole) == step:
                    state = json.loads(json.dumps(loader.state_dict()))
        assert len(whole) == 3 * count, "as many batches on all ranks"
        rest.append(whole[step:])
    seen = sorted(label for rank in rest for _, part in rank[-count:] for label in part)
    assert seen == list(range(len(split.shards))), "every sample once"
    if state is None:
        return
    for rank, expected in enumerate(rest):
        loader = Loader(split, config=config, rank=rank, world=world)
        loader.load_state_dict(state)
        found = labels(loader)
        assert found == expected[: count - step % count]


@settings(max_examples=40, deadline=None)
@given(loaders(), st.integers(1, 3), st.data())
def test_another_number_of_ranks_makes_the_same_batches_or_is_an_error(arguments, other, data):
    split, config, world = arguments
    if other > min(len(split.shards), config.global_batch_size):
        return
    ranks = [Loader(split, config=config, rank=rank, world=world) for rank in range(world)]
    whole = merged([labels(loader) for loader in ranks])
    step = data.draw(st.integers(1, len(whole)), label="step")
    batches = iter(ranks[0])
    ranks[0].sampler.set_epoch(0)
    for _ in range(step):
        next(batches)
    state = ranks[0].state_dict()
    rest = []
    for rank in range(other):
        loader = Loader(split, config=config, rank=rank, world=other)
        try:
            loader.load_state_dict(state)
        except ResumeError as error:
            # A budget per rank makes other full batches, also where all that there are are remainders.
            fact = "order|global_batch" if split.crop.max_pixels_per_batch else "order"
            assert re.search(f"({fact}) was.*ranks", str(error)) and step < len(whole)
            assert split.crop.min_batch < max(world, other), "it makes the same batches for fewer ranks"
            return
        rest.append(labels(loader))
    if step < len(whole):
        assert merged(rest) == whole[step:]


def merged(ranks):
    """The global batches of what each rank got."""
    return [
        (parts[0][0], sorted(label for _, part in parts for label in part))
        for parts in zip(*ranks, strict=True)
    ]


def test_through_a_stateful_data_loader():
    split = Split(Pictures([n % 6 for n in range(40)]), AspectBuckets(buckets=BUCKETS, upscale=True))

    def outer():
        loader = Loader(split, batch_size=4, workers=0)
        return StatefulDataLoader(tarpeg.Dataset(loader), batch_size=None)

    whole = labels(outer())
    assert len(whole) > 10, "more than samples / global_batch"
    for step in range(1, len(whole)):
        first = outer()
        batches = iter(first)
        for _ in range(step):
            next(batches)
        second = outer()
        second.load_state_dict(first.state_dict())
        assert labels(second) == whole[step:]


def test_a_state_from_the_end_goes_on_with_another_crop():
    source = Pictures([n % 6 for n in range(40)])
    crops = AspectBuckets(buckets=BUCKETS, upscale=True), RandomCrop(8)
    for before, after in (crops, crops[::-1]):
        loader = Loader(Split(source, before), batch_size=4, workers=0)
        middle = []
        for _ in loader:
            middle.append(loader.state_dict())
        other = Loader(Split(source, after), batch_size=4, workers=0)
        other.load_state_dict(loader.state_dict())
        assert other.state_dict()["epoch"] == 0 and len(labels(other)) == len(other)
        with pytest.raises(ResumeError, match="order"):
            other.load_state_dict(middle[2])


@pytest.mark.parametrize("change", [{"len": 0}, {"len": 41}, {"shapes": 0}, {"shapes": "3"}, {"batches": 99}])
def test_numbers_that_cannot_be(change):
    loader = Loader(
        Split(Pictures([n % 6 for n in range(40)]), AspectBuckets(buckets=BUCKETS, upscale=True)),
        batch_size=4,
        workers=0,
    )
    next(iter(loader))
    state = {**loader.state_dict(), **change}
    with pytest.raises(ResumeError, match=next(iter(change))):
        loader.load_state_dict(state)
    assert np.isscalar(loader.state_dict()["shapes"])
