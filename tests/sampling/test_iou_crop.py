"""RandomIoUCrop: distributed as torchvision's, a function of numbers and boxes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.pictures import jpeg
from helpers.small_tars import sample, write_tar
from tarpeg import Boxes, LoaderConfig, Mixture, MixtureLoader, RandomIoUCrop, RandomResizedCrop, Split, View
from tarpeg.loader.carried import arrived
from tarpeg.loader.messages import _view_message, _view_of
from tarpeg.sampling import rng
from tarpeg.sampling.geometry import joined
from torchvision import tv_tensors
from torchvision.transforms import v2

OBJECTS = np.array([[20.0, 30, 120, 90], [150, 100, 190, 140], [5, 5, 15, 200]])


def drawn(crop, sizes, objects, seed=0):
    """Boxes as a loader draws them."""
    ids = np.arange(len(sizes))
    return crop.boxes_among(
        np.array(sizes),
        objects,
        lambda rows, round: rng.uniforms(seed, 0, ids[rows], crop.draws, 0, round * crop.draws),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("options", [[0.0, 0.3, 1.5], None])
def test_boxes_are_distributed_as_torchvisions(options):
    count, size = 2000, (210, 200)
    found = drawn(RandomIoUCrop(64, sampler_options=options), [size] * count, [OBJECTS] * count)
    theirs = v2.RandomIoUCrop(sampler_options=options)
    boxes = tv_tensors.BoundingBoxes(OBJECTS, format="XYXY", canvas_size=size)
    image, expected = tv_tensors.Image(torch.zeros(1, *size)), []
    torch.manual_seed(1)
    for _ in range(250):
        made = theirs.make_params([image, boxes])
        box = [made[name] for name in ("top", "left", "height", "width")] if made else [0, 0, *size]
        expected.append([*box, made["is_within_crop_area"].sum() if made else 3])
    expected = np.array(expected, float)
    centres = (OBJECTS[:, :2] + OBJECTS[:, 2:]) / 2
    begin, end = found[:, None, 1::-1], found[:, None, 1::-1] + found[:, None, :1:-1]
    inside = ((begin < centres) & (centres < end)).all(-1).sum(1)
    assert inside.min() >= 1
    mine = np.column_stack([found, inside]).astype(float)
    error = np.hypot(mine.std(0) / np.sqrt(count), expected.std(0) / np.sqrt(len(expected)))
    assert (np.abs(mine.mean(0) - expected.mean(0)) < 4 * error + 1e-9).all()
    np.testing.assert_allclose(mine.std(0), expected.std(0), rtol=0.2)
    is_whole = (mine[:, 2:4] == size).all(1).mean(), (expected[:, 2:4] == size).all(1).mean()
    assert abs(is_whole[0] - is_whole[1]) < 0.1


def test_each_row_depends_on_its_own_numbers_alone():
    crop, sizes = RandomIoUCrop(64), [(210, 200), (300, 190), (250, 250), (99, 400)]
    objects = [OBJECTS, OBJECTS[:1], np.zeros((0, 4)), OBJECTS + 3]
    together = drawn(crop, sizes, objects)
    assert together[2].tolist() == [0, 0, 250, 250]
    for row in range(4):
        uniforms = lambda rows, round, row=row: rng.uniforms(  # noqa: E731
            0, 0, np.array([row]), crop.draws, 0, round * crop.draws
        )
        alone = crop.boxes_among(np.array(sizes[row : row + 1]), objects[row : row + 1], uniforms)
        assert alone[0].tolist() == together[row].tolist()


def test_many_objects_take_bounded_memory():
    parts = RandomIoUCrop(64)._parts([10, 20_000, 30_000, 5, 5])
    assert [(part.start, part.stop) for part in parts] == [(0, 2), (2, 3), (3, 5)] or len(parts) >= 2
    many = np.tile(OBJECTS, (40_000, 1))
    found = drawn(RandomIoUCrop(64), [(210, 200)] * 2, [many, OBJECTS])
    assert (found[:, 2:] >= 1).all()


def test_an_object_that_no_box_can_overlap_ends_with_the_whole_image():
    far = np.array([[-500.0, -500, -400, -400]])
    assert drawn(RandomIoUCrop(8, sampler_options=[0.5], trials=1), [(20, 30)], [far]).tolist() == [
        [0, 0, 20, 30]
    ]


def test_objects_whose_centre_is_cut_off_are_not_visible():
    sizes, box = np.array([[100, 100]], np.int32), np.array([[0, 0, 50, 60]], np.int32)
    view = View(sizes, box, np.array([False]), (50, 60), drops_by_centre=True)
    moved, visible = view.rectangles([[10, 10, 30, 30], [20, 20, 30, 80], [50, 10, 69, 20], [51, 10, 69, 20]])
    assert (visible > 0).tolist() == [True, False, True, False]
    assert moved[0].tolist() == [10, 10, 30, 30] and (moved[1] == 0).all()
    whole = View(
        sizes, np.array([[0, 0, 100, 100]], np.int32), np.array([False]), (50, 60), drops_by_centre=True
    )
    assert whole.rectangles([[90, 90, 130, 130]])[1][0] > 0
    assert view.row(0).drops_by_centre


@pytest.mark.parametrize(
    "options, match",
    [
        ({"min_scale": 0}, r"min_scale"),
        ({"max_scale": 1.5}, r"max_scale=1\.5"),
        ({"min_aspect_ratio": 3}, r"min_aspect_ratio"),
        ({"trials": 0}, r"trials=0"),
        ({"sampler_options": []}, r"sampler_options=\[\]"),
        ({"sampler_options": [-1]}, r"sampler_options=\[-1\]"),
    ],
)
def test_odd_arguments_are_errors(options, match):
    with pytest.raises(ValueError, match=match):
        RandomIoUCrop(64, **options)


def test_it_needs_boxes():
    with pytest.raises(ValueError, match=r"crop=RandomIoUCrop.*targets=tarpeg\.Boxes"):
        Split("a.tar", RandomIoUCrop(64))


def test_rows_of_a_batch_lose_objects_by_the_rule_of_their_own_crop():
    def view(flag, count):
        sizes, crops = np.tile([210, 200], (count, 1)), np.tile([0, 0, 60, 200], (count, 1))
        return View(
            sizes.astype(np.int32),
            crops.astype(np.int32),
            np.zeros(count, np.bool_),
            (30, 100),
            drops_by_centre=flag,
        )

    def seen(found, row):
        return [values.tolist() for values in found.rectangles(OBJECTS, np.full(len(OBJECTS), row))]

    drops, keeps = view(True, 2), view(False, 3)
    one, other = seen(drops, 0), seen(keeps, 0)
    assert one != other, "the centre of an object is outside"
    whole = joined([drops, keeps])
    for found in (whole, _view_of(_view_message(whole)), joined([whole.rows([0, 1]), whole.rows([2, 3, 4])])):
        assert [seen(found, row) for row in range(5)] == [one, one, other, other, other]
    assert [seen(whole.rows([4, 0]), row) for row in range(2)] == [other, one]
    assert whole.rows([2, 3]).drops_by_centre is False and whole.rows([0]).drops_by_centre is True
    assert joined([drops, drops]).drops_by_centre is True and joined([keeps, keeps]).drops_by_centre is False
    whole.put(0, keeps.row(0))
    assert [seen(whole, row) for row in range(3)] == [other, one, other]
    assert seen(arrived(joined([drops, keeps]), np.array([True, False, False, False, False])), 1) == one


def test_rows_of_a_mixture_have_the_objects_of_their_source_on_any_number_of_ranks(tmp_path):
    draw, members = np.random.default_rng(0), []
    for number in range(24):
        low = draw.integers(0, 60, (4, 2))
        high = low + draw.integers(8, 30, (4, 2))
        objects = [
            {"bbox": [*one.tolist(), *(two - one).tolist()], "category_id": 1}
            for one, two in zip(low, high, strict=True)
        ]
        members += [
            *sample(number, jpeg("420", 96, 96)),
            (f"k{number:04d}.json", json.dumps(objects).encode()),
        ]
    shards = str(write_tar(tmp_path / "train-0.tar", members))
    splits = {
        name: Split(shards, crop, flip=0.5, targets=Boxes("json", labels=None))
        for name, crop in (("iou", RandomIoUCrop(48)), ("plain", RandomResizedCrop(48)))
    }
    found = {}
    for world in (1, 3, 6):
        found[world] = {}
        for rank in range(world):
            config = LoaderConfig(global_batch_size=6, workers=0)
            loader = MixtureLoader(
                Mixture(splits, weights={"iou": 0.5, "plain": 0.5}), rank=rank, world=world, config=config
            )
            for step, (images, targets, sources) in enumerate(loader):
                for image, target, source in zip(images, targets, sources.tolist(), strict=True):
                    key = (step, source, image.numpy().tobytes())
                    found[world][key] = target["boxes"].tolist()
    assert found[1] == found[3] == found[6] and len(found[1]) > 30
