"""Keypoints: points of the objects of a JSON member, such as the joints of people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..errors import check_integer
from ..ops.scanned import Scanned
from ..sampling.geometry import Int32, View
from ..sampling.rng import Float64, Int64
from ..shards.source import Source
from .annotations import FAR, FieldError, Place, Scan, as_json, is_finite, joined, read_objects, slices_of
from .covering import Cover
from .moved import dicts_of
from .protocols import IMAGE_FIELDS, Fields
from .steps import dropped, fields_of_images

_COCO_PAIRS = tuple((left, left + 1) for left in range(1, 17, 2))


class Points(NamedTuple):
    """The keypoints of one image, (x, y, visibility) in pixels of the upright source: float64 [N, K, 3]."""

    points: Float64
    image_id: int


@dataclass(frozen=True)
class Keypoints:
    """Keypoints of the objects of a JSON member, moved with their image, for ``Split(targets=...)``.

    A batch is ``(images, targets)``. ``targets`` is a list with a dict per image, as torchvision's detectors
    take it: ``keypoints``, float32 [N, K, 3], (x, y, visibility) in pixels of the result; ``image_id``,
    ``orig_size`` and ``size`` as of ``Boxes``. In a list with ``Boxes`` of the same ``objects``, one dict has
    all fields, and an object that one of them drops is dropped by both.

    Visibility is that of COCO: 0, not labelled; 1, labelled and hidden; 2, visible. A point outside the
    crop or the result gets (0, 0, 0), as points that are not labelled have, and so does one that a step of an
    augmentation moves out of the frame, whatever later ones do. Points are computed in float64, and their
    numbers count from the edge of the image: the middle of the first pixel is 0.5. If the image is
    mirrored, by the crop, a policy or ``Augment``, left and right points change places.

    Points that are not lists of K points of finite numbers, a visibility other than 0, 1 and 2, and labelled
    points outside their image are broken targets: ``LoaderConfig(on_error=...)`` decides, as for a broken
    image.

    Args:
        objects: JSON member, and the path of the list of objects in it, as of ``Boxes``.
        flip_pairs: Pairs of numbers of points, from 0, that change places if the image is mirrored: [(1, 2),
            (3, 4)]; "coco": those of COCO's people; [] for none.
        count: Points of an object, K.
        points: Field of an object with its points: 3 K numbers x, y, visibility, as in COCO, or a list of K
            points [x, y] or [x, y, visibility]. Points [x, y] are visible.
        min_visible: Objects with fewer labelled points in the result are dropped.
        image_id: Field of the document with the integer ``image_id``; None: the number of the sample in the
            shards.

    Example:
        >>> keypoints = tarpeg.Keypoints("json:people", flip_pairs=[(0, 1)], count=2)
        >>> split = tarpeg.Split(shards, tarpeg.RandomResizedCrop(96), flip=0.5, targets=keypoints)
        >>> import json
        >>> class People:  # a source of one sample
        ...     def members(self, ids, extension):
        ...         return [json.dumps({"people": [{"keypoints": [10, 20, 2, 30, 20, 1]}]}).encode()]
        >>> value = keypoints.read(People(), numpy.array([0]))[0]
        >>> box = numpy.array([[0, 0, 40, 60]], numpy.int32)
        >>> mirrored = tarpeg.View(box[:, 2:], box, numpy.array([True]), (40, 60))
        >>> keypoints.move(value, mirrored)["keypoints"].tolist()
        [[[30.0, 20.0, 1.0], [50.0, 20.0, 2.0]]]
    """

    objects: str
    flip_pairs: Sequence[Sequence[int]] | str
    count: int = 17
    points: str = "keypoints"
    min_visible: int = 0
    image_id: str | None = None

    fields: ClassVar[Sequence[str]] = ("keypoints", *IMAGE_FIELDS)

    def __post_init__(self) -> None:
        check_integer("count", self.count, 1, of=self)
        check_integer("min_visible", self.min_visible, 0, self.count, of=self)
        _ = self._place, self._order
        for name, may_lack in (("points", False), ("image_id", True)):
            value = getattr(self, name)
            if not (value is None and may_lack) and not (isinstance(value, str) and value):
                raise ValueError(f"{name}={value!r} of Keypoints must be the name of a field")

    @cached_property
    def _place(self) -> Place:
        return Place.of(self.objects, "Keypoints")

    @cached_property
    def _order(self) -> Int64:
        """Number of the point that takes the place of each if the image is mirrored: int64 [K]."""
        pairs: Any = self.flip_pairs
        if isinstance(pairs, str) and pairs.lower() == "coco" and self.count == 17:
            pairs = _COCO_PAIRS
        order = np.arange(self.count)
        try:
            found = [(left, right) for left, right in pairs]
            numbers = [number for pair in found for number in pair]
            is_right = {*map(type, numbers)} <= {int} and len({*numbers}) == len(numbers)
            if is_right and all(0 <= number < self.count for number in numbers):
                for left, right in found:
                    order[left], order[right] = right, left
                return order
        except (TypeError, ValueError):
            pass
        raise ValueError(
            f"flip_pairs={self.flip_pairs!r} of Keypoints must be pairs of different numbers of points, 0 to "
            f'{self.count - 1}, such as [(1, 2), (3, 4)]; [] for none; or "coco", with count=17'
        )

    def read(self, source: Source, ids: Int64) -> list[Any]:
        """Read and check the points of some samples; see ``Target.read``."""
        scan = Scan((self.points,), self._scanned)
        return read_objects(source, np.asarray(ids), self._place, self.image_id, self._parse, scan)

    def misfits(self, values: Sequence[Points], sizes: Int32) -> list[str]:
        """Return a text for each image with a labelled point outside it, "" for the others."""
        reasons = []
        for value, (height, width) in zip(values, sizes.tolist(), strict=True):
            x, y, visibility = np.moveaxis(value.points, -1, 0)
            is_outside = (visibility > 0) & ((x < 0) | (y < 0) | (x > width) | (y > height))
            reason = ""
            if width and is_outside.any():
                number, point = np.argwhere(is_outside)[0].tolist()
                place = self._place.field(number, self.points)
                reason = (
                    f"member {self._place.extension!r}, field {place!r}: point {point} is "
                    f"{value.points[number, point, :2].tolist()}, outside the image of {height} x {width}"
                )
            reasons.append(reason)
        return reasons

    def move_all(self, values: Sequence[Points], view: View) -> Fields:
        """Move the points of all rows of a view."""
        counts = np.array([len(value.points) for value in values], np.int64)
        rows = np.repeat(np.arange(len(values)), counts)
        points = joined([value.points for value in values], (0, self.count, 3))
        matrices = view.matrices()
        places = points[..., :2]
        moved = places @ matrices[rows, :2, :2].transpose(0, 2, 1) + matrices[rows, None, :2, 2]
        is_there = view.shows_moved(places, moved, rows) & (points[..., 2] > 0)
        found = np.where(is_there[..., None], np.concatenate([moved, points[..., 2:]], axis=-1), 0.0)
        is_mirrored = np.linalg.det(matrices[:, :2, :2])[rows] < 0
        found[is_mirrored] = found[is_mirrored][:, self._order]
        return Fields(
            self._place,
            counts,
            is_there.sum(axis=1) >= self.min_visible,
            {"keypoints": found.astype(np.float32)},
            fields_of_images([value.image_id for value in values], view),
            view.size,
        )

    def chosen(self, value: Points, numbers: Int64) -> Points:
        """Return the points of some objects of an image; see ``ObjectTarget.chosen``."""
        return value._replace(points=value.points[numbers])

    def bounds(self, value: Points) -> Float64:
        """Return the bounds of the labelled points of each object; see ``ObjectTarget.bounds``."""
        places, is_labelled = value.points[..., :2], value.points[..., 2:] > 0
        low = np.where(is_labelled, places, np.inf).min(axis=1)
        return np.concatenate([low, np.where(is_labelled, places, -np.inf).max(axis=1)], axis=1)

    def covered(self, part: Fields, cover: Cover) -> Fields:
        """Make points hidden that are covered, visibility 1; see ``ObjectTarget.covered``."""
        fields, ends = dict(part.of_objects), np.concatenate([[0], np.cumsum(part.counts)])
        height, width = part.canvas
        for number, mask in cover.masks.items():
            points = fields["keypoints"][ends[number] : ends[number + 1]]
            x, y = (
                np.floor(points[..., axis]).astype(np.int64).clip(0, most - 1)
                for axis, most in ((0, width), (1, height))
            )
            points[..., 2][(points[..., 2] == 2) & mask[y, x]] = 1
        return replace(part, of_objects=fields)

    def move(self, value: Points, view: View) -> dict[str, Any]:
        """Return the dict of one image; see ``Target.move``."""
        return dicts_of(dropped([self.move_all([value], view)]), 1)[0]

    def _scanned(self, scanned: Scanned) -> list[Points] | None:
        """Return the values of samples as ``_parse``; None for what that must look at."""
        numbers = scanned.lists(0, 3 * self.count)
        if numbers is None:
            return None
        points = numbers.reshape(-1, self.count, 3)
        if (np.abs(points) > FAR).any() or not np.isin(points[..., 2], (0, 1, 2)).all():
            return None
        slices = slices_of(scanned.counts.tolist())
        return [Points(points[rows], id) for rows, id in zip(slices, scanned.image_ids.tolist(), strict=True)]

    def _parse(self, found: list[Any]) -> list[Points]:
        """Return the values of samples from the lists of their objects, with the image_id 0."""
        objects = [each for part in found for each in part]
        points = np.zeros((len(objects), self.count, 3))
        for number, each in enumerate(objects):
            field = repr(self._place.field(number, self.points))
            if each.get(self.points) in (None, []):
                raise FieldError(
                    f"field {field} is missing or empty: the object has {[*each][:12]}. Remove objects "
                    "without points, or give targets= without Keypoints"
                )
            points[number] = self._points_of(field, each[self.points])
        return [Points(points[rows], 0) for rows in slices_of(map(len, found))]

    def _points_of(self, field: str, value: Any) -> Float64:
        """Return the points of one object: float64 [K, 3]."""
        rows = value
        if isinstance(value, list) and len(value) == 3 * self.count and not isinstance(value[0], list):
            rows = [value[place : place + 3] for place in range(0, len(value), 3)]
        is_list = isinstance(rows, list) and len(rows) == self.count
        if not is_list or not all(isinstance(row, list) and len(row) in (2, 3) for row in rows):
            raise FieldError(
                f"field {field} is {as_json(value)}, not {3 * self.count} numbers x, y, visibility, or "
                f"{self.count} points: count= is {self.count}{_advice(value)}"
            )
        full = [row if len(row) == 3 else [*row, 2] for row in rows]
        for place, row in enumerate(full):
            if not all(map(is_finite, row)) or max(map(abs, row)) > FAR:
                raise FieldError(
                    f"field {field}: point {place} is {as_json(row)}, not finite numbers of pixels"
                )
            if row[2] not in (0, 1, 2):
                raise FieldError(
                    f"field {field}: point {place} has the visibility {as_json(row[2])}, not 0, 1 or 2"
                )
        return np.array(full, np.float64)


def _advice(value: Any) -> str:
    """Return the count that would fit what should be the points of an object, for a message; "" without."""
    is_flat = isinstance(value, list) and not any(isinstance(part, list) for part in value)
    if not isinstance(value, list) or not value or (is_flat and len(value) % 3):
        return ""
    count = len(value) // 3 if is_flat else len(value)
    return f"; for {count} points of each object give Keypoints(count={count})"
