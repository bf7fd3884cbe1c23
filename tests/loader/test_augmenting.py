"""Augmentation of batches: the same params for the same samples, wherever and whenever it runs."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from helpers.loaders import digest, load
from helpers.scenes import Scenes
from helpers.training import Net, OfOwn, Unsized, fitted, heavy, module, trainer
from tarpeg import (
    Affine,
    Augment,
    Batch,
    Boxes,
    CenterCrop,
    Erase,
    GridMask,
    Loader,
    Mix,
    RandomResizedCrop,
    ShardDataModule,
    Split,
    Streaming,
)
from tarpeg.loader.augmenting import augment_on_arrival
from torch.utils.data import DataLoader
from torchvision.transforms import v2

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's and torch's own


def digests(batches):
    return [digest([batch]) for batch in batches]


def trained(folder, data, epochs=2):
    """The digests of the batches that a network gets in training."""
    return digests(fitted(folder, data, max_epochs=epochs).seen["train"])


def looped(data, epochs=1):
    """The digests of the batches of a plain loop."""
    loader = data.train_dataloader()
    found = [seen for _ in range(epochs) for seen in digests(data.augmented(loader))]
    loader.close()
    return found


@pytest.mark.parametrize(
    "engine",
    [{"workers": 0, "threads": 0}, {"workers": 0, "threads": 2}, {"workers": 1}, {"workers": 2}],
    ids=str,
)
def test_the_same_bytes_in_any_process_and_loop(photos, tmp_path, engine):
    expected = looped(module(photos, workers=0, threads=0, augment=heavy()), epochs=2)
    assert len(set(expected)) == 12
    assert trained(tmp_path, module(photos, augment=heavy(), **engine)) == expected
    assert looped(module(photos, augment=heavy(), **engine), epochs=2) == expected


@pytest.mark.sweep
@pytest.mark.parametrize(
    "engine", [{"workers": 0}, {"workers": 1}, {"workers": 1, "streaming": True}], ids=str
)
@pytest.mark.parametrize("make", [Augment, heavy], ids=["normalised", "heavy"])
def test_the_loader_augments_for_a_plain_loop_as_for_a_trainer(photos, monkeypatch, make, engine):
    here, calls, transform = os.getpid(), [], Augment.transform
    monkeypatch.setattr(Augment, "transform", lambda *args: calls.append(os.getpid()) or transform(*args))
    engine = dict(engine)
    split = Split(photos, CenterCrop(16), streaming=engine.pop("streaming", False))
    data = ShardDataModule(split, batch_size=4, augment=make(), **engine)
    loader = data.train_dataloader()
    for device in ("cpu", None):
        assert next(iter(loader)).image.dtype == torch.uint8
        assert next(data.augmented(loader, device)).image.dtype == torch.float32
    assert (here in calls) == (make is heavy and engine["workers"] == 0)
    if make is Augment:  # not on the CPU: Augment runs on the images that were moved
        moved = next(data.augmented(loader, "meta")).image
        assert (moved.dtype, moved.device.type) == (torch.float32, "meta")
        assert loader.fetcher.dtype == torch.uint8 and len(calls) == 1
    loader.close()


def test_a_compiled_augment_gives_the_same_bytes(photos, tmp_path):
    def data():
        return module(photos, workers=0, threads=0, augment=torch.compile(heavy(), backend="eager"))

    expected = looped(module(photos, workers=0, threads=0, augment=heavy()))
    assert looped(data()) == expected and trained(tmp_path, data(), epochs=1) == expected


def test_validation_only_normalises(photos, tmp_path):
    shown = []
    for make, workers in ((heavy, 0), (heavy, 1), (Augment, 0)):
        net = Net()
        data = module(photos, augment=make(space="ycbcr"), workers=workers)
        trainer(tmp_path).validate(net, datamodule=data, verbose=False)
        shown.append(digests(net.seen["validate"]))
        assert digests(data.augmented(data.val_dataloader())) == shown[-1]
    assert shown[0] == shown[1] == shown[2]


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
@pytest.mark.parametrize("augment", [Augment, heavy], ids=["normalised", "heavy"])
def test_images_that_lightning_casts_are_not_augmented_twice(photos, tmp_path, precision, augment):
    def images(**settings):
        data = module(photos, augment=augment(), workers=1)
        net = fitted(tmp_path, data, limit_train_batches=2, **settings)
        return [batch.image for batch in net.seen["train"]]

    cast = images(precision=precision)
    assert all(torch.equal(one, other.to(one.dtype)) for one, other in zip(cast, images(), strict=True))


def test_a_stream_that_lightning_fetches_ahead(photos, tmp_path):
    # Without a length Lightning fetches each batch before it returns the previous one.
    def data(workers, streaming=True):
        split = Split(photos, CenterCrop(16), streaming=streaming)
        return ShardDataModule(split, batch_size=4, workers=workers, keys=True, augment=heavy())

    shown = looped(data(0))
    assert trained(tmp_path, data(0), epochs=1) == shown and len(shown) == 6
    sized, again = (data(2, Streaming(samples=20)) for _ in range(2))
    assert trained(tmp_path, sized) == trained(tmp_path, again)


def test_views_have_their_own_params(photos, tmp_path):
    split = Split(photos, CenterCrop(16), views=2)
    shown = []
    for workers in (0, 1):
        data = ShardDataModule(split, batch_size=4, workers=workers, keys=True, augment=heavy())
        shown.append(fitted(tmp_path, data).seen["train"])
    assert digests(shown[0]) == digests(shown[1])
    first, second = shown[0][0].image
    assert first.shape == (4, 3, 16, 16) and not torch.equal(first, second)
    single = ShardDataModule(Split(photos, CenterCrop(16)), batch_size=4, workers=0, augment=heavy())
    alone = next(iter(single.augmented(single.train_dataloader())))
    assert torch.equal(alone.image, first), "the first view equals that of a split without views"


def test_a_hook_that_removes_images_is_an_error(photos, tmp_path):
    class Half(Net):
        def on_before_batch_transfer(self, batch, _):
            if not self.trainer.training:
                return batch
            return batch._replace(image=batch.image[:2], label=batch.label[:2])

    with pytest.raises(ValueError, match=r"2 images .*2 labels.* 4 "):
        fitted(tmp_path, module(photos, augment=heavy()), Half())


def test_mixed_batches(photos, tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(1)
    shown = []
    for workers in (0, 1):
        torch.manual_seed(3)
        data = module(photos, augment=heavy(mix=Mix(5)), workers=workers)
        seen = fitted(tmp_path, data, max_epochs=2).seen
        labels = [batch.label for batch in seen["train"]]
        assert all(batch.label.shape == (len(batch.key), 5) for batch in seen["train"])
        assert all(torch.allclose(label.sum(1), torch.ones(())) for label in labels)
        assert sum(((label > 0).sum(1) > 1).any().item() for label in labels) > 6, "most batches are mixed"
        assert all(batch.label.dtype == torch.int64 for batch in seen["validate"])
        shown.append(digests(seen["train"]))
    assert shown[0] == shown[1]
    torch.manual_seed(3)
    data = module(photos, augment=Augment(mix=Mix(5)))
    list(data.augmented(data.train_dataloader()))
    assert torch.equal(torch.rand(1), expected), "torch's generator is not touched"


@pytest.mark.parametrize("world", [1, 3])
def test_repeated_images_are_mixed_with_other_samples(photos, world):
    split = Split(photos, CenterCrop(16), repeats=3)
    ratios = []
    for rank in range(world):
        loader = load(photos, split=split, rank=rank, world=world, batch_size=7, workers=0)
        augment = Augment(mix=Mix(23, mixup=1.0, cutmix=0.0)).train()
        batch = next(iter(loader))
        request = loader.claim()
        batch = batch._replace(label=torch.from_numpy(request.ids))
        mixed = augment_on_arrival(augment, batch, 0, request, is_augmented=False, repeats=3)
        shares = mixed.label[mixed.label > 0].reshape(-1, 2)  # two samples in each of the images
        assert len(shares) == len(request.ids)
        order = mixed.label.argsort(descending=True)[:, :2]
        plain = augment_on_arrival(Augment().eval(), batch, 0, None, is_augmented=False).image
        means = {int(id): plain[row].mean() for row, id in enumerate(request.ids)}
        for row in range(len(request.ids)):
            first, second = order[row].tolist()
            expected = mixed.label[row, first] * means[first] + mixed.label[row, second] * means[second]
            assert abs(float(mixed.image[row].mean() - expected)) < 1e-4
        ratios.append(round(float(shares.max()), 6))
    assert len(set(ratios)) == world, "ranks whose first sample is the same have other ratios"


def test_gray_under_lightning(photos, tmp_path):
    class Gray(Net):
        def _see(self, batch):
            return super()._see(batch._replace(image=batch.image.expand(-1, 3, -1, -1)))

    split = Split(photos, RandomResizedCrop(16), channels=1, flip=0.5)
    options = {"flip": 0.5, "affine": Affine(20), "erase": Erase(), "mask": GridMask(0.1, 4)}
    found = []
    for workers, given in ((0, options), (2, options), (2, {})):
        augment = Augment([0.5], [0.25], **given)
        data = ShardDataModule(split, batch_size=4, workers=workers, keys=True, augment=augment)
        found.append(digests(fitted(tmp_path, data, Gray()).seen["train"]))
    assert found[0] == found[1] != found[2]


def test_a_transform_may_make_gray_images(photos):
    split = Split(photos, transform=v2.Compose([v2.CenterCrop(16), v2.Grayscale()]))
    data = ShardDataModule(split, batch_size=4, workers=0, augment=Augment([0.5], [0.25]))
    batch = next(iter(data.augmented(data.train_dataloader())))
    assert batch.image.shape == (4, 1, 16, 16) and batch.image.dtype == torch.float32


def test_images_and_augment_with_other_numbers_of_channels_are_refused(photos):
    gray, rgb = (Split(photos, CenterCrop(16), channels=channels) for channels in (1, 3))
    with pytest.raises(ValueError, match=r"train .*channels=1.*augment= .*mean=\[0\.485"):
        ShardDataModule(gray, augment=Augment())
    with pytest.raises(ValueError, match=r"val .*channels=3.*augment= .*mean=\[0\.5\]"):
        ShardDataModule(gray, rgb, augment=[Augment([0.5], [0.2])])
    with pytest.raises(ValueError, match=r"val=Split\(repeats=2\)"):
        ShardDataModule(val=Split(photos, CenterCrop(16), repeats=2))


class Noise(torch.nn.Module):
    """Random in any mode, as Kornia's modules, or in training only."""

    def __init__(self, in_training_only=False):
        super().__init__()
        self.in_training_only = in_training_only

    def forward(self, images):
        images = images.float() / 255
        if self.in_training_only and not self.training:
            return images
        return images + torch.rand(3)[:, None, None] + np.random.rand() + random.random()


def test_a_module_that_is_random_in_evaluation_mode_is_an_error_at_the_first_batch(photos):
    train, val = Split(photos, RandomResizedCrop(16)), Split(photos, CenterCrop(16))
    settings = {"batch_size": 4, "workers": 0, "allow_overlap": True}
    for wrapped in (Noise(), torch.nn.Sequential(torch.nn.Identity(), Noise())):
        data = ShardDataModule(train, val, augment=wrapped, **settings)
        for loader in (data.train_dataloader(), data.val_dataloader()):
            with pytest.raises(ValueError, match=f"augment={type(wrapped).__name__} .*evaluation"):
                next(data.augmented(loader))
    with pytest.raises(ValueError, match=r"augment=Noise .*evaluation"):
        next(iter(Loader(val, training=False, augment=Noise(), workers=0)))
    data = ShardDataModule(train, val, augment=Noise(in_training_only=True), **settings)
    assert digests(data.augmented(data.val_dataloader())) == digests(data.augmented(data.val_dataloader()))
    assert next(data.augmented(ShardDataModule(train, augment=Noise(), workers=0).train_dataloader()))


class Rarely(torch.nn.Module):
    """Draws once per batch, so that two passes with fixed seeds may be equal."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, images):
        return images.flip(-1) if self.draw() < 0.01 else images


@pytest.mark.parametrize(
    "draw", [lambda: float(torch.rand(())), np.random.rand, random.random], ids=["torch", "numpy", "python"]
)
def test_a_module_that_draws_in_evaluation_mode_is_an_error_whatever_it_draws(draw):
    batch = Batch(torch.zeros(2, 3, 4, 4), None)
    with pytest.raises(ValueError, match=r"augment=Rarely .*evaluation mode.*draws"):
        augment_on_arrival(Rarely(draw).eval(), batch, 0, None, is_augmented=False)


def test_a_module_with_a_generator_of_its_own_is_compared_over_several_batches():
    module = Rarely(iter([1, 1, 1] * 2 + [1, 0]).__next__).eval()
    batch = Batch(torch.arange(96.0).view(2, 3, 4, 4), None)
    for _ in range(2):
        augment_on_arrival(module, batch, 0, None, is_augmented=False)
    with pytest.raises(ValueError, match=r"augment=Rarely .*two passes"):
        augment_on_arrival(module, batch, 0, None, is_augmented=False)


def test_the_passes_in_evaluation_mode_leave_each_part_in_its_mode():
    frozen = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Dropout()).train()
    frozen[1].eval()
    augment_on_arrival(
        frozen, Batch(torch.zeros(2, 3, 4, 4), None), 0, None, is_augmented=False, evaluates=True
    )
    assert [part.training for part in frozen.modules()] == [True, True, False]


def test_a_batch_whose_images_were_all_left_out_is_not_compared():
    empty = Batch(torch.zeros(0, 3, 4, 4, dtype=torch.uint8), None)
    found = augment_on_arrival(Noise().eval(), empty, 0, None, is_augmented=False, evaluates=True)
    assert found.image.shape == (0, 3, 4, 4)


def test_results_of_random_sizes_are_random():
    class Sized(torch.nn.Module):
        def forward(self, images):
            return images[..., : int(torch.randint(1, 1000, ()))].float()

    wide = Batch(torch.zeros(1, 3, 1, 1000), None)
    with pytest.raises(ValueError, match=r"augment=Sized .*evaluation"):
        augment_on_arrival(Sized(), wide, 0, None, is_augmented=False, evaluates=True)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda x: x[:-1], r"uint8 \[3, 3, 16, 16\]"),
        (lambda x: None, "a NoneType"),
        (lambda x: (x, x), "a tuple"),
        (lambda x: x.sum(), r"int64 \[\]"),
    ],
    ids=["fewer", "None", "tuple", "scalar"],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_module_returns_one_image_per_image(photos, wrong, found, training):
    class Wrong(torch.nn.Module):
        def forward(self, images):
            return wrong(images)

    loader = Loader(Split(photos, CenterCrop(16)), 4, training=training, augment=Wrong(), workers=0)
    with pytest.raises(ValueError, match=rf"augment=Wrong returned {found} for uint8 \[4, 3, 16, 16\]"):
        next(iter(loader))


def test_a_module_of_ones_own_is_seeded_per_batch(photos):
    def data():
        return ShardDataModule(
            Split(photos, RandomResizedCrop(16), views=2), batch_size=4, workers=0, augment=Noise()
        )

    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    before = states()
    first = data()
    loader = first.train_dataloader()
    undisturbed = digests(first.augmented(loader))
    again = digests(first.augmented(loader))
    assert states() == before
    assert len({*undisturbed, *again}) == 12
    torch.manual_seed(5)
    stopped, epoch = data(), []
    loader = stopped.train_dataloader()
    for batch in stopped.augmented(loader):
        epoch += digests([batch])
        if len(epoch) == 2:
            break
    resumed = data()
    other = resumed.train_dataloader()
    other.load_state_dict(loader.state_dict())
    assert epoch + digests(resumed.augmented(other)) == undisturbed


class Beside(ShardDataModule):
    """Batches of train beside numbers, in ``form``."""

    form: type = dict
    numbers = DataLoader(list(range(6)), batch_size=None)

    def train_dataloader(self):
        own = super().train_dataloader()
        return {"own": own, "numbers": self.numbers} if self.form is dict else self.form([self.numbers, own])


class OfSecond(Net):
    """A network that trains on the second part of a list of batches."""

    def training_step(self, batch, index):
        return super().training_step(batch[1], index)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("form", [dict, list, tuple])
@pytest.mark.filterwarnings("error:augment= is not applied")
def test_batches_beside_others_are_augmented(photos, tmp_path, form, workers):
    expected = trained(tmp_path, module(photos, augment=heavy(), workers=workers), epochs=1)
    split = Split(photos, RandomResizedCrop(16), flip=0.5)
    data = Beside(split, batch_size=4, keys=True, workers=workers, augment=heavy())
    data.form = form
    net = OfOwn() if form is dict else OfSecond()
    assert digests(fitted(tmp_path, data, net, max_epochs=1).seen["train"]) == expected


@pytest.mark.parametrize("streaming", [True, False])
def test_further_passes_of_a_loader_beside_a_longer_one_have_their_own_numbers(photos, tmp_path, streaming):
    """Lightning takes a batch ahead of one that is not augmented yet, if one of them has no length."""
    found = []
    for workers in (0, 1):
        subset = None if streaming else [*range(7)]
        split = Split(photos, RandomResizedCrop(16), flip=0.5, streaming=streaming, subset=subset)
        data = Beside(split, batch_size=4, keys=True, workers=workers, augment=heavy())
        data.numbers = DataLoader(Unsized(20), batch_size=None)
        found.append(digests(fitted(tmp_path, data, OfOwn(), max_epochs=2).seen["train"]))
    assert len({*found[0]}) == 40 and found[0] == found[1]


def test_a_loader_of_validation_beside_that_of_train(photos, tmp_path):
    class WithVal(ShardDataModule):
        def train_dataloader(self):
            return {"val": self.val_dataloader(), "own": super().train_dataloader()}

    train, val = Split(photos, RandomResizedCrop(16), flip=0.5), Split(photos, CenterCrop(16))
    settings = {"batch_size": 4, "keys": True, "workers": 0, "allow_overlap": True, "augment": heavy()}
    expected = trained(tmp_path, ShardDataModule(train, val, **settings), epochs=1)
    seen = fitted(tmp_path, WithVal(train, val, **settings), OfOwn(), max_epochs=1).seen["train"]
    assert digests(seen) == expected


class Calling(ShardDataModule):
    """Calls the hook that it overrides."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return super().on_after_batch_transfer(batch, dataloader_idx)


class Hidden(ShardDataModule):
    """Calls it by another function."""

    def other(self, batch, dataloader_idx):
        return super().on_after_batch_transfer(batch, dataloader_idx)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return self.other(batch, dataloader_idx)


class OfTargets(Net):
    """Notes images and boxes."""

    def training_step(self, batch, _):
        self.seen["train"].append((batch.image.clone(), [each["boxes"].clone() for each in batch.targets]))
        return self.net.weight.sum()


@pytest.mark.parametrize("workers", [0, 1])
def test_targets_move_with_a_hook_that_calls_that_of_the_data_module(tmp_path, workers):
    found = []
    for kind in (ShardDataModule, Calling, Hidden):
        split = Split(Scenes(), RandomResizedCrop(32), flip=0.5, targets=Boxes("json:objects"))
        data = kind(split, batch_size=4, workers=workers, augment=Augment(affine=Affine(20)))
        if kind is Hidden:
            with pytest.raises(ValueError, match="Hidden call super"):
                fitted(tmp_path, data, OfTargets(), max_epochs=1)
            continue
        found.append(fitted(tmp_path, data, OfTargets(), max_epochs=1).seen["train"])
    for (image, boxes), (other, others) in zip(*found, strict=True):
        assert torch.equal(image, other) and all(map(torch.equal, boxes, others))
