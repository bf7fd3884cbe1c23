"""Counter-based random numbers: pure functions of integers, equal on every machine.

A number is a hash of (seed, epoch, stream, sample id, index), so it does not depend on the process that draws
it, on the order of drawing, or on what was drawn before.
"""

from __future__ import annotations

import functools
import operator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

_LIMIT = 1 << 63
LARGEST_SEED = _LIMIT - 1
"""The smallest is 0."""
LATER_PASS = 1 << 20
"""Added to the epoch of Lightning's Trainer for each further pass in it: Note [a loader that ends early]."""
# uniforms() cannot reach these streams, so a permutation never shares a hash with a crop.
_PERMUTATIONS = _LIMIT
# Bit positions of view and occurrence in the index of a number. View 0 of occurrence 0 begins at index 0: it
# has the same numbers as in a run without views and weights.
_VIEW, _OCCURRENCE = 16, 32
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniforms(
    seed: int, epoch: int, ids: npt.ArrayLike, count: int, stream: int = 0, first: npt.ArrayLike = 0
) -> Float64:
    """Draw random numbers for each sample: float64 [B, count] in [0, 1), multiples of 2**-53.

    Equal arguments always return equal numbers, column j does not depend on ``count``, and streams are
    independent of each other.

    Args:
        seed: 0 to 2**63 - 1.
        epoch: 0 to 2**63 - 1.
        ids: Sample ids, non-negative integers [B].
        count: Numbers per sample.
        stream: Use of the numbers, 0 to 2**63 - 1.
        first: Index of the first number, non-negative, one for all samples or [B].

    Raises:
        ValueError: If a number is out of range.
    """
    return _numbers(_hashes(seed, epoch, _word("stream", stream), ids), count, first)


class Numbered(NamedTuple):
    """The samples that numbers are drawn for.

    Attributes:
        epochs: The epoch of all samples, or int64 ``[B]``, that of each.
        ids: Sample ids, int64 ``[B]``.
        occurrence: How often each sample came before in its epoch, int64 ``[B]``; None if none repeats.
    """

    epochs: int | Int64
    ids: Int64
    occurrence: Int64 | None


def uniforms_of(
    samples: Numbered, seed: int, count: int, stream: int, view: int | Int64 = 0, start: int = 0
) -> Float64:
    """Draw the numbers of ``uniforms`` for samples that may repeat, or are of several epochs.

    Args:
        samples: What they are drawn for.
        seed: 0 to 2**63 - 1.
        count: Numbers per sample.
        stream: Use of the numbers.
        view: Number of the view, one for all samples or ``[B]``.
        start: How many numbers of that view come before.
    """
    epochs, ids, occurrence = samples
    first = first_draw(np.zeros_like(ids) if occurrence is None else occurrence, view) + start
    if not isinstance(epochs, int) and (not len(epochs) or (epochs == epochs[0]).all()):  # mostly
        epochs = int(epochs[0]) if len(epochs) else 0
    if isinstance(epochs, int):
        return uniforms(seed, epochs, ids, count, stream, first)
    known, places = np.unique(epochs, return_inverse=True)
    words = _word("seed", seed), _word("stream", stream)
    states = np.concatenate([_state(words[0], _word("epoch", each), words[1]) for each in known.tolist()])
    return _numbers(_absorb(states[places], _checked_ids(ids)), count, first)


def _numbers(hashes: UInt64, count: int, first: npt.ArrayLike) -> Float64:
    index = np.reshape(np.asarray(first, np.uint64), (-1, 1)) + np.arange(count, dtype=np.uint64)[None, :]
    return (_absorb(hashes[:, None], index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def first_draw(occurrence: Int64, view: int | Int64 = 0) -> Int64:
    """Argument ``first`` of ``uniforms`` for a view of each sample's occurrence [B] in its epoch.

    ``view``: one for all samples, or [B].
    Each view has room for 2**16 numbers per stream.
    """
    first: Int64 = (occurrence << _OCCURRENCE) + (view << _VIEW)
    return first


def permutation(seed: int, epoch: int, n: int, use: int = 0) -> Int64:
    """Shuffle 0..n-1 for an epoch: int64 [n], the numbers in the order of their hashes.

    Args:
        seed: Seed.
        epoch: Number of the epoch.
        n: Length.
        use: 0..2**63-1; permutations for different uses are independent of each other.
    """
    hashes = _hashes(seed, epoch, _PERMUTATIONS + _word("use", use), np.arange(n, dtype=np.int64))
    # For one state, _absorb is a bijection: no two hashes are equal, so the sort need not be stable.
    return np.argsort(hashes).astype(np.int64, copy=False)


def _hashes(seed: int, epoch: int, stream: int, ids: npt.ArrayLike) -> UInt64:
    rows = _checked_ids(ids)
    return _absorb(_state(_word("seed", seed), _word("epoch", epoch), stream), rows) if len(rows) else rows


def _checked_ids(ids: npt.ArrayLike) -> UInt64:
    rows = np.asarray(ids)
    if rows.size == 0:
        return np.empty(0, np.uint64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.min() < 0:
        raise ValueError(f"ids must be non-negative integers [B], not {rows.dtype} {list(rows.shape)}")
    return rows.astype(np.uint64)


@functools.lru_cache(maxsize=256)  # the same few for all batches of an epoch
def _state(*words: int) -> UInt64:
    # One-element arrays rather than scalars: numpy warns when a scalar wraps.
    state = np.zeros(1, np.uint64)
    for word in words:
        state = _absorb(state, np.array([word], np.uint64))
    return state


def _absorb(state: UInt64, words: UInt64) -> UInt64:
    """Output number ``words`` of the SplitMix64 generator with that state; uint64 arrays, broadcast.

    Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014), with the finaliser of
    Sebastiano Vigna's public-domain splitmix64.c (Stafford's Mix13).
    """
    z: UInt64 = state + _GAMMA * (words + np.uint64(1))
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _word(name: str, value: int) -> int:
    number = operator.index(value)
    if not 0 <= number < _LIMIT:
        raise ValueError(f"{name}={value} must be in 0..2**63-1")
    return number
