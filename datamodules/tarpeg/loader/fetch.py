"""From sample ids to a decoded batch: what a worker does once a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DecodeError, ShardError, Status
from ..ops.decode import Interpolation, decode_batch, image_sizes
from ..sampling import rng
from ..sampling.crops import Crop, Progressive, crop_at
from ..sampling.sampler import Request, Sampler
from ..shards import pillow
from ..shards.labels import Decode, Samples, Target, read_extra, read_labels, where_of
from . import batch
from .batch import AnyBatch, Batch, ExtraBatch, FetchResult, KeyedBatch
from .buffers import image_bytes
from .config import OnError, PixelFormat
from .split import Split

Int64 = npt.NDArray[np.int64]

# Streams of randomness, so that no two uses of a sample's numbers are correlated.
_CROP, _SUBSTITUTE = 0, 1
_MOST_SUBSTITUTES = 20


class BoxError(ValueError):
    """A crop that asks for pixels which its image does not have."""


@dataclass
class Fetcher:
    """Reads and decodes the samples of one split; pickles, so that a worker process can have it."""

    shards: Samples
    crops: tuple[Crop | Progressive, ...]
    flip: float
    target: Target
    seed: int
    on_error: OnError
    keys: bool
    members: tuple[str, ...] = ()
    decode: Decode | None = None
    candidates: Int64 | None = None
    interpolation: Interpolation = "bilinear"
    pixels: PixelFormat = field(default_factory=PixelFormat)

    @classmethod
    def of(
        cls, shards: Samples, split: Split, order: Sampler | None, *, seed: int, on_error: OnError, keys: bool
    ) -> Fetcher:
        """Make the fetcher of a split; what stands in for a broken image is one of the order's samples."""
        return cls(
            shards,
            split.view_crops(),
            split.flip,
            split.target,
            seed,
            on_error,
            keys,
            tuple(split.members),
            split.decode,
            None if order is None else order.candidates(),
            split.interpolation,
        )

    @property
    def dtype(self) -> torch.dtype:
        """The type of the images."""
        return self.pixels.dtype

    def shape(self, request: Request) -> tuple[int, ...]:
        """Tell the shape of the images that ``request`` is answered with."""
        crops = self._crops(request.epoch)
        shape = (len(request.ids), 3, *crops[0].size)
        return shape if len(crops) == 1 else (len(crops), *shape)

    def nbytes(self, request: Request) -> int:
        """Tell how many bytes the images take that ``request`` is answered with."""
        return image_bytes(self.shape(request), self.dtype)

    def fetch(self, request: Request, out: Tensor | None = None, threads: int = 1) -> FetchResult:
        """Read, decode, crop and resize the samples of ``request``; the same bytes wherever it is called.

        ``out``: memory for the images, of ``shape(request)`` and ``dtype``, each in channels_last order.
        ``threads``: how many decode.
        """
        try:
            return self._fetch(request, out, threads)
        except (DecodeError, ShardError, BoxError) as error:
            return FetchResult(None, [], None, error)

    def _fetch(self, request: Request, out: Tensor | None, threads: int) -> FetchResult:
        ids = np.array(request.ids)
        occurrence = np.zeros_like(ids) if request.occurrence is None else request.occurrence
        pixels = self.pixels
        decoded = out if pixels.augment is None else None
        images, status, told = self._decode(request.epoch, ids, occurrence, decoded, threads)
        substituted = []
        for row in torch.nonzero(status).flatten().tolist():
            reason = f"{where_of(self.shards, int(ids[row]))}: image is {_named(int(status[row]))}"
            if self.on_error == "raise":
                raise DecodeError(f"{reason}; on_error='substitute' takes another sample in its place")
            ids[row], another = self._substitute(request.epoch, ids[[row]], occurrence[[row]], reason)
            images[..., row, :, :, :] = another
            substituted.append(f"{reason}; {self.shards.key(int(ids[row]))!r} takes its place")
        if pixels.augment is not None:
            distorted = request if pixels.distorts else None
            images = batch.augment_images(pixels.augment, images, self.seed, distorted, out)
        return FetchResult(self._batch(images, ids), substituted, told, request=request)

    def _batch(self, images: Tensor, ids: Int64) -> AnyBatch:
        label = read_labels(self.shards, ids, self.target)
        if not self.keys and not self.members:
            return Batch(images, label)
        keys = [self.shards.key(int(id)) for id in ids]
        if not self.members:
            return KeyedBatch(images, label, keys)
        return ExtraBatch(images, label, keys, read_extra(self.shards, ids, self.members, self.decode))

    def _crops(self, epoch: int) -> list[Crop]:
        return [crop_at(crop, epoch) for crop in self.crops]

    def _decode(
        self, epoch: int, ids: Int64, occurrence: Int64, out: Tensor | None = None, threads: int = 1
    ) -> tuple[Tensor, Tensor, str | None]:
        """Decode the views of each sample: images [B, 3, H, W] or [views, B, 3, H, W], status [B]."""
        files, told = self.shards.images(ids), None
        sizes = image_sizes(files).numpy()
        unknown = np.flatnonzero(sizes[:, 0] == 0)
        for row in unknown.tolist():
            ppm = pillow.to_ppm(files[row])
            if ppm is not None:
                told = told or f"{where_of(self.shards, int(ids[row]))} is no JPEG"
                files[row] = ppm
        if len(unknown):
            sizes = image_sizes(files).numpy()
        crops = self._crops(epoch)
        boxes, flips = self.boxes_and_flips(Request(epoch, ids, occurrence), sizes)
        flip = torch.from_numpy(np.concatenate(flips)) if self.flip else None
        views = len(crops)
        images, status = decode_batch(
            files * views,
            torch.from_numpy(np.concatenate(boxes)),
            crops[0].size,
            flip,
            interpolation=self.interpolation,
            mean=self.pixels.mean,
            std=self.pixels.std,
            dtype=self.pixels.decoded,
            out=out if out is None or views == 1 else out.flatten(0, 1),
            threads=threads,
        )
        if views > 1:
            images = images.view(views, len(ids), *images.shape[1:]) if out is None else out
            status = status.view(views, len(ids)).amax(0)
        return images, status, told

    def boxes_and_flips(
        self, request: Request, sizes: npt.NDArray[np.int32]
    ) -> tuple[list[npt.NDArray[np.int32]], list[npt.NDArray[np.bool_]]]:
        """Tell the boxes [B, 4] and the flips [B] of each view, for images of those sizes [B, 2]."""
        occurrence = np.zeros_like(request.ids) if request.occurrence is None else request.occurrence
        boxes, flips = [], []
        for view, crop in enumerate(self._crops(request.epoch)):
            first = rng.first_draw(occurrence, view)
            draws = rng.uniforms(self.seed, request.epoch, request.ids, crop.draws + 1, _CROP, first)
            wish = np.asarray(crop.boxes(sizes, draws[:, 1:]))
            boxes.append(self._checked(crop, wish, sizes, request.ids))
            flips.append(rng.flips(draws[:, 0], self.flip))
        return boxes, flips

    def _checked(
        self, crop: Crop, boxes: npt.NDArray[np.generic], sizes: npt.NDArray[np.int32], ids: Int64
    ) -> npt.NDArray[np.int32]:
        """Name the sample whose box is outside its image: the crop may be the user's own."""
        if boxes.shape != (len(ids), 4) or boxes.dtype.kind not in "iu":
            raise BoxError(
                f"{crop!r}: boxes must be integers [{len(ids)}, 4], got {boxes.dtype} {boxes.shape}"
            )
        place, size = boxes[:, :2].astype(np.int64), boxes[:, 2:].astype(np.int64)
        is_outside = ((place < 0) | (size < 1) | (place + size > sizes)).any(axis=1) & (sizes[:, 0] > 0)
        for row in np.flatnonzero(is_outside).tolist():
            height, width = sizes[row].tolist()
            raise BoxError(
                f"{where_of(self.shards, int(ids[row]))}: {crop!r} asks for the box (top, left, height, "
                f"width) = {tuple(boxes[row].tolist())}, which is outside the image of {height} x {width}"
            )
        return np.ascontiguousarray(boxes, dtype=np.int32)

    def _substitute(self, epoch: int, id: Int64, occurrence: Int64, reason: str) -> tuple[int, Tensor]:
        """Decode another sample, chosen by (seed, epoch, id, occurrence) alone: every run takes the same."""
        draws = rng.uniforms(
            self.seed, epoch, id, _MOST_SUBSTITUTES, _SUBSTITUTE, rng.first_draw(occurrence)
        )[0]
        places = (draws * (len(self.shards) if self.candidates is None else len(self.candidates))).astype(
            np.int64
        )
        for other in places if self.candidates is None else self.candidates[places]:
            images, status, _ = self._decode(epoch, other[None], occurrence)
            if status[0] == Status.OK:
                return int(other), images[..., 0, :, :, :]
        raise DecodeError(f"{reason}, and none of {_MOST_SUBSTITUTES} drawn to take its place can be decoded")


def _named(status: int) -> str:
    return f"{Status(status).name} ({status})"
