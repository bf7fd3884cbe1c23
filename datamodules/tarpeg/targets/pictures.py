"""Pictures of targets in the memory of a batch, behind its images."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .moved import Moved
from .protocols import Stored, Targets, by_name, is_flat

PICTURE_ALIGN = 64
"""Bytes by which pictures are aligned in the memory of a batch."""


def picture_bytes(targets: Targets | None, sizes: Sequence[tuple[int, int]], count: int) -> int:
    """Return the memory that the pictures of a batch take at most, with views of these sizes."""
    kinds = [] if targets is None else [each for each in by_name(targets).values() if is_flat(each)]
    found = [getattr(each, "picture_bytes", None) for each in kinds]
    return sum(count * bytes_of(size) + PICTURE_ALIGN for bytes_of in found if bytes_of for size in sizes)


class _Room(threading.local):
    """Memory of the batch that a thread fetches, behind its images: pictures made there are not moved."""

    memory: npt.NDArray[np.uint8] | None = None
    begin = 0


_room = _Room()


def lend_room(memory: npt.NDArray[np.uint8] | None, begin: int = 0) -> None:
    """Let ``room_for`` return memory of this batch, from ``begin`` on; None: none."""
    _room.memory, _room.begin = memory, begin


def room_for(shape: tuple[int, ...]) -> npt.NDArray[np.uint8] | None:
    """Return memory of the batch for pictures; None if there is not enough, or no batch."""
    memory, begin = _room.memory, -(-_room.begin // PICTURE_ALIGN) * PICTURE_ALIGN
    end = begin + math.prod(shape)
    if memory is None or end > len(memory):
        return None
    _room.begin = end
    return memory[begin:end].reshape(shape)


def store_pictures(moved: Sequence[Moved], memory: npt.NDArray[np.uint8], begin: int) -> None:
    """Move the pictures of all views to the memory of the batch, from ``begin`` on, as far as they fit.

    And the bits of masks of objects: other fields of objects are small, and would keep the memory in use.
    Those that were made there (``room_for``) stay where they are.
    """
    for fields in _pictured(moved):
        for name, pictures in fields.items():
            place = _place_in(memory, pictures)
            if place is not None:
                fields[name] = Stored(place, pictures.shape)
                begin = max(begin, place + pictures.nbytes)
    for fields in _pictured(moved):
        for name, pictures in fields.items():
            if isinstance(pictures, Stored):
                continue
            begin = -(-begin // PICTURE_ALIGN) * PICTURE_ALIGN
            if begin + pictures.nbytes <= len(memory):
                memory[begin : begin + pictures.nbytes] = pictures.reshape(-1).view(np.uint8)
                *shape, width = pictures.shape
                fields[name] = Stored(begin, (*shape, width * pictures.itemsize))
                begin += pictures.nbytes


def _place_in(memory: npt.NDArray[np.uint8], pictures: npt.NDArray[Any]) -> int | None:
    """Return the first byte of pictures that lie in the memory of the batch; None of others."""
    if pictures.dtype != np.uint8 or not pictures.flags.c_contiguous:
        return None
    place: int = pictures.ctypes.data - memory.ctypes.data
    return place if 0 <= place <= len(memory) - pictures.nbytes else None


def stored_pictures(moved: Sequence[Moved]) -> list[Stored]:
    """Return the places of the pictures of all views."""
    found = [each for fields in _pictured(moved) for each in fields.values()]
    return [each for each in found if isinstance(each, Stored)]


def with_pictures(moved: Sequence[Moved], tensors: Sequence[torch.Tensor]) -> None:
    """Replace the places of ``stored_pictures`` by these tensors."""
    rest = iter(tensors)
    for fields in _pictured(moved):
        for name, pictures in fields.items():
            if isinstance(pictures, Stored):
                fields[name] = next(rest)


def _pictured(moved: Sequence[Moved]) -> Iterator[dict[str, Any]]:
    """Yield dicts of what is stored in the memory of the batch."""
    for part in (part for each in moved for part in each.fields):
        yield part.pictures
        yield part.bits
