"""Loaders: order of batches, epochs, ranks, life of worker processes, reading ahead."""

from __future__ import annotations

import contextlib
import copy
import errno
import gc
import multiprocessing
import os
import pickle
import re
import signal
import sys
import threading
import warnings
from pathlib import Path

import pytest
import tarpeg
import torch
from helpers.checkouts import ROOT
from helpers.loaders import ALL, digest, keys_of, load
from helpers.scripts import wait_until
from helpers.small_tars import sample
from tarpeg import CenterCrop, DecodeError, Loader, Split
from tarpeg.errors import ShardError, warn
from tarpeg.loader import feeds as room
from tarpeg.loader.config import LoaderConfig
from tarpeg.loader.feeds import read_ahead, readahead_depth
from tarpeg.machine import Machine
from tarpeg.sampling.sampler import Request


def test_a_batch_unpacks_as_images_and_labels(photos):
    batches = list(load(photos, keys=False))
    images, labels = batches[0]
    assert (images.dtype, images.shape) == (torch.uint8, (4, 3, 32, 32))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert (labels.dtype, labels.shape) == (torch.int64, (4,))
    assert [len(batch.image) for batch in batches] == [4, 4, 4, 4, 4, 3]
    assert batches[0].image is images and batches[0].label is labels


def test_a_path_is_not_a_split():
    with pytest.raises(ValueError, match=r"split='m/a\.tar' must be a tarpeg\.Split\("):
        Loader("m/a.tar", 8)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_and_the_loader_goes_on(photos, copied):
    loader = load(photos, workers=0)
    batches = iter(loader)
    found = [next(batches).key]
    with pytest.raises(TypeError, match=r"cannot be copied or pickled.*load_state_dict"):
        copied(loader)
    assert [*found, *(batch.key for batch in batches)] == [batch.key for batch in load(photos, workers=0)]


def test_a_dict_is_not_a_config(photos):
    with pytest.raises(ValueError, match=r"config={'batch_size': 3} must be a tarpeg\.LoaderConfig\("):
        Loader(Split(photos, CenterCrop(32)), config={"batch_size": 3})


def test_each_iter_is_the_next_epoch_unless_it_was_set(photos):
    loader = load(photos)
    epochs = [keys_of(loader) for _ in range(3)]
    assert len({tuple(keys) for keys in epochs}) == 3
    loader.sampler.set_epoch(1)
    assert keys_of(loader) == epochs[1]
    assert keys_of(loader) == epochs[2], "set_epoch holds for the next iter() only"
    assert keys_of(load(photos)) == epochs[0]


def test_the_epoch_is_read_at_the_first_next(photos):
    expected, loader = load(photos), load(photos)
    expected.sampler.set_epoch(7)
    iter(loader)  # thrown away, as Lightning does
    iterator = iter(loader)
    loader.sampler.set_epoch(7)
    assert next(iterator).key == next(iter(expected)).key


@pytest.mark.parametrize("workers", [0, 1])
def test_a_new_iterator_retires_the_old(photos, workers):
    loader = load(photos, workers=workers)
    old, new = iter(loader), iter(loader)
    next(old)
    first = next(new).key
    with pytest.raises(RuntimeError, match="retired"):
        next(old)
    assert sorted(first + [key for batch in new for key in batch.key]) == ALL


@pytest.mark.parametrize("begin", [iter, lambda loader: loader.deliver(None)], ids=["iter", "deliver"])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_that_broke_off_does_not_seem_to_have_ended(shard_of, workers, begin):
    path = shard_of(*(sample(n, b"" if n == 5 else None) for n in range(12)))
    loader = load(path, shuffle=False, on_error="raise", workers=workers)
    iterator = begin(loader)
    assert next(iterator).key == ALL[:4]
    with pytest.raises(DecodeError, match="key 'k0005'"):
        next(iterator)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"DecodeError: .* key 'k0005'.*load_state_dict\(\)"):
            next(iterator)
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(DecodeError, match="key 'k0005'"):
        next(begin(loader))
    other = load(path, shuffle=False, workers=workers)
    other.load_state_dict(state)
    with pytest.warns(UserWarning, match="'k0005'.* takes its place"):
        assert [batch.key[-1] for batch in other] == ["k0007", "k0011"]


def test_without_shuffle_samples_come_in_order(photos):
    loader = load(photos, shuffle=False)
    assert keys_of(loader) == keys_of(loader) == ALL
    split = Split(photos, CenterCrop(32), shuffle=False)
    loader = load(photos, shuffle=True, split=split)
    assert keys_of(loader) == ALL, "the split's own setting wins"
    assert digest(loader) == digest(loader), "a central crop is the same in every epoch"


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGKILL, "SIGKILL, usually"), (signal.SIGRTMIN, "signal 34")]
)
def test_a_killed_worker_is_an_error_and_one_may_go_on(photos, children, number, name):
    loader = load(photos, workers=2, batch_size=1)
    iterator = iter(loader)
    next(iterator)
    for child in children():
        os.kill(child, number)
    with pytest.raises(RuntimeError, match=rf"process [01] of 2 .*{name}.*workers=0"):
        list(iterator)
    assert children() == set()
    assert sorted(keys_of(loader)) == ALL
    loader.close()


def test_signals_to_the_whole_group_are_the_parents_to_handle(photos, children):
    """As sent by a terminal or a batch system: a graceful stop needs its workers."""
    got = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def handler(number, _):
        got.append((number, os.getpid()))

    before = [signal.signal(number, handler) for number in numbers]
    try:
        loader = load(photos, workers=2, batch_size=1)
        iterator = iter(loader)
        next(iterator)
        workers = children()
        for number in numbers:
            for process in (*workers, os.getpid()):
                os.kill(process, number)
        assert len(list(iterator)) == len(loader) - 1
        assert children() == workers
        assert sorted(got) == sorted((number, os.getpid()) for number in numbers)
        loader.close()
        assert children() == set()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch_size": 0}, "batch_size=0 must be an integer of at least 1"),
        ({"global_batch_size": 0}, "global_batch_size=0 must be an integer of at least 1"),
        ({"batch_size": "abc"}, "batch_size='abc' must be an integer"),
        ({"batch_size": None}, "batch_size=None must be an integer"),
        ({"workers": True}, "workers=True must be an integer"),
        ({"max_bad": "abc"}, "max_bad='abc' must be a fraction"),
        ({"workers": -1}, "workers=-1 must be an integer of at least 0"),
        ({"threads": -1}, "threads=-1 must be an integer of at least 0"),
        ({"prefetch": 0}, "prefetch=0 must be an integer of at least 1"),
        ({"max_pixels": 0}, "max_pixels=0 must be an integer of at least 1"),
        ({"max_bad": 2}, "max_bad=2 must be a fraction"),
        ({"seed": 2**63}, r"seed=9223372036854775808 must be an integer in 0\.\.9223372036854775807"),
        ({"drop_last": 3}, "drop_last=3 must be True or False"),
        ({"allow_other_data": "no"}, "allow_other_data='no' must be True or False"),
        ({"on_error": "ignore"}, "on_error='ignore' must be 'substitute', 'raise' or 'leave_out'"),
    ],
)
def test_settings_out_of_range(settings, text):
    with pytest.raises(ValueError, match=text):
        LoaderConfig(**settings)


HERE = {"workers": 0, "rank": 0, "world": 1}


@pytest.mark.parametrize("device", ["cuda", "cuda:7", 0, torch.device("cuda")])
def test_a_device_that_is_not_there_is_an_error_of_the_loader(photos, monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=rf"device={re.escape(repr(device))}: .*CUDA"):
        Loader(Split(photos, CenterCrop(8)), device=device, **HERE)


def test_a_device_and_a_name_that_are_none(photos):
    with pytest.raises(ValueError, match="device='gpu' must be a device of torch"):
        Loader(Split(photos, CenterCrop(8)), device="gpu", **HERE)
    with pytest.raises(ValueError, match="name=3 must be a text"):
        Loader(Split(photos, CenterCrop(8)), name=3, **HERE)


def test_no_image_is_left_out_of_a_training(photos):
    with pytest.raises(ValueError, match="on_error='leave_out'"):
        load(photos, on_error="leave_out")


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_broken_images_end_the_epoch(shard_of, workers):
    def batches(broken, **settings):
        path = shard_of(*(sample(number, b"" if number < broken else None) for number in range(40)))
        loader = load(path, workers=workers, **settings)
        with pytest.warns(UserWarning, match="takes its place"):
            count = len(list(loader))
        loader.close()
        return count

    with pytest.raises(DecodeError, match=r"11 images .*epoch 0 .* max_bad=0\.01 .*\b40 .*: shard "):
        batches(12)
    assert batches(12, max_bad=0.3) == 10
    assert batches(10) == 10, "ten may be broken however small the set"
    with pytest.raises(DecodeError, match=r"1 images of epoch 0 .* max_bad=0 "):
        batches(1, max_bad=0)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_callers_random_numbers_are_left_alone(photos, workers):
    torch.manual_seed(0)
    expected = torch.rand(3)
    loader = load(photos, workers=workers)
    torch.manual_seed(0)
    for _ in range(2):
        next(iter(loader))
    assert torch.equal(torch.rand(3), expected)


def test_after_an_unexpected_error_it_starts_again(photos):
    loader = load(photos, workers=0, threads=0)
    fetch = loader.fetcher.fetch

    def failing(request, *rest):
        if len(request.ids) == 3:  # the last batch
            raise RuntimeError("as asked")
        return fetch(request, *rest)

    loader.fetcher.fetch = failing
    with pytest.raises(RuntimeError, match="as asked"):
        list(loader)
    loader.fetcher.fetch = fetch
    assert sorted(keys_of(loader)) == ALL


def test_the_next_epoch_begins_while_this_one_ends(photos):
    loader = load(photos, workers=0, threads=1, prefetch=2)
    asked = []
    fetcher = loader.fetcher
    answer = fetcher.fetch
    fetcher.fetch = lambda request, *rest: asked.append(request.epoch) or answer(request, *rest)
    list(loader)
    assert wait_until(lambda: len(asked) >= len(loader) + 2)
    assert sorted(asked) == [0] * 6 + [1] * 2
    loader.sampler.set_epoch(7)
    list(loader)
    assert asked.count(7) == 6, "the two batches of epoch 1 were for nothing"
    still = load(photos, workers=0, threads=1, shuffle=False)
    list(still)
    assert still._runner._pool.pending == 0, "validation ends with its last batch"


@pytest.mark.parametrize(
    "engine", [{"workers": 0, "threads": 0}, {"workers": 0, "threads": 2}, {"workers": 2}]
)
def test_claim_returns_the_samples_of_each_batch(photos, engine):
    loader = load(photos, **engine)
    assert loader.claim() is None
    for epoch in range(2):
        for batch in loader:
            request = loader.claim()
            assert request.epoch == epoch and loader.claim() is None
            assert batch.key == [ALL[id] for id in request.ids]
            assert batch.label.tolist() == (request.ids % 5).tolist()
    loader.close()
    late = load(photos, workers=0)
    batches = list(late)  # a consumer may be behind
    assert [batch.key for batch in batches] == [[ALL[id] for id in late.claim().ids] for _ in batches]
    next(iter(late))
    first = next(iter(late))
    assert first.key == [ALL[id] for id in late.claim().ids], "a new iterator forgets earlier batches"


@pytest.mark.parametrize(("runner", "most"), [({"workers": 2}, 39), ({"workers": 0, "threads": 2}, 29)])
def test_few_python_calls_per_batch_in_the_training_process(photos, runner, most):
    """38.6 and 28.0 here, of which 6 are the loader's own; a part of them is for a new epoch."""
    calls = []
    loader = load(photos, batch_size=1, **runner)
    list(loader)
    gc.disable()
    sys.setprofile(lambda frame, event, argument: calls.append(event) if event == "call" else None)
    try:
        batches = sum(1 for _ in loader)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert len(calls) / batches < most


# The files that call others to make a batch, from the top; what else they call returns a value at once.
WALK = (
    *("loader/loader.py", "loader/buffers.py", "loader/workers.py", "loader/fetch.py"),
    *("loader/drawing.py", "shards/labels.py", "shards/mapped.py", "ops/decode.py"),
)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_batch_is_made_by_few_files_from_the_top_down(photos, threads):
    """With 2 threads, the part in the thread of the consumer; docs/design.md has this walk."""
    package = f"{Path(tarpeg.__file__).parent}/"
    calls = set()

    def trace(frame, event, argument):
        files = [each and each.f_code.co_filename for each in (frame.f_back, frame)]
        if event == "call" and all(name and name.startswith(package) for name in files):
            calls.add(tuple(name.removeprefix(package) for name in files))

    loader = load(photos, workers=0, threads=threads)
    batches = iter(loader)
    next(batches)
    sys.setprofile(trace)
    try:
        next(batches)
    finally:
        sys.setprofile(None)
    loader.close()
    between = {(caller, called) for caller, called in calls if caller != called}
    assert {caller for caller, _ in between} <= {*WALK}
    climbs = {pair for pair in between if pair[1] in WALK[: WALK.index(pair[0])]}
    assert climbs <= {("loader/fetch.py", "loader/buffers.py"), ("loader/fetch.py", "loader/workers.py")}
    page = (
        (ROOT / "docs" / "design.md").read_text().partition("A walk of one batch")[2].partition("Streams")[0]
    )
    assert all(name in page for name in WALK)


def test_a_loader_of_a_stream(photos):
    plain = load(photos, workers=0, threads=0)
    loader = load(photos, workers=0, threads=0, streaming=True)
    assert loader.fetcher.shape(Request(0, [1, 2])) == plain.fetcher.shape(Request(0, [1, 2]))
    assert loader.batch_sampler is None and loader.claim() is None and loader.substituted == 0
    batch = next(iter(loader))
    assert loader.claim().ids.shape == (4,) and len(batch.key) == 4
    with pytest.raises(TypeError, match="a stream has no length"):
        len(loader)
    assert loader.state_dict().keys() == {
        *("version", "epoch", "batches", "len", "shards", "samples", "seed", "data")
    }
    assert loader.state_dict()["data"] == "a.tar\nb.tar"


def test_an_abandoned_stream_is_closed_at_once(photos, monkeypatch):
    opened = []

    def open_stream(url):
        opened.append(Path(url).open("rb"))  # noqa: SIM115
        return opened[-1]

    monkeypatch.setattr("tarpeg.shards.stream.open_stream", open_stream)
    loader = load(photos, workers=0, threads=0, streaming=True, shuffle=False)
    iterator = iter(loader)
    next(iterator)
    assert [file.closed for file in opened] == [False]
    del iterator
    assert [file.closed for file in opened] == [True]
    loader.close()


# --- reading ahead


def cached(path, offset, size):
    """Whether these bytes of a file are in memory; None if the file system cannot answer."""
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(size)], offset, os.RWF_NOWAIT) == size
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise


def test_bytes_that_were_asked_for_are_read(tmp_path, photos):
    path = tmp_path / "big.tar"
    path.write_bytes((photos / "a.tar").read_bytes())
    shards = Split(path, CenterCrop(8)).open()
    with path.open("rb") as file:  # writing and indexing have left pages in memory
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    size = path.stat().st_size
    if cached(path, 0, size) is not False:
        pytest.skip("this file system keeps its pages, or cannot answer")
    shards.will_need(range(len(shards)))
    assert wait_until(lambda: cached(path, 1024, size // 2), 20)


def test_requests_follow_the_advice_by_the_depth():
    advised = []
    passed = [(request, len(advised)) for request in read_ahead(range(10), 3, advised.append)]
    assert passed == [(number, min(number + 4, 10)) for number in range(10)]
    assert list(read_ahead(range(2), 5, advised.append)) == [0, 1]


def test_by_default_it_is_for_shards_larger_than_the_memory(photos, monkeypatch):
    shards = Split(photos, CenterCrop(8)).open()
    assert readahead_depth(shards, None) == 0 and readahead_depth(shards, 5) == 5
    for memory, limit in ((16_000, None), (1 << 60, 16_000)):
        machine = Machine(1, None, memory, None, limit, None, None)
        monkeypatch.setattr(room, "read_machine", lambda machine=machine: machine)
        assert readahead_depth(shards, None) == 8 and readahead_depth(shards, 0) == 0


def test_a_loader_shows_what_it_loads(photos):
    with contextlib.closing(load(photos, batch_size=4, workers=0, threads=0)) as loader:
        batches = f"{len(loader)} batches per epoch"
        assert repr(loader) == f"Loader({str(photos)!r}, {batches}, workers=0, threads=0)"


def test_a_warning_has_no_number_of_a_line(capsys, monkeypatch):
    shown = warnings.formatwarning
    write = lambda *about: sys.stderr.write(warnings.formatwarning(*about[:4]))  # noqa: E731
    monkeypatch.setattr(warnings, "showwarning", write)  # as logging and Python do; pytest keeps them
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warn("the data are odd")
        warnings.warn("of another library", stacklevel=1)
    assert warnings.formatwarning is shown
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "tarpeg: UserWarning: the data are odd"
    assert ".py:" in second and "of another library" in second


@pytest.mark.filterwarnings("ignore:the data")
def test_warnings_of_several_threads_leave_the_format_of_warnings(monkeypatch):
    shown, interval = warnings.formatwarning, sys.getswitchinterval()
    monkeypatch.setattr(warnings, "formatwarning", shown)  # restored, whatever happens here
    threads = [
        threading.Thread(target=lambda: [warn("the data are odd") for _ in range(1500)]) for _ in range(4)
    ]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert warnings.formatwarning is shown


def test_a_daemonic_process_uses_threads(photos, monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # as of a Pool
    message = r"^workers=1: .*multiprocessing\.Pool.* workers=0"
    with (
        contextlib.closing(load(photos, batch_size=4, workers=1)) as loader,
        pytest.raises(RuntimeError, match=message),
    ):
        next(iter(loader))
    with contextlib.closing(load(photos, batch_size=4, workers=0, threads=1)) as loader:
        assert len(list(loader)) == len(loader)


def test_fewer_samples_than_ranks_name_their_split(photos):
    split = tarpeg.Split(photos, tarpeg.CenterCrop(8), subset=[3])
    with pytest.raises(ShardError, match=r"^the val split has 1 sample, too few for 2 ranks"):
        tarpeg.Loader(split, 4, rank=0, world=2, name="val")
