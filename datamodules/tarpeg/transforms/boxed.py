"""A crop of tarpeg as a transform of torchvision. It imports torchvision: import it where it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from ..sampling.crops import Crop


class Boxed(v2.Transform):  # type: ignore[misc]
    """Crop a box of whole pixels, then resize it: what the decoder does, by torchvision's arithmetic.

    Args:
        crop: Without randomness.
        interpolation: A name of torchvision's ``InterpolationMode``.
    """

    def __init__(self, crop: Crop, interpolation: str = "bilinear") -> None:
        super().__init__()
        self.crop = crop
        self.interpolation = InterpolationMode(interpolation)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Crop and resize one image; called by torchvision."""
        size = np.array([functional.get_size(inpt)], np.int64)
        box = self.crop.boxes(size, np.empty((1, 0)))[0].tolist()
        options = {"interpolation": self.interpolation, "antialias": True}
        return functional.resized_crop(inpt, *box, list(self.crop.size), **options)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{self.crop!r}, {self.interpolation.value!r}"
