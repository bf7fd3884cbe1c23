"""Maps of floats: read, moved as torchvision moves float images, and delivered."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
import tarpeg
import torch
from helpers.loaders import RUNNERS, load, name_of
from helpers.pictures import saved
from helpers.scenes import Scenes
from PIL import Image
from tarpeg import (
    Affine,
    Augment,
    Boxes,
    CenterCrop,
    FloatMap,
    LetterBox,
    Mosaic,
    RandomResizedCrop,
    ScaleJitter,
    Split,
    View,
    Whole,
)
from tarpeg.targets.maps import _HEADER, _array_of
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

RNG = np.random.default_rng(4)
HERE = {"workers": 0, "threads": 0, "on_error": "raise"}


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def png(array):
    return saved(Image.fromarray(array), "PNG")


def with_maps(kind, count=12, size=(48, 64)):
    """Scenes with a map each: the source, and the numbers in the files."""
    arrays, members = [], {}
    for number in range(count):
        levels = RNG.integers(0, 256 if kind == "png8" else 65536, size)
        array = levels.astype(np.uint8 if kind == "png8" else np.uint16)
        if kind == "npy":
            array = RNG.normal(size=size).astype([np.float32, np.float64, np.float16, ">f4"][number % 4])
            array = np.asfortranarray(array) if number % 3 == 0 else array
        name = "depth.npy" if kind == "npy" else "depth.png"
        members[number] = {name: npy(array) if kind == "npy" else png(array)}
        arrays.append(array)
    return Scenes(members, count, size), arrays, name


def by_torchvision(array, view, scale, fill, antialias=False):
    """The map of one row by torchvision's functionals on a float image, step by step."""
    (box,), (place,) = view.boxes.tolist(), view.all_places.tolist()
    given = torch.from_numpy(array.astype(np.float32) * np.float32(scale))[None]
    part = functional.crop(tv_tensors.Image(given), *box)
    part = functional.resize(part, place[2:], antialias=antialias)
    part = functional.horizontal_flip(part) if view.flips[0] else part
    sides = [place[1], place[0], view.size[1] - place[1] - place[3], view.size[0] - place[0] - place[2]]
    return functional.pad(part, sides, fill=fill)[0]


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("kind", ["png8", "png16", "npy"])
def test_maps_have_the_bits_of_torchvision(kind, antialias):
    source, arrays, name = with_maps(kind)
    depth = FloatMap(name, scale=1 / 1000, fill=-0.25, antialias=antialias)
    for crop in (
        RandomResizedCrop((40, 56), scale=(0.02, 1)),
        ScaleJitter(60),
        LetterBox(70),
        Whole((48, 64)),
    ):
        loader = load(None, split=Split(source, crop, flip=0.5, targets=depth), **HERE)
        for images, maps, keys in loader:
            (view,) = loader.claim().views
            assert maps.shape == (len(images), *images.shape[2:]) and maps.dtype == torch.float32
            for row, key in enumerate(keys):
                array = arrays[int(key[-3:])]
                assert torch.equal(maps[row], by_torchvision(array, view.row(row), 1e-3, -0.25, antialias))


@pytest.mark.parametrize("interpolation", ["nearest-exact", "nearest"])
def test_nearest_takes_the_pixels_of_masks(interpolation):
    source, _, name = with_maps("png8")
    targets = {
        "map": FloatMap(name, scale=2, fill=2 * 255, interpolation=interpolation),
        "mask": tarpeg.Masks(name, interpolation=interpolation),
    }
    split = Split(source, ScaleJitter(50), flip=0.5, targets=targets)
    for batch in load(None, split=split, **HERE):
        for target in batch.targets:
            assert type(target["depth"]) is torch.Tensor
            assert torch.equal(target["depth"], 2.0 * target["mask"])


@pytest.mark.parametrize("kind", ["worker", "arrival"])
def test_an_affine_moves_maps_as_images(kind):
    """The map is the red channel: with fill 0 it stays that, up to the rounding of the image."""
    levels = np.linspace(0, 255, 48 * 64).reshape(48, 64).astype(np.uint8)
    members = {
        number: {"jpg": saved(Image.fromarray(levels).convert("RGB"), "PNG"), "level.png": png(levels)}
        for number in range(4)
    }
    split = Split(
        Scenes(members, 4), ScaleJitter(64, scale_range=(0.8, 1.2)), flip=0.5, targets=FloatMap("level.png")
    )
    augment = Augment((0, 0, 0), (1, 1, 1), affine=Affine(degrees=15, translate=0.1, scale=(0.9, 1.1)))
    loader = tarpeg.Loader(split, 4, augment=augment, seed=1, workers=1 if kind == "worker" else 0)
    for images, maps in loader:
        assert maps.shape == images[:, 0].shape and (maps == 0).any()
        difference = (images[:, 0] * 255 - maps).abs()
        assert difference.median() < 1 and (difference < 3).float().mean() > 0.98
    loader.close()


@pytest.mark.parametrize("fill", [-1, -100.5, 255, 1e6])
def test_padding_that_an_affine_moves_is_fill_to_the_bit(fill):
    source, _, name = with_maps("png16")
    augment, found = Augment(affine=Affine(degrees=15, translate=0.1)), []
    for each in (0, fill):
        split = Split(source, ScaleJitter(64, scale_range=(0.5, 1)), targets=FloatMap(name, fill=each))
        found.append([maps for _, maps, *_ in tarpeg.Loader(split, 4, augment=augment, workers=0, keys=True)])
    for zeros, maps in zip(*found, strict=True):
        assert (zeros == 0).any() and (maps[zeros == 0] == fill).all()


def test_maps_of_a_mosaic_are_those_of_its_parts():
    source, arrays, name = with_maps("png16")
    split = Split(source, Mosaic(80, p=0.9), flip=0.5, targets=FloatMap(name, fill=-1))
    loader = load(None, split=split, **HERE)
    for _, maps, _ in loader:
        (view,) = loader.claim().views
        for row, found in enumerate(maps):
            wanted, own = torch.full(view.size, -1.0), view.row(row)
            for part, id in enumerate(own.samples.tolist()):
                each = by_torchvision(arrays[id], own.parts().row(part), 1, -1)
                wanted = torch.where(each == -1, wanted, each)
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("runner", [RUNNERS[3], RUNNERS[6]], ids=name_of)
def test_batches_are_the_same_in_any_process(runner):
    source, _, name = with_maps("png16")
    found = []
    for settings in ({"workers": 0, "threads": 0}, runner):
        targets = [FloatMap(name), Boxes("json:objects"), tarpeg.PadMask()]
        loader = load(None, split=Split(source, ScaleJitter(50), flip=0.5, targets=targets), **settings)
        found.append([target for batch in loader for target in batch.targets])
        loader.close()
    for one, two in zip(*found, strict=True):
        assert one.keys() == two.keys() and one["depth"].dtype == torch.float32
        assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(two[name])) for name in one)


def test_rows_without_an_image_have_zeros():
    source, _, name = with_maps("png16")
    source.samples[2]["jpg"] = b"broken"
    split = Split(source, RandomResizedCrop(32), targets=FloatMap(name, fill=9))
    loader = load(None, split=split, batch_size=12, shuffle=False, workers=0, on_error="leave_out")
    with pytest.warns(UserWarning, match="left out"):
        batch = next(iter(loader))
    assert len(batch.image) == len(batch.targets) == 11


@pytest.mark.parametrize(
    ("member", "text"),
    [
        ({"depth.npy": None}, r"no member 'depth\.npy'"),
        ({"depth.npy": b"something"}, "member 'depth.npy', a map: .*magic"),
        ({"depth.npy": npy(np.zeros((48, 64), np.float32))[:-1]}, "bytes, not those of float32 48 x 64"),
        (
            {"depth.npy": npy(np.zeros((48, 64, 3), np.float32))},
            "it is 48 x 64 x 3, not one number per pixel",
        ),
        ({"depth.npy": npy(np.zeros((48, 64), complex))}, "its numbers are complex128"),
        ({"depth.npy": npy(np.array([[{}]], object), allow_pickle=True)}, "its numbers are object"),
        ({"depth.npy": npy(np.zeros((47, 64)))}, "a map, is 47 x 64, and its image 48 x 64"),
    ],
)
def test_broken_maps(member, text):
    source, _, name = with_maps("npy")
    source.samples[5] |= member
    source.samples[5] = {name: each for name, each in source.samples[5].items() if each is not None}
    split = Split(source, RandomResizedCrop(32), targets=FloatMap(name))
    with pytest.raises(tarpeg.ShardError, match=f"key 'scene/005'.*{text}"):
        list(load(None, split=split, **HERE))


def test_a_header_of_a_huge_array_allocates_nothing():
    content = npy(np.zeros((48, 64), np.float32)).replace(b"(48, 64), ", b"(1 << 50,)", 1)
    source, _, name = with_maps("npy")
    for shape in (b"(99999999999, 64), ", b"(1 << 50,)"):
        source.samples[5][name] = content.replace(b"(1 << 50,)", shape, 1)
        with pytest.raises(tarpeg.ShardError, match=r"key 'scene/005'.*a map"):
            list(load(None, split=Split(source, Whole(32), targets=FloatMap(name)), **HERE))


def test_a_png_of_colours_is_refused():
    source, _, name = with_maps("png8")
    source.samples[5][name] = png(np.zeros((48, 64, 3), np.uint8))
    with pytest.raises(tarpeg.ShardError, match="it is 48 x 64 x 3, not one number per pixel"):
        list(load(None, split=Split(source, RandomResizedCrop(32), targets=FloatMap(name)), **HERE))


def test_names_and_fields():
    for extension, name in (
        ("depth.png", "depth"),
        (".npy", "map"),
        ("left.disparity.npy", "left.disparity"),
    ):
        assert FloatMap(extension).fields == (name,)
    assert FloatMap("png", name="height").fields == ("height",)
    view = View.whole((2, 2), (2, 2))
    assert FloatMap("png", scale=0.5).move(np.array([[1, 2], [3, 4]]), view).tolist() == [[0.5, 1], [1.5, 2]]
    with pytest.raises(
        ValueError, match="two of them have the field 'depth'; give one FloatMap another name="
    ):
        Split("shards", Whole(32), targets=[FloatMap("depth.png"), FloatMap("depth.npy")])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"extension": "json:depth"}, r"extension='json:depth' of FloatMap"),
        ({"extension": "png", "name": ""}, "name='' of FloatMap"),
        ({"extension": "png", "name": "size"}, "name='size' of FloatMap is a field of each image"),
        ({"extension": "png", "scale": 0}, "scale=0 of FloatMap must be a finite number other than 0"),
        ({"extension": "png", "fill": float("nan")}, "fill=nan of FloatMap must be a finite number"),
        ({"extension": "png", "interpolation": "bicubic"}, "interpolation='bicubic' of FloatMap"),
        (
            {"extension": "png", "interpolation": "nearest", "antialias": True},
            "True is for 'bilinear', not 'nearest'",
        ),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(ValueError, match=text):
        FloatMap(**options)


def test_an_image_that_is_resized_before_it_is_cropped_is_refused():
    split = Split("shards", CenterCrop(32, shorter=40), fidelity="exact", targets=FloatMap("png"))
    with pytest.raises(ValueError, match="give fidelity='fast'"):
        tarpeg.loader.checks.check_split("train", split, None, training=True)


@pytest.mark.parametrize("dtype", ["<f4", ">f2", "|u1", "<i8"])
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (24,)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_headers_of_npy_are_read_as_numpy_reads_them(dtype, shape, order):
    file = io.BytesIO()
    np.save(file, np.asarray(np.arange(24).reshape(shape), dtype, order=order))
    assert _HEADER.match(file.getvalue())
    found = _array_of(file.getvalue())
    file.seek(0)
    wanted = np.load(file)
    assert found.dtype == wanted.dtype and np.array_equal(found, wanted)
    other = file.getvalue().replace(b"'fortran_order'", b" 'fortran_order'").replace(b"}  ", b"} ")
    assert not _HEADER.match(other) and np.array_equal(_array_of(other), wanted)


def test_a_header_with_a_type_that_numpy_has_not_is_broken():
    file = io.BytesIO()
    np.save(file, np.zeros((4, 6), np.float32))
    with pytest.raises(ValueError, match="descr"):
        _array_of(file.getvalue().replace(b"'<f4'", b"'<f1'"))


def test_maps_are_read_in_threads_at_other_depths_of_the_stack():
    """Python 3.11 cannot parse in several threads, which numpy does for each header."""
    file = io.BytesIO()
    np.save(file, np.zeros((4, 6), np.float32))
    content, errors = file.getvalue(), []

    def read(depth):
        if depth:
            return read(depth - 1)
        try:
            for _ in range(2000):
                _array_of(content)
        except SystemError as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(5 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
