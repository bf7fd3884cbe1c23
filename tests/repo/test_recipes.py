"""The published recipes of conf/experiment: each trains, tiny; and what they need of train.py."""

from __future__ import annotations

import copy
import math
import re
import sys

import lightning
import pytest
import tarpeg
import torch
from helpers.checkouts import ROOT, copy as copy_checkout, library, tracked, train
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from tarpeg_hydra.overrides import with_overrides
from torch import nn

from training.checks import ConfigError
from training.classifier import Classifier
from training.dino import Dino

RESNET = ("model.net._target_=torchvision.models.shufflenet_v2_x0_5",)
TIMM = ("model.net.model_name=test_resnet",)
VIT = ("model.net.model_name=test_vit", "+model.net.img_size=32")
SMALL = (
    "data.train.crop.size=32",
    "data.val.crop.size=32",
    "data.val.crop.shorter=36",
    "model.net.num_classes=10",
)
VIEWS = [f"data.train.crop.{view}.size={48 if view < 2 else 32}" for view in range(10)]
DINO = ("model.net.model_name=test_vit", "model.outputs=32", *VIEWS)
# By experiment: overrides that make it tiny; learning rate and weight decay after the first of its epochs.
TINY = {
    "resnet50_v2": ((*RESNET, *SMALL), 0.5 * (0.01 + 0.99 / 5), 2e-5),
    "rsb_a2": ((*TIMM, *SMALL), 5e-3 * (0.02 + 0.98 / 5), 0.02),
    "deit3_s": ((*VIT, *SMALL), 4e-3 * (2.5e-4 + (1 - 2.5e-4) / 5), 0.05),
    "dino": (DINO, None, None),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    place = copy_checkout(tmp_path_factory.mktemp("recipes"), tracked())
    for split, samples in (("train", 60), ("val", 20)):
        tarpeg.make_shards(place / "shards", tarpeg.Photos(size=64), samples, prefix=split, workers=0)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_recipe_trains(checkout, name):
    overrides, lr, decay = TINY[name]
    pytest.importorskip("timm")
    shards = ["data.train.shards=shards/train-*.tar"]
    shards += [] if name == "dino" else ["data.val.shards=shards/val-*.tar"]
    run = ("trainer.max_epochs=1", "+trainer.limit_train_batches=2", "trainer.accelerator=cpu")
    run += (
        "trainer.devices=1",
        "data.global_batch_size=20",
        "data.workers=1",
        f"hydra.run.dir=outputs/{name}",
    )
    done = train(
        checkout, f"experiment={name}", *shards, *run, *overrides, "logger=none", TARPEG_LIB_DIR=library()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("trained: 2 steps, "), done.stdout
    assert ("validation accuracy" in done.stdout) == (name != "dino")
    saved = torch.load(checkout / f"outputs/{name}/checkpoints/last.ckpt", weights_only=False)
    groups = saved["optimizer_states"][0]["param_groups"]
    assert [group["weight_decay"] for group in groups[1:]] == [0.0]
    if name == "dino":
        teacher, student = (
            saved["state_dict"][f"{who}.0.patch_embed.proj.weight"] for who in ("teacher", "student")
        )
        assert 0 < (teacher - student).abs().max() < 1e-2 and saved["state_dict"]["center"].any()
    else:
        assert groups[0]["lr"] == pytest.approx(lr) and groups[0]["weight_decay"] == decay
    assert ("averaging_state" in saved) == (name == "resnet50_v2")


class Token(nn.Module):
    """One weight of each kind."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 2, 3))
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.BatchNorm1d(3))

    def no_weight_decay(self):
        return {"position"}


@pytest.mark.parametrize(
    ("kind", "free"), [(None, 0), ("norms", 4), ("vectors", 6)], ids=["all decay", "torchvision's", "timm's"]
)
def test_parameters_without_weight_decay(kind, free):
    model = Classifier(Token(), lambda groups: torch.optim.SGD(groups, 0.1, weight_decay=0.5), 3, None, kind)
    groups = model.configure_optimizers()["optimizer"].param_groups
    counts = {group["weight_decay"]: len(group["params"]) for group in groups}
    assert counts == ({0.5: 7} if not free else {0.5: 7 - free, 0.0: free})
    if kind == "vectors":
        timm = pytest.importorskip("timm.optim")
        theirs = timm.create_optimizer_v2(Token(), "sgd", 0.1, weight_decay=0.5).param_groups
        assert {group["weight_decay"]: len(group["params"]) for group in theirs} == counts


def test_a_schedule_warms_up_and_falls_with_a_cosine():
    schedule = {"warmup": 2, "start": 0.1, "end": 0.01}
    model = Classifier(Token(), lambda groups: torch.optim.SGD(groups, 4.0), 3, schedule=schedule)
    model._trainer = type("Run", (), {"max_epochs": 6})()
    made = model.configure_optimizers()
    rates = []
    for _ in range(7):
        rates.append(made["optimizer"].param_groups[0]["lr"])
        made["optimizer"].step()
        made["lr_scheduler"].step()
    cosine = [0.04 + 3.96 * (1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(5)]
    assert rates == pytest.approx([0.4, 2.2, *cosine])
    state = made["lr_scheduler"].state_dict()
    assert state["last_epoch"] == 7
    model._trainer.max_epochs = 12  # a run that goes on
    longer = model.configure_optimizers()
    rise = torch.optim.lr_scheduler.LinearLR(made["optimizer"], 0.1)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(made["optimizer"], 4)
    older = torch.optim.lr_scheduler.SequentialLR(made["optimizer"], [rise, fall], [2]).state_dict()
    for saved in (state, {**older, "last_epoch": 7}):  # of earlier versions
        longer["optimizer"].load_state_dict(made["optimizer"].state_dict())
        longer["lr_scheduler"].load_state_dict(saved)
        for epoch in (5, 6):
            now = 0.04 + 3.96 * (1 + math.cos(math.pi * epoch / 10)) / 2
            assert longer["optimizer"].param_groups[0]["lr"] == pytest.approx(now)
            longer["optimizer"].step()
            longer["lr_scheduler"].step()
    model._trainer.max_epochs = -1
    with pytest.raises(ConfigError, match=r"^model\.schedule .*trainer\.max_ep"):
        model.configure_optimizers()
    for options, text in ({"no_decay": "bias"}, "must be norms"), ({"schedule": {"warmup": 1}}, "and end"):
        with pytest.raises(ConfigError, match=text):
            Classifier(Token(), None, 3, **options)


def test_a_missing_timm_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InstantiationException) as caught:
        instantiate({"_target_": "timm.optim.Lamb", "_partial_": True})
    assert with_overrides(caught.value.__cause__) == "timm is not installed: pip install timm"


class Mean(nn.Module):
    """Features of images of any size."""

    num_features = 4

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, images):
        return self.layer(images.mean((2, 3)))


def dino(**settings):
    torch.manual_seed(0)
    options = {"outputs": 8, "warmup_epochs": 1, "freeze_epochs": 1, "clip": 0.0, "momentum": 0.9, **settings}
    return Dino(Mean(), lambda groups: torch.optim.SGD(groups, 0.5, weight_decay=0.04), **options)


class Watch(lightning.Callback):
    """Settings and teacher of each step."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, model, *_):
        groups = trainer.optimizers[0].param_groups
        copies = [copy.deepcopy(each.state_dict()) for each in (model.teacher, model.student)]
        self.seen.append((groups[0]["lr"], groups[0]["weight_decay"], groups[1]["weight_decay"], *copies))


@pytest.mark.filterwarnings("ignore")
def test_dinos_schedules_teacher_and_frozen_layer(tmp_path):
    batches = [([torch.rand(2, 4, 3, 8, 8), torch.rand(3, 4, 3, 4, 4)], torch.zeros(4)) for _ in range(2)]
    model, watch = dino(), Watch()
    before = copy.deepcopy(model.student.state_dict())
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    run = lightning.Trainer(
        max_epochs=4, callbacks=[watch], enable_model_summary=False, default_root_dir=tmp_path, **quiet
    )
    run.fit(model, torch.utils.data.DataLoader(batches, batch_size=None))
    assert len(watch.seen) == 8
    cosine = [(1 + math.cos(math.pi * step / 6)) / 2 for step in range(6)]
    assert [each[0] for each in watch.seen] == pytest.approx(
        [0, 0.5, *(1e-6 + (0.5 - 1e-6) * c for c in cosine)]
    )
    decay = [0.4 - 0.36 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    assert [each[1] for each in watch.seen] == pytest.approx(decay) and {each[2] for each in watch.seen} == {
        0.0
    }
    last = [name for name in before if name.endswith("weight.original1")]
    weight = "0.layer.weight"
    assert torch.equal(watch.seen[1][4][last[0]], before[last[0]]), "frozen in the first epoch"
    assert not torch.equal(watch.seen[-1][4][last[0]], before[last[0]])
    for step in range(1, 8):  # callbacks, and checkpoints, see a teacher that has moved
        momentum = 1 - 0.1 * (1 + math.cos(math.pi * step / 8)) / 2
        expected = momentum * watch.seen[step - 1][3][weight] + (1 - momentum) * watch.seen[step][4][weight]
        assert torch.allclose(watch.seen[step][3][weight], expected, atol=1e-6)
    rates = []

    class Rates(lightning.Callback):
        def on_before_optimizer_step(self, trainer, *_):
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    run = lightning.Trainer(
        max_epochs=8, accumulate_grad_batches=2, callbacks=[Rates()], enable_model_summary=False, **quiet
    )
    run.fit(dino(warmup_epochs=2), torch.utils.data.DataLoader(batches, batch_size=None))
    cosine = [1e-6 + (0.5 - 1e-6) * (1 + math.cos(math.pi * step / 6)) / 2 for step in range(6)]
    assert rates == pytest.approx([0, 0.5, *cosine])


def test_dinos_loss_is_that_of_the_publication():
    model = dino(teacher_temperature=(0.04, 0.06), temperature_epochs=3)
    run = type(
        "Run", (), {"strategy": type("One", (), {"reduce": staticmethod(lambda value, reduce_op: value)})}
    )
    model._trainer = type("Trainer", (run,), {"current_epoch": 1})()
    model.log = lambda *_, **__: None
    model.center += torch.arange(8) / 10
    views = [torch.rand(2, 5, 3, 8, 8), torch.rand(3, 5, 3, 4, 4)]
    center = model.center.clone()
    with torch.no_grad():
        targets = [((model.teacher(view) - center) / 0.05).softmax(-1) for view in views[0]]
        outputs = [(model.student(view) / 0.1).log_softmax(-1) for part in views for view in part]
        terms = [
            -(t * s).sum(-1).mean() for i, t in enumerate(targets) for j, s in enumerate(outputs) if i != j
        ]
        loss = model.training_step((views, None), 0)
        mean = model.teacher(views[0].flatten(0, 1)).mean(0)
    assert len(terms) == 8 and float(loss) == pytest.approx(float(torch.stack(terms).mean()), rel=1e-5)
    assert torch.allclose(model.center, 0.9 * center + 0.1 * mean, atol=1e-6)
    assert not model.train().teacher.training and model(views[1][0]).shape == (5, 4)


def test_every_number_of_a_recipe_has_a_source():
    """A line of a recipe with a number has a comment, or is in a mapping with one."""
    for name in TINY:
        text = (ROOT / "conf" / "experiment" / f"{name}.yaml").read_text()
        assert re.search(r"github\.com|arXiv", text) and f"experiment={name}" in text
        settings = re.findall(r"^  +[\w]+: [\d{\[].*$", text.partition("\n\ndata:")[2], re.M)
        bare = [line.strip() for line in settings if "#" not in line]
        assert not [
            line
            for line in bare
            if not re.match(r"(seed|num_classes|brightness|contrast|saturation|hue|probability)", line)
        ], bare
