"""Synthetic labelled photographs: piles of shaded stones whose hue is the class, encoded as JPEG.

Every picture is a pure function of (seed, split, index), whoever draws it and in whatever order.
"""

from __future__ import annotations

import functools
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .scenes import draw_scene

# (height, width) and weight; the last entry of "imagenet" is drawn anew for each picture, see _pick_size.
_ODD = ((190, 688), (236, 800))
_PRESETS: dict[str, tuple[tuple[Any, float], ...]] = {
    "article": (((533, 800), 1.0),),
    "big": (((1500, 2000), 1.0),),
    "imagenet": (
        ((375, 500), 0.40),
        ((500, 375), 0.15),
        ((333, 500), 0.12),
        ((500, 333), 0.05),
        (_ODD, 0.28),
    ),
}
_SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")
# The smallest that still shows stones; the largest (JPEG allows 65500) so that one picture fits in memory.
_SIDES = (16, 16384)

# How a picture is stored so that EXIF orientation 2..8 turns it upright: the inverse of what the tag says.
_STORED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Photos:
    """What synthetic photographs are like; hashable, and the same numbers give the same pictures.

    size: an int (a square), (height, width), "article" (800 wide, 533 high), "imagenet" (a mix, on average
    478 wide and 413 high), "big" (2000 wide, 1500 high), or a list of these, drawn from evenly. Two ints are
    always one (height, width). Sides in 16..16384.
    quality: 1..100; subsampling: "4:4:4", "4:2:2" or "4:2:0"; classes: 1..65536, told apart by hue.
    progressive, gray, exif, corrupt: the chance in 0..1 that a picture is a progressive JPEG, a grayscale one
    (which hides its class), stored turned or mirrored under an EXIF orientation of 2..8, or broken: cut off,
    with flipped bits, or empty.

    Raises:
        ValueError: for a value out of range; the message names it.
    """

    size: Any = 256
    quality: int = 90
    subsampling: str = "4:2:0"
    classes: int = 10
    seed: int = 0
    progressive: float = 0.0
    gray: float = 0.0
    exif: float = 0.0
    corrupt: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _sizes(self.size))
        for name, low, high in (("quality", 1, 100), ("classes", 1, 65536), ("seed", 0, 2**63)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ValueError(f"{name}: expected an integer in {low}..{high}, got {value!r}")
        if self.subsampling not in _SUBSAMPLINGS:
            raise ValueError(
                f"subsampling: expected one of {', '.join(_SUBSAMPLINGS)}, got {self.subsampling!r}"
            )
        for name in ("progressive", "gray", "exif", "corrupt"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
                raise ValueError(f"{name}: expected a share in 0..1, got {value!r}")

    @classmethod
    def of(cls, value: Photos | Mapping[str, Any]) -> Photos:
        """Return `value` itself, or build it from a mapping of the fields, as a config gives it."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"photos: expected Photos or a mapping of its fields, got {value!r}")
        fields = cls.__dataclass_fields__
        for name in value:
            if name not in fields:
                raise ValueError(f"photos: no field {name!r}; there are {', '.join(fields)}")
        return cls(**{str(name): field for name, field in value.items()})


class Photograph(NamedTuple):
    """One encoded picture: its bytes, its class, and its number of pixels (0 where it was corrupted)."""

    jpeg: bytes
    label: int
    pixels: int


class _Plan(NamedTuple):
    height: int
    width: int
    progressive: bool
    gray: bool
    orientation: int  # 1: stored as it is
    corrupt: bool


def photograph(photos: Photos, index: int, split: str = "train") -> Photograph:
    """Draw and encode picture `index` of `split`; other splits are other pictures."""
    plan = _plan(photos, index, split)
    picture = draw(photos, index, split)
    if plan.gray:
        picture = picture.getchannel("Y")
    options: dict[str, Any] = {"quality": photos.quality, "subsampling": photos.subsampling}
    if plan.orientation != 1:
        picture = picture.transpose(_STORED[plan.orientation])
        exif = Image.Exif()
        exif[_ORIENTATION] = plan.orientation
        options["exif"] = exif
    stream = io.BytesIO()
    picture.save(stream, "JPEG", progressive=plan.progressive, **options)
    jpeg, label = stream.getvalue(), label_of(photos, index, split)
    if plan.corrupt:
        return Photograph(_corrupted(jpeg, _generator(photos, split, index, "corrupt")), label, 0)
    return Photograph(jpeg, label, plan.height * plan.width)


def label_of(photos: Photos, index: int, split: str = "train") -> int:
    """Return the class of picture `index`: each class once in every run of `classes` pictures."""
    block, place = divmod(index, photos.classes)
    return int(_labels(photos.seed, photos.classes, split, block)[place])


def draw(photos: Photos, index: int, split: str = "train") -> Image.Image:
    """Draw picture `index` as it is meant to be seen: upright, in colour, mode YCbCr, before any loss."""
    plan = _plan(photos, index, split)
    step = math.tau / photos.classes
    rng = _generator(photos, split, index, "draw")
    return draw_scene(rng, plan.height, plan.width, step * label_of(photos, index, split), 0.3 * step)


def _corrupted(jpeg: bytes, rng: np.random.Generator) -> bytes:
    kind = rng.integers(3)
    if kind == 0:
        return jpeg[: int(len(jpeg) * rng.uniform(0.02, 0.98))]
    if kind == 1:
        return b""
    flipped = np.frombuffer(jpeg, dtype=np.uint8).copy()
    places = rng.integers(0, len(jpeg), 16)
    flipped[places] ^= np.left_shift(1, rng.integers(0, 8, 16)).astype(np.uint8)
    return flipped.tobytes()


def _generator(photos: Photos, split: str, index: int, purpose: str) -> np.random.Generator:
    # One stream per purpose, so that asking for EXIF or corruption leaves the pictures as they were.
    words = [photos.seed, zlib.crc32(split.encode()), zlib.crc32(purpose.encode()), index]
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words)))


@functools.lru_cache(maxsize=64)
def _labels(seed: int, classes: int, split: str, block: int) -> NDArray[np.int64]:
    words = [seed, zlib.crc32(split.encode()), zlib.crc32(b"label"), block]
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words))).permutation(classes)


def _plan(photos: Photos, index: int, split: str) -> _Plan:
    rng = _generator(photos, split, index, "plan")
    progressive, gray, exif, corrupt = rng.random(4).tolist()
    orientation = int(rng.integers(2, 9))
    height, width = _pick_size(photos.size, rng)
    return _Plan(
        height=height,
        width=width,
        progressive=progressive < photos.progressive,
        gray=gray < photos.gray,
        orientation=orientation if exif < photos.exif else 1,
        corrupt=corrupt < photos.corrupt,
    )


def _pick_size(sizes: tuple[Any, ...], rng: np.random.Generator) -> tuple[int, int]:
    entry = sizes[int(rng.integers(len(sizes)))]
    if isinstance(entry, str):
        choices, weights = zip(*_PRESETS[entry], strict=True)
        entry = choices[int(rng.choice(len(choices), p=weights))]
        if entry is _ODD:
            entry = tuple(int(rng.integers(low, high + 1)) for low, high in _ODD)
    height, width = entry
    return height, width


def _sizes(size: Any) -> tuple[Any, ...]:
    """`size` in its plainest form: a tuple of preset names and (height, width)."""
    if isinstance(size, str) or not isinstance(size, Sequence):
        return (_one_size(size, size),)
    if _is_pair(size):
        return (_one_size(size, size),)
    if not size:
        raise ValueError(f"size: expected at least one size, got {size!r}")
    return tuple(_one_size(entry, size) for entry in size)


def _one_size(entry: Any, size: Any) -> str | tuple[int, int]:
    if isinstance(entry, str) and entry in _PRESETS:
        return entry
    pair = (entry, entry) if isinstance(entry, int) else entry
    if not _is_pair(pair):
        presets = ", ".join(_PRESETS)
        raise ValueError(
            f"size: expected an int, (height, width), one of {presets}, or a list of these, got {size!r}"
        )
    if any(not _SIDES[0] <= side <= _SIDES[1] for side in pair):
        raise ValueError(f"size: sides must be {_SIDES[0]}..{_SIDES[1]} pixels, got {size!r}")
    return int(pair[0]), int(pair[1])


def _is_pair(value: Any) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        return False
    return all(isinstance(side, int) and not isinstance(side, bool) for side in value)
