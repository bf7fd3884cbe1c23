"""Labels and other members of a sample: integers, fields of JSON, and members for a function of the user."""

from __future__ import annotations

import functools
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ShardError, warn
from .index import Int64

LONGEST = 64
"""Largest size of a label, in bytes."""
_LONGEST_JSON = 1 << 20
_INTEGER = re.compile(rb"\s*[+-]?[0-9]+\s*")
_LIMIT = 1 << 63
# Errors of the user's function that unexpected data may cause; its other errors pass unchanged.
_BROKEN = (
    *(ValueError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError, RuntimeError),
    *(OSError, EOFError, struct.error, zlib.error),
)

Target = str | Sequence[str] | None
Decode = Callable[[str, dict[str, bytes]], Any]


class Samples(Protocol):
    """Samples numbered 0..len-1, as in ``Shards`` and ``UnlabelledImages``."""

    def __len__(self) -> int: ...

    def images(self, ids: npt.ArrayLike) -> list[Tensor]:
        """Return the encoded images of samples ids: uint8 ``[n]`` each."""

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> Tensor:
        """Read the integers in the samples' members of that extension: int64 ``[B]``."""

    def member(self, id: int, extension: str) -> bytes | None:
        """Read the sample's member of that extension; None if it has none."""

    def extensions(self, id: int) -> list[str]:
        """Extensions of the sample's members."""

    def key(self, id: int) -> str:
        """Key of the sample."""

    def shard(self, id: int) -> Path | str:
        """Path or URL of the shard with the sample."""


def where_of(samples: Samples, id: int) -> str:
    """Format shard and key of a sample, for messages."""
    return f"shard {samples.shard(id)}, key {samples.key(id)!r}"


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


def check_classes(then: Sequence[str], now: Sequence[str]) -> None:
    """Compare the classes of a checkpoint, by label, with those of now.

    Raises ShardError if a class has another label now, and warns if a label has a new name.
    """
    changed = [label for label, (old, new) in enumerate(zip(then, now, strict=False)) if old != new]
    if not changed:
        return
    label = changed[0]
    text = f"label {label} was {then[label]!r} when the checkpoint was made and is {now[label]!r} now"
    if {*then} & {now[label] for label in changed}:
        raise ShardError(
            f"{text}: {len(changed)} of {len(now)} labels mean other classes than those that the network has "
            "learnt. Labels are the places of the class folders in sorted order: restore these folders, or "
            "train without the checkpoint."
        )
    warn(
        f"{text}: right if the class was renamed, wrong if it is another one, which the network has not "
        "learnt"
    )


def read_labels(samples: Samples, ids: Int64, target: Target) -> Tensor:
    """Read the labels of samples ids [B]: int64 [B], -1 without a target, [B, n] for a list of n targets.

    Raises ShardError, with shard, key and member, for a label that is missing or not a 64-bit integer.
    """
    if target is None:
        return torch.full((len(ids),), -1, device="cpu")
    document = functools.cache(functools.partial(_document, samples))
    if isinstance(target, str):
        return _column(samples, ids, target, document)
    return torch.stack([_column(samples, ids, name, document) for name in target], dim=1)


def integers(samples: Samples, ids: Iterable[int], extension: str, texts: Iterable[bytes | None]) -> Tensor:
    """Parse the texts of samples' members of that extension, None for a missing one: int64 [B].

    Raises ShardError, with shard and key, for a member that is missing or not a 64-bit integer.
    """
    labels = []
    for id, text in zip(ids, texts, strict=True):
        if text is None:
            raise missing(samples, id, extension)
        if not is_label(text):
            raise ShardError(
                f"{where_of(samples, id)}: member {plain(extension)!r} is {shown(text)}, not a 64-bit "
                "integer. A label is an integer in ASCII digits, such as 7."
            )
        labels.append(int(text))
    return torch.tensor(labels, dtype=torch.int64, device="cpu")


def is_label(text: bytes) -> bool:
    """Check that a label is a 64-bit integer in ASCII digits."""
    # Nearly all labels pass the first test, in a third of the time.
    return (len(text) < 19 and text.isdigit()) or (
        len(text) <= LONGEST and _INTEGER.fullmatch(text) is not None and -_LIMIT <= int(text) < _LIMIT
    )


def shown(text: bytes) -> str:
    """Format the content of a label, for messages."""
    return repr(text[:32].decode("utf-8", "replace") + ("..." if len(text) > 32 else ""))


_LABEL = (
    "Write its label as KEY.cls; or give Split(target=...) the extension of the member with the label, or "
    "None if there are no labels."
)


def missing(samples: Samples, id: int, extension: str, remedy: str = _LABEL) -> ShardError:
    """Return the error for a sample without that member."""
    name, found = plain(extension), samples.extensions(id)
    return ShardError(f"{where_of(samples, id)} has no member {name!r}, only {found}. {remedy}")


def plain(extension: str) -> str:
    """Normalise an extension: lowercase, without the dot."""
    return extension.removeprefix(".").lower()


def read_extra(samples: Samples, ids: Int64, members: tuple[str, ...], decode: Decode | None) -> list[Any]:
    """Return decode(key, {extension: bytes}) of the members of each sample; without decode, that dict.

    Members whose name ends in "?" may be missing. Raises ShardError, with shard and key, for any other
    missing member, and if decode fails on its data.
    """
    names = [name.removesuffix("?") for name in members]
    extras: list[Any] = []
    for id in ids.tolist():
        contents = ((name, samples.member(id, name)) for name in names)
        found = {name: content for name, content in contents if content is not None}
        if lost := [name for name in names if name not in found and name in members]:
            remedy = f"Correct members=, or give {lost[0] + '?'!r} if some samples have none."
            raise missing(samples, id, lost[0], remedy)
        try:
            extras.append(found if decode is None else decode(samples.key(id), found))
        except _BROKEN as error:
            raise ShardError(
                f"{where_of(samples, id)}: decode={decode!r} failed on the members {sorted(found)}: "
                f"{type(error).__name__}: {error}"
            ) from error
    return extras


def _column(samples: Samples, ids: Int64, target: str, document: Callable[[int, str], Any]) -> Tensor:
    extension, _, field = target.partition(":")
    if not field:
        return samples.labels(ids, extension)
    values = [_field(samples, id, extension, document(id, extension), field) for id in ids.tolist()]
    return torch.tensor(values, dtype=torch.int64, device="cpu")


def _document(samples: Samples, id: int, extension: str) -> Any:
    text = samples.member(id, extension)
    if text is None:
        raise missing(samples, id, extension)
    where = f"{where_of(samples, id)}: member {extension!r}"
    if len(text) > _LONGEST_JSON:
        raise ShardError(
            f"{where} has {len(text)} bytes, and labels are read from members of up to {_LONGEST_JSON}"
        )
    try:
        return json.loads(text)
    except RecursionError:
        raise ShardError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise ShardError(f"{where} is not JSON: {error}") from error


def _field(samples: Samples, id: int, extension: str, document: Any, field: str) -> int:
    value = document
    for name in field.split("."):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            found = f"fields {list(value)[:8]}" if isinstance(value, dict) else f"a {type(value).__name__}"
            raise ShardError(
                f"{where_of(samples, id)}: member {extension!r} has no field {field!r}: "
                f"at {name!r} it has {found}"
            )
    if not isinstance(value, int) or isinstance(value, bool) or not -_LIMIT <= value < _LIMIT:
        found = json.dumps(value, ensure_ascii=False)
        raise ShardError(
            f"{where_of(samples, id)}: field {field!r} of member {extension!r} is "
            f"{found if len(found) <= 32 else found[:32] + '...'}, not a 64-bit integer"
        )
    return value
