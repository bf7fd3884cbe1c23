"""What a crop that pads makes of one image, step by step: crop, resize, mirror, pad."""

from __future__ import annotations

import torch
from torchvision.transforms import v2


def moved_by_torchvision(value, box, place, size, flip, fill=0):
    """Move a tv_tensor by the functionals of torchvision, whose ratios of sizes have the default type.

    Args:
        value: Image, boxes, keypoints or mask of the source.
        box: (top, left, height, width) in the source.
        place: (top, left, height, width) in the result.
        size: (height, width) of the result.
        flip: Whether the part is mirrored, within its place.
        fill: Colour of the padding.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        top, left, height, width = place
        value = v2.functional.resize(v2.functional.crop(value, *box), [height, width])
        value = v2.functional.horizontal_flip(value) if flip else value
        sides = [left, top, size[1] - left - width, size[0] - top - height]
        return v2.functional.pad(value, sides, fill=fill)
    finally:
        torch.set_default_dtype(before)
