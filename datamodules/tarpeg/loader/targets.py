"""Targets: what belongs to an image and moves with it, such as boxes, points or masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ..errors import ShardError
from ..sampling.geometry import View
from ..sampling.rng import Int64
from ..shards.labels import DATA_ERRORS
from ..shards.source import Source, where_of
from .marks import mark, mark_sample


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
            One value per sample, of any type that pickles. In the worker it is read after the image.
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


Targets = Target | Mapping[str, Target]


def check_targets(targets: Any) -> None:
    """Raise ValueError unless it is a target, or a dict of them by name."""
    found = targets.values() if isinstance(targets, Mapping) else [targets]
    if not found or not all(isinstance(each, Target) and not isinstance(each, type) for each in found):
        raise ValueError(
            f"targets={targets!r} must be an object with the methods of tarpeg.Target, read(source, ids) and "
            "move(value, view), or a dict of such objects by name"
        )


def read_targets(source: Source, ids: Int64, targets: Targets) -> list[Any]:
    """Return the value of each sample; a dict by name for a dict of targets.

    Raises ShardError, with shard and key, if a target fails on the data of a sample.
    """
    if not isinstance(targets, Mapping):
        return _read(source, ids, targets)
    columns = {name: _read(source, ids, target) for name, target in targets.items()}
    return [{name: values[row] for name, values in columns.items()} for row in range(len(ids))]


def move_targets(
    targets: Targets, values: Sequence[Any], view: View, source: Source, ids: Int64
) -> list[Any]:
    """Move the value of each sample by the row of a view.

    Raises ShardError, with shard and key, if a target fails.
    """
    moved = []
    for row, (value, id) in enumerate(zip(values, ids.tolist(), strict=True)):
        part = view.row(row)
        mark_sample(source, id)
        try:
            if isinstance(targets, Mapping):
                moved.append({name: target.move(value[name], part) for name, target in targets.items()})
            else:
                moved.append(targets.move(value, part))
        except DATA_ERRORS as error:
            raise _failure(where_of(source, id), targets, "move", error) from error
    mark.set()
    return moved


def _read(source: Source, ids: Int64, target: Target) -> list[Any]:
    try:
        values = target.read(source, ids)
    except ShardError:  # of the source, which has the sample in its message
        raise
    except DATA_ERRORS as error:
        raise _failure(_first_failing(source, ids, target), target, "read", error) from error
    if len(values) != len(ids):
        raise ValueError(f"{target!r}: read() returned {len(values)} values for {len(ids)} samples")
    return list(values)


def _first_failing(source: Source, ids: Int64, target: Target) -> str:
    """Return shard and key of the first sample that cannot be read alone, or of all samples."""
    for row, id in enumerate(ids.tolist()):
        try:
            target.read(source, ids[row : row + 1])
        except DATA_ERRORS:
            return where_of(source, id)
    return f"{where_of(source, int(ids[0]))} and the {len(ids) - 1} others of its batch"


def _failure(where: str, target: object, method: str, error: Exception) -> ShardError:
    return ShardError(f"{where}: targets={target!r} failed in {method}(): {type(error).__name__}: {error}")
