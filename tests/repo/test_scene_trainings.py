"""The experiments detection and segmentation: small trainings pass thresholds that shuffled targets miss."""

from __future__ import annotations

import dataclasses
import math
import runpy
import sys
import types

import lightning
import numpy as np
import pytest
import tarpeg
import torch
from helpers.checkouts import ROOT
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import nn

from training.checks import ConfigError
from training.schedules import with_cosine
from training.segmentation import Segmenter, UNet

# By experiment: the metric, its thresholds for right and shuffled targets, and overrides of both trainings.
SMALL = ("data.prepare.train=320", "data.prepare.val=60", "data.prepare.photos.size=64", "data.batch_size=16")
SMALL += ("data.train.crop.size=64", "data.val.crop.size=64", "data.val.crop.shorter=64")
SMALL += ("++data.prepare.photos.extent=[0.3,0.6]", "++data.prepare.photos.objects=[1,3]")
TASKS = {
    "detection": ("val/map", 0.25, 0.08, ("model.net.size=64", "trainer.max_epochs=5")),
    "segmentation": ("val/miou", 0.6, 0.3, ("trainer.max_epochs=3",)),
}


class Shuffled(tarpeg.Source):
    """Samples whose targets are those of other samples."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def keys(self, ids):
        return self.source.keys(ids)

    def extensions(self, id):
        return self.source.extensions(id)

    def members(self, ids, extension):
        ids = np.asarray(ids)
        return self.source.members(ids if extension == "jpg" else (ids + 7) % len(self), extension)


def composed(*overrides):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", list(overrides))


def measured(name, folder, *, is_shuffled):
    """The metric of a small training."""
    metric, _, _, overrides = TASKS[name]
    config = composed(f"experiment={name}", f"data.prepare.out={folder / name}", *SMALL, *overrides)
    lightning.seed_everything(0, verbose=False)
    model, prepare = instantiate(config.model), instantiate(config.data.prepare)
    prepare()
    train, val = (instantiate(config.data[split]) for split in ("train", "val"))
    if is_shuffled:
        train = dataclasses.replace(train, shards=Shuffled(train.open()))
    settings = {"batch_size": config.data.batch_size, "workers": 0, "augment": instantiate(config.augment)}
    data = tarpeg.ShardDataModule(train, val, **settings)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "num_sanity_val_steps": 0}
    trainer = lightning.Trainer(
        **quiet, max_epochs=config.trainer.max_epochs, check_val_every_n_epoch=config.trainer.max_epochs
    )
    trainer.fit(model, datamodule=data)
    return float(trainer.callback_metrics[metric])


@pytest.fixture
def one_thread():
    """OpenMP's threads would spin on cores that other tests use."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_small_training_passes_and_shuffled_targets_do_not(name, tmp_path, one_thread):
    if name == "detection":
        pytest.importorskip("pycocotools")
    _, reached, missed, _ = TASKS[name]
    found = [measured(name, tmp_path, is_shuffled=is_shuffled) for is_shuffled in (False, True)]
    assert found[0] > reached and found[1] < missed, found


def test_the_precision_of_boxes_is_that_of_all_ranks_however_many_images_they_have(monkeypatch):
    pytest.importorskip("pycocotools")
    from training.detection import Detector

    def image(number):
        begin = 10.0 * torch.rand(2, 2, generator=torch.Generator().manual_seed(number))
        boxes = torch.cat([begin, begin + 20], dim=1)
        labels = torch.tensor([1, 2])
        found = {"boxes": boxes + number, "labels": labels, "scores": torch.tensor([0.9, 0.4]) + number / 50}
        return found, {"boxes": boxes, "labels": labels}

    def measured(batches, others=()):
        model, values = Detector(nn.Identity(), None, 3), {}
        model._trainer = types.SimpleNamespace(world_size=1 + len(others), datamodule=None)
        model.log = lambda name, value, **_: values.update({name: float(value)})

        def gather(found, own):
            found[:] = [own, *others]

        monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
        for batch in batches:
            model.validation_step(tuple(map(list, zip(*map(image, batch), strict=True))), 0)
        sent = [*model._measured]
        model.on_validation_epoch_end()
        return values, sent

    whole, _ = measured([[0, 1], [2, 3], [4]])
    _, other = measured([[1], [4]])
    assert measured([[0, 2], [3]], [other])[0] == whole and 0 < whole["val/map"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_several_validation_sets_are_measured_one_by_one_and_together(name, tmp_path, one_thread):
    if name == "detection":
        pytest.importorskip("pycocotools")
    metric, _, _, overrides = TASKS[name]
    config = composed(f"experiment={name}", f"data.prepare.out={tmp_path}", *SMALL, *overrides)
    instantiate(config.data.prepare)()
    model, val = instantiate(config.model), instantiate(config.data.val)
    half = len(val.open()) // 2
    sets = {"a": dataclasses.replace(val, subset=[*range(half)])}
    sets["b"] = dataclasses.replace(val, subset=[*range(half, len(val.open()))])
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu"}
    settings = {"batch_size": 8, "workers": 0, "augment": instantiate(config.augment)}
    lightning.seed_everything(0, verbose=False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)

    def measured(given):
        (found,) = lightning.Trainer(**quiet).validate(
            model, datamodule=tarpeg.ShardDataModule(val=given, **settings), verbose=False
        ) or [{}]
        return found

    both = lightning.Trainer(**quiet)
    both.validate(model, datamodule=tarpeg.ShardDataModule(val=sets, **settings), verbose=False)
    found = {key: float(value) for key, value in both.callback_metrics.items()}
    part = metric.partition("/")[2]
    assert found[metric] == pytest.approx(measured(val)[metric])
    for key, split in sets.items():
        assert found[f"val/{key}/{part}"] == pytest.approx(measured(split)[metric])


def batch_of(highest):
    """Images and targets of both tasks with that class."""
    images = torch.zeros(2, 3, 32, 32)
    masks = torch.full((2, 32, 32), 255)
    masks[0, 0, 0] = highest
    boxes = [{"labels": torch.tensor(labels)} for labels in ([1, highest], [])]
    return {"segmentation": (images, masks), "detection": (images, boxes)}


@pytest.mark.parametrize("name", TASKS)
def test_a_class_that_the_network_lacks_is_named(name):
    if name == "detection":
        pytest.importorskip("pycocotools")
    model = instantiate(composed(f"experiment={name}").model)
    good = batch_of(4)[name]
    assert model.on_before_batch_transfer(good, 0) is good
    with pytest.raises(ConfigError, match=r"5 .*model\.classes=6 "):
        model.on_before_batch_transfer(batch_of(5)[name], 0)


@pytest.mark.parametrize("name", TASKS)
def test_labels_of_another_task_are_one_line(name):
    if name == "detection":
        pytest.importorskip("pycocotools")
    model = instantiate(composed(f"experiment={name}").model)
    images, labels = torch.zeros(2, 3, 32, 32), torch.tensor([1, 0])
    others = [labels, *(batch_of(1)[task][1] for task in TASKS if task != name)]
    for targets in others:
        with pytest.raises(ConfigError, match=r"^this model finds .* data\.train\.targets"):
            model.on_before_batch_transfer((images, targets), 0)


def test_networks_of_torchvision_return_dicts():
    class Net(nn.Module):
        def forward(self, images):
            return {"out": images[:, :2], "aux": None}

    images = torch.rand(1, 3, 4, 4)
    assert (Segmenter(Net(), torch.optim.SGD, 2)(images) == images[:, :2]).all()


def test_a_u_net_keeps_the_size_and_refuses_sides_that_it_cannot_halve():
    net = UNet(3, width=4, depth=2)
    assert net(torch.rand(2, 3, 16, 24)).shape == (2, 3, 16, 24)
    with pytest.raises(ConfigError, match="16 x 20"):
        net(torch.rand(2, 3, 16, 20))


def test_the_learning_rate_rises_and_falls_also_for_a_run_that_goes_on():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 2.0)
    rates = []
    for steps, begin in ((10, 0), (20, 10)):
        made = with_cosine(
            types.SimpleNamespace(trainer=types.SimpleNamespace(estimated_stepping_batches=steps)),
            optimizer,
            4,
        )
        schedule = made["lr_scheduler"]["scheduler"]
        schedule.last_epoch = begin - 1
        for _ in range(steps - begin):
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == 0.5 and max(rates) == rates[3] > 1.5
    assert rates[9] == pytest.approx(2.0 * (1 + math.cos(0.9 * math.pi)) / 2)
    assert rates[10] == pytest.approx(1.0) and rates[19] < 0.02


@pytest.mark.parametrize("steps", [-1, math.inf])
def test_a_learning_rate_that_falls_needs_an_end(steps):
    run = types.SimpleNamespace(trainer=types.SimpleNamespace(estimated_stepping_batches=steps))
    with pytest.raises(ConfigError, match=r"give trainer\.max_epochs=, and for a stream .*tarpeg\.Strea"):
        with_cosine(run, torch.optim.SGD([nn.Parameter(torch.zeros(1))], 2.0), 4)


ENGINE = """
import torch

def train_one_epoch(model, optimizer, data_loader, device, epoch, print_freq, scaler=None):
    model.train()
    for number, (images, targets) in enumerate(data_loader):
        images = list(image.to(device) for image in images)
        targets = [dict(target, boxes=target["boxes"].to(device)) for target in targets]
        losses = sum(model(images, targets).values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
    print(f"trained on {number + 1} of {len(data_loader)} batches")

@torch.inference_mode()
def evaluate(model, data_loader, device):
    model.eval()
    truth = {}
    for number in range(len(data_loader.dataset)):
        image, target = data_loader.dataset[number]
        boxes = target["boxes"].clone()
        boxes[:, 2:] -= boxes[:, :2]
        truth[target["image_id"]] = image.shape[-2:], boxes.tolist(), target["area"].tolist()
    seen = []
    for images, targets in data_loader:
        outputs = model(list(image.to(device) for image in images))
        assert all({"boxes", "labels", "scores"} <= output.keys() for output in outputs)
        seen += [target["image_id"] for target in targets]
    assert sorted(seen) == sorted(truth) and len(seen) == len(truth)
    print(f"evaluated {len(seen)} images, {len(data_loader)} batches")
"""


@pytest.mark.slow
def test_the_reference_loop_of_torchvision(tmp_path, capsys, one_thread, monkeypatch):
    """The example, with a stand-in of torchvision's engine.py, which calls loaders as that does."""
    tarpeg.make_shards(tmp_path / "shards", tarpeg.Scenes(size=96, objects=(0, 3)), 8, workers=0)
    scenes = tarpeg.Scenes(size=96, objects=(0, 3), seed=1)
    tarpeg.make_shards(tmp_path / "shards", scenes, 5, workers=0, prefix="val")
    (tmp_path / "engine.py").write_text(ENGINE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    main = runpy.run_path(str(ROOT / "examples" / "torchvision_detection.py"))["main"]
    shards = [str(tmp_path / "shards" / f"{name}-*.tar") for name in ("train", "val")]
    main(str(tmp_path), *shards, epochs=1)
    sys.modules.pop("engine")
    assert capsys.readouterr().out == "trained on 2 of 2 batches\nevaluated 5 images, 2 batches\n"
