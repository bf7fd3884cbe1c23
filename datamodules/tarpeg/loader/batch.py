"""Batches, what they are made of in a worker, and the result of fetching one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import Status
from ..sampling.sampler import Request
from .text import rows_of, tokens_on

# One tensor, or a list of tensors if the views of a split have several sizes. Any instead of list[Tensor]: a
# network of one size needs no cast, and one of several sizes neither.
Images = Tensor | Any
# One shape, or a list of shapes.
Shape = tuple[int, ...] | list[tuple[int, ...]]


class RaggedImages(NamedTuple):
    """Images of samples that have several each, of ``Split(image="*.jpg")``: those of all samples, flat.

    Attributes:
        images: uint8 ``[N, 3, H, W]``, or what ``Augment`` makes of it; those of a sample follow each other.
        offsets: int64 ``[B + 1]``: sample i has ``images[offsets[i]:offsets[i + 1]]``, on the device of the
            images.

    Example:
        >>> import torch
        >>> images = tarpeg.RaggedImages(torch.zeros(5, 3, 8, 8), torch.tensor([0, 2, 5]))
        >>> [len(images.images[begin:end]) for begin, end in images.offsets.unfold(0, 2, 1).tolist()]
        [2, 3]
    """

    images: Tensor
    offsets: Tensor


class Batch(NamedTuple):
    """A batch of images and labels.

    Attributes:
        image: uint8 ``[B, 3, H, W]``, RGB, channels_last; 1 instead of 3 with ``Split(channels=1)``. With
            ``Split(views=n)`` it is ``[n, B, 3, H, W]``, where ``image[v]`` is an ordinary batch; with crops
            of several sizes a list with one such tensor per size, sizes in the order of their first crop.
            The images of ``Split(image=[...])`` are such views. Of ``Patches`` a dict of tensors; of
            ``Split(image="*.jpg")`` ``RaggedImages``.
        label: int64 ``[B]``, or ``[B, targets]`` with several targets.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.RandomCrop(96), views=2)
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=8, workers=0)
        >>> images, labels = next(iter(data.train_dataloader()))
        >>> images.shape, labels.shape
        (torch.Size([2, 8, 3, 96, 96]), torch.Size([8]))
    """

    image: Images
    label: Tensor


class KeyedBatch(NamedTuple):
    """A ``Batch`` with the keys of its samples: in prediction, and with ``ShardDataModule(keys=True)``.

    Attributes:
        image: As in ``Batch``.
        label: As in ``Batch``.
        key: Keys of the B samples.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.CenterCrop(96))
        >>> data = tarpeg.ShardDataModule(val=split, batch_size=8, workers=0, keys=True)
        >>> images, labels, keys = next(iter(data.val_dataloader()))
        >>> len(keys)
        8
    """

    image: Images
    label: Tensor
    key: list[str]


class ExtraBatch(NamedTuple):
    """A ``KeyedBatch`` with other members of its samples, of a split with ``members=``.

    Attributes:
        image: As in ``Batch``.
        label: As in ``Batch``.
        key: Keys of the B samples.
        extra: What the split's ``decode`` returned for each sample; without it the bytes of the members. For
            a ``Text`` its texts or ``Tokens``, and for a dict of them a dict.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.CenterCrop(96), members=["cls"])
        >>> data = tarpeg.ShardDataModule(val=split, batch_size=8, workers=0)
        >>> batch = next(iter(data.val_dataloader()))
        >>> int(batch.extra[0]["cls"]) == batch.label[0]
        tensor(True)
    """

    image: Images
    label: Tensor
    key: list[str]
    extra: Any


class TargetBatch(NamedTuple):
    """A batch of a split with ``targets=``: images, and the moved target of each, without labels.

    Attributes:
        image: As in ``Batch``.
        targets: A list of B targets as ``Target.move`` returned them, a dict per sample if ``targets=`` is a
            dict or a list; a tensor [B, H, W] for ``Masks`` alone; with several views a list of these.

    Example:
        >>> class Centre(tarpeg.Target):
        ...     def read(self, source, ids):
        ...         return [[[width / 2, height / 2]] for height, width in source.sizes(ids)]
        ...     def move(self, value, view):
        ...         return view.points(value)
        >>> split = tarpeg.Split(shards, tarpeg.CenterCrop(96), targets=Centre())
        >>> data = tarpeg.ShardDataModule(val=split, batch_size=8, workers=0)
        >>> images, targets = next(iter(data.val_dataloader()))
        >>> targets[0].tolist()  # the centre stays in the centre
        [[48.0, 48.0]]
    """

    image: Images
    targets: Any


class KeyedTargetBatch(NamedTuple):
    """A ``TargetBatch`` with the keys of its samples: in prediction, and with ``ShardDataModule(keys=True)``.

    Attributes:
        image: As in ``Batch``.
        targets: As in ``TargetBatch``.
        key: Keys of the B samples.

    Example:
        >>> class Key(tarpeg.Target):
        ...     def read(self, source, ids):
        ...         return source.keys(ids)
        ...     def move(self, value, view):
        ...         return value
        >>> split = tarpeg.Split(shards, tarpeg.CenterCrop(96), targets=Key())
        >>> data = tarpeg.ShardDataModule(val=split, batch_size=8, workers=0, keys=True)
        >>> images, targets, keys = next(iter(data.val_dataloader()))
        >>> targets == keys
        True
    """

    image: Images
    targets: Any
    key: list[str]


class MixedBatch(NamedTuple):
    """A batch of a ``Mixture``.

    Attributes:
        image: As in ``Batch``.
        label: As in ``Batch``.
        source: int64 ``[B]``, number of the source of each row, in the order of the mixture; on the CPU.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.CenterCrop(96))
        >>> mixture = tarpeg.Mixture({"a": split, "b": split}, weights={"a": 0.75, "b": 0.25})
        >>> images, labels, source = next(iter(tarpeg.MixtureLoader(mixture, batch_size=8, workers=0)))
        >>> source.tolist()
        [0, 0, 0, 0, 0, 0, 1, 1]
    """

    image: Images
    label: Tensor
    source: Tensor


class MixedExtraBatch(NamedTuple):
    """A batch of a ``Mixture`` of splits with ``members=``.

    Attributes:
        image: As in ``Batch``.
        label: As in ``Batch``.
        key: Keys of the B samples, in their sources.
        extra: As in ``ExtraBatch``, of the source of each sample.
        source: As in ``MixedBatch``.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.CenterCrop(96), members=["cls"])
        >>> mixture = tarpeg.Mixture({"a": split, "b": split}, weights={"a": 0.75, "b": 0.25})
        >>> batch = next(iter(tarpeg.MixtureLoader(mixture, batch_size=4, workers=0)))
        >>> batch.source.tolist(), len(batch.extra)
        ([0, 0, 0, 1], 4)
    """

    image: Images
    label: Tensor
    key: list[str]
    extra: Any
    source: Tensor


class MixedTargetBatch(NamedTuple):
    """A batch of a ``Mixture`` of splits with ``targets=``.

    Attributes:
        image: As in ``Batch``.
        targets: As in ``TargetBatch``.
        source: As in ``MixedBatch``.

    Example:
        >>> class Key(tarpeg.Target):
        ...     def read(self, source, ids):
        ...         return source.keys(ids)
        ...     def move(self, value, view):
        ...         return value
        >>> split = tarpeg.Split(shards, tarpeg.CenterCrop(96), targets=Key())
        >>> mixture = tarpeg.Mixture({"a": split, "b": split}, weights={"a": 0.75, "b": 0.25})
        >>> images, targets, source = next(iter(tarpeg.MixtureLoader(mixture, batch_size=4, workers=0)))
        >>> source.tolist(), len(targets)
        ([0, 0, 0, 1], 4)
    """

    image: Images
    targets: Any
    source: Tensor


AnyBatch = (
    Batch
    | MixedBatch
    | MixedExtraBatch
    | MixedTargetBatch
    | KeyedBatch
    | ExtraBatch
    | TargetBatch
    | KeyedTargetBatch
)
TARGET_BATCHES = (TargetBatch, KeyedTargetBatch, MixedTargetBatch)
"""Classes of batches that have targets in place of labels."""


@dataclass(frozen=True)
class Encoded:
    """Samples as they were read.

    Args:
        request: Which samples.
        files: The encoded image of each, uint8 [n].
        sizes: int32 [B, 2], upright (height, width) by their headers; (0, 0) if they are not known.
    """

    request: Request
    files: list[Tensor]
    sizes: npt.NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.numel() for file in self.files)  # len() is Python code

    def rows(self, rows: npt.NDArray[np.int64]) -> Encoded:
        """Return some of the samples."""
        return Encoded(self.request.rows(rows), [self.files[row] for row in rows], self.sizes[rows])


@dataclass
class Decoded:
    """Images, and what went wrong with them. The steps after decoding change it.

    Args:
        images: Per size, [B, C, H, W] or [views, B, C, H, W].
        status: int32 [B], codes of ``tarpeg.Status``.
        reasons: By row, more about a status that is not OK.
        non_jpeg: The first row that Pillow decoded.
        wholes: By row, (height, width) of a source that was decoded whole.
        values: Targets as they were read, if steps in Python move them; otherwise None.
        carried: By view, the value of each row as the steps left it; None for a row that they did not move.
        samples: By row, the sample that ``reasons`` and ``non_jpeg`` are about, if it is not the row's own.
        nbytes: Bytes of the encoded images.
        flat: Of samples with a number of images of their own each, all images; ``images`` has a part of it
            per row.
    """

    images: list[Tensor]
    status: Tensor
    reasons: dict[int, str] = field(default_factory=dict)
    non_jpeg: int | None = None
    wholes: dict[int, tuple[int, int]] = field(default_factory=dict)
    values: list[Any] | None = None
    carried: dict[int, list[Any]] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)
    nbytes: int = 0
    flat: Tensor | None = None

    @classmethod
    def nothing(cls, count: int) -> Decoded:
        """Return the state before anything is decoded."""
        return cls([], torch.zeros(count, dtype=torch.int32, device="cpu"))

    @property
    def is_good(self) -> npt.NDArray[np.bool_]:
        """Which images are decoded, bool [B]."""
        good: npt.NDArray[np.bool_] = self.status.numpy() == int(Status.OK)  # with a Status it takes 100 us
        return good

    def of_rows(self, rows: npt.NDArray[np.int64], samples: npt.NDArray[np.int64]) -> Decoded:
        """Return what became of rows of several parts each: that of the first one that failed.

        Args:
            rows: Row of each part, [n].
            samples: Its sample, [n].
        """
        found = Decoded(self.images, torch.zeros(len(self.images[0]), dtype=torch.int32, device="cpu"))
        if self.non_jpeg is not None:
            found.non_jpeg = int(rows[self.non_jpeg])
            found.samples[found.non_jpeg] = int(samples[self.non_jpeg])
        for part in self.status.numpy().nonzero()[0].tolist():
            row = int(rows[part])
            if found.status[row] == 0:
                found.fail(row, int(self.status[part]), self.reasons.get(part, ""))
                found.samples[row] = int(samples[part])
                found.non_jpeg = None if found.non_jpeg == row else found.non_jpeg
        return found

    def fail(self, row: int, status: int, reason: str = "") -> None:
        """Remember why a row has no image."""
        self.status[row] = status
        if reason:
            self.reasons[row] = reason


class Piece(NamedTuple):
    """The gathered tiles of the images of one size, see ``gather_tiles``.

    Args:
        begin: First byte, a multiple of 16.
        nbytes: Number of bytes.
        work: As in ``Gathered``.
        chunks: As in ``Gathered``.
    """

    begin: int
    nbytes: int
    work: int
    chunks: tuple[int, ...]


@dataclass(slots=True)
class Pieces:
    """What a worker gathered of a batch, in the memory behind its pixels.

    Args:
        begin: First byte in that memory: places are relative to it.
        end: The byte behind the last.
        places: Of the images of each size; none if nothing was gathered.
        rows: Rows that the worker decoded: their pixels are in the images.
        note: A warning about the first of these; "" if there are none.
    """

    begin: int = 0
    end: int = 0
    places: list[Piece] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    note: str = ""


@dataclass(slots=True)
class FetchResult:
    """A batch, or the error in its place, and the messages about it.

    The training process warns and raises: each worker would warn separately.

    Attributes:
        batch: The batch; None with an error.
        substituted: A message for each image that was replaced.
        non_jpeg: A message about the first image that is not a JPEG.
        error: The error in place of the batch.
        notes: Other warnings.
        request: The request for the batch, with the ``views`` that were drawn for it.
        left_out: Rows without an image, which the consumer does not get.
        nbytes: Bytes of the encoded images.
    """

    batch: AnyBatch | None = None
    substituted: list[str] = field(default_factory=list)
    non_jpeg: str | None = None
    error: Exception | None = None
    notes: Sequence[str] = ()
    request: Request | None = None
    left_out: Sequence[int] = ()
    nbytes: int = 0
    gathered: Pieces | None = None


def without_rows(
    batch: AnyBatch, request: Request, rows: Sequence[int], has_views: bool, is_flat: bool = False
) -> tuple[AnyBatch, Request]:
    """Return the batch and its request without these rows; images of several views are [views, B, ...].

    Flat images (``is_flat``) are those of the other rows already, or leave these out when they are decoded.
    """
    kept = kept_rows(len(request.ids), rows)
    changed: dict[str, Any] = {}
    for name, value in batch._asdict().items():
        if name == "image" and is_flat:
            changed[name] = value
        elif name == "image":
            changed[name] = kept_images(value, kept, has_views)
        elif isinstance(value, Tensor):
            changed[name] = value[kept]
        elif name == "targets" and has_views:
            changed[name] = [_rows(view, kept) for view in value]
        elif name == "extra":
            changed[name] = rows_of(value, kept)
        else:
            changed[name] = _rows(value, kept)
    return batch._replace(**changed), request.rows(kept)


def kept_rows(count: int, left_out: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the rows of ``count`` that are not left out."""
    return np.delete(np.arange(count), np.array(left_out, np.int64))


def kept_images(images: Images, kept: npt.NDArray[np.int64], has_views: bool) -> Images:
    """Return some rows of the images of a batch."""
    return of_sizes([part[:, kept] if has_views else part[kept] for part in by_size(images)])


def _rows(values: Any, rows: npt.NDArray[np.int64]) -> Any:
    return values[rows] if isinstance(values, Tensor) else [values[row] for row in rows]


def on_device(batch: AnyBatch, device: torch.device | str | None) -> AnyBatch:
    """Return the batch with images, labels, tokens and semantic masks on the device; other targets stay."""
    if isinstance(batch.image, dict):  # sequences of patches
        image: Any = {name: part.to(device, non_blocking=True) for name, part in batch.image.items()}
    elif isinstance(batch.image, RaggedImages):
        image = RaggedImages(*(part.to(device, non_blocking=True) for part in batch.image))
    else:  # of tensors, or GatheredImages
        image = of_sizes([part.to(device, non_blocking=True) for part in by_size(batch.image)])
    changed: dict[str, Any] = {"image": image}
    if not isinstance(batch, TARGET_BATCHES):
        changed["label"] = batch.label.to(device, non_blocking=True)
    elif isinstance(batch.targets, Tensor):
        changed["targets"] = batch.targets.to(device, non_blocking=True)
    if isinstance(batch, (ExtraBatch, MixedExtraBatch)):
        changed["extra"] = tokens_on(batch.extra, device)
    return batch._replace(**changed)


def by_size(value: Any) -> list[Any]:
    """Return a list with an item per size: the value itself for views of several sizes."""
    return value if isinstance(value, list) else [value]


def of_sizes(parts: list[Any]) -> Any:
    """Undo ``by_size``: the only item, or the list."""
    return parts[0] if len(parts) == 1 else parts


def by_view(images: Images, views: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the images of each view, ``[B, ...]``, in the order of the crops.

    Args:
        images: Images of a batch.
        views: Numbers of the views of each size, see ``Split.view_groups``.
    """
    parts = by_size(images)
    if sum(map(len, views)) == 1:
        return parts
    found: dict[int, Tensor] = {}
    for part, numbers in zip(parts, views, strict=True):
        found |= zip(numbers, part, strict=True)
    return [found[number] for number in sorted(found)]


def empty_images(shape: Sequence[int], dtype: torch.dtype, is_planar: bool = False) -> Tensor:
    """Return new memory for results: images, [..., 3, H, W], in channels_last order if not ``is_planar``."""
    if len(shape) < 4 or is_planar:
        return torch.empty(shape, dtype=dtype, device="cpu")
    *lead, channels, height, width = shape
    return torch.empty((*lead, height, width, channels), dtype=dtype, device="cpu").movedim(-1, -3)
