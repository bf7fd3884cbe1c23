"""The pages of the documentation, their code blocks and commands, and a shell that runs them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from helpers.checkouts import ROOT

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
# The beginning of a command line, in a text or in a block.
PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:python3?|pip|make|export|source|git|cd|\.ci/run|tensorboard)(?=\s|$)"
)


class Block(NamedTuple):
    """A fenced block: language, text, and line number."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    lines, found, begun = (ROOT / page).read_text().splitlines(), [], None
    for number, line in enumerate(lines, start=1):
        fence = re.fullmatch(r"\s*```(\S*)", line)
        if fence and begun is None:
            begun = (fence[1], number)
        elif fence and begun:
            found.append(Block(begun[0], "\n".join(lines[begun[1] : number - 1]) + "\n", begun[1]))
            begun = None
    assert begun is None, f"{page}: the block of line {begun} does not end"
    return found


def commands(page: str) -> list[str]:
    """All commands of a page: the lines of shell blocks, then commands between backquotes."""
    found = []
    for block in blocks(page):
        if block.language == "sh":
            lines = block.text.replace("\\\n", " ").splitlines()
            found += [re.sub(r"\s+#\s.*$", "", line).strip() for line in lines]
    text = re.sub(r"^\s*```.*?^\s*```", "", (ROOT / page).read_text(), flags=re.M | re.S)
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    found += [span for span in spans if PROGRAM.match(span) and (" " in span or span.startswith("."))]
    return list(dict.fromkeys(command for command in found if command and not command.startswith("#")))


class Done(NamedTuple):
    status: int
    output: str


# Imports that take seconds in every training or tool, done once and shared by forks.
_HOST = """
import json, os, runpy, sys
import hydra, lightning, rich.progress, torch, torchmetrics, torchvision

for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)
for number in (0, 1, 2):
    os.dup2(os.open(job["log"] if number else os.devnull, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
os.chdir(job["place"])
sys.argv = job["arguments"]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Shell:
    """Runs commands in a folder: Python scripts in forks of one process, anything else by bash."""

    def __init__(self, place: Path, environment: dict[str, str]) -> None:
        self.place = place
        self._environment = environment
        self._log = place / "log.txt"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._host = subprocess.Popen(
            [sys.executable, "-c", _HOST], **pipes, env=environment, cwd=place, text=True
        )

    def run(self, command: str) -> Done:
        words = shlex.split(command)
        if words[0] == "python" and words[1].endswith(".py"):
            return self.script(words[1:])
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.place,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Done(done.returncode, done.stdout)

    def script(self, arguments: Sequence[str]) -> Done:
        self._log.write_text("")
        job = {"place": str(self.place), "arguments": arguments, "log": str(self._log)}
        assert self._host.stdin is not None and self._host.stdout is not None
        self._host.stdin.write(json.dumps(job) + "\n")
        self._host.stdin.flush()
        status = self._host.stdout.readline()
        assert status, "the process that runs the scripts has ended"
        return Done(int(status), self._log.read_text())

    def close(self) -> None:
        assert self._host.stdin is not None
        self._host.stdin.close()
        self._host.wait()
