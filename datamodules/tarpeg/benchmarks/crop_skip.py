"""libjpeg-turbo's own crop, jpeg_crop_scanline and jpeg_skip_scanlines: what the article suite compares with.

It is compiled for that suite alone, from native/bench/crop_skip.cpp, and no part of what is measured as ours.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from pathlib import Path

import torch
from torch import Tensor

from ..ops import library as native


def library(folder: Path) -> Path:
    """Return the compiled library, made in ``folder`` where it is not there yet; BuildError says why not."""
    source = native.native_dir() / "bench" / "crop_skip.cpp"
    name = f"libcropskip-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    return native.build_once(name, lambda scratch, made: native.compile_alone(source, made), [folder])


def decode(library: Path, jpeg: bytes, size: tuple[int, int], down: float, across: float) -> Tensor:
    """Decode a crop of ``size`` (height, width): uint8 [3, height, width], RGB.

    ``down`` and ``across``: which of all places, from 0 to below 1. Pixels at its edges may differ from those
    of a full decode. Raises ValueError where the JPEG is damaged or too small.
    """
    out = torch.empty((*size, 3), dtype=torch.uint8)
    if _function(library)(jpeg, len(jpeg), *size, down, across, out.data_ptr()):
        raise ValueError(f"libjpeg cannot decode a crop of {size[0]} x {size[1]} of this JPEG")
    return out.permute(2, 0, 1)


@functools.cache
def _function(library: Path) -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(str(library)).crop_skip
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, *[ctypes.c_int] * 2, *[ctypes.c_double] * 2]
    function.argtypes = [*function.argtypes, ctypes.c_void_p]
    return function
