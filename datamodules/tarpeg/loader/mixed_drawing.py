"""What is drawn for batches of a mixture: each row as its own source draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..sampling.crops import Crop, levels_of
from ..sampling.geometry import Int32, View, joined
from ..sampling.rng import Float64, Int64
from ..sampling.sampler import Origin, Request
from ..shards.joined import Joined
from .drawing import Drawing, Size

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
        self._are_alike = _are_alike([each.crop for each in self._crops])
        self._flips = np.array([each.split.pipelines[0].flip for each in self.drawings])
        self._levels = np.array([levels_of(each.crop, self.split.channels) for each in self._crops])

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
        """Draw a view of all rows; the crops of several sources by one call if they are alike."""
        request = self.located(request)
        if self._are_alike:
            return super().views(request, sizes, results)
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
        uniforms = self.uniforms(request, 0, self._most)
        boxes, columns = np.empty((len(sizes), 8), np.int32), 4
        boxes[:, 4:] = (0, 0, *size)  # without a place, a box becomes the whole result
        for rows, source, _ in origin.runs():
            crop = self._crops[source].crop
            draws = uniforms[rows, 1 : crop.draws + 1]
            found = self.drawings[source].known_boxes(crop, sizes[rows], draws, origin.ids[rows])
            boxes[rows, : found.shape[1]] = found
            columns = max(columns, found.shape[1])
        flips = uniforms[:, 0] < self._flips[origin.sources]
        view = View(sizes.copy(), np.ascontiguousarray(boxes[:, :columns]), flips, size)
        return self.placed(self._crops[0], view)

    def places(
        self, views: Sequence[View], order: Sequence[int], request: Request, first: int = 0
    ) -> Int32 | None:
        """Return where the boxes of all rows go, each in the colour of its source's crop."""
        found = super().places(views, order, request, first)
        if found is not None:
            origin = self.located(request).origin
            assert origin is not None
            found[:, 9:] = self._levels[origin.sources]
        return found

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
            yield request._replace(ids=ids, origin=origin._replace(ids=other[None]))

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


def _are_alike(crops: Sequence[Crop]) -> bool:
    """Whether all sources have one crop of this package: its boxes are functions of each row alone.

    A user's own crop may look at all rows.
    """
    is_own = type(crops[0]).__module__.rpartition(".")[0] == _SAMPLING
    return is_own and all(type(each) is type(crops[0]) and each == crops[0] for each in crops)
