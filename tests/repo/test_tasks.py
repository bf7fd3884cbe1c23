"""Trainings on labels that are not one class: the loss, the metric and predictions suit the labels."""

from __future__ import annotations

import csv
import json
import math
from types import SimpleNamespace

import lightning
import pytest
import tarpeg
import torch
from helpers.loaders import ALL
from helpers.pictures import jpeg, saved
from helpers.small_tars import sample, write_tar
from helpers.training import trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image
from torch import nn

from training.callbacks import KeepOthers
from training.checks import ConfigError
from training.classifier import Classifier
from training.detection import Detector, small_fcos
from training.predictions import Predictions
from training.segmentation import Segmenter
from training.tasks import Task


def table(tmp_path, header, row):
    path = tmp_path / f"{header}.csv"  # a later fit reads its table again
    path.write_text("\n".join([header, *(f"{key}.jpg,{row(number)}" for number, key in enumerate(ALL))]))
    return path


def data(photos, path, target, **options):
    crop = tarpeg.CenterCrop(16)
    split = tarpeg.Split(photos, crop, labels=path, key="file", target=target)
    predict = tarpeg.Split(photos, crop, target=None)
    return tarpeg.ShardDataModule(
        split,
        split,
        predict=predict,
        batch_size=8,
        workers=0,
        allow_overlap=True,
        augment=tarpeg.Augment(),
        **options,
    )


def model(outputs, **options):
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, outputs))
    return Classifier(net, lambda groups: torch.optim.SGD(groups, 0.01), outputs, **options)


def run(tmp_path, data, net):
    """Train and validate one epoch, then predict by the best checkpoint with a new model."""
    best = ModelCheckpoint(tmp_path / "best", monitor="val/accuracy", mode="max")
    fit = trainer(tmp_path, callbacks=[best], enable_checkpointing=True)
    fit.fit(net, data)
    assert best.best_model_path
    found = Predictions(tmp_path / "predictions.csv")
    other = trainer(tmp_path, callbacks=[found])
    other.predict(model(net.num_classes), data, ckpt_path=best.best_model_path, return_predictions=False)
    rows = list(csv.reader(found.path.open()))
    return best, {name: float(value) for name, value in fit.callback_metrics.items()}, rows


@pytest.mark.filterwarnings("ignore")
def test_numbers_and_several_classes(tmp_path, photos, capsys):
    numbers = data(photos, table(tmp_path, "file,age,size", lambda n: f"{n},{n / 2}"), ["age", "size"])
    best, metrics, rows = run(tmp_path, numbers, model(2))
    assert (best.monitor, best.mode) == ("val/mae", "min")
    assert best.best_model_score == metrics["val/mae"] > 0
    assert "numbers, 2 per image; loss SmoothL1Loss" in capsys.readouterr().out
    assert rows[0] == ["key", "age", "size"] and len(rows) == 24 and all(map(float, rows[5][1:]))

    path = table(tmp_path, "file,tags", lambda n: "cat dog" if n % 2 else "dog")
    best, metrics, rows = run(tmp_path, data(photos, path, tarpeg.Label("tags", separator=" ")), model(2))
    assert best.monitor == "val/map" and 0 < metrics["val/map"] <= 1
    assert "BCEWithLogitsLoss" in capsys.readouterr().out
    assert rows[0] == ["key", "cat", "dog"] and 0 < float(rows[1][1]) < 1

    path = table(tmp_path, "file,kind", lambda n: ("dog", "", "", "cat", "", "")[n % 6])
    optional = tarpeg.Label("kind", optional=True)
    fit = trainer(tmp_path)
    fit.fit(model(2), data(photos, path, optional))
    assert math.isfinite(fit.callback_metrics["train/loss"]) and "val/accuracy" in fit.callback_metrics

    with pytest.raises(ConfigError, match=r"model\.net\.num_classes=2"):
        trainer(tmp_path).fit(model(5), numbers)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "metric"), [("number", "mae"), ("classes", "map")])
def test_several_validation_sets_have_a_metric_each(tmp_path, photos, kind, metric):
    row = {"number": lambda n: f"{n},{n / 2}", "classes": lambda n: f"{n % 2},{n // 2 % 2}"}[kind]
    crop = tarpeg.CenterCrop(16)
    given = {
        "labels": table(tmp_path, "file,a,b", row),
        "key": "file",
        "target": tarpeg.Label(["a", "b"], kind),
    }
    whole = tarpeg.Split(photos, crop, **given)
    sets = {"x": tarpeg.Split(photos, crop, subset=range(9), **given)}
    sets["y"] = tarpeg.Split(photos, crop, subset=range(9, len(ALL)), **given)
    net = model(2)

    def measured(val):
        made = tarpeg.ShardDataModule(val=val, batch_size=8, workers=0, augment=tarpeg.Augment())
        fit = trainer(tmp_path)
        fit.validate(net, made)
        return {name: float(value) for name, value in fit.callback_metrics.items()}

    found = measured(sets)
    assert found[f"val/{metric}"] == pytest.approx(measured(whole)[f"val/{metric}"], rel=1e-5)
    for name, split in sets.items():
        alone = measured(split)[f"val/{metric}"]
        assert found[f"val/{name}/{metric}"] == pytest.approx(alone, rel=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_going_on_elsewhere_leaves_the_checkpoint_in_its_bucket(tmp_path, photos):
    """Lightning removes the last one behind a URL, whichever run wrote it."""
    fsspec = pytest.importorskip("fsspec")
    numbers = data(photos, table(tmp_path, "file,age", str), tarpeg.Label("age", kind="number"))

    def fit(folder, epochs, **given):
        last = ModelCheckpoint(folder, filename="last", enable_version_counter=False)
        run = trainer(tmp_path, max_epochs=epochs, callbacks=[last, KeepOthers()], enable_checkpointing=True)
        run.fit(model(1), numbers, **given)
        return last.best_model_path

    first = fit("memory://bucket/one", 1)
    assert first.startswith("memory://") and fsspec.filesystem("memory").exists(first)
    for folder in (tmp_path / "two", "memory://bucket/three", "memory://bucket"):
        later = fit(folder, 2, ckpt_path=first, weights_only=False)
        assert later != first and fsspec.filesystem("memory").exists(first)
    assert fit("memory://bucket/one", 2, ckpt_path=first, weights_only=False) == first


def test_precision_does_not_depend_on_the_batches():
    """Scores that are all in 0..1 are not probabilities, as those of other batches are not."""
    scores = torch.tensor([[0.1, 0.2], [0.9, 0.3], [-2.0, 5.0], [0.4, -1.0], [3.0, 0.6], [0.2, 0.8]])
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    found = []
    for size in (1, 2, 6):
        task = Task("classes", 2)
        for part in range(0, 6, size):
            task.update(scores[part : part + size], labels[part : part + size])
        found.append(float(task.metric.compute()))
    assert found[0] == found[1] == found[2]


def test_missing_labels_do_not_count():
    scores = torch.tensor([[1.0, 9.0], [2.0, 3.0]], requires_grad=True)
    labels = torch.tensor([[1.5, math.nan], [2.0, 4.0]])
    task = Task("number", 2)
    known = (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, 2.0, 4.0]))
    torch.testing.assert_close(task.loss(scores, labels), nn.functional.smooth_l1_loss(*known))
    task.update(scores, labels)
    assert float(task.metric.compute()) == pytest.approx(0.5)
    nothing = task.loss(scores, torch.full((2, 2), math.nan))
    nothing.backward()
    assert nothing.item() == 0 and not scores.grad.any()
    assert float(Task("number", 1).loss(torch.ones(3, 1), torch.ones(3))) == 0
    assert Task("number", 2, criterion=nn.MSELoss()).loss(scores, labels) != task.loss(scores, labels)
    classes = Task("classes", 2)
    classes.update(torch.tensor([[5.0, 5.0], [-5.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, math.nan]]))
    assert 0 <= float(classes.metric.compute()) <= 1


def test_a_class_without_any_label_is_left_out_of_the_mean():
    labels = torch.tensor([[1.0, math.nan, 0.0], [0.0, math.nan, 1.0], [1.0, math.nan, 1.0]])
    scores = torch.tensor([[1.0, 0.0, 0.5], [2.0, 0.0, 0.1], [0.5, 0.0, -1.0]])
    task, other = Task("classes", 3), Task("classes", 2)
    assert not task.metric.update_called
    for part in range(3):
        task.update(scores[part : part + 1], labels[part : part + 1])
    other.update(scores[:, [0, 2]], labels[:, [0, 2]])
    assert (
        float(task.metric.compute()) == float(other.metric.compute()) == pytest.approx((7 / 12 + 7 / 12) / 2)
    )
    task.metric.reset()
    task.update(scores, labels * math.nan)
    assert task.metric.compute().isnan()
    one = Task("classes", 1)
    for part in (slice(0, 1), slice(1, 3)):
        one.update(scores[part, :1], labels[part, 0])
    assert float(one.metric.compute()) == pytest.approx(7 / 12)


def test_weights_of_outputs_stay_theirs_if_labels_are_missing():
    scores, weights = torch.tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True), torch.tensor([1.0, 5.0])
    labels, known = torch.tensor([[1.0, math.nan], [0.0, 1.0]]), torch.tensor([[1, 0], [1, 1]]).bool()
    each = nn.BCEWithLogitsLoss(pos_weight=weights, reduction="none")(scores, labels.nan_to_num())[known]
    for reduction, wanted in (("mean", each.mean()), ("sum", each.sum())):
        criterion = nn.BCEWithLogitsLoss(pos_weight=weights, reduction=reduction)
        loss = Task("classes", 2, criterion=criterion).loss(scores, labels)
        torch.testing.assert_close(loss, wanted)
        assert criterion.reduction == reduction
    loss.backward()
    assert scores.grad[0, 1] == 0

    class Own(nn.L1Loss):
        def forward(self, scores, labels):
            return (scores - labels).abs().mean()

    own = Task("number", 2, criterion=Own()).loss(scores, labels)
    torch.testing.assert_close(own, (scores - labels)[known].abs().mean())


@pytest.mark.filterwarnings("ignore")
def test_a_loss_of_ones_own_gets_no_missing_label(tmp_path, photos):
    whole = table(tmp_path, "file,a", lambda n: "" if n < 9 else f"{n % 2}")

    class Own(nn.Module):
        def forward(self, scores, labels):
            assert len(labels) and labels.min() >= 0
            return nn.functional.cross_entropy(scores, labels)

    losses = []

    class Losses(lightning.Callback):
        def on_train_batch_end(self, trainer, net, outputs, *_):
            losses.append(float(outputs["loss"]))

    label = tarpeg.Label("a", kind="class", optional=True)
    for size in (8, 1):  # of 1: batches without any
        made = data(photos, whole, label)
        made.batch_size = size
        trainer(tmp_path, callbacks=[Losses()]).fit(model(2, criterion=Own()), made)
    assert all(map(math.isfinite, losses)) and losses.count(0.0) == 9


def test_a_network_of_one_class_is_refused(tmp_path, photos):
    made = tarpeg.ShardDataModule(tarpeg.Split(photos, tarpeg.CenterCrop(16)), workers=0)
    with pytest.raises(ConfigError, match=r"num_classes=1: .*nothing to learn"):
        trainer(tmp_path).fit(model(1), made)


def test_a_loss_of_classes_leaves_missing_labels_out():
    loss = model(3).criterion
    scores = torch.randn(4, 3)
    labels = torch.tensor([0, 2, -1, 1])
    torch.testing.assert_close(
        loss(scores, labels), nn.functional.cross_entropy(scores[[0, 1, 3]], labels[[0, 1, 3]])
    )
    shares = nn.functional.one_hot(labels.clamp(0), 3).float()  # of Mix
    torch.testing.assert_close(loss(scores, shares), nn.functional.cross_entropy(scores, shares))


def test_small_numbers_keep_their_digits(tmp_path):
    found, fake = Predictions(tmp_path / "table.csv"), SimpleNamespace(is_global_zero=True, world_size=1)
    found.on_predict_start(fake, None)
    found.on_predict_batch_end(fake, None, [("a", 3.25e-7, 0.25), ("b", 0.0, -12.5)])
    found.on_predict_end(fake, None)
    rows = [*csv.reader(found.path.open())][1:]
    assert rows == [["a", "3.25e-07", "0.250000"], ["b", "0.000000", "-12.500000"]]


@pytest.mark.filterwarnings("ignore")
def test_several_integers_per_image_have_a_remedy(tmp_path, photos):
    whole = table(tmp_path, "file,a,b", lambda n: f"{n % 2},{n}")
    with pytest.raises(ConfigError, match=r"^labels have 2 integers per image.* kind: number\}"):
        trainer(tmp_path).fit(model(30), data(photos, whole, ["a", "b"]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["classes", "masks", "boxes"])
def test_batches_of_which_nothing_can_be_decoded_do_not_count(tmp_path, kind):
    def box(number):
        return json.dumps({"objects": [{"bbox": [2, 2, 9, 9], "category_id": 1}]}).encode()

    members = []
    for number in range(3):
        image = jpeg("420", 32, 32, seed=number) if number < 2 else b"none"
        more = sample(number, saved(Image.new("L", (32, 32), 1), "PNG"), "png")[:1] if kind == "masks" else []
        members += [*sample(number, image, label=b"1"), *more, *sample(number, box(number), "json")[:1]]
    write_tar(tmp_path / "a.tar", members)
    targets = {"masks": tarpeg.Masks("png"), "boxes": tarpeg.Boxes("json:objects"), "classes": None}[kind]
    given = {} if targets is None else {"targets": targets}
    split = tarpeg.Split(f"{tmp_path}/a.tar", tarpeg.CenterCrop(32), **given)
    made = tarpeg.ShardDataModule(
        val=split, batch_size=2, workers=0, on_error="leave_out", augment=tarpeg.Augment()
    )
    net = {"classes": lambda: model(2), "masks": segmenter, "boxes": detector}[kind]()
    fit = trainer(tmp_path)
    fit.validate(net, made)
    assert {"classes": "val/accuracy", "masks": "val/miou", "boxes": "val/map"}[kind] in fit.callback_metrics


def segmenter():
    return Segmenter(nn.Conv2d(3, 2, 1), torch.optim.SGD, 2)


def detector():
    return Detector(small_fcos(2, 32), torch.optim.SGD, 2)


@pytest.mark.filterwarnings("ignore")
def test_a_mixture_is_a_training_set(tmp_path, photos):
    split = tarpeg.Split(photos, tarpeg.CenterCrop(16))
    mixture = tarpeg.Mixture({"a": split, "b": split}, weights={"a": 0.75, "b": 0.25})
    settings = {"batch_size": 8, "workers": 0, "allow_overlap": True, "augment": tarpeg.Augment()}
    mixed = tarpeg.ShardDataModule(mixture, split, **settings)
    fit = trainer(tmp_path)
    fit.fit(model(5), mixed)
    assert fit.global_step == len(mixed.train_dataloader()) and 0 <= fit.callback_metrics["val/accuracy"] <= 1
