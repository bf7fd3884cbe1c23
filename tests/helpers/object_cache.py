"""A compiler that compiles the same source once: many tests build the library, or parts of it, from a copy.

``compiler()`` is a value for CXX, ``launcher()`` goes before any other compiler. Run as a program, with the
real compiler's command as arguments, this file takes the object of an equal call: of the same compiler, flags
and preprocessed text, in a copy of the checkout too. Objects stay in the user's cache for two weeks after
their last use, so that a second run of the tests compiles what has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

FOLDER = "TARPEG_TEST_OBJECTS"  # set by conftest.py
SECONDS = "TARPEG_TEST_SECONDS"
"""A file for the processor time that each object took when it was compiled, a line per call."""
DAYS = 14
_COMMAND = [sys.executable, "-ES", str(Path(__file__).resolve())]


def folder() -> Path:
    """Return the folder of the objects; those that were not used for two weeks are removed."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = base / "tarpeg-tests" / "objects"
    place.mkdir(parents=True, exist_ok=True)
    for path in place.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_mtime < time.time() - DAYS * 86400:
                path.unlink()
    return place


def launcher() -> list[str]:
    """The words before a compiler's command; none if there is no folder for the objects."""
    if FOLDER not in os.environ:
        return []
    # Its name is that of a launcher, so that nvcc gets the compiler behind it.
    script = (
        Path(os.environ[FOLDER]) / f"{hashlib.sha256(repr(_COMMAND).encode()).hexdigest()[:8]}" / "ccache"
    )
    if not script.exists():
        script.parent.mkdir(exist_ok=True)
        aside = script.with_name(f"ccache.{os.getpid()}")
        command = shlex.join(["env", f"{FOLDER}={os.environ[FOLDER]}", *_COMMAND])
        aside.write_text(f'#!/bin/sh\n{command} "$@"\n')
        aside.chmod(0o755)
        aside.replace(script)
    return [str(script)]


def compiler() -> str:
    """The command of the cached compiler; of the plain one if there is no folder for the objects."""
    from tarpeg.ops import compiler

    return shlex.join([*launcher(), *compiler.find_compiler()])


def key(command: list[str]) -> str | None:
    """A hash of what makes the object: compiler, flags, text; None if the text cannot be preprocessed."""
    program = Path(shutil.which(command[0]) or command[0]).resolve().stat()
    out = command[command.index("-o") + 1]
    flags = [word for word in command if word not in ("-c", "-o", out)]
    # Objects with lines of the source in them, of debuggers or coverage, depend on the numbers of the lines.
    with_lines = any(flag.startswith("-g") for flag in flags)
    text = subprocess.run(
        [*flags, "-E", *(() if with_lines else ("-P",))], stdout=subprocess.PIPE, check=False
    )
    if text.returncode:
        return None
    # Where the copy is: in the paths of sources and headers, and in the text of messages.
    place = str(Path(flags[flags.index("-I") + 1]).parent if "-I" in flags else Path.cwd()).encode()
    facts = repr((program.st_size, program.st_mtime_ns, flags)).encode()
    return hashlib.sha256(facts.replace(place, b"") + text.stdout.replace(place, b"")).hexdigest()


def main(command: list[str]) -> int:
    """Run a call of the compiler; a call that compiles one file is looked up first."""
    found = key(command) if {"-c", "-o"} <= {*command} else None
    if found is None:
        return subprocess.run(command, check=False).returncode
    out, kept = Path(command[command.index("-o") + 1]), Path(os.environ[FOLDER]) / f"{found}.o"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an equal call at the same time waits for the object
        if not kept.exists():
            before = sum(os.times()[2:4])
            if status := subprocess.run(command, check=False).returncode:
                return status
            kept.with_suffix(".seconds").write_text(f"{sum(os.times()[2:4]) - before}\n")
            shutil.copy(out, kept.with_suffix(".new"))
            kept.with_suffix(".new").replace(kept)
        shutil.copy(kept, out)
        for path in (kept, kept.with_suffix(".seconds")):
            path.touch()
        if SECONDS in os.environ:
            with Path(os.environ[SECONDS]).open("a") as log:
                log.write(kept.with_suffix(".seconds").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
