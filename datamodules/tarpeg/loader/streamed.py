"""Feed of shards that are read as streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import ShardError, warn
from ..remedies import Message, Setting
from ..sampling.epochs import EpochCounter
from ..sampling.rng import LATER_PASS, Int64
from ..sampling.sampler import DistributedBatchSampler, Request
from ..shards.source import Source
from ..shards.stream import Stream, StreamedSamples, Streaming, StreamRequest
from ..shards.urls import file_name, public_url
from .batch import FetchResult
from .buffers import Runner, ToRequest
from .config import LoaderConfig
from .ranks import DataRank
from .split import Split


class StreamedFeed:
    """Batches of shards that are read as streams, for one rank; see ``Streaming`` for what is not guaranteed.

    The length is known with ``Streaming(samples=...)`` only. Raises ``ShardError`` if a rank or worker
    process would get no shard. Samples arrive with requests: ``source`` has none.
    """

    candidates: Int64 | None = None

    def __init__(
        self, split: Split, config: LoaderConfig, ranks: DataRank, *, name: str, training: bool
    ) -> None:
        streaming = split.streaming if isinstance(split.streaming, Streaming) else Streaming()
        rank, world = ranks.rank, ranks.world
        urls = split.urls()
        split.check_not_reduced()
        self._workers = config.workers_and_threads[0]
        _check_shards(name, urls, world, self._workers)
        self._is_sized = streaming.samples is not None
        if not self._is_sized and world > 1:
            raise ShardError(
                f"streaming on {world} ranks needs the number of samples per epoch, because ranks read "
                "shards of different lengths: give Streaming(samples=...)"
            )
        is_shuffled = training if split.shuffle is None else bool(split.shuffle)
        self._stream = Stream(
            urls,
            rank,
            world,
            config.seed,
            is_shuffled,
            streaming.buffer,
            is_endless=self._is_sized,
            several=split.image is not None,
        )
        self._ranks, self._drop_last = ranks, config.drop_last
        total = config.global_batch_size or config.batch_size * world
        samples = total if streaming.samples is None else streaming.samples
        self._batches = DistributedBatchSampler(samples, total, world, config.drop_last)
        self.source: Source = StreamedSamples([])
        self.epochs = EpochCounter()
        self.epochs.varies = is_shuffled
        # Worker processes read their own shares; otherwise requests carry the samples that this process read.
        self.to_request: ToRequest | None = None
        if self._workers:
            self.to_request = _Pulling(self._stream, config.drop_last, self._workers)
        self._is_underway = False
        self._is_done = False
        self._runs = 0
        self._behind: tuple[int, int] | None = None  # epoch and batch of a state within an epoch

    @property
    def length(self) -> int | None:
        """Batches per epoch; None without ``Streaming(samples=...)``."""
        return len(self._batches) if self._is_sized else None

    def length_in_state(self, delivered: int) -> int:
        """Batches per epoch; without a length, those that were delivered at its end, and -1 before."""
        if self._is_sized:
            return len(self._batches)
        return delivered if self._is_done else -1

    def samples_per_rank(self, delivered: int) -> float:
        """Return the samples per epoch and rank.

        Without a length, those of the ``delivered`` batches and of the next.
        """
        if self._is_sized:
            return self._batches.samples / self._batches.world
        return (delivered + 1) * self._batches.global_batch

    def shapes(self) -> dict[tuple[int, int], int]:
        """Return nothing: streams have no buckets."""
        return {}

    def requests(self, epoch: int) -> Iterator[Request]:
        """Raise ValueError: what a stream brings is not known before."""
        raise ValueError("a stream has no requests that are known before its samples are read")

    def facts(self) -> dict[str, int]:
        """Return what the batches depend on, apart from the samples' content; equal on all ranks."""
        stream = self._stream
        return {"shards": len(stream.urls), "samples": self._batches.samples, "seed": stream.seed}

    def files(self) -> list[str]:
        """Return the names of the shards in the order of the URLs, which may hold passwords."""
        return [file_name(url) for url in self._stream.urls]

    def resume(self, state: Mapping[str, Any]) -> tuple[int, bool]:
        """Return the number of batches that are left out of the epoch of ``state``, and whether it has ended.

        The epoch is drawn again, with as many batches as were left of it if it has a length.
        """
        epoch, batches = state["epoch"], state["batches"]
        is_end = batches == state["len"]
        self._behind = None if is_end or not batches else (epoch, batches)
        if not self._is_sized:
            return 0, is_end
        length = len(self._batches)
        if not is_end and batches >= length:  # the state is of more samples: no batch follows
            self._warn_of(epoch)
        return length if is_end else min(batches, length), is_end

    def _warn_of(self, epoch: int) -> None:
        """Warn if this epoch is that of a state within it, whose batches do not come again."""
        if self._behind is not None and self._behind[0] == epoch and self._ranks.is_first:
            rest = "the rest of the epoch" if self._is_sized else "the whole epoch"
            warn(
                f"a stream cannot go back to batch {self._behind[1]} of epoch {epoch % LATER_PASS}: {rest} "
                "is drawn again, so samples may come twice in it, or not at all"
            )
        self._behind = None

    def results(self, fetcher: Any, runner: Runner, epoch: int, first: int) -> Iterator[FetchResult]:
        """Begin to fetch an epoch, of which ``first`` batches are left out."""
        self._is_done = False
        self._warn_of(epoch)
        remaining = range(first, len(self._batches)) if self._is_sized else (0,)
        bounds = [self._batches.rank_bounds(k, self._ranks.rank) for k in remaining]
        sizes = [stop - start for start, stop in bounds]
        if not sizes:  # the checkpoint has more batches than there are now
            self._is_done = True
            return
        if self._is_underway:
            runner.close()  # an abandoned stream may wait for a network that does not answer
        self._is_underway = True
        self._runs += 1
        nbytes = fetcher.nbytes(Request(epoch, np.zeros(max(sizes), np.int64)))
        each: Iterable[int] = sizes if self._is_sized else itertools.repeat(sizes[0])
        requests: Any = self._stream.requests(epoch, first, each, self._drop_last)
        if self._workers:
            pull = partial(_Pull, self._runs, epoch, first)
            requests = (pull(size, k % self._workers) for k, size in enumerate(each))
        ended, left = 0, len(sizes)
        try:
            for result in runner.run(requests, nbytes):
                is_end = result.batch is None and result.error is None
                ended = ended + 1 if is_end else 0
                if ended == self._workers > 0:  # all workers, one after the other
                    break
                if not is_end:
                    left -= 1
                    self._is_underway = left > 0 or not self._is_sized  # nobody asks for more than these
                    yield result
        except ShardError as error:
            yield FetchResult(error=error)
        self._is_done = True
        self._is_underway = False

    def continues(self, epoch: int) -> bool:
        """Return False: results are of one epoch."""
        return False


class _Pull(NamedTuple):
    """Sent in place of a request: the worker process takes the next ``samples`` of its stream."""

    run: int
    epoch: int
    first: int
    samples: int
    worker: int


@dataclass
class _Pulling:
    """Takes samples from the stream as they are requested; each worker process has a copy."""

    stream: Stream
    drop_last: bool
    workers: int
    _run: int | None = None
    _samples: int = 0
    _requests: Iterator[StreamRequest] = field(default_factory=lambda: iter(()))

    def __call__(self, pull: _Pull) -> Any:
        if pull.run != self._run:
            self._run = pull.run
            sizes = iter(lambda: self._samples, None)  # of the latest pull
            self._requests = self.stream.requests(
                pull.epoch, pull.first, sizes, self.drop_last, pull.worker, self.workers
            )
        self._samples = pull.samples
        try:
            return next(self._requests, FetchResult())
        except ShardError as error:
            return FetchResult(error=error)


def _check_shards(name: str, urls: Sequence[str], world: int, workers: int) -> None:
    shards, ranks = len(urls), f"{world} rank{'s' * (world != 1)}"
    count = "1 shard," if shards == 1 else f"{shards} shards, such as"
    too_few = f"the {name} split has {count} {public_url(urls[0])}, too few to stream on {ranks}"
    if shards < world:
        raise ShardError(
            f"{too_few}: each reads shards of its own. Write more and smaller shards, or use fewer ranks."
        )
    if shards < world * workers:
        raise ShardError(
            Message(
                f"{too_few} with {workers} worker processes each, which read shards of their own. Give ",
                Setting("ShardDataModule", "workers", shards // world),
                " or fewer, or write more and smaller shards.",
            )
        )
