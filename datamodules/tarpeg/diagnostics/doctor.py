"""What is installed, what is loaded and how fast it is: look here first if something is wrong or slow.

This module imports without torch, so that it can report a torch that is missing or broken.
"""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from .. import __version__, machine
from ..errors import BuildError
from ..ops import compiler, library

if TYPE_CHECKING:
    from torch import Tensor

EXTRAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "bench": (
        "for the benchmark: other libraries, and charts",
        (
            *("kornia", "matplotlib", "nvidia-dali-cuda130", "nvidia-nvimgcodec-cu13"),
            *("opencv-python-headless", "PyTurboJPEG", "scikit-image", "scikit-learn", "simplejpeg"),
            *("timm", "torchcodec"),
        ),
    ),
    "recipes": ("for the published trainings: experiment=...", ("lightning", "timm")),
    "detection": ("for experiment=detection: mean average precision", ("pycocotools",)),
    "metrics": ("for DataStallMonitor(metrics=...)", ("prometheus-client",)),
    "cluster": ("for build_cache on a Dask cluster", ("dask", "distributed")),
    "remote": (
        "for build_cache from URLs: s3, gs, http, hf",
        ("aiohttp", "fsspec", "gcsfs", "huggingface_hub", "s3fs"),
    ),
}
"""Purpose and packages of each extra."""

_SHOWN = ("torch", "torchvision", "lightning", "hydra-core", "webdataset")

# The speed check: photographs, side of the crop, repeats of the photographs per batch (one per core, within
# these limits), and the least and largest number of rounds.
_PHOTOS, _CROP, _REPEATS, _ROUNDS = 12, 256, (8, 128), (3, 40)
# Least normal results: speed-up per core, of ordinary files over the reference, of tiled files over ordinary
# ones (1.16 with AVX-512: a small photograph has little above its crops).
_MIN_SCALING, _MIN_SPEEDUP, _MIN_TILED = 0.6, 1.3, 1.05


@dataclass(frozen=True)
class Diagnosis:
    """Result of ``diagnose``; ``str()`` of it is a page of text.

    Attributes:
        facts: Names and values for reading, by section.
        speed: Result of the speed check; None if it was not done.
        oddities: What works, but not as it should.
        problems: What is broken, each with a remedy.

    Example:
        >>> report = tarpeg.diagnose(speed=False)
        >>> report.is_well
        True
    """

    facts: dict[str, dict[str, str]]
    speed: SpeedCheck | None
    oddities: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing is broken."""
        return not self.problems

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for title, rows in self.facts.items():
            yield title
            for name, value in rows.items():
                yield f"  {name + ':':<16}{value}"
        speed = self.speed.lines() if self.speed else []
        for title, lines in (("speed", speed), ("odd", self.oddities), ("broken", self.problems)):
            if lines:
                yield title
            for line in lines:
                yield f"  {line}"
        well = "all is well" if not self.oddities else "it works, but see what is odd"
        yield well if self.is_well else "see what is broken"


@dataclass(frozen=True)
class SpeedCheck:
    """Microseconds for a 256x256 crop of an 800x533 photograph, in the best of the rounds.

    Attributes:
        reference: Processor time of torchvision or Pillow, which decode everything and crop, on one thread.
        ordinary: Processor time of ours on the same file, on one thread.
        tiled: The same on its tiled copy.
        packed: The same on its packed copy.
        alone: Elapsed time for tiled files on one thread.
        together: Elapsed time for tiled files on ``cores`` threads.
        cores: Number of cores.
        peer: Name of the reference.
    """

    reference: float
    ordinary: float
    tiled: float
    packed: float
    alone: float
    together: float
    cores: int
    peer: str = "torchvision"

    @property
    def scaling(self) -> float:
        """Speed-up of all cores over one."""
        return self.alone / self.together

    def lines(self) -> list[str]:
        """Return the results in words."""
        kinds = {"an ordinary": self.ordinary, "a tiled": self.tiled, "a packed": self.packed}
        lines = [
            f"a crop of {kind} 800x533 photograph: {taken:.0f} us, "
            f"{self.reference / taken:.1f} times {self.peer}"
            for kind, taken in kinds.items()
        ]
        if self.cores > 1:
            lines.append(
                f"on {self.cores} cores: {1e6 / self.together:.0f} tiled crops per second, "
                f"{self.scaling:.1f} times one core"
            )
        return lines

    def oddities(self) -> list[str]:
        """Return what is slower than it should be, and possible reasons."""
        odd = []
        if self.cores > 1 and self.scaling < _MIN_SCALING * self.cores:
            odd.append(
                f"threads do not scale: {self.cores} cores are {self.scaling:.1f} times as fast as one. Look "
                "for other processes on this machine, and for a limit set by its container"
            )
        pairs = (
            ("of ordinary photographs", self.ordinary, self.peer, self.reference, _MIN_SPEEDUP),
            ("of tiled photographs", self.tiled, "of ordinary ones", self.ordinary, _MIN_TILED),
        )
        for what, taken, other, others, least in pairs:
            if others < least * taken:
                odd.append(
                    f"slow path: a crop {what} takes {taken:.0f} us, {other} {others:.0f} us. "
                    "Look at SIMD above; if other processes use this machine, try again"
                )
        return odd


@dataclass
class _Report:
    facts: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    oddities: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def diagnose(speed: bool = True) -> Diagnosis:
    """Inspect the installed packages, the native library, CUDA and the machine; measure for ten seconds.

    Loads the operators, and compiles them first if necessary, as their first use would. Initialises CUDA if
    there is a GPU. Nothing broken is raised: it is in ``Diagnosis.problems``.

    Args:
        speed: Measure the speed of crops, on one core and on all.

    Example:
        >>> report = tarpeg.diagnose(speed=False)
        >>> report.problems
        ()
    """
    report, measured = _Report(), None
    _packages(report)
    this = machine.read_machine()
    is_loaded = _load_library(report)
    _compiler(report)
    if is_loaded:
        _cuda(report)
    _machine(report, this)
    if is_loaded and speed and not report.problems:
        measured = _check_speed(this.usable_cores)
        report.oddities += measured.oddities()
        if this.load is not None and this.load > 0.75 * this.cores:
            busy = f"other processes use this machine (load {this.load:.1f})"
            report.oddities.append(f"{busy}: the measurements are not reliable")
    return Diagnosis(dict(report.facts), measured, tuple(report.oddities), tuple(report.problems))


def _packages(report: _Report) -> None:
    rows = report.facts["installed"]
    rows["python"] = f"{platform.python_version()}, {sys.executable}"
    rows["tarpeg"] = f"{__version__}, {compiler.PACKAGE}"
    for requirement in _requirements():
        name, version = requirement.name, _version(requirement.name)
        if name in _SHOWN:
            rows[name] = version or "missing"
        if version is None:
            report.problems.append(f"{name} is missing: pip install '{requirement}'")
        elif not requirement.specifier.contains(version, prereleases=True):
            report.problems.append(
                f"{name} {version} is installed, tarpeg needs {requirement}: pip install -U '{requirement}'"
            )
    for extra, (purpose, packages) in EXTRAS.items():
        missing = [package for package in packages if _version(package) is None]
        found = "present" if not missing else f"without {', '.join(missing)}"
        rows[f"[{extra}]"] = f"{found} ({purpose})"


def _requirements() -> list[Requirement]:
    """Return the requirements of the checkout, or those that pip recorded at the installation."""
    listed = compiler.PACKAGE.resolve().parents[1] / "requirements.txt"
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


def _load_library(report: _Report) -> bool:
    """Load the operators, compiling them if necessary; return whether that worked."""
    rows = report.facts["native operators"]
    started = time.time()
    try:
        path = library.library_path()
        facts = importlib.import_module("..ops.decode", __package__).native_facts()
    except BuildError as error:
        rows["library"] = "not loaded"
        report.problems.append(str(error))
        return False
    except (ImportError, OSError) as error:
        rows["library"] = "not loaded: torch cannot be imported"
        if _version("torch") is not None:  # otherwise it is reported as missing
            report.problems.append(f"torch is installed but cannot be imported: {error}. Reinstall it")
        return False
    is_new = path.stat().st_mtime >= started
    rows["library"] = f"{path}{', compiled just now' if is_new else ''}"
    rows["libjpeg-turbo"] = f"{facts['libjpeg_turbo']}, {Path(facts['libjpeg_file']).resolve()}"
    rows["SIMD"] = facts["simd"]
    limit = os.environ.get("TARPEG_VECTORS")
    if limit in ("avx2", "none"):
        report.oddities.append(f"TARPEG_VECTORS={limit} limits the vector code: slower. Unset it")
    if facts["simd"] == "none":
        rows["SIMD"] = "none: the portable code runs"
        if os.environ.get("TARPEG_PORTABLE") is not None:
            report.oddities.append("TARPEG_PORTABLE is set: the portable code runs, slower. Unset it")
        elif limit != "none" and platform.machine() == "x86_64":
            report.oddities.append("this processor has no AVX2: the portable code runs, slower")
        elif limit != "none" and platform.machine() == "aarch64":
            report.oddities.append(
                "the native library was compiled without SIMDe's headers: no NEON code, slower. Install them "
                f"(Debian, Ubuntu: apt-get install libsimde-dev) and remove {path}: it is compiled again"
            )
    return True


def _compiler(report: _Report) -> None:
    rows = report.facts["native operators"]
    try:
        command = compiler.find_compiler()
        version = next(iter(_output([*command, "--version"]).splitlines()), "unknown version")
        rows["compiler"] = f"{command[0]}, {version}"
    except BuildError:
        rows["compiler"] = "none"
    if compiler.building_forbidden():
        rows["compiler"] += "; TARPEG_NO_BUILD forbids compiling"


def _cuda(report: _Report) -> None:
    import torch

    from ..loader import pinning

    rows = report.facts["CUDA"]
    rows["torch"] = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        rows["GPU"] = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        has_events = pinning.driver() is not None
        rows["pinned batches"] = "yes" if has_events else "no: the driver is older than CUDA 12.6"
    else:
        rows["GPU"] = "none"
    try:
        nvcc, (major, minor) = compiler.find_nvcc()
        rows["toolkit"] = f"{nvcc}, {major}.{minor}"
    except BuildError:
        rows["toolkit"] = "no working nvcc"
    reason = library.why_no_cuda()
    rows["operators"] = "loaded" if reason is None else f"not loaded: {reason.partition('. ')[0]}"
    if reason is not None and rows["GPU"] != "none" and compiler.cuda_switch() is not False:
        report.oddities.append(f"there is a GPU, but images on it will be refused: {reason}")


def _machine(report: _Report, this: machine.Machine) -> None:
    rows = report.facts["machine"]
    rows["system"] = f"{platform.system()} {platform.release()}, {platform.machine()}"
    rows["cores"] = f"{this.cores}"
    if this.core_limit is not None:
        rows["cores"] += f", of which the container may use {this.core_limit:.1f}"
    if this.load is not None:
        rows["load"] = f"{this.load:.1f} in the last minute"
    rows["memory"] = f"{_gigabytes(this.memory)}, {_gigabytes(this.memory_free)} free"
    if this.memory_limit is not None:
        rows["memory"] += f", the container may use {_gigabytes(this.memory_limit)}"
    if this.shared_free is not None:
        rows["/dev/shm"] = f"{_gigabytes(this.shared_free)} free (tarpeg needs none of it)"


def _gigabytes(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else f"{nbytes / 1e9:.1f} GB"


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _check_speed(cores: int, seconds: float = 6.0) -> SpeedCheck:
    """Make a few photographs and decode crops of them for about ``seconds``, on one thread and on ``cores``.

    An impression of this machine. Figures to quote are measured by tools/bench.py of the checkout.
    """
    import numpy as np
    import torch

    from ..datasets.synthetic import Photos, photograph
    from ..ops import decode
    from ..sampling.crops import RandomCrop
    from ..shards.pillow import as_tensor

    photos = [photograph(Photos(size="article"), index).jpeg for index in range(_PHOTOS)]
    jpegs = list(map(as_tensor, photos))
    tiled, packed = ([rewrite(jpeg) for jpeg in jpegs] for rewrite in (decode.tile_jpeg, decode.pack_jpeg))
    repeats = min(max(_REPEATS[0], cores), _REPEATS[1])
    count, crop = repeats * _PHOTOS, RandomCrop(_CROP)
    sizes = decode.image_sizes(jpegs).repeat(repeats, 1).numpy()
    boxes = torch.from_numpy(crop.boxes(sizes, np.random.default_rng(0).random((count, crop.draws))))
    out = torch.empty((count, 3, _CROP, _CROP), dtype=torch.uint8, memory_format=torch.channels_last)
    peer, decode_whole = _peer()

    def ours(files: list[Tensor], threads: int) -> Callable[[], object]:
        return lambda: decode.decode_batch(files * repeats, boxes, _CROP, out=out, threads=threads)

    def theirs() -> None:
        for jpeg, (top, left, height, width) in zip(jpegs, boxes[:_PHOTOS].tolist(), strict=True):
            decode_whole(jpeg)[:, top : top + height, left : left + width]

    # Processor time does not count other processes on a busy machine.
    cpu, elapsed = time.process_time, time.perf_counter
    cases = (
        (theirs, cpu, _PHOTOS),
        (ours(jpegs, 1), cpu, count),
        (ours(tiled, 1), cpu, count),
        (ours(packed, 1), cpu, count),
        (ours(tiled, 1), elapsed, count),
        (ours(tiled, cores), elapsed, count),
    )
    rounds: list[list[float]] = []
    end = elapsed() + seconds
    while len(rounds) < _ROUNDS[0] or (len(rounds) < _ROUNDS[1] and elapsed() < end):
        taken = []
        for run, clock, images in cases:
            started = clock()
            run()
            taken.append(1e6 * (clock() - started) / images)
        rounds.append(taken)
    reference, ordinary, tiled_cpu, packed_cpu, alone, together = map(min, zip(*rounds, strict=True))
    return SpeedCheck(
        reference=reference,
        ordinary=ordinary,
        tiled=tiled_cpu,
        packed=packed_cpu,
        alone=alone,
        together=together,
        cores=cores,
        peer=peer,
    )


def _peer() -> tuple[str, Callable[[Tensor], Tensor]]:
    """Return the name and the decoder, uint8 [n] -> uint8 [3, H, W], that our speed is compared with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision 0.29 deprecates its decoders
        decode_jpeg = getattr(importlib.import_module("torchvision.io"), "decode_jpeg", None)
    return ("Pillow", _decode_with_pillow) if decode_jpeg is None else ("torchvision", decode_jpeg)


def _decode_with_pillow(jpeg: Tensor) -> Tensor:
    import numpy as np
    import torch

    from ..shards.pillow import open_rgb

    return torch.from_numpy(np.array(open_rgb(jpeg.numpy().tobytes()))).permute(2, 0, 1)
