"""Make ``torch.ops.tarpeg`` exist: find the native library, or build it, and load it."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from . import _build
from .errors import BuildError

_lock = threading.Lock()
_loaded: Path | None = None


def load() -> None:
    """Load the native library once in this process; the first call on a machine may compile it."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _find_or_build()


def library_path() -> Path:
    """Return the file that the operators came from, loading it where that has not happened yet."""
    load()
    assert _loaded is not None
    return _loaded


def _find_or_build() -> Path:
    _build.check_torch(torch.__version__)
    native, directories = _build.native_dir(), _build.library_dirs()
    refusals = []
    for path in _build.find(native, directories):
        refusal = _refusal(path)
        if refusal is None:
            return path
        refusals.append(refusal)  # built on another machine that shares this directory: compile our own
    if _build.building_forbidden():
        where = " or ".join(map(str, directories))
        why = "; ".join(refusals) or f"no {_build.library_name(native)} in {where}"
        raise BuildError(
            f"the native operators are not built ({why}) and TARPEG_NO_BUILD forbids to build them. "
            "Unset it, or build ahead of time, where torch and a compiler are at hand: "
            "pip install --no-build-isolation ."
        )
    path = _build.build(native, directories, force=bool(refusals))
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
