"""Caches of small photographs for the tests of decode="device", and damage within their tiles."""

from __future__ import annotations

from pathlib import Path

import tarpeg
import torch
from tarpeg import Status

from helpers.small_tars import sample, write_tar

CODECS = {"tiled": tarpeg.Tiled(16), "packed": tarpeg.Packed(tile=16)}


def tiles_of(number: int, codec: str = "tiled") -> bytes:
    """The image of ``sample(number)`` as a cache has it."""
    plain = torch.frombuffer(bytearray(sample(number)[0][1]), dtype=torch.uint8)
    make = tarpeg.tile_jpeg if codec == "tiled" else tarpeg.pack_jpeg
    return bytes(make(plain, 16).numpy())


def write_cache(folder: Path, codec: str, count: int = 23, **others: bytes) -> Path:
    """Shards of tiled or packed samples k0000, k0001, ...; ``others``: files in place of some, by key."""
    folder.mkdir(parents=True, exist_ok=True)
    members = []
    for number in range(count):
        data = others.get(f"k{number:04d}", tiles_of(number, codec))
        members += sample(number, data)
    write_tar(folder / "a.tar", members[: 2 * 13])
    if count > 13:
        write_tar(folder / "b.tar", members[2 * 13 :])
    return folder


def damaged(data: bytes, size: int = 32) -> bytes:
    """A file that is gathered, and of which decode_gathered and decode_batch find that it is damaged."""
    for place in range(len(data) * 3 // 4, len(data) - 40):
        for pattern in (b"\x00" * 24, b"\x55" * 24, b"\xfe" * 24):
            found = bytearray(data)
            found[place : place + 24] = pattern
            file = torch.frombuffer(found, dtype=torch.uint8)
            height, width = tarpeg.image_sizes([file])[0].tolist()
            boxes = torch.tensor([[0, 0, height, width]], dtype=torch.int32)
            gathered = tarpeg.gather_tiles([file], boxes, size=size)
            if int(gathered.status[0]) != Status.OK:
                continue
            statuses = tarpeg.decode_gathered(gathered)[1], tarpeg.decode_batch([file], boxes, size=size)[1]
            if all(int(each[0]) != Status.OK for each in statuses):
                return bytes(found)
    raise AssertionError("no damage is found in the tiles")
