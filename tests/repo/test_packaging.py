"""Packaging: wheels with the library or with the sources only, the archive, metadata and extras."""

from __future__ import annotations

import re
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from helpers import object_cache
from helpers.checkouts import ROOT
from helpers.packed import PIP, attempt, copy_checkout, install, make_wheel, run
from helpers.scripts import NO_JPEGLIB, write_program
from packaging.requirements import Requirement
from tarpeg.errors import BuildError
from tarpeg.ops import compiler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("packed")]
PROBE = """
import importlib.resources, tarpeg, torch
from tarpeg.ops import library
tarpeg.decode_crop
assert (importlib.resources.files("tarpeg.conf") / "train.yaml").is_file()
print(torch.ops.tarpeg.decode_crop.default, library.library_path(), sep="\\n")
"""
INFO = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
EGG_INFO = {
    "PKG-INFO",
    "SOURCES.txt",
    "dependency_links.txt",
    "entry_points.txt",
    "requires.txt",
    "top_level.txt",
}


def contents(wheel: Path) -> set[str]:
    """The files of a wheel without its metadata, which must be the usual files."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = {name for name in names if name.startswith("tarpeg-") and ".dist-info/" in name}
    assert {name.partition("/")[2] for name in about} == INFO
    return names - about


def expected() -> set[str]:
    """All source files of the package, through the symlinks of the checkout."""
    package = ROOT / "datamodules" / "tarpeg"
    # rglob does not follow links
    folders = [package, package / "conf", package / "native", package.with_name("tarpeg_hydra")]
    suffixes = (".py", ".typed", ".yaml", ".cpp", ".h", ".cu")
    found = {path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes}
    return {path.relative_to(package.parent).as_posix() for path in found}


def test_wheel_with_torch_at_hand_holds_the_library(packed, tmp_path: Path) -> None:
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert packed.wheel.name.endswith(f"-py3-none-{machine}.whl")
    library = f"tarpeg/_lib/{compiler.library_name(ROOT / 'native')}"
    assert contents(packed.wheel) == {*expected(), library}

    op, path = run([str(packed.python), "-c", PROBE], cwd=tmp_path, TARPEG_NO_BUILD="1").splitlines()[:2]
    assert op == "tarpeg.decode_crop.default"
    assert Path(path).is_relative_to(packed.python.parents[1]) and path.endswith(library)

    command = str(packed.python.with_name("tarpeg"))
    run([command, "make-shards", "out=photos", "samples=8", "size=48"], cwd=tmp_path)
    words = run([command, "build-cache", "source=photos", "dest=cache", "measure=false"], cwd=tmp_path)
    assert "8 samples" in words, words


def test_isolated_wheel_holds_the_sources_and_builds_at_first_use(packed, tmp_path: Path) -> None:
    wheel, words = make_wheel(packed.tree, tmp_path / "out")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert contents(wheel) == expected()
    assert sum("the operators are built at first use" in line for line in words.splitlines()) == 1

    python = install(wheel, tmp_path / "venv")
    words = run([str(python), "-c", PROBE], cwd=tmp_path, CXX=object_cache.compiler())
    assert "compiling the native operators" in words
    assert "tarpeg.decode_crop.default" in words.splitlines()
    (library,) = (tmp_path / "venv").glob("lib/python*/site-packages/tarpeg/_lib/*.so")
    assert str(library) in words.splitlines()


def test_wheel_holds_the_cuda_operators_if_nvcc_is_installed(tmp_path: Path) -> None:
    tree = copy_checkout(tmp_path / "tree")
    wheel, words = make_wheel(tree, tmp_path / "out", "--no-build-isolation", cuda="")
    libraries = {compiler.library_name(ROOT / "native")}
    try:
        _, (major, _) = compiler.find_nvcc()
        libraries.add(compiler.cuda_library_name(ROOT / "native", major))
    except BuildError:
        assert sum("the wheel holds no CUDA operators" in line for line in words.splitlines()) == 1
    assert contents(wheel) == {*expected(), *(f"tarpeg/_lib/{name}" for name in libraries)}


def test_sdist_holds_what_a_build_needs_and_makes_the_same_wheel(packed) -> None:
    with tarfile.open(packed.sdist) as archive:
        members = [member for member in archive if not member.isdir()]
    assert all(member.isfile() for member in members), "no symlinks"
    names = {member.name.partition("/")[2] for member in members}
    about = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "requirements.txt", "setup.py"}
    made = {"PKG-INFO", "setup.cfg", *(f"datamodules/tarpeg.egg-info/{name}" for name in EGG_INFO)}
    assert names == {f"datamodules/{name}" for name in expected()} | about | made
    library = f"tarpeg/_lib/{compiler.library_name(ROOT / 'native')}"
    assert contents(packed.wheel_of_sdist) == {*expected(), library}


def test_metadata_equals_requirements_and_extras(packed) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10")
    with zipfile.ZipFile(packed.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = Parser().parsestr(archive.read(name).decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert (
        about.get_all("Provides-Extra")
        == list(extras)
        == ["bench", "recipes", "detection", "cluster", "metrics", "remote", "docs", "dev"]
    )
    needs_of_wheel = [Requirement(line) for line in about.get_all("Requires-Dist")]
    required = (ROOT / "requirements.txt").read_text().splitlines()
    listed = [Requirement(line) for line in required if line[0] != "#"]
    assert [need for need in needs_of_wheel if need.marker is None] == listed
    for extra, needs in extras.items():
        names = [need.name for need in needs_of_wheel if f'extra == "{extra}"' in str(need.marker)]
        assert names == [Requirement(line).name for line in needs]
    lightning = next(
        need.specifier for need in needs_of_wheel if need.name == "lightning" and not need.marker
    )
    assert not any(lightning.contains(version) for version in ("2.4.0", "2.6.2", "2.6.3"))  # compromised ones
    assert (about["License-Expression"], about["Requires-Python"]) == ("Apache-2.0", ">=3.10")
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload().strip() == (ROOT / "README.md").read_text().strip()


def test_the_extras_resolve(packed, tmp_path: Path) -> None:
    """pip resolves all extras together; it downloads metadata only."""
    wish = f"{packed.wheel}[bench,recipes,cluster,remote,dev]"
    command = [*PIP, "--python", str(packed.python), "install", "--dry-run", "--no-build-isolation", wish]
    done = attempt(command, tmp_path)
    words = done.stdout + done.stderr
    if re.search(r"Failed to establish a new connection|NewConnectionError|Temporary failure in name", words):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, words
    assert "ResolutionImpossible" not in words


def test_install_without_libjpeg_says_what_is_missing(packed, tmp_path: Path) -> None:
    wrong = write_program(tmp_path / "compiler", NO_JPEGLIB)
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", str(copy_checkout(tmp_path / "tree"))]
    done = attempt(command, tmp_path, CXX=wrong)
    assert done.returncode != 0
    assert f"tarpeg: {compiler.NO_JPEG}" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_an_old_setuptools_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "setuptools.py").write_text("__version__ = '76.1.0'")
    done = attempt([sys.executable, str(ROOT / "setup.py")], ROOT, PYTHONPATH=str(tmp_path))
    text = "tarpeg: setuptools 76.1.0 is older than 77: run pip install 'setuptools>=77' first, or leave "
    assert (done.returncode, done.stderr) == (1, f"{text}--no-build-isolation out\n")
