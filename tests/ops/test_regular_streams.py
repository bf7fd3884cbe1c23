"""Regular baseline streams: special cases, Huffman codes, half size; Pillow's pixels and libjpeg's status."""

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
from helpers.crafted import Code, Jpeg
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


# Two coefficients by one lookup: blocks that end where a pair begins, long codes, runs out of the block.
ALL = (0, 0, 32, 48)


def shortest(*symbols: int) -> tuple[Code, Code]:
    """A code in which these AC symbols have 1, 2, ... bits and all others many."""
    rest = [symbol for symbol in crafted.AC_SYMBOLS if symbol not in symbols]
    return Code(crafted.DC_SYMBOLS, 3, 8), Code(
        [*symbols, *rest], len(symbols), 12 if len(symbols) <= 4 else 15
    )


CODES = {
    "ones": shortest(0x01, 0x00),
    "end": shortest(0x00, 0x01),
    "runs": shortest(0xF0, 0x00, 0x11),
    "twos": shortest(0x02, 0x12, 0x00, 0x01),
    "large": shortest(0x06, 0x07, 0x00),  # values that fill the lookup
    "mixed": shortest(0x11, 0x21, 0x01, 0x00, 0x02, 0xF0, 0xF1),
    "long": crafted.LONG,
}


def picture(codes: str, interval: int = 0) -> Jpeg:
    return Jpeg(32, 48, codes=CODES[codes], interval=interval, tables=((2,) * 64,) * 2).noise()


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("interval", [0, 1])
def test_any_code(codes: str, interval: int) -> None:
    for strength in (3, 40, 300):
        check(picture(codes, interval).noise(strength=strength).bytes(), [ALL])


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("interval", [0, 1])
def test_blocks_that_end_at_every_coefficient(codes: str, interval: int) -> None:
    """The last may be the first or the second of a pair; behind the 64th there is no end-of-block code."""
    source = picture(codes, interval)
    rng = np.random.default_rng(7)
    for values in source.coefficients:
        values[..., 1:] = rng.choice([-1, 1, 1, 2], values[..., 1:].shape)
        last = rng.choice([0, 1, 2, 30, 59, 60, 61, 62, 63, 63, 63], values.shape[:2])
        values[np.arange(64) > last[..., None]] = 0
    check(source.bytes(), [ALL])


@pytest.mark.parametrize("codes", ["runs", "mixed", "long", "end"])
def test_sparse_blocks_up_to_the_last_coefficient(codes: str) -> None:
    source = picture(codes)
    rng = np.random.default_rng(8)
    for values in source.coefficients:
        values[..., 1:] *= rng.random(values[..., 1:].shape) < 0.05
        values[..., 63] = rng.choice([-1, 0, 1], values.shape[:2])
    check(source.bytes(), [ALL])


@pytest.mark.parametrize("symbols", [[0xF0] * 4, [0x01] * 60 + [0xF1], [0x01] * 62 + [0x11]])
@pytest.mark.parametrize("behind", [0x00, 0x01])
def test_runs_that_lead_out_of_the_block(symbols: list[int], behind: int) -> None:
    """Whatever comes behind such a run, a pair must not hide it: libjpeg decides."""
    for codes in ("ones", "end", "runs", "mixed"):
        source = Jpeg(8, 8, ((1, 1),), ids=(1,), codes=CODES[codes])
        bits = crafted.Bits()
        bits.put(*CODES[codes][0].codes[0])
        for symbol in [*symbols, behind]:
            bits.put(*CODES[codes][1].codes[symbol])
            bits.put(1, symbol & 15)
        source = replace(source, coefficients=[np.zeros((1, 1, 64), int)])
        header = source.scan([0])[: 2 + 8]
        data = source.head() + header + bits.take() + b"\xff\xd9"
        if status_of(data, (0, 0, 8, 8)) == tarpeg.Status.OK:
            check(data, [(0, 0, 8, 8)])


@pytest.mark.parametrize("codes", CODES)
def test_data_that_end_too_early_are_a_status(codes: str) -> None:
    for interval in (0, 1):
        data = picture(codes, interval).bytes()
        for cut in range(8, 60, 3):
            short = data[:-cut] + b"\xff\xd9"
            assert status_of(short, ALL) in (tarpeg.Status.CORRUPT, tarpeg.Status.TRUNCATED), cut


# Means for strong reductions: tarpeg's own decoder and libjpeg at half size give the same samples.
SIZES = [
    (0.45, 0.49),
    (0.3, 0.2),
    (0.16, 0.15),
    (0.1, 0.13),
    (0.04, 0.05),
]  # of the box: means of 2, 2, 4, 4, 8


def outputs(data: bytes, boxes: list[tuple[int, int, int, int]]) -> list[torch.Tensor]:
    jpeg = pictures.tensor(data)
    found = []
    for box in boxes:
        for down, across in SIZES:
            size = max(1, int(box[2] * down)), max(1, int(box[3] * across))
            images, status = tarpeg.decode_batch([jpeg], torch.tensor([box], dtype=torch.int32), size)
            assert status.tolist() == [0]
            found.append(images)
    return found


def check_half_size(source: Jpeg, boxes: list[tuple[int, int, int, int]] | None = None) -> None:
    """One scan is read by tarpeg alone; a scan for each component, the same coefficients, by libjpeg."""
    height, width = source.height, source.width
    boxes = boxes or [(0, 0, height, width), (height // 5, width // 3, height // 2, width // 2)]
    if len(source.sampling) == 1:
        regular = source.head() + source.scan([0]) + EOI
        irregular = source.head() + source.scan([0]) + source.scan([0]) + EOI  # the same scan again
    else:
        regular = source.bytes()
        irregular = source.head() + b"".join(source.scan([c]) for c in range(len(source.sampling))) + EOI
    for ours, theirs in zip(outputs(regular, boxes), outputs(irregular, boxes), strict=True):
        assert torch.equal(ours, theirs), (height, width, source.sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS[:-2], ids=str)
@pytest.mark.parametrize("size", [(64, 96), (41, 67), (18, 33)])
def test_any_sampling_half_size(sampling: tuple[tuple[int, int], ...], size: tuple[int, int]) -> None:
    ids = tuple(range(1, len(sampling) + 1))
    check_half_size(Jpeg(*size, sampling, ids, interval=2).noise(strength=120))


@pytest.mark.parametrize("residue", range(16))
def test_every_residue_of_width_and_height(residue: int) -> None:
    for height, width in [(33, 32 + residue), (32 + residue, 33), (32 + residue, 48 - residue)]:
        check_half_size(Jpeg(height, width, interval=1).noise(residue))
        check_half_size(Jpeg(height, width, ((1, 1),), ids=(1,)).noise(residue))


@pytest.mark.parametrize("used", [1, 2, 9, 64])
@pytest.mark.parametrize("quantiser", [1, 8, 16, 100, 255])
def test_coefficients_at_the_extremes_half_size(used: int, quantiser: int) -> None:
    source = Jpeg(48, 64, tables=((quantiser,) * 64,) * 2).noise()
    rng = np.random.default_rng(used)
    # The first row of the block; the first and the fifth, of which the means take the first alone.
    places = {2: [0, 1, 5, 6, 14, 15, 27, 28], 9: [0, 1, 5, 6, 10, 19, 23, 32, 39]}.get(used, range(used))
    for values in source.coefficients:
        values[...] = 0
        for k in places:
            values[..., k] = rng.choice([-1023, 1023, 512, 0], values.shape[:2])
    check_half_size(source)


def test_a_half_is_the_mean_of_what_is_decoded() -> None:
    """Gray, with no resampling to speak of: every output is a mean of 2x2 but for two of its neighbours."""
    source = Jpeg(64, 64, ((1, 1),), ids=(1,), tables=((4,) * 64,) * 2).noise(strength=25)
    jpeg = pictures.tensor(source.head() + source.scan([0]) + EOI)
    box = torch.tensor([[0, 0, 64, 64]], dtype=torch.int32)
    fast, exact = (tarpeg.decode_batch([jpeg], box, 32, fidelity=how)[0] for how in ("fast", "exact"))
    whole = tarpeg.decode_crop(jpeg, 0, 0, 64, 64).float()
    means = torch.nn.functional.avg_pool2d(whole, 2)
    kernel = torch.tensor([1.0, 6.0, 1.0]) / 8  # a triangle over four samples, summed by twos
    padded = torch.nn.functional.pad(means[None], (1, 1, 1, 1), mode="replicate")
    kernel2d = (kernel[:, None] * kernel).expand(3, 1, 3, 3)
    expected = torch.nn.functional.conv2d(padded, kernel2d, groups=3)
    inner = (..., slice(1, -1), slice(1, -1))
    assert (fast.float() - expected)[inner].abs().max() <= 1.2
    assert (exact.float() - expected)[inner].abs().max() > 2


def test_progressive_files_are_halved_too() -> None:
    for seed, kind in enumerate(("progressive", "420", "444", "422", "gray")):
        data = pictures.jpeg(kind, 101, 135, seed)
        progressive = pictures.jpeg("progressive", 101, 135, seed)
        for jpeg in (data, progressive):
            tiled = tarpeg.tile_jpeg(pictures.tensor(jpeg), 16).numpy().tobytes()
            boxes = [(0, 0, 101, 135), (3, 5, 90, 121)]
            for ours, theirs in zip(outputs(tiled, boxes), outputs(jpeg, boxes), strict=True):
                assert torch.equal(ours, theirs), kind


def test_what_lies_beyond_the_picture_is_never_far() -> None:
    """Odd sides: the last mean takes one sample that the encoder made up, which repeats the last."""
    image = pictures.pixels(75, 95)
    jpeg = pictures.tensor(pictures.encoded(Image.fromarray(image), quality=95, subsampling=2))
    box = torch.tensor([[0, 0, 75, 95]], dtype=torch.int32)
    fast, exact = (tarpeg.decode_batch([jpeg], box, (30, 38), fidelity=how)[0] for how in ("fast", "exact"))
    edge = (fast.int() - exact.int()).abs()[..., -1, :], (fast.int() - exact.int()).abs()[..., :, -1]
    middle = (fast.int() - exact.int()).abs().float().mean()
    assert max(float(side.float().mean()) for side in edge) < 3 * middle + 1


PORTABLE_HALF_SIZE = """
import sys, torch, tarpeg
from helpers import pictures
from helpers.crafted import Jpeg
for kind in ("420", "444", "422", "gray", "progressive"):
    for seed, (height, width) in enumerate([(64, 64), (97, 121), (50, 33)]):
        box = torch.tensor([[1, 2, height - 3, width - 2]], dtype=torch.int32)
        for size in [(height // 3, width // 3), (height // 8, width // 7), (2, 1)]:
            jpeg = pictures.tensor(pictures.jpeg(kind, height, width, seed))
            images, _ = tarpeg.decode_batch([jpeg], box, size)
            sys.stdout.buffer.write(images.numpy().tobytes())
for quantiser in (1, 16, 255):
    for strength in (30, 3000):
        source = Jpeg(50, 70, tables=((quantiser,) * 64,) * 2).noise(strength=strength)
        box = torch.tensor([[0, 0, 50, 70]], dtype=torch.int32)
        images, _ = tarpeg.decode_batch([pictures.tensor(source.bytes())], box, (25, 35))
        sys.stdout.buffer.write(images.numpy().tobytes())
"""


def test_portable_code_gives_the_same_bytes_half_size() -> None:
    pictures.assert_portable_is_equal(PORTABLE_HALF_SIZE)
