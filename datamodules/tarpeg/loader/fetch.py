"""From sample ids to a decoded batch: the work that a worker does per batch, in five steps.

Read the samples, draw a view of each image, decode what the views need, run the steps in Python, assemble.
``Fetcher._fetch`` and ``Fetcher._images_of`` are these steps in order.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch
from torch import Tensor

from .. import forks
from ..errors import DecodeError, ShardError, Status
from ..ops.decode import MAX_PIXELS, decode_batch, decode_sizes, image_sizes
from ..sampling import rng
from ..sampling.buckets import AspectBuckets
from ..sampling.crops import Crop, SmallImageError, colour_of, crop_at, gray_of, has_many_sizes
from ..sampling.geometry import View
from ..sampling.padded import mirrored, within
from ..sampling.rng import Int64
from ..sampling.sampler import Request
from ..shards import pillow
from ..shards.label import Labels
from ..shards.labels import read_extra, read_labels
from ..shards.source import Source, where_of
from ..shards.stream import StreamRequest
from ..transforms.pipeline import Uncropped
from ..transforms.pixels import PixelFormat
from ..transforms.results import Outcome, TransformError, outcome_of
from .augmenting import augment_in_worker, moved_views
from .batch import (
    AnyBatch,
    Batch,
    Decoded,
    Encoded,
    ExtraBatch,
    FetchResult,
    Images,
    KeyedBatch,
    KeyedTargetBatch,
    Shape,
    TargetBatch,
    by_size,
    by_view,
    empty_images,
    of_sizes,
)
from .carried import arrived, carrier_of
from .config import OnError
from .marks import watching
from .parts import drawn_parts, first_parts
from .pasting import drawn_pastes, paste
from .python_steps import PythonSteps, is_for_pillow, may_carry
from .resize_first import ResizeFirst, resizes_first
from .split import Split
from .targets import Moved, move_targets, picture_bytes, read_rectangles, read_targets
from .workers import end_if_forked

# Streams of random numbers, beside those of loader.python_steps: no two uses of a sample's numbers are
# correlated.
_CROP = 0
_SUBSTITUTE = 1
_PARTNERS = 4  # 2 and 3 are taken
_OBJECTS = 5
_MOST_SUBSTITUTES = 20
# Sizes of crops for which the results of transforms are kept.
_MOST_FOUND = 64
# Size of the noise that shows what a transform of whole images returns, if a stream has no sample yet.
_NOISE = (375, 500)

Size = tuple[int, int]
Place = Callable[[Shape], Images]


class BoxError(ValueError):
    """A crop's boxes or size that are malformed, or boxes outside their images."""


# Errors that are part of a result; others are raised.
_OF_THE_RESULT = (DecodeError, ShardError, BoxError)


@dataclass
class Fetcher:
    """Reads and decodes the samples of one split. Can be pickled.

    Attributes:
        shards: Samples by number; those of a ``StreamRequest`` replace them.
        split: How they are cropped and labelled.
        seed: Seed of crops, flips and augmentation.
        on_error: See ``LoaderConfig``.
        keys: Add the keys of the samples to each batch.
        pixels: Format of the images.
        candidates: Ids of the samples that may replace a broken image, all if it is None; those of a
            ``StreamRequest`` replace them.
        max_pixels: See ``LoaderConfig``.
        labels: What reads labels that are no plain integers; None for these.
    """

    shards: Source
    split: Split
    seed: int
    on_error: OnError
    keys: bool
    pixels: PixelFormat = field(default_factory=PixelFormat)
    candidates: Int64 | None = None
    max_pixels: int | None = None
    labels: Labels | None = None
    # What the transform of each view returns, by the sizes of the crops.
    _found: dict[tuple[Size, ...], list[Outcome]] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the images."""
        return self._decoded_dtype if self.pixels.worker_augment is None else self.pixels.dtype

    def shape(self, request: Request) -> Shape:
        """Shape of the images of ``request``; a list of shapes for views of several sizes."""
        return self._shape(request.epoch, self._sizes(request), len(request.ids))

    def nbytes(self, request: Request) -> int:
        """Bytes of the images of as many samples as ``request`` has, at most."""
        sizes = self._largest(request.epoch) if request.size is None else self._sizes(request)
        count = len(request.ids)
        images = sum(map(math.prod, by_size(self._shape(request.epoch, sizes, count)))) * self.dtype.itemsize
        return images + picture_bytes(self.split.targets, sizes, count)

    def views_of(self, request: Request) -> list[View]:
        """Draw the views of a request from the sizes of its images, which the index has: none is read."""
        return self.draw_views(request, self.shards.sizes(request.ids), self._sizes(request))

    def fetch(
        self, request: Request | StreamRequest, out: Images | Place | None = None, threads: int = 1
    ) -> FetchResult:
        """Read, decode, crop and resize the samples of ``request``: the same bytes in any process.

        A damaged sample or shard, and a box outside its image, are the error of the result; other errors are
        raised.

        Args:
            request: Epoch and ids of the samples.
            out: Memory for the images, of ``shape(request)`` (a list of tensors for a list of shapes) and
                ``dtype``, each in channels_last order; or a function that returns it for that shape.
            threads: Number of threads that decode.
        """
        notes: Sequence[str] = ()
        process = os.getpid()
        fetcher, is_stream = self, isinstance(request, StreamRequest)
        if isinstance(request, StreamRequest):
            fetcher = replace(self, shards=request.samples, candidates=request.ids)
            notes = request.notes
            request = Request(request.epoch, request.ids, request.occurrence)
        try:
            try:
                if is_stream and not self.split.is_decoded_only:
                    # Of noise, whichever sample comes first.
                    self._outcomes(request.epoch, fetcher._sizes(request))
                return fetcher._fetch(request, out, threads)._replace(notes=notes)
            finally:  # before any other error: a shard that changed may cause all of them
                if os.getpid() != process or forks.has_returned[0]:  # by a source, a crop or a target
                    forks.end_child(process)
                    forks.check_children()
                used = fetcher._samples(request).ravel() if self.split.has_parts else request.ids
                fetcher.shards.check_unchanged(used)
        except _OF_THE_RESULT as error:
            return FetchResult(None, [], None, error, notes, request)

    def _fetch(self, request: Request, out: Images | Place | None, threads: int) -> FetchResult:
        """Read the labels, make the images of each view, and assemble the batch."""
        sizes, is_final = self._sizes(request), self.pixels.worker_augment is None
        if callable(out):
            out = out(self._shape(request.epoch, sizes, len(request.ids)))
        labels = self._read_labels(request.ids)
        views, decoded = self._images_of(request, sizes, out if is_final else None, threads)
        return self._assemble(request, sizes, labels, views, decoded, out, threads)

    def _images_of(
        self, request: Request, sizes: list[Size], out: Images | None = None, threads: int = 1
    ) -> tuple[list[View], Decoded]:
        """Make the images of each view: read, draw, decode, run the steps in Python."""
        if self.split.has_parts and hasattr(self._crops(request.epoch)[0], "parts"):
            return self._images_of_parts(request, out, threads)
        if self.split.has_parts and hasattr(self._crops(request.epoch)[0], "is_pasted"):
            return self._images_with_pastes(request, out, threads)
        encoded = self._read(request)
        views = self.draw_views(request, encoded.sizes, sizes)
        end_if_forked()  # a source and a crop may be the user's own
        crops_into = out if self.split.is_decoded_only else None
        if self.split.fidelity == "exact" and self._are_all_resized_first(encoded):
            decoded = self._nothing_decoded(encoded, views, crops_into)
        else:
            decoded = self._decode(encoded, views, crops_into, threads)
        self._resize_first(encoded, views, decoded)
        self._run_python(encoded, views, decoded, out)
        return views, decoded

    def _images_of_parts(
        self, request: Request, out: Images | None, threads: int
    ) -> tuple[list[View], Decoded]:
        """Make images of several samples each: as ``_images_of``, with a file, a box and a place per part."""
        crop: Any = self._crops(request.epoch)[0]
        samples, uniforms = self._samples(request), self._uniforms(request, 0, crop)
        files = self.shards.images(samples.ravel())
        known = image_sizes(files).numpy()
        sizes = self._all_sizes(files, known)
        flips = uniforms[:, 0] < self.split.pipelines[0].flip
        view, places, seen = drawn_parts(crop, samples, sizes, uniforms[:, 1:], flips, self.split.channels)
        request_of_parts = Request(request.epoch, samples.ravel()[seen])
        encoded = Encoded(request_of_parts, [files[number] for number in seen.tolist()], known[seen])
        end_if_forked()  # a source may be the user's own
        if out is None or not self.split.is_decoded_only:
            shape = self._shape_of([(self.split.channels, *view.size)], len(samples))
            images = empty_images(by_size(shape)[0], self._crop_format.dtype)
        else:
            images = by_size(out)[0]
        size, boxes, flips = view.size, view.boxes, view.flips
        _, status = self._resize(size, encoded.files, boxes, flips, images, threads, places)
        decoded, first = Decoded([images], status), first_parts(view)
        for part in status.numpy().nonzero()[0].tolist():
            row, alone = int(places[part, 0]), places[part : part + 1].copy()
            alone[:, 0] = 0
            draw = partial(self._resize_picture, view.parts().row(part), images[row : row + 1], alone)
            self._decode_again(encoded, decoded, part, draw)
        own = Encoded(request, [encoded.files[part] for part in first.tolist()], encoded.sizes[first])
        views, decoded = [view], decoded.of_rows(places[:, 0], request_of_parts.ids)
        self._run_python(own, views, decoded, out)
        return views, decoded

    def _all_sizes(self, files: Sequence[Tensor], known: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return sizes of images, also of those that Pillow decodes; (0, 0) if it does not either."""
        sizes = known.copy()
        for number in np.flatnonzero(known[:, 0] == 0).tolist():
            content, limit = files[number].numpy().tobytes(), self.max_pixels or pillow.MAX_PIXELS
            sizes[number] = pillow.upright_size(content, limit)
        return sizes

    def _images_with_pastes(
        self, request: Request, out: Images | None, threads: int
    ) -> tuple[list[View], Decoded]:
        """Make images into which objects of other samples are pasted."""
        crop: Any = self._crops(request.epoch)[0]
        uniforms = self._uniforms(request, 0, crop)
        rows = np.flatnonzero(crop.is_pasted(uniforms[:, 1:]))
        ids = np.concatenate([request.ids, self._samples(request)[rows, 1]])
        files = self.shards.images(ids)
        known = image_sizes(files).numpy()
        sizes = self._all_sizes(files, known)
        count, channels = len(request.ids), self.split.channels
        view = self.draw_views(request, sizes[:count])[0]
        numbers = crop.draws_of_partners(uniforms[rows, 1:])
        partners = self._drawn(crop.crop, sizes[count:], numbers, ids[count:], 0, view.size)
        first = 0 if request.occurrence is None else rng.first_draw(request.occurrence)

        def keys(partner: int, objects: int) -> rng.Float64:
            row = rows[partner]
            begin = first if isinstance(first, int) else first[row]
            own = request.ids[row : row + 1]
            found: rng.Float64 = rng.uniforms(self.seed, request.epoch, own, objects, _OBJECTS, begin)[0]
            return found

        pastes = drawn_pastes(
            crop, view, partners, rows, ids, self.split.targets, self.shards, uniforms[:, 1:], keys, threads
        )
        end_if_forked()  # a source, a crop or a target may be the user's own
        view, chosen, behind = pastes.view, pastes.samples, pastes.behind
        encoded = Encoded(
            Request(request.epoch, ids[chosen]), [files[number] for number in chosen.tolist()], known[chosen]
        )
        if out is None or not self.split.is_decoded_only:
            shape = self._shape_of([(channels, *view.size)], count)
            images = empty_images(by_size(shape)[0], self._crop_format.dtype)
        else:
            images = by_size(out)[0]
        # Of the memory of the other samples, only what lies under the chosen objects is touched.
        others = empty_images((len(behind), channels, *view.size), self._crop_format.dtype)
        places: Any = self._places([view], [0], request.epoch)
        places[:, 0] = view.batch_rows
        places[behind, 0] = count + np.arange(len(behind))
        places[behind, 1:5], places[behind, 5:7] = places[behind, 5:9], 0
        _, status = self._resize(
            view.size, encoded.files, view.boxes, view.flips, [images, others], threads, places
        )
        decoded = Decoded([images], status)
        for part in status.numpy().nonzero()[0].tolist():
            alone, number = places[part : part + 1].copy(), int(places[part, 0])
            alone[:, 0] = 0
            whole = images[number : number + 1] if number < count else others[number - count :][:1]
            draw = partial(self._resize_picture, view.parts().row(part), whole, alone)
            self._decode_again(encoded, decoded, part, draw)
        paste(images, others, pastes)
        firsts = first_parts(view)
        own = Encoded(request, [encoded.files[part] for part in firsts.tolist()], encoded.sizes[firsts])
        rows_of_parts: Any = view.batch_rows
        views, decoded = [view], decoded.of_rows(rows_of_parts, encoded.request.ids)
        self._run_python(own, views, decoded, out)
        decoded.values = pastes.values
        return views, decoded

    def _samples(self, request: Request) -> Int64:
        """Return the samples of each row, [B, n]: itself, and those that are drawn to be in its image too."""
        count, ids = getattr(self._crops(request.epoch)[0], "partners", 0), request.ids[:, None]
        first = 0 if request.occurrence is None else rng.first_draw(request.occurrence)
        uniforms = rng.uniforms(self.seed, request.epoch, request.ids, count, _PARTNERS, first)
        return np.concatenate([ids, self._candidates_of(uniforms)], axis=1)

    def _candidates_of(self, uniforms: rng.Float64) -> Int64:
        """Return the candidates with these shares of their numbers."""
        if self.candidates is None:
            return (uniforms * len(self.shards)).astype(np.int64)
        return self.candidates[(uniforms * len(self.candidates)).astype(np.int64)]

    # 1. Read

    def _read_labels(self, ids: Int64) -> Tensor | None:
        """Read labels before the images are decoded, which leaves nothing else in the processor's caches.

        None for an error: another sample may take the place of the one without a label.
        """
        with contextlib.suppress(ShardError):
            if self.labels is not None:
                return self.labels.read(self.shards, ids)
            target: Any = self.split.target
            return read_labels(self.shards, ids, target)
        return None

    def _read(self, request: Request) -> Encoded:
        """Read the encoded images and their sizes."""
        files = self.shards.images(request.ids)
        return Encoded(request, files, image_sizes(files).numpy())

    # 2. Draw a view of each image

    def draw_views(
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
        crops, views = self._crops(request.epoch), []
        results = results or self._largest(request.epoch)
        for number, crop in enumerate(crops):
            if isinstance(crop, AspectBuckets):
                crop = crop.at_size(results[number])
            if hasattr(crop, "boxes_among"):
                views.append(self._drawn_among(request, number, crop, sizes, results[number]))
                continue
            uniforms = self._uniforms(request, number, crop)
            views.append(self._drawn(crop, sizes, uniforms, request.ids, number, results[number]))
        return views

    def _drawn(
        self,
        crop: Crop,
        sizes: npt.NDArray[np.int32],
        uniforms: rng.Float64,
        ids: Int64,
        number: int,
        size: Size,
    ) -> View:
        known = sizes[:, 0] > 0
        if len(known) and known.all():  # no copies
            boxes = self._boxes(crop, sizes, uniforms[:, 1:], ids)
        else:
            boxes = np.zeros((len(sizes), 4), np.int32)
            if known.any():
                found = self._boxes(crop, sizes[known], uniforms[known, 1:], ids[known])
                boxes = np.zeros((len(sizes), found.shape[1]), np.int32)
                boxes[known] = found
        view = View(sizes.copy(), boxes, uniforms[:, 0] < self.split.pipelines[number].flip, size)
        return view if boxes.shape[1] == 4 else self._placed(crop, view)

    def _drawn_among(
        self, request: Request, number: int, crop: Any, sizes: npt.NDArray[np.int32], size: Size
    ) -> View:
        """Draw a view whose boxes depend on the objects of the images."""
        known = np.flatnonzero(sizes[:, 0])
        objects = read_rectangles(self.shards, request.ids[known], self.split.targets)

        def draw(rows: Int64, round: int) -> rng.Float64:
            return self._uniforms(request.rows(known[rows]), number, crop, round)[:, 1:]

        boxes = np.zeros((len(sizes), 4), np.int32)
        if len(known):
            found = crop.boxes_among(sizes[known], objects, draw)
            boxes[known] = self._checked(crop, found, sizes[known], request.ids[known])
        flips = self._uniforms(request, number, crop)[:, 0] < self.split.pipelines[number].flip
        return View(sizes.copy(), boxes, flips, size, drops_by_centre=getattr(crop, "drops_by_centre", False))

    def _placed(self, crop: Crop, view: View) -> View:
        """Return a view of boxes [B, 8] with boxes and places, which are mirrored with their results."""
        boxes, (height, width) = view.boxes, view.size
        if hasattr(crop, "padded_size"):  # the padding of a batch is not mirrored: it is no part of an image
            boxes = within(boxes, view.size)
            places = boxes[:, 4:]
        else:
            places = mirrored(boxes[:, 4:], view.flips, width)
        corner, size = places[:, :2].astype(np.int64), places[:, 2:].astype(np.int64)
        is_known = boxes[:, 2] > 0
        is_outside = ((corner < 0) | (size < 1) | (corner + size > (height, width))).any(axis=1) & is_known
        if is_outside.any():
            place = tuple(boxes[int(is_outside.argmax()), 4:].tolist())
            raise BoxError(
                f"{crop!r} returned the place (top, left, height, width) = {place}, which is outside its "
                f"result of {height} x {width}"
            )
        places[~is_known] = 0
        return replace(view, boxes=np.ascontiguousarray(boxes[:, :4]), places=np.ascontiguousarray(places))

    def _boxes(
        self, crop: Crop, sizes: npt.NDArray[np.int32], uniforms: rng.Float64, ids: Int64
    ) -> npt.NDArray[np.int32]:
        try:
            boxes = np.asarray(crop.boxes(sizes, uniforms))
        except SmallImageError as error:
            raise BoxError(f"{where_of(self.shards, int(ids[error.row]))}: {error}") from error
        return self._checked(crop, boxes, sizes, ids)

    def _checked(
        self, crop: Crop, boxes: npt.NDArray[Any], sizes: npt.NDArray[np.int32], ids: Int64
    ) -> npt.NDArray[np.int32]:
        """Check boxes here, where shard, key and crop are known: the crop may be the user's own."""
        if boxes.shape not in ((len(ids), 4), (len(ids), 8)) or boxes.dtype.kind not in "iu":
            raise BoxError(
                f"{crop!r}: boxes must be integers [{len(ids)}, 4], or [{len(ids)}, 8] with their places in "
                f"the results, got {boxes.dtype} {boxes.shape}"
            )
        corner, size = boxes[:, :2].astype(np.int64), boxes[:, 2:4].astype(np.int64)
        is_outside = ((corner < 0) | (size < 1) | (corner + size > sizes)).any(axis=1)
        if is_outside.any():
            row = int(is_outside.argmax())
            height, width = sizes[row].tolist()
            raise BoxError(
                f"{where_of(self.shards, int(ids[row]))}: {crop!r} returned the box (top, left, height, "
                f"width) = {tuple(boxes[row].tolist())}, which is outside the image of {height} x {width}"
            )
        return np.ascontiguousarray(boxes, dtype=np.int32)

    def _crops(self, epoch: int) -> list[Crop]:
        return [crop_at(crop, epoch) for crop in self.split.view_crops()]

    def _largest(self, epoch: int) -> list[Size]:
        """Return the largest size of each view's results."""
        return [_pair(crop.size) for crop in self._crops(epoch)]

    def _sizes(self, request: Request) -> list[Size]:
        """Return the size of each view's results, which may depend on the images or on the batch."""
        if request.size is not None:
            return [request.size] * len(self.split.pipelines)
        crops = self._crops(request.epoch)
        if not any(map(has_many_sizes, crops)):
            return self._largest(request.epoch)
        sizes, found = self.shards.sizes(request.ids), []
        for number, crop in enumerate(crops):
            draws = None
            if hasattr(crop, "padded_size"):
                draws = self._uniforms(request, number, crop)[:, 1:]
            found.append(_size_of(crop, sizes, draws) if has_many_sizes(crop) else _pair(crop.size))
        return found

    def _uniforms(self, request: Request, number: int, crop: Crop, round: int = 0) -> rng.Float64:
        """Draw the numbers of a view: that of the flip, and those of the crop, in one of its rounds."""
        occurrence = np.zeros_like(request.ids) if request.occurrence is None else request.occurrence
        first = rng.first_draw(occurrence, number) + round * (crop.draws + 1)
        return rng.uniforms(self.seed, request.epoch, request.ids, crop.draws + 1, _CROP, first)

    # 3. Decode

    def _decode(self, encoded: Encoded, views: Sequence[View], out: Images | None, threads: int) -> Decoded:
        """Decode the crops of all views of all samples: views share what is under several of their boxes.

        Without a crop, images are decoded whole when the steps in Python run.
        """
        if all(isinstance(pipeline.crop, Uncropped) for pipeline in self.split.pipelines):
            return Decoded.nothing(len(encoded.files))
        files, groups = encoded.files, self.split.view_groups
        order = [number for group in groups for number in group]
        shapes = by_size(self._crop_shape([view.size for view in views], len(files)))
        places = self._places(views, order, encoded.request.epoch)
        if out is None and (len(shapes) > 1 or places is not None):
            out = [empty_images(shape, self._crop_format.dtype) for shape in shapes]
        flat = None if out is None else of_sizes([part.flatten(0, -4) for part in by_size(out)])
        boxes = np.concatenate([views[number].boxes for number in order])
        flips = np.concatenate([views[number].flips for number in order])
        flat, status = self._resize(shapes[0][-2:], files * len(order), boxes, flips, flat, threads, places)
        flats = by_size(flat)
        if len(order) > 1:
            status = status.view(len(order), len(files)).amax(0)
        decoded = Decoded(
            [
                part if len(order) == 1 else part.view(shape)
                for part, shape in zip(flats, shapes, strict=True)
            ],
            status,
        )
        for row in status.numpy().nonzero()[0].tolist():
            rows = [part[at : at + 1] for part in flats for at in range(row, len(part), len(files))]
            outs, request = dict(zip(order, rows, strict=True)), encoded.request.of_row(row)
            draw = partial(self._resize_again, request, views, row, outs)
            self._decode_again(encoded, decoded, row, draw)
        return decoded

    def _decode_again(
        self, encoded: Encoded, decoded: Decoded, row: int, resize: Callable[[PIL.Image.Image], None]
    ) -> None:
        """Decode a file that is not a JPEG by Pillow, and ``resize`` it; otherwise find the reason.

        Such files are decoded one at a time: their memory is that of the whole image, not that of the crop.
        """
        code, file, size = int(decoded.status[row]), encoded.files[row], encoded.sizes[row]
        if code == Status.TOO_LARGE:
            decoded.fail(row, code, pillow.too_large(size[0], size[1], self.max_pixels or MAX_PIXELS))
        elif code == Status.LATER_VERSION:
            decoded.fail(row, code, pillow.later_version(file))
        if size[0]:
            return
        content = file.numpy().tobytes()
        if not is_for_pillow(code, content):
            return
        try:
            resize(pillow.open_upright(content, self.max_pixels or pillow.MAX_PIXELS))
        except pillow.RefusedError as error:
            decoded.fail(row, int(error.status), error.reason)
            return
        decoded.status[row] = Status.OK
        decoded.non_jpeg = row if decoded.non_jpeg is None else decoded.non_jpeg

    def _resize_again(
        self,
        request: Request,
        views: Sequence[View],
        row: int,
        outs: dict[int, Tensor],
        image: PIL.Image.Image,
    ) -> None:
        """Draw the views of a request of one, whose size is known now, to ``outs``, [1, C, H, W] by view."""
        results = [(out.shape[-2], out.shape[-1]) for _, out in sorted(outs.items())]
        drawn = self.draw_views(request, np.array([[image.height, image.width]], np.int32), results)
        for number, (view, other) in enumerate(zip(views, drawn, strict=True)):
            places = self._places([other], [0], request.epoch, number)
            self._resize_picture(other, outs[number], places, image)
            view.put(row, other)

    def _resize_picture(
        self, view: View, out: Tensor, places: npt.NDArray[np.int32] | None, image: PIL.Image.Image
    ) -> None:
        """Write the part of a picture that a view of one row shows to ``out``, [1, C, H, W]."""
        if (image.height, image.width) != tuple(view.sizes[0].tolist()):  # of a part, drawn by its header
            raise pillow.RefusedError(Status.CORRUPT, f"it has {image.height} x {image.width} pixels")
        top, left, height, width = view.boxes[0].tolist()
        part = image.crop((left, top, left + width, top + height))
        ppm = pillow.as_tensor(pillow.ppm(pillow.to_rgb(part, gray=self.split.channels == 1)))
        whole = np.array([[0, 0, height, width]], np.int32)
        self._resize(view.size, [ppm], whole, view.flips, out, places=places)

    def _places(
        self, views: Sequence[View], order: Sequence[int], epoch: int, first: int = 0
    ) -> npt.NDArray[np.int32] | None:
        """Return where the boxes of these views go, see ``decode_sizes``; None if each is a whole image.

        Args:
            views: The views.
            order: Their order in the memory of the images.
            epoch: Of the crops.
            first: Number of the first of the views.
        """
        if all(view.places is None for view in views):
            return None
        crops, tables = self._crops(epoch), []
        for place, number in enumerate(order):
            view, colour = views[number], colour_of(crops[first + number])
            table = np.zeros((len(view), 12), np.int32)
            table[:, 0] = np.arange(place * len(view), (place + 1) * len(view))
            table[:, 3:5] = view.size
            table[:, 5:9] = np.where(view.is_known[:, None], view.all_places, (0, 0, 1, 1))
            table[:, 9:] = colour if self.split.channels == 3 else gray_of(colour)
            tables.append(table)
        return np.concatenate(tables)

    def _resize(
        self,
        size: Sequence[int],
        files: list[Tensor],
        boxes: npt.NDArray[np.int32],
        flips: npt.NDArray[np.bool_],
        out: Images | None = None,
        threads: int = 1,
        places: npt.NDArray[np.int32] | None = None,
    ) -> tuple[Images, Tensor]:
        pixels, is_flipped = self._crop_format, any(pipeline.flip for pipeline in self.split.pipelines)
        given, flip = torch.from_numpy(boxes), torch.from_numpy(flips) if is_flipped else None
        options = {"mean": pixels.mean, "std": pixels.std, "threads": threads, **self._decoding}
        if isinstance(out, list) or places is not None:
            table = None if places is None else torch.from_numpy(places)
            return out, decode_sizes(files, given, flip, by_size(out), **options, places=table)
        options |= {"channels": self.split.channels, "dtype": pixels.dtype, "out": out}
        return decode_batch(files, given, size, flip, **options)

    @property
    def _decoding(self) -> dict[str, Any]:
        """Options of the decoder that are the same for crops and whole images."""
        first = self.split.pipelines[0]
        return {
            "interpolation": first.interpolation,
            "antialias": first.antialias,
            "fidelity": self.split.fidelity,
            "max_pixels": self.max_pixels or MAX_PIXELS,
        }

    def _shape(self, epoch: int, sizes: list[Size], count: int) -> Shape:
        """Shape of the images of ``count`` samples, with views of those sizes."""
        if self.split.is_decoded_only:
            return self._crop_shape(sizes, count)
        return self._shape_of([outcome.shape for outcome in self._outcomes(epoch, sizes)], count)

    def _crop_shape(self, sizes: Sequence[Size], count: int) -> Shape:
        """Shape of the images that the decoder writes."""
        return self._shape_of([(self.split.channels, *size) for size in sizes], count)

    def _shape_of(self, shapes: Sequence[tuple[int, ...]], count: int) -> Shape:
        groups = [(len(views), count, *shapes[views[0]]) for views in self.split.view_groups]
        return groups[0][1:] if len(shapes) == 1 else of_sizes(groups)

    @property
    def _crop_format(self) -> PixelFormat:
        """Format of the images that the decoder writes: steps in Python and Augment take uint8."""
        if not self.split.is_decoded_only or self.pixels.worker_augment is not None:
            return PixelFormat()
        return self.split.pipelines[0].levels or self.pixels

    def _are_all_resized_first(self, encoded: Encoded) -> bool:
        """Whether no crop of the decoder is used; those of unknown size have to be decoded to be drawn."""
        crops = (resizes_first(pipeline, self.split.fidelity) for pipeline in self.split.pipelines)
        return all(crops) and bool(encoded.sizes.all())

    def _nothing_decoded(self, encoded: Encoded, views: Sequence[View], out: Images | None) -> Decoded:
        """Return the memory of crops that ``_resize_first`` will write."""
        count = len(encoded.files)
        if out is None:
            shapes = by_size(self._crop_shape([view.size for view in views], count))
            out = of_sizes([empty_images(shape, self._crop_format.dtype) for shape in shapes])
        return Decoded(by_size(out), Decoded.nothing(count).status)

    def _resize_first(self, encoded: Encoded, views: list[View], decoded: Decoded) -> None:
        """Replace the crops of views that are resized before they are cropped, as torchvision does it."""
        if not decoded.images:
            return
        parts, epoch = by_view(of_sizes(decoded.images), self.split.view_groups), encoded.request.epoch
        limit = self.max_pixels or MAX_PIXELS
        for number, pipeline in enumerate(self.split.pipelines):
            crop = resizes_first(pipeline, self.split.fidelity, epoch)
            if crop is not None:
                step = ResizeFirst(self._python_steps, pipeline, crop, self._crop_format, limit)
                views[number] = step.run(encoded, views[number], decoded, parts[number])

    # 4. Run the steps in Python

    def _run_python(self, encoded: Encoded, views: list[View], decoded: Decoded, out: Images | None) -> None:
        """Replace the crops by what policies and the steps in Python make of them."""
        split, groups = self.split, self.split.view_groups
        if split.is_decoded_only and not split.runs_python:
            return
        steps = self._python_steps
        if steps.carrier is not None and any(may_carry(each, encoded) for each in split.pipelines):
            unknown = [replace(view, boxes=np.zeros_like(view.boxes)) for view in views]  # masks as a whole
            decoded.values = self._read_targets(encoded.request.ids, unknown, decoded)
        if not split.is_decoded_only:
            crops = self._crops_of(decoded)
            outcomes = self._outcomes(encoded.request.epoch, [view.size for view in views])
            if out is None:
                shapes = by_size(self._shape_of([outcome.shape for outcome in outcomes], len(encoded.files)))
                out = of_sizes([empty_images(shape, self._decoded_dtype) for shape in shapes])
            decoded.images = by_size(out)
            for number, part in enumerate(by_view(out, groups)):
                views[number] = steps.run(
                    encoded,
                    number,
                    outcomes[number],
                    self._last_format(outcomes[number]),
                    crops=crops[number],
                    out=part,
                    view=views[number],
                    decoded=decoded,
                )
                is_carried = steps.carrier is not None and split.pipelines[number].moves_targets_in_python
                if (crops[number] is None or is_carried) and len(outcomes[number].shape) > 1:
                    views[number] = replace(views[number], size=_pair(outcomes[number].shape[-2:]))
        for number, part in enumerate(by_view(of_sizes(decoded.images), groups)):
            pipeline = split.pipelines[number]
            if pipeline.least is not None and not pipeline.runs_python:
                outcome = Outcome(pipeline, torch.uint8, (3, *views[number].size))
                last = self._last_format(outcome)
                steps.run_small(
                    encoded, number, pipeline, last, out=part, view=views[number], decoded=decoded
                )

    @property
    def _python_steps(self) -> PythonSteps:
        decoding = {"channels": self.split.channels, **self._decoding}
        return PythonSteps(
            self.shards,
            self.seed,
            decoding,
            self.max_pixels,
            with_affine=self.split.targets is not None,
            carrier=carrier_of(self.split.targets, self.shards),
        )

    def _crops_of(self, decoded: Decoded) -> list[Tensor | None]:
        """Return the crops of each view, uint8 [B, 3, H, W]: what transforms take; None for whole images."""
        whole = [isinstance(pipeline.crop, Uncropped) for pipeline in self.split.pipelines]
        if not decoded.images:
            return [None] * len(whole)
        parts = by_view(of_sizes(decoded.images), self.split.view_groups)
        return [None if is_whole else part for is_whole, part in zip(whole, parts, strict=True)]

    @property
    def _decoded_dtype(self) -> torch.dtype:
        """Type of the images before ``pixels.worker_augment``."""
        if self.split.is_decoded_only:
            return self._crop_format.dtype
        outcome = self._outcomes(0, self._largest(0))[0]
        return (self._last_format(outcome) or outcome).dtype

    @property
    def transform_result(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape, per sample, of what ``Split(transform=...)`` returns."""
        pipeline, sizes = self.split.pipelines[0], self._largest(0)
        if pipeline.runs_python:
            outcome = self._outcomes(0, sizes)[0]
            return (pipeline.levels or outcome).dtype, outcome.shape
        dtype = torch.uint8 if pipeline.levels is None else pipeline.levels.dtype
        return dtype, (3, *sizes[0])

    def _last_format(self, outcome: Outcome) -> PixelFormat | None:
        """Return the format to which the results of a view's steps in Python are converted; None for none."""
        pipeline, pixels = outcome.pipeline, self.pixels
        if pipeline.levels is not None:
            return None if pipeline.levels_first else pipeline.levels
        is_normalised = pixels.worker_augment is None and pixels.dtype != torch.uint8
        return pixels if is_normalised and outcome.is_rgb else None

    def _outcomes(self, epoch: int, sizes: list[Size]) -> list[Outcome]:
        """Return what the transform of each view returns for the first sample that can be decoded."""
        key = tuple(sizes)
        if key in self._found:
            return self._found[key]
        images, where = self._first_images(epoch, sizes)
        pairs = zip(self.split.pipelines, images, strict=True)
        carrier = self._python_steps.carrier
        with watching(where):
            found = [
                outcome_of(
                    pipeline,
                    image,
                    where,
                    self.seed,
                    carrier.example if carrier and pipeline.moves_targets_in_python else None,
                )
                for pipeline, image in pairs
            ]
        dtypes = [(self._last_format(outcome) or outcome).dtype for outcome in found]
        shapes = [{found[view].shape for view in views} for views in self.split.view_groups]
        if len({*dtypes}) > 1 or max(map(len, shapes)) > 1:
            each = zip(dtypes, found, strict=True)
            shown = " and ".join(f"{dtype} {list(outcome.shape)}" for dtype, outcome in each)
            raise TransformError(
                f"{where()}: the views of transform= return {shown}: all must have one type, and those that "
                "begin with crops of one size, or without a crop, one shape. A crop behind other steps, such "
                "as v2.ToPILImage(), does not count: put it first. A list has one transform per view; the "
                "steps of one pipeline belong in v2.Compose([...])."
            )
        if len(self._found) >= _MOST_FOUND:  # a crop may give each batch a size of its own
            del self._found[next(iter(self._found))]
        self._found[key] = found
        return found

    def _first_images(self, epoch: int, sizes: list[Size]) -> tuple[list[Tensor], Callable[[], str]]:
        """Return an image of each view of the first sample that can be decoded; noise for a stream."""
        pipelines = self.split.pipelines
        ids = np.arange(len(self.shards)) if self.candidates is None else self.candidates
        steps = self._python_steps
        for id in ids[:_MOST_SUBSTITUTES].tolist():
            encoded = self._read(Request(epoch, np.array([id], np.int64)))
            views = self.draw_views(encoded.request, encoded.sizes, sizes)
            decoded = self._decode(encoded, views, None, threads=1)
            images = [
                steps.whole_image(encoded.files[0], pipeline, 0, decoded) if crops is None else crops[0]
                for pipeline, crops in zip(pipelines, self._crops_of(decoded), strict=True)
            ]
            if decoded.status[0] == Status.OK:
                return [image for image in images if image is not None], partial(where_of, self.shards, id)
        noise, found = np.random.default_rng(0), []
        for pipeline, size in zip(pipelines, sizes, strict=True):
            height, width = pipeline.crop.target(*_NOISE) if isinstance(pipeline.crop, Uncropped) else size
            found.append(torch.from_numpy(noise.integers(0, 256, (height, width, 3), np.uint8)).movedim(2, 0))
        return found, lambda: "an image of noise"

    # 5. Assemble

    def _assemble(
        self,
        request: Request,
        sizes: list[Size],
        labels: Tensor | None,
        views: list[View],
        decoded: Decoded,
        out: Images | None,
        threads: int,
    ) -> FetchResult:
        """Replace the images that could not be decoded, augment, and add labels, targets and members."""
        values = decoded.values
        if values is None:
            values = self._read_targets(request.ids, views, decoded, threads)
        ids, substituted, left_out = self._substituted(request, sizes, views, decoded, values)
        images, pixels = decoded.images, self.pixels
        if pixels.worker_augment is not None:
            distorted, groups = request if pixels.distorts else None, self.split.view_groups
            images = augment_in_worker(pixels.worker_augment, images, self.seed, distorted, out, groups)
        mover = pixels.worker_augment if pixels.distorts else pixels.moves
        if mover is not None and self.split.targets is not None:
            sizes_now = [part.shape[-2:] for part in by_view(of_sizes(images), self.split.view_groups)]
            views = moved_views(mover, views, sizes_now, self.seed, request)
        if self.split.targets is None:
            batch = self._labelled(of_sizes(images), ids, None if substituted else labels)
        else:
            batch = self._with_targets(of_sizes(images), ids, values, views, left_out, decoded.carried)
        first = decoded.non_jpeg
        if first is not None:
            first = decoded.samples.get(first, int(request.ids[first]))
        return FetchResult(
            batch,
            substituted,
            None if first is None else f"{where_of(self.shards, first)} is not a JPEG",
            request=request._replace(views=tuple(views)),
            left_out=left_out,
        )

    def _read_targets(
        self, ids: Int64, views: Sequence[View], decoded: Decoded, threads: int = 1
    ) -> list[Any]:
        """Read the target of each decoded image, a ShardError for a broken one; [] without ``targets=``."""
        if self.split.targets is None:
            return []
        values: list[Any] = [None] * len(ids)
        rows = (decoded.status.numpy() == Status.OK).nonzero()[0]
        if not len(rows):
            return values
        drawn = [view.rows(rows) for view in views]
        found = read_targets(self.shards, ids[rows], drawn, self.split.targets, threads)
        for row, value in zip(rows.tolist(), found, strict=True):
            values[row] = value
        return values

    def _substituted(
        self, request: Request, sizes: list[Size], views: list[View], decoded: Decoded, values: list[Any]
    ) -> tuple[Int64, list[str], list[int]]:
        """Replace the images that could not be decoded, and those whose targets are broken.

        Their views and ``values`` of targets become those of the substitutes. Returns the ids of the samples
        in the batch, a message for each such image, and the rows that are left out. Raises ``DecodeError``
        or ``ShardError`` if they are not replaced.
        """
        ids, messages, left_out = np.array(request.ids), [], []
        rows = decoded.status.numpy().nonzero()[0].tolist()
        broken = [row for row, value in enumerate(values) if isinstance(value, ShardError)]
        for row in sorted({*rows, *broken}) if broken else rows:
            reason = str(values[row]) if row in broken else self._reason(int(ids[row]), row, decoded)
            if self.on_error == "raise":
                kind = ShardError if row in broken else DecodeError
                raise kind(f"{reason}; on_error='substitute' replaces it by another sample")
            if self.on_error == "leave_out":
                left_out.append(row)
                messages.append(f"{reason}; it is left out of its batch")
                continue
            ids[row], others, drawn, value, carried = self._substitute(request.of_row(row), sizes, reason)
            if values:
                values[row] = value
            for number, column in carried.items():
                decoded.carried.setdefault(number, [None] * len(ids))[row] = column[0]
            for part, other in zip(decoded.images, others, strict=True):
                self._row(part, row).copy_(self._row(other, 0))
            for view, other_view in zip(views, drawn, strict=True):
                view.put(row, other_view)
            messages.append(f"{reason}; {self.shards.keys(ids[row : row + 1])[0]!r} takes its place")
        return ids, messages, left_out

    def _reason(self, id: int, row: int, decoded: Decoded) -> str:
        """Return why an image was not decoded, with shard and key."""
        code = Status(int(decoded.status[row]))
        more = f": {decoded.reasons[row]}" if row in decoded.reasons else ""
        return f"{where_of(self.shards, decoded.samples.get(row, id))}: image is {code.name} ({code:d}){more}"

    def _substitute(
        self, request: Request, sizes: list[Size], reason: str
    ) -> tuple[int, list[Tensor], list[View], Any, dict[int, list[Any]]]:
        """Decode another sample for a request of one: a function of seed, epoch, id and occurrence alone."""
        first = 0 if request.occurrence is None else rng.first_draw(request.occurrence)
        uniforms = rng.uniforms(self.seed, request.epoch, request.ids, _MOST_SUBSTITUTES, _SUBSTITUTE, first)
        for other in self._candidates_of(uniforms[0]):
            given = request._replace(ids=other[None])
            views, decoded = self._images_of(given, sizes)
            values = decoded.values
            if values is None:
                values = self._read_targets(other[None], views, decoded)
            self.shards.check_unchanged(self._samples(given).ravel() if self.split.has_parts else given.ids)
            value = values[0] if values else None
            if decoded.status[0] == Status.OK and not isinstance(value, ShardError):
                return int(other), decoded.images, views, value, decoded.carried
        raise DecodeError(f"{reason}, and none of {_MOST_SUBSTITUTES} others that were drawn can be decoded")

    def _row(self, images: Tensor, row: int) -> Tensor:
        """Return the part of a tensor that belongs to one sample."""
        return images[row] if len(self.split.pipelines) == 1 else images[:, row]

    def _with_targets(
        self,
        images: Images,
        ids: Int64,
        values: Sequence[Any],
        views: Sequence[View],
        left_out: Sequence[int],
        carried: Mapping[int, list[Any]],
    ) -> AnyBatch:
        """Return a batch with targets, moved as their images are; none for images that are left out."""
        rows = np.setdiff1d(np.arange(len(ids)), left_out)
        moved = []
        for number, view in enumerate(views):
            kept, part = [values[row] for row in rows], view.rows(rows)
            if number in carried:
                done = [carried[number][row] for row in rows]
                part = arrived(part, np.array([each is not None for each in done], np.bool_))
                kept = [value if each is None else each for value, each in zip(kept, done, strict=True)]
            found = move_targets(self.split.targets, kept, part, self.shards, ids[rows])
            is_single = not isinstance(self.split.targets, (Mapping, Sequence))
            moved.append(Moved(rows.tolist(), len(ids), is_single, *found))
        if self.keys:
            return KeyedTargetBatch(images, moved, self.shards.keys(ids))
        return TargetBatch(images, moved)

    def _labelled(self, images: Images, ids: Int64, labels: Tensor | None) -> AnyBatch:
        members = tuple(self.split.members)
        if labels is None:
            reader, target = self.labels, cast(Any, self.split.target)
            labels = reader.read(self.shards, ids) if reader else read_labels(self.shards, ids, target)
        if not self.keys and not members:
            return Batch(images, labels)
        keys = self.shards.keys(ids)
        if not members:
            return KeyedBatch(images, labels, keys)
        return ExtraBatch(images, labels, keys, read_extra(self.shards, ids, members, self.split.decode))


def _pair(size: Sequence[int]) -> Size:
    height, width = size
    return int(height), int(width)


def _size_of(crop: Any, sizes: npt.NDArray[np.int32], draws: rng.Float64 | None) -> Size:
    """Return the size of a crop for images of those sizes, checked: the crop is the user's own."""
    given = crop.size_of(sizes) if draws is None else crop.padded_size(sizes, draws)
    most = math.prod(crop.size)
    with contextlib.suppress(TypeError, ValueError):
        height, width = (operator.index(side) for side in given)
        if min(height, width) >= 1 and height * width <= most:
            return height, width
    raise BoxError(
        f"{crop!r}: size_of() returned {given!r}: it must be (height, width) in whole pixels, with at most "
        f"the {most} pixels of size={crop.size}"
    )
