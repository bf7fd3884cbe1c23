"""The index of a tiled JPEG's rows: what it holds, what it saves, and that a wrong one changes nothing."""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import mmap
import os
from pathlib import Path

import pytest
import tarpeg
import torch
from helpers import pictures
from helpers.crafted import INDEX, scan_of, segment, segments_of, with_index
from PIL import Image
from tarpeg import Status
from tarpeg.cache.codecs import row_index_fits

HEIGHT, WIDTH = 200, 300
BOXES = [
    (0, 0, 200, 300),
    (0, 0, 16, 300),
    (70, 31, 40, 90),
    (99, 150, 1, 1),
    (183, 0, 17, 300),
    (16, 9, 8, 8),
]


def encoded(quality: int = 90, height: int = HEIGHT, width: int = WIDTH, **options: object) -> bytes:
    image = Image.fromarray(pictures.pixels(height, width))
    return pictures.encoded(image.convert(options.pop("mode", "RGB")), quality=quality, **options)


def tiled(data: bytes, tile: int = 32) -> bytes:
    return tarpeg.tile_jpeg(pictures.tensor(data), tile).numpy().tobytes()


def index_of(data: bytes) -> list[int] | None:
    """The numbers of the index: the scan's length, and the offset of each row but the first."""
    bodies = [body for marker, body in segments_of(data) if marker == 0xEA]
    if not bodies:
        return None
    assert len(bodies) == 1 and bodies[0].startswith(INDEX)
    return [int.from_bytes(bodies[0][at : at + 4], "big") for at in range(len(INDEX), len(bodies[0]), 4)]


def results(data: bytes, box: tuple[int, ...], others: list[tuple[int, ...]] | None = None) -> list[object]:
    """Status and pixels of a crop, at its size and at two others."""
    found: list[object] = []
    for size in (box[2:], (9, 7), (3, 3)):
        boxes = torch.tensor([box, *(others or [])], dtype=torch.int32)
        images, status = tarpeg.decode_batch([pictures.tensor(data)] * len(boxes), boxes, tuple(size))
        found += [status.tolist(), images.numpy().tobytes()]
    return found


@pytest.mark.parametrize("tile", [16, 32, 1000])
@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"mode": "L"}, {"progressive": True}], ids=str)
def test_it_holds_every_row_and_pixels_are_those_without_it(tile: int, options: dict[str, object]) -> None:
    source = encoded(**options)
    data = tiled(source, tile)
    start, markers = scan_of(data)
    rows = -(-HEIGHT // (16 if options in ({}, {"progressive": True}) else 8))
    per_row = (len(markers) + 1) // rows
    assert index_of(data) == [len(data) - 2 - start, *markers[per_row - 1 :: per_row]]
    bare = with_index(data, [])
    for box in BOXES:
        assert results(data, box) == results(bare, box) == results(source, box), box
    pictures.check_crops(data, BOXES[:3])
    assert tiled(data, tile) == data == tiled(bare, tile)
    for width in (16, 48):
        assert (index_of(tiled(data, width)) or [0])[0] == len(tiled(data, width)) - 2 - scan_of(
            tiled(data, width)
        )[0]


def test_it_is_left_out_where_it_costs_more_than_it_saves() -> None:
    found = []
    for quality, side in itertools.product((10, 60, 95), (1, 8, 17, 100, 200, 400)):
        data, rows = tiled(encoded(quality, side, side)), -(-side // 16)
        pays = rows > 1 and 128 * (12 + 4 * rows) <= len(data) - 2 - scan_of(data)[0]
        assert (index_of(data) is not None) == pays, (quality, side)
        found.append(pays)
    assert found.count(True) >= 3
    # Colours that only libjpeg decodes, from the top.
    cmyk = pictures.jpeg("cmyk", HEIGHT, WIDTH)
    assert len(tiled(cmyk)) > 20_000 and index_of(tiled(cmyk)) is None


def test_an_index_that_does_not_fit_is_ignored() -> None:
    data = tiled(encoded())
    numbers = index_of(data)
    assert numbers is not None and len(numbers) == 13
    bare = with_index(data, [])
    swapped = [*numbers[:5], numbers[6], numbers[5], *numbers[7:]]
    wrong = {
        "length": [numbers[0] - 1, *numbers[1:]],
        "beyond the file": [2**32 - 1] * 13,
        "zeros": [0] * 13,
        "behind the scan": [numbers[0], *[numbers[0] + 2] * 12],
        "swapped": swapped,
        "one row late": [numbers[0], *numbers[2:], numbers[0] - 2],
        "one byte late": [numbers[0], *(number + 1 for number in numbers[1:])],
        "a row too few": numbers[:-1],
        "a row too many": [*numbers, numbers[0] - 2],
        "of another file": index_of(tiled(encoded(91))) or [],
    }
    files = {name: with_index(data, changed) for name, changed in wrong.items()}
    files["version"] = with_index(data, numbers, b"tarpeg\0\2")
    files["signature"] = with_index(data, numbers, b"tarpex\0\1")
    files["empty"] = data.replace(segment(0xEA, data[data.index(INDEX) :][: 8 + 52]), segment(0xEA, INDEX))
    for name, changed in files.items():
        assert len(changed) != len(bare), name
        for box in BOXES:
            assert results(changed, box) == results(bare, box), (name, box)
        assert tiled(changed) == data, name
    # The restart interval alone decides what a tile is: twice as many markers as an index allows.
    narrow, wide = tiled(encoded(), 16), tiled(encoded(), 1000)
    mixed = with_index(narrow, [index_of(narrow)[0], *index_of(wide)[1:]])
    for box in BOXES:
        assert results(mixed, box) == results(with_index(narrow, []), box)


def test_markers_of_other_rows_are_neither_read_nor_judged() -> None:
    data = tiled(encoded())
    start, markers = scan_of(data)
    per_row = (len(markers) + 1) // 13
    crop = (100, 31, 40, 90)  # rows 6 to 8 of tiles
    for marker, notices in ((per_row * 2, False), (per_row * 7, True), (per_row * 11, False)):
        damaged = bytearray(data)
        damaged[start + markers[marker] - 1] ^= 1
        assert results(bytes(damaged), BOXES[0])[0] == [Status.CORRUPT]
        found = results(bytes(damaged), crop)
        assert (found[0] == [Status.CORRUPT]) == notices and (notices or found == results(data, crop))
        # Several views of one file: each has the status and the pixels of its box alone.
        pair = results(bytes(damaged), crop, [(0, 0, 40, 300)])
        assert pair[0][0] == found[0][0]
    for cut in (data[: start + markers[-3]], data[: start + markers[per_row * 9]]):
        for end, status in ((b"", Status.TRUNCATED), (b"\xff\xd9", Status.OK)):
            assert results(cut + end, (0, 0, 40, 40))[0] == [status], (
                "as without an index: libjpeg reads so far"
            )
            assert results(cut + end, BOXES[0])[0][0] in (Status.TRUNCATED, Status.CORRUPT)


def test_only_the_pages_of_the_crop_and_of_the_end_are_read(tmp_path: Path) -> None:
    """The other pages of a mapped file cannot be read: a child that touched one of them would die."""
    page = mmap.PAGESIZE
    data = tiled(encoded(95, 1600, 1200))
    start, numbers = scan_of(data)[0], index_of(data)
    assert numbers is not None
    box = (803, 500, 90, 100)
    first, last = (box[0] - 1) // 16, (box[0] + box[2]) // 16
    rows = range((start + numbers[first]) // page, -(-(start + numbers[last + 1] + 64) // page))
    needed = {*range(-(-start // page) + 1), *rows, (len(data) - 1) // page}
    assert len(needed) < len(data) / page / 5
    path = tmp_path / "tiled.jpg"
    for name, content in (("index", data), ("scan", with_index(data, []))):
        path.write_bytes(content)
        with (
            path.open("rb") as file,
            mmap.mmap(
                file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE
            ) as mapped,
        ):
            view = torch.frombuffer(mapped, dtype=torch.uint8)
            expected = tarpeg.decode_crop(view, *box)
            child = os.fork()
            if child == 0:
                faulthandler.disable()
                protect = ctypes.CDLL(None, use_errno=True).mprotect
                protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
                for number in range(-(-len(content) // page)):
                    if number not in needed and protect(view.data_ptr() + number * page, page, 0):
                        os._exit(2)
                os._exit(0 if torch.equal(tarpeg.decode_crop(view, *box), expected) else 1)
            assert (os.waitpid(child, 0)[1] == 0) == (name == "index")
            del view


def test_an_index_that_was_crafted_shows_other_tiles_until_all_rows_are_read() -> None:
    """Rows that are eight tiles late have restart markers of the right numbers."""
    data = tiled(encoded(95, 400, 160), 160)  # one tile per row
    numbers = index_of(data)
    assert numbers is not None and len(numbers) == 25
    crafted = with_index(data, [numbers[0], *numbers[9:], *numbers[-8:]])
    whole, place, late = (0, 0, 400, 160), (6 * 16 + 4, 0, 8, 160), (14 * 16 + 4, 0, 8, 160)
    assert results(crafted, whole) == results(data, whole)
    found = [
        tarpeg.decode_crop(pictures.tensor(file), *box) for file, box in ((crafted, place), (data, late))
    ]
    assert torch.equal(*found)
    assert row_index_fits(data) and row_index_fits(with_index(data, [])) and not row_index_fits(crafted)
    for changed in ([], [7], [*numbers, 7], numbers[:-1], [0, *numbers[1:]]):
        assert not row_index_fits(with_index(data, changed or [0]))
    assert row_index_fits(with_index(data, numbers, b"tarpeg\0\2")), "of a later version: never followed"
