"""Where the time goes, by a clock of our own."""

from __future__ import annotations

import types

import pytest
import torch
from tarpeg import DataStallMonitor, monitor


class Clock:
    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


class Module:
    def __init__(self):
        self.logged = []

    def log(self, name, value):
        self.logged.append((name, value))


@pytest.fixture
def run(monkeypatch):
    """A monitor in a pretended run: wait(s), work(s), validate(s), epoch()."""
    clock, module = Clock(), Module()
    monkeypatch.setattr(monitor, "time", clock)
    trainer = types.SimpleNamespace(
        world_size=2,
        is_last_batch=False,
        strategy=types.SimpleNamespace(root_device=torch.device("cpu")),
    )
    stall = DataStallMonitor()

    def wait(seconds):
        clock.now += seconds
        stall.on_train_batch_start(trainer, module, (torch.zeros(4), torch.zeros(4)), 0)

    def work(seconds):
        clock.now += seconds
        stall.on_train_batch_end(trainer, module, None, None, 0)

    def validate(seconds):
        stall.on_validation_start(trainer, module)
        clock.now += seconds
        stall.on_validation_end(trainer, module)

    return types.SimpleNamespace(
        stall=stall,
        logged=module.logged,
        wait=wait,
        work=work,
        validate=validate,
        begin=lambda: stall.on_train_epoch_start(trainer, module),
        end=lambda: stall.on_train_epoch_end(trainer, module),
    )


def test_before_anything_ran():
    assert (DataStallMonitor().wait_share, DataStallMonitor().images_per_second) == (0.0, 0.0)


def test_waiting_and_working_add_up(run):
    run.begin()
    run.wait(1)
    run.work(2)
    run.wait(0)
    run.work(1)
    assert run.stall.wait_share == pytest.approx(1 / 4)
    assert run.stall.images_per_second == pytest.approx(2 * 4 * 2 / 4), "images of both ranks"


def test_validation_counts_as_neither(run):
    run.begin()
    run.wait(1)
    run.work(1)
    run.validate(50)
    run.wait(1)
    run.work(1)
    run.validate(50)
    assert run.stall.wait_share == pytest.approx(1 / 2)


def test_each_epoch_is_logged_by_itself_and_the_run_is_kept(run):
    for wait, work in ((3, 1), (1, 3)):
        run.begin()
        run.wait(wait)
        run.work(work)
        run.end()
    shares = [value for name, value in run.logged if name == "data/wait_share"]
    rates = [value for name, value in run.logged if name == "data/images_per_second"]
    assert shares == pytest.approx([3 / 4, 1 / 4])
    assert rates == pytest.approx([2, 2])
    assert run.stall.wait_share == pytest.approx(1 / 2)
