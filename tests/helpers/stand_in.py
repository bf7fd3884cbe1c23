"""A package with a stand-in for the native sources, and Python processes that build and load it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tarpeg.ops import library

from helpers.scripts import write_program

PACKAGE = Path(library.__file__).parents[1]
WAIT_S = 60


def start(code: str, *prefix: str, path: Path = PACKAGE.parent, **env: str | Path) -> subprocess.Popen[str]:
    """Start Python with no variables of tarpeg but those given."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TARPEG_")}
    env = clean | {"PYTHONPATH": str(path)} | {key: str(value) for key, value in env.items()}
    command, pipe = [*prefix, sys.executable, "-c", code], subprocess.PIPE
    return subprocess.Popen(command, env=env, cwd="/", stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str], timeout: float = WAIT_S) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out.strip(), err


class Site:
    """A copy of the package's loading half with a stand-in for the native sources, and a way to run it."""

    def __init__(self, home: Path) -> None:
        self.home, self.package = home, home / "site" / "tarpeg"
        self.native, self.lib, self.calls = self.package / "native", self.package / "_lib", home / "calls"
        self.native.mkdir(parents=True)
        (self.package / "ops").mkdir()
        for name in ("__init__.py", "errors.py", "ops/__init__.py", "ops/compiler.py", "ops/library.py"):
            shutil.copy(PACKAGE / name, self.package / name)
        (self.native / "one.h").write_text("int two();\n")
        (self.native / "one.cpp").write_text('#include "one.h"\nextern "C" int one() { return two() - 1; }\n')
        two = "#include <cstdio>\n#include <jpeglib.h>\nint two() { return 2; }\n"
        (self.native / "two.cpp").write_text(two)

    def start(self, code: str, *prefix: str, **env: str) -> subprocess.Popen[str]:
        cache = {"XDG_CACHE_HOME": self.home / "cache"}
        return start(code, *prefix, path=self.home / "site", **cache, **env)

    def run(self, code: str, *prefix: str, **env: str) -> tuple[int, str, str]:
        return finish(self.start(code, *prefix, **env))

    def error(self, code: str, **env: str) -> str:
        """The standard error of a run that must fail with a BuildError."""
        status, _, err = self.run(code, **env)
        assert status != 0 and "tarpeg.errors.BuildError: " in err
        return err

    def compiler(self, script: str) -> str:
        """A compiler that records each call and then runs the script."""
        return write_program(self.home / "compiler", f'#!/bin/bash\necho "$$" >> {self.calls}\n{script}\n')

    def libraries(self) -> list[Path]:
        return sorted(self.lib.glob("*.so"))

    def leftovers(self) -> list[Path]:
        return sorted(self.lib.glob(".build-*"))
