"""Batches of shards that are read as streams."""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DecodeError, ShardError
from ..sampling.batches import BatchPlan, EpochCounter
from ..sampling.sampler import Request
from ..shards.stream import Stream, StreamRequest, Streaming, expand_urls
from .batch import FetchResult
from .config import LoaderConfig
from .loader import Loader, engine_of
from .split import Split
from .workers import ProcessRunner, Runner

if TYPE_CHECKING:
    from .fetch import Fetcher


class StreamingLoader(Loader):
    """A ``Loader`` of shards that are read as streams; see ``Streaming`` for what it does not promise.

    ``len()`` is known where ``Streaming(samples=...)`` says how long an epoch is, otherwise a ``TypeError``.
    Raises ``ShardError`` where a rank or a worker process would get no shard.
    """

    def __init__(
        self, split: Split, config: LoaderConfig, *, shuffle: bool, keys: bool, rank: int, world: int
    ) -> None:
        # Importing this loads the operators; importing this module must not.
        from .fetch import Fetcher

        wish = shuffle if split.shuffle is None else bool(split.shuffle)
        streaming = split.streaming if isinstance(split.streaming, Streaming) else Streaming()
        urls = expand_urls(split.shards)
        self._workers, threads = config.workers_and_threads
        _check_shards(len(urls), world, self._workers)
        if streaming.samples is None and world > 1:
            raise ShardError(
                f"streaming on {world} ranks needs to know how many samples make an epoch, as each rank's "
                "shards hold another number: give Streaming(samples=...)"
            )
        self.sampler = EpochCounter()
        self.substituted = 0
        self.split, self.config, self._rank = split, config, rank
        self._is_sized = streaming.samples is not None
        total = config.global_batch_size or config.batch_size * world
        # Without a length the plan says no more than how large a batch is.
        samples = streaming.samples or max(total, world)
        self._plan = BatchPlan(samples, total, world, config.drop_last)
        self._stream = Stream(
            urls, rank, world, config.seed, wish, streaming.buffer, is_endless=self._is_sized
        )
        nothing: Any = None
        fetcher = Fetcher.of(nothing, split, None, seed=config.seed, on_error=config.on_error, keys=keys)
        fetcher.pixels = config.pixels
        self._streams = _StreamFetcher(fetcher)
        self._engine: Runner
        if self._workers:
            pulling = _Pulling(self._stream, config.drop_last, self._workers)
            self._engine = ProcessRunner(self._streams, self._workers, config.prefetch, pulling)
        else:
            self._engine = engine_of(self._streams, replace(config, workers=0, threads=threads))
        self._is_underway = False
        self._turn = 0
        self._epoch = self._batches = 0
        self._is_done = False
        self._told_of_foreign = False
        self._unclaimed = deque(maxlen=0)

    def __len__(self) -> int:
        """Batches an epoch; TypeError, as for whatever has no length, without ``samples``."""
        if not self._is_sized:
            raise TypeError("a stream has no length unless Streaming(samples=...) says how long an epoch is")
        return len(self._plan)

    def state_dict(self) -> dict[str, int]:
        """Say how far this loader is: plain numbers, alike on all ranks."""
        length = len(self) if self._is_sized else self._batches if self._is_done else -1
        return {"epoch": self._epoch, "batches": self._batches, "len": length, **self.facts()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on with the epoch and, where there is a length, with as many batches as were left of it."""
        epoch, batches = state["epoch"], state["batches"]
        is_end = batches == state["len"]
        if batches and not is_end and self._rank == 0:
            rest = "what was left of it is" if self._is_sized else "all of it is"
            warnings.warn(
                f"a stream cannot go back to batch {batches} of epoch {epoch}: {rest} drawn anew, so samples "
                "may come twice in it, or not",
                stacklevel=2,
            )
        self._epoch, self._batches = epoch, min(batches, len(self)) if self._is_sized else 0
        self.sampler.resume(epoch, self._batches, is_end)

    def facts(self) -> dict[str, int]:
        """Return what batches depend on, apart from the samples themselves; equal on all ranks."""
        plan, stream = self._plan, self._stream
        return {"shards": len(stream.urls), "samples": plan.samples, "seed": stream.seed}

    def _answers(self) -> Iterator[FetchResult]:
        self._is_done = False
        first, drop_last = self._batches, self.config.drop_last
        if self._is_sized:
            bounds = [self._plan.rank_bounds(k, self._rank) for k in range(first, len(self._plan))]
            sizes = tuple(stop - start for start, stop in bounds)
        else:
            start, stop = self._plan.rank_bounds(0, self._rank)
            sizes = (stop - start,)
        if not sizes:  # the checkpoint is of more batches than there are now
            self._is_done = True
            return
        if self._is_underway:
            self._engine.close()  # a stream that was given up may be at a network that does not answer
        self._is_underway = True
        epoch, size = self._epoch, self._streams.nbytes(Request(self._epoch, np.zeros(max(sizes), np.int64)))
        each: Iterable[int] = sizes if self._is_sized else itertools.repeat(sizes[0])
        requests: Any
        if self._workers:
            requests = (
                _Pull(self._turn, epoch, first, count, k % self._workers) for k, count in enumerate(each)
            )
        else:
            requests = self._stream.requests(epoch, first, each, drop_last)
        ended = 0
        try:
            for answer in self._engine.run(requests, size):
                is_end = answer.batch is None and answer.error is None
                ended = ended + 1 if is_end else 0
                if ended == self._workers > 0:  # all, one after the other
                    break
                if not is_end:
                    yield answer
        except ShardError as error:
            yield FetchResult(None, [], None, error)
        self._is_done = True
        self._is_underway = False

    def _too_many(self, answer: FetchResult, bad: int) -> DecodeError | None:
        if self._is_sized:
            return super()._too_many(answer, bad)
        return self._judged(answer, bad, (self._batches + 1) * self._plan.global_batch)


@dataclass(frozen=True)
class _StreamFetcher:
    """Answers requests that bring their samples with them."""

    fetcher: Fetcher

    @property
    def dtype(self) -> torch.dtype:
        return self.fetcher.dtype

    def shape(self, request: Request) -> tuple[int, ...]:
        return self.fetcher.shape(request)

    def nbytes(self, request: Request) -> int:
        return self.fetcher.nbytes(request)

    def fetch(self, request: StreamRequest, out: Tensor | None = None, threads: int = 1) -> FetchResult:
        fetcher = replace(self.fetcher, shards=request.samples, candidates=request.ids)
        plain = Request(request.epoch, request.ids, request.occurrence)
        return fetcher.fetch(plain, out, threads)._replace(notes=request.notes, request=plain)


class _Pull(NamedTuple):
    """What is sent in place of a request: that a worker process is to take its next ``size`` samples."""

    turn: int
    epoch: int
    first: int
    size: int
    worker: int


@dataclass
class _Pulling:
    """Takes samples from the stream as they are asked for; each worker process has its own."""

    stream: Stream
    drop_last: bool
    workers: int
    _turn: int | None = None
    _size: int = 0
    _requests: Iterator[StreamRequest] = field(default_factory=lambda: iter(()))

    def __call__(self, pull: _Pull) -> Any:
        if pull.turn != self._turn:
            self._turn = pull.turn
            share = pull.epoch, pull.first, self._sizes(), self.drop_last, pull.worker, self.workers
            self._requests = self.stream.requests(*share)
        self._size = pull.size
        try:
            return next(self._requests, FetchResult(None, [], None))
        except ShardError as error:
            return FetchResult(None, [], None, error)

    def _sizes(self) -> Iterator[int]:
        while True:
            yield self._size


def _check_shards(shards: int, world: int, workers: int) -> None:
    if shards < world:
        raise ShardError(
            f"{shards} shards are too few to stream on {world} ranks: each reads shards of its own. Write "
            "more and smaller shards, or use fewer ranks."
        )
    if shards < world * workers:
        raise ShardError(
            f"{shards} shards are too few to stream on {world} ranks with {workers} worker processes each, "
            f"which read shards of their own. Give workers={shards // world} or fewer, or write more and "
            "smaller shards."
        )
