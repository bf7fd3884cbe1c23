"""SyntheticShards, FolderShards and CachedShards: made once, checked, completed after an error."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tarpeg
from helpers.checkouts import SMALL as SMALL_RUN, copy, library, tracked, train
from helpers.odd_files import odd_files
from helpers.pictures import jpeg
from helpers.small_tars import members, tars, write_tar
from hydra.utils import instantiate
from omegaconf import OmegaConf
from tarpeg.datasets.prepare import CachedShards, FolderShards, SyntheticShards
from tarpeg.datasets.synthetic import Photos
from tarpeg.errors import ShardError
from tarpeg.shards.manifest import read_manifest
from tarpeg.shards.paths import expand


def stamps(folder: Path) -> dict[str, int]:
    """Times of the files, except locks, which old filelocks truncate."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.suffix != ".lock"}


def test_synthetic_shards_are_made_once(tmp_path):
    out = tmp_path / "s"
    settings = {"val": 3, "samples_per_shard": 4, "workers": 0}
    make = pickle.loads(pickle.dumps(SyntheticShards(out, train=6, photos={"size": 32}, **settings)))
    out.mkdir()
    foreign = write_tar(out / "val-000000.tar", [("a.txt", b"")])
    with pytest.raises(ShardError, match=r"val-000000\.tar .*make_shards"):
        make()
    foreign.unlink()
    assert len(tars(out)) == 2 and not (out / "shards.json").exists(), "stopped between train and val"
    assert make() == out
    made, before = tars(out), stamps(out)
    assert set(made) == {"train-000000.tar", "train-000001.tar", "val-000000.tar"}
    assert made["train-000000.tar"][:20000] != made["val-000000.tar"][:20000]
    assert make() == out and stamps(out) == before
    message = r"photos\.size .*, train \(6 there, 7 requested\): choose another out"
    with pytest.raises(ShardError, match=message):
        SyntheticShards(out, train=7, photos={"size": 48}, **settings)()
    (out / "val-000000.tar").unlink()
    make()
    assert tars(out) == made
    (out / "shards.json").unlink()
    (out / "train-000001.tar").rename(out / "train-000007.tar")
    (out / ".val-000000.tar.tmp").write_bytes(b"half")
    make()
    assert tars(out) == made and not list(out.glob(".*.tmp"))
    (out / "shards.json").write_text("{")
    message = r"shards\.json .*damaged: .*out"
    with pytest.raises(ShardError, match=message):
        make()
    with pytest.raises(ShardError, match=r"shards in .*file"):
        (tmp_path / "file").touch()
        SyntheticShards(tmp_path / "file", train=1, val=1)()


def test_config_nodes_are_accepted(tmp_path):
    settings = {"out": str(tmp_path), "train": 2, "val": 1, "photos": {"size": [[32, 40], 48], "classes": 3}}
    config = OmegaConf.create({"_target_": "tarpeg.SyntheticShards", **settings})
    made = instantiate(config)
    assert made.photos == Photos(size=((32, 40), 48), classes=3)
    assert pickle.loads(pickle.dumps(made)) == made
    made()
    instantiate(config)()


@pytest.mark.parametrize(
    "bad", [{"out": ""}, {"train": 0}, {"val": "x"}, {"photos": {"hue": 3}}, {"photos": {"size": 1}}]
)
def test_synthetic_shards_check_when_constructed(tmp_path, bad):
    with pytest.raises(ValueError, match=r"out='' must|train=0 must|val='x' must|no field 'hue'|size=1 must"):
        SyntheticShards(**{"out": str(tmp_path), **bad})


def test_folder_shards_split_evenly(tmp_path, images):
    make = FolderShards(root=images, out=tmp_path / "o", val_share=0.25, workers=0)
    make()
    training, val = (members(tmp_path / "o" / f"{split}-000000.tar") for split in ("train", "val"))
    assert not set(training) & set(val)
    labels = [int(data) for name, data in val.items() if name.endswith(".cls")]
    assert len(training) + len(val) == 50
    assert [labels.count(label) for label in range(3)] == [1, 2, 3]
    make()
    with pytest.raises(ShardError, match=r"val_share .*0\.25.* 0\.5"):
        FolderShards(root=images, out=tmp_path / "o", val_share=0.5)()
    with pytest.raises(ShardError, match=r"val_share=0\.01 .*25 images"):
        FolderShards(root=images, out=tmp_path / "p", val_share=0.01, workers=0)()
    with pytest.raises(ValueError, match=r"^val_share=1 "):
        FolderShards(root=images, out=tmp_path / "p", val_share=1)


def test_folder_shards_of_a_changed_folder(tmp_path, images, caplog):
    make = FolderShards(root=images, out=tmp_path / "o", workers=0)
    make()
    make()
    packing, left_out = caplog.messages
    assert packing == f"packing the images of {images} into {tmp_path / 'o'} (once)"
    assert left_out == f"{images}: left out: 1 .cache/, 1 .txt"
    os.utime(images / "ant" / "0.v1.JPG", (0, 0))
    with pytest.raises(ShardError, match=r"names, sizes or dates"):
        make()
    (images / "dog").mkdir()
    (images / "dog" / "one.jpg").write_bytes(jpeg("420", 32, 32))
    message = (
        r"images in .*images have changed .* \(dog: 0 then, 1 now\): choose another out, or delete /.*CachedS"
    )
    with pytest.raises(ShardError, match=message):
        make()
    made = tmp_path / "o" / "shards.json"
    content = json.loads(made.read_text())
    made.write_text(json.dumps({name: content[name] for name in ("parameters", "shards")}))
    make()  # as packed by a version without this check
    made.write_text(json.dumps(content))
    images.rename(tmp_path / "elsewhere")
    assert make() == tmp_path / "o"


def test_an_image_of_equal_size_within_a_second_is_a_change_and_a_copy_without_fractions_is_none(
    tmp_path, images
):
    paths = [path for path in images.rglob("*") if path.is_file()]
    for path in paths:
        os.utime(path, ns=(10**9, 10**9 + 5))
    make = FolderShards(root=images, out=tmp_path / "o", workers=0)
    make()
    for path in paths:  # as by a tar, a zip, or a file system that keeps whole seconds
        os.utime(path, ns=(10**9, 10**9))
    make()
    os.utime(images / "ant" / "0.v1.JPG", ns=(10**9, 10**9 + 7))
    with pytest.raises(ShardError, match=r"names, sizes or dates"):
        make()


@pytest.fixture
def source(tmp_path):
    settings = {"train": 12, "val": 4, "samples_per_shard": 4, "workers": 0}
    return SyntheticShards(tmp_path / "shards", photos={"size": 48}, **settings)


def test_shards_and_their_cache_are_made_once_and_refused_for_another_codec_or_source(source, tmp_path):
    prepare = CachedShards(source, tmp_path / "cache", workers=0)
    out = prepare()
    assert out == tmp_path / "cache"
    assert read_manifest(out).samples == 16
    assert [path.name for path in expand(f"{out}/train-*.tar")] == [f"train-{n:06d}.tar" for n in range(3)]
    before = stamps(out)
    assert prepare() == out and stamps(out) == before
    with pytest.raises(tarpeg.CacheError, match=r"Tiled\(tile=16"):
        CachedShards(source(), out, tarpeg.Tiled(16), workers=0)()
    assert stamps(out) == before
    shards = sorted(map(str, (tmp_path / "shards").glob("*.tar")))
    layout = tarpeg.Layout(samples_per_shard=5)
    with pytest.raises(tarpeg.CacheError, match=r"another source, .*train-000002\.tar"):
        CachedShards(shards[:2], out, None, layout, workers=0)()
    out = tmp_path / "other"
    CachedShards(shards[:2], out, tarpeg.Tiled(16), layout, workers=0)()
    assert [entry.samples for entry in read_manifest(out).shards] == [5, 3]


def test_without_refresh_the_source_may_be_gone(source, tmp_path):
    out = CachedShards(source, tmp_path / "cache", workers=0)()
    shutil.rmtree(tmp_path / "shards")
    before = stamps(out)

    def gone():
        raise AssertionError("the source was called")

    assert CachedShards(gone, out, refresh=False)() == out
    assert CachedShards("s3://nowhere/a.tar", out, tarpeg.Tiled(), tarpeg.Layout(), refresh=False)() == out
    assert stamps(out) == before
    with pytest.raises(AssertionError, match="was called"):
        CachedShards(gone, out, tarpeg.Tiled(16), refresh=False)()
    with pytest.raises(ShardError, match="does not exist"):
        CachedShards(str(tmp_path / "shards" / "a.tar"), out)()


def test_a_cache_of_another_user_is_read_as_it_is(source, tmp_path, monkeypatch, caplog):
    out = CachedShards(source, tmp_path / "cache", workers=0)()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert CachedShards("s3://nowhere/a.tar", out)() == out
    assert "is read as it is" in caplog.text


@pytest.mark.parametrize("kind", ["shards", "cache"])
def test_of_several_callers_one_works(source, tmp_path, kind):
    out = tmp_path / kind
    prepare = source if kind == "shards" else CachedShards(source, out, workers=0)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: prepare(), range(4))) == [out] * 4
    assert list(tars(out)) == [*(f"train-{n:06d}.tar" for n in range(3)), "val-000000.tar"]


def test_a_folder_with_train_and_val_becomes_shards_of_both(tmp_path):
    root = tmp_path / "pets"
    for number, name in enumerate(("train/cat", "train/cat", "train/dog", "val/dog")):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{number}.jpg").write_bytes(jpeg("420", 64, 80, seed=number))
    out, crop = tmp_path / "cache", tarpeg.CenterCrop(32)
    splits = {name: tarpeg.Split(f"{out}/{name}-*.tar", crop) for name in ("train", "val")}
    prepare = CachedShards(str(root), out, workers=0)
    data = tarpeg.ShardDataModule(**splits, prepare=prepare, workers=0, threads=0)
    # val has no cat: its dogs have the number from training.
    assert next(iter(data.val_dataloader())).label.tolist() == [1]
    assert sorted(next(iter(data.train_dataloader())).label.tolist()) == [0, 0, 1]
    assert list(tars(out)) == ["train-000000.tar", "val-000000.tar"]
    recorded = {"folder": str(root), "classes": {"cat": 0, "dog": 1}, "split": "all", "seed": 0}
    assert read_manifest(out).source == [recorded]
    with pytest.raises(ShardError, match=f"val.*classes.*root='{root}/train'"):
        tarpeg.make_shards(tmp_path / "shards", tarpeg.Folder(str(root)))
    packed = FolderShards(root, root / "shards", workers=0)()
    assert members(packed / "val-000000.tar")["dog/3.cls"] == b"1"
    assert len(members(packed / "train-000000.tar")) == 6
    (root / "val" / "cow").mkdir()
    for kind in (FolderShards, CachedShards):
        with pytest.raises(ShardError, match="cow is not one of the"):
            kind(str(root), tmp_path / "other", workers=0)()


def test_images_in_sub_directories_of_a_class_are_reported(tmp_path, caplog):
    """Animals, cats and dogs alike, get the label 0."""
    for name in ("animals/cat/0.jpg", "animals/dog/1.jpg", "car/2.jpg", "car/red/3.jpg"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / name).write_bytes(jpeg("420", 64, 80))
    FolderShards(tmp_path / "pets", tmp_path / "packed", val_share=0.25, workers=0)()
    CachedShards(str(tmp_path / "pets"), tmp_path / "cached", workers=0)()
    packed, cached = caplog.messages[1:]
    kind = "images in sub-directories of a class without other images, which have the label of that class"
    assert packed.startswith(f"{tmp_path}/pets: {kind}: 1, the first is key 'animals/")
    where = f"the first is key 'animals/cat/0' of {tmp_path}/pets"
    assert cached == f"{tmp_path}/cached: {kind}: 2 of 4, {where}"


def test_a_test_folder_is_packed_and_what_is_left_out_is_a_warning(tmp_path, caplog):
    root = tmp_path / "pets"
    for name in (
        "Train/cat/0.jpg",
        "Train/cat/1.jpg",
        "Train/dog/2.jpg",
        "Train/dog/3.jpg",
        "test/dog/4.jpg",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg("420", 64, 80))
    (root / "loose.jpg").write_bytes(b"")
    (root / "test" / "5.jpg").write_bytes(b"")
    line = "left out: 1 image without a class folder, 1 image without a class folder in test"
    packed = FolderShards(root, tmp_path / "packed", val_share=0.5, workers=0)()
    assert [len(members(tar)) // 2 for tar in map(packed.joinpath, tars(packed))] == [1, 2, 2]
    cached = CachedShards(str(root), tmp_path / "cached", workers=0)()
    assert list(tars(cached)) == ["test-000000.tar", "train-000000.tar"]
    assert len(members(cached / "train-000000.tar")) == 8, "no part of train becomes val"
    assert caplog.messages[1:] == [f"{root}: {line}", f"{cached}: {line}"]
    with pytest.raises(ShardError, match=r"another source, .*pets"):
        CachedShards(str(packed), cached, workers=0)()


@pytest.mark.slow
def test_train_py_with_data_cached(tmp_path):
    checkout = copy(tmp_path / "checkout", tracked())
    few = ("data.prepare.source.train=24", "data.prepare.source.val=8", "data.batch_size=8")
    done = train(checkout, "data=cached", *few, *SMALL_RUN, TARPEG_LIB_DIR=library())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained: 3 steps" in done.stdout
    first = read_manifest(checkout / "data" / "cached")
    assert first.samples == 32
    assert (first.codec["name"], first.codec["parameters"]["tile"]) == ("Tiled", 32)
    own = (f"data.prepare.source={checkout}/data/synthetic", "data.prepare.out=data/own", "data.batch_size=8")
    done = train(checkout, "data=cached", *own, *SMALL_RUN, TARPEG_LIB_DIR=library())
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_manifest(checkout / "data" / "own").samples == 32
    path = checkout / "data" / "own" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"version": 4}))
    done = train(checkout, "data=cached", *own, *SMALL_RUN, TARPEG_LIB_DIR=library())
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "has version 4" in done.stderr.strip().splitlines()[-1]


def test_odd_files_are_an_error_with_the_remedy(tmp_path):
    cat = tmp_path / "pets" / "cat"
    cat.mkdir(parents=True)
    for number in range(8):
        (cat / f"{number}.jpg").write_bytes(jpeg("420", 24, 24, number))
    odd = [*odd_files(cat, "jpg"), *(cat / f"gone{number}.jpg" for number in range(9))]
    for path in odd[3:]:
        path.symlink_to("nowhere")
    for make in (
        FolderShards(root=tmp_path / "pets", out=tmp_path / "o", val_share=0.5, workers=0),
        lambda: tarpeg.make_shards(tmp_path / "p", tarpeg.Folder(tmp_path / "pets"), workers=0),
    ):
        with pytest.raises(ShardError, match=r"12 of 20 images .*: .*2 more.*build_cache") as caught:
            make()
        text = str(caught.value)
        assert f"{odd[0]}: not a regular file" in text and f"{odd[3]}: No such file" in text
    for path in odd:
        path.unlink()
    FolderShards(root=tmp_path / "pets", out=tmp_path / "o", val_share=0.5, workers=0)()
    kept = [name for tar in (tmp_path / "o").rglob("*.tar") for name in members(tar) if name.endswith(".jpg")]
    assert sorted(kept) == [f"cat/{number}.jpg" for number in range(8)]
