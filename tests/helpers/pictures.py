"""Small images for the tests: every kind of JPEG that libjpeg writes, and batches of pixels."""

from __future__ import annotations

import base64
import io
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import tarpeg
import torch
from PIL import Image
from tarpeg.ops import matrices as mx
from torch import Tensor

from helpers import reference
from helpers.forks import run_forked
from helpers.scripts import PATHS

SAMPLINGS = ("444", "422", "420", "440", "411", "gray")
# 16x24, gray, progressive, arithmetic-coded (cjpeg -arithmetic -progressive): no Python package writes these.
ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxO"
    "UlNSMj5aYVpQYEpRUk//ygALCAAQABgBAREA/8wABAAQ/9oACAEBAAAAAf8AOxcD69oKoP/MAAQQBf/aAAgBAQABBQIa38Fd0KcJ"
    "QuXGdFKb3/K0UP/MAAQQBf/aAAgBAQAGPwLn948zvPKXU1EuY0kDMs9Y+Gje/8wABBAF/9oACAEBAAE/IbTTgmLnbtYwFBPtpiIt"
    "iLvCsUPlUJj0QIb/2gAIAQEAAAAQtP/MAAQQBf/aAAgBAQABPxAMjvaQCKWNI+41r/obOhsc0SUTzsiMw9udVG3Qbh8jcZhyRRvu"
    "QryrOrcG/9k="
)
KINDS = (*SAMPLINGS, "cmyk", "ycck", "gray22", "progressive", "restarts", "rgb", "odd_markers")


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    """uint8 [height, width, 3]: smooth blobs, an edge and some grain."""
    rng = np.random.default_rng([seed, height, width])
    coarse = rng.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    image[height // 2 :, width // 3 :] = 255 - image[height // 2 :, width // 3 :]
    return (image + rng.integers(-20, 21, image.shape)).clip(0, 255).astype(np.uint8)


def tensor(data: bytes) -> Tensor:
    """uint8 [n]"""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def encoded(image: Image.Image, **options: Any) -> bytes:
    """The bytes of a JPEG as Pillow writes it."""
    return saved(image, "JPEG", **{"quality": 90, **options})


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of an image in a format of Pillow, such as PNG; orientation= adds the EXIF tag."""
    orientation = options.pop("orientation", None)
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(
    kind: str, seed: int = 0, mode: str = "RGB", size: tuple[int, int] = (64, 80), **options: Any
) -> bytes:
    """An image in a format and a mode of Pillow; size: height and width."""
    image = Image.fromarray(pixels(*size, seed))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    return saved(image.convert(mode), kind, **options)


def premultiplied_gray(seed: int = 0) -> bytes:
    """A TIFF of gray levels multiplied by their alpha, mode La of Pillow, which cannot write one."""
    before, after = (struct.pack("<HHIHH", 338, 3, 1, kind, 0) for kind in (2, 1))
    tiff = picture("TIFF", seed, mode="LA")
    assert tiff.count(before) == 1
    return tiff.replace(before, after)


PORTABLE = f"""{PATHS}
import torch, tarpeg
from itertools import product
from helpers import pictures
from helpers.crafted import Jpeg
from helpers.pictures import ORDERS, drawn, jpeg, noise, parts, programs, resized, shrinking, tensor
output = open(sys.argv[1], "wb")
def write(values):
    output.write(values.float().contiguous().numpy().tobytes())
"""


def assert_portable_is_equal(script: str) -> None:
    """Run a script that passes tensors to write(), at each level of vector code: the values must be equal."""
    levels = {"none": {"TARPEG_PORTABLE": "1"}, "AVX2": {"TARPEG_VECTORS": "avx2"}, "AVX-512": {}}
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "script.py")
        code.write_text(PORTABLE + script + "\noutput.close()\n")
        from tarpeg.ops.decode import native_facts  # loads the native library

        for level in list(levels)[: list(levels).index(native_facts()["simd"]) + 1]:
            done = run_forked(code, Path(folder, level), **levels[level])
            assert done.returncode == 0, done.stdout + done.stderr
            values = Path(folder, level).read_bytes()
            assert values and values == Path(folder, "none").read_bytes(), level


def assert_one_graph(function: Callable[..., Tensor], *arguments: Any) -> None:
    """The function compiles into one graph, which computes the same values."""
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*arguments), function(*arguments))


def batch(count: int = 5) -> tuple[list[Tensor], Tensor]:
    """Files of different height, and a box for each."""
    files = [tensor(jpeg("420", 60 + seed, 64, seed)) for seed in range(count)]
    return files, torch.tensor([[seed, 4, 40, 50] for seed in range(count)], dtype=torch.int32)


def resized(jpeg: Tensor, box: Sequence[int], size: int | tuple[int, int], **options: Any) -> Tensor:
    """One image of decode_batch: [3, height, width]; its status must be 0."""
    images, status = tarpeg.decode_batch([jpeg], torch.tensor([box], dtype=torch.int32), size, **options)
    assert status.tolist() == [0]
    return images[0]


def check_crops(data: bytes, boxes: Sequence[tuple[int, int, int, int]]) -> None:
    """Crops of the file equal Pillow's pixels; so do results of decode_batch at their own size, mirrored."""
    jpeg = tensor(data)
    whole = reference.decode(jpeg)
    assert tarpeg.image_sizes([jpeg]).tolist() == [list(whole.shape[1:])]
    for box in boxes:
        top, left, height, width = box
        expected = whole[:, top : top + height, left : left + width]
        assert torch.equal(tarpeg.decode_crop(jpeg, *box), expected), (box, whole.shape)
        twice, flip = torch.tensor([box] * 2, dtype=torch.int32), torch.tensor([False, True])
        images, status = tarpeg.decode_batch([jpeg] * 2, twice, (height, width), flip)
        assert not status.any() and torch.equal(images, torch.stack((expected, expected.flip(-1)))), box


def full(data: bytes) -> Tensor:
    """Decode the whole image with our operator: uint8 [3, height, width]."""
    height, width = tarpeg.image_sizes([tensor(data)])[0].tolist()
    return resized(tensor(data), (0, 0, height, width), (height, width))


def jpeg(kind: str, height: int, width: int, seed: int = 0, rgb: np.ndarray | None = None) -> bytes:
    """A JPEG of one of KINDS; rgb: its pixels, by default those of pixels()."""
    rgb = pixels(height, width, seed) if rgb is None else rgb
    if kind in SAMPLINGS:
        sampling = "Gray" if kind == "gray" else kind
        return simplejpeg.encode_jpeg(rgb, 90, colorspace="RGB", colorsubsampling=sampling)
    image = Image.fromarray(rgb)
    if kind == "cmyk":
        return encoded(image.convert("CMYK"))
    if kind == "ycck":  # the Adobe marker's last byte names the transform: 2 is YCCK
        data = bytearray(encoded(image.convert("CMYK")))
        data[data.index(b"Adobe") + 11] = 2
        return bytes(data)
    if kind == "gray22":  # one component that claims a sampling of 2x2: its MCU is one block all the same
        data = bytearray(encoded(image.convert("L")))
        data[data.index(b"\xff\xc0") + 11] = 0x22
        return bytes(data)
    if kind == "progressive":
        return encoded(image, progressive=True)
    if kind == "restarts":
        return encoded(image, restart_marker_blocks=3)
    if kind == "rgb":
        return encoded(image, keep_rgb=True)
    assert kind == "odd_markers", kind  # a comment, fill bytes before a marker, bytes behind the end
    data = encoded(image, comment=b"\xff\xd9 not the end \xff\xc0")
    return data[:2] + b"\xff\xff\xff" + data[3:] + b"\0\0trailing"


# Batches of pixels, and the numbers of warp_affine and augment_batch.
ORDERS = (torch.contiguous_format, torch.channels_last)
# Half a level, or half a unit in the last place of values to 255; and what positions to 1/1000 pixel add.
TOLERANCE = {torch.uint8: 0.51, torch.float32: 0.01, torch.float16: 0.08, torch.bfloat16: 0.6}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# RGB to YCbCr, BT.601, full range.
YCBCR = torch.tensor(
    [[0.299, 0.587, 0.114, 0], [-0.168736, -0.331264, 0.5, 128], [0.5, -0.418688, -0.081312, 128]]
)


def noise(*shape: int, dtype: torch.dtype = torch.uint8, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(dtype)


def drawn(count: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """A different matrix per image: rotation, scale, shear and translation."""
    numbers = torch.rand(count, 5, generator=torch.Generator().manual_seed(seed)).double()
    center = ((width - 1) / 2, (height - 1) / 2)
    return mx.compose(
        mx.rotation(numbers[:, 0] * 360, center),
        mx.scale(0.6 + numbers[:, 1], center=center),
        mx.shear(numbers[:, 2] * 40 - 20),
        mx.translation(numbers[:, 3] * 9 - 4, numbers[:, 4] * 9 - 4),
    )


def shrinking() -> torch.Tensor:
    """Matrices that shrink an image to 1e-3 down to 1e-17 of its size."""
    sizes = torch.logspace(-3, -17, 57, dtype=torch.float64)
    where = torch.linspace(0, 290, 57, dtype=torch.float64)
    both = mx.compose(mx.scale(sizes), mx.rotation(where), mx.translation(where, where / 10))
    across = mx.scale(sizes * torch.tensor([1.0, -1.0, 1.0]).repeat(19), 1.0, (15.5, 15.5))
    down = mx.compose(mx.scale(1.0, sizes), mx.translation(0.0, where / 10))
    return torch.cat((both, across, down))


def final_pass(images: torch.Tensor, *given: object) -> tuple[object, ...]:
    """Arguments of the operator run_batch without programs; given: numbers and those after it, up to out."""
    return (images, None, None, None, True, [], *given, 0)


def parts(count: int, height: int, width: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Arguments of augment_batch for every part, different for each image."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(count, *shape, generator=generator)

    begin = (rand(2, 2) * torch.tensor([height, width])).int()
    extent = (rand(2, 2) * (torch.tensor([height, width]) - begin + 1)).int()
    extent = torch.minimum(extent, torch.tensor([height, width], dtype=torch.int32) - begin)
    return {
        "brightness": rand() + 0.5,
        "contrast": rand() + 0.5,
        "saturation": rand() * 2,
        "hue": rand() - 0.5,
        "flip": rand() < 0.5,
        "matrix": drawn(count, height, width, seed),
        "colour_matrix": YCBCR.expand(count, 3, 4) * (0.5 + rand(1, 1)),
        "erase_boxes": torch.cat((begin, extent), -1),
        "mask": rand((height + 1) // 2, (width + 2) // 3) < 0.25,
    }


def programs(
    count: int, chains: int, length: int, seed: int = 0, without: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ops, values and weights of run_programs: values over the ranges of random operations.

    The first operations are every one in turn, if there are so many images.
    """
    from tarpeg.ops.programs import Op  # loads the native library

    generator = torch.Generator().manual_seed(seed)
    allowed = torch.tensor([op for op in Op if op not in without], dtype=torch.int32)
    ops = allowed[torch.randint(len(allowed), (count, chains, length), generator=generator)]
    if count >= len(allowed) and length:
        ops[: len(allowed), 0, 0] = allowed
    u = torch.rand(count, chains, length, 6, generator=generator)
    matrix = torch.tensor([1.0, 0, 0, 0, 1, 0]) + (u - 0.5) * torch.tensor([0.6, 0.6, 9, 0.6, 0.6, 9])
    pairs = {
        Op.HUE: (u[..., 0] - 0.5, 0),
        Op.POSTERIZE: ((9 * u[..., 0]).floor(), 0),
        Op.SOLARIZE: (256 * u[..., 0], 0),
        Op.BLUR: (0.1 + 2 * u[..., 0], 2 * (5 * u[..., 1]).floor() + 1),
        Op.SOLARIZE_ADD: ((110 * u[..., 0]).floor(), 128),
    }
    values = torch.where((ops == Op.AFFINE)[..., None], matrix, 0.0)
    factors = (ops >= Op.BRIGHTNESS) & (ops <= Op.SHARPNESS)
    values[..., 0] = torch.where(factors, 2 * u[..., 0], values[..., 0])
    for op, pair in pairs.items():
        for column, numbers in enumerate(pair):
            values[..., column] = torch.where(ops == op, numbers, values[..., column])
    shares = torch.rand(count, chains + 1, generator=generator)
    return ops, values, shares / shares.sum(1, keepdim=True)


OTHER_KINDS = ("12 bits", "lossless", "JPEG-LS", "two components")
"""Kinds of JPEG that are not supported."""


def other_kind(kind):
    """Return a JPEG whose header has one of OTHER_KINDS."""
    data = bytearray(jpeg("420", 64, 80))
    frame = data.index(b"\xff\xc0")
    place, value = {
        "12 bits": (4, 12),
        "lossless": (1, 0xC3),
        "JPEG-LS": (1, 0xF7),
        "two components": (9, 2),
    }[kind]
    data[frame + place] = value
    return bytes(data)


def bit_flipped(content):
    """A PNG with another row, whose compressed data Pillow decodes without noticing that."""
    changed = bytearray(content)
    at = content.index(b"IDAT") + 4
    (length,) = struct.unpack_from(">I", content, at - 8)
    for place in range(at, at + length):
        changed[place] ^= 4
        try:
            with Image.open(io.BytesIO(changed)) as image:
                image.load()
                return bytes(changed)
        except (OSError, SyntaxError, ValueError):
            changed[place] ^= 4
    raise AssertionError("Pillow refuses all of them")
