"""Reading the targets of a batch, and moving them by its views."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from ..sampling.geometry import View
from ..sampling.parts import first_parts
from ..sampling.rng import Int64
from ..shards.joined import Joined
from ..shards.labels import DATA_ERRORS
from ..shards.marks import mark, mark_sample
from ..shards.source import Source, where_of
from .covering import cover_of, cut
from .protocols import Fields, Target, Targets, by_name, is_flat, is_of_objects, type_names

_PACKAGE = __name__.partition(".")[0]


def fields_of_images(image_ids: Sequence[int], view: View) -> dict[str, npt.NDArray[Any]]:
    """Return ``image_id``, ``orig_size`` and ``size`` of the images of a view."""
    return {
        "image_id": np.array(image_ids, np.int64),
        "orig_size": view.sizes.astype(np.int64),
        "size": view.all_places[:, 2:].astype(np.int64),
    }


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
    _share_image_id(targets, parts)
    return parts, others


def _share_image_id(targets: Targets, parts: Sequence[Fields]) -> None:
    """Set the ``image_id`` of all targets, which share one dict, to that of the first with ``image_id=``."""
    flat = filter(is_flat, by_name(targets).values())
    asked = (part for target, part in zip(flat, parts, strict=True) if getattr(target, "image_id", None))
    if (first := next(asked, None)) is not None:
        numbers = first.of_images["image_id"]
        for part in parts:
            if "image_id" in part.of_images:
                part.of_images["image_id"] = numbers


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
    count = len(values) if hasattr(values, "__len__") else None
    if count != len(ids):
        found = f"a {type(values).__name__}" if count is None else f"{count} values"
        raise ValueError(
            f"{where_of(source, int(ids[0]))}: targets={type_names(target)}: read() returned {found} for the "
            f"{len(ids)} samples from this one on: return a list of one value per sample"
        )
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
