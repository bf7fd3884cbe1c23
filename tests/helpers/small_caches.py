"""Small caches for tests, and a large one of tiny images, written from tars without the builder."""

from __future__ import annotations

import hashlib
import os
import tarfile
from dataclasses import replace
from pathlib import Path

from tarpeg.shards.manifest import Manifest, Quarantined, ShardEntry, summed
from tarpeg.shards.wds_index import Component, index_text

from helpers.pictures import jpeg
from helpers.small_tars import write_tar


def add_index(tar: Path) -> Path:
    """Write NAME.idx for NAME.tar; every sample must have an image."""
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


def manifest_of(entries: list[ShardEntry], quarantine: tuple[Quarantined, ...] = ()) -> Manifest:
    codec = {"name": "Tiled", "parameters": {"tile": 32, "quality": None}}
    totals = (sum(entry.samples for entry in entries), sum(entry.bytes for entry in entries))
    counts = (summed(entry.tiles for entry in entries), summed(entry.untiled for entry in entries))
    return Manifest("0.1.0", "f", ["source"], codec, {}, *totals, entries, list(quarantine), *counts)


def add_manifest(folder: Path, quarantine: tuple[Quarantined, ...] = ()) -> Manifest:
    """Write the manifest of the tars and indexes in the folder."""
    manifest = manifest_of([entry_of(tar) for tar in sorted(folder.glob("*.tar"))], quarantine)
    manifest.write(folder)
    return manifest


def make_cache(folder: Path, shards: dict[str, list[tuple[str, bytes]]]) -> Path:
    """Write a cache: shards by name, without .tar, of (name, bytes) members."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in shards.items():
        add_index(write_tar(folder / f"{name}.tar", members))
    add_manifest(folder)
    return folder


def make_big_cache(folder: Path) -> None:
    """Write a cache as large as ImageNet's, of 16 x 16 JPEGs, with keys as long as ImageNet's.

    All of its 1000 tars are hard links to one file; every shard has its own index file.
    """
    data, members = jpeg("420", 16, 16), []
    for number in range(1282):
        key = f"n{number % 1000:08d}_{number}"
        members += [(f"{key}.jpg", data), (f"{key}.cls", b"%d" % (number % 1000))]
    first = make_cache(folder, {"train-0000": members}) / "train-0000.tar"
    entries, index = [entry_of(first)], first.with_suffix(".idx").read_bytes()
    for number in range(1, 1000):
        path = folder / f"train-{number:04d}.tar"
        os.link(first, path)
        path.with_suffix(".idx").write_bytes(index)
        entries.append(replace(entries[0], name=path.name))
    manifest_of(entries).write(folder)


def shard_files(folder: Path) -> dict[str, bytes]:
    """The shards of a cache and their indexes."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".tar", ".idx")}


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a cache, except locks."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}
