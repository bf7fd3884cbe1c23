"""Runs docs/tutorial.md as a reader does: every step, in order, on a folder of small photographs."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkouts import copy, library, tracked
from helpers.forks import run_forked
from helpers.pages import TUTORIAL, blocks
from helpers.pictures import jpeg
from helpers.scripts import wait_until

CLASSES = ("bear", "cat", "dog")
# What is not the same in every run: numbers, and the classes that a network guesses.
VARIES = re.compile(rf"(?:{'|'.join(CLASSES)})(?=[,\"])|[0-9][0-9.,]*|\.\.\.")


def pattern(line: str) -> re.Pattern[str]:
    """A line of the page as a pattern of what is printed."""
    kinds = {"...": ".*", **dict.fromkeys(CLASSES, f"(?:{'|'.join(CLASSES)})")}
    parts, place = [], 0
    for found in VARIES.finditer(line):
        parts += [re.escape(line[place : found.start()]), kinds.get(found[0], r"[0-9.,]+")]
        place = found.end()
    return re.compile("".join((*parts, re.escape(line[place:]))))


class Follower:
    """A reader who has photographs, and types what the page shows."""

    def __init__(self, place: Path) -> None:
        self.place = copy(place, tracked())
        for number in range(60):
            self._photo(f"animals/{CLASSES[number % 3]}/IMG_{number:04}.jpg", number)
        for number in range(301, 304):
            self._photo(f"new/IMG_{number:04}.jpg", number)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self._port = str(free.getsockname()[1])
        settings = {"TARPEG_LIB_DIR": library(), "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "120"}
        self._environment = {**settings, "PYTHONPATH": str(place / "datamodules")}
        self._server: subprocess.Popen[bytes] | None = None

    def _photo(self, name: str, seed: int) -> None:
        path = self.place / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg("420", 150, 200, seed=seed))

    def _here(self, text: str) -> str:
        return text.replace("/data/", f"{self.place}/data/").replace("8000", self._port)

    def script(self, text: str, number: int) -> str:
        """Run a block of Python; a server is a file for a later command."""
        name = "serve.py" if "serve_forever" in text else f"step{number}.py"
        (self.place / name).write_text(self._here(text))
        return "" if name == "serve.py" else self.type(f"python {name}")

    def type(self, command: str) -> str:
        line = self._here(command)
        if line.endswith("&"):
            words = [sys.executable, *shlex.split(line.removesuffix("&"))[1:]]
            self._server = subprocess.Popen(
                words, cwd=self.place, env={**os.environ, **self._environment}, stderr=subprocess.DEVNULL
            )
            assert wait_until(self._is_served, 60), command
            return ""
        if line.startswith("python "):
            done = run_forked(*shlex.split(line)[1:], cwd=self.place, **self._environment)
        else:
            done = subprocess.run(["bash", "-c", line], cwd=self.place, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stderr + done.stdout

    def _is_served(self) -> bool:
        assert self._server is not None and self._server.poll() is None, "the server has ended"
        with socket.socket() as client:
            return client.connect_ex(("localhost", int(self._port))) == 0

    def check(self, shown: str, printed: str) -> None:
        """Every line that the page shows is printed; bars of progress need a terminal."""
        for line in self._here(shown).splitlines():
            if not line.startswith("Epoch"):
                assert pattern(line).search(printed), f"{line!r} is not in:\n{printed}"

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()


@pytest.mark.slow
@pytest.mark.xdist_group("pages")
def test_a_reader_gets_from_photographs_to_a_served_model(tmp_path):
    reader, printed, answer = Follower(tmp_path), "", ""
    try:
        for number, block in enumerate(blocks(TUTORIAL)):
            if block.language == "python":
                printed = reader.script(block.text, number)
            elif block.language == "sh":
                lines = [line for line in block.text.splitlines() if not line.startswith("source ")]
                printed = "".join(reader.type(line) for line in lines)
                answer = printed
            elif printed:  # the first one shows the folder
                reader.check(block.text, printed)
    finally:
        reader.close()
    table = (tmp_path / "outputs/animals-new/predictions.csv").read_text().splitlines()
    _, name, probability = table[1].split(",")
    served = re.fullmatch(r'.*"class": "(\w+)", "probability": ([0-9.]+)}', answer, re.S)
    assert served and served[1] == name and abs(float(served[2]) - float(probability)) < 0.02
