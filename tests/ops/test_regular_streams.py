"""Each trap of regular streams (DESIGN, section 1): Pillow's pixels, and the status that libjpeg gives."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tarpeg
import torch
from helpers import crafted, pictures, reference
from helpers.crafted import Jpeg
from PIL import Image

BASE = Jpeg(50, 70).noise()
CUT = Jpeg(50, 70, interval=2).noise()  # two MCUs a segment, five MCUs a row: it does not divide
TILED = replace(CUT, interval=5)
EOI = b"\xff\xd9"
BOXES = [(0, 0, 50, 70), (17, 23, 20, 31), (0, 40, 33, 30), (49, 69, 1, 1), (31, 15, 2, 2)]


def check(data: bytes, boxes: list[tuple[int, int, int, int]] | None = None) -> None:
    """Crops equal Pillow's, and decode_batch at the box's own size gives the crop."""
    jpeg = pictures.tensor(data)
    whole = reference.decode(jpeg)
    assert tarpeg.image_sizes([jpeg]).tolist() == [list(whole.shape[1:])]
    for top, left, height, width in boxes or BOXES:
        expected = whole[:, top : top + height, left : left + width]
        assert torch.equal(tarpeg.decode_crop(jpeg, top, left, height, width), expected), (top, left)
        box = torch.tensor([[top, left, height, width]], dtype=torch.int32)
        images, status = tarpeg.decode_batch([jpeg], box, (height, width))
        assert status.tolist() == [0] and torch.equal(images[0], expected)


def status_of(data: bytes, box: tuple[int, int, int, int] = (0, 0, 50, 70)) -> tarpeg.Status:
    boxes = torch.tensor([box], dtype=torch.int32)
    images, status = tarpeg.decode_batch([pictures.tensor(data)], boxes, (8, 8))
    assert status[0] == 0 or not images.any()
    return tarpeg.Status(int(status[0]))


def with_segments(source: Jpeg, change) -> bytes:
    """The file with its list of coded segments changed; each but the last ends with its marker."""
    parts = source.segments(range(3))
    change(parts)
    empty = replace(source, interval=0, coefficients=[np.zeros_like(c) for c in source.coefficients])
    sos = empty.scan(range(3))[: 2 + 12]
    return source.head() + sos + b"".join(parts) + EOI


def test_the_crafted_files_are_what_they_seem() -> None:
    for source in (BASE, CUT, TILED):
        assert with_segments(source, lambda parts: None) == source.bytes()
        check(source.bytes())
        with Image.open(io.BytesIO(source.bytes())) as image:
            assert image.size == (70, 50)


def test_fill_bytes_before_markers() -> None:
    data = BASE.bytes()
    for marker in (b"\xff\xdb", b"\xff\xc0", b"\xff\xc4", b"\xff\xda", EOI):
        check(data.replace(marker, b"\xff\xff\xff" + marker, 1))


def test_fill_bytes_before_restart_markers() -> None:
    def fill(parts: list[bytes]) -> None:
        parts[1] = parts[1][:-2] + b"\xff\xff" + parts[1][-2:]
        parts[4] = parts[4][:-2] + b"\xff" + parts[4][-2:]

    check(with_segments(CUT, fill))
    check(with_segments(TILED, lambda parts: None).replace(b"\xff\xd0", b"\xff\xff\xff\xd0"))


def test_the_last_of_each_table_counts() -> None:
    wrong = crafted.quantisers(0, [99] * 64) + crafted.quantisers(1, [77] * 64)
    wrong += crafted.LONG[0].table(0x00) + crafted.LONG[1].table(0x10)
    wrong += crafted.segment(0xDD, b"\0\7")
    for source in (CUT, TILED):
        check(replace(source, markers=crafted.JFIF + wrong).bytes())
        late = crafted.quantisers(0, [9] * 64) + crafted.segment(0xDD, source.interval.to_bytes(2, "big"))
        data = replace(source, more=late).bytes()
        check(data)
        assert not torch.equal(
            reference.decode(pictures.tensor(data)), reference.decode(pictures.tensor(source.bytes()))
        )


def test_several_tables_in_one_segment() -> None:
    data = BASE.bytes()
    short, long = crafted.SHORT[0].table(0x00), crafted.SHORT[1].table(0x10)
    check(data.replace(short + long, crafted.segment(0xC4, short[4:] + long[4:])))
    first, second = (crafted.quantisers(index, crafted.PHOTO) for index in (0, 1))
    check(data.replace(first + second, crafted.segment(0xDB, first[4:] + second[4:])))


@pytest.mark.parametrize("interval", [0, 2, 5])
def test_scans_that_are_not_interleaved(interval: int) -> None:
    source = replace(BASE, interval=interval)
    for scans in ([[0], [1], [2]], [[0], [1, 2]], [[0, 1], [2]]):
        check(source.head() + b"".join(source.scan(scan) for scan in scans) + EOI)


def renumbered(parts: list[bytes]) -> None:
    parts[2] = parts[2][:-1] + b"\xd5"


def missing(parts: list[bytes]) -> None:
    parts[2] = parts[2][:-2]


def surplus(parts: list[bytes]) -> None:
    parts[-1] += b"\xff" + bytes((0xD0 + (len(parts) - 1) % 8,))


def dropped(parts: list[bytes]) -> None:
    del parts[1]


def doubled(parts: list[bytes]) -> None:
    parts.insert(1, parts[1])


@pytest.mark.parametrize("source", [CUT, TILED], ids=["sheared", "tiled"])
@pytest.mark.parametrize("change", [renumbered, missing, dropped, doubled])
def test_wrong_restart_markers_are_a_status(source: Jpeg, change) -> None:
    assert status_of(with_segments(source, change)) in (tarpeg.Status.CORRUPT, tarpeg.Status.TRUNCATED)


def test_a_surplus_restart_marker_behind_the_last_segment() -> None:
    check(with_segments(CUT, surplus))


def test_restart_intervals_of_every_length() -> None:
    for interval in (1, 2, 3, 4, 5, 6, 7, 10, 19, 20, 21, 65535):
        check(replace(BASE, interval=interval).bytes())


def test_an_interval_of_zero_means_none() -> None:
    check(replace(BASE, more=crafted.segment(0xDD, b"\0\0")).bytes())
    check(
        replace(
            BASE, markers=crafted.JFIF + crafted.segment(0xDD, b"\0\4"), more=crafted.segment(0xDD, b"\0\0")
        ).bytes()
    )


@pytest.mark.parametrize(
    "options", [{"restart_marker_rows": 1}, {"restart_marker_rows": 2}, {"restart_marker_blocks": 4}]
)
def test_ordinary_files_with_restarts(options: dict) -> None:
    image = Image.fromarray(pictures.pixels(50, 70))
    for extra in ({}, {"progressive": True}, {"subsampling": 0}, {"optimize": True}):
        check(pictures.encoded(image, **options, **extra))


def test_a_thumbnail_with_a_frame_of_its_own() -> None:
    thumbnail = pictures.jpeg("444", 8, 8)
    markers = crafted.JFIF + crafted.segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + thumbnail)
    check(replace(TILED, markers=markers).bytes())
    check(replace(TILED, markers=markers, more=crafted.segment(0xFE, thumbnail)).bytes())


@pytest.mark.parametrize("source", [BASE, CUT, TILED], ids=["plain", "sheared", "tiled"])
def test_a_missing_end_is_a_status(source: Jpeg) -> None:
    data = source.bytes()
    for box in BOXES:
        assert status_of(data[:-2], box) == tarpeg.Status.TRUNCATED
        assert status_of(data[:-1], box) == tarpeg.Status.TRUNCATED
        assert status_of(data[:-1] + b"\0\0\0", box) == tarpeg.Status.TRUNCATED
    assert status_of(data[: len(data) * 2 // 3] + EOI) in (tarpeg.Status.CORRUPT, tarpeg.Status.TRUNCATED)


@pytest.mark.parametrize("source", [BASE, CUT, TILED], ids=["plain", "sheared", "tiled"])
def test_bytes_around_the_end(source: Jpeg) -> None:
    data = source.bytes()
    check(data[:-2] + b"\0garbage" + EOI)
    check(data + b"\0\0\0trailing")
    check(data + data)
    check(data + pictures.jpeg("progressive", 20, 30))


@pytest.mark.parametrize("source", [BASE, TILED], ids=["plain", "tiled"])
def test_a_height_given_later_is_refused(source: Jpeg) -> None:
    dnl = crafted.segment(0xDC, (50).to_bytes(2, "big"))
    data = replace(source, stated_height=0, behind_scan=dnl + EOI).bytes()
    assert status_of(data) == tarpeg.Status.UNSUPPORTED
    check(replace(source, behind_scan=dnl + EOI).bytes())  # and is of no use where there is a height
    check(replace(source, more=dnl).bytes())


@pytest.mark.parametrize("transform", [0, 1, 2, 7, None])
@pytest.mark.parametrize("jfif", [b"", crafted.JFIF])
@pytest.mark.parametrize("ids", [(1, 2, 3), (82, 71, 66), (0, 1, 2), (34, 35, 36), (1, 1, 1)])
def test_what_the_colours_are(transform: int | None, jfif: bytes, ids: tuple[int, ...]) -> None:
    markers = jfif + (b"" if transform is None else crafted.adobe(transform))
    check(replace(TILED, markers=markers, ids=ids).bytes(), BOXES[:2])


SAMPLINGS = [
    *[((2, 2), (1, 1), (1, 1)), ((1, 1), (1, 1), (1, 1)), ((2, 1), (1, 1), (1, 1)), ((1, 2), (1, 1), (1, 1))],
    *[((4, 1), (1, 1), (1, 1)), ((1, 4), (1, 1), (1, 1)), ((4, 2), (1, 1), (1, 1)), ((2, 4), (1, 1), (1, 1))],
    *[((1, 1), (2, 2), (1, 1)), ((2, 2), (2, 1), (1, 2)), ((2, 2), (1, 2), (2, 1)), ((1, 4), (1, 2), (1, 1))],
    *[((4, 1), (2, 1), (1, 1)), ((3, 1), (1, 1), (1, 1)), ((1, 3), (1, 1), (3, 1)), ((2, 2), (2, 2), (1, 1))],
    *[((1, 1),), ((2, 2),), ((4, 1),)],
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("size", [(50, 70), (33, 3), (2, 41), (17, 18)])
def test_any_sampling(sampling: tuple[tuple[int, int], ...], size: tuple[int, int]) -> None:
    height, width = size
    boxes = [(0, 0, height, width), (height // 3, width // 3, height // 2, max(1, width // 2))]
    boxes += [(height - 1, width - 1, 1, 1), (0, width // 2, height, 1), (height // 2, 0, 1, width)]
    for interval in (0, 1):
        source = Jpeg(height, width, sampling, tuple(range(1, len(sampling) + 1)), interval=interval)
        if len(sampling) == 1:  # one component: its blocks come in rows, whatever it claims
            source = replace(source.noise(), coefficients=Jpeg(height, width, ((1, 1),)).noise().coefficients)
            data = source.head() + scan_of_one(source) + EOI
        else:
            data = source.noise().bytes()
        check(data, boxes)


def scan_of_one(source: Jpeg) -> bytes:
    return replace(source, sampling=((1, 1),)).scan([0])


def test_fractional_samplings_are_refused() -> None:
    data = Jpeg(50, 70, ((3, 1), (2, 1), (1, 1))).noise().bytes()
    assert status_of(data) == tarpeg.Status.UNSUPPORTED


@pytest.mark.parametrize("top", [255, 300, 4000, 65535])
def test_quantisers_of_16_bits(top: int) -> None:
    table = tuple(np.linspace(1, top, 64).astype(int).tolist())
    check(Jpeg(50, 70, tables=(table, table), frame=0xC1, interval=5).noise(strength=9).bytes())
    check(Jpeg(50, 70, tables=(crafted.PHOTO, table), frame=0xC0).noise(strength=9).bytes())


def test_codes_of_16_bits() -> None:
    for interval in (0, 5):
        check(Jpeg(50, 70, codes=crafted.LONG, interval=interval).noise(strength=200).bytes())


@pytest.mark.parametrize("quantiser", [1, 7, 16, 255])
@pytest.mark.parametrize("strength", [30, 300, 3000])
def test_saturated_noise(quantiser: int, strength: int) -> None:
    for sampling in SAMPLINGS[:4]:
        source = Jpeg(50, 70, sampling, tables=((quantiser,) * 64,) * 2, interval=1)
        check(source.noise(strength=strength).bytes(), BOXES[:1])


@pytest.mark.parametrize("used", [1, 2, 64])
@pytest.mark.parametrize("quantiser", [1, 8, 16, 100])
def test_coefficients_at_the_extremes(used: int, quantiser: int) -> None:
    """Beyond 16 bits libjpeg's vector code wraps here and saturates there: see Note [flat columns]."""
    source = Jpeg(48, 64, tables=((quantiser,) * 64,) * 2).noise()
    rng = np.random.default_rng(used)
    for values in source.coefficients:
        values[...] = 0
        places = [0, 1, 5, 6, 14, 15, 27, 28] if used == 2 else range(used)  # the first row of the block
        for k in places:
            values[..., k] = rng.choice([-1023, 1023, 512, 0], values.shape[:2])
    check(source.bytes(), [(0, 0, 48, 64)])


def test_black_and_white_noise() -> None:
    rng = np.random.default_rng(3)
    for values in ((0, 255), (0, 0, 0, 9), (255, 255, 255, 240)):
        image = Image.fromarray(rng.choice(values, (50, 70, 3)).astype(np.uint8))
        for quality in (5, 60, 100):
            for subsampling in (0, 1, 2):
                data = pictures.encoded(image, quality=quality, subsampling=subsampling)
                check(tarpeg.tile_jpeg(pictures.tensor(data)).numpy().tobytes(), BOXES[:2])


def test_every_residue_of_width_and_height_tiled() -> None:
    rng = np.random.default_rng(5)
    image = pictures.pixels(40, 40)
    for height in range(1, 41):
        for width in range(1, 41):
            data = pictures.encoded(Image.fromarray(image[:height, :width]), subsampling=2)
            jpeg = tarpeg.tile_jpeg(pictures.tensor(data), 16)
            with Image.open(io.BytesIO(data)) as opened:
                whole = torch.from_numpy(np.array(opened)).permute(2, 0, 1)
            assert torch.equal(tarpeg.decode_crop(jpeg, 0, 0, height, width), whole)
            top, left = int(rng.integers(height)), int(rng.integers(width))
            h, w = int(rng.integers(1, height - top + 1)), int(rng.integers(1, width - left + 1))
            crop = tarpeg.decode_crop(jpeg, top, left, h, w)
            assert torch.equal(crop, whole[:, top : top + h, left : left + w]), (height, width, top, left)


def test_a_damaged_tile_counts_inside_the_crop_only() -> None:
    source = Jpeg(64, 96, interval=1).noise()  # tiles of 16x16, 6 in a row

    def damage(parts: list[bytes]) -> None:
        parts[8] = b"\xff\0" * 30 + parts[8][-2:]  # row 1, column 2: no code is all ones

    data = with_segments(source, damage)
    good = reference.decode(pictures.tensor(source.bytes()))
    bad = (tarpeg.Status.CORRUPT, tarpeg.Status.TRUNCATED)
    for top, left, height, width in [(0, 0, 64, 96), (20, 36, 4, 4), (0, 34, 40, 4), (33, 40, 20, 20)]:
        is_inside = top - 1 < 32 and left - 1 < 48 and top + height >= 16 and left + width >= 32
        assert is_inside == ((top, left) != (33, 40))
        if is_inside:
            assert status_of(data, (top, left, height, width)) in bad
            continue
        crop = tarpeg.decode_crop(pictures.tensor(data), top, left, height, width)
        assert torch.equal(crop, good[:, top : top + height, left : left + width])
    crop = tarpeg.decode_crop(pictures.tensor(data), 0, 60, 64, 36)
    assert torch.equal(crop, good[:, :, 60:96])
    with pytest.raises(tarpeg.DecodeError):
        tarpeg.tile_jpeg(pictures.tensor(data))


@pytest.mark.parametrize("marker", [0xC8, 0xDE, 0xDF, 0xF0, 0xFD, 0x02, 0xBF])
def test_reserved_markers_are_refused_as_libjpeg_does(marker: int) -> None:
    data = replace(TILED, more=crafted.segment(marker, b"\0\0")).bytes()
    with pytest.raises(OSError):
        reference.decode(pictures.tensor(data))
    assert status_of(data) in (tarpeg.Status.CORRUPT, tarpeg.Status.UNSUPPORTED)


@pytest.mark.parametrize("marker", [0xE3, 0xEF, 0xFE, 0xDC])
def test_markers_that_are_passed_over(marker: int) -> None:
    check(replace(TILED, more=crafted.segment(marker, b"\0\x32")).bytes(), BOXES[:2])


def test_symbols_and_tables_that_only_libjpeg_takes() -> None:
    odd = crafted.Code(range(16), 0, 5), crafted.Code([*crafted.AC_SYMBOLS, 0x10, 0x0F], 0, 8)
    check(replace(TILED, codes=odd).bytes(), BOXES[:2])
    full = crafted.Code(crafted.DC_SYMBOLS, 0, 4)
    for index in (2, 0x13):  # tables of no use, and tables too many
        check(replace(TILED, more=full.table(index)).bytes(), BOXES[:2])


PORTABLE = """
import hashlib, tarpeg
from helpers import crafted, pictures
from helpers.crafted import Jpeg
digest = hashlib.sha256()
def add(data, height, width):
    jpeg = pictures.tensor(data)
    for box in ((0, 0, height, width), (height // 3, width // 4, height // 2, width // 2)):
        digest.update(tarpeg.decode_crop(jpeg, *box).numpy().tobytes())
    return jpeg
for kind in pictures.KINDS:
    for height, width in ((75, 101), (16, 5), (33, 64)):
        jpeg = add(pictures.jpeg(kind, height, width), height, width)
        add(tarpeg.tile_jpeg(jpeg, 16).numpy().tobytes(), height, width)
for strength in (40, 300, 3000):
    for quantiser in (1, 16, 255, 4000):
        tables = ((quantiser,) * 64,) * 2
        add(Jpeg(50, 70, tables=tables, frame=0xC1, interval=1).noise(strength=strength).bytes(), 50, 70)
print(digest.hexdigest())
"""


def test_portable_code_gives_the_same_bytes() -> None:
    results = []
    for extra in ({}, {"TARPEG_PORTABLE": "1"}):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **extra}
        done = subprocess.run(
            [sys.executable, "-c", PORTABLE], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        results.append(done.stdout)
    assert len(results[0].strip()) == hashlib.sha256().digest_size * 2 and results[0] == results[1]
