"""Random chains of orientation, crop, resize, flip and affine: a ``View``, and torchvision's functionals."""

from __future__ import annotations

import functools

import numpy as np
import torch
from PIL import Image, ImageOps
from tarpeg import View
from tarpeg.ops.decode import image_sizes
from torchvision.transforms import v2
from torchvision.transforms.functional import _get_inverse_affine_matrix

from .pictures import saved


def chain(rng, most=2000):
    """A random chain: sizes, crop, flip and an affine as torchvision's parameters, or None."""
    height, width = rng.integers(20, most, 2).tolist()
    top, left = int(rng.integers(0, height - 4)), int(rng.integers(0, width - 4))
    box = (top, left, int(rng.integers(4, height - top + 1)), int(rng.integers(4, width - left + 1)))
    size = tuple(rng.integers(4, most // 2, 2).tolist())
    affine = None
    if rng.random() < 0.6:
        affine = {
            "angle": rng.uniform(-180, 180),
            "translate": (rng.uniform(-0.3, 0.3, 2) * size[::-1]).tolist(),
            "scale": rng.uniform(0.5, 2),
            "shear": rng.uniform(-30, 30, 2).tolist(),
        }
    return (height, width), box, size, bool(rng.random() < 0.5), affine


def orientation_of(rng, source):
    """A random orientation of EXIF for an image whose upright size this is, and the size that is stored.

    The decoder reads the upright size from the header of such a JPEG.
    """
    orientation = int(rng.integers(1, 9))
    stored = source[::-1] if orientation >= 5 else source
    header = bytearray(_jpeg(orientation))
    at = header.index(b"\xff\xc0") + 5
    header[at : at + 4] = b"".join(side.to_bytes(2, "big") for side in stored)
    sizes = image_sizes([torch.frombuffer(header, dtype=torch.uint8)])
    assert tuple(sizes[0].tolist()) == tuple(source)
    return orientation, stored


@functools.cache
def _jpeg(orientation):
    return saved(Image.new("RGB", (8, 8)), "JPEG", orientation=orientation)


def upright_points(points, stored, orientation):
    """Points (x, y) of a stored image, [..., 2], as those of the upright one, in which targets are given."""
    (height, width), (x, y) = stored, (points[..., 0], points[..., 1])
    moved = {
        1: (x, y),
        2: (width - x, y),
        3: (width - x, height - y),
        4: (x, height - y),
        5: (y, x),
        6: (height - y, x),
        7: (height - y, width - x),
        8: (y, width - x),
    }
    return np.stack(moved[orientation], axis=-1)


def upright_boxes(boxes, stored, orientation):
    """The same of boxes (x1, y1, x2, y2)."""
    corners = upright_points(boxes.reshape(-1, 2, 2), stored, orientation)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def upright_mask(mask, orientation):
    """A stored mask as Pillow turns it."""
    image = Image.fromarray(mask)
    image.getexif()[0x0112] = orientation
    return np.array(ImageOps.exif_transpose(image))


def turned_by_torchvision(value, orientation):
    """Turn a tv_tensor of a stored image upright by the functionals of torchvision."""
    if orientation >= 5:
        value = v2.functional.rotate(value, -90 if orientation == 6 else 90, expand=True)
    if orientation in (2, 3, 7):
        value = v2.functional.horizontal_flip(value)
    return v2.functional.vertical_flip(value) if orientation in (3, 4, 5) else value


def view_of(source, box, size, flip, affine):
    """The view of a chain."""
    matrix = None
    if affine is not None:
        centre = [size[1] / 2, size[0] / 2]
        numbers = _get_inverse_affine_matrix(centre, *affine.values(), inverted=False)
        matrix = np.array(numbers).reshape(1, 2, 3)
    return View(np.array([source]), np.array([box]), np.array([flip]), size, matrix)


def moved_by_torchvision(value, source, box, size, flip, affine):
    """Move a tv_tensor by the functionals of torchvision, whose ratios of sizes have the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        value = v2.functional.resize(v2.functional.crop(value, *box), list(size))
        value = v2.functional.horizontal_flip(value) if flip else value
        return value if affine is None else v2.functional.affine(value, **affine)
    finally:
        torch.set_default_dtype(before)
