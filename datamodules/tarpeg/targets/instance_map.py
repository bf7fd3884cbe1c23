"""Masks of objects from a picture with a number per object, such as VOC's SegmentationObject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ShardError, check_integer
from ..sampling.geometry import Bool, Int32, View
from ..sampling.rng import Float64, Int64
from ..shards import pillow
from ..shards.classes import MASK_NUMBER
from ..shards.joined import own_numbers
from ..shards.source import Source, missing, plain, read_pictures, where_of
from .annotations import FieldError, Place, as_json, read_objects, slices_of, table_of
from .covering import Cover, bounds_of_bits, pixels_of_bits
from .instances import InstanceMasks
from .lost import lost_pixels
from .masks import Key, Values, keys_of, values_in, warped
from .moved import dicts_of
from .outlines import Outlines, chosen_outlines, numbers_in, outline_bounds, outlines_in
from .protocols import IMAGE_FIELDS, Fields
from .steps import dropped, fields_of_images

_MOST_PIXELS = 1 << 30
"""Pixels of the masks of one image, beyond which it is an error."""


class Instances(NamedTuple):
    """The objects of one picture of (height, width): their outlines, and labels, int64 [N]."""

    outlines: Outlines
    labels: Int64
    shape: tuple[int, int]


class Shown(NamedTuple):
    """What views need of a picture.

    Args:
        shape: (height, width) of the whole picture.
        pictures: By what was drawn for a view, its pixels, uint8 [H, W].
        numbers: Numbers of the objects, int64 [N]; None: those that are visible.
        image_id: Number of the image.
    """

    shape: tuple[int, int]
    pictures: dict[Key, Values]
    numbers: Int64 | None
    image_id: int


class _Objects(NamedTuple):
    """The objects of a result.

    Args:
        labels: int64 [N].
        bits: uint8 [N, bytes], a bit per pixel.
        pixels: int64 [N].
        boxes: float64 [N, 4].
    """

    labels: Int64
    bits: Values
    pixels: Int64
    boxes: Float64


class _Numbers(NamedTuple):
    """Numbers of the objects of one image, in the order of a JSON list: int64 [N]."""

    numbers: Int64
    image_id: int


@dataclass(frozen=True)
class InstanceMap:
    """A mask per object from a picture with a number per object, for ``Split(targets=...)``.

    As ``InstanceMasks``, with a picture in place of outlines: ``masks``, uint8 [N, H, W]. Without ``objects``
    the picture is all there is, as in PennFudan, VOC and Cityscapes: each dict has ``boxes`` too, the bounds
    of each mask as it is in the result, ``labels``, ``area``, the number of its pixels, and ``iscrowd``, 0.
    With ``objects`` the masks are those of the objects of a JSON member, in their order: beside ``Boxes`` of
    the same objects, an object that one of them drops is dropped by both.

    The picture is a PNG (or another lossless format that Pillow reads) as large as its upright image, with
    numbers of a palette, gray levels of up to 16 bits, or colours, which are red + 256 green + 65536 blue as
    in COCO's panoptic PNGs. Masks are cut out and resized as those of ``Masks``.
    Of a PNG with a byte per pixel only what the result needs is decoded and checked, as of ``Masks``; others
    are decoded whole, and so are all if ``min_pixels`` is 0 or objects are pasted.

    A picture of another size than its image, and one that cannot be decoded, are broken targets:
    ``LoaderConfig(on_error=...)`` decides, as for a broken image.

    Args:
        extension: Of the member: "png", "instances.png".
        ignore: Numbers that are not objects: by default the background, 0, and 255, VOC's border.
        divisor: The class of an object is its number divided by this, rounded down, and smaller numbers are
            not objects: 1000 for Cityscapes' instanceIds. None: all labels are 1.
        labels: Table of the labels of the classes, as of ``Boxes``; needs ``divisor``.
        objects: JSON member and path of a list of objects, as of ``Boxes``; None: those in the picture.
        id: Field of an object with its number in the picture; None: they are numbered from 1 in their order,
            as in VOC, or by ``mask_number``, which ``make_shards`` adds if it leaves out an object. An object
            whose number no pixel has is dropped by ``min_pixels``. Without ``id`` a picture of colours or of
            16 bits that shows none of its objects is a broken target.
        min_pixels: Objects with fewer pixels in the result are dropped.
        interpolation: "nearest-exact" or "nearest", as of ``Masks``.

    Raises:
        ValueError: For an argument out of range.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> class Scene:  # a source of one sample
        ...     def members(self, ids, extension):
        ...         numbers = numpy.array([[0, 7, 7, 0], [0, 7, 0, 9], [0, 0, 0, 9]], numpy.uint8)
        ...         png = io.BytesIO()
        ...         Image.fromarray(numbers).save(png, "PNG")
        ...         return [png.getvalue()]
        >>> instances = tarpeg.InstanceMap("png")
        >>> value = instances.read(Scene(), numpy.array([0]))[0]
        >>> found = instances.move(value, tarpeg.View.whole((3, 4), (3, 4)))
        >>> found["boxes"].tolist(), found["labels"].tolist(), found["masks"].sum(dim=(1, 2)).tolist()
        ([[1.0, 0.0, 3.0, 2.0], [3.0, 1.0, 4.0, 3.0]], [1, 1], [3, 2])
    """

    extension: str
    ignore: Sequence[int] = (0, 255)
    divisor: int | None = None
    labels: Mapping[Any, int] | Sequence[Any] | None = None
    objects: str | None = None
    id: str | None = None
    min_pixels: int = 1
    interpolation: Literal["nearest-exact", "nearest"] = "nearest-exact"

    def __post_init__(self) -> None:
        if not isinstance(self.extension, str) or not plain(self.extension) or ":" in self.extension:
            raise ValueError(
                f'extension={self.extension!r} of InstanceMap must be one of a member, such as "png"'
            )
        given: Any = self.ignore
        if not isinstance(given, (list, tuple)) or not all(type(each) is int for each in given):
            raise ValueError(f"ignore={self.ignore!r} of InstanceMap must be a list of integers")
        object.__setattr__(self, "ignore", tuple(self.ignore))
        if self.divisor is not None:
            check_integer("divisor", self.divisor, 1, of=self)
        if self.labels is not None and self.divisor is None:
            raise ValueError(f"labels={self.labels!r} of InstanceMap needs divisor=, which makes the classes")
        of_labels = {"divisor": self.divisor, "labels": self.labels}
        for name, value in of_labels.items() if self.objects is not None else ():
            if value is not None:
                raise ValueError(
                    f"{name}={value!r} of InstanceMap is for labels of its own, and those of "
                    f"objects={self.objects!r} are of Boxes"
                )
        if self.id is not None and (self.objects is None or not (isinstance(self.id, str) and self.id)):
            raise ValueError(f"id={self.id!r} of InstanceMap must be a field of objects=, or None")
        _ = self._table, self._place, self._masks

    @property
    def fields(self) -> Sequence[str]:
        """Names of what it adds to the dict of an image."""
        boxes = () if self.objects is not None else ("boxes", "labels", "area", "iscrowd")
        return (*boxes, "masks", *IMAGE_FIELDS)

    @cached_property
    def _place(self) -> Place | None:
        return None if self.objects is None else Place.of(self.objects, "InstanceMap")

    @cached_property
    def _table(self) -> dict[Any, int] | None:
        return table_of(self.labels)

    @cached_property
    def _masks(self) -> InstanceMasks:
        """What moves the outlines."""
        return InstanceMasks("json", min_pixels=self.min_pixels, interpolation=self.interpolation)

    def read(self, source: Source, ids: Int64) -> list[Any]:
        """Read the objects of some samples; see ``Target.read``."""
        contents, rows = read_pictures(source, ids, plain(self.extension)), np.asarray(ids).tolist()
        known = self._known(source, ids)
        return [self._read(source, *each) for each in zip(rows, contents, known, strict=True)]

    def _known(self, source: Source, ids: Int64) -> list[Any]:
        """Return the numbers of the objects of each sample, or a ShardError; None if its picture has them."""
        if self._place is None:
            return [None] * len(ids)
        return read_objects(source, np.asarray(ids), self._place, None, self._parse)

    def read_views(self, source: Source, ids: Int64, views: Sequence[View], threads: int) -> list[Any]:
        """Read of pictures what these views need; see ``FlatTarget.read_views``."""
        from ..ops.masks import read_masks  # here, because it loads the operators

        contents, known = read_pictures(source, ids, plain(self.extension)), self._known(source, ids)
        is_known = np.logical_and.reduce([view.is_known for view in views])
        given = {
            row: each
            for row, each in enumerate(contents)
            if each is not None and is_known[row] and not isinstance(known[row], ShardError)
        }
        around = self._number_around([known[row] for row in given])
        parts: dict[int, Shown] = {}
        if given and around is not None:
            rows, own = [*given], own_numbers(source, np.asarray(ids))
            found, facts = [], np.zeros((len(rows), 3), np.int32)
            status = np.zeros(len(rows), np.int32)
            for view in (view.rows(rows) for view in views):
                pictures, facts = read_masks(
                    [*given.values()],
                    view.boxes,
                    view.size,
                    view.flips,
                    view.places,
                    centres=self.interpolation == "nearest-exact",
                    fill=around,
                    threads=threads,
                )
                found.append((keys_of(view), pictures))
                status |= facts[:, 0]
            for number in np.flatnonzero(status == 0).tolist():
                row = rows[number]
                numbers = None if known[row] is None else known[row].numbers
                shown = {keys[number]: pictures[number] for keys, pictures in found}
                if any(map(self._has_unknown, shown.values())):
                    continue  # broken, for a reason that reading all of it gives
                shape = int(facts[number, 1]), int(facts[number, 2])
                parts[row] = Shown(shape, shown, numbers, own[row])
        return [
            parts[row] if row in parts else self._read(source, *each)
            for row, each in enumerate(zip(np.asarray(ids).tolist(), contents, known, strict=True))
        ]

    def _number_around(self, known: Sequence[Any]) -> int | None:
        """Return a number for the pixels around a picture, which is not an object's.

        None if there is none, or if objects are kept that are not visible: then pictures are read whole.
        """
        if self.min_pixels < 1:
            return None
        if self._place is None:
            return next((number for number in self.ignore if 0 <= number <= 255), None)
        used = {*np.concatenate([np.zeros(0, np.int64), *(each.numbers for each in known)]).tolist()}
        return next((number for number in range(256) if number not in used), None)

    def _read(self, source: Source, id: int, content: bytes | None, known: Any) -> Any:
        name = plain(self.extension)
        if isinstance(known, ShardError):
            return known
        if content is None:
            return missing(source, id, name, "Give InstanceMap(...) the extension of the picture.")
        try:
            values = values_in(name, content)
            picture = numbers_in(values)
            if known is None:
                numbers, outlines = outlines_in(picture)
                is_object = self._are_objects(numbers)
                outlines = chosen_outlines(outlines, np.flatnonzero(is_object))
                labels = self._labels_of(numbers[is_object])
            else:
                labels, outlines = known.numbers, outlines_in(picture, known.numbers)[1]
                if values.ndim == 3 or values.dtype.itemsize > 1:  # which are always read whole
                    self._check_numbers(picture, labels, len(outlines.toggles))
        except (pillow.RefusedError, ValueError) as error:
            reason = error.reason if isinstance(error, pillow.RefusedError) else error
            return ShardError(f"{where_of(source, id)}: member {name!r}, a picture of objects: {reason}")
        height, width = picture.shape
        (number,) = own_numbers(source, np.array([id], np.int64))
        return Instances(outlines._replace(image_id=number), labels, (height, width))

    def _check_numbers(self, picture: npt.NDArray[Any], numbers: Int64, found: int) -> None:
        """Refuse a picture that shows none of the objects, which are numbered from 1, and shows others."""
        if self.id is None and len(numbers) and not found:
            others = picture[~np.isin(picture, self.ignore)]
            if len(others):
                raise ValueError(
                    f"none of its pixels has the number of an object of {self.objects!r}, which are 1 to "
                    f"{len(numbers)} without id=, and others have {others.min()} to {others.max()}. Give "
                    'InstanceMap(id=...) the field that has the number, such as "id" of panoptic PNGs'
                )

    def _labels_of(self, numbers: Int64) -> Int64:
        if self.divisor is None:
            return np.ones(len(numbers), np.int64)
        classes = numbers // self.divisor
        if self._table is None:
            return classes
        for number, each in zip(numbers.tolist(), classes.tolist(), strict=True):
            if each not in self._table:
                raise ValueError(
                    f"it has the object {number}, of class {each}, which is not in labels=, a table of "
                    f"{len(self._table)} values such as {next(iter(self._table))!r}"
                )
        return np.array([self._table[each] for each in classes.tolist()], np.int64)

    def _parse(self, found: list[Any]) -> list[_Numbers]:
        """Return the numbers of the objects of samples, from the lists of their objects."""
        if self.id is None:
            return [_Numbers(_numbers_in_order(each), 0) for each in found]
        assert self._place is not None
        numbers = []
        for number, each in enumerate(each for part in found for each in part):
            value = each.get(self.id)
            if type(value) is not int or not 0 <= value < 1 << 24:
                field = self._place.field(number, self.id)
                raise FieldError(f"field {field!r} is {as_json(value)}, not the number of an object")
            numbers.append(value)
        joined = np.array(numbers, np.int64)
        return [_Numbers(joined[rows], 0) for rows in slices_of(map(len, found))]

    def misfits(self, values: Sequence[Instances | Shown], sizes: Int32) -> list[str]:
        """Return a text for each picture of another size than its image, "" for the others."""
        reasons = []
        for value, (height, width) in zip(values, sizes.tolist(), strict=True):
            of_objects = value.numbers if isinstance(value, Shown) else value.labels
            count = 0 if of_objects is None else len(of_objects)
            member = f"member {plain(self.extension)!r}, a picture of objects,"
            reason = ""
            if count * height * width > _MOST_PIXELS:
                reason = f"{member} has {count} objects: their masks have more than {_MOST_PIXELS} pixels"
            elif height and value.shape != (height, width):
                shape = " x ".join(map(str, value.shape))
                reason = f"{member} is {shape}, and its image {height} x {width}"
            reasons.append(reason)
        return reasons

    def move_all(self, values: Sequence[Instances | Shown], view: View) -> Fields:
        """Move the masks of all rows of a view."""
        view.check_known()
        whole = [value for value in values if isinstance(value, Instances)]
        if len(whole) == len(values):
            return self._moved_outlines(whole, view)
        objects, image_ids, lost = [], [], lost_pixels(view)
        for row, (value, key) in enumerate(zip(values, keys_of(view), strict=True)):
            if isinstance(value, Shown):
                affine = None if view.affine is None else view.affine[row]
                objects.append(self._visible(value.pictures[key], value.numbers, affine, lost.get(row)))
                image_ids.append(value.image_id)
            else:
                objects.append(self._of_outlines(value, view.row(row)))
                image_ids.append(value.outlines.image_id)
        of_objects = {}
        pixels = np.concatenate([each.pixels for each in objects])
        if self._place is None:
            of_objects = {
                "boxes": np.concatenate([each.boxes for each in objects]).astype(np.float32),
                "labels": np.concatenate([each.labels for each in objects]),
                "area": pixels.astype(np.float32),
                "iscrowd": np.zeros(len(pixels), np.int64),
            }
        return Fields(
            self.extension if self._place is None else self._place,
            np.array([len(each.pixels) for each in objects], np.int64),
            pixels >= self.min_pixels,
            of_objects,
            fields_of_images(image_ids, view),
            view.size,
            bits={"masks": np.concatenate([each.bits for each in objects])},
        )

    def _visible(
        self, picture: Values, numbers: Int64 | None, affine: Float64 | None, lost: Bool | None
    ) -> _Objects:
        """Return the objects of a picture in the size of the result; without numbers those that it shows.

        ``lost``: pixels that show nothing after the affine.
        """
        if numbers is None:
            numbers = self._numbers_in(picture)
        wanted = np.where(numbers < 256, numbers, 0).astype(np.uint8)
        masks = picture == wanted[:, None, None]
        masks[numbers > 255] = False
        if affine is not None and len(masks):
            each = np.repeat(affine[None], len(masks), axis=0)
            masks = warped(masks.view(np.uint8), each, 0).view(np.bool_)
            if lost is not None:
                masks[:, lost] = False
        labels = self._labels_of(numbers) if self._place is None else numbers
        bits = np.packbits(masks.reshape(len(masks), picture.size), axis=1)
        pixels = np.array([np.count_nonzero(mask) for mask in masks], np.int64)
        return _Objects(labels, bits, pixels, bounds_of_bits(bits, (picture.shape[0], picture.shape[1])))

    def _of_outlines(self, value: Instances, view: View) -> _Objects:
        bits = self._masks.move_all([value.outlines], view).bits["masks"]
        return _Objects(value.labels, bits, pixels_of_bits(bits), bounds_of_bits(bits, view.size))

    def _numbers_in(self, picture: Values) -> Int64:
        """Return the numbers of the objects that a picture of bytes shows, from the smallest."""
        line = picture.ravel()
        ends = np.append(np.flatnonzero(line[1:] != line[:-1]), len(line) - 1)
        found = np.flatnonzero(np.bincount(line[ends], minlength=256))
        return found[self._are_objects(found)]

    def _has_unknown(self, picture: Values) -> bool:
        """Whether a picture shows an object whose class is not in the table."""
        table, divisor = self._table, self.divisor
        if table is None or divisor is None:
            return False
        return any(number // divisor not in table for number in self._numbers_in(picture).tolist())

    def _are_objects(self, numbers: Int64) -> Bool:
        are_objects: Bool = ~np.isin(numbers, self.ignore)
        return are_objects if self.divisor is None else are_objects & (numbers >= self.divisor)

    def _moved_outlines(self, values: Sequence[Instances], view: View) -> Fields:
        part = self._masks.move_all([value.outlines for value in values], view)
        if self._place is not None:
            return replace(part, objects=self._place)
        bits = part.bits["masks"]
        labels = [np.zeros(0, np.int64), *(value.labels for value in values)]
        of_objects = {
            "boxes": bounds_of_bits(bits, view.size).astype(np.float32),
            "labels": np.concatenate(labels),
            "area": pixels_of_bits(bits).astype(np.float32),
            "iscrowd": np.zeros(len(bits), np.int64),
            **part.of_objects,
        }
        return replace(part, objects=self.extension, of_objects=of_objects)

    def chosen(self, value: Instances, numbers: Int64) -> Instances:
        """Return some of the objects of an image; see ``ObjectTarget.chosen``."""
        outlines = chosen_outlines(value.outlines, numbers)
        return Instances(outlines, value.labels[numbers], value.shape)

    def bounds(self, value: Instances) -> Float64:
        """Return the bounds of the objects of one image; see ``ObjectTarget.bounds``."""
        return outline_bounds(value.outlines)

    def covered(self, part: Fields, cover: Cover) -> Fields:
        """Return what is left of covered objects; see ``ObjectTarget.covered``."""
        if self._place is None:
            part.of_objects["boxes"][cover.numbers] = cover.bounds
            part.of_objects["area"][cover.numbers] = cover.pixels
        return self._masks.covered(part, cover)

    def move(self, value: Instances, view: View) -> dict[str, Any]:
        """Return the dict of one image; see ``Target.move``."""
        return dicts_of(dropped([self.move_all([value], view)]), 1)[0]


def _numbers_in_order(objects: Sequence[Mapping[str, Any]]) -> Int64:
    """Return the numbers of objects that are numbered in their order, also of those left out since."""
    numbers = [each.get(MASK_NUMBER, place) for place, each in enumerate(objects, start=1)]
    if not all(type(number) is int and 0 < number < 1 << 24 for number in numbers):
        raise FieldError(f"field {MASK_NUMBER!r} is {as_json(numbers)}, not the numbers of objects")
    return np.array(numbers, np.int64)
