"""Calls of the operators, written to a file, for core/replay.cpp: a machine without torch can repeat them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SOURCE = Path(__file__).parent / "core" / "replay.cpp"
TYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16)  # Number in native/base/number.h
RESULTS = dict.fromkeys(("decode_batch", "decode_crop", "tile_jpeg", "pack_jpeg", "unpack_jpeg"))
RESULTS |= {"decode_sizes_out": 8, "warp_affine": 6, "run_batch": 12}
"""Operators that are recorded: the argument that holds the result, or None if it is returned."""


class Recorder(TorchDispatchMode):
    """Writes the calls of tarpeg's operators to a file, and keeps the bytes of their results."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.file = file
        self.calls: list[tuple[str, bytes]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        namespace, _, name = function._schema.name.partition("::")
        if name == "decode_batch_out":
            name, args = "decode_sizes_out", (*args[:8], [args[8]], *args[9:], None)
        is_placed = name == "decode_sizes_out" and any(each is not None for each in args[10:])
        if namespace != "tarpeg" or name not in RESULTS or is_placed:
            return result
        assert not kwargs, "the operators are called with positional arguments"
        defaults = [argument.default_value for argument in function._schema.arguments[len(args) :]]
        self.file.write(encoded([name, *args, *defaults]))
        place = RESULTS[name]
        made = result if place is None else args[place]
        if isinstance(made, tuple):  # and statuses
            made = made[0]
        self.calls.append((name, b"".join(map(raw, made if isinstance(made, list) else [made]))))
        return result


def raw(tensor: Tensor) -> bytes:
    """The bytes of a dense tensor, in the order of memory."""
    dense = tensor if tensor.is_contiguous() else tensor.movedim(-3, -1)
    return dense.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def encoded(value: Any) -> bytes:
    """An argument as core/replay.cpp reads it."""

    def head(kind: str, number: int) -> bytes:
        return struct.pack("<cq", kind.encode(), number)

    if value is None:
        return head("n", 0)
    if isinstance(value, int):
        return head("i", value)
    if isinstance(value, str):
        return head("s", len(value)) + value.encode()
    if isinstance(value, Tensor):
        data, kind = raw(value), TYPES.index(value.dtype) if value.dtype in TYPES else 0
        shape = struct.pack(f"<bbq{value.dim()}q", kind, value.is_contiguous(), value.dim(), *value.shape)
        return head("t", len(data)) + shape + data
    values = list(value)
    if values and all(isinstance(one, float) for one in values):
        return head("f", len(values)) + struct.pack(f"<{len(values)}d", *values)
    return head("l", len(values)) + b"".join(map(encoded, values))


def results_of(path: Path) -> list[bytes]:
    """The results that core/replay.cpp has written."""
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<q", data, at)
        found.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return found
