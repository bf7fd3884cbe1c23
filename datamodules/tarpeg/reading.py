"""From sample ids to a decoded batch: what a worker does once a batch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import foreign, ops, sampling
from .batch import Batch, KeyedBatch, OnError, Request
from .crops import Crop
from .errors import DecodeError, Status
from .shards import Shards

# Streams of randomness, so that no two uses of a sample's numbers are correlated.
_CROP, _SUBSTITUTE = 0, 1
_MOST_SUBSTITUTES = 20


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
    _told: bool = False

    def __getitems__(self, request: Request) -> Batch | KeyedBatch:
        """Read, decode, crop and resize the samples of ``request``; the same bytes wherever it is called."""
        ids = np.array(request.ids)
        images, status = self._decode(request.epoch, ids)
        for row in torch.nonzero(status).flatten().tolist():
            reason = self._reason(int(ids[row]), int(status[row]))
            if self.on_error == "raise":
                raise DecodeError(f"{reason}; on_error='substitute' takes another sample in its place")
            ids[row], images[row] = self._substitute(request.epoch, int(ids[row]), reason)
        label = self._labels(ids)
        if self.keys:
            return KeyedBatch(images, label, [self.shards.key(int(id)) for id in ids])
        return Batch(images, label)

    def _labels(self, ids: npt.NDArray[np.int64]) -> Tensor:
        if self.target is None:
            return torch.full((len(ids),), -1)
        return self.shards.labels(ids, self.target)

    def _decode(self, epoch: int, ids: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        files = self.shards.images(ids)
        sizes = ops.image_sizes(files).numpy()
        unknown = np.flatnonzero(sizes[:, 0] == 0)
        for row in unknown.tolist():
            ppm = foreign.to_ppm(files[row])
            if ppm is not None:
                self._tell(int(ids[row]))
                files[row] = ppm
        if len(unknown):
            sizes = ops.image_sizes(files).numpy()
        draws = sampling.uniforms(self.seed, epoch, ids, self.crop.draws + 1, _CROP)
        boxes = torch.from_numpy(np.ascontiguousarray(self.crop.boxes(sizes, draws[:, 1:])))
        flip = torch.from_numpy(sampling.flips(draws[:, 0], self.flip)) if self.flip else None
        return ops.decode_batch(files, boxes, self.crop.size, flip)

    def _substitute(self, epoch: int, id: int, reason: str) -> tuple[int, Tensor]:
        """Decode another sample, chosen by (seed, epoch, id) alone, so that every run takes the same one."""
        draws = sampling.uniforms(self.seed, epoch, [id], _MOST_SUBSTITUTES, _SUBSTITUTE)[0]
        for other in (draws * len(self.shards)).astype(np.int64).tolist():
            images, status = self._decode(epoch, np.array([other]))
            if status[0] == Status.OK:
                warnings.warn(f"{reason}; {self.shards.key(other)} takes its place", stacklevel=2)
                return other, images[0]
        raise DecodeError(f"{reason}, and so are {_MOST_SUBSTITUTES} others that were to take its place")

    def _reason(self, id: int, status: int) -> str:
        named = Status(status)
        return f"shard {self.shards.shard(id)}, key {self.shards.key(id)}: image is {named.name} ({status})"

    def _tell(self, id: int) -> None:
        if not self._told:
            self._told = True
            warnings.warn(
                f"shard {self.shards.shard(id)}, key {self.shards.key(id)} is no JPEG: such images are "
                "decoded by Pillow, several times slower than a JPEG (told once)",
                stacklevel=2,
            )
