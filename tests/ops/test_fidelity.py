"""fidelity="fast": how far from torchvision v2, and the same for a file and its tiled copy."""

from __future__ import annotations

import functools

import pytest
import tarpeg
import torch
from helpers import crafted, pictures, reference
from tarpeg.datasets.synthetic import Photos, photograph


@functools.cache
def photographs() -> list[torch.Tensor]:
    return [pictures.tensor(photograph(Photos(size="imagenet"), index).jpeg) for index in range(12)]


def middle(files: list[torch.Tensor], share: float) -> torch.Tensor:
    """A box around the middle of each image, `share` of its sides."""
    boxes = []
    for height, width in tarpeg.image_sizes(files).tolist():
        box = int(height * share), int(width * share)
        boxes.append(((height - box[0]) // 2, (width - box[1]) // 3, *box))
    return torch.tensor(boxes, dtype=torch.int32)


@pytest.mark.parametrize("size", [120, 64, 40, 20])
def test_the_mean_difference_over_photographs_is_small(size: int) -> None:
    files = photographs()
    boxes = middle(files, 0.9)
    images, _ = tarpeg.decode_batch(files, boxes, size)
    expected = reference.decode_batch(files, boxes, (size, size))
    assert (images.int() - expected.int()).abs().float().mean() <= 0.6


def test_below_twice_the_size_it_is_exact() -> None:
    files = photographs()
    boxes = middle(files, 0.3)
    fast, _ = tarpeg.decode_batch(files, boxes, 100)
    exact, _ = tarpeg.decode_batch(files, boxes, 100, fidelity="exact")
    assert torch.equal(fast, exact)


@pytest.mark.parametrize("fidelity", ["fast", "exact"])
@pytest.mark.parametrize("kind", pictures.KINDS)
def test_a_file_and_its_tiled_copy_give_the_same_pixels(kind: str, fidelity: tarpeg.ops.Fidelity) -> None:
    for seed, (height, width) in enumerate([(75, 101), (160, 128), (97, 210), (65, 64)]):
        source = pictures.tensor(pictures.jpeg(kind, height, width, seed))
        tiled = tarpeg.tile_jpeg(source, 16)
        box = torch.tensor([[1, 3, height - 2, width - 8]], dtype=torch.int32)
        for size in [(30, 31), (15, 14), (7, 8), (3, 2), (50, 60)]:
            first, status = tarpeg.decode_batch([source], box, size, fidelity=fidelity)
            second, _ = tarpeg.decode_batch([tiled], box, size, fidelity=fidelity)
            assert status.tolist() == [0]
            assert torch.equal(first, second), (height, width, size)


def test_a_flat_picture_stays_flat() -> None:
    for kind in ("420", "411", "440", "gray", "progressive"):
        source = pictures.tensor(pictures.flat(kind, 123, 245))
        expected = reference.decode(source)[:, 60, 100]
        for size in [(61, 122), (30, 61), (15, 30), (1, 1)]:
            images, _ = tarpeg.decode_batch(
                [source], torch.tensor([[0, 0, 123, 245]], dtype=torch.int32), size
            )
            assert torch.equal(images[0], expected[:, None, None].expand_as(images[0])), (kind, size)


@pytest.mark.parametrize("sampling", [(3, 1), (1, 3), (3, 2), (4, 1), (1, 4), (2, 4)])
def test_unusual_samplings_are_reduced_within_their_memory(sampling: tuple[int, int]) -> None:
    picture = crafted.Jpeg(96, 400, (sampling, (1, 1), (1, 1)), ids=(1, 2, 3)).noise()
    source = pictures.tensor(picture.bytes())
    box = torch.tensor([[0, 0, 96, 400]], dtype=torch.int32)
    for size in [(48, 200), (40, 90), (16, 60), (4, 18)]:
        fast, status = tarpeg.decode_batch([source], box, size)
        exact, _ = tarpeg.decode_batch([source], box, size, fidelity="exact")
        assert status.tolist() == [0]
        assert (fast.int() - exact.int()).abs().float().mean() < 12  # of noise; wrong planes differ by 40
        if 3 in sampling:  # libjpeg's, unreduced
            assert torch.equal(fast, exact)
