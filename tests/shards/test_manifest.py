"""manifest.json: a manifest survives writing and reading, and everything else is refused."""

from __future__ import annotations

import json
import re

import pytest
import tarpeg
from helpers.small_caches import manifest_of
from tarpeg.shards.manifest import Quarantined, ShardEntry, read_manifest

SHA = "0123456789abcdef" * 4


def an_entry(name="000000.tar", **changed):
    counts = {"tiles": {"32": 1, "80": 1}, "untiled": {"progressive": 1}}
    values = {"samples": 3, "bytes": 10240, "source_bytes": 9000, "sha256": SHA, "idx_sha256": SHA}
    return ShardEntry(**{"name": name, "fingerprint": "f", **values, **counts, **changed})


def a_manifest(shards=None):
    shards = shards or [an_entry(), an_entry("000001.tar", tiles={"32": 3}, untiled={})]
    left_out = Quarantined("/data/train-0.tar", "a\udcff/b", "TRUNCATED (3)", "000000.tar")
    return manifest_of(shards, (left_out,))


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    manifest = a_manifest()
    manifest.write(tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.json"]
    text = (tmp_path / "manifest.json").read_bytes()
    content = json.loads(text)
    assert (content["format"], content["version"]) == ("tarpeg-cache", 1)
    assert content["tiles"] == {"32": 4, "80": 1} and content["untiled"] == {"progressive": 1}
    assert (content["samples"], content["bytes"]) == (6, 20480)
    manifest.write(tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == text


def test_a_manifest_that_could_not_be_read_is_not_written(tmp_path):
    with pytest.raises(tarpeg.CacheError, match=r"samples: 3.* 2"):
        a_manifest([an_entry(untiled={})]).write(tmp_path)
    assert not list(tmp_path.iterdir()) and read_manifest(tmp_path) is None


POSITIVE = "expected an integer of at least 1, found"
NOT_NAMES = ["../etc.tar", "/etc.tar", ".hidden.tar", "000000.tar\n", "000000", "", "a\0b.tar"]
BAD_NAME = r"shards\[0\]\.name: Expected `str` matching regex .*, found "


def change(content, place, value):
    """Set the field at a place such as "shards.0.name"; ... deletes it."""
    *outer, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    for part in outer:
        content = content[part]
    content[last] = value
    if value is ...:
        del content[last]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("format", "other", "format.*'other'"),
        ("format", ..., "format is None"),
        ("version", 4, "version 4.* Tiled.* 3"),
        *(("version", value, f"version: {POSITIVE} {value}") for value in (0, True, 1.0)),
        ("version", ..., f"version: {POSITIVE} None"),
        ("tarpeg", 1, "tarpeg: Expected `str`, got `int`, found 1"),
        ("fingerprint", ..., "missing required field `fingerprint`"),
        ("source", "text", "source: Expected `array`, got `str`, found 'text'"),
        ("codec", [], "codec: Expected `object`, got `array`"),
        ("codec.name", ..., "codec: Object missing required field `name`"),
        ("codec.parameters", None, "codec.parameters: Expected `object`, got `null`"),
        ("layout", ..., "missing required field `layout`"),
        ("shards", {}, "shards: Expected `array`, got `object`"),
        ("shards.0", None, r"shards\[0\]: Expected `object`, got `null`"),
        *(("shards.0.name", name, BAD_NAME + re.escape(f"{name!r}")) for name in NOT_NAMES),
        ("shards.0.samples", 0, r"shards\[0\]\.samples: Expected `int` >= 1, found 0"),
        ("shards.0.name", "000001.tar", "'000001.tar'.* twice"),
        ("shards.0.samples", "3", r"shards\[0\]\.samples: Expected `int`, got `str`, found '3'"),
        ("shards.0.samples", True, r"shards\[0\]\.samples: Expected `int`, got `bool`, found True"),
        ("shards.0.tiles", {"32": 1.0}, r"tiles.*: Expected `int`, got `float`"),
        ("shards.0.samples", 4, "samples: 4.* 3"),
        ("shards.0.bytes", -1, r"shards\[0\]\.bytes: Expected `int` >= 1, found -1"),
        ("shards.0.bytes", 1 << 63, r"shards\[0\]\.bytes: Expected `int` <= .*, found 9223372036854775808"),
        ("shards.0.sha256", "abc", r"shards\[0\]\.sha256: Expected `str` matching .*0-9a-f.*, found 'abc'"),
        ("shards.0.idx_sha256", ..., r"shards\[0\]: Object missing required field `idx_sha256`"),
        ("shards.0.tiles", {"x": 2}, r"tiles.*Expected `str` matching .*, found {'x': 2}"),
        ("shards.0.tiles", {"32": 0}, r"shards\[0\]\.tiles.*: Expected `int` >= 1, found {'32': 0}"),
        *((field, 7, f"{field}: 7 is not the sum") for field in ("samples", "bytes")),
        *((field, {"32": 1}, f"{field}: .* is not the sum") for field in ("tiles", "untiled")),
        ("\udc80", 1, "key"),
        ("quarantine", ..., "missing required field `quarantine`"),
        ("quarantine.0.key", 5, r"quarantine\[0\]\.key: Expected `str`, got `int`, found 5"),
    ],
)
def test_damaged_manifests_are_refused(tmp_path, place, value, message):
    a_manifest().write(tmp_path)
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_bytes())
    change(content, place, value)
    path.write_text(json.dumps(content))
    with pytest.raises(tarpeg.CacheError, match=message) as caught:
        read_manifest(tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": NaN}', b"1" * 5000]
)
def test_files_that_are_not_json_objects_are_refused(tmp_path, text):
    path = tmp_path / "manifest.json"
    path.write_bytes(text)
    with pytest.raises(tarpeg.CacheError, match=r"manifest\.json"):
        read_manifest(tmp_path)
