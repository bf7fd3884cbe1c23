"""decode_batch: crop, resize and flip, beside torchvision; a status for each image."""

from __future__ import annotations

import pytest
import tarpeg
import torch
from helpers import pictures, reference
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tarpeg.ops import decode
from torchvision.transforms import v2

METHODS = [("bilinear", True), ("bilinear", False), ("nearest", False), ("nearest-exact", False)]


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((a.int() - b.int()).abs().max())


def whole(height: int, width: int) -> torch.Tensor:
    return torch.tensor([[0, 0, height, width]], dtype=torch.int32)


@pytest.mark.parametrize("interpolation, antialias", METHODS)
@pytest.mark.parametrize(
    "size", [(24, 24), (7, 90), (90, 7), (1, 1), (75, 101), (200, 150), (3, 2), (38, 50)]
)
def test_resize_is_within_one_level(interpolation: str, antialias: bool, size: tuple[int, int]) -> None:
    files, boxes = [], []
    for index, kind in enumerate(pictures.KINDS):
        files.append(pictures.tensor(pictures.jpeg(kind, 75, 101, index)))
        boxes.append((index, 3 * index, 75 - 3 * index, 101 - 5 * index))
    table = torch.tensor(boxes, dtype=torch.int32)
    flip = torch.arange(len(files)) % 2 == 0
    options = {"interpolation": interpolation, "antialias": antialias}
    images, status = tarpeg.decode_batch(files, table, size, flip, fidelity="exact", **options)
    assert status.tolist() == [0] * len(files)
    expected = reference.decode_batch(files, table, size, flip, **options)
    assert images.shape == expected.shape
    assert largest_difference(images, expected) <= (1 if interpolation == "bilinear" else 0)


@settings(max_examples=200, deadline=None)
@given(
    st.data(),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from(METHODS),
)
def test_any_box_size_orientation_flip(
    data: st.DataObject,
    stored: tuple[int, int],
    size: tuple[int, int],
    orientation: int,
    mirror: bool,
    method: tuple[str, bool],
) -> None:
    image = Image.fromarray(pictures.pixels(*stored))
    jpeg = pictures.tensor(pictures.encoded(image, orientation=orientation))
    height, width = tarpeg.image_sizes([jpeg])[0].tolist()
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = (top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left)))
    boxes, flip = torch.tensor([box], dtype=torch.int32), torch.tensor([mirror])
    options = {"interpolation": method[0], "antialias": method[1]}
    images, _ = tarpeg.decode_batch([jpeg], boxes, size, flip, fidelity="exact", **options)
    expected = reference.decode_batch([jpeg], boxes, size, flip, **options)
    assert largest_difference(images, expected) <= (1 if method[0] == "bilinear" else 0)


def test_the_reference_is_torchvision_v2() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 75, 101))
    image = reference.decode(jpeg)
    for interpolation, antialias in METHODS:
        mode = v2.InterpolationMode(interpolation)
        expected = v2.functional.resized_crop(image, 5, 6, 50, 60, (24, 30), mode, antialias)
        boxes = torch.tensor([[5, 6, 50, 60]], dtype=torch.int32)
        twin = reference.decode_batch(
            [jpeg], boxes, (24, 30), interpolation=interpolation, antialias=antialias
        )[0]
        assert torch.equal(twin, expected)


def test_strong_reduction_stays_within_one_level() -> None:
    flat = pictures.encoded(Image.new("RGB", (3000, 1100), (200, 13, 255)), quality=95)
    busy = pictures.jpeg("444", 1100, 3000)
    for data in (flat, busy):
        jpeg = pictures.tensor(data)
        images, _ = tarpeg.decode_batch([jpeg], whole(1100, 3000), (1, 5), fidelity="exact")
        expected = reference.decode_batch([jpeg], whole(1100, 3000), (1, 5))
        assert largest_difference(images, expected) <= 1


def test_own_size_is_exact() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 75, 101))
    boxes = torch.tensor([[5, 6, 50, 60]], dtype=torch.int32)
    images, _ = tarpeg.decode_batch([jpeg], boxes, (50, 60))
    assert torch.equal(images[0], tarpeg.decode_crop(jpeg, 5, 6, 50, 60))
    mirrored, _ = tarpeg.decode_batch([jpeg], boxes, (50, 60), torch.tensor([True]))
    assert torch.equal(mirrored.flip(-1), images)


def test_layout_and_types() -> None:
    files = [pictures.tensor(pictures.jpeg("420", 30, 40))] * 3
    images, status = tarpeg.decode_batch(files, whole(30, 40).repeat(3, 1), 16)
    assert images.shape == (3, 3, 16, 16) and images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert status.dtype == torch.int32
    images, status = tarpeg.decode_batch([], torch.empty((0, 4), dtype=torch.int32), (5, 6))
    assert images.shape == (0, 3, 5, 6) and status.shape == (0,)


def test_a_failed_image_is_zero_and_has_a_status() -> None:
    good = pictures.jpeg("420", 64, 64)
    flipped = bytearray(good)
    flipped[len(good) // 2 : len(good) // 2 + 40] = b"\xff\xfe" * 20
    data = [good, b"", b"nothing", good[:-100], bytes(flipped), good]
    files = [pictures.tensor(item) for item in data]
    out = torch.full((6, 3, 20, 20), 7, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    images, status = tarpeg.decode_batch(files, whole(64, 64).repeat(6, 1), 20, out=out)
    names = [tarpeg.Status(value).name for value in status.tolist()]
    assert names[:4] == ["OK", "EMPTY", "NOT_AN_IMAGE", "TRUNCATED"] and names[5] == "OK"
    assert names[4] in ("CORRUPT", "TRUNCATED")
    assert images is out
    assert torch.equal(images[0], images[5]) and images[0].any()
    assert not images[1:5].any()


def test_out_equals_a_new_tensor() -> None:
    files = [pictures.tensor(pictures.jpeg("420", 64, 64, seed)) for seed in range(5)]
    boxes = torch.tensor([[3, 4, 40, 50]], dtype=torch.int32).repeat(5, 1)
    expected, _ = tarpeg.decode_batch(files, boxes, (17, 19))
    out = torch.empty((5, 3, 17, 19), dtype=torch.uint8, memory_format=torch.channels_last)
    tarpeg.decode_batch(files, boxes, (17, 19), out=out)
    assert torch.equal(out, expected)


def test_threads_do_not_change_a_byte() -> None:
    files = [pictures.tensor(pictures.jpeg("420", 60 + seed, 64, seed)) for seed in range(9)]
    boxes = torch.tensor([[seed, 4, 40, 50] for seed in range(9)], dtype=torch.int32)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(tarpeg.decode_batch(files, boxes, (33, 21))[0])
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


PORTABLE = """
import sys, torch, tarpeg
from helpers import pictures
files = [pictures.tensor(pictures.jpeg(kind, 60 + i, 64, i)) for i, kind in enumerate(pictures.KINDS)]
boxes = torch.tensor([[i, 4, 40 + i, 50] for i in range(len(files))], dtype=torch.int32)
flip = torch.arange(len(files)) % 2 == 0
for size in [(33, 21), (7, 5), (90, 91), (1, 1), (2, 3), (60, 4)]:
    for name, antialias in [("bilinear", True), ("bilinear", False), ("nearest", False)]:
        for fidelity in ("exact", "fast"):
            options = {"interpolation": name, "antialias": antialias, "fidelity": fidelity}
            images, _ = tarpeg.decode_batch(files, boxes, size, flip, **options)
            sys.stdout.buffer.write(images.contiguous().numpy().tobytes())
"""


def test_portable_code_gives_the_same_bytes() -> None:
    pictures.assert_portable_is_equal(PORTABLE)


def test_a_box_outside_names_its_row() -> None:
    files = [pictures.tensor(pictures.jpeg("420", 30, 40))] * 2
    boxes = torch.tensor([[0, 0, 30, 40], [0, 0, 31, 40]], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"boxes\[1\] \(0, 0, 31, 40\) is outside its image of 30 x 40"):
        tarpeg.decode_batch(files, boxes, 16)


def test_wrong_arguments_are_named() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 30, 40))
    box = whole(30, 40)
    wrong = [
        ("boxes", ([jpeg], box.long(), 8), {}),
        ("boxes", ([jpeg], box.repeat(2, 1), 8), {}),
        ("size", ([jpeg], box, 0), {}),
        ("size", ([jpeg], box, (1, 2, 3)), {}),
        ("flip", ([jpeg], box, 8, torch.tensor([1])), {}),
        ("interpolation", ([jpeg], box, 8), {"interpolation": "cubic"}),
        ("fidelity", ([jpeg], box, 8), {"fidelity": "best"}),
        ("mean", ([jpeg], box, 8), {"mean": [0.5, 0.5, 0.5]}),
        ("std", ([jpeg], box, 8), {"std": [1.0, 0.0, 1.0], "dtype": torch.float32}),
        ("mean", ([jpeg], box, 8), {"mean": [1.0, 2.0], "dtype": torch.float32}),
        ("dtype", ([jpeg], box, 8), {"dtype": torch.float64}),
        ("out", ([jpeg], box, 8), {"dtype": torch.float32, "out": torch.empty(1, 3, 8, 9)}),
        ("out", ([jpeg], box, 8), {"out": torch.empty(1, 3, 8, 8)}),
        ("out must be channels_last", ([jpeg], box, 8), {"out": torch.empty(1, 3, 8, 8, dtype=torch.uint8)}),
    ]
    for name, arguments, options in wrong:
        with pytest.raises(ValueError, match=name):
            tarpeg.decode_batch(*arguments, **options)


def test_the_operator_itself_checks_memory() -> None:
    jpeg, box = pictures.tensor(pictures.jpeg("420", 30, 40)), whole(30, 40)
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
    jpeg, flip = pictures.tensor(pictures.jpeg("420", 30, 40)), torch.tensor([True])
    arguments = ([jpeg], whole(30, 40), 16, 12, flip, "bilinear", True, True, decode.MAX_PIXELS, 2)
    torch.library.opcheck(torch.ops.tarpeg.decode_batch.default, arguments)
    out = torch.empty((1, 3, 16, 12), dtype=torch.uint8, memory_format=torch.channels_last)
    arguments = ([jpeg], whole(30, 40), None, "nearest", False, True, decode.MAX_PIXELS, None, out, 0)
    torch.library.opcheck(torch.ops.tarpeg.decode_batch_out.default, arguments)
    scale_shift = torch.full((6,), 0.5)
    arguments = (*arguments[:-3], scale_shift, out.float(), 0)
    torch.library.opcheck(torch.ops.tarpeg.decode_batch_out.default, arguments)


def test_compiles_into_one_graph() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 30, 40))

    def step(files: list[torch.Tensor], boxes: torch.Tensor) -> torch.Tensor:
        images, status = tarpeg.decode_batch(files, boxes, (8, 9))
        return images.float() * (status == 0).reshape(-1, 1, 1, 1)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled([jpeg], whole(30, 40)), step([jpeg], whole(30, 40)))


@pytest.mark.slow
def test_compiles_with_inductor() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 30, 40))

    def step(files: list[torch.Tensor], boxes: torch.Tensor) -> torch.Tensor:
        return tarpeg.decode_batch(files, boxes, (8, 9))[0].float() / 255

    compiled = torch.compile(step, fullgraph=True)
    assert torch.allclose(compiled([jpeg], whole(30, 40)), step([jpeg], whole(30, 40)))
