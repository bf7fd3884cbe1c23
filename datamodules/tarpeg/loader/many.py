"""Samples with several images, of ``Split(image=...)``: what is drawn for them, and the images of a batch.

A list of members makes views, each from a file of its own. A pattern makes batches of as many images as their
samples have together, one after another: ``RaggedImages``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ShardError, Status
from ..sampling.crops import levels_of
from ..sampling.geometry import Int32, View, joined
from ..sampling.rng import Int64
from ..sampling.sampler import Request
from .batch import Decoded, Encoded, Images, Shape, by_size, empty_images, of_sizes
from .composing import Composer
from .drawing import Drawing, Size
from .many_files import ManyFiles, read_list, read_pattern
from .ragged import MostImages
from .substitutes import Made, Substituted, Substitutes
from .workers import end_if_forked


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
    is_known = first.is_known[rows][:, None]
    moved = np.where(is_known, moved, whole)
    moved[sizes[:, 0] == 0] = 0
    places = first.places
    if places is not None:  # that of a broken image is no place
        places = np.where(is_known, places[rows], (0, 0, *size)).astype(np.int32)
    return View(sizes.copy(), moved.astype(np.int32), first.flips[rows], size, places=places)


def target_views(views: Sequence[View], *, is_shared: bool) -> list[View]:
    """Return the views by which the targets of a sample, in pixels of its first image, follow each image.

    Args:
        views: Of the images of a list, with or without an affine.
        is_shared: Whether all show the box of the first: then the targets show it too, whatever the sizes of
            the other images.
    """
    first = views[0]
    if not is_shared:
        return list(views)
    return [first, *(replace(view, sizes=first.sizes, boxes=first.boxes) for view in views[1:])]


def unlike_first(views: Sequence[View], names: Sequence[str]) -> dict[int, str]:
    """Return the rows with an image that has not the size of the first, and a text of which.

    Args:
        views: Of the images of a list.
        names: Their extensions.
    """
    found: dict[int, str] = {}
    for view, name in zip(views[1:], names[1:], strict=True):
        for row in np.flatnonzero((view.sizes != views[0].sizes).any(axis=1)).tolist():
            sizes = [" x ".join(map(str, each.sizes[row].tolist())) for each in (view, views[0])]
            found.setdefault(row, f"image {name!r} is {sizes[0]}, and {names[0]!r} is {sizes[1]}")
    return found


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


class RaggedSubstitutes(Substitutes):
    """Replaces samples of which each has images of its own: a tensor per row, and then a view, too."""

    def replace(self, request: Request, made: Made, make: Callable[[Request], Made]) -> Substituted:
        """Replace what is broken, as ``Substitutes``; the view of all rows becomes one per row."""
        if made.decoded.status.any() or any(isinstance(value, ShardError) for value in made.values):
            whole = made.views[0]
            made.views[:] = [whole.rows([row]) for row in range(len(request.ids))]
        return super().replace(request, made, make)

    def _put(self, made: Made, row: int, other: Made) -> None:
        if made.values:
            made.values[row] = other.values[0] if other.values else None
        made.decoded.images[row] = other.decoded.images[0]
        made.views[row] = other.views[0]


@dataclass(frozen=True)
class ManyImages:
    """Makes the images of a batch whose samples have several each: steps 1 to 3 of ``fetch``.

    Args:
        composer: Decodes each image to its place.
        shape_of: Returns the shape of a number of images, with views of these sizes.
        most: Of a pattern, the most images of a batch.
    """

    composer: Composer
    shape_of: Callable[[list[Size], int], Shape]
    most: MostImages | None

    def views(self, request: Request, sizes: list[Size]) -> tuple[list[View], ManyFiles]:
        """Read the files and draw the views: one per image of a list, or one of all images of a pattern."""
        drawing, sizes_of = self.composer.drawing, self.composer.fallback.sizes
        split, source = drawing.split, drawing.source
        pattern, is_shared = split.image_pattern, split.shares_box
        if pattern is None:
            files = read_list(source, request.ids, split.image_names)
            whole = sizes_of(files.files, files.known)
            return draw_list(drawing, request, whole, sizes, is_shared=is_shared), files
        files = read_pattern(source, request.ids, pattern)
        whole = sizes_of(files.files, files.known)
        return [draw_pattern(drawing, request, files, whole, sizes[0], is_shared=is_shared)], files

    def images(
        self, request: Request, sizes: list[Size], out: Any, threads: int
    ) -> tuple[list[View], Decoded]:
        """Make the images, each from its file.

        Of a pattern there is a tensor per row of the batch, which are parts of ``out``, and one view.

        Args:
            request: The request.
            sizes: Sizes of the results of each view.
            out: Memory of the images, or a function that returns it for a shape; None: its own.
            threads: Number of threads that decode.
        """
        views, files = self.views(request, sizes)
        end_if_forked()  # a source and a crop may be the user's own
        drawing, count, total = self.composer.drawing, len(request.ids), len(files.files)
        split = drawing.split
        is_flat = split.image_pattern is not None
        if is_flat:
            self._check(total, count)
        out = self._memory(out, self.shape_of(sizes, total if is_flat else count))
        crops, parts = drawing.crops(request.epoch), list[tuple[Decoded, Int64]]()
        for group, images in zip(split.view_groups, by_size(out), strict=True):
            lengths = np.cumsum([0, *(len(views[number]) for number in group)]).tolist()
            tables = zip(group, lengths, strict=False)
            places = np.arange(total) if is_flat else np.concatenate([_of(number, count) for number in group])
            if len(places):
                encoded = Encoded(
                    Request(request.epoch, request.ids[files.rows[places]]),
                    [files.files[place] for place in places.tolist()],
                    files.known[places],
                )
                table = np.concatenate(
                    [
                        drawing.table(views[n], first, levels_of(crops[n].crop, split.channels))
                        for n, first in tables
                    ]
                )
                view, flat = joined([views[number] for number in group]), images.flatten(0, -4)
                parts.append((self.composer.decode(encoded, view, [flat], table, threads), places))
        decoded = outcome(files, count, by_size(out), parts)
        if is_flat:
            decoded.flat = by_size(out)[0]
            decoded.images = list(decoded.flat.split(np.bincount(files.rows, minlength=count).tolist()))
        return views, decoded

    def joined(self, made: Made, replaced: Substituted, sizes: list[Size], out: Any) -> list[View]:
        """Put the images of all rows of a pattern one after another; those that are left out have none.

        Args:
            made: Its images become one tensor.
            replaced: What became of broken rows.
            sizes: Sizes of the results.
            out: As of ``images``.
        """
        rows, views = made.decoded.images, made.views
        if not replaced.messages and made.decoded.flat is not None:  # they are
            made.decoded.images = [made.decoded.flat]
            return views
        for row in replaced.left_out:
            rows[row], views[row] = rows[row][:0], views[row].rows([])
        images = torch.cat(rows)  # a copy: the memory has the images before
        self._check(len(images), len(rows))
        if callable(out):
            images = out(self.shape_of(sizes, len(images))).copy_(images)
        made.decoded.images = [images]
        return [_of_rows(views, replaced.ids)]

    def _check(self, images: int, count: int) -> None:
        if self.most is not None:
            self.most.check(images, count)

    def _memory(self, out: Any, shape: Shape) -> Images:
        if callable(out):
            out = out(shape)
        if out is None:
            out = of_sizes([empty_images(each, self.composer.dtype) for each in by_size(shape)])
        return out


def _of(number: int, count: int) -> Int64:
    """Return which files are those of one image of a list."""
    return np.arange(number * count, (number + 1) * count)


def _of_rows(views: Sequence[View], ids: Int64) -> View:
    """Return the view of all images of a batch, from that of each row; ids: the samples."""
    whole = joined([view.parts() for view in views])
    counts = [len(view) for view in views]
    return replace(whole, batch_rows=np.repeat(np.arange(len(views)), counts), samples=np.repeat(ids, counts))
