"""CopyPaste: its numbers, which objects are chosen, and the parts that show them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tarpeg import (
    AspectBuckets,
    CopyPaste,
    LetterBox,
    Mosaic,
    Progressive,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomShortestSize,
    ScaleJitter,
    View,
)
from tarpeg.sampling.paste import part_around

RNG = np.random.default_rng(3)


def test_boxes_are_those_of_the_crop():
    sizes = RNG.integers(1, 900, (50, 2))
    for crop in (ScaleJitter(96), LetterBox(64), RandomResizedCrop(32)):
        paste = CopyPaste(crop)
        draws = RNG.random((50, paste.draws))
        assert np.array_equal(paste.boxes(sizes, draws), crop.boxes(sizes, draws[:, : crop.draws]))
        assert paste.size == crop.size and paste.draws_of_partners(draws).shape == (50, 1 + crop.draws)
        used = np.concatenate([draws[:, : crop.draws], paste.draws_of_partners(draws)], axis=1)
        assert used.shape[1] == paste.draws - 2 and len({*used[0]}) == used.shape[1], "none is used twice"


@pytest.mark.parametrize(("most", "counts"), [(None, {1, 2, 3, 4, 5}), (2, {1, 2}), (9, {1, 2, 3, 4, 5})])
def test_a_random_subset_is_chosen(most, counts):
    crop, seen = CopyPaste(ScaleJitter(96), p=0.3, max_objects=most), np.zeros(5)
    found = [
        crop.chosen(5, draws, keys)
        for draws, keys in zip(RNG.random((4000, crop.draws)), RNG.random((4000, 5)), strict=True)
    ]
    lengths = np.array([len(each) for each in found])
    for numbers in found:
        assert (np.diff(numbers) > 0).all()
        seen[numbers] += 1
    assert {*lengths} == counts
    shares = np.bincount(lengths)[1:] / len(found)
    assert np.allclose(shares, 1 / len(counts), atol=0.03), "each number is as likely"
    assert np.allclose(seen / seen.sum(), 1 / 5, atol=0.02), "and so is each object"
    assert abs(crop.is_pasted(RNG.random((4000, crop.draws))).mean() - 0.3) < 0.03


@settings(deadline=None, max_examples=300)
@given(data=st.data(), flip=st.booleans())
def test_the_part_shows_the_bounds_where_the_view_has_them(data, flip):
    """Within half a pixel of source or result, the larger, and inside of box and place."""
    height, width = (data.draw(st.integers(1, 300)) for _ in range(2))
    box = [data.draw(st.integers(0, side - 1)) for side in (height, width)]
    box += [data.draw(st.integers(1, side - begin)) for side, begin in zip((height, width), box, strict=True)]
    size = tuple(data.draw(st.integers(1, 200)) for _ in range(2))
    place = [data.draw(st.integers(0, side - 1)) for side in size]
    place += [data.draw(st.integers(1, side - begin)) for side, begin in zip(size, place, strict=True)]
    corners = [data.draw(st.floats(-10, 310)) for _ in range(4)]
    bounds = np.array([*map(min, corners[:2], corners[2:]), *map(max, corners[:2], corners[2:])])
    whole = View(
        np.array([[height, width]], np.int32),
        np.array([box], np.int32),
        np.array([flip]),
        size,
        places=np.array([place], np.int32),
    )
    found = part_around(whole, 0, bounds)
    low, high = np.array(box[1::-1]), np.array(box[1::-1]) + box[:1:-1]
    is_outside = (bounds[2:] <= low).any() or (bounds[:2] >= high).any()
    assert (found is None) == is_outside
    if found is None:
        return
    for part, outer in ((found[0], box), (found[1], place)):
        assert part.dtype == np.int32 and (part[2:] >= 1).all() and (part[:2] >= outer[:2]).all()
        assert (part[:2] + part[2:] <= np.add(outer[:2], outer[2:])).all()
    view = View(whole.sizes, found[0][None], whole.flips, size, places=found[1][None])
    inside = np.clip(bounds, np.tile(low, 2), np.tile(high, 2)).reshape(2, 2)
    scale = np.array(place[:1:-1]) / box[:1:-1]
    error = np.abs(whole.points(inside) - view.points(inside))
    assert (error <= np.maximum(scale, 1) * 1.01 + 1e-9).all()  # a part of one pixel is wider
    shown = np.sort(view.points(inside), axis=0)
    begin = found[1][1::-1]
    assert (shown[0] >= begin - np.maximum(scale, 1) / 2 - 1e-6).all()
    assert (shown[1] <= begin + found[1][:1:-1] + np.maximum(scale, 1) / 2 + 1e-6).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"crop": 224}, r"crop=224 of CopyPaste must be a crop of one size"),
        ({"crop": ScaleJitter}, "must be a crop of one size"),
        ({"crop": Mosaic(96)}, "must be a crop of one size"),
        ({"crop": RandomIoUCrop(96)}, "depends on no objects, such as"),
        ({"crop": RandomShortestSize(64, 96)}, "must be a crop of one size"),
        ({"crop": AspectBuckets(256)}, "must be a crop of one size"),
        ({"crop": Progressive(ScaleJitter(96), {3: 64})}, "Put Progressive around CopyPaste"),
        ({"crop": ScaleJitter(96), "p": 1.5}, "p=1.5 must be a probability"),
        ({"crop": ScaleJitter(96), "max_objects": 0}, "max_objects=0 of CopyPaste"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(ValueError, match=text):
        CopyPaste(**options)
