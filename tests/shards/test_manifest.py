"""manifest.json: what is written is read back, and whatever is not exactly a manifest is refused."""

from __future__ import annotations

import json

import pytest
import tarpeg
from tarpeg.shards.manifest import Manifest, Quarantined, ShardEntry, read_manifest, summed

SHA = "0123456789abcdef" * 4


def an_entry(name="000000.tar", **changed):
    counts = {"tiles": {"32": 1, "80": 1}, "untiled": {"progressive": 1}}
    sums = {"sha256": SHA, "idx_sha256": SHA, "fingerprint": "f"}
    sizes = {"samples": 3, "bytes": 10240, "source_bytes": 9000}
    return ShardEntry(**{"name": name, **sizes, **sums, **counts, **changed})


def a_manifest(shards=None):
    shards = shards or [an_entry(), an_entry("000001.tar", tiles={"32": 3}, untiled={})]
    return Manifest(
        tarpeg="0.1.0",
        fingerprint=SHA,
        source=["/data/train-*.tar"],
        codec={"name": "Tiled", "parameters": {"tile": 32, "quality": None}},
        layout={"shuffle": False},
        samples=sum(entry.samples for entry in shards),
        bytes=sum(entry.bytes for entry in shards),
        shards=shards,
        quarantine=[Quarantined("/data/train-0.tar", "a\udcff/b", "TRUNCATED (3)", "000000.tar")],
        tiles=summed(entry.tiles for entry in shards),
        untiled=summed(entry.untiled for entry in shards),
    )


def test_what_is_written_is_read_back(tmp_path):
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
    with pytest.raises(tarpeg.CacheError, match="samples: 3, but tiles and untiled add up to 2"):
        a_manifest([an_entry(untiled={})]).write(tmp_path)
    assert not list(tmp_path.iterdir())


def change(content, place, value):
    """Set the field at a place such as "shards.0.name"; ... deletes it."""
    *outer, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    for part in outer:
        content = content[part]
    if value is ...:
        del content[last]
    else:
        content[last] = value


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("format", "other", "no manifest of a tarpeg cache.*'other'.*rename that file"),
        ("format", ..., "format is None"),
        ("version", 2, "version 2, and this tarpeg reads up to 1.*Update tarpeg"),
        ("version", 0, "version: 0 is not in 1"),
        ("version", True, "version: expected an integer, found bool"),
        ("version", 1.0, "version: expected an integer, found float"),
        ("version", ..., "version: missing"),
        ("tarpeg", 1, "tarpeg: expected a string"),
        ("fingerprint", ..., "fingerprint: missing"),
        ("source", "text", "source: expected a list"),
        ("codec", [], "codec: expected an object"),
        ("codec.name", ..., "codec is damaged: name: missing"),
        ("codec.parameters", None, "parameters: expected an object"),
        ("layout", ..., "layout: missing"),
        ("shards", {}, "shards: expected a list"),
        ("shards.0", None, r"shards\[0\] is damaged: expected an object"),
        ("shards.0.name", "../etc.tar", "'../etc.tar' is no plain file name"),
        ("shards.0.name", "/etc.tar", "no plain file name"),
        ("shards.0.name", ".hidden.tar", "no plain file name"),
        ("shards.0.name", "000000", "no plain file name ending in .tar"),
        ("shards.0.samples", 0, "samples: 0 is not in 1"),
        ("shards.0.name", "", "no plain file name"),
        ("shards.0.name", "a\0b.tar", "no plain file name"),
        ("shards.0.name", "000001.tar", "'000001.tar' is there twice"),
        ("shards.0.samples", "3", r"shards\[0\] is damaged: samples: expected an integer, found str"),
        ("shards.0.samples", 4, "samples: 4, but tiles and untiled add up to 3"),
        ("shards.0.bytes", -1, "bytes: -1 is not in"),
        ("shards.0.bytes", 1 << 63, "bytes: .* is not in"),
        ("shards.0.sha256", "abc", "'abc' is no sha256"),
        ("shards.0.idx_sha256", ..., "idx_sha256: missing"),
        ("shards.0.tiles", {"x": 2}, "'x' is no width"),
        ("shards.0.tiles", {"32": 0}, "32: 0 is not in"),
        ("samples", 7, "samples: 7 is not the sum"),
        ("bytes", 7, "bytes: 7 is not the sum"),
        ("tiles", {"32": 1}, "tiles: .* is not the sum"),
        ("untiled", {}, "untiled: .* is not the sum"),
        ("quarantine", ..., "quarantine: missing"),
        ("quarantine.0.key", 5, r"quarantine\[0\] is damaged: key: expected a string"),
    ],
)
def test_whatever_is_no_manifest_is_refused(tmp_path, place, value, message):
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
def test_whatever_is_no_json_object_is_refused(tmp_path, text):
    path = tmp_path / "manifest.json"
    path.write_bytes(text)
    with pytest.raises(tarpeg.CacheError, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_no_manifest(tmp_path):
    assert read_manifest(tmp_path) is None
