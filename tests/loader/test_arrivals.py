"""decode="device": batches where they arrive, under Lightning too, and damage that only decoding finds."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers.caches import damaged, tiles_of, write_cache
from helpers.loaders import load
from helpers.training import Net, OfOwn, fitted, heavy, module, trainer
from tarpeg import CenterCrop, DecodeError, Loader, RandomResizedCrop, ShardDataModule, Split
from tarpeg.loader.arrivals import IGNORED, Arrivals

HERE = {"workers": 0, "threads": 0}
CENTRE = CenterCrop(64, shorter=64)
BAD = {"k0003": damaged(tiles_of(3)), "k0010": damaged(tiles_of(10))}

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's, and those of damage


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return write_cache(tmp_path_factory.mktemp("whole") / "c", "tiled")


@pytest.fixture(scope="module")
def rotten(tmp_path_factory):
    """A cache with two images that are damaged within their tiles."""
    return write_cache(tmp_path_factory.mktemp("rotten") / "c", "tiled", **BAD)


def whole(source, *, training=True, decode="device", crop=CENTRE, config=None, **split):
    settings = {"batch_size": 4, "on_error": "substitute", "max_bad": 0.5, **HERE, **(config or {})}
    return Loader(
        Split(source, crop, shuffle=False, **split),
        training=training,
        keys=not split,
        decode=decode,
        config=tarpeg.LoaderConfig(**settings),
    )


def same(one, other):
    assert len(one) == len(other)
    for batch, expected in zip(one, other, strict=True):
        assert batch.key == expected.key and torch.equal(batch.label, expected.label)
        assert torch.equal(batch.image, expected.image)


def test_in_training_a_damaged_image_is_zeros_with_an_ignored_label_and_is_counted(rotten):
    loader, cpu = whole(rotten), whole(rotten, decode="cpu")
    with pytest.warns(UserWarning, match=r"a\.tar, key 'k0003': image is \w+ \(\d+\).*label -100") as warned:
        batches = list(loader)
    assert sum("-100" in str(each.message) for each in warned) == 2 == loader.substituted
    for batch, expected in zip(batches, cpu, strict=True):
        for row, key in enumerate(batch.key):
            is_bad = key in BAD
            assert (int(batch.label[row]) == IGNORED) == is_bad
            assert bool(batch.image[row].any()) != is_bad
            assert is_bad or torch.equal(batch.image[row], expected.image[row])
    loss = torch.nn.functional.cross_entropy(torch.zeros(4, 5), batches[0].label)
    assert float(loss) == pytest.approx(np.log(5)), "the loss leaves the row out"


def test_all_views_of_a_damaged_image_are_zeros(rotten):
    small = RandomResizedCrop(16, scale=(0.02, 0.05))  # nearly never shows the damage
    seen = 0
    for batch in whole(rotten, crop=[small, small, CENTRE], members=()):
        for row in (batch.label == IGNORED).nonzero().flatten().tolist():
            assert not any(bool(part.movedim(-4, 0)[row].any()) for part in batch.image)
            seen += 1
    assert seen == len(BAD)


def test_an_error_names_shard_and_key_one_batch_late(rotten):
    loader = whole(rotten, config={"on_error": "raise"})
    batches = iter(loader)
    assert "k0003" in next(batches).key
    with pytest.raises(DecodeError, match=r"a\.tar, key 'k0003': image is .*where the batch was decoded"):
        next(batches)
    last = whole(rotten, config={"on_error": "raise", "batch_size": 23})
    batches = iter(last)
    next(batches)
    with pytest.raises(DecodeError, match="k0003"):
        next(batches)


def test_more_damage_than_max_bad_is_an_error(rotten):
    data = write_cache(rotten.parent / "worse", "tiled", **{f"k{n:04d}": BAD["k0003"] for n in range(12)})
    with pytest.raises(DecodeError, match=r"1\d images of epoch 0 .*max_bad=0\.01"):
        list(whole(data, config={"max_bad": 0.01}))


@pytest.mark.parametrize("on_error", ["substitute", "leave_out"])
def test_outside_of_training_batches_are_those_of_the_workers(rotten, on_error):
    config = {"on_error": on_error}
    expected = whole(rotten, training=False, decode="cpu", config=config)
    found = whole(rotten, training=False, config=config)
    same(list(found), list(expected))
    assert found.substituted == expected.substituted == 2


def test_strict_training_waits_and_gets_substitutes(rotten, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("name,x\n" + "".join(f"k{number:04d},{number / 2}\n" for number in range(23)))
    numbers = {"labels": str(table), "key": "name", "target": "x"}
    for options in (numbers, {"members": ["cls"]}):
        expected, found = whole(rotten, decode="cpu", **options), whole(rotten, **options)
        batches = list(found)
        for one, other in zip(batches, expected, strict=True):
            assert torch.equal(one.image, other.image) and torch.equal(one.label, other.label)
            assert one[2:] == other[2:]
        assert found.substituted == expected.substituted == 2
    with pytest.raises(DecodeError, match="max_bad=0"):
        list(whole(rotten, config={"max_bad": 0.0}))
    mix = tarpeg.Augment(mix=tarpeg.Mix(classes=5))
    found = [list(whole(rotten, decode=each).deliver(mix)) for each in ("cpu", "device")]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.image, other.image) and torch.equal(one.label, other.label)


class Keys(tarpeg.Target):
    """The key of each sample."""

    def read(self, source, ids):
        return source.keys(ids)

    def move(self, value, view):
        return value


def test_a_damaged_image_with_a_target_is_substituted_with_it(rotten):
    crops = [CenterCrop(32), RandomResizedCrop(16)]
    found = [
        list(whole(rotten, decode=each, crop=crops, targets=Keys(), config={"workers": 1}))
        for each in ("cpu", "device")
    ]
    for one, other in zip(*found, strict=True):
        assert all(map(torch.equal, one.image, other.image)) and one.targets == other.targets


def test_statuses_are_waited_for_once(monkeypatch, rotten):
    class Event:
        waits = 0

        def record(self, stream):
            assert stream == "stream"

        def synchronize(self):
            Event.waits += 1

    class OnDevice:
        device = torch.device("cuda")

        def to(self, device, *, non_blocking):
            assert device == "cpu" and non_blocking
            return torch.tensor([0, 2, 0], dtype=torch.int32)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream")
    arrivals, loader = Arrivals(), load(rotten, **HERE)
    request = next(loader.requests(0)).rows([0, 1, 2])
    arrivals.add(OnDevice(), request)
    assert Event.waits == 0
    (text,) = arrivals.damaged(loader.fetcher.shards)
    assert loader.fetcher.where(int(request.ids[1])) in text and Event.waits == 1
    assert arrivals.damaged(loader.fetcher.shards) == [] and Event.waits == 1


@pytest.mark.quick
def test_lightning_trains_on_the_same_batches(cache, tmp_path):
    found = []
    for decode in ("cpu", "device"):
        data = module(cache, decode=decode, augment=heavy(), workers=1)
        net = Net()
        with torch.no_grad():
            net.net.weight.fill_(0.1)
            net.net.bias.zero_()
        fitted(tmp_path, data, net, max_epochs=2)
        found.append(net)
    assert torch.equal(found[0].net.weight, found[1].net.weight)
    for stage in ("train", "validate"):
        same(found[1].seen[stage], found[0].seen[stage])


def test_lightning_without_augment_and_prediction(rotten, tmp_path):
    found = []
    for decode in ("cpu", "device"):
        split = Split(rotten, CenterCrop(64, shorter=64))
        data = ShardDataModule(predict=split, batch_size=4, workers=0, decode=decode)
        net = Net()
        trainer(tmp_path).predict(net, data)
        found.append(net.seen["predict"])
    same(found[1], found[0])
    assert sum(len(batch.label) for batch in found[1]) == 21


def test_a_subclass_with_a_hook_of_its_own_gets_images(cache, tmp_path):
    class Own(ShardDataModule):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            assert batch.image.dtype == torch.uint8
            return batch

    split = Split(cache, CenterCrop(32))
    net = fitted(tmp_path, Own(train=split, batch_size=4, workers=0, decode="device"), limit_train_batches=1)
    assert isinstance(net.seen["train"][0].image, torch.Tensor)


def test_damage_in_the_last_batch_is_reported_when_a_run_ends(rotten, tmp_path):
    split = Split(rotten, CenterCrop(64, shorter=64), shuffle=False, subset=np.array([3]))
    data = ShardDataModule(train=split, batch_size=1, workers=0, decode="device", max_bad=1.0)
    with pytest.warns(UserWarning, match="k0003.*label -100"):
        fitted(tmp_path, data)


def test_batches_in_a_dict_are_decoded_and_augmented(cache, tmp_path):
    class Dict(ShardDataModule):
        def train_dataloader(self):
            return {"own": super().train_dataloader()}

    found = []
    for decode in ("cpu", "device"):
        split = Split(cache, RandomResizedCrop(32))
        data = Dict(split, batch_size=4, workers=0, keys=True, decode=decode, augment=heavy())
        found.append(fitted(tmp_path, data, OfOwn()).seen["train"])
    same(*found)
