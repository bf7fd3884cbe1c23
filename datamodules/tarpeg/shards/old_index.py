"""Indexes that early versions saved, ``NAME.tarpeg.npz``: a zip of numpy's arrays, which is only read."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..files import read_regular

# Of indexes that are complete, and of others, which versions 1 and 2 had without AVIF and packed images.
_COMPLETE, _PARTIAL = 1, 3
_PREFIX = 10  # bytes before the description of an array, the last two with its length

# What damage of a zip raises. The checksums of its members are compared by zipfile.
_DAMAGE = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, MemoryError),
)


def read_old(place: Path) -> tuple[list[int], list[npt.NDArray[Any]], dict[str, Any]] | None:
    """Read an old index; None if there is none, if it is damaged, or lacks samples.

    Returns the tar's size and time, and the number of samples left out; keys, samples and members; texts.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(read_regular(place))) as saved:
            version, *numbers = _array(saved, "head", "<i8").tolist()
            if len(numbers) != 3 or version != (_PARTIAL if numbers[2] else _COMPLETE):
                return None
            samples, members = (_array(saved, part, "<i8").reshape(3, -1) for part in ("samples", "members"))
            texts = json.loads(_array(saved, "texts", "u1").tobytes())
            return numbers, [_array(saved, "keys", "u1"), samples, members], texts
    except _DAMAGE:
        return None


def _array(saved: zipfile.ZipFile, name: str, dtype: str) -> npt.NDArray[Any]:
    content = saved.read(f"{name}.npy")
    start = _PREFIX + int.from_bytes(content[_PREFIX - 2 : _PREFIX], "little")
    return np.frombuffer(content, dtype, offset=start)
