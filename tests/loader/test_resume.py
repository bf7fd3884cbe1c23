"""Resuming: at any batch, on any number of ranks, however the run ended."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings

import pytest
import tarpeg
import torch
from helpers import training
from helpers.loaders import ALL, digest, keys_of, load
from helpers.scripts import PATHS
from helpers.training import Net, OfOwn, Unsized, fitted, heavy, trainer
from lightning.pytorch.callbacks import Callback, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from tarpeg.errors import ResumeError
from torch.utils.data import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's and torch's own


def module(photos, **settings):
    return training.module(photos, augment=heavy(), **settings)


def steps(net):
    """The digests of the augmented batches of the training."""
    return [digest([batch]) for batch in net.seen["train"]]


@pytest.mark.sweep
@pytest.mark.parametrize("engine", [{"workers": 0, "threads": 2}, {"workers": 2}], ids=["threads", "workers"])
@pytest.mark.parametrize("at", [0, 1, 4, 6])
def test_a_plain_loop_goes_on_at_any_batch(photos, engine, at):
    first, second, whole = (load(photos, seed=3, **engine) for _ in range(3))
    expected = [batch for _ in range(4) for batch in whole]
    list(first)
    for _, _ in zip(range(at), first, strict=False):
        pass
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert len(second) == 6, "the length is that of the epoch, not of what is left of it"
    rest = [batch for _ in range(2) for batch in second]
    assert digest(rest) == digest(expected[6 + at :][: len(rest)])
    assert len(rest) == (12 if at in (0, 6) else 12 - at)


def test_an_epoch_that_was_set_is_the_place_of_the_state(photos):
    options = {"seed": 3, "workers": 0}
    first, whole = (load(photos, **options) for _ in range(2))
    expected = [[batch.key for batch in whole] for _ in range(4)]
    next(iter(first))
    first.sampler.set_epoch(3)
    assert first.sampler.epoch == 3 and first.state_dict()["batches"] == 0
    second = load(photos, **options)
    second.load_state_dict(first.state_dict())
    assert [batch.key for batch in first] == [batch.key for batch in second] == expected[3]
    for loader in (first, second):  # within an epoch that is set again, as by frameworks, it goes on there
        list(zip(range(2), loader, strict=False))
        loader.load_state_dict(loader.state_dict())
        loader.sampler.set_epoch(4)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (4, 2)


def test_nothing_is_replayed(photos, monkeypatch):
    loader = load(photos, workers=0, threads=0)
    read, kind, fetch = [], type(loader.fetcher), type(loader.fetcher).fetch
    monkeypatch.setattr(kind, "fetch", lambda self, *request: read.append(1) or fetch(self, *request))
    loader.load_state_dict({**loader.state_dict(), "batches": 5})
    assert len(list(loader)) == len(read) == 1


@pytest.mark.parametrize("engine", [{"workers": 0, "threads": 0}, {"workers": 1}])
def test_an_iterator_does_not_go_on_where_another_state_was_loaded(photos, engine):
    loader, whole = (load(photos, **engine) for _ in range(2))
    expected = [batch.key for batch in whole]
    running = iter(loader)
    next(running)
    state = loader.state_dict()
    next(running)
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match="load_state_dict"):
        next(running)
    assert loader.state_dict() == state and [batch.key for batch in loader] == expected[1:]
    loader.close()
    whole.close()


@pytest.mark.parametrize("world", [1, 2])
def test_repeats_go_on_at_any_batch(photos, world):
    options = {"repeats": 3, "seed": 3, "workers": 0, "batch_size": 3, "world": world}
    for rank in range(world):
        first, second, whole = (load(photos, rank=rank, **options) for _ in range(3))
        expected = [batch for _ in range(2) for batch in whole]
        list(zip(range(2), first, strict=False))
        second.load_state_dict(first.state_dict())
        assert digest([batch for _ in range(2) for batch in second]) == digest(expected[2:])


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 1), (3, 2), (1, 5), (5, 3)])
def test_another_number_of_ranks(photos, before, after):
    def ranks(world):
        return [load(photos, rank=rank, world=world, global_batch_size=5, workers=0) for rank in range(world)]

    (alone,), old, new = (ranks(world) for world in (1, before, after))
    begun = [[batch for _, batch in zip(range(2), loader, strict=False)] for loader in old]
    assert len({json.dumps(loader.state_dict()) for loader in old}) == 1, "alike on all ranks"
    for loader in new:
        loader.load_state_dict(old[0].state_dict())
    steps = [*zip(*begun, strict=True), *zip(*new, strict=True)]
    seen, expected = [batch for step in steps for batch in step], list(alone)
    assert [key for batch in seen for key in batch.key] == [key for batch in expected for key in batch.key]
    assert torch.equal(*(torch.cat([batch.image for batch in batches]) for batches in (seen, expected)))


def test_a_warning_for_a_tail_smaller_than_the_new_ranks(photos):
    alone = load(photos, global_batch_size=22, workers=0)
    next(iter(alone))
    assert len(alone) == 2
    first, second = (load(photos, global_batch_size=22, rank=rank, world=2, workers=0) for rank in range(2))
    with pytest.warns(UserWarning, match="epoch 0 .*last 1 samples"):
        first.load_state_dict(alone.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second.load_state_dict(alone.state_dict())  # rank 0 has warned
    assert sorted(keys_of(load(photos, global_batch_size=22, workers=0))) == ALL


def test_more_ranks_leave_out_fewer_samples_than_ranks_of_the_last_batch_only(photos):
    """The exception that promises.md states: its size, and that nothing else is left out."""
    split = tarpeg.Split(photos, tarpeg.Whole(8))
    source = split.open()  # of 23 samples

    def ranks(world, total):
        config = tarpeg.LoaderConfig(global_batch_size=total, workers=0, threads=0)
        return tarpeg.Loader(split, rank=0, world=world, config=config, source=source)

    found = set()
    for total, before, after in itertools.product(range(5, 24), range(1, 6), range(1, 6)):
        old, new = ranks(before, total), ranks(after, total)
        for batches in range(1, len(old)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                new.load_state_dict({**old.state_dict(), "batches": batches})
            epoch, first = new.sampler.begin()
            is_left_out = bool(epoch) or first == len(new)
            assert is_left_out == bool(caught) == (batches == 23 // total and 0 < 23 % total < after)
            assert after > before or not is_left_out
            found |= {(23 % total, after)} if is_left_out else set()
    assert found and all(left < after for left, after in found)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch_size": 5}, r"global_batch was 4 .* 5 now.*global_batch_size\b"),
        ({"batch_size": 2}, "global_batch was 4 .* and is 2"),
        ({"seed": 9}, "seed was 0 .* and is 9"),
        ({"world": 2}, "global_batch was 4 .* and is 8"),
        ({"repeats": 2}, "order was"),
        (
            {"shuffle": False},
            r"order was .* \(training=, shuffle=, subset=, weights= and repeats= of the split",
        ),
    ],
)
def test_what_would_make_other_batches_is_an_error_within_an_epoch_only(photos, settings, text):
    loader = load(photos, workers=0)
    next(iter(loader))
    other = load(photos, **{"workers": 0, **settings})
    with pytest.raises(ValueError, match=rf"batch 1 of epoch 0: {text}"):
        other.load_state_dict(loader.state_dict())
    list(loader)
    other.load_state_dict(loader.state_dict())
    other.sampler.set_epoch(1)
    assert not list(other), "the checkpoint is from the end of that epoch"
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == len(other)
    assert other.state_dict()["epoch"] == 2


def test_a_state_counts_more_than_an_epoch_that_was_set_before(photos):
    loader = load(photos, workers=0)
    loader.sampler.set_epoch(2)
    expected = [batch.key for batch in loader]
    loader.sampler.set_epoch(2)
    next(iter(loader))
    other = load(photos, workers=0)
    for epoch in (0, 2, 5):
        other.sampler.set_epoch(epoch)
        other.load_state_dict(loader.state_dict())
        assert [batch.key for batch in other] == expected[1:]
    other.load_state_dict(loader.state_dict())
    other.sampler.set_epoch(0)
    with pytest.warns(UserWarning, match=r"at batch 1 of epoch 2, but set_epoch\(0\) begins epoch 0 again"):
        assert len(list(other)) == len(other)


class Every(Callback):
    """Saves a checkpoint after every step and every epoch."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, *_):
        trainer.save_checkpoint(self.folder / f"step{trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer, _):
        trainer.save_checkpoint(self.folder / f"epoch{trainer.current_epoch}.ckpt")


class Early(Net):
    """Reads the number of steps before the loop begins, as schedulers do."""

    def configure_optimizers(self):
        self.steps = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


@pytest.fixture(scope="module")
def undisturbed(photos, tmp_path_factory):
    """Three epochs with a checkpoint at every step: the folder, the batches and the weights."""
    folder = tmp_path_factory.mktemp("undisturbed")
    torch.manual_seed(0)
    net = fitted(folder, module(photos), max_epochs=3, callbacks=[Every(folder)])
    return folder, steps(net), net.net.weight.detach().clone()


@pytest.mark.parametrize("net", [Net, Early])
@pytest.mark.parametrize("at", [1, 3, 5, 6, 7, 11])
def test_lightning_goes_on_at_the_exact_next_batch(photos, tmp_path, undisturbed, at, net):
    folder, batches, weight = undisturbed
    checkpoint = folder / f"step{at}.ckpt"
    resumed = fitted(tmp_path, module(photos, workers=1), net(), checkpoint, max_epochs=3)
    assert steps(resumed) == batches[at:]
    assert torch.equal(resumed.net.weight, weight)


def test_a_trainer_that_has_forgotten_where_the_checkpoint_was_is_a_warning(photos, tmp_path, undisturbed):
    class Rated(Net):
        lr = 0.1

    finder = LearningRateFinder(num_training_steps=4, early_stop_threshold=None)
    with pytest.warns(UserWarning, match="at batch 3 of epoch 0, and the Trainer begins that epoch"):
        fitted(
            tmp_path, module(photos), Rated(), undisturbed[0] / "step3.ckpt", max_epochs=1, callbacks=[finder]
        )


@pytest.mark.parametrize("after", ["look", "looks", "three batches", "setup", "look at val"])
@pytest.mark.parametrize("at", [3, 8])
def test_a_checkpoint_after_a_look_has_the_place_of_the_training(photos, tmp_path, undisturbed, at, after):
    data = module(photos)
    run, net = trainer(tmp_path, max_epochs=3), Failing("end", at)
    with pytest.raises(ArithmeticError):
        run.fit(net, datamodule=data)
    if after.startswith("look") and after != "look at val":
        for _ in range(1 + (after == "looks")):
            next(iter(data.train_dataloader()))
    elif after == "three batches":
        batches = iter(data.train_dataloader())
        for _ in range(3):
            next(batches)
    else:
        data.setup(None if after == "look at val" else "fit")
        if after == "look at val":
            next(iter(data.val_dataloader()))
    run.save_checkpoint(tmp_path / "later.ckpt", weights_only=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the checkpoint is at batch")
        resumed = fitted(tmp_path, module(photos), Early(), tmp_path / "later.ckpt", max_epochs=3)
    assert steps(resumed) == undisturbed[1][at:]


class Counting(Net):
    """Counts the batches of the data module before Lightning has made a loader, as schedules do."""

    def configure_optimizers(self):
        self.count = len(self.trainer.datamodule.train_dataloader())
        if self.reads_steps:
            self.steps = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


@pytest.mark.parametrize("reads_steps", [False, True])
@pytest.mark.parametrize("at", [0, 3, 8])
def test_a_network_that_counts_the_batches_goes_on_at_the_next(
    photos, tmp_path, undisturbed, at, reads_steps
):
    net = Counting()
    net.reads_steps = reads_steps
    checkpoint = undisturbed[0] / f"step{at}.ckpt" if at else None
    assert steps(fitted(tmp_path, module(photos), net, checkpoint, max_epochs=3)) == undisturbed[1][at:]
    assert net.count == 6


@pytest.mark.parametrize("before", ["look", "limited run", "failed run"])
def test_a_fit_begins_at_its_first_batch_whatever_was_before(photos, tmp_path, undisturbed, before):
    """Also if a callback saves and loads a checkpoint before the loader of train is made."""

    class Rated(Net):
        lr = 0.1

    class Saving(Callback):
        def on_fit_start(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / "first.ckpt")

    data = module(photos)
    if before == "look":
        next(iter(data.train_dataloader()))
    elif before == "limited run":
        fitted(tmp_path, data, max_epochs=1, limit_train_batches=2)
    else:
        with pytest.raises(ArithmeticError):
            fitted(tmp_path, data, Failing("end", 3), max_epochs=1)
    finder = LearningRateFinder(num_training_steps=4, early_stop_threshold=None)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the checkpoint is at batch")
        found = fitted(tmp_path, data, Rated(), max_epochs=1, callbacks=[Saving(), finder])
        resumed = fitted(tmp_path, module(photos), None, tmp_path / "first.ckpt", max_epochs=1)
    assert steps(found)[-6:] == steps(resumed) == undisturbed[1][:6]
    saved = torch.load(tmp_path / "first.ckpt", weights_only=True)["ShardDataModule"]["train"]
    assert (saved["epoch"], saved["batches"]) == (0, 0)


def test_the_state_is_plain_numbers_and_a_text(undisturbed):
    saved = torch.load(undisturbed[0] / "step3.ckpt", weights_only=True)
    state = saved["ShardDataModule"]["train"]
    assert isinstance(state.pop("order"), int)
    data = state.pop("data").split("\n")
    assert [line.split()[0] for line in data] == ["a.tar", "b.tar"] and state.pop("version") == 1
    assert state == {"epoch": 0, "batches": 3, "len": 6, "samples": 23, "global_batch": 4, "seed": 0}


@pytest.mark.parametrize("name", ["epoch0", "step3"])
def test_lightning_refuses_other_data_within_an_epoch_and_at_its_end(photos, tmp_path, undisturbed, name):
    for number, shard in enumerate(("b.tar", "a.tar")):  # the other order
        shutil.copy(photos / shard, tmp_path / f"{number}.tar")
    checkpoint = undisturbed[0] / f"{name}.ckpt"
    with pytest.raises(ResumeError, match=r"other data: file 0, .* a\.tar .* is 0\.tar .*allow_other_data="):
        fitted(tmp_path, module(tmp_path), None, checkpoint, max_epochs=2)
    resumed = fitted(tmp_path, module(tmp_path, allow_other_data=True), None, checkpoint, max_epochs=2)
    assert len(steps(resumed)) == (6 if name == "epoch0" else 9)


@pytest.mark.sweep
@pytest.mark.parametrize("net", [Net, Early])
@pytest.mark.parametrize(
    "limit", [{"max_steps": 16, "max_epochs": -1}, {"max_steps": 16, "max_epochs": 3}, {}]
)
@pytest.mark.parametrize("name", ["epoch0", "epoch1", "step6", "step12", "step8"])
def test_max_steps_and_checkpoints_of_an_epochs_end(photos, tmp_path, undisturbed, name, limit, net):
    folder, batches, _ = undisturbed
    resumed = fitted(tmp_path, module(photos), net(), folder / f"{name}.ckpt", **{"max_epochs": 3, **limit})
    done = int(name[4:]) if name.startswith("step") else 6 * (int(name[5:]) + 1)
    assert steps(resumed) == batches[done : limit.get("max_steps", 18)]
    assert resumed.epochs == [step // 6 for step in range(done, limit.get("max_steps", 18))]


def test_a_run_that_max_steps_ended_within_an_epoch_goes_on_within_it(photos, tmp_path, undisturbed):
    _, batches, _ = undisturbed
    saving = ModelCheckpoint(tmp_path, save_last=True)
    options = {"callbacks": [saving], "enable_checkpointing": True, "max_epochs": 3}
    assert steps(fitted(tmp_path, module(photos), max_steps=4, **options)) == batches[:4]
    resumed = fitted(tmp_path, module(photos), None, tmp_path / "last.ckpt", max_epochs=3, max_steps=15)
    assert steps(resumed) == batches[4:15]
    with pytest.warns(UserWarning, match="batch 4 of epoch 0, but epoch 1 begins"):
        fitted(tmp_path, module(photos), None, tmp_path / "last.ckpt", max_epochs=2)


class Failing(Net):
    """Raises in a hook of the batch after ``at`` steps, or takes a checkpoint there and goes on."""

    def __init__(self, hook="", at=0, error=ArithmeticError):
        super().__init__()
        self.hook, self.at, self.error = hook, at, error

    def _fail(self, hook):
        if hook == self.hook and self.global_step == self.at:
            raise self.error

    def on_after_batch_transfer(self, batch, _):
        if self.trainer.training:
            self._fail("transfer")
        return batch

    def on_train_batch_start(self, *_):
        self._fail("start")

    def training_step(self, batch, number):
        self._fail("step")
        return super().training_step(batch, number)

    def on_train_batch_end(self, *_):
        self._fail("end")

    def validation_step(self, batch, number):
        if not self.trainer.sanity_checking:
            self._fail("validation")
        super().validation_step(batch, number)


class OnException(Callback):
    """Lightning's OnExceptionCheckpoint, which a new Trainer would load without being asked."""

    def __init__(self, path):
        self.path = path

    def on_exception(self, trainer, *_):
        trainer.save_checkpoint(self.path)


def failed(folder, data, net, ckpt_path=None, **settings):
    """The path of the checkpoint of a training that fails, and the steps that it made."""
    path = folder / f"failed{net.hook}{net.at}.ckpt"
    with pytest.raises((ArithmeticError, SystemExit)):  # of Ctrl-C
        fitted(folder, data, net, ckpt_path, callbacks=[OnException(path)], **settings)
    return path


def own_warnings(caught):
    """The warnings of tarpeg."""
    return [str(each.message) for each in caught if each.filename == "tarpeg"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("hook", "settings"),
    [
        ("step", {"val_check_interval": 2}),
        ("start", {}),
        ("transfer", {"limit_val_batches": 0}),
        ("validation", {"val_check_interval": 1}),
        ("step", {"max_steps": 18, "max_epochs": -1}),
        ("end", {}),
    ],
)
@pytest.mark.parametrize("at", [0, 3, 5, 6])
def test_a_batch_under_way_comes_again(photos, tmp_path, undisturbed, hook, at, settings, recwarn):
    batches, settings = undisturbed[1], {"max_epochs": 3, **settings}
    if hook in ("end", "validation"):
        at = max(at, 1)  # after a step
    net = Failing(hook, at, KeyboardInterrupt if at == 3 else ArithmeticError)
    path = failed(tmp_path, module(photos), net, **settings)
    assert steps(net)[:at] == batches[:at]
    again = Failing("start", at + 1)  # of which the counts of Lightning know no step
    path = failed(tmp_path, module(photos), again, path, **settings)
    later = Failing("end", at + 2)
    path = failed(tmp_path, module(photos), later, path, **settings)
    resumed = fitted(tmp_path, module(photos, workers=1), None, path, **settings)
    assert steps(net)[:at] + steps(again) + steps(later) + steps(resumed) == batches
    assert resumed.trainer.fit_loop.epoch_loop.total_batch_idx == 17
    assert not own_warnings(recwarn)


def test_a_batch_under_way_of_a_mixture_and_a_checkpoint_after_the_failure(photos, tmp_path):
    def data():
        mixture = {name: tarpeg.Split(photos, tarpeg.RandomResizedCrop(16)) for name in "ab"}
        return tarpeg.ShardDataModule(
            tarpeg.Mixture(mixture, repeat={"a": 1, "b": 2}), workers=0, batch_size=4
        )

    whole = fitted(tmp_path, data(), max_epochs=2)
    run, net = trainer(tmp_path, max_epochs=2), Failing("step", 4)
    with pytest.raises(ArithmeticError):
        run.fit(net, datamodule=data())
    run.save_checkpoint(tmp_path / "after.ckpt")
    resumed = fitted(tmp_path, data(), None, tmp_path / "after.ckpt", max_epochs=2)
    assert steps(net) + steps(resumed) == steps(whole)


@pytest.mark.parametrize("hook", ["step", "end"])
def test_the_batch_that_lightning_fetches_ahead_of_a_stream_does_not_count(photos, tmp_path, hook):
    split = tarpeg.Split(photos, tarpeg.Whole(16), streaming=True)
    data = tarpeg.ShardDataModule(split, workers=0, batch_size=4)
    path = failed(tmp_path, data, Failing(hook, 3))
    assert torch.load(path, weights_only=True)["ShardDataModule"]["train"]["batches"] == 3
    with pytest.warns(UserWarning, match="cannot go back to batch 3 .* the whole epoch is drawn") as said:
        fitted(tmp_path, tarpeg.ShardDataModule(split, workers=0, batch_size=4), None, path, max_epochs=1)
    assert not any("another data module" in str(each.message) for each in said)


@pytest.mark.parametrize("name", ["step2", "step3", "step6", "step7", "epoch0", "epoch1", "validation"])
def test_a_checkpoint_of_an_epoch_that_the_trainer_limits(photos, tmp_path, name, recwarn):
    options = {"max_epochs": 3, "limit_train_batches": 3}
    batches = steps(fitted(tmp_path, module(photos), callbacks=[Every(tmp_path)], **options))
    assert len(batches) == 9
    at, path = 3, tmp_path / f"{name}.ckpt"
    if name == "validation":
        path = failed(tmp_path, module(photos), Failing(name, at), **options)
    else:
        at = torch.load(path, weights_only=True)["global_step"]
    resumed = fitted(tmp_path, module(photos, workers=1), None, path, **options)
    assert steps(resumed) == batches[at:] and not own_warnings(recwarn)


@pytest.mark.parametrize("name", ["epoch0", "validation"])
def test_a_smaller_limit_than_before_repeats_no_batch(photos, tmp_path, name):
    options = {"max_epochs": 2, "limit_train_batches": 3}
    batches = steps(fitted(tmp_path, module(photos), max_epochs=2, callbacks=[Every(tmp_path)]))
    path = tmp_path / "epoch0.ckpt"
    if name == "validation":
        path = failed(tmp_path, module(photos), Failing(name, 3), **options)
    else:
        fitted(tmp_path, module(photos), callbacks=[Every(tmp_path)], **options)
    resumed = fitted(tmp_path, module(photos), None, path, **{**options, "limit_train_batches": 2})
    # In the first case Lightning makes one step more in the first epoch.
    assert steps(resumed) == [*batches[3:4] * (name == "validation"), *batches[6:8]]


class Both(Net):
    """A network that trains on two sets at once."""

    def training_step(self, batch, index):
        self.seen["predict"].append(batch["own"])
        return super().training_step(batch["large"], index)


class Beside(tarpeg.ShardDataModule):
    """A small set beside a larger one."""

    def __init__(self, photos, large, size):
        split = tarpeg.Split(photos, tarpeg.RandomResizedCrop(16), flip=0.5, subset=[*range(size)])
        super().__init__(split, batch_size=4, keys=True, workers=0, augment=heavy())
        self.large = large

    def train_dataloader(self):
        return {"large": self.large, "own": super().train_dataloader()}


@pytest.mark.parametrize(("size", "is_module"), [(7, False), (15, False), (15, True)])  # 2 or 4 batches of 6
def test_a_shorter_loader_beside_another_one_repeats_no_pass(photos, tmp_path, size, is_module, recwarn):
    def run(path=None):
        split = tarpeg.Split(photos, tarpeg.RandomResizedCrop(16), flip=0.5)
        splits = {"large": split, "own": dataclasses.replace(split, subset=[*range(size)])}
        loaders = {
            name: tarpeg.Loader(each, 4, keys=True, workers=0, augment=tarpeg.Augment())
            for name, each in splits.items()
        }
        data = Beside(photos, loaders["large"], size) if is_module else loaders
        folder, net = tmp_path if path is None else tmp_path / "again", Both()
        folder.mkdir(exist_ok=True)
        settings = {"max_epochs": 3, "callbacks": [Every(folder)] * (path is None)}
        trainer(folder, **settings).fit(net, data, ckpt_path=path)
        return [
            digest([large, small])
            for large, small in zip(net.seen["train"], net.seen["predict"], strict=True)
        ]

    whole = run()
    assert len({*whole}) == len(whole) == 18
    for step in range(1, 18):
        assert run(tmp_path / f"step{step}.ckpt") == whole[step:], step
    for epoch in (0, 1):  # Lightning restores no state of loaders from these
        assert run(tmp_path / f"epoch{epoch}.ckpt") == whole[6 * (epoch + 1) :]
    assert not own_warnings(recwarn)


def test_a_shorter_stream_that_ended_with_the_epoch_does_not_go_back(photos, tmp_path, recwarn):
    def run(path=None):
        large, small = (
            tarpeg.Loader(
                tarpeg.Split(photos, tarpeg.Whole(16), streaming=tarpeg.Streaming(samples)),
                4,
                keys=True,
                workers=0,
                augment=tarpeg.Augment(),
            )
            for samples in (16, 12)
        )
        folder, net = tmp_path if path is None else tmp_path / "again", Both()
        settings = {"max_epochs": 2, "callbacks": [Every(folder)] * (path is None)}
        trainer(folder, **settings).fit(net, {"large": large, "own": small}, ckpt_path=path)
        pairs = zip(net.seen["train"], net.seen["predict"], strict=True)
        return [digest([large, small]) for large, small in pairs]

    whole = run()
    assert len(whole) == 8
    assert run(tmp_path / "step4.ckpt") == whole[4:] and not own_warnings(recwarn)
    assert len(run(tmp_path / "step3.ckpt")) == 5
    (one,) = own_warnings(recwarn)  # the shorter one begins a pass again
    assert "batch 3 of epoch 0" in one


@pytest.mark.parametrize("size", [7, 15, 23])  # 2, 4 and 6 batches, beside 7
def test_a_loader_beside_one_without_a_length(photos, tmp_path, size):
    """Lightning takes a batch before it sets the epoch, and has one more than it trains on."""

    def run(path=None):
        data = Beside(photos, DataLoader(Unsized(7), batch_size=None), size)
        folder, net = tmp_path if path is None else tmp_path / "again", OfOwn()
        folder.mkdir(exist_ok=True)
        settings = {"max_epochs": 2, "callbacks": [Every(folder)] * (path is None)}
        trainer(folder, **settings).fit(net, data, ckpt_path=path)
        return steps(net)

    whole = run()
    assert len({*whole}) == len(whole) == 14
    for step in (*range(1, 7), *range(8, 14)):  # the other loader begins again, and the epoch is longer
        rest = whole[step : 7 if step < 7 else 14]
        assert run(tmp_path / f"step{step}.ckpt")[: len(rest)] == rest, step
    for name in ("step7", "epoch0"):
        assert run(tmp_path / f"{name}.ckpt") == whole[7:], name


class EarlyOfOwn(OfOwn, Early):
    """As ``OfOwn``; Lightning makes the loaders before it restores its loops."""


@pytest.mark.parametrize("form", ["alone", "dict"])
def test_a_loader_of_a_trainer_whose_schedule_counts_the_steps(photos, tmp_path, form):
    """Lightning makes the loaders before it has their states then, and does not load them."""

    class Scheduled(Net):
        def training_step(self, batch, index):
            return super().training_step(batch["a"] if isinstance(batch, dict) else batch, index)

        def configure_optimizers(self):
            self.steps = self.trainer.estimated_stepping_batches
            return super().configure_optimizers()

    def fit(**given):
        split = tarpeg.Split(photos, tarpeg.RandomCrop(16, enlarge_if_needed=True))
        loaders = [tarpeg.Loader(split, 4, keys=True, workers=0, seed=n) for n in (3, 4)]
        net, saves = Scheduled(), ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=8, save_top_k=-1)
        run = trainer(tmp_path, max_epochs=3, callbacks=[saves], enable_checkpointing=True)
        run.fit(net, dict(zip("ab", loaders, strict=True)) if form == "dict" else loaders[0], **given)
        return [batch.key for batch in net.seen["train"]]

    whole = fit()
    assert fit(ckpt_path=tmp_path / "step=8.ckpt", weights_only=False) == whole[8:]
    saved = torch.load(tmp_path / "step=8.ckpt", weights_only=False)
    saved["loops"]["fit_loop"]["state_dict"]["combined_loader"] = []  # of another kind of loader
    torch.save(saved, tmp_path / "other.ckpt")
    with pytest.warns(UserWarning, match="is at batch 2 of an epoch, and another data module or"):
        fit(ckpt_path=tmp_path / "other.ckpt", weights_only=False)


@pytest.mark.parametrize("kind", ["stream", "beside"])
@pytest.mark.parametrize("reload", [0, 1])
def test_an_early_number_of_steps_beside_loaders_without_a_length(photos, tmp_path, kind, reload):
    def run(path=None):
        if kind == "stream":
            split = tarpeg.Split(photos, tarpeg.RandomResizedCrop(16), streaming=True)
            data = tarpeg.ShardDataModule(split, batch_size=4, keys=True, workers=0)
        else:
            data = Beside(photos, DataLoader(Unsized(7), batch_size=None), 15)
        settings = {"max_epochs": 3, "reload_dataloaders_every_n_epochs": reload}
        net = EarlyOfOwn()
        trainer(tmp_path, **settings, callbacks=[Every(tmp_path)] * (path is None)).fit(
            net, data, ckpt_path=path
        )
        return steps(net)

    whole = run()
    per_epoch = len(whole) // 3
    assert len({*whole}) == len(whole)
    for epoch in (0, 1):
        rest = whole[per_epoch * (epoch + 1) :]
        assert run(tmp_path / f"epoch{epoch}.ckpt") == rest
        assert run(tmp_path / f"step{per_epoch * (epoch + 1)}.ckpt") == rest


def test_a_loader_that_has_ended_before_another_one_does_not_begin_again(photos, tmp_path):
    class Padded(Beside):
        def train_dataloader(self):
            return CombinedLoader(super().train_dataloader(), "max_size")

    class Seen(OfOwn):
        def training_step(self, batch, index):
            keys.append(batch["own"] and batch["own"].key)
            return batch["own"] and super().training_step(batch, index)

    every = Every(tmp_path)
    for path in (None, tmp_path / "step4.ckpt"):
        keys: list[list[str] | None] = []
        data = Padded(photos, DataLoader(Unsized(7), batch_size=None), 7)
        trainer(tmp_path, max_epochs=1, callbacks=[every] * (path is None)).fit(Seen(), data, ckpt_path=path)
        assert [len(each or ()) for each in keys] == ([4, 3, 0, 0, 0, 0, 0] if path is None else [0] * 7)


@pytest.mark.parametrize("kind", ["stream", "beside"])
def test_loaders_of_lightning_without_a_length(photos, tmp_path, kind):
    """A look before the run, another run, and a checkpoint from an epoch's end change no epoch."""

    def made():
        small = tarpeg.Split(photos, tarpeg.RandomResizedCrop(16), flip=0.5, streaming=kind == "stream")
        loader = tarpeg.Loader(small, 4, workers=0, keys=True)
        loaders = {"own": loader, "large": DataLoader(Unsized(7), batch_size=None)}
        return loader, loader if kind == "stream" else loaders

    def run(loaders, path=None, **settings):
        net = OfOwn()
        callbacks = [Every(tmp_path)] * (path is None)
        settings = {"max_epochs": 3, **settings}
        trainer(tmp_path, **settings, callbacks=callbacks).fit(net, loaders, ckpt_path=path)
        return steps(net)

    loader, loaders = made()
    whole = run(loaders)
    per_epoch = len(whole) // 3
    assert len({*whole}) == len(whole) > 15 and run(loaders) == whole
    next(iter(loader))
    assert run(loaders) == whole
    once = made()[1]
    assert run(once, max_epochs=1) == whole[:per_epoch] and run(once) == whole
    for epoch, reload in itertools.product((0, 1), (0, 1)):
        rest, settings = whole[per_epoch * (epoch + 1) :], {"reload_dataloaders_every_n_epochs": reload}
        assert run(made()[1], tmp_path / f"epoch{epoch}.ckpt", **settings) == rest
        assert run(made()[1], tmp_path / f"step{per_epoch * (epoch + 1)}.ckpt", **settings) == rest


@pytest.mark.parametrize("kind", ["loader", "mixture"])
def test_further_passes_of_an_epoch_have_its_crops_and_shares(photos, tmp_path, kind):
    split = tarpeg.Split(photos, tarpeg.Progressive(tarpeg.RandomResizedCrop(16), {0: 8, 1: 12, 2: 16}))
    small = dataclasses.replace(split, subset=[*range(7)])
    if kind == "mixture":  # whose crops have one size
        small = dataclasses.replace(small, crop=tarpeg.RandomResizedCrop(16))
        small = tarpeg.Mixture({"a": small, "b": small}, weights={0: {"a": 1, "b": 0}, 1: {"a": 0, "b": 1}})
        loader = tarpeg.MixtureLoader(small, 4, workers=0)
    else:
        loader = tarpeg.Loader(small, 4, keys=True, workers=0)
    net, large = Both(), tarpeg.Loader(split, 4, keys=True, workers=0)
    trainer(tmp_path, max_epochs=2).fit(net, {"large": large, "own": loader})
    if kind == "loader":
        assert [batch.image.shape[-1] for batch in net.seen["predict"]] == [8] * 6 + [12] * 6
    else:
        assert [{*batch.source.tolist()} for batch in net.seen["predict"]] == [{0}] * 6 + [{1}] * 6
    assert len({digest([batch]) for batch in net.seen["predict"]}) == 12
    assert loader.sampler.epoch == 2, "the next one, in a loop of one's own"
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert [loader.sampler.begin()[0] for _ in range(2)] == [2, 3], "also from its state"
    if kind == "loader":  # of two batches
        loader.load_state_dict({**state, "batches": 1})
        assert [loader.sampler.begin()[0] for _ in range(3)] == [state["epoch"], 2, 3]


def test_a_checkpoint_that_another_loader_wrote_within_an_epoch_is_a_warning(photos, tmp_path, undisturbed):
    folder, batches, _ = undisturbed
    saved = torch.load(folder / "step9.ckpt", weights_only=True)
    del saved["ShardDataModule"]
    saved["loops"]["fit_loop"]["state_dict"].pop("combined_loader")
    torch.save(saved, tmp_path / "other.ckpt")
    with pytest.warns(UserWarning, match="at batch 3 of an epoch, and another .* 3 batches early"):
        resumed = fitted(tmp_path, module(photos), None, tmp_path / "other.ckpt", max_epochs=3)
    assert steps(resumed) == batches[6:9] + batches[12:]


@pytest.mark.parametrize(
    "settings",
    [
        {"reload_dataloaders_every_n_epochs": 1},
        {"val_check_interval": 1},
        {"val_check_interval": 2},
        {"num_sanity_val_steps": 0, "limit_val_batches": 0},
        {"accumulate_grad_batches": 2},
        {"limit_val_batches": 1, "check_val_every_n_epoch": 2},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_the_trainer_change_neither_batches_nor_resuming(
    photos, tmp_path, undisturbed, settings, children
):
    _, batches, _ = undisturbed
    settings = {"max_epochs": 3, **settings}
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    data = module(photos, workers=1)
    net = fitted(tmp_path, data, callbacks=[saving], enable_checkpointing=True, **settings)
    assert steps(net) == batches and children() == set()
    step = 2 if "accumulate_grad_batches" in settings else 4
    checkpoint = tmp_path / f"step={step}.ckpt"
    assert steps(fitted(tmp_path, module(photos, workers=1), None, checkpoint, **settings)) == batches[4:]


def test_a_data_module_that_was_used_before(photos, tmp_path, undisturbed):
    folder, batches, weight = undisturbed
    data = module(photos)
    trainer(tmp_path).test(Net(), datamodule=data, ckpt_path=folder / "step3.ckpt", verbose=False)
    assert steps(fitted(tmp_path, data)) == batches[:6], "testing a checkpoint moves nothing"
    resumed = fitted(tmp_path, data, Early(), folder / "step8.ckpt", max_epochs=3)
    assert steps(resumed) == batches[8:] and torch.equal(resumed.net.weight, weight)
    assert steps(fitted(tmp_path, data)) == batches[:6]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shuffle": True},
        {"shuffle": "blocks"},
        {"weights": True},
        {"streaming": tarpeg.Streaming(samples=12)},
    ],
    ids=["default", "shuffle", "blocks", "weights", "stream"],
)
def test_overfitting_takes_the_same_batches_every_epoch(photos, tmp_path, settings):
    if "weights" in settings:
        settings = {"weights": [1 + number % 3 for number in range(len(ALL))]}
    split = tarpeg.Split(photos, tarpeg.RandomResizedCrop(16), flip=0.5, **settings)
    data = tarpeg.ShardDataModule(split, batch_size=4, workers=0, keys=True)
    net = fitted(tmp_path, data, max_epochs=3, overfit_batches=2, limit_val_batches=0)
    assert net.keys("train", 3) == [ALL[:8]] * 3


@pytest.mark.parametrize("batches", ["stratified", "per_source"])
@pytest.mark.parametrize("by_epoch", [False, True])
def test_overfitting_takes_the_same_batches_of_a_mixture_every_epoch(photos, tmp_path, batches, by_epoch):
    splits = {name: tarpeg.Split(photos, tarpeg.RandomResizedCrop(16)) for name in "ab"}
    weights = {"a": 0.5, "b": 0.5}
    mixture = tarpeg.Mixture(
        splits, weights={0: weights, 1: {"a": 0.25, "b": 0.75}} if by_epoch else weights, batches=batches
    )
    data = tarpeg.ShardDataModule(mixture, batch_size=4, workers=0)
    net = fitted(tmp_path, data, max_epochs=3, overfit_batches=2, limit_val_batches=0)
    images = torch.stack([batch[0] for batch in net.seen["train"]]).unflatten(0, (3, 2))
    assert torch.equal(images[0], images[1]) and torch.equal(images[0], images[2])
    assert batches == "per_source" or not torch.equal(images[0, 0], images[0, 1])


def test_another_batch_size_in_a_later_epoch_of_a_mixture_is_a_warning(photos, tmp_path):
    splits = {name: tarpeg.Split(photos, tarpeg.RandomResizedCrop(16)) for name in "ab"}

    def run(size):
        data = tarpeg.ShardDataModule(
            tarpeg.Mixture(splits, weights={"a": 0.5, "b": 0.5}), batch_size=4, workers=0
        )

        class Grows(Callback):
            def on_train_epoch_end(self, trainer, net):
                data.batch_size = size

        fit = trainer(tmp_path, max_epochs=2, reload_dataloaders_every_n_epochs=1, callbacks=[Grows()]).fit
        fit(Net(), data)

    with pytest.warns(UserWarning, match="size of batches of train was 4 in an earlier epoch and is 8 now"):
        run(8)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*size of batches of train was")
        run(4)


def test_overfitting_with_a_loader_that_shuffles_is_a_warning(photos, tmp_path):
    def run(**settings):
        split = tarpeg.Split(photos, tarpeg.RandomResizedCrop(16), **settings)
        loader = tarpeg.Loader(split, batch_size=4, workers=0, keys=True)
        trainer(tmp_path, max_epochs=2, overfit_batches=2, limit_val_batches=0).fit(Net(), loader)

    with pytest.warns(UserWarning, match=r"overfit_batches in torch's DataLoader alone: .* Split\(shuffle="):
        run()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*overfit_batches in torch's")
        run(shuffle=False)


def test_overfitting_with_repeated_augmentation(photos, tmp_path):
    split = tarpeg.Split(photos, tarpeg.RandomResizedCrop(16), repeats=2)
    data = tarpeg.ShardDataModule(split, batch_size=4, workers=0, keys=True)
    net = fitted(tmp_path, data, max_epochs=2, overfit_batches=2, limit_val_batches=0)
    assert net.keys("train", 2) == [[key for key in ALL[:4] for _ in range(2)]] * 2


KILLED = """
import json
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from helpers.training import Net, heavy, module, trainer

class Recording(Net):
    def training_step(self, batch, number):
        with open({out!r} + "/seen.jsonl", "a") as file:
            file.write(json.dumps([self.global_step, batch.key]) + "\\n")
        return super().training_step(batch, number)

torch.manual_seed(0)
saving = ModelCheckpoint({out!r}, every_n_train_steps=1, filename="last", enable_version_counter=False)
net, data = Recording(), module({photos!r}, workers=2, augment=heavy())
run = trainer({out!r}, max_epochs=200, callbacks=[saving], enable_checkpointing=True)
run.fit(net, datamodule=data)
"""


@pytest.mark.slow
def test_killed_with_9_within_an_epoch(photos, tmp_path):
    folder = tmp_path / "killed"
    folder.mkdir()
    code = PATHS + KILLED.format(out=str(folder), photos=str(photos))
    log = folder / "seen.jsonl"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        while not log.exists() or len(log.read_text().splitlines()) < 15:
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
    checkpoint = folder / "last.ckpt"
    stopped = torch.load(checkpoint, weights_only=True)["global_step"]
    assert stopped >= 10

    torch.manual_seed(0)
    net, resumed = Net(), Net()
    epochs = stopped // 6 + 2
    fitted(tmp_path, module(photos, workers=1), net, max_epochs=epochs)
    fitted(tmp_path, module(photos, threads=2), resumed, checkpoint, max_epochs=epochs)
    seen = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("]")]
    delivered = [key for _, keys in seen[:stopped] for key in keys]
    assert delivered + resumed.keys("train")[0] == net.keys("train")[0]
    assert torch.equal(resumed.net.weight, net.net.weight)
