"""train.py as a user runs it: in a copy of the checkout, without an installed package."""

from __future__ import annotations

import argparse
import collections
import csv
import errno
import functools
import json
import os
import pathlib
import pickle
import re
import shlex
import signal
import sys
import types

import fsspec
import lightning
import numpy as np
import pytest
import tarpeg
import torch
from helpers.checkouts import CROPS, PHOTOS, SMALL, TINY, copy, library, tracked, train
from helpers.pictures import jpeg
from helpers.small_tars import sample, write_tar
from helpers.training import Net, module
from lightning.pytorch.profilers import PyTorchProfiler, SimpleProfiler
from omegaconf import OmegaConf
from tarpeg.remedies import Message, Setting
from tarpeg_hydra.overrides import one_line_errors, with_overrides

import train as script
from training.callbacks import DataSummary, Interrupt
from training.checkpoints import SECRET, KeepArguments, with_those_of_checkpoint
from training.checks import (
    ConfigError,
    check_arrays,
    check_checkpoint,
    check_processes,
    check_run,
    check_trainer,
    explain_remote,
)
from training.classifier import Classifier
from training.predictions import Predictions, data_to_predict
from training.reports import resume_hint, shown_path, summary_of

SUMMARY = re.compile(
    r"^trained: (\d+) steps, \d+ images/s, \d+% of the time waiting for data, validation accuracy \d\.\d{3}$"
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return copy(tmp_path_factory.mktemp("checkout"), tracked())


def good(checkout, *arguments, **environment):
    done = train(checkout, *arguments, TARPEG_LIB_DIR=library(), **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def bad(checkout, *arguments):
    """The last line of a run that fails without a traceback; all lines if the error is Hydra's."""
    done = train(checkout, *arguments, TARPEG_LIB_DIR=library())
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    return done.stderr if last.startswith("Set the environment variable HYDRA_FULL_ERROR") else last


def steps(done):
    match = SUMMARY.match(done.stdout.splitlines()[-1])
    assert match, done.stdout + done.stderr
    return int(match[1])


GCSFS = """
import logging

class GCSFileSystem:
    pass

logging.getLogger("gcsfs").info("gcsfs experimental features enabled")
"""


def test_it_trains_logs_and_checkpoints_and_resumes(checkout):
    (checkout / "gcsfs.py").write_text(GCSFS)  # as the package, which Lightning imports
    done = good(checkout, *TINY, "hydra.run.dir=outputs/first")
    assert steps(done) == 3
    for noise in ("gcsfs", "litlogger", "LeafSpec", "Warning", "warn", "profile:"):
        assert noise not in done.stdout + done.stderr, done.stderr
    out = checkout / "outputs" / "first"
    with next(out.glob("csv/*/metrics.csv")).open() as file:
        columns = set(next(csv.reader(file)))
    assert {"train/loss", "val/accuracy", "data/wait_share", "data/images_per_second"} <= columns
    assert list(out.glob("tensorboard/*/events.out.tfevents.*"))
    assert (out / ".hydra" / "config.yaml").is_file()
    names = {path.name for path in (out / "checkpoints").iterdir()}
    assert names == {"last.ckpt", "epoch0-step3.ckpt"}
    assert (checkout / "data" / "synthetic" / "shards.json").is_file()

    ckpt = "ckpt_path=outputs/first/checkpoints/last.ckpt"
    same = " ".join(setting for setting in TINY if setting != "trainer.max_epochs=1")
    line = f"to go on from here (max_epochs=1 is reached): python train.py {same} {ckpt} trainer.max_epochs=2"
    assert f"{line}\n" in done.stdout, "the whole command"
    more = (ckpt, "trainer.max_epochs=3", "logger=none", "hydra.run.dir=outputs/more")
    assert steps(good(checkout, *TINY, *more)) == 9
    saved = torch.load(checkout / "outputs" / "more" / "checkpoints" / "last.ckpt", weights_only=False)
    assert (saved["epoch"], saved["global_step"]) == (2, 9), "also if the best epoch is an earlier one"


STOP = """
from lightning.pytorch import Callback

class Stop(Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == self.epoch:
            raise KeyboardInterrupt
"""


NONE_YET = "there is no checkpoint yet: one is written after each validation"
LAST = "to go on from the last checkpoint: python train.py {} ckpt_path=outputs/stopped/checkpoints/last.ckpt"


@pytest.mark.parametrize(("epoch", "line"), [(0, NONE_YET), (1, LAST)])
def test_ctrl_c_ends_with_the_checkpoint_to_resume(checkout, epoch, line):
    (checkout / "stop.py").write_text(STOP)
    stop = ("+callbacks.stop._target_=stop.Stop", f"+callbacks.stop.epoch={epoch}")
    arguments = (*TINY, *stop, "trainer.max_epochs=3", "hydra.run.dir=outputs/stopped")
    done = train(checkout, *arguments, TARPEG_LIB_DIR=library())
    assert done.returncode == 130 and "Traceback" not in done.stderr
    given = " ".join(arguments[:-1])
    assert done.stdout.splitlines()[-1] == f"interrupted; {line.format(given)}"


PRESS = """
import os
import signal

from lightning.pytorch import Callback

class Press(Callback):
    def __init__(self, hook, step, number):
        setattr(self, hook, self.press)
        self.step, self.number, self.is_pressed = step, number, False

    def press(self, trainer, *_):
        if trainer.global_step == self.step and not trainer.sanity_checking and not self.is_pressed:
            self.is_pressed = True
            os.kill(os.getpid(), self.number)
"""


QUIET = {
    **{"max_epochs": 1, "accelerator": "cpu", "limit_val_batches": 0, "logger": False},
    **{f"enable_{name}": False for name in ("progress_bar", "model_summary", "checkpointing")},
}


class Send(lightning.Callback):
    """Sends a signal to this process before the second step."""

    def __init__(self, number):
        self.number = number

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 1:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_after_its_batch_with_a_checkpoint_of_that_place(photos, tmp_path, number):
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    interrupt = Interrupt(tmp_path)
    trainer = lightning.Trainer(**QUIET, callbacks=[Send(number), interrupt])
    try:
        with pytest.raises(SystemExit):
            trainer.fit(Net(), module(photos))
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])  # Lightning ignores it from then on
    assert interrupt.number == number and signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
    saved = torch.load(tmp_path / "interrupted.ckpt", weights_only=False)
    assert (saved["global_step"], interrupt.saved) == (2, str(tmp_path / "interrupted.ckpt"))


class Counting(Net):
    """Counts what its hooks are called for, in its checkpoints."""

    def __init__(self):
        super().__init__()
        self.register_buffer("counts", torch.zeros(2))

    def on_train_batch_end(self, *_):
        self.counts[0] += 1

    def on_train_epoch_end(self):
        self.counts[1] += 1


@pytest.mark.parametrize("batches", [2, 3])  # the signal comes in the last one, or in one before it
def test_an_interrupted_run_has_called_the_hooks_of_the_module(photos, tmp_path, batches):
    before, interrupt, net = signal.getsignal(signal.SIGINT), Interrupt(tmp_path), Counting()
    quiet = {**QUIET, "max_epochs": 2, "limit_train_batches": batches}
    try:
        with pytest.raises(SystemExit):
            lightning.Trainer(**quiet, callbacks=[Send(signal.SIGTERM), interrupt]).fit(net, module(photos))
    finally:
        signal.signal(signal.SIGINT, before)
    assert net.counts.tolist() == [2, int(batches == 2)]
    lightning.Trainer(**quiet).fit(net, module(photos), ckpt_path=interrupt.saved, weights_only=False)
    assert net.counts.tolist() == [2 * batches, 2]


def test_an_interrupted_accumulation_ends_with_its_step(photos, tmp_path):
    before, interrupt = signal.getsignal(signal.SIGINT), Interrupt(tmp_path)
    batches, quiet = [], {**QUIET, "max_epochs": 1, "accumulate_grad_batches": 2}

    class Ask(Send):
        def on_train_batch_start(self, trainer, module, batch, index):
            batches.append(index)
            if index == 2:
                os.kill(os.getpid(), self.number)

    try:
        with pytest.raises(SystemExit):
            run = lightning.Trainer(**quiet, callbacks=[Ask(signal.SIGTERM), interrupt])
            run.fit(Net(), module(photos, batch_size=2))
    finally:
        signal.signal(signal.SIGINT, before)
    saved = torch.load(interrupt.saved, weights_only=False)
    assert batches == [0, 1, 2, 3] and saved["global_step"] == 2


def test_the_signals_are_those_of_others_again_after_a_run(photos, tmp_path):
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    trainer = lightning.Trainer(**QUIET, callbacks=[Interrupt(tmp_path)], limit_train_batches=1)
    trainer.fit(Net(), module(photos))
    assert before == {each: signal.getsignal(each) for each in before}


@pytest.mark.slow
def test_a_run_goes_on_from_exactly_where_ctrl_c_or_sigterm_ended_it(checkout):
    (checkout / "press.py").write_text(PRESS)
    few = (*TINY, "trainer.max_epochs=2", "logger=none")

    def weights(name):
        saved = torch.load(checkout / "outputs" / name / "checkpoints" / "last.ckpt", weights_only=False)
        return saved["global_step"], saved["epoch"], saved["state_dict"]

    good(checkout, *few, "hydra.run.dir=outputs/whole")
    whole = weights("whole")
    cases = (
        ("on_train_batch_start", 1, 2, signal.SIGTERM),
        ("on_validation_batch_start", 3, 3, signal.SIGINT),
    )
    for hook, step, at, number in cases:
        press = ("+callbacks.press._target_=press.Press", f"+callbacks.press.hook={hook}")
        press += (f"+callbacks.press.step={step}", f"+callbacks.press.number={number:d}")
        press += ("hydra.run.dir=outputs/pressed",)
        done = train(checkout, *few, *press, TARPEG_LIB_DIR=library())
        path = "outputs/pressed/checkpoints/interrupted.ckpt"
        name = {signal.SIGINT: "Ctrl-C"}.get(number, "SIGTERM")
        assert done.returncode == 128 + number, done.stderr
        assert f"{name}: ends after this batch or validation" in done.stderr
        command = f"python train.py {' '.join([*few, *press[:-1]])} ckpt_path={path}"
        assert done.stdout.splitlines()[-1] == f"interrupted; to go on from here: {command}"
        assert torch.load(checkout / path, weights_only=False)["global_step"] == at
        done = good(checkout, *few, f"ckpt_path={path}", f"hydra.run.dir=outputs/on-{hook}")
        assert "warn" not in (done.stdout + done.stderr).lower() and ".py:" not in done.stderr, done.stderr
        if at == 2:
            line = bad(checkout, *few, f"ckpt_path={path}", "data.batch_size=10")
            assert line.startswith(
                "train: cannot resume at batch 2 of epoch 0: global_batch was 20 when the"
            ), line
            assert "Restore it (data.batch_size times the ranks; data.global_batch_size fixes it" in line
        resumed = weights(f"on-{hook}")
        assert resumed[:2] == whole[:2] == (6, 1)
        assert all(torch.equal(resumed[2][name], value) for name, value in whole[2].items())
    done = good(checkout, *few, "validate=true", "ckpt_path=outputs/whole/checkpoints/last.ckpt")
    assert "val/accuracy" in done.stdout and "trained:" not in done.stdout
    assert "val: data/synthetic/val-*.tar (40 images). Synthetic photographs; data=" in done.stdout
    alone = good(checkout, "validate=true", "ckpt_path=outputs/whole/checkpoints/last.ckpt", "logger=none")
    shards = ("data=shards", "data.val.shards=data/synthetic/val-*.tar", *CROPS, "data.val.crop.shorter=36")
    val = good(checkout, *shards, "validate=true", "ckpt_path=outputs/whole/checkpoints/last.ckpt")
    measured = [re.findall(r"val/accuracy\W+([\d.]+)", each.stdout) for each in (done, alone, val)]
    assert measured[0] == measured[1] == measured[2] != [], "with its checkpoint alone, and without train"
    done = train(checkout, *few, "validate=true", TARPEG_LIB_DIR=library())
    assert done.returncode == 1 and "validate=true needs a checkpoint: give ckpt_path=" in done.stderr


@pytest.mark.slow
def test_training_without_validation_is_quiet(checkout):
    done = good(checkout, *SMALL, *PHOTOS, "data.val=null", "hydra.run.dir=outputs/no-val")
    first = "train: data/synthetic/train-*.tar (60 images). Synthetic photographs; data=shards or"
    assert first in done.stdout and ".py:" not in done.stderr, done.stderr
    assert " ckpt_path=outputs/no-val/checkpoints/last.ckpt trainer.max_epochs=2" in done.stdout


@pytest.mark.slow
def test_a_transform_of_torchvision_and_its_plan(checkout):
    of = "torchvision.transforms.v2"
    steps = f"{{_target_: {of}.RandomResizedCrop, size: 32}}, {{_target_: {of}.RandAugment}}"
    compose = f"+data.train.transform={{_target_: {of}.Compose, transforms: [%s]}}"
    alone = (*TINY, "data.train.crop=null", "data.train.flip=0")
    done = good(checkout, *alone, compose % steps, "-v", "hydra.run.dir=outputs/transform")
    assert re.search(
        r"^train:\n  native  Ran.*\n  Python  RandAugment\(.* us per image;.*\nval:", done.stdout, re.M
    )
    floats = compose % f"{steps}, {{_target_: {of}.ConvertImageDtype}}"
    last = bad(checkout, *alone, floats)
    assert "transform= of train returns torch.float32" in last
    assert "or give ~augment and normalise in transform= of all splits" in last


@pytest.mark.slow
def test_a_trace_contains_our_operators(checkout):
    out = checkout / "outputs" / "traced"
    settings = ("profiler=torch", "data.workers=0", "data.batch_size=5", f"hydra.run.dir={out}")
    done = good(checkout, *TINY, *settings)
    assert steps(done) == 12
    assert f"profile: {out / 'profile'} (traces open in" in done.stdout
    files = (out / "profile").glob("*.pt.trace.json")
    traces = [json.loads(path.read_text())["traceEvents"] for path in files]
    training, *_ = [trace for trace in traces if any("backward" in event["name"] for event in trace)]
    in_steps = {event["tid"] for event in training if event["name"].startswith("ProfilerStep")}
    decoding = {event["tid"] for event in training if event["name"] == "tarpeg::decode_batch_out"}
    assert decoding and not decoding & in_steps, "in the decoding threads, not in the training thread"
    assert sum(path.stat().st_size for path in (out / "profile").iterdir()) < 40e6


@pytest.mark.slow
def test_ranks_other_than_0_print_what_they_alone_know(checkout):
    broken = ("data.prepare.out=data/broken", "+data.prepare.photos.corrupt=0.2", "++data.max_bad=1")
    done = good(checkout, *TINY, *broken, "trainer=ddp", "trainer.devices=2", "hydra.run.dir=outputs/ddp")
    assert steps(done) == 2
    assert [line[:5] for line in done.stdout.splitlines()].count("data:") == 1
    printed = [line for line in done.stderr.splitlines() if line.strip(" -")]
    assert len(printed) == len(set(printed)) and "GLOBAL_RANK: 1" not in done.stderr, done.stderr
    with next((checkout / "outputs" / "ddp").glob("csv/*/metrics.csv")).open() as file:
        (substituted,) = filter(None, (row["data/substituted"] for row in csv.DictReader(file)))
    printed = re.findall(r"UserWarning: rank (\d): .*train-000000.tar, key", done.stderr)
    assert 0 < len(printed) <= float(substituted) and {*printed} == {"0", "1"}, "each rank read others"
    counted = re.findall(r"val: \d+ of about 20 images (on rank \d) cannot be decoded: metrics", done.stderr)
    assert sorted(counted) == ["on rank 0", "on rank 1"], done.stderr


SCORE = """
from hydra.experimental.callback import Callback

class Score(Callback):
    def on_job_end(self, config, job_return, **kwargs):
        print(f"a sweeper gets {job_return.return_value:.3f}")
"""


@pytest.mark.slow
def test_many_runs_help_and_the_configuration(checkout):
    (checkout / "score.py").write_text(SCORE)
    more = ("logger=none", "hydra.sweep.dir=sweep", "+hydra.callbacks.score._target_=score.Score")
    done = good(checkout, "--multirun", "augment=none,light", *TINY, *more)
    lines = done.stdout.splitlines()
    trained = [line for line in lines if "trained" in line]
    assert [line.split(",")[0] for line in trained] == ["trained: 3 steps"] * 2
    scores = [line for line in lines if "sweeper" in line]
    assert scores == [f"a sweeper gets {line.split()[-1]}" for line in trained]
    assert "profile:" not in done.stdout
    assert {path.name for path in (checkout / "sweep").iterdir()} >= {"0", "1", "multirun.yaml"}
    done = good(checkout, "--help")
    for text in ("\naugment: article, augmix,", "\ndata: article, cached,", "\n  batch_size: 64\n"):
        assert text in done.stdout
    composed = OmegaConf.create(good(checkout, "--cfg", "job", "data.batch_size=7").stdout)
    assert composed.data.batch_size == 7 and list(composed)[:2] == ["data", "augment"]


ARTICLE = ("experiment=article", "data.prepare.train=24", "data.prepare.val=16", "data.batch_size=8", *SMALL)
AUGMENTED = [(f"augment={name}", *TINY) for name in ("light", "dali", "heavy", "mix")]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [ARTICLE, *AUGMENTED], ids=lambda arguments: arguments[0])
def test_every_configuration_trains(checkout, arguments):
    assert steps(good(checkout, *arguments)) == 3


@pytest.mark.slow
def test_a_folder_of_images(checkout, tmp_path):
    for number in range(60):
        folder = tmp_path / "photos" / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(jpeg("420", 64, 80, seed=number))
    paths = (f"data.prepare.root={tmp_path / 'photos'}", f"data.prepare.out={tmp_path / 'out'}")
    folder = ("data=folder", *paths)
    few = ("model.net.num_classes=3", "data.batch_size=27", "hydra.run.dir=outputs/folder")
    assert steps(good(checkout, *folder, *SMALL, *few)) == 2
    line = bad(checkout, *folder, *SMALL, "model.net.num_classes=2")
    needed = "labels 0..2 need model.net.num_classes=3"
    assert line == f"train: {needed}, and the network has 2: label 2 is 'class2'"

    new = tmp_path / "new" / "a, b"
    new.mkdir(parents=True)
    for number in range(9):
        (new / f"{number}.jpg").write_bytes(b"\xff\xd8" if number == 4 else jpeg("420", 64, 80, seed=number))
    checkpoint = "ckpt_path=outputs/folder/checkpoints/last.ckpt"
    tables = []
    for ranks in (1, 2):  # without the training's data
        out = f"outputs/predicted{ranks}"
        elsewhere = ("data.prepare.root=/nowhere", "data.prepare.out=/nowhere", f"hydra.run.dir={out}")
        settings = ("model.net.num_classes=3", "data.batch_size=2", f"trainer.devices={ranks}", *elsewhere)
        settings += ("trainer=ddp",) * (ranks > 1)
        done = good(checkout, "data=folder", *SMALL, *settings, f"predict={new.parent}", checkpoint)
        assert done.stdout.splitlines()[-1] == f"predicted: 8 of 9 images, in {out}/predictions.csv"
        assert "trained" not in done.stdout and ".py:" not in done.stderr, done.stderr
        with (checkout / out / "predictions.csv").open(newline="") as file:
            tables.append(list(csv.DictReader(file)))
    alone = good(checkout, f"predict={new.parent}", checkpoint, "hydra.run.dir=outputs/alone")
    assert alone.stdout.splitlines()[-1] == "predicted: 8 of 9 images, in outputs/alone/predictions.csv"
    with (checkout / "outputs" / "alone" / "predictions.csv").open(newline="") as file:
        assert [row["class"] for row in csv.DictReader(file)] == [row["class"] for row in tables[0]]
    line = bad(checkout, f"predict={new.parent}", checkpoint, "data.val.crop.size=40")
    assert (
        "predict has crop=CenterCrop(size=[40, 40], " in line
        and "had crop=CenterCrop(size=[32, 32], " in line
    )
    assert line.endswith("or, to use it all the same, give ++data.allow_other_data=true."), line
    assert "key 'a, b/4.jpg': image is" in done.stderr and "it is left out of its batch" in done.stderr
    assert [row["key"] for row in tables[0]] == [f"a, b/{number}.jpg" for number in range(9) if number != 4]
    for row, other in zip(*tables, strict=True):
        assert row["class"] in ("class0", "class1", "class2") and 1 / 3 <= float(row["probability"]) <= 1
        assert (row["key"], row["class"]) == (other["key"], other["class"])
        assert float(row["probability"]) == pytest.approx(float(other["probability"]), abs=1e-5)

    (tmp_path / "out" / "classes.json").unlink()
    line = bad(checkout, *folder, *SMALL, "model.net.num_classes=2")
    assert line == f"train: {needed} or more, and it is 2"


@pytest.mark.slow
def test_several_validation_sets(checkout):
    data = OmegaConf.load(checkout / "conf" / "data" / "synthetic.yaml")
    crop = {"_target_": "tarpeg.CenterCrop", "size": 32, "shorter": 36}
    val = {"_target_": "tarpeg.Split", "shards": "data/synthetic/val-*.tar", "crop": crop}
    data.val = {"clean": {**val, "fidelity": "exact"}, "part": {**val, "subset": 0.275}}
    OmegaConf.save(data, checkout / "conf" / "data" / "two.yaml")
    settings = [setting for setting in TINY if not setting.startswith("data.val.")]
    done = good(checkout, "data=two", *settings, "hydra.run.dir=outputs/two")
    with next((checkout / "outputs" / "two").glob("csv/*/metrics.csv")).open() as file:
        (row,) = (row for row in csv.DictReader(file) if row["val/accuracy"])
    whole, clean, part = (float(row[f"val/{name}accuracy"]) for name in ("", "clean/", "part/"))
    assert whole == pytest.approx((40 * clean + 11 * part) / 51) and steps(done) == 3
    found = []
    for ranks in (1, 2):
        settings = ["trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu"] if ranks > 1 else []
        trained = "ckpt_path=outputs/two/checkpoints/last.ckpt"
        again = good(checkout, "data=two", "validate=true", trained, *PHOTOS, "data.workers=0", *settings)
        found.append(re.findall(r"val/(?:\w+/)?accuracy\W+([\d.]+)", again.stdout))
    assert found[0] == found[1] and len(found[0]) == 3, "the sizes of batches differ between the ranks"


@pytest.mark.slow
def test_own_shards_by_a_brace_pattern(checkout, tmp_path):
    for number in range(2):
        write_tar(tmp_path / f"p-{number:03d}.tar", [m for n in range(12) for m in sample(number * 12 + n)])
    pattern = f'data.train.shards="{tmp_path}/p-{{000..001}}.tar"'
    write_tar(tmp_path / "v.tar", sample(24))
    val = f"data.val.shards={tmp_path}/v.tar"
    assert steps(good(checkout, "data=shards", pattern, val, "data.batch_size=12", *SMALL)) == 2


def test_the_summary_leaves_out_what_was_not_measured(tmp_path):
    profiler = PyTorchProfiler(tmp_path)
    measured = {"callback_metrics": {}, "profiler": profiler, "checkpoint_callbacks": []}
    trainer = types.SimpleNamespace(global_step=1, **measured)
    stall = tarpeg.DataStallMonitor()
    stall._timeline.seconds["other"] = 0.1  # after the first step, which is not counted
    lines = list(summary_of(trainer, {"data": stall}))
    assert lines == [f"profile: {tmp_path} (too few steps for a trace)", "trained: 1 step"]
    (tmp_path / "host.1.pt.trace.json").touch()
    assert "(traces open in" in next(summary_of(trainer, {}))
    trainer.profiler = SimpleProfiler(tmp_path)
    assert next(summary_of(trainer, {})) == f"profile: {tmp_path}"


def test_the_first_line_shows_no_secrets(capsys):
    def said(shards):
        data = types.SimpleNamespace(splits={"train": types.SimpleNamespace(shards=shards, streaming=True)})
        data.num_classes = None
        DataSummary().setup(types.SimpleNamespace(is_global_zero=True, datamodule=data), None, "fit")
        return capsys.readouterr().out.strip()

    assert said("/a b/{0..9}.tar") == "train: /a b/{0..9}.tar"
    url = "https://me:secret@host/a.tar?signature=secret"
    assert said([url, "/b.tar"]) == "train: ['https://host/a.tar', '/b.tar']"
    for options in ("-H 'A: word'", '--header "A: word"', "-u me:word", "--user=me:word", "-sfu me:word"):
        command = said(f"pipe:curl -sf {options} http://host/a.tar?k=word")
        assert "word" not in command and command.endswith(" http://host/a.tar")
    for command in (
        "AWS_SECRET_ACCESS_KEY=word aws s3 cp s3://b/a.tar -",
        "env AWS_SESSION_TOKEN=word cat a.tar",
        "wget -qO- --user=me --password=word http://host/a.tar",
        "curl -b session=word http://host/a.tar",
        "rclone cat --s3-secret-access-key=word :s3:b/a.tar",
        "hf download --token word a.tar",
        "openssl enc -d -pass pass:word -in a.tar",
        "gpg --batch --passphrase word -d a.tar",
        "sshpass -p word ssh h cat a.tar",
    ):
        shown = said(f"pipe:{command}")
        assert not re.search("(?<!pass)word", shown) and "a.tar" in shown, shown
        assert SECRET.search(f"data.train.shards=pipe:{command}")
    assert said("pipe:aws s3 cp s3://b/a.tar -") == "train: pipe:aws s3 cp s3://b/a.tar -"


def test_relative_interpolations_of_the_command_line_are_kept_as_they_are(monkeypatch):
    monkeypatch.setenv("TARPEG_TEST_SEED", "7")
    task = ["data=shards", "data.val.crop.size=${...train.crop.size}", "seed=${oc.env:TARPEG_TEST_SEED}"]
    run = OmegaConf.create({"overrides": {"task": task}})
    monkeypatch.setattr(script.HydraConfig, "get", lambda: run)
    assert script.command_line() == [*task[:2], "seed=7"]
    kept = KeepArguments(script.command_line())
    assert kept.arguments == task[:2]


def test_the_line_to_go_on_is_a_command_of_a_shell(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    saving = types.SimpleNamespace(monitor=None, best_model_path="a b/last.ckpt")
    trainer = types.SimpleNamespace(checkpoint_callbacks=[saving], max_epochs=3, max_steps=-1)
    trainer.current_epoch, trainer.global_step = 3, 9
    given = ["data=shards", 'data.train.shards="/x/{0..9}.tar"', "++trainer.max_epochs=3", "verbose=true"]
    given.append("++data.allow_other_data=true")
    hint = resume_hint(trainer, [*given, "ckpt_path=old.ckpt"])
    said, _, command = hint.partition(": ")
    assert said == "to go on from here (max_epochs=3 is reached)"
    words = [*given[:2], 'ckpt_path="a b/last.ckpt"', "++trainer.max_epochs=6"]
    assert shlex.split(command) == ["python", "train.py", *words]
    options = ["--config-dir", "my conf", "-cn=own"]
    monkeypatch.setattr(sys, "argv", ["train.py", *options, *given, "--multirun"])
    assert shlex.split(resume_hint(trainer, given).partition(": ")[2]) == [
        "python",
        "train.py",
        *options,
        *words,
    ]
    monkeypatch.setattr(sys, "argv", ["train.py"])
    trainer.max_steps = 4
    hint = resume_hint(trainer, [*given, "+trainer.max_steps=4"])
    assert shlex.split(hint)[-2:] == ["++trainer.max_epochs=6", "+trainer.max_steps=8"]
    for url in (
        "s3://me:word@host/a.tar",
        "https://host/a.tar?X-Amz-Signature=word",
        "'pipe:curl ftp://me:word@h'",
        "['pipe:curl -H \\'Authorization: Bearer word\\' http://host/a.tar']",
    ):
        hint = resume_hint(trainer, ["data=shards", f"+data.train.shards={url}"])
        assert "word" not in hint and " data=shards +data.train.shards=... " in hint, hint
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert ": torchrun --nnodes 2 --nproc-per-node 4 train.py data=shards " in resume_hint(trainer, given)


def test_a_checkpoint_brings_its_settings_but_no_code(tmp_path):
    def saved(*arguments):
        checkpoint = {"state_dict": {}}
        KeepArguments(arguments).on_save_checkpoint(None, None, checkpoint)
        torch.save(checkpoint, tmp_path / "x.ckpt")
        return f"ckpt_path={tmp_path}/x.ckpt"

    of_data = ("data=shards", "data.val.shards=/v.tar", "data.val.crop.size=96", "model=resnet18")
    for plain in (
        "data.val.shards='/my data (1)/v-{000..099}.tar'",
        "data.val.shards=[a/*.tar,'s3://b/[0-9].tar']",
        """data.val.shards="/Mu\u0308ller & Söhne's #1!; neu/v.tar\"""",
        "+data.val.crop={size:[96,128],shorter:null}",
        "~data.prepare",
    ):
        own = (saved(plain), "predict=/new")
        assert with_those_of_checkpoint(own) == [plain, *own]
    own = (saved(*of_data, "trainer.max_epochs=3", "logger=none", "hydra.run.dir=x"), "validate=true")
    assert with_those_of_checkpoint(own) == [*of_data, *own]
    of_one_run = [
        "++data.allow_other_data=true",
        "+data.val.shards='https://me:secret@host/x.tar'",
        'data.test.shards="pipe:curl -u me:secret https://host/x.tar"',
    ]
    own_only = (saved(*of_one_run, "data.train.shards=https://host/x.tar?signature=1"), "validate=true")
    assert with_those_of_checkpoint(own_only) == [*own_only]
    own = (saved(*of_data), "validate=true")
    for more, left in (
        ("data.val.shards=/w.tar", [of_data[0], *of_data[2:]]),
        ("++data.val.crop.size=8", [*of_data[:2], of_data[3]]),
        ("data=folder", [of_data[3]]),
        ("data=shards", list(of_data[1:])),
        ("model=small", list(of_data[:3])),
    ):
        assert with_those_of_checkpoint([*own, more]) == [*left, *own, more]
    for without in (own[:1], own[1:], [*own, "--multirun"], ["ckpt_path=none.ckpt", "validate=true"]):
        assert with_those_of_checkpoint(without) == [*without]
    streamed = ("data=shards", "data.train.streaming=true", "+data.val.streaming=true")
    own = (saved(*streamed), "predict=/new")  # which reads neither
    assert with_those_of_checkpoint(own) == ["data=shards", *own]
    shards = ("data.train.shards=s3://b/a.tar", "data.val.shards=/v.tar")
    own = (saved(*streamed[:2], *shards), "validate=true")
    assert with_those_of_checkpoint(own) == ["data=shards", shards[1], *own]
    fields = ("data=shards", "data.val.target=json:a.label", *shards)
    assert with_those_of_checkpoint((saved(*fields), "validate=true"))[:4] == [*fields]
    own = (saved("data=shards", *shards), "validate=true")
    assert with_those_of_checkpoint(own) == ["data=shards", *shards, *own]
    own = (saved(*streamed[:2], *shards), "validate=true", "data.train.streaming=true")
    assert with_those_of_checkpoint(own) == ["data=shards", *shards, *own]
    for code in (
        "data.prepare={_target_: os.system, command: ls}",
        "model.net._target_=os.abort",
        "+data.val.streaming=true",
        'data.val.shards="pipe:ls"',
        "model=../../../tmp/evil",
        'data.val.shards="{p..p}ipe:ls"',
        "data.val.shards=${oc.env:HOME}",
        r"data.val.crop=$\{oc.create:\{\}\}",
        "+data@data.prepare=../../../tmp/evil",
        "+model.net.checkpoint_path=weights",
        "data.val.crop={size:{_target_:os.abort}}",
    ):
        for task in ("validate=true", "predict=/new"):
            if task.startswith("predict") and "streaming" in code:  # it reads no stream, see above
                continue
            own = (saved(code, "data=shards"), task)
            with pytest.raises(ConfigError, match=r"may run code, .*trust_ckpt=true"):
                with_those_of_checkpoint(own)
            trusting = [*own, "trust_ckpt=true"]
            assert with_those_of_checkpoint(trusting) == [code, "data=shards", *trusting]


def test_predict_prepares_images_as_the_checkpoint(tmp_path):
    split = tarpeg.Split("x", tarpeg.CenterCrop(48, shorter=50), fidelity="exact")
    state = tarpeg.ShardDataModule(val=split, augment=tarpeg.Augment([0.5] * 3, [0.25] * 3)).state_dict()
    torch.save({"state_dict": {}, "ShardDataModule": state}, tmp_path / "x.ckpt")
    val = {"_target_": "tarpeg.Split", "shards": "v", "crop": {"_target_": "tarpeg.CenterCrop", "size": 32}}
    config = {"data": {"val": val}, "predict": "/new", "validate": False, "trust_ckpt": False}
    config = OmegaConf.create({**config, "ckpt_path": str(tmp_path / "x.ckpt")})
    found = data_to_predict(config)
    assert found["predict"] == tarpeg.Split("/new", split.crop, fidelity="exact", target=None)
    assert found["augment"].mean == (0.5,) * 3 and found["val"] is None
    for given in ("data=shards", "++data.val.crop.size=32", "augment=none", "experiment=article"):
        own = data_to_predict(config, [given])
        assert own["predict"]["crop"]["size"] == 32 and "augment" not in own, "the data module compares them"


def test_messages_of_the_package_get_overrides():
    with pytest.raises(ValueError, match=r"erase=.*tarpeg\.Erase") as caught:
        tarpeg.Augment(erase={"probability": 1})
    text = with_overrides(caught.value)
    assert text.endswith(" must be a tarpeg.Erase, got a dict: give +augment.erase._target_=tarpeg.Erase")
    assert str(caught.value).endswith("give erase=tarpeg.Erase()")
    with pytest.raises(ValueError, match=r"erase=0\.3 must be a tarpeg\.Erase, got a float: give erase="):
        tarpeg.Augment(erase=0.3)
    for owner, name, value, python, override in (
        ("prepare", "out", ..., "out", "data.prepare.out"),
        ("network", "num_classes", 3, "num_classes=3", "model.net.num_classes=3"),
        ("detector", "classes", 3, "classes=3", "model.classes=3"),
        ("ShardDataModule", "val", None, "val=None", "data.val=null"),
        ("ShardDataModule", "augment", None, "augment=None", "~augment"),
        ("ShardDataModule", "allow_overlap", True, "allow_overlap=True", "++data.allow_overlap=true"),
        (
            "ShardDataModule",
            "allow_other_data",
            True,
            "allow_other_data=True",
            "++data.allow_other_data=true",
        ),
        ("build_cache", "replace", True, "replace=True", "replace=true"),
    ):
        error = tarpeg.ShardError(Message("give ", Setting(owner, name, value), "."))
        error = pickle.loads(pickle.dumps(error))  # from another process
        assert str(error) == f"give {python}." and with_overrides(error) == f"give {override}."
        assert error.args[0].remedies == (Setting(owner, name, value),)


def test_a_checkpoint_with_an_object_of_a_class_that_has_moved(tmp_path, monkeypatch):
    for name, gone in (("module", True), ("class", False)):
        moved = types.ModuleType("moved")
        moved.Old = type("Old", (), {"__module__": "moved"})
        monkeypatch.setitem(sys.modules, "moved", moved)
        path = tmp_path / f"{name}.ckpt"
        torch.save({"state_dict": {}, "old": moved.Old()}, path)
        if gone:
            monkeypatch.delitem(sys.modules, "moved")
        else:
            del moved.Old
        with pytest.raises(ConfigError, match="class that is missing"):
            check_checkpoint(str(path), torch.nn.Linear(2, 3), trusted=True)


class Harmful:
    """Unpickling it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.write_text, (self.path, "code of the checkpoint ran")


def test_nothing_of_a_checkpoint_runs_until_it_is_trusted(tmp_path):
    ran, path, net = tmp_path / "ran", tmp_path / "x.ckpt", torch.nn.Linear(2, 3)
    torch.save({"state_dict": net.state_dict(), "callbacks": Harmful(ran)}, path)
    with pytest.raises(ConfigError, match=r"pathlib\.Path\b.*trust_ckpt=true;"):
        check_checkpoint(str(path), net)
    assert not ran.exists()
    check_checkpoint(str(path), net, trusted=True)
    assert ran.exists()
    plain = {"where": tmp_path, "arguments": argparse.Namespace(size=3)}
    torch.save({"state_dict": net.state_dict(), "hyper_parameters": plain}, path)
    check_checkpoint(str(path), net)
    torch.save({"state_dict": net.state_dict(), "more": collections.defaultdict(int, a=1)}, path)
    with pytest.raises(ConfigError, match=r"tensors.*trust_ckpt=true;"):
        check_checkpoint(str(path), net)


def test_arrays_and_gpus_that_are_not_there_are_one_line(tmp_path, monkeypatch):
    (tmp_path / "text.npy").write_text("no array")
    for path in (tmp_path / "none.npy", tmp_path / "text.npy"):
        splits = {"train": {"subset": 0.5, "weights": str(path)}, "val": {"a": {"weights": None}}}
        with pytest.raises(ConfigError, match=rf"^data\.train\.weights={path} cannot be read .* numpy\.save"):
            check_arrays(OmegaConf.create(splits))
    np.save(tmp_path / "good.npy", [1.0])
    check_arrays(OmegaConf.create({"val": {"a": {"subset": str(tmp_path / "good.npy")}}}))
    unset = {"train": {"shards": "???"}, "val": {"weights": None}}
    config = {"data": unset, "predict": None, "validate": False, "ckpt_path": None}
    check_run(OmegaConf.create(config), Classifier(torch.nn.Linear(2, 3), torch.optim.SGD, 3), True)
    unset["train"]["weights"] = str(tmp_path / "none.npy")
    with pytest.raises(ConfigError, match=r"^data\.train\.weights="):
        check_run(OmegaConf.create(config), Classifier(torch.nn.Linear(2, 3), torch.optim.SGD, 3), True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^trainer\.accelerator=gpu, .*trainer=cpu"):
        check_trainer({"accelerator": "gpu"})
    check_trainer({"accelerator": "auto"})


@pytest.mark.parametrize("count", [1, 2])
def test_processes_of_torchrun_that_the_trainer_does_not_join_are_one_line(monkeypatch, count):
    settings = {"accelerator": "cpu", "devices": count}
    monkeypatch.setenv("WORLD_SIZE", "4")
    check_trainer(settings)  # of another launcher
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for here, more in ((4, ""), (2, r" \+trainer\.num_nodes=2")):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
        words = rf"started 4 .* uses {count}\b.* trainer=ddp trainer\.devices={here}{more}$"
        with pytest.raises(ConfigError, match=words):
            check_processes(count)
    check_processes(4)
    if count > 1:
        with pytest.raises(ConfigError, match="uses 2"):
            check_trainer(settings)
        check_trainer({**settings, "num_nodes": 2})


def test_numbers_of_samples_that_are_not_there_are_one_line(photos):
    for settings, words in (
        ({"subset": [1, 200]}, r"subset=\[1, 200\] must be within 0\.\.22"),
        ({"weights": [1, 2]}, "weights="),
    ):
        split = tarpeg.Split(str(photos), tarpeg.CenterCrop(8), **settings)
        with pytest.raises(SystemExit, match=f"^train: {words}"), one_line_errors("train"):
            tarpeg.ShardDataModule(split, workers=0).train_dataloader()


def test_a_full_disk_is_one_line():
    full = OSError(errno.ENOSPC, "No space left on device", "/tmp/x", None, "/d/last.ckpt")
    is_one_line = pytest.raises(SystemExit, match=r"^train: /d/last\.ckpt is incomplete: No space left")
    with is_one_line, one_line_errors("train"):
        raise full
    with pytest.raises(PermissionError), one_line_errors("train"):
        raise PermissionError(errno.EACCES, "Permission denied", "/d")


def test_a_checkpoint_behind_a_url_that_is_not_there_is_one_line():
    config = {"data": {}, "predict": None, "validate": True, "trust_ckpt": False}
    model = Classifier(torch.nn.Linear(2, 3), torch.optim.SGD, 3)
    for url, reason in (
        ("memory://none.ckpt", "cannot be read: .*give the local file"),
        ("oss://b/a.ckpt", "cannot be opened: .*pip install"),
        ("nothing://a.ckpt", "cannot be opened: Protocol not known: nothing. Check the address"),
    ):
        with pytest.raises(ConfigError, match=f"^ckpt_path={url}: .*{reason}"):
            check_run(OmegaConf.create(config | {"ckpt_path": url}), model, True)
        with pytest.raises(ConfigError, match=f"^ckpt_path={url}: .*{reason}"):
            with_those_of_checkpoint(["validate=true", f"ckpt_path={url}"])
    fsspec.filesystem("memory").pipe("/there.ckpt", b"1")
    check_run(OmegaConf.create(config | {"ckpt_path": "memory://there.ckpt"}), model, True)
    with pytest.raises(ConfigError, match=r"^ckpt_path=memory://there\.ckpt is not a checkpoint"):
        explain_remote("memory://there.ckpt", model, trusted=False)


def test_a_checkpoint_behind_a_url_has_the_settings_of_its_training(tmp_path):
    stored = {"train.py": {"arguments": ["data=shards", "model.net.num_classes=3"]}, "state_dict": {}}
    torch.save(stored, tmp_path / "a.ckpt")
    fsspec.filesystem("memory").pipe("/with.ckpt", (tmp_path / "a.ckpt").read_bytes())
    for asked in ("predict=photos", "validate=true"):
        found = with_those_of_checkpoint([asked, "ckpt_path=memory://with.ckpt"])
        assert found[:3] == ["data=shards", "model.net.num_classes=3", asked]
        path = pathlib.Path(found[3].removeprefix("ckpt_path="))
        assert path.read_bytes() == (tmp_path / "a.ckpt").read_bytes()
    given = ["ckpt_path=memory://with.ckpt"]
    assert with_those_of_checkpoint(given) == given, "a training goes on from the URL"


def test_a_word_in_place_of_a_number_has_a_remedy():
    model = Classifier(torch.nn.Linear(2, 3), functools.partial(torch.optim.SGD, lr="abc"), 3)
    with pytest.raises(ConfigError, match=r"lr=abc .*number: model\.optimizer\.lr="):
        model.configure_optimizers()


def test_checkpoints_that_do_not_fit_are_one_line(tmp_path):
    path, other, folder = (tmp_path / name for name in ("a.ckpt", "torn.ckpt", "run"))
    torch.save({"state_dict": torch.nn.Linear(2, 3).state_dict()}, path)
    check_checkpoint(str(path), torch.nn.Linear(2, 3))
    check_checkpoint("last", torch.nn.Linear(2, 3))
    other.write_bytes(path.read_bytes()[:500])
    folder.mkdir()
    words = tmp_path / "words.json"
    words.write_text("{}")
    torch.save([], tmp_path / "list.ckpt")
    expected = {
        tmp_path / "none.ckpt": r"none\.ckpt is not a file$",
        folder: "run is not a file$",
        tmp_path: r"is a folder; give a file, such as .*/torn\.ckpt$",
        other: "checkpoint of Lightning.*whole",
        tmp_path / "list.ckpt": "is not a complete checkpoint of Lightning",
        words: r"words\.json .*checkpoint of Lightning.*whole",
        path: r"\b2 .*tensors differ, .*bias, \[3\] .*\[4\] here",
    }
    for given, message in expected.items():
        with pytest.raises(ConfigError, match=message):
            check_checkpoint(str(given), torch.nn.Linear(2, 4))

    loops = {"fit_loop": {"epoch_progress": {"current": {"processed": 8}}}}
    torch.save({"state_dict": torch.nn.Linear(2, 3).state_dict(), "loops": loops}, path)
    for limit in (8, -1, None):
        check_checkpoint(str(path), torch.nn.Linear(2, 3), limit)
    with pytest.raises(ConfigError, match=r"\b8 epochs.* trainer\.max_epochs is 2\b"):
        check_checkpoint(str(path), torch.nn.Linear(2, 3), 2)


def test_what_predict_takes():
    crop = {"_target_": "tarpeg.CenterCrop", "size": 32}
    val = {"_target_": "tarpeg.Split", "shards": "${..place}/x", "crop": crop, "subset": 0.1}
    for given in ("s3://bucket/photos", ["/new", "https://example.org/a.tar"]):
        config = {"data": {"val": val}, "predict": given, "validate": False}
        with pytest.raises(ConfigError, match=r"^predict=(s3|https)://.* is not local.*copy them"):
            data_to_predict(OmegaConf.create(config))
    for given in (val, {"clean": val}, [val]):
        config = {"data": {"place": "???", "val": given}, "predict": "/new", "validate": False}
        found = data_to_predict(OmegaConf.create(config))
        split = {"_target_": "tarpeg.Split", "crop": crop, "shards": "/new", "target": None}
        assert found == {**dict.fromkeys(("train", "val", "test", "prepare")), "predict": split}
    for change, text in (
        ({"predict": True}, "predict=True must be a folder of images, a glob or shards"),
        ({"predict": ""}, "predict='' must be a folder of images, a glob or shards"),
        ({"validate": True}, "validate=true and predict="),
        ({"data": {"val": None}}, r"predict= .*data\.val"),
    ):
        with pytest.raises(ConfigError, match=f"^{text}"):
            data_to_predict(OmegaConf.create({**config, **change}))


def test_predictions_that_fail_leave_no_part_of_a_table(tmp_path):
    table, trainer = (
        Predictions(tmp_path / "table.csv"),
        types.SimpleNamespace(is_global_zero=True, world_size=1),
    )
    table.on_predict_start(trainer, torch.nn.Identity())
    table.on_predict_batch_end(trainer, torch.nn.Identity(), [("a.jpg", "cat", 0.5)])
    table.on_exception(trainer, torch.nn.Identity(), KeyboardInterrupt())
    assert not any(tmp_path.iterdir())


def test_a_path_is_shown_in_its_shorter_form(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert shown_path(tmp_path / "a" / "b" / "c.csv") == "c.csv" and shown_path("/c.csv") == "/c.csv"
    assert shown_path("s3://bucket/run/last.ckpt") == "s3://bucket/run/last.ckpt"


NOWHERE = ["data=shards", "data.train.shards=/nowhere/x.tar", "data.val.shards=/nowhere"]
NO_SHARD = r"shard /nowhere/x\.tar does not exist; there is no folder /nowhere\. Check the path\."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["data.trian=1"], r"^train: data\.trian is not a setting; did you mean data\.train\?$"),
        (
            ["data=nonsense"],
            r"^train: data=nonsense must be one of article, cached, folder, scene_boxes, scene_masks, "
            r"shards, synthetic(, two)?$",
        ),
        (["trainer.max_epochs=one"], r"^train: trainer\.max_epochs=one must be a number$"),
        (["data=shards"], r"^train: data\.train\.shards is not set: give data\.train\.shards="),
        (NOWHERE, rf"^train: {NO_SHARD}$"),
        (["data.train.flip=2"], r"^train: data\.train: flip=2 must be a probability in 0\.\.1$"),
        (["ckpt_path="], r"^train: ckpt_path= is empty: give a file, or leave it out$"),
        (["ckpt_path=nope.ckpt"], r"^train: ckpt_path=nope\.ckpt is not a file$"),
        (["predict=/x"], r"^train: predict= needs a checkpoint: give ckpt_path="),
        (
            ["validate=true", "data.val=null", "ckpt_path=last"],
            "^train: validate=true measures on data.val, which",
        ),
        ([*TINY, "model.net.num_classes=0"], r"^train: model\.net\.num_classes=0 must be at least 1$"),
        (
            [*TINY, "model.optimizer.lr=fast"],
            r"^train: model\.optimizer: lr=fast is a word: '<=' not supported",
        ),
        ([*TINY, "model.optimizer.lr=-1"], r"^train: model\.optimizer: Invalid learning rate: -1"),
        (
            ["data.on_error=skip"],
            r"^train: data: on_error='skip' must be 'substitute', 'raise' or",
        ),
    ],
)
def test_wrong_settings_end_in_one_line(checkout, arguments, text):
    line = bad(checkout, *arguments)
    assert re.search(text, line), line


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["raise", "substitute"])
def test_bad_images_by_policy(checkout, tmp_path, on_error):
    samples = [sample(number, b"" if number == 7 else None) for number in range(24)]
    path = write_tar(tmp_path / "bad.tar", [member for members in samples for member in members])
    shards = ("data=shards", f"data.train.shards={path}", f"data.val.shards={path}", "data.batch_size=12")
    assert "or give ++data.allow_overlap=true." in bad(checkout, *shards, *SMALL)
    shards += ("+data.allow_overlap=true",)
    text = f"shard {path}, key 'k0007': image is EMPTY (1)"
    if on_error == "raise":
        assert bad(checkout, *shards, *SMALL, "data.on_error=raise").startswith(f"train: {text}")
    else:
        assert text in good(checkout, *shards, *SMALL).stderr


def test_the_number_of_shapes_is_stated_before_a_training(tmp_path, capsys, caplog):
    tarpeg.make_shards(tmp_path, tarpeg.Photos(size=[(48, 64), (64, 48)], classes=5), samples=12, workers=0)
    crop = tarpeg.AspectBuckets(buckets=[(16, 24), (24, 16)], upscale=True)
    split = tarpeg.Split(str(tmp_path / "*.tar"), crop)
    data = tarpeg.ShardDataModule(split, augment=tarpeg.Augment(), batch_size=4, workers=0)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=DataSummary(), **options)
    with caplog.at_level("INFO", logger="tarpeg"):
        trainer.fit(Net(), data)
    line = f"train: 2 shapes of images in {len(data.train_dataloader())} batches per epoch; torch.compile"
    assert line in caplog.text and capsys.readouterr().out.count(line) == 1
    assert tarpeg.Loader(tarpeg.Split(str(tmp_path / "*.tar"), tarpeg.RandomCrop(8))).shapes_text() == ""
