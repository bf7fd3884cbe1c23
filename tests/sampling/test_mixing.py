"""The schedule of a mixture: exact shares, every sample once per epoch of its source, ranks, epochs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tarpeg.errors import ShardError
from tarpeg.sampling.mixing import Mixing, Shares, checked_shares

WEIGHTS = st.lists(st.integers(1, 100), min_size=1, max_size=5)


def mixing(weights, sizes, batch, **options):
    values = np.array(weights, float)
    return Mixing(sizes, [Shares(0, values / values.sum())], batch, **options)


@settings(max_examples=25, deadline=None)
@given(WEIGHTS, st.integers(1, 40), st.data())
def test_shares_are_exact_in_each_batch_and_over_the_epoch(weights, batch, data):
    sizes = [data.draw(st.integers(1, 300)) for _ in weights]
    mixed = mixing(weights, sizes, batch, stopping="all_exhausted")
    stage = mixed.stages[0]
    assert (stage.counts.sum(axis=1) == batch).all()
    assert (np.abs(stage.counts - stage.shares * batch) < 1).all()
    assert (np.abs(stage.begins[-1] - stage.shares * batch * stage.length) < 1 + 1e-6).all()
    assert (stage.begins[-1] >= np.array(sizes) - 1).all()


@settings(max_examples=10, deadline=None)
@given(WEIGHTS, st.integers(3, 20), st.sampled_from(["stratified", "per_source"]), st.data())
def test_each_sample_once_per_epoch_of_its_source_on_any_ranks(weights, batch, batches, data):
    sizes = [data.draw(st.integers(1, 30)) for _ in weights]
    mixed = mixing(weights, sizes, batch, stopping="all_exhausted", batches=batches)
    found = [[] for _ in sizes]
    for epoch in (0, 1, 2):
        for k in range(min(mixed.length(epoch), 20)) if epoch == 2 else range(mixed.length(epoch)):
            whole = flat(mixed.rows(epoch, k))
            assert len(whole) == batch
            assert batches == "stratified" or len({source for source, _, _ in whole}) == 1
            for world in (2, 3):
                parts = [flat(mixed.rows(epoch, k, 1, rank, world)) for rank in range(world)]
                assert sorted(row for part in parts for row in part) == sorted(whole)
                assert [len(part) for part in parts] == [mixed.largest(rank, world) for rank in range(world)]
                counts = np.array(
                    [[sum(row[0] == s for row in part) for s in range(len(sizes))] for part in parts]
                )
                assert (np.ptp(counts, axis=0) <= 1).all()
            for source, number, place in whole:
                found[source].append(number * sizes[source] + place)
    for positions in found:  # the endless sequence of the source's epochs, without a gap
        assert positions == list(range(len(positions)))


def flat(rows, k=0):
    return list(zip(*(each[k].tolist() for each in rows), strict=True))


@settings(max_examples=10, deadline=None)
@given(WEIGHTS, st.integers(3, 20), st.integers(1, 3), st.integers(2, 7), st.data())
def test_rows_of_many_batches_are_those_of_each(weights, batch, world, count, data):
    mixed = mixing(weights, [data.draw(st.integers(1, 30)) for _ in weights], batch, stopping="all_exhausted")
    for epoch in (0, 3):
        length = mixed.length(epoch)
        for first in range(0, length, count):
            for rank in range(world):
                many = mixed.rows(epoch, first, count, rank, world)
                assert len(many.places) == min(count, length - first)
                for k in range(len(many.places)):
                    assert flat(many, k) == flat(mixed.rows(epoch, first + k, 1, rank, world))


def test_shares_change_by_epoch_and_go_on_where_they_were():
    shares = checked_shares("weights", {0: {"a": 1, "b": 1}, 2: {"a": 3, "b": 1}}, {"a": 12, "b": 20})
    mixed = Mixing([12, 20], shares, 4)
    assert [mixed.length(epoch) for epoch in (0, 1, 2, 3)] == [6, 6, 4, 4]
    assert mixed.first_positions(3).tolist() == [24 + 12, 24 + 4]


def test_repeat_is_epochs_of_each_source():
    mixed = Mixing([10, 20], checked_shares("repeat", {"a": 2, "b": 0.5}, {"a": 10, "b": 20}), 5)
    assert mixed.stages[0].begins[-1].tolist() == [20, 10]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"a": -1, "b": 1}, "'a'"),
        ({"a": 1, "b": float("nan")}, "'b'"),
        ({"a": 0, "b": 0}, "sum"),
        ({"a": 1, "c": 1}, "'c'"),
        ({"a": 1}, "'b'"),
        ({1: {"a": 1, "b": 1}}, "epoch 0"),
        ({"x": {"a": 1, "b": 1}}, "'x'"),
        ({}, "'a'"),
    ],
)
def test_bad_weights(values, match):
    with pytest.raises(ValueError, match=f"(?s)weights=.*{match}"):
        checked_shares("weights", values, {"a": 3, "b": 3})


def test_repeat_of_nothing_and_a_source_smaller_than_its_share():
    with pytest.raises(ValueError, match=r"repeat=.*'b'"):
        checked_shares("repeat", {"a": 1, "b": 0}, {"a": 3, "b": 3})
    with pytest.raises(ShardError, match=r"source 1.* 3 samples"):
        assert mixing([1, 1], [50, 3], 8).stages
