"""decode="device": the bytes of decode="cpu", from tiles that workers gather; what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers.caches import CODECS, tiles_of, write_cache
from helpers.loaders import RUNNERS, digest, load, name_of
from helpers.own_source import OwnSource
from helpers.pictures import saved
from helpers.small_tars import sample, write_tar
from PIL import Image
from tarpeg import (
    AspectBuckets,
    CenterCrop,
    Loader,
    Mixture,
    MixtureLoader,
    Progressive,
    RandomCrop,
    RandomResizedCrop,
    Split,
    Target,
    Whole,
)
from tarpeg.loader import gathering
from tarpeg.loader.arrivals import GatheredImages
from tarpeg.ops import gather
from tarpeg.shards.mapped import Shards

HERE = {"workers": 0, "threads": 0}
CROPS = {
    "random": {},
    "centre": {"crop": CenterCrop(32, shorter=48), "flip": 0.0},
    "exact": {"fidelity": "exact", "interpolation": "bicubic"},
    "nearest": {"interpolation": "nearest"},
    "gray": {"channels": 1},
    "unchanged": {"crop": RandomCrop(24)},
    "whole": {"crop": Whole((30, 41))},
    "growing": {"crop": Progressive(RandomResizedCrop(24), {0: 16, 1: 24})},
    "buckets": {"crop": AspectBuckets(resolution=64, step=16, upscale=True)},
    "views": {"crop": [RandomResizedCrop(32), RandomResizedCrop(16), RandomResizedCrop(32), CenterCrop(16)]},
    "repeats": {"repeats": 2},
}


@pytest.fixture(scope="module", params=sorted(CODECS))
def cache(request, tmp_path_factory):
    return write_cache(tmp_path_factory.mktemp(request.param) / "c", request.param)


@pytest.fixture(scope="module")
def tiled(tmp_path_factory):
    return write_cache(tmp_path_factory.mktemp("tiled") / "c", "tiled")


def both(source, *, epochs=2, **options):
    """Digests of the same epochs, decoded by the workers and on the device."""
    found = []
    for decode in ("cpu", "device"):
        loader = load(source, decode=decode, **options)
        found.append([digest(loader) for _ in range(epochs)])
        loader.close()
    return found


def gathered_batches(source, **options):
    """The batches of an epoch as they are before they are decoded."""
    loader = load(source, decode="device", **{**HERE, **options})
    loader.yields_gathered = True
    return list(loader)


@pytest.mark.parametrize("name", CROPS)
def test_the_bytes_are_those_of_the_workers(cache, name):
    expected, found = both(cache, **HERE, **CROPS[name])
    assert found == expected


@pytest.mark.sweep
@pytest.mark.parametrize("runner", RUNNERS[1:], ids=name_of)
def test_the_same_bytes_for_any_runner(tiled, runner):
    assert both(tiled, **runner)[1] == both(tiled, **HERE)[0]


def test_nothing_is_decoded_by_the_worker(cache):
    for name in ("random", "exact", "gray", "views"):
        for batch in gathered_batches(cache, **CROPS[name]):
            assert isinstance(batch.image, GatheredImages) and len(batch.image) == len(batch.label)
            assert batch.image.pieces.rows == [] and batch.image.pixels == []
            assert 0 < len(batch.image.data) < 100_000


@pytest.mark.parametrize("workers", [0, 1])
def test_chunks_come_with_the_tiles(cache, workers, monkeypatch):
    monkeypatch.setattr(gather, "_BUDGET", 10_000)
    options = {"workers": workers, "threads": 0, **CROPS["views"]}
    for batch in gathered_batches(cache, **options):
        for piece, shape in zip(batch.image.pieces.places, batch.image.shapes, strict=True):
            images = np.prod(shape[:-3])
            assert piece.chunks[0] == 0 and 1 < len(piece.chunks) <= images and piece.work > 0
    expected, found = both(cache, **options)
    assert found == expected


def own_source(paths):
    return OwnSource(Shards(paths))


class Reversed(Shards):
    """Shards with the images of other samples."""

    def images(self, ids, *, check=True):
        return super().images(len(self) - 1 - np.asarray(ids), check=check)

    def sizes(self, ids):
        return super().sizes(len(self) - 1 - np.asarray(ids))


@pytest.mark.parametrize("kind", [own_source, Reversed])
def test_the_images_are_those_of_a_source_of_the_user(tiled, kind):
    expected, found = both(kind(sorted(tiled.glob("*.tar"))), **HERE)
    assert found == expected
    assert (found == both(tiled, **HERE)[0]) == (kind is own_source)


def test_it_goes_on_after_a_resume(tiled):
    loader = load(tiled, decode="device", **HERE)
    batches = iter(loader)
    expected = [batch.image for batch in batches]
    loader = load(tiled, decode="device", **HERE)
    for _ in zip(range(2), loader, strict=False):
        pass
    other = load(tiled, decode="device", **HERE)
    other.load_state_dict(loader.state_dict())
    assert all(map(torch.equal, [batch.image for batch in other], expected[2:]))
    cpu = load(tiled, **HERE)
    cpu.load_state_dict(loader.state_dict())
    assert all(map(torch.equal, [batch.image for batch in cpu], expected[2:]))


def test_an_iterator_can_be_closed(tiled):
    loader = load(tiled, decode="device", **HERE)
    batches = iter(loader)
    first = next(batches).image
    batches.close()
    assert next(batches, None) is None
    assert torch.equal(next(iter(load(tiled, **HERE))).image, first)


def test_augment_gets_the_same_images(tiled):
    for augment in (tarpeg.Augment(), tarpeg.Augment(flip=0.5, erase=tarpeg.Erase()), None):
        split, found = Split(tiled, RandomResizedCrop(32), flip=0.5), []
        for decode in ("cpu", "device"):
            loader = Loader(split, 4, augment=augment, workers=1, decode=decode, device="cpu")
            found.append(list(loader))
            loader.close()
        for one, other in zip(*found, strict=True):
            assert one.image.dtype == other.image.dtype and one.image.stride() == other.image.stride()
            assert torch.equal(one.image, other.image) and torch.equal(one.label, other.label)


class Centres(Target):
    """The centre of each image."""

    def read(self, source, ids):
        return [[[width / 2, height / 2]] for height, width in source.sizes(ids)]

    def move(self, value, view):
        return view.points(value)


def test_targets_move_with_their_images(cache):
    found = []
    for decode in ("cpu", "device"):
        split = Split(cache, RandomResizedCrop(32), flip=0.5, targets=Centres())
        loader = Loader(split, 4, workers=1, decode=decode, augment=tarpeg.Augment(flip=0.5))
        found.append(list(loader))
        loader.close()
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.image, other.image)
        assert all(map(np.array_equal, one.targets, other.targets))


@pytest.mark.parametrize("workers", [0, 1])
def test_masks_lie_behind_what_is_gathered(tmp_path, workers):
    members = []
    for number in range(12):
        members += sample(number, tiles_of(number))
        size = tarpeg.image_sizes([torch.frombuffer(bytearray(tiles_of(number)), dtype=torch.uint8)])[0]
        mask = np.arange(size.prod(), dtype=np.uint8).reshape(*size.tolist())
        members.append((f"k{number:04d}.png", saved(Image.fromarray(mask), "PNG")))
    shard, found = write_tar(tmp_path / "a.tar", members), []
    for decode in ("cpu", "device"):
        split = Split(shard, RandomResizedCrop(32), flip=0.5, targets=tarpeg.Masks("png"))
        loader = Loader(split, 4, workers=workers, decode=decode)
        found.append(list(loader))
        loader.close()
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.image, other.image) and torch.equal(one.targets, other.targets)


def test_what_has_no_tiles_is_decoded_by_the_worker_and_said_once(tmp_path):
    png = saved(Image.fromarray(np.full((70, 60, 3), 90, np.uint8)), "PNG")
    cmyk = saved(Image.new("CMYK", (64, 64), (9, 80, 3, 20)), "JPEG")
    others = {"k0001": sample(1)[0][1], "k0005": cmyk, "k0009": sample(8)[0][1][:-300]}
    cache = write_cache(tmp_path / "c", "tiled", 13, **others)
    members = [*sample(20, tiles_of(20)), *sample(21, png, "png")]
    write_tar(cache / "z.tar", members)
    for crops in (None, CROPS["views"]["crop"]):
        with pytest.warns(UserWarning, match=r"k00\d\d'?: with decode='device'.*no tiles that") as warned:
            expected, found = both(cache, crop=crops, **HERE)
        assert found == expected
        assert len([each for each in warned if "decode='device'" in str(each.message)]) == 1
    batches = gathered_batches(cache, shuffle=False)
    assert [batch.image.pieces.rows for batch in batches] == [[1], [1], [1], [2]]


@pytest.mark.filterwarnings("ignore:.*have no room in the memory")
def test_what_has_no_room_is_decoded_by_the_worker(tiled, monkeypatch):
    expected = both(tiled, **HERE)[0]
    monkeypatch.setattr(gathering, "_SPREAD", 0.5)
    monkeypatch.setattr(gathering, "_RECORD", 600)
    with pytest.warns(UserWarning, match="k00.*its tiles have no room in the memory of the batch"):
        both(tiled, crop=Whole(32), **HERE)
    rows = [len(batch.image.pieces.rows) for batch in gathered_batches(tiled, crop=Whole(32))]
    assert 0 < sum(rows) < 23
    assert both(tiled, **HERE)[1] == expected
    expected, found = both(tiled, crop=Whole(32), **HERE)
    assert found == expected


def test_the_table_of_lanczos_has_room(tiled, monkeypatch):
    options = {"interpolation": "lanczos", "batch_size": 1, **HERE}
    expected, found = both(tiled, epochs=1, **options)
    assert found == expected
    rows = [
        batch.image.pieces.rows for batch in gathered_batches(tiled, interpolation="lanczos", batch_size=1)
    ]
    assert not any(rows)
    monkeypatch.setattr(gathering, "_LANCZOS", 0)
    with pytest.warns(UserWarning, match="have no room"):
        expected, found = both(tiled, epochs=1, **options)
    assert found == expected, "with no room at all workers decode"


def test_a_kept_batch_is_decoded_later(tiled):
    loader = load(tiled, decode="device", workers=1)
    loader.yields_gathered = True
    kept = list(loader)  # more than are lent: copies
    loader.close()
    images = [loader.arrived(batch).image for batch in kept]
    assert all(map(torch.equal, images, [batch.image for batch in load(tiled, **HERE)]))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"streaming": True}, "streaming="),
        ({"transform": [lambda image: image]}, "steps of transform= that need pixels"),
        ({"crop": tarpeg.Patches(16, [32], max_tokens_per_batch=256), "flip": 0.0}, "Patches"),
        ({"fidelity": "exact", "crop": CenterCrop(32, shorter=48)}, "fidelity='exact'"),
        ({"crop": tarpeg.Mosaic(32), "target": None}, "several samples"),
        ({"crop": RandomCrop(200, padding=100)}, "which pads"),
    ],
)
def test_what_only_workers_can_make_is_refused(tiled, options, reason):
    with pytest.raises(ValueError, match=rf"(?s){reason}.*decode='cpu'"):
        load(tiled, decode="device", **HERE, **options)


def test_the_plans_say_where_images_are_decoded(tiled):
    split = Split(tiled, RandomResizedCrop(32), transform=None)
    assert "on the device" not in str(split.plan(measure=False))
    line = str(split.plan(decode="device"))
    assert "RandomResizedCrop" in line and "on the device of the batch" in line and "us per image" not in line
    refused = Split(tiled, RandomResizedCrop(32), transform=lambda image: image)
    assert "decode='device' refuses" in str(refused.plan(decode="device", measure=False))
    for decode, found in (("cpu", False), ("device", True)):
        plan = str(tarpeg.plan_epoch(load(tiled, decode=decode, **HERE)))
        assert ("batches are decoded on their device" in plan) == found


def test_shards_without_tiles_are_refused_with_what_to_do(photos, tiled):
    with pytest.raises(ValueError, match=r"decode='device': .*a\.tar.*k0000.*NOT_GATHERED.*build_cache"):
        load(photos, decode="device", **HERE)
    with pytest.raises(ValueError, match=r"decode='gpu' must be 'auto', 'cpu' or 'device'"):
        load(tiled, decode="gpu")
    with pytest.raises(ValueError, match=r"decode=<built-in.*belongs to Split\(decode="):
        tarpeg.LoaderConfig(decode=len)
    with pytest.raises(ValueError, match="Where images are decoded is the decode= of ShardDataModule"):
        Split(tiled, CenterCrop(32), decode="device")
    mixture = Mixture({"a": Split(tiled, CenterCrop(32))}, repeat={"a": 1})
    with pytest.raises(ValueError, match=r"decode='device' is for loaders of one split.*decode='cpu'"):
        MixtureLoader(mixture, 4, config=tarpeg.LoaderConfig(decode="device"))
