"""Voc: boxes, labels and masks are those that torchvision reads of the same files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tarpeg
import torch
from helpers.data_sets import VOC_BOXES, devkit, picture, targets_of, xml
from helpers.small_tars import members
from PIL import Image
from tarpeg.datasets.writer import make_shards
from tarpeg.errors import ShardError
from torchvision import datasets


def pack(place, root, **given):
    more = {name: given.pop(name) for name in ("max_bad",) if name in given}
    return make_shards(place / "out", tarpeg.Voc(root, **given), workers=0, **more)


def test_boxes_and_labels_are_those_of_torchvision(tmp_path):
    root, _ = devkit(tmp_path)
    report = pack(tmp_path, root)
    assert (report.samples, report.left_out) == (4, ())
    table = json.loads((tmp_path / "out" / "classes.json").read_text())
    assert [table[name] for name in ("__background__", "aeroplane", "tvmonitor")] == [0, 1, 20]
    theirs = datasets.wrap_dataset_for_transforms_v2(
        datasets.VOCDetection(tmp_path, "2012", "train"), target_keys="all"
    )
    found = members(report.shards[0])
    for number in range(4):
        _, target = theirs[number]
        objects = json.loads(found[f"2008_{number}.json"])["objects"]
        boxes = torch.tensor([each["bbox"] for each in objects])
        boxes[:, 2:] += boxes[:, :2]
        known = target["boxes"].tolist()
        # Counted from 1, with the last pixel; torchvision leaves them so.
        assert boxes.tolist() == [[left - 1, top - 1, *ends] for left, top, *ends in known]
        assert [each["category_id"] for each in objects] == target["labels"].tolist()
        assert objects[0]["truncated"] == 1 and objects[0]["difficult"] == 0 and objects[0]["pose"] == "Left"
        assert found[f"2008_{number}.jpg"] == (root / "JPEGImages" / f"2008_{number}.jpg").read_bytes()
    read = targets_of(tmp_path / "out", tarpeg.Boxes("json:objects", iscrowd="difficult"))
    assert sorted(map(len, (each["boxes"] for each in read.values()))) == [1, 2, 3, 3]


def test_masks_are_those_of_torchvision(tmp_path):
    root, values = devkit(tmp_path)
    report = pack(tmp_path, root, split="Segmentation/train", masks="SegmentationClass")
    theirs = datasets.VOCSegmentation(tmp_path, "2012", "train")
    masks = [np.asarray(theirs[number][1]) for number in range(4)]
    read = targets_of(tmp_path / "out", tarpeg.Masks("png"), size=(48, 64))
    assert (read["2008_0"].numpy() == masks[0]).all() and (masks[0] == values["2008_0"]).all()
    assert (masks[0] == 255).any()
    names = {name.partition(".")[2] for name in members(report.shards[0])}
    assert names == {"jpg", "json", "png"}
    plain = pack(tmp_path, root, split="Segmentation/train", masks="SegmentationClass", annotations=None)
    assert {name.partition(".")[2] for name in members(plain.shards[0])} == {"jpg", "png"}


def test_coordinates_that_are_edges_and_own_classes(tmp_path, caplog):
    root, _ = devkit(tmp_path, 2)
    size = picture(1)[1]
    (root / "Annotations" / "2008_1.xml").write_text(xml(size, [("bolt", 0, 0, 10.25, 20)]))
    (root / "ImageSets" / "Main" / "train.txt").write_text("2008_1\n")
    report = pack(tmp_path, root, one_based=False, classes=["nut", "bolt"])
    assert "xmin" not in caplog.text
    pack(tmp_path, root, classes=["nut", "bolt"])
    assert "1 of 1 files of annotations have an xmin or ymin of 0" in caplog.text
    assert "2008_1.xml: give one_based=False" in caplog.text
    report = pack(tmp_path, root, one_based=False, classes=["nut", "bolt"])
    (found,) = json.loads(members(report.shards[0])["2008_1.json"])["objects"]
    assert (found["bbox"], found["category_id"]) == ([0, 0, 10.25, 20], 2)
    assert json.loads((tmp_path / "out" / "classes.json").read_text())["bolt"] == 2


BOMB = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;">]><annotation>&c;</annotation>'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<annotation>", r"2008_1\.xml is not XML"),
        ("", r"2008_1\.xml is not XML"),
        (BOMB, r"2008_1\.xml has a document type, line 1"),
        (BOMB.encode("utf-16"), r"2008_1\.xml has a document type"),
        (xml((48, 64), VOC_BOXES), r"2008_1\.xml: .*48 x 64.* 64 x 48"),
        (xml((64, 48), [("dragon", 1, 1, 2, 2)]), r"2008_1\.xml: object 0 is 'dragon', .*classes="),
        (xml((64, 48), [("cat", 1, 1, "nan", 2)]), r"2008_1\.xml: bndbox.xmax is 'nan'"),
        (xml((64, 48), [("cat", 1, 1, "", 2)]), r"2008_1\.xml: bndbox.xmax is ''"),
        (xml((64, 48), [("cat", 9, 1, 2, 2)]), r"2008_1\.xml: object 0 has xmax < xmin"),
        (xml((64, 48), [("cat", 90, 1, 95, 2)]), r"2008_1\.jpg: field 'objects.0.bbox' .*outside"),
        (xml((64, 48), [], "<object><name>cat</name></object>"), r"2008_1\.xml: object 0 has no bndbox"),
        (None, r"2008_1\.xml: No such file"),
    ],
)
def test_what_is_broken_is_left_out_and_listed(tmp_path, text, reason):
    root, _ = devkit(tmp_path, 3)
    path = root / "Annotations" / "2008_1.xml"
    path.unlink()
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    report = pack(tmp_path, root)
    (line,) = report.left_out
    assert report.samples == 2
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(line)
    with pytest.raises(ShardError, match="max_bad"):
        pack(tmp_path, root, max_bad=0.0)


def test_lists_and_arguments(tmp_path):
    root, _ = devkit(tmp_path, 2)
    path = root / "ImageSets" / "Main" / "train.txt"
    for text, reason in (
        ("2008_0  1\n2008_1 -1\n", r"train\.txt: '2008_0  1' is the line of a list of one class"),
        ("2008_0\n2008_1\n2008_0\n", r"train\.txt has '2008_0' 2 times"),
    ):
        path.write_text(text)
        with pytest.raises(ShardError, match=reason):
            pack(tmp_path, root)
    with pytest.raises(ShardError, match=r"split='Main/no': .*no\.txt cannot be read"):
        pack(tmp_path, root, split="Main/no")
    with pytest.raises(ShardError, match="nowhere' is not a folder"):
        pack(tmp_path, tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"^classes="):
        tarpeg.Voc(root, classes=["a", "a"])
    path.write_text("2008_0\n../2008_0\n")
    assert "'../2008_0.jpg' is not the path of an image" in pack(tmp_path, root).left_out[0]
    path.write_text("2008_0\n2008_7\n")
    report = pack(tmp_path, root)
    assert report.samples == 1 and "2008_7.jpg: No such file" in report.left_out[0]


@pytest.mark.parametrize("name", ["IMG 1 (copy)", "day  1"])
def test_names_of_images_may_have_spaces(tmp_path, name):
    root, _ = devkit(tmp_path, 2)
    for folder, suffix in (("JPEGImages", "jpg"), ("Annotations", "xml")):
        (root / folder / f"2008_0.{suffix}").rename(root / folder / f"{name}.{suffix}")
    (root / "ImageSets" / "Main" / "train.txt").write_text(f"{name}\r\n 2008_1 \n\n")
    assert (pack(tmp_path, root).samples, pack(tmp_path, root).left_out) == (2, ())
    (root / "ImageSets" / "Main" / "train.txt").write_text(name)
    assert pack(tmp_path, root).samples == 1


@pytest.mark.parametrize("extension", ["png", "jpeg", "JPG", "jfif"])
def test_images_of_other_extensions(tmp_path, extension):
    root, _ = devkit(tmp_path, 2)
    path = root / "JPEGImages" / "2008_0.jpg"
    other = path.with_suffix(f".{extension}")
    with Image.open(path) as image:
        image.save(other, "PNG" if extension == "png" else "JPEG")
    path.unlink()
    report = pack(tmp_path, root, split="Segmentation/train", masks="SegmentationClass")
    assert (report.samples, report.left_out) == (2, ())
    found = members(report.shards[0])
    image, mask = (
        ("png", "seg.png") if extension == "png" else (extension.lower().replace("fif", "pg"), "png")
    )
    assert found[f"2008_0.{image}"] == other.read_bytes()
    assert found[f"2008_0.{mask}"] == (root / "SegmentationClass" / "2008_0.png").read_bytes()
    assert json.loads(found["2008_0.json"])["file_name"] == other.name


def test_sizes_of_zero_are_not_compared(tmp_path):
    root, _ = devkit(tmp_path, 1)
    (root / "Annotations" / "2008_0.xml").write_text(xml((0, 0), VOC_BOXES[:1]))
    assert pack(tmp_path, root).left_out == ()


def test_a_mask_of_another_size_is_left_out(tmp_path):
    root, _ = devkit(tmp_path, 2)
    Image.new("L", (9, 9)).save(root / "SegmentationClass" / "2008_1.png")
    report = pack(tmp_path, root, split="Segmentation/train", masks="SegmentationClass")
    assert report.samples == 1 and "2008_1.png is 9 x 9" in report.left_out[0]


def test_of_several_images_of_a_name_the_jpeg_is_taken(tmp_path):
    root, _ = devkit(tmp_path, 2)
    folder = root / "JPEGImages"
    (folder / "2008_0.jpg").rename(folder / "2008_0.JPG")
    Image.new("RGB", (8, 8)).save(folder / "2008_0.png")
    assert "2008_0.jpg" in members(pack(tmp_path, root).shards[0])
    (folder / "2008_0.JPG").unlink()
    Image.new("RGB", (8, 8)).save(folder / "2008_0.webp")
    with pytest.raises(ShardError, match=r"has 2008_0\.png and 2008_0\.webp, for one name"):
        pack(tmp_path, root)


def test_lists_with_folders_and_extensions(tmp_path):
    root, _ = devkit(tmp_path, 2)
    for folder, suffix, new in (("JPEGImages", "jpg", "jpeg"), ("Annotations", "xml", "xml")):
        (root / folder / "a").mkdir()
        (root / folder / f"2008_0.{suffix}").rename(root / folder / "a" / f"2008_0.{new}")
    (root / "ImageSets" / "Main" / "train.txt").write_text("a/2008_0\n2008_1.jpg\n")
    report = pack(tmp_path, root)
    assert (report.samples, report.left_out) == (2, ())
    assert {"a/2008_0.jpeg", "2008_1.jpg"} <= {*members(report.shards[0])}


def test_masks_stay_with_their_objects_if_one_before_them_is_left_out(tmp_path):
    boxes = {"person": (5, 5, 25, 30), "bottle": (40, 10, 40, 22)}
    boxes |= {"dog": (50, 5, 70, 25), "car": (80, 20, 110, 60)}
    numbers = np.zeros((64, 128), np.uint8)
    for number, (left, top, right, bottom) in enumerate(boxes.values(), start=1):
        numbers[top:bottom, left:right] = number
    objects = [(name, *box) for name, box in boxes.items()]
    for part in ("JPEGImages", "Annotations", "ImageSets/Main", "SegmentationObject"):
        (tmp_path / part).mkdir(parents=True)
    Image.new("RGB", (128, 64)).save(tmp_path / "JPEGImages" / "a.jpg")
    Image.fromarray(numbers).save(tmp_path / "SegmentationObject" / "a.png")
    (tmp_path / "Annotations" / "a.xml").write_text(xml((64, 128), objects))
    # As Notepad writes it.
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_bytes(b"\xef\xbb\xbfa\r\n")
    source = tarpeg.Voc(tmp_path, masks="SegmentationObject", one_based=False)
    make_shards(tmp_path / "shards", source, workers=0)
    targets = [tarpeg.Boxes("json:objects"), tarpeg.InstanceMap("png", objects="json:objects")]
    split = tarpeg.Split(tmp_path / "shards" / "train-*.tar", tarpeg.CenterCrop((64, 128)), targets=targets)
    ((_, (found,)),) = tarpeg.Loader(split, 1, workers=0)
    assert len(found["boxes"]) == 3
    for box, mask in zip(found["boxes"].tolist(), found["masks"], strict=True):
        left, top, right, bottom = map(round, box)
        assert mask[top:bottom, left:right].all() and mask.sum() == (bottom - top) * (right - left)
