"""Mixtures: batches of several splits, in exact shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ResumeError
from ..sampling.crops import methods_of
from ..sampling.mixing import Batches, Mixing, Stopping, checked_shares
from ..sampling.rng import Int64
from ..sampling.sampler import EpochCounter, Request, Sampler, shown
from ..transforms.pixels import PixelFormat
from .augmenting import augment_on_arrival
from .batch import AnyBatch, Batch, FetchResult, Images, MixedBatch, Shape, on_device
from .buffers import Runner
from .checks import open_split
from .config import LoaderConfig
from .feeds import IndexedFeed
from .loader import Loader, data_identity, feed_and_fetcher
from .ranks import Mesh, data_rank
from .split import Split
from .state import VERSION, State, check_data

Weights = Mapping[str, float] | Mapping[int, Mapping[str, float]]
_ORDERS = 2  # epochs of a source whose order is kept: a batch may have the end of one and the next


@dataclass(frozen=True)
class Mixture:
    """Several splits, mixed in exact shares: for ``MixtureLoader``.

    A source keeps its crop, transform, flips and order, and its own epochs: when its samples are through, its
    next epoch begins, with another order and other crops. Its epochs go on where those of the mixture end, so
    that each sample comes exactly once per epoch of its source.

    Args:
        sources: Splits by name. Their images have one shape and type, or for ``batches="per_source"`` one
            type; their labels one type.
        weights: Share of each source in the rows, at least 0; the sum need not be 1. By epoch of the mixture,
            ``{0: {...}, 10: {...}}``, the shares change there.
        repeat: In place of ``weights``: how many epochs of each source are in one of the mixture; it may be a
            fraction. The epoch is rounded to whole batches.
        stopping: An epoch with ``weights`` ends with the last whole batch before a source is exhausted,
            "first_exhausted", or when all have been, "all_exhausted".
        batches: "stratified": each global batch has each source's share, rounded down or up. "per_source": a
            batch has one source, and the batches have the shares.

    Raises:
        ValueError: For arguments out of range, with the argument and the source.

    Example:
        >>> photos = tarpeg.Split(shards, tarpeg.RandomResizedCrop(64), flip=0.5)
        >>> others = tarpeg.Split(shards, tarpeg.CenterCrop(64))
        >>> mixture = tarpeg.Mixture({"photos": photos, "others": others}, weights={"photos": 3, "others": 1})
        >>> loader = tarpeg.MixtureLoader(mixture, batch_size=8, workers=0)
        >>> images, labels, source = next(iter(loader))
        >>> images.shape, [mixture.names[number] for number in source.unique().tolist()]
        (torch.Size([8, 3, 64, 64]), ['photos', 'others'])
        >>> loader.close()
    """

    sources: Mapping[str, Split]
    weights: Weights | None = None
    repeat: Weights | None = None
    stopping: Stopping = "first_exhausted"
    batches: Batches = "stratified"

    def __post_init__(self) -> None:
        if not isinstance(self.sources, Mapping) or not self.sources:
            raise ValueError(f"sources={shown(self.sources)} of Mixture must be a dict of splits by name")
        for name, split in self.sources.items():
            if not isinstance(name, str) or not isinstance(split, Split):
                raise ValueError(
                    f"sources[{name!r}]={shown(split)} of Mixture must be a text and a tarpeg.Split(...)"
                )
            _check_supported(name, split)
        allowed: dict[str, tuple[str, ...]] = {
            "stopping": ("first_exhausted", "all_exhausted"),
            "batches": ("stratified", "per_source"),
        }
        for argument, values in allowed.items():
            if getattr(self, argument) not in values:
                raise ValueError(
                    f"{argument}={getattr(self, argument)!r} of Mixture must be "
                    f"{' or '.join(map(repr, values))}"
                )
        if (self.weights is None) == (self.repeat is None):
            raise ValueError(
                f"weights={shown(self.weights)} and repeat={shown(self.repeat)} of Mixture: give one of them"
            )
        if self.repeat is not None and self.stopping != "first_exhausted":
            raise ValueError(
                f"stopping={self.stopping!r} of Mixture is for weights=; repeat= says when it ends"
            )
        self.mixing(dict.fromkeys(self.sources, 1), 0)

    @property
    def names(self) -> list[str]:
        """Names of the sources, in the order of ``MixedBatch.source``."""
        return list(self.sources)

    def mixing(self, sizes: Mapping[str, int], global_batch: int) -> Mixing:
        """Return the schedule, from the samples of each source."""
        argument = "repeat" if self.weights is None else "weights"
        given: Any = self.repeat if self.weights is None else self.weights
        if not isinstance(given, Mapping):
            raise ValueError(f"{argument}={shown(given)} of Mixture must be a dict of numbers by source")
        shares = checked_shares(argument, given, sizes)
        return Mixing(list(sizes.values()), shares, global_batch, self.stopping, self.batches, self.names)


def _check_supported(name: str, split: Split) -> None:
    refused = {
        "streaming": bool(split.streaming),
        "targets": split.targets is not None,
        "members": bool(split.members),
        "views": len(split.pipelines) > 1,
        "repeats": split.repeats > 1,
        "crop=AspectBuckets(...)": split.buckets is not None,
        "crop=Patches(...)": split.patches is not None,
        "a crop whose size changes with the epoch": any(hasattr(crop, "at") for crop in split.view_crops()),
        "a crop of several sizes": any(methods_of(crop).has_many_sizes for crop in split.view_crops()),
    }
    for argument, is_given in refused.items():
        if is_given:
            raise ValueError(
                f"sources[{name!r}] of Mixture has {argument}, which a mixture cannot have: its sources are "
                "indexed splits of images and labels, with one view"
            )


@dataclass(frozen=True)
class Parts:
    """One rank's part of a batch.

    Attributes:
        epoch: Of the mixture.
        parts: Number of a source, and what is fetched of it.
        ids: Numbers of the samples over all sources, int64 [B].
        occurrence: How often each came before in the epoch of the mixture, int64 [B].
    """

    epoch: int
    parts: list[tuple[int, Request]]
    ids: Int64
    occurrence: Int64

    @property
    def request(self) -> Request:
        """The request as the consumer sees it, with the numbers over all sources."""
        return Request(self.epoch, self.ids, self.occurrence)


@dataclass
class MixedFetcher:
    """Fetches each part of a batch by the fetcher of its source. Can be pickled.

    Attributes:
        fetchers: A ``Fetcher`` per source.
        split: That of the first source.
        pixels: Format of the images.
    """

    fetchers: list[Any]
    split: Split
    pixels: PixelFormat = field(default_factory=PixelFormat)

    def with_pixels(self, pixels: PixelFormat) -> MixedFetcher:
        """Return a fetcher of images in another format."""
        return MixedFetcher([each.with_pixels(pixels) for each in self.fetchers], self.split, pixels)

    def where(self, id: int) -> str:
        """Describe a sample of which the source is not known."""
        return f"sample {id} of one of the sources of the mixture"

    @property
    def dtype(self) -> torch.dtype:
        """Type of the images."""
        dtype: torch.dtype = self.fetchers[0].dtype
        return dtype

    def shape(self, parts: Parts) -> Shape:
        """Shape of the images."""
        source, first = parts.parts[0]
        shape = self.fetchers[source].shape(first)
        return (len(parts.ids), *shape[1:])

    def fetch(self, parts: Parts, out: Images | Callable[[Shape], Images], threads: int = 1) -> FetchResult:
        """Fetch each part into its rows; the first error is that of the batch."""
        images: Images = out(self.shape(parts)) if callable(out) else out
        labels: list[Tensor] = []
        substituted: list[str] = []
        left_out: list[int] = []
        notes: list[str] = []
        non_jpeg: str | None = None
        row, nbytes = 0, 0
        for source, request in parts.parts:
            end = row + len(request.ids)
            result = self.fetchers[source].fetch(request, images[row:end], threads)
            if result.error is not None:
                return FetchResult(error=result.error, notes=result.notes, request=parts.request)
            labels.append(result.batch.label)
            substituted += result.substituted
            notes += result.notes
            left_out += [row + number for number in result.left_out]
            non_jpeg = non_jpeg or result.non_jpeg
            nbytes += result.nbytes
            row = end
        batch = Batch(images, torch.cat(labels))
        return FetchResult(
            batch=batch,
            substituted=substituted,
            non_jpeg=non_jpeg,
            notes=notes,
            request=parts.request,
            left_out=left_out,
            nbytes=nbytes,
        )


class _Epochs(EpochCounter):
    """Remembers the epoch that has begun: epochs of a mixture have several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.current = 0

    def begin(self) -> tuple[int, int]:
        """Return the epoch that begins now and its first batch, and advance."""
        self.current, first = super().begin()
        return self.current, first


class MixedFeed:
    """Batches of a mixture for one rank: a ``Feed``."""

    candidates: Int64 | None = None
    to_request = None

    def __init__(
        self, mixing: Mixing, orders: list[Sampler], rank: int, world: int, *, training: bool
    ) -> None:
        self.mixing, self._orders, self._rank, self._world = mixing, orders, rank, world
        self._offsets = np.cumsum([0, *(order.samples for order in orders)])
        self.epochs = _Epochs()
        # No closure over the feed: see ``IndexedFeed.results``.
        self.continues: Callable[[int], bool] = (lambda epoch: True) if training else (lambda epoch: False)

    @property
    def length(self) -> int:
        """Batches of the epoch that has begun, equal on every rank."""
        return self.mixing.length(self.epochs.current)

    def length_in_state(self, delivered: int) -> int:
        """Batches of the epoch."""
        return self.length

    def samples_per_rank(self, delivered: int) -> float:
        """Return the samples per epoch and rank."""
        return self.length * self.mixing.global_batch / self._world

    def shapes(self) -> dict[tuple[int, int], int]:
        """Return nothing: no source has buckets."""
        return {}

    def sources_of(self, ids: Int64) -> Int64:
        """Return the source of samples, by their numbers over all sources."""
        return np.searchsorted(self._offsets, ids, side="right") - 1

    def requests(self, epoch: int) -> Iterator[Request]:
        """Return the requests of an epoch, with the numbers over all sources."""
        for parts in self.parts(epoch, 0, lambda _: False):
            yield parts.request

    def parts(self, epoch: int, first: int, continues: Callable[[int], bool]) -> Iterator[Parts]:
        """Yield what this rank fetches, from batch ``first`` of an epoch on."""
        return _parts_of(
            self.mixing, self._orders, self._offsets, (self._rank, self._world), epoch, first, continues
        )

    def results(self, fetcher: Any, runner: Runner, epoch: int, first: int) -> Iterator[FetchResult]:
        """Begin to fetch, at batch ``first`` of an epoch. Ends all results that were begun before."""
        rows = np.zeros(self.mixing.largest(self._rank, self._world), np.int64)
        nbytes = max(each.nbytes(Request(0, rows)) for each in fetcher.fetchers)
        return runner.run(self.parts(epoch, first, self.continues), nbytes)


def _parts_of(
    mixing: Mixing,
    orders: list[Sampler],
    offsets: Int64,
    part: tuple[int, int],
    epoch: int,
    first: int,
    continues: Callable[[int], bool],
) -> Iterator[Parts]:
    drawn: list[dict[int, tuple[Int64, Int64 | None]]] = [{} for _ in orders]
    while True:
        before = mixing.first_positions(epoch) // np.asarray(mixing.sizes)
        for k in range(first, mixing.length(epoch)):
            parts, ids, occurrences = [], [], []
            for source, number, places in mixing.slices(epoch, k, *part):
                known = drawn[source]
                if number not in known:
                    known[number] = orders[source].draw_epoch(number)
                    for old in sorted(known)[:-_ORDERS]:
                        del known[old]
                order, again = known.get(number) or orders[source].draw_epoch(number)
                occurrence = None if again is None else again[places]
                parts.append((source, Request(number, order[places], occurrence)))
                ids.append(offsets[source] + order[places])
                times = np.full(len(places), number - before[source], np.int64)
                occurrences.append(times if occurrence is None else times + occurrence)
            yield Parts(epoch, parts, np.concatenate(ids), np.concatenate(occurrences))
        epoch, first = epoch + 1, 0
        if not continues(epoch):
            return


class MixtureLoader(Loader):
    """Batches of a ``Mixture`` for one rank: ``(image, label, source)``, see ``MixedBatch``.

    All else is as of ``Loader``: epochs, state, workers, memory. The batches are the same for any number of
    ranks. ``augment`` runs where the batch arrives, not in the workers. ``ShardDataModule`` does not take a
    mixture. ``len()`` is that of the epoch that has begun: with shares by epoch, lengths differ.

    Args:
        mixture: The sources and their shares.
        batch_size: Samples per rank and batch; ``config.global_batch_size`` fixes it for any number of ranks.
        training: As of ``Loader``.
        augment: As of ``Loader``.
        device: As of ``Loader``.
        seed: As of ``Loader``.
        workers: As of ``Loader``.
        rank: As of ``Loader``.
        world: As of ``Loader``.
        mesh: As of ``Loader``.
        config: As of ``Loader``. All batches are full, whatever ``drop_last`` is.

    Raises:
        ShardError: As of ``Loader``, and for a source with fewer samples than its share of one batch.
        ValueError: For arguments out of range, and sources whose images or labels do not fit together.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.RandomResizedCrop(64))
        >>> mixture = tarpeg.Mixture({"a": split, "b": split}, repeat={"a": 1, "b": 2})
        >>> loader = tarpeg.MixtureLoader(mixture, batch_size=6, workers=0)
        >>> next(iter(loader)).source.tolist()
        [0, 0, 1, 1, 1, 1]
        >>> loader.close()
    """

    def __init__(
        self,
        mixture: Mixture,
        batch_size: int | None = None,
        *,
        training: bool = True,
        augment: nn.Module | None = None,
        device: torch.device | str | None = None,
        seed: int | None = None,
        workers: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        mesh: Mesh = None,
        config: LoaderConfig | None = None,
    ) -> None:
        if not isinstance(mixture, Mixture):
            raise ValueError(f"mixture={shown(mixture)} must be a tarpeg.Mixture(...)")
        self.mixture = mixture
        super().__init__(
            next(iter(mixture.sources.values())),
            batch_size,
            training=training,
            augment=augment,
            device=device,
            seed=seed,
            workers=workers,
            rank=rank,
            world=world,
            mesh=mesh,
            config=config,
            name="mixture",
        )

    def _made(self) -> tuple[Any, MixedFetcher]:
        """Return the feed and the fetcher: those of the sources, which make no batches of their own."""
        config, world = self.config, self.ranks.world
        total = config.global_batch_size or config.batch_size * world
        if total < world:
            raise ValueError(f"global_batch_size={total} is smaller than world={world}")
        alone = replace(config, global_batch_size=None, batch_size=1)
        self._sources: dict[str, tuple[IndexedFeed, Any]] = {}
        for name, split in self.mixture.sources.items():
            feed, fetcher = feed_and_fetcher(
                split,
                alone,
                data_rank(0, 1, None),
                source=open_split(split, is_first=self.ranks.is_first),
                name=name,
                augment=self.augment,
                training=self.training,
            )
            assert isinstance(feed, IndexedFeed)
            self._sources[name] = feed, fetcher
        orders = [feed.order for feed, _ in self._sources.values()]
        mixing = self.mixture.mixing(
            {name: len(order) for name, order in zip(self.mixture.names, orders, strict=True)}, total
        )
        _ = mixing.stages  # raises
        self._mixed = MixedFeed(mixing, orders, self.ranks.rank, world, training=self.training)
        self._check_alike()
        return self._mixed, MixedFetcher([fetcher for _, fetcher in self._sources.values()], self.split)

    def __repr__(self) -> str:
        """Return the sources and the batches."""
        return f"MixtureLoader({', '.join(self.mixture.names)}, {len(self)} batches per epoch)"

    def deliver(
        self, augment: nn.Module | None, device: torch.device | str | None = None, *, evaluates: bool = False
    ) -> Iterator[AnyBatch]:
        """Yield the next epoch on a device, augmented there by ``augment``: see ``Loader``."""
        for batch in self._batches(self._pixels):
            request = self.claim()
            batch = on_device(batch, device)
            if augment is not None:
                augment.train(self.training)
                is_augmented = self._pixels.dtype != torch.uint8
                batch = augment_on_arrival(
                    augment, batch, self.config.seed, request, is_augmented=is_augmented, evaluates=evaluates
                )
            yield batch
            del batch

    def state_dict(self) -> State:
        """Return the position, and what it belongs to: equal on all ranks."""
        position: State = {"epoch": self._epoch, "batches": self._delivered, "len": self._mixed.length}
        return {"version": VERSION, **position, **self._facts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the loader of ``state`` was; the number of ranks may differ.

        Raises:
            ResumeError: For a state of other sources, shares, batch size or seed, also at the end of an
                epoch: where each source goes on depends on all batches before it; and for what is no state.
        """
        if not isinstance(state, Mapping):
            raise ResumeError(f"the state of the mixture is a {type(state).__name__}, not a dict")
        for name, value in {"version": VERSION, **self._facts}.items():
            if name not in state:
                raise ResumeError(
                    f"the state of the mixture has no field {name!r}, only {sorted(map(str, state))}"
                )
            if name.startswith("data of "):
                if not self.config.allow_other_data:
                    try:
                        check_data({"data": state[name]}, str(value))
                    except ResumeError as error:
                        raise ResumeError(f"source {name[8:]!r} of the mixture: {error}") from error
            elif state[name] != value:
                raise ResumeError(
                    f"cannot resume the mixture: {name} was {state[name]!r} when the checkpoint was made and "
                    f"is {value!r} now, which makes other batches. Restore it"
                )
        for name in ("epoch", "batches"):
            if type(state.get(name)) is not int or state[name] < 0:
                raise ResumeError(
                    f"{name}={shown(state.get(name))} of the mixture's state must be an integer from 0 on"
                )
        epoch, delivered = state["epoch"], state["batches"]
        length = self._mixed.mixing.length(epoch)
        if delivered > length:
            raise ResumeError(f"batches={delivered} of the mixture's state must be in 0..{length}")
        self._epoch, self._delivered, self._mixed.epochs.current = epoch, delivered, epoch
        self.sampler.resume(epoch, delivered, delivered == length)
        if self._positions is not None:
            self._positions.load(epoch, delivered)

    def compare_over_ranks(self) -> None:
        """Raise ShardError if the processes of ``torch.distributed`` would not agree on the batches."""
        self._positions = self.ranks.compare(self.name, self._facts)

    @cached_property
    def _facts(self) -> State:
        """What the batches depend on."""
        mixing = self._mixed.mixing
        facts: State = {"mixture": mixing.fingerprint(), "global_batch": mixing.global_batch}
        facts["seed"] = self.config.seed
        for name, (feed, fetcher) in self._sources.items():
            own = feed.facts()
            facts |= {f"{fact} of {name}": own[fact] for fact in ("samples", "order")}
            facts[f"data of {name}"] = data_identity(feed, fetcher)
        return facts

    def _batches(self, pixels: PixelFormat) -> Iterator[AnyBatch]:
        """Yield the next epoch, with the source of each row."""
        for batch in super()._batches(pixels):
            source = torch.from_numpy(self._mixed.sources_of(self._unclaimed[-1].ids))
            yield MixedBatch(batch.image, batch.label, source)  # type: ignore[union-attr]
            del batch

    def _check_alike(self) -> None:
        """Raise ValueError for sources whose images or labels cannot be in one batch."""
        found = {}
        for name, (_, fetcher) in self._sources.items():
            ids = fetcher.candidates
            request = Request(0, np.zeros(1, np.int64) if ids is None else ids[:1])
            shape: Any = fetcher.shape(request)
            label = fetcher.read_labels(request.ids)
            found[name] = {"images": (fetcher.dtype, tuple(shape[1:]))}
            if self.mixture.batches == "per_source":
                found[name] = {"images": (fetcher.dtype, tuple(shape[1:2]))}
            if label is not None:
                found[name]["labels"] = (label.dtype, tuple(label.shape[1:]))
        first, *others = found
        for name in others:
            for kind, value in found[name].items():
                if found[first].get(kind, value) != value:
                    raise ValueError(
                        f"the {kind} of the sources {first!r} and {name!r} of the mixture cannot be in one "
                        f"batch: they are {found[first][kind]} and {value}. Give both splits the same size "
                        "and type"
                    )
