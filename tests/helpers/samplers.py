"""Samplers for tests."""

from __future__ import annotations

from tarpeg.sampling.sampler import Sampler, checked_weights, subset_ids


def make_sampler(samples, shuffle=True, subset=None, weights=None, seed=0, repeats=1):
    """Return a Sampler whose subset and weights are given in any of the forms of ``Split``."""
    subset = subset_ids(subset, samples)
    return Sampler(samples, seed, shuffle, subset, checked_weights(weights, samples, subset), repeats)
