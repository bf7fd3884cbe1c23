"""Small caches for tests: written here from tars, not by the builder that they stand in for."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

from tarpeg.shards.manifest import Manifest, Quarantined, ShardEntry, summed
from tarpeg.shards.wds_index import Component, index_text

from helpers.small_tars import write_tar


def add_index(tar: Path) -> Path:
    """Write NAME.idx for NAME.tar, whose samples all have an image."""
    samples, last = [], None
    with tarfile.open(tar) as file:
        for member in file:
            folder, _, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            if (folder, stem) != last:
                samples.append([])
            last = (folder, stem)
            samples[-1].append(Component(extension, member.offset_data, member.size, member.name))
    idx = tar.with_suffix(".idx")
    idx.write_bytes(index_text(samples))
    return idx


def entry_of(tar: Path) -> ShardEntry:
    text = tar.with_suffix(".idx").read_bytes()
    samples = int(text.split()[1])
    sums = (hashlib.sha256(tar.read_bytes()).hexdigest(), hashlib.sha256(text).hexdigest())
    return ShardEntry(tar.name, samples, tar.stat().st_size, *sums, "f", 0, {"32": samples}, {})


def add_manifest(folder: Path, quarantine: tuple[Quarantined, ...] = ()) -> Manifest:
    """Write the manifest of the tars and indexes that are in the folder."""
    entries = [entry_of(tar) for tar in sorted(folder.glob("*.tar"))]
    manifest = Manifest(
        tarpeg="0.1.0",
        fingerprint="f",
        source=["source"],
        codec={"name": "Tiled", "parameters": {"tile": 32}},
        layout={},
        samples=sum(entry.samples for entry in entries),
        bytes=sum(entry.bytes for entry in entries),
        shards=entries,
        quarantine=list(quarantine),
        tiles=summed(entry.tiles for entry in entries),
        untiled={},
    )
    manifest.write(folder)
    return manifest


def make_cache(folder: Path, shards: dict[str, list[tuple[str, bytes]]]) -> Path:
    """Write a cache: shards by name, without .tar, of (name, bytes) members."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in shards.items():
        add_index(write_tar(folder / f"{name}.tar", members))
    add_manifest(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Everything in a cache but the locks."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}
