"""CopyPaste: objects of another image, pasted into an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import check_integer, check_probability
from .crops import Crop, Int32, Progressive, colour_of, methods_of
from .geometry import Bool, View
from .rng import Float64, Int64

_PASTE, _FLIP, _COUNT = range(3)  # of the numbers behind those of the image itself
_OWN = 3


@dataclass(frozen=True)
class CopyPaste:
    """A crop, and a random subset of the objects of another sample pasted into it, by their masks.

    As Ghiasi et al., "Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation"
    (2021), and ``SimpleCopyPaste`` of torchvision's detection references, without blending. Image and other
    sample each have their own box, scale, place and flip, drawn by ``crop``: ``ScaleJitter`` in the paper.
    Of the other sample, which is drawn from all of the split, only what lies under the chosen objects is
    decoded, at the scale of the result. It follows its place by whole pixels: up to half a pixel off.

    The number of pasted objects is uniform from 1 to all that the other sample's crop shows, or
    ``max_objects``. Crowds (``iscrowd`` of ``Boxes``) are not pasted, and nothing that ``targets=`` would
    drop. Pixels of pasted objects belong to no other: masks lose them, and an object that loses all, or so
    many that ``min_pixels``, ``min_size``, ``min_area`` or ``min_visibility`` drop it, is dropped. The box of
    an object that loses pixels becomes the bounds of those that are left, and its area their share; its
    keypoints under a pasted object become hidden, visibility 1.

    Args:
        crop: Crop of both images, of one size: ``ScaleJitter``, ``LetterBox``, ``RandomResizedCrop`` or one
            of your own.
        p: Probability that objects are pasted into an image.
        max_objects: Most objects that are pasted; None: all.

    Raises:
        ValueError: For an argument out of range; in ``Split``, without ``targets=`` with ``InstanceMasks`` or
            ``InstanceMap``, with targets of other objects or of your own, with several views, and with steps
            of ``transform=`` in Python.

    Example:
        >>> crop = tarpeg.CopyPaste(tarpeg.ScaleJitter(96, scale_range=(0.5, 2.0)), p=0.5, max_objects=10)
        >>> targets = [tarpeg.Boxes("json:objects"), tarpeg.InstanceMasks("json:objects")]
        >>> split = tarpeg.Split(shards, crop, flip=0.5, targets=targets)
        >>> split.crop.size
        (96, 96)
    """

    crop: Crop
    p: float = 0.5
    max_objects: int | None = None

    partners: ClassVar[int] = 1

    def __post_init__(self) -> None:
        crop: Any = self.crop
        is_crop = all(hasattr(crop, name) for name in ("size", "draws", "boxes"))
        more = methods_of(crop)
        is_special = more.has_many_sizes or more.partners or more.boxes_among or more.at_size
        if isinstance(crop, (type, Progressive)) or not is_crop or is_special:
            remedy = ". Put Progressive around CopyPaste" * isinstance(crop, Progressive)
            raise ValueError(
                f"crop={crop!r} of CopyPaste must be a crop of one size that depends on no objects, such as "
                f"ScaleJitter(640) or RandomResizedCrop(224){remedy}"
            )
        _ = self.fill
        check_probability("p", self.p)
        if self.max_objects is not None:
            check_integer("max_objects", self.max_objects, 1, of=self)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the results."""
        return self.crop.size

    @property
    def fill(self) -> tuple[int, int, int]:
        """Colour of the padding."""
        return colour_of(self.crop)

    @property
    def draws(self) -> int:
        """Count of uniform random numbers per image: those of its own crop come first."""
        return 2 * self.crop.draws + _OWN

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """Boxes of the images themselves, which are those of ``crop``."""
        boxes: Int32 = self.crop.boxes(sizes, np.asarray(draws)[:, : self.crop.draws])
        return boxes

    def is_pasted(self, draws: Float64) -> Bool:
        """Whether objects are pasted into each image: bool [B], from uniform numbers [B, draws]."""
        return np.asarray(draws[:, self.crop.draws + _PASTE] < self.p)

    def draws_of_partners(self, draws: Float64) -> Float64:
        """Uniform numbers of the flips and of ``crop`` for the other samples: [B, 1 + crop.draws]."""
        flips = draws[:, self.crop.draws + _FLIP]
        return np.concatenate([flips[:, None], draws[:, self.crop.draws + _OWN :]], axis=1)

    def chosen(self, count: int, draws: Float64, keys: Float64) -> Int64:
        """Return which of ``count`` objects are pasted, int64 [n], in their order.

        Args:
            count: Objects that may be pasted, at least 1.
            draws: Uniform numbers of one image, [draws].
            keys: Uniform numbers, one per object: those with the smallest are chosen.
        """
        most = count if self.max_objects is None else min(count, self.max_objects)
        number = 1 + int(draws[self.crop.draws + _COUNT] * most)
        found: Int64 = np.sort(np.argsort(keys[:count], kind="stable")[:number])
        return found


def part_around(view: View, row: int, bounds: Float64) -> tuple[Int32, Int32] | None:
    """Return the part of a view's box that shows some points: box and place, int32 [4]; None if none does.

    Both are whole pixels: of source and result, that with the larger pixels is rounded outwards, and the
    other to the nearest. So the part is up to half of its pixel off.

    Args:
        view: Whose places are mirrored where it is.
        row: Of the view.
        bounds: (x1, y1, x2, y2) in pixels of the source.
    """
    box, place = view.boxes[row].astype(np.float64), view.all_places[row].astype(np.float64)
    corner, size, length = box[:2], box[2:], place[2:]  # (y, x), as boxes are
    low, high = bounds[1::-1] - corner, bounds[:1:-1] - corner
    if (high <= 0).any() or (low >= size).any():
        return None
    scale = length / size
    margin = np.maximum(1.0, 1.0 / scale)  # neighbours that interpolation takes
    low, high = np.maximum(low - margin, 0.0), np.minimum(high + margin, size)
    first, last = np.floor(low), np.minimum(np.ceil(high), size)
    begin, end = np.floor(low * scale), np.minimum(np.ceil(high * scale), length)
    is_enlarged = scale >= 1
    first, last = (
        np.where(is_enlarged, edge, np.rint(other / scale)) for edge, other in ((first, begin), (last, end))
    )
    begin, end = (
        np.where(is_enlarged, np.rint(edge * scale), other) for edge, other in ((first, begin), (last, end))
    )
    first, begin = np.minimum(first, size - 1), np.minimum(begin, length - 1)
    sides = np.maximum(last - first, 1), np.maximum(end - begin, 1)
    if view.flips[row]:
        begin[1] = length[1] - begin[1] - sides[1][1]
    found = [np.concatenate([corner + first, sides[0]]), np.concatenate([place[:2] + begin, sides[1]])]
    return found[0].astype(np.int32), found[1].astype(np.int32)
