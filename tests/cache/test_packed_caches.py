"""Packed images in caches: their pixels, what stays a JPEG, as a source, damage, later versions, advice."""

from __future__ import annotations

import io
import json
import zlib
from functools import partial

import numpy as np
import pytest
import tarpeg
import torch
from helpers.crafted import segment
from helpers.pictures import ARITHMETIC, KINDS, full, jpeg, picture, tensor
from helpers.scripts import run_tool
from helpers.small_caches import contents
from helpers.small_tars import members, sample, tars
from PIL import Image, ImageCms
from tarpeg import CacheError, DecodeError, Packed, Raw, Resized, Tiled, build_cache, verify_cache
from tarpeg.cache.codecs import NOT_PACKED, tile_width
from tarpeg.cache.report import summarise_build, summarise_shards
from tarpeg.diagnostics.advice import measure_costs
from tarpeg.shards import pillow
from tarpeg.shards.manifest import read_manifest
from tarpeg.shards.mapped import Shards

build = partial(build_cache, executor=0)
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def packed(data: bytes, **settings) -> bytes:
    result = Packed(**settings).encode(data, "jpg")
    assert result.extension == "tpj" and result.data.startswith(pillow.PACKED) and not result.untiled
    return result.data


def later(data: bytes) -> bytes:
    """The image as a tarpeg of the future might write it."""
    return data[:4] + b"\x09\x00" + data[6:]


def flipped(data: bytes, at: float = 0.6) -> bytes:
    changed = bytearray(data)
    changed[int(at * len(data))] ^= 0x10
    return bytes(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_pixels_of_its_source(kind):
    source = jpeg(kind, 97, 160)
    result = Packed().encode(source, "jpeg")
    assert (full(result.data) == full(source)).all()
    if kind in ("cmyk", "ycck", "rgb"):
        assert result.data == Tiled().encode(source, "jpeg").data
        assert result[1:] == ("jpeg", None, NOT_PACKED)
        return
    assert result[1:] == ("tpj", 32, "")
    assert Packed().encode(result.data, "tpj") == result, "packed again it stays as it is"
    tiled_first = Tiled().encode(source, "jpg").data  # it has an index of its rows, which is of no use here
    assert Packed().encode(tiled_first, "jpg").data == result.data
    # An ordinary JPEG again, of the same pixels, that Pillow reads.
    ordinary = tarpeg.unpack_jpeg(tensor(result.data)).numpy().tobytes()
    tiled = Tiled().encode(result.data, "tpj")
    assert tiled.extension == "jpg" and tiled.tile and (full(tiled.data) == full(source)).all()
    for data in (ordinary, tiled.data):
        assert (np.asarray(pillow.open_rgb(data)) == np.asarray(pillow.open_rgb(source))).all()
    assert Raw().encode(result.data, "tpj") == Raw().encode(source, "jpg")
    assert Resized(48).encode(result.data, "tpj") == Resized(48).encode(source, "jpg")
    assert (full(packed(result.data, shorter=48)) == full(Resized(48).encode(source, "jpg").data)).all()


def test_the_version_here_is_that_of_the_native_code():
    data = packed(jpeg("420", 64, 80))
    assert int.from_bytes(data[4:6], "little") == pillow.PACKED_VERSION
    pillow.check_packed(data)


@pytest.mark.parametrize("size", [31, 32, 33, 150, 1025])
def test_the_width_of_tiles_is_in_the_header(size):
    for kind in ("420", "444", "gray"):
        width, reason = tile_width(packed(jpeg(kind, 40, size), tile=32))
        assert not reason and 0 < width <= max(32, size + 15)


def test_orientation_and_profile_come_back():
    exif = Image.Exif()
    exif[0x0112] = 6
    source = picture("JPEG", size=(97, 160), icc_profile=SRGB)
    source = source[:2] + segment(0xE1, exif.tobytes()) + source[2:]
    for data in (packed(source), packed(source, shorter=97)):
        assert (full(data) == full(source)).all() and full(data).shape == (3, 160, 97)
        for codec in (Tiled(), Resized(shorter=500)):
            with Image.open(io.BytesIO(codec.encode(data, "tpj").data)) as image:
                assert image.info["icc_profile"] == SRGB and image.getexif()[0x0112] == 6
    with Image.open(io.BytesIO(pillow.unpacked(packed(source, shorter=48)))) as image:
        assert image.info["icc_profile"] == SRGB and image.size == (48, 79) and 0x0112 not in image.getexif()


def test_other_formats_and_reduced_images_become_jpegs_of_a_quality():
    png = picture("PNG", size=(97, 160))
    assert (full(packed(png, quality=95)) == full(Tiled(quality=95).encode(png, "png").data)).all()
    assert Packed().encode(png, "png") == Tiled().encode(png, "png") == Raw().encode(png, "png")
    assert (full(packed(png, shorter=48)) == full(Resized(48).encode(png, "png").data)).all()
    sharp = packed(png, quality=80, subsampling="4:4:4")
    assert (full(sharp) == full(Tiled(quality=80, subsampling="4:4:4").encode(png, "png").data)).all()
    assert (Packed().quality, Packed(256).quality, Packed(256, 80).quality) == (None, 90, 80)
    source = jpeg("420", 97, 160)
    assert packed(source, shorter=97) == packed(source), "never enlarged, never encoded twice"
    for settings in ({"shorter": 0}, {"quality": 0}, {"tile": 0}, {"subsampling": "420"}):
        (name,) = settings
        with pytest.raises(ValueError, match=f"{name}="):
            Packed(**settings)


def test_what_cannot_be_packed_stays_a_jpeg_with_a_reason():
    padded = jpeg("420", 64, 80)[:-2] + b"\0\xff\xd9"
    for source, reason in ((ARITHMETIC, "arithmetic"), (padded, "padding")):
        data, extension, tile, untiled = Packed().encode(source, "png")
        assert (data, extension, tile) == (source, "jpg", None) and reason in untiled


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "header only"])
def test_damage_never_becomes_a_clean_packed_image(damage):
    source = jpeg("420", 97, 160)
    middle = len(source) // 2
    data = {
        "cut": source[:middle],
        "flipped": source[:middle] + bytes(byte ^ 0x55 for byte in source[middle:]),
        "empty": b"",
        "text": b"<html>not found</html>",
        "header only": source[:4],
    }[damage]
    for codec in (Packed(), Packed(shorter=48)):
        with pytest.raises(DecodeError):
            codec.encode(data, "jpg")


@pytest.mark.parametrize("codec", [Tiled(), Packed(), Packed(48), Resized(48), Raw()], ids=str)
def test_a_damaged_packed_image_never_becomes_a_clean_one(codec):
    good = packed(jpeg("420", 97, 160))
    for at in (0.2, 0.4, 0.6, 0.8):
        with pytest.raises(DecodeError, match="checksum"):
            codec.encode(flipped(good, at), "tpj")
    for end in (3, 5, 30, 60, len(good) - 1):
        with pytest.raises(DecodeError):
            codec.encode(good[:end], "tpj")
    with pytest.raises(DecodeError, match="version 9"):
        codec.encode(later(good), "tpj")
    # The place of the first row of tiles is beyond the end, under a checksum that fits.
    lying, at = bytearray(good), 40 + 128 * good[19]
    lying[at : at + 4] = b"\xff" * 4
    lying[8:12] = zlib.crc32(lying[12:]).to_bytes(4, "little")
    with pytest.raises(DecodeError, match=r"corrupt|damaged"):
        codec.encode(bytes(lying), "tpj")


def some(*, damaged: bool = False):
    """Samples of every fate."""
    samples = [sample(n) for n in range(4)]
    samples += [sample(4, jpeg("cmyk", 64, 80)), sample(5, ARITHMETIC), sample(6, picture("PNG"), "png")]
    return [*samples, *([sample(7, jpeg("420", 64, 80)[:900])] if damaged else [])]


def test_a_packed_cache(shard_of, tmp_path):
    report = build(shard_of(*some(damaged=True)), tmp_path / "c", Packed(quality=95), max_bad=0.5)
    names = [name for name in members(tmp_path / "c" / "x.tar") if not name.endswith("cls")]
    kept = ["k0004.jpg", "k0005.jpg"]
    assert names == [*(f"k000{n}.tpj" for n in range(4)), *kept, "k0006.tpj"]
    assert (report.samples, report.converted, len(report.quarantine)) == (7, {"PNG": 1}, 1)
    lines = summarise_build(report, measure=True)
    (arithmetic,) = [reason for reason in report.untiled if reason != NOT_PACKED]
    assert lines[1].startswith("size: ") and lines[2] == "encoded as JPEG, quality 95: 1 PNG"
    assert lines[3] == "packed: 5 images (71.4%)" and lines[4].startswith("images by width of tile: ")
    assert set(lines[5:7]) == {f"not packed: 1 image (14.3%), {why}" for why in (NOT_PACKED, arithmetic)}
    assert lines[7].startswith("left out: 1 sample") and "(7 images, one thread)" in lines[8]
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
    settings = {"shorter": None, "quality": 95, "tile": 32, "subsampling": "4:2:0"}
    assert manifest["version"] == 2 and manifest["codec"] == {"name": "Packed", "parameters": settings}
    (facts,) = summarise_shards(tmp_path / "c")
    assert "codec Packed, 7 samples, " in facts and facts.endswith("; packed: 5 images (71.4%)")
    assert "does not exist" in summarise_shards(tmp_path / "none")[0]


def test_builds_are_repeatable_and_continue(photos, tmp_path):
    first = build(photos, tmp_path / "c", Packed())
    whole = contents(tmp_path / "c")
    assert first.built == 2 and build(photos, tmp_path / "c", Packed()).built == 0
    (tmp_path / "c" / "a.tar").unlink()
    assert build(photos, tmp_path / "c", Packed()).built == 1 and contents(tmp_path / "c") == whole

    def stop(_) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(photos, tmp_path / "stopped", Packed(), progress=stop)
    assert not (tmp_path / "stopped" / "manifest.json").exists()
    assert build(photos, tmp_path / "stopped", Packed()).built < 2
    assert contents(tmp_path / "stopped") == whole
    assert build(photos, tmp_path / "c", Packed(), layout=tarpeg.Layout(samples_per_shard=9)).built == 3
    for codec in (Packed(tile=64), Packed(quality=90), Tiled()):
        assert build(photos, tmp_path / "c", codec, replace=True).built == 2, "another fingerprint"
    assert read_manifest(tmp_path / "c").codec["name"] == "Tiled"
    assert json.loads((tmp_path / "c" / "manifest.json").read_bytes())["version"] == 1


def test_a_packed_cache_as_a_source(photos, tmp_path):
    build(photos, tmp_path / "p", Packed())
    tiled = build(tmp_path / "p", tmp_path / "t", Tiled())
    assert (tiled.samples, tiled.converted, tiled.untiled) == (23, {}, {})
    before, after = members(photos / "a.tar"), members(tmp_path / "t" / "a.tar")
    assert list(before) == list(after)
    for name, data in after.items():
        if name.endswith("jpg"):
            assert (full(data) == full(before[name])).all()
            theirs, ours = (np.asarray(pillow.open_rgb(content)) for content in (before[name], data))
            assert (theirs == ours).all()
    build(tmp_path / "p", tmp_path / "again", Packed())
    assert tars(tmp_path / "again") == tars(tmp_path / "p")
    for codec in (Resized(48), Raw(), Packed(48)):
        build(tmp_path / "p", tmp_path / "of_packed", codec, replace=True)
        build(photos, tmp_path / "of_photos", codec, replace=True)
        assert tars(tmp_path / "of_packed") == tars(tmp_path / "of_photos"), codec


def test_a_mask_beside_the_image_stays_a_mask(shard_of, tmp_path):
    mask = picture("PNG", mode="L")
    source = shard_of([("k.jpg", jpeg("420", 64, 80)), ("k.png", mask), ("k.cls", b"3")])
    build(source, tmp_path / "c", Packed())
    found = members(tmp_path / "c" / "x.tar")
    assert list(found) == ["k.tpj", "k.png", "k.cls"] and found["k.png"] == mask
    assert Shards([tmp_path / "c" / "x.tar"]).images([0])[0].numpy().tobytes() == found["k.tpj"]


def test_verification_finds_a_flipped_byte_and_its_image(photos, tmp_path):
    cache = tmp_path / "c"
    build(photos, cache, Packed())
    assert verify_cache(cache, 0).is_good
    image = members(cache / "a.tar")["k0003.tpj"]
    whole = (cache / "a.tar").read_bytes()
    for changed, what in (
        (flipped(image), "whose checksum differs"),
        (later(image), "of version 9, made by"),
    ):
        (cache / "a.tar").write_bytes(whole.replace(image, changed))
        tar, problem = verify_cache(cache, 0).problems
        assert (tar.shard, tar.what) == ("a.tar", "its checksum differs from manifest.json")
        assert (problem.shard, problem.key) == ("a.tar", "k0003")
        assert problem.what.startswith(f"image is a packed image {what}")


def test_a_later_version_is_refused_by_name(photos, tmp_path):
    cache = tmp_path / "c"
    build(photos, cache, Packed())
    path = cache / "manifest.json"
    content = json.loads(path.read_bytes()) | {"version": 4, "tarpeg": "7.0"}
    path.write_text(json.dumps(content | {"codec": {"name": "Woven", "parameters": {}}}))
    with pytest.raises(CacheError, match=r"version 4.* Woven.* 3.*'7\.0'"):
        tarpeg.Split(cache, tarpeg.Whole(8)).classes()


def loader(shards, batch_size: int = 8, **settings):
    split = tarpeg.Split(shards, tarpeg.RandomResizedCrop(32), flip=0.5, **settings)
    data = tarpeg.ShardDataModule(split, batch_size=batch_size, workers=0, threads=0, seed=1)
    return data.train_dataloader()


def test_batches_are_the_same_bytes_from_every_lossless_cache(photos, tmp_path):
    build(photos, tmp_path / "t", Tiled())
    build(photos, tmp_path / "p", Packed())
    for settings in ({}, {"views": 2}, {"channels": 1}, {"fidelity": "exact"}):
        ordinary, tiled, of_packed = (
            [(batch.image.clone(), batch.label) for batch in loader(folder, **settings)]
            for folder in (photos, tmp_path / "t", tmp_path / "p")
        )
        assert len(ordinary) == 3
        for other in (tiled, of_packed):
            for theirs, ours in zip(ordinary, other, strict=True):
                assert all(map(torch.equal, theirs, ours)), settings
    stream = loader(tmp_path / "p", streaming=True)
    assert sum(len(batch.label) for batch in stream) >= 16


def test_preview_and_costs_of_packed_images(photos, tmp_path):
    build(photos, tmp_path / "p", Packed())
    crop = tarpeg.RandomResizedCrop(32)
    found = []
    for folder in (photos, tmp_path / "p"):
        data = tarpeg.ShardDataModule(tarpeg.Split(folder, crop), batch_size=4, workers=0, threads=0)
        found.append(tarpeg.comparison_sheet(data, tmp_path / "sheet.png", samples=3))
        assert tarpeg.contact_sheet(data, tmp_path / "sheet.png", samples=3).is_file()
    assert found[0] == found[1]
    ordinary, of_packed = (measure_costs(loader(each).fetcher, 0, 0.2) for each in (photos, tmp_path / "p"))
    assert ordinary.tiled == 0 and ordinary.packed > 0 and 1 < ordinary.packed_growth < 3
    assert of_packed.tiled == 1 and of_packed.packed == 0 and of_packed.growth > 1, "raw is left to propose"
    assert ordinary.gather == 0 < of_packed.gather


@pytest.mark.slow
def test_the_tools(photos, tmp_path):
    source, dest = f"source={photos}", f"dest={tmp_path}/c"
    done = run_tool("build_cache", source, dest, "codec=packed", "workers=0", "measure=false")
    assert done.returncode == 0 and "\npacked: 23 images (100.0%)\n" in done.stdout, done.stderr
    assert run_tool("build_cache", "verify=true", dest).returncode == 0
    done = run_tool(
        "doctor", "speed=false", "data=shards", f"data.train.shards={tmp_path}/c", "data.val=null"
    )
    assert f"  cache {tmp_path}/c: codec Packed, 23 samples, " in done.stdout, done.stderr


def test_errors_of_the_loader_have_shard_key_and_remedy(shard_of):
    good = packed(jpeg("420", 64, 80))
    path = shard_of(sample(0, good, "tpj"), sample(1, later(good), "tpj"), sample(2, good[:50], "tpj"))
    words = r"key 'k0001'.*LATER_VERSION \(7\): .*version 9\b"
    for transform in ({}, {"transform": torch.nn.Identity()}):
        split = tarpeg.Split(path, **({"crop": tarpeg.CenterCrop(8)} | transform))
        settings = {"batch_size": 3, "workers": 0, "threads": 0, "on_error": "raise"}
        with pytest.raises(DecodeError, match=words):
            next(iter(tarpeg.ShardDataModule(val=split, **settings).val_dataloader()))


def test_folders_may_have_packed_images(tmp_path):
    for number, name in enumerate(("train/cat", "train/dog", "val/cat", "val/dog")):
        (tmp_path / "root" / name).mkdir(parents=True)
        (tmp_path / "root" / name / "a.tpj").write_bytes(packed(jpeg("420", 64, 80, number)))
        (tmp_path / "root" / name / "b.jpg").write_bytes(jpeg("420", 64, 80, number))
    tarpeg.FolderShards(str(tmp_path / "root"), str(tmp_path / "out"), workers=0)()
    images = Shards(sorted((tmp_path / "out").glob("*.tar"))).images(range(8))
    assert sum(bytes(image[:4].tolist()) == pillow.PACKED for image in images) == 4
    report = build(tmp_path / "root", tmp_path / "c", Tiled())
    assert (report.samples, report.untiled, report.converted) == (8, {}, {})


def test_other_readers_of_a_shard_unpack(photos, tmp_path):
    webdataset = pytest.importorskip("webdataset")
    build(photos, tmp_path / "p", Packed())

    def unpack(data: bytes) -> Image.Image:
        return Image.open(io.BytesIO(tarpeg.unpack_jpeg(tensor(data)).numpy().tobytes())).convert("RGB")

    urls = [str(tmp_path / "p" / "a.tar")]
    dataset = webdataset.WebDataset(urls, shardshuffle=False).decode(
        webdataset.handle_extension("tpj", unpack)
    )
    source = members(photos / "a.tar")
    for each in dataset:
        theirs = np.asarray(pillow.open_rgb(source[f"{each['__key__']}.jpg"]))
        assert (np.asarray(each["tpj"]) == theirs).all()
