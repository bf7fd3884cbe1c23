"""The classes of objects: names and labels, by the tables of targets and as shards have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ShardError, warn
from ..shards.classes import BACKGROUND, names_of
from ..shards.labels import by_label
from ..shards.source import Source, plain, where_of
from .annotations import Place, documents_of, objects_at, table_of
from .mask_classes import numbers_in_masks
from .protocols import Targets, by_name, is_flat

_ONE_TABLE = 'Give the targets a table: Boxes(label="category", labels={...})'
ONE_NUMBERING = (
    "Masks have the numbers of their files: pack all with the same classes, or give the Masks of each split "
    "or source a table, labels={NUMBER: CLASS}"
)
_MOST_CHECKED, _CHECKED_AT_ONCE = 1024, 64  # samples


def class_tables(targets: Targets) -> list[Any] | None:
    """Return the tables ``labels=`` of the targets with classes; None if no target has classes.

    An empty list if all of them are as in the files, as are those of a target of the user's own.
    """
    each = by_name(targets).values()
    own = [getattr(one, "labels", None) for one in each if is_flat(one) and hasattr(one, "labels")]
    found = own + [None] * sum(not is_flat(one) for one in each)
    return [table for table in found if table is not None] if found else None


def class_names(tables: Sequence[Any]) -> list[str] | None:
    """Return names by label of tables ``labels=`` that agree, with the background; None if some have none."""
    found = []
    for labels in tables:
        if (table := _named_table(labels)) is None:
            return None  # numbers or colours
        found.append(names_of(table))
    return found[0] if all(names == found[0] for names in found) else None


class Classes(NamedTuple):
    """What is known of the classes of a target.

    Args:
        names: By label; None if a label has no name, or two.
        numbers: Labels by name, as far as objects show them: a class without any may have another number in
            other shards of the same classes.
        seen: Labels by name as the first objects have them; {} for a table of names.
        merged: Labels that the table gives to several values, which are one class then.
        is_sure: Whether the numbers are stated, not those of pixels under objects.
        table: Of masks: their labels by the number in the file; None if they are as in the files.
        is_one: False if the masks of several sources show other labels of a class.
    """

    names: list[str] | None
    numbers: Mapping[str, int]
    seen: Mapping[str, int]
    merged: set[int]
    is_sure: bool = True
    table: Mapping[Any, int] | None = None
    is_one: bool = True

    @property
    def are_others(self) -> bool:
        """Whether masks show other things than the objects."""
        return not self.is_sure and not self.numbers


class _Pixels(NamedTuple):
    """What the pixels of the masks of several sources show.

    Args:
        classes: Labels by the names of the objects over them; {} if too few objects show them, None if the
            masks have others than the objects.
        few: Those that few objects show.
        numbers: All that are in the files.
        is_one: Whether all sources have the same labels.
    """

    classes: dict[str, int] | None
    few: dict[str, int]
    numbers: set[int]
    is_one: bool = True


class _OtherFieldError(Exception):
    """A field of objects that is not the number of their class, such as a colour."""


def classes_by_kind(
    targets: Targets, stored: Callable[[], list[str] | None], sources: Callable[[], Sequence[Source]] | None
) -> dict[str, Classes]:
    """Return what is known of the classes of the targets of tarpeg, by what they make.

    That is "labels" of objects, and a "mask". Labels come first. Raises ShardError as ``_seen_of``.

    Args:
        targets: Of a split.
        stored: Returns the names beside the shards by label; None if there are none, [] if two folders have
            others.
        sources: Returns some shards of each group that was packed at once; None: they cannot be read.
    """
    kinds = {_kind_of(target): target for target in by_name(targets).values()}
    return {kind: _classes(kinds[kind], kind, stored, sources) for kind in sorted(filter(None, kinds))}


def _classes(
    target: Any,
    kind: str,
    stored: Callable[[], list[str] | None],
    sources: Callable[[], Sequence[Source]] | None,
) -> Classes:
    merged, has_table = _merged_labels(target), getattr(target, "labels", None) is not None
    if table := _named_table(getattr(target, "labels", None)):
        return Classes(names_of(table), table, {}, merged)
    listed = stored()
    names = None if has_table else listed or None
    if sources is None:
        return Classes(names, numbered(names), {}, merged)
    if kind == "mask":
        pixels = _by_pixels(target, sources(), merged)
        if names and not (pixels.is_one and pixels.numbers <= {*range(len(names)), 255}):
            names = None  # other numbers are no objects
        if pixels.classes != {}:
            found = pixels.classes or {}
            names = names if names and found and agree(names, found) else None
            is_sure, table = names is not None, _table(target)
            return Classes(names, found, found, merged, is_sure, table, pixels.is_one)
        if names is None or not agree(names, pixels.few):
            return Classes(None, {}, pixels.few, merged)
    try:
        seen = _seen_of(target, kind, sources(), len(listed) - 1 if listed else None)
    except _OtherFieldError as error:
        if kind == "labels" and target.label == "category_id":
            warn(
                f"{error}: if these files number their classes otherwise, one class is two for the network. "
                f"{_ONE_TABLE}"
            )
        return Classes(None, {}, {}, merged)
    if names and not (len(names) <= 2 if seen is None else agree(names, seen)):
        names = None
    if kind == "mask":
        return Classes(names, numbered(names), seen or {}, merged)
    first = {BACKGROUND: 0} if names and names[0] == BACKGROUND else {}
    return Classes(names, {**first, **seen} if seen else numbered(names), seen or {}, merged)


def _by_pixels(target: Any, sources: Sequence[Source], merged: set[int]) -> _Pixels:
    """Look at the masks of some sources; warn if a number has two meanings."""
    table, tables = _table(target), list[Mapping[str, tuple[int, str]]]()
    few, numbers = dict[str, int](), set[int]()
    extension: str | None = getattr(target, "extension", None)  # a target of the user's own may have none
    if extension is None:
        return _Pixels({}, {}, set())
    for source in sources:
        seen, shown = numbers_in_masks(source, plain(extension))
        numbers |= shown
        if seen is None:
            return _Pixels(None, {}, numbers)
        clear = dict[str, tuple[int, str]]()
        for name, each in seen.items():
            if (number := _through(table, each.number)) is None:
                continue
            if each.is_clear:
                clear[name] = number, each.where
            else:
                few[name] = number
        tables.append(clear)

    differences = list[str]()
    classes = _joined(tables, "number of masks", merged, lambda text, _: differences.append(text))
    if differences:
        warn(
            f"in the masks, by the pixels under objects, {differences[0]}: a number may mean two classes. "
            f"{ONE_NUMBERING}"
        )
    return _Pixels(classes, few, numbers, not differences)


def _through(table: Mapping[Any, int] | None, value: Any) -> int | None:
    """Return the label that a table gives to a value; None if it has none, or the value is no integer."""
    number = value if table is None else table.get(value)
    return number if type(number) is int else None


def _joined(
    tables: Iterable[Mapping[str, tuple[int, str]]],
    what: str,
    merged: set[int],
    report: Callable[[str, str], None],
) -> dict[str, int]:
    """Return the labels by name of several groups of shards, and report names and labels with two meanings.

    Args:
        tables: Of each group, the label of each name, with a sample that has it.
        what: "label" or "number of masks".
        merged: Labels that several names may have.
        report: Takes a text about two labels of a name, or two names of a label, and what that does.
    """
    found, of_label = dict[str, tuple[int, str]](), dict[int, tuple[set[str], str]]()
    for table in tables:
        for name, (number, where) in table.items():
            first, other = found.setdefault(name, (number, where))
            if first != number:
                text = f"class {name!r} has the {what} {first} ({other}) and {number} ({where})"
                report(text, "one class would be two")
        for number, names in by_label({name: number for name, (number, _) in table.items()}).items():
            where = table[min(names)][1]
            known, other = of_label.setdefault(number, (names, where))
            if not known & names and number not in merged:
                text = f"{what} {number} is {min(known)!r} ({other}) and {min(names)!r} ({where})"
                report(text, "one label would mean two classes")
    return {name: number for name, (number, _) in found.items()}


def numbered(names: Sequence[str] | None) -> dict[str, int]:
    """Return the label of each name of a list; {} without one."""
    return {name: label for label, name in enumerate(names or ())}


def _kind_of(target: Any) -> str | None:
    if not is_flat(target):
        return None
    return "labels" if "labels" in target.fields else "mask" if tuple(target.fields) == ("mask",) else None


def _named_table(labels: Any) -> Mapping[str, int] | None:
    """Return the labels by name of ``labels=`` of a target, with the background; None without names."""
    if labels is None or isinstance(labels, str) or not all(isinstance(name, str) for name in labels):
        return None
    table = table_of(labels) or {}
    whole = table if 0 in table.values() else {BACKGROUND: 0, **table}
    return whole if names_of(whole) else table


def _seen_of(target: Any, kind: str, sources: Sequence[Source], count: int | None) -> dict[str, int] | None:
    """Return the labels of objects by their ``category``, as the first samples of each source have them.

    The ids of a COCO file may begin elsewhere and have gaps: then they are not the numbers of the names in
    ``classes.json``. Shards have their samples in a random order: some are read, until ``count`` names have
    come. None if all labels are 1. Masks that show no classes may have the numbers of the objects.
    Raises ShardError for two labels of a name, and two names of a label.
    """
    is_mask = kind == "mask"
    objects, label = getattr(target, "objects", None), getattr(target, "label", None)
    if is_mask:
        objects, label = "json:objects", "category_id"
    if objects is None or label is None:
        return None
    table, merged = _table(target), _merged_labels(target)
    what, remedy = ("number of masks", ONE_NUMBERING) if is_mask else ("label", _ONE_TABLE)

    def report(text: str, effect: str) -> None:
        raise ShardError(f"{text}: read together, {effect}. {remedy}")

    place = Place.of(objects, "")
    return _joined((_categories(each, place, label, table, count) for each in sources), what, merged, report)


def _categories(
    source: Source, place: Place, label: str, table: Mapping[Any, int] | None, count: int | None
) -> dict[str, tuple[int, str]]:
    """Return labels by name, each with a sample that has it; raises _OtherFieldError if one has several."""
    found: dict[str, tuple[int, str]] = {}
    for begin in range(0, min(len(source), _MOST_CHECKED), _CHECKED_AT_ONCE):
        ids = list(range(begin, min(begin + _CHECKED_AT_ONCE, len(source))))
        texts = source.members(np.array(ids), place.extension)
        documents = documents_of(source, ids, place.extension, texts)
        has_objects = False
        for id, document in zip(ids, documents, strict=True):
            objects = objects_at(source, id, place, document)
            for each in () if isinstance(objects, ShardError) else objects:
                has_objects = True
                name, value = each.get("category"), each.get(label)
                if not isinstance(name, str) or type(value) not in (int, str):
                    continue
                number = _through(table, value)
                if number is None:
                    continue
                if name not in found:
                    found[name] = number, where_of(source, id)
                elif found[name][0] != number:
                    (first, one), two = found[name], where_of(source, id)
                    raise _OtherFieldError(
                        f"class {name!r} has the label {first} ({one}) and {number} ({two})"
                    )
        is_without = not found and (has_objects or not any(texts))  # names
        if is_without or len(found) == count:
            break
    return found


def _table(target: Any) -> Mapping[Any, int] | None:
    labels = getattr(target, "labels", None)
    return labels if isinstance(labels, Mapping) else table_of(labels)  # those of masks may have colours


def _merged_labels(target: Any) -> set[int]:
    """Return the labels that the table of a target gives to several values, which are one class then."""
    counts = Counter((_table(target) or {}).values())
    return {label for label, count in counts.items() if count > 1}


def agree(names: Sequence[str], numbers: Mapping[str, int]) -> bool:
    """Whether classes have the labels that are their places in a list of names."""
    return all(0 <= label < len(names) and names[label] == name for name, label in numbers.items())
