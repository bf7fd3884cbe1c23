"""How the second native library is compiled: the operators for CUDA, from native/cuda, by an nvcc that works.

A GPU is not needed to build it, and torch's CUDA neither: cudart is linked statically, the processors are
named here.

Environment: CUDA_HOME or CUDA_PATH say where the toolkit is; TARPEG_CUDA=1 asks for the library, also in
wheels, and turns its absence into an error; TARPEG_CUDA=0 does without. See _build for the others.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import BuildError
from . import build as _build

ARCHITECTURES = ("80", "90")
"""Compute capabilities with machine code; what comes after takes the PTX of the last."""
COMPILE_FLAGS = (
    *("-std=c++17", "-O3", "-Xcompiler", "-fPIC,-fvisibility=hidden,-ffp-contract=off"),
    "-fmad=false",  # the same bits as the CPU: Note [one arithmetic]
    *(f"-gencode=arch=compute_{number},code=sm_{number}" for number in ARCHITECTURES),
    f"-gencode=arch=compute_{ARCHITECTURES[-1]},code=compute_{ARCHITECTURES[-1]}",
    "-DTORCH_TARGET_VERSION=0x020b000000000000",
)
LINK_FLAGS = ("-shared", "-cudart=static", "-Xlinker", "-z,defs", "-ltorch_cpu", "-ldl")
_USUAL = "/usr/local/cuda/bin/nvcc"
OLDEST_TOOLKIT = (12, 0)
SECONDS = 30
NO_NVCC = (
    "no working nvcc of CUDA {oldest} or newer: {tried}. Install the CUDA toolkit "
    "(conda: conda install -c nvidia cuda-nvcc cuda-cudart-dev; others: developer.nvidia.com/cuda-downloads) "
    "or name its directory in CUDA_HOME."
)


def switch() -> bool | None:
    """Return what TARPEG_CUDA asks for: True, False, or None where it is not set."""
    value = os.environ.get("TARPEG_CUDA", "")
    return None if value == "" else value != "0"


def find_nvcc() -> str:
    """Return an nvcc that was seen to read its toolkit's headers; raise BuildError where there is none."""
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    # On the PATH there may be a wrapper: it is taken as it is, and nothing is derived from where it lies.
    candidates = [
        *(str(Path(home) / "bin" / "nvcc") for home in named),
        *filter(None, [shutil.which("nvcc")]),
        _USUAL,
    ]
    refusals = {}
    for nvcc in candidates:
        if (refusal := _refusal(nvcc)) is None:
            return nvcc
        refusals[nvcc] = refusal
    tried = "; ".join(f"{nvcc} {refusal}" for nvcc, refusal in refusals.items())
    raise BuildError(NO_NVCC.format(tried=tried, oldest=".".join(map(str, OLDEST_TOOLKIT))))


def _refusal(nvcc: str) -> str | None:
    """Say why this nvcc is of no use; None for one that is."""
    if not Path(nvcc).is_file():
        return "is not there"
    try:
        told = _output([nvcc, "--version"], "")
        found = re.search(r"release (\d+)\.(\d+)", told)
        if found is None:
            return "does not tell its version"
        if (int(found[1]), int(found[2])) < OLDEST_TOOLKIT:
            return f"is of CUDA {found[1]}.{found[2]}"
        _output([nvcc, "-x", "cu", "-E", "-"], "#include <cuda_runtime.h>\n")
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not work ({str(getattr(error, 'stderr', '') or error).strip().splitlines()[-1]})"
    return None


def _output(command: list[str], text: str) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def sources(native: Path) -> list[Path]:
    """Return the files that nvcc compiles."""
    return sorted((native / "cuda").glob("*.cu"))


def library_name(native: Path) -> str:
    """Return the file name under which the library made from these sources is found."""
    digest = hashlib.sha256()
    for fact in (platform.system(), platform.machine(), *COMPILE_FLAGS, *LINK_FLAGS):
        digest.update(fact.encode() + b"\0")
    for path in (*sources(native), *sorted((native / "cuda").glob("*.h")), *sorted(native.glob("*.h"))):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return f"libtarpeg_cuda-{digest.hexdigest()[:12]}.so"


def build(native: Path | None = None, directories: Sequence[Path] | None = None, force: bool = False) -> Path:
    """Compile the CUDA library, once, as ``build.build`` does the other, and return where it lies."""
    native = native or _build.native_dir()
    nvcc = find_nvcc()
    return _build.build_once(
        library_name(native),
        lambda scratch, library: _compile(nvcc, native, scratch, library),
        directories,
        force,
    )


def _compile(nvcc: str, native: Path, scratch: Path, library: Path) -> None:
    torch, files = _build.torch_to_build_with(), sources(native)
    if not files:
        raise BuildError(f"the native sources are missing: no *.cu in {native / 'cuda'}")
    _build.log.warning(
        "compiling the CUDA operators (once, about %d s) with %s into %s", SECONDS, nvcc, library.parent
    )
    jobs = min(len(files), int(os.environ.get("TARPEG_BUILD_JOBS") or os.cpu_count() or 1))
    objects = [scratch / f"{file.stem}.o" for file in files]
    prefix = [nvcc, *COMPILE_FLAGS, "-isystem", str(torch / "include"), "-c"]
    _build.run_all(
        [[*prefix, str(file), "-o", str(out)] for file, out in zip(files, objects, strict=True)], jobs
    )
    linked = scratch / library.name
    _build.run([nvcc, *map(str, objects), "-o", str(linked), f"-L{torch / 'lib'}", *LINK_FLAGS])
    linked.replace(library)
