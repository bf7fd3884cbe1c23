"""What a target is: the protocols, the arrays of moved targets, and the checks of what a split is given."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..sampling.geometry import Bool, Int32, View
from ..sampling.rng import Float64, Int64
from ..shards.source import Source
from .covering import Cover

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


IMAGE_FIELDS = ("image_id", "orig_size", "size")
"""Fields that all targets of an image share."""


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
        remedy = "; give one FloatMap another name=" if "FloatMap" in type_names(targets) else ""
        if twice == "mask":
            remedy = "; the other may be a FloatMap, with name= and interpolation='nearest-exact'"
        raise ValueError(f"targets={type_names(targets)}: two of them have the field {twice!r}{remedy}")
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


def by_name(targets: Targets) -> dict[str, Target]:
    """Return targets by name: "" for a single one, numbers for those of a list."""
    if isinstance(targets, Mapping):
        return dict(targets)
    if isinstance(targets, Sequence):
        return {str(number): target for number, target in enumerate(targets)}
    return {"": targets}
