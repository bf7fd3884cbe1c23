"""Targets: what belongs to an image and moves with it, such as boxes, points or masks."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from ..errors import ShardError
from ..sampling.geometry import Bool, Int32, View
from ..sampling.parts import first_parts
from ..sampling.rng import Float64, Int64
from ..shards.joined import Joined
from ..shards.labels import DATA_ERRORS
from ..shards.marks import mark, mark_sample
from ..shards.source import Source, where_of
from .covering import Cover, cover_of, cut
from .lazy import LazyList

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@runtime_checkable
class Target(Protocol):
    """A target of the samples, for ``Split(targets=...)``: read from a sample, moved as its image is.

    Worker processes get a copy of it, and several threads may use it at the same time. It may not change
    what it was given: with several views a value is moved by each of them. A value is moved once per view:
    the view has the crop, the resize, the flip and what ``Augment`` does, also where that runs on a GPU.

    Example:
        >>> import json
        >>> class Points(tarpeg.Target):
        ...     def read(self, source, ids):
        ...         return [json.loads(text)["points"] for text in source.members(ids, "json")]
        ...     def move(self, value, view):
        ...         return view.points(value)
        >>> split = tarpeg.Split(shards, tarpeg.RandomResizedCrop(224), flip=0.5, targets=Points())
        >>> split.targets.move([[300, 200]], tarpeg.View.whole((400, 600), (200, 300))).tolist()
        [[150.0, 100.0]]
    """

    def read(self, source: Source, ids: Int64) -> list[Any]:
        """Read the values of some samples.

        Args:
            source: The samples; ``source.members(ids, "json")`` are the bytes of their members.
            ids: int64 [B].

        Returns:
            One value per sample, of any type that pickles; a ``tarpeg.ShardError`` in place of the value of a
            sample whose target is broken, which is then treated as a broken image (``on_error``). An error
            that is raised ends the epoch. In the worker the value is read after the image.
        """
        ...

    def move(self, value: Any, view: View) -> Any:
        """Return the value as it is in the result.

        Args:
            value: Of one sample.
            view: Of one row. ``view.points`` moves points (x, y). ``view.boxes[0]`` is the crop's box (top,
                left, height, width), ``view.flips[0]`` whether the crop is mirrored, and ``view.size`` the
                (height, width) of the result.
        """
        ...


PICTURE_ALIGN = 64
"""Bytes by which pictures are aligned in the memory of a batch."""
_PACKAGE = __name__.partition(".")[0]
Targets = Target | Mapping[str, Target] | Sequence[Target]


@dataclass
class Fields:
    """Moved targets of the rows of a batch, as flat arrays.

    Args:
        objects: What the objects are, such as the place where they were read: targets of the same objects
            drop the same ones.
        counts: int64 [B], objects of each row.
        kept: bool [N], which of all objects are kept.
        of_objects: By name, arrays [N, ...].
        of_images: By name, arrays [B, ...].
        canvas: (height, width) of the results.
        pictures: By name, uint8 or float32 [B, H, W]; a ``Stored`` once they are in the memory of the batch.
        dtype: Type of the pictures for the consumer.
        fill: Value of the pixels of pictures that are outside of their image.
        bits: By name, masks of objects, uint8 [N, bytes], a bit per pixel; stored as pictures are.
        visible: float64 [N], share of each box that is visible; of boxes.
    """

    objects: Hashable
    counts: Int64
    kept: Bool
    of_objects: dict[str, npt.NDArray[Any]]
    of_images: dict[str, npt.NDArray[Any]]
    canvas: tuple[int, int]
    pictures: dict[str, Any] = field(default_factory=dict)
    dtype: str = "uint8"
    fill: float = 0
    bits: dict[str, Any] = field(default_factory=dict)
    visible: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Stored:
    """Place of pictures in the memory of a batch.

    Args:
        begin: First byte.
        shape: [B, H, bytes], uint8.
    """

    begin: int
    shape: tuple[int, ...]


class FlatTarget(Protocol):
    """A target that is moved for all rows of a batch at once; the classes of tarpeg.

    It may have ``read_views(source, ids, views, threads)`` in place of ``read``, which reads only what the
    views need: what was drawn for the samples, one View of B rows each, without an affine.

    Attributes:
        fields: Names of what it adds to the dict of an image.
    """

    fields: Sequence[str]

    def read(self, source: Source, ids: Int64) -> list[Any]:
        """See ``Target``."""
        ...

    def misfits(self, values: Sequence[Any], sizes: Int32) -> list[str]:
        """Return for each value why it does not fit its image; "" if it does.

        Args:
            values: Of some samples.
            sizes: int32 [B, 2], (height, width) of their images; (0, 0) if it is not known.
        """
        ...

    def move_all(self, values: Sequence[Any], view: View) -> Fields:
        """Move the values of all rows of a view."""
        ...


def is_flat(target: object) -> TypeIs[FlatTarget]:
    """Whether a target is moved for all rows at once."""
    return callable(getattr(target, "move_all", None))


class ObjectTarget(Protocol):
    """A target of objects, some of which may be pasted into another image.

    A target whose fields have "masks" is where their pixels are.

    Attributes:
        objects: Where the objects are: targets of equal ones have the same.
        fields: Names of what it adds to the dict of an image.
    """

    objects: str
    fields: Sequence[str]

    def chosen(self, value: Any, numbers: Int64) -> Any:
        """Return the value of a sample with some of its objects alone."""
        ...

    def bounds(self, value: Any) -> Float64:
        """Return what an object takes of its image.

        float64 [N, 4], (x1, y1, x2, y2) in pixels of the source; NaN for one that may not be pasted, and
        (inf, inf, -inf, -inf) for one that takes nothing.
        """
        ...

    def covered(self, part: Fields, cover: Cover) -> Fields:
        """Return what is left of the objects of all parts."""
        ...


def is_of_objects(target: object) -> TypeIs[ObjectTarget]:
    """Whether its objects can be pasted."""
    return callable(getattr(target, "covered", None))


@dataclass
class Moved:
    """Moved targets of one view of a batch, in the form in which they go from a worker to the consumer.

    Pickling the tensors of 64 images with 8 boxes each takes 80 ms, these arrays 0.03 ms.

    Args:
        rows: Rows of the batch that have targets.
        count: Rows of the batch.
        is_single: Whether the split has one target, neither in a dict nor in a list.
        fields: Of the targets of tarpeg.
        others: By name, a list of what ``move`` of other targets returned; "" for a single target.
    """

    rows: list[int]
    count: int
    is_single: bool
    fields: list[Fields]
    others: dict[str, list[Any]]

    def lists(self) -> Any:
        """Return the targets as the consumer gets them: one per row, None for a row without.

        A tensor [B, H, W] for ``Masks`` alone, of zeros for a row without. Dicts are made when the list is
        first used.
        """
        if self.is_single and self.fields and self.fields[0].pictures:
            (pictures,) = _pictures(self.fields[0]).values()
            if len(self.rows) == self.count:
                return pictures
            whole = pictures.new_zeros((self.count, *pictures.shape[1:]))
            whole[self.rows] = pictures
            return whole
        # The values of a user's own targets are there, and may be tensors for torch.stack: torch reads lists
        # of any class without their methods.
        return LazyList.of(self._list, self.count) if self.fields else self._list()

    def _list(self) -> list[Any]:
        if "" in self.others:
            moved = self.others[""]
        else:
            moved = dicts_of(self.fields, len(self.rows))
            for name, values in self.others.items():
                for each, value in zip(moved, values, strict=True):
                    each[name] = value
        if len(self.rows) == self.count:
            return moved
        found: list[Any] = [None] * self.count
        for row, value in zip(self.rows, moved, strict=True):
            found[row] = value
        return found


def joined(parts: Sequence[Moved]) -> Moved:
    """Return the targets of a batch whose rows are those of several parts, one after another.

    The parts have targets of one structure, see ``structure_of``.
    """
    rows: list[int] = []
    count = 0
    for part in parts:
        rows += [count + row for row in part.rows]
        count += part.count
    filled = [part for part in parts if part.rows] or parts[:1]
    return Moved(
        rows=rows,
        count=count,
        is_single=parts[0].is_single,
        fields=[_joined_fields(each) for each in zip(*(part.fields for part in filled), strict=True)],
        others={name: [value for part in filled for value in part.others[name]] for name in filled[0].others},
    )


def _joined_fields(parts: Sequence[Fields]) -> Fields:
    """Return the fields of one target of several parts of a batch."""

    def merged(name: str) -> dict[str, Any]:
        arrays: list[dict[str, Any]] = [getattr(part, name) for part in parts]
        return {key: np.concatenate([each[key] for each in arrays]) for key in arrays[0]}

    return replace(
        parts[0],
        counts=np.concatenate([part.counts for part in parts]),
        kept=np.concatenate([part.kept for part in parts]),
        of_objects=merged("of_objects"),
        of_images=merged("of_images"),
        pictures=merged("pictures"),
        bits=merged("bits"),
    )


def structure_of(targets: Targets | None) -> Hashable:
    """Return what has to be equal for the targets of two splits to be in one batch."""
    if targets is None:
        return None
    kind = "single"
    if isinstance(targets, (Mapping, Sequence)):
        kind = "dict" if isinstance(targets, Mapping) else "list"
    parts = []
    for name, target in by_name(targets).items():
        fields = tuple(target.fields) if is_flat(target) else ()
        settings = [repr(getattr(target, setting, None)) for setting in ("fill", "dtype", "count")]
        parts.append((name, type(target).__name__, fields, *settings))
    return kind, tuple(parts)


def dicts_of(fields: Sequence[Fields], count: int) -> list[dict[str, Any]]:
    """Return a dict per image of torchvision's convention: tensors, ``boxes`` as ``tv_tensors``."""
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    for part in fields:
        counts = part.counts.tolist()
        for name, array in part.of_objects.items():
            pieces: Iterable[Any] = torch.from_numpy(array).split_with_sizes(counts)
            if name == "boxes":
                pieces = _as_boxes([*pieces], part.canvas)
            for each, piece in zip(found, pieces, strict=True):
                each[name] = piece
        for name, bits in part.bits.items():
            masks = _unpacked(bits, part.canvas).split_with_sizes(counts)
            for each, piece in zip(found, _as_masks(masks), strict=True):
                each[name] = piece
        for name, array in part.of_images.items():
            values = array.tolist() if array.ndim == 1 else torch.from_numpy(array).unbind(0)
            for each, value in zip(found, values, strict=True):
                each[name] = value
        for name, pictures in _pictures(part).items():
            masks = pictures.unbind(0)
            for each, picture in zip(
                found, masks if part.dtype in ("bool", "float32") else _as_masks(masks), strict=True
            ):
                each[name] = picture
    return found


def _as_boxes(pieces: Sequence[torch.Tensor], canvas: tuple[int, int]) -> Sequence[torch.Tensor]:
    """Return the boxes of each image, (x1, y1, x2, y2), as torchvision's."""
    boxes = _tv("BoundingBoxes")
    if boxes is None or not pieces:
        return pieces
    first = boxes(pieces[0], format="XYXY", canvas_size=canvas)
    found = [first]
    for piece in pieces[1:]:  # the constructor takes five times as long
        other = piece.as_subclass(boxes)
        other.__dict__.update(first.__dict__)
        found.append(other)
    return found


def _as_masks(pieces: Sequence[torch.Tensor]) -> Iterable[torch.Tensor]:
    mask = _tv("Mask")
    return pieces if mask is None else [piece.as_subclass(mask) for piece in pieces]


def unpacked(bits: npt.NDArray[np.uint8], canvas: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return masks of objects, uint8 [N, H, W], from their bits [N, bytes]."""
    return _unpacked(bits, canvas).numpy()


def _unpacked(bits: Any, canvas: tuple[int, int]) -> torch.Tensor:
    """Return masks of objects, uint8 [N, H, W], from their bits [N, bytes]."""
    from ..ops.masks import unpack_masks  # here, because it loads the operators

    return unpack_masks(torch.as_tensor(bits), canvas)


def _pictures(part: Fields) -> dict[str, torch.Tensor]:
    dtype, found = getattr(torch, part.dtype), {}
    for name, each in part.pictures.items():
        pictures = torch.as_tensor(each)
        if dtype.is_floating_point and pictures.dtype == torch.uint8:  # from the memory of the batch
            pictures = pictures.view(dtype)
        found[name] = pictures.to(dtype)
    return found


IMAGE_FIELDS = ("image_id", "orig_size", "size")
"""Fields that all targets of an image share."""


def fields_of_images(image_ids: Sequence[int], view: View) -> dict[str, npt.NDArray[Any]]:
    """Return ``image_id``, ``orig_size`` and ``size`` of the images of a view."""
    return {
        "image_id": np.array(image_ids, np.int64),
        "orig_size": view.sizes.astype(np.int64),
        "size": view.all_places[:, 2:].astype(np.int64),
    }


@functools.cache
def _tv(name: str) -> Any:
    """Return a class of ``torchvision.tv_tensors``; None if torchvision is not installed."""
    try:
        from torchvision import tv_tensors
    except ImportError:
        return None
    return getattr(tv_tensors, name)


def dropped(parts: Sequence[Fields]) -> list[Fields]:
    """Drop the objects that are not kept, also from other targets of the same objects."""
    kept: dict[Hashable, Any] = {}
    for part in parts:
        kept[part.objects] = part.kept & kept.get(part.objects, True)
    found = []
    for part in parts:
        mask = kept[part.objects]
        if not mask.all():
            rows = np.repeat(np.arange(len(part.counts)), part.counts)[mask]
            counts = np.bincount(rows, minlength=len(part.counts))
            of_objects = {name: array[mask] for name, array in part.of_objects.items()}
            bits = {name: array[mask] for name, array in part.bits.items()}
            part = replace(part, counts=counts, kept=mask[mask], of_objects=of_objects, bits=bits)
        part.visible = None  # of all objects, and of no use from here on
        found.append(part)
    return found


def check_targets(targets: Any) -> None:
    """Raise ValueError unless it is a target, a dict of them by name, or a list of those of tarpeg."""
    is_list = isinstance(targets, Sequence) and not isinstance(targets, str)
    found = [targets]
    if isinstance(targets, Mapping):
        found = list(targets.values())
    elif is_list:
        found = list(targets)
    if not found or not all(isinstance(each, Target) and not isinstance(each, type) for each in found):
        raise ValueError(
            f"targets={type_names(targets)} must be an object with the methods of tarpeg.Target, "
            "read(source, ids) and move(value, view), or a dict of such objects by name"
        )
    if is_list and not all(map(is_flat, found)):
        raise ValueError(
            f"targets={type_names(targets)}: only tarpeg.Boxes and such, whose fields have names, come in a "
            "list. Give a dict of targets by name"
        )
    flat = [each for each in found if is_flat(each)]
    names = [name for each in flat for name in each.fields if name not in IMAGE_FIELDS]
    if flat and isinstance(targets, Mapping):
        names += [str(name) for name, each in targets.items() if not is_flat(each)]
        names += IMAGE_FIELDS
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"targets={type_names(targets)}: two of them have the field {twice!r}")
    for each in found:
        for method in ("read", "move"):  # a subclass of the protocol has its methods, which do nothing
            if getattr(type(each), method, None) is getattr(Target, method):
                raise ValueError(
                    f"targets={type_names(targets)}: {type_names(each)} must have a method {method}() of "
                    "its own"
                )


def has_flat(targets: Targets) -> bool:
    """Whether any of them is a target of tarpeg."""
    return any(map(is_flat, by_name(targets).values()))


def type_names(targets: Any) -> str:
    """Return the type of a target, or of each target of a dict or list, for messages."""
    if isinstance(targets, Mapping):
        return f"{{{', '.join(f'{name!r}: {type_names(each)}' for name, each in targets.items())}}}"
    if isinstance(targets, (list, tuple)):
        return f"[{', '.join(map(type_names, targets))}]"
    return targets.__name__ if isinstance(targets, type) else type(targets).__name__


def read_targets(
    source: Source,
    ids: Int64,
    views: Sequence[View],
    targets: Targets,
    threads: int = 1,
    *,
    whole: bool = False,
) -> list[Any]:
    """Return the value of each sample; a dict by name for a dict or list of targets.

    A ShardError, with shard and key, is in place of a value that is broken or does not fit its image. Raises
    ShardError if a target fails. With views that have several parts per row, each value is the list of those
    of the parts.

    Args:
        source: The samples.
        ids: Their numbers, int64 [B].
        views: What was drawn for them.
        targets: What is read.
        threads: Number of threads.
        whole: Read all of each, not only what the views need.
    """
    if views[0].samples is not None:
        parts = [view.parts() for view in views]
        found = read_targets(source, views[0].samples, parts, targets, threads, whole=whole)
        return per_row(found, views[0])
    columns: dict[str, list[Any]] = {}
    sizes = views[0].sizes
    for name, target in by_name(targets).items():
        values = _read(source, ids, target, () if whole else views, threads)
        if is_flat(target):
            good = [row for row, value in enumerate(values) if not isinstance(value, ShardError)]
            reasons = target.misfits([values[row] for row in good], sizes[good])
            for row, reason in zip(good, reasons, strict=True):
                if reason:
                    values[row] = ShardError(f"{where_of(source, int(ids[row]))}: {reason}")
        columns[name] = values
    found = [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]
    for values in reversed(columns.values()):  # of several errors, that of the first target
        for row, value in enumerate(values):
            if isinstance(value, ShardError):
                found[row] = value
    return found


def have_rectangles(targets: Any) -> bool:
    """Whether one of the targets has boxes, which a crop may ask for."""
    return targets is not None and any(hasattr(each, "rectangles") for each in by_name(targets).values())


def least_boxes(targets: Any) -> tuple[float, float] | None:
    """Return side and area of the smallest boxes that all targets with boxes keep; None without any."""
    if not have_rectangles(targets):
        return None
    found = [each for each in by_name(targets).values() if hasattr(each, "rectangles")]
    side, area = (min(getattr(each, name, 0) for each in found) for name in ("min_size", "min_area"))
    return side, area


def read_rectangles(source: Source, ids: Int64, targets: Targets) -> list[npt.NDArray[np.float64]]:
    """Read the boxes of each sample, float64 [N, 4]; none of a broken target, which is replaced later."""
    found: list[list[npt.NDArray[np.float64]]] = [[np.zeros((0, 4))] for _ in ids]
    for target in by_name(targets).values():
        rectangles = getattr(target, "rectangles", None)
        for row, value in enumerate(_read(source, ids, target) if rectangles else ()):
            if rectangles and not isinstance(value, ShardError):
                found[row].append(rectangles(value))
    return [np.concatenate(each) for each in found]


def move_targets(
    targets: Targets, values: Sequence[Any], view: View, source: Source, ids: Int64
) -> tuple[list[Fields], dict[str, list[Any]]]:
    """Move the values of samples by the rows of a view: fields of the targets of tarpeg, others by name.

    Raises ShardError, with shard and key, if a target fails.
    """
    if view.samples is not None:
        each = [part for value in values for part in value]
        parts, others = _moved(targets, each, view.parts(), source, view.samples)
        if view.is_pasted:
            parts = _covered(targets, parts, view)
        return _joined(dropped(parts), others, view)
    parts, others = _moved(targets, values, view, source, ids)
    return dropped(parts), others


def _moved(
    targets: Targets, values: Sequence[Any], view: View, source: Source, ids: Int64
) -> tuple[list[Fields], dict[str, list[Any]]]:
    parts: list[Fields] = []
    others: dict[str, list[Any]] = {}
    for name, target in by_name(targets).items():
        column = [value[name] for value in values]
        if is_flat(target):
            try:
                parts.append(target.move_all(column, view))
            except DATA_ERRORS:
                _move(target, column, view, source, ids)  # fails at the row that is the cause
                raise
        else:
            others[name] = _move(target, column, view, source, ids)
    return parts, others


def picture_bytes(targets: Targets | None, sizes: Sequence[tuple[int, int]], count: int) -> int:
    """Return the memory that the pictures of a batch take at most, with views of these sizes."""
    kinds = [] if targets is None else [each for each in by_name(targets).values() if is_flat(each)]
    found = [getattr(each, "picture_bytes", None) for each in kinds]
    return sum(count * bytes_of(size) + PICTURE_ALIGN for bytes_of in found if bytes_of for size in sizes)


class _Room(threading.local):
    """Memory of the batch that a thread fetches, behind its images: pictures made there are not moved."""

    memory: npt.NDArray[np.uint8] | None = None
    begin = 0


_room = _Room()


def lend_room(memory: npt.NDArray[np.uint8] | None, begin: int = 0) -> None:
    """Let ``room_for`` return memory of this batch, from ``begin`` on; None: none."""
    _room.memory, _room.begin = memory, begin


def room_for(shape: tuple[int, ...]) -> npt.NDArray[np.uint8] | None:
    """Return memory of the batch for pictures; None if there is not enough, or no batch."""
    memory, begin = _room.memory, -(-_room.begin // PICTURE_ALIGN) * PICTURE_ALIGN
    end = begin + math.prod(shape)
    if memory is None or end > len(memory):
        return None
    _room.begin = end
    return memory[begin:end].reshape(shape)


def store_pictures(moved: Sequence[Moved], memory: npt.NDArray[np.uint8], begin: int) -> None:
    """Move the pictures of all views to the memory of the batch, from ``begin`` on, as far as they fit.

    And the bits of masks of objects: other fields of objects are small, and would keep the memory in use.
    Those that were made there (``room_for``) stay where they are.
    """
    for fields in _pictured(moved):
        for name, pictures in fields.items():
            place = _place_in(memory, pictures)
            if place is not None:
                fields[name] = Stored(place, pictures.shape)
                begin = max(begin, place + pictures.nbytes)
    for fields in _pictured(moved):
        for name, pictures in fields.items():
            if isinstance(pictures, Stored):
                continue
            begin = -(-begin // PICTURE_ALIGN) * PICTURE_ALIGN
            if begin + pictures.nbytes <= len(memory):
                memory[begin : begin + pictures.nbytes] = pictures.reshape(-1).view(np.uint8)
                *shape, width = pictures.shape
                fields[name] = Stored(begin, (*shape, width * pictures.itemsize))
                begin += pictures.nbytes


def _place_in(memory: npt.NDArray[np.uint8], pictures: npt.NDArray[Any]) -> int | None:
    """Return the first byte of pictures that lie in the memory of the batch; None of others."""
    if pictures.dtype != np.uint8 or not pictures.flags.c_contiguous:
        return None
    place: int = pictures.ctypes.data - memory.ctypes.data
    return place if 0 <= place <= len(memory) - pictures.nbytes else None


def stored_pictures(moved: Sequence[Moved]) -> list[Stored]:
    """Return the places of the pictures of all views."""
    found = [each for fields in _pictured(moved) for each in fields.values()]
    return [each for each in found if isinstance(each, Stored)]


def with_pictures(moved: Sequence[Moved], tensors: Sequence[torch.Tensor]) -> None:
    """Replace the places of ``stored_pictures`` by these tensors."""
    rest = iter(tensors)
    for fields in _pictured(moved):
        for name, pictures in fields.items():
            if isinstance(pictures, Stored):
                fields[name] = next(rest)


def _pictured(moved: Sequence[Moved]) -> Iterator[dict[str, Any]]:
    """Yield dicts of what is stored in the memory of the batch."""
    for part in (part for each in moved for part in each.fields):
        yield part.pictures
        yield part.bits


def by_name(targets: Targets) -> dict[str, Target]:
    """Return targets by name: "" for a single one, numbers for those of a list."""
    if isinstance(targets, Mapping):
        return dict(targets)
    if isinstance(targets, Sequence):
        return {str(number): target for number, target in enumerate(targets)}
    return {"": targets}


def _move(target: Target, values: Sequence[Any], view: View, source: Source, ids: Int64) -> list[Any]:
    moved = []
    for row, (value, id) in enumerate(zip(values, ids.tolist(), strict=True)):
        mark_sample(source, id)
        try:
            moved.append(target.move(value, view.row(row)))
        except DATA_ERRORS as error:
            raise _failure(where_of(source, id), target, "move", error) from error
    mark.set()
    return moved


def _read(
    source: Source, ids: Int64, target: Target, views: Sequence[View] = (), threads: int = 1
) -> list[Any]:
    if isinstance(source, Joined) and type(target).__module__.partition(".")[0] != _PACKAGE:
        return _read_by_source(source, ids, target, views, threads)
    read_views = getattr(target, "read_views", None) if views and is_flat(target) else None
    try:
        values = target.read(source, ids) if read_views is None else read_views(source, ids, views, threads)
    except ShardError:  # of the source, which has the sample in its message
        raise
    except DATA_ERRORS as error:
        raise _failure(_first_failing(source, ids, target), target, "read", error) from error
    if len(values) != len(ids):
        raise ValueError(f"{type_names(target)}: read() returned {len(values)} values for {len(ids)} samples")
    return list(values)


def _read_by_source(
    source: Joined, ids: Int64, target: Target, views: Sequence[View], threads: int
) -> list[Any]:
    """Read a target of the user's own, which knows its source and the numbers there."""
    values, begin = [], 0
    for part, own in source.runs(ids):
        rows = np.arange(begin, begin + len(own))
        drawn = [view.rows(rows) for view in views]
        values += _read(source.parts[part], own, target, drawn, threads)
        begin += len(own)
    return values


def _first_failing(source: Source, ids: Int64, target: Target) -> str:
    """Return shard and key of the first sample that cannot be read alone, or of all samples."""
    for row, id in enumerate(ids.tolist()):
        try:
            target.read(source, ids[row : row + 1])
        except DATA_ERRORS:
            return where_of(source, id)
    return f"{where_of(source, int(ids[0]))} and the {len(ids) - 1} others of its batch"


def _failure(where: str, target: object, method: str, error: Exception) -> ShardError:
    return ShardError(
        f"{where}: targets={type_names(target)} failed in {method}(): {type(error).__name__}: {error}"
    )


def per_row(values: Sequence[Any], view: View) -> list[Any]:
    """Return the list of the values of each row's parts; a ShardError if one of them is."""
    assert view.batch_rows is not None
    found: list[list[Any]] = [[] for _ in first_parts(view)]
    for row, value in zip(view.batch_rows.tolist(), values, strict=True):
        found[row].append(value)
    return [next((each for each in row if isinstance(each, ShardError)), row) for row in found]


def _covered(targets: Targets, parts: Sequence[Fields], view: View) -> list[Fields]:
    """Return the fields of parts, in which pasted objects cover what is behind them; changes them."""
    assert view.batch_rows is not None
    masks = next(part for part in parts if "masks" in part.bits)
    cover = cover_of(masks.bits["masks"], masks.counts, view.batch_rows, view.size)
    found = []
    for target, part in zip(filter(is_flat, by_name(targets).values()), parts, strict=True):
        if is_of_objects(target):
            part = target.covered(part, cover)
        pictures = {
            name: cut(each, part.fill, cover, view.batch_rows) for name, each in part.pictures.items()
        }
        found.append(replace(part, pictures=pictures))
    return found


def _joined(
    fields: Sequence[Fields], others: dict[str, list[Any]], view: View
) -> tuple[list[Fields], dict[str, list[Any]]]:
    """Return moved targets of parts as those of their rows.

    Objects of a row follow each other in the order of its parts, and its pictures are put together.
    ``image_id`` and ``orig_size`` are those of the first part, ``size`` that of the result, and with pasted
    objects that of the first part too. What targets of a user's own returned becomes a list per row.
    """
    return [_merged(part, view) for part in fields], {
        name: per_row(each, view) for name, each in others.items()
    }


def _merged(part: Fields, view: View) -> Fields:
    first = first_parts(view)
    of_images = {name: array[first] for name, array in part.of_images.items()}
    if "size" in of_images and not view.is_pasted:
        of_images["size"] = np.tile(np.array(view.size, np.int64), (len(first), 1))
    pictures = {name: _composed(each, part.fill, view) for name, each in part.pictures.items()}
    counts = np.add.reduceat(part.counts, first) if len(first) else part.counts
    return replace(part, counts=counts, of_images=of_images, pictures=pictures)


def _composed(pictures: npt.NDArray[Any], fill: float, view: View) -> npt.NDArray[Any]:
    """Put the pictures of parts together, which do not overlap: elsewhere they have the value ``fill``."""
    assert view.batch_rows is not None
    whole = np.full((len(first_parts(view)), *view.size), fill, pictures.dtype)
    for row, picture in zip(view.batch_rows.tolist(), pictures, strict=True):
        np.copyto(whole[row], picture, where=picture != fill)
    return whole
