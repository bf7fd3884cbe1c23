"""Stages and their seconds, by clocks of our own."""

from __future__ import annotations

import pytest
import torch
from tarpeg.diagnostics import monitor
from tarpeg.diagnostics.monitor import DeviceTimeline, Timeline


class Clock:
    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(monitor, "time", clock)
    return clock


def seconds(timeline):
    timeline.read(all_of_it=True)
    return {stage: taken for stage, taken in timeline.seconds.items() if taken}


def test_stages_nest_and_the_rest_is_other(clock):
    timeline = Timeline()
    clock.now += 50  # before it begins
    timeline.begin()
    clock.now += 1
    timeline.enter("compute")
    clock.now += 2
    timeline.enter("wait")  # a step that fetches its batch itself
    clock.now += 4
    timeline.leave()
    clock.now += 8
    timeline.leave()
    clock.now += 16
    assert seconds(timeline) == {"other": 17, "compute": 10, "wait": 4}


def test_what_is_entered_while_it_stands_still_does_not_count(clock):
    timeline = Timeline()
    timeline.leave()  # of a stage that was entered before anybody watched
    timeline.enter("transfer")
    clock.now += 1
    timeline.leave()
    timeline.begin()
    clock.now += 2
    timeline.pause()
    for stage in ("transfer", "augment"):  # validation
        timeline.enter(stage)
        clock.now += 50
        timeline.leave()
    assert not timeline.is_running
    timeline.begin()
    timeline.enter("wait")
    clock.now += 4
    timeline.leave()
    assert seconds(timeline) == {"other": 2, "wait": 4}


def test_forgetting(clock):
    timeline = Timeline()
    timeline.begin("compute")
    clock.now += 5
    timeline.forget()
    clock.now += 1
    assert seconds(timeline) == {"compute": 1}


class Device:
    """A GPU that works through its queue: marks pass when the work before them is done."""

    def __init__(self):
        self.host = self.free = 0.0  # milliseconds: the program's time, and when the GPU will be idle

    def work(self, milliseconds):
        self.free = max(self.free, self.host) + milliseconds

    def event(self):
        return Mark(self)


class Mark:
    def __init__(self, device):
        self.device, self.at = device, None

    def record(self):
        self.at = self.device.free = max(self.device.free, self.device.host)

    def query(self):
        return self.at <= self.device.host

    def synchronize(self):
        self.device.host = max(self.device.host, self.at)

    def elapsed_time(self, end):
        assert self.query() and end.query()
        return end.at - self.at


def step(device, timeline, wait, compute):
    timeline.enter("wait")
    device.host += wait
    timeline.leave()
    timeline.enter("compute")
    device.work(compute)
    timeline.leave()


def test_a_wait_that_the_gpu_does_not_notice_is_none():
    device = Device()
    timeline = DeviceTimeline(device.event)
    timeline.begin()
    for _ in range(10):  # the program waits 6 ms while the GPU is busy for 10
        step(device, timeline, wait=6, compute=10)
    timeline.read()
    assert timeline.seconds["compute"] < 0.1, "nothing waits for what the GPU has not done yet"
    taken = seconds(timeline)
    assert taken == pytest.approx({"wait": 0.006, "compute": 0.1}), "the first batch alone"


def test_a_wait_that_it_does_notice():
    device = Device()
    timeline = DeviceTimeline(device.event)
    timeline.begin()
    step(device, timeline, wait=50, compute=10)
    timeline.forget()
    for _ in range(10):
        step(device, timeline, wait=30, compute=10)
    # The first of these waits is for 20 ms of the GPU's: 10 it spends on what came before.
    assert seconds(timeline) == pytest.approx({"wait": 0.2, "compute": 0.11}, abs=0.011)
    marks = len(timeline._spare) + len(timeline._passing)
    for _ in range(10):
        step(device, timeline, wait=30, compute=10)
        timeline.read()
    assert len(timeline._spare) + len(timeline._passing) <= marks, "marks are used again"


@pytest.mark.gpu
def test_by_real_events():
    timeline = DeviceTimeline()
    images = torch.zeros(4096, 4096, device="cuda")
    timeline.begin()
    timeline.enter("compute")
    for _ in range(20):
        images = images @ images
    timeline.leave()
    timeline.read(all_of_it=True)
    assert timeline.seconds["compute"] > 10 * timeline.seconds["other"]
