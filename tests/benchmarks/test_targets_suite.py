"""The targets suite: what its contestants make, and its table."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import mask_forms, targets
from benchmarks.measure import measure
from benchmarks.targets import GROUPS, PEERS, AnnotatedPhotos, TargetContestant, TargetData


def test_objects_are_within_their_photographs():
    members = AnnotatedPhotos(size=(96, 128)).members(3, "train")
    assert members == AnnotatedPhotos(size=(96, 128)).members(3, "train") and [*members] == [
        "jpg",
        "json",
        "png",
    ]
    objects = json.loads(members["json"])["objects"]
    assert len(objects) == 8
    for each in objects:
        left, top, width, height = each["bbox"]
        assert left >= 0 and top >= 0 and min(width, height) > 0
        assert left + width <= 128.01 and top + height <= 96.01
        (outline,) = each["segmentation"]
        assert np.reshape(outline, (-1, 2)).min(axis=0).tolist() == [left, top]


@pytest.mark.slow
def test_all_contestants_make_the_same_kind_of_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "BATCH", 8)
    data = TargetData(tmp_path, AnnotatedPhotos(size=(120, 160)), 8, 32)
    for group in GROUPS:
        for name in (*PEERS, "tarpeg, tiled, threads"):
            who = TargetContestant(name, group, data, 1)
            batches = who.batches()
            for images, found in itertools.islice(batches, 3):
                assert who.expects(images)
                if group == "none":
                    continue
                assert len(found) == 8
                for each in found if group != "mask" or name in PEERS else ():
                    count = len(each.get("boxes", ()))
                    assert ("mask" in each) == (group in ("mask", "both"))
                    assert ("boxes" in each) == (group != "mask") and len(each.get("labels", ())) == count
                    if group == "objects":
                        assert each["masks"].shape == (count, 512, 512) and each["masks"].dtype == torch.uint8
            batches.close()


@pytest.mark.slow
def test_a_table(tmp_path, monkeypatch):
    for name in {*GROUPS} - {"none", "both"}:
        monkeypatch.delitem(GROUPS, name)
    loader = {"data": str(tmp_path), "workers": 1, "seconds": 0.05, "only": ["threads"]}
    report = measure("targets", size=[120, 160], images=8, rounds=1, loader=loader)
    assert report.missing == () and "targets" in report.title
    names = ["files + DataLoader + torchvision v2", "tarpeg, tiled, threads"]
    assert [(row.group, row.name) for row in report.rows] == [*itertools.product(["none", "both"], names)]
    assert all(row.images_per_second > 0 for row in report.rows) and report.rows[3].ratio > 1
    assert [line.partition("take, ")[2].partition(":")[0] for line in report.figures] == names


@pytest.mark.slow
def test_the_table_of_masks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mask_forms, "_SIZES", (((120, 160), 64, 1), ((240, 320), 64, 2)))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)).save(
        tmp_path / "0.jpg"
    )
    mask_forms.main(str(tmp_path), 8)
    _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2
    assert all(row.count(" ms") == 4 and "nan" not in row for row in rows)
