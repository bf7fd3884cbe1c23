"""Several sources as one."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
import tarpeg
from helpers.own_source import OwnSource
from helpers.pictures import jpeg
from tarpeg.shards.joined import Joined
from tarpeg.shards.mapped import Shards


def tar(path, first, count, extensions):
    with tarfile.open(path, "w") as file:
        for number in range(first, first + count):
            for name in extensions:
                data = jpeg("420", 24, 32, number) if name == "jpg" else str(number).encode()
                member = tarfile.TarInfo(f"{number:04d}.{name}")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture
def parts(tmp_path):
    """Shards whose members have other extensions, in another order."""
    one = Shards(
        [tar(tmp_path / "a0.tar", 0, 3, ["jpg", "cls"]), tar(tmp_path / "a1.tar", 3, 2, ["jpg", "cls"])]
    )
    other = Shards([tar(tmp_path / "b.tar", 5, 4, ["txt", "jpg", "cls"])])
    return [one, other, Shards([tmp_path / "a0.tar"])]


@pytest.mark.parametrize("kind", ["shards", "mixed"])
def test_samples_are_those_of_the_parts(parts, kind):
    parts = [OwnSource(parts[0]), *parts[1:]] if kind == "mixed" else parts
    before = [[part.keys(range(len(part))), part.members(range(len(part)), "txt")] for part in parts]
    joined = Joined(parts)
    ids = np.array([11, 4, 5, 0, 8, 3, 9])
    places = [(2, 2), (0, 4), (1, 0), (0, 0), (1, 3), (0, 3), (2, 0)]
    assert (
        len(joined) == 12 and [*zip(*(each.tolist() for each in joined.places(ids)), strict=True)] == places
    )

    def of_parts(method, *more):
        return [each for part, own in places for each in getattr(parts[part], method)(np.array([own]), *more)]

    assert joined.keys(ids) == of_parts("keys")
    for extension in ("txt", "cls", "png"):
        assert joined.members(ids, extension) == of_parts("members", extension)
    assert joined.labels(ids).tolist() == [each.item() for each in of_parts("labels")]
    assert joined.sizes(ids).tolist() == [each.tolist() for each in of_parts("sizes")]
    images = zip(joined.images(ids), of_parts("images"), strict=True)
    assert all(one.numpy().tobytes() == other.numpy().tobytes() for one, other in images)
    for id, (part, own) in zip(ids.tolist(), places, strict=True):
        assert joined.extensions(id) == parts[part].extensions(own)
        assert joined.shard(id) == parts[part].shard(own)
    after = [[part.keys(range(len(part))), part.members(range(len(part)), "txt")] for part in parts]
    assert after == before  # their indexes are in the memory of the joined one now


def test_a_shard_that_changed_is_named(parts, tmp_path):
    joined = Joined(parts)
    joined.images(np.array([0, 6]))
    with (tmp_path / "b.tar").open("ab") as file:
        file.write(bytes(512))
    joined.check_unchanged(np.array([0, 1]))
    with pytest.raises(tarpeg.ShardError, match=r"b\.tar changed"):
        joined.check_unchanged(np.array([0, 6]))
