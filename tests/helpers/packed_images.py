"""A slow twin of the reader of packed images, written from docs/formats.md; plain Python and numpy."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

MAGIC = b"\x89TPJ"
ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, (i // 8 if (i // 8 + i % 8) % 2 else i % 8)))


@dataclass
class Component:
    id: int
    across: int
    down: int
    quantisers: list[int]
    dc_bytes: int
    coefficients: np.ndarray  # [rows, columns, 64] of blocks, natural order


@dataclass
class Packed:
    height: int  # upright
    width: int
    orientation: int
    tile: int  # MCUs
    unit: int
    components: list[Component]
    metadata: bytes


def nibbles(data: bytes, count: int) -> tuple[list[int], bytes]:
    """That many numbers of four bits, and the bytes after them."""
    used = (count + 1) // 2
    assert used <= len(data), "the tile ends early"
    return [data[i // 2] >> (4 * (i % 2)) & 15 for i in range(count)], data[used:]


def tile_blocks(data: bytes, counts: list[int], dc_bytes: list[int]) -> list[np.ndarray]:
    """The blocks of each component, [count, 64] in natural order, and only zeros after them."""
    starts = []
    for nbytes in dc_bytes:
        starts.append(int.from_bytes(data[:nbytes], "little", signed=True))
        data = data[nbytes:]
    lengths, data = nibbles(data, sum(counts))
    lengths = [16 if length == 15 else length for length in lengths]
    digits, data = nibbles(data, sum(lengths))
    masks = []
    for length in lengths:
        masks.append(
            [bit for digit in digits[:length] for bit in (digit & 1, digit & 2, digit & 4, digit & 8)]
        )
        digits = digits[length:]
    codes, data = nibbles(data, sum(bool(bit) for mask in masks for bit in mask))
    escaped = [value - 256 if value > 127 else value for value in data[: codes.count(0)]]
    assert len(escaped) == codes.count(0), "the tile ends early"
    wide = list(struct.unpack_from(f"<{escaped.count(-128)}h", data, len(escaped)))
    data = data[len(escaped) + 2 * len(wide) :]
    assert not any(data), "zeros fill up a tile"
    values = []
    for code in codes:
        value = (code + 8) % 16 - 8
        if value == 0:
            value = escaped.pop(0)
            value = wide.pop(0) if value == -128 else value
        values.append(value)
    found, values_left, masks_left = [], iter(values), iter(masks)
    for count, dc in zip(counts, starts, strict=True):
        blocks = np.zeros((count, 64), int)
        for block in blocks:
            for k, bit in enumerate(next(masks_left)):
                if bit:
                    block[ZIGZAG[k]] = next(values_left)
            dc = (dc + block[0] + 32768) % 65536 - 32768
            block[0] = dc
        found.append(blocks)
    return found


def read(data: bytes) -> Packed:
    """Everything in a packed image; its checksum must be right."""
    magic, version, orientation, count, crc, height, width, tile, unit, tables = struct.unpack_from(
        "<4sHBBIHHHBB", data
    )
    assert (magic, version) == (MAGIC, 1) and crc == zlib.crc32(data[12:]) and data[-64:] == bytes(64)
    fields = [data[20 + 4 * i : 24 + 4 * i] for i in range(count)]
    metadata_at, metadata_size = struct.unpack_from("<II", data, 32)
    assert metadata_at + metadata_size + 64 == len(data)
    sides = [(1, 1)] if count == 1 else [(field[1] >> 4, field[1] & 15) for field in fields]
    across, down = max(h for h, _ in sides), max(v for _, v in sides)
    stored = (width, height) if orientation >= 5 else (height, width)
    rows, columns = -(-stored[0] // (8 * down)), -(-stored[1] // (8 * across))
    tiles, at = -(-columns // tile), 40 + 128 * tables
    starts = struct.unpack_from(f"<{rows}I", data, at)
    ends = struct.unpack_from(f"<{rows * tiles}H", data, at + 4 * rows)
    components = [
        Component(
            field[0], h, v, list(struct.unpack_from("<64H", data, 40 + 128 * field[2])), field[3], np.zeros(0)
        )
        for field, (h, v) in zip(fields, sides, strict=True)
    ]
    for component in components:
        component.coefficients = np.zeros((rows * component.down, columns * component.across, 64), int)
    for row in range(rows):
        begin = 0
        for number in range(tiles):
            end = ends[row * tiles + number] << unit
            mcus = min(tile, columns - number * tile)
            counts = [mcus * component.across * component.down for component in components]
            body = data[starts[row] + begin : starts[row] + end]
            found = tile_blocks(body, counts, [component.dc_bytes for component in components])
            for component, blocks in zip(components, found, strict=True):
                h, v = component.across, component.down
                place = blocks.reshape(mcus, v, h, 64).transpose(1, 0, 2, 3).reshape(v, mcus * h, 64)
                left = number * tile * h
                component.coefficients[row * v : (row + 1) * v, left : left + mcus * h] = place
            begin = end
    metadata = data[metadata_at : metadata_at + metadata_size]
    return Packed(height, width, orientation, tile, unit, components, metadata)


def with_sum(data: bytes) -> bytes:
    """The same bytes with the right checksum."""
    return data[:8] + struct.pack("<I", zlib.crc32(data[12:])) + data[12:]
