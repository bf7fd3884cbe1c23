"""Make ``torch.ops.tarpeg`` exist: find the native libraries, or build them, and load them.

The library for CUDA is looked for, and built, where there is a GPU; tarpeg works without it, but for images
on a GPU.
"""

from __future__ import annotations

import functools
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..errors import BuildError
from . import build as _build
from . import cuda as _cuda

_lock = threading.Lock()
_loaded: Path | None = None
_no_cuda: str | None = "they have not been asked for"  # why there are no CUDA operators; None where there are


def load() -> None:
    """Load the native libraries once in this process; the first call on a machine may compile them."""
    global _loaded, _no_cuda
    if _loaded is None:
        with _lock:
            if _loaded is None:
                path = _find_or_build()
                _no_cuda = _find_or_build_cuda()
                _loaded = path


def library_path() -> Path:
    """Return the file that the operators came from, loading it where that has not happened yet."""
    load()
    assert _loaded is not None
    return _loaded


def has_cuda() -> bool:
    """Tell whether there are operators for images on a GPU."""
    load()
    return _no_cuda is None


def why_no_cuda() -> str | None:
    """Say why there are no operators for images on a GPU; None where there are."""
    load()
    return _no_cuda


def require_cuda(device: torch.device) -> None:
    """Raise BuildError where there are no operators for images on this GPU."""
    if _no_cuda is not None:
        raise BuildError(f"images are on a GPU, but the CUDA operators are not there: {_no_cuda}")
    if (refusal := _too_old(device)) is not None:
        raise BuildError(f"images are on a GPU that the CUDA operators are not made for: {refusal}")


@functools.cache
def _too_old(device: torch.device) -> str | None:
    """Say why there is no machine code for this GPU; None where there is. It is in use by now."""
    major, minor = torch.cuda.get_device_capability(device)
    oldest = int(_cuda.ARCHITECTURES[0])
    if 10 * major + minor >= oldest:
        return None
    return (
        f"{device} has compute capability {major}.{minor}, they need {oldest // 10}.{oldest % 10} or newer. "
        "Keep the images on the CPU, where the same operators give the same bits."
    )


def _find_or_build() -> Path:
    _build.check_torch(torch.__version__)
    native, directories = _build.native_dir(), _build.library_dirs()
    return _first_that_loads(
        _build.library_name(native),
        directories,
        lambda force: _build.build(native, directories, force=force),
    )


def _find_or_build_cuda() -> str | None:
    """Load the operators for CUDA where there is a GPU; None, or why there are none."""
    wanted = _cuda.switch()
    if wanted is False:
        return "TARPEG_CUDA=0 in the environment does without them"
    # device_count asks the driver's management library: CUDA stays as it is, and processes may still fork.
    if torch.version.cuda is None or torch.cuda.device_count() == 0:
        return "torch sees no GPU, or was built without CUDA"
    native, directories = _build.native_dir(), _build.library_dirs()
    try:
        _first_that_loads(
            _cuda.library_name(native),
            directories,
            lambda force: _cuda.build(native, directories, force=force),
        )
    except BuildError as error:
        if wanted:
            raise
        if multiprocessing.parent_process() is None:  # a worker need not tell it again
            _build.log.warning("there is a GPU, but images on it will be refused: %s", error)
        return str(error)
    return None


def _first_that_loads(name: str, directories: Sequence[Path], build: Callable[[bool], Path]) -> Path:
    refusals = []
    for path in (directory / name for directory in directories):
        if not path.is_file():
            continue
        refusal = _refusal(path)
        if refusal is None:
            return path
        refusals.append(refusal)  # built on another machine that shares this directory: compile our own
    if _build.building_forbidden():
        where = " or ".join(map(str, directories))
        why = "; ".join(refusals) or f"no {name} in {where}"
        raise BuildError(
            f"the native operators are not built ({why}) and TARPEG_NO_BUILD forbids to build them. "
            "Unset it, or build ahead of time, where torch and a compiler are at hand: "
            "pip install --no-build-isolation ."
        )
    path = build(bool(refusals))
    if (refusal := _refusal(path)) is not None:
        raise BuildError(f"the native operators were built but do not load: {refusal}")
    return path


def _refusal(path: Path) -> str | None:
    """Load the library; None, or why it does not load."""
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except OSError as error:
        return f"{path}: {error.__cause__ or error}"
    return None
