"""Python scripts and the tools of this checkout, in processes of their own."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from helpers.forks import run_forked

TESTS = Path(__file__).parents[1]
PATHS = f"import sys\nsys.path[:0] = {[str(TESTS), str(TESTS.parent / 'datamodules')]!r}\n"
"""The first lines of such a script."""

PARENT, SESSION = 1, 3
"""Fields of /proc/PID/stat, counted from the state of the process."""


def live_processes(field: int, number: int, zombies: bool = False) -> set[int]:
    """The processes with that parent or session; without zombies, unless asked for."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        if fields and (zombies or fields[0] != "Z") and int(fields[field]) == number:
            found.add(int(entry.name))
    return found


def wait_until(is_done: Callable[[], object], seconds: float = 10) -> bool:
    """Wait until the condition holds, at most that long; return whether it does."""
    deadline = time.monotonic() + seconds
    while not is_done() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(is_done())


def run_python(
    *arguments: object, cwd: Path | None = None, timeout: float = 280, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python with the arguments, and with these variables added to ours."""
    command, env = [sys.executable, *map(str, arguments)], {**os.environ, **environment}
    return subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
    )


def run_script(code: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run the code and return its status and output."""
    return run_python("-c", PATHS + code, timeout=timeout)


def run_file(path: Path, code: str, timeout: int = 280) -> subprocess.CompletedProcess[str]:
    """Run the code from that file, as Lightning needs to start it once per rank."""
    path.write_text(PATHS + code)
    return run_forked(path, timeout=timeout)


def run_two_ranks(folder: Path, code: str) -> list[Any]:
    """Run code in which each of two ranks writes ``rank0.json`` or ``rank1.json``; return both contents."""
    done = run_file(folder / "ddp.py", code)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


_PROCESSES = """
import os, signal, socket
{imports}
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
children = set()
for rank in range({count}):
    child = os.fork()
    if not child:
        break
    children.add(child)
else:
    status = 0
    while children:
        child, ended = os.wait()
        children.discard(child)
        if ended and not status:  # the others would wait for it
            status = os.waitstatus_to_exitcode(ended)
            for other in children:
                os.kill(other, signal.SIGKILL)
    os._exit(abs(status))
os.environ |= {{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "{count}"}}
os.environ |= {{"LOCAL_WORLD_SIZE": "{count}", "OMP_NUM_THREADS": "1"}}
os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}}
"""


def run_processes(folder: Path, count: int, code: str, imports: str = "") -> subprocess.CompletedProcess[str]:
    """Run code in processes with the environment that torchrun sets, and with their number in ``rank``.

    ``imports``: code that runs once, before the processes are forked.
    """
    return run_file(folder / "processes.py", _PROCESSES.format(imports=imports, count=count) + code)


def run_tool(
    name: str, *arguments: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run tools/NAME.py with the arguments and return its status and output."""
    return run_forked(TESTS.parent / "tools" / f"{name}.py", *arguments, cwd=cwd, **environment)


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


NO_JPEGLIB = """#!/bin/sh
echo 'jpeg.h:1:10: fatal error: jpeglib.h: No such file or directory' >&2; exit 1
"""
"""A compiler without the headers of libjpeg."""


def write_program(path: Path, script: str) -> str:
    """Write a shell script, such as a compiler that fails; return its path."""
    path.write_text(script)
    path.chmod(0o755)
    return str(path)
