"""From sample ids to a decoded batch: the work that a worker does per batch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..augment.policies import run_policies
from ..errors import DecodeError, ShardError, Status
from ..ops.decode import MAX_PIXELS, decode_batch, decode_sizes, image_sizes
from ..sampling import rng
from ..sampling.crops import Crop, crop_at
from ..sampling.rng import Int64
from ..sampling.sampler import Request
from ..shards import pillow
from ..shards.labels import Samples, read_extra, read_labels, where_of
from ..shards.mapped import Shards
from ..shards.stream import StreamedSamples, StreamRequest
from .batch import (
    AnyBatch,
    Batch,
    ExtraBatch,
    FetchResult,
    Images,
    KeyedBatch,
    Shape,
    augment_images,
    by_size,
    of_sizes,
)
from .config import OnError, PixelFormat
from .split import Split
from .transform import (
    FullImage,
    Outcome,
    TransformError,
    normalised,
    outcome_of,
    own_generators,
    prepared,
    run_steps,
)

# Streams of random numbers: no two uses of a sample's numbers are correlated.
_CROP, _SUBSTITUTE, _TRANSFORM = range(3)
_POLICIES = 1 << 16  # and the numbers from here on, one per policy in a transform
_MOST_SUBSTITUTES = 20
# Size of the noise that shows what a transform of whole images returns, if a stream has no sample yet.
_NOISE = (375, 500)
# The native decoder's judgement of a file that Pillow may decode: a PPM, but no file of pillow.NATIVE.
_OTHER_FORMAT = (Status.NOT_AN_IMAGE, Status.CORRUPT, Status.UNSUPPORTED)


class BoxError(ValueError):
    """A crop's boxes that are malformed or outside their images."""


class _Decoded(NamedTuple):
    """``images``: per size [B, C, H, W] or [views, B, C, H, W]. ``status``: [B].

    ``reasons``: by row, if known. ``non_jpeg``: the first row that Pillow decoded. ``sizes``: [B, 2],
    upright, by the headers, (0, 0) if unknown; None if nothing was cropped.
    """

    images: list[Tensor]
    status: Tensor
    reasons: dict[int, str]
    non_jpeg: int | None
    sizes: npt.NDArray[np.int32] | None = None


@dataclass
class Fetcher:
    """Reads and decodes the samples of one split. Can be pickled.

    ``candidates``: ids of the samples that may replace a broken image, all if it is None. A
    ``StreamRequest`` brings its samples; they replace ``shards`` and ``candidates``. ``max_pixels``,
    ``leaves_out``: see ``LoaderConfig``.
    """

    shards: Samples
    split: Split
    seed: int
    on_error: OnError
    keys: bool
    pixels: PixelFormat = field(default_factory=PixelFormat)
    candidates: Int64 | None = None
    max_pixels: int | None = None
    leaves_out: bool = False
    # What the transform of each view returns, by the sizes of the crops.
    _found: dict[tuple[tuple[int, ...], ...], list[Outcome]] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the images."""
        return self._decoded_dtype if self.pixels.augment is None else self.pixels.dtype

    def shape(self, request: Request | StreamRequest) -> Shape:
        """Shape of the images of ``request``; a list of shapes for views of several sizes."""
        if self.split.is_decoded_only:
            return self._crop_shape(request)
        outcomes = self._outcomes(request.epoch)
        return self._shape_of([outcome.shape for outcome in outcomes], len(request.ids))

    def nbytes(self, request: Request) -> int:
        """Bytes of the images of ``request``."""
        return sum(map(math.prod, by_size(self.shape(request)))) * self.dtype.itemsize

    def fetch(
        self, request: Request | StreamRequest, out: Images | None = None, threads: int = 1
    ) -> FetchResult:
        """Read, decode, crop and resize the samples of ``request``: the same bytes in any process.

        ``out``: memory for the images, of ``shape(request)`` (a list of tensors for a list of shapes) and
        ``dtype``, each in channels_last order.
        ``threads``: decode on so many. A damaged sample or shard, and a box outside its image, are the error
        of the result; other errors are raised.
        """
        if isinstance(request, StreamRequest):
            fetcher = replace(self, shards=request.samples, candidates=request.ids)
            plain = Request(request.epoch, request.ids, request.occurrence)
            return fetcher.fetch(plain, out, threads)._replace(notes=request.notes, request=plain)
        try:
            try:
                return self._fetch(request, out, threads)
            finally:  # before any other error: a shard that changed may cause all of them
                self._check_unchanged(request.ids)
        except (DecodeError, ShardError, BoxError) as error:
            return FetchResult(None, [], None, error)

    def boxes_and_flips(
        self, request: Request, sizes: npt.NDArray[np.int32]
    ) -> tuple[list[npt.NDArray[np.int32]], list[npt.NDArray[np.bool_]]]:
        """Draw the boxes [B, 4] and the flips [B] of each view, for images of those sizes [B, 2].

        An image of unknown size, (0, 0), has the box (0, 0, 0, 0). Raises ``BoxError`` for boxes that are not
        integers [B, 4], or are outside their images.
        """
        occurrence = np.zeros_like(request.ids) if request.occurrence is None else request.occurrence
        boxes, flips, known = [], [], sizes[:, 0] > 0
        pipelines, all_known = self.split.pipelines, bool(known.all())
        for view, (crop, pipeline) in enumerate(zip(self._crops(request.epoch), pipelines, strict=True)):
            first = rng.first_draw(occurrence, view)
            uniforms = rng.uniforms(self.seed, request.epoch, request.ids, crop.draws + 1, _CROP, first)
            flips.append(uniforms[:, 0] < pipeline.flip)
            if all_known:  # no copies
                drawn = crop.boxes(sizes, uniforms[:, 1:])
                boxes.append(self._checked(crop, drawn, sizes, request.ids))
                continue
            boxes.append(np.zeros((len(sizes), 4), np.int32))
            if known.any():
                drawn = crop.boxes(sizes[known], uniforms[known, 1:])
                boxes[-1][known] = self._checked(crop, drawn, sizes[known], request.ids[known])
        return boxes, flips

    def _fetch(self, request: Request, out: Images | None, threads: int) -> FetchResult:
        pixels, ids = self.pixels, np.array(request.ids)
        decoded = out if pixels.augment is None else None
        label = self._labels(ids)
        images, status, reasons, first, _ = self._decode(request, decoded, threads)
        non_jpeg = None if first is None else f"{where_of(self.shards, int(ids[first]))} is not a JPEG"
        substituted, left_out = [], []
        for row in status.numpy().nonzero()[0].tolist():
            code = Status(int(status[row]))
            reason = f"{where_of(self.shards, int(ids[row]))}: image is {code.name} ({code:d})"
            reason += f": {reasons[row]}" if row in reasons else ""
            if self.on_error == "raise":
                raise DecodeError(f"{reason}; on_error='substitute' replaces it by another sample")
            if self.leaves_out:
                left_out.append(row)
                substituted.append(f"{reason}; it is left out of the predictions")
                continue
            ids[row], others = self._substitute(request.of_row(row), reason)
            for part, other in zip(images, others, strict=True):
                self._row(part, row).copy_(other)
            substituted.append(f"{reason}; {self.shards.key(int(ids[row]))!r} takes its place")
        if pixels.augment is not None:
            distorted = request if pixels.distorts else None
            views = self.split.view_groups
            images = augment_images(pixels.augment, images, self.seed, distorted, out, views)
        batch = self._batch(of_sizes(images), ids, None if substituted else label)
        return FetchResult(batch, substituted, non_jpeg, left_out=left_out)

    def _labels(self, ids: Int64) -> Tensor | None:
        """Read labels before the images are decoded, which leaves nothing else in the processor's caches.

        None for an error: another sample may take the place of the one without a label.
        """
        with contextlib.suppress(ShardError):
            return read_labels(self.shards, ids, self.split.target)
        return None

    def _check_unchanged(self, ids: Int64) -> None:
        if isinstance(self.shards, Shards):
            self.shards.check_unchanged(ids)

    def _batch(self, images: Images, ids: Int64, label: Tensor | None) -> AnyBatch:
        members = tuple(self.split.members)
        label = read_labels(self.shards, ids, self.split.target) if label is None else label
        if not self.keys and not members:
            return Batch(images, label)
        keys = [self.shards.key(int(id)) for id in ids]
        if not members:
            return KeyedBatch(images, label, keys)
        return ExtraBatch(images, label, keys, read_extra(self.shards, ids, members, self.split.decode))

    def _crops(self, epoch: int) -> list[Crop]:
        return [crop_at(crop, epoch) for crop in self.split.view_crops()]

    def _shape_of(self, shapes: Sequence[tuple[int, ...]], count: int) -> Shape:
        groups = [(len(views), count, *shapes[views[0]]) for views in self.split.view_groups]
        return groups[0][1:] if len(shapes) == 1 else of_sizes(groups)

    def _crop_shape(self, request: Request | StreamRequest) -> Shape:
        """Shape of the images that the decoder writes."""
        crops = self._crops(request.epoch)
        channels = self.split.channels
        return self._shape_of([(channels, *map(int, crop.size)) for crop in crops], len(request.ids))

    @property
    def _crop_format(self) -> PixelFormat:
        """Format of the images that the decoder writes: steps in Python and Augment take uint8."""
        if not self.split.is_decoded_only or self.pixels.augment is not None:
            return PixelFormat()
        return self.split.pipelines[0].levels or self.pixels

    @property
    def _decoded_dtype(self) -> torch.dtype:
        """Type of the images before ``pixels.augment``."""
        if self.split.is_decoded_only:
            return self._crop_format.dtype
        outcome = self._outcomes(0)[0]
        return (self._last_format(outcome) or outcome).dtype

    @property
    def transform_result(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape, per sample, of what ``Split(transform=...)`` returns."""
        pipeline = self.split.pipelines[0]
        if pipeline.runs_python:
            outcome = self._outcomes(0)[0]
            return (pipeline.levels or outcome).dtype, outcome.shape
        dtype = torch.uint8 if pipeline.levels is None else pipeline.levels.dtype
        return dtype, (3, *self._crops(0)[0].size)

    def _last_format(self, outcome: Outcome) -> PixelFormat | None:
        """Return the format to which the results of a view's steps in Python are converted; None for none."""
        pipeline, pixels = outcome.pipeline, self.pixels
        if pipeline.levels is not None:
            return None if pipeline.levels_first else pipeline.levels
        is_normalised = pixels.augment is None and pixels.dtype != torch.uint8
        return pixels if is_normalised and outcome.is_rgb else None

    def _row(self, images: Tensor, row: int) -> Tensor:
        """Return the part of a tensor that belongs to one sample."""
        return images[row] if len(self.split.pipelines) == 1 else images[:, row]

    def _by_view(self, images: list[Tensor]) -> list[Tensor]:
        """Return the results of each view, [B, ...], in order."""
        if len(self.split.pipelines) == 1:
            return images
        found: dict[int, Tensor] = {}
        for part, views in zip(images, self.split.view_groups, strict=True):
            found |= zip(views, part, strict=True)
        return [found[view] for view in sorted(found)]

    def _decode(self, request: Request, out: Images | None = None, threads: int = 1) -> _Decoded:
        """Decode all views of all samples, and run their transforms."""
        if self.split.is_decoded_only:
            return self._with_small_images(request, self._decode_crops(request, out, threads))
        outcomes, sources, decoded = self._outcomes(request.epoch), *self._sources(request, threads)
        if out is None:
            images = [_empty(shape, self._decoded_dtype) for shape in by_size(self.shape(request))]
        else:
            images = by_size(out)
        decoded = decoded._replace(images=images)
        for view, part in enumerate(self._by_view(images)):
            decoded = self._transform(request, view, outcomes[view], sources[view], part, decoded)
        return self._with_small_images(request, decoded)

    def _with_small_images(self, request: Request, decoded: _Decoded) -> _Decoded:
        """Replace the crops of images that are smaller than torchvision's crop by what its steps make."""
        pipelines = self.split.pipelines
        if decoded.sizes is None or not any(pipeline.least for pipeline in pipelines):
            return decoded
        sizes, status = decoded.sizes, decoded.status.numpy()
        for view, pipeline in enumerate(pipelines):
            if pipeline.least is None or pipeline.runs_python:
                continue
            rows = ((sizes < pipeline.least).any(axis=1) & (status == Status.OK)).nonzero()[0]
            if not len(rows):
                continue
            whole = replace(pipeline, python=pipeline.uncropped, policies=(), least=None)
            outcome = Outcome(whole, torch.uint8, (3, *self._crops(request.epoch)[view].size))
            occurrence = None if request.occurrence is None else request.occurrence[rows]
            small = Request(request.epoch, request.ids[rows], occurrence)
            out = _empty((len(rows), *outcome.shape), self._decoded_dtype)
            undecided = _Decoded([], torch.zeros(len(rows), dtype=torch.int32, device="cpu"), {}, None)
            done = self._transform(small, view, outcome, None, out, undecided)
            self._by_view(decoded.images)[view][torch.from_numpy(rows)] = out
            status[rows] = done.status.numpy()  # shares its memory with decoded.status
            decoded.reasons.update({int(rows[row]): reason for row, reason in done.reasons.items()})
        return decoded

    def _sources(self, request: Request, threads: int = 1) -> tuple[list[Tensor | None], _Decoded]:
        """Return the crops of each view, uint8 [B, 3, H, W]: what transforms take; None for whole images."""
        is_full = [isinstance(pipeline.crop, FullImage) for pipeline in self.split.pipelines]
        if all(is_full):
            status = torch.zeros(len(request.ids), dtype=torch.int32, device="cpu")
            return [None] * len(is_full), _Decoded([], status, {}, None)
        decoded = self._decode_crops(request, None, threads)
        parts = self._by_view(decoded.images)
        return [None if full else part for full, part in zip(is_full, parts, strict=True)], decoded

    def _transform(
        self,
        request: Request,
        view: int,
        outcome: Outcome,
        source: Tensor | None,
        out: Tensor,
        decoded: _Decoded,
    ) -> _Decoded:
        """Run the transform of a view on its crops ``source``, or on whole images, into ``out``, [B, ...]."""
        pipeline, last = outcome.pipeline, self._last_format(outcome)
        occurrence = np.zeros_like(request.ids) if request.occurrence is None else request.occurrence
        first = rng.first_draw(occurrence, view)
        if source is not None:
            draw = partial(self._policy_draws, request, first)
            source = run_policies(pipeline.policies, source, draw)
        if source is not None and not pipeline.runs_python:
            if last is None:
                out.copy_(source)
            else:
                normalised(source, last, out)
            return decoded
        if source is not None:
            source = prepared(pipeline, source)
        results = out
        if last is not None:
            shape = (len(out), *outcome.shape)
            results = _empty(shape, torch.uint8, pipeline.takes_planes)  # most steps keep that order
        draws = rng.uniforms(self.seed, request.epoch, request.ids, 1, _TRANSFORM, first)[:, 0]
        sizes = decoded.sizes if pipeline.least is not None else None
        with own_generators() as seed_all:
            for row, (id, draw) in enumerate(zip(request.ids.tolist(), draws.tolist(), strict=True)):
                if decoded.status[row] != Status.OK:
                    continue
                steps, image = pipeline.python, None if source is None else source[row]
                if sizes is not None and (sizes[row] < pipeline.least).any():
                    steps, image = pipeline.uncropped, None
                if image is None:
                    image, decoded = self._decode_full(id, pipeline.crop, row, decoded)
                    image = None if image is None else prepared(pipeline, image[None], is_whole=True)[0]
                if image is None:
                    continue
                where = partial(where_of, self.shards, id)
                seed_all(int(draw * 2**53), steps)
                result = run_steps(steps, image, where)
                outcome.check(result, where)
                _copy(result, results[row])
        if last is not None:
            normalised(results, last, out)
        return decoded

    def _policy_draws(self, request: Request, first: Int64, number: int, count: int) -> rng.Float64:
        return rng.uniforms(self.seed, request.epoch, request.ids, count, _POLICIES + number, first)

    def _decode_full(
        self, id: int, crop: object, row: int, decoded: _Decoded
    ) -> tuple[Tensor | None, _Decoded]:
        """Decode a whole image, uint8 [3, H, W]; None, and its status in ``decoded``, if that fails."""
        (file,), limit = self.shards.images(np.array([id], np.int64)), self.max_pixels or MAX_PIXELS
        target_of = crop.target if isinstance(crop, FullImage) else FullImage().target
        height, width = image_sizes([file])[0].tolist()
        size = target_of(height, width) if height else (1, 1)
        if max(height * width, size[0] * size[1]) > limit:
            decoded.status[row], decoded.reasons[row] = (
                Status.TOO_LARGE,
                pillow.too_large(height, width, limit),
            )
            return None, decoded
        box = np.array([[0, 0, height, width]], np.int32)
        (image,), (code,) = self._resize(size, [file], box, pixels=PixelFormat())
        decoded.status[row] = code
        content = pillow.JPEG if height else file.numpy().tobytes()
        if code == Status.LATER_VERSION:
            decoded.reasons[row] = pillow.later_version(content)
        if int(code) in _OTHER_FORMAT and not content.startswith(pillow.NATIVE):
            try:
                whole = pillow.open_upright(content, self.max_pixels or pillow.MAX_PIXELS)
            except pillow.RefusedError as error:
                decoded.status[row], decoded.reasons[row] = int(error.status), error.reason
                return None, decoded
            ppm = pillow.as_tensor(pillow.ppm(pillow.to_rgb(whole)))
            box = np.array([[0, 0, whole.height, whole.width]], np.int32)
            size = target_of(whole.height, whole.width)
            (image,), (code,) = self._resize(size, [ppm], box, pixels=PixelFormat())
            decoded.status[row] = code
            decoded = decoded._replace(non_jpeg=row if decoded.non_jpeg is None else decoded.non_jpeg)
        return (image if code == Status.OK else None), decoded

    def _outcomes(self, epoch: int) -> list[Outcome]:
        """Return what the transform of each view returns for the first sample that can be decoded."""
        key = tuple(tuple(crop.size) for crop in self._crops(epoch))
        if key in self._found:
            return self._found[key]
        images, where = self._first_images(epoch)
        pairs = zip(self.split.pipelines, images, strict=True)
        found = [outcome_of(pipeline, image, where, self.seed) for pipeline, image in pairs]
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
        self._found[key] = found
        return found

    def _first_images(self, epoch: int) -> tuple[list[Tensor], Callable[[], str]]:
        """Return an image of each view of the first sample that can be decoded; noise for a stream."""
        pipelines = self.split.pipelines
        ids = np.arange(len(self.shards)) if self.candidates is None else self.candidates
        for id in ids[: 0 if isinstance(self.shards, StreamedSamples) else _MOST_SUBSTITUTES].tolist():
            sources, decoded = self._sources(Request(epoch, np.array([id], np.int64)))
            images = [
                self._decode_full(id, pipeline.crop, 0, decoded)[0] if source is None else source[0]
                for pipeline, source in zip(pipelines, sources, strict=True)
            ]
            if decoded.status[0] == Status.OK:
                return [image for image in images if image is not None], partial(where_of, self.shards, id)
        noise, found = np.random.default_rng(0), []
        for crop in self._crops(epoch):
            size = crop.target(*_NOISE) if isinstance(crop, FullImage) else crop.size
            found.append(torch.from_numpy(noise.integers(0, 256, (*size, 3), np.uint8)).movedim(2, 0))
        return found, lambda: "an image of noise"

    def _decode_crops(self, request: Request, out: Images | None = None, threads: int = 1) -> _Decoded:
        """Decode the crops of all views of all samples: views share what is under several of their boxes."""
        files, limit = self.shards.images(request.ids), self.max_pixels or MAX_PIXELS
        sizes = image_sizes(files).numpy()
        boxes, flips = self.boxes_and_flips(request, sizes)
        shapes, count = by_size(self._crop_shape(request)), len(files)
        if out is None and len(shapes) > 1:
            out = [_empty(shape, self._crop_format.dtype) for shape in shapes]
        flat = None if out is None else of_sizes([part.flatten(0, -4) for part in by_size(out)])
        views = [view for group in self.split.view_groups for view in group]
        places, mirrored = (np.concatenate([each[view] for view in views]) for each in (boxes, flips))
        flat, statuses = self._resize(shapes[0][-2:], files * len(views), places, mirrored, flat, threads)
        flats = by_size(flat)
        status = statuses if len(views) == 1 else statuses.view(len(views), count).amax(0)
        images = [
            part if len(views) == 1 else part.view(shape) for part, shape in zip(flats, shapes, strict=True)
        ]
        reasons, non_jpeg = {}, None
        for row in status.numpy().nonzero()[0].tolist():
            code, file = int(status[row]), files[row]
            if code == Status.TOO_LARGE:
                reasons[row] = pillow.too_large(sizes[row, 0], sizes[row, 1], limit)
            elif code == Status.LATER_VERSION:
                reasons[row] = pillow.later_version(file)
            if sizes[row, 0] or code not in _OTHER_FORMAT:
                continue
            content = file.numpy().tobytes()
            if content.startswith(pillow.NATIVE):
                continue
            try:
                rows = [flat[place : place + 1] for flat in flats for place in range(row, len(flat), count)]
                self._decode_whole(content, request.of_row(row), dict(zip(views, rows, strict=True)))
            except pillow.RefusedError as error:
                status[row], reasons[row] = int(error.status), error.reason
            else:
                status[row], non_jpeg = 0, row if non_jpeg is None else non_jpeg
        return _Decoded(images, status, reasons, non_jpeg, sizes)

    def _decode_whole(self, content: bytes, request: Request, outs: dict[int, Tensor]) -> None:
        """Decode a file that is not a JPEG into ``outs``, [1, C, H, W] by view; raises ``RefusedError``.

        Such files are decoded one at a time: their memory is that of the whole image, not that of the crop.
        """
        image = pillow.open_upright(content, self.max_pixels or pillow.MAX_PIXELS)
        size = np.array([[image.height, image.width]], np.int32)
        for view, (box, flip) in enumerate(zip(*self.boxes_and_flips(request, size), strict=True)):
            top, left, height, width = box[0].tolist()
            part = image.crop((left, top, left + width, top + height))
            gray = part.convert("L") if self.split.channels == 1 else part
            ppm = pillow.as_tensor(pillow.ppm(pillow.to_rgb(gray)))
            whole = np.array([[0, 0, height, width]], np.int32)
            self._resize(outs[view].shape[-2:], [ppm], whole, flip, outs[view])

    def _resize(
        self,
        size: Sequence[int],
        files: list[Tensor],
        boxes: npt.NDArray[np.int32],
        flips: npt.NDArray[np.bool_] | None = None,
        out: Images | None = None,
        threads: int = 1,
        pixels: PixelFormat | None = None,
    ) -> tuple[Images, Tensor]:
        pipelines, pixels = self.split.pipelines, pixels or self._crop_format
        is_flipped = flips is not None and any(pipeline.flip for pipeline in pipelines)
        places, mirrored = torch.from_numpy(boxes), torch.from_numpy(flips) if is_flipped else None
        method: dict[str, Any] = {
            "interpolation": pipelines[0].interpolation,
            "antialias": pipelines[0].antialias,
            "fidelity": self.split.fidelity,
            "mean": pixels.mean,
            "std": pixels.std,
            "max_pixels": self.max_pixels or MAX_PIXELS,
            "threads": threads,
        }
        if isinstance(out, list):
            return out, decode_sizes(files, places, mirrored, out, **method)
        method |= {"channels": self.split.channels, "dtype": pixels.dtype, "out": out}
        return decode_batch(files, places, size, mirrored, **method)

    def _checked(
        self, crop: Crop, boxes: npt.ArrayLike, sizes: npt.NDArray[np.int32], ids: Int64
    ) -> npt.NDArray[np.int32]:
        """Check boxes here, where shard, key and crop are known: the crop may be the user's own."""
        boxes = np.asarray(boxes)
        if boxes.shape != (len(ids), 4) or boxes.dtype.kind not in "iu":
            raise BoxError(
                f"{crop!r}: boxes must be integers [{len(ids)}, 4], got {boxes.dtype} {boxes.shape}"
            )
        corner, size = boxes[:, :2].astype(np.int64), boxes[:, 2:].astype(np.int64)
        is_outside = ((corner < 0) | (size < 1) | (corner + size > sizes)).any(axis=1)
        if is_outside.any():
            row = int(is_outside.argmax())
            height, width = sizes[row].tolist()
            raise BoxError(
                f"{where_of(self.shards, int(ids[row]))}: {crop!r} returned the box (top, left, height, "
                f"width) = {tuple(boxes[row].tolist())}, which is outside the image of {height} x {width}"
            )
        return np.ascontiguousarray(boxes, dtype=np.int32)

    def _substitute(self, request: Request, reason: str) -> tuple[int, list[Tensor]]:
        """Decode another sample for a request of one: a function of seed, epoch, id and occurrence alone."""
        epoch, ids, occurrence = request
        first = 0 if occurrence is None else rng.first_draw(occurrence)
        uniforms = rng.uniforms(self.seed, epoch, ids, _MOST_SUBSTITUTES, _SUBSTITUTE, first)[0]
        count = len(self.shards) if self.candidates is None else len(self.candidates)
        others = (uniforms * count).astype(np.int64)
        for other in others if self.candidates is None else self.candidates[others]:
            decoded = self._decode(Request(epoch, other[None], occurrence))
            self._check_unchanged(other[None])
            if decoded.status[0] == Status.OK:
                return int(other), [self._row(part, 0) for part in decoded.images]
        raise DecodeError(f"{reason}, and none of {_MOST_SUBSTITUTES} others that were drawn can be decoded")


def _copy(image: Tensor, out: Tensor) -> None:
    """Copy the result of a transform; torch takes three times as long for planes to channels_last order."""
    is_planar = image.dtype == torch.uint8 and image.ndim == 3 and image.is_contiguous() and len(image) == 3
    if is_planar and not out.is_contiguous():
        target = out.numpy()
        for channel, plane in enumerate(image.numpy()):
            target[channel] = plane
    else:
        out.copy_(image)


def _empty(shape: Sequence[int], dtype: torch.dtype, is_planar: bool = False) -> Tensor:
    """Return new memory for results: images, [..., 3, H, W], in channels_last order if not ``is_planar``."""
    if len(shape) < 4 or is_planar:
        return torch.empty(shape, dtype=dtype, device="cpu")
    *lead, channels, height, width = shape
    return torch.empty((*lead, height, width, channels), dtype=dtype, device="cpu").movedim(-1, -3)
