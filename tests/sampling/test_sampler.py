"""The samples of an epoch: permutations, blocks, subsets, weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.samplers import make_sampler as sampler
from hypothesis import given, settings, strategies as st
from tarpeg import Blocks
from tarpeg.sampling.rng import permutation
from tarpeg.sampling.sampler import DistributedBatchSampler, checked_weights, subset_ids


def epoch_ids(*args, epoch=0, **options):
    """The ids of an epoch of ``sampler(...)``."""
    return sampler(*args, **options).draw_epoch(epoch)[0]


def test_a_full_permutation_is_that_of_rng():
    assert epoch_ids(50, seed=3, epoch=2).tolist() == permutation(3, 2, 50).tolist()
    assert epoch_ids(5, shuffle=False, epoch=9).tolist() == [0, 1, 2, 3, 4]
    assert sampler(5).draw_epoch(0)[1] is None


# --- blocks


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 20), st.integers(0, 5))
def test_blocks_are_permutations(samples, size, buffer, epoch):
    shuffled = sampler(samples, Blocks(size, buffer))
    assert np.sort(shuffled.draw_epoch(epoch)[0]).tolist() == list(range(samples))


@pytest.mark.parametrize("buffer", [4, 16, 64])
def test_how_well_blocks_mix(buffer):
    samples, size = 100_003, 64
    pairs, same = 0, 0
    for epoch in range(4):
        ids = epoch_ids(samples, Blocks(size, buffer), epoch=epoch)
        # Consecutive samples from the same block are less than `size` apart on the disk.
        near = np.abs(np.diff(ids)) < size
        pairs, same = pairs + near.size, same + int(near.sum())
        correlation = abs(np.corrcoef(ids, np.arange(samples))[0, 1])
        assert correlation < 6 / math.sqrt(samples / size)
    # So are some from adjacent blocks: they add less than 1 per mille.
    assert same / pairs < 1 / buffer + 6 * math.sqrt(1 / buffer / pairs) + 1e-3


def test_what_blocks_read_at_a_time_lies_together():
    size, buffer, samples = 32, 8, 32 * 8 * 100
    ids = epoch_ids(samples, Blocks(size, buffer))
    for start in range(0, samples, size * buffer):
        # Such a window touches two groups at most, of 8 or 9 blocks, each of which lies in two stretches.
        stretches = np.unique(ids[start : start + size * buffer] // size)
        assert len(stretches) <= 2 * 9 * 2


def test_blocks_differ_by_epoch_and_seed_in_their_cuts_too():
    def ids(**options):
        return epoch_ids(640, Blocks(16, 2), **options).tolist()

    assert ids() != ids(epoch=1) and ids() != ids(seed=1)
    assert len({min(ids(seed=seed)[:32]) % 16 for seed in range(40)}) > 4
    assert ids(epoch=3) == ids(epoch=3)


def test_few_samples_in_blocks_are_a_full_permutation():
    orders = np.array([epoch_ids(5, Blocks(), seed=seed) for seed in range(3000)])
    for place in range(5):
        counts = np.bincount(orders[:, place], minlength=5)
        assert abs(counts - 600).max() < 6 * math.sqrt(600)


@pytest.mark.parametrize("settings", [{"size": 0}, {"buffer": 0}, {"size": 1.5}])
def test_blocks_refuse(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}=.* of Blocks"):
        Blocks(**settings)


# --- subset


def test_a_fraction_is_the_same_for_every_seed_and_part_of_a_larger_one():
    small, large = subset_ids(0.1, 1000), subset_ids(0.25, 1000)
    assert (len(small), len(large)) == (100, 250)
    assert set(small) <= set(large) and small.tolist() == sorted(small)
    assert sorted(epoch_ids(1000, subset=0.1, seed=7, epoch=3)) == small.tolist()
    assert subset_ids(1.0, 10) is None and subset_ids(None, 10) is None
    assert len(subset_ids(1e-9, 10)) == 1 and len(subset_ids(0.5, 23)) == 12  # round(11.5)
    # As many of each stretch as chance allows.
    assert abs(int((subset_ids(0.5, 10_000) < 5000).sum()) - 2500) < 6 * math.sqrt(10_000) / 4


def test_indices_keep_their_order_without_shuffling(tmp_path):
    assert epoch_ids(10, shuffle=False, subset=[7, 2, 5]).tolist() == [7, 2, 5]
    np.save(tmp_path / "some.npy", np.array([1, 3], np.int32))
    for subset in (str(tmp_path / "some.npy"), tmp_path / "some.npy", np.array([1, 3]), (1, 3)):
        assert subset_ids(subset, 10).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("subset", "text"),
    [
        *((fraction, f"subset={fraction} ") for fraction in (0.0, 1.5, -1, math.nan)),
        (1, r"subset=1: .*1\.0 or None .*\[1\]"),
        ([], r"subset=\[\]"),
        ([0.5, 0.5], r"subset=\[0.5, 0.5\]"),
        ([[1]], r"subset=\[\[1\]\]"),
        ([True, False], r"subset=\[True, False\] .*booleans: give np\.flatnonzero"),
        (np.arange(10) > 3, r"subset=.*booleans: give np\.flatnonzero"),
        (True, "subset=True"),
        ([1, 10], r"subset=\[1, 10\] .*0\.\.9"),
        ([-1], r"subset=\[-1\] .*0\.\.9"),
        ([3, 1, 3], "sample 3 "),
        ("nowhere.npy", "subset='nowhere.npy'"),
    ],
)
def test_subsets_that_are_none(subset, text):
    with pytest.raises(ValueError, match=text):
        subset_ids(subset, 10)


# --- weights


def counts_of(plain, epoch):
    return np.bincount(plain.draw_epoch(epoch)[0], minlength=plain.samples)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.sampled_from([0.1, 0.3, 1.0])), min_size=1),
    st.integers(0, 3),
)
def test_each_sample_comes_the_floor_or_the_ceiling_of_its_share(weights, epoch):
    if not sum(weights):
        return
    values = np.array(weights)
    expected = values / values.sum() * len(values)
    counts = counts_of(sampler(len(weights), weights=weights), epoch)
    assert counts.sum() == len(weights)
    assert (counts >= np.floor(expected + 1e-9)).all() and (counts <= np.ceil(expected - 1e-9)).all()


@pytest.mark.parametrize("weight", [0.1, 1 / 3, 1, 7e300 / 1e5])
def test_equal_weights_are_every_sample_once(weight):
    plain = sampler(1009, weights=[weight] * 1009)
    assert sorted(plain.draw_epoch(0)[0]) == list(range(1009))
    assert not plain.draw_epoch(0)[1].any()


def test_over_many_epochs_the_shares_are_the_weights():
    weights = np.random.default_rng(0).random(200)
    total = sum(counts_of(sampler(200, weights=weights), epoch) for epoch in range(400)) / 400
    expected = weights / weights.sum() * 200
    assert np.abs(total - expected).max() < 6 * 0.5 / math.sqrt(400)
    # Equal fractions are not always drawn for the same neighbours.
    halves = np.array([1.0] * 100 + [3.0] * 100)
    drawn = np.array([counts_of(sampler(200, weights=halves), epoch)[:100] for epoch in range(300)])
    assert len({tuple(row) for row in drawn}) > 290
    together = (drawn[:, :-1] * drawn[:, 1:]).mean()
    assert abs(together - 0.25) < 0.02


def test_occurrences_are_numbered():
    plain = sampler(4, weights=[5, 1, 0, 2])
    seen = {}
    for id, occurrence in sorted(zip(*(part.tolist() for part in plain.draw_epoch(1)), strict=True)):
        seen.setdefault(id, []).append(occurrence)
    assert all(occurrence == list(range(len(occurrence))) for occurrence in seen.values()) and 2 not in seen
    assert plain.candidates().tolist() == [0, 1, 3] and sampler(3).candidates() is None


def test_weights_and_a_subset():
    plain = sampler(10, subset=[1, 2, 9], weights=range(10))
    assert len(plain) == 3 and plain.candidates().tolist() == [1, 2, 9]
    for epoch in range(20):
        assert set(plain.draw_epoch(epoch)[0]) <= {1, 2, 9}
        assert counts_of(plain, epoch)[9] in (2, 3)  # 9 / 12 * 3 = 2.25
    with pytest.raises(ValueError, match=r"sum .* not 0"):
        sampler(3, subset=[0], weights=[0, 1, 1])


def test_weights_from_a_file(tmp_path):
    np.save(tmp_path / "weights.npy", np.array([0, 1], np.float32))
    assert epoch_ids(2, weights=tmp_path / "weights.npy").tolist() == [1, 1]
    np.save(tmp_path / "objects.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"weights='.*objects.npy'"):
        checked_weights(tmp_path / "objects.npy", 1, None)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1, 2], r"weights=\[1, 2\] .* 3 samples .*\[2\]"),
        ([1, -1, 1], r"weights\[1\]=-1.0"),
        ([1, 1, math.nan], r"weights\[2\]=nan"),
        ([math.inf, 1, 1], r"weights\[0\]=inf"),
        ([0, 0, 0], r"weights=\[0, 0, 0\] .*sum .* 0.0"),
        (["a", "b", "c"], "weights=.*a"),
        ([[1], [1, 2], [3]], "^weights"),
        ([1e308, 1e308, 1e308], "finite sum .* not inf"),
    ],
)
def test_weights_that_are_none(weights, text):
    with pytest.raises(ValueError, match=text):
        checked_weights(weights, 3, None)


def test_different_orders_have_different_fingerprints():
    orders = [{"shuffle": shuffle} for shuffle in (True, False, Blocks(), Blocks(7))]
    orders += [{"subset": [0, 1]}, {"subset": [1, 0]}, {"weights": range(9)}, {"weights": range(1, 10)}]
    orders += [{"repeats": 2}, {"repeats": 3}]
    assert len({sampler(9, **options).fingerprint() for options in orders}) == len(orders)
    assert sampler(9, seed=3).fingerprint() == sampler(9).fingerprint(), "the seed is not part of it"


# --- repeated augmentation


@pytest.mark.parametrize("repeats", [2, 3, 7])
@pytest.mark.parametrize("options", [{}, {"shuffle": Blocks(4, 2)}, {"subset": range(5, 26)}], ids=str)
def test_repeats_are_neighbours_with_numbered_occurrences(options, repeats):
    plain, _ = sampler(31, **options).draw_epoch(2)
    ids, occurrence = sampler(31, repeats=repeats, **options).draw_epoch(2)
    count = len(plain)
    assert ids.tolist() == [plain[place // repeats] for place in range(count)], "as many, from the same order"
    assert occurrence.tolist() == [place % repeats for place in range(count)]
    seen = {id for epoch in range(40) for id in sampler(31, repeats=repeats, **options).draw_epoch(epoch)[0]}
    assert seen == set(plain.tolist()), "other samples in every epoch"


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", [1, 5, 8])
def test_ranks_get_the_batches_of_timm(world, batch):
    timm = pytest.importorskip("timm.data.distributed_sampler")
    samples, repeats = 24 * 4 + 12, 3
    order, _ = sampler(samples).draw_epoch(1)
    batches = DistributedBatchSampler(samples, batch * world, world, takes_turns=True)
    for rank in range(world):
        # selected_round: timm rounds an epoch down to a multiple of 256 samples, we keep its length.
        places = timm.RepeatAugSampler(range(samples), world, rank, False, repeats, selected_round=0)
        expected = order[list(places)].tolist()
        found = [*batches.requests(sampler(samples, repeats=repeats), rank, 1, 0, lambda epoch: False)]
        assert len(found) == len(batches)
        last = len(found[-1].ids)
        assert [request.ids.tolist() for request in found] == [
            *(expected[k * batch : (k + 1) * batch] for k in range(len(found) - 1)),
            expected[len(expected) - last :],
        ]
        assert max(len(request.ids) for request in found) == batches.largest(rank)


@pytest.mark.parametrize("world, batch, samples", [(2, 5, 23), (3, 7, 29), (4, 4, 9), (5, 5, 6)])
def test_taking_turns_covers_every_batch_with_equal_ranks(world, batch, samples):
    batches = DistributedBatchSampler(samples, batch, world, takes_turns=True)
    for k in range(len(batches)):
        parts = [range(samples)[batches.rank_places(k, rank)] for rank in range(world)]
        assert sorted(place for part in parts for place in part) == list(range(*batches.bounds(k)))
        sizes = [len(part) for part in parts]
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
        assert all(size <= batches.largest(rank) for rank, size in enumerate(sizes))
