"""Images with annotations in files of another tool, on their way into shards: what all formats share.

A format (``coco`` and others) lists its images and finds what belongs to each. The document of an image has
the form that ``Scenes`` writes, in pixels of the upright image.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from ..errors import ShardError
from ..files import LARGEST_IMAGE, read_regular
from ..shards.classes import BACKGROUND, MASK_NUMBER
from ..shards.folder import key_of
from ..shards.packing import Listing, Reading
from ..shards.pillow import FILE_EXTENSIONS, PILLOW_FORMATS, RefusedError, member_extension, refusing
from ..shards.source import Source
from ..shards.walk import images_below

JPEGS = ("jpg", "jpeg")
_PLAIN = 1  # the EXIF orientation of an image that is stored upright
_TURNED = (5, 6, 7, 8)
_ORIENTATION = 0x0112


class BrokenError(ValueError):
    """An image or its annotations are not as they must be; the message has the file, and line or field."""


@dataclass(frozen=True)
class Upright:
    """An image as its EXIF orientation shows it.

    Attributes:
        size: (height, width).
        is_turned: Whether it is stored with height and width swapped.
    """

    size: tuple[int, int]
    is_turned: bool


class Annotation(Protocol):
    """What belongs to one image, read when it is packed."""

    def document(self, image: Upright) -> dict[str, Any]:
        """Return the fields of the JSON member; raises BrokenError."""


@dataclass(frozen=True)
class AnnotatedImage:
    """One image to pack.

    Attributes:
        path: Of the image.
        key: In the shards.
        annotation: What belongs to it; None: no JSON member.
        mask: Path of its mask; None: no mask.
        mask_member: Extension of the mask's member.
        keep_empty: Keep it if it has no objects.
    """

    path: str
    key: str
    annotation: Annotation | None = None
    mask: str | None = None
    mask_member: str = "png"
    keep_empty: bool = True

    def read(self) -> Reading:
        """Read and check the image and what belongs to it."""
        try:
            return self._read()
        except BrokenError as error:
            return Reading({}, str(error))

    def _read(self) -> Reading:
        data = read_file(self.path)
        image = _upright(self.path, data)
        members = {member_extension(self.path): data}
        dropped: list[str] = []
        if self.annotation is not None:
            document = self.annotation.document(image)
            dropped = _drop_flat(self.path, document, is_numbered=self.mask is not None)
            try:
                members["json"] = json.dumps(document, allow_nan=False).encode()
            except ValueError as error:
                raise BrokenError(f"annotations of {self.path} have a number that is not finite") from error
            _check(self.path, document["objects"], members["json"], image.size)
            if not document["objects"] and not self.keep_empty:
                return Reading({}, dropped=tuple(dropped))
        if self.mask is not None:
            mask = read_file(self.mask)
            members[self.mask_member] = mask
            found = _upright(self.mask, mask).size
            if found != image.size:
                raise BrokenError(
                    f"{self.mask} is {_by(found)}, and its image {self.path} is {_by(image.size)}"
                )
        return Reading(members, dropped=tuple(dropped))


class Annotated(Protocol):
    """A data set of images to pack: ``Coco`` and others with annotations, or a ``Folder``."""

    def listing(self) -> Listing:
        """List its images; raises ShardError."""

    def place(self) -> str:
        """Where it is, for messages."""


@dataclass
class Keys:
    """The keys that images get in the shards, by their paths below a folder."""

    root: str
    taken: set[str] = field(default_factory=set)

    def image(self, name: str, **belonging: Any) -> AnnotatedImage:
        """Return the image of that name; raises BrokenError if its name is not one of an image."""
        check_name(name)
        extension = Path(name).suffix[1:].lower()
        path = os.path.join(self.root, name)  # noqa: PTH118
        if extension not in FILE_EXTENSIONS:
            raise BrokenError(
                f"{path} has the extension {extension!r}, none of images: {', '.join(FILE_EXTENSIONS)}"
            )
        return AnnotatedImage(path, key_of(name, self.taken), **belonging)


def check_name(name: str) -> None:
    """Raise BrokenError for a name in a list of images that is not a path below their folder."""
    parts = Path(name).parts
    if not parts or ".." in parts or Path(name).is_absolute() or "\0" in name:
        raise BrokenError(f"{name!r} is not the path of an image below the folder of the images")


def folder_of(name: str, given: Any) -> Path:
    """Return a folder that an argument gives; raises ShardError if it is not one."""
    path = Path(given).expanduser()
    if not path.is_dir():
        raise ShardError(f"{name}={str(given)!r} is not a folder")
    return path


def read_file(path: str | Path) -> bytes:
    """Read a file with one image, or the annotations of one image; raises BrokenError."""
    try:
        return read_regular(path, LARGEST_IMAGE)
    except OSError as error:
        raise BrokenError(f"{path}: {error.strerror}") from error


def names_with_background(names: Iterable[str]) -> dict[str, int]:
    """Return the labels 1, 2, ... by name, with 0 for the background. ShardError for another one."""
    names = [*names]
    if BACKGROUND in names:
        raise ShardError(f"a class has the name {BACKGROUND!r}, which is label 0 without it: leave it out")
    return {name: label for label, name in enumerate((BACKGROUND, *names))}


def mask_member(names: Iterable[str]) -> str:
    """Return the extension of masks beside images of these names: one that is not taken for an image."""
    return "png" if {*map(member_extension, names)} <= {*JPEGS} else "seg.png"


def shuffled(images: list[AnnotatedImage], seed: int) -> list[AnnotatedImage]:
    """Return the images in the order of the shards."""
    random.Random(f"tarpeg order {seed}").shuffle(images)
    return images


def unlisted(folder: Path, names: Iterable[str], what: str) -> Iterator[str]:
    """Yield a note if the folder has images of other names."""
    known = {os.path.normpath(folder / name) for name in names}
    others = [path for path in images_below(folder) if os.path.normpath(path) not in known]
    if others:
        yield f"images that are not in {what}: {len(others)}, the first is {others[0]}"


def count(kind: str, names: Sequence[str]) -> list[str]:
    """Return a note with a number and the first name; [] for none."""
    return [f"{kind}: {len(names)}, the first is {names[0]}"] if names else []


def _upright(path: str, data: bytes) -> Upright:
    """Return the size of an image by its header."""
    try:
        with refusing(data), Image.open(io.BytesIO(data), formats=PILLOW_FORMATS) as image:
            orientation = image.getexif().get(_ORIENTATION, _PLAIN)
            is_turned = orientation in _TURNED
            is_tiff = orientation != _PLAIN and image.format == "TIFF"
            if is_tiff:
                ImageOps.exif_transpose(image, in_place=True)  # it may be upright already
            width, height = image.size
    except RefusedError as error:
        raise BrokenError(f"{path} is not an image that can be read: {error.reason}") from error
    return Upright((width, height) if is_turned and not is_tiff else (height, width), is_turned)


def check_size(path: str, found: tuple[Any, Any], image: Upright) -> None:
    """Raise BrokenError if annotations are of another size than their image.

    Args:
        path: Where the annotations are.
        found: (height, width) of them.
        image: Their image.
    """
    if found != image.size:
        turned = " (its EXIF orientation turns it: they are of the image as stored)"
        is_as_stored = image.is_turned and found == image.size[::-1]
        raise BrokenError(
            f"{path}: annotations of an image of {_by(found)}, but it is {_by(image.size)}"
            f"{turned * is_as_stored}"
        )


def number_objects(objects: Sequence[dict[str, Any]]) -> None:
    """Keep the places of objects, of which some will be left out, as the numbers in a picture of objects."""
    for place, each in enumerate(objects, start=1):
        each.setdefault(MASK_NUMBER, place)


def _drop_flat(path: str, document: dict[str, Any], *, is_numbered: bool) -> list[str]:
    """Remove the objects whose box has no width or height; return a text for each."""
    kept: list[dict[str, Any]] = []
    dropped: list[dict[str, Any]] = []
    for each in document["objects"]:
        box = each.get("bbox")
        is_flat = isinstance(box, list) and [*map(type, box[2:])] in _NUMBERS and min(box[2:]) == 0
        (dropped if is_flat else kept).append(each)
    if dropped and is_numbered:
        number_objects(document["objects"])
    document["objects"] = kept
    shown = (f"{each.get('category')!r} with the box {each['bbox']}" for each in dropped)
    return [f"{path}: an object without a size, {text}" for text in shown]


_NUMBERS = [[first, second] for first in (int, float) for second in (int, float)]


class _One(Source):
    """A source of one sample, which has a JSON member alone."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def __len__(self) -> int:
        return 1

    def keys(self, ids: npt.ArrayLike) -> list[str]:
        return [""]

    def members(self, ids: npt.ArrayLike, extension: str) -> list[bytes | None]:
        return [self._text]

    def extensions(self, id: int) -> list[str]:
        return ["json"]


def _check(path: str, objects: list[dict[str, Any]], text: bytes, size: tuple[int, int]) -> None:
    """Raise BrokenError for what a loader would not read: by the readers themselves."""
    from ..targets.annotations import FieldError  # they import torch
    from ..targets.boxes import Boxes
    from ..targets.outlines import outlines_of

    boxes = Boxes("json:objects", label=None)
    found = boxes.read(_One(text), np.zeros(1, np.int64))[0]
    if isinstance(found, ShardError):
        reason = str(found)
    else:
        (reason,) = boxes.misfits([found], np.array([size], np.int32))
    reason = reason.rpartition("member 'json', ")[2]
    for number, each in enumerate(objects):
        where = f"objects.{number}.segmentation"
        if not reason and each.get("segmentation") is not None:
            try:
                (outline,) = outlines_of(where.format, [each["segmentation"]], [1])
            except FieldError as error:
                reason = str(error)
                continue
            (found_size,) = outline.sizes.tolist()
            if found_size not in ([0, 0], [*size]):
                reason = f"field {where!r} has run lengths of {_by(found_size)}, its image is {_by(size)}"
        if not reason and each.get("keypoints") is not None:
            reason = _wrong_point(each["keypoints"], size)
            reason = reason and f"field 'objects.{number}.keypoints': {reason}"
    if reason:
        place = re.search(r"objects\.(\d+)", reason)
        id = objects[int(place[1])].get("id") if place else None
        raise BrokenError(f"annotations of {path}: {reason}{f' (id {id})' * (id is not None)}")


def _wrong_point(given: Any, size: tuple[int, int]) -> str:
    """Return what is wrong with the keypoints of an object; "" if nothing is."""
    try:
        points = np.array(given, np.float64).reshape(-1, 3)
    except (TypeError, ValueError):
        return f"{str(given)[:48]} is not a list of numbers x, y, visibility"
    x, y, visibility = points.T
    if not np.isfinite(points).all() or not np.isin(visibility, (0, 1, 2)).all():
        return "a number is not finite, or a visibility is not 0, 1 or 2"
    is_outside = (visibility > 0) & ((x < 0) | (y < 0) | (x > size[1]) | (y > size[0]))
    if is_outside.any():
        return f"point {int(is_outside.argmax())} is outside the image of {_by(size)}"
    return ""


def _by(size: Sequence[Any]) -> str:
    return f"{size[0]} x {size[1]} (height x width)"
