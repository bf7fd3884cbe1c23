"""tarpeg.diagnose and tools/doctor.py: the facts of this machine, and reports of what is broken."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

import pytest
import tarpeg
import torch
from helpers.checkouts import ROOT
from helpers.forks import run_forked
from helpers.pictures import jpeg
from helpers.scripts import NO_JPEGLIB, PATHS, run_python, run_tool, write_program
from packaging.requirements import Requirement
from tarpeg.diagnostics import doctor
from tarpeg.diagnostics.doctor import SpeedCheck
from tarpeg.ops import compiler, decode, library


def test_this_machine():
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


def test_the_operator_native_facts():
    operator = torch.ops.tarpeg.native_facts.default
    torch.library.opcheck(operator, (), test_utils=("test_schema", "test_faketensor"))
    facts = decode.native_facts()
    assert set(facts) == {"libjpeg_turbo", "libjpeg_file", "simd"}
    assert Path(facts["libjpeg_file"]).is_file()


def test_portable_code_is_odd_also_without_the_tool():
    done = run_python("-c", f"{PATHS}import tarpeg; print(tarpeg.diagnose(speed=False))", TARPEG_PORTABLE="1")
    assert done.returncode == 0, done.stderr
    assert "none: the portable code runs" in done.stdout
    assert "\nodd\n  TARPEG_PORTABLE is set" in done.stdout
    assert done.stdout.endswith("it works, but see what is odd\n")


@pytest.mark.parametrize("level", ["avx2", "none", "sse"])
def test_the_environment_limits_the_vector_code(tmp_path, level):
    script = tmp_path / "script.py"
    script.write_text(f"{PATHS}import tarpeg; print(tarpeg.diagnose(speed=False))")
    done = run_forked(script, TARPEG_VECTORS=level)
    assert done.returncode == 0, done.stderr
    if level == "sse":
        assert "TARPEG_VECTORS=sse in the environment must be avx512, avx2 or none" in done.stdout
    else:
        assert f"TARPEG_VECTORS={level} limits the vector code: slower. Unset it" in done.stdout
        assert re.search(rf"SIMD: +({level}|none)\b", done.stdout, re.IGNORECASE)


def test_a_library_without_neon_is_odd_on_aarch64(monkeypatch):
    facts = {**decode.native_facts(), "simd": "none"}
    monkeypatch.setattr(decode, "native_facts", lambda: facts)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    (said,) = [line for line in tarpeg.diagnose(speed=False).oddities if "SIMDe" in line]
    assert "apt-get install libsimde-dev" in said and str(library.library_path()) in said


def test_no_library_and_compiling_forbidden(tmp_path):
    done = run_tool("doctor", TARPEG_NO_BUILD="1", TARPEG_LIB_DIR=str(tmp_path / "none"))
    assert (done.returncode, done.stderr) == (1, "")
    assert "  library:        not loaded\n" in done.stdout
    assert "; TARPEG_NO_BUILD forbids compiling\n" in done.stdout
    assert re.search(r"^broken\n  the native operators are not built .*Unset it, or build", done.stdout, re.M)
    assert done.stdout.endswith("see what is broken\n") and "speed" not in done.stdout


def test_missing_libjpeg_headers(tmp_path):
    wrong = write_program(tmp_path / "compiler", NO_JPEGLIB)
    done = run_tool("doctor", "speed=false", CXX=wrong, TARPEG_LIB_DIR=str(tmp_path / "lib"))
    assert done.returncode == 1
    assert f"\nbroken\n  {compiler.NO_JPEG}\n" in done.stdout


@pytest.mark.slow
def test_the_speed_check():
    done = run_tool("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    words = "  a crop of a tiled 800x533 photograph: "
    assert re.search(rf"^{words}\d+ us, \d+\.\d times torchvision$", done.stdout, re.M)
    assert done.stdout.splitlines()[-1] in ("all is well", "it works, but see what is odd")


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (None, r"is missing: pip install 'webdataset>=\d"),
        ("0.2.5", r"0\.2\.5 is installed, tarpeg needs webdataset>=\d.*: pip install -U 'webdataset>"),
    ],
)
def test_missing_and_old_packages(monkeypatch, version, problem):
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
    assert re.match(f"webdataset {problem}", found.problems[0])
    assert found.facts["installed"]["webdataset"] == (version or "missing")


def test_compromised_releases_of_lightning_are_refused(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: "2.6.3" if name == "lightning" else "999")
    problems = tarpeg.diagnose(speed=False).problems
    refused = "lightning 2.6.3 is installed, tarpeg needs lightning"
    assert any(line.startswith(refused) for line in problems)


@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_a_broken_torch(tmp_path, error):
    (tmp_path / "torch.py").write_text(f"raise {error}('libtorch_cpu.so: cannot open shared object file')")
    path = os.pathsep.join((str(tmp_path), str(ROOT / "datamodules")))
    done = run_python("-c", "import tarpeg; print(*tarpeg.diagnose().problems)", PYTHONPATH=path)
    assert done.stdout == (
        "torch is installed but cannot be imported: libtorch_cpu.so: cannot open shared object file. "
        "Reinstall it\n"
    ), done.stderr


@pytest.mark.parametrize("reason", [None, "the CUDA operators do not compile: nvcc said no. Do this."])
def test_a_machine_with_gpus(monkeypatch, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "T4" if index == 1 else "H200")
    monkeypatch.setattr(library, "why_no_cuda", lambda: reason)
    monkeypatch.delenv("TARPEG_CUDA", raising=False)
    found = tarpeg.diagnose(speed=False)
    assert found.facts["CUDA"]["GPU"] == "2 x H200, 1 x T4"
    operators = found.facts["CUDA"]["operators"]
    if reason is None:
        assert operators == "loaded" and not found.oddities
    else:
        assert operators == "not loaded: the CUDA operators do not compile: nvcc said no"
        assert found.oddities == (f"there is a GPU, but images on it will be refused: {reason}",)


def test_extras_are_those_of_pyproject():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = project["optional-dependencies"].items()
    known = {
        name: {Requirement(line).name for line in lines}
        for name, lines in known
        if name not in ("dev", "docs")
    }
    assert {name: set(packages) for name, (_, packages) in doctor.EXTRAS.items()} == known


def test_results_of_the_speed_check():
    good = SpeedCheck(1100, 350, 160, 100, 165, 45, cores=4)
    assert good.lines()[1:] == [
        "a crop of a tiled 800x533 photograph: 160 us, 6.9 times torchvision",
        "a crop of a packed 800x533 photograph: 100 us, 11.0 times torchvision",
        "on 4 cores: 22222 tiled crops per second, 3.7 times one core",
    ]
    assert good.oddities() == []
    assert SpeedCheck(1100, 350, 160, 100, 160, 160, cores=1).oddities() == []
    assert (
        "threads do not scale: 4 cores are 1.5" in SpeedCheck(1100, 350, 160, 100, 150, 100, 4).oddities()[0]
    )
    sound = SpeedCheck(1300, 87, 75, 60, 75, 38, cores=2)
    assert sound.oddities() == []
    slow = SpeedCheck(1000, 900, 880, 100, 880, 440, 2).oddities()
    assert [line.partition(". ")[0] for line in slow] == [
        "slow path: a crop of ordinary photographs takes 900 us, torchvision 1000 us",
        "slow path: a crop of tiled photographs takes 880 us, of ordinary ones 900 us",
    ]


def test_without_torchvisions_decoder_pillow_is_the_reference(monkeypatch):
    photo = torch.frombuffer(bytearray(jpeg("444", 48, 64)), dtype=torch.uint8)
    name, decode_whole = doctor._peer()
    assert name == "torchvision"
    expected = decode_whole(photo)
    monkeypatch.delattr("torchvision.io.decode_jpeg")
    name, decode_whole = doctor._peer()
    assert name == "Pillow" and torch.equal(decode_whole(photo), expected)


def test_the_tool_prints_the_plans_of_data():
    done = run_tool("doctor", "speed=false", "data=synthetic")
    begin = done.stdout.index("plan of train\n    native  RandomResizedCrop(size=(64, 64)")
    assert done.returncode == 0 and "plan of val\n    native  CenterCrop(" in done.stdout[begin:]
    done = run_tool("doctor", "speed=false", "data=folder")
    assert done.stderr.strip() == "doctor: data.prepare.root is not set: give data.prepare.root=..."
