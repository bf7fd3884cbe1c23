"""The first step of a pipeline of one image. It imports torchvision: import it where it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

from ..shards.pillow import of_8_bits, open_upright, to_rgb


class Opened(nn.Module):
    """Return an image as loaders read it: of a file's bytes, or of Pillow's, which is taken for upright.

    Args:
        channels: 3, or 1 for gray.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.steps = [v2.ToImage(), v2.Grayscale(1) if channels == 1 else v2.RGB()]

    def forward(self, image: Any) -> Any:
        """Return a ``tv_tensors.Image``, uint8 ``[C, H, W]``. Raises DecodeError for bytes of no image."""
        if isinstance(image, (bytes, bytearray, memoryview)) or getattr(image, "ndim", 0) == 1:
            image = open_upright(bytes(image))
        if isinstance(image, Image.Image):
            image = of_8_bits(image)
            if self.channels == 1 and image.mode == "1":
                image = image.convert("L")  # not booleans
            elif self.channels != 1 or image.mode != "L":
                image = to_rgb(image)
        elif not isinstance(image, (Tensor, np.ndarray)):
            raise TypeError(
                "compose() takes the bytes of a file, such as Path(...).read_bytes(), a Pillow image, or "
                f"uint8 [C, H, W], and not {type(image).__name__}"
            )
        for step in self.steps:
            image = step(image)
        return image

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"channels={self.channels}"
