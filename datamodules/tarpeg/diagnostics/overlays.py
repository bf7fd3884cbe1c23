"""Boxes, masks and keypoints drawn on a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from ..errors import ShardError
from ..sampling.geometry import View
from ..shards.source import Source
from ..targets.moved import Moved
from ..targets.steps import move_targets, read_targets

_COLOURS = ("#f2c14e", "#3fa7d6", "#59cd90", "#ee6352", "#b388eb", "#ff9f1c", "#2ec4b6", "#e71d86")
_POINT = 2  # radius of a keypoint in pixels
_SHARE = 0.45  # of a mask's colour
_UNMARKED = (0, 255)  # classes of a mask that are not drawn: the background and what is outside


def moved_targets(targets: Any, source: Source, id: int, view: View) -> Any:
    """Return the targets of one sample, moved by a view of one row; None if they are broken."""
    ids = np.array([id], np.int64)
    values = read_targets(source, ids, [view], targets)
    if isinstance(values[0], ShardError):
        return None
    fields, others = move_targets(targets, values, view, source, ids)
    is_single = not isinstance(targets, (Mapping, Sequence))
    return Moved([0], 1, is_single, fields, others).lists()[0]


def with_targets(picture: Image.Image, found: Any, size: Sequence[int]) -> Image.Image:
    """Draw the targets of an image on a picture of it; kinds that are not known are left out.

    Args:
        picture: Of the image, resized.
        found: A mask [H, W], or a dict with ``boxes``, ``labels``, ``keypoints``, ``mask`` or ``masks``.
        size: (height, width) of the image, in whose pixels the targets are.
    """
    known = found if isinstance(found, Mapping) else {"mask": found}
    arrays = {name: np.asarray(each) for name, each in known.items() if isinstance(each, Tensor)}
    labels = arrays.get("labels", np.zeros(0, np.int64)).tolist()
    shown = picture.copy()
    mask = arrays.get("mask")
    if mask is not None and mask.shape == tuple(size) and mask.dtype.kind in "biu":
        shown = _tinted(shown, mask)
    if (masks := arrays.get("masks")) is not None and masks.ndim == 3:
        for number, each in enumerate(masks):
            shown = _tinted(shown, np.where(each > 0, _label(labels, number), 0))
    drawing, scale = ImageDraw.Draw(shown), picture.width / size[1]
    if (boxes := arrays.get("boxes")) is not None and boxes.ndim == 2:
        for number, box in enumerate((boxes * scale).tolist()):
            left, top, right, bottom = box
            place = (left, top, max(left, right - 1), max(top, bottom - 1))
            drawing.rectangle(place, outline=_colour(_label(labels, number)), width=2)
    if (points := arrays.get("keypoints")) is not None and points.ndim == 3:
        for x, y, visibility in points.reshape(-1, 3).tolist():
            if visibility:
                x, y = x * scale, y * scale
                place = (x - _POINT, y - _POINT, x + _POINT, y + _POINT)
                drawing.ellipse(place, fill="white" if visibility > 1 else None, outline="black")
    return shown


def _tinted(picture: Image.Image, mask: NDArray[Any]) -> Image.Image:
    """Blend the colour of each class with the pixels that have it."""
    for value in np.unique(mask).tolist():
        if value not in _UNMARKED:
            inside = Image.fromarray((mask == value).astype(np.uint8) * 255)
            share = inside.resize(picture.size, Image.Resampling.NEAREST).point(lambda level: level * _SHARE)
            picture.paste(Image.new("RGB", picture.size, _colour(value)), mask=share)
    return picture


def _label(labels: Sequence[int], number: int) -> int:
    return labels[number] if number < len(labels) else 1


def _colour(label: int) -> str:
    return _COLOURS[label % len(_COLOURS)]
