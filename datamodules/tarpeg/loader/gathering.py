"""The worker's side of ``decode="device"``: it gathers tiles under crops, and decodes what has none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ShardError, Status
from ..ops.decode import image_sizes
from ..ops.gather import ALIGN, Gathered, gather_tiles
from ..sampling.geometry import Int32, View
from ..sampling.rng import Int64
from ..sampling.sampler import Request
from ..shards.mapped import Shards
from ..shards.source import where_of
from ..shards.spans import Spans
from .batch import Decoded, Encoded, FetchResult, Images, Piece, Pieces, Shape, by_size
from .config import LoaderConfig
from .drawing import Size
from .fetch import OF_THE_RESULT, Fetcher, Place
from .resize_first import crops_behind_a_resize
from .split import Split
from .workers import end_if_forked

# Bytes of an image beside its tiles: its record, its tables, and what pads its tiles.
_RECORD = 4096
# Bytes of the table of the Lanczos filter, which is in the data of each size.
_LANCZOS = 1 << 15
# The gathered tiles of an image take at most so many times the bytes of its pixels, or so many bytes for each
# view, on average over a batch.
_MOST_PIXELS, _MOST_BYTES = 4, 1 << 18
# Of the mean bytes of an encoded image: a batch may have larger ones, and tiles are padded.
_SPREAD = 1.5
# Samples that are looked at when a loader is made, until one has tiles.
_MOST_TRIED = 20
_TILES = "tarpeg.build_cache makes tiles of JPEGs, and of other formats by a codec with quality=95"


def gathering(fetcher: Any, config: LoaderConfig) -> Any:
    """Return what workers fetch with: the fetcher itself, or with ``decode="device"`` one that gathers."""
    return GatheringFetcher.of(fetcher) if config.decodes_on_device else fetcher


class GatheringFetcher(Fetcher):
    """Fetches batches whose images have yet to be decoded, see ``GatheredImages``. Can be pickled.

    The memory of a batch has room for all of its pixels and, behind them, for what is gathered. Rows that
    cannot be gathered, and the samples that replace others, are decoded here as by a ``Fetcher``.
    """

    @classmethod
    def of(cls, fetcher: Any) -> GatheringFetcher:
        """Return what gathers the samples that a fetcher decodes."""
        return cls(**{each.name: getattr(fetcher, each.name) for each in fields(fetcher)})

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.shards)
        self._mean_bytes = _SPREAD * self.shards.total_bytes / count if count else 0.0

    def nbytes(self, request: Request) -> int:
        """Bytes of the memory of as many samples as ``request`` has, at most."""
        sizes = self.drawing.largest(request.epoch) if request.size is None else self.drawing.sizes(request)
        return super().nbytes(request) + self._room(sizes, len(request.ids))

    def check(self, name: str) -> None:
        """Raise ValueError if none of the first samples can be gathered.

        Args:
            name: Of the split, in messages.
        """
        ids = np.arange(len(self.shards)) if self.candidates is None else self.candidates
        chosen = ids[:: max(1, len(ids) // _MOST_TRIED)][:_MOST_TRIED]
        first = ""
        for id in chosen.tolist():
            request = Request(0, np.array([id], np.int64))
            try:
                status = self.gather(name, request)
            except OF_THE_RESULT:
                continue
            if status[0] == Status.OK:
                return
            code = Status(int(status[0])).name
            first = (
                first or f"{where_of(self.shards, id)}: the image has no tiles that can be gathered ({code})"
            )
        if first:
            raise ValueError(
                f"decode='device': {first}, nor has any other of {len(chosen)} of {name}. "
                "Rewrite the shards once, tarpeg.build_cache(source, dest, codec=tarpeg.Packed()) or "
                "tarpeg.Tiled(), and give shards=dest; or give decode='cpu'"
            )

    def gather(self, name: str, request: Request) -> Tensor:
        """Gather the crops of some samples on this thread; return the ``Status`` of those of the first size.

        Args:
            name: Of the split, in messages.
            request: Asks for the samples.

        Raises:
            ValueError: If the crop pads.
        """
        files, known = self._read_spans(request)
        views = self.drawing.views(request, known, self.drawing.sizes(request))
        if self.drawing.places(views, range(len(views)), request) is not None:
            raise ValueError(
                f"{name} has crop={self.split.crop!r}, which pads: its images are decoded by the "
                "workers only. Give another crop, or decode='cpu'"
            )
        return self._gathered(files, views, 1)[0].status

    def _fetch(
        self, request: Request, out: Images | Place | None, threads: int, distorted: Request
    ) -> FetchResult:
        """Gather the tiles of a batch into the memory of a loader; for others, decode the images."""
        if not callable(out):
            return super()._fetch(request, out, threads, distorted)
        sizes, count = self.drawing.sizes(request), len(request.ids)
        labels = self.read_labels(request.ids)
        files, known = self._read_spans(request)
        views = self.drawing.views(request, known, sizes)
        end_if_forked()  # a source and a crop may be the user's own
        slot: Shape = [*by_size(self._crop_shape(sizes, count)), (self._room(sizes, count),)]
        *images, memory = out(slot)
        pieces, status = self._gather(request, files, known, views, memory, threads)
        decoded = Decoded(images, status, nbytes=int(files.nbytes.sum()))
        rows = status.numpy().nonzero()[0]
        if len(rows):
            encoded = Encoded(request.rows(rows), files.tensors(rows.tolist()), known[rows])
            self._decode_rows(encoded, views, rows, decoded, threads)
        made = self.made_of(request, views, decoded, threads)
        broken = [row for row, value in enumerate(made.values) if isinstance(value, ShardError)]
        result = self.assemble(request, sizes, labels, made, None, distorted)
        pieces.rows = sorted({*rows.tolist(), *broken})
        result.gathered = pieces
        return result

    def _read_spans(self, request: Request) -> tuple[Spans, Int32]:
        """Read the encoded images and their sizes, as ``read``, without a tensor of each."""
        shards: Any = self.shards
        has_spans = getattr(type(shards), "images", None) is Shards.images  # it is not a user's own
        files = shards.spans(request.ids) if has_spans else Spans.of(shards.images(request.ids))
        return files, image_sizes(files.memory, torch.from_numpy(files.places)).numpy()

    def _gather(
        self, request: Request, given: Spans, sizes: Int32, views: list[View], memory: Tensor, threads: int
    ) -> tuple[Pieces, Tensor]:
        """Gather the tiles of all views into ``memory``; return their places, and a status of each sample.

        Images that have no room are not gathered.
        """
        pieces, files, count = Pieces(begin=-memory.data_ptr() % ALIGN), given, len(given)
        memory = memory[pieces.begin :]
        order = [number for group in self.split.view_groups for number in group]
        if self.drawing.places(views, order, request) is not None:  # a crop that pads
            return pieces, _not_gathered(count)
        while True:
            gathered = self._gathered(files, views, threads, memory)
            needed = sum(_aligned(each.data.shape[0]) for each in gathered)
            if needed <= memory.shape[0]:
                break
            if not files.nbytes.any():  # no room for what is beside the tiles
                pieces.note = self._note(int(request.ids[0]), is_left_out=True)
                return pieces, _not_gathered(count)
            files = _without_largest(files, sizes, views, memory.shape[0] / needed)
        end = 0
        for each in gathered:
            pieces.places.append(Piece(end, each.data.shape[0], each.work, each.chunks))
            end += _aligned(each.data.shape[0])
        pieces.end = pieces.begin + end
        status = gathered[0].status
        if len(views) > 1:
            status = torch.cat([each.status.view(-1, count) for each in gathered]).amax(0)
        for row in status.numpy().nonzero()[0].tolist()[:1]:
            is_left_out = bool(files.nbytes[row] < given.nbytes[row])
            pieces.note = self._note(int(request.ids[row]), is_left_out=is_left_out)
        return pieces, status

    def _gathered(
        self, files: Spans, views: Sequence[View], threads: int, memory: Tensor | None = None
    ) -> list[Gathered]:
        """Gather the views of each size, into ``memory`` as long as there is room."""
        found = []
        for group in self.split.view_groups:
            boxes = torch.from_numpy(np.concatenate([views[number].boxes for number in group]))
            flips = torch.from_numpy(np.concatenate([views[number].flips for number in group]))
            size = views[group[0]].size
            options = {"channels": self.split.channels, "threads": threads, **self.decoding}
            places = torch.from_numpy(np.tile(files.places, len(group)))
            found.append(gather_tiles(files.memory, boxes, size, flips, places=places, out=memory, **options))
            if memory is not None:
                memory = memory[_aligned(found[-1].data.shape[0]) :]
        return found

    def _decode_rows(
        self, encoded: Encoded, views: list[View], rows: Int64, decoded: Decoded, threads: int
    ) -> None:
        """Decode the samples of some rows into the images of ``decoded``, and note what became of them."""
        drawn = [view.rows(rows) for view in views]
        found = self._decode_crops(encoded, drawn, None, threads)
        numbers = torch.from_numpy(rows)
        decoded.status[numbers] = found.status
        for part, images in zip(decoded.images, found.images, strict=True):
            part.index_copy_(part.ndim - 4, numbers, images)
        decoded.reasons = {int(rows[place]): reason for place, reason in found.reasons.items()}
        if found.non_jpeg is not None:
            decoded.non_jpeg = int(rows[found.non_jpeg])
        for place in np.flatnonzero(encoded.sizes[:, 0] == 0).tolist():  # drawn when Pillow had the size
            for view, other in zip(views, drawn, strict=True):
                view.put(int(rows[place]), other.rows([place]))

    def _note(self, id: int, *, is_left_out: bool) -> str:
        """Return the warning about a sample that a worker decodes; for want of room if ``is_left_out``."""
        reason, advice = "it has no tiles that can be gathered", _TILES
        if is_left_out:
            reason = "its tiles have no room in the memory of the batch"
            advice = "A cache with shorter= has smaller images"
        return (
            f"{where_of(self.shards, id)}: with decode='device' a worker decodes this image and sends its "
            f"pixels, because {reason} (further ones are not reported). {advice}"
        )

    def _room(self, sizes: Sequence[Size], count: int) -> int:
        """Bytes for what is gathered of ``count`` samples: pages that are never touched take no memory."""
        pixels = self.split.channels * sum(map(math.prod, sizes))
        most = max(_MOST_PIXELS * pixels, _MOST_BYTES * len(sizes))
        mean = min(len(sizes) * (self._mean_bytes or math.inf), most)
        beside = _LANCZOS * len(sizes) if self.decoding["interpolation"] == "lanczos" else 0
        return int(count * (mean + len(sizes) * _RECORD)) + beside + 2 * ALIGN


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def _not_gathered(count: int) -> Tensor:
    return torch.full((count,), int(Status.NOT_GATHERED), dtype=torch.int32)


def _without_largest(files: Spans, sizes: Int32, views: Sequence[View], share: float) -> Spans:
    """Return the files, empty where most is gathered: the others are about this share of all.

    An empty file is not gathered. At least one more becomes empty.
    """
    shown = sum(view.boxes[:, 2:].prod(axis=1, dtype=np.float64) for view in views)
    whole = np.maximum(sizes.prod(axis=1, dtype=np.float64), 1)
    places = files.places.copy()
    nbytes = places[2].astype(np.float64)
    estimates = np.where(nbytes > 0, nbytes * shown / whole + _RECORD, 0.0)
    total = estimates.sum()
    left = share * total
    for row in np.argsort(-estimates, kind="stable").tolist():
        places[2, row] = 0
        total -= estimates[row]
        if total <= left:
            break
    return Spans(files.memory, places)


def check_gathers(name: str, split: Split) -> None:
    """Raise ValueError for a split whose images only workers can make, with what to change.

    Args:
        name: Of the split, in messages.
        split: The samples.
    """
    python = [step for pipeline in split.pipelines for step in pipeline.python]
    policies = [step for pipeline in split.pipelines for step in pipeline.policies]
    reasons = {
        "streaming=, whose batches cannot be read again": bool(split.streaming),
        "image=, several images of a sample": split.image is not None,
        "crop=tarpeg.Patches(...)": split.patches is not None,
        "a crop that shows several samples": split.has_parts,
        "fidelity='exact' and a crop that resizes before it crops": bool(crops_behind_a_resize(split)),
        f"steps of transform= that need pixels in the worker, {[*python, *policies]!r}": bool(
            python or policies
        ),
        "steps of transform= for images that are smaller than their crop": split.runs_python,
        "ToDtype or Normalize in transform=, which tarpeg.Augment() does on the device": any(
            pipeline.levels is not None for pipeline in split.pipelines
        ),
    }
    for reason, is_given in reasons.items():
        if is_given:
            raise ValueError(
                f"decode='device': {name} has {reason}. Leave it out (Augment distorts and normalises on the "
                "device), or give decode='cpu'. split.plan() shows the steps"
            )
