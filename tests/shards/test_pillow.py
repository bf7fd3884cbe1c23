"""Images that Pillow decodes: damage, and no programs. Formats, modes and EXIF: cache/test_codecs.py."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
from helpers.pictures import bit_flipped, picture, pixels, premultiplied_gray, saved
from PIL import Image, TiffImagePlugin
from tarpeg import Status
from tarpeg.shards import pillow
from tarpeg.shards.pillow import RefusedError, open_rgb, open_upright, open_values, ppm, to_rgb

WIDE = np.linspace(0, 65535, 64 * 80).astype(np.uint16).reshape(64, 80)


def pixels_of(data: bytes) -> bytes | None:
    """A PPM of the image; None if it is refused."""
    try:
        return ppm(open_rgb(data))
    except RefusedError:
        return None


def png_16(samples: np.ndarray) -> bytes:
    """A PNG of RGB samples of 16 bits, which Pillow cannot write."""
    height, width, _ = samples.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    chunks = {b"IHDR": struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0), b"IDAT": zlib.compress(rows)}
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in (chunks | {b"IEND": b""}).items():
        data += (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )
    return data


def with_tag(tiff: bytes, tag: int, old: int, new: int) -> bytes:
    """A little-endian TIFF with another value of a tag."""
    before, after = (struct.pack("<HHIHH", tag, 3, 1, value, 0) for value in (old, new))
    assert tiff.count(before) == 1
    return tiff.replace(before, after)


TIFF = saved(Image.fromarray(WIDE), "TIFF")


@pytest.mark.parametrize(
    "data",
    [
        *(saved(Image.fromarray(WIDE), kind) for kind in ("PNG", "TIFF", "PPM")),
        saved(Image.fromarray(WIDE.astype(">u2")), "TIFF"),
        with_tag(saved(Image.fromarray(65535 - WIDE), "TIFF"), 262, 1, 0),
        png_16(np.stack([WIDE] * 3, -1)),
    ],
    ids=["png", "tiff", "pgm", "big-endian tiff", "white is 0", "rgb png"],
)
def test_of_16_bits_the_upper_8_are_kept(data):
    levels = np.asarray(open_rgb(data))
    assert levels.dtype == np.uint8 and (levels == (WIDE >> 8)[..., None]).all()


def test_of_12_bits_the_upper_8_are_kept():
    raw = np.frombuffer(TIFF, np.uint8)[TIFF.index(WIDE.tobytes()) :][: 64 * 80 * 3 // 2]
    levels = np.asarray(open_rgb(with_tag(TIFF, 258, 16, 12)))[..., 0].ravel()
    assert (levels[::2] == raw[::3]).all() and raw.max() > 200


def test_a_png_whose_checksum_differs_is_refused():
    """Pillow decodes other pixels."""
    for damaged in (bit_flipped(picture("PNG", size=(40, 60))), bit_flipped(png_16(np.ones((4, 5, 3))))):
        with pytest.raises(RefusedError, match="a PNG whose checksum differs: it is damaged"):
            open_rgb(damaged)


def planes(levels: np.ndarray, **tags: int) -> bytes:
    """A TIFF without compression, with a plane per channel: levels [C, H, W]; tags replace those written."""
    channels, height, width = levels.shape
    bits = 8 * levels.dtype.itemsize
    values = {"width": (256, width), "height": (257, height), "compression": (259, 1), "white": (262, 2)}
    values |= {"rows": (278, height), "channels": (277, channels), "planes": (284, 2)}
    entries = {tag: (tags.get(name, value),) for name, (tag, value) in values.items()}
    entries[258], entries[339] = (bits,) * channels, (tags.get("format", 1),) * channels
    entries[273] = entries[279] = (0,) * channels
    end = 8 + 2 + 12 * len(entries) + 4
    pixels = end + 4 * 2 * 4 * channels  # behind the numbers that do not fit into their entry
    plane = levels[0].nbytes
    entries[273], entries[279] = [pixels + plane * at for at in range(channels)], [plane] * channels
    table, rest = struct.pack("<2sHIH", b"II", 42, 8, len(entries)), b""
    for tag, numbers in sorted(entries.items()):
        text = struct.pack(f"<{len(numbers)}I", *numbers)
        table += struct.pack("<HHI", tag, 4, len(numbers)) + (
            text if len(text) == 4 else struct.pack("<I", end + len(rest))
        )
        rest += text if len(text) > 4 else b""
    return (table + struct.pack("<I", 0) + rest).ljust(pixels, b"\0") + levels.tobytes()


def test_a_tiff_whose_samples_pillow_misreads_is_refused():
    levels = np.moveaxis(pixels(24, 40), -1, 0)
    assert np.array_equal(np.asarray(open_rgb(planes(levels))), np.moveaxis(levels, 0, -1))
    assert np.array_equal(open_values(planes(levels)), np.moveaxis(levels, 0, -1))
    gray = planes(levels[:1], white=1)
    assert np.array_equal(open_values(gray), levels[0])
    for content in (planes(levels.astype("<u2") * 257), planes(levels[:1], white=0)):
        for read in (open_rgb, open_values):
            with pytest.raises(RefusedError, match=r"a plane per channel.* Pillow misreads: compress it"):
                read(content)
    for read in (open_rgb, open_values):
        with pytest.raises(RefusedError, match="its samples are signed, 32-bit or floating-point"):
            read(planes(levels[:1], white=1, format=2))


def test_orientation_and_transparency_of_16_bits():
    data = saved(Image.fromarray(WIDE), "PNG", orientation=6, transparency=65535)
    assert (np.asarray(open_rgb(data))[..., 0] == np.rot90(WIDE >> 8, -1)).all()


def in_mode(mode: str) -> Image.Image:
    """A picture in any mode that Pillow has."""
    image = Image.fromarray(pixels(20, 30))
    before = {"La": "LA", "PA": "P", "RGBa": "RGBA"}.get(mode)
    if mode.startswith("I;16"):
        return Image.frombytes(mode, image.size, bytes(range(240)) * 5)
    return (image if before is None else image.convert(before)).convert(mode)


def gray_and_rgb(data: bytes) -> bool:
    """Whether an image is decoded, and then its crops become gray and RGB; False if it is refused."""
    try:
        image = open_upright(data)
    except RefusedError as error:
        assert error.status in (Status.UNSUPPORTED, Status.NOT_AN_IMAGE, Status.CORRUPT), error
        return False
    crop = image.crop((1, 1, 5, 5))
    assert to_rgb(crop).mode == "RGB"
    levels = np.asarray(to_rgb(crop, gray=True))
    assert (levels == levels[..., :1]).all()
    of_a_cache = np.asarray(to_rgb(crop).convert("L"))
    assert (levels[..., 0] == of_a_cache).all(), crop.mode
    return True


@pytest.mark.parametrize("mode", [mode for mode in Image.MODES if mode not in ("La", "RGBa")])
def test_every_mode_that_a_file_can_have_is_decoded_or_refused(mode):
    decoded = 0
    for kind in (*pillow.PILLOW_FORMATS, "ICO", "PCX", "TGA", "JPEG2000"):
        try:
            data = saved(in_mode(mode), kind)
        except (OSError, ValueError, KeyError):  # which modes each format has
            continue
        decoded += gray_and_rgb(data)
    assert decoded


def tiff_of(key: tuple) -> bytes:
    """A TIFF of 10 x 8 pixels of one of the kinds that Pillow's plugin opens: a key of its table."""
    order, photometric, formats, fill, bits, extra = key
    end, nbytes = "<" if order == b"II" else ">", 8 * ((10 * sum(bits) + 7) // 8)
    tags = {256: [10], 257: [8], 258: bits, 259: [1], 262: [photometric], 266: [fill], 273: [0]}
    tags |= {277: [len(bits)], 278: [8], 279: [nbytes], 338: extra, 339: formats}
    tags[320] = range(3 << bits[0]) if photometric == 3 else ()
    listed = sorted((tag, list(values)) for tag, values in tags.items() if values)
    start = 14 + 12 * len(listed)
    places = start + sum(2 * len(values) for _, values in listed if len(values) > 2)
    entries, more = b"", b""
    for tag, values in listed:
        content = struct.pack(f"{end}{len(values)}H", *(values if tag != 273 else [places]))
        if len(values) > 2:
            content, more = struct.pack(f"{end}I", start + len(more)), more + content
        entries += struct.pack(f"{end}HHI", tag, 3, len(values)) + content.ljust(4, b"\0")
    head = order + struct.pack(f"{end}HIH", 42, 8, len(listed))
    return head + entries + bytes(4) + more + np.random.default_rng(0).bytes(nbytes)


def test_every_kind_of_tiff_is_decoded_or_refused():
    keys = [key for key in TiffImagePlugin.OPEN_INFO if key[0] in (b"II", b"MM")]
    decoded = {TiffImagePlugin.OPEN_INFO[key][0] for key in keys if gray_and_rgb(tiff_of(key))}
    every = {mode for mode, _ in TiffImagePlugin.OPEN_INFO.values()}
    assert decoded == every - {"F", "I"}, "numbers without a range are refused"


@pytest.mark.parametrize("largest", [1, 2, 7, 20, 254, 255, 256, 1000, 4095, 65534, 65535])
@pytest.mark.parametrize("magic", ["P2", "P5"])
def test_numbers_of_masks_are_those_in_a_pgm(magic, largest):
    numbers = np.linspace(0, largest, min(largest + 1, 1200)).astype(int)
    content = f"{magic}\n{len(numbers)} 1\n{largest}\n".encode()
    if magic == "P2":
        content += " ".join(map(str, numbers.tolist())).encode() + b"\n"
    else:
        content += numbers.astype(">u2" if largest > 255 else "u1").tobytes()
    values = pillow.open_values(content)
    assert values.dtype == (np.uint16 if largest > 255 else np.uint8)
    assert values.tolist() == [numbers.tolist()]


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_numbers_of_masks_are_those_in_a_png_of_few_bits(bits):
    numbers = np.arange(48).reshape(3, 16) % (1 << bits)
    rows = b"".join(b"\0" + np.packbits(_bits_of(row, bits)).tobytes() for row in numbers)
    head = struct.pack(">IIBBBBB", 16, 3, bits, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    assert pillow.open_values(content).tolist() == numbers.tolist()


def _bits_of(numbers: np.ndarray, bits: int) -> np.ndarray:
    return (numbers[:, None] >> np.arange(bits)[::-1]) & 1


def test_colours_of_a_ppm_of_fewer_levels_are_those_in_the_file_and_of_more_refused():
    colours = bytes([0, 1, 2, 7, 8, 9])
    assert pillow.open_values(b"P6 2 1 9\n" + colours).tobytes() == colours
    with pytest.raises(RefusedError, match="levels up to 1000"):
        pillow.open_values(b"P6 1 1 1000\n" + colours)


def test_gray_multiplied_by_its_alpha_is_divided_by_it():
    data = premultiplied_gray()
    expected = Image.open(io.BytesIO(data)).convert("LA").getchannel("L")
    assert (np.asarray(open_rgb(data)) == np.asarray(expected)[..., None]).all()


def test_warnings_that_are_errors_are_a_status_too(monkeypatch):
    transparent = picture("PNG", mode="P", transparency=bytes(range(200)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gray_and_rgb(transparent), "its transparency is no reason"
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 80 - 1)
        with pytest.raises(RefusedError) as caught:
            open_rgb(picture("PNG"))
    assert caught.value.status == Status.TOO_LARGE


@pytest.mark.parametrize("mode", ["F", "I"])
def test_samples_without_a_range_are_refused(mode):
    for kind in ("TIFF", "PPM") if mode == "F" else ("TIFF",):
        with pytest.raises(RefusedError, match="32-bit or floating-point") as caught:
            open_rgb(saved(Image.fromarray(WIDE).convert("I").convert(mode), kind))
        assert caught.value.status == Status.UNSUPPORTED
    same = pickle.loads(pickle.dumps(caught.value))
    assert (str(same), same.status) == (str(caught.value), caught.value.status)


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (picture("PNG")[:900], Status.CORRUPT, r"Pillow cannot decode it: .*truncated.*"),
        (picture("WEBP")[:200], Status.CORRUPT, "Pillow cannot decode it: .*|its WEBP header is damaged"),
        (picture("PNG")[:12] + bytes(99), Status.CORRUPT, "its PNG header is damaged"),
        (
            picture("JPEG2000"),
            Status.UNSUPPORTED,
            "it is JPEG 2000, which is not supported: convert it to .*",
        ),
        (picture("ICO"), Status.UNSUPPORTED, "it is ICO, which is not supported: convert it to JPEG or PNG"),
        (b"\0\0\0\x1cftypheic" + bytes(99), Status.UNSUPPORTED, "it is HEIC, which is not .*"),
        (b"II*\0" + bytes(99), Status.UNSUPPORTED, "it is a TIFF of a kind that Pillow cannot read, or .*"),
        (b"\n<html>", Status.NOT_AN_IMAGE, "it looks like HTML or XML .*"),
        (b"%PDF-1.4", Status.NOT_AN_IMAGE, "it begins with b'%PDF-1.4', as no supported format does"),
    ],
    ids=["cut png", "cut webp", "png header", "jpeg 2000", "ico", "heic", "tiff", "html", "pdf"],
)
def test_the_reason_has_pillows_words_or_the_format(data, status, reason):
    with pytest.raises(RefusedError) as caught:
        open_rgb(data)
    assert caught.value.status == status and re.fullmatch(reason, str(caught.value)), str(caught.value)
    assert "0x" not in str(caught.value), "the same in every build"


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
KINDS = {
    (0, 1): 1,
    (0, 2): 2,
    (0, 4): 4,
    (0, 8): 8,
    (0, 16): 16,
    (2, 8): 24,
    (2, 16): 48,
    (3, 1): 1,
    (3, 4): 4,
}
KINDS |= {(3, 8): 8, (4, 8): 16, (4, 16): 32, (6, 8): 32, (6, 16): 64}


@pytest.mark.parametrize("interlaced", [0, 1])
@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_a_png_with_fewer_rows_than_its_header_says_is_truncated(colour, depth, interlaced):
    for width, height in ((1, 1), (1, 9), (5, 2), (8, 8), (17, 33), (300, 500)):
        rows = b""
        for x, y, across, down in PASSES if interlaced else [(0, 0, 1, 1)]:
            columns = len(range(x, width, across))
            row = bytes(1 + (columns * KINDS[colour, depth] + 7) // 8)
            rows += b"".join(row for _ in range(y, height, down) if columns)
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))
        palette = chunk(b"PLTE", bytes(range(48))) if colour == 3 else b""
        for missing in (0, 1, len(rows) // 2):
            data = zlib.compress(rows[: len(rows) - missing])
            parts = chunk(b"IDAT", data[:5]) + chunk(b"IDAT", data[5:])
            content = b"\x89PNG\r\n\x1a\n" + head + palette + parts + chunk(b"IEND", b"")
            if not missing:
                assert open_rgb(content).size == (width, height)
                continue
            with pytest.raises(RefusedError, match=r"fewer rows|truncated"):  # Pillow finds a few of them
                open_rgb(content)


def tiff(rows, strips):
    """An uncompressed gray TIFF of 20 x 30 pixels, of strips of ten rows."""
    counts = [len(strip) for strip in strips]
    places = [8 + sum(counts[:number]) for number in range(len(strips))]
    data = b"".join(strips)
    ends = [8 + len(data), 8 + len(data) + 4 * len(strips)]
    fields = [(256, 1, 20), (257, 1, rows), (258, 1, 8), (259, 1, 1), (262, 1, 1)]
    fields += [(273, len(strips), ends[0] if len(strips) > 1 else places[0]), (277, 1, 1), (278, 1, 10)]
    fields.append((279, len(strips), ends[1] if len(strips) > 1 else counts[0]))
    arrays = struct.pack(f"<{2 * len(strips)}I", *places, *counts)
    entries = b"".join(struct.pack("<HHII", tag, 4, count, value) for tag, count, value in fields)
    directory = struct.pack("<H", len(fields)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(data) + len(arrays)) + data + arrays + directory


@pytest.mark.parametrize("orientation", range(1, 9))
def test_strips_are_counted_of_the_image_as_stored(orientation):
    image = Image.fromarray(np.arange(60 * 200, dtype=np.uint16).reshape(60, 200).astype(np.uint8))
    for rows in (7, 60):
        data = saved(image, "TIFF", tiffinfo={274: orientation, 278: rows})
        assert open_rgb(data).size == ((60, 200) if orientation > 4 else (200, 60))


def test_a_tiff_with_fewer_strips_than_its_header_says_is_truncated():
    strips = [bytes([level]) * 200 for level in (50, 100, 150)]
    assert np.asarray(open_rgb(tiff(30, strips)))[::10, 0, 0].tolist() == [50, 100, 150]
    assert open_rgb(tiff(23, [*strips[:2], strips[2][:60]])).size == (20, 23)
    for short in (strips[:2], strips[:1], [*strips[:2], strips[2][:100]]):
        with pytest.raises(RefusedError, match="a TIFF with fewer rows") as caught:
            open_rgb(tiff(30, short))
        assert caught.value.status == Status.TRUNCATED


@pytest.mark.parametrize("interlaced", [0, 1])
def test_rows_beyond_the_last_are_not_decompressed(interlaced):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, interlaced))
    rows = chunk(b"IDAT", zlib.compress(bytes(100 << 20)))
    content = b"\x89PNG\r\n\x1a\n" + head + rows + chunk(b"IEND", b"")
    tracemalloc.start()
    assert open_rgb(content).size == (8, 8)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 20 << 20


def test_avif_is_decoded_if_pillow_can_and_otherwise_refused_with_the_remedy(monkeypatch):
    if "AVIF" not in pillow.PILLOW_FORMATS:
        pytest.skip("this Pillow has no AVIF")
    data = picture("AVIF", quality=100, subsampling="4:4:4", orientation=6)
    decoded, source = np.asarray(open_rgb(data)).astype(int), np.asarray(open_rgb(picture("PNG")))
    assert np.abs(decoded - np.rot90(source, -1)).mean() < 2
    monkeypatch.setattr(pillow, "PILLOW_FORMATS", pillow.PILLOW_FORMATS[:-1])
    with pytest.raises(RefusedError, match=r"it is AVIF, .*: install pillow>=11\.3") as caught:
        open_rgb(data)
    assert caught.value.status == Status.UNSUPPORTED


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000"])
def test_damaged_pictures_are_refused_or_pixels(kind):
    whole, rng = picture(kind), np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cut in rng.integers(0, len(whole), 30):
            pixels_of(whole[:cut])
        for _ in range(60):
            data = bytearray(whole)
            for place in rng.integers(0, min(len(data), 400), 4):
                data[place] = rng.integers(256)
            pixels_of(bytes(data))


def test_pillow_runs_no_programs(tmp_path, monkeypatch):
    # Pillow passes PostScript to Ghostscript; a shard is data, and nothing in it may run.
    ran = tmp_path / "ran"
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    assert pixels_of(eps) is None
    assert not ran.exists()
