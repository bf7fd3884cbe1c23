"""Semantic masks: the pixels that torch takes, the memory of the batch, and broken masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tarpeg
import torch
from helpers.chains import (
    chain,
    moved_by_torchvision,
    orientation_of,
    turned_by_torchvision,
    upright_mask,
    view_of,
)
from helpers.loaders import load
from helpers.masks import png as masked_png, regions
from helpers.pictures import bit_flipped, saved
from helpers.scenes import Scenes, number_of, objects
from PIL import Image
from tarpeg import Augment, Boxes, FloatMap, Masks, RandomResizedCrop, ShardError, Split, View, Whole
from tarpeg.cache.masks import banded
from tarpeg.targets.masks import Part, warped
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

HERE = {"workers": 0, "threads": 0}


def png(values):
    """A member with a PNG of these values."""
    return {"png": saved(Image.fromarray(np.asarray(values)), "PNG")}


def scenes(size=(48, 64), **members):
    """Scenes whose masks have the number of their sample everywhere, but for those given as p5=..."""
    flat = {number: png(np.full(size, number, np.uint8)) for number in range(12)}
    return Scenes(flat | {int(name[1:]): member for name, member in members.items()})


def value_of(content, **options):
    (value,) = Masks("png", **options).read(Scenes({0: content}, count=1), np.array([0]))
    if isinstance(value, Exception):
        raise value
    return value


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_a_batch_of_masks_is_a_tensor_and_each_is_that_of_its_image(dtype):
    found = []
    for options in (HERE, {"workers": 1}, {"workers": 0, "threads": 2}):
        split = Split(scenes(), RandomResizedCrop(24), flip=0.5, targets=Masks("png", dtype=dtype))
        loader = load(None, split=split, **options)
        batches = list(loader)
        loader.close()
        for batch in batches:
            assert batch.targets.shape == (4, 24, 24) and batch.targets.dtype == getattr(torch, dtype)
            assert batch.targets.flatten(1).float().std(1).max() == 0
            assert batch.targets[:, 0, 0].tolist() == list(map(number_of, batch.image))
        found.append(torch.cat([batch.targets for batch in batches]))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_images_or_masks_that_are_kept_are_never_overwritten():
    split = Split(scenes(), Whole(16), targets=Masks("png"), shuffle=False)
    loader = load(None, split=split, batch_size=1, shuffle=False, keys=False, workers=1)
    for field, step in (("image", 10), ("targets", 1)):
        kept = [getattr(batch, field) for batch in loader]
        found = [round(float(each.float().mean()) / step) for each in kept]
        assert found == list(range(12))
    loader.close()


def clear(source, size):
    """Which pixels of a result have a centre that is not on a border of pixels of the source: bool [H, W].

    Elsewhere torch takes one or the other, by the memory format, and so does Pillow.
    """
    rows, columns = (
        (2 * np.arange(result) + 1) * given % (2 * result) != 0
        for given, result in zip(source, size, strict=True)
    )
    return torch.from_numpy(rows[:, None] & columns)


def test_masks_are_those_of_torch_over_random_chains(chains=150):
    """But for an affine's pixels whose place before is within 1/100 pixel of a border of pixels."""
    rng = np.random.default_rng(0)
    for _ in range(chains):
        source, box, size, flip, affine = chain(rng, most=500)
        orientation, stored = orientation_of(rng, source)
        raw = rng.integers(0, 255, stored, dtype=np.uint8)
        mask = upright_mask(raw, orientation)
        plain = view_of(source, box, size, flip, None)
        wanted = turned_by_torchvision(tv_tensors.Mask(raw[None]), orientation)
        wanted = moved_by_torchvision(wanted, source, box, size, flip, None)
        assert torch.equal(Masks("png", interpolation="nearest").move(mask, plain), wanted[0])
        wanted = v2.functional.crop(torch.from_numpy(mask[None]), *box)
        wanted = v2.functional.resize(wanted, list(size), InterpolationMode.NEAREST_EXACT)
        wanted = v2.functional.horizontal_flip(wanted) if flip else wanted
        exact, is_clear = Masks("png").move(mask, plain), clear(box[2:], size)
        is_clear = is_clear.flip(-1) if flip else is_clear
        assert (exact == wanted[0])[is_clear].all()
        wanted = exact[None]
        if affine is None:
            continue
        view = view_of(source, box, size, flip, affine)
        wanted = v2.functional.affine(tv_tensors.Mask(wanted), **affine, fill=255)[0]
        found = Masks("png").move(mask, view)
        back = np.linalg.inv(np.vstack([view.affine[0], [0, 0, 1]]))
        y, x = np.mgrid[: size[0], : size[1]] + 0.5
        places = (np.stack([x, y, np.ones_like(x)], -1) @ back.T)[..., :2]
        is_clear = (np.abs(places - places.round()) > 0.01).all(-1)
        assert (found.numpy() == wanted.numpy())[is_clear].all(), (source, box, size, flip, affine)


def test_pixels_are_pillows():
    mask = np.random.default_rng(0).integers(0, 255, (97, 131), dtype=np.uint8)
    for size in ((50, 70), (200, 131), (97, 33), (7, 300), (194, 262), (291, 100)):
        found = Masks("png").move(mask, View.whole(mask.shape, size))
        wanted = Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST)
        assert (found == torch.from_numpy(np.array(wanted)))[clear(mask.shape, size)].all()


@pytest.mark.parametrize("interpolation", ["nearest-exact", "nearest"])
def test_what_views_read_of_masks_is_what_whole_masks_give(interpolation, chains=40):
    """PNGs in bands, others with a byte per pixel, and those that Pillow decodes; also at a place."""
    rng = np.random.default_rng(2)
    masks = Masks("png", interpolation=interpolation, labels={value: 20 - value for value in range(21)})
    for _ in range(chains):
        (height, width), box, size, _, affine = chain(rng, most=300)
        values = regions(height, width, int(rng.integers(0, 99)))
        bits = saved(Image.fromarray(values > 3), "PNG")
        contents = [masked_png(values), banded(masked_png(values)), bits]
        place = (rng.random(4) * [*size, *size]).astype(int)
        place[2:] = 1 + place[2:] * (np.array(size) - 1 - place[:2]) // size
        views = [
            View(
                np.tile((height, width), (3, 1)).astype(np.int32),
                np.tile(box, (3, 1)).astype(np.int32),
                rng.random(3) < 0.5,
                size,
                None
                if affine is None
                else np.repeat(view_of((8, 8), (0, 0, 8, 8), size, False, affine).affine, 3, 0),
                places,
            )
            for places in (None, np.tile(place, (3, 1)).astype(np.int32))
        ]
        source = Scenes({number: {"png": content} for number, content in enumerate(contents)}, count=3)
        whole = masks.read(source, np.arange(3))
        parts = masks.read_views(source, np.arange(3), views, 2)
        assert [isinstance(part, Part) for part in parts] == [True, True, False]
        assert masks.misfits(parts, views[0].sizes) == [""] * 3
        for view in views:
            wanted = masks.move_all(whole, view).pictures["mask"]
            assert np.array_equal(masks.move_all(parts, view).pictures["mask"], wanted)
            some = [2, 0, 1, 0]  # as if two were replaced
            found = masks.move_all([parts[row] for row in some], view.rows(some)).pictures["mask"]
            assert np.array_equal(found, wanted[some])


def test_augment_moves_masks_as_boxes_and_fills_outside():
    values = np.zeros((48, 64), np.uint8)
    values[10:30, 20:50] = 1
    content = png(values) | objects((20, 10, 30, 20))
    augment = Augment(flip=0.5, affine=tarpeg.Affine(translate=0.4))
    targets = [Boxes("json:objects"), Masks("png", fill=9)]
    split = Split(Scenes(dict.fromkeys(range(12), content)), Whole((48, 64)), targets=targets)
    config = tarpeg.LoaderConfig(batch_size=12, **HERE)
    _, found = next(iter(tarpeg.Loader(split, augment=augment, config=config)))
    assert any((target["mask"] == 9).any() for target in found)
    for target in found:
        assert isinstance(target["mask"], tv_tensors.Mask)
        y, x = np.nonzero(target["mask"].numpy() == 1)
        bounds = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
        assert np.abs(bounds - target["boxes"][0].numpy()).max() <= 0.501


def test_views_and_left_out_images():
    split = Split(scenes(p3={"png": None}), [Whole(32), Whole(24)], targets=Masks("png"))
    for workers in (0, 1):
        loader = load(None, split=split, shuffle=False, workers=workers, on_error="leave_out", max_bad=1.0)
        with pytest.warns(UserWarning, match=r"scene/003.*'png'.*left out"):
            batches = list(loader)
        loader.close()
        assert [each.shape for each in batches[0].targets] == [(3, 32, 32), (3, 24, 24)]
        assert [mask[0, 0].item() for batch in batches for mask in batch.targets[1]] == [
            number for number in range(12) if number != 3
        ]


def test_values_palettes_and_colours():
    grays = np.array([[0, 7], [7, 255]], np.uint8)
    assert value_of(png(grays)).tolist() == grays.tolist()
    assert value_of(png(grays), labels={0: 3, 7: 0, 255: 255}).tolist() == [[3, 0], [0, 255]]
    indexed = Image.frombytes("P", (2, 2), grays.tobytes())
    indexed.putpalette([200, 100, 50] * 256)
    assert value_of({"png": saved(indexed, "PNG")}).tolist() == grays.tolist()
    wide = png(np.array([[0, 1000]], np.uint16))
    assert value_of(wide, labels={0: 0, 1000: 4}).tolist() == [[0, 4]]
    assert value_of({"png": saved(Image.fromarray(grays > 0), "PNG")}).tolist() == [[0, 1], [1, 1]]
    colours = np.array([[[255, 0, 0], [0, 0, 9]]], np.uint8)
    assert value_of(png(colours), labels={(255, 0, 0): 2, (0, 0, 9): 0}).tolist() == [[2, 0]]


FLAT = np.full((48, 64), 5, np.uint8)
SPOT = FLAT.copy()
SPOT[3, 2] = 77
NOISE = np.random.default_rng(0).integers(0, 12, (48, 64), np.uint8)


BROKEN = {
    "a bit": ({"png": bit_flipped(banded(png(NOISE)["png"]))}, "checksum differs"),
    "a bit without bands": ({"png": bit_flipped(png(NOISE)["png"])}, "checksum differs"),
    "size": (png(FLAT[:, :63]), "48 x 63, and its image 48 x 64"),
    "missing": ({"png": None}, "no member 'png'"),
    "empty": ({"png": b""}, "member 'png', a mask"),
    "cut": ({"png": png(NOISE)["png"][:700]}, "member 'png', a mask"),
    "a JPEG": ({"png": saved(Image.fromarray(FLAT), "JPEG")}, "lossless"),
    "value": (png(SPOT), r"pixel \(x, y\) = \(2, 3\) is 77.*labels="),
    "colours": (png(np.zeros((48, 64, 3), np.uint8)), "colours.*labels="),
    "alpha": ({"png": saved(Image.new("LA", (64, 48)), "PNG")}, "LA"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_masks_follow_on_error(name):
    content, text = BROKEN[name]
    table = {number: number for number in range(12)}
    split = Split(scenes(p5=content), Whole(16), targets=Masks("png", labels=table))
    with pytest.raises(ShardError, match=f"key 'scene/005'.*{text}"):
        list(load(None, split=split, on_error="raise", **HERE))
    with pytest.warns(UserWarning, match=f"key 'scene/005'.*{text}.*its place"):
        batches = list(load(None, split=split, **HERE))
    for image, mask in (row for batch in batches for row in zip(batch.image, batch.targets, strict=True)):
        assert number_of(image) == mask[0, 0] != 5


def test_wide_values_need_a_table():
    with pytest.raises(ShardError, match=r"1000.*labels="):
        value_of(png(np.array([[0, 1000]], np.uint16)))


def test_a_mask_of_an_image_that_exif_turns_is_upright():
    upright = (np.arange(64)[:, None] + np.arange(48)).astype(np.uint8)
    image = Image.fromarray(np.repeat(np.rot90(upright)[..., None], 3, 2))
    content = {"jpg": saved(image, "JPEG", orientation=6, quality=100), **png(upright)}
    split = Split(Scenes({0: content}, count=1), Whole((64, 48)), targets=Masks("png"))
    images, masks, _ = next(iter(load(None, split=split, **HERE)))
    assert torch.equal(masks[0], torch.from_numpy(upright))
    assert (images[0, 1].float() - masks[0]).abs().max() < 4


@pytest.mark.parametrize(
    "options",
    [
        {"extension": ""},
        {"extension": "json:mask"},
        {"labels": {}},
        {"labels": {1: 256}},
        {"labels": {1: 1, (1, 2, 3): 2}},
        {"labels": {(1, 2): 1}},
        {"labels": [1]},
        {"fill": 256},
        {"fill": 1.5},
        {"interpolation": "bilinear"},
        {"dtype": "float32"},
    ],
    ids=repr,
)
def test_wrong_settings(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Masks(**{"extension": "png", **options})


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({-1: 255, 0: 0}, "labels={-1: 255} of Masks: -1 must be a value in the file"),
        (dict(enumerate(range(4000))), "labels={256: 256} .*0..255; for more classes, give FloatMap"),
        ({(1, 2, 3): 2, 1: 1}, "labels={1: 1} of Masks must be a colour"),
    ],
)
def test_the_wrong_pair_of_a_table_is_named(labels, text):
    with pytest.raises(ValueError, match=text) as caught:
        Masks("png", labels=labels)
    assert len(str(caught.value)) < 200


def test_more_classes_and_more_maps_than_masks_have():
    with pytest.raises(ValueError, match="field 'mask'; the other may be a FloatMap"):
        Split(scenes(), Whole(16), targets=[Masks("a.png"), Masks("b.png")])
    wide = np.kron(np.arange(12, dtype=np.uint16).reshape(3, 4) * 1000, np.ones((16, 16), np.uint16))
    lanes = np.full((48, 64), 7, np.uint8)
    source = Scenes({0: {"a.png": png(lanes)["png"], "b.png": png(wide)["png"]}}, count=1)
    targets = [Masks("a.png"), FloatMap("b.png", name="wide", interpolation="nearest-exact")]
    batch = next(iter(load(None, split=Split(source, Whole((48, 64)), targets=targets), **HERE)))
    (found,) = batch.targets
    assert torch.equal(found["wide"].long(), torch.from_numpy(wide.astype(np.int64)))
    assert found["mask"].unique().tolist() == [7]


@pytest.mark.parametrize("moved", [[], [1, 4], [0, 1, 2, 3, 4]])
def test_masks_that_no_affine_moves_stay_beside_others(moved):
    rng = np.random.default_rng(len(moved))
    masks = rng.integers(0, 255, (5, 9, 12), np.uint8)
    affine = np.tile(np.eye(2, 3), (5, 1, 1))
    affine[moved, 0, 2] = 2.0  # by whole pixels, to the right
    expected = masks.copy()
    expected[moved] = np.pad(masks[moved], ((0, 0), (0, 0), (2, 0)), constant_values=7)[:, :, :12]
    given = masks.copy()
    assert (warped(given, affine, 7) == expected).all() and (given == masks).all()


@pytest.mark.parametrize("target", [Masks("png"), tarpeg.InstanceMap("png"), tarpeg.FloatMap("png")])
@pytest.mark.parametrize("kind", ["shards", "mixture", "stream"])
def test_a_mask_is_not_the_image_of_a_sample_without_one(shard_of, target, kind):
    """The network would see its answer."""
    mask = saved(Image.fromarray(np.full((16, 16), 3, np.uint8)), "PNG")
    photo = saved(Image.new("RGB", (16, 16), (9, 99, 200)), "JPEG")
    names = dict.fromkeys(range(8), "jpg") | {3: "jfif"}
    shard = shard_of(
        *([(f"k{n}.png", mask), (f"k{n}.cls", b"0"), (f"k{n}.{name}", photo)] for n, name in names.items())
    )
    split = Split(shard, Whole(16), targets=target, streaming=kind == "stream", shuffle=False)
    config = tarpeg.LoaderConfig(batch_size=4, workers=0, on_error="raise")
    if kind == "mixture":
        mixture = tarpeg.Mixture({"a": split, "b": replace(split, shuffle=True)}, repeat={"a": 1, "b": 1})
        loader = tarpeg.MixtureLoader(mixture, config=config)
    else:
        loader = tarpeg.Loader(split, config=config, training=False)
    message = r"key 'k3': member 'png', which targets= reads, is the image of this sample.*Write the image as"
    with pytest.raises(ShardError, match=message):
        list(loader)
    left_out = tarpeg.Loader(split, config=replace(config, on_error="leave_out"), training=False)
    assert sum(len(batch.image) for batch in left_out) == 7
    report = tarpeg.build_cache(shard, shard.parent / "cache", masks="png", executor=0)
    (found,) = report.quarantine
    assert (found.key, report.samples) == ("k3", 7)
    assert found.reason == "it has no image: its member 'png' is a mask, by masks="


def test_a_photograph_that_is_called_the_mask_has_a_remedy(shard_of):
    photo, mask = saved(Image.new("RGB", (16, 16)), "PNG"), png(np.zeros((16, 16), np.uint8))["png"]
    shard = shard_of([("k.png", photo), ("k.seg.png", mask), ("k.cls", b"0")])
    cache = shard.parent / "cache"
    with pytest.raises(tarpeg.CacheError, match=r"by masks=; if 'seg\.png' is the mask, give masks="):
        tarpeg.build_cache(shard, cache, masks="png", executor=0, max_bad=0)
    assert tarpeg.build_cache(shard, cache, masks="seg.png", executor=0).samples == 1


@pytest.mark.parametrize(
    ("names", "remedy", "works"),
    [
        (("png", "seg.png"), r"Give targets= the extension 'seg\.png'", {"targets": Masks("seg.png")}),
        (("png", "tif"), r"Give Split\(image='tif'\)", {"image": "tif"}),
        (("png",), r"Split\(image='png'\) if one picture is both", {"image": "png"}),
    ],
)
def test_what_helps_if_a_picture_is_taken_for_the_image(shard_of, names, remedy, works):
    content = {
        "png": saved(Image.new("L", (16, 16), 3), "PNG"),
        "tif": saved(Image.new("RGB", (16, 16)), "TIFF"),
    }
    shard = shard_of([(f"k0.{name}", content[name[-3:]]) for name in names] + [("k0.cls", b"0")])
    split = Split(shard, Whole(16), targets=Masks("png"))
    with pytest.raises(ShardError, match=remedy):
        next(iter(load(None, split=split, on_error="raise", **HERE)))
    batch = next(iter(load(None, split=replace(split, **works), on_error="raise", **HERE)))
    assert batch.targets.unique().tolist() == [3]


def test_tables_of_colours_in_data_modules_and_mixtures():
    def split(extent):
        picture = np.zeros((48, 64, 3), np.uint8)
        picture[:, :extent] = (128, 64, 128)
        source = scenes(**{f"p{number}": png(picture) for number in range(12)})
        colours = Masks("png", labels={(0, 0, 0): 0, (128, 64, 128): 1})
        return Split(source, Whole((48, 64)), targets=colours)

    data = tarpeg.ShardDataModule(split(32), batch_size=4, **HERE)
    data.setup("fit")
    assert next(iter(data.train_dataloader()))[1].double().mean() == 0.5 and data.classes is None
    mixture = tarpeg.Mixture({"x": split(32), "y": split(64)}, weights={"x": 0.5, "y": 0.5})
    loader = tarpeg.MixtureLoader(mixture, 4, workers=0)
    assert next(iter(loader))[1].double().mean(dim=(1, 2)).tolist() == [0.5, 0.5, 1, 1]


def test_names_of_boxes_beside_masks_in_colours_are_compared():
    colours = Masks("png", labels={(0, 0, 0): 0, (128, 64, 128): 1})
    train, val = (
        [Boxes("json:objects", labels=names), colours] for names in (["car", "cat"], ["cat", "car"])
    )
    data = tarpeg.ShardDataModule(
        Split(scenes(), Whole((48, 64)), targets=train),
        Split(scenes((48, 65)), Whole((48, 65)), targets=val),
        allow_overlap=True,
        **HERE,
    )
    with pytest.raises(ShardError, match="'car'"):
        data.setup("fit")
