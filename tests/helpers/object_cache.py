"""A compiler that compiles the same source once per test run: many tests build the library from a copy.

``compiler()`` is a value for CXX. Run as a program, with the real compiler's command as arguments, this file
takes the object of an equal call: of the same flags and preprocessed text, in a copy of the checkout too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = "TARPEG_TEST_OBJECTS"  # set by conftest.py


def compiler() -> str:
    """The command of the cached compiler; of the plain one if there is no folder for the objects."""
    from tarpeg.ops import library

    if FOLDER not in os.environ:
        return shlex.join(library.compiler())
    # Its name is that of a launcher, so that nvcc gets the compiler behind it.
    launcher = Path(os.environ[FOLDER]) / "ccache"
    if not launcher.exists():
        aside = launcher.with_name(f"ccache.{os.getpid()}")
        command = shlex.join(
            ["env", f"{FOLDER}={launcher.parent}", sys.executable, "-ES", str(Path(__file__))]
        )
        aside.write_text(f'#!/bin/sh\n{command} "$@"\n')
        aside.chmod(0o755)
        aside.replace(launcher)
    return shlex.join([str(launcher), *library.compiler()])


def main(command: list[str]) -> int:
    """Run a call of the compiler; a call that compiles one file is looked up first."""
    if not {"-c", "-o", "-I"} <= {*command}:
        return subprocess.run(command, check=False).returncode
    out = Path(command[command.index("-o") + 1])
    flags = [word for word in command if word not in ("-c", "-o", str(out))]
    text = subprocess.run([*flags, "-E", "-P"], stdout=subprocess.PIPE, check=False)
    if text.returncode:
        return text.returncode
    # Where the copy is: in the paths of sources and headers, and in the text of messages.
    place = str(Path(flags[flags.index("-I") + 1]).parent).encode()
    key = hashlib.sha256(repr(flags).encode().replace(place, b"") + text.stdout.replace(place, b""))
    kept = Path(os.environ[FOLDER]) / f"{key.hexdigest()}.o"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an equal call at the same time waits for the object
        if not kept.exists():
            if status := subprocess.run(command, check=False).returncode:
                return status
            shutil.copy(out, kept.with_suffix(".new"))
            kept.with_suffix(".new").replace(kept)
        shutil.copy(kept, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
