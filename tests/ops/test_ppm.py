"""Binary PPM, the raw cache's format: every width, and never a byte beyond the file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import tarpeg
import torch
from helpers import pictures
from torchvision.transforms.v2 import InterpolationMode, functional

GUARDED = """
import ctypes, mmap, numpy, torch, tarpeg
from helpers import pictures
page, libc = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, 4 * page)
bytes_ = numpy.frombuffer(memory, numpy.uint8)
guard = ctypes.c_void_p(bytes_.ctypes.data + 3 * page)
assert libc.mprotect(guard, page, 0) == 0, "the last page is not to be read"
for width in range(1, 70):
    rgb = pictures.pixels(9, width)
    ppm = b"P6\\n%d 9\\n255\\n" % width + rgb.tobytes()
    bytes_[3 * page - len(ppm) : 3 * page] = numpy.frombuffer(ppm, numpy.uint8)
    file = torch.from_numpy(bytes_[3 * page - len(ppm) : 3 * page])
    boxes = torch.tensor([[2, width // 3, 7, width - width // 3]], dtype=torch.int32)
    images, status = tarpeg.decode_batch([file], boxes, (5, 11))
    assert status.tolist() == [0]
print("unharmed")
"""

PORTABLE = """
import sys, torch, tarpeg
from helpers import pictures
for width in range(1, 70):
    file = pictures.tensor(b"P6\\n%d 30\\n255\\n" % width + pictures.pixels(30, width).tobytes())
    boxes = torch.tensor([[3, 0, 27, width]], dtype=torch.int32)
    images, _ = tarpeg.decode_batch([file], boxes, (13, 17))
    sys.stdout.buffer.write(images.contiguous().numpy().tobytes())
"""


@pytest.mark.parametrize("left", [0, 1, 5])
def test_every_width(left: int) -> None:
    for width in range(1, 40):
        rgb = pictures.pixels(21, left + width)
        file = pictures.tensor(b"P6\n%d 21\n255\n" % (left + width) + rgb.tobytes())
        boxes = torch.tensor([[4, left, 17, width]], dtype=torch.int32)
        crop = torch.from_numpy(rgb).permute(2, 0, 1)[:, 4:, left:]
        nearest, _ = tarpeg.decode_batch([file], boxes, (29, 31), interpolation="nearest")
        assert torch.equal(nearest[0], functional.resize(crop, [29, 31], InterpolationMode.NEAREST))
        smooth, _ = tarpeg.decode_batch([file], boxes, (10, 12), fidelity="exact")
        expected = functional.resize(crop, [10, 12], antialias=True)
        assert (smooth[0].int() - expected.int()).abs().max() <= 1


def test_nothing_beyond_the_file_is_read() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", GUARDED], env=environment, capture_output=True, text=True)
    assert done.stdout == "unharmed\n", (done.returncode, done.stderr)


def test_portable_code_gives_the_same_bytes() -> None:
    pictures.assert_portable_is_equal(PORTABLE)
