"""The loader suite: images per second from shards to batches, each contestant in a process of its own.

The first half runs in this process. The second half runs in the only child of ``ProcessExecutor(1)``, where
what was opened stays open from call to call.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from tarpeg.datasets.synthetic import Photos
from tarpeg.errors import ShardError
from tarpeg.loader.config import LoaderConfig
from tarpeg.loader.loader import Loader
from tarpeg.loader.split import Split
from tarpeg.ops import decode
from tarpeg.processes import ProcessExecutor
from tarpeg.sampling.crops import RandomResizedCrop
from tarpeg.shards.mapped import Shards
from tarpeg.transforms.pixels import PixelFormat
from torch import Tensor

from .decode_peers import BATCH, GROUPS, PIXELS, SIZE
from .loader_data import Advance, LoaderData, LoaderSettings, Show
from .loader_peers import PEERS, Peer, as_value_error, for_ever
from .report import INSTALL_ERRORS, Report, Row, left_out

ENGINES = ("threads", "workers")
_KINDS = ("ordinary", "tiled", "packed", "raw")
_BOUND = "bound: the operator alone, "  # first part of these contestants' names

_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_IDLE = 60.0  # seconds that prefetching may take after a measurement


class Timing(NamedTuple):
    """One measurement: images made, seconds, and processor seconds of all processes."""

    images: int
    seconds: float
    processor: float

    def rate(self, clock: str, workers: int) -> float:
        """Images per second of the clock, "wall" or "cpu"."""
        return self.images / (self.seconds if clock == "wall" else self.processor / workers)


@dataclass(frozen=True)
class LoaderContestant:
    """A loader with the photographs and the number of processes or threads that it may use.

    group: kind of output; its first contestant is the reference of the others.
    """

    name: str
    group: str
    data: LoaderData
    workers: int

    peers: ClassVar[Mapping[str, Peer]] = PEERS

    @property
    def peer(self) -> Peer | None:
        """Library of this contestant; None for this library."""
        return self.peers.get(self.name)

    @property
    def ahead(self) -> int:
        """Batches that may have been prefetched before a measurement; they are not measured."""
        return 8

    def absent(self) -> str | None:
        """Return a note with the packages to install if this contestant cannot run here, otherwise None."""
        if self.peer is not None:
            try:
                importlib.import_module(self.peer.module)
                if self.peer.prepare is not None:
                    self.peer.prepare(self.data.folder)
            except INSTALL_ERRORS as error:
                return left_out(error, self.peer.packages, self.name)
        return None

    def batches(self) -> Iterator[Any]:
        """Endless batches; ValueError if they cannot be made here."""
        if self.peer is not None:
            with as_value_error():
                batches: Iterator[Any] = self.peer.make(self.data, self.group, self.workers)
                return batches
        return self._ours()

    def _ours(self) -> Iterator[Any]:
        return for_ever(self.loader(self.data.shards(self.kind)))

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
        pixels = PixelFormat(**PIXELS[self.group])
        config = LoaderConfig(BATCH, workers=workers, threads=threads)
        loader = Loader(split, config=config)
        loader.pixels = pixels
        return loader


@dataclass(frozen=True)
class DataLoaderContestant(LoaderContestant):
    """One of a suite whose peers are torch's DataLoaders."""

    @property
    def ahead(self) -> int:
        """Batches that may have been prefetched: of a peer the two per worker of torch's DataLoader."""
        return super().ahead if self.peer is None else 2 * self.workers


Compare = Callable[[Any, ProcessExecutor], tuple[float, float]]
"""Mean and largest difference of an opened contestant's pixels from the reference."""


@dataclass(frozen=True)
class LoaderRun:
    """One run of the loader, article or dali suite; ``report`` has its settings, but no results yet."""

    report: Report
    photos: Photos
    settings: LoaderSettings
    advance: Advance
    show: Show

    @property
    def data(self) -> LoaderData:
        """Photographs of this run."""
        folder = Path(self.settings.data).absolute()
        return LoaderData(folder, self.photos, self.report.images, self.report.tile)

    def measure(
        self,
        kinds: Sequence[str],
        groups: Mapping[str, str],
        contestants: Callable[[str], Sequence[LoaderContestant]],
        compare: Callable[[str], Compare] | None = None,
        together: bool = False,
    ) -> Report:
        """Make shards of these kinds, then measure the selected contestants of each group.

        groups: description by name. contestants, compare: functions of the name of a group. The first
        contestant of a group is the reference. together: measure all groups in the same rounds. ValueError
        if nothing can be measured.
        """
        for done, kind in enumerate(kinds):
            self.advance(f"making {kind} shards", done / len(kinds))
            self.data.shards(kind)
        load = os.getloadavg()[0]
        rows: list[Row] = []
        missing: list[str] = []
        for names in [[*groups]] if together else [[group] for group in groups]:
            self.show(f"{', '.join(names)}: opening the contestants")
            present = []
            for group in names:
                for number, who in enumerate(contestants(group)):
                    if not number or self.settings.selects(who.name):
                        note = who.absent()
                        if note is None:
                            present.append(who)
                        else:
                            missing.append(note)
            for row in self._measure_group(present, missing, compare(names[0]) if compare else None):
                rows.append(row)
                self.show(
                    f"{row.group}: {row.name}: {row.images_per_second:.0f} images/s, "
                    f"{row.processor:.0f} us of processor time per image"
                )
        if not rows:
            raise ValueError(
                f"suite={self.report.suite}: no contestant can be measured: {'; '.join(missing)}"
            )
        return replace(
            self.report,
            groups=dict(groups),
            rows=tuple(rows),
            comparison=f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after; "
            "speed: median over rounds, relative to the first of the group",
            missing=tuple(dict.fromkeys(missing)),
            workers=self.settings.workers,
        )

    def _measure_group(
        self, contestants: Sequence[LoaderContestant], missing: list[str], compare: Compare | None
    ) -> Iterator[Row]:
        """Open the contestants, the reference first, and measure them in interleaved rounds.

        A note for each contestant that cannot be opened is added to ``missing``.
        """
        opened: dict[LoaderContestant, tuple[float, float | None, float | None]] = {}
        timings: dict[LoaderContestant, list[Timing]] = {}
        with contextlib.ExitStack() as stack:
            children = {who: stack.enter_context(ProcessExecutor(1)) for who in contestants}
            for child in children.values():
                child.submit(torch.set_num_threads, 1)  # all of them import torch at the same time
            for done, (who, child) in enumerate(children.items()):
                self.advance(f"opening {who.name}, {who.group}", done / len(contestants))
                try:
                    child.submit(open_contestant, who).result()
                    first = child.submit(time_first_batch, who).result()
                    mean, maximum = compare(who, child) if compare else (None, None)
                    if first < self.settings.seconds:  # a slower one has been warmed up by that batch
                        child.submit(time_round, who, self.settings.seconds).result()
                except (ShardError, ValueError) as error:
                    missing.append(f"left out: {who.name}, {who.group}: {error}")
                else:
                    opened[who], timings[who] = (first, mean, maximum), []
            for number in range(self.report.rounds):
                # Each round begins with another contestant, so that none always follows the same one.
                for done, index in enumerate(np.roll(np.arange(len(opened)), -number).tolist()):
                    who = list(opened)[index]
                    progress = (number + done / len(opened)) / self.report.rounds
                    self.advance(f"measuring {who.group}", progress)
                    timing = children[who].submit(time_round, who, self.settings.seconds).result()
                    timings[who].append(timing)
        references: dict[str, list[float]] = {}
        for who, (first, mean, maximum) in opened.items():
            rates = [timing.rate(self.report.clock, who.workers) for timing in timings[who]]
            reference = references.setdefault(who.group, rates)
            yield Row(
                who.group,
                who.name,
                _median_ratio(rates, reference),
                mean,
                maximum,
                images_per_second=statistics.median(rates),
                processor=statistics.median(1e6 * one.processor / one.images for one in timings[who]),
                first=first,
                rates=tuple(rates),
                timings=tuple((one.images, one.seconds, one.processor) for one in timings[who]),
            )


def _median_ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    # Round by round: the load of other programs changes more slowly than that.
    return statistics.median(rate / other for rate, other in zip(rates, others, strict=True))


def speeds(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line per group: speed relative to its first contestant by each clock, medians over rounds."""
    for group in dict.fromkeys(row.group for row in rows):
        first, *others = (row for row in rows if row.group == group)
        found = []
        for row in others:
            by_clock = (_median_ratio(_rates(row, clock), _rates(first, clock)) for clock in ("wall", "cpu"))
            found.append(f"{row.name} {' and '.join(f'{ratio:.2f}x' for ratio in by_clock)}")
        yield f"speed by wall time and by processor time, {group}: {'; '.join(found)}"


def _rates(row: Row, clock: str) -> list[float]:
    return [Timing(*one).rate(clock, 1) for one in row.timings]


def measure_loaders(run: LoaderRun) -> Report:
    """Measure every loader that is installed."""
    ours = [f"tarpeg, {kind}, {engine}" for kind in _KINDS for engine in ENGINES]
    names = [*PEERS, *ours, *(f"{_BOUND}{kind}" for kind in _KINDS[1:])]

    def contestants(group: str) -> list[LoaderContestant]:
        return [LoaderContestant(name, group, run.data, run.settings.workers) for name in names]

    report = run.measure(_KINDS, GROUPS, contestants)
    figures = [*_efficiencies(report.rows), *_first_and_memory(run)]
    work = f"shards -> RandomResizedCrop({SIZE}) -> batches of {BATCH}"
    return replace(report, work=work, figures=("; ".join(figures),) if figures else ())


def _efficiencies(rows: Sequence[Row]) -> Iterator[str]:
    """Rates of our loaders relative to the operator alone, round by round."""
    by_name = {(row.group, row.name): row for row in rows}
    for (group, name), bound in by_name.items():
        if name.startswith(_BOUND):
            kind = name.removeprefix(_BOUND)
            for engine in ENGINES:
                row = by_name.get((group, f"tarpeg, {kind}, {engine}"))
                if row is not None:
                    share = _median_ratio(row.rates, bound.rates)
                    yield f"efficiency, {kind}, {group}, {engine}: {100 * share:.0f}%"


def _first_and_memory(run: LoaderRun) -> Iterator[str]:
    """Time to the first batch of a data module, and memory over epochs, of our loaders."""
    epochs = run.settings.epochs
    for engine in ENGINES:
        who = LoaderContestant(f"tarpeg, tiled, {engine}", "uint8", run.data, run.settings.workers)
        if not run.settings.selects(who.name):
            continue
        seconds = []
        for number in range(run.report.rounds):
            run.advance(f"first batch, {engine}", number / run.report.rounds)
            with ProcessExecutor(1) as child:
                seconds.append(child.submit(time_data_module, who).result())
        yield f"first batch after setup, {engine}: {statistics.median(seconds):.2f} s"
        if epochs:
            what = f"memory over {epochs} epochs, {engine}"
            run.advance(what, 0.0)
            with ProcessExecutor(1) as child:
                kept = child.submit(memory_by_epoch, who, epochs).result()
            later = kept[1:] or kept
            growth = f"at most {100 * (max(later) / later[0] - 1):+.1f}% after the second"
            yield f"{what}: {kept[-1] / 2**20:.0f} MB, {growth}"


# What follows runs in a child process, in which one contestant is open.
_open: list[Iterator[Any]] = []  # its endless batches
_decoders: list[ProcessExecutor] = []  # of the bound, instead: each reads sizes, draws boxes and decodes


def open_contestant(who: LoaderContestant) -> None:
    """Prepare ``who``'s data and batches, but make no batch yet."""
    torch.set_num_threads(1)
    if who.name.startswith(_BOUND):
        _decoders.extend(ProcessExecutor(1) for _ in range(who.workers))
        opening = [child.submit(open_decoder, who, number) for number, child in enumerate(_decoders)]
        for one in opening:
            one.result()
    else:
        _open.append(who.batches())


def open_decoder(who: LoaderContestant, number: int) -> None:
    """Prepare the operator alone in process ``number`` of the bound."""
    torch.set_num_threads(1)
    _open.append(_decoded(who, number))


def time_first_batch(who: LoaderContestant) -> float:
    """Seconds that the first batch takes; ValueError if it has another shape or dtype than the suite's."""
    if not _open:
        return 0.0
    started = time.perf_counter()
    images = next(_open[0])[0]
    seconds = time.perf_counter() - started
    if not who.expects(images):
        raise ValueError(f"{who.name} makes {images.dtype} {list(images.shape)}, other than the suite's")
    return seconds


def time_round(who: LoaderContestant, seconds: float) -> Timing:
    """Make batches for ``seconds``."""
    return _time_decoders(who, seconds) if _decoders else _time_batches(who, _open[0], seconds)


def time_data_module(who: LoaderContestant) -> float:
    """Seconds from the end of ``setup`` of a data module to its first batch."""
    from tarpeg.datamodule import ShardDataModule

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


def _time_batches(who: LoaderContestant, batches: Iterator[Any], seconds: float) -> Timing:
    for _ in range(who.ahead):
        next(batches)
    made, images = 0, 0
    processor, started = _processor_seconds(), time.perf_counter()
    # Whole turns of the workers, which may end their batches at the same time.
    while time.perf_counter() - started < seconds or not made or made % who.workers:
        images += len(next(batches)[0])
        made += 1
    passed, spent = time.perf_counter() - started, _processor_seconds() - processor
    _wait_until_idle()
    return Timing(images, passed, spent)


def _time_decoders(who: LoaderContestant, seconds: float) -> Timing:
    running = [child.submit(time_round, who, seconds) for child in _decoders]
    parts: list[Timing] = [one.result() for one in running]
    rate = sum(part.images / part.seconds for part in parts)
    images = sum(part.images for part in parts)
    return Timing(images, images / rate, sum(part.processor for part in parts))


def _decoded(who: LoaderContestant, number: int) -> Iterator[tuple[Tensor]]:
    """Endless batches of the operator alone, in an order that depends on ``number``."""
    shards, crop = Shards(who.data.shards(who.kind)), RandomResizedCrop(SIZE)
    generator = np.random.default_rng(number)
    ids = generator.permutation(len(shards))[: len(shards) // BATCH * BATCH].reshape(-1, BATCH)
    options = {**PIXELS[who.group], "threads": 1}
    out = torch.zeros((BATCH, SIZE, SIZE, 3), dtype=getattr(torch, who.group)).permute(0, 3, 1, 2)
    for jpegs in itertools.cycle([shards.images(part) for part in ids]):
        boxes = crop.boxes(decode.image_sizes(jpegs).numpy(), generator.random((BATCH, crop.draws)))
        flips = torch.from_numpy(generator.random(BATCH) < 0.5) if who.group == "float32" else None
        decode.decode_batch(jpegs, torch.from_numpy(boxes), SIZE, flips, out=out, **options)
        yield (out,)


def _wait_until_idle() -> None:
    """Wait until prefetching ends: it would slow the next contestant's measurement."""
    before, started = _processor_seconds(), time.monotonic()
    while time.monotonic() - started < _MOST_IDLE:
        time.sleep(0.05)
        now = _processor_seconds()
        if now - before < 0.015:
            return
        before = now


def _processor_seconds() -> float:
    """Processor time of this process and its descendants."""
    return sum(int(field) for fields in _family().values() for field in fields[11:13]) / _TICKS


def _resident() -> int:
    """RssAnon and RssShmem of this process and its descendants, in bytes."""
    lines = [line.split() for pid in _family() for line in _read(Path(f"/proc/{pid}/status")).splitlines()]
    return sum(1024 * int(line[1]) for line in lines if line[:1] in (["RssAnon:"], ["RssShmem:"]))


def _family() -> dict[int, list[str]]:
    """Fields of /proc/PID/stat after the command, of this process and its descendants, by process."""
    texts = {int(path.parent.name): _read(path) for path in Path("/proc").glob("[0-9]*/stat")}
    fields = {pid: text.rpartition(")")[2].split() for pid, text in texts.items() if text}
    found = [os.getpid()]
    for parent in found:
        found += [pid for pid, values in fields.items() if int(values[1]) == parent]
    return {pid: fields[pid] for pid in found}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # the process has ended meanwhile
