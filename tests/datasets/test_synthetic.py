"""Synthetic photographs: bits per pixel, storage, and that the parameters determine every byte."""

from __future__ import annotations

import io
import math
import warnings

import numpy as np
import pytest
from PIL import Image, ImageOps
from tarpeg.datasets import synthetic
from tarpeg.datasets.synthetic import Photos, draw, label_of, photograph


def opened(photos: Photos, index: int = 0) -> Image.Image:
    image = Image.open(io.BytesIO(photograph(photos, index).jpeg))
    image.load()
    return image


BIG = pytest.param("big", 6, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("size", "count"), [((128, 160), 24), (256, 16), ((375, 500), 12), ("article", 8), BIG]
)
def test_bits_per_pixel_are_as_in_photographs(size, count):
    jpegs = [photograph(Photos(size=size), index).jpeg for index in range(count)]
    bits = np.array([8 * len(jpeg) / math.prod(Image.open(io.BytesIO(jpeg)).size) for jpeg in jpegs])
    assert 1.35 < bits.mean() < 1.75
    assert ((bits > 1.2) & (bits < 1.8)).mean() > 0.9, bits


def test_pictures_are_neither_flat_nor_noise():
    luma = np.asarray(draw(Photos(size=256), 0))[..., 0].astype(float)
    assert luma.std() > 15
    neighbours = np.corrcoef(luma[:, :-1].ravel(), luma[:, 1:].ravel())[0, 1]
    assert 0.9 < neighbours < 0.999


def test_equal_parameters_give_equal_bytes_and_others_differ():
    photos = Photos(size=96, seed=7, exif=0.5, corrupt=0.2)
    first = [photograph(photos, index) for index in range(10)]
    again = [photograph(photos, index) for index in reversed(range(10))]
    assert first == again[::-1]
    assert len({picture.jpeg for picture in first if picture.jpeg}) == sum(p.jpeg != b"" for p in first)
    plain = Photos(size=96)
    assert photograph(plain, 3).jpeg != photograph(plain, 3, "val").jpeg
    assert photograph(plain, 3).jpeg != photograph(Photos(size=96, seed=1), 3).jpeg


def test_labels_are_even_and_shuffled():
    photos = Photos(classes=10)
    labels = [label_of(photos, index) for index in range(200)]
    assert np.bincount(labels).tolist() == [20] * 10
    assert labels[:10] != sorted(labels[:10]) and labels[:10] != labels[10:20]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "is_so"),
    [
        ("progressive", lambda image: bool(image.info.get("progressive"))),
        ("gray", lambda image: image.mode == "L"),
        ("exif", lambda image: image.getexif().get(0x0112, 1) != 1),
    ],
)
def test_probabilities(name, is_so):
    def share(value):
        photos = Photos(size=16, **{name: value})
        return np.mean([is_so(opened(photos, index)) for index in range(100)])

    assert share(0.0) == 0.0 and 0.15 < share(0.3) < 0.45 and share(1.0) == 1.0


def test_corruption_is_of_all_kinds():
    photos, intact = Photos(size=32, corrupt=0.5), Photos(size=32)
    pairs = [(photograph(photos, i).jpeg, photograph(intact, i).jpeg) for i in range(120)]
    broken = [(bad, good) for bad, good in pairs if bad != good]
    assert 40 < len(broken) < 80
    empty = sum(not bad for bad, _ in broken)
    cut = sum(0 < len(bad) < len(good) for bad, good in broken)
    flipped = sum(len(bad) == len(good) for bad, good in broken)
    assert min(empty, cut, flipped) > 5


def test_exif_orientation_turns_pictures_upright():
    rotated, plain = Photos(size=(96, 160), exif=1.0, subsampling="4:4:4"), Photos(size=(96, 160))
    seen = set()
    for index in range(40):
        image = opened(rotated, index)
        orientation = image.getexif()[0x0112]
        seen.add(orientation)
        assert image.size == ((96, 160) if orientation >= 5 else (160, 96))
        upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB"), dtype=int)
        drawn = np.asarray(draw(plain, index).convert("RGB"), dtype=int)
        assert upright.shape == (96, 160, 3) and np.abs(upright - drawn).mean() < 3
    assert seen == {2, 3, 4, 5, 6, 7, 8}


@pytest.mark.parametrize(("subsampling", "factors"), [("4:4:4", 0x11), ("4:2:2", 0x21), ("4:2:0", 0x22)])
def test_subsampling(subsampling, factors):
    jpeg = photograph(Photos(size=48, subsampling=subsampling), 0).jpeg
    frame = jpeg.index(b"\xff\xc0")
    assert jpeg[frame + 11] == factors


def test_sizes():
    expected = {"article": (800, 533), 16: (16, 16), 17: (17, 17), (16, 700): (700, 16), (61, 33): (33, 61)}
    for size, width_and_height in expected.items():
        assert opened(Photos(size=size)).size == width_and_height
    assert opened(Photos(size=[48, 40])).size == (40, 48)
    mixture = Photos(size=[32, [48, 40], 64])
    assert {opened(mixture, index).size for index in range(30)} == {(32, 32), (40, 48), (64, 64)}


def test_imagenet_sizes_have_the_mean_of_imagenet():
    photos = Photos(size="imagenet")
    sizes = np.array([synthetic._traits(photos, index, "train")[:2] for index in range(3000)])
    assert (abs(sizes.mean(axis=0) - (413, 478)) < 10).all()
    assert len(np.unique(sizes, axis=0)) > 500


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", "huge"), ("size", 15), ("size", (16, 70000)), ("size", []), ("size", 1.5), ("size", True),
        ("size", [[1, 2, 3]]), ("quality", 0), ("quality", 101), ("quality", "90"), ("subsampling", "4:1:1"),
        ("classes", 0), ("seed", -1), ("seed", 0.5), ("gray", 1.1), ("exif", -0.1), ("corrupt", "half"),
        ("progressive", True),
    ],
)  # fmt: skip
def test_values_out_of_range_raise(field, value):
    with pytest.raises(ValueError, match=f"^{field}=.* must "):
        Photos(**{field: value})


def test_photos_of_a_mapping():
    assert Photos.of({"size": 64, "gray": 0.5}) == Photos(size=64, gray=0.5)
    with pytest.raises(ValueError, match=r"'sise'.* size, quality"):
        Photos.of({"sise": 64})
    with pytest.raises(ValueError, match=r"^photos=3 "):
        Photos.of(3)


@pytest.mark.slow
def test_the_hue_predicts_the_class_in_most_crops():
    # The class nearest to the mean hue of the coloured pixels: a network can use much more.
    photos, right = Photos(size=160), 0
    rng = np.random.default_rng(0)
    for index in range(200):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            chroma = np.asarray(draw(photos, index), dtype=float)[..., 1:] - 128
        top, left = rng.integers(0, 160 - 88, 2)
        vectors = chroma[top : top + 88, left : left + 88].reshape(-1, 2)
        blue, red = vectors[np.hypot(*vectors.T) > 25].mean(axis=0)
        guess = round(np.arctan2(red, blue) / (2 * np.pi / 10)) % 10
        right += guess == label_of(photos, index)
    assert right > 150
