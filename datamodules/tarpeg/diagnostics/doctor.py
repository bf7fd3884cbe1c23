"""What is installed, what is loaded and how fast it is: to be looked at first when something is amiss."""

from __future__ import annotations

import importlib
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from ..errors import BuildError
from ..machine import Machine, read_machine
from ..ops import library

if TYPE_CHECKING:
    from .speedcheck import SpeedCheck

EXTRAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "bench": (
        "what tools/bench.py compares with, and its charts",
        (
            *("kornia", "matplotlib", "nvidia-dali-cuda130", "nvidia-nvimgcodec-cu13"),
            *("opencv-python-headless", "PyTurboJPEG", "simplejpeg"),
        ),
    ),
    "cluster": ("build_cache on a Dask cluster", ("dask", "distributed")),
    "remote": (
        "build_cache from URLs: s3, gs, http, hf",
        ("aiohttp", "fsspec", "gcsfs", "huggingface_hub", "s3fs"),
    ),
}
"""What each extra is for, and its packages."""

_SHOWN = ("torch", "torchvision", "lightning", "hydra-core", "webdataset")


@dataclass(frozen=True)
class Diagnosis:
    """What was found; ``str()`` of it is a page of text.

    facts: of each section, names and values, for reading. speed: None where it was not measured.
    oddities: what works, but not as it should. problems: what is broken, each with what to do.
    """

    facts: dict[str, dict[str, str]]
    speed: SpeedCheck | None
    oddities: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def is_well(self) -> bool:
        """Tell whether nothing is broken."""
        return not self.problems

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for title, rows in self.facts.items():
            yield title
            for name, value in rows.items():
                yield f"  {name + ':':<16}{value}"
        for title, lines in (
            ("speed", self.speed.lines() if self.speed else []),
            ("odd", self.oddities),
            ("broken", self.problems),
        ):
            if lines:
                yield title
            for line in lines:
                yield f"  {line}"
        well = "all is well" if not self.oddities else "it works, but see what is odd"
        yield well if self.is_well else "see what is broken"


@dataclass
class _Notes:
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    oddities: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def diagnose(speed: bool = True) -> Diagnosis:
    """Look at what is installed, at the native library, CUDA and the machine, and measure for ten seconds.

    Loads the operators and, where there are none yet, builds them, as their first use would. Initialises CUDA
    where there is a GPU. speed: whether to measure. What is broken is in ``Diagnosis.problems``, not raised.
    """
    notes, measured = _Notes(), None
    _packages(notes)
    machine = read_machine()
    is_loaded = _load_library(notes)
    _compiler(notes)
    if is_loaded:
        _cuda_facts(notes)
    _machine(notes, machine)
    if is_loaded and speed and not notes.problems:
        speedcheck = importlib.import_module(".speedcheck", __package__)
        measured = speedcheck.check_speed(machine.usable_cores)
        notes.oddities += measured.oddities()
        if machine.load is not None and machine.load > 0.75 * machine.cores:
            notes.oddities.append(f"others use this machine (load {machine.load:.1f}): the figures mislead")
    return Diagnosis(notes.facts, measured, tuple(notes.oddities), tuple(notes.problems))


def _packages(notes: _Notes) -> None:
    tarpeg = importlib.import_module(__package__)
    rows = {
        "python": f"{platform.python_version()}, {sys.executable}",
        "tarpeg": f"{tarpeg.__version__}, {library.PACKAGE}",
    }
    for requirement in _requirements():
        name, version = requirement.name, _version(requirement.name)
        if name in _SHOWN:
            rows[name] = version or "missing"
        if version is None:
            notes.problems.append(f"{name} is missing: pip install '{requirement}'")
        elif not requirement.specifier.contains(version, prereleases=True):
            notes.problems.append(
                f"{name} {version} is installed, tarpeg needs {requirement}: pip install -U '{requirement}'"
            )
    for extra, (purpose, packages) in EXTRAS.items():
        missing = [package for package in packages if _version(package) is None]
        rows[f"[{extra}]"] = "present" if not missing else f"without {', '.join(missing)}"
        rows[f"[{extra}]"] += f" ({purpose})"
    notes.facts["installed"] = rows


def _requirements() -> list[Requirement]:
    """Return what tarpeg needs, as its checkout says or as pip noted when it was installed."""
    listed = library.PACKAGE.resolve().parents[1] / "requirements.txt"
    if listed.is_file():
        lines = [line for line in listed.read_text().splitlines() if line and not line.startswith("#")]
    else:
        try:
            lines = [line for line in metadata.requires("tarpeg") or [] if "extra ==" not in line]
        except metadata.PackageNotFoundError:
            lines = []
    return [Requirement(line) for line in lines]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _load_library(notes: _Notes) -> bool:
    """Load the operators, building them if necessary; return whether that worked."""
    rows = notes.facts.setdefault("native operators", {})
    started = time.time()
    try:
        path = library.library_path()
        decode = importlib.import_module("..ops.decode", __package__)
    except BuildError as error:
        rows["library"] = "not loaded"
        notes.problems.append(str(error))
        return False
    except (ImportError, OSError) as error:
        rows["library"] = "not loaded: torch cannot be imported"
        if _version("torch") is not None:  # otherwise it has been said
            notes.problems.append(f"torch is installed but cannot be imported: {error}. Install it anew")
        return False
    is_new = path.stat().st_mtime >= started
    rows["library"] = f"{path}{', compiled just now' if is_new else ''}"
    facts = decode.native_facts()
    rows["libjpeg-turbo"] = f"{facts['libjpeg_turbo']}, {Path(facts['libjpeg_file']).resolve()}"
    rows["SIMD"] = facts["simd"]
    if facts["simd"] == "none":
        rows["SIMD"] = "none: the portable code runs"
        if os.environ.get("TARPEG_PORTABLE") is not None:
            notes.oddities.append("TARPEG_PORTABLE is set: the portable code runs, slower. Unset it")
        elif platform.machine() == "x86_64":
            notes.oddities.append("this processor has no AVX2: the portable code runs, slower")
    return True


def _compiler(notes: _Notes) -> None:
    rows = notes.facts["native operators"]
    try:
        command = library.compiler()
        rows["compiler"] = f"{command[0]}, {_first_line([*command, '--version'])}"
    except BuildError:
        rows["compiler"] = "none"
    if library.building_forbidden():
        rows["compiler"] += "; TARPEG_NO_BUILD forbids to use one"


def _cuda_facts(notes: _Notes) -> None:
    import torch

    rows = notes.facts["CUDA"] = {}
    rows["torch"] = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        rows["GPU"] = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    else:
        rows["GPU"] = "none"
    try:
        nvcc = library.find_nvcc()
        release = re.search(r"release ([\d.]+)", _output([nvcc, "--version"]))
        rows["toolkit"] = f"{nvcc}, {release[1] if release else 'of unknown version'}"
    except BuildError:
        rows["toolkit"] = "no nvcc that works"
    reason = library.why_no_cuda()
    rows["operators"] = "loaded" if reason is None else f"not loaded: {reason.partition('. ')[0]}"
    if reason is not None and rows["GPU"] != "none" and library.cuda_switch() is not False:
        notes.oddities.append(f"there is a GPU, but images on it will be refused: {reason}")


def _machine(notes: _Notes, machine: Machine) -> None:
    rows = notes.facts["machine"] = {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}"
    }
    rows["cores"] = f"{machine.cores}"
    if machine.core_limit is not None:
        rows["cores"] += f", of which the container may use {machine.core_limit:.1f}"
    if machine.load is not None:
        rows["load"] = f"{machine.load:.1f} in the last minute"
    limit = (
        "" if machine.memory_limit is None else f", the container may use {_gigabytes(machine.memory_limit)}"
    )
    rows["memory"] = f"{_gigabytes(machine.memory)}, {_gigabytes(machine.memory_free)} free{limit}"
    if machine.shared_free is not None:
        rows["/dev/shm"] = f"{_gigabytes(machine.shared_free)} free (tarpeg needs none of it)"


def _gigabytes(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e9:.1f} GB"


def _first_line(command: list[str]) -> str:
    return next(iter(_output(command).splitlines()), "which does not tell its version")


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
