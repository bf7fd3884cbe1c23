"""The processor time of a fixed compilation, which a busy machine lengthens as it does others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tarpeg.ops import compiler


def reference_seconds(folder: Path) -> float:
    """Compile a file with a regular expression: 3.05 s on a quiet machine of 2025."""
    file = folder / "regex.cpp"
    file.write_text(
        '#include <regex>\nbool f(const char* s) { return std::regex_match(s, std::regex("a+b")); }\n'
    )
    command = [*compiler.find_compiler(), *compiler.COMPILE_FLAGS, "-c", str(file)]
    before = seconds_of_children()
    subprocess.run([*command, "-o", str(folder / "regex.o")], check=True)
    return seconds_of_children() - before


def seconds_of_children() -> float:
    """The processor time of the processes that this one has waited for."""
    return sum(os.times()[2:4])
