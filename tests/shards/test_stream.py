"""Shards read as streams: batches, weaker guarantees, refused options, and errors."""

from __future__ import annotations

import contextlib
import functools
import http.server
import itertools
import re
import tarfile
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from helpers.pictures import jpeg
from helpers.small_tars import sample, write_tar
from helpers.training import Net, trainer
from tarpeg import (
    Blocks,
    CenterCrop,
    ExtraBatch,
    RandomResizedCrop,
    ShardDataModule,
    ShardError,
    Split,
    Streaming,
    build_cache,
)
from tarpeg.loader.config import LoaderConfig
from tarpeg.loader.loader import Loader
from tarpeg.loader.stream_loader import StreamingLoader
from tarpeg.shards.index import build
from tarpeg.shards.stream import expand_urls

ALL = [f"k{number:04d}" for number in range(24)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six shards of four samples; broken ones in bad/."""
    folder = tmp_path_factory.mktemp("streams")
    for shard in range(6):
        members = [member for n in range(4 * shard, 4 * shard + 4) for member in sample(n)]
        write_tar(folder / f"s-{shard}.tar", members)
    (folder / "bad").mkdir()
    (folder / "bad/broken.tar").write_bytes(b"<html>" * 500)
    write_tar(folder / "bad/twice.tar", [*sample(0), *sample(0)])
    write_tar(folder / "bad/hollow.tar", [("a.txt", b"hello")])
    return folder


@pytest.fixture(scope="module")
def server(folder):
    """URL of the folder on a web server, which truncates s-cut.tar and stalls in s-stall.tar."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if not self.path.startswith(("/s-cut", "/s-stall")):
                return super().do_GET()
            content = (folder / "s-0.tar").read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[:4096])
            if "stall" in self.path:
                time.sleep(30)
            return None

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        served.daemon_threads, served.block_on_close = True, False
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()


def load(source, *, rank=0, world=1, shuffle=True, keys=True, streaming=True, config=None, **options):
    split = Split(source, **{"crop": RandomResizedCrop(32), "flip": 0.5, "streaming": streaming, **options})
    config = LoaderConfig(**{"batch_size": 4, "workers": 0, "threads": 0, "max_bad": 1.0, **(config or {})})
    return StreamingLoader(split, config, shuffle=shuffle, keys=keys, rank=rank, world=world)


def taken(loader):
    with contextlib.closing(loader):
        return list(loader)


def keys_of(batches):
    return [key for batch in batches for key in batch.key]


ENGINES = ({"workers": 0, "threads": 0}, {"workers": 0, "threads": 2}, {"workers": 2})


@pytest.mark.parametrize("config", ENGINES, ids=str)
def test_a_pass_over_all_shards_is_every_sample_once(server, config):
    batches = taken(load(server + "/s-{0..5}.tar", config=config))
    assert sorted(keys_of(batches)) == ALL
    assert keys_of(batches) != ALL, "shuffled"
    for batch in batches:
        assert batch.image.shape == (4, 3, 32, 32) and batch.image.dtype == torch.uint8
        assert batch.label.tolist() == [int(key[1:]) % 5 for key in batch.key]


def test_the_same_pixels_as_from_an_index(folder):
    """Compared with a crop without randomness, because sample numbers differ."""
    split = Split(folder, CenterCrop(32))
    indexed = Loader(
        split.open(), split, LoaderConfig(4, workers=0, threads=0), shuffle=False, keys=True, rank=0, world=1
    )
    streamed = taken(load(folder, crop=CenterCrop(32), flip=0.0, shuffle=False))
    for one, other in zip(taken(indexed), streamed, strict=True):
        assert torch.equal(one.image, other.image) and one[1:][1] == other[1:][1]


def test_without_a_length_len_is_a_type_error(folder):
    loader = load(folder)
    with pytest.raises(TypeError, match=r"no length unless Streaming\(samples="):
        len(loader)
    assert not isinstance(loader.sampler, list) and loader.batch_sampler is None


@pytest.mark.parametrize("samples", [6, 24, 41])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_length_is_kept_by_all_ranks(folder, samples, world, workers):
    config = {"global_batch_size": 6, "batch_size": 1, "workers": workers}
    ranks = [
        load(folder, rank=rank, world=world, streaming=Streaming(samples), config=config)
        for rank in range(world)
    ]
    batches = [taken(loader) for loader in ranks]
    assert {len(rank) for rank in batches} == {len(ranks[0])}
    assert sum(len(batch.key) for rank in batches for batch in rank) == samples
    shards = [{int(key[1:]) // 4 for key in keys_of(rank)} for rank in batches]
    assert all(not one & other for one, other in itertools.combinations(shards, 2)), "shards of their own"


@pytest.mark.parametrize("config", ENGINES, ids=str)
def test_batches_are_a_function_of_seed_and_epoch(folder, config):
    runs = []
    for _ in range(2):
        loader = load(folder, streaming=Streaming(24, buffer=6), config=config)
        epochs = [list(loader) for _ in range(2)]
        loader.sampler.set_epoch(1)
        epochs.append(list(loader))
        loader.close()
        runs.append(epochs)
    for one, other in zip(*runs, strict=True):
        assert keys_of(one) == keys_of(other)
        assert all(torch.equal(a.image, b.image) for a, b in zip(one, other, strict=True))
    assert keys_of(runs[0][0]) != keys_of(runs[0][1]) and keys_of(runs[0][1]) == keys_of(runs[0][2])
    another = taken(load(folder, config={**config, "seed": 1}))
    assert keys_of(another) != keys_of(runs[0][0])


def test_the_crop_of_a_sample_is_equal_in_any_process(folder):
    runs = []
    for config in ENGINES:
        batches = taken(load(folder, config=config))
        images = torch.cat([batch.image for batch in batches])
        runs.append(dict(zip(keys_of(batches), images, strict=True)))
    for run in runs[1:]:
        assert all(torch.equal(run[key], runs[0][key]) for key in ALL)


def test_a_second_pass_is_another_crop(tmp_path):
    write_tar(tmp_path / "x.tar", sample(0))
    (batch,) = taken(load(tmp_path, streaming=Streaming(3)))
    assert batch.key == ["k0000"] * 3
    assert not torch.equal(batch.image[0], batch.image[1]) and not torch.equal(batch.image[1], batch.image[2])


def test_views_members_and_targets(folder):
    options = {"views": 2, "members": ["cls"], "target": ["cls", "cls"], "shuffle": False}
    (first, *_) = taken(load(folder, **options))
    assert type(first) is ExtraBatch and first.image.shape == (2, 4, 3, 32, 32)
    assert first.label.tolist() == [[n, n] for n in range(4)]
    assert first.extra == [{"cls": b"%d" % n} for n in range(4)]


def test_members_are_not_unpickled_or_executed(tmp_path):
    evil = b"cos\nsystem\n(S'touch " + str(tmp_path / "evil").encode() + b"'\ntR."
    extensions = ("pyd", "pickle", "pth", "npy", "ten")
    members = [*sample(0), *((f"k0000.{extension}", evil) for extension in extensions)]
    write_tar(tmp_path / "x.tar", members)
    (batch,) = taken(load(tmp_path, members=extensions))
    assert batch.extra == [dict.fromkeys(extensions, evil)] and not (tmp_path / "evil").exists()


def test_pipes_and_file_urls(folder):
    assert len(taken(load(f"pipe:cat {folder}/s-{{0..1}}.tar", streaming=True))) == 2
    assert len(keys_of(taken(load(f"file://{folder}/s-0.tar")))) == 4
    assert expand_urls(["s3://bucket/{a,b}.tar", f"{folder}/s-[01].tar"]) == (
        *("s3://bucket/a.tar", "s3://bucket/b.tar"),
        *(f"{folder}/s-0.tar", f"{folder}/s-1.tar"),
    )


def test_other_protocols_are_opened_by_fsspec(folder):
    import fsspec

    with fsspec.open("memory://shards/a.tar", "wb") as file:
        file.write((folder / "s-3.tar").read_bytes())
    assert sorted(keys_of(taken(load("memory://shards/a.tar")))) == ALL[12:16]


def test_without_curl_http_is_opened_by_fsspec(server, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr("tarpeg.shards.stream.shutil.which", lambda _: None)
    assert sorted(keys_of(taken(load(server + "/s-2.tar")))) == ALL[8:12]


# --- errors


@pytest.mark.parametrize(
    ("world", "workers", "text"),
    [
        (7, 0, "6 shards are too few to stream on 7 ranks"),
        (2, 4, r"6 shards are too few to stream on 2 ranks with 4 worker .* Give workers=3 or fewer"),
    ],
)
def test_a_rank_or_worker_without_a_shard_is_an_error(folder, world, workers, text):
    with pytest.raises(ShardError, match=text):
        load(folder, world=world, streaming=Streaming(24), config={"batch_size": 8, "workers": workers})


def test_several_ranks_need_a_length(folder):
    text = r"streaming on 2 ranks needs the number of samples .* Streaming\(samples="
    with pytest.raises(ShardError, match=text):
        load(folder, world=2)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s-9.tar", "exit 22|status 22"),
        ("s-cut.tar", "exit 18|status 18|unexpected end of data"),
        ("bad/broken.tar", "not a gzip file|could not be opened|invalid header|truncated"),
        ("bad/twice.tar", "duplicate file name"),
        ("bad/hollow.tar", "no image in the shards"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*no image and is left out")
def test_a_broken_shard_is_named(server, name, text, workers, shuffle):
    loader = load(f"{server}/{name}", config={"workers": workers}, shuffle=shuffle)
    with pytest.raises(ShardError, match=rf"{re.escape(name)}.*({text})|({text}).*{name}"):
        taken(loader)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("where", ["between", "inside", "damaged"])
def test_a_stream_that_is_not_complete_is_an_error(tmp_path, where, workers):
    path = write_tar(tmp_path / "t.tar", [member for n in range(10) for member in sample(n)])
    with tarfile.open(path) as tar:
        middle = tar.getmember("k0005.jpg").offset
    data = bytearray(path.read_bytes())
    data[middle + 3] ^= where == "damaged"
    path.write_bytes(data[: {"between": middle, "inside": middle + 100}.get(where, len(data))])
    what = "damaged" if where == "damaged" else "truncated"
    for url in (str(path), f"pipe:cat {path}"):
        with pytest.raises(ShardError, match=rf"t\.tar cannot be read as a stream: it is {what}"):
            taken(load(url, shuffle=False, config={"workers": workers}))


def linked(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.LNKTYPE, target
    return info


def test_a_hard_linked_member_is_an_error(tmp_path):
    """GNU tar writes samples that share a file for their label so."""
    members = [*sample(0), sample(1)[0], linked("k0001.cls", "k0000.cls")]
    path = write_tar(tmp_path / "t.tar", members)
    text = r"t\.tar: 'k0001\.cls' is stored as a hard link to 'k0000\.cls'.*--hard-dereference"
    with pytest.raises(ShardError, match=text):
        build(path)
    with pytest.raises(ShardError, match=text):
        taken(load(path))
    with pytest.raises(ShardError, match=text):
        build_cache(path, tmp_path / "c", executor=0)
    members = [*sample(0), linked("README", "k0000.jpg"), linked("__meta__/a.jpg", "k0000.jpg")]
    path = write_tar(tmp_path / "t.tar", members)
    assert build(path).samples.shape == (3, 1) and keys_of(taken(load(path))) == ["k0000"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_of_one_key_are_separate_samples(tmp_path, shuffle):
    members = [m for n, label in ((0, 0), (1, 1), (0, 2), (2, 3)) for m in sample(n, label=b"%d" % label)]
    (batch,) = taken(load(write_tar(tmp_path / "t.tar", members), shuffle=shuffle))
    pairs = list(zip(batch.key, batch.label.tolist(), strict=True))
    assert sorted(pairs) == [("k0000", 0), ("k0000", 2), ("k0001", 1), ("k0002", 3)]
    assert shuffle or batch.label.tolist() == [0, 1, 2, 3]


def test_errors_of_opening_have_the_url():
    for url in ("nonsense://host/a.tar", "pipe:exit 3"):
        with pytest.raises(ShardError, match=rf"shard {re.escape(url)} cannot be read as a stream"):
            taken(load(url))
    with pytest.raises(ShardError, match=r"nowhere\.tar does not exist"):
        load("/nowhere.tar")
    with pytest.raises(ShardError, match="is there twice"):
        load(["http://x/a.tar", "http://x/{a,b}.tar"])
    with pytest.raises(ShardError, match="has no shards"):
        load([])


def test_a_stalled_server_does_not_delay_closing(server):
    loader = load([server + "/s-0.tar", server + "/s-stall.tar"], shuffle=False)
    iterator = iter(loader)
    assert len(next(iterator).key) == 4
    begin = time.monotonic()
    del iterator
    loader.close()
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_images_and_samples_without_one(tmp_path, workers):
    members = [*sample(0), *sample(1, b""), ("k0002.txt", b"no image"), *sample(3)]
    write_tar(tmp_path / "x.tar", members)
    with pytest.warns(UserWarning) as told:
        (batch,) = taken(load(tmp_path, shuffle=False, config={"workers": workers}))
    assert len(batch.key) == 3 and set(batch.key) <= {"k0000", "k0003"}
    texts = [str(entry.message) for entry in told]
    assert any(re.search(r"x\.tar, key 'k0001': image is EMPTY .*takes its place", text) for text in texts)
    assert any(re.search(r"x\.tar: key 'k0002' has no image and is left out", text) for text in texts)


def test_labels_that_are_missing_or_not_integers(tmp_path):
    write_tar(tmp_path / "x.tar", [*sample(0), *sample(1, label=b"cat")])
    with pytest.raises(ShardError, match=r"x\.tar, key 'k0001': member 'cls' is 'cat'"):
        taken(load(tmp_path))
    write_tar(tmp_path / "x.tar", [*sample(0), ("k0001.jpg", jpeg("420", 20, 20))])
    with pytest.raises(ShardError, match=r"key 'k0001' has no member 'cls', only \['jpg'\]"):
        taken(load(tmp_path))


def test_options_that_need_an_index_are_refused():
    for options, text in (
        ({"subset": 0.5}, "subset=0.5 needs an index"),
        ({"weights": [1.0]}, r"weights=\[1\.0\] needs an index"),
        ({"shuffle": "blocks"}, "shuffle='blocks' must be True or False: streams"),
        ({"shuffle": Blocks()}, "shuffle=Blocks.* must be True or False: streams"),
        ({"streaming": 5}, "streaming=5 must be"),
    ):
        with pytest.raises(ValueError, match=text):
            Split("x", CenterCrop(8), **{"streaming": True, **options})
    for settings in ({"samples": 0}, {"buffer": 0}, {"samples": 1.5}, {"buffer": True}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))}=.* of Streaming"):
            Streaming(**settings)


# --- life cycle of a loader


@pytest.mark.parametrize("samples", [24, None])
def test_resuming_within_an_epoch_warns_and_keeps_the_count(folder, samples):
    loader = load(folder, streaming=Streaming(samples))
    iterator = iter(loader)
    begun = keys_of([next(iterator), next(iterator)])
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 2)
    another = load(folder, streaming=Streaming(samples))
    with pytest.warns(UserWarning, match=r"a stream cannot go back to batch 2 of epoch 0"):
        another.load_state_dict(state)
    left = keys_of(another)
    assert len(left) == (16 if samples else 24)
    if samples:
        assert left[:8] != begun, "not the same samples again"
        with pytest.warns(UserWarning, match="cannot go back"):
            another.load_state_dict({**state, "batches": 6, "len": 12})
        assert keys_of(another) == [], "there are no more than 6 now"
    rest = list(iterator)
    assert len(rest) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        another.load_state_dict(loader.state_dict())
    assert another.sampler.begin() == (1, 0), "the end of an epoch is the beginning of the next"


def test_an_unsized_epoch_may_drop_its_last_batch(folder):
    for drop_last, sizes in ((True, [5, 5, 5, 5]), (False, [5, 5, 5, 5, 4])):
        batches = taken(load(folder, config={"batch_size": 5, "drop_last": drop_last}))
        assert [len(batch.key) for batch in batches] == sizes


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_iterator_retires_the_old_and_close_ends_all(folder, children, workers):
    loader = load(folder, streaming=Streaming(24), config={"workers": workers})
    old = iter(loader)
    next(old)
    assert len(keys_of(loader)) == 24
    with pytest.raises(RuntimeError, match="retired"):
        next(old)
    next(iter(loader))
    loader._iterator = None  # as Lightning ends a loader
    deadline = time.monotonic() + 5
    while children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children() == set()


def test_a_data_module_streams(server):
    split = Split(server + "/s-{0..5}.tar", RandomResizedCrop(32), streaming=Streaming(samples=16))
    module = ShardDataModule(train=split, batch_size=8, workers=0)
    module.setup("fit")
    images, labels = next(iter(module.train_dataloader()))
    assert images.shape == (8, 3, 32, 32) and labels.dtype == torch.int64
    assert len(module.train_dataloader()) == 2
    module.teardown()


@pytest.mark.parametrize("samples", [24, None])
def test_lightning_fits_on_a_stream(folder, tmp_path, samples):
    split = Split(folder, RandomResizedCrop(16), streaming=Streaming(samples))
    net = Net()
    run = trainer(tmp_path, max_epochs=2)
    run.fit(net, datamodule=ShardDataModule(split, split, batch_size=4, workers=0, keys=True))
    assert [sorted(epoch) for epoch in net.keys("train", 2)] == [ALL, ALL]
    assert net.keys("train", 2)[0] != net.keys("train", 2)[1]
    assert run.global_step == 12 and len(net.seen["validate"]) == 12 + 2


def test_the_buffer_shuffles(folder):
    """A buffer of 1 does not shuffle; a large one separates neighbours."""
    runs = {
        buffer: [int(k[1:]) for k in keys_of(taken(load(folder, streaming=Streaming(24, buffer))))]
        for buffer in (1, 24)
    }
    steps = {buffer: int((np.abs(np.diff(order)) == 1).sum()) for buffer, order in runs.items()}
    assert steps[1] >= 18 > 6 > steps[24]
