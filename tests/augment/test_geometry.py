"""Augment.geometry: where the points of an image are after its drawn distortions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tarpeg import Affine, Augment, AugMix, ColorJitter, Policy, RandAugment, Split, matrices
from tarpeg.augment.geometry import composed, may_move, policy_moves
from tarpeg.augment.policies import applied, drawn_programs
from torchvision.transforms import v2

HEIGHT, WIDTH = SIZE = (90, 121)
POINTS = torch.tensor([[40.0, 30.5], [81.25, 50.0], [60.5, 45.0]], dtype=torch.float64)


@dataclass(frozen=True)
class Turn(Policy):
    """Rotate every other image, and move it."""

    interpolation = "bilinear"
    draws = 1

    def program(self, uniforms, size):
        cos, sin = np.cos(0.3), np.sin(0.3)
        return applied("AFFINE", np.arange(len(uniforms)) % 2 == 0, cos, -sin, 3.5, sin, cos, -5.0)


@dataclass(frozen=True)
class Mirror(Policy):
    """Mirror every image: no interpolation."""

    draws = 1

    def program(self, uniforms, size):
        return applied("FLIP", np.full(len(uniforms), True))


def test_a_policy_without_interpolation_may_mirror():
    policies = [ColorJitter(0.1), Mirror()]
    programs = drawn_programs(policies, lambda _, count: np.zeros((1, count)), SIZE)
    found = composed(policy_moves(policies, programs, SIZE))
    assert found.tolist() == [[[-1, 0, WIDTH], [0, 1, 0]]]
    assert may_move(Mirror()) and not may_move(ColorJitter(0.1))
    step = Mirror()
    split = Split("a.tar", transform=v2.Compose([v2.CenterCrop(8), v2.RandomInvert(), step]))
    assert split.pipelines[0].moves_pixels_in_python


def spots(points):
    """Images [n, 3, H, W] with one bright spot each, whose centre of mass is the point (x, y)."""
    x, y = torch.arange(WIDTH) + 0.5, torch.arange(HEIGHT) + 0.5
    across, down = (x - points[:, :1]) ** 2, (y - points[:, 1:]) ** 2
    levels = 255 * torch.exp(-(down[:, :, None] + across[:, None]) / (2 * 2.0**2))
    return levels.round().to(torch.uint8)[:, None].expand(-1, 3, -1, -1).contiguous()


def centres(images):
    """The centres of mass [n, 2] of images [n, 3, H, W], in pixel edges."""
    levels = images.double().sum(1)
    x, y = torch.arange(WIDTH) + 0.5, torch.arange(HEIGHT) + 0.5
    mass = levels.sum((1, 2))
    return torch.stack([(levels.sum(1) * x).sum(1) / mass, (levels.sum(2) * y).sum(1) / mass], 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"flip": 1.0},
        {"flip": 0.5, "affine": Affine(20, (0.8, 1.2), 10, 0.05)},
        {
            "affine": Affine(20, probability=0.5),
        },
        {"flip": 0.5, "policy": Turn()},
        {"flip": 1.0, "policy": [Turn(), ColorJitter(0.1), Turn()], "affine": Affine(10)},
        {"policy": RandAugment(3, 5, interpolation="bilinear"), "flip": 0.5},
    ],
    ids=lambda settings: " ".join(settings),
)
def test_points_are_where_the_pixels_are(settings):
    augment = Augment((0, 0, 0), (1, 1, 1), fill=0, **settings)
    points = POINTS.repeat(8, 1)
    params = augment.params(range(len(points)), SIZE, seed=3)
    if isinstance(
        settings.get("policy"), RandAugment
    ):  # its geometry alone: others change the centre of mass
        params["ops0"][params["ops0"] > 2] = 0
    affines = augment.geometry(params, SIZE)
    assert affines.dtype == torch.float64 and affines.shape == (len(points), 2, 3)
    found = centres(augment(spots(points), params))
    expected = matrices.apply(affines, points[:, None])[:, 0]
    assert (found - expected).abs().max() < 0.1


def test_edges_are_half_open():
    """The first pixel of a mirrored row covers [w - 1, w): edges, not centres."""
    augment = Augment(flip=1.0, affine=Affine())
    params = augment.params([0, 1], SIZE)
    mirror = torch.tensor([[-1.0, 0, WIDTH], [0, 1, 0]], dtype=torch.float64)
    assert torch.equal(augment.geometry(params, SIZE), mirror.expand(2, 2, 3))
    params["matrix"] = matrices.translation(torch.tensor([2.0, 0.0]), 3.0)
    assert augment.geometry(params, SIZE)[0].tolist() == [[-1, 0, WIDTH + 2], [0, 1, 3]]


def test_what_moves_nothing_is_none():
    params = Augment(policy=[ColorJitter(0.4), AugMix()])
    assert params.geometry(params.params(range(4), SIZE), SIZE) is None
    assert Augment().geometry({}, SIZE) is None
