"""From the parts of a batch of a mixture to the batch: the decoder is called once for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ShardError
from ..sampling.geometry import View, joined
from ..sampling.sampler import Request
from ..transforms.pixels import PixelFormat
from . import targets
from .augmenting import augment_in_worker
from .batch import (
    TARGET_BATCHES,
    Batch,
    ExtraBatch,
    FetchResult,
    Images,
    Shape,
    TargetBatch,
    empty_images,
)
from .fetch import OF_THE_RESULT, Fetcher, check_forks
from .mixed_feed import Parts
from .split import Split
from .workers import end_if_forked


@dataclass
class MixedFetcher:
    """Fetches each part of a batch as the fetcher of its source would. Can be pickled.

    Attributes:
        fetchers: A ``Fetcher`` per source.
        split: That of the first source.
        seed: Of the loader.
        pixels: Format of the images.
    """

    fetchers: list[Fetcher]
    split: Split
    seed: int
    pixels: PixelFormat = field(default_factory=PixelFormat)

    def __post_init__(self) -> None:
        pixels = self.pixels
        if pixels.worker_augment is not None:  # it is called here, for the rows of all sources
            pixels = PixelFormat(moves=pixels.worker_augment if pixels.distorts else None)
        self.fetchers = [each.with_pixels(pixels) for each in self.fetchers]
        # Of the sources whose images the decoder alone makes: one of them decodes for all.
        self._decoder = _decoder_of(self.fetchers)

    def with_pixels(self, pixels: PixelFormat) -> MixedFetcher:
        """Return a fetcher of images in another format."""
        return replace(self, pixels=pixels)

    def where(self, id: int) -> str:
        """Describe a sample of which the source is not known."""
        return f"sample {id} of one of the sources of the mixture"

    @property
    def dtype(self) -> torch.dtype:
        """Type of the images."""
        return self.fetchers[0].dtype if self.pixels.worker_augment is None else self.pixels.dtype

    def shape(self, parts: Parts) -> Shape:
        """Shape of the images."""
        source, first = parts.parts[0]
        shape = self.fetchers[source].shape(first)
        return (len(parts.ids), *shape[1:])

    def nbytes(self, count: int) -> int:
        """Bytes of the images of a batch of ``count`` samples, at most."""
        request = Request(0, np.zeros(count, np.int64))
        found = []
        for fetcher in self.fetchers:
            shape: Any = fetcher.shape(request)
            wider = self.dtype.itemsize - fetcher.dtype.itemsize
            found.append(fetcher.nbytes(request) + max(wider, 0) * int(np.prod(shape)))
        return max(found)

    def fetch(self, parts: Parts, out: Images | Callable[[Shape], Images], threads: int = 1) -> FetchResult:
        """Fetch each part into its rows; the first error is that of the batch."""
        shape: Any = self.shape(parts)
        images: Tensor = out(shape) if callable(out) else out
        augment, into = self.pixels.worker_augment, images
        if augment is not None:
            into = empty_images(shape, self.fetchers[0].dtype)
        results = self._decoded_together(parts, into, threads)
        rows = _rows(parts)
        for number, (source, request) in enumerate(parts.parts):
            if results[number] is None:
                where = rows[number]
                drawn_for = parts.request.rows(np.arange(where.start, where.stop))
                result = self.fetchers[source].fetch(request, into[where], threads, drawn_for)
                if result.error is not None:
                    return FetchResult(error=result.error, notes=result.notes, request=parts.request)
                results[number] = result
        if augment is not None:
            distorted = parts.request if self.pixels.distorts else None
            augment_in_worker(augment, [into], self.seed, distorted, images, [[0]])
        return _joined_results(parts, images, [result for result in results if result is not None])

    def _decoded_together(self, parts: Parts, out: Tensor, threads: int) -> list[FetchResult | None]:
        """Decode the images of all parts in one call; None for a part that needs more than the decoder."""
        found: list[FetchResult | None] = [None] * len(parts.parts)
        if self._decoder is None or len(parts.parts) == 1:
            return found
        process = os.getpid()
        size = out.shape[-2:]
        labels, files, views, sizes = [], [], [], []
        try:
            for source, request in parts.parts:
                fetcher = self.fetchers[source]
                labels.append(fetcher.read_labels(request.ids))
                encoded = fetcher.read(request)
                files += encoded.files
                sizes.append(encoded.sizes)
                views += fetcher.draw_views(request, encoded.sizes, [(int(size[0]), int(size[1]))])
            end_if_forked()  # a source and a crop may be the user's own
            view = joined(views)
            if view.places is not None or not all(each.all() for each in sizes):
                return found
            _, status = self._decoder.resize(size, files, view.boxes, view.flips, out, threads)
            check_forks(process)
            for number, (source, request) in enumerate(parts.parts):
                rows = _rows(parts)[number]
                if not status[rows].any():
                    fetcher = self.fetchers[source]
                    texts = fetcher.read_texts(request)
                    if any(isinstance(each, ShardError) for each in texts):
                        continue
                    batch = fetcher.labelled(out[rows], request.ids, labels[number], texts)
                    fetcher.check_unchanged(request)
                    found[number] = FetchResult(batch=batch, request=request._replace(views=(views[number],)))
        except OF_THE_RESULT:  # which the fetcher of its source returns
            return [None] * len(parts.parts)
        return found


def _rows(parts: Parts) -> list[slice]:
    """Return the rows of each part."""
    ends = np.cumsum([len(request.ids) for _, request in parts.parts]).tolist()
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _decoder_of(fetchers: list[Fetcher]) -> Fetcher | None:
    """Return a fetcher whose decoder may decode for all sources; None if they differ, or need more."""
    first = fetchers[0]
    for each in fetchers:
        split = each.split
        is_plain = split.is_decoded_only and not split.runs_python and split.targets is None
        if not is_plain or split.has_parts or split.fidelity != "fast":
            return None
        is_alike = each.decoding == first.decoding and split.channels == first.split.channels
        if not is_alike or split.pipelines[0].levels != first.split.pipelines[0].levels:
            return None
    flipping = [each for each in fetchers if each.split.pipelines[0].flip]
    return (flipping or fetchers)[0]


def _joined_results(parts: Parts, images: Tensor, results: list[FetchResult]) -> FetchResult:
    """Return the result of a batch from those of its parts."""
    substituted: list[str] = []
    notes: list[str] = []
    left_out: list[int] = []
    for result, rows in zip(results, _rows(parts), strict=True):
        substituted += result.substituted
        notes += result.notes
        left_out += [rows.start + row for row in result.left_out]
    return FetchResult(
        batch=_joined_batch(images, [result.batch for result in results]),
        substituted=substituted,
        non_jpeg=next((result.non_jpeg for result in results if result.non_jpeg is not None), None),
        notes=notes,
        request=parts.request._replace(views=_joined_views(results)),
        left_out=left_out,
    )


def _joined_batch(images: Tensor, batches: list[Any]) -> Any:
    """Return the batch of several parts, of which all are of one class."""
    if isinstance(batches[0], TARGET_BATCHES):
        return TargetBatch(images, [targets.joined([batch.targets[0] for batch in batches])])
    label = torch.cat([batch.label for batch in batches])
    if not isinstance(batches[0], ExtraBatch):
        return Batch(images, label)
    keys = [key for batch in batches for key in batch.key]
    return ExtraBatch(images, label, keys, [extra for batch in batches for extra in batch.extra])


def _joined_views(results: list[FetchResult]) -> tuple[View, ...]:
    views = [view for result in results if result.request is not None for view in result.request.views]
    return (joined(views),)
