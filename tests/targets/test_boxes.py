"""Boxes of JSON members: torchvision's convention, clipped and dropped, and broken ones."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import pytest
import tarpeg
import torch
from helpers.chains import (
    chain,
    moved_by_torchvision,
    orientation_of,
    turned_by_torchvision,
    upright_boxes,
    view_of,
)
from helpers.loaders import load
from helpers.pictures import saved
from helpers.scenes import Scenes, number_of, objects
from helpers.small_tars import write_tar
from PIL import Image
from tarpeg import Boxes, PadMask, RandomResizedCrop, ShardError, Split, View, Whole
from torchvision import tv_tensors
from torchvision.models.detection import FCOS
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.transforms import v2

HERE = {"workers": 0, "threads": 0}


def boxes_of(annotations, view=None, **options):
    """The dict of one image of 48 x 64, whole unless a view is given."""
    source = Scenes({0: annotations}, count=1)
    target = Boxes("json:objects", **options)
    (value,) = target.read(source, np.array([0]))
    if isinstance(value, Exception):
        raise value
    (reason,) = target.misfits([value], np.array([[48, 64]], np.int32))
    assert not reason
    return target.move(value, view or View.whole((48, 64), (48, 64)))


def test_a_batch_is_in_torchvisions_convention():
    split = Split(Scenes(), Whole((24, 128)), targets=Boxes("json:objects", image_id="id"), shuffle=False)
    images, targets = next(iter(load(None, split=split, shuffle=False, keys=False, **HERE)))
    assert images.shape == (4, 3, 24, 128) and isinstance(targets, list)
    first = targets[1]
    assert list(first) == ["boxes", "labels", "area", "iscrowd", "image_id", "orig_size", "size"]
    assert isinstance(first["boxes"], tv_tensors.BoundingBoxes) and first["boxes"].dtype == torch.float32
    assert first["boxes"].canvas_size == (24, 128) and first["boxes"].format.value == "XYXY"
    assert first["boxes"].tolist() == [[2, 0.5, 42, 5.5]]
    assert first["labels"].tolist() == [1] and first["labels"].dtype == torch.int64
    assert first["area"].tolist() == [100.0] and first["iscrowd"].tolist() == [0]
    assert first["image_id"] == 101
    assert first["orig_size"].tolist() == [48, 64] and first["size"].tolist() == [24, 128]


@pytest.mark.parametrize(
    ("format", "numbers"),
    [
        ("xywh", (10, 20, 30, 8)),
        ("XYXY", (10, 20, 40, 28)),
        ("CxCyWh", (25, 24, 30, 8)),
        (tv_tensors.BoundingBoxFormat.XYXY, (10, 20, 40, 28)),
    ],
)
def test_formats(format, numbers):
    assert boxes_of(objects(numbers), format=format)["boxes"].tolist() == [[10, 20, 40, 28]]


def test_labels_of_coco_and_of_other_tables():
    one, last = ({"bbox": [1, 1, 5, 5], "category_id": id} for id in (13, 90))
    assert boxes_of(objects(one, last), labels="coco")["labels"].tolist() == [12, 80]
    assert boxes_of(objects(one, last))["labels"].tolist() == [13, 90]
    assert boxes_of(objects(one, last), labels={13: 0, 90: 7})["labels"].tolist() == [0, 7]
    assert boxes_of(objects(one, last), label=None)["labels"].tolist() == [1, 1]
    named = {"bbox": [1, 1, 5, 5], "name": "dog"}
    assert boxes_of(objects(named), label="name", labels=["cat", "dog"])["labels"].tolist() == [2]
    with pytest.raises(ShardError, match=r"key 'scene/000'.*'objects\.0\.category_id' is 12\b"):
        boxes_of(objects({"bbox": [1, 1, 5, 5], "category_id": 12}), labels="coco")


def test_boxes_are_clipped_and_dropped_and_an_empty_image_is_kept():
    view = View(np.array([[48, 64]]), np.array([[8, 16, 20, 30]]), np.array([False]), (20, 30))
    inside, cut, away = (20, 10, 10, 10), (10, 4, 10, 8), (50, 30, 5, 5)
    given = objects(inside, cut, away)
    whole = boxes_of(given, view)
    assert whole["boxes"].tolist() == [[4, 2, 14, 12], [0, 0, 4, 4]]
    assert whole["area"].tolist() == [100, 16]  # a fifth of the second is visible
    for options in ({"min_size": 4.1}, {"min_area": 17}, {"min_visibility": 0.21}):
        assert boxes_of(given, view, **options)["boxes"].tolist() == [[4, 2, 14, 12]]
    for options in ({"min_size": 4}, {"min_area": 16}, {"min_visibility": 0.2}):
        assert len(boxes_of(given, view, **options)["boxes"]) == 2
    for empty in (boxes_of(objects(), view), boxes_of(objects(away), view)):
        assert empty["boxes"].shape == (0, 4) and empty["labels"].shape == (0,)
        assert isinstance(empty["boxes"], tv_tensors.BoundingBoxes)


def test_a_box_that_is_partly_outside_its_image_is_clipped():
    assert boxes_of(objects((-3, 40, 10, 10)))["boxes"].tolist() == [[0, 40, 7, 48]]


def test_area_and_crowds_are_kept_or_computed():
    crowd = {"bbox": [0, 0, 10, 10], "category_id": 1, "area": 50, "iscrowd": 1}
    view = View(np.array([[48, 64]]), np.array([[0, 0, 48, 5]]), np.array([True]), (96, 20))
    found = boxes_of(objects((0, 0, 4, 4), crowd), view)
    assert found["iscrowd"].tolist() == [0, 1] and found["area"].tolist() == [128, 200]
    assert found["boxes"].tolist() == [[4, 0, 20, 8], [0, 0, 20, 20]]


def test_boxes_are_torchvisions_over_random_chains(chains=300):
    rng = np.random.default_rng(0)
    for _ in range(chains):
        drawn = chain(rng)
        (height, width), *_ = drawn
        low = rng.uniform(0, 0.9, (5, 2))
        corners = np.concatenate([low, low + rng.uniform(0.01, 1.0, (5, 2)) * (1 - low)], axis=1)
        orientation, stored = orientation_of(rng, (height, width))
        raw = corners * np.tile(stored[::-1], 2)
        given = upright_boxes(raw, stored, orientation)
        moved, visible = view_of(*drawn).rectangles(given)
        wanted = tv_tensors.BoundingBoxes(torch.from_numpy(raw), format="XYXY", canvas_size=stored)
        wanted = moved_by_torchvision(turned_by_torchvision(wanted, orientation), *drawn).numpy()
        is_there = visible > 0
        assert not (moved[:, 2:] - moved[:, :2]).prod(axis=1)[~is_there].any(), drawn
        assert np.abs(moved - wanted)[is_there].max(initial=0) < 1e-4, drawn
        # An affine of torchvision makes a box again of one that its crop has left no size.
        (top, left, rows, columns) = drawn[1]
        end = (left + columns, top + rows)
        is_outside = ((given[:, 2:] <= (left, top)) | (given[:, :2] >= end)).any(axis=1)
        is_empty = (wanted[:, 2:] - wanted[:, :2]).prod(axis=1) < 1e-6
        assert (is_outside | is_there | is_empty).all(), drawn


@pytest.mark.parametrize("is_policy", [False, True])
def test_a_box_outside_the_crop_does_not_come_back_if_the_result_is_turned(is_policy):
    transform = v2.Compose([v2.RandomCrop(20)] + [v2.RandomAffine((15, 15))] * is_policy)
    corners = np.array([(x, y) for y in range(1, 40, 10) for x in range(1, 40, 10)])
    source = Scenes({number: objects(*((x, y, 8, 8) for x, y in corners.tolist())) for number in range(12)})
    split = tarpeg.Split(source, transform=transform, targets=tarpeg.Boxes("json:objects"))
    augment = None if is_policy else tarpeg.Augment(affine=tarpeg.Affine(degrees=(15, 15)))
    loader = tarpeg.Loader(split, batch_size=12, workers=0, augment=augment, training=True)
    crops = next(loader.views(0))[0].boxes
    _, targets = next(iter(loader))
    counts = [len(target["boxes"]) for target in targets]
    for (top, left, _, _), found in zip(crops.tolist(), counts, strict=True):
        is_within = ((corners < (left + 20, top + 20)) & (corners + 8 > (left, top))).all(axis=1)
        assert found <= is_within.sum()  # the turn takes some out
    assert max(counts) > 2


def test_boxes_are_in_upright_pixels():
    pixels = np.zeros((64, 48, 3), np.uint8)
    pixels[10:30, 4:12] = 255
    turned = Image.fromarray(np.rot90(pixels).copy())  # which EXIF's 6 turns back
    content = {"jpg": saved(turned, "JPEG", orientation=6, quality=95), **objects((4, 10, 8, 20))}
    split = Split(Scenes({0: content}, count=1), Whole((64, 48)), targets=Boxes("json:objects"))
    images, targets, _ = next(iter(load(None, split=split, **HERE)))
    left, top, right, bottom = targets[0]["boxes"].int()[0].tolist()
    assert images[0, :, top + 1 : bottom - 1, left + 1 : right - 1].float().mean() > 245
    assert images.float().sum() / 3 / 255 == pytest.approx(160, rel=0.05)


def shown(batches):
    return [
        [(key, {name: np.asarray(value).tolist() for name, value in each.items()}) for key, each in pairs]
        for batch in batches
        for pairs in [zip(batch.key, batch.targets, strict=True)]
    ]


def test_the_same_targets_for_any_number_of_workers_and_through_augment():
    found = []
    for options in ({"workers": 1}, HERE, {"workers": 0, "threads": 2}):
        augment = tarpeg.Augment(flip=0.5, affine=tarpeg.Affine(degrees=20, translate=0.2))
        split = Split(Scenes(), RandomResizedCrop(32), flip=0.5, targets=Boxes("json:objects"))
        config = tarpeg.LoaderConfig(batch_size=4, **options)
        loader = tarpeg.Loader(split, augment=augment, keys=True, config=config)
        found.append(shown(loader))
        loader.close()
    assert found[0] == found[1] == found[2] and len(found[0]) == 3


def one(**changes):
    """An object with changed fields; a field that is ... is left out."""
    fields = {"bbox": [1, 2, 3, 4], "category_id": 1, **changes}
    return objects(
        {"bbox": [1, 1, 9, 9], "category_id": 1}, {k: v for k, v in fields.items() if v is not ...}
    )


BROKEN = {
    "zero": (one(bbox=[1, 2, 0, 4]), r"'objects\.1\.bbox' is \[1, 2, 0, 4\].*size"),
    "negative": (one(bbox=[9, 2, -3, 4]), r"'objects\.1\.bbox'.*size"),
    "nan": (one(bbox=[1, 2, float("nan"), 4]), r"'objects\.1\.bbox' is \[1, 2, NaN, 4\].*finite"),
    "infinite": (one(bbox=[1, 2, float("inf"), 4]), r"'objects\.1\.bbox'.*finite"),
    "huge": (one(bbox=[10**400, 2, 3, 4]), r"'objects\.1\.bbox'.*finite"),
    "far": (one(bbox=[1, 2, 1e300, 4]), r"'objects\.1\.bbox'.*pixels"),
    "three numbers": (one(bbox=[1, 2, 3]), r"'objects\.1\.bbox' is \[1, 2, 3\]"),
    "text": (one(bbox=["1", 2, 3, 4]), r"'objects\.1\.bbox'"),
    "true": (one(bbox=[True, 2, 3, 4]), r"'objects\.1\.bbox'"),
    "a dict": (one(bbox={"x": 1}), r"'objects\.1\.bbox'"),
    "null": (one(bbox=None), r"'objects\.1\.bbox' is null"),
    "no box": (one(bbox=...), r"'objects\.1\.bbox' is missing"),
    "outside": (one(bbox=[70, 2, 3, 4]), r"'objects\.1\.bbox'.*outside the image of 48 x 64"),
    "left of it": (one(bbox=[-9, 2, 3, 4]), r"'objects\.1\.bbox'.*outside the image of 48 x 64"),
    "no label": (one(category_id=...), r"'objects\.1\.category_id' is missing"),
    "another label": (one(category_id=77), r"'objects\.1\.category_id' is 77.*labels="),
    "a list as a label": (one(category_id=[1]), r"'objects\.1\.category_id' is \[1\].*labels="),
    "area": (one(area=-1), r"'objects\.1\.area' is -1"),
    "crowd": (one(iscrowd="no"), r"'objects\.1\.iscrowd' is \"no\""),
    "an object": (objects("box"), "item 0 of field 'objects' is \"box\""),
    "not a list": ({"json": b'{"objects": {"a": 1}}'}, r"'objects' is .*not a list"),
    "no field": ({"json": b'{"boxes": []}'}, r"no field 'objects'"),
    "another document": ({"json": b"[1, 2]"}, r"no field 'objects'"),
    "one field twice": (
        {"json": b'{"objects": [], "objects": []}'},
        "'json' is not JSON.*'objects' more than",
    ),
    "not JSON": ({"json": b'{"objects": ['}, r"member 'json' is not JSON"),
    "deep": ({"json": b"[" * 200_000}, r"member 'json' is nested"),
    "no member": ({"json": None}, r"no member 'json'"),
    "many": ({"json": b'{"objects": [' + b"{}," * 100_000 + b"{}]}"}, r"'objects' has 100001 objects"),
    "long": ({"json": b" " * (1 << 24) + b"[]"}, r"16777218 bytes"),
}
TABLE = {number: number for number in range(12)}


def split_of(members, **options):
    return Split(Scenes(members), Whole(32), targets=Boxes("json:objects", labels=TABLE), **options)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_target_follows_on_error(name):
    content, text = BROKEN[name]
    split, place = split_of({5: content}), rf"Scenes, key 'scene/005'.*{text}"
    with pytest.raises(ShardError, match=place):
        list(load(None, split=split, on_error="raise", **HERE))
    loader = load(None, split=split, **HERE)
    with pytest.warns(UserWarning, match=f"{place}.*takes its place"):
        batches = list(loader)
    assert loader.substituted == 1
    for image, target, key in (row for batch in batches for row in zip(*batch, strict=True)):
        number = number_of(image)
        assert number != 5 and key == f"scene/{number:03d}" and target["image_id"] == number
        assert target["labels"].tolist() == [number]
        left, top = number / 2, number / 1.5
        np.testing.assert_allclose(target["boxes"], [[left, top, left + 10, top + 20 / 3]], rtol=1e-6)


def test_broken_targets_are_replaced_in_workers_too_and_with_broken_images():
    split = split_of({2: BROKEN["nan"][0], 7: {"jpg": b"broken"}, 9: BROKEN["no member"][0]})
    found = []
    for options in (HERE, {"workers": 1}):
        loader = load(None, split=split, **options)
        with pytest.warns(UserWarning, match="takes its place"):
            found.append(shown(loader))
        assert loader.substituted == 3
        loader.close()
    assert found[0] == found[1]
    assert not {"scene/002", "scene/007", "scene/009"} & {key for batch in found[0] for key, _ in batch}


def test_broken_targets_are_left_out_of_predictions():
    split = split_of({2: BROKEN["nan"][0]})
    with pytest.warns(UserWarning, match="scene/002.*left out"):
        batches = list(load(None, split=split, shuffle=False, on_error="leave_out", **HERE))
    assert [number_of(image) for batch in batches for image in batch.image] == [
        target["image_id"] for batch in batches for target in batch.targets
    ]
    assert sum(len(batch.targets) for batch in batches) == 11


def test_too_many_broken_targets_end_the_epoch():
    split = split_of(dict.fromkeys((1, 2), BROKEN["nan"][0]))
    with pytest.raises(tarpeg.DecodeError, match=r"max_bad.*objects\.1\.bbox"), pytest.warns(UserWarning):
        list(load(None, split=split, max_bad=0.0, **HERE))


def test_warnings_about_broken_targets_do_not_blame_the_images_alone():
    split = split_of({2: BROKEN["nan"][0]})
    with pytest.warns(UserWarning) as caught:
        list(load(None, split=split, shuffle=False, **HERE))
    text = "1 of 12 images cannot be decoded, or have broken targets: metrics count"
    assert sum(text in str(warning.message) for warning in caught) == 1
    with pytest.raises(tarpeg.DecodeError, match=r"\b1 images .*broken targets.*max_bad"):
        list(load(None, split=split, max_bad=0.0, **HERE))


def test_a_field_in_place_of_an_extension_is_an_error_with_the_remedy():
    split = Split(Scenes({}), Whole(32), targets=Boxes("objects"))
    text = r"""member 'objects'.*field 'objects' of KEY\.json: "json:objects\""""
    with pytest.raises(ShardError, match=text):
        list(load(None, split=split, on_error="raise", **HERE))


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (
            (v2.Resize(60), v2.CenterCrop(50)),
            r"crops in Python .*crop=tarpeg\.CenterCrop\(\(50, 50\), shorter=60\)",
        ),
        ((v2.RandomRotation(9), v2.CenterCrop(50)), r"in Python \(RandomRotation.*begin with the crop"),
        ((v2.Resize(60),), r"Boxes.* cannot follow .*: .*begin with the crop"),
        (
            (v2.RandomCrop(50), v2.RandomRotation(9)),
            r"RandomRotation\(.*\) in transform= runs in Python: leave",
        ),
    ],
)
def test_steps_that_boxes_cannot_follow_are_an_error_of_the_split(steps, text):
    boxes = Boxes("json:objects")
    for others in ({"number": Number()}, {"pad": PadMask()}):
        with pytest.raises(ValueError, match=text):
            Split(Scenes({}), transform=v2.Compose(steps), targets={"boxes": boxes, **others})
    for targets in (boxes, [boxes], Number()):  # the steps move boxes: test_carried.py
        Split(Scenes({}), transform=v2.Compose(steps), targets=targets)


def test_an_image_id_that_is_not_an_integer_is_a_broken_target():
    source = Scenes({0: objects((1, 1, 5, 5), id="a.jpg")}, count=1)
    (value,) = Boxes("json:objects", image_id="id").read(source, np.array([0]))
    assert isinstance(value, ShardError) and "'id'" in str(value) and "scene/000" in str(value)


def test_a_substitutes_target_moves_as_a_policy_moved_its_image():
    """The same sample comes twice with the same draws: in its own place, and in that of the broken one."""
    transform = v2.Compose([v2.CenterCrop(40), tarpeg.TrivialAugmentWide()])
    seen = 0
    for seed in range(6):
        split = Split(Scenes({3: {"jpg": b"broken"}}), transform=transform, targets=Boxes("json:objects"))
        loader = load(None, split=split, batch_size=12, seed=seed, **HERE)
        with pytest.warns(UserWarning, match="takes its place"):
            batch = next(iter(loader))
        (view,) = loader.claim().views
        name = next(key for key in batch.key if batch.key.count(key) == 2)
        one, two = (view.row(row).matrices() for row, key in enumerate(batch.key) if key == name)
        np.testing.assert_allclose(one, two)
        seen += not np.allclose(one[0, :2, :2], np.eye(2))
    assert seen


@pytest.mark.parametrize(
    "options",
    [
        {"format": "xyxyxyxy"},
        {"format": 3},
        {"min_size": -1},
        {"min_visibility": 1.5},
        {"min_area": float("nan")},
        {"labels": "voc"},
        {"labels": {}},
        {"labels": {1: -1}},
        {"labels": ["cat", "cat"]},
        {"labels": {1.5: 1}},
        {"box": None},
        {"label": ""},
        {"objects": "json:"},
        {"objects": 3},
    ],
    ids=repr,
)
def test_wrong_settings(options):
    with pytest.raises(ValueError, match=next(iter(options)) if "objects" not in options else "Boxes"):
        Boxes(**{"objects": "json:objects", **options})


class Number:
    """The number of the sample."""

    def read(self, source, ids):
        return ids.tolist()

    def move(self, value, view):
        return value


def test_targets_of_ones_own_are_fields_beside_those_of_boxes():
    targets = {"all": Boxes("json:objects"), "number": Number()}
    batch = next(iter(load(None, split=Split(Scenes(), Whole(32), targets=targets), **HERE)))
    assert [each["number"] for each in batch.targets] == [each["image_id"] for each in batch.targets]


@pytest.mark.parametrize(
    "targets",
    [
        [Boxes("json:objects"), Boxes("json:others")],
        {"a": Boxes("json:objects"), "labels": Number()},
        {"a": Boxes("json:objects"), "size": Number()},
    ],
    ids=["boxes", "labels", "size"],
)
def test_a_field_of_two_targets_is_an_error(targets):
    with pytest.raises(ValueError, match="have the field"):
        Split(Scenes(), Whole(32), targets=targets)


def test_boxes_of_a_stream(tmp_path):
    source, members = Scenes(), []
    for number, sample in enumerate(source.samples):
        members += [(f"{number:03d}.{name}", content) for name, content in sample.items()]
    split = Split(
        str(write_tar(tmp_path / "a.tar", members)),
        Whole((48, 64)),
        streaming=True,
        targets=Boxes("json:objects", image_id="id"),
    )
    seen = []
    for batch in load(None, split=split, **HERE):
        for image, target in zip(batch.image, batch.targets, strict=True):
            number = number_of(image)
            seen.append(number)
            assert target["image_id"] == 100 + number
            assert target["boxes"].tolist() == [[number, number, number + 20, number + 10]]
    assert sorted(seen) == list(range(12))


def test_a_sheet_of_boxes_and_masks(tmp_path):
    content = {"png": saved(Image.new("L", (64, 48), 3), "PNG")}
    targets = [Boxes("json:objects"), tarpeg.Masks("png")]
    for each in (targets, targets[1]):
        split = Split(Scenes(dict.fromkeys(range(12), content)), Whole(40), targets=each)
        data = tarpeg.ShardDataModule(split, batch_size=4, augment=tarpeg.Augment(flip=0.5), **HERE)
        assert tarpeg.contact_sheet(data, tmp_path / "sheet.png", samples=6).exists()


def test_a_detector_of_torchvision_trains_on_the_batches():
    torch.manual_seed(0)
    split = Split(Scenes(), RandomResizedCrop((48, 64), scale=(0.6, 1.0)), targets=Boxes("json:objects"))
    augment = tarpeg.Augment(mean=(0, 0, 0), std=(1, 1, 1), flip=0.5)
    loader = tarpeg.Loader(split, 4, augment=augment, config=tarpeg.LoaderConfig(**HERE))
    backbone = torch.nn.Conv2d(3, 32, 3, stride=8, padding=1)
    backbone.out_channels = 32
    anchors = AnchorGenerator(((8,),), ((1.0,),))
    model = FCOS(backbone, num_classes=13, anchor_generator=anchors, min_size=48, max_size=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    sums = []
    for _ in range(4):
        for images, targets in loader:
            losses = model(images, targets)
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
            sums.append(sum(losses.values()).item())
    assert len(sums) == 12 and np.mean(sums[-3:]) < np.mean(sums[:3])


def test_batches_under_lightnings_data_module():
    split = Split(Scenes(), Whole(32), targets=Boxes("json:objects"))
    data = tarpeg.ShardDataModule(train=split, val=split, batch_size=4, allow_overlap=True, **HERE)
    for batch in (next(iter(data.train_dataloader())), next(iter(data.val_dataloader()))):
        moved = data.transfer_batch_to_device(batch, torch.device("meta"), 0)
        assert moved.targets[0]["labels"].is_meta and isinstance(moved.targets[0]["image_id"], int)
        assert isinstance(moved.targets[0]["boxes"], tv_tensors.BoundingBoxes)


def test_a_document_that_is_the_list():
    text = json.dumps([{"bbox": [1, 2, 3, 4], "category_id": 1}]).encode()
    (value,) = Boxes("json").read(Scenes({0: {"json": text}}, count=1), np.array([0]))
    assert value.boxes.tolist() == [[1, 2, 4, 6]]


def test_boxes_in_shares_of_the_image_are_a_warning():
    with pytest.warns(UserWarning, match=r"bbox.*\[0\.1, 0\.2, 0\.3, 0\.4\].* are in pixels"):
        found = boxes_of(objects((0.1, 0.2, 0.3, 0.4)))
    assert not len(found["boxes"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        boxes_of(objects((0, 0, 1, 1)))
        boxes_of(objects((0.1, 0.2, 0.3, 0.4), (2, 3, 4, 5)))


_STORED = (None, *(Image.Transpose[name] for name in ["FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM"]))
_STORED += tuple(Image.Transpose[name] for name in ["TRANSPOSE", "ROTATE_90", "TRANSVERSE", "ROTATE_270"])


def turned(orientation, box):
    """A sample whose image is stored turned: black but for a box (left, top, width, height)."""
    left, top, width, height = box
    pixels = np.zeros((96, 160), np.uint8)
    pixels[top : top + height, left : left + width] = 255
    stored, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = orientation
    turn = _STORED[orientation - 1]
    content, mask = io.BytesIO(), io.BytesIO()
    (stored if turn is None else stored.transpose(turn)).convert("RGB").save(
        content, "JPEG", exif=exif, quality=95
    )
    Image.fromarray(pixels // 255).save(mask, "PNG")
    x, y = left + width / 2, top + height / 2
    found = objects({"bbox": list(box), "category_id": 1, "keypoints": [x, y, 2]})
    return {"jpg": content.getvalue(), "png": mask.getvalue(), **found}


def test_targets_stay_on_their_image_at_every_exif_orientation():
    rng = np.random.default_rng(0)
    boxes = [
        (*(8 * rng.integers(1, 5, 2)).tolist(), *(16 * rng.integers(2, 4, 2)).tolist()) for _ in range(16)
    ]
    source = Scenes({number: turned(number % 8 + 1, box) for number, box in enumerate(boxes)}, count=16)
    targets = [
        Boxes("json:objects"),
        tarpeg.Masks("png", fill=0),
        tarpeg.Keypoints("json:objects", [], count=1),
    ]
    split = Split(source, RandomResizedCrop((80, 120), scale=(0.5, 1.0)), flip=0.5, targets=targets)
    seen = 0
    for images, found in load(None, split=split, keys=False, **HERE):
        for image, target in zip(images, found, strict=True):
            is_white = image.float().mean(0) > 127
            assert (is_white != target["mask"].bool()).float().mean() < 0.02
            for (x1, y1, x2, y2), point in zip(target["boxes"].tolist(), target["keypoints"], strict=True):
                y, x = torch.nonzero(is_white, as_tuple=True)
                bounds = (int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1)
                assert np.abs(np.subtract(bounds, (x1, y1, x2, y2))).max() <= 1
                assert not point[0, 2] or is_white[int(point[0, 1]), int(point[0, 0])]
                seen += 1
    assert seen > 12
