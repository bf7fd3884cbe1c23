"""Teams: answers in order, errors with their words, no trace left; children that hang at birth replaced."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tarpeg.loader import workers
from tarpeg.loader.workers import ProcessPool, ThreadPool

HERE = Path(__file__).parent

# Hooks of a fork cannot be taken back: in a process of its own. {hang} children of it hang at birth.
LOOP = """
import faulthandler, os, sys, time
from pathlib import Path

faulthandler.dump_traceback_later(100, exit=True)
sys.path[:0] = {paths!r}
from helpers.loaders import load
from tarpeg.loader import workers

workers._START_TIMEOUTS = (0.5, 0.5)
hung = Path({folder!r})

def hang():
    for number in range({hang}):
        try:
            (hung / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        {does}

{first}
os.register_at_fork(after_in_child=hang)
loader = load({photos!r}, batch_size=4, workers=2)
print(sum(len(batch.label) for batch in loader))
loader.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


def run(
    photos, folder: Path, hang: int, does: str = "time.sleep(1000)", first: str = ""
) -> subprocess.CompletedProcess:
    paths = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "datamodules")]
    code = LOOP.format(paths=paths, folder=str(folder), photos=str(photos), hang=hang, does=does, first=first)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_one_that_hangs_is_replaced(photos, tmp_path):
    result = run(photos, tmp_path, 1)
    assert result.stdout.splitlines() == ["23", "no child is left"], result.stderr
    assert "did not answer within 0.5 s at its start: another is started" in result.stderr


def test_one_that_dies_is_replaced_and_nobody_waits(photos, tmp_path):
    result = run(photos, tmp_path, 1, "os._exit(3)")
    assert result.stdout.splitlines() == ["23", "no child is left"], result.stderr
    assert "died at its start: another is started" in result.stderr


def test_one_that_is_too_slow_leaves_no_lock_behind(photos, tmp_path):
    result = run(photos, tmp_path, 1, "time.sleep(0.5)")
    assert result.stdout.splitlines() == ["23", "no child is left"], result.stderr


def test_a_process_with_many_files_open(photos, tmp_path):
    many = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000)); "
    many += "held = [os.dup(0) for _ in range(1100)]"
    result = run(photos, tmp_path, 0, "pass", many)
    assert result.stdout.splitlines() == ["23", "no child is left"], result.stderr


def test_where_all_hang_it_says_what_to_do(photos, tmp_path):
    result = run(photos, tmp_path, 9)
    assert result.returncode == 1
    assert "did not start; the last did not answer within 0.5 s" in result.stderr


TEAMS = {"processes": ProcessPool, "threads": ThreadPool}


@pytest.fixture(params=TEAMS)
def team(request, children):
    """A function that makes a team, which is ended afterwards."""
    made = []

    def make(work, count=2):
        made.append(TEAMS[request.param](work, count))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert children() == set()


def asked(team, jobs):
    for job in jobs:
        team.submit(job)
    return [team.result() for _ in jobs]


def test_answers_come_in_the_order_of_asking(team):
    def work(job):
        time.sleep(0.01 * (job % 3))
        return job, os.getpid()

    one = team(work, 3)
    answers = asked(one, range(12))
    assert [job for job, _ in answers] == list(range(12))
    for job in range(5):
        one.submit(job)
    one.drain()
    assert one.pending == 0 and [job for job, _ in asked(one, range(4))] == [0, 1, 2, 3]


def test_processes_take_turns_and_begin_with_the_first():
    one = ProcessPool(lambda job: os.getpid(), 3)
    first = asked(one, range(6))
    assert first[:3] == first[3:] and len(set(first)) == 3
    one.submit(0)
    one.drain()
    assert asked(one, range(3)) == first[:3]
    one.close()


class PlainError(Exception):
    """Made of its message, as most are."""


class OddError(Exception):
    """Not made of its message: unpickling it fails."""

    def __init__(self, shard, key):
        super().__init__(f"shard {shard}, key {key}")


def raising(kind):
    def work(job):
        if kind == "local":

            class LocalError(Exception):
                pass

            raise LocalError("the cause")
        raise {"plain": PlainError, "odd": lambda text: OddError("a", text), "exit": SystemExit}[kind](
            "the cause"
        )

    return work


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("plain", "^the cause"),
        ("odd", "shard a, key the cause"),
        ("local", "the cause"),
        ("exit", "SystemExit.*the cause"),
    ],
)
def test_errors_keep_their_words_and_the_team_goes_on(team, kind, text):
    one = team(raising(kind))
    for _ in range(3):
        with pytest.raises(Exception, match=text) as caught:
            asked(one, [0])
        if kind == "plain":
            assert caught.type is PlainError
        if isinstance(one, ProcessPool):
            assert "in worker process 0" in str(caught.value.__cause__)
            assert "in work" in str(caught.value.__cause__), "with the place in the user's code"
        one.drain()


def test_what_cannot_be_pickled_is_an_error_that_says_so():
    one = ProcessPool(lambda job: [job] if job else lambda: None, 1)
    with pytest.raises(Exception, match="lambda"):
        asked(one, [0])
    assert asked(one, [1]) == [[1]]
    one.close()


def test_tensors_hold_no_file_descriptors():
    one = ProcessPool(lambda job: [torch.full((5,), number) for number in range(job)], 2)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    answers = asked(one, [200, 200])
    assert len(list(descriptors.iterdir())) == before
    assert all(int(tensor[0]) == number for answer in answers for number, tensor in enumerate(answer))
    one.close()


def test_large_jobs_and_answers_do_not_wait_for_each_other(team):
    one = team(lambda job: job + b"x")
    jobs = [bytes([number]) * 3_000_000 for number in range(8)]
    assert asked(one, jobs) == [job + b"x" for job in jobs]


@pytest.mark.parametrize("kind", TEAMS)
def test_one_that_is_forgotten_ends(kind, children):
    threads = set(threading.enumerate())
    one = TEAMS[kind](lambda job: job, 2)
    asked(one, range(4))
    del one
    gc.collect()
    deadline = time.monotonic() + 10
    while (children() or set(threading.enumerate()) - threads) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert children() == set() == set(threading.enumerate()) - threads


def test_where_a_later_process_cannot_start_none_is_left(monkeypatch, children):
    started = workers._start_process

    def fails(work, number):
        if number == 2:
            raise OSError("no more processes")
        return started(work, number)

    monkeypatch.setattr(workers, "_start_process", fails)
    with pytest.raises(OSError, match="no more processes") as caught:
        ProcessPool(lambda job: job, 3)
    assert children() == set(), caught


BUSY = """
import sys, time
sys.path[:0] = [{package!r}]
import torch
from tarpeg.loader.workers import ProcessPool
from tarpeg.loader.workers import ThreadPool

def work(job):
    end = time.monotonic() + 1.5
    a = torch.ones(700, 700)
    while time.monotonic() < end:
        a = (a @ a).clamp(0, 1)

team = {team}(work, 2)
team.submit(0)
team.submit(1)
time.sleep(0.2)
{ends}
"""


@pytest.mark.parametrize("ends", ["", "del team", "raise SystemExit(0)"])
@pytest.mark.parametrize("kind", ["ProcessPool", "ThreadPool"])
def test_a_process_that_ends_meanwhile_ends_well(kind, ends):
    code = BUSY.format(package=str(HERE.parents[1] / "datamodules"), team=kind, ends=ends)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


FORKED = """
import os, sys
sys.path[:0] = {paths!r}
import torch
from helpers.loaders import digest, load

torch.set_num_threads(1)  # OpenMP's threads do not come along
loader = load({photos!r}, batch_size=2, seed=5, **{engine!r})
expected = [digest(loader) for _ in range(2)]
loader.sampler.set_epoch(0)
iterator = iter(loader)
next(iterator)
child = os.fork()
if child == 0:
    list(iterator)
    loader.sampler.set_epoch(0)
    is_right = digest(loader) == expected[0]
    loader.close()
    os._exit(0 if is_right else 7)
list(iterator)
loader.sampler.set_epoch(1)
assert digest(loader) == expected[1]
assert os.waitpid(child, 0)[1] == 0
loader.close()
"""


@pytest.mark.parametrize(
    "engine", [{"workers": 2}, {"workers": 0, "threads": 2}, {"workers": 0, "threads": 0}], ids=str
)
def test_a_fork_that_goes_on_with_a_loader_has_workers_of_its_own(photos, engine):
    paths = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "datamodules")]
    code = FORKED.format(paths=paths, photos=str(photos), engine=engine)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
