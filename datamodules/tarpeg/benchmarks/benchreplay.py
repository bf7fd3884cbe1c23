"""The article and dali suites: known pipelines, from shards to normalised batches, by everybody's way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..synth import Photos
from ..workers import Processes
from . import replayhost
from .benchloader import Compare, LoaderSettings, label_of, take_turns
from .loaderdata import Advance, LoaderData
from .loaderhost import Contestant
from .loaderreport import LoaderReport, LoaderRow
from .replayhost import Replayed
from .replayjobs import CROP, JOBS

_WORK = {
    "article": "the article's step, shards -> random 256x256 crop, YCbCr, scaled, masked -> batches of 64",
    "dali": "DALI's three pipelines, shards -> 224x224, normalised -> batches of 64",
}


def measure(
    suite: str,
    photos: Photos,
    images: int,
    rounds: int,
    tile: int,
    clock: str,
    settings: LoaderSettings,
    advance: Advance,
) -> LoaderReport:
    """Measure everybody who is installed; see ``bench.measure``."""
    if suite == "article" and not all(map(_is_large, photos.size)):
        raise ValueError(
            f"size: suite=article crops {CROP}x{CROP}: expected article, big, or sides of at least {CROP}, "
            f"got {label_of(photos)}"
        )
    data = LoaderData(Path(settings.data).absolute(), photos, images, tile)
    data.make(("ordinary", "tiled"), advance)
    busy = [os.getloadavg()[0]]
    rows: list[LoaderRow] = []
    missing: list[str] = []
    for group in JOBS[suite]:
        field, absent = _field(suite, group, data, settings)
        made, failed = take_turns(field, rounds, clock, settings, advance, _compared(suite, group, data))
        rows += made
        missing += [*absent, *failed]
    busy.append(os.getloadavg()[0])
    return LoaderReport(
        suite,
        _WORK[suite],
        {group: f"{group}: {job.makes}" for group, job in JOBS[suite].items()},
        label_of(photos),
        images,
        rounds,
        clock,
        settings.workers,
        tuple(rows),
        tuple(_gains(rows)),
        tuple(dict.fromkeys(missing)),
        (busy[0], busy[1]),
    )


def _is_large(size: str | tuple[int, int]) -> bool:
    return size in ("article", "big") if isinstance(size, str) else min(size) >= CROP


def _gains(rows: list[LoaderRow]) -> Iterator[tuple[str, str]]:
    """Tell what the article's technique gains by itself, which in its whole step made 1.5 times."""
    for row in rows:
        if row.name == replayhost.SKIPPING:
            yield "the article's own technique, crop and skip, gains", f"{row.ratio:.2f}x"


def _field(
    suite: str, group: str, data: LoaderData, settings: LoaderSettings
) -> tuple[list[Replayed], list[str]]:
    found, missing = [], []
    for number, name in enumerate(replayhost.names(suite, group)):
        if number and not settings.names(name):
            continue
        who = Replayed(name, group, data, settings.workers, suite)
        absent = replayhost.absent(who)
        if absent is None:
            found.append(who)
        else:
            missing.append(absent)
    return found, missing


def _compared(suite: str, group: str, data: LoaderData) -> Compare:
    """Have everybody make the same batch, and compare it with what the first of them makes."""
    job = JOBS[suite][group]
    numbers = replayhost.numbers(suite, group, data)
    reference = None

    def compare(who: Contestant, child: Processes) -> tuple[float, float]:
        nonlocal reference
        images = child.submit(replayhost.made, who, numbers).result()
        reference = images if reference is None else reference
        return job.apart(images, reference)

    return compare
