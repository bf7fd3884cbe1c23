"""Members that belong to places in the image, such as masks, and stay where they are if it is moved."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..augment.distortions import Affine
from ..augment.geometry import may_move
from ..augment.module import Augment
from ..sampling.crops import crop_at
from ..sampling.rng import Int64
from ..shards.source import Source, plain
from .augmenting import modules_of, uncompiled
from .batch import AnyBatch, ExtraBatch
from .split import Split

_PICTURES = {"png", "npy", "npz", "jpg", "jpeg", "tif", "tiff", "bmp", "webp", "seg"}
_PLACES = {
    *("box", "boxes", "bbox", "bboxes", "mask", "masks", "segmentation", "segmentations"),
    *("keypoints", "landmarks", "points", "polygon", "polygons"),
}
_IN_JSON = re.compile(rf'"({"|".join(sorted(_PLACES))})"\s*:'.encode())
_READ = 4  # samples whose JSON is read


def unmoved_member(
    name: str, split: Split, augment: nn.Module | None, batch: AnyBatch, source: Source | None, ids: Int64
) -> str:
    """Return a warning if members of a batch seem to be masks, boxes or points of images that are moved.

    Args:
        name: Of the split.
        split: The samples.
        augment: The module that distorts the images.
        batch: Its first batch.
        source: The samples; None for a stream.
        ids: Numbers of the samples of the batch.

    Returns:
        "" if no such member is found, or nothing moves the images at random.
    """
    if not isinstance(batch, ExtraBatch) or not (mover := _mover_of(split, augment)):
        return ""
    member = _member_with_places(batch.extra, split.extensions, source, ids[:_READ])
    if not member:
        return ""
    return (
        f"{name}: {mover} moves the images, but the member {member!r} stays where it is, and seems to be a "
        "mask, boxes or points. Give tarpeg.Boxes, Keypoints, Masks or a tarpeg.Target of your own to "
        "Split(targets=...), in place of members=; or ignore this warning if the member has no places in the "
        "image."
    )


def _mover_of(split: Split, augment: nn.Module | None) -> str:
    """Return what moves images at random, as it was given; "" for nothing."""
    for pipeline in split.pipelines:
        crop: Any = pipeline.crop
        if crop_at(crop, 0).draws:
            return repr(crop)
        if pipeline.flip:
            return f"flip={pipeline.flip:g}"
        if pipeline.moves_pixels_in_python or any(map(may_move, pipeline.policies)):
            return "transform="
    for module in map(uncompiled, modules_of(augment)):
        if not isinstance(module, Augment):
            continue
        has_affine = any(isinstance(part, Affine) for part in module.distortions.values())
        if module.flip or has_affine or any(map(may_move, module.policies)):
            return "augment="
    return ""


def _member_with_places(
    extras: Sequence[Any], members: Sequence[str], source: Source | None, ids: Int64
) -> str:
    for name in (member.removesuffix("?") for member in members):
        contents = [extra.get(name) for extra in extras if isinstance(extra, Mapping)]
        if source is not None:
            contents = source.members(ids, plain(name))
        found = [content for content in contents if isinstance(content, bytes)]
        parts = {*name.lower().split(".")}
        if found and parts & (_PICTURES | _PLACES):
            return name
        if "json" in parts and any(map(_IN_JSON.search, found)):
            return name
    named = (key for extra in extras if isinstance(extra, Mapping) for key in extra)
    return next((key for key in named if key in _PLACES), "")
