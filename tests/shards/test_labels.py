"""Labels: integers, fields of JSON members, several together; all else is an error with shard and key."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from helpers.pictures import jpeg
from helpers.small_tars import write_tar
from tarpeg import CenterCrop, ShardError, Split
from tarpeg.shards.labels import read_labels
from tarpeg.shards.mapped import Shards


def shards(tmp_path, *documents, extension="json"):
    members = []
    for number, document in enumerate(documents):
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        members += [(f"k{number}.jpg", jpeg("420", 16, 16)), (f"k{number}.{extension}", content)]
        members += [(f"k{number}.cls", b"%d" % (number + 40))]
    return Shards([write_tar(tmp_path / "x.tar", members)])


def labels(source, target):
    return read_labels(source, np.arange(len(source)), target)


def test_fields_of_json(tmp_path):
    document = {"label": -7, "object": {"id": 2**40, "boxes": [[1, 2], [3, 4]]}, "0": 5}
    source = shards(tmp_path, document, {**document, "label": 8})
    assert labels(source, "json:label").tolist() == [-7, 8]
    assert labels(source, "json:object.id").tolist() == [2**40] * 2
    assert labels(source, "json:object.boxes.1.0").tolist() == [3, 3]
    assert labels(source, "json:0").tolist() == [5, 5]
    several = labels(source, ["cls", "json:label", "json:0"])
    assert several.dtype == torch.int64 and several.tolist() == [[40, -7, 5], [41, 8, 5]]
    assert labels(source, ["cls"]).tolist() == [[40], [41]]
    assert labels(source, None).tolist() == [-1, -1]
    assert labels(shards(tmp_path, [4, 5], extension="meta"), "meta:1").tolist() == [5]


def test_a_member_is_parsed_once_for_all_its_fields(tmp_path, monkeypatch):
    source = shards(tmp_path, {"a": 1, "b": 2})
    read, member = [], Shards.member
    monkeypatch.setattr(Shards, "member", lambda self, *where: read.append(where) or member(self, *where))
    assert labels(source, ["json:a", "json:b"]).tolist() == [[1, 2]]
    assert len(read) == 1


NOT_INTEGERS = [
    *(b"cat", b"", b"1.0", b"1_0", b"1 2", b"9223372036854775808", b"\xff\xfe", b"\x00", b'{"a": 1}'),
    *(b"x" * 5000, b"7" * 100),
]
TOO_LONG = "1048577 bytes, and labels are read from members of up to 1048576"


@pytest.mark.parametrize(
    ("document", "target", "text"),
    [
        *((text, "json:a", "member 'json' is not JSON") for text in (b"{", b"\xff\xfe{}", b"1" * 5000)),
        (b"[" * 200_000, "json:a", "nested too deeply"),
        (b" " * 2**20 + b"1", "json:a", TOO_LONG),
        ({"b": 1}, "json:a", r"no field 'a': at 'a' it has fields \['b'\]"),
        ({"a": 1}, "json:a.b", r"no field 'a.b': at 'b' it has a int"),
        ({"a": [1]}, "json:a.1", r"no field 'a.1': at '1' it has a list"),
        ({"a": [1]}, "json:a.-1", "no field 'a.-1'"),
        ({"a": 1.0}, "json:a", r"field 'a' of member 'json' is 1\.0, not a 64-bit integer"),
        ({"a": True}, "json:a", "is true, not a 64-bit"),
        ({"a": 2**63}, "json:a", "is 9223372036854775808, not"),
        ({"a": "7" * 99}, "json:a", r'is "7+\.\.\., not'),
        ({"a": None}, "json:a", "is null, not"),
        ({"a": "猫"}, "json:a", 'is "猫", not'),
        ({"a": 1}, "xml:a", r"has no member 'xml', only \['jpg', 'json', 'cls'\]"),
        ({"a": 1}, ["cls", "json:b"], "no field 'b'"),
        *((text, "json", "member 'json' is '.*', not a 64-bit integer") for text in NOT_INTEGERS),
    ],
)
def test_errors_of_labels_have_shard_and_key(tmp_path, document, target, text):
    source = shards(tmp_path, document)
    where = re.escape(f"shard {tmp_path / 'x.tar'}, key 'k0'")
    with pytest.raises(ShardError, match=f"^{where}:? .*{text}") as error:
        labels(source, target)
    assert len(str(error.value)) < 300 + len(str(tmp_path))


@pytest.mark.parametrize("target", ["", "json:", "json:a..b", ":a", "a/b", [], [""], ["cls", 3], 7])
def test_targets_that_are_not_labels(target):
    with pytest.raises(ValueError, match="target="):
        Split("x", CenterCrop(8), target=target)
