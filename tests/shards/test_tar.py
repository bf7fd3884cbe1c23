"""Members of tars that are read once, forwards; and what would get lost silently."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile

import pytest
from helpers.small_tars import cache_home as cache_home
from helpers.small_tars import plain, sample, write_tar
from tarpeg import ShardError, build_cache
from tarpeg.shards.index import build
from tarpeg.shards.tar import streamed_members
from test_streaming import keys_of, load, taken

_ENDS = [lambda data: data, gzip.compress, bz2.compress, lzma.compress]


def streamed(data):
    return list(streamed_members(io.BytesIO(data), "x.tar"))


@pytest.fixture
def whole(tmp_path):
    """A tar of ten samples, and where its end-of-archive blocks begin."""
    data = plain(tmp_path / "whole.tar", 10).read_bytes()
    return data, 20 * 1024


@pytest.mark.parametrize("pack", _ENDS, ids=["plain", "gzip", "bzip2", "xz"])
def test_a_whole_tar_is_read_compressed_or_not(whole, pack):
    data, end = whole
    names = [f"k{number:04d}.{extension}" for number in range(10) for extension in ("jpg", "cls")]
    assert [name for name, _ in streamed(pack(data))] == names
    assert len(streamed(pack(data[: end + 512]))) == 20, "one block of zeros is an end"


@pytest.mark.parametrize("pack", _ENDS, ids=["plain", "gzip", "bzip2", "xz"])
def test_a_tar_cut_anywhere_is_an_error(whole, pack):
    data, end = whole
    for length in (*range(0, end + 1, 512), *range(1, end + 512, 997), end + 511):
        with pytest.raises(tarfile.ReadError):
            streamed(pack(data[:length]))


def test_a_compressed_tar_that_is_cut_is_an_error(whole):
    packed = gzip.compress(whole[0])
    for length in range(20, len(packed) // 2, 13):
        with pytest.raises(tarfile.ReadError):
            streamed(packed[:length])


def test_a_damaged_header_and_what_comes_behind_the_end_are_errors(whole):
    data, end = whole
    for header in range(0, end, 1024):
        damaged = bytearray(data)
        damaged[header + 3] ^= 1
        with pytest.raises(tarfile.ReadError, match="damaged"):
            streamed(bytes(damaged))
    with pytest.raises(tarfile.ReadError, match="continues after its end-of-archive block"):
        streamed(data + data)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("where", ["between", "inside", "damaged"])
def test_a_stream_that_is_not_whole_is_named(tmp_path, where, workers):
    """It was half of the samples, and no error."""
    path = write_tar(tmp_path / "t.tar", [member for n in range(10) for member in sample(n)])
    with tarfile.open(path) as tar:
        middle = tar.getmember("k0005.jpg").offset
    data = bytearray(path.read_bytes())
    data[middle + 3] ^= where == "damaged"
    path.write_bytes(data[: {"between": middle, "inside": middle + 100}.get(where, len(data))])
    for url in (str(path), f"pipe:cat {path}"):
        text = r"t\.tar cannot be read as a stream: it is " + (
            "damaged" if where == "damaged" else "truncated"
        )
        with pytest.raises(ShardError, match=text):
            taken(load(url, shuffle=False, delivery={"workers": workers}))


def hard_linked(path):
    """A tar in which two samples share the file of their label, as GNU tar writes it."""
    link = tarfile.TarInfo("k0001.cls")
    link.type, link.linkname = tarfile.LNKTYPE, "k0000.cls"
    return write_tar(path, [*sample(0), sample(1)[0], link])


def test_a_hard_linked_member_is_an_error(tmp_path):
    path = hard_linked(tmp_path / "t.tar")
    text = r"t\.tar: 'k0001\.cls' is stored as a hard link to 'k0000\.cls'.*--hard-dereference"
    with pytest.raises(ShardError, match=text):
        build(path)
    with pytest.raises(ShardError, match=text):
        taken(load(path))
    with pytest.raises(ShardError, match=text):
        build_cache(path, tmp_path / "cache", executor=0)


def test_hard_links_that_are_no_members_do_not_matter(tmp_path):
    links = []
    for name in ("README", "__meta__/a.jpg"):
        links.append(tarfile.TarInfo(name))
        links[-1].type, links[-1].linkname = tarfile.LNKTYPE, "k0000.jpg"
    path = write_tar(tmp_path / "t.tar", [*sample(0), *links])
    assert build(path).samples.shape == (3, 1) and keys_of(taken(load(path))) == ["k0000"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_of_one_key_are_samples_apart(tmp_path, shuffle):
    members = [m for n, label in ((0, 0), (1, 1), (0, 2), (2, 3)) for m in sample(n, label=b"%d" % label)]
    (batch,) = taken(load(write_tar(tmp_path / "t.tar", members), shuffle=shuffle))
    pairs = list(zip(batch.key, batch.label.tolist(), strict=True))
    assert sorted(pairs) == [("k0000", 0), ("k0000", 2), ("k0001", 1), ("k0002", 3)]
    assert shuffle or batch.label.tolist() == [0, 1, 2, 3]
