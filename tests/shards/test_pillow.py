"""Images that Pillow decodes: damage, and no programs. Formats, modes and EXIF: cache/test_codecs.py."""

from __future__ import annotations

import os
import pickle
import re
import struct
import warnings
import zlib

import numpy as np
import pytest
from helpers.pictures import picture, saved
from PIL import Image
from tarpeg import Status
from tarpeg.shards import pillow
from tarpeg.shards.pillow import RefusedError, open_rgb, ppm

WIDE = np.linspace(0, 65535, 64 * 80).astype(np.uint16).reshape(64, 80)


def pixels_of(data: bytes) -> bytes | None:
    """A PPM of the image; None if it is refused."""
    try:
        return ppm(open_rgb(data))
    except RefusedError:
        return None


def png_16(samples: np.ndarray) -> bytes:
    """A PNG of RGB samples of 16 bits, which Pillow cannot write."""
    height, width, _ = samples.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    chunks = {b"IHDR": struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0), b"IDAT": zlib.compress(rows)}
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in (chunks | {b"IEND": b""}).items():
        data += (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )
    return data


def with_tag(tiff: bytes, tag: int, old: int, new: int) -> bytes:
    """A little-endian TIFF with another value of a tag."""
    before, after = (struct.pack("<HHIHH", tag, 3, 1, value, 0) for value in (old, new))
    assert tiff.count(before) == 1
    return tiff.replace(before, after)


TIFF = saved(Image.fromarray(WIDE), "TIFF")


@pytest.mark.parametrize(
    "data",
    [
        *(saved(Image.fromarray(WIDE), kind) for kind in ("PNG", "TIFF", "PPM")),
        saved(Image.fromarray(WIDE.astype(">u2")), "TIFF"),
        with_tag(saved(Image.fromarray(65535 - WIDE), "TIFF"), 262, 1, 0),
        png_16(np.stack([WIDE] * 3, -1)),
    ],
    ids=["png", "tiff", "pgm", "big-endian tiff", "white is 0", "rgb png"],
)
def test_of_16_bits_the_upper_8_are_kept(data):
    levels = np.asarray(open_rgb(data))
    assert levels.dtype == np.uint8 and (levels == (WIDE >> 8)[..., None]).all()


def test_of_12_bits_the_upper_8_are_kept():
    raw = np.frombuffer(TIFF, np.uint8)[TIFF.index(WIDE.tobytes()) :][: 64 * 80 * 3 // 2]
    levels = np.asarray(open_rgb(with_tag(TIFF, 258, 16, 12)))[..., 0].ravel()
    assert (levels[::2] == raw[::3]).all() and raw.max() > 200


def test_orientation_and_transparency_of_16_bits():
    data = saved(Image.fromarray(WIDE), "PNG", orientation=6, transparency=65535)
    assert (np.asarray(open_rgb(data))[..., 0] == np.rot90(WIDE >> 8, -1)).all()


@pytest.mark.parametrize("mode", ["F", "I"])
def test_samples_without_a_range_are_refused(mode):
    for kind in ("TIFF", "PPM") if mode == "F" else ("TIFF",):
        with pytest.raises(
            RefusedError, match="32-bit or floating-point numbers, whose black and white"
        ) as caught:
            open_rgb(saved(Image.fromarray(WIDE).convert("I").convert(mode), kind))
        assert caught.value.status == Status.UNSUPPORTED
    same = pickle.loads(pickle.dumps(caught.value))
    assert (str(same), same.status) == (str(caught.value), caught.value.status)


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (picture("PNG")[:900], Status.CORRUPT, r"Pillow cannot decode it: .*truncated.*"),
        (picture("WEBP")[:200], Status.CORRUPT, "Pillow cannot decode it: .*|its WEBP header is damaged"),
        (picture("PNG")[:12] + bytes(99), Status.CORRUPT, "its PNG header is damaged"),
        (
            picture("JPEG2000"),
            Status.UNSUPPORTED,
            "it is JPEG 2000, which is not supported: convert it to .*",
        ),
        (picture("ICO"), Status.UNSUPPORTED, "it is ICO, which is not supported: convert it to JPEG or PNG"),
        (b"\0\0\0\x1cftypheic" + bytes(99), Status.UNSUPPORTED, "it is HEIC, which is not .*"),
        (b"\n<html>", Status.NOT_AN_IMAGE, "it looks like HTML or XML .*"),
        (b"%PDF-1.4", Status.NOT_AN_IMAGE, "it begins with b'%PDF-1.4', as no supported format does"),
    ],
    ids=["cut png", "cut webp", "png header", "jpeg 2000", "ico", "heic", "html", "pdf"],
)
def test_the_reason_has_pillows_words_or_the_format(data, status, reason):
    with pytest.raises(RefusedError) as caught:
        open_rgb(data)
    assert caught.value.status == status and re.fullmatch(reason, str(caught.value)), str(caught.value)
    assert "0x" not in str(caught.value), "the same in every build"


def test_avif_is_decoded_if_pillow_can_and_otherwise_refused_with_the_remedy(monkeypatch):
    if "AVIF" not in pillow.PILLOW_FORMATS:
        pytest.skip("this Pillow has no AVIF")
    data = picture("AVIF", quality=100, subsampling="4:4:4", orientation=6)
    decoded, source = np.asarray(open_rgb(data)).astype(int), np.asarray(open_rgb(picture("PNG")))
    assert np.abs(decoded - np.rot90(source, -1)).mean() < 2
    monkeypatch.setattr(pillow, "PILLOW_FORMATS", pillow.PILLOW_FORMATS[:-1])
    with pytest.raises(RefusedError, match=r"it is AVIF, .*: install pillow>=11\.3") as caught:
        open_rgb(data)
    assert caught.value.status == Status.UNSUPPORTED


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000"])
def test_damaged_pictures_are_refused_or_pixels(kind):
    whole, rng = picture(kind), np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cut in rng.integers(0, len(whole), 30):
            pixels_of(whole[:cut])
        for _ in range(60):
            data = bytearray(whole)
            for place in rng.integers(0, min(len(data), 400), 4):
                data[place] = rng.integers(256)
            pixels_of(bytes(data))


def test_pillow_runs_no_programs(tmp_path, monkeypatch):
    # Pillow passes PostScript to Ghostscript; a shard is data, and nothing in it may run.
    ran = tmp_path / "ran"
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    assert pixels_of(eps) is None
    assert not ran.exists()
