"""torchvision's RandomIoUCrop, ScaleJitter and RandomShortestSize in transform=: the decoder does them."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers.scenes import Scenes
from tarpeg import Boxes, Masks, RandomIoUCrop, RandomShortestSize, ScaleJitter, Split
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

BOXES = Boxes("json:objects")
FLOAT = v2.ToDtype(torch.float32, scale=True)
CLEAN = v2.SanitizeBoundingBoxes()
FLIP = v2.RandomHorizontalFlip()
PADDED = v2.RandomCrop((40, 50), pad_if_needed=True, fill=7)


def split_of(*steps, targets=BOXES, **options):
    return Split(
        Scenes(), transform=v2.Compose(steps) if steps else None, target=None, targets=targets, **options
    )


def batches_of(split):
    loader = tarpeg.Loader(split, batch_size=4, workers=0)
    return [(batch.image, [*batch.targets]) for batch in loader]


@pytest.mark.parametrize(
    ("steps", "crop"),
    [
        ([v2.RandomIoUCrop(), v2.Resize((40, 50)), FLIP, CLEAN], RandomIoUCrop((40, 50))),
        (
            [v2.RandomIoUCrop(0.5, trials=20), CLEAN, FLIP, v2.Resize((40, 50))],
            RandomIoUCrop((40, 50), 0.5, trials=20),
        ),
        (
            [FLIP, v2.ScaleJitter((40, 50)), PADDED, CLEAN],
            ScaleJitter((40, 50), (0.1, 2.0), (50, 40), 7, anywhere=True),
        ),
        (
            [v2.ScaleJitter((64, 64), (0.5, 1.5)), PADDED, FLIP],
            ScaleJitter((40, 50), (0.5, 1.5), (64, 64), 7, anywhere=True),
        ),
        ([v2.RandomShortestSize([32, 48], max_size=64), FLIP], RandomShortestSize([32, 48], 64)),
    ],
)
def test_batches_are_those_of_the_crop(steps, crop):
    """With the recipes of torchvision's references for SSD and Mask R-CNN, whose first steps they are."""
    split = split_of(v2.ToImage(), *steps, FLOAT, v2.ToPureTensor())
    assert not split.runs_python
    assert "Python" not in str(split.plan(measure=False))
    given = Split(Scenes(), crop, flip=0.5, target=None, targets=BOXES)
    for (images, targets), (plain, others) in zip(batches_of(split), batches_of(given), strict=True):
        assert torch.allclose(images, plain.float() / 255, atol=1e-6)
        for target, other in zip(targets, others, strict=True):
            assert all(
                torch.equal(torch.as_tensor(target[name]), torch.as_tensor(other[name])) for name in other
            )


@pytest.mark.parametrize(
    "steps",
    [
        [v2.RandomIoUCrop(), FLIP],
        [v2.RandomIoUCrop(), v2.RandomPhotometricDistort(), v2.Resize((40, 50))],
        [v2.RandomIoUCrop(), v2.Resize(40)],
        [v2.RandomZoomOut(), v2.RandomIoUCrop(), v2.Resize((40, 50))],
        [v2.ScaleJitter((40, 50)), v2.RandomCrop((40, 50), pad_if_needed=True, fill={tv_tensors.Image: 0})],
        [v2.ScaleJitter((40, 50)), v2.RandomCrop((4, 5))],
        [v2.ScaleJitter((40, 50)), v2.Resize((40, 50))],
        [v2.RandomShortestSize([32], max_size=None)],
        [v2.RandomShortestSize([32], max_size=64), PADDED],
        [v2.RandomIoUCrop(min_scale=0.9, max_scale=0.1), v2.Resize((40, 50))],
        [v2.ScaleJitter((40, 50), interpolation=InterpolationMode.BILINEAR), v2.RandomAffine(3), PADDED],
    ],
)
def test_all_else_stays_in_python(steps):
    assert split_of(*steps).runs_python


def test_boxes_that_a_step_drops_and_targets_keep_are_dropped_in_python():
    steps = [v2.RandomIoUCrop(), v2.Resize((40, 50))]
    for least, targets in ((20, BOXES), (1, Boxes("json:objects", min_size=0.5)), (1, Masks("png"))):
        if targets is not BOXES and isinstance(targets, Masks):
            with pytest.raises(ValueError, match="depends on the boxes"):
                split_of(*steps, v2.SanitizeBoundingBoxes(min_size=least), targets=targets)
            continue
        assert split_of(*steps, v2.SanitizeBoundingBoxes(min_size=least), targets=targets).runs_python
    assert not split_of(
        *steps, v2.SanitizeBoundingBoxes(20), targets=Boxes("json:objects", min_size=20)
    ).runs_python


def test_python_behind_the_crop_gets_what_the_decoder_made():
    steps = [v2.RandomIoUCrop(), v2.Resize((40, 50)), FLIP]
    split = split_of(*steps, v2.RandomVerticalFlip(1.0), CLEAN)
    for (images, targets), (plain, others) in zip(
        batches_of(split), batches_of(split_of(*steps)), strict=True
    ):
        assert torch.equal(images, plain.flip(-2))
        for target, other in zip(targets, others, strict=True):
            assert torch.allclose(40 - target["boxes"][:, 1], other["boxes"][:, 3], atol=1e-4)


@pytest.mark.parametrize("image", [(60, 90), (300, 200)])
def test_places_are_distributed_as_torchvisions(image, count=1500):
    """Of ScaleJitter and RandomCrop(pad_if_needed=True): left, top, width, height of the visible part."""
    torch.manual_seed(0)
    steps = v2.Compose([v2.ScaleJitter((40, 50), (0.3, 1.7)), v2.RandomCrop((40, 50), pad_if_needed=True)])
    ones = tv_tensors.BoundingBoxes([[0, 0, image[1], image[0]]], format="XYXY", canvas_size=image)
    whole = [
        steps(tv_tensors.BoundingBoxes(ones, format="XYXY", canvas_size=image))[0].tolist()
        for _ in range(count)
    ]
    (crop,) = split_of(
        v2.ScaleJitter((40, 50), (0.3, 1.7)), v2.RandomCrop((40, 50), pad_if_needed=True)
    ).view_crops()
    drawn = np.random.default_rng(0).random((count, 3))
    boxes = crop.boxes([image] * count, drawn)
    found = np.stack([boxes[:, 5], boxes[:, 4], boxes[:, 5] + boxes[:, 7], boxes[:, 4] + boxes[:, 6]], axis=1)
    for column in range(4):
        ours, theirs = (
            np.sort(np.asarray(each)[:, column]) for each in (found, np.clip(whole, 0, [50, 40, 50, 40]))
        )
        values = np.unique(np.concatenate([ours, theirs]))
        shares = [np.searchsorted(each, values, side="right") / count for each in (ours, theirs)]
        assert np.abs(shares[0] - shares[1]).max() < 0.06, column  # Kolmogorov and Smirnov: 1e-3 at 0.07
