"""make_shards: the bytes do not depend on processes, webdataset reads them, shards are whole or missing."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import tarpeg
import webdataset
from helpers.scripts import PATHS, run_tool
from helpers.small_tars import members, tars, write_tar
from hydra import compose, initialize
from omegaconf import OmegaConf
from tarpeg.datasets.synthetic import Photos, label_of, photograph
from tarpeg.datasets.writer import make_shards
from tarpeg.errors import ShardError
from tarpeg.shards import folder
from tarpeg.shards.folder import Folder
from tarpeg.shards.mapped import Shards
from tarpeg_hydra.make_shards import source_of

SLOW = pytest.mark.slow
SMALL = Photos(size=32)


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=SLOW), pytest.param(3, marks=SLOW)])
def test_the_same_bytes_for_any_number_of_processes(tmp_path, workers):
    photos = Photos(size=[32, 48], progressive=0.3, gray=0.2, exif=0.3, corrupt=0.1)
    make_shards(tmp_path / "a", photos, 50, samples_per_shard=20, workers=0)
    make_shards(tmp_path / "b", photos, 50, samples_per_shard=20, workers=workers)
    assert tars(tmp_path / "a") == tars(tmp_path / "b")


@pytest.mark.slow
def test_scripts_need_no_main_guard_and_no_file(tmp_path):
    script = PATHS + "import tarpeg; tarpeg.make_shards('o', {'size': 16}, 40, workers=2)"
    done = subprocess.run([sys.executable, "-"], input=script, cwd=tmp_path, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(members(tmp_path / "o" / "train-000000.tar")) == 80


def test_report_members_and_what_webdataset_reads(tmp_path):
    report = make_shards(tmp_path, SMALL, 25, prefix="val", samples_per_shard=10, workers=0)
    assert [path.name for path in report.shards] == [f"val-{n:06d}.tar" for n in range(3)]
    shards = [members(path) for path in report.shards]
    assert [len(shard) for shard in shards] == [20, 20, 10]
    together = {name: data for shard in shards for name, data in shard.items()}
    assert len(together) == 50
    jpegs = [data for name, data in together.items() if name.endswith(".jpg")]
    assert (report.samples, report.bytes) == (25, sum(map(len, jpegs)))
    assert report.bits_per_pixel == pytest.approx(8 * report.bytes / (25 * 32 * 32))
    assert together["00000013.jpg"] == photograph(SMALL, 13, "val").jpeg
    assert together["00000013.cls"] == str(label_of(SMALL, 13, "val")).encode()
    assert sorted(tmp_path.glob("*.tar")) == [*report.shards]
    read = webdataset.WebDataset([str(path) for path in report.shards], shardshuffle=False).decode("pil")
    labels = [(image.size, label) for image, label in read.to_tuple("jpg", "cls")]
    assert labels == [((32, 32), label_of(SMALL, index, "val")) for index in range(25)]


def test_earlier_shards_are_replaced_and_shards_of_others_are_not(tmp_path):
    make_shards(tmp_path, SMALL, 9, samples_per_shard=3, workers=0)
    for left_by_a_kill in (".train-000001.tar.tmp", ".train-000001.tar.12-ab.tmp"):
        (tmp_path / left_by_a_kill).write_bytes(b"half")
    Shards(sorted(tmp_path.glob("*.tar")))  # writes indexes beside them
    make_shards(tmp_path, SMALL, 4, samples_per_shard=3, workers=0)
    names = [f"train-00000{number}.{kind}" for number in (0, 1) for kind in ("tar", "tarpeg.sizes")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    foreign = write_tar(tmp_path / "val-000000.tar", [("a.txt", b"")])
    before = foreign.read_bytes()
    with pytest.raises(ShardError, match=r"val-000000\.tar .*make_shards.* out"):
        make_shards(tmp_path, SMALL, 4, prefix="val", workers=0)
    assert foreign.read_bytes() == before


def test_shards_of_another_source_are_only_replaced_if_asked(tmp_path, images):
    out, pack = tmp_path / "o", partial(make_shards, workers=0, samples_per_shard=10)
    pack(out, Folder(images))
    before = tars(out)
    (tmp_path / "other" / "bee").mkdir(parents=True)
    (tmp_path / "other" / "bee" / "0.v1.JPG").write_bytes(b"other image of the same key")
    for source in (SMALL, Folder(tmp_path / "other")):
        with pytest.raises(ShardError, match=r"train-000000\.tar .*replace=True"):
            pack(out, source, 1)
        assert tars(out) == before
    pack(out, Folder(images, seed=1), 12)
    assert len(tars(out)) == 2, "another order of the same images"
    (out / "train-000000.tar").unlink()
    pack(out, Folder(images))
    assert tars(out) == before
    pack(out, SMALL, 11, replace=True)
    (out / "train-000000.tar").unlink()
    pack(out, SMALL, 3)
    with pytest.raises(ShardError, match="another source"):
        pack(out, Photos(size=32, seed=1), 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("samples", 0), ("samples", "9"), ("samples_per_shard", 0)),
        *(("workers", -1), ("prefix", "a/b"), ("prefix", "")),
    ],
)
def test_arguments_out_of_range_raise(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"^{name}={value!r} must "):
        make_shards(tmp_path, SMALL, **{"samples": 4, name: value})


def test_a_folder_is_packed_unchanged_as_build_cache_packs_it(tmp_path, images, monkeypatch):
    out = tmp_path / "out"
    report = make_shards(out, Folder(images), samples_per_shard=10, workers=0)
    assert report.samples == 25
    assert json.loads((out / "classes.json").read_text()) == {"ant": 0, "bee": 1, "cat": 2}
    together = {name: data for path in report.shards for name, data in members(path).items()}
    assert together["bee/0_v1.jpg"] == (images / "bee" / "0.v1.JPG").read_bytes()
    assert together["cat/deep/3_v1.jpg"] == (images / "cat" / "deep" / "3.v1.JPG").read_bytes()
    assert together["ant/flat.png"] == (images / "ant" / "flat.png").read_bytes()
    assert together["bee/0_v1.cls"] == b"1"
    keys = [name for name in together if name.endswith(".cls")]
    assert len(keys) == 25 and keys != sorted(keys)
    tarpeg.build_cache(Folder(images), tmp_path / "cache", tarpeg.Original(), executor=0)
    assert members(tmp_path / "cache" / "000000.tar") == together
    monkeypatch.setattr(subprocess, "Popen", None)  # reading files is no work for processes
    make_shards(tmp_path / "two", Folder(images), samples_per_shard=10, workers=2)
    assert tars(out) == tars(tmp_path / "two")
    make_shards(tmp_path / "other", Folder(images, seed=1), samples_per_shard=10, workers=0)
    assert tars(out) != tars(tmp_path / "other")


def test_keys_stay_unique(tmp_path):
    (tmp_path / "r" / "x").mkdir(parents=True)
    for name in ("a.b.jpg", "a_b.jpg", "a_b.png"):
        (tmp_path / "r" / "x" / name).write_bytes(b"1")
    keys = sorted(file.key for file in Folder(tmp_path / "r").files())
    assert keys == ["x/a_b", "x/a_b_2", "x/a_b_3"]


def test_folder_errors(tmp_path, images):
    out = tmp_path / "o"
    with pytest.raises(ShardError, match="nowhere"):
        make_shards(out, Folder(tmp_path / "nowhere"))
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.jpg").write_bytes(b"")
    with pytest.raises(ShardError, match=r"flat.* has no sub-directory"):
        make_shards(out, Folder(tmp_path / "flat"))
    (tmp_path / "flat" / "empty").mkdir()
    with pytest.raises(ShardError, match=r"flat.* no image"):
        make_shards(out, Folder(tmp_path / "flat"))
    for name in "bc":
        (tmp_path / "flat" / f"{name}.jpg").write_bytes(b"")
    (tmp_path / "flat" / "empty" / "d.jpg").write_bytes(b"")
    text = r"flat' .*\b3 images .*a\.jpg, and 1 "
    with pytest.raises(ShardError, match=text):
        make_shards(out, Folder(tmp_path / "flat"))
    with pytest.raises(ValueError, match=r"^samples=26 .* 25"):
        make_shards(out, Folder(images), 26)
    with pytest.raises(ValueError, match=r"^out='.*shards' .*images"):
        make_shards(images / "shards", Folder(images))
    with pytest.raises(ShardError, match=r"shards in .*a\.jpg"):
        make_shards(tmp_path / "flat" / "a.jpg", SMALL, 2)
    with pytest.raises(ValueError, match=r"^out='' "):
        make_shards("", SMALL, 2)


def test_an_unreadable_file_raises_and_leaves_no_incomplete_shard(tmp_path, images, monkeypatch):
    (images / "bee" / "gone.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(ShardError, match=r"1 of \d+ images .*: .*gone\.jpg: No such"):
        make_shards(tmp_path / "o", Folder(images), workers=0)
    assert not (tmp_path / "o").exists(), "before anything is written"
    monkeypatch.setattr(folder, "stats_of", list)  # it disappears during the packing
    for workers in (0, 2):
        with pytest.raises(ShardError, match=r"gone\.jpg: No such"):
            make_shards(tmp_path / "o", Folder(images), workers=workers)
        assert list((tmp_path / "o").iterdir()) == []


@functools.cache
def settings():
    with initialize(version_base="1.3", config_path="pkg://tarpeg.conf"):
        return compose("make_shards", ["out=o"])


def source(*overrides):
    """The source that the tool makes of these settings."""
    return source_of(OmegaConf.merge(settings(), OmegaConf.from_dotlist(list(overrides))))


def test_settings_of_the_tool_are_those_of_the_source():
    coco = ["source=coco", "images=i", "annotations=a.json"]
    assert source(*coco) == tarpeg.Coco("i", "a.json")
    given = source(*coco, "masks=m", "keep_empty=false", "crowds=false", "seed=3")
    assert given == tarpeg.Coco("i", "a.json", masks="m", keep_empty=False, crowds=False, seed=3)
    voc = source("source=voc", "root=r", "split=Main/val", "classes=[a,b]", "one_based=false")
    assert voc == tarpeg.Voc("r", "Main/val", classes=["a", "b"], one_based=False)
    yolo = source("source=yolo", "root=r", "names={0: a}", "task=pose", "kpt_shape=[2,3]")
    assert yolo == tarpeg.Yolo("r", names={0: "a"}, task="pose", kpt_shape=[2, 3])
    assert source("source=folder", "images=i", "masks=m") == tarpeg.MaskFolder("i", "m")
    assert source("source=folder", "root=r", "seed=2") == Folder("r", 2)
    scenes = source("source=scenes", "classes=2", "size=64", "objects=[2,2]")
    assert scenes == tarpeg.Scenes(classes=2, size=64, objects=(2, 2))
    for overrides, message in (
        (["source=coco", "images=i"], "annotations is not set: pass annotations=FILE.json"),
        (["source=yolo", "root=r", "images=i"], r"images=i .* give source=coco or folder images="),
        (["source=folder", "root=r", "masks=m"], r"masks=m .* give source=coco or voc or folder images="),
        (["source=folder", "images=i"], "masks is not set: pass masks=DIR"),
    ):
        with pytest.raises(ValueError, match=message):
            source(*overrides)


tool = partial(run_tool, "make_shards")


def test_tool_draws_and_packs(tmp_path, images):
    photos = ("samples=10", "size=32", "samples_per_shard=4", "seed=3", "exif=0.5")
    done = tool("out=a", *photos, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 shards in a: 10 samples, ") and "bits per pixel" in done.stdout
    make_shards(tmp_path / "b", Photos(size=32, seed=3, exif=0.5), 10, samples_per_shard=4)
    assert tars(tmp_path / "a") == tars(tmp_path / "b")
    done = tool("out=c", "source=folder", f"root={images}", cwd=tmp_path)
    assert done.stdout.startswith("1 shard in c: 25 samples, ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "images"]


@SLOW
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["samples=3"], "make_shards: out is not set: pass out=DIR"),
        (["out=o", "root=x"], "make_shards: root=x is of images to pack: give source=folder or voc or yolo"),
        (["out=o", "source=folder"], "make_shards: root is not set: pass root=DIR"),
        (["out=o", "source=folder", "root=nowhere"], "make_shards: root='nowhere' is not a directory"),
        (
            ["out=o", "source=web"],
            "make_shards: source='web' must be synthetic, scenes, folder, coco, voc or yolo",
        ),
        (["out=o", "gray=2"], "make_shards: gray=2 must be a probability in 0..1"),
    ],
)
def test_tool_errors_are_one_line(tmp_path, arguments, message):
    done = tool(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(message) and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@SLOW
def test_tool_unknown_key_and_help(tmp_path):
    done = tool("out=o", "sice=3", cwd=tmp_path)
    assert done.returncode == 1 and "sice is not a setting; did you mean size?" in done.stderr
    assert "python tools/make_shards.py out=DIR" in tool("--help", cwd=tmp_path).stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_in_place_of_a_source_is_one_line(tmp_path, kind):
    with pytest.raises(
        ValueError, match=r"^source='.*pets' is a path: .* first, and then tarpeg\.Folder\(path\)"
    ):
        tarpeg.make_shards(tmp_path / "out", kind(tmp_path / "pets"))
