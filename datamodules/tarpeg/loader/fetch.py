"""From sample ids to a decoded batch: the work that a worker does per batch, in five steps.

Read the samples, draw a view of each image (``drawing``), decode what the views need, run the steps in
Python, assemble. ``Fetcher._fetch`` and ``Fetcher._images_of`` are these steps in order.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import forks
from ..errors import DecodeError, ShardError, Status
from ..ops.decode import MAX_PIXELS, decode_batch, decode_sizes, image_sizes
from ..sampling.geometry import View
from ..sampling.rng import Int64
from ..sampling.sampler import Request
from ..shards.label import Labels
from ..shards.labels import read_extra, read_labels
from ..shards.source import Source, where_of
from ..shards.stream import StreamRequest
from ..targets.moved import Moved
from ..targets.pictures import picture_bytes
from ..targets.steps import move_targets, read_targets
from ..transforms.pipeline import Uncropped
from ..transforms.pixels import PixelFormat
from ..transforms.results import Outcome
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
from .composing import Composer
from .config import OnError
from .drawing import BoxError, Drawing, Size, pair
from .fallback import Fallback
from .many import ManyImages, RaggedSubstitutes, target_views, unlike_first
from .mixed_drawing import MixedDrawing
from .naflex import write_patches
from .outcomes import Outcomes
from .python_steps import PythonSteps, may_carry
from .ragged import MostImages
from .resize_first import ResizeFirst, resizes_first
from .split import Split
from .substitutes import Made, Substitutes
from .text import read_texts
from .workers import end_if_forked

Place = Callable[[Shape], Images]


# Errors that are part of a result; others are raised.
OF_THE_RESULT = (DecodeError, ShardError, BoxError)


def check_forks(process: int) -> None:
    """End a process that a source, a crop or a target has forked from ``process``, and returned in."""
    if os.getpid() != process or forks.has_returned[0]:
        forks.end_child(process)
        forks.check_children()


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
        training: Whether captions are dropped, see ``Text``.
        most_images: The most images of a batch, of samples with a number of their own each.
        drawings: Of several sources, whose samples are ``shards``, what draws for each; empty for one.
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
    training: bool = False
    most_images: MostImages | None = None
    drawings: Sequence[Drawing] = ()
    # What the transform of each view returns, by the sizes of the crops.
    _found: dict[tuple[Size, ...], list[Outcome]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._carrier = carrier_of(self.split.targets, self.shards)
        given = self.shards, self.split, self.seed, self.candidates
        self.drawing = MixedDrawing(*given, drawings=self.drawings) if self.drawings else Drawing(*given)
        self._outcomes = Outcomes(
            source=self.shards,
            split=self.split,
            pixels=self.pixels,
            seed=self.seed,
            candidates=self.candidates,
            carrier=self._carrier,
            known=self._found,
        )

    def with_pixels(self, pixels: PixelFormat) -> Fetcher:
        """Return a fetcher of images in another format."""
        return replace(self, pixels=pixels, _found={})

    def where(self, id: int) -> str:
        """Return shard and key of a sample."""
        return where_of(self.shards, id)

    def first_of(self, request: Request) -> str:
        """Return shard and key of the first sample of a request."""
        return self.where(int(request.ids[0]))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the images."""
        return self._decoded_dtype if self.pixels.worker_augment is None else self.pixels.dtype

    def shape(self, request: Request) -> Shape:
        """Shape of the images of ``request``; a list of shapes for views of several sizes."""
        return self._shape(request.epoch, self.drawing.sizes(request), len(request.ids))

    def nbytes(self, request: Request) -> int:
        """Bytes of the images of as many samples as ``request`` has, at most."""
        drawing, count = self.drawing, len(request.ids)
        sizes = drawing.largest(request.epoch) if request.size is None else drawing.sizes(request)
        most = count if self.most_images is None else self.most_images(count)
        images = sum(map(math.prod, by_size(self._shape(request.epoch, sizes, most)))) * self.dtype.itemsize
        return images + picture_bytes(self.split.targets, sizes, count)

    def views_of(self, request: Request) -> list[View]:
        """Draw the views of a request from the sizes of its images, which the index has: none is read.

        Of samples with several images their headers are read.
        """
        if self.split.image is not None:
            return self._many.views(request, self.drawing.sizes(request))[0]
        return self.draw_views(request, self.shards.sizes(request.ids), self.drawing.sizes(request))

    def draw_views(
        self, request: Request, sizes: npt.NDArray[np.int32], results: list[Size] | None = None
    ) -> list[View]:
        """Draw the views of a request for images of other sizes, see ``Drawing.views``."""
        return self.drawing.views(request, sizes, results)

    def fetch(
        self,
        request: Request | StreamRequest,
        out: Images | Place | None = None,
        threads: int = 1,
        distorted: Request | None = None,
    ) -> FetchResult:
        """Read, decode, crop and resize the samples of ``request``: the same bytes in any process.

        A damaged sample or shard, and a box outside its image, are the error of the result; other errors are
        raised.

        Args:
            request: Epoch and ids of the samples.
            out: Memory for the images, of ``shape(request)`` (a list of tensors for a list of shapes) and
                ``dtype``, each in channels_last order; or a function that returns it for that shape.
            threads: Number of threads that decode.
            distorted: The request for which distortions are drawn; None: ``request``.
        """
        notes: Sequence[str] = ()
        process = os.getpid()
        fetcher, is_stream = self, isinstance(request, StreamRequest)
        if isinstance(request, StreamRequest):
            fetcher = replace(self, shards=request.samples, candidates=request.ids)
            notes = request.notes
            request = Request(request.epoch, request.ids, request.occurrence)
        request.ids.setflags(write=False)  # a source of the user that sorts them in place would mix up images
        try:
            try:
                if is_stream and not self.split.is_decoded_only:
                    # Of noise, whichever sample comes first.
                    self._results_of(request.epoch, fetcher.drawing.sizes(request))
                result = fetcher._fetch(request, out, threads, distorted or request)
                result.notes = notes
                return result
            finally:  # before any other error: a shard that changed may cause all of them
                check_forks(process)
                fetcher.check_unchanged(request)
        except OF_THE_RESULT as error:
            return FetchResult(error=error, notes=notes, request=request)

    def _fetch(
        self, request: Request, out: Images | Place | None, threads: int, distorted: Request
    ) -> FetchResult:
        """Read the labels, make the images of each view, and assemble the batch."""
        sizes, is_final = self.drawing.sizes(request), self.pixels.worker_augment is None
        labels = self.read_labels(request.ids)
        if self.split.image_pattern is not None:
            made = self._made(request, sizes, out, threads)
            return self.assemble(request, sizes, labels, made, out, distorted)
        if callable(out):
            out = out(self._shape(request.epoch, sizes, len(request.ids)))
        made = self._made(request, sizes, out if is_final else None, threads)
        return self.assemble(request, sizes, labels, made, out, distorted)

    def _made(
        self, request: Request, sizes: list[Size], out: Images | Place | None = None, threads: int = 1
    ) -> Made:
        """Make the images of each view, and read their targets."""
        views, decoded = self._images_of(request, sizes, out, threads)
        return self.made_of(request, views, decoded, threads)

    def made_of(self, request: Request, views: list[View], decoded: Decoded, threads: int) -> Made:
        """Read the targets or captions of images."""
        values = decoded.values
        if self.split.texts:
            values = self._read_texts(request, decoded)
        elif values is None:
            values = self._read_targets(request.ids, views, decoded, threads)
        return Made(views, decoded, values)

    def _images_of(
        self, request: Request, sizes: list[Size], out: Images | Place | None = None, threads: int = 1
    ) -> tuple[list[View], Decoded]:
        """Make the images of each view: read, draw, decode, run the steps in Python."""
        if self.split.image is not None:
            return self._many.images(request, sizes, out, threads)
        crop, into = self.drawing.crops(request.epoch)[0], out if self.split.is_decoded_only else None
        if crop.parts is not None or crop.is_pasted is not None:
            encoded, views, decoded = self._composer.images(request, into, threads)
        else:
            encoded = self.read(request)
            views = self.drawing.views(request, encoded.sizes, sizes)
            end_if_forked()  # a source and a crop may be the user's own
            decoded = self._decode(encoded, views, into, threads)
            decoded.nbytes = encoded.nbytes
        self.run_steps(encoded, views, decoded, out)
        return views, decoded

    def check_unchanged(self, request: Request) -> None:
        """Raise ShardError if a shard of the samples of a request has changed."""
        used = self.drawing.samples(request).ravel() if self.split.has_parts else request.ids
        self.shards.check_unchanged(used)

    # 1. Read

    def read_labels(self, ids: Int64) -> Tensor | None:
        """Read labels before the images are decoded, which leaves nothing else in the processor's caches.

        None for an error: another sample may take the place of the one without a label.
        """
        with contextlib.suppress(ShardError):
            if self.labels is not None:
                return self.labels.read(self.shards, ids)
            target: Any = self.split.target
            return read_labels(self.shards, ids, target)
        return None

    def read(self, request: Request) -> Encoded:
        """Read the encoded images and their sizes."""
        files = self.shards.images(request.ids)
        return Encoded(request, files, image_sizes(files).numpy())

    # 3. Decode

    def _decode(self, encoded: Encoded, views: list[View], out: Images | None, threads: int) -> Decoded:
        """Make the crops of all views of all samples.

        Without a crop, images are decoded whole when the steps in Python run.
        """
        if self.split.fidelity != "exact":
            return self._decode_crops(encoded, views, out, threads)
        if self._are_all_resized_first(encoded):
            decoded = self._nothing_decoded(encoded, views, out)
        else:
            decoded = self._decode_crops(encoded, views, out, threads)
        self._resize_first(encoded, views, decoded)
        return decoded

    def _decode_crops(
        self, encoded: Encoded, views: Sequence[View], out: Images | None, threads: int
    ) -> Decoded:
        """Decode the boxes of all views: they share what is under several of their boxes."""
        if all(isinstance(pipeline.crop, Uncropped) for pipeline in self.split.pipelines):
            return Decoded.nothing(len(encoded.files))
        if self.split.patches is not None:
            return self._decode_patches(encoded, views[0], out, threads)
        files, groups = encoded.files, self.split.view_groups
        order = [number for group in groups for number in group]
        shapes = by_size(self._crop_shape([view.size for view in views], len(files)))
        places = self.drawing.places(views, order, encoded.request)
        if out is None and (len(shapes) > 1 or places is not None):
            out = [empty_images(shape, self._crop_format.dtype) for shape in shapes]
        flat = None if out is None else of_sizes([part.flatten(0, -4) for part in by_size(out)])
        boxes = np.concatenate([views[number].boxes for number in order])
        flips = np.concatenate([views[number].flips for number in order])
        flat, status = self.resize(shapes[0][-2:], files * len(order), boxes, flips, flat, threads, places)
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
            draw = partial(self._fallback.draw_views, request, views, row, outs)
            self._fallback.decode(encoded, decoded, row, draw)
        return decoded

    def _decode_patches(self, encoded: Encoded, view: View, out: Images | None, threads: int) -> Decoded:
        """Decode each image to a size of its own, and cut them into patches."""
        count, dtype = len(encoded.files), self._crop_format.dtype
        columns = (
            empty_images(self._tensor_shape(count, view.size), dtype) if out is None else by_size(out)[0]
        )
        sizes = np.where(view.is_known[:, None], view.all_places[:, 2:], view.size[1]).tolist()
        images = [empty_images(self._tensor_shape(1, size), dtype) for size in sizes]
        _, status = self.resize(view.size, encoded.files, view.boxes, view.flips, images, threads)
        decoded = Decoded([columns], status)
        for row in status.numpy().nonzero()[0].tolist():
            draw = partial(self._fallback.draw_patches, encoded.request.of_row(row), view, row, images)
            self._fallback.decode(encoded, decoded, row, draw)
        for row, image in enumerate(images):
            if decoded.status[row] == Status.OK:
                write_patches(columns[row], image[0])
            else:
                columns[row] = 0
        return decoded

    def _tensor_shape(self, count: int, size: Sequence[int]) -> tuple[int, ...]:
        return (count, self.split.channels, *size)

    def resize(
        self,
        size: Sequence[int],
        files: list[Tensor],
        boxes: npt.NDArray[np.int32],
        flips: npt.NDArray[np.bool_],
        out: Images | None = None,
        threads: int = 1,
        places: npt.NDArray[np.int32] | None = None,
    ) -> tuple[Images, Tensor]:
        """Decode boxes of files by the decoder; return the images, and a status for each."""
        pixels, is_flipped = self._crop_format, any(pipeline.flip for pipeline in self.split.pipelines)
        given, flip = torch.from_numpy(boxes), torch.from_numpy(flips) if is_flipped else None
        options = {"mean": pixels.mean, "std": pixels.std, "threads": threads, **self.decoding}
        if isinstance(out, list) or places is not None:
            table = None if places is None else torch.from_numpy(places)
            return out, decode_sizes(files, given, flip, by_size(out), **options, places=table)
        options |= {"channels": self.split.channels, "dtype": pixels.dtype, "out": out}
        return decode_batch(files, given, size, flip, **options)

    @property
    def _fallback(self) -> Fallback:
        return Fallback(self.drawing, self.max_pixels, self.resize)

    @property
    def _composer(self) -> Composer:
        return Composer(self.drawing, self._fallback, self._crop_format.dtype)

    @property
    def _many(self) -> ManyImages:
        return ManyImages(self._composer, self._crop_shape, self.most_images)

    @property
    def decoding(self) -> dict[str, Any]:
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
        return self._shape_of([outcome.shape for outcome in self._results_of(epoch, sizes)], count)

    def _crop_shape(self, sizes: Sequence[Size], count: int) -> Shape:
        """Shape of the images that the decoder writes."""
        return self._shape_of([(self.split.channels, *size) for size in sizes], count)

    def _shape_of(self, shapes: Sequence[tuple[int, ...]], count: int) -> Shape:
        groups = [(len(views), count, *shapes[views[0]]) for views in self.split.view_groups]
        return groups[0][1:] if len(shapes) == 1 else of_sizes(groups)

    def crops_in(self, out: Tensor, size: Size) -> Tensor:
        """Return the memory of the decoder's crops: ``out``, or its own if there are steps behind it."""
        if self.split.is_decoded_only:
            return out
        return empty_images(self._tensor_shape(len(out), size), self._crop_format.dtype)

    @property
    def _crop_format(self) -> PixelFormat:
        """Format of the images that the decoder writes: steps in Python and Augment take uint8."""
        if not self.split.is_decoded_only or self.pixels.worker_augment is not None:
            return PixelFormat()
        return self.split.pipelines[0].levels or self.pixels

    def _are_all_resized_first(self, encoded: Encoded) -> bool:
        """Whether no crop of the decoder is used; those of unknown size have to be decoded to be drawn."""
        given, epoch = self.split, encoded.request.epoch
        crops = (resizes_first(pipeline, given.fidelity, epoch) for pipeline in given.pipelines)
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

    def run_steps(self, encoded: Encoded, views: list[View], decoded: Decoded, out: Images | None) -> None:
        """Replace the crops by what policies and the steps in Python make of them, and views by theirs."""
        split, groups = self.split, self.split.view_groups
        if split.is_decoded_only and not split.runs_python:
            return
        steps = self._python_steps
        if steps.carrier is not None and any(may_carry(each, encoded) for each in split.pipelines):
            unknown = [replace(view, boxes=np.zeros_like(view.boxes)) for view in views]  # masks as a whole
            decoded.values = self._read_targets(encoded.request.ids, unknown, decoded)
        if not split.is_decoded_only:
            crops = self._crops_of(decoded)
            outcomes = self._results_of(encoded.request.epoch, [view.size for view in views])
            if out is None:
                shapes = by_size(self._shape_of([outcome.shape for outcome in outcomes], len(encoded.files)))
                out = of_sizes([empty_images(shape, self._decoded_dtype) for shape in shapes])
            decoded.images = by_size(out)
            for number, part in enumerate(by_view(out, groups)):
                views[number] = steps.run(
                    encoded,
                    number,
                    outcomes[number],
                    self._outcomes.last_format(outcomes[number]),
                    crops=crops[number],
                    out=part,
                    view=views[number],
                    decoded=decoded,
                )
                is_carried = steps.carrier is not None and split.pipelines[number].moves_targets_in_python
                if (crops[number] is None or is_carried) and len(outcomes[number].shape) > 1:
                    views[number] = replace(views[number], size=pair(outcomes[number].shape[-2:]))
        for number, part in enumerate(by_view(of_sizes(decoded.images), groups)):
            pipeline = split.pipelines[number]
            if pipeline.least is not None and not pipeline.runs_python:
                outcome = Outcome(pipeline, torch.uint8, (3, *views[number].size))
                last = self._outcomes.last_format(outcome)
                steps.run_small(
                    encoded, number, pipeline, last, out=part, view=views[number], decoded=decoded
                )

    @property
    def _python_steps(self) -> PythonSteps:
        decoding = {"channels": self.split.channels, **self.decoding}
        return PythonSteps(
            self.shards,
            self.seed,
            decoding,
            self.max_pixels,
            with_affine=self.split.targets is not None,
            carrier=self._carrier,
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
        return self._outcomes.dtype_of(self._results_of(0, self.drawing.largest(0))[0])

    @property
    def transform_result(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape, per sample, of what ``Split(transform=...)`` returns."""
        pipeline, sizes = self.split.pipelines[0], self.drawing.largest(0)
        if pipeline.runs_python:
            outcome = self._results_of(0, sizes)[0]
            return (pipeline.levels or outcome).dtype, outcome.shape
        dtype = torch.uint8 if pipeline.levels is None else pipeline.levels.dtype
        return dtype, (3, *sizes[0])

    def _results_of(self, epoch: int, sizes: list[Size]) -> list[Outcome]:
        """Return what the steps of each view return for crops of these sizes."""
        return self._outcomes.of(epoch, sizes, self._example)

    def _example(self, request: Request, sizes: list[Size]) -> list[Tensor] | None:
        """Make an image of each view of one sample, before the steps in Python."""
        encoded = self.read(request)
        views = self.drawing.views(request, encoded.sizes, sizes)
        decoded = self._decode_crops(encoded, views, None, threads=1)
        images, steps = [], self._python_steps
        for pipeline, crops in zip(self.split.pipelines, self._crops_of(decoded), strict=True):
            if crops is None:
                images.append(steps.whole_image(encoded.files[0], pipeline, 0, decoded))
            else:
                images.append(crops[0])
        if decoded.status[0] != Status.OK:
            return None
        return [image for image in images if image is not None]

    # 5. Assemble

    def assemble(
        self,
        request: Request,
        sizes: list[Size],
        labels: Tensor | None,
        made: Made,
        out: Images | Place | None,
        drawn_for: Request,
    ) -> FetchResult:
        """Replace the images that could not be decoded, augment, and add labels, targets and members."""
        decoded, views, is_single = made.decoded, made.views, len(self.split.pipelines) == 1
        is_flat = self.split.image_pattern is not None
        kind = RaggedSubstitutes if is_flat else Substitutes
        substitutes = kind(self.shards, self.on_error, self.drawing, has_views=not is_single)
        replaced = substitutes.replace(request, made, partial(self._made_unchanged, sizes))
        if is_flat:
            views = self._many.joined(made, replaced, sizes, out)
        images, pixels = decoded.images, self.pixels
        if pixels.worker_augment is not None:
            distorted, groups = drawn_for if pixels.distorts else None, self.split.view_groups
            images = augment_in_worker(pixels.worker_augment, images, self.seed, distorted, out, groups)
        mover = pixels.worker_augment if pixels.distorts else pixels.moves
        if mover is not None and self.split.targets is not None:
            sizes_now = [part.shape[-2:] for part in by_view(of_sizes(images), self.split.view_groups)]
            views = moved_views(mover, views, sizes_now, self.seed, drawn_for)
        if self.split.targets is None:
            labels = None if replaced.messages else labels
            batch = self.labelled(of_sizes(images), replaced.ids, labels, made.values)
        else:
            batch = self._with_targets(
                of_sizes(images),
                replaced.ids,
                made.values,
                self.target_views(views),
                replaced.left_out,
                decoded.carried,
            )
        first = decoded.non_jpeg
        if first is not None:
            first = decoded.samples.get(first, int(request.ids[first]))
        return FetchResult(
            batch=batch,
            substituted=replaced.messages,
            non_jpeg=None if first is None else f"{where_of(self.shards, first)} is not a JPEG",
            request=request._replace(views=tuple(views)),
            left_out=replaced.left_out,
            nbytes=decoded.nbytes,
        )

    def _made_unchanged(self, sizes: list[Size], request: Request) -> Made:
        """Make the images of a substitute, whose shard is checked."""
        made = self._made(request, sizes)
        self.check_unchanged(request)
        return made

    def _read_targets(
        self, ids: Int64, views: Sequence[View], decoded: Decoded, threads: int = 1
    ) -> list[Any]:
        """Read the target of each decoded image, a ShardError for a broken one; [] without ``targets=``."""
        if self.split.targets is None:
            return []
        values: list[Any] = [None] * len(ids)
        is_good = decoded.is_good
        if self.split.image is not None and not self.split.shares_box:
            for row, reason in unlike_first(views, self.split.image_names).items():
                if is_good[row]:
                    values[row] = ShardError(
                        f"{self.where(int(ids[row]))}: {reason}: with targets= and shared_box=False, the "
                        "images of a sample need one size"
                    )
                is_good[row] = False
        rows = is_good.nonzero()[0]
        if not len(rows):
            return values
        drawn = [view.rows(rows) for view in self.target_views(views)]
        found = read_targets(self.shards, ids[rows], drawn, self.split.targets, threads)
        for row, value in zip(rows.tolist(), found, strict=True):
            values[row] = value
        return values

    def target_views(self, views: Sequence[View]) -> Sequence[View]:
        """Return the views by which targets follow the images of these views."""
        if self.split.image is None:
            return views
        return target_views(views, is_shared=self.split.shares_box)

    def _read_texts(self, request: Request, decoded: Decoded) -> list[Any]:
        """Read the captions of each decoded image, a ShardError for a broken one."""
        values: list[Any] = [None] * len(request.ids)
        rows = decoded.is_good.nonzero()[0]
        for row, value in zip(rows.tolist(), self.read_texts(request.rows(rows)), strict=True):
            values[row] = value
        return values

    def read_texts(self, request: Request) -> list[Any]:
        """Read the captions of samples, see ``text.read_texts``; [] without ``Text``."""
        texts = self.split.texts
        if not texts:
            return []
        return read_texts(self.shards, request, self.seed, texts, training=self.training)

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

    def labelled(
        self, images: Images, ids: Int64, labels: Tensor | None, texts: Sequence[Any] = ()
    ) -> AnyBatch:
        """Return a batch without targets.

        Args:
            images: Its images.
            ids: Its samples.
            labels: Their labels; None: they are read.
            texts: Their captions, of ``read_texts``, which become the ``extra`` of the batch.
        """
        members = self.split.extensions
        if labels is None:
            reader, target = self.labels, cast(Any, self.split.target)
            labels = reader.read(self.shards, ids) if reader else read_labels(self.shards, ids, target)
        if not self.keys and not self.split.members:
            return Batch(images, labels)
        keys = self.shards.keys(ids)
        if self.split.texts:
            return ExtraBatch(images, labels, keys, list(texts))
        if not members:
            return KeyedBatch(images, labels, keys)
        return ExtraBatch(images, labels, keys, read_extra(self.shards, ids, members, self.split.decode))
