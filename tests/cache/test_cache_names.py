"""Shards whose names are those of the builder's own files."""

from __future__ import annotations

import pytest
from helpers.small_tars import sample, write_tar
from tarpeg import build_cache
from tarpeg.shards.manifest import read_manifest
from tarpeg.shards.mapped import Shards


@pytest.mark.parametrize("name", ["build", "manifest", "finished", "build.fingerprint"])
def test_any_name_of_a_shard_will_do(tmp_path, name):
    folder = tmp_path / "source"
    folder.mkdir()
    paths = [
        write_tar(folder / f"{name}.tar", [m for n in range(3) for m in sample(n)]),
        write_tar(folder / "z.tar", [m for n in range(3, 6) for m in sample(n)]),
    ]
    for _ in range(2):
        build_cache(paths, tmp_path / "cache", executor=0)
    manifest = read_manifest(tmp_path / "cache")
    assert [shard.name for shard in manifest.shards] == [f"{name}.tar", "z.tar"]
    shards = Shards([tmp_path / "cache" / shard.name for shard in manifest.shards])
    assert [shards.key(id) for id in range(6)] == [f"k{n:04d}" for n in range(6)]
