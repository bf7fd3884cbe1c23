"""What a loader's images cost to decode, as they are and as a cache would have them: measured on a few."""
# MERGED: From what was measured of a training run to one verdict and one piece of advice: text and arithmetic.

from __future__ import annotations

import math
import os
import re
import shlex
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..cache.codecs import Codec, Raw, Tiled, tile_width
from ..errors import DecodeError, ShardError
from ..loader.config import PixelFormat
from ..loader.fetch import Fetcher
from ..sampling.sampler import Request
from ..shards.labels import Samples
from ..shards.pillow import JPEG

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


def costs_of(fetcher: Fetcher, epoch: int, seconds: float) -> Costs | None:
    """Measure what ``fetcher`` spends on an image of that epoch, for about ``seconds``; None: it cannot."""
    if not seconds:
        return None
    started, threads = time.monotonic(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _costs(fetcher, epoch, started + seconds, started + 0.5 * seconds)
    except (OSError, ShardError):  # shards that went away while the run went on
        return None
    finally:
        torch.set_num_threads(threads)


def _costs(fetcher: Fetcher, epoch: int, end: float, half: float) -> Costs | None:
    count = len(fetcher.shards)
    candidates = np.arange(count) if fetcher.candidates is None else fetcher.candidates
    drawn = np.random.default_rng(0).choice(candidates, min(_MOST, len(candidates)), replace=False)
    files = {id: fetcher.shards.images([id])[0] for id in drawn.tolist()}
    widths = [tile_width(file.numpy().tobytes()) for file in files.values() if _is_jpeg(file)]
    tiled = sum(width is not None for width, _ in widths) / len(files)
    codec: Codec = Tiled() if tiled < 0.5 else Raw()
    cached: dict[int, Tensor] = {}
    for id, file in files.items():
        if len(cached) > 1 and (time.monotonic() > half or sum(map(len, cached.values())) > _MOST_BYTES):
            break
        cached[id] = _encoded(codec, file)
    request = Request(epoch, np.array(list(cached), np.int64))
    plain = fetcher if fetcher.pixels.augment is None else replace(fetcher, pixels=PixelFormat())
    readers = [plain, replace(plain, shards=cast(Samples, _Instead(fetcher.shards, cached))), fetcher]
    rounds: list[list[float]] = []
    while len(rounds) < 2 or (len(rounds) <= _ROUNDS and time.monotonic() < end):
        times = [_time(each, request) for each in readers[: 2 if plain is fetcher else 3]]
        if None in times:
            return None
        rounds.append([1e6 / len(cached) * taken for taken in times if taken is not None])
    # The first round maps the shards and allocates.
    decode, after, *full = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
    growth = sum(map(len, cached.values())) / max(1, sum(len(files[id]) for id in cached))
    return Costs(len(cached), tiled, decode, after, growth, max(0.0, full[0] - decode) if full else 0.0)


def _time(fetcher: Fetcher, request: Request) -> float | None:
    """Seconds of processor time: other threads may be busy with the next epoch."""
    started = time.thread_time()
    answer = fetcher.fetch(request)
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


# Fewer steps say more about the start than about the run.
_ENOUGH_STEPS = 10
# Below this share nothing is worth doing, and below this gain no setting is worth changing.
_WORTH, _GAIN = 0.09, 1.1
_BUILD = "python tools/build_cache.py"


class Feed(NamedTuple):
    """What feeds a run, as far as it is known; all that has a default is of a tarpeg loader.

    device: where the network is. cores: of this machine, for each of its ranks. compute_threads: that torch
    computes with. source: the train split's shards. workers, threads: see LoaderConfig.engine; None of another
    loader. augment: the class that augments; is_random: whether it distorts; has_operators: for the device.
    is_profiled: by another profiler. other_workers: of another loader, None where it has no such setting.
    """

    device: str
    cores: int
    compute_threads: int
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None
    is_streaming: bool = False
    workers: int | None = None
    threads: int = 0
    augment: str | None = None
    is_random: bool = False
    has_operators: bool = True
    costs: Costs | None = None
    is_profiled: bool = False
    other_workers: int | None = None


def verdict(shares: Mapping[str, float], steps: int, rate: float, feed: Feed) -> str:
    """Say where the time of ``steps`` steps went, and what to do about it.

    ``shares``: of wait, transfer, augment, compute and other, 0 to 1. ``rate``: images a second of one rank.
    """
    if steps < _ENOUGH_STEPS:
        return f"{max(steps, 0)} steps after the first are too few to tell what they wait for"
    names = {"wait": "waiting for data", "transfer": "transfer", "augment": "augmentation"}
    names |= {"compute": "compute", "other": "callbacks and loggers"}
    parts = ", ".join(f"{shares[stage]:.0%} {name}" for stage, name in names.items())
    worst = max(("wait", "transfer", "augment"), key=lambda stage: shares[stage])
    if shares[worst] < _WORTH:
        return f"{parts}: {_keeps_up(shares, feed)}"
    if worst == "wait":
        return f"{parts}: {_on_waiting(shares['wait'], rate, feed)}"
    advice = _on_transfer(feed) if worst == "transfer" else _on_augmentation(shares["augment"], feed)
    return f"{parts}: {advice}"


def _keeps_up(shares: Mapping[str, float], feed: Feed) -> str:
    most = _most(shares["wait"] + shares["transfer"] + shares["augment"])
    if feed.is_profiled:
        look = ""
    elif shares["other"] > max(0.2, shares["compute"] / 2):
        look = "; `python train.py profiler=simple` names the callbacks"
    else:
        look = "; `python train.py profiler=torch` shows what the rest does"
    return f"the data keeps up, nothing to gain there ({most}){look}"


def _on_transfer(feed: Feed) -> str:
    if feed.workers is None:
        return "give the DataLoader pin_memory=True, and hand over uint8 images that the device normalises"
    look = "" if feed.is_profiled else "`python train.py profiler=torch` shows the copies; "
    return f"{look}fewer pixels help, data.train.crop.size=..."


def _on_augmentation(share: float, feed: Feed) -> str:
    most = _most(share)
    if feed.workers is None or feed.augment is None:
        return f"on_after_batch_transfer takes it, a hook of yours; tarpeg.Augment is one pass ({most})"
    if feed.augment != "Augment":
        return f"{feed.augment} takes it; tarpeg.Augment is one pass over the images ({most})"
    if not feed.has_operators:
        return f"it is done without the CUDA operators: `python tools/doctor.py` says why ({most})"
    if feed.device == "cpu" and not feed.workers and feed.cores > 1:
        workers = feed.cores - 1
        gain = _capped(1 / max(1 - share, share / workers), share + (1 - share) * feed.compute_threads, feed)
        if gain >= _GAIN:
            alone = " data.threads=null" if feed.threads else ""
            return f"data.workers={workers}{alone} augments beside the training{_expected(gain)}"
    if not feed.is_random:
        return f"it only normalises; fewer pixels make it shorter, data.train.crop.size=... ({most})"
    return f"fewer distortions help; augment=imagenet only normalises ({most})"


def _on_waiting(wait: float, rate: float, feed: Feed) -> str:
    most = _most(wait)
    if feed.workers is None:
        more = f"num_workers={feed.cores}" if feed.cores > 1 else "a num_workers of its own"
        has_idle = feed.other_workers is not None and feed.other_workers < feed.cores
        give = f"give the DataLoader {more}, or " if has_idle else ""
        return f"{give}feed from shards with tarpeg.ShardDataModule ({most})"
    if feed.is_streaming:
        return f"{_cache(feed)} ++data.train.streaming=false ({most})"
    if _is_starved(wait, rate, feed):
        return (
            "decoding could be far quicker than that, so it waits for the disk or comes in bursts: "
            f"data.readahead=16 asks for samples earlier, data.prefetch=8 has more batches ready ({most})"
        )
    gain, advice = max(_options(wait, feed), default=(0.0, ""), key=lambda option: option[0])
    if gain >= _GAIN:
        return advice + _expected(gain)
    if feed.costs is None:
        return f"{_cache(feed)}, where the images are not tiled yet ({most})"
    if feed.device == "cpu":
        return (
            f"network and decoding share the cores, {feed.cores}; fewer pixels help, data.train.crop.size=..."
        )
    smaller = _cache(feed, "codec=resized codec.shorter=256")
    return f"all {feed.cores} cores decode what is quick to decode already; for smaller images, {smaller}"


def _options(wait: float, feed: Feed) -> Iterator[tuple[float, str]]:
    """Yield what may be done against waiting: how many times as fast the run would be, and how.

    A loader that works beside the training bounds the step where there is waiting: a step takes the longer of
    the two. One that works in the training's own process adds to it.
    """
    assert feed.workers is not None
    beside = feed.workers or feed.threads
    # As many as keep up with the rest of a step, and one more: they are not equally quick.
    needed = (beside or wait) / max(1 - wait, 0.01)
    wished = min(feed.cores, math.ceil(round(needed, 3)) + 1)
    if beside < wished:
        gain = min(wished / beside, 1 / (1 - wait)) if beside else 1 / max(1 - wait, wait / wished)
        gain = _capped(gain, (1 - wait) * feed.compute_threads + (beside or wait), feed)
        name = "data.threads" if feed.threads else "data.workers"
        yield gain, f"{name}={wished} decodes on the cores that are idle"
    costs = feed.costs
    if costs is None or costs.decode <= 0:
        return
    full = costs.decode + costs.augment

    def faster(after: float) -> float:
        left = after / full
        return 1 / max(1 - wait, left) if beside else 1 / (1 - wait + wait * left)

    if costs.tiled < 0.5:
        yield faster(costs.cached + costs.augment), _cache(feed)
    else:
        size = f"of {costs.growth:.0f} times the bytes"
        yield faster(costs.cached + costs.augment), f"{_cache(feed, 'codec=raw')}, a cache {size}"
    if costs.augment:
        yield faster(costs.decode), "the loader's augmentation takes it; augment=imagenet only normalises"


def _capped(gain: float, busy: float, feed: Feed) -> float:
    """Bound a gain by the cores there are, where the network computes on them too; ``busy``: how many are."""
    return min(gain, feed.cores / busy) if feed.device == "cpu" else gain


def _is_starved(wait: float, rate: float, feed: Feed) -> bool:
    """Tell whether the loader could decode far more than it delivers: then it waits itself."""
    if feed.costs is None or not rate:
        return False
    beside = feed.workers or feed.threads
    delivered = rate if beside else rate / wait
    able = max(1, min(beside, feed.cores)) * 1e6 / max(feed.costs.decode + feed.costs.augment, 1e-3)
    # On a CPU that trains as well, they get a part of their cores only.
    return able > (6 if feed.device == "cpu" else 3) * delivered


def _cache(feed: Feed, settings: str = "") -> str:
    """Name the command that builds a cache of the shards, and the setting that trains on it."""
    source = [feed.source] if isinstance(feed.source, (str, os.PathLike)) else list(feed.source or ())
    places = [os.fspath(place) for place in source]
    first = places[0] if places else ""
    dest = "data/cache"
    if first and "://" not in first and not first.startswith("pipe:"):
        folder = Path(first) if not re.search(r"\.tar$|[*?{\[]", first) else Path(first).parent
        if folder.name not in ("", "..") and not re.search(r"[*?{\[]", str(folder)):
            dest = f"{folder}-cache"
    shown = "..." if not places or len(places) > 3 else places[0] if len(places) == 1 else places
    command = " ".join(filter(None, (_BUILD, _override("source", shown), _override("dest", dest), settings)))
    return f"build a cache with `{command}` and train on it with {_override('data.train.shards', dest)}"


def _override(key: str, value: str | list[str]) -> str:
    """Write a setting as a shell and Hydra take it."""
    if isinstance(value, str) and re.fullmatch(r"[\w./:@%+-]+", value):
        return f"{key}={value}"
    parts = [value] if isinstance(value, str) else value
    quoted = ",".join('"' + part.replace('"', '\\"') + '"' for part in parts)
    return shlex.quote(f"{key}={quoted}" if isinstance(value, str) else f"{key}=[{quoted}]")


def _most(share: float) -> str:
    return f"at most {1 / max(1 - share, 0.01):.2f}x"


def _expected(gain: float) -> str:
    return f"; expected {gain:.1f}x"
