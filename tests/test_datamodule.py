"""ShardDataModule under Lightning's trainer, and in a plain loop."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import os
import pickle
import re
import warnings
import weakref
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice

import lightning
import numpy as np
import pytest
import torch
from helpers.loaders import ALL, keys_of
from helpers.pictures import saved
from helpers.scripts import run_file, run_two_ranks
from helpers.small_tars import sample, write_tar
from helpers.training import Net, fitted, module, trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.data import extract_batch_size, warning_cache
from PIL import Image
from tarpeg import (
    Affine,
    Augment,
    Batch,
    Boxes,
    CenterCrop,
    DataStallMonitor,
    DecodeError,
    KeyedBatch,
    Label,
    Layout,
    Loader,
    Mixture,
    ShardDataModule,
    Split,
    Whole,
    build_cache,
    contact_sheet,
)
from tarpeg.errors import ResumeError, ShardError
from tarpeg.loader import split as split_module
from torch.utils.data import DataLoader
from torchvision.transforms import v2

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's and torch's own


def write_table(path, *names, samples=6):
    """Write a table of labels of ``sample``s, which have these names in turn."""
    rows = [f"k{number:04d},{names[number % len(names)]}\n" for number in range(samples)]
    path.write_text("key,label\n" + "".join(rows))


@pytest.mark.quick
@pytest.mark.parametrize("workers", [0, 2])
def test_fit_sees_every_sample_once_per_epoch(photos, tmp_path, workers, children):
    net = fitted(tmp_path, module(photos, workers=workers), max_epochs=3)
    epochs = net.keys("train", 3)
    assert [sorted(epoch) for epoch in epochs] == [ALL] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    validated = [key for batch in net.seen["validate"] for key in batch.key]
    assert validated == ALL[:8] + ALL * 3, "two sanity batches, then all epochs in order"
    assert children() == set()
    # The same epochs as a plain loop's.
    plain = module(photos, workers=workers).train_dataloader()
    assert [[key for batch in plain for key in batch.key] for _ in range(3)] == epochs
    plain.close()


@pytest.mark.quick
def test_test_validate_and_predict(photos, tmp_path):
    net, data, run = Net(), module(photos, keys=False), trainer(tmp_path)
    run.validate(net, datamodule=data, verbose=False)
    run.test(net, datamodule=data, verbose=False)
    assert all(type(batch) is Batch for stage in ("validate", "test") for batch in net.seen[stage])
    assert sum(len(batch.label) for batch in net.seen["test"]) == 23
    predicted = run.predict(net, datamodule=data)
    assert [key for keys in predicted for key in keys] == ALL
    assert all(type(batch) is KeyedBatch for batch in net.seen["predict"])


def test_fast_dev_run_limits_and_validation_within_the_epoch(photos, tmp_path):
    net = fitted(tmp_path, module(photos), fast_dev_run=True)
    assert len(net.seen["train"]) == len(net.seen["validate"]) == 1
    limits = {"limit_train_batches": 2, "max_epochs": 2, "num_sanity_val_steps": 0}
    net = fitted(tmp_path, module(photos, workers=1), **limits)
    full = module(photos).train_dataloader()
    expected = [batch.key for _ in range(2) for batch in list(full)[:2]]
    assert [batch.key for batch in net.seen["train"]] == expected and len(expected) == 4
    net = fitted(tmp_path, module(photos, workers=1), val_check_interval=2, num_sanity_val_steps=0)
    assert sorted(net.keys("train")[0]) == ALL
    assert net.keys("validate", 3) == [ALL] * 3


@pytest.mark.quick
def test_training_on_shards_of_val_or_test_is_an_error(photos, tmp_path):
    def data(train, **options):
        return ShardDataModule(Split(train, crop), workers=0, threads=0, **options)

    crop, only_b = CenterCrop(16), Split(f"{photos}/b.tar", CenterCrop(16))
    (tmp_path / "link").symlink_to(photos)
    for kind in ("val", "test"):
        text = f"train and {kind} have 1 shard in common, such as {re.escape(str(photos))}/b.tar, "
        for train in (photos, f"{tmp_path}/link/*.tar"):
            with pytest.raises(ShardError, match=text):
                data(train, **{kind: only_b}).train_dataloader()
        with pytest.raises(ShardError, match=text):
            data(photos, **{kind: only_b}).setup()
    os.link(photos / "b.tar", tmp_path / "hard.tar")
    hard = data(tmp_path / "hard.tar", val=only_b)
    with pytest.raises(ShardError, match=r"hard\.tar \(in val: .*b\.tar\)"):
        hard.setup()
    with pytest.raises(ShardError, match="train and val have"):
        fitted(tmp_path, data(photos, val=only_b))
    assert len(data(photos, val=only_b, allow_overlap=True).train_dataloader()) == 1
    assert len(data(f"{photos}/a.tar", val=only_b, test=only_b, predict=only_b).train_dataloader()) == 1
    missing = data(photos, val=Split("/nowhere/x.tar", crop))
    missing.train_dataloader()
    with pytest.raises(ShardError, match=r"x\.tar"):
        missing.val_dataloader()
    for name in ("0", "1"):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "x.jpg").write_bytes(b"")
    images = Split(tmp_path / "all" / "1", crop, target=None)
    with pytest.raises(ShardError, match=r"such as .*all/1/x\.jpg"):
        data(tmp_path / "all", val=images).setup()


@pytest.mark.quick
def test_without_a_val_split(photos, tmp_path):
    data = ShardDataModule(Split(photos, CenterCrop(16)), batch_size=23, keys=True, workers=0)
    with warnings.catch_warnings(record=True) as caught:
        net = fitted(tmp_path, data)
    assert not [str(each.message) for each in caught if "across ranks is zero" in str(each.message)]
    assert sorted(net.keys("train")[0]) == ALL and not net.seen["validate"]
    with pytest.raises(ValueError, match="no test split"):
        trainer(tmp_path).test(net, datamodule=data)
    with pytest.raises(ValueError, match=r"no val split.*ShardDataModule\(val=Split"):
        trainer(tmp_path).validate(net, datamodule=data)


def test_the_batch_size_is_an_attribute_that_the_tuner_sets(photos, tmp_path):
    data = module(photos)
    data.batch_size = 8
    assert (data.batch_size, len(data.train_dataloader())) == (8, 3)
    with pytest.raises(ValueError, match=r"^batch_size=0 "):
        data.batch_size = 0
    with pytest.raises(ValueError, match=r"batch_size=8 .*global_batch_size=4"):
        module(photos, global_batch_size=4).batch_size = 8
    data, run = module(photos, batch_size=2), trainer(tmp_path)
    sizes = {"init_val": 2, "max_trials": 3, "steps_per_trial": 1}
    assert Tuner(run).scale_batch_size(Net(), datamodule=data, mode="power", **sizes) == data.batch_size == 8
    net = Net()
    run.fit(net, datamodule=data)
    expected = [batch.key for batch in module(photos, batch_size=8).train_dataloader()]
    assert [batch.key for batch in net.seen["train"]] == expected and len(expected) == 3


@pytest.mark.quick
@pytest.mark.parametrize("names", [None, ("clean", "noisy")])
def test_several_validation_and_test_sets(photos, tmp_path, names):
    a, b = (Split(f"{photos}/{name}.tar", CenterCrop(16)) for name in ("a", "b"))
    sets = dict(zip(names, (b, a), strict=True)) if names else [b, a]
    names = names or ("0", "1")

    def data(**options):
        return ShardDataModule(Split(photos, CenterCrop(16)), sets, batch_size=4, workers=0, **options)

    class Indexed(Net):
        def validation_step(self, batch, _, dataloader_idx):
            self.seen["validate"].append((dataloader_idx, batch.key))
            self.log("size", float(len(batch.key)), batch_size=1)

        test_step = validation_step

    options = {"keys": True, "allow_overlap": True}
    whole = data(test=sets, **options)
    assert [*whole.splits] == [
        "train",
        *(f"val/{n}" for n in names),
        *(f"test/{n}" for n in names),
        "predict",
    ]
    orders = [(place, keys_of(loader)) for place, loader in enumerate(whole.val_dataloader())]
    assert orders == [(0, ALL[13:]), (1, ALL[:13])]
    whole = fitted(tmp_path, data(**options), Indexed(), max_epochs=2, num_sanity_val_steps=0)
    validated = [(place, key) for place, keys in whole.seen["validate"] for key in keys]
    assert validated == [(place, key) for place, keys in orders for key in keys] * 2
    assert {"size/dataloader_idx_0", "size/dataloader_idx_1"} == whole.trainer.callback_metrics.keys()
    tested = Indexed()
    trainer(tmp_path).test(tested, datamodule=data(test=sets, **options), verbose=False)
    assert [key for _, keys in tested.seen["validate"] for key in keys] == ALL[13:] + ALL[:13]
    # A checkpoint within the first epoch continues with the next batch.
    saving = {
        "enable_checkpointing": True,
        "callbacks": [ModelCheckpoint(tmp_path, "w", every_n_train_steps=2)],
    }
    fitted(tmp_path, data(**options), Indexed(), max_epochs=1, limit_train_batches=3, **saving)
    rest = fitted(tmp_path, data(**options), Indexed(), tmp_path / "w.ckpt", max_epochs=2)
    assert rest.keys("train")[0] == whole.keys("train")[0][8:]
    with pytest.raises(ShardError, match=rf"train and val/{names[0]} have 1 shard"):
        data().setup("fit")
    with pytest.raises(ValueError, match="no test split"):
        data(**options).test_dataloader()


def test_what_is_not_a_split_is_refused(photos):
    split = Split(photos, CenterCrop(16))
    for kind, given in {"train": [split], "predict": {"a": split}, "val": [], "test": [str(photos)]}.items():
        several = "a tarpeg.Split(...) or a list or dict of them"
        wanted = several if kind in ("val", "test") else "one tarpeg.Split(...)"
        with pytest.raises(ValueError, match=rf"^{kind}=\S+ must be {re.escape(wanted)}$"):
            ShardDataModule(**{kind: given})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("views", [1, 2])
def test_predictions_leave_out_undecodable_images(shard_of, workers, views):
    samples = [sample(number, b"" if number in (1, 2, 4) else None) for number in range(6)]
    crops = {"views": views} if views > 1 else {}
    split = Split(shard_of(*samples), CenterCrop(16), **crops)
    data = ShardDataModule(predict=split, val=split, batch_size=2, workers=workers)
    with pytest.warns(UserWarning, match=r"key 'k0001': image is EMPTY \(1\)"):
        batches = list(data.predict_dataloader())
    assert [batch.key for batch in batches] == [["k0000"], ["k0003"], ["k0005"]]
    assert [batch.label.tolist() for batch in batches] == [[0], [3], [0]]
    with pytest.warns(UserWarning, match="takes its place"):
        whole = list(data.val_dataloader())
    for batch, row in zip(batches, (0, 1, 1), strict=True):
        other = whole[int(batch.key[0][1:]) // 2].image
        kept = batch.image[0] if views == 1 else batch.image[:, 0]
        assert torch.equal(kept, other[row] if views == 1 else other[:, row])
    data = ShardDataModule(predict=split, batch_size=2, workers=workers, on_error="raise")
    with pytest.raises(DecodeError, match="key 'k0001'"):
        list(data.predict_dataloader())
    data.teardown()


def test_validation_leaves_out_undecodable_images_if_asked(shard_of):
    samples = [sample(number, b"" if number in (2, 3, 4) else None) for number in range(6)]
    split = Split(shard_of(*samples), CenterCrop(16))
    data = ShardDataModule(val=split, test=split, batch_size=2, workers=0, keys=True, on_error="leave_out")
    for loader in (data.val_dataloader(), data.test_dataloader()):
        with pytest.warns(UserWarning, match=r"\b3 of 6 images") as found:
            batches = list(loader)
        assert sum("key 'k0003'" in str(each.message) for each in found) == 1
        assert [batch.key for batch in batches] == [["k0000", "k0001"], [], ["k0005"]]
        assert [batch.image.shape[0] for batch in batches] == [2, 0, 1]
    with pytest.raises(ValueError, match="on_error='leave_out'"):
        ShardDataModule(train=split, val=split, on_error="leave_out")


def test_splits_of_several_types_of_images_are_refused(photos):
    floats = v2.Compose([v2.CenterCrop(16), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    one, other = Split(photos, transform=floats), Split(photos, CenterCrop(16))
    for train, val, text in ((one, other, "train has torch.float32"), (other, one, "val has torch.float32")):
        with pytest.raises(ValueError, match=rf"{text} images, .* uint8 "):
            ShardDataModule(train, val)
        ShardDataModule(train, predict=val)
    ShardDataModule(one, one)

    class Own(ShardDataModule):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch

    Own(one, other)


@pytest.mark.quick
def test_resume_at_an_epochs_end_continues_with_the_next_epoch(photos, tmp_path):
    end = tmp_path / "end.ckpt"
    whole = fitted(tmp_path, module(photos), max_epochs=3)
    first = fitted(tmp_path, module(photos))
    first.trainer.save_checkpoint(end)
    second = fitted(tmp_path, module(photos), ckpt_path=end, max_epochs=3)
    assert first.keys("train") + second.keys("train", 2) == whole.keys("train", 3)


@pytest.mark.parametrize("stage", ["train", "validate"])
def test_an_exception_in_training_leaves_no_worker(photos, tmp_path, children, stage):
    with pytest.raises(ArithmeticError):
        fitted(tmp_path, module(photos, workers=2), Net(fails_at=stage))
    assert children() == set()


def test_two_fits_by_one_data_module_or_one_loader(photos, tmp_path):
    data = module(photos, workers=1)
    loader = module(photos, workers=1).train_dataloader()
    for source in 2 * [{"datamodule": data}] + 2 * [{"train_dataloaders": loader}]:
        net = Net()
        trainer(tmp_path).fit(net, **source)
        assert sorted(net.keys("train")[0]) == ALL
    loader.close()


class Measure(Callback):
    """Measures another network with the same data, by a Trainer of its own: after the hook of that name."""

    def __init__(self, folder, hook, fails):
        self.net, self.outer = Net("validate" if fails else None), []
        setattr(self, hook, partial(self.measure, folder))

    def measure(self, folder, outer, net, *_, stage=None):
        if len(self.outer) < 2:
            self.outer.append(outer)
            before = outer.datamodule.state_dict()
            with suppress(ArithmeticError):
                trainer(folder).validate(self.net, datamodule=outer.datamodule, verbose=False)
            assert outer.datamodule.trainer is outer and outer.datamodule.state_dict() == before


@pytest.mark.parametrize(
    "hook",
    [
        *("setup", "on_fit_start", "on_sanity_check_start", "on_validation_batch_end", "on_validation_end"),
        *("on_train_start", "on_train_batch_end", "on_train_epoch_end"),
    ],
)
@pytest.mark.parametrize(("workers", "fails"), [(0, False), (1, True)])
def test_a_trainer_within_the_training_of_another(photos, tmp_path, hook, workers, fails, children):
    def batches(*callbacks):
        data = module(photos, augment=Augment(flip=0.5, affine=Affine(30)), workers=workers)
        net = fitted(tmp_path, data, max_epochs=3, callbacks=list(callbacks))
        assert data.trainer is net.trainer and children() == set()
        assert data.state_dict()["train"]["batches"] == 6
        return [batch for stage in ("train", "validate") for batch in net.seen[stage]]

    inner = Measure(tmp_path, hook, fails)
    for one, other in zip(batches(), batches(inner), strict=True):
        assert one.key == other.key and torch.equal(one.image, other.image)
    assert len(inner.net.seen["validate"]) == len(inner.outer) * (1 if fails else 6) > 0


@pytest.mark.parametrize("loaded", [False, True])
def test_a_trainer_that_measures_leaves_a_loop_without_one_alone(photos, tmp_path, loaded):
    data, alone = module(photos, workers=1), module(photos)
    expected = [[batch.key for batch in alone.train_dataloader()] for _ in range(3)]
    validate = partial(trainer(tmp_path).validate, Net(), datamodule=data, verbose=False)
    batches = iter(data.train_dataloader())
    found = [next(batches).key]
    validate()
    assert found + [batch.key for batch in batches] == expected[0]
    validate()
    if loaded:
        data.load_state_dict({**data.state_dict(), "train": {**data.state_dict()["train"], "batches": 2}})
        validate()
        assert [batch.key for batch in data.train_dataloader()] == expected[0][2:]
    for epoch in expected[1:]:
        assert [batch.key for batch in data.train_dataloader()] == epoch
        validate()
    data.teardown()


def test_a_training_within_the_training_of_another_is_refused(photos, tmp_path):
    class Train(Callback):
        def on_train_batch_end(self, outer, *_):
            trainer(tmp_path).fit(Net(), datamodule=outer.datamodule)

    with pytest.raises(RuntimeError, match="another Trainer trains with this ShardDataModule"):
        fitted(tmp_path, module(photos), callbacks=[Train()])


@pytest.mark.quick
def test_prepare_runs_before_anything_is_opened(shard_of, tmp_path):
    calls = []

    def prepare():
        calls.append(1)
        shard_of(sample(0), sample(1), name="late.tar")

    def data():
        split = Split(tmp_path / "late.tar", CenterCrop(16))
        return ShardDataModule(split, val=split, workers=0, prepare=prepare, keys=True, allow_overlap=True)

    plain = data()
    assert len(list(plain.train_dataloader())) == len(list(plain.val_dataloader())) == 1
    assert len(calls) == 1, "once, for all loaders"
    (tmp_path / "late.tar").unlink()
    net = fitted(tmp_path, data())
    assert sorted(net.keys("train")[0]) == ["k0000", "k0001"]


@pytest.mark.parametrize("form", ["plain", "augmented"])
def test_a_new_train_loader_goes_on_with_the_next_epoch(photos, children, form):
    def epoch(data):
        loader = data.train_dataloader()
        return [batch.key for batch in (loader if form == "plain" else data.augmented(loader))]

    data, alone = (module(photos, augment=Augment(), workers=number) for number in (1, 0))
    loader = alone.train_dataloader()
    expected = [[batch.key for batch in loader] for _ in range(4)]
    found = []
    for _ in range(3):
        found.append(epoch(data))
        assert len(children()) == 1, "the loader of the epoch before is closed"
    assert found == expected[:3]
    new = data.train_dataloader()
    assert (new.state_dict()["epoch"], new.state_dict()["batches"]) == (3, 0)
    again = data.train_dataloader()
    again.load_state_dict(loader.state_dict())  # of the end of epoch 3
    again.load_state_dict({**loader.state_dict(), "batches": 2})
    later = data.train_dataloader()
    assert [batch.key for batch in later] == expected[3][2:], "a position that was not used yet goes over"
    data.teardown()
    assert epoch(data) == expected[0], "and begins again after teardown()"
    data.teardown()


def test_loops_that_are_left_early_leave_no_workers_behind(photos):
    data, loaders = module(photos, workers=0, threads=1), []
    for _ in range(3):
        loader = data.train_dataloader()
        loaders.append(weakref.ref(loader))
        for _ in loader:
            break
    assert loader.sampler.epoch == 3
    del loader, _
    gc.collect()
    assert [found() is None for found in loaders] == [True, True, False], (
        "the last one is needed for the state"
    )
    data.teardown()


def test_a_plain_loop_needs_no_setup_and_settings_reach_the_loaders(photos):
    data = module(photos, batch_size=7, drop_last=True, keys=False, augment=Augment())
    batches = list(data.train_dataloader())
    assert [(len(images), len(labels)) for images, labels in batches] == [(7, 7)] * 3
    assert batches[0].image.dtype == torch.uint8 and batches[0]._fields == ("image", "label")
    assert sum(len(labels) for _, labels in data.val_dataloader()) == 23, "drop_last is for training"
    loader = module(photos, global_batch_size=23, max_pixels=12345).train_dataloader()
    assert (len(loader), loader.fetcher.max_pixels) == (1, 12345)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (
            ShardDataModule,
            "num_workers",
            "ShardDataModule() has no argument 'num_workers'; did you mean 'workers'?",
        ),
        (ShardDataModule, "train_shards", "give train=Split(shards=...)"),
        (ShardDataModule, "shuffle", "give it to a Split(shuffle=...)"),
        (ShardDataModule, "batchsize", "did you mean 'batch_size'?"),
        (Split, "transforms", "Split() has no argument 'transforms'; did you mean 'transform'?"),
        (Split, "drop_last", "ShardDataModule has drop_last="),
        (Split, "num_workers", "ShardDataModule has workers="),
        (build_cache, "dst", "build_cache() has no argument 'dst'; did you mean 'dest'?"),
        (build_cache, "workers", "build_cache() has no argument 'workers'; give executor=N"),
        (build_cache, "shuffle", "give layout=Layout(shuffle=...)"),
        (Split, "zzz", "Split() has no argument 'zzz'"),
        (Loader, "num_workers", "Loader() has no argument 'num_workers'; did you mean 'workers'?"),
        (Loader, "shuffle", "give it to the split: Split(shuffle=...)"),
        (Loader, "drop_last", "give config=LoaderConfig(drop_last=...)"),
        (Loader, "pin_memory", "leave it out: device='cuda'"),
        (Augment, "colour", "Augment() has no argument 'colour'; did you mean 'color'?"),
    ],
)
def test_unknown_arguments_get_a_hint(kind, name, text):
    with pytest.raises(TypeError, match=re.escape(text)):
        kind(**{"shards": "x"} if kind is Split else {}, **{name: 2})
    assert not any(part.kind is part.VAR_KEYWORD for part in inspect.signature(kind).parameters.values())


@pytest.mark.quick
def test_errors(photos, tmp_path):
    with pytest.raises(ValueError, match="one split"):
        ShardDataModule()
    with pytest.raises(ValueError, match="no predict split"):
        ShardDataModule(Split(photos, CenterCrop(16))).predict_dataloader()
    with pytest.raises(ShardError, match=r"nowhere\.tar"):
        fitted(tmp_path, module(tmp_path / "nowhere.tar"))


DDP = """
import json, os
from helpers.training import Net, module, trainer

net, folder, out = Net(), {photos!r}, {out!r}
seed = {seeds}[int(os.environ.get("LOCAL_RANK", 0))]
run = trainer(out, devices=2, strategy="ddp", max_epochs=2, num_sanity_val_steps=0)
run.fit(net, datamodule=module(folder, workers=1, seed=seed))
keys = [[[key for key in batch.key] for batch in net.seen[stage]] for stage in ("train", "validate")]
open(out + "/rank" + str(run.global_rank) + ".json", "w").write(json.dumps(keys))
"""


@pytest.mark.slow
def test_two_processes_see_every_sample_exactly_once(photos, tmp_path):
    ranks = run_two_ranks(tmp_path, DDP.format(photos=str(photos), out=str(tmp_path), seeds=(0, 0)))
    alone = module(photos, global_batch_size=8).train_dataloader()
    train = [batches for batches, _ in ranks]
    assert len(train[0]) == len(train[1]) == 6
    steps = [first + second for first, second in zip(*train, strict=True)]
    assert steps == [batch.key for _ in range(2) for batch in alone], "as one process sees them"
    assert sorted(key for step in steps[:3] for key in step) == ALL
    validated = [key for _, batches in ranks for batch in batches for key in batch]
    assert sorted(validated) == sorted(ALL * 2)


@pytest.mark.slow
def test_ranks_with_different_batches_raise(photos, tmp_path):
    script = DDP.format(photos=str(photos), out=str(tmp_path), seeds=(0, 1))
    done = run_file(tmp_path / "unequal.py", script, 120)
    assert done.returncode != 0
    text = r"ShardError: the train split is \{.*'seed': 0\} on rank 0 but \{.*'seed': 1\} on rank 1"
    assert re.search(text, done.stderr)


def test_substituted_images_are_logged(shard_of, tmp_path):
    path = shard_of(*(sample(number, b"" if number == 3 else None) for number in range(8)))
    data = ShardDataModule(Split(path, CenterCrop(16)), batch_size=4, workers=1)
    with pytest.warns(UserWarning, match="takes its place"):
        net = fitted(tmp_path, data, callbacks=[DataStallMonitor()])
    assert net.trainer.callback_metrics["data/substituted"] == 1


def test_images_that_metrics_do_not_count_are_summed_up_once(shard_of):
    path = shard_of(*(sample(number, b"" if number in (3, 5) else None) for number in range(8)))
    split = Split(path, CenterCrop(16))
    data = ShardDataModule(split, {"own": split}, allow_overlap=True, batch_size=3, workers=0)
    (val,) = data.val_dataloader()
    for loader, epoch, texts in (
        (val, 0, ["val/own: 2 of 8 images"]),
        (val, 1, []),
        (data.train_dataloader(), 0, []),
    ):
        with pytest.warns(UserWarning, match="takes its place") as warned:
            list(islice(loader, len(loader)))  # Lightning does not ask for more either
        found = [str(entry.message) for entry in warned if "takes its place" not in str(entry.message)]
        assert [text.partition(" cannot be decoded: metrics count")[0] for text in found] == texts, epoch


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_a_copy_of_a_used_data_module_goes_on_by_itself(photos, copied):
    data = module(photos, workers=0)
    loader = iter(data.train_dataloader())
    first = next(loader).key
    again = copied(data)
    theirs = [batch.key for batch in again.train_dataloader()]
    rest = [batch.key for batch in loader]
    assert theirs == rest and sorted(key for keys in (first, *rest) for key in keys) == ALL
    again.teardown()
    assert [batch.key for batch in data.val_dataloader()], "the copy closes its own loaders only"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
@pytest.mark.parametrize("before", ["a look", "a training"])
def test_a_copy_under_a_trainer_begins_at_the_first_batch(photos, tmp_path, copied, before):
    data = module(photos)
    if before == "a training":
        fitted(tmp_path, data)
    else:
        next(iter(data.train_dataloader()))
    assert sorted(fitted(tmp_path, copied(data)).keys("train")[0]) == ALL


def test_a_data_module_without_a_trainer_goes_on_from_its_state(photos, tmp_path):
    data = module(photos)
    epochs = [[batch.key for batch in module(photos).train_dataloader()]]
    batches = iter(data.train_dataloader())
    next(batches)
    state = data.state_dict()
    rest = [batch.key for batch in batches]
    following = [batch.key for batch in data.train_dataloader()]
    epochs.append(following)
    for again in (module(photos), data):
        again.load_state_dict(state)
        assert again.state_dict()["train"] == state["train"], "before a loader is made"
        for expected in (rest, following):
            assert [batch.key for batch in again.train_dataloader()] == expected
    fitted(tmp_path, data)
    assert [[batch.key for batch in data.train_dataloader()] for _ in range(2)] == epochs, "after a fit, too"
    for again in (module(photos), data):
        again.load_state_dict(module(photos).state_dict())
        assert [batch.key for batch in again.train_dataloader()] == epochs[0], "a state of no loader"
        again.load_state_dict(state)
        again.teardown()
    data.load_state_dict(state)
    for copied in (copy.deepcopy(data), data):
        assert [batch.key for batch in copied.train_dataloader()] == rest, "loaded after a fit"
    again = module(photos)
    again.load_state_dict(state)
    assert sorted(fitted(tmp_path, again).keys("train")[0]) == ALL, "a Trainer has ckpt_path"


@pytest.mark.parametrize("seed", [-3, 1 << 63])
def test_a_seed_out_of_range_is_refused_at_once(photos, seed):
    with pytest.raises(ValueError, match=rf"seed={seed} must be"):
        module(photos, seed=seed)
    with pytest.raises(ValueError, match=rf"seed={seed} must be"):
        Layout(samples_per_shard=2, seed=seed)
    assert next(iter(module(photos, workers=0, seed=(1 << 63) - 1).train_dataloader())).key


def test_keys_and_members_are_no_ambiguous_batch_size(photos):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        data = module(photos, keys=True)
        batch = next(iter(data.train_dataloader()))
        for _ in range(2):  # the second time after setup()
            warning_cache.clear()  # of Lightning, which warns once per process
            assert extract_batch_size(batch) == len(batch.image) and len(warned) == 1
            data.setup("fit")


def test_a_data_module_shows_what_it_loads(photos):
    split = Split(photos, CenterCrop(16))
    expected = f"ShardDataModule(train={str(photos)!r}, batch_size=3)"
    assert repr(ShardDataModule(split, batch_size=3)) == expected
    assert repr(ShardDataModule(val=split, global_batch_size=6)).endswith(", global_batch_size=6)")


def test_a_data_module_is_no_loader_and_its_error_has_the_loader(photos):
    data = module(photos)
    for use in (iter, len, list, lambda data: data[0], lambda data: next(iter(DataLoader(data, 4)))):
        with pytest.raises(TypeError, match=r"train_dataloader\(\).*DataLoader\(tarpeg\.Dataset"):
            use(data)
    assert data, "without asking for its length"


def test_a_batch_norm_with_one_sample_names_the_remedy(photos, tmp_path):
    net = Net()
    net.net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), net.net)
    net.net.weight = net.net[1].weight
    data = module(photos, batch_size=22)  # of 23 samples
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        fitted(tmp_path, data, net)
    assert any("drop_last=True" in note for note in getattr(caught.value, "__notes__", ["drop_last=True"]))


def test_a_later_fit_reads_what_is_there_then(tmp_path):
    def shard(number):
        write_tar(
            tmp_path / f"train-{number}.tar", [each for i in range(4) for each in sample(4 * number + i)]
        )

    def table(offset):
        rows = [f"k{number:04d},{number + offset}\n" for number in range(12)]
        (tmp_path / "labels.csv").write_text("key,label\n" + "".join(rows))

    shard(0)
    table(0)
    given = {"labels": tmp_path / "labels.csv", "key": "key", "target": "label"}
    split = Split(f"{tmp_path}/train-*.tar", CenterCrop(16), **given)
    data = ShardDataModule(split, batch_size=4, workers=0, keys=True)
    net = Net()
    net.net = torch.nn.Linear(3, 99)

    def labels():
        net.seen["train"].clear()
        trainer(tmp_path, max_epochs=1).fit(net, data)
        return sorted(int(label) for batch in net.seen["train"] for label in batch.label)

    assert labels() == [0, 1, 2, 3]
    shard(1)
    table(20)
    assert labels() == [*range(20, 28)]
    next(iter(data.train_dataloader()))  # a look
    table(30)
    assert labels() == [*range(30, 38)]
    table(35)
    net.fails_at = "train"
    with pytest.raises(ArithmeticError):
        labels()
    net.fails_at = None
    table(50)
    assert labels() == [*range(50, 58)]
    data.teardown()
    table(40)
    assert sorted(int(label) for batch in data.train_dataloader() for label in batch.label) == [
        *range(40, 48)
    ]


@pytest.mark.parametrize("reload", [0, 1])
def test_loaders_that_lightning_reloads_read_what_is_there_then(tmp_path, reload):
    def write(epoch):
        members = [each for i in range(4) for each in sample(4 * epoch + i)]
        write_tar(tmp_path / f"train-{epoch}.tar", members)
        rows = [f"k{number:04d},{10 * epoch + 1}\n" for number in range(20)]
        (tmp_path / "labels.csv").write_text("key,label\n" + "".join(rows))

    class Writes(Callback):
        def on_train_epoch_end(self, trainer, net):
            write(trainer.current_epoch + 1)

    write(0)
    given = {"labels": tmp_path / "labels.csv", "key": "key", "target": "label"}
    data = ShardDataModule(
        Split(f"{tmp_path}/train-*.tar", CenterCrop(16), **given), batch_size=4, workers=0, keys=True
    )
    net = Net()
    net.net = torch.nn.Linear(3, 99)
    run = trainer(
        tmp_path,
        max_epochs=3,
        limit_val_batches=0,
        callbacks=[Writes()],
        reload_dataloaders_every_n_epochs=reload,
    )
    run.fit(net, data)
    found = [
        sorted(
            int(label)
            for batch, epoch in zip(net.seen["train"], net.epochs, strict=True)
            if epoch == each
            for label in batch.label
        )
        for each in range(3)
    ]
    assert found == [[10 * each * reload + 1] * 4 * (each * reload + 1) for each in range(3)]


@pytest.mark.parametrize("has_val", [False, True])
@pytest.mark.parametrize("then", ["gone", "renamed", "listed"])
def test_classes_that_a_reload_numbers_anew_are_an_error(tmp_path, has_val, then):
    write_tar(tmp_path / "a.tar", [each for i in range(6) for each in sample(i)])
    write_tar(tmp_path / "b.tar", [each for i in range(6) for each in sample(i)])

    write = partial(write_table, tmp_path / "labels.csv")

    class Writes(Callback):
        def on_train_epoch_end(self, trainer, net):
            write(
                *{"gone": ("bee", "bee", "cat"), "listed": ("bee", "bee", "cat")}.get(
                    then, ("ant", "bee", "cow")
                )
            )

    write("ant", "bee", "cat")
    target = Label("label", classes=["ant", "bee", "cat"]) if then == "listed" else "label"
    given = {"labels": tmp_path / "labels.csv", "key": "key", "target": target}
    splits = [Split(f"{tmp_path}/{name}.tar", CenterCrop(16), **given) for name in "ab"]
    data = ShardDataModule(*splits[: 1 + has_val], batch_size=3, workers=0, keys=True)
    net = Net()
    run = trainer(tmp_path, max_epochs=2, callbacks=[Writes()], reload_dataloaders_every_n_epochs=1)
    if then == "listed":
        run.fit(net, data)
        assert {int(label) for batch in net.seen["train"][2:] for label in batch.label} == {1, 2}
    elif then == "renamed":
        with pytest.warns(
            UserWarning, match="label 2 was 'cat' before this reload and is 'cow' now: right if"
        ):
            run.fit(net, data)
    else:
        text = r"label 0 was 'ant' before this reload and is 'bee' now: .*give classes=\[...\] to its Label"
        with pytest.raises(ShardError, match=text):
            run.fit(net, data)


def test_a_split_that_is_replaced_is_opened(tmp_path):
    for number in range(2):
        members = [each for i in range(4) for each in sample(4 * number + i)]
        write_tar(tmp_path / f"{number}.tar", members)
    data = ShardDataModule(Split(f"{tmp_path}/0.tar", CenterCrop(16)), batch_size=4, workers=0, keys=True)
    net = Net()
    trainer(tmp_path, max_epochs=1).fit(net, data)
    data.splits["train"] = Split(f"{tmp_path}/1.tar", CenterCrop(24))
    trainer(tmp_path, max_epochs=1).fit(net, data)
    assert [{*batch.key} for batch in net.seen["train"]] == [
        {f"k{number:04d}" for number in numbers} for numbers in (range(4), range(4, 8))
    ]
    assert net.seen["train"][1].image.shape[-2:] == (24, 24)
    data.splits["train"] = Split(f"{tmp_path}/0.tar", CenterCrop(8))
    (batch,) = data.train_dataloader()
    assert {*batch.key} == {f"k{number:04d}" for number in range(4)} and batch.image.shape[-1] == 8


def test_a_split_that_is_replaced_within_a_run_leaves_the_others_as_they_were_read(tmp_path):
    """Of a table that somebody edits meanwhile, the labels of the training are those of before."""
    for name in "abc":
        write_tar(tmp_path / f"{name}.tar", [each for i in range(6) for each in sample(i)])

    write = partial(write_table, tmp_path / "labels.csv")

    write("ant", "bee", "cat")
    given = {"labels": tmp_path / "labels.csv", "key": "key", "target": "label"}
    train, val, other = (Split(f"{tmp_path}/{name}.tar", CenterCrop(16), **given) for name in "abc")
    data = ShardDataModule(train, val, batch_size=3, workers=0, keys=True)

    class Measures(Callback):
        def on_train_epoch_end(self, run, net):
            if run.current_epoch == 0:
                write("zebra", "bee", "cat")
                data.splits["val"] = other
                with pytest.raises(ShardError, match="label 0 is 'ant' in train and 'bee' in val"):
                    trainer(tmp_path).validate(Net(), datamodule=data)
                del data.splits["val"]

    net = Net()
    trainer(tmp_path, max_epochs=2, callbacks=[Measures()], limit_val_batches=0).fit(net, data)
    labels = {
        pair for batch in net.seen["train"] for pair in zip(batch.key, batch.label.tolist(), strict=True)
    }
    assert labels == {(f"k{number:04d}", number % 3) for number in range(6)}
    assert data.state_dict()["classes"] == ["ant", "bee", "cat"]


@pytest.mark.parametrize("then", ["test", "validate", "looks", "sheet", "loop"])
def test_a_checkpoint_after_a_fit_has_place_and_names_of_its_training(tmp_path, then):
    for name in "abc":
        write_tar(tmp_path / f"{name}.tar", [each for i in range(6) for each in sample(i)])

    write = partial(write_table, tmp_path / "labels.csv")

    write("ant", "bee", "cat")
    given = {"labels": tmp_path / "labels.csv", "key": "key", "target": "label"}
    data = ShardDataModule(
        *(Split(f"{tmp_path}/{name}.tar", CenterCrop(16), **given) for name in "abc"), batch_size=2, workers=0
    )
    run = trainer(tmp_path, max_epochs=2)
    run.fit(Net(), data)

    def saved():
        run.save_checkpoint(tmp_path / "later.ckpt")
        state = torch.load(tmp_path / "later.ckpt", weights_only=True)["ShardDataModule"]
        return state["train"]["epoch"], state["train"]["batches"], state["classes"]

    assert saved() == (1, 3, ["ant", "bee", "cat"])
    write("zebra", "bee", "cat")
    if then == "looks":
        for _ in range(3):
            next(iter(data.train_dataloader()))
    elif then == "sheet":
        data.teardown()
        contact_sheet(data, tmp_path / "sheet.png")
    elif then == "loop":
        for _ in range(2):
            list(data.train_dataloader())
        own = data.state_dict()  # of the loop, by hand
        assert (own["train"]["epoch"], own["train"]["batches"]) == (1, 3)
        data.teardown()
        assert data.state_dict() == own and own["classes"] == ["bee", "cat", "zebra"]
    else:
        text = "label 0 was 'ant' in the training before and is 'bee' now: .* network of the new labels alone"
        with pytest.warns(UserWarning, match=text):
            getattr(run, then)(Net(), data)
    assert saved() == (1, 3, ["ant", "bee", "cat"])
    run = trainer(tmp_path, max_epochs=1)
    run.fit(Net(), data)
    assert saved() == (0, 3, ["bee", "cat", "zebra"])


@pytest.mark.parametrize("before", ["by hand", "callback fails"])
def test_a_fit_reads_its_table_whatever_was_before(tmp_path, before):
    write_tar(tmp_path / "a.tar", [each for i in range(6) for each in sample(i)])

    write = partial(write_table, tmp_path / "labels.csv")

    class Fails(Callback):
        def on_train_batch_end(self, run, *_):
            if run.global_step == 1:
                raise ArithmeticError

        def on_exception(self, *_):
            raise OSError("disk full")

    write("ant", "bee", "cat")
    given = {"labels": tmp_path / "labels.csv", "key": "key", "target": "label"}
    data = ShardDataModule(
        Split(f"{tmp_path}/a.tar", CenterCrop(16), **given), batch_size=2, workers=0, keys=True
    )
    if before == "by hand":
        run = trainer(tmp_path, max_epochs=1)
        data.trainer = run
        data.setup("fit")
        assert len(data.train_dataloader()) == 3
    else:
        run = trainer(tmp_path, max_epochs=1, callbacks=[Fails()])
        with pytest.raises(OSError, match="disk full"):
            run.fit(Net(), data)
    write("zebra", "bee", "cat")
    net = Net()
    run.fit(net, data)
    found = {
        pair for batch in net.seen["train"] for pair in zip(batch.key, batch.label.tolist(), strict=True)
    }
    assert found == {(f"k{number:04d}", (number + 2) % 3) for number in range(6)}
    assert data.state_dict()["classes"] == ["bee", "cat", "zebra"]


@pytest.mark.parametrize("hook", ["on_save_checkpoint", "teardown", "on_exception", "on_train_epoch_end"])
@pytest.mark.parametrize("form", ["split", "dict", "cached"])
def test_a_look_in_any_hook_leaves_run_and_checkpoint(tmp_path, hook, form):
    write_tar(tmp_path / "a.tar", [each for i in range(6) for each in sample(i)])

    class Own(ShardDataModule):
        def train_dataloader(self):
            if form == "cached":
                self.kept = getattr(self, "kept", None) or super().train_dataloader()
                return self.kept
            return {"own": super().train_dataloader()} if form == "dict" else super().train_dataloader()

    class Reads(Callback):
        pass

    def read(self, run, *_, stage=None):
        next(iter(ShardDataModule.train_dataloader(run.datamodule)))

    setattr(Reads, hook, read)

    class Saves(Callback):
        def on_train_batch_end(self, run, *_):
            run.save_checkpoint(tmp_path / f"{run.global_step}.ckpt")
            if hook == "on_exception" and run.global_step == 5:
                raise ArithmeticError

    class Own2(Net):
        def training_step(self, batch, index):
            return super().training_step(batch["own"] if isinstance(batch, dict) else batch, index)

    def seen(*callbacks):
        augment = Augment(flip=0.5, affine=Affine(20))
        data = Own(Split(f"{tmp_path}/a.tar", CenterCrop(16)), batch_size=2, workers=0, augment=augment)
        net, run = Own2(), trainer(tmp_path, max_epochs=3, callbacks=[*callbacks, Saves()])
        with pytest.raises(ArithmeticError) if hook == "on_exception" else nullcontext():
            run.fit(net, data)
        run.save_checkpoint(tmp_path / "end.ckpt")
        places = []
        for name in (*range(1, 6 if hook == "on_exception" else 10), "end"):
            saved = torch.load(tmp_path / f"{name}.ckpt", weights_only=True)
            state = saved[Own.__qualname__]["train"]
            places.append((state["epoch"], state["batches"]))
        return torch.cat([batch.image for batch in net.seen["train"]]), places

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="augment= is not applied to these")
        (images, places), (expected, wanted) = seen(Reads()), seen()
    assert torch.equal(images, expected) and places == wanted
    assert len({*images.flatten(1).sum(1).tolist()}) > 6  # augmented otherwise in each epoch


def test_a_split_that_a_hook_replaces_is_compared(tmp_path):
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", [each for i in range(6) for each in sample(i)])
    write_table(tmp_path / "one.csv", "ant", "bee", "cat")
    write_table(tmp_path / "two.csv", "bee", "cat", "dog")

    def split(name, table):
        return Split(
            f"{tmp_path}/{name}.tar", CenterCrop(16), labels=tmp_path / table, key="key", target="label"
        )

    class Replaces(Callback):
        def on_train_epoch_end(self, run, net):
            run.datamodule.splits["val"] = split("b", "two.csv")
            run.datamodule.val_dataloader()

    data = ShardDataModule(split("a", "one.csv"), split("b", "one.csv"), batch_size=3, workers=0)
    with pytest.raises(ShardError, match="label 0 is 'ant' in train and 'bee' in val"):
        trainer(tmp_path, max_epochs=1, callbacks=[Replaces()]).fit(Net(), data)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_measure_after_a_resumed_fit_is_compared_with_what_it_has_learnt(tmp_path, resumed):
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", [each for i in range(6) for each in sample(i)])

    write = partial(write_table, tmp_path / "labels.csv")

    given = {"labels": tmp_path / "labels.csv", "key": "key", "target": "label"}

    def made():
        return ShardDataModule(
            *(Split(f"{tmp_path}/{name}.tar", CenterCrop(16), **given) for name in "ab"),
            batch_size=2,
            workers=0,
        )

    def fit(data, path=None, epochs=1):
        run = trainer(tmp_path, max_epochs=epochs)
        run.fit(Net(), data, ckpt_path=path, weights_only=False)
        run.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return run

    write("zebra", "bee", "cat")
    fit(made(), epochs=3)
    write("ant", "bee", "cat")
    fit(made())
    data = made()
    run = fit(data, tmp_path / "1.ckpt" if resumed else None, 2)
    write("zebra", "bee", "cat")
    with pytest.warns(UserWarning, match="label 0 was 'ant' in the training before and is 'bee' now"):
        run.validate(Net(), data)
    with warnings.catch_warnings():  # a checkpoint of the new labels, and one of the old
        warnings.filterwarnings("error", message=".*in the training before")
        run.validate(Net(), data, ckpt_path=tmp_path / "3.ckpt", weights_only=False)
        with pytest.raises(ShardError, match="label 0 was 'ant' when the checkpoint was made"):
            run.validate(Net(), data, ckpt_path=tmp_path / "2.ckpt", weights_only=False)
    run.validate(Net(), data, ckpt_path=tmp_path / "3.ckpt", weights_only=False)
    run.save_checkpoint(tmp_path / "after.ckpt")
    saved = torch.load(tmp_path / "after.ckpt", weights_only=True)["ShardDataModule"]
    assert saved["classes"] == ["bee", "cat", "zebra"]


def test_a_state_that_is_loaded_after_a_fit_is_the_place(tmp_path):
    write_tar(tmp_path / "a.tar", [each for i in range(6) for each in sample(i)])
    data = ShardDataModule(Split(f"{tmp_path}/a.tar", CenterCrop(16)), batch_size=2, workers=0)
    next(iter(data.train_dataloader()))
    state = data.state_dict()
    trainer(tmp_path, max_epochs=2).fit(Net(), data)
    data.load_state_dict(state)
    assert data.state_dict()["train"] == state["train"]
    data.train_dataloader()
    assert data.state_dict()["train"] == state["train"]


@pytest.mark.parametrize("form", ["file", "list"])
@pytest.mark.parametrize("how", ["fits", "plain"])
def test_a_subset_that_changes_gets_its_labels(tmp_path, form, how):
    """Active learning: one table has all labels, and the chosen samples change from fit to fit."""
    write_tar(tmp_path / "a.tar", [each for i in range(12) for each in sample(i)])
    rows = [f"k{number:04d},{number + 50}\n" for number in range(12)]
    (tmp_path / "labels.csv").write_text("key,label\n" + "".join(rows))
    chosen = {"file": tmp_path / "chosen.npy", "list": []}[form]

    def choose(*numbers):
        if form == "file":
            np.save(chosen, np.array(numbers))
        else:
            chosen[:] = numbers

    choose(0, 1, 2)
    split = Split(
        f"{tmp_path}/a.tar",
        CenterCrop(16),
        subset=chosen,
        labels=tmp_path / "labels.csv",
        key="key",
        target="label",
    )
    data = ShardDataModule(split, batch_size=4, workers=0, keys=True)
    for numbers in ((0, 1, 2), (5, 6, 7, 8), (2, 3)):
        choose(*numbers)
        if how == "fits":
            net = Net()
            net.net = torch.nn.Linear(3, 99)
            trainer(tmp_path, max_epochs=1).fit(net, data)
            batches = net.seen["train"]
        else:
            batches = list(data.train_dataloader())
        found = {pair for batch in batches for pair in zip(batch.key, batch.label.tolist(), strict=True)}
        assert found == {(f"k{number:04d}", number + 50) for number in numbers}


@pytest.mark.parametrize("is_mixture", [False, True])
def test_a_subset_that_grows_goes_on_at_the_end_of_an_epoch(tmp_path, is_mixture):
    """The table of its labels is the same one; within an epoch, other samples are an error."""
    write_tar(tmp_path / "a.tar", [each for i in range(24) for each in sample(i)])
    table = tmp_path / "labels.csv"

    def write(first):
        rows = [f"k{number:04d},{number + first}\n" for number in range(24)]
        table.write_text("key,label\n" + "".join(rows))

    def data(subset):
        given = {"labels": table, "key": "key", "target": "label"}
        split = Split(f"{tmp_path}/a.tar", CenterCrop(16), subset=subset, **given)
        train = Mixture({"a": split}, repeat={"a": 1}) if is_mixture else split
        return ShardDataModule(train, batch_size=4, workers=0)

    def state(batches):
        made = data(range(8))
        loader = iter(made.train_dataloader())
        for _ in range(batches):
            next(loader)
        return made.state_dict()

    write(0)
    states = [state(batches) for batches in (1, 2)]  # within an epoch, and at its end
    for subset in (range(12), None, [*range(7), 9], 0.5):
        with pytest.raises(ResumeError):
            next(iter(resumed(data(subset), states[0])))
        if not is_mixture:
            count = sum(len(label) for _, label in resumed(data(subset), states[1]))
            assert count == {"None": 24, "0.5": 12, "range(0, 12)": 12}.get(str(subset), 8)
    write(1)
    for each in states:
        with pytest.raises(ResumeError, match=r"is of other data: labels \(24 of kind integer"):
            resumed(data(range(8)), each)


def resumed(data, state):
    data.load_state_dict(state)
    return data.train_dataloader()


def test_a_subset_and_its_table_that_change_without_a_trainer_are_read_again_by_teardown(tmp_path):
    """Names in a table are numbered in sorted order: a new one moves those behind it, also in val."""
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", [each for i in range(12) for each in sample(i)])
    chosen = []

    write = partial(write_table, tmp_path / "labels.csv", samples=12)

    given = {"labels": tmp_path / "labels.csv", "key": "key", "target": "label"}
    data = ShardDataModule(
        Split(f"{tmp_path}/a.tar", CenterCrop(16), subset=chosen, **given),
        Split(f"{tmp_path}/b.tar", CenterCrop(16), **given),
        batch_size=4,
        workers=0,
        keys=True,
    )

    def labels(loader):
        return {pair for batch in loader for pair in zip(batch.key, batch.label.tolist(), strict=True)}

    write("ant", "bee", "cat")
    for numbers in (range(6), range(9)):
        chosen[:] = numbers
        train, val = labels(data.train_dataloader()), labels(data.val_dataloader())
        assert len(train) == len(numbers) and train <= val and len(val) == 12
        assert data.state_dict()["classes"] == ["ant", "bee", "cat"]
    write("ant", "bat", "bee", "cat")
    assert labels(data.train_dataloader()) == train
    chosen[:] = range(12)
    with pytest.raises(ShardError, match=r"labels='.*' has changed since it was read, .* data\.teardown\(\)"):
        data.train_dataloader()
    data.teardown()
    assert labels(data.train_dataloader()) == labels(data.val_dataloader())
    assert data.state_dict()["classes"] == ["ant", "bat", "bee", "cat"]


class Delegating(Net):
    """A network with the loaders of a data module that another Trainer has."""

    def __init__(self, data):
        super().__init__()
        self.data = [data]

    def setup(self, stage):
        self.data[0].setup(stage)

    def train_dataloader(self):
        return self.data[0].train_dataloader()

    def val_dataloader(self):
        return self.data[0].val_dataloader()


@pytest.mark.parametrize("look", ["length", "sheet", "batch"])
@pytest.mark.parametrize("at", ["before", "within", "after a state"])
def test_a_look_beside_a_plain_loop_is_none_of_its_epochs(tmp_path, look, at):
    write_tar(tmp_path / "a.tar", [each for i in range(10) for each in sample(i)])

    def made():
        split = Split(f"{tmp_path}/a.tar", CenterCrop(16))
        return ShardDataModule(split, batch_size=2, workers=0, keys=True, drop_last=True)

    def act(data):
        if look == "sheet":
            contact_sheet(data, tmp_path / "sheet.png", samples=2)
        elif look == "length":
            assert len(data.train_dataloader()) == 5
        else:
            next(iter(data.source_dataloader("train")))

    plain = made().train_dataloader()
    expected = [[batch.key for batch in plain] for _ in range(3)]
    data = made()
    loader = data.train_dataloader()
    if at == "before":
        act(data)
        assert [batch.key for batch in loader] == expected[0]
        return
    assert [batch.key for batch in loader] == expected[0]
    rows = iter(loader)
    assert [next(rows).key for _ in range(2)] == expected[1][:2]
    if at == "within":
        act(data)
    state = data.state_dict()
    assert (state["train"]["epoch"], state["train"]["batches"]) == (1, 2)
    assert [batch.key for batch in rows] == expected[1][2:]
    if at == "within":
        assert [batch.key for batch in data.train_dataloader()] == expected[2]
        return
    for is_first in (True, False):  # the state is loaded before the loader is made, or after it
        other = made()
        if look == "length" and not is_first:  # after an epoch of the loader, too
            loader = other.train_dataloader()
            assert [batch.key for batch in loader] == expected[0]
            act(other)
            other.load_state_dict(state)
            assert [batch.key for batch in loader] == expected[1][2:]
            other.splits["train"] = replace(other.splits["train"])
            other.train_dataloader()
            other.load_state_dict(state)
        other = made()
        if is_first:
            other.load_state_dict(state)
        loader = other.train_dataloader()
        act(other)
        if not is_first:
            other.load_state_dict(state)
        assert [batch.key for batch in loader] == expected[1][2:]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("when", ["on_train_epoch_start", "on_train_batch_end"])
@pytest.mark.parametrize("kinds", ["flip, plain", "plain, flip", "None, flip", "flip, None"])
def test_another_augment_counts_from_the_next_epoch(tmp_path, workers, when, kinds):
    """For images, which may be uint8 or floats, as for boxes."""
    write_tar(tmp_path / "a.tar", [each for i in range(4) for each in flagged(i)])
    modules = {"flip": Augment(flip=1.0), "plain": Augment(), "None": None}
    first, second = (modules[name] for name in kinds.split(", "))
    split = Split(f"{tmp_path}/a.tar", Whole(32), targets=Boxes("json:objects"))

    class Change(Callback):
        pass

    def change(self, run, *_):
        if run.current_epoch == 1:
            run.datamodule.augment = second

    setattr(Change, when, change)

    class Looks(Net):
        def training_step(self, batch, _):
            for image, target in zip(batch.image.float(), batch.targets, strict=True):
                rows, columns = torch.where(image[0] > (image[0].min() + image[0].max()) / 2)
                corners = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
                seen.append((self.current_epoch, corners[0].item(), batch.image.is_floating_point()))
                box = target["boxes"][0].as_subclass(torch.Tensor)
                assert (box - torch.stack(corners)).abs().max() <= 1
            return self.net.weight.sum() * 0

    seen = []
    data = ShardDataModule(split, batch_size=2, workers=workers, augment=first)
    trainer(tmp_path, max_epochs=3, callbacks=[Change()]).fit(Looks(), data)
    changes = 1 if when == "on_train_epoch_start" else 2
    for epoch, left, is_float in seen:
        now = second if epoch >= changes else first
        assert is_float == (now is not None)
        assert (left > 8) == (now is modules["flip"])
    with pytest.raises(ValueError, match="augment="):
        data.augment = "flip"


def flagged(number):
    """A white rectangle on the left of a black image, and its box."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[8:24, 4:12] = 255
    objects = json.dumps({"objects": [{"bbox": [4, 8, 8, 16], "category_id": 1}]}).encode()
    image = saved(Image.fromarray(pixels), "PNG")
    return [(f"k{number}.png", image), (f"k{number}.json", objects)]


HOOKS = ("on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_end")
ACTS = {
    "setup": lambda data, _: data.setup("fit"),
    "length": lambda data, _: len(data.train_dataloader()),
    "look": lambda data, _: next(iter(data.train_dataloader())),
    "all": lambda data, _: list(data.augmented(data.train_dataloader())),
    "val": lambda data, _: next(iter(data.val_dataloader())),
    "sheet": lambda data, folder: contact_sheet(data, folder / "sheet.png"),
    "inner run": lambda data, folder: trainer(folder).validate(Net(), datamodule=data),
    "inner model": lambda data, folder: trainer(folder).validate(Delegating(data)),
    "inner fit": lambda data, folder: trainer(folder, max_epochs=1).fit(Delegating(data)),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("hook", ["setup", "on_fit_start", *HOOKS, "on_train_batch_end"])
def test_what_a_hook_reads_within_a_run_changes_nothing(tmp_path, hook, act):
    """Images are augmented by the numbers of the loader at work, and boxes follow by these."""
    members = [each for i in range(6) for each in sample(i)]
    write_tar(tmp_path / "a.tar", members)
    write_tar(tmp_path / "b.tar", members)

    class OwnSetup(ShardDataModule):
        """Lightning's own setup() does nothing, so that users do not call it."""

        def setup(self, stage=None):
            self.splits["val"] = Split(f"{tmp_path}/b.tar", CenterCrop(16))

        def teardown(self, stage=None):
            pass

    def seen(*callbacks):
        splits = [Split(f"{tmp_path}/{name}.tar", CenterCrop(16)) for name in "ab"]
        augment = Augment(flip=0.5, affine=Affine(degrees=20.0))
        kind = OwnSetup if act == "inner run" else ShardDataModule
        data = kind(*splits, batch_size=3, workers=0, augment=augment)
        net = Net()
        trainer(tmp_path, max_epochs=3, callbacks=[*callbacks]).fit(net, data)
        return torch.cat([batch.image for batch in net.seen["train"]])

    class Reads(Callback):
        pass

    setattr(Reads, hook, lambda self, run, *_, stage=None: ACTS[act](run.datamodule, tmp_path))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="augment= is not applied to these")  # true of a look
        assert torch.equal(seen(Reads()), seen())


@pytest.mark.parametrize("name", ["a.wds", "a.TAR", "part-0000"])
def test_shards_of_any_name_are_opened_again(tmp_path, name):
    net = Net()
    for number in (0, 6):
        write_tar(tmp_path / name, [each for i in range(number, number + 6) for each in sample(i)])
        if number == 0:
            data = ShardDataModule(
                Split([tmp_path / name], CenterCrop(16)), batch_size=6, workers=0, keys=True
            )
        trainer(tmp_path, max_epochs=1).fit(net, data)
    assert [sorted(batch.key)[0] for batch in net.seen["train"]] == ["k0000", "k0006"]


def test_a_checkpoint_of_one_split_does_not_go_on_with_a_mixture(tmp_path):
    write_tar(tmp_path / "a.tar", [each for i in range(4) for each in sample(i)])
    split = Split(f"{tmp_path}/a.tar", CenterCrop(16), members=("cls",))
    one, several = (
        ShardDataModule(train, batch_size=4, workers=0)
        for train in (split, Mixture({"a": split}, repeat={"a": 1}))
    )
    for each in (one, several):
        next(iter(each.train_dataloader()))
    states = [each.state_dict() for each in (one, several)]
    for data, state, text in ((one, states[1], "a mixture"), (several, states[0], "one split")):
        with pytest.raises(ResumeError, match=f"the checkpoint is of {text}, .* weights alone: net.load_"):
            data.load_state_dict(state)


@pytest.mark.parametrize("form", ["plain", "trainer"])
def test_a_source_of_a_mixture_that_is_replaced_is_another(tmp_path, form):
    for number in range(3):
        members = [each for i in range(4) for each in sample(4 * number + i)]
        write_tar(tmp_path / f"{number}.tar", members)
    part = partial(Split, crop=CenterCrop(16), members=("cls",))
    sources = {"a": part(f"{tmp_path}/0.tar"), "b": part(f"{tmp_path}/1.tar")}
    data = ShardDataModule(Mixture(sources, repeat={"a": 1, "b": 1}), batch_size=8, workers=0)

    def seen():
        if form == "plain":
            return list(data.train_dataloader())
        net = Mixed()
        trainer(tmp_path, max_epochs=1).fit(net, data)
        return net.batches

    def keys(batches):
        return sorted(key for batch in batches for key in batch.key)

    assert keys(seen()) == [f"k{number:04d}" for number in range(8)]
    data.splits["train/a"] = Split(f"{tmp_path}/2.tar", CenterCrop(24), subset=[1, 2], members=("cls",))
    data.splits["train/b"] = Split(f"{tmp_path}/1.tar", CenterCrop(24), members=("cls",))
    batches = seen()
    assert {*keys(batches)} <= {"k0009", "k0010", *(f"k{number:04d}" for number in range(4, 8))}
    assert {"k0009", "k0010"} <= {*keys(batches)}
    assert {batch.image.shape[-1] for batch in batches} == {24}


def test_a_mixture_is_replaced_by_a_split_and_a_split_by_a_mixture(tmp_path):
    for number in range(3):
        write_tar(tmp_path / f"{number}.tar", [each for i in range(4) for each in sample(4 * number + i)])
    splits = [Split(f"{tmp_path}/{number}.tar", CenterCrop(16), members=("cls",)) for number in range(3)]
    data = ShardDataModule(
        Mixture(dict(zip("ab", splits, strict=False)), repeat={"a": 1, "b": 1}), batch_size=4, workers=0
    )

    def keys():
        net = Mixed()
        trainer(tmp_path, max_epochs=1).fit(net, data)
        return sorted(int(key[1:]) for batch in net.batches for key in batch.key)

    assert keys() == [*range(8)]
    data.splits["train"] = splits[2]
    assert keys() == [*range(8, 12)] and {name for name in data.splits if "train" in name} == {"train"}
    data.splits["train"] = Mixture({"c": splits[2], "a": splits[0]}, repeat={"c": 1, "a": 1})
    assert data.num_classes is None and keys() == [*range(4), *range(8, 12)]
    assert {name for name in data.splits if "train" in name} == {"train/c", "train/a"}
    data.splits["train/b"] = splits[1]
    with pytest.raises(ValueError, match=r"splits has the sources \['c', 'a', 'b'\] of the mixture of"):
        keys()
    del data.splits["train/b"], data.splits["train/a"]
    with pytest.raises(ValueError, match=r"sources \['c'\] .*: give splits\[\"train\"\] = tarpeg.Mixture"):
        keys()


class Mixed(lightning.LightningModule):
    """Keeps the batches of a mixture."""

    def __init__(self):
        super().__init__()
        self.layer, self.batches = torch.nn.Linear(1, 1), []

    def training_step(self, batch, _):
        self.batches.append(batch)
        return self.layer(torch.zeros(1, 1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("before", ["look", "classes", "fit that fails"])
def test_a_new_data_module_reads_the_names_of_a_table_that_was_corrected(tmp_path, before):
    write_tar(tmp_path / "a.tar", [each for i in range(4) for each in sample(i)])

    def write(names):
        rows = [f"k{number:04d},{names[number % 2]}\n" for number in range(4)]
        (tmp_path / "labels.csv").write_text("key,label\n" + "".join(rows))

    write(("cat", "dog"))
    given = {"labels": tmp_path / "labels.csv", "key": "key", "target": "label"}
    split = Split(f"{tmp_path}/a.tar", CenterCrop(16), **given)
    data = ShardDataModule(split, batch_size=4, workers=0, keys=True)
    if before == "look":
        next(iter(data.train_dataloader()))
    elif before == "fit that fails":
        with pytest.raises(ArithmeticError):
            trainer(tmp_path).fit(Net(fails_at="train"), data)
    assert data.classes == ["cat", "dog"]
    write(("cat", "ant"))
    again = ShardDataModule(split, batch_size=4, workers=0, keys=True)
    assert again.classes == ["ant", "cat"]
    (batch,) = again.train_dataloader()
    assert {*zip(batch.key, batch.label.tolist(), strict=True)} == {
        ("k0000", 1),
        ("k0001", 0),
        ("k0002", 1),
        ("k0003", 0),
    }
    assert again.state_dict()["classes"] == ["ant", "cat"]


def test_a_run_reads_again_what_has_changed_alone(tmp_path, monkeypatch):
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", [each for i in range(4) for each in sample(i)])
    path = tmp_path / "labels.csv"
    path.write_text("key,label\n" + "".join(f"k{number:04d},{number % 2}\n" for number in range(4)))
    reads, opens = [], []
    read, opened = split_module.read_table, split_module.open_source
    monkeypatch.setattr(split_module, "read_table", lambda *given: reads.append(1) or read(*given))
    monkeypatch.setattr(
        split_module, "open_source", lambda *given, **more: opens.append(1) or opened(*given, **more)
    )
    given = {"labels": path, "key": "key", "target": "label"}
    splits = [Split(f"{tmp_path}/{name}.tar", CenterCrop(16), **given) for name in "ab"]
    data = ShardDataModule(*splits, batch_size=2, workers=0, keys=True)
    fit = partial(trainer, tmp_path, max_epochs=3, reload_dataloaders_every_n_epochs=1)
    fit().fit(Net(), data)
    assert (len(reads), len(opens)) <= (4, 2)
    reads.clear(), opens.clear()
    fit().fit(Net(), data)
    trainer(tmp_path).validate(Net(), data, verbose=False)
    list(data.train_dataloader())
    assert reads == opens == []
    path.write_text(path.read_text().replace("k0003,1", "k0003,0"))
    os.utime(path, ns=(1, 1))
    trainer(tmp_path).validate(Net(), data, verbose=False)
    assert reads


def test_a_split_that_is_replaced_in_a_plain_loop_is_compared(tmp_path):
    for number in range(2):
        write_tar(tmp_path / f"{number}.tar", [each for i in range(4) for each in sample(4 * number + i)])
    train, val = (Split(f"{tmp_path}/{number}.tar", CenterCrop(16)) for number in range(2))
    data = ShardDataModule(train, val, batch_size=2, workers=0)
    list(data.train_dataloader())
    data.splits["val"] = Split(f"{tmp_path}/0.tar", CenterCrop(16))
    with pytest.raises(ShardError, match="train and val have 1 shard in common"):
        data.val_dataloader()
    mixture = Mixture({"a": train, "b": val}, repeat={"a": 1, "b": 1})
    data.splits |= {"train": mixture, "val": None}
    assert "train/a" in repr(data) and "train/b" in str(data)
    assert len(data.samples("train/a")) == 4


def test_a_class_that_a_reload_adds_needs_a_larger_network(tmp_path):
    write_tar(tmp_path / "a.tar", [each for i in range(4) for each in sample(i)])
    path = tmp_path / "labels.csv"

    def write(*names):
        rows = [f"k{number:04d},{names[number % len(names)]}\n" for number in range(4)]
        path.write_text("key,label\n" + "".join(rows))

    class Writes(Callback):
        def on_train_epoch_end(self, trainer, net):
            write("a", "b", "z", "z")

    write("a", "b")
    data = ShardDataModule(
        Split(f"{tmp_path}/a.tar", CenterCrop(16), labels=path, key="key", target="label"),
        batch_size=2,
        workers=0,
        keys=True,
    )
    net = Net()
    net.net, net.num_classes = torch.nn.Linear(3, 2), 2
    settings = {"max_epochs": 2, "reload_dataloaders_every_n_epochs": 1, "limit_val_batches": 0}
    with pytest.raises(ShardError, match=r"labels 0\.\.2 need .*num_classes=3, and the network has 2"):
        trainer(tmp_path, callbacks=[Writes()], **settings).fit(net, data)
