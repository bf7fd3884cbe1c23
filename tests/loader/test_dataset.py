"""A loader as the data set of a DataLoader: torch's, torchdata's, Fabric's and that of transformers."""

from __future__ import annotations

import gc
import itertools
import json
import re

import lightning
import pytest
import torch
from helpers.checkouts import ROOT
from helpers.loaders import ALL, digest, keys_of, load
from helpers.scripts import run_file, run_processes, run_two_ranks
from helpers.small_tars import sample, write_tar
from helpers.training import module
from lightning.pytorch.callbacks import ModelCheckpoint
from tarpeg import Augment, Dataset, Loader, RandomResizedCrop, Split, Streaming
from torch.utils.data import DataLoader, IterableDataset, default_collate

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's and Lightning's own


def face(loader, **settings):
    return DataLoader(Dataset(loader), batch_size=None, **settings)


def wrapped(kind, loader):
    """The loader as each tool takes it; skipped if the tool is not installed."""
    if kind == "fabric":
        fabric = lightning.Fabric(accelerator="cpu", devices=1)
        return fabric.setup_dataloaders(face(loader))
    if kind == "torchdata":
        reason = "torchdata is in the dev extra"
        stateful = pytest.importorskip("torchdata.stateful_dataloader", reason=reason)
        return stateful.StatefulDataLoader(Dataset(loader), batch_size=None)
    return face(loader)


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["torch", "fabric", "torchdata"])
def test_batches_and_epochs_are_those_of_the_loader(photos, kind, workers, children):
    plain, loader = load(photos, workers=0, threads=0), load(photos, workers=workers, threads=0)
    outer = wrapped(kind, loader)
    assert len(outer) == len(plain) == 6
    for _ in range(3):
        batches = list(outer)
        assert digest(batches) == digest(plain)
        assert type(batches[0]).__name__ == "KeyedBatch" and type(batches[0].key) is list
    loader.close()
    assert children() == set()


@pytest.mark.sweep
@pytest.mark.parametrize("taken", [0, 2, 6, 8, 12])
@pytest.mark.parametrize("kind", ["torch", "fabric", "torchdata"])
def test_resuming_at_any_batch(photos, kind, taken):
    def keys(batches):
        return [batch.key for batch in batches]

    plain = load(photos)
    expected = keys(itertools.chain(plain, plain, plain, plain))
    first = wrapped(kind, load(photos))
    for _ in range(taken // 6):
        list(first)
    begun = iter(first)
    for _ in range(taken % 6):
        next(begun)
    state = (first if kind == "torchdata" else first.dataset).state_dict()
    second = wrapped(kind, load(photos))
    (second if kind == "torchdata" else second.dataset).load_state_dict(json.loads(json.dumps(state)))
    assert len(second) == 6
    rest = keys(itertools.chain(second, second))
    assert rest == expected[taken:][: len(rest)] and len(rest) == 12 - taken % 6


def test_fabric_saves_and_loads_it(photos, tmp_path):
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    one, two = (Dataset(load(photos)) for _ in range(2))
    batches = iter(fabric.setup_dataloaders(DataLoader(one, batch_size=None)))
    for _ in range(4):
        next(batches)
    fabric.save(tmp_path / "run.ckpt", {"data": one})
    fabric.load(tmp_path / "run.ckpt", {"data": two})
    rest = list(fabric.setup_dataloaders(DataLoader(two, batch_size=None)))
    assert digest(rest) == digest(batches) and len(rest) == 2


FABRIC = """
import json, lightning, sys, tarpeg, torch
from pathlib import Path
from torch.utils.data import DataLoader
from helpers.loaders import load
from helpers.training import module
fabric = lightning.Fabric(accelerator="cpu", devices=2)
early = module({photos!r}).train_dataloader() if "RANK" not in __import__("os").environ else None
fabric.launch()
refused = ""
if early is not None and fabric.global_rank == 0:
    try:
        iter(tarpeg.Dataset(early))
    except ValueError as error:
        refused = str(error)
dataset = tarpeg.Dataset(module({photos!r}).train_dataloader())
loader = fabric.setup_dataloaders(DataLoader(dataset, batch_size=None))
epochs = [[batch.key for batch in loader] for _ in range(2)]
record = {{"epochs": epochs, "len": len(loader), "refused": refused}}
Path({folder!r}, f"rank{{fabric.global_rank}}.json").write_text(json.dumps(record))
"""


@pytest.mark.slow
def test_fabric_on_two_ranks(photos, tmp_path):
    code = FABRIC.format(photos=str(photos), folder=str(tmp_path))
    ranks = run_two_ranks(tmp_path, code)
    assert [rank["len"] for rank in ranks] == [3, 3]
    for epoch in range(2):
        keys = [key for rank in ranks for batch in rank["epochs"][epoch] for key in batch]
        assert sorted(keys) == ALL
    assert ranks[0]["epochs"][0] != ranks[0]["epochs"][1]
    assert (
        "this loader is of rank 0 of 1, but the process is rank 0 of 2. Create the loader after"
        in (ranks[0]["refused"])
    )


def test_augmented_batches(photos):
    data, reference = (module(photos, augment=Augment(flip=0.5), seed=3) for _ in range(2))
    outer = DataLoader(Dataset(data.train_dataloader(), data.augmented), batch_size=None)
    expected = reference.train_dataloader()
    for _ in range(2):
        batches = list(outer)
        assert batches[0].image.dtype == torch.float32
        assert digest(batches) == digest(reference.augmented(expected))


def test_a_batch_size_of_the_data_loader_is_refused(photos):
    for settings in ({}, {"batch_size": 2}):
        with pytest.raises(ValueError, match=r"^batch_size= of the DataLoader"):
            next(iter(DataLoader(Dataset(load(photos)), **settings)))
    assert default_collate([(1, torch.zeros(2))])[1].shape == (1, 2), "of other items as ever"


@pytest.mark.sweep  # a spawned process imports torch
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_worker_processes_of_the_data_loader_are_refused(photos, start, monkeypatch):
    # torch waits so long for the process of a data set that raised, here or in a later test: 5 s.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    loader = load(photos, workers=1)
    before = keys_of(loader)
    text = r"must be 0: .*workers= .*tarpeg\.Loader"
    value = "num_workers=1" if start == "fork" else "num_workers"
    outer = face(loader, num_workers=1, multiprocessing_context=start)
    with pytest.raises(ValueError, match=rf"{value} of (the|a) DataLoader {text}"):
        next(iter(outer))
    gc.collect()
    again = keys_of(loader)
    assert sorted(again) == sorted(before) == ALL and again != before
    loader.close()


class Recorder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), []

    def training_step(self, batch, index):
        self.seen.append((self.current_epoch, index, batch.key))
        return self.weight.sum()

    def validation_step(self, batch, index): ...

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Renaming(IterableDataset):
    """What a user writes around a data set for fields of other names."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        yield from self.batches


def stateful(loader):
    return wrapped("torchdata", loader)


def renamed(loader):
    return DataLoader(Renaming(Dataset(loader)), batch_size=None)


@pytest.mark.parametrize("is_at_the_end", [None, True, False])
@pytest.mark.parametrize(
    ("face", "has_val"), [(face, False), (face, True), (renamed, False), (stateful, False)]
)
def test_a_trainer_goes_on_with_the_next_epoch(photos, tmp_path, face, has_val, is_at_the_end):
    """Lightning sets the epoch of no sampler of a DataLoader around an IterableDataset."""

    def fit(epochs, **resume):
        saver = ModelCheckpoint(tmp_path, save_last=True, save_on_train_epoch_end=is_at_the_end)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=[saver], **quiet)
        module, loaders = Recorder(), [face(load(photos, workers=0)) for _ in range(1 + has_val)]
        trainer.fit(module, *loaders, **resume)
        return module.seen, saver.last_model_path

    wanted, _ = fit(3)
    first, path = fit(1)
    rest, _ = fit(3, ckpt_path=path)
    assert first + rest == wanted and wanted[0] != wanted[6]


@pytest.mark.parametrize("is_set", [False, True])
def test_a_loop_in_a_hook_does_not_follow_the_trainer(photos, is_set):
    """Such as a probe of the features: its passes are those of a loop without a Trainer."""
    found = []

    class Probing(Recorder):
        def on_train_epoch_end(self):
            loader = load(photos, workers=0)
            for epoch in range(2):
                if is_set:
                    loader.sampler.set_epoch(epoch)
                found.append([key for batch in face(loader) for key in batch.key])

    options = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, **options)
    trainer.fit(Probing(), face(load(photos, workers=0)))
    alone = load(photos, workers=0)
    assert found == [keys_of(alone), keys_of(alone)] * 3


class Reshaped(IterableDataset):
    """A data set of a user's own around a loader, or one that each worker process makes."""

    def __init__(self, make, is_made_here):
        self.make, self.loader = make, make() if is_made_here else None

    def __iter__(self):
        for batch in self.loader or self.make():
            yield [*batch.key]


@pytest.mark.parametrize(("workers", "is_made_here"), [(1, True), (2, True), (2, False)])
def test_a_loader_in_the_workers_of_a_data_loader_is_refused(photos, workers, is_made_here, monkeypatch):
    """Each of them would read all samples, and always those of the same epoch."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    split = Split(photos, RandomResizedCrop(32))
    data = Reshaped(lambda: Loader(split, batch_size=4, workers=0, keys=True), is_made_here)
    with pytest.raises(ValueError, match=rf"num_workers={workers} of the DataLoader must be 0: each of its"):
        next(iter(DataLoader(data, batch_size=None, num_workers=workers)))


def test_loaders_that_the_workers_of_a_data_loader_make(photos):
    def make():
        worker = torch.utils.data.get_worker_info()
        ranks = {} if worker.num_workers == 1 else {"rank": worker.id, "world": worker.num_workers}
        return Loader(Split(photos, RandomResizedCrop(32)), batch_size=4, workers=0, keys=True, **ranks)

    for workers in (1, 2):
        outer = DataLoader(Reshaped(make, False), batch_size=None, num_workers=workers)
        assert sorted(key for keys in outer for key in keys) == ALL


def test_what_is_not_a_loader_and_what_has_no_length(shard_of):
    shard = shard_of(*map(sample, range(5)))
    with pytest.raises(
        TypeError, match=r"loader\[0\]: .*DataLoader\(tarpeg\.Dataset\(loader\), batch_size=None\)"
    ):
        next(iter(DataLoader(load(shard), batch_size=None)))
    with pytest.raises(ValueError, match=r"^batches=Augment "):
        Dataset(load(shard), Augment())
    with pytest.raises(ValueError, match=r"must be a tarpeg.Loader\(.*data.train_dataloader\(\)"):
        Dataset([1, 2])
    outer = face(load(shard, streaming=True, workers=0))
    with pytest.raises(TypeError, match=r"stream .*length"):
        len(outer)
    assert sum(len(batch.label) for batch in outer) == 5
    assert len(face(load(shard, streaming=Streaming(samples=8), workers=0))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("dispatch", [True, False])
def test_accelerate_may_not_divide_the_batches_again(photos, monkeypatch, dispatch, stateful):
    accelerate = pytest.importorskip("accelerate.data_loader", reason="accelerate is in the dev extra")
    cpu = torch.device("cpu")
    settings = {"device": cpu, "put_on_device": True, "dispatch_batches": dispatch}
    settings["use_stateful_dataloader"] = stateful
    one = accelerate.prepare_data_loader(face(load(photos, keys=False)), num_processes=1, **settings)
    assert digest(one) == digest(load(photos, keys=False))
    monkeypatch.setitem(accelerate.PartialState._shared_state, "num_processes", 2)
    two = DataLoader(Dataset(load(photos)), batch_size=1, collate_fn=lambda batches: batches[0])
    outer = accelerate.prepare_data_loader(two, num_processes=2, process_index=1, **settings)
    with pytest.raises(ValueError, match="Accelerate"):
        next(iter(outer))
    assert keys_of(face(load(photos))) == keys_of(load(photos)), "not prepared: nothing to refuse"


TRAIN = """
import runpy
sys.argv = {arguments!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_the_trainer_of_transformers_resumes_to_the_same_losses(photos, tmp_path):
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is in the dev extra")

    def losses(*arguments):
        script = str(ROOT / "examples" / "transformers_trainer.py")
        code = TRAIN.format(arguments=[script, str(photos), *map(str, arguments)])
        done = run_file(tmp_path / "run.py", "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n" + code)
        assert done.returncode == 0, done.stdout + done.stderr
        return re.search(r"^6 steps, losses (.*)$", done.stdout, re.M)[1]

    whole = losses(tmp_path / "whole")
    assert losses(tmp_path / "resumed", tmp_path / "whole" / "checkpoint-4") == whole


TWICE = """
sys.path[:0] = [{examples!r}]
from transformers_trainer import main
main({shards!r}, {out!r} + "/whole")
main({shards!r}, {out!r} + "/resumed", {out!r} + "/whole/checkpoint-4")
"""


@pytest.mark.slow
def test_two_processes_of_the_trainer_of_transformers_resume_within_an_epoch(tmp_path):
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is in the dev extra")
    shards = write_tar(tmp_path / "x.tar", [member for number in range(40) for member in sample(number)])
    paths = {"shards": str(shards), "out": str(tmp_path), "examples": str(ROOT / "examples")}
    imports = "os.environ['CUDA_VISIBLE_DEVICES'] = ''; import transformers, accelerate"
    done = run_processes(tmp_path, 2, TWICE.format(**paths), imports)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = re.findall(r"6 steps, losses (.*)$", done.stdout, re.M)
    assert len(losses) == 4 and len({*losses}) == 1, "of both processes, without and with a stop"
