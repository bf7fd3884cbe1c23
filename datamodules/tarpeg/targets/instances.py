"""Masks of objects: run lengths and polygons of a JSON member, as torchvision's detectors take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from ..errors import check_integer, similar
from ..sampling.geometry import Int32, View
from ..sampling.rng import Float64, Int64
from ..shards.source import Source
from .annotations import FieldError, Place, Scan, joined, read_objects
from .covering import Cover
from .lost import lost_pixels
from .masks import MODES, warped
from .moved import dicts_of
from .outlines import Outlines, chosen_outlines, outline_bounds, outlines_of, outlines_of_scanned
from .protocols import IMAGE_FIELDS, Fields
from .steps import dropped, fields_of_images

_MOST_PIXELS = 1 << 30
"""Pixels of the masks of one image, beyond which it is an error."""
_MOST_STORED = 16
"""Objects of an image whose masks have a place in the memory of a batch; COCO's images have 7.3."""


@dataclass(frozen=True)
class InstanceMasks:
    """A mask per object of a JSON member, moved with its image, for ``Split(targets=...)``.

    A batch is ``(images, targets)``. ``targets`` is a list with a dict per image, as torchvision's detectors
    take it: ``masks``, ``tv_tensors.Mask`` (a plain tensor if torchvision is not installed), uint8 [N, H, W],
    1 for the pixels of the object; ``image_id``, ``orig_size`` and ``size`` as of ``Boxes``. In a list with
    ``Boxes`` of the same ``objects``, one dict has all fields, and an object that one of them drops is
    dropped by both.

    Objects have polygons ``[[x, y, x, y, ...], ...]``, whose union is the mask, or run lengths ``{"size":
    [height, width], "counts": [...]}``, also compressed ones (a text), as in COCO. They cover the pixels that
    they cover in pycocotools, are cut out as the image is, and resized by nearest neighbour, as ``Masks``;
    pixels outside of the image are 0.

    A field that is neither, run lengths of another size than the image, and polygons that are longer than 3
    million pixels are broken targets: ``LoaderConfig(on_error=...)`` decides, as for a broken image.

    Args:
        objects: JSON member, and the path of the list of objects in it, as of ``Boxes``.
        outline: Field of an object with its polygons or run lengths.
        min_pixels: Objects with fewer pixels in the result are dropped.
        interpolation: "nearest-exact" or "nearest", as of ``Masks``.
        image_id: Field of the document with the integer ``image_id``; None: the number of the sample in the
            shards.

    Example:
        >>> import json
        >>> masks = tarpeg.InstanceMasks("json:objects")
        >>> targets = [tarpeg.Boxes("json:objects"), masks]
        >>> split = tarpeg.Split(shards, tarpeg.RandomResizedCrop(96), targets=targets)
        >>> class Scene:  # a source of one sample
        ...     def members(self, ids, extension):
        ...         return [json.dumps({"objects": [{"segmentation": [[1, 1, 3, 1, 3, 3, 1, 3]]}]}).encode()]
        >>> value = masks.read(Scene(), numpy.array([0]))[0]
        >>> masks.move(value, tarpeg.View.whole((4, 4), (4, 4)))["masks"].tolist()
        [[[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]]
    """

    objects: str
    outline: str = "segmentation"
    min_pixels: int = 1
    interpolation: Literal["nearest-exact", "nearest"] = "nearest-exact"
    image_id: str | None = None

    fields: ClassVar[Sequence[str]] = ("masks", *IMAGE_FIELDS)

    def __post_init__(self) -> None:
        _ = self._place
        check_integer("min_pixels", self.min_pixels, 0, of=self)
        for name, may_lack in (("outline", False), ("image_id", True)):
            value = getattr(self, name)
            if not (value is None and may_lack) and not (isinstance(value, str) and value):
                raise ValueError(f"{name}={value!r} of InstanceMasks must be the name of a field")
        if self.interpolation not in MODES:
            near = similar(self.interpolation, MODES)
            raise ValueError(
                f"interpolation={self.interpolation!r} of InstanceMasks must be one of {MODES}{near}"
            )

    @cached_property
    def _place(self) -> Place:
        return Place.of(self.objects, "InstanceMasks")

    def read(self, source: Source, ids: Int64) -> list[Any]:
        """Read and check the outlines of some samples; see ``Target.read``."""
        scan = Scan((self.outline,), outlines_of_scanned)
        return read_objects(source, np.asarray(ids), self._place, self.image_id, self._parse, scan)

    def misfits(self, values: Sequence[Outlines], sizes: Int32) -> list[str]:
        """Return a text for each image with run lengths of another size, "" for the others."""
        reasons = []
        for value, size in zip(values, sizes, strict=True):
            height, width = size.tolist()
            is_other = (value.sizes != size).any(axis=1) & value.sizes.any(axis=1)
            reason = ""
            if len(value.objects) * height * width > _MOST_PIXELS:
                reason = (
                    f"member {self._place.extension!r} has {len(value.objects)} objects in an image of "
                    f"{height} x {width}: their masks have more than {_MOST_PIXELS} pixels"
                )
            elif height and is_other.any():
                number = int(is_other.argmax())
                field = self._place.field(number, self.outline)
                reason = (
                    f"member {self._place.extension!r}, field {field!r} has the size "
                    f"{value.sizes[number].tolist()}, and its image is {height} x {width}"
                )
            reasons.append(reason)
        return reasons

    def picture_bytes(self, size: tuple[int, int]) -> int:
        """Bytes of the masks of one image in the memory of a batch: of more objects they are pickled."""
        return _MOST_STORED * -(-size[0] * size[1] // 8)

    def move_all(self, values: Sequence[Outlines], view: View) -> Fields:
        """Move the masks of all rows of a view."""
        view.check_known()
        from ..ops.masks import fill_outlines, unpack_masks  # here, because it loads the operators

        counts = np.array([len(value.objects) for value in values], np.int64)
        packed, pixels = fill_outlines(
            joined([value.points for value in values], (0, 2)),
            joined([value.toggles for value in values], (0,)),
            joined([value.parts for value in values], (0, 2)),
            joined([value.objects for value in values], (0,)),
            counts,
            view.sizes,
            view.boxes,
            view.size,
            view.flips,
            view.all_places,
            centres=self.interpolation == "nearest-exact",
        )
        if view.affine is not None and len(packed):
            masks = unpack_masks(torch.from_numpy(packed), view.size).numpy()
            masks = warped(masks, np.repeat(view.affine, counts, axis=0), 0)
            ends = np.cumsum(counts)
            for row, lost in lost_pixels(view).items():
                masks[ends[row] - counts[row] : ends[row], lost] = 0
            flat = masks.reshape(len(masks), -1)
            packed, pixels = np.packbits(flat, axis=1), flat.sum(axis=1, dtype=np.int32)
        return Fields(
            self._place,
            counts,
            pixels >= self.min_pixels,
            {},
            fields_of_images([value.image_id for value in values], view),
            view.size,
            bits={"masks": packed},
        )

    def chosen(self, value: Outlines, numbers: Int64) -> Outlines:
        """Return some of the outlines of an image; see ``ObjectTarget.chosen``."""
        return chosen_outlines(value, numbers)

    def bounds(self, value: Outlines) -> Float64:
        """Return the bounds of the outlines of one image; see ``ObjectTarget.bounds``."""
        return outline_bounds(value)

    def covered(self, part: Fields, cover: Cover) -> Fields:
        """Drop objects of which too little is left; see ``ObjectTarget.covered``."""
        kept = part.kept.copy()
        kept[cover.numbers] &= cover.pixels >= max(self.min_pixels, 1)
        return replace(part, kept=kept)

    def move(self, value: Outlines, view: View) -> dict[str, Any]:
        """Return the dict of one image; see ``Target.move``."""
        return dicts_of(dropped([self.move_all([value], view)]), 1)[0]

    def _parse(self, found: list[Any]) -> list[Outlines]:
        """Return the values of samples from the lists of their objects, with the image_id 0."""
        objects = [each for part in found for each in part]
        for number, each in enumerate(objects):
            if each.get(self.outline) in (None, []):
                field = self._place.field(number, self.outline)
                raise FieldError(
                    f"field {field!r} is missing or empty: the object has {[*each][:12]}. Remove objects "
                    "without an outline, or give targets= without InstanceMasks"
                )
        return outlines_of(
            lambda number: self._place.field(number, self.outline),
            [each[self.outline] for each in objects],
            [*map(len, found)],
        )
