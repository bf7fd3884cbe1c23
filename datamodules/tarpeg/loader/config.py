"""Settings of the loaders: how batches are cut, decoded and delivered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from ..errors import check_integer, explains_arguments
from ..machine import usable_cores
from ..sampling.rng import LARGEST_SEED

OnError = Literal["substitute", "raise", "leave_out"]
DecodeOn = Literal["auto", "cpu", "device"]

_MOST_WORKERS = 8
# The smallest value of each integer.
_INTEGERS = {"batch_size": 1, "global_batch_size": 1, "seed": 0, "workers": 0, "threads": 0}
_INTEGERS |= {"prefetch": 1, "readahead": 0, "max_pixels": 1}
_REQUIRED = ("batch_size", "seed", "prefetch")  # the others may be None


@explains_arguments(
    {name: f"give it to the loader: Loader({name}=...)" for name in ("keys", "augment", "device", "training")}
)
@dataclass(frozen=True)
class LoaderConfig:
    """Settings of a ``tarpeg.Loader``; see also ``tarpeg.ShardDataModule``, whose arguments they are.

    Args:
        batch_size: Samples per rank and batch.
        global_batch_size: Samples per batch over all ranks; overrides ``batch_size``.
        seed: Seed of order, crops, flips and augmentation, 0 to 2**63 - 1.
        workers: Processes that decode. None: one per core, at most 8. 0: ``threads`` decode.
        threads: Threads of this process that decode if ``workers=0``. None: one per core, at most 8. 0: the
            thread that requests a batch decodes it.
        prefetch: Batches prefetched per worker (in total, for threads).
        readahead: Batches for which the disk is asked ahead. None: 8 if the shards take more than half of the
            memory, otherwise 0.
        on_error: ``"substitute"`` replaces an undecodable image by another sample; ``"raise"`` raises
            ``DecodeError``; ``"leave_out"``, not for training, makes a smaller batch, or an empty one.
        max_bad: Largest fraction of undecodable images per epoch and rank, 0 to 1; ten are allowed, unless
            it is 0.
        drop_last: Leave out an incomplete last batch.
        max_pixels: Images with more pixels are undecodable. None: 178,956,970 for JPEG and PPM, and
            67,108,864 for formats that Pillow decodes whole (at up to 22 bytes per pixel and worker;
            ``PIL.Image.MAX_IMAGE_PIXELS`` bounds these, too).
        decode: Where images are decoded: ``"cpu"``, in the workers; or ``"device"``, where the batch arrives,
            of the tiles that the workers gather: for shards that ``build_cache`` tiled or packed. The bytes
            are the same. On the CPU it is slow, for tests. ``"auto"`` is "cpu".
        pin: Where CUDA is in use in the main thread: register the memory of batches with its driver, so that
            ``.to("cuda", non_blocking=True)`` is fast and waits for nothing. Memory is used again when all
            has ended that the GPU was given while the batch was there. Without CUDA it has no effect.
        allow_other_data: Go on from a state of other shards, or of another order of them; otherwise this is a
            ``ResumeError``.

    Raises:
        ValueError: For values out of range, and for both ``workers`` and ``threads``.

    Example:
        >>> config = tarpeg.LoaderConfig(batch_size=8, workers=0, threads=2, on_error="raise")
        >>> len(tarpeg.Loader(tarpeg.Split(shards, tarpeg.CenterCrop(64)), config=config)) > 0
        True
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
    max_pixels: int | None = None
    decode: DecodeOn = "auto"
    pin: bool = True
    allow_other_data: bool = False

    def __post_init__(self) -> None:
        for name, least in _INTEGERS.items():
            value: Any = getattr(self, name)
            if value is not None or name in _REQUIRED:
                check_integer(name, value, least, LARGEST_SEED if name == "seed" else math.inf)
        for name in ("drop_last", "pin", "allow_other_data"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.workers and self.threads:
            raise ValueError(
                f"workers={self.workers!r} and threads={self.threads!r}: each worker process decodes on one "
                "thread. Set workers=0 to use threads, or leave threads out."
            )
        if self.on_error not in get_args(OnError):
            raise ValueError(f"on_error={self.on_error!r} must be 'substitute', 'raise' or 'leave_out'")
        if self.decode not in get_args(DecodeOn):
            hint = ". A function of members= belongs to Split(decode=...)" * callable(self.decode)
            raise ValueError(f"decode={self.decode!r} must be 'auto', 'cpu' or 'device'{hint}")
        if not isinstance(self.max_bad, (int, float)) or not 0 <= self.max_bad <= 1:
            raise ValueError(f"max_bad={self.max_bad!r} must be a fraction of the samples, from 0 to 1")

    @property
    def decodes_on_device(self) -> bool:
        """Whether batches are decoded where they arrive."""
        return self.decode == "device"

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
