"""What a cache folder says of itself: ``manifest.json``, written last, and checked strictly when read."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CacheError
from ..files import write_json

MANIFEST, BUILDING = "manifest.json", ".building"  # what a finished cache has, and an unfinished one
FORMAT, VERSION = "tarpeg-cache", 1

_NAME = re.compile(r"[^\s/\\.][^/\\\x00-\x1f]*\.tar")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WIDTH = re.compile(r"[1-9][0-9]{0,5}")
_LIMIT = 1 << 63
_KINDS = {dict: "an object", list: "a list", str: "a string", int: "an integer"}
_T = TypeVar("_T")


@dataclass(frozen=True)
class ShardEntry:
    """One shard of a cache: DEST/NAME, with NAME ending in .tar.

    bytes: of the tar. fingerprint: of the samples and the codec it was made of. source_bytes: of a tar of the
    samples as they came. tiles: images by width of tile in pixels; untiled: images by the reason why they
    have none; together as many as there are samples, of which there is at least one: a shard that lost all
    of its samples to the quarantine has neither files nor an entry.
    """

    name: str
    samples: int
    bytes: int
    sha256: str
    idx_sha256: str
    fingerprint: str
    source_bytes: int
    tiles: dict[str, int]
    untiled: dict[str, int]


@dataclass(frozen=True)
class Quarantined:
    """A sample that was left out: the source shard, its key, and why. part: the cache's shard it lacks in."""

    shard: str
    key: str
    reason: str
    part: str


@dataclass(frozen=True)
class Manifest:
    """A finished cache. Nothing in it depends on when, where or by how many processes it was built.

    tarpeg: the version that wrote it. fingerprint: of the source's listing and all parameters. source: what
    it was made from. codec: {"name": ..., "parameters": {...}}. layout: how samples were distributed.
    samples, bytes, tiles, untiled: sums over the shards, which are in the order of the samples.
    """

    tarpeg: str
    fingerprint: str
    source: list[Any]
    codec: dict[str, Any]
    layout: dict[str, Any]
    samples: int
    bytes: int
    shards: list[ShardEntry]
    quarantine: list[Quarantined] = field(default_factory=list)
    tiles: dict[str, int] = field(default_factory=dict)
    untiled: dict[str, int] = field(default_factory=dict)

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write folder/manifest.json, whole or not at all. Raises CacheError for one it would not read."""
        path = Path(folder) / MANIFEST
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        _manifest(_Fields(content, str(path)))
        write_json(path, content)


def read_manifest(folder: str | os.PathLike[str]) -> Manifest | None:
    """Read folder/manifest.json; None where there is none.

    Raises CacheError where it is damaged, of another format or of a newer version.
    """
    path = Path(folder) / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CacheError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise CacheError(f"{path} is damaged or no manifest of a cache: {error}. Build anew.") from error
    fields = _Fields(content, str(path))
    found = fields.content.get("format")
    if found != FORMAT:
        raise CacheError(
            f"{path} is no manifest of a tarpeg cache: its format is {found!r}, not {FORMAT!r}. If these are "
            "ordinary shards, rename that file or move it elsewhere."
        )
    version = fields.integer("version", 1)
    if version > VERSION:
        raise CacheError(
            f"{path} has version {version}, and this tarpeg reads up to {VERSION}: tarpeg "
            f"{fields.content.get('tarpeg')!r} wrote it. Update tarpeg, or build the cache anew."
        )
    return _manifest(fields)


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by name, the largest first."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def _manifest(fields: _Fields) -> Manifest:
    codec = _Fields(fields.get("codec", dict), fields.place("codec"))
    codec.text("name")
    codec.get("parameters", dict)
    manifest = Manifest(
        tarpeg=fields.text("tarpeg"),
        fingerprint=fields.text("fingerprint"),
        source=fields.get("source", list),
        codec=codec.content,
        layout=fields.get("layout", dict),
        samples=fields.integer("samples"),
        bytes=fields.integer("bytes"),
        shards=fields.each("shards", _entry),
        quarantine=fields.each("quarantine", _quarantined),
        tiles=fields.counts("tiles"),
        untiled=fields.counts("untiled"),
    )
    names = Counter(entry.name for entry in manifest.shards)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise fields.error("shards", f"{twice[0]!r} is there twice")
    for name in ("samples", "bytes"):
        sum_of = sum(getattr(entry, name) for entry in manifest.shards)
        if sum_of != getattr(manifest, name):
            raise fields.error(name, f"{getattr(manifest, name)} is not the sum over its shards, {sum_of}")
    for name in ("tiles", "untiled"):
        counts = summed(getattr(entry, name) for entry in manifest.shards)
        if counts != getattr(manifest, name):
            raise fields.error(name, f"{getattr(manifest, name)} is not the sum over its shards, {counts}")
    return manifest


def _entry(fields: _Fields) -> ShardEntry:
    entry = ShardEntry(
        name=fields.text("name"),
        samples=fields.integer("samples", 1),
        bytes=fields.integer("bytes", 1),
        sha256=fields.text("sha256"),
        idx_sha256=fields.text("idx_sha256"),
        fingerprint=fields.text("fingerprint"),
        source_bytes=fields.integer("source_bytes"),
        tiles=fields.counts("tiles"),
        untiled=fields.counts("untiled"),
    )
    # The name addresses files: it must not lead out of the folder.
    if not _NAME.fullmatch(entry.name):
        raise fields.error("name", f"{entry.name!r} is no plain file name ending in .tar")
    for name in ("sha256", "idx_sha256"):
        if not _SHA256.fullmatch(getattr(entry, name)):
            raise fields.error(name, f"{getattr(entry, name)!r} is no sha256 in hexadecimal digits")
    odd = [width for width in entry.tiles if not _WIDTH.fullmatch(width)]
    if odd:
        raise fields.error("tiles", f"{odd[0]!r} is no width in pixels")
    images = sum(entry.tiles.values()) + sum(entry.untiled.values())
    if images != entry.samples:
        raise fields.error("samples", f"{entry.samples}, but tiles and untiled add up to {images}")
    return entry


def _quarantined(fields: _Fields) -> Quarantined:
    return Quarantined(fields.text("shard"), fields.text("key"), fields.text("reason"), fields.text("part"))


class _Fields:
    """The fields of one JSON object; every reading of one says what it must be."""

    def __init__(self, content: object, place: str) -> None:
        if not isinstance(content, dict):
            raise CacheError(f"{place} is damaged: expected an object, found {type(content).__name__}.")
        self.content: dict[str, Any] = content
        self._place = place

    def place(self, name: str) -> str:
        return f"{self._place}: {name}"

    def error(self, name: str, what: str) -> CacheError:
        return CacheError(f"{self._place} is damaged: {name}: {what}. Build the cache anew.")

    def get(self, name: str, kind: type) -> Any:
        if name not in self.content:
            raise self.error(name, "missing")
        value = self.content[name]
        # Not isinstance: true is no integer here.
        if type(value) is not kind:
            raise self.error(name, f"expected {_KINDS[kind]}, found {type(value).__name__}")
        return value

    def text(self, name: str) -> str:
        value: str = self.get(name, str)
        return value

    def integer(self, name: str, least: int = 0) -> int:
        value: int = self.get(name, int)
        if not least <= value < _LIMIT:
            raise self.error(name, f"{value} is not in {least}..2**63-1")
        return value

    def each(self, name: str, read: Callable[[_Fields], _T]) -> list[_T]:
        values = enumerate(self.get(name, list))
        return [read(_Fields(value, self.place(f"{name}[{number}]"))) for number, value in values]

    def counts(self, name: str) -> dict[str, int]:
        fields = _Fields(self.get(name, dict), self.place(name))
        return {key: fields.integer(key, 1) for key in fields.content}
