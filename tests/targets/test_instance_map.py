"""Objects in a picture with a number per object: read, moved, matched, pasted, and what is broken."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import tarpeg
import torch
from helpers.loaders import load
from helpers.pictures import saved
from helpers.scenes import Scenes
from PIL import Image
from tarpeg import (
    Boxes,
    CopyPaste,
    InstanceMap,
    InstanceMasks,
    RandomResizedCrop,
    ScaleJitter,
    Split,
    View,
    Whole,
)
from tarpeg.targets.moved import dicts_of
from tarpeg.targets.steps import dropped
from torchvision import ops

HERE = {"workers": 0, "threads": 0, "on_error": "raise"}


def png(array):
    return saved(Image.fromarray(array), "PNG")


def pictures(count=8, size=(48, 64), dtype=np.uint8, numbers=(0, 0, 1, 2, 7, 255)):
    """Pictures of blocks of 4 pixels, so that objects have several parts, and a source of them."""
    rng = np.random.default_rng(7)
    found = [
        np.kron(rng.choice(numbers, (size[0] // 4, size[1] // 4)), np.ones((4, 4))).astype(dtype)
        for _ in range(count)
    ]
    return found, Scenes({number: {"png": png(each)} for number, each in enumerate(found)}, count, size)


def by_hand(picture, numbers, box, flip, size, place=None):
    """Mask, box and area of each number in the picture that is moved as a mask is."""
    top, left, height, width = place or (0, 0, *size)
    y = box[0] + (2 * np.arange(height) + 1) * box[2] // (2 * height)
    x = box[1] + (2 * np.arange(width) + 1) * box[3] // (2 * width)
    part = picture[y[:, None], x]
    moved = np.full(size, -1)
    moved[top : top + height, left : left + width] = part[:, ::-1] if flip else part
    masks = np.stack([moved == number for number in numbers])
    kept = masks.any(axis=(1, 2))
    masks = torch.from_numpy(masks[kept])
    boxes = ops.masks_to_boxes(masks) + torch.tensor([0, 0, 1, 1]) if len(masks) else torch.zeros(0, 4)
    return masks, boxes, kept


@pytest.mark.parametrize("crop", [RandomResizedCrop((40, 30), scale=(0.01, 1)), ScaleJitter(50)])
def test_objects_are_those_of_the_moved_picture(crop):
    found, source = pictures()
    loader = load(None, split=Split(source, crop, flip=0.5, targets=InstanceMap("png")), **HERE)
    checked = 0
    for batch in (batch for _ in range(3) for batch in loader):
        (view,) = loader.claim().views
        for row, target in enumerate(batch.targets):
            id = int(batch.key[row][-3:])
            given = (view.boxes[row].tolist(), view.flips[row], view.size, view.all_places[row].tolist())
            masks, boxes, _ = by_hand(found[id], (1, 2, 7), *given)
            assert torch.equal(target["masks"], masks.to(torch.uint8))
            assert torch.equal(target["boxes"], boxes.float())
            assert target["area"].tolist() == masks.sum(dim=(1, 2)).tolist()
            assert target["labels"].tolist() == [1] * len(masks) and target["iscrowd"].tolist() == [0] * len(
                masks
            )
            assert target["image_id"] == id
            checked += len(masks)
    assert checked > 30


def test_numbers_of_16_bits_and_colours():
    cityscapes, source = pictures(dtype=np.uint16, numbers=(0, 7, 26, 26000, 26001, 24003))
    targets = InstanceMap("png", divisor=1000, labels={24: 1, 26: 2})
    batch = next(iter(load(None, split=Split(source, Whole((48, 64)), targets=targets), **HERE)))
    for key, target in zip(batch.key, batch.targets, strict=True):
        picture = cityscapes[int(key[-3:])]
        assert target["labels"].tolist() == [1, 2, 2]
        wanted = np.stack([picture == number for number in (24003, 26000, 26001)])
        assert np.array_equal(target["masks"].numpy(), wanted)
    colours = np.zeros((48, 64, 3), np.uint8)
    colours[:10], colours[10:20] = (3, 0, 1), (0, 2, 0)
    source.samples[0]["png"] = png(colours)
    value = InstanceMap("png", divisor=1).read(source, np.array([0]))[0]
    assert value.labels.tolist() == [512, 65539]
    assert InstanceMap("png").move(value, View.whole((48, 64), (48, 64)))["area"].tolist() == [640, 640]


def with_objects(source, found, field="id"):
    """Add JSON objects in another order than that of their numbers; one of them is in no picture."""
    for picture, sample in zip(found, source.samples, strict=True):
        objects = []
        for number in (7, 1, 99, 2):
            y, x = np.nonzero(picture == number) if number != 99 else ([0], [0])
            box = [int(min(x)), int(min(y)), int(max(x) - min(x) + 1), int(max(y) - min(y) + 1)]
            objects.append({"bbox": box, "category_id": number, field: number})
        sample["json"] = json.dumps({"objects": objects}).encode()


def test_masks_are_those_of_the_objects_of_boxes():
    found, source = pictures()
    with_objects(source, found)
    targets = [
        Boxes("json:objects", min_size=0),
        InstanceMap("png", objects="json:objects", id="id"),
    ]
    loader = load(None, split=Split(source, RandomResizedCrop((40, 30)), flip=0.5, targets=targets), **HERE)
    for batch in loader:
        (view,) = loader.claim().views
        for row, target in enumerate(batch.targets):
            given = view.boxes[row].tolist(), view.flips[row], view.size
            masks, boxes, kept = by_hand(found[int(batch.key[row][-3:])], (7, 1, 2), *given)
            assert target["labels"].tolist() == np.array([7, 1, 2])[kept].tolist(), "99 has no pixels"
            assert torch.equal(target["masks"], masks.to(torch.uint8))
            assert (target["boxes"][:, :2] <= boxes[:, :2] + 1).all(), "of all of the object, clipped"
            assert (target["boxes"][:, 2:] >= boxes[:, 2:] - 1).all()
    in_order = InstanceMap("png", objects="json:objects")
    value = in_order.read(source, np.array([0]))[0]
    masks = in_order.move(value, View.whole((48, 64), (48, 64)))["masks"].numpy()
    assert np.array_equal(masks, np.stack([found[0] == 1, found[0] == 2])), "3 and 4 have no pixels"


@pytest.mark.parametrize("shift", [0, 2, 512])
@pytest.mark.parametrize("form", ["colours", "16 bits"])
def test_a_picture_with_numbers_of_its_own_needs_id(form, shift):
    """Without id= the objects of every image but the first would be dropped."""
    numbers = [10 + shift, 11 + shift]
    picture = np.zeros((48, 64), np.uint16)
    picture[8:20, 8:20], picture[30:40, 30:40], picture[:4] = *numbers, 255
    colours = np.stack([picture & 255, picture >> 8, picture * 0], axis=-1).astype(np.uint8)
    objects = [{"bbox": [0, 0, 1, 1], "category_id": 9, "id": number} for number in numbers]
    sample = {"png": png(colours if form == "colours" else picture)}
    source = Scenes({0: {**sample, "json": json.dumps({"objects": objects}).encode()}}, 1, (48, 64))
    right = InstanceMap("png", objects="json:objects", id="id")
    masks = right.move(right.read(source, np.array([0]))[0], View.whole((48, 64), (48, 64)))["masks"].numpy()
    assert np.array_equal(masks, np.stack([picture == number for number in numbers]))
    message = f"are 1 to 2 without id=, and others have {numbers[0]} to {numbers[1]}. Give InstanceMap.id="
    split = Split(source, Whole((48, 64)), targets=replace(right, id=None))
    with pytest.raises(tarpeg.ShardError, match=message):
        next(iter(load(None, split=split, **HERE)))


@pytest.mark.parametrize("is_matched", [False, True])
def test_objects_of_pictures_can_be_pasted(is_matched):
    found, source = pictures()
    with_objects(source, found)
    targets = InstanceMap("png")
    if is_matched:
        targets = [Boxes("json:objects"), InstanceMap("png", objects="json:objects", id="id")]
    crop = CopyPaste(ScaleJitter((48, 64), scale_range=(1, 1)), p=1)
    loader = load(None, split=Split(source, crop, targets=targets), **HERE)
    pasted = 0
    for batch in loader:
        (view,) = loader.claim().views
        for row, target in enumerate(batch.targets):
            assert (target["masks"].sum(dim=0) <= 1).all()
            ids = view.row(row).samples.tolist()
            parts = [found[id] for id in ids]
            for number, mask in enumerate(target["masks"].numpy().astype(bool)):
                assert any(len({*part[mask]}) == 1 for part in parts)
                if not is_matched:
                    y, x = mask.nonzero()
                    bounds = [x.min(), y.min(), x.max() + 1, y.max() + 1]
                    assert target["boxes"][number].tolist() == bounds
                    assert target["area"][number] == mask.sum()
            pasted += len(ids) == 2
    assert pasted >= 6


def test_voc_objects_from_shards(tmp_path):
    """Masks in the order of the XML, as VOC numbers them."""
    for part in ("JPEGImages", "Annotations", "ImageSets/Main", "SegmentationObject"):
        (tmp_path / part).mkdir(parents=True)
    Image.new("RGB", (60, 40)).save(tmp_path / "JPEGImages" / "a.jpg")
    boxes = [("cat", 31, 1, 40, 20), ("dog", 1, 1, 10, 20)]
    text = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax>"
        f"<ymax>{y2}</ymax></bndbox></object>"
        for name, x1, y1, x2, y2 in boxes
    )
    (tmp_path / "Annotations" / "a.xml").write_text(f"<annotation>{text}</annotation>")
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("a")
    picture = np.zeros((40, 60), np.uint8)
    picture[:20, 30:40], picture[:20, :10], picture[20] = 1, 2, 255
    image = Image.fromarray(picture, "P")
    image.putpalette(list(range(256)) * 3)
    image.save(tmp_path / "SegmentationObject" / "a.png")
    tarpeg.make_shards(tmp_path / "shards", tarpeg.Voc(tmp_path, masks="SegmentationObject"), workers=0)
    targets = [Boxes("json:objects"), InstanceMap("png", objects="json:objects")]
    split = Split(tmp_path / "shards" / "train-*.tar", Whole((40, 60)), targets=targets)
    (target,) = next(iter(load(None, split=split, batch_size=1, **HERE))).targets
    assert target["labels"].tolist() == [8, 12]
    assert torch.equal(ops.masks_to_boxes(target["masks"]) + torch.tensor([0, 0, 1, 1]), target["boxes"])


@pytest.mark.parametrize(
    ("member", "options", "text"),
    [
        ({"png": None}, {}, "no member 'png'"),
        ({"png": b"something"}, {}, "member 'png', a picture of objects: "),
        ({"png": png(np.zeros((47, 64), np.uint8))}, {}, "objects, is 47 x 64, and its image 48 x 64"),
        ({}, {"divisor": 1, "labels": {1: 1}}, "the object 2, of class 2, which is not in labels="),
        ({}, {"objects": "json:objects", "id": "id"}, "field 'objects.0.id' is null, not the number"),
        ({}, {"objects": "json:nothing"}, "nothing"),
    ],
)
def test_broken_pictures(member, options, text):
    _, source = pictures()
    source.samples[5] |= member
    source.samples[5] = {name: each for name, each in source.samples[5].items() if each is not None}
    if not member:
        source.samples = source.samples[5:6]
    split = Split(source, RandomResizedCrop(32), targets=InstanceMap("png", **options))
    with pytest.raises(tarpeg.ShardError, match=f"key 'scene/.*{text}"):
        list(load(None, split=split, batch_size=1, **HERE))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"extension": "json:objects"}, "extension='json:objects' of InstanceMap"),
        ({"extension": "png", "ignore": 0}, "ignore=0 of InstanceMap"),
        ({"extension": "png", "divisor": 0}, "divisor=0 of InstanceMap"),
        ({"extension": "png", "labels": {1: 1}}, "needs divisor="),
        ({"extension": "png", "id": "id"}, "id='id' of InstanceMap"),
        (
            {"extension": "png", "objects": "json:a", "divisor": 9},
            "divisor=9 of InstanceMap is for",
        ),
        ({"extension": "png", "objects": "a/b"}, "InstanceMap"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(ValueError, match=text):
        InstanceMap(**options)


def test_two_kinds_of_masks_are_refused():
    with pytest.raises(ValueError, match="two of them have the field 'boxes'"):
        Split("shards", Whole(32), targets=[Boxes("json:objects"), InstanceMap("png")])
    with pytest.raises(ValueError, match="two of them have the field 'masks'"):
        Split("shards", Whole(32), targets=[InstanceMasks("json"), InstanceMap("png", objects="json")])


@pytest.mark.parametrize("options", [{}, {"divisor": 2, "min_pixels": 9}, {"objects": "json:o", "id": "n"}])
@pytest.mark.parametrize("size", [(40, 30), (33, 64)])
def test_what_views_need_of_pictures_is_what_all_of_them_gives(options, size):
    found, source = pictures(9)
    source.samples[3]["png"] = png(found[3].astype(np.uint16) * 200)  # is read whole
    for number in range(9):
        objects = [{"n": each} for each in (7, 300, 1, 0, 9)[: number % 6]]
        source.samples[number]["json"] = json.dumps({"o": objects}).encode()
    source.samples[8]["png"] = png(np.zeros((48, 64), np.uint8))
    rng, ids = np.random.default_rng(3), np.arange(9)
    corner = rng.integers(0, 20, (9, 2))
    boxes = np.concatenate([corner, rng.integers(1, 28, (9, 2))], axis=1).astype(np.int32)
    view = View(np.tile(np.array([48, 64], np.int32), (9, 1)), boxes, rng.random(9) < 0.5, size)
    places = np.concatenate([rng.integers(0, 5, (9, 2)), rng.integers(1, 25, (9, 2))], axis=1)
    turned = np.tile(np.array([[0.9, -0.3, 4.0], [0.3, 0.9, -2.0]]), (9, 1, 1))
    target = InstanceMap("png", **options)
    for each in (view, replace(view, places=places.astype(np.int32)), view.then(turned)):
        values = target.read_views(source, ids, [each], 1)
        assert [type(value).__name__ for value in values].count("Shown") == 8
        some, whole = (target.move_all(given, each) for given in (values, target.read(source, ids)))
        wanted = dicts_of(dropped([whole]), 9)
        for one, other in zip(dicts_of(dropped([some]), 9), wanted, strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)
        assert sum(len(each["masks"]) for each in wanted) > 3


def test_numbers_of_images_in_a_mixture_are_those_of_their_sources():
    split = Split(pictures()[1], RandomResizedCrop(32), targets=InstanceMap("png"))
    mixture = tarpeg.Mixture({"one": split, "other": split}, repeat={"one": 1, "other": 1})
    loader = tarpeg.MixtureLoader(mixture, batch_size=4, workers=0)
    found = [
        (source, target["image_id"])
        for batch in loader
        for source, target in zip(batch.source.tolist(), batch.targets, strict=True)
    ]
    assert sorted(found) == [(source, number) for source in (0, 1) for number in range(8)]
