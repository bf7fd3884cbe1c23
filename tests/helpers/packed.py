"""Wheels and archives of this checkout, each built once, and fresh environments with one of them."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tarpeg.errors import BuildError

from helpers import object_cache
from helpers.checkouts import copy, tracked

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def run(command: list[str], cwd: Path, **env: str) -> str:
    done = attempt(command, cwd, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def attempt(command: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees none of this checkout."""
    return subprocess.run(command, cwd=cwd, env=outside(**env), capture_output=True, text=True, check=False)


def outside(**env: str) -> dict[str, str]:
    """Our environment without what leads to this checkout, and with these variables."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TARPEG_", "PYTHONPATH"))}
    return {**clean, "COLUMNS": "120", **env}


def copy_checkout(to: Path) -> Path:
    """Copy what git knows, symlinks and all, with the traces of earlier builds that a checkout has."""
    copy(to, tracked())
    traces = ("_lib/libtarpeg-0123456789ab.so", "__pycache__/ops.pyc", "conf/__pycache__/old.pyc")
    for name in traces:
        old = to / "datamodules" / "tarpeg" / name
        old.parent.mkdir(exist_ok=True)
        old.write_text("of earlier sources")
    return to


def make_wheel(tree: Path, out: Path, *options: str, cuda: str = "0") -> tuple[Path, str]:
    """Build a wheel of a directory or an archive; gives its path and what pip said."""
    command = [*PIP, "wheel", "-v", "--no-deps", *options, "-w", str(out), str(tree)]
    cached = {"CXX": object_cache.compiler()}
    if cuda != "0":
        with contextlib.suppress(BuildError):
            cached["CUDA_HOME"] = object_cache.toolkit(out.with_name("toolkit"))
    words = run(command, cwd=out.parent, TARPEG_CUDA=cuda, **cached)
    (wheel,) = out.glob("*.whl")
    return wheel, words


def install(wheel: Path, venv: Path) -> Path:
    """Make an environment with this wheel alone, and let it see the packages of ours: torch is large.

    A directory that a .pth file names is searched last, and its own .pth files are not read, so that the
    editable install there stays unseen.
    """
    run([sys.executable, "-m", "venv", "--without-pip", str(venv)], cwd=venv.parent)
    python = venv / "bin" / "python"
    run([*PIP, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], cwd=venv.parent)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


class Packed:
    """What pip makes of this checkout, made when it is first asked for and then kept."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @functools.cached_property
    def tree(self) -> Path:
        return copy_checkout(self.place / "tree")

    @functools.cached_property
    def wheel(self) -> Path:
        """The wheel with the library."""
        return make_wheel(self.tree, self.place / "out", "--no-build-isolation")[0]

    @functools.cached_property
    def sdist(self) -> Path:
        code = f"from setuptools import build_meta; build_meta.build_sdist({str(self.place)!r})"
        run([sys.executable, "-c", code], cwd=copy_checkout(self.place / "for_sdist"))
        (sdist,) = self.place.glob("*.tar.gz")
        return sdist

    @functools.cached_property
    def wheel_of_sdist(self) -> Path:
        return make_wheel(self.sdist, self.place / "out_of_sdist", "--no-build-isolation")[0]

    @functools.cached_property
    def python(self) -> Path:
        """The interpreter of an environment with the wheel."""
        return install(self.wheel, self.place / "venv")

    @functools.cached_property
    def python_of_sdist(self) -> Path:
        """The interpreter of an environment with the archive."""
        return install(self.wheel_of_sdist, self.place / "venv_of_sdist")
