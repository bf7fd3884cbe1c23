"""Images that Pillow decodes: damage, and no programs. Formats, modes and EXIF: cache/test_codecs.py."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from helpers.pictures import picture, tensor
from tarpeg.shards.pillow import to_ppm


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000"])
def test_damaged_pictures_are_none_or_pixels(kind):
    whole, rng = picture(kind), np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cut in rng.integers(0, len(whole), 30):
            to_ppm(tensor(whole[:cut]))
        for _ in range(60):
            data = bytearray(whole)
            for place in rng.integers(0, min(len(data), 400), 4):
                data[place] = rng.integers(256)
            to_ppm(tensor(bytes(data)))


def test_pillow_runs_no_programs(tmp_path, monkeypatch):
    # Pillow passes PostScript to Ghostscript; a shard is data, and nothing in it may run.
    ran = tmp_path / "ran"
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    assert to_ppm(tensor(eps)) is None
    assert not ran.exists()
