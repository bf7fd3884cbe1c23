"""Codecs: the result for every kind of image, and that its pixels are those of Pillow."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from helpers import reference
from helpers.crafted import segment
from helpers.pictures import (
    ARITHMETIC,
    KINDS,
    OTHER_KINDS,
    encoded,
    full,
    jpeg,
    other_kind,
    picture,
    pixels,
    premultiplied_gray,
    saved,
    tensor,
)
from helpers.scripts import run_script
from helpers.small_tars import sample, write_tar
from PIL import Image, ImageCms
from tarpeg import DecodeError, Layout, Packed, Raw, Resized, Tiled, build_cache
from tarpeg.cache.codecs import Encoded, tile_width
from tarpeg.errors import CacheError, Status
from tarpeg.shards.pillow import native_reason, open_rgb

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def pillow(data: bytes):
    return reference.decode(tensor(data))


@pytest.mark.parametrize("kind", KINDS)
def test_tiled_jpegs_are_the_same_pixels(kind):
    source = jpeg(kind, 97, 160)
    data, extension, tile, untiled = Tiled(tile=32).encode(source, "jpeg")
    assert extension == "jpeg" and (full(data) == full(source)).all()
    assert not untiled and 16 <= tile <= 160
    assert Tiled(tile=32).encode(data, "jpg")[0] == data


def test_the_width_of_tiles_is_the_restart_interval():
    for tile in (32, 64):
        assert Tiled(tile).encode(jpeg("420", 64, 320), "jpg").tile == tile
    gray = Tiled(tile=32).encode(jpeg("gray", 64, 320), "jpg")
    assert gray.tile == 8 * gray.data[gray.data.index(b"\xff\xdd\x00\x04") + 5]
    assert Tiled(tile=16).encode(jpeg("444", 64, 16 * 8), "jpg").tile == 16


def test_untiled_jpegs_stay_untouched_with_a_reason():
    padded = jpeg("420", 64, 80)[:-2] + b"\0\xff\xd9"
    for source, reason in ((ARITHMETIC, "arithmetic"), (padded, "padding")):
        data, extension, tile, untiled = Tiled().encode(source, "jpg")
        assert (data, extension, tile) == (source, "jpg", None)
        assert reason in untiled


FORMATS = [
    *(("PNG", mode) for mode in ("RGB", "RGBA", "P", "L", "LA", "1", "I;16")),
    *(("TIFF", mode) for mode in ("RGB", "CMYK")),
    *((kind, "RGB") for kind in ("BMP", "WEBP", "GIF", "PPM")),
]


@pytest.mark.parametrize(("kind", "mode"), FORMATS)
def test_other_formats(kind, mode):
    frames = {"save_all": True, "append_images": [Image.new("RGB", (160, 97))]}
    options = {"GIF": frames, "WEBP": {"lossless": True, "orientation": 6}}.get(kind, {})
    source = picture(kind, mode=mode, size=(97, 160), **options)
    raw = Raw().encode(source, kind.lower())
    assert raw.extension == "ppm" and raw.tile is None
    assert (full(raw.data) == pillow(source)).all() and (pillow(raw.data) == pillow(source)).all()
    assert Tiled(quality=None).encode(source, "png")[:2] == raw[:2]
    tiled = Tiled(quality=95, subsampling="4:4:4").encode(source, "png")
    assert tiled.extension == "jpg" and tiled.tile
    assert (full(tiled.data) == pillow(tiled.data)).all()
    assert (full(tiled.data).int() - pillow(source)).abs().double().mean() < 5
    with Image.open(io.BytesIO(tiled.data)) as image:
        assert image.format == "JPEG" and image.layer[0][1:3] == (1, 1)
    with Image.open(io.BytesIO(Tiled(quality=95).encode(source, "png").data)) as image:
        assert image.layer[0][1:3] == (2, 2)


@pytest.mark.parametrize("codec", [Tiled(), Packed(), Raw()], ids=lambda codec: type(codec).__name__)
@pytest.mark.parametrize(("kind", "mode"), FORMATS)
def test_no_pixel_changes_unless_a_quality_or_a_size_is_asked_for(codec, kind, mode):
    source = picture(kind, mode=mode, size=(97, 160))
    assert (full(codec.encode(source, kind.lower()).data) == pillow(source)).all()


@pytest.mark.parametrize("kind", ["420", "gray", "cmyk", "ycck", "progressive", "rgb"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_resized_equals_pillow_on_the_upright_image(kind, orientation):
    source = jpeg(kind, 97, 160)
    exif = Image.Exif()
    exif[0x0112] = orientation
    source = source[:2] + segment(0xE1, exif.tobytes()) + source[2:]
    upright = open_rgb(source)
    assert upright.size == ((160, 97) if orientation == 1 else (97, 160))
    data, extension, tile, _ = Resized(shorter=48, quality=92).encode(source, "jpg")
    expected = upright.resize((79, 48) if orientation == 1 else (48, 79), Image.Resampling.LANCZOS)
    if kind == "gray":
        expected = expected.convert("L")
    untiled = encoded(expected, quality=92)
    assert extension == "jpg" and tile
    assert (full(data) == pillow(untiled)).all() and (full(data) == pillow(data)).all()
    raw = Raw(shorter=48).encode(source, "jpg")
    assert (full(raw.data) == pillow(saved(expected, "PPM"))).all()


def test_resized_never_enlarges():
    source = jpeg("420", 97, 160)
    assert Resized(shorter=97).encode(source, "jpg") == Tiled().encode(source, "jpg")
    assert pillow(Raw(shorter=500).encode(source, "jpg").data).shape == (3, 97, 160)
    png = picture("PNG", size=(40, 50))
    assert pillow(Resized(shorter=64).encode(png, "png").data).shape == (3, 40, 50)


def test_valid_colour_profiles_are_kept():
    def profile(data):
        return Image.open(io.BytesIO(data)).info.get("icc_profile")

    for kind in ("JPEG", "PNG"):
        source = picture(kind, icc_profile=SRGB)
        assert profile(Resized(shorter=48).encode(source, "jpg").data) == SRGB
        assert profile(Tiled(quality=95).encode(source, "jpg").data) == SRGB
    cmyk = picture("JPEG", mode="CMYK", icc_profile=SRGB[:16] + b"CMYK" + SRGB[20:])
    assert profile(Resized(shorter=48).encode(cmyk, "jpg").data) is None


def test_no_profile_is_added_to_what_was_lab():
    # Pillow adds one that holds the time: no two builds would be equal.
    lab = saved(Image.fromarray(pixels(64, 80)).convert("LAB"), "TIFF")
    assert Image.open(io.BytesIO(lab)).mode == "LAB"
    assert "icc_profile" not in Image.open(io.BytesIO(Tiled(quality=95).encode(lab, "tif").data)).info


def test_gray_that_is_multiplied_by_its_alpha_does_not_end_a_build():
    data = premultiplied_gray()
    levels = Image.open(io.BytesIO(data)).convert("LA").convert("RGB")
    assert (pillow(Raw().encode(data, "tif").data) == pillow(saved(levels, "PNG"))).all()


def test_a_header_that_pillow_refuses_does_not_end_a_build(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 97 * 160 // 2 - 1)  # an error above twice as many
    assert Resized(shorter=48).encode(jpeg("420", 97, 160), "jpg").extension == "jpg"


@pytest.mark.parametrize(
    "codec", [Tiled(), Resized(shorter=48), Raw()], ids=lambda codec: type(codec).__name__
)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "cut png", "header only", "floats"])
def test_damage_is_an_error(codec, damage):
    source = jpeg("420", 97, 160)
    flipped = bytearray(source)
    flipped[len(source) // 2 :] = bytes(byte ^ 0x55 for byte in source[len(source) // 2 :])
    data = {
        "cut": source[: len(source) // 2],
        "flipped": bytes(flipped),
        "empty": b"",
        "text": b"<html>not found</html>",
        "cut png": picture("PNG")[:2000],
        "header only": source[:4],
        "floats": saved(Image.new("F", (8, 8)), "TIFF"),
    }[damage]
    with pytest.raises(DecodeError, match="black and white" if damage == "floats" else None):
        codec.encode(data, "jpg")


@pytest.mark.parametrize(
    "codec", [Tiled(), Packed(), Resized(48), Raw()], ids=lambda codec: type(codec).__name__
)
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_kinds_of_jpeg_are_refused_with_the_reason(codec, kind):
    with pytest.raises(DecodeError) as caught:
        codec.encode(other_kind(kind), "jpg")
    assert str(caught.value).endswith(native_reason(Status.UNSUPPORTED, tensor(other_kind(kind))))
    assert kind in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Tiled, {"tile": 0}, r"tile=0 must be an integer in 1\.\.65535"),
        (Tiled, {"quality": 101}, "quality=101"),
        (Tiled, {"subsampling": "420"}, "subsampling='420' must be one of"),
        (Resized, {"shorter": 0}, "shorter=0"),
        (Resized, {"shorter": 256, "quality": None}, "quality=None"),
        (Raw, {"shorter": 2.5}, "shorter=2.5"),
        (Layout, {"samples_per_shard": 0}, "samples_per_shard=0 must be"),
    ],
)
def test_bad_settings(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(**settings)


@pytest.mark.slow
def test_constructing_a_codec_does_not_load_the_operators():
    code = "import tarpeg, sys; tarpeg.codecs.Tiled(), tarpeg.Raw(); assert 'tarpeg.ops' not in sys.modules"
    assert run_script(code).returncode == 0


def test_a_truncated_or_damaged_header_has_no_tiles():
    data = jpeg("420", 64, 80)
    for end in range(len(data)):
        tile_width(data[:end])
    frame = data.index(b"\xff\xc0")
    cut, flat = data[: frame + 12], bytearray(data)
    flat[frame + 11] = 0
    assert tile_width(cut) == tile_width(bytes(flat)) == (None, "its header is damaged")


@dataclass(frozen=True)
class Half:
    """A codec of a user that reduces images."""

    shorter: int | None = None

    def encode(self, data, extension):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        file = io.BytesIO()
        image.resize((image.width // 2, image.height // 2)).save(file, "PNG")
        return Encoded(file.getvalue(), "png", None, "halved")


def test_a_codec_of_ones_own_that_reduces_images_says_so(tmp_path):
    write_tar(tmp_path / "a.tar", sample(0))
    with pytest.raises(CacheError, match=r"key 'k0000': .*made \d+x\d+ pixels of .* field 'shorter'"):
        build_cache(tmp_path / "a.tar", tmp_path / "c", Half(), executor=0)
    assert build_cache(tmp_path / "a.tar", tmp_path / "c", Half(shorter=20), executor=0).samples == 1
