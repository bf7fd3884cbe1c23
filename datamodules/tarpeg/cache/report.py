"""Text for people: the progress of a build, summaries of its result, and the measured speedup of decoding."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from ..errors import DecodeError, ShardError
from ..progress import progress
from ..remedies import Call, Message, Setting
from ..shards import pillow
from ..shards.classes import BACKGROUND
from ..shards.manifest import read_manifest
from ..shards.mapped import Shards
from ..shards.paths import Paths, expand
from ..shards.walk import left_out_line
from .build import CacheReport, Progress
from .codecs import KEPT, RAW
from .job import NO_LABEL
from .verify import VerifyReport

_CROP = 256
_MOST_SHOWN = 20  # broken targets


class Speedup(NamedTuple):
    """Microseconds per random crop in the source and in the cache: medians of rounds, one thread."""

    images: int
    before: float
    after: float


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """Yield a callback for ``build_cache`` that shows shards, images/s and MB/s."""
    with progress("shards") as show:
        started, kept = time.monotonic(), (0, 0)

        def update(now: Progress) -> None:
            nonlocal kept
            if now.shards == now.kept:  # nothing was written yet: shards from before do not count as speed
                kept = (now.samples, now.bytes)
            seconds = max(time.monotonic() - started, 1e-3)
            images, megabytes = (now.samples - kept[0]) / seconds, (now.bytes - kept[1]) / 1e6 / seconds
            show(now.shards, f"{images:.0f} images/s, {megabytes:.1f} MB/s", now.shards_total)

        yield update


def summarise_build(report: CacheReport, measure: bool = False) -> list[str]:
    """Describe the contents of a cache in a few lines.

    Args:
        report: Result of the build.
        measure: Also measure how much faster it decodes than its source.
    """
    share = report.bytes / max(report.source_bytes, 1)
    images = max(sum(report.tiles.values()) + sum(report.untiled.values()), 1)  # a sample may have several
    lines = [
        f"{report.dest}: {report.samples} samples in {_plural(report.shards, 'shard')}, "
        f"{report.built} of them written now, in {report.seconds:.1f} s",
        f"size: {report.source_bytes / 1e6:.1f} MB before, {report.bytes / 1e6:.1f} MB after ({share:.3f})",
    ]
    if report.classes:
        enough = Setting("network", "num_classes", len(report.classes))
        if report.classes[0] == BACKGROUND:
            enough = Setting("detector", "classes", len(report.classes))
        names = f"{report.classes[0]!r} to {report.classes[-1]!r}"
        lines.append(Message(f"{len(report.classes)} classes, {names}: ", enough))
    if report.converted:
        quality = getattr(report.example and report.example.codec, "quality", None)
        formats = ", ".join(f"{count} {name}" for name, count in report.converted.items())
        part = ", in the shards written now" * (report.built < report.shards)
        lines.append(f"encoded as JPEG{f', quality {quality}' * (quality is not None)}: {formats}{part}")
    widths = sorted(report.tiles, key=lambda width: -report.tiles[width])
    most = 9 if len(widths) == 9 else 8  # the last entry is a range of at least two
    shown = [f"{width} px: {report.tiles[width] / images:.1%}" for width in widths[:most]]
    if others := widths[most:]:
        share_of_others = sum(report.tiles[width] for width in others) / images
        shown.append(f"{min(others)} to {max(others)} px: {share_of_others:.1%}")
    if report.codec == "Packed":
        lines.append(f"packed: {_counted(sum(report.tiles.values()), images)}")
    if shown:
        lines.append(f"images by width of tile: {', '.join(shown)}")
    kept = "not packed" if report.codec == "Packed" else "not tiled"
    for reason, count in report.untiled.items():
        counted = _counted(count, images)
        plain = {RAW: "stored as pixels", KEPT: KEPT}.get(reason)
        line = Message(f"{plain}: {counted}" if plain else f"{kept}: {counted}, {reason}")
        if reason == RAW and report.codec in ("Tiled", "Packed"):
            given = {"source": ..., "dest": ..., "codec": Call(f"tarpeg.{report.codec}", {"quality": 95})}
            smaller = Call("tarpeg.build_cache", given)
            line = Message(f"{line}, which were not JPEG; smaller, with a loss: ", smaller)
        lines.append(line)
    lines += left_out_lines(report)
    if not report.is_split:
        no_val = Setting("ShardDataModule", "val", None)
        missing = "not split: the folder has no directories train and val; train with "
        lines.append(Message(missing, no_val, ", or make these"))
    speedup = measure_speedup(report) if measure else None
    if speedup is not None:
        count, before, after = speedup
        lines.append(
            f"a random {_CROP} x {_CROP} crop: {before:.0f} us before, {after:.0f} us after, "
            f"{before / after:.1f} times as fast ({count} images, one thread)"
        )
    return lines


def summarise_shards(shards: Paths) -> list[str]:
    """Return a line about each cache that local shards are of, or the reason why they cannot be read."""
    try:
        folders = {path.parent: None for path in expand(shards)}
        manifests = {folder: read_manifest(folder) for folder in folders}
    except ShardError as error:
        return [str(error)]
    lines = []
    for folder, manifest in manifests.items():
        if manifest is not None:
            kind = "packed" if manifest.codec["name"] == "Packed" else "tiled"
            tiled, untiled = sum(manifest.tiles.values()), sum(manifest.untiled.values())
            counted = _counted(tiled, max(tiled + untiled, 1))
            size = f"{manifest.samples} samples, {manifest.bytes / 1e6:.1f} MB"
            lines.append(f"cache {folder}: codec {manifest.codec['name']}, {size}; {kind}: {counted}")
    return lines


def _counted(count: int, images: int) -> str:
    return f"{_plural(count, 'image')} ({count / images:.1%})"


def _plural(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"


def left_out_lines(report: CacheReport) -> list[str]:
    """Return lines about undecodable samples, findings, and files that a folder's classes do not contain."""
    lines = []
    if report.quarantine:
        first = report.quarantine[0]
        lines.append(
            f"left out: {_plural(len(report.quarantine), 'sample')}, listed in manifest.json, such as key "
            f"{first.key!r} of {first.shard}: {first.reason}"
        )
    for kind, (count, shard, key, content) in report.findings.items():
        if kind == NO_LABEL and count == report.samples:
            way = "target= or targets=, or predict with target=None"
            if report.classes and report.classes[0] == BACKGROUND:
                way = 'targets=, such as Boxes("json:objects")'
            lines.append(f"no sample has a label (a member cls): train with {way}")
        else:
            where = f"the first is key {key!r} of {shard}{f': {content}' if content else ''}"
            lines.append(f"{kind}: {count} of {report.samples}, {where}")
    return [*lines, *filter(None, [left_out_line(report.left_out)])]


def summarise_check(report: VerifyReport) -> list[str]:
    """Return a few lines about a verified cache, with every problem."""
    totals = f"{report.samples} samples, {report.bytes / 1e6:.1f} MB, {report.seconds:.1f} s"
    bad = f"{len(report.bad_shards)} BAD" if report.problems else "all good"
    lines = [str(problem) for problem in report.problems]
    if report.broken_targets:
        shown = [f"  {each}" for each in report.broken_targets[:_MOST_SHOWN]]
        count = len(report.broken_targets)
        lines += [f"targets that are broken, which training replaces with their image: {count}", *shown]
    if report.undecodable:
        kept = _plural(len(report.undecodable), "image")
        first = report.undecodable[0]
        lines.append(f"cannot be decoded, kept as in the source: {kept}, the first is {first}")
    if report.extra:
        lines.append(f"also in the folder, not part of the cache: {', '.join(report.extra)}")
    names = ", ".join(report.bad_shards)
    remedy = f"; delete {names} in the folder, then run the build again" * (not report.is_good)
    return [*lines, f"{report.dest}: {_plural(report.shards, 'shard')}, {bad} ({totals}){remedy}"]


def measure_speedup(report: CacheReport, images: int = 64, rounds: int = 7) -> Speedup | None:
    """Decode a random crop of the same images of source and cache, interleaved; None without such images."""
    if report.example is None or not (path := report.dest / f"{report.example.name}.tar").is_file():
        return None
    shards = Shards([path], several=True)
    keys = shards.keys(range(len(shards)))
    ids = {key: id for id, key in reversed([*enumerate(keys)])}
    before, after = [], []
    for sample in islice(report.example.source.read(), images):
        image = pillow.first_image(sample.members)
        if image is None or sample.key not in ids:
            continue
        stored = shards.images([ids[sample.key]])[0].clone()
        try:
            given = pillow.as_tensor(sample.members[image])
            _seconds([given, stored], [(0.0, 0.0)] * 2)
        except (ValueError, DecodeError):  # codec Original keeps what cannot be decoded
            continue
        before.append(given)
        after.append(stored)
    if not before:
        return None
    draw = random.Random(0)
    places = [(draw.random(), draw.random()) for _ in before]
    times = [(_seconds(before, places), _seconds(after, places)) for _ in range(rounds + 1)][1:]
    medians = [statistics.median(column) * 1e6 / len(places) for column in zip(*times, strict=True)]
    return Speedup(len(places), medians[0], medians[1])


def _seconds(files: Sequence[Tensor], places: Sequence[tuple[float, float]]) -> float:
    """Decode one crop of each file and return the processor time in seconds.

    Args:
        files: The encoded images.
        places: (down, across) of each crop, 0 to 1, as a fraction of the free height and width.
    """
    from ..ops import decode

    started = time.thread_time()
    for file, (down, across) in zip(files, places, strict=True):
        height, width = decode.image_sizes([file])[0].tolist()
        if not height:  # not a JPEG: converted, as a loader does; the builder has decoded it
            file = pillow.as_tensor(pillow.ppm(pillow.open_rgb(file.numpy().tobytes())))
            height, width = decode.image_sizes([file])[0].tolist()
        side = min(_CROP, height, width)
        decode.decode_crop(file, int(down * (height - side)), int(across * (width - side)), side, side)
    return time.thread_time() - started
