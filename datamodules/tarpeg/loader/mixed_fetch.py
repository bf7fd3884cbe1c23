"""From the rows of several sources to a batch of a mixture."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import ShardError
from ..sampling.geometry import View, joined
from ..sampling.rng import Float64, Int64, Numbered
from ..sampling.sampler import Request, runs_of
from ..targets import moved
from ..transforms.pipeline import Uncropped
from ..transforms.pixels import PixelFormat
from .augmenting import augment_in_worker
from .batch import (
    TARGET_BATCHES,
    Batch,
    Decoded,
    Encoded,
    ExtraBatch,
    FetchResult,
    Images,
    Shape,
    TargetBatch,
    by_size,
    empty_images,
)
from .fetch import OF_THE_RESULT, Fetcher, check_forks
from .grouping import end_alike, groups_of, together
from .mixed_drawing import MixedDrawing
from .resize_first import resizes_first
from .split import Split
from .workers import end_if_forked


@dataclass
class MixedFetcher:
    """Fetches the rows of sources that differ in crop and flip alone as those of one split. Can be pickled.

    Rows of others are decoded together if their decoding is alike, and come to one batch afterwards.

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
        groups = groups_of(self.fetchers)
        self._group_of = np.repeat(np.arange(len(groups)), list(map(len, groups)))
        self._first_of = np.cumsum([0, *map(len, groups)])
        offsets = np.cumsum([0, *(len(each.shards) for each in self.fetchers)])
        self._offsets = offsets[self._first_of[:-1]]
        # What fetches a whole batch; and a part of one, of which all rows are augmented here.
        self._whole = [together(group).with_pixels(self.pixels) for group in groups]
        pixels = self.pixels
        if pixels.worker_augment is not None:
            pixels = PixelFormat(moves=pixels.worker_augment if pixels.distorts else None)
        self._groups = [each.with_pixels(pixels) for each in self._whole]
        self._common = _common_of(self.fetchers, self._groups) if len(groups) > 1 else None
        self._end_alike = end_alike(self._groups)

    def with_pixels(self, pixels: PixelFormat) -> MixedFetcher:
        """Return a fetcher of images in another format."""
        return replace(self, pixels=pixels)

    def where(self, id: int) -> str:
        """Describe a sample of which the source is not known."""
        return f"sample {id} of one of the sources of the mixture"

    def ahead(self) -> Callable[[Numbered], Float64] | None:
        """Return what draws the first numbers of the views of all rows; None if groups draw by themselves."""
        fetcher = self._groups[0] if len(self._groups) == 1 else self._common
        drawing = None if fetcher is None else fetcher.drawing
        return drawing.ahead() if isinstance(drawing, MixedDrawing) else None

    @property
    def groups(self) -> list[list[int]]:
        """Numbers of the sources that are fetched together."""
        return [np.flatnonzero(self._group_of == group).tolist() for group in range(len(self._groups))]

    def first_of(self, request: Request) -> str:
        """Describe the first sample of a batch."""
        origin = request.origin
        assert origin is not None
        first = self.fetchers[int(origin.sources[0])]
        return first.where(int(origin.ids[0]))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the images."""
        return self._whole[0].dtype

    def shape(self, request: Request) -> Shape:
        """Shape of the images."""
        assert request.origin is not None
        return self._groups[int(self._group_of[request.origin.sources[0]])].shape(request)

    def views_of(self, request: Request) -> list[View]:
        """Draw the view of a batch from the sizes of its images, which the indexes have: none is read."""
        views = []
        for part in self._split(request):
            views += self._groups[part.group].views_of(self._request_of(part, request))
        return views if len(self._groups) == 1 else [joined(views)]

    def read_texts(self, request: Request) -> list[Any]:
        """Read the captions of samples, see ``Fetcher.read_texts``."""
        found: list[Any] = []
        for part in self._split(request):
            found += self._groups[part.group].read_texts(self._request_of(part, request))
        return found

    def nbytes(self, count: int) -> int:
        """Bytes of the images of a batch of ``count`` samples, at most."""
        request = Request(0, np.zeros(count, np.int64))
        found = []
        for fetcher in self._groups:
            numbers = sum(map(math.prod, by_size(fetcher.shape(request))))
            wider = self.dtype.itemsize - fetcher.dtype.itemsize
            found.append(fetcher.nbytes(request) + max(wider, 0) * numbers)
        return max(found)

    def fetch(
        self, request: Request, out: Images | Callable[[Shape], Images], threads: int = 1
    ) -> FetchResult:
        """Fetch the rows of each group; the first error is that of the batch."""
        if len(self._whole) == 1:
            return self._whole[0].fetch(request, out, threads)
        parts = self._split(request)
        if len(parts) == 1:
            (part,) = parts
            own = self._request_of(part, request)
            result = self._whole[part.group].fetch(own, out, threads, request)
            views = () if result.request is None else result.request.views
            result.request = request._replace(views=views)
            return result
        shape: Any = self.shape(request)
        images: Tensor = out(shape) if callable(out) else out
        augment, into = self.pixels.worker_augment, images
        if augment is not None:
            into = empty_images(shape, self._groups[0].dtype)
        results = self._decoded_together(request, parts, into, threads)
        for part in parts:
            if any(rows.start <= part.rows.start < rows.stop for rows, _ in results):
                continue
            drawn_for, own = request.rows(part.rows), self._request_of(part, request)
            result = self._groups[part.group].fetch(own, into[part.rows], threads, drawn_for)
            if result.error is not None:
                return FetchResult(error=result.error, notes=result.notes, request=request)
            results.append((part.rows, result))
        results.sort(key=lambda each: each[0].start)
        if augment is not None:
            distorted = request if self.pixels.distorts else None
            augment_in_worker(augment, [into], self.seed, distorted, images, [[0]])
        return _joined_results(request, images, results)

    def _split(self, request: Request) -> list[_Part]:
        """Return the rows of each group."""
        assert request.origin is not None
        groups = self._group_of[request.origin.sources]
        return [_Part(int(groups[rows.start]), rows) for rows in runs_of(groups)]

    def _request_of(self, part: _Part, request: Request) -> Request:
        """Return a request for the rows of one group with its own numbers."""
        if part.rows != slice(0, len(request.ids)):
            request = request.rows(part.rows)
        origin, first = request.origin, self._first_of[part.group]
        if not first:
            return request
        assert origin is not None
        origin = origin._replace(sources=origin.sources - first)
        return request._replace(ids=request.ids - self._offsets[part.group], origin=origin)

    def _decoded_together(
        self, request: Request, parts: list[_Part], out: Tensor, threads: int
    ) -> list[tuple[slice, FetchResult]]:
        """Read, draw and decode the images of all groups by one call each.

        Returns:
            Results of rows, without those that have images which the decoder does not make.
        """
        found: list[tuple[slice, FetchResult]] = []
        common = self._common
        if common is None:
            return found
        process = os.getpid()
        try:
            labels = None if common.split.targets is not None else common.read_labels(request.ids)
            encoded = common.read(request)
            if not encoded.sizes.all():
                return found
            size = int(out.shape[-2]), int(out.shape[-1])
            (view,) = common.draw_views(request, encoded.sizes, [size])
            end_if_forked()  # a source and a crop may be the user's own
            crops = [self._groups[part.group].crops_in(out[part.rows], size) for part in parts]
            places = common.drawing.places([view], [0], request)
            _, status = common.resize(size, encoded.files, view.boxes, view.flips, crops, threads, places)
            check_forks(process)
            whole = Decoded([out], status, nbytes=encoded.nbytes)
            is_good = whole.is_good
            if self._end_alike and is_good.all():
                self._run_steps(request, parts, encoded, view, crops, status, out)
                check_forks(process)
                made = common.made_of(request, [view], whole, threads)
                if any(isinstance(value, ShardError) for value in made.values):
                    return []  # another sample goes through the steps of its source
                result = common.assemble(request, [size], labels, made, out, request)
                found = [(slice(0, len(view)), result)]
                check_forks(process)
            else:
                for part, crop in zip(parts, crops, strict=True):
                    where = part.rows
                    if not is_good[where].all():
                        continue
                    fetcher, views = self._groups[part.group], [view.rows(_numbers(where))]
                    own = Encoded(self._request_of(part, request), encoded.files[where], encoded.sizes[where])
                    decoded = Decoded([crop], status[where], nbytes=own.nbytes)
                    fetcher.run_steps(own, views, decoded, out[where])
                    given = None if labels is None else labels[where]
                    drawn_for = request.rows(where)
                    made = fetcher.made_of(own.request, views, decoded, threads)
                    result = fetcher.assemble(own.request, [size], given, made, out[where], drawn_for)
                    found.append((where, result))
                    check_forks(process)
            common.check_unchanged(request)
        except OF_THE_RESULT:  # which the fetcher of its source returns, with the sample
            return []
        return found

    def _run_steps(
        self,
        request: Request,
        parts: list[_Part],
        encoded: Encoded,
        view: View,
        crops: list[Tensor],
        status: Tensor,
        out: Tensor,
    ) -> None:
        """Run the steps of each group on its crops, all of which are decoded; puts its rows of the view."""
        for part, crop in zip(parts, crops, strict=True):
            fetcher, where = self._groups[part.group], part.rows
            if not fetcher.split.is_decoded_only:
                samples = Encoded(self._request_of(part, request), encoded.files[where], encoded.sizes[where])
                own = [view.rows(_numbers(where))]
                fetcher.run_steps(samples, own, Decoded([crop], status[where]), out[where])
                view.put(where, own[0])


class _Part(NamedTuple):
    """The rows of a batch that one group of sources makes.

    Attributes:
        group: Number of the group.
        rows: In the batch.
    """

    group: int
    rows: slice


def _numbers(rows: slice) -> Int64:
    return np.arange(rows.start, rows.stop)


def _common_of(fetchers: list[Fetcher], groups: list[Fetcher]) -> Fetcher | None:
    """Return a fetcher that reads, draws and decodes for all sources; None if their decoding differs."""
    first = groups[0]
    for each in groups:
        pipeline, split = each.split.pipelines[0], each.split
        if isinstance(pipeline.crop, Uncropped) or resizes_first(pipeline, split.fidelity, 0) is not None:
            return None
        is_alike = each.decoding == first.decoding and split.channels == first.split.channels
        if not is_alike or each._crop_format != first._crop_format or pipeline.least is not None:
            return None
    return together(fetchers).with_pixels(first.pixels)


def _joined_results(request: Request, images: Tensor, parts: list[tuple[slice, FetchResult]]) -> FetchResult:
    """Return the result of a batch from those of its rows."""
    results = [result for _, result in parts]
    views = [view for result in results if result.request is not None for view in result.request.views]
    view = joined(views)
    found = FetchResult(
        batch=_joined_batch(images, [result.batch for result in results]),
        request=request._replace(views=(view,)),
    )
    notes: list[str] = []
    left_out: list[int] = []
    for where, result in parts:
        found.substituted += result.substituted
        found.nbytes += result.nbytes
        notes += result.notes
        left_out += [where.start + row for row in result.left_out]
        found.non_jpeg = found.non_jpeg or result.non_jpeg
    found.notes, found.left_out = notes, left_out
    return found


def _joined_batch(images: Tensor, batches: list[Any]) -> Any:
    """Return the batch of several parts, of which all are of one class."""
    if len(batches) == 1:
        return batches[0]._replace(image=images)
    if isinstance(batches[0], TARGET_BATCHES):
        return TargetBatch(images, [moved.joined([batch.targets[0] for batch in batches])])
    label = torch.cat([batch.label for batch in batches])
    if not isinstance(batches[0], ExtraBatch):
        return Batch(images, label)
    keys = [key for batch in batches for key in batch.key]
    return ExtraBatch(images, label, keys, [extra for batch in batches for extra in batch.extra])
