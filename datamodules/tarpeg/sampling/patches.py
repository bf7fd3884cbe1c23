"""Images as sequences of patches: the size of each for a length, and batches of one length over ranks."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import ShardError, check_integer
from . import rng
from .crops import Int32
from .rng import Int64
from .sampler import Request, Sampler

# Use of rng.permutation.
_SCHEDULE = 5
# timm's bounds of the ratio, and where its search ends.
_LEAST, _MOST, _CLOSE = 1e-6, 100.0, 1e-5


@dataclass(frozen=True)
class Patches:
    """Whole images at their own aspect ratios, as sequences of patches: the batches of timm's NaFlex.

    A batch has one of the lengths ``seq_lens``, the same on all ranks, and as many images as the budget of
    tokens allows. Each image is resized, by timm's rule, to as many patches as the length has room for; its
    sides are multiples of ``patch_size``, and the rest of the sequence is padding. An epoch has as many
    batches of each length, in another order each time, and every sample once.

    The images of a batch are a dict: ``patches``, ``[B, N, patch_size * patch_size * 3]``, of uint8 or as
    ``tarpeg.Augment()`` normalises them; ``patch_coord``, int64 ``[B, N, 2]``, row and column of each patch;
    and ``patch_valid``, bool ``[B, N]``, False for padding. A patch has its pixels row by row, with the
    channels last.

    Args:
        patch_size: Side of a patch in pixels.
        seq_lens: Lengths, in ascending order.
        max_tokens_per_batch: Patches of a batch per rank, with its padding: ``B`` is this divided by the
            length.
        max_ratio: An image is enlarged at most by this; None: until its sequence is full.

    Raises:
        ValueError: For an argument out of range.

    Example:
        >>> crop = tarpeg.Patches(patch_size=16, seq_lens=[32, 64], max_tokens_per_batch=256)
        >>> loader = tarpeg.Loader(tarpeg.Split(shards, crop, flip=0.5), workers=0)
        >>> images, labels = next(iter(loader))
        >>> images["patches"].shape, images["patch_valid"].sum(1)
        (torch.Size([8, 32, 768]), tensor([30, 30, 30, 30, 30, 30, 30, 30]))
        >>> loader.shapes  # length and numbers per patch
        {(32, 768): 3, (64, 768): 2}
    """

    patch_size: int = 16
    seq_lens: Sequence[int] = (128, 256, 576, 784, 1024)
    max_tokens_per_batch: int = 16384
    max_ratio: float | None = None

    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_integer("patch_size", self.patch_size, 1, of=self)
        lengths = self.seq_lens
        is_list = isinstance(lengths, Sequence) and not isinstance(lengths, str)
        if not is_list or not lengths or not all(type(each) is int and each > 0 for each in lengths):
            raise ValueError(
                f"seq_lens={lengths!r} of Patches must be a list of whole numbers of patches, such as "
                "[128, 256, 576]"
            )
        if list(lengths) != sorted({*lengths}):
            raise ValueError(
                f"seq_lens={lengths!r} of Patches must ascend, without repetition: {sorted({*lengths})}"
            )
        object.__setattr__(self, "seq_lens", tuple(lengths))
        check_integer("max_tokens_per_batch", self.max_tokens_per_batch, 1, of=self)
        if self.max_tokens_per_batch < lengths[-1]:
            raise ValueError(
                f"max_tokens_per_batch={self.max_tokens_per_batch} of Patches is smaller than one image of "
                f"the longest sequence, {lengths[-1]} tokens"
            )
        if self.max_ratio is not None and not 0 < self.max_ratio < math.inf:
            raise ValueError(f"max_ratio={self.max_ratio!r} of Patches must be a positive number")

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the longest sequence as one column of patches, which is how a batch is kept."""
        return self.column(self.seq_lens[-1])

    def column(self, seq_len: int) -> tuple[int, int]:
        """Return (height, width) of a sequence as one column of patches."""
        return seq_len * self.patch_size, self.patch_size

    def images_per_batch(self, seq_len: int) -> int:
        """Return the images of a full batch, per rank."""
        return self.max_tokens_per_batch // seq_len

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """Boxes as of the longest sequence; those of a batch are ``at_size(column).boxes``."""
        return self.at_size(self.size).boxes(sizes, draws)

    def at_size(self, size: tuple[int, int]) -> Sequences:
        """Return the crop of a batch, from the ``column`` of its length."""
        return Sequences(self, size[0] // self.patch_size)

    def resized(self, sizes: npt.ArrayLike, seq_len: int) -> Int64:
        """Return the (height, width) to which images are resized for a length: int64 [B, 2].

        They are those of timm's ``get_image_size_for_seq``.

        Args:
            sizes: Upright (height, width) in pixels, integers [B, 2].
            seq_len: Most patches of each.
        """
        images = np.asarray(sizes).astype(np.float64)
        low, high = np.full(len(images), _LEAST), np.full(len(images), _MOST)
        while (is_open := high - low >= _CLOSE).any():
            middle = (low + high) / 2
            fits = self._patches(images, middle).prod(axis=1) <= seq_len
            low = np.where(is_open & fits, middle, low)
            high = np.where(is_open & ~fits, middle, high)
        if self.max_ratio is not None:
            low = np.minimum(low, self.max_ratio)
        return self._patches(images, low) * self.patch_size

    def _patches(self, images: npt.NDArray[np.float64], ratios: npt.NDArray[np.float64]) -> Int64:
        """Return the rows and columns of patches of images that are scaled by these ratios."""
        return np.maximum(np.ceil(images * ratios[:, None] / self.patch_size), 1).astype(np.int64)


@dataclass(frozen=True)
class Sequences:
    """The crop of a batch of one length: whole images, and the size of each.

    Args:
        crop: Its ``Patches``.
        seq_len: Length of the sequences.
    """

    crop: Patches
    seq_len: int

    draws: ClassVar[int] = 0

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the column of patches."""
        return self.crop.column(self.seq_len)

    @property
    def patch_size(self) -> int:
        """Side of a patch."""
        return self.crop.patch_size

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike) -> Int32:
        """Boxes with places, int32 [B, 8]: each image as a whole, and its size before it becomes patches."""
        images = np.asarray(sizes).astype(np.int64)
        corner = np.zeros_like(images)
        resized = self.crop.resized(images, self.seq_len)
        return np.concatenate([corner, images, corner, resized], axis=1).astype(np.int32)


@dataclass(frozen=True, eq=False)
class PatchBatches:
    """An epoch cut into global batches of one length each, and each of these into one part per rank.

    It has the methods of ``DistributedBatchSampler``. The lengths take turns until all samples are in a
    batch; the last one is smaller. All epochs have these batches, in an order of their own.

    Args:
        crop: Lengths and budget.
        samples: Samples per epoch, over all ranks.
        world: Number of data-parallel ranks.
        drop_last: Drop the smaller batch.
        shuffles: Draw the order of the lengths for each epoch.
        seed: Seed of that order.

    Raises:
        ShardError: If there are too few samples.
    """

    crop: Patches
    samples: int
    world: int = 1
    drop_last: bool = False
    shuffles: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < self.world:
            raise ShardError(
                f"samples={self.samples} are too few for world={self.world} ranks: each needs at least one. "
                "Add shards or use fewer ranks."
            )
        if not self.lengths:
            raise ShardError(
                f"samples={self.samples} make no full batch of {self.crop!r}, so drop_last=True leaves none. "
                "Lower max_tokens_per_batch or set drop_last=False."
            )

    @property
    def global_batch(self) -> int:
        """Samples of the largest full batch, over all ranks."""
        return self.crop.images_per_batch(self.crop.seq_lens[0]) * self.world

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        """Length and samples of each batch of an epoch, over all ranks, as the lengths take turns."""
        found: list[tuple[int, int]] = []
        rest = self.samples
        while rest:
            length = self.crop.seq_lens[len(found) % len(self.crop.seq_lens)]
            count = self.crop.images_per_batch(length) * self.world
            if rest < count and self.drop_last:
                break
            if rest < self.world:
                # Each rank needs a sample: the batch before gives some, or takes these few.
                before, most = found.pop()
                lent = self.world - rest
                if most - lent < self.world:
                    return [*found, (before, most + rest)]
                return [*found, (before, most - lent), (length, self.world)]
            found.append((length, min(count, rest)))
            rest -= found[-1][1]
        return found

    def __len__(self) -> int:
        return len(self.lengths)

    def shapes(self) -> dict[tuple[int, int], int]:
        """Return the number of batches of each length, with the size of its column of patches."""
        counts = Counter(length for length, _ in self.lengths)
        return {self.crop.column(length): counts[length] for length in sorted(counts)}

    def largest_by_shape(self, rank: int) -> list[tuple[tuple[int, int], int]]:
        """Return the column of each length, and the samples of the rank's largest batch of it."""
        found: dict[tuple[int, int], int] = {}
        for length, count in self.lengths:
            column = self.crop.column(length)
            found[column] = max(found.get(column, 0), len(range(*self._part(count, rank))))
        return list(found.items())

    def fingerprint(self) -> int:
        """Checksum of what the batches of an epoch depend on beside its order."""
        return zlib.crc32(repr((self.lengths, self.crop.patch_size, self.shuffles)).encode())

    def requests(
        self, sampler: Sampler, rank: int, epoch: int, first: int, continues: Callable[[int], bool]
    ) -> Iterator[Request]:
        """Yield one rank's requests from batch ``first`` of an epoch on; see ``DistributedBatchSampler``."""
        while True:
            ids, _ = sampler.draw_epoch(epoch)
            order = np.arange(len(self))
            if self.shuffles:
                order = rng.permutation(self.seed, epoch, len(self), _SCHEDULE)
            begin = 0
            for k, number in enumerate(order.tolist()):
                length, count = self.lengths[number]
                low, high = self._part(count, rank)
                if k >= first:
                    yield Request(epoch, ids[begin + low : begin + high], size=self.crop.column(length))
                begin += count
            epoch, first = epoch + 1, 0
            if not continues(epoch):
                return

    def _part(self, count: int, rank: int) -> tuple[int, int]:
        """Return the places of a rank's samples in a batch of so many."""
        return count * rank // self.world, count * (rank + 1) // self.world
