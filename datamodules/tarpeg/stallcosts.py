"""What a loader's images cost to decode, as they are and as a cache would have them: measured on a few."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from .batch import Request, Samples
from .codecs import Codec, Raw, Tiled, tile_width
from .delivery import Pixels
from .errors import DecodeError, ShardError
from .foreign import JPEG
from .reading import Reader

_MOST, _ROUNDS, _MOST_BYTES = 32, 5, 64 << 20


class Costs(NamedTuple):
    """Microseconds of one thread for an image: medians of rounds over ``images`` of them.

    tiled: the share of them that are tiled JPEGs. decode: reading, cropping and resizing them as they are.
    cached: the same of what a cache would hold, tiled where they are not, otherwise raw. growth: the bytes of
    that for each byte of theirs. augment: what the loader does to them beyond; 0 where it does nothing.
    """

    images: int
    tiled: float
    decode: float
    cached: float
    growth: float
    augment: float


def costs_of(reader: Reader, epoch: int, seconds: float) -> Costs | None:
    """Measure what ``reader`` spends on an image of that epoch, for about ``seconds``; None: it cannot."""
    if not seconds:
        return None
    started, threads = time.monotonic(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _costs(reader, epoch, started + seconds, started + 0.5 * seconds)
    except (OSError, ShardError):  # shards that went away while the run went on
        return None
    finally:
        torch.set_num_threads(threads)


def _costs(reader: Reader, epoch: int, end: float, half: float) -> Costs | None:
    count = len(reader.shards)
    among = np.arange(count) if reader.among is None else reader.among
    drawn = np.random.default_rng(0).choice(among, min(_MOST, len(among)), replace=False)
    files = {id: reader.shards.images([id])[0] for id in drawn.tolist()}
    widths = [tile_width(file.numpy().tobytes()) for file in files.values() if _is_jpeg(file)]
    tiled = sum(width is not None for width, _ in widths) / len(files)
    codec: Codec = Tiled() if tiled < 0.5 else Raw()
    cached: dict[int, Tensor] = {}
    for id, file in files.items():
        if len(cached) > 1 and (time.monotonic() > half or sum(map(len, cached.values())) > _MOST_BYTES):
            break
        cached[id] = _encoded(codec, file)
    request = Request(epoch, np.array(list(cached), np.int64))
    plain = reader if reader.pixels.augment is None else replace(reader, pixels=Pixels())
    readers = [plain, replace(plain, shards=cast(Samples, _Instead(reader.shards, cached))), reader]
    rounds: list[list[float]] = []
    while len(rounds) < 2 or (len(rounds) <= _ROUNDS and time.monotonic() < end):
        times = [_time(each, request) for each in readers[: 2 if plain is reader else 3]]
        if None in times:
            return None
        rounds.append([1e6 / len(cached) * taken for taken in times if taken is not None])
    # The first round maps the shards and allocates.
    decode, after, *full = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
    growth = sum(map(len, cached.values())) / max(1, sum(len(files[id]) for id in cached))
    return Costs(len(cached), tiled, decode, after, growth, max(0.0, full[0] - decode) if full else 0.0)


def _time(reader: Reader, request: Request) -> float | None:
    """Seconds of processor time: other threads may be busy with the next epoch."""
    started = time.thread_time()
    answer = reader.answer(request)
    return None if answer.error is not None else time.thread_time() - started


def _is_jpeg(file: Tensor) -> bool:
    return file[:3].numpy().tobytes() == JPEG


def _encoded(codec: Codec, file: Tensor) -> Tensor:
    """Rewrite an image as ``build_cache`` does; what cannot be stays as it is."""
    try:
        data = codec.encode(file.numpy().tobytes(), "jpg").data
    except DecodeError:
        return file
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class _Instead:
    """Samples some of whose images are others."""

    def __init__(self, samples: Samples, images: dict[int, Tensor]) -> None:
        self._samples, self._images = samples, images

    def __len__(self) -> int:
        return len(self._samples)

    def images(self, ids: Any) -> list[Tensor]:
        held = self._images
        return [held[id] if id in held else self._samples.images([id])[0] for id in np.asarray(ids).tolist()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._samples, name)
