"""Means for strong reductions: tarpeg's own decoder and libjpeg at half size give the same samples."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers import pictures
from helpers.crafted import Jpeg
from PIL import Image
from test_regular_streams import EOI, SAMPLINGS

SIZES = [
    (0.45, 0.49),
    (0.3, 0.2),
    (0.16, 0.15),
    (0.1, 0.13),
    (0.04, 0.05),
]  # of the box: means of 2, 2, 4, 4, 8


def outputs(data: bytes, boxes: list[tuple[int, int, int, int]]) -> list[torch.Tensor]:
    jpeg = pictures.tensor(data)
    found = []
    for box in boxes:
        for down, across in SIZES:
            size = max(1, int(box[2] * down)), max(1, int(box[3] * across))
            images, status = tarpeg.decode_batch([jpeg], torch.tensor([box], dtype=torch.int32), size)
            assert status.tolist() == [0]
            found.append(images)
    return found


def check(source: Jpeg, boxes: list[tuple[int, int, int, int]] | None = None) -> None:
    """One scan is read by tarpeg alone; a scan for each component, the same coefficients, by libjpeg."""
    height, width = source.height, source.width
    boxes = boxes or [(0, 0, height, width), (height // 5, width // 3, height // 2, width // 2)]
    if len(source.sampling) == 1:
        regular = source.head() + source.scan([0]) + EOI
        irregular = source.head() + source.scan([0]) + source.scan([0]) + EOI  # the same scan again
    else:
        regular = source.bytes()
        irregular = source.head() + b"".join(source.scan([c]) for c in range(len(source.sampling))) + EOI
    for ours, theirs in zip(outputs(regular, boxes), outputs(irregular, boxes), strict=True):
        assert torch.equal(ours, theirs), (height, width, source.sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS[:-2], ids=str)
@pytest.mark.parametrize("size", [(64, 96), (41, 67), (18, 33)])
def test_any_sampling(sampling: tuple[tuple[int, int], ...], size: tuple[int, int]) -> None:
    ids = tuple(range(1, len(sampling) + 1))
    check(Jpeg(*size, sampling, ids, interval=2).noise(strength=120))


@pytest.mark.parametrize("residue", range(16))
def test_every_residue_of_width_and_height(residue: int) -> None:
    for height, width in [(33, 32 + residue), (32 + residue, 33), (32 + residue, 48 - residue)]:
        check(Jpeg(height, width, interval=1).noise(residue))
        check(Jpeg(height, width, ((1, 1),), ids=(1,)).noise(residue))


@pytest.mark.parametrize("used", [1, 2, 9, 64])
@pytest.mark.parametrize("quantiser", [1, 8, 16, 100, 255])
def test_coefficients_at_the_extremes(used: int, quantiser: int) -> None:
    source = Jpeg(48, 64, tables=((quantiser,) * 64,) * 2).noise()
    rng = np.random.default_rng(used)
    # The first row of the block; the first and the fifth, of which the means take the first alone.
    places = {2: [0, 1, 5, 6, 14, 15, 27, 28], 9: [0, 1, 5, 6, 10, 19, 23, 32, 39]}.get(used, range(used))
    for values in source.coefficients:
        values[...] = 0
        for k in places:
            values[..., k] = rng.choice([-1023, 1023, 512, 0], values.shape[:2])
    check(source)


def test_a_half_is_the_mean_of_what_is_decoded() -> None:
    """Gray, with no resampling to speak of: every output is a mean of 2x2 but for two of its neighbours."""
    source = Jpeg(64, 64, ((1, 1),), ids=(1,), tables=((4,) * 64,) * 2).noise(strength=25)
    jpeg = pictures.tensor(source.head() + source.scan([0]) + EOI)
    box = torch.tensor([[0, 0, 64, 64]], dtype=torch.int32)
    fast, exact = (tarpeg.decode_batch([jpeg], box, 32, fidelity=how)[0] for how in ("fast", "exact"))
    whole = tarpeg.decode_crop(jpeg, 0, 0, 64, 64).float()
    means = torch.nn.functional.avg_pool2d(whole, 2)
    kernel = torch.tensor([1.0, 6.0, 1.0]) / 8  # a triangle over four samples, summed by twos
    padded = torch.nn.functional.pad(means[None], (1, 1, 1, 1), mode="replicate")
    kernel2d = (kernel[:, None] * kernel).expand(3, 1, 3, 3)
    expected = torch.nn.functional.conv2d(padded, kernel2d, groups=3)
    inner = (..., slice(1, -1), slice(1, -1))
    assert (fast.float() - expected)[inner].abs().max() <= 1.2
    assert (exact.float() - expected)[inner].abs().max() > 2


def test_progressive_files_are_halved_too() -> None:
    for seed, kind in enumerate(("progressive", "420", "444", "422", "gray")):
        data = pictures.jpeg(kind, 101, 135, seed)
        progressive = pictures.jpeg("progressive", 101, 135, seed)
        for jpeg in (data, progressive):
            tiled = tarpeg.tile_jpeg(pictures.tensor(jpeg), 16).numpy().tobytes()
            boxes = [(0, 0, 101, 135), (3, 5, 90, 121)]
            for ours, theirs in zip(outputs(tiled, boxes), outputs(jpeg, boxes), strict=True):
                assert torch.equal(ours, theirs), kind


def test_what_lies_beyond_the_picture_is_never_far() -> None:
    """Odd sides: the last mean takes one sample that the encoder made up, which repeats the last."""
    image = pictures.pixels(75, 95)
    jpeg = pictures.tensor(pictures.encoded(Image.fromarray(image), quality=95, subsampling=2))
    box = torch.tensor([[0, 0, 75, 95]], dtype=torch.int32)
    fast, exact = (tarpeg.decode_batch([jpeg], box, (30, 38), fidelity=how)[0] for how in ("fast", "exact"))
    edge = (fast.int() - exact.int()).abs()[..., -1, :], (fast.int() - exact.int()).abs()[..., :, -1]
    middle = (fast.int() - exact.int()).abs().float().mean()
    assert max(float(side.float().mean()) for side in edge) < 3 * middle + 1


PORTABLE = """
import sys, torch, tarpeg
from helpers import pictures
from helpers.crafted import Jpeg
for kind in ("420", "444", "422", "gray", "progressive"):
    for seed, (height, width) in enumerate([(64, 64), (97, 121), (50, 33)]):
        box = torch.tensor([[1, 2, height - 3, width - 2]], dtype=torch.int32)
        for size in [(height // 3, width // 3), (height // 8, width // 7), (2, 1)]:
            jpeg = pictures.tensor(pictures.jpeg(kind, height, width, seed))
            images, _ = tarpeg.decode_batch([jpeg], box, size)
            sys.stdout.buffer.write(images.numpy().tobytes())
for quantiser in (1, 16, 255):
    for strength in (30, 3000):
        source = Jpeg(50, 70, tables=((quantiser,) * 64,) * 2).noise(strength=strength)
        box = torch.tensor([[0, 0, 50, 70]], dtype=torch.int32)
        images, _ = tarpeg.decode_batch([pictures.tensor(source.bytes())], box, (25, 35))
        sys.stdout.buffer.write(images.numpy().tobytes())
"""


def test_portable_code_gives_the_same_bytes() -> None:
    pictures.assert_portable_is_equal(PORTABLE)
