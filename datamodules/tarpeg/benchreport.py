"""What the benchmark found: rows, a table, a CSV and a chart."""

from __future__ import annotations

import contextlib
import csv
import importlib
import os
import platform
import re
import textwrap
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

_PACKAGES = ("torch", "torchvision", "pillow", "simplejpeg", "opencv-python-headless", "PyTurboJPEG")
_NVIDIA = ("nvidia-dali-cuda130", "nvidia-nvimgcodec-cu13")
_OURS, _OTHERS, _BOUND = "#e4572e", "#9aa5b1", "#dfe3e8"


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
        return (f"{self.machine}, {self.date}; {against}", self.versions, files, *self.missing)

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
        return [row.group, *cells, f"{row.mean:.2f}", f"{row.maximum:.0f}"]

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
        return (table, chart) if _draw_chart(self, chart) else (table,)


def machine() -> str:
    """Name the processor and say how many cores of it this process may use."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        model = found[1].strip() if found else model
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def versions() -> str:
    """Name the packages that are compared, as installed."""
    found = []
    for package in (*_PACKAGES, *_NVIDIA):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)


def _draw_chart(report: Report, path: Path) -> bool:
    """Write a PNG of `report`, time and ratio of each contestant; return False without matplotlib."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    groups = list(dict.fromkeys(row.group for row in report.rows))
    counts = [sum(row.group == group for row in report.rows) for group in groups]
    height = 0.32 * sum(counts) + 0.7 * len(groups) + 1.2
    figure = figures.Figure(figsize=(10, height), dpi=110, layout="constrained")
    plots = figure.subplots(len(groups), 1, squeeze=False, height_ratios=counts)[:, 0]
    longest = max(row.microseconds for row in report.rows)
    for plot, group in zip(plots, groups, strict=True):
        rows = [row for row in report.rows if row.group == group]
        colours = [
            _BOUND if row.name.startswith("bound") else _OURS if row.name.startswith("tarpeg") else _OTHERS
            for row in rows
        ]
        bars = plot.barh([row.name for row in rows], [row.microseconds for row in rows], color=colours)
        plot.bar_label(bars, [f"{row.microseconds:.0f} us   {row.ratio:.2f}x" for row in rows], padding=4)
        plot.invert_yaxis()
        plot.set_xlim(0, 1.2 * longest)
        plot.tick_params(left=False, bottom=False, labelbottom=False)
        plot.spines[["top", "right", "bottom"]].set_visible(False)
        if len(groups) > 1:
            plot.set_title(
                f"to {group}" + (", flipped and normalised" if group == "float32" else ""), loc="left"
            )
    figure.suptitle(
        f"{report.title}\nmicroseconds an image (shorter is better), speed beside {rows[0].name}'s"
    )
    small = "\n".join(textwrap.fill(note, 150) for note in report.notes[:3])
    figure.supxlabel(small, fontsize=7, color="#667079", x=0.01, ha="left")
    figure.savefig(path)
    return True
