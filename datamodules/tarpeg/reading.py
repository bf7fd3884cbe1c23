"""From sample ids to a decoded batch: what a worker does once a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import foreign, ops, sampling
from .batch import Answer, Batch, KeyedBatch, OnError, Request
from .crops import Crop
from .errors import DecodeError, ShardError, Status
from .shards import Shards

# Streams of randomness, so that no two uses of a sample's numbers are correlated.
_CROP, _SUBSTITUTE = 0, 1
_MOST_SUBSTITUTES = 20


class BoxError(ValueError):
    """A crop that asks for pixels which its image does not have."""


@dataclass
class Reader:
    """A map-style data set for ``torch.utils.data.DataLoader`` that is asked for whole batches."""

    shards: Shards
    crop: Crop
    flip: float
    target: str | None
    seed: int
    on_error: OnError
    keys: bool

    def __getitems__(self, request: Request) -> Answer:
        """Read, decode, crop and resize the samples of ``request``; the same bytes wherever it is called."""
        try:
            return self._answer(request)
        except (DecodeError, ShardError, BoxError) as error:
            return Answer(None, [], None, error)

    def _answer(self, request: Request) -> Answer:
        ids = np.array(request.ids)
        images, status, told = self._decode(request.epoch, ids)
        substituted = []
        for row in torch.nonzero(status).flatten().tolist():
            reason = f"{self._where(int(ids[row]))}: image is {_named(int(status[row]))}"
            if self.on_error == "raise":
                raise DecodeError(f"{reason}; on_error='substitute' takes another sample in its place")
            ids[row], images[row] = self._substitute(request.epoch, int(ids[row]), reason)
            substituted.append(f"{reason}; {self.shards.key(int(ids[row]))!r} takes its place")
        label = self._labels(ids)
        if self.keys:
            batch = KeyedBatch(images, label, [self.shards.key(int(id)) for id in ids])
            return Answer(batch, substituted, told)
        return Answer(Batch(images, label), substituted, told)

    def _labels(self, ids: npt.NDArray[np.int64]) -> Tensor:
        if self.target is None:
            return torch.full((len(ids),), -1)
        return self.shards.labels(ids, self.target)

    def _decode(self, epoch: int, ids: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor, str | None]:
        files, told = self.shards.images(ids), None
        sizes = ops.image_sizes(files).numpy()
        unknown = np.flatnonzero(sizes[:, 0] == 0)
        for row in unknown.tolist():
            ppm = foreign.to_ppm(files[row])
            if ppm is not None:
                told = told or f"{self._where(int(ids[row]))} is no JPEG"
                files[row] = ppm
        if len(unknown):
            sizes = ops.image_sizes(files).numpy()
        draws = sampling.uniforms(self.seed, epoch, ids, self.crop.draws + 1, _CROP)
        boxes = self._checked(np.asarray(self.crop.boxes(sizes, draws[:, 1:])), sizes, ids)
        flip = torch.from_numpy(sampling.flips(draws[:, 0], self.flip)) if self.flip else None
        return *ops.decode_batch(files, torch.from_numpy(boxes), self.crop.size, flip), told

    def _checked(
        self, boxes: npt.NDArray[np.generic], sizes: npt.NDArray[np.int32], ids: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """Name the sample whose box is outside its image: the crop may be the user's own."""
        if boxes.shape != (len(ids), 4) or boxes.dtype.kind not in "iu":
            raise BoxError(
                f"{self.crop!r}: boxes must be integers [{len(ids)}, 4], got {boxes.dtype} {boxes.shape}"
            )
        place, size = boxes[:, :2].astype(np.int64), boxes[:, 2:].astype(np.int64)
        is_outside = ((place < 0) | (size < 1) | (place + size > sizes)).any(axis=1) & (sizes[:, 0] > 0)
        for row in np.flatnonzero(is_outside).tolist():
            height, width = sizes[row].tolist()
            raise BoxError(
                f"{self._where(int(ids[row]))}: {self.crop!r} asks for the box (top, left, height, width) = "
                f"{tuple(boxes[row].tolist())}, which is outside the image of {height} x {width}"
            )
        return np.ascontiguousarray(boxes, dtype=np.int32)

    def _substitute(self, epoch: int, id: int, reason: str) -> tuple[int, Tensor]:
        """Decode another sample, chosen by (seed, epoch, id) alone, so that every run takes the same one."""
        draws = sampling.uniforms(self.seed, epoch, [id], _MOST_SUBSTITUTES, _SUBSTITUTE)[0]
        for other in (draws * len(self.shards)).astype(np.int64).tolist():
            images, status, _ = self._decode(epoch, np.array([other]))
            if status[0] == Status.OK:
                return other, images[0]
        raise DecodeError(f"{reason}, and none of {_MOST_SUBSTITUTES} drawn to take its place can be decoded")

    def _where(self, id: int) -> str:
        return f"shard {self.shards.shard(id)}, key {self.shards.key(id)!r}"


def _named(status: int) -> str:
    return f"{Status(status).name} ({status})"
