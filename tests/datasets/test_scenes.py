"""Synthetic scenes: boxes, areas, points and run lengths are those of the drawn pixels."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import tarpeg
from helpers.small_tars import members
from PIL import Image
from tarpeg.datasets.scenes import POINTS, SHAPES, Scenes, draw_objects, run_lengths
from tarpeg.datasets.writer import make_shards

SMALL = Scenes(size=[64, (80, 96)], classes=6, objects=(0, 8))


def decoded(lengths, size):
    """The mask of COCO's run lengths, pixel by pixel."""
    flat = []
    for place, length in enumerate(lengths["counts"]):
        flat += [place % 2 == 1] * length
    assert lengths["size"] == list(size)
    return np.array(flat).reshape(size[::-1]).T


def test_boxes_areas_and_run_lengths_are_those_of_the_masks():
    seen, hidden, cut = set(), 0, 0
    for index in range(40):
        scene = draw_objects(SMALL, index)
        document, size = scene.document, scene.mask.shape
        assert (document["height"], document["width"]) == size == scene.picture.size[::-1]
        assert (scene.mask > 0).sum() == sum(each["area"] for each in document["objects"])
        for number, each in enumerate(document["objects"], start=1):
            inside = scene.owners == number
            rows, columns = np.nonzero(inside)
            width, height = columns.max() + 1 - columns.min(), rows.max() + 1 - rows.min()
            assert each["bbox"] == [columns.min(), rows.min(), width, height]
            assert (each["area"], each["iscrowd"]) == (inside.sum(), 0) and inside.sum() >= 16
            assert set(scene.mask[inside].tolist()) == {each["category_id"]}
            assert each["category"] == SHAPES[each["category_id"] - 1]
            assert (decoded(each["segmentation"], size) == inside).all()
            points = np.array(each["keypoints"]).reshape(len(POINTS), 3)
            assert each["num_keypoints"] == (points[:, 2] > 0).sum()
            assert (points[points[:, 2] == 0] == 0).all()
            (top, left, right), left_edge = points, columns.min()
            for x, y, visibility in points[points[:, 2] == 2]:  # on the outline
                near = inside[max(int(y) - 3, 0) : int(y) + 4, max(int(x) - 3, 0) : int(x) + 4]
                assert near.any() and visibility == 2
            if left[2] and right[2]:
                assert left[0] < right[0] and left[0] >= left_edge - 2 - size[1] * (left[2] == 1)
            if top[2] and left[2] and right[2]:
                assert top[1] < max(left[1], right[1])
            seen.add(each["category_id"])
            hidden += (points[:, 2] == 1).any()
            cut += (points[:, 2] == 0).any()
    assert seen == {1, 2, 3, 4, 5, 6} and hidden > 5 and cut > 5


def test_run_lengths_begin_outside():
    for mask in ([[1, 1], [0, 1]], [[0, 0], [0, 0]], [[0, 1], [1, 1]], [[1, 1], [1, 1]]):
        lengths = {"size": [2, 2], "counts": run_lengths(np.array(mask, bool))}
        assert (decoded(lengths, (2, 2)) == np.array(mask, bool)).all()


def test_run_lengths_are_those_of_pycocotools():
    coco = pytest.importorskip("pycocotools.mask")
    scene = draw_objects(SMALL, 3)
    for number, each in enumerate(scene.document["objects"], start=1):
        found = coco.frPyObjects(each["segmentation"], *scene.mask.shape)
        assert (coco.decode(found) == (scene.owners == number)).all()
        assert coco.toBbox(found).tolist() == each["bbox"]


def test_shards_of_scenes_and_what_a_loader_reads(tmp_path):
    scenes = Scenes(size=(64, 80), exif=0.5, objects=(1, 3))
    report = make_shards(tmp_path, scenes, 6, samples_per_shard=4, workers=0)
    make_shards(tmp_path, scenes, 2, prefix="val", workers=0)
    together = {name: data for path in report.shards for name, data in members(path).items()}
    assert len(together) == 18 and [*members(report.shards[0])][:3] == [
        f"00000000.{e}" for e in ("jpg", "json", "png")
    ]
    names = ["__background__", *SHAPES[:4]]
    assert json.loads((tmp_path / "classes.json").read_text()) == {n: i for i, n in enumerate(names)}
    targets = [
        tarpeg.Boxes("json:objects", image_id="image_id"),
        tarpeg.Keypoints("json:objects", flip_pairs=[(1, 2)], count=3),
        tarpeg.Masks("png"),
    ]
    split = tarpeg.Split(
        tmp_path / "train-*.tar", tarpeg.RandomCrop((64, 80)), shuffle=False, targets=targets[:1]
    )
    assert split.classes() == names
    three = tarpeg.Split(
        tmp_path / "train-*.tar", tarpeg.RandomCrop((64, 80)), shuffle=False, targets=targets[1:]
    )
    by_name = tarpeg.Boxes(
        "json:objects", label="category", labels=json.loads((tmp_path / "classes.json").read_text())
    )
    named = tarpeg.Split(
        tmp_path / "train-*.tar", tarpeg.RandomCrop((64, 80)), shuffle=False, targets=by_name
    )
    batches = [next(iter(tarpeg.Loader(each, batch_size=6, workers=0))) for each in (split, three, named)]
    for row, (boxes, points, other) in enumerate(zip(*(batch[1] for batch in batches), strict=True)):
        scene = draw_objects(scenes, row)
        assert boxes["image_id"] == row and points["orig_size"].tolist() == [64, 80]
        wanted = [each["category_id"] for each in scene.document["objects"]]
        assert boxes["labels"].tolist() == other["labels"].tolist() == wanted
        assert (points["mask"].numpy() == scene.mask).all()
        assert points["keypoints"].shape == (len(wanted), 3, 3)
    png = Image.open(io.BytesIO(together["00000001.png"]))
    assert (np.asarray(png) == draw_objects(scenes, 1).mask).all()
    assert members(tmp_path / "val-000000.tar")["00000001.json"] != together["00000001.json"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("classes", 7), ("classes", 0), ("size", 63), ("objects", (2, 1)), ("objects", 3)),
        *(("objects", (0, 65)), ("objects", (0.5, 1)), ("extent", (0.01, 0.3)), ("extent", (0.1, True))),
    ],
)
def test_values_out_of_range_raise(name, value):
    with pytest.raises(ValueError, match=f"^{name}="):
        Scenes(**{name: value})


def test_an_image_may_have_no_room_for_all_objects():
    crowded = Scenes(size=64, objects=(64, 64), extent=(0.9, 0.9))
    assert 0 < len(draw_objects(crowded, 0).document["objects"]) < 64


def test_prepare_draws_scenes(tmp_path):
    scenes = Scenes(size=64)
    prepare = tarpeg.SyntheticShards(str(tmp_path), train=3, val=2, photos=scenes, workers=0)
    assert prepare() == tmp_path == prepare()
    assert "00000002.json" in members(tmp_path / "train-000000.tar")
    with pytest.raises(tarpeg.ShardError, match=r"photos\.objects"):
        tarpeg.SyntheticShards(str(tmp_path), train=3, val=2, photos={"size": 64, "classes": 4}, workers=0)()


def test_names_of_classes_are_those_of_the_table_that_targets_were_given(tmp_path):
    make_shards(tmp_path / "a", Scenes(size=(64, 80), classes=3), 4, workers=0)
    make_shards(tmp_path / "b", Scenes(size=(64, 80), classes=3), 4, workers=0)
    stored = json.loads((tmp_path / "a" / "classes.json").read_text())
    (tmp_path / "b" / "classes.json").write_text(json.dumps({"__background__": 0, "x": 1, "y": 2, "z": 3}))
    own = {name: 4 - label for name, label in stored.items() if label}
    table = tarpeg.Boxes("json:objects", label="category", labels=own)

    def split(*folders, targets):
        return tarpeg.Split([tmp_path / folder for folder in folders], tarpeg.LetterBox(32), targets=targets)

    names = ["__background__", *sorted(own, key=own.__getitem__)]
    for targets in (table, [table, tarpeg.InstanceMasks("json:objects")]):
        assert split("a", "b", targets=targets).classes() == names
    # The masks have other numbers than the table.
    assert split("a", "b", targets=[table, tarpeg.Masks("png")]).classes() is None
    same = tarpeg.Boxes("json:objects", label="category", labels={k: v for k, v in stored.items() if v})
    assert split("a", "b", targets=[same, tarpeg.Masks("png")]).classes() == [*stored]
    assert split("a", targets=tarpeg.Masks("png")).classes() == [*stored]
    with pytest.raises(tarpeg.ShardError, match="label 1 is"):
        split("a", "b", targets=tarpeg.Masks("png")).classes()
    assert split("a", "b", targets=tarpeg.PadMask()).classes() is None, "no target has classes"
    for labels in ({7: 1, 8: 2}, {"x": 1, "y": 3}, {"x": 1, "y": 1}, "coco"):
        assert split("a", targets=tarpeg.Boxes("json:objects", labels=labels)).classes() is None
    colours = tarpeg.Masks("png", labels={(0, 0, 0): 0, (128, 0, 0): 1})
    numbers = tarpeg.InstanceMap("png", divisor=1000, labels=[24, 25])
    assert split("a", targets=colours).classes() is split("a", targets=numbers).classes() is None

    class Own(tarpeg.Target):
        labels = "of the user"

        def read(self, source, ids):
            return [None] * len(ids)

        def move(self, value, view):
            return value

    assert split("a", targets=Own()).classes() == [*stored]
    mixture = tarpeg.Mixture({each: split(each, targets=table) for each in "ab"}, weights={"a": 1, "b": 1})
    loader = tarpeg.MixtureLoader(mixture, 4, workers=0)
    assert {label for each in next(iter(loader)).targets for label in each["labels"].tolist()} <= {1, 2, 3}
    loader.close()
