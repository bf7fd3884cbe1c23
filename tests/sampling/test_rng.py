"""Random numbers: fixed for ever, independent of each other, and uniform."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tarpeg.sampling.rng import first_draw, permutation, uniforms

MASK = (1 << 64) - 1


def splitmix64(state, number):
    """Output `number` of Vigna's splitmix64.c, step by step in Python's unbounded integers."""
    for _ in range(number + 1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_uniforms_are_splitmix64_chained():
    # The first outputs for state 1234567, as published with splitmix64.c's translations (Rosetta Code).
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [splitmix64(1234567, number) for number in range(3)] == expected
    words = [(0, 0, 0, 0, 0), (3, 1, 4, 15, 9), (2, 7, 1, 8, 2)]
    for seed, epoch, stream, id, draw in words:
        state = 0
        for word in (seed, epoch, stream, id, draw):
            state = splitmix64(state, word)
        assert uniforms(seed, epoch, [id], draw + 1, stream)[0, draw] == (state >> 11) / 2**53


# These numbers must never change: a training must be repeatable with a later version.
def test_golden():
    large = [[0.2858539518537274, 0.08200343772358154, 0.5667493828820281]]
    assert uniforms(2**63 - 1, 12, [1281166], 3, stream=5).tolist() == large
    assert permutation(0, 0, 10).tolist() == [4, 6, 0, 7, 2, 9, 3, 1, 5, 8]
    assert permutation(42, 3, 10).tolist() == [5, 6, 4, 1, 9, 7, 8, 2, 0, 3]


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
        *(((0, 0, ids, 1), "^ids ") for ids in ([-1], [0.5], [[1]])),
    ],
)
def test_uniforms_refuse(arguments, message):
    with pytest.raises(ValueError, match=message):
        uniforms(*arguments)


def is_even(cells, n):
    """Whether n numbers fall evenly into 256 cells: chi-square within 6 sigma."""
    counts = np.bincount(cells, minlength=256)
    chi2 = ((counts - n / 256) ** 2 / (n / 256)).sum()
    return abs(chi2 - 255) < 6 * math.sqrt(2 * 255)


@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_uniforms_look_random(seed):
    draws = uniforms(seed, 0, np.arange(20000), 8)
    assert draws.min() >= 0 and draws.max() < 1
    n = draws.size
    assert is_even((draws * 256).astype(int).ravel(), n)
    # Neighbours: draws of a sample, ids, epochs, seeds and streams. 6 sigma of a correlation of 0.
    pairs = [(draws[:, i], draws[:, j]) for i in range(8) for j in range(i)]
    pairs += [(draws[:-lag].ravel(), draws[lag:].ravel()) for lag in (1, 2, 64, 256)]
    others = uniforms(seed, 1, range(20000), 8), uniforms(seed + 1, 0, range(20000), 8)
    pairs += [(draws.ravel(), other.ravel()) for other in (*others, uniforms(seed, 0, range(20000), 8, 1))]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 6 / math.sqrt(len(a))
        assert is_even((a * 16).astype(int) * 16 + (b * 16).astype(int), len(a))
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


def test_views_and_occurrences_have_numbers_of_their_own():
    occurrence = np.array([0, 1, 2])
    firsts = np.concatenate([first_draw(occurrence, view) for view in range(3)])
    assert len(set(firsts.tolist())) == 9 and firsts[0] == 0
    assert np.diff(np.sort(firsts)).min() >= 1 << 16
