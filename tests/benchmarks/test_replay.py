"""The article and dali suites: all contestants make the same batch; tables, CSV and chart."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from helpers.scripts import measured
from PIL import Image
from tarpeg.datasets.synthetic import Photos
from tarpeg.errors import BuildError

from benchmarks import replay_peers
from benchmarks.loader_data import LoaderData
from benchmarks.replay import RECIPES, SKIPPING, ReplayContestant, contestant_names, given_batch

PIPELINES = [(suite, group) for suite, recipes in RECIPES.items() for group in recipes]
# Mean and largest difference from torchvision in levels. DALI and we resample as torchvision does, except for
# rounding; in validation, boxes begin at other fractions of a pixel. Without interpolation pixels are equal.
LIMITS = {"training": (0.6, 12), "validation": (3, 80), "prediction": (0.01, 0.01)}


def limits(suite: str, group: str, name: str) -> tuple[float, float]:
    if suite == "article":
        # libjpeg upsamples chroma at the edges of the crop from other pixels.
        return (0.1, 60) if name == SKIPPING else (0.01, 0.01)
    return (1.2, 40) if name.endswith("antialias=False") and group == "training" else LIMITS[group]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in every contestant's process
    yield LoaderData(tmp_path_factory.mktemp("replay"), Photos(size=[[270, 400], [333, 300]]), 12, 32)
    torch.set_num_threads(before)


@pytest.mark.sweep
@pytest.mark.parametrize(("suite", "group"), PIPELINES)
def test_all_contestants_make_the_same_batch(data, suite, group):
    given, recipe = given_batch(suite, group, data), RECIPES[suite][group]
    reference = None
    for name in [name for name in contestant_names(suite, group) if not name.endswith("workers")]:
        who = ReplayContestant(name, group, data, 2, suite)
        if who.absent() is not None:
            assert "DALI" in name
            continue
        images = who.replay(given)
        assert who.expects(images)
        reference = images if reference is None else reference
        mean, maximum = recipe.difference(images, reference)
        assert mean <= limits(suite, group, name)[0] and maximum <= limits(suite, group, name)[1], name


def test_our_batch_is_that_of_dali(data):
    pytest.importorskip("nvidia.dali")
    for group, limit in {"training": 0.3, "validation": 3, "prediction": 1e-3}.items():
        given = given_batch("dali", group, data)
        ours, theirs = (
            ReplayContestant(name, group, data, 1, "dali").replay(given)
            for name in ("tarpeg, tiled, threads", "DALI")
        )
        assert RECIPES["dali"][group].difference(ours, theirs)[0] <= limit, group


@pytest.mark.parametrize(("suite", "group"), PIPELINES)
def test_dali_draws_its_own_random_numbers(data, suite, group):
    pytest.importorskip("nvidia.dali")
    who = ReplayContestant("DALI", group, data, 1, suite)
    batches = who.batches()
    first, second = next(batches)[0].clone(), next(batches)[0]
    assert who.expects(first) and not torch.equal(first, second)


def test_the_articles_step_is_pillows_ycbcr_with_black_cells(data):
    given = given_batch("article", "training", data)
    images = replay_peers.Article(replay_peers.by_torchvision).replay(given)
    masked = 0
    for row, (top, left, height, width) in enumerate(given.boxes.tolist()):
        with Image.open(io.BytesIO(given.jpegs[row])) as image:
            crop = np.array(image.crop((left, top, left + width, top + height)).convert("YCbCr"), np.float32)
        assert (height, width) == (replay_peers.CROP, replay_peers.CROP)
        drawn = np.pad(given.masks[row].numpy(), 1)
        for y in range(16):
            for x in range(16):
                if drawn[y : y + 3, x + 1].any() or drawn[y + 1, x : x + 3].any():
                    crop[16 * y : 16 * y + 16, 16 * x : 16 * x + 16] = (0, 128, 128)
                    masked += 1
        assert np.abs(255 * images[row].permute(1, 2, 0).numpy() - crop).max() <= 1.01
    assert 0.7 < masked / (256 * len(given.ids)) < 0.82  # 1 - 0.75 ** 5, less at the edges


def test_crop_and_skip_equals_a_full_decode_except_at_its_edges(data, tmp_path):
    library = replay_peers.compile_crop_skip(tmp_path)
    (jpeg, _), *_ = data.samples()
    with Image.open(io.BytesIO(jpeg)) as image:
        whole = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    down, across = 0.4, 0.7
    made = replay_peers.decode_by_skipping(library, (64, 90), jpeg, down, across)
    top, left = int(down * (whole.shape[1] - 63)), int(across * (whole.shape[2] - 89))
    expected = whole[:, top : top + 64, left : left + 90]
    assert torch.equal(made[:, :, 2:-2], expected[:, :, 2:-2])
    assert torch.equal(replay_peers.decode_by_skipping(library, whole.shape[1:], jpeg, 0.0, 0.0), whole)
    for damaged, size in ((jpeg[:9], (8, 8)), (b"", (8, 8)), (b"no JPEG", (8, 8)), (jpeg, (8, 401))):
        with pytest.raises(ValueError, match=r"libjpeg .*8 x"):
            replay_peers.decode_by_skipping(library, size, damaged, 0.0, 0.0)


def test_crop_and_skip_is_left_out_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        replay_peers.compile_crop_skip(tmp_path)
    elsewhere = LoaderData(tmp_path / "data", Photos(size=300), 1, 32)
    line = ReplayContestant(SKIPPING, "training", elsewhere, 1).absent()
    assert line is not None and line.startswith(f"left out: {SKIPPING}: no C++ compiler")


@pytest.mark.slow
@pytest.mark.parametrize("suite", RECIPES)
def test_a_replay_suite_makes_a_table_a_csv_and_a_chart(tmp_path, suite):
    small = ["size=300", "images=9", "rounds=1", "loader.seconds=0.05", f"loader.data={tmp_path}/data"]
    only = "loader.only=['crop and skip','tiled, workers']"
    texts = ["images/s", "1.00x", "9 300x300 photographs", "load average", "CPU us/image", "mean diff."]
    texts += ["technique, crop and skip: "] * (suite == "article")
    rows = measured(tmp_path, suite, "300x300", *small, only, texts=texts)
    assert list(dict.fromkeys(row["group"] for row in rows)) == list(RECIPES[suite])
    names = {"tarpeg, tiled, workers", contestant_names(suite, "training")[0]}
    assert {row["name"] for row in rows} >= names
    for row in rows:
        assert float(row["images_per_second"]) > 0
        assert float(row["mean"]) <= limits(suite, row["group"], row["name"])[0]
