"""fill_outlines: the bits of its twin in numpy, whatever the outlines, and checked memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import outlines
from tarpeg.ops.masks import fill_outlines, unpack_masks


def drawn_part(rng, height, width):
    """A polygon, also outside of the image and of whole or half pixels, or toggles."""
    if rng.random() < 0.3:
        count = int(rng.integers(0, 30))
        return np.sort(rng.integers(0, height * width + 1, count))
    reach = rng.choice([0.02, 1.0, 30.0])
    corners = (rng.uniform(-reach, 1 + reach, (int(rng.integers(3, 12)), 2))) * (width, height)
    return np.round(corners * 2) / 2 if rng.random() < 0.3 else corners


def drawn(rng, images, result):
    """Arguments of a call, and the parts of each object of each image."""
    parts, sizes, boxes, places = [], [], [], []
    for _ in range(images):
        height, width = rng.integers(1, 90, 2).tolist()
        sizes.append((height, width))
        parts.append([])
        for _ in range(int(rng.integers(0, 5))):
            parts[-1].append([drawn_part(rng, height, width) for _ in range(int(rng.integers(0, 4)))])
        for found, (rows, columns) in ((boxes, (height, width)), (places, result)):
            top, left = int(rng.integers(0, rows)), int(rng.integers(0, columns))
            bottom, right = int(rng.integers(top + 1, rows + 1)), int(rng.integers(left + 1, columns + 1))
            found.append((top, left, bottom - top, right - left))
    flips = rng.random(images) < 0.5
    every = [part for image in parts for each in image for part in each]
    points = [part for part in every if part.ndim == 2]
    toggles = [part for part in every if part.ndim == 1]
    lengths = [(len(part), 0) if part.ndim == 2 else (0, len(part)) for part in every]
    given = (
        np.concatenate([np.zeros((0, 2)), *points]),
        np.concatenate([np.zeros(0, np.int64), *toggles]),
        np.array(lengths, np.int64).reshape(-1, 2),
        np.array([len(each) for image in parts for each in image], np.int64),
        np.array([len(image) for image in parts], np.int64),
        np.array(sizes, np.int32),
        np.array(boxes, np.int32),
        result,
        flips,
        np.array(places, np.int32),
    )
    return given, parts


@pytest.mark.parametrize("centres", [True, False])
def test_equal_to_its_twin(centres):
    rng = np.random.default_rng(int(centres))
    for result in ((16, 16), (1, 1), (33, 65), (7, 24), (90, 131)):
        for threads in (1, 2):
            given, parts = drawn(rng, 12, result)
            bits, pixels = fill_outlines(*given, centres=centres, threads=threads)
            sizes, boxes, _, flips, places = given[5:]
            wanted = [
                outlines.fill(each, sizes[row].tolist(), boxes[row], result, flips[row], places[row], centres)
                for row, image in enumerate(parts)
                for each in image
            ]
            assert len(bits) == len(wanted) > 0
            for own, count, (other, pixels_of_other) in zip(bits, pixels.tolist(), wanted, strict=True):
                assert np.array_equal(own, other) and count == pixels_of_other


def whole(**given):
    """Arguments of a call with a triangle and a run in an image of 4 x 6."""
    usual = {
        "points": np.array([[1.0, 1], [5, 1], [3, 4]]),
        "toggles": np.array([2, 5]),
        "parts": np.array([[3, 0], [0, 2]]),
        "objects": np.array([1, 1]),
        "counts": np.array([2]),
        "sizes": np.array([[4, 6]], np.int32),
        "boxes": np.array([[0, 0, 4, 6]], np.int32),
        "size": (4, 6),
        "flips": np.array([False]),
        "places": np.array([[0, 0, 4, 6]], np.int32),
    }
    return {**usual, **given}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("points", np.array([[1.0, 1], [5, np.nan], [3, 4]])),
        ("points", np.array([[1.0, 1], [5, 1e9], [3, 4]])),
        ("points", np.zeros((2, 2))),
        ("toggles", np.array([-2, 5])),
        ("parts", np.array([[3, 0], [0, 3]])),
        ("parts", np.array([[3, 0], [0, -2]])),
        ("objects", np.array([1, 2])),
        ("objects", np.array([-1, 1])),
        ("counts", np.array([1])),
        ("counts", np.array([3])),
        ("boxes", np.array([[0, 0, 5, 6]])),
        ("boxes", np.array([[0, -1, 4, 6]])),
        ("sizes", np.array([[0, 0]])),
        ("places", np.array([[1, 0, 4, 6]])),
        ("places", np.array([[0, 0, 0, 6]])),
        ("flips", np.array([False, True])),
        ("size", (0, 6)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_errors(name, value):
    fill_outlines(**whole())
    wanted = {"points": "points|parts", "size": "height", "sizes": r"boxes\[0\]"}.get(name, name)
    with pytest.raises(RuntimeError, match=wanted):
        fill_outlines(**whole(**{name: value}))


def test_toggles_behind_the_image_and_without_order_are_no_crash():
    rng = np.random.default_rng(0)
    far = rng.integers(0, 1 << 62, 50)
    fill_outlines(**whole(toggles=far, parts=np.array([[3, 0], [0, 50]])))


def test_opcheck():
    given = whole()
    size = given.pop("size")
    tensors = [torch.from_numpy(array) for array in given.values()]
    out = torch.zeros((2, 3), dtype=torch.uint8)
    torch.library.opcheck(torch.ops.tarpeg.fill_outlines.default, (*tensors, True, *size, out, 1))


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (8, 8), (7, 9), (64, 65)])
def test_bits_are_unpacked_as_numpy_unpacks_them(size):
    pixels = np.random.default_rng(0).integers(0, 2, (5, size[0] * size[1]), np.uint8)
    bits = torch.from_numpy(np.packbits(pixels, axis=1))
    for threads in (1, 3):
        assert np.array_equal(unpack_masks(bits, size, threads).numpy().reshape(5, -1), pixels)
    assert unpack_masks(bits[:0], size).shape == (0, *size)


def test_masks_that_are_in_use_are_not_overwritten():
    ones = torch.full((3, 8), 255, dtype=torch.uint8)
    kept = [unpack_masks(ones, (8, 8))[number] for number in range(3)]
    assert not unpack_masks(torch.zeros_like(ones), (8, 8)).any()
    assert all(each.all() for each in kept)


def test_unpacking_checks_memory():
    out = torch.empty((2, 20), dtype=torch.uint8)
    torch.library.opcheck(
        torch.ops.tarpeg.unpack_masks.default, (torch.zeros((2, 3), dtype=torch.uint8), out, 1)
    )
    for bits in (torch.zeros((2, 2), dtype=torch.uint8), torch.zeros((2, 3)), torch.zeros((1, 3)).byte()):
        with pytest.raises(RuntimeError, match="bits"):
            torch.ops.tarpeg.unpack_masks(bits, out, 1)
    with pytest.raises(RuntimeError, match="out"):
        torch.ops.tarpeg.unpack_masks(torch.zeros((2, 3), dtype=torch.uint8), out.int(), 1)
