"""Targets beside steps of transform= in Python: torchvision's v2 and Albumentations move them."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import tarpeg
import torch
from helpers.scenes import Scenes
from PIL import Image
from tarpeg.loader import outcomes
from tarpeg.loader.carried import arrived
from tarpeg.sampling.geometry import View
from tarpeg.sampling.sampler import Request
from torchvision import tv_tensors
from torchvision.transforms import v2

HEIGHT, WIDTH = 48, 64
BOXES = [[4, 5, 20, 10], [40, 30, 16, 12], [1, 1, 2, 2]]
POINTS = [[10, 8, 2, 5, 6, 1], [50, 35, 2, 0, 0, 0], [2, 2, 2, 1.5, 1.5, 2]]
TARGETS = [
    tarpeg.Boxes("json:objects"),
    tarpeg.Keypoints("json:objects", [], count=2),
    tarpeg.Masks("png"),
]


def source(count=3, **others):
    objects = [
        {"bbox": box, "category_id": number + 1, "area": box[2] * box[3] / 2, "keypoints": points}
        for number, (box, points) in enumerate(zip(BOXES, POINTS, strict=True))
    ]
    mask = io.BytesIO()
    Image.fromarray(np.arange(HEIGHT * WIDTH, dtype=np.uint32).reshape(HEIGHT, WIDTH).astype(np.uint8)).save(
        mask, "PNG"
    )
    sample = {"json": json.dumps({"objects": objects}).encode(), "png": mask.getvalue()}
    return Scenes(
        {number: {**sample, **others.get(f"_{number}", {})} for number in range(count)}, count=count
    )


def batch(transform, targets=TARGETS, samples=None, training=False, **options):
    split = tarpeg.Split(samples or source(), targets=targets, transform=transform, **options)
    loader = tarpeg.Loader(split, 3, training=training, workers=0, seed=options.pop("seed", 0))
    try:
        return next(iter(loader))
    finally:
        loader.close()


class Corner:
    """A target of one's own: where the corner of the image is."""

    def read(self, source, ids):
        return [None] * len(ids)

    def move(self, value, view):
        return view.points(np.zeros((1, 2)))


def wanted(transform):
    """What torchvision makes of the whole image and its targets."""
    corners = torch.tensor(BOXES, dtype=torch.float32)
    corners[:, 2:] += corners[:, :2]
    points = torch.tensor(POINTS).reshape(3, 2, 3)
    target = {
        "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(HEIGHT, WIDTH)),
        "labels": torch.arange(1, 4),
        "keypoints": tv_tensors.KeyPoints(points[..., :2].contiguous(), canvas_size=(HEIGHT, WIDTH)),
        "mask": tv_tensors.Mask(torch.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).to(torch.uint8)),
    }
    image = tv_tensors.Image(torch.zeros(3, HEIGHT, WIDTH, dtype=torch.uint8))
    return transform(image, target)[1]


@pytest.mark.parametrize(
    "steps",
    [
        [v2.Pad(4), v2.RandomVerticalFlip(1.0)],
        [v2.RandomVerticalFlip(1.0), v2.Resize((96, 128))],
        [v2.ToImage(), v2.Pad([2, 4, 6, 8], fill=7), v2.RandomHorizontalFlip(1.0), v2.Resize((30, 40))],
        [v2.RandomAffine([5, 5], scale=[0.9, 0.9]), v2.ToDtype(torch.float32, scale=True)],
    ],
    ids=["pad", "resize", "several", "affine"],
)
def test_steps_of_torchvision_move_what_they_move_there(steps):
    transform = v2.Compose(steps)
    images, targets = batch(transform)
    expected = wanted(v2.Compose([step for step in steps if not isinstance(step, v2.ToDtype)]))
    for target in targets:
        height, width = images.shape[-2:]
        boxes = expected["boxes"].as_subclass(torch.Tensor)
        clipped = boxes.clamp(torch.zeros(4), torch.tensor([width, height] * 2, dtype=torch.float32))
        torch.testing.assert_close(target["boxes"].as_subclass(torch.Tensor), clipped, atol=1e-4, rtol=0)
        seen = target["keypoints"][..., 2] > 0
        points = expected["keypoints"].as_subclass(torch.Tensor)
        torch.testing.assert_close(target["keypoints"][..., :2][seen], points[seen], atol=1e-4, rtol=0)
        assert seen.sum() >= 3
        assert torch.equal(
            target["mask"].as_subclass(torch.Tensor), expected["mask"].as_subclass(torch.Tensor)
        )
        assert target["labels"].tolist() == [1, 2, 3]
        assert target["orig_size"].tolist() == [HEIGHT, WIDTH] and target["size"].tolist() == [height, width]


def test_a_native_crop_moves_targets_first():
    crop = v2.RandomResizedCrop((24, 32), scale=(1, 1), ratio=(4 / 3, 4 / 3))
    pad = v2.Pad(5)
    split = tarpeg.Split(source(), transform=v2.Compose([crop, pad]), targets=TARGETS)
    assert [step.is_native for step in split.plan(measure=False).views[0]] == [True, False]
    images, targets = batch(v2.Compose([crop, pad]))
    assert images.shape[-2:] == (34, 42)
    boxes = torch.tensor([[4, 5, 24, 15], [40, 30, 56, 42], [1, 1, 3, 3]]) / 2 + 5
    torch.testing.assert_close(targets[0]["boxes"].as_subclass(torch.Tensor), boxes)
    assert targets[0]["area"].tolist() == pytest.approx([25.0, 24.0, 0.5])


def test_objects_are_dropped_from_all_fields():
    steps = v2.Compose([v2.Pad(1), v2.SanitizeBoundingBoxes(min_size=5)])
    _, targets = batch(steps)
    assert targets[0]["labels"].tolist() == [1, 2]
    assert len(targets[0]["keypoints"]) == len(targets[0]["area"]) == len(targets[0]["boxes"]) == 2
    assert targets[0]["area"].tolist() == [100, 96]
    # Only this step, behind a native crop.
    only = v2.Compose([v2.Resize((HEIGHT, WIDTH)), v2.SanitizeBoundingBoxes(min_size=5)])
    assert batch(only)[1][1]["labels"].tolist() == [1, 2]
    _, targets = batch(
        v2.Compose([v2.RandomIoUCrop(), v2.SanitizeBoundingBoxes(), v2.Resize((32, 32))]), TARGETS[0]
    )
    assert all(0 < len(target["boxes"]) <= 3 for target in targets)


def test_they_are_functions_of_seed_and_sample():
    steps = [
        v2.RandomPhotometricDistort(),
        v2.RandomZoomOut(),
        v2.RandomIoUCrop(),
        v2.SanitizeBoundingBoxes(),
    ]
    transform = v2.Compose([*steps, v2.Resize((32, 32)), v2.ToDtype(torch.float32, scale=True)])
    one, same = (batch(transform, TARGETS[0], training=True) for _ in range(2))
    assert torch.equal(one[0], same[0])
    for target, other in zip(one[1], same[1], strict=True):
        assert torch.equal(target["boxes"], other["boxes"])
    assert len({tuple(target["boxes"].flatten().tolist()) for target in one[1]}) == 3


def test_workers_views_and_augment():
    transform = v2.Compose([v2.Pad(4)])
    augment = tarpeg.Augment(flip=1.0)
    split = tarpeg.Split(
        source(6), targets=TARGETS, transform=[transform, v2.Compose([v2.Pad(4)])], shuffle=False
    )
    found = []
    for workers in (0, 1):
        loader = tarpeg.Loader(split, 3, workers=workers, augment=augment)
        found.append(next(iter(loader)))
        loader.close()
    (images, targets), (others, again) = found
    torch.testing.assert_close(images, others)
    width = images.shape[-1]
    for view in range(2):
        assert torch.equal(targets[view][0]["boxes"], again[view][0]["boxes"])
        assert torch.equal(targets[view][0]["mask"], again[view][0]["mask"])
        # (4, 5, 24, 15), padded by 4, and mirrored by Augment
        assert targets[view][0]["boxes"][0].tolist() == [width - 28, 9, width - 8, 19]
    assert targets[0][0]["boxes"].shape == (3, 4)


def test_small_images_go_through_the_steps_with_their_targets():
    transform = v2.Compose([v2.CenterCrop((60, 60))])  # larger than the image: padded by 6
    _, targets = batch(transform, TARGETS[:2])
    assert targets[0]["boxes"].tolist() == [[2, 11, 22, 21], [38, 36, 54, 48], [0, 7, 1, 9]]


def test_broken_targets_and_images_are_replaced():
    broken = source(4, _1={"json": b"{}"}, _2={"jpg": b"no image"})
    with pytest.warns(UserWarning, match="takes its place"):
        _, targets = batch(v2.Compose([v2.Pad(4)]), TARGETS, broken)
    assert [target["labels"].tolist() for target in targets] == [[1, 2, 3]] * 3


def test_albumentations():
    A = pytest.importorskip("albumentations")  # noqa: N806 (its usual name)
    numpy = A.Compose(
        [A.HorizontalFlip(p=1), A.Crop(0, 0, 40, 48)],
        bbox_params=A.BboxParams(format="pascal_voc", label_fields=["names"]),
        keypoint_params=A.KeypointParams(format="xy"),
    )
    images, targets = batch(numpy)
    assert images.shape[-2:] == (48, 40)
    # Mirrored: x -> 64 - x; the first and the third box are outside of the crop, or cut.
    assert targets[0]["labels"].tolist() == [2]
    torch.testing.assert_close(targets[0]["boxes"].tolist(), [[8.0, 30.0, 24.0, 42.0]], atol=1e-3, rtol=0)
    assert targets[0]["area"].tolist() == pytest.approx([96], abs=1e-2)
    assert targets[0]["keypoints"][0, :, 2].tolist() == [2, 0]
    expected = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(np.uint8)[:, ::-1][:, :40]
    assert np.array_equal(targets[0]["mask"].numpy(), expected)
    for kind in ("coco", "yolo", "albumentations"):
        other = A.Compose(
            [A.VerticalFlip(p=1)], bbox_params=A.BboxParams(format=kind, label_fields=["labels"])
        )
        _, targets = batch(other, TARGETS[0])
        boxes = [[4, 33, 24, 43], [40, 6, 56, 18], [1, 45, 3, 47]]
        torch.testing.assert_close(
            targets[0]["boxes"].tolist(), [[float(x) for x in b] for b in boxes], atol=1e-3, rtol=0
        )
    with pytest.raises(RuntimeError, match="bbox_params"):
        batch(A.Compose([A.VerticalFlip(p=1)]), TARGETS[0])


@pytest.mark.parametrize(
    ("transform", "targets", "text"),
    [
        (
            v2.Compose([v2.Pad(4)]),
            [tarpeg.Boxes("json:objects"), tarpeg.Keypoints("json:people", [], count=2)],
            "same objects",
        ),
        (v2.Compose([v2.Pad(4)]), tarpeg.InstanceMasks("json:objects"), r"InstanceMasks cannot follow .*Pad"),
        (v2.Compose([v2.Pad(4)]), [TARGETS[0], tarpeg.PadMask()], r"\[Boxes, PadMask\] cannot follow"),
        (v2.Compose([v2.Pad(4)]), {"boxes": TARGETS[0], "own": Corner()}, r"'own': Corner\} cannot follow"),
    ],
)
def test_what_is_refused(transform, targets, text):
    with pytest.raises(ValueError, match=text):
        batch(transform, targets)


def test_a_target_of_ones_own_behind_steps_that_move_pixels_is_an_error_where_it_is_moved():
    with pytest.raises(tarpeg.ShardError, match=r"Corner failed in move\(\): .*geometry of row"):
        batch(v2.Compose([v2.Pad(4)]), Corner())
    _, targets = batch(v2.Compose([v2.Resize((48, 64)), v2.RandomPhotometricDistort()]), Corner())
    assert targets[0].tolist() == [[0, 0]], "steps that move nothing"


def test_what_a_crop_drops_by_the_centre_is_dropped_before_the_steps():
    whole = View.whole((48, 64), (48, 64))
    view = replace(whole, drops_by_centre=True)
    assert not arrived(view, np.array([True])).drops_by_centre
    assert arrived(view, np.array([False])).drops_by_centre


def test_the_results_of_transforms_are_kept_for_a_bounded_number_of_sizes(monkeypatch):
    monkeypatch.setattr(outcomes, "_MOST_FOUND", 2)
    split = tarpeg.Split(source(), transform=v2.Compose([v2.Resize((24, 24)), v2.Pad(2)]), target=None)
    fetcher = tarpeg.Loader(split, 2, workers=0).fetcher
    for size in range(20, 30):
        fetcher.shape(Request(0, np.zeros(1, np.int64), size=(size, size)))
    assert [*fetcher._found] == [((28, 28),), ((29, 29),)]


def test_a_step_of_torchvisions_first_version_is_refused():
    from torchvision import transforms

    with pytest.raises(ValueError, match=r"Pad\(.*takes no targets"):
        batch(transforms.Compose([transforms.Pad(4)]), TARGETS[0])


def test_steps_without_targets_behind_a_crop_that_pads_small_images_are_an_error_of_these():
    from torchvision import transforms

    for steps in ([transforms.CenterCrop(60)], [v2.CenterCrop(60), tarpeg.RandAugment()]):
        with pytest.raises(tarpeg.ShardError, match="geometry of row"):
            batch(v2.Compose(steps), TARGETS[0])


def test_padding_of_small_images_is_not_known_to_a_pad_mask():
    with pytest.raises(tarpeg.ShardError, match="geometry of row"):
        batch(v2.Compose([v2.CenterCrop(60)]), [tarpeg.PadMask()])


def test_small_boxes_are_dropped_in_pixels_of_the_result():
    boxes = tarpeg.Boxes("json:objects", min_size=4)
    _, targets = batch(v2.Compose([v2.Pad(0), v2.Resize((2 * HEIGHT, 2 * WIDTH))]), boxes)
    assert targets[0]["boxes"].shape == (3, 4)  # the smallest has sides of 2 pixels in the source


def test_functions_get_images_alone():
    steps = [v2.Pad(0), v2.Lambda(lambda image: 255 - image)]
    _, targets = batch(v2.Compose(steps), TARGETS[0])
    assert targets[0]["boxes"].tolist()[0] == [4, 5, 24, 15]


def test_a_step_that_drops_boxes_alone_is_an_error():
    nested = v2.Compose([v2.RandomApply([v2.SanitizeBoundingBoxes(min_size=5)], p=1.0)])
    with pytest.raises(RuntimeError, match="the list itself"):
        batch(nested)


def test_the_plan_says_which_steps_get_the_targets():
    transform = v2.Compose(
        [v2.RandomResizedCrop(24), v2.RandomIoUCrop(), v2.SanitizeBoundingBoxes(), v2.Resize((8, 8))]
    )
    plan = tarpeg.Split(source(), transform=transform, targets=TARGETS[0]).plan()
    native, *python = plan.views[0][:4]
    assert native.is_native
    assert all("with the targets" in step.note and step.us is not None for step in python), str(plan)
    bare = tarpeg.Split(source(), transform=v2.Compose([v2.RandomResizedCrop(24), v2.Pad(2)])).plan(
        measure=False
    )
    assert not any("targets" in step.note for step in bare.views[0])
