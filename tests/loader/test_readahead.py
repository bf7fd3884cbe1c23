"""Reading ahead: which bytes the system is asked for, when, and that it then has them."""

from __future__ import annotations

import errno
import os
import time

import pytest
from helpers.loaders import RUNNERS, digest, load, name_of
from tarpeg import Split
from tarpeg.loader import loader as room
from tarpeg.loader.loader import read_ahead, readahead_depth, will_need
from tarpeg.machine import Machine
from tarpeg.sampling.crops import CenterCrop
from tarpeg.sampling.sampler import Request


def cached(path, offset, size):
    """Whether these bytes of a file are in memory; None if the file system cannot answer."""
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(size)], offset, os.RWF_NOWAIT) == size
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise


def test_bytes_that_were_asked_for_are_read(tmp_path, photos):
    path = tmp_path / "big.tar"
    path.write_bytes((photos / "a.tar").read_bytes())
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    shards = Split(path, CenterCrop(8)).open()
    # Indexing has read some of it.
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    size = path.stat().st_size
    if cached(path, 0, size) is not False:
        pytest.skip("this file system keeps its pages, or cannot answer")
    will_need(shards, Request(0, range(len(shards))))
    deadline = time.monotonic() + 20
    while not cached(path, 1024, size // 2) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cached(path, 1024, size // 2)


def test_requests_follow_the_advice_by_the_depth():
    advised = []
    passed = [(request, len(advised)) for request in read_ahead(range(10), 3, advised.append)]
    assert passed == [(number, min(number + 4, 10)) for number in range(10)]
    assert list(read_ahead(range(2), 5, advised.append)) == [0, 1]


@pytest.mark.parametrize("engine", [RUNNERS[0], RUNNERS[2], RUNNERS[5]], ids=name_of)
def test_it_changes_no_byte(photos, engine):
    plain, reading = load(photos, **engine), load(photos, readahead=3, **engine)
    assert [digest(plain) for _ in range(2)] == [digest(reading) for _ in range(2)]
    plain.close()
    reading.close()


def test_by_default_it_is_for_shards_larger_than_the_memory(photos, monkeypatch):
    shards = Split(photos, CenterCrop(8)).open()
    assert readahead_depth(shards, None) == 0 and readahead_depth(shards, 5) == 5
    for memory, limit in ((16_000, None), (1 << 60, 16_000)):
        machine = Machine(1, None, memory, None, limit, None, None)
        monkeypatch.setattr(room, "read_machine", lambda machine=machine: machine)
        assert readahead_depth(shards, None) == 8 and readahead_depth(shards, 0) == 0
