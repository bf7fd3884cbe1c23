"""What an epoch will be, before anything is decoded: samples, batches of each shape, crops, tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import check_integer
from ..loader.loader import Loader
from ..loader.mixture import MixtureLoader
from ..loader.text import collated


@dataclass(frozen=True)
class ShapePlan:
    """The batches of one shape.

    Args:
        shape: (height, width) of the images.
        batches: Number of batches.
        samples: Samples of all of them, on this rank.
        smallest: Samples of the smallest batch.
        largest: Samples of the largest batch.
        patch_size: Side of the patches of which the images are one column; 0 for others.
    """

    shape: tuple[int, int]
    batches: int
    samples: int
    smallest: int
    largest: int
    patch_size: int = 0

    def __str__(self) -> str:
        height, width = self.shape
        shape = f"{height // self.patch_size} patches" if self.patch_size else f"{height} x {width}"
        each = f"{self.largest}" if self.smallest == self.largest else f"{self.smallest} to {self.largest}"
        return f"{shape}: {_batches(self.batches)} of {each}, {_samples(self.samples)}"


def _batches(count: int) -> str:
    return f"{count} batch{'es' * (count != 1)}"


def _samples(count: int) -> str:
    return f"{count} sample{'s' * (count != 1)}"


@dataclass(frozen=True)
class CaptionPlan:
    """The tokens of the captions of one ``Text``, in the first batches of the epoch.

    Args:
        name: Its name in ``members=``; "" for a single one.
        samples: Samples whose captions were read, on this rank.
        captions: Their captions.
        tokens: Tokens of all of them.
        longest: Tokens of the longest caption.
        full: Captions of ``max_length`` tokens: those that are cut are among them.
        max_length: Of the ``Text``.
        places: Tokens of the batches with their padding.
        broken: Samples without a caption, or without tokens: in training another takes the place of each.
    """

    name: str
    samples: int
    captions: int
    tokens: int
    longest: int
    full: int
    max_length: int | None
    places: int
    broken: int = 0

    @property
    def padding(self) -> float:
        """Share of the batches' tokens that is padding."""
        return 1 - self.tokens / max(self.places, 1)

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        parts = [f"{self.tokens / max(self.captions, 1):.1f} tokens each, {self.longest} at most"]
        if self.max_length is not None:
            parts.append(f"{self.full / max(self.captions, 1):.1%} have max_length={self.max_length}")
        parts.append(f"{self.padding:.1%} of the batches' {self.places} tokens are padding")
        if self.broken:
            parts.append(f"{self.broken} samples have none or a broken one")
        return f"captions{name} of {self.samples} samples: {', '.join(parts)}"


@dataclass(frozen=True)
class EpochPlan:
    """What an epoch of a loader will be, on its rank; ``print`` shows it.

    Args:
        epoch: Number of the epoch.
        samples: Samples, over all ranks.
        batches: Batches, on each rank.
        world: Number of ranks.
        shapes: The batches of each shape, those with most samples first.
        shown: Share of its image's pixels that a crop shows, a mean over samples and views.
        enlarged: Share of the crops that are enlarged.
        padding: Share of the batches' pixels that is padding.
        pixels: Pixels of all images of all batches, on this rank.
        tokens: Patches of all batches with their padding, on this rank; 0 without ``Patches``.
        images: Images of all batches, on this rank, if samples have several; otherwise 0.
        captions: The tokens of each ``Text`` with a tokenizer.
        on_device: Whether batches are decoded where they arrive, of tiles that workers gather.
        sources: Of a mixture, by name: samples over all ranks, and how many epochs of the source these are.

    Example:
        >>> crop = tarpeg.AspectBuckets(resolution=128, step=32, upscale=True)
        >>> loader = tarpeg.Loader(tarpeg.Split(shards, crop), batch_size=4, workers=0)
        >>> tarpeg.plan_epoch(loader).padding
        0.0
    """

    epoch: int
    samples: int
    batches: int
    world: int
    shapes: list[ShapePlan] = field(default_factory=list)
    shown: float = 0.0
    enlarged: float = 0.0
    padding: float = 0.0
    pixels: int = 0
    tokens: int = 0
    images: int = 0
    captions: list[CaptionPlan] = field(default_factory=list)
    on_device: bool = False
    sources: dict[str, tuple[int, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        images = f" with {self.images} images" if self.images and self.world == 1 else ""
        ranks = f" on each of {self.world} ranks" if self.world > 1 else ""
        return "\n".join(
            [
                f"epoch {self.epoch}: {_samples(self.samples)}{images}, {_batches(self.batches)}{ranks}",
                *(
                    f"  {name}: {_samples(count)}, {epochs:.2f} of its epochs"
                    for name, (count, epochs) in self.sources.items()
                ),
                *(f"  {shape}" for shape in self.shapes),
                f"  a crop shows {self.shown:.1%} of its image on average, {self.enlarged:.1%} of the crops "
                "are enlarged",
                f"  {self.padding:.1%} of the batches' {self._parts} are padding",
                *(f"  {each}" for each in self.captions),
                *["  workers gather tiles, and batches are decoded on their device"] * self.on_device,
            ]
        )

    @property
    def _parts(self) -> str:
        return f"{self.tokens} tokens" if self.tokens else "pixels"


def plan_epoch(loader: Loader, epoch: int = 0, *, captions: int = 10_000) -> EpochPlan:
    """Return what an epoch will be: exactly, as all that is random is drawn, but no image is read.

    Of images that are made of several samples, such as by ``Mosaic``, each sample counts as if it were alone.

    Args:
        loader: Of indexed samples; a stream has no plan.
        epoch: Number of the epoch.
        captions: The captions of about so many samples are read and tokenised, those of the first batches, if
            the split has a ``Text`` with a tokenizer; 0: none.

    Raises:
        ValueError: For a stream.

    Example:
        >>> loader = tarpeg.Loader(tarpeg.Split(shards, tarpeg.RandomCrop(96)), batch_size=4, workers=0)
        >>> print(tarpeg.plan_epoch(loader))
        epoch 0: ...
    """
    check_integer("captions", captions, 0)
    counts: dict[tuple[int, int], list[int]] = defaultdict(list)
    shown, enlarged, padded, pixels, drawn = 0.0, 0, 0, 0, 0
    batches, images = 0, 0
    for views in loader.views(epoch):
        batches += 1
        samples: dict[tuple[int, int], int] = {}  # of this batch, by the shapes of its views
        for view in views:
            known = view.is_known
            boxes, places = view.boxes[known].astype(np.float64), view.all_places[known].astype(np.float64)
            sizes = view.sizes[known].astype(np.float64)
            shown += float((boxes[:, 2:].prod(axis=1) / sizes.prod(axis=1)).sum())
            enlarged += int((boxes[:, 2:] < places[:, 2:]).any(axis=1).sum())
            # Several parts of a row are images of their own, or one image of several samples.
            rows = len(view) if view.batch_rows is None else len(np.unique(view.batch_rows))
            is_whole = view.batch_rows is not None and loader.split.image is None
            shown_in = rows if is_whole else int(known.sum())
            padded += shown_in * math.prod(view.size) - int(places[:, 2:].prod(axis=1).sum())
            pixels += (rows if is_whole else len(view)) * math.prod(view.size)
            drawn += int(known.sum())
            images += len(view)
            samples[view.size] = rows
        for shape, count in samples.items():
            counts[shape].append(count)
    side = loader.split.patches.patch_size if loader.split.patches is not None else 0
    shapes = [
        ShapePlan(shape, len(each), sum(each), min(each), max(each), side) for shape, each in counts.items()
    ]
    return EpochPlan(
        epoch=epoch,
        samples=loader.samples_in(epoch),
        batches=batches,
        world=loader.ranks.world,
        shapes=sorted(shapes, key=lambda each: -each.samples),
        shown=shown / max(drawn, 1),
        enlarged=enlarged / max(drawn, 1),
        padding=padded / max(pixels, 1),
        pixels=pixels,
        tokens=pixels // side**2 if side else 0,
        images=images if loader.split.image is not None else 0,
        captions=_plans_of_captions(loader, epoch, captions),
        on_device=loader.config.decodes_on_device,
        sources=loader.sources_in(epoch) if isinstance(loader, MixtureLoader) else {},
    )


def _plans_of_captions(loader: Loader, epoch: int, most: int) -> list[CaptionPlan]:
    """Tokenise the captions of the first batches, of ``most`` samples or a few more."""
    texts = {name: text for name, text in loader.split.texts.items() if text.tokenizer is not None}
    if not texts or not most:
        return []
    lengths: dict[str, list[int]] = {name: [] for name in texts}
    places = dict.fromkeys(texts, 0)
    samples, broken = 0, 0
    for values in loader.captions(epoch):
        read = [each for each in values if isinstance(each, dict)]
        samples, broken = samples + len(values), broken + len(values) - len(read)
        for name in texts:
            tokens = (row for each in read for row in each[name])
            lengths[name] += [int((row >= 0).sum()) for row in tokens]  # without padding of the tokenizer
            places[name] += _tokens_of(collated({name: texts[name]}, values), name).input_ids.size
        if samples >= most:
            break
    return [
        CaptionPlan(
            name=name,
            samples=samples,
            captions=len(lengths[name]),
            tokens=sum(lengths[name]),
            longest=max(lengths[name], default=0),
            full=lengths[name].count(text.max_length or -1),
            max_length=text.max_length,
            places=places[name],
            broken=broken,
        )
        for name, text in texts.items()
    ]


def _tokens_of(found: Any, name: str) -> Any:
    """Return the ``Tokens`` of one ``Text`` of a batch."""
    return found[name] if name else found
