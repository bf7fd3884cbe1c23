"""From the parts of a batch of a mixture to the batch: the decoder is called once for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ShardError, Status
from ..ops.decode import image_sizes
from ..sampling.geometry import View, joined
from ..sampling.rng import Int64
from ..sampling.sampler import Request
from ..transforms.pixels import PixelFormat
from . import targets
from .augmenting import augment_in_worker
from .batch import (
    TARGET_BATCHES,
    Batch,
    Decoded,
    ExtraBatch,
    FetchResult,
    Images,
    Shape,
    TargetBatch,
    empty_images,
)
from .drawing import are_alike, draw_together
from .fetch import OF_THE_RESULT, Fetcher, check_forks
from .mixed_feed import Parts
from .resize_first import resizes_first
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
        self._are_alike = are_alike([each.drawing for each in self.fetchers])

    def with_pixels(self, pixels: PixelFormat) -> MixedFetcher:
        """Return a fetcher of images in another format."""
        return replace(self, pixels=pixels)

    def where(self, id: int) -> str:
        """Describe a sample of which the source is not known."""
        return f"sample {id} of one of the sources of the mixture"

    def first_of(self, parts: Parts) -> str:
        """Describe the first sample of a batch."""
        source, first = parts.parts[0]
        return self.fetchers[source].first_of(first)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the images."""
        return self.fetchers[0].dtype if self.pixels.worker_augment is None else self.pixels.dtype

    def shape(self, parts: Parts) -> Shape:
        """Shape of the images."""
        source, first = parts.parts[0]
        shape = self.fetchers[source].shape(first)
        return (len(parts.ids), *shape[1:])

    def views_of(self, parts: Parts) -> list[View]:
        """Draw the view of a batch from the sizes of its images, which the indexes have: none is read."""
        views = []
        for source, request in parts.parts:
            views += self.fetchers[source].views_of(request)
        return [joined(views)]

    def read_texts(self, parts: Parts) -> list[Any]:
        """Read the captions of samples, see ``Fetcher.read_texts``."""
        found: list[Any] = []
        for source, request in parts.parts:
            found += self.fetchers[source].read_texts(request)
        return found

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
        rows = _rows(parts)
        together, view = self._decoded_together(parts, rows, into, threads)
        results = []
        for number, (source, request) in enumerate(parts.parts):
            known = together[number]
            if known is not None:
                results.append(known)
                continue
            drawn_for = parts.request.rows(_numbers(rows[number]))
            result = self.fetchers[source].fetch(request, into[rows[number]], threads, drawn_for)
            if result.error is not None:
                return FetchResult(error=result.error, notes=result.notes, request=parts.request)
            results.append(result)
        if augment is not None:
            distorted = parts.request if self.pixels.distorts else None
            augment_in_worker(augment, [into], self.seed, distorted, images, [[0]])
        return _joined_results(parts, rows, images, results, view)

    def _decoded_together(
        self, parts: Parts, rows: list[slice], out: Tensor, threads: int
    ) -> tuple[list[FetchResult | None], View | None]:
        """Decode the images of all parts in one call.

        Returns:
            A result for each part, None for a part that needs more than the decoder; and the view of all
            rows.
        """
        nothing: list[FetchResult | None] = [None] * len(parts.parts)
        if self._decoder is None or len(parts.parts) == 1:
            return nothing, None
        process = os.getpid()
        fetchers = [self.fetchers[source] for source, _ in parts.parts]
        requests = [request for _, request in parts.parts]
        pairs = list(zip(fetchers, requests, strict=True))
        try:
            labels = [
                None if fetcher.split.targets else fetcher.read_labels(request.ids)
                for fetcher, request in pairs
            ]
            files = [file for fetcher, request in pairs for file in fetcher.shards.images(request.ids)]
            sizes = image_sizes(files).numpy()
            if not sizes.all():
                return nothing, None
            views = self._views(pairs, rows, sizes, (int(out.shape[-2]), int(out.shape[-1])))
            view = joined(views)
            end_if_forked()  # a source and a crop may be the user's own
            places = None if view.places is None else _places(pairs, rows, view)
            _, status = self._decoder.resize(view.size, files, view.boxes, view.flips, out, threads, places)
            check_forks(process)
            is_broken = status.numpy() != Status.OK
            found = nothing.copy()
            for number, (fetcher, request) in enumerate(pairs):
                if is_broken[rows[number]].any():
                    continue
                if fetcher.split.targets is not None:
                    where = rows[number]
                    drawn = views[number] if len(views) > 1 else view.rows(_numbers(where))
                    drawn_for = parts.request.rows(_numbers(where))
                    decoded = Decoded([out[where]], status[where], nbytes=sum(map(len, files[where])))
                    found[number] = fetcher.finish(request, drawn, decoded, threads, drawn_for)
                    check_forks(process)
                    fetcher.check_unchanged(request)
                    continue
                texts = fetcher.read_texts(request)
                if not any(isinstance(each, ShardError) for each in texts):
                    batch = fetcher.labelled(out[rows[number]], request.ids, labels[number], texts)
                    found[number] = FetchResult(batch=batch, nbytes=sum(map(len, files[rows[number]])))
                    fetcher.check_unchanged(request)
        except OF_THE_RESULT:  # which the fetcher of its source returns, with the sample
            return nothing, None
        return found, view

    def _views(
        self,
        pairs: list[tuple[Fetcher, Request]],
        rows: list[slice],
        sizes: npt.NDArray[np.int32],
        size: tuple[int, int],
    ) -> list[View]:
        """Draw a view of each part, or of all rows at once if the crops are alike: 2% of a batch's time."""
        if self._are_alike:
            return [draw_together([(fetcher.drawing, request) for fetcher, request in pairs], sizes, size)]
        views = []
        for (fetcher, request), where in zip(pairs, rows, strict=True):
            views += fetcher.draw_views(request, sizes[where], [size])
        return views


def _rows(parts: Parts) -> list[slice]:
    """Return the rows of each part."""
    ends = np.cumsum([len(request.ids) for _, request in parts.parts]).tolist()
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _numbers(rows: slice) -> Int64:
    return np.arange(rows.start, rows.stop)


def _places(pairs: list[tuple[Fetcher, Request]], rows: list[slice], view: View) -> npt.NDArray[np.int32]:
    """Return where the boxes of all rows go, each in the colour of its source's crop."""
    tables = []
    for (fetcher, request), where in zip(pairs, rows, strict=True):
        table = fetcher.drawing.places([view.rows(_numbers(where))], [0], request.epoch)
        assert table is not None  # the view has places
        table[:, 0] += where.start
        tables.append(table)
    return np.concatenate(tables)


def _decoder_of(fetchers: list[Fetcher]) -> Fetcher | None:
    """Return a fetcher whose decoder may decode for all sources; None if they differ, or need more."""
    first = fetchers[0]
    for each in fetchers:
        split = each.split
        is_plain = split.is_decoded_only and not split.runs_python and not split.has_parts
        if not is_plain or resizes_first(split.pipelines[0], split.fidelity) is not None:
            return None
        is_alike = each.decoding == first.decoding and split.channels == first.split.channels
        if not is_alike or split.pipelines[0].levels != first.split.pipelines[0].levels:
            return None
    flipping = [each for each in fetchers if each.split.pipelines[0].flip]
    return (flipping or fetchers)[0]


def _joined_results(
    parts: Parts, rows: list[slice], images: Tensor, results: list[FetchResult], view: View | None
) -> FetchResult:
    """Return the result of a batch from those of its parts.

    ``view``: of the parts whose results have no request.
    """
    if view is None or any(result.request is not None for result in results):
        views: list[View] = []
        for result, where in zip(results, rows, strict=True):
            if result.request is not None:
                views += result.request.views
            elif view is not None:
                views.append(view.rows(np.arange(where.start, where.stop)))
        view = joined(views)
    found = FetchResult(
        batch=_joined_batch(images, [result.batch for result in results]),
        request=parts.request._replace(views=(view,)),
    )
    notes: list[str] = []
    left_out: list[int] = []
    for result, where in zip(results, rows, strict=True):
        found.substituted += result.substituted
        found.nbytes += result.nbytes
        notes += result.notes
        left_out += [where.start + row for row in result.left_out]
        found.non_jpeg = found.non_jpeg or result.non_jpeg
    found.notes, found.left_out = notes, left_out
    return found


def _joined_batch(images: Tensor, batches: list[Any]) -> Any:
    """Return the batch of several parts, of which all are of one class."""
    if isinstance(batches[0], TARGET_BATCHES):
        return TargetBatch(images, [targets.joined([batch.targets[0] for batch in batches])])
    label = torch.cat([batch.label for batch in batches])
    if not isinstance(batches[0], ExtraBatch):
        return Batch(images, label)
    keys = [key for batch in batches for key in batch.key]
    return ExtraBatch(images, label, keys, [extra for batch in batches for extra in batch.extra])
