"""What passes between the rooms: samples, a request for a batch, and the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

Target = str | Sequence[str] | None
Decode = Callable[[str, dict[str, bytes]], Any]
OnError = Literal["substitute", "raise"]


class Batch(NamedTuple):
    """``image``: uint8 ``[B, 3, H, W]``, RGB, channels_last. ``label``: int64 ``[B]``.

    With ``Split(views=n)`` the image is ``[n, B, 3, H, W]``, where ``image[v]`` is an ordinary batch; with
    several targets the label is ``[B, targets]``.
    """

    image: Tensor
    label: Tensor


class KeyedBatch(NamedTuple):
    """A ``Batch`` with ``key``: the B samples' keys. In prediction, and with ``keys=True``."""

    image: Tensor
    label: Tensor
    key: list[str]


class ExtraBatch(NamedTuple):
    """A ``KeyedBatch`` with ``extra``: for each sample what the split's ``decode`` made of its members."""

    image: Tensor
    label: Tensor
    key: list[str]
    extra: list[Any]


AnyBatch = Batch | KeyedBatch | ExtraBatch


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


class Request(NamedTuple):
    """One rank's part of one batch: what the parent process hands to a worker.

    ``turns``: where samples may come more than once an epoch, which occurrence each is, from 0.
    """

    epoch: int
    ids: npt.NDArray[np.int64]
    turns: npt.NDArray[np.int64] | None = None


class Answer(NamedTuple):
    """What a worker hands back: a batch and what there is to tell about it, or the error in its place.

    The parent process tells and raises: a worker would tell things once per worker, and torch would wrap the
    error's message into a traceback. ``request``: what the batch answers, whoever stood in for whom.
    """

    batch: AnyBatch | None
    substituted: list[str]
    foreign: str | None
    error: Exception | None = None
    notes: Sequence[str] = ()
    request: Request | None = None
