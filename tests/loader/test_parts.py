"""Images of parts of several samples: pixels, targets, broken parts."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers.composed import found_by
from helpers.loaders import load
from helpers.odd_pictures import Pictures
from helpers.padded import moved_by_torchvision
from helpers.pictures import jpeg, saved, tensor
from helpers.scenes import Scenes, objects
from PIL import Image
from tarpeg import (
    Affine,
    Augment,
    Boxes,
    InstanceMasks,
    Keypoints,
    Masks,
    Mosaic,
    PadMask,
    Progressive,
    Split,
)
from torchvision import tv_tensors
from torchvision.transforms import v2

HERE = {"workers": 0, "threads": 0, "on_error": "raise"}
TARGETS = [
    Boxes("json:objects"),
    Keypoints("json:objects", [(0, 1)], count=2),
    InstanceMasks("json:objects", min_pixels=0),
    Masks("png", fill=9),
    PadMask(),
]


def composed(source, view, fill, **options):
    """Decode each part of a row alone, at its size, and paste it."""
    canvas = torch.full((options.get("channels", 3), *view.size), fill, dtype=torch.uint8)
    for part, id in enumerate(view.samples.tolist()):
        each, file = view.parts().row(part), source.files[id]
        top, left, height, width = each.places[0].tolist()
        if not file.startswith(b"\xff\xd8"):
            file = tarpeg.shards.pillow.ppm(tarpeg.shards.pillow.open_upright(file, 10**6).convert("RGB"))
        given = [tensor(file)], torch.from_numpy(each.boxes), (height, width), torch.from_numpy(each.flips)
        image, status = tarpeg.decode_batch(*given, **options)
        assert status.tolist() == [0]
        canvas[:, top : top + height, left : left + width] = image[0]
    return canvas


@pytest.mark.parametrize(
    "options", [{}, {"fidelity": "exact"}, {"channels": 1}], ids=["fast", "exact", "gray"]
)
def test_each_part_is_decoded_as_it_would_be_alone(options):
    source, seen = Pictures(), set()
    for size, p in (((96, 80), 0.8), ((31, 33), 1), (3, 1)):
        split = Split(source, Mosaic(size, p=p, fill=60), flip=0.5, target=None, **options)
        loader = load(None, split=split, batch_size=4, **HERE)
        for batch in loader:
            (view,) = loader.claim().views
            assert view.flips.any() and len(batch.image) == view.batch_rows.max() + 1
            for row, key in enumerate(batch.key):
                own = view.row(row)
                assert own.samples[0] == int(key), "the first part is of the sample itself"
                assert torch.equal(batch.image[row], composed(source, own, 60, **options)), key
                seen |= set(own.samples.tolist())
    assert seen == set(range(len(source)))


def test_floats_are_normalised_with_their_padding_and_colours():
    source, crop, images = Pictures(), Mosaic((70, 50), p=0.8, fill=(200, 3, 90)), {}
    for dtype in (torch.uint8, torch.float32):
        pixels = None
        if dtype == torch.float32:
            augment = Augment((0.4, 0.5, 0.6), (0.2, 0.3, 0.1), dtype=dtype)
            pixels = tarpeg.loader.augmenting.pixels_of(augment, True, 1)
        split = Split(source, crop, flip=0.5, target=None)
        images[dtype] = next(iter(load(None, split=split, batch_size=11, pixels=pixels, **HERE))).image
    mean, std = (torch.tensor(each)[:, None, None] for each in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.1)))
    assert (images[torch.uint8] == torch.tensor([200, 3, 90])[:, None, None]).all(dim=1).any()
    assert images[torch.float32].dtype == torch.float32
    wanted = (images[torch.uint8] / 255 - mean) / std
    torch.testing.assert_close(images[torch.float32], wanted, rtol=1e-5, atol=1e-5)


def moved_one_by_one(source, view):
    """Targets of the parts of a row, each moved alone by torchvision or by hand, and put together."""
    boxes, labels, points, masks = [], [], [], []
    mask = np.full(view.size, 9, np.uint8)
    for part, id in enumerate(view.samples.tolist()):
        each, values = view.parts().row(part), source.objects[id]
        box, place, flip = each.boxes[0].tolist(), each.places[0].tolist(), bool(each.flips[0])
        top, left, height, width = place
        given = torch.tensor([value["bbox"] for value in values], dtype=torch.float64).reshape(-1, 4)
        given[:, 2:] += given[:, :2]
        given = tv_tensors.BoundingBoxes(given, format="XYXY", canvas_size=source.sizes_of[id])
        moved = moved_by_torchvision(given, box, place, view.size, flip)
        low, high = torch.tensor([left, top]), torch.tensor([left + width, top + height])
        moved = torch.cat([moved[:, :2].maximum(low), moved[:, 2:].minimum(high)], dim=1)
        is_kept = ((moved[:, 2:] - moved[:, :2]) >= 1).all(dim=1)
        boxes.append(moved[is_kept])
        kept = [value for value, is_there in zip(values, is_kept, strict=True) if is_there]
        labels += [value["category_id"] for value in kept]
        matrix = each.matrices()[0]
        for value in kept:
            found = []
            for x, y, visibility in (value["keypoints"][:3], value["keypoints"][3:]):
                is_there = box[1] <= x < box[1] + box[3] and box[0] <= y < box[0] + box[2]
                found.append([*(matrix @ [x, y, 1])[:2], visibility] if is_there else [0.0, 0.0, 0.0])
            points.append(found[::-1] if flip else found)
        outlines = TARGETS[2].read(source, np.array([id]))[0]
        masks.append(TARGETS[2].move(outlines, each)["masks"][is_kept])
        cut = source.masks[id][nearest(box[0], box[2], height)[:, None], nearest(box[1], box[3], width)]
        mask[top : top + height, left : left + width] = cut[:, ::-1] if flip else cut
    return torch.cat(boxes), labels, points, torch.cat(masks), mask


def nearest(begin, length, count):
    """The pixels of the source under the centres of those of the result."""
    return begin + (2 * np.arange(count) + 1) * length // (2 * count)


def test_targets_are_those_of_the_parts_moved_one_by_one():
    source, checked = Pictures(), 0
    split = Split(source, Mosaic((96, 80), p=0.8), flip=0.5, targets=TARGETS)
    loader = load(None, split=split, batch_size=4, **HERE)
    for batch in (batch for _ in range(2) for batch in loader):
        (view,) = loader.claim().views
        for row, (key, target) in enumerate(zip(batch.key, batch.targets, strict=True)):
            own = view.row(row)
            boxes, labels, points, masks, mask = moved_one_by_one(source, own)
            assert target["labels"].tolist() == labels
            assert torch.equal(target["masks"], masks) and np.array_equal(target["mask"].numpy(), mask)
            assert torch.allclose(target["boxes"].double(), boxes, rtol=0, atol=1e-4)
            wanted = torch.tensor(points, dtype=torch.float32).reshape(-1, 2, 3)
            assert torch.allclose(target["keypoints"], wanted, rtol=0, atol=1e-4)
            assert target["image_id"] == int(key) and target["size"].tolist() == [96, 80]
            assert target["orig_size"].tolist() == list(source.sizes_of[int(key)])
            pad = torch.ones(96, 80, dtype=torch.bool)
            for top, left, height, width in own.places.tolist():
                pad[top : top + height, left : left + width] = False
            assert torch.equal(target["pad_mask"], pad) and not (target["masks"].bool() & pad).any()
            checked += len(labels)
    assert checked > 60


def test_one_target_alone_and_ones_own():
    class Key(tarpeg.Target):
        def read(self, source, ids):
            return source.keys(ids)

        def move(self, value, view):
            assert len(view) == 1 and view.samples is None
            return value

    crop = Mosaic(64)
    split = Split(Pictures(), crop, flip=0.5, targets={"key": Key(), "boxes": Boxes("json:objects")})
    loader = load(None, split=split, batch_size=4, **HERE)
    batch = next(iter(loader))
    (view,) = loader.claim().views
    found = [target["key"] for target in batch.targets]
    assert [each for row in found for each in row] == [str(id) for id in view.samples]
    assert [row[0] for row in found] == batch.key
    masks = next(iter(load(None, split=Split(Pictures(), crop, targets=Masks("png")), keys=False, **HERE)))[1]
    assert masks.shape == (4, 64, 64) and masks.dtype == torch.uint8 and (masks == 255).any()


@pytest.mark.parametrize("kind", ["policy", "worker", "arrival"])
def test_an_affine_moves_all_parts(kind):
    """White boxes on black stay around what is white, wherever the affine is drawn."""
    source = Scenes({}, count=8, size=(60, 80))
    pixels = np.zeros((60, 80, 3), np.uint8)
    pixels[20:40, 30:60] = 255
    for sample in source.samples:
        sample["jpg"] = jpeg("444", 60, 80, rgb=pixels)
        sample |= objects((30, 20, 30, 20))
        sample["png"] = saved(Image.fromarray(pixels[..., 0] // 255), "PNG")
    split = Split(
        source,
        Mosaic(96, fill=0),
        flip=0.5,
        targets=[Boxes("json:objects", min_size=0), Masks("png", fill=0)],
        transform=tarpeg.TrivialAugmentWide() if kind == "policy" else None,
    )
    affine = Affine(translate=0.2, scale=(0.8, 1.2))
    augment = None if kind == "policy" else Augment((0, 0, 0), (1, 1, 1), affine=affine)
    loader = tarpeg.Loader(split, 8, augment=augment, seed=3, workers=1 if kind == "worker" else 0)
    checked = 0
    for images, found in (batch for _ in range(2) for batch in loader):
        for image, target in zip(images, found, strict=True):
            inside = torch.zeros(image.shape[1:], dtype=torch.bool)
            for x1, y1, x2, y2 in target["boxes"].tolist():
                inside[max(0, int(y1) - 2) : int(y2) + 3, max(0, int(x1) - 2) : int(x2) + 3] = True
            shown = target["mask"] == 1
            if shown.sum() > 60:
                assert (shown & ~inside).sum() <= 0.1 * shown.sum()
                if kind != "policy":
                    white = image[0] > image[0].mean()
                    assert (white == shown).float().mean() > 0.9
                checked += 1
    loader.close()
    assert checked >= 8


def test_partners_are_of_the_subset():
    split = Split(Pictures(), Mosaic(64), target=None, subset=[0, 2, 7])
    loader = load(None, split=split, batch_size=3, **HERE)
    found = set()
    for _ in range(4):
        for _ in loader:
            found |= set(loader.claim().views[0].samples.tolist())
    assert found == {0, 2, 7}


def test_repeated_samples_have_other_partners():
    split = Split(Pictures(), Mosaic(64, scale=(0.5, 0.5)), target=None, repeats=4)
    loader = load(None, split=split, batch_size=8, **HERE)
    next(iter(loader))
    request = loader.claim()
    rows = [request.views[0].row(row).samples.tolist() for row in range(8)]
    assert len({tuple(row) for row in rows}) == 8 and len({row[0] for row in rows}) == 2


# --- what is broken


@pytest.mark.parametrize("kind", ["image", "target"])
def test_a_broken_part_breaks_its_row(kind):
    """The message names the part; another sample's whole mosaic takes the place."""
    source = Pictures(broken=[3] if kind == "image" else [])
    if kind == "target":
        source.objects[3][0]["bbox"] = [1, 1, -5, 2]
    split = Split(source, Mosaic(48, scale=(0.5, 0.5)), targets=TARGETS)
    with pytest.raises((tarpeg.DecodeError, tarpeg.ShardError), match=r"shard Pictures, key '3'"):
        for _ in load(None, split=split, seed=1, **HERE):
            pass
    loader = load(None, split=split, seed=1, workers=0, threads=0, max_bad=1.0, shuffle=False)
    with pytest.warns(UserWarning, match=r"key '3'.*takes its place"):
        batches = found_by(loader)
    replaced = 0
    for images, keys, _, view in batches:
        assert 3 not in view.samples
        first = np.flatnonzero(np.diff(view.batch_rows, prepend=-1))
        assert [str(id) for id in view.samples[first]] == keys
        for row, image in enumerate(images):
            assert torch.equal(image, composed(source, view.row(row), 114))
        replaced += 1
    assert replaced == 3 and [key for _, keys, _, _ in batches for key in keys] != [
        str(id) for id in range(11)
    ]


def test_the_largest_image_is_that_of_the_loader(monkeypatch):
    """Also of a PNG, whose size is read before it is opened."""
    monkeypatch.setattr(tarpeg.shards.pillow.upright_size, "__defaults__", (100,))
    source = Pictures()
    split = Split(source, Mosaic(48, scale=(0.5, 0.5)), target=None)
    loader = load(None, split=split, batch_size=11, max_pixels=50_000, **HERE)
    batch = next(iter(loader))
    (view,) = loader.claim().views
    for row, image in enumerate(batch.image):
        assert torch.equal(image, composed(source, view.row(row), 114))
    with pytest.raises(tarpeg.DecodeError, match=r"pixels .*max_pixels=2000"):
        next(iter(load(None, split=split, batch_size=11, max_pixels=2000, **HERE)))


def test_broken_rows_are_left_out():
    split = Split(Pictures(broken=[3]), Mosaic(48), targets=Boxes("json:objects"))
    loader = load(None, split=split, batch_size=11, shuffle=False, workers=0, on_error="leave_out")
    with pytest.warns(UserWarning, match="left out of its batch"):
        batch = next(iter(loader))
    (view,) = loader.claim().views
    assert len(batch.image) == len(batch.targets) == len(batch.key) == view.batch_rows.max() + 1 < 11
    assert 3 not in view.samples


# --- what is refused


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "crop=Mosaic.*target='cls'.*targets="),
        ({"target": None, "views": 2}, "crop=Mosaic.*is for one view, not 2"),
        ({"target": None, "transform": lambda image: image}, "no steps of transform= in Python"),
        ({"targets": Boxes("json"), "transform": v2.RandomRotation(9)}, "no steps of transform= in Python"),
    ],
)
def test_what_a_mosaic_cannot_do(options, text):
    for crop in (Mosaic(48), Progressive(tarpeg.Whole(48), {3: Mosaic(48)})):
        with pytest.raises(ValueError, match=text):
            Split("shards", crop, **options)
