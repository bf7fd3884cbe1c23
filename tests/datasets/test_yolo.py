"""Yolo: lines become what they are in pixels of the upright image."""

from __future__ import annotations

import json

import pytest
import tarpeg
from helpers.data_sets import layout, targets_of
from helpers.pictures import saved
from helpers.small_tars import members
from PIL import Image
from tarpeg.datasets.writer import make_shards
from tarpeg.errors import ShardError


def pack(place, data, **given):
    more = {name: given.pop(name) for name in ("max_bad",) if name in given}
    return make_shards(place / "out", tarpeg.Yolo(data, **given), workers=0, **more)


def documents(report):
    found = members(report.shards[0])
    return {name[:-5]: json.loads(data) for name, data in found.items() if name.endswith(".json")}


def test_boxes_in_pixels(tmp_path, caplog):
    report = pack(tmp_path, layout(tmp_path))
    assert (report.samples, report.left_out) == (3, ())
    assert "images without a file of labels, which have no objects: 1, the first is" in caplog.text
    found = documents(report)
    assert found["0"]["objects"] == [  # of 48 x 64
        {"bbox": [16, 6, 32, 12], "category_id": 1, "category": "cat", "iscrowd": 0},
        {"bbox": [12, 12, 8, 24], "category_id": 2, "category": "dog", "iscrowd": 0},
    ]
    assert found["deep/1"]["objects"][0]["bbox"] == [12, 8, 24, 16]  # of 64 x 48
    assert found["2"]["objects"] == []
    table = json.loads((tmp_path / "out" / "classes.json").read_text())
    assert table == {"__background__": 0, "cat": 1, "dog": 2}
    read = targets_of(tmp_path / "out", tarpeg.Boxes("json:objects"), size=(48, 64))
    assert read["0"]["boxes"].tolist() == [[16, 6, 48, 18], [12, 12, 20, 36]]
    assert read["0"]["labels"].tolist() == [1, 2] and len(read["2"]["boxes"]) == 0
    assert pack(tmp_path, tmp_path / "data.yaml", keep_empty=False).samples == 2


def test_polygons(tmp_path):
    report = pack(tmp_path, layout(tmp_path, "1 0 0 0.5 0 0.5 0.5 0 0.25\n"), task="segment")
    (found,) = documents(report)["0"]["objects"]
    assert found["segmentation"] == [[0, 0, 32, 0, 32, 24, 0, 12]] and found["bbox"] == [0, 0, 32, 24]
    read = targets_of(tmp_path / "out", tarpeg.InstanceMasks("json:objects"), size=(48, 64))
    assert read["0"]["masks"][0, :12, :32].all() and not read["0"]["masks"][0, 24:].any()


def test_polygons_are_boxes_of_detection(tmp_path):
    lines = "0 0.5 0.5 0.2 0.5\n1 0.125 0.25 0.5 0.25 0.5 0.5\n1 0 0 0.5 0 0.5 0.5 0 0.25\n"
    found = documents(pack(tmp_path, layout(tmp_path, lines)))["0"]["objects"]
    assert [each["bbox"] for each in found] == [[25.6, 12, 12.8, 24], [8, 12, 24, 12], [0, 0, 32, 24]]
    assert [each["category"] for each in found] == ["cat", "dog", "dog"]
    assert all(each.keys() == {"bbox", "category", "category_id", "iscrowd"} for each in found)


def test_a_line_that_is_there_twice_is_one_object(tmp_path):
    line = "0 0.5 0.5 0.2 0.5\n"
    found = documents(pack(tmp_path, layout(tmp_path, line + "1 0.5 0.5 0.2 0.5\n" + line)))["0"]["objects"]
    assert [each["category"] for each in found] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("shape", "points", "expected"),
    [
        ([2, 3], "0.5 0.5 2 0 0 0", [32, 24, 2, 0, 0, 0]),
        ([2, 3], "0.5 0.5 1 -1 9 0", [32, 24, 1, 0, 0, 0]),
        ([2, 2], "0.5 0.5 0.25 0.25", [32, 24, 2, 16, 12, 2]),
        ([2, 2], "0.5 0.5 -1 -1", [32, 24, 2, 0, 0, 0]),
    ],
)
def test_points(tmp_path, shape, points, expected):
    data = layout(tmp_path, f"0 0.5 0.5 0.5 0.5 {points}\n", more=f"kpt_shape: {shape}")
    (found,) = documents(pack(tmp_path, data, task="pose"))["0"]["objects"]
    assert found["keypoints"] == expected and found["num_keypoints"] == sum(v > 0 for v in expected[2::3])
    read = targets_of(
        tmp_path / "out", tarpeg.Keypoints("json:objects", flip_pairs=[], count=2), size=(48, 64)
    )
    assert read["0"]["keypoints"][0].flatten().tolist() == expected


def test_shares_are_of_the_upright_image(tmp_path):
    data = layout(tmp_path)
    path = tmp_path / "images" / "train" / "0.jpg"
    path.write_bytes(saved(Image.open(path), "JPEG", orientation=6))
    found = documents(pack(tmp_path, data))["0"]
    assert (found["height"], found["width"]) == (64, 48) and found["objects"][0]["bbox"] == [12, 8, 24, 16]


@pytest.mark.parametrize(
    ("lines", "given", "reason"),
    [
        ("0 0.5 0.5 0.5 0.5\n7 0.5 0.5 0.5 0.5", {}, r"0\.txt, line 2: class 7 is not in 0\.\.1"),
        ("0.5 0.5 0.5 0.5 0.5", {}, r"0\.txt, line 1: class 0.5 is not in"),
        ("0 0.5 0.5 nan 0.5", {}, r"0\.txt, line 1: nan is not a share"),
        ("0 32 24 10 10", {}, r"0\.txt, line 1: 32.0 is not a share"),
        ("0 0.5 0.5 0.5", {}, r"0\.txt, line 1 .*\b3 numbers .* 4 numbers or .*: task= is 'detect'"),
        ("0 0.5 0.5 0.5 x", {}, r"0\.txt, line 1: .*'x'"),
        ("0 0 0 1 0 1", {}, r"0\.txt, line 1 has 5 numbers .*task= is 'detect'"),
        ("0 0 0 1 0 1 1 2", {}, r"0\.txt, line 1 has 7 numbers .*task= is 'detect'"),
        ("0 0.5 0.5 0.5 0.5", {"task": "segment"}, r"0\.txt, line 1 has 4 numbers .*polygon.*task='detect'"),
        ("0 0 0 1 0 1", {"task": "segment"}, r"0\.txt, line 1 has 5 numbers .*polygon"),
        (
            "0 .5 .5 .5 .5 .5 .5",
            {"task": "pose", "kpt_shape": [1, 3]},
            r"0\.txt, line 1 has 6 numbers .* 7 numb",
        ),
        (
            "0 .5 .5 .5 .5 .5 .5 3",
            {"task": "pose", "kpt_shape": [1, 3]},
            r"0\.txt, line 1: point 0 has the vis",
        ),
        ("0 .5 .5 -.5 .5", {}, r"0\.txt, line 1: -0.5 is not a share"),
        ("\udcff", {}, r"0\.txt is not text"),
    ],
)
def test_what_is_broken_is_left_out_and_listed(tmp_path, lines, given, reason):
    data = layout(tmp_path, count=2, lines="")
    (tmp_path / "labels" / "train" / "0.txt").write_text(lines, errors="surrogateescape")
    report = pack(tmp_path, data, **given)
    (line,) = report.left_out
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(line)
    assert report.samples == 1
    with pytest.raises(ShardError, match="max_bad"):
        pack(tmp_path, data, max_bad=0.0, **given)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("names: [a]\nval: x", r"no split 'train': it has \['val'\]"),
        ("names: [a]\ntrain: images/no", r"train is 'images/no', and .* does not exist"),
        ("names: [a, a]\ntrain: images/train", "names are"),
        ("names: {0: a, 2: b}\ntrain: images/train", "names are"),
        ("names: [a]\nnc: 2\ntrain: images/train", r"names are .*nc: 2"),
        ("train: images/train", "names are None"),
        ("[a", "is not YAML"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nnames: [*b, *b]\ntrain: images/train", "names must be texts"),
        ("names: [a]\ntrain: [[images/train]]", "train must be a path"),
        ("a", "has no settings"),
    ],
)
def test_data_yaml(tmp_path, text, reason):
    data = layout(tmp_path)
    data.write_text(text)
    with pytest.raises(ShardError, match=reason):
        pack(tmp_path, data)


def test_places_of_images(tmp_path):
    data = layout(tmp_path / "a")
    layout(tmp_path / "b")
    two = "names: [cat, dog]\npath: ..\ntrain: [a/images/train, b/images/train/deep]"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "data.yaml").write_text(two)
    found = documents(pack(tmp_path, tmp_path / "c" / "data.yaml"))
    assert sorted(found) == [
        "a/images/train/0",
        "a/images/train/2",
        "a/images/train/deep/1",
        "b/images/train/deep/1",
    ]
    (tmp_path / "a" / "list.txt").write_text("./images/train/deep/1.jpg\nimages/train/0.jpg\n\n")
    data.write_text("names: [cat, dog]\ntrain: list.txt")
    make_shards(tmp_path / "listed", tarpeg.Yolo(data), workers=0)
    data.write_text("names: [cat, dog]\ntrain: ../images/train")  # as exports write it
    assert make_shards(tmp_path / "export", tarpeg.Yolo(data), workers=0).samples == 3
    plain = tarpeg.Yolo(tmp_path / "a" / "images" / "train", names=["cat", "dog"])
    assert make_shards(tmp_path / "plain", plain, workers=0).samples == 3
    with pytest.raises(ValueError, match="needs names="):
        tarpeg.Yolo(tmp_path / "a" / "images")
    with pytest.raises(ValueError, match=r"^task='seg' must .*'segment'"):
        tarpeg.Yolo(data, task="seg")


def test_labels_that_are_nowhere_or_of_two_images(tmp_path):
    data = layout(tmp_path)
    (tmp_path / "images" / "train" / "0.png").write_bytes(b"")
    with pytest.raises(ShardError, match=r"0\.jpg and .*0\.png .*one file"):
        pack(tmp_path, data)
    (tmp_path / "images" / "train" / "0.png").unlink()
    (tmp_path / "labels").rename(tmp_path / "annotations")
    with pytest.raises(ShardError, match=r"labels/train/0\.txt does not exist"):
        pack(tmp_path, data)
    (tmp_path / "train.txt").write_text("data/images/train/0.jpg\n")
    data.write_text("names: [a]\ntrain: train.txt\n")
    with pytest.raises(ShardError, match=r"data/images/train/0\.jpg does not exist: the lines of a list"):
        pack(tmp_path, data)


def test_lines_with_points_are_not_taken_for_polygons(tmp_path):
    with pytest.raises(ShardError, match=r"kpt_shape is \[2, 2\].*task='detect': give task='pose'"):
        pack(tmp_path, layout(tmp_path, more="kpt_shape: [2, 2]"))


@pytest.mark.parametrize("extension", ["jfif", "mpo"])
def test_images_of_other_extensions_are_packed_or_noted(tmp_path, caplog, extension):
    data = layout(tmp_path)
    (tmp_path / "labels" / "train" / "classes.txt").write_text("cat dog")
    path = tmp_path / "images" / "train" / "0.jpg"
    content = path.read_bytes()
    path.rename(path.with_suffix(f".{extension}"))
    report = pack(tmp_path, data)
    if extension == "jfif":
        assert members(report.shards[0])["0.jpg"] == content and "without an image" not in caplog.text
    else:
        assert report.samples == 2
        assert f"labels without an image: 1, the first is {tmp_path}/labels/train/0.txt" in caplog.text
