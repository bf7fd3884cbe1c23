"""The samples of many shards as one struct of arrays, small enough for millions of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .tarindex import EXTENSION, IMAGE, KEY_END, MEMBER_END, OFFSET, SIZE, TarIndex

Ints = npt.NDArray[np.integer]
Int64 = npt.NDArray[np.int64]

_COLUMNS = ("samples", "keys", "key_sizes", "members", "image", "extension", "offset", "size")


@dataclass(frozen=True)
class Run:
    """The samples of consecutive shards (N shards, S samples, M members), in the smallest integers that do.

    samples: [N], of each shard. keys: uint8, one after another; key_sizes: [S], bytes of each. members: [S],
    how many a sample has; image: [S], which of them is its image, from 0. extension: [M], an index into
    extensions. offset, size: [M], bytes in the tar.
    """

    samples: Ints
    keys: npt.NDArray[np.uint8]
    key_sizes: Ints
    members: Ints
    image: Ints
    extensions: tuple[str, ...]
    extension: Ints
    offset: Ints
    size: Ints

    @classmethod
    def of(cls, index: TarIndex) -> Run:
        """Take over the index of one tar."""
        ends = index.samples[MEMBER_END]
        members = np.diff(ends, prepend=0)
        return cls(
            samples=np.array([len(ends)]),
            keys=index.keys,
            key_sizes=small(np.diff(index.samples[KEY_END], prepend=0)),
            members=small(members),
            image=small(index.samples[IMAGE] - (ends - members)),
            extensions=index.extensions,
            extension=small(index.members[EXTENSION]),
            offset=index.members[OFFSET].copy(),
            size=small(index.members[SIZE]),
        )


@dataclass(frozen=True)
class Table:
    """The samples of all shards, S samples and M members.

    shard: int32 [S]. key_ends: int64 [S + 1], sample s has keys[key_ends[s]:key_ends[s + 1]]. member_ends:
    int64 [S + 1], likewise among the members. image, extension, offset, size: as in Run.
    """

    shard: npt.NDArray[np.int32]
    keys: npt.NDArray[np.uint8]
    key_ends: Int64
    member_ends: Int64
    image: Ints
    extensions: dict[str, int]
    extension: Ints
    offset: Ints
    size: Ints


def join(runs: Iterable[Run], shards: int = 1) -> Table:
    """Join runs. shards: how many they have together, which says how much room will be needed.

    Each is copied to its final place as it comes: to collect them first would take twice the memory.
    """
    codes: dict[str, int] = {}
    columns = {name: _Column() for name in _COLUMNS}
    for run in runs:
        renumbered = np.array([codes.setdefault(name, len(codes)) for name in run.extensions])
        share = len(run.samples) / shards
        for name, column in columns.items():
            values = getattr(run, name)
            column.extend(small(renumbered[values]) if name == "extension" else values, share)
    samples: Ints = columns["samples"].values()
    return Table(
        shard=np.repeat(np.arange(len(samples), dtype=np.int32), samples),
        keys=columns["keys"].values(),
        key_ends=_ends(columns.pop("key_sizes").values()),
        member_ends=_ends(columns.pop("members").values()),
        image=columns["image"].values(),
        extensions=codes,
        extension=columns["extension"].values(),
        offset=columns["offset"].values(),
        size=columns["size"].values(),
    )


class _Column:
    """An array that grows. Room that is never written to takes no memory."""

    def __init__(self) -> None:
        self._array: npt.NDArray[Any] = np.empty(0, np.uint8)
        self._count = 0

    def extend(self, values: npt.NDArray[Any], share: float) -> None:
        """Add values, which are about that share of all there will be."""
        stop = self._count + len(values)
        dtype = np.promote_types(self._array.dtype, values.dtype)
        if stop > len(self._array) or dtype != self._array.dtype:
            room = max(stop, int(1.2 * (len(values) / share if not self._count else stop)), len(self._array))
            grown = np.empty(room, dtype)
            grown[: self._count] = self._array[: self._count]
            self._array = grown
        self._array[self._count : stop] = values
        self._count = stop

    def values(self) -> npt.NDArray[Any]:
        return self._array[: self._count]


def small(numbers: Ints) -> Ints:
    """Copy non-negative integers into the smallest unsigned type that holds them all."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _ends(sizes: Ints) -> Int64:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends
