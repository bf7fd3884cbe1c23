"""The samples of each epoch, in order, and batches of them over ranks."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from ..errors import SamplesError, ShardError, check_integer
from ..files import open_regular
from . import rng
from .geometry import View
from .rng import Float64, Int64

Numbers = Sequence[int] | Sequence[float] | npt.NDArray[np.generic] | str | os.PathLike[str]

# Uses of rng.permutation.
_EPOCH, _BLOCKS, _WITHIN, _RESAMPLING, _SUBSET = range(5)
# Random numbers of a whole epoch: those of sample 0 and sample 1 in a stream that no sample uses.
_START, _OFFSET = 0, 1
_STREAM = 1 << 32
# An expected count this close to an integer is that integer: 0.1 / 0.3 * 3 is not 1 in floating point.
_TOLERANCE = 1e-9


def runs_of(*columns: Int64) -> list[slice]:
    """Return the rows that follow each other with equal numbers in all columns, int64 ``[B]`` each."""
    found, begin = [], 0
    # Not by numpy: after a batch the processor's caches no longer hold its code, and this is in them.
    numbers = [column.tolist() for column in columns]
    for _, rows in itertools.groupby(zip(*numbers, strict=True) if len(numbers) > 1 else numbers[0]):
        end = begin + len(list(rows))
        found.append(slice(begin, end))
        begin = end
    return found


class Origin(NamedTuple):
    """Where the samples of a request come from, if that is several sources: numbers are drawn for these.

    Attributes:
        sources: Number of the source of each sample, int64 ``[B]``.
        epochs: Epoch of its source, int64 ``[B]``.
        ids: Its number in its source, int64 ``[B]``.
        occurrence: How often it came before in that epoch, int64 ``[B]``.
        draws: The first numbers of its view, float64 ``[B, n]``, if they were drawn with those of the batches
            that follow; None: not.
    """

    sources: Int64
    epochs: Int64
    ids: Int64
    occurrence: Int64
    draws: Float64 | None = None

    def rows(self, rows: Int64 | slice) -> Origin:
        """Return that of some of the samples."""
        return Origin(
            sources=self.sources[rows],
            epochs=self.epochs[rows],
            ids=self.ids[rows],
            occurrence=self.occurrence[rows],
            draws=None if self.draws is None else self.draws[rows],
        )

    def runs(self) -> list[tuple[slice, int, int]]:
        """Return rows that follow each other with one source and one epoch of it, which are beside them."""
        return [
            (rows, int(self.sources[rows.start]), int(self.epochs[rows.start]))
            for rows in runs_of(self.sources, self.epochs)
        ]


class Request(NamedTuple):
    """One rank's slice of one batch, as sent to a worker.

    Attributes:
        epoch: Number of the epoch.
        ids: Ids of the samples, int64 ``[B]``.
        occurrence: How often each sample came before in the epoch, int64 ``[B]``; None if none repeats.
        views: What was drawn for each view of the samples; empty before they are fetched.
        size: (height, width) of the results, if it is another for each batch; None for that of the crop.
        origin: Of samples of several sources.
    """

    epoch: int
    ids: Int64
    occurrence: Int64 | None = None
    views: Sequence[View] = ()
    size: tuple[int, int] | None = None
    origin: Origin | None = None

    def rows(self, rows: npt.ArrayLike | slice) -> Request:
        """Return the request for some of the samples, by their places in ``ids``."""
        chosen: Any = rows if isinstance(rows, slice) else np.asarray(rows, np.int64)
        return Request(
            epoch=self.epoch,
            ids=self.ids[chosen],
            occurrence=None if self.occurrence is None else self.occurrence[chosen],
            views=tuple(view.rows(np.arange(len(self.ids))[chosen]) for view in self.views),
            size=self.size,
            origin=None if self.origin is None else self.origin.rows(chosen),
        )

    @property
    def numbered(self) -> rng.Numbered:
        """What numbers are drawn for."""
        if self.origin is None:
            return rng.Numbered(self.epoch, self.ids, self.occurrence)
        return rng.Numbered(self.origin.epochs, self.origin.ids, self.origin.occurrence)

    def of_row(self, row: int) -> Request:
        """Return the request for one of the samples."""
        return self.rows([row])


@dataclass(frozen=True)
class Blocks:
    """Shuffling for disks with slow random access: blocks of neighbours, mixed within a buffer.

    In every epoch the samples are cut into blocks of ``size`` neighbours, at different places each time. The
    blocks are shuffled, and each group of ``buffer`` blocks is shuffled sample by sample. So at any time the
    loader reads from ``buffer`` runs of ``size`` samples.

    Of two consecutive samples at most 1 in ``buffer`` is from the same block (in a full permutation: 1 in the
    number of blocks), and the position in the epoch is independent of the position on the disk.

    Args:
        size: Samples per block, at least 1.
        buffer: Blocks that are mixed with each other, at least 1.

    Raises:
        ValueError: If a number is not an integer of at least 1.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.RandomCrop(96), shuffle=tarpeg.Blocks(size=4, buffer=2))
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=8, workers=0)
        >>> images, labels = next(iter(data.train_dataloader()))
        >>> images.shape
        torch.Size([8, 3, 96, 96])
    """

    size: int = 256
    buffer: int = 16

    def __post_init__(self) -> None:
        for name in ("size", "buffer"):
            check_integer(name, getattr(self, name), 1, of=self)


@dataclass(frozen=True)
class Sampler:
    """The samples of every epoch of one split, over all ranks: a pure function of (seed, epoch).

    Args:
        samples: Number of samples in the shards.
        seed: Seed of the run.
        shuffle: True for a new permutation per epoch, False, or ``Blocks``.
        subset: int64, ids of the samples that take part; None for all.
        weights: float64 ``[samples]``. Each sample then comes the floor or the ceiling of
            ``len * weight / sum of the weights`` times per epoch, and ``len`` samples come in all (systematic
            resampling over another permutation per epoch).
        repeats: The first ``len / repeats`` of these samples come so many times in a row, ``len`` in all: the
            order of timm's RepeatAugSampler.
    """

    samples: int
    seed: int
    shuffle: bool | Blocks
    subset: Int64 | None = None
    weights: Float64 | None = None
    repeats: int = 1

    def __len__(self) -> int:
        return self.samples if self.subset is None else len(self.subset)

    def draw_epoch(self, epoch: int) -> tuple[Int64, Int64 | None]:
        """Return an epoch's sample ids in order, int64 ``[len]``, and their occurrence as in ``Request``."""
        ids, occurrence = self._resampled(epoch)
        places = self._places(epoch)
        if self.repeats > 1:
            assert occurrence is None  # see Split.repeats
            times = np.arange(len(ids)) % self.repeats
            first = np.arange(len(ids)) // self.repeats
            return ids[first if places is None else places[first]], times
        if places is None:
            return ids, occurrence
        return ids[places], None if occurrence is None else occurrence[places]

    def fingerprint(self) -> int:
        """Checksum of shuffle, subset, weights and repeats; equal settings have equal fingerprints."""
        shuffle = repr(self.shuffle) + f" repeats={self.repeats}" * (self.repeats > 1)
        arrays = (b"" if array is None else array.tobytes() for array in (self.subset, self.weights))
        return zlib.crc32(b"/".join([shuffle.encode(), *arrays]))

    def candidates(self) -> Int64 | None:
        """Ids of the samples that an epoch may contain, int64; None for all."""
        return self.subset if self.weights is None else self._ids[self.weights[self._ids] > 0]

    @property
    def _ids(self) -> Int64:
        """Ids of the samples that take part."""
        return np.arange(self.samples, dtype=np.int64) if self.subset is None else self.subset

    def _resampled(self, epoch: int) -> tuple[Int64, Int64 | None]:
        """Unshuffled ids of an epoch, and their occurrence."""
        ids = self._ids
        if self.weights is None:
            return ids, None
        # Over a permutation: in the order of the shards, equal weights of 1/2 would take every other sample.
        places = rng.permutation(self.seed, epoch, len(ids), _RESAMPLING)
        (start,) = rng.uniforms(self.seed, epoch, [_START], 1, _STREAM)[0]
        counts = np.empty(len(ids), np.int64)
        counts[places] = _systematic(self.weights[ids][places], float(start))
        occurrence = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(ids, counts), occurrence

    def _places(self, epoch: int) -> Int64 | None:
        """Shuffled positions 0..len-1 of an epoch; None without shuffling."""
        n = len(self)
        if not isinstance(self.shuffle, Blocks):
            return rng.permutation(self.seed, epoch, n, _EPOCH) if self.shuffle else None
        (offset,) = rng.uniforms(self.seed, epoch, [_OFFSET], 1, _STREAM)[0]
        block = (np.arange(n) + int(offset * self.shuffle.size)) // self.shuffle.size
        count = int(block[-1]) + 1 if n else 0
        rank = np.argsort(rng.permutation(self.seed, epoch, count, _BLOCKS))
        # As many groups as hold `buffer` blocks each; the remaining blocks are spread among them.
        groups = max(1, n // (self.shuffle.size * self.shuffle.buffer))
        group = rank[block] * groups // max(1, count)
        places = rng.permutation(self.seed, epoch, n, _WITHIN)
        # numpy sorts short integers by radix.
        mixed: Int64 = places[np.argsort(group.astype(np.min_scalar_type(groups))[places], kind="stable")]
        return mixed


def subset_ids(subset: float | Numbers | None, samples: int) -> Int64 | None:
    """Return the sample ids of a split's ``subset``, int64; None for all samples.

    A fraction takes the samples with the smallest hashes of their ids: the same for every seed, and a smaller
    fraction is part of a larger one. Raises ValueError unless it is a subset of 0..samples-1.
    """
    if subset is None:
        return None
    if is_fraction(subset):
        count = max(1, round(subset * samples))
        return None if count == samples else np.sort(rng.permutation(0, 0, samples, _SUBSET)[:count])
    ids = _array("subset", subset)
    if ids.dtype.kind == "b" and ids.ndim == 1:
        raise SamplesError(
            f"subset={shown(subset)} must be sample numbers, not booleans: give np.flatnonzero(subset)"
        )
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.size == 0:
        raise SamplesError(
            f"subset={shown(subset)} must be sample numbers (integers, at least one) or a fraction above 0 "
            f"and up to 1, not {ids.dtype} {list(ids.shape)}"
        )
    if ids.min() < 0 or ids.max() >= samples:
        raise SamplesError(
            f"subset={shown(subset)} must be within 0..{samples - 1}: there are {samples} samples"
        )
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        repeated = int(unique[counts > 1][0])
        raise SamplesError(
            f"subset={shown(subset)} contains sample {repeated} more than once; weights= repeats samples"
        )
    return ids.astype(np.int64)


def is_fraction(subset: object) -> TypeGuard[float]:
    """Whether a subset is a number. Raises ValueError for a number that is not above 0 and at most 1."""
    if not isinstance(subset, (int, float, np.integer, np.floating)) or isinstance(subset, bool):
        return False
    if subset == 1 and isinstance(subset, (int, np.integer)):
        raise ValueError(f"subset={subset!r}: give 1.0 or None for all samples, and [1] for sample number 1")
    if not 0 < float(subset) <= 1:
        raise ValueError(f"subset={subset!r} must be above 0 and at most 1, as a fraction of the samples")
    return True


def checked_weights(weights: Numbers | None, samples: int, subset: Int64 | None) -> Float64 | None:
    """Return a split's ``weights`` as float64 ``[samples]``; their sum over the subset is positive.

    Raises ValueError for another length, for negative or infinite weights or NaN, and if all are 0.
    """
    if weights is None:
        return None
    values = _array("weights", weights)
    if values.ndim != 1 or values.dtype.kind not in "iuf" or len(values) != samples:
        raise SamplesError(
            f"weights={shown(weights)} must be one number for each of the {samples} samples of the shards, "
            f"not {values.dtype} {list(values.shape)}"
        )
    values = values.astype(np.float64)  # a copy: the user may write into the array
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        at = int(wrong[0])
        raise SamplesError(f"weights[{at}]={values[at]} must be a finite number of at least 0")
    with np.errstate(over="ignore"):
        total = float(np.sum(values if subset is None else values[subset]))
    if not 0 < total < float("inf"):
        raise SamplesError(
            f"weights={shown(weights)} must have a positive, finite sum over the samples that take part, "
            f"not {total}"
        )
    return values


def shown(value: object) -> str:
    """Representation of an argument for a message, at most 60 characters."""
    text = repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _systematic(weights: Float64, start: float) -> Int64:
    """Return how often each item is drawn in as many draws as there are items: its share, rounded down or up.

    Args:
        weights: Non-negative numbers, not all 0.
        start: Offset of the comb of systematic resampling, in [0, 1).
    """
    expected = weights / weights.sum() * len(weights)
    counts: Int64 = np.floor(expected + _TOLERANCE).astype(np.int64)
    rest = np.where(expected - counts < _TOLERANCE, 0.0, expected - counts)
    left = len(weights) - int(counts.sum())
    if left:
        # Integer shares get nothing more, whatever the rounding of the sum is.
        open_to_more = np.flatnonzero(rest)
        ends = np.cumsum(rest[open_to_more])
        ends *= left / ends[-1]
        ends[-1] = left
        teeth = np.minimum(np.floor(ends + start), left).astype(np.int64)
        counts[open_to_more] += np.diff(teeth, prepend=0)
    return counts


def _array(name: str, value: object) -> npt.NDArray[Any]:
    if isinstance(value, (str, os.PathLike)):
        try:
            with open_regular(value) as file:  # a FIFO would wait for ever
                return np.asarray(np.load(file, allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise SamplesError(
                f"{name}={os.fspath(value)!r} cannot be read as a .npy file: {error}"
            ) from error
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # of torch, for bfloat16 or with a gradient
        raise SamplesError(f"{name} must be a list of numbers: {error}") from error


@dataclass(frozen=True)
class DistributedBatchSampler:
    """An epoch cut into global batches, and each global batch into one slice per rank.

    Every sample belongs to exactly one slice. All ranks have the same number of batches; in each batch a rank
    has at least one sample and at most one more than another rank. A tail smaller than ``world`` joins the
    batch before it.

    Args:
        samples: Samples per epoch, over all ranks.
        global_batch: Samples per batch, over all ranks.
        world: Number of ranks.
        drop_last: Drop an incomplete batch.
        takes_turns: The samples of a batch go to the ranks in turn, instead of one run of neighbours to each.

    Raises:
        ValueError: For arguments out of range.
        ShardError: If there are too few samples.
    """

    samples: int
    global_batch: int
    world: int = 1
    drop_last: bool = False
    takes_turns: bool = False

    def __post_init__(self) -> None:
        if self.world < 1:
            raise ValueError(f"world={self.world} must be at least 1")
        if self.global_batch < self.world:
            raise SamplesError(
                f"global_batch={self.global_batch} is smaller than world={self.world}: each rank needs "
                "a sample of every batch. Raise the batch size."
            )
        if self.samples < self.world:
            raise ShardError(
                f"samples={self.samples} are too few for world={self.world} ranks: each needs at least one. "
                "Add shards or use fewer ranks."
            )
        if self.drop_last and self.samples < self.global_batch:
            raise ShardError(
                f"samples={self.samples} are fewer than global_batch={self.global_batch}, so drop_last=True "
                "leaves no batch. Lower the batch size or set drop_last=False."
            )

    def __len__(self) -> int:
        full, tail = divmod(self.samples, self.global_batch)
        return full if self.drop_last else full + (tail >= self.world)

    def bounds(self, k: int) -> tuple[int, int]:
        """Start and stop of global batch k in the epoch's samples. Raises IndexError outside 0..len-1."""
        if not 0 <= k < len(self):
            raise IndexError(f"k={k} must be in 0..{len(self) - 1}")
        start = k * self.global_batch
        takes_the_tail = k == len(self) - 1 and not self.drop_last
        return start, self.samples if takes_the_tail else start + self.global_batch

    def rank_bounds(self, k: int, rank: int) -> tuple[int, int]:
        """Start and stop of the rank's slice of global batch k in the epoch's samples."""
        if not 0 <= rank < self.world:
            raise IndexError(f"rank={rank} must be in 0..{self.world - 1}")
        start, stop = self.bounds(k)
        count = stop - start
        return start + count * rank // self.world, start + count * (rank + 1) // self.world

    def rank_places(self, k: int, rank: int) -> slice:
        """Places of the rank's part of global batch k in the epoch's samples."""
        start, stop = self.rank_bounds(k, rank)
        if not self.takes_turns:
            return slice(start, stop)
        start, stop = self.bounds(k)
        return slice(start + rank, stop, self.world)

    def largest(self, rank: int) -> int:
        """Count the samples of the rank's largest batch: the first, or the last one with its tail."""
        places = (self.rank_places(k, rank).indices(self.samples) for k in (0, len(self) - 1))
        return max(len(range(*each)) for each in places)

    def largest_by_shape(self, rank: int) -> list[tuple[None, int]]:
        """Return ``largest`` with None, for the shape of the crop; see ``BucketBatches``."""
        return [(None, self.largest(rank))]

    def fingerprint(self) -> int:
        """Return 0: all that batches depend on beside the order is their number of samples."""
        return 0

    def requests(
        self, sampler: Sampler, rank: int, epoch: int, first: int, continues: Callable[[int], bool]
    ) -> Iterator[Request]:
        """Yield one rank's requests from batch ``first`` of an epoch on.

        At the end of an epoch, the next one follows if ``continues(next epoch)`` is true.
        """
        count = len(self)
        low, high = (self.global_batch * r // self.world for r in (rank, rank + 1))
        while True:
            ids, occurrence = sampler.draw_epoch(epoch)
            for k in range(first, count):
                start = k * self.global_batch
                if self.takes_turns or k == count - 1:
                    places = self.rank_places(k, rank)
                else:
                    places = slice(start + low, start + high)
                yield Request(epoch, ids[places], None if occurrence is None else occurrence[places])
            epoch, first = epoch + 1, 0
            if not continues(epoch):
                return
