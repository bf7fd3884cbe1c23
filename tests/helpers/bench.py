"""tools/bench.py in a process of its own."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from helpers.scripts import run_tool


def measured(
    folder: Path, suite: str, size: str, *settings: str, texts: Iterable[str]
) -> list[dict[str, str]]:
    """Run one suite, which must print the texts and draw a chart; return the rows of its CSV."""
    done = run_tool("bench", f"suite={suite}", f"out={folder}", *settings, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert [text for text in texts if text not in done.stdout] == [], done.stdout
    with Image.open(folder / f"{suite}-{size}.png") as chart:
        assert min(chart.size) > 300
    with (folder / f"{suite}-{size}.csv").open() as stream:
        return list(csv.DictReader(stream))
