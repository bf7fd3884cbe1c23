"""What is drawn for a request: the views of its images, how large they are, and which samples are in them.

Step 2 of ``fetch``. It reads no image: sizes of images, and objects on which a crop depends, come from the
source.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sampling import rng
from ..sampling.crops import Crop, CropMethods, SmallImageError, crop_at, levels_of, methods_of
from ..sampling.geometry import Int32, View
from ..sampling.padded import mirrored, within
from ..sampling.rng import Int64
from ..sampling.sampler import Request
from ..shards.source import Source, where_of
from ..targets.steps import read_rectangles
from .split import Split

# Streams of random numbers, beside those of loader.substitutes and loader.python_steps: no two uses of a
# sample's numbers are correlated.
_CROP = 0
_PARTNERS = 4  # 1 to 3 are taken; 6 is loader.text's
_OBJECTS = 5

_LEAST = np.array([0, 0, 1, 1], np.int32)  # of a box

Size = tuple[int, int]


class BoxError(ValueError):
    """A crop's boxes or size that are malformed, or boxes outside their images."""


@dataclass
class Drawing:
    """Draws views as functions of seed, epoch and sample. Can be pickled.

    Attributes:
        source: The samples.
        split: Their crops.
        seed: Of the loader.
        candidates: Ids of the samples that may be in the image of another, all if it is None.
    """

    source: Source
    split: Split
    seed: int
    candidates: Int64 | None = None
    # The crops of the latest epoch. Replaced as a whole: several threads draw.
    _latest: tuple[int, list[CropMethods]] = field(default=(-1, []), repr=False, compare=False)

    def crops(self, epoch: int) -> list[CropMethods]:
        """Return the crop of each view."""
        known, crops = self._latest
        if known != epoch:
            crops = [methods_of(crop_at(crop, epoch)) for crop in self.split.view_crops()]
            self._latest = epoch, crops
        return crops

    def largest(self, epoch: int) -> list[Size]:
        """Return the largest size of each view's results."""
        return [pair(each.crop.size) for each in self.crops(epoch)]

    def sizes(self, request: Request) -> list[Size]:
        """Return the size of each view's results, which may depend on the images or on the batch."""
        if request.size is not None:
            return [request.size] * len(self.split.pipelines)
        crops = self.crops(request.epoch)
        if not any(each.has_many_sizes for each in crops):
            return self.largest(request.epoch)
        images = self.source.sizes(request.ids)
        return [self._size(request, number, images, each) for number, each in enumerate(crops)]

    def _size(
        self, request: Request, number: int, images: npt.NDArray[np.int32], methods: CropMethods
    ) -> Size:
        """Return the size of one view's results."""
        if methods.padded_size is not None:
            draws = self.uniforms(request, number, methods.crop)[:, 1:]
            return _checked_size(methods.crop, methods.padded_size(images, draws))
        if methods.size_of is not None:
            return _checked_size(methods.crop, methods.size_of(images))
        return pair(methods.crop.size)

    def views(
        self, request: Request, sizes: npt.NDArray[np.int32], results: list[Size] | None = None
    ) -> list[View]:
        """Draw the boxes and the flips of each view.

        Args:
            request: Epoch and ids of the samples.
            sizes: Sizes of the images, int32 [B, 2]. One of unknown size, (0, 0), has the box (0, 0, 0, 0).
            results: Sizes of the views; by default the largest of the epoch.

        Raises:
            BoxError: For boxes that are not integers [B, 4], or are outside their images.
        """
        results = results or self.largest(request.epoch)
        views = []
        for number, methods in enumerate(self.crops(request.epoch)):
            if methods.at_size is not None:
                methods = methods_of(methods.at_size(results[number]))
            if methods.boxes_among is not None:
                views.append(self._view_among(request, number, methods, sizes, results[number]))
            else:
                uniforms = self.uniforms(request, number, methods.crop)
                views.append(self._view(request.ids, uniforms, number, methods, sizes, results[number]))
        return views

    def view(self, request: Request, number: int | Int64, sizes: npt.NDArray[np.int32], size: Size) -> View:
        """Draw one view, of images of its own.

        Args:
            request: Epoch and ids of the samples, of one per image.
            number: Of the view; or which image of its sample each is, [B], by the crop of the first view.
            sizes: Sizes of the images, as for ``views``.
            size: Of the results.
        """
        place = number if isinstance(number, int) else 0
        methods = self.crops(request.epoch)[place]
        uniforms = self.uniforms(request, number, methods.crop)
        return self._view(request.ids, uniforms, place, methods, sizes, size)

    def places(
        self, views: Sequence[View], order: Sequence[int], request: Request, first: int = 0
    ) -> Int32 | None:
        """Return where the boxes of these views go, see ``decode_sizes``; None if each is a whole image.

        Args:
            views: The views.
            order: Their order in the memory of the images.
            request: The samples that they were drawn for.
            first: Number of the first of the views.
        """
        if all(view.places is None for view in views):
            return None
        crops, tables = self.crops(request.epoch), []
        for place, number in enumerate(order):
            view = views[number]
            levels = self.levels(crops[first + number].crop, request)
            tables.append(self.table(view, place * len(view), levels))
        return np.concatenate(tables) if len(tables) > 1 else tables[0]

    def levels(self, crop: Crop, request: Request) -> Any:
        """Return the levels of the padding of a view: of all rows, [C], or of each, [B, C]."""
        return levels_of(crop, self.split.channels)

    def table(self, view: View, first: int, levels: Any) -> Int32:
        """Return where the boxes of a view go, int32 [B, 12], see ``decode_sizes``.

        Args:
            view: The view.
            first: Number of its first image in the memory of all.
            levels: As of ``levels``.
        """
        table = np.zeros((len(view), 12), np.int32)
        table[:, 0] = np.arange(first, first + len(view))
        table[:, 3:5] = view.size
        table[:, 5:9] = view.all_places
        if not view.boxes[:, 2:].all():
            table[~view.is_known, 5:9] = (0, 0, 1, 1)
        table[:, 9:] = levels
        return table

    def partners(self, request: Request, rows: Int64, ids: Int64, sizes: npt.NDArray[np.int32]) -> View:
        """Draw the views of samples whose objects are pasted into some rows of a request.

        Args:
            request: Its crop is a ``CopyPaste``.
            rows: int64 [D].
            ids: int64 [D], the samples.
            sizes: Of their images, int32 [D, 2].
        """
        crop: Any = self.crops(request.epoch)[0].crop
        uniforms = crop.draws_of_partners(self.uniforms(request, 0, crop)[rows, 1:])
        return self._view(ids, uniforms, 0, methods_of(crop.crop), sizes, pair(crop.size))

    def object_keys(self, request: Request, row: int, count: int) -> rng.Float64:
        """Draw a number for each of the objects that may be pasted into a row."""
        keys: rng.Float64 = rng.uniforms_of(request.of_row(row).numbered, self.seed, count, _OBJECTS)[0]
        return keys

    def samples(self, request: Request) -> Int64:
        """Return the samples of each row, [B, n]: itself, and those that are drawn to be in its image too."""
        count, ids = self.crops(request.epoch)[0].partners, request.ids[:, None]
        uniforms = rng.uniforms_of(request.numbered, self.seed, count, _PARTNERS)
        return np.concatenate([ids, self.candidates_of(uniforms)], axis=1)

    def others(self, request: Request, uniforms: rng.Float64) -> Iterator[Request]:
        """Yield the requests for samples that may take the place of that of a request of one."""
        for other in self.candidates_of(uniforms):
            yield request._replace(ids=other[None])

    def candidates_of(self, uniforms: rng.Float64) -> Int64:
        """Return the candidates with these shares of their numbers."""
        if self.candidates is None:
            return (uniforms * len(self.source)).astype(np.int64)
        return self.candidates[(uniforms * len(self.candidates)).astype(np.int64)]

    def uniforms(self, request: Request, number: int | Int64, crop: Crop, round: int = 0) -> rng.Float64:
        """Draw the numbers of a view: that of the flip, and those of the crop, in one of its rounds."""
        return drawn(request.numbered, self.seed, crop, number, round)

    def _view(
        self,
        ids: Int64,
        uniforms: rng.Float64,
        number: int,
        methods: CropMethods,
        sizes: npt.NDArray[np.int32],
        size: Size,
    ) -> View:
        """Return one view that these numbers draw."""
        boxes = self.known_boxes(methods.crop, sizes, uniforms[:, 1:], ids)
        return view_of(methods, sizes, boxes, uniforms[:, 0] < self.flip_shares(ids, number), size)

    def known_boxes(
        self, crop: Crop, sizes: npt.NDArray[np.int32], draws: rng.Float64, ids: Int64
    ) -> npt.NDArray[np.int32]:
        """Return the boxes of a crop, [B, 4], or [B, 8] with their places; zeros without a known size."""
        known = sizes[:, 0] > 0
        if known.all() and len(ids):  # no copies
            return self._boxes(crop, sizes, draws, ids)
        boxes = np.zeros((len(sizes), 4), np.int32)
        if known.any():
            found = self._boxes(crop, sizes[known], draws[known], ids[known])
            boxes = np.zeros((len(sizes), found.shape[1]), np.int32)
            boxes[known] = found
        return boxes

    def _view_among(
        self,
        request: Request,
        number: int,
        methods: CropMethods,
        sizes: npt.NDArray[np.int32],
        size: Size,
    ) -> View:
        """Draw a view whose boxes depend on the objects of the images."""
        crop, known = methods.crop, np.flatnonzero(sizes[:, 0])
        objects = read_rectangles(self.source, request.ids[known], self.split.targets)

        def draw(rows: Int64, round: int) -> rng.Float64:
            return self.uniforms(request.rows(known[rows]), number, crop, round)[:, 1:]

        boxes = np.zeros((len(sizes), 4), np.int32)
        if len(known):
            assert methods.boxes_among is not None
            found = methods.boxes_among(sizes[known], objects, draw)
            boxes[known] = self._checked(crop, found, sizes[known], request.ids[known])
        flips = self.uniforms(request, number, crop)[:, 0] < self.flip_shares(request.ids, number)
        return View(sizes.copy(), boxes, flips, size, drops_by_centre=methods.drops_by_centre)

    def flip_shares(self, ids: Int64, number: int) -> float | rng.Float64:
        """Return the share of the samples that a view mirrors: one for all, or [B]."""
        return self.split.pipelines[number].flip

    def _boxes(
        self, crop: Crop, sizes: npt.NDArray[np.int32], uniforms: rng.Float64, ids: Int64
    ) -> npt.NDArray[np.int32]:
        try:
            boxes = np.asarray(crop.boxes(sizes, uniforms))
        except SmallImageError as error:
            raise BoxError(f"{where_of(self.source, int(ids[error.row]))}: {error}") from error
        return self._checked(crop, boxes, sizes, ids)

    def _checked(
        self, crop: Crop, boxes: npt.NDArray[Any], sizes: npt.NDArray[np.int32], ids: Int64
    ) -> npt.NDArray[np.int32]:
        """Check boxes here, where shard, key and crop are known: the crop may be the user's own."""
        if not are_boxes(boxes, len(ids)):
            raise BoxError(
                f"{crop!r}: boxes must be integers [{len(ids)}, 4], or [{len(ids)}, 8] with their places in "
                f"the results, got {boxes.dtype} {boxes.shape}"
            )
        if not are_inside(boxes, sizes):
            row = next(row for row in range(len(boxes)) if not are_inside(boxes[[row]], sizes[[row]]))
            height, width = sizes[row].tolist()
            raise BoxError(
                f"{where_of(self.source, int(ids[row]))}: {crop!r} returned the box (top, left, height, "
                f"width) = {tuple(boxes[row].tolist())}, which is outside the image of {height} x {width}"
            )
        return np.ascontiguousarray(boxes, dtype=np.int32)


def drawn(
    samples: rng.Numbered, seed: int, crop: Crop, number: int | Int64 = 0, round: int = 0
) -> rng.Float64:
    """Draw the numbers of a view: that of the flip, and those of the crop, in one of its rounds."""
    count = crop.draws + 1
    return rng.uniforms_of(samples, seed, count, _CROP, number, round * count)


def are_boxes(boxes: npt.NDArray[Any], count: int) -> bool:
    """Whether they are integers [count, 4], or [count, 8] with places."""
    return boxes.shape in ((count, 4), (count, 8)) and boxes.dtype.kind in "iu"


def are_inside(boxes: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> bool:
    """Whether all boxes, [B, 4] or [B, 8], are in their images, and of at least one pixel."""
    room = sizes - boxes[:, :2]  # of corners in their image: sums of corner and side may be too large
    return bool((boxes[:, :4] >= _LEAST).all() and (boxes[:, 2:4] <= room).all())


def pair(size: Sequence[int]) -> Size:
    """Return (height, width) as integers."""
    height, width = size
    return int(height), int(width)


def view_of(
    methods: CropMethods,
    sizes: npt.NDArray[np.int32],
    boxes: Int32,
    flips: npt.NDArray[np.bool_],
    size: Size,
) -> View:
    """Return the view of boxes [B, 4], or [B, 8] with places, which are mirrored with their results."""
    if boxes.shape[1] == 4:
        return View(sizes.copy(), boxes, flips, size)
    places = boxes[:, 4:]
    if not methods.patch_size:  # of patches, the place is that of the image before it is cut into them
        boxes, places = _placed(methods, boxes, flips, size)
    boxes, places = np.ascontiguousarray(boxes[:, :4]), np.ascontiguousarray(places)
    return View(sizes.copy(), boxes, flips, size, places=places)


def _placed(
    methods: CropMethods, boxes: Int32, flips: npt.NDArray[np.bool_], size: Size
) -> tuple[Int32, Int32]:
    """Return boxes [B, 8], and their places in results that are mirrored; of unknown boxes these are 0."""
    height, width = size
    if methods.padded_size is not None:  # the padding of a batch is not mirrored: it is not part of an image
        boxes = within(boxes, size)
        places = boxes[:, 4:]
    else:
        places = mirrored(boxes[:, 4:], flips, width)
    whole = np.array([[height, width]], np.int32)
    if boxes[:, 2].all() and are_inside(places, whole):  # mostly
        return boxes, places
    is_known = boxes[:, 2] > 0
    places[~is_known] = 0
    if not are_inside(places[is_known], whole):
        row = next(row for row in np.flatnonzero(is_known) if not are_inside(places[[row]], whole))
        place = tuple(boxes[row, 4:].tolist())
        raise BoxError(
            f"{methods.crop!r} returned the place (top, left, height, width) = {place}, which is outside its "
            f"result of {height} x {width}"
        )
    return boxes, places


def _checked_size(crop: Any, given: Any) -> Size:
    """Return the size of a crop for the images of a batch, checked: the crop is the user's own."""
    most = math.prod(crop.size)
    with contextlib.suppress(TypeError, ValueError):
        height, width = (operator.index(side) for side in given)
        if min(height, width) >= 1 and height * width <= most:
            return height, width
    raise BoxError(
        f"{crop!r}: size_of() returned {given!r}: it must be (height, width) in whole pixels, with at most "
        f"the {most} pixels of size={crop.size}"
    )
