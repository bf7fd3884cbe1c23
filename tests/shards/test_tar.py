"""Members of tars, of files and of streams: complete or an error, with nothing lost silently."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import random
import tarfile

import pytest
from helpers.odd_files import kernel_log, odd_files
from helpers.small_tars import cache_home as cache_home, plain, write_tar
from tarpeg import ShardError
from tarpeg.shards import tar as tars
from tarpeg.shards.index import ShardIndex, build, load_or_build
from tarpeg.shards.mapped import Shards
from tarpeg.shards.paths import expand
from tarpeg.shards.tar import header_end, is_member, streamed_members
from tarpeg.shards.urls import open_stream

# --- files


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (gzip.compress(b"x" * 2000, mtime=0), "gunzip"),
        (b"\n<!DOCTYPE html><html>404</html>" * 60, "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"PK\x03\x04" + b"." * 600, "zip"),
        (b"\xff\xd8\xff" + b"." * 2000, "is an image, not a tar: give the folder"),
        (b"\x89PNG" + b"." * 2000, "is an image"),
        (b"k", ""),
        (b"\0" * 10240, "has no image"),
    ],
)
def test_files_that_are_not_tars(tmp_path, data, message):
    path = tmp_path / "bad.tar"
    path.write_bytes(data)
    with pytest.raises(ShardError, match=rf"bad\.tar .*{message}"):
        Shards([path])
    assert not list(tmp_path.glob("*.index"))


def test_missing_folder_fifo_no_paths_and_no_images(tmp_path):
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(ShardError, match=r"absent\.tar"):
        Shards([tmp_path / "absent.tar"])
    for path in (tmp_path, tmp_path / "pipe.tar"):
        with pytest.raises(ShardError, match="not a regular file"):
            Shards([path])
    with pytest.raises(ShardError, match="has no shards"):
        Shards([])
    with pytest.raises(ShardError, match=r"t\.tar .*'a'.*'0001\.jpg'"):
        Shards([write_tar(tmp_path / "t.tar", [("a.0001.jpg", b"."), ("a.0002.jpg", b".")])])
    with pytest.raises(
        ShardError, match=r"\['heic', 'cls'\].* HEIC is not read: convert such images to JPEG"
    ):
        Shards([write_tar(tmp_path / "h.tar", [("a.HEIC", b"."), ("a.cls", b"1")])])
    with pytest.raises(ShardError, match=r"key\.extension"):
        Shards([write_tar(tmp_path / "u.tar", [("README", b".")])])


@pytest.mark.parametrize("pattern", ["", "*.tar"])
def test_odd_files_among_shards_are_errors_not_left_out(tmp_path, pattern):
    plain(tmp_path / "a.tar")
    for path in [*odd_files(tmp_path, "tar"), kernel_log(tmp_path, "tar")]:
        with pytest.raises(ShardError, match=r"\w+\.tar is (not a regular file|empty)"):
            Shards(expand(tmp_path / pattern))
        if not path.is_file():
            with pytest.raises(OSError, match="not a regular file"):
                open_stream(str(path))
        path.unlink()
    assert len(Shards(expand(tmp_path / pattern))) == 3


def test_truncation_anywhere_is_an_error(tmp_path):
    members = [("a.jpg", b"A" * 700), ("x" * 120 + ".jpg", b"B" * 1024)]
    whole = write_tar(tmp_path / "w.tar", members).read_bytes()
    end = len(whole.rstrip(b"\0"))
    end += -end % 512  # start of the end-of-archive blocks
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
    with pytest.raises(ShardError, match=r"j\.tar .*after its end"):
        build(joined)
    damaged[1024 + 3] ^= 1  # the second member's name: its checksum is wrong
    joined.write_bytes(damaged)
    with pytest.raises(ShardError, match="byte 1024"):
        build(joined)


def test_random_damage_raises_nothing_but_a_shard_error(tmp_path):
    whole = plain(tmp_path / "a.tar", 4).read_bytes()
    path, rng = tmp_path / "d.tar", random.Random(0)
    for _ in range(250):
        data = bytearray(whole)
        header = 512 * rng.randrange(0, 8)
        for _ in range(rng.randrange(1, 4)):
            data[header + rng.choice([0, 100, 124, 125, 135, 156, rng.randrange(512)])] = rng.randrange(256)
        # With a correct checksum, damage passes the first check.
        data[header + 148 : header + 156] = b" " * 8
        data[header + 148 : header + 156] = b"%06o\0 " % (sum(data[header : header + 512]) & 0o777777)
        path.write_bytes(data)
        try:
            index = build(path)
        except ShardError:
            continue
        assert (index.members[1:] >= 0).all() and (index.members[1:].sum(axis=0) <= len(data)).all()


PLAIN = ["a.jpg", "b/A.JPG", "b/A2.jpg", "b/A.png", "z" * 96 + ".jpg", "f/" * 70 + "a.webp"]
NAMES = {
    tarfile.USTAR_FORMAT: PLAIN,
    tarfile.GNU_FORMAT: [*PLAIN, "z" * 97 + ".jpg", "ünï.tif", "sur\udcffrogate.jpg", "ü" * 300 + ".JPEG"],
}
NAMES[tarfile.PAX_FORMAT] = [*NAMES[tarfile.GNU_FORMAT], "nul.jpg", "nul\0.jpg", "line\n.jpg"]


@pytest.mark.parametrize("format", NAMES)
def test_headers_are_compared_with_the_index(tmp_path, format):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=format, encoding="utf-8", errors="surrogateescape") as tar:
        for number, name in enumerate(NAMES[format]):
            member = tarfile.TarInfo(name)
            member.size = 7
            if number % 2 or "\0" in name:
                member.pax_headers = {"comment": "x" * 2000, "path": name, "mtime": "1.5"}
            tar.addfile(member, io.BytesIO(b"content"))
    data, index = path.read_bytes(), ShardIndex.of(build(path))
    assert len(index) == len(NAMES[format])
    members = [(index.key_bytes(row), *index.members(row)[0]) for row in range(len(index))]
    for key, extension, offset, nbytes in members:
        for other in members:
            fits = is_member(data, offset, nbytes, other[0], header_end(other[1]))
            assert fits == (other == (key, extension, offset, nbytes)), (key, other)
        for size in (6, 8, 7 << 33):
            assert not is_member(data, offset, size, key, header_end(extension))
        assert not is_member(data, offset + 512, nbytes, key, header_end(extension))
    assert not is_member(data, 0, 7, b"a", header_end("jpg")) and not is_member(b"", 0, 0, b"", b"")


def rewritten(data, field):
    """The tar with other size fields, of field(nbytes)."""
    data = bytearray(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = list(tar)
    for member in members:
        start = member.offset_data - 512
        data[start + 124 : start + 136] = field(member.size)
        data[start + 148 : start + 156] = b" " * 8
        data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    return bytes(data)


SIZES = {
    "spaces": lambda nbytes: b"%11o " % nbytes,
    "twelve": lambda nbytes: b"%012o" % nbytes,
    "left": lambda nbytes: (b"%o" % nbytes).ljust(12, b"\0"),
    "base 256": lambda nbytes: b"\x80" + nbytes.to_bytes(11, "big"),
    "pax": None,
    "long pax": None,
}


@pytest.mark.parametrize("form", SIZES)
def test_sizes_that_tarfile_reads_are_compared(tmp_path, monkeypatch, form):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("a.jpg", "b/é.JPG", "z" * 120 + ".jpg"):
            member = tarfile.TarInfo(name)
            member.size = 700
            if form == "pax":
                member.pax_headers = {"size": "700", "comment": "\n20 path=other.jpg\n"}
            elif form == "long pax":
                member.pax_headers = {"SCHILY.xattr.user.x": "q" * 9000}
            tar.addfile(member, io.BytesIO(bytes(700)))
    data = path.read_bytes()
    if form == "pax":  # as for members of 8 GB
        data = rewritten(data, lambda _: b"0" * 11 + b"\0")
    elif SIZES[form]:
        data = rewritten(data, SIZES[form])
    path.write_bytes(data)
    shards = Shards([path])
    for module in ("index", "mapped"):
        monkeypatch.setattr(f"tarpeg.shards.{module}.build", lambda path: pytest.fail("walked again"))
        monkeypatch.setattr(f"tarpeg.shards.{module}.rebuild", lambda path: pytest.fail("walked again"))
    assert [len(image) for image in Shards([path]).images(range(len(shards)))] == [700] * 3
    own = ShardIndex.of(load_or_build(path))
    for row in range(3):
        (extension, offset, nbytes), key = own.members(row)[0], own.key_bytes(row)
        for size, other in ((nbytes + 1, key), (nbytes * 8, key), (nbytes, b"other")):
            assert not is_member(data, offset, size, other, header_end(extension))


# --- streams


def streamed(data):
    return list(streamed_members(io.BytesIO(data), "x.tar"))


@pytest.fixture
def whole(tmp_path):
    """A tar of ten samples, and the start of its end-of-archive blocks."""
    return plain(tmp_path / "whole.tar", 10).read_bytes(), 20 * 1024


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_stream_is_complete_or_an_error(whole, pack):
    data, end = whole
    names = [f"k{number:04d}.{extension}" for number in range(10) for extension in ("jpg", "cls")]
    assert [name for name, _ in streamed(pack(data))] == names
    assert len(streamed(pack(data[: end + 512]))) == 20, "one block of zeros is an end"
    for length in (*range(0, end + 1, 512), *range(1, end + 512, 997), end + 511):
        with pytest.raises(tarfile.ReadError):
            streamed(pack(data[:length]))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_stream_of_several_parts_is_read_to_its_end(whole, pack):
    data, _ = whole
    if pack is not bytes:  # as pbzip2 and bgzip write them
        assert streamed(pack(data[:5000]) + pack(data[5000:])) == streamed(data)
    with pytest.raises(tarfile.ReadError, match="continues after its end-of-archive block"):
        streamed(pack(data) + pack(data))
    with pytest.raises(tarfile.ReadError, match=r"zstd -dc"):
        streamed(b"\x28\xb5\x2f\xfd" + data)


def test_a_tail_of_zeros_as_of_a_download_that_was_not_finished_is_a_warning(whole, tmp_path):
    data, end = whole
    path, what = tmp_path / "a.tar", r"has 40960 zero bytes after its end: .* download that was not finished"
    for zeros, is_said in ((20 << 10, False), (40 << 10, True)):
        cut = data[: end // 2] + bytes(512 + zeros)
        path.write_bytes(cut)
        make, load = (lambda _: build(path)), (lambda _: load_or_build(path))
        for read in (streamed, make, load, load):  # at last of the index that was saved
            with pytest.warns(UserWarning, match=what) if is_said else contextlib.nullcontext():
                read(cut)


def member_of(name, nbytes, kind=tarfile.REGTYPE, **pax_headers):
    """A header that promises so many bytes, and a kilobyte of them."""
    member = tarfile.TarInfo(name)
    member.size, member.type, member.pax_headers = nbytes, kind, pax_headers
    return member.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


SPARSE = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": "a.jpg"}
SPARSE |= {"GNU.sparse.map": "0,512", "GNU.sparse.realsize": str(1 << 62)}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_members_that_would_take_all_memory_are_errors_with_their_name(tmp_path, whole, pack):
    before = whole[0][:1024]
    sparse, large = before + member_of("a.jpg", 512, **SPARSE), before + member_of("a.jpg", (1 << 30) + 1)
    with pytest.raises(ShardError, match=r"x\.tar: 'a\.jpg' .*sparse"):
        streamed(pack(sparse))
    with pytest.raises(ShardError, match=r"x\.tar: 'a\.jpg' .*1073741825 .*1073741824"):
        streamed(pack(large))
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        data = before + member_of("a.jpg", 1 << 32, kind)
        with pytest.raises(tarfile.ReadError, match="4294967296 bytes"):
            streamed(pack(data))
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    with pytest.raises(ShardError, match=r"a\.tar .*4294967296"):
        build(path)


def test_damaged_streams_are_errors(whole):
    data, end = whole
    packed = gzip.compress(data)
    for length in range(20, len(packed) // 2, 13):
        with pytest.raises(tarfile.ReadError):
            streamed(packed[:length])
    for header in range(0, end, 1024):
        damaged = bytearray(data)
        damaged[header + 3] ^= 1
        with pytest.raises(tarfile.ReadError, match="damaged"):
            streamed(bytes(damaged))
    with pytest.raises(tarfile.ReadError, match="after its end"):
        streamed(data + data)


def as_newer_pythons(monkeypatch):
    """Have tarfile parse headers as security releases of Python do: by TarInfo._frombuf."""
    if hasattr(tarfile.TarInfo, "_frombuf"):
        return
    parse = tarfile.TarInfo.frombuf.__func__

    def parse_header(cls, buf, encoding, errors, *, dircheck=True):
        return parse(cls, buf, encoding, errors)

    def read_header(cls, tar):
        header = cls._frombuf(tar.fileobj.read(512), tar.encoding, tar.errors, dircheck=True)
        header.offset = tar.fileobj.tell() - 512
        return header._proc_member(tar)

    monkeypatch.setattr(tarfile.TarInfo, "_frombuf", classmethod(parse_header), raising=False)
    monkeypatch.setattr(tarfile.TarInfo, "fromtarfile", classmethod(read_header))


def test_damage_is_found_with_newer_pythons(tmp_path, monkeypatch, whole):
    as_newer_pythons(monkeypatch)
    test_damaged_streams_are_errors(whole)
    test_members_that_would_take_all_memory_are_errors_with_their_name(tmp_path, whole, bytes)


def test_a_tarfile_module_that_parses_in_an_unknown_way_is_an_error(tmp_path, monkeypatch, whole):
    as_newer_pythons(monkeypatch)
    parse = tarfile.TarInfo._frombuf.__func__
    monkeypatch.setattr(tars._Bounded, "_frombuf", classmethod(parse))
    path = tmp_path / "a.tar"
    path.write_bytes(whole[0])
    message = r"tarfile .*Python 3\.\d+"
    with pytest.raises(ShardError, match=message):
        build(path)
    with pytest.raises(ShardError, match=message):
        streamed(whole[0])
