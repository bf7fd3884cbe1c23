"""Sizes and crops in the batch, SDXL's conditions: those of the views, for any runner."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tarpeg
import torch
from helpers.loaders import load
from helpers.pictures import jpeg
from helpers.small_tars import write_tar
from tarpeg import AspectBuckets, CenterCrop, Loader, RandomResizedCrop, SizeAndCrop, Split, Text

CROP = AspectBuckets(64, step=16, upscale=True)
HERE = {"workers": 0, "threads": 0}


def by_hand(view, row):
    """As diffusers' script: the source is mirrored, resized, and cropped."""
    (height, width), (top, left, box_height, box_width) = view.sizes[row].tolist(), view.boxes[row].tolist()
    if view.flips[row]:
        left = width - left - box_width
    down, across = view.size[0] / box_height, view.size[1] / box_width
    return [height, width, int(np.floor(top * down + 0.5)), int(np.floor(left * across + 0.5)), *view.size]


@pytest.mark.parametrize("crop", [CROP, RandomResizedCrop(32)], ids=["buckets", "crop"])
def test_the_numbers_are_those_of_the_view(photos, crop):
    loader = load(photos, crop, members=SizeAndCrop(), **HERE)
    plain = load(photos, crop, **HERE)
    flips = []
    for batch, other in zip(loader, plain, strict=True):
        (view,) = loader.claim().views
        assert type(batch) is tarpeg.ExtraBatch and torch.equal(batch.image, other.image)
        assert batch.key == other.key and batch.extra.dtype == torch.int64
        assert batch.extra.tolist() == [by_hand(view, row) for row in range(len(view))]
        flips += view.flips.tolist()
    assert {True, False} == {*flips}
    workers = load(photos, crop, members=SizeAndCrop(), workers=2)
    assert [b.extra.tolist() for b in workers] == [b.extra.tolist() for b in loader_again(photos, crop)]
    workers.close()


def loader_again(photos, crop):
    return load(photos, crop, members=SizeAndCrop(), **HERE)


def test_beside_captions_and_after_a_broken_image(tmp_path):
    members = []
    for number in range(9):
        data = b"broken" if number == 4 else jpeg("420", 60 + 9 * number, 90, number)
        members += [
            (f"k{number}.jpg", data),
            (f"k{number}.json", json.dumps({"text": f"c{number}"}).encode()),
        ]
    source = write_tar(tmp_path / "a.tar", members)
    given = {"caption": Text("json:text"), "size": SizeAndCrop(), "again": SizeAndCrop()}
    for on_error, training in (("substitute", True), ("leave_out", False)):
        with pytest.warns(UserWarning, match="'k4'"):
            loader = load(
                source,
                CenterCrop(32),
                shuffle=training,
                target=None,
                members=given,
                on_error=on_error,
                **HERE,
            )
            batches = list(loader)
        for batch in batches:
            assert batch.extra["caption"] == [f"c{key[1:]}" for key in batch.key]
            assert batch.extra["size"][:, 0].tolist() == [60 + 9 * int(key[1:]) for key in batch.key]
            assert torch.equal(batch.extra["again"], batch.extra["size"])
    split = Split(source, CenterCrop(32), target=None, members={"size": SizeAndCrop()})
    (batch, *_) = Loader(split, batch_size=3, training=False, workers=0, device="cpu")
    assert batch.extra["size"].shape == (3, 6)


def test_refused(photos):
    cases = [
        ({"views": 2}, "views="),
        ({"image": ["left.jpg", "right.jpg"]}, "image="),
        ({"transform": torch.abs}, "transform= with steps in Python"),
        ({"crop": tarpeg.Patches(16, [16], 64)}, "crop=Patches"),
        ({"crop": tarpeg.Mosaic(32), "target": None}, "crop=Mosaic"),
    ]
    for options, name in cases:
        with pytest.raises(ValueError, match=rf"members=SizeAndCrop\(\) and {name}.*one crop"):
            Split(photos, **{"crop": RandomResizedCrop(32), "members": SizeAndCrop(), **options})
    with pytest.raises(ValueError, match="decode="):
        Split(photos, CROP, members=SizeAndCrop(), decode=dict)
    with pytest.raises(ValueError, match=r"Mixture has members=SizeAndCrop\(\)"):
        crop = RandomResizedCrop(32)
        tarpeg.Mixture({"a": Split(photos, crop, members=SizeAndCrop())}, weights={"a": 1})
