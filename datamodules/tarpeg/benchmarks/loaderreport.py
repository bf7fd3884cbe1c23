"""What the loader benchmark found: rows, a table, a CSV and a chart."""

from __future__ import annotations

import csv
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .benchchart import Bar, draw
from .benchreport import machine, versions


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
