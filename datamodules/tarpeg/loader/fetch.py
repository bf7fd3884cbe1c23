"""From sample ids to a decoded batch: the work that a worker does per batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DecodeError, ShardError, Status
from ..ops.decode import MAX_PIXELS, decode_batch, image_sizes
from ..sampling import rng
from ..sampling.crops import Crop, crop_at
from ..sampling.rng import Int64
from ..sampling.sampler import Request
from ..shards import pillow
from ..shards.labels import Samples, read_extra, read_labels, where_of
from ..shards.mapped import Shards
from ..shards.stream import StreamRequest
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

# Streams of random numbers: no two uses of a sample's numbers are correlated.
_CROP, _SUBSTITUTE = 0, 1
_MOST_SUBSTITUTES = 20
# The native decoder's judgement of a file that Pillow may decode; JPEGs never are, and a PPM may be.
_OTHER_FORMAT = (Status.NOT_AN_IMAGE, Status.CORRUPT, Status.UNSUPPORTED)


class BoxError(ValueError):
    """A crop's boxes that are malformed or outside their images."""


class _Decoded(NamedTuple):
    """``images``: per size [B, C, H, W] or [views, B, C, H, W]. ``status``: [B].

    ``reasons``: by row, if known. ``non_jpeg``: the first row that Pillow decoded.
    """

    images: list[Tensor]
    status: Tensor
    reasons: dict[int, str]
    non_jpeg: int | None


@dataclass
class Fetcher:
    """Reads and decodes the samples of one split. Can be pickled.

    ``candidates``: ids of the samples that may replace a broken image, all if it is None. A
    ``StreamRequest`` brings its samples; they replace ``shards`` and ``candidates``. ``max_pixels``: see
    ``LoaderConfig``.
    """

    shards: Samples
    split: Split
    seed: int
    on_error: OnError
    keys: bool
    pixels: PixelFormat = field(default_factory=PixelFormat)
    candidates: Int64 | None = None
    max_pixels: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Type of the images."""
        return self.pixels.dtype

    def shape(self, request: Request | StreamRequest) -> Shape:
        """Shape of the images of ``request``; a list of shapes for views of several sizes."""
        crops, count = self._crops(request.epoch), len(request.ids)
        groups = self.split.view_groups()
        shapes = [
            (len(views), count, self.split.channels, *map(int, crops[views[0]].size)) for views in groups
        ]
        return shapes[0][1:] if len(crops) == 1 else of_sizes(shapes)

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
        for view, crop in enumerate(self._crops(request.epoch)):
            first = rng.first_draw(occurrence, view)
            uniforms = rng.uniforms(self.seed, request.epoch, request.ids, crop.draws + 1, _CROP, first)
            boxes.append(np.zeros((len(sizes), 4), np.int32))
            if known.any():
                drawn = crop.boxes(sizes[known], uniforms[known, 1:])
                boxes[-1][known] = self._checked(crop, drawn, sizes[known], request.ids[known])
            flips.append(uniforms[:, 0] < self.split.flip)
        return boxes, flips

    def _fetch(self, request: Request, out: Images | None, threads: int) -> FetchResult:
        pixels, ids = self.pixels, np.array(request.ids)
        decoded = out if pixels.augment is None else None
        images, status, reasons, first = self._decode(request, decoded, threads)
        non_jpeg = None if first is None else f"{where_of(self.shards, int(ids[first]))} is not a JPEG"
        substituted = []
        for row in status.numpy().nonzero()[0].tolist():
            code = Status(int(status[row]))
            reason = f"{where_of(self.shards, int(ids[row]))}: image is {code.name} ({code:d})"
            reason += f": {reasons[row]}" if row in reasons else ""
            if self.on_error == "raise":
                raise DecodeError(f"{reason}; on_error='substitute' replaces it by another sample")
            ids[row], others = self._substitute(request.of_row(row), reason)
            for part, other in zip(images, others, strict=True):
                part[..., row, :, :, :] = other
            substituted.append(f"{reason}; {self.shards.key(int(ids[row]))!r} takes its place")
        if pixels.augment is not None:
            distorted = request if pixels.distorts else None
            views = self.split.view_groups()
            images = augment_images(pixels.augment, images, self.seed, distorted, out, views)
        return FetchResult(self._batch(of_sizes(images), ids), substituted, non_jpeg)

    def _check_unchanged(self, ids: Int64) -> None:
        if isinstance(self.shards, Shards):
            self.shards.check_unchanged(ids)

    def _batch(self, images: Images, ids: Int64) -> AnyBatch:
        members, label = tuple(self.split.members), read_labels(self.shards, ids, self.split.target)
        if not self.keys and not members:
            return Batch(images, label)
        keys = [self.shards.key(int(id)) for id in ids]
        if not members:
            return KeyedBatch(images, label, keys)
        return ExtraBatch(images, label, keys, read_extra(self.shards, ids, members, self.split.decode))

    def _crops(self, epoch: int) -> list[Crop]:
        return [crop_at(crop, epoch) for crop in self.split.view_crops()]

    def _decode(self, request: Request, out: Images | None = None, threads: int = 1) -> _Decoded:
        """Decode all views of all samples, those of one size in one call."""
        files, limit = self.shards.images(request.ids), self.max_pixels or MAX_PIXELS
        sizes = image_sizes(files).numpy()
        boxes, flips = self.boxes_and_flips(request, sizes)
        groups, count = self.split.view_groups(), len(files)
        outs = [None] * len(groups) if out is None else by_size(out)
        status, images = torch.zeros(count, dtype=torch.int32, device="cpu"), []
        rows_of_views: dict[int, Tensor] = {}
        for views, shape, part in zip(groups, by_size(self.shape(request)), outs, strict=True):
            places, mirrored = (np.concatenate([each[view] for view in views]) for each in (boxes, flips))
            flat = None if part is None else part.flatten(0, -4)
            flat, statuses = self._resize(shape[-2:], files * len(views), places, mirrored, flat, threads)
            status = torch.maximum(status, statuses.view(len(views), count).amax(0))
            images.append(flat if len(boxes) == 1 else flat.view(shape))
            rows_of_views |= {view: flat[place * count :] for place, view in enumerate(views)}
        large = (status == Status.TOO_LARGE).nonzero()[:, 0].tolist()
        reasons = {row: pillow.too_large(sizes[row, 0], sizes[row, 1], limit) for row in large}
        non_jpeg = None
        for row in (sizes[:, 0] == 0).nonzero()[0].tolist():
            content = files[row].numpy().tobytes()
            if content.startswith(pillow.JPEG) or int(status[row]) not in _OTHER_FORMAT:
                continue
            try:
                rows = [rows_of_views[view][row : row + 1] for view in range(len(boxes))]
                self._decode_whole(content, request.of_row(row), rows)
            except pillow.RefusedError as error:
                status[row], reasons[row] = int(error.status), error.reason
            else:
                status[row], non_jpeg = 0, row if non_jpeg is None else non_jpeg
        return _Decoded(images, status, reasons, non_jpeg)

    def _decode_whole(self, content: bytes, request: Request, outs: list[Tensor]) -> None:
        """Decode a file that is not a JPEG into ``outs``, [1, C, H, W] per view; raises ``RefusedError``.

        Such files are decoded one at a time: their memory is that of the whole image, not that of the crop.
        """
        image = pillow.open_upright(content, self.max_pixels or pillow.MAX_PIXELS)
        size = np.array([[image.height, image.width]], np.int32)
        for box, flip, out in zip(*self.boxes_and_flips(request, size), outs, strict=True):
            top, left, height, width = box[0].tolist()
            part = image.crop((left, top, left + width, top + height))
            gray = part.convert("L") if self.split.channels == 1 else part
            ppm = pillow.as_tensor(pillow.ppm(pillow.to_rgb(gray)))
            whole = np.array([[0, 0, height, width]], np.int32)
            self._resize(out.shape[-2:], [ppm], whole, flip, out, 1)

    def _resize(
        self,
        size: Sequence[int],
        files: list[Tensor],
        boxes: npt.NDArray[np.int32],
        flips: npt.NDArray[np.bool_],
        out: Tensor | None,
        threads: int,
    ) -> tuple[Tensor, Tensor]:
        return decode_batch(
            files,
            torch.from_numpy(boxes),
            size,
            torch.from_numpy(flips) if self.split.flip else None,
            channels=self.split.channels,
            interpolation=self.split.interpolation,
            fidelity=self.split.fidelity,
            mean=self.pixels.mean,
            std=self.pixels.std,
            dtype=self.dtype if self.pixels.augment is None else torch.uint8,
            max_pixels=self.max_pixels or MAX_PIXELS,
            out=out,
            threads=threads,
        )

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
                return int(other), [part[..., 0, :, :, :] for part in decoded.images]
        raise DecodeError(f"{reason}, and none of {_MOST_SUBSTITUTES} others that were drawn can be decoded")
