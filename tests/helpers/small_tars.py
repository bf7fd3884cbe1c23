"""Small tars for tests, and what is in tars."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from helpers.pictures import jpeg


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory, monkeypatch):
    """A new folder as the user's cache directory: no test finds the index of another."""
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


def write_tar(path, members, format=tarfile.PAX_FORMAT, headers=None):
    """Write a tar of members: (name, bytes) pairs, or TarInfo for members without data.

    headers: records of an extended header of each member, in the format PAX.
    """
    with tarfile.open(path, "w", format=format) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size, info.pax_headers = len(member[1]), headers or {}
                tar.addfile(info, io.BytesIO(member[1]))
    return Path(path)


def plain(path, count=3, start=0):
    """Write a shard of samples k0000, k0001, ... with .jpg (not an image) and .cls."""
    pairs = [(f"k{i:04d}", i) for i in range(start, start + count)]
    return write_tar(path, [m for k, i in pairs for m in ((k + ".jpg", b"J%d" % i), (k + ".cls", b"%d" % i))])


def tars(folder: str | Path) -> dict[str, bytes]:
    """Return the bytes of each shard by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.tar"))}


def members(tar: Path) -> dict[str, bytes]:
    """Return the bytes of each member by name."""
    with tarfile.open(tar) as file:
        return {member.name: file.extractfile(member).read() for member in file}


def images(shards, ids=None):
    return [bytes(t.numpy()) for t in shards.images(range(len(shards)) if ids is None else ids)]


SIZES = ((64, 80), (97, 71), (160, 120))


def sample(number: int, data: bytes | None = None, extension: str = "jpg", label: bytes | None = None):
    """The members of one sample: key k0007, label 7 % 5."""
    key = f"k{number:04d}"
    if data is None:
        data = jpeg("420" if number % 3 else "gray", *SIZES[number % len(SIZES)], seed=number)
    return [(f"{key}.{extension}", data), (f"{key}.cls", b"%d" % (number % 5) if label is None else label)]
