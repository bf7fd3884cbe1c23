"""What is drawn for batches of a mixture: each row as its own source draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sampling.crops import Crop, SmallImageError, levels_of
from ..sampling.geometry import Int32, View, joined
from ..sampling.rng import Float64, Int64, Numbered
from ..sampling.sampler import Origin, Request, runs_of
from ..shards.joined import Joined
from .drawing import Drawing, Size, are_boxes, are_inside, drawn, view_of

_SAMPLING = Crop.__module__.rpartition(".")[0]


@dataclass
class MixedDrawing(Drawing):
    """Draws views for samples of several sources, of one view each.

    Attributes:
        source: The samples of all, ``Joined``.
        drawings: What draws for each source.
    """

    drawings: Sequence[Drawing] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        # No crop of a mixture changes with the epoch.
        self._crops = [each.crops(0)[0] for each in self.drawings]
        self._most = max((each.crop for each in self._crops), key=lambda crop: crop.draws)
        self._are_alone = any(each.boxes_among or each.at_size for each in self._crops)
        self._kinds = _kinds_of([each.crop for each in self._crops])
        self._has_users_crops = not all(_is_own(each.crop) for each in self._crops)
        self._flips = np.array([each.split.pipelines[0].flip for each in self.drawings])
        self._levels = np.array([levels_of(each.crop, self.split.channels) for each in self._crops])

    def ahead(self) -> Callable[[Numbered], Float64] | None:
        """Return what draws the numbers of all rows; None if each source draws by itself."""
        if self._are_alone or self.split.image is not None:
            return None
        return partial(drawn, seed=self.seed, crop=self._most)

    def located(self, request: Request) -> Request:
        """Return the request with the origin of its samples: by their numbers, if it has none."""
        if request.origin is not None:
            return request
        sources, ids = self._joined.places(request.ids)
        again = np.zeros_like(ids) if request.occurrence is None else request.occurrence
        return request._replace(origin=Origin(sources, np.full_like(ids, request.epoch), ids, again))

    def views(
        self, request: Request, sizes: npt.NDArray[np.int32], results: list[Size] | None = None
    ) -> list[View]:
        """Draw a view of all rows."""
        request = self.located(request)
        if self._are_alone:
            found = [
                drawing.views(own, sizes[rows], results)[0] for rows, drawing, own in self._runs(request)
            ]
            return [joined(found)]
        (size,) = results or self.largest(request.epoch)
        return [self._drawn_together(request, sizes, size)]

    def view(self, request: Request, number: int | Int64, sizes: npt.NDArray[np.int32], size: Size) -> View:
        """Draw one view, of images of its own: the crops of all sources are the same."""
        return super().view(self.located(request), number, sizes, size)

    def _drawn_together(self, request: Request, sizes: npt.NDArray[np.int32], size: Size) -> View:
        """Draw all numbers by one call: the first ones are the same, whatever their count."""
        origin = request.origin
        assert origin is not None
        uniforms = self.uniforms(request, 0, self._most) if origin.draws is None else origin.draws
        boxes = self._boxes_together(origin, sizes, uniforms, size)
        if boxes is None:
            boxes = self._boxes_by_source(origin, sizes, uniforms, size)
        return view_of(self._crops[0], sizes, boxes, uniforms[:, 0] < self._flips[origin.sources], size)

    def _boxes_together(
        self, origin: Origin, sizes: npt.NDArray[np.int32], uniforms: Float64, size: Size
    ) -> Int32 | None:
        """Return the boxes of all rows, checked by one call; None if a size is unknown or a box wrong."""
        if not sizes.all():
            return None
        found = []
        kinds = self._kinds[origin.sources]
        for rows in runs_of(kinds, origin.epochs) if self._has_users_crops else runs_of(kinds):
            crop = self._crops[origin.sources[rows.start]].crop
            own = sizes[rows]
            try:
                boxes = np.asarray(crop.boxes(own, uniforms[rows, 1 : crop.draws + 1]))
            except SmallImageError:
                return None
            if boxes.dtype != np.int32 or not are_boxes(boxes, len(own)):
                return None
            found.append(boxes)
        joined = _joined_boxes(found, size)
        return joined if are_inside(joined, sizes) else None

    def _boxes_by_source(
        self, origin: Origin, sizes: npt.NDArray[np.int32], uniforms: Float64, size: Size
    ) -> Int32:
        """Return the boxes of all rows, each checked where its source and its number there are known."""
        found = []
        for rows, source, _ in origin.runs():
            crop = self._crops[source].crop
            draws = uniforms[rows, 1 : crop.draws + 1]
            found.append(self.drawings[source].known_boxes(crop, sizes[rows], draws, origin.ids[rows]))
        return _joined_boxes(found, size)

    def levels(self, crop: Crop, request: Request) -> Any:
        """Return the levels of the padding of each row, of its source's crop."""
        origin = self.located(request).origin
        assert origin is not None
        return self._levels[origin.sources]

    def flip_shares(self, ids: Int64, number: int) -> Float64:
        """Return the share of its samples that the source of each row mirrors, [B]."""
        shares: Float64 = self._flips[self._joined.places(ids)[0]]
        return shares

    def others(self, request: Request, uniforms: Float64) -> Iterator[Request]:
        """Yield the requests for other samples of the same source."""
        origin = self.located(request).origin
        assert origin is not None
        source = int(origin.sources[0])
        for other in self.drawings[source].candidates_of(uniforms):
            ids = self._joined.offsets[source] + other[None]
            yield request._replace(ids=ids, origin=origin._replace(ids=other[None], draws=None))

    @property
    def _joined(self) -> Joined:
        assert isinstance(self.source, Joined)
        return self.source

    def _runs(self, request: Request) -> Iterator[tuple[slice, Drawing, Request]]:
        """Yield rows of one source and epoch, what draws for them, and the request that this source knows."""
        origin = request.origin
        assert origin is not None
        for rows, source, epoch in origin.runs():
            yield (
                rows,
                self.drawings[source],
                Request(epoch, origin.ids[rows], origin.occurrence[rows], size=request.size),
            )


def _joined_boxes(parts: list[Int32], size: Size) -> Int32:
    """Return boxes of several crops, [B, 4]; or all [B, 8], with places, if some have places."""
    if len({part.shape[1] for part in parts}) > 1:
        for number, part in enumerate(parts):
            if part.shape[1] == 4:  # without a place, a box becomes the whole result
                parts[number] = np.empty((len(part), 8), np.int32)
                parts[number][:, :4], parts[number][:, 4:] = part, (0, 0, *size)
    return np.concatenate(parts) if parts else np.zeros((0, 4), np.int32)


def _is_own(crop: Crop) -> bool:
    """Whether a crop is one of this package."""
    return type(crop).__module__.rpartition(".")[0] == _SAMPLING


def _kinds_of(crops: Sequence[Crop]) -> Int64:
    """Return the first of the neighbours that have the same crop, for each source.

    Boxes of a crop of this package are functions of each row alone. A user's own crop may look at all rows.
    """
    kinds = list(range(len(crops)))
    for number in range(1, len(crops)):
        one, other = crops[number - 1], crops[number]
        if _is_own(one) and type(one) is type(other) and one == other:
            kinds[number] = kinds[number - 1]
    return np.array(kinds)
