"""Splits: views, sizes by epoch, subsets and weights of the samples, members."""

from __future__ import annotations

import functools
import pickle
import re
from typing import get_args

import numpy as np
import pytest
import torch
from helpers import loaders
from helpers.loaders import ALL, digest, keys_of
from helpers.pictures import jpeg
from helpers.small_tars import sample
from hydra.utils import instantiate
from omegaconf import OmegaConf
from tarpeg import (
    Blocks,
    CenterCrop,
    ExtraBatch,
    Progressive,
    RandomResizedCrop,
    RandomShortestSize,
    ShardError,
    Split,
    Whole,
    decode_batch,
    image_sizes,
)
from tarpeg.loader import split as split_module
from tarpeg.loader.fetch import Fetcher
from tarpeg.ops import decode
from tarpeg.sampling.sampler import Request
from tarpeg.shards.mapped import Shards
from tarpeg.transforms.pixels import PixelFormat

SMALL = RandomResizedCrop(32)
SHORTEST = RandomShortestSize([8, 9], 20)


load = functools.partial(loaders.load, workers=0, max_bad=1.0)


OPTIONS = {
    "full": {},
    "blocks": {"shuffle": "blocks"},
    "small blocks": {"shuffle": Blocks(3, 2)},
    "subset": {"subset": 0.5},
    "weights": {"weights": np.arange(23.0)},
    "repeats": {"repeats": 3, "shuffle": Blocks(3, 2)},
    "gray": {"channels": 1, "views": 2},
    "views": {"views": 3},
    "progressive": {"crop": Progressive(SMALL, {0: 16, 1: 24})},
    "json": {"target": ["cls", "cls"]},
    "extra": {"members": ["cls"], "decode": lambda key, members: (key, members["cls"])},
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_bytes_for_any_number_of_workers(photos, name):
    digests = {digest(load(photos, workers=workers, **OPTIONS[name])) for workers in (0, 1, 2)}
    assert len(digests) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 4, 30])
@pytest.mark.parametrize("name", ["full", "small blocks", "subset", "weights", "repeats"])
def test_the_planned_samples_over_all_ranks(photos, name, batch_size, world):
    options = {"batch_size": batch_size, **OPTIONS[name]}
    whole = sorted(keys_of(load(photos, **options)))
    assert name != "full" or whole == ALL
    loaders = [load(photos, rank=rank, world=world, **options) for rank in range(world)]
    ranks = [[batch.key for batch in loader] for loader in loaders]
    assert {len(loader) for loader in loaders} == {len(keys) for keys in ranks} == {len(ranks[0])}
    steps = list(zip(*ranks, strict=True))
    assert sorted(key for step in steps for keys in step for key in keys) == whole
    for sizes in ([len(keys) for keys in step] for step in steps):
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


class OwnCrop:
    """A crop of a user's, with any size."""

    draws, boxes = 0, None

    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"flip": 1.5}, r"flip=1\.5 must be a probability"),
        ({"flip": True}, "flip=True must be a probability"),
        ({"crop": 224}, "crop=224 must have size, draws and boxes"),
        ({"crop": [CenterCrop(8), 224]}, "crop=224 must have size, draws and boxes"),
        ({"subset": 1.5}, r"subset=1\.5"),
        ({"subset": 1}, r"subset=1: .*1\.0 or None .*\[1\]"),
        ({"shuffle": "block"}, "shuffle='block' must be"),
        (
            {"crop": [SMALL, Progressive(SMALL, {7: 8})]},
            r"\[\[0, 1\]\] in epoch 0 .*\[\[0\], \[1\]\] in epoch 7",
        ),
        ({"crop": []}, r"crop=\[\] is empty: give a crop, or one per view"),
        *(
            ({"crop": OwnCrop(size)}, "crop=.* has size=.*: it must be")
            for size in (None, 8, (0, 4), (4.5, 4), (4,))
        ),
        ({"crop": [SMALL] * 2, "views": 3}, "views=3, but crop= has 2 crops"),
        *(
            ({"crop": crop, "views": 2}, "draws a size for each view")
            for crop in (SHORTEST, Progressive(SMALL, {1: SHORTEST}))
        ),
        *(({"views": n}, f"views={n!r} must be an integer of at least 1") for n in (0, True, 1.5)),
        *(({"repeats": n}, f"repeats={n!r} must be an integer of at least 1") for n in (0, 1.5, True, "3")),
        ({"repeats": 2, "weights": [1.0]}, r"repeats=2 and weights=\[1\.0\]"),
        ({"repeats": 2, "streaming": True}, "repeats=2 .*streaming=True"),
        ({"repeats": 2, "shuffle": False}, "repeats=2 needs shuffle=True or 'blocks'"),
        *(({"channels": n}, f"channels={n!r} must be 3, RGB, or 1, gray") for n in (2, True, 1.0, "1")),
        ({"fidelity": "best"}, "fidelity='best' must be 'fast' or 'exact'"),
        (
            {"interpolation": "cubic"},
            "interpolation='cubic' must be one of 'bilinear', 'bicubic', 'lanczos',",
        ),
        *(({"shards": empty}, f"shards={empty!r} must be a folder") for empty in ("", None, b"x", 5)),
        ({"shards": [b"x"]}, r"shards=\[b'x'\] must be a folder"),
        ({"members": "json"}, "members='json' must be a list"),
        *(({"members": [name]}, "members=.* must be a list of extensions") for name in ("?", ".?", 5)),
        ({"decode": print}, r"decode=.*members= must list"),
    ],
)
def test_wrong_settings(settings, text):
    with pytest.raises(ValueError, match=text):
        Split(**{"shards": "x", "crop": SMALL, **settings})


# --- subsets and weights


def test_what_stands_in_for_a_broken_image_is_of_the_subset(shard_of):
    path = shard_of(*(sample(n, b"" if n in (0, 1, 2) else None) for n in range(30)))
    for options in ({"subset": [0, 1, 2, 7]}, {"weights": [1, 1, 1, *[0] * 4, 1, *[0] * 22]}):
        with pytest.warns(UserWarning, match="'k0007' takes its place"):
            assert set(keys_of(load(path, shuffle=False, **options))) == {"k0007"}


def test_another_occurrence_is_another_crop(shard_of):
    path = shard_of(sample(0), sample(1))
    (batch,) = load(path, weights=[1, 0], batch_size=2)
    assert batch.key == ["k0000", "k0000"]
    assert not torch.equal(batch.image[0], batch.image[1])
    (alone,) = load(path, subset=[0])
    same = [torch.equal(image, alone.image[0]) for image in batch.image]
    assert sum(same) == 1, "the first is as without weights"


# --- repeated augmentation


def test_repeats_are_other_crops_on_other_ranks(photos):
    alone = [key for batch in load(photos, repeats=3) for key in batch.key]
    assert len(alone) == 23 and alone[:21:3] == alone[1:21:3] == alone[2:21:3] and len(set(alone)) == 8
    options = {"repeats": 3, "batch_size": 2, "world": 3}
    for batches in zip(*(load(photos, rank=rank, **options) for rank in range(3)), strict=True):
        for row in range(min(len(batch.key) for batch in batches)):
            assert len({batch.key[row] for batch in batches}) == 1, "one sample, on every rank"
            first, second, third = (batch.image[row] for batch in batches)
            assert not torch.equal(first, second) and not torch.equal(second, third)


# --- gray


@pytest.mark.parametrize("pixels", [{}, {"mean": (0.4,), "std": (0.2,), "dtype": torch.float32}])
def test_gray_batches_are_those_of_decode_batch(photos, pixels):
    options = {"channels": 1, "shuffle": False, "flip": 0.0, "interpolation": "bicubic"}
    loader = load(photos, CenterCrop(24), pixels=PixelFormat(**pixels), **options)
    files = Shards.images(loader.fetcher.shards, np.arange(4))
    batch = next(iter(loader))
    boxes = CenterCrop(24).boxes(image_sizes(files).numpy(), np.empty((4, 0)))
    arguments = {"channels": 1, "interpolation": "bicubic", **pixels}
    expected, _ = decode_batch(files, torch.from_numpy(boxes), 24, **arguments)
    assert batch.image.shape == (4, 1, 24, 24) and torch.equal(batch.image, expected)


def test_gray_views_of_several_sizes(photos):
    crops = [RandomResizedCrop(32)] * 2 + [RandomResizedCrop(16)]
    both = next(iter(load(photos, crops, channels=1)))
    assert [tuple(part.shape) for part in both.image] == [(2, 4, 1, 32, 32), (1, 4, 1, 16, 16)]
    alone = next(iter(load(photos, RandomResizedCrop(32), channels=1, views=2)))
    assert torch.equal(both.image[0], alone.image)
    color = next(iter(load(photos, crops)))
    for gray, rgb in zip(both.image, color.image, strict=True):
        assert (gray.float() - rgb.float().mean(2, keepdim=True)).abs().mean() < 40


def test_gray_streams(photos):
    options = {"channels": 1, "shuffle": False, "flip": 0.0}
    streamed, indexed = (
        load(photos, CenterCrop(24), streaming=is_stream, **options) for is_stream in (True, False)
    )
    assert digest(streamed) == digest(indexed)


# --- views


@pytest.mark.parametrize("batch_size", [1, 4])
def test_views_are_crops_of_the_same_images(photos, batch_size):
    loaders = (load(photos, views=views, batch_size=batch_size) for views in (3, 1))
    for several, single in zip(*loaders, strict=True):
        count = len(single.key)
        assert several.image.shape == (3, count, 3, 32, 32) and several.image.dtype == torch.uint8
        assert several.key == single.key and several.label.tolist() == single.label.tolist()
        assert torch.equal(several.image[0], single.image), "the first view is what there is without views"
        for view in several.image:
            assert view.is_contiguous(memory_format=torch.channels_last)
        for first, second, third in several.image.movedim(1, 0):
            assert not torch.equal(first, second) and not torch.equal(second, third)


def test_each_view_may_have_a_crop_of_its_own(photos):
    crops = [CenterCrop(32), RandomResizedCrop(32, scale=(0.08, 0.3)), Progressive(CenterCrop(8), {0: 32})]
    for batch, still in zip(
        load(photos, crops, flip=0.0), load(photos, CenterCrop(32), flip=0.0), strict=True
    ):
        assert torch.equal(batch.image[0], still.image) and torch.equal(batch.image[2], still.image)
        assert not torch.equal(batch.image[1], still.image)


def test_a_broken_image_is_replaced_in_all_its_views(shard_of):
    path = shard_of(sample(0), sample(1, b""), sample(2))
    with pytest.warns(UserWarning, match="takes its place"):
        (batch,) = load(path, CenterCrop(32), views=2, flip=0.0, shuffle=False)
    other = int(batch.key[1][1:])
    assert other in (0, 2)
    for view in batch.image:
        assert torch.equal(view[1], view[other])


@pytest.mark.parametrize("views", [1, 2])
def test_images_are_written_into_out(photos, views):
    split = Split(photos, SMALL, views=views)
    shards = split.open()
    fetcher = Fetcher(shards, split, seed=0, on_error="raise", keys=False)
    request = Request(2, np.array([4, 9, 1]))
    shape = fetcher.shape(request)
    assert shape == ((3, 3, 32, 32) if views == 1 else (2, 3, 3, 32, 32))
    out = torch.zeros(*shape[:-3], 32, 32, 3, dtype=torch.uint8).movedim(-1, -3)
    answer = pickle.loads(pickle.dumps(fetcher)).fetch(request, out)
    assert answer.batch.image.data_ptr() == out.data_ptr() and answer.batch.image.shape == out.shape
    assert torch.equal(out, fetcher.fetch(request).batch.image)


def test_what_views_read_is_read_once(photos, monkeypatch):
    asked = []
    images = Shards.images
    monkeypatch.setattr(Shards, "images", lambda self, ids: asked.append(len(ids)) or images(self, ids))
    list(load(photos, views=4, shuffle=False))  # what is shuffled goes on into the next epoch
    assert sum(asked) == 23


def test_interpolations_are_those_of_decode_batch():
    assert split_module.Interpolation == decode.Interpolation


@pytest.mark.parametrize("interpolation", get_args(decode.Interpolation))
def test_interpolation(photos, interpolation):
    split = Split(photos, Whole((24, 40)), interpolation=interpolation)
    shards = split.open()
    (batch,) = load(photos, split=split, shuffle=False, batch_size=23)
    files = shards.images(range(23))
    boxes = torch.cat((torch.zeros(23, 2, dtype=torch.int32), image_sizes(files)), 1)
    assert torch.equal(batch.image, decode_batch(files, boxes, (24, 40), interpolation=interpolation)[0])


def test_fidelity(photos):
    shards, batches = Split(photos, Whole(8)).open(), {}
    files = shards.images(range(23))
    boxes = torch.cat((torch.zeros(23, 2, dtype=torch.int32), image_sizes(files)), 1)
    for fidelity in ("fast", "exact"):
        split = Split(photos, Whole(8), fidelity=fidelity)
        (batch,) = load(photos, split=split, shuffle=False, batch_size=23)
        batches[fidelity] = batch.image
        assert torch.equal(batch.image, decode_batch(files, boxes, 8, fidelity=fidelity)[0])
    assert not torch.equal(*batches.values())


def test_progressive_from_hydra():
    text = """
    _target_: tarpeg.Split
    _convert_: all
    shards: x
    crop:
      _target_: tarpeg.Progressive
      crop: {_target_: tarpeg.RandomResizedCrop, size: 224}
      sizes: {0: 128, 10: [192, 160]}
    views: 2
    shuffle: blocks
    target: [cls, "json:a.b"]
    """
    split = instantiate(OmegaConf.create(text))
    assert [split.crop.at(epoch).size for epoch in (0, 10)] == [(128, 128), (192, 160)]


# --- members


def described(prefix, key, members):
    """A function ``decode`` as a user would write it."""
    return prefix + key + ":" + ",".join(f"{name}={content.decode()}" for name, content in members.items())


@pytest.mark.parametrize("workers", [0, 1])
def test_members_reach_a_function(shard_of, workers):
    members = [("a.jpg", jpeg("420", 40, 40)), ("a.cls", b"3"), ("a.txt", b"cat"), ("a.pyd", b"\x80evil")]
    path = shard_of(members, sample(1))
    decode = functools.partial(described, ">")
    settings = {"shuffle": False, "workers": workers}
    (batch,) = load(path, members=["cls", "txt?"], decode=decode, keys=False, **settings)
    assert type(batch) is ExtraBatch and batch._fields == ("image", "label", "key", "extra")
    assert batch.extra == [">a:cls=3,txt=cat", ">k0001:cls=1"] and batch.key == ["a", "k0001"]
    (batch,) = load(path, members=["pyd?", "txt?"], **settings)
    assert batch.extra == [{"pyd": b"\x80evil", "txt": b"cat"}, {}], "bytes as they are, and never unpickled"
    text = (
        f"{path}, key 'k0001' has no member 'txt', only ['jpg', 'cls']. Correct members=, or give 'txt?' if"
    )
    for split in ({}, {"streaming": True}):
        with pytest.raises(ShardError, match=re.escape(text)):
            list(load(path, members=["cls", "txt"], **settings, **split))


def test_an_error_of_decode_contains_shard_and_key(photos):
    def decode(key, members):
        return {}["field"]

    text = rf"^shard {re.escape(str(photos))}/a\.tar, key 'k0000': decode=<function .* KeyError: 'field'"
    with pytest.raises(ShardError, match=text):
        list(load(photos, shuffle=False, members=["cls"], decode=decode))
