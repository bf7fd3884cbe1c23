"""Compile the two native libraries: from which files, by which compiler and flags, and where they go.

The libraries use PyTorch's stable ABI and include no Python.h, so one file works with every torch >= 2.11 and
every Python. A library's name holds a fingerprint of sources, flags and machine, so a stale library is never
found. Compiling the CUDA library needs neither a GPU nor a torch with CUDA.

This module imports without torch: setup.py and the doctor use it where torch may be missing.

Environment: CXX, CPPFLAGS, CXXFLAGS and LDFLAGS as usual (not in the fingerprint); TARPEG_DEBUG=1 and
TARPEG_SANITIZE=address,undefined (in the fingerprint); TARPEG_BUILD_JOBS; TARPEG_LIB_DIR; TARPEG_NO_BUILD=1.
CUDA_HOME or CUDA_PATH: directory of the CUDA toolkit. TARPEG_CUDA=1 requires the CUDA library, also in
wheels; TARPEG_CUDA=0 leaves it out.
"""

from __future__ import annotations

import contextlib
import functools
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
    # Same bits on every processor; vector code for floor and comparisons in loops: Note [one arithmetic].
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    "-DTORCH_TARGET_VERSION=0x020b000000000000",  # OLDEST_TORCH; newer calls do not compile
)
LINK_FLAGS: tuple[str, ...] = ("-shared", "-pthread", "-ltorch_cpu", "-ljpeg")
if platform.system() == "Linux":
    LINK_FLAGS = ("-Wl,-z,defs", *LINK_FLAGS)  # a missing symbol fails here, not at load time
# torch finds the operators by static initialisers, ctypes these names. Symbols of a static libstdc++ would be
# mixed with the process's libstdc++.so, and messages of errors end too early, or in a crash.
EXPORTS = "{ global: tarpeg_*; local: *; };\n"
TIMEOUT_S = 900  # for one compiler call: a compiler that hangs must not hang the training
SECONDS_PER_FILE = 1
_OTHERS_WRITE = 0o022

ARCHITECTURES = ("80", "90")
"""Compute capabilities with machine code; newer ones use the PTX of the last."""
CUDA_COMPILE_FLAGS = (
    *("-std=c++17", "-O3", "-Xcompiler", "-fPIC,-fvisibility=hidden,-ffp-contract=off"),
    "-fmad=false",  # the same bits as the CPU: Note [one arithmetic]
    *(f"-gencode=arch=compute_{number},code=sm_{number}" for number in ARCHITECTURES),
    f"-gencode=arch=compute_{ARCHITECTURES[-1]},code=compute_{ARCHITECTURES[-1]}",
    "-DTORCH_TARGET_VERSION=0x020b000000000000",
)
CUDA_LINK_FLAGS = (
    *("-shared", "-cudart=static", "-Xlinker", "-z,defs,--exclude-libs=ALL", "-ltorch_cpu", "-ldl"),
)
CUDA_SECONDS = 30
OLDEST_TOOLKIT = (12, 0)
USUAL_NVCC = "/usr/local/cuda/bin/nvcc"
COMPILER_LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")

NO_COMPILER = (
    "no C++ compiler: {tried} cannot be run. Install one (Debian, Ubuntu: apt-get install g++; "
    "Fedora: dnf install gcc-c++; conda: conda install -c conda-forge cxx-compiler; "
    "macOS: xcode-select --install) or set CXX to yours."
)
NO_JPEG = (
    "libjpeg-turbo's development files (jpeglib.h, -ljpeg) are missing. "
    "Debian: apt-get install libjpeg62-turbo-dev; Ubuntu: apt-get install libjpeg-turbo8-dev; "
    "Fedora: dnf install libjpeg-turbo-devel; conda: conda install -c conda-forge libjpeg-turbo; "
    "macOS: brew install jpeg-turbo. Installed elsewhere? Set CPPFLAGS=-I... and LDFLAGS=-L..."
)
OTHER_JPEG = "jpeglib.h is not libjpeg-turbo's"
"""What the compiler prints for the headers of another libjpeg, such as IJG's 6b and 9."""
NO_NVCC = (
    "no working nvcc of CUDA {wanted}: {tried}. Install the toolkit of CUDA {wanted} "
    "(conda: conda install -c nvidia cuda-nvcc cuda-cudart-dev; others: developer.nvidia.com/cuda-downloads) "
    "or set CUDA_HOME to its directory."
)
JPEG_MISSING = re.compile(
    r"jpeglib\.h'?(: No such file|:? file not found)|(cannot find|library not found for) -ljpeg\b"
)


def native_dir() -> Path:
    """Return the directory of the C++ sources: in the package, or in the checkout if the symlink was lost."""
    for candidate in (PACKAGE / "native", PACKAGE.resolve().parents[1] / "native"):
        if candidate.is_dir():
            return candidate
    raise BuildError(f"the native sources are missing: there is no directory {PACKAGE / 'native'}")


def torch_dir() -> Path | None:
    """Return the directory of the installed torch, without importing it; None if there is no torch."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def check_torch(version: str) -> None:
    """Raise BuildError if this version of torch lacks the stable ABI that the library is written for."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        update = "pip install -U torch torchvision"
        raise BuildError(f"tarpeg needs torch >= {oldest}, this is torch {version}: {update}")


def building_forbidden() -> bool:
    """Return whether TARPEG_NO_BUILD forbids running a compiler."""
    return os.environ.get("TARPEG_NO_BUILD", "") not in ("", "0")


def cuda_switch() -> bool | None:
    """Return the value of TARPEG_CUDA: True, False, or None if it is not set."""
    value = os.environ.get("TARPEG_CUDA", "")
    return None if value == "" else value != "0"


def library_name(native: Path) -> str:
    """Return the file name of the CPU library that is compiled from these sources."""
    facts = (*COMPILE_FLAGS, *LINK_FLAGS, EXPORTS, *_switches())
    return f"libtarpeg-{_fingerprint(native, facts, 'cpp')}.so"


def cuda_library_name(native: Path, major: int) -> str:
    """Return the file name of the CUDA library that is compiled from these sources by CUDA `major`."""
    return f"libtarpeg_cuda{major}-{_fingerprint(native, (*CUDA_COMPILE_FLAGS, *CUDA_LINK_FLAGS), 'cu')}.so"


def _fingerprint(native: Path, facts: Sequence[str], suffix: str) -> str:
    """Return 12 hex digits of everything that a library is made from: machine, flags, sources and headers."""
    digest = hashlib.sha256()
    for fact in (platform.system(), platform.machine(), *facts):
        digest.update(fact.encode() + b"\0")
    for path in (*sources(native, suffix), *sources(native, "h")):
        name = path.relative_to(native).as_posix()
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def sources(native: Path, suffix: str) -> list[Path]:
    """Return the files with this suffix (cpp, cu or h) in native/ and its rooms."""
    return [*sorted(native.glob(f"*.{suffix}")), *sorted(native.glob(f"*/*.{suffix}"))]


def library_dirs() -> list[Path]:
    """Return the directories that are searched for libraries: the package's, then the user's cache.

    The last is of this user alone, for a cache or a TARPEG_LIB_DIR that several users share.
    """
    own = f"tarpeg-{os.getuid()}"
    if override := os.environ.get("TARPEG_LIB_DIR"):
        return [Path(override).absolute(), Path(override).absolute() / own]
    import platformdirs  # not at the top: setup.py imports this file in an environment that is empty

    cache = platformdirs.user_cache_path("tarpeg")
    return [PACKAGE / "_lib", cache / "lib", cache.with_name(own) / "lib"]


def why_unsafe(*paths: Path) -> str:
    """Return why code is not loaded from files or folders: others can change them. "" if they cannot.

    As ssh treats its keys. Whoever can write the package itself can run code anyway, and is no other.
    """
    package = PACKAGE.stat()
    for path in paths:
        try:
            found = path.stat()
        except OSError as error:
            return f"{path}: {error.strerror}"
        if found.st_uid not in (0, os.getuid(), package.st_uid):
            return f"{path} belongs to another user ({found.st_uid}). Remove it, or make it yours"
        of_others = found.st_mode & ~package.st_mode if path.is_relative_to(PACKAGE) else found.st_mode
        if of_others & _OTHERS_WRITE:
            return f"other users can write {path} (mode {found.st_mode & 0o7777:o}): chmod go-w {path}"
    return ""


def torch_cuda() -> tuple[int, int] | None:
    """Return the version of CUDA that torch is built for, without importing torch; None if there is none."""
    found = re.search(r"^cuda\b[^=\n]*= '(\d+)\.(\d+)", _torch_version_file(), re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None


def _torch_version_file() -> str:
    """Return the text of torch/version.py; empty without torch."""
    torch = torch_dir()
    return "" if torch is None else (torch / "version.py").read_text()


def dotted(version: tuple[int, int]) -> str:
    """Return a version as it is written, such as 12.4."""
    return ".".join(map(str, version))


def build(directories: Sequence[Path] | None = None, force: bool = False) -> Path:
    """Compile the CPU library unless it exists, and return its path.

    The library goes to the first writable directory. A lock admits one builder at a time; the kernel releases
    it if the builder dies. The file appears complete, by a rename.

    Args:
        directories: Candidates for the library's directory, by default ``library_dirs()``.
        force: Compile even if the library exists.
    """
    native = native_dir()
    return build_once(library_name(native), functools.partial(_compile, native), directories, force)


def build_cuda(directories: Sequence[Path] | None = None, force: bool = False) -> Path:
    """Compile the CUDA library unless it exists, as ``build`` does, and return its path."""
    native, (nvcc, (major, _)) = native_dir(), find_nvcc()
    compile_into = functools.partial(_compile_cuda, nvcc, native)
    return build_once(cuda_library_name(native, major), compile_into, directories, force)


def build_once(
    name: str,
    compile_into: Callable[[Path, Path], None],
    directories: Sequence[Path] | None = None,
    force: bool = False,
) -> Path:
    """Build the library `name` as ``build`` describes, by compile_into(scratch directory, library)."""
    from filelock import FileLock  # torch needs it too, so it is there wherever a build can happen

    directory = _own_directory(library_dirs()) if directories is None else _first_writable(directories)
    library = directory / name
    with FileLock(directory / ".lock"):
        for leftover in directory.glob(".build-*"):  # we hold the lock: their builders are dead
            shutil.rmtree(leftover, ignore_errors=True)
        if force or not library.is_file():
            with tempfile.TemporaryDirectory(
                prefix=".build-", dir=directory, ignore_cleanup_errors=True
            ) as scratch:
                compile_into(Path(scratch), library)
                library.chmod(library.stat().st_mode & ~_OTHERS_WRITE)
    return library


def _own_directory(directories: Sequence[Path]) -> Path:
    """Return the first writable directory that no other user can write; the caches are made 0700."""
    safe, refusals = [], []
    for directory in directories:
        with contextlib.suppress(OSError):  # _first_writable has the reason
            if not directory.is_dir():
                directory.mkdir(mode=0o755 if directory.parent == PACKAGE else 0o700, parents=True)
        if os.path.isdir(directory) and (reason := why_unsafe(directory)):  # noqa: PTH112 (may be unreadable)
            refusals.append(reason)
        else:
            safe.append(directory)
    if not safe:
        raise BuildError(f"no directory for the native library ({'; '.join(refusals)})")
    return _first_writable(safe)


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
    raise BuildError(f"no directory for the native library ({reasons}): set TARPEG_LIB_DIR to a writable one")


def _compile(native: Path, scratch: Path, library: Path) -> None:
    torch, files = _torch_to_build_with(), sources(native, "cpp")
    jobs = _jobs(native, files, "cpp")
    seconds = 2 + SECONDS_PER_FILE * -(-len(files) // jobs)
    log.warning("compiling the native operators (once, about %d s) into %s", seconds, library.parent)
    chosen, (conda_include, conda_lib) = find_compiler(), conda_flags()
    prefix = [*chosen, *COMPILE_FLAGS, *_switches(), *words_of("CPPFLAGS"), *conda_include]
    prefix += [*words_of("CXXFLAGS"), "-I", str(native), "-isystem", str(torch / "include"), "-c"]
    objects = _compile_all(prefix, files, scratch, jobs)
    search = [*words_of("LDFLAGS"), *conda_lib, f"-L{torch / 'lib'}"]
    if platform.system() == "Linux":
        (scratch / "exports").write_text(EXPORTS)
        search += ["-Xlinker", f"--version-script={scratch / 'exports'}"]
    _link([*chosen, *_switches()], objects, [*search, *LINK_FLAGS], scratch, library)


def _compile_cuda(nvcc: str, native: Path, scratch: Path, library: Path) -> None:
    torch, files = _torch_to_build_with(), sources(native, "cu")
    what = "compiling the CUDA operators (once, about %d s) with %s into %s"
    log.warning(what, CUDA_SECONDS, nvcc, library.parent)
    nvcc_with_compiler = [nvcc, *_host_compiler()]
    prefix = [*nvcc_with_compiler, *CUDA_COMPILE_FLAGS, "-I", str(native)]
    prefix += ["-isystem", str(torch / "include"), "-c"]
    objects = _compile_all(prefix, files, scratch, _jobs(native, files, "cu"))
    _link(nvcc_with_compiler, objects, [f"-L{torch / 'lib'}", *CUDA_LINK_FLAGS], scratch, library)


def _jobs(native: Path, files: Sequence[Path], suffix: str) -> int:
    if not files:
        raise BuildError(f"the native sources are missing: no *.{suffix} in {native}")
    return min(len(files), int(os.environ.get("TARPEG_BUILD_JOBS") or os.cpu_count() or 1))


def _compile_all(prefix: list[str], files: Sequence[Path], scratch: Path, jobs: int) -> list[Path]:
    """Run `jobs` compilers at a time; raise BuildError for the first that fails. Return the object files."""
    objects = [scratch / f"{file.parent.name}-{file.stem}.o" for file in files]
    with ThreadPoolExecutor(jobs) as pool:
        commands = ([*prefix, str(file), "-o", str(out)] for file, out in zip(files, objects, strict=True))
        futures = [pool.submit(run_compiler, command) for command in commands]
        try:
            for future in futures:
                future.result()
        except BuildError:
            pool.shutdown(cancel_futures=True)
            raise
    return objects


def _link(prefix: list[str], objects: Sequence[Path], flags: list[str], scratch: Path, library: Path) -> None:
    linked = scratch / library.name
    command = [*prefix, *map(str, objects), "-o", str(linked)]
    run_compiler([*command, *flags])
    if b"_Unwind_Find_FDE" in linked.read_bytes():  # libgcc's, which aborts if torch passes on an exception
        try:
            run_compiler([*command, "-Xlinker", "-l:libgcc_s.so.1", *flags])
        except BuildError as error:
            log.warning("libgcc is linked statically: errors of operators end the process. %s", error)
    linked.replace(library)


def find_compiler() -> list[str]:
    """Return the compiler's command, CXX or the first that is installed; raise BuildError without one."""
    if chosen := words_of("CXX"):
        return chosen
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError(NO_COMPILER.format(tried="c++, g++ and clang++"))


def _host_compiler() -> list[str]:
    """Return the flags by which nvcc uses CXX; none without CXX."""
    words = [word for word in words_of("CXX") if Path(word).name not in COMPILER_LAUNCHERS]
    return ["-ccbin", words[0], *(f"-Xcompiler={flag}" for flag in words[1:])] if words else []


def find_nvcc() -> tuple[str, tuple[int, int]]:
    """Return an nvcc that works and its version; raise BuildError if there is none.

    Its major version must be that of torch's CUDA, if torch has one: the library contains the CUDA runtime of
    its toolkit, and a driver that is new enough for torch may be too old for a later runtime.
    """
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    # The nvcc on the PATH may be a wrapper: no directory is derived from its location.
    on_path = filter(None, [shutil.which("nvcc")])
    candidates = [*(str(Path(home) / "bin" / "nvcc") for home in homes), *on_path, USUAL_NVCC]
    cuda, refusals = torch_cuda(), {}
    for nvcc in candidates:
        found = _version_or_refusal(nvcc, cuda)
        if not isinstance(found, str):
            return nvcc, found
        refusals[nvcc] = found
    tried = "; ".join(f"{nvcc} {refusal}" for nvcc, refusal in refusals.items())
    wanted = f"{dotted(OLDEST_TOOLKIT)} or newer" if cuda is None else f"{cuda[0]}"
    raise BuildError(NO_NVCC.format(tried=tried, wanted=wanted))


def _version_or_refusal(nvcc: str, cuda: tuple[int, int] | None) -> tuple[int, int] | str:
    """Return the version of this nvcc, or the reason why it cannot be used with a torch for `cuda`."""
    if not Path(nvcc).is_file():
        return "is not there"
    try:
        found = re.search(r"release (\d+)\.(\d+)", _output([nvcc, "--version"], ""))
        if found is None:
            return "does not print its version"
        version = int(found[1]), int(found[2])
        if cuda is not None and version[0] != cuda[0]:
            return f"is of CUDA {dotted(version)}, torch is built for CUDA {dotted(cuda)}"
        if version < OLDEST_TOOLKIT:
            return f"is of CUDA {dotted(version)}"
        _output([nvcc, *_host_compiler(), "-x", "cu", "-E", "-"], "#include <cuda_runtime.h>\n")
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not work ({str(getattr(error, 'stderr', '') or error).strip().splitlines()[-1]})"
    return version


def _output(command: list[str], text: str) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def run_compiler(command: list[str]) -> None:
    """Run a compiler; raise BuildError with its output if it fails."""
    shown = shlex.join(command)
    env = {**os.environ, "LC_ALL": "C"}  # messages in English, for JPEG_MISSING
    none = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdin=none, capture_output=True, errors="replace", env=env, timeout=TIMEOUT_S
        )
    except OSError as error:
        raise BuildError(NO_COMPILER.format(tried=f"{command[0]!r}")) from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"the compiler did not finish within {TIMEOUT_S} s: {shown}") from error
    if done.returncode == 0:
        if done.stderr:
            log.info("%s\n%s", shown, done.stderr)
        return
    if JPEG_MISSING.search(done.stderr):
        raise BuildError(NO_JPEG)
    if OTHER_JPEG in done.stderr:
        raise BuildError(f"{OTHER_JPEG}: {NO_JPEG}")
    output = done.stderr if len(done.stderr) < 20_000 else "[...]\n" + done.stderr[-20_000:]
    raise BuildError(
        f"the native operators do not compile: {command[0]} ended with status {done.returncode}\n"
        f"{output.rstrip()}\n"
        f"The command was: {shown}\n"
        "What to do: try another compiler by CXX=... (C++17: GCC 9, Clang 10 or newer); if memory "
        "ran out, TARPEG_BUILD_JOBS=1; otherwise report this whole message."
    )


def _torch_to_build_with() -> Path:
    """Return the directory of torch; raise BuildError if it is missing or too old."""
    torch = torch_dir()
    if torch is None:
        raise BuildError(
            "the native operators are compiled against torch, which is not installed: pip install torch"
        )
    found = re.search(r"__version__ = ['\"]([^'\"]+)", _torch_version_file())
    check_torch(found[1] if found else "0.0")
    return torch


def _switches() -> list[str]:
    """Return the compiler flags of TARPEG_DEBUG and TARPEG_SANITIZE."""
    flags = []
    if os.environ.get("TARPEG_DEBUG", "") not in ("", "0"):
        flags += ["-O0", "-g"]
    if sanitizers := os.environ.get("TARPEG_SANITIZE"):
        # Checks are most of the code: optimising them takes longer than all tests. -g1: lines of the sources.
        flags += ["-O1", "-g1", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}"]
    return flags


def conda_flags() -> tuple[list[str], list[str]]:
    """Return the flags for conda's libjpeg-turbo if it is installed: to compile, and to link and find it."""
    prefix = Path(os.environ.get("CONDA_PREFIX", "/nonexistent"))
    if not (prefix / "include" / "jpeglib.h").is_file():
        return [], []
    return [f"-I{prefix / 'include'}"], [f"-L{prefix / 'lib'}", f"-Wl,-rpath,{prefix / 'lib'}"]


def words_of(variable: str) -> list[str]:
    """Return the words of a variable of the environment, such as CPPFLAGS."""
    return shlex.split(os.environ.get(variable, ""))
