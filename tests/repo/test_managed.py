"""Managed training: a service ships one source directory and requirements.txt, nothing else."""

from __future__ import annotations

import importlib.metadata
import re
import shutil

import pytest
from helpers import object_cache
from helpers.checkouts import ROOT, TINY, copy, tracked, train
from helpers.scripts import run_python
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

SHIPPED = ("train.py", "training/", "conf/", "datamodules/", "native/", "requirements.txt")


@pytest.fixture(params=["as links", "as copies", "left out"])
def shipped(tmp_path, request):
    """The source directory; archives and file stores keep symbolic links, follow them, or leave them out."""
    place = copy(tmp_path / "source", [name for name in tracked() if name.startswith(SHIPPED)])
    links = [path for path in place.rglob("*") if path.is_symlink()]
    assert {path.name for path in links} == {"conf", "native"}
    for link in links if request.param != "as links" else ():
        target = link.resolve()
        link.unlink()
        if request.param == "as copies":
            shutil.copytree(target, link)
    return place


def test_it_builds_and_trains_in_an_empty_home(shipped, tmp_path):
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home["CXX"] = object_cache.compiler()
    done = train(shipped, *TINY, **home)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^trained: 3 steps", done.stdout, re.M), done.stdout
    assert "compiling the native operators" in done.stdout + done.stderr
    assert list((shipped / "datamodules" / "tarpeg" / "_lib").glob("libtarpeg-*.so"))
    again = train(shipped, *TINY, **home)
    assert again.returncode == 0 and "compiling" not in again.stdout + again.stderr


def test_requirements_name_all_that_is_imported():
    """requirements.txt is what such a service installs: every import must come from it, or from its needs."""
    code = "import sys, train, tarpeg; [getattr(tarpeg, name) for name in tarpeg.__all__]"
    code += "\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = run_python("-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    required = {Requirement(line).name for line in lines if line[0] != "#"}
    needed = [*importlib.metadata.requires("lightning"), *importlib.metadata.requires("hydra-core")]
    required |= {Requirement(need).name for need in needed if "extra ==" not in need}
    installed = importlib.metadata.packages_distributions()
    heavy = ("torch", "torchvision", "lightning", "torchmetrics")
    for module in (*heavy, "hydra", "omegaconf", "webdataset", "rich"):
        assert set(installed[module]) & required, module
    tests_alone = {"pytest", "hypothesis", "simplejpeg"}
    assert not tests_alone & set(done.stdout.split())
