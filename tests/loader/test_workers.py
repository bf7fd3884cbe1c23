"""Worker pools and runners: order, errors, memory, ends of processes and threads, and the same bytes."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import multiprocessing
import os
import pickle
import resource
import signal
import threading
import time
import traceback
import weakref
from pathlib import Path

import pytest
import torch
from helpers.loaders import ALL, RUNNERS, digest, keys_of, load, name_of
from helpers.scripts import PARENT, live_processes, run_script, wait_until
from tarpeg import Augment, CenterCrop, Progressive, RandomResizedCrop, Split
from tarpeg.loader import workers
from tarpeg.loader.config import LoaderConfig
from tarpeg.loader.workers import ProcessPool, ThreadPool
from tarpeg.shards import marks
from tarpeg.transforms.pixels import PixelFormat
from tarpeg.transforms.results import TransformError

POOLS = {"processes": ProcessPool, "threads": ThreadPool}


@pytest.fixture(params=POOLS)
def pool_of(request, children):
    """A function that makes a pool, which is closed after the test."""
    made = []

    def make(work, count=2):
        made.append(POOLS[request.param](work, count))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
    assert children() == set()


def results(pool, jobs):
    for job in jobs:
        pool.submit(job)
    return [pool.result() for _ in jobs]


def test_results_come_in_the_order_of_submission(pool_of):
    def work(job):
        time.sleep(0.01 * (job % 3))
        return job

    pool = pool_of(work, 3)
    assert results(pool, range(12)) == list(range(12))
    for job in range(5):
        pool.submit(job)
    pool.drain()
    assert pool.pending == 0 and results(pool, range(4)) == [0, 1, 2, 3]


def test_processes_run_jobs_in_turn_and_begin_with_the_first():
    pool = ProcessPool(lambda job: os.getpid(), 3)
    first = results(pool, range(6))
    assert first[:3] == first[3:] and len(set(first)) == 3
    pool.submit(0)
    pool.drain()
    assert results(pool, range(3)) == first[:3]
    pool.close()


class PlainError(Exception):
    """An error whose only argument is its message."""


class OddError(Exception):
    """An error with two arguments: unpickling it fails."""

    def __init__(self, shard, key):
        super().__init__(f"shard {shard}, key {key}")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PlainError("the cause"), "^the cause"),
        (OddError("a", "the cause"), "shard a, key the cause"),
        (type("LocalError", (Exception,), {})("the cause"), "the cause"),
        (SystemExit("the cause"), "SystemExit was raised while a batch was fetched: the cause"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_errors_keep_their_text_and_the_pool_can_go_on(pool_of, error, text, caplog):
    caplog.set_level(logging.INFO)

    def work(job):
        raise error

    pool = pool_of(work)
    for _ in range(3):
        with pytest.raises(Exception, match=text) as caught:
            results(pool, [0])
        if isinstance(error, PlainError):
            assert caught.type is PlainError
        if isinstance(pool, ProcessPool):
            assert "in worker process 0" in str(caught.value.__cause__)
            assert "in work" in str(caught.value.__cause__), "with the place in the user's code"
            assert str(caught.value.__cause__).count("\n") == 0, "the traceback is in the log"
            assert [record.name for record in caplog.records][-1] == "tarpeg.loader.workers"
            assert "raise error" in caplog.text
        pool.drain()


def test_an_error_that_is_its_own_cause_ends_a_worker_no_less():
    error = ValueError("of itself")
    try:
        raise error from error
    except ValueError as caught:
        place = pickle.loads(workers._pickle_failure(caught, 0)).place
    assert __file__ in place


def broken(image):
    if multiprocessing.parent_process() is not None:
        raise KeyError("field")
    return image


def test_the_error_of_a_worker_shows_the_line_of_the_user_alone(photos):
    loader = load(photos, CenterCrop(8), transform=broken, workers=1)
    with pytest.raises(TransformError, match=r"key 'k\d+'.*KeyError: 'field'") as caught:
        next(iter(loader))
    shown = "".join(traceback.format_exception(caught.value))
    assert "in broken" in shown and shown.count("in worker process 0") == 1
    assert len(shown.splitlines()) < 40, shown


def test_a_result_that_cannot_be_pickled_is_an_error():
    pool = ProcessPool(lambda job: [job] if job else lambda: None, 1)
    with pytest.raises(Exception, match="lambda"):
        results(pool, [0])
    assert results(pool, [1]) == [[1]]
    pool.close()


def test_tensors_hold_no_file_descriptors():
    pool = ProcessPool(lambda job: [torch.full((5,), number) for number in range(job)], 2)
    descriptors = Path("/proc/self/fd")
    gc.collect()  # descriptors of the processes of other tests
    before = len(list(descriptors.iterdir()))
    lists = results(pool, [200, 200])
    assert len(list(descriptors.iterdir())) == before
    assert all(int(tensor[0]) == number for tensors in lists for number, tensor in enumerate(tensors))
    pool.close()
    assert len(list(descriptors.iterdir())) < before, "close() closes the sockets"


def test_large_jobs_and_results_do_not_block_each_other(pool_of):
    pool = pool_of(lambda job: job + b"x")
    jobs = [bytes([number]) * 3_000_000 for number in range(8)]
    assert results(pool, jobs) == [job + b"x" for job in jobs]


def forked():
    """The id of a child, or 0 in it; waits for a child that ends at once."""
    child = os.fork()
    if child:
        wait_until(lambda: os.waitpid(child, os.WNOHANG)[0], 5)
    return child


def test_a_transform_that_forks_is_an_error_and_no_sample_comes_twice(photos, children):
    def forks(image):
        if os.getpid() != parent and not numbers:
            numbers.append(forked())
        return image

    numbers, parent = [], os.getpid()
    loader = load(photos, transform=forks, workers=2, batch_size=2, shuffle=False)
    seen = []
    with pytest.raises(RuntimeError, match=r"os\.fork\(\).*os\._exit\(\).*subprocess"):
        for batch in loader:
            seen += batch.key
    assert seen == ALL[: len(seen)] and children() == set()


def test_a_result_with_another_number_is_an_error(monkeypatch):
    def work(job):
        if job == 0:
            process = os.getpid()
            monkeypatch.setattr(os, "getpid", lambda: process)  # the fork is not noticed
            if not os.fork():
                signal.alarm(3)  # it would wait for jobs for ever
        return job

    pool = ProcessPool(work, 1)
    text = r"process 0 of 1 .*job 0 .*\b1\b.*fork"
    with pytest.raises(RuntimeError, match=text):
        for job in range(3):
            assert results(pool, [job]) == [job]
            time.sleep(0.5)
    pool.close()


def test_what_a_worker_forks_ends_on_sigterm():
    def work(job):
        ready, begun = os.pipe()
        child = os.fork()
        if not child:
            os.write(begun, b".")
            time.sleep(1000)
        os.read(ready, 1)
        return child

    pool = ProcessPool(work, 1)
    (child,) = results(pool, [0])
    os.kill(child, signal.SIGTERM)
    state = Path(f"/proc/{child}/stat")
    assert wait_until(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z")
    pool.close()


class Sleepy:
    """A step and a target that need a second for one sample."""

    def __init__(self):
        self.parent, self.count = os.getpid(), 0

    def __call__(self, image):
        self.count += os.getpid() != self.parent  # without the calls that show what it returns
        time.sleep(self.count == 3)
        return image

    def read(self, source, ids):
        return source.keys(ids)

    def move(self, value, view):
        time.sleep(value == "k0002")
        return value


@pytest.mark.sweep
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "settings", [{"workers": 1}, {"workers": 0, "threads": 2}, {"workers": 0, "threads": 0}], ids=name_of
)
def test_a_worker_that_takes_a_minute_for_a_sample_is_a_warning_with_its_key(
    photos, monkeypatch, settings, streaming
):
    monkeypatch.setattr(marks, "SLOW", 0.3)
    monkeypatch.setattr(marks, "CHECK_INTERVAL", 0.1)
    kind = {"transform" if settings["workers"] else "targets": Sleepy()}
    source = photos / "a.tar"
    loader = load(source, shuffle=False, streaming=streaming, **kind, **settings)
    name = "worker process 0 of 1" if settings["workers"] else "thread . of 2"
    name = name if settings.get("threads", 1) else "this process"
    text = rf"{name} .*0\.3 s: transform= .*shard .*a\.tar, key 'k0002'"
    with pytest.warns(UserWarning, match=text):
        assert len(keys_of(loader)) == 13
    loader.close()


def test_a_transform_that_hangs_at_its_first_image_is_a_warning(photos, monkeypatch):
    sleepy, tasks = Sleepy(), Path("/proc/self/task")
    sleepy.parent, sleepy.count = 0, 2
    keys_of(load(photos, transform=Sleepy(), workers=0))  # starts the native threads, which stay
    before = {*tasks.iterdir()}
    monkeypatch.setattr(marks, "SLOW", 0.3)
    monkeypatch.setattr(marks, "CHECK_INTERVAL", 0.1)
    with pytest.warns(UserWarning, match=r"transform= .*shard .*a\.tar, key 'k0000'.*Ctrl-C"):
        loader = load(photos, transform=sleepy, workers=0)
        assert len(keys_of(loader)) == 23
    loader.close()
    assert wait_until(lambda: {*tasks.iterdir()} <= before), "threads are left"


def test_a_batch_that_takes_a_minute_is_a_warning(photos, monkeypatch):
    def slow(key, members):
        time.sleep(0.7 * (key == "k0000"))

    monkeypatch.setattr(marks, "SLOW", 0.3)
    loader = load(photos, shuffle=False, members=["cls"], decode=slow, workers=0, threads=2)
    with pytest.warns(UserWarning, match=r"begins with shard .*a\.tar, key 'k0000'"):
        keys_of(loader)
    loader.close()


def test_the_thread_that_watches_a_loader_is_not_the_last_to_hold_it():
    # It would delete tensors while the interpreter ends, which aborts the process.
    class Fetcher:
        def explain(self, request, id, text):
            return text

    fetcher = Fetcher()
    watch, held = marks.Watch(fetcher.explain), weakref.ref(fetcher)
    watch.begin(fetcher)
    watch.stop()
    del watch, fetcher
    assert held() is None


@pytest.fixture
def assert_nothing_left():
    """A function that waits until the threads, processes and descriptors of the test are gone."""

    def held():
        processes = live_processes(PARENT, os.getpid(), zombies=True)
        return {*threading.enumerate(), *processes, *Path("/proc/self/fd").iterdir()}

    before = held()
    return lambda: wait_until(lambda: held() <= before) or pytest.fail(f"left: {held() - before}")


def test_if_a_later_process_cannot_start_none_is_left(monkeypatch, children):
    start = workers._start_process

    def fails(work, number, *shared):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0 if number == 2 else soft, hard))
            return start(work, number, *shared)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    monkeypatch.setattr(workers, "_start_process", fails)
    text = r"process 2 of 3 .*: Too many open files\..*fewer workers"
    with pytest.raises(OSError, match=text) as caught:
        ProcessPool(lambda job: job, 3)
    assert caught.value.errno == errno.EMFILE
    assert children() == set(), caught


def test_ctrl_c_in_a_hook_of_a_fork_is_not_lost(children):
    def interrupt():
        if armed:
            armed.clear()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)  # the handler runs here, and Python discards what is raised in a hook

    armed, before = [], signal.signal(signal.SIGINT, signal.default_int_handler)
    os.register_at_fork(after_in_parent=interrupt)  # for ever
    try:
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            ProcessPool(abs, 2)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and children() == set()
    finally:
        signal.signal(signal.SIGINT, before)


# Hooks of a fork cannot be removed: in a process of its own. {hang} of its children hang at birth.
LOOP = """
import faulthandler, os, time
from pathlib import Path

faulthandler.dump_traceback_later(100, exit=True)
from helpers.loaders import load
from tarpeg.loader import workers

workers._START_TIMEOUTS = (0.5, 0.5)
hung = Path({folder!r})

def hang():
    for number in range({hang}):
        try:
            (hung / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        {does}

{first}
os.register_at_fork(after_in_child=hang)
loader = load({photos!r}, batch_size=4, workers=2)
print(sum(len(batch.label) for batch in loader))
loader.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""
MANY_FILES = (
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000)); "
    "held = [os.dup(0) for _ in range(1100)]"
)


def run_loop(photos, folder, *, does, hang=1, first=""):
    return run_script(LOOP.format(folder=str(folder), photos=str(photos), does=does, hang=hang, first=first))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"does": "time.sleep(1000)"}, "did not answer within 0.5 s at its start: another is started"),
        ({"does": "os._exit(3)"}, "died at its start: another is started"),
        ({"does": "time.sleep(0.5)"}, ""),
        ({"hang": 0, "does": "pass", "first": MANY_FILES}, ""),
    ],
    ids=["hangs", "dies", "is slow, and leaves no lock", "has many files open"],
)
def test_a_process_that_does_not_start_is_replaced(photos, tmp_path, settings, message):
    done = run_loop(photos, tmp_path, **settings)
    assert done.stdout.splitlines() == ["23", "no child is left"], done.stderr
    assert message in done.stderr


def test_if_all_processes_hang_the_error_has_a_remedy(photos, tmp_path):
    done = run_loop(photos, tmp_path, hang=9, does="time.sleep(1000)")
    assert done.returncode == 1
    assert "did not start; the last did not answer within 0.5 s" in done.stderr
    assert "Use threads (workers=0)" in done.stderr


BUSY = """
import time
import torch
from tarpeg.loader.workers import ProcessPool, ThreadPool

def work(job):
    end = time.monotonic() + 1.5
    a = torch.ones(700, 700)
    while time.monotonic() < end:
        a = (a @ a).clamp(0, 1)

pool = {pool}(work, 2)
pool.submit(0)
pool.submit(1)
time.sleep(0.2)
{ends}
"""


def test_stopped_processes_are_waited_for_together(monkeypatch, children):
    monkeypatch.setattr(workers, "_GRACE", 0.5)
    pool = ProcessPool(abs, 4)
    for worker in pool._workers:
        os.kill(worker.process.pid, signal.SIGSTOP)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 1.5 and children() == set()


@pytest.mark.parametrize("ends", ["", "del pool", "raise SystemExit(0)"])
@pytest.mark.parametrize("pool", ["ProcessPool", "ThreadPool"])
def test_a_program_can_end_while_workers_are_busy(pool, ends):
    done = run_script(BUSY.format(pool=pool, ends=ends), timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


FORKED = """
import os
import torch
from helpers.loaders import digest, load

torch.set_num_threads(1)  # OpenMP's threads do not exist in a fork
loader = load({photos!r}, batch_size=2, seed=5, **{settings!r})
expected = [digest(loader) for _ in range(2)]
loader.sampler.set_epoch(0)
iterator = iter(loader)
next(iterator)
child = os.fork()
if child == 0:
    list(iterator)
    loader.sampler.set_epoch(0)
    is_right = digest(loader) == expected[0]
    loader.close()
    os._exit(0 if is_right else 7)
list(iterator)
loader.sampler.set_epoch(1)
assert digest(loader) == expected[1]
assert os.waitpid(child, 0)[1] == 0
loader.close()
"""


@pytest.mark.parametrize(
    "settings", [{"workers": 2}, {"workers": 0, "threads": 2}, {"workers": 0, "threads": 0}], ids=name_of
)
def test_a_fork_that_goes_on_with_a_loader_starts_its_own_workers(photos, settings):
    done = run_script(FORKED.format(photos=str(photos), settings=settings), timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def expected(photos):
    loader = load(photos, seed=5, workers=0, threads=0)
    return [digest(loader) for _ in range(3)]


@pytest.fixture(params=RUNNERS, ids=name_of)
def runner(request):
    return request.param


@pytest.fixture
def loader(photos, runner):
    """A loader with the settings of ``runner`` and the seed of ``expected``; closed after the test."""
    with contextlib.closing(load(photos, seed=5, **runner)) as loader:
        yield loader


def test_every_runner_yields_the_same_bytes(loader, expected):
    assert [digest(loader) for _ in range(3)] == expected


def test_images_are_normalised_on_request(photos, runner):
    pixels = PixelFormat((0.1, 0.5, 0.9), (0.2, 0.25, 1.0), torch.float32)
    plain, loader = load(photos, seed=5, workers=0, threads=0), load(photos, seed=5, pixels=pixels, **runner)
    for integers, floats in zip(plain, loader, strict=True):
        assert floats.image.dtype == torch.float32
        assert floats.image.is_contiguous(memory_format=torch.channels_last)
        normalised = Augment(pixels.mean, pixels.std)(integers.image)
        assert torch.allclose(floats.image, normalised, atol=2e-6) and floats.key == integers.key


@pytest.mark.sweep
def test_batches_that_are_kept_are_never_overwritten(loader, expected):
    epochs = [list(loader) for _ in range(3)]
    assert [digest(epoch) for epoch in epochs] == expected
    loader.close()
    assert [digest(epoch) for epoch in epochs] == expected, "nor when the loader ends"


@pytest.mark.sweep
def test_memory_is_used_again(loader, runner):
    places = set()
    for _ in range(10):
        for batch in loader:
            places.add(batch.image.data_ptr())
            del batch
    assert len(places) <= 4 + max(1, runner.get("workers", 0)) * max(2, runner.get("prefetch", 2))


@pytest.mark.sweep
def test_an_epoch_can_be_abandoned(loader, expected):
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        kept = [batch for batch, _ in zip(loader, range(1 + epoch), strict=False)]
        loader.sampler.set_epoch(epoch)
        assert digest(loader) == expected[epoch]
        assert len(kept) == 1 + epoch
    loader.sampler.set_epoch(0)
    next(iter(loader))
    assert digest(loader) == expected[1], "an abandoned epoch is over"


@pytest.mark.sweep
def test_workers_stay_until_close_and_iterating_starts_new_ones(
    photos, runner, children, assert_nothing_left
):
    loader = load(photos, **runner)
    keys_of(loader)
    before = children()
    assert len(before) == runner["workers"]
    iterator = iter(loader)
    next(iterator)
    assert children() == before
    loader.close()
    loader.close()
    assert children() == set()
    assert_nothing_left()
    with pytest.raises(RuntimeError, match="close"):
        next(iterator)
    assert sorted(keys_of(loader)) == ALL
    loader._iterator = None  # as Lightning ends a loader
    assert children() == set()


@pytest.mark.sweep
def test_a_deleted_loader_leaves_nothing(photos, runner, assert_nothing_left):
    loader = load(photos, **runner)
    next(iter(loader))
    del loader  # not part of a cycle: the garbage collector is not needed
    assert_nothing_left()


@pytest.mark.sweep
def test_sizes_follow_the_epoch_and_buffers_the_sizes(photos, runner):
    split = Split(photos, Progressive(RandomResizedCrop(16), {1: 48, 2: (64, 40), 4: 8}), views=2)
    plain, loader = load(photos, split=split, workers=0, threads=0), load(photos, split=split, **runner)
    kept = [list(loader) for _ in range(5)]
    assert [digest(epoch) for epoch in kept] == [digest(plain) for _ in range(5)]
    loader.sampler.set_epoch(0)
    kept.append([next(iter(loader))])
    sizes = [{tuple(batch.image.shape[3:]) for batch in epoch} for epoch in kept]
    assert sizes == [{(16, 16)}, {(48, 48)}, {(64, 40)}, {(64, 40)}, {(8, 8)}, {(16, 16)}]
    assert kept[2][0].image.shape[:3] == (2, 4, 3)


def test_workers_and_threads_of_a_config():
    cores = LoaderConfig(workers=0).workers_and_threads[1]
    assert 1 <= cores <= min(8, os.cpu_count())
    assert LoaderConfig(workers=3).workers_and_threads == (3, 0)
    for config in (LoaderConfig(threads=3), LoaderConfig(workers=0, threads=3)):
        assert config.workers_and_threads == (0, 3)
    assert LoaderConfig(workers=0, threads=0).workers_and_threads == (0, 0)
    assert sum(LoaderConfig().workers_and_threads) == cores
    with pytest.raises(ValueError, match="workers=2 and threads=2"):
        LoaderConfig(workers=2, threads=2)


def test_a_worker_does_not_send_the_request_back(photos, monkeypatch):
    messages, receive = [], workers._Channel.receive

    def recorded(channel, *arguments):
        messages.append(receive(channel, *arguments))
        return messages[-1]

    monkeypatch.setattr(workers._Channel, "receive", recorded)
    loader = load(photos, workers=1)
    for batch in loader:
        ids = loader.claim().ids
        assert batch.key == [ALL[id] for id in ids], "the loader still returns the request of each batch"
        assert batch.label.tolist() == (ids % 5).tolist()
    loader.close()
    messages = [message for _, message in messages if message != workers._READY]
    parts = list(map(pickle.loads, messages))
    assert len(parts) == len(loader) and not any(isinstance(part, tuple) and part[-1] for part in parts)
    assert not any(b"Request" in message for message in messages)


MEMORY = """
from pathlib import Path
from helpers.loaders import load

def held():  # KiB of memory that is not backed by a file: private and shared
    status = Path("/proc/self/status").read_text()
    lines = [line for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem"))]
    return sum(int(line.split()[1]) for line in lines)

loader = load({photos!r}, **{runner!r})
sizes = []
for epoch in range(24):
    for batch in loader:
        batch.image.float().sum()
    sizes.append(held())
loader.close()
early, late = max(sizes[2:5]), max(sizes[-3:])
print(sizes)
assert late <= 1.02 * early, sizes
"""


@pytest.mark.slow
def test_memory_is_flat_over_20_epochs(photos, runner):
    before = set(Path("/dev/shm").iterdir())
    done = run_script(MEMORY.format(photos=str(photos), runner=runner))
    assert done.returncode == 0, done.stdout + done.stderr
    left = {path.name for path in {*Path("/dev/shm").iterdir()} - before}
    # torch_PID_...: the files of a process that still runs belong to a test beside this one.
    owners = {name: name.split("_")[1] if name.startswith("torch_") else "none" for name in left}
    assert not {name for name, pid in owners.items() if not Path("/proc", pid).is_dir()}
