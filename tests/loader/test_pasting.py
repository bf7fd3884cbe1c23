"""Objects pasted by CopyPaste: pixels, targets, broken partners."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers.composed import TARGETS, found_by
from helpers.loaders import load
from helpers.odd_pictures import Pictures
from helpers.pasting import decoded_alone, pasted
from helpers.pictures import jpeg
from helpers.scenes import Scenes, objects
from tarpeg import (
    Affine,
    Augment,
    Boxes,
    CopyPaste,
    InstanceMasks,
    Progressive,
    ScaleJitter,
    Split,
)
from tarpeg.diagnostics.overlays import moved_targets
from tarpeg.targets.outlines import chosen_outlines, outline_bounds, outlines_of
from torchvision.transforms import v2

HERE = {"workers": 0, "threads": 0, "on_error": "raise"}
JITTER = ScaleJitter((60, 80), scale_range=(0.4, 2.0), fill=77)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "options", [{}, {"fidelity": "exact"}, {"channels": 1}], ids=["fast", "exact", "gray"]
)
def test_images_and_targets_are_those_pasted_by_hand(options):
    source, checked, hidden = Pictures(), 0, 0
    split = Split(source, CopyPaste(JITTER, p=0.8), flip=0.5, targets=TARGETS, **options)
    loader = load(None, split=split, batch_size=4, **HERE)
    for batch in (batch for _ in range(4) for batch in loader):
        (view,) = loader.claim().views
        for row, (key, target) in enumerate(zip(batch.key, batch.targets, strict=True)):
            own = view.row(row)
            parts = []
            for part, id in enumerate(own.samples.tolist()):
                alone = own.parts().row(part)
                parts.append(moved_targets(TARGETS, source, id, alone))
                parts[-1]["image"] = decoded_alone(source, id, alone, 77, **options)
            assert own.samples[0] == int(key) and len(parts) <= 2
            wanted = parts[0]
            if len(parts) == 2:
                numbers = [
                    parts[1]["labels"].tolist().index(label)
                    for label in target["labels"].tolist()
                    if label // 10 == own.samples[1]
                ]
                if own.samples[0] != own.samples[1]:
                    assert numbers
                else:  # the same labels twice
                    continue
                wanted = pasted(parts[0], parts[1], numbers, ("mask", "pad_mask"))
                hidden += len(parts[0]["labels"]) + len(numbers) - len(wanted["labels"])
                checked += 1
            assert torch.equal(batch.image[row], wanted.pop("image"))
            for name in ("labels", "iscrowd", "masks", "keypoints", "mask", "pad_mask"):
                assert torch.equal(target[name], wanted[name]), name
            for name in ("boxes", "area"):
                torch.testing.assert_close(
                    target[name], wanted[name], rtol=1e-5, atol=1e-4, check_dtype=False
                )
            assert target["image_id"] == int(key)
    assert checked > 15 and hidden


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_are_pasted_normalised(dtype):
    source, images = Pictures(), {}
    for kind in (torch.uint8, dtype):
        pixels = None
        if kind == dtype:
            augment = Augment((0.4, 0.5, 0.6), (0.2, 0.3, 0.1), dtype=dtype)
            pixels = tarpeg.loader.augmenting.pixels_of(augment, True, 1)
        split = Split(source, CopyPaste(JITTER, p=0.8), flip=0.5, targets=TARGETS)
        images[kind] = next(iter(load(None, split=split, batch_size=11, pixels=pixels, **HERE))).image
    mean, std = (torch.tensor(each)[:, None, None] for each in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.1)))
    wanted = (images[torch.uint8] / 255 - mean) / std
    assert images[dtype].dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(images[dtype].float(), wanted, rtol=tolerance, atol=tolerance)


def test_images_without_a_paste_are_those_of_the_crop():
    source = Pictures()
    plain = load(None, split=Split(source, JITTER, flip=0.5, targets=TARGETS), **HERE)
    for p in (0, 0.5):
        loader = load(None, split=Split(source, CopyPaste(JITTER, p=p), flip=0.5, targets=TARGETS), **HERE)
        same = 0
        for ours, theirs in zip(loader, plain, strict=True):
            (view,) = loader.claim().views
            for row in np.flatnonzero(np.bincount(view.batch_rows) == 1).tolist():
                assert torch.equal(ours.image[row], theirs.image[row]) and ours.key[row] == theirs.key[row]
                assert ours.targets[row].keys() == theirs.targets[row].keys()
                for name, value in theirs.targets[row].items():
                    assert torch.equal(torch.as_tensor(ours.targets[row][name]), torch.as_tensor(value)), name
                same += 1
        assert same == 11 if p == 0 else 0 < same < 11
        plain.sampler.set_epoch(0)


def test_at_most_so_many_objects_and_no_crowds():
    source = Pictures()
    for found in source.objects:
        for each in found[:1]:
            each["iscrowd"] = 1
    counts = set()
    for most in (1, None):
        crop = CopyPaste(ScaleJitter((60, 80), scale_range=(1, 1)), p=1, max_objects=most)
        loader = load(None, split=Split(source, crop, targets=TARGETS), **HERE)
        for batch in (batch for _ in range(4) for batch in loader):
            (view,) = loader.claim().views
            for row, target in enumerate(batch.targets):
                samples = view.row(row).samples.tolist()
                if len(samples) == 2 and samples[0] != samples[1]:
                    labels = [label for label in target["labels"].tolist() if label // 10 == samples[1]]
                    assert all(label % 10 for label in labels), "a crowd is not pasted"
                    assert 1 <= len(labels) <= (most or 2)
                    counts.add((most, len(labels)))
    assert counts == {(1, 1), (None, 1), (None, 2)}


@pytest.mark.parametrize("kind", ["policy", "worker", "arrival"])
def test_an_affine_moves_what_is_pasted(kind):
    """White objects on black: each mask stays on what is white, wherever the affine is drawn."""
    source = Scenes({}, count=8, size=(60, 80))
    for number, sample in enumerate(source.samples):
        pixels = np.zeros((60, 80, 3), np.uint8)
        pixels[20:40, 10 + 4 * number : 40 + 4 * number] = 255
        left = 10 + 4 * number
        outline = [left, 20, left + 30, 20, left + 30, 40, left, 40]
        sample["jpg"] = jpeg("444", 60, 80, rgb=pixels)
        sample |= objects({"bbox": [left, 20, 30, 20], "category_id": 1, "segmentation": [outline]})
    split = Split(
        source,
        CopyPaste(ScaleJitter(96, scale_range=(0.7, 1.3)), p=1),
        flip=0.5,
        targets=TARGETS[::2][:2],
        transform=tarpeg.TrivialAugmentWide() if kind == "policy" else None,
    )
    affine = Affine(degrees=20, translate=0.2, scale=(0.8, 1.2))
    augment = None if kind == "policy" else Augment((0, 0, 0), (1, 1, 1), affine=affine)
    loader = tarpeg.Loader(split, 8, augment=augment, seed=3, workers=1 if kind == "worker" else 0)
    checked = 0
    for images, found in (batch for _ in range(3) for batch in loader):
        for image, target in zip(images, found, strict=True):
            masks = target["masks"].bool()
            assert (masks.sum(dim=0) <= 1).all(), "a pixel belongs to one object"
            for mask, box in zip(masks, target["boxes"], strict=True):
                y, x = mask.nonzero().unbind(1)
                x1, y1, x2, y2 = box.tolist()
                assert x1 <= x.min() + 1 and y1 <= y.min() + 1 and x.max() <= x2 and y.max() <= y2
            if kind != "policy" and len(masks) > 1:
                white = image[0] > image[0].mean()
                assert (white == masks.any(dim=0)).float().mean() > 0.93
                checked += 1
    loader.close()
    assert checked >= 8 or kind == "policy"


# --- what is broken


@pytest.mark.parametrize("kind", ["image", "target", "mask"])
def test_a_broken_partner_breaks_its_row(kind):
    source = Pictures(broken=[3] if kind == "image" else [])
    if kind == "target":
        source.objects[3][0]["bbox"] = [1, 1, -5, 2]
    if kind == "mask":
        source.masks[3] = source.masks[3][:5]
    split = Split(source, CopyPaste(JITTER, p=1), targets=TARGETS)
    with pytest.raises((tarpeg.DecodeError, tarpeg.ShardError), match=r"shard Pictures, key '3'"):
        for _ in load(None, split=split, seed=1, **HERE):
            pass
    loader = load(None, split=split, seed=1, workers=0, threads=0, max_bad=1.0, shuffle=False)
    with pytest.warns(UserWarning, match=r"key '3'.*takes its place"):
        batches = found_by(loader)
    replaced = 0
    for _, keys, targets, view in batches:
        assert 3 not in view.samples or kind != "image"
        first = np.flatnonzero(np.diff(view.batch_rows, prepend=-1))
        assert [str(id) for id in view.samples[first]] == keys and "3" not in keys
        assert [target["image_id"] for target in targets] == view.samples[first].tolist()
        replaced += 1
    assert replaced == 3
    loader = load(None, split=split, batch_size=11, shuffle=False, workers=0, on_error="leave_out")
    with pytest.warns(UserWarning, match="left out of its batch"):
        batch = next(iter(loader))
    (view,) = loader.claim().views
    assert len(batch.image) == len(batch.targets) == len(batch.key) == view.batch_rows.max() + 1 < 11


def test_samples_without_objects_paste_nothing():
    source = Pictures()
    source.objects = [[] for _ in source.objects]
    loader = load(None, split=Split(source, CopyPaste(JITTER, p=1), targets=TARGETS), **HERE)
    for batch in loader:
        assert len(loader.claim().views[0]) == len(batch.image)
        assert all(len(target["masks"]) == 0 for target in batch.targets)


# --- what is refused


class Own(tarpeg.Target):
    def read(self, source, ids):
        return [None] * len(ids)

    def move(self, value, view):
        return value


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"target": None}, r"pastes objects by their masks, and targets=NoneType has none: give targets=\["),
        ({"targets": Boxes("json:objects")}, "targets=Boxes has none"),
        (
            {"targets": [Boxes("json:others"), InstanceMasks("json:objects")]},
            "Boxes is of other objects, 'json:others', which cannot be pasted with them",
        ),
        ({"targets": {"masks": InstanceMasks("json"), "own": Own()}}, "Own is a target of your own"),
        ({"targets": TARGETS, "transform": v2.GaussianBlur(3)}, "no steps of transform= in Python"),
        ({"targets": TARGETS, "views": 2}, "is for one view, not 2"),
        ({"targets": TARGETS, "transform": v2.RandomRotation(9)}, "runs in Python: leave it out"),
    ],
)
def test_what_a_paste_cannot_do(options, text):
    for crop in (CopyPaste(JITTER), Progressive(JITTER, {3: CopyPaste(JITTER)})):
        with pytest.raises(ValueError, match=text):
            Split("shards", crop, **options)


# --- outlines of objects


def some_outlines(rng, height=13, width=17):
    """Polygons, several of an object, and run lengths, also of nothing and of all."""
    values = []
    for kind in rng.permutation(6):
        mask = rng.random((height, width)) < (0, 1, 0.05, 0.5, 0, 0)[kind]
        toggles = np.flatnonzero(np.diff(mask.T.ravel(), prepend=False, append=False))
        counts = np.diff(np.concatenate([[0], toggles, [height * width]])).tolist()
        polygon = (rng.random((3, 2)) * (width, height)).ravel().tolist()
        values.append({"size": [height, width], "counts": counts} if kind < 4 else [polygon] * (kind - 3))
    return values


def test_chosen_outlines_are_those_of_the_objects_alone():
    rng = np.random.default_rng(1)
    for _ in range(20):
        values = some_outlines(rng)
        (whole,) = outlines_of(str, values, [6])
        for numbers in ([], [2], [0, 3, 5], [5, 1], range(6)):
            (wanted,) = outlines_of(str, [values[number] for number in numbers], [len(numbers)])
            found = chosen_outlines(whole, np.array(numbers, np.int64))
            assert all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))


def test_bounds_of_outlines_are_those_of_their_pixels_and_corners():
    rng, masks = np.random.default_rng(2), InstanceMasks("json", min_pixels=0)
    for _ in range(20):
        values = some_outlines(rng)
        (outlines,) = outlines_of(str, values, [6])
        found = outline_bounds(outlines)
        filled = masks.move(outlines, tarpeg.View.whole((13, 17), (13, 17)))["masks"].numpy()
        for value, mask, bounds in zip(values, filled, found, strict=True):
            if isinstance(value, list):
                corners = np.array(value).reshape(-1, 2)
                assert bounds.tolist() == [*corners.min(axis=0), *corners.max(axis=0)]
            elif not mask.any():
                assert bounds.tolist() == [np.inf, np.inf, -np.inf, -np.inf]
            else:
                y, x = mask.nonzero()
                assert bounds.tolist() == [x.min(), y.min(), x.max() + 1, y.max() + 1]
