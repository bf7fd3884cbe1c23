"""Python scripts in forks of one process, which has done the imports that take seconds in every training."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Nothing of tarpeg is imported before the fork: a script imports its own checkout's.
_HOST = """
import gc, json, os, runpy, signal, sys
gc.disable()
import hydra, lightning, rich.progress, torch, torchmetrics, torchvision
gc.freeze()  # no fork copies these objects to count their references
gc.enable()

for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)
for number, path in enumerate(job["outputs"]):
    os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)
os.chdir(job["place"])
os.environ.clear()
os.environ.update(job["environment"])
sys.argv = job["arguments"]
places = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.path[:1] = [os.path.dirname(os.path.abspath(sys.argv[0])), *places]
signal.alarm(job["timeout"])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@functools.cache
def _host(python: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    host = subprocess.Popen([python, "-c", _HOST], **pipes, env=environment, cwd="/", text=True)
    assert host.stdin is not None
    atexit.register(host.stdin.close)
    return host


def run_forked(
    script: object, *arguments: object, cwd: Path | None = None, timeout: int = 280, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own, with these variables added to ours."""
    command = [str(script), *map(str, arguments)]
    return fork(sys.executable, command, cwd or Path.cwd(), {**os.environ, **environment}, timeout)


def fork(
    python: str, command: list[str], cwd: Path, environment: dict[str, str], timeout: int = 280
) -> subprocess.CompletedProcess[str]:
    """Run a script and its arguments in a fork of that interpreter, with these variables alone."""
    with tempfile.TemporaryDirectory() as logs:
        paths = [Path(logs, name) for name in ("stdout", "stderr")]
        for path in paths:
            path.touch()
        job = {
            "arguments": command,
            "place": str(cwd),
            "environment": environment,
            "outputs": [os.devnull, *map(str, paths)],
            "timeout": timeout,
        }
        host = _host(python)
        assert host.stdin is not None and host.stdout is not None
        host.stdin.write(json.dumps(job) + "\n")
        host.stdin.flush()
        status = host.stdout.readline()
        assert status, "the process that runs the scripts has ended"
        output, errors = (path.read_text(errors="replace") for path in paths)
    return subprocess.CompletedProcess(command, int(status), output, errors)
