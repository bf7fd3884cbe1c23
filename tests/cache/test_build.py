"""Building a cache from local shards and folders: contents, repeated builds, errors."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import tarfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tarpeg
from helpers.odd_files import kernel_log, odd_files
from helpers.pictures import full, jpeg, picture, pixels, saved
from helpers.small_caches import contents, shard_files
from helpers.small_tars import members, sample, tars
from PIL import Image
from tarpeg import (
    CachedShards,
    CacheError,
    DecodeError,
    Folder,
    FolderShards,
    Layout,
    Original,
    Packed,
    Raw,
    Resized,
    ShardError,
    SyntheticShards,
    Tiled,
    build_cache,
    make_shards,
    verify_cache,
)
from tarpeg.cache import job
from tarpeg.cache.codecs import Encoded
from tarpeg.cache.report import left_out_lines, summarise_build, summarise_check
from tarpeg.shards import tar_writer
from tarpeg.shards.classes import stored_classes
from tarpeg.shards.folder import SHORTENED
from tarpeg.shards.manifest import read_manifest
from tarpeg.shards.mapped import Shards
from tarpeg.shards.paths import expand

build = partial(build_cache, executor=0)


def opened(folder: Path) -> Shards:
    return Shards(expand(folder))


def keys(folder: Path) -> list[str]:
    shards = opened(folder)
    return shards.keys(range(len(shards)))


def decoded(folder: Path) -> list[tuple[str, bytes]]:
    """Key and pixels of every sample."""
    images = opened(folder).images(range(len(keys(folder))))
    pixels = [full(image.numpy().tobytes()).numpy().tobytes() for image in images]
    return list(zip(keys(folder), pixels, strict=True))


@pytest.fixture
def source(photos, tmp_path) -> Path:
    """A folder with only the shards of photos."""
    folder = tmp_path / "source"
    folder.mkdir()
    for path in photos.glob("*.tar"):
        os.link(path, folder / path.name)
    return folder


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def test_a_cache_of_shards(source, cache):
    report = build(source, cache)
    kinds = ("tar", "idx", "tarpeg.sizes")
    assert set(contents(cache)) == {*(f"{name}.{kind}" for name in "ab" for kind in kinds), "manifest.json"}
    assert decoded(cache) == decoded(source)
    for name in ("a.tar", "b.tar"):
        before, after = members(source / name), members(cache / name)
        assert list(before) == list(after)
        assert all(after[member] == data for member, data in before.items() if member.endswith("cls"))
    assert (report.shards, report.built, report.samples, report.quarantine) == (2, 2, 23, ())
    assert sum(report.tiles.values()) == 23 and not report.untiled
    assert report.bytes == sum((cache / name).stat().st_size for name in ("a.tar", "b.tar"))
    manifest = read_manifest(cache)
    assert manifest.codec["parameters"] == {"tile": 32, "quality": None, "subsampling": "4:2:0"}
    assert [entry.samples for entry in manifest.shards] == [13, 10]

    def stats():  # without the locks, which old filelocks truncate
        return {path: path.stat() for path in cache.iterdir() if path.suffix != ".lock"}

    before = stats()
    again = build(source, cache)
    assert (again.built, again.shards, again.samples) == (0, 2, 23)
    assert stats() == before, "nothing is written again"


def test_other_members_are_carried_over_as_they_are(shard_of, cache):
    image = jpeg("420", 64, 80)
    extra = [("k.JPG", image), ("k.json", b"{}\n\x00"), ("k.seg.png", b"\x89mask"), ("k.cls", b" 7\n")]
    long = [("f/" * 80 + "é.jpg", jpeg("gray", 64, 80)), ("f/" * 80 + "é.txt", b"")]
    build([shard_of(extra, long)], cache)
    found = members(cache / "x.tar")
    assert list(found) == ["k.jpg", "k.json", "k.seg.png", "k.cls", "f/" * 80 + "é.jpg", "f/" * 80 + "é.txt"]
    assert [found["k.json"], found["k.seg.png"], found["k.cls"]] == [b"{}\n\x00", b"\x89mask", b" 7\n"]


def test_headers_are_those_of_tarfile():
    for name in ("a.jpg", "a" * 100, "a" * 101, "é.jpg", "x/y z.cls", "\udcff.jpg", "nul\0.jpg"):
        for size in (0, 1, 511, 10**6, 8**11 - 1, 8**11):
            assert tar_writer.tar_header(name, size) == tar_writer._tarfile_header(name, size)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout(), Layout(samples_per_shard=9)], ids=str)
def test_the_same_bytes_from_any_number_of_processes(source, tmp_path, layout):
    for workers in (0, 2):
        build_cache(source, tmp_path / str(workers), Tiled(), workers, layout=layout)
    assert contents(tmp_path / "0") == contents(tmp_path / "2")


@pytest.mark.parametrize("codec", [Resized(shorter=48), Raw(), Raw(shorter=48)])
def test_other_codecs(source, cache, codec):
    report = build(source, cache, codec)
    before, after = opened(source), opened(cache)
    assert len(after) == 23 and after.labels(range(23)).tolist() == [n % 5 for n in range(23)]
    for id in range(23):
        kept = codec.encode(before.images([id])[0].numpy().tobytes(), "jpg")
        assert after.images([id])[0].numpy().tobytes() == kept.data and kept.extension in after.extensions(id)
    assert bool(report.untiled) == isinstance(codec, Raw)


def test_original_files(tmp_path):
    images = tmp_path / "images"
    for number in range(9):
        path = images / ("cat", "dog")[number % 2] / (f"{number}.png" if number < 2 else f"{number}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        png = saved(Image.new("RGB", (9, 7)), "PNG")
        path.write_bytes(png if number < 2 else jpeg("420", 64, 80, number))
    make_shards(tmp_path / "shards", Folder(images), workers=0)
    report = build(images, tmp_path / "cache", Original())
    packed, kept = (opened(tmp_path / name) for name in ("shards", "cache"))
    assert packed.keys(range(len(packed))) == kept.keys(range(len(kept)))
    for one, two in zip(packed.images(range(len(packed))), kept.images(range(len(kept))), strict=True):
        assert (one.numpy() == two.numpy()).all()
    assert packed.labels(range(len(packed))).tolist() == kept.labels(range(len(kept))).tolist()
    assert report.untiled == {"kept as they are": report.samples} and not report.tiles
    assert verify_cache(tmp_path / "cache", 0).is_good
    (text,) = [line for line in summarise_build(report) if "kept" in line]
    assert text == "kept as they are: 9 images (100.0%)"
    again = build(tmp_path / "cache", tmp_path / "tiled")
    same = build(tmp_path / "tiled", tmp_path / "same", Original())
    assert same.tiles == again.tiles and tars(tmp_path / "same") == tars(tmp_path / "tiled")


def test_originals_that_cannot_be_decoded_are_no_problem_of_the_cache(tmp_path):
    for number in range(3):
        path = tmp_path / "images" / "cat" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg("420", 64, 80, number)[: 900 if number == 1 else None])
    build(tmp_path / "images", tmp_path / "cache", Original())
    report = verify_cache(tmp_path / "cache", 0)
    assert report.is_good and [problem.key for problem in report.undecodable] == ["cat/1"]
    assert "cannot be decoded, kept as in the source: 1 image, the first" in "\n".join(
        summarise_check(report)
    )
    (tar,) = (tmp_path / "cache").glob("*.tar")
    tar.write_bytes(tar.read_bytes().replace(b"cat/2", b"cat/3", 1))
    report = verify_cache(tmp_path / "cache", 0)
    assert not report.is_good and not report.undecodable


def test_small_sources_are_built_in_this_process_by_default(source, cache, monkeypatch):
    def refused(_, workers):
        raise CacheError(f"{workers} processes")

    monkeypatch.setattr("tarpeg.processes.ProcessExecutor.__init__", refused)
    monkeypatch.setattr("tarpeg.processes.usable_cores", lambda: 4)
    count = len(expand(source))
    assert count > 1 and build_cache(source, cache).built == count
    nbytes = sum(path.stat().st_size for path in expand(source))
    monkeypatch.setattr("tarpeg.cache.build._BYTES_PER_PROCESS", nbytes // 2)
    for layout in (None, Layout(samples_per_shard=2)):
        with pytest.raises(CacheError, match=r"^2 processes$"):
            build_cache(source, cache.parent / "large", layout=layout)
    monkeypatch.undo()
    monkeypatch.setattr("tarpeg.processes.ProcessExecutor.__init__", refused)
    with pytest.raises(CacheError, match=r"^2 processes$"):
        build_cache(source, cache.parent / "asked", executor=2)


def test_a_second_build_writes_missing_and_changed_shards(source, cache):
    build(source, cache)
    whole, seen = contents(cache), []
    (cache / "a.tar").unlink()
    report = build(source, cache, progress=seen.append)
    assert report.built == 1 and contents(cache) == whole
    assert [(now.shards, now.shards_total, now.kept) for now in seen] == [(1, 2, 1), (2, 2, 1)]
    assert seen[-1].samples == 23 and seen[-1].bytes == report.source_bytes

    (cache / "b.idx").unlink()
    assert build(source, cache).built == 1 and contents(cache) == whole
    os.utime(source / "b.tar", ns=(1, 1))
    assert build(source, cache).built == 1
    assert {**contents(cache), "manifest.json": b""} == {**whole, "manifest.json": b""}


def test_a_finished_cache_of_another_codec_is_only_replaced_if_asked(source, cache):
    build(source, cache)
    whole = contents(cache)
    names = r"finished cache of Tiled\(tile=32, .*, .*codec of this build is "
    for codec, name in {Raw(): r"Raw\(shorter=None\): choose", Tiled(tile=16): r"Tiled\(tile=16, "}.items():
        with pytest.raises(CacheError, match=f"{names}{name}.* or build with replace=True$"):
            build(source, cache, codec)
    assert contents(cache) == whole and build(source, cache).built == 0
    assert build(source, cache, Tiled(tile=16), replace=True).built == 2
    assert contents(cache)["a.tar"] != whole["a.tar"]

    (source / "a.tar").unlink()
    for name in ("more/x.tar", "c.tar.gz", "d.TGZ", "e.jpg", "notes.txt", "b.tarpeg.index", ".old/x.tar"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).touch()
    with pytest.warns(UserWarning, match=r"1 of the 2 shards of its source are gone, such as .*a\.tar"):
        report = build(source, cache, Tiled(tile=16))
    assert report.left_out == {"folders beside the shards": 1, ".gz": 1, ".tgz": 1, ".jpg": 1}
    assert report.built == 0
    assert set(contents(cache)) == {"b.tar", "b.idx", "b.tarpeg.sizes", "manifest.json"}


def test_a_damaged_cache_is_repaired_by_the_build(source, cache):
    build(source, cache)
    whole = contents(cache)
    (cache / "a.idx").write_bytes(whole["a.idx"][:-7])
    (cache / "b.idx").unlink()
    os.mkfifo(cache / "b.idx")
    with pytest.raises(CacheError, match=r"a\.idx .*damaged"):
        opened(cache)
    assert build(source, cache).built == 2 and contents(cache) == whole
    damaged = bytearray(whole["b.tar"])
    damaged[600] ^= 1
    (cache / "b.tar").write_bytes(damaged)
    assert build(source, cache).built == 0, "tars of the same size are not read"
    report = verify_cache(cache, 0)
    assert report.bad_shards == ("b.tar",)
    assert summarise_check(report)[-1].endswith("; delete b.tar in the folder, then run the build again")
    (cache / "b.tar").unlink()
    assert build(source, cache).built == 1 and contents(cache) == whole


def test_equal_names_of_shards_and_equal_neighbouring_keys_stay_apart(shard_of, tmp_path, cache):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        shard_of(sample(1), name=f"{folder}/000.tar")
    build([tmp_path / "one", tmp_path / "two"], cache)
    assert set(tars(cache)) == {"000.tar", "000-2.tar"}
    build([tmp_path / "one", tmp_path / "two"], cache, layout=Layout(samples_per_shard=2))
    assert keys(cache) == ["k0001", "k0001_2"]


def test_shards_may_have_the_names_of_files_of_the_builder(shard_of, cache):
    names = [f"{name}.tar" for name in ("build.fingerprint", "build", "finished", "manifest", "z")]
    paths = [shard_of(sample(number), name=name) for number, name in enumerate(names)]
    for _ in range(2):
        build(paths, cache)
    assert [shard.name for shard in read_manifest(cache).shards] == names
    assert keys(cache) == [f"k{n:04d}" for n in range(5)]


# --- bad input


def test_keys_of_any_bytes_are_kept(tmp_path, cache):
    """NUL ends a name in a plain header; a key that is not UTF-8 has lone surrogates, as docs promise."""
    members = [("n\0l.jpg", jpeg("420", 64, 80)), ("n\0l.cls", b"1"), ("n.cls", b"2"), ("n.jpg", b"broken")]
    members += [("sur\udcff.jpg", b"broken"), ("sur\udcff.cls", b"3")]
    with tarfile.open(tmp_path / "a.tar", "w", encoding="utf-8", errors="surrogateescape") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size, member.pax_headers = len(data), {"path": name}
            tar.addfile(member, io.BytesIO(data))
    report = build(tmp_path / "a.tar", cache, max_bad=1.0)
    assert [lost.key for lost in report.quarantine] == ["n", "sur\udcff"]
    assert read_manifest(cache).quarantine == list(report.quarantine)
    assert b'"key": "sur\\udcff"' in (cache / "manifest.json").read_bytes()
    assert verify_cache(cache, 0).problems == ()
    shards = opened(cache)
    assert shards.keys([0]) == ["n\0l"] and shards.labels([0]) == 1 and len(shards.images([0])) == 1


def test_quarantine(shard_of, cache):
    half = jpeg("420", 64, 80)
    half = half[: len(half) // 2]
    bad = [sample(1, half), [("only.cls", b"1")], sample(3, b"", "png")]
    path = shard_of(sample(0), bad[0], sample(2), *bad[1:], sample(4))
    report = build(path, cache, max_bad=0.5)
    assert [(lost.shard, lost.key, lost.part) for lost in report.quarantine] == [
        (str(path), key, "x.tar") for key in ("k0001", "only", "k0003")
    ]
    assert report.samples == 3 and keys(cache) == ["k0000", "k0002", "k0004"]
    assert read_manifest(cache).quarantine == list(report.quarantine)


def test_missing_and_wrong_labels_and_further_frames_are_counted(shard_of, cache):
    frames = picture("GIF", save_all=True, append_images=[Image.fromarray(pixels(64, 80, 1))])
    wrong = [sample(number, label=text) for number, text in enumerate((b"1.0", b"", b"9" * 20, b" 7\n"), 2)]
    paths = [
        shard_of(sample(0)[:1], sample(1), name="a.tar"),
        shard_of(*wrong, sample(6)[:1], sample(7, frames, "gif"), name="b.tar"),
    ]
    expected = {
        job.NO_LABEL: (2, str(paths[0]), "k0000", ""),
        job.WRONG_LABEL: (3, str(paths[1]), "k0002", "'1.0'"),
        job.FRAMES: (1, str(paths[1]), "k0007", ""),
    }
    for layout in (None, None, Layout(samples_per_shard=3)):  # the second build reads the manifest only
        report = build(paths, cache, layout=layout)
        assert report.findings == expected
    assert left_out_lines(report)[1] == (
        "labels that are not 64-bit integers, at which training stops: 3 of 8, the first is key 'k0002' of "
        f"{paths[1]}: '1.0'"
    )
    with pytest.raises(ShardError, match=r"'cls' is '1\.0'.*64-bit"):
        opened(cache).labels(range(1, 6))
    assert build(shard_of(*map(sample, range(3))), cache, replace=True).findings == {}
    path = shard_of(sample(0)[:1], sample(1)[:1])
    (line,) = left_out_lines(build(path, cache))
    assert line.startswith("no sample has a label (a member cls): train with target= or targets=, or predict")
    (path.parent / "classes.json").write_text('{"__background__": 0, "cat": 1}')
    lines = summarise_build(build(path, cache, replace=True))
    assert "2 classes, '__background__' to 'cat': classes=2" in lines
    assert 'no sample has a label (a member cls): train with targets=, such as Boxes("json:objects")' in lines


@pytest.mark.parametrize("layout", [None, Layout(samples_per_shard=2)])
def test_members_of_a_key_that_are_not_together_are_a_reason_of_their_own(shard_of, cache, layout):
    path = shard_of(*([sample(number)[member] for number in range(11)] for member in (0, 1)))
    reason = r"key 'k0000' .*twice"
    with pytest.raises(CacheError, match=rf"11 of (?:22|13) samples .*: shard {path}, key 'k0000': {reason}"):
        build(path, cache, layout=layout)
    report = build(path, cache, layout=layout, max_bad=0.5)
    assert report.samples == report.findings[job.NO_LABEL][0] == len(report.quarantine) == 11
    assert re.match(reason, report.quarantine[0].reason)


def test_too_many_bad_samples_fail_and_a_higher_limit_goes_on(shard_of, cache):
    path = shard_of(*map(sample, range(12)), *[sample(n, b"no image") for n in range(12, 24)])
    message = r"12 of 24 samples .* max_bad=0.01 .* key 'k0012': .*; and 7 more.*max_bad=0.5;"
    with pytest.raises(CacheError, match=message):
        build(path, cache)
    assert not (cache / "manifest.json").exists()
    report = build(path, cache, max_bad=0.5)
    assert (report.built, report.samples) == (0, 12)
    with pytest.raises(CacheError, match=r"12 of 24 samples .* max_bad=0.01"):
        build(path, cache)


def test_ten_bad_samples_are_allowed_as_in_training_unless_max_bad_is_0(shard_of, cache):
    path = shard_of(*map(sample, range(12)), *[sample(n, b"no image") for n in range(12, 22)])
    with pytest.raises(CacheError, match=r"10 of 22 samples .* max_bad=0 "):
        build(path, cache, max_bad=0)
    assert len(build(path, cache).quarantine) == 10


def test_a_shard_that_loses_all_its_samples(shard_of, tmp_path, cache):
    good = shard_of(*map(sample, range(3)), name="good.tar")
    bad = shard_of(sample(3, b"no image"), name="bad.tar")
    report = build([good, bad], cache, max_bad=0.5)
    assert set(contents(cache)) == {"good.tar", "good.idx", "good.tarpeg.sizes", "manifest.json"}
    assert report.shards == 1 and [entry.part for entry in report.quarantine] == ["bad.tar"]
    with pytest.raises(CacheError, match="nothing to cache"):
        build([bad], tmp_path / "none", max_bad=1.0)
    report = build([good], tmp_path / "none")  # of which that source holds nothing
    assert report.samples == 3 and contents(tmp_path / "none") == contents(
        build([good], tmp_path / "own").dest
    )


@pytest.mark.parametrize("layout", [{"samples_per_shard": 2}, {"bytes_per_shard": 9000}, {"shuffle": True}])
def test_a_layout_never_mixes_shards_of_two_splits(shard_of, tmp_path, cache, layout):
    folder = tmp_path / "both"
    folder.mkdir()
    for number, name in enumerate(("train-000000.tar", "val-000000.tar")):
        shard_of(*map(sample, range(3 * number, 3 * number + 3)), name=name).rename(folder / name)
    with pytest.raises(ShardError, match=r"source=.*2 splits.*train-\*\.tar.* or .*val-\*\.tar"):
        build(folder, cache, layout=Layout(**layout))
    assert build(f"{folder}/train-*.tar", cache, layout=Layout(**layout)).samples == 3
    assert build(f"{folder}/*.tar", tmp_path / "all", layout=Layout(**layout)).samples == 6
    assert build(folder, tmp_path / "copies").shards == 2, "shards that keep their names are not mixed"


def test_an_image_that_readers_would_overlook_keeps_its_name(shard_of, cache):
    path = shard_of([("k.jpg", jpeg("420", 64, 80)), ("k.png", b"mask")])
    assert build(path, cache, Raw()).samples == 1
    found = members(cache / path.name)
    assert [*found] == ["k.jpg", "k.png"] and found["k.jpg"][:2] == b"P6"
    split = tarpeg.Split(cache, tarpeg.Whole(8), target=None)
    (batch,) = tarpeg.Loader(split, batch_size=1, workers=0)
    assert batch.image.shape == (1, 3, 8, 8)


@pytest.mark.parametrize("codec", [Tiled(), Tiled(quality=95), Packed(), Raw(), Resized(32)], ids=str)
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "TIFF"])
def test_one_image_with_a_wrong_name_beside_a_mask_does_not_end_a_build(shard_of, cache, kind, codec):
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (90, 90, 90)).save(file, kind)
    wrong = [("k1.jpg", file.getvalue()), ("k1.png", b"mask"), ("k1.cls", b"1")]
    right = [("k2.jpg", jpeg("420", 64, 64)), ("k2.png", b"mask"), ("k2.cls", b"2")]
    report = build(shard_of(right, wrong), cache, codec)
    assert report.samples == 2 and not report.quarantine
    split = tarpeg.Split(cache, tarpeg.Whole(8), shuffle=False)
    (batch,) = tarpeg.Loader(split, batch_size=2, workers=0)
    assert batch.label.tolist() == [2, 1] and (batch.image[1].int() - 90).abs().max() <= 1


@dataclass(frozen=True)
class Own:
    """A codec of the user, which returns a value, or raises it."""

    result: Any

    def encode(self, data, extension):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result(data) if callable(self.result) else self.result


WRONG_RESULTS = {
    "an error": (ValueError("boom"), "failed: ValueError: boom, for the member 'jpg'"),
    "a full disk": (OSError(errno.ENOSPC, "full"), r"failed: OSError: \[Errno 28\] full, for"),
    "nothing": (None, "returned NoneType, for"),
    "a tuple": ((b"", "jpg", None, ""), "returned tuple, for"),
    "a text": (Encoded("text", "jpg", None, ""), "returned data='text', for"),
    "no bytes": (Encoded(b"", "jpg", None, ""), "returned data=b'', for"),
    **{
        name: (Encoded(b"", name, None, ""), f"returned extension='{name}', for")
        for name in ("JPG", ".jpg", "npy", "seg.png", "")
    },
    "no width": (Encoded(b"", "jpg", 0, ""), "returned tile=0, for"),
    "no reason": (Encoded(b"", "jpg", None, None), "returned untiled=None, for"),
}


@pytest.mark.parametrize(("result", "what"), WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_a_codec_of_the_user_that_goes_wrong_is_named(shard_of, cache, monkeypatch, result, what):
    path = shard_of(sample(1))
    match = rf"shard {path}, key 'k0001': encode\(\) of codec=Own\(.*\) {what}.*Encoded\(data, .*DecodeError"
    monkeypatch.setattr(job, "describe_codec", lambda codec: {"name": "Own", "parameters": {}})
    with pytest.raises(CacheError, match=match):
        build(path, cache, Own(result))


def test_why_none_of_a_few_samples_can_be_used(shard_of, tmp_path, cache, monkeypatch):
    heic = b"\0\0\0\x18ftypheic" + bytes(64)
    path = shard_of(*[sample(number, heic) for number in range(5)])
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.jpg").write_bytes(heic)
    for source, max_bad in ((path, 0.01), (path, 1.0), (tmp_path / "photos", 0.01)):
        with pytest.raises(CacheError, match=r"none of the \d samples .*key .*HEIC.* convert it") as raised:
            build(source, cache, max_bad=max_bad)
        assert "first dot" not in str(raised.value)
    monkeypatch.setattr(job, "describe_codec", lambda codec: {"name": "Own", "parameters": {}})
    with pytest.raises(CacheError, match=r"key 'k0000': not this one"):
        build(shard_of(sample(0)), tmp_path / "own", Own(DecodeError("not this one")))
    named = shard_of([("v1.2.jpg", heic), ("v1.cls", b"1")])
    with pytest.raises(CacheError, match=r"no image among its members \['2.jpg', 'cls'\]\. .* the first dot"):
        build(named, tmp_path / "named")
    with pytest.raises(CacheError, match=r"nothing to cache: the source has no sample\. .* the first dot"):
        build(shard_of(), tmp_path / "empty")


def test_broken_sources(shard_of, tmp_path, cache):
    path = shard_of(sample(0), sample(1))
    path.write_bytes(path.read_bytes()[:3000])
    for workers in (0, 2):
        with pytest.raises(ShardError, match=r"x\.tar is"):
            build_cache(path, cache, executor=workers)
    assert not tars(cache)
    with pytest.raises(ShardError, match="does not exist"):
        build_cache(tmp_path / "nothing", cache)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"codec": "tiled"}, "codec='tiled' must be"),
        ({"codec": Tiled}, "codec=.* must be"),
        ({"executor": -1}, "executor=-1 must be"),
        ({"max_bad": 2}, "max_bad=2 must be a fraction"),
        ({"dest": ""}, "dest='' must be a folder"),
    ],
)
def test_bad_arguments(source, cache, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_cache(**{"source": source, "dest": cache, **arguments})


@pytest.mark.parametrize(
    ("dest", "message"),
    [
        ("s3://bucket/c", r"^dest='s3://bucket/c' .*`aws s3 sync FOLDER s3://bucket/c`"),
        (Path("gs://bucket/c"), r"^dest='gs://bucket/c' .*`gcloud storage rsync .*gs://bucket/c`"),
        ("https://me:word@host/c", r"^dest='https://host/c' .*local"),
        ("file:///data/c", r"^dest='file:///data/c' .*dest='/data/c'"),
    ],
)
def test_a_destination_is_local(source, tmp_path, monkeypatch, dest, message):
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.iterdir()}
    writers = (
        lambda: build_cache(source, dest, executor=0),
        lambda: verify_cache(dest),
        lambda: make_shards(dest, {}, 1, workers=0),
        lambda: SyntheticShards(dest),
        lambda: FolderShards(".", dest),
        lambda: CachedShards(source, dest),
    )
    for number, write in enumerate(writers):
        with pytest.raises(ValueError, match=message if number < 2 else message.replace("dest=", "out=")):
            write()
    assert {*tmp_path.iterdir()} == before


def test_an_empty_source_is_not_the_working_directory(tmp_path, monkeypatch, cache):
    (tmp_path / "here" / "cat").mkdir(parents=True)
    (tmp_path / "here" / "cat" / "a.jpg").write_bytes(jpeg("420", 64, 80))
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ShardError, match=r"^'' has no shards"):
        build("", cache)
    with pytest.raises(ValueError, match="root='' must be a directory"):
        Folder("")
    assert build(".", cache).samples == 1


def test_dest_must_not_hold_other_shards(source, photos, tmp_path):
    with pytest.raises(ValueError, match="inside the source"):
        build_cache(source, source)
    with pytest.raises(CacheError, match=r"cache.* a\.tar"):
        build(photos, source)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(CacheError, match="delete the folder"):
        build(source, tmp_path)


def test_dest_must_not_hold_other_files(source, tmp_path, monkeypatch):
    (tmp_path / "thesis" / "drafts").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    for dest in (tmp_path, "/"):
        with pytest.raises(CacheError, match=rf"dest='{dest}'.*everything"):
            build(source, dest)
    (notes := tmp_path / "thesis" / "notes.txt").touch()
    with pytest.raises(CacheError, match=r"dest='.*/thesis'.* 1 .*notes\.txt"):
        build(source, tmp_path / "thesis")
    assert {path.name for path in (tmp_path / "thesis").iterdir()} == {"drafts", "notes.txt"}
    notes.unlink()
    assert build(source, tmp_path / "thesis").built
    notes.touch()
    assert not build(source, tmp_path / "thesis").built, "a file that came later"


# --- the disk


def test_a_folder_in_the_place_of_a_file_is_named_and_the_cache_stays(source, cache):
    build(source, cache)
    (cache / "a.idx").unlink()
    (cache / "a.idx").mkdir()
    before = sorted(cache.iterdir())
    with pytest.raises(CacheError, match=rf"{cache}/a\.idx: .*folder"):
        build(source, cache)
    assert sorted(cache.iterdir()) == before and read_manifest(cache) is not None
    (cache / "a.idx").rmdir()
    assert build(source, cache).built == 1 and verify_cache(cache, 0).is_good


def test_a_damaged_manifest_has_one_remedy_for_building_loading_and_verifying(source, cache):
    build(source, cache)
    (cache / "manifest.json").write_text("{")
    for use in (lambda: build(source, cache), lambda: expand(cache), lambda: verify_cache(cache, 0)):
        with pytest.raises(CacheError, match=rf"damaged: .* delete .*{cache}\."):
            use()


class Full(io.FileIO):
    """A file on a disk with room[0] free bytes."""

    def __init__(self, path: Path, room: list[int]) -> None:
        super().__init__(str(path), "x")
        self.room = room

    def write(self, data: bytes) -> int:
        if len(data) > self.room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
        self.room[0] -= len(data)
        return super().write(data)


def test_a_full_disk_is_a_clear_error_and_loses_nothing(source, tmp_path, cache, monkeypatch):
    build(source, tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    enough_for_a, room = len(whole["a.tar"]) + 3000, [0]
    monkeypatch.setattr(job, "create_file", lambda path: Full(path, room))

    def fill_the_disk(codec: Tiled, free: int) -> None:
        room[0] = free
        with pytest.raises(CacheError, match=r"\.tar: No space left on device"):
            build(source, cache, codec, replace=True)
        assert not list(cache.rglob("*.tmp"))

    def complete() -> None:
        with pytest.raises(CacheError, match="not finished"):
            opened(cache)
        room[0] = 1 << 30
        assert build(source, cache).built == 1 and contents(cache) == whole

    fill_the_disk(Tiled(), enough_for_a)
    assert set(tars(cache)) == {"a.tar"}
    complete()
    fill_the_disk(Tiled(tile=64), 100)
    assert shard_files(cache) == shard_files(tmp_path / "whole")
    assert decoded(cache) == decoded(source)  # no shard was replaced: still a cache
    fill_the_disk(Tiled(tile=64), enough_for_a)
    assert tars(cache)["b.tar"] == whole["b.tar"]
    complete()


def test_folders_without_locks_are_refused(source, cache, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(job.fcntl, "flock", flock)
    with pytest.raises(CacheError, match="has no file locks"):
        build(source, cache)


def test_temporaries_of_dead_builders_are_removed_and_those_of_living_ones_are_not(source, cache):
    building = cache / ".building"
    building.mkdir(parents=True)
    dead = building / "a.tar.123-abc.tmp"
    dead.write_bytes(b"half a shard")
    (building / "build.fingerprint").write_text(json.dumps({"fingerprint": "another"}))
    with job.locked_temporary(cache, "b.tar") as file:
        job.remove_temporaries(cache)
        assert not dead.exists() and Path(file.name).exists()
    build(source, cache)
    assert not list(cache.rglob("*.tmp"))


# --- folders of images, and other layouts


def test_shards_beside_the_splits_of_a_folder_are_refused(tmp_path):
    for split in ("train", "val"):
        (tmp_path / "pets" / split / "cat").mkdir(parents=True)
        (tmp_path / "pets" / split / "cat" / "a.jpg").write_bytes(jpeg("420", 64, 80))
    with pytest.raises(ValueError, match=r"dest='.*/pets' holds images.* train, val"):
        build(tmp_path / "pets" / "train", tmp_path / "pets")
    assert build(tmp_path / "pets" / "train", tmp_path).samples == 1


def test_a_folder_of_images(tmp_path, cache):
    root, layout = tmp_path / "pets", Layout(samples_per_shard=5)
    for number in range(12):
        path = root / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg("420", 64, 80, seed=number))
    path = root / "dog" / "5.jpg"
    path.unlink()
    path.with_suffix(".png").write_bytes(picture("PNG"))
    report = build(root, cache, layout=layout)
    assert (report.shards, report.samples, report.classes) == (3, 12, ["cat", "dog"])
    assert "2 classes, 'cat' to 'dog': num_classes=2" in summarise_build(report)
    assert keys(cache) == [file.key for file in Folder(str(root)).files()]
    shards = opened(cache)
    assert shards.labels(range(12)).tolist() == [int(key.startswith("dog")) for key in keys(cache)]
    assert shards.extensions(keys(cache).index("dog/5")) == ["ppm", "cls"]
    assert read_manifest(cache).classes == stored_classes(cache) == ["cat", "dog"]
    assert "classes" not in json.loads((cache / "manifest.json").read_text()), "they are in its source"
    recorded = {"folder": str(root), "classes": {"cat": 0, "dog": 1}, "split": "all", "seed": 0}
    assert read_manifest(cache).source == [recorded]
    assert build(Folder(str(root)), tmp_path / "whole").shards == 1
    (root / "cat" / "0.jpg").write_bytes(jpeg("420", 64, 80, seed=99))
    assert build(root, cache, layout=layout).built == 1


def test_names_of_classes_are_those_of_the_source(source, cache, tmp_path):
    assert build(source, cache).classes is None and '"classes"' not in (cache / "manifest.json").read_text()
    (source / "classes.json").write_text('{"cat": 0, "dog": 1}')
    for folder, shards in ((cache, source), (cache, source), (tmp_path / "again", cache)):
        report = build(shards, folder)
        assert (report.classes, read_manifest(folder).classes) == (["cat", "dog"], ["cat", "dog"])
        assert verify_cache(folder, 0).is_good and stored_classes(folder) == ["cat", "dog"]


def test_unreadable_files_of_a_folder_are_quarantined(tmp_path, cache):
    root, cat = tmp_path / "pets", tmp_path / "pets" / "cat"
    cat.mkdir(parents=True)
    (cat / "a.jpg").write_bytes(jpeg("420", 64, 80))
    links = [f"cat/b{number:02d}" for number in range(10)]
    for link in links:
        (root / f"{link}.jpg").symlink_to("gone.jpg")
    os.mkfifo(cat / "c.jpg")
    reasons = dict.fromkeys(links, "unreadable: No such file or directory")
    reasons["cat/c"] = "unreadable: not a regular file"
    for built in (1, 0):
        report = build(root, cache, max_bad=0.95)
        assert (report.samples, report.built) == (1, built)
        assert {bad.key: bad.reason for bad in report.quarantine} == reasons
        assert {(bad.shard, bad.part) for bad in report.quarantine} == {(str(root), "")}
    with pytest.raises(CacheError, match=r"11 of 12 samples .* key 'cat/b0\d': .*No such"):
        build(root, cache)
    (cat / "d.jpg").symlink_to("nowhere")
    assert len(build(root, cache, max_bad=0.95).quarantine) == 12
    (cat / "b00.jpg").unlink()
    (cat / "b00.jpg").write_bytes(jpeg("420", 64, 80))
    assert build(root, cache, max_bad=0.95).samples == 2


def test_shards_of_another_number_of_samples_or_bytes(source, cache):
    report = build(source, cache, layout=Layout(samples_per_shard=9))
    assert [entry.samples for entry in read_manifest(cache).shards] == [9, 9, 5]
    assert set(tars(cache)) == {f"{n:06d}.tar" for n in range(3)}
    assert decoded(cache) == decoded(source) and report.samples == 23
    build(source, cache, layout=Layout(bytes_per_shard=30_000))
    entries = read_manifest(cache).shards
    assert len(entries) > 2 and all(entry.source_bytes <= 30_000 for entry in entries)
    assert decoded(cache) == decoded(source)


def test_shuffled_samples(source, tmp_path):
    def shuffled(name, **layout):
        folder = tmp_path / name
        build(source, folder, layout=Layout(shuffle=True, **layout))
        assert sorted(decoded(folder)) == sorted(decoded(source))
        assert opened(folder).labels(range(23)).tolist() == [int(key[1:]) % 5 for key in keys(folder)]
        return keys(folder)

    first = shuffled("one")
    assert len(tars(tmp_path / "one")) == 2
    assert first == shuffled("two", samples_per_shard=5) != sorted(first)
    assert first != shuffled("three", seed=1)


def test_a_cache_of_another_source_is_only_replaced_if_asked(source, cache, photos, tmp_path, monkeypatch):
    other = tmp_path / "other" / "cat" / "a.jpg"
    other.parent.mkdir(parents=True)
    other.write_bytes(jpeg("420", 64, 80))
    build(source, cache)
    whole = contents(cache)
    refused = partial(pytest.raises, CacheError, match=rf"another source, {source}/a\.tar: ")
    with refused():
        build(tmp_path / "other", cache)
    assert contents(cache) == whole
    monkeypatch.chdir(tmp_path)
    assert build("source", "cache").built == 0
    with refused():
        build(source / "b.tar", cache)
    assert contents(cache) == whole
    assert build(source / "b.tar", cache, replace=True).samples == 10
    assert build([source / "b.tar", source / "a.tar"], cache).samples == 23, "a source may grow"
    broken = tmp_path / "broken.tar"
    broken.write_bytes((source / "a.tar").read_bytes()[:3000])
    with pytest.raises(ShardError, match=r"broken\.tar is"):
        build([source, broken], tmp_path / "unfinished")
    assert build(source, tmp_path / "unfinished").samples == 23, "a broken one may be left out"

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "other", cache, replace=True, progress=stop)
    with pytest.raises(CacheError, match=r"of another source, .*/other: "):
        build(source, cache)
    assert build(tmp_path / "other", cache).samples == 1
    assert tars(cache).keys() == {"000000.tar"}


def test_another_split_or_seed_of_a_folder_is_another_source(tmp_path, cache):
    root = tmp_path / "pets"
    for number, name in enumerate(("train/cat/0", "train/cat/1", "train/cat/2", "train/cat/3", "val/cat/4")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.jpg").write_bytes(jpeg("420", 64, 80, number))
    assert build(Folder(root, split="train"), cache).samples == 4
    for other, difference in (
        (Folder(root, split="val"), "split='train'"),
        (Folder(root, split="train", seed=1), "seed=0"),
        (Folder(root), "split='train'"),
    ):
        with pytest.raises(CacheError, match=rf"of another source, {root} with {difference}: choose another"):
            build(other, cache)
    (root / "train" / "cat" / "3.jpg").unlink()
    assert build(Folder(root, split="train"), cache).samples == 3
    path = cache / "manifest.json"
    manifest = json.loads(path.read_bytes())
    for name in ("split", "seed"):
        del manifest["source"][0][name]  # as early versions wrote it
    path.write_text(json.dumps(manifest))
    (root / "train" / "cat" / "2.jpg").unlink()
    assert build(Folder(root, split="train", val_share=0.5), cache).samples == 2, "of the directory val"
    assert build(Folder(root, split="val"), cache, replace=True).samples == 1
    assert build(Folder(root / "train", split="val", val_share=0.5), cache, replace=True).samples == 1
    with pytest.raises(CacheError, match=r"/train with val_share=0\.5: choose"):
        build(Folder(root / "train", split="val", val_share=0.9), cache)


def test_odd_files_of_a_folder_are_quarantined_in_bounded_time(tmp_path, cache):
    cat = tmp_path / "pets" / "cat"
    cat.mkdir(parents=True)
    (cat / "a.jpg").write_bytes(jpeg("420", 64, 80))
    odd_files(cat, "jpg")
    kernel_log(cat, "jpg")
    (cat / "sparse.jpg").touch()
    os.truncate(cat / "sparse.jpg", 1 << 42)
    report = build(tmp_path / "pets", cache, max_bad=0.9)
    reasons = dict.fromkeys(("cat/fifo", "cat/socket", "cat/zero"), "unreadable: not a regular file")
    reasons["cat/sparse"] = f"unreadable: {1 << 42} bytes are more than {1 << 30}"
    found = {bad.key: bad.reason for bad in report.quarantine}
    assert "empty" in found.pop("cat/kernel") and (report.samples, found) == (1, reasons)


@pytest.mark.parametrize("name", ["n" * 251, "\u00e4" * 125, "n" * 96, "d" * 200 + "/" + "e" * 200 + "/a"])
def test_long_names_get_shortened_keys_and_are_listed(tmp_path, cache, caplog, name):
    root = tmp_path / "pets"
    for number, stem in enumerate([name, name[:-1] + "b", "short"]):
        (path := root / "cat" / f"{stem}.jpg").parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg("420", 64, 80, number))
    report = build(root, cache)
    stored = keys(cache)
    assert report.samples == len({*stored}) == 3 and "cat/short" in stored and not report.quarantine
    assert report.findings[SHORTENED][0] == 2, report.findings
    for key in stored:
        folder, _, own = f"{key}.jpeg".encode().rpartition(b"/")
        assert len(folder) <= 155 and len(own) <= 100
    assert sorted(file.key for file in Folder(root).files()) == sorted(stored), "the same in every build"
    tarpeg.make_shards(tmp_path / "shards", Folder(root), workers=0)
    assert f"{SHORTENED}: 2, the first is key" in caplog.text
    assert sorted(keys(tmp_path / "shards")) == sorted(stored)


def test_the_bytes_of_the_source_have_the_headers_of_long_names(tmp_path):
    """The cache has them too: a name that is not ASCII takes a header more."""
    for name in ("u", "ü"):
        source = tmp_path / f"{name}.tar"
        with tarfile.open(source, "w", format=tarfile.PAX_FORMAT) as tar:
            for key in range(5):
                for extension, data in (("jpg", jpeg("420", 40, 40)), ("cls", b"1")):
                    info = tarfile.TarInfo(f"{name}{key}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        report = build_cache(source, tmp_path / f"cache {name}", Original(), executor=0)
        assert report.source_bytes == report.bytes - 1024, "two blocks at the end of the tar"
