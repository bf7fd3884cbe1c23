"""Targets of samples with several images: each image's are those of the first, moved by torchvision."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import tarpeg
import torch
from helpers.loaders import RUNNERS, name_of
from helpers.pictures import jpeg, saved
from helpers.small_tars import write_tar
from PIL import Image
from tarpeg import (
    Augment,
    Boxes,
    FloatMap,
    LetterBox,
    Loader,
    LoaderConfig,
    Masks,
    RandomCrop,
    RandomResizedCrop,
    Split,
)
from torchvision import tv_tensors
from torchvision.transforms.v2 import InterpolationMode, functional

COUNT, IMAGES = 9, ["left.jpg", "right.jpg"]
TARGETS = {
    "boxes": Boxes("json:objects"),
    "depth": FloatMap("depth.npy", fill=-1),
    "mask": Masks("mask.png"),
}
CROP = RandomResizedCrop(32, scale=(0.1, 0.8))
HERE = {"workers": 0, "threads": 0}


class Stereo:
    """A sample: a left and a right image, and what belongs to the left one.

    Args:
        number: Of the sample.
        scale: How many times larger the right image is than the left one.
    """

    def __init__(self, number, scale=1):
        rng = np.random.default_rng(number)
        self.number, self.size = number, (60 + number, 70 + 2 * number)
        height, width = self.size
        self.images = {
            "left.jpg": jpeg("420", *self.size, seed=number),
            "right.jpg": jpeg("420", scale * height, scale * width, seed=100 + number),
        }
        self.depth = rng.normal(size=self.size).astype(np.float32)
        self.mask = rng.integers(0, 20, self.size).astype(np.uint8)
        low = rng.integers(0, 40, (5, 2))
        self.boxes = np.concatenate([low, low + rng.integers(4, 25, (5, 2))], axis=1)  # x1, y1, x2, y2

    def members(self):
        array, boxes = io.BytesIO(), []
        for label, (x1, y1, x2, y2) in enumerate(self.boxes.tolist(), 1):
            boxes.append({"bbox": [x1, y1, x2 - x1, y2 - y1], "category_id": label})
        np.save(array, self.depth)
        return self.images | {
            "json": json.dumps({"objects": boxes}).encode(),
            "depth.npy": array.getvalue(),
            "mask.png": saved(Image.fromarray(self.mask), "PNG"),
        }


def shard(path, scale=1, changed=None):
    members = []
    for number in range(COUNT):
        own = Stereo(number, scale).members() | (changed or {}).get(number, {})
        members += [(f"k{number}.{name}", data) for name, data in own.items() if data is not None]
    return write_tar(path, members)


def loader_of(source, crop=CROP, *, augment=None, runner=None, training=True, **options):
    config = LoaderConfig(batch_size=4, on_error=options.pop("on_error", "raise"), **(runner or HERE))
    given = {"flip": 0.5, "image": IMAGES, "targets": TARGETS, **options}
    return Loader(Split(source, crop, **given), training=training, augment=augment, config=config, keys=True)


def moved(value, mode, view, size, fill):
    """A map of the left image as torchvision cuts, resizes, mirrors and pads it."""
    (box,), (place,) = view.boxes.tolist(), view.all_places.tolist()
    part = functional.crop(torch.from_numpy(value)[None], *box)
    part = functional.resize(part, place[2:], mode, antialias=False)
    part = functional.horizontal_flip(part) if view.flips[0] else part
    sides = [place[1], place[0], size[1] - place[1] - place[3], size[0] - place[0] - place[2]]
    return functional.pad(part, sides, fill=fill)[0]


def moved_boxes(boxes, view):
    """The boxes that are seen, and their labels, one after another."""
    (top, left, height, width), (to_top, to_left, to_height, to_width) = view.boxes[0], view.all_places[0]
    found = []
    for label, box in enumerate(boxes.tolist(), 1):
        x1, x2 = (min(max(x - left, 0), width) / width * to_width for x in box[0::2])
        y1, y2 = (min(max(y - top, 0), height) / height * to_height for y in box[1::2])
        if min(x2 - x1, y2 - y1) < 1:  # min_size
            continue
        if view.flips[0]:
            x1, x2 = to_width - x2, to_width - x1
        found.append([to_left + x1, to_top + y1, to_left + x2, to_top + y2, label])
    found = torch.tensor(found).reshape(-1, 5)
    return found[:, :4].float(), found[:, 4].long()


def check(found, sample, view, size):
    """Compare the targets of one image with those of the twin; view: what is shown of the left image."""
    mask = moved(sample.mask, InterpolationMode.NEAREST_EXACT, view, size, fill=255)
    assert torch.equal(found["mask"], mask)
    assert torch.equal(found["depth"], moved(sample.depth, InterpolationMode.BILINEAR, view, size, fill=-1))
    boxes, labels = moved_boxes(sample.boxes, view)
    assert type(found["boxes"]) is tv_tensors.BoundingBoxes and found["boxes"].canvas_size == size
    assert torch.allclose(found["boxes"].as_subclass(torch.Tensor), boxes, atol=1e-4)
    assert torch.equal(found["labels"], labels)
    assert found["orig_size"].tolist() == list(sample.size)


CROPS = {
    "one": CROP,
    "two sizes": [RandomResizedCrop(size, scale=(0.1, 0.8)) for size in (32, (20, 40))],
    "padded": LetterBox((40, 24)),
    "of pixels": RandomCrop(48),
}


@pytest.mark.parametrize("scale", [1, 3])
@pytest.mark.parametrize("crop", CROPS)
def test_targets_show_the_shared_box_in_each_image(tmp_path, crop, scale):
    loader, seen = loader_of(shard(tmp_path / "a.tar", scale), CROPS[crop]), []
    for batch in loader:
        views = loader.claim().views
        assert len(batch.targets) == len(views) == 2
        for row, key in enumerate(batch.key):
            first = views[0].row(row)
            assert views[1].boxes[row].tolist() == (scale * first.boxes[0]).tolist()
            for view, targets in zip(views, batch.targets, strict=True):
                # Of the left image, whatever the size of the right one.
                check(targets[row], Stereo(int(key[1:])), replace(first, size=view.size), view.size)
            seen.append(key)
    assert sorted(seen) == [f"k{number}" for number in range(COUNT)]


def test_targets_follow_each_image_with_a_box_of_its_own(tmp_path):
    loader = loader_of(shard(tmp_path / "a.tar"), shared_box=False)
    apart = 0
    for batch in loader:
        views = loader.claim().views
        for view, targets in zip(views, batch.targets, strict=True):
            for row, key in enumerate(batch.key):
                check(targets[row], Stereo(int(key[1:])), view.row(row), (32, 32))
        apart += int((views[0].boxes != views[1].boxes).any(axis=1).sum())
    assert apart == COUNT


def test_targets_of_the_first_image_are_those_of_a_split_of_it_alone(tmp_path):
    source = shard(tmp_path / "a.tar")
    for target in (FloatMap("depth.npy"), Masks("mask.png"), Boxes("json:objects")):
        for shared in (True, False):
            both = loader_of(source, targets=target, shared_box=shared)
            alone = loader_of(source, targets=target, image="left.jpg")
            for batch, other in zip(both, alone, strict=True):
                assert batch.key == other.key and torch.equal(batch.image[0], other.image)
                if isinstance(target, Boxes):
                    for found, wanted in zip(batch.targets[0], other.targets, strict=True):
                        assert torch.equal(found["boxes"], wanted["boxes"])
                else:
                    assert torch.equal(batch.targets[0], other.targets)


def facts(loader):
    found = []
    for batch in loader:
        targets = [
            {name: np.asarray(value).tolist() for name, value in each.items()}
            for of_image in batch.targets
            for each in of_image
        ]
        found.append((batch.key, batch.image.numpy().tobytes(), targets))
    loader.close()
    return found


BROKEN = {
    "image": {"right.jpg": b"\xff\xd8\xff broken"},
    "no image": {"right.jpg": None},
    "map": {"depth.npy": b"broken"},
    "size": {"depth.npy": Stereo(5).members()["depth.npy"]},
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
def test_a_broken_image_or_target_follows_the_policy(tmp_path, case, shared):
    source = shard(tmp_path / "a.tar", changed={3: BROKEN[case]})
    match = "a.tar, key 'k3': " + ("image is .*'right.jpg'" if "image" in case else "member 'depth.npy'")
    with pytest.raises((tarpeg.DecodeError, tarpeg.ShardError), match=match):
        facts(loader_of(source, shared_box=shared))
    with pytest.warns(UserWarning, match=match + ".*left out"):
        loader = loader_of(source, on_error="leave_out", training=False, shared_box=shared)
        assert [key for batch in loader for key in batch.key] == [f"k{n}" for n in range(COUNT) if n != 3]
    with pytest.warns(UserWarning, match=match + ".* takes its place"):
        loader = loader_of(source, on_error="substitute", shared_box=shared)
        for batch in loader:
            views = loader.claim().views
            assert "k3" not in batch.key
            for view, targets in zip(views, batch.targets, strict=True):
                for row, key in enumerate(batch.key):
                    check(targets[row], Stereo(int(key[1:])), view.row(row), (32, 32))


def test_images_of_two_sizes_with_boxes_of_their_own_have_no_targets(tmp_path):
    source = shard(tmp_path / "a.tar", changed={3: Stereo(3, scale=2).images})
    match = "key 'k3': image 'right.jpg' is 126 x 152, and 'left.jpg' is 63 x 76: .*shared_box=False"
    with pytest.raises(tarpeg.ShardError, match=match):
        facts(loader_of(source, shared_box=False))
    with pytest.warns(UserWarning, match=match + ".* takes its place"):
        found = facts(loader_of(source, shared_box=False, on_error="substitute"))
    assert "k3" not in [key for keys, *_ in found for key in keys]


@pytest.mark.sweep
@pytest.mark.parametrize("runner", RUNNERS[1:], ids=name_of)
def test_the_same_targets_for_any_runner(tmp_path, runner):
    source = shard(tmp_path / "a.tar", scale=2)
    assert facts(loader_of(source, runner=runner)) == facts(loader_of(source))


def test_an_affine_moves_the_targets_of_each_image_as_the_image(tmp_path):
    """Under an Augment that draws for each image its own, the map of a picture stays that picture."""
    members = []
    for number in range(6):
        levels = np.tile(np.linspace(20, 235, 96), (64, 1)).astype(np.uint8)
        picture = saved(Image.fromarray(levels).convert("RGB"), "PNG")
        own = {"left.png": picture, "right.png": picture, "level.png": saved(Image.fromarray(levels), "PNG")}
        members += [(f"k{number}.{name}", data) for name, data in own.items()]
    source = write_tar(tmp_path / "a.tar", members)
    augment = Augment(
        (0, 0, 0), (1, 1, 1), flip=0.5, affine=tarpeg.Affine(degrees=15, translate=0.1, scale=(0.9, 1.1))
    )
    loader = loader_of(
        source,
        RandomResizedCrop(48, scale=(0.5, 1)),
        image=["left.png", "right.png"],
        targets=FloatMap("level.png"),
        augment=augment,
        shared_box=False,
    )
    for batch in loader:
        assert not torch.equal(batch.targets[0], batch.targets[1])
        for images, maps in zip(batch.image, batch.targets, strict=True):
            difference = (images[:, 0] * 255 - maps).abs()
            assert difference.median() < 1 and (difference < 3).float().mean() > 0.97


def test_a_pattern_has_no_targets():
    with pytest.raises(ValueError, match=r"targets=Boxes and image='\*.jpg'.*Give a list of extensions"):
        Split("a.tar", CROP, image="*.jpg", targets=Boxes("json:objects"))


def test_a_sheet_draws_the_targets_of_each_image(tmp_path):
    source = shard(tmp_path / "a.tar", scale=2)
    split = Split(source, CROP, image=IMAGES, targets=TARGETS, shuffle=False)
    plain = Split(source, CROP, image=IMAGES, target=None, shuffle=False)
    sheets = []
    for number, each in enumerate((split, plain)):
        data = tarpeg.ShardDataModule(train=each, batch_size=4, workers=0, augment=Augment())
        path = tarpeg.contact_sheet(data, tmp_path / f"{number}.png", samples=3)
        sheets.append(np.asarray(Image.open(path).convert("RGB"), np.int64))
    assert sheets[0].shape == sheets[1].shape and (sheets[0] != sheets[1]).any()
