"""The decoders under libFuzzer, the operators under ASan and UBSan: fuzz/run.sh and fuzz/asan.sh."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import object_cache
from helpers.checkouts import ROOT

NO_CLANG = 77


def run(*command: str, text: str = "", **environment: str) -> tuple[int, str]:
    """Exit status and output; a timeout of the test kills the command too."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=text,
        env={**os.environ, **environment},
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


def test_a_file_with_code_that_cannot_run_is_not_judged(tmp_path: Path) -> None:
    cannot_run = runpy.run_path(str(ROOT / "fuzz" / "coverage.py"))["cannot_run"]
    (tmp_path / "wide.cpp").write_text('__attribute__((target("avx512f"))) void f() {}')
    (tmp_path / "plain.cpp").write_text("void f() {}")
    judged = [
        not cannot_run(tmp_path / f"{name}.cpp", processor)
        for name in ("wide", "plain")
        for processor in ("flags: avx2", "flags: avx2 avx512f avx512_vbmi2")
    ]
    assert judged == [False, True, True, True]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fuzzing_for_seconds_finds_nothing_and_covers_the_decoders() -> None:
    settings = {"FUZZ_SECONDS": "10", "FUZZ_LAUNCHER": shlex.join(object_cache.launcher())}
    code, words = run("fuzz/run.sh", sys.executable, **settings)
    if code == NO_CLANG:
        pytest.skip(words.splitlines()[-1])
    assert code == 0, words[-8000:]
    assert "Done " in words and "jpeg/means.cpp" in words


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_operators_run_clean_under_the_sanitizers() -> None:
    """Those of the quick loop that start no processes and take little of the time; make asan runs all."""
    left_out = ("portable_code", "shrink_to_nothing", "too_little_memory", "opcheck")
    chosen = ("-m", "not slow", "-k", " and ".join(f"not {name}" for name in left_out))
    code, words = run("fuzz/asan.sh", sys.executable, *chosen, CXX=object_cache.compiler())
    assert code == 0, words[-8000:]
    assert " passed" in words
