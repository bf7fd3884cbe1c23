"""The decoding, augmenting and loading suites end to end on few photographs, and the errors of `measure`."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
import tarfile
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers import pictures
from helpers.scripts import measured, run_tool
from PIL import Image
from tarpeg.datasets.synthetic import Photos, draw, photograph
from tarpeg.ops.decode import native_facts
from torchvision.transforms.v2.functional import _geometry

from benchmarks import decode_peers, measure as measuring, photos as real
from benchmarks.loader import LoaderContestant
from benchmarks.loader_data import LoaderData
from benchmarks.measure import measure
from benchmarks.photos import FolderPhotos


@pytest.mark.parametrize(
    ("suite", "size", "first"),
    [("crop", "article", "torchvision"), ("resize", "imagenet", "torchvision v2")],
)
def test_a_decoding_suite_makes_a_table_a_csv_and_a_chart(tmp_path, suite, size, first):
    texts = ("tarpeg, tiled", "tarpeg, ordinary", "Pillow", "us/image", "1.00x", "4 " + size, "20")
    rows = measured(tmp_path, suite, size, "images=4", "rounds=1", "clock=cpu", texts=texts)
    about = ["suite", "size", "images", "rounds", "clock", "tile", "machine", "versions", "date"]
    assert list(rows[0]) == ["group", "name", "microseconds", "ratio", "mean", "maximum", *about]
    assert rows[0]["name"] == first and float(rows[0]["ratio"]) == 1.0
    assert all(float(row["microseconds"]) > 0 and row["machine"] and row["date"] for row in rows)
    ours = [row for row in rows if row["name"].startswith("tarpeg") and row["group"] == "uint8"]
    assert len(ours) >= 2
    # Crops are identical; a resize is as close as promised.
    limit = 0.0 if suite == "crop" else 0.6
    assert all(float(row["mean"]) <= limit for row in ours)


@pytest.mark.slow
def test_shards_of_each_kind(tmp_path):
    data = LoaderData(tmp_path, Photos(size=96), 8, 16)
    for kind, extension in (("ordinary", ".jpg"), ("tiled", ".jpg"), ("packed", ".tpj"), ("raw", ".ppm")):
        shards = data.shards(kind, 1)
        names = []
        for path in shards:
            with tarfile.open(path) as tar:
                names += tar.getnames()
        assert len(shards) == 4 and sum(name.endswith(extension) for name in names) == 8
    assert {path.name for path in shards[0].parents[1].iterdir()} >= {"tiled-16", "packed-16"}


def test_packed_files_and_limited_vectors_are_named(tmp_path, monkeypatch):
    for name in ("TARPEG_VECTORS", "TARPEG_PORTABLE"):
        monkeypatch.delenv(name, raising=False)
    report = measure("crop", images=2, rounds=1, clock="cpu")
    (packed,) = [row for row in report.rows if row.name == "tarpeg, packed"]
    assert packed.ratio > 1 and packed.maximum == 0
    assert re.search(r"tiled [01]\.\d+, packed 1\.\d+$", report.figures[0])
    assert f"vector code: {native_facts()['simd']};" in report.notes[0]
    assert report.write(tmp_path)[0].name == "crop-article.csv"
    monkeypatch.setenv("TARPEG_VECTORS", "none")
    assert report.write(tmp_path)[0].name == f"crop-article-vectors-{report.vectors}.csv"


@pytest.mark.sweep
@pytest.mark.parametrize("interpolation", ["bicubic", "lanczos", "lanczos of old torchvisions", "box"])
def test_the_resize_suite_with_other_interpolations(interpolation, monkeypatch):
    interpolation, _, is_old = interpolation.partition(" of ")
    if is_old:  # 0.26 with torch 2.11
        monkeypatch.setattr(_geometry, "interpolate", Mock(side_effect=NotImplementedError("Input Error")))
    report = measure("resize", images=2, rounds=1, clock="cpu", interpolation=interpolation)
    assert report.suite == f"resize-{interpolation}" and interpolation in report.work
    first = "torchvision v2" if interpolation == "bicubic" else "Pillow"
    assert [row.name for row in report.rows if row.ratio == 1.0] == [first] * 2
    has_torchvision = any(row.name == "torchvision v2" for row in report.rows)
    missing = f"torchvision v2, whose installed version has interpolation={interpolation}"
    assert has_torchvision != any(missing in note for note in report.missing)
    assert has_torchvision if interpolation == "bicubic" else not (has_torchvision and is_old)
    ours = [row for row in report.rows if row.name.startswith("tarpeg")]
    assert len(ours) == 4 * len(decode_peers.KINDS) and all(row.mean <= 0.6 for row in ours)
    assert all(row.maximum <= (2 if row.group == "float32" else 1) for row in ours if "exact" in row.name)


def test_the_views_suite_compares_eight_crops_of_each_photograph():
    report = measure("views", images=3, rounds=1, clock="cpu", size=(200, 160))
    rows = {row.name: row for row in report.rows}
    assert next(iter(rows)) == "tarpeg, tiled, one by one" and len(rows) == 6 and not report.missing
    for name, row in rows.items():
        assert row.maximum == 0 if name.startswith("tarpeg") else 0 < row.mean < 0.8, row
    assert "packed" in report.figures[0] and "6 to 96" in report.work


def test_the_augment_suite_compares_the_same_pixels(tmp_path):
    texts = (
        "torchvision v2",
        "tarpeg, contiguous, float32",
        "flip, normalise",
        "the whole chain",
        "AugMix()",
    )
    rows = measured(tmp_path, "augment", "imagenet", "images=3", "rounds=1", "clock=cpu", texts=texts)
    for row in rows:  # torchvision rounds to whole levels after each step of the chain
        limit = 1.5 if row["group"] == "the whole chain" else 0.1
        assert not row["mean"] or float(row["mean"]) <= limit, row
    policies = ["RandAugment(2, 9)", "TrivialAugmentWide()", "AutoAugment()", "AugMix()", "GaussianBlur(23)"]
    assert set(policies) < {row["group"] for row in rows}


def test_progress_and_results_are_lines_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(measuring, "_LINE_EVERY", 0.0)
    with measuring._progress() as (advance, show):
        advance("measuring [dino]", 0.25)
        show("dino: tarpeg: 900 images/s")
        monkeypatch.setattr(measuring, "_LINE_EVERY", 60.0)
        advance("measuring", 0.5)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "measuring [dino], 25%\ndino: tarpeg: 900 images/s\n")


@pytest.mark.slow
def test_the_loader_suite_makes_a_table_a_csv_and_a_chart(tmp_path):
    small = ["images=9", "rounds=1", "loader.seconds=0.05", "loader.epochs=3", f"loader.data={tmp_path}/data"]
    texts = ["images/s", "1.00x", "9 96x96 photographs", "load average", "CPU us/image", "MB, at most"]
    texts += ["first batch after setup, threads: ", "efficiency, tiled, float32, workers: "]
    rows = measured(tmp_path, "loader", "96x96", "size=96", *small, "loader.only=['tiled']", texts=texts)
    columns = ["group", "name", "images_per_second", "ratio", "processor", "first", "mean", "maximum", "size"]
    columns += ["images", "rounds", "clock", "workers", "machine", "versions", "date"]
    assert list(rows[0]) == columns
    names = ["webdataset + torchvision", "tarpeg, tiled, threads"]
    names += ["tarpeg, tiled, workers", "bound: the operator alone, tiled"]
    for group in ("uint8", "float32"):
        assert [row["name"] for row in rows if row["group"] == group] == names
    assert all(float(row["images_per_second"]) > 0 and float(row["processor"]) > 0 for row in rows)
    assert float(rows[0]["ratio"]) == 1.0
    (folder,) = (tmp_path / "data").iterdir()
    assert {path.name for path in folder.iterdir()} == {"ordinary", "tiled-32", "packed-32", "raw"}


@pytest.mark.parametrize("suite", ["crop", "resize"])
def test_photographs_that_other_decoders_do_not_turn_or_convert(tmp_path, suite):
    picture, turned = Image.fromarray(pictures.pixels(300, 400)), Image.Exif()
    turned[0x112] = 6
    for kind, image, options in (
        ("plain", picture, {}),
        ("turned", picture, {"exif": turned}),
        ("cmyk", picture.convert("CMYK"), {}),
        ("gray", picture.convert("L"), {}),
    ):
        (tmp_path / f"{kind}.jpg").write_bytes(pictures.encoded(image, **options))
    report = measure(suite, images=tmp_path, rounds=1, clock="cpu")
    assert report.images == 2
    assert [re.sub(r"^left out: (1 JPEGs) .*(EXIF|CMYK).*", r"\2", line) for line in report.missing[:2]] == [
        "CMYK",
        "EXIF",
    ]
    for kind in ("plain", "gray"):
        (tmp_path / f"{kind}.jpg").unlink()
    with pytest.raises(ValueError, match=r"EXIF.*size=imagenet"):
        measure(suite, images=tmp_path, rounds=1)


def test_parts_lie_within_their_photograph(tmp_path):
    """The largest part of 300x301 in 333x335 is a rounding error higher than the photograph."""
    Image.fromarray(pictures.pixels(333, 335)).save(tmp_path / "a.png")
    photos = FolderPhotos(size=(300, 301), folder=str(tmp_path))
    most = Mock(uniform=lambda _, high: high, random=lambda: 1 - 2**-53)
    assert photos.scene(most, 0, 0, 300, 301).size == (301, 300)


@pytest.mark.slow
def test_own_photographs_as_they_are_and_in_parts(tmp_path, monkeypatch):
    folder = tmp_path / "own"
    (folder / "more").mkdir(parents=True)
    kinds = {"a.jpg": "420", "more/b.JPG": "progressive"}
    for seed, (name, kind) in enumerate(kinds.items()):
        (folder / name).write_bytes(pictures.jpeg(kind, 300, 400, seed=seed))
    (folder / "small.jpg").write_bytes(pictures.jpeg("420", 255, 400))
    (folder / "torn.jpg").write_bytes(pictures.jpeg("420", 300, 400)[:3000])
    report = measure("crop", images=folder, rounds=1, clock="cpu")
    assert (report.size, report.images) == ("own", 2), "those of 256x256 pixels that decode"
    assert {row.mean for row in report.rows if row.name.startswith("tarpeg")} == {0.0}

    with pytest.raises(ValueError, match=r"torn\.jpg .*decode"):
        measure("resize", images=folder, size=64, rounds=1)
    (folder / "torn.jpg").unlink()
    photos = FolderPhotos(size=[(90, 60), (50, 100)], folder=str(folder), seed=3)
    parts = [photograph(photos, index) for index in range(8)]
    sizes = {Image.open(io.BytesIO(part.jpeg)).size for part in parts}
    assert sizes == {(60, 90), (100, 50)} and len({*parts}) == 8
    assert parts == [photograph(photos, index) for index in range(8)]
    decoded = []
    monkeypatch.setattr(real.ImageOps, "exif_transpose", lambda image: decoded.append(1) or image)
    real._upright.cache_clear()
    several = dataclasses.replace(photos, parts=4)
    assert len({photograph(several, index) for index in range(8)}) == 8 and len(decoded) == 2, "one per file"
    report = measure("resize", images=folder, size=64, rounds=1, parts=7, clock="cpu")
    assert report.images == 7
    whole = draw(FolderPhotos(size=(300, 400), folder=str(folder / "more")), 0)
    with Image.open(folder / "more" / "b.JPG") as image:
        assert np.array_equal(whole, image.convert("YCbCr")), "a part is not enlarged"
    with pytest.raises(ValueError, match=r"folder='.*none' has no photographs"):
        measure("resize", images=tmp_path / "none", size=64)
    with pytest.raises(ValueError, match=r"images='.*more'.*256x256"):
        (folder / "more" / "b.JPG").write_bytes(b"")
        measure("crop", images=folder / "more")


def test_a_peer_that_is_not_installed_is_left_out_with_the_package_to_install(tmp_path, monkeypatch):
    for name in ("simplejpeg", "cv2", "turbojpeg", "nvidia.dali", "nvidia.nvimgcodec"):
        monkeypatch.setitem(sys.modules, name, None)
    for peers in (decode_peers.CROP_PEERS, decode_peers.RESIZE_PEERS):
        found, missing = decode_peers.installed(peers)
        assert found == []
        assert any("pip install simplejpeg" in line for line in missing)
        assert any("pip install nvidia-dali-cuda130" in line for line in missing)
    data = LoaderData(tmp_path, Photos(size=300), 8, 32)
    line = LoaderContestant("DALI, antialiased", "uint8", data, 1).absent()
    assert line is not None
    assert line.startswith("left out: DALI, antialiased: pip install nvidia-dali-cuda130")
    assert LoaderContestant("tarpeg, tiled, threads", "uint8", data, 1).absent() is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"suite": "speed"},
            "suite='speed' must be one of crop, resize, views, augment, loader, article, dali",
        ),
        ({"clock": "sun"}, "clock='sun' must be one of wall, cpu"),
        ({"interpolation": "cubic"}, "interpolation='cubic' must be one of bilinear, bicubic, lanczos, box"),
        ({"interpolation": "box"}, "interpolation='box' needs suite=resize, got suite=crop"),
        ({"parts": 9}, "parts=9 needs a directory of photographs"),
        ({"images": 0}, "images=0 must be an integer of at least 1"),
        ({"suite": "loader", "images": 7}, "images=7 must be an integer of at least 8 for suite=loader"),
        ({"rounds": "few"}, "rounds='few' must be an integer of at least 1"),
        ({"device": "tpu"}, "device='tpu' must be 'cpu', or 'cuda' for suite=augment, crop or resize"),
        ({"threads": 2}, "threads=2 needs device=cuda and suite=crop or resize"),
        ({"suite": "dali", "device": "cuda"}, "device='cuda' must be 'cpu', or 'cuda' for suite=augment"),
        ({"size": "huge"}, "size.*huge"),
        (
            {"suite": "article", "size": "imagenet"},
            "=imagenet must be article, big, or sides of at least 256",
        ),
        ({"suite": "article", "size": [300, 200]}, "size=300x200 must be .* at least 256: suite=article"),
        ({"suite": "loader", "loader": {"workers": 0}}, "loader.workers=0 must be an integer of at least 1"),
        ({"suite": "dali", "loader": {"workers": 0}}, "loader.workers=0 must be an integer of at least 1"),
        ({"suite": "loader", "loader": {"seconds": -1}}, "loader.seconds=-1 must be a positive number"),
        ({"suite": "loader", "loader": {"speed": 3}}, "loader has no setting 'speed'; it has data, workers"),
        ({"tile": 0, "images": 1, "rounds": 1}, "tile=0 must be"),
    ],
)
def test_a_wrong_argument_is_an_error(settings, message):
    with pytest.raises(ValueError, match=message):
        measure(**{"suite": "crop", **settings})


def test_the_tool_prints_an_error_in_one_line(tmp_path):
    done = run_tool("bench", "suite=loader", "+loader.speed=3", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("bench: loader has no setting 'speed'") and done.stderr.count("\n") == 1


def test_measuring_restores_the_number_of_threads():
    before = torch.get_num_threads()
    report = measure("crop", size=[300, 320], images=2, rounds=1)
    assert torch.get_num_threads() == before
    assert (report.size, report.images) == ("300x320", 2)
    assert report.rows[0].ratio == 1.0
