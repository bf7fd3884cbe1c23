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


@pytest.mark.parametrize("covered, status", [(90, 0), (89, 1)])
def test_a_decoder_file_with_low_coverage_fails(covered: int, status: int) -> None:
    lines = {"covered": covered, "count": 100}
    files = [
        {"filename": f"/x/native/{name}", "summary": {"lines": lines}}
        for name in ("jpeg/a.cpp", "base/b.cpp")
    ]
    exported = json.dumps({"data": [{"files": files, "functions": []}]})
    code, words = run(sys.executable, "fuzz/coverage.py", text=exported)
    assert code == status and f"jpeg/a.cpp{covered:18}.0%" in words and "b.cpp" not in words
    assert ("less than 90% covered: a.cpp" in words) == (status == 1)


def test_functions_of_the_compiler_are_not_counted(tmp_path: Path) -> None:
    file = tmp_path / "jpeg" / "a.cpp"
    file.parent.mkdir()
    file.write_text("constexpr int table() {\n  return 1;\n}\nint used() {\n  return 2;\n}\n")

    def function(first: int, last: int, count: int) -> dict[str, object]:
        return {"filenames": [str(file)], "regions": [[first, 1, last, 1, count]], "count": count}

    files = [{"filename": str(file), "summary": {"lines": {"covered": 3, "count": 6}}}]
    for functions, status in (([function(1, 3, 0)], 0), ([function(4, 6, 0)], 1), ([function(1, 3, 9)], 1)):
        exported = json.dumps({"data": [{"files": files, "functions": functions}]})
        assert run(sys.executable, "fuzz/coverage.py", text=exported)[0] == status, functions


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
