"""What passes between the rooms: a request for a batch, and the batch."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

OnError = Literal["substitute", "raise"]


class Batch(NamedTuple):
    """``image``: uint8 ``[B, 3, H, W]``, RGB, channels_last. ``label``: int64 ``[B]``."""

    image: Tensor
    label: Tensor


class KeyedBatch(NamedTuple):
    """A ``Batch`` with ``key``: the B samples' keys. In prediction, and with ``keys=True``."""

    image: Tensor
    label: Tensor
    key: list[str]


class Request(NamedTuple):
    """One rank's part of one batch: what the parent process hands to a worker."""

    epoch: int
    ids: npt.NDArray[np.int64]


class Answer(NamedTuple):
    """What a worker hands back: a batch and what there is to tell about it, or the error in its place.

    The parent process tells and raises: a worker would tell things once per worker, and torch would wrap the
    error's message into a traceback.
    """

    batch: Batch | KeyedBatch | None
    substituted: list[str]
    foreign: str | None
    error: Exception | None = None
