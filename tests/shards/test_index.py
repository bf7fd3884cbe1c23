"""The saved index of a tar: used while it is valid, and never trusted."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import re
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from helpers.small_tars import cache_home as cache_home, images, plain, write_tar
from tarpeg import ShardError
from tarpeg.shards import index
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


@pytest.mark.sweep
@pytest.mark.parametrize("start", range(0, 35, 7))
def test_an_index_of_an_early_version_is_read(tmp_path, monkeypatch, start):
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
    for place in range(start, len(good), 35):
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


def without(index, sample):
    """The index of a tar without one of its samples."""
    starts, ends = np.append(0, index.samples[1, :-1]), index.samples[1]
    key_starts = np.append(0, index.samples[0, :-1])
    dropped = slice(starts[sample], ends[sample]), slice(key_starts[sample], index.samples[0, sample])
    samples = np.delete(index.samples, sample, 1)
    samples[:, sample:] -= [[dropped[1].stop - dropped[1].start], *[[dropped[0].stop - dropped[0].start]] * 2]
    keys, members = np.delete(index.keys, dropped[1]), np.delete(index.members, dropped[0], 1)
    return replace(index, samples=samples, keys=keys, members=members)


def changed(index, array, row, values):
    numbers = getattr(index, array).copy()
    numbers[row, : len(values)] = values
    return replace(index, **{array: numbers})


HIGH, LOW = (1 << 63) - 1, -(1 << 63)
CRAFTED = {
    "differences of key ends wrap": lambda index: changed(index, "samples", 0, [HIGH, LOW, -1]),
    "a negative key end": lambda index: changed(index, "samples", 0, [-5]),
    "the mask is the image": lambda index: changed(index, "samples", 2, [1]),
    "one place twice": lambda index: changed(index, "members", 1, [int(index.members[1, 3])]),
    "a place within a block": lambda index: changed(index, "members", 1, [513]),
    "two names of one extension": lambda index: replace(index, extensions=("jpg", "jpg", "cls")),
    "an extension that is no text": lambda index: replace(index, extensions=("jpg", "png", "\ud800")),
    "a negative number": lambda index: replace(index, left_out=-1),
    "no first sample": lambda index: without(index, 0),
    "no second sample": lambda index: without(index, 1),
    "no last sample": lambda index: without(index, 4),
    "no last label": lambda index: replace(
        changed(index, "samples", 1, [3, 6, 9, 12, 14]), members=index.members[:, :-1]
    ),
}


@pytest.mark.parametrize("form", ["index", "npz"])
@pytest.mark.parametrize("craft", CRAFTED)
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_a_crafted_index_with_a_right_checksum_is_built_again(tmp_path, craft, form, format):
    samples = (
        [(f"k{n}.jpg", b"J%d" % n), (f"k{n}.png", b"mask"), (f"k{n}.cls", b"%d" % n)] for n in range(5)
    )
    path = write_tar(tmp_path / "a.tar", itertools.chain(*samples), format, {"mtime": "1.5"})
    crafted = CRAFTED[craft](build(path))
    if form == "npz":
        write_old(path, crafted)
    else:
        assert save(crafted, tmp_path / "a.tarpeg.index")
    shards = Shards([path])
    assert images(shards) == [b"J0", b"J1", b"J2", b"J3", b"J4"]
    assert shards.labels(range(5)).tolist() == list(range(5)) and shards.members([0], "png") == [b"mask"]


def test_no_crafted_number_changes_what_is_read_in_silence(tmp_path):
    path = plain(tmp_path / "a.tar", 20)
    place, index, rng = tmp_path / "a.tarpeg.index", build(path), random.Random(0)
    expected = [b"J%d" % n for n in range(20)], [*range(20)], [f"k{n:04d}" for n in range(20)]
    odd = [0, 1, -1, 2, 9, 512, 513, 1 << 31, 1 << 62, HIGH, LOW, LOW + 1]
    for _ in range(200):
        arrays = {"samples": index.samples.copy(), "members": index.members.copy()}
        for _ in range(rng.randint(1, 4)):
            numbers = arrays[rng.choice(["samples", "members"])]
            at = rng.randrange(3), rng.randrange(numbers.shape[1])
            given = (
                rng.choice(odd) if rng.random() < 0.5 else int(numbers[at]) + rng.choice([1, -1, 512, -512])
            )
            numbers[at] = min(max(given, LOW), HIGH)
        assert save(replace(index, **arrays), place)
        shards = Shards([path], threads=1)
        try:
            found = images(shards), shards.labels(range(20)).tolist(), shards.keys(range(20))
        except ShardError as error:
            assert re.search(r"key 'k\d+': the index has .* indexed again: start again", str(error)), error
            continue
        assert found == expected, arrays


def test_what_lies_between_members_is_no_reason_to_index_again(tmp_path, monkeypatch):
    folder, link = tarfile.TarInfo("folder"), tarfile.TarInfo("link")
    folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, "k0.jpg"
    long = "d" * 120 + "/" + "n" * 120
    members = [folder, ("k0.jpg", b"J"), link, ("README", b"r"), ("k0.cls", b"1"), ("__x__/y.jpg", b"x")]
    members += [
        ("only.json", b"{}"),
        (f"{long}.jpg", b"L"),
        (f"{long}.cls", b"2"),
        folder,
        ("last.json", b"{}"),
    ]
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = write_tar(tmp_path / "a.tar", members, format)
        assert save(build(path), tmp_path / "a.tarpeg.index")
        with monkeypatch.context() as patched:
            patched.setattr("tarpeg.shards.index.build", lambda path: pytest.fail("built again"))
            index = load_or_build(path)
        assert index.left_out == 2 and index.samples.shape[1] == 2


def test_opening_reads_a_bounded_number_of_headers_between_samples(tmp_path, monkeypatch):
    rest = [(f"t{number:03d}.txt", b"") for number in range(300)]
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"J"), *rest, ("b.jpg", b"J"), *rest])
    load_or_build(path)
    read, members = [], index.regular_members

    def counted(file, path, nbytes):
        for member in members(file, path, nbytes):
            read.append(member)
            yield member

    monkeypatch.setattr(index, "regular_members", counted)
    monkeypatch.setattr(index, "build", lambda path: pytest.fail("built again"))
    load_or_build(path)
    assert len(read) == 600 + 1, "all headers, and the one that ends the first gap"
    read.clear()
    monkeypatch.setattr(index, "_MOST_HEADERS", 20)
    load_or_build(path)
    assert len(read) <= 20 + 2


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
