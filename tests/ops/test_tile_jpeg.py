"""tile_jpeg: same pixels, in tiles; metadata that decoding needs is kept; damaged files are refused."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import tarpeg
import torch
from helpers import crafted, pictures, reference
from helpers.crafted import Jpeg, segments_of
from PIL import Image
from tarpeg.ops import decode


def tiled(data: bytes, tile: int = 32) -> bytes:
    return tarpeg.tile_jpeg(pictures.tensor(data), tile).numpy().tobytes()


def pixels(data: bytes) -> np.ndarray:
    """As stored: no orientation, no conversion."""
    return np.asarray(Image.open(io.BytesIO(data)))


def assert_lossless(data: bytes, tile: int = 32) -> bytes:
    result = tiled(data, tile)
    assert np.array_equal(pixels(result), pixels(data))
    assert torch.equal(reference.decode(pictures.tensor(result)), reference.decode(pictures.tensor(data)))
    assert tiled(result, tile) == result
    return result


def interval(data: bytes) -> int:
    return int.from_bytes(dict(segments_of(data))[0xDD], "big")


def is_baseline(data: bytes) -> bool:
    markers = [marker for marker, _ in segments_of(data)]
    return 0xC0 in markers and data.count(b"\xff\xda") == 1


@pytest.mark.parametrize("kind", pictures.KINDS)
@pytest.mark.parametrize("size", [(1, 1), (2, 50), (50, 3), (16, 16), (75, 101)])
def test_every_pixel_is_kept(kind: str, size: tuple[int, int]) -> None:
    data = pictures.jpeg(kind, *size)
    for tile in (1, 8, 20, 32, 1000):
        assert is_baseline(assert_lossless(data, tile))


def expected_interval(columns: int, rows: int, target: int, nbytes: int) -> int:
    """The rule of native/jpeg/transcode.cpp: nbytes are the source's, a tile costs 4 bytes."""
    divisors = [n for n in range(1, columns + 1) if columns % n == 0]
    above = [n for n in divisors if target <= n <= 4 * target]
    cheap = [n for n in above if 30 * 4 * rows * columns // n <= nbytes]
    below = [n for n in divisors if 1 < n < target]
    return [*cheap, *above[-1:], *below[-1:], columns][0]


def test_the_interval_divides_the_row() -> None:
    found = set()
    for width in [*range(1, 420, 11), 16 * 13, 16 * 23, 16 * 36, 16 * 97, 800, 2000]:
        for quality, height in ((95, 9), (20, 40)):
            data = pictures.encoded(Image.fromarray(pictures.pixels(height, width)), quality=quality)
            columns, rows = -(-width // 16), -(-height // 16)
            for tile in (1, 16, 17, 32, 80, 200, 1000, 65535):
                expected = expected_interval(columns, rows, -(-tile // 16), len(data))
                assert interval(tiled(data, tile)) == expected, (width, tile, quality)
                found.add((columns, expected))
    assert {(97, 97), (97, 1), (50, 50), (50, 25), (50, 2), (13, 13)} <= found


def test_intervals_by_hand() -> None:
    cases = [(25, 32, 5), (23, 32, 23), (13, 96, 13), (34, 80, 17), (35, 144, 35), (6, 999, 6)]
    for columns, tile, expected in cases:
        data = pictures.encoded(Image.fromarray(pictures.pixels(8, 16 * columns)), quality=95)
        assert interval(tiled(data, tile)) == expected, (columns, tile)
    # Gray marked 2x2 has MCUs of one block: 13 across, not 7.
    assert interval(assert_lossless(pictures.jpeg("gray22", 40, 100), 24)) == 13
    assert interval(tiled(pictures.jpeg("gray22", 40, 96), 24)) in (3, 4, 6, 12)


def test_metadata_is_kept() -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    icc, xmp = bytes(range(256)) * 300, b"<x tiff:Orientation='3'/>"  # ICC: two segments
    image = Image.fromarray(pictures.pixels(40, 60))
    data = pictures.encoded(image, exif=exif, dpi=(300, 150), icc_profile=icc, xmp=xmp)
    result = assert_lossless(data)
    kept, source = (Image.open(io.BytesIO(file)) for file in (result, data))
    assert kept.getexif() == source.getexif() and kept.getexif()[0x0112] == 6
    for key in ("icc_profile", "dpi", "jfif_density", "jfif_unit", "xmp"):
        assert kept.info[key] == source.info[key]
    assert tarpeg.image_sizes([pictures.tensor(result)]).tolist() == [[60, 40]]


@pytest.mark.filterwarnings("ignore:.*malformed MPO")
def test_metadata_that_would_be_wrong_is_dropped() -> None:
    plain = pictures.jpeg("420", 40, 60)
    extra = crafted.segment(0xE2, b"MPF\0" + bytes(40)) + crafted.segment(0xE5, b"maker" * 9)
    data = plain[:20] + extra + crafted.segment(0xFE, b"a comment") + plain[20:] + plain
    result = assert_lossless(data)
    assert {marker for marker, _ in segments_of(result)} == {0xE0, 0xDB, 0xC0, 0xC4, 0xDD}
    assert result == tiled(plain), "neither MPF nor a second picture"


def test_metadata_between_scans_is_dropped() -> None:
    """No decoder reads it there: in front, it would turn the picture."""
    exif = b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\7\0\0\0\0\0\0\0"
    late = crafted.segment(0xE1, exif) + crafted.segment(0xE2, b"ICC_PROFILE\0\1\1late")
    source = Jpeg(50, 70).noise()
    scans = [source.scan([component]) for component in range(3)]
    for early in (b"", crafted.segment(0xE1, exif.replace(b"\7", b"\3"))):
        head = source.head().replace(crafted.JFIF, crafted.JFIF + early)
        result = assert_lossless(head + late.join(scans) + late + b"\xff\xd9")
        assert [body for marker, body in segments_of(result) if marker in (0xE1, 0xE2)] == (
            [early[4:]] if early else []
        )


@pytest.mark.parametrize(("kind", "transform"), [("cmyk", 0), ("ycck", 2), ("rgb", 0)])
def test_the_adobe_transform_is_kept(kind: str, transform: int) -> None:
    result = assert_lossless(pictures.jpeg(kind, 40, 60))
    assert dict(segments_of(result))[0xEE][11] == transform


@pytest.mark.parametrize("transform", [0, 1, 2, 7, None])
@pytest.mark.parametrize("jfif", [b"", crafted.JFIF])
@pytest.mark.parametrize("ids", [(1, 2, 3), (82, 71, 66), (0, 1, 2), (34, 35, 36), (1, 1, 1)])
def test_colour_spaces_are_decoded_and_kept(transform: int | None, jfif: bytes, ids: tuple[int, ...]) -> None:
    markers = jfif + (b"" if transform is None else crafted.adobe(transform))
    source = Jpeg(50, 70, markers=markers, ids=ids).noise()
    assert_lossless(source.bytes())
    pictures.check_crops(replace(source, interval=5).bytes(), [(0, 0, 50, 70), (17, 23, 20, 31)])


@pytest.mark.parametrize("sampling", crafted.SAMPLINGS[:-3], ids=str)
def test_any_sampling_and_16_bit_quantisers(sampling: tuple[tuple[int, int], ...]) -> None:
    table = tuple(1 + 9 * k for k in range(64))
    data = Jpeg(50, 70, sampling, tables=(table, table), frame=0xC1).noise(strength=12).bytes()
    assert 0xC1 in dict(segments_of(assert_lossless(data)))


def test_several_scans() -> None:
    source = Jpeg(50, 70).noise()
    head, scans, end = source.head(), [source.scan([component]) for component in range(3)], b"\xff\xd9"
    data = head + b"".join(scans) + end
    assert is_baseline(assert_lossless(data)) and tiled(data) == tiled(source.bytes())
    # One slot that held two tables: impossible in a single scan.
    unchanged = head + scans[0] + scans[1] + crafted.quantisers(1, [5] * 64) + scans[2] + end
    assert tiled(unchanged) == unchanged


def test_arithmetic_files_are_decoded_but_not_rewritten() -> None:
    """Their decoder takes missing data for zeros: damage goes unnoticed."""
    data = pictures.ARITHMETIC
    image = tarpeg.decode_crop(pictures.tensor(data), 0, 0, 16, 24)
    assert image.float().std() > 50
    cut = data[: -len(data) // 8] + b"\xff\xd9"
    assert not torch.equal(tarpeg.decode_crop(pictures.tensor(cut), 0, 0, 16, 24), image)
    assert tiled(data) == data and tiled(cut) == cut


def test_files_that_cannot_be_tiled_are_returned_unchanged() -> None:
    # Four components whose MCU would hold 16 blocks are legal only in separate scans.
    # libjpeg treats the sampling as 1x1, but keeps the factors of the header.
    source = Jpeg(32, 48, ((2, 2),) * 4, ids=(1, 2, 3, 4), markers=crafted.adobe(0)).noise()
    data = source.head() + b"".join(source.scan([c]) for c in range(4)) + b"\xff\xd9"
    assert tiled(data) == data
    # Coefficients beyond the range of a baseline file: DC differences of 12 bits.
    codes = crafted.Code(range(13), 0, 4), crafted.SHORT[1]
    wide = Jpeg(16, 16, ((1, 1),), (1,), tables=((1,) * 64,), codes=codes).noise()
    wide.coefficients[0][..., 0] = [[1500, -1500], [1500, -1500]]
    data = wide.bytes()
    assert tiled(data) == data
    # libjpeg detects it only after its output has grown.
    data = data[:2] + crafted.segment(0xE1, b"Exif\0\0" + bytes(20000)) + data[2:]
    assert tiled(data) == data


@pytest.mark.parametrize("kind", ["420", "gray", "progressive", "cmyk", "restarts"])
def test_damaged_files_are_refused(kind: str) -> None:
    data = pictures.jpeg(kind, 48, 64)
    for length in (3, 100, len(data) // 2, len(data) - 20, len(data) - 2, len(data) - 1):
        with pytest.raises(tarpeg.DecodeError, match="cannot tile"):
            tiled(data[:length])
    with pytest.raises(tarpeg.DecodeError):  # cut, and closed again
        tiled(data[: len(data) * 2 // 3] + b"\xff\xd9")


def assert_damaged(data: bytes, status: tarpeg.Status) -> None:
    """tile_jpeg and decode_batch agree, for every way to read the last row."""
    with pytest.raises(tarpeg.DecodeError, match="cannot tile"):
        tiled(data)
    size = tarpeg.image_sizes([pictures.tensor(data)])
    box = torch.cat((torch.zeros_like(size), size), dim=1)
    for output in (size[0].tolist(), 8, 100):
        for options in ({}, {"interpolation": "nearest"}, {"fidelity": "exact"}):
            images, found = tarpeg.decode_batch([pictures.tensor(data)], box, output, **options)
            assert found.tolist() == [status] and not images.any(), (output, options)


def test_files_without_all_scans_are_truncated() -> None:
    """libjpeg decodes them to gray, or smooths them, and does not warn."""
    source = Jpeg(50, 70).noise()
    scans = [source.scan([component]) for component in range(3)]
    for some in (scans[:1], scans[:2], scans[1:]):
        assert_damaged(source.head() + b"".join(some) + b"\xff\xd9", tarpeg.Status.TRUNCATED)
    for kind in ("RGB", "L", "CMYK"):
        image = Image.fromarray(pictures.pixels(75, 101)).convert(kind)
        data = pictures.encoded(image, progressive=True)
        places = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
        assert len(places) > 5
        for at in places[1:]:
            assert_damaged(data[:at] + b"\xff\xd9", tarpeg.Status.TRUNCATED)


def flat(side: int, bits: int) -> bytes:
    """A gray progressive file with one scan for each bit of each AC coefficient; all are zero."""
    blocks = (side // 8) ** 2
    dc, ac = crafted.Code([0], 0, 1), crafted.Code([run << 4 for run in range(15)], 0, 4)
    body = b"\x08" + side.to_bytes(2, "big") * 2 + b"\1\1\x11\0"
    data = b"\xff\xd8" + crafted.quantisers(0, [1] * 64) + crafted.segment(0xC2, body)
    data += dc.table(0x00) + ac.table(0x10) + crafted.segment(0xDA, b"\1\1\0\0\0\0") + bytes(blocks // 8)
    ends = crafted.Bits()  # runs of blocks that end here
    while blocks:
        size = min(14, blocks.bit_length() - 1)
        run = min(blocks, (2 << size) - 1)
        ends.put(*ac.codes[size << 4])
        ends.put(run - (1 << size), size)
        blocks -= run
    scan = ends.take()
    for bit in reversed(range(bits)):
        before = 0 if bit == bits - 1 else bit + 1
        for k in range(1, 64):
            data += crafted.segment(0xDA, bytes((1, 1, 0, k, k, before << 4 | bit))) + scan
    return data + b"\xff\xd9"


def test_the_work_of_progressive_scans_is_bounded() -> None:
    """A scan of 20 bytes may pass over all blocks: scans times blocks are limited, beyond 32 scans."""
    for side, bits in ((64, 7), (2048, 7), (4096, 1)):
        data = flat(side, bits)
        assert tarpeg.decode_crop(pictures.tensor(data), 0, 0, 1, 1).unique().tolist() == [128]
    big = flat(4096, 7)
    assert len(big) < 60_000
    with pytest.raises(tarpeg.DecodeError, match="is damaged"):
        tarpeg.decode_crop(pictures.tensor(big), 0, 0, 1, 1)


@pytest.mark.parametrize("kind", ["420", "cmyk", "rgb", "restarts"])
@pytest.mark.parametrize("garbage", [b"any bytes", b"\xff\x02\0\2", b"\xff\xd8", b"\xff\xdb\0\3\x09"])
def test_garbage_behind_the_last_row_is_damage(kind: str, garbage: bytes) -> None:
    data = pictures.jpeg(kind, 48, 64)
    assert_damaged(data[:-2] + garbage + b"\xff\xd9", tarpeg.Status.CORRUPT)


def test_surplus_behind_an_irregular_segment_is_damage() -> None:
    """Found by fuzzing: libjpeg is silent about both, and our decoder stopped at the first."""
    data = (Path(__file__).parent / "found" / "late_surplus.jpg").read_bytes()
    assert_damaged(data, tarpeg.Status.CORRUPT)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["420", "restarts", "progressive"])
def test_flipped_bits_that_libjpeg_notices_are_damage(kind: str) -> None:
    """One flipped bit in a scan; the strict decoder raises for every warning of libjpeg."""
    data = pictures.jpeg(kind, 96, 128)
    box, rng = torch.tensor([[0, 0, 96, 128]], dtype=torch.int32), np.random.default_rng(0)
    refused = 0
    for at in rng.integers(data.index(b"\xff\xda") + 14, len(data) - 2, 300).tolist():
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(rng.integers(8))
        status = int(tarpeg.decode_batch([pictures.tensor(flipped)], box, (96, 128))[1])
        try:
            result = tiled(bytes(flipped))
        except tarpeg.DecodeError:
            refused += 1
            assert status != 0
            continue
        assert status == 0
        simplejpeg.decode_jpeg(bytes(flipped), strict=True)
        assert np.array_equal(pixels(result), pixels(bytes(flipped)))
    assert refused > 60


def test_errors_contain_the_name_of_the_argument() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 30, 40))
    for tile in (0, -1, 65536):
        with pytest.raises(ValueError, match="tile="):
            tarpeg.tile_jpeg(jpeg, tile)
    with pytest.raises(ValueError, match=r"^jpeg "):
        tarpeg.tile_jpeg(jpeg.float())
    for data, reason in [(b"", "no bytes"), (b"P6 1 1 255\nabc", "neither"), (b"GIF89a", "neither")]:
        with pytest.raises(tarpeg.DecodeError, match=reason):
            tiled(data)
    with pytest.raises(tarpeg.DecodeError, match="max_pixels"):
        tarpeg.tile_jpeg(jpeg, max_pixels=30 * 40 - 1)
    with pytest.raises(RuntimeError, match="must be"):
        torch.ops.tarpeg.tile_jpeg(jpeg[::2], 32, decode.MAX_PIXELS)


def test_opcheck_and_one_graph() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 30, 40))
    torch.library.opcheck(torch.ops.tarpeg.tile_jpeg.default, (jpeg, 32, decode.MAX_PIXELS))
    pictures.assert_one_graph(lambda data: tarpeg.decode_crop(tarpeg.tile_jpeg(data), 3, 4, 10, 20) + 1, jpeg)
