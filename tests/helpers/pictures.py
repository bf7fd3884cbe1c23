"""Pictures for the tests: every kind of JPEG that libjpeg writes, small, and never flat."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch import Tensor

SAMPLINGS = ("444", "422", "420", "440", "411", "gray")
KINDS = (*SAMPLINGS, "cmyk", "ycck", "gray22", "progressive", "restarts", "rgb", "odd_markers")


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    """uint8 [height, width, 3]: smooth blobs, an edge and some grain."""
    rng = np.random.default_rng([seed, height, width])
    coarse = rng.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    image[height // 2 :, width // 3 :] = 255 - image[height // 2 :, width // 3 :]
    return (image + rng.integers(-20, 21, image.shape)).clip(0, 255).astype(np.uint8)


def tensor(data: bytes) -> Tensor:
    """uint8 [n]"""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def encoded(image: Image.Image, **options: Any) -> bytes:
    """The bytes of a JPEG as Pillow writes it; orientation= adds the EXIF tag."""
    orientation = options.pop("orientation", None)
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **{"quality": 90, **options})
    return buffer.getvalue()


def assert_portable_is_equal(script: str) -> None:
    """Run a script that writes bytes with vector code and without: they must be equal, and some."""
    path = os.pathsep.join(sys.path)
    results = []
    for extra in ({}, {"TARPEG_PORTABLE": "1"}):
        environment = {**os.environ, "PYTHONPATH": path, **extra}
        results.append(subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True))
    assert results[0].stdout and results[0].stdout == results[1].stdout, results[1].stderr.decode()


def flat(kind: str, height: int, width: int) -> bytes:
    """A JPEG of one of KINDS, of one colour."""
    return _jpeg(kind, np.full((height, width, 3), (200, 60, 90), dtype=np.uint8))


def jpeg(kind: str, height: int, width: int, seed: int = 0) -> bytes:
    """A JPEG of one of KINDS."""
    return _jpeg(kind, pixels(height, width, seed))


def _jpeg(kind: str, rgb: np.ndarray) -> bytes:
    if kind in SAMPLINGS:
        sampling = "Gray" if kind == "gray" else kind
        return simplejpeg.encode_jpeg(rgb, 90, colorspace="RGB", colorsubsampling=sampling)
    image = Image.fromarray(rgb)
    if kind == "cmyk":
        return encoded(image.convert("CMYK"))
    if kind == "ycck":  # the Adobe marker's last byte names the transform: 2 is YCCK
        data = bytearray(encoded(image.convert("CMYK")))
        data[data.index(b"Adobe") + 11] = 2
        return bytes(data)
    if kind == "gray22":  # one component that claims a sampling of 2x2: its MCU is one block all the same
        data = bytearray(encoded(image.convert("L")))
        data[data.index(b"\xff\xc0") + 11] = 0x22
        return bytes(data)
    if kind == "progressive":
        return encoded(image, progressive=True)
    if kind == "restarts":
        return encoded(image, restart_marker_blocks=3)
    if kind == "rgb":
        return encoded(image, keep_rgb=True)
    assert kind == "odd_markers", kind  # a comment, fill bytes before a marker, bytes behind the end
    data = encoded(image, comment=b"\xff\xd9 not the end \xff\xc0")
    return data[:2] + b"\xff\xff\xff" + data[3:] + b"\0\0trailing"
