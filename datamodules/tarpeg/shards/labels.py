"""Labels and other members of a sample: integers, fields of JSON, and members for a function of the user."""

from __future__ import annotations

import functools
import json
import re
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ShardError, warn
from .index import Int64
from .source import Source, missing, plain, where_of

LONGEST_JSON = 1 << 20
"""Largest JSON member with labels, in bytes."""
_LIMIT = 1 << 63
# Errors of the user's function that unexpected data may cause; its other errors pass unchanged.
DATA_ERRORS = (
    *(ValueError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError, RuntimeError),
    *(OSError, EOFError, struct.error, zlib.error),
)

_RESTORE = (
    "If labels are the places of class folders in sorted order, restore these folders; of a table, give "
    "classes=[...] of that training to its Label; of targets, give the table labels= of that training; or "
    "train without the checkpoint."
)

Target = str | Sequence[str] | None
Decode = Callable[[str, dict[str, bytes]], Any]


def check_target(target: Target) -> None:
    """Raise ValueError unless each target is an extension, or a field such as "json:field.sub"."""
    is_list = isinstance(target, Sequence) and not isinstance(target, str)
    names = list(target or ()) if is_list or target is None else [target]
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[^/:]+(:[^.]+(\.[^.]+)*)?", name):
            raise ValueError(
                f"target={target!r}: {name!r} must be the extension of a member that is an integer, such as "
                '"cls", or a field of a JSON member, such as "json:object.label".'
            )
    if target is not None and not names:
        raise ValueError(f"target={target!r} must have at least one label; give None for samples without")


def check_classes(
    labels: Mapping[str, int],
    numbers: Mapping[str, int],
    merged: Collection[int] = (),
    *,
    is_sure: bool = True,
    then_is: str = "when the checkpoint was made",
    remedy: str = _RESTORE,
) -> None:
    """Compare the labels of a checkpoint, by name of the class, with those of now.

    Raises ShardError if a class has another label now, and warns if a label has a new name.

    Args:
        labels: Of the checkpoint.
        numbers: Of now.
        merged: Labels of now that may have other names.
        is_sure: Whether both are stated; numbers that were seen in masks are a warning.
        then_is: When the labels were those.
        remedy: For an error.
    """
    then, now = by_label(labels), by_label(numbers)
    both = sorted((then.keys() & now.keys()).difference(merged))
    changed = [label for label in both if not then[label] & now[label]]
    moved = [name for name, label in labels.items() if numbers.get(name, label) != label]
    if changed:
        label = changed[0]
        one, other = min(then[label]), min(now[label])
        what = "label" if is_sure else "by the pixels under objects, number of masks"
        text = f"{what} {label} was {one!r} {then_is} and is {other!r} now"
    if not is_sure and moved:
        name = moved[0]
        warn(
            f"by the pixels under objects, class {name!r} had the number of masks {labels[name]} "
            f"{then_is} and has {numbers[name]} now, which is another class for the network. Give "
            "Masks a table, labels={NUMBER: CLASS}, or masks with the same numbers"
        )
        return
    if moved and not changed:
        name = moved[0]
        raise ShardError(
            f"class {name!r} had the label {labels[name]} {then_is} and has {numbers[name]} now. {remedy}"
        )
    if moved:
        raise ShardError(
            f"{text}: {len(changed)} of {len(now)} labels mean other classes than those that the network has "
            f"learnt. {remedy}"
        )
    if changed:
        warn(
            f"{text}: right if the class was renamed, wrong if it is another one, which the network has not "
            "learnt"
        )


def by_label(numbers: Mapping[str, int]) -> dict[int, set[str]]:
    """Return the names of each label."""
    found = dict[int, set[str]]()
    for name, label in numbers.items():
        found.setdefault(label, set()).add(name)
    return found


def read_labels(source: Source, ids: Int64, target: Target) -> Tensor:
    """Read the labels of samples ids [B]: int64 [B], -1 without a target, [B, n] for a list of n targets.

    Raises ShardError, with shard, key and member, for a label that is missing or not a 64-bit integer.
    """
    if target is None:
        return torch.full((len(ids),), -1, device="cpu")
    documents = functools.cache(functools.partial(_documents, source, tuple(ids.tolist())))
    if isinstance(target, str):
        return _column(source, ids, target, documents)
    return torch.stack([_column(source, ids, name, documents) for name in target], dim=1)


def read_extra(source: Source, ids: Int64, members: tuple[str, ...], decode: Decode | None) -> list[Any]:
    """Return decode(key, {extension: bytes}) of the members of each sample; without decode, that dict.

    Members whose name ends in "?" may be missing. Raises ShardError, with shard and key, for any other
    missing member, and if decode fails on its data.
    """
    names = [name.removesuffix("?") for name in members]
    columns = [source.members(ids, plain(name)) for name in names]
    extras: list[Any] = []
    for id, key, contents in zip(ids.tolist(), source.keys(ids), zip(*columns, strict=True), strict=True):
        found = {name: content for name, content in zip(names, contents, strict=True) if content is not None}
        if lost := [name for name in names if name not in found and name in members]:
            remedy = f"Correct members=, or give {lost[0] + '?'!r} if some samples have none."
            raise missing(source, id, lost[0], remedy)
        try:
            extras.append(found if decode is None else decode(key, found))
        except DATA_ERRORS as error:
            raise ShardError(
                f"{where_of(source, id)}: decode={decode!r} failed on the members {sorted(found)}: "
                f"{type(error).__name__}: {error}"
            ) from error
    return extras


def _column(source: Source, ids: Int64, target: str, documents: Callable[[str], list[Any]]) -> Tensor:
    extension, _, field = target.partition(":")
    if not field:
        return source.labels(ids, extension)
    pairs = zip(ids.tolist(), documents(extension), strict=True)
    values = [_field(source, id, extension, document, field) for id, document in pairs]
    return torch.tensor(values, dtype=torch.int64, device="cpu")


def _documents(source: Source, ids: tuple[int, ...], extension: str) -> list[Any]:
    texts = source.members(np.array(ids, np.int64), plain(extension))
    return [
        document_of(source, id, extension, text, LONGEST_JSON, "labels")
        for id, text in zip(ids, texts, strict=True)
    ]


def document_of(source: Source, id: int, extension: str, text: bytes | None, most: int, what: str) -> Any:
    """Return the content of a JSON member of at most ``most`` bytes; ``what`` is read from it, for messages.

    Raises ShardError, with shard, key and member, if it is missing, longer or not JSON.
    """
    if text is None:
        if what == "labels":
            raise missing(source, id, extension)
        hint = f' For a field {extension!r} of KEY.json: "json:{extension}".' * (
            "json" in source.extensions(id)
        )
        raise missing(source, id, extension, f"Write its {what} there, or correct targets=.{hint}")
    reason = f"has {len(text)} bytes, and {what} are read from members of up to {most}"
    if len(text) <= most:
        try:
            return json.loads(text, object_pairs_hook=_without_duplicates)
        except RecursionError:
            reason = "is nested too deeply"
        except ValueError as error:
            reason = f"is not JSON: {error}"
    raise ShardError(f"{where_of(source, id)}: member {extension!r} {reason}")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the field {twice[:32]!r} more than once")
    return found


def field_of(source: Source, id: int, extension: str, document: Any, field: str) -> Any:
    """Return the value at a path such as "object.0.id" of a JSON member.

    Raises ShardError, with shard, key, member and field, if there is none.
    """
    value = document
    for name in field.split("."):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            found = f"fields {list(value)[:8]}" if isinstance(value, dict) else f"a {type(value).__name__}"
            raise ShardError(
                f"{where_of(source, id)}: member {extension!r} has no field {field!r}: "
                f"at {name!r} it has {found}"
            )
    return value


def _field(source: Source, id: int, extension: str, document: Any, field: str) -> int:
    value = field_of(source, id, extension, document, field)
    if not isinstance(value, int) or not -_LIMIT <= value < _LIMIT:
        found = json.dumps(value, ensure_ascii=False)
        raise ShardError(
            f"{where_of(source, id)}: field {field!r} of member {extension!r} is "
            f"{found if len(found) <= 32 else found[:32] + '...'}, not a 64-bit integer"
            + ": give target=tarpeg.Label(..., kind='number')"
            * isinstance(value, float)
        )
    return int(value)  # of true and false
