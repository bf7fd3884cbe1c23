"""``CenterCrop(size, shorter=)`` at ``fidelity="exact"``: torchvision's Resize and CenterCrop, bit for bit.

The decoder's own crop is a box of whole pixels of the source, which is up to half a pixel from torchvision's:
torchvision resizes the whole image, and crops whole pixels of the result. So does this module, by the same
functions of torch and Pillow; the package does not need torchvision.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import Status
from ..sampling.crops import CenterCrop, crop_at
from ..sampling.geometry import View
from ..shards import pillow
from ..transforms.pipeline import Pipeline, Uncropped
from ..transforms.pixels import PixelFormat, normalised
from .batch import Decoded, Encoded
from .python_steps import PythonSteps
from .split import Split

_BY_PILLOW = {
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "area": Image.Resampling.BOX,
}


def resizes_first(pipeline: Pipeline, fidelity: str, epoch: int) -> CenterCrop | None:
    """Return the crop of a view whose images are resized before they are cropped; None for other views."""
    if fidelity != "exact" or isinstance(pipeline.crop, Uncropped):
        return None
    crop = crop_at(pipeline.crop, epoch)
    return crop if type(crop) is CenterCrop and crop.shorter is not None else None


def crops_behind_a_resize(split: Split) -> list[CenterCrop]:
    """Return what ``resizes_first`` returns for the views of a split, in all epochs."""
    given = product(split.pipelines, split.crop_epochs)
    found = (resizes_first(pipeline, split.fidelity, epoch) for pipeline, epoch in given)
    return [crop for crop in found if crop is not None]


@dataclass(frozen=True)
class ResizeFirst:
    """Replaces the decoder's crops of one view.

    Args:
        steps: Decode whole images.
        pipeline: Of the view.
        crop: Of the view.
        levels: Format of the crops.
        limit: Most pixels of an image and of the resized one.
    """

    steps: PythonSteps
    pipeline: Pipeline
    crop: CenterCrop
    levels: PixelFormat
    limit: int

    def run(self, encoded: Encoded, view: View, decoded: Decoded, out: Tensor) -> View:
        """Replace the crops [B, C, H, W] of the images that were decoded; return what is drawn then.

        ``decoded``: its status and reasons are changed if whole images cannot be decoded.
        """
        plain = replace(self.pipeline, crop=Uncropped())
        for row, (file, is_flipped) in enumerate(zip(encoded.files, view.flips.tolist(), strict=True)):
            if decoded.status[row] != Status.OK:
                continue
            height, width = view.sizes[row].tolist()
            size = self._resized_size(height, width)
            if size[0] * size[1] > self.limit:
                decoded.fail(row, Status.TOO_LARGE, pillow.too_large(*size, self.limit))
                continue
            whole = self.steps.whole_image(file, plain, row, decoded)
            if whole is None:
                continue
            part = _center(_resized(whole, size, self.pipeline), self.crop.size)
            part = (part.flip(-1) if is_flipped else part)[None]
            if self.levels.dtype == torch.uint8:
                out[row : row + 1].copy_(part)
            else:
                part = part.contiguous(memory_format=torch.channels_last)
                normalised(part, self.levels, out[row : row + 1])
        return self._moved(view) if self.steps.with_affine else view

    def _resized_size(self, height: int, width: int) -> tuple[int, int]:
        return Uncropped(self.crop.shorter).target(height, width)

    def _moved(self, view: View) -> View:
        """Return the view with boxes of all that the results show, and the affine from there to the results.

        Boxes have whole pixels, and results begin and end within them: targets are clipped to both.
        """
        view, known = view.rows(np.arange(len(view))), view.is_known
        wanted = np.tile(np.eye(3), (len(view), 1, 1))
        for row in np.flatnonzero(known):
            source = view.sizes[row].astype(np.float64)
            resized = self._resized_size(*view.sizes[row].tolist())
            corner = np.array(_corner(resized, self.crop.size))
            first = np.floor(corner * source / resized).clip(min=0)
            last = np.minimum(np.ceil((corner + self.crop.size) * source / resized), source)
            view.boxes[row] = [*first, *(last - first)]
            wanted[row] = np.diag([resized[1] / source[1], resized[0] / source[0], 1.0])
            wanted[row, :2, 2] = -corner[::-1]
            if view.flips[row]:
                wanted[row] = np.array([[-1.0, 0, self.crop.size[1]], [0, 1, 0], [0, 0, 1]]) @ wanted[row]
        wanted[known] = wanted[known] @ np.linalg.inv(view.rows(known).matrices())
        return view.then(wanted[:, :2])


def _resized(image: Tensor, size: tuple[int, int], pipeline: Pipeline) -> Tensor:
    """Resize an image, uint8 [C, H, W], as torchvision's ``Resize`` does."""
    mode = pipeline.interpolation
    if tuple(image.shape[-2:]) == size:
        return image
    if mode in _BY_PILLOW:
        array = image.movedim(0, -1).contiguous().numpy()
        picture = Image.fromarray(array[..., 0] if len(image) == 1 else array)
        pixels = np.array(picture.resize(size[::-1], _BY_PILLOW[mode]))
        return torch.from_numpy(pixels.reshape(*size, len(image))).movedim(-1, 0)
    is_smooth = mode in ("bilinear", "bicubic")
    options: dict[str, Any] = {"align_corners": False, "antialias": pipeline.antialias} if is_smooth else {}
    # As in torchvision: floats where torch has no vector code for bytes.
    has_bytes = mode != "bilinear" or (
        torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        or platform.machine() in ("aarch64", "arm64")
    )
    given = image[None] if has_bytes else image[None].float()
    done = torch.nn.functional.interpolate(given, size, mode=mode, **options)[0]
    return done if has_bytes else done.round_().to(torch.uint8)


def _corner(image: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Top and left of torchvision's CenterCrop, negative where it pads."""
    top, left = (
        -((crop - side) // 2) if crop > side else round((side - crop) / 2)
        for side, crop in zip(image, size, strict=True)
    )
    return top, left


def _center(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop the centre of an image, [C, H, W], as torchvision's ``CenterCrop``: it pads a smaller one by 0."""
    height, width = size
    top, left = _corner((image.shape[-2], image.shape[-1]), size)
    above, before = max(-top, 0), max(-left, 0)
    below, after = (max(crop - side, 0) for crop, side in zip(size, image.shape[-2:], strict=True))
    if below or after:
        image = torch.nn.functional.pad(image, [before, after - before, above, below - above])
    top, left = max(top, 0), max(left, 0)
    return image[:, top : top + height, left : left + width]
