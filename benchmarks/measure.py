"""The benchmark: ways to decode, augment and load training images, measured on the same photographs.

Decoding and augmenting: all contestants run in this process on one thread. Rounds are interleaved over the
contestants, batch by batch, so that the load of other programs affects all of them equally. A contestant's
time is the sum, over the batches, of the median of its rounds. Loaders run in processes: see ``loader``.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import ExifTags, Image
from tarpeg.datasets.synthetic import Photos, photograph
from tarpeg.machine import usable_cores
from tarpeg.ops import decode
from tarpeg.processes import map_in_order
from tarpeg.sampling.crops import RandomCrop, RandomResizedCrop
from tarpeg.shards.pillow import as_tensor
from torch import Tensor

from .augment import AUGMENT_PEERS, augment_contestants, augment_input
from .buckets import SIZES, measure_buckets
from .decode_peers import (
    BATCH,
    CROP_PEERS,
    FFCV_MISSING,
    GROUPS,
    INTERPOLATIONS,
    KINDS,
    PEERS_MISSING,
    RESIZE_PEERS,
    SIZE,
    TORCHVISION_MISSING,
    TORCHVISIONS,
    InProcessContestant,
    Peer,
    crop_contestants,
    decode_input,
    installed,
    pillow_crop,
    resize_contestants,
    torchvision_resizes,
    views_contestants,
    views_input,
)
from .device import device_report
from .loader import LoaderRun, measure_loaders
from .loader_data import Advance, LoaderSettings, Show, size_label
from .parity import ParitySettings, measure_parity
from .patches import measure_patches
from .photos import FolderPhotos
from .recipes import measure_recipes
from .replay import measure_replays
from .report import Report, Row
from .targets import measure_targets

_CROP = 256
_ON_DEVICE, _DEVICE_IMAGES = ("crop", "resize"), 1024  # suites on a GPU, four batches of which need more
_LINE_EVERY = 10.0  # seconds between lines of progress, without a terminal
_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class _Suite(NamedTuple):
    """Defaults of size, number of photographs and rounds; the rest is for suites that run in this process.

    ours: contestants that are always installed, the first of each group before the others of it.
    """

    size: str | tuple[Any, ...]
    images: int
    rounds: int = 7
    work: str = ""
    comparison: str = ""
    ours: Callable[[], list[InProcessContestant]] = list
    peers: tuple[Peer, ...] = ()


_SUITES = {
    "crop": _Suite(
        size="article",
        images=200,
        rounds=7,
        work=f"random {_CROP}x{_CROP} crop",
        comparison="speed relative to torchvision; pixels compared with Pillow's; the bound has other pixels",
        ours=crop_contestants,
        peers=CROP_PEERS,
    ),
    "resize": _Suite(
        size="imagenet",
        images=200,
        rounds=7,
        work=f"RandomResizedCrop({SIZE}), bilinear",
        comparison="speed and pixels relative to torchvision v2",
        ours=resize_contestants,
        peers=RESIZE_PEERS,
    ),
    "views": _Suite(
        size="imagenet",
        images=200,
        rounds=7,
        work=f"2 crops to {SIZE} and 6 to 96 of each photograph, per photograph",
        comparison="speed and pixels relative to eight calls for the tiled file",
        ours=views_contestants,
    ),
    "augment": _Suite(
        size="imagenet",
        images=200,
        rounds=7,
        work=f"batches of {BATCH} at {SIZE}x{SIZE}",
        comparison=(
            "speed and pixels relative to torchvision v2; the whole chain: brightness, contrast, saturation, "
            "hue, flip, affine, erase, normalise; policies draw for themselves, so their pixels are not "
            "compared"
        ),
        ours=augment_contestants,
        peers=AUGMENT_PEERS,
    ),
    "loader": _Suite("imagenet", 2048),
    "article": _Suite("article", 2048),
    "dali": _Suite("imagenet", 2048),
    "recipes": _Suite("imagenet", 256, 3),  # torchvision's pipelines take up to a second per image
    "targets": _Suite((480, 640), 256),
    "buckets": _Suite(SIZES, 256),
    "patches": _Suite("imagenet", 256),
    "parity": _Suite("imagenet", 0),
}


def measure(
    suite: str,
    size: str | int | Sequence[int] | None = None,
    images: int | str | os.PathLike[str] | None = None,
    rounds: int | None = None,
    tile: int = 32,
    seed: int = 0,
    clock: str = "wall",
    device: str = "cpu",
    loader: Mapping[str, Any] | None = None,
    parity: Mapping[str, Any] | None = None,
    parts: int | None = None,
    interpolation: decode.Interpolation = "bilinear",
    threads: int | None = None,
) -> Report:
    """Measure `suite` on `images` synthetic photographs of `size` (see `Photos`), or on real ones.

    suite: crop, resize, views, augment, loader, article, dali, recipes, targets, buckets, patches or parity:
    see conf/bench.yaml. size: None means "article" for crop and article, 480 x 640 for targets, six sizes of
    around 0.7 megapixels for buckets, otherwise "imagenet". images: None means 200, for those that load 2048,
    for recipes, targets, buckets and patches 256; rounds: 7, for
    recipes 3. Fewer mislead. A directory of photographs: parts of them, scaled to `size` and stored like the
    synthetic ones; crop and resize without a `size` measure its JPEGs as they are. parts: number of these
    parts, by default as many as synthetic photographs, equally many of each file.
    tile: requested width of tiles in pixels. clock: "wall", or "cpu", the processor time of all threads, for
    a machine that runs other programs, too. device: "cpu", or "cuda" for the augment, crop and resize suites;
    the last two then measure 1,024 photographs, and other contestants, see ``device_peers``. threads: of each
    of these on the host, by default as many as cores may be used. loader: settings of the suites that load,
    see `LoaderSettings`. parity: see `ParitySettings`; this suite takes no `size`,
    and `images` is a directory or None, for the photographs in scikit-image and scikit-learn.
    interpolation: of the resize suite, bilinear, bicubic, lanczos or box.

    Progress and results are shown on standard error: as a bar if that is a terminal.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check_choices(suite, clock, interpolation)
    folder = None if images is None or isinstance(images, int) else os.fspath(images)
    if parts is not None and folder is None:
        raise ValueError(f"parts={parts!r} needs a directory of photographs, images=DIR")
    settings, vectors = LoaderSettings.of(loader or {}), decode.native_facts()["simd"]
    if suite == "parity":
        if isinstance(images, int) or (size, parts) != (None, None):
            raise ValueError(
                f"suite=parity cuts photographs itself: {parts=}, {size=} and {images=} must be None or DIR"
            )
        label = Path(folder).resolve().name if folder else "packages"
        with _progress() as (advance, show), _one_thread():
            report = Report(
                suite=suite, size=label, images=0, rounds=0, clock=clock, tile=tile, vectors=vectors
            )
            return measure_parity(report, folder, settings, ParitySettings.of(parity or {}), advance, show)
    given = images if folder is None else parts
    on_device = device != "cpu" and suite in _ON_DEVICE
    count: Any = given
    if given is None:
        count = _DEVICE_IMAGES if on_device else _SUITES[suite].images
    in_process = bool(_SUITES[suite].work)
    # An epoch of the loaders must fill a batch of 64; it has every photograph eight times.
    counted = "images" if folder is None else "parts"
    rounds = _SUITES[suite].rounds if rounds is None else rounds
    _check_least(suite, counted, count, 1 if in_process else 8)
    _check_least(suite, "rounds", rounds, 1)
    _check_device(suite, device, clock, interpolation, threads)
    pictures: dict[str, Any] = {"size": _SUITES[suite].size if size is None else size, "seed": seed}
    files: list[bytes] = []
    notes: tuple[str, ...] = ()
    photos = Photos(**pictures) if folder is None else FolderPhotos(**pictures, folder=folder)
    if isinstance(photos, FolderPhotos) and size is None and suite in ("crop", "resize"):
        files, notes = _whole_files(photos, _CROP if suite == "crop" else 1)
        count = len(files)
    elif isinstance(photos, FolderPhotos):
        photos = replace(photos, parts=max(1, count // len(photos.files)))
    labels = [] if folder is None else [Path(folder).resolve().name]
    if not files:
        is_one = len(photos.size) == 1
        labels.append(size_label(photos.size[0]) if is_one else f"{len(photos.size)} sizes")
    report = Report(
        suite=suite,
        size="-".join(labels),
        images=count,
        rounds=rounds,
        clock=clock,
        tile=tile,
        vectors=vectors,
    )
    with contextlib.ExitStack() as stack:
        advance, show = stack.enter_context(_progress())
        if in_process:
            stack.enter_context(_one_thread())
            if on_device:
                report = _measure_on_device(report, photos, files, device, threads, advance)
            else:
                report = _measure_in_process(report, photos, files, device, interpolation, advance)
            return replace(report, missing=(*notes, *report.missing))
        run = LoaderRun(report, photos, settings, advance, show)
        suites = {"loader": measure_loaders, "recipes": measure_recipes, "targets": measure_targets}
        suites |= {"buckets": measure_buckets, "patches": measure_patches}
        return suites.get(suite, measure_replays)(run)


def _check_choices(suite: str, clock: str, interpolation: str) -> None:
    named: dict[str, tuple[str, Collection[str]]] = {
        "suite": (suite, _SUITES),
        "clock": (clock, _CLOCKS),
        "interpolation": (interpolation, INTERPOLATIONS),
    }
    for name, (choice, choices) in named.items():
        if choice not in choices:
            raise ValueError(f"{name}={choice!r} must be one of {', '.join(choices)}")
    if suite != "resize" and interpolation != "bilinear":
        raise ValueError(f"interpolation={interpolation!r} needs suite=resize, got suite={suite}")


def _check_device(
    suite: str, device: str, clock: str, interpolation: decode.Interpolation, threads: int | None
) -> None:
    if device == "cpu":
        if threads is not None:
            raise ValueError(f"threads={threads!r} needs device=cuda and suite=crop or resize")
        return
    if device != "cuda" or suite not in ("augment", *_ON_DEVICE) or not torch.cuda.is_available():
        raise ValueError(
            f"device={device!r} must be 'cpu', or 'cuda' for suite=augment, crop or resize if there is a GPU"
        )
    if suite in _ON_DEVICE and (clock, interpolation) != ("wall", "bilinear"):
        raise ValueError(f"{device=} needs clock='wall' and interpolation='bilinear' for {suite=}")
    if threads is not None:
        _check_least(suite, "threads", threads, 1)


def _check_least(suite: str, name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} must be an integer of at least {least} for suite={suite}")


def _whole_files(photos: FolderPhotos, side: int) -> tuple[list[bytes], tuple[str, ...]]:
    """Return the JPEGs of the directory that all contestants decode alike, and a note on each other kind.

    side: least height and width in pixels.
    """
    found, others = [], Counter[str]()
    for path in photos.files:
        if path.suffix.lower() in (".jpg", ".jpeg"):
            jpeg = path.read_bytes()
            tensor = as_tensor(jpeg or b"?")
            size = decode.image_sizes([tensor])
            box = torch.cat((torch.zeros_like(size), size), 1)
            if int(size.min()) < side:
                others[f"with less than {side} pixels on a side, or damaged"] += 1
            elif decode.decode_batch([tensor], box, 8)[1].any():
                others["that do not decode without a warning"] += 1
            elif unequal := _unequal(jpeg):
                others[unequal] += 1
            else:
                found.append(jpeg)
    notes = tuple(f"left out: {count} JPEGs {kind}" for kind, count in others.items())
    if not found:
        raise ValueError(
            f"images={photos.folder!r} has no JPEG of at least {side}x{side} pixels that decodes alike in "
            f"all libraries ({'; '.join(notes) or 'no JPEG'}). With a size, such as size=imagenet, parts of "
            "the photographs are measured"
        )
    return found, notes


def _unequal(jpeg: bytes) -> str:
    """Return why other decoders give another image than Pillow, "" if they do not."""
    with Image.open(io.BytesIO(jpeg)) as image:
        if image.getexif().get(ExifTags.Base.Orientation, 1) not in (0, 1):
            return "that EXIF rotates or mirrors, which other decoders ignore"
        return "of four colours (CMYK), which other decoders do not convert" * (image.mode == "CMYK")


def _measure_in_process(
    report: Report,
    photos: Photos,
    files: Sequence[bytes],
    device: str,
    interpolation: decode.Interpolation,
    advance: Advance,
) -> Report:
    suite, images = _suite_of(report.suite, interpolation), report.images
    batches: list[Any] = []
    jpegs, crop = _drawn(report, photos, files, advance)
    is_augment = report.suite == "augment"
    for start in range(0, images, BATCH):
        part, seed = jpegs[start : start + BATCH], photos.seed + start
        if is_augment:
            batches.append(augment_input(part, seed, device))
        elif report.suite == "views":
            batches.append(views_input(part, report.tile, seed))
        else:
            batches.append(decode_input(part, crop, report.tile, seed, stores_crops=report.suite == "crop"))
        advance("tiling", min(1.0, (start + BATCH) / images))
    others, missing = installed(suite.peers)
    if interpolation != "bilinear":
        missing += (PEERS_MISSING,)
        if not torchvision_resizes(interpolation):
            missing += (TORCHVISION_MISSING.format(interpolation),)
    contestants = [*suite.ours(), *others]
    order = [who.group for who in contestants]
    # A stable sort: the first of a group stays first.
    contestants.sort(key=lambda who: order.index(who.group))
    differences = _differences(contestants, batches, report.suite, advance)
    seconds = _times(contestants, batches, report.rounds, _CLOCKS[report.clock], advance)
    references: dict[str, float] = {}
    rows = []
    for who, spent, difference in zip(contestants, seconds, differences, strict=True):
        ratio = references.setdefault(who.group, spent) / spent
        rows.append(Row(who.group, who.name, ratio, *difference, microseconds=1e6 * spent / images))
    report = replace(report, work=suite.work, rows=tuple(rows), comparison=suite.comparison, missing=missing)
    if is_augment:
        return replace(report, work=f"{suite.work} on the {device}")
    stored = {kind: [jpeg for batch in batches for jpeg in batch.kinds[kind]] for kind in KINDS[1:]}
    figures = (_file_sizes(jpegs, stored, report.tile),)
    if interpolation != "bilinear":  # of the file names, too
        report = replace(report, suite=f"{report.suite}-{interpolation}")
    if suite.peers:
        missing += (FFCV_MISSING,)
    return replace(report, groups=GROUPS, figures=figures, missing=missing)


def _drawn(
    report: Report, photos: Photos, files: Sequence[bytes], advance: Advance
) -> tuple[list[bytes], RandomCrop | RandomResizedCrop]:
    """Return the photographs, which are `files` if there are any, and the crop of the suite."""
    jpegs: list[bytes] = []
    for jpeg in files or _photographs(photos, report.images):
        jpegs.append(jpeg)
        advance("drawing", len(jpegs) / report.images)
    return jpegs, RandomCrop(_CROP) if report.suite == "crop" else RandomResizedCrop(SIZE)


def _measure_on_device(
    report: Report,
    photos: Photos,
    files: Sequence[bytes],
    device: str,
    threads: int | None,
    advance: Advance,
) -> Report:
    jpegs, crop = _drawn(report, photos, files, advance)
    report = replace(report, work=_SUITES[report.suite].work)
    count = threads or usable_cores()
    return device_report(report, jpegs, crop, photos.seed, torch.device(device, 0), count, advance)


def _suite_of(name: str, interpolation: decode.Interpolation) -> _Suite:
    if interpolation == "bilinear":
        return _SUITES[name]
    against = "torchvision v2" if interpolation in TORCHVISIONS else "Pillow"
    return _SUITES[name]._replace(
        work=f"RandomResizedCrop({SIZE}), {interpolation}",
        comparison=f"speed and pixels relative to {against}",
        ours=partial(resize_contestants, interpolation),
        peers=(),
    )


def _photographs(photos: Photos, count: int) -> Iterator[bytes]:
    """JPEGs of the photographs, drawn in processes if there are enough to outweigh their start."""
    workers, draw = min(usable_cores(), count // 64), partial(photograph, photos)
    drawn = map_in_order(draw, range(count), workers) if workers > 1 else map(draw, range(count))
    return (one.jpeg for one in drawn)


def _file_sizes(jpegs: Sequence[bytes], stored: Mapping[str, Sequence[Tensor]], tile: int) -> str:
    before = sum(map(len, jpegs))
    pixels = sum(int(height * width) for height, width in decode.image_sizes([*map(as_tensor, jpegs)]))
    after = (f"{kind} {sum(map(len, files)) / before:.3f}" for kind, files in stored.items())
    return (
        f"files: {8 * before / pixels:.2f} bits per pixel; times the bytes, tile={tile}: {', '.join(after)}"
    )


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
                per_image = len(batch.jpegs) / len(apart)  # 1 / 8 in the views suite
                means[index] += per_image * sum(float(image.mean()) for image in apart)
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
    spent = np.zeros((rounds, len(batches), len(contestants)))
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for done, batch in enumerate(batches):
                # Each round begins with another contestant, so that none always follows the same one.
                for index in np.roll(np.arange(len(contestants)), number).tolist():
                    started = clock()
                    contestants[index].run(batch)
                    spent[number, done, index] = clock() - started
                advance("measuring", (number + (done + 1) / len(batches)) / rounds)
    finally:
        gc.enable()
    seconds: list[float] = np.median(spent, axis=0).sum(axis=0).tolist()
    return seconds


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _progress() -> Iterator[tuple[Advance, Show]]:
    """Progress bar on standard error; lines now and then if that is not a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console, is_terminal, shown = Console(stderr=True, highlight=False), sys.stderr.isatty(), time.monotonic()
    # Refreshed only between measurements: a thread that refreshes it would disturb them.
    with Progress(console=console, auto_refresh=False, transient=True, disable=not is_terminal) as bar:
        task = bar.add_task("", total=1.0)

        def advance(what: str, share: float) -> None:
            nonlocal shown
            bar.update(task, description=what, completed=share, refresh=True)
            if not is_terminal and (now := time.monotonic()) - shown >= _LINE_EVERY:
                shown = now
                show(f"{what}, {share:.0%}")

        def show(text: str) -> None:
            console.print(text, markup=False, soft_wrap=True)

        yield advance, show
