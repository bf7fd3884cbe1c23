"""Write the seed corpora of all targets: small files of all kinds, each after the bytes of its choices.

python fuzz/seeds.py build/fuzz/decode/seeds build/fuzz/packed/seeds build/fuzz/png/seeds
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "datamodules"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from helpers import crafted, masks, pictures  # noqa: E402
from PIL import Image  # noqa: E402

SIZES = ((16, 16), (33, 47), (3, 5), (64, 24))
LIMIT = 16384
ALL_CHECKS, LITTLE_MEMORY, STALE = 7, 192, 224
GRAY = 64  # of the numbers; with nearest neighbour and few rows, most of the source's are skipped
ROWS_LEFT_OUT = bytes((0, 0, 255, 255, 70, 70, 15, 0, ALL_CHECKS, GRAY))
BICUBIC = bytes((0, 0, 255, 255, 110, 110, 15, 32, ALL_CHECKS, 0))
XMP = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta><rdf:Description tiff:Orientation%s8%s/>"


def files() -> list[bytes]:
    """JPEGs of all kinds, plain, tiled, and with what no encoder writes; PPMs."""
    import tarpeg

    found = []
    for kind, (height, width) in itertools.product(pictures.KINDS, SIZES):
        data = pictures.jpeg(kind, height, width)
        found.append(data)
        found += [bytes(tarpeg.tile_jpeg(pictures.tensor(data), tile).numpy()) for tile in (8, 32)]
    image = Image.fromarray(pictures.pixels(20, 30))
    found += [pictures.encoded(image, orientation=orientation) for orientation in range(1, 9)]
    found += [pictures.encoded(image, quality=quality) for quality in (1, 20, 100)]
    found.append(pictures.encoded(image.convert("L"), progressive=True))
    wide = Image.fromarray(pictures.pixels(24, 200))  # large enough for an index of its rows
    found.append(pictures.encoded(wide, quality=92, optimize=True))
    # Wider than the margin around the samples, so that reads beside them are found.
    found.append(pictures.encoded(Image.fromarray(pictures.pixels(48, 200)), quality=30, subsampling="4:2:0"))
    for kind, (height, width) in itertools.product(("420", "444", "gray"), ((64, 24), (150, 16))):
        data = bytes(tarpeg.tile_jpeg(pictures.tensor(pictures.jpeg(kind, height, width)), 8).numpy())
        found += row_indexes(data)
    plain = found[0]
    found += [
        plain[:2] + crafted.segment(0xE1, XMP % quotes) + plain[2:] for quotes in ((b'="', b'"'), (b">", b""))
    ]
    found += [crafted.Jpeg(33, 47, sampling).noise(1).bytes() for sampling in crafted.SAMPLINGS]
    found += [crafted.Jpeg(24, 40, codes=codes).noise(2).bytes() for codes in crafted.CODES.values()]
    found += [crafted.Jpeg(24, 40, tables=([300] * 64,) * 2, interval=2).noise(3, 3).bytes()]
    found += [
        crafted.Jpeg(24, 40, markers=crafted.adobe(transform)).noise(4).bytes() for transform in (0, 1, 2)
    ]
    found += [data[: len(data) * 2 // 3] for data in found[:40]]
    header = b"P6 # by hand\n30 20 255\n"
    found += [header + image.tobytes(), header.replace(b"255", b"254") + image.tobytes(), header + b"cut"]
    large = Image.fromarray(pictures.pixels(90, 50))  # large enough to be resampled where it lies
    found.append(b"P6 50 90 255\n" + large.tobytes())
    return found


def row_indexes(data: bytes) -> Iterator[bytes]:
    """Return the tiled file with the index of its rows, which is left out of one so small, and wrong ones."""
    frame = next(body for marker, body in crafted.segments_of(data) if marker in (0xC0, 0xC1))
    height, down = int.from_bytes(frame[1:3], "big"), 8 * (frame[7] & 15 if frame[5] > 1 else 1)
    start, markers = crafted.scan_of(data)
    count = -(-height // down)
    right = [len(data) - 2 - start, *markers[(len(markers) + 1) // count - 1 :: (len(markers) + 1) // count]]
    for numbers in (
        right,
        [*right[:3], *right[4:], 0],
        [right[0], *right[9:], *right[1:9]],
        [right[0]] * count,
    ):
        yield crafted.with_index(data, numbers)


def requests(number: int) -> Iterator[bytes]:
    """Return the choices for one file: every check, little memory, and two others."""
    side = (0, 40, 70, 110)[number % 4]
    number_of_filter = 3 + number % 5  # antialiased bilinear to bicubic
    options = 2 * (number_of_filter % 4) + 32 * (number_of_filter // 4) + 16 * (number % 2)
    yield bytes((0, 0, 255, 255, side, side, 15, options, ALL_CHECKS, number % 256))
    yield bytes((0, 0, 255, 255, side, side, 15, 6, LITTLE_MEMORY, 0))
    for turn in (1, 2):
        yield bytes((37 * number + 59 * turn * place) % (STALE if place == 8 else 256) for place in range(10))


def stale(data: bytes) -> Iterator[bytes]:
    """Return the file with one byte that changes after its header was read, in each segment."""
    places, at = [], 2
    while data[at + 1] != 0xDA:
        places += [at + 1, at + 2, at + 3, *range(at + 4, at + 24)]
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    for place, value in itertools.product((*places, *range(at, at + 14)), (0, 1, 255)):
        yield (
            bytes((*place.to_bytes(2, "big"), value, 255, 255, data[0xFFFF % len(data)], 15, 0, STALE, 0))
            + data
        )


def packed(jpegs: list[bytes]) -> Iterator[bytes]:
    """Return the inputs of fuzz/packed.cpp: the files that can be packed, in tiles of 8 and 32 pixels."""
    import tarpeg

    big = [
        crafted.Jpeg(24, 40, sampling, tables=(table,) * 2).noise(number, strength, limit).bytes()
        for number, (sampling, strength, limit, table) in enumerate(
            itertools.product(crafted.SAMPLINGS[:6], (40, 4000), (120, 1023), ([1] * 64, [300] * 64))
        )
    ]
    number = 0
    for data, tile in itertools.product([*jpegs, *big], (8, 32)):
        try:
            found = bytes(tarpeg.pack_jpeg(pictures.tensor(data), tile).numpy())
        except ValueError:
            continue
        if found[:4] == b"\x89TPJ" and len(found) <= LIMIT:
            options = number % 16 if number % 5 else 48
            yield (
                bytes((37 * number % 256, 59 * number % 256, 200, 90, 7 * number % 256, options, 0, 40))
                + found
            )
            number += 1


def pngs() -> Iterator[bytes]:
    """Return the inputs of fuzz/png.cpp: masks in all filters, ways to compress, and bands."""
    from tarpeg.cache.masks import banded

    noise = pictures.pixels(20, 31)[:, :, 0]
    rows, columns = np.mgrid[:70, :50]
    disc = 3 * ((rows - 35) ** 2 + (columns - 25) ** 2 < 400).astype(np.uint8)  # its runs move row by row
    for values in (noise, noise[:1, :1], masks.regions(70, 50), masks.regions(33, 90, 1), disc):
        found = [masks.png(values), masks.png(values, "P"), masks.png(values, compress_level=0)]
        found += [banded(each) for each in found]
        for strategy, level in itertools.product(range(5), (1, 6)):
            found.append(masks.filtered(values, [0, 1, 2, 3, 4], 3, level, strategy))
        for data, choices in itertools.product(found, ((0, 0, 255, 255, 0), (100, 100, 60, 60, 0))):
            yield bytes(choices) + data
        yield bytes((0, 0, 255, 255, 1)) + found[0]


def write(directory: Path, inputs: list[bytes]) -> None:
    """Write the inputs within the limit."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs):
        if len(data) <= LIMIT:
            (directory / f"seed-{number:04d}").write_bytes(data)


def main() -> None:
    """Write the inputs to the directories named on the command line."""
    found = files()
    inputs = [request + data for number, data in enumerate(found) for request in requests(number)]
    inputs += [changed for data in (found[0], found[18]) for changed in stale(data)]
    wide = b"P6 150 30 255\n" + pictures.pixels(30, 150).tobytes()  # RGB of many pixels becomes channels
    inputs += [ROWS_LEFT_OUT + found[-1], BICUBIC + wide]
    coefficients = list(packed(found))
    write(Path(sys.argv[1]), inputs + [bytes(2) + data for data in coefficients[::10]])
    write(Path(sys.argv[2]), coefficients)
    write(Path(sys.argv[3]), [*pngs()])


if __name__ == "__main__":
    main()
