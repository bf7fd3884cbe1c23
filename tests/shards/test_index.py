"""The saved index of a tar: used while it is valid, and never trusted."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from dataclasses import replace

import numpy as np
import pytest
from helpers.small_tars import cache_home as cache_home, images, plain, write_tar
from tarpeg.shards.index import build, load, load_or_build, save
from tarpeg.shards.mapped import Shards


def test_saved_index_is_used_and_invalidated(tmp_path, monkeypatch):
    path = plain(tmp_path / "a.tar")
    saved = tmp_path / "a.tarpeg.index"
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


def write_old(path, index, version=None, **changed):
    """Save an index beside its tar as early versions did."""
    texts = json.dumps({"extensions": index.extensions, "first_left_out": index.first_left_out})
    version = version or (3 if index.left_out else 1)
    head = [version, index.tar_nbytes, index.tar_mtime_ns, index.left_out]
    arrays = {"head": np.array(head), "keys": index.keys, "samples": index.samples, "members": index.members}
    texts = np.frombuffer(texts.encode(), np.uint8)
    old = path.with_name(f"{path.stem}.tarpeg.npz")
    np.savez(old, **{**arrays, "texts": texts, **changed})
    return old


def test_an_index_of_an_early_version_is_read(tmp_path, monkeypatch):
    path = plain(tmp_path / "a.tar", 50)
    expected = build(path)
    old = write_old(path, expected)
    with monkeypatch.context() as patched:
        patched.setattr("tarpeg.shards.index.build", lambda path: pytest.fail("built again"))
        found = load_or_build(path)
        assert (found.samples == expected.samples).all() and (found.members == expected.members).all()
        assert found.extensions == ("jpg", "cls") and len(images(Shards([path]))) == 50
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["a.tar", "a.tarpeg.npz"]
    good = old.read_bytes()
    for place in range(0, len(good), 7):
        old.write_bytes(bytes([*good[:place], good[place] ^ 4, *good[place + 1 :]]))
        assert len(Shards([path], threads=1)) == 50
        (tmp_path / "a.tarpeg.index").unlink(missing_ok=True)


def test_an_index_from_before_avif_was_an_image_is_built_again(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"J"), ("b.avif", b"A"), ("c.cls", b"1")])
    index = build(path)
    write_old(path, index, 1, samples=index.samples[:, :1], keys=index.keys[:1])
    with pytest.warns(UserWarning, match="1 samples have no image .* key 'c'"):
        assert images(Shards([path])) == [b"J", b"A"]
    found = path.stat()
    assert load(tmp_path / "a.tarpeg.index", found.st_size, found.st_mtime_ns).left_out == 1


def test_a_saved_index_that_is_not_a_file_is_built_again(tmp_path):
    path = plain(tmp_path / "a.tar")
    saved = tmp_path / "a.tarpeg.index"
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
    place = tmp_path / "a.tarpeg.index"
    found = path.stat()
    index, expected = load_or_build(path), images(Shards([path]))
    good, rng = place.read_bytes(), random.Random(1)
    damages = [good[:n] for n in range(0, len(good), 13)]
    for at in range(len(good)):
        damages.append(bytes([*good[:at], good[at] ^ 1 << rng.randrange(8), *good[at + 1 :]]))
    for data in damages:
        place.write_bytes(data)
        assert load(place, found.st_size, found.st_mtime_ns) is None
    for data in damages[::50]:
        place.write_bytes(data)
        assert images(Shards([path], threads=1)) == expected and place.read_bytes() == good
    # A checksum is no proof: the numbers address memory.
    for array, wrong in WRONG_NUMBERS.items():
        for row, value in wrong:
            numbers = getattr(index, array).copy()
            numbers[row, 1] = value
            assert save(replace(index, **{array: numbers}), place)
            assert images(Shards([path])) == expected, (array, row, value)


def test_an_index_that_cannot_be_saved_beside_the_tar(tmp_path, cache_home, monkeypatch):
    (tmp_path / "a.tarpeg.index" / "x").mkdir(parents=True)  # not even root can replace this folder
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
    assert sorted(entry.suffix for entry in tmp_path.iterdir()) == [".index"] * 4 + [".tar"] * 4
