"""Results of a benchmark: contestants, rows, and the table, CSV and chart made of them."""

from __future__ import annotations

import contextlib
import csv
import importlib
import os
import platform
import re
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tarpeg.machine import read_machine

if TYPE_CHECKING:
    from rich.table import Table

INSTALL_ERRORS = (ImportError, OSError, RuntimeError)
"""Errors of a package that is not installed, or lacks a library that it loads."""

_OURS, _OTHERS, _BOUND = "#e4572e", "#9aa5b1", "#dfe3e8"
_PACKAGES = (
    *(
        "torch",
        "torchvision",
        "torchcodec",
        "pillow",
        "simplejpeg",
        "opencv-python-headless",
        "PyTurboJPEG",
        "kornia",
    ),
    *("nvidia-dali-cuda130", "nvidia-nvimgcodec-cu13"),
)

# Columns of the CSV: fields of Row, then of Report. Scripts read them: the names and their order stay.
_DECODE_COLUMNS = ("group", "name", "microseconds", "ratio", "mean", "maximum", "suite")
_LOADER_COLUMNS = ("group", "name", "images_per_second", "ratio", "processor", "first", "mean", "maximum")
_PARITY_COLUMNS = ("group", "name", "accuracy", "spread", "accuracies", "images", "suite")
_DEVICE_COLUMNS = (
    "group",
    "name",
    "images_per_second",
    "microseconds",
    "ratio",
    "processor",
    "mean",
    "maximum",
    "suite",
)
_ABOUT = ("machine", "versions", "date")

# Heading and format of the columns of the table.
_HEADINGS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "group": ("output", str),
    "name": ("contestant", str),
    "microseconds": ("us/image", "{:.0f}".format),
    "images_per_second": ("images/s", "{:.0f}".format),
    "ratio": ("speed", "{:.2f}x".format),
    "processor": ("CPU us/image", "{:.0f}".format),
    "first": ("s to first batch", lambda seconds: f"{seconds:.2f}" if seconds else "-"),
    "accuracy": ("accuracy", "{:.1%}".format),
    "spread": ("std. dev.", "{:.1%}".format),
    "mean": ("mean diff.", "{:.2f}".format),
    "maximum": ("max diff.", "{:.0f}".format),
}


class Row(NamedTuple):
    """Results of one contestant.

    ratio: speed relative to the reference of its group. mean, maximum: difference from the reference's
    pixels, in levels of 0 to 255; None if they are not compared.
    Decoding and augmenting: microseconds per image. Loaders: images_per_second; processor, the processor time
    of all processes and threads in microseconds per image; first, the seconds to the first batch after
    set-up; rates, the images per second of each round; timings, its images, seconds and processor seconds.
    Trainings: accuracy and spread, mean and standard
    deviation of ``accuracies``, fractions of 1.
    """

    group: str
    name: str
    ratio: float
    mean: float | None = None
    maximum: float | None = None
    microseconds: float = 0.0
    images_per_second: float = 0.0
    processor: float = 0.0
    first: float = 0.0
    rates: tuple[float, ...] = ()
    timings: tuple[tuple[int, float, float], ...] = ()
    accuracy: float | None = None
    spread: float | None = None
    accuracies: tuple[float, ...] = ()


def installed_versions() -> str:
    """Names and versions of the compared packages that are installed."""
    found = []
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)


def machine_name() -> str:
    """Model of the processor and number of its cores that this process may use."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        model = found[1].strip() if found else model
    return f"{model}, {read_machine().cores} cores"


def left_out(error: Exception, packages: str = "", name: str = "") -> str:
    """Note that a contestant is left out, with the packages to install, if any, and the reason."""
    reason = str(error).strip().partition("\n")[0]
    remedy = f"pip install {packages} ({reason})" if packages else reason
    return ": ".join(part for part in ("left out", name, remedy) if part)


@dataclass(frozen=True)
class Report:
    """Results of one suite, and what was measured on which machine.

    work: the task. groups: description of each group for the chart. comparison: meaning of speed and
    differences. figures: further results. missing: a line for each contestant that was left out. workers:
    processes or threads of each contestant of a loader suite; None if all of it ran on one thread. vectors:
    vector code of this library, "none" for the portable code. device: name of the GPU of a suite on a
    device, in batches of ``batch``; workers are its host threads.
    """

    suite: str
    size: str
    images: int
    rounds: int
    clock: str
    tile: int
    work: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    comparison: str = ""
    figures: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    workers: int | None = None
    vectors: str = ""
    device: str = ""
    batch: int = 0
    machine: str = field(default_factory=machine_name)
    versions: str = field(default_factory=installed_versions)
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))

    @property
    def title(self) -> str:
        """The task, the photographs and the measurement in one line."""
        if self.suite == "parity":
            return self.work
        threads, clock = "one thread", ", processor time"
        if self.device:
            threads = f"in batches of {self.batch} to {self.device}, {self.workers} host threads"
        elif self.workers is not None:
            threads, clock = f"{self.workers} workers or threads", f"{clock} / {self.workers}"
        return (
            f"{self.work}: {self.images} {self.size} photographs, {threads}, "
            f"medians of {self.rounds} rounds{clock if self.clock == 'cpu' else ''}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines below the table: machine, comparison, versions, further figures, missing contestants."""
        about = f"{self.machine}, {self.date}; tarpeg's vector code: {self.vectors}; {self.comparison}"
        return (about, self.versions, *self.figures, *self.missing)

    def table(self) -> Table:
        """Rows as a table for rich, in the order of measurement."""
        from rich.table import Table

        shown = [name for name in self._columns() if name in _HEADINGS]
        shown = [name for name in shown if any(getattr(row, name) is not None for row in self.rows)]
        if len({row.group for row in self.rows}) == 1:
            shown.remove("group")
        table = Table()
        for name in shown:
            is_text = name in ("group", "name")
            heading = "measured" if self.device and name == "group" else _HEADINGS[name][0]
            table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
        following = [*(row.group for row in self.rows[1:]), None]
        for row, group in zip(self.rows, following, strict=True):
            values = [(getattr(row, name), _HEADINGS[name][1]) for name in shown]
            cells = ["-" if value is None else text(value) for value, text in values]
            table.add_row(*cells, end_section=row.group != group)
        return table

    def write(self, directory: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write SUITE-SIZE.csv and, if matplotlib is installed, SUITE-SIZE.png; return the paths.

        With TARPEG_VECTORS or TARPEG_PORTABLE in the environment the names end in the vector code.
        """
        name = f"{self.suite}-{self.size}"
        if os.environ.get("TARPEG_VECTORS") or os.environ.get("TARPEG_PORTABLE"):
            name += f"-vectors-{self.vectors}"
        name = re.sub(r"[^\w.-]+", "x", name).strip("x")
        table, chart = (Path(directory) / f"{name}.{kind}" for kind in ("csv", "png"))
        table.parent.mkdir(parents=True, exist_ok=True)
        with table.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, self._columns(), extrasaction="ignore")
            writer.writeheader()
            writer.writerows({**vars(self), **row._asdict()} for row in self.rows)
        return (table, chart) if self._draw(chart) else (table,)

    def _columns(self) -> tuple[str, ...]:
        if self.suite == "parity":
            return (*_PARITY_COLUMNS, *_ABOUT)
        settings = ("size", "images", "rounds", "clock")
        if self.device:
            return (*_DEVICE_COLUMNS, *settings, "tile", "device", "batch", "workers", *_ABOUT)
        if self.workers is None:
            return (*_DECODE_COLUMNS, *settings, "tile", *_ABOUT)
        return (*_LOADER_COLUMNS, *settings, "workers", *_ABOUT)

    def _draw(self, path: Path) -> bool:
        """Write the chart as a PNG; return False, and write nothing, without matplotlib or rates."""
        if self.suite == "parity":
            return False
        try:
            figures = importlib.import_module("matplotlib.figure")
        except ImportError:
            return False
        groups = list(dict.fromkeys(row.group for row in self.rows))
        members = {group: [row for row in self.rows if row.group == group] for group in groups}
        counts = [len(rows) for rows in members.values()]
        column, unit, what = "microseconds", " us", "microseconds per image (shorter is better)"
        if self.workers is not None:
            column, unit, what = "images_per_second", "", "images per second (longer is better)"
        height = 0.32 * sum(counts) + 0.7 * len(groups) + 1.2
        figure = figures.Figure(figsize=(10, height), dpi=110, layout="constrained")
        plots = figure.subplots(len(groups), 1, squeeze=False, height_ratios=counts)[:, 0]
        for plot, (group, rows) in zip(plots, members.items(), strict=True):
            lengths = [getattr(row, column) for row in rows]
            drawn = plot.barh([row.name for row in rows], lengths, color=[_colour(row.name) for row in rows])
            texts = [f"{n:.0f}{unit}   {row.ratio:.2f}x" for n, row in zip(lengths, rows, strict=True)]
            plot.bar_label(drawn, texts, padding=4)
            plot.invert_yaxis()
            plot.set_xlim(0, 1.2 * max(getattr(row, column) for row in self.rows))
            plot.tick_params(left=False, bottom=False, labelbottom=False)
            plot.spines[["top", "right", "bottom"]].set_visible(False)
            if len(groups) > 1:
                plot.set_title(self.groups.get(group, group), loc="left")
        lines = (self.title, f"{what}, speed relative to {self.rows[0].name}")
        figure.suptitle("\n".join(textwrap.fill(line, 95) for line in lines))
        small = "\n".join(textwrap.fill(note, 150) for note in self.notes[:3])
        figure.supxlabel(small, fontsize=7, color="#667079", x=0.01, ha="left")
        figure.savefig(path)
        return True


def _colour(name: str) -> str:
    if name.startswith("bound"):
        return _BOUND
    return _OURS if name.startswith("tarpeg") else _OTHERS
