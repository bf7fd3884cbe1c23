"""Pascal VOC's layout: JPEGImages, Annotations, ImageSets, and the folders of masks."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from ..errors import ShardError, check_integer
from ..files import read_regular
from ..shards.packing import Listing
from ..shards.pillow import member_extension
from ..shards.walk import images_below
from .annotated import (
    JPEGS,
    AnnotatedImage,
    BrokenError,
    Keys,
    Upright,
    check_size,
    count,
    folder_of,
    mask_member,
    names_with_background,
    read_file,
    shuffled,
)

VOC = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train"),
    "tvmonitor",
)
"""The classes of Pascal VOC, labels 1 to 20."""
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_FLAGS = ("difficult", "truncated", "occluded")
_LOOKED_AT = 50
"""Files of annotations that are read for a note on where their coordinates begin."""
_OF_ONE_CLASS = re.compile(r"\S.*\s+(-1|0|1)")
"""A line of a list such as Main/cat_train, and of an image whose name ends so."""


@dataclass(frozen=True)
class Voc:
    """Images in the layout of Pascal VOC, to pack by ``make_shards``.

    A sample has the image NAME of JPEGImages as it is, ``json`` from ``Annotations/NAME.xml``, in the form of
    ``Scenes``, and, with ``masks``, ``png``, the file as it is (``seg.png`` if there are images other than
    JPEGs): numbers of the palette are the classes, 255 is the border. An object has ``bbox`` [left, top,
    width, height], ``category``, the name, ``category_id``, 1 and following in the order of ``classes``,
    ``iscrowd``, 0, and ``difficult``, ``truncated``, ``occluded``, ``pose`` if the file has them.
    ``Boxes(..., iscrowd="difficult")`` marks difficult objects for the evaluation.

    VOC counts pixels from 1, and a box has its last pixel: xmin 1, xmax 10 are the first ten pixels, a box
    from 0 to 10. Boxes are of upright images. An image that is missing or has another size than in its XML,
    XML that is broken or has a document type (which could expand entities), an object that is broken or of
    an unknown class, and a mask that is missing or has another size leave out the image; ``make_shards``
    counts and lists them.

    Args:
        root: Folder with JPEGImages, such as VOCdevkit/VOC2012.
        split: List of the images: "Main/train" is ImageSets/Main/train.txt.
        masks: Folder of masks in root: "SegmentationClass" or "SegmentationObject", with a split such as
            "Segmentation/train"; None: no masks.
        annotations: Folder of XML files in root; None: no JSON.
        classes: Names of the classes, labels 1 and following; by default VOC's 20.
        one_based: Coordinates are pixels counted from 1; False: they are edges, counted from 0.
        keep_empty: Keep images without objects.
        seed: Seed of the order.

    Raises:
        ValueError: When constructed, for a value out of range.

    Example:
        >>> from PIL import Image
        >>> for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        ...     (tmp / part).mkdir(parents=True)
        >>> Image.new("RGB", (60, 40)).save(tmp / "JPEGImages" / "a.jpg")
        >>> corners = "<xmin>1</xmin><ymin>1</ymin><xmax>10</xmax><ymax>20</ymax>"
        >>> thing = f"<object><name>cat</name><bndbox>{corners}</bndbox></object>"
        >>> _ = (tmp / "Annotations" / "a.xml").write_text(f"<annotation>{thing}</annotation>")
        >>> _ = (tmp / "ImageSets" / "Main" / "train.txt").write_text("a")
        >>> tarpeg.make_shards(tmp / "shards", tarpeg.Voc(tmp), workers=0).samples
        1
        >>> crop, boxes = tarpeg.RandomResizedCrop(32), tarpeg.Boxes("json:objects")
        >>> split = tarpeg.Split(tmp / "shards" / "train-*.tar", crop, targets=boxes)
    """

    root: str
    split: str = "Main/train"
    masks: str | None = None
    annotations: str | None = "Annotations"
    classes: Sequence[str] = VOC
    one_based: bool = True
    keep_empty: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", str(self.root))
        check_integer("seed", self.seed)
        names = [] if isinstance(self.classes, str) else list(self.classes)
        if not names or {*map(type, names)} != {str} or len({*names}) < len(names):
            raise ValueError(f"classes={self.classes!r} must be different names, one at least")
        object.__setattr__(self, "classes", tuple(names))
        if self.annotations is None and self.masks is None:
            raise ValueError("annotations=None needs masks=")

    def place(self) -> str:
        """Path of the list of images."""
        return str(Path(self.root).expanduser() / "ImageSets" / f"{self.split}.txt")

    def listing(self) -> Listing:
        """List the images and what belongs to them; raises ShardError."""
        root = folder_of("root", self.root)
        folders = {name: folder_of(name, root / name) for name in (self.annotations, self.masks) if name}
        files = _files_in(folder_of("JPEGImages", root / "JPEGImages"))
        names = self._names(files)
        labels = {name: label for label, name in enumerate(self.classes, start=1)}
        keys, images = Keys(str(root / "JPEGImages")), list[AnnotatedImage]()
        broken: list[str] = []
        member = mask_member(files[name] for name in names if name in files)
        for number, name in enumerate(names):
            file = files.get(name, f"{name}.jpg")
            annotation: _Xml | None = None
            mask: str | None = None
            if self.annotations is not None:
                path = str(folders[self.annotations] / f"{name}.xml")
                annotation = _Xml(path, file, number, labels, self.one_based)
            if self.masks is not None:
                mask = str(folders[self.masks] / f"{name}.png")
            try:
                images.append(
                    keys.image(
                        file,
                        annotation=annotation,
                        mask=mask,
                        mask_member=member,
                        keep_empty=self.keep_empty,
                    )
                )
            except BrokenError as error:
                broken.append(f"{self.place()}: {error}")
        notes = count(f"images that are not in {self.split}.txt", sorted({*files} - {*names}))
        looked_at = [each.annotation for each in images[:_LOOKED_AT] if isinstance(each.annotation, _Xml)]
        if self.one_based and (zeros := [each.path for each in looked_at if each.counts_from_zero()]):
            notes.append(
                f"{len(zeros)} of {len(looked_at)} files of annotations have an xmin or ymin of 0, such as "
                f"{zeros[0]}: give one_based=False if their coordinates are counted from 0"
            )
        return Listing(shuffled(images, self.seed), names_with_background(self.classes), broken, notes)

    def _names(self, files: Mapping[str, str]) -> list[str]:
        path = self.place()
        try:
            lines = read_regular(path).decode("utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ShardError(f"split={self.split!r}: {path} cannot be read: {error}") from error
        stems = {file: stem for stem, file in files.items()}
        names = [stems.get(line.strip(), line.strip()) for line in lines if line.strip()]
        if names and all(map(_OF_ONE_CLASS.fullmatch, names)) and names[0] not in files:
            raise ShardError(
                f"{path}: {names[0]!r} is the line of a list of one class, whose last column is -1, 0 or 1. "
                "Give split= a list of images, such as Main/train"
            )
        (twice, times), *_ = [*Counter(names).most_common(1), ("", 0)]
        if times > 1:
            raise ShardError(f"{path} has {twice!r} {times} times")
        return names


def _files_in(folder: Path) -> dict[str, str]:
    """Return the images in a folder and below, by their names without extension; of several the JPEG."""
    found: dict[str, list[str]] = {}
    for name in (os.path.relpath(path, folder) for path in images_below(folder)):
        found.setdefault(os.path.splitext(name)[0], []).append(name)  # noqa: PTH122
    files = {}
    for stem, names in found.items():
        jpegs = [name for name in names if member_extension(name) in JPEGS]
        if len(names) > 1 and len(jpegs) != 1:
            raise ShardError(
                f"{folder} has {' and '.join(names)}, for one name in the lists: keep one of them"
            )
        (files[stem],) = names if len(names) == 1 else jpegs
    return files


@dataclass(frozen=True)
class _Xml:
    """The annotations of one image, not read yet."""

    path: str
    file_name: str
    number: int
    labels: dict[str, int]
    one_based: bool

    def document(self, image: Upright) -> dict[str, Any]:
        """Return the fields of the JSON member; raises BrokenError."""
        root = parsed(self.path, read_file(self.path))
        given = root.find("size")
        if given is not None:
            found = tuple(int(self._number(given, name)) for name in ("height", "width"))
            if all(found):  # some tools write zeros
                check_size(self.path, (found[0], found[1]), image)
        return {
            "image_id": self.number,
            "file_name": self.file_name,
            "height": image.size[0],
            "width": image.size[1],
            "objects": [self._object(number, each) for number, each in enumerate(root.findall("object"))],
        }

    def counts_from_zero(self) -> bool:
        """Whether a corner is at 0, which no pixel is that is counted from 1; False if it is broken."""
        try:
            boxes = parsed(self.path, read_file(self.path)).findall("object/bndbox")
            return any(self._number(box, name) == 0 for box in boxes for name in _CORNERS[:2])
        except BrokenError:
            return False

    def _object(self, number: int, found: Element) -> dict[str, Any]:
        category, box = (found.findtext("name") or "").strip(), found.find("bndbox")
        where = f"{self.path}: object {number}"
        if category not in self.labels:
            raise BrokenError(f"{where} is {category!r}, which is not in classes= {[*self.labels]}")
        if box is None:
            raise BrokenError(f"{where} has no bndbox")
        left, top, right, bottom = (self._number(box, name) for name in _CORNERS)
        if self.one_based:
            left, top = left - 1, top - 1
        if right < left or bottom < top:
            raise BrokenError(f"{where} has xmax < xmin or ymax < ymin")
        flags = {name: int(self._number(found, name)) for name in _FLAGS if found.findtext(name)}
        pose = found.findtext("pose")
        return {
            "bbox": [left, top, right - left, bottom - top],
            "category_id": self.labels[category],
            "category": category,
            "iscrowd": 0,
            **flags,
            **({"pose": pose} if pose else {}),
        }

    def _number(self, parent: Element, name: str) -> float:
        text = parent.findtext(name) or ""
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise BrokenError(f"{self.path}: {parent.tag}.{name} is {text!r}, not a number")
        return number


def parsed(path: str, data: bytes) -> Element:
    """Parse XML without a document type, in which entities that expand without end could be.

    That is one handler of the standard library's own parser; defusedxml would be another package for it.
    """
    parser, builder = expat.ParserCreate(), TreeBuilder()

    def refuse(*_: object) -> NoReturn:
        raise BrokenError(f"{path} has a document type, line {parser.CurrentLineNumber}: remove it")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(data, True)
        return builder.close()
    except (expat.ExpatError, ValueError, LookupError) as error:
        if isinstance(error, BrokenError):
            raise
        raise BrokenError(f"{path} is not XML: {error}") from error
