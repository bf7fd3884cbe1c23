"""The saved index of a tar: used while it is valid, and never trusted."""

from __future__ import annotations

import multiprocessing
import os
import random
import warnings

import numpy as np
import pytest
from helpers.small_tars import cache_home as cache_home, images, plain, write_tar
from tarpeg.shards.index import load, load_or_build
from tarpeg.shards.mapped import Shards


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


def test_an_index_from_before_avif_was_an_image_is_built_again(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"J"), ("b.avif", b"A"), ("c.cls", b"1")])
    assert images(Shards([path])) == [b"J", b"A"]
    with np.load(tmp_path / "a.tarpeg.npz") as saved:
        arrays = dict(saved)
    arrays["head"][0] = 1
    np.savez(
        tmp_path / "a.tarpeg.npz",
        **arrays | {"samples": arrays["samples"][:, :1], "keys": arrays["keys"][:1]},
    )
    with pytest.warns(UserWarning, match="1 samples have no image .* key 'c'"):
        assert images(Shards([path])) == [b"J", b"A"]
    found = path.stat()
    assert load(tmp_path / "a.tarpeg.npz", found.st_size, found.st_mtime_ns).left_out == 1


def test_every_failure_to_parse_a_saved_index_is_damage(tmp_path):
    """Of arrays longer than zipfile's buffer, the header is parsed before the checksum is compared."""
    path = plain(tmp_path / "a.tar", 600)
    found, saved = path.stat(), tmp_path / "a.tarpeg.npz"
    load_or_build(path)
    good = saved.read_bytes()
    header = good.index(b"{'descr'", good.index(b"members.npy"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in range(header, header + 64):
            for bit in (1, 8, 64):
                saved.write_bytes(bytes([*good[:place], good[place] ^ bit, *good[place + 1 :]]))
                assert load(saved, found.st_size, found.st_mtime_ns) is None


def test_a_saved_index_that_is_not_a_file_is_built_again(tmp_path):
    path = plain(tmp_path / "a.tar")
    saved = tmp_path / "a.tarpeg.npz"
    for make in (os.mkfifo, lambda saved: saved.symlink_to("/dev/zero")):
        make(saved)
        assert images(Shards([path])) == [b"J0", b"J1", b"J2"] and saved.is_file()
        saved.unlink()


WRONG_NUMBERS = {
    "members": [(0, 9), (0, -1), (1, -5), (1, 1 << 40), (2, 1 << 62), (2, -1)],
    "samples": [(0, 99), (0, -1), (1, 0), (1, 99), (2, 0), (2, 99)],
}


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
        warnings.simplefilter("ignore")  # numpy's, about odd headers
        for data in damages:
            saved.write_bytes(data)
            assert images(Shards([path], threads=1)) == expected
    for array, wrong in WRONG_NUMBERS.items():
        for row, value in wrong:
            saved.write_bytes(good)
            with np.load(saved) as file:
                arrays = dict(file)
            arrays[array][row, 1] = value
            np.savez(saved, **arrays)
            assert images(Shards([path])) == expected, (array, row, value)


def test_an_index_that_cannot_be_saved_beside_the_tar(tmp_path, cache_home, monkeypatch):
    (tmp_path / "a.tarpeg.npz" / "x").mkdir(parents=True)  # not even root can replace this folder
    path = plain(tmp_path / "a.tar")
    assert len(Shards([path])) == 3
    (saved,) = (cache_home / "tarpeg" / "index").iterdir()
    before = saved.stat().st_mtime_ns
    assert len(Shards([path])) == 3 and saved.stat().st_mtime_ns == before
    assert not [entry for entry in tmp_path.iterdir() if entry.suffix == ".tmp"]
    (tmp_path / "file").touch()  # in place of the cache directory
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert images(Shards([path])) == [b"J0", b"J1", b"J2"]


def test_many_processes_may_index_at_once(tmp_path):
    paths = [plain(tmp_path / f"{i}.tar", 20) for i in range(4)]
    with multiprocessing.get_context("fork").Pool(6) as pool:
        assert [len(shards) for shards in pool.map(Shards, [paths] * 12)] == [80] * 12
    assert sorted(entry.suffix for entry in tmp_path.iterdir()) == [".npz"] * 4 + [".tar"] * 4
