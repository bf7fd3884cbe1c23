"""Order of samples, random numbers and how an epoch is cut: pure functions, the same on every machine.

Randomness is counter-based: a draw is a hash of (seed, epoch, stream, sample id, index of the draw), so it
never depends on who draws, in which order, or on what was drawn before. The crops live in crops.
"""

from __future__ import annotations

import operator

import numpy as np
import numpy.typing as npt

from .crops import CenterCrop as CenterCrop
from .crops import Crop as Crop
from .crops import RandomCrop as RandomCrop
from .crops import RandomResizedCrop as RandomResizedCrop

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

_LIMIT = 1 << 63
# uniforms() cannot reach these streams, so the order never shares a hash with a crop.
_ORDER = _LIMIT
# Of a sample's draws, those of its next view come behind those of this one, and those of its next occurrence
# in the epoch behind all views: the first view of the first occurrence is what there is without either.
_VIEW, _OCCURRENCE = 16, 32
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _absorb(state: UInt64, words: UInt64) -> UInt64:
    """Compute output number `words` of the SplitMix64 generator with that state; uint64 arrays, broadcast.

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


def _hashes(seed: int, epoch: int, stream: int, ids: npt.ArrayLike) -> UInt64:
    rows = np.asarray(ids)
    if rows.size == 0:
        return np.empty(0, np.uint64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.min() < 0:
        raise ValueError(f"ids must be non-negative integers [B], not {rows.dtype} {list(rows.shape)}")
    # One-element arrays rather than scalars: numpy warns when a scalar wraps.
    state = np.zeros(1, np.uint64)
    for word in (_word("seed", seed), _word("epoch", epoch), stream):
        state = _absorb(state, np.array([word], np.uint64))
    return _absorb(state, rows.astype(np.uint64))


def _word(name: str, value: int) -> int:
    number = operator.index(value)
    if not 0 <= number < _LIMIT:
        raise ValueError(f"{name}={value} must be in 0..2**63-1")
    return number


def uniforms(
    seed: int, epoch: int, ids: npt.ArrayLike, count: int, stream: int = 0, first: npt.ArrayLike = 0
) -> Float64:
    """Draw count numbers for each sample: float64 [B, count] in [0, 1), multiples of 2**-53.

    ids: non-negative integers [B]. seed, epoch and stream: 0..2**63-1, otherwise ValueError. first: the index
    of the first draw, one for all or [B], non-negative. Equal arguments give equal numbers for ever, column j
    does not depend on count, and streams are independent of each other.
    """
    hashes = _hashes(seed, epoch, _word("stream", stream), ids)
    index = np.reshape(np.asarray(first, np.uint64), (-1, 1)) + np.arange(count, dtype=np.uint64)[None, :]
    return (_absorb(hashes[:, None], index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def first_draw(occurrence: Int64, view: int = 0) -> Int64:
    """Tell the ``first`` of ``uniforms`` for that occurrence [B] of each sample in its epoch, and that view.

    A use of a sample's numbers takes at most 2**16 draws for each view.
    """
    first: Int64 = (occurrence << _OCCURRENCE) + (view << _VIEW)
    return first


def permutation(seed: int, epoch: int, n: int, use: int = 0) -> Int64:
    """Shuffle 0..n-1 for an epoch: int64 [n], the numbers in the order of their hashes.

    use: 0..2**63-1; permutations for different uses are independent of each other.
    """
    hashes = _hashes(seed, epoch, _ORDER + _word("use", use), np.arange(n, dtype=np.int64))
    # For one state, _absorb is a bijection: no two hashes are equal, so a sort need not be stable.
    return np.argsort(hashes).astype(np.int64, copy=False)


def flips(draws: npt.ArrayLike, probability: float) -> npt.NDArray[np.bool_]:
    """Say which samples are flipped: bool [B] from uniform draws [B].

    Raises ValueError for a probability outside 0..1.
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"probability={probability} must be in 0..1")
    return np.asarray(draws, np.float64) < probability
