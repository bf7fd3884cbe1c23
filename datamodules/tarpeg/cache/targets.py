"""Targets of the samples of a cache, read as training reads them: which are broken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from ..shards.mapped import Shards

BROKEN_TARGET = "targets that are broken or do not fit their image, which training replaces"
_AT_ONCE = 64  # samples whose targets are read together


@dataclass(frozen=True)
class Problem:
    """A problem of a shard, or of one sample if the key is not empty."""

    shard: str
    key: str
    what: str
    is_decoding: bool = False  # an image that cannot be decoded, though it may be stored as it was

    def __str__(self) -> str:
        """Shard, key and problem."""
        return f"shard {self.shard}{f', key {self.key!r}' if self.key else ''}: {self.what}"


def broken_targets(dest: str, name: str, targets: Any) -> tuple[str, list[Problem]]:
    """Return the name of a shard, and its broken targets; runs in a worker.

    Args:
        dest: Folder of the shard.
        name: File of the shard.
        targets: One target, or a list or dict of them.
    """
    each = targets.values() if isinstance(targets, Mapping) else targets
    kinds = each if isinstance(each, Iterable) else [each]
    shards, broken = Shards([Path(dest) / name], several=True), list[Problem]()
    for begin in range(0, len(shards), _AT_ONCE):
        ids = np.arange(begin, min(begin + _AT_ONCE, len(shards)))
        for target in kinds:
            broken += _broken(name, shards, ids, target)
    return name, broken


def _broken(name: str, shards: Shards, ids: npt.NDArray[np.int64], target: Any) -> Iterator[Problem]:
    from ..ops import decode

    values, keys = target.read(shards, ids), shards.keys(ids)
    reasons = [str(value) if isinstance(value, ShardError) else "" for value in values]
    good = [row for row, reason in enumerate(reasons) if not reason]
    if hasattr(target, "misfits"):
        sizes = decode.image_sizes(shards.images(ids[good])).numpy()
        for row, reason in zip(good, target.misfits([values[row] for row in good], sizes), strict=True):
            reasons[row] = reason
    for key, reason in zip(keys, reasons, strict=True):
        if reason:
            yield Problem(name, key, _without_place(reason))


def _without_place(reason: str) -> str:
    """Return what is wrong with a member, without shard and key before it."""
    begins = [place for place in map(reason.find, ("has no member ", "member ")) if place >= 0]
    return reason[min(begins, default=0) :]
