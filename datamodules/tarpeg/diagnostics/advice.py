"""Advice at the end of a training run: what decoding costs, and the change that would save the most time.

``measure_costs`` decodes a few images as they are and as a cache would hold them; ``advise`` turns these
costs and the measured shares of time into one piece of advice.
"""

from __future__ import annotations

import copy
import functools
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..cache.codecs import Codec, Packed, Raw, Tiled, tile_width
from ..errors import DecodeError, ShardError, Status
from ..loader.drawing import BoxError
from ..loader.fetch import Fetcher
from ..loader.gathering import GatheringFetcher, check_gathers
from ..remedies import Call
from ..sampling.sampler import Request
from ..shards.pillow import NATIVE, PACKED, as_tensor
from ..shards.urls import is_url, public_url
from ..transforms.pixels import PixelFormat
from ..transforms.plan import PlannedStep, plan_of

STAGES = {
    "wait": "waiting for data",
    "transfer": "transfer",
    "augment": "augmentation",
    "compute": "compute",
    "other": "callbacks and loggers",
}
"""Stages of a step, and their names in the advice."""

# At fewer steps the start of the run dominates.
_MIN_STEPS = 10
# Smallest share of the time, and smallest speed-up of the run, for which a change is proposed.
_MIN_SHARE, _MIN_GAIN = 0.09, 1.1
# Share of an image's time from which steps in Python are the first to change.
_MIN_PYTHON = 0.25
# Limits on what is decoded to measure the costs.
_MAX_IMAGES, _MAX_ROUNDS, _MAX_NBYTES = 32, 5, 64 << 20


Advice = tuple[str | Call, ...]
"""A sentence in parts: text, and the proposed calls. ``"".join(map(str, advice))`` is the whole sentence."""


class Costs(NamedTuple):
    """Microseconds per image on one thread, medians over rounds.

    Attributes:
        images: Number of images that were measured.
        tiled: Fraction of tiled or packed images among them.
        decode: Time to read, crop and resize the images as they are.
        cached: The same from a cache, which is tiled, or raw if most images are tiled already.
        growth: Bytes in that cache per byte now.
        augment: Augmentation by the loader; 0 without one.
        packed: As ``cached``, of a packed cache; 0 if most images are packed already.
        packed_growth: As ``growth``, of a packed cache.
        python: Steps in Python of all views, as planned; their times are a part of ``decode`` and ``cached``.
        gather: What workers take if they gather, and the device decodes; 0 if they cannot.
    """

    images: int
    tiled: float
    decode: float
    cached: float
    growth: float
    augment: float
    packed: float = 0.0
    packed_growth: float = 0.0
    python: tuple[PlannedStep, ...] = ()
    gather: float = 0.0


class RunFacts(NamedTuple):
    """Facts about a training run; those with a default are of tarpeg's loader, except the last two.

    Attributes:
        device: Type of the network's device.
        cores: Cores per rank.
        compute_threads: Threads of torch.
        source: Shards of the train split; None for a source of the user.
        is_streaming: Shards are read as streams.
        workers: Worker processes of ``LoaderConfig``; None for another loader.
        threads: Threads of ``LoaderConfig``.
        augment: Name of the augmentation's class.
        is_random: The augmentation distorts.
        has_operators: The native operators exist for that device.
        costs: Measured times of the loader; None if they are unknown.
        is_profiled: The Trainer has a profiler.
        other_workers: Worker processes of another loader; None without such a setting.
        is_gathering: The workers gather, and the device decodes.
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
    is_gathering: bool = False


def advise(shares: Mapping[str, float], steps: int, rate: float, run: RunFacts) -> Advice:
    """Describe where the time of a training went, and what to change.

    Args:
        shares: Shares of wait, transfer, augment, compute and other, 0 to 1.
        steps: Number of training steps.
        rate: Images per second and rank.
        run: Facts about the run.
    """
    if steps < _MIN_STEPS:
        count = "1 step after the first is" if steps == 1 else f"{max(steps, 0)} steps after the first are"
        return (f"{count} too few to measure what {'it waits' if steps == 1 else 'they wait'} for",)
    summary = ", ".join(f"{shares[stage]:.0%} {name}" for stage, name in STAGES.items())
    largest = max(("wait", "transfer", "augment"), key=lambda stage: shares[stage])
    if shares[largest] < _MIN_SHARE:
        advice = _on_fast_data(shares, run)
    elif largest == "wait":
        advice = _on_waiting(shares["wait"], rate, run)
    else:
        advice = _on_transfer(run) if largest == "transfer" else _on_augmentation(shares["augment"], run)
    return (f"{summary}: ", *advice)


def _on_fast_data(shares: Mapping[str, float], run: RunFacts) -> Advice:
    limit = _limit(shares["wait"] + shares["transfer"] + shares["augment"])
    text = f"the data keeps up, there is nothing to gain ({limit})"
    if run.is_profiled:
        return (text,)
    if shares["other"] > max(0.2, shares["compute"] / 2):
        return text, "; ", Call("Trainer", {"profiler": "simple"}), " lists the callbacks' times"
    return text, "; ", Call("Trainer", {"profiler": "pytorch"}), " shows the rest"


_SMALLER_CROP = Call("Split", {"crop": ...})


def _on_transfer(run: RunFacts) -> Advice:
    if run.workers is None:
        return ("give the DataLoader pin_memory=True, and return uint8 images that the device normalises",)
    fewer: Advice = ("fewer pixels help: a smaller crop in ", _SMALLER_CROP)
    if run.is_profiled:
        return fewer
    return Call("Trainer", {"profiler": "pytorch"}), " shows the copies; ", *fewer


def _on_augmentation(share: float, run: RunFacts) -> Advice:
    limit = f" ({_limit(share)})"
    if run.workers is None or run.augment is None:
        return (f"your on_after_batch_transfer takes it; tarpeg.Augment needs one pass{limit}",)
    if run.augment != "Augment":
        return (f"{run.augment} takes it; tarpeg.Augment needs one pass over the images{limit}",)
    if not run.has_operators:
        return "it runs without the CUDA operators: ", Call("tarpeg.diagnose"), f" shows the reason{limit}"
    if run.device == "cpu" and not run.workers and run.cores > 1:
        workers = run.cores - 1
        gain = _capped(1 / max(1 - share, share / workers), share + (1 - share) * run.compute_threads, run)
        if gain >= _MIN_GAIN:
            settings = {"workers": workers} | ({"threads": None} if run.threads else {})
            change = Call("ShardDataModule", settings)
            return change, f" augments in parallel to the training{_expected(gain)}"
    if not run.is_random:
        return "it only normalises; fewer pixels help: a smaller crop in ", _SMALLER_CROP, limit
    return "fewer distortions help; ", Call("Augment"), f" only normalises{limit}"


def _on_waiting(wait: float, rate: float, run: RunFacts) -> Advice:
    limit = f" ({_limit(wait)})"
    if run.workers is None:
        more = f"num_workers={run.cores}" if run.cores > 1 else "num_workers=1"
        has_idle = run.other_workers is not None and run.other_workers < run.cores
        give = f"give the DataLoader {more}, or " if has_idle else ""
        return (f"{give}read shards with tarpeg.ShardDataModule{limit}",)
    if run.is_streaming:
        return *_cache(run, streaming=False), limit
    python = _on_python(wait, run)
    if not python and _is_starved(wait, rate, run):
        return (
            "decoding is much faster than this, so the loader waits for the disk or delivers in bursts: ",
            Call("ShardDataModule", {"readahead": 16}),
            " asks the disk earlier, ",
            Call("ShardDataModule", {"prefetch": 8}),
            f" keeps more batches ready{limit}",
        )
    gain, advice = max(_options(wait, run), default=(0.0, ()), key=lambda option: option[0])
    if gain >= _MIN_GAIN:
        slow: Advice = (*python[:-1], "; ") if python else ()
        return *slow, *advice, _expected(gain)
    if python:
        return python
    if run.is_gathering:
        return (
            "the workers gather already, and the device decodes; fewer pixels help: a smaller crop in ",
            _SMALLER_CROP,
            limit,
        )
    if run.costs is None:
        return *_cache(run), f", unless the images are tiled already{limit}"
    if run.device == "cpu":
        shared = f"network and decoding share the {run.cores} cores; fewer pixels help: a smaller crop in "
        return shared, _SMALLER_CROP
    return (
        f"all {run.cores} cores decode images that are fast to decode already; for smaller images, ",
        *_cache(run, Call("tarpeg.Resized", {"shorter": 256})),
    )


def _on_python(wait: float, run: RunFacts) -> Advice:
    """Return the advice on steps in Python, with the limit as its last part; () if they take little."""
    if run.costs is None or not run.costs.python:
        return ()
    full = run.costs.decode + run.costs.augment
    taken = min(sum(step.us or 0.0 for step in run.costs.python), run.costs.decode)
    if taken < _MIN_PYTHON * full:
        return ()
    slowest = max(run.costs.python, key=lambda step: step.us or 0.0)
    name = slowest.step.partition("(")[0] + f": {slowest.note}" * bool(slowest.note)
    costs = f" take {taken:,.0f} of the {full:,.0f} us per image; the slowest is {name}; "
    share = min(wait, taken / full) if run.workers or run.threads else wait * taken / full
    transform = Call("Split", {"transform": ...})
    return "the steps in Python of ", transform, costs, "split.plan() lists them", f" ({_limit(share)})"


def _options(wait: float, run: RunFacts) -> Iterator[tuple[float, Advice]]:
    """Yield what helps against waiting: how many times as fast the run would be, and the advice.

    A loader that works in parallel to the training bounds the step if there is waiting: a step takes the
    longer of the two. A loader that works in the training's own thread adds to the step.
    """
    assert run.workers is not None
    decoders = run.workers or run.threads
    # As many as keep up with the rest of a step, and one more, because they are not equally fast.
    needed = (decoders or wait) / max(1 - wait, 0.01)
    proposed = min(run.cores, math.ceil(round(needed, 3)) + 1)
    if decoders < proposed:
        gain = min(proposed / decoders, 1 / (1 - wait)) if decoders else 1 / max(1 - wait, wait / proposed)
        gain = _capped(gain, (1 - wait) * run.compute_threads + (decoders or wait), run)
        settings = {"threads" if run.threads else "workers": proposed}
        yield gain, (Call("ShardDataModule", settings), " decodes on the idle cores")
    costs = run.costs
    if costs is None or costs.decode <= 0:
        return
    full = costs.decode + costs.augment

    def speedup(after: float) -> float:
        left = after / full
        return 1 / max(1 - wait, left) if decoders else 1 / (1 - wait + wait * left)

    if costs.gather and run.device == "cuda" and run.has_operators:
        text = " decodes on the GPU what the workers gather"
        yield speedup(costs.gather), (Call("ShardDataModule", {"decode": "device"}), text)
    caches: list[tuple[float, Advice]] = []  # the smallest first
    if costs.tiled < 0.5:
        caches.append((costs.cached, _cache(run)))
    if costs.packed:
        growth = f", which leaves out entropy coding for {costs.packed_growth:.1f} times the bytes"
        caches.append((costs.packed, (*_cache(run, Call("tarpeg.Packed")), growth)))
    if costs.tiled >= 0.5:
        growth = f", which takes {costs.growth:.0f} times the bytes"
        caches.append((costs.cached, (*_cache(run, Call("tarpeg.Raw")), growth)))
    gains = [speedup(after + costs.augment) for after, _ in caches]
    chosen = next(number for number, gain in enumerate(gains) if gain * _MIN_GAIN >= max(gains))
    yield gains[chosen], caches[chosen][1]
    if costs.augment:
        text = "the loader's augmentation takes it; "
        yield speedup(costs.decode), (text, Call("Augment"), " only normalises")


def _capped(gain: float, busy: float, run: RunFacts) -> float:
    """Return ``gain``, at most cores per ``busy`` core if the network computes on the same cores."""
    return min(gain, run.cores / busy) if run.device == "cpu" else gain


def _is_starved(wait: float, rate: float, run: RunFacts) -> bool:
    """Return whether the loader could decode far more than it delivers, so that it waits itself."""
    if run.costs is None or not rate:
        return False
    decoders = run.workers or run.threads
    delivered = rate if decoders else rate / wait
    per_second = 1e6 / max(run.costs.decode + run.costs.augment, 1e-3)
    possible = max(1, min(decoders, run.cores)) * per_second
    # On a CPU that trains as well, decoders get only a part of their cores.
    return possible > (6 if run.device == "cpu" else 3) * delivered


def _cache(run: RunFacts, codec: Call | None = None, **settings: Any) -> Advice:
    """Return the advice to build a cache of the shards with ``codec`` and to train on it."""
    source = [run.source] if isinstance(run.source, (str, os.PathLike)) else list(run.source or ())
    paths = [os.fspath(path) for path in source]
    first = paths[0] if paths else ""
    dest, names = "data/cache", ""
    if first and not is_url(first):
        folder = Path(first) if not re.search(r"\.tar$|[*?{\[]", first) else Path(first).parent
        if folder.name not in ("", "..") and not re.search(r"[*?{\[]", str(folder)):
            dest = f"{folder}-cache"
    if len(paths) == 1 and re.fullmatch(r"[\w.{},*?\[\]-]+\.tar", first.rpartition("/")[2]):
        names = "/" + first.rpartition("/")[2]  # shards keep their names, and others may be in the folder
    public = [public_url(path) if is_url(path) else path for path in paths]
    shown: object = public[0] if len(public) == 1 else public
    if not paths or len(paths) > 3:
        shown = ...
    arguments = {"source": shown, "dest": dest} | ({} if codec is None else {"codec": codec})
    split = Call("Split", {"shards": dest + names, **settings})
    build = "build a cache with "
    if run.source is None:
        build = f"write the samples of your source as shards, {build}"
    return build, Call("tarpeg.build_cache", arguments), " and train on it with ", split


def _limit(share: float) -> str:
    return f"at most {1 / max(1 - share, 0.01):.2f}x"


def _expected(gain: float) -> str:
    return f"; expected {gain:.1f}x"


def measure_costs(fetcher: Fetcher, epoch: int, seconds: float) -> Costs | None:
    """Measure for about ``seconds`` what an image of that epoch costs; None if 0 seconds or unreadable.

    None also for samples with several images.
    """
    if not seconds or fetcher.split.image is not None:
        return None
    started, threads = time.monotonic(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _costs(fetcher, epoch, started + seconds, started + 0.5 * seconds)
    except (OSError, ShardError, DecodeError, BoxError):  # for example, the shards were removed meanwhile
        return None
    finally:
        torch.set_num_threads(threads)


def _costs(fetcher: Fetcher, epoch: int, end: float, end_of_encoding: float) -> Costs:
    candidates = np.arange(len(fetcher.shards)) if fetcher.candidates is None else fetcher.candidates
    drawn = np.random.default_rng(0).choice(candidates, min(_MAX_IMAGES, len(candidates)), replace=False)
    files = {id: fetcher.shards.images([id])[0] for id in drawn.tolist()}
    contents = [file.numpy().tobytes() for file in files.values()]
    widths = [tile_width(content) for content in contents if content.startswith(NATIVE)]
    tiled = sum(width is not None for width, _ in widths) / len(files)
    packed = sum(content.startswith(PACKED) for content in contents) / len(files)
    codecs: list[Codec] = [Tiled() if tiled < 0.5 else Raw(), *([Packed()] if packed < 0.5 else [])]
    caches: list[dict[int, Tensor]] = [{} for _ in codecs]
    for id, content in zip(files, contents, strict=True):
        nbytes = sum(len(data) for cached in caches for data in cached.values())
        if len(caches[0]) > 1 and (time.monotonic() > end_of_encoding or nbytes > _MAX_NBYTES):
            break
        for codec, cached in zip(codecs, caches, strict=True):
            try:
                cached[id] = as_tensor(codec.encode(content, "jpg").data)
            except DecodeError:
                cached[id] = files[id]  # undecodable: fetched as it is
    ids = list(caches[0])
    request = Request(epoch, np.array(ids, np.int64))
    plain = fetcher if fetcher.pixels.worker_augment is None else replace(fetcher, pixels=PixelFormat())
    fetchers = [plain, *(replace(plain, shards=_replaced(fetcher.shards, cached)) for cached in caches)]
    if plain is not fetcher:
        fetchers.append(fetcher)
    works = [functools.partial(_fetch, each, request) for each in fetchers]
    rounds: list[list[float]] = []
    while len(rounds) < 2 or (len(rounds) <= _MAX_ROUNDS and time.monotonic() < end):
        rounds.append([1e6 / len(ids) * _cpu_seconds(work) for work in works])
    # The first round maps the shards and allocates.
    decode, *times = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
    augment = 0.0 if plain is fetcher else max(0.0, times.pop() - decode)
    before = max(1, sum(len(files[id]) for id in ids))
    growths = [sum(map(len, cached.values())) / before for cached in caches]
    split = fetcher.split
    plan = plan_of(split.pipelines, split.fidelity, split.channels, measure=True, native=False)
    steps = (step for view in plan.views for step in view if step.us)
    costs = Costs(
        images=len(ids),
        tiled=tiled,
        decode=decode,
        cached=times[0],
        growth=growths[0],
        augment=augment,
        python=tuple(steps),
        gather=_gathering(fetcher, request, len(rounds)) if tiled >= 0.5 else 0.0,
    )
    return costs._replace(packed=times[1], packed_growth=growths[1]) if len(codecs) > 1 else costs


def _gathering(fetcher: Fetcher, request: Request, rounds: int) -> float:
    """Microseconds per image of a worker that gathers; 0 if most images must be decoded by it."""
    name = "train"
    try:
        check_gathers(name, fetcher.split)
        gatherer = GatheringFetcher.of(fetcher)
        status = gatherer.gather(name, request)
    except ValueError:
        return 0.0
    if 2 * int((status != Status.OK).sum()) > len(status):
        return 0.0
    work = functools.partial(gatherer.gather, name, request)
    return 1e6 / len(request.ids) * statistics.median(_cpu_seconds(work) for _ in range(rounds))


def _replaced(shards: Any, cached: Mapping[int, Tensor]) -> Any:
    """Return the shards with other files for some of their images."""

    def images(ids: npt.NDArray[np.int64]) -> list[Tensor]:
        return [cached[id] if id in cached else shards.images([id])[0] for id in ids.tolist()]

    samples = copy.copy(shards)
    samples.images = images
    return samples


def _fetch(fetcher: Fetcher, request: Request) -> None:
    result = fetcher.fetch(request)
    if result.error is not None:
        raise result.error


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread for one batch: other threads may prepare the next epoch."""
    started = time.thread_time()
    work()
    return time.thread_time() - started
