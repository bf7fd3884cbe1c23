"""augment= of a ShardDataModule: when it runs, and with transforms and hooks of others."""

from __future__ import annotations

import warnings

import pytest
import torch
from helpers.training import Net, fitted, module, trainer
from tarpeg import (
    Augment,
    CenterCrop,
    ColorJitter,
    ShardDataModule,
    Split,
    errors,
    machine,
)
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's and torch's own


def test_an_augment_within_other_modules_is_a_warning(photos):
    whole = nn.Sequential(Augment(color=ColorJitter(brightness=0.4)), nn.Identity())
    for augment in (whole, torch.compile(whole, backend="eager")):
        with pytest.warns(UserWarning, match="resumed"):
            ShardDataModule(Split(photos, CenterCrop(16)), augment=augment)
    alone = torch.compile(Augment(color=ColorJitter(brightness=0.4)), backend="eager")
    for augment in (alone, nn.Sequential(Augment(), nn.Identity())):
        ShardDataModule(Split(photos, CenterCrop(16)), augment=augment)
    flip = torch.compile(v2.Compose([v2.RandomHorizontalFlip()]), backend="eager")
    with pytest.raises(ValueError, match=r"torchvision .*validation"):
        ShardDataModule(Split(photos, CenterCrop(16)), augment=flip)


def test_batches_that_nobody_augments_are_a_warning(photos, tmp_path):
    def warnings_of(use, **settings):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            use(module(photos, **{"augment": Augment(), **settings}))
        return [str(each.message) for each in caught if "augment=" in str(each.message)]

    def fit_loader(data):
        trainer(tmp_path, max_epochs=2).fit(Net(), data.train_dataloader())

    (text,) = warnings_of(fit_loader)
    assert "is not applied to these batches of train" in text and "trainer.fit(model, data)" in text
    assert len(warnings_of(lambda data: list(data.train_dataloader()))) == 1
    for use in (
        lambda data: fitted(tmp_path, data, max_epochs=2),
        lambda data: list(data.augmented(data.train_dataloader())),
        lambda data: list(data.val_dataloader()),
    ):
        assert not warnings_of(use)
    assert not warnings_of(fit_loader, augment=None)


class Convolution(Net):
    """Does not convert its images."""

    def _see(self, batch):
        return nn.functional.conv2d(batch.image, torch.ones(1, 3, 1, 1)).mean()


def test_a_model_that_does_not_take_uint8_gets_a_hint(photos, tmp_path):
    def hints(data, *loaders):
        errors._warned.clear()
        given = {} if loaders else {"datamodule": data}
        with warnings.catch_warnings(record=True) as caught, pytest.raises(RuntimeError, match=r"Byte|unsig"):
            warnings.simplefilter("always")
            trainer(tmp_path).fit(Convolution(), *loaders, **given)
        return {text for each in caught if "augment=" in (text := str(each.message))}

    data = module(photos)
    for loaders in ((), (data.train_dataloader(),), (data.train_dataloader(), data.val_dataloader())):
        (text,) = hints(data, *loaders)
        assert text.startswith("the images are uint8: give the ShardDataModule augment=tarpeg.Augment()")
    data = module(photos, augment=Augment())
    (text,) = hints(data, data.train_dataloader())
    assert "is not applied to these batches of train" in text, "also before the fourth batch"


def test_augmented_takes_one_loader(photos):
    data = module(photos, augment=Augment())
    loader = data.train_dataloader()
    for given in ([loader], DataLoader([1]), None):
        with pytest.raises(ValueError, match=f"loader={type(given).__name__}"):
            data.augmented(given)


def first_images(tmp_path, data):
    """The images of the first batch in training, and in validation."""
    net = fitted(tmp_path, data, fast_dev_run=True)
    return [net.seen[stage][0].image for stage in ("train", "validate")]


@pytest.mark.quick
def test_augment_runs_after_the_transfer_in_the_right_mode(photos, tmp_path):
    modes, augment = [], nn.Identity()

    def record(augment, _, images):
        modes.append(augment.training)
        return images.float()

    augment.register_forward_hook(record)
    limits = {"num_sanity_val_steps": 0, "limit_train_batches": 2, "limit_val_batches": 1}
    net = fitted(tmp_path, module(photos, augment=augment), **limits)
    # Two passes before each of the first batches: is it random in validation?
    assert modes == [False, False, True, False, False, True, False, False, False]
    assert net.seen["train"][0].image.dtype == torch.float32
    normalised, plain = (first_images(tmp_path, module(photos, augment=a))[0] for a in (Augment(), None))
    assert normalised.abs().max() < 3
    assert plain.dtype == torch.uint8


class OwnFlip(v2.RandomHorizontalFlip):
    """A transform that respects the mode."""

    def forward(self, images):
        return super().forward(images) if self.training else images


def test_transforms_of_torchvision_are_refused(photos):
    flip = v2.RandomHorizontalFlip()
    of_torchvision = [flip, nn.Sequential(nn.Identity(), nn.Sequential(flip)), v2.Compose([flip])]
    of_torchvision += [v1.ColorJitter(0.4), v1.Compose([flip]), v1.functional.hflip, v2.functional.hflip]
    for augment in (*of_torchvision, type("Own", (v2.Transform,), {"transform": lambda *_: None})()):
        with pytest.raises(ValueError, match=r"^augment=\w+ of torchvision .*tarpeg\.Augment\("):
            module(photos, augment=augment)
    with pytest.raises(ValueError, match=r"^augment=<built-in function abs> .*torch\.nn\.Module"):
        module(photos, augment=abs)
    random = [v2.GaussianBlur(3), v2.RandomApply([v2.Resize(8)]), v2.JPEG((5, 50)), v2.Lambda(lambda x: x)]
    for part in random:
        with pytest.raises(ValueError, match=r"self\.training"):
            module(photos, augment=nn.Sequential(Augment(), v2.Compose([v2.Identity(), part])))
    for augment in (OwnFlip(1.0), nn.Sequential(OwnFlip(1.0))):
        data = module(photos, augment=augment, threads=0)
        loader, plain = data.val_dataloader(), module(photos, threads=0).val_dataloader()
        assert torch.equal(next(data.augmented(loader)).image, next(iter(plain)).image)


class OwnNormalize(v2.Normalize):
    """A fixed transform with constants of its own."""


def test_fixed_transforms_of_torchvision_run_in_training_and_validation(photos):
    half = OwnNormalize([0.5] * 3, [0.5] * 3)
    floats = v2.Compose([v2.ToDtype(torch.float32, scale=True), half])
    for augment in (floats, nn.Sequential(v1.ConvertImageDtype(torch.float32), v1.Resize(16), half)):
        data = module(photos, augment=augment, threads=0)
        for loader in (data.val_dataloader(), data.train_dataloader()):
            image = next(data.augmented(loader)).image
            assert image.dtype == torch.float32 and -1 <= image.min() < -0.5 < image.max() <= 1


def test_the_decoder_normalises_if_the_cpu_trains(photos, tmp_path):
    class Own(Augment):
        def forward(self, images):
            calls.append(images.dtype)
            return super().forward(images)

    calls = []
    seen = [first_images(tmp_path, module(photos, augment=augment)) for augment in (Own(), Augment())]
    assert calls == [torch.uint8] * 2
    for apart, fused in zip(*seen, strict=True):
        assert fused.dtype == torch.float32 and torch.allclose(fused, apart, atol=2e-6)


def test_limits_of_the_machine_are_read_per_loader_not_per_batch(photos, tmp_path, monkeypatch):
    reads, read_machine = [], machine.read_machine
    monkeypatch.setattr(machine, "read_machine", lambda: reads.append(1) or read_machine())
    counts = []
    for batch_size in (23, 2):
        data = module(photos, workers=None, augment=Augment(), batch_size=batch_size)
        fitted(tmp_path, data)
        counts.append(len(reads))
        reads.clear()
    assert counts[0] == counts[1] <= 3, "once for the data module and for each of its loaders"


@pytest.mark.quick
def test_an_overridden_hook_gets_uint8(photos, tmp_path):
    class Hooked(ShardDataModule):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            assert batch.image.dtype == torch.uint8
            return super().on_after_batch_transfer(batch, dataloader_idx)

    split = Split(photos, CenterCrop(16))
    data = Hooked(split, split, batch_size=4, workers=0, augment=Augment(), allow_overlap=True)
    assert first_images(tmp_path, data)[0].dtype == torch.float32


@pytest.mark.quick
def test_the_hook_of_the_module_comes_after_augment(photos, tmp_path, recwarn):
    class Hooked(Net):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            assert batch.image.dtype == torch.float32, "augmented"
            batch = self.trainer.datamodule.on_after_batch_transfer(batch, dataloader_idx)  # not once more
            return batch._replace(image=batch.image * 0 + 7)

    for settings in ({"augment": Augment()}, {"augment": Augment(), "workers": 1}):
        net = fitted(tmp_path, module(photos, **settings), Hooked())
        assert all((batch.image == 7).all() for stage in ("train", "validate") for batch in net.seen[stage])
    assert not [entry for entry in recwarn if "on_after_batch_transfer" in str(entry.message)]


def test_mixup_of_timm_has_a_remedy(photos):
    mixup = type("Mixup", (), {"__module__": "timm.data.mixup", "__call__": lambda *_: None})()
    with pytest.raises(ValueError, match=r"augment=.*tarpeg\.Augment\(mix=tarpeg\.Mix\(classes="):
        module(photos, augment=mixup)
