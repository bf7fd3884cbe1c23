"""The classes of several splits: their names and labels, which have to be the same ones, also in a state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import ResumeError, ShardError, warn
from ..sampling.sampler import shown
from ..shards.labels import by_label, check_classes
from ..targets.annotations import table_of
from ..targets.classes import ONE_NUMBERING
from ..targets.protocols import by_name, is_flat
from .split import Split
from .state import REMEDY


class CommonClasses(NamedTuple):
    """The classes of several splits, or those in the state of a data module.

    Args:
        names: As ``names_of_all``.
        numbers: The labels of all names, which may have gaps, by kind: as ``Split.class_numbers``.
        seen: Those of masks that only their pixels show.
        is_whole: False if a split cannot be opened, or none was yet.
        renamed: Labels of masks whose table makes them of other numbers: the names may be others then, too.
    """

    names: list[str]
    numbers: dict[str, dict[str, int]]
    seen: dict[str, dict[str, int]]
    is_whole: bool
    renamed: set[int]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has of the classes, for ``stored_classes``."""
        first, *others = self.numbers.items() or [("labels", dict[str, int]())]
        state: dict[str, Any] = {"classes": self.names}
        if {*first[1]} != {*self.names}:  # those that objects show
            state["labels"] = first[1]
        if first[0] not in ("", "labels"):
            state["kind"] = first[0]
        if others:
            state["other_labels"] = dict(others)
        if self.seen:
            state["seen_labels"] = self.seen
        return state

    def check_since(self, before: CommonClasses, **words: str) -> None:
        """Compare the labels of earlier classes with these; ``words`` are of ``check_classes``."""
        now, then = self.numbers | self.seen, before.numbers | before.seen
        for given, labels in then.items():
            kind, is_stated = given, given not in before.seen
            if not kind:  # of labels, or of masks whose numbers were taken for those of objects
                kind = next(iter(now), "labels")
                is_stated = kind != "mask"
                if kind in then:
                    continue
            is_sure, renamed = is_stated and kind in self.numbers, self.renamed if kind == "mask" else ()
            check_classes(labels, now.get(kind, {}), renamed, is_sure=is_sure, **words)


def common_classes(splits: Mapping[str, Split]) -> CommonClasses:
    """Compare the classes of all splits.

    Raises:
        ShardError: If a label has two names, or a class two labels, because the shards of the splits were
            packed one by one.
    """
    numbers = dict[str, Mapping[str, Mapping[str, int]]]()
    for name, split in splits.items():
        with suppress(ShardError):  # opening it raises
            numbers[name] = split.class_numbers()
    known = {name: "labels" in each for name, each in numbers.items()}
    _warn_of_other_tables(splits, known)
    _warn_of_other_columns(splits)
    kinds = {kind for each in numbers.values() for kind in each}
    found = {kind: _common_labels(splits, numbers, kind) for kind in sorted(kinds)}
    sure, seen = (
        {kind: table for kind, (table, is_sure) in found.items() if is_sure == wanted}
        for wanted in (True, False)
    )
    names = names_of_all([splits[name] for name in numbers])
    tables = [splits[name].mask_table or {} for name in numbers]
    renamed = {label for table in tables for label in table.values() if any(k != v for k, v in table.items())}
    return CommonClasses(names, sure, seen, len(numbers) == len(splits), renamed)


def _common_labels(
    splits: Mapping[str, Split], numbers: Mapping[str, Mapping[str, Mapping[str, int]]], kind: str
) -> tuple[dict[str, int], bool]:
    """Return the labels by name of a kind of classes of all splits, and whether these are stated.

    Raises ShardError as common_classes; warns if the numbers are only seen in masks.
    """
    of_label, of_class = dict[int, tuple[str, set[str]]](), dict[str, tuple[str, int]]()
    what = "label" if kind == "labels" else "number of masks"
    is_sure = all(splits[name].is_sure_of(kind) for name in numbers)
    differences = list[str]()

    def found(text: str) -> None:
        if is_sure:
            raise ShardError(text)
        differences.append(text)

    for name, table in ((name, each[kind]) for name, each in numbers.items() if kind in each):
        for label, classes in sorted(by_label(table).items()):
            first, known = of_label.setdefault(label, (name, classes))
            merged = splits[first].merged_labels(kind) | splits[name].merged_labels(kind)
            if kind == "mask" and splits[first].mask_table != splits[name].mask_table:
                merged |= {label}  # of data sets that call a class otherwise
            if not known & classes and label not in merged:
                one, two = min(known), min(classes)
                found(
                    f"{what} {label} is {one!r} in {first} and {two!r} in {name}, which would be one class "
                    f"for the network. {_remedy(splits, kind, first, name)}"
                )
        for each, label in table.items():
            first, other = of_class.setdefault(each, (name, label))
            if other != label:
                found(
                    f"class {each!r} has the {what} {other} in {first} and {label} in {name}, which would be "
                    f"two for the network. {_remedy(splits, kind, first, name)}"
                )
    if differences:
        warn(f"if the masks show the objects, by the pixels under objects, {differences[0]}")
    return {name: label for name, (_, label) in of_class.items()}, is_sure


def names_of_all(splits: Collection[Split]) -> list[str]:
    """Return the longest list of names by label that a split has.

    Empty if another split has other names for the labels, or labels beyond them, or two numberings of masks.

    Raises ShardError as ``Split.classes``.
    """
    named = [(split.classes() or [], split.class_numbers()) for split in splits]
    names = max((names for names, _ in named), key=len, default=[])
    labels = [each for _, kinds in named for table in kinds.values() for each in by_label(table).items()]
    is_one = all(split.has_one_numbering for split in splits)
    is_one &= all(own == names[: len(own)] for own, _ in named)
    is_one &= all(label < len(names) and names[label] in known for label, known in labels)
    return names if is_one else []


def _warn_of_other_tables(splits: Mapping[str, Split], known: Mapping[str, bool]) -> None:
    """Warn of splits whose targets make other labels of the same objects, and have no names to compare."""
    seen = dict[str, tuple[str, Any, str | None]]()
    for name, split in splits.items():
        for target in by_name(split.targets).values() if split.targets is not None else ():
            objects, label = getattr(target, "objects", None), getattr(target, "label", None)
            if not (is_flat(target) and "labels" in target.fields and isinstance(objects, str)):
                continue
            labels: Any = getattr(target, "labels", None)
            first, other, field = seen.setdefault(objects, (name, labels, label))
            is_same = field == label and table_of(other) == table_of(labels)
            if not is_same and not (known.get(first) and known.get(name)):
                warn(
                    f"{first} has label={field!r} and labels={shown(other)} of {objects!r}, {name} has "
                    f"label={label!r} and labels={shown(labels)}: a label may mean two classes. Give both "
                    "the same"
                )


def _warn_of_other_columns(splits: Mapping[str, Split]) -> None:
    """Warn of splits that have the same labels in another order."""
    seen = dict[frozenset[str], tuple[str, list[str]]]()
    for name, split in splits.items():
        places = split.label_places
        first, other = seen.setdefault(frozenset(places), (name, places))
        if places != other:
            warn(
                f"{first} has target={shown(other)}, {name} has target={shown(places)}: a column of the "
                "labels of a batch may mean two things. Give both the same order"
            )


def _remedy(splits: Mapping[str, Split], kind: str, *names: str) -> str:
    """Return how these splits get one table of classes."""
    if kind == "mask":
        return ONE_NUMBERING
    if any(splits[name].labels is not None for name in names):
        return "Give the Label of all splits the same classes=[...]."
    if any(splits[name].targets is not None for name in names):
        return 'Give the targets of all one table: Boxes(label="category", labels={...}).'
    return (
        "Make the shards of all splits from one folder that holds train and val: "
        "Folder(root, split=...), FolderShards(root, out) or build_cache()."
    )


def stored_classes(state: Any) -> CommonClasses:
    """Return the classes in the state of a data module; the kind of the first is "" if it does not say.

    Raises ResumeError if they are none.
    """
    if not isinstance(state, Mapping):
        raise ResumeError(f"the state of the data module is a {type(state).__name__}, not a dict. {REMEDY}")
    names = state.get("classes") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ResumeError(
            f"classes={shown(names)} of the data module's state must be a list of names. {REMEDY}"
        )
    labels = state.get("labels") or {name: label for label, name in enumerate(names)}
    others, seen = state.get("other_labels") or {}, state.get("seen_labels") or {}
    parts = [("other_labels", each) for each in _values(others)]
    parts += [("seen_labels", each) for each in _values(seen)]
    for name, each in (("labels", labels), *parts):
        if not isinstance(each, dict) or not all(
            isinstance(key, str) and type(label) is int for key, label in each.items()
        ):
            raise ResumeError(
                f"{name}={shown(each)} of the data module's state must be integers by name. {REMEDY}"
            )
    kind = state.get("kind", "")
    if not isinstance(kind, str):
        raise ResumeError(f"kind={shown(kind)} of the data module's state must be a text. {REMEDY}")
    return CommonClasses(names, ({kind: labels} if labels else {}) | others, seen, True, set())


def _values(given: Any) -> list[Any]:
    return [*given.values()] if isinstance(given, dict) else [given]
