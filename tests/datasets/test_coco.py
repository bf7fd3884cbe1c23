"""Coco: shards have what torchvision reads of the same files, and nothing is left out in silence."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import tarpeg
import torch
from helpers.data_sets import CATEGORIES, coco, masks, targets_of
from helpers.pictures import saved
from helpers.small_tars import members, tars, write_tar
from PIL import Image
from tarpeg.datasets.writer import make_shards
from tarpeg.errors import DecodeError, ResumeError, ShardError
from torchvision import datasets

TABLE = {"__background__": 0, "car": 1, "cat": 2, "brush": 3}


def pack(place, *, out="out", **given):
    more = {name: given.pop(name) for name in ("max_bad", "workers", "prefix", "samples") if name in given}
    source = tarpeg.Coco(place / "images", place / "instances.json", **given)
    return make_shards(place / out, source, **{"workers": 0, "samples_per_shard": 4, **more})


def rewrite(place, document):
    (place / "instances.json").write_text(json.dumps(document))


def together(report):
    return {name: data for path in report.shards for name, data in members(path).items()}


def test_what_shards_have_is_what_torchvision_reads(tmp_path):
    document = coco(tmp_path)
    report = pack(tmp_path)
    assert (report.samples, len(report.shards), report.left_out) == (6, 2, ())
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == TABLE
    found = together(report)
    assert len(found) == 12
    reference = (
        datasets.wrap_dataset_for_transforms_v2(
            datasets.CocoDetection(tmp_path / "images", tmp_path / "instances.json"),
            target_keys=["image_id", "boxes", "labels"],
        )
        if _has_pycocotools()
        else None
    )
    boxes = tarpeg.Boxes("json:objects", image_id="image_id")
    named = tarpeg.Boxes("json:objects", label="category", labels=TABLE, image_id="image_id")
    read, by_name = targets_of(tmp_path / "out", boxes), targets_of(tmp_path / "out", named)
    for number, image in enumerate(document["images"]):
        key = image["file_name"].removesuffix(".jpg")
        assert found[f"{key}.jpg"] == (tmp_path / "images" / image["file_name"]).read_bytes()
        own = [each for each in document["annotations"] if each["image_id"] == image["id"]]
        text = json.loads(found[f"{key}.json"])
        names = {each["id"]: each["name"] for each in CATEGORIES}
        kept = [{k: v for k, v in each.items() if k != "image_id"} for each in own]
        assert text["objects"] == [{**each, "category": names[each["category_id"]]} for each in kept]
        assert [text[name] for name in ("image_id", "file_name", "height", "width")] == [
            image[name] for name in ("id", "file_name", "height", "width")
        ]
        scale = torch.tensor([60 / image["width"], 50 / image["height"]] * 2)
        expected = torch.tensor([each["bbox"] for each in own]).reshape(-1, 4)
        expected[:, 2:] += expected[:, :2]
        inside = expected.clamp(max=torch.tensor([image["width"], image["height"]] * 2)) * scale
        torch.testing.assert_close(torch.as_tensor(read[key]["boxes"]), inside, atol=1e-4, rtol=0)
        assert read[key]["labels"].tolist() == [each["category_id"] for each in own]
        assert read[key]["iscrowd"].tolist() == [each["iscrowd"] for each in own]
        assert by_name[key]["labels"].tolist() == [TABLE[names[each["category_id"]]] for each in own]
        assert read[key]["image_id"] == image["id"]
        if reference is not None:
            _, theirs = reference[number]
            assert theirs["image_id"] == image["id"]
            if own:
                torch.testing.assert_close(torch.as_tensor(theirs["boxes"]).float(), expected)
                assert theirs["labels"].tolist() == read[key]["labels"].tolist()


@pytest.mark.parametrize("form", ["shards", "cache"])
def test_names_are_those_of_the_labels_or_unknown(tmp_path, form):
    coco(tmp_path)  # with the ids 3, 17 and 90, which are not the numbers of classes.json
    pack(tmp_path)
    folder = tmp_path / "out"
    if form == "cache":
        folder = tmp_path / "cache"
        tarpeg.build_cache(tmp_path / "out", folder, executor=0)

    def split(targets):
        return tarpeg.Split(folder, tarpeg.Whole(32), targets=targets)

    objects = "json:objects"
    for target in (tarpeg.Boxes(objects), tarpeg.Boxes(objects, labels="coco"), tarpeg.InstanceMap("png")):
        assert split(target).classes() is None
    named = tarpeg.Boxes(objects, label="category", labels=TABLE)
    assert split([named, tarpeg.InstanceMasks(objects)]).classes() == list(TABLE)
    assert split(tarpeg.Boxes(objects, label=None)).classes() is None


def test_the_background_may_be_a_category_with_id_0(tmp_path):
    image = Image.new("RGB", (40, 40))
    image.save(tmp_path / "0.jpg")
    names = ["__background__", "cat", "dog"]
    document = {
        "images": [{"id": 0, "file_name": "0.jpg"}],
        "categories": [{"id": id, "name": name} for id, name in enumerate(names)],
        "annotations": [{"id": 1, "image_id": 0, "category_id": 2, "bbox": [1, 1, 9, 9]}],
    }
    (tmp_path / "a.json").write_text(json.dumps(document))
    report = tarpeg.make_shards(tmp_path / "out", tarpeg.Coco(tmp_path, tmp_path / "a.json"), workers=0)
    split = tarpeg.Split(iter(report.shards), tarpeg.Whole(40), targets=tarpeg.Boxes("json:objects"))
    assert split.classes() == names
    (batch,) = tarpeg.Loader(split, batch_size=1, workers=0)
    assert batch.targets[0]["labels"].tolist() == [2]
    document["categories"][0]["id"] = 3
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(ShardError, match="'__background__', which is label 0 without it"):
        tarpeg.make_shards(tmp_path / "other", tarpeg.Coco(tmp_path, tmp_path / "a.json"), workers=0)


def test_names_of_ids_without_gaps_are_known(tmp_path):
    split = tarpeg.Split(
        numbered(tmp_path, (1, 2, 3)), tarpeg.Whole(32), targets=tarpeg.Boxes("json:objects")
    )
    data = tarpeg.ShardDataModule(split, workers=0)
    assert data.classes == list(TABLE) and data.num_classes == 4


def numbered(place, numbers, **given):
    """Pack the data set with these numbers as the ids of its categories; return the shards."""
    document = coco(place)
    table = {each["id"]: number for each, number in zip(CATEGORIES, numbers, strict=True)}
    for each in document["annotations"]:
        each["category_id"] = table[each["category_id"]]
    document["categories"] = [{**each, "id": table[each["id"]]} for each in CATEGORIES]
    last = document["annotations"][-1]
    document["annotations"] += [{**last, "id": 90 + each, "category_id": each} for each in numbers]
    rewrite(place, document)
    return pack(place, **given).shards


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("ids", [(0, 1, 2), (3, 7, 9)])
@pytest.mark.parametrize("form", ["two folders", "two prefixes", "cache"])
def test_one_split_of_exports_that_number_the_same_names_otherwise(tmp_path, form, ids, order):
    out = {} if form == "two folders" else {"out": tmp_path / "out"}
    shards = [
        numbered(tmp_path / name, numbers, prefix=name, **out)
        for name, numbers in (("one", (1, 2, 3)), ("two", ids))
    ]
    shards = [str(path) for part in shards[::order] for path in part]
    if form == "cache":
        tarpeg.build_cache(tmp_path / "out", tmp_path / "cache", executor=0)
        shards = str(tmp_path / "cache")
    split = tarpeg.Split(shards, tarpeg.Whole(32), targets=tarpeg.Boxes("json:objects"))
    data = tarpeg.ShardDataModule(split, batch_size=4, workers=0)
    text = r"class '(car|cat|brush)' has the label \d \(.*\) and \d \(.*\): read together.*Boxes\(label="
    with pytest.raises(ShardError, match=text):
        data.setup("fit")


def test_names_are_looked_for_behind_samples_without_objects(tmp_path):
    document = coco(tmp_path, 200)
    last = document["images"][-1]["id"]
    document["annotations"] = [
        {**document["annotations"][0], "id": 1 + number, "image_id": last, "category_id": each["id"]}
        for number, each in enumerate(CATEGORIES)
    ]
    rewrite(tmp_path, document)
    pack(tmp_path)
    split = tarpeg.Split(tmp_path / "out", tarpeg.Whole(32), targets=tarpeg.Boxes("json:objects"))
    assert split.classes() is None and split.class_numbers() == {"labels": {"car": 3, "cat": 17, "brush": 90}}


def test_names_of_masks_are_those_of_the_objects_beside(tmp_path):
    for name, numbers, expected in (("one", (1, 2, 3), list(TABLE)), ("two", (1, 2, 4), None)):
        shards = numbered(tmp_path / name, numbers)
        split = tarpeg.Split(shards, tarpeg.Whole(32), targets=tarpeg.Masks("png"))
        assert split.classes() == expected


@pytest.mark.parametrize("ids", [(0, 1, 2), (3, 7, 9), (10, 20, 30), (2, 1, 3)])
def test_the_names_of_a_checkpoint_are_compared_with_labels_that_have_gaps(tmp_path, ids):
    def data(name, numbers):
        split = tarpeg.Split(
            numbered(tmp_path / name, numbers), tarpeg.Whole(32), targets=tarpeg.Boxes("json:objects")
        )
        found = tarpeg.ShardDataModule(val=split, workers=0)
        found.setup("validate")
        return found

    state = data("one", (1, 2, 3)).state_dict()
    assert state["classes"] == list(TABLE)
    data("again", (1, 2, 3)).load_state_dict(state)
    two = data("two", ids)
    with pytest.raises(ShardError, match=r"when the checkpoint was made.*give the table labels="):
        two.load_state_dict(state)
    with pytest.raises(ShardError, match=r"when the checkpoint was made.*give the table labels="):
        data("one again", (1, 2, 3)).load_state_dict(two.state_dict())
    data("two again", ids).load_state_dict(two.state_dict())
    for labels in ({"car": "3"}, [3], {3: 3}):
        with pytest.raises(ResumeError, match=r"labels=.* of the data module's state must be integers"):
            two.load_state_dict({"classes": [], "labels": labels})


@pytest.mark.parametrize("as_mixture", [False, True])
@pytest.mark.parametrize(
    ("ids", "text"), [((1, 3, 4), "label 3 is 'brush' in"), ((10, 20, 30), "class 'car'")]
)
def test_exports_that_number_the_same_names_otherwise_are_an_error(tmp_path, as_mixture, ids, text):
    splits = [
        tarpeg.Split(
            numbered(tmp_path / name, numbers),
            tarpeg.Whole(32),
            target=None,
            targets=tarpeg.Boxes("json:objects"),
        )
        for name, numbers in (("one", (1, 2, 3)), ("two", ids))
    ]
    with pytest.raises(ShardError, match=rf"{text}.*Give the targets of all one table: Boxes\(label="):
        if as_mixture:
            mixture = tarpeg.Mixture(dict(zip("ab", splits, strict=True)), repeat={"a": 1, "b": 1})
            tarpeg.MixtureLoader(mixture, batch_size=4, workers=0)
        else:
            tarpeg.ShardDataModule(*splits).setup()


@pytest.mark.parametrize("has_names", [True, False])
@pytest.mark.parametrize("as_mixture", [False, True])
def test_splits_that_make_other_labels_of_the_same_objects_are_an_error_or_a_warning(
    tmp_path, as_mixture, has_names
):
    coco(tmp_path)
    shards = pack(tmp_path).shards
    by_name = {"label": "category", "labels": TABLE}
    ways = [{}, {"labels": "coco"}, {"labels": [3, 17, 90]}, by_name]
    if not has_names:
        ways.pop()
        (tmp_path / "out" / "classes.json").unlink()
        for path in shards:
            found = members(path)
            for name in (name for name in found if name.endswith(".json")):
                document = json.loads(found[name])
                for each in document["objects"]:
                    each["name"] = each.pop("category")
                found[name] = json.dumps(document).encode()
            write_tar(path, found.items())

    def run(*given):
        one, other = (
            tarpeg.Split(
                tmp_path / "out", tarpeg.Whole(32), target=None, targets=tarpeg.Boxes("json:objects", **each)
            )
            for each in given
        )
        if as_mixture:
            mixture = tarpeg.Mixture({"a": one, "b": other}, repeat={"a": 1, "b": 1})
            list(tarpeg.MixtureLoader(mixture, batch_size=4, workers=0))
        else:
            tarpeg.ShardDataModule(one, one if given[0] is given[1] else other, allow_overlap=True).setup()

    for first, second in itertools.product(ways, ways):
        are_equal = has_names and by_name in (first, second) and ways[2] in (first, second)
        if first is second or are_equal:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*a label may mean two classes")
                run(first, second)
        elif has_names:
            with pytest.raises(ShardError, match=r"class '(car|cat)' has the label|label 3 is"):
                run(first, second)
        else:
            with pytest.warns(UserWarning, match="a label may mean two classes. Give both the same"):
                run(first, second)


@pytest.mark.parametrize("labels", ["coco", [1, 2, 3], {1: 1, 2: 2, 3: 3}])
@pytest.mark.parametrize("form", ["splits", "two folders", "mixture", "checkpoint"])
def test_exports_that_number_the_same_names_otherwise_are_an_error_with_tables_of_numbers(
    tmp_path, form, labels
):
    targets = tarpeg.Boxes("json:objects", labels=labels)

    def split(*shards):
        return tarpeg.Split([*itertools.chain(*shards)], tarpeg.Whole(32), target=None, targets=targets)

    one, two = numbered(tmp_path / "one", (1, 2, 3)), numbered(tmp_path / "two", (2, 3, 1), prefix="two")
    tarpeg.ShardDataModule(split(one), split(numbered(tmp_path / "three", (1, 2, 3)))).setup()
    text = r"label \d (is|was) '(car|cat|brush)'|class '(car|cat|brush)' ha(s|d) the label \d"
    with pytest.raises(ShardError, match=text):
        if form == "splits":
            tarpeg.ShardDataModule(split(one), split(two)).setup()
        elif form == "two folders":
            tarpeg.ShardDataModule(split(one, two), split(one), allow_overlap=True).setup()
        elif form == "mixture":
            mixture = tarpeg.Mixture({"a": split(one), "b": split(two)}, repeat={"a": 1, "b": 1})
            tarpeg.MixtureLoader(mixture, batch_size=4, workers=0)
        else:
            first, second = (tarpeg.ShardDataModule(val=split(each), workers=0) for each in (one, two))
            first.setup("validate")
            second.setup("validate")
            second.load_state_dict(first.state_dict())


def painted(place, ids, numbers, *, images=4, left_out=(), mode="L", around=0, **given):
    """Pack images of a car, a cat and a brush each, with masks of these numbers; return the shards.

    ``left_out`` has the names whose objects only the first three images have; ``around`` them is that number.
    """
    (place / "images").mkdir(parents=True)
    (place / "masks").mkdir()
    names = ("car", "cat", "brush")
    document = {"images": [], "annotations": [], "categories": []}
    document["categories"] = [{"id": id, "name": name} for id, name in zip(ids, names, strict=True)]
    for number in range(images):
        Image.new("RGB", (96, 64)).save(place / "images" / f"{number}.jpg")
        document["images"].append({"id": number, "file_name": f"{number}.jpg", "width": 96, "height": 64})
        mask = np.full((64, 96), around, np.uint8)
        for place_of, (id, value) in enumerate(zip(ids, numbers, strict=True)):
            if number >= 3 and names[place_of] in left_out:
                continue
            left, top, width, height = 32 * place_of + number, 4 + number, 20, 30
            mask[top : top + height, left : left + width] = value
            corners = [left, top, left + width, top, left + width, top + height, left, top + height]
            each = {"image_id": number, "category_id": id, "bbox": [left, top, width, height], "iscrowd": 0}
            each |= {"segmentation": [corners]} if number % 2 else {}
            document["annotations"].append({"id": 10 * number + id, "area": width * height, **each})
        Image.fromarray(mask).convert(mode).save(place / "masks" / f"{number}.png")
    rewrite(place, document)
    return pack(place, masks=place / "masks", **given).shards


@pytest.mark.parametrize("form", ["splits", "two folders", "mixture", "one split"])
@pytest.mark.parametrize("beside", ["boxes", "nothing"])
@pytest.mark.parametrize("is_same", [False, True])
def test_masks_are_compared_by_the_pixels_under_objects(tmp_path, form, beside, is_same):
    boxes = tarpeg.Boxes("json:objects", label="category", labels=TABLE)
    one = painted(tmp_path / "one", (1, 2, 3), (1, 2, 3))
    numbers = (1, 2, 3) if is_same else (2, 3, 1)
    two = painted(tmp_path / "two", (2, 3, 1), numbers, prefix="two")

    def split(*shards, labels=None):
        masks = tarpeg.Masks("png", labels=labels)
        targets = [masks, boxes] if beside == "boxes" else masks
        return tarpeg.Split([*itertools.chain(*shards)], tarpeg.Whole(32), target=None, targets=targets)

    def run(labels=None):
        if form == "splits":
            tarpeg.ShardDataModule(split(one), split(two, labels=labels)).setup()
        elif form == "two folders":
            tarpeg.ShardDataModule(split(one, two), split(one), allow_overlap=True).setup()
        elif form == "mixture":
            sources = {"a": split(one), "b": split(two, labels=labels)}
            tarpeg.MixtureLoader(tarpeg.Mixture(sources, repeat={"a": 1, "b": 1}), batch_size=4, workers=0)
        else:
            tarpeg.ShardDataModule(split(two)).setup()

    names = None if beside == "boxes" and not is_same else list(TABLE)
    if beside == "nothing":  # the stored names are those of the labels 1 cat, 2 brush, 3 car
        names = None if is_same else ["__background__", "brush", "car", "cat"]
    assert split(two).classes() == names and split(one).classes() == list(TABLE)
    differ = not is_same and form != "one split"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            run()
        except ShardError as error:  # the masks of both folders have the numbers that are stated there
            assert re.search(r"(number of masks|label) \d is ", str(error))
            assert differ or (beside, form) == ("nothing", "two folders")
        else:
            text = [each for each in found if "by the pixels under objects, " in str(each.message)]
            assert bool(text) == differ
    if form in ("splits", "mixture") and not is_same:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*by the pixels under objects")
            run({0: 0, 2: 1, 3: 2, 1: 3})


@pytest.mark.parametrize("numbers", [(0, 1, 2), (7, 8, 9), (3, 1, 2)])
def test_masks_with_numbers_of_their_own_have_no_names(tmp_path, numbers):
    shards = painted(tmp_path, (1, 2, 3), numbers)
    for targets in (tarpeg.Masks("png"), [tarpeg.Boxes("json:objects"), tarpeg.Masks("png")]):
        split = tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=targets)
        assert split.classes() is None


def test_a_checkpoint_keeps_the_numbers_of_masks_beside_boxes_by_name(tmp_path):
    boxes = tarpeg.Boxes("json:objects", label="category", labels=TABLE)

    def data(name, ids):
        shards = painted(tmp_path / name, ids, ids)
        split = tarpeg.Split(shards, tarpeg.Whole(32), targets=[tarpeg.Masks("png"), boxes])
        found = tarpeg.ShardDataModule(val=split, workers=0)
        found.setup("validate")
        return found

    one, two = data("one", (1, 2, 3)), data("two", (2, 3, 1))
    assert one.classes == list(TABLE) and two.classes is None
    text = "label 1 was 'car' when the checkpoint was made and is 'brush' now"
    with pytest.raises(ShardError, match=text):
        two.load_state_dict(one.state_dict())
    data("three", (1, 2, 3)).load_state_dict(one.state_dict())


@pytest.mark.parametrize("beside", ["boxes", "nothing"])
def test_a_checkpoint_keeps_the_numbers_that_pixels_of_masks_show(tmp_path, beside):
    boxes = tarpeg.Boxes("json:objects", label="category", labels=TABLE)

    def data(name, numbers):
        shards = painted(tmp_path / name, (1, 2, 3), numbers)
        targets = [tarpeg.Masks("png"), boxes] if beside == "boxes" else tarpeg.Masks("png")
        found = tarpeg.ShardDataModule(val=tarpeg.Split(shards, tarpeg.Whole(32), targets=targets), workers=0)
        found.setup("validate")
        return found

    stated, one, two = data("stated", (1, 2, 3)), data("one", (3, 1, 2)), data("two", (7, 8, 9))
    text = "by the pixels under objects, class '(car|cat|brush)' had the number of masks"
    for then, now in ((stated, one), (one, stated), (one, two), (two, stated)):
        with pytest.warns(UserWarning, match=text):
            now.load_state_dict(then.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in (stated, one, two):
            each.load_state_dict(each.state_dict())
    assert one.state_dict()["seen_labels"] == {"mask": {"car": 3, "cat": 1, "brush": 2}}
    with pytest.raises(ResumeError, match=r"seen_labels=.* of the data module's state must be integers"):
        one.load_state_dict({"classes": [], "seen_labels": {"mask": {"car": "3"}}})


@pytest.mark.parametrize("numbers", [(0, 0, 0), (7, 7, 7)])
@pytest.mark.parametrize("beside", ["boxes", "nothing"])
def test_masks_of_other_things_than_the_objects_are_not_compared(tmp_path, numbers, beside):
    """Roads, or organs: 0 under all objects, or one number under several classes."""
    boxes = tarpeg.Boxes("json:objects", label="category", labels=TABLE)

    def split(name, ids, numbers):
        shards = painted(tmp_path / name, ids, numbers)
        targets = [tarpeg.Masks("png"), boxes] if beside == "boxes" else tarpeg.Masks("png")
        return tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=targets)

    other = tuple(number and number + 1 for number in numbers)
    one, two = split("one", (1, 2, 3), numbers), split("two", (2, 3, 1), other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = tarpeg.ShardDataModule(one, two, workers=0)
        data.setup()
        tarpeg.ShardDataModule(two, workers=0).load_state_dict(data.state_dict())
    assert one.classes() == (list(TABLE) if beside == "boxes" else None)
    assert "mask" not in one.class_numbers()


@pytest.mark.parametrize("labels", [None, {0: 0, 1: 1, 2: 2}])
def test_masks_of_groups_of_classes_are_the_same_whichever_class_has_most_objects(tmp_path, labels):
    splits = []
    for place, rare in (("one", "cat"), ("two", "car")):
        shards = painted(tmp_path / place, (1, 2, 3), (1, 1, 2), images=6, left_out=[rare], prefix=place)
        masks = tarpeg.Masks("png", labels=labels)
        splits.append(tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=masks))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = tarpeg.ShardDataModule(*splits, workers=0)
        data.setup()
        tarpeg.ShardDataModule(val=splits[1], workers=0).load_state_dict(data.state_dict())
        joined = replace(splits[0], shards=[*splits[0].shards, *splits[1].shards])
        assert joined.classes() is None and data.classes is None


def test_masks_of_groups_that_are_numbered_anew_are_a_warning(tmp_path):
    splits = []
    for place, numbers in (("one", (1, 1, 2)), ("two", (2, 2, 1))):
        shards = painted(tmp_path / place, (1, 2, 3), numbers, prefix=place)
        splits.append(tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=tarpeg.Masks("png")))
    with pytest.warns(UserWarning, match="by the pixels under objects, number of masks 1 is 'ca[rt]' in"):
        tarpeg.ShardDataModule(*splits, workers=0).setup()


def test_a_table_for_two_folders_does_not_make_other_names_one_class(tmp_path):
    """Number 1 is a car in one folder and a cat in the other, and the table has the numbers of the files."""
    one = painted(tmp_path / "one", (1, 2, 3), (1, 2, 3))
    two = painted(tmp_path / "two", (3, 1, 2), (3, 1, 2), prefix="two")
    masks = tarpeg.Masks("png", labels={0: 0, 1: 1, 2: 2, 3: 3})
    for given in ([[*one, *two]], [one, two]):
        splits = [tarpeg.Split(each, tarpeg.Whole(32), target=None, targets=masks) for each in given]
        with pytest.warns(
            UserWarning, match="by the pixels under objects, .*: a number may mean|which would be"
        ):
            tarpeg.ShardDataModule(*splits, workers=0).setup()


def test_a_checkpoint_of_a_table_that_merges_other_names_is_a_warning(tmp_path):
    shards = painted(tmp_path, (1, 2, 3), (1, 2, 3))
    first, second = (
        tarpeg.ShardDataModule(
            val=tarpeg.Split(
                shards, tarpeg.Whole(32), targets=tarpeg.Boxes("json:objects", label="category", labels=table)
            ),
            workers=0,
        )
        for table in ({"car": 1, "cat": 1, "brush": 2}, {"bike": 1, "bus": 1, "car": 3, "brush": 2, "cat": 3})
    )
    first.setup("validate")
    second.setup("validate")
    first.splits["val"] = None
    state = first.state_dict()
    state["labels"] = {"truck": 1, "lorry": 1, "brush": 2}
    with pytest.warns(
        UserWarning, match="label 1 was 'lorry' when the checkpoint was made and is 'bike' now"
    ):
        second.load_state_dict(state)


def test_masks_of_two_numberings_in_one_list_have_no_names(tmp_path):
    one = painted(tmp_path / "one", (1, 2, 3), (1, 2, 3))
    two = painted(tmp_path / "two", (1, 2, 3), (2, 3, 1), prefix="two")
    split = tarpeg.Split([*one, *two], tarpeg.Whole(32), targets=tarpeg.Masks("png"))
    with pytest.warns(UserWarning, match="a number may mean two classes"):
        assert split.classes() is None
        val = tarpeg.Split(one, tarpeg.Whole(32), targets=tarpeg.Masks("png"))
        assert val.classes() is not None
        assert tarpeg.ShardDataModule(split, val, workers=0, allow_overlap=True).classes is None


@pytest.mark.parametrize("around", [0, 255, 4, 7])
def test_masks_of_more_than_the_objects_have_no_names(tmp_path, around):
    """Things and stuff: the sky and the road have numbers behind those of the objects."""
    shards = painted(tmp_path, (1, 2, 3), (1, 2, 3), around=around)
    for targets in (tarpeg.Masks("png"), [tarpeg.Boxes("json:objects"), tarpeg.Masks("png")]):
        split = tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=targets)
        assert split.classes() == (list(TABLE) if around in (0, 255) else None)


def test_masks_that_are_too_many_pixels_leave_no_names(tmp_path, monkeypatch):
    from tarpeg.targets import mask_classes

    monkeypatch.setattr(mask_classes, "_MOST_PIXELS", 1)  # one mask is looked at
    split = tarpeg.Split(
        painted(tmp_path, (1, 2, 3), (3, 1, 2)), tarpeg.Whole(32), targets=tarpeg.Masks("png")
    )
    assert split.classes() is None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 96 * 64 // 2 - 1)  # none is
    split.forget()
    assert split.classes() is None


def test_masks_of_two_data_sets_whose_tables_make_them_one_are_not_a_warning(tmp_path):
    """A car of one is an automobile of the other, with another number."""
    splits = []
    for place, ids, numbers in (("one", (1, 2, 3), (1, 5, 7)), ("two", (9, 2, 11), (9, 2, 11))):
        shards = painted(tmp_path / place, ids, numbers, prefix=place)
        if place == "two":
            for path in shards:
                found = {
                    name: text.replace(b'"c', b'"other c') if name.endswith(".json") else text
                    for name, text in members(path).items()
                }
                found = {
                    name: text.replace(b'"other category', b'"category') if name.endswith(".json") else text
                    for name, text in found.items()
                }
                write_tar(path, found.items())
        table = {0: 0, **{number: label for label, number in enumerate(numbers, 1)}}
        masks = tarpeg.Masks("png", labels=table)
        splits.append(tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=masks))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = tarpeg.ShardDataModule(*splits, workers=0)
        data.setup()
        sources = dict(zip("ab", splits, strict=True))
        tarpeg.MixtureLoader(tarpeg.Mixture(sources, repeat={"a": 1, "b": 1}), batch_size=4, workers=0)
        one = tarpeg.ShardDataModule(val=splits[0], workers=0)
        one.setup("validate")
        two = tarpeg.ShardDataModule(val=splits[1], workers=0)
        two.load_state_dict(one.state_dict())
        two.setup("validate")
    assert splits[1].class_numbers()["mask"].keys() == {"other car", "other cat", "brush"}


@pytest.mark.parametrize("beside", ["boxes", "names", "nothing"])
@pytest.mark.parametrize("images", [1, 2])
def test_few_objects_over_masks_of_other_numbers_leave_no_names(tmp_path, beside, images):
    masks, named = tarpeg.Masks("png"), tarpeg.Boxes("json:objects", label="category", labels=TABLE)
    beside = {"boxes": [tarpeg.Boxes("json:objects")], "names": [named], "nothing": []}[beside]
    many, few = (
        tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=[masks, *beside])
        for shards in (
            painted(tmp_path / "many", (1, 2, 3), (3, 1, 2)),
            painted(tmp_path / "few", (1, 2, 3), (3, 1, 2), images=images, prefix="few"),
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = tarpeg.ShardDataModule(many, few, workers=0)
        data.setup()
        one = tarpeg.ShardDataModule(val=few, workers=0)
        one.setup("validate")
        assert one.classes is None and data.classes is None
        one.load_state_dict(data.state_dict())
        data.load_state_dict(one.state_dict())


@pytest.mark.parametrize("images", [1, 4])
def test_masks_of_one_bit_are_of_other_things(tmp_path, images):
    shards = painted(tmp_path, (1, 2, 3), (255, 255, 255), mode="1", images=images)
    boxes, masks = tarpeg.Boxes("json:objects"), tarpeg.Masks("png")
    for targets, names in ((masks, None), ([boxes, masks], list(TABLE))):
        split = tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=targets)
        assert split.classes() == names and "mask" not in split.class_numbers()


@pytest.mark.parametrize("numbers", [(7, 7, 7), (255, 255, 255), (0, 0, 0)])
def test_masks_of_other_things_leave_the_names_of_boxes(tmp_path, numbers):
    shards = painted(tmp_path, (1, 2, 3), numbers)
    for first in (tarpeg.Boxes("json:objects"), tarpeg.Boxes("json:objects", label="category", labels=TABLE)):
        split = tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=[first, tarpeg.Masks("png")])
        assert split.classes() == list(TABLE)


@pytest.mark.parametrize("labels", [None, {1: 1, 2: 2, 3: 3}])
def test_a_field_that_is_not_the_class_has_no_names(tmp_path, labels):
    """Colours, states and tracks: objects of one category have several."""
    targets = tarpeg.Boxes("json:objects", label="colour", labels=labels)
    splits = []
    for place, offset in (("one", 0), ("two", 1)):
        shards = painted(tmp_path / place, (1, 2, 3), (1, 2, 3), prefix=place)
        for path in shards:
            found = members(path)
            for place_of, name in enumerate(name for name in found if name.endswith(".json")):
                document = json.loads(found[name])
                for number, each in enumerate(document["objects"]):
                    each["colour"] = 1 + (number + place_of + offset) % 3
                found[name] = json.dumps(document).encode()
            write_tar(path, found.items())
        splits.append(tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=targets))
    data = tarpeg.ShardDataModule(*splits, workers=0)
    data.setup()
    assert data.classes is None and splits[0].class_numbers() == {}
    data.load_state_dict(tarpeg.ShardDataModule(val=splits[1], workers=0).state_dict())
    joined = tarpeg.Split([*splits[0].shards, *splits[1].shards], tarpeg.Whole(32), targets=targets)
    assert joined.class_numbers() == {}


@pytest.mark.parametrize("kind", ["boxes", "masks"])
def test_two_numberings_in_one_folder_are_a_warning(tmp_path, kind):
    """Of two files of annotations that somebody wrote into shards one after the other."""
    shards = painted(tmp_path, (1, 2, 3), (0, 0, 0))
    for path in shards:
        found = members(path)
        for name in sorted(name for name in found if name.endswith(".json"))[2:]:
            document = json.loads(found[name])
            for each in document["objects"]:
                each["category_id"] = each["category_id"] % 3 + 1
            found[name] = json.dumps(document).encode()
        write_tar(path, found.items())
    targets = {"boxes": tarpeg.Boxes("json:objects"), "masks": tarpeg.Masks("png")}[kind]
    split = tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=targets)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert split.classes() is None
    text = r"class 'ca[rt]' has the label \d \(shard .*\) and \d \(shard .*: .* one class is two for"
    assert [bool(re.search(text, str(each.message))) for each in found] == [True] * (kind == "boxes")


@pytest.mark.parametrize("forms", itertools.permutations(("both", "masks", "boxes"), 2), ids="-".join)
def test_a_checkpoint_of_boxes_is_not_compared_with_masks(tmp_path, forms):
    shards = painted(tmp_path, (17, 2, 3), (1, 2, 3))
    boxes, masks = tarpeg.Boxes("json:objects"), tarpeg.Masks("png")
    targets = {"both": [boxes, masks], "masks": masks, "boxes": boxes}
    data = [
        tarpeg.ShardDataModule(val=tarpeg.Split(shards, tarpeg.Whole(32), targets=targets[form]), workers=0)
        for form in forms
    ]
    for each in data:
        each.setup("validate")
    data[1].load_state_dict(data[0].state_dict())
    if forms[1] == "masks":  # of a state without the kind, whose numbers are perhaps those of the objects
        with pytest.warns(UserWarning, match="by the pixels under objects, class 'car' had the number"):
            data[1].load_state_dict({"classes": [], "labels": {"car": 17, "cat": 2, "brush": 3}})


def test_a_classes_json_that_a_table_replaces_is_not_a_warning(tmp_path):
    shards = painted(tmp_path, (1, 2, 3), (1, 2, 3))
    (tmp_path / "out" / "classes.json").write_text('{"car": 7}')
    named = tarpeg.Boxes("json:objects", label="category", labels=TABLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tarpeg.Split(shards, tarpeg.Whole(32), targets=named).classes() == list(TABLE)
    with pytest.warns(UserWarning, match="classes.json is not read"):
        tarpeg.Split(shards, tarpeg.Whole(32), targets=tarpeg.Masks("png")).classes()


def test_outlines_that_cannot_be_drawn_do_not_end_the_setup_of_masks(tmp_path):
    shards = painted(tmp_path, (1, 2, 3), (1, 2, 3))
    odd = (
        [1.0] * 7,
        [1.0] * 4,
        ["1"] * 6,
        [float("inf")] * 6,
        None,
        [[1.0, 2.0]],
        [1e6, 1e6, 2e6, 1e6, 2e6, 2e6],
    )
    for path in shards:
        found = members(path)
        for place, name in enumerate(name for name in found if name.endswith(".json")):
            document = json.loads(found[name])
            document["objects"] += [
                {**document["objects"][0], "segmentation": [each]} for each in (*odd[place:], *odd[:place])
            ]
            document["objects"] += [
                {**document["objects"][0], "segmentation": [], "bbox": each} for each in odd
            ]
            found[name] = json.dumps(document).encode()
        write_tar(path, found.items())
    assert tarpeg.Split(shards, tarpeg.Whole(32), targets=tarpeg.Masks("png")).classes() == list(TABLE)


def test_a_class_behind_another_has_no_number_in_masks(tmp_path):
    """Two of VOC's sofas with a person in the middle of their boxes."""
    names = ("person", "sofa", "dog")
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    categories = [{"id": id, "name": name} for id, name in enumerate(names, 1)]
    document = {"images": [], "annotations": [], "categories": categories}
    for number in range(8):
        Image.new("RGB", (96, 64)).save(tmp_path / "images" / f"{number}.jpg")
        document["images"].append({"id": number, "file_name": f"{number}.jpg", "width": 96, "height": 64})
        mask = np.zeros((64, 96), np.uint8)
        boxes = [(30, 10, 30, 40, 1), (82, 2, 12, 20, 3)]
        if number % 2:
            mask[5:55, 10:80] = 2
            boxes.append((10, 5, 70, 50, 2))
        mask[10:50, 24:66] = 1
        mask[2:22, 82:94] = 3
        for *box, id in boxes:
            each = {"image_id": number, "category_id": id, "bbox": box, "iscrowd": 0, "area": 9}
            document["annotations"].append({"id": 10 * number + id, **each})
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number}.png")
    rewrite(tmp_path, document)
    shards = pack(tmp_path, masks=tmp_path / "masks").shards
    split = tarpeg.Split(shards, tarpeg.Whole(32), targets=tarpeg.Masks("png"))
    assert split.class_numbers() == {"mask": {"person": 1, "dog": 3}}
    assert split.classes() == ["__background__", *names]


@pytest.mark.parametrize("form", ["splits", "mixture", "checkpoint", "checkpoint of all", "one list"])
def test_a_class_without_objects_has_no_label_to_compare(tmp_path, form):
    def shards(place, ids, shown):
        numbered(tmp_path / place, ids)
        document = json.loads((tmp_path / place / "instances.json").read_text())
        document["annotations"] = [each for each in document["annotations"] if each["category_id"] in shown]
        rewrite(tmp_path / place, document)
        return pack(tmp_path / place, out="shown", prefix=place).shards

    def split(*given):
        return tarpeg.Split(
            [*itertools.chain(*given)], tarpeg.Whole(32), target=None, targets=tarpeg.Boxes("json:objects")
        )

    ids = (1, 2, 22)  # one taxonomy, whose last class is in the second files alone
    one, two = shards("one", ids, (1, 2)), shards("two", ids, ids)
    made = [tarpeg.ShardDataModule(val=split(each), workers=0) for each in (one, two)]
    for each in made:
        each.setup("validate")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if form == "splits":
            data = tarpeg.ShardDataModule(split(one), split(two), workers=0)
            data.setup()
            assert data.classes is None
        elif form == "mixture":
            mixture = tarpeg.Mixture({"a": split(one), "b": split(two)}, repeat={"a": 1, "b": 1})
            tarpeg.MixtureLoader(mixture, batch_size=4, workers=0)
        elif form == "checkpoint":
            made[1].load_state_dict(made[0].state_dict())
        elif form == "checkpoint of all":
            made[0].load_state_dict(made[1].state_dict())
        else:
            assert split(one, two).classes() is None
    other = shards("other", (2, 1, 22), ids)
    with pytest.raises(ShardError):
        tarpeg.ShardDataModule(split(one), split(other)).setup()


def test_a_table_may_make_one_class_of_several(tmp_path):
    targets = tarpeg.Boxes("json:objects", labels={1: 1, 2: 1, 3: 2})
    splits = []
    for place, kept in (("one", (1, 3)), ("two", (2, 3))):
        numbered(tmp_path / place, (1, 2, 3))
        document = json.loads((tmp_path / place / "instances.json").read_text())
        document["annotations"] = [each for each in document["annotations"] if each["category_id"] in kept]
        rewrite(tmp_path / place, document)
        shards = pack(tmp_path / place, out="kept").shards
        splits.append(tarpeg.Split(shards, tarpeg.Whole(32), target=None, targets=targets))
    data = tarpeg.ShardDataModule(*splits, workers=0)
    data.setup()
    assert [split.class_numbers()["labels"] for split in splits] == [
        {"car": 1, "brush": 2},
        {"cat": 1, "brush": 2},
    ]
    assert data.classes is None
    joined = tarpeg.Split([*splits[0].shards, *splits[1].shards], tarpeg.Whole(32), targets=targets)
    assert joined.class_numbers() == {"labels": {"car": 1, "cat": 1, "brush": 2}}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("as_mixture", [False, True])
def test_names_are_unknown_if_another_split_has_labels_beyond_them(tmp_path, order, as_mixture):
    splits = []
    for place, ids in (("one", (1, 2, 3)), ("two", (1, 2, 5))):
        document = coco(tmp_path / place)
        found = {each["name"]: number for each, number in zip(CATEGORIES, ids, strict=True)}
        names = {"brush": "bus"} if place == "two" else {}
        of_id = {each["id"]: found[each["name"]] for each in CATEGORIES}
        for each in document["annotations"]:
            each["category_id"] = of_id[each["category_id"]]
        document["categories"] = [
            {"id": number, "name": names.get(name, name)} for name, number in found.items()
        ]
        last = document["annotations"][-1]
        document["annotations"] += [{**last, "id": 90 + each, "category_id": each} for each in ids]
        rewrite(tmp_path / place, document)
        splits.append(
            tarpeg.Split(
                pack(tmp_path / place).shards,
                tarpeg.Whole(32),
                target=None,
                targets=tarpeg.Boxes("json:objects"),
            )
        )
    one, two = splits[::order]
    train = tarpeg.Mixture({"a": one, "b": two}, repeat={"a": 1, "b": 1}) if as_mixture else one
    data = tarpeg.ShardDataModule(train, None if as_mixture else two, batch_size=2, workers=0)
    assert data.classes is None
    data.setup()
    assert data.classes is None and data.num_classes is None
    assert data.state_dict()["labels"] == {"__background__": 0, "car": 1, "cat": 2, "brush": 3, "bus": 5}


def test_a_checkpoint_of_other_classes_with_the_same_labels_is_a_warning(tmp_path):
    def data(place, ids, names):
        found = dict(zip(("car", "cat", "brush"), names, strict=True))
        numbered(tmp_path / place, ids)
        document = json.loads((tmp_path / place / "instances.json").read_text())
        document["categories"] = [{**each, "name": found[each["name"]]} for each in document["categories"]]
        rewrite(tmp_path / place, document)
        shards = pack(tmp_path / place, out="named").shards
        split = tarpeg.Split(shards, tarpeg.Whole(32), targets=tarpeg.Boxes("json:objects"))
        made = tarpeg.ShardDataModule(val=split, workers=0)
        made.setup("validate")
        return made

    full, gaps = (
        data("one", (1, 2, 3), ("hen", "pig", "cow")),
        data("two", (1, 3, 7), ("bus", "tram", "ship")),
    )
    with pytest.warns(UserWarning, match="label 1 was 'hen' when the checkpoint was made and is 'bus' now"):
        gaps.load_state_dict(full.state_dict())
    assert gaps.classes is None
    with pytest.warns(UserWarning, match="label 1 was 'bus' when the checkpoint was made and is 'hen' now"):
        full.load_state_dict(gaps.state_dict())
    assert full.classes == ["__background__", "hen", "pig", "cow"]


def _has_pycocotools():
    try:
        import pycocotools.coco  # noqa: F401
    except ImportError:
        return False
    return True


def test_outlines_and_points_are_read_and_are_those_of_pycocotools(tmp_path):
    document = coco(tmp_path)
    pack(tmp_path)
    points = tarpeg.Keypoints("json:objects", flip_pairs=[], count=3)
    outlines = tarpeg.InstanceMasks("json:objects", min_pixels=0)
    found = targets_of(tmp_path / "out", points, outlines, size=(48, 64))
    assert [len(found[f"{number:012d}"]["masks"]) for number in range(6)] == [0, 1, 2, 0, 1, 2]
    assert found[f"{1:012d}"]["keypoints"].shape == (1, 3, 3)
    tools = pytest.importorskip("pycocotools.coco")
    reader = tools.COCO(str(tmp_path / "instances.json"))
    image = document["images"][4]  # of 48 x 64: nothing is resized
    own = reader.loadAnns(reader.getAnnIds([image["id"]]))
    masks = np.stack([reader.annToMask(each) for each in own])
    assert (found[f"{4:012d}"]["masks"].numpy() == masks).all()


def test_masks_and_their_size(tmp_path):
    document = coco(tmp_path)
    sizes = {image["file_name"][:-4]: (image["height"], image["width"]) for image in document["images"]}
    values = masks(tmp_path, sizes)
    report = pack(tmp_path, masks=tmp_path / "masks")
    found = together(report)
    for name in values:
        assert found[f"{name}.png"] == (tmp_path / "masks" / f"{name}.png").read_bytes()
    read = targets_of(tmp_path / "out", tarpeg.Masks("png"), size=(48, 64))
    assert (read[f"{0:012d}"].numpy() == values[f"{0:012d}"]).all()
    (tmp_path / "masks" / f"{3:012d}.png").unlink()
    Image.new("L", (64, 48)).save(tmp_path / "masks" / f"{1:012d}.png")
    report = pack(tmp_path, masks=tmp_path / "masks")
    assert report.samples == 4 and len(report.left_out) == 2
    wrong, missing = sorted(report.left_out)
    assert f"{1:012d}.png is 48 x 64" in wrong and f"{1:012d}.jpg is 64 x 48" in wrong
    assert f"{3:012d}.png: No such file" in missing


def test_masks_are_not_taken_for_images(tmp_path):
    document = coco(tmp_path)
    for image in document["images"]:
        path = tmp_path / "images" / image["file_name"]
        path.with_suffix(".png").write_bytes(saved(Image.open(path), "PNG"))
        image["file_name"] = path.with_suffix(".png").name
    rewrite(tmp_path, document)
    sizes = {image["file_name"][:-4]: (image["height"], image["width"]) for image in document["images"]}
    masks(tmp_path, sizes)
    found = together(pack(tmp_path, masks=tmp_path / "masks", samples=1))
    assert sorted(name.partition(".")[2] for name in found) == ["json", "png", "seg.png"]


def test_images_without_objects_and_those_of_no_annotation(tmp_path, caplog):
    coco(tmp_path)
    (tmp_path / "images" / "more.jpg").write_bytes(b"")
    report = pack(tmp_path)
    assert report.samples == 6 and report.left_out == ()
    assert "images without annotations: 2, the first is 000000000000.jpg" in caplog.text
    assert "images that are not in" in caplog.text and "more.jpg" in caplog.text
    report = pack(tmp_path, keep_empty=False)
    assert report.samples == 4 and "images without objects that are left out: 2" in caplog.text


def test_crowds_are_left_out_if_asked(tmp_path):
    document = coco(tmp_path)
    crowds = sum(each["iscrowd"] for each in document["annotations"])
    found = {}
    for name in ("with", "without"):
        pack(tmp_path, out=name, crowds=name == "with", max_bad=0.0)
        read = targets_of(tmp_path / name, tarpeg.Boxes("json:objects"))
        found[name] = [flag for target in read.values() for flag in target["iscrowd"].tolist()]
    assert crowds and sorted(found["with"]) == [0] * (len(found["with"]) - crowds) + [1] * crowds
    assert found["without"] == [0] * (len(found["with"]) - crowds)


def change(number, **fields):
    """A change of an annotation, and the text of its error; None removes a field."""

    def apply(document):
        found = document["annotations"][number]
        found.update(fields)
        for name in [name for name, value in fields.items() if value is None]:
            del found[name]

    return apply


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (
            change(0, category_id=4),
            r"annotation 1 of 000000000001.jpg has category_id 4, .* not in categories",
        ),
        (change(0, bbox=[1, 2, 3]), r"000000000001.jpg: field 'objects.0.bbox' .*\(id 1\)"),
        (change(0, bbox=[1, 2, -3, 4]), r"000000000001.jpg: field 'objects.0.bbox' .* negative size"),
        (change(2, bbox=[900, 2, 3, 4]), r"000000000002.jpg: field 'objects.1.bbox' .* outside .*\(id 3\)"),
        (change(0, bbox=["1", 2, 3, 4]), r"000000000001.jpg: field 'objects.0.bbox' "),
        (change(0, bbox=None), r"000000000001.jpg: field 'objects.0.bbox' is missing"),
        (change(0, area="much"), r"000000000001.jpg: field 'objects.0.area' "),
        (change(0, iscrowd=2), r"000000000001.jpg: field 'objects.0.iscrowd' "),
        (change(0, segmentation=[[1, 2, 3]]), r"000000000001.jpg: field 'objects.0.segmentation'"),
        (
            change(2, segmentation={"size": [2, 2], "counts": [4]}),
            r"000000000002.jpg: .*objects.1.segmentation",
        ),
        (change(0, keypoints=[1, 2]), r"000000000001.jpg: field 'objects.0.keypoints': "),
        (change(0, keypoints=[1, 2, 3]), r"000000000001.jpg: field 'objects.0.keypoints': .* visibility"),
        (change(0, keypoints=[900, 2, 2]), r"000000000001.jpg: field 'objects.0.keypoints': .* outside"),
        (change(0, image_id=77), r"instances.json: annotations.0 is of image 77, which is not in images"),
        (change(0, image_id=[1]), r"instances.json: annotations.0: .*image_id"),
        (lambda found: found["images"][1].update(height=50), r"000000000001.jpg.* 50 x 48 .* it is 64 x 48"),
        (lambda found: found["images"][1].update(file_name="no.jpg"), r"no.jpg: No such file"),
        (
            lambda found: found["images"][1].update(file_name="../x.jpg"),
            r"'\.\./x.jpg' is not the path of an im",
        ),
        (
            lambda found: found["images"][1].update(file_name="/x.jpg"),
            r"'/x.jpg' is not the path of an image",
        ),
        (lambda found: found["images"][1].update(file_name=""), r"'' is not the path of an image"),
        (lambda found: found["images"][1].update(file_name="a\0.jpg"), r"is not the path of an image"),
        (lambda found: found["images"][1].update(file_name="a.txt"), r"a.txt has the extension 'txt'"),
    ],
)
def test_what_is_broken_is_left_out_and_listed(tmp_path, caplog, apply, reason):
    document = coco(tmp_path, 3)
    apply(document)
    rewrite(tmp_path, document)
    report = pack(tmp_path)
    (line,) = report.left_out
    assert re.search(reason, line), line
    assert (tmp_path / "out" / "train-left-out.txt").read_text() == f"{line}\n"
    assert "broken and left out: 1, listed in" in caplog.text
    is_of_an_image = "annotations.0" not in line
    assert report.samples == 3 - is_of_an_image
    with pytest.raises(ShardError, match=r"\b1 .*instances\.json .*broken.*max_bad"):
        pack(tmp_path, max_bad=0.0)


@pytest.mark.parametrize("empty", [None, [], [[]]])
def test_empty_fields_of_boxes_alone_are_missing_ones(tmp_path, empty):
    document = coco(tmp_path, 3)
    for each in document["annotations"]:
        each |= dict.fromkeys(("segmentation", "keypoints", "area", "iscrowd"), empty)
    rewrite(tmp_path, document)
    report = pack(tmp_path, max_bad=0.0, keep_empty=False)
    first, _ = json.loads(together(report)["000000000002.json"])["objects"]
    assert first.keys() == {"id", "category_id", "bbox", "num_keypoints", "category"}
    read = targets_of(tmp_path / "out", tarpeg.Boxes("json:objects"), size=(40, 80))
    assert read["000000000002"]["area"][0] == np.prod(first["bbox"][2:])
    for target in (
        tarpeg.InstanceMasks("json:objects"),
        tarpeg.Keypoints("json:objects", flip_pairs=[], count=3),
    ):
        with pytest.raises(DecodeError, match=f"missing or empty: .*without {type(target).__name__}"):
            targets_of(tmp_path / "out", target)


def test_objects_without_a_size_are_left_out_alone(tmp_path, caplog):
    document = coco(tmp_path, 3)
    document["annotations"][1]["bbox"][3] = 0.0
    rewrite(tmp_path, document)
    report = pack(tmp_path, max_bad=0.0)
    (line,) = report.left_out
    assert "000000000002.jpg: an object without a size, 'car' with the box [2.0, 3, 20.5, 0.0]" in line
    assert "objects without a size: 1, listed in" in caplog.text
    assert [each["category"] for each in json.loads(together(report)["000000000002.json"])["objects"]] == [
        "cat"
    ]
    coco(tmp_path / "good")
    assert pack(tmp_path, out="out", samples=2).samples == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        (
            '{"images": [], "annotations": [{"bbox": [NaN]}], "categories": []}',
            r"is not JSON: .*byte 41.*NaN",
        ),
        ("[]", "is not a file of COCO's form"),
        ('{"images": [], "annotations": [' + "[" * 100_000, "nested too deeply|is not JSON"),
        ('{"images": [], "categories": []}', "is not a file of COCO's form.*annotations"),
        ('{"images": [], "annotations": [], "categories": []}', "no image .* is left"),
        (
            '{"images": [], "annotations": [{"image_id": 1, "segments_info": []}], "categories": []}',
            "is a panoptic file",
        ),
    ],
)
def test_files_that_are_not_of_coco(tmp_path, text, reason):
    (tmp_path / "images").mkdir()
    (tmp_path / "instances.json").write_text(text)
    with pytest.raises(ShardError, match=reason):
        pack(tmp_path)


def test_ids_and_names_are_unique(tmp_path):
    document = coco(tmp_path)
    for field, change, reason in (
        ("images", {"id": 101}, r"images .*\b101\b"),
        ("images", {"file_name": "000000000001.jpg"}, r"images .*'000000000001\.jpg'"),
        ("categories", {"id": 17}, r"categories .*\b17\b"),
        ("categories", {"name": "cat"}, "categories .*'cat'"),
    ):
        twice = {**document, field: [{**document[field][0], **change}, *document[field][1:]]}
        rewrite(tmp_path, twice)
        with pytest.raises(ShardError, match=reason):
            pack(tmp_path)
    with pytest.raises(ShardError, match=r"images='.*nowhere' is not a folder"):
        make_shards(tmp_path / "out", tarpeg.Coco(tmp_path / "nowhere", tmp_path / "instances.json"))
    with pytest.raises(ShardError, match=r"annotations='.*no\.json' cannot be read"):
        make_shards(tmp_path / "out", tarpeg.Coco(tmp_path / "images", tmp_path / "no.json"))


def test_sizes_are_those_of_upright_images(tmp_path):
    document = coco(tmp_path, 2)
    path = tmp_path / "images" / document["images"][1]["file_name"]
    path.write_bytes(saved(Image.open(path), "JPEG", orientation=6))
    assert "its EXIF orientation turns it" in pack(tmp_path).left_out[0]
    image = document["images"][1]
    image["height"], image["width"] = image["width"], image["height"]
    rewrite(tmp_path, document)
    assert pack(tmp_path).left_out == ()
    for orientation in (1, 3):  # the size in the file is wrong for another reason
        path.write_bytes(saved(Image.open(path), "JPEG", orientation=orientation))
        assert pack(tmp_path).left_out[0].endswith("but it is 64 x 48 (height x width)")


def test_train_and_val_have_one_table_and_workers_change_no_byte(tmp_path):
    document = coco(tmp_path)
    pack(tmp_path)
    pack(tmp_path, out="other", workers=2)
    assert tars(tmp_path / "out") == tars(tmp_path / "other")
    pack(tmp_path, prefix="val")
    document["categories"] = [*CATEGORIES[:2], {"id": 90, "name": "broom"}]
    rewrite(tmp_path, document)
    with pytest.raises(ShardError, match=r"label 3 is 'brush' in .* would be 'broom'"):
        pack(tmp_path, prefix="val")


def test_a_file_with_a_bom_and_masks_numbered_in_the_order_of_objects_with_crowds(tmp_path):
    document = coco(tmp_path)
    first, second = (each for each in document["annotations"] if each["image_id"] == 102)
    first["iscrowd"], second["iscrowd"] = 1, 0
    rewrite(tmp_path, document)
    path = tmp_path / "instances.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    masks(tmp_path, {each["file_name"][:-4]: (each["height"], each["width"]) for each in document["images"]})
    found = {}
    for name, given in (("alone", {}), ("with masks", {"masks": tmp_path / "masks"})):
        texts = [
            data
            for member, data in together(pack(tmp_path, crowds=False, out=name, **given)).items()
            if member.endswith("json")
        ]
        found[name] = {read["image_id"]: read["objects"] for read in map(json.loads, texts)}
    assert [each["mask_number"] for each in found["with masks"][102]] == [2]
    assert not any("mask_number" in each for objects in found["alone"].values() for each in objects)


def test_sizes_with_a_point(tmp_path):
    document = coco(tmp_path)
    images = [
        {**each, "height": float(each["height"]), "width": float(each["width"])}
        for each in document["images"]
    ]
    rewrite(tmp_path, {**document, "images": images})
    assert pack(tmp_path).left_out == ()


@pytest.mark.parametrize("form", ["group", "has objects", "of one class", "no supercategory"])
def test_the_group_of_all_categories_is_none_of_them(tmp_path, form, caplog):
    """Roboflow's exports begin with a category 0, the supercategory of all others."""
    document = coco(tmp_path)
    table = {each["id"]: number for number, each in enumerate(CATEGORIES, start=1)}
    for each in document["annotations"]:
        each["category_id"] = table[each["category_id"]]
    group = {} if form == "no supercategory" else {"supercategory": "things"}
    others = [{"id": table[each["id"]], "name": each["name"], **group} for each in CATEGORIES]
    if form == "of one class":
        others[-1]["supercategory"] = "tools"
    document["categories"] = [{"id": 0, "name": "things", "supercategory": "none"}, *others]
    if form == "has objects":
        document["annotations"].append({**document["annotations"][-1], "id": 99, "category_id": 0})
    last = document["annotations"][-1]
    document["annotations"] += [{**last, "id": 90 + each, "category_id": each} for each in (1, 2, 3)]
    rewrite(tmp_path, document)
    report = pack(tmp_path)
    split = tarpeg.Split(report.shards, tarpeg.Whole(32), targets=tarpeg.Boxes("json:objects"))
    assert split.classes() == (list(TABLE) if form == "group" else None)
    stored = json.loads((tmp_path / "out" / "classes.json").read_text())
    names = [name for name in ("__background__", "things", *TABLE) if form != "group" or name != "things"]
    assert [*stored] == [*dict.fromkeys(names)]
    assert ("category_id 0 is" in caplog.text) == (form != "group")


def test_the_group_may_have_the_name_of_a_class(tmp_path):
    document = coco(tmp_path)
    document["annotations"] = [{**each, "category_id": 1} for each in document["annotations"]]
    document["categories"] = [
        {"id": 0, "name": "car", "supercategory": "none"},
        {"id": 1, "name": "car", "supercategory": "car"},
    ]
    rewrite(tmp_path, document)
    report = pack(tmp_path)
    split = tarpeg.Split(report.shards, tarpeg.Whole(32), targets=tarpeg.Boxes("json:objects"))
    assert split.classes() == ["__background__", "car"]
    document["categories"][1]["supercategory"] = "none"
    rewrite(tmp_path, document)
    with pytest.raises(ShardError, match="two of categories have the name 'car'"):
        pack(tmp_path, out="other")


def test_names_that_begin_with_the_background_are_not_those_of_labels_from_0(tmp_path):
    one = numbered(tmp_path / "one", (0, 1, 2))
    document = coco(tmp_path / "two")
    document["annotations"] = [each for each in document["annotations"] if each["category_id"] != 3]
    for each in document["annotations"]:
        each["category_id"] = {17: 1, 90: 2}[each["category_id"]]
    document["categories"] = [{"id": 1, "name": "cat"}, {"id": 2, "name": "brush"}]
    last = document["annotations"][-1]
    document["annotations"] += [{**last, "id": 90 + each, "category_id": each} for each in (1, 2)]
    rewrite(tmp_path / "two", document)
    two = pack(tmp_path / "two").shards
    splits = [
        tarpeg.Split(each, tarpeg.Whole(32), target=None, targets=tarpeg.Boxes("json:objects"))
        for each in (one, two)
    ]
    assert splits[1].classes() == ["__background__", "cat", "brush"]
    try:
        data = tarpeg.ShardDataModule(*splits, workers=0)
        data.setup()
    except ShardError as error:
        assert "label 0 is '__background__'" in str(error) or "label 0 is 'car'" in str(error)
    else:
        assert data.classes is None
