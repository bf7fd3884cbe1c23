"""Distortions: the parameters that uniform draws become."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tarpeg import Affine, ColorJitter, Erase, GridMask
from tarpeg.ops import matrices
from tarpeg.sampling.rng import uniforms

SIZE = (40, 60)


def params(distortion, count=2000):
    return distortion.params(uniforms(0, 0, np.arange(count), distortion.draws, 0), SIZE)


def test_affine_of_fixed_values():
    def matrix(**fixed):
        return Affine(**fixed).params(np.full((1, Affine.draws), 0.5), SIZE)["matrix"][0]

    center = (29.5, 19.5)
    assert torch.allclose(matrix(), matrices.identity())
    assert torch.allclose(matrix(degrees=(90, 90)), matrices.rotation(90.0, center))
    assert torch.allclose(matrix(scale=(2, 2)), matrices.scale(2.0, center=center))
    assert torch.equal(matrix(scale=2), matrix(scale=(2, 2)))
    assert torch.allclose(matrix(shear=(10, 10)), matrices.shear(10.0, center=center))
    assert torch.allclose(matrix(translate=(0.25, 0.25)), matrices.translation(15.0, 10.0))
    moved = matrices.apply(matrix(degrees=(90, 90), translate=(0.5, 0.5)), [center])
    assert torch.allclose(moved, torch.tensor([[59.5, 39.5]], dtype=torch.float64)), "translation comes last"


def test_affine_fills_its_ranges():
    matrix = params(Affine(30, (0.5, 2.0), 0, 0.1))["matrix"]
    scales = torch.linalg.det(matrix[:, :, :2]).sqrt()
    angles = torch.rad2deg(torch.atan2(matrix[:, 0, 1], matrix[:, 0, 0]))
    assert 0.5 <= scales.min() < 0.52 and 1.98 < scales.max() <= 2
    assert -30 <= angles.min() < -29 and 29 < angles.max() <= 30
    moved = matrices.apply(matrix, [[29.5, 19.5]])[:, 0] - torch.tensor([29.5, 19.5])
    assert (moved.abs().amax(0) <= torch.tensor([6.0, 4.0])).all() and moved.abs().amax(0).min() > 3.9
    assert abs(np.corrcoef(moved.T)[0, 1]) < 0.1
    is_changed = (params(Affine(30, probability=0.25))["matrix"] != matrices.identity()).any((1, 2))
    assert 0.2 < is_changed.double().mean() < 0.3


def test_erased_boxes_are_inside_and_have_the_requested_shapes():
    boxes = params(Erase(1.0, (0.1, 0.2), (0.5, 2.0)))["erase_boxes"][:, 0].double()
    top, left, height, width = boxes.unbind(1)
    assert (boxes[:, :2] >= 0).all() and (top + height <= 40).all() and (left + width <= 60).all()
    areas, aspects = height * width / 2400, height / width
    assert 0.09 < areas.min() < 0.11 and 0.19 < areas.max() < 0.21
    assert 0.45 < aspects.min() < 0.55 and 1.8 < aspects.max() < 2.1
    assert top.min() == left.min() == 0 and (top + height).max() == 40 and (left + width).max() == 60
    share = (params(Erase(0.25))["erase_boxes"][:, 0, 2] > 0).double().mean()
    assert 0.2 < share < 0.3
    too_wide = params(Erase(1.0, (1.0, 1.0), (3.0, 3.0)))["erase_boxes"]
    assert not too_wide[..., 2:].any(), "a box that does not fit is left out"


def test_masks():
    plain, dilated = (params(GridMask(0.25, (8, 10), dilate))["mask"] for dilate in (False, True))
    assert plain.shape == (2000, 8, 10) and 0.24 < plain.double().mean() < 0.26
    inner = dilated[:, 1:-1, 1:-1].double().mean()
    assert abs(inner - (1 - 0.75**5)) < 0.01 and (dilated | ~plain).all()
    draws = np.ones((2, 21))
    draws[:, 0] = draws[0, 7] = draws[1, 20] = 0  # cells (1, 1) and (3, 4)
    grown = GridMask(cells=(4, 5)).params(draws, SIZE)["mask"]
    assert grown[0].nonzero().tolist() == [[0, 1], [1, 0], [1, 1], [1, 2], [2, 1]]
    assert grown[1].nonzero().tolist() == [[2, 4], [3, 3], [3, 4]]
    rare = params(GridMask(1.0, 4, probability=0.25))["mask"]
    assert 0.2 < rare.all((1, 2)).double().mean() < 0.3
    assert torch.equal(rare.any((1, 2)), rare.all((1, 2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Affine(-5), r"degrees=-5"),
        (lambda: Affine(scale=(2, 1)), r"scale=\(2, 1\) of Affine"),
        (lambda: Affine(scale=0), r"scale=\(0, 0\) of Affine .* at least 0\.001"),
        (lambda: Affine(shear=90), r"shear=.* of Affine .* at least -89\.0, at most 89\.0"),
        (lambda: Affine(degrees=float("nan")), "degrees"),
        (lambda: Affine(translate="far"), "translate"),
        (lambda: ColorJitter(hue=0.6), r"hue=.* of ColorJitter .* at most 0\.5"),
        (lambda: ColorJitter(brightness=(-1, 1)), r"brightness=\(-1, 1\) of ColorJitter .* at least 0\.0"),
        (lambda: ColorJitter(probability=2), r"probability=2 of ColorJitter .*0\.\.1"),
        (lambda: Erase(area=(0.5, 1.5)), r"area=\(0\.5, 1\.5\) of Erase .* at most 1\.0"),
        (lambda: Erase(aspect=(0, 1)), r"aspect=\(0, 1\) of Erase"),
        (lambda: Erase(pixels="pixel"), r"pixels='pixel' of Erase"),
        (lambda: GridMask(ratio=1.5), r"ratio=1\.5 of GridMask"),
        (lambda: GridMask(cells=0), r"cells=0"),
        (lambda: GridMask(cells=500), r"cells=500 .*32768"),
    ],
)
def test_settings_out_of_range_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()
