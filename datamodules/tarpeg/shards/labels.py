"""What goes with an image: integers, fields of JSON members, and members for a function of the user's."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ShardError

Int64 = npt.NDArray[np.int64]

_INTEGER = re.compile(rb"\s*[+-]?[0-9]+\s*")
LONGEST = 64
"""Bytes of a label, at most."""
_LONGEST_JSON = 1 << 20
_LIMIT = 1 << 63
# What a function of the user's raises over data that it did not expect; its other errors are its own.
_BROKEN = (
    *(ValueError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError, RuntimeError),
    *(OSError, EOFError, struct.error, zlib.error),
)


Target = str | Sequence[str] | None
Decode = Callable[[str, dict[str, bytes]], Any]


def where_of(samples: Samples, id: int) -> str:
    """Name a sample, for messages."""
    return f"shard {samples.shard(id)}, key {samples.key(id)!r}"


class Samples(Protocol):
    """What samples are read from, numbered 0..len-1: see ``Shards`` and ``Pictures``."""

    def __len__(self) -> int: ...

    def images(self, ids: npt.ArrayLike) -> list[Tensor]:
        """Take the images' bytes: uint8 ``[n]`` each."""

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> Tensor:
        """Read the integers in the members of that extension: int64 ``[B]``."""

    def member(self, id: int, extension: str) -> bytes | None:
        """Read a member; None where the sample has none of that extension."""

    def extensions(self, id: int) -> list[str]:
        """List the extensions of the sample's members."""

    def key(self, id: int) -> str:
        """Name the sample."""

    def shard(self, id: int) -> Path | str:
        """Name what holds the sample."""


def check_target(target: Target) -> None:
    """Raise ValueError for what names no label: an extension, or a field as in "json:field.sub"."""
    names = [target] if isinstance(target, str) else [] if target is None else list(target)
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[^/:]+(:[^.]+(\.[^.]+)*)?", name):
            raise ValueError(
                f"target={target!r}: {name!r} names no label. Give the extension of a member that holds an "
                'integer, such as "cls", or a field of a JSON member, such as "json:object.label".'
            )
    if target is not None and not names:
        raise ValueError(f"target={target!r} names no label; None is for samples without")


def read_labels(samples: Samples, ids: Int64, target: Target) -> Tensor:
    """Read the labels of samples ids [B]: int64 [B], -1 without a target, [B, n] for a list of n targets.

    Raises ShardError, with shard, key and member, for whatever is missing or no 64-bit integer.
    """
    if target is None:
        return torch.full((len(ids),), -1)
    documents: dict[tuple[int, str], Any] = {}
    if isinstance(target, str):
        return _column(samples, ids, target, documents)
    return torch.stack([_column(samples, ids, name, documents) for name in target], dim=1)


def integer(text: bytes) -> int | None:
    """Read a 64-bit integer in ASCII digits; None for what is none."""
    if len(text) < 19 and text.isdigit():  # as nearly all are, and a third of the time
        return int(text)
    if len(text) > LONGEST or not _INTEGER.fullmatch(text) or not -_LIMIT <= int(text) < _LIMIT:
        return None
    return int(text)


def no_integer(samples: Samples, id: int, extension: str, text: bytes) -> ShardError:
    """Make the error for a member that holds something else."""
    shown = text[:32].decode("utf-8", "replace") + ("..." if len(text) > 32 else "")
    return ShardError(
        f"{where_of(samples, id)}: member {extension!r} is {shown!r}, not a 64-bit "
        "integer. A label is an integer in ASCII digits, such as 7."
    )


def missing(samples: Samples, id: int, extension: str) -> ShardError:
    """Make the error for a sample without that member."""
    return ShardError(
        f"{where_of(samples, id)} has no member {extension!r}, only {samples.extensions(id)}. "
        "Write its label as KEY.cls, or name the extension that holds it."
    )


def read_extra(samples: Samples, ids: Int64, members: tuple[str, ...], decode: Decode | None) -> list[Any]:
    """Hand the members of each sample to decode(key, {extension: bytes}); without decode, give the members.

    Members that a sample lacks are left out. Raises ShardError, with shard and key, where decode raises over
    its data.
    """
    extras: list[Any] = []
    for id in ids.tolist():
        found = ((name, samples.member(id, name)) for name in members)
        held = {name: content for name, content in found if content is not None}
        try:
            extras.append(held if decode is None else decode(samples.key(id), held))
        except _BROKEN as error:
            raise ShardError(
                f"{where_of(samples, id)}: decode={decode!r} failed on the members {sorted(held)}: "
                f"{type(error).__name__}: {error}"
            ) from error
    return extras


def _column(samples: Samples, ids: Int64, target: str, documents: dict[tuple[int, str], Any]) -> Tensor:
    extension, _, field = target.partition(":")
    if not field:
        return samples.labels(ids, extension)
    values = []
    for id in ids.tolist():
        if (id, extension) not in documents:
            documents[id, extension] = _document(samples, id, extension)
        values.append(_field(samples, id, extension, documents[id, extension], field))
    return torch.tensor(values, dtype=torch.int64)


def _document(samples: Samples, id: int, extension: str) -> Any:
    text = samples.member(id, extension)
    if text is None:
        raise missing(samples, id, extension)
    where = f"{where_of(samples, id)}: member {extension!r}"
    if len(text) > _LONGEST_JSON:
        raise ShardError(
            f"{where} has {len(text)} bytes, more than the {_LONGEST_JSON} that are read for labels"
        )
    try:
        return json.loads(text)
    except RecursionError:
        raise ShardError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise ShardError(f"{where} is no JSON: {error}") from error


def _field(samples: Samples, id: int, extension: str, document: Any, field: str) -> int:
    value = document
    for name in field.split("."):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            has = f"fields {list(value)[:8]}" if isinstance(value, dict) else f"a {type(value).__name__}"
            raise ShardError(
                f"{where_of(samples, id)}: member {extension!r} has no field {field!r}: "
                f"at {name!r} it holds {has}"
            )
    if not isinstance(value, int) or isinstance(value, bool) or not -_LIMIT <= value < _LIMIT:
        shown = json.dumps(value)
        raise ShardError(
            f"{where_of(samples, id)}: field {field!r} of member {extension!r} is "
            f"{shown if len(shown) <= 32 else shown[:32] + '...'}, not a 64-bit integer"
        )
    return value
