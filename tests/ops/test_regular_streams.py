"""Regular baseline streams, which tarpeg decodes itself: Pillow's pixels, libjpeg's status if damaged."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import tarpeg
import torch
from helpers import crafted, pictures, reference
from helpers.crafted import CODES, JFIF, SAMPLINGS, Code, Jpeg, quantisers, segment
from helpers.pictures import check_crops, resized
from PIL import Image
from tarpeg import Status

Box = tuple[int, int, int, int]

BASE = Jpeg(50, 70).noise()
# 2 MCUs per segment, 5 MCUs per row: the interval does not divide it.
SHEARED = Jpeg(50, 70, interval=2).noise()
TILED = replace(SHEARED, interval=5)
EOI = b"\xff\xd9"
# In colours or samplings that only libjpeg decodes.
LIBJPEGS = {
    "ids": replace(SHEARED, ids=(0, 1, 2), markers=b""),
    "cmyk": Jpeg(50, 70, ((1, 1),) * 4, (1, 2, 3, 4), interval=2).noise(),
    "thirds": Jpeg(50, 70, ((3, 1), (1, 1), (1, 1)), interval=2).noise(),
}
BOXES: list[Box] = [(0, 0, 50, 70), (17, 23, 20, 31), (0, 40, 33, 30), (49, 69, 1, 1), (31, 15, 2, 2)]
# Sizes relative to the box: means of 2, 2, 4, 4 and 8 samples.
SCALES = [(0.45, 0.49), (0.3, 0.2), (0.16, 0.15), (0.1, 0.13), (0.04, 0.05)]
DAMAGED = (Status.CORRUPT, Status.TRUNCATED)


def check(data: bytes, boxes: list[Box] = BOXES) -> None:
    check_crops(data, boxes)


def check_half_size(source: Jpeg) -> None:
    """tarpeg decodes one scan; libjpeg decodes it with a surplus marker, or in one scan per component."""
    height, width, count = source.height, source.width, len(source.sampling)
    boxes = [(0, 0, height, width), (height // 5, width // 3, height // 2, width // 2)]
    regular = pictures.tensor(source.bytes())
    surplus = b"\xff\xd0" if count == 1 else b""
    scans = b"".join(source.scan([c]) for c in range(count))
    irregular = pictures.tensor(source.head() + scans + surplus + EOI)
    for box in boxes:
        for down, across in SCALES:
            size = max(1, int(box[2] * down)), max(1, int(box[3] * across))
            assert torch.equal(resized(regular, box, size), resized(irregular, box, size)), (box, size)


def status_of(data: bytes, box: Box = (0, 0, 50, 70)) -> Status:
    boxes = torch.tensor([box], dtype=torch.int32)
    images, status = tarpeg.decode_batch([pictures.tensor(data)], boxes, (8, 8))
    assert status[0] == 0 or not images.any()
    return Status(int(status[0]))


def with_segments(source: Jpeg, change: Callable[[list[bytes]], object]) -> bytes:
    """The file with its list of coded segments changed; each but the last ends with its marker."""
    components = range(len(source.sampling))
    parts = source.segments(components)
    change(parts)
    empty = replace(source, interval=0, coefficients=[np.zeros_like(c) for c in source.coefficients])
    return source.head() + empty.scan(components)[: 2 + 6 + 2 * len(components)] + b"".join(parts) + EOI


def test_fill_bytes_before_markers() -> None:
    data = BASE.bytes()
    for marker in (b"\xff\xdb", b"\xff\xc0", b"\xff\xc4", b"\xff\xda", EOI):
        check(data.replace(marker, b"\xff\xff\xff" + marker, 1))

    def fill(parts: list[bytes]) -> None:
        parts[1] = parts[1][:-2] + b"\xff\xff" + parts[1][-2:]
        parts[4] = parts[4][:-2] + b"\xff" + parts[4][-2:]

    check(with_segments(SHEARED, fill))
    check(TILED.bytes().replace(b"\xff\xd0", b"\xff\xff\xff\xd0"))


def test_the_last_of_each_table_counts() -> None:
    wrong = quantisers(0, [99] * 64) + quantisers(1, [77] * 64) + segment(0xDD, b"\0\7")
    wrong += crafted.LONG[0].table(0x00) + crafted.LONG[1].table(0x10)
    for source in (SHEARED, TILED):
        check(replace(source, markers=JFIF + wrong).bytes())
        late = quantisers(0, [9] * 64) + segment(0xDD, source.interval.to_bytes(2, "big"))
        data = replace(source, more=late).bytes()
        check(data)
        changed, plain = (reference.decode(pictures.tensor(item)) for item in (data, source.bytes()))
        assert not torch.equal(changed, plain)


def test_several_tables_in_one_segment() -> None:
    data = BASE.bytes()
    short, long = crafted.SHORT[0].table(0x00), crafted.SHORT[1].table(0x10)
    check(data.replace(short + long, segment(0xC4, short[4:] + long[4:])))
    first, second = (quantisers(index, crafted.PHOTO) for index in (0, 1))
    check(data.replace(first + second, segment(0xDB, first[4:] + second[4:])))


@pytest.mark.parametrize("interval", [0, 2, 5])
def test_scans_that_are_not_interleaved(interval: int) -> None:
    source = replace(BASE, interval=interval)
    for scans in ([[0], [1], [2]], [[0], [1, 2]], [[0, 1], [2]]):
        check(source.head() + b"".join(source.scan(scan) for scan in scans) + EOI)


@pytest.mark.parametrize("source", [SHEARED, TILED], ids=["sheared", "tiled"])
def test_wrong_restart_markers_are_a_status(source: Jpeg) -> None:
    changes: dict[str, Callable[[list[bytes]], object]] = {
        "renumbered": lambda parts: parts.__setitem__(2, parts[2][:-1] + b"\xd5"),
        "missing": lambda parts: parts.__setitem__(2, parts[2][:-2]),
        "segment dropped": lambda parts: parts.pop(1),
        "segment doubled": lambda parts: parts.insert(1, parts[1]),
    }
    for name, change in changes.items():
        assert status_of(with_segments(source, change)) in DAMAGED, name


def test_restart_intervals_of_every_length_and_a_surplus_marker() -> None:
    for interval in (1, 2, 3, 4, 5, 6, 7, 10, 19, 20, 21, 65535):
        check(replace(BASE, interval=interval).bytes())
    none = segment(0xDD, b"\0\0")  # an interval of zero: no restarts
    for markers in (JFIF, JFIF + segment(0xDD, b"\0\4")):
        check(replace(BASE, markers=markers, more=none).bytes())
    # A surplus marker behind the last segment.
    surplus = bytes((0xFF, 0xD0 + (len(SHEARED.segments(range(3))) - 1) % 8))
    check(SHEARED.bytes().removesuffix(EOI) + surplus + EOI)


def test_ordinary_files_with_restarts() -> None:
    image = Image.fromarray(pictures.pixels(50, 70))
    for restarts in ({"restart_marker_rows": 1}, {"restart_marker_rows": 2}, {"restart_marker_blocks": 4}):
        for options in ({}, {"progressive": True}, {"subsampling": 0}, {"optimize": True}):
            check(pictures.encoded(image, **restarts, **options))


@pytest.mark.parametrize("source", [BASE, SHEARED, TILED], ids=["plain", "sheared", "tiled"])
def test_bytes_at_the_end(source: Jpeg) -> None:
    data = source.bytes()
    assert with_segments(source, lambda parts: None) == data
    check(data)
    for box in BOXES:
        for short in (data[:-2], data[:-1], data[:-1] + b"\0\0\0"):
            assert status_of(short, box) == Status.TRUNCATED
    assert status_of(data[: len(data) * 2 // 3] + EOI) in DAMAGED
    for trailing in (b"\0\0\0trailing", data, pictures.jpeg("progressive", 20, 30)):
        check(data + trailing)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["plain", "sheared", "tiled", *LIBJPEGS])
def test_bytes_between_a_scan_and_its_marker(name: str) -> None:
    """Padding of real encoders is accepted, but not rewritten; else the decoder has lost its place."""
    source = {"plain": BASE, "sheared": SHEARED, "tiled": TILED, **LIBJPEGS}[name]

    def status(extra: bytes, part: int, box: Box = BOXES[0]) -> Status:
        def extend(parts: list[bytes]) -> None:
            end = len(parts[part]) - (2 if part >= 0 else 0)
            parts[part] = parts[part][:end] + extra + parts[part][end:]

        data = with_segments(source, extend)
        found = status_of(data, box)
        if box == BOXES[0] and found == Status.OK:
            check(data)
            tiled = tarpeg.tile_jpeg(pictures.tensor(data))
            assert (tiled.numpy().tobytes() == data) == (extra != b"\xff")  # fill bytes are no surplus
        elif box == BOXES[0]:
            with pytest.raises(tarpeg.DecodeError):
                tarpeg.tile_jpeg(pictures.tensor(data))
        return found

    for part in [-1] if source.interval == 0 else [0, 2, -1]:
        for padding in (b"\xff", b"\xff\0", b"\0", b"\x7f", b"\0" * 15, b"\xff\0" * 3):
            assert status(padding, part) == Status.OK, (padding, part)
        for surplus in (b"\1", b"\x80", b"\xfe", b"abc", b"\0\0\1", b"\0" * 16, b"long" * 99):
            assert status(surplus, part) == Status.CORRUPT, (surplus, part)
    if name == "tiled":  # tiles that a crop does not need are not read
        assert status(b"abc", -1, (0, 0, 8, 8)) == Status.OK


@pytest.mark.parametrize("kind", ["progressive", "a scan per component"])
def test_bytes_before_restart_markers_of_several_scans(kind: str) -> None:
    """libjpeg counts bytes that it read ahead for one marker at a later one, perhaps of another scan."""
    for seed in range(3):
        source = SHEARED.noise(seed)
        data = source.head() + b"".join(source.scan([c]) for c in range(3)) + EOI
        if kind == "progressive":
            picture = Image.fromarray(pictures.pixels(50, 70, seed))
            data = pictures.encoded(picture, progressive=True, restart_marker_blocks=2)
        begin = data.index(b"\xff\xda")
        head, parts = data[:begin], re.split(rb"(?=\xff[\xd0-\xd7])", data[begin:])
        for padding in (b"", b"\xff", b"\xff\0", b"\0", b"\x7f", b"\0" * 7, b"\0" * 15):
            padded = head + padding.join(parts)
            assert status_of(padded) == Status.OK, padding
            check(padded)
            tiled = tarpeg.tile_jpeg(pictures.tensor(padded)).numpy().tobytes()
            assert (tiled == padded) == (padding not in (b"", b"\xff"))
        for surplus in (b"long" * 5, b"\0" * 40):
            for part in (1, 5):
                extended = b"".join((*parts[:part], surplus, *parts[part:]))
                assert status_of(head + extended) == Status.CORRUPT, (surplus, part)


def test_flipped_bits_have_the_same_status_whoever_decodes() -> None:
    source, rng = Jpeg(50, 70, interval=3).noise(), np.random.default_rng(0)
    files = [file.bytes() for file in (source, replace(source, ids=(0, 1, 2), markers=b""))]
    for at in rng.integers(3, len(files[1]) - files[1].index(b"\xff\xda") - 14, 1200)[:300].tolist():
        bit, found = 1 << int(rng.integers(8)), []
        for file in files:
            flipped = bytearray(file)
            flipped[-at] ^= bit
            found.append(status_of(bytes(flipped)))
        assert found[0] == found[1], at


@pytest.mark.slow
def test_flipped_bits_give_the_same_at_each_level_of_vector_code() -> None:
    """Two tiles at a time, or one: the same status, and the same pixels."""
    pictures.assert_portable_is_equal("""
import numpy as np
rng = np.random.default_rng(1)
data = tarpeg.tile_jpeg(tensor(jpeg("420", 100, 160, 1)), 32)
scan = bytes(data.numpy()).index(b"\\xff\\xda") + 14
files = [data] + [data.clone() for _ in range(150)]
for file in files[1:]:
    file[int(rng.integers(scan, len(data)))] ^= 1 << int(rng.integers(8))
boxes = torch.tensor([[0, 0, 100, 160]] * len(files), dtype=torch.int32)
images, status = tarpeg.decode_batch(files, boxes, (100, 160))
assert status[0] == 0 and 10 < int((status == 0).sum()) < 140
write(status)
write(images)
""")


def test_motion_jpeg_without_tables() -> None:
    """Frames of webcams leave out the standard tables, and end with a byte of ones at times."""
    for options in ({}, {"restart_marker_blocks": 4}):
        data = pictures.encoded(Image.fromarray(pictures.pixels(50, 70)), **options)
        tables = [segment(marker, body) for marker, body in crafted.segments_of(data) if marker == 0xC4]
        without = data
        for table in tables:
            without = without.replace(table, b"")
        assert len(tables) >= 1 and b"\xff\xc4" not in without
        check(without)
        assert torch.equal(*(tarpeg.tile_jpeg(pictures.tensor(item)) for item in (data, without)))
        padded = without[:-2] + b"\xff\0" + EOI
        check(padded)
        assert status_of(without[:-2] + b"abc" + EOI) == Status.CORRUPT


@pytest.mark.parametrize("source", [BASE, TILED], ids=["plain", "tiled"])
def test_height_after_the_scan_is_refused(source: Jpeg) -> None:
    dnl = segment(0xDC, (50).to_bytes(2, "big"))
    assert status_of(replace(source, stated_height=0, behind_scan=dnl + EOI).bytes()) == Status.UNSUPPORTED
    check(replace(source, behind_scan=dnl + EOI).bytes())  # ignored if the frame has a height
    check(replace(source, more=dnl).bytes())


@pytest.mark.sweep
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("size", [(50, 70), (33, 3), (2, 41), (17, 18), (64, 96), (41, 67), (18, 33)])
def test_any_sampling(sampling: tuple[tuple[int, int], ...], size: tuple[int, int]) -> None:
    height, width = size
    boxes = [(0, 0, height, width), (height // 3, width // 3, height // 2, max(1, width // 2))]
    boxes += [(height - 1, width - 1, 1, 1), (0, width // 2, height, 1), (height // 2, 0, 1, width)]
    source = Jpeg(height, width, sampling, tuple(range(1, len(sampling) + 1)))
    for interval in (0, 1):
        check(replace(source, interval=interval).noise().bytes(), boxes)
    check_half_size(replace(source, interval=2).noise(strength=120))


def test_fractional_samplings_are_refused() -> None:
    data = Jpeg(50, 70, ((3, 1), (2, 1), (1, 1))).noise().bytes()
    assert status_of(data) == Status.UNSUPPORTED


@pytest.mark.parametrize("top", [255, 300, 4000, 65535])
def test_quantisers_of_16_bits(top: int) -> None:
    table = tuple(np.linspace(1, top, 64).astype(int).tolist())
    check(Jpeg(50, 70, tables=(table, table), frame=0xC1, interval=5).noise(strength=9).bytes())
    check(Jpeg(50, 70, tables=(crafted.PHOTO, table), frame=0xC0).noise(strength=9).bytes())


@pytest.mark.sweep
@pytest.mark.parametrize("quantiser", [1, 7, 16, 255])
@pytest.mark.parametrize("strength", [30, 300, 3000])
def test_saturated_noise(quantiser: int, strength: int) -> None:
    for sampling in SAMPLINGS[:4]:
        source = Jpeg(50, 70, sampling, tables=((quantiser,) * 64,) * 2, interval=1)
        check(source.noise(strength=strength).bytes(), BOXES[:1])


# In zigzag order: the first row of a block; the first and the fifth, of which the means use the first alone.
ROW, FIRST_AND_FIFTH = [0, 1, 5, 6, 14, 15, 27, 28], [0, 1, 5, 6, 10, 19, 23, 32, 39]


@pytest.mark.parametrize("places", [[0], ROW, FIRST_AND_FIFTH, range(64)], ids=len)
@pytest.mark.parametrize("quantiser", [1, 8, 16, 100, 255])
def test_coefficients_at_the_extremes(places: Sequence[int], quantiser: int) -> None:
    """Beyond 16 bits libjpeg's vector code wraps here and saturates there: see Note [flat columns]."""
    source = Jpeg(48, 64, tables=((quantiser,) * 64,) * 2).noise()
    rng = np.random.default_rng(len(places))
    for values in source.coefficients:
        values[...] = 0
        for k in places:
            values[..., k] = rng.choice([-1023, 1023, 512, 0], values.shape[:2])
    check(source.bytes(), [(0, 0, 48, 64)])
    check_half_size(source)


def test_black_and_white_noise() -> None:
    rng = np.random.default_rng(3)
    for values in ((0, 255), (0, 0, 0, 9), (255, 255, 255, 240)):
        image = Image.fromarray(rng.choice(values, (50, 70, 3)).astype(np.uint8))
        for quality in (5, 60, 100):
            for subsampling in (0, 1, 2):
                data = pictures.encoded(image, quality=quality, subsampling=subsampling)
                check(tarpeg.tile_jpeg(pictures.tensor(data)).numpy().tobytes(), BOXES[:2])


@pytest.mark.slow
def test_every_residue_of_width_and_height_tiled() -> None:
    rng = np.random.default_rng(5)
    image = pictures.pixels(40, 40)
    for height in range(1, 41):
        for width in range(1, 41):
            cut = Image.fromarray(image[:height, :width])
            source = pictures.tensor(pictures.encoded(cut, subsampling=2))
            tiled, whole = tarpeg.tile_jpeg(source, 16), (0, 0, height, width)
            top, left = rng.integers([height, width]).tolist()
            box = (top, left, *rng.integers(1, [height - top + 1, width - left + 1]).tolist())
            for crop in (whole, box):
                expected = reference.decode_crop(source, *crop)
                assert torch.equal(tarpeg.decode_crop(tiled, *crop), expected), (height, width, crop)


def test_a_damaged_tile_counts_inside_the_crop_only() -> None:
    source = Jpeg(64, 96, interval=1).noise()  # tiles of 16x16, 6 per row
    good = reference.decode(pictures.tensor(source.bytes()))
    damage = b"\xff\0" * 30  # no code is all ones; it goes to row 1, column 2
    data = with_segments(source, lambda parts: parts.__setitem__(8, damage + parts[8][-2:]))
    for box in [(0, 0, 64, 96), (20, 36, 4, 4), (0, 34, 40, 4)]:
        assert status_of(data, box) in DAMAGED
    for top, left, height, width in [(33, 40, 20, 20), (0, 60, 64, 36)]:
        crop = tarpeg.decode_crop(pictures.tensor(data), top, left, height, width)
        assert torch.equal(crop, good[:, top : top + height, left : left + width])
    with pytest.raises(tarpeg.DecodeError):
        tarpeg.tile_jpeg(pictures.tensor(data))


@pytest.mark.parametrize("marker", [0xC8, 0xDE, 0xDF, 0xF0, 0xFD, 0x02, 0xBF])
def test_reserved_markers_are_refused_as_by_libjpeg(marker: int) -> None:
    data = replace(TILED, more=segment(marker, b"\0\0")).bytes()
    with pytest.raises(OSError):
        reference.decode(pictures.tensor(data))
    assert status_of(data) in (Status.CORRUPT, Status.UNSUPPORTED)


def test_segments_that_do_not_matter() -> None:
    for marker in (0xE3, 0xEF, 0xFE, 0xDC):
        check(replace(TILED, more=segment(marker, b"\0\x32")).bytes(), BOXES[:2])
    for index in (2, 0x13):  # an unused table, and a table too many
        check(replace(TILED, more=crafted.SHORT[0].table(index)).bytes(), BOXES[:2])
    thumbnail = pictures.jpeg("444", 8, 8)  # with its own frame
    markers = JFIF + segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + thumbnail)
    for more in (b"", segment(0xFE, thumbnail)):
        check(replace(TILED, markers=markers, more=more).bytes())
    # Symbols that only libjpeg accepts.
    odd = Code(range(16), 0, 5), Code([*crafted.AC_SYMBOLS, 0x10, 0x0F], 0, 8)
    check(replace(TILED, codes=odd).bytes(), BOXES[:2])


# One lookup may yield two coefficients: blocks that end within a pair, long codes, runs out of the block.
ALL = (0, 0, 32, 48)


@pytest.fixture(params=itertools.product(CODES, (0, 1)), ids=str)
def coded(request: pytest.FixtureRequest) -> Jpeg:
    codes, interval = request.param
    return Jpeg(32, 48, codes=CODES[codes], interval=interval, tables=((2,) * 64,) * 2).noise()


def test_any_code_and_data_that_end_too_early(coded: Jpeg) -> None:
    for strength in (3, 40, 300):
        check(coded.noise(strength=strength).bytes(), [ALL])
    data = coded.bytes()
    for cut in range(8, 60, 3):
        assert status_of(data[:-cut] + EOI, ALL) in DAMAGED, cut


def test_blocks_that_end_at_every_coefficient_and_sparse_ones(coded: Jpeg) -> None:
    """The last may be the first or the second of a pair; no end-of-block code follows the 64th."""
    rng = np.random.default_rng(7)
    full, sparse = coded.noise(), coded.noise()
    for values in full.coefficients:
        values[..., 1:] = rng.choice([-1, 1, 1, 2], values[..., 1:].shape)
        last = rng.choice([0, 1, 2, 30, 59, 60, 61, 62, 63, 63, 63], values.shape[:2])
        values[np.arange(64) > last[..., None]] = 0
    for values in sparse.coefficients:
        values[..., 1:] *= rng.random(values[..., 1:].shape) < 0.05
        values[..., 63] = rng.choice([-1, 0, 1], values.shape[:2])
    check(full.bytes(), [ALL])
    check(sparse.bytes(), [ALL])


@pytest.mark.parametrize("symbols", [[0xF0] * 4, [0x01] * 60 + [0xF1], [0x01] * 62 + [0x11]])
@pytest.mark.parametrize("behind", [0x00, 0x01])
@pytest.mark.parametrize("tiles", [1, 3])
def test_runs_that_lead_out_of_the_block(symbols: list[int], behind: int, tiles: int) -> None:
    """A pair must not hide such a run, alone or in the last of several tiles: libjpeg decides."""
    box = (0, 0, 8, 8 * tiles)
    for codes in ("ones", "end", "runs", "mixed"):
        empty = [np.zeros((1, tiles, 64), int)]
        source = Jpeg(*box[2:], ((1, 1),), (1,), codes=CODES[codes], interval=tiles // 3, coefficients=empty)
        bits = crafted.Bits()
        bits.put(*CODES[codes][0].codes[0])
        for symbol in [*symbols, behind]:
            bits.put(*CODES[codes][1].codes[symbol])
            bits.put(1, symbol & 15)
        scan = source.scan([0])
        last = scan[: scan.rindex(b"\xff\xd1") + 2 if tiles == 3 else 10]
        data = source.head() + last + bits.take() + EOI
        if status_of(data, box) == Status.OK:
            check(data, [box])


@pytest.mark.sweep
@pytest.mark.parametrize("residue", range(16))
def test_every_residue_of_width_and_height(residue: int) -> None:
    for height, width in [(33, 32 + residue), (32 + residue, 33), (32 + residue, 48 - residue)]:
        check_half_size(Jpeg(height, width, interval=1).noise(residue))
        check_half_size(Jpeg(height, width, ((1, 1),), ids=(1,)).noise(residue))


def test_half_size_is_the_mean_of_the_decoded_samples() -> None:
    """Gray, and almost no resampling: every output is a mean of 2x2 with small shares of two neighbours."""
    source = Jpeg(64, 64, ((1, 1),), ids=(1,), tables=((4,) * 64,) * 2).noise(strength=25)
    jpeg = pictures.tensor(source.bytes())
    fast, exact = (resized(jpeg, (0, 0, 64, 64), 32, fidelity=fidelity) for fidelity in ("fast", "exact"))
    means = torch.nn.functional.avg_pool2d(tarpeg.decode_crop(jpeg, 0, 0, 64, 64).float(), 2)
    kernel = torch.tensor([1.0, 6.0, 1.0]) / 8  # a triangle over four samples, summed by twos
    padded = torch.nn.functional.pad(means[None], (1, 1, 1, 1), mode="replicate")
    kernel2d = (kernel[:, None] * kernel).expand(3, 1, 3, 3)
    expected = torch.nn.functional.conv2d(padded, kernel2d, groups=3)[0]
    inner = (..., slice(1, -1), slice(1, -1))
    assert (fast.float() - expected)[inner].abs().max() <= 1.2
    assert (exact.float() - expected)[inner].abs().max() > 2


def test_samples_beyond_the_image_are_close_to_it() -> None:
    """Odd sides: the last mean uses one sample that the encoder invented, a repetition of the last."""
    image = pictures.pixels(75, 95)
    jpeg = pictures.tensor(pictures.encoded(Image.fromarray(image), quality=95, subsampling=2))
    fast, exact = (resized(jpeg, (0, 0, 75, 95), (30, 38), fidelity=how).float() for how in ("fast", "exact"))
    difference = (fast - exact).abs()
    edges = difference[..., -1, :], difference[..., :, -1]
    assert max(float(edge.mean()) for edge in edges) < 3 * difference.mean() + 1
