"""Members that mark places in the image, beside what moves the image: a warning at the first batch."""

from __future__ import annotations

import json
import warnings

import pytest
import tarpeg
from helpers.pictures import jpeg
from tarpeg import Affine, Augment, CenterCrop, ColorJitter, RandAugment, RandomCrop, Split
from torchvision.transforms import v2

PLACES = {"json": json.dumps({"boxes": [[1, 2, 3, 4]]}).encode(), "mask.png": b"a mask", "npy": b"an array"}
OTHERS = {"json": b'{"caption": "boxes"}', "txt": b'a "mask"', "cls": b"3"}


def fields(key, members):
    return json.loads(members["json"])


@pytest.fixture
def shard(shard_of):
    def write(members):
        found = {"jpg": jpeg("420", 40, 40), "cls": b"3", **members}
        samples = [[(f"k{n}.{name}", content) for name, content in found.items()] for n in range(4)]
        return shard_of(*samples)

    return write


def warned(split, augment=None, training=True):
    """The warnings about members in two epochs."""
    loader = tarpeg.Loader(split, 2, training=training, augment=augment, workers=0)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            assert len(list(loader)) == 2
    return [text for text in map(str, (each.message for each in found)) if "member" in text]


@pytest.mark.parametrize("member", PLACES)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_random_crop_leaves_a_member_where_it_was(shard, member, streaming):
    split = Split(shard(PLACES), RandomCrop(16), members=[member], streaming=streaming)
    (text,) = warned(split)
    assert f"'{member}'" in text and "RandomCrop(" in text
    assert "tarpeg.Target" in text and "Split(targets=...)" in text


@pytest.mark.parametrize(
    ("options", "augment", "mover"),
    [
        ({"flip": 0.5}, None, "flip=0.5"),
        ({"transform": v2.RandomRotation(20)}, None, "transform="),
        ({"transform": RandAugment()}, None, "transform="),
        ({}, Augment(affine=Affine(degrees=20)), "augment="),
        ({}, [Augment(flip=0.5)], "augment="),
        ({}, Augment(policy=RandAugment()), "augment="),
    ],
    ids=str,
)
def test_whatever_moves_the_images(shard, options, augment, mover):
    path = shard(PLACES)
    (text,) = warned(Split(path, CenterCrop(16), members=["json"], decode=fields, **options), augment)
    assert mover in text
    assert not warned(Split(path, CenterCrop(16), members=["json"]), augment, training=False)


@pytest.mark.parametrize("member", OTHERS)
def test_members_without_places_have_no_warning(shard, member):
    assert not warned(Split(shard(OTHERS), RandomCrop(16), flip=0.5, members=[member, "png?"]))


def test_nothing_that_moves_the_images_is_no_warning(shard):
    split = Split(shard(PLACES), CenterCrop(16), members=list(PLACES))
    assert not warned(split, Augment(color=ColorJitter(0.4)))


def test_a_data_module_counts_its_augment(shard):
    split = Split(shard(PLACES), CenterCrop(16), members=["npy"])
    data = tarpeg.ShardDataModule(split, batch_size=2, workers=0, augment=Augment(flip=0.5))
    with pytest.warns(UserWarning, match=r"train: augment= .*'npy'"):
        next(data.augmented(data.train_dataloader()))
