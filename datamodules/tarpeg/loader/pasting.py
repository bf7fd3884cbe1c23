"""Objects of other samples that are pasted into the images of a batch: what is drawn, and their pixels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, from_numpy, where

from ..errors import ShardError
from ..sampling.geometry import Bool, View
from ..sampling.parts import first_parts
from ..sampling.paste import CopyPaste, part_around
from ..sampling.rng import Float64, Int64
from ..shards.source import Source
from ..targets.moved import unpacked
from ..targets.protocols import by_name, is_flat, is_of_objects, type_names
from ..targets.steps import per_row, read_targets


class Pastes(NamedTuple):
    """What was drawn for a batch with pasted objects.

    Attributes:
        view: A row per part: each image itself, and behind it the objects that are pasted into it.
        samples: int64 [n], which of the samples each part is of: those of the batch, then the partners.
        values: Of each row, the targets of its parts; a ShardError if one is broken.
        masks: By part, the pixels that are pasted: bool [H, W].
    """

    view: View
    samples: Int64
    values: list[Any]
    masks: dict[int, Bool]

    @property
    def behind(self) -> Int64:
        """The parts that are not the first of their row."""
        return np.setdiff1d(np.arange(len(self.view)), first_parts(self.view))


def check_pasted(crop: Any, targets: Any) -> None:
    """Raise ValueError for targets that a crop cannot paste."""
    found: list[Any] = [] if targets is None else list(by_name(targets).values())
    masks: list[Any] = [each for each in found if is_of_objects(each) and "masks" in each.fields]
    if not masks:
        raise ValueError(
            f"crop={crop!r} pastes objects by their masks, and targets={type_names(targets)} has none: give "
            'targets=[tarpeg.Boxes("json:objects"), tarpeg.InstanceMasks("json:objects")]'
        )
    for each in found:
        is_other = is_of_objects(each) and each.objects != masks[0].objects
        if is_other or not is_flat(each):
            what = f"of other objects, {each.objects!r}" if is_other else "a target of your own"
            raise ValueError(
                f"crop={crop!r} pastes the objects of {type_names(masks[0])}({masks[0].objects!r}), and "
                f"{type_names(each)} is {what}, which cannot be pasted with them: leave it out"
            )


def drawn_pastes(
    crop: CopyPaste,
    view: View,
    partners: View,
    rows: Int64,
    ids: Int64,
    targets: Any,
    source: Source,
    draws: Float64,
    keys: Callable[[int, int], Float64],
    threads: int,
) -> Pastes:
    """Draw which objects are pasted, and read the targets of all parts.

    Args:
        crop: Of the batch.
        view: Of the images themselves, [B].
        partners: Of the other samples, [D], each as large as a result.
        rows: int64 [D], the row of the batch into which their objects are pasted.
        ids: int64 [B + D], the samples.
        targets: Of the split.
        source: The samples.
        draws: Uniform numbers of the rows, [B, draws].
        keys: Returns uniform numbers [N] for N objects that may be pasted into a row.
        threads: Number of threads.
    """
    count, named = len(view), by_name(targets)
    objects: dict[str, Any] = {name: each for name, each in named.items() if is_of_objects(each)}
    parts = _stacked(view, partners)
    values = read_targets(source, ids, [parts], objects, whole=True)
    is_known, chosen = parts.is_known, []
    is_there = np.ones(len(parts), np.bool_)
    for part in range(count, len(parts)):
        value = values[part]
        if isinstance(value, ShardError) or not is_known[part]:
            continue  # breaks its row
        bounds = _bounds(objects, value)
        box, place = parts.boxes[part], None
        numbers = np.flatnonzero(_is_under(bounds, box))
        if len(numbers):
            row = int(rows[part - count])
            numbers = numbers[crop.chosen(len(numbers), draws[row], keys(row, len(numbers)))]
            low, high = bounds[numbers, :2].min(axis=0), bounds[numbers, 2:].max(axis=0)
            place = part_around(parts, part, np.concatenate([low, high]))
        is_there[part] = place is not None
        if place is not None:
            parts.boxes[part], parts.all_places[part] = place
            values[part] = _chosen(objects, value, numbers)
            chosen.append(part)
    masks = _masks_of(objects, values, parts, np.array(chosen, np.int64))
    is_there[[part for part in chosen if part not in masks]] = False
    batch_rows = np.concatenate([np.arange(count), rows])
    order = np.flatnonzero(is_there)
    order = order[np.argsort(batch_rows[order], kind="stable")]
    drawn = replace(parts.rows(order), batch_rows=batch_rows[order], samples=ids[order], is_pasted=True)
    found = [values[part] for part in order.tolist()]
    others: dict[str, Any] = {name: each for name, each in named.items() if name not in objects}
    if others:
        more = read_targets(source, ids[order], [drawn.parts()], others, threads)
        found = [_merged(*each) for each in zip(found, more, strict=True)]
    placed = {place: masks[part] for place, part in enumerate(order.tolist()) if part in masks}
    return Pastes(drawn, order, per_row(found, drawn), placed)


def paste(images: Tensor, others: Tensor, pastes: Pastes) -> None:
    """Copy the pixels of pasted objects.

    Args:
        images: Of the batch, [B, C, H, W].
        others: Of the parts behind the first of each row, in their order: [n, C, H, W].
        pastes: What was drawn.
    """
    batch_rows, places = pastes.view.batch_rows, pastes.view.all_places
    assert batch_rows is not None
    for other, part in zip(others, pastes.behind.tolist(), strict=True):
        if part not in pastes.masks:  # a broken one
            continue
        top, left, height, width = places[part].tolist()
        rows, columns = slice(top, top + height), slice(left, left + width)
        # Channels and columns as one axis: loops over three channels alone would be slow.
        mask = np.repeat(pastes.masks[part][rows, columns], images.shape[1], axis=1)
        image, pasted = (
            each[:, rows, columns].movedim(0, -1).view(height, -1)
            for each in (images[int(batch_rows[part])], other)
        )
        image.copy_(where(from_numpy(mask), pasted, image))


def _stacked(view: View, other: View) -> View:
    """Return the rows of two views, with places of their own."""
    return View(
        sizes=np.concatenate([view.sizes, other.sizes]),
        boxes=np.concatenate([view.boxes, other.boxes]),
        flips=np.concatenate([view.flips, other.flips]),
        size=view.size,
        places=np.concatenate([view.all_places, other.all_places]),
    )


def _bounds(objects: Mapping[str, Any], value: Mapping[str, Any]) -> Float64:
    """Return what each object of a sample takes of its image, of all targets: see ``ObjectTarget``."""
    found = np.stack([target.bounds(value[name]) for name, target in objects.items()])
    return np.concatenate([found[..., :2].min(axis=0), found[..., 2:].max(axis=0)], axis=1)


def _is_under(bounds: Float64, box: Sequence[int]) -> Bool:
    top, left, height, width = box
    inside = (bounds[:, 0] < left + width) & (bounds[:, 2] > left)
    return np.asarray(inside & (bounds[:, 1] < top + height) & (bounds[:, 3] > top))  # False for NaN


def _chosen(objects: Mapping[str, Any], value: Mapping[str, Any], numbers: Int64) -> dict[str, Any]:
    return {name: target.chosen(value[name], numbers) for name, target in objects.items()}


def _masks_of(objects: Mapping[str, Any], values: list[Any], parts: View, chosen: Int64) -> dict[int, Bool]:
    """Return the pixels of the chosen objects of each part, without parts that have none.

    Objects that a target drops are taken from ``values``, too.
    """
    if not len(chosen):
        return {}
    view = parts.rows(chosen)
    fields = [
        target.move_all([values[part][name] for part in chosen], view) for name, target in objects.items()
    ]
    kept = np.logical_and.reduce([each.kept for each in fields])
    masks = next(each for each in fields if "masks" in each.bits)
    ends, found = np.concatenate([[0], np.cumsum(masks.counts)]), {}
    for number, part in enumerate(chosen.tolist()):
        objects_of_part = slice(ends[number], ends[number + 1])
        bits = masks.bits["masks"][objects_of_part]
        is_kept = kept[objects_of_part] & bits.any(axis=1)
        if is_kept.any():
            values[part] = _chosen(objects, values[part], np.flatnonzero(is_kept))
            pasted = np.bitwise_or.reduce(bits[is_kept], axis=0)
            found[part] = unpacked(pasted[None], view.size)[0].view(np.bool_)
    return found


def _merged(value: Any, other: Any) -> Any:
    for each in (value, other):
        if isinstance(each, ShardError):
            return each
    return {**value, **other}
