"""What a split whose samples have several images may have besides, ``Split(image=...)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..sampling.buckets import AspectBuckets
from ..sampling.crops import CenterCrop, RandomCrop, RandomResizedCrop, Whole, methods_of
from ..sampling.sampler import shown
from ..targets.protocols import type_names
from ..transforms.pipeline import Uncropped

_PLAIN = (CenterCrop, RandomCrop, RandomResizedCrop, Whole)


def check_many(split: Any) -> None:
    """Raise ValueError for settings of a ``Split`` that do not go with its ``image=``, naming both."""
    given = f"image={split.image!r}"
    if split.image is None:
        if split.shared_box is not None:
            raise ValueError(
                f"shared_box={split.shared_box!r} belongs to image=, for samples with several images"
            )
        return
    if split.shared_box not in (None, True, False):
        raise ValueError(f"shared_box={split.shared_box!r} must be True, False, or None for its default")
    pattern = split.image_pattern
    if split.targets is not None and pattern is not None:
        raise ValueError(
            f"targets={type_names(split.targets)} and {given}: targets follow the images of a list, as many "
            "in each sample. Give a list of extensions; or read what belongs to a pattern by members= and "
            "decode="
        )
    if pattern is not None and split.streaming:
        raise ValueError(
            f"streaming={shown(split.streaming)} and {given}: memory is reserved for the most images of a "
            "batch, which an index has. Give a list of extensions, or shards that are local"
        )
    if pattern is not None and len(split.pipelines) > 1:
        raise ValueError(
            f"{given} has one crop for all images, and crop=, transform= or views= make "
            f"{len(split.pipelines)} views: give one crop, or a list of extensions"
        )
    _check_crops(split, given)
    if not split.is_decoded_only or split.runs_python or any(_is_whole(each) for each in split.pipelines):
        raise ValueError(
            f"transform= and {given}: its steps have to be those of the decoder, a crop, flip and Normalize; "
            "split.plan() of a split without image= shows which are not. Give others to Augment"
        )
    if split.shares_box and len(split.pipelines) > 1:
        _check_shared(split, given)


def _is_whole(pipeline: Any) -> bool:
    return isinstance(pipeline.crop, Uncropped)


def _check_crops(split: Any, given: str) -> None:
    """Raise ValueError for crops of one image."""
    for crop in split.all_crops():
        if isinstance(crop, Uncropped):
            continue
        methods = methods_of(crop)
        special = methods.partners or methods.patch_size or methods.boxes_among
        if isinstance(crop, AspectBuckets) or special or methods.has_many_sizes or methods.at_size:
            raise ValueError(
                f"crop={crop!r} and {given}: the size of a batch, or what an image shows, would depend on "
                "one image of each sample. Give a crop of one size, such as RandomResizedCrop(224) or "
                "LetterBox(224)"
            )
        one: Any = crop
        if split.fidelity == "exact" and isinstance(one, CenterCrop) and one.shorter is not None:
            raise ValueError(
                f"fidelity='exact', crop={crop!r} and {given}: whole images would be resized before they are "
                "cropped. Give fidelity='fast'"
            )


def _check_shared(split: Any, given: str) -> None:
    """Raise ValueError unless the crops of all images differ in nothing but the size of their results."""
    crops: Sequence[Any] = split.view_crops()
    first = crops[0]
    for crop in crops[1:]:
        if crop == first:
            continue
        is_plain = type(crop) is type(first) and type(crop) in _PLAIN
        pads = getattr(crop, "padding", None) is not None or getattr(crop, "pad_if_needed", False)
        if not is_plain or pads or replace(crop, size=first.size) != first:
            raise ValueError(
                f"crop={split.crop!r} and {given} with shared_box=True: the images of a sample show the part "
                "that the crop of the first draws. Give one crop, crops that differ in size alone, or "
                "shared_box=False"
            )
    if len({repr(pipeline.flip) for pipeline in split.pipelines}) > 1:
        raise ValueError(
            f"transform= flips some of {given} alone, with shared_box=True: give all the same flip, or "
            "shared_box=False"
        )
