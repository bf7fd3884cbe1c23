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
from tarpeg import crew

crew._PATIENCE = (0.5, 0.5)
hung = Path({folder!r})

def hang():
    for number in range({hang}):
        try:
            (hung / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        {does}

{first}
os.register_at_fork(after_in_child=hang)
loader = load({photos!r}, batch_size=4, workers=2)
print(sum(len(batch.label) for batch in loader))
loader.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


def run(
    photos, folder: Path, hang: int, does: str = "time.sleep(1000)", first: str = ""
) -> subprocess.CompletedProcess:
    paths = [str(HERE), str(HERE.parent / "datamodules")]
    code = LOOP.format(paths=paths, folder=str(folder), photos=str(photos), hang=hang, does=does, first=first)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_one_that_hangs_is_replaced(photos, tmp_path):
    result = run(photos, tmp_path, 1)
    assert result.stdout.splitlines() == ["23", "no child is left"], result.stderr
    assert "was not heard of for 0.5 s before it began: another is started" in result.stderr


def test_one_that_dies_is_replaced_and_nobody_waits(photos, tmp_path):
    result = run(photos, tmp_path, 1, "os._exit(3)")
    assert result.stdout.splitlines() == ["23", "no child is left"], result.stderr
    assert "died before it began: another is started" in result.stderr


def test_one_that_is_too_slow_leaves_no_lock_behind(photos, tmp_path):
    result = run(photos, tmp_path, 1, "time.sleep(0.5)")
    assert result.stdout.splitlines() == ["23", "no child is left"], result.stderr


def test_a_process_with_many_files_open(photos, tmp_path):
    many = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000)); "
    many += "held = [os.dup(0) for _ in range(1100)]"
    result = run(photos, tmp_path, 0, "pass", many)
    assert result.stdout.splitlines() == ["23", "no child is left"], result.stderr


def test_where_all_hang_it_says_what_to_do(photos, tmp_path):
    result = run(photos, tmp_path, 9)
    assert result.returncode == 1
    assert "did not begin to work; the last was not heard of for 0.5 s" in result.stderr
