"""What the benchmark found: rows, a table, a CSV and a chart."""

from __future__ import annotations

import contextlib
import csv
import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from ..surroundings import look
from .benchchart import Bar, draw

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
    return f"{model}, {look().cores} cores"


def versions() -> str:
    """Name the packages that are compared, as installed."""
    found = []
    for package in (*_PACKAGES, *_NVIDIA):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)
