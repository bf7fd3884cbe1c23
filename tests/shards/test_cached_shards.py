"""Opening the shards of a cache: by its manifest and its indexes, and not where these do not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tarpeg
from helpers.big_cache import make as make_big_cache
from helpers.small_caches import add_manifest, make_cache
from helpers.small_tars import cache_home as cache_home
from helpers.small_tars import images, plain
from tarpeg.shards.mapped import Shards
from tarpeg.shards.paths import expand

MEMBERS = {
    f"train-{shard}": [
        (f"f/k{shard}{n}.{name}", data)
        for n in range(3)
        for name, data in (("jpg", b"J%d%d" % (shard, n)), ("cls", b"7"))
    ]
    for shard in range(20)
}


@pytest.fixture
def cache(tmp_path):
    return make_cache(tmp_path / "cache", MEMBERS)


def test_a_cache_reads_like_the_tars_it_is_made_of(cache, tmp_path):
    shards = Shards(expand(cache))
    plainly = tmp_path / "plain"
    plainly.mkdir()
    for tar in cache.glob("*.tar"):
        os.link(tar, plainly / tar.name)
    others = Shards(expand(plainly))
    assert len(shards) == len(others) == 60
    assert images(shards) == images(others)
    assert shards.labels(range(60)).tolist() == others.labels(range(60)).tolist() == [7] * 60
    for id in range(60):
        assert shards.key(id) == others.key(id)
        assert shards.shard(id).name == others.shard(id).name
        assert shards.extensions(id) == others.extensions(id) == ["jpg", "cls"]
        assert shards.member(id, "cls") == b"7"


def test_opening_a_cache_walks_no_tar_and_writes_nothing(cache, cache_home):
    tar = cache / "train-0.tar"
    found = tar.stat()
    tar.write_bytes(bytes(found.st_size))
    assert len(Shards(expand(cache))) == 60
    assert not list(cache.glob("*.npz")) and not list(cache_home.rglob("*.npz"))


def test_caches_and_ordinary_shards_together(cache, tmp_path):
    other = plain(tmp_path / "other.tar")
    shards = Shards([cache / "train-1.tar", other, cache / "train-0.tar"])
    assert [shards.key(id) for id in (0, 3, 6)] == ["f/k10", "k0000", "f/k00"]


def test_a_part_of_a_cache_may_be_copied(cache):
    for name in ("train-2.tar", "train-2.idx"):
        (cache / name).unlink()
    assert len(Shards(expand(f"{cache}/train-{{0..1}}.tar"))) == 6
    for source in (cache, f"{cache}/*.tar", f"{cache}/train-*"):
        with pytest.raises(
            tarpeg.CacheError, match=r"train-2\.tar, which manifest\.json lists, cannot be read"
        ):
            Shards(expand(source))
    assert len(Shards(expand(f"{cache}/train-1*"))) == 33


def test_an_index_that_is_missing(cache):
    (cache / "train-2.idx").unlink()
    with pytest.raises(tarpeg.CacheError, match=r"train-2\.idx, which .* run its build again"):
        Shards(expand(cache))


def test_a_shard_of_another_size(cache):
    with (cache / "train-2.tar").open("ab") as file:
        file.write(bytes(512))
    with pytest.raises(tarpeg.CacheError, match=r"train-2\.tar has 10752 bytes, but 10240 in manifest\.json"):
        Shards(expand(cache))


def test_a_shard_that_is_not_listed(cache):
    plain(cache / "train-extra.tar")
    with pytest.raises(
        tarpeg.CacheError, match=r"train-extra\.tar is not in .*manifest\.json, which lists the 20"
    ):
        Shards(expand(cache))


def test_an_index_of_another_shard(cache):
    text = (cache / "train-2.idx").read_bytes().replace(b"v1.2 3", b"v1.2 2")
    (cache / "train-2.idx").write_bytes(text.rsplit(b"\n", 2)[0] + b"\n")
    with pytest.raises(tarpeg.CacheError, match=r"train-2\.idx has 2 samples, but 3 in manifest\.json"):
        Shards(expand(cache))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not the manifest of a tarpeg cache: its format is 'other'.*rename that file"),
        ({"version": 2}, "version 2, and this tarpeg reads up to 1.*Update tarpeg"),
        ({"shards": 5}, "shards: Expected `array`"),
    ],
)
def test_a_foreign_or_newer_manifest(cache, change, message):
    path = cache / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    for source in (cache, f"{cache}/*.tar"):
        with pytest.raises(tarpeg.CacheError, match=message):
            expand(source)
    with pytest.raises(tarpeg.CacheError, match=message):
        Shards([cache / "train-0.tar"])


def test_a_build_that_was_not_finished(cache):
    (cache / "manifest.json").unlink()
    (cache / ".building").mkdir()
    with pytest.raises(
        tarpeg.CacheError, match=r"a cache whose build was not finished .*run the same build again"
    ):
        expand(cache)
    add_manifest(cache)
    assert len(Shards(expand(cache))) == 60


MEASURE = """
import json, os, sys, time
import numpy, torch
sys.path[:0] = sys.argv[2:]
import tarpeg
from tarpeg.loader.config import LoaderConfig
from tarpeg.loader.loader import Loader

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

tarpeg.decode_batch
before = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # VmHWM starts anew
started = time.process_time()  # of all threads: what an idle machine needs at most, whoever else is busy
split = tarpeg.Split(sys.argv[1], tarpeg.RandomResizedCrop(8))
config = LoaderConfig(64, workers=0, threads=2)
loader = Loader(split.open(), split, config, shuffle=True, keys=True, rank=0, world=1)
batch = next(iter(loader))
seconds = time.process_time() - started
measured = {"seconds": seconds, "before": before, "added": memory("VmHWM") - before}
loader.close()
print(json.dumps(measured | {"files": len(os.listdir("/proc/self/fd")), "keys": batch.key}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads its memory out of /proc")
def test_a_cache_as_large_as_imagenet_opens_at_once(tmp_path):
    make_big_cache(tmp_path / "cache")
    package = str(Path(tarpeg.__file__).parents[1])
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "cache"), package]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    assert len(set(runs[0]["keys"])) > 50
    assert min(run["seconds"] for run in runs) < 2, runs
    assert max(run["added"] for run in runs) < 200, runs
    assert max(run["files"] for run in runs) < 24, runs
