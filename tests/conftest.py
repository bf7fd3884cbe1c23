"""Small shards of small pictures, shared by the tests of the loader's rooms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import object_cache
from helpers.packed import Packed
from helpers.scripts import PARENT, live_processes
from helpers.small_tars import sample, write_tar


def pytest_collection_modifyitems(items):
    """Tests that need a GPU are skipped without one; with TARPEG_REQUIRE_GPU=1 they fail."""
    import torch

    if torch.cuda.is_available() or os.environ.get("TARPEG_REQUIRE_GPU", "") not in ("", "0"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session", autouse=True)
def objects(tmp_path_factory) -> None:
    """A folder for the objects of builds that are equal, see helpers.object_cache; all processes share it."""
    if object_cache.FOLDER in os.environ:  # pytest within a test, for example under the sanitisers
        return
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "objects"
    folder.mkdir(exist_ok=True)
    os.environ[object_cache.FOLDER] = str(folder)


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """A folder with two shards, of 13 and of 10 samples, keys k0000 to k0022."""
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
