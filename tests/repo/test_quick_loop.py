"""What `make test` leaves out, and objects that are compiled once: helpers/kinds.py and object_cache.py."""

from __future__ import annotations

import functools
import os
import subprocess
import types
from pathlib import Path

import lightning
import pytest
import torch
from helpers import object_cache
from helpers.groups import send_groups
from helpers.kinds import kinds, mark_slow
from helpers.scripts import run_tool, write_program
from helpers.training import fitted
from xdist.remote import WorkerInteractor
from xdist.scheduler import LoadGroupScheduling


class Runs:
    def begin(self):
        subprocess.Popen("nothing")


def decorated(function):
    return functools.wraps(function)(lambda: function())


@decorated
def starts_a_process():
    return [Runs() for _ in range(3)]


def starts_a_training():
    return lambda: fitted(None, None)


def starts_nothing():
    return torch.zeros(3), lightning.LightningModule, Path(), subprocess.DEVNULL


def item(function, *marks, path="a", **fixtures):
    """What conftest.py gets of pytest, as far as it is read."""
    found = {name: [types.SimpleNamespace(func=made)] for name, made in fixtures.items()}
    made = types.SimpleNamespace(path=Path(path), function=function, own=list(marks))
    made._fixtureinfo = types.SimpleNamespace(name2fixturedefs=found)
    made.get_closest_marker = lambda name: name in made.own
    made.add_marker = lambda mark: made.own.append(mark.name)
    return made


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (starts_a_process, {"process"}),
        (starts_a_training, {"training"}),
        (functools.partial(run_tool, "bench"), {"process"}),
        (lambda: torch.compile(starts_a_training), {"graph", "training"}),
        (starts_nothing, set()),
    ],
)
def test_what_a_test_starts_is_read_from_its_code_and_that_of_its_fixtures(function, found):
    assert kinds(item(function)) == kinds(item(starts_nothing, fixture=function)) == found


def test_one_of_each_kind_and_the_first_of_a_sweep_are_quick():
    process, training, nothing = starts_a_process, starts_a_training, starts_nothing
    slow = [item(process), item(process, "sweep"), item(process, "slow"), item(process, path="b")]
    kept = [item(process, "quick"), item(process, "quick"), item(training, path="b")]
    kept += [item(training), item(nothing), item(lambda: process, "sweep")]
    slow += [item(training), item(training, fixture=process), item(kept[-1].function, "sweep")]
    mark_slow([*slow[:4], *kept, *slow[4:]])
    assert all("slow" in one.own for one in slow) and not any("slow" in one.own for one in kept)


def test_the_tests_of_a_group_are_sent_as_one(request, monkeypatch):
    """With any pytest and pytest-xdist, which takes the group from the end of the id."""
    node, worker = request.node, types.SimpleNamespace(getvalue=lambda _: True)
    monkeypatch.setattr(node, "own_markers", [pytest.mark.xdist_group("things").mark])
    for name in {"_id", "_nodeid"} & {*dir(node)}:
        monkeypatch.setattr(node, name, getattr(node, name))
    for _ in range(2):
        send_groups([node])
        WorkerInteractor.pytest_collection_modifyitems(None, worker, [node])
        assert LoadGroupScheduling._split_scope(None, node.nodeid) == "things"


@pytest.mark.quick
def test_an_object_is_that_of_the_same_text_flags_and_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv(object_cache.FOLDER, str(tmp_path))
    monkeypatch.setenv(object_cache.SECONDS, str(tmp_path / "seconds"))

    def compiled(
        *flags: str,
        value: int = 1,
        header: int = 1,
        folder: str = "a",
        program: str = "cc",
        lines: int = 0,
        comment: str = "",
    ) -> int:
        """How many objects there are after this one is compiled."""
        place = tmp_path / folder / "native"
        place.mkdir(parents=True, exist_ok=True)
        comment = comment or f"a comment {len(list(tmp_path.iterdir()))}"
        (place / "x.h").write_text(f"// {comment}\nint h = {header};\n")
        start = '#include "x.h"\n' + "\n" * lines
        (place / "x.c").write_text(f'{start}const char* f(void) {{ return "value {value}"; }}\n')
        files = ["-I", str(place), "-c", str(place / "x.c"), "-o", str(place / "x.o")]
        subprocess.run([*object_cache.launcher(), program, *flags, *files], check=True)
        assert f"value {value}".encode() in (place / "x.o").read_bytes()
        return len(list(tmp_path.glob("*.o")))

    calls = tmp_path / "calls"
    calls.touch()
    other = write_program(tmp_path / "other", f'#!/bin/sh\necho "$@" >> {calls}; exec cc "$@"\n')
    assert compiled() == compiled(folder="b") == 1, "a copy of the sources, with another comment"
    assert compiled("-O1") == 2 and compiled(value=2) == 3 and compiled(header=2) == 4
    assert compiled(program=other) == 5 and compiled() == 5
    assert compiled(lines=1) == 5
    assert compiled("-g1") == 6 and compiled("-g1", lines=1) == 7, "lines are in the object"
    compiled(program=other, comment="same")
    known = calls.read_text()
    assert compiled(program=other, comment="same") == 7 and calls.read_text() == known, (
        "nor preprocessed, with the same header"
    )
    assert compiled(program=other, header=2) == 8 and "-E" in calls.read_text()[len(known) :]
    nvcc = write_program(tmp_path / "nvcc", '#!/bin/sh\nexec cc "$@"\n')
    device = tmp_path / "a" / "native" / "device.h"  # read by the passes for devices alone
    device.touch()
    assert compiled(program=nvcc, comment="same") == compiled(program=nvcc, comment="same") == 9
    device.write_text("int d;")
    assert compiled(program=nvcc, comment="same") == 10
    (tmp_path / "a" / "native" / "x.c").write_text("no C")
    command = [
        *object_cache.launcher(),
        "cc",
        "-c",
        str(tmp_path / "a" / "native" / "x.c"),
        "-o",
        "/dev/null",
    ]
    assert subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode != 0
    assert len((tmp_path / "seconds").read_text().split()) == 16


def test_objects_that_nobody_uses_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old, new = object_cache.folder() / "old.o", object_cache.folder() / "new.o"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    assert object_cache.folder() == old.parent
    assert new.exists() and not old.exists()
