"""What pip makes of this checkout: wheels with the library or with the sources alone, and what they do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from tarpeg import _build, _cuda
from tarpeg.errors import BuildError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[1]
PACKED = [
    "conf",
    "datamodules",
    "native",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "requirements.txt",
    "setup.py",
]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
PROBE = """
import importlib.resources, tarpeg, torch
from tarpeg import _load
tarpeg.decode_crop
assert (importlib.resources.files("tarpeg.conf") / "train.yaml").is_file()
print(torch.ops.tarpeg.decode_crop.default, _load.library_path(), sep="\\n")
"""


def run(command: list[str], cwd: Path, **env: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TARPEG_", "PYTHONPATH"))}
    done = subprocess.run(command, cwd=cwd, env={**clean, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def copy_checkout(to: Path) -> Path:
    """Copy what packing needs, symlinks and all, with the traces of earlier builds that a checkout has."""
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", "_lib", ".*")
    for name in PACKED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, symlinks=True, ignore=leave)
        else:
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, to)
    old = to / "datamodules" / "tarpeg" / "_lib" / "libtarpeg-0123456789ab.so"
    old.parent.mkdir()
    old.write_text("of earlier sources")
    return to


def make_wheel(tree: Path, out: Path, *options: str, cuda: str = "0") -> tuple[Path, str]:
    command = [*PIP, "wheel", "-v", "--no-deps", *options, "-w", str(out), str(tree)]
    words = run(command, cwd=out.parent, TARPEG_CUDA=cuda)
    (wheel,) = out.glob("*.whl")
    return wheel, words


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def expected() -> set[str]:
    """All files of the package as the checkout shows them through its symlinks, but for what is built."""
    package = ROOT / "datamodules" / "tarpeg"
    found = {*package.glob("*.py"), package / "py.typed", *(package / "conf").glob("*.py")}
    found |= {path for path in (package / "native").rglob("*") if path.suffix in (".cpp", ".h", ".cu")}
    found |= {*(package / "conf").rglob("*.yaml")}
    return {path.relative_to(package.parent).as_posix() for path in found}


def install(wheel: Path, venv: Path) -> Path:
    """Make an environment with this wheel alone, and let it see the packages of ours: torch is large."""
    run([sys.executable, "-m", "venv", "--without-pip", str(venv)], cwd=venv.parent)
    python = venv / "bin" / "python"
    run([*PIP, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], cwd=venv.parent)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def test_wheel_with_torch_at_hand_holds_the_library(tmp_path: Path) -> None:
    wheel, _ = make_wheel(copy_checkout(tmp_path / "tree"), tmp_path / "out", "--no-build-isolation")
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{machine}.whl")
    library = f"tarpeg/_lib/{_build.library_name(ROOT / 'native')}"
    assert contents(wheel) == {*expected(), library}

    python = install(wheel, tmp_path / "venv")
    op, path = run([str(python), "-c", PROBE], cwd=tmp_path, TARPEG_NO_BUILD="1").splitlines()[:2]
    assert op == "tarpeg.decode_crop.default"
    assert Path(path).is_relative_to(tmp_path / "venv") and path.endswith(library)


def test_isolated_wheel_holds_the_sources_and_builds_at_first_use(tmp_path: Path) -> None:
    wheel, words = make_wheel(copy_checkout(tmp_path / "tree"), tmp_path / "out")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert contents(wheel) == expected()
    assert sum("the operators are built at first use" in line for line in words.splitlines()) == 1

    python = install(wheel, tmp_path / "venv")
    words = run([str(python), "-c", PROBE], cwd=tmp_path)
    assert "compiling the native operators" in words
    assert "tarpeg.decode_crop.default" in words.splitlines()
    (library,) = (tmp_path / "venv").glob("lib/python*/site-packages/tarpeg/_lib/*.so")
    assert str(library) in words.splitlines()


def test_wheel_holds_the_cuda_operators_where_nvcc_is(tmp_path: Path) -> None:
    tree = copy_checkout(tmp_path / "tree")
    wheel, words = make_wheel(tree, tmp_path / "out", "--no-build-isolation", cuda="")
    libraries = {f"tarpeg/_lib/{kind.library_name(ROOT / 'native')}" for kind in (_build, _cuda)}
    try:
        _cuda.find_nvcc()
    except BuildError:
        assert sum("the wheel holds no CUDA operators" in line for line in words.splitlines()) == 1
        libraries = {name for name in libraries if "cuda" not in name}
    assert contents(wheel) == {*expected(), *libraries}


def test_sdist_makes_the_same_wheel(tmp_path: Path) -> None:
    tree = copy_checkout(tmp_path / "tree")
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    run([sys.executable, "-c", code], cwd=tree)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [
            member.name for member in archive if not (member.isfile() or member.isdir())
        ]  # no symlinks
    wheel, _ = make_wheel(sdist, tmp_path / "out", "--no-build-isolation")
    assert contents(wheel) == {*expected(), f"tarpeg/_lib/{_build.library_name(ROOT / 'native')}"}


def test_install_without_libjpeg_says_what_is_missing(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(
        "#!/bin/sh\necho 'jpeg.h:1:10: fatal error: jpeglib.h: No such file or directory' >&2; exit 1\n"
    )
    compiler.chmod(0o755)
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", str(copy_checkout(tmp_path / "tree"))]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "CXX": str(compiler)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"tarpeg: {_build.NO_JPEG}" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
