"""scan_objects: what Python's parser reads from JSON, or nothing; never a value that it does not read."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from helpers.scenes import Scenes
from tarpeg import Boxes, InstanceMasks, Keypoints, ShardError
from tarpeg.ops.annotations import scan_objects
from tarpeg.ops.scanned import Kind
from tarpeg.targets import annotations

TARGETS = {
    "boxes": Boxes("json:objects"),
    "nested, with the image's number": Boxes("json:a.objects", "XYXY", image_id="id"),
    "table": Boxes("json:objects", "CXCYWH", label="name", labels=["cat", "straße", 7], image_id="id"),
    "without labels": Boxes("json", label=None),
    "masks": InstanceMasks("json:objects"),
    "keypoints": Keypoints("json:objects", [], count=2),
}
ODD = (
    *(
        0,
        1,
        -1,
        -0.0,
        1.5,
        1e-7,
        1e300,
        2**53 + 1,
        2**63,
        10**25,
        0.1 + 0.2,
        118.80999755859375,
        12345678.9012,
    ),
    *(True, False, None, "1", "cat", "straße", "\U0001f600", 'a"\\\n', [], {}, [1], [[1]], {"a": [{}]}),
)
INSERTED = (
    *(b"NaN", b"Infinity", b"-", b"01", b"1.", b".5", b"1e", b"1e999", b"1E+2", b"-0", b"\x00", b"\xff"),
    *(
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\\u00e9",
        b"\\ud800",
        b"\\x",
        b",",
        b"]",
        b"}",
        b'"',
        b" \t\r\n",
        b"\x0b",
    ),
    *(b"null", b"true", b'"bbox":[1,2,3,4],', b'"id":1,', b"[" * 70, b"//", b"\xef\xbb\xbf"),
)


def drawn(rng):
    """The fields of an object, each as it must be or, now and then, something else."""
    x, y, width, height = (round(rng.uniform(0.5, 40), rng.choice([0, 1, 2, 6, 17])) for _ in range(4))
    corners = [round(rng.uniform(0, 40), 2) for _ in range(2 * rng.randint(3, 6))]
    runs = {"size": [6, 5], "counts": rng.choice([[3, 10, 17], "382:6", [30], [0, 30]])}
    found = {
        "bbox": [x, y, width, height],
        "category_id": rng.randint(0, 90),
        "name": rng.choice(["cat", "straße", 7]),
        "area": rng.choice([width * height, rng.randint(0, 900)]),
        "iscrowd": rng.choice([0, 0, 1, True, 0.0]),
        "segmentation": runs if rng.random() < 0.2 else [corners] * rng.randint(1, 2),
        "keypoints": [x, y, rng.choice([0, 1, 2])] * 2,
        "more": {"a": [{"b": None}, 'x"y', -1.5e-3], "bbox": [1]},
    }
    if rng.random() < 0.1:
        found[rng.choice([*found])] = rng.choice(ODD)
    for name in ("area", "iscrowd"):
        if rng.random() < 0.3:
            del found[name]
    return found


def document(rng):
    objects = [drawn(rng) for _ in range(rng.randint(0, 3))]
    whole = {"id": rng.choice([1, 2, 2**62]), "objects": objects, "a": {"objects": objects, "id": 9}}
    given = objects if rng.random() < 0.2 else whole
    text = json.dumps(given, ensure_ascii=rng.random() < 0.3, indent=rng.choice([None, 1])).encode()
    if rng.random() < 0.3:
        at, until = rng.randrange(len(text) + 1), rng.choice([0, 1, 5])
        text = text[:at] + rng.choice(INSERTED) + text[at + until :]
    return text


def same(one, other):
    if isinstance(one, ShardError) or isinstance(other, ShardError):
        return str(one) == str(other)
    if len(one) != len(other):
        return False
    return all(
        np.array_equal(np.signbit(a), np.signbit(b))
        and np.array_equal(a, b)
        and np.asarray(a).dtype == b.dtype
        for a, b in zip(map(np.asarray, one), map(np.asarray, other), strict=True)
    )


@pytest.mark.parametrize("rounds", [300, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TARGETS)
def test_the_operator_and_python_read_the_same_from_any_document(name, rounds, monkeypatch):
    rng, target, quick = random.Random(name), TARGETS[name], 0
    both, scan = annotations._scanned, scan_of(target)
    source, ids = Scenes(count=2), np.arange(2)
    for _ in range(rounds):
        texts = [document(rng) for _ in ids]
        for sample, text in zip(source.samples, texts, strict=True):
            sample["json"] = text
        monkeypatch.setattr(annotations, "_scanned", lambda *given: None)
        wanted = target.read(source, ids)
        annotations._last.texts = None
        found = both(texts, [0, 1], target._place, target.image_id, scan)
        if found is not None:
            quick += 1
            assert all(map(same, found, wanted)), texts
    assert quick > rounds // 150


def scan_of(target):
    """The ``Scan`` of a target, which it passes on when it reads."""
    given = []
    with pytest.MonkeyPatch.context() as patch:
        module = __import__(type(target).__module__, fromlist=["read_objects"])
        patch.setattr(module, "read_objects", lambda *arguments: given.append(arguments[-1]))
        target.read(None, np.arange(2))
    return given[0]


def test_plain_documents_are_read_by_the_operator(monkeypatch):
    objects = [drawn(random.Random(0)) | {"segmentation": [[1, 1, 9, 1, 9, 9]]} for _ in range(3)]
    text = json.dumps({"objects": objects, "caption": 'straße \\ "'}, ensure_ascii=False).encode()
    source = Scenes({number: {"json": text} for number in range(4)}, count=4)
    monkeypatch.setattr(annotations, "document_of", None)
    for name in ("boxes", "masks", "keypoints"):
        assert len(TARGETS[name].read(source, np.arange(4))) == 4


@pytest.mark.parametrize("number", ["0", "-0", "7", "-12", "999999999999999999", "123456789012345678"])
def test_integers_are_exact(number):
    text = b'[{"a": %s}]' % number.encode()
    scanned = scan_objects([text], [], ["a"])
    assert scanned.cells[0, 0, :2].tolist() == [Kind.INTEGER, int(number)]


def test_numbers_are_those_of_python():
    rng = random.Random(1)
    numbers = [rng.uniform(-1, 1) * 10 ** rng.randint(-30, 30) for _ in range(3000)]
    numbers += [round(number, rng.randint(0, 6)) for number in numbers] + [5e-324, 1.7976931348623157e308]
    scanned = scan_objects([json.dumps([{"a": numbers}]).encode()], [], ["a"])
    assert scanned.numbers.tolist() == numbers
    texts = ["1e22", "1e23", "123456789012345e22", "9007199254740993", "1E-5", "-0", "-0.0", "0.1e+3"]
    scanned = scan_objects([f'[{{"a": [{",".join(texts)}]}}]'.encode()], [], ["a"])
    assert list(map(str, scanned.numbers.tolist())) == [str(float(json.loads(text))) for text in texts]


def test_other_documents_are_left_to_python():
    assert scan_objects([b"[]", b'{"a": 1}'], [], ["a"]) is None
    for path, fields, image_id in ((["a\nb"], ["c"], None), (["ä"], ["c"], None), ([], ["c", "c"], None)):
        assert scan_objects([b"[]"], path, fields, image_id) is None
    assert scan_objects([b"[]"], [], ["a"], "id") is None
    assert scan_objects([b'{"a": [{"b": 1}]}'], ["a"], ["b"]).counts.tolist() == [1]


def test_registration():
    files = torch.frombuffer(bytearray(b'[{"a": [1, 2]}]'), dtype=torch.uint8)
    torch.library.opcheck(
        torch.ops.tarpeg.scan_objects.default,
        (files, torch.tensor([len(files)]), "", "a", ""),
        test_utils=("test_schema", "test_faketensor"),
    )
    with pytest.raises(RuntimeError, match="ends"):
        torch.ops.tarpeg.scan_objects(files, torch.tensor([99]), "", "a", "")


def test_lists_of_numbers_that_are_not_needed_are_checked_as_python_does():
    rng, accepted = random.Random(2), 0
    for round_ in range(6000):
        count = rng.choice([1, 3, 9, 10, 11, 12, 40])
        numbers = [rng.choice(["0", "-0.5", "12", "301.75", "-7", "0.0", "9" * 30]) for _ in range(count)]
        characters = [*rng.choice([",", ", "]).join(numbers)]
        for _ in range(round_ % 3):
            at = rng.randrange(len(characters) + 1)
            characters[at : at + rng.randrange(2)] = rng.choice([*"0123.,- ]e", "", "00", "1.2", "\n"])
        text = f'[{{"b": [{"".join(characters)}], "a": 1}}]'.encode()
        try:
            json.loads(text)
            is_json = True
        except ValueError:
            is_json = False
        accepted += is_json
        assert (scan_objects([text], [], ["a"]) is not None) == is_json, text
    assert 2000 < accepted < 5000
    for digits in (63, 64, 65, 5000):
        text = b'[{"b": [1, ' + b"1" * digits + b'], "a": 1}]'
        assert digits < 5000 or scan_objects([text], [], ["a"]) is None  # which Python refuses
