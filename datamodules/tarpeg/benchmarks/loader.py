"""The loader suite: images per second from shards to batches, each contestant in a process of its own.

The first half runs in this process. The second half runs in the only child of ``ProcessExecutor(1)``, where
what was opened stays open from call to call.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..datasets.synthetic import Photos
from ..errors import ShardError
from ..loader.config import LoaderConfig, PixelFormat
from ..loader.loader import Loader
from ..loader.split import Split
from ..ops import decode
from ..processes import ProcessExecutor
from ..sampling.crops import RandomResizedCrop
from ..shards.mapped import Shards
from .decode_peers import BATCH, GROUPS, MEAN, SIZE, STD
from .loader_data import Advance, LoaderData, LoaderSettings, size_label
from .loader_peers import PEERS, absent, as_value_error
from .report import Contestant, Report, Row

ENGINES = ("threads", "workers")
_KINDS = ("ordinary", "tiled", "raw")
_BOUND = "bound: the operator alone, "  # first part of these contestants' names

_TICKS = os.sysconf("SC_CLK_TCK")
_WARM_UP = 8  # batches that may have been prefetched before a measurement


class Timing(NamedTuple):
    """One measurement: images made, seconds, and processor seconds of all processes."""

    images: int
    seconds: float
    processor: float

    def rate(self, clock: str, workers: int) -> float:
        """Images per second of the clock, "wall" or "cpu"."""
        return self.images / (self.seconds if clock == "wall" else self.processor / workers)


@dataclass(frozen=True)
class LoaderContestant(Contestant):
    """A loader with the photographs and the number of processes or threads that it may use."""

    data: LoaderData
    workers: int

    def batches(self) -> Iterator[Any]:
        """Endless batches; ValueError if they cannot be made here."""
        if self.name in PEERS:
            with as_value_error():
                return PEERS[self.name].make(self.data, self.group, self.workers)
        loader = self.loader(self.data.shards(self.kind))
        return (batch for _ in iter(int, 1) for batch in loader)

    def expects(self, images: Tensor) -> bool:
        """Whether images have the shape and dtype of this suite."""
        shapes = {(BATCH, 3, SIZE, SIZE), (BATCH, SIZE, SIZE, 3)}
        return tuple(images.shape) in shapes and images.dtype == getattr(torch, self.group)

    @property
    def kind(self) -> str:
        """Kind of shards that this library's contestant reads."""
        return next(kind for kind in _KINDS if kind in self.name)

    @property
    def engine(self) -> tuple[int, int]:
        """Workers and threads of this library's contestant."""
        return (0, self.workers) if self.name.endswith("threads") else (self.workers, 0)

    def split(self, shards: list[Path]) -> Split:
        """Split that this library's contestant reads."""
        return Split(shards, RandomResizedCrop(SIZE), flip=0.5 * (self.group == "float32"))

    def loader(self, shards: list[Path]) -> Loader:
        """Loader of this library's contestant."""
        split, (workers, threads) = self.split(shards), self.engine
        pixels = PixelFormat(MEAN, STD, torch.float32) if self.group == "float32" else PixelFormat()
        config = LoaderConfig(BATCH, workers=workers, threads=threads, pixels=pixels)
        return Loader(split.open(), split, config, shuffle=True, keys=False, rank=0, world=1)


Compare = Callable[[Any, ProcessExecutor], tuple[float, float]]
"""Mean and largest difference of an opened contestant's pixels from the reference."""


@dataclass(frozen=True)
class LoaderRun:
    """Settings of one run of the loader, article or dali suite."""

    photos: Photos
    images: int
    rounds: int
    tile: int
    clock: str
    settings: LoaderSettings
    advance: Advance

    @property
    def data(self) -> LoaderData:
        """Photographs of this run."""
        return LoaderData(Path(self.settings.data).absolute(), self.photos, self.images, self.tile)

    def measure(
        self, contestants: Sequence[LoaderContestant], compare: Compare | None = None
    ) -> tuple[list[Row], list[str]]:
        """Open the contestants of a group, the reference first, and measure them in interleaved rounds.

        Returns rows, and a note for each contestant that cannot be opened.
        """
        timings: dict[LoaderContestant, list[Timing]] = {}
        opened: dict[LoaderContestant, tuple[float, float | None, float | None]] = {}
        missing, seconds = [], self.settings.seconds
        with contextlib.ExitStack() as stack:
            children = {}
            for done, who in enumerate(contestants):
                self.advance(f"opening {who.name}, {who.group}", done / len(contestants))
                child = stack.enter_context(ProcessExecutor(1))
                try:
                    child.submit(open_contestant, who).result()
                    first = child.submit(time_first_batch, who).result()
                    opened[who] = (first, *((None, None) if compare is None else compare(who, child)))
                except (ShardError, ValueError) as error:
                    missing.append(f"left out: {who.name}, {who.group}: {error}")
                    continue
                children[who], timings[who] = child, []
                child.submit(time_round, seconds).result()
            for number in range(self.rounds):
                # Each round begins with another contestant, so that none always follows the same one.
                order = list(children)[number % len(children) :] + list(children)[: number % len(children)]
                for done, who in enumerate(order):
                    self.advance(f"measuring {who.group}", (number + done / len(order)) / self.rounds)
                    timings[who].append(children[who].submit(time_round, seconds).result())
        if not timings:
            return [], missing
        rows = []
        reference = [
            timing.rate(self.clock, self.settings.workers) for timing in next(iter(timings.values()))
        ]
        for who, (first, mean, maximum) in opened.items():
            rates = [timing.rate(self.clock, who.workers) for timing in timings[who]]
            processor = statistics.median(1e6 * timing.processor / timing.images for timing in timings[who])
            ratio, rate = _median_ratio(rates, reference), statistics.median(rates)
            measured = {"images_per_second": rate, "processor": processor, "first": first}
            rows.append(Row(who.group, who.name, ratio, mean, maximum, **measured, rates=tuple(rates)))
        return rows, missing

    def report(
        self, suite: str, rows: Sequence[Row], missing: Sequence[str], load: float, **fields: Any
    ) -> Report:
        """Report of this run; load: the load average before it. ValueError if nothing was measured."""
        if not rows:
            raise ValueError(f"suite={suite}: no contestant can be measured: {'; '.join(missing)}")
        return Report(
            suite=suite,
            size=size_label(self.photos),
            images=self.images,
            rounds=self.rounds,
            clock=self.clock,
            tile=self.tile,
            rows=tuple(rows),
            comparison=f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after; "
            "speed: median over rounds, relative to the first of the group",
            missing=tuple(dict.fromkeys(missing)),
            workers=self.settings.workers,
            **fields,
        )


def _median_ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    # Round by round: the load of other programs changes more slowly than that.
    return statistics.median(rate / other for rate, other in zip(rates, others, strict=True))


def measure_loaders(run: LoaderRun) -> Report:
    """Measure every loader that is installed."""
    run.data.make(("ordinary", "tiled", "raw"), run.advance)
    load = os.getloadavg()[0]
    contestants, missing = _contestants(run)
    rows: list[Row] = []
    for group in GROUPS:
        measured, failed = run.measure([who for who in contestants if who.group == group])
        rows += measured
        missing += failed
    figures = "; ".join(f"{name}: {value}" for name, value in (*_efficiencies(rows), *_first_and_memory(run)))
    work = f"shards -> RandomResizedCrop({SIZE}) -> batches of {BATCH}"
    about = {"work": work, "groups": GROUPS, "figures": (figures,) if figures else ()}
    return run.report("loader", rows, missing, load, **about)


def _contestants(run: LoaderRun) -> tuple[list[LoaderContestant], list[str]]:
    ours = [f"tarpeg, {kind}, {engine}" for kind in _KINDS for engine in ENGINES]
    names = [*PEERS, *ours, *(f"{_BOUND}{kind}" for kind in _KINDS[1:])]
    notes = {name: absent(name) for name in run.settings.selected(names)}
    found = [
        LoaderContestant(name, group, run.data, run.settings.workers)
        for name, note in notes.items()
        if note is None
        for group in GROUPS
    ]
    return found, [note for note in notes.values() if note is not None]


def _efficiencies(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """Rates of our loaders relative to the operator alone, round by round."""
    by_name = {(row.group, row.name): row for row in rows}
    for (group, name), bound in by_name.items():
        if name.startswith(_BOUND):
            kind = name.removeprefix(_BOUND)
            for engine in ENGINES:
                row = by_name.get((group, f"tarpeg, {kind}, {engine}"))
                if row is not None:
                    share = _median_ratio(row.rates, bound.rates)
                    yield f"efficiency, {kind}, {group}, {engine}", f"{100 * share:.0f}%"


def _first_and_memory(run: LoaderRun) -> Iterator[tuple[str, str]]:
    """Time to the first batch of a data module, and memory over epochs, of our loaders."""
    epochs = run.settings.epochs
    for engine in ENGINES:
        who = LoaderContestant(f"tarpeg, tiled, {engine}", "uint8", run.data, run.settings.workers)
        if not run.settings.selects(who.name):
            continue
        seconds = []
        for number in range(run.rounds):
            run.advance(f"first batch, {engine}", number / run.rounds)
            with ProcessExecutor(1) as child:
                seconds.append(child.submit(time_data_module, who).result())
        yield f"first batch after setup, {engine}", f"{statistics.median(seconds):.2f} s"
        if epochs:
            run.advance(f"memory over {epochs} epochs, {engine}", 0.0)
            with ProcessExecutor(1) as child:
                kept = child.submit(memory_by_epoch, who, epochs).result()
            later = kept[1:] or kept
            growth = f"at most {100 * (max(later) / later[0] - 1):+.1f}% after the second"
            yield f"memory over {epochs} epochs, {engine}", f"{kept[-1] / 2**20:.0f} MB, {growth}"


class _Measured(Protocol):
    def measure(self, seconds: float) -> Timing: ...


# What follows runs in a child process, in which one of these is open.
_open: list[_Measured] = []


def open_contestant(who: LoaderContestant) -> None:
    """Prepare ``who``'s data and batches, but make no batch yet."""
    torch.set_num_threads(1)
    _open.append(_OperatorAlone(who) if who.name.startswith(_BOUND) else _Batches(who))


def open_decoder(who: LoaderContestant, number: int) -> None:
    """Prepare the operator alone in process ``number`` of the bound."""
    torch.set_num_threads(1)
    _open.append(_Decoder(who, number))


def time_first_batch(who: LoaderContestant) -> float:
    """Seconds that the first batch takes; ValueError if it has another shape or dtype than the suite's."""
    if not isinstance(_open[-1], _Batches):
        return 0.0
    started = time.perf_counter()
    images = next(_open[-1].batches)[0]
    seconds = time.perf_counter() - started
    if not who.expects(images):
        raise ValueError(f"{who.name} makes {images.dtype} {list(images.shape)}, other than the suite's")
    return seconds


def time_round(seconds: float) -> Timing:
    """Make batches for ``seconds``."""
    return _open[-1].measure(seconds)


def time_data_module(who: LoaderContestant) -> float:
    """Seconds from the end of ``setup`` of a data module to its first batch."""
    from ..datamodule import ShardDataModule

    workers, threads = who.engine
    split = who.split(who.data.shards(who.kind))
    data = ShardDataModule(split, batch_size=BATCH, workers=workers, threads=threads)
    data.prepare_data()
    data.setup("fit")
    started = time.perf_counter()
    batches = iter(data.train_dataloader())
    next(batches)
    seconds = time.perf_counter() - started
    data.teardown()
    return seconds


def memory_by_epoch(who: LoaderContestant, epochs: int) -> list[int]:
    """Memory of this process and its workers after each epoch, in bytes."""
    torch.set_num_threads(1)
    loader = who.loader(who.data.shards(who.kind, 1))
    kept = []
    for _ in range(epochs):
        for _batch in loader:
            pass
        kept.append(_resident())
    loader.close()
    return kept


class _Batches:
    """The batches of a contestant."""

    def __init__(self, who: LoaderContestant) -> None:
        self.batches = who.batches()

    def measure(self, seconds: float) -> Timing:
        for _ in range(_WARM_UP):
            next(self.batches)
        images, processor, started = 0, _processor_seconds(), time.perf_counter()
        while time.perf_counter() - started < seconds or not images:
            images += len(next(self.batches)[0])
        passed, spent = time.perf_counter() - started, _processor_seconds() - processor
        _wait_until_idle()
        return Timing(images, passed, spent)


class _OperatorAlone:
    """The bound: processes that only read sizes, draw boxes and decode, each for itself."""

    def __init__(self, who: LoaderContestant) -> None:
        self._children = [ProcessExecutor(1) for _ in range(who.workers)]
        for number, child in enumerate(self._children):
            child.submit(open_decoder, who, number).result()

    def measure(self, seconds: float) -> Timing:
        running = [child.submit(time_round, seconds) for child in self._children]
        parts: list[Timing] = [one.result() for one in running]
        rate = sum(part.images / part.seconds for part in parts)
        images = sum(part.images for part in parts)
        return Timing(images, images / rate, sum(part.processor for part in parts))


class _Decoder:
    """The operator alone, on batches in an order that depends on ``number``."""

    def __init__(self, who: LoaderContestant, number: int) -> None:
        shards = Shards(who.data.shards(who.kind))
        order = np.random.default_rng(number).permutation(len(shards))
        ids = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
        self._batches = [shards.images(part) for part in ids]
        self._left = iter(self._batches)
        is_float = who.group == "float32"
        self._options: dict[str, Any] = {"mean": MEAN, "std": STD, "dtype": torch.float32} if is_float else {}
        shape = (BATCH, SIZE, SIZE, 3)
        self._out = torch.zeros(shape, dtype=getattr(torch, who.group)).permute(0, 3, 1, 2)

    def measure(self, seconds: float) -> Timing:
        crop, generator, images = RandomResizedCrop(SIZE), np.random.default_rng(0), 0
        processor, started = time.process_time(), time.perf_counter()
        while time.perf_counter() - started < seconds or not images:
            jpegs = next(self._left, None)
            if jpegs is None:
                self._left = iter(self._batches)
                continue
            boxes = crop.boxes(decode.image_sizes(jpegs).numpy(), generator.random((BATCH, crop.draws)))
            flips = torch.from_numpy(generator.random(BATCH) < 0.5) if self._options else None
            boxes_tensor = torch.from_numpy(boxes)
            decode.decode_batch(jpegs, boxes_tensor, SIZE, flips, out=self._out, threads=1, **self._options)
            images += BATCH
        return Timing(images, time.perf_counter() - started, time.process_time() - processor)


def _wait_until_idle() -> None:
    """Wait until prefetching ends: it would slow the next contestant's measurement."""
    before = _processor_seconds()
    for _ in range(100):
        time.sleep(0.05)
        now = _processor_seconds()
        if now - before < 0.015:
            return
        before = now


def _processor_seconds() -> float:
    """Processor time of this process and its descendants."""
    total = 0
    for pid in _family():
        fields = _read(pid, "stat").rpartition(")")[2].split()
        total += sum(map(int, fields[11:13]))
    return total / _TICKS


def _resident() -> int:
    """RssAnon and RssShmem of this process and its descendants, in bytes."""
    lines = [line.split() for pid in _family() for line in _read(pid, "status").splitlines()]
    return sum(1024 * int(line[1]) for line in lines if line[:1] in (["RssAnon:"], ["RssShmem:"]))


def _family() -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _read(int(entry.name), "stat").rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1]) if fields else 0
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""  # the process has ended meanwhile
