"""Which number a class has in masks, by the pixels under the objects beside them.

Masks come from elsewhere than the objects of the same samples: their numbers may be the ids of a COCO file,
these ids minus 1, or the numbers of a palette, and no file states which of these.
"""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from ..errors import ShardError
from ..shards.source import Source, where_of
from .annotations import FAR, Place, documents_of, is_finite, objects_at

_OBJECTS = Place("json", "objects")  # as make_shards writes them
_MOST, _AT_ONCE = 64, 16  # samples
_MOST_OBJECTS = 200  # of a sample
_EACH = 4  # rows and columns: what is smaller than these is no class
_MOST_PIXELS = 1 << 26  # of all masks but the last: more take too long
_ENOUGH = 4  # objects of each class
_LEAST = 3
_NOT_CLASSES = (0, 255)  # the background, and what is left out
_IN_OBJECT, _OVER_OBJECTS = 0.6, 0.8  # shares of the most frequent number
_SHOWN = 0.25  # share of the objects over which a mask has some number


class Seen(NamedTuple):
    """The number that most pixels under the objects of a class have, a sample of it, and if three have it."""

    number: int
    where: str
    is_clear: bool


class InMasks(NamedTuple):
    """What the pixels of masks show.

    Args:
        classes: By ``category`` of the objects, without classes whose objects disagree. None if the masks
            show other things than the objects: 0 under most of them, or one number under several classes;
            and if no mask can be looked at.
        numbers: All that the pixels have, also where no object is.
    """

    classes: dict[str, Seen] | None
    numbers: set[int]


def numbers_in_masks(source: Source, extension: str) -> InMasks:
    """Look at the first masks of a source that has objects beside them."""
    pixels, has_masks, numbers = 0, False, set[int]()
    votes, where, looked = dict[str, Counter[int]](), dict[str, str](), Counter[str]()
    for begin in range(0, min(len(source), _MOST), _AT_ONCE):
        ids = list(range(begin, min(begin + _AT_ONCE, len(source))))
        pictures = source.members(np.array(ids), extension)
        if not any(pictures):
            break
        texts = source.members(np.array(ids), _OBJECTS.extension)
        documents = documents_of(source, ids, _OBJECTS.extension, texts)
        for id, document, picture in zip(ids, documents, pictures, strict=True):
            objects = objects_at(source, id, _OBJECTS, document)
            if picture is None or not objects or isinstance(objects, ShardError) or pixels >= _MOST_PIXELS:
                continue
            has_masks, mask = True, _pixels(picture)
            if mask is None:
                continue
            pixels += mask.size
            numbers.update(np.unique(mask[::_EACH, ::_EACH]).tolist())
            boxes = _Boxes.of(objects)
            for each in objects[:_MOST_OBJECTS]:
                name = each.get("category")
                inside = None if each.get("iscrowd") else _inside(each, mask, boxes)
                if not isinstance(name, str) or inside is None or not inside.size:
                    continue
                looked[name] += 1
                number = _most_frequent(inside)
                if number is not None:
                    votes.setdefault(name, Counter())[number] += 1
                    where.setdefault(name, where_of(source, id))
        if (
            not looked
            or pixels >= _MOST_PIXELS
            or all(votes.get(name, Counter()).total() >= _ENOUGH for name in looked)
        ):
            break
    counted = sum(each.total() for each in votes.values())
    is_other = looked.total() >= _LEAST and counted < _SHOWN * looked.total()
    if is_other or (has_masks and not pixels):
        return InMasks(None, numbers)
    tops = {name: each.most_common(1)[0] for name, each in votes.items()}
    found = {
        name: Seen(number, where[name], is_clear=count >= _LEAST)
        for name, (number, count) in tops.items()
        if count >= _OVER_OBJECTS * votes[name].total()
    }
    clear = [each for each in found.values() if each.is_clear]
    given = [each.number for each in clear or found.values()]
    is_other = len(given) > 1 and 2 * len({*given}) <= len(given)
    return InMasks(None if is_other else found, numbers)


def _pixels(picture: bytes) -> npt.NDArray[Any] | None:
    """Return the numbers of a mask [H, W]; None for colours, what is too large for Pillow, and no picture."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's of large pictures
            with Image.open(io.BytesIO(picture)) as image:
                mask = np.asarray(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return mask if mask.ndim == 2 and mask.dtype.kind in "uib" else None


def _most_frequent(inside: npt.NDArray[Any]) -> int | None:
    """Return the number that most pixels of an object have; None if there is none such."""
    values = inside[~np.isin(inside, _NOT_CLASSES)]
    numbers, counts = np.unique(values, return_counts=True)
    if len(values) * 4 < inside.size or counts.max() < _IN_OBJECT * len(values):
        return None
    return int(numbers[counts.argmax()])


class _Boxes(NamedTuple):
    """The boxes of an image: names [N], and left, top, right and bottom, int64 [N, 4]."""

    names: npt.NDArray[Any]
    corners: npt.NDArray[np.int64]

    @classmethod
    def of(cls, objects: list[dict[str, Any]]) -> _Boxes:
        found = [each for each in objects if _has_box(each)]
        boxes = np.array([each["bbox"] for each in found], np.float64).reshape(-1, 4)
        corners = np.concatenate([np.floor(boxes[:, :2]), np.ceil(boxes[:, :2] + boxes[:, 2:])], axis=1)
        return cls(np.array([each["category"] for each in found], object), corners.astype(np.int64))


def _inside(each: dict[str, Any], mask: npt.NDArray[Any], boxes: _Boxes) -> npt.NDArray[Any] | None:
    """Return the pixels in the polygons of an object, or in the middle of its box.

    Of a box those that are in none of the ``boxes`` of other classes, if these are the most.
    """
    polygons = each.get("segmentation")
    if isinstance(polygons, list) and polygons:
        if not all(map(_is_polygon, polygons)):
            return None
        xs, ys = ([at for one in polygons for at in one[axis::2]] for axis in (0, 1))
        left, top = max(0, math.floor(min(xs))), max(0, math.floor(min(ys)))
        part = mask[top : math.ceil(max(ys)) + 1, left : math.ceil(max(xs)) + 1]
        if not part.size:
            return None
        area = Image.new("1", part.shape[::-1])
        for one in polygons:
            corners = zip(one[::2], one[1::2], strict=False)
            ImageDraw.Draw(area).polygon([(x - left, y - top) for x, y in corners], fill=1)
        found: npt.NDArray[Any] = part[np.asarray(area)]
        return found
    if not _has_box(each):
        return None
    left, top, width, height = each["bbox"]
    rows = slice(max(0, round(top + height / 4)), max(0, round(top + height * 3 / 4) + 1))
    columns = slice(max(0, round(left + width / 4)), max(0, round(left + width * 3 / 4) + 1))
    is_own = np.ones(mask[rows, columns].shape, bool)
    x, y, right, bottom = boxes.corners.T
    is_over = (x < columns.stop) & (y < rows.stop) & (right > columns.start) & (bottom > rows.start)
    starts = [columns.start, rows.start] * 2
    for x, y, right, bottom in (boxes.corners[is_over & (boxes.names != each["category"])] - starts).tolist():
        is_own[max(0, y) : bottom, max(0, x) : right] = False
    return mask[rows, columns][is_own] if 2 * is_own.sum() > is_own.size else None


def _has_box(each: dict[str, Any]) -> bool:
    box = each.get("bbox")
    is_named = isinstance(each.get("category"), str)
    return is_named and isinstance(box, list) and len(box) == 4 and all(map(_is_near, box))


def _is_polygon(given: Any) -> bool:
    is_list = isinstance(given, list) and len(given) >= 6 and len(given) % 2 == 0
    return is_list and all(map(_is_near, given))


def _is_near(given: Any) -> bool:
    return is_finite(given) and abs(given) <= FAR
