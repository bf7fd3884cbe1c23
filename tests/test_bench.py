"""The benchmark: both suites end to end on a handful of pictures, and what it refuses."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from tarpeg import bench, peers

TOOL = Path(__file__).resolve().parents[1] / "tools" / "bench.py"


def run(tmp_path: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), f"out={tmp_path}/out", *settings]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240)


@pytest.mark.parametrize(
    ("suite", "size", "first"),
    [("crop", "article", "torchvision"), ("resize", "imagenet", "torchvision v2")],
)
def test_a_suite_gives_a_table_a_csv_and_a_chart(tmp_path, suite, size, first):
    done = run(tmp_path, f"suite={suite}", "images=4", "rounds=1", "clock=cpu")
    assert done.returncode == 0, done.stderr
    for text in ("tarpeg, tiled", "tarpeg, ordinary", "Pillow", "us/image", "1.00x", "4 " + size, "20"):
        assert text in done.stdout
    with (tmp_path / "out" / f"{suite}-{size}.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0]["name"] == first and float(rows[0]["ratio"]) == 1.0
    assert all(float(row["microseconds"]) > 0 and row["machine"] and row["date"] for row in rows)
    ours = [row for row in rows if row["name"].startswith("tarpeg") and row["group"] == "uint8"]
    assert len(ours) >= 2
    # Pixels: the very same for crops; for a resize, as close as the promise says.
    limit = 0.0 if suite == "crop" else 0.6
    assert all(float(row["mean"]) <= limit for row in ours)
    with Image.open(tmp_path / "out" / f"{suite}-{size}.png") as chart:
        assert min(chart.size) > 300


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["suite=speed"], "suite: expected one of crop, resize, got 'speed'"),
        (["clock=sun"], "clock: expected one of wall, cpu, got 'sun'"),
        (["images=0"], "images: expected an integer of at least 1, got 0"),
        (["rounds=few"], "rounds: expected an integer of at least 1, got 'few'"),
        (["size=huge"], "size: expected"),
        (["tile=0", "images=1", "rounds=1"], "tile=0 must be"),
    ],
)
def test_what_is_refused_is_named(tmp_path, settings, named):
    done = run(tmp_path, *settings)
    assert done.returncode == 1
    assert done.stderr.startswith("bench: ") and named in done.stderr, done.stderr


def test_a_peer_that_is_not_installed_is_left_out_with_the_package_to_install(monkeypatch):
    for name in ("simplejpeg", "cv2", "turbojpeg", "nvidia.dali", "nvidia.nvimgcodec"):
        monkeypatch.setitem(sys.modules, name, None)
    for suite in ("crop", "resize"):
        found, missing = peers.of(suite)
        assert found == []
        assert any("pip install simplejpeg" in line for line in missing)
        assert any("pip install nvidia-dali-cuda130" in line for line in missing)


def test_measuring_leaves_the_number_of_threads_as_it_was():
    import torch

    before = torch.get_num_threads()
    report = bench.measure("crop", size=[300, 320], images=2, rounds=1)
    assert torch.get_num_threads() == before
    assert (report.size, report.images) == ("300x320", 2)
    assert report.rows[0].ratio == 1.0
