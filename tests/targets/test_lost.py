"""What a step of an augmentation moves out of its frame, and a later one back: it is fill in the image."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tarpeg
import torch
from helpers.pictures import jpeg, saved
from helpers.scenes import Scenes, objects
from helpers.stepwise import Moves, shown
from PIL import Image
from tarpeg import (
    Augment,
    Boxes,
    FloatMap,
    InstanceMap,
    InstanceMasks,
    Keypoints,
    Masks,
    PadMask,
    Split,
    Whole,
)
from tarpeg.augment.geometry import affine_and_steps
from tarpeg.sampling.geometry import View
from tarpeg.targets.lost import lost_pixels
from torchvision.transforms import v2

SIZE = (48, 64)
FILL = [255.0, 0.0, 255.0]
PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1), "fill": FILL}
CELLS = [(x, y, 8, 8) for y in range(0, 48, 8) for x in range(0, 64, 8)]


def moved(policy, count, **options):
    """Green images under an augmentation, in levels, and their views."""
    augment = Augment(**PLAIN, policy=policy, **options)
    params = augment.params(np.arange(count), SIZE)
    images = torch.zeros(count, 3, *SIZE, dtype=torch.uint8)
    images[:, 1] = 200
    view = View.whole(SIZE, SIZE, count).then(*affine_and_steps(augment.moves(params, SIZE)))
    return (augment.transform(images, params) * 255).round(), view


def is_fill(images):
    return ((images - torch.tensor(FILL)[:, None, None]).abs().amax(1) == 0).numpy()


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_nearest_pixels_that_are_lost_are_those_of_the_image(steps):
    images, view = moved(Moves(steps), 200, flip=0.5)
    assert view.steps is not None
    lost, may_lose = lost_pixels(view), view.steps.may_lose(SIZE)
    assert len(lost) > 20
    for row, fill in enumerate(is_fill(images)):
        if may_lose[row]:
            found = lost.get(row, np.zeros(SIZE, np.bool_))
            assert np.array_equal(found, fill)
            # The twin's positions have other roundings, half-way between two pixels.
            assert (found == shown(view.steps.matrices[row], True, SIZE)).mean() < 0.002
        else:
            assert row not in lost


@pytest.mark.parametrize(
    "options", [{}, {"affine": tarpeg.Affine(degrees=20, translate=0.4)}], ids=["policy", "affine"]
)
def test_bilinear_pixels_are_lost_where_the_image_is_more_fill_than_image(options):
    images, view = moved(Moves(2, interpolation="bilinear"), 100, flip=0.5, **options)
    assert view.steps is not None
    for row, lost in lost_pixels(view).items():
        level = images[row, 1].numpy()
        assert not (level[~lost] == 0).any() and not (level[lost] == 200).any()
        twin = ~shown(view.steps.matrices[row], False, SIZE)
        wide = np.lib.stride_tricks.sliding_window_view(np.pad(twin, 1, mode="edge"), (3, 3))
        is_near = wide.any(axis=(2, 3)) & ~wide.all(axis=(2, 3))
        assert np.array_equal(lost[~is_near], twin[~is_near])


@pytest.mark.parametrize("policies", [1, 2])
def test_steps_of_both_kinds_follow_each_other(policies):
    """A final Affine is a step too; so are those of two policies, each with its interpolation."""
    policy = [Moves(1), Moves(1, interpolation="bilinear")][:policies]
    images, view = moved(policy, 150, affine=tarpeg.Affine(translate=0.5))
    rows = lost_pixels(view)
    assert len(rows) > 50
    for row, lost in rows.items():
        level = images[row, 1].numpy()
        assert not (level[~lost] == 0).any() and not (level[lost] == 200).any()


def source():
    """Green images; all of each is class 1, depth 2, and cells of objects with a point each."""
    members = {}
    cells = [
        {
            "bbox": [*cell],
            "category_id": 1,
            "keypoints": [cell[0] + 4.0, cell[1] + 4.0, 2],
            "segmentation": [[x, y, x + 8, y, x + 8, y + 8, x, y + 8]],
        }
        for cell in CELLS
        for x, y in [cell[:2]]
    ]
    pixels = np.zeros((*SIZE, 3), np.uint8)
    pixels[..., 1] = 200
    numbers = (np.arange(6).repeat(8)[:, None] * 8 + np.arange(8).repeat(8) + 1).astype(np.uint8)
    depth = io.BytesIO()
    np.save(depth, np.full(SIZE, 2.0, np.float32))
    for number in range(24):
        members[number] = {
            "jpg": jpeg("444", *SIZE, rgb=pixels),
            **objects(*cells),
            "png": saved(Image.fromarray(np.ones(SIZE, np.uint8)), "PNG"),
            "map.png": saved(Image.fromarray(numbers), "PNG"),
            "npy": depth.getvalue(),
        }
    return Scenes(members, count=24, size=SIZE)


TARGETS = [
    Boxes("json:objects", min_size=0),
    Keypoints("json:objects", count=1, flip_pairs=[]),
    InstanceMasks("json:objects", min_pixels=0),
    Masks("png"),
    FloatMap("npy", name="depth", fill=-1.0, interpolation="nearest-exact"),
    PadMask(),
]


@pytest.mark.parametrize("kind", ["arrival", "worker", "transform", "both"])
def test_targets_show_nothing_where_the_image_is_fill(kind):
    policy = [Moves(1), Moves(2)]
    steps = (
        {"transform": v2.Compose([v2.Resize(SIZE), Moves(2)])}
        if kind in ("transform", "both")
        else {"crop": Whole(SIZE)}
    )
    augment = Augment(**PLAIN, policy=None if kind == "transform" else policy)
    split = Split(source(), targets=TARGETS, **steps)
    loader = tarpeg.Loader(split, 12, augment=augment, workers=1 if kind == "worker" else 0)
    gone = 0
    for images, targets in loader:
        images = (images * 255).round()
        for fill, target in zip(is_fill(images), targets, strict=True):
            allowed = 4  # of one step, whose place is half-way between two pixels
            gone += fill.sum()
            assert ((target["mask"].numpy() != 255) & fill).sum() <= allowed
            assert ((target["depth"].numpy() != -1) & fill).sum() <= allowed
            assert (~target["pad_mask"].numpy() & fill).sum() <= allowed
            assert (target["masks"].numpy().any(axis=0) & fill).sum() <= allowed
            for (x, y, seen), (x1, y1, x2, y2) in zip(
                target["keypoints"][:, 0].tolist(), target["boxes"].tolist(), strict=True
            ):
                if seen:
                    around = fill[max(int(y) - 1, 0) : int(y) + 2, max(int(x) - 1, 0) : int(x) + 2]
                    assert not around.all()
                if x2 - x1 > 3 and y2 - y1 > 3:
                    assert not fill[int(y1) : int(y2 + 1), int(x1) : int(x2 + 1)].all()
    loader.close()
    assert gone > 5000


def test_the_objects_of_a_picture_lose_the_pixels_too():
    split = Split(source(), Whole(SIZE), targets=InstanceMap("map.png"))
    loader = tarpeg.Loader(split, 24, augment=Augment(**PLAIN, policy=Moves(2)), workers=0)
    images, targets = next(iter(loader))
    cut = 0
    for fill, target in zip(is_fill((images * 255).round()), targets, strict=True):
        assert (target["masks"].numpy().any(axis=0) & fill).sum() <= 4
        for mask, box, area in zip(
            target["masks"].numpy(), target["boxes"].tolist(), target["area"].tolist(), strict=True
        ):
            y, x = np.nonzero(mask)
            assert [x.min(), y.min(), x.max() + 1, y.max() + 1] == box and mask.sum() == area
        cut += len(target["boxes"]) < len(CELLS)
    assert cut > 5


@pytest.mark.parametrize(
    "policy",
    [tarpeg.RandAugment(3, 25), tarpeg.TimmRandAugment("rand-m9-mstd0.5-inc1-n3")],
    ids=["rand", "timm"],
)
def test_masks_of_images_with_one_step_are_those_of_the_affine(policy):
    augment = Augment(policy=policy, flip=0.5)
    params = augment.params(np.arange(100), SIZE)
    view = View.whole(SIZE, SIZE, 100).then(*affine_and_steps(augment.moves(params, SIZE)))
    alone = View.whole(SIZE, SIZE, 100, view.affine)
    classes = [*np.random.default_rng(0).integers(0, 9, (100, *SIZE), dtype=np.uint8)]
    one, other = (Masks("png").move_all(classes, each).pictures["mask"] for each in (view, alone))
    assert view.steps is not None
    lost = lost_pixels(view)
    assert 0 < len(lost) < 100
    for row in range(100):
        kept = ~lost.get(row, np.zeros(SIZE, np.bool_))
        assert np.array_equal(one[row][kept], other[row][kept]) and (one[row][~kept] == 255).all()


def test_the_geometry_of_a_users_class_is_one_step():
    class Still(Augment):
        """Runs its policy on a copy that it does not return."""

        def transform(self, images, params, out=None):
            return super().transform(images, {}, out)

        def geometry(self, params, size):
            return None

    split = Split(source(), Whole(SIZE), targets=Masks("png"))
    loader = tarpeg.Loader(split, 24, augment=Still(**PLAIN, policy=Moves(2)), workers=0)
    images, masks = next(iter(loader))
    assert not is_fill((images * 255).round()).any() and (masks == 1).all()
