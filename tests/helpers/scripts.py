"""Python scripts and the tools of this checkout, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
PATHS = f"import sys\nsys.path[:0] = {[str(TESTS), str(TESTS.parent / 'datamodules')]!r}\n"
"""The first lines of such a script."""


PARENT, SESSION = 1, 3
"""Fields of /proc/PID/stat, counted from the state of the process."""


def live_processes(field: int, number: int) -> set[int]:
    """The processes, other than zombies, with that parent or session."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        if fields and fields[0] != "Z" and int(fields[field]) == number:
            found.add(int(entry.name))
    return found


def run_script(code: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run the code and return its status and output."""
    command = [sys.executable, "-c", PATHS + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def run_file(path: Path, code: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    """Run the code from that file, as Lightning needs to start it once per rank."""
    path.write_text(PATHS + code)
    command = [sys.executable, path]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def run_two_ranks(folder: Path, code: str) -> list[Any]:
    """Run code in which each of two ranks writes ``rank0.json`` or ``rank1.json``; return both contents."""
    done = run_file(folder / "ddp.py", code)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def run_tool(name: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run tools/NAME.py with the arguments and return its status and output."""
    command = [sys.executable, str(TESTS.parent / "tools" / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)
