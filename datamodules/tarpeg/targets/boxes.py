"""Boxes: objects of a JSON member as torchvision's detectors take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..errors import similar, warn
from ..ops.scanned import Scanned
from ..sampling.geometry import Bool, Int32, View
from ..sampling.rng import Float64, Int64
from ..shards.source import Source
from .annotations import (
    FAR,
    FieldError,
    Place,
    Scan,
    as_json,
    is_finite,
    joined,
    labels_of,
    labels_of_values,
    numbers_of,
    read_objects,
    slices_of,
    table_of,
)
from .covering import Cover
from .moved import dicts_of
from .protocols import IMAGE_FIELDS, Fields
from .steps import dropped, fields_of_images

_FORMATS = ("XYXY", "XYWH", "CXCYWH")


class Objects(NamedTuple):
    """The boxes of one image: (x1, y1, x2, y2) in pixels of the upright source, and what belongs to them."""

    boxes: Float64
    labels: Int64
    area: Float64
    iscrowd: Int64
    image_id: int


@dataclass(frozen=True)
class Boxes:
    """Boxes and labels of a JSON member, moved with their image, for ``Split(targets=...)``.

    A batch is ``(images, targets)``. ``targets`` is a list with a dict per image, as torchvision's detectors
    take it: ``boxes``, ``tv_tensors.BoundingBoxes`` (a plain tensor if torchvision is not installed), float32
    [N, 4], (x1, y1, x2, y2) in pixels of the result; ``labels``, int64 [N]; ``area``, float32 [N];
    ``iscrowd``, int64 [N]; ``image_id``, an int; ``orig_size`` and ``size``, int64 [2], (height, width) of
    source and result. An image without boxes is kept, with N = 0.

    Boxes are computed in float64. They are clipped to the crop; under an affine of ``Augment`` or of a
    policy a box becomes the bounds of its moved corners, clipped to the result; of several such steps, each
    takes what it moves out of the frame. ``area`` is the area in the file (by default that of the box), times
    the scale of the view, times the visible share of the box.

    A box of no or negative size, one with a number that is not finite, one that lies outside its image, a
    label that is not in the table and JSON that is not as ``objects`` describes it are broken targets:
    ``LoaderConfig(on_error=...)`` decides, as for a broken image. A box that is partly outside its image is
    clipped. An image may have up to 100,000 boxes, in a member of up to 16 MiB.

    Args:
        objects: JSON member, and the path of the list of objects in it: "json:objects",
            "json:annotation.objects"; "json" if the document is the list.
        format: Order of the numbers, as in torchvision: "XYWH" (left, top, width, height, as in COCO),
            "XYXY" or "CXCYWH" (centre), in pixels of the upright image. Upper or lower case.
        label: Field of an object with its label; None: all labels are 1.
        labels: Table of the labels: a dict from the values of the field, integers or texts, to labels; a list
            of these values, which get the labels 1, 2, ... (torchvision's 0 is the background); "coco":
            COCO's 80 category ids, 1 to 90 with gaps, become 1 to 80 in the same order. None: the values are
            the labels.
        min_size: Boxes are dropped if their width or height in the result is smaller, in pixels.
        min_area: Boxes are dropped if width times height in the result is smaller, in pixels.
        min_visibility: Boxes are dropped if a smaller share of their area is visible, 0 to 1.
        box: Field of an object with its four numbers.
        area: Field of an object with its area in pixels; objects may lack it.
        iscrowd: Field of an object that is 1 (or true) for a crowd; objects may lack it.
        image_id: Field of the document with the integer ``image_id``, such as "image_id"; None: the number of
            the sample in the shards.

    Example:
        >>> import json
        >>> class Scene(tarpeg.Source):
        ...     def __len__(self):
        ...         return 1
        ...     def keys(self, ids):
        ...         return ["scene"] * len(ids)
        ...     def members(self, ids, extension):
        ...         text = json.dumps({"objects": [{"bbox": [200, 100, 300, 200], "category_id": 18}]})
        ...         content = {"jpg": jpeg.numpy().tobytes(), "json": text.encode()}
        ...         return [content.get(extension)] * len(ids)
        ...     def extensions(self, id):
        ...         return ["jpg", "json"]
        >>> boxes = tarpeg.Boxes("json:objects", format="xywh", labels="coco", min_size=4)
        >>> split = tarpeg.Split(Scene(), tarpeg.Whole((200, 300)), targets=boxes)
        >>> images, targets = next(iter(tarpeg.Loader(split, batch_size=1, workers=0)))
        >>> targets[0]["boxes"].tolist(), targets[0]["labels"].tolist()
        ([[100.0, 50.0, 250.0, 150.0]], [17])
    """

    objects: str
    format: str = "XYWH"
    label: str | None = "category_id"
    labels: Mapping[Any, int] | Sequence[Any] | str | None = None
    min_size: float = 1.0
    min_area: float = 0.0
    min_visibility: float = 0.0
    box: str = "bbox"
    area: str = "area"
    iscrowd: str = "iscrowd"
    image_id: str | None = None

    fields: ClassVar[Sequence[str]] = ("boxes", "labels", "area", "iscrowd", *IMAGE_FIELDS)

    def __post_init__(self) -> None:
        _ = self._place, self._table
        if self._order not in _FORMATS:
            near = similar(self._order, _FORMATS)
            raise ValueError(f"format={self.format!r} of Boxes must be one of {', '.join(_FORMATS)}{near}")
        for name in ("min_size", "min_area", "min_visibility"):
            value = getattr(self, name)
            if not is_finite(value) or value < 0 or (name == "min_visibility" and value > 1):
                limits = "in 0..1" if name == "min_visibility" else "of at least 0"
                raise ValueError(f"{name}={value!r} of Boxes must be a number {limits}")
        for name in ("box", "label", "area", "iscrowd", "image_id"):
            value = getattr(self, name)
            may_lack = value is None and name in ("label", "image_id")
            if not may_lack and not (isinstance(value, str) and value):
                raise ValueError(f"{name}={value!r} of Boxes must be the name of a field")

    @cached_property
    def _place(self) -> Place:
        return Place.of(self.objects, "Boxes")

    @cached_property
    def _table(self) -> dict[Any, int] | None:
        return table_of(self.labels)

    @property
    def _order(self) -> str:
        return str(getattr(self.format, "value", self.format)).upper()

    def read(self, source: Source, ids: Int64) -> list[Any]:
        """Read and check the objects of some samples; see ``Target.read``."""
        return read_objects(source, np.asarray(ids), self._place, self.image_id, self._parse, self._scan)

    def misfits(self, values: Sequence[Objects], sizes: Int32) -> list[str]:
        """Return a text for each image with a box that lies outside it, "" for the others."""
        counts = [len(value.labels) for value in values]
        reasons = [""] * len(values)
        if not sum(counts):
            return reasons
        rows = np.repeat(np.arange(len(values)), counts)
        boxes = np.concatenate([value.boxes for value in values])
        ends = sizes[rows, ::-1].astype(np.float64)
        is_beyond = (boxes[:, 2:] <= 0) | (boxes[:, :2] >= ends)
        if not is_beyond.any():
            return reasons
        is_outside = is_beyond.any(axis=1) & (ends > 0).all(axis=1)
        for number in np.flatnonzero(is_outside).tolist():
            row = int(rows[number])
            place = self._place.field(number - sum(counts[:row]), self.box)
            reasons[row] = reasons[row] or (
                f"member {self._place.extension!r}, field {place!r} is the box (x1, y1, x2, y2) = "
                f"{boxes[number].tolist()}, outside the image of {' x '.join(map(str, sizes[row].tolist()))}"
            )
        return reasons

    def move_all(self, values: Sequence[Objects], view: View) -> Fields:
        """Move the boxes of all rows of a view."""
        counts = np.array([len(value.labels) for value in values], np.int64)
        rows = np.repeat(np.arange(len(values)), counts)
        boxes, visible = view.rectangles(joined([value.boxes for value in values], (0, 4)), rows)
        matrices = view.matrices()
        across, down = matrices[:, 0, 0] * matrices[:, 1, 1], matrices[:, 0, 1] * matrices[:, 1, 0]
        scale = np.abs(across - down)
        area = joined([value.area for value in values], (0,)) * scale[rows] * visible
        return Fields(
            self._place,
            counts,
            self._is_kept(boxes, visible),
            {
                "boxes": boxes.astype(np.float32),
                "labels": joined([value.labels for value in values], (0,)).astype(np.int64),
                "area": area.astype(np.float32),
                "iscrowd": joined([value.iscrowd for value in values], (0,)).astype(np.int64),
            },
            fields_of_images([value.image_id for value in values], view),
            view.size,
            visible=visible,
        )

    def _is_kept(self, boxes: Float64, visible: Float64) -> Bool:
        """Return which boxes of the result are not dropped, by the visible share of each: bool [N]."""
        width, height = (boxes[:, 2:] - boxes[:, :2]).T
        shorter = np.minimum(width, height)
        kept = (shorter > 0) & (shorter >= self.min_size)
        kept &= (width * height >= self.min_area) & (visible >= self.min_visibility)
        return np.asarray(kept)

    def chosen(self, value: Objects, numbers: Int64) -> Objects:
        """Return some of the boxes of an image; see ``ObjectTarget.chosen``."""
        return Objects(
            boxes=value.boxes[numbers],
            labels=value.labels[numbers],
            area=value.area[numbers],
            iscrowd=value.iscrowd[numbers],
            image_id=value.image_id,
        )

    def bounds(self, value: Objects) -> Float64:
        """Return the boxes of one image, NaN for crowds; see ``ObjectTarget.bounds``."""
        return np.where(value.iscrowd[:, None] == 1, np.nan, value.boxes)

    def covered(self, part: Fields, cover: Cover) -> Fields:
        """Return the boxes of what is left of covered objects; see ``ObjectTarget.covered``."""
        fields, kept, numbers = dict(part.of_objects), part.kept.copy(), cover.numbers
        assert part.visible is not None
        fields["boxes"][numbers] = cover.bounds
        fields["area"][numbers] *= cover.shares
        kept[numbers] &= self._is_kept(cover.bounds, part.visible[numbers] * cover.shares)
        return replace(part, of_objects=fields, kept=kept)

    def rectangles(self, value: Objects) -> Float64:
        """Return the boxes of one image: float64 [N, 4], (x1, y1, x2, y2) in pixels of the source."""
        return value.boxes

    def move(self, value: Objects, view: View) -> dict[str, Any]:
        """Return the dict of one image; see ``Target.move``."""
        return dicts_of(dropped([self.move_all([value], view)]), 1)[0]

    @cached_property
    def _scan(self) -> Scan:
        label = [] if self.label is None else [self.label]
        return Scan((self.box, self.area, self.iscrowd, *label), self._scanned)

    def _scanned(self, scanned: Scanned) -> list[Objects] | None:
        """Return the values of samples as ``_parse``; None for what that must look at."""
        numbers, given, iscrowd = scanned.lists(0, 4), scanned.numbers_of(1), self._crowds_of(scanned)
        labels = self._labels_of(scanned)
        if numbers is None or given is None or iscrowd is None or labels is None:
            return None
        boxes = self._corners(numbers)
        sides = boxes[:, 2:] - boxes[:, :2]
        is_right = (sides > 0).all() and (np.abs(boxes) <= FAR).all()
        are_shares = len(boxes) and boxes.max() <= 1 and (boxes % 1).any()
        if not is_right or are_shares or (given < 0).any():
            return None
        area = np.where(np.isnan(given), sides[:, 0] * sides[:, 1], given)
        counts, image_ids = scanned.counts.tolist(), scanned.image_ids.tolist()
        return self._split(counts, boxes, labels, area, iscrowd, image_ids)

    def _labels_of(self, scanned: Scanned) -> Int64 | None:
        if self.label is None:
            return np.ones(len(scanned.cells), np.int64)
        if self._table is None:
            given = scanned.integers(3)
            return given if given is not None and given.min(initial=0) >= 0 else None
        values = scanned.values(3)
        labels = None if values is None else labels_of_values(values, self._table)
        return None if labels is None else np.array(labels, np.int64)

    @staticmethod
    def _crowds_of(scanned: Scanned) -> Int64 | None:
        given = scanned.integers(2, may_lack=True)
        if given is None:  # truth values
            values = scanned.values(2)
            if values is None or not {*values} <= {0, 1, None}:
                return None
            given = np.array([int(each or 0) for each in values], np.int64)
        return given if ((given == 0) | (given == 1)).all() else None

    @staticmethod
    def _split(
        counts: list[int],
        boxes: Float64,
        labels: Int64,
        area: Float64,
        iscrowd: Int64,
        image_ids: Sequence[int],
    ) -> list[Objects]:
        """Return the objects of each image."""
        return [
            Objects(boxes[rows], labels[rows], area[rows], iscrowd[rows], image_id)
            for rows, image_id in zip(slices_of(counts), image_ids, strict=True)
        ]

    def _corners(self, numbers: Float64) -> Float64:
        """Return the numbers of boxes as (x1, y1, x2, y2)."""
        corner, other = numbers[:, :2], numbers[:, 2:]
        if self._order == "XYWH":
            return np.concatenate([corner, corner + other], axis=1)
        if self._order == "CXCYWH":
            half = other / 2
            return np.concatenate([corner - half, corner + half], axis=1)
        return numbers

    def _parse(self, found: list[Any]) -> list[Objects]:
        """Return the values of samples from the lists of their objects, with the image_id 0."""
        objects, place = [each for part in found for each in part], self._place
        boxes = self._corners(numbers_of(place, objects, self.box, 4))
        sides = boxes[:, 2:] - boxes[:, :2]
        wrong = (sides <= 0).any(axis=1) | (np.abs(boxes) > FAR).any(axis=1)
        if wrong.any():
            number = int(wrong.argmax())
            reason = "has no or negative size" if (sides[number] <= 0).any() else f"is beyond {FAR:g} pixels"
            raise FieldError(
                f"field {place.field(number, self.box)!r} is {as_json(objects[number][self.box])} in the "
                f"order {self._order}, a box that {reason}"
            )
        if len(boxes) and boxes.max() <= 1 and (boxes % 1).any():
            warn(
                f"{place.field(0, self.box)!r} is {as_json(objects[0][self.box])}, and no box of these "
                "images goes beyond 1: Boxes are in pixels. Multiply boxes in shares of the image by its "
                "width and height, or they are dropped as smaller than min_size"
            )
        labels = labels_of(place, objects, self.label, self._table)
        area, iscrowd = sides.prod(axis=1), np.zeros(len(objects), np.int64)
        for number, each in enumerate(objects):
            if self.area in each:
                area[number] = self._area(number, each[self.area])
            if self.iscrowd in each:
                iscrowd[number] = self._is_crowd(number, each[self.iscrowd])
        return self._split([*map(len, found)], boxes, labels, area, iscrowd, [0] * len(found))

    def _area(self, number: int, value: Any) -> float:
        if not is_finite(value) or value < 0:
            field = self._place.field(number, self.area)
            raise FieldError(f"field {field!r} is {as_json(value)}, not a number of at least 0")
        return float(value)

    def _is_crowd(self, number: int, value: Any) -> int:
        if value not in (0, 1):  # and true and false
            field = self._place.field(number, self.iscrowd)
            raise FieldError(f"field {field!r} is {as_json(value)}, not 0 or 1")
        return int(value)
