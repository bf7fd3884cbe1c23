"""A JPEG writer for what no encoder writes: any sampling, tables, markers, coefficients; plain Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

DC_SYMBOLS = list(range(12))
AC_SYMBOLS = [0, 0xF0] + [run << 4 | size for run in range(16) for size in range(1, 11)]
PHOTO = tuple(3 + k // 2 for k in range(64))
JFIF = b"\xff\xe0\x00\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"


SAMPLINGS: list[tuple[tuple[int, int], ...]] = [
    *[((2, 2), (1, 1), (1, 1)), ((1, 1), (1, 1), (1, 1)), ((2, 1), (1, 1), (1, 1)), ((1, 2), (1, 1), (1, 1))],
    *[((4, 1), (1, 1), (1, 1)), ((1, 4), (1, 1), (1, 1)), ((4, 2), (1, 1), (1, 1)), ((2, 4), (1, 1), (1, 1))],
    *[((1, 1), (2, 2), (1, 1)), ((2, 2), (2, 1), (1, 2)), ((2, 2), (1, 2), (2, 1)), ((1, 4), (1, 2), (1, 1))],
    *[((4, 1), (2, 1), (1, 1)), ((3, 1), (1, 1), (1, 1)), ((1, 3), (1, 1), (3, 1)), ((2, 2), (2, 2), (1, 1))],
    *[((1, 1),), ((2, 2),), ((4, 1),)],
]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2, "big") + body


def adobe(transform: int) -> bytes:
    return segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes((transform,)))


def quantisers(index: int, table: Sequence[int]) -> bytes:
    wide = max(table) > 255
    values = b"".join(value.to_bytes(2 if wide else 1, "big") for value in table)
    return segment(0xDB, bytes((wide << 4 | index,)) + values)


class Code:
    """A canonical Huffman code: lengths 1, 2, ... for the first symbols, one length for the rest."""

    def __init__(self, symbols: Sequence[int], lone: int, rest: int) -> None:
        self.counts, self.symbols = [0] * 16, list(symbols)
        self.codes: dict[int, tuple[int, int]] = {}
        lengths = [*range(1, lone + 1), *[rest] * (len(symbols) - lone)]
        code, before = 0, lengths[0]
        for symbol, length in zip(symbols, lengths, strict=True):
            code <<= length - before
            self.codes[symbol] = (code, length)
            self.counts[length - 1] += 1
            code, before = code + 1, length
        assert code <= (1 << before) - 1

    def table(self, kind: int) -> bytes:
        return segment(0xC4, bytes((kind, *self.counts, *self.symbols)))


SHORT = Code(DC_SYMBOLS, 0, 4), Code(AC_SYMBOLS, 0, 8)
LONG = Code(DC_SYMBOLS, 4, 16), Code(AC_SYMBOLS, 7, 16)


def shortest(*symbols: int) -> tuple[Code, Code]:
    """A code in which these AC symbols have 1, 2, ... bits and all others many."""
    rest = [symbol for symbol in AC_SYMBOLS if symbol not in symbols]
    length = 12 if len(symbols) <= 4 else 15
    return Code(DC_SYMBOLS, 3, 8), Code([*symbols, *rest], len(symbols), length)


CODES = {
    "ones": shortest(0x01, 0x00),
    "end": shortest(0x00, 0x01),
    "runs": shortest(0xF0, 0x00, 0x11),
    "twos": shortest(0x02, 0x12, 0x00, 0x01),
    "large": shortest(0x06, 0x07, 0x00),  # values that fill the lookup
    "mixed": shortest(0x11, 0x21, 0x01, 0x00, 0x02, 0xF0, 0xF1),
    "long": LONG,
}


class Bits:
    def __init__(self) -> None:
        self.text: list[str] = []

    def put(self, value: int, count: int) -> None:
        if count:
            self.text.append(format(value, f"0{count}b"))

    def number(self, value: int, size: int) -> None:
        self.put(value if value >= 0 else value + (1 << size) - 1, size)

    def take(self) -> bytes:
        text = "".join(self.text)
        text += "1" * (-len(text) % 8)
        self.text.clear()
        data = bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8))
        return data.replace(b"\xff", b"\xff\0")


def put_block(bits: Bits, block: Sequence[int], before: int, codes: tuple[Code, Code]) -> None:
    """block: 64 coefficients in zigzag order."""
    difference = int(block[0]) - before
    size = abs(difference).bit_length()
    bits.put(*codes[0].codes[size])
    bits.number(difference, size)
    run = 0
    last = max((k for k in range(1, 64) if block[k]), default=0)
    for k in range(1, last + 1):
        value = int(block[k])
        if value == 0:
            run += 1
            continue
        for _ in range(run // 16):
            bits.put(*codes[1].codes[0xF0])
        size = abs(value).bit_length()
        bits.put(*codes[1].codes[(run % 16) << 4 | size])
        bits.number(value, size)
        run = 0
    if last < 63:
        bits.put(*codes[1].codes[0])


@dataclass
class Jpeg:
    """What goes into a file. `markers` come behind SOI, `more` before SOS."""

    height: int
    width: int
    sampling: tuple[tuple[int, int], ...] = ((2, 2), (1, 1), (1, 1))  # across, down
    ids: tuple[int, ...] = (1, 2, 3)
    tables: tuple[Sequence[int], ...] = (PHOTO, PHOTO)
    codes: tuple[Code, Code] = SHORT
    interval: int = 0
    markers: bytes = JFIF
    more: bytes = b""
    frame: int = 0xC0
    stated_height: int | None = None
    behind_scan: bytes = b"\xff\xd9"
    coefficients: list[np.ndarray] = field(default_factory=list)  # each [rows, columns, 64], zigzag

    def geometry(self) -> tuple[int, int, int, int]:
        across, down = max(h for h, _ in self.sampling), max(v for _, v in self.sampling)
        return across, down, ceil_div(self.width, 8 * across), ceil_div(self.height, 8 * down)

    def noise(self, seed: int = 0, strength: float = 40, limit: int = 1023) -> Jpeg:
        """The same with random coefficients, falling off with the frequency."""
        rng = np.random.default_rng(seed)
        _, _, columns, rows = self.geometry()
        found = []
        for h, v in self.sampling:
            scale = strength / (1 + np.arange(64)) ** 1.2
            values = np.rint(rng.standard_normal((rows * v, columns * h, 64)) * scale)
            found.append(values.clip(-limit, limit).astype(int))
        return replace(self, coefficients=found)

    def head(self) -> bytes:
        count = len(self.sampling)
        height = self.height if self.stated_height is None else self.stated_height
        body = b"\x08" + height.to_bytes(2, "big") + self.width.to_bytes(2, "big") + bytes((count,))
        for index, (h, v) in enumerate(self.sampling):
            body += bytes((self.ids[index], h << 4 | v, min(index, 1)))
        data = b"\xff\xd8" + self.markers
        for index, table in enumerate(self.tables):
            data += quantisers(index, table)
        data += segment(self.frame, body) + self.codes[0].table(0x00) + self.codes[1].table(0x10)
        if self.interval:
            data += segment(0xDD, self.interval.to_bytes(2, "big"))
        return data + self.more

    def scan(self, components: Sequence[int]) -> bytes:
        """SOS and the coded data of these components; one alone is not interleaved."""
        body = bytes((len(components), *(x for c in components for x in (self.ids[c], 0)), 0, 63, 0))
        return segment(0xDA, body) + b"".join(self.segments(components))

    def segments(self, components: Sequence[int]) -> list[bytes]:
        """The coded data cut at the restart markers, which come at the end of each but the last."""
        across, down, columns, rows = self.geometry()
        if len(components) == 1:
            h, v = self.sampling[components[0]]
            columns = ceil_div(ceil_div(self.width * h, across), 8)
            rows = ceil_div(ceil_div(self.height * v, down), 8)
        found: list[bytes] = []
        bits, before = Bits(), dict.fromkeys(components, 0)
        total = rows * columns
        for mcu in range(total):
            row, column = divmod(mcu, columns)
            for c in components:
                h, v = (1, 1) if len(components) == 1 else self.sampling[c]
                for y in range(v):
                    for x in range(h):
                        block = self.coefficients[c][row * v + y, column * h + x]
                        put_block(bits, block, before[c], self.codes)
                        before[c] = int(block[0])
            if self.interval and (mcu + 1) % self.interval == 0 and mcu + 1 < total:
                found.append(bits.take() + bytes((0xFF, 0xD0 + len(found) % 8)))
                before = dict.fromkeys(components, 0)
        found.append(bits.take())
        return found

    def component(self, index: int) -> Jpeg:
        """A gray file of the samples of one component."""
        across, down, *_ = self.geometry()
        h, v = self.sampling[index]
        size = ceil_div(self.height * v, down), ceil_div(self.width * h, across)
        coefficients, tables = [self.coefficients[index]], (self.tables[min(index, 1)],)
        return Jpeg(*size, ((1, 1),), (1,), tables, self.codes, coefficients=coefficients)

    def bytes(self) -> bytes:
        """The file, in one interleaved scan."""
        return self.head() + self.scan(range(len(self.sampling))) + self.behind_scan


def segments_of(data: bytes) -> list[tuple[int, bytes]]:
    """Marker and body of everything before the first scan of a file."""
    found, at = [], 2
    while data[at + 1] != 0xDA:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((data[at + 1], data[at + 4 : at + 2 + length]))
        at += 2 + length
    return found


def scan_of(data: bytes) -> tuple[int, list[int]]:
    """Where the scan begins, and the position behind each of its restart markers, relative to that."""
    start = data.index(b"\xff\xda")
    start += 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    return start, [found.end() for found in re.finditer(rb"\xff[\xd0-\xd7]", data[start:])]


INDEX = b"tarpeg\0\1"
"""What the index of a tiled file's rows begins with."""


def with_index(data: bytes, numbers: Sequence[int], head: bytes = INDEX) -> bytes:
    """The tiled file with this index of its rows, none for no numbers, instead of its own."""
    own = b"".join(segment(0xEA, body) for marker, body in segments_of(data) if marker == 0xEA)
    data = data.replace(own, b"", 1)
    at = data.index(b"\xff\xda")
    body = head + b"".join(number.to_bytes(4, "big") for number in numbers)
    return data[:at] + (segment(0xEA, body) if numbers else b"") + data[at:]
