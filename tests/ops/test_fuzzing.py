"""The decoders under libFuzzer, the operators under ASan and UBSan: fuzz/run.sh and fuzz/asan.sh."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.checkouts import ROOT

NO_CLANG = 77


def run(*command: str, text: str = "") -> tuple[int, str]:
    """Exit status and output; a timeout of the test kills the command too."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=840,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("percent, status", [(90.0, 0), (89.9, 1)])
def test_a_decoder_file_with_low_coverage_fails(percent: float, status: int) -> None:
    lines = {"covered": 1, "count": 2, "percent": percent}
    files = [
        {"filename": f"/x/native/{name}", "summary": {"lines": lines}}
        for name in ("jpeg/a.cpp", "base/b.cpp")
    ]
    code, words = run(sys.executable, "fuzz/coverage.py", text=json.dumps({"data": [{"files": files}]}))
    assert code == status and f"jpeg/a.cpp{percent:20.1f}%" in words and "b.cpp" not in words
    assert ("less than 90% covered: a.cpp" in words) == (status == 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fuzzing_for_half_a_minute_finds_nothing_and_covers_the_decoders() -> None:
    code, words = run("env", "FUZZ_SECONDS=30", "fuzz/run.sh", sys.executable)
    if code == NO_CLANG:
        pytest.skip(words.splitlines()[-1])
    assert code == 0, words[-8000:]
    assert "Done " in words and "jpeg/means.cpp" in words


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_operators_run_clean_under_the_sanitizers() -> None:
    # Without those that start processes or take half of the time: make asan runs all.
    left_out = ("portable_code", "shrink_to_nothing", "too_little_memory", "opcheck")
    code, words = run("fuzz/asan.sh", sys.executable, "-k", " and ".join(f"not {name}" for name in left_out))
    assert code == 0, words[-8000:]
    assert " passed" in words
