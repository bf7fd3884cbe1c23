"""Masks of a cache: PNGs in bands that any program reads, with the pixels of the source."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tarpeg
from helpers.loaders import load
from helpers.masks import chunk, filtered, png, regions
from helpers.pictures import jpeg, saved
from helpers.small_tars import cache_home as cache_home, members, write_tar
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tarpeg import CacheError, Masks, RandomResizedCrop, Split, build_cache, verify_cache
from tarpeg.cache.job import BROKEN_MASK, NO_MASK
from tarpeg.cache.masks import RUNS, banded, is_banded

SIZE = (120, 160)


def opened(content):
    with Image.open(io.BytesIO(content)) as image:
        return image.mode, image.size, image.getpalette(), np.asarray(image).tolist()


def interlaced(values):
    """A PNG of one pixel whose header says that it is interlaced: there is one pass."""
    content = png(values)
    return content[:8] + chunk(b"IHDR", content[16:28] + b"\1") + content[33:]


def indexed(bits):
    image = Image.fromarray(regions(50, 70) % (1 << bits)).convert("P")
    image.putpalette([9, 8, 7, 6, 5, 4] * (1 << bits >> 1))
    content = io.BytesIO()
    image.save(content, "PNG", bits=bits)
    return content.getvalue()


def test_chunks_that_are_unsafe_to_copy_are_not_copied():
    """iDOT of macOS has places in the compressed data; what PNG itself defines stays right."""
    content, added = png(regions(50, 70), "P"), (b"iDOT", b"abCD", b"abCd", b"tRNS", b"tIME")
    before = content.index(b"IDAT") - 4
    content = content[:before] + b"".join(chunk(kind, bytes(7)) for kind in added) + content[before:]
    found = banded(content)
    assert is_banded(found)
    assert [kind in found for kind in added] == [False, False, True, True, True]


def test_bands_without_runs_are_in_the_fixed_code_of_deflate():
    """Rows of more runs than are coded."""
    found = banded(png(np.random.default_rng(0).integers(0, 9, (40, 600), np.uint8)))
    assert RUNS not in found
    assert found[found.index(b"IDAT") + 6] >> 1 & 3 == 1  # behind zlib's header


@pytest.mark.parametrize(
    "content",
    [
        png(regions(97, 131)),
        png(regions(97, 131), "P"),
        png(regions(31, 5)),
        png(regions(33, 300), optimize=True),
        png(regions(60, 40), "P", transparency=0),
        filtered(regions(60, 40), [0, 1, 2, 3, 4], 5),
        interlaced(regions(1, 1)),
        *map(indexed, (1, 2, 4)),
    ],
)
def test_a_png_in_bands_is_the_same_image(content):
    found = banded(content)
    assert is_banded(found) and opened(found) == opened(content)
    assert banded(found) == found


@pytest.mark.parametrize(
    "content",
    [
        png(regions(20, 30) > 3),
        png(np.stack([regions(20, 30)] * 3, 2)),
        png(regions(20, 30).astype(np.uint16)),
        png(
            regions(20, 30), pnginfo=(lambda info: info.add_itxt("XML:com.adobe.xmp", "") or info)(PngInfo())
        ),
        png(regions(20, 30), exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"),
    ],
)
def test_other_masks_stay_as_they_are(content):
    assert banded(content) == content


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masks")
    rows = []
    for number in range(6):
        mask = png(regions(*SIZE, number), "P" if number % 2 else None)
        rows += [(f"k{number}.jpg", jpeg("420", *SIZE, seed=number)), (f"k{number}.png", mask)]
        rows += [(f"k{number}.json", b'{"objects": []}'), (f"k{number}.cls", b"1")]
    write_tar(folder / "a.tar", rows)
    return folder


def test_masks_are_written_in_bands_if_asked_and_all_else_stays(source, tmp_path):
    report = build_cache(source, tmp_path / "plain", executor=0)
    assert not report.findings
    before, plain = members(source / "a.tar"), members(tmp_path / "plain" / "a.tar")
    assert all(plain[name] == content for name, content in before.items() if not name.endswith(".jpg"))
    report = build_cache(source, tmp_path / "bands", masks="png", executor=0)
    assert not report.findings and report.built == 1
    after = members(tmp_path / "bands" / "a.tar")
    assert [*after] == [*before]
    for name, content in after.items():
        if name.endswith(".png"):
            assert is_banded(content) and opened(content) == opened(before[name])
        else:
            assert content == plain[name]
    assert verify_cache(tmp_path / "bands", 0).is_good
    assert build_cache(source, tmp_path / "bands", masks=["png"], executor=0).built == 0
    assert build_cache(source, tmp_path / "plain", masks="png", executor=0).built == 1  # changed


def test_a_cache_of_masks_gives_the_batches_of_its_source(source, tmp_path):
    build_cache(source, tmp_path / "c", masks="png", executor=0)
    labels = {number: number % 7 for number in range(21)}
    found = []
    for shards in (source, tmp_path / "c"):
        split = Split(shards, RandomResizedCrop((50, 70)), flip=0.5, targets=Masks("png", labels=labels))
        found.append(list(load(None, split=split, workers=0, threads=0)))
    for one, other in zip(*found, strict=True):
        assert one.targets.equal(other.targets) and len(one.targets.unique()) > 1


def test_broken_masks_are_counted_and_kept(source, tmp_path):
    given = list(members(source / "a.tar").items())
    given[1] = ("k0.png", given[1][1][:100])
    given[5] = ("k1.png", png(regions(10, 10)))
    del given[9]
    write_tar(tmp_path / "a.tar", given)
    report = build_cache(tmp_path / "a.tar", tmp_path / "c", masks="png", executor=0)
    assert report.samples == 6 and report.findings.keys() == {NO_MASK, BROKEN_MASK}
    broken, lost = report.findings[BROKEN_MASK], report.findings[NO_MASK]
    assert (broken.samples, broken.key, lost.samples, lost.key) == (2, "k0", 1, "k2")
    assert "png" in broken.content
    assert members(tmp_path / "c" / "a.tar")["k0.png"] == given[1][1]
    reduced = build_cache(source, tmp_path / "r", tarpeg.Resized(64), masks="png", executor=0)
    assert reduced.findings[BROKEN_MASK].samples == 6
    assert "120 x 160, and its image 64 x 85" in reduced.findings[BROKEN_MASK].content


def test_verification_finds_a_damaged_mask(source, tmp_path):
    build_cache(source, tmp_path / "c", masks="png", executor=0)
    path = tmp_path / "c" / "a.tar"
    with tarfile.open(path) as tar:
        member = tar.getmember("k3.png")
    content = bytearray(path.read_bytes())
    content[member.offset_data + member.size - 40] ^= 4
    path.write_bytes(content)
    problems = verify_cache(tmp_path / "c", 0).problems
    assert [problem.key for problem in problems] == ["", "k3"] and "mask" in problems[1].what


@pytest.mark.parametrize("masks", ["", "json:objects", 3, ["png", 1]])
def test_wrong_settings(source, tmp_path, masks):
    with pytest.raises(ValueError, match="masks="):
        build_cache(source, tmp_path / "c", masks=masks, executor=0)


def test_what_a_mask_is_beside_images_of_other_kinds(tmp_path, shard_of):
    """A member of masks= is no image, unless another one of masks= is the mask."""
    photo, mask = Image.new("RGB", (40, 30), (9, 99, 199)), png(np.full((30, 40), 2, np.uint8))
    kinds = {"PNG": saved(photo, "PNG"), "JPEG": saved(photo, "JPEG"), "WEBP": saved(photo, "WEBP")}

    def built(names, **given):
        content = {
            name: mask if name in ("png", "seg.png") else kinds["WEBP" if name == "webp" else "JPEG"]
            for name in names
        }
        if "jpg" not in names and "seg.png" in names:
            content["png"] = kinds["PNG"]
        shard = shard_of([(f"k0.{name}", data) for name, data in content.items()] + [("k0.cls", b"0")])
        return build_cache(shard, tmp_path / f"cache {len(list(tmp_path.iterdir()))}", executor=0, **given)

    assert built(["jpg", "png"], masks=["png", "seg.png"]).samples == 1
    assert built(["png", "seg.png"], masks=["png", "seg.png"]).samples == 1, "the photograph is the PNG"
    report = built(["rgb.jpg", "png"], masks="png", images="rgb.jpg")
    (shard,) = Path(report.dest).glob("*.tar")
    assert sorted(members(shard)) == ["k0.cls", "k0.png", "k0.rgb.jpg"]
    report = built(["webp", "png"], masks="png", images="webp")
    split = Split(report.dest, RandomResizedCrop(16), image="webp", targets=Masks("png"))
    (batch,) = load(None, split=split, workers=0, on_error="raise")
    assert batch.targets.unique().tolist() == [2] and batch.image.float().mean(dim=(0, 2, 3))[1] > 90
    with pytest.raises(CacheError, match=r"clashes with the member 'png'.*rename that member"):
        built(["webp", "png"], masks="png")
    with pytest.raises(CacheError, match="it has no image: its member 'png' is a mask"):
        built(["png"], masks="png")


@pytest.mark.parametrize("target", [Masks("png"), tarpeg.InstanceMap("png"), tarpeg.FloatMap("png")])
def test_a_picture_that_a_cache_has_taken_for_the_image_is_broken(tmp_path, shard_of, target):
    """Without masks= the PNG is the image of the cache, in colours: 255, the border, would be 16777215."""
    photo = saved(Image.new("RGB", (40, 30), (9, 99, 199)), "TIFF")
    shard = shard_of([("k0.tif", photo), ("k0.png", png(np.full((30, 40), 255, np.uint8))), ("k0.cls", b"0")])
    crop = RandomResizedCrop(16)
    load(None, split=Split(shard, crop, image="tif", targets=target), workers=0, on_error="raise").close()
    report = build_cache(shard, tmp_path / "cache", executor=0)
    split = Split(report.dest, crop, image="tif", targets=target)
    with pytest.raises(
        tarpeg.ShardError, match=r"PPM of colours, which a cache makes.*masks='png', and with im"
    ):
        next(iter(load(None, split=split, workers=0, on_error="raise")))
