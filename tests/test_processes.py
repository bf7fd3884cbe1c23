"""Child processes as an executor: order, errors, deaths, and the bound on waiting calls."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tarpeg import CacheError
from tarpeg.errors import ShardError
from tarpeg.processes import completed, dask_executor, map_in_order, max_pending, open_executor


def test_results_come_in_order_and_an_iteration_may_be_abandoned():
    assert list(map_in_order(abs, range(-40, 0), 3)) == list(range(40, 0, -1))
    results = map_in_order(abs, range(1000), 2)
    assert next(results) == 0
    results.close()


def test_errors_are_raised_in_the_caller():
    results = map_in_order(int, ["1", "2", "x", "4"], 1)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="invalid literal"):
        next(results)


def test_the_death_of_a_child_is_an_error():
    with pytest.raises(ShardError, match="status 3"):
        list(map_in_order(os._exit, [3, 3, 3], 2))


def test_what_a_call_prints_is_no_reply(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])  # which Python leaves out
    blocks = ["echo a program that prints"] * 4
    assert list(map_in_order(os.system, blocks, 2)) == [0] * 4


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_does_not_wait_for_running_calls(workers):
    started = time.monotonic()
    with open_executor(workers, 2) as executor, pytest.raises(KeyboardInterrupt):
        timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        list(completed(executor, time.sleep, [(60,), (60,)], lambda: None))
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(("workers", "limit"), [(0, 3), (1, 3), (2, 6), (3, 9)])
def test_few_calls_wait_for_our_own_processes(workers, limit):
    submitted, finished = 0, 0

    def calls():
        nonlocal submitted
        for number in range(50):
            submitted += 1
            # The call that is being created is not in the queue yet.
            assert submitted - finished <= limit + 1
            yield (-number,)

    with open_executor(workers, 50) as executor:
        assert max_pending(executor) == limit
        for _ in completed(executor, abs, calls(), lambda: None):
            finished += 1
    assert finished == 50


def test_more_calls_wait_in_the_executor_of_the_caller():
    with ThreadPoolExecutor(1) as mine, open_executor(mine, 5) as executor:
        assert executor is mine and max_pending(executor) == 256


def test_the_address_of_a_dask_scheduler_is_required():
    with pytest.raises(ValueError, match=r"^address=None "), dask_executor(None):
        pass


@pytest.mark.slow
def test_a_dask_scheduler_must_answer():
    pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),  # instead of 30 s
        pytest.raises(CacheError, match="Dask"),
        dask_executor("tcp://127.0.0.1:9"),
    ):
        pass
