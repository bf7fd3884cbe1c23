"""A compiler that compiles the same source once: many tests build the library, or parts of it, from a copy.

``compiler()`` is a value for CXX, ``toolkit()`` for CUDA_HOME; ``launcher()`` goes before any other compiler.
Run as a program, with the real compiler's command as arguments, this file takes the object of an equal call:
of the same compiler, flags and preprocessed text, in a copy of the checkout too. Preprocessing takes seconds
for all sources: it is left out while the source and all files that it included are the same. Objects stay in
the user's cache for two weeks after their last use, so that a second run of the tests compiles what has
changed. `make setup` of .ci/run puts its objects there too.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
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


def toolkit(place: Path) -> str:
    """Make a folder for CUDA_HOME, whose nvcc keeps objects; raise BuildError without an nvcc."""
    from tarpeg.ops import compiler

    words = shlex.join([*launcher(), compiler.find_nvcc()[0]])
    nvcc = place / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    nvcc.chmod(0o755)
    return str(place)


class Call:
    """A call that compiles one file."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.out = command[command.index("-o") + 1]
        self.flags = [word for word in command if word not in ("-c", "-o", self.out)]
        self.is_nvcc = Path(command[0]).name == "nvcc"
        # Where the copy is: in the paths of sources and headers, and in the text of messages.
        has_folder = "-I" in self.flags
        self.place = str(Path(self.flags[self.flags.index("-I") + 1]).parent if has_folder else Path.cwd())

    @functools.cached_property
    def facts(self) -> bytes:
        """The compiler and its flags."""
        program = Path(shutil.which(self.command[0]) or self.command[0]).resolve().stat()
        flags = repr((program.st_size, program.st_mtime_ns, self.flags)).encode().replace(self._here, b"")
        # Objects for coverage have the whole paths of their sources, which must be there when it is judged.
        return flags + self._here * ("-fcoverage-mapping" in self.flags)

    @property
    def _here(self) -> bytes:
        return self.place.encode()

    def key(self) -> tuple[str, set[str]] | None:
        """A hash of what makes the object, and the files read; None if the text cannot be preprocessed."""
        return self._key_of_files() if self.is_nvcc else self._key_of_text()

    def _key_of_text(self) -> tuple[str, set[str]] | None:
        # Objects with lines of the source in them, of debuggers or coverage, depend on their numbers.
        with_lines = any(flag.startswith("-g") for flag in self.flags)
        done = subprocess.run([*self.flags, "-E"], stdout=subprocess.PIPE, check=False)
        if done.returncode:
            return None
        files = {found.decode() for found in re.findall(rb'^# \d+ "([^"\n<]+)"', done.stdout, re.M)}
        text = done.stdout if with_lines else re.sub(rb"^(?:# \d+ .*)?\n", b"", done.stdout, flags=re.M)
        return hashlib.sha256(self.facts + text.replace(self._here, b"")).hexdigest(), files

    def _key_of_files(self) -> tuple[str, set[str]] | None:
        """Of all headers beside those that the host's code reads: the text differs by architecture."""
        done = subprocess.run([*self.flags, "-M"], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            return None
        folder = Path(self.flags[self.flags.index("-I") + 1])
        files = {*done.stdout.partition(":")[2].replace("\\\n", " ").split()}
        files |= {str(path) for path in folder.rglob("*.h")}
        parts = sorted((path.replace(self.place, ""), _digest(path)) for path in files)
        return hashlib.sha256(self.facts + repr(parts).encode()).hexdigest(), files

    def _memory(self) -> Path:
        sources = [Path(word) for word in self.flags if Path(word).suffix in (".c", ".cpp", ".cu", ".cc")]
        text = b"".join(path.read_bytes() for path in sources)
        name = hashlib.sha256(self.facts + text).hexdigest()
        return Path(os.environ[FOLDER]) / f"{name}.files"

    def remembered(self) -> str | None:
        """The key of a call whose files are all the same; None if there was none."""
        memory = self._memory()
        if not memory.exists():
            return None
        memory.touch()
        found, files = json.loads(memory.read_text())
        is_same = all(_digest(path.replace("\0", self.place)) == digest for path, digest in files.items())
        return str(found) if is_same else None

    def remember(self, found: str, files: set[str]) -> None:
        """Keep the key and the hashes of the files."""
        hashes = {path.replace(self.place, "\0"): _digest(path) for path in files}
        _replace(self._memory(), json.dumps((found, hashes)).encode())


@functools.cache
def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_bytes(content)
    aside.replace(path)


def main(command: list[str]) -> int:
    """Run a call of the compiler; a call that compiles one file is looked up first."""
    if not {"-c", "-o"} <= {*command}:
        return subprocess.run(command, check=False).returncode
    call = Call(command)
    found = call.remembered()
    if found is None:
        made = call.key()
        if made is None:
            return subprocess.run(command, check=False).returncode
        found = made[0]
        call.remember(*made)
    out, kept = Path(call.out), Path(os.environ[FOLDER]) / f"{found}.o"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an equal call at the same time waits for the object
        if not kept.exists():
            before = sum(os.times()[2:4])
            if status := subprocess.run(command, check=False).returncode:
                return status
            kept.with_suffix(".seconds").write_text(f"{sum(os.times()[2:4]) - before}\n")
            _replace(kept, out.read_bytes())
        shutil.copy(kept, out)
        for path in (kept, kept.with_suffix(".seconds")):
            path.touch()
        if SECONDS in os.environ:
            with Path(os.environ[SECONDS]).open("a") as log:
                log.write(kept.with_suffix(".seconds").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
