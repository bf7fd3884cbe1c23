"""YOLO's layout: a text file per image, in shares of its size, and data.yaml."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ShardError, check_integer, similar
from ..files import read_regular
from ..shards.packing import Listing
from ..shards.walk import images_below
from .annotated import (
    AnnotatedImage,
    BrokenError,
    Keys,
    Upright,
    count,
    names_with_background,
    read_file,
    shuffled,
)

_TASKS = ("detect", "segment", "pose")
_SUFFIXES = (".yaml", ".yml")
_BEYOND = 0.01  # as far outside of the image as Ultralytics reads points


@dataclass(frozen=True)
class Yolo:
    r"""Images in the layout of YOLO (Ultralytics), to pack by ``make_shards``.

    The labels of ``images/a/1.jpg`` are ``labels/a/1.txt``: a line per object, in shares of the upright
    image, which is Ultralytics' convention too. A sample has the image as it is, and ``json`` in the form of
    ``Scenes``, in pixels: an object has ``bbox`` [left, top, width, height], ``category``, the name,
    ``category_id``, YOLO's number plus 1, as 0 is the background of torchvision's detectors; ``segmentation``
    or ``keypoints``.

    An image without a file of labels has no objects, and a line that is there twice is one object, as in
    Ultralytics. An image that is missing or not readable, and a line that is not as ``task`` describes it
    (numbers that are not finite, further than 0.01 outside of 0..1, an unknown class) leave out the image;
    ``make_shards`` counts and lists them.

    Args:
        root: data.yaml, or a folder of images, with ``names``.
        split: Its entry in data.yaml: "train", "val" or "test". Paths in it are relative to ``path`` there,
            and that to the folder of data.yaml.
        task: Ultralytics' name of what a line is. "detect": class, centre x, y, width, height, or class, x, y
            of a polygon of three points or more, whose bounds are the box; "segment": class, x, y of a
            polygon; "pose": class, box, then the points, x, y and with ``kpt_shape`` [K, 3] visibility.
        names: Names of the classes, by number from 0; by default those of data.yaml.
        kpt_shape: (points, numbers per point) of "pose"; by default that of data.yaml.
        keep_empty: Keep images without objects.
        seed: Seed of the order.

    Raises:
        ValueError: When constructed, for a value out of range.

    Example:
        >>> from PIL import Image
        >>> for part in ("images", "labels"):
        ...     (tmp / part / "train").mkdir(parents=True)
        >>> Image.new("RGB", (60, 40)).save(tmp / "images" / "train" / "a.jpg")
        >>> _ = (tmp / "labels" / "train" / "a.txt").write_text("0 0.5 0.5 0.2 0.5")
        >>> _ = (tmp / "data.yaml").write_text("train: images/train\nnames: [cat]")
        >>> tarpeg.make_shards(tmp / "shards", tarpeg.Yolo(tmp / "data.yaml"), workers=0).samples
        1
        >>> crop, boxes = tarpeg.LetterBox(64), tarpeg.Boxes("json:objects")
        >>> split = tarpeg.Split(tmp / "shards" / "train-*.tar", crop, targets=boxes)
    """

    root: str
    split: str = "train"
    task: str = "detect"
    names: Sequence[str] | Mapping[int, str] | None = None
    kpt_shape: Sequence[int] | None = None
    keep_empty: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", str(self.root))
        check_integer("seed", self.seed)
        if self.task not in _TASKS:
            raise ValueError(f"task={self.task!r} must be one of {_TASKS}{similar(self.task, _TASKS)}")
        if not self.root.endswith(_SUFFIXES) and self.names is None:
            raise ValueError(f"root={self.root!r} is not a data.yaml: a folder of images needs names=")

    def place(self) -> str:
        """Path of data.yaml or of the folder."""
        return self.root

    def listing(self) -> Listing:
        """List the images and what belongs to them; raises ShardError."""
        settings = self._settings()
        names = self._names(settings)
        shape = self._shape(settings)
        places = self._places(settings)
        paths = [path for place in places for path in self._images(place)]
        if len({*paths}) < len(paths):
            raise ShardError(f"{self.root}: the split {self.split!r} has images twice")
        folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""  # noqa: PTH120
        keys, images, broken, labels = Keys(folder), list[AnnotatedImage](), [], dict[str, str]()
        lacking = []
        for number, path in enumerate(sorted(paths)):
            text = _labels_of(path)
            if text in labels:
                raise ShardError(f"{labels[text]} and {path} have one file of labels, {text}")
            labels[text] = path
            is_there = Path(text).exists()
            lacking += [] if is_there else [path]
            name = os.path.relpath(path, folder)
            lines = _Lines(text if is_there else None, name, number, names, self.task, shape)
            try:
                images.append(keys.image(name, annotation=lines, keep_empty=self.keep_empty))
            except BrokenError as error:
                broken.append(str(error))
        if lacking and len(lacking) == len(paths):
            if not Path(lacking[0]).exists():  # in a list
                raise ShardError(
                    f"no image of {self.root} has labels, and {lacking[0]} does not exist: the lines of a "
                    "list of images are paths from the folder of the list"
                )
            raise ShardError(f"no image of {self.root} has labels: {_labels_of(lacking[0])} does not exist")
        notes = count("images without a file of labels, which have no objects", lacking)
        notes += count(
            "labels without an image", [each for each in _labels_below(places) if each not in labels]
        )
        return Listing(shuffled(images, self.seed), names_with_background(names), broken, notes)

    def _settings(self) -> dict[str, Any]:
        if not self.root.endswith(_SUFFIXES):
            return {}
        import yaml  # here, because only this needs it

        try:
            found = yaml.safe_load(read_regular(self.root))
        except OSError as error:
            raise ShardError(f"root={self.root!r} cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ShardError(f"root={self.root!r} is not YAML: {error}") from error
        if not isinstance(found, dict):
            raise ShardError(f"root={self.root!r} has no settings: it is a {type(found).__name__}")
        return found

    def _names(self, settings: dict[str, Any]) -> tuple[str, ...]:
        given: Any = settings.get("names") if self.names is None else self.names
        if isinstance(given, Mapping):
            numbers = sorted(given, key=str) if {*map(type, given)} != {int} else sorted(given)
            names = [given[number] for number in numbers] if numbers == [*range(len(numbers))] else []
        else:
            names = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
        # Lists of lists, with YAML's references, may be longer than memory as text.
        if any(type(name) not in (str, int, float, bool) for name in names):
            raise ShardError(f"{self.root}: names must be texts, by number from 0")
        names = [str(name) for name in names]
        if not names or len({*names}) < len(names) or settings.get("nc", len(names)) != len(names):
            raise ShardError(
                f"{self.root}: names are {given!r} (nc: {settings.get('nc')}), not different names by number "
                "from 0"
            )
        return tuple(names)

    def _shape(self, settings: dict[str, Any]) -> tuple[int, int] | None:
        given: Any = settings.get("kpt_shape") if self.kpt_shape is None else self.kpt_shape
        if self.task != "pose":
            if given is not None:  # whose lines could be taken for polygons
                raise ShardError(
                    f"{self.root}: kpt_shape is {given!r}, of lines with points, and task={self.task!r}: "
                    "give task='pose', which has the boxes too"
                )
            return None
        is_pair = isinstance(given, Sequence) and len(given) == 2 and {*map(type, given)} == {int}
        if not is_pair or given[0] < 1 or given[1] not in (2, 3):
            raise ShardError(f"{self.root}: kpt_shape is {given!r}; task='pose' needs [points, 2 or 3]")
        return given[0], given[1]

    def _places(self, settings: dict[str, Any]) -> list[Path]:
        """Return the folders and lists of images of the split."""
        if not settings:
            return [Path(self.root).expanduser()]
        if not settings.get(self.split):
            others = [name for name in ("train", "val", "test") if settings.get(name)]
            raise ShardError(f"{self.root} has no split {self.split!r}: it has {others}")
        root = Path(self.root).expanduser().parent / str(settings.get("path") or "")
        given = settings[self.split]
        places = []
        for name in given if isinstance(given, list) else [given]:
            if not isinstance(name, str):
                raise ShardError(f"{self.root}: {self.split} must be a path, or a list of paths")
            place = root / name
            if not place.exists() and name.startswith("../"):
                place = root / name[3:]  # as Ultralytics, for exports that begin so
            if not place.exists():
                raise ShardError(
                    f"{self.root}: {self.split} is {name!r}, and {place} does not exist; path is "
                    f"{settings.get('path')!r}, relative to the folder of {Path(self.root).name}"
                )
            places.append(place)
        return places

    def _images(self, place: Path) -> list[str]:
        if place.is_dir():
            return [os.path.abspath(path) for path in images_below(place)]  # noqa: PTH100
        try:
            lines = read_regular(place).decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ShardError(f"{place}, a list of images, cannot be read: {error}") from error
        return [os.path.abspath(place.parent / line.strip()) for line in lines if line.strip()]  # noqa: PTH100


def _labels_of(path: str) -> str:
    """Return the path of the labels of an image: the last folder images is labels."""
    before, between, after = path.rpartition(f"{os.sep}images{os.sep}")
    place = f"{before}{os.sep}labels{os.sep}{after}" if between else path
    return os.path.splitext(place)[0] + ".txt"  # noqa: PTH122


def _labels_below(places: Sequence[Path]) -> list[str]:
    """Return the paths of the files of labels of all folders of images."""
    folders = {Path(_labels_of(os.path.abspath(place / "_"))).parent for place in places if place.is_dir()}  # noqa: PTH100
    found = (path for folder in sorted(folders) for path in sorted(folder.rglob("*.txt")))
    return [str(path) for path in found if path.name != "classes.txt"]  # LabelImg's


@dataclass(frozen=True)
class _Lines:
    """The labels of one image, not read yet."""

    path: str | None
    file_name: str
    number: int
    names: tuple[str, ...]
    task: str
    shape: tuple[int, int] | None

    def document(self, image: Upright) -> dict[str, Any]:
        """Return the fields of the JSON member; raises BrokenError."""
        objects, seen = [], set[str]()
        if self.path is not None:
            try:
                lines = read_file(self.path).decode("utf-8-sig").splitlines()
            except UnicodeDecodeError as error:
                raise BrokenError(f"{self.path} is not text: {error}") from error
            for number, line in enumerate(lines, start=1):
                if line.strip() and line.strip() not in seen:  # Ultralytics drops repeated lines, too
                    seen.add(line.strip())
                    objects.append(self._object(f"{self.path}, line {number}", line.split(), image.size))
        return {
            "image_id": self.number,
            "file_name": self.file_name,
            "height": image.size[0],
            "width": image.size[1],
            "objects": objects,
        }

    def _object(self, where: str, words: list[str], size: tuple[int, int]) -> dict[str, Any]:
        height, width = size
        try:
            label, *numbers = map(float, words)
        except ValueError as error:
            raise BrokenError(f"{where}: {error}") from error
        if label not in range(len(self.names)):
            raise BrokenError(f"{where}: class {words[0]} is not in 0..{len(self.names) - 1}")
        self._check_number(where, len(numbers))
        found: dict[str, Any] = {
            "category_id": int(label) + 1,
            "category": self.names[int(label)],
            "iscrowd": 0,
        }
        if self.task == "segment" or (self.task == "detect" and len(numbers) > 4):
            _check_shares(where, numbers)
            xs, ys = (
                [each * side for each in own]
                for own, side in ((numbers[::2], width), (numbers[1::2], height))
            )
            box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
            found = {"bbox": _rounded(box), **found}
            if self.task == "segment":
                found["segmentation"] = [_rounded(each for pair in zip(xs, ys, strict=True) for each in pair)]
            return found
        _check_shares(where, numbers[:4])
        x, y, wide, high = numbers[:4]
        box = [(x - wide / 2) * width, (y - high / 2) * height, wide * width, high * height]
        found = {"bbox": _rounded(box), **found}
        if self.shape is not None:
            found["keypoints"] = self._points(where, numbers[4:], size)
            found["num_keypoints"] = sum(visibility > 0 for visibility in found["keypoints"][2::3])
        return found

    def _check_number(self, where: str, numbers: int) -> None:
        points, each = self.shape or (0, 0)
        box, polygon = f"{4 + points * each} numbers", "a polygon of three points or more"
        is_box, is_polygon = numbers == 4 + points * each, numbers >= 6 and numbers % 2 == 0
        expected, is_right = {
            "detect": (f"{box} or {polygon}", is_box or is_polygon),
            "segment": (f"{polygon} (task='detect' reads boxes too)", is_polygon),
            "pose": (box, is_box),
        }[self.task]
        if not is_right:
            raise BrokenError(
                f"{where} has {numbers} numbers behind the class, not {expected}: task= is {self.task!r}"
            )

    def _points(self, where: str, numbers: list[float], size: tuple[int, int]) -> list[float]:
        """Return x, y, visibility of each point in pixels; zeros for one that is not labelled."""
        count, each = self.shape or (0, 2)
        found: list[float] = []
        for start in range(0, count * each, each):
            x, y, *rest = numbers[start : start + each]
            visibility = rest[0] if rest else 2.0 * (x >= 0 and y >= 0)
            if visibility not in (0, 1, 2):
                raise BrokenError(
                    f"{where}: point {start // each} has the visibility {visibility}, not 0, 1 or 2"
                )
            if not visibility:
                found += [0, 0, 0]
                continue
            _check_shares(where, [x, y])
            places = (min(max(share, 0.0), 1.0) * side for share, side in ((x, size[1]), (y, size[0])))
            found += [*_rounded(places), int(visibility)]
        return found


def _check_shares(where: str, numbers: Sequence[float]) -> None:
    for number in numbers:
        if not math.isfinite(number) or not -_BEYOND <= number <= 1 + _BEYOND:
            raise BrokenError(f"{where}: {number} is not a share of the image, 0..1")


def _rounded(numbers: Any) -> list[float]:
    return [round(number, 4) for number in numbers]
