"""Settings of the loaders: how batches are cut, decoded and delivered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..machine import usable_cores

if TYPE_CHECKING:
    from torch import nn

OnError = Literal["substitute", "raise"]

_MOST_WORKERS = 8
# The smallest value of each integer, or None.
_INTEGERS = {"batch_size": 1, "global_batch_size": 1, "seed": None, "workers": 0, "threads": 0}
_INTEGERS |= {"prefetch": 1, "readahead": 0, "max_pixels": 1}
_REQUIRED = ("batch_size", "seed", "prefetch")  # the others may be None


@dataclass(frozen=True)
class PixelFormat:
    """Format of delivered images: uint8, or (value / 255 - mean) / std in a floating-point ``dtype``.

    ``mean`` and ``std``: one number per channel, for values in 0..1; None with uint8. ``augment``:
    an ``Augment``, or a ``ModuleList`` of one per view, that makes images of that ``dtype`` from uint8 ones
    in the process that decodes them; ``distorts``: with random distortions of each sample.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    dtype: torch.dtype = torch.uint8
    augment: nn.Module | None = None
    distorts: bool = False


@dataclass(frozen=True)
class LoaderConfig:
    """How batches are cut and decoded; the same for all splits of a data module.

    ``batch_size`` is per rank; ``global_batch_size`` sets the sum over all ranks instead. ``workers``:
    processes that decode; if it is 0, ``threads`` of this process decode; if both are 0, the caller's thread
    does. None: see ``workers_and_threads``. ``prefetch``: batches prefetched per worker (in total, for
    threads). ``readahead``: batches, see ``loader.readahead_depth``. ``max_bad``: largest fraction of
    undecodable images per epoch; ten are allowed, unless it is 0. ``max_pixels``: images with more pixels are
    undecodable; None: 178,956,970 for JPEG and PPM, and 67,108,864 for formats that Pillow decodes whole (at
    up to 22 bytes per pixel and worker; ``PIL.Image.MAX_IMAGE_PIXELS`` bounds these, too). ``leaves_out``:
    undecodable images are left out of their batch in place of being substituted, for prediction.
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
    max_pixels: int | None = None
    leaves_out: bool = False

    def __post_init__(self) -> None:
        for name, least in _INTEGERS.items():
            value: Any = getattr(self, name)
            if value is None and name not in _REQUIRED:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise ValueError(f"{name}={value!r} must be an integer")
            if least is not None and int(value) < least:
                raise ValueError(f"{name}={value!r} must be at least {least}")
        if self.workers and self.threads:
            raise ValueError(
                f"workers={self.workers!r} and threads={self.threads!r}: each worker process decodes on one "
                "thread. Set workers=0 to use threads, or leave threads out."
            )
        if self.on_error not in ("substitute", "raise"):
            raise ValueError(f"on_error={self.on_error!r} must be 'substitute' or 'raise'")
        if not isinstance(self.max_bad, (int, float)) or not 0 <= self.max_bad <= 1:
            raise ValueError(f"max_bad={self.max_bad!r} must be a fraction of the samples, from 0 to 1")

    @cached_property
    def workers_and_threads(self) -> tuple[int, int]:
        """Numbers of worker processes and of threads, at least one of them 0.

        Default: one worker per usable core (one thread with ``workers=0``), at most 8. Cached, because
        reading the container's limits takes 0.3 ms.
        """
        if self.workers:
            return self.workers, 0
        if self.threads is not None:
            return 0, self.threads
        most = min(_MOST_WORKERS, usable_cores())
        return (most, 0) if self.workers is None else (0, most)
