"""Masks of objects in COCO's forms, run lengths and polygons, as flat arrays."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..ops.scanned import Kind, Scanned
from ..sampling.rng import Float64, Int64
from .annotations import FAR, FieldError, as_json, is_finite, joined

_SCALE = 5  # polygons are traced in fifths of pixels, as by pycocotools
_MOST_STEPS = 1 << 20
"""Fifths of pixels along the outlines of an object, beyond which it is an error."""


class Outlines(NamedTuple):
    """The outlines of the objects of one image, one after another.

    A mask is the union of the parts of its object: polygons, or run lengths as toggles, the sorted places at
    which it begins or ends, in the columns of the image one after another (x * height + y).

    Args:
        points: float64 [n, 2], the corners of all polygons, (x, y) in pixels.
        toggles: int64 [m], of all run lengths.
        parts: int64 [P, 2], how many points and toggles each part has.
        objects: int64 [N], how many parts each object has.
        sizes: int64 [N, 2], (height, width) of run lengths; (0, 0) of polygons.
        image_id: Number of the image.
    """

    points: Float64
    toggles: Int64
    parts: Int64
    objects: Int64
    sizes: Int64
    image_id: int


def outlines_of(field: Callable[[int], str], values: Sequence[Any], counts: Sequence[int]) -> list[Outlines]:
    """Return the outlines of images, with the image_id 0; raises FieldError.

    Args:
        field: Returns the place of an object's field, for messages.
        values: Of each object of all images, {"size": [height, width], "counts": [...] or "..."}, or a list
            of polygons [x, y, x, y, ...].
        counts: How many objects each image has.
    """
    polygons: list[list[Any]] = []
    runs: list[Int64] = []
    lengths: list[tuple[int, int]] = []
    objects = np.ones(len(values), np.int64)
    sizes = np.zeros((len(values), 2), np.int64)
    for number, value in enumerate(values):
        if isinstance(value, dict):
            sizes[number], found = _runs_of(field(number), value)
            runs.append(found)
            lengths.append((0, len(found)))
            continue
        if not isinstance(value, list) or not value:
            wrong = f"{as_json(value)}, neither polygons [[x, y, ...], ...] nor run lengths"
            raise FieldError(f"field {field(number)!r} is {wrong}")
        for polygon in value:
            if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
                wrong = f"{as_json(polygon)} is not a polygon of three points or more"
                raise FieldError(f"field {field(number)!r}: {wrong}")
            lengths.append((len(polygon) // 2, 0))
        polygons += value
        objects[number] = len(value)
    parts = np.array(lengths, np.int64).reshape(-1, 2)
    points = _points_of(field, values, polygons)
    _check_lengths(field, points, parts[:, 0], objects)
    return _split(points, joined(runs, (0,)), parts, objects, sizes, counts)


def outlines_of_scanned(scanned: Scanned) -> list[Outlines] | None:
    """Return the outlines of images; None if ``outlines_of`` must look at them.

    Args:
        scanned: The outlines, and nothing else.
    """
    cells, numbers, lengths = scanned.cells[:, 0], scanned.numbers, scanned.lengths
    are_polygons = cells[:, 0] == Kind.LISTS
    if not (are_polygons | (cells[:, 0] == Kind.RUNS)).all() or (lengths < 6).any() or (lengths % 2).any():
        return None
    objects = np.where(are_polygons, cells[:, 3], 1)
    sizes = np.zeros((len(cells), 2), np.int64)
    runs, of_points = [], np.ones(len(numbers), np.bool_)
    for number in np.flatnonzero(~are_polygons).tolist():
        _, size, begin, end, is_text = cells[number].tolist()
        of_points[size : size + 2] = False
        if is_text:
            counts = _uncompressed(bytes(scanned.content[begin:end]))
        else:
            of_points[begin : begin + end] = False
            counts = numbers[begin : begin + end].astype(np.int64)
        sizes[number] = numbers[size : size + 2].astype(np.int64)
        height, width = sizes[number]
        is_right = counts is not None and counts.min(initial=0) >= 0 and counts.max(initial=0) <= 1 << 40
        if counts is None or not is_right or not 0 < min(height, width) <= max(height, width) <= FAR:
            return None
        if counts.sum() != height * width:
            return None
        runs.append(np.cumsum(counts)[:-1])
    points = numbers[of_points].reshape(-1, 2)
    parts = np.zeros((int(objects.sum()), 2), np.int64)
    are_points = np.repeat(are_polygons, objects)
    parts[are_points, 0] = lengths // 2
    parts[~are_points, 1] = [len(each) for each in runs]
    if (np.abs(points) > FAR).any():
        return None
    try:
        _check_lengths(str, points, parts[:, 0], objects)
    except FieldError:
        return None
    found = _split(points, joined(runs, (0,)), parts, objects, sizes, scanned.counts)
    numbers_of_images = scanned.image_ids.tolist()
    return [each._replace(image_id=id) for each, id in zip(found, numbers_of_images, strict=True)]


def _split(
    points: Float64, toggles: Int64, parts: Int64, objects: Int64, sizes: Int64, counts: Sequence[int] | Int64
) -> list[Outlines]:
    """Return the outlines of each image, with the image_id 0, from those of all."""
    toggles = toggles.astype(np.int64, copy=False)
    of_images = _ends(np.asarray(counts, np.int64))
    of_parts = _ends(objects)[of_images]
    of_points, of_toggles = _ends(parts[:, 0])[of_parts], _ends(parts[:, 1])[of_parts]
    bounds = [
        itertools.starmap(slice, itertools.pairwise(each.tolist()))
        for each in (of_points, of_toggles, of_parts, of_images)
    ]
    return [
        Outlines(points[point], toggles[toggle], parts[part], objects[image], sizes[image], 0)
        for point, toggle, part, image in zip(*bounds, strict=True)
    ]


def numbers_in(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the pixels of a picture as integers [H, W]; colours are red + 256 green + 65536 blue."""
    if values.ndim == 2:
        return values
    return np.asarray(values.astype(np.int32) @ np.array([1, 1 << 8, 1 << 16], np.int32))


def outlines_in(picture: npt.NDArray[Any], numbers: Int64 | None = None) -> tuple[Int64, Outlines]:
    """Return the outlines of the objects in a picture with a number per object, with the image_id 0.

    Args:
        picture: Integers [H, W].
        numbers: Numbers of the objects, in their order, int64 [N]; one that no pixel has gets an empty mask.
            None: all in the picture, from the smallest.

    Returns:
        The numbers, and the outlines.
    """
    line = picture.T.ravel()
    begin = np.concatenate([[0], np.flatnonzero(line[1:] != line[:-1]) + 1])
    runs = np.stack([begin, [*begin[1:], len(line)]], axis=1)
    values = line[begin].astype(np.int64)
    order = np.argsort(values, kind="stable")
    found, first, counts = np.unique(values[order], return_index=True, return_counts=True)
    runs = runs[order]
    if numbers is None:
        numbers = found
    places = np.searchsorted(found, numbers).clip(max=len(found) - 1)
    lengths = np.where(found[places] == numbers, counts[places], 0)
    chosen = np.repeat(first[places] - _ends(lengths)[:-1], lengths) + np.arange(lengths.sum())
    outlines = Outlines(
        points=np.zeros((0, 2)),
        toggles=runs[chosen].ravel(),
        parts=np.stack([np.zeros_like(lengths), 2 * lengths], axis=1),
        objects=np.ones(len(numbers), np.int64),
        sizes=np.tile(np.array(picture.shape, np.int64), (len(numbers), 1)),
        image_id=0,
    )
    return numbers, outlines


def chosen_outlines(value: Outlines, numbers: Int64) -> Outlines:
    """Return the outlines of some objects, in the order of their numbers."""
    parts = _members(value.objects, numbers)
    return Outlines(
        points=value.points[_members(value.parts[:, 0], parts)],
        toggles=value.toggles[_members(value.parts[:, 1], parts)],
        parts=value.parts[parts],
        objects=value.objects[numbers],
        sizes=value.sizes[numbers],
        image_id=value.image_id,
    )


def outline_bounds(value: Outlines) -> Float64:
    """Return the bounds of each object, float64 [N, 4], (x1, y1, x2, y2) in pixels.

    (inf, inf, -inf, -inf) for one without pixels. Those of a polygon are those of its corners.
    """
    count = len(value.objects)
    low, high = np.full((count, 2), np.inf), np.full((count, 2), -np.inf)
    of_parts = np.repeat(np.arange(count), value.objects)
    of_points = np.repeat(of_parts, value.parts[:, 0])
    if len(of_points):
        first = np.flatnonzero(np.diff(of_points, prepend=-1))
        low[of_points[first]] = np.minimum.reduceat(value.points, first, axis=0)
        high[of_points[first]] = np.maximum.reduceat(value.points, first, axis=0)
    ends = _ends(value.parts[:, 1])
    for part in np.flatnonzero(value.parts[:, 1]).tolist():
        number = of_parts[part]
        height, width = value.sizes[number].tolist()
        toggles = value.toggles[ends[part] : ends[part + 1]]
        begin, end = toggles[::2], toggles[1::2]
        if len(end) < len(begin):
            end = np.append(end, height * width)
        is_there = end > begin
        begin, last = begin[is_there], end[is_there] - 1
        if not len(begin):
            continue
        left, right = begin // height, last // height
        is_whole = bool((left < right).any())  # a run into another column passes its first and last row
        top = 0 if is_whole else int((begin % height).min())
        bottom = height if is_whole else int((last % height).max()) + 1
        low[number] = np.minimum(low[number], (left.min(), top))
        high[number] = np.maximum(high[number], (right.max() + 1, bottom))
    return np.concatenate([low, high], axis=1)


def _members(counts: Int64, numbers: Int64) -> Int64:
    """Return the places of what belongs to some of the things that have so many each."""
    ends, lengths = _ends(counts), counts[numbers]
    offsets = np.repeat(ends[:-1][numbers] - _ends(lengths)[:-1], lengths)
    places: Int64 = np.arange(len(offsets)) + offsets
    return places


def _ends(counts: Int64) -> Int64:
    return np.concatenate([[0], np.cumsum(counts)])


def _points_of(field: Callable[[int], str], values: Sequence[Any], polygons: list[list[Any]]) -> Float64:
    """Return the numbers of all polygons, which must be those of pixels: float64 [n, 2]."""
    flat = [*itertools.chain.from_iterable(polygons)]
    if {*map(type, flat)} <= {int, float}:  # numpy would take true for 1
        with contextlib.suppress(OverflowError):
            points = np.array(flat, np.float64).reshape(-1, 2)
            if (np.abs(points) <= FAR).all():
                return points
    for number, value in enumerate(values):
        for polygon in value if isinstance(value, list) else ():
            if not all(map(is_finite, polygon)) or max(map(abs, polygon)) > FAR:
                raise FieldError(
                    f"field {field(number)!r}: {as_json(polygon)} has numbers that are no pixels"
                )
    raise FieldError("a polygon has numbers that are no pixels")


def _check_lengths(field: Callable[[int], str], points: Float64, lengths: Int64, objects: Int64) -> None:
    """Raise FieldError for an object whose polygons are too long to be traced."""
    if not len(points):
        return
    ends = np.cumsum(lengths)
    after = np.arange(1, len(points) + 1)
    after[ends[lengths > 0] - 1] = (ends - lengths)[lengths > 0]
    steps = _ends(np.abs(points - points[after]).max(axis=1) * _SCALE)[_ends(lengths)[_ends(objects)]]
    of_objects = np.diff(steps)
    if (of_objects > _MOST_STEPS).any():
        number = int(of_objects.argmax())
        raise FieldError(
            f"field {field(number)!r}: its polygons are {of_objects[number] / _SCALE:.0f} pixels long"
        )


def _runs_of(field: str, value: dict[str, Any]) -> tuple[tuple[int, int], Int64]:
    """Return the size of a mask of run lengths, and its toggles."""
    size, counts = value.get("size"), value.get("counts")
    is_size = (
        isinstance(size, list) and [*map(type, size)] == [int, int] and 0 < min(size) <= max(size) <= FAR
    )
    found = None
    if isinstance(counts, str):
        found = _uncompressed(counts.encode())
    elif (
        isinstance(counts, list) and {*map(type, counts)} <= {int} and all(0 <= n <= 1 << 40 for n in counts)
    ):
        found = np.array(counts, np.int64)
    if not isinstance(size, list) or not is_size or found is None:
        form = '{"size": [height, width], "counts": [...]}'
        raise FieldError(f"field {field!r} is {as_json(value)}, not run lengths {form}")
    height, width = size
    if (found < 0).any() or found.sum() != height * width:
        raise FieldError(
            f"field {field!r}: its run lengths cover {int(found.sum())} pixels, not {height} x {width}"
        )
    return (height, width), np.cumsum(found)[:-1]


def _uncompressed(text: bytes) -> Int64 | None:
    """Return the counts of COCO's compressed run lengths; None if they are none."""
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    ends = np.flatnonzero((codes & 0x20) == 0)
    if not len(ends) or codes.min() < 0 or codes.max() > 63 or ends[-1] != len(codes) - 1:
        return None
    starts = np.r_[0, ends[:-1] + 1]
    lengths = ends + 1 - starts
    if lengths.max() > 8:
        return None
    shifts = 5 * (np.arange(len(codes)) - np.repeat(starts, lengths))
    counts = np.add.reduceat((codes & 0x1F) << shifts, starts)
    counts -= np.where(codes[ends] & 0x10, np.int64(1) << (5 * lengths), 0)
    # From the fourth on they are differences to the last but one.
    counts[1::2] = np.cumsum(counts[1::2])
    counts[2::2] = np.cumsum(counts[2::2])
    return counts
