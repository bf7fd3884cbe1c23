"""Labels that are no plain integers: numbers, vectors, classes by name, several classes, missing ones."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch
from helpers.pictures import jpeg
from helpers.small_tars import write_tar
from tarpeg import Augment, Label, Loader, Mix, ShardError, Split, Whole
from tarpeg.errors import ResumeError

nan = math.nan


def shard(tmp_path, *documents, name="x.tar"):
    """A shard of one sample per document: a text is the member KEY.txt, anything else KEY.json."""
    members = []
    for number, document in enumerate(documents):
        members.append((f"k{number}.jpg", jpeg("420", 16, 16)))
        if isinstance(document, bytes):
            members.append((f"k{number}.txt", document))
        elif document is not None:
            members.append((f"k{number}.json", json.dumps(document).encode()))
    return write_tar(tmp_path / name, members)


def labels(path, target, **options):
    split = Split(path, Whole(16), target=target, **options)
    with_labels = Loader(split, batch_size=64, training=False, workers=0)
    try:
        return next(iter(with_labels)).label
    finally:
        with_labels.close()


def same(found, dtype, expected):
    assert found.dtype == dtype
    assert torch.equal(found.isnan(), torch.tensor(expected, dtype=dtype).isnan())
    assert torch.equal(found.nan_to_num(), torch.tensor(expected, dtype=dtype).nan_to_num())


TAGS = Label("json:tags", classes=["cat", "dog", "indoors"])


@pytest.mark.parametrize(
    ("documents", "target", "dtype", "expected"),
    [
        ([{"a": 3}, {"a": 4}], "json:a", torch.int64, [3, 4]),
        ([{"a": 1.5}, {"a": 4}], "json:a", torch.float32, [1.5, 4]),
        ([{"a": [1, 2.5]}, {"a": [3, 4]}], "json:a", torch.float32, [[1, 2.5], [3, 4]]),
        ([{"a": 1.5, "b": 2}] * 2, ["json:a", "json:b"], torch.float32, [[1.5, 2]] * 2),
        ([{"a": 3}, {"a": 4.5}], Label("json:a", kind="number"), torch.float32, [3, 4.5]),
        ([b"1.5\n", b"-2"], Label("txt"), torch.float32, [1.5, -2]),
        ([b"1.5 2", b" 3 4"], Label("txt", separator=" "), torch.float32, [[1.5, 2], [3, 4]]),
        ([{"a": "dog"}, {"a": "cat"}], Label("json:a", classes=["cat", "dog"]), torch.int64, [1, 0]),
        ([{"a": True}, {"a": False}], "json:a", torch.int64, [1, 0]),
        ([{"a": True}, {"a": False}], Label("json:a"), torch.int64, [1, 0]),
        ([{"a": True}, {"a": 0.5}], Label("json:a", kind="number"), torch.float32, [1, 0.5]),
        ([{"a": True}, {"a": False}], Label("json:a", classes=["True", "False"]), torch.int64, [0, 1]),
        ([{"a": [True, False]}] * 2, Label("json:a", kind="classes"), torch.float32, [[1, 0]] * 2),
        ([{"a": 18}, {"a": 1}], Label("json:a", classes=[1, 18]), torch.int64, [1, 0]),
        ([{"a": "x"}, {"a": "y"}], Label("json:a", classes={"x": 0, "y": 0}), torch.int64, [0, 0]),
        ([b"dog", b"cat"], Label("txt", classes=["cat", "dog"]), torch.int64, [1, 0]),
        ([{"tags": ["dog", "cat"]}, {"tags": []}], TAGS, torch.float32, [[1, 1, 0], [0, 0, 0]]),
        (
            [b"cat|dog", b""],
            Label("txt", classes=["cat", "dog"], separator="|"),
            torch.float32,
            [[1, 1], [0, 0]],
        ),
        (
            [{"a": [0, 1]}, {"a": [0.5, 0]}],
            Label("json:a", kind="classes"),
            torch.float32,
            [[0, 1], [0.5, 0]],
        ),
        ([{"a": 1, "b": 0}] * 2, Label(["json:a", "json:b"], kind="classes"), torch.float32, [[1, 0]] * 2),
        (
            [{"a": 1.5}, {"a": None}, {}, None],
            Label("json:a", optional=True),
            torch.float32,
            [1.5, nan, nan, nan],
        ),
        ([{"a": 1}, {}], Label("json:a", optional=True), torch.int64, [1, -1]),
        ([{"a": [1, 2]}, {}], Label("json:a", "number", optional=True), torch.float32, [[1, 2], [nan, nan]]),
        (
            [{"tags": ["dog"]}, {}],
            Label("json:tags", classes=["cat", "dog"], optional=True),
            torch.float32,
            [[0, 1], [nan, nan]],
        ),
    ],
)
def test_kinds_of_labels(tmp_path, documents, target, dtype, expected):
    same(labels(shard(tmp_path, *documents), target), dtype, expected)


CLASSES = Label("json:a", classes=["cat", "dog"])


@pytest.mark.parametrize(
    ("documents", "target", "key", "text"),
    [
        ([{"a": 1.5}, {"a": "x"}], "json:a", "k1", "'a' of member 'json' is \"x\""),
        ([{"a": 1.5}, {"a": math.inf}], "json:a", "k1", "is Infinity"),
        ([{"a": 1.5}, {"a": 1e39}], "json:a", "k1", "32 bits"),
        ([{"a": 1.5}, {"a": None}], "json:a", "k1", "missing.*optional=True"),
        ([{"a": 1.5}, {"b": 1}], "json:a", "k1", "no field 'a'"),
        ([{"a": 1.5}, None], "json:a", "k1", "no member 'json'"),
        ([{"a": [1, 2]}, {"a": [1]}], "json:a", "k1", "list of 2 numbers"),
        ([{"a": 3}, {"a": 1.5}], "json:a", "k1", "not a 64-bit integer.*kind='number'"),
        ([{"a": {}}], "json:a", "k0", "is {}"),
        ([{"a": "cat"}], "json:a", "k0", r'"cat".*classes=\[\.\.\.\]'),
        ([{"a": ["cat"]}], "json:a", "k0", r"classes=\[\.\.\.\]"),
        ([{"a": "cat"}, {"a": "cow"}], CLASSES, "k1", "\"cow\", not one of the 2 classes= 'cat'"),
        ([{"a": ["cat"]}, {"a": ["cow"]}], CLASSES, "k1", "not one of the 2"),
        ([{"a": ["cat"]}, {"a": 7}], CLASSES, "k1", "not a list of names"),
        ([{"a": [0, 2]}], Label("json:a", kind="classes"), "k0", "0 and 1"),
        ([{"a": ["cat"]}, {"a": [None]}], Label("json:a", kind="classes"), "k0", r"classes=\["),
        ([{"a": 1, "b": -1}], Label(["json:a", "json:b"], kind="classes"), "k0", "empty, with optional=True"),
        ([{"a": -1}], Label("json:a", optional=True), "k0", "below 0"),
        ([{}], Label("json:a", optional=True), "k0", "kind="),
        ([b"\xff"], Label("txt"), "k0", "UTF-8"),
    ],
)
def test_wrong_labels_have_shard_key_and_place(tmp_path, documents, target, key, text):
    path = shard(tmp_path, *documents)
    with pytest.raises(ShardError, match=f"^{re.escape(f'shard {path}, key {key!r}')}:? .*{text}"):
        labels(path, target)


def test_the_first_sample_is_checked_when_a_loader_is_made(tmp_path):
    path = shard(tmp_path, {"a": "cow"}, {"a": "cat"})
    with pytest.raises(ShardError, match=r"'k0'.*cow"):
        Loader(Split(path, Whole(16), target=CLASSES))
    with pytest.raises(ShardError, match=r"'k0'.*cow"):
        Split(path, Whole(16), target=CLASSES).check_labels(Split(path, Whole(16)).open())
    Loader(Split(path, Whole(16), target=CLASSES, subset=[1])).close()  # the first of the subset


def test_all_workers_and_a_stream_give_the_same_labels(tmp_path):
    path = shard(tmp_path, *({"a": [number, number / 2]} for number in range(6)))
    expected = [[number, number / 2] for number in range(6)]
    for workers in (0, 2):
        loader = Loader(Split(path, Whole(16), target="json:a"), 3, training=False, workers=workers)
        found = [batch.label for batch in loader]
        loader.close()
        assert all(each.dtype == torch.float32 for each in found)
        assert torch.cat(found).tolist() == expected, workers
    streamed = labels(path, Label(["json:a.0", "json:a.1"], kind="number"), streaming=True)
    assert streamed.tolist() == expected
    with pytest.raises(ValueError, match="kind="):
        Split(path, Whole(16), target=Label("json:a"), streaming=True)


def test_a_broken_image_has_the_label_of_its_substitute(tmp_path):
    members = [("a.jpg", b"no image"), ("a.json", b'{"x": 1.5}')]
    members += [("b.jpg", jpeg("420", 16, 16)), ("b.json", b'{"x": 2.5}')]
    path = write_tar(tmp_path / "y.tar", members)
    with pytest.warns(UserWarning, match="takes its place"):
        assert labels(path, "json:x").tolist() == [2.5, 2.5]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"place": ""}, "place="),
        ({"place": []}, "place="),
        ({"place": "json:a", "kind": "numbers"}, "did you mean 'number'"),
        ({"place": "json:a", "classes": []}, "classes="),
        ({"place": "json:a", "classes": ["a", "a"]}, "classes="),
        ({"place": "json:a", "classes": "ab"}, "classes="),
        ({"place": "json:a", "classes": [1, "1"]}, "classes="),
        ({"place": "json:a", "classes": {"a": -1}}, "classes="),
        ({"place": "json:a", "classes": ["a"], "kind": "number"}, "classes="),
        ({"place": ["json:a", "json:b"], "classes": ["a"], "kind": "classes"}, "places="),
        ({"place": "json:a", "separator": ""}, "separator="),
        ({"place": "json:a", "optional": "yes"}, "optional="),
        ({"place": "json:a", "classes": [True, False]}, "classes=.*the texts 'False' and 'True'"),
    ],
)
def test_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        Label(**arguments)


def test_names_of_classes():
    assert Split("x", Whole(8), target=CLASSES).classes() == ["cat", "dog"]
    gaps = Split("x", Whole(8), target=Label("json:a", classes={"a": 0, "b": 2}))
    assert gaps.classes() is None
    with pytest.raises(ValueError, match="target="):
        Split("x", Whole(8), target=Label("json:"))


def test_plain_integers_are_read_as_ever(tmp_path):
    path = shard(tmp_path, {"a": 3}, {"a": 4})
    loader = Loader(Split(path, Whole(16), target="json:a"), training=False)
    assert loader.fetcher.labels is None
    loader.close()
    assert np.array_equal(labels(path, "json:a"), [3, 4])


def test_mixing(tmp_path):
    path = shard(tmp_path, {"tags": ["dog"]}, {"tags": ["cat", "indoors"]}, {"tags": []}, {"tags": ["cat"]})
    augment = Augment(mix=Mix(classes=3, cutmix=0.0, mixup=1.0))
    loader = Loader(Split(path, Whole(16), target=TAGS, shuffle=False), 4, augment=augment, workers=0)
    found = next(iter(loader)).label
    one_hot = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 0, 0], [1, 0, 0]])
    share = float(
        found[0, 1]
    )  # of the first image; it is mixed with the one before it, the last of the batch
    assert 0 < share < 1
    torch.testing.assert_close(found, share * one_hot + (1 - share) * one_hot.roll(1, 0))
    loader.close()
    with pytest.raises(ValueError, match="classes=3"):
        Loader(Split(path, Whole(16), target=TAGS), augment=Augment(mix=Mix(classes=4)))
    numbers = Split(shard(tmp_path, {"a": 1.5}, name="n.tar"), Whole(16), target="json:a")
    with pytest.raises(ValueError, match="numbers"):
        Loader(numbers, augment=augment)
    Loader(numbers, augment=augment, training=False).close()
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        Mix(classes=4)(torch.zeros(2, 3, 8, 8), torch.zeros(2, 3), [0.5] * 3)
    images = torch.zeros(2, 3, 8, 8)
    assert torch.equal(
        Mix(classes=2, probability=0)(images, torch.ones(2, 2), [0.5] * 3)[1], torch.ones(2, 2)
    )


def test_other_names_of_classes_are_other_data_for_a_state(tmp_path):
    path = shard(tmp_path, *[{"breed": "ab"[number % 2]} for number in range(8)])

    def loader(*classes):
        split = Split(path, Whole(16), target=Label("json:breed", classes=list(classes)))
        return Loader(split, 2, workers=0)

    state = loader("a", "b").state_dict()
    loader("a", "b").load_state_dict(state)
    for other in (("b", "a"), ("a", "b", "c")):
        with pytest.raises(
            ResumeError,
            match=r"data: labels \(2 names of classes, .* then, labels \(.* Restore the labels; or",
        ):
            loader(*other).load_state_dict(state)
