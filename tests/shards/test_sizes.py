"""Sizes of images: read from the headers once, then from a file beside the tar."""

from __future__ import annotations

import os
import pickle
from unittest.mock import Mock

import numpy as np
import pytest
import tarpeg
from helpers.pictures import jpeg, saved
from helpers.small_tars import cache_home as cache_home, write_tar
from PIL import Image
from tarpeg.errors import BuildError
from tarpeg.ops import decode
from tarpeg.shards import pillow, saved as saved_files, sizes
from tarpeg.shards.mapped import Shards
from tarpeg.shards.source import Source

KINDS = [
    ("a.jpg", jpeg("420", 40, 64)),
    ("b.jpg", saved(Image.new("RGB", (20, 30)), "JPEG", orientation=6)),
    ("c.ppm", saved(Image.new("RGB", (7, 9)), "PPM")),
    ("d.png", saved(Image.new("RGB", (7, 9)), "PNG")),
    ("e.jpg", b"broken"),
]
EXPECTED = [[40, 64], [20, 30], [9, 7], [9, 7], [0, 0]]


@pytest.fixture
def headers_read(monkeypatch):
    """How many images' headers were read, a number per call."""
    read, image_sizes = [], decode.image_sizes
    monkeypatch.setattr(decode, "image_sizes", lambda files: read.append(len(files)) or image_sizes(files))
    return read


def test_sizes_are_read_once_and_saved(tmp_path, headers_read):
    paths = [write_tar(tmp_path / f"{name}.tar", KINDS) for name in "ab"]
    shards = Shards(paths)
    assert not list(tmp_path.glob("*.sizes")), "only where they are asked for"
    assert shards.sizes([4, 0, 1, 0]).tolist() == [EXPECTED[id] for id in (4, 0, 1, 0)]
    assert [path.name for path in tmp_path.glob("*.sizes")] == ["a.tarpeg.sizes"]
    assert shards.sizes(range(10)).tolist() == EXPECTED * 2 and shards.sizes([]).shape == (0, 2)
    assert shards.sizes([3]).dtype == np.int32 and headers_read == [5, 5]
    for other in (Shards(paths), pickle.loads(pickle.dumps(shards)), Shards(paths[::-1])):
        assert other.sizes(range(10)).tolist() == EXPECTED * 2
    assert headers_read == [5, 5]
    assert Source.sizes(shards, range(5)).tolist() == EXPECTED


def test_sizes_of_another_tar_or_damaged_ones_are_read_again(tmp_path, headers_read):
    path = write_tar(tmp_path / "a.tar", KINDS)
    Shards([path]).sizes([0])
    place = tmp_path / "a.tarpeg.sizes"
    good = place.read_bytes()
    for damaged in (b"", good[:-1], bytes([*good[:-3], good[-3] ^ 1, *good[-2:]])):
        place.write_bytes(damaged)
        assert Shards([path]).sizes(range(5)).tolist() == EXPECTED and place.read_bytes() == good
    before = path.stat()
    write_tar(path, [(name.replace("a.jpg", "A.jpg"), data) for name, data in KINDS[::-1]])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert Shards([path]).sizes(range(5)).tolist() == EXPECTED[::-1]
    assert headers_read == [5] * 5


def test_sizes_of_a_cache_and_of_a_folder_that_is_read_only(tmp_path, cache_home, headers_read):
    write_tar(tmp_path / "a.tar", KINDS[:3])
    tarpeg.build_cache(tmp_path / "a.tar", tmp_path / "cache", executor=0)
    shards = tarpeg.Split(tmp_path / "cache", tarpeg.CenterCrop(8)).open()
    assert shards.sizes(range(3)).tolist() == EXPECTED[:3]
    assert (tmp_path / "cache" / "a.tarpeg.sizes").exists()
    assert tarpeg.verify_cache(tmp_path / "cache", 0).is_good
    assert tarpeg.build_cache(tmp_path / "a.tar", tmp_path / "cache", executor=0).built == 0
    path = write_tar(tmp_path / "b.tar", KINDS)
    (tmp_path / "b.tarpeg.sizes" / "x").mkdir(parents=True)  # not even root can replace this folder
    for _ in range(2):
        assert Shards([path]).sizes(range(5)).tolist() == EXPECTED
    assert len(list((cache_home / "tarpeg" / "index").glob("*.sizes"))) == 1
    assert (headers_read[0], headers_read[-1]) == (3, 5) and 5 not in headers_read[:-1]


@pytest.mark.parametrize("codec", [tarpeg.Tiled(), tarpeg.Packed(), tarpeg.Raw(), tarpeg.Original()])
def test_a_build_writes_the_sizes_that_would_be_read(tmp_path, codec, monkeypatch):
    odd = [(f"{number:03d}.jpg", jpeg("420", 16 + number, 40)) for number in range(70)]
    kinds = [*KINDS, ("f.jpg", b""), ("g.cls", b"1"), *odd]
    write_tar(tmp_path / "a.tar", kinds)
    tarpeg.build_cache(tmp_path / "a.tar", tmp_path / "cache", codec, executor=0)
    tar, place = tmp_path / "cache" / "a.tar", tmp_path / "cache" / "a.tarpeg.sizes"
    written = place.read_bytes()
    place.unlink()
    shards = Shards([tar])
    read = shards.sizes(range(len(shards)))
    assert len(read) == (76 if codec == tarpeg.Original() else 74) and read[0].tolist() == [40, 64]
    assert place.read_bytes() == written
    os.utime(tar, ns=(0, 0))  # a copy of the cache
    monkeypatch.setattr(decode, "image_sizes", None)
    assert Shards([tar]).sizes(range(len(shards))).tolist() == read.tolist()


@pytest.fixture
def odd_folder(tmp_path):
    """A folder with images of all kinds, and names that a tar keeps in extended headers, or shortens."""
    names = ["a.jpg", "Grüße im Kreis.jpeg", f"{'n' * 120}.JPG", "white space%20.png", "e.jpg", "f.ppm"]
    (tmp_path / "images" / "ä").mkdir(parents=True)
    for name, (_, data) in zip(
        names, [KINDS[0], KINDS[1], KINDS[0], KINDS[3], KINDS[4], KINDS[2]], strict=True
    ):
        (tmp_path / "images" / "ä" / name).write_bytes(data)
    return tarpeg.Folder(tmp_path / "images")


@pytest.mark.parametrize("kind", ["folder", "photos", "scenes"])
def test_shards_that_are_no_cache_get_the_sizes_that_would_be_read(tmp_path, odd_folder, kind, monkeypatch):
    photos = tarpeg.Photos(size=[24, (30, 40)], progressive=0.3, gray=0.3, exif=0.5, corrupt=0.3)
    source = {"folder": odd_folder, "photos": photos, "scenes": tarpeg.Scenes(size=64)}[kind]
    count = 6 if kind == "folder" else 20
    paths = tarpeg.make_shards(tmp_path / "out", source, count, samples_per_shard=4, workers=0).shards
    written = {path: path.read_bytes() for path in (tmp_path / "out").glob("*.tarpeg.sizes")}
    assert len(written) == len(paths) == -(-count // 4)
    with monkeypatch.context() as patched:
        patched.setattr(decode, "image_sizes", None)
        held = Shards(paths).sizes(range(count))
    for path in written:
        path.unlink()
    assert Shards(paths).sizes(range(count)).tolist() == held.tolist()
    assert {path: path.read_bytes() for path in written} == written
    assert len({*map(tuple, held.tolist())}) == {"folder": 4, "photos": 3, "scenes": 1}[kind]


def test_shards_are_written_where_sizes_cannot_be(tmp_path, odd_folder, monkeypatch):
    # Without the operators, they are asked for once only: each time may be a compiler's.
    for error, times in ((OSError(19, "No such device"), 3), (BuildError("no compiler"), 1)):
        refuse, out = Mock(side_effect=error), tmp_path / str(times)
        monkeypatch.setattr(sizes, "sizes_file", refuse)
        paths = tarpeg.make_shards(out, odd_folder, samples_per_shard=2, workers=0).shards
        assert (len(paths), refuse.call_count) == (3, times) and not list(out.glob("*.sizes"))
        assert Shards(paths).sizes(range(6)).any(axis=1).sum() == 5


def test_a_build_where_files_cannot_be_mapped_leaves_the_sizes_to_readers(tmp_path, monkeypatch):
    def refuse(path: str, nbytes: int) -> None:
        raise OSError(19, "No such device", path)

    write_tar(tmp_path / "a.tar", KINDS[:3])
    with monkeypatch.context() as patched:
        patched.setattr(decode, "map_file", refuse)
        assert tarpeg.build_cache(tmp_path / "a.tar", tmp_path / "cache", executor=0).samples == 3
    assert Shards([tmp_path / "cache" / "a.tar"]).sizes(range(3)).tolist() == EXPECTED[:3]


def test_a_cache_without_sizes_or_with_those_of_an_early_version_gets_them(tmp_path):
    write_tar(tmp_path / "a.tar", KINDS[:3])
    tarpeg.build_cache(tmp_path / "a.tar", tmp_path / "cache", executor=0)
    tar, place = tmp_path / "cache" / "a.tar", tmp_path / "cache" / "a.tarpeg.sizes"
    written, stat = place.read_bytes(), tar.stat()
    (_, _, *rest), (column,) = saved_files.read(place, saved_files.SIZES, 2)
    numbers = [stat.st_size, stat.st_mtime_ns, *rest]  # as early versions kept them
    place.write_bytes(saved_files.encoded(saved_files.SIZES, 2, numbers, [column[::-1]]))
    for _ in range(2):
        assert Shards([tar]).sizes(range(3)).tolist() == EXPECTED[:3] and place.read_bytes() == written
        place.unlink()
    (tmp_path / "cache" / "a.idx").unlink()
    assert tarpeg.build_cache(tmp_path / "a.tar", tmp_path / "cache", executor=0).built == 1
    assert place.read_bytes() == written


@pytest.mark.parametrize("orientation", [None, 1, 3, 6, 8])
@pytest.mark.parametrize(
    "kind", [kind for kind in pillow.PILLOW_FORMATS if kind not in ("JPEG", "GIF", "BMP", "DIB", "PPM")]
)
def test_sizes_of_formats_that_pillow_decodes_are_upright(kind, orientation):
    options = {} if orientation is None else {"orientation": orientation}
    data = saved(Image.new("RGB", (40, 24)), kind, **options)
    upright = pillow.open_upright(data)
    assert pillow.upright_size(data) == (upright.height, upright.width)
