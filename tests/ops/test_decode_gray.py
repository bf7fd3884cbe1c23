"""decode_batch(channels=1): the luma plane as Pillow's draft("L") reads it, resized like a channel of RGB."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tarpeg
import torch
from helpers import crafted, pictures, reference
from helpers.pictures import resized
from PIL import Image
from tarpeg.datasets.synthetic import Photos, photograph
from tarpeg.ops import decode

METHODS = [("bilinear", True), ("bilinear", False), ("nearest", False), ("nearest-exact", False)]
METHODS += [("bicubic", True), ("bicubic", False), ("lanczos", True), ("box", True)]
SIZES = [(75, 101), (16, 5), (33, 64), (97, 130)]
SAMPLINGS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (2, 4), (3, 1), (3, 2)]


def boxes_of(height: int, width: int) -> list[tuple[int, int, int, int]]:
    middle = (height // 3, width // 4, max(1, height // 2), max(1, width // 2))
    return [(0, 0, height, width), middle, (height - 1, width - 1, 1, 1), (1, 2, height - 2, width - 3)]


def check_crops(file: torch.Tensor) -> None:
    """Crops of the file, also mirrored, equal Pillow's luma."""
    whole = reference.decode_gray(file)
    for top, left, height, width in boxes_of(*whole.shape[1:]):
        expected = whole[:, top : top + height, left : left + width]
        table = torch.tensor([(top, left, height, width)] * 2, dtype=torch.int32)
        flip = torch.tensor([False, True])
        images, status = tarpeg.decode_batch([file] * 2, table, (height, width), flip, channels=1)
        assert not status.any() and images.shape == (2, 1, height, width)
        assert torch.equal(images, torch.stack((expected, expected.flip(-1)))), (top, left, height, width)


@pytest.mark.parametrize("kind", pictures.KINDS)
def test_crops_are_the_luma_of_pillow(kind: str) -> None:
    for seed, (height, width) in enumerate(SIZES):
        file = pictures.tensor(pictures.jpeg(kind, height, width, seed))
        check_crops(file)
        check_crops(tarpeg.tile_jpeg(file, 16))


@pytest.mark.parametrize("luma, chroma", [*itertools.product(SAMPLINGS, [(1, 1)]), ((1, 1), (2, 2))])
def test_unusual_samplings(luma: tuple[int, int], chroma: tuple[int, int]) -> None:
    source = crafted.Jpeg(90, 130, (luma, chroma, chroma), ids=(1, 2, 3)).noise(strength=30)
    file = pictures.tensor(source.bytes())
    check_crops(file)
    for size in [(45, 65), (20, 30), (11, 16), (5, 6)]:  # reduced
        fast, exact = (
            resized(file, (0, 0, 90, 130), size, channels=1, fidelity=how) for how in ("fast", "exact")
        )
        assert (fast.int() - exact.int()).abs().float().mean() < 3
        assert torch.equal(resized(tarpeg.tile_jpeg(file), (0, 0, 90, 130), size, channels=1), fast)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int) -> None:
    image = Image.fromarray(pictures.pixels(50, 70))
    for options in ({}, {"progressive": True}, {"keep_rgb": True}):
        check_crops(pictures.tensor(pictures.encoded(image, orientation=orientation, **options)))


def test_a_ppm_is_pillows_gray() -> None:
    for width in (4, 7, 40):
        rgb = pictures.pixels(30, width)
        check_crops(pictures.tensor(b"P6\n%d 30\n255\n" % width + rgb.tobytes()))


@pytest.mark.sweep
@pytest.mark.parametrize("fidelity", ["fast", "exact"])
@pytest.mark.parametrize("interpolation, antialias", METHODS)
def test_resized_gray_is_a_channel_of_rgb(
    interpolation: str, antialias: bool, fidelity: tarpeg.ops.Fidelity
) -> None:
    options = {"interpolation": interpolation, "antialias": antialias, "fidelity": fidelity}
    for kind in ("gray", "gray22", "420", "progressive", "cmyk"):
        source = pictures.tensor(pictures.jpeg(kind, 150, 203))
        files = [source, tarpeg.tile_jpeg(source, 16)]
        luma = pictures.saved(Image.fromarray(reference.decode_gray(source)[0].numpy()).convert("RGB"), "PPM")
        # Without a reduction the pixels of a PPM whose channels are that luma are resized in the same way.
        files += [pictures.tensor(luma)] if fidelity == "exact" else []
        for size in [(24, 24), (7, 90), (90, 7), (1, 1), (75, 101), (200, 210), (60, 9)]:
            flip, table = torch.tensor([True]), torch.tensor([[1, 2, 148, 200]], dtype=torch.int32)
            results = [tarpeg.decode_batch([f], table, size, flip, channels=1, **options)[0] for f in files]
            if "gray" in kind or fidelity == "exact":
                rgb, _ = tarpeg.decode_batch([files[-1]], table, size, flip, **options)
                assert torch.equal(results[0], rgb[:, :1]), (kind, size)
            assert all(torch.equal(result, results[0]) for result in results), (kind, size)


def test_the_mean_difference_of_fast_over_photographs_is_small() -> None:
    files = [pictures.tensor(photograph(Photos(size="imagenet"), index).jpeg) for index in range(4)]
    boxes = torch.tensor([[0, 0, *size] for size in tarpeg.image_sizes(files).tolist()], dtype=torch.int32)
    whole = [reference.decode_gray(file) for file in files]
    for size in [(120, 120), (40, 40), (20, 20)]:
        fast, _ = tarpeg.decode_batch(files, boxes, size, channels=1)
        exact = torch.stack([reference.resize(image, size, "bilinear", antialias=True) for image in whole])
        assert (fast.int() - exact.int()).abs().float().mean() <= 0.6, size


def test_luma_is_close_to_gray_of_rgb() -> None:
    file = pictures.tensor(pictures.jpeg("444", 75, 101, rgb=pictures.pixels(75, 101) // 2 + 64))
    gray = np.asarray(
        Image.fromarray(pictures.full(bytes(file.numpy())).permute(1, 2, 0).numpy()).convert("L")
    )
    luma = resized(file, (0, 0, 75, 101), (75, 101), channels=1)[0].numpy()
    assert np.abs(gray.astype(int) - luma).max() <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floating_point_is_the_normalised_uint8_result(dtype: torch.dtype) -> None:
    files, boxes = pictures.batch()
    for size in [(33, 21), (1, 1), (16, 8)]:
        plain, _ = tarpeg.decode_batch(files, boxes, size, channels=1)
        for order in pictures.ORDERS:
            out = torch.full((5, 1, *size), 9, dtype=dtype).contiguous(memory_format=order)
            for given in (None, out):
                options = {"mean": [0.4], "std": [0.25], "dtype": dtype, "channels": 1, "out": given}
                images, _ = tarpeg.decode_batch(files, boxes, size, **options)
                assert given is None or images is out
                expected = plain.float() * torch.tensor(1 / (255 * 0.25)) + torch.tensor(-0.4 / 0.25)
                assert images.dtype == dtype and torch.equal(images, expected.to(dtype))


def test_uint8_out() -> None:
    files, boxes = pictures.batch()
    expected, _ = tarpeg.decode_batch(files, boxes, (17, 19), channels=1)
    assert expected.is_contiguous() and expected.is_contiguous(memory_format=torch.channels_last)
    for order in pictures.ORDERS:
        out = torch.empty(5, 1, 17, 19, dtype=torch.uint8).contiguous(memory_format=order)
        assert torch.equal(tarpeg.decode_batch(files, boxes, (17, 19), channels=1, out=out)[0], expected)


def test_portable_code_gives_the_same_bytes() -> None:
    pictures.assert_portable_is_equal("""
for kind, fidelity in product(pictures.KINDS, ("fast", "exact")):
    files = [tensor(jpeg(kind, 60, 64)), tensor(b"P6\\n64 60\\n255\\n" + pictures.pixels(60, 64).tobytes())]
    for size in [(33, 21), (7, 5), (90, 91), (1, 1), (2, 3), (50, 57)]:
        for file, interpolation in product(files, ("bilinear", "nearest", "bicubic", "lanczos")):
            options = {"interpolation": interpolation, "fidelity": fidelity, "channels": 1}
            write(resized(file, (3, 4, 50, 57), size, **options))
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    write(resized(files[0], (3, 4, 50, 57), (33, 21), channels=1, dtype=dtype, mean=[0.5], std=[0.2]))
""")


SMALL, BOX = pictures.tensor(pictures.jpeg("420", 30, 40)), torch.tensor([[0, 0, 30, 40]], dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 2}, "channels=2 must be 3, RGB, or 1, gray"),
        ({"mean": [0.5] * 3, "std": [0.2] * 3, "dtype": torch.float32}, "one number each: gray"),
        ({"mean": [0.5], "std": [0.2], "dtype": torch.float32, "channels": 3}, "three numbers each"),
        ({"out": torch.empty(1, 3, 8, 8, dtype=torch.uint8)}, r"out must be torch.uint8 \[1, 1, 8, 8\]"),
    ],
)
def test_errors(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tarpeg.decode_batch(**{"jpegs": [SMALL], "boxes": BOX, "size": 8, "channels": 1} | change)


def test_opcheck_and_compile() -> None:
    arguments = ([SMALL], BOX, 16, 12, None, "bilinear", True, True, decode.MAX_PIXELS, 2, 1)
    torch.library.opcheck(torch.ops.tarpeg.decode_batch.default, arguments)
    out = torch.empty((1, 1, 16, 12))
    scale = torch.full((2,), 0.5)
    arguments = ([SMALL], BOX, None, "nearest", False, True, decode.MAX_PIXELS, scale, out, 0)
    torch.library.opcheck(torch.ops.tarpeg.decode_batch_out.default, arguments)
    with pytest.raises(RuntimeError, match=r"channels .* 2"):
        torch.ops.tarpeg.decode_batch([SMALL], BOX, 8, 8, None, "bilinear", True, True, 1 << 20, 0, 2)

    def gray(files: list[torch.Tensor], boxes: torch.Tensor) -> torch.Tensor:
        images, status = tarpeg.decode_batch(files, boxes, (8, 9), channels=1)
        return images.float() * (status == 0).reshape(-1, 1, 1, 1)

    pictures.assert_one_graph(gray, *pictures.batch(2))
