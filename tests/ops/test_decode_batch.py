"""decode_batch: equal to its reference and to torchvision; both fidelities; floating-point output."""

from __future__ import annotations

import itertools
import os
import random
import threading
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import tarpeg
import torch
from helpers import crafted, pictures, reference
from helpers.pictures import MEAN, ORDERS, STD, batch, resized
from hypothesis import given, settings, strategies as st
from PIL import Image
from tarpeg.datasets.synthetic import Photos, photograph
from tarpeg.ops import decode
from torch._subclasses import FakeTensorMode
from torchvision.transforms import v2

SMALL = pictures.tensor(pictures.jpeg("420", 30, 40))
METHODS = [
    *(("bilinear", True), ("bilinear", False), ("nearest", False), ("nearest-exact", False)),
    *(("bicubic", True), ("bicubic", False), ("lanczos", True), ("box", True)),
]


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((a.int() - b.int()).abs().max())


HOW: tuple[tarpeg.ops.Fidelity, ...] = ("fast", "exact")


def whole(height: int, width: int) -> torch.Tensor:
    return torch.tensor([[0, 0, height, width]], dtype=torch.int32)


@pytest.mark.parametrize("interpolation, antialias", METHODS)
@pytest.mark.parametrize(
    "size", [(24, 24), (7, 90), (90, 7), (1, 1), (75, 101), (200, 150), (3, 2), (38, 50)]
)
def test_resize_is_within_one_level(interpolation: str, antialias: bool, size: tuple[int, int]) -> None:
    files = [pictures.tensor(pictures.jpeg(kind, 75, 101, i)) for i, kind in enumerate(pictures.KINDS)]
    boxes = [(i, 3 * i, 75 - 3 * i, 101 - 5 * i) for i in range(len(files))]
    table, flip = torch.tensor(boxes, dtype=torch.int32), torch.arange(len(files)) % 2 == 0
    options = {"interpolation": interpolation, "antialias": antialias}
    images, status = tarpeg.decode_batch(files, table, size, flip, fidelity="exact", **options)
    assert status.tolist() == [0] * len(files) and status.dtype == torch.int32
    expected = reference.decode_batch(files, table, size, flip, **options)
    assert images.shape == expected.shape and images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    images_of_none, status_of_none = tarpeg.decode_batch([], table[:0], size, **options)
    assert images_of_none.shape == (0, 3, *size) and status_of_none.shape == (0,)
    assert largest_difference(images, expected) <= (0 if "nearest" in interpolation else 1)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 8), st.booleans(), st.sampled_from(METHODS))
def test_any_box_size_orientation_flip(
    data: st.DataObject, orientation: int, mirror: bool, method: tuple[str, bool]
) -> None:
    stored, size = (data.draw(st.tuples(*[st.integers(1, most)] * 2)) for most in (60, 70))
    image = Image.fromarray(pictures.pixels(*stored))
    jpeg = pictures.tensor(pictures.encoded(image, orientation=orientation))
    height, width = tarpeg.image_sizes([jpeg])[0].tolist()
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = (top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left)))
    boxes, flip = torch.tensor([box], dtype=torch.int32), torch.tensor([mirror])
    options = {"interpolation": method[0], "antialias": method[1]}
    images, _ = tarpeg.decode_batch([jpeg], boxes, size, flip, fidelity="exact", **options)
    expected = reference.decode_batch([jpeg], boxes, size, flip, **options)
    assert largest_difference(images, expected) <= (0 if "nearest" in method[0] else 1)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 8), st.sampled_from(METHODS))
def test_hard_edges(data: st.DataObject, orientation: int, method: tuple[str, bool]) -> None:
    """Checkerboards, lines and noise of 0 and 255, where filters with negative weights overshoot."""
    height, width = data.draw(st.tuples(st.integers(1, 50), st.integers(1, 50)))
    size = data.draw(st.tuples(st.integers(1, 60), st.integers(1, 60)))
    pitch = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 50)))
    y, x = np.mgrid[:height, :width]
    board = (y // pitch[0] + x // pitch[1]) % 2
    if data.draw(st.booleans()):
        board = np.random.default_rng([*pitch, height, width]).integers(0, 2, (height, width))
    image = Image.fromarray(np.uint8(board * 255)).convert("RGB")
    jpeg = pictures.tensor(pictures.encoded(image, quality=100, subsampling=0, orientation=orientation))
    box = whole(*tarpeg.image_sizes([jpeg])[0].tolist())
    options = {"interpolation": method[0], "antialias": method[1]}
    images, _ = tarpeg.decode_batch([jpeg], box, size, fidelity="exact", **options)
    assert largest_difference(images, reference.decode_batch([jpeg], box, size, **options)) <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_lines_that_are_copies_between_enlarged_ones(orientation: int) -> None:
    """At the ratio 3 / 5 every fifth line has the weight of one sample only, mirrored or not."""
    pixels = np.random.default_rng(0).integers(0, 2, (60, 60, 1)).repeat(3, 2) * 255
    image = Image.fromarray(pixels.astype(np.uint8))
    jpeg = pictures.tensor(pictures.encoded(image, quality=100, subsampling=0, orientation=orientation))
    for interpolation, antialias in METHODS:
        options = {"interpolation": interpolation, "antialias": antialias}
        images, _ = tarpeg.decode_batch([jpeg], whole(60, 60), (100, 100), fidelity="exact", **options)
        expected = reference.decode_batch([jpeg], whole(60, 60), (100, 100), **options)
        assert largest_difference(images, expected) <= 1, interpolation


def test_the_reference_is_torchvision_v2() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 75, 101))
    image = reference.decode(jpeg)
    for interpolation, antialias in METHODS:
        mode, boxes = v2.InterpolationMode(interpolation), torch.tensor([[5, 6, 50, 60]], dtype=torch.int32)
        is_pillows = interpolation in ("lanczos", "box")
        source = v2.functional.to_pil_image(image) if is_pillows else image
        expected = v2.functional.resized_crop(source, 5, 6, 50, 60, (24, 30), mode, antialias)
        expected = v2.functional.pil_to_tensor(expected) if is_pillows else expected
        options = {"interpolation": interpolation, "antialias": antialias}
        assert torch.equal(reference.decode_batch([jpeg], boxes, (24, 30), **options)[0], expected)


def test_strong_reduction_stays_within_one_level() -> None:
    flat = pictures.encoded(Image.new("RGB", (3000, 1100), (200, 13, 255)), quality=95)
    busy = pictures.jpeg("444", 1100, 3000)
    for data in (flat, busy):
        jpeg = pictures.tensor(data)
        for name in ("bilinear", "lanczos"):
            image = resized(jpeg, (0, 0, 1100, 3000), (1, 5), fidelity="exact", interpolation=name)
            expected = reference.decode_batch([jpeg], whole(1100, 3000), (1, 5), interpolation=name)[0]
            assert largest_difference(image, expected) <= 1, name


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_failed_image_is_zero_and_has_a_status(dtype: torch.dtype) -> None:
    good = pictures.jpeg("420", 64, 64)
    flipped = bytearray(good)
    flipped[len(good) // 2 : len(good) // 2 + 40] = b"\xff\xfe" * 20
    data = [good, b"", b"nothing", good[:-100], bytes(flipped), good]
    files = [pictures.tensor(item) for item in data]
    out = torch.full((6, 3, 20, 20), 7, dtype=dtype).contiguous(memory_format=torch.channels_last)
    options = {"out": out, "dtype": dtype, **({} if dtype == torch.uint8 else {"mean": MEAN, "std": STD})}
    images, status = tarpeg.decode_batch(files, whole(64, 64).repeat(6, 1), 20, **options)
    names = [tarpeg.Status(value).name for value in status.tolist()]
    assert names[:4] == ["OK", "EMPTY", "NOT_AN_IMAGE", "TRUNCATED"] and names[5] == "OK"
    assert names[4] in ("CORRUPT", "TRUNCATED")
    assert images is out
    assert torch.equal(images[0], images[5]) and images[0].any()
    assert not images[1:5].any()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_mirrored_crop_of_its_own_size_is_the_crop_backwards(channels: Literal[1, 3]) -> None:
    kinds = [
        pictures.jpeg("420", 40, 150),
        pictures.jpeg("gray", 40, 150),
        pictures.jpeg("progressive", 40, 150),
    ]
    plain = [pictures.tensor(kind) for kind in kinds]
    files = [*plain, tarpeg.tile_jpeg(plain[0]), tarpeg.pack_jpeg(plain[0])]
    for width in range(1, 151):
        boxes = torch.tensor([[7, 150 - width, 3, width]] * len(files), dtype=torch.int32)
        stored, mirrored = (
            tarpeg.decode_batch(files, boxes, (3, width), torch.full((len(files),), flip), channels=channels)[
                0
            ]
            for flip in (False, True)
        )
        assert torch.equal(stored.flip(-1), mirrored), width


def test_portable_code_gives_the_same_bytes() -> None:
    pictures.assert_portable_is_equal(
        f"METHODS = {METHODS}"
        + """
files = [tensor(jpeg(kind, 60 + i, 64, i)) for i, kind in enumerate(pictures.KINDS)]
boxes = torch.tensor([[i, 4, 40 + i, 50] for i in range(len(files))], dtype=torch.int32)
flip = torch.arange(len(files)) % 2 == 0
for size in [(33, 21), (7, 5), (90, 91), (1, 1), (2, 3), (60, 4)]:
    for name, antialias in METHODS:
        for fidelity in ("exact", "fast"):
            options = {"interpolation": name, "antialias": antialias, "fidelity": fidelity}
            write(tarpeg.decode_batch(files, boxes, size, flip, **options)[0])
files, boxes = files[:5], torch.tensor([[i, 4, 40, 50] for i in range(5)], dtype=torch.int32)
stds = (pictures.STD, (1e-4, 1.0, 3e4), (1e-6, 1e3, 1e5), (1e-44, 1.0, 1.0))
for dtype, std in product((torch.float32, torch.float16, torch.bfloat16), stds):
    options = {"mean": (0.5, 0.1, 0.2), "std": std, "dtype": dtype}
    for size in ((33, 21), (3, 100)):
        write(tarpeg.decode_batch(files, boxes, size, **options)[0])
for width in range(1, 70):
    file = tensor(b"P6\\n%d 30\\n255\\n" % width + pictures.pixels(30, width).tobytes())
    write(resized(file, (3, 0, 27, width), (13, 17)))
for height, width in ((90, 1201), (40, 2000), (5, 3000)):  # resampled where they lie, but for their ends
    file = tensor(b"P6\\n%d %d\\n255\\n" % (width, height) + pictures.pixels(height, width).tobytes())
    inner = (height // 3, 99, height - height // 3, width - 99)
    for box in ((0, 0, height, width), inner, (0, 0, 4, width - 3)):
        for size in ((9, 31), (64, 50), (3, 700)):
            write(resized(file, box, size))
def add(file, height, width):
    for box in ((0, 0, height, width), (height // 3, width // 4, height // 2, width // 2)):
        write(tarpeg.decode_crop(file, *box))
for kind in pictures.KINDS:
    for height, width in ((75, 101), (16, 5), (33, 64)):
        file = tensor(jpeg(kind, height, width))
        add(file, height, width)
        add(tarpeg.tile_jpeg(file, 16), height, width)
for file in (tensor(jpeg(kind, 40, 150)) for kind in ("420", "422", "444")):
    for width in range(1, 140, 3):
        write(tarpeg.decode_crop(file, 1, width % 7, 33, width))
for width in range(1, 151):
    write(resized(file, (7, 150 - width, 3, width), (3, width), flip=torch.tensor([True])))
for kind, size in product(("420", "444"), [(60, 50), (62, 23), (64, 110), (62, 195), (65, 222)]):
    for flip in (False, True):  # columns of every scale at once
        write(resized(tensor(jpeg(kind, 64, 200)), (1, 3, 62, 195), size, flip=torch.tensor([flip])))
for strength, quantiser in product((40, 300, 3000), (1, 16, 255, 4000)):
    source = Jpeg(50, 70, tables=((quantiser,) * 64,) * 2, frame=0xC1, interval=1)
    add(tensor(source.noise(strength=strength).bytes()), 50, 70)
for kind in ("420", "444", "422", "gray", "progressive"):
    for seed, (height, width) in enumerate([(64, 64), (97, 121), (50, 33)]):
        file = tensor(jpeg(kind, height, width, seed))
        for size in [(height // 3, width // 3), (height // 8, width // 7), (2, 1)]:
            write(resized(file, (1, 2, height - 3, width - 2), size))
for quantiser, strength in product((1, 16, 255), (30, 3000)):
    source = Jpeg(50, 70, tables=((quantiser,) * 64,) * 2).noise(strength=strength)
    write(resized(tensor(source.bytes()), (0, 0, 50, 70), (25, 35)))
"""
    )


GOOD = {"jpegs": [SMALL], "boxes": whole(30, 40), "size": 8}


def test_errors_contain_the_name_of_the_argument() -> None:
    second_row = {"jpegs": [SMALL] * 2, "boxes": torch.cat((whole(30, 40), whole(31, 40)))}
    for name, change in [
        (r"boxes\[1\] \(0, 0, 31, 40\) is outside its image of 30 x 40", second_row),
        ("size", {"size": 0}),
        ("size", {"size": (1, 2, 3)}),
        ("interpolation='cubic' must be one of 'bilinear', 'bicubic', ", {"interpolation": "cubic"}),
        ("antialias=False .*'lanczos'", {"interpolation": "lanczos", "antialias": False}),
        ("antialias=False .*'area'", {"interpolation": "area", "antialias": False}),
        ("fidelity", {"fidelity": "best"}),
        ("mean", {"mean": [0.5, 0.5, 0.5]}),
        ("std", {"std": [1.0, 0.0, 1.0], "dtype": torch.float32}),
        ("mean", {"mean": [1.0, 2.0], "dtype": torch.float32}),
        ("dtype", {"dtype": torch.float64}),
        ("out", {"dtype": torch.float32, "out": torch.empty(1, 3, 8, 9)}),
        ("out", {"out": torch.empty(1, 3, 8, 8)}),
        ("out must be channels_last", {"out": pictures.noise(1, 3, 8, 8)}),
    ]:
        with pytest.raises(ValueError, match=name):
            tarpeg.decode_batch(**GOOD | change)


def test_area_is_box() -> None:
    arguments = GOOD | {"size": 11}
    area, box = (tarpeg.decode_batch(**arguments, interpolation=name)[0] for name in ("area", "box"))
    assert torch.equal(area, box)


def test_operator_checks_memory() -> None:
    jpeg, box = SMALL, whole(30, 40)
    operator = torch.ops.tarpeg.decode_batch
    for arguments in [
        ([jpeg.float()], box, 8, 8, None),
        ([jpeg[::2]], box, 8, 8, None),
        ([jpeg], box.long(), 8, 8, None),
        ([jpeg], box.t(), 8, 8, None),
        ([jpeg], box, 0, 8, None),
        ([jpeg], box, 8, 2**40, None),
        ([jpeg], box, 8, 8, torch.zeros(2, dtype=torch.bool)),
    ]:
        with pytest.raises(RuntimeError, match="must be"):
            operator(*arguments, "bilinear", True, True, decode.MAX_PIXELS, 0)


def test_opcheck() -> None:
    jpeg, flip = SMALL, torch.tensor([True])
    arguments = ([jpeg], whole(30, 40), 16, 12, flip, "bilinear", True, True, decode.MAX_PIXELS, 2)
    torch.library.opcheck(torch.ops.tarpeg.decode_batch.default, arguments)
    out = torch.empty((1, 3, 16, 12), dtype=torch.uint8, memory_format=torch.channels_last)
    arguments = ([jpeg], whole(30, 40), None, "nearest", False, True, decode.MAX_PIXELS, None, out, 0)
    torch.library.opcheck(torch.ops.tarpeg.decode_batch_out.default, arguments)
    arguments = (*arguments[:-3], torch.full((6,), 0.5), out.float(), 0)
    torch.library.opcheck(torch.ops.tarpeg.decode_batch_out.default, arguments)
    outs = [out, torch.empty((1, 3, 5, 6), dtype=torch.uint8, memory_format=torch.channels_last)]
    places = torch.cat([whole(30, 40)] * 2)
    arguments = ([jpeg, jpeg], places, None, "bilinear", True, True, decode.MAX_PIXELS, None, outs, 0)
    schema = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.tarpeg.decode_sizes_out.default, arguments, test_utils=schema)


def damaged(jpeg: torch.Tensor, seed: int) -> torch.Tensor:
    """The file with some bytes of its scan changed."""
    rng, data = np.random.default_rng(seed), jpeg.numpy().copy()
    places = rng.integers(len(data) * 2 // 3, len(data) - 2, 3)
    data[places] = rng.integers(0, 254, 3)
    return torch.from_numpy(data)


@pytest.mark.sweep
@pytest.mark.parametrize("interpolation, antialias", [METHODS[0], METHODS[2], METHODS[4]])
@pytest.mark.parametrize("channels", [3, 1])
def test_boxes_of_one_file_are_decoded_as_each_alone(
    interpolation: decode.Interpolation, antialias: bool, channels: Literal[1, 3]
) -> None:
    files = [pictures.tensor(pictures.jpeg(kind, 150, 203, i)) for i, kind in enumerate(pictures.KINDS)]
    files += [tarpeg.tile_jpeg(file, 32) for file in files[:5]]
    files += [damaged(file, seed) for seed in range(4) for file in files[-5:]]
    files.append(pictures.tensor(pictures.picture("PPM", 3, size=(150, 203))))
    crop, rng = tarpeg.RandomResizedCrop(1, scale=(0.01, 1.0)), np.random.default_rng(5)
    count = 7
    each = [
        crop.boxes(tarpeg.image_sizes([file]).repeat(count, 1).numpy(), rng.random((count, crop.draws)))
        for file in files
    ]
    boxes = torch.from_numpy(np.concatenate(each))
    flip = torch.from_numpy(rng.random(len(boxes)) < 0.5)
    together = [file for file in files for _ in range(count)]
    alone = [file.clone() for file in together]
    for size in (90, (12, 17), (30, 31)):  # of reductions 1 to 8
        for threads in (1, 3):
            method = {"interpolation": interpolation, "antialias": antialias, "channels": channels}
            expected, status = tarpeg.decode_batch(alone, boxes, size, flip, threads=1, **method)
            images, found = tarpeg.decode_batch(together, boxes, size, flip, threads=threads, **method)
            assert torch.equal(found, status) and torch.equal(images, expected)
    assert 0 < int((status != 0).sum()) < len(status) / 3, "some boxes are over damaged data"


def masked(files: list[torch.Tensor], boxes: torch.Tensor) -> torch.Tensor:
    images, status = tarpeg.decode_batch(files, boxes, (8, 9))
    return images.float() * (status == 0).reshape(-1, 1, 1, 1)


def normalised(files: list[torch.Tensor], boxes: torch.Tensor) -> torch.Tensor:
    return tarpeg.decode_batch(files, boxes, 8, mean=MEAN, std=STD, dtype=torch.float32)[0] * 2


def test_compiles_into_one_graph() -> None:
    for function in (masked, normalised):
        pictures.assert_one_graph(function, *batch(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": [[0, 0, 10, 10]]}, r"boxes=\[\[0, 0, 10, 10\]\] must be an int32 tensor \[1, 4\]"),
        ({"boxes": torch.zeros((1, 4), dtype=torch.int64)}, r"boxes must be int32 \[1, 4\]"),
        ({"boxes": torch.zeros((2, 4), dtype=torch.int32)}, r"boxes must be int32 \[1, 4\]"),
        ({"flip": [True]}, r"flip=\[True\] must be a bool tensor \[1\], or None"),
        ({"flip": torch.zeros(1)}, r"flip must be bool \[1\]"),
        ({"jpegs": [torch.zeros(4)]}, r"jpegs\[0\] must be a file's bytes"),
    ],
)
def test_fake_tensors_are_checked_like_real_ones(change: dict[str, object], message: str) -> None:
    arguments = GOOD | change
    with pytest.raises(ValueError, match=message):
        tarpeg.decode_batch(**arguments)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ValueError, match=message):
        tarpeg.decode_batch(**arguments)


@pytest.mark.slow
def test_compiles_with_inductor() -> None:
    files, boxes = batch(1)
    assert torch.allclose(torch.compile(masked, fullgraph=True)(files, boxes), masked(files, boxes))


# fidelity="fast": the difference from torchvision v2; equal for a file and its tiled copy.
def middle(files: list[torch.Tensor], share: float) -> torch.Tensor:
    """A box around the middle of each image, `share` of its sides."""
    boxes = []
    for height, width in tarpeg.image_sizes(files).tolist():
        box = int(height * share), int(width * share)
        boxes.append(((height - box[0]) // 2, (width - box[1]) // 3, *box))
    return torch.tensor(boxes, dtype=torch.int32)


def test_the_mean_difference_over_photographs_is_small() -> None:
    files = [pictures.tensor(photograph(Photos(size="imagenet"), index).jpeg) for index in range(12)]
    boxes = middle(files, 0.9)
    cases = [("bilinear", size) for size in (120, 64, 40, 20)]
    cases += itertools.product(("bicubic", "lanczos", "box"), (84, 33))
    for name, size in cases:
        images, _ = tarpeg.decode_batch(files, boxes, size, interpolation=name)
        expected = reference.decode_batch(files, boxes, (size, size), interpolation=name)
        assert (images.int() - expected.int()).abs().float().mean() <= 0.6, (name, size)
    boxes = middle(files, 0.3)  # below twice the size: whole samples, and colours that are clamped once
    for name, size in [("bilinear", 70), ("bilinear", 180), ("bilinear", 100), ("bicubic", 100)]:
        fast, exact = (
            tarpeg.decode_batch(files, boxes, size, fidelity=how, interpolation=name)[0] for how in HOW
        )
        assert name == "bilinear" or torch.equal(fast, exact)
        assert (fast.int() - exact.int()).abs().float().mean() <= 0.35, (name, size)


PLANES = [sampling for sampling in crafted.SAMPLINGS if len(sampling) == 3 and 3 not in sum(sampling, ())]


@pytest.mark.sweep
@pytest.mark.parametrize("sampling", PLANES, ids=str)
def test_planes_are_resampled_as_by_the_reference(sampling: tuple[tuple[int, int], ...]) -> None:
    draw = random.Random(str(sampling))
    for height, width in ((50, 67), (24, 5), (3, 40), (65, 64)):
        source = crafted.Jpeg(height, width, sampling, interval=draw.choice((0, 1))).noise(height, 60)
        planes = [reference.decode(pictures.tensor(source.component(i).bytes()))[0].numpy() for i in range(3)]
        across, down = (max(factors) for factors in zip(*sampling, strict=True))
        times = [(down // v, across // h) for h, v in sampling]
        for _ in range(4):
            box = [draw.randint(1, height), draw.randint(1, width)]
            box = [draw.randint(0, height - box[0]), draw.randint(0, width - box[1]), *box]
            size = draw.randint(box[2] // 15 + 1, 70), draw.randint(box[3] // 2 + 1, 70)
            if size == tuple(box[2:]):
                continue
            expected = reference.resize_planes(planes, times, box, size)
            image = resized(pictures.tensor(source.bytes()), box, size)
            assert torch.equal(image, expected), (box, size)


def test_rows_below_the_decoded_ones_are_not_read() -> None:
    """The sanitisers see it (make asan): the planes of a new thread are no larger than they must be."""
    source = pictures.tensor(pictures.jpeg("420", 100, 600))
    found = []
    work = threading.Thread(target=lambda: found.append(resized(source, (1, 0, 30, 600), (25, 500))))
    work.start()
    work.join()
    assert torch.equal(found[0], resized(source, (1, 0, 30, 600), (25, 500)))


def test_a_box_much_taller_than_its_size_is_resampled_as_rgb() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 640, 20))
    fast, exact = (resized(jpeg, (0, 0, 640, 20), (40, 20), fidelity=how) for how in HOW)
    assert torch.equal(fast, exact)
    assert not torch.equal(resized(jpeg, (0, 0, 639, 20), (40, 20)), exact)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "ratios"), [("bicubic", (3, 8, 24)), ("lanczos", (3, 8, 24)), ("box", (4, 10, 30))]
)
def test_the_mean_difference_where_means_begin(name: str, ratios: tuple[int, ...]) -> None:
    files = [pictures.tensor(photograph(Photos(size="imagenet"), index).jpeg) for index in range(12)]
    options = {"interpolation": name}
    for ratio in ratios:
        table = torch.tensor([[5, 9, 10 * ratio, 10 * ratio]] * 12, dtype=torch.int32)
        fast, exact = (tarpeg.decode_batch(files, table, 10, fidelity=how, **options)[0] for how in HOW)
        assert (fast.int() - exact.int()).abs().float().mean() <= 0.6
        assert not torch.equal(fast, exact)
        table[:, 2] -= 1  # below the ratio it is exact, or has smaller means
        fast = tarpeg.decode_batch(files, table, 10, **options)[0]
        expected = reference.decode_batch(files, table, (10, 10), **options)
        assert (fast.int() - expected.int()).abs().float().mean() <= 0.3


@pytest.mark.sweep
@pytest.mark.parametrize("fidelity", ["fast", "exact"])
@pytest.mark.parametrize("kind", pictures.KINDS)
def test_a_file_and_its_tiled_and_packed_copies_give_the_same_pixels(
    kind: str, fidelity: tarpeg.ops.Fidelity
) -> None:
    for seed, (height, width) in enumerate([(75, 101), (160, 128), (97, 210), (65, 64)]):
        source = pictures.tensor(pictures.jpeg(kind, height, width, seed))
        files = [source, tarpeg.tile_jpeg(source, 16), tarpeg.pack_jpeg(source, 16)]
        boxes = [(1, 3, height - 2, width - 8), (0, 0, height, width)]
        for box, size in itertools.product(boxes, [(30, 31), (15, 14), (7, 8), (3, 2), (50, 60)]):
            for name in ("bilinear", "bicubic", "lanczos", "box"):
                options = {"fidelity": fidelity, "interpolation": name}
                first, *others = (resized(file, box, size, **options) for file in files)
                assert all(torch.equal(first, other) for other in others), (height, width, size, name)


def test_a_flat_picture_stays_flat() -> None:
    rgb = torch.tensor([200, 60, 90], dtype=torch.uint8).repeat(123, 245, 1).numpy()
    for kind in ("420", "411", "440", "gray", "progressive"):
        source = pictures.tensor(pictures.jpeg(kind, 123, 245, rgb=rgb))
        expected = reference.decode(source)[:, 60, 100]
        sizes = [(200, 300), (61, 122), (30, 61), (15, 30), (1, 1)]
        for name, size in itertools.product(("bilinear", "bicubic", "lanczos", "box"), sizes):
            image = resized(source, (0, 0, 123, 245), size, interpolation=name)
            assert torch.equal(image, expected[:, None, None].expand_as(image)), (kind, size, name)


@pytest.mark.parametrize("sampling", [(3, 1), (1, 3), (3, 2), (4, 1), (1, 4), (2, 4)])
def test_unusual_samplings_are_reduced_within_their_memory(sampling: tuple[int, int]) -> None:
    source = pictures.tensor(crafted.Jpeg(96, 400, (sampling, (1, 1), (1, 1)), ids=(1, 2, 3)).noise().bytes())
    for size in [(48, 200), (40, 90), (16, 60), (4, 18)]:
        fast, exact = (resized(source, (0, 0, 96, 400), size, fidelity=how) for how in ("fast", "exact"))
        assert (fast.int() - exact.int()).abs().float().mean() < 12  # noise; wrong planes differ by 40
        if 3 in sampling:  # decoded by libjpeg, not reduced
            assert torch.equal(fast, exact)


# decode_batch with mean, std and a floating-point dtype: the uint8 result, normalised.
DTYPES = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}


@pytest.mark.parametrize("order", ORDERS)
def test_an_output_larger_than_the_caches_has_the_same_numbers(order: torch.memory_format) -> None:
    files, boxes = batch(1)
    for size in ((1200, 1216), (1199, 1217)):  # with and without rows that vectors can be streamed to
        out = torch.empty(1, 3, *size).contiguous(memory_format=order)
        assert out.nbytes > 16 << 20
        tarpeg.decode_batch(files, boxes, size, mean=MEAN, std=STD, dtype=out.dtype, out=out)
        scale = 1 / (255 * torch.tensor(STD))
        expected = tarpeg.decode_batch(files, boxes, size)[0].float().mul_(scale[:, None, None])
        expected -= (torch.tensor(MEAN) / torch.tensor(STD))[:, None, None]
        assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(33, 21), (1, 1), (8, 8), (40, 50)])
def test_floating_point_is_the_normalised_uint8_result(dtype: torch.dtype, size: tuple[int, int]) -> None:
    files, boxes = batch()
    flip = torch.tensor([True, False, True, False, True])
    plain, _ = tarpeg.decode_batch(files, boxes, size, flip)
    for mean, std, options in ((MEAN, STD, {"mean": MEAN, "std": STD}), ((0, 0, 0), (1, 1, 1), {})):
        images, status = tarpeg.decode_batch(files, boxes, size, flip, dtype=dtype, **options)
        assert images.dtype == dtype and status.tolist() == [0] * 5
        assert images.is_contiguous(memory_format=torch.channels_last)
        expected = reference.normalise(plain, mean, std)
        # Half a unit in the last place of the type, and the error of float32 arithmetic.
        assert torch.all((images.double() - expected).abs() <= DTYPES[dtype] * expected.abs() + 2e-6)
        scale = torch.tensor([1 / (255 * part) for part in std]).reshape(1, 3, 1, 1)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).reshape(1, 3, 1, 1)
        assert torch.equal(images, (plain.float() * scale + shift).to(dtype)), "rounded once"


@pytest.mark.parametrize("dtype", [torch.uint8, *DTYPES])
def test_out_is_written_in_its_order(dtype: torch.dtype) -> None:
    files, boxes = batch()
    options = {"dtype": dtype} if dtype == torch.uint8 else {"dtype": dtype, "mean": MEAN, "std": STD}
    expected, _ = tarpeg.decode_batch(files, boxes, (17, 19), **options)
    for order in ORDERS[1:] if dtype == torch.uint8 else ORDERS:
        out = torch.full((5, 3, 17, 19), 9, dtype=dtype).contiguous(memory_format=order)
        images, _ = tarpeg.decode_batch(files, boxes, (17, 19), out=out, **options)
        assert images is out
        assert torch.equal(images, expected)


def test_a_thread_keeps_little_memory_after_an_image() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

    data = pictures.jpeg("420", 16, 16)
    end = data.rindex(b"\xff\xd9")
    long = pictures.tensor(data[:end] + bytes(96 << 20) + data[end:])  # a small image in a long segment
    large = torch.ones(1, 3, 4096, 4096)
    tarpeg.decode_batch([pictures.tensor(data)], whole(16, 16), 16, threads=1)
    before = resident()
    tarpeg.decode_batch([long], whole(16, 16), 16, threads=1)
    tarpeg.decode_batch([pictures.tensor(data)], whole(16, 16), 4096, dtype=large.dtype, out=large, threads=1)
    assert resident() - before < 32, "MiB; the two images need 96 and 48"


def test_the_profiler_shows_the_operators_by_name() -> None:
    files, boxes = batch(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        tarpeg.decode_batch(files, boxes, 8)
        tarpeg.decode_crop(files[0], 0, 0, 8, 8)
        tarpeg.tile_jpeg(files[0])
    names = {event.key for event in profile.key_averages()}
    assert {"tarpeg::decode_batch", "tarpeg::decode_crop", "tarpeg::tile_jpeg"} <= names


def test_the_default_device_of_torch_does_not_matter() -> None:
    data, box = pictures.jpeg("420", 40, 60), torch.tensor([[0, 0, 40, 60]], dtype=torch.int32)
    options = {"dtype": torch.float32, "mean": (0.5,) * 3, "std": (0.2,) * 3}
    jpegs = [pictures.tensor(data)]
    expected, _ = tarpeg.decode_batch(jpegs, box, 16, **options)
    with torch.device("meta"):
        assert torch.equal(tarpeg.decode_batch(jpegs, box, 16, **options)[0], expected)
        assert tarpeg.image_sizes([]).device.type == "cpu"
        assert tarpeg.Tiled().encode(data, "jpg").data
