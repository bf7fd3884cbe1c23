from __future__ import annotations

import gzip
import multiprocessing
import os
import random
import warnings

import numpy as np
import pytest
from helpers.small_tars import cache_home as cache_home
from helpers.small_tars import images, plain, write_tar
from tarpeg.errors import ShardError
from tarpeg.shards.index import build, load_or_build
from tarpeg.shards.mapped import Shards

# --- bad tars


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (gzip.compress(b"x" * 2000, mtime=0), "must be uncompressed: run gunzip"),
        (b"\n<!DOCTYPE html><html>404</html>" * 60, "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"PK\x03\x04" + b"." * 600, "zip"),
        (b"\xff\xd8\xff" + b"." * 2000, "another format"),
        (b"k", "another format, or is truncated"),
        (b"\0" * 10240, "has no image"),
    ],
)
def test_files_that_are_no_tar(tmp_path, data, message):
    path = tmp_path / "bad.tar"
    path.write_bytes(data)
    with pytest.raises(ShardError, match=rf"bad\.tar .*{message}"):
        Shards([path])
    assert not list(tmp_path.glob("*.npz"))


def test_missing_folder_fifo_and_no_paths(tmp_path):
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(ShardError, match=r"absent\.tar cannot be read"):
        Shards([tmp_path / "absent.tar"])
    for path in (tmp_path, tmp_path / "pipe.tar"):
        with pytest.raises(ShardError, match="not a regular file"):
            Shards([path])
    with pytest.raises(ShardError, match="has no shards"):
        Shards([])


def test_a_tar_without_images_says_what_it_saw(tmp_path):
    with pytest.raises(ShardError, match=r"t\.tar has no image: its first key is 'a'.*first dot"):
        Shards([write_tar(tmp_path / "t.tar", [("a.0001.jpg", b"."), ("a.0002.jpg", b".")])])
    with pytest.raises(ShardError, match=r"no key\.extension members at all"):
        Shards([write_tar(tmp_path / "u.tar", [("README", b".")])])


def test_truncation_anywhere_is_an_error(tmp_path):
    whole = write_tar(
        tmp_path / "w.tar", [("a.jpg", b"A" * 700), ("x" * 120 + ".jpg", b"B" * 1024)]
    ).read_bytes()
    end = len(whole.rstrip(b"\0"))
    end += -end % 512  # where the end-of-archive blocks begin
    path = tmp_path / "cut.tar"
    for length in [*range(1, end + 512, 61), *range(0, end + 512, 512), end + 511]:
        path.write_bytes(whole[:length])
        with pytest.raises(ShardError, match=r"cut\.tar"):
            build(path)
    path.write_bytes(whole[: end + 512])
    assert build(path).samples.shape == (3, 2)


def test_joined_tars_and_a_damaged_header_are_errors(tmp_path):
    a, b = plain(tmp_path / "a.tar"), plain(tmp_path / "b.tar")
    joined, damaged = tmp_path / "j.tar", bytearray(a.read_bytes())
    joined.write_bytes(a.read_bytes() + b.read_bytes())
    with pytest.raises(ShardError, match=r"j\.tar continues after its end"):
        build(joined)
    damaged[1024 + 3] ^= 1  # the second member's name: its checksum is off
    joined.write_bytes(damaged)
    with pytest.raises(ShardError, match=r"damaged: no tar header at byte 1024"):
        build(joined)


def test_random_damage_never_gives_more_than_a_shard_error(tmp_path):
    whole = plain(tmp_path / "a.tar", 4).read_bytes()
    path, rng = tmp_path / "d.tar", random.Random(0)
    for _ in range(250):
        data = bytearray(whole)
        header = 512 * rng.randrange(0, 8)
        for _ in range(rng.randrange(1, 4)):
            data[header + rng.choice([0, 100, 124, 125, 135, 156, rng.randrange(512)])] = rng.randrange(256)
        # With the checksum set right, damage gets past the first check.
        data[header + 148 : header + 156] = b" " * 8
        data[header + 148 : header + 156] = b"%06o\0 " % (sum(data[header : header + 512]) & 0o777777)
        path.write_bytes(data)
        try:
            index = build(path)
        except ShardError:
            continue
        assert (index.members[1:] >= 0).all() and (index.members[1:].sum(axis=0) <= len(data)).all()


# --- the saved index


def test_saved_index_is_used_and_invalidated(tmp_path, monkeypatch):
    path = plain(tmp_path / "a.tar")
    saved = tmp_path / "a.tarpeg.npz"
    first = load_or_build(path)
    assert saved.exists() and len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr("tarpeg.shards.index.build", lambda path: pytest.fail("built again"))
    again = load_or_build(path)
    assert (again.samples == first.samples).all() and (again.members == first.members).all()
    assert again.extensions == first.extensions and (again.keys == first.keys).all()
    monkeypatch.undo()
    os.utime(path, ns=(0, 0))  # same size, other time
    assert load_or_build(path).tar_mtime_ns == 0
    plain(path, 5)
    assert len(Shards([path])) == 5


def test_damaged_saved_index_is_rebuilt(tmp_path):
    path = plain(tmp_path / "a.tar")
    saved = tmp_path / "a.tarpeg.npz"
    expected = images(Shards([path]))
    good, rng = saved.read_bytes(), random.Random(1)
    damages = [good[:n] for n in range(0, len(good), 197)]
    for _ in range(120):
        data = bytearray(good)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        damages.append(bytes(data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of odd headers
        for data in damages:
            saved.write_bytes(data)
            assert images(Shards([path], threads=1)) == expected


@pytest.mark.parametrize(
    ("array", "row", "column", "value"),
    [
        *(
            ("members", row, 1, value)
            for row, value in ((0, 9), (0, -1), (1, -5), (1, 1 << 40), (2, 1 << 62), (2, -1))
        ),
        *(("samples", row, 1, value) for row, value in ((0, 99), (0, -1), (1, 0), (1, 99), (2, 0), (2, 99))),
    ],
)
def test_a_saved_index_that_lies_is_not_believed(tmp_path, array, row, column, value):
    path = plain(tmp_path / "a.tar")
    expected = images(Shards([path]))
    saved = tmp_path / "a.tarpeg.npz"
    with np.load(saved) as file:
        arrays = dict(file)
    arrays[array][row, column] = value
    np.savez(saved, **arrays)
    assert images(Shards([path])) == expected


def test_without_a_writable_folder_the_index_goes_to_the_cache(tmp_path, cache_home):
    path = plain(tmp_path / "a.tar")
    # A folder in the index's place: nobody can write there, root included.
    (tmp_path / "a.tarpeg.npz").mkdir()
    (tmp_path / "a.tarpeg.npz" / "x").touch()
    assert len(Shards([path])) == 3
    (saved,) = (cache_home / "tarpeg" / "index").iterdir()
    before = saved.stat().st_mtime_ns
    assert len(Shards([path])) == 3 and saved.stat().st_mtime_ns == before
    assert not [entry for entry in tmp_path.iterdir() if entry.suffix == ".tmp"]


def test_without_any_place_to_write_it_still_works(tmp_path, monkeypatch):
    path = plain(tmp_path / "a.tar")
    (tmp_path / "a.tarpeg.npz").mkdir()
    (tmp_path / "a.tarpeg.npz" / "x").touch()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert images(Shards([path])) == [b"J0", b"J1", b"J2"]


def test_many_processes_may_index_at_once(tmp_path):
    paths = [plain(tmp_path / f"{i}.tar", 20) for i in range(4)]
    with multiprocessing.get_context("fork").Pool(6) as pool:
        assert pool.map(_count, [paths] * 12) == [80] * 12
    assert sorted(entry.suffix for entry in tmp_path.iterdir()) == [".npz"] * 4 + [".tar"] * 4


def _count(paths):
    return len(Shards(paths))
