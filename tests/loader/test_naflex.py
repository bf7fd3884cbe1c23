"""Batches of patches: those of timm's own transform and collator; workers, ranks, resume, broken images."""

from __future__ import annotations

import warnings

import lightning
import numpy as np
import PIL.Image
import pytest
import tarpeg
import torch
from helpers import training
from helpers.pictures import jpeg, picture
from tarpeg import Augment, Loader, Patches, Split
from tarpeg.loader.naflex import columns_of, image_of
from tarpeg.shards.pillow import open_upright
from timm.data.naflex_dataset import NaFlexCollator
from timm.data.naflex_transforms import Patchify, ResizeToSequence, get_image_size_for_seq
from torchvision.transforms.v2 import functional

KINDS = ["420", "444", "422", "progressive", "gray22", "411", "440", "cmyk"]
SHAPES = [tuple(side) for side in np.random.default_rng(4).integers(20, 200, (30, 2)).tolist()]
CROP = Patches(16, [12, 20, 45], 100)


class Pictures(tarpeg.Source):
    """JPEGs of several samplings and shapes, with a PNG and one on its side among them."""

    def __init__(self, broken=()):
        files = [jpeg(KINDS[seed % 8], *shape, seed) for seed, shape in enumerate(SHAPES)]
        files += [picture("PNG", 5, size=(44, 61)), picture("JPEG", 6, size=(44, 81), orientation=6)]
        self.files = [b"broken" if id in broken else file for id, file in enumerate(files)]

    def __len__(self):
        return len(self.files)

    def keys(self, ids):
        return [str(id) for id in ids]

    def members(self, ids, extension):
        return [self.files[id] if extension == "jpg" else str(id).encode() for id in ids]

    def extensions(self, id):
        return ["jpg", "cls"]


def batches(
    source, epochs=1, crop=CROP, training=True, state=None, augment=None, on=None, config=None, **split
):
    """Dicts and labels of a loader."""
    split = {"flip": 0.5, **split}
    config = config or tarpeg.LoaderConfig(workers=0, threads=0)
    loader = Loader(
        Split(source, crop, **split), training=training, augment=augment, config=config, **(on or {})
    )
    if state is not None:
        loader.load_state_dict(state)
    found = [batch for _ in range(epochs) for batch in loader]
    loader.close()
    return found


def flat(found):
    """Lengths, bytes and labels."""
    return [
        (*(part.numpy().tobytes() for part in images.values()), images["patches"].shape, labels.tolist())
        for images, labels in found
    ]


@pytest.mark.parametrize(("interpolation", "channels"), [("bilinear", 3), ("bicubic", 3), ("bilinear", 1)])
def test_batches_are_those_of_timm(interpolation, channels):
    """Pixels are those of torchvision v2: timm calls its first version, which rounds bicubic differently."""
    source = Pictures()
    settings = {"interpolation": interpolation, "fidelity": "exact", "channels": channels, "flip": 0}
    found = batches(source, training=False, **settings)
    assert sorted(id for _, labels in found for id in labels.tolist()) == list(range(32))
    assert [images["patches"].shape[:2] for images, _ in found[:3]] == [(8, 12), (5, 20), (2, 45)]
    for images, labels in found:
        length, rows = images["patches"].shape[1], []
        for id in labels.tolist():
            image = open_upright(source.files[id], 10**6).convert("RGB" if channels == 3 else "L")
            pixels = functional.pil_to_tensor(image)
            size = get_image_size_for_seq(pixels.shape[1:], 16, length)[1]
            mode = functional.InterpolationMode(interpolation)
            rows.append((Patchify(16)(functional.resize(pixels, size, mode)), id))
        expected, targets = NaFlexCollator(length)(rows)
        assert targets.tolist() == labels.tolist()
        assert torch.equal(images["patch_coord"], expected["patch_coord"])
        assert torch.equal(images["patch_valid"], expected["patch_valid"])
        assert not images["patches"][~images["patch_valid"]].any()
        difference = (images["patches"] - expected["patches"]).abs()
        # Pillow's gray images are made of RGB, and tarpeg's of the luma of the file.
        assert difference.max() <= 1 if channels == 3 else difference.mean() < 1


def test_timms_own_transform_gives_the_same_batches():
    source = Pictures()
    for images, labels in batches(source, training=False, fidelity="exact", flip=0):
        length = images["patches"].shape[1]
        resize, cut = ResizeToSequence(16, length, interpolation="bilinear"), Patchify(16)
        files = [open_upright(source.files[id], 10**6).convert("RGB") for id in labels.tolist()]
        expected, _ = NaFlexCollator(length)(
            [(cut(resize(functional.pil_to_tensor(file))), 0) for file in files]
        )
        assert (images["patches"] - expected["patches"]).abs().max() <= 1


def test_images_put_together_from_their_patches_are_those_of_the_decoder():
    source = Pictures()
    for images, labels in batches(source, training=False, flip=1):
        for row, id in enumerate(labels.tolist()):
            if KINDS[id % 8] == "cmyk" or id >= 30:
                continue
            file = torch.frombuffer(bytearray(source.files[id]), dtype=torch.uint8)
            size = CROP.resized([SHAPES[id]], images["patches"].shape[1])[0].tolist()
            whole = torch.tensor([[0, 0, *SHAPES[id]]], dtype=torch.int32)
            expected, status = tarpeg.decode_batch([file], whole, size, torch.tensor([True]))
            assert status.tolist() == [0] and torch.equal(image_of(images, row), expected[0])


def test_the_same_for_workers_and_after_a_resume_at_each_batch():
    source = Pictures()
    whole = flat(batches(source, epochs=2))
    for settings in ({"workers": 2}, {"workers": 0, "threads": 2}):
        assert flat(batches(source, epochs=2, config=tarpeg.LoaderConfig(**settings))) == whole
    count = len(whole) // 2
    for first in range(1, count):
        loader = Loader(Split(source, CROP, flip=0.5), workers=0)
        iterator = iter(loader)
        for _ in range(first):
            next(iterator)
        assert flat(batches(source, state=loader.state_dict())) == whole[first:count]
    with pytest.raises(tarpeg.ResumeError, match="order"):
        batches(source, crop=Patches(16, [12, 20, 45, 46], 100), state=loader.state_dict())
    with pytest.raises(tarpeg.ResumeError, match=r"order was .*; and the number of ranks"):
        batches(source, state=loader.state_dict(), on={"rank": 0, "world": 2})


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_have_one_length_per_step_and_every_sample_once(world):
    source = Pictures()
    ranks = [batches(source, epochs=2, on={"rank": rank, "world": world}) for rank in range(world)]
    assert len({len(rank) for rank in ranks}) == 1
    for step in zip(*ranks, strict=True):
        (length,) = {images["patches"].shape[1] for images, _ in step}
        assert all(len(labels) * length <= 100 for _, labels in step)
    half = len(ranks[0]) // 2
    for epoch in (slice(half), slice(half, None)):
        seen = [id for rank in ranks for _, labels in rank[epoch] for id in labels.tolist()]
        assert sorted(seen) == list(range(32))


def test_broken_images():
    source = Pictures(broken=[3, 17])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = batches(source)
        config = tarpeg.LoaderConfig(workers=0, threads=0, on_error="leave_out")
        others = batches(source, training=False, config=config)
    seen = [id for _, labels in found for id in labels.tolist()]
    assert len(seen) == 32 and {*seen} == {*range(32)} - {3, 17}
    assert all(images["patch_valid"].any(1).all() for images, _ in [*found, *others])
    assert sorted(id for _, labels in others for id in labels.tolist()) == sorted({*range(32)} - {3, 17})
    with pytest.raises(tarpeg.DecodeError, match="image is"):
        batches(source, config=tarpeg.LoaderConfig(workers=0, on_error="raise"))


def test_an_augment_normalises_and_does_nothing_else():
    source, augment = Pictures(), Augment()
    mean, std = (torch.tensor(each).repeat(256) for each in (augment.mean, augment.std))
    for (images, labels), (plain, same) in zip(
        batches(source, augment=augment), batches(source), strict=True
    ):
        expected = (plain["patches"] / 255 - mean) / std
        assert torch.allclose(images["patches"], expected, atol=1e-5) and torch.equal(labels, same)
        assert images["patches"].is_contiguous() and torch.equal(images["patch_valid"], plain["patch_valid"])
        assert torch.equal(
            columns_of(plain)[:, :, :16], plain["patches"][:, 0].view(-1, 16, 16, 3).movedim(-1, 1)
        )
    for wrong in (Augment(flip=0.5), Augment(mix=tarpeg.Mix(classes=40)), torch.nn.Identity()):
        with pytest.raises(ValueError, match=r"has crop=tarpeg.Patches.*give tarpeg.Augment\(\)"):
            batches(source, augment=wrong)


@pytest.mark.parametrize(
    "given",
    [
        {"weights": [1] * 32},
        {"repeats": 2},
        {"views": 2},
        {"transform": tarpeg.RandAugment()},
        {"targets": tarpeg.Boxes("json:objects")},
        {"streaming": True},
    ],
    ids=lambda given: next(iter(given)),
)
def test_splits_that_are_refused(given):
    (name,) = given
    source = "x.tar" if name == "streaming" else Pictures()
    with pytest.raises(ValueError, match=rf"{name}=.*and crop=Patches\(|{name}=|crop="):
        Split(source, CROP, **given)


def test_a_mixture_refuses_them():
    split = Split(Pictures(), CROP)
    with pytest.raises(ValueError, match=r"sources\['a'\] of Mixture has crop=Patches"):
        tarpeg.Mixture({"a": split}, weights={"a": 1})


def test_members_and_keys_come_with_them():
    loader = Loader(Split(Pictures(), CROP, members=["cls"]), workers=0, keys=True)
    batch = next(iter(loader))
    assert batch.key == [str(id) for id in batch.label.tolist()]
    assert [each["cls"] for each in batch.extra] == [key.encode() for key in batch.key] and batch.image[
        "patch_valid"
    ].any()


def test_the_plan_and_the_shapes():
    loader = Loader(Split(Pictures(), CROP, flip=0.5), workers=0)
    plan = tarpeg.plan_epoch(loader)
    tokens = dict.fromkeys(CROP.seq_lens, 0)
    padding = 0
    for images, _ in loader:
        tokens[images["patches"].shape[1]] += images["patch_valid"].numel()
        padding += int((~images["patch_valid"]).sum())
    # The size of the PNG is not in the index: it counts as not known.
    assert plan.tokens == sum(tokens.values()) and plan.padding == pytest.approx(
        padding / plan.tokens, abs=0.03
    )
    assert {shape.shape[0] // 16: shape.batches for shape in plan.shapes} == {
        length: count for (length, numbers), count in loader.shapes.items() if numbers == 768
    }
    assert f"{plan.tokens} tokens are padding" in str(plan) and "45 patches: " in str(plan)


def test_a_model_of_timm_trains_under_lightning(tmp_path):
    from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            small = NaFlexVitCfg(embed_dim=32, depth=1, num_heads=2)
            self.net, self.seen = NaFlexVit(small, num_classes=40), []

        def training_step(self, batch, number):
            images, labels = batch
            self.seen += labels.tolist()
            return torch.nn.functional.cross_entropy(self.net(images), labels)

        def validation_step(self, batch, number):
            self.log("val/loss", self.training_step(batch, number))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    split = Split(Pictures(), CROP, flip=0.5)
    data = tarpeg.ShardDataModule(split, split, augment=Augment(), workers=1, allow_overlap=True)
    net, stall = Net(), tarpeg.DataStallMonitor(0)
    training.trainer(tmp_path, callbacks=[stall], num_sanity_val_steps=0).fit(net, data)
    assert sorted(net.seen) == sorted([*range(32)] * 2) and stall.images_per_second > 0
    assert "preprocessing" in data.state_dict()


def test_a_sheet_shows_images_of_patches(tmp_path):
    split = Split(Pictures(), CROP, flip=0.5)
    data = tarpeg.ShardDataModule(split, split, augment=Augment(), workers=0, allow_overlap=True)
    with PIL.Image.open(tarpeg.contact_sheet(data, tmp_path / "sheet.png", samples=6)) as sheet:
        assert min(sheet.size) > 300
    with pytest.raises(ValueError, match="split='val' has sequences of patches: contact_sheet draws them"):
        tarpeg.comparison_sheet(data, tmp_path / "other.png", split="val")


def test_a_dataset_for_a_data_loader():
    dataset = tarpeg.Dataset(Loader(Split(Pictures(), CROP, flip=0.5), workers=0))
    found = list(torch.utils.data.DataLoader(dataset, batch_size=None))
    assert flat(found) == flat(batches(Pictures()))


def test_timms_random_erasing_takes_them():
    from timm.data.naflex_random_erasing import PatchRandomErasing

    images, _ = batches(Pictures(), augment=Augment())[0]
    erasing = PatchRandomErasing(erase_prob=1.0, device="cpu")
    patches = images["patches"].clone().unflatten(2, (-1, 3))
    erased = erasing(patches, images["patch_coord"], images["patch_valid"]).flatten(2)
    changed = (erased != images["patches"]).any(dim=2)
    assert (
        erased.shape == images["patches"].shape
        and changed.any()
        and not changed[~images["patch_valid"]].any()
    )
