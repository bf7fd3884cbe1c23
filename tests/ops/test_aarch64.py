"""The operators' code on aarch64, cross-compiled and emulated: the bytes are those of this machine."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tarpeg
import torch
from helpers import crafted, object_cache, pictures, recorded
from helpers.checkouts import ROOT
from helpers.packed import attempt
from helpers.pictures import ORDERS, noise, tensor
from tarpeg.datasets.synthetic import Photos, photograph
from tarpeg.ops import compiler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("wheels")]
NATIVE = ROOT / "native"
COMPILER = "aarch64-linux-gnu-g++"
METHODS = [(name, True) for name in ("nearest", "nearest-exact", "bilinear", "bicubic", "lanczos", "box")]
METHODS += [("bilinear", False), ("bicubic", False)]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
EMULATOR = "qemu-aarch64-static"


def unpacked(*packages: str) -> Path:
    """The directory with files of Debian's packages; skips the test without them."""
    done = attempt([sys.executable, str(ROOT / "wheels" / "debian.py"), *packages], ROOT)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory):
    """A file of calls, and the name and the result of each on this machine."""
    path = tmp_path_factory.mktemp("calls") / "calls"
    with path.open("wb") as file, recorded.Recorder(file) as recorder:
        decode()
        augment()
        run_programs()
    return path, recorder.calls


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory):
    """Repeat recorded calls on an emulated aarch64: name of its vector code, and results."""
    if shutil.which(COMPILER) is None or shutil.which("apt-get") is None:
        pytest.skip(f"{COMPILER} is not installed: apt-get install g++-aarch64-linux-gnu")
    target = unpacked("arm64", "libjpeg62-turbo", "libjpeg62-turbo-dev", "libsimde-dev:all")
    emulator = shutil.which(EMULATOR)
    if emulator is None:
        emulator = str(unpacked("amd64", f"qemu-user-static=usr/bin/{EMULATOR}") / "usr" / "bin" / EMULATOR)
    place = tmp_path_factory.mktemp("aarch64")
    include = [f"-I{NATIVE}", *(f"-I{target}/usr/include{more}" for more in ("", "/aarch64-linux-gnu"))]
    files = [
        path
        for path in compiler.sources(NATIVE, "cpp")
        if path.parent.name in ("base", "batch", "image", "jpeg")
    ]
    objects = {path: place / f"{path.stem}.o" for path in (*files, recorded.SOURCE)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        commands = [
            [
                *object_cache.launcher(),
                COMPILER,
                *compiler.COMPILE_FLAGS,
                *include,
                "-c",
                str(path),
                "-o",
                str(out),
            ]
            for path, out in objects.items()
        ]
        for done in pool.map(lambda command: attempt(command, ROOT), commands):
            assert done.returncode == 0, done.stderr
    libraries = target / "usr" / "lib" / "aarch64-linux-gnu"
    program = place / "replay"
    link = [COMPILER, *map(str, objects.values()), f"-L{libraries}", "-ljpeg", "-pthread", "-o", str(program)]
    done = attempt(link, ROOT)
    assert done.returncode == 0, done.stderr

    def run(calls: Path, **environment: str) -> tuple[str, list[bytes]]:
        results = place / "results"
        command = [emulator, "-L", "/usr/aarch64-linux-gnu", str(program), str(calls), str(results)]
        done = attempt(command, ROOT, LD_LIBRARY_PATH=str(libraries), **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), recorded.results_of(results)

    return run


def decode() -> None:
    """Images of every kind, sampling and layout by every method; normalised; several boxes of one."""
    files = [pictures.jpeg(kind, 61, 90) for kind in pictures.KINDS]
    files += [pictures.jpeg(kind, 5, 3) for kind in pictures.SAMPLINGS]
    files += [crafted.Jpeg(33, 47, sampling).noise(1).bytes() for sampling in crafted.SAMPLINGS]
    jpegs = [tensor(file) for file in files]
    packed = [tarpeg.pack_jpeg(jpeg) for jpeg in jpegs]
    jpegs += [tarpeg.tile_jpeg(jpeg, 32) for jpeg in jpegs] + packed + [*map(tarpeg.unpack_jpeg, packed)]
    sizes = tarpeg.image_sizes(jpegs)
    whole = torch.cat((torch.zeros_like(sizes), sizes), 1).int()
    parts = torch.cat((sizes // 3, (sizes + 1) // 2), 1).int()
    flip = torch.arange(len(jpegs)) % 2 == 0
    for jpeg, box in zip(jpegs, parts.tolist(), strict=True):
        tarpeg.decode_crop(jpeg, *box)
    for (name, antialias), fidelity in itertools.product(METHODS, ("fast", "exact")):
        options = {"interpolation": name, "antialias": antialias, "fidelity": fidelity}
        for boxes, size in ((parts, (24, 40)), (whole, (9, 7)), (whole, (77, 50))):
            tarpeg.decode_batch(jpegs, boxes, size, flip, **options)
    for channels, dtype in itertools.product((1, 3), (torch.uint8, *FLOATS)):
        tarpeg.decode_batch(jpegs, parts, (33, 21), channels=channels, dtype=dtype)
    jpeg = tensor(photograph(Photos(size=[300, 400]), 0).jpeg)
    boxes = torch.tensor([[3, 4, 290, 390], [50, 60, 200, 300], [100, 31, 64, 64]], dtype=torch.int32)
    tarpeg.decode_batch([jpeg] * 3, boxes, 96)


def augment() -> None:
    for order, size in itertools.product(ORDERS, ((33, 47), (5, 300), (2, 2))):
        images, given = noise(3, 3, *size).contiguous(memory_format=order), pictures.parts(3, *size)
        for names, dtype in itertools.product(((), ("flip",), [*given][2:6], given), (torch.uint8, *FLOATS)):
            tarpeg.augment_batch(images, **{name: given[name] for name in names}, dtype=dtype)
        gray = {name: given[name] for name in ("flip", "matrix", "mask")}
        tarpeg.augment_batch(images[:, :1], **gray, dtype=torch.float16)
        for dtype, way in itertools.product((torch.uint8, torch.float32), ("bilinear", "nearest")):
            tarpeg.warp_affine(images.to(dtype), pictures.drawn(3, *size), (40, 130), way, (1, 2, 3))


def run_programs() -> None:
    for order, nearest, size in itertools.product(ORDERS, (True, False), ((3, 5), (33, 47))):
        images = noise(16, 3, *size).contiguous(memory_format=order)
        for seed, fill in enumerate((None, (1, 60, 200))):
            ops, values, weights = pictures.programs(16, 2, 3, seed)
            tarpeg.run_programs(images, ops, values, weights, nearest=nearest, fill=fill)


@pytest.mark.parametrize("vectors, environment", [("NEON", {}), ("none", {"TARPEG_PORTABLE": "1"})])
def test_every_operator_gives_the_same_bytes(vectors, environment, replay, calls) -> None:
    path, expected = calls
    name, found = replay(path, **environment)
    assert name == vectors and len(found) == len(expected)
    wrong = [
        (i, call) for i, ((call, data), here) in enumerate(zip(expected, found, strict=True)) if data != here
    ]
    assert not wrong and {call for call, _ in expected} == {*recorded.RESULTS}
