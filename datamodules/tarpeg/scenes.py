"""Draw a scene that looks like a photograph: a pile of shaded, textured stones, most of them of one hue.

Texture and soft edges are measured in pixels, so that JPEG quality 90 with 4:2:0 costs about 1.5 bits a pixel
at any size from 128x160 to 2000x1500.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

_Field = NDArray[np.float32]

# Amplitudes of the texture's octaves, in levels, for cells of 1, 2, 4 ... 64 pixels: nearly 1/f, as
# photographs have it, with less in the finest, as a lens leaves them. Found by measuring bits a pixel.
_OCTAVES = (5.7, 15.2, 24.7, 32.3, 38.0, 41.8, 45.6)
_STRANGERS = 3  # one stone in three has any hue at all


def draw_scene(rng: np.random.Generator, height: int, width: int, hue: float, spread: float) -> Image.Image:
    """Draw a picture in YCbCr whose stones are of `hue` plus or minus `spread`, in radians around CbCr."""
    # Colours are composed at half size: four times cheaper, and edges come out as soft as a lens draws them.
    scene = _Scene(rng, (height + 1) // 2, (width + 1) // 2)
    scene.fill(hue, spread)
    texture = _texture(rng, height, width)
    # A small file pays relatively more for its header and edges: less texture keeps the bits a pixel even.
    gain = np.float32(max(0.4, 1 - 10000 / (height * width)))
    coarse = texture[::2, ::2] * np.float32(0.01)
    luma = texture * _doubled(scene.detail * gain, height, width)
    luma += _doubled(scene.luma, height, width)
    chroma = [_to_image(128 + field + field * coarse) for field in (scene.blue, scene.red)]
    whole = [c.resize((2 * c.width, 2 * c.height), Image.Resampling.BILINEAR) for c in chroma]
    return Image.merge("YCbCr", [_to_image(luma), *(c.crop((0, 0, width, height)) for c in whole)])


@dataclass(frozen=True)
class _Stone:
    y: float
    x: float
    radius_y: float
    radius_x: float
    blue: float
    red: float


class _Scene:
    """Half-size fields [height, width]: luma in levels, chroma around 0 in levels, the texture's strength."""

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
        """Lay stones on a jittered grid: two in three of the hue, the others of any, more muted and below."""
        rng, side = self.rng, min(self.height, self.width)
        across = min(6, max(3, round(side / 62)))
        # Bounded, so that a strip of 16 x 16384 takes no thousands of stones.
        rows = min(32, round(across * self.height / side))
        columns = min(32, round(across * self.width / side))
        cells = rng.permutation(rows * columns)
        for place, cell in enumerate(cells.tolist()):
            row, column = divmod(cell, columns)
            if place < len(cells) // _STRANGERS:
                angle, colour = rng.uniform(0, math.tau), rng.uniform(8, 40)
            else:
                angle, colour = hue + spread * rng.uniform(-1, 1), rng.uniform(34, 62)
            stone = _Stone(
                y=(row + rng.uniform(0.2, 0.8)) * self.height / rows,
                x=(column + rng.uniform(0.2, 0.8)) * self.width / columns,
                radius_y=rng.uniform(0.45, 0.75) * self.height / rows,
                radius_x=rng.uniform(0.45, 0.75) * self.width / columns,
                blue=colour * math.cos(angle),
                red=colour * math.sin(angle),
            )
            self._lay(stone)

    def _lay(self, stone: _Stone) -> None:
        rng, y, x, ry, rx = self.rng, stone.y, stone.x, stone.radius_y, stone.radius_x
        outline = _outline(rng)
        level, detail = rng.uniform(70, 185), rng.uniform(0.3, 1.6)
        top, left = max(int(y - 1.3 * ry) - 3, 0), max(int(x - 1.3 * rx) - 3, 0)
        bottom, right = min(int(y + 1.4 * ry) + 4, self.height), min(int(x + 1.4 * rx) + 4, self.width)
        image = Image.new("L", (right - left, bottom - top))
        ImageDraw.Draw(image).polygon(
            [(x - left + rx * px, y - top + ry * py) for px, py in outline], fill=255
        )
        mask = np.asarray(image.filter(ImageFilter.BoxBlur(2)), dtype=np.float32) * np.float32(1 / 255)
        # Light falls from the upper left: a shadow to the lower right, then the stone, round under the light.
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
        for field, value in ((self.blue, stone.blue), (self.red, stone.red), (self.detail, detail)):
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
        # One cell more on every side than the picture needs, so that doubling never meets an edge.
        rows, columns = (-(-side // 2**octave) + 2 for side in (height, width))
        noise = rng.random((rows, columns), dtype=np.float32)
        noise -= np.float32(0.5)
        noise *= np.float32(_OCTAVES[octave])
        if total.size:
            noise += _doubled(total, rows + 1, columns + 1)[1:, 1:]
        total = noise
    return total[1 : height + 1, 1 : width + 1]


def _doubled(field: _Field, height: int, width: int) -> _Field:
    """Upsample by two, bilinearly, and cut to [height, width]: faster than Pillow on floats."""
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
