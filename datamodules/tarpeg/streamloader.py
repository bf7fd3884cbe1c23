"""Batches of shards that are read as streams."""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .batch import Answer, Request
from .delivery import Delivery
from .engines import as_it_is, begin_worker
from .errors import DecodeError, ShardError
from .forking import HeardFork
from .loader import Loader, engine_of
from .memory import image_bytes
from .requests import Sampler
from .sampling import BatchPlan
from .split import Split
from .streaming import Stream, Streamed, Streaming, expand_urls

if TYPE_CHECKING:
    from .reading import Reader


class StreamingLoader(Loader):
    """A ``Loader`` of shards that are read as streams; see ``Streaming`` for what it does not promise.

    ``len()`` is known where ``Streaming(samples=...)`` says how long an epoch is, otherwise a ``TypeError``.
    Raises ``ShardError`` where a rank or a worker process would get no shard.
    """

    def __init__(
        self, split: Split, delivery: Delivery, *, shuffle: bool, keys: bool, rank: int, world: int
    ) -> None:
        # Importing this loads the operators; importing this module must not.
        from .reading import Reader

        wish = shuffle if split.shuffle is None else bool(split.shuffle)
        streaming = split.streaming if isinstance(split.streaming, Streaming) else Streaming()
        urls = expand_urls(split.shards)
        self._workers, threads = delivery.engine()
        _check_shards(len(urls), world, self._workers)
        if streaming.samples is None and world > 1:
            raise ShardError(
                f"streaming on {world} ranks needs to know how many samples make an epoch, as each rank's "
                "shards hold another number: give Streaming(samples=...)"
            )
        self.sampler = Sampler()
        self.substituted = 0
        self.split, self.delivery, self._rank = split, delivery, rank
        self._is_sized = streaming.samples is not None
        total = delivery.global_batch_size or delivery.batch_size * world
        # Without a length the plan says no more than how large a batch is.
        samples = streaming.samples or max(total, world)
        self._plan = BatchPlan(samples, total, world, delivery.drop_last)
        self._stream = Stream(
            urls, rank, world, delivery.seed, wish, streaming.buffer, is_endless=self._is_sized
        )
        nothing: Any = None
        reader = Reader.of(nothing, split, None, seed=delivery.seed, on_error=delivery.on_error, keys=keys)
        reader.pixels = delivery.pixels
        self._streams = _StreamReader(reader)
        self._engine = engine_of(self._streams, replace(delivery, workers=0, threads=threads))
        self._running: Any = None
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

    def close(self) -> None:
        """End processes, threads and the iterator. Idempotent; iterating again starts new ones."""
        running, self._running = self._running, None
        if running is not None:
            running._shutdown_workers()
        super().close()

    def _answers(self) -> Iterator[Answer]:
        self._is_done = False
        first, drop_last = self._batches, self.delivery.drop_last
        if self._is_sized:
            bounds = [self._plan.rank_bounds(k, self._rank) for k in range(first, len(self._plan))]
            sizes = tuple(stop - start for start, stop in bounds)
        else:
            start, stop = self._plan.rank_bounds(0, self._rank)
            sizes = (stop - start,)
        work = _Work(self._stream, self._streams, self._epoch, first, sizes, self._is_sized, drop_last)
        if self._workers:
            yield from self._from_workers(work)
        else:
            size = image_bytes(self._streams.shape(work.largest()), self._streams.dtype)
            try:
                yield from self._engine.answers(work.requests(), size)
            except ShardError as error:
                yield Answer(None, [], None, error)
        self._is_done = True

    def _from_workers(self, work: _Work) -> Iterator[Answer]:
        if self._running is not None:
            self._running._shutdown_workers()
        # Processes of their own for each epoch: an epoch of a stream is long, and nothing is worth keeping.
        self._running = iter(
            DataLoader(
                work,
                batch_size=None,
                num_workers=self._workers,
                prefetch_factor=self.delivery.prefetch,
                collate_fn=as_it_is,
                multiprocessing_context=HeardFork(),
                generator=torch.Generator(),
                worker_init_fn=begin_worker,
            )
        )
        yield from self._running
        self._running = None

    def _too_many(self, answer: Answer, bad: int) -> DecodeError | None:
        if self._is_sized:
            return super()._too_many(answer, bad)
        return self._judged(answer, bad, (self._batches + 1) * self._plan.global_batch)


@dataclass(frozen=True)
class _StreamReader:
    """Answers requests that bring their samples with them."""

    reader: Reader

    @property
    def dtype(self) -> torch.dtype:
        return self.reader.dtype

    def shape(self, request: Request) -> tuple[int, ...]:
        return self.reader.shape(request)

    def answer(self, request: Streamed, out: Tensor | None = None, threads: int = 1) -> Answer:
        reader = replace(self.reader, shards=request.held, among=request.ids)
        plain = Request(request.epoch, request.ids, request.turns)
        return reader.answer(plain, out, threads)._replace(notes=request.notes)


@dataclass(frozen=True)
class _Work(IterableDataset[Answer]):
    """One epoch of one rank: what each of its worker processes does a part of."""

    stream: Stream
    reader: _StreamReader
    epoch: int
    first: int
    sizes: tuple[int, ...]
    is_sized: bool
    drop_last: bool

    def largest(self) -> Request:
        return Request(self.epoch, np.zeros(max(self.sizes, default=0), np.int64))

    def requests(self) -> Iterator[Any]:
        worker = get_worker_info()
        # The DataLoader takes a batch of each worker in turn.
        mine = self.sizes[worker.id :: worker.num_workers] if worker is not None else self.sizes
        sizes = mine if self.is_sized else itertools.repeat(self.sizes[0])
        return self.stream.requests(self.epoch, self.first, sizes, self.drop_last)

    def __iter__(self) -> Iterator[Answer]:
        try:
            for request in self.requests():
                yield self.reader.answer(request)
        except ShardError as error:
            yield Answer(None, [], None, error)


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
