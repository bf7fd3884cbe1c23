"""Progress: a bar on a terminal, log lines without one, nothing on other ranks."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import tarpeg
from tarpeg import progress

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from tarpeg import progress

progress._BAR_AFTER = float(sys.argv[2])
with progress.progress("shards", 3) as update:
    for done in (1, 2, 3):
        update(done, f"{done * 7} images/s")
print("rich" in sys.modules)
"""


def on_a_terminal(bar_after: float, **environment: str) -> tuple[str, str]:
    """Run SCRIPT with a terminal as standard error; return its standard output and the terminal's text."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SCRIPT, str(Path(tarpeg.__file__).parents[1]), str(bar_after)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment}
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # Linux's way to report the end of a terminal
        pass
    os.close(ours)
    return run.stdout.decode().strip(), shown.decode()


def test_a_terminal_has_a_bar():
    printed, shown = on_a_terminal(0)
    assert printed == "True"
    assert "shards" in shown and "3/3" in shown and "21 images/s" in shown


@pytest.mark.parametrize(("bar_after", "rank"), [(60, "0"), (0, "1")], ids=["short task", "another rank"])
def test_nothing_is_shown_nor_imported(bar_after, rank):
    assert on_a_terminal(bar_after, LOCAL_RANK=rank) == ("False", "")


@pytest.fixture
def messages(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "tarpeg.progress")
    monkeypatch.setattr(progress, "_LOG_EVERY", 0.0)
    return lambda: caplog.messages


def test_without_a_terminal_there_are_log_lines(messages, capsys):
    with progress.progress("shards") as update:
        update(1)
        update(2, "5 images/s", 3)
    assert messages() == ["shards: 1 of unknown", "shards: 2 of 3, 5 images/s"]
    assert capsys.readouterr().err == ""


def test_opening_shards_shows_progress(photos, messages):
    from tarpeg.shards.mapped import Shards

    Shards(sorted(photos.glob("*.tar")))
    assert messages() == ["shards indexed: 1 of 2", "shards indexed: 2 of 2"]
