"""Images of other projects, damaged ones among them: sizes, pixels and refusals are those of Pillow."""

from __future__ import annotations

import hashlib
import io
import random
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import tarpeg
import torch
from helpers import source_packages
from helpers.checkouts import ROOT
from helpers.loaders import load
from helpers.pictures import encoded, resized, tensor
from helpers.reference import resize
from helpers.small_tars import write_tar
from PIL import Image, ImageOps
from tarpeg import DecodeError, Raw, Tiled
from tarpeg.sampling.sampler import Request
from tarpeg.shards.pillow import IMAGE_EXTENSIONS
from torch import Tensor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("conformance")]

# The files for which tarpeg and Pillow 13 differ, by reason. All others are equal: their pixels, or that they
# cannot be decoded. docs/fidelity.md explains the reasons.
DIFFERENCES = {
    "libjpeg warns": "hopper_bad_exif.jpg",
    "signed, 32 bits or floats": (
        "10ct_32bit_128.tiff 16_bit_binary_pgm.tiff 16bit.s.tif 8bit.s.tif separate_planar_extra_samples.tiff"
    ),
    "16 bits": (
        "12bit.cropped.tif 12in16bit.tif 16_bit_binary.pgm 16_bit_noise.tif 16bit.MM.cropped.tif "
        "16bit.MM.deflate.tif 16bit.cropped.tif 16bit.deflate.tif 16bit.r.tif "
        "cmx3g8_wv_1998.260_0745_mcidas.tiff exiv2-bug1044.tif hopper_16bit.pgm hopper_16bit_plain.pgm "
        "i_trns.png ifd_tag_type.tiff imagedraw_rectangle_I.tiff uint16_1_4660.tif"
    ),
}
REASONS = {name: reason for reason, names in DIFFERENCES.items() for name in names.split()}


@dataclass
class File:
    """A file and its pixels, uint8 [3, H, W], by Pillow and by tarpeg; None if it cannot be decoded."""

    name: str
    data: bytes
    pillow: Tensor | None
    ours: Tensor | None

    @property
    def is_jpeg(self) -> bool:
        return self.data.startswith(b"\xff\xd8\xff")

    @property
    def key(self) -> str:
        return self.name.replace(".", "_")

    @property
    def extension(self) -> str:
        extension = "jpg" if self.is_jpeg else self.name.rpartition(".")[2].lower()
        return extension if extension in IMAGE_EXTENSIONS else "ppm"


@dataclass(frozen=True)
class Middle:
    """The middle of an image, a quarter of it."""

    size: tuple[int, int] = (24, 40)
    draws: int = 0

    def boxes(self, sizes, uniforms):
        return np.concatenate((sizes // 4, sizes - sizes // 2), 1)

    def of(self, image: Tensor) -> Tensor:
        ((top, left, height, width),) = self.boxes(np.array([image.shape[1:]]), None).tolist()
        return resize(image[:, top : top + height, left : left + width], self.size, "nearest", False)


def by_pillow(data: bytes) -> Tensor | None:
    try:
        with Image.open(io.BytesIO(data)) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except Exception:  # damaged files raise nearly anything
        return None
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


def by_tarpeg(data: bytes) -> Tensor | None:
    try:
        return by_pillow(Raw().encode(data, "").data)
    except DecodeError as error:
        assert str(error), "a reason"
        return None


def upper_bits(data: bytes) -> Tensor:
    with Image.open(io.BytesIO(data)) as image:
        twelve = getattr(image, "tag_v2", {}).get(258) == (12,)
        levels = np.asarray(image) >> (4 if twelve else 8)
    return torch.from_numpy(levels.astype(np.uint8)).expand(3, -1, -1)


@pytest.fixture(scope="module", params=source_packages.PACKAGES)
def files(request) -> list[File]:
    """The images of one package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of damaged metadata
        found = source_packages.images(request.param).items()
        return [File(name, data, by_pillow(data), by_tarpeg(data)) for name, data in found]


def native(files: list[File]) -> Iterator[tuple[File, Tensor, list[tuple[int, int, int, int]]]]:
    """JPEGs and binary PPMs that Pillow decodes, their bytes as a tensor, and random boxes."""
    for file in files:
        if (file.is_jpeg or file.data.startswith(b"P6")) and file.pillow is not None:
            draw, (_, rows, columns) = random.Random(file.name), file.pillow.shape
            sides = [(draw.randint(1, rows), draw.randint(1, columns)) for _ in range(3)]
            boxes = [(draw.randint(0, rows - h), draw.randint(0, columns - w), h, w) for h, w in sides]
            yield file, tensor(file.data), boxes


def test_files_that_differ_from_pillow_are_listed(files):
    differing = {}
    for file in files:
        ours, expected = file.ours, file.pillow
        if (ours is None) != (expected is None) or (ours is not None and not torch.equal(ours, expected)):
            name = file.name.rpartition("/")[2]
            differing[name] = REASONS.get(name, "not listed")
            if differing[name] == "16 bits":
                assert torch.equal(ours, upper_bits(file.data)), name
            else:
                assert ours is None, f"{name}: pixels that are not Pillow's"
    listed = {file.name.rpartition("/")[2] for file in files} & set(REASONS)
    assert differing == {name: REASONS[name] for name in listed}


def test_sizes_and_random_crops(files):
    for file, jpeg, boxes in native(files):
        assert tarpeg.image_sizes([jpeg]).tolist() == [list(file.pillow.shape[1:])], file.name
        for top, left, height, width in boxes:
            try:
                crop = tarpeg.decode_crop(jpeg, top, left, height, width)
            except DecodeError:
                assert file.ours is None, file.name
                continue
            expected = file.pillow[:, top : top + height, left : left + width]
            assert torch.equal(crop, expected), (file.name, top, left, height, width)


def test_resizing(files):
    for file, jpeg, boxes in native(files):
        if file.ours is None:
            continue
        for top, left, height, width in boxes:
            size = (1 + (height * 7 + left) % 64, 1 + (width * 5 + top) % 64)
            part = file.pillow[:, top : top + height, left : left + width]
            exact = resized(jpeg, (top, left, height, width), size, fidelity="exact").int()
            fast = resized(jpeg, (top, left, height, width), size, fidelity="fast")
            place = (file.name, top, left, height, width, size)
            assert (exact - resize(part, size, "bilinear", True)).abs().max() <= 1, place
            assert (exact - fast).abs().double().mean() < 6, place


def test_tiles_are_the_same_pixels(files):
    for file, jpeg, _ in native(files):
        if file.is_jpeg and file.ours is not None:
            tiled = tarpeg.tile_jpeg(jpeg, 32)
            assert torch.equal(by_pillow(tiled.numpy().tobytes()), file.pillow), file.name
            assert torch.equal(tarpeg.decode_crop(tiled, 0, 0, *file.pillow.shape[1:]), file.pillow), (
                file.name
            )


def test_builder_and_loader(files, tmp_path):
    members = [
        member for f in files for member in ((f"{f.key}.{f.extension}", f.data), (f"{f.key}.cls", b"0"))
    ]
    source = write_tar(tmp_path / "source.tar", members)
    options = {"shuffle": False, "flip": 0.0, "interpolation": "nearest", "workers": 0, "max_bad": 1.0}
    good = [file for file in files if file.ours is not None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of substitutes, of images that are not JPEGs, and Pillow's
        report = tarpeg.build_cache(source, tmp_path / "cache", Tiled(quality=None), 0, max_bad=1.0)
        assert [(bad.key, bool(bad.reason)) for bad in report.quarantine] == [
            (file.key, True) for file in files if file.ours is None
        ]
        batches = list(load(report.dest, Middle(), batch_size=16, **options | {"workers": 1}))
        assert [key for batch in batches for key in batch.key] == [file.key for file in good]
        for file, image in zip(good, (image for batch in batches for image in batch.image), strict=True):
            assert torch.equal(image, Middle().of(file.ours)), file.name
        loader = load(source, Middle(), batch_size=1, **options)
        refusing = load(source, Middle(), on_error="raise", **options).fetcher
        for number, (file, (images, _, keys)) in enumerate(zip(files, loader, strict=True)):
            if keys == [
                file.key
            ]:  # damage below the crop is not seen: these pixels are Pillow's all the same
                expected = file.pillow if file.ours is None else file.ours
                assert torch.equal(images[0], Middle().of(expected)), file.name
            else:
                assert file.ours is None, file.name
                error = refusing.fetch(Request(0, np.array([number]))).error
                assert isinstance(error, DecodeError) and f"source.tar, key '{file.key}'" in str(error)
    assert tarpeg.verify_cache(report.dest, 0).is_good


def test_checksums_of_libjpeg_turbo():
    """The MD5s with which libjpeg-turbo tests its decoder: of whole images, rows and crops."""
    found = dict(source_packages.files("libjpeg-turbo"))
    lists = b"".join(data for name, data in found.items() if name.endswith("CMakeLists.txt")).decode()
    sums = dict(re.findall(r"set\(MD5_PPM_(\w+) (\w{32})\)", lists))  # those of 8 bits are the last
    picture = Image.open(io.BytesIO(found["testimages/testorig.ppm"]))

    def check(name: str, jpeg: bytes, *boxes: tuple[int, int, int, int]) -> None:
        rows = torch.cat([tarpeg.decode_crop(tensor(jpeg), *box) for box in boxes], 1)
        header = b"P6\n%d %d\n255\n" % (rows.shape[2], rows.shape[1])
        ppm = header + rows.permute(1, 2, 0).contiguous().numpy().tobytes()
        assert hashlib.md5(ppm).hexdigest() == sums[name], name

    arithmetic, original = (found[f"testimages/{name}.jpg"] for name in ("testimgari", "testorig"))
    check("420_ISLOW_SKIP15_31", original, (0, 0, 15, 227), (32, 0, 117, 227))
    check("420_ISLOW_ARI_SKIP16_139", arithmetic, (0, 0, 16, 227), (140, 0, 9, 227))
    # Of a crop, libjpeg-turbo decodes whole MCUs. Its crop within 4:2:0 (420_ISLOW_PROG_CROP62x62_71_71) is
    # not here: the first column lacks its neighbours there, and differs from decoding everything.
    check("420_ISLOW_ARI_CROP53x53_4_4", arithmetic, (4, 0, 53, 57))
    full, progressive = (encoded(picture, quality=75, subsampling=0, progressive=p) for p in (False, True))
    check("444_ISLOW_SKIP1_6", full, (0, 0, 1, 227), (7, 0, 142, 227))
    check("444_ISLOW_PROG_CROP98x98_13_13", progressive, (13, 8, 98, 103))
    check("444_ISLOW_ARI_CROP37x37_0_0", full, (0, 0, 37, 37))
    check("RGB_ISLOW", encoded(picture, quality=75, keep_rgb=True, subsampling=0), (0, 0, 149, 227))
    check("GRAY_ISLOW_RGB", encoded(picture.convert("L"), quality=75), (0, 0, 149, 227))


def test_the_page_explains_every_difference():
    page = (ROOT / "docs" / "fidelity.md").read_text()
    for reason, names in DIFFERENCES.items():
        assert f"| {reason} |" in page and f"{len(names.split())} file" in page, reason
