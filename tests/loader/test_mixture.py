"""Mixtures: pixels are those of each source, shares, resume at each step, ranks, what is refused."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import tarpeg
import torch
from helpers.own_source import Pictures
from hypothesis import assume, given, settings, strategies as st
from tarpeg import (
    CenterCrop,
    LoaderConfig,
    Mixture,
    MixtureLoader,
    RandomResizedCrop,
    ResumeError,
    ShardError,
    Split,
)

SOURCES = {"a": Pictures(11, 0), "b": Pictures(7, 100), "c": Pictures(3, 200)}
SPLITS = {
    "a": Split(SOURCES["a"], RandomResizedCrop(32), flip=0.5),
    "b": Split(SOURCES["b"], CenterCrop(32)),
    "c": Split(SOURCES["c"], RandomResizedCrop(32)),
}
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
MIXTURE = Mixture(SPLITS, weights=WEIGHTS, stopping="all_exhausted")
CONFIG = LoaderConfig(batch_size=6, workers=0)


def loader_of(mixture=MIXTURE, rank=0, world=1, **options):
    return MixtureLoader(
        mixture, config=LoaderConfig(global_batch_size=6, workers=0), rank=rank, world=world, **options
    )


def rows(batch):
    return [
        (int(source), int(label), image.numpy().tobytes())
        for image, label, source in zip(batch.image, batch.label, batch.source, strict=True)
    ]


def flat(lists):
    return [item for each in lists for item in each]


def epochs(loader, count=2):
    return [[rows(batch) for batch in loader] for _ in range(count)]


def test_rows_are_those_of_the_sources_in_their_own_epochs():
    found = flat(flat(epochs(loader_of())))
    for number, split in enumerate(SPLITS.values()):
        own = [row[1:] for row in found if row[0] == number]
        loader = tarpeg.Loader(split, batch_size=1, workers=0)
        alone = []
        while len(alone) < len(own):
            alone += [
                (int(label), image.numpy().tobytes())
                for batch in loader
                for image, label in zip(*batch, strict=True)
            ]
        assert own == alone[: len(own)]


def test_resume_at_each_step_with_any_number_of_ranks():
    whole = flat(epochs(loader_of(), 3))
    length = len(loader_of())
    loader = loader_of()
    states = [loader.state_dict()]
    for _ in range(2):
        for _ in loader:
            states.append(loader.state_dict())
    for step, state in enumerate(states):
        world = 1 + step % 3
        parts = []
        for rank in range(world):
            other = loader_of(rank=rank, world=world)
            other.load_state_dict(state)
            rest = [] if step and step % length == 0 else [rows(batch) for batch in other]
            parts.append((rest + [rows(batch) for batch in other])[:length])
        merged = [sorted(flat(each)) for each in zip(*parts, strict=True)]
        assert merged == [sorted(batch) for batch in whole[step : step + len(merged)]]
        assert merged


POOL = Pictures(12, 0)
numbers = st.one_of(st.integers(1, 5), st.floats(0.4, 3))


class Few(tarpeg.Source):
    """The first of the pool."""

    def __init__(self, count, first):
        self.count, self.first = count, first

    def __len__(self):
        return self.count

    def keys(self, ids):
        return POOL.keys(ids)

    def members(self, ids, extension):
        return (
            POOL.members(ids, "jpg") if extension == "jpg" else [str(self.first + id).encode() for id in ids]
        )

    def extensions(self, id):
        return ["jpg", "cls"]


@st.composite
def mixtures(draw):
    """A mixture of three, a global batch, and two numbers of ranks."""
    splits = {
        name: Split(Few(draw(st.integers(1, 12)), first), CenterCrop(8), flip=0.5)
        for first, name in enumerate("abc")
    }
    batch = draw(st.integers(1, 9))
    shares = {name: draw(numbers) for name in "abc"}
    options = {"batches": draw(st.sampled_from(["stratified", "per_source"]))}
    if draw(st.booleans()):
        options["repeat"] = {name: share / 2 for name, share in shares.items()}
    else:
        later = {name: draw(st.one_of(st.just(0), numbers)) for name in "bc"}
        options["weights"] = draw(st.sampled_from([shares, {0: shares, 1: {"a": 1, **later}}]))
        options["stopping"] = draw(st.sampled_from(["first_exhausted", "all_exhausted"]))
    worlds = st.integers(1, min(3, batch))
    return Mixture(splits, **options), batch, draw(worlds), draw(worlds)


@settings(max_examples=25, deadline=None)
@given(mixtures(), st.integers(0, 3), st.integers(0, 2))
def test_any_mixture_has_exact_shares_and_resumes_at_each_step(arguments, seed, first):
    mixture, batch, world, other = arguments
    config = LoaderConfig(global_batch_size=batch, workers=0, threads=0, seed=seed)

    def loaders(world):
        return [MixtureLoader(mixture, config=config, rank=rank, world=world) for rank in range(world)]

    def epoch(ranks):
        """The rows of each global batch."""
        parts = [[short(step) for step in rank] for rank in ranks]
        return [sorted(flat(each)) for each in zip(*parts, strict=True)]

    try:
        ranks = loaders(world)
    except ShardError as error:
        assert "leaves no batch" in str(error) and mixture.stopping == "first_exhausted"
        return
    mixing = ranks[0]._mixed.mixing
    assume(max(mixing.length(number) for number in range(4)) <= 12)
    for rank in ranks:
        rank.sampler.set_epoch(first)
    states, parts = [], []
    for step in zip(*ranks, strict=True):
        states.append([rank.state_dict() for rank in ranks])
        parts.append([short(each) for each in step])
    whole, following = [sorted(flat(each)) for each in parts], epoch(ranks)
    shares = mixing.shares[mixing._stage(first)].values
    counts = np.array([[sum(row[0] == source for row in each) for source in range(3)] for each in whole])
    assert (counts.sum(axis=1) == batch).all()
    if mixture.batches == "stratified":
        assert (np.abs(counts - shares * batch) < 1).all()
        assert (np.abs(counts.sum(axis=0) - shares * batch * len(whole)) < 1 + 1e-6).all()
    else:
        assert (counts.max(axis=1) == batch).all()
    for step, each in enumerate(states, 1):
        assert all(state == each[0] for state in each), "equal on all ranks"
        resumed = loaders(other)
        for rank in resumed:
            rank.load_state_dict(each[0])
        assert step == len(whole) or epoch(resumed) == whole[step:]
        assert step not in (1, len(whole)) or epoch(resumed) == following


def short(batch):
    return [(source, label, zlib.crc32(pixels)) for source, label, pixels in rows(batch)]


def test_per_source_batches_may_have_several_shapes():
    splits = {**SPLITS, "c": Split(SOURCES["c"], CenterCrop((24, 40)))}
    mixture = Mixture(splits, weights=WEIGHTS, stopping="all_exhausted", batches="per_source")
    shapes = {(int(batch.source[0]), tuple(batch.image.shape[2:])) for batch in loader_of(mixture)}
    assert shapes == {(0, (32, 32)), (1, (32, 32)), (2, (24, 40))}
    with pytest.raises(ValueError, match=r"images .*'a' and 'c'"):
        loader_of(Mixture(splits, weights=WEIGHTS))


def test_worker_processes_and_augmentation():
    results = []
    for workers in (0, 2):
        loader = MixtureLoader(MIXTURE, 6, workers=workers, augment=tarpeg.Augment())
        results.append(list(loader))
        loader.close()
    for one, other in zip(*results, strict=True):
        assert one.image.dtype == torch.float32
        assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


def test_states_of_other_mixtures_are_refused():
    state = loader_of().state_dict()
    others = {**SPLITS, "b": Split(Pictures(8, 100), CenterCrop(32))}
    with pytest.raises(ResumeError, match="samples of b was"):
        loader_of(Mixture(others, weights=WEIGHTS, stopping="all_exhausted")).load_state_dict(state)
    with pytest.raises(ResumeError, match="weights or repeat"):
        loader_of(Mixture(SPLITS, repeat=dict.fromkeys("abc", 1))).load_state_dict(state)
    mixed = Mixture(dict(reversed(SPLITS.items())), weights=WEIGHTS, stopping="all_exhausted")
    with pytest.raises(ResumeError, match=r"sources was .*a.*b.*c.* is .*c.*b.*a"):
        loader_of(mixed).load_state_dict(state)
    same = Split(SOURCES["a"], CenterCrop(16))  # of which a state differs in nothing but the names
    for names in ("ab", "ba"):
        loader = loader_of(Mixture(dict.fromkeys(names, same), weights={"a": 1, "b": 1}))
        if names == "ab":
            state_of_two = loader.state_dict()
    with pytest.raises(ResumeError, match="sources was"):
        loader.load_state_dict(state_of_two)
    loader.load_state_dict({name: value for name, value in state_of_two.items() if name != "sources"})
    with pytest.raises(ResumeError, match="batches=99"):
        loader_of().load_state_dict({**state, "batches": 99})
    for name in ("mixture", "seed", "order of a", "data of b"):
        for odd in (np.arange(2), torch.arange(2), None, "x" * 10**6):
            with pytest.raises(ResumeError) as caught:
                loader_of().load_state_dict({**state, name: odd})
            assert len(str(caught.value)) < 2500
    with pytest.raises(ResumeError, match="epoch"):
        loader_of().load_state_dict({**state, "epoch": "1"})
    with pytest.raises(ResumeError, match="epoch="):
        loader_of().load_state_dict({**state, "epoch": 2**62})
    with pytest.raises(ResumeError, match=r"version=9.*Update"):
        loader_of().load_state_dict({**state, "version": 9})


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "weights=None and repeat=None"),
        ({"weights": WEIGHTS, "repeat": WEIGHTS}, "give one"),
        ({"weights": {"a": 1}}, "'b'"),
        ({"weights": WEIGHTS, "stopping": "never"}, "stopping='never'"),
        ({"weights": WEIGHTS, "batches": "mixed"}, "batches='mixed'"),
        ({"repeat": WEIGHTS, "stopping": "all_exhausted"}, "stopping="),
        ({"weights": WEIGHTS, "sources": {"a": 3}}, "sources.'a'"),
        ({"weights": {"a": 1}, "sources": {"a": Split(SOURCES["a"], CenterCrop(8), views=2)}}, "'a'.* views"),
        (
            {"weights": {"a": 1}, "sources": {"a": Split(SOURCES["a"], tarpeg.AspectBuckets(64))}},
            "'a'.*AspectB",
        ),
        (
            {
                "weights": {"a": 1},
                "sources": {"a": Split(SOURCES["a"], tarpeg.Mosaic(8), target=None)},
            },
            "'a'.*several samples",
        ),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        Mixture(**{"sources": SPLITS, **arguments})


def test_broken_images_are_replaced_within_their_source():
    broken = Pictures(7, 100)
    broken.files[2] = b"broken"
    mixture = Mixture(
        {**SPLITS, "b": Split(broken, CenterCrop(32))}, weights=WEIGHTS, stopping="all_exhausted"
    )
    loader = loader_of(mixture)
    with pytest.warns(UserWarning, match=r"102|key '2'"):
        labels = np.concatenate([np.stack([batch.label, batch.source]) for batch in loader], axis=1)
    assert loader.substituted >= 1
    assert (labels[0] // 100 == labels[1]).all()
    assert 102 not in labels[0]


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"keys": True}, "'keys'; give members= to all splits of the mixture: then batches have keys"),
        ({"global_batch_size": 8}, r"give config=LoaderConfig\(global_batch_size=\.\.\.\)"),
        ({"targets": None}, r"give it to a split of the mixture: Split\(targets=\.\.\.\)"),
    ],
)
def test_an_argument_that_a_mixture_does_not_have_is_explained(given, remedy):
    with pytest.raises(TypeError, match=rf"MixtureLoader\(\) has no argument .*{remedy}"):
        tarpeg.MixtureLoader(None, **given)
