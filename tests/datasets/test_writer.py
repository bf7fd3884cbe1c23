"""Shards on disk: the same bytes for any number of processes, readable by webdataset, whole or not there."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image
from tarpeg.datasets.prepare import FolderShards, SyntheticShards
from tarpeg.datasets.synthetic import Photos, label_of, photograph
from tarpeg.datasets.writer import make_shards
from tarpeg.errors import ShardError
from tarpeg.shards.folder import Folder

SMALL = Photos(size=32)
SLOW = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "make_shards.py"


def _contents(folder, pattern="*.tar"):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob(pattern))}


def _members(path):
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


@pytest.fixture
def images(tmp_path):
    """Three classes of 4, 8 and 12 images, some nested, one of another format."""
    root = tmp_path / "images"
    for label, name in enumerate(("ant", "bee", "cat")):
        for index in range(4 * (label + 1)):
            path = root / name / ("deep" if index % 4 == 3 else "") / f"{index}.v1.JPG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(photograph(SMALL, 100 * label + index).jpeg)
    Image.new("RGB", (8, 8)).save(root / "ant" / "flat.png")
    (root / "ant" / "notes.txt").write_text("no image")
    (root / ".cache").mkdir()
    return root


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=SLOW), pytest.param(3, marks=SLOW)])
def test_the_same_bytes_for_any_number_of_processes(tmp_path, workers):
    photos = Photos(size=[32, 48], progressive=0.3, gray=0.2, exif=0.3, corrupt=0.1)
    make_shards(tmp_path / "a", photos, 50, samples_per_shard=20, workers=0)
    make_shards(tmp_path / "b", photos, 50, samples_per_shard=20, workers=workers)
    assert _contents(tmp_path / "a") == _contents(tmp_path / "b")


def test_scripts_need_no_main_guard_and_no_file(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'datamodules')!r})\n"
        "from tarpeg.datasets.writer import make_shards\n"
        "make_shards('o', {'size': 16}, 40, workers=2)\n"
    )
    done = subprocess.run([sys.executable, "-"], input=script, cwd=tmp_path, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(_members(tmp_path / "o" / "train-000000.tar")) == 80


def test_report_and_members(tmp_path):
    report = make_shards(tmp_path, SMALL, 25, prefix="val", samples_per_shard=10, workers=0)
    assert [path.name for path in report.shards] == [f"val-{n:06d}.tar" for n in range(3)]
    members = [_members(path) for path in report.shards]
    assert [len(m) for m in members] == [20, 20, 10]
    together = {name: data for m in members for name, data in m.items()}
    assert len(together) == 50
    jpegs = [data for name, data in together.items() if name.endswith(".jpg")]
    assert (report.samples, report.bytes) == (25, sum(map(len, jpegs)))
    assert report.bits_per_pixel == pytest.approx(8 * report.bytes / (25 * 32 * 32))
    assert together["00000013.jpg"] == photograph(SMALL, 13, "val").jpeg
    assert together["00000013.cls"] == str(label_of(SMALL, 13, "val")).encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in report.shards]


def test_webdataset_reads_them(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    report = make_shards(tmp_path, SMALL, 12, workers=0)
    data = (
        webdataset.WebDataset(str(report.shards[0]), shardshuffle=False).decode("pil").to_tuple("jpg", "cls")
    )
    labels = [(image.size, label) for image, label in data]
    assert labels == [((32, 32), label_of(SMALL, index)) for index in range(12)]


def test_an_earlier_run_is_replaced_and_foreign_shards_are_not(tmp_path):
    make_shards(tmp_path, SMALL, 9, samples_per_shard=3, workers=0)
    (tmp_path / ".train-000001.tar.tmp").write_bytes(b"left by a kill")
    make_shards(tmp_path, SMALL, 4, samples_per_shard=3, workers=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train-000000.tar", "train-000001.tar"]
    foreign = tmp_path / "val-000000.tar"
    with tarfile.open(foreign, "w") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    before = foreign.read_bytes()
    with pytest.raises(ShardError, match=r"val-000000\.tar is in the way"):
        make_shards(tmp_path, SMALL, 4, prefix="val", workers=0)
    assert foreign.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", 0),
        ("samples_per_shard", 0),
        ("workers", -1),
        ("prefix", "a/b"),
        ("prefix", ""),
        ("samples", "9"),
    ],
)
def test_bad_arguments_are_named(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected "):
        make_shards(tmp_path, SMALL, **{"samples": 4, name: value})


def test_a_folder_is_packed_unchanged(tmp_path, images):
    out = tmp_path / "out"
    report = make_shards(out, Folder(images), samples_per_shard=10, workers=0)
    assert report.samples == 25
    assert json.loads((out / "classes.json").read_text()) == {"ant": 0, "bee": 1, "cat": 2}
    together = {name: data for path in report.shards for name, data in _members(path).items()}
    assert together["bee/0_v1.jpg"] == (images / "bee" / "0.v1.JPG").read_bytes()
    assert together["cat/deep/3_v1.jpg"] == (images / "cat" / "deep" / "3.v1.JPG").read_bytes()
    assert together["ant/flat.png"] == (images / "ant" / "flat.png").read_bytes()
    assert together["bee/0_v1.cls"] == b"1"
    keys = [name for name in together if name.endswith(".cls")]
    assert len(keys) == 25
    assert keys != sorted(keys)
    make_shards(tmp_path / "two", Folder(images), samples_per_shard=10, workers=2)
    assert _contents(out) == _contents(tmp_path / "two")
    make_shards(tmp_path / "other", Folder(images, seed=1), samples_per_shard=10, workers=0)
    assert _contents(out) != _contents(tmp_path / "other")


def test_keys_stay_unique(tmp_path):
    root = tmp_path / "r"
    (root / "x").mkdir(parents=True)
    for name in ("a.b.jpg", "a_b.jpg", "a_b.png"):
        (root / "x" / name).write_bytes(b"1")
    assert sorted(file.key for file in Folder(root).files()) == ["x/a_b", "x/a_b_2", "x/a_b_3"]


def test_folder_errors(tmp_path, images):
    with pytest.raises(ShardError, match=r"nowhere. is not a directory"):
        make_shards(tmp_path / "o", Folder(tmp_path / "nowhere"))
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.jpg").write_bytes(b"")
    with pytest.raises(ShardError, match=r"flat.* has no sub-directory"):
        make_shards(tmp_path / "o", Folder(tmp_path / "flat"))
    (tmp_path / "flat" / "empty").mkdir()
    with pytest.raises(ShardError, match=r"flat.* has no image .* in its sub-directories"):
        make_shards(tmp_path / "o", Folder(tmp_path / "flat"))
    with pytest.raises(ValueError, match=r"samples: expected at most the 25 images"):
        make_shards(tmp_path / "o", Folder(images), 26)
    with pytest.raises(ValueError, match=r"out: .* lies inside"):
        make_shards(images / "shards", Folder(images))
    (images / "ant" / ("n" * 120 + ".jpg")).write_bytes(b"")
    with pytest.raises(ShardError, match="names in a tar have at most 100 bytes"):
        make_shards(tmp_path / "o", Folder(images))


def test_a_file_lost_on_the_way_is_named_and_leaves_no_half_shard(tmp_path, images):
    (images / "bee" / "gone.jpg").symlink_to(tmp_path / "gone.jpg")
    for workers in (0, 2):
        with pytest.raises(ShardError, match=r"cannot read .*gone\.jpg"):
            make_shards(tmp_path / "o", Folder(images), workers=workers)
        assert list((tmp_path / "o").iterdir()) == []


def test_out_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ShardError, match=r"cannot write shards in .*file"):
        make_shards(tmp_path / "file", SMALL, 2)
    with pytest.raises(ShardError, match=r"cannot make shards in .*file"):
        SyntheticShards(out=tmp_path / "file", train=1, val=1)()


def test_synthetic_shards_are_made_once(tmp_path):
    make = SyntheticShards(
        out=tmp_path / "s", train=6, val=3, photos={"size": 32}, samples_per_shard=4, workers=0
    )
    make = pickle.loads(pickle.dumps(make))
    assert make() == tmp_path / "s"
    names = {"train-000000.tar", "train-000001.tar", "val-000000.tar"}
    made = _contents(tmp_path / "s")
    assert set(made) == names
    stamps = [path.stat().st_mtime_ns for path in sorted((tmp_path / "s").glob("*.tar"))]
    make()
    assert stamps == [path.stat().st_mtime_ns for path in sorted((tmp_path / "s").glob("*.tar"))]
    assert made["train-000000.tar"][:20000] != made["val-000000.tar"][:20000]
    other = SyntheticShards(out=tmp_path / "s", train=7, val=3, photos={"size": 48}, samples_per_shard=4)
    with pytest.raises(
        ShardError, match=r"photos\.size .*, train \(6 there, 7 wished\); choose another out="
    ):
        other()
    (tmp_path / "s" / "val-000000.tar").unlink()
    make()
    assert _contents(tmp_path / "s") == made
    (tmp_path / "s" / "shards.json").write_text("{")
    with pytest.raises(ShardError, match=r"shards\.json is damaged"):
        make()


def test_a_half_made_set_is_made_anew(tmp_path):
    make = SyntheticShards(out=tmp_path, train=6, val=3, photos=SMALL, samples_per_shard=2, workers=0)
    make()
    made = _contents(tmp_path)
    (tmp_path / "shards.json").unlink()
    (tmp_path / "train-000002.tar").rename(tmp_path / "train-000007.tar")
    (tmp_path / ".val-000000.tar.tmp").write_bytes(b"half")
    make()
    assert _contents(tmp_path) == made
    assert not list(tmp_path.glob(".*.tmp"))


def test_many_callers_one_worker(tmp_path):
    make = SyntheticShards(out=tmp_path, train=20, val=4, photos=SMALL, workers=0)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: make(), range(4))) == [tmp_path] * 4
    assert set(_contents(tmp_path)) == {"train-000000.tar", "val-000000.tar"}


def test_config_nodes_are_taken(tmp_path):
    hydra = pytest.importorskip("hydra.utils")
    from omegaconf import OmegaConf

    node = {"out": str(tmp_path), "train": 2, "val": 1, "photos": {"size": [[32, 40], 48], "classes": 3}}
    config = OmegaConf.create({"_target_": "tarpeg.datasets.prepare.SyntheticShards", **node})
    made = hydra.instantiate(config)
    assert made.photos == Photos(size=((32, 40), 48), classes=3)
    assert pickle.loads(pickle.dumps(made)) == made
    made()
    hydra.instantiate(config)()


@pytest.mark.parametrize("bad", [{"train": 0}, {"val": "x"}, {"photos": {"hue": 3}}, {"photos": {"size": 1}}])
def test_synthetic_shards_check_when_built(tmp_path, bad):
    with pytest.raises(ValueError, match=r"train:|val:|no field 'hue'|size:"):
        SyntheticShards(out=str(tmp_path), **bad)


def test_folder_shards_split_evenly(tmp_path, images):
    make = FolderShards(root=images, out=tmp_path / "o", val_share=0.25, workers=0)
    make()
    train, val = (_members(tmp_path / "o" / f"{split}-000000.tar") for split in ("train", "val"))
    assert not set(train) & set(val)
    labels = [int(data) for name, data in val.items() if name.endswith(".cls")]
    assert len(train) + len(val) == 50
    assert [labels.count(label) for label in range(3)] == [1, 2, 3]
    make()
    with pytest.raises(ShardError, match=r"val_share \(0\.25 there, 0\.5 wished\)"):
        FolderShards(root=images, out=tmp_path / "o", val_share=0.5)()
    with pytest.raises(ShardError, match=r"val_share=0\.01 of the 25 images .* leaves no image for val"):
        FolderShards(root=images, out=tmp_path / "p", val_share=0.01, workers=0)()
    with pytest.raises(ValueError, match="val_share=1 must be between 0 and 1"):
        FolderShards(root=images, out=tmp_path / "p", val_share=1)


def test_folder_shards_of_a_folder_that_changed(tmp_path, images, caplog):
    make = FolderShards(root=images, out=tmp_path / "o", workers=0)
    make()
    make()
    assert caplog.messages == [f"packing the images of {images} into {tmp_path / 'o'} (once)"]
    os.utime(images / "ant" / "0.v1.JPG", (0, 0))
    with pytest.raises(ShardError, match=r"packed from \(other names, sizes or dates of files\): choose"):
        make()
    (images / "dog").mkdir()
    (images / "dog" / "one.jpg").write_bytes(photograph(SMALL, 0).jpeg)
    with pytest.raises(
        ShardError,
        match=r"the images in .*images .* \(dog: 0 then, 1 now\): .*data\.prepare\.out=NEW.*or delete /",
    ):
        make()
    made = tmp_path / "o" / "shards.json"
    content = json.loads(made.read_text())
    made.write_text(json.dumps({name: content[name] for name in ("parameters", "shards")}))
    make()  # packed before there was such a check
    made.write_text(json.dumps(content))
    images.rename(tmp_path / "elsewhere")
    assert make() == tmp_path / "o"


def test_folder_shards_take_train_and_val_as_they_are(tmp_path, images):
    root = tmp_path / "root"
    root.mkdir()
    images.rename(root / "train")
    (root / "val" / "cat").mkdir(parents=True)
    (root / "val" / "cat" / "one.jpg").write_bytes(photograph(SMALL, 0).jpeg)
    FolderShards(root=root, out=root / "shards", workers=0)()
    assert _members(root / "shards" / "val-000000.tar")["cat/one.cls"] == b"2"
    assert len(_members(root / "shards" / "train-000000.tar")) == 50
    (root / "val" / "dog").mkdir()
    with pytest.raises(ShardError, match=r"dog is not one of the"):
        FolderShards(root=root, out=tmp_path / "o", workers=0)()


def _run(*arguments, cwd):
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_tool_draws_and_packs(tmp_path, images):
    done = _run("out=a", "samples=10", "size=32", "samples_per_shard=4", "seed=3", "exif=0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("3 shards in a: 10 samples, ")
    assert "bits a pixel" in done.stdout
    make_shards(tmp_path / "b", Photos(size=32, seed=3, exif=0.5), 10, samples_per_shard=4)
    assert _contents(tmp_path / "a") == _contents(tmp_path / "b")
    done = _run("out=c", "source=folder", f"root={images}", cwd=tmp_path)
    assert done.stdout.startswith("1 shards in c: 25 samples, ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "images"]


@SLOW
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["samples=3"], "make_shards: out: which directory? give out=DIR"),
        (["out=o", "source=folder"], "make_shards: root: which directory? give root=DIR"),
        (["out=o", "source=folder", "root=nowhere"], "make_shards: root='nowhere' is not a directory"),
        (["out=o", "source=web"], "make_shards: source: expected synthetic or folder, got 'web'"),
        (["out=o", "gray=2"], "make_shards: gray: expected a share in 0..1, got 2"),
    ],
)
def test_tool_errors_are_one_line(tmp_path, arguments, message):
    done = _run(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@SLOW
def test_tool_unknown_key_and_help(tmp_path):
    done = _run("out=o", "sice=3", cwd=tmp_path)
    assert done.returncode == 1
    assert "'sice'" in done.stderr
    done = _run("--help", cwd=tmp_path)
    assert "python tools/make_shards.py out=DIR" in done.stdout
    assert list(tmp_path.iterdir()) == []


@SLOW
def test_a_killed_run_is_finished_by_the_next_and_leaves_no_process(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'datamodules')!r})\n"
        "from tarpeg.datasets.prepare import SyntheticShards\n"
        "photos = {'size': 128}\n"
        "SyntheticShards('s', 400, 20, photos, samples_per_shard=20, workers=2)()\n"
    )
    (tmp_path / "script.py").write_text(script)
    process = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "s" / "train-000002.tar").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(children) >= 2
    while any(Path(f"/proc/{child}/cmdline").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert time.monotonic() < deadline
    assert not (tmp_path / "s" / "shards.json").exists()
    photos = {"size": 128}
    SyntheticShards(out=tmp_path / "s", train=400, val=20, photos=photos, samples_per_shard=20)()
    assert len(_contents(tmp_path / "s")) == 21
    assert all(len(_members(path)) == 40 for path in (tmp_path / "s").glob("*.tar"))
    assert not list((tmp_path / "s").glob(".*.tmp"))
