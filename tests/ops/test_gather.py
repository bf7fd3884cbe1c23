"""gather_tiles and decode_gathered: the bytes of decode_batch; damaged tensors are found, never followed."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
import tarpeg
import torch
from helpers import crafted, pictures
from helpers.crafted import Jpeg
from PIL import Image
from tarpeg import Gathered, Status
from tarpeg.ops import decode, gather

METHODS = (
    *(("bilinear", True), ("bilinear", False), ("nearest", False), ("nearest-exact", False)),
    *(("bicubic", True), ("bicubic", False), ("lanczos", True), ("box", True)),
)
KINDS = ("444", "422", "420", "440", "411", "gray", "gray22", "progressive", "odd_markers")
OTHERS = ("cmyk", "ycck", "rgb")  # neither YCbCr nor gray: only the CPU decodes them
HEADER, IMAGE, WORK = 64, 448, 56  # bytes, and where a record has its work: native/gather/layout.h


def both(data: bytes, tile: int) -> list[torch.Tensor]:
    source = pictures.tensor(data)
    return [tarpeg.tile_jpeg(source, tile), tarpeg.pack_jpeg(source, tile)]


def table(*boxes: tuple[int, int, int, int]) -> torch.Tensor:
    return torch.tensor(boxes, dtype=torch.int32)


def assert_same(
    files: list[torch.Tensor],
    boxes: torch.Tensor,
    size: int | tuple[int, int],
    flip: torch.Tensor | None = None,
    **options: object,
) -> None:
    """decode_gathered(gather_tiles()) has all images of decode_batch, and its bytes."""
    expected, status = tarpeg.decode_batch(files, boxes, size, flip, **options)
    gathered = tarpeg.gather_tiles(files, boxes, size, flip, **options)
    images, found = tarpeg.decode_gathered(gathered)
    assert gathered.status.tolist() == found.tolist() == status.tolist() == [0] * len(files)
    assert images.shape == expected.shape and images.is_contiguous(memory_format=torch.channels_last)
    for number, (image, wanted) in enumerate(zip(images, expected, strict=True)):
        assert torch.equal(image, wanted), (number, boxes[number].tolist(), size, flip, options)


def drawn_box(rng: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    top, left = rng.randrange(height), rng.randrange(width)
    return top, left, rng.randint(1, height - top), rng.randint(1, width - left)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("fidelity", ["fast", "exact"])
@pytest.mark.parametrize("interpolation, antialias", METHODS)
def test_every_kind_of_file_and_every_filter(
    interpolation: str, antialias: bool, fidelity: str, channels: int
) -> None:
    rng = random.Random(f"{interpolation} {antialias} {fidelity} {channels}")
    files = [
        file for kind in KINDS for file in both(pictures.jpeg(kind, 61, 93), rng.choice((8, 16, 32, 200)))
    ]
    sizes = tarpeg.image_sizes(files).tolist()
    for size in ((24, 31), (7, 110), (90, 5)):
        boxes = table(*(drawn_box(rng, *each) for each in sizes))
        flip = torch.tensor([rng.random() < 0.5 for _ in files])
        options = {"interpolation": interpolation, "antialias": antialias}
        assert_same(files, boxes, size, flip, fidelity=fidelity, channels=channels, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("orientation", [6, 1, 2, 3, 4, 5, 7, 8])
def test_orientations_copies_and_reductions(orientation: int) -> None:
    rng = random.Random(orientation)
    image = Image.fromarray(pictures.pixels(250, 322))
    files = []
    for subsampling in (0, 1, 2):
        data = pictures.encoded(image, orientation=orientation, subsampling=subsampling, quality=60)
        files += both(data, rng.choice((16, 32)))
    files += [file for kind in ("440", "411", "gray") for file in both(pictures.jpeg(kind, 250, 322), 16)]
    sizes = tarpeg.image_sizes(files).tolist()
    flip = torch.arange(len(files)) % 4 < 2
    # Up to means of 8, each with its filters' limits; and the box at its own size.
    for size, method in zip(
        ((120, 110), (60, 70), (25, 25), (9, 8)), ("bilinear", "bicubic", "box", "lanczos"), strict=True
    ):
        boxes = table(*((rng.randrange(9), rng.randrange(9), h - 9, w - 9) for h, w in sizes))
        for channels in (1, 3):
            assert_same(files, boxes, size, flip, interpolation=method, channels=channels)
            assert_same(files, boxes, size, flip, channels=channels)
            assert_same(
                files, table(*((*box[:2], *size) for box in boxes.tolist())), size, flip, channels=channels
            )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_files_boxes_and_methods(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        height, width, orientation = rng.randint(1, 500), rng.randint(1, 500), rng.randint(1, 8)
        image = Image.fromarray(pictures.pixels(height, width, seed))
        files = []
        for _ in range(4):
            data = pictures.jpeg(rng.choice(KINDS), height, width, rng.randrange(9))
            if rng.random() < 0.5:
                options = {"quality": rng.choice((5, 50, 100)), "subsampling": rng.randrange(3)}
                data = pictures.encoded(image, orientation=orientation, **options)
            files += both(data, rng.choice((8, 16, 32, 64, 1000)))
        boxes = table(*(drawn_box(rng, *each) for each in tarpeg.image_sizes(files).tolist()))
        size = rng.choice((1, 2, 9, 33, 70)), rng.choice((1, 3, 10, 40, 100))
        method, antialias = rng.choice(METHODS)
        options = {"interpolation": method, "antialias": antialias, "channels": rng.choice((1, 3, 3))}
        flip = torch.tensor([rng.random() < 0.5 for _ in files])
        assert_same(files, boxes, size, flip, fidelity=rng.choice(("fast", "exact")), **options)


@pytest.mark.parametrize("strength, quantiser", [(20000, 1), (3000, 7), (20000, 255)])
def test_coefficients_beyond_every_picture(strength: int, quantiser: int) -> None:
    """Sums that wrap, passes that saturate, blocks of a flat column."""
    files = []
    for seed, sampling in enumerate((((2, 2), (1, 1), (1, 1)), ((1, 1),) * 3, ((2, 1), (1, 1), (1, 1)))):
        jpeg = Jpeg(40, 72, sampling, tables=([quantiser] * 64,) * 2).noise(seed, strength)
        files += both(jpeg.bytes(), 16)
        for coefficients in jpeg.coefficients:
            coefficients[..., 1:] *= np.isin(np.arange(1, 64), (1, 5, 6, 14))  # of the first row
        files += both(jpeg.bytes(), 16)
    boxes = table(*[(0, 0, 40, 72)] * len(files))
    for size, fidelity in (((40, 72), "fast"), ((20, 36), "fast"), ((13, 20), "fast"), ((31, 50), "exact")):
        assert_same(files, boxes, size, fidelity=fidelity)


@pytest.mark.parametrize("codes", crafted.CODES)
def test_huffman_codes_of_every_length(codes: str) -> None:
    jpeg = Jpeg(32, 64, codes=crafted.CODES[codes], interval=2).noise(3, 300)
    assert_same([pictures.tensor(jpeg.bytes())], table((5, 20, 20, 30)), (20, 30))


def test_only_tiles_under_the_box_are_gathered() -> None:
    file = tarpeg.tile_jpeg(pictures.tensor(pictures.jpeg("420", 400, 400)))
    small, large = (
        len(tarpeg.gather_tiles([file], table(box), 32).data) for box in ((99, 99, 32, 32), (0, 0, 400, 400))
    )
    assert small < len(file) // 12 and len(file) < large < 1.3 * len(file)


def test_what_is_not_gathered_has_a_status() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 60, 64))
    tiled = tarpeg.tile_jpeg(jpeg)
    files = [jpeg, *(pictures.tensor(pictures.jpeg(kind, 60, 64)) for kind in (*OTHERS, "progressive"))]
    ppm = pictures.saved(Image.fromarray(pictures.pixels(60, 64)), "PPM")
    files += [pictures.tensor(ppm), jpeg[:0], jpeg[:900], tiled[:-2], tiled]
    boxes, flip = table(*[(3, 4, 40, 50)] * len(files)), torch.ones(len(files), dtype=torch.bool)
    gathered = tarpeg.gather_tiles(files, boxes, 20, flip)
    names = ["NOT_GATHERED"] * 6 + ["EMPTY", "TRUNCATED", "TRUNCATED", "OK"]
    assert [Status(value).name for value in gathered.status.tolist()] == names
    images, status = tarpeg.decode_gathered(gathered)
    assert torch.equal(status, gathered.status) and not images[:-1].any()
    assert torch.equal(images[-1:], tarpeg.decode_batch(files[-1:], boxes[-1:], 20, flip[-1:])[0])
    too_large = tarpeg.gather_tiles([tiled], boxes[:1], 20, max_pixels=60 * 64 - 1)
    assert too_large.status.tolist() == [Status.TOO_LARGE]
    of_none = tarpeg.decode_gathered(tarpeg.gather_tiles([], boxes[:0], (5, 6)))
    assert of_none[0].shape == (0, 3, 5, 6) and of_none[1].shape == (0,)


def test_a_tile_that_is_damaged_is_found() -> None:
    rng = random.Random(5)
    for make in (tarpeg.tile_jpeg, tarpeg.pack_jpeg):
        file, found = make(pictures.tensor(pictures.jpeg("420", 200, 200))), 0
        for _ in range(40):
            broken = file.clone()
            broken[rng.randrange(len(file) // 3, len(file) - 70)] ^= 1 << rng.randrange(8)
            boxes = table((0, 0, 200, 200))
            expected, status = tarpeg.decode_batch([broken], boxes, 50)
            images, of_gathered = tarpeg.decode_gathered(tarpeg.gather_tiles([broken], boxes, 50))
            found += int(of_gathered[0] != 0)
            if of_gathered[0] == 0:
                assert status[0] == 0 and torch.equal(images, expected)
            else:  # libjpeg may decode a JPEG that is not regular
                assert not images.any() and (status[0] != 0 or make is tarpeg.tile_jpeg)
        assert found > 5


def some(channels: int = 3) -> tuple[Gathered, torch.Tensor]:
    """A little of everything, gathered, and decoded."""
    files = [file for kind in ("420", "gray", "411") for file in both(pictures.jpeg(kind, 50, 60), 16)]
    files.append(pictures.tensor(pictures.jpeg("rgb", 50, 60)))
    boxes = table(*[(7, 9, 33, 40)] * len(files))
    gathered = tarpeg.gather_tiles(files, boxes, (11, 9), channels=channels)
    return gathered, tarpeg.decode_gathered(gathered)[0]


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_tensor_is_never_followed(seed: int) -> None:
    """Under the sanitisers (make asan): no byte outside of the tensor and of the results is touched."""
    rng = random.Random(seed)
    gathered, expected = some(1 + 2 * (seed % 2))
    records = HEADER + IMAGE * len(gathered.status)
    decoded = 0
    for number in range(600):
        data = gathered.data.clone()
        # Most damage is in the header, in records and in the first pieces, where it leads astray.
        end = (HEADER, records, records + 200, len(data))[number % 4]
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(end)
            data[at] = rng.choice((0, 1, 127, 255, int(data[at]) ^ 1 << rng.randrange(8)))
        try:
            images, status = tarpeg.decode_gathered(gathered._replace(data=data), threads=1)
        except ValueError:
            continue
        decoded += 1
        assert images.shape == expected.shape and {*status.tolist()} <= {*Status}
    assert decoded > 300


def test_a_cut_tensor_or_one_of_another_version_is_refused() -> None:
    gathered, expected = some()
    for data in (gathered.data[:0], gathered.data[:63], gathered.data[:-1], gathered.data[:3000]):
        with pytest.raises(ValueError, match=r"gather_tiles of this version.*7 images of 11 x 9"):
            tarpeg.decode_gathered(gathered._replace(data=data))
    other = gathered.data.clone()
    other[8:12] = torch.tensor([*struct.pack("<I", 99)], dtype=torch.uint8)
    for changed in (
        gathered._replace(data=other),
        gathered._replace(size=(9, 11)),
        gathered._replace(channels=1),
        gathered._replace(status=gathered.status[1:]),
    ):
        with pytest.raises(ValueError, match="gather_tiles of this version"):
            tarpeg.decode_gathered(changed)
    assert torch.equal(tarpeg.decode_gathered(gathered)[0], expected)


def test_the_same_bytes_for_any_number_of_threads() -> None:
    files = [file for kind in KINDS for file in both(pictures.jpeg(kind, 61, 93), 16)]
    boxes = table(*[(3, 5, 40, 33)] * len(files))
    one, many = (tarpeg.gather_tiles(files, boxes, 16, threads=threads) for threads in (1, 5))
    assert torch.equal(one.data, many.data) and one.work == many.work > 0
    assert torch.equal(tarpeg.decode_gathered(one, threads=1)[0], tarpeg.decode_gathered(one, threads=5)[0])


def test_bad_arguments() -> None:
    file, boxes = tarpeg.tile_jpeg(pictures.tensor(pictures.jpeg("420", 60, 64))), table((0, 0, 60, 64))
    with pytest.raises(ValueError, match=r"boxes\[0\] \(0, 30, 60, 64\) is outside its image of 60 x 64"):
        tarpeg.gather_tiles([file], table((0, 30, 60, 64)), 8)
    with pytest.raises(ValueError, match=r"images\[0\]"):
        tarpeg.gather_tiles([file.float()], boxes, 8)
    with pytest.raises(ValueError, match=r"boxes must be int32 \[2, 4\]"):
        tarpeg.gather_tiles([file, file], boxes, 8)
    with pytest.raises(ValueError, match="channels=2"):
        tarpeg.gather_tiles([file], boxes, 8, channels=2)
    with pytest.raises(ValueError, match="threads=0"):
        tarpeg.decode_gathered(tarpeg.gather_tiles([file], boxes, 8), threads=0)
    with pytest.raises(ValueError, match=r"gathered.data must be .*uint8"):
        tarpeg.decode_gathered(tarpeg.gather_tiles([file], boxes, 8)._replace(data=file.float()))


def test_places_and_out_of_any_kind_are_taken_or_named() -> None:
    file, boxes = (
        tarpeg.tile_jpeg(pictures.tensor(pictures.jpeg("420", 60, 64))),
        table(*[(0, 0, 60, 64)] * 2),
    )
    transposed = torch.tensor([[0, 0, len(file)]] * 2).T
    assert tarpeg.gather_tiles([file], boxes, 8, places=transposed).status.tolist() == [0, 0]
    assert tarpeg.image_sizes([file], transposed).tolist() == [[60, 64]] * 2
    for call in (
        tarpeg.image_sizes,
        lambda files, places: tarpeg.gather_tiles(files, boxes, 8, places=places),
    ):
        with pytest.raises(ValueError, match=r"places=\[0, 1\] must be"):
            call([file], [0, 1])
    with pytest.raises(ValueError, match="out=3 must be"):
        tarpeg.gather_tiles([file] * 2, boxes, 8, out=3)
    gathered = tarpeg.gather_tiles([file], boxes[:1], 8)
    with pytest.raises(ValueError, match=r"^chunks has 1 after -1"):
        tarpeg.decode_gathered(gathered._replace(chunks=(1,)))
    with pytest.raises(ValueError, match=r"^data is not what gather_tiles"):
        tarpeg.decode_gathered(gathered._replace(size=(9, 9)))


def test_opcheck_and_one_graph() -> None:
    file, boxes = tarpeg.pack_jpeg(pictures.tensor(pictures.jpeg("420", 30, 40))), table((2, 3, 20, 30))
    method = ("bilinear", True, False, decode.MAX_PIXELS, 1, 3, 1 << 20)
    arguments = ([file], None, boxes, 9, 8, torch.tensor([True]), *method)
    torch.library.opcheck(torch.ops.tarpeg.gather_tiles.default, arguments)
    memory = torch.zeros(10_000, dtype=torch.uint8)
    places = torch.tensor([[0], [0], [len(file)]])
    for operator, more in (("gather_tiles", ()), ("gather_tiles_out", (memory,))):
        parts = ([file], places, *arguments[2:], *more)
        torch.library.opcheck(getattr(torch.ops.tarpeg, operator).default, parts)
    torch.library.opcheck(torch.ops.tarpeg.image_sizes.default, ([file], places))
    torch.library.opcheck(torch.ops.tarpeg.gather_tiles_out.default, (*arguments, memory))
    gathered = tarpeg.gather_tiles([file], boxes, (9, 8))
    torch.library.opcheck(torch.ops.tarpeg.decode_gathered.default, (gathered.data, 1, 9, 8, 3, 0, [0], 1))
    pictures.assert_one_graph(
        lambda data: tarpeg.decode_gathered(gathered._replace(data=data))[0], gathered.data
    )


def test_files_may_be_parts_of_larger_memory() -> None:
    files = [file for kind in ("420", "gray", "411") for file in both(pictures.jpeg(kind, 50, 60), 16)]
    files.insert(2, files[0][:0])
    memory = [torch.cat([files[0][:7], *files[:4]]), torch.cat([*files[4:], files[0][:9]])]
    sizes = torch.tensor(list(map(len, files)))
    begins = torch.cat([7 + sizes[:4].cumsum(0) - sizes[:4], sizes[4:].cumsum(0) - sizes[4:]])
    places = torch.stack([(torch.arange(len(files)) >= 4).long(), begins, sizes])
    boxes, order = table(*[(7, 9, 33, 40)] * len(files)), torch.tensor([3, 3, 6, 0, 2])
    assert torch.equal(tarpeg.image_sizes(memory, places), tarpeg.image_sizes(files))
    for chosen in (torch.arange(len(files)), order, order[:0]):
        given = [files[number] for number in chosen.tolist()]
        expected = tarpeg.gather_tiles(given, boxes[: len(given)], 20)
        found = tarpeg.gather_tiles(memory, boxes[: len(given)], 20, places=places[:, chosen].contiguous())
        assert torch.equal(found.data, expected.data) and torch.equal(found.status, expected.status)
    last = [1, len(memory[1]) - 5, 5]
    assert tarpeg.gather_tiles(memory, boxes[:1], 20, places=torch.tensor([last]).T.contiguous()).status == 2
    for wrong in ([2, 0, 1], [-1, 0, 0], [0, -1, 5], [0, 5, -1], [1, last[1], 6], [0, 2**62, 2**62]):
        with pytest.raises(ValueError, match=rf"places\[:, 1\] \({wrong[0]}, {wrong[1]}, {wrong[2]}\)"):
            tarpeg.gather_tiles(memory, boxes[:2], 20, places=torch.tensor([last, wrong]).T.contiguous())
        with pytest.raises(ValueError, match=r"places\[:, 1\]"):
            tarpeg.image_sizes(memory, torch.tensor([last, wrong]).T.contiguous())
    for shape in (places.int(), places[:2], places[0]):
        with pytest.raises(ValueError, match=r"places must be int64 \[3, n\]"):
            tarpeg.gather_tiles(memory, boxes, 20, places=shape)
    with pytest.raises(ValueError, match=r"boxes must be int32 \[7, 4\]"):
        tarpeg.gather_tiles(memory, boxes[:2], 20, places=places)


def places_of(gathered: Gathered) -> list[int]:
    """Where the memory of each image begins in that of its chunk."""
    count = len(gathered.status)
    records = gathered.data[HEADER : HEADER + IMAGE * count].view(count, IMAGE)
    return records[:, WORK : WORK + 8].contiguous().view(torch.int64).flatten().tolist()


def in_chunks(needs: list[int], budget: int) -> tuple[tuple[int, ...], list[int], int]:
    """First image of each chunk, the place of each image, and the bytes for the largest chunk."""
    firsts, places, end, largest = [0], [], 0, 0
    for number, need in enumerate(needs):
        if end and need and end + need > budget:
            firsts.append(number)
            end = 0
        places.append(end)
        end += need
        largest = max(largest, end)
    step = max(budget // 8 // 64 * 64, 64)
    return tuple(firsts), places, -(-largest // step) * step


def test_chunks_are_images_that_fit_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    files = [file for size in (20, 300, 90) for file in both(pictures.jpeg("420", size, 2 * size), 16)]
    files.insert(3, pictures.tensor(pictures.jpeg("rgb", 30, 40)))
    files = [rng.choice(files) for _ in range(20)]
    files[5] = files[0][:0]
    boxes = table(*(drawn_box(rng, h or 9, w or 9) for h, w in tarpeg.image_sizes(files).tolist()))
    expected = tarpeg.decode_gathered(tarpeg.gather_tiles(files, boxes, 24))
    monkeypatch.setattr(gather, "_BUDGET", 1)
    needs = [tarpeg.gather_tiles([file], box[None], 24).work for file, box in zip(files, boxes, strict=True)]
    assert needs.count(0) > 1 and max(needs) > 3 * sorted(needs)[10]
    found = {}
    for budget in (1, 64, max(needs) // 2, max(needs), sum(needs) // 3, sum(needs) - 1, sum(needs), 1 << 28):
        monkeypatch.setattr(gather, "_BUDGET", budget)
        one = tarpeg.gather_tiles(files, boxes, 24, threads=1)
        found[budget] = len(one.chunks)
        assert (one.chunks, places_of(one), one.work) == in_chunks(needs, budget)
        assert all(map(torch.equal, tarpeg.decode_gathered(one), expected))
        other = tarpeg.gather_tiles(files, boxes, 24, threads=3)
        assert torch.equal(one.data, other.data) and one.chunks == other.chunks
    assert found[1] == len(needs) - needs.count(0) and found[sum(needs)] == 1 == found[1 << 28]
    assert found[sum(needs) - 1] == 2 < found[max(needs)] < found[1]
    assert tarpeg.gather_tiles([], boxes[:0], 24).chunks == ()


def test_batch_after_batch_needs_memory_of_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's allocator keeps of one batch is used for the next."""
    rng = random.Random(7)
    files = both(pictures.jpeg("420", 300, 400), 32) * 4
    works, budget = set(), 1 << 20
    monkeypatch.setattr(gather, "_BUDGET", budget)
    for _ in range(100):
        count = rng.randint(2, len(files))
        boxes = table(*(drawn_box(rng, 300, 400) for _ in range(count)))
        works.add(tarpeg.gather_tiles(files[:count], boxes, 32, threads=1).work)
    assert len(works) > 2 and works <= {budget * eighths // 8 for eighths in range(1, 9)}


def test_chunks_of_other_images_are_refused() -> None:
    gathered, expected = some()
    for chunks in ((1,), (0, 0), (0, 7), (0, -1), (-1, 0), (0, 3, 2), (0, 3, 3, 5)):
        with pytest.raises(ValueError, match=rf"chunks has .* less than {len(gathered.status)}"):
            tarpeg.decode_gathered(gathered._replace(chunks=chunks))
    for chunks in ((), (0,), (0, 6), (0, 1, 2, 3)):
        assert torch.equal(tarpeg.decode_gathered(gathered._replace(chunks=chunks))[0], expected)
    none = tarpeg.gather_tiles([], table((0, 0, 1, 1))[:0], 8)
    with pytest.raises(ValueError, match="chunks has 0 after -1"):
        tarpeg.decode_gathered(none._replace(chunks=(0,)))


def test_memory_of_the_caller() -> None:
    files = [*both(pictures.jpeg("420", 90, 70), 16), pictures.tensor(pictures.jpeg("rgb", 50, 60))]
    boxes, options = table((3, 4, 50, 40), (0, 0, 90, 70), (1, 1, 9, 9)), {"interpolation": "lanczos"}
    expected = tarpeg.gather_tiles(files, boxes, 20, **options)
    needed = len(expected.data)
    memory = torch.full((needed + 40,), 7, dtype=torch.uint8)
    for room, is_used in ((needed + 40, True), (needed, True), (needed - 1, False), (64, False), (9, False)):
        found = tarpeg.gather_tiles(files, boxes, 20, out=memory[:room], **options)
        assert (found.data.data_ptr() == memory.data_ptr()) == is_used
        assert torch.equal(found.data, expected.data) and torch.equal(found.status, expected.status)
        assert found.work == expected.work
        assert found.chunks == expected.chunks == (0,)
    assert memory[needed:].unique().tolist() == [7]
    for wrong in (memory[1:], memory.float(), memory[::2]):
        with pytest.raises(ValueError, match="out must be"):
            tarpeg.gather_tiles(files, boxes, 20, out=wrong, **options)
