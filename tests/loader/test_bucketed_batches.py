"""Batches of one shape each, by the ratios of the images: pixels, ranks, resume, broken images, targets."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tarpeg
import torch
from helpers.pictures import jpeg, picture, tensor
from tarpeg import AspectBuckets, Augment, Boxes, Loader, LoaderConfig, RandomCrop, ShardError, Split
from torchvision.transforms import v2

KINDS = ["420", "444", "422", "progressive", "gray22", "411", "440", "cmyk"]
RNG = np.random.default_rng(2)
SHAPES = [tuple(side) for side in RNG.integers(33, 130, (30, 2)).tolist()]
BUCKETS = [(32, 64), (48, 48), (64, 32)]
CROP = AspectBuckets(buckets=BUCKETS, upscale=True)


class Pictures(tarpeg.Source):
    """JPEGs of several samplings and shapes, with a PNG and one on its side among them."""

    def __init__(self, broken=(), count=30):
        shapes = SHAPES[:count]
        self.files = [jpeg(KINDS[seed % 8], *shape, seed) for seed, shape in enumerate(shapes)]
        self.files += [picture("PNG", 5, size=(44, 61)), picture("JPEG", 6, size=(44, 81), orientation=6)]
        self.files = [b"broken" if id in broken else file for id, file in enumerate(self.files)]

    def __len__(self):
        return len(self.files)

    def keys(self, ids):
        return [str(id) for id in ids]

    def members(self, ids, extension):
        boxes = [{"bbox": [3, 2, 12, 9], "category_id": 1}]
        content = {"cls": b"7", "json": json.dumps({"objects": boxes}).encode()}
        return [self.files[id] if extension == "jpg" else content.get(extension) for id in ids]

    def extensions(self, id):
        return ["jpg", "cls", "json"]


def batches(loader, epochs=1):
    """What comes: shape, bytes of the images, ids and drawn views."""
    found = []
    for _ in range(epochs):
        for batch in loader:
            request = loader.claim()
            found.append((batch, request))
    loader.close()
    return found


def flat(found):
    return [
        (batch.image.shape, batch.image.numpy().tobytes(), request.ids.tolist()) for batch, request in found
    ]


@pytest.mark.parametrize("fidelity", ["fast", "exact"])
def test_pixels_are_those_of_box_and_shape(fidelity):
    source = Pictures()
    loader = Loader(Split(source, CROP, flip=0.5, fidelity=fidelity), batch_size=5, workers=0)
    found = batches(loader)
    assert len(found) == len(loader)
    assert sorted(id for _, request in found for id in request.ids.tolist()) == list(range(32))
    expected = CROP.shapes_of(source.sizes(range(32)))
    for batch, request in found:
        (view,) = request.views
        assert view.size == request.size == tuple(batch.image.shape[2:])
        assert (expected[request.ids] == request.size).all()
        for row, id in enumerate(request.ids.tolist()):
            file = source.files[id]
            if not file.startswith(b"\xff\xd8"):
                image = tarpeg.shards.pillow.open_upright(file, 10**6).convert("RGB")
                file = tarpeg.shards.pillow.ppm(image)
            given = (
                torch.from_numpy(view.boxes[row : row + 1]),
                view.size,
                torch.from_numpy(view.flips[row : row + 1]),
            )
            image, status = tarpeg.decode_batch([tensor(file)], *given, fidelity=fidelity)
            assert status.tolist() == [0] and torch.equal(batch.image[row], image[0])


def test_the_same_for_workers_ranks_and_after_a_resume():
    split = Split(Pictures(), CROP, flip=0.5)
    whole = flat(batches(Loader(split, batch_size=6, workers=0), epochs=2))
    assert flat(batches(Loader(split, batch_size=6, workers=2), epochs=2)) == whole
    for world in (2, 3):
        config = LoaderConfig(global_batch_size=6, workers=0)
        ranks = [batches(Loader(split, config=config, rank=rank, world=world)) for rank in range(world)]
        shapes = [[batch.image.shape[2:] for batch, _ in rank] for rank in ranks]
        assert all(each == shapes[0] for each in shapes)
        seen = [id for rank in ranks for _, request in rank for id in request.ids.tolist()]
        assert sorted(seen) == list(range(32))
    count = len(whole) // 2
    for first in range(1, count):
        loader = Loader(split, batch_size=6, workers=0)
        iterator = iter(loader)
        for _ in range(first):
            next(iterator)
        state = loader.state_dict()
        again = Loader(split, batch_size=6, workers=0)
        again.load_state_dict(state)
        assert flat(batches(again)) == whole[first:count]


def test_a_state_of_other_buckets_is_refused():
    loader = Loader(Split(Pictures(), CROP), batch_size=6, workers=0)
    next(iter(loader))
    state = loader.state_dict()
    for crop in (AspectBuckets(buckets=BUCKETS[:2], upscale=True), RandomCrop(32)):
        with pytest.raises(tarpeg.ResumeError, match="order"):
            Loader(Split(Pictures(), crop), batch_size=6, workers=0).load_state_dict(state)


def test_a_broken_image_is_replaced_in_the_shape_of_its_batch():
    loader = Loader(Split(Pictures(broken=[3, 11]), CROP), batch_size=5, workers=0)
    with pytest.warns(UserWarning, match="NOT_JPEG|UNSUPPORTED|NO_IMAGE|is "):
        found = batches(loader)
    assert sum(len(request.ids) for _, request in found) == 32
    assert loader.substituted == 2


def test_targets_and_augmentation_follow():
    split = Split(Pictures(), CROP, flip=0.5, targets=Boxes("json:objects", min_size=0))
    for batch, request in batches(Loader(split, batch_size=5, workers=0)):
        for row, target in enumerate(batch.targets):
            moved, _ = request.views[0].row(row).rectangles([[3, 2, 15, 11]])
            assert target["size"].tolist() == list(request.size)
            if len(target["boxes"]):
                assert np.allclose(target["boxes"][0].numpy(), moved[0], atol=1e-4)
    for augment in (Augment(), None):
        split = Split(Pictures(), CROP, transform=v2.Compose([v2.RandomInvert(), v2.RandomPosterize(3)]))
        loader = Loader(split, batch_size=5, workers=0, augment=augment)
        shapes = {tuple(images.shape[2:]) for images, _ in loader}
        assert shapes == set(BUCKETS)


def test_views_have_the_shape_of_the_batch():
    loader = Loader(Split(Pictures(), CROP, views=2), batch_size=5, workers=0)
    assert {tuple(batch.image.shape[3:]) for batch, _ in batches(loader)} == set(BUCKETS)


def test_an_image_without_a_bucket_is_named_with_the_nearest():
    crop = AspectBuckets(buckets=[(64, 64), (64, 128)])
    with pytest.raises(ShardError, match=r"(?s)Pictures.*fits into no bucket.*nearest is 64 x") as error:
        Loader(Split(Pictures(), crop), workers=0)
    assert "AspectBuckets(upscale=True)" in str(error.value) and "a smaller bucket" in str(error.value)
    with pytest.raises(ShardError, match=r"of 44 x 61 fits into no bucket; .* or a smaller step=; or"):
        Loader(Split(Pictures(), AspectBuckets(64, 50), subset=[30]), workers=0)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"weights": [1.0] * 32}, "weights"),
        ({"repeats": 2}, "repeats"),
        ({"crop": [CROP, RandomCrop(64)]}, "AspectBuckets"),
        ({"crop": [CROP, AspectBuckets(64, 32)]}, "AspectBuckets"),
    ],
)
def test_settings_that_do_not_go_together(settings, name):
    with pytest.raises(ValueError, match=name):
        Split(Pictures(), **{"crop": CROP, **settings})


def test_sizes_change_with_buckets_alone():
    with pytest.raises(ValueError, match="size"):
        tarpeg.Progressive(CROP, {0: 32})


def test_the_shapes_are_known_before():
    loader = Loader(Split(Pictures(), CROP), batch_size=5, workers=0)
    assert set(loader.shapes) == set(BUCKETS) and sum(loader.shapes.values()) == len(loader)
    assert "of 3 shapes" in repr(loader)
    assert Loader(Split(Pictures(), RandomCrop(32)), workers=0).shapes == {}
