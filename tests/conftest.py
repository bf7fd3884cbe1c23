"""Small shards of small pictures, shared by the tests of the loader's rooms.

What needs torch is imported by the fixtures: the process that distributes the tests has no use for it, and
the others start seconds earlier.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

# Before torch is imported, here and in what the tests start: threads of OpenMP would spin while they wait, on
# cores that other tests need. A training of 3 steps took 5 times the processor time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from helpers import object_cache
from helpers.groups import send_groups
from helpers.kinds import mark_slow
from helpers.packed import Packed
from helpers.scripts import PARENT, live_processes
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)  # every run draws the same examples
settings.register_profile("new", deadline=None)  # --hypothesis-profile=new draws others
settings.load_profile("same")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leave the modules that are imported here to no later run of the garbage collector, in forks too."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    """Leave out of the quick loop what helpers.kinds says; skip what needs a GPU."""
    mark_slow(items)
    if config.getoption("loadgroup", False):  # set by pytest-xdist in its workers
        send_groups(items)
    skip_without_gpu(items)
    items.sort(key=longest_timeout, reverse=True)


def longest_timeout(item):
    """Tests that may take longest begin: with short ones at the end, no process waits for another."""
    timeout = item.get_closest_marker("timeout")
    return timeout.args[0] if timeout else 0


def skip_without_gpu(items):
    """With TARPEG_REQUIRE_GPU=1 they fail."""
    import torch

    if torch.cuda.is_available() or os.environ.get("TARPEG_REQUIRE_GPU", "") not in ("", "0"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session", autouse=True)
def objects() -> None:
    """A folder for the objects of builds that are equal, see helpers.object_cache; all processes share it."""
    os.environ.setdefault(object_cache.FOLDER, str(object_cache.folder()))


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """A folder with two shards, of 13 and of 10 samples, keys k0000 to k0022."""
    from helpers.small_tars import sample, write_tar

    folder = tmp_path_factory.mktemp("photos")
    for name, numbers in (("a", range(13)), ("b", range(13, 23))):
        write_tar(folder / f"{name}.tar", [member for n in numbers for member in sample(n)])
    return folder


@pytest.fixture(scope="session")
def packed(tmp_path_factory) -> Packed:
    """Wheels and archives of this checkout, and environments with them."""
    return Packed(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def shard_of(tmp_path):
    """Write the given samples to a shard of its own: shard_of(sample(0), sample(1, b"", "png")) -> path."""
    from helpers.small_tars import write_tar

    def write(*samples, name: str = "x.tar") -> Path:
        return write_tar(tmp_path / name, [member for members in samples for member in members])

    return write


MPI = ("orted", "prted", "hydra_pmi_proxy")


@pytest.fixture
def children():
    """A function that lists this process's children by number, without those that were there before.

    MPI's daemon does not count: where mpi4py is installed, Lightning's search for a cluster starts it.
    """
    before = live_processes(PARENT, os.getpid())

    def listed() -> set[int]:
        found = live_processes(PARENT, os.getpid()) - before
        return {number for number in found if Path(f"/proc/{number}/exe").resolve().name not in MPI}

    return listed
