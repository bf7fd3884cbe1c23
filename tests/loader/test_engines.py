"""Engines: the same bytes from each, memory used again, and nothing left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from helpers.loaders import ALL, digest, keys_of, load
from helpers.small_tars import sample
from tarpeg import Augment, DecodeError, Progressive, RandomResizedCrop, ShardError, Split
from tarpeg.loader.config import LoaderConfig, PixelFormat

HERE = Path(__file__).parent
ENGINES = [
    {"workers": 0, "threads": 0},
    {"workers": 0, "threads": 1},
    {"workers": 0, "threads": 2, "prefetch": 1},
    {"workers": 0, "threads": 3, "prefetch": 5},
    {"workers": 1},
    {"workers": 2, "prefetch": 1},
    {"workers": 3, "prefetch": 4},
]
NAMES = ["-".join(f"{name[0]}{value}" for name, value in engine.items()) for engine in ENGINES]


@pytest.fixture(scope="module")
def expected(photos):
    loader = load(photos, seed=5, workers=0, threads=0)
    return [digest(loader) for _ in range(3)]


@pytest.fixture(params=ENGINES, ids=NAMES)
def engine(request):
    return request.param


def test_the_same_bytes_from_every_engine(photos, engine, expected):
    loader = load(photos, seed=5, **engine)
    assert [digest(loader) for _ in range(3)] == expected
    loader.close()


def test_images_come_normalised_where_that_is_asked_for(photos, engine):
    pixels = PixelFormat((0.1, 0.5, 0.9), (0.2, 0.25, 1.0), torch.float32)
    plain, loader = load(photos, seed=5, workers=0, threads=0), load(photos, seed=5, pixels=pixels, **engine)
    for bytes_, floats in zip(plain, loader, strict=True):
        assert floats.image.dtype == torch.float32
        assert floats.image.is_contiguous(memory_format=torch.channels_last)
        expected = Augment(pixels.mean, pixels.std)(bytes_.image)
        assert torch.allclose(floats.image, expected, atol=2e-6) and floats.key == bytes_.key
    loader.close()


def test_batches_that_are_kept_are_never_overwritten(photos, engine, expected):
    loader = load(photos, seed=5, **engine)
    epochs = [list(loader) for _ in range(3)]
    assert [digest(epoch) for epoch in epochs] == expected
    loader.close()
    assert [digest(epoch) for epoch in epochs] == expected, "nor when the loader ends"


def test_memory_is_used_again(photos, engine):
    loader, places = load(photos, **engine), set()
    for _ in range(10):
        for batch in loader:
            places.add(batch.image.data_ptr())
            del batch
    loader.close()
    assert len(places) <= 4 + max(1, engine.get("workers", 0)) * max(2, engine.get("prefetch", 2))


def test_an_epoch_that_is_given_up(photos, engine, expected):
    loader = load(photos, seed=5, **engine)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        kept = [batch for batch, _ in zip(loader, range(1 + epoch), strict=False)]
        loader.sampler.set_epoch(epoch)
        assert digest(loader) == expected[epoch]
        assert len(kept) == 1 + epoch
    loader.close()


def test_close_leaves_no_thread_and_no_process(photos, engine, children):
    threads = set(threading.enumerate())
    loader = load(photos, **engine)
    next(iter(loader))
    loader.close()
    loader.close()
    assert children() == set()
    assert_no_thread_but(threads)
    assert sorted(keys_of(loader)) == ALL, "and it starts anew"
    loader.close()


def assert_no_thread_but(threads):
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(threading.enumerate()) - threads == set()


def test_a_loader_that_is_forgotten_leaves_nothing(photos, engine, children):
    threads = set(threading.enumerate())
    loader = load(photos, **engine)
    next(iter(loader))
    del loader
    gc.collect()
    assert_no_thread_but(threads)
    assert children() == set()


def test_errors_arrive_with_their_words(shard_of, engine):
    path = shard_of(sample(0), sample(1, b"<html>"), sample(2, label=b"cat"))
    loader = load(path, on_error="raise", batch_size=1, shuffle=False, **engine)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(DecodeError, match=r"x\.tar, key 'k0001': image is NOT_AN_IMAGE"):
        next(iterator)
    loader = load(path, batch_size=1, shuffle=False, **engine)
    with (
        pytest.warns(UserWarning, match="takes its place"),
        pytest.raises(ShardError, match="'cat', not a 64-bit"),
    ):
        list(loader)


@pytest.fixture(scope="module")
def growing(photos):
    """A split whose images grow, and then shrink; and what its batches are."""
    split = Split(photos, Progressive(RandomResizedCrop(16), {1: 48, 2: 64, 3: 8}), views=2)
    loader = load(photos, split=split, workers=0, threads=0)
    return split, [digest(loader) for _ in range(4)]


def test_a_larger_batch_finds_room(photos, engine, growing):
    split, expected = growing
    loader = load(photos, split=split, **engine)
    kept = [list(loader) for _ in range(4)]
    loader.close()
    assert [digest(epoch) for epoch in kept] == expected
    assert kept[2][0].image.shape == (2, 4, 3, 64, 64)


def test_what_is_asked_for_is_what_there_is():
    cores = LoaderConfig(workers=0).workers_and_threads[1]
    assert 1 <= cores <= min(8, os.cpu_count())
    assert LoaderConfig(workers=3).workers_and_threads == (3, 0)
    assert (
        LoaderConfig(threads=3).workers_and_threads
        == LoaderConfig(workers=0, threads=3).workers_and_threads
        == (0, 3)
    )
    assert LoaderConfig(workers=0, threads=0).workers_and_threads == (0, 0)
    assert sum(LoaderConfig().workers_and_threads) == cores
    with pytest.raises(ValueError, match="workers=2 and threads=2"):
        LoaderConfig(workers=2, threads=2)


MEMORY = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from helpers.loaders import load

def held():  # KiB of memory that is no file's: private and shared
    status = Path("/proc/self/status").read_text()
    lines = [line for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem"))]
    return sum(int(line.split()[1]) for line in lines)

loader = load({photos!r}, **{engine!r})
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
def test_memory_is_flat_over_20_epochs(photos, engine):
    before = set(Path("/dev/shm").iterdir())
    code = MEMORY.format(
        path=[str(HERE), str(HERE.parent), str(HERE.parents[1] / "datamodules")],
        photos=str(photos),
        engine=engine,
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(Path("/dev/shm").iterdir()) <= before


def test_the_first_batch_comes_soon_with_many_samples_to_shuffle(photos):
    loader = load(photos, threads=2)
    loader.sampler.set_epoch(0)
    began = time.monotonic()
    next(iter(loader))
    assert time.monotonic() - began < 5  # a bound against hangs; tools/bench.py measures
    loader.close()
    assert torch.get_num_threads() >= 1
