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

from ..errors import Status
from ..sampling.geometry import View, joined
from ..sampling.rng import Int64
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
from .grouping import groups_of, together
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

    def with_pixels(self, pixels: PixelFormat) -> MixedFetcher:
        """Return a fetcher of images in another format."""
        return replace(self, pixels=pixels)

    def where(self, id: int) -> str:
        """Describe a sample of which the source is not known."""
        return f"sample {id} of one of the sources of the mixture"

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
        parts = self._split(request)
        shape: Any = self._groups[parts[0].group].shape(parts[0].request)
        return shape if len(parts) == 1 else (len(request.ids), *shape[1:])

    def views_of(self, request: Request) -> list[View]:
        """Draw the view of a batch from the sizes of its images, which the indexes have: none is read."""
        views = []
        for part in self._split(request):
            views += self._groups[part.group].views_of(part.request)
        return views if len(self._groups) == 1 else [joined(views)]

    def read_texts(self, request: Request) -> list[Any]:
        """Read the captions of samples, see ``Fetcher.read_texts``."""
        found: list[Any] = []
        for part in self._split(request):
            found += self._groups[part.group].read_texts(part.request)
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
        groups = self._split(request)
        if len(groups) == 1:
            (part,) = groups
            result = self._whole[part.group].fetch(part.request, out, threads, request)
            views = () if result.request is None else result.request.views
            result.request = request._replace(views=views)
            return result
        shape: Any = self.shape(request)
        images: Tensor = out(shape) if callable(out) else out
        augment, into = self.pixels.worker_augment, images
        if augment is not None:
            into = empty_images(shape, self._groups[0].dtype)
        known = self._decoded_together(request, groups, into, threads)
        results = []
        for number, part in enumerate(groups):
            done = known[number]
            if done is not None:
                results.append(done)
                continue
            drawn_for = request.rows(_numbers(part.rows))
            result = self._groups[part.group].fetch(part.request, into[part.rows], threads, drawn_for)
            if result.error is not None:
                return FetchResult(error=result.error, notes=result.notes, request=request)
            results.append(result)
        if augment is not None:
            distorted = request if self.pixels.distorts else None
            augment_in_worker(augment, [into], self.seed, distorted, images, [[0]])
        return _joined_results(request, [part.rows for part in groups], images, results)

    def _split(self, request: Request) -> list[_Part]:
        """Return what is fetched of each group."""
        origin = request.origin
        assert origin is not None
        groups = self._group_of[origin.sources]
        first = int(groups[0])
        if first == groups[-1]:  # sources, and with them groups, come in their order
            return [_Part(first, slice(0, len(groups)), self._own(request, first))]
        found = []
        for rows in runs_of(groups):
            group = int(groups[rows.start])
            found.append(_Part(group, rows, self._own(request.rows(_numbers(rows)), group)))
        return found

    def _own(self, request: Request, group: int) -> Request:
        """Return a request for samples of one group with its own numbers."""
        origin, first = request.origin, self._first_of[group]
        if not first:
            return request
        assert origin is not None
        origin = origin._replace(sources=origin.sources - first)
        return request._replace(ids=request.ids - self._offsets[group], origin=origin)

    def _decoded_together(
        self, request: Request, groups: list[_Part], out: Tensor, threads: int
    ) -> list[FetchResult | None]:
        """Read, draw and decode the images of all groups by one call each.

        Returns:
            A result for each group; None for one that has images which the decoder does not make.
        """
        found: list[FetchResult | None] = [None] * len(groups)
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
            crops = [self._groups[part.group].crops_in(out[part.rows], size) for part in groups]
            places = common.drawing.places([view], [0], request)
            _, status = common.resize(size, encoded.files, view.boxes, view.flips, crops, threads, places)
            check_forks(process)
            is_broken = status.numpy() != Status.OK
            for number, part in enumerate(groups):
                rows, where = _numbers(part.rows), part.rows
                if is_broken[where].any():
                    continue
                own = Encoded(part.request, encoded.files[where], encoded.sizes[where])
                decoded = Decoded([crops[number]], status[where], nbytes=sum(map(len, own.files)))
                found[number] = self._groups[part.group].finish(
                    own,
                    view.rows(rows),
                    decoded,
                    None if labels is None else labels[where],
                    out[where],
                    threads,
                    request.rows(rows),
                )
                check_forks(process)
            common.check_unchanged(request)
        except OF_THE_RESULT:  # which the fetcher of its source returns, with the sample
            return [None] * len(groups)
        return found


class _Part(NamedTuple):
    """The rows of a batch that one group of sources makes.

    Attributes:
        group: Number of the group.
        rows: In the batch.
        request: With the numbers over all sources of the group.
    """

    group: int
    rows: slice
    request: Request


def _numbers(rows: slice) -> Int64:
    return np.arange(rows.start, rows.stop)


def _common_of(fetchers: list[Fetcher], groups: list[Fetcher]) -> Fetcher | None:
    """Return a fetcher that reads, draws and decodes for all sources; None if their decoding differs."""
    first = groups[0]
    for each in groups:
        pipeline, split = each.split.pipelines[0], each.split
        if isinstance(pipeline.crop, Uncropped) or resizes_first(pipeline, split.fidelity) is not None:
            return None
        is_alike = each.decoding == first.decoding and split.channels == first.split.channels
        if not is_alike or each._crop_format != first._crop_format or pipeline.least is not None:
            return None
    return together(fetchers).with_pixels(first.pixels)


def _joined_results(
    request: Request, rows: list[slice], images: Tensor, results: list[FetchResult]
) -> FetchResult:
    """Return the result of a batch from those of its parts."""
    views = [view for result in results if result.request is not None for view in result.request.views]
    view = joined(views)
    found = FetchResult(
        batch=_joined_batch(images, [result.batch for result in results]),
        request=request._replace(views=(view,)),
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
        return TargetBatch(images, [moved.joined([batch.targets[0] for batch in batches])])
    label = torch.cat([batch.label for batch in batches])
    if not isinstance(batches[0], ExtraBatch):
        return Batch(images, label)
    keys = [key for batch in batches for key in batch.key]
    return ExtraBatch(images, label, keys, [extra for batch in batches for extra in batch.extra])
