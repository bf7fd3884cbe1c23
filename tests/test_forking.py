"""A worker that hangs while it is forked is told, ended and replaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

# Hooks of a fork cannot be taken back: in a process of its own. {hang} children of it hang at birth.
LOOP = """
import faulthandler, os, sys, time
from pathlib import Path

faulthandler.dump_traceback_later(100, exit=True)
sys.path[:0] = {paths!r}
from test_loader import load
from tarpeg import forking

forking._PATIENCE = (0.5, 0.5)
hung = Path({folder!r})

def hang():
    for number in range({hang}):
        try:
            (hung / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        time.sleep(1000)

os.register_at_fork(after_in_child=hang)
loader = load({photos!r}, batch_size=4, workers=2)
print(sum(len(batch.label) for batch in loader))
loader.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


def run(photos, folder: Path, hang: int) -> subprocess.CompletedProcess:
    paths = [str(HERE), str(HERE.parent / "datamodules")]
    code = LOOP.format(paths=paths, folder=str(folder), photos=str(photos), hang=hang)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_one_that_hangs_is_replaced(photos, tmp_path):
    result = run(photos, tmp_path, 1)
    assert result.stdout.splitlines() == ["23", "no child is left"], result.stderr
    assert "hung before it began" in result.stderr


def test_where_all_hang_it_says_what_to_do(photos, tmp_path):
    result = run(photos, tmp_path, 9)
    assert result.returncode == 1
    assert "Use threads (workers=0), or a newer Python" in result.stderr
