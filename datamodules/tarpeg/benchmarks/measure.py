"""The benchmark: ways to decode a training crop, side by side in one process and on one thread.

Rounds are interleaved over the contestants, block of pictures by block, so that whatever else the machine
does hits all of them alike. A contestant's time is the sum, over the blocks, of the median of its rounds.
"""

from __future__ import annotations

import contextlib
import gc
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..datasets.synthetic import Photos, photograph
from ..machine import usable_cores
from ..ops import decode
from ..processes import map_in_processes
from ..sampling.crops import Crop, RandomCrop, RandomResizedCrop
from . import augment, contestants, decode_peers, replay
from . import loader as loader_suite
from .contestants import BATCH, Block, Contestant
from .loader import LoaderSettings, label_of
from .report import LoaderReport, Report, Row, machine, versions

_CROP = 256
_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
_SIZES = {
    **{"crop": "article", "resize": "imagenet", "augment": "imagenet"},
    **{"loader": "imagenet", "article": "article", "dali": "imagenet"},
}
_IMAGES = {"loader": 2048, "article": 2048, "dali": 2048}
_OURS: dict[str, Callable[[], list[Contestant]]] = {
    "crop": contestants.of_crop,
    "resize": contestants.of_resize,
    "augment": augment.contestants,
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
) -> Report | LoaderReport:
    """Measure `suite` on `images` synthetic photographs of `size` (Photos).

    suite: crop, resize, augment, loader, article or dali; see conf/bench.yaml. size: None means "article" for
    crop and article and "imagenet" otherwise. images: None means 200, for the last three suites 2048.
    loader: settings of those three, see `LoaderSettings`. tile: the wished width of tiles in pixels.
    clock: "wall", or "cpu", the processor time of all threads of this process, which is the same on an idle
    machine and leaves out others' turns on a busy one. Under 200 images and 5 rounds the figures mislead. A
    progress bar goes to a terminal on standard error. device: where the augment suite runs, "cpu" or "cuda".

    Raises:
        ValueError: for an argument out of range; the message names it.
    """
    if suite not in _SIZES:
        raise ValueError(f"suite: expected one of {', '.join(_SIZES)}, got {suite!r}")
    if clock not in _CLOCKS:
        raise ValueError(f"clock: expected one of {', '.join(_CLOCKS)}, got {clock!r}")
    images = _IMAGES.get(suite, 200) if images is None else images
    for name, value in (("images", images), ("rounds", rounds)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}: expected an integer of at least 1, got {value!r}")
    if device != "cpu" and (suite != "augment" or not torch.cuda.is_available()):
        raise ValueError(
            f"device: expected cpu, or cuda for the augment suite where a GPU is, got {device!r}"
        )
    photos = Photos(size=_SIZES[suite] if size is None else size, seed=seed)
    if suite in _IMAGES:
        given = (photos, images, rounds, tile, clock, LoaderSettings.of(loader or {}))
        with _progress() as advance:
            if suite == "loader":
                return loader_suite.measure(*given, advance)
            return replay.measure(suite, *given, advance)
    crop: Crop = RandomCrop(_CROP) if suite == "crop" else RandomResizedCrop(contestants.SIZE)
    ours = _OURS[suite]()
    with _one_thread(), _progress() as advance:
        jpegs = []
        for jpeg in _photographs(photos, images):
            jpegs.append(jpeg)
            advance("drawing", len(jpegs) / images)
        blocks: list[Any] = []
        for start in range(0, images, BATCH):
            part = jpegs[start : start + BATCH]
            if suite == "augment":
                blocks.append(_augment_block(part, seed + start, device))
            else:
                blocks.append(_block(part, crop, tile, seed + start, suite == "crop"))
            advance("tiling", min(1.0, (start + BATCH) / images))
        others, missing = decode_peers.of(suite)
        # Stable: whoever is first in a group stays first.
        field = sorted([*ours, *others], key=lambda who: [one.group for one in ours].index(who.group))
        differences = _differences(field, blocks, suite, advance)
        times = _times(field, blocks, rounds, _CLOCKS[clock], advance)
    first = {who.group: taken for who, taken in reversed(list(zip(field, times, strict=True)))}
    rows = tuple(
        Row(who.group, who.name, 1e6 * taken / images, first[who.group] / taken, *differences[index])
        for index, (who, taken) in enumerate(zip(field, times, strict=True))
    )
    ordinary = sum(map(len, jpegs))
    tiled = sum(len(jpeg) for block in blocks for jpeg in getattr(block, "tiled", ()))
    pixels = sum(int(height * width) for height, width in decode.image_sizes([*map(_tensor, jpegs)]))
    bits = 8 * ordinary / pixels
    work = {
        "crop": f"random {_CROP}x{_CROP} crop",
        "resize": f"RandomResizedCrop({contestants.SIZE}), bilinear",
        "augment": f"batches of {BATCH} at {contestants.SIZE}x{contestants.SIZE} on the {device}",
    }[suite]
    about = (machine(), versions(), time.strftime("%Y-%m-%d"))
    label = label_of(photos)
    return Report(
        suite, work, label, images, rounds, clock, tile, bits, tiled / ordinary, rows, missing, *about
    )


def _photographs(photos: Photos, count: int) -> Iterator[bytes]:
    """Draw them, in as many processes as pay: starting one takes seconds."""
    blocks = [range(start, min(start + 8, count)) for start in range(0, count, 8)]
    workers = min(usable_cores(), count // 64)
    made: Iterator[list[bytes]] = map(_drawn, [(photos, block) for block in blocks])
    if workers > 1:
        made = map_in_processes(_drawn, [(photos, block) for block in blocks], workers)
    for jpegs in made:
        yield from jpegs


def _drawn(work: tuple[Photos, Sequence[int]]) -> list[bytes]:
    photos, indices = work
    return [photograph(photos, index).jpeg for index in indices]


def _tensor(jpeg: bytes) -> Tensor:
    return torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)


def _augment_block(jpegs: list[bytes], seed: int, device: str) -> augment.AugmentBlock:
    tensors = [_tensor(jpeg) for jpeg in jpegs]
    return augment.block(jpegs, tensors, decode.image_sizes(tensors), seed, device)


def _block(jpegs: list[bytes], crop: Crop, tile: int, seed: int, is_alone: bool) -> Block:
    arrays = [np.frombuffer(bytearray(jpeg), np.uint8) for jpeg in jpegs]
    tensors = [torch.from_numpy(array) for array in arrays]
    generator = np.random.default_rng(seed)
    boxes = crop.boxes(decode.image_sizes(tensors).numpy(), generator.random((len(jpegs), crop.draws)))
    places = [(int(top), int(left), int(height), int(width)) for top, left, height, width in boxes]
    flips = torch.from_numpy(generator.random(len(jpegs)) < 0.5)
    tiled = [decode.tile_jpeg(tensor, tile) for tensor in tensors]
    alone = (
        [_stored_alone(jpeg, place) for jpeg, place in zip(jpegs, places, strict=True)] if is_alone else []
    )
    return Block(jpegs, tensors, arrays, tiled, alone, torch.from_numpy(boxes), places, flips)


def _stored_alone(jpeg: bytes, place: tuple[int, int, int, int]) -> Tensor:
    """Store the crop as a JPEG of its own, q90 4:2:0: what decoding a crop costs at the very least."""
    stream = io.BytesIO()
    Image.fromarray(_cropped(jpeg, place)).save(stream, "JPEG", quality=90, subsampling="4:2:0")
    return torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)


def _cropped(jpeg: bytes, place: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    top, left, height, width = place
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.asarray(image.convert("RGB"))[top : top + height, left : left + width]


def _differences(
    field: Sequence[Contestant], blocks: Sequence[Any], suite: str, advance: Callable[[str, float], None]
) -> list[tuple[float | None, float | None]]:
    """Compare each contestant's pixels: mean and maximum. This warms everybody up, too."""
    means, maxima = np.zeros(len(field)), np.zeros(len(field))
    for done, block in enumerate(blocks):
        references: dict[str, list[Tensor]] = {}
        if suite == "crop":
            crops = [_cropped(*pair) for pair in zip(block.jpegs, block.places, strict=True)]
            references["uint8"] = [torch.from_numpy(crop.copy()).permute(2, 0, 1).float() for crop in crops]
        for index, who in enumerate(field):
            made = who.pixels(block)
            wished = references.setdefault(who.group, made)
            if who.compared:
                apart = [(ours - theirs).abs() for ours, theirs in zip(made, wished, strict=True)]
                means[index] += sum(float(image.mean()) for image in apart)
                maxima[index] = max(maxima[index], *(float(image.max()) for image in apart))
        advance("comparing", (done + 1) / len(blocks))
    images = sum(len(block.jpegs) for block in blocks)
    return [
        (mean / images, maximum) if who.compared else (None, None)
        for who, mean, maximum in zip(field, means.tolist(), maxima.tolist(), strict=True)
    ]


def _times(
    field: Sequence[Contestant],
    blocks: Sequence[Any],
    rounds: int,
    clock: Callable[[], float],
    advance: Callable[[str, float], None],
) -> list[float]:
    """Seconds that each contestant takes for all blocks."""
    taken: list[list[list[float]]] = [[[] for _ in blocks] for _ in field]
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            for number, block in enumerate(blocks):
                # Another one begins each round: nobody always follows the same neighbour's cold caches.
                for index in np.roll(np.arange(len(field)), turn).tolist():
                    started = clock()
                    field[index].run(block)
                    taken[index][number].append(clock() - started)
                advance("measuring", (turn + (number + 1) / len(blocks)) / rounds)
    finally:
        gc.enable()
    return [sum(map(statistics.median, blocks_taken)) for blocks_taken in taken]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """Give a function that shows what is being done and the share of it that is done."""
    from rich.console import Console
    from rich.progress import Progress

    # Refreshed between measurements only: a thread that draws would take part in them.
    hidden = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), auto_refresh=False, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=1.0)

        def advance(what: str, share: float) -> None:
            bar.update(task, description=what, completed=share, refresh=True)

        yield advance
