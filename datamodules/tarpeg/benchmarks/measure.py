"""The benchmark: ways to decode, augment and load training images, measured on the same photographs.

Decoding and augmenting: all contestants run in this process on one thread. Rounds are interleaved over the
contestants, batch by batch, so that the load of other programs affects all of them equally. A contestant's
time is the sum, over the batches, of the median of its rounds. Loaders run in processes: see ``loader``.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets.synthetic import Photos, photograph
from ..machine import usable_cores
from ..ops import decode
from ..processes import map_in_processes
from ..sampling.crops import RandomCrop, RandomResizedCrop
from .augment import AUGMENT_PEERS, augment_contestants, augment_input
from .decode_peers import (
    BATCH,
    CROP_PEERS,
    FFCV_MISSING,
    GROUPS,
    RESIZE_PEERS,
    SIZE,
    InProcessContestant,
    Peer,
    crop_contestants,
    decode_input,
    installed,
    jpeg_tensor,
    pillow_crop,
    resize_contestants,
)
from .loader import LoaderRun, measure_loaders
from .loader_data import Advance, LoaderSettings, size_label
from .replay import measure_replays
from .report import Report, Row

_CROP = 256
_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# Default size and number of photographs.
_SUITES = {
    "crop": ("article", 200),
    "resize": ("imagenet", 200),
    "augment": ("imagenet", 200),
    "loader": ("imagenet", 2048),
    "article": ("article", 2048),
    "dali": ("imagenet", 2048),
}
_IN_PROCESS: dict[str, tuple[Callable[[], list[InProcessContestant]], tuple[Peer, ...]]] = {
    "crop": (crop_contestants, CROP_PEERS),
    "resize": (resize_contestants, RESIZE_PEERS),
    "augment": (augment_contestants, AUGMENT_PEERS),
}


def measure(
    suite: str,
    size: str | int | Sequence[int] | None = None,
    images: int | None = None,
    rounds: int = 7,
    tile: int = 32,
    seed: int = 0,
    clock: str = "wall",
    device: str = "cpu",
    loader: Mapping[str, Any] | None = None,
) -> Report:
    """Measure `suite` on `images` synthetic photographs of `size` (see `Photos`).

    suite: crop, resize, augment, loader, article or dali; see conf/bench.yaml. size: None means "article" for
    crop and article, otherwise "imagenet". images: None means 200, for the last three suites 2048. Fewer than
    200 images or 5 rounds give misleading results. tile: requested width of tiles in pixels. clock: "wall",
    or "cpu", the processor time of all threads, for a machine that runs other programs, too. device: "cpu",
    or "cuda" for the augment suite. loader: settings of the last three suites, see `LoaderSettings`.

    A progress bar is shown if standard error is a terminal.

    Raises:
        ValueError: if an argument is out of range.
    """
    for name, choice, choices in (("suite", suite, _SUITES), ("clock", clock, _CLOCKS)):
        if choice not in choices:
            raise ValueError(f"{name}={choice!r} must be one of {', '.join(choices)}")
    default_size, default_images = _SUITES[suite]
    images = default_images if images is None else images
    # An epoch of the loaders must fill a batch of 64; it has every photograph eight times.
    for name, value, low in (("images", images, 1 if suite in _IN_PROCESS else 8), ("rounds", rounds, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ValueError(f"{name}={value!r} must be an integer of at least {low} for suite={suite}")
    if device != "cpu" and (device != "cuda" or suite != "augment" or not torch.cuda.is_available()):
        raise ValueError(f"device={device!r} must be 'cpu', or 'cuda' for suite=augment if there is a GPU")
    photos = Photos(size=default_size if size is None else size, seed=seed)
    settings = LoaderSettings.of(loader or {})
    with _progress() as advance:
        if suite in _IN_PROCESS:
            with _one_thread():
                return _measure_in_process(suite, photos, images, rounds, tile, clock, device, advance)
        run = LoaderRun(photos, images, rounds, tile, clock, settings, advance)
        return measure_loaders(run) if suite == "loader" else measure_replays(suite, run)


def _measure_in_process(
    suite: str, photos: Photos, images: int, rounds: int, tile: int, clock: str, device: str, advance: Advance
) -> Report:
    ours, peers = _IN_PROCESS[suite]
    jpegs = []
    for jpeg in _photographs(photos, images):
        jpegs.append(jpeg)
        advance("drawing", len(jpegs) / images)
    crop = RandomCrop(_CROP) if suite == "crop" else RandomResizedCrop(SIZE)
    batches: list[Any] = []
    for start in range(0, images, BATCH):
        part, seed = jpegs[start : start + BATCH], photos.seed + start
        if suite == "augment":
            batches.append(augment_input(part, seed, device))
        else:
            batches.append(decode_input(part, crop, tile, seed, stores_crops=suite == "crop"))
        advance("tiling", min(1.0, (start + BATCH) / images))
    always = ours()
    others, missing = installed(peers)
    # A stable sort: the first of a group stays first.
    order = [who.group for who in always]
    contestants = sorted([*always, *others], key=lambda who: order.index(who.group))
    differences = _differences(contestants, batches, suite, advance)
    seconds = _times(contestants, batches, rounds, _CLOCKS[clock], advance)
    references = {who.group: spent for who, spent in reversed(list(zip(contestants, seconds, strict=True)))}
    rows = [
        Row(
            who.group, who.name, references[who.group] / spent, *difference, microseconds=1e6 * spent / images
        )
        for who, spent, difference in zip(contestants, seconds, differences, strict=True)
    ]
    work = {
        "crop": f"random {_CROP}x{_CROP} crop",
        "resize": f"RandomResizedCrop({SIZE}), bilinear",
        "augment": f"batches of {BATCH} at {SIZE}x{SIZE} on the {device}",
    }[suite]
    comparison = {
        "crop": "speed relative to torchvision; pixels compared with Pillow's; the bound has other pixels",
        "resize": "speed and pixels relative to torchvision v2",
        "augment": "speed and pixels relative to torchvision v2; the whole chain: flip, affine, brightness, "
        "contrast, saturation, hue, erase, normalise",
    }[suite]
    figures: list[str] = []
    if suite != "augment":
        missing = (*missing, FFCV_MISSING)
        figures.append(_file_sizes(jpegs, [jpeg for batch in batches for jpeg in batch.tiled], tile))
    return Report(
        suite,
        work,
        size_label(photos),
        images,
        rounds,
        clock,
        tile,
        {} if suite == "augment" else GROUPS,
        tuple(rows),
        comparison,
        tuple(figures),
        missing,
    )


def _photographs(photos: Photos, count: int) -> Iterator[bytes]:
    """JPEGs of the photographs, drawn in processes if there are enough to outweigh their start."""
    blocks = [(photos, range(start, min(start + 8, count))) for start in range(0, count, 8)]
    workers = min(usable_cores(), count // 64)
    drawn: Iterable[list[bytes]] = map(_draw, blocks)
    if workers > 1:
        drawn = map_in_processes(_draw, blocks, workers)
    for jpegs in drawn:
        yield from jpegs


def _draw(block: tuple[Photos, Sequence[int]]) -> list[bytes]:
    photos, indices = block
    return [photograph(photos, index).jpeg for index in indices]


def _file_sizes(jpegs: Sequence[bytes], tiled: Sequence[Tensor], tile: int) -> str:
    before = sum(map(len, jpegs))
    pixels = sum(int(height * width) for height, width in decode.image_sizes([*map(jpeg_tensor, jpegs)]))
    after = sum(map(len, tiled)) / before
    return f"files: {8 * before / pixels:.2f} bits per pixel; with tile={tile} {after:.3f} times the bytes"


def _differences(
    contestants: Sequence[InProcessContestant], batches: Sequence[Any], suite: str, advance: Advance
) -> list[tuple[float | None, float | None]]:
    """Mean and largest difference of each contestant's pixels; this is also the warm-up."""
    means, maxima = np.zeros(len(contestants)), np.zeros(len(contestants))
    for done, batch in enumerate(batches):
        references: dict[str, list[Tensor]] = {}
        if suite == "crop":
            crops = [np.array(pillow_crop(*pair)) for pair in zip(batch.jpegs, batch.places, strict=True)]
            references["uint8"] = [torch.from_numpy(crop).permute(2, 0, 1).float() for crop in crops]
        for index, who in enumerate(contestants):
            pixels = who.pixels(batch)
            expected = references.setdefault(who.group, pixels)
            if who.compared:
                apart = [(ours - theirs).abs() for ours, theirs in zip(pixels, expected, strict=True)]
                means[index] += sum(float(image.mean()) for image in apart)
                maxima[index] = max(maxima[index], *(float(image.max()) for image in apart))
        advance("comparing", (done + 1) / len(batches))
    images = sum(len(batch.jpegs) for batch in batches)
    return [
        (mean / images, maximum) if who.compared else (None, None)
        for who, mean, maximum in zip(contestants, means.tolist(), maxima.tolist(), strict=True)
    ]


def _times(
    contestants: Sequence[InProcessContestant],
    batches: Sequence[Any],
    rounds: int,
    clock: Callable[[], float],
    advance: Advance,
) -> list[float]:
    """Seconds that each contestant takes for all batches."""
    spent: list[list[list[float]]] = [[[] for _ in batches] for _ in contestants]
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for done, batch in enumerate(batches):
                # Each round begins with another contestant, so that none always follows the same one.
                for index in np.roll(np.arange(len(contestants)), number).tolist():
                    started = clock()
                    contestants[index].run(batch)
                    spent[index][done].append(clock() - started)
                advance("measuring", (number + (done + 1) / len(batches)) / rounds)
    finally:
        gc.enable()
    return [sum(map(statistics.median, by_batch)) for by_batch in spent]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _progress() -> Iterator[Advance]:
    """Progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    # Refreshed only between measurements: a thread that refreshes it would disturb them.
    hidden = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), auto_refresh=False, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=1.0)

        def advance(what: str, share: float) -> None:
            bar.update(task, description=what, completed=share, refresh=True)

        yield advance
