"""Loader of shards that are read as streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import ShardError, warn
from ..sampling.sampler import Request
from ..shards.stream import Stream, StreamedSamples, Streaming, StreamRequest, expand_urls
from .batch import FetchResult
from .config import LoaderConfig
from .loader import BaseLoader
from .split import Split


class StreamingLoader(BaseLoader):
    """A loader of shards that are read as streams; see ``Streaming`` for what it does not guarantee.

    ``len()`` needs ``Streaming(samples=...)``, otherwise it is a ``TypeError``. Raises ``ShardError`` if a
    rank or worker process would get no shard. Samples arrive with requests: ``fetcher`` has none of its own.
    """

    def __init__(
        self, split: Split, config: LoaderConfig, *, shuffle: bool, keys: bool, rank: int, world: int
    ) -> None:
        streaming = split.streaming if isinstance(split.streaming, Streaming) else Streaming()
        urls = expand_urls(split.shards)
        self._workers = config.workers_and_threads[0]
        _check_shards(len(urls), world, self._workers)
        self._is_sized = streaming.samples is not None
        if not self._is_sized and world > 1:
            raise ShardError(
                f"streaming on {world} ranks needs the number of samples per epoch, because ranks read "
                "shards of different lengths: give Streaming(samples=...)"
            )
        is_shuffled = shuffle if split.shuffle is None else bool(split.shuffle)
        self._stream = Stream(
            urls, rank, world, config.seed, is_shuffled, streaming.buffer, is_endless=self._is_sized
        )
        self._is_underway = self._is_done = False
        samples = streaming.samples
        # Worker processes read their own shares; otherwise requests carry the samples that this process read.
        pulling = _Pulling(self._stream, config.drop_last, self._workers) if self._workers else None
        options: dict[str, Any] = {"keys": keys, "rank": rank, "world": world, "to_request": pulling}
        super().__init__(StreamedSamples([]), split, config, None, samples, **options)

    def __len__(self) -> int:
        """Batches per epoch; TypeError without ``samples``."""
        if not self._is_sized:
            raise TypeError("a stream has no length unless Streaming(samples=...) sets the samples per epoch")
        return len(self._batches)

    def state_dict(self) -> dict[str, int]:
        """Position of this loader: plain integers, equal on all ranks."""
        length = len(self) if self._is_sized else self._delivered if self._is_done else -1
        return {"epoch": self._epoch, "batches": self._delivered, "len": length, **self.facts()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with the epoch and, if it has a length, with as many batches as were left of it."""
        epoch, batches = state["epoch"], state["batches"]
        is_end = batches == state["len"]
        if batches and not is_end and self._rank == 0:
            rest = "the rest of the epoch" if self._is_sized else "the whole epoch"
            warn(
                f"a stream cannot go back to batch {batches} of epoch {epoch}: {rest} is drawn again, so "
                "samples may come twice in it, or not at all"
            )
        self._epoch, self._delivered = epoch, 0
        if self._is_sized:
            self._delivered = len(self) if is_end else min(batches, len(self))
        self.sampler.resume(epoch, self._delivered, is_end)

    def facts(self) -> dict[str, int]:
        """Return what the batches depend on, apart from the samples' content; equal on all ranks."""
        stream = self._stream
        return {"shards": len(stream.urls), "samples": self._batches.samples, "seed": stream.seed}

    def _results(self) -> Iterator[FetchResult]:
        self._is_done = False
        first = self._delivered
        remaining = range(first, len(self._batches)) if self._is_sized else (0,)
        bounds = [self._batches.rank_bounds(k, self._rank) for k in remaining]
        sizes = [stop - start for start, stop in bounds]
        if not sizes:  # the checkpoint has more batches than there are now
            self._is_done = True
            return
        if self._is_underway:
            self._runner.close()  # an abandoned stream may wait for a network that does not answer
        self._is_underway = True
        nbytes = self.fetcher.nbytes(Request(self._epoch, np.zeros(max(sizes), np.int64)))
        each: Iterable[int] = sizes if self._is_sized else itertools.repeat(sizes[0])
        requests: Any = self._stream.requests(self._epoch, first, each, self.config.drop_last)
        if self._workers:
            pull = partial(_Pull, self._iterations, self._epoch, first)
            requests = (pull(size, k % self._workers) for k, size in enumerate(each))
        ended = 0
        try:
            for result in self._runner.run(requests, nbytes):
                is_end = result.batch is None and result.error is None
                ended = ended + 1 if is_end else 0
                if ended == self._workers > 0:  # all workers, one after the other
                    break
                if not is_end:
                    yield result
        except ShardError as error:
            yield FetchResult(None, [], None, error)
        self._is_done = True
        self._is_underway = False

    def _expected_samples(self) -> float:
        so_far = (self._delivered + 1) * self._batches.global_batch
        return super()._expected_samples() if self._is_sized else so_far


class _Pull(NamedTuple):
    """Sent in place of a request: the worker process takes the next ``samples`` of its stream."""

    iteration: int
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
    _iteration: int | None = None
    _samples: int = 0
    _requests: Iterator[StreamRequest] = field(default_factory=lambda: iter(()))

    def __call__(self, pull: _Pull) -> Any:
        if pull.iteration != self._iteration:
            self._iteration = pull.iteration
            sizes = iter(lambda: self._samples, None)  # of the latest pull
            share = pull.epoch, pull.first, sizes, self.drop_last, pull.worker, self.workers
            self._requests = self.stream.requests(*share)
        self._samples = pull.samples
        try:
            return next(self._requests, FetchResult(None, [], None))
        except ShardError as error:
            return FetchResult(None, [], None, error)


def _check_shards(shards: int, world: int, workers: int) -> None:
    too_few = f"{shards} shards are too few to stream on {world} ranks"
    if shards < world:
        raise ShardError(
            f"{too_few}: each reads shards of its own. Write more and smaller shards, or use fewer ranks."
        )
    if shards < world * workers:
        raise ShardError(
            f"{too_few} with {workers} worker processes each, which read shards of their own. Give "
            f"workers={shards // world} or fewer, or write more and smaller shards."
        )
