"""tarpeg.diagnose and tools/doctor.py: what they find here, and what they say of what is broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tarpeg
import torch
from packaging.requirements import Requirement
from tarpeg import machine
from tarpeg.diagnostics import doctor
from tarpeg.diagnostics.speedcheck import SpeedCheck
from tarpeg.loader.config import LoaderConfig
from tarpeg.ops import decode, library

ROOT = Path(__file__).resolve().parents[2]


def tool(*settings: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "doctor.py"), *settings]
    settings_of_ours = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=settings_of_ours, timeout=200)


def test_what_is_found_here():
    found = tarpeg.diagnose(speed=False)
    assert found.is_well and found.speed is None, found.problems
    assert list(found.facts) == ["installed", "native operators", "CUDA", "machine"]
    native = found.facts["native operators"]
    assert native["library"].partition(",")[0] == str(library.library_path())
    assert re.match(r"[23]\.\d+\.\d+\S*, /\S*libjpeg\S*\.so\S*$", native["libjpeg-turbo"])
    assert torch.__version__.startswith(found.facts["installed"]["torch"].partition("+")[0])
    assert found.facts["machine"]["cores"].split(",")[0] == str(len(os.sched_getaffinity(0)))
    page = str(found)
    for name in ("torchvision", "lightning", "hydra-core", "webdataset", "[bench]", "SIMD", "/dev/shm"):
        assert f"\n  {name}: " in page


def test_the_operator_behind_it():
    operator = torch.ops.tarpeg.native_facts.default
    torch.library.opcheck(operator, (), test_utils=("test_schema", "test_faketensor"))
    facts = decode.native_facts()
    assert set(facts) == {"libjpeg_turbo", "libjpeg_file", "simd"}
    assert Path(facts["libjpeg_file"]).is_file()


def test_portable_code_is_odd_and_without_a_checkout_the_same_is_told():
    code = "import tarpeg; print(tarpeg.diagnose(speed=False))"
    settings = {**os.environ, "TARPEG_PORTABLE": "1", "PYTHONPATH": str(ROOT / "datamodules")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    assert "none: the portable code runs" in done.stdout
    assert "\nodd\n  TARPEG_PORTABLE is set" in done.stdout
    assert done.stdout.endswith("it works, but see what is odd\n")


def test_no_library_and_none_may_be_built(tmp_path):
    done = tool(TARPEG_NO_BUILD="1", TARPEG_LIB_DIR=str(tmp_path / "none"))
    assert (done.returncode, done.stderr) == (1, "")
    assert "  library:        not loaded\n" in done.stdout
    assert "; TARPEG_NO_BUILD forbids to use one\n" in done.stdout
    assert re.search(r"^broken\n  the native operators are not built .*Unset it, or build", done.stdout, re.M)
    assert done.stdout.endswith("see what is broken\n") and "speed" not in done.stdout


def test_libjpegs_headers_are_missing(tmp_path):
    compiler = tmp_path / "compiler"
    words = "jpeg.h:1:10: fatal error: jpeglib.h: No such file or directory"
    compiler.write_text(f"#!/bin/sh\necho '{words}' >&2; exit 1\n")
    compiler.chmod(0o755)
    done = tool("speed=false", CXX=str(compiler), TARPEG_LIB_DIR=str(tmp_path / "lib"))
    assert done.returncode == 1
    assert f"\nbroken\n  {library.NO_JPEG}\n" in done.stdout


@pytest.mark.slow
def test_the_speed_check_and_its_verdict():
    done = tool()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"^  a crop of a tiled 800x533 photograph: \d+ us, \d+\.\d times torchvision$", done.stdout, re.M
    )
    assert done.stdout.splitlines()[-1] in ("all is well", "it works, but see what is odd")


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (None, r"webdataset is missing: pip install 'webdataset>=\d"),
        (
            "0.2.5",
            r"webdataset 0\.2\.5 is installed, tarpeg needs webdataset>=\d.*: pip install -U 'webdataset>",
        ),
    ],
)
def test_packages_that_are_missing_or_too_old(monkeypatch, version, told):
    real = metadata.version

    def pretend(name: str) -> str:
        if name != "webdataset":
            return real(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", pretend)
    found = tarpeg.diagnose(speed=False)
    assert not found.is_well
    assert re.match(told, found.problems[0])
    assert found.facts["installed"]["webdataset"] == (version or "missing")


def test_the_compromised_releases_of_lightning_are_named(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: "2.6.3" if name == "lightning" else "999")
    problems = tarpeg.diagnose(speed=False).problems
    assert [
        line for line in problems if line.startswith("lightning 2.6.3 is installed, tarpeg needs lightning")
    ]


def test_a_torch_that_cannot_be_imported(monkeypatch):
    real = doctor.importlib.import_module

    def broken(name: str, package: str | None = None):
        if name == "..ops.decode":
            raise ImportError("libtorch_cpu.so: cannot open shared object file")
        return real(name, package)

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    found = tarpeg.diagnose()
    assert found.problems == (
        "torch is installed but cannot be imported: libtorch_cpu.so: cannot open shared object file. "
        "Install it anew",
    )


@pytest.mark.parametrize("reason", [None, "the CUDA operators do not compile: nvcc said no. Do this."])
def test_a_machine_with_gpus(monkeypatch, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "T4" if index == 1 else "H200")
    monkeypatch.setattr(library, "why_no_cuda", lambda: reason)
    monkeypatch.delenv("TARPEG_CUDA", raising=False)
    found = tarpeg.diagnose(speed=False)
    assert found.facts["CUDA"]["GPU"] == "2 x H200, 1 x T4"
    if reason is None:
        assert found.facts["CUDA"]["operators"] == "loaded" and not found.oddities
    else:
        assert (
            found.facts["CUDA"]["operators"] == "not loaded: the CUDA operators do not compile: nvcc said no"
        )
        assert found.oddities == (f"there is a GPU, but images on it will be refused: {reason}",)


def test_the_extras_are_those_that_pip_knows():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {
        name: {Requirement(line).name for line in lines}
        for name, lines in project["optional-dependencies"].items()
        if name != "dev"
    }
    assert {name: set(packages) for name, (_, packages) in doctor.EXTRAS.items()} == known


def group(root: Path, cgroup: str, **files: str) -> machine.Machine:
    """Look around where /proc/self/cgroup says `cgroup` and files, / as __, hold what is given."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(cgroup)
    (root / "proc" / "meminfo").write_text(
        "MemTotal:  2000000 kB\nHugePages_Total:  0\nMemAvailable:  1000 kB\n"
    )
    for name, content in files.items():
        path = root / "groups" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return machine.read_machine(root / "groups", root / "proc")


def test_limits_of_a_container(tmp_path, monkeypatch):
    second = group(
        tmp_path / "2",
        "0::/pod/me\n",
        cpu_DOT_max="max 100000\n",
        pod__cpu_DOT_max="150000 100000\n",
        pod__me__cpu_DOT_max="max 100000\n",
        pod__me__memory_DOT_max="4000000000\n",
    )
    assert (second.core_limit, second.memory_limit) == (1.5, 4_000_000_000)
    assert (second.usable_cores, second.memory, second.memory_free) == (1, 2_048_000_000, 1_024_000)
    first = group(
        tmp_path / "1",
        "4:memory:/host/name\n3:cpu,cpuacct:/host/name\n",
        **{"cpu__cpu_DOT_cfs_quota_us": "50000\n", "cpu__cpu_DOT_cfs_period_us": "100000\n"},
        memory__memory_DOT_limit_in_bytes="9223372036854771712\n",
    )
    assert (first.core_limit, first.memory_limit, first.usable_cores) == (0.5, None, 1)
    none = group(tmp_path / "0", "")
    assert (none.core_limit, none.memory_limit, none.usable_cores) == (None, None, none.cores)

    monkeypatch.setattr(machine, "read_machine", lambda: machine.Machine(64, 2.0, 1, 1, 1, 1, 0.1))
    found = tarpeg.diagnose(speed=False)
    assert found.facts["machine"]["cores"] == "64, of which the container may use 2.0"
    assert LoaderConfig().workers_and_threads == (2, 0), "as many workers as the container may keep busy"


def test_verdicts():
    good = SpeedCheck(1100, 350, 160, 165, 45, cores=4)
    assert good.lines()[1:] == [
        "a crop of a tiled 800x533 photograph: 160 us, 6.9 times torchvision",
        "on 4 cores: 22222 tiled crops a second, 3.7 times one core",
    ]
    assert good.oddities() == []
    assert SpeedCheck(1100, 350, 160, 160, 160, cores=1).oddities() == []
    assert "threads do not scale: 4 cores are 1.5" in SpeedCheck(1100, 350, 160, 150, 100, 4).oddities()[0]
    slow = SpeedCheck(1000, 900, 880, 880, 440, 2).oddities()
    assert [line.partition(". ")[0] for line in slow] == [
        "slow path: a crop of ordinary photographs takes 900 us, torchvision 1000 us",
        "slow path: a crop of tiled photographs takes 880 us, of ordinary ones 900 us",
    ]
