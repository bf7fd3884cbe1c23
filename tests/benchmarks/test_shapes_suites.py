"""The buckets and patches suites: their contestants do the same work, and their tables."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import tarpeg
import torch
from tarpeg.datasets.synthetic import Photos

from benchmarks import buckets, patches
from benchmarks.buckets import BucketContestant, BucketFiles, BucketSampler, files_of
from benchmarks.loader_data import REPEATS, LoaderData
from benchmarks.measure import measure
from benchmarks.patches import GROUPS, PATCH, PatchContestant, timm_loader

SIZES = ((96, 128), (128, 96), (100, 100))


@pytest.fixture
def data(tmp_path):
    return LoaderData(tmp_path, Photos(size=SIZES, classes=12), 12, 32)


@pytest.fixture
def small(monkeypatch):
    """Small shapes, batches and sequences."""
    monkeypatch.setattr(buckets, "CROP", tarpeg.AspectBuckets(64, 16, upscale=True, place="center"))
    monkeypatch.setattr(buckets, "BATCH", 4)
    for name, sequences in GROUPS.items():
        monkeypatch.setitem(GROUPS, name, sequences._replace(length=24, batch=8))


def test_the_files_of_the_bucket_sampler_are_our_images(data, small):
    files, split = (
        BucketFiles(files_of(data), is_random=False),
        tarpeg.Split(data.shards("tiled", 1), buckets.CROP),
    )
    loader = tarpeg.Loader(split, batch_size=4, workers=0, training=False)
    for images, _ in loader:
        for image, number in zip(images, loader.claim().ids.tolist(), strict=True):
            theirs = files[number]
            assert theirs.shape == image.shape == (3, *files.shapes[number])
            assert (image.float() - theirs.float()).abs().mean() < 0.6
    assert len({*files.shapes}) == 3


def test_the_bucket_sampler_makes_batches_of_one_shape_of_all_files(data, small):
    shapes = BucketFiles(files_of(data)).shapes
    seen, lengths = Counter(), []
    for batch in BucketSampler(shapes, 5):
        assert len({shapes[number] for number in batch}) == 1
        seen.update(batch)
        lengths.append(len(batch))
    assert seen == dict.fromkeys(range(12), REPEATS)
    full = lengths.count(5)
    assert lengths[:full] == [5] * full and full >= 12 * REPEATS // 5 - 3


@pytest.mark.parametrize("group", [name for name in GROUPS if "256" in name])
def test_timms_sequences_are_ours(data, small, group):
    length, batch, is_normalised = GROUPS[group]
    pytest.importorskip("timm")
    theirs = {}
    for sequences, labels in timm_loader(data, group, 0):
        assert sequences["patches"].shape == (batch, length, 3 * PATCH**2)
        for row, label in enumerate(labels.tolist()):
            theirs[label] = {name: sequences[name][row] for name in ("patches", "patch_coord", "patch_valid")}
    split = PatchContestant("tarpeg, tiled, threads", group, data, 1).split(data.shards("tiled"))
    augment = tarpeg.Augment() if is_normalised else None
    ours = {}
    for sequences, labels in tarpeg.Loader(split, workers=0, augment=augment):
        for row, label in enumerate(labels.tolist()):
            ours[label] = {name: part[row] for name, part in sequences.items()}
    # timm numbers the folders in their order as names.
    number_of = {int(name): number for number, name in enumerate(sorted(map(str, ours), key=int))}
    assert len(ours) == len(theirs) == 12
    for label, own in ours.items():
        other = theirs[number_of[label]]
        assert torch.equal(own["patch_coord"], other["patch_coord"])
        assert torch.equal(own["patch_valid"], other["patch_valid"])
        difference = (own["patches"].float() - other["patches"].float())[own["patch_valid"]].abs().mean()
        assert difference < (0.6 / 50 if is_normalised else 0.6)


@pytest.mark.slow
def test_all_contestants_make_the_batches_of_the_suite(data, small):
    contestants = [
        BucketContestant(name, "uint8", data, 1) for name in (*buckets.PEERS, "tarpeg, packed, threads")
    ]
    for group in GROUPS:
        contestants += [
            PatchContestant(name, group, data, 1) for name in (*patches.PEERS, "tarpeg, tiled, threads")
        ]
    for who in contestants:
        batches = who.batches()
        for images, *_ in itertools.islice(batches, 3):
            assert who.expects(images), who
        batches.close()


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["buckets", "patches"])
def test_a_table(tmp_path, small, monkeypatch, suite):
    for name in {*GROUPS} - {"256"}:
        monkeypatch.delitem(GROUPS, name)
    ours = ["tarpeg, tiled, threads"] * (suite == "patches")  # each is a process that imports torch
    loader = {"data": str(tmp_path), "workers": 1, "seconds": 0.05, "only": ours or ["none"]}
    report = measure(suite, size=SIZES, images=12, rounds=1, loader=loader)
    assert report.missing == () and "3 sizes" in report.title
    assert [row.name for row in report.rows][1:] == ours and report.rows[-1].ratio > 0
    (figure,) = report.figures
    assert figure.startswith("speed by wall time and by processor time") and figure.count("x and ") == len(
        ours
    )
