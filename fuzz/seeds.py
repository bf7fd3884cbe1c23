"""Write the seed corpus of fuzz/decode.cpp: small files of every kind, 8 bytes of request before each.

python fuzz/seeds.py build/fuzz/seeds
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "datamodules"), str(ROOT / "tests")]

from helpers import pictures  # noqa: E402
from PIL import Image  # noqa: E402

SIZES = ((16, 16), (33, 47), (3, 5), (64, 24))
LIMIT = 8192


def files() -> list[bytes]:
    """JPEGs of all kinds, plain and tiled, and a PPM."""
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
    found.append(b"P6 30 20 255\n" + image.tobytes())
    return found


def main() -> None:
    """Write what fits the limit to the directory named on the command line."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(files()):
        request = bytes((37 * number + 59 * place) % 256 for place in range(8))
        if len(data) + len(request) <= LIMIT:
            (directory / f"seed-{number:04d}").write_bytes(request + data)


if __name__ == "__main__":
    main()
