"""Data-parallel ranks: by numbers, by a mesh, under Lightning; peers of one rank get the same batches."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import time
import types
import warnings
from unittest import mock

import pytest
import tarpeg
import torch
from helpers import training
from helpers.checkouts import ROOT
from helpers.loaders import ALL
from helpers.scripts import run_processes, run_two_ranks
from helpers.small_tars import sample
from tarpeg import CenterCrop, Loader, ShardDataModule, ShardError, Split, progress
from tarpeg.loader import ranks
from tarpeg.loader.ranks import DataRank, data_rank, rank_of_strategy
from torch.distributed import distributed_c10d

ALONE = {"rank": 0, "world": 1}


def mesh(names, sizes, place):
    """What `data_rank` needs of a DeviceMesh, without a process group."""
    return types.SimpleNamespace(
        ndim=len(sizes),
        mesh_dim_names=names,
        size=lambda dimension: sizes[dimension],
        get_coordinate=lambda: place,
    )


def test_ranks_by_numbers_and_by_a_mesh():
    assert data_rank() == DataRank(0, 1, "processes", True)
    assert data_rank(1, 3) == DataRank(1, 3, "given", False)
    whole = mesh(("replicate", "shard", "tp"), (2, 3, 2), (1, 2, 0))
    assert data_rank(mesh=(whole, "shard")) == DataRank(2, 3, "mesh", True)
    both = data_rank(mesh=(whole, "replicate", "shard"))
    assert (both.rank, both.world) == (5, 6), "the last dimension counts fastest"
    with pytest.raises(ValueError, match=r"several .* such as mesh=\(mesh, 'dp_replicate', 'dp_shard'\)"):
        data_rank(mesh=(whole, ("replicate", "shard")))
    line = data_rank(mesh=mesh(None, (4,), (3,)))
    assert (line.rank, line.world) == (3, 4)
    assert rank_of_strategy(types.SimpleNamespace()) == (0, 1), "a strategy of one device"
    kwargs = {"num_replicas": 4, "rank": 2}
    assert rank_of_strategy(types.SimpleNamespace(distributed_sampler_kwargs=kwargs)) == (2, 4)


def test_a_mesh_of_some_of_the_processes_compares_nothing(monkeypatch):
    monkeypatch.setattr(ranks, "process_rank", lambda: (0, 4))
    whole = mesh(("dp", "tp"), (2, 2), (1, 0))
    line = mesh(("dp",), (2,), (1,))
    assert data_rank(mesh=(whole, "dp")).is_everywhere and not data_rank(mesh=line).is_everywhere
    line._get_root_mesh = lambda: whole
    assert data_rank(mesh=line).is_everywhere, "a part of a mesh of all processes"


def test_a_loader_that_was_made_before_the_process_group_is_refused(photos, monkeypatch):
    early, given = (Loader(Split(photos, CenterCrop(8)), 4, workers=0, **at) for at in ({}, ALONE))
    data = ShardDataModule(Split(photos, CenterCrop(8)), workers=0)
    of_data = data.train_dataloader()
    monkeypatch.setattr(ranks, "process_rank", lambda: (1, 2))
    text = r"rank 0 of 1, .*rank 1 of 2\b"
    for begin in (lambda: iter(early), lambda: data.augmented(of_data), lambda: early.deliver(None)):
        with pytest.raises(ValueError, match=text):
            next(begin())
    assert next(iter(given))


def test_several_processes_without_a_process_group_are_a_warning(photos, monkeypatch, tmp_path):
    loader, alone = (Loader(Split(photos, CenterCrop(8)), 12, workers=0, **at) for at in ({}, ALONE))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match=r"^WORLD_SIZE=2.*all samples") as caught:
        assert len([*loader, *loader]) == 4
    assert len({str(warning.message) for warning in caught}) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(alone)
    data = ShardDataModule(Split(photos, CenterCrop(8)), workers=0)
    with pytest.warns(
        UserWarning, match=r"^WORLD_SIZE=2.* network of its own\. Give Trainer\(strategy='ddp'"
    ):
        training.fitted(tmp_path, data, max_steps=1)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"rank": 1}, "world=None must be an integer: give both"),
        ({"world": 2}, "rank=None must be an integer: give both"),
        ({"rank": True, "world": 2}, "rank=True must be an integer"),
        ({"rank": 2, "world": 2}, r"rank=2 must be in 0\.\.1"),
        ({"rank": 0, "world": 2, "mesh": 3}, "those of mesh="),
        ({"mesh": 3}, "mesh=3 must be a DeviceMesh"),
        ({"mesh": mesh(("dp", "tp"), (2, 2), (0, 0))}, r"\('dp', 'tp'\).*, 'dp'\).*'dp_replicate'"),
        ({"mesh": (mesh(("dp", "tp"), (2, 2), (0, 0)), "data")}, r"mesh=\(mesh, 'data'\)"),
        ({"mesh": (mesh(("dp",), (2,), None), "dp")}, "does not contain this process"),
    ],
)
def test_ranks_that_are_refused(given, text):
    with pytest.raises(ValueError, match=text):
        data_rank(**given)


def test_two_given_ranks_share_the_samples(photos):
    found = []
    for rank in (0, 1):
        loader = Loader(Split(photos, CenterCrop(8)), 4, keys=True, workers=0, rank=rank, world=2)
        found.append([key for batch in loader for key in batch.key])
    assert sorted(found[0] + found[1]) == ALL and not {*found[0]} & {*found[1]}


def test_a_data_module_without_a_trainer_takes_a_mesh(photos):
    peers = [mesh(("dp", "tp"), (2, 2), place) for place in ((0, 0), (0, 1), (1, 0))]
    found = []
    for each in peers:
        data = ShardDataModule(
            Split(photos, CenterCrop(8)), batch_size=2, keys=True, workers=0, mesh=(each, "dp")
        )
        found.append([key for batch in data.train_dataloader() for key in batch.key])
    assert found[0] == found[1] and sorted(found[0] + found[2]) == ALL
    with pytest.raises(ValueError, match=r"mesh=3 must be a DeviceMesh"):
        ShardDataModule(Split(photos, CenterCrop(8)), mesh=3)


def test_a_mesh_and_the_ranks_of_a_trainer_are_refused(photos):
    data = ShardDataModule(Split(photos, CenterCrop(8)), workers=0, mesh=(mesh(("dp",), (1,), (0,)), "dp"))
    data.trainer = mock.Mock(strategy=types.SimpleNamespace(), lightning_module=None)
    with pytest.raises(ValueError, match=r"mesh=.*Trainer.*leave it out"):
        data.setup("fit")


@pytest.fixture
def on(monkeypatch):
    """Two processes of torch.distributed within one: `on(1, function, ...)` calls it as process 1."""
    store, here, made = torch.distributed.HashStore(), 0, [0, 0]

    def gather(found, mine):
        found[:] = [(process, *mine[1:3], f"loader {made[here]}") for process in (0, 1)]
        made[here] += 1

    def call(process, function, *given):
        nonlocal here
        here = process
        return function(*given)

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: here)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
    return call


def loader_of(folder):
    return Loader(Split(folder, CenterCrop(8)), 2, workers=0)


def two_of(loader):
    return list(itertools.islice(loader, 2))


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_state_on_some_processes_only_is_an_error(photos, on, has_begun):
    loaders = [on(process, loader_of, photos) for process in (0, 1)]
    on(1, loaders[1].load_state_dict, loaders[1].state_dict() | {"batches": 2})
    if has_begun:
        on(1, list, loaders[1])
    with pytest.raises(ShardError, match=r"process 0 .*batch 0 of epoch 0, without"):
        on(0, two_of, loaders[0])


def test_a_state_after_another_process_began_is_an_error(photos, on):
    loaders = [on(process, loader_of, photos) for process in (0, 1)]
    on(0, two_of, loaders[0])
    state = loaders[1].state_dict() | {"batches": 2}
    with pytest.raises(ShardError, match=r"process 1 .*batch 2 of epoch 0, with "):
        on(1, loaders[1].load_state_dict, state)


def test_states_of_other_batches_on_the_processes_are_an_error(photos, on):
    loaders = [on(process, loader_of, photos) for process in (0, 1)]
    for process, loader in enumerate(loaders):
        on(process, loader.load_state_dict, loader.state_dict() | {"batches": 1 + process})
    on(0, two_of, loaders[0])
    with pytest.raises(ShardError, match=r"process 0 .* batch 1 of .*process 1 .* batch 2 of "):
        on(1, two_of, loaders[1])


def test_a_process_may_iterate_alone_and_all_may_load_again(photos, on):
    loaders = [on(process, loader_of, photos) for process in (0, 1)]
    state = loaders[0].state_dict() | {"batches": 1}
    on(0, list, loaders[0])
    for process, loader in [*enumerate(loaders)] * 2:
        on(process, list, loader)
    for _ in range(2):
        for process, loader in enumerate(loaders):
            on(process, loader.load_state_dict, state)
            on(process, loader.load_state_dict, state)
            on(process, list, loader)


@pytest.mark.parametrize("order", ["peek first", "load first"])
def test_a_process_may_look_at_a_batch_before_all_load_a_state(photos, on, order):
    loaders = [on(process, loader_of, photos) for process in (0, 1)]
    state = loaders[0].state_dict() | {"batches": 1}
    load = lambda process: on(process, loaders[process].load_state_dict, state)  # noqa: E731
    if order == "load first":
        load(1)
        on(1, list, loaders[1])
    on(0, next, iter(loaders[0]))
    if order == "peek first":
        load(1)
        on(1, list, loaders[1])
    load(0)
    on(0, list, loaders[0])


@pytest.mark.parametrize("count", [1, 4, 5, 11])
def test_a_process_that_took_batches_alone_is_an_epoch_ahead_with_a_warning(photos, on, count, monkeypatch):
    monkeypatch.setattr(ranks, "_LOOK", 4)
    loaders = one_by_one(photos, on)
    on(0, lambda: [*itertools.islice(loaders[0], count)])
    text = "and another one epoch [01].*" if count <= 4 else "which 1 of 2 processes have begun.*"
    if count > 4:
        silent(on, loaders, 3 if count < len(loaders[0]) else 2)
    with pytest.warns(
        UserWarning, match=f"split: process [01] (has )?read.* epoch [0134], {text}rank=0 and world=1"
    ):
        in_turn(on, loaders)
    for process, loader in enumerate(loaders):
        on(process, loader.sampler.set_epoch, 7)
    silent(on, loaders, 2)


@pytest.mark.parametrize("looks", [(1, 3), (0, 0), (9, 9), (11, 11)])
def test_processes_that_take_as_many_passes_are_in_the_same_epochs(photos, on, looks, monkeypatch):
    monkeypatch.setattr(ranks, "_LOOK", 4)
    loaders = one_by_one(photos, on)
    for process, (loader, count) in enumerate(zip(loaders, looks, strict=True)):
        on(process, lambda loader=loader, count=count: [*itertools.islice(loader, count)])
    silent(on, loaders, 5)


def test_an_epoch_that_was_set_after_looks_is_the_same_for_all(photos, on, monkeypatch):
    monkeypatch.setattr(ranks, "_LOOK", 4)
    loaders = one_by_one(photos, on)
    for count in (1, 6):
        on(0, lambda count=count: [*itertools.islice(loaders[0], count)])
    for process, loader in enumerate(loaders):
        on(process, loader.sampler.set_epoch, 0)
    silent(on, loaders, 5)


def test_a_look_after_an_epoch_was_set_takes_it(photos, on, monkeypatch):
    monkeypatch.setattr(ranks, "_LOOK", 4)
    loaders = one_by_one(photos, on)
    for process, loader in enumerate(loaders):
        on(process, loader.sampler.set_epoch, 3)
    on(0, next, iter(loaders[0]))
    with pytest.warns(UserWarning, match="reads epoch [34], and another one epoch [34]"):
        in_turn(on, loaders)


def test_a_process_that_begins_each_epoch_late_is_in_it(photos, on, monkeypatch):
    monkeypatch.setattr(ranks, "_LOOK", 4)
    loaders = one_by_one(photos, on)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            for process, loader in enumerate(loaders):
                on(process, list, loader)


def silent(on, loaders, epochs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(epochs):
            in_turn(on, loaders)


@pytest.mark.parametrize("others_iterate", [True, False])
def test_processes_that_wait_for_no_other_are_not_compared_by_their_speed(photos, on, others_iterate):
    loaders = one_by_one(photos, on)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            on(0, list, loaders[0])
        for _ in range(2 * others_iterate):  # without: process 0 sends its batches to the other
            on(1, list, loaders[1])


def one_by_one(photos, on):
    return [on(process, lambda: Loader(Split(photos, CenterCrop(8)), 1, workers=0)) for process in (0, 1)]


def in_turn(on, loaders):
    """Iterate over both loaders at the same time, as processes do that train together."""
    running = [on(process, iter, loader) for process, loader in enumerate(loaders)]
    for _ in range(1 + len(loaders[0])):
        for process, each in enumerate(running):
            on(process, next, each, None)


def test_a_state_that_is_loaded_twice_replaces_the_first(photos, on):
    loaders = [on(process, loader_of, photos) for process in (0, 1)]
    state = loaders[0].state_dict() | {"batches": 1}
    on(0, loaders[0].load_state_dict, loaders[0].state_dict())
    on(0, next, iter(loaders[0]))
    for process in (0, 0, 1):
        on(process, loaders[process].load_state_dict, state)
    for process, loader in enumerate(loaders):
        on(process, list, loader)
    on(0, loaders[0].load_state_dict, state | {"batches": 2})
    on(1, loaders[1].load_state_dict, state)
    on(0, two_of, loaders[0])
    with pytest.raises(ShardError, match=r"\b0 .* batch 2 of .* process 1 .* batch 1 of "):
        on(1, two_of, loaders[1])


def refused(on, monkeypatch, facts):
    """The error for processes with these facts."""

    def gather(found, mine):
        found[:] = [(process, 2, facts[process], "") for process in (0, 1)]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    with pytest.raises(ShardError) as caught:
        on(0, DataRank(0, 2).compare, "train", facts[0])
    return str(caught.value)


def test_other_batches_on_the_processes_show_what_differs_alone(on, monkeypatch):
    facts = [{"seed": 0, "order": 5, "samples": 12}, {"seed": 1, "order": 5, "samples": 12}]
    text = r"train .*\{'seed': 0\} on rank 0 .*\{'seed': 1\} on rank 1.*same seed=\.$"
    assert re.search(text, refused(on, monkeypatch, facts))


def of_split(folder, settings):
    return Loader(Split(folder, CenterCrop(8), **settings), 6, workers=0)


def of_mixture(folder, settings):
    own, shares = settings.get("a", {}), settings.get("mixture", {})
    sources = {name: Split(folder, CenterCrop(8), **(own if name == "a" else {})) for name in "ab"}
    mixture = tarpeg.Mixture(sources, **{"weights": {"a": 1, "b": 1}, **shares})
    return tarpeg.MixtureLoader(mixture, 6, workers=0)


@pytest.mark.parametrize(
    ("make", "settings", "names"),
    [
        (of_split, {"subset": range(12)}, ["subset="]),
        (of_split, {"weights": [*range(23)]}, ["subset=", "weights=", "shuffle=", "repeats="]),
        (of_split, {"shuffle": False}, ["shuffle="]),
        (of_mixture, {"mixture": {"weights": {"a": 2, "b": 1}}}, ["weights=", "repeat=", "Mixture"]),
        (of_mixture, {"mixture": {"batches": "per_source"}}, ["batches=", "Mixture"]),
        (of_mixture, {"a": {"shuffle": False}}, ["shuffle=", "source 'a'"]),
    ],
)
def test_other_arguments_on_the_processes_are_in_the_message(photos, on, monkeypatch, make, settings, names):
    made = []

    def gather(found, mine):
        made.append(mine[2])
        found[:] = [(process, 2, mine[2], "") for process in (0, 1)]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    for each in ({}, settings):
        on(0, make, photos, each)
    text = refused(on, monkeypatch, made)
    assert "Give every rank the same" in text and all(name in text for name in names), text
    assert "seed" not in text and "shards" not in text.replace("shards and subset=", "")


def test_another_collective_on_another_process_is_an_error_with_the_remedy(on, monkeypatch):
    for others in ("text", (1, 2), None):
        monkeypatch.setattr(
            torch.distributed,
            "all_gather_object",
            lambda found, mine, others=others: found.__setitem__(slice(None), [mine, others]),
        )
        with pytest.raises(ShardError, match=r"process 1 .* train split"):
            on(0, DataRank(0, 2).compare, "train", {})


def test_a_process_that_waits_for_others_says_so_and_the_timeout_is_an_error(on, monkeypatch, caplog):
    def gather(found, mine):
        time.sleep(0.3)
        raise RuntimeError("Timed out waiting 300ms for send operation to complete")

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(progress, "SAY_EVERY", 0.1)
    with pytest.raises(
        ShardError, match=r"the 2 processes could not compare the train split \(Timed out .*rank=0 and"
    ):
        on(0, DataRank(0, 2).compare, "train", {})
    assert "waiting for all 2 processes to make the loader of the train split (" in caplog.text


# The mesh is (data-parallel, tensor-parallel).
SCRIPT = """
import faulthandler, json, warnings
faulthandler.dump_traceback_later(200, exit=True)  # a run that hangs prints its stacks
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from tarpeg import Augment, CenterCrop, DataStallMonitor, Loader, RandomResizedCrop, ShardError, Split
from helpers.training import Net, heavy, module, trainer

class Sharded(Net):
    def configure_model(self):
        pass

def seen(batches):
    return [[batch.key, batch.image.double().sum((1, 2, 3)).tolist()] for batch in batches]

found = {{}}
split = Split({folder!r}, RandomResizedCrop(16), flip=0.5)
for sizes in ((1, 2), (2, 1)):
    name = "x".join(map(str, sizes))
    net, monitor = Sharded(), DataStallMonitor(sample_seconds=0)
    strategy = ModelParallelStrategy(*sizes)
    run = trainer({out!r}, devices=2, strategy=strategy, max_epochs=2, callbacks=[monitor])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(net, datamodule=module({folder!r}, batch_size=4, augment=heavy(), workers=1))
    found["lightning" + name] = [seen(net.seen[stage]) for stage in ("train", "validate")]
    mesh = torch.distributed.init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
    for number, given in enumerate(((mesh, "dp"), mesh["dp"])):
        loader = Loader(split, 4, keys=True, workers=0, augment=heavy(), seed=3, mesh=given)
        found[f"loop{{number}}" + name] = [seen(loader), seen(loader)]
    errors = []
    for subset in (range(8 + run.global_rank), range(run.global_rank, 8 + run.global_rank)):
        try:
            Loader(Split({folder!r}, CenterCrop(16), subset=list(subset)), 2, workers=0, mesh=(mesh, "dp"))
        except ShardError as error:
            errors.append(str(error))
    found["errors" + name] = errors
ring = torch.distributed.DeviceMesh("cpu", [[1, 0]], mesh_dim_names=("tp", "dp"))
found["ring"] = [Loader(split, 4, mesh=given).ranks.rank for given in ((ring, "dp"), ring["dp"])]
plain = Loader(split, 4, keys=True, workers=0)
found["ranks"] = [plain.ranks.rank, plain.ranks.world, plain.ranks.is_first]
open({out!r} + "/rank" + str(run.global_rank) + ".json", "w").write(json.dumps(found))
"""


@pytest.mark.slow
def test_peers_of_one_rank_get_the_same_batches(photos, tmp_path):
    ranks = run_two_ranks(tmp_path, SCRIPT.format(folder=str(photos), out=str(tmp_path)))
    assert [rank["ranks"] for rank in ranks] == [[0, 2, True], [1, 2, False]]
    assert [rank["ring"] for rank in ranks] == [[1, 1], [0, 0]], "places in a mesh, not numbers in a group"
    for name in ("lightning", "loop0", "loop1"):
        same, other = (rank[f"{name}1x2"] for rank in ranks)
        assert same == other, f"{name}: tensor-parallel peers"
        for epoch in same if name != "lightning" else ():
            assert sorted(key for keys, _ in epoch for key in keys) == ALL
        parts = [rank[f"{name}2x1"] for rank in ranks]
        for one, two in zip(*parts, strict=True):  # of each epoch, or of training and validation
            assert len(one) == len(two)
            first, second = ([key for keys, _ in part for key in keys] for part in (one, two))
            assert ({*first} | {*second} == {*ALL} and not {*first} & {*second}) or name == "lightning"
    train = [[keys for keys, _ in rank["lightning2x1"][0]] for rank in ranks]
    half = len(train[0]) // 2
    for epoch in (slice(half), slice(half, None)):
        keys = [key for part in train for batch in part[epoch] for key in batch]
        assert sorted(keys) == ALL, "every sample once over both ranks"
    for sizes in ("1x2", "2x1"):
        for rank in ranks:
            assert len(rank[f"errors{sizes}"]) == 2, "other samples, of another number and of the same"
            assert re.search("Give every rank the same .*subset=", rank[f"errors{sizes}"][1])


# Each way of the documentation, in one group of four processes; keys and sums of pixels of two epochs.
WAYS = """
import faulthandler, json, logging, os, runpy, warnings
faulthandler.dump_traceback_later(200, exit=True)  # a run that hangs prints its stacks
warnings.simplefilter("ignore")
sys.argv = ["", {folder!r}, {folder!r}]
runpy.run_path({example!r}, run_name="__main__")  # makes the group, and ends it
import lightning
from lightning.fabric.strategies import ModelParallelStrategy as FabricStrategy
from lightning.pytorch.strategies import ModelParallelStrategy
from tarpeg import Dataset, Loader, RandomResizedCrop, Split
from helpers.loaders import load
from helpers.training import Net, module, trainer

class Sharded(Net):
    def configure_model(self):
        pass

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 5)

    def forward(self, pixel_values, labels, keys):
        passed.append([keys, pixel_values.double().sum((1, 2, 3)).tolist()])
        logits = self.net(pixel_values.float().mean((2, 3)))
        return {{"loss": torch.nn.functional.cross_entropy(logits, labels)}}

def seen(batches):
    return [[batch.key, batch.image.double().sum((1, 2, 3)).tolist()] for batch in batches]

NAMES = ("pixel_values", "labels", "keys")
def outer(mesh, kind=torch.utils.data.DataLoader, **settings):
    loader = Loader(split, keys=True, workers=0, mesh=mesh, batch_size=4)
    return kind(Dataset(loader), batch_size=None, **settings)

split = Split({folder!r}, RandomResizedCrop(16), flip=0.5)
# By a file: at the port of the example's group its store may still be closing.
torch.distributed.init_process_group("gloo", "file://" + {out!r} + "/store", rank=rank, world_size=4)
found = {{}}
for sizes in ((1, 4), (2, 2)):
    name, found_now = "x".join(map(str, sizes)), {{}}
    mesh = torch.distributed.init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
    given = (mesh, "dp")
    found_now["plain"] = seen(Loader(split, 4, keys=True, workers=0, mesh=given))
    names = ("replicate", "shard", "tp")
    hybrid = torch.distributed.init_device_mesh("cpu", (sizes[0], 1, sizes[1]), mesh_dim_names=names)
    found_now["hybrid"] = seen(Loader(split, 4, keys=True, workers=0, mesh=(hybrid, *names[:2])))
    found_now["data module"] = seen(module({folder!r}, mesh=given).train_dataloader())

    strategy = FabricStrategy(lambda net, mesh: net, *sizes)
    fabric = lightning.Fabric(accelerator="cpu", devices=4, strategy=strategy)
    fabric.launch()
    own = fabric.strategy.device_mesh, "data_parallel"
    found_now["fabric"] = seen(fabric.setup_dataloaders(outer(own)))

    run, net = trainer({out!r}, devices=4, strategy=ModelParallelStrategy(*sizes)), Sharded()
    run.fit(net, datamodule=module({folder!r}, batch_size=4))
    found_now["lightning"] = seen(net.seen["train"])

    if {others!r}:
        import accelerate, transformers
        from torchdata.stateful_dataloader import StatefulDataLoader
        found_now["torchdata"] = seen(outer(given, StatefulDataLoader))
        _ = accelerate.Accelerator(cpu=True).prepare(torch.nn.Linear(1, 1))
        found_now["accelerate"] = seen(outer(given))

        class Trainer(transformers.Trainer):
            def get_train_dataloader(self):
                return outer(given, collate_fn=lambda b: dict(zip(NAMES, b)))

        passed = []
        settings = {{"num_train_epochs": 1, "use_cpu": True, "report_to": "none", "save_strategy": "no"}}
        arguments = transformers.TrainingArguments({out!r}, disable_tqdm=True, **settings)
        Trainer(Linear(), arguments).train()
        found_now["transformers"] = passed
    found[name] = found_now
open({out!r} + "/rank" + str(rank) + ".json", "w").write(json.dumps(found))
"""


@pytest.mark.slow
def test_every_way_of_the_pages_gives_peers_the_same_batches(photos, tmp_path):
    others = ["accelerate", "torchdata", "transformers"]
    example = str(ROOT / "examples" / "plain_pytorch.py")
    paths = {"folder": str(photos), "out": str(tmp_path), "example": example}
    has_others = all(map(importlib.util.find_spec, others))
    imports = "import torch, lightning" + has_others * ", accelerate, transformers"
    done = run_processes(tmp_path, 4, WAYS.format(**paths, others=has_others), imports)
    assert done.returncode == 0, done.stderr[-3000:]
    accuracies = re.findall(r"^epoch [01]: accuracy 0\.\d{3} of 23 images$", done.stdout, re.M)
    assert len(accuracies) == 2, "the example: one network, and every image once"
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(4)]
    for name in found[0]["1x4"]:
        same = [rank["1x4"][name] for rank in found]
        assert all(other == same[0] for other in same), f"{name}: tensor-parallel peers"
        one, peer, two, its_peer = (rank["2x2"][name] for rank in found)
        assert one == peer and two == its_peer, f"{name}: tensor-parallel peers"
        keys = [[key for keys, _ in part for key in keys] for part in (same[0], one, two)]
        assert sorted(keys[0]) == sorted(keys[1] + keys[2]) == ALL, f"{name}: every sample once"
    assert len(found[0]["1x4"]) == (8 if has_others else 5)


GONE = """torch.distributed.barrier()
torch.distributed.destroy_process_group()
try:
    next(iter(loader))
    error = ""
except ValueError as raised:
    error = str(raised)
"""

BROKEN = """
import json, warnings
import torch
from tarpeg import CenterCrop, Loader, Split

split = Split({shard!r}, CenterCrop(8))
torch.distributed.init_process_group("gloo")
loader = Loader(split, 4, keys=True, workers=0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    list(loader)
{gone}whole = sum(len(images) for images, *_ in Loader(split, 4, workers=0))
found = [[str(each.message) for each in caught], error, whole]
open({out!r} + "/rank" + str(rank) + ".json", "w").write(json.dumps(found))
"""


def test_each_rank_warns_of_the_broken_images_it_reads_and_of_a_group_that_has_gone(shard_of, tmp_path):
    names = [f"k{number:04d}" for number in range(24)]
    broken = set(names[::5])
    shard = shard_of(
        *(sample(n, b"no image") if name in broken else sample(n) for n, name in enumerate(names))
    )
    done = run_processes(tmp_path, 2, BROKEN.format(shard=str(shard), out=str(tmp_path), gone=GONE))
    assert done.returncode == 0, done.stderr
    warned = set()
    for rank in range(2):
        texts, error, whole = json.loads((tmp_path / f"rank{rank}.json").read_text())
        found = [
            re.fullmatch(rf"rank {rank}: shard .*, key '?(k\d+)'?: .* takes its place.*", text)
            for text in texts
        ]
        assert all(found) and len(found) < len(broken), texts
        warned |= {each[1] for each in found}
        assert error.startswith(f"this loader is of rank {rank} of 2, and the process group was destroyed")
        assert whole == 24
    assert warned == broken


PEERS = """
import json, warnings
import torch
from tarpeg import CenterCrop, Loader, Split

split = Split({shard!r}, CenterCrop(8))
torch.distributed.init_process_group("gloo")
mesh = torch.distributed.init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
other = torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
found = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    list(Loader(split, 4, workers=0, mesh=(mesh, "dp")))
loader = Loader(split, 4, workers=0, mesh=(other, "dp"))
{gone}found = [[str(each.message) for each in caught], error]
open({out!r} + "/rank" + str(rank) + ".json", "w").write(json.dumps(found))
"""


def test_peers_warn_once_and_the_loader_of_a_mesh_that_has_gone_is_refused(shard_of, tmp_path):
    shard = shard_of(*(sample(number, b"no image" if number % 6 == 0 else None) for number in range(24)))
    done = run_processes(tmp_path, 2, PEERS.format(shard=str(shard), out=str(tmp_path), gone=GONE))
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    counts = [sum("takes its place" in text for text in texts) for texts, _ in found]
    assert counts == [4, 0]
    assert all("and the process group was destroyed" in error for _, error in found)
