"""Mixtures: batches of several splits, in exact shares."""

from __future__ import annotations

import json
import warnings
import weakref
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ResumeError, ShardError, explains_arguments, warn
from ..sampling.crops import methods_of
from ..sampling.geometry import View
from ..sampling.mixing import Batches, Mixing, Stopping, checked_shares
from ..sampling.sampler import Request, shown
from ..shards.source import Source
from ..targets.moved import structure_of
from ..transforms.pixels import PixelFormat
from .batch import AnyBatch, ExtraBatch, MixedBatch, MixedExtraBatch, MixedTargetBatch, TargetBatch
from .checks import open_split
from .classes import common_classes
from .config import LoaderConfig
from .feeds import IndexedFeed
from .loader import OF_TORCH, Loader, data_identity, feed_and_fetcher
from .members import unmoved_member
from .mixed_feed import MixedFeed
from .ranks import Mesh, data_rank
from .split import Split
from .state import REMEDY, VERSION, State, check_data, check_kind, checked_position, checked_version

Weights = Mapping[str, float] | Mapping[int, Mapping[str, float]]


@dataclass(frozen=True)
class Mixture:
    """Several splits, mixed in exact shares: for ``MixtureLoader``.

    A source keeps its crop, transform, flips and order, and its own epochs: when its samples are through, its
    next epoch begins, with another order and other crops. Its epochs go on where those of the mixture end, so
    that each sample comes exactly once per epoch of its source.

    Args:
        sources: Splits by name. Their images have one shape and type, or for ``batches="per_source"`` one
            type; their labels one type. With a list ``image=`` they may differ in shards, order and labels.
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
    _is_fixed: bool = field(default=False, init=False, repr=False, compare=False)

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
                f"stopping={self.stopping!r} of Mixture is for weights=; repeat= sets the length of an epoch"
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
        return Mixing(
            list(sizes.values()),
            shares,
            global_batch,
            self.stopping,
            self.batches,
            self.names,
            is_fixed=self._is_fixed,
        )

    def in_order(self) -> Mixture:
        """Return this mixture of sources in order, to overfit: each epoch has the same samples."""
        sources = {name: split.in_order() for name, split in self.sources.items()}
        ordered = replace(self, sources=sources)
        object.__setattr__(ordered, "_is_fixed", True)
        return ordered


def _check_supported(name: str, split: Split) -> None:
    refused = {
        "streaming": bool(split.streaming),
        f"image={split.image!r}, a pattern": split.image_pattern is not None,
        "members=SizeAndCrop()": bool(split.conditions),
        "views": len(split.pipelines) > 1 and split.image is None,
        "repeats": split.repeats > 1,
        "crop=AspectBuckets(...)": split.buckets is not None,
        "crop=Patches(...)": split.patches is not None,
        "a crop whose size changes with the epoch": any(hasattr(crop, "at") for crop in split.view_crops()),
        "a crop of parts of several samples": split.has_parts,
        "a crop of several sizes": any(methods_of(crop).has_many_sizes for crop in split.view_crops()),
    }
    for argument, is_given in refused.items():
        if is_given:
            raise ValueError(
                f"sources[{name!r}] of Mixture has {argument}, which a mixture cannot have: its sources are "
                "indexed splits with one view, or a list image=, whose images have one size in all epochs"
            )


@explains_arguments(
    {
        part.name: f"give it to a split of the mixture: Split({part.name}=...)"
        for part in fields(Split)
        if part.name not in ("views", "repeats", "streaming")
    }
    | {part.name: f"give config=LoaderConfig({part.name}=...)" for part in fields(LoaderConfig)}
    | {
        "keys": "give members= to all splits of the mixture: then batches have keys",
        "drop_last": "leave it out: all batches are full",
    }
    | OF_TORCH
)
class MixtureLoader(Loader):
    """Batches of a ``Mixture`` for one rank: ``(image, label, source)``, see ``MixedBatch``.

    All else is as of ``Loader``: epochs, state, workers, memory, ``augment``. The batches are the same for
    any number of ranks. Of splits with ``members=`` they are ``MixedExtraBatch``, with ``targets=``
    ``MixedTargetBatch``. ``len()`` is that of the epoch that was set or has begun. With shares by epoch,
    lengths differ: a ``ShardDataModule`` then corrects the count of a Trainer, which would be that of its
    first epoch.

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
        sources: The samples of sources by name, if they are open already.
        name: Of the mixture, in messages.

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
        sources: Mapping[str, Source] | None = None,
        name: str = "mixture",
    ) -> None:
        if not isinstance(mixture, Mixture):
            raise ValueError(f"mixture={shown(mixture)} must be a tarpeg.Mixture(...)")
        self.mixture, self._given = mixture, dict(sources or {})
        self._warned_of_lengths = False
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
            name=name,
        )

    def _made(self) -> tuple[Any, Any]:
        """Return the feed and the fetcher: those of the sources, which make no batches of their own."""
        config, world = self.config, self.ranks.world
        if config.decodes_on_device:
            raise ValueError("decode='device' is for loaders of one split: give a Mixture decode='cpu'")
        total = config.global_batch_size or config.batch_size * world
        if total < world:
            raise ValueError(
                f"global_batch_size={total} is smaller than world={world}: a sample per rank is the least"
            )
        alone = replace(config, global_batch_size=None, batch_size=1)
        self._sources: dict[str, tuple[IndexedFeed, Any]] = {}
        for name, split in self.mixture.sources.items():
            feed, fetcher = feed_and_fetcher(
                split,
                alone,
                data_rank(0, 1, None),
                source=self._opened(name, split),
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
        self._mixed.epochs.on_set = partial(_epoch_was_set, weakref.ref(self))
        self._check_alike()
        # This import loads the operators; importing this module must not.
        from .mixed_fetch import MixedFetcher

        fetchers = [fetcher for _, fetcher in self._sources.values()]
        fetcher = MixedFetcher(fetchers, self.split, config.seed)
        self._mixed.draw = fetcher.ahead()
        self._check_images(fetcher.groups)
        return self._mixed, fetcher

    def _check_images(self, groups: list[list[int]]) -> None:
        """Raise ValueError for samples with several images that are not fetched together.

        Args:
            groups: Numbers of the sources that are.
        """
        splits = list(self.mixture.sources.items())
        if len(groups) == 1 or all(split.image is None for _, split in splits):
            return
        (one, split), (other, _) = splits[0], splits[groups[1][0]]
        raise ValueError(
            f"the sources {one!r} and {other!r} of the mixture, of which some have image=, the first "
            f"image={split.image!r}, differ in more than shards, order and labels: give all the same image=, "
            "shared_box=, crop=, flip=, transform=, targets= and members="
        )

    def _opened(self, name: str, split: Split) -> Source:
        """Open the samples of a source."""
        source = self._given.get(name)
        if source is None:
            try:
                source = open_split(split, is_first=self.ranks.is_first)
            except ShardError as error:
                raise ShardError(f"source {name!r} of the mixture: {error}") from error
        if not len(source):
            raise ShardError(
                f"source {name!r} of the mixture, {shown(split.shards)}, has no samples: leave it out of the "
                "mixture"
            )
        return source

    def __repr__(self) -> str:
        """Return the sources and the batches."""
        return f"MixtureLoader({', '.join(self.mixture.names)}, {len(self)} batches per epoch)"

    def views(self, epoch: int) -> Iterator[tuple[View, ...]]:
        """Draw the view of each batch of an epoch of this rank from the indexes: no image is read."""
        for request in self._mixed.requests(epoch):
            yield tuple(self.fetcher.views_of(request))

    def captions(self, epoch: int) -> Iterator[list[Any]]:
        """Read the captions of each batch of an epoch of this rank: but no image."""
        for request in self._mixed.requests(epoch):
            yield self.fetcher.read_texts(request)

    def fetchers(self) -> dict[str, Any]:
        """Return what fetches the samples of each source, by its name."""
        return {name: fetcher for name, (_, fetcher) in self._sources.items()}

    def samples_in(self, epoch: int) -> int:
        """Return the rows of an epoch over all ranks."""
        mixing = self._mixed.mixing
        return mixing.length(epoch) * mixing.global_batch

    def batches_in(self, epoch: int) -> int:
        """Return the batches of an epoch; with shares by epoch, epochs have several lengths."""
        return self._mixed.mixing.length(epoch)

    def warn_of_batch_size(self, before: MixtureLoader) -> None:
        """Warn if the loader of an earlier epoch of a training had another size of batches."""
        one, other = before._mixed.mixing.global_batch, self._mixed.mixing.global_batch
        if one != other:
            warn(
                f"the size of batches of {self.name} was {one} in an earlier epoch and is {other} now: the "
                "sources of a mixture do not go on where they were, so some samples come again and others "
                "later. Train with each size in a fit of its own, or without a mixture"
            )

    def warn_of_lengths(self, epoch: int) -> None:
        """Warn once if an epoch of a training has another length than the first, also after a resume."""
        first, length = self.batches_in(0), self.batches_in(epoch)
        if first == length or self._warned_of_lengths or not (self.training and self.ranks.is_first):
            return
        self._warned_of_lengths = True
        warn(
            f"epoch {epoch} of {self.name} has {length} batches, and the first has {first}: a Trainer counts "
            "those of the first alone, so that the last batches of longer epochs are left out, unless a "
            "limit leaves them out anyway, and shorter ones end without validation. Give the Trainer a "
            "ShardDataModule(train=mixture), which counts each epoch"
        )

    def sources_in(self, epoch: int) -> dict[str, tuple[int, float]]:
        """Return the rows of each source in an epoch over all ranks, and how many of its epochs these are."""
        mixing = self._mixed.mixing
        rows = mixing.first_positions(epoch + 1) - mixing.first_positions(epoch)
        parts = zip(self.mixture.names, rows.tolist(), mixing.sizes, strict=True)
        return {name: (count, count / size) for name, count, size in parts}

    def on_rank(self, rank: int, world: int) -> MixtureLoader:
        """Return a loader of the same mixture and settings for a rank of others."""
        return MixtureLoader(
            self.mixture,
            training=self.training,
            augment=self.augment,
            device=self.device,
            rank=rank,
            world=world,
            config=self.config,
            sources={name: feed.source for name, (feed, _) in self._sources.items()},
        )

    def state_dict(self) -> State:
        """Return the position, and what it belongs to: equal on all ranks."""
        return {"version": VERSION, **self._position, **self._facts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the loader of ``state`` was; the number of ranks may differ.

        Raises:
            ResumeError: For a state of other sources, shares, batch size or seed, also at the end of an
                epoch: where each source goes on depends on all batches before it; and for what is no state.
        """
        if not isinstance(state, Mapping):
            raise ResumeError(f"the state of the mixture is a {type(state).__name__}, not a dict. {REMEDY}")
        checked_version(state)
        check_kind(state, is_mixture=True)
        # The checksum of all comes last: a fact of one source names it.
        for name, value in sorted(self._facts.items(), key=lambda fact: fact[0] == "mixture"):
            if name == "sources" and name not in state:  # of an earlier version
                continue
            if name not in state:
                fields = sorted(map(str, state))
                raise ResumeError(f"the state of the mixture has no field {name!r}, only {fields}. {REMEDY}")
            is_known = isinstance(state[name], (Integral, str))  # not an array, which has no one truth
            if name.startswith("data of ") and is_known:
                if not self.config.allow_other_data:
                    try:
                        check_data({"data": state[name]}, str(value))
                    except ResumeError as error:
                        raise ResumeError(f"source {name[8:]!r} of the mixture: {error}") from error
            elif is_known and state[name] != value and name == "mixture":
                raise ResumeError(
                    "cannot resume the mixture: its weights or repeat, stopping or batches, or the order of "
                    "its sources, are not those of the checkpoint, which makes other batches. Restore them"
                )
            elif not is_known or state[name] != value:
                raise ResumeError(
                    f"cannot resume the mixture: {name} was {shown(state[name])} when the checkpoint was "
                    f"made and is {value!r} now, which makes other batches. Restore it"
                )
        epoch, delivered = checked_position(state)
        length = self._mixed.mixing.length(epoch)
        if delivered > length:
            raise ResumeError(f"batches={delivered} of the mixture's state must be in 0..{length}. {REMEDY}")
        self._mixed.epochs.current = epoch
        self._go_to(epoch, delivered, delivered == length)

    def compare_over_ranks(self) -> None:
        """Raise ShardError if the processes of ``torch.distributed`` would not agree on the batches."""
        self._positions = self.ranks.compare(self.name, self._facts)

    @cached_property
    def _facts(self) -> State:
        """What the batches depend on."""
        mixing = self._mixed.mixing
        facts: State = {"sources": json.dumps([*self._sources])}  # in the order of a batch's rows
        facts |= {"mixture": mixing.fingerprint(), "global_batch": mixing.global_batch}
        facts["seed"] = self.config.seed
        for name, (feed, fetcher) in self._sources.items():
            own = feed.facts()
            facts |= {f"{fact} of {name}": own[fact] for fact in ("samples", "order")}
            facts[f"data of {name}"] = data_identity(feed, fetcher)
        return facts

    def _batches(self, pixels: PixelFormat | None) -> Generator[AnyBatch, None, None]:
        """Yield the next epoch, with the source of each row."""
        for batch in super()._batches(pixels):
            origin = self._unclaimed[-1].origin
            assert origin is not None
            yield _mixed(batch, torch.from_numpy(origin.sources.copy()))
            del batch

    def _warn_of_unmoved(self, batch: AnyBatch, request: Request) -> None:
        """Warn about members of a source that seem to be masks or boxes of images that are moved."""
        if not isinstance(batch, ExtraBatch):
            return
        assert request.origin is not None
        sources = request.origin.sources
        for number, (name, (_, fetcher)) in enumerate(self._sources.items()):
            rows = np.flatnonzero(sources == number)
            own = batch._replace(extra=[batch.extra[row] for row in rows.tolist()])
            ids = request.ids[rows] - self._mixed.offset(number)
            text = unmoved_member(name, fetcher.split, self.distorted_by, own, fetcher.shards, ids)
            if text:
                warn(text)

    def _check_alike(self) -> None:
        """Raise ValueError for sources whose images or labels cannot be in one batch.

        Raises ShardError if their labels mean different classes.
        """
        with warnings.catch_warnings():
            if self._given or not self.ranks.is_first:  # a data module has compared them
                warnings.simplefilter("ignore")
            common_classes(self.mixture.sources)
        found: dict[str, dict[str, Any]] = {}
        for name, (_, fetcher) in self._sources.items():
            ids = fetcher.candidates
            request = Request(0, np.zeros(1, np.int64) if ids is None else ids[:1])
            shape: Any = fetcher.shape(request)
            label = fetcher.read_labels(request.ids)
            found[name] = {"images": (fetcher.dtype, tuple(shape[1:]))}
            if self.mixture.batches == "per_source":
                found[name] = {"images": (fetcher.dtype, tuple(shape[1:2]))}
            split = fetcher.split
            found[name] |= {"targets": structure_of(split.targets)}
            forms = {name: text.form for name, text in split.texts.items()}
            found[name] |= {"members": (split.extensions, split.decode is not None, forms)}
            if label is not None:
                found[name]["labels"] = (label.dtype, tuple(label.shape[1:]))
        first, *others = found
        for name in others:
            for kind, value in found[name].items():
                if found[first].get(kind, value) != value:
                    both = [found[first][kind], value]
                    if kind == "targets":  # as they were given, not what is compared
                        both = [self.mixture.sources[each].targets for each in (first, name)]
                    raise ValueError(
                        f"the {kind} of the sources {first!r} and {name!r} of the mixture cannot be in one "
                        f"batch: they are {both[0]} and {both[1]}. Give both splits the same"
                    )


def _mixed(batch: Any, source: Tensor) -> AnyBatch:
    """Return a batch with the source of each row."""
    if isinstance(batch, TargetBatch):
        return MixedTargetBatch(batch.image, batch.targets, source)
    if isinstance(batch, ExtraBatch):
        return MixedExtraBatch(batch.image, batch.label, batch.key, batch.extra, source)
    return MixedBatch(batch.image, batch.label, source)


def _epoch_was_set(reference: weakref.ref[MixtureLoader]) -> None:
    loader = reference()
    if loader is not None and loader.sampler.is_of_trainer:
        loader.warn_of_lengths(loader.sampler.epoch)
