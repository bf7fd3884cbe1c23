"""A crop of tarpeg as a transform of torchvision. It imports torchvision: import it where it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from ..sampling.crops import Crop, levels_of


class Boxed(v2.Transform):  # type: ignore[misc]
    """Crop a box of whole pixels, then resize and pad it: the decoder's work, by torchvision's arithmetic.

    Args:
        crop: Without randomness.
        interpolation: A name of torchvision's ``InterpolationMode``.
    """

    def __init__(self, crop: Crop, interpolation: str = "bilinear") -> None:
        super().__init__()
        self.crop = crop
        self.interpolation = InterpolationMode(interpolation)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Crop, resize and pad one image; called by torchvision."""
        size = np.array([functional.get_size(inpt)], np.int64)
        found = self.crop.boxes(size, np.empty((1, 0)))[0].tolist()
        height, width = self.crop.size
        options = {"interpolation": self.interpolation, "antialias": True}
        if len(found) == 4:
            return functional.resized_crop(inpt, *found, [height, width], **options)
        top, left, rows, columns = found[4:]
        part = functional.resized_crop(inpt, *found[:4], [rows, columns], **options)
        levels = levels_of(self.crop, functional.get_num_channels(part))
        sides = [left, top, width - left - columns, height - top - rows]
        return functional.pad(part, sides, fill=levels)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{self.crop!r}, {self.interpolation.value!r}"
