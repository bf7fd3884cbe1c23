"""Mosaics and pastes: images of parts of several samples are the same in any process and after a resume."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers.composed import TARGETS, found_by
from helpers.loaders import RUNNERS, load, name_of
from helpers.odd_pictures import Pictures
from helpers.small_tars import write_tar
from tarpeg import CopyPaste, Mosaic, Progressive, ScaleJitter, Split

JITTER = ScaleJitter((60, 80), scale_range=(0.4, 2.0), fill=77)
# With a probability below 1, and what images are alone by from epoch 2 on.
CROPS = {"mosaic": (Mosaic(48, p=0.8), Mosaic(48, p=0)), "paste": (CopyPaste(JITTER, p=0.8), JITTER)}

each_kind = pytest.mark.parametrize("kind", CROPS)


def split_of(kind, source):
    crop, alone = CROPS[kind]
    return Split(source, Progressive(crop, {2: alone}), flip=0.5, targets=TARGETS)


def assert_same(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for (images, keys, targets, view), (others, names, values, other) in zip(ours, theirs, strict=True):
        assert torch.equal(images, others) and keys == names
        for name in ("sizes", "boxes", "flips", "places", "batch_rows", "samples", "is_pasted"):
            assert np.array_equal(getattr(view, name), getattr(other, name)), name
        for one, two in zip(targets, values, strict=True):
            assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.sweep
@pytest.mark.parametrize("runner", [RUNNERS[3], RUNNERS[6]], ids=name_of)
@each_kind
def test_batches_are_the_same_in_any_process(kind, runner):
    results = []
    for settings in ({"workers": 0, "threads": 0}, runner):
        loader = load(None, split=split_of(kind, Pictures(broken=[3])), seed=5, max_bad=1.0, **settings)
        with pytest.warns(UserWarning, match="takes its place"):
            results.append(found_by(loader) + found_by(loader))
        loader.close()
    assert_same(*results)


@pytest.mark.parametrize("world", [2, 3])
@each_kind
def test_ranks_have_the_rows_of_one(kind, world):
    options = {"workers": 0, "threads": 0, "seed": 7}
    alone = found_by(load(None, split=split_of(kind, Pictures()), batch_size=world * 2, **options))
    rows = {
        key: (image, target)
        for images, keys, targets, _ in alone
        for image, key, target in zip(images, keys, targets, strict=True)
    }
    checked = 0
    for rank in range(world):
        split = split_of(kind, Pictures())
        loader = load(None, split=split, batch_size=2, rank=rank, world=world, **options)
        for images, keys, targets, _ in found_by(loader):
            for image, key, target in zip(images, keys, targets, strict=True):
                assert torch.equal(image, rows[key][0]) and target.keys() == rows[key][1].keys()
                assert all(torch.equal(target[name], rows[key][1][name]) for name in target)
                checked += 1
    assert checked >= 11


@each_kind
def test_resume_in_mid_epoch_and_the_end_of_parts(kind):
    options = {"workers": 0, "threads": 0, "seed": 7, "batch_size": 3}
    whole = load(None, split=split_of(kind, Pictures()), **options)
    epochs = [found_by(whole) for _ in range(3)]
    assert len(epochs[1][0][3]) > 3 and len(epochs[2][0][3]) == 3, "from epoch 2 on images are alone"
    assert (epochs[1][0][3].is_pasted, epochs[2][0][3].is_pasted) == (kind == "paste", False)
    first = load(None, split=split_of(kind, Pictures()), **options)
    list(first)
    rest = iter(first)
    next(rest)
    next(rest)
    second = load(None, split=split_of(kind, Pictures()), **options)
    second.load_state_dict(first.state_dict())
    assert_same(found_by(second), epochs[1][2:])


@each_kind
def test_a_stream_has_partners_too(tmp_path, kind):
    source = Pictures()
    members = [
        (f"{id:02d}.{end}", source.members([id], end)[0]) for id in range(8) for end in ("jpg", "json")
    ]
    write_tar(tmp_path / "a.tar", members)
    crop = {"mosaic": Mosaic(48), "paste": CopyPaste(JITTER, p=1)}[kind]
    split = Split(tmp_path / "a.tar", crop, targets=TARGETS[:3], streaming=True)
    loader = load(None, split=split, batch_size=4, workers=0)
    batch = next(iter(loader))
    assert batch.image.shape == (4, 3, *tarpeg.loader.drawing.pair(crop.size)) and len(batch.targets) == 4
    assert len(loader.claim().views[0]) > 4


@each_kind
def test_the_preview_draws_them_with_their_targets(tmp_path, kind):
    split = Split(Pictures(broken=[3]), CROPS[kind][0], flip=0.5, targets=TARGETS)
    data = tarpeg.ShardDataModule(split, batch_size=4, workers=0)
    with pytest.warns(UserWarning):
        tarpeg.contact_sheet(data, tmp_path / "sheet.png", samples=11)
    assert (tmp_path / "sheet.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="several samples each: contact_sheet"):
        tarpeg.comparison_sheet(data, tmp_path / "other.png")
