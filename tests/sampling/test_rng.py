from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tarpeg.errors import ShardError
from tarpeg.sampling.batches import DistributedBatchSampler
from tarpeg.sampling.rng import first_draw, flips, permutation, uniforms

MASK = (1 << 64) - 1
# Written down once: these must never change, or trainings could not be repeated.
GOLDEN_ZERO = [[0.47141042966848024, 0.7247520786262142], [0.7816823175847682, 0.19231829513312926]]
GOLDEN_LARGE = [[0.2858539518537274, 0.08200343772358154, 0.5667493828820281]]
GOLDEN_ORDER = [4, 6, 0, 7, 2, 9, 3, 1, 5, 8]
GOLDEN_ORDER_42 = [5, 6, 4, 1, 9, 7, 8, 2, 0, 3]


def splitmix64(state, number):
    """Output `number` of Vigna's splitmix64.c, in Python's unbounded integers, step by step."""
    for _ in range(number + 1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


# --- random numbers


def test_the_mixer_is_splitmix64():
    # The first outputs for state 1234567, as published with splitmix64.c's translations (Rosetta Code).
    assert [splitmix64(1234567, i) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_uniforms_are_splitmix64_chained():
    for seed, epoch, stream, id, draw in [(0, 0, 0, 0, 0), (3, 1, 4, 15, 9), (2, 7, 1, 8, 2)]:
        state = 0
        for word in (seed, epoch, stream, id, draw):
            state = splitmix64(state, word)
        assert uniforms(seed, epoch, [id], draw + 1, stream)[0, draw] == (state >> 11) / 2**53


def test_uniforms_golden():
    assert uniforms(0, 0, [0, 1], 2).tolist() == GOLDEN_ZERO
    assert uniforms(2**63 - 1, 12, [1281166], 3, stream=5).tolist() == GOLDEN_LARGE


def test_permutation_golden():
    assert permutation(0, 0, 10).tolist() == GOLDEN_ORDER
    assert permutation(42, 3, 10).tolist() == GOLDEN_ORDER_42


def test_a_draw_depends_on_nothing_but_its_own_numbers():
    ids = np.array([5, 2, 99, 2], np.int32)
    draws = uniforms(7, 1, ids, 6)
    assert draws.shape == (4, 6) and draws.dtype == np.float64
    assert (draws[1] == draws[3]).all()
    assert (uniforms(7, 1, ids[::-1].copy(), 6)[::-1] == draws).all()
    assert (uniforms(7, 1, [99], 3) == draws[2:3, :3]).all()
    for other in (uniforms(8, 1, ids, 6), uniforms(7, 2, ids, 6), uniforms(7, 1, ids, 6, stream=1)):
        assert not (other == draws).any()
    assert uniforms(7, 1, [], 6).shape == (0, 6) and uniforms(7, 1, [1], 0).shape == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, [0], 1), "seed=-1"),
        ((2**63, 0, [0], 1), "seed=9223372036854775808"),
        ((0, -2, [0], 1), "epoch=-2"),
        ((0, 0, [0], 1, -3), "stream=-3"),
        ((0, 0, [-1], 1), "ids must be non-negative"),
        ((0, 0, [0.5], 1), "ids must be non-negative"),
        ((0, 0, [[1]], 1), "ids must be non-negative"),
    ],
)
def test_uniforms_refuse(arguments, message):
    with pytest.raises(ValueError, match=message):
        uniforms(*arguments)


@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_uniforms_look_random(seed):
    draws = uniforms(seed, 0, np.arange(20000), 8)
    assert draws.min() >= 0 and draws.max() < 1
    n = draws.size
    counts = np.bincount((draws * 256).astype(int).ravel(), minlength=256)
    chi2 = ((counts - n / 256) ** 2 / (n / 256)).sum()
    assert abs(chi2 - 255) < 6 * math.sqrt(2 * 255)
    # Neighbours: draws of a sample, ids, epochs, seeds and streams. 6 sigma of a correlation of 0.
    pairs = [(draws[:, i], draws[:, j]) for i in range(8) for j in range(i)]
    pairs += [(draws[:-lag].ravel(), draws[lag:].ravel()) for lag in (1, 2, 64, 256)]
    others = uniforms(seed, 1, range(20000), 8), uniforms(seed + 1, 0, range(20000), 8)
    pairs += [(draws.ravel(), other.ravel()) for other in (*others, uniforms(seed, 0, range(20000), 8, 1))]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 6 / math.sqrt(len(a))
        cells = np.bincount((a * 16).astype(int) * 16 + (b * 16).astype(int), minlength=256)
        chi2 = ((cells - len(a) / 256) ** 2 / (len(a) / 256)).sum()
        assert abs(chi2 - 255) < 6 * math.sqrt(2 * 255)
    low = (draws * 2**53).astype(np.uint64) & np.uint64(255)
    assert abs(low.mean() - 127.5) < 6 * 74 / math.sqrt(n)


def test_permutations_are_fair():
    orders = np.array([permutation(3, epoch, 7) for epoch in range(7000)])
    assert (np.sort(orders, axis=1) == np.arange(7)).all()
    for place in range(7):
        counts = np.bincount(orders[:, place], minlength=7)
        assert abs(counts - 1000).max() < 6 * math.sqrt(1000)
    assert len({tuple(row) for row in orders}) > 3500  # of 5040, drawn 7000 times: 3784 expected
    assert permutation(0, 0, 0).shape == (0,) and permutation(0, 0, 1).tolist() == [0]
    assert permutation(1, 0, 100000).dtype == np.int64


def test_order_and_draws_are_independent():
    draws = uniforms(5, 2, np.arange(50000), 1)[:, 0]
    rank = np.argsort(permutation(5, 2, 50000))
    assert abs(np.corrcoef(draws, rank)[0, 1]) < 6 / math.sqrt(50000)


def test_flips():
    draws = uniforms(0, 0, np.arange(10000), 1)[:, 0]
    assert flips(draws, 0.0).sum() == 0 and flips(draws, 1.0).all() and flips(draws, 0.5).dtype == np.bool_
    assert abs(flips(draws, 0.3).mean() - 0.3) < 0.03
    for probability in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="probability="):
            flips(draws, probability)


# --- cutting an epoch


def check_plan(plan):
    """Every sample exactly once (but for a dropped tail), ranks equal within one sample and never empty."""
    at = 0
    for k in range(len(plan)):
        start, stop = plan.bounds(k)
        assert start == at
        slices = [plan.rank_bounds(k, rank) for rank in range(plan.world)]
        assert slices[0][0] == start and slices[-1][1] == stop
        assert all(a[1] == b[0] for a, b in itertools.pairwise(slices))
        counts = {stop - start for start, stop in slices}
        assert min(counts) >= 1 and max(counts) - min(counts) <= 1
        at = stop
    left = plan.samples - at
    assert left == 0 if not plan.drop_last else 0 <= left < plan.global_batch
    assert len(plan) >= 1


@pytest.mark.parametrize("world", [1, 2, 3, 7, 8, 64, 1000, 1023, 1024])
@pytest.mark.parametrize("samples", [1031, 4099, 10007])
def test_plan_over_worlds_and_prime_sizes(world, samples):
    for global_batch in (world, world + 1, 1031, 2 * world + 1, 20011):
        if global_batch >= world:
            check_plan(DistributedBatchSampler(samples, global_batch, world))
            if global_batch <= samples:
                check_plan(DistributedBatchSampler(samples, global_batch, world, drop_last=True))


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 1024), st.integers(0, 3000), st.integers(0, 3000), st.booleans())
def test_plan_any(world, extra_batch, extra_samples, drop_last):
    global_batch, samples = world + extra_batch, world + extra_samples
    if not (drop_last and samples < global_batch):
        check_plan(DistributedBatchSampler(samples, global_batch, world, drop_last))


def test_plan_exact():
    cut = lambda *a, **k: [
        DistributedBatchSampler(*a, **k).bounds(i) for i in range(len(DistributedBatchSampler(*a, **k)))
    ]  # noqa: E731
    assert cut(10, 4) == [(0, 4), (4, 8), (8, 10)]
    assert cut(10, 4, 2) == [(0, 4), (4, 8), (8, 10)]
    assert cut(9, 4, 2) == [(0, 4), (4, 9)]
    assert cut(9, 4, 2, drop_last=True) == [(0, 4), (4, 8)]
    assert cut(8, 4, 2) == cut(8, 4, 2, drop_last=True) == [(0, 4), (4, 8)]
    assert cut(3, 100, 3) == [(0, 3)]
    plan = DistributedBatchSampler(9, 4, 2)
    assert [plan.rank_bounds(1, rank) for rank in (0, 1)] == [(4, 6), (6, 9)]
    for k, rank, error in ((2, 0, "k=2"), (-1, 0, "k=-1"), (0, 2, "rank=2"), (0, -1, "rank=-1")):
        with pytest.raises(IndexError, match=error):
            plan.rank_bounds(k, rank)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((5, 8, 8), ShardError, "samples=5 are too few for world=8"),
        ((0, 8, 1), ShardError, "samples=0 are too few"),
        ((100, 3, 4), ValueError, "global_batch=3 is smaller than world=4"),
        ((100, 3, 0), ValueError, "world=0"),
        ((100, 0, 1), ValueError, "global_batch=0"),
        ((7, 8, 1, True), ShardError, "drop_last=True leaves no batch"),
    ],
)
def test_plan_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        DistributedBatchSampler(*arguments)


def test_sampling_needs_only_numpy():
    # The package's own __init__ imports nothing, so what is loaded is what sampling asked for.
    code = (
        "import sys, tarpeg.sampling.rng; names = {m.split('.')[0] for m in sys.modules}; "
        "print(*sorted(names & {'torch', 'lightning', 'hydra', 'omegaconf'}), 'tarpeg.ops' in sys.modules)"
    )
    root = str(Path(__file__).parents[2] / "datamodules")
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, capture_output=True
    )
    assert done.stdout.split() == [b"False"], done


def test_views_and_turns_have_draws_of_their_own():
    occurrence = np.array([0, 1, 2])
    firsts = np.concatenate([first_draw(occurrence, view) for view in range(3)])
    assert len(set(firsts.tolist())) == 9 and firsts[0] == 0
    assert np.diff(np.sort(firsts)).min() >= 1 << 16
