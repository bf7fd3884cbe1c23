"""Synthetic scenes: objects of a few shapes on a photograph, with exact boxes, masks and keypoints."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from ..errors import check_integer
from ..sampling.geometry import Bool
from ..shards.classes import BACKGROUND
from .synthetic import Photos, draw_scene, encoded, picture_parts

SHAPES = ("disc", "square", "triangle", "star", "cross", "drop")
"""Names of the classes, 1 and following; 0 is the background."""
POINTS = ("top", "left", "right")
"""Names of the keypoints of an object."""
_TURN = 0.45  # largest tilt of an object, in radians: its top stays above
_HIDDEN = 0.35  # largest share of an object that a later one may hide
_TRIES = 12  # places that are tried for an object
_MUTED = 0.4  # share of the background's colour that is left
_LEAST = 16  # pixels of an object that are visible at least


@dataclass(frozen=True)
class Scenes(Photos):
    """Parameters of synthetic scenes: photographs with objects whose boxes, masks and points are known.

    A sample has ``jpg``; ``json``, ``{"image_id", "height", "width", "objects"}``; and ``png``, a semantic
    mask of the classes 1 and following, 0 for the background. An object is as in COCO: ``bbox``
    [left, top, width, height] and ``area`` of its visible pixels, ``category_id``, 1 to ``classes``,
    ``category``, the name, ``iscrowd``, 0, ``keypoints`` (top, left and right of the shape: x, y and
    visibility, 1 if another object hides the point, three zeros outside of the image), ``num_keypoints``, and
    ``segmentation``, the run lengths of its visible pixels. All are of the upright image, and exact.

    Classes differ in shape (disc, square, triangle, star, cross, drop) and in hue. A mirrored scene changes
    left and right: ``flip_pairs=[(1, 2)]``.

    Args:
        size: Size of the photographs, as of ``Photos``; sides are 64 pixels at least.
        quality: JPEG quality, 1 to 100.
        subsampling: "4:4:4", "4:2:2" or "4:2:0".
        classes: Number of classes, 1 to 6.
        seed: Seed of the pictures.
        progressive: Probability that a picture is a progressive JPEG.
        gray: Probability that a picture is grayscale.
        exif: Probability that a picture is stored rotated or mirrored, with an EXIF orientation of 2 to 8.
        corrupt: Probability that a picture is truncated, has flipped bits, or is empty.
        objects: Smallest and largest number of objects, 0 to 64; there are fewer if they have no room.
        extent: Smallest and largest size of an object, as a share of the shorter side, 0.05 to 0.9.

    Raises:
        ValueError: For a value out of range.

    Example:
        >>> report = tarpeg.make_shards(tmp, tarpeg.Scenes(size=96, classes=3), samples=4, workers=0)
        >>> boxes, masks = tarpeg.Boxes("json:objects"), tarpeg.Masks("png")
        >>> split = tarpeg.Split(tmp / "train-*.tar", tarpeg.RandomCrop(64), targets=[boxes, masks])
        >>> images, targets = next(iter(tarpeg.Loader(split, batch_size=4, workers=0)))
        >>> sorted(targets[0])
        ['area', 'boxes', 'image_id', 'iscrowd', 'labels', 'mask', 'orig_size', 'size']
    """

    classes: int = 4
    objects: Any = (1, 6)
    extent: Any = (0.15, 0.4)

    smallest: ClassVar[int] = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("classes", self.classes, 1, len(SHAPES))
        for name, low, high, kinds in (("objects", 0, 64, {int}), ("extent", 0.05, 0.9, {int, float})):
            given = getattr(self, name)
            pair = tuple(given) if isinstance(given, Sequence) else ()
            if len(pair) != 2 or not {*map(type, pair)} <= kinds or not low <= pair[0] <= pair[1] <= high:
                raise ValueError(
                    f"{name}={given!r} must be the smallest and the largest, both in {low}..{high}"
                )
            object.__setattr__(self, name, pair)

    def class_names(self) -> dict[str, int]:
        """Return the labels by name, with 0 for the background."""
        return {name: label for label, name in enumerate((BACKGROUND, *SHAPES[: self.classes]))}

    def members(self, index: int, split: str) -> dict[str, bytes]:
        """Return the members of a sample by extension, the image first."""
        scene = draw_objects(self, index, split)
        png = io.BytesIO()
        Image.fromarray(scene.mask).save(png, "PNG")
        return {
            "jpg": encoded(self, scene.picture, index, split),
            "json": json.dumps(scene.document).encode(),
            "png": png.getvalue(),
        }


class Scene(NamedTuple):
    """A drawn scene, upright.

    Args:
        picture: In YCbCr.
        document: What the JSON member has.
        mask: uint8 [H, W], the class of each pixel.
        owners: uint8 [H, W], 1 and following in the order of the document's objects, 0 for the background.
    """

    picture: Image.Image
    document: dict[str, Any]
    mask: NDArray[np.uint8]
    owners: NDArray[np.uint8]


class _Object(NamedTuple):
    label: int
    corners: list[tuple[float, float]]
    points: list[tuple[float, float]]
    radius: float


def draw_objects(scenes: Scenes, index: int, split: str = "train") -> Scene:
    """Draw scene ``index`` of ``split``."""
    rng, height, width = picture_parts(scenes, index, split)
    background = draw_scene(rng, height, width, rng.uniform(0, math.tau), math.pi)
    fields = [np.asarray(part, np.float32).copy() for part in background.split()]
    for field in fields[1:]:
        field += (128 - field) * np.float32(1 - _MUTED)
    owners = np.zeros((height, width), np.uint8)
    found: list[_Object] = []
    for _ in range(int(rng.integers(scenes.objects[0], scenes.objects[1] + 1))):
        placed = _placed(scenes, rng, owners)
        if placed is not None:
            thing, inside = placed
            found.append(thing)
            owners[inside] = len(found)
            _paint(scenes, rng, fields, thing, inside)
    mask = np.array([0, *(each.label for each in found)], np.uint8)[owners]
    objects = [_described(each, owners, number) for number, each in enumerate(found, start=1)]
    document = {"image_id": index, "height": height, "width": width, "objects": objects}
    levels = [Image.fromarray((field + 0.5).clip(0, 255).astype(np.uint8)) for field in fields]
    return Scene(Image.merge("YCbCr", levels), document, mask, owners)


def _placed(
    scenes: Scenes, rng: np.random.Generator, owners: NDArray[np.uint8]
) -> tuple[_Object, Bool] | None:
    """Return a new object and its pixels, of which no earlier one has too many; None if there is no room."""
    height, width = owners.shape
    before = np.bincount(owners.ravel(), minlength=256)
    for _ in range(_TRIES):
        thing = _object(scenes, rng, height, width)
        image = Image.new("1", (width, height))
        ImageDraw.Draw(image).polygon(thing.corners, fill=1)
        inside = np.asarray(image)
        after = np.bincount(owners[~inside], minlength=256)
        hidden = after[1:] < (1 - _HIDDEN) * before[1:]
        if inside.sum() >= _LEAST and not hidden.any() and (after[1:] >= _LEAST)[before[1:] > 0].all():
            return thing, inside
    return None


def _object(scenes: Scenes, rng: np.random.Generator, height: int, width: int) -> _Object:
    """Draw the class, the place and the outline of an object."""
    label = int(rng.integers(1, scenes.classes + 1))
    radius = rng.uniform(*scenes.extent) * min(height, width) / 2
    y, x = (rng.uniform(0.4 * radius, side - 0.4 * radius) for side in (height, width))
    tilt, stretch = rng.uniform(-_TURN, _TURN), rng.uniform(0.85, 1.15)
    rows = np.array([[math.cos(tilt), -math.sin(tilt)], [math.sin(tilt), math.cos(tilt)]])
    outline, points = _SHAPES[SHAPES[label - 1]]
    corners, moved = (
        (each * [stretch, 1 / stretch] * radius) @ rows.T + [x, y] for each in (outline, points)
    )
    return _Object(label, [*map(tuple, corners.tolist())], [*map(tuple, moved.tolist())], radius)


def _paint(
    scenes: Scenes,
    rng: np.random.Generator,
    fields: list[NDArray[np.float32]],
    thing: _Object,
    inside: Bool,
) -> None:
    """Paint an object of the hue of its class, lit from the upper left, with an edge as soft as a lens's."""
    hue = math.tau * (thing.label - 1 + rng.uniform(-0.25, 0.25)) / scenes.classes
    strength, level = rng.uniform(40, 62), rng.uniform(80, 180)
    soft = Image.fromarray(inside).convert("L").filter(ImageFilter.BoxBlur(1))
    share = np.asarray(soft, np.float32) / np.float32(255)
    height, width = inside.shape
    center = np.mean(thing.corners, axis=0)
    slope = np.float32(22 / max(thing.radius, 1))
    light = np.float32(level) - slope * (np.arange(height, dtype=np.float32)[:, None] - np.float32(center[1]))
    light = light - slope / 2 * (np.arange(width, dtype=np.float32)[None] - np.float32(center[0]))
    texture = np.float32(0.35) * (fields[0] - fields[0].mean())
    colours = (light + texture, 128 + strength * math.cos(hue), 128 + strength * math.sin(hue))
    for field, colour in zip(fields, colours, strict=True):
        field += share * (np.asarray(colour, np.float32) - field)


def _described(thing: _Object, owners: NDArray[np.uint8], number: int) -> dict[str, Any]:
    """Return an object in COCO's form."""
    height, width = owners.shape
    inside = owners == number
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    top, left = int(rows[0]), int(columns[0])
    points: list[float] = []
    for x, y in thing.points:
        is_there = 0 <= x < width and 0 <= y < height
        # A later object hides what it covers; the point itself lies on the edge of its own object.
        is_hidden = is_there and owners[int(y), int(x)] > number
        points += [round(x, 2), round(y, 2), 1 if is_hidden else 2] if is_there else [0, 0, 0]
    return {
        "bbox": [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top],
        "category_id": thing.label,
        "category": SHAPES[thing.label - 1],
        "area": int(inside.sum()),
        "iscrowd": 0,
        "keypoints": points,
        "num_keypoints": sum(visibility > 0 for visibility in points[2::3]),
        "segmentation": {"size": [height, width], "counts": run_lengths(inside)},
    }


def run_lengths(inside: Bool) -> list[int]:
    """Return COCO's run lengths of a mask [H, W]: down the columns, first of the pixels outside."""
    flat = np.asarray(inside, np.int8).ravel(order="F")
    changes = np.flatnonzero(np.diff(flat, prepend=np.int8(0)))
    lengths: list[int] = np.diff([0, *changes.tolist(), flat.size]).tolist()
    return lengths


def _round(angles: Any, radii: Any) -> NDArray[np.float64]:
    """Return points (x, y) of a shape, from the angles to its top, clockwise."""
    return np.stack([np.sin(angles) * radii, -np.cos(angles) * radii], axis=1)


def _outlines() -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the outline of each shape, of radius about 1, and its three keypoints."""
    even = np.linspace(0, math.tau, 40, endpoint=False)
    disc = _round(even, 1.0)
    square = np.array([[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]])
    triangle = _round(np.arange(3) * math.tau / 3, 1.1)
    star = _round(np.arange(10) * math.tau / 10, np.where(np.arange(10) % 2, 0.45, 1.1))
    arm, end = 0.34, 1.0
    cross = np.array(
        [
            [-arm, -end], [arm, -end], [arm, -arm], [end, -arm], [end, arm], [arm, arm],
            [arm, end], [-arm, end], [-arm, arm], [-end, arm], [-end, -arm], [-arm, -arm],
        ]
    )  # fmt: skip
    drop = np.concatenate([[[0.0, -1.2]], _round(np.linspace(0.3 * math.pi, 1.7 * math.pi, 24), 0.8)])
    found = {}
    for name, outline in zip(SHAPES, (disc, square, triangle, star, cross, drop), strict=True):
        sides = outline[np.abs(outline[:, 0]) > 0.98 * np.abs(outline[:, 0]).max()]
        height = float(sides[:, 1].mean())
        reach = float(np.abs(outline[:, 0]).max())
        points = np.array([[0.0, outline[:, 1].min()], [-reach, height], [reach, height]])
        found[name] = (outline, points)
    return found


_SHAPES = _outlines()
