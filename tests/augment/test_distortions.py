"""Distortions: what uniform draws become."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tarpeg import Affine, Augment, Color, Erase, Mask, Mix
from tarpeg.ops import matrices
from tarpeg.sampling.rng import uniforms

SIZE = (40, 60)


def drawn(distortion, count=2000, stream=0):
    return uniforms(0, 0, np.arange(count), distortion.draws, stream)


def numbers(distortion, count=2000):
    return distortion.params(drawn(distortion, count), SIZE)


def test_affine_of_fixed_numbers():
    def matrix(**fixed):
        return Affine(**fixed).params(np.full((1, Affine.draws), 0.5), SIZE)["matrix"][0]

    center = (29.5, 19.5)
    assert torch.allclose(matrix(), matrices.identity())
    assert torch.allclose(matrix(degrees=(90, 90)), matrices.rotation(90.0, center))
    assert torch.allclose(matrix(scale=(2, 2)), matrices.scale(2.0, center=center))
    assert torch.allclose(matrix(shear=(10, 10)), matrices.shear(10.0, center=center))
    assert torch.allclose(matrix(translate=(0.25, 0.25)), matrices.translation(15.0, 10.0))
    moved = matrices.apply(matrix(degrees=(90, 90), translate=(0.5, 0.5)), [center])
    assert torch.allclose(moved, torch.tensor([[59.5, 39.5]], dtype=torch.float64)), "the centre moves last"


def test_affine_draws_within_its_ranges_and_spreads_over_them():
    matrix = numbers(Affine(30, (0.5, 2.0), 0, 0.1))["matrix"]
    scales = torch.linalg.det(matrix[:, :, :2]).sqrt()
    angles = torch.rad2deg(torch.atan2(matrix[:, 0, 1], matrix[:, 0, 0]))
    assert 0.5 <= scales.min() < 0.52 and 1.98 < scales.max() <= 2
    assert -30 <= angles.min() < -29 and 29 < angles.max() <= 30
    moved = matrices.apply(matrix, [[29.5, 19.5]])[:, 0] - torch.tensor([29.5, 19.5])
    assert (moved.abs().amax(0) <= torch.tensor([6.0, 4.0])).all() and moved.abs().amax(0).min() > 3.9
    assert abs(np.corrcoef(moved.T)[0, 1]) < 0.1
    share = (
        (numbers(Affine(30, probability=0.25))["matrix"] != matrices.identity()).any((1, 2)).double().mean()
    )
    assert 0.2 < share < 0.3


def test_color_leaves_out_what_changes_nothing():
    assert numbers(Color()) == {}
    found = numbers(Color(0.4, (0.5, 0.8), hue=0.1))
    assert set(found) == {"brightness", "contrast", "hue"}
    for name, low, high in (("brightness", 0.6, 1.4), ("contrast", 0.5, 0.8), ("hue", -0.1, 0.1)):
        values = found[name]
        assert low <= values.min() < low + 0.01 and high - 0.01 < values.max() <= high
    assert numbers(Color(3.0))["brightness"].min() >= 0
    seldom = numbers(Color(0.4, hue=0.1, probability=0.25))
    assert 0.7 < (seldom["hue"] == 0).double().mean() < 0.8
    assert torch.equal(seldom["hue"] == 0, seldom["brightness"] == 1)


def test_erased_boxes_are_inside_and_of_the_shapes_asked_for():
    boxes = numbers(Erase(1.0, (0.1, 0.2), (0.5, 2.0)))["erase_boxes"][:, 0].double()
    top, left, height, width = boxes.unbind(1)
    assert (boxes[:, :2] >= 0).all() and (top + height <= 40).all() and (left + width <= 60).all()
    areas, aspects = height * width / 2400, height / width
    assert 0.09 < areas.min() < 0.11 and 0.19 < areas.max() < 0.21
    assert 0.45 < aspects.min() < 0.55 and 1.8 < aspects.max() < 2.1
    assert top.min() == left.min() == 0 and (top + height).max() == 40 and (left + width).max() == 60
    share = (numbers(Erase(0.25))["erase_boxes"][:, 0, 2] > 0).double().mean()
    assert 0.2 < share < 0.3
    assert not numbers(Erase(1.0, (1.0, 1.0), (3.0, 3.0)))["erase_boxes"][..., 2:].any(), (
        "what does not fit is left out"
    )


def test_masks():
    plain, grown = (numbers(Mask(0.25, (8, 10), dilate))["mask"] for dilate in (False, True))
    assert plain.shape == (2000, 8, 10) and 0.24 < plain.double().mean() < 0.26
    inner = grown[:, 1:-1, 1:-1].double().mean()
    assert abs(inner - (1 - 0.75**5)) < 0.01 and (grown | ~plain).all()
    seldom = numbers(Mask(1.0, 4, probability=0.25))["mask"]
    assert 0.2 < seldom.all((1, 2)).double().mean() < 0.3 and torch.equal(
        seldom.any((1, 2)), seldom.all((1, 2))
    )


WRONG = [
    (lambda: Affine(-5), r"degrees=-5 must not be negative"),
    (lambda: Affine(scale=(2, 1)), r"scale=\(2, 1\) of Affine must be a number or two, the lower one first"),
    (lambda: Affine(scale=0), r"scale=\(0, 0\) of Affine .* at least 0\.001"),
    (lambda: Affine(shear=90), r"shear=.* of Affine .* at least -89\.0, at most 89\.0"),
    (lambda: Affine(degrees=float("nan")), "degrees"),
    (lambda: Affine(translate="far"), "translate"),
    (lambda: Color(hue=0.6), r"hue=.* of Color .* at most 0\.5"),
    (lambda: Color(brightness=(-1, 1)), r"brightness=\(-1, 1\) of Color .* at least 0\.0"),
    (lambda: Color(probability=2), r"probability=2 of Color is a probability"),
    (lambda: Erase(area=(0.5, 1.5)), r"area=\(0\.5, 1\.5\) of Erase .* at most 1\.0"),
    (lambda: Erase(aspect=(0, 1)), r"aspect=\(0, 1\) of Erase"),
    (lambda: Mask(ratio=1.5), r"ratio=1\.5 of Mask is a probability"),
    (lambda: Mask(cells=0), r"cells=0 must be an int or \(height, width\)"),
    (lambda: Mask(cells=500), r"cells=500 .* at most 32768 in all"),
    (lambda: Mix(0), r"classes=0 must be the number of classes"),
    (lambda: Mix(10, mixup=-1), r"mixup=-1 is the alpha"),
    (lambda: Mix(10, probability=1.5), r"probability=1\.5 is a probability"),
    (lambda: Augment(flip=2), r"flip=2 is a probability"),
    (lambda: Augment(space="hsv"), r"space='hsv' must be 'rgb' or 'ycbcr'"),
    (lambda: Augment(dtype="int8"), r"dtype='int8' must be one of 'float32', 'float16', 'bfloat16'"),
    (lambda: Augment(memory_format="x"), r"memory_format='x' must be one of 'contiguous', 'channels_last'"),
]


@pytest.mark.parametrize(("make", "text"), WRONG, ids=range(len(WRONG)))
def test_settings_out_of_range_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_mixing():
    images, labels = torch.rand(6, 3, 8, 8), torch.arange(6) % 3
    before = torch.random.get_rng_state()
    up, soft = Mix(3, mixup=0.4, cutmix=0)(images, labels, (0.0, 0.0, 0.3))
    again, _ = Mix(3, mixup=0.4, cutmix=0)(images, labels, (0.9, 0.7, 0.3))
    assert torch.equal(before, torch.random.get_rng_state()) and torch.equal(up, again)
    share = soft[0, 0].item()
    assert 0 < share < 1 and torch.allclose(up, share * images + (1 - share) * images.roll(1, 0), atol=1e-6)
    assert torch.allclose(soft.sum(1), torch.ones(6)) and soft.dtype == torch.float32
    cut, _ = Mix(3, mixup=0, cutmix=1.0)(images, labels, (0.0, 0.9, 0.6))
    assert ((cut == images) | (cut == images.roll(1, 0))).all() and not torch.equal(cut, images)
    same, hard = Mix(3, probability=0.5)(images, labels, (0.6, 0.0, 0.0))
    assert torch.equal(same, images) and torch.equal(hard, torch.nn.functional.one_hot(labels, 3).float())
    kinds = [Mix(3)(images, labels, (0, which, 0.3))[0] for which in (0.2, 0.4, 0.6, 0.8)]
    assert (
        torch.equal(kinds[0], kinds[1]) and torch.equal(kinds[2], kinds[3]) and not torch.equal(*kinds[1:3])
    )
    with pytest.raises(ValueError, match=r"labels 0\.\.2 do not fit classes=2"):
        Mix(2)(images, labels, (0, 0, 0))
    with pytest.raises(ValueError, match=r"mix takes labels int64 \[B\], got torch\.int64 \[6, 1\]"):
        Mix(3)(images, labels[:, None], (0, 0, 0))
    with pytest.raises(ValueError, match="one view of each image"):
        Mix(3)(images[None], labels, (0, 0, 0))
