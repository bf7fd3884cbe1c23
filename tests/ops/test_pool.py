"""The decoding threads: any number of them, many callers at once, and a forked child."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tarpeg
import torch
from helpers import pictures
from helpers.scripts import run_script

BATCH = pictures.batch(9)
IMAGES, PARTS = pictures.noise(5, 3, 100, 300), pictures.parts(5, 100, 300)


def augment(_: int = 0) -> torch.Tensor:
    return tarpeg.augment_batch(IMAGES, **PARTS)


def warp(_: int = 0) -> torch.Tensor:
    return tarpeg.warp_affine(IMAGES, PARTS["matrix"], 200)


def warp_of_a_part(_: int = 0) -> torch.Tensor:
    return tarpeg.warp_affine(IMAGES[:, :, :, 1:-1], PARTS["matrix"], 200)  # copied: not dense


def decode(threads: int | None = None) -> torch.Tensor:
    return tarpeg.decode_batch(*BATCH, (33, 21), threads=threads)[0]


def test_any_number_of_threads_gives_the_same_bytes() -> None:
    expected = decode(1)
    for threads in (None, 2, 3, 9, 100, 100_000):
        assert torch.equal(decode(threads), expected)
    for threads in (0, -1):
        with pytest.raises(ValueError, match=f"^threads={threads} "):
            decode(threads)


@pytest.mark.parametrize("operator", [decode, augment, warp])
def test_any_number_of_threads_of_torch_gives_the_same_bytes(operator) -> None:
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        results.append(operator())
    torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_many_callers_at_once() -> None:
    expected = decode(1)

    def call(_: int) -> list[bool]:
        return [torch.equal(decode(3), expected) for _ in range(40)]

    with ThreadPoolExecutor(6) as callers:
        assert list(callers.map(call, range(6))) == [[True] * 40] * 6


@pytest.mark.parametrize("operator", ["decode", "augment", "warp", "warp_of_a_part"])
def test_forked_child_has_its_own_threads(operator: str) -> None:
    code = """
import os, threading, torch
torch.set_num_threads(4)
torch.ones(4, 1000, 1000).add_(1)  # starts OpenMP's threads
expected = decode(4).numpy().tobytes()  # comparing tensors needs OpenMP
busy = [threading.Thread(target=lambda: [decode(4) for _ in range(300)]) for _ in range(3)]
for thread in busy:
    thread.start()
for _ in range(20):  # while the threads may hold locks
    child = os.fork()
    if child == 0:
        os._exit(0 if all(decode(n).numpy().tobytes() == expected for n in (4, 2)) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
for thread in busy:
    thread.join()
"""
    head = f"sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_pool import {operator} as decode\n"
    done = run_script(head + code, timeout=60)
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
