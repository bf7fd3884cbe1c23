"""What a person sees of a cache build: a progress bar, a summary, and what the cache is worth."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import processes
from ..progress import progress
from ..shards import pillow
from ..shards.mapped import Shards
from . import verify
from .build import CacheReport, Progress, build_cache
from .codecs import RAW
from .plan import Layout

_CROP = 256


class Speedup(NamedTuple):
    """Microseconds that a random crop takes, before and after: medians of rounds, one thread."""

    images: int
    before: float
    after: float


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """Show how far a build is, with images/s and MB/s; gives what ``build_cache`` calls."""
    with progress("shards") as show:
        started, kept = time.monotonic(), (0, 0)

        def told(now: Progress) -> None:
            nonlocal kept
            if now.shards == now.kept:  # nothing was made yet: no part of the speed
                kept = (now.samples, now.bytes)
            seconds = max(time.monotonic() - started, 1e-3)
            images, megabytes = (now.samples - kept[0]) / seconds, (now.bytes - kept[1]) / 1e6 / seconds
            show(now.shards, f"{images:.0f} images/s, {megabytes:.1f} MB/s", now.shards_total)

        yield told


def built(settings: Mapping[str, Any]) -> list[str]:
    """Do what conf/build_cache.yaml describes, with ``codec`` made; gives the summary."""
    layout = Layout(**{name: settings[name] for name in Layout.__dataclass_fields__})
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(_executor(settings))
        report = build_cache(
            settings["source"],
            settings["dest"],
            settings["codec"],
            executor,
            layout=layout,
            max_bad=settings["max_bad"],
            progress=stack.enter_context(progress_bar()),
        )
    return summary(report, settings["measure"])


def verified(settings: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Check the cache at ``dest``; gives what to say of it, and whether it is good."""
    with _executor(settings) as executor, progress_bar() as show:
        report = verify.verify_cache(settings["dest"], executor, progress=show)
    return verify.summary(report), report.is_good


@contextlib.contextmanager
def _executor(settings: Mapping[str, Any]) -> Iterator[Executor | int | None]:
    if settings["executor"] not in ("local", "dask"):
        raise ValueError(f"executor: expected local or dask, got {settings['executor']!r}")
    if settings["executor"] == "local":
        yield settings["workers"]
        return
    with processes.dask(settings["address"]) as executor:
        yield executor


def summary(report: CacheReport, measure: bool = False) -> list[str]:
    """Say in a few lines what the cache holds; and, measured, how much faster it decodes."""
    share = report.bytes / max(report.source_bytes, 1)
    images = max(report.samples, 1)
    lines = [
        f"{report.dest}: {report.samples} samples in {report.shards} shard{'s' * (report.shards != 1)}, "
        f"{report.built} of them written now, in {report.seconds:.1f} s",
        f"size: {report.source_bytes / 1e6:.1f} MB before, {report.bytes / 1e6:.1f} MB after ({share:.3f})",
    ]
    widest = sorted(report.tiles.items(), key=lambda item: -item[1])
    shown = [f"{width} px: {count / images:.1%}" for width, count in widest[:8]]
    others = sum(count for _, count in widest[8:])
    if others:
        widths = [width for width, _ in widest[8:]]
        shown.append(f"{min(widths)} to {max(widths)} px: {others / images:.1%}")
    if shown:
        lines.append(f"images by width of tile: {', '.join(shown)}")
    for reason, count in report.untiled.items():
        told = f"{count} image{'s' * (count != 1)} ({count / images:.1%})"
        lines.append(f"stored as pixels: {told}" if reason == RAW else f"not tiled: {told}, {reason}")
    if report.quarantine:
        first = report.quarantine[0]
        lines.append(
            f"left out: {len(report.quarantine)} samples, listed in manifest.json, such as key {first.key!r} "
            f"of {first.shard}: {first.reason}"
        )
    measured = speedup(report) if measure else None
    if measured is not None:
        before, after = f"{measured.before:.0f} us before", f"{measured.after:.0f} us after"
        times = f"{measured.before / measured.after:.1f} times as fast"
        of = f"{measured.images} images, one thread"
        lines.append(f"a random {_CROP} x {_CROP} crop: {before}, {after}, {times} ({of})")
    return lines


def speedup(report: CacheReport, images: int = 64, rounds: int = 7) -> Speedup | None:
    """Decode a random crop of the same images, before and after, side by side, in turns; None without any."""
    path = report.dest / f"{report.example.name}.tar" if report.example else report.dest
    if report.example is None or not path.is_file():
        return None
    shards = Shards([path])
    ids = {shards.key(id): id for id in reversed(range(len(shards)))}
    before, after = [], []
    for sample in islice(report.example.source.read(), images):
        image = pillow.image_extension(sample.members)
        if image is not None and sample.key in ids:
            before.append(torch.frombuffer(bytearray(sample.members[image]), dtype=torch.uint8))
            after.append(shards.images([ids[sample.key]])[0].clone())
    if not before:
        return None
    draw = random.Random(0)
    places = [(draw.random(), draw.random()) for _ in before]
    times = [(_decode(before, places), _decode(after, places)) for _ in range(rounds + 1)][1:]
    medians = [statistics.median(column) * 1e6 / len(places) for column in zip(*times, strict=True)]
    return Speedup(len(places), medians[0], medians[1])


def _decode(files: Sequence[Tensor], places: Sequence[tuple[float, float]]) -> float:
    """Decode a crop of each, of the same share of every image; gives seconds of processor time."""
    from ..ops import decode

    started = time.thread_time()
    for file, (down, across) in zip(files, places, strict=True):
        height, width = decode.image_sizes([file])[0].tolist()
        if not height:  # no JPEG: what a loader does with it
            converted = pillow.to_ppm(file)
            assert converted is not None, "what is in the cache could be decoded"
            file = converted
            height, width = decode.image_sizes([file])[0].tolist()
        side = min(_CROP, height, width)
        decode.decode_crop(file, int(down * (height - side)), int(across * (width - side)), side, side)
    return time.thread_time() - started
