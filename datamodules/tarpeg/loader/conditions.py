"""SizeAndCrop: what SDXL's networks are conditioned on, for ``Split(members=...)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..sampling.crops import methods_of
from ..sampling.geometry import View
from .batch import AnyBatch, ExtraBatch


@dataclass(frozen=True)
class SizeAndCrop:
    """Size of the source and crop of each image, for ``Split(members=...)``: SDXL's ``add_time_ids``.

    int64 [B, 6]: height and width of the source; top and left of the crop; height and width of the image. Top
    and left are pixels of the source as it was resized (and mirrored if the image is), as in diffusers.
    Alone it is the ``extra`` of ``ExtraBatch``, in a dict with captions it has its name.

    Example:
        >>> crop = tarpeg.AspectBuckets(128, step=32, upscale=True)
        >>> split = tarpeg.Split(shards, crop, flip=0.5, members=tarpeg.SizeAndCrop())
        >>> batch = next(iter(tarpeg.Loader(split, batch_size=2, workers=0)))
        >>> batch.extra.shape, batch.extra[:, 4:].tolist() == [list(batch.image.shape[2:])] * 2
        (torch.Size([2, 6]), True)
    """


def numbers_of(view: View) -> Tensor:
    """Return what ``SizeAndCrop`` documents, int64 [B, 6], of a view."""
    boxes, places = view.boxes.astype(np.int64), view.all_places.astype(np.int64)
    left = np.where(view.flips, view.sizes[:, 1] - boxes[:, 1] - boxes[:, 3], boxes[:, 1])
    corner, size = np.stack([boxes[:, 0], left], axis=1), np.maximum(boxes[:, 2:], 1)
    scaled = (2 * corner * places[:, 2:] + size) // (2 * size)
    results = np.broadcast_to(np.array(view.size, np.int64), scaled.shape)
    return torch.from_numpy(np.concatenate([view.sizes.astype(np.int64), scaled, results], axis=1))


def names_of(members: Any) -> tuple[str, ...]:
    """Return the names of ``SizeAndCrop`` in ``members=``, "" if it is alone."""
    if isinstance(members, SizeAndCrop):
        return ("",)
    given = members.items() if isinstance(members, Mapping) else ()
    return tuple(name for name, each in given if isinstance(each, SizeAndCrop))


def with_conditions(batch: AnyBatch, view: View, names: tuple[str, ...]) -> AnyBatch:
    """Return a batch with keys with the numbers of its view under these names in ``extra``."""
    values, fields = numbers_of(view), batch._asdict()
    extra: Any = values
    if names != ("",):
        extra = {**fields.get("extra", {}), **dict.fromkeys(names, values)}
    return ExtraBatch(batch.image, fields["label"], fields["key"], extra)


def check_conditions(split: Any) -> None:
    """Raise ValueError for a split whose images have no single known crop, and ``members=SizeAndCrop()``."""
    several = {
        "image=": split.image is not None,
        "views=": len(split.pipelines) > 1,
        "transform= with steps in Python": split.runs_python,
        f"crop={split.crop!r}": split.has_parts
        or any(methods_of(crop).patch_size for crop in split.view_crops()),
    }
    for name, is_given in several.items():
        if is_given:
            raise ValueError(
                f"members={split.members!r} and {name}: SizeAndCrop is of one crop of each image"
            )
