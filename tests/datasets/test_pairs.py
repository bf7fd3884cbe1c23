"""MaskFolder: images and their masks, by name."""

from __future__ import annotations

import pytest
import tarpeg
from helpers.data_sets import masks, picture, targets_of
from helpers.small_tars import members
from PIL import Image
from tarpeg.datasets.writer import make_shards
from tarpeg.errors import ShardError


def fill(place, names, image_suffix="", suffix="", folder="masks"):
    """Write an image and a mask per name; return the values of the masks."""
    sizes = {}
    for number, name in enumerate(names):
        path = place / "images" / f"{name}{image_suffix}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        data, sizes[f"{name}{suffix}"] = picture(number)
        path.write_bytes(data)
    (place / folder / "deep").mkdir(parents=True, exist_ok=True)
    return masks(place, sizes, folder)


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({}, "masks"),
        ({"suffix": "_mask"}, "images"),
        ({}, "images/masks"),
        ({"image_suffix": "_leftImg8bit", "suffix": "_labelIds"}, "masks"),
    ],
)
def test_masks_by_name(tmp_path, given, folder):
    values = fill(tmp_path, ["a", "deep/b"], folder=folder, **given)
    report = make_shards(tmp_path / "out", tarpeg.MaskFolder(tmp_path / "images", tmp_path / folder, **given))
    assert (report.samples, report.left_out) == (2, ())
    assert not (tmp_path / "out" / "classes.json").exists()
    key, mask = f"a{given.get('image_suffix', '')}", f"a{given.get('suffix', '')}"
    assert members(report.shards[0])[f"{key}.png"] == (tmp_path / folder / f"{mask}.png").read_bytes()
    read = targets_of(tmp_path / "out", tarpeg.Masks("png"), size=(48, 64))
    assert (read[key].numpy() == values[mask]).all()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\0\0\0\x18ftypheic" + bytes(50), "it is HEIC, which is not supported: convert it to JPEG or PNG"),
        (b"<html>", "it looks like HTML or XML (a failed download?)"),
        (b"\x89PNG\r\n", "its PNG header is damaged"),
    ],
)
def test_the_reason_why_an_image_cannot_be_read_is_that_of_a_cache(tmp_path, content, reason):
    fill(tmp_path, ["a", "b"])
    (tmp_path / "images" / "b.jpg").write_bytes(content)
    source = tarpeg.MaskFolder(tmp_path / "images", tmp_path / "masks")
    (line,) = make_shards(tmp_path / "out", source, workers=0).left_out
    assert line.endswith(f"b.jpg is not an image that can be read: {reason}")


def test_what_has_no_partner_is_left_out_and_listed(tmp_path, caplog):
    fill(tmp_path, ["a", "b", "c"])
    (tmp_path / "masks" / "b.png").rename(tmp_path / "masks" / "z.png")
    source = tarpeg.MaskFolder(tmp_path / "images", tmp_path / "masks")
    report = make_shards(tmp_path / "out", source, workers=0)
    (line,) = report.left_out
    assert report.samples == 2 and "b.png: No such file" in line
    assert "masks without an image: 1, the first is" in caplog.text and "z.png" in caplog.text
    (tmp_path / "images" / "a.png").write_bytes(b"")
    with pytest.raises(ShardError, match=r"a\.jpg and a\.png .*mask, a\.png"):
        make_shards(tmp_path / "out", source, workers=0)
    with pytest.raises(ShardError, match="nowhere' is not a folder"):
        make_shards(tmp_path / "out", tarpeg.MaskFolder(tmp_path / "nowhere", tmp_path / "masks"))


def test_masks_of_any_case_of_their_extension(tmp_path):
    for part in ("images/b", "masks/b"):
        (tmp_path / part).mkdir(parents=True)
    for name in ("a", "b/c.d"):
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / f"{name}.jpg")
        Image.new("L", (8, 8)).save(tmp_path / "masks" / f"{name}.PNG")
    source = tarpeg.MaskFolder(tmp_path / "images", tmp_path / "masks")
    assert make_shards(tmp_path / "shards", source, workers=0).samples == 2


def test_masks_in_the_folder_of_the_images_need_a_suffix(tmp_path):
    for name in ("a.png", "a_mask.png"):
        Image.new("L", (8, 8)).save(tmp_path / name)
    with pytest.raises(ShardError, match=r"are one folder, in which .* give suffix="):
        make_shards(tmp_path / "out", tarpeg.MaskFolder(tmp_path, tmp_path), workers=0)


def test_masks_that_are_no_pngs_are_named(tmp_path):
    fill(tmp_path, ["a", "b"])
    mask = tmp_path / "masks" / "b.png"
    Image.open(mask).save(mask.with_suffix(".tif"))
    mask.unlink()
    source = tarpeg.MaskFolder(tmp_path / "images", tmp_path / "masks")
    (line,) = make_shards(tmp_path / "out", source, workers=0).left_out
    assert line.startswith(f"{mask.with_suffix('.tif')}: masks are PNGs")
