"""The manifest of a cache folder: ``manifest.json``, written last and checked strictly when read."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
from msgspec import Meta

from ..errors import CacheError
from ..files import read_regular, write_json

MANIFEST, BUILDING = "manifest.json", ".building"  # in a finished cache; in an unfinished one
FORMAT, VERSION = "tarpeg-cache", 3
# Of caches whose images a reader of an earlier version cannot decode; all others have version 1.
_VERSION_OF = {"Packed": 2}

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Width = Annotated[str, Meta(pattern=r"\A[1-9][0-9]{0,5}\Z")]
# The name addresses files: it must not lead out of the folder.
TarName = Annotated[str, Meta(pattern=r"\A[^\s/\\.][^/\\\x00-\x1f]*\.tar\Z")]


class Finding(NamedTuple):
    """Samples that may be a mistake of the source: their number; shard, key and content of the first."""

    samples: Positive
    shard: str
    key: str
    content: str


@dataclass(frozen=True)
class ShardEntry:
    """One shard of a cache: DEST/NAME, with NAME ending in .tar.

    ``tiles`` and ``untiled`` together are ``samples``, at least one: a shard whose samples are all in
    quarantine has neither files nor an entry.

    Attributes:
        name: Name of the tar.
        samples: Number of samples.
        bytes: Bytes of the tar.
        sha256: Checksum of the tar.
        idx_sha256: Checksum of its index.
        fingerprint: Hash of its source samples and the codec.
        source_bytes: Bytes of a tar of the source samples.
        tiles: Number of images by width of tile in pixels.
        untiled: Number of images without tiles, by reason.
        findings: Samples of the shard that may be a mistake of the source, by kind.
    """

    name: TarName
    samples: Positive
    bytes: Positive
    sha256: Sha256
    idx_sha256: Sha256
    fingerprint: str
    source_bytes: Count
    tiles: dict[Width, Positive]
    untiled: dict[str, Positive]
    findings: dict[str, Finding] = field(default_factory=dict)


@dataclass(frozen=True)
class Quarantined:
    """A sample that was left out.

    Attributes:
        shard: Shard of the source.
        key: Key of the sample.
        reason: Why it was left out.
        part: Shard of the cache that lacks it.
    """

    shard: str
    key: str
    reason: str
    part: str


class CodecEntry(TypedDict):
    """A codec's class and its parameters."""

    name: str
    parameters: dict[str, Any]


def reducing(codec: CodecEntry) -> CodecEntry | None:
    """Return a codec that reduces images, by its parameter ``shorter``, also one of the user; else None."""
    return codec if codec["parameters"].get("shorter") is not None else None


@dataclass(frozen=True)
class Manifest:
    """A finished cache. Its content does not depend on when, where or by how many processes it was built.

    Attributes:
        tarpeg: Version that wrote it.
        fingerprint: Hash of the source's listing and all parameters.
        source: Source as given to the builder.
        codec: Name and parameters of the codec.
        layout: Distribution of the samples over the shards.
        samples: Number of samples.
        bytes: Bytes of the shards.
        shards: The shards, in the order of the samples.
        quarantine: Samples that were left out.
        tiles: Sum over the shards.
        untiled: Sum over the shards.
        classes: Names of the classes by label; None if the source has none. In the file those of a folder
            are in ``source`` alone.
        images: ``images=`` of the build, for samples with several images; empty without.
        reduced_by: The codec that has reduced the images before this build, if the source is a cache; None
            if there was none.
    """

    tarpeg: str
    fingerprint: str
    source: list[Any]
    codec: CodecEntry
    layout: dict[str, Any]
    samples: Count
    bytes: Count
    shards: list[ShardEntry]
    quarantine: list[Quarantined]
    tiles: dict[str, Positive]
    untiled: dict[str, Positive]
    classes: list[str] | None = None
    images: list[str] = field(default_factory=list)
    reduced_by: CodecEntry | None = None

    @property
    def reducer(self) -> CodecEntry | None:
        """The codec that has reduced the images; None if they have the size that they had in their source."""
        return reducing(self.codec) or self.reduced_by

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write folder/manifest.json atomically. Raises CacheError if it could not be read again."""
        path = Path(folder) / MANIFEST
        version = VERSION if self.images else _VERSION_OF.get(self.codec["name"], 1)
        content = {"format": FORMAT, "version": version, **asdict(self)}
        if self.classes == _classes_of_folder(self.source):
            content["classes"] = None
        may_miss = [(content, "classes"), (content, "images"), (content, "reduced_by")]
        for part, name in (*may_miss, *((shard, "findings") for shard in content["shards"])):
            if not part[name]:  # as in manifests of earlier versions
                del part[name]
        _decoded(content, path)
        write_json(path, content)


def read_manifest(folder: str | os.PathLike[str]) -> Manifest | None:
    """Read folder/manifest.json; None if there is none.

    Raises CacheError if it is damaged, of another format or of a newer version.
    """
    path = Path(folder) / MANIFEST
    try:
        return parsed(read_regular(path), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CacheError(
            f"{path} cannot be read: {error.strerror}. Check the file and its permissions; {_rebuild(path)}."
        ) from error


def parsed(text: bytes, path: Path) -> Manifest:
    """Return the manifest that a file has. Raises CacheError as read_manifest, with its path."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CacheError(
            f"{path} is not the manifest of a tarpeg cache: its format is {found!r}, not {FORMAT!r}. If "
            f"these are ordinary shards, rename that file or move it elsewhere; {_rebuild(path)}."
        )
    version = content.get("version")
    if type(version) is not int or version < 1:  # not isinstance: true is not a version
        raise _damaged(path, f"version: expected an integer of at least 1, found {version!r}")
    if version > VERSION:
        codec = content.get("codec")
        name = f", codec {codec['name']}" if isinstance(codec, dict) and "name" in codec else ""
        raise CacheError(
            f"{path} has version {version}{name}, and this tarpeg reads up to {VERSION}: tarpeg "
            f"{content.get('tarpeg')!r} wrote it. Update tarpeg, or {_rebuild(path)}."
        )
    return _decoded(content, path)


def entries(folder: Path) -> dict[str, ShardEntry] | None:
    """Shards in the manifest of a folder, by name; None if the folder is not a cache.

    Raises CacheError for a manifest that is damaged, newer or not of a cache, and for an unfinished build.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return {entry.name: entry for entry in manifest.shards}
    if (folder / BUILDING).exists():
        raise CacheError(
            f"{folder} is a cache whose build was not finished (there is {BUILDING}, but no {MANIFEST}): run "
            "the same build again, which continues it or reports the reason why it cannot."
        )
    return None


def listed(folder: Path) -> list[Path]:
    """Paths of the shards in a cache's manifest; empty if the folder is not a cache. Raises as entries()."""
    return [folder / name for name in entries(folder) or ()]


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by name, the largest sum first."""
    total = sum(map(Counter, counts), Counter[str]())
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def _decoded(content: dict[str, Any], path: Path) -> Manifest:
    try:
        manifest = msgspec.convert(content, Manifest)
    except UnicodeError as error:
        raise _damaged(path, f"a key is not valid text: {error}") from error
    except msgspec.ValidationError as error:
        expected, _, place = str(error).partition(" - at ")
        place = place.removeprefix("`key` in ").strip("`$.")
        value: Any = content
        for name, number in re.findall(r"\.(\w+)|\[(\d+)\]", f".{place}"):
            value = value[name or int(number)]
        shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
        found = f", found {shown}" if expected.startswith("Expected") else ""
        raise _damaged(path, f"{place}: {expected}{found}".removeprefix(": ")) from error
    for number, entry in enumerate(manifest.shards):
        images = sum(entry.tiles.values()) + sum(entry.untiled.values())
        if images != entry.samples and not (manifest.images and images > entry.samples):
            what = f"{entry.samples}, but tiles and untiled add up to {images}"
            raise _damaged(path, f"shards[{number}].samples: {what}")
    names = Counter(entry.name for entry in manifest.shards)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise _damaged(path, f"shards: {twice[0]!r} is there twice")
    for name in ("samples", "bytes", "tiles", "untiled"):
        values = [getattr(entry, name) for entry in manifest.shards]
        total = sum(values) if name in ("samples", "bytes") else summed(values)
        if total != getattr(manifest, name):
            raise _damaged(path, f"{name}: {getattr(manifest, name)} is not the sum over its shards, {total}")
    return replace(manifest, classes=manifest.classes or _classes_of_folder(manifest.source))


def _names_in_order(numbers: object) -> list[str] | None:
    """Return the names of a mapping from names to 0, 1, ... in that order; None for anything else."""
    if not isinstance(numbers, dict) or list(numbers.values()) != list(range(len(numbers))):
        return None
    return list(numbers)


def _classes_of_folder(source: list[Any]) -> list[str] | None:
    """Return the classes of a folder by its description; None for other sources."""
    (first, *_) = [*source, None]
    return _names_in_order(first.get("classes")) if isinstance(first, dict) else None


def _damaged(path: Path, what: str) -> CacheError:
    return CacheError(f"{path} is damaged: {what}. Copy it again; {_rebuild(path)}.")


def _rebuild(path: Path) -> str:
    return f"to build a cache there, delete the folder {path.parent}"
