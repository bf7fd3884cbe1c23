"""Progress: a bar where there is a terminal, lines in the log where there is none, silence on other ranks."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tarpeg import progress

PACKAGE = Path(__file__).parents[1] / "datamodules"
LONG = """
import sys
sys.path.insert(0, {package!r})
from tarpeg import bars

progress._SOON = {soon}
with progress.progress("shards", 3) as show:
    for done in (1, 2, 3):
        show(done, f"{{done * 7}} images/s")
print("rich" in sys.modules)
"""


def on_a_terminal(soon: float, **environment: str) -> tuple[str, str]:
    """What is printed, and what the terminal shows that standard error is."""
    ours, theirs = pty.openpty()
    code = LONG.format(package=str(PACKAGE), soon=soon)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment}
    run = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed, and all is read
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return run.stdout.decode().strip(), shown.decode()


def test_a_terminal_has_a_bar():
    printed, shown = on_a_terminal(0)
    assert printed == "True"
    assert "shards" in shown and "3/3" in shown and "21 images/s" in shown


def test_what_is_done_soon_has_none_and_waits_for_no_import():
    assert on_a_terminal(60) == ("False", "")


def test_other_ranks_are_silent():
    assert on_a_terminal(0, LOCAL_RANK="1") == ("False", "")


@pytest.fixture
def lines(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "tarpeg.progress")
    monkeypatch.setattr(progress, "_NOW_AND_THEN", 0.0)
    return lambda: [record.getMessage() for record in caplog.records]


def test_without_a_terminal_there_are_lines(lines, capsys):
    with progress.progress("shards") as show:
        show(1)
        show(2, "5 images/s", 3)
    assert lines() == ["shards: 1 of unknown", "shards: 2 of 3, 5 images/s"]
    assert capsys.readouterr().err == ""


def test_opening_shards_shows_how_far_it_is(photos, lines):
    from tarpeg.shards.mapped import Shards

    Shards(sorted(photos.glob("*.tar")))
    assert lines() == ["shards indexed: 1 of 2", "shards indexed: 2 of 2"]
