"""How the native library is compiled, ahead of time (setup.py) or at first use (_load.py).

The library speaks PyTorch's stable ABI and includes no Python.h, so one file serves every torch >= 2.11 and
every Python. Its name carries a fingerprint of sources, flags and machine: a stale library is never found.

Environment: CXX, CPPFLAGS, CXXFLAGS and LDFLAGS as usual (they say where things are, and are no part of the
fingerprint); TARPEG_DEBUG=1 and TARPEG_SANITIZE=address,undefined (part of it); TARPEG_BUILD_JOBS;
TARPEG_LIB_DIR; TARPEG_NO_BUILD=1.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import BuildError

log = logging.getLogger("tarpeg")

PACKAGE = Path(__file__).parents[1]
OLDEST_TORCH = (2, 11)
COMPILE_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-Wall", "-Wextra", "-Werror=return-type"),
    # The same bits from every processor, and loops over floor and comparisons as vector code: Note [one
    # arithmetic].
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    "-DTORCH_TARGET_VERSION=0x020b000000000000",  # OLDEST_TORCH; newer calls do not compile
)
LINK_FLAGS: tuple[str, ...] = ("-shared", "-pthread", "-ltorch_cpu", "-ljpeg")
if platform.system() == "Linux":
    LINK_FLAGS = ("-Wl,-z,defs", *LINK_FLAGS)  # a missing symbol fails here, not at load time
TIMEOUT_S = 900  # for one compiler call: a compiler that hangs must not hang the training
SECONDS_PER_FILE = 3

NO_COMPILER = (
    "no C++ compiler: {tried} cannot be run. Install one (Debian, Ubuntu: apt-get install g++; "
    "Fedora: dnf install gcc-c++; conda: conda install -c conda-forge cxx-compiler; "
    "macOS: xcode-select --install) or name yours in CXX."
)
NO_JPEG = (
    "libjpeg-turbo's development files (jpeglib.h, -ljpeg) are missing. "
    "Debian: apt-get install libjpeg62-turbo-dev; Ubuntu: apt-get install libjpeg-turbo8-dev; "
    "Fedora: dnf install libjpeg-turbo-devel; conda: conda install -c conda-forge libjpeg-turbo; "
    "macOS: brew install jpeg-turbo. Installed elsewhere? Set CPPFLAGS=-I... and LDFLAGS=-L..."
)
_JPEG_MISSING = re.compile(
    r"jpeglib\.h'?(: No such file|:? file not found)|(cannot find|library not found for) -ljpeg\b"
)


def native_dir() -> Path:
    """Return where the C++ sources lie: in the package, or beside datamodules/ where the symlink was lost."""
    for candidate in (PACKAGE / "native", PACKAGE.resolve().parents[1] / "native"):
        if candidate.is_dir():
            return candidate
    raise BuildError(f"the native sources are missing: there is no directory {PACKAGE / 'native'}")


def torch_dir() -> Path | None:
    """Return the directory of the installed torch, without importing it; None where there is no torch."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def check_torch(version: str) -> None:
    """Raise BuildError for a torch without the stable ABI that the library is written for."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_TORCH:
        wanted = ".".join(map(str, OLDEST_TORCH))
        raise BuildError(
            f"tarpeg needs torch >= {wanted}, this is torch {version}: pip install -U torch torchvision"
        )


def building_forbidden() -> bool:
    """Say whether TARPEG_NO_BUILD forbids to run a compiler."""
    return os.environ.get("TARPEG_NO_BUILD", "") not in ("", "0")


def fingerprint(native: Path) -> str:
    """Return 12 hex digits of what the library is made from: sources, our flags and switches, machine."""
    digest = hashlib.sha256()
    for fact in (platform.system(), platform.machine(), *COMPILE_FLAGS, *LINK_FLAGS, *_switches()):
        digest.update(fact.encode() + b"\0")
    for path in sorted(native.glob("*.cpp")) + sorted(native.glob("*.h")):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def library_name(native: Path) -> str:
    """Return the file name under which the library made from these sources is found."""
    return f"libtarpeg-{fingerprint(native)}.so"


def library_dirs() -> list[Path]:
    """Return where libraries lie, in the order of looking: the package, then the user's cache."""
    if override := os.environ.get("TARPEG_LIB_DIR"):
        return [Path(override).absolute()]
    import platformdirs  # not at the top: setup.py imports this file in an environment that is empty

    return [PACKAGE / "_lib", platformdirs.user_cache_path("tarpeg") / "lib"]


def find(native: Path, directories: Sequence[Path]) -> list[Path]:
    """Return the libraries that fit these sources; usually one or none."""
    name = library_name(native)
    return [directory / name for directory in directories if (directory / name).is_file()]


def build(native: Path | None = None, directories: Sequence[Path] | None = None, force: bool = False) -> Path:
    """Compile the library, once, whoever else is at it, and return where it lies.

    The first writable directory of ``directories`` takes it. One builder at a time works there, under a lock
    that the kernel drops with its holder. The file appears whole, by a rename.

    Args:
        native: the sources, by default the package's own.
        directories: where the library may go, by default ``library_dirs()``.
        force: compile even where the library is there already.
    """
    native = native or native_dir()
    return build_once(
        library_name(native), lambda scratch, library: _compile(native, scratch, library), directories, force
    )


def build_once(
    name: str,
    compile_into: Callable[[Path, Path], None],
    directories: Sequence[Path] | None = None,
    force: bool = False,
) -> Path:
    """Do what ``build`` promises for the library `name`: compile_into(scratch directory, library)."""
    from filelock import FileLock  # torch needs it too, so it is there wherever a build can happen

    directory = _first_writable(library_dirs() if directories is None else directories)
    library = directory / name
    with FileLock(directory / ".lock"):
        for leftover in directory.glob(".build-*"):  # we hold the lock: whoever made it is dead
            shutil.rmtree(leftover, ignore_errors=True)
        if force or not library.is_file():
            with tempfile.TemporaryDirectory(
                prefix=".build-", dir=directory, ignore_cleanup_errors=True
            ) as scratch:
                compile_into(Path(scratch), library)
    return library


def _compile(native: Path, scratch: Path, library: Path) -> None:
    torch = torch_to_build_with()
    sources = sorted(native.glob("*.cpp"))
    if not sources:
        raise BuildError(f"the native sources are missing: no *.cpp in {native}")
    jobs = min(len(sources), int(os.environ.get("TARPEG_BUILD_JOBS") or os.cpu_count() or 1))
    seconds = 2 + SECONDS_PER_FILE * -(-len(sources) // jobs)
    log.warning("compiling the native operators (once, about %d s) into %s", seconds, library.parent)

    chosen, (conda_include, conda_lib) = compiler(), _conda_flags()
    prefix = [*chosen, *COMPILE_FLAGS, *_switches(), *_words("CPPFLAGS"), *conda_include]
    prefix += [*_words("CXXFLAGS"), "-isystem", str(torch / "include"), "-c"]
    objects = [scratch / f"{source.stem}.o" for source in sources]
    run_all(
        [[*prefix, str(source), "-o", str(out)] for source, out in zip(sources, objects, strict=True)], jobs
    )
    linked = scratch / library.name
    search = [*_words("LDFLAGS"), *conda_lib, f"-L{torch / 'lib'}"]
    run([*chosen, *_switches(), *map(str, objects), "-o", str(linked), *search, *LINK_FLAGS])
    linked.replace(library)


def compile_alone(source: Path, library: Path) -> None:
    """Compile one file that needs libjpeg but not torch."""
    include, lib = _conda_flags()
    flags = [*COMPILE_FLAGS, "-shared", *_words("CPPFLAGS"), *include, str(source), "-o", str(library)]
    run([*compiler(), *flags, *_words("LDFLAGS"), *lib, "-ljpeg"])


def torch_to_build_with() -> Path:
    """Return the directory of torch; raise BuildError where there is none, or one that is too old."""
    torch = torch_dir()
    if torch is None:
        raise BuildError(
            "the native operators are compiled against torch, which is not installed: pip install torch"
        )
    check_torch(_version_of(torch))
    return torch


def run_all(commands: Sequence[list[str]], jobs: int) -> None:
    """Run compilers side by side; raise BuildError for the first that fails."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, command) for command in commands]
        try:
            for future in futures:
                future.result()
        except BuildError:
            pool.shutdown(cancel_futures=True)
            raise


def run(command: list[str]) -> None:
    """Run a compiler; raise BuildError with its words where it fails."""
    shown = shlex.join(command)
    environment = {**os.environ, "LC_ALL": "C"}  # messages in English: _JPEG_MISSING reads them
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=TIMEOUT_S,
        )
    except OSError as error:
        raise BuildError(NO_COMPILER.format(tried=f"{command[0]!r}")) from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"the compiler did not finish within {TIMEOUT_S} s: {shown}") from error
    if done.returncode == 0:
        if done.stderr:
            log.info("%s\n%s", shown, done.stderr)
        return
    if _JPEG_MISSING.search(done.stderr):
        raise BuildError(NO_JPEG)
    words = done.stderr if len(done.stderr) < 20_000 else "[...]\n" + done.stderr[-20_000:]
    raise BuildError(
        f"the native operators do not compile: {command[0]} ended with status {done.returncode}\n"
        f"{words.rstrip()}\n"
        f"The command was: {shown}\n"
        "What to do: try another compiler by CXX=... (C++17: GCC 9, Clang 10 or newer); where memory "
        "ran out, TARPEG_BUILD_JOBS=1; otherwise report this whole message."
    )


def compiler() -> list[str]:
    """Return the command that compiles, CXX or the first that is there; raise BuildError for none."""
    if chosen := _words("CXX"):
        return chosen
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError(NO_COMPILER.format(tried="none of c++, g++, clang++"))


def _switches() -> list[str]:
    """Return the flags of the switches, after the manner of msgspec's setup.py."""
    flags = []
    if os.environ.get("TARPEG_DEBUG", "") not in ("", "0"):
        flags += ["-O0", "-g"]
    if sanitizers := os.environ.get("TARPEG_SANITIZE"):
        flags += ["-g", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}"]
    return flags


def _conda_flags() -> tuple[list[str], list[str]]:
    """Return the flags for conda's libjpeg-turbo, where there is one: to compile, and to link and find it."""
    prefix = Path(os.environ.get("CONDA_PREFIX", "/nonexistent"))
    if not (prefix / "include" / "jpeglib.h").is_file():
        return [], []
    return [f"-I{prefix / 'include'}"], [f"-L{prefix / 'lib'}", f"-Wl,-rpath,{prefix / 'lib'}"]


def _version_of(torch: Path) -> str:
    found = re.search(r"__version__ = ['\"]([^'\"]+)", (torch / "version.py").read_text())
    return found[1] if found else "0.0"


def _first_writable(directories: Sequence[Path]) -> Path:
    refusals = []
    for directory in directories:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with (directory / ".lock").open("a"), tempfile.TemporaryFile(dir=directory):
                return directory
        except OSError as error:
            refusals.append(str(error))
    reasons = "; ".join(refusals)
    raise BuildError(
        f"no directory for the native library ({reasons}): set TARPEG_LIB_DIR to one that is writable"
    )


def _words(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))
