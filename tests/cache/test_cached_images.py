"""Caches of samples with several images: all of them are rewritten, and give the pixels of the source."""

from __future__ import annotations

import functools
import io
import re

import pytest
import tarpeg
import torch
from helpers.pictures import jpeg, picture
from helpers.several import COUNT, SIDES, pair, pairs, stack, stacks
from helpers.small_tars import members, tars, write_tar
from PIL import Image
from tarpeg import Layout, Loader, Original, Packed, RandomResizedCrop, Raw, Resized, Split, Tiled
from tarpeg.cache.codecs import tile_width
from tarpeg.cache.job import NO_IMAGE
from tarpeg.cache.report import summarise_build, summarise_shards
from tarpeg.shards.image_names import Pattern, check_images, stored_names

LIST, PATTERN = [f"{side}.jpg" for side in SIDES], "*.jpg"
FORMS = {"list": (pairs, LIST), "pattern": (stacks, PATTERN)}


def batches(source, image, **options):
    split = Split(str(source), RandomResizedCrop(32), flip=0.5, image=image, **options)
    loader = Loader(split, batch_size=4, workers=0, keys=True)
    return [(batch.key, batch.label.tolist(), flat(batch.image)) for batch in loader]


def flat(image):
    if isinstance(image, tarpeg.RaggedImages):
        return image.offsets.tolist(), image.images.numpy().tobytes()
    return image.numpy().tobytes()


@pytest.mark.parametrize(
    "codec", [Tiled(), Packed(), Raw(), Original()], ids=lambda codec: type(codec).__name__
)
@pytest.mark.parametrize("form", FORMS)
def test_a_cache_gives_the_pixels_of_its_source(tmp_path, form, codec):
    write, image = FORMS[form]
    (tmp_path / "source").mkdir()
    source = write(tmp_path / "source" / "train-0.tar")
    report = tarpeg.build_cache(tmp_path / "source", tmp_path / "cache", codec, 0, images=image)
    count = 2 * COUNT if form == "list" else sum(1 + number % 4 for number in range(COUNT))
    assert report.samples == COUNT and sum(report.tiles.values()) + sum(report.untiled.values()) == count
    ours, theirs = batches(tmp_path / "cache", image), batches(source, image)
    # Of PPM, red, green and blue are resized in place of luma and chroma.
    assert [each[:2] for each in ours] == [each[:2] for each in theirs]
    assert ours == theirs or isinstance(codec, Raw)
    assert tarpeg.verify_cache(tmp_path / "cache", 0).is_good
    before, after = members(source), members(tmp_path / "cache" / "train-0.tar")
    kind = {"Packed": "tpj", "Raw": "ppm"}.get(type(codec).__name__, "jpg")
    assert [*after] == [name.replace(".jpg", f".{kind}") for name in before]
    for (name, data), content in zip(before.items(), after.values(), strict=True):
        if not name.endswith(".jpg"):
            assert content == data
        elif isinstance(codec, Tiled):
            assert tile_width(content)[0] is not None
            with Image.open(io.BytesIO(content)) as one, Image.open(io.BytesIO(data)) as other:
                assert one.tobytes() == other.tobytes()
    shares = [
        float(one)
        for line in [*summarise_build(report), *summarise_shards(str(tmp_path / "cache"))]
        for one in re.findall(r"([0-9.]+)%", line)
    ]
    assert max(shares) <= 100
    # A later build has nothing to do, one of other images writes the shard again.
    if isinstance(codec, Tiled):
        assert tarpeg.build_cache(tmp_path / "source", tmp_path / "cache", codec, 0, images=image).built == 0
        other = [*LIST, "0.jpg"]
        assert tarpeg.build_cache(tmp_path / "source", tmp_path / "cache", codec, 0, images=other).built == 1


@pytest.mark.parametrize(
    "codec", [Tiled(), Tiled(quality=95), Packed(), Raw(), Resized(32), Original()], ids=str
)
@pytest.mark.parametrize(("kind", "content"), [("png", "PNG"), ("webp", "WEBP"), ("jpg", "JPEG")])
def test_images_of_a_pattern_are_found_whatever_the_codec_makes_of_them(tmp_path, kind, content, codec):
    """Also a JPEG that is named .png, which is as common as a PNG that is named .jpg."""

    def image(level, form):
        file = io.BytesIO()
        Image.new("RGB", (32, 32), (level, level, level)).save(file, form)
        return file.getvalue()

    wrong = "PNG" if content == "JPEG" else "JPEG"
    levels = {"0": 10, "1": 100, "2": 200}
    source = write_tar(
        tmp_path / "a.tar",
        [
            (f"k{n}.{place}.{kind}", image(level, wrong if (n, place) == (1, "1") else content))
            for n in range(3)
            for place, level in levels.items()
        ],
    )
    report = tarpeg.build_cache(source, tmp_path / "cache", codec, executor=0, images=f"*.{kind}")
    assert report.samples == 3 and not report.quarantine
    split = Split(tmp_path / "cache", tarpeg.Whole(8), image=f"*.{kind}", shuffle=False, target=None)
    (batch,) = Loader(split, batch_size=3, workers=0)
    assert batch.image.offsets.tolist() == [0, 3, 6, 9]
    found = batch.image.images[:, 0, 4, 4].int()
    assert (found - torch.tensor([*levels.values()] * 3)).abs().max() <= 1


def test_without_images_all_but_the_image_stay(tmp_path):
    own = {
        f"k{n:02d}": {"jpg": pair(n)["left"], "right.jpg": pair(n)["right"], "cls": b"1"}
        for n in range(COUNT)
    }
    source = pairs(tmp_path / "a.tar", own)
    tarpeg.build_cache(source, tmp_path / "plain", executor=0)
    tarpeg.build_cache(source, tmp_path / "both", executor=0, images=["jpg", "right.jpg"])
    assert members(tmp_path / "plain" / "a.tar")["k01.right.jpg"] == pair(1)["right"]
    assert tile_width(members(tmp_path / "both" / "a.tar")["k01.right.jpg"])[0] == 32
    names = ["jpg", "right.jpg"]
    assert batches(tmp_path / "plain", names) == batches(tmp_path / "both", names) == batches(source, names)
    assert Loader(Split(str(source), RandomResizedCrop(32)), workers=0).fetcher.shards.keys([0]) == ["k00"]
    with pytest.raises(tarpeg.CacheError, match=r"there is nothing to cache|cannot be used"):
        tarpeg.build_cache(pairs(tmp_path / "b.tar"), tmp_path / "none", executor=0)


def test_another_distribution_of_the_samples(tmp_path):
    (tmp_path / "source").mkdir()
    for number in range(2):
        stacks(tmp_path / "source" / f"{number}.tar")
    layout = Layout(samples_per_shard=5, shuffle=True)
    report = tarpeg.build_cache(
        tmp_path / "source", tmp_path / "cache", None, 0, layout=layout, images=PATTERN
    )
    assert (report.shards, report.samples) == (5, 2 * COUNT)
    assert len(batches(tmp_path / "cache", PATTERN)) == 6


def test_broken_and_missing_images(tmp_path):
    changed = {
        "k02": {"left.jpg": pair(2)["left"], "right.jpg": b"\xff\xd8\xff broken", "cls": b"2"},
        "k03": {"left.jpg": pair(3)["left"], "cls": b"3"},
        "k04": {"mask.png": picture("PNG", 1), "cls": b"4"},
    }
    source = pairs(tmp_path / "a.tar", changed)
    report = tarpeg.build_cache(source, tmp_path / "cache", executor=0, images=LIST)
    reasons = {bad.key: bad.reason for bad in report.quarantine}
    assert reasons.keys() == {"k02", "k04"} and "member 'right.jpg'" in reasons["k02"]
    assert "none that images=('left.jpg', 'right.jpg') means" in reasons["k04"]
    finding = report.findings[NO_IMAGE]
    assert (finding.samples, finding.key, finding.content) == (1, "k03", "no member 'right.jpg'")
    with pytest.warns(UserWarning, match="'k03': image is EMPTY"):
        assert len(batches(tmp_path / "cache", LIST)) == 3
    tar = tmp_path / "cache" / "a.tar"
    data = tar.read_bytes()
    second = data.index(b"k01.right.jpg") + 2000
    tar.write_bytes(data[:second] + b"\xff\xd9" + data[second + 2 :])
    problems = tarpeg.verify_cache(tmp_path / "cache", 0).problems
    assert any(each.key == "k01" and "image 'right.jpg' is" in each.what for each in problems)


def test_a_split_without_image_is_told_what_the_cache_has(tmp_path):
    tarpeg.build_cache(pairs(tmp_path / "a.tar"), tmp_path / "cache", executor=0, images=LIST)
    with pytest.raises(
        tarpeg.ShardError, match=r"key 'k00' has several images.*image=\['left.jpg', 'right.jpg'\]"
    ):
        Split(tmp_path / "cache", RandomResizedCrop(32)).open()


def test_masks_beside_several_images(tmp_path):
    changed = {
        f"k{n:02d}": {
            "left.png": picture("PNG", n, mode="L", size=(64 + 8 * (n % 3), 80 + n)),
            **{f"{side}.jpg": data for side, data in pair(n).items()},
            "cls": b"1",
        }
        for n in range(COUNT)
    }
    source = pairs(tmp_path / "a.tar", changed)
    report = tarpeg.build_cache(source, tmp_path / "cache", executor=0, images=PATTERN, masks="left.png")
    assert not report.findings and not report.quarantine
    assert batches(tmp_path / "cache", LIST) == batches(source, LIST)
    with pytest.raises(tarpeg.CacheError, match=r"'left.jpg' clashes with the member 'left.jpg'"):
        codec = Resized(quality=90, shorter=32)
        tarpeg.build_cache(source, tmp_path / "clash", codec, 0, images=["left.jpg", "left.png"])


def first_batch(source, image):
    split = Split(str(source), tarpeg.CenterCrop(32), image=image, fidelity="exact")
    return flat(next(iter(Loader(split, batch_size=4, workers=0))).image)


@pytest.fixture(scope="module")
def two_formats(tmp_path_factory):
    """A shard of samples with a JPEG and a PNG of one name, and a function for its images, each read once."""
    own = {"0.jpg": pair(3)["left"], "0.png": picture("PNG", 1), "cls": b"3"}
    path = tmp_path_factory.mktemp("two_formats") / "train-0.tar"
    source = pairs(path, {f"k{number:02d}": own for number in range(COUNT)})
    read = functools.cache(lambda names: first_batch(source, names if "*" in names else names.split()))
    return source, lambda image: read(image if isinstance(image, str) else " ".join(image))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "images", [["0.png", "0.jpg"], ["0.png"], ["0.jpg"], "*.png", "*.jpg", "*.*"], ids=str
)
@pytest.mark.parametrize("codec", [Tiled(), Packed(), Raw()], ids=lambda codec: type(codec).__name__)
def test_two_images_of_a_sample_that_differ_in_their_format_alone(tmp_path, codec, images, two_formats):
    source, theirs = two_formats
    try:
        tarpeg.build_cache(source, tmp_path / "cache", codec, 0, images=images)
    except tarpeg.CacheError as error:  # both would get other names
        assert "clashes with" in str(error) and not isinstance(codec, Tiled) and len(images) in (2, 3)
        return
    for each in (images, ["0.png", "0.jpg"], ["0.jpg", "0.png"]):
        assert first_batch(tmp_path / "cache", each) == theirs(each), each


def test_prepared_caches(tmp_path):
    source = stacks(tmp_path / "a.tar")
    prepare = tarpeg.CachedShards(
        str(source), str(tmp_path / "cache"), workers=0, images=PATTERN, refresh=False
    )
    prepare()
    assert batches(tmp_path / "cache", PATTERN) == batches(source, PATTERN)
    before = tars(tmp_path / "cache")
    source.unlink()
    prepare()
    assert tars(tmp_path / "cache") == before
    with pytest.raises(ValueError, match=r"images='\*.jpg' and source=.*folder"):
        (tmp_path / "classes" / "cat").mkdir(parents=True)
        (tmp_path / "classes" / "cat" / "a.jpg").write_bytes(jpeg("420", 40, 40))
        tarpeg.build_cache(tmp_path / "classes", tmp_path / "c2", executor=0, images=PATTERN)


def test_an_index_of_several_images_is_one_of_its_own(tmp_path):
    own = {"k03": {"jpg": pair(3)["left"], "cls": b"3"}, "k05": {"json": b"{}"}}
    source = pairs(tmp_path / "a.tar", own)
    with pytest.warns(UserWarning, match="10 samples have no image and are left out, the first is key 'k00'"):
        assert Split(source, RandomResizedCrop(32)).open().keys([0]) == ["k03"]
    for _ in range(2):
        with pytest.warns(UserWarning, match="1 samples have no image.*'k05'"):
            assert len(Split(source, RandomResizedCrop(32), image=LIST).open()) == 10
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "a.tarpeg.index", "a.tarpeg.images"}


def test_names():
    assert Pattern("*.jpg").chosen(
        ["jpg", "10.jpg", "2.tpj", "1.png", "x.json", "0.ppm", "a2.jpg", "a10.jpg"]
    ) == [*("jpg", "0.ppm", "2.tpj", "10.jpg", "a2.jpg", "a10.jpg")]
    assert Pattern("img*.*").chosen(["img1.png", "0.jpg", "img.seg.png", "imgs"]) == [
        "img1.png",
        "img.seg.png",
    ]
    # The image 0.png next to 0.jpg, of which one was rewritten, and in which order both come.
    assert Pattern("*.png").chosen(["0.tpj", "0.png"]) == ["0.png"]
    assert Pattern("*.jpg").chosen(["0.jpg", "0.ppm"]) == ["0.jpg"]
    assert Pattern("*.*").chosen(["0.png", "0.tpj"]) == ["0.tpj", "0.png"]
    assert stored_names("left.png") == ["left.png", "left.tpj", "left.ppm", "left.jpg"]
    assert stored_names("jpg") == ["jpg", "tpj", "ppm"]
    for wrong in ("*.json", [], ["cls"], 7, b"*.jpg"):
        with pytest.raises(ValueError, match="images="):
            check_images("images", wrong)


def test_a_member_that_readers_would_take_for_an_image_is_left_out_of_a_cache(tmp_path):
    """Of a cache, readers cannot know that 0_mask.ppm was no 0_mask.jpg: such samples are listed."""
    masked = {f"{i}.jpg": data for i, data in stack(3).items()} | {"0_mask.ppm": picture("PPM", 1)}
    source = stacks(tmp_path / "a.tar", {"k03": masked | {"cls": b"3"}})
    report = tarpeg.build_cache(source, tmp_path / "a", Packed(), 0, images=PATTERN)
    (bad,) = report.quarantine
    assert bad.key == "k03" and "'0_mask.ppm' would be taken for an image '*.jpg'" in bad.reason
    found = batches(tmp_path / "a", PATTERN, shuffle=False)
    assert [key for keys, _, _ in found for key in keys] == [f"k{n:02d}" for n in range(COUNT) if n != 3]
    assert sum(offsets[-1] for _, _, (offsets, _) in found) == sum(1 + n % 4 for n in range(COUNT) if n != 3)

    whole = {"left.jpg": pair(3)["left"], "depth.png": picture("PNG", 1)}
    samples = {f"k{number:02d}": whole | {"cls": b"%d" % number} for number in range(COUNT)}
    samples["k03"] = {"left.jpg": pair(3)["left"], "depth.jpg": pair(3)["right"], "cls": b"3"}
    source = pairs(tmp_path / "b.tar", samples)
    report = tarpeg.build_cache(source, tmp_path / "b", Tiled(), 0, images=["left.jpg", "depth.png"])
    assert [bad.key for bad in report.quarantine] == ["k03"]
    # A cache of a cache has the images of both: left.tpj was left.jpg, and depth.ppm depth.png.
    again = tarpeg.build_cache(tmp_path / "b", tmp_path / "c", Packed(), 0, images=["left.jpg", "depth.png"])
    assert again.samples == COUNT - 1

    with pytest.warns(
        UserWarning, match=r"built with images=\['left.jpg', 'depth.png'\].* may have had other"
    ):
        batches(tmp_path / "b", "*.jpg")
