"""What the steps of ``transform=`` in Python return, and the format of it: tried on the first sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..sampling.rng import Int64
from ..sampling.sampler import Request
from ..shards.marks import watching
from ..shards.source import Source, where_of
from ..transforms.pipeline import Uncropped
from ..transforms.pixels import PixelFormat
from ..transforms.results import Outcome, TransformError, outcome_of
from .carried import Carrier
from .drawing import Size
from .split import Split

# Samples that are tried until one can be decoded.
_MOST_TRIED = 20
# Sizes of crops for which the results of transforms are kept.
_MOST_FOUND = 64
# Size of the noise that shows what a transform of whole images returns, if a stream has no sample yet.
_NOISE = (375, 500)

Example = Callable[[Request, list[Size]], list[Tensor] | None]
"""Returns an image of each view of a request of one sample; None if it cannot be decoded."""


@dataclass
class Outcomes:
    """The results of the views' steps in Python, by the sizes of their crops.

    Attributes:
        source: The samples.
        split: Its pipelines have the steps.
        pixels: Format of the images of the loader.
        seed: Of the loader.
        candidates: Ids of the samples that may be tried, all if it is None.
        carrier: Carries targets through the steps; None without.
        known: What was found; shared with outcomes of other samples of the split.
    """

    source: Source
    split: Split
    pixels: PixelFormat
    seed: int
    candidates: Int64 | None
    carrier: Carrier | None
    known: dict[tuple[Size, ...], list[Outcome]] = field(default_factory=dict)

    def of(self, epoch: int, sizes: list[Size], example: Example) -> list[Outcome]:
        """Return what the transform of each view returns for the first sample that can be decoded.

        Args:
            epoch: Of the crops.
            sizes: Of the crop of each view.
            example: Makes the images.
        """
        key = tuple(sizes)
        if key in self.known:
            return self.known[key]
        images, where = self._first_images(epoch, sizes, example)
        found = self._run(images, where)
        dtypes = [self.dtype_of(outcome) for outcome in found]
        shapes = [{found[view].shape for view in views} for views in self.split.view_groups]
        if len({*dtypes}) > 1 or max(map(len, shapes)) > 1:
            each = zip(dtypes, found, strict=True)
            shown = " and ".join(f"{dtype} {list(outcome.shape)}" for dtype, outcome in each)
            raise TransformError(
                f"{where()}: the views of transform= return {shown}: all must have one type, and those that "
                "begin with crops of one size, or without a crop, one shape. A crop behind other steps, such "
                "as v2.ToPILImage(), does not count: put it first. A list has one transform per view; the "
                "steps of one pipeline belong in v2.Compose([...])."
            )
        if len(self.known) >= _MOST_FOUND:  # a crop may give each batch a size of its own
            del self.known[next(iter(self.known))]
        self.known[key] = found
        return found

    def last_format(self, outcome: Outcome) -> PixelFormat | None:
        """Return the format to which the results of a view's steps in Python are converted; None for none."""
        pipeline, pixels = outcome.pipeline, self.pixels
        if pipeline.levels is not None:
            return None if pipeline.levels_first else pipeline.levels
        is_normalised = pixels.worker_augment is None and pixels.dtype != torch.uint8
        return pixels if is_normalised and outcome.is_rgb else None

    def dtype_of(self, outcome: Outcome) -> torch.dtype:
        """Type of the images of a view."""
        return (self.last_format(outcome) or outcome).dtype

    def _run(self, images: list[Tensor], where: Callable[[], str]) -> list[Outcome]:
        """Run the steps of each view on its image."""
        found = []
        with watching(where):
            for pipeline, image in zip(self.split.pipelines, images, strict=True):
                is_carried = self.carrier is not None and pipeline.moves_targets_in_python
                example: Any = self.carrier.example if self.carrier is not None and is_carried else None
                found.append(outcome_of(pipeline, image, where, self.seed, example))
        return found

    def _first_images(
        self, epoch: int, sizes: list[Size], example: Example
    ) -> tuple[list[Tensor], Callable[[], str]]:
        """Return an image of each view of the first sample that can be decoded; noise for a stream."""
        ids = np.arange(len(self.source)) if self.candidates is None else self.candidates
        for id in ids[:_MOST_TRIED].tolist():
            images = example(Request(epoch, np.array([id], np.int64)), sizes)
            if images is not None:
                return images, partial(where_of, self.source, id)
        noise, found = np.random.default_rng(0), []
        for pipeline, size in zip(self.split.pipelines, sizes, strict=True):
            height, width = pipeline.crop.target(*_NOISE) if isinstance(pipeline.crop, Uncropped) else size
            found.append(torch.from_numpy(noise.integers(0, 256, (height, width, 3), np.uint8)).movedim(2, 0))
        return found, lambda: "an image of noise"
