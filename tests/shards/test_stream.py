"""Shards read as streams: batches, weaker guarantees, refused options, and errors."""

from __future__ import annotations

import contextlib
import functools
import http.server
import itertools
import re
import ssl
import subprocess
import tarfile
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from helpers import loaders
from helpers.loaders import keys_of
from helpers.pictures import jpeg
from helpers.small_tars import sample, write_tar
from helpers.training import Net, trainer
from tarpeg import (
    Blocks,
    Boxes,
    CenterCrop,
    DecodeError,
    Loader,
    RandomResizedCrop,
    ShardDataModule,
    ShardError,
    Split,
    Streaming,
)
from tarpeg.cache.build import build_cache
from tarpeg.loader.batch import ExtraBatch
from tarpeg.shards import urls
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
    (folder / "bad/broken.tar").write_bytes(b"no tar" * 500)
    (folder / "bad/login.tar").write_bytes(b"<html>please log in</html>")
    write_tar(folder / "bad/twice.tar", [*sample(0), *sample(0)])
    write_tar(folder / "bad/hollow.tar", [("a.txt", b"hello")])
    whole = (folder / "s-0.tar").read_bytes()
    with tarfile.open(folder / "s-0.tar") as tar:
        middle = tar.getmember("k0002.jpg").offset
    (folder / "bad/between.tar").write_bytes(whole[:middle])
    (folder / "bad/inside.tar").write_bytes(whole[: middle + 100])
    (folder / "bad/damaged.tar").write_bytes(whole[:middle] + b"?" + whole[middle + 1 :])
    return folder


@pytest.fixture(scope="module")
def server(folder):
    """URL of the folder on a web server: s-cut.tar is truncated, s-stall.tar stalls, s-busy.tar is a 503."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if "busy" in self.path:
                return self.send_error(503)
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


load = functools.partial(loaders.load, streaming=True, workers=0, threads=0, max_bad=1.0)


def taken(loader):
    with contextlib.closing(loader):
        return list(loader)


ENGINES = ({"workers": 0, "threads": 0}, {"workers": 0, "threads": 2}, {"workers": 2})


def test_a_pass_is_every_sample_once_with_the_same_crops_in_any_process(server):
    runs = []
    for config in ENGINES:
        batches, images = taken(load(server + "/s-{0..5}.tar", **config)), {}
        for batch in batches:
            assert batch.image.shape == (4, 3, 32, 32) and batch.image.dtype == torch.uint8
            assert batch.label.tolist() == [int(key[1:]) % 5 for key in batch.key]
            images |= zip(batch.key, batch.image, strict=True)
        assert sorted(keys_of(batches)) == ALL
        assert keys_of(batches) != ALL, "shuffled"
        runs.append(images)
    for run in runs[1:]:
        assert all(torch.equal(run[key], runs[0][key]) for key in ALL)


def test_the_same_pixels_as_from_an_index(folder):
    """Compared with a crop without randomness, because sample numbers differ."""
    options = {"crop": CenterCrop(32), "flip": 0.0, "shuffle": False}
    indexed = taken(load(folder, streaming=False, **options))
    for one, other in zip(indexed, taken(load(folder, **options)), strict=True):
        assert torch.equal(one.image, other.image) and one.key == other.key


@pytest.mark.parametrize("samples", [6, 24, 41])
@pytest.mark.parametrize(
    ("world", "workers"),
    [(1, 0), (2, 0), (3, 0), (3, 2), *(pytest.param(world, 2, marks=pytest.mark.slow) for world in (1, 2))],
)
def test_a_length_is_kept_by_all_ranks(folder, samples, world, workers):
    options = {"global_batch_size": 6, "batch_size": 1, "workers": workers, "streaming": Streaming(samples)}
    ranks = [load(folder, rank=rank, world=world, **options) for rank in range(world)]
    batches = [taken(loader) for loader in ranks]
    assert {len(rank) for rank in batches} == {len(ranks[0])}
    assert sum(len(batch.key) for rank in batches for batch in rank) == samples
    shards = [{int(key[1:]) // 4 for key in keys_of(rank)} for rank in batches]
    assert all(not one & other for one, other in itertools.combinations(shards, 2)), "shards of their own"


@pytest.mark.parametrize("config", ENGINES, ids=str)
def test_batches_are_a_function_of_seed_and_epoch(folder, config):
    runs = []
    for _ in range(2):
        loader = load(folder, streaming=Streaming(24, buffer=6), **config)
        epochs = [list(loader) for _ in range(2)]
        loader.sampler.set_epoch(1)
        epochs.append(list(loader))
        loader.close()
        runs.append(epochs)
    for one, other in zip(*runs, strict=True):
        assert keys_of(one) == keys_of(other)
        assert all(torch.equal(a.image, b.image) for a, b in zip(one, other, strict=True))
    assert keys_of(runs[0][0]) != keys_of(runs[0][1]) and keys_of(runs[0][1]) == keys_of(runs[0][2])
    another = taken(load(folder, **config, seed=1))
    assert keys_of(another) != keys_of(runs[0][0])


def test_a_second_pass_is_another_crop(shard_of):
    (batch,) = taken(load(shard_of(sample(0)), streaming=Streaming(3)))
    assert batch.key == ["k0000"] * 3
    assert not torch.equal(batch.image[0], batch.image[1]) and not torch.equal(batch.image[1], batch.image[2])


def test_views_members_and_targets(folder):
    options = {"views": 2, "members": ["cls"], "target": ["cls", "cls"], "shuffle": False}
    (first, *_) = taken(load(folder, **options))
    assert type(first) is ExtraBatch and first.image.shape == (2, 4, 3, 32, 32)
    assert first.label.tolist() == [[n, n] for n in range(4)]
    assert first.extra == [{"cls": b"%d" % n} for n in range(4)]


def test_members_are_not_unpickled_or_executed(shard_of, tmp_path):
    evil = b"cos\nsystem\n(S'touch " + str(tmp_path / "evil").encode() + b"'\ntR."
    extensions = ("pyd", "pickle", "pth", "npy", "ten")
    path = shard_of(sample(0), [(f"k0000.{extension}", evil) for extension in extensions])
    (batch,) = taken(load(path, members=extensions))
    assert batch.extra == [dict.fromkeys(extensions, evil)] and not (tmp_path / "evil").exists()


def test_sources_of_every_kind(folder, server, monkeypatch):
    def read(source):
        return keys_of(taken(load(source, shuffle=False)))

    assert read(f"pipe:cat {folder}/s-{{0..1}}.tar") == ALL[:8]
    assert read(f"file://{folder}/s-0.tar") == ALL[:4]
    assert expand_urls(["s3://bucket/{a,b}.tar", f"{folder}/s-[01].tar"]) == (
        *("s3://bucket/a.tar", "s3://bucket/b.tar"),
        *(f"{folder}/s-0.tar", f"{folder}/s-1.tar"),
    )
    with pytest.importorskip("fsspec").open("memory://shards/a.tar", "wb") as file:
        file.write((folder / "s-3.tar").read_bytes())
    assert read("memory://shards/a.tar") == ALL[12:16]
    pytest.importorskip("aiohttp")
    monkeypatch.setattr("shutil.which", lambda _: None)  # fsspec, without curl
    assert read(server + "/s-2.tar") == ALL[8:12]


# --- errors


@pytest.mark.parametrize(
    ("world", "workers", "text"),
    [
        (7, 0, "the val split has 6 shards, such as .*/s-0.tar, too few .* 7 ranks"),
        (2, 4, "the val split has 6 shards.* 2 ranks .* 4 worker.* workers=3"),
    ],
)
def test_a_rank_or_worker_without_a_shard_is_an_error(folder, world, workers, text):
    split = Split(folder, CenterCrop(16), streaming=Streaming(24))
    with pytest.raises(ShardError, match=text):
        Loader(split, name="val", rank=0, world=world, workers=workers)


def test_a_length_that_is_needed(folder):
    loader = load(folder)
    with pytest.raises(TypeError, match=r"no length unless Streaming\(samples="):
        len(loader)
    assert not isinstance(loader.sampler, list) and loader.batch_sampler is None
    text = r"\b2 ranks .* Streaming\(samples="
    with pytest.raises(ShardError, match=text):
        load(folder, world=2)


NOT_COMPLETE = [("between", "truncated"), ("inside", "truncated"), ("damaged", "damaged")]


@pytest.mark.parametrize(
    ("workers", "shuffle"),
    [
        (0, True),
        (1, False),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((0, False), (1, True))),
    ],
)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((f"bad/{name}.tar", f"stream.* {what}") for name, what in NOT_COMPLETE),
        ("s-9.tar", "stream.* 404 "),
        ("s-cut.tar", "the transfer ended early|unexpected end of data"),
        ("bad/broken.tar", "not a gzip file|could not be opened|invalid header|truncated"),
        ("bad/login.tar", r"stream: it is not a tar but looks like HTML or XML \(a failed download\?\)\. "),
        ("bad/twice.tar", "has two members of this extension"),
        ("bad/hollow.tar", "no image"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*no image and is left out")
def test_a_broken_shard_is_named(server, name, text, workers, shuffle):
    loader = load(f"{server}/{name}", workers=workers, shuffle=shuffle)
    with pytest.raises(ShardError, match=rf"{re.escape(name)}.*({text})|({text}).*{name}"):
        taken(loader)


def test_a_server_that_stops_answering_curl_is_an_error_in_time(server, monkeypatch, caplog):
    monkeypatch.setattr(urls, "_SECONDS", 0.3)
    monkeypatch.setattr(urls, "SAY_EVERY", 0.1)
    started = time.monotonic()
    with pytest.raises(ShardError, match=r"s-stall\.tar cannot be read as a stream: no answer for 0\.3 s"):
        taken(load(server + "/s-stall.tar"))
    assert time.monotonic() - started < 10  # the server stalls for 30 s
    assert "s-stall.tar, since" in caplog.text


@pytest.mark.parametrize("targets", [False, True])
def test_a_second_loader_of_a_glob_gets_its_answer_after_workers_were_forked(folder, targets):
    """The connection is kept by the server: workers must not close it for this process."""
    pytest.importorskip("aiohttp")

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

    options = {"targets": Boxes("json:objects")} if targets else {}
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    ) as served:
        served.daemon_threads, served.block_on_close = True, False
        threading.Thread(target=served.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{served.server_address[1]}/s-[0-2].tar"
        started = time.monotonic()
        for _ in range(3):
            split = Split(url, CenterCrop(16), target=None, streaming=True, **options)
            made = contextlib.closing(loaders.load(None, split=split, workers=1, max_bad=1.0))
            with made as loader, contextlib.suppress(DecodeError):  # they have no targets
                next(iter(loader))
        assert time.monotonic() - started < 30
        served.shutdown()


def test_a_server_that_stays_busy_is_named_with_its_answer(server, monkeypatch):
    monkeypatch.setattr(urls, "_SECONDS", 0.3)
    what = r"s-busy\.tar cannot be read as a stream: no data, but the answer 503 Service Unavailable\."
    with pytest.raises(ShardError, match=what):  # curl repeats its request in silence
        taken(load(server + "/s-busy.tar"))


def test_a_refused_connection_is_not_called_a_truncated_shard():
    with pytest.raises(
        ShardError, match=r"a\.tar cannot be read as a stream: no connection \(curl ended with"
    ):
        taken(load("http://127.0.0.1:9/a.tar"))


@pytest.fixture
def certificate(tmp_path):
    """The path of a self-signed certificate of 127.0.0.1; its key is beside it."""
    path = str(tmp_path / "certificate.pem")
    made = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=localhost"
    options = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path + ".key", "-out", path]
    subprocess.run([*made.split(), *options], check=True, capture_output=True)
    return path


@pytest.fixture
def secure(folder, certificate):
    """URL of the folder on a web server with that certificate."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate + ".key")
        served.socket = context.wrap_socket(served.socket, server_side=True)
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{served.server_address[1]}"
        served.shutdown()


def test_an_unknown_certificate_is_the_reason(secure, certificate, tmp_path, monkeypatch):
    with pytest.raises(ShardError, match=r"s-0\.tar .*certificate is not known: give CURL_CA_BUNDLE"):
        taken(load(f"{secure}/s-0.tar"))
    for read in (load, lambda url: build_cache(url, tmp_path / "cache", executor=0)):
        with pytest.raises(ShardError, match=r"s-\*\.tar cannot be read: .*certificate"):
            read(f"{secure}/s-*.tar")
    monkeypatch.setenv("CURL_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(ShardError, match="the file of CURL_CA_BUNDLE cannot be read"):
        taken(load(f"{secure}/s-0.tar"))
    monkeypatch.setenv("CURL_CA_BUNDLE", certificate)
    assert taken(load(f"{secure}/s-0.tar"))


def test_a_batch_of_one_has_no_substitute(tmp_path):
    write_tar(
        tmp_path / "a.tar", [("a.jpg", b"J"), ("a.cls", b"1"), ("b.jpg", jpeg("420", 8, 8)), ("b.cls", b"1")]
    )
    with pytest.raises(
        DecodeError, match=r"key 'a': .*, and its batch has no other image to take its place$"
    ):
        taken(load(str(tmp_path / "a.tar"), batch_size=1))


@pytest.mark.parametrize("workers", [0, 1])
def test_without_curl_errors_of_http_are_named_too(server, monkeypatch, workers):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ShardError, match=r"s-9\.tar .* 404 "):
        taken(load(server + "/s-9.tar", workers=workers))
    with pytest.raises(ShardError, match=r"127\.0\.0\.1:9/a\.tar .*onnect"):
        taken(load("http://127.0.0.1:9/a.tar", workers=workers))


def test_urls_that_are_patterns(server, folder):
    pytest.importorskip("aiohttp")
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for path in folder.glob("*.tar"):
        memory.pipe(f"/bucket/{path.name}", path.read_bytes())
    try:
        names = [f"memory:///bucket/s-{n}.tar" for n in range(6)]
        for pattern in ("s-*.tar", "", "{s-[0-2]*,s-[3-5]*}.tar"):
            assert list(expand_urls(f"memory://bucket/{pattern}")) == names
        for several in (f"{server}/s-*.tar", "memory://bucket/s-*.tar"):
            assert sorted(keys_of(taken(load(several)))) == ALL
        for several in ("memory://bucket/none-*.tar", f"{server}/no/*.tar"):
            with pytest.raises(ShardError, match=r"'.*\*\.tar' .*no shard"):
                load(several)
        with pytest.raises(ShardError, match=r"s-0\.tar.* is there twice"):
            expand_urls(["memory://bucket/s-*.tar", "memory:///bucket/s-0.tar"])
    finally:
        memory.rm("/bucket", recursive=True)
    assert expand_urls("http://[::1]:80/a.tar?x=*") == ("http://[::1]:80/a.tar?x=*",)


def linked(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.LNKTYPE, target
    return info


def test_a_member_that_comes_twice_is_named(tmp_path):
    picture = jpeg("420", 16, 16)
    tar = write_tar(tmp_path / "a.tar", [("k.jpg", picture), ("k.cls", b"1"), ("k.JPG", picture)])
    with pytest.raises(
        ShardError, match=r"the sample of 'k\.JPG' has two members of this extension\. Write each"
    ):
        next(iter(Loader(Split(tar, CenterCrop(8), streaming=True), 1, workers=0)))


def test_a_hard_linked_member_is_an_error(tmp_path):
    """GNU tar writes samples that share a file for their label so."""
    members = [*sample(0), sample(1)[0], linked("k0001.cls", "k0000.cls")]
    path = write_tar(tmp_path / "t.tar", members)
    text = r"t\.tar: 'k0001\.cls' .*'k0000\.cls'.*--hard-dereference"
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
        with pytest.raises(ShardError, match=f"{re.escape(url)} .*stream"):
            taken(load(url))
    with pytest.raises(ShardError, match=r"nowhere\.tar"):
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
def test_broken_images_and_samples_without_one(shard_of, workers):
    path = shard_of(sample(0), sample(1, b""), [("k0002.txt", b"no image")], sample(3))
    with (
        pytest.warns(UserWarning, match=r"x\.tar, key 'k0001': image is EMPTY"),
        pytest.warns(UserWarning, match=r"x\.tar: key 'k0002' .*no image"),
    ):
        (batch,) = taken(load(path, shuffle=False, workers=workers))
    assert len(batch.key) == 3 and set(batch.key) <= {"k0000", "k0003"}


def test_labels_that_are_missing_or_not_integers(shard_of):
    with pytest.raises(ShardError, match=r"x\.tar, key 'k0001': .*'cls' is 'cat'"):
        taken(load(shard_of(sample(0), sample(1, label=b"cat"))))
    with pytest.raises(ShardError, match=r"key 'k0001' .*'cls'.*\['jpg'\]"):
        taken(load(shard_of(sample(0), sample(1)[:1])))


def test_braces_that_do_not_match_are_an_error():
    with pytest.raises(ShardError, match=r"'s3://b/x-\{0\.\.9\.tar'.* braces"):
        expand_urls("s3://b/x-{0..9.tar")


def test_options_that_need_an_index_are_refused():
    for options, text in (
        ({"subset": 0.5}, "subset=0.5 .*index"),
        ({"weights": [1.0]}, r"weights=\[1\.0\] .*index"),
        ({"shuffle": "blocks"}, "shuffle='blocks'.*streams"),
        ({"shuffle": Blocks()}, "shuffle=Blocks.*.*streams"),
        ({"streaming": 5}, "streaming=5 "),
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
    another.load_state_dict(state)
    with pytest.warns(UserWarning, match="batch 2 of epoch 0"):
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
        batches = taken(load(folder, batch_size=5, drop_last=drop_last))
        assert [len(batch.key) for batch in batches] == sizes


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_iterator_retires_the_old_and_close_ends_all(folder, children, workers):
    loader = load(folder, streaming=Streaming(24), workers=workers)
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


@pytest.mark.parametrize("samples", [24, None])
def test_lightning_fits_on_a_stream(folder, tmp_path, samples):
    split = Split(folder, RandomResizedCrop(16), streaming=Streaming(samples))
    net = Net()
    run = trainer(tmp_path, max_epochs=2)
    settings = {"batch_size": 4, "workers": 0, "keys": True}
    with pytest.raises(ShardError, match="train and val have"):
        run.fit(net, datamodule=ShardDataModule(split, split, **settings))
    run.fit(net, datamodule=ShardDataModule(split, split, allow_overlap=True, **settings))
    assert [sorted(epoch) for epoch in net.keys("train", 2)] == [ALL, ALL]
    assert net.keys("train", 2)[0] != net.keys("train", 2)[1]
    assert run.global_step == 12 and len(net.seen["validate"]) == 12 + 2


def test_the_buffer_shuffles(folder):
    """A buffer of 1 does not shuffle; a large one separates neighbours."""

    def neighbours(buffer):
        keys = keys_of(taken(load(folder, streaming=Streaming(24, buffer))))
        return (np.abs(np.diff([int(key[1:]) for key in keys])) == 1).sum()

    assert neighbours(1) >= 18 > 6 > neighbours(24)
