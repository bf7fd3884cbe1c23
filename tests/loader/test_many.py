"""Samples with several images: the pixels of each decoded alone, whatever makes the batches; bad ones."""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np
import pytest
import tarpeg
import torch
from helpers.loaders import RUNNERS, name_of
from helpers.pictures import jpeg, picture, tensor
from helpers.several import COUNT, SIDES, pair, pairs, stack, stacks
from helpers.small_tars import write_tar
from helpers.training import heavy
from tarpeg import Augment, CenterCrop, LetterBox, Loader, LoaderConfig, RandomResizedCrop, Split, Whole
from tarpeg.diagnostics import preview

LIST, PATTERN = [f"{side}.jpg" for side in SIDES], "*.jpg"
CROP = RandomResizedCrop(32)
HERE = {"workers": 0, "threads": 0}
FORMS = {"list": (pairs, LIST), "pattern": (stacks, PATTERN)}


def loader_of(source, image, crop=CROP, *, augment=None, training=True, on=None, state=None, **options):
    config = {name: options.pop(name) for name in LoaderConfig.__dataclass_fields__ if name in options}
    config = LoaderConfig(**{"batch_size": 4, **HERE, **config})
    split = Split(source, crop, **{"flip": 0.5, "image": image, **options})
    loader = Loader(split, training=training, augment=augment, config=config, keys=True, **(on or {}))
    if state is not None:
        loader.load_state_dict(state)
    return loader


def rows(batch):
    """The images of each sample of a batch: a list of tensors [C, H, W] per row."""
    if isinstance(batch.image, tarpeg.RaggedImages):
        images, offsets = batch.image
        assert offsets[0] == 0 and offsets[-1] == len(images) and offsets.dtype == torch.int64
        return [list(part) for part in images.tensor_split(offsets[1:-1])]
    return [list(row) for row in batch.image.unbind(1)]


def facts(loader, epochs=1):
    """What an epoch delivers by key, and the bytes of its batches in order."""
    found = []
    for _ in range(epochs):
        for batch in loader:
            images = batch.image if isinstance(batch.image, torch.Tensor) else batch.image.images
            offsets = [] if isinstance(batch.image, torch.Tensor) else batch.image.offsets.tolist()
            found.append((batch.key, offsets, batch.label.tolist(), images.numpy().tobytes()))
    loader.close()
    return found


def alone(file, box, flip, size, **options):
    """One image, decoded by ``decode_batch``."""
    given = [tensor(file)], torch.from_numpy(box)[None], size, torch.tensor([bool(flip)])
    image, status = tarpeg.decode_batch(*given, **options)
    assert status.tolist() == [0]
    return image[0]


@pytest.mark.parametrize("shared", [None, False], ids=["shared", "apart"])
def test_images_of_a_list_are_decoded_as_each_alone(tmp_path, shared):
    loader = loader_of(pairs(tmp_path / "a.tar"), LIST, shared_box=shared)
    seen = []
    for batch in loader:
        assert batch.image.shape[1:] == (len(batch.key), 3, 32, 32) and len(batch.image) == 2
        views = loader.claim().views
        for row, key in enumerate(batch.key):
            files = pair(int(key[1:]))
            assert int(batch.label[row]) == int(key[1:])
            for number, side in enumerate(SIDES):
                view = views[number].row(row)
                expected = alone(files[side], view.boxes[0], view.flips[0], 32)
                assert torch.equal(batch.image[number, row], expected)
            seen.append(key)
        same = [
            np.array_equal(getattr(views[0], name), getattr(views[1], name)) for name in ("boxes", "flips")
        ]
        assert all(same) is (shared is None)
    assert sorted(seen) == [f"k{number:02d}" for number in range(COUNT)]


def test_the_first_image_and_images_apart_are_drawn_as_views_are(tmp_path):
    source = pairs(tmp_path / "several.tar")
    single = [
        (f"k{n:02d}.{name}", data)
        for n in range(COUNT)
        for name, data in (("jpg", pair(n)["left"]), ("cls", b"%d" % n))
    ]
    one = loader_of(write_tar(tmp_path / "one.tar", single), None, views=2)
    for batch, other in zip(loader_of(source, LIST, shared_box=False), one, strict=True):
        assert batch.key == other.key and torch.equal(batch.image[0], other.image[0])


@pytest.mark.parametrize("shared", [None, True], ids=["apart", "shared"])
def test_images_of_a_pattern_are_decoded_as_each_alone_in_natural_order(tmp_path, shared):
    crop = LetterBox((40, 24), fill=(9, 8, 7)) if shared else CROP
    loader = loader_of(stacks(tmp_path / "a.tar"), PATTERN, crop, shared_box=shared)
    for batch in loader:
        (view,) = loader.claim().views
        assert view.samples.tolist() == [int(batch.key[row][1:]) for row in view.batch_rows.tolist()]
        for row, (key, images) in enumerate(zip(batch.key, rows(batch), strict=True)):
            files, own = stack(int(key[1:])), view.row(row).parts()
            assert len(images) == len(files) == len(own)
            for number, each in enumerate(sorted(files)):  # 0, 1, 2, 10
                assert own.sizes[number].tolist() == [50 + each, 60 + 3 * int(key[1:])]
                top, left, height, width = own.all_places[number].tolist()
                part = images[number][:, top : top + height, left : left + width]
                expected = alone(files[each], own.boxes[number], own.flips[number], (height, width))
                assert torch.equal(part, expected)
                if shared:
                    assert own.places[number].tolist() == own.places[0].tolist()
                    assert own.flips[number] == own.flips[0]
                    part[:] = torch.tensor([9, 8, 7])[:, None, None]
                    assert torch.equal(images[number], part[:, :1, :1].expand_as(images[number]))


def test_a_shared_box_is_a_share_of_each_image(tmp_path):
    """Of images of other sizes it is scaled, to whole pixels."""
    members = []
    for n in range(8):
        files = {"left.jpg": jpeg("420", 90, 60, n), "right.jpg": jpeg("444", 180, 120, n)}
        files["up.jpg"] = saved_on_its_side(n)
        members += [(f"k{n}.{name}", data) for name, data in files.items()]
    source = write_tar(tmp_path / "a.tar", members)
    crops = [RandomResizedCrop(size, scale=(0.1, 0.6)) for size in (32, 48, 32)]
    loader = loader_of(source, ["left.jpg", "right.jpg", "up.jpg"], crops, target=None)
    for batch in loader:
        first, second, third = loader.claim().views
        assert [part.shape[-1] for part in batch.image] == [32, 48]
        assert second.boxes.tolist() == (2 * first.boxes).tolist()
        assert third.sizes.tolist() == [[45, 70]] * len(third)
        share = first.boxes / np.tile(first.sizes, 2)
        assert np.abs(third.boxes / np.tile(third.sizes, 2) - share).max() <= 1 / 45
        assert (third.boxes[:, :2] + third.boxes[:, 2:] <= third.sizes).all() and third.boxes.min() >= 0
        for row in range(len(batch.key)):
            assert first.flips[row] == second.flips[row] == third.flips[row]


def saved_on_its_side(seed):
    return picture("JPEG", seed, size=(70, 45), orientation=6)


@pytest.mark.sweep
@pytest.mark.parametrize("runner", RUNNERS[1:], ids=name_of)
@pytest.mark.parametrize("form", FORMS)
def test_the_same_bytes_for_any_runner(tmp_path, form, runner):
    write, image = FORMS[form]
    source = write(tmp_path / "a.tar", {"k03": {"cls": b"3", **dict.fromkeys([*LIST, "0.jpg"], b"broken")}})
    with pytest.warns(UserWarning, match="member '(left|0).jpg'.* takes its place"):
        expected = facts(loader_of(source, image), epochs=2)
    with pytest.warns(UserWarning, match="takes its place"):
        assert facts(loader_of(source, image, **runner), epochs=2) == expected


@pytest.mark.parametrize("form", FORMS)
def test_ranks_and_resume(tmp_path, form):
    write, image = FORMS[form]
    source = write(tmp_path / "a.tar")
    by_key = {}
    options = {"global_batch_size": 4}
    for batch in loader_of(source, image, **options):
        by_key |= zip(batch.key, rows(batch), strict=True)
    seen = []
    for rank in range(2):
        for batch in loader_of(source, image, on={"rank": rank, "world": 2}, **options):
            for key, images in zip(batch.key, rows(batch), strict=True):
                seen.append(key)
                assert all(map(torch.equal, images, by_key[key])) and len(images) == len(by_key[key])
    assert sorted(seen) == sorted(by_key)
    loader = loader_of(source, image)
    expected = facts(loader_of(source, image), epochs=2)
    states = []
    for _ in loader:
        states.append(loader.state_dict())
    for number, state in enumerate(states[:-1], 1):
        assert facts(loader_of(source, image, state=state)) == expected[number : len(states)]


@pytest.mark.parametrize("form", FORMS)
def test_normalised_where_it_is_decoded_or_arrives(tmp_path, form):
    write, image = FORMS[form]
    source = write(tmp_path / "a.tar")
    augment = Augment()
    plain = [rows(batch) for batch in loader_of(source, image)]
    for runner in (HERE, {"workers": 1}):
        normal = loader_of(source, image, augment=augment, **runner)
        for batch, uint8 in zip(normal, plain, strict=True):
            for images, others in zip(rows(batch), uint8, strict=True):
                expected = augment(torch.stack(others))
                assert torch.allclose(torch.stack(images), expected, atol=1e-6)
        normal.close()
    ycbcr = Augment(space="ycbcr")
    moved = facts(loader_of(source, image, augment=ycbcr, workers=1))
    assert moved == facts(loader_of(source, image, augment=ycbcr))


BAD = {
    "missing": ({"left.jpg": pair(3)["left"], "cls": b"3"}, r"EMPTY \(1\): it has no member 'right.jpg'"),
    "broken": (
        {**{f"{side}.jpg": pair(3)["left"][:700] for side in SIDES}, "cls": b"3"},
        "member 'left.jpg'",
    ),
    "no image": ({"left.jpg": b"", "right.jpg": pair(3)["right"], "cls": b"3"}, r"EMPTY.*member 'left.jpg'"),
    "html": (
        {"left.jpg": pair(3)["left"], "right.jpg": b"<html>", "cls": b"3"},
        "'right.jpg', it looks like",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_image_of_a_list_follows_the_policy(tmp_path, case):
    members, match = BAD[case]
    source = pairs(tmp_path / "a.tar", {"k03": members})
    check_policy(source, LIST, f"shard .*a.tar, key 'k03': image is .*{match}")


@pytest.mark.parametrize("stored", ["jpg", "tpj"])
def test_no_image_takes_the_place_of_another_one(tmp_path, stored):
    own = {f"left.{stored}": pair(3)["left"], "cls": b"3"}
    whole = {"left.jpg": pair(3)["left"], "left.png": picture("PNG", 1)}
    samples = {f"k{number:02d}": whole | {"cls": b"%d" % number} for number in range(11)}
    source = pairs(tmp_path / "a.tar", samples | {"k03": own})
    for image in (["left.jpg", "left.png"], ["left.png", "left.jpg"]):
        check_policy(
            source, image, r"a.tar, key 'k03': image is EMPTY \(1\): it has no member 'left\.(png|jpg)'"
        )


@pytest.mark.parametrize("name", ["none", "broken"])
def test_a_bad_sample_of_a_pattern_follows_the_policy(tmp_path, name):
    own = {"a.png": picture("PNG", 1), "cls": b"3"}
    match = r"EMPTY \(1\): none of its members \['a.png', 'cls'\] matches image='\*.jpg'"
    if name == "broken":
        own = {"0.jpg": stack(3)[0], "7.jpg": b"\xff\xd8\xff broken", "9.jpg": stack(3)[2], "cls": b"3"}
        match = "member '7.jpg'"
    source = stacks(tmp_path / "a.tar", {"k03": own})
    check_policy(source, PATTERN, f"shard .*a.tar, key 'k03': image is .*{match}")


@pytest.mark.parametrize("form", FORMS)
def test_a_broken_first_image_of_a_padded_sample_follows_the_policy(tmp_path, form):
    write, image = FORMS[form]
    first, others = ("left", pair(3)) if form == "list" else (0, stack(3))
    own = {f"{name}.jpg": b"broken" if name == first else data for name, data in others.items()}
    source = write(tmp_path / "a.tar", {"k03": own | {"cls": b"3"}})
    for crop in (LetterBox((24, 40)), LetterBox(32)):
        check_policy(source, image, f"key 'k03': image is .*member '{first}.jpg'", crop, shared_box=True)


def check_policy(source, image, match, crop=CROP, **options):
    with pytest.raises(tarpeg.DecodeError, match=match):
        facts(loader_of(source, image, crop, on_error="raise", **options))
    with pytest.warns(UserWarning, match=match + ".* takes its place"):
        replaced = [
            pair
            for batch in loader_of(source, image, crop, **options)
            for pair in zip(batch.key, rows(batch), strict=True)
        ]
    assert len(replaced) == COUNT and "k03" not in [key for key, _ in replaced]
    with pytest.warns(UserWarning, match=match + ".*left out"):
        loader = loader_of(source, image, crop, on_error="leave_out", training=False, **options)
        left = [(batch, loader.claim()) for batch in loader]
    keys = [key for batch, _ in left for key in batch.key]
    assert keys == [f"k{number:02d}" for number in range(COUNT) if number != 3]
    for batch, request in left:
        counts = list(map(len, rows(batch)))
        assert len(counts) == len(batch.key) == len(batch.label) == len(request.ids)
        assert sum(counts) == sum(map(len, request.views))
        if image == PATTERN:
            assert counts == [1 + int(key[1:]) % 4 for key in batch.key]


def test_a_substitute_with_more_images_than_its_sample(tmp_path):
    """Batches have room for more images than any of their own; each of the rows stays what it is alone."""
    many = {f"{each}.jpg": stack(3)[0] for each in range(30)} | {"cls": b"7"}
    good = {"k03": many, "k07": many}
    bad = {f"k{number:02d}": {"0.jpg": b"\xff\xd8\xff", "cls": b"1"} for number in range(COUNT)}
    source = stacks(tmp_path / "a.tar", bad | good)
    for runner in (HERE, {"workers": 2}):
        with pytest.warns(UserWarning, match="'k0[37]' takes its place"):
            loader = loader_of(source, PATTERN, max_bad=1.0, **runner)
            found = [(batch.key, list(map(len, rows(batch)))) for batch in loader]
        assert all(counts == [30] * len(keys) for keys, counts in found)
        loader.close()
    with pytest.raises(tarpeg.DecodeError, match=r"a batch of 11 samples has 330 images.*more than 8"):
        facts(loader_of(source, PATTERN, max_bad=1.0, batch_size=11))


def test_weights_let_a_sample_come_several_times(tmp_path):
    many = {f"{each}.jpg": stack(3)[0] for each in range(30)} | {"cls": b"7"}
    source = stacks(tmp_path / "a.tar", {"k07": many})
    weights = [1000.0 if number == 7 else 1e-6 for number in range(COUNT)]
    loader = loader_of(source, PATTERN, weights=weights, workers=1)
    assert [list(map(len, rows(batch))) for batch in loader] == [[30] * 4, [30] * 4, [30] * 3]
    loader.close()


class Memory(tarpeg.Source):
    """Samples of a user, with images in several formats."""

    files: ClassVar = {
        "a.png": picture("PNG", 1, size=(40, 50)),
        "b.jpg": jpeg("420", 41, 51, 2),
        "c.gif": picture("GIF", 3),
    }

    def __len__(self):
        return 5

    def keys(self, ids):
        return [str(id) for id in ids]

    def members(self, ids, extension):
        return [self.files.get(extension) for _ in ids]

    def extensions(self, id):
        return [*self.files]


def test_a_source_of_a_user_and_other_formats():
    for image, names in ((["c.gif", "b.jpg"], ["c.gif", "b.jpg"]), ("[ab].*", ["a.png", "b.jpg"])):
        loader = loader_of(Memory(), image, Whole(32), flip=0.0, target=None)
        for batch in loader:
            for images in rows(batch):
                for found, name in zip(images, names, strict=True):
                    file = Memory.files[name]
                    if not name.endswith("jpg"):
                        file = tarpeg.shards.pillow.ppm(tarpeg.shards.pillow.open_rgb(file))
                    size = np.array([*tarpeg.image_sizes([tensor(file)])[0].tolist()], np.int32)
                    assert torch.equal(
                        found, alone(file, np.append([0, 0], size).astype(np.int32), False, 32)
                    )


def test_streams_have_lists_but_no_patterns(tmp_path):
    pairs(tmp_path / "a.tar")
    loader = loader_of(str(tmp_path / "a.tar"), LIST, streaming=True, shuffle=False, workers=1)
    local = loader_of(str(tmp_path / "a.tar"), LIST, CenterCrop(32), flip=0.0, shuffle=False)
    stream = loader_of(str(tmp_path / "a.tar"), LIST, CenterCrop(32), flip=0.0, shuffle=False, streaming=True)
    assert facts(stream) == facts(local) and len(facts(loader)) == 3
    with pytest.raises(ValueError, match=r"streaming=True and image='\*.jpg'.*memory"):
        Split("a.tar", CROP, image=PATTERN, streaming=True)


def test_members_captions_and_tables(tmp_path):
    own = {
        f"k{n:02d}": {**{f"{s}.jpg": d for s, d in pair(n).items()}, "txt": b"caption %d" % n}
        for n in range(COUNT)
    }
    source = pairs(tmp_path / "a.tar", own)
    loader = loader_of(source, LIST, target=None, members=["txt"])
    assert all(
        extra["txt"] == b"caption %d" % int(key[1:])
        for b in loader
        for key, extra in zip(b.key, b.extra, strict=True)
    )
    loader = loader_of(source, "*.jpg", target=None, members=tarpeg.Text("txt"))
    for batch in loader:
        assert batch.extra == [f"caption {int(key[1:])}" for key in batch.key]
    table = tmp_path / "labels.csv"
    table.write_text("name,score\n" + "".join(f"k{n:02d},{n / 2}\n" for n in range(COUNT)))
    for batch in loader_of(source, LIST, labels=table, key="name", target="score"):
        assert batch.label.tolist() == [int(key[1:]) / 2 for key in batch.key]


REFUSED = {
    "views=2 and image=": {"views": 2},
    "crop=.*AspectBuckets.* and image=": {"crop": tarpeg.AspectBuckets(128, 32)},
    "crop=.*Patches.* and image=": {"crop": tarpeg.Patches(16, [16], 64)},
    "crop=.*Mosaic.* and image=": {"crop": tarpeg.Mosaic(32), "target": None},
    "crop=.*RandomShortestSize.* and image=": {"crop": tarpeg.RandomShortestSize([20], 30)},
    "transform= and image=": {"crop": None, "transform": abs},
    "fidelity='exact', crop=.* and image=": {"crop": CenterCrop(32, shorter=36), "fidelity": "exact"},
    "shared_box=1.5 must be True": {"shared_box": 1.5},
}


@pytest.mark.parametrize("match", REFUSED)
@pytest.mark.parametrize("image", [LIST, PATTERN], ids=FORMS)
def test_what_cannot_be_combined_is_refused(match, image):
    options = {"crop": CROP, **REFUSED[match]}
    if match.startswith("views") and image == PATTERN:
        match = "image=.* has one crop"
    with pytest.raises(ValueError, match=match):
        Split("a.tar", image=image, **options)


def test_refused_with_image():
    cases = [
        ({"image": []}, r"image=\[\] is empty"),
        ({"image": ["left.jpg", "left.JPG"]}, "has one twice"),
        ({"image": ["left.jpg", "*.jpg"]}, "'\\*.jpg' is a pattern; give it alone"),
        ({"image": "left"}, "'left' is neither"),
        ({"image": 3}, "image=3 must be"),
        ({"image": "*.json"}, "must end in an extension of images"),
        ({"shared_box": True}, "shared_box=True belongs to image="),
        ({"image": LIST, "crop": [CROP, CROP, CROP]}, "image= has 2 images, but crop= has 3"),
        ({"image": LIST, "crop": [CROP, CenterCrop(32)]}, "shared_box=True: .* shared_box=False"),
        ({"image": PATTERN, "crop": [CROP, CROP]}, "has one crop for all images"),
    ]
    for options, match in cases:
        with pytest.raises(ValueError, match=match):
            Split("a.tar", **{"crop": CROP, **options})
    Split("a.tar", [CROP, CenterCrop(32)], image=LIST, shared_box=False)


def test_augments_that_move_images_apart_are_refused(tmp_path):
    source = pairs(tmp_path / "a.tar")
    with pytest.raises(ValueError, match=r"augment= moves each image.*image=\['left.jpg'.*shared_box=False"):
        loader_of(source, LIST, augment=Augment(flip=0.5))
    with pytest.raises(ValueError, match=r"image='\*.jpg'.*augment=Augment"):
        loader_of(source, PATTERN, augment=heavy())
    apart = loader_of(source, LIST, augment=heavy(), shared_box=False)
    assert next(iter(apart)).image.shape == (2, 4, 3, 32, 32)


def test_what_the_shards_do_not_have(tmp_path, photos):
    source = stacks(tmp_path / "a.tar")
    with pytest.raises(
        tarpeg.ShardError, match=r"no sample has a member that matches image='x\*.jpg'.*'k00'"
    ):
        loader_of(source, "x*.jpg")
    with pytest.raises(tarpeg.DecodeError, match=r"no member 'left.jpg', only \['10.jpg', 'cls'\]"):
        facts(loader_of(source, LIST, on_error="raise", training=False))
    with pytest.raises(tarpeg.ShardError, match=re.escape("Split(image=['10.jpg'])")):
        loader_of(source, None)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.left.jpg").write_bytes(jpeg("420", 40, 40))
    with pytest.raises(tarpeg.ShardError, match=r"is a folder of images.*image= is for shards"):
        loader_of(folder, LIST, target=None)


def test_preview_and_plan(tmp_path):
    for name, (write, image) in FORMS.items():
        source = write(tmp_path / f"{name}.tar", {"k03": {"left.jpg": b"x", "0.jpg": b"x", "cls": b"1"}})
        split = Split(source, CROP, image=image, shuffle=False)
        data = tarpeg.ShardDataModule(train=split, batch_size=4, workers=0, augment=Augment())
        with pytest.warns(UserWarning):
            path = tarpeg.contact_sheet(data, tmp_path / f"{name}.png", samples=6)
        assert path.stat().st_size > 1000
        with pytest.warns(UserWarning), pytest.raises(ValueError, match="several images of each sample"):
            preview.comparison_sheet(data, tmp_path / "c.png", samples=2)
    plan = tarpeg.plan_epoch(loader_of(stacks(tmp_path / "plan.tar"), PATTERN))
    images = sum(1 + number % 4 for number in range(COUNT))
    assert plan.images == images and f"{COUNT} samples with {images} images" in str(plan)
    assert plan.pixels == images * 32 * 32 and plan.batches == 3
    assert [(each.batches, each.samples) for each in plan.shapes] == [(3, COUNT)]
    plan = tarpeg.plan_epoch(loader_of(pairs(tmp_path / "plan2.tar"), LIST))
    assert plan.images == 2 * COUNT and plan.pixels == 2 * COUNT * 32 * 32
    assert [(each.batches, each.samples, each.largest) for each in plan.shapes] == [(3, COUNT, 4)]


def test_reading_ahead_asks_for_all_images_of_a_sample(tmp_path, monkeypatch):
    shards = Split(pairs(tmp_path / "a.tar"), CROP, image=LIST).open()
    seen = []
    monkeypatch.setattr(shards, "_views", lambda places, form: seen.append(places.tolist()) or [])
    shards.will_need([0, 3])
    (_, starts, lengths), *_ = seen
    content = (tmp_path / "a.tar").read_bytes()
    for number, start, length in zip((0, 3), starts, lengths, strict=True):
        part = content[start : start + length]
        assert part.startswith(pair(number)["left"]) and pair(number)["right"] in part
        assert part.endswith(b"%d" % number)


def test_one_image_by_its_name(tmp_path):
    """Of samples with several, or in place of the image that a sample would have."""
    source = pairs(tmp_path / "a.tar")
    both = loader_of(source, LIST, CenterCrop(32), flip=0.0)
    for one, batch in zip(loader_of(source, "right.jpg", CenterCrop(32), flip=0.0), both, strict=True):
        assert one.key == batch.key and torch.equal(one.image, batch.image[1])
    own = {f"k{n:02d}": {"jpg": pair(n)["left"], "right.jpg": pair(n)["right"]} for n in range(COUNT)}
    other = pairs(tmp_path / "b.tar", own)
    options = {"flip": 0.0, "target": None, "training": False}
    plain = loader_of(other, ["jpg", "right.jpg"], CenterCrop(32), **options)
    for one, batch in zip(loader_of(other, None, CenterCrop(32), **options), plain, strict=True):
        assert torch.equal(one.image, batch.image[0])


def test_outside_of_a_cache_no_other_format_takes_the_place_of_an_image(tmp_path):
    """0_mask.ppm and depth.jpg are what they are: only a cache writes images under other extensions."""
    masked = {f"{number}_mask.ppm": picture("PPM", number) for number in range(4)}
    changed = {
        f"k{n:02d}": {f"{i}.jpg": data for i, data in stack(n).items()} | masked | {"cls": b"%d" % n}
        for n in range(COUNT)
    }
    assert facts(loader_of(stacks(tmp_path / "masked.tar", changed), PATTERN)) == facts(
        loader_of(stacks(tmp_path / "plain.tar"), PATTERN)
    )
    whole = {"left.jpg": pair(3)["left"], "depth.png": picture("PNG", 1)}
    samples = {f"k{number:02d}": whole | {"cls": b"%d" % number} for number in range(COUNT)}
    for other in ("depth.jpg", "depth.ppm"):
        lost = {"left.jpg": pair(3)["left"], other: pair(3)["right"], "cls": b"3"}
        source = pairs(tmp_path / "a.tar", samples | {"k03": lost})
        check_policy(source, ["left.jpg", "depth.png"], "'k03': image is .*it has no member 'depth.png'")
