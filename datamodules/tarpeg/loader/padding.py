"""PadMask: which pixels of the results are padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..sampling.geometry import Int32, View
from ..sampling.rng import Int64
from ..shards.source import Source
from ..targets.lost import lose
from ..targets.masks import warped
from ..targets.moved import dicts_of
from ..targets.protocols import Fields


@dataclass(frozen=True)
class PadMask:
    """True where a result is padding, as DETR's models take it, for ``Split(targets=...)``.

    In a list with other targets, the dict of each image has it as ``pad_mask``, bool [H, W]; alone, a batch
    is ``(images, masks)``, bool [B, H, W]. Crops that do not pad make masks of False. Under an affine of
    ``Augment`` or of a policy the padding moves with the image, and what comes from outside is padding too.

    Example:
        >>> crop = tarpeg.RandomShortestSize([64, 96], max_size=128, multiple=32)
        >>> split = tarpeg.Split(shards, crop, targets=tarpeg.PadMask())
        >>> images, masks = next(iter(tarpeg.Loader(split, batch_size=4, workers=0)))
        >>> masks.shape[1:] == images.shape[2:], masks.dtype
        (True, torch.bool)
    """

    fields: ClassVar[Sequence[str]] = ("pad_mask",)

    def read(self, source: Source, ids: Int64) -> list[Any]:
        """Return nothing for each sample; see ``Target.read``."""
        return [None] * len(ids)

    def misfits(self, values: Sequence[Any], sizes: Int32) -> list[str]:
        """Return "" for each image: there is nothing that could not fit."""
        return [""] * len(values)

    def picture_bytes(self, size: tuple[int, int]) -> int:
        """Bytes of the mask of one image."""
        return size[0] * size[1]

    def move_all(self, values: Sequence[Any], view: View) -> Fields:
        """Return the masks of all rows of a view."""
        view.matrices()  # raises an error for images whose place is not known
        masks = np.ones((len(view), *view.size), np.uint8)
        for mask, (top, left, height, width) in zip(masks, view.all_places.tolist(), strict=True):
            mask[top : top + height, left : left + width] = 0
        if view.affine is not None and len(view):
            masks = warped(masks, view.affine, 1)
            lose(masks, view, 1)
        counts = np.zeros(len(view), np.int64)
        kept = np.zeros(0, np.bool_)
        return Fields("pad_mask", counts, kept, {}, {}, view.size, {"pad_mask": masks}, "bool", 1)

    def move(self, value: Any, view: View) -> Any:
        """Return the mask of one image, [H, W]; see ``Target.move``."""
        return dicts_of([self.move_all([value], view)], 1)[0]["pad_mask"]
