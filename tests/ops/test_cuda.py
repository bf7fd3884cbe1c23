"""The CUDA operators: compiled if there is nvcc, emulated on the CPU, and run on a GPU if there is one."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import subprocess
import threading
from pathlib import Path

import pytest
import tarpeg
import torch
from helpers import object_cache, reference
from helpers.compile_time import reference_seconds
from helpers.pictures import (
    MEAN,
    ORDERS,
    STD,
    TOLERANCE,
    drawn,
    final_pass,
    jpeg,
    noise,
    parts,
    programs,
    shrinking,
    tensor,
)
from helpers.scripts import PATHS, run_python, write_program
from tarpeg.errors import BuildError
from tarpeg.ops import compiler, gather, library, matrices as mx
from tarpeg.ops.programs import Op

HERE = Path(__file__).parent
EMULATION = HERE.parent / "helpers" / "emulated_cuda"
NANS = {torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}
WAYS = ("bilinear", "nearest")
SHAPES = ((37, 53), (64, 64), (1, 1), (5, 600), (2, 7))


def run(code: str, path: Path, **environment: str) -> str:
    """The output of Python code about the library at `path`; it must succeed."""
    code = f"{PATHS}sys.path.insert(0, {str(HERE)!r})\npath = {str(path)!r}\n{code}"
    done = run_python("-c", code, timeout=800, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def augmented(device: str, size: tuple[int, int], seed: int):
    """Results of augment_batch for every kind of input, copied to the CPU."""
    given = parts(3, *size, seed)
    subsets = ((), ("flip",), ("matrix",), ("contrast",), [*given][:4], ("erase_boxes", "mask"), given)
    for names, order, dtype, memory_format in itertools.product(subsets, ORDERS, TOLERANCE, ORDERS):
        images = noise(3, 3, *size, seed=seed).contiguous(memory_format=order).to(device)
        options = {name: given[name].to(device) for name in names} | {"fill": (9, 8, 7), "dtype": dtype}
        options |= {} if dtype == torch.uint8 else {"mean": MEAN, "std": STD}
        if names is given and dtype != torch.uint8:
            options["erase_keys"] = torch.arange(6).reshape(3, 2).to(device) * 2**33 + seed
        result = tarpeg.augment_batch(images, memory_format=memory_format, **options)
        yield (tuple(names), order, dtype, memory_format), result.cpu()


def gray(device: str, size: tuple[int, int], seed: int):
    """Results of augment_batch for images of one channel, copied to the CPU."""
    given = parts(3, *size, seed)
    for names, dtype in itertools.product(
        ((), ("flip",), ("flip", "matrix", "erase_boxes", "mask")), TOLERANCE
    ):
        images = noise(3, 1, *size, seed=seed).to(device)
        options = {name: given[name].to(device) for name in names} | {"fill": 9, "dtype": dtype}
        options |= {} if dtype == torch.uint8 else {"mean": [0.4], "std": [0.2]}
        if "erase_boxes" in names and dtype != torch.uint8:
            options["erase_keys"] = torch.arange(6).reshape(3, 2).to(device) * 2**33 + seed
        yield (names, dtype), tarpeg.augment_batch(images, **options).cpu()


def warped(device: str, size: tuple[int, int], seed: int):
    """Results of warp_affine for every kind of input, copied to the CPU."""
    matrices = drawn(3, *size, seed).to(device)
    for channels, order, dtype, way in itertools.product((1, 3, 5), ORDERS, TOLERANCE, WAYS):
        images = noise(3, channels, *size, dtype=dtype, seed=seed).contiguous(memory_format=order)
        result = tarpeg.warp_affine(images.to(device), matrices, (size[0] + 3, 270), way, 5)
        yield (channels, order, dtype, way), result.cpu()


def shrunk(device: str):
    """Results of both for matrices whose positions leave the range of a span's numbers."""
    matrices = shrinking().to(device)
    for order in ORDERS:
        images = noise(len(matrices), 3, 32, 40).contiguous(memory_format=order).to(device)
        yield (order, "augment_batch"), tarpeg.augment_batch(images, matrix=matrices, size=(33, 300)).cpu()
        for dtype, way in itertools.product(TOLERANCE, WAYS):
            yield (order, dtype, way), tarpeg.warp_affine(images.to(dtype), matrices, (33, 300), way).cpu()


def nans(device: str):
    """The bits of both for NaNs of every kind, in types of 16 bits. 9 pixels: vector code and its rest."""
    kinds = torch.tensor([0x7FC00000, -0x400000, 0x7F800001, 0x7FD23456], dtype=torch.int32).view(
        torch.float32
    )
    for (dtype, nan), kind in itertools.product(NANS.items(), kinds):
        images = kind.to(dtype).repeat(1, 3, 1, 9).to(device)
        result = tarpeg.warp_affine(images, mx.identity(1), (1, 9), "nearest")
        yield (dtype, "warp_affine", nan), result.view(torch.int16).cpu()
        images, numbers = noise(1, 3, 1, 9).to(device), torch.zeros(1, 19, dtype=torch.float64, device=device)
        numbers[:, 7:] = kind
        out = torch.zeros_like(images, dtype=dtype)
        constants = [0.0] * 3 + [1.0] * 3 + [0.0] * 3
        torch.ops.tarpeg.run_batch(*final_pass(images, numbers, 4, None, None, constants, False, out))
        yield (dtype, "augment_batch", nan), out.view(torch.int16).cpu()


def programmed(device: str, size: tuple[int, int], seed: int):
    """Results of run_programs for every operation alone, and for mixtures, copied to the CPU."""
    ops, values, weights = programs(16, 3, 3, seed)
    given = [tensor.to(device) for tensor in (ops, values, weights)]
    ways = itertools.product(ORDERS, ORDERS, (1, 3), (True, False), (None, (5, 60, 200.5)))
    for order, out_order, chains, nearest, fill in ways:
        images = noise(16, 3, *size, seed=seed).contiguous(memory_format=order).to(device)
        out = torch.empty_like(images, memory_format=out_order)
        arguments = (
            given if chains == 3 else [given[0][:, :1, :1].contiguous(), given[1][:, :1, :1].contiguous()]
        )
        result = tarpeg.run_programs(images, *arguments, nearest=nearest, fill=fill, out=out)
        yield (order, out_order, chains, nearest, fill), result.cpu()


def in_parts(device: str):
    """Results of run_programs for images of several tiles and counting blocks, copied to the CPU."""
    for chains, length in ((1, 3), (3, 1), (1, 0), (3, 0)):
        ops, values, weights = (each.to(device) for each in programs(16, chains, length, 7))
        images = noise(16, 3, 65, 70, seed=7).to(device)
        yield (
            (chains, length),
            tarpeg.run_programs(images, ops, values, weights if chains > 1 else None).cpu(),
        )
    for order, (sigma, size) in itertools.product(ORDERS, ((2.0, 23), (60.0, 255))):
        images = noise(2, 3, 33, 70, seed=size).contiguous(memory_format=order).to(device)
        ops = torch.full((2, 1, 1), Op.BLUR, dtype=torch.int32)
        values = torch.tensor([sigma, size, 0, 0, 0, 0]).repeat(2, 1, 1, 1)
        yield (order, size), tarpeg.run_programs(images, ops.to(device), values.to(device)).cpu()


def in_one_call(device: str, size: tuple[int, int], seed: int):
    """Results of augment_batch with programs before it, copied to the CPU."""
    options = {name: value.to(device) for name, value in parts(16, *size, seed).items()}
    ops, values, weights = (each.to(device) for each in programs(16, 3, 3, seed))
    chain = {"ops": ops[:, :1].contiguous(), "values": values[:, :1].contiguous()}
    mixed = {"ops": ops, "values": values, "weights": weights, "nearest": False}
    for order, dtype, (number, program) in itertools.product(ORDERS, TOLERANCE, enumerate((chain, mixed))):
        images = noise(16, 3, *size, seed=seed).contiguous(memory_format=order).to(device)
        result = tarpeg.augment_batch(images, programs=program, dtype=dtype, **options)
        yield (order, dtype, number), result.cpu()


def with_budget(budget: int, *arguments: object, **options: object) -> tarpeg.Gathered:
    """gather_tiles() with so many bytes of memory for a chunk of images."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gather, "_BUDGET", budget)
        return tarpeg.gather_tiles(*arguments, **options)


def gathered(device: str):
    """Images and statuses of decode_gathered for every way from tiles to pixels, also damaged, on the CPU."""
    sources = [tensor(jpeg(kind, 61, 93, seed)) for seed, kind in enumerate(("420", "411", "440", "gray"))]
    files = [make(source, 16) for source in sources for make in (tarpeg.tile_jpeg, tarpeg.pack_jpeg)]
    files.append(tensor(jpeg("cmyk", 61, 93)))
    boxes = torch.tensor([[3, 5, 40, 70]] * len(files), dtype=torch.int32)
    flip = torch.arange(len(files)) % 3 == 0
    methods = (("bilinear", "fast"), ("bilinear", "exact"), ("bicubic", "exact"), ("lanczos", "fast"))
    sizes = ((13, 31), (40, 70), (5, 8))  # of (5, 8) means are resampled
    cases = itertools.product(sizes, (1, 3), methods)
    # In one chunk, in some, and each image alone.
    for (size, channels, (method, fidelity)), budget in zip(cases, itertools.cycle((1 << 28, 1 << 17, 1))):
        options = {"interpolation": method, "fidelity": fidelity, "channels": channels}
        found = with_budget(budget, files, boxes, size, flip, **options)
        broken = found.data.clone()
        for number, at in enumerate(torch.linspace(64, len(broken) - 65, 9).long().tolist()):
            broken[at] ^= 1 << number % 8
        for data in (found.data, broken):
            images, status = tarpeg.decode_gathered(found._replace(data=data.to(device)))
            yield (size, options), torch.cat([images.flatten(), status.byte()]).cpu()


def check_memory_of_chunks(device: str) -> None:
    """No image gets the memory of another, or memory that is not there."""
    file = tarpeg.pack_jpeg(tensor(jpeg("420", 61, 93)), 16)
    boxes = torch.tensor([[3, 5, 40, 70]] * 6, dtype=torch.int32)
    expected, _ = tarpeg.decode_batch([file] * 6, boxes, 20)
    alone = with_budget(1, [file], boxes[:1], 20).work
    one = with_budget(6 * alone, [file] * 6, boxes, 20)
    assert one.chunks == (0,) and alone * 6 <= one.work < alone * 7
    some = with_budget(2 * alone, [file] * 6, boxes, 20)
    assert some.chunks == (0, 2, 4)

    def damaged(data: torch.Tensor, given: tarpeg.Gathered, **changed: object) -> list[int]:
        found, status = tarpeg.decode_gathered(given._replace(data=data.to(device), **changed))
        is_good = status == 0
        assert torch.equal(found[is_good].cpu(), expected[is_good.cpu()]) and not found[~is_good].any()
        assert is_good.logical_or(status == tarpeg.Status.CORRUPT).all()
        return [int(not each) for each in is_good.tolist()]

    assert damaged(one.data, one) == damaged(some.data, some) == [0] * 6
    # Of each chunk only the images whose memory ends within it are decoded, and before that of the next.
    assert damaged(one.data, one, work=4 * alone) == [0, 0, 0, 0, 1, 1]
    assert damaged(one.data, one, work=0) == [1] * 6
    assert damaged(one.data, one, chunks=(0, 3)) == [0] * 6, "smaller chunks than needed"
    assert damaged(some.data, some, chunks=(0, 2)) == [0, 0, 1, 1, 1, 1]
    for number, begin, bad in (
        (1, 0, [0]),
        (2, 3 * alone, [2]),
        (2, 5 * alone, range(6)),
        (2, 0, range(6)),
        (2, 2 * alone + 16, [2]),
        (5, 2**63, [4, 5]),
        (0, 64, [0]),
    ):
        data = one.data.clone()
        at = 64 + 448 * number + 56  # Image::work of native/gather/layout.h
        data[at : at + 8] = torch.tensor([*begin.to_bytes(8, "little")], dtype=torch.uint8)
        assert damaged(data, one) == [int(each in bad) for each in range(6)], (number, begin)


def everything(device: str):
    yield from gathered(device)
    yield from shrunk(device)
    yield from nans(device)
    yield from in_parts(device)
    for seed, size in enumerate(SHAPES):
        yield from augmented(device, size, seed)
        yield from gray(device, size, seed)
        yield from warped(device, size, seed)
        yield from programmed(device, size, seed)
        yield from in_one_call(device, size, seed)


def test_a_nan_of_16_bits_is_always_the_same():
    for what, bits in nans("cpu"):
        assert bool((bits == what[-1]).all()), what


EMULATED = """
import contextlib, ctypes, shutil, threading, torch, tarpeg, test_cuda
from pathlib import Path
from tarpeg.ops import compiler, library
expected = list(test_cuda.everything("cpu"))

compiler.torch_cuda, library.driver_cuda, torch.cuda.device_count = lambda: (13, 0), lambda: None, lambda: 2
torch.cuda.get_device_capability, torch.cuda.current_device = lambda index: (9, 0), lambda: 0
torch.cuda.device = contextlib.nullcontext
compiler.library_dirs = lambda: [Path(path).parent]
shutil.copy(path, Path(path).with_name(compiler.cuda_library_name(compiler.native_dir(), 13)))
found = library._find_or_build_cuda()
library._cuda = found
error = ctypes.c_int32.in_dll(found, "tarpeg_launch_error")
error.value = 35
reason = library.why_no_cuda()
assert "a kernel failed on cuda:0" in reason and "driver version is insufficient" in reason, reason
error.value = 0
assert library.has_cuda(torch.device("cuda", 1)) and library.has_cuda(), "a failure is not kept"

for (what, result), (_, values) in zip(test_cuda.everything("cpu"), expected, strict=True):
    assert torch.equal(result, values), (what, result.shape, (result.double() - values.double()).abs().max())
in_thread = []
thread = threading.Thread(target=lambda: in_thread.extend(test_cuda.augmented("cpu", (2, 7), 4)))
thread.start()
thread.join()
assert len(in_thread) == 112, "a new thread, whose device is another one"
test_cuda.check_memory_of_chunks("cpu")
launches = ctypes.c_int64.in_dll(found, "tarpeg_launches").value
assert launches >= len(expected), "the CPU's operators were called"
print(len(expected))
"""
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_emulated_kernels_give_the_bits_of_the_cpu(tmp_path):
    """Under ASan and UBSan; see emulated_cuda/cuda_runtime.h for what else is found."""
    native, torch_home = compiler.native_dir(), compiler.torch_dir()
    emulated = tmp_path / "emulated.so"
    flags = [flag for flag in compiler.COMPILE_FLAGS if not flag.startswith(("-W", "-O"))]
    flags += [
        "-O1",
        *SANITIZED,
        "-isystem",
        str(EMULATION),
        f"-I{native}",
        "-isystem",
        f"{torch_home}/include",
    ]
    files = compiler.sources(native, "cu")
    objects = [str(tmp_path / f"{file.stem}.o") for file in files]
    for file, out in zip(files, objects, strict=True):
        command = [*object_cache.launcher(), "c++", *flags, "-x", "c++", "-c", str(file), "-o", out]
        subprocess.run(command, check=True)
    link = ["-shared", "-o", str(emulated), f"-L{torch_home}/lib", "-ltorch_cpu"]
    subprocess.run(["c++", *flags, *objects, *link], check=True)
    names = (["c++", f"-print-file-name=lib{name}.so"] for name in ("asan", "ubsan"))
    found = [
        subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip() for name in names
    ]
    options = "detect_leaks=0:detect_odr_violation=0:malloc_context_size=4:quarantine_size_mb=16"
    printed = run(EMULATED, emulated, LD_PRELOAD=" ".join(found), ASAN_OPTIONS=options)
    assert int(printed) == 2 * 24 + 2 * 9 + 2 * 4 * 2 + 8 + len(SHAPES) * (
        7 * 2 * 4 * 2 + 3 * 2 * 4 * 2 + 32 + 12 + 16
    )


MISTAKES = """
#include <cuda_runtime.h>

template <class T>
__global__ void kernel(int mistake, T* out) {
  TARPEG_SHARED(T, seven);
  const bool is_odd = threadIdx.x == 40;
  if (mistake == 1 && is_odd) return;
  if (threadIdx.x == 0 && mistake != 2) seven = 7;
  if (mistake != 3) __syncthreads();
  if (mistake == 4 && is_odd) return;
  const T sum = __reduce_add_sync(0xFFFFFFFFu, 1);
  out[64 * blockIdx.x + threadIdx.x + (mistake == 5)] = seven + sum;
}

int main(int, char** arguments) {
  int mistake = std::atoi(arguments[1]);
  std::vector<int> values(64 * 16);
  int* out = values.data();
  void* pointers[] = {&mistake, &out};
  CUstream_st stream = {1};
  if (mistake != 6) cudaSetDevice(1);
  const dim3 blocks(mistake == 7 ? 0 : 16);
  const cudaError_t error = cudaLaunchKernel(kernel<int>, blocks, dim3(64), pointers, 0, &stream);
  if (error != cudaSuccess) return std::puts(cudaGetErrorString(error));
  if (std::count(values.begin(), values.end(), 39) != 64 * 16) return std::puts("another result");
}
"""


@pytest.mark.slow
def test_the_emulation_finds_mistakes_of_kernels(tmp_path):
    (tmp_path / "mistakes.cpp").write_text(MISTAKES)
    program = str(tmp_path / "mistakes")
    flags = ["-std=c++17", "-O1", *SANITIZED, "-isystem", str(EMULATION)]
    subprocess.run(["c++", *flags, str(tmp_path / "mistakes.cpp"), "-o", program, "-ldl"], check=True)
    expected = (
        "",
        "a barrier is not reached by all threads",
        "another result",  # shared memory is read that nothing was written to
        "another result",  # no barrier between writing and reading
        "a warp's sum is not reached by all threads",
        "heap-buffer-overflow",
        "invalid resource handle",
        "invalid configuration",
    )
    for mistake, text in enumerate(expected):
        done = subprocess.run([program, str(mistake)], capture_output=True, text=True)
        assert text in done.stdout + done.stderr and bool(done.returncode) is bool(text), (mistake, done)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiles_as_fast_as_20_files_with_regular_expressions_and_loads_without_a_gpu(tmp_path, monkeypatch):
    """47 seconds of one job, 61 at most, where such a file takes 3.05: a machine that is busy gets more.

    It is the processor time of the compilers, also of those that the test of wheels has run.
    """
    log = tmp_path / "seconds"
    try:
        home = object_cache.toolkit(tmp_path / "toolkit")
    except BuildError:
        pytest.skip("needs nvcc")
    jobs = os.cpu_count() or 1  # as many as build_cuda() runs at once
    usual = reference_seconds(tmp_path, jobs)
    with monkeypatch.context() as cached:
        for name, value in (("CUDA_HOME", home), ("CXX", object_cache.compiler())):
            cached.setenv(name, value)
        cached.setenv(object_cache.SECONDS, str(log))
        built = compiler.build_cuda(directories=[tmp_path])
    seconds = sum(map(float, log.read_text().split()))
    usual = (usual + reference_seconds(tmp_path, jobs)) / 2
    assert seconds < 20 * usual, f"{seconds:.1f} s, a file with regular expressions {usual:.2f} s"
    assert built.name == compiler.cuda_library_name(compiler.native_dir(), compiler.find_nvcc()[1][0])
    assert compiler.build_cuda(directories=[tmp_path]) == built, "once"
    run(
        "import torch, tarpeg; tarpeg.warp_affine; torch.ops.load_library(path)\n"
        "for name in ('warp_affine', 'run_batch', 'decode_gathered'):\n"
        "    assert torch._C._dispatch_has_kernel_for_dispatch_key('tarpeg::' + name, 'CUDA'), name\n",
        built,
    )
    needed = subprocess.run(["readelf", "-d", str(built)], capture_output=True, text=True, check=True).stdout
    assert "libcudart" not in needed and "libtorch_cuda" not in needed


@pytest.fixture
def nvcc(tmp_path, monkeypatch):
    """A function that writes a stand-in for nvcc, which fails if it may not use CXX. No other is found."""
    monkeypatch.setattr(compiler, "USUAL_NVCC", str(tmp_path / "usual" / "bin" / "nvcc"))
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    def write(home: str, script: str) -> str:
        (tmp_path / home / "bin").mkdir(parents=True)
        write_program(tmp_path / home / "bin" / "nvcc", f"#!/bin/sh\n{script}\n")
        return str(tmp_path / home)

    return write


def test_nvcc_is_searched_in_the_environment_and_must_work(tmp_path, monkeypatch, nvcc):
    monkeypatch.setattr(compiler, "torch_cuda", lambda: None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("CUDA_PATH", nvcc("broken", "echo no >&2; exit 1"))
    monkeypatch.setenv("PATH", nvcc("old", "echo release 11.4, V11.4.1") + "/bin")
    with pytest.raises(BuildError) as caught:
        compiler.find_nvcc()
    message = str(caught.value)
    assert "empty/bin/nvcc is not there" in message and "broken/bin/nvcc does not work (no)" in message
    assert (
        "old/bin/nvcc is of CUDA 11.4" in message and "Install the toolkit of CUDA 12.0 or newer" in message
    )


def test_nvcc_must_be_of_torchs_cuda(monkeypatch, nvcc):
    monkeypatch.setenv("CUDA_HOME", nvcc("new", "echo release 13.0, V13.0.88"))
    monkeypatch.setattr(compiler, "torch_cuda", lambda: (12, 6))
    refusal = r"new/bin/nvcc .*CUDA 13\.0, torch .*CUDA 12\.6"
    with pytest.raises(BuildError, match=f"{refusal}.*toolkit of CUDA 12 "):
        compiler.build_cuda()
    monkeypatch.setenv("CUDA_PATH", nvcc("fits", "echo release 12.9, V12.9.1"))
    assert compiler.find_nvcc() == (f"{os.environ['CUDA_PATH']}/bin/nvcc", (12, 9))


def test_nvcc_compiles_with_cxx(tmp_path, monkeypatch, nvcc):
    monkeypatch.setattr(compiler, "torch_cuda", lambda: (12, 6))
    calls = tmp_path / "calls"
    script = f'echo "$*" >> {calls}; echo release 12.9'
    monkeypatch.setenv(
        "CUDA_HOME", nvcc("home", f"{script}; while [ $# -gt 1 ]; do [ $1 = -o ] && touch $2; shift; done")
    )
    monkeypatch.setenv("CXX", "ccache g++-12 -m64")
    assert compiler.build_cuda(directories=[tmp_path]).name == compiler.cuda_library_name(
        compiler.native_dir(), 12
    )
    version, check, *compilations, link = calls.read_text().splitlines()
    assert version == "--version" and len(compilations) == len(compiler.sources(compiler.native_dir(), "cu"))
    assert all("-ccbin g++-12 -Xcompiler=-m64 " in call for call in (check, *compilations, link))


def test_versions_of_torchs_cuda_and_of_the_driver(tmp_path, monkeypatch):
    assert compiler.torch_cuda() == (torch.version.cuda and tuple(map(int, torch.version.cuda.split("."))))
    (tmp_path / "version.py").write_text(
        "__version__ = '2.14.1+cpu'\ncuda: Optional[str] = None\nhip = '6.4'\n"
    )
    monkeypatch.setattr(compiler, "torch_dir", lambda: tmp_path)
    assert compiler.torch_cuda() is None
    (tmp_path / "cuda.c").write_text("int cuDriverGetVersion(int* version) { *version = 12040; return 0; }\n")
    cuda = str(tmp_path / "libcuda.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", cuda, str(tmp_path / "cuda.c")], check=True)
    code = f"{PATHS}from tarpeg.ops import library; print(library.driver_cuda())"
    assert run_python("-c", code, LD_LIBRARY_PATH=str(tmp_path)).stdout == "(12, 4)\n"


@pytest.mark.parametrize(
    ("switch", "gpus", "driver", "warns", "reason"),
    [
        (None, 0, (13, 0), False, "torch sees no GPU"),
        ("0", 1, (13, 0), False, "TARPEG_CUDA=0"),
        (None, 1, (13, 0), True, "TARPEG_NO_BUILD forbids"),
        ("1", 1, None, None, "TARPEG_NO_BUILD forbids"),
        (
            None,
            1,
            (12, 4),
            True,
            "the driver supports CUDA 12.4, and torch is built for CUDA 13.0. Update the driver",
        ),
        ("1", 1, (12, 4), None, "the driver supports CUDA 12.4"),
    ],
)
def test_gpu_without_cuda_library_warns_once(
    tmp_path, monkeypatch, caplog, switch, gpus, driver, warns, reason
):
    library.load()  # the CPU's, before there is no library to find
    monkeypatch.setenv("TARPEG_LIB_DIR", str(tmp_path))
    monkeypatch.setenv("TARPEG_NO_BUILD", "1")
    monkeypatch.delenv("TARPEG_CUDA", raising=False)
    if switch is not None:
        monkeypatch.setenv("TARPEG_CUDA", switch)
    monkeypatch.setattr(compiler, "torch_cuda", lambda: (13, 0))
    monkeypatch.setattr(library, "driver_cuda", lambda: driver)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    library._refused.cache_clear()
    if warns is None:
        with pytest.raises(BuildError, match=reason):
            library._find_or_build_cuda()
        return
    monkeypatch.setattr(library, "_cuda", library._find_or_build_cuda())
    assert ("images on it will be refused" in caplog.text) is warns
    refused = f"images are on a GPU, but the CUDA operators do not work: .*{reason}"
    with pytest.raises(BuildError, match=refused):
        library.require_cuda(torch.device("cuda"))


def test_gpus_are_refused_on_which_no_kernel_runs(tmp_path, monkeypatch, caplog):
    library.load()
    if torch.cuda.is_available():
        torch.cuda.init()  # it asks for what is replaced here
    (tmp_path / "probe.c").write_text(
        "int calls; const char* tarpeg_cuda_probe(int gpu) {"
        ' if (gpu == 4 && calls++ == 0) return "cudaMalloc: out of memory";'
        ' return gpu == 2 ? "no kernel image is available" : 0; }\n'
    )
    probe = str(tmp_path / "probe.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", probe, str(tmp_path / "probe.c")], check=True)
    stand_in = ctypes.CDLL(probe)
    stand_in.tarpeg_cuda_probe.restype = ctypes.c_char_p
    monkeypatch.setattr(library, "_cuda", stand_in)
    capabilities = {1: (7, 5), 2: (8, 0), 3: (12, 1), 4: (9, 0)}
    current_device = torch.cuda.current_device
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=3: capabilities[index])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(library, "_usable", set())
    library._refused.cache_clear()
    try:
        for index, reason in (
            (1, "compute capability 7.5, they need 8.0"),
            (2, r"no kernel image is available\)"),
        ):
            for _ in range(2):
                with pytest.raises(BuildError, match=f"cuda:{index}.*{reason}.*CPU"):
                    library.require_cuda(torch.device("cuda", index))
            assert caplog.text.count(f"cuda:{index}") == 1
        full = torch.device("cuda", 4)
        with pytest.raises(BuildError, match=r"cuda:4 \(cudaMalloc: out of memory\); free"):
            library.require_cuda(full)
        assert library.has_cuda(full) and library.has_cuda(full), "memory is free again"
        assert library.has_cuda() and library.has_cuda(torch.device("cuda", 3))
        # Tracing asks torch for the state of the current GPU, on a machine that has one.
        monkeypatch.setattr(torch.cuda, "current_device", current_device)
        traced = torch.compile(
            lambda x: x + library.has_cuda(torch.device("cuda", 2)), fullgraph=True, backend="eager"
        )
        assert traced(torch.zeros(())) == 1, "no kernel runs while a graph is traced"
    finally:
        library._refused.cache_clear()


@pytest.mark.gpu
def test_gpu_gives_the_bits_of_the_cpu():
    count = 0
    for (what, ours), (_, expected) in zip(everything("cuda"), everything("cpu"), strict=True):
        assert torch.equal(ours, expected), what
        count += 1
    assert count > 500


@pytest.mark.gpu
def test_gathered_images_have_the_memory_of_their_chunk_on_a_gpu():
    check_memory_of_chunks("cuda")


@pytest.mark.gpu
def test_batch_after_batch_of_large_photographs_is_decoded_in_the_same_memory():
    file, count = tarpeg.tile_jpeg(tensor(jpeg("420", 1500, 2000))), 128
    generator, reserved = torch.Generator().manual_seed(0), []
    for _ in range(40):
        sizes = torch.randint(500, 1500, (count, 2), generator=generator, dtype=torch.int32)
        boxes = torch.cat([torch.zeros_like(sizes), sizes], 1)
        found = tarpeg.gather_tiles([file] * count, boxes, 224)
        assert len(found.chunks) > 1 and found.work <= 1 << 29
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        images, status = tarpeg.decode_gathered(found._replace(data=found.data.to("cuda")))
        assert not status.any()
        pixels = images.numel() + found.data.numel()
        assert torch.cuda.max_memory_allocated() - before < found.work + pixels + (8 << 20)
        reserved.append(torch.cuda.memory_reserved())
    assert torch.equal(images.cpu(), tarpeg.decode_batch([file] * count, boxes, 224)[0])
    assert reserved[-1] == reserved[4], "no growth"


@pytest.mark.gpu
def test_params_may_be_on_another_device_than_images():
    images, given = noise(3, 3, 20, 30), parts(3, 20, 30)
    augmented = tarpeg.augment_batch(images, mean=MEAN, std=STD, **given)
    warped = tarpeg.warp_affine(images, given["matrix"], 16)
    assert torch.equal(tarpeg.augment_batch(images.cuda(), mean=MEAN, std=STD, **given).cpu(), augmented)
    assert torch.equal(tarpeg.warp_affine(images.cuda(), given["matrix"], 16).cpu(), warped)
    there = {name: value.cuda() for name, value in given.items()}
    torch.cuda._sleep(50_000_000)
    assert torch.equal(tarpeg.augment_batch(images, mean=MEAN, std=STD, **there), augmented)
    torch.cuda._sleep(50_000_000)
    assert torch.equal(tarpeg.warp_affine(images, there["matrix"], 16), warped)


@pytest.mark.gpu
def test_runs_on_every_gpu_from_new_threads():
    images, given = noise(3, 3, 20, 30), parts(3, 20, 30)
    expected, found = tarpeg.augment_batch(images, **given), {}

    def augment(index: int) -> None:
        there = {name: value.to(f"cuda:{index}") for name, value in given.items()}
        found[index] = tarpeg.augment_batch(images.to(f"cuda:{index}"), **there).cpu()

    for index in reversed(range(torch.cuda.device_count())):
        thread = threading.Thread(target=augment, args=(index,))
        thread.start()
        thread.join()
        assert torch.equal(found[index], expected), index


@pytest.mark.gpu
def test_runs_on_the_current_stream_without_waiting():
    images = noise(8, 3, 224, 224).cuda()
    given = {name: value.cuda() for name, value in parts(8, 224, 224).items()}
    expected = tarpeg.augment_batch(images, **given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            result = tarpeg.augment_batch(images, **given)
            assert not stream.query(), "it waited"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stream.synchronize()
    assert torch.equal(result, expected)


@pytest.mark.gpu
def test_cuda_graphs_capture_the_operators():
    images = noise(4, 3, 64, 48).cuda()
    given = {name: value.cuda() for name, value in parts(4, 64, 48).items()}
    matrices = given["matrix"]
    out, moved = torch.zeros(4, 3, 64, 48).cuda(), torch.zeros_like(images)

    def step() -> None:
        tarpeg.augment_batch(images, out=out, **given)
        tarpeg.warp_affine(images, matrices, (64, 48), out=moved)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    images.copy_(noise(4, 3, 64, 48, seed=1))
    graph.replay()
    assert torch.equal(out.cpu(), tarpeg.augment_batch(images.cpu(), **parts(4, 64, 48)))
    assert torch.equal(moved.cpu(), tarpeg.warp_affine(images.cpu(), matrices.cpu(), (64, 48)))


@pytest.mark.gpu
def test_unchecked_params_on_a_gpu_have_a_defined_result():
    images = noise(2, 3, 9, 9).cuda()
    matrix = mx.identity(2).cuda()
    matrix[0] = torch.nan
    result = tarpeg.augment_batch(images, matrix=matrix, dtype=torch.uint8, fill=7)
    assert bool((result[0] == 7).all()) and torch.equal(result[1], images[1])
    compiled = torch.compile(lambda x: tarpeg.augment_batch(x, flip=True) + 1, fullgraph=True)
    assert torch.equal(compiled(images), tarpeg.augment_batch(images, flip=True) + 1)
    with pytest.raises(ValueError, match=r"out must be .* on cuda:0"):
        tarpeg.augment_batch(images, out=torch.zeros(2, 3, 9, 9))


@pytest.mark.gpu
def test_more_than_two_to_the_31_elements():
    images = noise(1, 3, 256, 256).cuda()
    big = tarpeg.warp_affine(images.expand(11_000, 3, 256, 256), mx.identity(11_000), 256)
    assert big.numel() > 2**31 and torch.equal(big[-1], images[0])
    del big
    big = tarpeg.warp_affine(images, mx.scale(100)[None], 27_000)
    last = mx.compose(mx.scale(100), mx.translation(0, -26_999))[None]
    expected = reference.warp_affine(images.cpu(), last, (1, 27_000))
    assert big.numel() > 2**31
    assert (big[:, :, -1:].cpu() - expected).abs().max() <= TOLERANCE[torch.uint8]
