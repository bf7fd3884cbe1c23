"""Load the two native libraries, so that ``torch.ops.tarpeg`` exists; compile them if they are not there.

The CUDA library is compiled and loaded only if there is a GPU. It counts as usable on a GPU after one of its
kernels ran there. Without it, images on a GPU are refused. How they are compiled, and the variables of the
environment for it, are in ``compiler``. This module, too, imports without torch.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BuildError
from . import compiler

if TYPE_CHECKING:
    import torch

log = logging.getLogger("tarpeg")

_lock = threading.Lock()
_loaded: Path | None = None
_cuda: ctypes.CDLL | str = "load() was not called yet"  # the CUDA library, or why there is none
_usable: set[int] = set()  # GPUs on which a kernel ran; a failure is not kept: memory may be free later


def load() -> None:
    """Load the native libraries once per process; the first call on a machine may compile them."""
    global _loaded, _cuda
    if _loaded is None:
        with _lock:
            if _loaded is None:
                path = _find_or_build()
                _cuda = _find_or_build_cuda()
                _loaded = path


def library_path() -> Path:
    """Return the file of the loaded CPU library; loads it first if necessary."""
    load()
    assert _loaded is not None
    return _loaded


def has_cuda(device: torch.device | None = None) -> bool:
    """Return whether the operators for images on this GPU, by default the current one, work."""
    return why_no_cuda(device) is None


def why_no_cuda(device: torch.device | None = None) -> str | None:
    """Return the reason why the operators do not work on this GPU, by default the current one; or None.

    The first call for a GPU runs a kernel of one element there, and initialises CUDA; not in torch.compile.
    """
    load()
    if isinstance(_cuda, str):
        return _cuda
    import torch

    if torch.compiler.is_compiling():
        return None
    try:
        index = None if device is None else device.index
        return _why_not_on(torch.cuda.current_device() if index is None else index)
    except RuntimeError as error:
        return f"CUDA does not start: {error}"


def require_cuda(device: torch.device) -> None:
    """Raise BuildError if the operators do not work on this GPU."""
    if (reason := why_no_cuda(device)) is not None:
        raise BuildError(f"images are on a GPU, but the CUDA operators do not work: {reason}")


def _why_not_on(index: int) -> str | None:
    import torch

    if index in _usable:
        return None
    major, minor = torch.cuda.get_device_capability(index)
    oldest = int(compiler.ARCHITECTURES[0])
    if 10 * major + minor < oldest:
        needed = f"{oldest // 10}.{oldest % 10}"
        reason = f"cuda:{index} has compute capability {major}.{minor}, they need {needed} or newer"
    else:
        assert isinstance(_cuda, ctypes.CDLL)
        with torch.cuda.device(index):  # the library changes the thread's device, and torch restores it
            failure: bytes | None = _cuda.tarpeg_cuda_probe(index)
        if failure is None:
            _usable.add(index)
            return None
        reason = f"a kernel failed on cuda:{index} ({failure.decode()}); "
        reason += "free some of it" if b"out of memory" in failure else "a newer driver may help"
    reason += ". Keep the images on the CPU, where the same operators give the same bits."
    return _refused(reason)


@functools.cache
def _refused(reason: str) -> str:
    """Return the reason, after a warning with it at the first time."""
    if multiprocessing.parent_process() is None:  # the training process warns, its workers do not
        log.warning("there is a GPU, but images on it will be refused: %s", reason)
    return reason


def _find_or_build() -> Path:
    import torch

    compiler.check_torch(torch.__version__)
    return _first_that_loads(compiler.library_name(compiler.native_dir()), compiler.build)


def _find_or_build_cuda() -> ctypes.CDLL | str:
    """Load the CUDA library if there is a GPU. Return it, or the reason why it is not loaded."""
    import torch

    wanted = compiler.cuda_switch()
    if wanted is False:
        return "TARPEG_CUDA=0 in the environment leaves them out"
    # device_count asks the driver's management library: CUDA stays uninitialised, processes may still fork.
    cuda = compiler.torch_cuda()
    if cuda is None or torch.cuda.device_count() == 0:
        return "torch sees no GPU, or was built without CUDA"
    try:
        driver = driver_cuda()
        if driver is not None and driver[0] < cuda[0]:
            supported, wanted_by_torch = compiler.dotted(driver), compiler.dotted(cuda)
            raise BuildError(
                f"the driver supports CUDA {supported}, and torch is built for CUDA {wanted_by_torch}. "
                f"Update the driver, or install a torch that is built for CUDA {driver[0]}"
            )
        name = compiler.cuda_library_name(compiler.native_dir(), cuda[0])
        library = ctypes.CDLL(str(_first_that_loads(name, compiler.build_cuda)))
    except BuildError as error:
        if wanted:
            raise
        return _refused(str(error))
    library.tarpeg_cuda_probe.restype = ctypes.c_char_p
    return library


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA that the driver supports, without initialising it; None if unknown."""
    version = ctypes.c_int()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return (version.value // 1000, version.value % 1000 // 10) if status == 0 else None


def _first_that_loads(name: str, build: Callable[..., Path]) -> Path:
    directories, refusals = compiler.library_dirs(), []
    for path in (directory / name for directory in directories):
        if not os.path.isfile(path):  # noqa: PTH113 (the folder of another user may be unreadable)
            continue
        refusal: str | None = compiler.why_unsafe(path, path.parent)
        if refusal:
            log.warning("the native library %s is not loaded: %s", path, refusal)
        else:
            refusal = _load_library(path)
        if refusal is None:
            return path
        refusals.append(refusal)  # built on another machine that shares this directory: compile our own
    if compiler.building_forbidden():
        reason = "; ".join(refusals) or f"no {name} in {' or '.join(map(str, directories))}"
        raise BuildError(
            f"the native operators are not built ({reason}) and TARPEG_NO_BUILD forbids building them. "
            "Unset it, or build ahead of time, with torch and a compiler: pip install --no-build-isolation ."
        )
    path = build(force=bool(refusals))
    if (failure := _load_library(path)) is not None:
        raise BuildError(f"the native operators were built but do not load: {failure}")
    return path


def _load_library(path: Path) -> str | None:
    """Load the library. Return None, or the reason why it does not load; BuildError if it cannot be used."""
    import torch

    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        return f"{path}: {error.__cause__ or error}"
    library = ctypes.CDLL(str(path))
    if hasattr(library, "tarpeg_failure"):
        library.tarpeg_failure.restype = ctypes.c_char_p
        if failure := library.tarpeg_failure():  # its operators exist now: another cannot be loaded
            raise BuildError(f"{path} cannot be used: {failure.decode()}")
    return None
