"""The state of a loader: the data that it belongs to, and states that nobody's loader wrote."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tarpeg
from helpers.loaders import keys_of, load
from helpers.small_tars import sample, write_tar
from helpers.training import Net, fitted, trainer
from tarpeg.errors import ResumeError

NAMES = [f"part-{number}.tar" for number in range(6)]


def folder_of(folder, first=0, names=NAMES):
    """Six shards of four samples; ``first``: the number of the first sample, which its pixels depend on."""
    folder.mkdir()
    for number, name in enumerate(names):
        numbers = range(first + 4 * number, first + 4 * number + 4)
        write_tar(folder / name, [member for each in numbers for member in sample(each)])
    return folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("state") / "shards")


def state_at(source, batches, **options):
    """The state of a loader after that many batches."""
    loader = load(source, workers=0, threads=0, **options)
    for _ in zip(range(batches), loader, strict=False):
        pass
    return json.loads(json.dumps(loader.state_dict()))


def renamed(shards, folder):
    shutil.copytree(shards, folder)
    (folder / NAMES[0]).rename(folder / "part-9.tar")
    return folder


CHANGES = {
    "a renamed shard": (renamed, "of other data: file 0, .* was part-0.tar .*, and is part-1.tar"),
    "another order": (
        lambda shards, _: [shards / name for name in reversed(NAMES)],
        r"of other data in another order: file 0, .* was part-0.tar .*, and is part-5.tar",
    ),
    "another data set": (
        lambda _, folder: folder_of(folder, first=100),
        "of other data: file 0, .* was part-0.tar .*, and is part-0.tar ",
    ),
    "a shard less": (
        lambda shards, _: [shards / name for name in NAMES[:-1]],
        r"file 5, .* was part-5.tar .*, and is missing now \(6 files then, 5 now\)",
    ),
}


@pytest.mark.parametrize("at", [2, 6], ids=["within", "end"])
@pytest.mark.parametrize("change", CHANGES)
def test_other_data_is_an_error_with_the_first_difference(shards, tmp_path, change, at):
    make, text = CHANGES[change]
    state, other = state_at(shards, at), make(shards, tmp_path / "other")
    loader = load(other, workers=0, threads=0)
    with pytest.raises(ResumeError, match=rf"{text}.*give allow_other_data=True .*LoaderConfig"):
        loader.load_state_dict(state)
    allowed = load(other, workers=0, threads=0, allow_other_data=True)
    if change == "a shard less" and at == 2:
        with pytest.raises(ResumeError, match=r"samples was 24 .* and is 20 now"):
            allowed.load_state_dict(state)
    else:
        allowed.load_state_dict(state)
        assert len(keys_of(allowed)) == (16 if at == 2 else len(allowed) * 4)


def test_moved_data_goes_on(shards, tmp_path):
    state = state_at(shards, 2)
    moved = shutil.copytree(shards, tmp_path / "moved", copy_function=shutil.copyfile)
    loader = load(moved, workers=0, threads=0)
    loader.load_state_dict(state)
    whole = load(shards, workers=0, threads=0)
    assert keys_of(loader) == keys_of(whole)[8:]


def test_a_cache_is_known_by_its_checksums(shards, tmp_path):
    tiled, packed = tmp_path / "tiled", tmp_path / "packed"
    tarpeg.build_cache(shards, tiled, tarpeg.Tiled(16), executor=0)
    tarpeg.build_cache(shards, packed, tarpeg.Packed(), executor=0)
    before, state = state_at(shards, 2), state_at(tiled, 2)
    same = shutil.copytree(tiled, tmp_path / "same", copy_function=shutil.copyfile)
    load(same, workers=0, threads=0).load_state_dict(state)
    for given in (before, state):
        with pytest.raises(ResumeError, match=r"is part-0\.tar \(sha256 .*lossless cache .*allow_other_data"):
            load(packed, workers=0, threads=0).load_state_dict(given)
        loader = load(packed, workers=0, threads=0, allow_other_data=True)
        loader.load_state_dict(given)
        assert keys_of(loader) == keys_of(load(shards, workers=0, threads=0))[8:]


def test_many_files_are_a_hash_from_the_thousandth_on(tmp_path):
    class Many(tarpeg.Source):
        def __init__(self, *, last):
            self.last = last

        def __len__(self):
            return 20

        def keys(self, ids):
            return [str(id) for id in np.asarray(ids)]

        def members(self, ids, extension):
            return [None for _ in np.asarray(ids)]

        def extensions(self, id):
            return ["jpg"]

        def identities(self):
            return [*(f"file{number}" for number in range(1200)), self.last]

    one, other = (
        tarpeg.Loader(tarpeg.Split(Many(last=name), tarpeg.Whole(8), target=None), workers=0)
        for name in ("x", "y")
    )
    state = one.state_dict()
    assert len(state["data"]) < 20_000
    one.load_state_dict(state)
    with pytest.raises(ResumeError, match=r"file 1000, .* 201 more, \w+, .* 201 more"):
        other.load_state_dict(state)


def test_a_stream_is_known_by_the_names_of_its_shards(shards, tmp_path):
    def streamed(names, folder=shards):
        urls = [f"pipe:cat {folder / name}  # token/SECRET" for name in names]
        return load(urls, workers=0, threads=0, streaming=tarpeg.Streaming(24))

    state = streamed(NAMES).state_dict()
    assert state["data"].split("\n") == NAMES
    streamed(NAMES, tmp_path).load_state_dict(state)
    with pytest.raises(ResumeError, match="in another order: file 0"):
        streamed(NAMES[::-1]).load_state_dict(state)


WITHOUT = ...
TAMPERED = [
    ("batches", -1),
    ("batches", -25),
    ("batches", 2**31),
    ("batches", 7),
    ("batches", "2"),
    ("batches", 2.0),
    ("batches", True),
    ("batches", None),
    ("batches", WITHOUT),
    ("epoch", -1),
    ("epoch", 2**53),
    ("epoch", [0]),
    ("epoch", WITHOUT),
    ("len", 0),
    ("len", -1),
    ("len", 2**40),
    ("len", WITHOUT),
    ("samples", 0),
    ("samples", 10**9),
    ("samples", "24"),
    ("samples", WITHOUT),
    ("global_batch", 0),
    ("global_batch", -4),
    ("global_batch", WITHOUT),
    ("order", -1),
    ("order", {}),
    ("order", WITHOUT),
    ("seed", "0"),
    ("seed", WITHOUT),
    ("version", 2),
    ("version", -1),
    ("version", "1"),
    ("version", None),
    ("data", 5),
    ("data", None),
    ("data", WITHOUT),
]


@pytest.mark.parametrize(("field", "value"), TAMPERED, ids=str)
def test_a_state_that_no_loader_wrote_is_an_error_with_the_field(shards, field, value):
    loader = load(shards, workers=0, threads=0)
    state = {**state_at(shards, 2), field: value}
    if value is WITHOUT:
        del state[field]
    before = loader.state_dict()
    with pytest.raises(
        ResumeError, match=rf"\b{'len' if field == 'samples' and value == 10**9 else field}\b"
    ):
        loader.load_state_dict(state)
    assert loader.state_dict() == before and len(keys_of(loader)) == 24, "nothing of it was taken over"


@pytest.mark.parametrize("state", [None, 5, [], "epoch"])
def test_what_is_no_state_is_an_error(shards, state):
    with pytest.raises(ResumeError, match=r"is a .*, not a dict"):
        load(shards, workers=0, threads=0).load_state_dict(state)


@pytest.mark.parametrize(
    ("field", "value"), [("shards", WITHOUT), ("shards", 0), ("batches", 7), ("len", -2)]
)
def test_a_tampered_state_of_a_stream(shards, field, value):
    loader = load(shards, workers=0, threads=0, streaming=tarpeg.Streaming(24))
    state = {**loader.state_dict(), field: value}
    if value is WITHOUT:
        del state[field]
    with pytest.raises(ResumeError, match=rf"\b{field}\b"):
        loader.load_state_dict(state)


def test_a_state_of_a_version_without_data_is_compared_by_what_it_has(shards):
    state = state_at(shards, 2)
    del state["version"], state["data"]
    loader = load(shards, workers=0, threads=0)
    loader.load_state_dict(state)
    assert keys_of(loader) == keys_of(load(shards, workers=0, threads=0))[8:]
    with pytest.raises(ResumeError, match=r"seed was 0 .* and is 9"):
        load(shards, workers=0, threads=0, seed=9).load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"train": {}, "classes": []}, "no field 'epoch'"),
        ({"train": 5}, "is a int, not a dict"),
        ({"train": None, "classes": 5}, "classes=5"),
        ({"train": None, "classes": [1]}, r"classes=\[1\]"),
        ([], "is a list, not a dict"),
    ],
)
def test_a_tampered_state_of_a_data_module(shards, tmp_path, state, text):
    class Tampering(Net):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["ShardDataModule"] = state

    run, net = trainer(tmp_path), Tampering()
    run.fit(net, datamodule=tarpeg.ShardDataModule(tarpeg.Split(shards, tarpeg.Whole(8)), workers=0))
    run.save_checkpoint(tmp_path / "x.ckpt")
    again = tarpeg.ShardDataModule(tarpeg.Split(shards, tarpeg.Whole(8)), workers=0)
    with pytest.raises(ResumeError, match=text):
        fitted(tmp_path, again, None, tmp_path / "x.ckpt", max_epochs=2)
