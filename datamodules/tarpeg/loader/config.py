"""How batches are cut, made and handed over."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..machine import usable_cores

if TYPE_CHECKING:
    from ..augment.module import Augment

OnError = Literal["substitute", "raise"]

_NEEDED = ("batch_size", "seed", "prefetch")  # integers; others may be None


@dataclass(frozen=True)
class PixelFormat:
    """What images are delivered as: uint8, or (value / 255 - mean) / std in a floating-point ``dtype``.

    ``mean`` and ``std``: one number for each of R, G, B, for values in 0..1; None with uint8. ``augment``:
    makes the images of that ``dtype`` from uint8 ones, in the process that decoded them; where it
    ``distorts``, by the samples' numbers.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    dtype: torch.dtype = torch.uint8
    augment: Augment | None = None
    distorts: bool = False

    @property
    def decoded(self) -> torch.dtype:
        """The type that the decoder writes."""
        return self.dtype if self.augment is None else torch.uint8


@dataclass(frozen=True)
class LoaderConfig:
    """How batches are cut and made; the same for all splits of a data module.

    ``batch_size`` is per rank; ``global_batch_size`` fixes the sum over all ranks instead. ``workers``:
    processes that decode; with 0 of them, ``threads`` in this process do, and with 0 of both the caller
    itself. None: see ``workers_and_threads``. ``prefetch``: batches that each worker, or the threads together, are ahead.
    ``readahead``: batches, for shards larger than the memory: see ``readahead.depth_of``. ``max_bad``: the
    share of an epoch's samples that others may stand in for.
    """

    batch_size: int = 64
    global_batch_size: int | None = None
    seed: int = 0
    workers: int | None = None
    threads: int | None = None
    prefetch: int = 2
    readahead: int | None = None
    on_error: OnError = "substitute"
    max_bad: float = 0.01
    drop_last: bool = False
    pixels: PixelFormat = PixelFormat()

    def __post_init__(self) -> None:
        for name in (*_NEEDED, "global_batch_size", "workers", "threads", "readahead"):
            value: Any = getattr(self, name)
            if value is None and name not in _NEEDED:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise ValueError(f"{name}={value!r} must be an integer")
        for name in ("batch_size", "global_batch_size", "prefetch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value!r} must be at least 1")
        for name in ("workers", "threads", "readahead"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name}={value!r} must not be negative")
        if self.workers and self.threads:
            raise ValueError(
                f"workers={self.workers!r} and threads={self.threads!r}: each worker process decodes on one "
                "thread. Give workers=0 for threads, or leave threads out."
            )
        if self.on_error not in ("substitute", "raise"):
            raise ValueError(f"on_error={self.on_error!r} must be 'substitute' or 'raise'")
        if not isinstance(self.max_bad, (int, float)) or not 0 <= self.max_bad <= 1:
            raise ValueError(f"max_bad={self.max_bad!r} is a share of the samples, from 0 to 1")

    @cached_property
    def workers_and_threads(self) -> tuple[int, int]:
        """Numbers of worker processes and of threads, at least one of them 0, with defaults filled in.

        Cached, because a default reads the container's limits, which takes 0.3 ms.
        """
        if self.workers is not None:
            return self.workers, 0 if self.workers else _or_cores(self.threads)
        if self.threads is not None:
            return 0, self.threads
        return _cores(), 0


def _or_cores(threads: int | None) -> int:
    return _cores() if threads is None else threads


def _cores() -> int:
    """Count the cores this process may keep busy, at most 8."""
    return min(8, usable_cores())
