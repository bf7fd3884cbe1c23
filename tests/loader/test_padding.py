"""Crops that pad, in a loader: the pixels of box, resize and padding; targets; the same in any process."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tarpeg
import torch
from helpers.loaders import load
from helpers.pictures import jpeg, picture, saved, tensor
from helpers.scenes import Scenes, objects
from PIL import Image
from tarpeg import (
    Augment,
    Boxes,
    LetterBox,
    Masks,
    PadMask,
    RandomCrop,
    RandomIoUCrop,
    RandomShortestSize,
    ScaleJitter,
    Split,
)
from tarpeg.loader.drawing import BoxError
from torchvision import transforms as v1
from torchvision.transforms import v2

HERE = {"workers": 0, "threads": 0, "on_error": "raise"}
SHAPES = [(37, 52), (80, 33), (48, 64), (120, 90), (20, 21), (64, 200), (31, 31), (55, 70)]
CROPS = [
    RandomCrop((40, 56), padding=(7, 9), pad_if_needed=True, fill=(200, 3, 90)),
    RandomCrop(24, padding=4, pad_if_needed=True),
    LetterBox((70, 50)),
    ScaleJitter(48, (0.2, 1.5), fill=7),
    RandomShortestSize([20, 33], 60, multiple=8, fill=9),
]
NAMES = ["crop", "cifar", "letterbox", "jitter", "shortest"]


class Pictures(tarpeg.Source):
    """JPEGs of several samplings and shapes, with a PNG and one on its side among them."""

    def __init__(self, broken=()):
        kinds = ["420", "444", "422", "progressive", "gray22", "420", "444", "cmyk"]
        shapes = zip(kinds, SHAPES, strict=True)
        self.files = [jpeg(kind, *shape, seed) for seed, (kind, shape) in enumerate(shapes)]
        self.files += [picture("PNG", 5, size=(44, 61)), picture("JPEG", 6, size=(44, 61), orientation=6)]
        self.files = [b"broken" if id in broken else file for id, file in enumerate(self.files)]

    def __len__(self):
        return len(self.files)

    def keys(self, ids):
        return [str(id) for id in ids]

    def members(self, ids, extension):
        boxes = [{"bbox": [3, 2, 12, 9], "category_id": 1}, {"bbox": [1, 8, 15, 10], "category_id": 2}]
        content = {"json": json.dumps({"objects": boxes}).encode()}
        return [self.files[id] if extension == "jpg" else content.get(extension) for id in ids]

    def extensions(self, id):
        return ["jpg", "json"]


def expected(file, view, fill, **options):
    """Decode, crop and resize one image alone, then pad it."""
    top, left, height, width = view.places[0].tolist()
    if not file.startswith(b"\xff\xd8"):
        file = tarpeg.shards.pillow.ppm(tarpeg.shards.pillow.open_upright(file, 10**6).convert("RGB"))
    given = [tensor(file)], torch.from_numpy(view.boxes), (height, width), torch.from_numpy(view.flips)
    image, status = tarpeg.decode_batch(*given, **options)
    assert status.tolist() == [0]
    fill = torch.tensor([fill] * 3 if isinstance(fill, int) else fill, dtype=torch.uint8)
    canvas = fill[:, None, None].repeat(1, *view.size)[: image.shape[1]]
    canvas[:, top : top + height, left : left + width] = image[0]
    return canvas


@pytest.mark.parametrize(
    "options", [{}, {"fidelity": "exact"}, {"channels": 1}], ids=["fast", "exact", "gray"]
)
@pytest.mark.parametrize("crop", CROPS, ids=NAMES)
def test_the_pixels_of_box_resize_and_padding(crop, options):
    source = Pictures()
    if options == {"channels": 1}:
        crop = type(crop)(**{**vars(crop), "fill": 60}) if isinstance(crop.fill, tuple) else crop
    loader = load(None, split=Split(source, crop, flip=0.5, target=None, **options), batch_size=5, **HERE)
    for batch in loader:
        (view,) = loader.claim().views
        assert view.places is not None and (view.places[:, 2:] > 0).all()
        for row, key in enumerate(batch.key):
            wanted = expected(source.files[int(key)], view.row(row), crop.fill, **options)
            assert torch.equal(batch.image[row], wanted), key
    if isinstance(crop, RandomShortestSize):
        assert (view.places[:, :2] == 0).all() and view.size != crop.size
        assert view.size[0] % 8 == 0 and view.size[0] - view.places[:, 2].max() < 8


def test_floats_are_normalised_with_their_padding():
    source, crop = Pictures(), CROPS[0]
    images = {}
    for dtype in (torch.uint8, torch.float32):
        split = Split(source, crop, flip=0.5, target=None)
        pixels = None
        if dtype == torch.float32:
            augment = Augment((0.4, 0.5, 0.6), (0.2, 0.3, 0.1), dtype=dtype)
            pixels = tarpeg.loader.augmenting.pixels_of(augment, True, 1)
        loader = load(None, split=split, batch_size=10, pixels=pixels, **HERE)
        images[dtype] = next(iter(loader)).image
    mean, std = (torch.tensor(each)[:, None, None] for each in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.1)))
    wanted = (images[torch.uint8] / 255 - mean) / std
    assert images[torch.float32].dtype == torch.float32
    torch.testing.assert_close(images[torch.float32], wanted, rtol=1e-5, atol=1e-5)


def test_planes_are_padded_too():
    """Of the operator: floats in contiguous memory; only cells are written, and a broken file makes zeros."""
    decode_sizes = tarpeg.ops.decode.decode_sizes
    file = tensor(jpeg("420", 30, 40))
    places = [[1, 2, 3, 20, 21, 4, 5, 6, 7, 10, 20, 30], [0, 0, 0, 9, 9, 0, 0, 9, 9, 1, 2, 3]]
    table = torch.tensor(places, dtype=torch.int32)
    boxes = torch.tensor([[0, 0, 30, 40]] * 2, dtype=torch.int32)
    results = []
    for format in (torch.channels_last, torch.contiguous_format):
        out = torch.full((2, 3, 32, 28), 5.0).contiguous(memory_format=format)
        status = decode_sizes(
            [file, file[:60]], boxes, None, [out], mean=[0.1] * 3, std=[0.5] * 3, places=table
        )
        assert status[0] == 0 and status[1] != 0
        results.append(out)
    assert torch.equal(*results)
    part = tarpeg.decode_batch([file], boxes[:1], (6, 7), mean=[0.1] * 3, std=[0.5] * 3, dtype=torch.float32)[
        0
    ]
    assert torch.equal(out[1, :, 6:12, 8:15], part[0])
    assert (out[0, :, :9, :9] == 0).all() and (out[0, :, 9:] == 5).all() and (out[0, :, :, 9:] == 5).all()
    assert (out[1, :, :2] == 5).all() and (out[1, :, 22:] == 5).all() and (out[1, :, :, 24:] == 5).all()
    torch.testing.assert_close(out[1, :, 2, 3], (torch.tensor([10.0, 20, 30]) / 255 - 0.1) / 0.5)
    for column, value in [(0, 2), (0, -1), (1, -1), (3, 31), (5, 15), (7, 0), (9, 256), (11, -1)]:
        odd = table.clone()
        odd[0, column] = value
        with pytest.raises(RuntimeError, match="places has"):
            decode_sizes([file, file], boxes, None, [out], mean=[0.1] * 3, std=[0.5] * 3, places=odd)
    with pytest.raises(RuntimeError, match="places must be"):
        decode_sizes([file, file], boxes, None, [out], mean=[0.1] * 3, std=[0.5] * 3, places=table[:1])


def test_views_of_several_sizes():
    source, crops = Pictures(), [CROPS[1], tarpeg.Whole(24), CROPS[2], CROPS[4]]
    loader = load(None, split=Split(source, crops, target=None), batch_size=10, **HERE)
    batch = next(iter(loader))
    views, singles = loader.claim().views, []
    assert [view.places is None for view in views] == [False, True, False, False]
    for view, images in zip(views, [*batch.image[0], *batch.image[1:]], strict=True):
        images = images.reshape(-1, *images.shape[-3:])
        singles.append(images)
        crop = crops[len(singles) - 1]
        if view.places is not None:
            for row, key in enumerate(batch.key):
                assert torch.equal(images[row], expected(source.files[int(key)], view.row(row), crop.fill))


@pytest.mark.parametrize("batch_size", [1, 6])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("crop", CROPS, ids=NAMES)
def test_targets_are_where_the_image_is(crop, kind, batch_size):
    """A white box on black keeps its place, and so do its mask and the mask of the padding."""
    source = Scenes({}, count=6, size=(60, 80))
    pixels = np.zeros((60, 80, 3), np.uint8)
    pixels[20:40, 30:60] = 255
    for sample in source.samples:
        sample["jpg"] = jpeg("444", 60, 80, rgb=pixels)
        if kind == "PNG":  # whose size is not known before Pillow opens it
            sample["jpg"] = saved(Image.fromarray(pixels), "PNG")
        sample |= objects((30, 20, 30, 20))
        sample["png"] = saved(Image.fromarray(pixels[..., 0] // 255), "PNG")
    crop = type(crop)(**{**vars(crop), "fill": 0})
    targets = [Boxes("json:objects"), Masks("png", fill=7), PadMask()]
    split = Split(source, crop, flip=0.5, targets=targets)
    loader = load(None, split=split, batch_size=batch_size, keys=False, **HERE)
    images, found = next(iter(loader))
    (view,) = loader.claim().views
    for row, (image, target) in enumerate(zip(images, found, strict=True)):
        top, left, height, width = view.places[row].tolist()
        assert target["size"].tolist() == [height, width]
        assert target["boxes"].canvas_size == tuple(image.shape[1:])
        pad = torch.ones(image.shape[1:], dtype=torch.bool)
        pad[top : top + height, left : left + width] = False
        assert target["pad_mask"].dtype == torch.bool and torch.equal(target["pad_mask"], pad)
        assert torch.equal(target["mask"] == 7, pad)
        if not len(target["boxes"]):
            assert (image < 128).all()
            continue
        for shown in (image[0] > 127, target["mask"] == 1):
            y, x = torch.nonzero(shown, as_tuple=True)
            bounds = torch.stack([x.min(), y.min(), x.max() + 1, y.max() + 1])
            assert (bounds - target["boxes"][0]).abs().max() < 1.6


def test_pad_masks_alone_and_under_an_affine():
    split = Split(Pictures(), CROPS[4], targets=PadMask())
    images, masks = next(iter(load(None, split=split, batch_size=4, keys=False, **HERE)))
    assert isinstance(masks, torch.Tensor) and masks.dtype == torch.bool and masks.any()
    assert masks.shape == (4, *images.shape[2:])
    matrix = np.array([[[1.0, 0, 3], [0, 1, 0]]])  # three pixels to the right
    placed = tarpeg.View(*(np.array([x], np.int32) for x in ((9, 9), (0, 0, 9, 9), 0)), (9, 12))
    placed = tarpeg.View(placed.sizes, placed.boxes, np.array([False]), (9, 12), matrix, placed.boxes)
    mask = PadMask().move(None, placed)
    assert mask[:, :3].all() and not mask[:, 3:].any()


@pytest.mark.parametrize(
    "runner", [{"workers": 0, "threads": 2, "prefetch": 1}, {"workers": 2}], ids=["t", "w"]
)
def test_batches_are_the_same_in_any_process(runner):
    split = Split(Pictures(broken=[3]), CROPS[4], flip=0.5, targets=[Boxes("json:objects"), PadMask()])
    batches = []
    for settings in ({"workers": 0, "threads": 0}, runner):
        loader = load(None, split=split, batch_size=3, keys=False, seed=5, **settings)
        with pytest.warns(UserWarning, match="takes its place"):
            found = [(images.clone(), targets, loader.claim().views[0]) for images, targets in loader]
        batches.append(found)
        loader.close()
    for (images, targets, view), (others, theirs, other) in zip(*batches, strict=True):
        assert torch.equal(images, others)
        assert np.array_equal(view.places, other.places) and view.size == other.size
        for one, two in zip(targets, theirs, strict=True):
            assert torch.equal(one["boxes"], two["boxes"]) and torch.equal(one["pad_mask"], two["pad_mask"])


class Odd(tarpeg.Whole):
    """A crop of a user's own, which pads."""

    def boxes(self, sizes, draws=None):
        place = np.tile([[1, 2, 5, *self.sides]], (len(sizes), 1))
        return np.concatenate([super().boxes(sizes), place], axis=1)


def test_a_crop_of_ones_own_may_pad():
    source, crop = Pictures(), Odd(20)
    object.__setattr__(crop, "sides", (6,))
    batch = next(iter(load(None, split=Split(source, crop, target=None), shuffle=False, **HERE)))
    assert (batch.image[:, :, 0] == 0).all() and (batch.image[:, :, 1:6, 2:8] > 0).any()
    object.__setattr__(crop, "sides", (19,))
    with pytest.raises(BoxError, match=r"place .*\(1, 2, 5, 19\).*20 x 20"):
        next(iter(load(None, split=Split(source, crop, target=None), **HERE)))
    object.__setattr__(crop, "sides", (6, 1))
    with pytest.raises(BoxError, match=r"\[4, 8\] with their places"):
        next(iter(load(None, split=Split(source, crop, target=None), **HERE)))


def test_a_crop_that_depends_on_the_objects(tmp_path):
    """Of JPEGs and of PNGs, and of a substitute: the boxes that are drawn are those of the sample."""
    split = Split(
        Pictures(broken=[3]), RandomIoUCrop(32), flip=0.5, targets=[Boxes("json:objects"), PadMask()]
    )
    batches = []
    for settings in ({"workers": 0, "threads": 0, "batch_size": 10}, {"workers": 1, "batch_size": 10}):
        loader = load(None, split=split, seed=2, shuffle=False, **settings)
        with pytest.warns(UserWarning, match="takes its place"):
            batches.append([(batch, loader.claim().views[0]) for _ in range(3) for batch in loader])
        loader.close()
    for (batch, view), (other, theirs) in zip(*batches, strict=True):
        assert torch.equal(batch.image, other.image) and np.array_equal(view.boxes, theirs.boxes)
        assert view.drops_by_centre and theirs.drops_by_centre
        centres = np.array([[9, 6.5], [8.5, 13]])
        for row, target in enumerate(batch.targets):
            top, left, height, width = view.boxes[row].tolist()
            x, y = centres.T
            is_inside = (left < x) & (x < left + width) & (top < y) & (y < top + height)
            is_whole = view.boxes[row, 2:].tolist() == view.sizes[row].tolist()
            assert is_inside.any() and (is_whole or len(target["boxes"]) == is_inside.sum())
    assert len({tuple(view.boxes[0]) for _, view in batches[0]}) > 1  # of one sample, in three epochs


@pytest.mark.parametrize("module", [v1, v2])
def test_a_random_crop_of_torchvision_is_native(module):
    for options in (
        {"padding": 4, "pad_if_needed": True},
        {"padding": [3, 1], "pad_if_needed": True, "fill": 7},
        {"padding": [1, 2, 3, 4], "pad_if_needed": True, "fill": (1, 2, 3)},
        {"pad_if_needed": True},
    ):
        steps = v2.Compose([module.RandomCrop(24, **options), module.RandomHorizontalFlip()])
        settings = {**HERE, "batch_size": 10, "seed": 3}
        given = load(None, split=Split(Pictures(), transform=steps, target=None), **settings)
        own = load(
            None, split=Split(Pictures(), RandomCrop(24, **options), flip=0.5, target=None), **settings
        )
        assert not given.split.runs_python
        assert torch.equal(next(iter(given)).image, next(iter(own)).image)
    for options in ({"padding": 4, "padding_mode": "reflect"}, {"padding": 30}, {"padding": 2, "fill": 0.5}):
        split = Split(Pictures(), transform=v2.Compose([module.RandomCrop(24, **options)]), target=None)
        assert split.runs_python, options
