"""The crop and resize suites on a device: from bytes on the host to pixels on a GPU.

Each contestant is measured with a wait for the device after each batch, and with batches in flight: the
device is waited for at the end only, so that host and device work at the same time. Rounds are interleaved
over the contestants; a time is the median of the rounds, by wall clock.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from tarpeg.sampling.crops import RandomCrop, RandomResizedCrop
from torch import Tensor

from .decode_peers import DecodeInput, decode_input
from .device_peers import BATCH, DEVICE_PEERS, DeviceContestant, DeviceSetting, device_contestants
from .loader_data import Advance
from .report import INSTALL_ERRORS, Report, Row, left_out

AWAITED, IN_FLIGHT, PARTS = "each batch awaited", "batches in flight", "parts, in flight"
COMPARISON = (
    "speed relative to torchvision on as many cores of the CPU, whose batches are copied to the GPU; pixels "
    "compared with its; nothing is normalised; nvJPEG of torchvision and TorchCodec is called by one thread"
)


_LEAST_IN_FLIGHT = 8  # batches of a measurement: the first is made before anything can overlap


class _Time(NamedTuple):
    """Seconds per image."""

    wall: float
    processor: float


def device_report(
    report: Report,
    jpegs: Sequence[bytes],
    crop: RandomCrop | RandomResizedCrop,
    seed: int,
    device: torch.device,
    threads: int,
    advance: Advance,
) -> Report:
    """Measure all contestants of a suite on a device, and add their rows to the report.

    crop: a RandomCrop is not resized. threads: of each contestant, on the host.
    """
    inputs = []
    for start in range(0, len(jpegs), BATCH):
        part = list(jpegs[start : start + BATCH])
        inputs.append(decode_input(part, crop, report.tile, seed + start, stores_crops=False))
        advance("tiling", min(1.0, (start + BATCH) / len(jpegs)))
    setting = DeviceSetting(device, threads, crop.size[0], isinstance(crop, RandomResizedCrop))
    contestants, missing = device_contestants(setting), []
    own = len(contestants)
    for packages, make in DEVICE_PEERS:
        try:
            made = make(setting)
            for who in made:
                _try(who, inputs[0])
        except INSTALL_ERRORS as error:
            missing.append(left_out(error, packages))
        else:
            contestants += made
    batches = [[who.prepare(one) for one in inputs] for who in contestants]
    differences = _differences(contestants, batches, advance)
    times = _times(contestants, batches, report.rounds, len(jpegs), setting, advance)
    rows, figures = [], []
    for group, found in times.items():
        reference = times[AWAITED if group == AWAITED else IN_FLIGHT][0]
        for index, spent in found.items():
            rows.append(_row(group, contestants[index].name, reference, spent, differences[index]))
        peers = [index for index in found if index >= own and contestants[index].compared]
        if peers:
            best = min(peers, key=lambda index: found[index].wall)
            figures.append(_against(group, contestants, found, best))
    return replace(
        report,
        suite=f"{report.suite}-{device.type}",
        rows=tuple(rows),
        comparison=COMPARISON,
        figures=tuple(figures),
        missing=tuple(missing),
        workers=threads,
        device=torch.cuda.get_device_name(device) if setting.is_cuda else "the CPU",
        batch=BATCH,
    )


def _try(who: DeviceContestant, inputs: DecodeInput) -> None:
    """Make a batch in both ways: a peer that cannot do it here is left out."""
    prepared = who.prepare(inputs)
    who.make(prepared)
    deque(who.all_of([prepared]), maxlen=0)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _row(
    group: str, name: str, reference: _Time, spent: _Time, difference: tuple[float | None, float | None]
) -> Row:
    return Row(
        group,
        name,
        reference.wall / spent.wall,
        *difference,
        microseconds=1e6 * spent.wall,
        images_per_second=1 / spent.wall,
        processor=1e6 * spent.processor,
    )


def _against(group: str, contestants: Sequence[DeviceContestant], found: dict[int, _Time], best: int) -> str:
    """Return a line with the speeds of tarpeg's rows, relative to that of the best peer."""
    ratios = (
        f"{contestants[index].name} {found[best].wall / spent.wall:.1f}"
        for index, spent in found.items()
        if contestants[index].name.startswith("tarpeg")
    )
    return f"{group}, times the best peer that decodes there, {contestants[best].name}: {'; '.join(ratios)}"


def _differences(
    contestants: Sequence[DeviceContestant], batches: Sequence[Sequence[Any]], advance: Advance
) -> list[tuple[float | None, float | None]]:
    """Mean and largest difference from the first contestant's pixels; this is also the warm-up."""
    found: list[tuple[float | None, float | None]] = []
    expected: list[Tensor] = []
    for done, (who, inputs) in enumerate(zip(contestants, batches, strict=True)):
        means, maximum, images = [], 0.0, 0
        for number, one in enumerate(inputs):
            if not who.compared:
                who.make(one)
                continue
            pixels = who.pixels(one).short()
            if not done:  # the CPU as the device: memory that is used again
                expected.append(pixels.clone())
            apart = (pixels - expected[number]).abs()
            means.append(float(apart.float().mean()) * len(apart))
            maximum, images = max(maximum, float(apart.max())), images + len(apart)
        found.append((sum(means) / images, maximum) if who.compared else (None, None))
        advance("comparing", (done + 1) / len(contestants))
    return found


def _times(
    contestants: Sequence[DeviceContestant],
    batches: Sequence[Sequence[Any]],
    rounds: int,
    images: int,
    setting: DeviceSetting,
    advance: Advance,
) -> dict[str, dict[int, _Time]]:
    """Medians of the rounds, by group and number of the contestant, for batches of so many images."""
    passes = -(-_LEAST_IN_FLIGHT // len(batches[0]))

    def wait() -> None:
        if setting.is_cuda:
            torch.cuda.synchronize(setting.device)

    def awaited(who: DeviceContestant, inputs: Sequence[Any]) -> None:
        for one in inputs:
            who.make(one)
            wait()

    def in_flight(who: DeviceContestant, inputs: Sequence[Any]) -> None:
        deque(who.all_of([*inputs] * passes), maxlen=0)
        wait()

    whole = [index for index, who in enumerate(contestants) if not who.is_part]
    parts = [index for index, who in enumerate(contestants) if who.is_part]
    tasks = [(AWAITED, awaited, index) for index in whole]
    tasks += [(IN_FLIGHT, in_flight, index) for index in whole]
    tasks += [(PARTS, in_flight, index) for index in parts]
    spent = np.zeros((rounds, len(tasks), 2))
    for _, measured, index in tasks:  # pipelines that are built at their first use
        measured(contestants[index], batches[index])
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            # Each round begins with another contestant, so that none always follows the same one.
            order = np.roll(np.arange(len(tasks)), number).tolist()
            for done, place in enumerate(order):
                _, measured, index = tasks[place]
                wait()
                started = time.perf_counter(), time.process_time()
                measured(contestants[index], batches[index])
                ended = time.perf_counter(), time.process_time()
                spent[number, place] = np.subtract(ended, started)
                advance("measuring", (number + (done + 1) / len(tasks)) / rounds)
    finally:
        gc.enable()
    times: dict[str, dict[int, _Time]] = {}
    for (group, _, index), (wall, processor) in zip(tasks, np.median(spent, axis=0).tolist(), strict=True):
        made = images if group == AWAITED else images * passes
        times.setdefault(group, {})[index] = _Time(wall / made, processor / made)
    return times
