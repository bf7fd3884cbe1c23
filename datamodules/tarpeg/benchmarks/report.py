"""The benchmark's chart: bars in groups, ours in one colour, everybody else's in another."""
# MERGED: What the benchmark found: rows, a table, a CSV and a chart.
# MERGED: What the loader benchmark found: rows, a table, a CSV and a chart.

from __future__ import annotations

import contextlib
import csv
import importlib
import os
import platform
import re
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from ..machine import read_machine

_OURS, _OTHERS, _BOUND = "#e4572e", "#9aa5b1", "#dfe3e8"


class Bar(NamedTuple):
    """One contestant: ``group`` stands above its like, ``text`` at the end of its bar."""

    group: str
    name: str
    length: float
    text: str


def draw(path: Path, title: str, bars: Sequence[Bar], notes: Sequence[str]) -> bool:
    """Write a PNG to ``path``; return False, and write nothing, without matplotlib."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    groups = list(dict.fromkeys(bar.group for bar in bars))
    counts = [sum(bar.group == group for bar in bars) for group in groups]
    height = 0.32 * sum(counts) + 0.7 * len(groups) + 1.2
    figure = figures.Figure(figsize=(10, height), dpi=110, layout="constrained")
    plots = figure.subplots(len(groups), 1, squeeze=False, height_ratios=counts)[:, 0]
    longest = max(bar.length for bar in bars)
    for plot, group in zip(plots, groups, strict=True):
        members = [bar for bar in bars if bar.group == group]
        colours = [_colour(bar.name) for bar in members]
        drawn = plot.barh([bar.name for bar in members], [bar.length for bar in members], color=colours)
        plot.bar_label(drawn, [bar.text for bar in members], padding=4)
        plot.invert_yaxis()
        plot.set_xlim(0, 1.2 * longest)
        plot.tick_params(left=False, bottom=False, labelbottom=False)
        plot.spines[["top", "right", "bottom"]].set_visible(False)
        if len(groups) > 1:
            plot.set_title(group, loc="left")
    figure.suptitle("\n".join(textwrap.fill(line, 95) for line in title.splitlines()))
    small = "\n".join(textwrap.fill(note, 150) for note in notes)
    figure.supxlabel(small, fontsize=7, color="#667079", x=0.01, ha="left")
    figure.savefig(path)
    return True


def _colour(name: str) -> str:
    if name.startswith("bound"):
        return _BOUND
    return _OURS if name.startswith("tarpeg") else _OTHERS


_PACKAGES = (
    "torch",
    "torchvision",
    "pillow",
    "simplejpeg",
    "opencv-python-headless",
    "PyTurboJPEG",
    "kornia",
)
_NVIDIA = ("nvidia-dali-cuda130", "nvidia-nvimgcodec-cu13")


class Row(NamedTuple):
    """One contestant: what it makes, microseconds an image, speed, and difference from the reference.

    ratio: how many times as fast as the first of its group. mean, maximum: in levels of 0..255, over all
    pictures; None where the pixels are not to be compared.
    """

    group: str
    name: str
    microseconds: float
    ratio: float
    mean: float | None
    maximum: float | None


@dataclass(frozen=True)
class Report:
    """What was measured, on what, and who was missing.

    work: what the suite does to a picture. bits_per_pixel: of the ordinary files. tiled_size: bytes of the
    tiled files for each byte of those.
    """

    suite: str
    work: str
    size: str
    images: int
    rounds: int
    clock: str
    tile: int
    bits_per_pixel: float
    tiled_size: float
    rows: tuple[Row, ...]
    missing: tuple[str, ...]
    machine: str
    versions: str
    date: str

    @property
    def title(self) -> str:
        """What was done to what, in one line."""
        rounds = f"medians of {self.rounds} rounds" + (", processor time" if self.clock == "cpu" else "")
        return f"{self.work}: {self.images} {self.size} photographs, one thread, {rounds}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader needs to know besides the figures."""
        files = (
            f"{self.bits_per_pixel:.2f} bits a pixel; tile={self.tile}: {self.tiled_size:.3f} of the bytes"
        )
        against = "speed and pixels against torchvision v2's"
        if self.suite == "crop":
            against = "speed against torchvision's; pixels against Pillow's; the bound is not the same pixels"
        if self.suite == "augment":
            against += (
                "; the whole chain: flip, affine, brightness, contrast, saturation, hue, erase, normalise"
            )
        about = (f"{self.machine}, {self.date}; {against}", self.versions)
        return (*about, *self.missing) if self.suite == "augment" else (*about, files, *self.missing)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows as text, in the order of measurement."""
        head = ["makes", "contestant", "us/image", "speed", "off by, mean", "off by, max"]
        if self.suite == "crop":
            head = ["contestant", "us/image", "speed", "pixels of full decode + crop"]
        return head, [self._cells(row) for row in self.rows]

    def _cells(self, row: Row) -> list[str]:
        cells = [row.name, f"{row.microseconds:.0f}", f"{row.ratio:.2f}x"]
        if self.suite == "crop":
            if row.maximum is None:
                return [*cells, "-"]
            return [*cells, "yes" if row.maximum == 0 else f"no, off by up to {row.maximum:.0f}"]
        if row.mean is None:
            return [row.group, *cells, "-", "-"]
        return [row.group, *cells, f"{row.mean:.2f}", f"{row.maximum:.0f}"]

    def _makes(self, row: Row) -> str:
        if self.suite == "augment":
            return row.group
        return f"to {row.group}" + (", flipped and normalised" if row.group == "float32" else "")

    def write(self, directory: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write SUITE-SIZE.csv and, where matplotlib is installed, SUITE-SIZE.png; return the paths."""
        name = re.sub(r"[^\w.-]+", "x", f"{self.suite}-{self.size}").strip("x")
        table, chart = (Path(directory) / f"{name}.{kind}" for kind in ("csv", "png"))
        table.parent.mkdir(parents=True, exist_ok=True)
        about = ("suite", "size", "images", "rounds", "clock", "tile", "machine", "versions", "date")
        with table.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow([*Row._fields, *about])
            writer.writerows([*row, *(getattr(self, field) for field in about)] for row in self.rows)
        explained = "microseconds an image (shorter is better), speed beside"
        title = f"{self.title}\n{explained} {self.rows[0].name}'s"
        bars = [
            Bar(self._makes(row), row.name, row.microseconds, f"{row.microseconds:.0f} us   {row.ratio:.2f}x")
            for row in self.rows
        ]
        return (table, chart) if draw(chart, title, bars, self.notes[:3]) else (table,)


def machine() -> str:
    """Name the processor and say how many cores of it this process may use."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        model = found[1].strip() if found else model
    return f"{model}, {read_machine().cores} cores"


def versions() -> str:
    """Name the packages that are compared, as installed."""
    found = []
    for package in (*_PACKAGES, *_NVIDIA):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)


class LoaderRow(NamedTuple):
    """One contestant: what it makes, images a second, and beside whom.

    ratio: how many times as fast as the first of its group, the median over rounds. processor: microseconds
    an image, over all processes and threads. first: seconds to the first batch once it is set up. mean,
    maximum: difference from the first of its group in levels of 0..255; None where pixels are not compared.
    rates: of each round.
    """

    group: str
    name: str
    images_per_second: float
    ratio: float
    processor: float
    first: float
    mean: float | None
    maximum: float | None
    rates: tuple[float, ...]


@dataclass(frozen=True)
class LoaderReport:
    """What was measured, on what, and who was missing.

    work: what the suite does. makes: what each group is, for the chart. extra: further figures of ours, each
    with its name. busy: the machine's load average before and after.
    """

    suite: str
    work: str
    makes: dict[str, str]
    size: str
    images: int
    rounds: int
    clock: str
    workers: int
    rows: tuple[LoaderRow, ...]
    extra: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    busy: tuple[float, float]
    machine: str = field(default_factory=machine)
    versions: str = field(default_factory=versions)
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))

    @property
    def title(self) -> str:
        """What was done to what, in one line."""
        clock = f", processor time / {self.workers}" if self.clock == "cpu" else ""
        return (
            f"{self.work}: {self.images} {self.size} photographs, "
            f"{self.workers} workers or threads, medians of {self.rounds} rounds{clock}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader needs to know besides the table."""
        load = f"load average {self.busy[0]:.1f} before, {self.busy[1]:.1f} after"
        figures = "; ".join(f"{name}: {value}" for name, value in self.extra)
        about = (
            f"{self.machine}, {self.date}; {load}; speed: median over rounds beside the first of the group"
        )
        return (about, self.versions, *([figures] if figures else []), *self.missing)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows as text, in the order of measurement."""
        head = ["makes", "contestant", "images/s", "speed", "us of processor", "s to first"]
        if any(row.mean is not None for row in self.rows):
            head += ["off by, mean", "off by, max"]
        return head, [self._cells(row)[: len(head)] for row in self.rows]

    def _cells(self, row: LoaderRow) -> list[str]:
        return [
            row.group,
            row.name,
            f"{row.images_per_second:.0f}",
            f"{row.ratio:.2f}x",
            f"{row.processor:.0f}",
            f"{row.first:.2f}" if row.first else "-",
            "-" if row.mean is None else f"{row.mean:.2f}",
            "-" if row.maximum is None else f"{row.maximum:.0f}",
        ]

    def write(self, directory: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write SUITE-SIZE.csv and, where matplotlib is installed, SUITE-SIZE.png; return the paths."""
        name = re.sub(r"[^\w.-]+", "x", f"{self.suite}-{self.size}").strip("x")
        table, chart = (Path(directory) / f"{name}.{kind}" for kind in ("csv", "png"))
        table.parent.mkdir(parents=True, exist_ok=True)
        about = ("size", "images", "rounds", "clock", "workers", "machine", "versions", "date")
        with table.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow([*LoaderRow._fields[:-1], *about])
            writer.writerows([*row[:-1], *(getattr(self, field) for field in about)] for row in self.rows)
        bars = [
            Bar(
                self.makes[row.group],
                row.name,
                row.images_per_second,
                f"{row.images_per_second:.0f}   {row.ratio:.2f}x",
            )
            for row in self.rows
        ]
        explained = "images a second (longer is better), speed beside"
        title = f"{self.title}\n{explained} {self.rows[0].name}'s"
        return (table, chart) if draw(chart, title, bars, self.notes[:3]) else (table,)
