"""CachedShards: a cache in prepare_data, made once, kept up to date, and trained from."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tarpeg
from helpers.checkouts import SMALL, copy, library, tracked, train
from helpers.pictures import jpeg
from hydra.utils import instantiate
from omegaconf import OmegaConf
from tarpeg.datasets.prepare import CachedShards, SyntheticShards
from tarpeg.shards.manifest import read_manifest
from tarpeg.shards.paths import expand

PHOTOS = {"size": 48}


@pytest.fixture
def source(tmp_path):
    return SyntheticShards(
        tmp_path / "shards", train=12, val=4, photos=PHOTOS, samples_per_shard=4, workers=0
    )


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_it_makes_the_shards_and_their_cache_once(source, tmp_path):
    prepare = CachedShards(source, tmp_path / "cache", workers=0)
    out = prepare()
    assert out == tmp_path / "cache"
    assert read_manifest(out).samples == 16
    assert [path.name for path in expand(f"{out}/train-*.tar")] == [f"train-{n:06d}.tar" for n in range(3)]
    before = stamps(out)
    assert prepare() == out and stamps(out) == before


def test_another_codec_or_source_builds_anew(source, tmp_path):
    out = CachedShards(source(), tmp_path / "cache", workers=0)()
    CachedShards(source(), out, tarpeg.Tiled(16), workers=0)()
    assert read_manifest(out).codec["parameters"]["tile"] == 16
    shards = sorted(map(str, (tmp_path / "shards").glob("*.tar")))
    layout = tarpeg.Layout(samples_per_shard=5)
    CachedShards(shards[:2], out, tarpeg.Tiled(16), layout, workers=0)()
    assert [entry.samples for entry in read_manifest(out).shards] == [5, 3]


def test_without_refresh_the_source_may_be_gone(source, tmp_path):
    out = CachedShards(source, tmp_path / "cache", workers=0)()
    shutil.rmtree(tmp_path / "shards")
    before = stamps(out)

    def gone():
        raise AssertionError("asked for the source")

    assert CachedShards(gone, out, refresh=False)() == out
    assert CachedShards("s3://nowhere/a.tar", out, tarpeg.Tiled(), tarpeg.Layout(), refresh=False)() == out
    assert stamps(out) == before
    with pytest.raises(AssertionError, match="asked"):
        CachedShards(gone, out, tarpeg.Tiled(16), refresh=False)()
    with pytest.raises(tarpeg.ShardError, match="does not exist"):
        CachedShards(str(tmp_path / "shards" / "a.tar"), out)()


def test_several_at_once(source, tmp_path):
    prepare = CachedShards(source, tmp_path / "cache", workers=0)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(prepare) for _ in range(3)]
        assert [call.result() for call in calls] == [tmp_path / "cache"] * 3
    assert read_manifest(tmp_path / "cache").samples == 16


KILLED = """
import sys, time
sys.path[:0] = sys.argv[1:2]
from tarpeg.cache import job as cachejob
from tarpeg.datasets.prepare import CachedShards

run = cachejob.run_job
def slow(job):
    record = run(job)
    print(job.name, flush=True)
    time.sleep(60 if job.name.startswith("val") or job.name.endswith("1") else 0)
    return record
cachejob.run_job = slow
CachedShards(sys.argv[2], sys.argv[3], workers=0)()
"""


def test_a_build_that_was_killed_goes_on(source, tmp_path):
    shards, out = source(), tmp_path / "cache"
    command = [sys.executable, "-c", KILLED, str(Path(tarpeg.__file__).parents[1]), str(shards), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert [process.stdout.readline().strip() for _ in range(2)] == ["train-000000", "train-000001"]
        process.send_signal(signal.SIGKILL)
    with pytest.raises(tarpeg.CacheError, match="build was not finished"):
        expand(f"{out}/train-*.tar")
    kept = stamps(out)
    CachedShards(str(shards), out, workers=0)()
    assert len(expand(out)) == 4
    same = {name for name, stamp in stamps(out).items() if kept.get(name) == stamp}
    assert {name for name in same if name.endswith(".tar")} == {"train-000000.tar", "train-000001.tar"}


def test_the_config_is_made_by_hydra(tmp_path):
    content = OmegaConf.load(Path(tarpeg.__file__).parents[2] / "conf" / "data" / "cached.yaml")
    made = instantiate(content.prepare)
    assert isinstance(made.source, SyntheticShards) and made.codec == tarpeg.Tiled(32)
    content.prepare.source = "/data/shards"
    assert instantiate(content.prepare).source == "/data/shards"


def test_a_data_module_trains_from_it(source, tmp_path):
    prepare = CachedShards(source, tmp_path / "cache", workers=0)
    crop = tarpeg.RandomCrop(32)
    common = {"batch_size": 4, "workers": 0, "seed": 3}
    cached = tarpeg.ShardDataModule(
        tarpeg.Split(f"{tmp_path}/cache/train-*.tar", crop), prepare=prepare, **common
    )
    plain = tarpeg.ShardDataModule(tarpeg.Split(f"{tmp_path}/shards/train-*.tar", crop), **common)
    one, other = list(cached.train_dataloader()), list(plain.train_dataloader())
    assert len(one) == len(other) == 3
    for a, b in zip(one, other, strict=True):
        assert (a.image == b.image).all() and (a.label == b.label).all()


def test_a_folder_with_train_and_val_becomes_shards_of_both(tmp_path):
    root = tmp_path / "pets"
    for number, name in enumerate(("train/cat", "train/cat", "train/dog", "val/dog")):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{number}.jpg").write_bytes(jpeg("420", 64, 80, seed=number))
    out = CachedShards(str(root), tmp_path / "cache", workers=0)()
    assert sorted(path.name for path in Path(out).glob("*.tar")) == ["train-000000.tar", "val-000000.tar"]
    assert read_manifest(out).source == [{"folder": str(root), "classes": {"cat": 0, "dog": 1}}]
    crop = tarpeg.CenterCrop(32)
    splits = {name: tarpeg.Split(f"{out}/{name}-*.tar", crop) for name in ("train", "val")}
    data = tarpeg.ShardDataModule(**splits, workers=0, threads=0)
    # val has no cat: its dogs have the number that training gave them.
    assert next(iter(data.val_dataloader())).label.tolist() == [1]
    assert sorted(next(iter(data.train_dataloader())).label.tolist()) == [0, 0, 1]
    with pytest.raises(tarpeg.ShardError, match="holds train and val, which are no classes"):
        tarpeg.make_shards(tmp_path / "shards", tarpeg.Folder(str(root)))
    (root / "val" / "cow").mkdir()
    with pytest.raises(tarpeg.ShardError, match="cow is not one of the"):
        CachedShards(str(root), tmp_path / "other", workers=0)()


@pytest.mark.slow
def test_train_py_with_data_cached(tmp_path):
    checkout = copy(tmp_path / "checkout", tracked())
    few = ("data.prepare.source.train=24", "data.prepare.source.val=8", "data.batch_size=8")
    done = train(checkout, "data=cached", *few, *SMALL, TARPEG_LIB_DIR=library())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained: 3 steps" in done.stdout
    first = read_manifest(checkout / "data" / "cached")
    assert first.samples == 32 and first.codec["name"] == "Tiled"
    own = (f"data.prepare.source={checkout}/data/synthetic", "data.prepare.out=data/own", "data.batch_size=8")
    done = train(checkout, "data=cached", *own, *SMALL, TARPEG_LIB_DIR=library())
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_manifest(checkout / "data" / "own").samples == 32
    path = checkout / "data" / "own" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"version": 2}))
    done = train(checkout, "data=cached", *own, *SMALL, TARPEG_LIB_DIR=library())
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "has version 2, and this tarpeg reads up to 1" in done.stderr.strip().splitlines()[-1]
