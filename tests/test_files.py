"""Atomic writes."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.odd_files import kernel_log, odd_files
from tarpeg.files import open_regular, read_regular, renamed, write_json


def test_a_block_that_fails_changes_nothing(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a\udcff": "\u00e4"})
    before = path.read_bytes()
    assert before == '{\n  "a\\udcff": "\u00e4"\n}\n'.encode()
    with pytest.raises(KeyboardInterrupt), renamed(path) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    with pytest.raises(TypeError):
        write_json(path, object())
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("durable", [True, False])
def test_others_may_read_the_file_and_it_is_synced_before_it_is_renamed(tmp_path, monkeypatch, durable):
    events, sync, replace = [], os.fsync, type(tmp_path).replace
    monkeypatch.setattr(os, "fsync", lambda file: events.append("sync") or sync(file))
    monkeypatch.setattr(type(tmp_path), "replace", lambda *paths: events.append("rename") or replace(*paths))
    umask = os.umask(0o022)
    try:
        with renamed(tmp_path / "a", durable=durable) as stream:
            stream.write(b"x")
    finally:
        os.umask(umask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert events == (["sync", "rename", "sync"] if durable else ["rename"])


def test_writers_of_one_path_do_not_disturb_each_other(tmp_path):
    path, together = tmp_path / "a", threading.Barrier(8)

    def write(number):
        with renamed(path) as stream:
            together.wait()
            stream.write(bytes([number]) * 100_000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    content = path.read_bytes()
    assert len(content) == 100_000 and len(set(content)) == 1 and list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_refused_without_opening_it(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    for path in [*odd_files(tmp_path, "x"), tmp_path]:
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)


def test_files_are_read_up_to_their_size(tmp_path):
    assert read_regular(kernel_log(tmp_path, "x")) == b""
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 1 << 42)
    with pytest.raises(OSError, match=f"{1 << 42} bytes, more than {1 << 30}"):
        read_regular(large, 1 << 30)
