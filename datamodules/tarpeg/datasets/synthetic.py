"""Synthetic labelled photographs: piles of shaded, textured stones whose hue is the class, encoded as JPEG.

Texture and soft edges are defined in pixels, so that JPEG quality 90 with 4:2:0 costs about 1.5 bits per
pixel at any size from 128x160 to 2000x1500. Imports no torch: processes that draw must start quickly.
"""

from __future__ import annotations

import functools
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from ..errors import check_integer, check_probability, similar

_Field = NDArray[np.float32]

# Preset -> ((height, width), weight); _ODD holds the ranges of height and width, drawn for each picture.
_ODD = ((190, 688), (236, 800))
_PRESETS: dict[str, tuple[tuple[Any, float], ...]] = {
    "article": (((533, 800), 1.0),),
    "big": (((1500, 2000), 1.0),),
    "imagenet": (((375, 500), 0.4), ((500, 375), 0.15), ((333, 500), 0.12), ((500, 333), 0.05), (_ODD, 0.28)),
}
_SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")
_LARGEST = 16384  # larger pictures (JPEG allows 65500) may not fit in memory

# Operation before storing, so that EXIF orientation 2..8 turns the picture upright: the tag's inverse.
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

# Amplitudes of the texture's octaves, in levels, for cells of 1, 2, 4 ... 64 pixels: nearly 1/f, as in
# photographs, with less in the finest, because lenses blur it. Found by measuring bits per pixel.
_OCTAVES = (5.7, 15.2, 24.7, 32.3, 38.0, 41.8, 45.6)
_RANDOM_HUE = 3  # one stone in three has a random hue


@dataclass(frozen=True)
class Photos:
    """Parameters of synthetic photographs; hashable. Equal parameters give equal pictures.

    Args:
        size: An int (a square), (height, width), "article" (533, 800), "imagenet" (a mixture, on average 413
            high and 478 wide), "big" (1500, 2000), or a list of these, drawn evenly. Two ints are always one
            (height, width). Sides are 16 to 16384 pixels.
        quality: JPEG quality, 1 to 100.
        subsampling: "4:4:4", "4:2:2" or "4:2:0".
        classes: Number of classes, 1 to 65536, which differ in hue.
        seed: Seed of the pictures.
        progressive: Probability that a picture is a progressive JPEG.
        gray: Probability that a picture is grayscale, which hides its class.
        exif: Probability that a picture is stored rotated or mirrored, with an EXIF orientation of 2 to 8.
        corrupt: Probability that a picture is truncated, has flipped bits, or is empty.

    Raises:
        ValueError: For a value out of range.

    Example:
        >>> photos = tarpeg.Photos(size=(96, 128), classes=3, progressive=0.1)
        >>> report = tarpeg.make_shards(tmp, photos, samples=6, workers=0)
        >>> report.samples
        6
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

    smallest: ClassVar[int] = 16  # smaller pictures show no stones

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _sizes(self.size, self.smallest))
        for name, low, high in (("quality", 1, 100), ("classes", 1, 65536), ("seed", 0, 2**63)):
            check_integer(name, getattr(self, name), low, high)
        if self.subsampling not in _SUBSAMPLINGS:
            raise ValueError(f"subsampling={self.subsampling!r} must be one of {', '.join(_SUBSAMPLINGS)}")
        for name in ("progressive", "gray", "exif", "corrupt"):
            check_probability(name, getattr(self, name))

    @classmethod
    def of(cls, value: Photos | Mapping[str, Any]) -> Photos:
        """Return `value` itself, or build it from a mapping of the fields, as in a config."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"photos={value!r} must be Photos or a mapping of its fields")
        fields = cls.__dataclass_fields__
        for name in value:
            if name not in fields:
                near = similar(name, fields)
                raise ValueError(f"photos has no field {name!r}; the fields are {', '.join(fields)}{near}")
        return cls(**{str(name): field for name, field in value.items()})

    def class_names(self) -> dict[str, int] | None:
        """Return the labels by name; None for classes without names."""
        return None

    def members(self, index: int, split: str) -> dict[str, bytes]:
        """Return the members of a sample by extension, the image first."""
        photo = photograph(self, index, split)
        return {"jpg": photo.jpeg, "cls": b"%d" % photo.label}

    def scene(self, rng: np.random.Generator, index: int, label: int, height: int, width: int) -> Image.Image:
        """Return picture ``index``, whose class is ``label``: upright, in colour, mode YCbCr.

        A subclass that overrides this method stores other pictures. It needs no other random numbers than
        those of ``rng``.
        """
        step = math.tau / self.classes
        return draw_scene(rng, height, width, step * label, 0.3 * step)


class Photograph(NamedTuple):
    """An encoded picture and its class."""

    jpeg: bytes
    label: int


class _Traits(NamedTuple):
    """What is drawn for a picture beside its pixels."""

    height: int
    width: int
    progressive: bool
    gray: bool
    orientation: int  # EXIF's; 1 is upright
    corrupt: bool


def photograph(photos: Photos, index: int, split: str = "train") -> Photograph:
    """Draw and encode picture `index` of `split`; another split has other pictures."""
    jpeg = encoded(photos, draw(photos, index, split), index, split)
    return Photograph(jpeg, label_of(photos, index, split))


def encoded(photos: Photos, picture: Image.Image, index: int, split: str) -> bytes:
    """Return the JPEG of an upright picture in YCbCr, stored and damaged as ``photos`` asks for."""
    traits = _traits(photos, index, split)
    if traits.gray:
        picture = picture.getchannel("Y")
    options: dict[str, Any] = {"quality": photos.quality, "subsampling": photos.subsampling}
    if traits.orientation != 1:
        picture = picture.transpose(_STORED[traits.orientation])
        exif = Image.Exif()
        exif[_ORIENTATION] = traits.orientation
        options["exif"] = exif
    stream = io.BytesIO()
    picture.save(stream, "JPEG", progressive=traits.progressive, **options)
    jpeg = stream.getvalue()
    if traits.corrupt:
        jpeg = _corrupted(jpeg, _generator(photos, split, index, "corrupt"))
    return jpeg


def label_of(photos: Photos, index: int, split: str = "train") -> int:
    """Return the class of picture `index`; each block of `classes` pictures contains every class once."""
    block, offset = divmod(index, photos.classes)
    return int(_labels(photos, split, block)[offset])


def draw(photos: Photos, index: int, split: str = "train") -> Image.Image:
    """Draw picture `index` upright and in colour, mode YCbCr, before grayscale, EXIF and compression."""
    rng, height, width = picture_parts(photos, index, split)
    return photos.scene(rng, index, label_of(photos, index, split), height, width)


def picture_parts(photos: Photos, index: int, split: str) -> tuple[np.random.Generator, int, int]:
    """Return the generator that draws a picture, and the height and width of the picture."""
    traits = _traits(photos, index, split)
    return _generator(photos, split, index, "draw"), traits.height, traits.width


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _corrupted(jpeg: bytes, rng: np.random.Generator) -> bytes:
    kind = rng.integers(3)
    if kind == 0:
        return jpeg[: int(len(jpeg) * rng.uniform(0.02, 0.98))]
    if kind == 1:
        return b""
    flipped = np.frombuffer(jpeg, dtype=np.uint8).copy()
    positions = rng.integers(0, len(jpeg), 16)
    flipped[positions] ^= np.left_shift(1, rng.integers(0, 8, 16)).astype(np.uint8)
    return flipped.tobytes()


def _generator(photos: Photos, split: str, index: int, purpose: str) -> np.random.Generator:
    # One stream per purpose, so that EXIF or corruption does not change the pictures.
    words = [photos.seed, zlib.crc32(split.encode()), zlib.crc32(purpose.encode()), index]
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words)))


@functools.lru_cache(maxsize=64)
def _labels(photos: Photos, split: str, block: int) -> NDArray[np.int64]:
    return _generator(photos, split, block, "label").permutation(photos.classes)


def _traits(photos: Photos, index: int, split: str) -> _Traits:
    rng = _generator(photos, split, index, "plan")
    progressive, gray, exif, corrupt = rng.random(4).tolist()
    orientation = int(rng.integers(2, 9))
    height, width = _pick_size(photos.size, rng)
    return _Traits(
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


def _sizes(size: Any, smallest: int) -> tuple[Any, ...]:
    """Return `size` as a tuple of preset names and (height, width)."""
    if isinstance(size, str) or not isinstance(size, Sequence) or _is_pair(size):
        return (_one_size(size, size, smallest),)
    if not size:
        raise ValueError(f"size={size!r} must not be empty")
    return tuple(_one_size(entry, size, smallest) for entry in size)


def _one_size(entry: Any, size: Any, smallest: int) -> str | tuple[int, int]:
    if isinstance(entry, str) and entry in _PRESETS:
        return entry
    pair = (entry, entry) if isinstance(entry, int) else entry
    if not _is_pair(pair):
        kinds = f"an int, (height, width), one of {', '.join(_PRESETS)}, or a list of these"
        raise ValueError(f"size={size!r} must be {kinds}")
    if any(not smallest <= side <= _LARGEST for side in pair):
        raise ValueError(f"size={size!r} must have sides in {smallest}..{_LARGEST} pixels")
    return int(pair[0]), int(pair[1])


def _is_pair(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(map(_is_integer, value))


def draw_scene(rng: np.random.Generator, height: int, width: int, hue: float, spread: float) -> Image.Image:
    """Draw a picture in YCbCr with stones of `hue` plus or minus `spread`, in radians in the CbCr plane."""
    # The scene is composed at half size: four times cheaper, and edges become as soft as in a photograph.
    scene = _Scene(rng, (height + 1) // 2, (width + 1) // 2)
    scene.fill(hue, spread)
    texture = _texture(rng, height, width)
    # In a small file header and edges weigh more: less texture keeps the bits per pixel constant.
    gain = np.float32(max(0.4, 1 - 10000 / (height * width)))
    coarse = texture[::2, ::2] * np.float32(0.01)
    luma = texture * _upsample(scene.detail * gain, height, width)
    luma += _upsample(scene.luma, height, width)
    chroma = [_to_image(128 + field + field * coarse) for field in (scene.blue, scene.red)]
    full = [c.resize((2 * c.width, 2 * c.height), Image.Resampling.BILINEAR) for c in chroma]
    return Image.merge("YCbCr", [_to_image(luma), *(c.crop((0, 0, width, height)) for c in full)])


class _Scene:
    """Half-size fields [height, width]: luma and chroma (around 0) in levels, strength of the texture."""

    def __init__(self, rng: np.random.Generator, height: int, width: int) -> None:
        self.rng, self.height, self.width = rng, height, width
        self.luma = self._smooth(60, 190, 3)
        self.blue = self._smooth(-14, 14, 3)
        self.red = self._smooth(-14, 14, 3)
        self.detail = self._smooth(0.35, 1.5, 4)

    def _smooth(self, low: float, high: float, cells: int) -> _Field:
        grid = self.rng.uniform(low, high, (cells, cells + 1)).astype(np.float32)
        image = Image.fromarray(grid).resize((self.width, self.height), Image.Resampling.BICUBIC)
        return np.array(image, dtype=np.float32)

    def fill(self, hue: float, spread: float) -> None:
        """Lay stones on a jittered grid: first those of random, muted hues, then two in three of `hue`."""
        rng, side = self.rng, min(self.height, self.width)
        across = min(6, max(3, round(side / 62)))
        # Without a bound, a strip of 16 x 16384 would need thousands of stones.
        rows = min(32, round(across * self.height / side))
        columns = min(32, round(across * self.width / side))
        cells = rng.permutation(rows * columns)
        for number, cell in enumerate(cells.tolist()):
            row, column = divmod(cell, columns)
            if number < len(cells) // _RANDOM_HUE:
                angle, colour = rng.uniform(0, math.tau), rng.uniform(8, 40)
            else:
                angle, colour = hue + spread * rng.uniform(-1, 1), rng.uniform(34, 62)
            y = (row + rng.uniform(0.2, 0.8)) * self.height / rows
            x = (column + rng.uniform(0.2, 0.8)) * self.width / columns
            radius_y = rng.uniform(0.45, 0.75) * self.height / rows
            radius_x = rng.uniform(0.45, 0.75) * self.width / columns
            self._lay(y, x, radius_y, radius_x, colour * math.cos(angle), colour * math.sin(angle))

    def _lay(self, y: float, x: float, ry: float, rx: float, blue: float, red: float) -> None:
        """Draw a stone at (y, x) with radii ry and rx, of this chroma."""
        rng, outline = self.rng, _outline(self.rng)
        level, detail = rng.uniform(70, 185), rng.uniform(0.3, 1.6)
        top, left = max(int(y - 1.3 * ry) - 3, 0), max(int(x - 1.3 * rx) - 3, 0)
        bottom, right = min(int(y + 1.4 * ry) + 4, self.height), min(int(x + 1.4 * rx) + 4, self.width)
        image = Image.new("L", (right - left, bottom - top))
        ImageDraw.Draw(image).polygon(
            [(x - left + rx * px, y - top + ry * py) for px, py in outline], fill=255
        )
        mask = np.asarray(image.filter(ImageFilter.BoxBlur(2)), dtype=np.float32) * np.float32(1 / 255)
        # Light comes from the upper left: first a shadow at the lower right, then the rounded stone.
        offset = max(1, int(0.12 * ry))
        shadow = Image.new("L", image.size)
        shadow.paste(image, (offset, offset))
        shade = np.asarray(shadow.filter(ImageFilter.BoxBlur(offset)), dtype=np.float32)
        part = (slice(top, bottom), slice(left, right))
        self.luma[part] *= 1 - shade * np.float32(0.4 / 255)
        dy = (np.arange(top, bottom, dtype=np.float32)[:, None] - np.float32(y)) / np.float32(ry)
        dx = (np.arange(left, right, dtype=np.float32)[None] - np.float32(x)) / np.float32(rx)
        light = np.float32(level) - dy * (28 + 16 * dy) - dx * (20 + 16 * dx)
        self.luma[part] += mask * (light - self.luma[part])
        for field, value in ((self.blue, blue), (self.red, red), (self.detail, detail)):
            field[part] += mask * (np.float32(value) - field[part])


def _outline(rng: np.random.Generator) -> list[tuple[float, float]]:
    """Return an ellipse, a polygon or a lumpy pebble of radius about 1, as points (x, y)."""
    kind, corners, tilt = rng.integers(3), int(rng.integers(5, 9)), rng.uniform(0, math.tau)
    count = corners if kind == 1 else 36
    angles = np.linspace(0, math.tau, count, endpoint=False)
    radii = np.ones(count)
    if kind == 1:
        radii, angles = radii * 1.15, angles + tilt
    elif kind == 2:
        radii += 0.18 * np.sin(angles * (2 + corners % 3) + tilt) + 0.08 * np.sin(angles * 5 + 3 * tilt)
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    return [(float(x), float(y)) for x, y in points]


def _texture(rng: np.random.Generator, height: int, width: int) -> _Field:
    """Return noise around 0 of nearly 1/f spectrum, in levels, [height, width]."""
    total = np.zeros((0, 0), dtype=np.float32)
    for octave in reversed(range(len(_OCTAVES))):
        # One extra cell on every side, so that upsampling has no edge inside the picture.
        rows, columns = (-(-side // 2**octave) + 2 for side in (height, width))
        noise = rng.random((rows, columns), dtype=np.float32)
        noise -= np.float32(0.5)
        noise *= np.float32(_OCTAVES[octave])
        if total.size:
            noise += _upsample(total, rows + 1, columns + 1)[1:, 1:]
        total = noise
    return total[1 : height + 1, 1 : width + 1]


def _upsample(field: _Field, height: int, width: int) -> _Field:
    """Upsample by two, bilinearly, and crop to [height, width]; faster than Pillow on floats."""
    rows, columns = field.shape
    near, far = field * np.float32(0.75), field * np.float32(0.25)
    tall = np.empty((rows, 2, columns), dtype=np.float32)
    np.add(near[1:], far[:-1], out=tall[1:, 0])
    np.add(near[:-1], far[1:], out=tall[:-1, 1])
    tall[0, 0], tall[-1, 1] = field[0], field[-1]
    field = tall.reshape(2 * rows, columns)
    near, far = field * np.float32(0.75), field * np.float32(0.25)
    wide = np.empty((2 * rows, columns, 2), dtype=np.float32)
    np.add(near[:, 1:], far[:, :-1], out=wide[:, 1:, 0])
    np.add(near[:, :-1], far[:, 1:], out=wide[:, :-1, 1])
    wide[:, 0, 0], wide[:, -1, 1] = field[:, 0], field[:, -1]
    return wide.reshape(2 * rows, 2 * columns)[:height, :width]


def _to_image(levels: _Field) -> Image.Image:
    rounded = np.clip(levels, 0, 255)
    rounded += np.float32(0.5)
    return Image.fromarray(rounded.astype(np.uint8))
