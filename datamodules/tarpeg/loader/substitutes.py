"""Samples that take the place of broken ones, drawn as functions of seed, epoch and sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..errors import DecodeError, ShardError, Status
from ..sampling.geometry import View
from ..sampling.rng import Int64, uniforms_of
from ..sampling.sampler import Request
from ..shards.source import Source, where_of
from .batch import Decoded
from .config import OnError
from .drawing import Drawing

# Stream of random numbers, beside those of loader.drawing.
_SUBSTITUTE = 1
_MOST_SUBSTITUTES = 20


class Made(NamedTuple):
    """The images of a request: what was drawn for them, the images, and their targets as they were read."""

    views: list[View]
    decoded: Decoded
    values: list[Any]


@dataclass
class Substituted:
    """What became of the broken rows of a batch.

    Args:
        ids: Ids of the samples in the batch.
        messages: One for each broken row.
        left_out: Rows that are left out.
    """

    ids: Int64
    messages: list[str] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Substitutes:
    """Replaces what could not be decoded.

    Args:
        source: The samples, for messages.
        on_error: See ``LoaderConfig``.
        drawing: Its candidates may take the place of others.
        has_views: Whether images are ``[views, B, ...]``.
    """

    source: Source
    on_error: OnError
    drawing: Drawing
    has_views: bool

    def replace(self, request: Request, made: Made, make: Callable[[Request], Made]) -> Substituted:
        """Replace the images that could not be decoded, and those whose targets are broken.

        Their rows in ``made`` become those of the substitutes.

        Args:
            request: The request for the batch.
            made: The images.
            make: Makes the images of a request of one sample.

        Raises:
            DecodeError: For an image that is not replaced.
            ShardError: For a target that is not replaced.
        """
        found = Substituted(np.array(request.ids))
        rows = made.decoded.status.numpy().nonzero()[0].tolist()
        broken = [row for row, value in enumerate(made.values) if isinstance(value, ShardError)]
        for row in sorted({*rows, *broken}) if broken else rows:
            id = int(found.ids[row])
            reason = str(made.values[row]) if row in broken else self._reason(id, row, made.decoded)
            reason = reason.rstrip(".")
            if self.on_error == "raise":
                kind = ShardError if row in broken else DecodeError
                raise kind(f"{reason}; on_error='substitute' replaces it by another sample")
            if self.on_error == "leave_out":
                found.left_out.append(row)
                found.messages.append(f"{reason}; it is left out of its batch")
                continue
            found.ids[row], other = self._substitute(request.of_row(row), reason, make)
            self._put(made, row, other)
            key = self.source.keys(found.ids[row : row + 1])[0]
            found.messages.append(f"{reason}; {key!r} takes its place")
        return found

    def _reason(self, id: int, row: int, decoded: Decoded) -> str:
        """Return why an image was not decoded, with shard and key."""
        code = Status(int(decoded.status[row]))
        more = f": {decoded.reasons[row]}" if row in decoded.reasons else ""
        return f"{where_of(self.source, decoded.samples.get(row, id))}: image is {code.name} ({code:d}){more}"

    def _substitute(self, request: Request, reason: str, make: Callable[[Request], Made]) -> tuple[int, Made]:
        """Make another sample for a request of one: a function of seed, epoch, id and occurrence alone."""
        (uniforms,) = uniforms_of(request.numbered, self.drawing.seed, _MOST_SUBSTITUTES, _SUBSTITUTE)
        for other in self.drawing.others(request, uniforms):
            made = make(other)
            is_broken = bool(made.values) and isinstance(made.values[0], ShardError)
            if made.decoded.status[0] == Status.OK and not is_broken:
                return int(other.ids[0]), made
        candidates = self.drawing.candidates
        if candidates is not None and len(candidates) == 1:  # of a stream: the batch alone
            raise DecodeError(f"{reason}, and its batch has no other image to take its place")
        raise DecodeError(f"{reason}, and none of {_MOST_SUBSTITUTES} others that were drawn can be decoded")

    def _put(self, made: Made, row: int, other: Made) -> None:
        """Overwrite one row by the only row of ``other``."""
        if made.values:
            made.values[row] = other.values[0] if other.values else None
        for number, column in other.decoded.carried.items():
            made.decoded.carried.setdefault(number, [None] * len(made.decoded.status))[row] = column[0]
        for part, image in zip(made.decoded.images, other.decoded.images, strict=True):
            self._row(part, row).copy_(self._row(image, 0))
        for view, other_view in zip(made.views, other.views, strict=True):
            view.put(row, other_view)

    def _row(self, images: Tensor, row: int) -> Tensor:
        """Return the part of a tensor that belongs to one sample."""
        return images[:, row] if self.has_views else images[row]
