"""Feeds: one rank's results of fetching, in order, with the position in an epoch. ``feed_of`` chooses one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ..sampling.rng import Int64
from ..shards.source import Source
from .batch import FetchResult
from .buffers import Runner, ToRequest
from .config import LoaderConfig
from .indexed import IndexedFeed
from .ranks import DataRank
from .split import Split
from .streamed import StreamedFeed


class Feed(Protocol):
    """What differs between loaders of indexed samples and of streams."""

    source: Source
    """Samples of the fetcher; none for a stream, whose requests carry them."""
    candidates: Int64 | None
    """Ids of the samples that may replace a broken image; None for all."""
    to_request: ToRequest | None
    """See ``PrefetchRunner``."""

    @property
    def length(self) -> int | None:
        """Batches per epoch, equal on every rank; None if it is unknown."""

    def length_in_state(self, delivered: int) -> int:
        """Batches per epoch for ``state_dict``, after ``delivered`` of them; -1 if it is unknown so far."""

    def samples_per_rank(self, delivered: int) -> float:
        """Return the samples per epoch and rank, as far as known after ``delivered`` batches."""

    def facts(self) -> dict[str, int]:
        """Return what the batches depend on, apart from the samples' content; equal on all ranks."""

    def files(self) -> list[str]:
        """Return what the samples are read from, in order: see ``Source.identities``."""

    def resume(self, state: Mapping[str, Any]) -> tuple[int, bool]:
        """Return the batches of the epoch to leave out, and whether the epoch has ended."""

    def results(self, fetcher: Any, runner: Runner, epoch: int, first: int) -> Iterator[FetchResult]:
        """Fetch the batches of an epoch, from batch ``first`` on."""

    def stop(self) -> None:
        """Drop prefetched batches: the runner will be closed."""


def feed_of(
    split: Split, source: Source | None, config: LoaderConfig, ranks: DataRank, *, training: bool
) -> Feed:
    """Return the feed of a split: of its opened samples, or of a stream if ``source`` is None."""
    if source is None:
        return StreamedFeed(split, config, ranks, training=training)
    return IndexedFeed(source, split, config, ranks, training=training)
