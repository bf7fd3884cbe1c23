"""Building a cache from local shards and folders: contents, repeated builds, errors."""

from __future__ import annotations

import errno
import json
import os
import tarfile
from pathlib import Path

import pytest
import torch
from helpers.pictures import jpeg, pixels
from helpers.small_caches import contents
from helpers.small_tars import sample, write_tar
from PIL import Image
from tarpeg import CacheError, Folder, Layout, Raw, Resized, ShardError, Tiled, build_cache
from tarpeg.cache import job
from tarpeg.shards.manifest import read_manifest
from tarpeg.shards.mapped import Shards
from tarpeg.shards.paths import expand


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def open_cache(folder: Path) -> Shards:
    return Shards(expand(folder))


def decoded(shards: Shards) -> list[tuple[str, bytes]]:
    from tarpeg import decode_crop, image_sizes

    found = []
    for id in range(len(shards)):
        (image,) = shards.images([id])
        height, width = image_sizes([image])[0].tolist()
        found.append((shards.key(id), decode_crop(image, 0, 0, height, width).numpy().tobytes()))
    return found


@pytest.fixture
def source(photos, tmp_path) -> Path:
    """A folder with only the shards of photos."""
    folder = tmp_path / "source"
    folder.mkdir()
    for path in photos.glob("*.tar"):
        os.link(path, folder / path.name)
    return folder


def test_a_cache_of_shards(source, tmp_path):
    report = build_cache(source, tmp_path / "cache", executor=0)
    folder = tmp_path / "cache"
    assert set(contents(folder)) == {"a.tar", "a.idx", "b.tar", "b.idx", "manifest.json"}
    assert decoded(open_cache(folder)) == decoded(Shards(expand(source)))
    for name in ("a.tar", "b.tar"):
        before, after = members(source / name), members(folder / name)
        assert list(before) == list(after)
        assert {n: data for n, data in before.items() if n.endswith("cls")} == {
            n: data for n, data in after.items() if n.endswith("cls")
        }
    assert (report.shards, report.built, report.samples, report.quarantine) == (2, 2, 23, ())
    assert sum(report.tiles.values()) == 23 and not report.untiled
    assert report.bytes == sum((folder / name).stat().st_size for name in ("a.tar", "b.tar"))
    manifest = read_manifest(folder)
    assert manifest.codec["parameters"] == {"tile": 32, "quality": 95, "subsampling": "4:2:0"}
    assert [entry.samples for entry in manifest.shards] == [13, 10]


def test_other_members_are_carried_over_as_they_are(shard_of, tmp_path):
    extra = [
        ("k.JPG", jpeg("420", 64, 80)),
        ("k.json", b"{}\n\x00"),
        ("k.seg.png", b"\x89mask"),
        ("k.cls", b" 7\n"),
    ]
    long = [("f/" * 80 + "é.jpg", jpeg("gray", 64, 80)), ("f/" * 80 + "é.txt", b"")]
    path = shard_of(extra, long)
    build_cache([path], tmp_path / "cache", executor=0)
    found = members(tmp_path / "cache" / "x.tar")
    assert list(found) == ["k.jpg", "k.json", "k.seg.png", "k.cls", "f/" * 80 + "é.jpg", "f/" * 80 + "é.txt"]
    assert [found["k.json"], found["k.seg.png"], found["k.cls"]] == [b"{}\n\x00", b"\x89mask", b" 7\n"]


def test_headers_are_those_of_tarfile():
    names = ["a.jpg", "a" * 100, "a" * 101, "é.jpg", "x/y z.cls", "\udcff.jpg"]
    for name in names:
        for size in (0, 1, 511, 10**6, 8**11 - 1, 8**11):
            assert job.tar_header(name, size) == job._tarfile_header(name, size)


def test_the_same_bytes_from_any_number_of_processes(source, tmp_path):
    for workers in (0, 2):
        build_cache(source, tmp_path / str(workers), Tiled(), workers)
    assert contents(tmp_path / "0") == contents(tmp_path / "2")


@pytest.mark.parametrize("codec", [Resized(shorter=48), Raw(), Raw(shorter=48)])
def test_other_codecs(source, tmp_path, codec):
    report = build_cache(source, tmp_path / "cache", codec, 0)
    shards = open_cache(tmp_path / "cache")
    assert len(shards) == 23 and shards.labels(range(23)).tolist() == [n % 5 for n in range(23)]
    before, after = Shards(expand(source)), shards
    for id in range(23):
        kept = codec.encode(before.images([id])[0].numpy().tobytes(), "jpg")
        assert after.images([id])[0].numpy().tobytes() == kept.data and kept.extension in after.extensions(id)
    assert bool(report.untiled) == isinstance(codec, Raw)


def test_a_second_build_does_nothing(source, tmp_path, monkeypatch):
    build_cache(source, tmp_path / "cache", executor=0)
    before = {path: path.stat() for path in (tmp_path / "cache").iterdir()}
    monkeypatch.setattr(job, "run_job", None)
    report = build_cache(source, tmp_path / "cache", executor=0)
    assert (report.built, report.shards, report.samples) == (0, 2, 23)
    assert {path: path.stat() for path in (tmp_path / "cache").iterdir()} == before


def test_a_second_build_writes_missing_and_changed_shards(source, tmp_path):
    folder = tmp_path / "cache"
    build_cache(source, folder, executor=0)
    whole, seen = contents(folder), []
    (folder / "a.tar").unlink()
    report = build_cache(source, folder, executor=0, progress=seen.append)
    assert report.built == 1 and contents(folder) == whole
    assert [(now.shards, now.shards_total, now.kept) for now in seen] == [(1, 2, 1), (2, 2, 1)]
    assert seen[-1].samples == 23 and seen[-1].bytes == report.source_bytes

    (folder / "b.idx").unlink()
    assert build_cache(source, folder, executor=0).built == 1 and contents(folder) == whole
    os.utime(source / "b.tar", ns=(1, 1))
    assert build_cache(source, folder, executor=0).built == 1
    assert {**contents(folder), "manifest.json": b""} == {**whole, "manifest.json": b""}
    assert build_cache(source, folder, Tiled(tile=16), executor=0).built == 2
    assert contents(folder)["a.tar"] != whole["a.tar"]

    (source / "a.tar").unlink()
    assert build_cache(source, folder, Tiled(tile=16), executor=0).built == 0
    assert set(contents(folder)) == {"b.tar", "b.idx", "manifest.json"}


def test_names_of_shards_in_several_folders(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_tar(tmp_path / folder / "000.tar", sample(len(folder)))
    build_cache([tmp_path / "one", tmp_path / "two"], tmp_path / "cache", executor=0)
    assert {path.name for path in (tmp_path / "cache").glob("*.tar")} == {"000.tar", "000-2.tar"}


@pytest.mark.parametrize("name", ["build", "manifest", "finished", "build.fingerprint"])
def test_a_shard_may_have_the_name_of_a_file_of_the_builder(tmp_path, name):
    folder = tmp_path / "source"
    folder.mkdir()
    paths = [
        write_tar(folder / f"{name}.tar", [m for n in range(3) for m in sample(n)]),
        write_tar(folder / "z.tar", [m for n in range(3, 6) for m in sample(n)]),
    ]
    for _ in range(2):
        build_cache(paths, tmp_path / "cache", executor=0)
    names = [shard.name for shard in read_manifest(tmp_path / "cache").shards]
    assert names == [f"{name}.tar", "z.tar"]
    shards = Shards([tmp_path / "cache" / name for name in names])
    assert [shards.key(id) for id in range(6)] == [f"k{n:04d}" for n in range(6)]


# --- bad input


def test_quarantine(shard_of, tmp_path):
    half = jpeg("420", 64, 80)
    path = shard_of(
        sample(0),
        sample(1, half[: len(half) // 2]),
        sample(2),
        [("only.cls", b"1")],
        sample(3, b"", "png"),
        sample(4),
    )
    report = build_cache(path, tmp_path / "cache", executor=0, max_bad=0.5)
    assert [(bad.shard, bad.key, bad.part) for bad in report.quarantine] == [
        (str(path), key, "x.tar") for key in ("k0001", "only", "k0003")
    ]
    assert report.samples == 3
    shards = open_cache(tmp_path / "cache")
    assert [shards.key(id) for id in range(3)] == ["k0000", "k0002", "k0004"]
    assert read_manifest(tmp_path / "cache").quarantine == list(report.quarantine)


def test_too_many_bad_samples_fail_and_a_higher_limit_goes_on(shard_of, tmp_path):
    path = shard_of(*[sample(n) for n in range(8)], *[sample(n, b"no image") for n in range(8, 16)])
    with pytest.raises(
        CacheError, match=r"8 of 16 samples .* max_bad=0.01 .* key 'k0008': .*; and 3 more.*max_bad=0.5;"
    ):
        build_cache(path, tmp_path / "cache", executor=0)
    assert not (tmp_path / "cache" / "manifest.json").exists()
    report = build_cache(path, tmp_path / "cache", executor=0, max_bad=0.5)
    assert (report.built, report.samples) == (0, 8)
    with pytest.raises(CacheError, match=r"8 of 16 samples .* max_bad=0.01"):
        build_cache(path, tmp_path / "cache", executor=0)


def test_a_shard_that_loses_all_its_samples(tmp_path):
    good = write_tar(tmp_path / "good.tar", [m for n in range(3) for m in sample(n)])
    bad = write_tar(tmp_path / "bad.tar", sample(3, b"no image"))
    report = build_cache([good, bad], tmp_path / "cache", executor=0, max_bad=0.5)
    assert set(contents(tmp_path / "cache")) == {"good.tar", "good.idx", "manifest.json"}
    assert report.shards == 1 and [entry.part for entry in report.quarantine] == ["bad.tar"]
    with pytest.raises(CacheError, match="nothing to cache"):
        build_cache([bad], tmp_path / "none", executor=0, max_bad=1.0)


def test_neighbours_of_one_key_stay_apart(tmp_path):
    two = [write_tar(tmp_path / f"{name}.tar", sample(1)) for name in "ab"]
    build_cache(two, tmp_path / "cache", executor=0, layout=Layout(samples_per_shard=2))
    shards = open_cache(tmp_path / "cache")
    assert [shards.key(id) for id in range(len(shards))] == ["k0001", "k0001_2"]


def test_an_image_that_readers_would_overlook_is_an_error(shard_of, tmp_path):
    path = shard_of([("k.jpg", jpeg("420", 64, 80)), ("k.png", b"mask")])
    with pytest.raises(CacheError, match=r"key 'k': the encoded image 'ppm' clashes with the member 'png'"):
        build_cache(path, tmp_path / "cache", Raw(), 0)
    assert build_cache(path, tmp_path / "cache", Tiled(), 0).samples == 1


def test_broken_sources(shard_of, tmp_path):
    path = shard_of(sample(0), sample(1))
    path.write_bytes(path.read_bytes()[:3000])
    for workers in (0, 2):
        with pytest.raises(ShardError, match=r"x\.tar is"):
            build_cache(path, tmp_path / "cache", executor=workers)
    assert not list((tmp_path / "cache").glob("*.tar"))
    with pytest.raises(ShardError, match="does not exist"):
        build_cache(tmp_path / "nothing", tmp_path / "cache")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"codec": "tiled"}, "codec='tiled' must be"),
        ({"codec": Tiled}, "codec=.* must be"),
        ({"executor": -1}, "executor=-1 must be"),
        ({"max_bad": 2}, "max_bad=2 must be a fraction"),
    ],
)
def test_bad_arguments(source, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_cache(source, tmp_path / "cache", **arguments)
    with pytest.raises(ValueError, match="samples_per_shard=0 must be"):
        Layout(samples_per_shard=0)


def test_dest_must_not_hold_other_shards(source, photos, tmp_path):
    with pytest.raises(ValueError, match="inside the source"):
        build_cache(source, source)
    with pytest.raises(CacheError, match=r"do not belong to a cache, such as a\.tar"):
        build_cache(photos, source, executor=0)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(CacheError, match="delete the folder"):
        build_cache(source, tmp_path, executor=0)


# --- the disk


class Full:
    """A file on a disk with room[0] free bytes."""

    def __init__(self, path: Path, room: list[int]) -> None:
        self.file, self.name, self.room = path.open("xb"), str(path), room

    def write(self, data: bytes) -> int:
        if len(data) > self.room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
        self.room[0] -= len(data)
        return self.file.write(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_is_a_clear_error_and_loses_nothing(source, tmp_path, monkeypatch):
    build_cache(source, tmp_path / "whole", executor=0)
    folder = tmp_path / "cache"
    room = [(tmp_path / "whole" / "a.tar").stat().st_size + 3000]
    with monkeypatch.context() as patch:
        patch.setattr(job, "create_file", lambda path: Full(path, room))
        with pytest.raises(CacheError, match=r"cannot write .*b\.tar: No space left on device.*make room"):
            build_cache(source, folder, executor=0)
    assert {path.name for path in folder.glob("*.tar")} == {"a.tar"}
    assert not list(folder.rglob("*.tmp"))
    with pytest.raises(CacheError, match="not finished"):
        open_cache(folder)
    assert build_cache(source, folder, executor=0).built == 1
    assert contents(folder) == contents(tmp_path / "whole")


def test_a_full_disk_leaves_the_cache_that_was_there(source, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    build_cache(source, folder, executor=0)
    old, pixels = contents(folder), decoded(open_cache(folder))
    room = [100]
    monkeypatch.setattr(job, "create_file", lambda path: Full(path, room))
    with pytest.raises(CacheError, match="No space left"):
        build_cache(source, folder, Tiled(tile=64), executor=0)
    assert {name: old[name] for name in contents_of_files(folder)} == contents_of_files(folder)
    assert decoded(open_cache(folder)) == pixels  # no shard was replaced: still a cache

    room[0] = (folder / "a.tar").stat().st_size + 3000
    with pytest.raises(CacheError, match="No space left"):
        build_cache(source, folder, Tiled(tile=64), executor=0)
    assert contents_of_files(folder)["b.tar"] == old["b.tar"]
    with pytest.raises(CacheError, match="not finished"):
        open_cache(folder)
    monkeypatch.undo()
    assert build_cache(source, folder, executor=0).built == 1
    assert contents(folder) == old


def contents_of_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".tar", ".idx")}


def test_folders_without_locks_are_refused(source, tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(job.fcntl, "flock", flock)
    with pytest.raises(CacheError, match="has no file locks"):
        build_cache(source, tmp_path / "cache", executor=0)


def test_temporaries_of_dead_builders_are_removed_and_those_of_living_ones_are_not(source, tmp_path):
    folder = tmp_path / "cache"
    (folder / ".building").mkdir(parents=True)
    dead = folder / ".building" / "a.tar.123-abc.tmp"
    dead.write_bytes(b"half a shard")
    (folder / ".building" / "build.fingerprint").write_text(json.dumps({"fingerprint": "another"}))
    alive = job.locked_temporary(folder, "b.tar")
    with alive as file:
        job.remove_temporaries(folder)
        assert not dead.exists() and Path(file.name).exists()
    build_cache(source, folder, executor=0)
    assert not list(folder.rglob("*.tmp"))


# --- folders of images, and other layouts


def test_a_folder_of_images(tmp_path):
    root = tmp_path / "pets"
    for number in range(12):
        path = root / ("cat", "dog")[number % 2] / f"{number}.{'png' if number == 5 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number == 5:
            Image.fromarray(pixels(64, 80)).save(path)
        else:
            path.write_bytes(jpeg("420", 64, 80, seed=number))
    report = build_cache(root, tmp_path / "cache", executor=0, layout=Layout(samples_per_shard=5))
    assert (report.shards, report.samples) == (3, 12)
    shards = open_cache(tmp_path / "cache")
    keys = [shards.key(id) for id in range(12)]
    assert keys == [file.key for file in Folder(str(root)).files()]
    assert shards.labels(range(12)).tolist() == [int(key.startswith("dog")) for key in keys]
    assert shards.extensions(keys.index("dog/5")) == ["jpg", "cls"]
    manifest = read_manifest(tmp_path / "cache")
    assert manifest.source == [{"folder": str(root), "classes": {"cat": 0, "dog": 1}}]
    assert build_cache(Folder(str(root)), tmp_path / "whole", executor=0).shards == 1
    (root / "cat" / "0.jpg").write_bytes(jpeg("420", 64, 80, seed=99))
    assert build_cache(root, tmp_path / "cache", executor=0, layout=Layout(samples_per_shard=5)).built == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_of_another_number_of_samples(source, tmp_path, workers):
    report = build_cache(source, tmp_path / "cache", None, workers, layout=Layout(samples_per_shard=9))
    assert [entry.samples for entry in read_manifest(tmp_path / "cache").shards] == [9, 9, 5]
    assert {path.name for path in (tmp_path / "cache").glob("*.tar")} == {f"{n:06d}.tar" for n in range(3)}
    assert decoded(open_cache(tmp_path / "cache")) == decoded(Shards(expand(source)))
    assert report.samples == 23


def test_shards_of_a_number_of_bytes(source, tmp_path):
    build_cache(source, tmp_path / "cache", executor=0, layout=Layout(bytes_per_shard=30_000))
    entries = read_manifest(tmp_path / "cache").shards
    assert len(entries) > 2 and all(entry.source_bytes <= 30_000 for entry in entries)
    assert decoded(open_cache(tmp_path / "cache")) == decoded(Shards(expand(source)))


def test_shuffled_samples(source, tmp_path):
    def keys(name, **layout):
        build_cache(source, tmp_path / name, executor=0, layout=Layout(shuffle=True, **layout))
        shards = open_cache(tmp_path / name)
        assert sorted(decoded(shards)) == sorted(decoded(Shards(expand(source))))
        assert torch.equal(
            shards.labels(range(23)), torch.tensor([int(shards.key(i)[1:]) % 5 for i in range(23)])
        )
        return [shards.key(id) for id in range(len(shards))]

    first = keys("one")
    assert len(list((tmp_path / "one").glob("*.tar"))) == 2
    assert first == keys("two", samples_per_shard=5) != sorted(first)
    assert first != keys("three", seed=1)
