"""A cache with as many samples as ImageNet, of tiny images, quickly written."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

from PIL import Image
from tarpeg.shards.manifest import ShardEntry
from tarpeg.shards.wds_index import Component, index_text

from helpers.small_caches import manifest_of


def make(folder: Path, samples: int = 1_281_167, shards: int = 1000) -> None:
    """Write samples of a 16 x 16 JPEG and a label, with keys as long as ImageNet's.

    Tars with the same number of samples are hard links to one file; every shard has its own index file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        count: _shard(folder / f".{count}", count) for count in {samples // shards, -(-samples // shards)}
    }
    entries = []
    for number in range(shards):
        count = samples * (number + 1) // shards - samples * number // shards
        path = folder / f"train-{number:04d}.tar"
        idx, sums = made[count]
        os.link(folder / f".{count}", path)
        path.with_suffix(".idx").write_bytes(idx)
        entries.append(ShardEntry(path.name, count, path.stat().st_size, *sums, "f", 0, {}, {"tiny": count}))
    for count in made:
        (folder / f".{count}").unlink()
    manifest_of(entries).write(folder)


def _shard(path: Path, count: int) -> tuple[bytes, tuple[str, str]]:
    content = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 60, 20)).save(content, "JPEG")
    samples, position = [], 0
    with path.open("wb") as file:
        for number in range(count):
            members = []
            for extension, data in (("jpg", content.getvalue()), ("cls", b"%d" % (number % 1000))):
                info = tarfile.TarInfo(f"n{number % 1000:08d}_{number}.{extension}")
                info.size = len(data)
                position += file.write(info.tobuf())
                members.append(Component(extension, position, len(data), info.name))
                position += file.write(data + bytes(-len(data) % 512))
            samples.append(members)
        file.write(bytes(1024))
    idx = index_text(samples)
    return idx, (hashlib.sha256(path.read_bytes()).hexdigest(), hashlib.sha256(idx).hexdigest())
