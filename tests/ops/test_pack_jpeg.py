"""pack_jpeg, unpack_jpeg and decoding packed images: exact coefficients and pixels; damage is a status."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
import tarpeg
import torch
from helpers import crafted, packed_images, pictures, reference
from helpers.crafted import Jpeg, ceil_div
from helpers.loaders import load
from helpers.small_tars import write_tar
from hypothesis import given, settings, strategies as st
from PIL import Image
from tarpeg import Status

UNPACKED_KINDS = ("cmyk", "ycck", "rgb")  # their colours are not YCbCr or gray: they stay JPEGs
KINDS = [kind for kind in pictures.KINDS if kind not in UNPACKED_KINDS]


def packed(data: bytes, tile: int = 32) -> bytes:
    return tarpeg.pack_jpeg(pictures.tensor(data), tile).numpy().tobytes()


def unpacked(data: bytes) -> bytes:
    return tarpeg.unpack_jpeg(pictures.tensor(data)).numpy().tobytes()


def tiled(data: bytes, tile: int = 32) -> bytes:
    return tarpeg.tile_jpeg(pictures.tensor(data), tile).numpy().tobytes()


def status_of(data: bytes, box: tuple[int, int, int, int] = (0, 0, 1, 1), **options: object) -> int:
    boxes = torch.tensor([box], dtype=torch.int32)
    return int(tarpeg.decode_batch([pictures.tensor(data)], boxes, 8, **options)[1])


def assert_same_pixels(data: bytes, tile: int = 32) -> bytes:
    """The packed image decodes to the pixels of the source, whole, cropped and unpacked."""
    result = packed(data, tile)
    assert result[:4] == packed_images.MAGIC
    whole = reference.decode(pictures.tensor(data))
    _, height, width = whole.shape
    top, left = height // 3, width // 4
    pictures_of = pictures.tensor(result)
    assert tarpeg.image_sizes([pictures_of]).tolist() == [[height, width]]
    for box in ((0, 0, height, width), (top, left, height - top, (width - left + 1) // 2)):
        top, left, rows, columns = box
        assert torch.equal(
            tarpeg.decode_crop(pictures_of, *box), whole[:, top : top + rows, left : left + columns]
        )
    jpeg = unpacked(result)
    assert jpeg[:2] == b"\xff\xd8" and packed(jpeg, tile) == result
    assert np.array_equal(*(np.asarray(Image.open(io.BytesIO(file))) for file in (jpeg, data)))
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 1), (2, 50), (50, 3), (16, 16), (75, 101)])
def test_every_pixel_is_kept(kind: str, size: tuple[int, int]) -> None:
    data = pictures.jpeg(kind, *size)
    for tile in (1, 32, 1000):
        assert_same_pixels(data, tile)


@pytest.mark.parametrize("kind", UNPACKED_KINDS)
def test_what_cannot_be_packed_is_tiled(kind: str) -> None:
    data = pictures.jpeg(kind, 40, 50)
    assert packed(data) == tiled(data) != data


def test_what_cannot_be_tiled_stays_as_it_is() -> None:
    padded = Jpeg(24, 40, behind_scan=b"\x00\xff\xd9").noise().bytes()
    for data in (pictures.ARITHMETIC, padded):
        assert packed(data) == tiled(data) == data


def test_the_coefficients_by_the_twin() -> None:
    for number, sampling in enumerate(crafted.SAMPLINGS):
        source = Jpeg(45, 77, sampling).noise(number, 200)
        result = packed(source.bytes(), 24)
        if result[:4] != packed_images.MAGIC:
            assert result == tiled(source.bytes(), 24) and 3 in np.ravel(sampling)
            continue
        found = packed_images.read(result)
        assert (found.height, found.width, found.orientation) == (45, 77, 1)
        assert found.metadata[:4] == b"\xff\xe0\x00\x10"
        across, down = max(h for h, _ in sampling), max(v for _, v in sampling)
        assert len(found.components) == len(sampling)
        for component, (h, v), blocks in zip(found.components, sampling, source.coefficients, strict=True):
            rows, columns = (
                ceil_div(ceil_div(45 * v, down), 8),
                ceil_div(ceil_div(77 * h, across), 8),
            )
            expected = np.zeros((rows, columns, 64), int)
            expected[:, :, packed_images.ZIGZAG] = blocks[:rows, :columns]
            assert np.array_equal(component.coefficients[:rows, :columns], expected), sampling
            natural = np.zeros(64, int)
            natural[packed_images.ZIGZAG] = crafted.PHOTO
            assert component.quantisers == natural.tolist()


def test_orientations_and_metadata_are_kept() -> None:
    icc = bytes(range(256)) * 300  # two segments
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112], exif[0x010E] = orientation, "a description"
        image = Image.fromarray(pictures.pixels(40, 60))
        data = pictures.encoded(image, exif=exif, dpi=(300, 150), icc_profile=icc)
        result = assert_same_pixels(data)
        assert packed_images.read(result).orientation == orientation
        kept, source = (Image.open(io.BytesIO(file)) for file in (unpacked(result), data))
        assert kept.getexif() == source.getexif()
        assert all(kept.info[key] == source.info[key] for key in ("icc_profile", "dpi", "jfif_version"))


def test_resized_views_and_gray_are_those_of_the_jpeg() -> None:
    for kind in ("420", "444", "gray"):
        data = pictures.jpeg(kind, 150, 170)
        jpeg, image = pictures.tensor(data), pictures.tensor(packed(data))
        boxes = torch.tensor(
            [[0, 0, 150, 170], [30, 9, 101, 120], [40, 20, 60, 60], [5, 5, 140, 20]], dtype=torch.int32
        )
        options: list[dict[str, object]] = [
            *({"interpolation": name} for name in ("bilinear", "bicubic", "lanczos", "box", "nearest")),
            *(
                {"interpolation": "nearest-exact"},
                {"antialias": False},
                {"fidelity": "exact"},
                {"channels": 1},
            ),
        ]
        for option in options:
            for size in (7, 40, 160):
                expected, _ = tarpeg.decode_batch([jpeg] * 4, boxes, size, **option)
                found, status = tarpeg.decode_batch([image] * 4, boxes, size, **option)
                assert not status.any() and torch.equal(found, expected), (kind, option, size)


def test_long_rows_have_larger_units() -> None:
    """Rows of tiles of more than 64 KB: tiles begin at multiples of 2, 4, ... bytes."""
    source = Jpeg(8, 1000, ((1, 1), (1, 1), (1, 1)), tables=([1] * 64,) * 2).noise(1, 3000)
    source.coefficients = [
        np.random.default_rng(i).integers(-900, 900, blocks.shape)
        for i, blocks in enumerate(source.coefficients)
    ]
    data = source.bytes()
    result = assert_same_pixels(data, 64)
    found = packed_images.read(result)
    assert found.unit == 1
    expected = np.zeros_like(source.coefficients[2])
    expected[:, :, packed_images.ZIGZAG] = source.coefficients[2]
    assert np.array_equal(found.components[2].coefficients, expected)
    assert packed_images.read(packed(data, 65535)).tile == 256 // 3, "a tile has at most 256 blocks"


@settings(max_examples=40, deadline=None)
@given(
    sampling=st.sampled_from([*crafted.SAMPLINGS[:6], ((1, 1),)]),
    size=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    largest=st.sampled_from([1, 7, 8, 9, 127, 128, 129, 1023]),
    share=st.floats(0, 1),
    largest_dc=st.sampled_from([0, 7, 128, 1023, 2047]),
    quantiser=st.sampled_from([1, 16, 255, 256, 65535]),
    seed=st.integers(0, 1 << 30),
)
def test_random_coefficients(
    sampling: tuple[tuple[int, int], ...], size: tuple[int, int], largest: int, share: float, largest_dc: int,
    quantiser: int, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    source = Jpeg(*size, sampling, tables=([quantiser] * 64,) * 2).noise()
    for blocks in source.coefficients:
        values = rng.integers(-largest, largest + 1, blocks.shape)
        blocks[:] = np.where(rng.random(blocks.shape) < share, values, 0)
        # Differences of more than 2047 cannot be coded.
        blocks[..., 0] = rng.integers(-largest_dc, largest_dc + 1, blocks.shape[:2]).clip(-1023, 1023)
        blocks[..., 0] += 1024 if largest_dc == 2047 else 0
    data = source.bytes()
    result = packed(data, 32)
    assert result[:4] == packed_images.MAGIC
    jpeg, image = pictures.tensor(data), pictures.tensor(result)
    box = (0, 0, *tarpeg.image_sizes([image])[0].tolist())
    assert torch.equal(tarpeg.decode_crop(image, *box), tarpeg.decode_crop(jpeg, *box))
    assert packed(unpacked(result)) == result
    first = packed_images.read(result).components[0].coefficients
    rows, columns = -(-size[0] // 8), -(-size[1] // 8)
    expected = np.zeros_like(source.coefficients[0])
    expected[:, :, packed_images.ZIGZAG] = source.coefficients[0]
    if max(np.ravel(sampling)) == 1:
        assert np.array_equal(first[:rows, :columns], expected[:rows, :columns])


def test_differences_that_no_jpeg_without_restarts_codes_stay_jpegs() -> None:
    source = Jpeg(8, 64, ((1, 1),), tables=([1] * 64,), interval=1).noise(0, 0)
    source.coefficients[0][0, :, 0] = [2047, -2047] * 4
    data = source.bytes()
    assert packed(data) == tiled(data)
    source.coefficients[0][0, :, 0] = [1023, -1024] * 4
    assert_same_pixels(source.bytes())


def test_damage_is_a_status_and_never_a_crash() -> None:
    """Any byte may change; whatever still decodes has a size and pixels."""
    chooser = random.Random(5)
    for kind in ("420", "444", "gray"):
        good = packed(pictures.jpeg(kind, 60, 90))
        box = (3, 5, 50, 70)
        assert status_of(good, box) == 0
        for length in [*range(0, 200, 7), *range(200, len(good), 41), len(good) - 1]:
            assert status_of(good[:length], box) in (
                Status.EMPTY,
                Status.NOT_AN_IMAGE,
                Status.TRUNCATED,
                Status.CORRUPT,
            )
            with pytest.raises(tarpeg.DecodeError):
                unpacked(good[:length])
        for _ in range(400):
            bad = bytearray(good)
            bad[chooser.randrange(len(bad))] ^= 1 << chooser.randrange(8)
            height, width = tarpeg.image_sizes([pictures.tensor(bytes(bad))])[0].tolist()
            if height >= 53 and width >= 75:
                assert status_of(bytes(bad), box) in (
                    Status.OK,
                    Status.TRUNCATED,
                    Status.CORRUPT,
                    Status.TOO_LARGE,
                )
            with pytest.raises(tarpeg.DecodeError):
                unpacked(bytes(bad))


def changed(data: bytes, at: int, *values: int) -> bytes:
    return data[:at] + bytes(values) + data[at + len(values) :]


def test_each_field_is_checked() -> None:
    good = packed(pictures.jpeg("420", 60, 90))
    rows_at, row_count = 40 + 128 * good[19], 4
    ends_at = rows_at + 4 * row_count
    cases = {
        "orientation": changed(good, 6, 9),
        "components": changed(good, 7, 2),
        "no height": changed(good, 12, 0, 0),
        "too many blocks": changed(good, 12, 64, 31, 64, 31),
        "no MCUs": changed(good, 16, 0, 0),
        "MCUs": changed(good, 16, 60, 0),
        "unit": changed(good, 18, 17),
        "tables": changed(good, 19, 5),
        "sampling": changed(good, 21, 0x33),
        "table": changed(good, 22, 3),
        "DC bytes": changed(good, 23, 3),
        "metadata": changed(good, 32, 0, 0, 0, 0),
        "metadata's end": changed(good, 36, 255, 255, 255, 255),
        "row": changed(good, rows_at, 255, 255, 255, 255),
        "end": changed(good, ends_at, 255, 255),
        "end before begin": changed(good, ends_at + 2, 0, 0),
        "ends early": changed(good, ends_at, good[ends_at] - 1),
        "lengths": changed(good, int.from_bytes(good[rows_at : rows_at + 4], "little") + 6, *[255] * 6),
    }
    for name, data in cases.items():
        status = status_of(data, (0, 0, 30, 90) if "height" not in name else (0, 0, 1, 1))
        assert status in (Status.TRUNCATED, Status.CORRUPT), name
        with pytest.raises(tarpeg.DecodeError):
            unpacked(packed_images.with_sum(data))
    with pytest.raises(tarpeg.DecodeError, match="damaged"):
        unpacked(changed(good, 40, good[40] ^ 1))
    assert status_of(good + b"\0") == Status.CORRUPT


def test_an_orientation_that_contradicts_the_metadata_is_damage() -> None:
    good = packed(pictures.encoded(Image.fromarray(pictures.pixels(40, 60)), exif=exif_of(6)))
    assert good[6] == 6 and Image.open(io.BytesIO(unpacked(good))).getexif()[0x0112] == 6
    for orientation in (1, 3, 8):
        with pytest.raises(tarpeg.DecodeError, match="damaged"):
            unpacked(packed_images.with_sum(changed(good, 6, orientation)))


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def test_metadata_that_is_no_segments_is_damage() -> None:
    good = packed(pictures.jpeg("420", 20, 30))
    at = int.from_bytes(good[32:36], "little")
    for place, value in ((at, 0), (at + 1, 0xDA), (at + 3, 1), (at + 3, 40)):
        bad = packed_images.with_sum(changed(good, place, value))
        assert status_of(bad) == Status.OK, "the decoder does not need it"
        with pytest.raises(tarpeg.DecodeError, match="damaged"):
            unpacked(bad)


def test_a_later_version_is_refused_by_its_own_status() -> None:
    later = changed(packed(pictures.jpeg("420", 20, 30)), 4, 2)
    assert status_of(later) == Status.LATER_VERSION
    assert tarpeg.image_sizes([pictures.tensor(later)]).tolist() == [[0, 0]]
    for call in (lambda: unpacked(later), lambda: packed(later)):
        with pytest.raises(tarpeg.DecodeError, match="later version"):
            call()


def test_packing_twice_and_unpacking_a_jpeg_change_nothing() -> None:
    data = pictures.jpeg("420", 50, 60)
    result = packed(data)
    assert packed(result) == result and unpacked(data) == data
    with pytest.raises(tarpeg.DecodeError, match="damaged"):
        packed(changed(result, 100, result[100] ^ 1))
    ppm = b"P6 1 1 255\nabc"
    for call in (packed, unpacked):
        with pytest.raises(tarpeg.DecodeError, match="neither"):
            call(ppm)


def test_damaged_jpegs_are_refused() -> None:
    data = pictures.jpeg("420", 50, 60)
    for bad in (data[:-200], data[:-2], data[:-40] + data[-30:]):
        with pytest.raises(tarpeg.DecodeError):
            packed(bad)
    with pytest.raises(tarpeg.DecodeError, match="max_pixels"):
        tarpeg.pack_jpeg(pictures.tensor(data), max_pixels=2999)
    with pytest.raises(tarpeg.DecodeError, match="max_pixels"):
        tarpeg.unpack_jpeg(pictures.tensor(packed(data)), max_pixels=2999)


def test_arguments() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 20, 30))
    for tile in (0, 65536):
        with pytest.raises(ValueError, match=f"tile={tile} .* 65535"):
            tarpeg.pack_jpeg(jpeg, tile)
    for call, name in ((tarpeg.pack_jpeg, "jpeg"), (tarpeg.unpack_jpeg, "image")):
        with pytest.raises(ValueError, match=name):
            call(jpeg.float())


def test_opcheck_and_one_graph() -> None:
    jpeg = pictures.tensor(pictures.jpeg("420", 20, 30))
    image = tarpeg.pack_jpeg(jpeg)
    torch.library.opcheck(torch.ops.tarpeg.pack_jpeg, (jpeg, 32, 10**6))
    torch.library.opcheck(torch.ops.tarpeg.unpack_jpeg, (image, 10**6))


def test_portable_code_and_every_level_of_vector_code_give_the_same_bytes() -> None:
    pictures.assert_portable_is_equal(
        """
from helpers.crafted import SAMPLINGS
files = [Jpeg(24, 40, sampling, tables=([1] * 64,) * 2).noise(1, 20000).bytes() for sampling in SAMPLINGS[:2]]
files += [jpeg(kind, 70, 133) for kind in ("420", "444", "411", "gray")]
for data in files:
    image = tarpeg.pack_jpeg(tensor(data))
    height, width = tarpeg.image_sizes([image])[0].tolist()
    for result in (image, tarpeg.decode_crop(image, 0, 0, height, width), tarpeg.unpack_jpeg(image)):
        write(result)
"""
    )


def test_shards_with_packed_members_are_read(tmp_path) -> None:
    found = []
    for extension in ("jpg", "tpj"):
        files = [pictures.jpeg("420", 40 + i, 64, i) for i in range(4)]
        files = [packed(data) if extension == "tpj" else data for data in files]
        members = [(f"{i}.{extension}", data) for i, data in enumerate(files)]
        labels = [(f"{i}.cls", b"%d" % i) for i in range(4)]
        path = write_tar(tmp_path / f"{extension}.tar", sorted([*members, *labels]))
        (batch,) = load(str(path), shuffle=False)
        found.append(batch)
    assert torch.equal(found[0].image, found[1].image) and found[0].key == found[1].key


def test_a_loader_gives_the_version_of_a_later_packed_image(tmp_path) -> None:
    later = changed(packed(pictures.jpeg("420", 40, 64)), 4, 2, 1)
    path = write_tar(tmp_path / "a.tar", [("0.tpj", later), ("0.cls", b"1")])
    with pytest.raises(tarpeg.DecodeError, match=r"LATER_VERSION \(7\).* version 258"):
        next(iter(load(str(path), batch_size=1)))
