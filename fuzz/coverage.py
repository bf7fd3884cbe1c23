"""Print the line coverage of the decoders' files, as llvm-cov exports it; fail if one is below 90%.

On a machine without AVX-512, files with code for it are printed and not judged: a part of them cannot run.

llvm-cov export -summary-only ... | python fuzz/coverage.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOMS = ("jpeg", "image")
LEAST = 90.0
IN_THE_COMPILER = {"lanes.h"}  # its tables are computed at compile time, and never counted


def cannot_run(path: Path, processor: str) -> bool:
    """Whether the file has code that this processor, as /proc/cpuinfo describes it, cannot run."""
    return "avx512_vbmi2" not in processor and path.is_file() and "avx512" in path.read_text()


def main() -> None:
    """Read the summary from standard input."""
    files = json.load(sys.stdin)["data"][0]["files"]
    lines = {Path(file["filename"]): file["summary"]["lines"] for file in files}
    found = {path: summary for path, summary in sorted(lines.items()) if path.parent.name in ROOMS}
    if not found:
        raise SystemExit("no decoder file in llvm-cov's summary")
    print("line coverage of the decoders:")
    for path, summary in found.items():
        name = f"{path.parent.name}/{path.name}"
        print(f"  {name:24} {summary['percent']:5.1f}%  {summary['covered']} of {summary['count']}")
    low = [path for path, summary in found.items() if summary["percent"] < LEAST]
    processor = Path("/proc/cpuinfo").read_text()
    partly = [path.name for path in low if cannot_run(path, processor)]
    if partly:
        print(f"not judged, as AVX-512 does not run here: {', '.join(partly)}")
    low = [path.name for path in low if path.name not in {*partly, *IN_THE_COMPILER}]
    if low:
        raise SystemExit(f"less than {LEAST:.0f}% covered: {', '.join(low)}. Add inputs to fuzz/seeds.py.")


if __name__ == "__main__":
    main()
