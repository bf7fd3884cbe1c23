"""The classes of objects: names and labels, by the tables of targets and as shards have them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ShardError
from ..shards.classes import BACKGROUND
from ..shards.label import names_of
from ..shards.source import Source, where_of
from .annotations import Place, documents_of, objects_at, table_of
from .protocols import Targets, by_name, is_flat

_ONE_TABLE = 'Give the targets a table: Boxes(label="category", labels={...})'
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
        if isinstance(labels, str) or not all(isinstance(value, str) for value in labels):
            return None  # numbers or colours
        table = table_of(labels) or {}
        found.append(names_of(table if 0 in table.values() else {BACKGROUND: 0, **table}))
    return found[0] if all(names == found[0] for names in found) else None


def class_numbers(tables: Sequence[Any]) -> Mapping[str, int]:
    """Return labels by name of tables ``labels=`` that are equal; {} without names, and for others.

    Tables of colours, which masks beside boxes may have, do not count.
    """
    named = [labels for labels in tables if not any(isinstance(value, tuple) for value in labels)]
    found = [{} if isinstance(labels, str) else table_of(labels) or {} for labels in named]
    are_names = all(isinstance(name, str) for table in found for name in table)
    return found[0] if found and are_names and all(table == found[0] for table in found) else {}


def categories_of(targets: Targets, sources: Iterable[Source], count: int | None) -> dict[str, int] | None:
    """Return the labels of objects by their ``category``, as the first samples of each source have them.

    The ids of a COCO file may begin elsewhere and have gaps: then they are not the numbers of the names in
    ``classes.json``. Shards have their samples in a random order: some are read, until ``count`` names have
    come. None if all labels are 1. Raises ShardError for two labels of a name, and two names of a label.
    """
    found, of_label = dict[str, tuple[int, str]](), dict[int, tuple[set[str], str]]()
    merged = shared_labels(targets)
    for source, target in itertools.product(sources, by_name(targets).values()):
        objects, label = getattr(target, "objects", None), getattr(target, "label", None)
        if is_flat(target) and tuple(target.fields) == ("mask",):  # masks of make_shards, by the same numbers
            objects, label = "json:objects", "category_id"
        elif not is_flat(target) or "labels" not in target.fields:
            continue
        if objects is None or label is None:
            return None
        table, own = _table_of_target(target), dict[int, tuple[set[str], str]]()
        seen = _categories(source, Place.of(objects, ""), label, table, count)
        for name, (number, where) in seen.items():
            own.setdefault(number, (set(), where))[0].add(name)
            first, other = found.setdefault(name, (number, where))
            if first != number:
                raise ShardError(
                    f"class {name!r} has the label {first} ({other}) and {number} ({where}): read together, "
                    f"one class would be two. {_ONE_TABLE}"
                )
        for number, (names, where) in own.items():
            known, other = of_label.setdefault(number, (names, where))
            if not known & names and number not in merged:
                raise ShardError(
                    f"label {number} is {min(known)!r} ({other}) and {min(names)!r} ({where}): read "
                    f"together, one label would mean two classes. {_ONE_TABLE}"
                )
    return {name: number for name, (number, _) in found.items()}


def _categories(
    source: Source, place: Place, label: str, table: Mapping[Any, int] | None, count: int | None
) -> dict[str, tuple[int, str]]:
    """Return labels by name, each with a sample that has it."""
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
                if not isinstance(name, str) or name in found or type(value) not in (int, str):
                    continue
                number = value if table is None else table.get(value)
                if type(number) is int:
                    found[name] = number, where_of(source, id)
        is_without = not found and (has_objects or not any(texts))  # names
        if is_without or len(found) == count:
            break
    return found


def _table_of_target(target: Any) -> Mapping[Any, int] | None:
    labels = getattr(target, "labels", None)
    return labels if isinstance(labels, Mapping) else table_of(labels)  # those of masks may have colours


def shared_labels(targets: Targets) -> set[int]:
    """Return the labels that the tables of these targets give to several values, which are one class then."""
    tables = [_table_of_target(target) or {} for target in by_name(targets).values() if is_flat(target)]
    counts = [Counter(table.values()) for table in tables]
    return {label for each in counts for label, count in each.items() if count > 1}
