"""Python scripts in processes of their own, which import tarpeg and the helpers of this checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
PATHS = f"import sys\nsys.path[:0] = {[str(TESTS), str(TESTS.parent / 'datamodules')]!r}\n"
"""The first lines of such a script."""


def run_script(code: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run the code and return its status and output."""
    command = [sys.executable, "-c", PATHS + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
