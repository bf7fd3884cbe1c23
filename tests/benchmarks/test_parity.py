"""The parity suite: cells of photographs, and trainings with two pipelines."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from tarpeg.shards.pillow import as_tensor

from benchmarks import parity
from benchmarks.decode_peers import decode_jpeg
from benchmarks.measure import measure


@pytest.fixture
def photographs(tmp_path):
    """Three photographs of different colours, one that is too small, and one that cannot be decoded."""
    generator, folder = np.random.default_rng(0), tmp_path / "photographs"
    folder.mkdir()
    for number in range(3):
        levels = generator.integers(0, 100, (16, 16, 3), dtype=np.uint8)
        levels[..., number] += 120
        size = (340 + 65 * number, 330)
        Image.fromarray(levels).resize(size, Image.Resampling.BICUBIC).save(folder / f"{number}.png")
    Image.new("RGB", (100, 500)).save(folder / "small.png")
    (folder / "torn.jpg").write_bytes(b"no image")
    return folder


@pytest.mark.slow
def test_both_pipelines_learn_the_same(photographs, tmp_path):
    loader = {"data": str(tmp_path / "data"), "workers": 1}
    report = measure("parity", images=photographs, parity={"seeds": 2, "epochs": 2}, loader=loader)
    assert report.title == (
        "which of 3 photographs a crop is part of: 60 cells to train, 30 others to measure, 2 epochs, 2 seeds"
    )
    assert [(row.group, row.name) for row in report.rows] == [
        (f"measured with {other}", f"trained with {name}")
        for other in ("torchvision v2", "tarpeg")
        for name in ("torchvision v2", "tarpeg")
    ]
    assert report.missing == (
        "left out: 2 of 5 photographs, which are below 320 pixels on a side, or damaged",
    )
    for row in report.rows:
        assert len(row.accuracies) == 2 and row.accuracy == pytest.approx(sum(row.accuracies) / 2)
        assert row.accuracy > 0.5, "three colours"
    assert re.match(r"ours alone minus torchvision's alone: [+-]\d+\.\d points, ", report.figures[0])
    (path,) = report.write(tmp_path / "out")
    assert path.name == "parity-photographs.csv" and "accuracy,spread,accuracies" in path.read_text()


def test_pipelines_read_the_same_cells_and_labels(photographs, tmp_path):
    tmp_path = tmp_path / "cells"
    counts = parity.write_cells(parity.photographs(str(photographs)), tmp_path, lambda what, share: None)
    assert counts == {"classes": 3, "train": 60, "val": 30}
    theirs, ours = (pipe(tmp_path, 0).val() for pipe in (parity._torchvision, parity._ours))
    theirs, ours = ([torch.cat(part) for part in zip(*batches, strict=True)] for batches in (theirs, ours))
    differences = (theirs[0][:, None] - ours[0]).abs().mean((2, 3, 4))
    nearest = differences.argmin(1)  # shards have another order
    assert sorted(nearest.tolist()) == list(range(30)) and torch.equal(theirs[1], ours[1][nearest])
    assert differences.min(1).values.max() < 0.05
    assert json.loads((tmp_path / "shards" / "classes.json").read_text())
    names = {path.name for path in (tmp_path / "train" / "0000").iterdir()}
    assert not names & {path.name for path in (tmp_path / "val" / "0000").iterdir()}
    cell = decode_jpeg(as_tensor((tmp_path / "val" / "0000" / "0000.jpg").read_bytes()))
    assert cell.shape == (3, 66, 66)
    first, second = (parity.network(3, seed) for seed in (5, 5))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(parity.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install scikit-image scikit-learn.*images=DIR"):
        measure("parity")
    for settings, text in ({"images": 5}, "must be None or DIR"), ({"parity": {"seeds": 1}}, "at least 2"):
        with pytest.raises(ValueError, match=text):
            measure("parity", **settings)
    Image.new("RGB", (400, 400)).save(tmp_path / "one.png")
    with pytest.raises(ValueError, match=r"1 of 1 photographs .* 320 pixels"):
        measure("parity", images=tmp_path, loader={"data": str(tmp_path / "data")})
