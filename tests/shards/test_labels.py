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
    read, members = [], Shards.members
    monkeypatch.setattr(Shards, "members", lambda self, *where: read.append(where) or members(self, *where))
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
        *((text, "json:a", "'json' .*JSON") for text in (b"{", b"\xff\xfe{}", b"1" * 5000)),
        (b"[" * 200_000, "json:a", "nested"),
        (b" " * 2**20 + b"1", "json:a", TOO_LONG),
        ({"b": 1}, "json:a", r"'a'.*\['b'\]"),
        ({"a": 1}, "json:a.b", "'a.b'.* 'b' .*int"),
        ({"a": [1]}, "json:a.1", "'a.1'.* '1' .*list"),
        ({"a": [1]}, "json:a.-1", "'a.-1'"),
        ({"a": 1.0}, "json:a", r"'a' .*'json' is 1\.0"),
        ({"a": 2**63}, "json:a", "is 9223372036854775808"),
        ({"a": "7" * 99}, "json:a", r'is "7+\.\.\.'),
        ({"a": None}, "json:a", "is null"),
        ({"a": "猫"}, "json:a", 'is "猫"'),
        ({"a": 1}, "xml:a", r"'xml'.*\['jpg', 'json', 'cls'\]"),
        ({"a": 1}, ["cls", "json:b"], "'b'"),
        *((text, "json", "'json' is '.*'") for text in NOT_INTEGERS),
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
