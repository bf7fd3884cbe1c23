"""Shares of time in real training runs, each slow in one place, and the clocks with simulated time."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import warnings
from functools import partial
from types import SimpleNamespace

import lightning
import pytest
import tarpeg
import torch
from helpers import training
from helpers.small_tars import sample, write_tar
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.profilers import PassThroughProfiler, SimpleProfiler
from tarpeg import Augment, CenterCrop, DataStallMonitor, ShardDataModule, Split
from tarpeg.diagnostics import monitor
from tarpeg.diagnostics.monitor import DeviceTimeline, Timeline, _length, _Watch, _workers
from tarpeg.machine import Machine
from torch.utils.data import DataLoader

LOGGER = "lightning.pytorch.utilities.rank_zero"


class Model(lightning.LightningModule):
    """A network whose stages take the given seconds."""

    def __init__(self, compute=0.0, augment=0.0, validate=0.0, fail_at=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.compute, self.augment, self.validate, self.fail_at = compute, augment, validate, fail_at

    def training_step(self, batch, number):
        if number == self.fail_at:
            raise ZeroDivisionError
        time.sleep(self.compute)
        return self.weight.sum()

    def on_after_batch_transfer(self, batch, _):
        time.sleep(self.augment)
        return batch

    def validation_step(self, batch, number):
        time.sleep(self.validate)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def busy(key, members, seconds=0.01):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def asleep(key, members):
    time.sleep(0.015)


def fit(model, stall=None, loader=None, data=None, ckpt_path=None, callbacks=(), **settings):
    """Train the model; return its monitor and its trainer."""
    stall = stall or DataStallMonitor(0.2)
    run = training.trainer(None, **settings, callbacks=[stall, *callbacks])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, loader, datamodule=data, ckpt_path=ckpt_path)
    return stall, run


def sleepy(seconds=0.0, count=12):
    """A loader of batches of four, each of which takes ``seconds``."""

    def batch(_):
        time.sleep(seconds)
        return torch.zeros(4, 2), torch.zeros(4)

    return DataLoader(range(count), collate_fn=batch)


def test_before_training():
    stall = DataStallMonitor()
    assert (stall.wait_share, stall.images_per_second, stall.verdict) == (0.0, 0.0, "")
    with pytest.raises(ValueError, match=r"^sample_seconds=-1 "):
        DataStallMonitor(-1)


def test_a_slow_loader(caplog):
    with caplog.at_level(logging.INFO, LOGGER):
        stall, trainer = fit(Model(), loader=sleepy(0.02))
    assert stall.wait_share > 0.7
    assert "give the DataLoader num_workers=" in stall.verdict
    assert f"data: {stall.verdict}" in caplog.messages, "logged without a logger"
    assert sum(stall.shares.values()) == pytest.approx(1)
    assert 50 < stall.images_per_second < 4 / 0.02
    logged = trainer.callback_metrics
    assert logged["data/wait_share"] == pytest.approx(stall.wait_share, abs=0.05)
    assert logged["data/images_per_second"] == pytest.approx(stall.images_per_second, rel=0.2)
    assert "data/substituted" not in logged, "this loader does not count them"


def test_two_loaders_at_once_and_batches_without_a_length():
    loader = sleepy(0.001, count=4)
    stall, trainer = fit(Model(), loader={"a": loader, "b": loader})
    assert stall._images == 3 * 8
    assert stall.images_per_second and "data/images_per_second" in trainer.callback_metrics
    stall, trainer = fit(Model(), loader=DataLoader(["x"] * 12, batch_size=2))
    assert (stall.images_per_second, stall.verdict[:7]) == (0.0, "5 steps")
    assert "data/images_per_second" not in trainer.callback_metrics


@pytest.mark.parametrize(
    ("model", "slow", "verdict"),
    [
        (Model(compute=0.1), "compute", "the data keeps up, there is nothing to gain"),
        (Model(augment=0.05), "augment", "on_after_batch_transfer takes it"),
    ],
)
def test_a_slow_model(model, slow, verdict):
    stall, _ = fit(model, loader=sleepy())
    assert stall.shares[slow] > 0.8 and verdict in stall.verdict


def module(photos, split=None, **settings):
    crop = CenterCrop(32)
    train, val = Split(str(photos), crop, **(split or {})), Split(str(photos), crop)
    return ShardDataModule(train, val, batch_size=2, allow_overlap=True, **settings)


def test_images_that_were_replaced_before_a_reload_count(tmp_path):
    write_tar(tmp_path / "a.tar", [each for n in range(6) for each in sample(n, b"" if n == 2 else None)])
    split = Split(f"{tmp_path}/a.tar", CenterCrop(16))
    for reload in (0, 1):
        data = ShardDataModule(split, batch_size=2, workers=0, augment=Augment())
        options = {"max_epochs": 3, "reload_dataloaders_every_n_epochs": reload}
        _, run = fit(training.Net(), data=data, **options)
        assert run.callback_metrics["data/substituted"] == 3


def test_a_slow_shard_loader_and_the_setting_that_helps(photos, monkeypatch):
    machine = Machine(8, 4.0, None, None, None, None, None)
    monkeypatch.setattr("tarpeg.machine.read_machine", lambda: machine)
    torch.set_num_threads(1)

    def run(decode):
        data = module(photos, {"members": ["cls"], "decode": decode}, workers=0, threads=0)
        return fit(Model(), data=data)

    stall, trainer = run(busy)
    assert stall.wait_share > 0.5
    assert "ShardDataModule(workers=4) decodes on the idle cores; expected" in stall.verdict
    assert trainer.callback_metrics["data/substituted"] == 0
    stall, _ = run(asleep)
    assert "waits for the disk or delivers in bursts: ShardDataModule(readahead=16)" in stall.verdict
    assert "".join(map(str, stall.advice)) == stall.verdict


def test_a_slow_augment_module(photos):
    class Slow(Augment):
        def transform(self, *arguments, **named):
            time.sleep(0.02)
            return super().transform(*arguments, **named)

    stall, _ = fit(Model(), data=module(photos, workers=0, threads=1, augment=Slow(flip=0.5)))
    assert stall.shares["augment"] > 0.7
    assert "Slow takes it; tarpeg.Augment needs one pass" in stall.verdict


def facts_of(data, seconds):
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    about = {"strategy": strategy, "num_devices": 1, "profiler": PassThroughProfiler(), "current_epoch": 0}
    run = SimpleNamespace(train_dataloader=data.train_dataloader(), datamodule=data, **about)
    return monitor._run_facts(run, seconds)


def test_a_compiled_augment_has_its_own_name_in_the_advice(photos):
    facts = facts_of(module(photos, workers=0, augment=torch.compile(Augment(flip=0.5))), 0)
    assert (facts.augment, facts.is_random) == ("Augment", True)


def test_steps_in_python_are_a_part_of_the_costs(photos):
    def slow(image):
        busy("", {}, 0.001)
        return image

    costs = facts_of(module(photos, {"transform": slow}, workers=0), 0.01).costs
    (step,) = costs.python
    assert step.step.endswith("slow") and min(step.us, costs.decode) >= 1000
    assert facts_of(module(photos, {"transform": tarpeg.RandAugment()}, workers=0), 0.01).costs.python == ()


@pytest.fixture
def clock(monkeypatch):
    """Time passes in the stages of ``Model`` only: the figures do not depend on the load of the machine."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(monitor, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(sys.modules[__name__], "time", SimpleNamespace(sleep=sleep))


def test_validation_and_the_first_step_are_not_counted(clock):
    class First(Model):
        def training_step(self, batch, number):
            time.sleep(0.5 if self.trainer.global_step == 0 else 0.005)
            return self.weight.sum()

        def val_dataloader(self):
            return sleepy(count=2)

    stall, _ = fit(First(validate=0.2), loader=sleepy(), val_check_interval=4, max_epochs=2)
    assert stall.images_per_second == pytest.approx(4 / 0.005), "2.4 s of validation, 0.5 s at first"


@pytest.mark.parametrize("settings", [{"accumulate_grad_batches": 3}, {"limit_train_batches": 11}])
def test_steps_are_batches(settings):
    stall, _ = fit(Model(), loader=sleepy(0.01), **settings)
    assert stall.wait_share > 0.3
    assert "give the DataLoader" in stall.verdict


def test_resumed_runs_are_measured(photos, tmp_path, clock):
    saver = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1)
    fit(Model(), data=module(photos, workers=0), enable_checkpointing=True, callbacks=[saver])
    (path,) = tmp_path.glob("*step=5.ckpt")
    stall, trainer = fit(Model(compute=0.01), data=module(photos, workers=0), ckpt_path=path, max_epochs=2)
    assert trainer.global_step == 24
    assert stall.shares["compute"] == pytest.approx(1) and "compute" in stall.verdict
    again, _ = fit(Model(augment=0.02), stall, sleepy())
    assert again.shares["augment"] == pytest.approx(1), "a second run is measured by itself"


@pytest.mark.parametrize("fail_at", [None, 3])
@pytest.mark.parametrize("monitors", [1, 2])
def test_the_trainers_profiler_continues(monitors, fail_at):
    profiler, stalls, seen = SimpleProfiler("/d", "hooks"), [DataStallMonitor(0) for _ in range(monitors)], []
    look = LambdaCallback(on_train_batch_start=lambda trainer, *_: seen.append((trainer, trainer.profiler)))
    with contextlib.suppress(ZeroDivisionError):
        fit(Model(fail_at=fail_at), stalls[0], sleepy(), profiler=profiler, callbacks=[*stalls[1:], look])
    trainer, watch = seen[0]
    assert trainer.profiler is profiler
    assert isinstance(watch, _Watch) and (watch.dirpath, watch.filename) == ("/d", "hooks")
    assert len(profiler.recorded_durations["run_training_batch"]) == (fail_at + 1 if fail_at else 12)
    assert "run_training_batch" in watch.summary()
    assert [bool(stall.verdict) for stall in stalls] == [fail_at is None] * monitors
    assert "profiler=" not in stalls[0].verdict, "it has one already"


def test_a_failed_run_does_not_keep_the_previous_verdict():
    stall, _ = fit(Model(), loader=sleepy())
    assert stall.verdict
    with pytest.raises(ZeroDivisionError):
        fit(Model(fail_at=3), stall, sleepy())
    assert stall.verdict == "" and stall.advice == ()


def test_a_lightning_with_other_action_names(monkeypatch):
    monkeypatch.setattr("tarpeg.diagnostics.monitor._ACTIONS", {})
    stall, _ = fit(Model(compute=0.01), loader=sleepy(0.04))
    assert stall.wait_share > 0.5 and stall.shares["compute"] > 0.05


def test_lengths_of_batches(photos):
    images, labels = torch.zeros(5, 3, 8, 8), torch.zeros(5)
    for batch in (images, (images, labels), {"image": images}, [["a"], images]):
        assert _length(batch) == 5
    pair = [images, labels]
    assert _length({"a": pair, "b": [pair, None]}, {"a": 0, "b": [0, 0]}) == 10, "of several loaders"
    assert _length([{"x": images}, {"y": labels}]) == _length({"in": {"x": images}}) == 5
    assert _length([[images[0], images[1]], [{"boxes": images}]]) == 0, "lists of samples"
    assert _length(object()) == _length(torch.zeros(())) == _length(([], "x")) == 0
    data = module(photos, {"views": 3}, workers=0)
    assert _length(next(iter(data.train_dataloader()))) == 2, "samples, not views"


def test_workers_of_loaders():
    assert _workers(sleepy()) == 0 and _workers(object()) is _workers([]) is None
    assert _workers({"a": DataLoader([1], num_workers=2), "b": [DataLoader([1], num_workers=1), 0]}) == 1


def test_a_hook_costs_microseconds():
    stall = DataStallMonitor()
    watch = _Watch(PassThroughProfiler(), stall._timeline)
    names = [f"[Callback]C{n}.on_train_batch_start" for n in range(40)]
    names += ["[_TrainingEpochLoop].train_dataloader_next", "[M].transfer_batch_to_device"]
    names += ["run_training_batch"]
    started = time.process_time()
    for _ in range(1000):
        for name in names:
            with watch.profile(name):
                pass
    assert (time.process_time() - started) / 1000 < 1e-3, "of a step with 43 actions, contexts included"


def stage_seconds(timeline):
    timeline.read(wait=True)
    return {stage: taken for stage, taken in timeline.seconds.items() if taken}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # A step that fetches its batch itself; the first 50 seconds are before it begins.
        ("50 begin 1 compute 2 wait 4 leave 8 leave 16", {"other": 17, "compute": 10, "wait": 4}),
        # A stage that was entered before the timeline existed, and validation while it is stopped.
        ("leave transfer 1 leave begin 2 pause transfer 50 leave augment 50 leave", {"other": 2}),
        ("begin 2 pause transfer 50 leave augment 50 leave begin wait 4 leave", {"other": 2, "wait": 4}),
        ("begin compute 5 reset 1", {"compute": 1}),
    ],
    ids=["stages nest", "stopped", "goes on", "reset"],
)
def test_seconds_per_stage(monkeypatch, script, expected):
    """The script: seconds that pass, stages that are entered, and methods of Timeline that are called."""
    now, timeline = [100.0], Timeline()
    monkeypatch.setattr(monitor, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    for word in script.split():
        if word.isdigit():
            now[0] += int(word)
        elif word in monitor.STAGES:
            timeline.enter(word)
        else:
            getattr(timeline, word)()
    assert stage_seconds(timeline) == expected
    assert timeline.is_running == (script.rfind("begin") > script.rfind("pause"))


class Device:
    """A GPU with a queue, and its timeline: a mark is passed when the work before it is done."""

    def __init__(self):
        # Milliseconds: the program's time, and when the GPU becomes idle.
        self.host, self.free = 0.0, 0.0
        self.timeline = DeviceTimeline(partial(Mark, self))
        self.timeline.begin()

    def step(self, wait, compute):
        self.timeline.enter("wait")
        self.host += wait
        self.timeline.leave()
        self.timeline.enter("compute")
        self.free = max(self.free, self.host) + compute
        self.timeline.leave()


class Mark:
    def __init__(self, device):
        self.device, self.at = device, None

    def record(self):
        self.at = max(self.device.free, self.device.host)
        self.device.free = self.at

    def query(self):
        return self.at <= self.device.host

    def synchronize(self):
        self.device.host = max(self.device.host, self.at)

    def elapsed_time(self, end):
        assert self.query() and end.query()
        return end.at - self.at


def test_waiting_while_the_gpu_is_busy_does_not_count():
    device = Device()
    for _ in range(10):  # the program waits 6 ms while the GPU is busy for 10
        device.step(wait=6, compute=10)
    device.timeline.read()
    assert device.timeline.seconds["compute"] < 0.1, "read() does not wait for the GPU"
    taken = stage_seconds(device.timeline)
    assert taken == pytest.approx({"wait": 0.006, "compute": 0.1}), "only the first batch is waited for"


def test_waiting_while_the_gpu_is_idle_counts():
    device = Device()
    timeline = device.timeline
    device.step(wait=50, compute=10)
    timeline.reset()
    for _ in range(10):
        device.step(wait=30, compute=10)
    # In the first of these waits the GPU is idle for 20 ms: it still works 10 ms on the step before.
    assert stage_seconds(timeline) == pytest.approx({"wait": 0.2, "compute": 0.11}, abs=0.011)
    marks = len(timeline._spare) + len(timeline._pending)
    for _ in range(10):
        device.step(wait=30, compute=10)
        timeline.read()
    assert len(timeline._spare) + len(timeline._pending) <= marks, "marks are reused"


@pytest.mark.gpu
def test_cuda_events():
    timeline = DeviceTimeline()
    images = torch.zeros(4096, 4096, device="cuda")
    timeline.begin()
    timeline.enter("compute")
    for _ in range(20):
        images = images @ images
    timeline.leave()
    timeline.read(wait=True)
    assert timeline.seconds["compute"] > 10 * timeline.seconds["other"]
