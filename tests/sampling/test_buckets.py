"""Buckets by aspect ratio: which shape an image gets, and which batches come of it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import coco_sizes, kohya
from hypothesis import assume, given, settings, strategies as st
from tarpeg import AspectBuckets, ShardError
from tarpeg.sampling.buckets import Cover, bucket_batches, lost
from tarpeg.sampling.sampler import Sampler

side = st.integers(1, 5000)
RNG = np.random.default_rng(7)


def photographs(count: int) -> np.ndarray:
    """Sizes like those of web photographs: log-normal areas, common ratios, either way up."""
    ratios = RNG.choice([1, 4 / 3, 3 / 2, 16 / 9, 2.35], count, p=[0.2, 0.25, 0.35, 0.15, 0.05])
    ratios = ratios * np.exp(RNG.normal(0, 0.05, count))
    ratios = np.where(RNG.random(count) < 0.4, 1 / ratios, ratios)
    areas = np.exp(RNG.normal(np.log(1.2e6), 0.9, count))
    return np.stack([np.sqrt(areas / ratios), np.sqrt(areas * ratios)], axis=1).astype(int).clip(80, 9000)


@pytest.mark.parametrize("upscale", [True, False])
@pytest.mark.parametrize("step", [8, 64])
def test_buckets_crop_no_more_than_kohyas(upscale, step):
    sizes = photographs(3000)
    crop = AspectBuckets(1024, step, min_size=256, max_size=2048, upscale=upscale)
    found = crop.shapes_of(sizes)
    theirs = np.array(
        [kohya.bucket_of(*size, 1024, step, 256, 2048, upscale=upscale) for size in sizes.tolist()]
    )
    assert lost(sizes, found).mean() <= lost(sizes, theirs).mean()
    assert len(np.unique(found, axis=0)) <= len(np.unique(theirs, axis=0))
    if upscale:
        shapes = [(width, height) for height, width in crop.shapes]
        assert sorted(shapes) == kohya.shapes(1024, step, 256, 2048)


@pytest.mark.parametrize("upscale", [True, False])
@pytest.mark.parametrize(("resolution", "step"), [(512, 64), (512, 8), (256, 32), (1024, 64)])
def test_buckets_crop_no_more_of_cocos_images_than_kohyas(resolution, step, upscale):
    sizes = coco_sizes.sizes()
    assert len(sizes) == 10_000 and sum(coco_sizes.COMMON.values()) == 7846
    sides = (resolution // 2, 2 * resolution)  # kohya's defaults for 512: 256 and 1024
    found = AspectBuckets(resolution, step, upscale=upscale).shapes_of(sizes)
    kinds, kind = np.unique(sizes, axis=0, return_inverse=True)
    of_kinds = [kohya.bucket_of(*size, resolution, step, *sides, upscale=upscale) for size in kinds.tolist()]
    theirs = np.array(of_kinds)[kind.reshape(-1)]
    assert lost(sizes, found).mean() <= lost(sizes, theirs).mean()
    if upscale:
        assert len(np.unique(found, axis=0)) <= len(np.unique(theirs, axis=0))


@settings(deadline=None)
@given(
    sizes=st.lists(st.tuples(side, side), min_size=1, max_size=20),
    resolution=st.integers(32, 1500),
    step=st.integers(1, 32),
    upscale=st.booleans(),
)
def test_shapes_keep_their_bounds(sizes, resolution, step, upscale):
    crop = AspectBuckets(resolution, step, upscale=upscale)
    images = np.array(sizes)
    shapes = crop.shapes_of(images)
    fits = shapes[:, 0] > 0
    assert fits.all() if upscale else (fits == (images >= step).all(axis=1)).all()
    shapes, images = shapes[fits], images[fits]
    assert (shapes % step == 0).all() and (shapes.prod(axis=1) <= resolution**2).all()
    assert (shapes <= 2 * resolution).all()
    assert upscale or (shapes <= images).all()
    draws = RNG.random((len(images), 2))
    for row, shape in enumerate(shapes.tolist()):
        box = crop.at_size(tuple(shape)).boxes(images[row : row + 1], draws[row : row + 1])[0]
        assert (box[:2] >= 0).all() and (box[2:] >= 1).all() and (box[:2] + box[2:] <= images[row]).all()
        height, width = box[2:].tolist()
        assert height == images[row, 0] or width == images[row, 1]  # as large as the image holds it
        assert abs(height * shape[1] - width * shape[0]) <= max(shape)  # to half a pixel


def test_the_shape_that_crops_least_is_taken():
    crop = AspectBuckets(buckets=[(64, 64), (64, 128), (128, 64)], upscale=True)
    sizes = [(100, 100), (10, 1000), (1000, 10), (100, 150), (0, 0)]
    expected = [(64, 64), (64, 128), (128, 64), (64, 128), (64, 128)]
    assert [tuple(shape) for shape in crop.shapes_of(sizes).tolist()] == expected
    small = AspectBuckets(buckets=[(64, 64), (64, 128)])  # without enlarging
    assert small.shapes_of([(64, 70), (63, 900), (200, 130)]).tolist() == [[64, 64], [0, 0], [64, 64]]
    assert Cover((64, 128), "center").boxes([[100, 100]], [[0.9, 0.9]]).tolist() == [[25, 0, 50, 100]]


def drawn(batches, samples, world, epoch=0, first=0):
    """All requests of an epoch, by rank."""
    sampler = Sampler(samples, 5, True)
    return [list(batches.requests(sampler, rank, epoch, first, lambda _: False)) for rank in range(world)]


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    world=st.integers(1, 4),
    batch=st.integers(1, 9),
    remainder=st.sampled_from(["smaller", "merge"]),
    epoch=st.integers(0, 3),
)
def test_every_sample_once_in_batches_of_one_shape(counts, world, batch, remainder, epoch):
    options = [(32, 32 * (number + 1)) for number in range(len(counts))]
    shapes = RNG.permutation(np.repeat(options, counts, axis=0))
    crop = AspectBuckets(buckets=options, upscale=True, remainder=remainder)
    if len(shapes) < world:
        with pytest.raises(ShardError, match=f"world={world}"):
            bucket_batches(crop, shapes, batch * world, world)
        return
    batches = bucket_batches(crop, shapes, batch * world, world)
    ranks = drawn(batches, len(shapes), world, epoch)
    assert {len(rank) for rank in ranks} == {len(batches)}
    seen = np.concatenate([request.ids for rank in ranks for request in rank])
    assert sorted(seen.tolist()) == list(range(len(shapes)))
    largest = [dict(batches.largest_by_shape(rank)) for rank in range(world)]
    for step in zip(*ranks, strict=True):
        assert len({request.size for request in step}) == 1
        assert all(0 < len(request.ids) <= largest[rank][request.size] for rank, request in enumerate(step))
        assert max(len(request.ids) for request in step) - min(len(request.ids) for request in step) <= 1
        is_own = [(shapes[request.ids] == request.size).all() for request in step]
        assert all(is_own) or remainder == "merge" or min(counts) < world
    for first in range(len(batches)):  # a resume
        again = drawn(batches, len(shapes), world, epoch, first)
        for rank, full in zip(again, ranks, strict=True):
            assert [request.ids.tolist() for request in rank] == [r.ids.tolist() for r in full[first:]]


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(3, 40), min_size=1, max_size=6),
    batch=st.integers(3, 12),
    remainder=st.sampled_from(["smaller", "merge"]),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_the_global_batches_are_the_same_on_one_two_and_three_ranks(
    counts, batch, remainder, drop_last, epoch
):
    options = [(32, 32 * (number + 1)) for number in range(len(counts))]
    shapes = RNG.permutation(np.repeat(options, counts, axis=0))
    crop = AspectBuckets(buckets=options, upscale=True, remainder=remainder)
    assume(not drop_last or max(counts) >= batch)
    found = []
    for world in (1, 2, 3):
        batches = bucket_batches(crop, shapes, batch, world, drop_last=drop_last)
        steps = zip(*drawn(batches, len(shapes), world, epoch), strict=True)
        found.append(
            [(step[0].size, sorted(id for each in step for id in each.ids.tolist())) for step in steps]
        )
    # A remainder with fewer samples than ranks is part of another batch.
    assume(min(len(ids) for _, ids in found[0]) >= 3)
    assert found[0] == found[1] == found[2]


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    batch=st.integers(3, 12),
    remainder=st.sampled_from(["smaller", "merge"]),
    epoch=st.integers(0, 3),
)
def test_min_batch_makes_the_same_batches_of_few_samples_for_any_ranks(counts, batch, remainder, epoch):
    assume(sum(counts) >= 3)
    options = [(32, 32 * (number + 1)) for number in range(len(counts))]
    shapes = RNG.permutation(np.repeat(options, counts, axis=0))
    crop = AspectBuckets(buckets=options, upscale=True, remainder=remainder, min_batch=3)
    found, prints = [], set()
    for world in (1, 2, 3):
        batches = bucket_batches(crop, shapes, batch, world)
        prints.add(batches.fingerprint())
        steps = zip(*drawn(batches, len(shapes), world, epoch), strict=True)
        found.append(
            [(step[0].size, sorted(id for each in step for id in each.ids.tolist())) for step in steps]
        )
    assert found[0] == found[1] == found[2] and len(prints) == 1, "a state goes on with any of them"
    assert sorted(id for _, ids in found[0] for id in ids) == list(range(len(shapes)))
    assert all(3 <= len(ids) <= batch + 2 for _, ids in found[0])


def test_min_batch_is_at_most_a_batch():
    assert repr(AspectBuckets(min_batch=2)) == repr(AspectBuckets()), "a checkpoint from before it goes on"
    options = [(32, 32), (64, 64)]
    shapes = np.repeat(options, [9, 2], axis=0)
    crop = AspectBuckets(buckets=options, upscale=True, min_batch=5)
    assert bucket_batches(crop, shapes, 5).lengths == [((32, 32), 5), ((32, 32), 6)]
    assert bucket_batches(crop, shapes[:2], 5).lengths == [((32, 32), 2)], "all that there are"
    with pytest.raises(
        ValueError, match=r"min_batch=5 .* batch of 32 x 32, which has 4 samples over 2 ranks"
    ):
        bucket_batches(crop, shapes, 4, 2)
    with pytest.raises(ShardError, match="world=3"):
        bucket_batches(crop, shapes[:2], 6, 3)


def test_full_batches_first_and_fewer_of_them_by_merging():
    options = [(32, 32), (32, 64), (32, 96)]
    shapes = np.repeat(options, [21, 18, 30], axis=0)
    lengths = {}
    for remainder in ("smaller", "merge"):
        crop = AspectBuckets(buckets=options, upscale=True, remainder=remainder)
        batches = bucket_batches(crop, shapes, 8)
        (requests,) = drawn(batches, 69, 1)
        lengths[remainder] = [len(request.ids) for request in requests]
        rest = [length for length in lengths[remainder] if length != 8]
        assert lengths[remainder][len(lengths[remainder]) - len(rest) :] == rest
    assert sorted(lengths["smaller"]) == [2, 5, 6, *[8] * 7]
    assert sorted(lengths["merge"]) == [5, *[8] * 8]
    dropped = bucket_batches(AspectBuckets(buckets=options, upscale=True), shapes, 8, drop_last=True)
    assert [length for _, length in dropped.lengths] == [8] * 7


def test_a_batch_has_a_sample_for_each_rank():
    shapes = np.repeat([(32, 32)], 12, axis=0)
    for drop_last in (False, True):
        with pytest.raises(ValueError, match="global_batch=2 is smaller than world=3"):
            bucket_batches(AspectBuckets(32, step=32), shapes, 2, world=3, drop_last=drop_last)


def test_a_budget_of_pixels():
    options = [(32, 32), (64, 64)]
    shapes = np.repeat(options, [100, 100], axis=0)
    crop = AspectBuckets(buckets=options, upscale=True, max_pixels_per_batch=9000)
    batches = bucket_batches(crop, shapes, 1, world=2)
    assert dict(batches.largest_by_shape(0)) == {(32, 32): 8, (64, 64): 2}
    with pytest.raises(ValueError, match="max_pixels_per_batch=4095"):
        AspectBuckets(buckets=options, max_pixels_per_batch=4095)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"resolution": 32, "step": 64}, "resolution=32"),
        ({"step": 0}, "step=0"),
        ({"min_size": 900, "max_size": 800}, "min_size=900"),
        ({"place": "left"}, "place='left'"),
        ({"remainder": "drop"}, "remainder='drop'"),
        ({"upscale": 1}, "upscale=1"),
        ({"buckets": []}, "buckets"),
        ({"buckets": [(64, 0)]}, r"\(64, 0\)"),
        ({"buckets": [64]}, "64"),
        ({"max_pixels_per_batch": 1000}, "max_pixels_per_batch=1000"),
        ({"min_batch": 0}, "min_batch=0"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        AspectBuckets(**arguments)
