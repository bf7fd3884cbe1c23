"""make wheel: wheels for other machines. And the CUDA sources with the oldest torch, and others for macOS."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.checkouts import ROOT
from helpers.packed import PIP, attempt, copy_checkout, install, run
from tarpeg.errors import BuildError
from tarpeg.ops import compiler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("wheels")]
NATIVE = ROOT / "native"
WITH_TORCH = [NATIVE / "library.cpp", *sorted(NATIVE.glob("ops/*.cpp"))]  # the only ones: docs/design.md
PROBE = """
import sys, torch, tarpeg
from tarpeg.ops.decode import native_facts
print(native_facts()["libjpeg_file"])
try:
    torch.ops.tarpeg.tile_jpeg(torch.zeros(4), 0, 0)
except RuntimeError as error:
    print("RuntimeError", error)
"""


def oldest_torch(machine: str, *files: str) -> Path:
    """The directory with the oldest torch for this machine; skips the test if it cannot be fetched."""
    done = attempt([sys.executable, str(ROOT / "wheels" / "oldest_torch.py"), machine, *files], ROOT)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def compile_each(commands: list[list[str]]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(lambda command: attempt(command, ROOT), commands):
            assert done.returncode == 0, done.stderr


def test_cuda_operators_compile_with_the_oldest_torch(tmp_path: Path) -> None:
    try:
        nvcc, _ = compiler.find_nvcc()
    except BuildError as error:
        pytest.skip(str(error))
    flags = [flag for flag in compiler.CUDA_COMPILE_FLAGS if not flag.startswith(("-gencode", "-O"))]
    # No machine code: it is torch's headers that differ, which the host's compiler reads.
    flags += ["-O0", "-Xcicc", "-O0", "-gencode=arch=compute_90,code=compute_90", "-I", str(NATIVE)]
    flags += ["-isystem", str(oldest_torch(platform.machine()) / "torch" / "include")]
    files = compiler.sources(NATIVE, "cu")
    compile_each([[nvcc, *flags, "-c", str(path), "-o", str(tmp_path / path.stem)] for path in files])


@pytest.fixture
def make_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A debug build, in a third of the time; with the headers of the oldest torch, as all wheels."""
    monkeypatch.setenv("TARPEG_DEBUG", "1")  # which names the library

    def make(machine: str) -> Path:
        oldest_torch(machine, "torch/lib/libtorch_cpu.so")
        tree = copy_checkout(tmp_path / "tree")
        (tree / "build").symlink_to(ROOT / "build")
        command = [sys.executable, str(tree / "wheels" / "make.py"), machine]
        run(command, tree, TARPEG_CUDA="0", TARPEG_DEBUG="1", CXXFLAGS="-g0")
        (wheel,) = (tree / "dist").iterdir()
        (tag,) = re.findall(rf"-py3-none-.*manylinux_2_(\d+)_{machine}\.whl$", wheel.name)
        assert int(tag) <= 28, "it runs with the glibc that torch needs"
        return wheel

    return make


def contents(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return "\n".join(archive.namelist())


def test_wheel_contains_libjpeg_turbo_and_its_licence(make_wheel, tmp_path: Path) -> None:
    wheel = make_wheel(platform.machine())
    assert f"tarpeg/_lib/{compiler.library_name(NATIVE)}" in contents(wheel)
    assert "dist-info/licenses/LICENSE.libjpeg-turbo" in contents(wheel)
    python = install(wheel, tmp_path / "venv")
    words = run([str(python), "-c", PROBE], cwd=tmp_path, TARPEG_NO_BUILD="1", TARPEG_DEBUG="1").splitlines()
    assert re.fullmatch(r".*/tarpeg\.libs/libjpeg-[0-9a-f]+\.so[\d.]*", words[0]), words
    assert words[1].startswith("RuntimeError") and "uint8" in words[1], (
        "messages pass from the library to torch"
    )


def test_wheel_for_another_machine(make_wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("aarch64-linux-gnu-g++") is None or shutil.which("apt-get") is None:
        pytest.skip("aarch64-linux-gnu-g++ is not installed: apt-get install g++-aarch64-linux-gnu")
    wheel = make_wheel("aarch64")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    name = f"tarpeg/_lib/{compiler.library_name(NATIVE)}"
    with zipfile.ZipFile(wheel) as archive:
        binary = archive.read(name)
        assert binary[:4] == b"\x7fELF" and binary[18] == 183 and b"NEON" in binary  # EM_AARCH64
    assert re.search(r"tarpeg\.libs/libjpeg-[0-9a-f]+\.so", contents(wheel))
    assert "dist-info/licenses/LICENSE.simde" in contents(wheel)


def test_sources_without_torch_compile_for_macos(tmp_path: Path) -> None:
    """With a compiler that brings macOS's headers."""
    place = ROOT / "build" / "zig"
    if not (place / "ziglang").is_dir():
        done = attempt([*PIP, "install", "--quiet", "--no-deps", "--target", str(place), "ziglang"], ROOT)
        if done.returncode != 0:
            pytest.skip(f"a compiler for macOS cannot be fetched: {done.stderr}")
    jpeg = tmp_path / "jpeg"
    jpeg.mkdir()
    source = "#include <cstdio>\n#include <jpeglib.h>\n#include <jerror.h>\n"
    command = [*compiler.find_compiler(), "-M", "-x", "c++", "-"]
    headers = subprocess.check_output(command, input=source, text=True)
    for path in re.findall(r"\S+/j\w+\.h\b", headers):
        shutil.copy(path, jpeg)
    flags = [*compiler.COMPILE_FLAGS, "-O0", "-I", str(NATIVE), "-I", str(jpeg)]
    own = [str(place / "ziglang" / "zig"), "c++", "-target", "aarch64-macos", *flags]
    files = [path for path in compiler.sources(NATIVE, "cpp") if path not in WITH_TORCH]
    compile_each([[*own, "-c", str(path), "-o", str(tmp_path / f"{path.stem}.o")] for path in files])
