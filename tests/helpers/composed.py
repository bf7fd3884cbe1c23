"""What loaders of images with parts of several samples yield: targets, and a whole epoch by value."""

from __future__ import annotations

import torch
from tarpeg import Boxes, InstanceMasks, Keypoints, Masks, PadMask

TARGETS = [
    Boxes("json:objects", min_size=0),
    Keypoints("json:objects", [(0, 1)], count=2),
    InstanceMasks("json:objects", min_pixels=0),
    Masks("png", fill=9),
    PadMask(),
]
"""Those of ``odd_pictures.Pictures``."""


def found_by(loader):
    """Images, keys, targets and view of each batch of an epoch."""
    found = []
    for batch in loader:
        targets = [{name: torch.as_tensor(each) for name, each in target.items()} for target in batch.targets]
        found.append((batch.image.clone(), list(batch.key), targets, loader.claim().views[0]))
    return found
