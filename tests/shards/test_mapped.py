from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.small_tars import cache_home as cache_home
from helpers.small_tars import images, plain, write_tar
from tarpeg.errors import ShardError
from tarpeg.shards.mapped import Shards

# --- grouping


def test_reads_what_webdataset_reads(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    long = "f/" * 80 + "deep"
    folder = tarfile.TarInfo("f")
    folder.type = tarfile.DIRTYPE
    link = tarfile.TarInfo("f/link.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "a.jpg"
    members = [
        ("__meta__", b"skipped"),
        ("__dir__/x.jpg", b"skipped"),
        folder,
        ("f/a.JPG", b"upper case"),
        link,
        ("f/a.CLS", b"1"),
        ("g/a.jpg", b"same name, other folder"),
        ("noextension", b"ignored"),
        ("b.c.d.jpg", b"not an image: extension c.d.jpg"),
        ("b.png", b"image of b"),
        ("f/a.jpg", b"the key again, not consecutive"),
        ("./v.1/dot.jpeg", b"dot in the folder"),
        (long + ".webp", b"long name"),
        ("ünï.cls", b"9"),
        ("ünï.tif", b"unicode"),
        ("zero.jpg", b""),
        (".hidden", b"ignored"),
    ]
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = write_tar(tmp_path / f"{format}.tar", members, format)
        shards = Shards([path])
        theirs = list(webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False))
        assert [shards.key(i) for i in range(len(shards))] == [sample["__key__"] for sample in theirs]
        for i, sample in enumerate(theirs):
            data = {name: value for name, value in sample.items() if not name.startswith("__")}
            assert {name: shards.member(i, name) for name in shards.extensions(i)} == data
        expected = [
            b"upper case",
            b"same name, other folder",
            b"image of b",
            b"the key again, not consecutive",
        ]
        assert images(shards) == [*expected, b"dot in the folder", b"long name", b"unicode", b""]
        assert shards.extensions(2) == ["c.d.jpg", "png"]


def test_image_preference_is_fixed(tmp_path):
    order = ["jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "ppm", "gif"]
    members = [(f"s{i}.{e}", e.encode()) for i in range(len(order)) for e in reversed(order[i:])]
    assert images(Shards([write_tar(tmp_path / "a.tar", members)])) == [e.encode() for e in order]


def test_samples_without_image_are_left_out_with_one_warning_each_time(tmp_path):
    members = [("a.cls", b"1"), ("b.jpg", b"B"), ("c.json", b"{}"), ("d.jpg", b"D"), ("d.cls", b"4")]
    path = write_tar(tmp_path / "a.tar", members)
    for _ in range(2):  # built, then loaded
        with pytest.warns(UserWarning, match=r"a\.tar: 2 samples have no image .* 'a'") as caught:
            shards = Shards([path])
        assert len(caught) == 1
        assert images(shards) == [b"B", b"D"]
        assert shards.member(1, "cls") == b"4"


def test_duplicate_extension_names_shard_and_key(tmp_path):
    path = write_tar(tmp_path / "dup.tar", [("x/k.jpg", b"1"), ("x/k.JPG", b"2")])
    with pytest.raises(ShardError, match=r"dup\.tar: key 'x/k' has two members 'jpg'"):
        Shards([path])


# --- access


def test_ids_run_through_the_shards_in_order(tmp_path):
    paths = [plain(tmp_path / "b.tar", 3), plain(tmp_path / "a.tar", 2, start=10)]
    shards = Shards(paths)
    assert len(shards) == 5
    assert images(shards) == [b"J0", b"J1", b"J2", b"J10", b"J11"]
    assert images(shards, np.array([4, 0, 4], np.int32)) == [b"J11", b"J0", b"J11"]
    assert [shards.key(i) for i in (2, 3)] == ["k0002", "k0010"]
    assert [shards.shard(i) for i in (2, 3)] == paths
    labels = shards.labels(torch.tensor([3, 1]))
    assert labels.tolist() == [10, 1] and labels.dtype == torch.int64
    assert shards.member(3, "cls") == shards.member(3, ".CLS") == b"10"
    assert shards.member(3, "json") is None
    assert shards.extensions(3) == ["jpg", "cls"]
    assert shards.images([]) == [] and shards.labels([]).shape == (0,)


def test_images_are_views_not_copies(tmp_path):
    shards = Shards([plain(tmp_path / "a.tar")])
    first, again = shards.images([1])[0], shards.images([1])[0]
    assert first.dtype == torch.uint8 and first.dim() == 1
    assert first.data_ptr() == again.data_ptr()
    open_files = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    assert not [name for name in open_files if name.endswith("a.tar")]


@pytest.mark.parametrize("ids", [[-1], [3], [0, 99]])
def test_ids_outside_are_refused(tmp_path, ids):
    shards = Shards([plain(tmp_path / "a.tar")])
    for access in (shards.images, shards.labels, lambda ids: shards.key(ids[-1])):
        with pytest.raises(IndexError, match=r"ids must be in 0\.\.2"):
            access(ids)
    with pytest.raises(TypeError, match="ids must be integers"):
        shards.images([0.5])


def test_labels_of_different_extensions_and_forms(tmp_path):
    forms = [b"7", b" 8\n", b"-3\r\n", b"+4", b"0" * 20 + b"5", b"9223372036854775807"]
    members = [m for i, text in enumerate(forms) for m in ((f"{i}.jpg", b"."), (f"{i}.coarse", text))]
    shards = Shards([write_tar(tmp_path / "a.tar", members)])
    assert shards.labels(range(len(forms)), "coarse").tolist() == [7, 8, -3, 4, 5, 2**63 - 1]
    with pytest.raises(ShardError, match=r"a\.tar, key '0' has no member 'cls', only \['jpg', 'coarse'\]"):
        shards.labels([0])


@pytest.mark.parametrize(
    "text",
    [
        b"cat",
        b"",
        b"1.0",
        b"1_0",
        b"1 2",
        b"9223372036854775808",
        b"x" * 5000,
        b"7" * 100,
        b"\xff\xfe",
        b"\x00",
    ],
)
def test_labels_that_are_no_integer(tmp_path, text):
    path = write_tar(tmp_path / "a.tar", [("g/k.jpg", b"."), ("g/k.cls", text)])
    with pytest.raises(
        ShardError, match=r"a\.tar, key 'g/k': member 'cls' is '.*', not a 64-bit integer"
    ) as error:
        Shards([path]).labels([0])
    assert len(str(error.value)) < 300 + len(str(path))


def _read_all(shards):
    return images(shards)


def test_pickles_without_maps_and_works_in_a_spawned_process(tmp_path):
    shards = Shards([plain(tmp_path / "a.tar", 50)])
    expected = images(shards)
    shards.labels([0])
    assert len(pickle.dumps(shards)) < 50 * 100 + 3000
    assert images(pickle.loads(pickle.dumps(shards))) == expected
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_read_all, (shards,)) == expected


def test_many_extensions_and_shards_of_different_tables(tmp_path):
    a = write_tar(
        tmp_path / "a.tar", [("a.jpg", b"A"), ("a.cls", b"1"), *((f"a.x{i}", b"") for i in range(300))]
    )
    b = write_tar(tmp_path / "b.tar", [("b.x7", b"seven"), ("b.cls", b"2"), ("b.png", b"B")])
    shards = Shards([a, b])
    assert images(shards) == [b"A", b"B"] and shards.labels([1, 0]).tolist() == [2, 1]
    assert shards.member(1, "x7") == b"seven" and shards.extensions(1) == ["x7", "cls", "png"]
    assert len(shards.extensions(0)) == 302


def test_a_tar_that_changed_or_went_after_indexing_is_an_error(tmp_path):
    path = plain(tmp_path / "a.tar", 30)
    shards = Shards([path])
    plain(path, 3)
    with pytest.raises(ShardError, match=r"a\.tar changed since it was indexed"):
        shards.images([0])
    path.unlink()
    with pytest.raises(ShardError, match=r"a\.tar cannot be mapped"):
        shards.labels([0])


def test_a_relative_path_survives_a_change_of_folder(tmp_path, monkeypatch):
    plain(tmp_path / "a.tar")
    monkeypatch.chdir(tmp_path)
    shards = Shards([Path("a.tar")])
    monkeypatch.chdir("/")
    assert images(shards, [2]) == [b"J2"] and shards.shard(0) == tmp_path / "a.tar"


def test_shards_import_neither_the_operators_nor_lightning():
    code = "import sys, tarpeg.shards.mapped; print(*sorted({'lightning', 'hydra', 'tarpeg.ops'} & set(sys.modules)))"
    root = str(Path(__file__).parents[2] / "datamodules")
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, capture_output=True
    )
    assert done.returncode == 0 and not done.stdout.strip(), done
