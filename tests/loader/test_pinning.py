"""Pinned batches: what is registered with CUDA's driver, and when its memory is used again."""

from __future__ import annotations

import gc
import math
import os
import threading
import warnings

import pytest
import torch
from helpers.loaders import load
from helpers.pinned import SHAPE, LateDriver, Numbered, in_use, is_mapped_shared
from helpers.scripts import run_script
from tarpeg.loader import pinning
from tarpeg.loader.arrivals import GatheredImages
from tarpeg.loader.buffers import MOST_LENT, BatchBuffers, PrefetchRunner, Runner

NBYTES = math.prod(SHAPE)
RUNNERS = {"processes": (2, 0), "threads": (0, 2), "the caller": None}


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Memory that other tests registered is gone."""
    yield
    gc.collect()
    pinning.gone.clear()
    pinning._registered.clear()


@pytest.fixture
def late(monkeypatch):
    """A driver, of a process that uses CUDA."""
    library = LateDriver()
    with in_use(monkeypatch, library):
        yield library


def runner_of(kind: str, pin: bool = True) -> Runner:
    if kind == "the caller":
        return Runner(Numbered(), pin=pin)
    workers, threads = RUNNERS[kind]
    return PrefetchRunner(Numbered(), workers, threads, 2, pin=pin)


def trained(runner: Runner, library: LateDriver, count: int = 60, keeps: int = 0) -> list[bool]:
    """Whether each batch was copied to the device as it was; batches are kept for `keeps` steps."""
    copies, kept = [], []
    for k, result in enumerate(runner.run(iter(range(count)), NBYTES)):
        (images, _), result.batch = result.batch, None
        stream = ("main", "side", "side")[k % 3]
        copies.append((k, library.copy(images, stream)))
        kept = [*kept, images][len(kept) + 1 - keeps :] if keeps else []
        del images, result
    library.finish()
    return [bool((copy == k % 251).all()) for k, copy in copies]


@pytest.mark.sweep
@pytest.mark.parametrize("keeps", [1, 0, 5])
@pytest.mark.parametrize("kind", RUNNERS)
def test_memory_is_used_again_when_the_copies_from_it_have_ended(late, kind, keeps):
    runner = runner_of(kind)
    assert all(trained(runner, late, keeps=keeps))
    buffers = runner._buffers
    count = len(buffers._state)
    assert 0 < len(late.asked) == len(set(late.asked)) <= count, "each buffer once"
    assert all(trained(runner, late)) and len(late.asked) <= count
    del buffers
    asked = set(late.asked)
    runner.close()
    gc.collect()
    pinning.sweep(1.0)
    assert set(late.unregistered) == asked and not late.registered and not pinning._registered


@pytest.mark.sweep
@pytest.mark.parametrize("kind", RUNNERS)
def test_without_waiting_for_the_copies_they_would_be_wrong(monkeypatch, late, kind):
    monkeypatch.setattr(pinning.Mark, "is_over", lambda mark: True)
    runner = runner_of(kind)
    assert not all(trained(runner, late))
    late.finish()
    runner.close()


@pytest.mark.sweep
@pytest.mark.parametrize("kind", RUNNERS)
def test_pin_false_and_processes_without_cuda_register_nothing(monkeypatch, late, kind):
    runner = runner_of(kind, pin=False)
    assert all(trained(runner, late)) and not late.asked
    runner.close()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    runner = runner_of(kind)
    assert all(trained(runner, late)) and not late.asked
    runner.close()


def test_the_loader_waits_only_if_no_other_memory_is_free(late):
    late.every = 1 << 30  # nothing ends
    buffers = BatchBuffers(NBYTES, 2, shared=True, pins=True)
    free = len(buffers._state)
    for _ in range(free):
        images = buffers.lend(buffers.acquire(), SHAPE, torch.uint8)
        late.copy(images)
        del images
    assert len(late.asked) == free, "all memory was lent once, without waiting"
    late.every = 1
    number = buffers.acquire()
    assert len(late._work) < free and number == 0, "that which was copied first"


def test_memory_is_registered_once_cuda_is_in_use(monkeypatch, late):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    buffers = BatchBuffers(NBYTES, 0, shared=True, pins=True)
    first = buffers.lend(buffers.acquire(), SHAPE, torch.uint8)
    assert not late.asked
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    second = buffers.lend(buffers.acquire(), SHAPE, torch.uint8)
    assert late.asked == [second.data_ptr()]
    place = first.data_ptr()
    del first
    assert (
        buffers.lend(buffers.acquire(), SHAPE, torch.uint8).data_ptr() == place and place in late.registered
    )


def test_other_threads_than_the_main_thread_register_nothing(late):
    buffers = BatchBuffers(NBYTES, 0, shared=True, pins=True)
    lent = []
    thread = threading.Thread(target=lambda: lent.append(buffers.lend(buffers.acquire(), SHAPE, torch.uint8)))
    thread.start()
    thread.join()
    assert len(lent) == 1 and not late.asked


def test_a_refusal_is_said_once_with_the_drivers_error_and_training_goes_on(late):
    late.refuses = 2
    with pytest.warns(UserWarning, match=r"0\.0 MB .*out of locked memory, error 2.*ulimit -l.*pin=False"):
        runner = runner_of("processes")
        assert all(trained(runner, late))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner.close()
        runner = runner_of("threads")
        assert all(trained(runner, late))
        runner.close()
    assert len(late.asked) == 1


def test_ctrl_c_when_memory_has_been_registered(monkeypatch):
    class Interrupted(LateDriver):
        def cuMemHostRegister_v2(self, address, nbytes, flags):  # noqa: N802
            error = super().cuMemHostRegister_v2(address, nbytes, flags)
            if len(self.asked) == 1:
                raise KeyboardInterrupt
            return error

    library = Interrupted()
    with in_use(monkeypatch, library):
        runner = runner_of("the caller")
        with pytest.raises(KeyboardInterrupt):
            trained(runner, library)
        assert all(trained(runner, library)), "as in a notebook"
        runner.close()
        gc.collect()
        pinning.sweep(1.0)
        assert set(library.unregistered) == set(library.asked)


@pytest.mark.parametrize("name", ["cuMemHostUnregister", "cuEventQuery", "cuCtxRecordEvent"])
def test_ctrl_c_when_memory_is_unregistered(monkeypatch, late, name):
    buffers = BatchBuffers(NBYTES, 0, shared=True, pins=True)
    address = buffers.lend(buffers.acquire(), SHAPE, torch.uint8).data_ptr()
    del buffers
    gc.collect()
    call = getattr(late, name)

    def interrupted(*given):
        call(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(late, name, interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        pinning.sweep()
    monkeypatch.setattr(late, name, call, raising=False)
    pinning.sweep(1.0)
    assert set(late.unregistered) == {address} and not pinning._registered and not pinning.gone
    assert not is_mapped_shared(address, NBYTES)


def test_memory_is_unmapped_after_all_tensors_and_all_copies(late):
    late.every = 1 << 30
    buffers = BatchBuffers(NBYTES, 0, shared=True, pins=True)
    images = buffers.lend(buffers.acquire(), SHAPE, torch.uint8).fill_(7)
    address = images.data_ptr()
    copy = late.copy(images)
    del buffers
    pinning.sweep()
    assert not late.unregistered and is_mapped_shared(address, NBYTES)
    del images
    pinning.sweep(0.01)  # the device has not ended, and may never
    assert not late.unregistered and is_mapped_shared(address, NBYTES)
    late.every = 1
    BatchBuffers(NBYTES, 0, shared=True)  # any other memory looks after it
    pinning.sweep()
    assert (copy == 7).all() and late.unregistered == [address] and not pinning._registered
    assert not is_mapped_shared(address, NBYTES)


def test_memory_that_is_not_registered_is_unmapped_at_once(monkeypatch, late):
    late.refuses = 2
    for is_used in (True, False):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_used)  # noqa: B023
        for _ in range(2):
            buffers = BatchBuffers(NBYTES, 0, shared=True, pins=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                address = buffers.lend(buffers.acquire(), SHAPE, torch.uint8).data_ptr()
            assert is_mapped_shared(address, NBYTES)
            del buffers
            assert not is_mapped_shared(address, NBYTES)
    assert len(late.asked) == 1


def test_a_capture_puts_events_off_and_a_broken_context_ends_them(late):
    buffers = BatchBuffers(NBYTES, 0, shared=True, pins=True)
    late.record_error = 900
    for _ in range(2):
        images = buffers.lend(buffers.acquire(), SHAPE, torch.uint8)
        late.copy(images)
        del images
    assert buffers.acquire() == 2 and len(late._work) == 2
    late.record_error = 710  # a failed assertion: what is left of the work is waited for
    buffers._release_gone()
    assert not late._work and buffers.acquire() == 0
    late.record_error, late.query_error = 0, 710
    images = buffers.lend(0, SHAPE, torch.uint8)
    late.copy(images)
    del images
    assert buffers.acquire() == 0 and not late._work


def test_a_device_that_does_not_end_is_said(monkeypatch, late):
    monkeypatch.setattr("tarpeg.loader.buffers.SLOW", 0.01)
    late.every = 200
    buffers = BatchBuffers(NBYTES, 0, shared=True, pins=True)
    for _ in range(MOST_LENT + 1):
        late.copy(buffers.lend(buffers.acquire(), SHAPE, torch.uint8))
    with pytest.warns(UserWarning, match="no memory for batches is free.*pin=False"):
        assert buffers.acquire() == 0


def test_loaders_pin_unless_they_are_told_not_to(late, photos):
    loader = load(photos, workers=1)
    batches = [batch.image.clone() for batch in loader]
    assert late.registered
    loader.close()
    assert not late.registered
    count = len(late.asked)
    loader = load(photos, workers=1, pin=False)
    assert all(map(torch.equal, batches, [batch.image for batch in loader])) and len(late.asked) == count
    loader.close()
    with pytest.raises(ValueError, match="pin=1 must be True or False"):
        load(photos, pin=1)


class OnDevice:
    """A tensor that is copied to CUDA."""

    def __init__(self, log):
        self.log = log

    def pin_memory(self):
        self.log.append("pinned")
        return self

    def to(self, device, *, non_blocking):
        self.log.append((str(device), non_blocking))
        return self


@pytest.mark.parametrize("pins", [True, False])
def test_gathered_bytes_are_sent_by_pinned_memory_of_torch(pins):
    gathered, log = GatheredImages.__new__(GatheredImages), []
    gathered.data, gathered.rows, gathered.pixels, gathered.pins = OnDevice(log), OnDevice([]), [], pins
    gathered.to("cuda:0")
    assert log == (["pinned", ("cuda:0", True)] if pins else [("cuda:0", False)])
    log.clear()
    gathered.to("cpu")
    assert log == [("cpu", False)]


def test_gathered_bytes_are_sent_if_torch_cannot_pin_them(monkeypatch):
    class Refused(OnDevice):
        def pin_memory(self):
            super().pin_memory()
            raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(GatheredImages, "has_refused", False)
    log = []
    with pytest.warns(UserWarning, match=r"out of memory.*pin=False") as said:
        for _ in range(2):
            gathered = GatheredImages.__new__(GatheredImages)
            gathered.data, gathered.rows, gathered.pixels, gathered.pins = (
                Refused(log),
                OnDevice([]),
                [],
                True,
            )
            gathered.to("cuda")
    assert len(said) == 1 and log == ["pinned", ("cuda", True), ("cuda", True)]


def test_a_fork_has_memory_of_its_own(late):
    runner = runner_of("the caller")
    results = runner.run(iter(range(3)), NBYTES)
    kept = [next(results).batch.image for _ in range(2)]
    child = os.fork()
    if child == 0:
        found = [result.batch.image.clone() for result in runner.run(iter(range(5, 30)), NBYTES)]
        runner.close()
        os._exit(not all((images == 5 + k).all() for k, images in enumerate(found)))
    assert os.waitpid(child, 0)[1] == 0
    assert [int(images.max()) for images in kept] == [0, 1] and len(late.registered) == 2


def test_a_process_ends_with_registered_memory():
    code = """
from helpers.pinned import *
import pytest, sys
with pytest.MonkeyPatch.context() as patch, in_use(patch, LateDriver(every=1 << 30)) as driver:
    from tarpeg.loader.buffers import PrefetchRunner
    results = PrefetchRunner(Numbered(), 1, 0, 2, pin=True).run(iter(range(99)), 4 * 3 * 8 * 8)
    kept = [driver._library.copy(next(results).batch.image) for _ in range(3)]
    print("done", len(driver._library.registered))
"""
    done = run_script(code)
    assert done.returncode == 0 and done.stdout.split()[0] == "done" and not done.stderr, done


@pytest.mark.gpu
def test_on_a_gpu_a_batch_is_pinned_and_right_on_slow_streams():
    torch.zeros(1, device="cuda")
    runner, streams = runner_of("processes"), [torch.cuda.Stream() for _ in range(3)]
    wrong = []
    for k, result in enumerate(runner.run(iter(range(60)), NBYTES)):
        (images, _), result.batch = result.batch, None
        assert images.is_pinned() and images[1:, :, 2:].is_pinned()
        with torch.cuda.stream(streams[k % 3]):
            torch.cuda._sleep(20_000_000)
            wrong.append((images.to("cuda", non_blocking=True) != k % 251).sum())
        del images, result
    torch.cuda.synchronize()
    assert not any(map(int, wrong))
    runner.close()
    assert not pinning._registered
