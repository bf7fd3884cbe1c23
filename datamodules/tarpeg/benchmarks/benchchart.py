"""The benchmark's chart: bars in groups, ours in one colour, everybody else's in another."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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
