"""The article and dali suites: everybody makes the same batch, and the tables that come of it."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tarpeg.benchmarks import crop_skip, measure, replay_peers
from tarpeg.benchmarks.loader import LoaderData
from tarpeg.benchmarks.replay import CROP, JOBS
from tarpeg.benchmarks.replay_host import SKIPPING, Replayed, absent, names, numbers
from tarpeg.datasets.synthetic import Photos
from tarpeg.errors import BuildError

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench.py"
PIPELINES = [(suite, group) for suite, jobs in JOBS.items() for group in jobs]
# Mean and largest difference from torchvision's in levels: DALI and we resample as it does but for rounding;
# in validation, boxes begin at other fractions of a pixel. Nearest neighbours, and no resizing, are equal.
LIMITS = {"training": (0.6, 12), "validation": (3, 80), "prediction": (0.01, 0.01)}


def limits(suite: str, group: str, name: str) -> tuple[float, float]:
    if suite == "article":
        # libjpeg mixes other chroma into the edges of what it crops.
        return (0.1, 60) if name == SKIPPING else (0.01, 0.01)
    return (1.2, 40) if name.endswith("antialias=False") and group == "training" else LIMITS[group]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as every contestant does
    yield LoaderData(tmp_path_factory.mktemp("replay"), Photos(size=[[270, 400], [333, 300]]), 12, 32)
    torch.set_num_threads(before)


@pytest.mark.parametrize(("suite", "group"), PIPELINES)
def test_everybody_makes_the_same_batch(data, suite, group):
    wished, job = numbers(suite, group, data), JOBS[suite][group]
    reference = None
    for name in [name for name in names(suite, group) if not name.endswith("workers")]:
        who = Replayed(name, group, data, 2, suite)
        if absent(who) is not None:
            assert "DALI" in name
            continue
        made = who.made(wished)
        assert who.expects(made)
        reference = made if reference is None else reference
        mean, maximum = job.apart(made, reference)
        assert mean <= limits(suite, group, name)[0] and maximum <= limits(suite, group, name)[1], name


def test_we_make_what_dali_makes(data):
    pytest.importorskip("nvidia.dali")
    for group, limit in {"training": 0.3, "validation": 3, "prediction": 1e-3}.items():
        wished = numbers("dali", group, data)
        ours, theirs = (
            Replayed(name, group, data, 1, "dali").made(wished) for name in ("tarpeg, tiled, threads", "DALI")
        )
        assert JOBS["dali"][group].apart(ours, theirs)[0] <= limit, group


@pytest.mark.parametrize(("suite", "group"), PIPELINES)
def test_dali_draws_numbers_of_its_own(data, suite, group):
    pytest.importorskip("nvidia.dali")
    who = Replayed("DALI", group, data, 1, suite)
    batches = who.batches()
    first, second = next(batches)[0].clone(), next(batches)[0]
    assert who.expects(first) and not torch.equal(first, second)


def test_the_articles_step_is_pillows_ycbcr_with_black_cells(data):
    wished = numbers("article", "training", data)
    made = replay_peers.Article(replay_peers.by_torchvision).made(wished)
    masked = 0.0
    for row, (top, left, height, width) in enumerate(wished.boxes.tolist()):
        with Image.open(io.BytesIO(wished.jpegs[row])) as image:
            crop = np.array(image.crop((left, top, left + width, top + height)).convert("YCbCr"), np.float32)
        assert (height, width) == (CROP, CROP)
        drawn = np.pad(wished.masks[row].numpy(), 1)
        for y in range(16):
            for x in range(16):
                is_masked = drawn[y : y + 3, x + 1].any() or drawn[y + 1, x : x + 3].any()
                crop[16 * y : 16 * y + 16, 16 * x : 16 * x + 16] = (
                    (0, 128, 128) if is_masked else crop[16 * y : 16 * y + 16, 16 * x : 16 * x + 16]
                )
                masked += is_masked
        assert np.abs(255 * made[row].permute(1, 2, 0).numpy() - crop).max() <= 1.01
    assert 0.7 < masked / (256 * len(wished.ids)) < 0.82  # 1 - 0.75 ** 5, less at the edges


def test_crop_and_skip_is_a_full_decode_but_for_its_edges(data, tmp_path):
    library = crop_skip.library(tmp_path)
    (jpeg, _), *_ = data.samples()
    with Image.open(io.BytesIO(jpeg)) as image:
        whole = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    down, across = 0.4, 0.7
    made = crop_skip.decode(library, jpeg, (64, 90), down, across)
    top, left = int(down * (whole.shape[1] - 63)), int(across * (whole.shape[2] - 89))
    expected = whole[:, top : top + 64, left : left + 90]
    assert torch.equal(made[:, :, 2:-2], expected[:, :, 2:-2])
    assert torch.equal(crop_skip.decode(library, jpeg, whole.shape[1:], 0.0, 0.0), whole)
    for damaged, size in ((jpeg[:9], (8, 8)), (b"", (8, 8)), (b"no JPEG", (8, 8)), (jpeg, (8, 401))):
        with pytest.raises(ValueError, match="libjpeg cannot decode a crop of 8 x"):
            crop_skip.decode(library, damaged, size, 0.0, 0.0)


def test_without_a_compiler_the_articles_own_way_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        crop_skip.library(tmp_path)
    elsewhere = LoaderData(tmp_path / "data", Photos(size=300), 1, 32)
    line = absent(Replayed(SKIPPING, "training", elsewhere, 1))
    assert line is not None and line.startswith(f"left out: {SKIPPING}: no C++ compiler")


@pytest.mark.parametrize(
    ("suite", "wrong", "named"),
    [
        ("article", {"size": "imagenet"}, "size: suite=article crops 256x256: expected article, big, or"),
        ("article", {"size": [300, 200]}, "at least 256, got 300x200"),
        ("dali", {"device": "cuda"}, "device: expected cpu, or cuda for the augment suite"),
        ("dali", {"loader": {"workers": 0}}, "loader.workers: expected an integer of at least 1, got 0"),
    ],
)
def test_what_is_refused_is_named(suite, wrong, named):
    with pytest.raises(ValueError, match=named):
        measure.measure(suite, **wrong)


@pytest.mark.slow
@pytest.mark.parametrize("suite", JOBS)
def test_a_suite_gives_a_table_a_csv_and_a_chart(tmp_path, suite):
    small = ["size=300", "images=9", "rounds=1", "loader.seconds=0.05", f"loader.data={tmp_path}/data"]
    only = "loader.only=['crop and skip','tiled, workers']"
    command = [sys.executable, str(TOOL), f"suite={suite}", *small, only, f"out={tmp_path}/out"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    told = ["images/s", "1.00x", "9 300x300 photographs", "load average", "of processor", "off by, mean"]
    told += ["crop and skip, gains"] * (suite == "article")
    for text in told:
        assert text in done.stdout
    with (tmp_path / "out" / f"{suite}-300x300.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(dict.fromkeys(row["group"] for row in rows)) == list(JOBS[suite])
    assert {row["name"] for row in rows} >= {"tarpeg, tiled, workers", names(suite, "training")[0]}
    for row in rows:
        assert float(row["images_per_second"]) > 0
        assert float(row["mean"]) <= limits(suite, row["group"], row["name"])[0]
    with Image.open(tmp_path / "out" / f"{suite}-300x300.png") as chart:
        assert min(chart.size) > 300
