"""The names of the classes by label, as they are recorded beside shards.

A cache has them in its manifest, other shards that were written from a folder in ``classes.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import ShardError, warn
from ..files import read_regular, write_json
from .manifest import read_manifest

BACKGROUND = "__background__"  # the name of label 0 of data sets with objects
MASK_NUMBER = "mask_number"  # field of an object with its number in a picture of objects
_CLASSES = "classes.json"  # the numbers of the classes by name


def stored_classes(folder: Path) -> list[str] | None:
    """Return the names of the classes by label, of a cache or other shards in a folder; None if unknown.

    Raises CacheError as read_manifest(), and warns of a ``classes.json`` that has something else.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest.classes
    try:
        found = json.loads(read_regular(folder / _CLASSES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        found = None
    are_numbers = isinstance(found, dict) and all(type(label) is int for label in found.values())
    names = names_of(found) if are_numbers else None
    if names is None:
        warn(
            f"{folder / _CLASSES} is not read, so the names of the classes are unknown: it must have the "
            'label of each name, all numbers from 0 on, {"NAME": 0, "OTHER": 1}'
        )
    return names


def names_of(numbers: Mapping[str, int]) -> list[str] | None:
    """Return names by label; None if a label has no name, or two."""
    names = {number: name for name, number in numbers.items()}
    is_complete = len(names) == len(numbers) and {*names} == {*range(len(names))}
    return [names[number] for number in range(len(names))] if is_complete and names else None


def classes_beside(paths: Iterable[Path]) -> list[str] | None:
    """Return the classes of shards at these paths; None if they are unknown in one of their folders.

    Folders may have more classes than others. Raises ShardError if they have two names for a label, and
    CacheError as read_manifest().
    """
    found = {folder: stored_classes(folder) for folder in sorted({path.parent for path in paths})}
    longest = max(found, key=lambda folder: len(found[folder] or ()), default=None)
    if longest is None:
        return None
    names = found[longest] or []
    for folder, own in found.items():
        for label, (one, other) in enumerate(zip(own or (), names, strict=False)):
            if one != other:
                raise ShardError(
                    f"label {label} is {one!r} in {folder} and {other!r} in {longest}: read together, one "
                    "label would mean two classes. Pack all images from one folder with a sub-directory per "
                    'class, or read these shards alone; give targets a table, Boxes(label="category", '
                    "labels={...}), or read each as a source of a Mixture, with Masks(labels={...})."
                )
    return names or None if None not in found.values() else None


def joined_classes(
    folder: Path, others: Iterable[Path], classes: Mapping[str, int], root: str
) -> dict[str, int]:
    """Return the classes of the images of root, and further ones of other shards in the same folder.

    Raises ShardError if these have another name for a label.
    """
    names = {label: name for name, label in classes.items()}
    for other in list(others)[:1]:
        for label, name in enumerate(stored_classes(folder) or []):
            if names.setdefault(label, name) != name:
                raise ShardError(
                    f"label {label} is {name!r} in {other} and would be {names[label]!r} in shards of "
                    f"{root}. Build a cache of a folder that holds both splits (build_cache; in Python "
                    "Folder(root, split='train') and Folder(root, split='val') too), or give another out."
                )
    return {names[label]: label for label in sorted(names)}


def write_classes(folder: Path, classes: Mapping[str, int]) -> None:
    """Record the classes of the shards in a folder that is not a cache."""
    write_json(folder / _CLASSES, classes)
