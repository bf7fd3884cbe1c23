"""Random chains of crop, resize, flip and affine, as a ``View`` and as torchvision's functionals."""

from __future__ import annotations

import numpy as np
import torch
from tarpeg import View
from torchvision.transforms import v2
from torchvision.transforms.functional import _get_inverse_affine_matrix


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
