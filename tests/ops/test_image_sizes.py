"""image_sizes: from the header alone, upright."""

from __future__ import annotations

import pytest
import tarpeg
import torch
from helpers import pictures, reference
from PIL import Image


def test_every_kind() -> None:
    files = [pictures.tensor(pictures.jpeg(kind, 20 + i, 41 - i)) for i, kind in enumerate(pictures.KINDS)]
    sizes = tarpeg.image_sizes(files)
    assert sizes.dtype == torch.int32
    assert torch.equal(sizes, reference.image_sizes(files))


def test_upright() -> None:
    image = Image.fromarray(pictures.pixels(30, 40))
    files = [pictures.tensor(pictures.encoded(image, orientation=value)) for value in range(1, 9)]
    assert tarpeg.image_sizes(files).tolist() == [[30, 40]] * 4 + [[40, 30]] * 4


def test_a_thumbnail_is_not_the_image() -> None:
    thumbnail = pictures.encoded(Image.fromarray(pictures.pixels(8, 9)))
    plain = pictures.encoded(Image.fromarray(pictures.pixels(30, 40)))
    segment = b"Exif\0\0" + thumbnail
    data = plain[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + plain[2:]
    assert tarpeg.image_sizes([pictures.tensor(data)]).tolist() == [[30, 40]]


def test_only_the_header_is_read() -> None:
    data = pictures.jpeg("420", 30, 40)
    scan = data.index(b"\xff\xda")
    assert tarpeg.image_sizes([pictures.tensor(data[: scan + 2])]).tolist() == [[30, 40]]


def test_no_usable_header_is_zero() -> None:
    good = pictures.jpeg("420", 30, 40)
    height = good.index(b"\xff\xc0") + 5
    no_height = good[:height] + b"\0\0" + good[height + 2 :]
    files = [b"", b"\xff", b"\xff\xd8", good[:40], b"GIF89a" + bytes(40), b"P6", b"P6 0 5 255\n", no_height]
    assert tarpeg.image_sizes([pictures.tensor(data) for data in files]).tolist() == [[0, 0]] * len(files)
    assert tarpeg.image_sizes([]).shape == (0, 2)


def test_wrong_arguments_are_named() -> None:
    good = pictures.tensor(pictures.jpeg("420", 30, 40))
    with pytest.raises(ValueError, match=r"jpegs\[1\] must be a file's bytes"):
        tarpeg.image_sizes([good, good.int()])


def test_opcheck() -> None:
    good = pictures.tensor(pictures.jpeg("420", 30, 40))
    torch.library.opcheck(torch.ops.tarpeg.image_sizes.default, ([good, good],))


def test_compiles_into_one_graph() -> None:
    good = pictures.tensor(pictures.jpeg("420", 30, 40))
    compiled = torch.compile(lambda files: tarpeg.image_sizes(files) * 2, fullgraph=True, backend="aot_eager")
    assert compiled([good, good]).tolist() == [[60, 80]] * 2
