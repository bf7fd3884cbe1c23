"""Masks with regions of random shapes, and PNGs of them in every filter."""

from __future__ import annotations

import io
import itertools
import struct
import zlib

import numpy as np
from PIL import Image, ImageDraw


def regions(height, width, seed=0, classes=21, count=8):
    """A mask of random polygons: uint8 [H, W]."""
    rng = np.random.default_rng(seed)
    image = Image.new("L", (width, height))
    for _ in range(count):
        angles = np.sort(rng.uniform(0, 2 * np.pi, 12))
        reach = min(height, width) * rng.uniform(0.05, 0.4, 12)
        x, y = rng.uniform(0, width), rng.uniform(0, height)
        corners = zip(x + reach * np.cos(angles), y + reach * np.sin(angles), strict=True)
        ImageDraw.Draw(image).polygon(list(corners), fill=int(rng.integers(1, classes)))
    return np.asarray(image)


def png(values, mode=None, **options):
    """A PNG as Pillow writes it; mode "P" for numbers of a palette."""
    image = Image.fromarray(values)
    if mode == "P":
        image = Image.frombytes("P", values.shape[::-1], values.tobytes())
        image.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    content = io.BytesIO()
    image.save(content, "PNG", **options)
    return content.getvalue()


def chunk(kind, content):
    """A chunk of a PNG with its checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def filtered(values, filters, parts=1, level=6, strategy=zlib.Z_DEFAULT_STRATEGY):
    """A PNG whose row y has the filter filters[y % n] (5: one that there is not), in so many IDAT chunks."""
    height, width = values.shape
    rows, above = b"", np.zeros(width, np.int64)
    for y, row in enumerate(values.astype(np.int64)):
        kind = filters[y % len(filters)]
        left, corner = np.r_[0, row[:-1]], np.r_[0, above[:-1]]
        estimate = left + above - corner
        far = np.abs(estimate - left), np.abs(estimate - above), np.abs(estimate - corner)
        paeth = np.where(
            (far[0] <= far[1]) & (far[0] <= far[2]), left, np.where(far[1] <= far[2], above, corner)
        )
        guess = (0, left, above, (left + above) // 2, paeth, 0)[kind]
        rows += bytes([kind]) + (row - guess).astype(np.uint8).tobytes()
        above = row
    deflate = zlib.compressobj(level, zlib.DEFLATED, 15, 9, strategy)
    stream = deflate.compress(rows) + deflate.flush()
    ends = np.linspace(0, len(stream), parts + 1).astype(int)
    data = [chunk(b"IDAT", stream[a:b]) for a, b in itertools.pairwise(ends)]
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(data) + chunk(b"IEND", b"")
