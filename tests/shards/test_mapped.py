"""Samples by number: grouping as webdataset's, access to mapped tars, and caches opened by their manifest."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import re
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.scripts import run_script
from helpers.small_caches import add_manifest, make_big_cache, make_cache
from helpers.small_tars import cache_home as cache_home, images, plain, write_tar
from tarpeg import CacheError, ShardError
from tarpeg.ops import decode
from tarpeg.shards.mapped import Shards
from tarpeg.shards.paths import expand
from tarpeg.shards.spans import Spans


def test_spans_are_the_images_without_a_tensor_of_each(photos):
    shards = Shards(sorted(photos.glob("*.tar")))
    assert [len(shards.spans(ids)) for ids in ([], range(23))] == [0, 23]
    for ids in ([3], [20, 3, 3, 14, 0], range(13, 23)):
        spans, expected = shards.spans(ids), shards.images(ids)
        assert spans.places.flags.c_contiguous and spans.nbytes.tolist() == list(map(len, expected))
        assert len(spans.memory) == len({shards.shard(id) for id in ids})
        found = spans.tensors(range(len(spans)))
        assert [each.data_ptr() for each in found] == [each.data_ptr() for each in expected]
        copies = Spans.of(expected)
        assert all(map(torch.equal, copies.tensors([0, len(copies) - 1]), [expected[0], expected[-1]]))
    with pytest.raises(IndexError):
        shards.spans([23])


# --- grouping


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_reads_the_samples_that_webdataset_reads(tmp_path, format):
    webdataset = pytest.importorskip("webdataset")
    folder, link = tarfile.TarInfo("f"), tarfile.TarInfo("f/link.jpg")
    folder.type = tarfile.DIRTYPE
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
        ("f/" * 80 + "deep.webp", b"long name"),
        ("ünï.cls", b"9"),
        ("ünï.tif", b"unicode"),
        ("zero.jpg", b""),
        (".hidden", b"ignored"),
    ]
    path = write_tar(tmp_path / "a.tar", members, format)
    shards = Shards([path])
    theirs = list(webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False))
    assert shards.keys(range(len(shards))) == [sample["__key__"] for sample in theirs]
    for i, sample in enumerate(theirs):
        data = {name: value for name, value in sample.items() if not name.startswith("__")}
        assert {name: shards.members([i], name)[0] for name in shards.extensions(i)} == data
    expected = [b"upper case", b"same name, other folder", b"image of b", b"the key again, not consecutive"]
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
        assert len(caught) == 1 and caught[0].filename == "tarpeg"
        assert images(shards) == [b"B", b"D"] and shards.members([1], "cls")[0] == b"4"


@pytest.mark.parametrize("several", [False, True])
def test_members_of_a_key_that_are_not_together_are_named_with_the_remedy(tmp_path, several):
    images = [(f"{key}.jpg", b"J") for key in ("b1", "a10", "a1", "a")]
    labels = [(f"{key}.cls", b"7") for key in ("a1", "b1", "a10")]
    path = write_tar(tmp_path / "a.tar", [("a.md", b""), *images, *labels, ("b.md", b"")])
    other = write_tar(tmp_path / "b.tar", [("a1.jpg", b"J"), ("a.cls", b"1"), ("a2.md", b"")])
    remedy = r"of key 'a' are not next to each other in the tar, .* --sort=name"
    for _ in range(2):  # of the tar, and of its index
        with pytest.warns(UserWarning) as caught:
            shards = Shards([path, other], several=several)
        one, two = (str(each.message) for each in caught)
        assert one.startswith(f"shard {path}: 5 samples have no image and are left out. The members")
        assert re.search(remedy, one) and "--sort" not in two and "the first is key 'a'" in two
    with pytest.raises(ShardError, match=rf"key 'a10' has no member 'cls', only \['jpg'\]. .*{remedy}"):
        shards.labels([1])
    with pytest.raises(ShardError, match=r"key 'a1' has no member 'cls', only \['jpg'\]. Write its label"):
        Shards.joined([shards, shards]).labels([4])
    with pytest.raises(ShardError, match=remedy):
        pickle.loads(pickle.dumps(Shards.joined([shards, shards]))).labels([5])


def test_a_key_of_several_samples_is_a_warning_with_the_remedy(tmp_path):
    names = [f"{key}.{kind}" for kind in ("jpg", "png") for key in ("b", "a")]  # images, then their masks
    path = write_tar(tmp_path / "a.tar", [(name, name.encode()) for name in names])
    for _ in range(2):  # of the tar, and of its index
        with pytest.warns(UserWarning, match=r"several samples have the key 'b', and all .* --sort=name"):
            shards = Shards([path])
        assert images(shards) == [name.encode() for name in names]
    with pytest.raises(ShardError, match=r"key 'a' has no member 'cls', only \['jpg'\].* --sort=name"):
        shards.labels([1])


def test_a_duplicate_extension_is_an_error_with_shard_and_key(tmp_path):
    path = write_tar(tmp_path / "dup.tar", [("x/k.jpg", b"1"), ("x/k.JPG", b"2")])
    with pytest.raises(ShardError, match=r"dup\.tar: key 'x/k' .*two .*'jpg'"):
        Shards([path])


# --- access


def test_ids_number_the_samples_of_all_shards_in_order(tmp_path):
    paths = [plain(tmp_path / "b.tar", 3), plain(tmp_path / "a.tar", 2, start=10)]
    shards = Shards(paths)
    assert len(shards) == 5
    assert images(shards) == [b"J0", b"J1", b"J2", b"J10", b"J11"]
    assert images(shards, np.array([4, 0, 4], np.int32)) == [b"J11", b"J0", b"J11"]
    assert shards.keys([2, 3]) == ["k0002", "k0010"]
    assert [shards.shard(i) for i in (2, 3)] == paths
    labels = shards.labels(torch.tensor([3, 1]))
    assert labels.tolist() == [10, 1] and labels.dtype == torch.int64
    assert shards.members([3], "cls")[0] == shards.members([3], ".CLS")[0] == b"10"
    assert shards.members([3], "json")[0] is None and shards.extensions(3) == ["jpg", "cls"]
    assert shards.images([]) == [] and shards.labels([]).shape == (0,)


def test_many_shards_opened_by_several_threads_stay_in_order(tmp_path):
    paths = [plain(tmp_path / f"{i}.tar", 1 + i % 3, start=3 * i) for i in range(300)]
    shards = Shards(paths)
    numbers = [3 * i + n for i in range(300) for n in range(1 + i % 3)]
    assert shards.labels(range(len(shards))).tolist() == numbers
    assert images(shards) == [b"J%d" % number for number in numbers]
    assert [shards.shard(id) for id in (0, len(shards) - 1)] == [paths[0], paths[-1]]


def test_images_are_views_and_ids_outside_are_refused(tmp_path):
    shards = Shards([plain(tmp_path / "a.tar")])
    first, again = shards.images([1, 1])
    assert first.dtype == torch.uint8 and first.dim() == 1 and first.data_ptr() == again.data_ptr()
    open_files = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    assert not [name for name in open_files if name.endswith("a.tar")]
    for ids in ([-1], [3], [0, 99]):
        for access in (shards.images, shards.labels, shards.keys):
            with pytest.raises(IndexError, match=r"^ids .*0\.\.2"):
                access(ids)
    with pytest.raises(TypeError, match=r"^ids "):
        shards.images([0.5])


def test_labels_of_different_extensions_and_forms(tmp_path):
    forms = [b"7", b" 8\n", b"-3\r\n", b"+4", b"0" * 20 + b"5", b"9223372036854775807"]
    members = [m for i, text in enumerate(forms) for m in ((f"{i}.jpg", b"."), (f"{i}.coarse", text))]
    shards = Shards([write_tar(tmp_path / "a.tar", members)])
    assert shards.labels(range(len(forms)), "coarse").tolist() == [7, 8, -3, 4, 5, 2**63 - 1]
    with pytest.raises(ShardError, match=r"a\.tar, key '0' .*'cls', .*\['jpg', 'coarse'\]"):
        shards.labels([0])


@pytest.mark.parametrize(
    "text", [b"", b" ", b"-", b"+ 1", b"1 2", b"1_0", b"0x1", b"9" * 19, b" " * 64 + b"1", b"1\0"]
)
def test_a_label_that_is_no_integer_is_found_among_others(tmp_path, text):
    forms = [b"1", text, b"-" + b"9" * 18, b"\t\v 12\f\r\n"]
    members = [m for i, label in enumerate(forms) for m in ((f"{i}.jpg", b"."), (f"{i}.cls", label))]
    shards = Shards([write_tar(tmp_path / "a.tar", members)])
    assert shards.labels([0, 2, 3]).tolist() == [1, 1 - 10**18, 12]
    with pytest.raises(ShardError, match=r"a\.tar, key '1': .*'cls' is .*64-bit"):
        shards.labels(range(4))


def test_maps_of_several_threads_stay_where_they_are(tmp_path, monkeypatch):
    """Two threads that map a tar at the same time must agree on one map: addresses of the other are freed."""
    shards, map_file = Shards([plain(tmp_path / "a.tar")]), decode.map_file
    barrier, found = threading.Barrier(2), []
    monkeypatch.setattr(decode, "map_file", lambda *place: (barrier.wait(), map_file(*place))[1])
    threads = [threading.Thread(target=lambda: found.extend(shards.images([0, 2]))) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 4 and len({image.data_ptr() for image in found}) == 2
    assert shards._addresses.tolist() == [found[0].untyped_storage().data_ptr()]


def test_pickles_without_maps_and_works_in_a_spawned_process(tmp_path):
    shards = Shards([plain(tmp_path / "a.tar", 50)])
    expected = images(shards)
    shards.labels([0])
    assert len(pickle.dumps(shards)) < 50 * 100 + 3000
    assert images(pickle.loads(pickle.dumps(shards))) == expected
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(images, (shards,)) == expected


def test_shards_with_many_and_with_different_extensions(tmp_path):
    many = [(f"a.x{i}", b"") for i in range(300)]
    a = write_tar(tmp_path / "a.tar", [("a.jpg", b"A"), ("a.cls", b"1"), *many])
    b = write_tar(tmp_path / "b.tar", [("b.x7", b"seven"), ("b.cls", b"2"), ("b.png", b"B")])
    shards = Shards([a, b])
    assert images(shards) == [b"A", b"B"] and shards.labels([1, 0]).tolist() == [2, 1]
    assert shards.members([1], "x7")[0] == b"seven" and shards.extensions(1) == ["x7", "cls", "png"]
    assert len(shards.extensions(0)) == 302


def test_a_tar_that_changed_or_was_removed_after_indexing_is_an_error(tmp_path):
    path = plain(tmp_path / "a.tar", 30)
    shards = Shards([path])
    plain(path, 3)
    with pytest.raises(ShardError, match=r"a\.tar changed"):
        shards.images([0])
    path.unlink()
    with pytest.raises(ShardError, match=r"a\.tar .*mapped"):
        shards.labels([0])


def replaced(path, members):
    """Replace a tar by one of the same size and time of modification."""
    before = path.stat()
    write_tar(path, members)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


@pytest.mark.parametrize("name", ["", "ü" * 70])
def test_a_tar_that_was_replaced_by_one_of_the_same_size_and_time(tmp_path, name):
    """Before, "b" had the image and the label of "x"."""
    first, last = [(f"{name}a.jpg", b"A"), (f"{name}a.cls", b"1")], [(f"{name}c.jpg", b"C")]
    path = write_tar(tmp_path / "a.tar", [*first, (f"{name}b.jpg", b"B"), (f"{name}b.cls", b"2"), *last])
    opened = Shards([path])
    replaced(path, [*first, (f"{name}x.jpg", b"X"), (f"{name}x.cls", b"3"), *last])
    stale = Shards([path])  # the last sample, compared when a saved index is loaded, is the same
    assert stale.keys([1])[0] == f"{name}b" and images(stale, [0, 2]) == [b"A", b"C"]
    message = rf"a\.tar, key '{name}x': the index has '{name}b' .*replaced"
    for read in (lambda: stale.images([1]), lambda: opened.labels([1]), lambda: opened.members([1], "cls")):
        with pytest.raises(ShardError, match=message):
            read()
    again = Shards([path])
    assert (again.keys([1])[0], images(again), again.labels([0, 1]).tolist()) == (
        f"{name}x",
        [b"A", b"X", b"C"],
        [1, 3],
    )
    replaced(path, [*first, *last, (f"{name}d.cls", b"4"), (f"{name}d.jpg", b"D")])
    other = Shards([path])
    assert other.keys(range(3)) == [f"{name}{key}" for key in "acd"] and other.labels([2]) == 4


def test_a_label_that_has_become_shorter_is_not_read_with_its_old_size(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"A"), ("a.cls", b"12"), ("b.jpg", b"B")])
    Shards([path])
    replaced(path, [("a.jpg", b"A"), ("a.cls", b"3"), ("b.jpg", b"B")])
    with pytest.raises(ShardError, match=r"a\.tar, key 'a': .*'cls', 1536, 2"):
        Shards([path]).labels([0])
    assert Shards([path]).labels([0]) == 3


def test_unusual_headers_are_compared_with_the_whole_tar_once(tmp_path, monkeypatch):
    path = plain(tmp_path / "a.tar")
    data = bytearray(path.read_bytes())
    for header in range(0, 6 * 1024, 1024):
        data[header + 124 : header + 136] = (1 << 95 | data[header + 134] - 48).to_bytes(
            12, "big"
        )  # base 256
        data[header + 148 : header + 156] = b" " * 8
        data[header + 148 : header + 156] = b"%06o\0 " % sum(data[header : header + 512])
    path.write_bytes(data)
    shards = Shards([path])
    assert images(shards) == [b"J0", b"J1", b"J2"] and shards.labels([2]) == 2
    monkeypatch.setattr("tarpeg.shards.mapped.rebuild", lambda path: pytest.fail("read again"))
    assert images(shards) == [b"J0", b"J1", b"J2"]


def test_opening_shards_imports_nothing_else():
    """No operators, no painter of synthetic scenes, no cache builder."""
    done = run_script("import sys, tarpeg.shards.mapped, tarpeg.shards.paths; print(*sys.modules)")
    imported = set(done.stdout.split())
    assert "tarpeg.shards.paths" in imported, done
    rooms = {name.split(".")[1] for name in imported if name.startswith("tarpeg.")}
    assert rooms <= {"shards", "errors", "files", "progress", "remedies"}
    assert not imported & {"lightning", "hydra", "PIL.ImageDraw", "PIL.ImageFont"}


# --- caches


@pytest.fixture
def cache(tmp_path):
    """A cache of 20 shards of 3 samples, each with the label 7."""
    shards = {}
    for shard in range(20):
        samples = ((f"f/k{shard}{n}", b"J%d%d" % (shard, n)) for n in range(3))
        shards[f"train-{shard}"] = [
            m for key, data in samples for m in ((key + ".jpg", data), (key + ".cls", b"7"))
        ]
    return make_cache(tmp_path / "cache", shards)


def test_a_cache_reads_like_the_tars_in_it(cache, tmp_path):
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
        assert (shards.keys([id])[0], shards.shard(id).name) == (others.keys([id])[0], others.shard(id).name)
        assert shards.extensions(id) == others.extensions(id) == ["jpg", "cls"]
        assert shards.members([id], "cls")[0] == b"7"


def test_opening_a_cache_reads_no_tar_and_writes_nothing(cache, cache_home, tmp_path):
    tar = cache / "train-0.tar"
    tar.write_bytes(bytes(tar.stat().st_size))
    assert len(Shards(expand(cache))) == 60
    assert not list(cache.glob("*.index")) and not list(cache_home.rglob("*.index"))
    shards = Shards([cache / "train-1.tar", plain(tmp_path / "other.tar"), tar])
    assert shards.keys([0, 3, 6]) == ["f/k10", "k0000", "f/k00"]


def test_a_part_of_a_cache_may_be_copied(cache):
    for name in ("train-2.tar", "train-2.idx"):
        (cache / name).unlink()
    assert len(Shards(expand(f"{cache}/train-{{0..1}}.tar"))) == 6
    for source in (cache, f"{cache}/*.tar", f"{cache}/train-*"):
        with pytest.raises(CacheError, match=r"train-2\.tar.* manifest\.json"):
            Shards(expand(source))
    assert len(Shards(expand(f"{cache}/train-1*"))) == 33


def test_files_that_do_not_match_the_manifest(cache):
    def refused(message):
        with pytest.raises(CacheError, match=message):
            Shards(expand(cache))

    tar, idx = cache / "train-2.tar", cache / "train-2.idx"
    content, text = tar.read_bytes(), idx.read_bytes()
    idx.unlink()
    refused(r"train-2\.idx, which .* run its build again")
    idx.write_bytes((cache / "train-1.idx").read_bytes())
    refused(r"train-2\.idx .*damaged.*checksum")
    idx.write_bytes(text)
    tar.write_bytes(content + bytes(512))
    refused(r"train-2\.tar has 10752 bytes, but 10240 in manifest\.json")
    tar.write_bytes(content)
    manifest = json.loads((cache / "manifest.json").read_bytes())
    for entry, samples in zip(manifest["shards"][:2], (2, 4), strict=True):
        entry["samples"] = samples
        entry["tiles"]["32"] = samples
    (cache / "manifest.json").write_text(json.dumps(manifest))
    refused(r"train-0\.idx has 3 samples, but 2 in manifest\.json")
    plain(cache / "train-extra.tar")
    refused(r"train-extra\.tar .*manifest\.json.* 20\b")


def test_every_damage_to_one_character_of_an_index_is_found(tmp_path):
    """Without the checksum in the manifest, "12.cls" of 2 bytes became 1: label 1, silently."""
    cache = make_cache(
        tmp_path, {"a": [("a.jpg", b"AB"), ("a.cls", b"12"), ("b.jpg", b"B"), ("b.cls", b"3")]}
    )
    idx = cache / "a.idx"
    text = idx.read_bytes()
    assert Shards(expand(cache)).labels([0, 1]).tolist() == [12, 3]
    for place in range(len(text)):
        for bit in (1, 4, 32):
            idx.write_bytes(bytes([*text[:place], text[place] ^ bit, *text[place + 1 :]]))
            with pytest.raises(CacheError, match=r"a\.idx .*damaged"):
                Shards([cache / "a.tar"])


@pytest.mark.parametrize("name", ["train-2.tar", "train-2.idx", "manifest.json"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_files_of_a_cache_that_are_no_files(cache, name, make):
    """A FIFO would wait for a writer, a device never ends."""
    (cache / name).unlink()
    make(cache / name)
    message = (
        rf"{name} has \d+ bytes" if name.endswith("tar") else rf"{name}.* cannot be read: it is not a regular"
    )
    with pytest.raises(CacheError, match=message):
        Shards([cache / "train-2.tar"])


def test_a_shard_of_a_cache_that_does_not_belong_to_its_index(cache):
    members = [m for n in range(3) for m in ((f"f/x2{n}.jpg", b"J2%d" % n), (f"f/x2{n}.cls", b"7"))]
    replaced(cache / "train-2.tar", members)
    shards = Shards(expand(f"{cache}/train-[12].tar"))
    assert images(shards, range(3)) == [b"J10", b"J11", b"J12"]
    message = r"train-2\.tar, key 'f/x20': .*'f/k20' .* Copy .* again, .* train-2\.tar"
    for read in (lambda: shards.images([4]), lambda: shards.labels([3])):
        with pytest.raises(CacheError, match=message):
            read()
    assert not list(cache.glob("*.index"))


def test_refused_manifests_and_unfinished_builds_are_errors_of_every_source(cache):
    """Which manifests are refused, and the messages: test_manifest.py."""
    (cache / "manifest.json").write_text('{"format": "other"}')
    for read, source in ((expand, cache), (expand, f"{cache}/*.tar"), (Shards, [cache / "train-0.tar"])):
        with pytest.raises(CacheError, match=r"format .*'other'"):
            read(source)
    (cache / "manifest.json").unlink()
    (cache / ".building").mkdir()
    for source in (cache, f"{cache}/train-*.tar"):
        with pytest.raises(CacheError, match="not finished"):
            expand(source)
    add_manifest(cache)
    assert len(Shards(expand(cache))) == 60


MEASURE = """
import json, os, time
import numpy, torch, tarpeg
from tarpeg.ops import decode
from tarpeg.shards.mapped import Shards

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

tarpeg.decode_batch
before = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # resets VmHWM
started = time.process_time()  # of all threads: independent of other load on the machine
split = tarpeg.Split(folder, tarpeg.RandomResizedCrop(8))
config = tarpeg.LoaderConfig(64, workers=0, threads=2)
loader = tarpeg.Loader(split, keys=True, config=config)
batch = next(iter(loader))
seconds = time.process_time() - started
started = time.process_time()
Shards(links)
indexed = (time.process_time() - started) * 1000 / len(links)
measured = {"seconds": seconds, "indexed": indexed, "before": before, "added": memory("VmHWM") - before}
loader.close()
print(json.dumps(measured | {"files": len(os.listdir("/proc/self/fd")), "keys": batch.key}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads its memory from /proc")
def test_a_cache_as_large_as_imagenet_opens_at_once(tmp_path):
    """Against indexing the same tars, because machines differ: two seconds against minutes."""
    make_big_cache(tmp_path / "cache")
    # Links to one file are refused as one shard; copies would be gigabytes.
    links_are_shards = "from tarpeg.shards import paths\npaths.identity = paths.resolved\n"
    script = f"{links_are_shards}folder = {str(tmp_path / 'cache')!r}\n"
    runs = []
    for run in range(3):
        (tmp_path / str(run)).mkdir()
        links = [str(tmp_path / str(run) / f"{number}.tar") for number in range(10)]
        for link in links:
            os.link(tmp_path / "cache" / "train-0000.tar", link)
        runs.append(json.loads(run_script(f"{script}links = {links}\n{MEASURE}").stdout))
    assert len(set(runs[0]["keys"])) > 50
    assert max(run["indexed"] / run["seconds"] for run in runs) > 20, runs
    assert max(run["added"] for run in runs) < 200, runs
    assert max(run["files"] for run in runs) < 24, runs
