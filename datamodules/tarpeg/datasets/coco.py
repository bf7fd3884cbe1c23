"""COCO's annotations: one JSON file with the boxes, outlines and keypoints of all images."""

from __future__ import annotations

import codecs
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ShardError, check_integer
from ..files import read_regular
from ..shards.classes import BACKGROUND
from ..shards.packing import Listing
from .annotated import (
    AnnotatedImage,
    BrokenError,
    Keys,
    Upright,
    check_name,
    check_size,
    count,
    folder_of,
    mask_member,
    names_with_background,
    number_objects,
    shuffled,
    unlisted,
)

_MOST_BYTES = 8 << 30
_SHOWN = 40  # bytes of a damaged file that a message shows
_MAY_LACK = ("segmentation", "keypoints", "area", "iscrowd")
_EMPTY: tuple[Any, ...] = (None, [], [[]])  # what tools write in these fields of a box alone


class _Image(msgspec.Struct):
    id: int | str
    file_name: str
    height: float | None = None  # some tools write 480.0
    width: float | None = None

    def __post_init__(self) -> None:
        self.file_name = self.file_name.removeprefix("./")
        for name in ("height", "width"):
            if (value := getattr(self, name)) is not None and value.is_integer():
                setattr(self, name, int(value))


class _Category(msgspec.Struct):
    id: int
    name: str
    supercategory: Any = None


class _File(msgspec.Struct):
    images: list[_Image]
    categories: list[_Category]
    annotations: list[msgspec.Raw]  # views of the file's bytes: each is parsed when its image is packed


class _Owner(msgspec.Struct):
    image_id: int | str
    segments_info: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    category_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class Coco:
    """Images with COCO's annotations, instances or person_keypoints, to pack by ``make_shards``.

    A sample has the image as it is, ``json`` and, with ``masks``, ``png``. The JSON is that of ``Scenes``:
    ``{"image_id", "file_name", "height", "width", "objects"}``. An object has all fields of the annotation,
    without ``image_id`` and without a ``segmentation``, ``keypoints``, ``area`` or ``iscrowd`` that is null
    or [], and ``category``, the name of its category. ``category_id`` stays COCO's, with its gaps:
    ``Boxes(..., labels="coco")`` makes 1 to 80 of these ids. For any categories, the names are labels 1 and
    following in the order of the ids: ``classes.json`` beside the shards is the table for
    ``Boxes(..., label="category", labels=table)``.

    The annotation file is read once; it takes its size of memory, and about 200 bytes per object. Sizes are
    those of upright images. An image that is missing or not readable, or has another size than in the file,
    one of whose objects is broken (a number that is not finite, a box or point outside, an unknown category,
    an outline that is none) or whose mask is missing or has another size, is left out, and annotations of
    unknown images are. Objects whose box has no width or height are left out alone. ``make_shards`` counts
    and lists all of these.

    Args:
        images: Folder of the images; ``file_name`` is a path in it.
        annotations: The JSON file.
        masks: Folder of PNGs with the names of the images, such as those of stuffthingmaps; None: no masks.
            Beside images that are not JPEGs their member is ``seg.png``. They are packed as they are.
        keep_empty: Keep images without objects.
        crowds: Keep objects with ``iscrowd`` 1, which COCO's evaluation needs. False, for shards to train
            with: leave them out, as torchvision's references do.
        seed: Seed of the order.

    Raises:
        ValueError: When constructed, for a value out of range.

    Example:
        >>> import json
        >>> image = {"id": 7, "file_name": "cat/0.jpg", "height": 120, "width": 160}
        >>> cat = {"id": 1, "image_id": 7, "category_id": 17, "bbox": [10, 20, 100, 90]}
        >>> table = {"images": [image], "annotations": [cat], "categories": [{"id": 17, "name": "cat"}]}
        >>> _ = (tmp / "instances.json").write_text(json.dumps(table))
        >>> tarpeg.make_shards(tmp, tarpeg.Coco(folder, tmp / "instances.json"), workers=0).samples
        1
        >>> boxes = tarpeg.Boxes("json:objects", label="category", labels={"cat": 1})
        >>> split = tarpeg.Split(tmp / "train-*.tar", tarpeg.RandomResizedCrop(64), targets=boxes)
    """

    images: str
    annotations: str
    masks: str | None = None
    keep_empty: bool = True
    crowds: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("images", "annotations"):
            object.__setattr__(self, name, str(getattr(self, name)))
        check_integer("seed", self.seed)

    def place(self) -> str:
        """Path of the annotation file."""
        return self.annotations

    def listing(self) -> Listing:
        """List the images and what belongs to them; raises ShardError."""
        folder, masks = folder_of("images", self.images), None
        if self.masks is not None:
            masks = folder_of("masks", self.masks)
        file = self._read()
        self._unique("images", {each.id: each.file_name for each in file.images}, file.images)
        own, broken, has_zero = self._by_image(file)
        listed = file.categories
        # Roboflow's first category is the group of all others, which no object has.
        group, others = [each for each in listed if each.id == 0], [each for each in listed if each.id != 0]
        if group and others and not has_zero:
            is_of_all = all(each.supercategory == group[0].name for each in others)
            listed = others if is_of_all else listed
        categories = self._unique("categories", {each.id: each.name for each in listed}, listed)
        member = mask_member(each.file_name for each in file.images)
        keys, images = Keys(str(folder)), list[AnnotatedImage]()
        for each in file.images:
            annotation = _Objects(
                self.annotations, each, own.get(each.id, ()), categories, self.crowds, masks is not None
            )
            try:
                check_name(each.file_name)
                mask = None if masks is None else str(masks / Path(each.file_name).with_suffix(".png"))
                images.append(
                    keys.image(
                        each.file_name,
                        annotation=annotation,
                        mask=mask,
                        mask_member=member,
                        keep_empty=self.keep_empty,
                    )
                )
            except BrokenError as error:
                broken.append(f"{self.annotations}: {error}")
        notes = [*unlisted(folder, (each.file_name for each in file.images), self.annotations)]
        notes += count(
            "images without annotations", [each.file_name for each in file.images if each.id not in own]
        )
        named = {id: name for id, name in categories.items() if id or name != BACKGROUND}
        if 0 in named:
            notes.append(
                f"category_id 0 is {categories[0]!r}: torchvision's detectors take label 0 for the "
                'background; give Boxes(label="category", labels=...) the table classes.json'
            )
        classes = names_with_background(named[id] for id in sorted(named))
        return Listing(shuffled(images, self.seed), classes, broken, notes)

    def _read(self) -> _File:
        try:
            data = read_regular(self.annotations, _MOST_BYTES).removeprefix(codecs.BOM_UTF8)
        except OSError as error:
            raise ShardError(f"annotations={self.annotations!r} cannot be read: {error.strerror}") from error
        try:
            return msgspec.json.decode(data, type=_File)
        except msgspec.ValidationError as error:
            raise ShardError(
                f"annotations={self.annotations!r} is not a file of COCO's form, with images, annotations "
                f"and categories: {error}"
            ) from error
        except RecursionError as error:
            raise ShardError(f"annotations={self.annotations!r}: its lists are nested too deeply") from error
        except msgspec.DecodeError as error:
            digits = "".join(filter(str.isdigit, str(error).rpartition("(byte")[2]))
            near = data[max(int(digits) - _SHOWN, 0) : int(digits) + _SHOWN] if digits else data[-_SHOWN:]
            raise ShardError(
                f"annotations={self.annotations!r} is not JSON: {error}, near "
                f"{near.decode(errors='replace')!r}"
            ) from error

    def _unique(self, field: str, names: dict[Any, str], listed: list[Any]) -> dict[Any, str]:
        """Return the names by id; raises ShardError if two have one id or one name."""
        for kind, found in (("id", [each.id for each in listed]), ("name", [*names.values()])):
            (twice, times), *_ = [*Counter(found).most_common(1), ("", 0)]
            if times > 1:
                raise ShardError(
                    f"annotations={self.annotations!r}: two of {field} have the {kind} {twice!r}. Rename or "
                    "remove one of them."
                )
        return names

    def _by_image(self, file: _File) -> tuple[dict[Any, list[msgspec.Raw]], list[str], bool]:
        """Return the annotations of each image, a text for each of none, and whether one is of class 0."""
        own, known, broken = defaultdict[Any, list[msgspec.Raw]](list), {each.id for each in file.images}, []
        has_zero = False
        decoder = msgspec.json.Decoder(_Owner)
        for number, raw in enumerate(file.annotations):
            try:
                owner = decoder.decode(raw)
            except msgspec.ValidationError as error:
                broken.append(f"{self.annotations}: annotations.{number}: {error}")
                continue
            if owner.segments_info is not msgspec.UNSET:
                raise ShardError(
                    f"annotations={self.annotations!r} is a panoptic file, with one annotation per image. "
                    "Write each of its segments_info as an annotation of that image_id, with its id, "
                    'category_id, bbox and iscrowd; the masks are those of InstanceMap("png", '
                    'objects="json:objects", id="id")'
                )
            image = owner.image_id
            has_zero |= owner.category_id is not msgspec.UNSET and bytes(owner.category_id) == b"0"
            if image in known:
                own[image].append(raw)
            else:
                broken.append(
                    f"{self.annotations}: annotations.{number} is of image {image!r}, which is not in images"
                )
        return own, broken, has_zero


@dataclass(frozen=True)
class _Objects:
    """The annotations of one image, not parsed yet."""

    file: str
    image: _Image
    annotations: tuple[msgspec.Raw, ...] | list[msgspec.Raw]
    categories: Mapping[int, str]
    crowds: bool
    has_mask: bool

    def document(self, image: Upright) -> dict[str, Any]:
        """Return the fields of the JSON member; raises BrokenError."""
        given = self.image
        if given.height and given.width:
            check_size(f"{self.file}: {given.file_name}", (given.height, given.width), image)
        objects = [self._object(msgspec.json.decode(raw)) for raw in self.annotations]
        kept = [each for each in objects if self.crowds or each.get("iscrowd") != 1]
        if len(kept) < len(objects) and self.has_mask:
            number_objects(objects)
        return {
            "image_id": given.id,
            "file_name": given.file_name,
            "height": image.size[0],
            "width": image.size[1],
            "objects": kept,
        }

    def _object(self, found: dict[str, Any]) -> dict[str, Any]:
        category = found.get("category_id")
        where = f"{self.file}: annotation {found.get('id')!r} of {self.image.file_name}"
        if type(category) is not int or category not in self.categories:
            raise BrokenError(f"{where} has category_id {category!r}, which is not in categories")
        del found["image_id"]
        for name in _MAY_LACK:
            if found.get(name) in _EMPTY:
                found.pop(name, None)
        return {**found, "category": self.categories[category]}
