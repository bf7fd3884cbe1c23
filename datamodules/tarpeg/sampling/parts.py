"""Rows of a batch that are made of parts of several samples: what is drawn for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .crops import levels_of
from .geometry import Bool, Int32, View
from .mosaic import Mosaic
from .padded import mirrored
from .rng import Float64, Int64


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
    table[:, 9:] = levels_of(crop, channels)
    return view, table, seen


def first_parts(view: View) -> Int64:
    """Return the places of the first part of each row, which is of the sample itself: int64 [B]."""
    assert view.batch_rows is not None
    found: Int64 = np.flatnonzero(np.diff(view.batch_rows, prepend=-1))
    return found
