"""Batches of samples with a number of images of their own: how large they may be, and ``RaggedImages``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..errors import DecodeError, ShardError, warn
from ..sampling.rng import Int64
from ..sampling.sampler import Request
from ..shards.image_names import Pattern
from ..shards.source import Source, where_of
from .batch import AnyBatch, RaggedImages

# Substitutes in one batch that memory is reserved for, each with as many images as a sample can have.
_SPARE = 8
_MOST_SORTED = 1 << 16


def ragged(batch: AnyBatch, request: Request) -> AnyBatch:
    """Return a batch of flat images with their ``RaggedImages``."""
    (view,) = request.views
    assert view.batch_rows is not None
    counts = np.bincount(view.batch_rows, minlength=len(request.ids))
    offsets = torch.from_numpy(np.append(0, np.cumsum(counts)))
    images: Any = RaggedImages(batch.image, offsets)
    return batch._replace(image=images)


@dataclass(frozen=True)
class MostImages:
    """The most images of a batch of a pattern.

    Args:
        largest: The largest numbers of images of a sample, in descending order.
        comes_again: Whether a sample may come several times in a batch.
    """

    largest: Int64
    comes_again: bool

    @classmethod
    def of(cls, source: Source, pattern: Pattern, candidates: Int64 | None, comes_again: bool) -> MostImages:
        """Count the images of all samples that may be in a batch."""
        counts = source.count_members(replace(pattern, is_cached=source.cached_images is not None))
        if len(counts) and not counts.any():
            raise ShardError(
                f"no sample has a member that matches image={pattern.text!r}; the first, "
                f"{where_of(source, 0)}, has {source.extensions(0)}"
            )
        _check_other_formats(source, pattern, counts)
        counts = np.sort(counts if candidates is None else counts[candidates])[::-1]
        return cls(counts[:_MOST_SORTED].copy(), comes_again)

    def __call__(self, count: int) -> int:
        """Return the most images of as many samples, and of some substitutes."""
        most = int(self.largest[0]) if len(self.largest) else 1
        if self.comes_again or count > _MOST_SORTED:
            return max(1, count * most)
        return max(1, int(self.largest[:count].sum()) + min(count, _SPARE) * most)

    def check(self, images: int, count: int) -> None:
        """Raise DecodeError for a batch with more images than there is memory for."""
        if images > self(count):
            raise DecodeError(
                f"a batch of {count} samples has {images} images, after more than {_SPARE} of its samples "
                f"were replaced, and memory is reserved for {self(count)}. Repair the shards, or lower "
                "batch_size"
            )


def _check_other_formats(source: Source, pattern: Pattern, counts: Int64) -> None:
    """Warn if images of a cache match a pattern of which it was not built, and may have had other formats."""
    images = source.cached_images
    if images is None or pattern.text in images:
        return
    more = counts > source.count_members(replace(pattern, is_cached=False))
    if more.any():
        first = int(more.argmax())
        built = f"images={list(images)}" if images else "no images="
        warn(
            f"{where_of(source, first)}: its cache was built with {built}, so that its members "
            f"{source.extensions(first)} may have had other formats, and image={pattern.text!r} takes each "
            "ppm for an image that matches. Give the images= of the build, or a list of extensions"
        )
