"""The contact sheet, and tools/preview.py."""

from __future__ import annotations

import dataclasses
import re
from itertools import islice

import numpy as np
import pytest
import tarpeg
import torch
from helpers.captions import WORDS, Captioned, tokenize
from helpers.scripts import run_tool
from helpers.small_tars import sample
from helpers.training import module
from PIL import Image, ImageDraw, ImageFont
from tarpeg import (
    Affine,
    AspectBuckets,
    Augment,
    AugMix,
    CenterCrop,
    ColorJitter,
    Erase,
    GaussianBlur,
    Grayscale,
    GridMask,
    LetterBox,
    Mix,
    Patches,
    RandomShortestSize,
    ShardDataModule,
    Solarize,
    Split,
    comparison_sheet,
    contact_sheet,
)
from tarpeg.diagnostics import preview
from tarpeg.sampling.crops import RandomResizedCrop
from tarpeg.shards.pillow import open_rgb
from torchvision.transforms import v2

ORANGE = (0xE4, 0x57, 0x2E)


def cards(data, split="train", samples=4):
    loader = getattr(data, f"{split}_dataloader")()
    batch = next(iter(loader))
    data.augment.train(split == "train")
    return preview._cards(data.augment, loader, batch, loader.claim(), samples), batch, loader


def test_a_sheet(photos, tmp_path):
    data = module(photos, augment=Augment(affine=Affine(30), color=ColorJitter(0.4), erase=Erase(1.0)))
    first = sheet(data, tmp_path / "new" / "sheet.png", samples=6)
    assert (np.asarray(first) == ORANGE).all(-1).sum() > 6 * 50, "boxes are drawn"
    assert sheet(data, tmp_path / "again.png", samples=6) == first, "the same for the same epoch"
    assert sheet(data, tmp_path / "later.png", samples=6, epoch=1) != first
    wide = sheet(data, tmp_path / "wide.png", samples=50, columns=3)
    assert wide.width > first.width and wide.height > first.height


def test_the_box_matches_the_crop(photos):
    data = module(photos, augment=Augment(), workers=0)
    _, batch, loader = cards(data)
    loader.sampler.set_epoch(0)
    batch = next(iter(loader))
    request = loader.claim()
    for row, id in enumerate(request.ids.tolist()):
        source = open_rgb(bytes(loader.fetcher.shards.images([id])[0].numpy()))
        view = request.views[0].row(row)
        assert view.sizes[0].tolist() == [source.height, source.width]
        top, left, height, width = view.boxes[0].tolist()
        crop = source.resize((16, 16), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
        crop = np.asarray(crop)[:, ::-1] if view.flips[0] else np.asarray(crop)
        assert np.abs(batch.image[row].permute(1, 2, 0).numpy().astype(int) - crop).mean() < 4


@pytest.mark.parametrize(
    "crop",
    [
        AspectBuckets(32, step=8, min_size=8, upscale=True),
        Patches(8, [12, 20], 80),
        RandomShortestSize([24, 32], 60),
        RandomResizedCrop(16),
    ],
)
def test_the_boxes_in_a_photograph_are_those_of_its_batch(photos, monkeypatch, crop):
    framed, plain = [], preview._with_boxes
    monkeypatch.setattr(
        preview, "_with_boxes", lambda source, boxes: framed.append(boxes) or plain(source, boxes)
    )
    data = ShardDataModule(Split(photos, crop, flip=0.5), batch_size=4, workers=0, augment=Augment())
    loader = data.train_dataloader()
    for batch in islice(loader, 3):
        framed.clear()
        request = loader.claim()
        assert preview._cards(data.augment, loader, batch, request, 2)
        assert framed == [[box] for box in request.views[0].boxes[:2].tolist()]
    loader.close()


def test_normalisation_is_undone(photos):
    for augment in (Augment(), Augment([0, 0, 0], [1, 1, 1], space="ycbcr")):
        data = module(photos, augment=augment)
        found, batch, _ = cards(data, "val")
        for card, image in zip(found, batch.image, strict=True):
            before, after = (np.asarray(picture, int) for picture in card.pictures[1:])
            assert np.abs(before - after).max() <= 1 and card.texts[1:] == ["crop", "to the network"]
            shown = preview._picture(augment, augment(image[None])[0])
            assert np.abs(np.asarray(shown, int) - image.permute(1, 2, 0).numpy()).max() <= 1


def test_keys_labels_views_and_undecodable_images(photos, shard_of):
    found, batch, _ = cards(module(photos, augment=Augment(mix=Mix(5, mixup=0))))
    assert [card.key for card in found] == batch.key and " of " in "".join(card.label for card in found)
    split = Split(photos, RandomResizedCrop(16), views=2)
    found, _, _ = cards(ShardDataModule(split, batch_size=4, workers=0, augment=Augment(flip=0.5)))
    assert all(len(card.pictures) == len(card.texts) == 5 for card in found)
    split = Split(photos, RandomResizedCrop(16), channels=1)
    found, batch, _ = cards(ShardDataModule(split, batch_size=4, workers=0, augment=Augment([0.5], [0.25])))
    crop, after = (np.asarray(picture.resize((16, 16)), int) for picture in found[0].pictures[1:])
    assert np.array_equal(crop, after) and (crop == crop[..., :1]).all() and crop.std() > 1
    path = shard_of(*(sample(number, b"" if number == 2 else None) for number in range(4)))
    data = ShardDataModule(val=Split(path, CenterCrop(16)), workers=0, augment=Augment())
    with pytest.warns(UserWarning, match="takes its place"):
        found, _, _ = cards(data, "val")
    assert found[2].texts[0] == "cannot be decoded: replaced by another sample"


def test_the_suffix_is_the_format(photos, tmp_path, monkeypatch):
    data = module(photos)
    for name, kind in (("x.jpg", "JPEG"), ("x.PNG", "PNG"), ("x", "PNG")):
        with Image.open(contact_sheet(data, tmp_path / name, samples=1)) as image:
            assert image.format == kind
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^path='.*x\.txt' must end in \.png"):
        contact_sheet(data, tmp_path / "x.txt", samples=1)
    with pytest.raises(ValueError, match=r"^path='s3://b' must be a local folder"):
        contact_sheet(data, "s3://b/x.png", samples=1)
    assert not (tmp_path / "s3:").exists()


def test_names_of_classes_and_of_several_splits(photos, tmp_path):
    label = torch.tensor([0.25, 0, 0.75])
    assert preview._label(label, ["ant", "bee"]) == "label 0.75 of 2 + 0.25 of ant"
    assert preview._label(torch.tensor(1), ["ant", "bee"]) == "label 1 bee"
    assert preview._label(torch.tensor([1, 2]), ()) == "label 1, 2"
    a, b = (Split(f"{photos}/{name}.tar", CenterCrop(16)) for name in ("a", "b"))
    data = ShardDataModule(val=[a, b], workers=0)
    assert sheet(data, tmp_path / "x.png", split="val/0") != sheet(data, tmp_path / "y.png", split="val/1")
    with pytest.raises(ValueError, match=r"^split='val' .*: val/0, val/1"):
        contact_sheet(data, tmp_path / "x.png", split="val")


def test_the_result_of_a_transform_is_not_called_a_crop(photos):
    for transform, text in ((lambda image: 255 - image, "after transform="), (None, "crop")):
        split = Split(photos, RandomResizedCrop(16), transform=transform)
        found, *_ = cards(ShardDataModule(split, batch_size=4, workers=0, augment=Augment()))
        assert {card.texts[1] for card in found} == {text}


def test_letters_that_no_font_has_are_escaped(monkeypatch):
    default = ImageFont.load_default(14)
    assert preview._font_of("n01440764/cat_1", 14)[1] == "n01440764/cat_1"
    preview._fonts.cache_clear()
    monkeypatch.setattr(preview, "_FONTS", ())
    text = "Z\u00fcrich \u4e2d \udcff\n"
    with pytest.warns(UserWarning, match="fonts-noto-cjk"):
        font, shown = preview._font_of(text, 14)
    assert (font.getname(), shown) == (default.getname(), "Z\\xfcrich \\u4e2d \\udcff\n".replace("\n", "\\n"))
    preview._fonts.cache_clear()
    folder = pytest.importorskip("matplotlib").get_data_path()
    monkeypatch.setattr(preview, "_FONTS", ("nothing.ttf", f"{folder}/fonts/ttf/DejaVuSans.ttf"))
    assert preview._font_of("Z\u00fcrich", 14)[1] == "Z\u00fcrich", "the font that has more"
    bitmap = ImageFont.load_default_imagefont()
    page = Image.new("RGB", (200, 40))
    monkeypatch.setattr(preview, "_fonts", lambda size: [])  # a Pillow without FreeType
    monkeypatch.setattr(preview.ImageFont, "load_default", lambda size: bitmap)
    preview._write(ImageDraw.Draw(page), (0, 0), text, 150, 14, "white")
    assert np.asarray(page).any()


def test_captions():
    def caption(**parts):
        return preview._caption(Augment(**parts).params([0], (40, 40)), 0, (40, 40))

    moved, color = Affine((90, 90), translate=(0.25, 0.25)), ColorJitter((1.5, 1.5), hue=(0.25, 0.25))
    text = "mirrored, +90°, x1.00, by +10, +10\nbrightness 1.50\nhue +90°"
    assert caption(flip=1.0, affine=moved, color=color) == text
    assert caption(color=ColorJitter(0.4, probability=0)) == "unchanged"
    assert caption(erase=Erase(1.0), mask=GridMask(1.0, 4)) == "erased, 100% masked"
    policies = [Grayscale(), GaussianBlur(3, probability=0), Solarize()]
    assert caption(flip=1.0, policy=policies, erase=Erase(1.0)) == "mirrored, grayscale, solarize, erased"
    assert re.fullmatch(r"\d+% of it, mixed", caption(policy=AugMix()))


def test_captions_of_the_samples_are_below_their_pictures(tmp_path):
    texts = {
        "one": tarpeg.Text("txt", tokenize, lines=True, max_length=6),
        "all": tarpeg.Text("txt", lines=True, choose="all"),
    }
    split = tarpeg.Split(Captioned(7, k3={"txt": b"a"}), RandomResizedCrop(32), members=texts)
    data = tarpeg.ShardDataModule(train=split, augment=Augment(), workers=0, batch_size=7)
    found, batch, _ = cards(data, samples=7)
    for row, card in enumerate(found):
        (one,) = [line for line in card.lines if line.startswith("one: ")]
        tokens = int(batch.extra["one"].attention_mask[row].sum())
        caption, _, count = one.removeprefix("one: ").partition(" [")
        assert count == f"{tokens} tokens]"
        ids = batch.extra["one"].input_ids[row, :tokens].tolist()
        assert [WORDS[id - 4] for id in ids] == caption.split()[:6]
        assert [line.removeprefix("all: ") for line in card.lines if line != one] == batch.extra["all"][row]
    plain = dataclasses.replace(split, members=())
    heights = []
    for each in (split, plain):
        data = tarpeg.ShardDataModule(train=each, augment=Augment(), workers=0, batch_size=7)
        with Image.open(contact_sheet(data, tmp_path / "sheet.png", samples=4)) as image:
            heights.append(image.height)
    assert heights[0] > heights[1]


def test_long_captions_are_broken_into_lines():
    lines = preview._wrapped(["word " * 99, "x" * 400, "short"], 200)
    assert [line[:4] for line in lines] == ["word"] * 3 + ["xxxx"] * 3 + ["shor"]
    assert all(len(line) < 60 for line in (*lines[:2], *lines[3:5]))
    assert preview._wrapped(["a"] * 30, 200)[-1] == "and 22 more"


def test_other_modules_and_none(photos, tmp_path):
    for augment in (torch.nn.Identity(), None):
        data = module(photos, augment=augment)
        assert sheet(data, tmp_path / "x.png", samples=1, split="val").width > 300


def test_crops_beside_torchvisions(photos, tmp_path):
    data = module(photos)
    done = comparison_sheet(data, tmp_path / "new" / "sheet.png", samples=6)
    assert len(done.keys) == len(done.means) == len(done.maxima) == 6
    assert 0 < max(done.means) < 4 and max(done.maxima) < 40
    assert Image.open(done.path).width > 600
    loader = data.train_dataloader()
    loader.sampler.set_epoch(0)
    assert [key for batch in loader for key in batch.key][:6] == list(done.keys)
    worst = done.keys[int(np.argmax(done.means))]
    assert f"most in {worst!r}: mean {max(done.means):.2f}" in str(done)
    for interpolation in ("nearest", "bicubic", "area"):
        split = Split(
            photos, RandomResizedCrop(16), flip=0.5, interpolation=interpolation, fidelity="exact", views=2
        )
        data = ShardDataModule(split, batch_size=4, workers=0, augment=None)
        done = comparison_sheet(data, tmp_path / "exact.png", samples=3)
        assert max(done.maxima) <= 1, f"{interpolation}: as docs/fidelity.md promises"


@pytest.mark.parametrize("crop", [LetterBox((20, 40)), RandomShortestSize([20, 30], 60, multiple=16)])
def test_crops_that_pad_beside_torchvisions(photos, tmp_path, crop):
    split = Split(photos, crop, flip=0.5, fidelity="exact")
    data = ShardDataModule(split, batch_size=4, workers=0, augment=None)
    done = comparison_sheet(data, tmp_path / "sheet.png", samples=3)
    assert max(done.maxima) <= 1


def test_a_transform_beside_torchvisions(photos, tmp_path):
    def compared(*steps):
        split = Split(photos, transform=v2.Compose([v2.RandomResizedCrop(16), *steps]))
        data = ShardDataModule(split, batch_size=4, workers=0, augment=None)
        return comparison_sheet(data, tmp_path / "sheet.png", samples=3)

    normal = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    flip, plain = v2.RandomHorizontalFlip(), compared(v2.RandomHorizontalFlip())
    for dtype in (torch.float32, torch.bfloat16):
        assert compared(flip, v2.ToImage(), v2.ToDtype(dtype, scale=True), normal) == plain
    with pytest.raises(ValueError, match="transform="):
        compared(v2.RandAugment())


def test_a_wrong_box_is_seen(photos, tmp_path, monkeypatch):
    done = comparison_sheet(module(photos), tmp_path / "a.png")
    by_torchvision = preview._by_torchvision
    monkeypatch.setattr(
        preview,
        "_by_torchvision",
        lambda source, crop, box, *rest: by_torchvision(
            source, crop, [box[0], box[1], box[2], box[3] // 2], *rest
        ),
    )
    wrong = comparison_sheet(module(photos), tmp_path / "b.png")
    assert min(wrong.means) > 3 * max(done.means)


def test_a_center_crop_beside_torchvisions_own_resize_and_crop(photos, tmp_path):
    def compared(fidelity):
        split = Split(photos, CenterCrop(24, shorter=29), fidelity=fidelity)
        return comparison_sheet(ShardDataModule(val=split, workers=0), tmp_path / "a.png", split="val")

    assert max(compared("exact").maxima) == 0
    assert max(compared("fast").means) > 1, "the box of whole pixels of the source"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"samples": 0}, "samples=0 must be an integer of at least 1"),
        ({"epoch": -1}, "epoch=-1 must be"),
        ({"split": "predict"}, "split='predict' must be a split of the data: train"),
        ({"split": "val"}, "split='val' must not be streamed"),
    ],
)
def test_settings_out_of_range(photos, tmp_path, settings, text):
    crop = CenterCrop(16)
    data = ShardDataModule(Split(photos, crop), Split(photos, crop, streaming=True), workers=0)
    with pytest.raises(ValueError, match=text):
        contact_sheet(data, tmp_path / "x.png", **settings)


def sheet(data, path, **settings):
    """The contact sheet, as RGB."""
    return Image.open(contact_sheet(data, path, **settings)).convert("RGB")


@pytest.mark.slow
def test_the_tool(tmp_path):
    small = ("data.prepare.train=20", "data.prepare.val=10", "samples=4")
    for arguments in (("augment=heavy",), ("augment=mix", "split=val"), ("experiment=article",)):
        done = run_tool("preview", *small, *arguments, cwd=tmp_path)
        assert done.returncode == 0 and done.stdout == "written: outputs/preview.png\n", done.stderr
        assert Image.open(tmp_path / "outputs" / "preview.png").height > 300
    assert {path.name for path in (tmp_path / "outputs").iterdir()} == {"preview.png"}
    done = run_tool("preview", *small, "compare=torchvision", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.endswith("written: outputs/preview.png\n"), done.stderr
    assert done.stdout.startswith(
        "difference from torchvision v2 over 4 samples, in levels of 0 to 255: mean 0."
    )
    assert "compare='pillow' must be torchvision or null" in run_tool("preview", "compare=pillow").stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("data=shards", "data.train.shards is not set"),
        ("split=vall", "split=vall must be one of train, val, test, predict; did you mean 'val'?"),
        ("data=shards data.train.shards=/nothing/a.tar data.val.shards=/x", "shard /nothing/a.tar"),
        ("augment=heavy augment.erase.probability=2", "probability=2 of Erase must be a probability in 0..1"),
    ],
)
def test_mistakes_end_in_one_line(tmp_path, arguments, message):
    done = run_tool("preview", *arguments.split(), cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("preview: ") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1
