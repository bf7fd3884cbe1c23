"""The loader: batches of one split for one data-parallel rank, in order, from any batch on."""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import nn

from ..errors import DecodeError, allowed_bad, explains_arguments, warn
from ..sampling.geometry import View
from ..sampling.rng import LATER_PASS
from ..sampling.sampler import Request, shown
from ..shards.source import Source
from ..transforms.pixels import PixelFormat
from ..transforms.results import TransformError, shortened
from .arrivals import IGNORED, Arrivals, GatheredImages, masked
from .augmenting import augment_on_arrival, mixes_of, moving, pixels_of
from .batch import (
    TARGET_BATCHES,
    AnyBatch,
    ExtraBatch,
    FetchResult,
    kept_images,
    kept_rows,
    on_device,
    without_rows,
)
from .buffers import PrefetchRunner, Runner, ToRequest
from .checks import (
    check_device,
    check_mixed_labels,
    check_on_error,
    check_split,
    check_transform_result,
    checked_augment,
    open_split,
)
from .conditions import with_conditions
from .config import DecodeOn, LoaderConfig
from .feeds import Feed, feed_of
from .members import unmoved_member
from .naflex import with_sequences
from .ragged import MostImages, ragged
from .ranks import DataRank, Mesh, Positions, data_rank, process_rank
from .split import Split
from .state import VERSION, State, check_data, checked_state, data_of

# A data set in which every tenth image is broken must not flood the terminal.
_MOST_WARNINGS = 20  # of all ranks together
# Batches delivered and not yet claimed; Lightning fetches at most one ahead.
_MOST_UNCLAIMED = 64
# Delivered batches, of which none was claimed, after which a loader warns that they are not augmented.
_MOST_PLAIN = 4


OF_TORCH = {
    "num_workers": "did you mean 'workers'?",
    "pin_memory": "leave it out: device='cuda' brings the batches there",
    "persistent_workers": "leave it out: workers stay until close()",
}
"""Arguments of torch's DataLoader, and what to do."""


@explains_arguments(
    {part.name: f"give it to the split: Split({part.name}=...)" for part in fields(Split)}
    | {part.name: f"give config=LoaderConfig({part.name}=...)" for part in fields(LoaderConfig)}
    | OF_TORCH
)
class Loader:
    """Batches of one split for one rank; iterate over it again for the next epoch. It needs no Lightning.

    A batch is ``(image, label)``, see ``Batch``: uint8 ``[B, 3, H, W]``, or what ``augment`` makes of it. A
    batch that is kept is never overwritten. Each ``iter()`` is the next epoch, unless
    ``loader.sampler.set_epoch(e)`` set it; a new iterator, or ``load_state_dict()``, invalidates the previous
    one. ``state_dict()`` is the position: after ``load_state_dict()`` a loader continues there, without
    replaying anything. An iterator that has raised an error raises again, and the state is before its batch.

    Args:
        split: The samples, and how they are cropped.
        batch_size: Samples per rank and batch; by default that of ``config``, 64.
        training: Shuffle, unless ``Split(shuffle=...)`` is set, and distort in ``augment``. False, for
            validation: in order, and only normalised.
        augment: ``tarpeg.Augment()``, or any module that is called with the images of a batch on ``device``;
            a list has one per view. If ``device`` is the CPU, the decoder and the workers run a
            ``tarpeg.Augment``. Its mode is set to ``training``.
        device: Device of the delivered batches; by default the CPU.
        seed: Seed of order, crops, flips and augmentation; by default that of ``config``, 0.
        workers: Worker processes; by default those of ``config``: one per core, at most 8.
        keys: Add the keys of the samples: batches are ``KeyedBatch``.
        rank: Data-parallel rank of this process, with ``world``, the number of ranks. By default each
            process of ``torch.distributed`` is a rank.
        world: Number of data-parallel ranks.
        mesh: In place of ``rank`` and ``world``, a ``DeviceMesh`` of one dimension, or a tuple of a
            ``DeviceMesh`` and the name of its data-parallel dimension, ``(mesh, "dp")``. Processes that
            differ in other dimensions get the same batches.
        decode: "device": decode batches where they arrive, see ``LoaderConfig``; by default that of
            ``config``, which is in the workers.
        pin: False: do not pin the memory of batches where CUDA is in use, see ``LoaderConfig``.
        config: All other settings.
        source: The samples, if they are open already, for several loaders of one split.
        name: Of the split, in messages.

    Without ``rank=`` and ``world=``, shards, order and number of batches are compared over all processes of
    ``torch.distributed``: each of them has to create the loader. With a ``mesh`` that has fewer processes
    than ``torch.distributed``, or is part of one that has, nothing is compared.

    Attributes:
        sampler: Its ``set_epoch(e)`` sets the epoch of the next ``iter()``.
        substituted: Number of undecodable images that were replaced by other samples.
        bytes_read: Bytes of the encoded images of the delivered batches. Of a tiled image the decoder
            touches only what is under the crop.
        fetcher: Reads and decodes samples by number.

    Raises:
        ShardError: For shards that are missing, damaged or without labels, and for processes that do not
            agree on the data.
        ValueError: For arguments out of range, and an ``augment`` that does not suit the split.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.RandomResizedCrop(64), flip=0.5)
        >>> loader = tarpeg.Loader(split, batch_size=8, augment=tarpeg.Augment(), workers=0)
        >>> images, labels = next(iter(loader))
        >>> images.shape, images.dtype, labels.dtype
        (torch.Size([8, 3, 64, 64]), torch.float32, torch.int64)
        >>> loader.close()
    """

    # Lightning looks for it; it takes a loader without it for a shuffling one, or crashes.
    batch_sampler = None
    unclaimed_notice = ""
    """Warning, shown once, if the batches are not augmented: if no request is claimed."""
    uint8_notice = (
        "the images are uint8: give the ShardDataModule augment=tarpeg.Augment(), which normalises, and the "
        "Trainer the ShardDataModule itself; or convert them in the model"
    )
    """Warning, if a Trainer's run ends because the model did not take uint8."""
    distorted_by: nn.Module | None = None
    """Module that distorts the delivered images, for a warning about members that it does not move."""
    unused: Callable[[], int] = staticmethod(lambda: 0)
    """Return how many of the delivered batches their consumer has not used: the state is that before them."""
    on_begin: Callable[[], None] = staticmethod(lambda: None)
    """Called when an epoch begins, before any of its batches is fetched."""
    prepares_for: nn.Module | None = None
    """Module that a ``ShardDataModule`` will call with the delivered images, which are prepared for it."""
    yields_gathered: bool = False
    """Whether ``iter()`` leaves ``decode="device"`` to its caller, which calls ``arrived``."""

    def __init__(
        self,
        split: Split,
        batch_size: int | None = None,
        *,
        training: bool = True,
        augment: nn.Module | Sequence[nn.Module] | None = None,
        device: torch.device | str | None = None,
        seed: int | None = None,
        workers: int | None = None,
        keys: bool = False,
        rank: int | None = None,
        world: int | None = None,
        mesh: Mesh = None,
        decode: DecodeOn | None = None,
        pin: bool | None = None,
        config: LoaderConfig | None = None,
        source: Source | None = None,
        name: str = "",
    ) -> None:
        if not isinstance(split, Split):
            raise ValueError(
                f"split={shown(split)} must be a tarpeg.Split(...), such as "
                "tarpeg.Split(shards, tarpeg.RandomResizedCrop(224)); that of a tarpeg.Mixture is "
                "tarpeg.MixtureLoader"
            )
        if config is not None and not isinstance(config, LoaderConfig):
            raise ValueError(f"config={shown(config)} must be a tarpeg.LoaderConfig(...)")
        given = {"batch_size": batch_size, "seed": seed, "workers": workers, "decode": decode, "pin": pin}
        self.config = _changed(config or LoaderConfig(), given, training=training)
        self.ranks = data_rank(rank, world, mesh)
        check_device(device)
        if not isinstance(name, str):
            raise ValueError(f"name={name!r} must be a text, the name of the split in messages")
        self.split, self.training, self.device = split, training, device
        self.name = name or shown(split.shards)
        self.augment = checked_augment(augment)
        self._keys, self._source = keys, source
        self._feed, self.fetcher = self._made()
        self._pixels = PixelFormat()
        self._make_runner()
        self._arrivals = Arrivals()
        # Results of an epoch that go on with the next one, which workers fetch while this one ends; and the
        # number of the next epoch, and the process.
        self._flow: Iterator[FetchResult] | None = None
        self._flow_is_for = (0, 0)
        self.sampler = self._feed.epochs
        self.substituted, self.bytes_read = 0, 0
        # Of validation: a warning has the number of images that were substituted.
        self._sums_up = self.config.on_error != "raise" and not (training or split.streaming)
        self._epoch = 0
        self._delivered = 0
        self._is_exhausted = False  # the iterator has raised StopIteration
        self._iterations = 0
        self._at_work = -1  # of the iterations, that which has begun last
        self._iterator_of: weakref.ref[_Batches] | None = None
        self._has_warned_of_non_jpeg = False
        self._has_warned_of_decoded = False
        self._bad_before = 0  # substituted images of earlier epochs
        self._checks_members = bool(split.extensions) and self.ranks.is_first
        self.distorted_by = self.augment if training else None
        self._unclaimed: deque[Request] = deque(maxlen=0)
        self._positions: Positions | None = None
        if self.ranks.origin != "given" and self.ranks.is_everywhere:
            self.compare_over_ranks()

    def _made(self) -> tuple[Feed, Any]:
        """Return the feed and the fetcher of the loader. Settings are set, and nothing else."""
        return feed_and_fetcher(
            self.split,
            self.config,
            self.ranks,
            source=self._source,
            name=self.name,
            augment=self.augment,
            training=self.training,
            keys=self._keys,
        )

    def __len__(self) -> int:
        """Batches per epoch, equal on every rank and independent of resuming; TypeError if unknown."""
        length = self._feed.length
        if length is None:
            raise TypeError("a stream has no length unless Streaming(samples=...) sets the samples per epoch")
        return length

    def __repr__(self) -> str:
        """Return the split, its batches, and what makes them."""
        length = self._feed.length
        batches = "of unknown length" if length is None else f"{length} batches per epoch"
        if self.shapes:
            batches += f" of {len(self.shapes)} shapes"
        workers, threads = self.config.workers_and_threads
        runner = f"workers={workers}" if workers else f"workers=0, threads={threads}"
        return f"{type(self).__name__}({shown(self.split.shards)}, {batches}, {runner})"

    def __iter__(self) -> Iterator[Any]:  # of one kind, which the settings decide: it may be unpacked
        """Return an iterator over the next epoch, augmented by ``augment`` and on ``device``."""
        if self.augment is None and self.device is None:
            batches = self._batches(None)
            return self._held(self._decoded(batches) if self._decodes_on_arrival else batches)
        return self.deliver(self.augment, self.device)

    def _held(self, batches: Generator[AnyBatch, None, None]) -> _Batches:
        iterator = _Batches(batches)
        self._iterator_of = weakref.ref(iterator)
        return iterator

    @property
    def is_at_work(self) -> bool:
        """Whether somebody holds an iterator of an epoch that has begun and not ended."""
        goes_on = self._at_work == self._iterations and not self._is_exhausted
        return goes_on and self._iterator_of is not None and self._iterator_of() is not None

    def __reduce__(self) -> NoReturn:
        """Refuse copy, deepcopy and pickle: a copy would share the workers, or not have them."""
        raise TypeError(
            "a loader of tarpeg cannot be copied or pickled: make it where it is needed, from the same "
            "arguments; other.load_state_dict(loader.state_dict()) goes on from its position"
        )

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse an index, which a DataLoader would use."""
        raise TypeError(
            f"loader[{index!r}]: a loader of tarpeg makes whole batches, in order. Iterate over it; "
            "for a tool that takes a DataLoader: DataLoader(tarpeg.Dataset(loader), batch_size=None)"
        )

    @property
    def pixels(self) -> PixelFormat:
        """Format of the images of ``iter()`` without ``augment``: uint8 by default."""
        return self._pixels

    @pixels.setter
    def pixels(self, pixels: PixelFormat) -> None:
        self._pixels = pixels
        self._fetch_as(pixels)

    def deliver(
        self,
        augment: nn.Module | None,
        device: torch.device | str | None = None,
        *,
        evaluates: bool = False,
    ) -> Iterator[AnyBatch]:
        """Return an iterator over the next epoch on a device, augmented there in place of the loader's own.

        On the CPU the decoder and the workers do as much of it as they can.

        Args:
            augment: Module; None for the images as they were decoded.
            device: Device of the batches.
            evaluates: Whether ``augment`` will run in evaluation mode too, on batches of other loaders.
        """
        return self._held(self._augmented(augment, device, evaluates=evaluates))

    def _augmented(
        self, augment: nn.Module | None, device: torch.device | str | None, *, evaluates: bool
    ) -> Generator[AnyBatch, None, None]:
        """Yield what ``deliver`` returns."""
        pixels = self._pixels
        on_cpu = device is None or torch.device(device).type == "cpu"
        is_by_worker = on_cpu and not self.config.decodes_on_device
        if augment is not None and is_by_worker and self.split.patches is None:
            workers, _ = self.config.workers_and_threads
            workers = workers if self.split.image_pattern is None else 0  # flat images: by the decoder alone
            pixels = pixels_of(augment, self.training, workers, len(self.split.view_crops()))
        pixels = moving(pixels, augment, self.split, training=self.training)
        options: dict[str, Any] = {"views": self.split.view_groups, "repeats": self.split.repeats}
        options |= {"is_augmented": pixels.dtype != torch.uint8, "evaluates": evaluates}
        for batch in self._batches(pixels):
            request = self.claim()
            batch = self.arrived(on_device(batch, device), augment)
            if augment is not None:
                augment.train(self.training)
                batch = augment_on_arrival(augment, batch, self.config.seed, request, **options)
            yield batch
            del batch

    def arrived(self, batch: AnyBatch, augment: nn.Module | None = None) -> AnyBatch:
        """Decode a batch of ``decode="device"`` on the device where it is; others are returned as they are.

        Nothing waits for the device in training on integer labels: a damaged image is zeros, its label -100,
        and the next batch raises or warns. With other labels or targets, with ``max_bad=0`` and outside of
        training this waits: a batch with damage is fetched again, and decoded by this process.

        Args:
            batch: The batch.
            augment: What will be called with its images.
        """
        gathered = batch.image
        if not isinstance(gathered, GatheredImages):
            return batch
        images, status = gathered.decode(self._threads)
        batch = batch._replace(image=images)
        if self._waits_for_status(batch, augment):
            if bool(status.any()):
                return self._fetched_again(gathered)
        else:
            self._arrivals.add(status, gathered.request)
            batch = masked(batch, status)
        if gathered.left_out:
            kept = kept_rows(len(gathered.request.ids), gathered.left_out)
            batch = batch._replace(image=kept_images(images, kept, len(self.split.pipelines) > 1))
        return batch

    def _decoded(self, batches: Iterator[AnyBatch]) -> Generator[AnyBatch, None, None]:
        """Yield batches of ``decode="device"``, decoded."""
        for batch in batches:
            yield self.arrived(batch)
            del batch

    def settle(self) -> None:
        """Wait for the statuses of batches of ``decode="device"``; raise or warn about what is damaged."""
        damaged = self._arrivals.damaged(self.fetcher.shards) if self.config.decodes_on_device else []
        if not damaged:
            return
        if self.config.on_error == "raise":
            advice = "on_error='substitute' leaves it out of the loss"
            result = FetchResult(error=DecodeError(f"{damaged[0]}; {advice}"))
        else:
            result = FetchResult(
                substituted=[f"{text}: it was zeros, with the label {IGNORED}" for text in damaged]
            )
        self._report(result)

    @property
    def ready(self) -> int:
        """Decoded batches that wait to be taken: if it is 0 at the end of a step, the step waits for data.

        Always 0 with ``workers=0`` and ``threads=0`` of the ``LoaderConfig``, which decode no batch ahead.
        """
        return self._runner.ready

    @property
    def shapes(self) -> dict[tuple[int, int], int]:
        """Batches per epoch by (height, width) of their images, of a crop ``AspectBuckets``; otherwise empty.

        Of ``Patches`` by (length, numbers per patch).

        ``torch.compile`` compiles once for each.
        """
        return self._feed.shapes()

    def shapes_text(self) -> str:
        """Describe ``shapes`` in a line, for logs; "" if there are none."""
        shapes = self.shapes
        if not shapes:
            return ""
        kind = "shapes of images" if self.split.patches is None else "lengths of sequences"
        return (
            f"{self.name}: {len(shapes)} {kind} in {sum(shapes.values())} batches per epoch; torch.compile "
            "compiles once for each"
        )

    def requests(self, epoch: int) -> Iterator[Request]:
        """Return the requests of an epoch of this rank: the ids of each batch, without reading any sample.

        Raises ValueError for a stream.
        """
        return self._feed.requests(epoch)

    def views(self, epoch: int) -> Iterator[tuple[View, ...]]:
        """Draw the views of each batch of an epoch of this rank from the index: no image is read.

        Raises ValueError for a stream.
        """
        for request in self.requests(epoch):
            yield tuple(self.fetcher.views_of(request))

    def captions(self, epoch: int) -> Iterator[list[Any]]:
        """Read the captions of each batch of an epoch of this rank, see ``text.read_texts``: but no image.

        Raises ValueError for a stream.
        """
        for request in self.requests(epoch):
            yield self.fetcher.read_texts(request)

    def fetchers(self) -> dict[str, Any]:
        """Return what fetches the samples of each split, by its name in messages."""
        return {self.name: self.fetcher}

    def samples_in(self, epoch: int) -> int:
        """Return the samples of an epoch over all ranks. For indexed samples."""
        return int(self._feed.facts()["samples"])

    def batches_in(self, epoch: int) -> int:
        """Return the batches of an epoch: those of ``len()``, but for a mixture with shares by epoch."""
        return len(self)

    def warn_of_lengths(self, epoch: int) -> None:
        """Warn if an epoch of a Trainer, which counts batches once, has another length: nothing here."""

    def on_rank(self, rank: int, world: int) -> Loader:
        """Return a loader of the same samples and settings for a rank of others."""
        return Loader(
            self.split,
            training=self.training,
            augment=self.augment,
            device=self.device,
            keys=self._keys,
            rank=rank,
            world=world,
            config=self.config,
            source=None if self.split.streaming else self._feed.source,
            name=self.name,
        )

    def claim(self) -> Request | None:
        """Pop the request of the oldest batch that was delivered and not claimed; None if there is none.

        A batch has images and labels only: code that needs its sample ids calls this once per batch, in the
        order of delivery. Its ``views`` have the boxes and flips that were drawn; the affine of policies and
        of ``Augment`` only if the split has targets. None within ``iter()`` with ``augment``, which claims.
        """
        self.unclaimed_notice = ""
        return self._unclaimed.popleft() if self._unclaimed else None

    def state_dict(self) -> State:
        """Return the position of this loader, and what it belongs to: equal on all ranks.

        Integers, and the text ``data``: names and sizes of the shards in their order, or their checksums in
        a cache.
        """
        return {"version": VERSION, **self._position, **self._feed.facts(), "data": self._data}

    @property
    def _position(self) -> State:
        """Epoch, batches that were delivered and used, and length of the epoch, as the state has them."""
        if self.sampler.is_set and self._feed.length is not None:
            # Lightning sets the epoch of a stream without a length after its first batch.
            epoch, first = self.sampler.place
            return {"epoch": epoch, "batches": first, "len": self._feed.length_in_state(first)}
        # Lightning's CombinedLoader("max_size") goes on without it.
        used = max(self._delivered - (0 if self._is_exhausted else self.unused()), 0)
        return {"epoch": self._epoch, "batches": used, "len": self._feed.length_in_state(self._delivered)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the loader of ``state`` was; the number of ranks may differ.

        A state of an earlier version is compared by what it has.

        Raises:
            ResumeError: A ``ValueError``. For a state of other data, unless ``config.allow_other_data``; for
                a state within an epoch of which this loader would make other batches, with another global
                batch size, seed or number of samples; and for what is no state.
        """
        checked = checked_state(state, [*self._feed.facts()])
        if not self.config.allow_other_data:
            check_data(checked, self._data)
        delivered, is_end = self._feed.resume(checked)
        self._go_to(int(checked["epoch"]), delivered, is_end)

    def _go_to(self, epoch: int, delivered: int, is_end: bool) -> None:
        """Begin there with the next ``iter()``; an iterator of before does not go on."""
        self._iterations += 1
        self._epoch, self._delivered = epoch, delivered
        self.sampler.resume(epoch, delivered, is_end)
        if self._positions is not None:
            self._positions.load(epoch, delivered)

    @property
    def has_ended(self) -> bool:
        """Whether all batches of the epoch were delivered."""
        return 0 < self._delivered == self._feed.length_in_state(self._delivered)

    def follow(self, other: Loader) -> None:
        """Begin with the epoch that the next ``iter()`` of another loader of the split would have."""
        self._epoch, self._delivered = self.sampler.follow(other.sampler)

    def compare_over_ranks(self) -> None:
        """Raise ShardError if the processes of ``torch.distributed`` would not agree on the batches.

        A collective: each process has to call it.
        """
        if process_rank()[1] > 1:
            data = "\n".join([self._feed.source.identity(), *_labels_of_table(self.fetcher)])
            facts = {"batches": self._feed.length, "data": data, **self._feed.facts()}
            positions = self.ranks.compare(self.name, facts)
            if self._feed.length is not None:  # streams without one end at different batches
                self._positions = positions

    def close(self) -> None:
        """Stop processes, threads and the iterator. Idempotent; iterating again starts new ones."""
        self._iterations += 1
        self._flow = None
        self._runner.close()

    @property
    def _iterator(self) -> None:
        """Lightning sets this to None when a run ends for any reason: see _iterator.setter."""
        return None

    @_iterator.setter
    def _iterator(self, value: None) -> None:
        error = sys.exc_info()[1]  # the cause of the run's end
        if self.uint8_notice and error is not None and re.search("unsigned char|Byte", str(error)):
            warn(self.unclaimed_notice or self.uint8_notice)
        self.sampler.leave_trainer()
        self.close()

    @cached_property
    def _data(self) -> str:
        """What the samples are read from, for states."""
        return data_identity(self._feed, self.fetcher)

    def _fetch_as(self, pixels: PixelFormat) -> None:
        """Change the format of the images that are fetched from now on."""
        if pixels == self.fetcher.pixels:
            return
        self.close()  # the workers have the fetcher, and batches in the other format
        self.fetcher = self.fetcher.with_pixels(pixels)
        self._make_runner()

    def _make_runner(self) -> None:
        """Make the runner, of a fetcher that gathers with ``decode="device"``."""
        # This import loads the operators; importing this module must not.
        from .gathering import gathering

        self._fetching = gathering(self.fetcher, self.config)
        self._runner = make_runner(self._fetching, self.config, self._feed.to_request)

    @property
    def _decodes_on_arrival(self) -> bool:
        return self.config.decodes_on_device and not self.yields_gathered

    @property
    def _threads(self) -> int:
        """Threads of this process that decode for it."""
        return max(1, *self.config.workers_and_threads)

    def _waits_for_status(self, batch: Any, augment: nn.Module | None) -> bool:
        """Whether a damaged image cannot be taken out of the loss by its label alone."""
        if not self.training or not self.config.max_bad or isinstance(batch, (*TARGET_BATCHES, ExtraBatch)):
            return True
        return batch.label.is_floating_point() or bool(mixes_of(augment))

    def _fetched_again(self, gathered: GatheredImages) -> AnyBatch:
        """Fetch a batch in this process, with its pixels: as with ``decode="cpu"``, substitutes included."""
        request = gathered.request
        runner = Runner(self.fetcher, self._threads)
        result = next(runner.run(iter([request]), self.fetcher.nbytes(request)))
        result.substituted = [text for text in result.substituted if text not in gathered.known]
        self._report(result)
        batch, _ = self._finished(result)
        return on_device(batch, gathered.data.device)

    def _batches(self, pixels: PixelFormat | None) -> Generator[AnyBatch, None, None]:
        """Yield the next epoch, with images in this format; None: that of ``pixels``."""
        self.ranks.check_processes()
        self.on_begin()
        self._fetch_as(self._pixels if pixels is None else pixels)
        # Lightning makes an iterator before it sets the epoch: a generator reads it at the first next().
        self._iterations += 1
        iteration = self._at_work = self._iterations
        is_set = self.sampler.is_set
        self._epoch, self._delivered = self.sampler.begin(self._is_exhausted)
        # One may be ahead of the batch that was delivered last, and is not claimed yet.
        is_further = self._is_exhausted and self._epoch >= LATER_PASS
        self._is_exhausted = False
        positions, first = self._positions, self._delivered
        if not is_further:
            self._unclaimed = deque(maxlen=_MOST_UNCLAIMED)
        self._bad_before, is_on_device = self.substituted, self.config.decodes_on_device
        epoch, count, owner = self._epoch, self._feed.length, os.getpid()
        # Not kept while it runs: what is abandoned or has raised does not go on.
        flow, self._flow = self._flow, None
        if self._delivered or self._flow_is_for != (epoch, owner):
            flow = None
        for k in itertools.count(first):
            if is_on_device:
                self.settle()  # of the batch before
            if positions is not None and count is not None and self.training:
                positions.check(epoch, k - first, count - first, is_set=is_set)
            if k == count:
                self._is_exhausted = True
                return
            if flow is None or owner != os.getpid():  # the workers of a parent are not those of its fork
                owner = os.getpid()
                flow = self._feed.results(self._fetching, self._runner, epoch, k)
            result = next(flow, None)
            if result is None:  # the end of a stream
                self._is_exhausted = True
                return
            if k + 1 == count and self._feed.continues(epoch + 1):
                self._flow, self._flow_is_for = flow, (epoch + 1, owner)
            if result.error or result.substituted or result.notes or result.non_jpeg or result.gathered:
                self._report(result)
            batch, request = self._finished(result)
            self._delivered += 1
            self.bytes_read += result.nbytes
            if self._sums_up and self.substituted > self._bad_before and self.has_ended:
                self._sum_up(self.substituted - self._bad_before)
            if self._checks_members:
                self._checks_members = False
                self._warn_of_unmoved(batch, request)
            self._unclaimed.append(request)
            if self.unclaimed_notice and len(self._unclaimed) == _MOST_PLAIN:
                notice, self.unclaimed_notice = self.unclaimed_notice, ""
                warn(notice)
            del result  # memory that the consumer releases while it waits for the next batch is free at once
            yield batch
            del batch
            if self.sampler.is_set and self._iterations == iteration:
                self.sampler.goes_on(epoch)
            if positions is not None and k == first:
                positions.go_on(epoch, first)
            if self._iterations != iteration:
                raise RuntimeError(
                    "this iterator was retired by a newer one of the same loader, by load_state_dict() or by "
                    "close(): begin a new loop; loops that run at the same time need a loader each"
                )

    def _finished(self, result: FetchResult) -> tuple[AnyBatch, Request]:
        """Return the batch of a result as it is delivered, and its request."""
        batch, request, split = result.batch, result.request, self.split
        assert batch is not None
        assert request is not None
        is_flat = split.image_pattern is not None
        if result.gathered is not None:
            gathered: Any = GatheredImages(
                self, request, batch.image, result.gathered, result.left_out, result.substituted
            )
            gathered.pins = self.config.pin
            batch, is_flat = batch._replace(image=gathered), True
        if result.left_out:
            batch, request = without_rows(batch, request, result.left_out, len(split.pipelines) > 1, is_flat)
        if split.patches is not None:
            batch = with_sequences(batch, request.views[0])
        elif split.image_pattern is not None:
            batch = ragged(batch, request)
        elif split.conditions:
            batch = with_conditions(batch, request.views[0], split.conditions)
        return batch, request

    def _report(self, result: FetchResult) -> None:
        """Warn of what a result has to report, and raise the error that it is or causes."""
        error = self._error_of(result)
        if error is not None:
            self.close()
            result.error = None  # the error holds the frames of its traceback, which must not hold the error
            try:
                raise error
            finally:
                del error

    def _error_of(self, result: FetchResult) -> Exception | None:
        """Warn of what a result has to report; return the error that it is or causes, or None."""
        error: Exception | None = result.error
        if result.substituted or result.notes or result.non_jpeg is not None:
            self._warn(result)
            error = error or self._excess(result, self.substituted - self._bad_before)
        if result.gathered is not None and result.gathered.note and not self._has_warned_of_decoded:
            self._has_warned_of_decoded = True
            if self.ranks.is_first:
                warn(result.gathered.note)
        return shortened(error) if isinstance(error, TransformError) else error

    def _excess(self, result: FetchResult, bad: int) -> DecodeError | None:
        """Error for more undecodable images than ``max_bad`` allows."""
        share, samples = self.config.max_bad, self._feed.samples_per_rank(self._delivered)
        if not result.substituted or bad <= allowed_bad(share, samples):
            return None
        return DecodeError(
            f"{bad} images of epoch {self._epoch} could not be decoded{self._or_targets}, more than "
            f"max_bad={share} of the "
            f"{samples:.0f} on this rank; the last: {result.substituted[-1]}. "
            "Repair the shards, or raise max_bad."
        )

    @property
    def _or_targets(self) -> str:
        if self.split.texts:
            return ", or have broken captions"
        return "" if self.split.targets is None else ", or have broken targets"

    def _warn_of_unmoved(self, batch: AnyBatch, request: Request) -> None:
        source = None if self.split.streaming else self.fetcher.shards
        text = unmoved_member(self.name, self.split, self.distorted_by, batch, source, request.ids)
        if text:
            warn(text)

    def _sum_up(self, bad: int) -> None:
        """Warn, on each rank, how many images of an epoch were substituted or left out."""
        self._sums_up = False
        where, about = "", ""
        if self.ranks.world > 1:
            where, about = f" on rank {self.ranks.rank}", "about "
        samples = self._feed.samples_per_rank(self._delivered)
        what = "the samples in their place" if self.config.on_error == "substitute" else "the others alone"
        remedy = "leaves such images out" + ", and lists such targets" * (self.split.targets is not None)
        warn(
            f"{self.name}: {bad} of {about}{samples:.0f} images{where} cannot be decoded{self._or_targets}: "
            f"metrics count {what}. tarpeg.build_cache {remedy}."
        )

    def _warn(self, result: FetchResult) -> None:
        """Warn about the images of a batch: each rank of broken ones, which no other rank has read."""
        if self.ranks.is_first:
            if result.non_jpeg is not None and not self._has_warned_of_non_jpeg:
                self._has_warned_of_non_jpeg = True
                warn(
                    f"{result.non_jpeg}: Pillow decodes such images, several times slower than a JPEG "
                    "(further ones are not reported)"
                )
            for text in result.notes:
                warn(text)
        where = f"rank {self.ranks.rank}: " if self.ranks.world > 1 else ""
        is_peer = self._positions is not None and not self._positions.is_first
        most = 0 if is_peer else math.ceil(_MOST_WARNINGS / self.ranks.world)
        for text in result.substituted:
            self.substituted += 1
            if self.substituted <= most:
                last = "; further ones are only counted" * (self.substituted == most)
                warn(f"{where}{text}{last}")


class _Batches:
    """The batches of an epoch. After an error each ``next()`` is an error again, which the end is not.

    A generator alone would seem to be at the end of the epoch, and a loop that catches errors would leave out
    its other batches without a word.
    """

    def __init__(self, batches: Generator[AnyBatch, None, None]) -> None:
        """Take a generator; nothing runs before the first ``next()``."""
        self._batches = batches
        self._failure = ""

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> AnyBatch:
        if self._failure:
            raise RuntimeError(
                f"this iterator ended with an error, not with its epoch: {self._failure} To go on at a batch "
                "that failed, load_state_dict() what state_dict() of the loader returns, in it or in "
                "one with on_error='substitute'; another iter() alone is the next epoch"
            )
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            # Its text alone: the error holds the frames of its traceback, and their batches.
            self._failure = f"{type(error).__name__}: {str(error).rstrip('.')}."
            if isinstance(error, TransformError):
                raise shortened(error) from error.__cause__
            raise

    def close(self) -> None:
        """End it, and release what it holds."""
        self._batches.close()


def feed_and_fetcher(
    split: Split,
    config: LoaderConfig,
    ranks: DataRank,
    *,
    source: Source | None = None,
    name: str,
    augment: nn.Module | None,
    training: bool,
    keys: bool = False,
) -> tuple[Feed, Any]:
    """Open a split and check it; return its feed and its fetcher.

    Args:
        split: The samples.
        config: Settings of the loader.
        ranks: The rank that gets the batches.
        source: The samples, if they are open already.
        name: Of the split, in messages.
        augment: Module behind the loader.
        training: As of ``Loader``.
        keys: As of ``Loader``.
    """
    # This import loads the operators; importing this module must not.
    from .fetch import Fetcher
    from .gathering import check_gathers, gathering

    check_split(name, split, augment, training=training)
    if config.decodes_on_device:
        check_gathers(name, split)
    if source is None and not split.streaming:
        source = open_split(split, is_first=ranks.is_first)
    feed = feed_of(split, source, config, ranks, name=name, training=training)
    pattern = split.image_pattern
    most = None
    if pattern is not None:
        comes_again = split.weights is not None or split.repeats > 1
        most = MostImages.of(feed.source, pattern, feed.candidates, comes_again)
    fetcher = Fetcher(
        feed.source,
        split,
        config.seed,
        config.on_error,
        keys,
        candidates=feed.candidates,
        max_pixels=config.max_pixels,
        labels=split.label_reader(source),
        training=training,
        most_images=most,
    )
    if config.decodes_on_device:
        gathering(fetcher, config).check(name)
    check_transform_result(name, fetcher, augment)
    if training:
        check_mixed_labels(name, fetcher, augment)
    return feed, fetcher


def data_identity(feed: Feed, fetcher: Any) -> str:
    """Return what samples are read from, for states."""
    return data_of([*_labels_of_table(fetcher), *feed.files()])


def _labels_of_table(fetcher: Any) -> list[str]:
    """Return the identity of labels that are not part of the samples."""
    labels = fetcher.labels
    return [text] if labels is not None and (text := labels.identity()) else []


def _changed(config: LoaderConfig, given: Mapping[str, Any], *, training: bool) -> LoaderConfig:
    """Return the settings with those that are given, unless they are None."""
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if changes:
        config = replace(config, **changes)
    if training:
        check_on_error(config.on_error)
    return config


def make_runner(fetcher: Any, config: LoaderConfig, to_request: ToRequest | None = None) -> Runner:
    """Choose worker processes, threads, or the caller's thread, as configured; start nothing yet.

    Args:
        fetcher: Fetcher of the batches.
        config: Settings.
        to_request: See ``PrefetchRunner``.
    """
    workers, threads = config.workers_and_threads
    # What is gathered takes a small part of its memory, and is copied to pinned memory of torch's.
    pin = config.pin and not config.decodes_on_device
    # A transform in Python needs the global random generators, which belong to the thread of the consumer.
    if workers or (threads and not fetcher.split.runs_python):
        return PrefetchRunner(fetcher, workers, threads, config.prefetch, to_request, pin=pin)
    return Runner(fetcher, max(threads, 1), pin=pin)
