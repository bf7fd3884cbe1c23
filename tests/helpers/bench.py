"""tools/bench.py in a process of its own."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

from PIL import Image

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench.py"


def run_bench(folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """Run the tool with its output in ``folder``/out."""
    command = [sys.executable, str(TOOL), f"out={folder}/out", *settings]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=400)


def measured(folder: Path, suite: str, size: str, *settings: str) -> tuple[str, list[dict[str, str]]]:
    """Run one suite; return what it printed and the rows of its CSV. Its chart must be an image."""
    done = run_bench(folder, f"suite={suite}", *settings)
    assert done.returncode == 0, done.stderr
    with Image.open(folder / "out" / f"{suite}-{size}.png") as chart:
        assert min(chart.size) > 300
    with (folder / "out" / f"{suite}-{size}.csv").open() as stream:
        return done.stdout, list(csv.DictReader(stream))
