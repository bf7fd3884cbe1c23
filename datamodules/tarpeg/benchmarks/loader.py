"""What the loader benchmark reads: the same photographs in every form that is taken, kept on disk."""
# MERGED: The loader benchmark: images a second from shards to batches, each contestant in processes of its own.

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..cache.build import build_cache
from ..cache.codecs import Raw, Tiled
from ..datasets.synthetic import Photos
from ..datasets.writer import make_shards
from ..errors import ShardError
from ..processes import Processes
from ..shards.mapped import Shards
from . import loader_host, loader_peers
from .loader_host import Contestant, Turn
from .report import LoaderReport, LoaderRow

Advance = Callable[[str, float], None]
"""Is told what is being done, and the share of it that is done."""

_REPEATS = 8
_SHARDS = 4


@dataclass(frozen=True)
class LoaderData:
    """``images`` photographs as ``photos`` draws them, under ``folder``; each form is made at first use.

    An epoch shows every photograph eight times, each time as another sample, so that what happens between
    epochs has the weight that it has where epochs are long.
    """

    folder: Path
    photos: Photos
    images: int
    tile: int

    @property
    def epoch(self) -> int:
        """Samples an epoch."""
        return _REPEATS * self.images

    def make(self, kinds: Sequence[str], advance: Advance) -> None:
        """Make the shards of those kinds that are missing; tells ``advance`` how far it is."""
        for done, kind in enumerate(kinds):
            advance(f"making {kind} shards", done / len(kinds))
            self.shards(kind)

    def shards(self, kind: str, repeats: int = _REPEATS) -> list[Path]:
        """Name the shards of an epoch, or of ``repeats`` times every photograph.

        ``kind``: "ordinary" JPEGs, "tiled" ones or "raw" pixels (binary PPM).
        """
        folder = self.made(f"{kind}-{self.tile}" if kind == "tiled" else kind, self._writer(kind))
        return sorted(folder.glob(f"[0-{repeats - 1}]-*.tar"))

    def samples(self) -> Iterator[tuple[bytes, int]]:
        """Give each photograph's JPEG and label."""
        shards = Shards(self.shards("ordinary", 1))
        labels = shards.labels(range(len(shards))).tolist()
        for number, label in enumerate(labels):
            yield bytes(shards.images([number])[0].numpy()), label

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the folder or file ``name``, made by ``make`` under another name where there is none yet."""
        path = self.folder / f"{self.images}-{_label(self.photos)}" / name
        if not path.exists():
            aside = path.with_name(f".{name}")
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(parents=True, exist_ok=True)
            make(aside)
            aside.rename(path)
        return path

    def _writer(self, kind: str) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            within = folder / kind
            if kind == "ordinary":
                make_shards(within, self.photos, self.images, samples_per_shard=-(-self.images // _SHARDS))
            else:
                codec = Tiled(self.tile) if kind == "tiled" else Raw()
                build_cache(self.shards("ordinary", 1), within, codec)
            # Other names for the same files are other samples, and share their pages.
            for path in within.glob("*.tar"):
                for turn in range(_REPEATS):
                    folder.joinpath(f"{turn}-{path.name}").symlink_to(path.relative_to(folder))

        return write


def _label(photos: Photos) -> str:
    sizes = "-".join(size if isinstance(size, str) else "x".join(map(str, size)) for size in photos.size)
    return f"{sizes}-seed{photos.seed}"


Compare = Callable[[Contestant, Processes], tuple[float, float]]
_GROUPS = {"uint8": "to uint8", "float32": "to float32, flipped and normalised"}


@dataclass(frozen=True)
class LoaderSettings:
    """What the loader, article and dali suites can be told besides.

    data: a folder where the photographs stay, in every form, for the next run. workers: processes, or
    threads, that each contestant may use. seconds: of each turn. epochs: over which the loader suite watches
    our memory; 0 leaves it out. only: take part where one of these is in the name; the first of the table
    always does.
    """

    data: str = "outputs/bench/data"
    workers: int = 2
    seconds: float = 1.0
    epochs: int = 20
    only: tuple[str, ...] | list[str] = field(default_factory=tuple)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> LoaderSettings:
        """Build it from a mapping of the fields, as a config gives it."""
        unknown = set(value) - {one.name for one in fields(cls)}
        if unknown:
            raise ValueError(f"loader: no setting {sorted(unknown)[0]!r}")
        return cls(**value)

    def names(self, name: str) -> bool:
        """Tell whether ``only`` lets that one take part."""
        return not self.only or any(part in name for part in self.only)

    def __post_init__(self) -> None:
        for name, low in (("workers", 1), ("epochs", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ValueError(f"loader.{name}: expected an integer of at least {low}, got {value!r}")
        if not isinstance(self.seconds, (int, float)) or not self.seconds > 0:
            raise ValueError(f"loader.seconds: expected a positive number, got {self.seconds!r}")


def measure(
    photos: Photos,
    images: int,
    rounds: int,
    tile: int,
    clock: str,
    settings: LoaderSettings,
    advance: Advance,
) -> LoaderReport:
    """Measure everybody who is installed; see ``bench.measure``."""
    data = LoaderData(Path(settings.data).absolute(), photos, images, tile)
    data.make(("ordinary", "tiled", "raw"), advance)
    busy = [os.getloadavg()[0]]
    field_, missing = _field(data, settings)
    rows: list[LoaderRow] = []
    for group in _GROUPS:
        members = [who for who in field_ if who.group == group]
        made, failed = take_turns(members, rounds, clock, settings, advance)
        rows += made
        missing += failed
    extra = list(_efficiencies(rows)) + list(_own(data, rounds, settings, advance))
    busy.append(os.getloadavg()[0])
    return LoaderReport(
        "loader",
        "shards -> RandomResizedCrop(224) -> batches of 64",
        _GROUPS,
        label_of(photos),
        images,
        rounds,
        clock,
        settings.workers,
        tuple(rows),
        tuple(extra),
        tuple(missing),
        (busy[0], busy[1]),
    )


def _field(data: LoaderData, settings: LoaderSettings) -> tuple[list[Contestant], list[str]]:
    found, missing = [], []
    first = next(iter(loader_peers.PEERS))
    for name in (*loader_peers.PEERS, *loader_host.ours()):
        if name != first and not settings.names(name):
            continue
        absent = loader_peers.absent(name)
        if absent is None:
            found += [Contestant(name, group, data, settings.workers) for group in _GROUPS]
        else:
            missing.append(absent)
    return found, missing


def take_turns(
    field_: Sequence[Contestant],
    rounds: int,
    clock: str,
    settings: LoaderSettings,
    advance: Advance,
    compare: Compare | None = None,
) -> tuple[list[LoaderRow], list[str]]:
    """Open all contestants of a group, the first before the others, then let them take turns.

    ``compare``: tells how far a contestant's pixels are off, mean and maximum, once it is open.
    """
    turns: dict[Contestant, list[Turn]] = {}
    first: dict[Contestant, float] = {}
    apart: dict[Contestant, tuple[float | None, float | None]] = {}
    missing = []
    with contextlib.ExitStack() as stack:
        children = {}
        for done, who in enumerate(field_):
            advance(f"opening {who.name}, {who.group}", done / len(field_))
            child = stack.enter_context(Processes(1))
            try:
                child.submit(loader_host.prepare, who).result()
                first[who] = child.submit(loader_host.begin, who).result()
                apart[who] = (None, None) if compare is None else compare(who, child)
            except (ShardError, ValueError) as error:
                missing.append(f"left out: {who.name}, {who.group}: {error}")
                continue
            children[who], turns[who] = child, []
            child.submit(loader_host.turn, settings.seconds).result()
        for number in range(rounds):
            # Another one begins each round: nobody always follows the same neighbour.
            order = list(children)[number % len(children) :] + list(children)[: number % len(children)]
            for done, who in enumerate(order):
                advance(f"measuring {who.group}", (number + done / len(order)) / rounds)
                turns[who].append(children[who].submit(loader_host.turn, settings.seconds).result())
    reference = next(iter(turns))
    return [_row(who, turns, first[who], apart[who], reference, clock) for who in turns], missing


def _row(
    who: Contestant,
    turns: dict[Contestant, list[Turn]],
    first: float,
    apart: tuple[float | None, float | None],
    reference: Contestant,
    clock: str,
) -> LoaderRow:
    rates = [_rate(turn, clock, who.workers) for turn in turns[who]]
    others = [_rate(turn, clock, who.workers) for turn in turns[reference]]
    # Round by round: what else the machine does changes more slowly than that.
    ratio = statistics.median(rate / other for rate, other in zip(rates, others, strict=True))
    processor = statistics.median(1e6 * turn.processor / turn.images for turn in turns[who])
    rate = statistics.median(rates)
    return LoaderRow(who.group, who.name, rate, ratio, processor, first, *apart, tuple(rates))


def _rate(turn: Turn, clock: str, workers: int) -> float:
    return turn.images / (turn.seconds if clock == "wall" else turn.processor / workers)


def _efficiencies(rows: list[LoaderRow]) -> Iterator[tuple[str, str]]:
    """Compare ourselves with the operator alone, round by round."""
    for bound in rows:
        if not bound.name.startswith(loader_host.BOUND):
            continue
        kind = bound.name.removeprefix(loader_host.BOUND)
        for engine in loader_host.ENGINES:
            for row in rows:
                if (row.group, row.name) == (bound.group, f"tarpeg, {kind}, {engine}"):
                    share = statistics.median(a / b for a, b in zip(row.rates, bound.rates, strict=True))
                    yield f"efficiency, {kind}, {row.group}, {engine}", f"{100 * share:.0f}%"


def _own(
    data: LoaderData, rounds: int, settings: LoaderSettings, advance: Advance
) -> Iterator[tuple[str, str]]:
    """Measure what only concerns ourselves: the first batch of a data module, and memory over epochs."""
    for engine in loader_host.ENGINES:
        who = Contestant(f"tarpeg, tiled, {engine}", "uint8", data, settings.workers)
        if settings.only and not any(part in who.name for part in settings.only):
            continue
        taken = []
        for turn in range(rounds):
            advance(f"first batch, {engine}", turn / rounds)
            with Processes(1) as child:
                taken.append(child.submit(loader_host.first_batch, who).result())
        yield f"first batch after setup, {engine}", f"{statistics.median(taken):.2f} s"
        if settings.epochs:
            advance(f"memory over {settings.epochs} epochs, {engine}", 0.0)
            with Processes(1) as child:
                kept = child.submit(loader_host.memory, who, settings.epochs).result()
            share = 100 * (max(kept[1:] or kept) / (kept[1:] or kept)[0] - 1)
            yield (
                f"memory over {settings.epochs} epochs, {engine}",
                f"{kept[-1] / 2**20:.0f} MB, at most {share:+.1f}% after the second",
            )


def label_of(photos: Photos) -> str:
    """Name the size of the photographs."""
    size = photos.size[0]
    return size if isinstance(size, str) else "x".join(map(str, size))
