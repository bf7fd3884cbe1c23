"""Which number a class has in masks, by the pixels under the objects beside them.

Masks come from elsewhere than the objects of the same samples: their numbers may be the ids of a COCO file,
these ids minus 1, or the numbers of a palette, and no file says which.
"""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from ..errors import ShardError
from ..shards.source import Source, where_of
from .annotations import FAR, Place, documents_of, is_finite, objects_at

_OBJECTS = Place("json", "objects")  # as make_shards writes them
_MOST, _AT_ONCE = 64, 16  # samples
_MOST_PIXELS = 1 << 24  # of a mask: larger ones take too long
_ENOUGH = 4  # objects of each class
_LEAST = 3
_NOT_CLASSES = (0, 255)  # the background, and what is left out
_IN_OBJECT, _OVER_OBJECTS = 0.6, 0.8  # shares of the most frequent number
_SHOWN = 0.25  # share of the objects over which a mask has some number


def numbers_in_masks(source: Source, extension: str) -> dict[str, tuple[int, str]] | None:
    """Return the number that most pixels under the objects of a ``category`` have, and a sample of it.

    A class is left out if its objects disagree or are few, and if more objects of another have its number.
    None if the masks show other things than the objects: 0 under most of them, or one number under several
    classes.
    """
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
            mask = None if picture is None or isinstance(objects, ShardError) else _pixels(picture)
            for each in objects if mask is not None else ():
                name, inside = each.get("category"), None if each.get("iscrowd") else _inside(each, mask)
                if not isinstance(name, str) or inside is None or not inside.size:
                    continue
                looked[name] += 1
                number = _most_frequent(inside)
                if number is not None:
                    votes.setdefault(name, Counter())[number] += 1
                    where.setdefault(name, where_of(source, id))
        if not looked or all(votes.get(name, Counter()).total() >= _ENOUGH for name in looked):
            break
    counted = sum(each.total() for each in votes.values())
    if looked.total() >= _LEAST and counted < _SHOWN * looked.total():
        return None
    tops = {name: each.most_common(1)[0] for name, each in votes.items()}
    clear = {
        name: (number, count)
        for name, (number, count) in tops.items()
        if count >= _LEAST and count >= _OVER_OBJECTS * votes[name].total()
    }
    if len(clear) > 1 and 2 * len({number for number, _ in clear.values()}) <= len(clear):
        return None
    found = dict[int, tuple[int, str]]()  # of each number, the class with most objects: others are behind it
    for name, (number, count) in clear.items():
        found[number] = max(found.get(number, (0, "")), (count, name))
    return {name: (number, where[name]) for number, (_, name) in found.items()}


def _pixels(picture: bytes) -> npt.NDArray[Any] | None:
    """Return the numbers of a mask [H, W]; None for colours, what is large, and what is no picture."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's of large pictures
            with Image.open(io.BytesIO(picture)) as image:
                mask = np.asarray(image) if image.width * image.height <= _MOST_PIXELS else None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return mask if mask is not None and mask.ndim == 2 and mask.dtype.kind in "ui" else None


def _most_frequent(inside: npt.NDArray[Any]) -> int | None:
    """Return the number that most pixels of an object have; None if there is none such."""
    values = inside[~np.isin(inside, _NOT_CLASSES)]
    numbers, counts = np.unique(values, return_counts=True)
    if len(values) * 4 < inside.size or counts.max() < _IN_OBJECT * len(values):
        return None
    return int(numbers[counts.argmax()])


def _inside(each: dict[str, Any], mask: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    """Return the pixels in the polygons of an object, or in the middle of its box."""
    assert mask is not None
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
    box = each.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_near, box)):
        return None
    left, top, width, height = box
    rows = slice(max(0, round(top + height / 4)), max(0, round(top + height * 3 / 4) + 1))
    columns = slice(max(0, round(left + width / 4)), max(0, round(left + width * 3 / 4) + 1))
    return mask[rows, columns].reshape(-1)


def _is_polygon(given: Any) -> bool:
    is_list = isinstance(given, list) and len(given) >= 6 and len(given) % 2 == 0
    return is_list and all(map(_is_near, given))


def _is_near(given: Any) -> bool:
    return is_finite(given) and abs(given) <= FAR
