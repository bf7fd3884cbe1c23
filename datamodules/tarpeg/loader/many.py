"""Samples with several images, of ``Split(image=...)``: what is read and drawn for them, and their batches.

A list of members makes views, each from a file of its own. A pattern makes batches of as many images as their
samples have together, one after another: ``RaggedImages``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DecodeError, ShardError, Status
from ..sampling.geometry import Int32, View
from ..sampling.rng import Int64
from ..sampling.sampler import Request
from ..shards.image_names import Pattern, stored_names
from ..shards.source import Source, where_of
from .batch import AnyBatch, Decoded, RaggedImages
from .drawing import Drawing, Size
from .substitutes import Made, Substitutes

# Substitutes in one batch that memory is reserved for, each with as many images as a sample can have.
_SPARE = 8
_MOST_SORTED = 1 << 16


@dataclass
class ManyFiles:
    """The encoded images of some samples, R in all.

    Of a list they come image by image, [n, B]; of a pattern sample by sample.

    Args:
        rows: Row of the batch of each image, int64 [R].
        numbers: Number of each within its sample, int64 [R].
        files: The files, uint8 [n] each; empty for a missing one.
        names: Extension of each.
        lost: By row of the batch, why it has no image.
    """

    rows: Int64
    numbers: Int64
    files: list[Tensor]
    names: list[str]
    lost: dict[int, str] = field(default_factory=dict)


def read_list(source: Source, ids: Int64, names: Sequence[str]) -> ManyFiles:
    """Read the images of these extensions of the samples ids [B]."""
    count, files, lost = len(ids), list[Tensor](), dict[int, str]()
    for name in names:
        found, missing = source.member_images(ids, name), []
        for other in stored_names(name)[1:]:
            missing = [row for row, file in enumerate(found) if file is None]
            if not missing:
                break
            for row, file in zip(missing, source.member_images(ids[missing], other), strict=True):
                found[row] = file
        for row, file in enumerate(found):
            if file is None:
                members = source.extensions(int(ids[row]))
                lost.setdefault(row, f"it has no member {name!r}, only {members}")
        files += [_nothing() if file is None else file for file in found]
    return ManyFiles(
        rows=np.tile(np.arange(count), len(names)),
        numbers=np.repeat(np.arange(len(names)), count),
        files=files,
        names=np.repeat(np.array(names, object), count).tolist(),
        lost=lost,
    )


def read_pattern(source: Source, ids: Int64, pattern: Pattern) -> ManyFiles:
    """Read the images whose extensions match, of the samples ids [B], in natural order."""
    rows, numbers, names = list[int](), list[int](), list[str]()
    places: dict[str, list[int]] = {}
    lost = dict[int, str]()
    for row, id in enumerate(ids.tolist()):
        members = source.extensions(id)
        chosen = pattern.chosen(members)
        if not chosen:
            lost[row] = f"none of its members {members} matches image={pattern.text!r}"
        for number, name in enumerate(chosen):
            places.setdefault(name, []).append(len(rows))
            rows.append(row)
            numbers.append(number)
            names.append(name)
    of_rows, files = np.array(rows, np.int64), [_nothing()] * len(rows)
    for name, own in places.items():
        for place, file in zip(own, source.member_images(ids[of_rows[own]], name), strict=True):
            if file is None:  # extensions() of a user's source has it, and members() does not
                lost.setdefault(rows[place], f"its member {name!r} cannot be read")
            else:
                files[place] = file
    return ManyFiles(of_rows, np.array(numbers, np.int64), files, names, lost)


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu")


def draw_list(
    drawing: Drawing, request: Request, sizes: Int32, results: Sequence[Size], *, is_shared: bool
) -> list[View]:
    """Draw the view of each image of a list.

    Args:
        drawing: Of the split.
        request: B samples.
        sizes: Sizes of the images, [n * B, 2], image by image.
        results: Sizes of the results of each image.
        is_shared: Whether all show the box of the first.
    """
    by_image = sizes.reshape(len(results), -1, 2)
    if not is_shared:
        return [
            drawing.view(request, number, each, size)
            for number, (each, size) in enumerate(zip(by_image, results, strict=True))
        ]
    first = drawing.view(request, 0, by_image[0], results[0])
    same = np.arange(len(request.ids))
    return [first, *(_as_first(first, same, *each) for each in zip(by_image[1:], results[1:], strict=True))]


def draw_pattern(
    drawing: Drawing, request: Request, files: ManyFiles, sizes: Int32, size: Size, *, is_shared: bool
) -> View:
    """Draw the view of all images of a pattern, whose parts are the images, as ``draw_list``."""
    rows, numbers = files.rows, files.numbers
    ids = request.ids[rows]
    if is_shared:
        firsts = np.flatnonzero(numbers == 0)
        own = request.rows(rows[firsts])
        first = drawing.view(own, 0, sizes[firsts], size)
        view = _as_first(first, np.cumsum(numbers == 0) - 1, sizes, size)
    else:
        view = drawing.view(request.rows(rows), numbers, sizes, size)
    return replace(view, batch_rows=rows, samples=ids)


def _as_first(first: View, rows: Int64, sizes: Int32, size: Size) -> View:
    """Return the view in which images show the same part as others do, as shares of height and width.

    Args:
        first: View of those others.
        rows: Row of ``first`` of each image.
        sizes: Sizes of the images, [R, 2].
        size: Of the results.
    """
    boxes, before = first.boxes[rows].astype(np.int64), np.maximum(first.sizes[rows], 1).astype(np.int64)
    low = (2 * boxes[:, :2] * sizes + before) // (2 * before)
    high = (2 * (boxes[:, :2] + boxes[:, 2:]) * sizes + before) // (2 * before)
    low = np.minimum(low, np.maximum(sizes - 1, 0))
    moved = np.concatenate([low, np.maximum(high - low, 1)], axis=1)
    # Of a sample whose first image is broken nothing is shown; what is decoded of the others is in no batch.
    whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
    moved = np.where(first.is_known[rows][:, None], moved, whole)
    moved[sizes[:, 0] == 0] = 0
    places = None if first.places is None else first.places[rows]
    return View(sizes.copy(), moved.astype(np.int32), first.flips[rows], size, places=places)


def table_of(view: View, numbers: npt.NDArray[np.int64], colour: Any) -> Int32:
    """Return where each box of a view goes, int32 [R, 12], see ``decode_sizes``; numbers: of the images."""
    table = np.zeros((len(view), 12), np.int32)
    table[:, 0], table[:, 3:5] = numbers, view.size
    table[:, 5:9] = np.where(view.is_known[:, None], view.all_places, (0, 0, 1, 1))
    table[:, 9:] = colour
    return table


def outcome(
    files: ManyFiles, count: int, images: list[Tensor], parts: Sequence[tuple[Decoded, Int64]]
) -> Decoded:
    """Return what became of the rows of a batch from what became of its images.

    Args:
        files: The images.
        count: Rows of the batch.
        images: Images of the batch.
        parts: What became of images, and which of ``files`` these are.
    """
    found = Decoded(images, torch.zeros(count, dtype=torch.int32, device="cpu"))
    for part, places in parts:
        for number in part.status.numpy().nonzero()[0].tolist():
            place = int(places[number])
            row, reason = int(files.rows[place]), part.reasons.get(number, "")
            if found.status[row] == 0:
                text = f"member {files.names[place]!r}" + f", {reason}" * bool(reason)
                found.fail(row, int(part.status[number]), text)
        if part.non_jpeg is not None and found.non_jpeg is None:
            found.non_jpeg = int(files.rows[places[part.non_jpeg]])
    for row, reason in files.lost.items():
        found.fail(row, Status.EMPTY, reason)
    found.nbytes = sum(map(len, files.files))
    return found


def split_rows(view: View, count: int) -> list[View]:
    """Return the view of each row of the batch, of the view of all its images."""
    return [view.rows([row]) for row in range(count)]


def join_rows(views: Sequence[View], ids: Int64) -> View:
    """Undo ``split_rows``; ids: the samples that are in the batch."""
    counts = [len(view) for view in views]
    places: Any = None
    if any(view.places is not None for view in views):
        places = np.concatenate([view.all_places for view in views])
    return View(
        sizes=np.concatenate([view.sizes for view in views]),
        boxes=np.concatenate([view.boxes for view in views]),
        flips=np.concatenate([view.flips for view in views]),
        size=views[0].size,
        places=places,
        batch_rows=np.repeat(np.arange(len(views)), counts),
        samples=np.repeat(ids, counts),
    )


class RaggedSubstitutes(Substitutes):
    """Replaces samples of which each has images of its own: a tensor per row, and a view."""

    def _put(self, made: Made, row: int, other: Made) -> None:
        if made.values:
            made.values[row] = other.values[0] if other.values else None
        made.decoded.images[row] = other.decoded.images[0]
        made.views[row] = other.views[0]


def ragged(batch: AnyBatch, request: Request) -> AnyBatch:
    """Return a batch of flat images with their ``RaggedImages``."""
    (view,) = request.views
    assert view.batch_rows is not None
    counts = np.bincount(view.batch_rows, minlength=len(request.ids))
    offsets = torch.from_numpy(np.append(0, np.cumsum(counts)))
    images: Any = RaggedImages(batch.image, offsets)
    return batch._replace(image=images)


@dataclass(frozen=True)
class MostImages:
    """The most images of a batch of a pattern.

    Args:
        largest: The largest numbers of images of a sample, in descending order.
        comes_again: Whether a sample may come several times in a batch.
    """

    largest: Int64
    comes_again: bool

    @classmethod
    def of(cls, source: Source, pattern: Pattern, candidates: Int64 | None, comes_again: bool) -> MostImages:
        """Count the images of all samples that may be in a batch."""
        counts = source.count_members(pattern)
        if len(counts) and not counts.any():
            raise ShardError(
                f"no sample has a member that matches image={pattern.text!r}; the first, "
                f"{where_of(source, 0)}, has {source.extensions(0)}"
            )
        counts = np.sort(counts if candidates is None else counts[candidates])[::-1]
        return cls(counts[:_MOST_SORTED].copy(), comes_again)

    def __call__(self, count: int) -> int:
        """Return the most images of as many samples, and of some substitutes."""
        most = int(self.largest[0]) if len(self.largest) else 1
        if self.comes_again or count > _MOST_SORTED:
            return max(1, count * most)
        return max(1, int(self.largest[:count].sum()) + min(count, _SPARE) * most)

    def check(self, images: int, count: int) -> None:
        """Raise DecodeError for a batch with more images than there is memory for."""
        if images > self(count):
            raise DecodeError(
                f"a batch of {count} samples has {images} images, after more than {_SPARE} of its samples "
                f"were replaced, and memory is reserved for {self(count)}. Repair the shards, or lower "
                "batch_size"
            )
