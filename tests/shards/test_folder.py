"""Folders of unlabelled images: files, keys, formats, errors."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.loaders import load
from helpers.pictures import jpeg, picture, tensor
from helpers.small_tars import plain
from tarpeg import CenterCrop, KeyedBatch, ShardError, Split
from tarpeg.shards.folder import UnlabelledImages, find_images

FORMATS = {
    "a.jpg": ("JPEG", "RGB"),
    "b.JPEG": ("JPEG", "L"),
    "c.png": ("PNG", "RGBA"),
    "d/e.bmp": ("BMP", "RGB"),
    "d/f.tiff": ("TIFF", "CMYK"),
    "d/g/h.webp": ("WEBP", "RGB"),
    "d/g/i.ppm": ("PPM", "RGB"),
    "d/g/j.pgm": ("PPM", "L"),
    "d/g/k.pbm": ("PPM", "1"),
    "l.m.gif": ("GIF", "P"),
}


@pytest.fixture
def album(tmp_path):
    """A folder with an image of each format, and other files."""
    for number, (name, (kind, mode)) in enumerate(FORMATS.items()):
        path = tmp_path / "album" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(kind, number, mode))
    for name in ("notes.txt", ".hidden.png", "._a.jpg", "noext"):
        (tmp_path / "album" / name).write_bytes(b"x")
    (tmp_path / "album" / ".cache").mkdir()
    (tmp_path / "album" / ".cache" / "x.png").write_bytes(b"x")
    return tmp_path / "album"


def predicted(source, **options):
    options = {"shuffle": False, "flip": 0, "target": None, "workers": 0, **options}
    loader = load(source, CenterCrop(48, shorter=56), **options)
    with pytest.warns(UserWarning, match=r"shard .*album, key '.*' is not a JPEG: Pillow decodes"):
        batches = list(loader)
    loader.close()
    return batches


def test_all_formats_in_order_with_their_paths_as_keys(album):
    batches = predicted(album)
    assert [key for batch in batches for key in batch.key] == sorted(FORMATS)
    for batch in batches:
        assert type(batch) is KeyedBatch and set(batch.label.tolist()) == {-1}
        for key, image in zip(batch.key, batch.image, strict=True):
            # What "resize the shorter side to 56, crop the centre" shows, as one box of 48 / 56 of 64.
            box = torch.tensor([[4, 12, 55, 55]])
            expected = reference.decode_batch([tensor((album / key).read_bytes())], box, (48, 48))[0]
            assert (image.int() - expected.int()).abs().max() <= 1, key
    for one, two in zip(batches, predicted(album, workers=2), strict=True):
        assert torch.equal(one.image, two.image) and one.key == two.key


def test_globs_paths_and_lists(album, monkeypatch):
    keys = lambda source: [find_images(source).key(id) for id in range(len(find_images(source)))]  # noqa: E731
    assert keys(f"{album}/**/*.p?m") == ["d/g/i.ppm", "d/g/j.pgm", "d/g/k.pbm"]
    assert keys(f"{album}/d/*") == ["e.bmp", "f.tiff"]
    assert keys(str(album / "a.jpg")) == ["a.jpg"]
    below = ["d/g/h.webp", "d/g/i.ppm", "d/g/j.pgm", "d/g/k.pbm"]
    assert keys([album / "d" / "g", album / "c.png"]) == [*below, "c.png"]
    monkeypatch.chdir(album)
    assert keys("d") == ["e.bmp", "f.tiff", "g/h.webp", "g/i.ppm", "g/j.pgm", "g/k.pbm"]
    assert keys("*.gif") == ["l.m.gif"]


def test_sources_that_mean_shards(tmp_path, album):
    plain(tmp_path / "x.tar")
    patterns = (f"{tmp_path}/*", f"{tmp_path}/x*.tar", "nowhere", "x-{0..3}.tar")
    for source in (tmp_path, tmp_path / "x.tar", *patterns):
        assert find_images(source) is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(ShardError, match=r"has no \.tar file"):
        Split(tmp_path / "empty", CenterCrop(8)).open()
    with pytest.raises(ShardError, match=r"cannot be read: .* has images and .* has shards"):
        Split([album, tmp_path / "x.tar"], CenterCrop(8)).open()


def test_a_folder_has_no_labels(album):
    with pytest.warns(UserWarning, match="has no labels|have no labels: they will be -1"):
        pictures = Split(album, CenterCrop(8)).open()
    assert pictures.labels([0, 1]).tolist() == [-1, -1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Split(album, CenterCrop(8), target=None).open()
    for target, message in (("fine", "target='fine'"), ("json:label", "no member 'json'")):
        with pytest.warns(UserWarning, match="no labels"), pytest.raises(ShardError, match=message):
            next(iter(load(album, CenterCrop(8), target=target, workers=0, threads=0)))


def test_a_broken_image_and_a_removed_one(album):
    (album / "c.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.warns(UserWarning, match=r"key 'c\.png': image is NOT_AN_IMAGE .* takes its place"):
        batches = predicted(album)
    assert sum(len(batch.key) for batch in batches) == len(FORMATS)
    pictures = Split(album, CenterCrop(8), target=None).open()
    (album / "a.jpg").unlink()
    with pytest.raises(ShardError, match=r"image a\.jpg of .*album cannot be read: No such file"):
        pictures.images([0])


def test_no_file_is_kept_open(tmp_path):
    for number in range(300):
        (tmp_path / f"{number:03d}.jpg").write_bytes(jpeg("420", 24, 24, number))
    before = len(list(Path("/proc/self/fd").iterdir()))
    pictures = pickle.loads(pickle.dumps(find_images(tmp_path)))
    assert isinstance(pictures, UnlabelledImages) and len(pictures.images(np.arange(300))) == 300
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert (pictures.key(7), pictures.extensions(7), pictures.shard(7)) == ("007.jpg", ["jpg"], tmp_path)
