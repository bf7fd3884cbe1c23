"""Feed of indexed samples: any batch of any epoch, in O(1)."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import ResumeError, warn
from ..machine import read_machine
from ..remedies import Message, Part, Setting
from ..sampling.sampler import DistributedBatchSampler, Request
from ..shards.source import Source
from .batch import FetchResult
from .buffers import Runner, ToRequest
from .config import LoaderConfig
from .ranks import DataRank
from .split import Split

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
    "order": (" (shuffle=, subset=, weights= and repeats= of the split)",),
}


class IndexedFeed:
    """Batches of indexed shards, or of a folder of images, for one rank.

    Every sample comes exactly once per epoch over all ranks; order and crops depend on seed and epoch alone.
    """

    to_request: ToRequest | None = None

    def __init__(
        self, source: Source, split: Split, config: LoaderConfig, ranks: DataRank, *, training: bool
    ) -> None:
        self.source = source
        self._order = split.sampler(source, config.seed, training)
        self.candidates = self._order.candidates()
        self._seed, self._ranks = config.seed, ranks
        total = config.global_batch_size or config.batch_size * ranks.world
        self._batches = DistributedBatchSampler(
            len(self._order), total, ranks.world, config.drop_last, takes_turns=split.repeats > 1
        )
        self._readahead = readahead_depth(source, config.readahead)
        # A training continues epoch after epoch: the next epoch is prefetched while this one ends.
        self._is_continuous = training
        self._continues: Callable[[int], bool] = lambda epoch: False
        # Results in the order of requests, and the position (epoch, batch, process id) of the next one.
        self._flow: Iterator[FetchResult] | None = None
        self._position = (0, 0, 0)

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

    def facts(self) -> dict[str, int]:
        """Return what the batches depend on, apart from the samples' content; equal on all ranks."""
        samples, global_batch = self._batches.samples, self._batches.global_batch
        facts = {"samples": samples, "global_batch": global_batch, "seed": self._seed}
        return {"order": self._order.fingerprint(), **facts}

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
                raise ResumeError(
                    Message(
                        f"cannot resume at batch {batches} of epoch {epoch}: {name} was {state[name]} when "
                        f"the checkpoint was made and is {value} now, which makes other batches. Restore it",
                        *_REMEDIES.get(name, ()),
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
        """Fetch the batches of an epoch, from batch ``first`` on."""
        count, process = self.length, os.getpid
        for k in range(first, count):
            if self._flow is None or self._position != (epoch, k, process()):
                self._flow = self._started(fetcher, runner, epoch, k)
            is_next_epoch = k + 1 == count and self._continues(epoch + 1)
            place = (epoch + 1, 0) if is_next_epoch else (epoch, k + 1)
            self._position = (*place, process())
            yield self._next(self._flow)

    def stop(self) -> None:
        """Drop the prefetched batches; the loader closes the runner."""
        self._flow = None

    def _started(self, fetcher: Any, runner: Runner, epoch: int, k: int) -> Iterator[FetchResult]:
        """Begin to fetch at batch k of the epoch; prefetched batches of another position are dropped."""
        # No closure here refers to this feed or its loader: without cycles, deleting the loader ends its
        # workers at once.
        is_continuous, rank = self._is_continuous, self._ranks.rank
        largest = np.zeros(self._batches.largest(rank), np.int64)
        nbytes = fetcher.nbytes(Request(epoch, largest))
        # An epoch with larger batches needs new buffers, so it begins a flow of its own.
        self._continues = lambda epoch: is_continuous and fetcher.nbytes(Request(epoch, largest)) <= nbytes
        requests = self._batches.requests(self._order, rank, epoch, k, self._continues)
        if self._readahead:
            source = self.source
            requests = read_ahead(requests, self._readahead, lambda request: source.will_need(request.ids))
        return runner.run(requests, nbytes)

    def _next(self, flow: Iterator[FetchResult]) -> FetchResult:
        try:
            return next(flow)  # without a variable: only the consumer may hold the batch
        except BaseException:
            self._flow = None  # a generator ends at its first exception
            raise


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
    waiting: deque[Request] = deque()
    for request in requests:
        advise(request)
        waiting.append(request)
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting
