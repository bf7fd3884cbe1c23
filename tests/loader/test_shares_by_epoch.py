"""Mixtures whose shares change with the epoch, under Lightning: epochs of several lengths."""

from __future__ import annotations

import warnings

import lightning
import pytest
import tarpeg
import torch
from helpers.own_source import Pictures
from helpers.training import Unsized, trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from training.schedules import with_cosine

SPLITS = {
    name: tarpeg.Split(Pictures(count, first), tarpeg.CenterCrop(16))
    for name, count, first in (("a", 24, 0), ("b", 9, 100))
}
VAL = tarpeg.Split(type("Val", (Pictures,), {})(5, 200), tarpeg.CenterCrop(16))
ALONE, HALF, FEW = {"a": 1, "b": 0}, {"a": 0.5, "b": 0.5}, {"a": 0, "b": 1}
LONGER = tarpeg.Mixture(SPLITS, weights={0: ALONE, 1: HALF, 3: FEW}, stopping="all_exhausted")
SHORTER = tarpeg.Mixture(SPLITS, weights={0: HALF, 1: FEW}, stopping="all_exhausted")
REPEATED = tarpeg.Mixture(SPLITS, repeat={0: {"a": 1, "b": 0.5}, 2: {"a": 2, "b": 1}})
MIXTURES = [LONGER, SHORTER, REPEATED]
EPOCHS = 5


class Net(lightning.LightningModule):
    """Notes the labels of each batch, and when it was validated."""

    def __init__(self, has_schedule=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen, self.validated, self.has_schedule, self.rates = {}, [], has_schedule, []

    def training_step(self, batch, batch_idx):
        self.seen.setdefault(self.current_epoch, []).append(batch[1].tolist())
        return self.weight.sum()

    def on_train_batch_end(self, *_):
        self.rates.append(self.optimizers().param_groups[0]["lr"])

    def validation_step(self, batch, batch_idx):
        self.validated.append(self.trainer.fit_loop.total_batch_idx + 1)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 1.0)
        return with_cosine(self, optimizer, warmup=1) if self.has_schedule else optimizer


def data_of(mixture, val=None):
    return tarpeg.ShardDataModule(mixture, val, batch_size=4, workers=0)


def fitted(folder, mixture, net=None, ckpt_path=None, val=None, **options):
    net = net or Net()
    run = trainer(folder, **{"max_epochs": EPOCHS, **options})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings(
            "ignore", ".*(does not have many workers|no `val_dataloader`|validation_step).*"
        )
        warnings.filterwarnings("ignore", ".*OMP_WAIT_POLICY.*|.*not empty.*|Be aware that.*|.*LeafSpec.*")
        run.fit(net, data_of(mixture, val), ckpt_path=ckpt_path, weights_only=False)
    return net


def planned(mixture):
    loader = tarpeg.MixtureLoader(mixture, 4, workers=0)
    return {epoch: [batch.label.tolist() for batch in loader] for epoch in range(EPOCHS)}


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("options", [{}, {"reload_dataloaders_every_n_epochs": 1}])
def test_a_trainer_takes_all_batches_of_each_epoch(tmp_path, mixture, options):
    expected = planned(mixture)
    assert len({*map(len, expected.values())}) > 1
    loader = tarpeg.MixtureLoader(mixture, 4, workers=0)
    assert [loader.batches_in(epoch) for epoch in range(EPOCHS)] == [*map(len, expected.values())]
    net = fitted(tmp_path, mixture, val=VAL, num_sanity_val_steps=0, limit_val_batches=1, **options)
    assert net.seen == expected
    ends = [sum(len(expected[before]) for before in range(epoch + 1)) for epoch in range(EPOCHS)]
    assert net.validated == ends


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("kind", ["step", "epoch", "both"])
def test_a_training_goes_on_from_each_checkpoint(tmp_path, mixture, kind):
    expected = planned(mixture)
    checkpoints = []
    if kind != "epoch":
        checkpoints.append(ModelCheckpoint(tmp_path, "s{step}", every_n_train_steps=1, save_top_k=-1))
    if kind != "step":
        checkpoints.append(
            ModelCheckpoint(
                tmp_path, "e{step}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True
            )
        )
    fitted(tmp_path, mixture, enable_checkpointing=True, callbacks=checkpoints)
    flat = [(epoch, labels) for epoch, batches in expected.items() for labels in batches]
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert len(paths) >= EPOCHS
    for path in paths:
        step = int(path.stem.split("=")[1])
        net = fitted(tmp_path, mixture, ckpt_path=path)
        found = [(epoch, labels) for epoch, batches in sorted(net.seen.items()) for labels in batches]
        assert found == flat[step:], path


@pytest.mark.parametrize("limit", [1, 3, 5, 7, 0.2, 0.5, 1.0])
def test_limits_of_a_trainer_hold(tmp_path, limit):
    expected = planned(LONGER)
    net = fitted(tmp_path, LONGER, limit_train_batches=limit)
    counts = {epoch: len(batches) for epoch, batches in expected.items()}
    if isinstance(limit, int):
        counts = {epoch: min(count, limit) for epoch, count in counts.items()}
    else:
        counts = {epoch: max(1, int(count * limit)) for epoch, count in counts.items()}
    assert net.seen == {epoch: batches[: counts[epoch]] for epoch, batches in expected.items()}


def test_validation_within_epochs_comes_at_its_shares(tmp_path):
    expected = planned(LONGER)
    options = {"num_sanity_val_steps": 0, "limit_val_batches": 1, "val_check_interval": 0.5}
    net = fitted(tmp_path, LONGER, val=VAL, **options)
    found, before = [], 0
    for batches in expected.values():
        every = max(1, len(batches) // 2)
        found += [before + n for n in range(every, len(batches) + 1, every)]
        before += len(batches)
    assert net.validated == found


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_schedule_ends_with_the_training(tmp_path, accumulate):
    net = fitted(tmp_path, LONGER, Net(has_schedule=True), accumulate_grad_batches=accumulate)
    assert net.seen == planned(LONGER)
    assert net.rates[-1] == pytest.approx(0, abs=1e-9) and min(net.rates[:-1]) > 0


def test_loaders_without_a_data_module_warn_once(tmp_path):
    for make in (lambda loader: loader, lambda loader: DataLoader(tarpeg.Dataset(loader), batch_size=None)):
        for mixture, count in ((LONGER, 1), (tarpeg.Mixture(SPLITS, weights=HALF), 0)):
            run = trainer(tmp_path, max_epochs=3)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run.fit(Net(), make(tarpeg.MixtureLoader(mixture, 4, workers=0)))
            words = [
                str(each.message)
                for each in caught
                if "Give the Trainer a ShardDataModule" in str(each.message)
            ]
            assert len(words) == count, (mixture, words)


def test_batches_of_an_epoch_need_a_training():
    with pytest.raises(RuntimeError, match="estimated_stepping_batches"):
        data_of(LONGER).batches_in(0)


class Beside(tarpeg.ShardDataModule):
    """The mixture, and a DataLoader beside it."""

    def __init__(self, other):
        super().__init__(LONGER, batch_size=4, workers=0)
        self.other = other

    def train_dataloader(self):
        return {"mixture": super().train_dataloader(), "other": self.other}


@pytest.mark.parametrize("mode", ["list", "unknown"])
def test_a_loader_beside_the_mixture_keeps_its_order(tmp_path, mode):
    class Both(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch["mixture"], batch_idx)
            others.setdefault(self.current_epoch, []).append(int(batch["other"]))
            return loss

    others: dict[int, list[int]] = {}
    numbers = Unsized(40) if mode == "unknown" else list(range(2))
    data = Beside(DataLoader(numbers, batch_size=None))
    net = Both()
    trainer(tmp_path, max_epochs=3).fit(net, data)
    expected = planned(LONGER)
    if mode == "list":
        assert net.seen == {epoch: expected[epoch] for epoch in range(3)}
        assert all(found == [n % 2 for n in range(len(found))] for found in others.values())
    else:
        assert all(net.seen[epoch][: len(expected[epoch])] == expected[epoch] for epoch in range(3))
        assert all(found == [*range(40)] for found in others.values())


@pytest.mark.parametrize("max_steps", [1000, 20])
def test_a_schedule_ends_with_the_steps_if_they_are_fewer(tmp_path, max_steps):
    net = fitted(tmp_path, LONGER, Net(has_schedule=True), max_steps=max_steps)
    assert net.rates[-1] == pytest.approx(0, abs=1e-9) and min(net.rates[:-1]) > 0


def test_validation_by_the_clock(tmp_path):
    net = fitted(tmp_path, LONGER, val=VAL, num_sanity_val_steps=0, val_check_interval="00:00:01:00")
    assert net.seen == planned(LONGER)


def test_a_resumed_loader_without_a_data_module_warns_too(tmp_path):
    every = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    first = trainer(tmp_path, max_epochs=3, callbacks=[every], enable_checkpointing=True)
    first.fit(Net(), tarpeg.MixtureLoader(LONGER, 4, workers=0))
    last = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))[-2]
    loader, second = tarpeg.MixtureLoader(LONGER, 4, workers=0), trainer(tmp_path, max_epochs=3)
    with pytest.warns(UserWarning, match="Give the Trainer a ShardDataModule"):
        second.fit(Net(), loader, ckpt_path=last, weights_only=False)
