"""decode_crop and image_sizes on JPEG and PPM: Pillow's pixels, and a status for bad files."""

from __future__ import annotations

import io
import resource
import struct
from pathlib import Path

import numpy
import pytest
import tarpeg
import torch
from helpers import pictures, reference
from helpers.crafted import segment
from helpers.pictures import check_crops, resized
from helpers.scripts import run_script
from hypothesis import given, settings, strategies as st
from PIL import Image
from tarpeg.ops import decode
from torchvision.transforms.v2 import InterpolationMode, functional

SMALL = pictures.tensor(pictures.jpeg("420", 30, 40))


def with_app1(data: bytes, body: bytes) -> bytes:
    """The file with an APP1 segment behind SOI."""
    return data[:2] + segment(0xE1, body) + data[2:]


@pytest.mark.parametrize("kind", pictures.KINDS)
def test_every_residue_of_position_and_size(kind: str) -> None:
    boxes = [(top, (7 * top) % 60, 17 + top % 16, 23 + top % 17) for top in range(42)]
    boxes += [((5 * left) % 40, left, 20 + left % 15, 9 + left % 33) for left in range(60)]
    boxes += [(0, 0, 75, 101), (74, 100, 1, 1), (0, 0, 1, 1), (0, 50, 75, 1), (40, 0, 1, 101)]
    check_crops(pictures.jpeg(kind, 75, 101), boxes)


@pytest.mark.parametrize("kind", pictures.KINDS)
@pytest.mark.parametrize(
    "size", [(1, 1), (1, 40), (40, 1), (2, 2), (3, 5), (8, 8), (16, 17), (17, 16), (33, 31)]
)
def test_odd_image_sizes(kind: str, size: tuple[int, int]) -> None:
    height, width = size
    corners = [(top, left) for top in range(0, height, 5) for left in range(0, width, 3)]
    boxes = [(top, left, height - top, width - left) for top, left in corners]
    boxes += [(0, 0, max(1, height - 3), max(1, width - 3)), (height // 2, width // 2, 1, 1)]
    check_crops(pictures.jpeg(kind, height, width), boxes)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(pictures.KINDS), st.integers(1, 70), st.integers(1, 70), st.integers(1, 8))
def test_any_box(data: st.DataObject, kind: str, height: int, width: int, seed: int) -> None:
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = (top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left)))
    check_crops(pictures.jpeg(kind, height, width, seed), [box])


@pytest.mark.parametrize("orientation", [*range(10), 65535])
def test_exif_orientation(orientation: int) -> None:
    image = Image.fromarray(pictures.pixels(37, 52))
    data = pictures.encoded(image, orientation=orientation)
    height, width = reference.decode(pictures.tensor(data)).shape[1:]
    check_crops(data, [(0, 0, height, width), (3, 5, 20, 17), (height - 9, width - 4, 9, 4)])


@pytest.mark.parametrize("style", ['tiff:Orientation="6"', "<tiff:Orientation>6</"])
@pytest.mark.parametrize("exif", [None, 3])
def test_orientation_in_xmp_counts_without_exif(style: str, exif: int | None) -> None:
    plain = pictures.encoded(Image.fromarray(pictures.pixels(30, 40)), orientation=exif)
    data = with_app1(plain, f"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta {style}/>".encode())
    assert reference.decode(pictures.tensor(data)).shape[1:] == ((40, 30) if exif is None else (30, 40))
    check_crops(data, [(1, 2, 20, 25)])


MAGICS = [b"II*\0", b"MM\0*", b"MM*\0", b"II\0*", b"MM\0+", b"II+\0", b"II\0\0", b"XX*\0", b"I\0*\0", b"MMMM"]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("magic", MAGICS)
def test_exif_counts_if_it_begins_as_tiff(magic: bytes) -> None:
    plain = pictures.encoded(Image.fromarray(pictures.pixels(30, 40)))
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta tiff:Orientation="8"/>'
    for end in "<>":
        fields = struct.pack(f"{end}IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
        exif, none = b"Exif\0\0" + magic + fields, b"Exif\0\0" + magic + fields[:4] + bytes(6)
        for data in (with_app1(plain, exif), with_app1(with_app1(plain, xmp), exif)):
            check_crops(data, [(1, 2, 20, 25)])
        check_crops(with_app1(with_app1(plain, exif), none), [(1, 2, 20, 25)])  # the first has no orientation


SEGMENTED = {  # EXIF segments of one structure, in parts
    "header twice": lambda tiff: [b"Exif\0\0" + tiff],
    "header three times": lambda tiff: [b"Exif\0\0Exif\0\0" + tiff],
    "an empty one first": lambda tiff: [b"", tiff],
    "an empty one, then the header twice": lambda tiff: [b"", b"Exif\0\0" + tiff],
    "in two": lambda tiff: [tiff[:13], tiff[13:]],
    "in many": lambda tiff: [tiff[at : at + 1] for at in range(len(tiff))],
    "again": lambda tiff: [tiff, tiff],
    "an empty one alone": lambda _: [b""],
}


@pytest.mark.parametrize("style", ["<", ">"])
@pytest.mark.parametrize("name", SEGMENTED)
def test_exif_in_several_segments_is_read_as_pillow_reads_it(name: str, style: str) -> None:
    tiff = {"<": b"II*\0", ">": b"MM\0*"}[style]
    tiff += struct.pack(f"{style}IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    plain = pictures.encoded(Image.fromarray(pictures.pixels(30, 40)))
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta tiff:Orientation="8"/>'
    for data in (plain, with_app1(plain, xmp)):
        for part in reversed(SEGMENTED[name](tiff)):
            data = with_app1(data, b"Exif\0\0" + part)
        check_crops(data, [(1, 2, 20, 25)])


ORIENTATIONS = {  # the entries of a directory, (tag, type, count, value), and what they mean
    "of two numbers": ([(0x0112, 3, 2, 8 << 16 | 6)], 6),
    "of three numbers": ([(0x0112, 3, 3, 26)], 8),
    "beyond the end": ([(0x0112, 3, 3, 999)], 1),
    "of a cut segment": ([(0x010F, 2, 8, 999), (0x0112, 3, 1, 6)], 1),
    "behind too many bytes": ([(0x010F, 2, 9999, 26), (0x0112, 3, 1, 6)], 6),
    "behind an unknown type": ([(0x0112, 99, 1, 3), (0x0112, 3, 1, 6)], 6),
    "a byte": ([(0x0112, 1, 1, 6)], 1),
    "a signed byte": ([(0x0112, 6, 1, 6)], 6),
    "twice": ([(0x0112, 3, 1, 6), (0x0112, 3, 1, 1)], 6),
}


@pytest.mark.filterwarnings("ignore:Truncated File Read", "ignore:Tag data", "ignore:Metadata Warning")
@pytest.mark.parametrize("name", ORIENTATIONS)
def test_an_odd_entry_of_the_orientation_is_read_as_pillow_reads_it(name: str) -> None:
    entries, expected = ORIENTATIONS[name]
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    exif = b"II*\0" + struct.pack("<IH", 8, len(entries)) + packed + bytes(4) + struct.pack("<4H", 8, 8, 8, 8)
    plain = pictures.encoded(Image.fromarray(pictures.pixels(30, 40)))
    data = pictures.tensor(with_app1(plain, b"Exif\0\0" + exif))
    turned = pictures.tensor(pictures.encoded(Image.fromarray(pictures.pixels(30, 40)), orientation=expected))
    assert torch.equal(pictures.full(with_app1(plain, b"Exif\0\0" + exif)), reference.decode(turned))
    if name != "twice":  # before Pillow 13 the last entry counted
        assert torch.equal(reference.decode(data), reference.decode(turned))


def test_broken_exif_and_thumbnails_are_ignored() -> None:
    plain = pictures.encoded(Image.fromarray(pictures.pixels(30, 40)))
    thumbnail = pictures.encoded(Image.fromarray(pictures.pixels(8, 9)))
    for exif in (b"", b"II*\0", b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff\x12\x01", thumbnail):
        data = with_app1(plain, b"Exif\0\0" + exif)
        assert tarpeg.image_sizes([pictures.tensor(data)]).tolist() == [[30, 40]], exif


def test_a_box_outside_its_image() -> None:
    outside = [(0, 0, 31, 40), (0, 0, 30, 41), (30, 0, 1, 1), (25, 0, 6, 1)]
    for box in [*outside, (0, 2**31, 1, 1), (2**40, 0, 1, 1)]:
        with pytest.raises(ValueError, match=r"box \(.*outside") as caught:
            tarpeg.decode_crop(SMALL, *box)
        assert not isinstance(caught.value, tarpeg.DecodeError)
    for box in [(0, 0, 0, 1), (-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, 1, -5)]:
        with pytest.raises(ValueError, match=f"height={box[2]}, width={box[3]}"):
            tarpeg.decode_crop(SMALL, *box)
    for box in [(0, 0, 65536, 1), (0, 0, 1, 2**63)]:
        with pytest.raises(ValueError, match=f"height={box[2]}, width={box[3]}.* 65535"):
            tarpeg.decode_crop(SMALL, *box)
    rotated = pictures.tensor(pictures.encoded(Image.fromarray(pictures.pixels(30, 40)), orientation=6))
    tarpeg.decode_crop(rotated, 0, 0, 40, 30)
    with pytest.raises(ValueError, match=r"outside .*40 x 30"):
        tarpeg.decode_crop(rotated, 0, 0, 30, 40)


def test_decode_errors_contain_the_reason() -> None:
    good = pictures.jpeg("420", 64, 64)
    cases = {
        b"": "no bytes",
        b"\x89PNG\r\n\x1a\n" + b"0" * 90: "neither a JPEG nor a PPM",
        good[: len(good) // 2]: "ends before",
        good[:-2]: "ends before",
        good[:20]: "ends before",
        b"P6 64 64 255\n123": "ends before",
        b"P6 64 64 255X" + bytes(3 * 64 * 64): "damaged",
        b"P6 64 64 65535\n" + bytes(6 * 64 * 64): "not supported",
        good.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"): "not supported",
        good.replace(b"\x08\0\x40\0\x40", b"\x08\xff\xdc\xff\xdc"): "max_pixels",  # 65500 x 65500
    }
    for data, reason in cases.items():
        with pytest.raises(tarpeg.DecodeError, match=reason):
            tarpeg.decode_crop(pictures.tensor(data), 0, 0, 8, 8)
    tarpeg.decode_crop(pictures.tensor(good), 0, 0, 8, 8, max_pixels=64 * 64)
    with pytest.raises(tarpeg.DecodeError, match="max_pixels"):
        tarpeg.decode_crop(pictures.tensor(good), 0, 0, 8, 8, max_pixels=64 * 64 - 1)


def test_errors_contain_the_name_of_the_argument() -> None:
    for wrong in (SMALL.float(), SMALL[None], bytes(4)):
        with pytest.raises(ValueError, match=r"^jpeg "):
            tarpeg.decode_crop(wrong, 0, 0, 8, 8)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^jpegs\[1\] "):
        tarpeg.image_sizes([SMALL, SMALL.int()])


def test_opcheck_and_one_graph() -> None:
    torch.library.opcheck(torch.ops.tarpeg.decode_crop.default, (SMALL, 3, 4, 10, 20, decode.MAX_PIXELS))
    torch.library.opcheck(torch.ops.tarpeg.image_sizes.default, ([SMALL, SMALL],))
    pictures.assert_one_graph(lambda data: tarpeg.decode_crop(data, 3, 4, 10, 20).float() + 1, SMALL)
    pictures.assert_one_graph(lambda files: tarpeg.image_sizes(files) * 2, [SMALL, SMALL])


@pytest.mark.sweep
@pytest.mark.parametrize("limit", ["JPEGMEM", "RLIMIT_AS"])
def test_too_little_memory_is_not_a_damaged_file(limit: str) -> None:
    """libjpeg holds all coefficients of a progressive file: 70 MB of this one."""
    done = run_script(f"""
import os, resource, torch, tarpeg
from helpers import pictures
from PIL import Image
data = pictures.encoded(Image.new("RGB", (4800, 4800)), progressive=True)
jpeg, box = pictures.tensor(data), torch.tensor([[0, 0, 4800, 4800]], dtype=torch.int32)
calls = [
    lambda: tarpeg.decode_crop(jpeg, 0, 0, 8, 8),
    lambda: tarpeg.decode_batch([jpeg], box, 8, threads=1)[1].tolist(),
    lambda: tarpeg.decode_batch([jpeg], box, 8, fidelity="exact", threads=1)[1].tolist(),
    lambda: tarpeg.tile_jpeg(jpeg),
]
tarpeg.decode_crop(pictures.tensor(pictures.jpeg("progressive", 16, 16)), 0, 0, 8, 8)
if {limit!r} == "JPEGMEM":
    os.environ["JPEGMEM"] = "20M"
else:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (50 << 20), resource.RLIM_INFINITY))
for call in calls:
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
""")
    lines = done.stdout.splitlines()
    assert len(lines) == 4, (done.stdout, done.stderr)
    for line in lines:
        assert line.startswith("RuntimeError") and "out of memory, while decoding" in line, lines


@pytest.mark.parametrize("kind", ["420", "progressive", "cmyk", "restarts"])
def test_damaged_files_never_crash_or_hang(kind: str) -> None:
    good = pictures.jpeg(kind, 48, 56)
    generator = torch.Generator().manual_seed(1)
    decoded = 0
    for _ in range(300):
        data = pictures.tensor(good).clone()
        places = torch.randint(2, len(data), (3,), generator=generator)
        data[places] = torch.randint(0, 256, (3,), generator=generator, dtype=torch.uint8)
        try:
            tarpeg.decode_crop(data, 5, 6, 30, 40)
            decoded += 1
        except ValueError:
            pass
    assert 0 < decoded < 300


def test_only_the_header_is_read_and_sizes_without_one_are_zero() -> None:
    good = pictures.jpeg("420", 30, 40)
    header = good[: good.index(b"\xff\xda") + 2]
    assert tarpeg.image_sizes([pictures.tensor(header)]).tolist() == [[30, 40]]
    height = good.index(b"\xff\xc0") + 5
    no_height = good[:height] + b"\0\0" + good[height + 2 :]
    files = [b"", b"\xff", b"\xff\xd8", good[:40], b"GIF89a" + bytes(40), b"P6", b"P6 0 5 255\n", no_height]
    assert tarpeg.image_sizes([pictures.tensor(data) for data in files]).tolist() == [[0, 0]] * len(files)
    with pytest.raises(ValueError, match=r"a list of .*: image_sizes\(\[jpeg\]\)"):
        tarpeg.image_sizes(pictures.tensor(good))
    empty = tarpeg.image_sizes([])
    assert empty.shape == (0, 2) and empty.dtype == torch.int32


# Of white space that Pillow wants, of comments that it ends at CR, of numbers that it joins over a comment.
@pytest.mark.parametrize(
    "header",
    (
        *(
            "P6\n4 3\n255\n",
            "P6 4 3 255 ",
            "P6\t4\x0b3\x0c255\r",
            "P6\n# 9\r4 3 255\n",
            "P6\n#\n#\n4 3 255\n",
        ),
        *("P64 3 255\n", "P6#\n4 3 255\n", "P6\n4#\n 3 255\n", "P6\n1#\n0 3 255\n", "P6\n4 3 255#\n\n"),
        *("P6\n04 0003 0255\n", "P6\n0000000004 3 255\n", "P6\n00000000004 3 255\n", "P6\n+4 3 255\n"),
        *("P6\n4 3 255", "P6\n4 3", "P6\n4,3 255\n", "P6\n4 3 255x", "P6\n4 -3 255\n", "P6\n4 3 2_5\n"),
    ),
)
def test_a_header_of_a_ppm_is_read_as_pillow_does_or_left_to_it(header: str) -> None:
    content = header.encode() + pictures.pixels(3, 40).tobytes()
    file = pictures.tensor(content)
    ((height, width),) = tarpeg.image_sizes([file]).tolist()
    if height:
        expected = torch.from_numpy(numpy.array(Image.open(io.BytesIO(content)))).permute(2, 0, 1)
        assert torch.equal(tarpeg.decode_crop(file, 0, 0, height, width), expected)
    is_plain = header in ("P6\n4 3\n255\n", "P6 4 3 255 ", "P6\n#\n#\n4 3 255\n")
    assert height or not is_plain


# Binary PPM, the raw cache's format: every width, and no read beyond the end of the file.
@pytest.mark.parametrize("left", [0, 1, 5])
@pytest.mark.parametrize("header", ["P6\n{} 21\n255\n", "P6 # a comment\n{}\t21\n255\n"])
def test_ppm_of_every_width(header: str, left: int) -> None:
    for width in range(1, 40):
        rgb = pictures.pixels(21, left + width)
        file = pictures.tensor(header.format(left + width).encode() + rgb.tobytes())
        assert tarpeg.image_sizes([file]).tolist() == [[21, left + width]]
        box = (4, left, 17, width)
        crop = torch.from_numpy(rgb).permute(2, 0, 1)[:, 4:, left:]
        assert torch.equal(tarpeg.decode_crop(file, *box), crop)
        nearest = resized(file, box, (29, 31), interpolation="nearest")
        assert torch.equal(nearest, functional.resize(crop, [29, 31], InterpolationMode.NEAREST))
        smooth = resized(file, box, (10, 12), fidelity="exact")
        expected = functional.resize(crop, [10, 12], antialias=True)
        assert (smooth.int() - expected.int()).abs().max() <= 1


def test_nothing_beyond_the_file_is_read() -> None:
    done = run_script("""
import ctypes, mmap, numpy, torch, tarpeg
from helpers.pictures import pixels, resized
end = 3 * mmap.PAGESIZE
memory = numpy.frombuffer(mmap.mmap(-1, end + mmap.PAGESIZE), numpy.uint8)
guard = ctypes.c_void_p(memory.ctypes.data + end)
assert ctypes.CDLL(None, use_errno=True).mprotect(guard, mmap.PAGESIZE, 0) == 0, "reads of this page crash"
for width in range(1, 70):
    ppm = b"P6\\n%d 9\\n255\\n" % width + pixels(9, width).tobytes()
    memory[end - len(ppm) : end] = numpy.frombuffer(ppm, numpy.uint8)
    resized(torch.from_numpy(memory[end - len(ppm) : end]), (2, width // 3, 7, width - width // 3), (5, 11))
print("unharmed")
""")
    assert done.stdout == "unharmed\n", (done.returncode, done.stderr)


@pytest.mark.parametrize("limit", [1 << 26, 1 << 40])
def test_a_header_of_billions_of_pixels_is_refused_before_memory_is_allocated(limit):
    data = bytearray(pictures.jpeg("420", 64, 80))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = (64250).to_bytes(2, "big") * 2
    used = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(used.split()[1]) * 1024 + (1 << 30), before[1]))
    try:
        box = (0, 0, 64250, 64250) if limit < 64250**2 else (60000, 60000, 4251, 4000)
        with pytest.raises(
            (tarpeg.DecodeError, ValueError), match=r"max_pixels|outside the image of 64250 x 64250"
        ):
            decode.decode_crop(pictures.tensor(bytes(data)), *box, max_pixels=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
