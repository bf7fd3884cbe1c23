"""RandomIoUCrop: a box that overlaps the objects of its image, of SSD."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from .crops import Int32, Size, Whole, _checked, _joined, _range, _Size
from .rng import Float64, Int64

# Torchvision has no limit: (6 / 7) ** 200 is 4e-14, the share of images that end so with SSD's options.
_ROUNDS = 200
_MOST = 1 << 20  # overlaps that are computed at once
Draw = Callable[[Int64, int], Float64]


@dataclass(frozen=True)
class RandomIoUCrop:
    """A random box that overlaps an object by a random share, as torchvision's; resized to ``size``.

    Of SSD: a smallest overlap (intersection over union) is drawn, then up to ``trials`` boxes, of which the
    first is taken that has the centre of an object in it, and overlaps one of those at least so much;
    otherwise all again. An overlap of 1 or more takes the whole image, and so do images without objects.
    Objects whose centre is not in the box are dropped, as by torchvision's ``SanitizeBoundingBoxes``.

    Args:
        size: Size of the result in pixels: (height, width), or an int for a square.
        min_scale: Smallest share of the image's height and width.
        max_scale: Largest share.
        min_aspect_ratio: Smallest width / height of the box.
        max_aspect_ratio: Largest width / height.
        sampler_options: Smallest overlaps, of which one is drawn; None: 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: Boxes that are tried per overlap.

    Raises:
        ValueError: For an argument out of range; in ``Split``, without ``targets=`` that have boxes.

    Example:
        >>> boxes = tarpeg.Boxes("json:objects")
        >>> split = tarpeg.Split(shards, tarpeg.RandomIoUCrop(300), flip=0.5, targets=boxes)
        >>> split.crop.boxes([[400, 600]]).tolist()  # of an image without objects
        [[0, 0, 400, 600]]
    """

    size: Size = _Size()  # noqa: RUF009
    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Sequence[float] | None = None
    trials: int = 40

    drops_by_centre: ClassVar[bool] = True

    def __post_init__(self) -> None:
        scale = _range("(min_scale, max_scale)", (self.min_scale, self.max_scale))
        if scale[1] > 1:
            raise ValueError(f"max_scale={self.max_scale!r} of RandomIoUCrop must be at most 1")
        _range("(min_aspect_ratio, max_aspect_ratio)", (self.min_aspect_ratio, self.max_aspect_ratio))
        if type(self.trials) is not int or not 1 <= self.trials <= 80:
            raise ValueError(f"trials={self.trials!r} of RandomIoUCrop must be an integer in 1..80")
        if self.sampler_options is not None:
            options = tuple(self.sampler_options)
            numbers = [each for each in options if isinstance(each, (int, float)) and each >= 0]
            if not options or len(numbers) != len(options):
                raise ValueError(
                    f"sampler_options={self.sampler_options!r} of RandomIoUCrop must be numbers of at least 0"
                )
            object.__setattr__(self, "sampler_options", options)

    @property
    def draws(self) -> int:
        """Count of uniform random numbers per box and round."""
        return 1 + 4 * self.trials

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike | None = None) -> Int32:
        """Boxes, int32 [B, 4], of images without objects: all of them. See ``boxes_among``."""
        return Whole(1).boxes(sizes)

    def boxes_among(self, sizes: npt.ArrayLike, objects: Sequence[Float64], draw: Draw) -> Int32:
        """Boxes, int32 [B, 4], of images with objects.

        Args:
            sizes: Upright image sizes, int [B, 2].
            objects: Of each image float64 [N, 4], (x1, y1, x2, y2) in pixels.
            draw: Function of rows [R] and the number of a round that returns uniform numbers [R, draws].
        """
        image, _ = _checked(sizes, None, 0)
        found = _joined(np.zeros_like(image), image)
        rows = np.flatnonzero([len(each) for each in objects])
        options = np.array(self.sampler_options or (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0))
        for number in range(_ROUNDS):
            if not len(rows):
                break
            uniforms = draw(rows, number)
            least = options[(uniforms[:, 0] * len(options)).astype(np.int64)]
            is_part = least < 1
            rows, uniforms, least = rows[is_part], uniforms[is_part], least[is_part]
            is_found = np.zeros(len(rows), np.bool_)
            for part in self._parts([len(objects[row]) for row in rows.tolist()]):
                given = [objects[row] for row in rows[part].tolist()]
                boxes, is_found[part] = self._tried(image[rows[part]], given, uniforms[part, 1:], least[part])
                found[rows[part][is_found[part]]] = boxes[is_found[part]]
            rows = rows[~is_found]
        return found

    def _parts(self, counts: Sequence[int]) -> list[slice]:
        """Return slices of the rows whose overlaps are computed together: memory is bounded."""
        parts, begin = [], 0
        for end in range(1, len(counts) + 1):
            following = max(counts[begin : end + 1])
            if end == len(counts) or (end + 1 - begin) * following * self.trials > _MOST:
                parts.append(slice(begin, end))
                begin = end
        return parts

    def _tried(
        self, image: Int64, objects: Sequence[Float64], uniforms: Float64, least: Float64
    ) -> tuple[Int32, npt.NDArray[np.bool_]]:
        """Return the first box of each row that is taken, [R, 4], and whether there is one."""
        shares = uniforms.reshape(len(image), self.trials, 4)
        sides = image[:, None, ::-1]  # (width, height), as shares are drawn
        scale = self.min_scale + (self.max_scale - self.min_scale) * shares[..., :2]
        size = (sides * scale).astype(np.int64)
        corner = ((sides - size) * shares[..., 2:]).astype(np.int64)
        is_valid = (size > 0).all(axis=-1)
        ratio = size[..., 0] / np.maximum(size[..., 1], 1)
        is_valid &= (ratio >= self.min_aspect_ratio) & (ratio <= self.max_aspect_ratio)
        known = np.full((len(objects), 1, max(map(len, objects)), 4), np.nan)
        for row, each in zip(known, objects, strict=True):
            row[0, : len(each)] = each
        begin, end = corner[:, :, None].astype(np.float64), (corner + size)[:, :, None].astype(np.float64)
        centre = (known[..., :2] + known[..., 2:]) / 2
        is_inside = ((begin < centre) & (centre < end)).all(axis=-1)
        with np.errstate(invalid="ignore"):
            common = np.minimum(known[..., 2:], end) - np.maximum(known[..., :2], begin)
            shared = np.maximum(common, 0.0).prod(axis=-1)
            union = (known[..., 2:] - known[..., :2]).prod(axis=-1) + (end - begin).prod(axis=-1) - shared
            overlap = np.where(is_inside, shared / np.maximum(union, 1e-300), -1.0).max(axis=-1)
        is_valid &= is_inside.any(axis=-1) & (overlap >= least[:, None])
        first = np.arange(len(image)), is_valid.argmax(axis=1)
        return _joined(corner[first][:, ::-1], size[first][:, ::-1]), is_valid[first]
