"""From ids to a decoded batch: other image formats, and every kind of bad input."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers import loaders, reference
from helpers.loaders import RUNNERS, name_of
from helpers.pictures import (
    MEAN,
    OTHER_KINDS,
    STD,
    jpeg,
    other_kind,
    picture,
    premultiplied_gray,
    saved,
    tensor,
)
from helpers.scripts import run_file
from helpers.small_tars import sample
from PIL import Image
from tarpeg import CenterCrop, DecodeError, RandomCrop, RandomResizedCrop, ShardError
from tarpeg.loader import fetch
from tarpeg.shards import pillow
from tarpeg.transforms.pixels import PixelFormat
from torchvision.transforms import v2

FULL = CenterCrop(64)


def load(source, crop=FULL, **options):
    """A loader of batches of 8 in the order of the shards, by default without workers."""
    options = {"shuffle": False, "flip": 0.0, "batch_size": 8, "workers": 0, **options}
    return loaders.load(source, crop, **options)


def worst(image, data):
    """The largest difference between a decoded image and its reference."""
    return int((image.int() - reference.decode_crop(tensor(data), 0, 8, 64, 64).int()).abs().max())


needs_avif = pytest.mark.skipif("AVIF" not in pillow.PILLOW_FORMATS, reason="this Pillow has no AVIF")


@pytest.mark.parametrize(
    ("extension", "kind"),
    [
        *(("png", "PNG"), ("webp", "WEBP"), ("bmp", "BMP"), ("tif", "TIFF"), ("gif", "GIF")),
        *(pytest.param(extension, "AVIF", marks=needs_avif) for extension in ("avif", "jpg")),
    ],
)
def test_other_formats_come_through_pillow(shard_of, extension, kind):
    data = picture(kind)
    with pytest.warns(UserWarning, match=r"x\.tar, key 'k0001' is not a JPEG"):
        (batch,) = load(shard_of(sample(0), sample(1, data, extension), sample(2)))
    assert batch.key == ["k0000", "k0001", "k0002"]
    assert worst(batch.image[1], data) <= 1


@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "P", "RGBA", "1", "I;16"])
def test_other_formats_become_gray_as_pillow_makes_them(shard_of, mode):
    data = picture("PNG", mode=mode)
    with pytest.warns(UserWarning, match="is not a JPEG"):
        (batch,) = load(shard_of(sample(0, data, "png")), channels=1)
    expected = reference.decode_gray(tensor(data))[:, :, 8:72]
    assert batch.image.shape == (1, 1, 64, 64) and torch.equal(batch.image[0], expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_gray_that_is_multiplied_by_its_alpha_does_not_end_a_training(shard_of, channels):
    data = premultiplied_gray()
    with pytest.warns(UserWarning, match="is not a JPEG"):
        (batch,) = load(shard_of(sample(0, data, "tif")), channels=channels)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("LA").getchannel("L"))[:, 8:72]
    assert (batch.image[0, 0].numpy() == expected).all()


def unconvertible(*_, **__):
    raise ValueError("conversion from X to Y not supported")


@pytest.mark.parametrize("options", [{}, {"channels": 1}, {"transform": [v2.RandomRotation(9)]}])
def test_a_failure_after_pillow_has_opened_a_file_is_its_status(shard_of, monkeypatch, options):
    path = shard_of(sample(0), sample(1, picture("PNG", mode="P"), "png"))
    monkeypatch.setattr(Image.Image, "convert", unconvertible)
    crop = None if "transform" in options else FULL
    place = re.escape(f"shard {path}, key 'k0001': image is CORRUPT")
    with pytest.raises(DecodeError, match=f"{place}.*conversion from X to Y"):
        [*load(path, crop, on_error="raise", **options)]


def test_a_broken_gray_image_is_replaced(shard_of):
    path = shard_of(*(sample(n, b"broken" if n == 1 else None) for n in range(3)))
    with pytest.warns(UserWarning, match="'k0001'.* takes its place"):
        (batch,) = load(path, channels=1)
    assert batch.image.shape == (3, 1, 64, 64) and batch.image.flatten(1).any(1).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_png_named_jpg_is_decoded_with_one_warning(shard_of, workers):
    data = [picture("PNG", number) for number in range(6)]
    loader = load(shard_of(*(sample(n, data[n]) for n in range(6))), batch_size=2, workers=workers)
    with pytest.warns(UserWarning, match="is not a JPEG") as warned:
        images = torch.cat([batch.image for _ in range(2) for batch in loader])
    # Python 3.12 and newer also warn of the fork.
    assert [entry.filename for entry in warned if "is not a JPEG" in str(entry.message)] == ["tarpeg"]
    for number, image in enumerate(images):
        assert worst(image, data[number % 6]) <= 1


@pytest.mark.parametrize(
    "pixels", [PixelFormat(), PixelFormat(MEAN, STD, torch.float32)], ids=["uint8", "float"]
)
def test_other_formats_are_decoded_whole_one_at_a_time(shard_of, monkeypatch, pixels):
    alive, files, opened, decode = [], [], pillow.open_upright, fetch.decode_batch

    def watched(content, limit):
        assert not any(image() for image in alive), "another whole image is in memory"
        image = opened(content, limit)
        alive.append(weakref.ref(image))
        return image

    def counted(batch, *arguments, **options):
        files.append(len(batch))
        return decode(batch, *arguments, **options)

    monkeypatch.setattr(pillow, "open_upright", watched)
    monkeypatch.setattr(fetch, "decode_batch", counted)
    options = {"flip": 0.5, "views": 2, "threads": 0, "pixels": pixels}
    images = []
    for kind in ("PNG", "PPM"):  # a PPM is decoded natively
        samples = [sample(n, picture(kind, n, size=(97, 80 + n)) if n in (1, 4) else None) for n in range(6)]
        with warnings.catch_warnings(record=True) as warned:
            (batch,) = load(shard_of(*samples), RandomResizedCrop(32), **options)
        images.append(batch.image)
    assert torch.equal(*images)
    assert (len(alive), files) == (2, [12, 1, 1, 1, 1, 12])
    assert [str(entry.message).endswith("key 'k0001' is not a JPEG") for entry in warned] == []


BROKEN = {"EMPTY": b"", "NOT_AN_IMAGE": b"<html>not found</html>", "TRUNCATED": jpeg("420", 64, 80)[:900]}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("status", BROKEN)
def test_a_substitute_is_reported_with_shard_and_key(shard_of, status, workers):
    path = shard_of(*(sample(n) for n in range(5)), sample(5, BROKEN[status]))
    place = re.escape(f"shard {path}, key 'k0005'")
    reason = r": .*HTML or XML.*" if status == "NOT_AN_IMAGE" else ""
    warning = rf"{place}: image is {status} \(\d\){reason}; 'k000[0-4]' "
    with pytest.warns(UserWarning, match=warning):
        (batch,) = load(path, workers=workers)
    other = int(batch.key[5][1:])
    assert 0 <= other < 5, "the key is that of the substitute"
    assert batch.label[5] == other % 5
    assert torch.equal(batch.image[5], batch.image[other])


def test_substitutes_are_the_same_for_any_worker_and_differ_by_epoch(shard_of):
    path = shard_of(*(sample(n, b"" if n % 4 == 1 else None) for n in range(20)))
    runs = []
    for workers in (0, 2):
        with pytest.warns(UserWarning, match="takes its place"):
            loader = load(path, workers=workers)
            runs.append([[batch.key for batch in loader] for _ in range(2)])
            assert loader.substituted == 10
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


@pytest.mark.sweep
@pytest.mark.parametrize("runner", [{"workers": 0, "threads": 0}, {"workers": 1}], ids=name_of)
def test_images_without_a_range_or_too_large_are_refused_with_the_reason(shard_of, runner):
    large = saved(Image.new("1", (9000, 8000), 1), "PNG")
    floats = saved(Image.new("F", (80, 64)), "TIFF")
    path = shard_of(sample(0), sample(1, floats, "tif"), sample(2, large, "png"))
    reasons = [
        "UNSUPPORTED (5): its samples are signed",
        "TOO_LARGE (6): 8000 x 9000 pixels are more than max_pixels",
    ]
    with pytest.warns(UserWarning, match="takes its place") as warned:
        (batch,) = load(path, **runner)
    assert batch.key == ["k0000"] * 3
    for number, reason in enumerate(reasons, 1):
        place = f"shard {path}, key 'k000{number}': image is "
        assert any(str(entry.message).startswith(place + reason) for entry in warned)
    with pytest.raises(DecodeError, match=r"key 'k0001': image is UNSUPPORTED \(5\): .*floating-point"):
        list(load(path, on_error="raise", **runner))
    with pytest.warns(UserWarning, match="'k0001': image is UNSUPPORTED|is not a JPEG"):
        (batch,) = load(path, max_pixels=8000 * 9000, **runner)
    assert batch.key == ["k0000", "k0000", "k0002"] and (batch.image[2] == 255).all()
    with pytest.raises(DecodeError, match=r"TOO_LARGE \(6\): 64 x 80 .*max_pixels=5119"):
        list(load(path, max_pixels=64 * 80 - 1, on_error="raise", **runner))


@pytest.mark.parametrize(
    "steps", [{}, {"transform": [v2.CenterCrop(32), v2.RandomInvert(0.0)]}], ids=["crop", "Python"]
)
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_kinds_of_jpeg_are_refused_with_the_reason(shard_of, kind, steps):
    path = shard_of(sample(0), sample(1, other_kind(kind)))
    reason = rf"key 'k0001': image is UNSUPPORTED \(5\): .*{kind}.*: convert it to an ordinary JPEG or PNG"
    crop = None if steps else CenterCrop(32)
    with pytest.raises(DecodeError, match=reason):
        list(load(path, crop, on_error="raise", **steps))
    with pytest.warns(UserWarning, match=f"{reason}; it is left out"):
        (batch,) = load(path, crop, shuffle=False, on_error="leave_out", **steps)
    assert batch.key == ["k0000"]


def test_warnings_about_substitutes_are_limited(shard_of):
    loader = load(
        shard_of(*(sample(n, None if n < 20 else b"") for n in range(60))), max_bad=1.0, shuffle=True
    )
    with pytest.warns(UserWarning, match="takes its place") as warned:
        assert sum(len(batch.key) for batch in loader) == 60
    assert len(warned) == 20 and loader.substituted == 40
    assert "further ones are only counted" in str(warned[-1].message)


@pytest.mark.sweep
@pytest.mark.parametrize("runner", RUNNERS, ids=name_of)
@pytest.mark.parametrize("status", BROKEN)
def test_an_error_has_shard_and_key(shard_of, status, runner):
    path = shard_of(sample(0), sample(1, BROKEN[status]))
    loader = load(path, on_error="raise", batch_size=1, **runner)
    iterator = iter(loader)
    assert next(iterator).key == ["k0000"]
    with pytest.raises(DecodeError) as caught:
        next(iterator)
    message = str(caught.value)
    assert message.startswith(f"shard {path}, key 'k0001': image is {status}")
    assert "Traceback" not in message


def test_an_error_if_nothing_can_be_decoded(shard_of):
    with pytest.raises(DecodeError, match=r"key 'k0000': image is EMPTY \(1\), .* 20 others"):
        list(load(shard_of(sample(0, b""), sample(1, b""))))


def test_damage_inside_the_pixels_never_crashes(shard_of):
    rng, whole = np.random.default_rng(1), jpeg("420", 97, 71)
    samples = [sample(0)]
    for number in range(1, 80):
        data = bytearray(whole)
        for place in rng.integers(2, len(data), 8):
            data[place] = rng.integers(256)
        samples.append(sample(number, bytes(data[: rng.integers(1, len(data))] if number % 3 == 0 else data)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(load(shard_of(*samples), batch_size=80, max_bad=1.0))
    assert len(batches[0].image) == 80


@pytest.mark.sweep
@pytest.mark.parametrize("runner", RUNNERS, ids=name_of)
@pytest.mark.parametrize("label", [b"cat", b"", b"1.5", b"9" * 30])
def test_a_label_that_is_not_an_integer(shard_of, label, runner):
    path = shard_of(sample(0), sample(1, label=label))
    place = rf"^shard {re.escape(str(path))}, key 'k0001'"
    with pytest.raises(ShardError, match=rf"{place}: .*'cls' is '.*64-bit"):
        list(load(path, **runner))


def test_a_missing_label(shard_of):
    path = shard_of(sample(0), sample(1)[:1])
    with pytest.raises(ShardError, match=r"x\.tar, key 'k0001' .*'cls'.*\['jpg'\]"):
        list(load(path))
    (batch,) = load(path, target=None)
    assert batch.label.tolist() == [-1, -1] and batch.label.dtype == torch.int64


@dataclass(frozen=True)
class Off:
    """A user's crop that returns a fixed box."""

    box: tuple[int, int, int, int]
    size: tuple[int, int] = (8, 8)
    draws: int = 0

    def boxes(self, sizes, draws):
        return np.tile(np.array(self.box, np.int64), (len(sizes), 1))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "box", [(0, 0, 65, 10), (-1, 0, 4, 4), (0, 73, 8, 8), (0, 0, 0, 4), (2**31, 0, 1, 1)]
)
def test_a_box_outside_its_image_is_an_error_with_shard_and_key(shard_of, box, workers):
    path = shard_of(sample(0), sample(3))
    place, box_text = re.escape(f"shard {path}, key 'k0000'"), re.escape(str(box))
    with pytest.raises(ValueError, match=rf"^{place}: Off.*{box_text}, which is outside .*64 x 80"):
        list(load(path, crop=Off(box), workers=workers))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_is_smaller_than_a_random_crop_is_an_error_with_shard_and_key(shard_of, workers):
    path = shard_of(sample(0, jpeg("420", 90, 90)), sample(1, jpeg("420", 90, 70)))
    crop, place = RandomCrop(80), re.escape(f"shard {path}, key 'k0001'")
    with pytest.raises(ValueError, match=rf"^{place}.*RandomCrop.* 90 x 70.*enlarge_if_needed"):
        list(load(path, crop, workers=workers))
    (batch,) = load(path, RandomCrop(80, enlarge_if_needed=True), workers=workers)
    assert batch.image.shape == (2, 3, 80, 80)


def test_boxes_of_the_wrong_shape(shard_of):
    with pytest.raises(ValueError, match=r"boxes .*\[1, 4\].*\(1, 3\)"):
        list(load(shard_of(sample(0)), crop=Off((0, 0, 1))))


def test_the_box_of_a_failed_image_is_not_checked(shard_of):
    with pytest.warns(UserWarning, match="EMPTY"):
        (batch,) = load(shard_of(sample(0), sample(1, b"")), crop=Off((0, 0, 60, 70)))
    assert batch.key == ["k0000", "k0000"]


IN_USE = """
import faulthandler, os, warnings
import torch
from pathlib import Path
from helpers.loaders import load

warnings.simplefilter("error")
path = Path({path!r})
loader = load(path, batch_size=2, on_error="substitute", max_bad=1.0, **{settings!r})
batches = iter(loader)
next(batches)
{changes}
try:
    list(batches)
except tarpeg.ShardError as error:
    print(error)
loader.close()
"""
CHANGES = {
    "cut": "os.truncate(path, 9_000)",
    "cut after another handler": "faulthandler.enable(); os.truncate(path, 9_000)",
    "zeroed": "size = path.stat().st_size; os.truncate(path, 9_000); os.truncate(path, size)",
    "written to": "file = path.open('r+b'); file.seek(20_000); file.write(b'?'); file.close()",
}


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        ("cut", RUNNERS[0]),
        ("cut", RUNNERS[3]),
        ("cut", RUNNERS[6]),
        ("cut after another handler", RUNNERS[0]),
        ("zeroed", RUNNERS[0]),
        ("written to", RUNNERS[6]),
    ],
    ids=str,
)
def test_a_shard_that_changes_in_use_is_an_error_of_the_training(shard_of, tmp_path, settings, change):
    """Never a signal, and never pixels from two files: the other tests' policy would substitute them."""
    path = shard_of(*(sample(number % 24) for number in range(24)))
    code = "import tarpeg" + IN_USE.format(path=str(path), settings=settings, changes=CHANGES[change])
    done = run_file(tmp_path / "training.py", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"shard {path} changed while it was read: ")


def test_a_shard_that_was_removed_stays_mapped(shard_of):
    path = shard_of(*map(sample, range(8)))
    with contextlib.closing(loaders.load(path, batch_size=2, workers=0, threads=0)) as loader:
        batches = iter(loader)
        next(batches)
        path.unlink()
        assert len(list(batches)) == 3
