"""Moved targets of a batch: joining those of several parts, and the dicts that the consumer gets."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .lazy import LazyList
from .protocols import Fields, Targets, by_name, is_flat


@dataclass
class Moved:
    """Moved targets of one view of a batch, in the form in which they go from a worker to the consumer.

    Pickling the tensors of 64 images with 8 boxes each takes 80 ms, these arrays 0.03 ms.

    Args:
        rows: Rows of the batch that have targets.
        count: Rows of the batch.
        is_single: Whether the split has one target, neither in a dict nor in a list.
        fields: Of the targets of tarpeg.
        others: By name, a list of what ``move`` of other targets returned; "" for a single target.
    """

    rows: list[int]
    count: int
    is_single: bool
    fields: list[Fields]
    others: dict[str, list[Any]]

    def lists(self) -> Any:
        """Return the targets as the consumer gets them: one per row, None for a row without.

        A tensor [B, H, W] for ``Masks`` alone, of zeros for a row without. Dicts are made when the list is
        first used.
        """
        if self.is_single and self.fields and self.fields[0].pictures:
            (pictures,) = _pictures(self.fields[0]).values()
            if len(self.rows) == self.count:
                return pictures
            whole = pictures.new_zeros((self.count, *pictures.shape[1:]))
            whole[self.rows] = pictures
            return whole
        # The values of a user's own targets are there, and may be tensors for torch.stack: torch reads lists
        # of any class without their methods.
        return LazyList.of(self._list, self.count) if self.fields else self._list()

    def _list(self) -> list[Any]:
        if "" in self.others:
            moved = self.others[""]
        else:
            moved = dicts_of(self.fields, len(self.rows))
            for name, values in self.others.items():
                for each, value in zip(moved, values, strict=True):
                    each[name] = value
        if len(self.rows) == self.count:
            return moved
        found: list[Any] = [None] * self.count
        for row, value in zip(self.rows, moved, strict=True):
            found[row] = value
        return found


def joined(parts: Sequence[Moved]) -> Moved:
    """Return the targets of a batch whose rows are those of several parts, one after another.

    The parts have targets of one structure, see ``structure_of``.
    """
    rows: list[int] = []
    count = 0
    for part in parts:
        rows += [count + row for row in part.rows]
        count += part.count
    filled = [part for part in parts if part.rows] or parts[:1]
    return Moved(
        rows=rows,
        count=count,
        is_single=parts[0].is_single,
        fields=[_joined_fields(each) for each in zip(*(part.fields for part in filled), strict=True)],
        others={name: [value for part in filled for value in part.others[name]] for name in filled[0].others},
    )


def _joined_fields(parts: Sequence[Fields]) -> Fields:
    """Return the fields of one target of several parts of a batch."""

    def merged(name: str) -> dict[str, Any]:
        arrays: list[dict[str, Any]] = [getattr(part, name) for part in parts]
        return {key: np.concatenate([each[key] for each in arrays]) for key in arrays[0]}

    return replace(
        parts[0],
        counts=np.concatenate([part.counts for part in parts]),
        kept=np.concatenate([part.kept for part in parts]),
        of_objects=merged("of_objects"),
        of_images=merged("of_images"),
        pictures=merged("pictures"),
        bits=merged("bits"),
    )


def structure_of(targets: Targets | None) -> Hashable:
    """Return what has to be equal for the targets of two splits to be in one batch."""
    if targets is None:
        return None
    kind = "single"
    if isinstance(targets, (Mapping, Sequence)):
        kind = "dict" if isinstance(targets, Mapping) else "list"
    parts = []
    for name, target in by_name(targets).items():
        fields = tuple(target.fields) if is_flat(target) else ()
        settings = [repr(getattr(target, setting, None)) for setting in ("fill", "dtype", "count")]
        parts.append((name, type(target).__name__, fields, *settings))
    return kind, tuple(parts)


def dicts_of(fields: Sequence[Fields], count: int) -> list[dict[str, Any]]:
    """Return a dict per image of torchvision's convention: tensors, ``boxes`` as ``tv_tensors``."""
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    for part in fields:
        counts = part.counts.tolist()
        for name, array in part.of_objects.items():
            pieces: Iterable[Any] = torch.from_numpy(array).split_with_sizes(counts)
            if name == "boxes":
                pieces = _as_boxes([*pieces], part.canvas)
            for each, piece in zip(found, pieces, strict=True):
                each[name] = piece
        for name, bits in part.bits.items():
            masks = _unpacked(bits, part.canvas).split_with_sizes(counts)
            for each, piece in zip(found, _as_masks(masks), strict=True):
                each[name] = piece
        for name, array in part.of_images.items():
            values = array.tolist() if array.ndim == 1 else torch.from_numpy(array).unbind(0)
            for each, value in zip(found, values, strict=True):
                each[name] = value
        for name, pictures in _pictures(part).items():
            masks = pictures.unbind(0)
            for each, picture in zip(
                found, masks if part.dtype in ("bool", "float32") else _as_masks(masks), strict=True
            ):
                each[name] = picture
    return found


def _as_boxes(pieces: Sequence[torch.Tensor], canvas: tuple[int, int]) -> Sequence[torch.Tensor]:
    """Return the boxes of each image, (x1, y1, x2, y2), as torchvision's."""
    boxes = _tv("BoundingBoxes")
    if boxes is None or not pieces:
        return pieces
    first = boxes(pieces[0], format="XYXY", canvas_size=canvas)
    found = [first]
    for piece in pieces[1:]:  # the constructor takes five times as long
        other = piece.as_subclass(boxes)
        other.__dict__.update(first.__dict__)
        found.append(other)
    return found


def _as_masks(pieces: Sequence[torch.Tensor]) -> Iterable[torch.Tensor]:
    mask = _tv("Mask")
    return pieces if mask is None else [piece.as_subclass(mask) for piece in pieces]


def unpacked(bits: npt.NDArray[np.uint8], canvas: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return masks of objects, uint8 [N, H, W], from their bits [N, bytes]."""
    return _unpacked(bits, canvas).numpy()


def _unpacked(bits: Any, canvas: tuple[int, int]) -> torch.Tensor:
    """Return masks of objects, uint8 [N, H, W], from their bits [N, bytes]."""
    from ..ops.masks import unpack_masks  # here, because it loads the operators

    return unpack_masks(torch.as_tensor(bits), canvas)


def _pictures(part: Fields) -> dict[str, torch.Tensor]:
    dtype, found = getattr(torch, part.dtype), {}
    for name, each in part.pictures.items():
        pictures = torch.as_tensor(each)
        if dtype.is_floating_point and pictures.dtype == torch.uint8:  # from the memory of the batch
            pictures = pictures.view(dtype)
        found[name] = pictures.to(dtype)
    return found


@functools.cache
def _tv(name: str) -> Any:
    """Return a class of ``torchvision.tv_tensors``; None if torchvision is not installed."""
    try:
        from torchvision import tv_tensors
    except ImportError:
        return None
    return getattr(tv_tensors, name)
