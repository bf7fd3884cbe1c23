"""The CUDA operators: compiled if there is nvcc, emulated on the CPU, and run on a GPU if there is one."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest
import tarpeg
import torch
from helpers import reference
from helpers.pictures import MEAN, ORDERS, STD, TOLERANCE, drawn, noise, parts, shrinking
from helpers.scripts import run_script, write_program
from tarpeg.errors import BuildError
from tarpeg.ops import library, matrices as mx

HERE = Path(__file__).parent
WAYS = ("bilinear", "nearest")
SHAPES = ((37, 53), (64, 64), (1, 1), (5, 600), (2, 7))


def run(code: str, path: Path) -> str:
    """The output of Python code about the library at `path`; it must succeed."""
    done = run_script(f"sys.path.insert(0, {str(HERE)!r})\npath = {str(path)!r}\n{code}", timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def augmented(device: str, size: tuple[int, int], seed: int):
    """Results of augment_batch for every kind of input, copied to the CPU."""
    given = parts(3, *size, seed)
    subsets = ((), ("flip",), ("matrix",), ("contrast",), [*given][2:6], ("erase_boxes", "mask"), given)
    for names, order, dtype, memory_format in itertools.product(subsets, ORDERS, TOLERANCE, ORDERS):
        images = noise(3, 3, *size, seed=seed).contiguous(memory_format=order).to(device)
        options = {name: given[name].to(device) for name in names} | {"fill": (9, 8, 7), "dtype": dtype}
        options |= {} if dtype == torch.uint8 else {"mean": MEAN, "std": STD}
        result = tarpeg.augment_batch(images, memory_format=memory_format, **options)
        yield (tuple(names), order, dtype, memory_format), result.cpu()


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


def everything(device: str):
    yield from shrunk(device)
    for seed, size in enumerate(SHAPES):
        yield from augmented(device, size, seed)
        yield from warped(device, size, seed)


EMULATED = """
import ctypes, torch, tarpeg, test_cuda
expected = list(test_cuda.everything("cpu"))
torch.ops.load_library(path)
for (what, result), (_, values) in zip(test_cuda.everything("cpu"), expected, strict=True):
    assert torch.equal(result, values), (what, result.shape, (result.double() - values.double()).abs().max())
launches = ctypes.c_int64.in_dll(ctypes.CDLL(path), "tarpeg_launches").value
assert launches >= len(expected), "the CPU's operators were called"
print(len(expected))
"""


@pytest.mark.slow
def test_emulated_kernels_give_the_bits_of_the_cpu(tmp_path):
    native, torch_home = library.native_dir(), library.torch_dir()
    emulated = tmp_path / "emulated.so"
    flags = [flag for flag in library.COMPILE_FLAGS if not flag.startswith("-W")]
    flags += [f"-I{native}", "-isystem", f"{torch_home}/include"]
    flags += ["-include", f"{HERE.parent}/helpers/emulated_cuda.h"]
    files = [word for file in library.sources(native, "cu") for word in ("-x", "c++", str(file))]
    link = ["-shared", "-o", str(emulated), f"-L{torch_home}/lib", "-ltorch_cpu"]
    subprocess.run(["c++", *flags, *files, *link], check=True)
    assert int(run(EMULATED, emulated)) == 2 * 9 + len(SHAPES) * (7 * 2 * 4 * 2 + 3 * 2 * 4 * 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiles_in_a_minute_and_loads_without_a_gpu(tmp_path):
    try:
        library.find_nvcc()
    except BuildError:
        pytest.skip("needs nvcc")
    before = sum(os.times()[2:4])  # processor time of children: others may share the machine
    built = library.build_cuda(directories=[tmp_path])
    assert sum(os.times()[2:4]) - before < 60
    assert built.name == library.cuda_library_name(library.native_dir())
    assert library.build_cuda(directories=[tmp_path]) == built, "once"
    run(
        "import torch, tarpeg; tarpeg.warp_affine; torch.ops.load_library(path)\n"
        "for name in ('warp_affine', 'augment_batch'):\n"
        "    assert torch._C._dispatch_has_kernel_for_dispatch_key('tarpeg::' + name, 'CUDA'), name\n",
        built,
    )
    needed = subprocess.run(["readelf", "-d", str(built)], capture_output=True, text=True, check=True).stdout
    assert "libcudart" not in needed and "libtorch_cuda" not in needed


def test_nvcc_is_searched_in_the_environment_and_must_work(tmp_path, monkeypatch):
    empty, broken, old = (tmp_path / name for name in ("empty", "broken", "old"))
    for home, script in ((broken, "echo no >&2; exit 1"), (old, "echo release 11.4, V11.4.1")):
        (home / "bin").mkdir(parents=True)
        write_program(home / "bin" / "nvcc", f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", str(old / "bin"))
    monkeypatch.setenv("CUDA_HOME", str(empty))
    monkeypatch.setenv("CUDA_PATH", str(broken))
    monkeypatch.setattr(library, "USUAL_NVCC", str(empty / "nvcc"))
    with pytest.raises(BuildError) as caught:
        library.find_nvcc()
    message = str(caught.value)
    assert "empty/bin/nvcc is not there" in message and "broken/bin/nvcc does not work (no)" in message
    assert "old/bin/nvcc is of CUDA 11.4" in message


@pytest.mark.parametrize(
    ("switch", "gpus", "warns", "reason"),
    [
        (None, 0, False, "torch sees no GPU"),
        ("0", 1, False, "TARPEG_CUDA=0"),
        (None, 1, True, "TARPEG_NO_BUILD forbids"),
        ("1", 1, None, "TARPEG_NO_BUILD forbids"),
    ],
)
def test_gpu_without_cuda_library_warns_once(tmp_path, monkeypatch, caplog, switch, gpus, warns, reason):
    monkeypatch.setenv("TARPEG_LIB_DIR", str(tmp_path))
    monkeypatch.setenv("TARPEG_NO_BUILD", "1")
    monkeypatch.delenv("TARPEG_CUDA", raising=False)
    if switch is not None:
        monkeypatch.setenv("TARPEG_CUDA", switch)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if warns is None:
        with pytest.raises(BuildError, match=reason):
            library._find_or_build_cuda()
        return
    monkeypatch.setattr(library, "_no_cuda", library._find_or_build_cuda())
    assert ("images on it will be refused" in caplog.text) is warns
    refused = f"images are on a GPU, but the CUDA operators are missing: .*{reason}"
    with pytest.raises(BuildError, match=refused):
        library.require_cuda(torch.device("cuda"))


def test_a_gpu_that_is_too_old_is_refused(monkeypatch):
    monkeypatch.setattr(library, "_no_cuda", None)
    capabilities = {1: (7, 5), 2: (8, 0), 3: (12, 1)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[device.index])
    library._too_old.cache_clear()
    try:
        with pytest.raises(BuildError, match=r"cuda:1 has compute capability 7\.5, they need 8\.0 or newer"):
            library.require_cuda(torch.device("cuda", 1))
        for index in (2, 3):
            library.require_cuda(torch.device("cuda", index))
    finally:
        library._too_old.cache_clear()


@pytest.mark.gpu
def test_gpu_gives_the_bits_of_the_cpu():
    count = 0
    for (what, ours), (_, expected) in zip(everything("cuda"), everything("cpu"), strict=True):
        assert torch.equal(ours, expected), what
        count += 1
    assert count > 500


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
