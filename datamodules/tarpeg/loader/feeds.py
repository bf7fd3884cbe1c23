"""Feeds: what a loader fetches. The protocol, the feed of indexed samples, and the choice between feeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from ..errors import ResumeError, ShardError, warn
from ..machine import read_machine
from ..processes import made_ahead
from ..remedies import Message, Part, Setting
from ..sampling.buckets import BucketBatches, bucket_batches
from ..sampling.epochs import EpochCounter
from ..sampling.patches import PatchBatches
from ..sampling.rng import Int64
from ..sampling.sampler import DistributedBatchSampler, Request, Sampler
from ..shards.source import Source, where_of
from .batch import FetchResult
from .buffers import Runner, ToRequest
from .config import LoaderConfig
from .ranks import ORDER, DataRank
from .split import Split
from .streamed import StreamedFeed

# Default of readahead, in batches: some 50 MB for 64 images of 100 kB.
_READAHEAD = 8
_REMEDIES: dict[str, tuple[Part, ...]] = {
    "global_batch": (
        " (",
        Setting("ShardDataModule", "batch_size"),
        " times the ranks; ",
        Setting("ShardDataModule", "global_batch_size"),
        " fixes it for any number of ranks)",
    ),
    "samples": (" (the shards and subset=)",),
    "order": (f" ({ORDER})",),
    "order of shapes": (f" ({ORDER}; and the number of ranks, on which batches of one shape may depend)",),
}


class Feed(Protocol):
    """What differs between loaders of indexed samples and of streams."""

    source: Source
    """Samples of the fetcher; none for a stream, whose requests carry them."""
    candidates: Int64 | None
    """Ids of the samples that may replace a broken image; None for all."""
    to_request: ToRequest | None
    """See ``PrefetchRunner``."""
    epochs: EpochCounter
    """Which epoch is next."""

    @property
    def length(self) -> int | None:
        """Batches per epoch, equal on every rank; None if it is unknown."""

    def length_in_state(self, delivered: int) -> int:
        """Batches per epoch for ``state_dict``, after ``delivered`` of them; -1 if it is unknown so far."""

    def samples_per_rank(self, delivered: int) -> float:
        """Return the samples per epoch and rank, as far as known after ``delivered`` batches."""

    def shapes(self) -> dict[tuple[int, int], int]:
        """Return the batches per epoch of each shape, of a crop with buckets."""

    def requests(self, epoch: int) -> Iterator[Request]:
        """Return the requests of an epoch; raises ValueError for a stream."""

    def facts(self) -> dict[str, int]:
        """Return what the batches depend on, apart from the samples' content; equal on all ranks."""

    def files(self) -> list[str]:
        """Return what the samples are read from, in order: see ``Source.identities``."""

    def resume(self, state: Mapping[str, Any]) -> tuple[int, bool]:
        """Return the batches of the epoch to leave out, and whether the epoch has ended."""

    def results(self, fetcher: Any, runner: Runner, epoch: int, first: int) -> Iterator[FetchResult]:
        """Begin to fetch, at batch ``first`` of an epoch. Ends all results that were begun before."""

    def continues(self, epoch: int) -> bool:
        """Whether the latest results go on with this epoch after the one before it."""


class IndexedFeed:
    """Batches of indexed shards, or of a folder of images, for one rank.

    Every sample comes exactly once per epoch over all ranks; order and crops depend on seed and epoch alone.
    """

    to_request: ToRequest | None = None

    def __init__(
        self,
        source: Source,
        split: Split,
        config: LoaderConfig,
        ranks: DataRank,
        *,
        name: str,
        training: bool,
    ) -> None:
        self.source = source
        self.order = split.sampler(source, config.seed, training)
        samples = len(self.order)
        if samples < ranks.world:
            raise ShardError(
                f"the {name} split has {samples} sample{'s' * (samples != 1)}, too few for {ranks.world} "
                "ranks: each needs at least one. Add samples, or use fewer ranks."
            )
        self.epochs = EpochCounter()
        self.epochs.varies = self.order.shuffle is not False or self.order.weights is not None
        self.candidates = self.order.candidates()
        self._seed, self._ranks, self._channels = config.seed, ranks, split.channels
        self._batches = _batches_of(source, split, self.order, config, ranks.world)
        self._readahead = readahead_depth(source, config.readahead)
        # A training continues epoch after epoch: the next epoch is prefetched while this one ends.
        self._is_continuous = training
        self.continues: Callable[[int], bool] = lambda epoch: False

    @property
    def length(self) -> int:
        """Batches per epoch, equal on every rank."""
        return len(self._batches)

    def length_in_state(self, delivered: int) -> int:
        """Batches per epoch."""
        return self.length

    def samples_per_rank(self, delivered: int) -> float:
        """Return the samples per epoch and rank."""
        return self._batches.samples / self._batches.world

    def shapes(self) -> dict[tuple[int, int], int]:
        """Return the batches per epoch of each shape, of buckets, or of each length and numbers per patch."""
        batches = self._batches
        if isinstance(batches, PatchBatches):
            columns = batches.shapes().items()
            return {(high // wide, wide * wide * self._channels): count for (high, wide), count in columns}
        return batches.shapes() if isinstance(batches, BucketBatches) else {}

    def requests(self, epoch: int) -> Iterator[Request]:
        """Return the requests of an epoch."""
        return self._batches.requests(self.order, self._ranks.rank, epoch, 0, lambda _: False)

    def facts(self) -> dict[str, int]:
        """Return what the batches depend on, apart from the samples' content; equal on all ranks."""
        samples, global_batch = self._batches.samples, self._batches.global_batch
        facts = {"samples": samples, "global_batch": global_batch, "seed": self._seed}
        facts = {"order": self.order.fingerprint() ^ self._batches.fingerprint(), **facts}
        shapes = len(self.shapes())
        return {**facts, "shapes": shapes} if shapes else facts

    def files(self) -> list[str]:
        """Return the identity of each file of the source, in order."""
        return self.source.identities()

    def resume(self, state: Mapping[str, Any]) -> tuple[int, bool]:
        """Return the number of batches that ``state`` has behind it, and whether its epoch has ended.

        The number of ranks may differ. Raises ``ResumeError`` for a state within an epoch of which other
        batches would be made now: with another global batch size, seed or number of samples.
        """
        epoch, batches = state["epoch"], state["batches"]
        is_end = batches == state["len"]
        for name, value in self.facts().items():
            if batches and not is_end and state[name] != value:
                kind = "order of shapes" if name == "order" and self.shapes() else name
                raise ResumeError(
                    Message(
                        f"cannot resume at batch {batches} of epoch {epoch}: {name} was {state[name]} when "
                        f"the checkpoint was made and is {value} now, which makes other batches. Restore it",
                        *_REMEDIES.get(kind, ()),
                        ", or use a checkpoint from the end of an epoch.",
                    )
                )
        if batches >= self.length and not is_end and self._ranks.is_first:
            left = self._batches.samples - batches * self._batches.global_batch
            warn(
                f"epoch {epoch} ends here: its last {left} samples are fewer than the ranks of this run, "
                f"{self._batches.world}"
            )
        # The epoch of a checkpoint from its end is over, also if batches are smaller, and more, by now.
        delivered = self.length if is_end else min(batches, self.length)
        return delivered, delivered == self.length

    def results(self, fetcher: Any, runner: Runner, epoch: int, first: int) -> Iterator[FetchResult]:
        """Begin to fetch, at batch ``first`` of an epoch. Ends all results that were begun before."""
        # No closure here refers to this feed or its loader: without cycles, deleting the loader ends its
        # workers at once.
        is_continuous, rank = self._is_continuous, self._ranks.rank
        largest = self._batches.largest_by_shape(rank)

        def bytes_of(epoch: int) -> int:
            each = (Request(epoch, np.zeros(count, np.int64), size=size) for size, count in largest)
            return max(int(fetcher.nbytes(request)) for request in each)

        nbytes = bytes_of(epoch)
        # An epoch with larger batches needs new buffers, so it begins results of its own.
        self.continues = lambda epoch: is_continuous and bytes_of(epoch) <= nbytes
        requests = self._batches.requests(self.order, rank, epoch, first, self.continues)
        if self._readahead:
            source = self.source
            requests = read_ahead(requests, self._readahead, lambda request: source.will_need(request.ids))
        return runner.run(requests, nbytes)


def feed_of(
    split: Split, source: Source | None, config: LoaderConfig, ranks: DataRank, *, name: str, training: bool
) -> Feed:
    """Return the feed of the split ``name``: of its opened samples, or of a stream if ``source`` is None."""
    if source is None:
        return StreamedFeed(split, config, ranks, name=name, training=training)
    return IndexedFeed(source, split, config, ranks, name=name, training=training)


def _batches_of(
    source: Source, split: Split, order: Sampler, config: LoaderConfig, world: int
) -> DistributedBatchSampler | BucketBatches | PatchBatches:
    """Return how the samples of an epoch make batches: in their order, or as the crop says."""
    if split.patches is not None:
        return PatchBatches(
            split.patches,
            len(order),
            world,
            drop_last=config.drop_last,
            shuffles=order.shuffle is not False,
            seed=config.seed,
        )
    total = config.global_batch_size or config.batch_size * world
    crop = split.buckets
    if crop is None:
        return DistributedBatchSampler(
            len(order), total, world, config.drop_last, takes_turns=split.repeats > 1
        )
    candidates = order.candidates()
    ids = np.arange(len(source)) if candidates is None else candidates
    sizes = source.sizes(ids)
    shapes = crop.shapes_of(sizes)
    without = np.flatnonzero(shapes[:, 0] == 0)
    if without.size:
        row = int(without[0])
        height, width = sizes[row].tolist()
        near = crop.nearest(height, width)
        others = f", and neither do {without.size - 1} others" if without.size > 1 else ""
        smaller = "bucket" if crop.buckets is not None else "step="
        raise ShardError(
            f"{where_of(source, int(ids[row]))}: the image of {height} x {width} fits into no bucket{others}"
            f"; the nearest is {near[0]} x {near[1]}. Give AspectBuckets(upscale=True), which enlarges such "
            f"images, or a smaller {smaller}; or leave them out by subset="
        )
    all_shapes = np.zeros((len(source), 2), np.int64)
    all_shapes[ids] = shapes
    return bucket_batches(crop, all_shapes, total, world, drop_last=config.drop_last)


def readahead_depth(source: Source, readahead: int | None) -> int:
    """Return how many batches ahead the disk is asked to read.

    Default: 8 if the shards take more than half of the memory, as the system has then dropped most of what an
    epoch reads; otherwise 0, because asking for bytes in memory costs a little.
    """
    if readahead is not None:
        return readahead
    memory = read_machine().usable_memory
    return _READAHEAD if memory is not None and source.total_bytes > memory / 2 else 0


def read_ahead(
    requests: Iterable[Request], depth: int, advise: Callable[[Request], None]
) -> Iterator[Request]:
    """Yield the requests, each of them ``depth`` requests after ``advise`` was called with it."""

    def advised() -> Iterator[Request]:
        for request in requests:
            advise(request)
            yield request

    return made_ahead(advised(), depth)
