"""read_masks: the pixels that Pillow decodes, from any PNG with a byte per pixel, and never a crash."""

from __future__ import annotations

import contextlib
import io
import zlib

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.masks import chunk, filtered, png, regions
from helpers.pictures import assert_portable_is_equal
from PIL import Image
from tarpeg.cache.masks import BANDS, RUNS, banded, is_banded
from tarpeg.ops.masks import read_masks
from tarpeg.shards.pillow import RefusedError, open_values

NOISE = np.random.default_rng(0).integers(0, 256, (97, 131), np.uint8)
STRATEGIES = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED)


def files():
    """PNGs of every kind that is decoded natively."""
    for values in (
        NOISE,
        regions(97, 131),
        regions(200, 333, 1),
        NOISE[:1, :1],
        NOISE[:, :1],
        NOISE[:40, :2],
    ):
        yield from (png(values), png(values, "P"), png(values, optimize=True), png(values, compress_level=0))
        yield from (banded(png(values)), banded(png(values, "P")), without_runs(banded(png(values))))
        for level, strategy in ((level, strategy) for level in (1, 6) for strategy in STRATEGIES):
            yield filtered(values, [0, 1, 2, 3, 4, 4, 2], 3, level, strategy)
        for kind in range(5):
            yield filtered(values, [kind])


def drawn(content, rng):
    with Image.open(io.BytesIO(content)) as image:
        width, height = image.size
    top, left = int(rng.integers(0, height)), int(rng.integers(0, width))
    return (top, left, int(rng.integers(1, height - top + 1)), int(rng.integers(1, width - left + 1)))


@pytest.mark.parametrize("centres", [True, False])
def test_equal_to_its_twin(centres):
    rng = np.random.default_rng(int(centres))
    contents = [*files()]
    for size in ((16, 16), (1, 1), (61, 200)):
        boxes = np.array([drawn(content, rng) for content in contents], np.int32)
        flips = rng.random(len(contents)) < 0.5
        found, status = read_masks(contents, boxes, size, flips, centres=centres, threads=2)
        assert not status[:, 0].any()
        for content, box, flip, mask in zip(contents, boxes.tolist(), flips, found, strict=True):
            assert np.array_equal(mask, reference.read_mask(content, box, size, flip, centres))


def test_rows_of_any_scale_are_picked_at_every_level_of_vector_code():
    """Sources of a piece of the result are within 16 bytes, 32, 64, 128, or farther apart."""
    rng = np.random.default_rng(5)
    values = rng.integers(0, 256, (9, 2000), np.uint8)
    content = png(values)
    for width in (1, 3, 15, 16, 17, 31, 63, 64, 65, 130, 400, 999, 1000, 1999, 2000, 2001, 5003):
        for left, across in ((0, 2000), (1990, 10), (1937, 63), (3, 1), (500, 1001)):
            for flip in (False, True):
                box = (1, left, 7, across)
                (mask,), _ = read_masks([content], np.array([box], np.int32), (9, width), np.array([flip]))
                assert np.array_equal(mask, reference.read_mask(content, box, (9, width), flip, True))
    assert_portable_is_equal(PICKED)


PICKED = """
import numpy as np
from helpers.masks import png
from tarpeg.ops.masks import read_masks
from tarpeg.shards.pillow import RefusedError, open_values
content = png(np.random.default_rng(5).integers(0, 256, (9, 2000), np.uint8))
for width, left, across, flip in product((1, 15, 17, 64, 200, 999, 2000, 5003), (0, 1990), (10, 3), (0, 1)):
    box = np.array([[1, left, 7, across if left else 2000 - across]], np.int32)
    for size in ((9, width), (30, width)):
        write(torch.from_numpy(read_masks([content], box, size, np.array([bool(flip)]))[0]))
"""


def test_memory_is_used_again_only_when_nobody_has_it():
    contents, boxes = [png(NOISE)] * 2, np.array([[0, 0, 97, 131]] * 2, np.int32)
    first, _ = read_masks(contents, boxes, (97, 131))
    row = torch.from_numpy(first)[1][:, 5:]
    place = first.ctypes.data
    second, _ = read_masks([png(NOISE[::-1].copy())] * 2, boxes, (97, 131))
    assert second.ctypes.data != place and np.array_equal(first[0], NOISE)
    del first, second
    wanted = row.clone()
    for _ in range(3):
        found, _ = read_masks([png(NOISE[::-1].copy())] * 2, boxes, (97, 131))
        assert torch.equal(row, wanted)
        del found
    places = set()
    for _ in range(3):
        found, _ = read_masks(contents, boxes, (97, 131))
        places.add(found.ctypes.data)
        del found
    assert len(places) == 1
    found, status = read_masks([b"", png(NOISE)], boxes, (97, 131))
    assert status[0, 0] and not found[0].any() and np.array_equal(found[1], NOISE)


def test_places_are_the_part_that_shows_the_box():
    content, box = png(NOISE), np.array([[5, 7, 40, 50]], np.int32)
    for flip in (False, True):
        (mask,), _ = read_masks(
            [content], box, (30, 40), np.array([flip]), np.array([[2, 3, 20, 25]], np.int32), fill=9
        )
        assert np.array_equal(mask[2:22, 3:28], reference.read_mask(content, box[0], (20, 25), flip, True))
        mask[2:22, 3:28] = 9
        assert (mask == 9).all()


def test_a_table_gives_classes_and_refuses_other_values_under_the_box():
    values = regions(60, 90).copy()
    values[50:, 80:] = 99
    table = np.full(256, -1, np.int32)
    table[:21] = (np.arange(21) * 7) % 250
    boxes = np.array([[0, 0, 50, 90], [0, 0, 60, 80], [10, 10, 50, 80]], np.int32)
    found, status = read_masks([banded(png(values))] * 3, boxes, (25, 25), table=table)
    assert (status[:, 0] != 0).tolist() == [False, False, True]
    assert np.array_equal(found[0], table[reference.read_mask(png(values), boxes[0], (25, 25), False, True)])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"P6 2 2 255\n" + bytes(12),
        png(NOISE > 99),
        png(np.stack([NOISE] * 3, 2)),
        png(NOISE.astype(np.uint16)),
        png(NOISE, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"),
        filtered(NOISE, [5]),
        filtered(NOISE, [0])[:-500],
    ],
    ids=("empty", "ppm", "bits", "colours", "wide", "turned", "filter", "cut"),
)
def test_other_files_are_left_to_pillow(content):
    found, status = read_masks([content], np.array([[0, 0, 97, 131]], np.int32), (8, 8))
    assert status[0, 0] != 0 and not found.any()


def test_a_box_outside_of_the_mask():
    for box in (
        (0, 0, 98, 131),
        (96, 130, 2, 1),
        (-1, 0, 5, 5),
        (0, 0, 0, 5),
        (0, 1 << 30, 1 << 30, 1 << 30),
    ):
        assert read_masks([png(NOISE)], np.array([box], np.int32), (8, 8))[1][0, 0] != 0


def rewritten(content, **parts):
    """A PNG with other contents of some chunks, and right checksums."""
    at, found = 8, content[:8]
    while at < len(content):
        length, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        own = content[at + 8 : at + 8 + length]
        found += chunk(kind, parts[kind.decode()](own) if kind.decode() in parts else own)
        at += 12 + length
    return found


def test_bands_that_do_not_fit_are_a_hint_that_is_ignored():
    values = regions(97, 131)
    right, box = banded(png(values)), (40, 20, 30, 50)
    wanted = reference.read_mask(right, box, (20, 20), False, True)
    for rows in (0, 1, 31, 33, 48, 1 << 24, (1 << 32) - 1):
        hint = rewritten(right, tpRB=lambda _, rows=rows: b"\1" + rows.to_bytes(4, "big"))
        assert np.array_equal(read_masks([hint], np.array([box], np.int32), (20, 20))[0][0], wanted)
    for parts in (1, 4):  # of another program, which has kept the chunk
        other = filtered(values, [0, 1, 2, 4], parts)
        kept = other[:33] + chunk(BANDS, b"\1\0\0\0\x20") + other[33:]
        assert np.array_equal(read_masks([kept], np.array([box], np.int32), (20, 20))[0][0], wanted)


def without_runs(content):
    """A PNG in bands as earlier versions wrote it, if it has few runs."""
    at = content.find(RUNS)
    return (
        content
        if at < 0
        else content[: at - 4] + content[at + 8 + int.from_bytes(content[at - 4 : at], "big") :]
    )


def drawn_runs(rng):
    """A mask with rows of every kind: as above, moved a little or far, other ones; also of up to 254 runs."""
    height, width = int(rng.integers(1, 90)), int(rng.integers(2, 700))
    count = int(rng.choice([1, 2, 3, 8, 40, 253]))
    values, rows = rng.permutation(256).astype(np.uint8), []
    ends = np.sort(rng.integers(1, width, count))
    for _ in range(height):
        kind = rng.integers(0, 12)
        if kind == 0:
            ends = np.sort(rng.integers(1, width, count))
        elif kind > 3:
            ends = np.sort(np.clip(ends + rng.integers(-3, 4, count), 1, width - 1))
        if kind == 11:
            values = rng.permutation(256).astype(np.uint8)
        rows.append(values[np.searchsorted(ends, np.arange(width), side="right")])
    return np.stack(rows)


@pytest.mark.parametrize("centres", [True, False])
def test_runs_give_the_pixels_of_the_bands(centres):
    rng, has_runs = np.random.default_rng(int(centres)), 0
    for number in range(60):
        content = banded(png(drawn_runs(rng)))
        has_runs += RUNS in content
        boxes = np.array([drawn(content, rng) for _ in range(6)], np.int32)
        height, width = (int(side) for side in rng.integers(1, (60, 300)))
        low = [rng.integers(0, side, 6) for side in (height, width)]
        shown = [rng.integers(1, side - first + 1) for side, first in zip((height, width), low, strict=True)]
        places = np.stack([*low, *shown], axis=1).astype(np.int32)
        table = (np.arange(256, dtype=np.int32) * 7 + 3) % 256
        table[rng.integers(0, 256, 3 * (number % 2))] = -1
        options = {"flips": rng.random(6) < 0.5, "places": places if number % 3 else None, "centres": centres}
        options |= {"table": table if number % 4 else None, "fill": number}
        found, status = read_masks([content] * 6, boxes, (height, width), **options)
        found = found.copy()
        wanted, other = read_masks([without_runs(content)] * 6, boxes, (height, width), **options)
        assert np.array_equal(status, other) and np.array_equal(found, wanted), number
    assert has_runs > 40
    assert_portable_is_equal(RUN)


RUN = """
import numpy as np
from helpers.masks import png, regions
from tarpeg.cache.masks import banded
from tarpeg.ops.masks import read_masks
from tarpeg.shards.pillow import RefusedError, open_values
content = banded(png(regions(200, 333)))
for size, flip in product(((16, 16), (199, 130), (300, 700)), (0, 1)):
    box = np.array([[11, 17, 150, 290]], np.int32)
    write(torch.from_numpy(read_masks([content], box, size, np.array([bool(flip)]))[0]))
"""


def test_runs_of_other_pixels_are_ignored():
    """A program that changed the pixels and kept the chunk: the sum of the rows is another."""
    values, box = regions(97, 131), (40, 20, 30, 50)
    content = banded(png(values))
    at = content.index(RUNS)
    runs = content[at - 4 : at + 8 + int.from_bytes(content[at - 4 : at], "big")]
    other = banded(png(values[::-1].copy()))
    for kept in (without_runs(other), filtered(values[::-1].copy(), [0, 1, 2, 4], 3)):
        kept = kept[:33] + runs + kept[33:]
        wanted = reference.read_mask(kept, box, (20, 20), False, True)
        assert np.array_equal(read_masks([kept], np.array([box], np.int32), (20, 20))[0][0], wanted)
    assert RUNS not in banded(png(NOISE)) and is_banded(banded(png(NOISE)))


def test_damage_is_never_a_crash_and_bits_that_flip_are_found():
    rng, box = np.random.default_rng(0), np.array([[30, 20, 40, 60]], np.int32)
    values = regions(97, 131)
    for content in (png(values), banded(png(values)), filtered(NOISE, [0, 1, 2, 3, 4], 2)):
        wanted = read_masks([content], box, (32, 32))[0]
        for _ in range(150):
            broken = bytearray(content)
            broken[rng.integers(0, len(broken))] ^= 1 << int(rng.integers(0, 8))
            found, status = read_masks([bytes(broken[: rng.integers(1, 2 * len(broken))])], box, (32, 32))
            assert status[0, 0] != 0 or np.array_equal(found, wanted)

        def damaged(data):
            data = bytearray(data)
            for _ in range(int(rng.integers(1, 4))):
                data[rng.integers(0, len(data))] = int(rng.integers(0, 256))
            return bytes(data[: rng.integers(0, 2 * len(data))])

        for _ in range(300):  # with right checksums
            read_masks([rewritten(content, IDAT=damaged)], box, (32, 32))
        for _ in range(100):
            read_masks([rewritten(content, IHDR=damaged, tpRB=damaged)], box, (32, 32))
        for _ in range(300):
            read_masks([rewritten(content, tpRL=lambda data: data[:5] + damaged(data[5:]))], box, (32, 32))


def test_damage_of_the_frame_of_a_chunk_never_moves_rows():
    """A band whose type is damaged is not skipped: those after it would be taken for it."""
    content, whole = banded(png(NOISE)), np.array([[0, 0, 97, 131]], np.int32)
    wanted = read_masks([content], whole, (97, 131))[0]
    places = [content.index(b"IDAT")]
    while (at := content.find(b"IDAT", places[-1] + 4)) > 0:
        places.append(at)
    for at in places:
        for place in range(at - 4, at + 4):
            for bit in range(8):
                broken = bytearray(content)
                broken[place] ^= 1 << bit
                for top in (0, 40):
                    box = np.array([[top, 0, 50, 131]], np.int32)
                    found, status = read_masks([bytes(broken)], box, (50, 131))
                    assert status[0, 0] != 0 or np.array_equal(found[0], wanted[0, top : top + 50])
                with contextlib.suppress(RefusedError):
                    assert np.array_equal(open_values(bytes(broken)), NOISE)


def test_what_zlib_inflates(count=300):
    """Streams of every kind of block, also damaged ones: the same rows as zlib, or neither has any."""
    rng = np.random.default_rng(1)
    box = np.array([[0, 0, 20, 99]], np.int32)
    for number in range(count):
        values = rng.integers(0, 1 + int(rng.integers(1, 256)), (20, 99), np.uint8)
        values = np.repeat(values, 1 + number % 4, axis=1)[:, :99]
        deflate = zlib.compressobj(number % 10, zlib.DEFLATED, 15, 9, STRATEGIES[number % 5])
        rows = np.zeros((20, 100), np.uint8)
        rows[:, 1:] = values
        ends = sorted(rng.integers(0, 2000, 3).tolist())
        stream = b""
        for begin, end in zip([0, *ends], [*ends, 2000], strict=True):
            stream += deflate.compress(rows.tobytes()[begin:end])
            stream += deflate.flush((zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH)[number % 3])
        stream = bytearray(stream + deflate.flush())
        if number % 2:
            stream[rng.integers(2, len(stream))] ^= 1 << int(rng.integers(0, 8))
        try:
            inflated = zlib.decompressobj(-15).decompress(bytes(stream[2:]), 2000)
        except zlib.error:
            inflated = b""
        found, status = read_masks(
            [rewritten(png(values), IDAT=lambda _, stream=bytes(stream): stream)], box, (20, 99)
        )
        known = np.frombuffer(inflated, np.uint8)
        if len(known) < 2000:
            assert status[0, 0] != 0
        elif not known.reshape(20, 100)[:, 0].any():
            assert np.array_equal(found[0], known.reshape(20, 100)[:, 1:])


def test_arguments_that_do_not_fit_are_errors():
    files, ends = torch.zeros(4, dtype=torch.uint8), torch.tensor([4])
    boxes, out = torch.zeros((1, 4), dtype=torch.int32), torch.zeros((1, 8, 8), dtype=torch.uint8)

    def call(**given):
        options = {"files": files, "ends": ends, "boxes": boxes, "flip": None, "places": None, "table": None}
        options |= {"centres": True, "fill": 0, "max_pixels": 99, "out": out, "threads": 1}
        return torch.ops.tarpeg.read_masks(**(options | given))

    assert call()[0, 0] != 0
    torch.library.opcheck(
        torch.ops.tarpeg.read_masks.default,
        (files, ends, boxes, None, None, None, True, 0, 99, out, 1),
        test_utils=("test_schema", "test_faketensor"),
    )
    for name, value in (
        ("files", files.int()),
        ("ends", torch.tensor([5])),
        ("ends", torch.tensor([-1])),
        ("boxes", boxes.long()),
        ("boxes", boxes[:, :3]),
        ("flip", torch.zeros(2, dtype=torch.bool)),
        ("places", torch.tensor([[0, 0, 9, 8]], dtype=torch.int32)),
        ("places", torch.tensor([[0, 0, 0, 8]], dtype=torch.int32)),
        ("table", torch.zeros(255, dtype=torch.int32)),
        ("fill", 256),
        ("out", out.float()),
        ("out", out[:, :, ::2]),
    ):
        with pytest.raises(RuntimeError, match=name):
            call(**{name: value})
