"""Rows of a batch that are made of parts of several samples: what is drawn for them, and their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from ..sampling.crops import colour_of, gray_of
from ..sampling.geometry import Bool, Int32, View
from ..sampling.mosaic import Mosaic
from ..sampling.padded import mirrored
from ..sampling.rng import Float64, Int64

if TYPE_CHECKING:
    from .targets import Fields


def drawn_parts(
    crop: Mosaic, samples: Int64, sizes: npt.NDArray[np.int32], draws: Float64, flips: Bool, channels: int
) -> tuple[View, Int32, Int64]:
    """Return the view of the visible parts, where they go, and which of the images they are, int64 [n].

    Places are int32 [n, 12], see ``decode_sizes``; images are counted row by row, from 0 to 4B - 1.

    Args:
        crop: Of the batch.
        samples: Numbers of the samples of each row, int64 [B, 4], that of the row itself first.
        sizes: Sizes of their images, [4B, 2].
        draws: Uniform numbers, [B, draws].
        flips: Whether a row is mirrored, as a whole, [B].
        channels: Of the images.
    """
    height, width = crop.size
    rows, images, boxes, places, cells = crop.parts(sizes.reshape(*samples.shape, 2), draws)
    seen = rows * samples.shape[1] + images
    places, cells = (mirrored(each, flips[rows], width) for each in (places, cells))
    view = View(
        sizes=sizes[seen],
        boxes=boxes,
        flips=flips[rows],
        size=(height, width),
        places=places,
        batch_rows=rows,
        samples=samples.ravel()[seen],
    )
    table = np.zeros((len(rows), 12), np.int32)
    table[:, 0], table[:, 1:5] = rows, cells
    table[:, 5:7], table[:, 7:9] = places[:, :2] - cells[:, :2], places[:, 2:]
    colour = colour_of(crop)
    table[:, 9:] = colour if channels == 3 else gray_of(colour)
    return view, table, seen


def first_parts(view: View) -> Int64:
    """Return the places of the first part of each row, which is of the sample itself: int64 [B]."""
    assert view.batch_rows is not None
    found: Int64 = np.flatnonzero(np.diff(view.batch_rows, prepend=-1))
    return found


def grouped(values: Sequence[Any], view: View) -> list[Any]:
    """Return the list of the values of each row's parts; a ShardError if one of them is."""
    assert view.batch_rows is not None
    found: list[list[Any]] = [[] for _ in first_parts(view)]
    for row, value in zip(view.batch_rows.tolist(), values, strict=True):
        found[row].append(value)
    return [next((each for each in row if isinstance(each, ShardError)), row) for row in found]


def merged(
    fields: Sequence[Fields], others: dict[str, list[Any]], view: View
) -> tuple[list[Fields], dict[str, list[Any]]]:
    """Return moved targets of parts as those of their rows.

    Objects of a row follow each other in the order of its parts, and its pictures are put together.
    ``image_id`` and ``orig_size`` are those of the first part, ``size`` that of the result. What targets of a
    user's own returned becomes a list per row.
    """
    return [_merged(part, view) for part in fields], {
        name: grouped(each, view) for name, each in others.items()
    }


def _merged(part: Fields, view: View) -> Fields:
    first = first_parts(view)
    of_images = {name: array[first] for name, array in part.of_images.items()}
    if "size" in of_images:
        of_images["size"] = np.tile(np.array(view.size, np.int64), (len(first), 1))
    pictures = {name: _composed(each, part.fill, view) for name, each in part.pictures.items()}
    counts = np.add.reduceat(part.counts, first) if len(first) else part.counts
    return replace(part, counts=counts, of_images=of_images, pictures=pictures)


def _composed(pictures: npt.NDArray[np.uint8], fill: int, view: View) -> npt.NDArray[np.uint8]:
    """Put the pictures of parts together, which do not overlap: elsewhere they have the value ``fill``."""
    assert view.batch_rows is not None
    whole = np.full((len(first_parts(view)), *view.size), fill, np.uint8)
    for row, picture in zip(view.batch_rows.tolist(), pictures, strict=True):
        np.copyto(whole[row], picture, where=picture != fill)
    return whole
