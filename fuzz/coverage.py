"""Print the line coverage of the decoders' files, as llvm-cov exports it; fail if one is below 90%.

On a machine without AVX-512, files with code for it are printed and not judged: a part of them cannot run.
Functions that run in the compiler alone, which fill tables, are not counted.

llvm-cov export ... | python fuzz/coverage.py
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOMS = ("jpeg", "image", "png")
LEAST = 90.0


def cannot_run(path: Path, processor: str) -> bool:
    """Whether the file has code that this processor, as /proc/cpuinfo describes it, cannot run."""
    return "avx512_vbmi2" not in processor and path.is_file() and "avx512" in path.read_text()


def lines_in_the_compiler(functions: Iterable[dict[str, Any]]) -> dict[str, set[int]]:
    """Return the lines of constexpr functions that never ran, by file."""
    found: dict[str, set[int]] = defaultdict(set)
    ran: dict[str, set[int]] = defaultdict(set)
    for function in functions:
        name, (first, _, last, *_) = function["filenames"][0], function["regions"][0]
        lines = range(first, last + 1)
        if function["count"]:
            ran[name].update(lines)
        elif Path(name).is_file() and "constexpr" in Path(name).read_text().splitlines()[first - 1]:
            found[name].update(lines)
    return {name: lines - ran[name] for name, lines in found.items()}


def main() -> None:
    """Read what llvm-cov exports from standard input."""
    data = json.load(sys.stdin)["data"][0]
    aside = lines_in_the_compiler(data["functions"])
    found = {}
    for file in sorted(data["files"], key=lambda file: file["filename"]):
        path, lines = Path(file["filename"]), file["summary"]["lines"]
        if path.parent.name in ROOMS:
            count = lines["count"] - len(aside.get(file["filename"], ()))
            found[path] = 100 * lines["covered"] / count if count else 100.0, lines["covered"], count
    if not found:
        raise SystemExit("no decoder file in llvm-cov's export")
    print("line coverage of the decoders:")
    for path, (percent, covered, count) in found.items():
        print(f"  {f'{path.parent.name}/{path.name}':24} {percent:5.1f}%  {covered} of {count}")
    low = [path for path, (percent, *_) in found.items() if percent < LEAST]
    processor = Path("/proc/cpuinfo").read_text()
    partly = [path.name for path in low if cannot_run(path, processor)]
    if partly:
        print(f"not judged, as AVX-512 does not run here: {', '.join(partly)}")
    low = [path.name for path in low if path.name not in partly]
    if low:
        raise SystemExit(f"less than {LEAST:.0f}% covered: {', '.join(low)}. Add inputs to fuzz/seeds.py.")


if __name__ == "__main__":
    main()
