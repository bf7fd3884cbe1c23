"""However a run ends, it leaves no process and no shared memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from helpers.loaders import load
from helpers.scripts import PATHS, SESSION, live_processes, run_file, wait_until

ENGINES = {"threads": {"workers": 0, "threads": 2}, "workers": {"workers": 2}}
# If the tests run in the background, they and what they start inherit an ignored SIGINT.
HEADER = f"""{PATHS}
import faulthandler, pathlib, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
faulthandler.dump_traceback_later(120)  # shows where a run hangs
"""


def named_memory(processes: set[int]) -> list[str]:
    """Files in /dev/shm that these processes have mapped and that would stay."""
    found = []
    for process in processes:
        try:
            maps = Path(f"/proc/{process}/maps").read_text().splitlines()
        except OSError:
            continue
        found += [line for line in maps if "/dev/shm/" in line and not line.endswith("(deleted)")]
    return found


class Run:
    """A process in a session of its own, which creates the file ``ready`` when it is."""

    def __init__(self, folder: Path, code: str) -> None:
        script = folder / "run.py"
        script.write_text(HEADER + code)
        self.log = folder / "log.txt"
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("w"),
            start_new_session=True,
            cwd=folder,
        )

    def members(self) -> set[int]:
        """The live processes of the session."""
        return live_processes(SESSION, self.process.pid)

    def wait_until_ready(self) -> None:
        ready = self.log.with_name("ready")
        wait_until(lambda: ready.exists() or self.process.poll() is not None, 150)
        if not ready.exists():
            self.assert_nothing_is_left(0)
            raise AssertionError(self.log.read_text())
        time.sleep(0.5)
        assert named_memory(self.members()) == []

    def assert_nothing_is_left(self, seconds: int = 30) -> None:
        wait_until(lambda: self.process.poll() is not None and not self.members(), seconds)
        left = self.members()
        for process in left:
            os.kill(process, signal.SIGKILL)
        assert left == set(), self.log.read_text()


LOOP = """
from helpers.loaders import load

loader = load({photos!r}, batch_size=1, **{engine!r})
next(iter(loader))
pathlib.Path("ready").touch()
while True:
    for batch in loader:
        pass
"""


@pytest.mark.quick
@pytest.mark.sweep
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_plain_loop_that_is_ended_by_a_signal(photos, tmp_path, engine, end):
    run = Run(tmp_path, LOOP.format(photos=str(photos), engine=ENGINES[engine]))
    run.wait_until_ready()
    run.process.send_signal(end)
    run.assert_nothing_is_left()
    assert run.process.returncode != 0


HANGING = """
import ctypes, multiprocessing
from helpers.loaders import load

class Hangs:
    def __call__(self, image):
        if {engine!r}["workers"] and multiprocessing.parent_process() is None:
            return image  # of the call that shows what it returns
        pathlib.Path("ready").touch()
        {hangs}

    def read(self, source, ids):
        return source.keys(ids)

    move = lambda self, value, view: self(value)

list(load({photos!r}, batch_size=1, {use}=Hangs(), **{engine!r}))
"""
IN_PYTHON, IN_C = "time.sleep(1000)", "ctypes.PyDLL(None).sleep(1000)  # holds the lock of the interpreter"


@pytest.mark.parametrize(
    ("engine", "use", "hangs"),
    [
        ("workers", "transform", IN_C),
        ("threads", "targets", IN_PYTHON),
    ],
)
def test_ctrl_c_ends_a_program_whose_transform_hangs(photos, tmp_path, engine, use, hangs):
    code = HANGING.format(photos=str(photos), engine=ENGINES[engine], use=use, hangs=hangs)
    run = Run(tmp_path, code)
    run.wait_until_ready()
    run.process.send_signal(signal.SIGINT)
    started = time.monotonic()
    run.assert_nothing_is_left(10)
    # Within 3 s; and some, for a busy machine.
    assert time.monotonic() - started < 4.5, run.log.read_text()
    assert "KeyboardInterrupt" in run.log.read_text()


def end_with_a_loader(rank, source, end, pipe):
    """Send the ids of a loader's workers, and end while the loader exists."""
    loader = load(source, batch_size=1, workers=2)
    next(iter(loader))
    pipe.send([process.pid for process in multiprocessing.active_children()])
    if end == "error":
        raise ArithmeticError("as asked")
    if end == "cycle":
        loader.itself = loader
    if end == "global":
        end_with_a_loader.kept = loader


@pytest.mark.parametrize(
    ("method", "end"),
    [
        *(("fork", end) for end in ("error", "global", "cycle")),
        ("torch", "error"),
        pytest.param("spawn", "global", marks=pytest.mark.slow),
        pytest.param("forkserver", "cycle", marks=pytest.mark.slow),
    ],
)
def test_a_child_of_multiprocessing_ends_with_its_loader(photos, tmp_path, monkeypatch, method, end):
    ours, theirs = multiprocessing.Pipe()
    arguments = (str(photos), end, theirs)
    if method == "torch":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # for the file with the error
        (process,) = torch.multiprocessing.spawn(end_with_a_loader, arguments, join=False).processes
    else:
        process = multiprocessing.get_context(method).Process(target=end_with_a_loader, args=(0, *arguments))
        process.start()
    try:
        assert ours.poll(150)
        workers = ours.recv()
        process.join(20)
        assert process.exitcode == (end == "error")
        assert len(workers) == 2 and not any(Path(f"/proc/{worker}").exists() for worker in workers)
    finally:
        process.kill()
        process.join()


FORKED = """
import os
from helpers.loaders import load

loader = load({photos!r}, batch_size=1, workers=2)
next(iter(loader))
child = os.fork()
if not child:
    next(iter(loader))
    raise ArithmeticError("as asked")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
assert len(list(loader)) == 23, "the workers of the parent are alive"
os._exit(0)
"""


def test_a_fork_of_python_ends_with_its_loader(photos, tmp_path):
    done = run_file(tmp_path / "run.py", FORKED.format(photos=str(photos)), timeout=60)
    assert done.returncode == 0 and "ArithmeticError: as asked" in done.stderr, done.stderr


IN_A_THREAD = """
import atexit, threading, time
atexit.register(time.sleep, 0.5)  # runs after tarpeg's own hook: time in which the thread could print
from helpers.loaders import load

def iterate():
    loader = load({photos!r}, batch_size=1, workers=2)
    while True:
        for batch in loader:
            started.set()

started = threading.Event()
threading.Thread(target=iterate, daemon=True).start()
assert started.wait(60)
"""


def test_a_daemon_thread_that_still_iterates_at_the_end_prints_nothing(photos, tmp_path):
    done = run_file(tmp_path / "run.py", IN_A_THREAD.format(photos=str(photos)), timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


INTERRUPTED = """
import os, random
from helpers.loaders import digest, load

loader = load({photos!r}, batch_size=1, seed=5, **{engine!r})
expected = digest(loader)
waiting, start = os.pipe()
parent = os.getpid()
if os.fork() == 0:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(start)
    while os.read(waiting, 1):
        time.sleep(random.random() * 0.1)
        os.kill(parent, signal.SIGINT)
    os._exit(0)
os.close(waiting)
received = 0
for _ in range({times}):
    try:
        os.write(start, b".")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            for batch in loader:
                pass
    except KeyboardInterrupt:
        received += 1
    loader.sampler.set_epoch(0)
    assert digest(loader) == expected
assert received == {times}, received
loader.close()
"""


@pytest.mark.parametrize("engine", [*ENGINES, "caller"])
def test_ctrl_c_is_never_lost_and_the_loader_can_go_on(photos, tmp_path, engine):
    settings = ENGINES.get(engine, {"workers": 0, "threads": 0})
    run = Run(tmp_path, INTERRUPTED.format(photos=str(photos), engine=settings, times=20))
    run.assert_nothing_is_left(100)
    assert run.process.returncode == 0, run.log.read_text()
    # Nothing was raised where Python can only discard it.
    assert "Exception ignored" not in run.log.read_text()


TRAINED = """
from helpers.training import Net, module, trainer

class Ending(Net):
    def on_train_batch_start(self, batch, number):
        if self.trainer.global_step != 3:
            return
        if self.trainer.is_global_zero:
            pathlib.Path("ready").touch()
        if {fails!r} == "SIGTERM":
            # Lightning's handler broadcasts: if another rank is in another collective, it waits for ever.
            time.sleep(5)

    def training_step(self, batch, number):
        if {fails!r} == "training" and self.trainer.global_step == 5 and self.trainer.is_last_rank:
            raise ArithmeticError("as asked")
        return super().training_step(batch, number)

    def validation_step(self, batch, number):
        if {fails!r} == "validation" and self.trainer.global_step > 5 and self.trainer.is_last_rank:
            raise ArithmeticError("as asked")

if __name__ == "__main__":
    run = trainer(".", max_epochs={epochs}, **{settings!r})
    type(run).is_last_rank = property(lambda self: self.global_rank == self.world_size - 1)
    run.fit(Ending(), datamodule=module({photos!r}, batch_size=2, **{engine!r}))
"""
DDP = {"devices": 2, "strategy": "ddp"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "engine", "end"),
    [
        *(("two", "workers", end) for end in ("SIGINT", "SIGTERM", "training", "validation", "success")),
        *(("two", "threads", end) for end in ("SIGINT", "training")),
        ("one", "workers", "SIGTERM"),
    ],
)
def test_under_lightning(photos, tmp_path, ranks, engine, end):
    """Ctrl-C of one rank is that of each of two ranks; tests/soak.py draws it at any moment."""
    settings = DDP if ranks == "two" else {}
    epochs = 2 if end == "success" else 100_000
    code = TRAINED.format(
        photos=str(photos), engine=ENGINES[engine], settings=settings, fails=end, epochs=epochs
    )
    run = Run(tmp_path, code)
    run.wait_until_ready()
    if end.startswith("SIG"):
        # Like a terminal: Ctrl-C reaches every process of the group. SIGTERM is sent to the first alone.
        for target in run.members() if end == "SIGINT" else [run.process.pid]:
            subprocess.run(["kill", f"-{end[3:]}", str(target)], check=False)
    run.assert_nothing_is_left(120)
    if end != "SIGTERM":  # which Lightning treats as a reason to stop, not as a failure
        assert (run.process.returncode == 0) == (end == "success"), run.log.read_text()
