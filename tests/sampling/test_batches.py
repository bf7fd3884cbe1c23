"""Epochs cut into batches over ranks: every sample exactly once, equal counts, no empty slice."""

from __future__ import annotations

import functools
import itertools
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.samplers import make_sampler
from hypothesis import assume, given, settings, strategies as st
from tarpeg import Blocks
from tarpeg.errors import ShardError
from tarpeg.sampling.epochs import EpochCounter
from tarpeg.sampling.sampler import DistributedBatchSampler as Batches


@settings(deadline=None, max_examples=600)
@given(st.integers(1, 1024), st.integers(0, 20_000), st.integers(0, 10_000), st.booleans())
def test_plan_any(world, extra_batch, extra_samples, drop_last):
    """Every sample exactly once (except a dropped tail), ranks equal within one sample and never empty."""
    global_batch, samples = world + extra_batch, world + extra_samples
    assume(samples >= global_batch or not drop_last)
    batches, at = Batches(samples, global_batch, world, drop_last), 0
    for k in range(len(batches)):
        start, stop = batches.bounds(k)
        assert start == at
        slices = [batches.rank_bounds(k, rank) for rank in range(batches.world)]
        assert slices[0][0] == start and slices[-1][1] == stop
        assert all(a[1] == b[0] for a, b in itertools.pairwise(slices))
        counts = {stop - start for start, stop in slices}
        assert min(counts) >= 1 and max(counts) - min(counts) <= 1
        at = stop
    assert 0 <= samples - at < (global_batch if drop_last else 1)
    assert len(batches) >= 1


def test_plan_exact():
    def cut(*arguments):
        batches = Batches(*arguments)
        return [batches.bounds(k) for k in range(len(batches))]

    assert cut(10, 4) == cut(10, 4, 2) == [(0, 4), (4, 8), (8, 10)]
    assert cut(9, 4, 2) == [(0, 4), (4, 9)]
    assert cut(9, 4, 2, True) == cut(8, 4, 2) == cut(8, 4, 2, True) == [(0, 4), (4, 8)]
    assert cut(3, 100, 3) == [(0, 3)]
    batches = Batches(9, 4, 2)
    assert [batches.rank_bounds(1, rank) for rank in (0, 1)] == [(4, 6), (6, 9)]
    assert [batches.largest(rank) for rank in (0, 1)] == [2, 3]
    for k, rank, error in ((2, 0, "k=2"), (-1, 0, "k=-1"), (0, 2, "rank=2"), (0, -1, "rank=-1")):
        with pytest.raises(IndexError, match=error):
            batches.rank_bounds(k, rank)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((5, 8, 8), ShardError, "samples=5 .*world=8"),
        ((0, 8, 1), ShardError, "samples=0"),
        ((100, 3, 4), ValueError, "global_batch=3 .*world=4"),
        ((100, 3, 0), ValueError, "world=0"),
        ((100, 0, 1), ValueError, "global_batch=0"),
        ((7, 8, 1, True), ShardError, "drop_last=True"),
    ],
)
def test_refused_sizes(arguments, error, message):
    with pytest.raises(error, match=message):
        Batches(*arguments)


KINDS = {
    "full": {},
    "blocks": {"shuffle": Blocks(32, 4)},
    "subset": {"subset": np.arange(1, 4099, 2)},
    "weights": {"weights": np.arange(4099) % 5},
    "weighted subset": {"subset": 0.7, "weights": np.arange(4099) % 5, "shuffle": Blocks(32, 4)},
}


def requests(batches, sampler, rank, epoch, first=0):
    return list(batches.requests(sampler, rank, epoch, first, lambda epoch: False))


@pytest.mark.sweep
@pytest.mark.parametrize("world", [1, 2, 3, 7, 64, 1000, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_the_planned_multiset_over_all_ranks(world, kind):
    sampler = make_sampler(4099, **KINDS[kind])
    for global_batch in (world, 2 * world + 1, 1031 + world):
        batches = Batches(len(sampler), global_batch, world)
        drawn = SimpleNamespace(draw_epoch=functools.cache(sampler.draw_epoch))  # 1,024 ranks, one machine
        asked = [request for rank in range(world) for request in requests(batches, drawn, rank, 5)]
        ids = np.concatenate([request.ids for request in asked])
        assert np.sort(ids).tolist() == np.sort(sampler.draw_epoch(5)[0]).tolist()
        if "weights" in kind:
            occurrence = np.concatenate([request.occurrence for request in asked])
            pairs = set(zip(ids.tolist(), occurrence.tolist(), strict=True))
            assert len(pairs) == len(ids), "each occurrence comes once"


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", ["full", "weights"])
def test_requests_are_slices_of_the_epoch_from_any_batch_on(kind, drop_last):
    options = {"weights": np.arange(35) % 5} if kind == "weights" else {}
    batches, sampler = Batches(35, 8, 3, drop_last), make_sampler(35, **options)
    ids, occurrence = sampler.draw_epoch(2)
    for rank in range(3):
        every = requests(batches, sampler, rank, 2)
        assert len(every) == len(batches)
        for k, request in enumerate(every):
            place = slice(*batches.rank_bounds(k, rank))
            assert request.epoch == 2 and request.ids.tolist() == ids[place].tolist()
            assert (request.occurrence is None) == (occurrence is None)
            assert occurrence is None or request.occurrence.tolist() == occurrence[place].tolist()
        for first in range(len(batches) + 1):
            rest = requests(batches, sampler, rank, 2, first)
            assert [request.ids.tolist() for request in rest] == [r.ids.tolist() for r in every[first:]]


def test_epochs_follow_while_the_callers_condition_holds():
    batches, sampler = Batches(10, 4), make_sampler(10)
    asked = list(batches.requests(sampler, 0, 3, 1, lambda epoch: epoch < 5))
    assert [request.epoch for request in asked] == [3, 3, 4, 4, 4]
    assert asked[2].ids.tolist() == sampler.draw_epoch(4)[0][:4].tolist()


@pytest.mark.parametrize(
    ("resumed", "epoch", "begins"),
    [((0, 5, False), None, (0, 5)), ((0, 8, True), 1, (1, 0)), ((0, 8, True), None, (1, 0))],
)
def test_an_epoch_begins_where_it_was_resumed(recwarn, resumed, epoch, begins):
    counter = EpochCounter()
    counter.resume(*resumed)
    if epoch is not None:
        counter.set_epoch(epoch)
    assert counter.begin() == begins and not recwarn.list
    assert counter.begin() == (begins[0] + 1, 0)


def test_an_epoch_is_an_integer():
    counter = EpochCounter()
    counter.set_epoch(np.int32(3))
    assert counter.begin() == (3, 0) and type(counter.epoch) is int
    for epoch in ("1", -1, 2**31, 1.0, True, None):
        with pytest.raises(ValueError, match=rf"epoch={epoch!r} must be an integer in 0\.\.2147483647"):
            counter.set_epoch(epoch)
    assert counter.begin() == (4, 0)


def test_the_place_of_a_counter_is_where_the_next_pass_begins():
    counter = EpochCounter()
    for is_end, epoch, place in (
        (False, None, (2, 5)),
        (False, 2, (2, 5)),
        (False, 3, (3, 0)),
        (True, 3, (3, 0)),
    ):
        counter.resume(2, 5, is_end)
        if epoch is not None:
            counter.set_epoch(epoch)
        assert counter.is_set == (epoch is not None) and counter.epoch == place[0]
        assert counter.place == place
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert counter.begin() == place and not counter.is_set


def test_batches_that_are_left_out_at_resume_are_a_warning():
    counter = EpochCounter()
    counter.resume(0, 5, False)
    counter.set_epoch(1)
    with pytest.warns(UserWarning, match="batch 5 of epoch 0.* epoch 1.* max_steps"):
        assert counter.begin() == (1, 0)


def test_a_counter_that_follows_another_begins_with_its_next_epoch():
    one, other = EpochCounter(), EpochCounter()
    one.set_epoch(5)
    assert other.follow(one) == (5, 0) and other.begin() == (5, 0)
    one.resume(7, 3, is_end=False)
    one.set_epoch(7)
    assert other.follow(one) == (7, 3) and other.is_within
    assert other.begin() == (7, 3) and not other.is_within


def test_weights_are_copied():
    """Else a loop that writes other weights into the array would change epochs that are being prepared."""
    weights = np.arange(35) % 5.0
    sampler = make_sampler(35, weights=weights)
    before = sampler.draw_epoch(1)[0].tolist()
    weights[:] = 0
    weights[3] = 1
    assert sampler.draw_epoch(1)[0].tolist() == before
