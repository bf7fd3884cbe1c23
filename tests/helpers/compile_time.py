"""The processor time of a fixed compilation, which a busy machine lengthens as it does others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tarpeg.ops import compiler


def reference(folder: Path) -> Path:
    """Write a file with a regular expression, which takes long to compile."""
    file = folder / "regex.cpp"
    file.write_text(
        '#include <regex>\nbool f(const char* s) { return std::regex_match(s, std::regex("a+b")); }\n'
    )
    return file


def reference_seconds(folder: Path, jobs: int = 1) -> float:
    """Compile a file with a regular expression ``jobs`` times at once: 3.05 s each on a quiet machine.

    Two compilers at once on the two threads of a core take longer than one.
    """
    file = reference(folder)
    command = [*compiler.find_compiler(), *compiler.COMPILE_FLAGS, "-c", str(file)]
    before = seconds_of_children()
    each = [subprocess.Popen([*command, "-o", str(folder / f"regex{number}.o")]) for number in range(jobs)]
    assert [process.wait() for process in each] == [0] * jobs
    return (seconds_of_children() - before) / jobs


def seconds_of_children() -> float:
    """The processor time of the processes that this one has waited for."""
    return sum(os.times()[2:4])
