"""decode_batch with mean, std and a floating-point dtype: the uint8 result, normalised."""

from __future__ import annotations

import pytest
import tarpeg
import torch
from helpers import pictures, reference

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}


def batch(count: int = 5) -> tuple[list[torch.Tensor], torch.Tensor]:
    files = [pictures.tensor(pictures.jpeg("420", 60 + seed, 64, seed)) for seed in range(count)]
    return files, torch.tensor([[seed, 4, 40, 50] for seed in range(count)], dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(33, 21), (1, 1), (8, 8), (40, 50)])
def test_it_is_the_uint8_result_normalised(dtype: torch.dtype, size: tuple[int, int]) -> None:
    files, boxes = batch()
    flip = torch.tensor([True, False, True, False, True])
    plain, _ = tarpeg.decode_batch(files, boxes, size, flip)
    expected = reference.normalise(plain, MEAN, STD)
    images, status = tarpeg.decode_batch(files, boxes, size, flip, mean=MEAN, std=STD, dtype=dtype)
    assert images.dtype == dtype and status.tolist() == [0] * 5
    assert images.is_contiguous(memory_format=torch.channels_last)
    # Half a unit in the last place of the type, and what float32 arithmetic adds.
    assert torch.all((images.double() - expected).abs() <= DTYPES[dtype] * expected.abs() + 2e-6)
    rounded = (plain.float() * scale() + shift()).to(dtype)
    assert torch.equal(images, rounded)


def scale() -> torch.Tensor:
    return torch.tensor([1 / (255 * std) for std in STD]).reshape(1, 3, 1, 1)


def shift() -> torch.Tensor:
    return torch.tensor([-mean / std for mean, std in zip(MEAN, STD, strict=True)]).reshape(1, 3, 1, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_may_be_contiguous_or_channels_last(dtype: torch.dtype) -> None:
    files, boxes = batch()
    expected, _ = tarpeg.decode_batch(files, boxes, (17, 19), mean=MEAN, std=STD, dtype=dtype)
    for order in (torch.contiguous_format, torch.channels_last):
        out = torch.full((5, 3, 17, 19), 9, dtype=dtype).contiguous(memory_format=order)
        images, _ = tarpeg.decode_batch(files, boxes, (17, 19), mean=MEAN, std=STD, dtype=dtype, out=out)
        assert images is out
        assert torch.equal(images, expected)


def test_without_mean_and_std_values_are_in_0_to_1() -> None:
    files, boxes = batch()
    plain, _ = tarpeg.decode_batch(files, boxes, 16)
    images, _ = tarpeg.decode_batch(files, boxes, 16, dtype=torch.float32)
    assert torch.allclose(images, plain.float() / 255)


def test_a_failed_image_is_zero() -> None:
    files, boxes = batch(2)
    files[1] = files[1][:100]
    images, status = tarpeg.decode_batch(files, boxes, 16, mean=MEAN, std=STD, dtype=torch.float32)
    assert status.tolist() == [0, tarpeg.Status.TRUNCATED]
    assert not images[1].any() and images[0].any()


PORTABLE = """
import sys, torch, test_normalised, tarpeg
files, boxes = test_normalised.batch()
for dtype in test_normalised.DTYPES:
    for std in (test_normalised.STD, (1e-4, 1.0, 3e4), (1e-6, 1e3, 1e5)):
        images, _ = tarpeg.decode_batch(files, boxes, (33, 21), mean=(0.5, 0.1, 0.2), std=std, dtype=dtype)
        sys.stdout.buffer.write(images.float().contiguous().numpy().tobytes())
"""


def test_portable_code_gives_the_same_bits() -> None:
    pictures.assert_portable_is_equal(PORTABLE)


def test_compiles_into_one_graph() -> None:
    files, boxes = batch(2)

    def step(data: list[torch.Tensor]) -> torch.Tensor:
        return tarpeg.decode_batch(data, boxes, 8, mean=MEAN, std=STD, dtype=torch.float32)[0] * 2

    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(files), step(files))


def test_the_profiler_shows_the_operators_by_name() -> None:
    files, boxes = batch(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        tarpeg.decode_batch(files, boxes, 8)
        tarpeg.decode_crop(files[0], 0, 0, 8, 8)
        tarpeg.tile_jpeg(files[0])
    names = {event.key for event in profile.key_averages()}
    assert {"tarpeg::decode_batch", "tarpeg::decode_crop", "tarpeg::tile_jpeg"} <= names
