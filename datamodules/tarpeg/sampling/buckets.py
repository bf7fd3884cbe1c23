"""Buckets by aspect ratio: the shape of each image's result, and batches of one shape over ranks."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import SamplesError, ShardError, check_integer
from .crops import Int32, _checked, _fitted, _joined, _placed
from .rng import Int64
from .sampler import Request, Sampler

Shape = tuple[int, int]
# Shapes that an image is compared with at a time: 64 MB of ratios.
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Cover:
    """The largest box of an image that has the aspect ratio of ``size``: what a bucket does to it.

    Args:
        size: Size of the result in pixels, (height, width).
        place: "random" or "center".
    """

    size: Shape
    place: Literal["random", "center"] = "random"

    draws: ClassVar[int] = 2

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """Boxes, int32 [B, 4], from upright image sizes [B, 2] and uniform numbers float [B, 2]."""
        image, uniforms = _checked(sizes, draws, self.draws)
        # No box of this size fits, so that the largest of its shape is taken.
        size = _fitted(image, image + 1, self.size)
        if self.place == "center":
            return _joined(np.rint((image - size) / 2).astype(np.int64), size)
        return _joined(_placed(image, size, uniforms), size)


@dataclass(frozen=True)
class AspectBuckets:
    """Images of their own aspect ratios: each goes to the bucket of the nearest shape, which it covers.

    The image is resized until it covers the shape of its bucket, and cropped to it. A batch has one shape,
    the same on all ranks. All samples come exactly once per epoch: the last samples of each bucket are
    smaller batches at the end of the epoch. Of NovelAI's idea and kohya's options; the bucket is the one that
    crops least.

    Args:
        resolution: A shape has at most as many pixels as a square of this side.
        step: Heights and widths are multiples of this.
        min_size: Smallest side of the shapes; default: half of ``resolution``.
        max_size: Largest side of the shapes; default: twice ``resolution``.
        upscale: Enlarge small images to the shapes of ``resolution``. False: they keep their size, cropped to
            multiples of ``step``, which makes more shapes.
        buckets: The shapes (height, width), in place of the former; ``step`` and sides are not checked.
        place: "random" or "center": the part of an image that is kept.
        remainder: "smaller": the last samples of a bucket are a smaller batch. "merge": they join those of
            the next shapes, as long as these make a full batch.
        max_pixels_per_batch: Batches of each shape have as many images per rank as have this many pixels,
            in place of the batch size.
        min_batch: Fewest samples of a batch over all ranks: a bucket with fewer joins the one of the nearest
            shape, and a remainder with fewer the batch before it. Without it, they do if they are fewer than
            the ranks. Batches are the same for all numbers of ranks up to this.

    Raises:
        ValueError: For an argument out of range.
        ShardError: When the split is opened, for an image that fits into no bucket.

    Example:
        >>> crop = tarpeg.AspectBuckets(resolution=128, step=32)
        >>> loader = tarpeg.Loader(tarpeg.Split(shards, crop), batch_size=4, workers=0)
        >>> sorted({tuple(images.shape[2:]) for images, labels in loader})
        [(96, 128)]
    """

    resolution: int = 1024
    step: int = 64
    min_size: int | None = None
    max_size: int | None = None
    upscale: bool = False
    buckets: Sequence[Sequence[int]] | None = None
    place: Literal["random", "center"] = "random"
    remainder: Literal["smaller", "merge"] = "smaller"
    max_pixels_per_batch: int | None = None
    min_batch: int = field(default=1, repr=False)  # checkpoints keep the repr of a validation's crop

    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_integer("step", self.step, 1, of=self)
        check_integer("resolution", self.resolution, self.step, of=self)
        check_integer("min_batch", self.min_batch, 1, of=self)
        for name in ("min_size", "max_size", "max_pixels_per_batch"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, of=self)
        for name, allowed in (("place", ("random", "center")), ("remainder", ("smaller", "merge"))):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} of AspectBuckets must be {allowed[0]!r} or "
                    f"{allowed[1]!r}"
                )
        if not isinstance(self.upscale, bool):
            raise ValueError(f"upscale={self.upscale!r} of AspectBuckets must be True or False")
        if self.buckets is not None:
            object.__setattr__(self, "buckets", _shapes(self.buckets))
        low, high = self._sides
        if not self.shapes:
            raise ValueError(
                f"min_size={low} and max_size={high} of AspectBuckets leave no shape with multiples of "
                f"step={self.step} and at most {self.resolution} x {self.resolution} pixels"
            )
        largest = max(height * width for height, width in self.shapes)
        if self.max_pixels_per_batch is not None and self.max_pixels_per_batch < largest:
            raise ValueError(
                f"max_pixels_per_batch={self.max_pixels_per_batch} of AspectBuckets is smaller than one "
                f"image of the largest bucket, {largest} pixels"
            )

    @property
    def _sides(self) -> tuple[int, int]:
        """Smallest and largest side of the shapes."""
        low = self.resolution // 2 if self.min_size is None else self.min_size
        high = 2 * self.resolution if self.max_size is None else self.max_size
        return low, high

    @cached_property
    def shapes(self) -> list[Shape]:
        """The shapes of ``resolution``, or those of ``buckets``, from wide to high."""
        if self.buckets is not None:
            found = {(height, width) for height, width in self.buckets}
        else:
            low, high = self._sides
            sides = range(_up(low, self.step), high + 1, self.step)
            others = ((side, self._other(side)) for side in sides)
            pairs = {(side, other) for side, other in others if other >= low}
            square = self.resolution // self.step * self.step
            found = (
                pairs
                | {pair[::-1] for pair in pairs}
                | ({(square, square)} if low <= square <= high else set())
            )
        return sorted(found, key=lambda shape: (shape[0] / shape[1], shape))

    @property
    def size(self) -> Shape:
        """The shape with most pixels."""
        return max(self.shapes, key=math.prod)

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """Boxes as of the shape with most pixels; those of a batch are ``at_size(shape).boxes``."""
        return self.at_size(self.size).boxes(sizes, draws)

    def at_size(self, size: Shape) -> Cover:
        """Return the crop of a bucket."""
        return Cover(size, self.place)

    def shapes_of(self, sizes: npt.ArrayLike) -> Int64:
        """Return the shape (height, width) of the bucket of each image: int64 [B, 2].

        (0, 0) for an image that fits into no bucket: with ``upscale=False`` it is smaller than ``step``, or
        than all ``buckets``. An image of unknown size, (0, 0), has the shape ``size``.

        Args:
            sizes: Upright (height, width) in pixels, integers [B, 2].
        """
        images = np.asarray(sizes).astype(np.int64)
        found = np.empty_like(images)
        for begin in range(0, len(images), _CHUNK):
            part = images[begin : begin + _CHUNK]
            known = part[:, 0] > 0
            shapes = np.empty_like(part)
            shapes[~known] = self.size
            shapes[known] = self._nearest(part[known])
            found[begin : begin + _CHUNK] = shapes
        return found

    def nearest(self, height: int, width: int) -> Shape:
        """Return the shape of ``shapes`` that is nearest to an image, whatever its size."""
        losses = lost((height, width), self.shapes)
        return self.shapes[int(losses.argmin())]

    def _nearest(self, images: Int64) -> Int64:
        """Return the shape that crops least of each image, int64 [B, 2]."""
        shapes = np.array(self.shapes, np.int64)
        losses = lost(images[:, None], shapes[None])
        if self.upscale:
            nearest: Int64 = shapes[losses.argmin(axis=1)]
            return nearest
        losses[(shapes[None] > images[:, None]).any(axis=2)] = math.inf  # it would have to be enlarged
        best = losses.argmin(axis=1)
        if self.buckets is not None:
            fits = np.isfinite(losses[np.arange(len(images)), best])
            return np.where(fits[:, None], shapes[best], 0)
        options = np.stack([shapes[best], *self._own_shapes(images)], axis=1)
        chosen = lost(images[:, None], options)
        is_wrong = (options > np.minimum(images, self._sides[1])[:, None]).any(axis=2)
        is_wrong |= (options < self.step).any(axis=2) | (options.prod(axis=2) > self.resolution**2)
        chosen[is_wrong] = math.inf
        best = chosen.argmin(axis=1)
        rows = np.arange(len(images))
        return np.where(np.isfinite(chosen[rows, best])[:, None], options[rows, best], 0)

    def _own_shapes(self, images: Int64) -> list[Int64]:
        """Return shapes of each image's own: its size, reduced to the pixels of ``resolution``, in steps.

        Both sides rounded down; as kohya's, one side rounded down and the other by the ratio of the image;
        and of a narrow image, which would be less than a step wide, a part at its width.
        """
        step, (_, high) = self.step, self._sides
        scale = np.minimum(self.resolution / np.sqrt(images.prod(axis=1)), high / images.max(axis=1))
        scale = np.minimum(scale, 1.0)[:, None]
        down = np.floor(images * scale + 0.5).astype(np.int64) // step * step
        height, width = down.T
        ratios = images[:, 0] / images[:, 1]
        by_width = (width * ratios + 0.5).astype(np.int64) // step * step
        by_height = (height / ratios + 0.5).astype(np.int64) // step * step
        short = np.maximum((images.min(axis=1, keepdims=True) * scale).astype(np.int64) // step * step, step)
        rest = self.resolution**2 // short // step * step
        part = np.where(
            images == images.min(axis=1, keepdims=True), short, np.minimum(rest, high // step * step)
        )
        part = np.minimum(part, images // step * step)
        return [down, np.stack([by_width, width], axis=1), np.stack([height, by_height], axis=1), part]

    def _other(self, side: int) -> int:
        """Return the other side of a shape with this one."""
        return min(self._sides[1], self.resolution**2 // side) // self.step * self.step


def lost(images: npt.ArrayLike, shapes: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the share of an image that is cut off to make it the shape of a bucket.

    Args:
        images: (height, width), [..., 2].
        shapes: (height, width), [..., 2].
    """
    sizes, results = np.asarray(images, np.float64), np.asarray(shapes, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (sizes[..., 0] * results[..., 1]) / (sizes[..., 1] * results[..., 0])
        kept = np.minimum(ratio, 1 / ratio)
    return np.nan_to_num(1.0 - kept, nan=1.0)


class Bucket(NamedTuple):
    """The samples of one shape.

    Attributes:
        shape: (height, width).
        samples: Number of its samples.
        global_batch: Samples per full batch, over all ranks.
    """

    shape: Shape
    samples: int
    global_batch: int


class _Batch(NamedTuple):
    """A global batch: places of its samples in the order of the epoch, and its shape."""

    places: Int64
    shape: Shape

    def last(self) -> int:
        """Return the last of the places: when the batch is full."""
        return int(self.places.max())


@dataclass(frozen=True, eq=False)
class BucketBatches:
    """An epoch cut into global batches of one shape each, and each of these into one part per rank.

    It has the methods of ``DistributedBatchSampler``. Full batches come in the order in which the samples of
    the epoch fill them, the remainders of the buckets at the end. How many batches there are of each shape
    and length is the same in all epochs.

    Args:
        bucket_of: int16 [all samples of the source], number of the bucket of each; -1 if it does not take
            part.
        buckets: The buckets, from wide to high; each has a sample for each rank.
        world: Number of data-parallel ranks.
        drop_last: Drop the remainders.
        merges: Remainders join those of the next bucket.
        least: Fewest samples of a batch, of buckets that have as many; at least ``world``.

    Raises:
        ValueError: If a full batch has fewer samples than there are ranks.
        ShardError: If no batch is left.
    """

    bucket_of: npt.NDArray[np.int16]
    buckets: Sequence[Bucket]
    world: int = 1
    drop_last: bool = False
    merges: bool = False
    least: int = 1

    def __post_init__(self) -> None:
        if (size := min(bucket.global_batch for bucket in self.buckets)) < self.world:
            raise SamplesError(
                f"global_batch={size} is smaller than world={self.world}: each rank needs a sample of every "
                "batch. Raise the batch size."
            )
        if not len(self):
            raise ShardError(
                f"no bucket has as many samples as its batch, so drop_last=True leaves no batch: the largest "
                f"has {max(bucket.samples for bucket in self.buckets)}. Lower the batch size or set "
                "drop_last=False."
            )

    @cached_property
    def samples(self) -> int:
        """Samples per epoch, over all ranks."""
        return sum(bucket.samples for bucket in self.buckets)

    @property
    def global_batch(self) -> int:
        """Samples of the largest full batch, over all ranks."""
        return max(bucket.global_batch for bucket in self.buckets)

    @cached_property
    def lengths(self) -> list[tuple[Shape, int]]:
        """Shape and samples of each batch of an epoch, over all ranks, in the order of the buckets."""
        counts = [bucket.samples for bucket in self.buckets]
        order = np.repeat(np.arange(len(counts), dtype=np.int16), counts)
        return [(batch.shape, len(batch.places)) for batch in self._cut(order)]

    def __len__(self) -> int:
        return len(self.lengths)

    def shapes(self) -> dict[Shape, int]:
        """Return the number of batches of each shape in an epoch."""
        return dict(Counter(shape for shape, _ in self.lengths))

    def largest_by_shape(self, rank: int) -> list[tuple[Shape, int]]:
        """Return each shape, and the samples of the rank's largest batch of it."""
        found: dict[Shape, int] = {}
        for shape, count in self.lengths:
            part = count * (rank + 1) // self.world - count * rank // self.world
            found[shape] = max(found.get(shape, 0), part)
        return list(found.items())

    def fingerprint(self) -> int:
        """Checksum of what the batches of an epoch depend on beside its order."""
        return zlib.crc32(repr(self.lengths).encode(), zlib.crc32(self.bucket_of.tobytes()))

    def requests(
        self, sampler: Sampler, rank: int, epoch: int, first: int, continues: Callable[[int], bool]
    ) -> Iterator[Request]:
        """Yield one rank's requests from batch ``first`` of an epoch on; see ``DistributedBatchSampler``."""
        while True:
            ids, _ = sampler.draw_epoch(epoch)
            for batch in self._cut(self.bucket_of[ids])[first:]:
                count = len(batch.places)
                places = batch.places[count * rank // self.world : count * (rank + 1) // self.world]
                yield Request(epoch, ids[places], size=batch.shape)
            epoch, first = epoch + 1, 0
            if not continues(epoch):
                return

    def _cut(self, bucket: npt.NDArray[np.int16]) -> list[_Batch]:
        """Cut the samples of an epoch into batches, from the bucket of each, in the epoch's order."""
        order = np.argsort(bucket, kind="stable")
        full: list[_Batch] = []
        rest: list[_Batch] = []
        carried = order[:0]
        begin = 0
        for number, (shape, samples, size) in enumerate(self.buckets):
            places = np.concatenate([carried, order[begin : begin + samples]])
            begin += samples
            count = len(places) // size
            cuts = [_Batch(places[at : at + size], shape) for at in range(0, count * size, size)]
            tail = places[count * size :]
            # A sample moves to the next shape, and no further.
            moves = self.merges and number + 1 < len(self.buckets) and (count > 0 or not len(carried))
            carried, tail = (tail, tail[:0]) if moves else (tail[:0], tail)
            if 0 < len(tail) < max(self.least, self.world) and cuts and not self.drop_last:
                cuts[-1] = _Batch(np.concatenate([cuts[-1].places, tail]), shape)
            elif len(tail):
                rest.append(_Batch(tail, shape))
            full += cuts
        batches = sorted(full, key=_Batch.last)
        return batches if self.drop_last else batches + sorted(rest, key=_Batch.last)


def bucket_batches(
    crop: AspectBuckets,
    shapes: Int64,
    global_batch: int,
    world: int = 1,
    *,
    drop_last: bool = False,
) -> BucketBatches:
    """Return the batches of the samples of a source.

    A bucket with fewer samples than ranks, or than ``min_batch``, joins the one of the nearest shape.

    Args:
        crop: The buckets.
        shapes: int64 [all samples, 2], the shape of each; (0, 0) if it does not take part.
        global_batch: Samples per batch over all ranks, unless ``crop`` has ``max_pixels_per_batch``.
        world: Number of data-parallel ranks.
        drop_last: Drop the remainders.

    Raises:
        ShardError: For fewer samples than ranks, and if no batch is left.
        ValueError: If ``min_batch`` is larger than a full batch.
    """
    least = max(world, crop.min_batch)
    takes_part = shapes[:, 0] > 0
    found, numbers, counts = np.unique(shapes[takes_part], axis=0, return_inverse=True, return_counts=True)
    if len(numbers) < world:
        raise ShardError(
            f"samples={len(numbers)} are too few for world={world} ranks: each needs at least one. "
            "Add shards or use fewer ranks."
        )
    into = np.arange(len(found))  # the bucket that each joins
    while np.count_nonzero(counts) > 1 and counts[counts > 0].min() < least:
        small = int(np.where(counts > 0, counts, counts.max() + 1).argmin())
        losses = np.where(counts > 0, lost(found[small], found), math.inf)
        losses[small] = math.inf
        nearest = int(losses.argmin())
        counts[nearest] += counts[small]
        counts[small] = 0
        into[into == small] = nearest
    kept = np.flatnonzero(counts)
    kept = kept[np.argsort(found[kept, 0] / found[kept, 1], kind="stable")]
    buckets = []
    for number in kept.tolist():
        height, width = found[number].tolist()
        size = global_batch
        if crop.max_pixels_per_batch is not None:
            size = crop.max_pixels_per_batch // (height * width) * world
        if size < crop.min_batch:
            raise SamplesError(
                f"min_batch={crop.min_batch} of AspectBuckets is larger than a batch of {height} x {width}, "
                f"which has {size} samples over {world} rank{'s' * (world != 1)}"
            )
        buckets.append(Bucket((height, width), int(counts[number]), size))
    rank_of = np.empty(len(found), np.int64)
    rank_of[kept] = np.arange(len(kept))
    bucket_of = np.full(len(shapes), -1, np.int16)
    bucket_of[takes_part] = rank_of[into[numbers.reshape(-1)]]
    return BucketBatches(bucket_of, buckets, world, drop_last, crop.remainder == "merge", least)


def _shapes(given: Sequence[Sequence[int]]) -> tuple[Shape, ...]:
    """Return ``buckets`` as tuples of integers. Raises ValueError."""
    shapes = []
    for each in given:
        pair = tuple(each) if isinstance(each, Sequence) else ()
        if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
            raise ValueError(
                f"buckets={given!r} of AspectBuckets must be a list of (height, width) in whole pixels, "
                f"not {each!r}"
            )
        shapes.append((pair[0], pair[1]))
    if not shapes:
        raise ValueError(f"buckets={given!r} of AspectBuckets is empty: give one (height, width) at least")
    return tuple(shapes)


def _up(side: int, step: int) -> int:
    return -(-side // step) * step
