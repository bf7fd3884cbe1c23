"""The threads that decode: any number of them, many callers at once, and a forked child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tarpeg
import torch
from helpers import pictures

FILES = [pictures.tensor(pictures.jpeg("420", 60 + seed, 64, seed)) for seed in range(9)]
BOXES = torch.tensor([[seed, 4, 40, 50] for seed in range(9)], dtype=torch.int32)


def decode(threads: int | None = None) -> torch.Tensor:
    return tarpeg.decode_batch(FILES, BOXES, (33, 21), threads=threads)[0]


def test_any_number_of_threads_gives_the_same_bytes() -> None:
    expected = decode(1)
    for threads in (None, 2, 3, 9, 100, 100_000):
        assert torch.equal(decode(threads), expected)


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_out_of_range_are_named(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads={threads} must be at least 1"):
        decode(threads)


def test_many_callers_at_once() -> None:
    expected, wrong = decode(1), []

    def call() -> None:
        wrong.extend(not torch.equal(decode(3), expected) for _ in range(40))

    callers = [threading.Thread(target=call) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == [False] * 240


FORKED = """
import os, sys, threading
sys.path[:0] = {path!r}
from test_pool import decode

expected = decode(4)
busy = [threading.Thread(target=lambda: [decode(4) for _ in range(300)]) for _ in range(3)]
for thread in busy:
    thread.start()
for _ in range(20):  # while threads hold what they hold
    child = os.fork()
    if child == 0:
        os._exit(0 if decode(4).equal(expected) and decode(2).equal(expected) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
for thread in busy:
    thread.join()
"""


def test_a_forked_child_has_threads_of_its_own() -> None:
    here = Path(__file__).parent
    code = FORKED.format(path=[str(here), str(here.parent), str(here.parents[1] / "datamodules")])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_signals_reach_python_not_the_pool() -> None:
    decode(8)
    got = []
    before = signal.signal(signal.SIGUSR1, lambda *_: got.append(threading.current_thread()))
    try:
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
            decode(8)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got and set(got) == {threading.main_thread()}
