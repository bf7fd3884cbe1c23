"""Other libraries in the article and dali suites: webdataset with torchvision or Pillow, libjpeg-turbo, DALI.

Also the pipelines' constants, and the batch with given boxes and flips that all contestants make alike.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from tarpeg.ops.compiler import build_once
from tarpeg.shards.pillow import as_tensor
from torch import Tensor
from torch.utils.data import default_collate

from .decode_peers import (
    SIZE,
    Graph,
    dali_normalised,
    dali_on_inputs,
    decode_jpeg,
    functional,
    normalised,
)
from .loader_data import LoaderData
from .loader_peers import Batches, from_dali, from_webdataset
from .native import compile_alone

SCALE, RATIO = (0.6, 1.0), (0.8, 1.25)
"""Area and aspect ratio of DALI's crops in training."""
SHORTER = 256
"""Shorter side after the resize of the validation, in pixels."""
CROP, CELLS, MASKED = 256, 16, 0.25
"""The article's crop in pixels, cells of its mask per side, and the probability that a cell is drawn."""

# (Y, Cb, Cr) of (R, G, B), all in 0..1 before a half is added to Cb and Cr: BT.601, full range.
YCBCR = (
    (0.299, 0.587, 0.114),
    (-0.299 / 1.772, -0.587 / 1.772, 0.886 / 1.772),
    (0.701 / 1.402, -0.587 / 1.402, -0.114 / 1.402),
)
BLACK = (0.0, 128 / 255, 128 / 255)


class GivenBatch(NamedTuple):
    """A batch that all contestants make alike: ordinary JPEGs, and the parameters of each image."""

    ids: list[int]
    jpegs: list[bytes]
    sizes: Tensor  # int32 [B, 2]: height, width
    boxes: Tensor  # int32 [B, 4]: top, left, height, width
    flips: Tensor  # bool [B]
    masks: Tensor | None  # bool [B, CELLS, CELLS]: the drawn cells, without their neighbours

    @property
    def fractions(self) -> Tensor:
        """Places of boxes of CROP x CROP from the top and from the left, in [0, 1): [B, 2]."""
        return (self.boxes[:, :2] + 0.5) / (self.sizes - CROP + 1)


Cropper = Callable[[bytes, float, float], Tensor]
"""Decodes a crop of CROP x CROP, uint8; its place from the top and from the left as fractions in [0, 1)."""


def by_torchvision(jpeg: bytes, down: float, across: float) -> Tensor:
    """Decode everything, then crop."""
    return _cut(decode_jpeg(as_tensor(jpeg)), down, across)


def by_pillow(jpeg: bytes, down: float, across: float) -> Tensor:
    """Decode everything, then crop."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return _cut(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1), down, across)


def compile_crop_skip(folder: Path) -> Path:
    """Compile crop_skip.cpp into ``folder`` unless it is there; BuildError without a compiler."""
    source = Path(__file__).with_name("crop_skip.cpp")
    name = f"libcropskip-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    return build_once(name, lambda scratch, library: compile_alone(source, library), [folder])


def decode_by_skipping(
    library: Path, size: tuple[int, int], jpeg: bytes, down: float, across: float
) -> Tensor:
    """Decode a crop of ``size`` (height, width) as the article did: uint8 [3, height, width], RGB.

    library: what ``compile_crop_skip`` returns; it calls libjpeg-turbo's jpeg_crop_scanline and
    jpeg_skip_scanlines. ``down`` and ``across``: place of the crop from the top and from the left, as
    fractions in [0, 1). Pixels at its edges may differ from those of a full decode. ValueError if the JPEG
    is damaged or too small.
    """
    out = torch.empty((*size, 3), dtype=torch.uint8)
    if _crop_skip(library)(jpeg, len(jpeg), *size, down, across, out.data_ptr()):
        raise ValueError(f"libjpeg cannot decode a crop of {size[0]} x {size[1]} of this JPEG")
    return out.permute(2, 0, 1)


@functools.cache
def _crop_skip(library: Path) -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(str(library)).crop_skip
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, *[ctypes.c_int] * 2, *[ctypes.c_double] * 2]
    function.argtypes = [*function.argtypes, ctypes.c_void_p]
    return function


class _EachImage:
    """A pipeline that makes single images in webdataset's workers."""

    def __call__(self, jpeg: bytes, *params: Any) -> Tensor:
        """Make one image of the batch with the given parameters; without them, with random ones."""
        raise NotImplementedError

    def batches(self, data: LoaderData, workers: int) -> Batches:
        # torch's collation writes directly into shared memory; webdataset's needs another copy.
        return from_webdataset(data, workers, self, collation_fn=default_collate)


@dataclass(frozen=True)
class Article(_EachImage):
    """The article's step on torch, per image in the worker: per batch it takes twice as long."""

    cropper: Cropper

    def __call__(self, jpeg: bytes, *params: Any) -> Tensor:
        """Crop, convert, scale and mask; params: fractions from the top and left, and the drawn cells."""
        down, across, drawn = params or (*torch.rand(2).tolist(), torch.rand(CELLS, CELLS) < MASKED)
        return _converted(self.cropper(jpeg, down, across), drawn)

    def replay(self, given: GivenBatch) -> Tensor:
        """Make the given batch."""
        assert given.masks is not None
        params = zip(given.jpegs, *given.fractions.T.tolist(), given.masks, strict=True)
        return torch.stack([self(*image) for image in params])


@dataclass(frozen=True)
class Imagenet(_EachImage):
    """A pipeline of the dali suite by torchvision v2: training, validation or prediction."""

    group: str

    def __call__(self, jpeg: bytes, *params: Any) -> Tensor:
        """Decode, crop, resize and normalise; params: for training, the box and whether it is flipped."""
        v2: Any = importlib.import_module("torchvision.transforms.v2")
        image = decode_jpeg(as_tensor(jpeg))
        if self.group == "validation":
            image = functional.resize(image, [SHORTER], antialias=True)
            image = functional.center_crop(image, [SIZE, SIZE])
        elif self.group == "prediction":
            how = functional.InterpolationMode.NEAREST_EXACT
            image = functional.resize(image, [SIZE, SIZE], how)
        elif params:
            box, is_flipped = params
            image = functional.resized_crop(image, *box, [SIZE, SIZE], antialias=True)
            image = functional.horizontal_flip(image) if is_flipped else image
        else:
            image = v2.RandomResizedCrop(SIZE, SCALE, RATIO, antialias=True)(image)
            image = v2.RandomHorizontalFlip()(image)
        return normalised(image)

    def replay(self, given: GivenBatch) -> Tensor:
        """Make the given batch."""
        params = zip(given.jpegs, given.boxes.tolist(), given.flips.tolist(), strict=True)
        return torch.stack([self(*image) for image in params])


def _cut(image: Tensor, down: float, across: float) -> Tensor:
    height, width = image.shape[1:]
    top, left = int(down * (height - CROP + 1)), int(across * (width - CROP + 1))
    return image[:, top : top + CROP, left : left + CROP]


def _converted(image: Tensor, drawn: Tensor) -> Tensor:
    """Convert [3, CROP, CROP] to YCbCr in 0..1; drawn cells and their neighbours become black."""
    near = torch.nn.functional.pad(drawn, (1, 1, 1, 1))
    masked = near[1:-1, 1:-1] | near[:-2, 1:-1] | near[2:, 1:-1] | near[1:-1, :-2] | near[1:-1, 2:]
    side = CROP // CELLS
    masked = masked.repeat_interleave(side, 0).repeat_interleave(side, 1)
    black = torch.tensor(BLACK)[:, None]
    values = torch.addmm(black, torch.tensor(YCBCR) / 255, image.reshape(3, -1).float())
    return torch.where(masked, black[..., None], values.view(3, CROP, CROP))


Feed = Callable[[str], Any]


@dataclass(frozen=True)
class Dali:
    """A pipeline of DALI."""

    graph: Graph

    def batches(self, data: LoaderData, workers: int) -> Batches:
        """Endless batches of shards that DALI reads."""
        return from_dali(data, workers, lambda fn, types, jpegs: self.graph(fn, types, jpegs, None))

    def replay(self, given: GivenBatch) -> Tensor:
        """Make the given batch."""
        arrays, more = [np.frombuffer(jpeg, np.uint8) for jpeg in given.jpegs], {}
        if given.masks is not None:
            down, across = np.ascontiguousarray(given.fractions.numpy().T)
            more = {"down": down, "across": across, "mask": given.masks.numpy().astype(np.uint8)}
        images = dali_on_inputs(self.graph)(arrays, given.boxes, given.flips, **more)
        return torch.from_numpy(images.as_array().copy())


def article(fn: Any, types: Any, jpegs: Any, feed: Feed | None) -> Any:
    """Build the article's step; DALI has no operator for its conversion and mask, only the parts."""
    if feed is None:
        down, across = (fn.random.uniform(range=[0.0, 1.0]) for _ in range(2))
        drawn = fn.random.coin_flip(probability=MASKED, shape=[CELLS, CELLS], dtype=types.UINT8)
    else:
        down, across, drawn = feed("down"), feed("across"), feed("mask")
    images = fn.decoders.image_crop(
        jpegs, crop=(CROP, CROP), crop_pos_x=across, crop_pos_y=down, output_type=types.RGB
    )
    masked = drawn
    for start in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        shifted = fn.slice(drawn, start, (CELLS, CELLS), axes=(0, 1), out_of_bounds_policy="pad")
        masked = masked | shifted
    kept = fn.reshape(fn.cast(masked == 0, dtype=types.UINT8), shape=[CELLS, CELLS, 1], layout="HWC")
    kept = fn.resize(kept, size=[CROP, CROP], interp_type=types.INTERP_NN)
    matrix = [number / 255 for row in YCBCR for number in row]
    values = fn.coord_transform(images, M=matrix, dtype=types.FLOAT) * kept
    # Black equals the offset of the conversion: adding it last makes masked cells black, too.
    options = {"dtype": types.FLOAT, "output_layout": "CHW"}
    return fn.crop_mirror_normalize(values, mean=[-level for level in BLACK], std=[1, 1, 1], **options)


def training(fn: Any, types: Any, jpegs: Any, feed: Feed | None, antialias: bool = True) -> Any:
    """Crop a random area and aspect ratio, resize, flip with probability one half, normalise."""
    if feed is None:
        images = fn.decoders.image_random_crop(
            jpegs, random_area=list(SCALE), random_aspect_ratio=list(RATIO), output_type=types.RGB
        )
        flip = fn.random.coin_flip()
    else:
        place = feed("start"), feed("shape")
        images = fn.decoders.image_slice(jpegs, *place, axes=(0, 1), output_type=types.RGB)
        flip = feed("flip")
    return dali_normalised(fn, types, fn.resize(images, size=[SIZE, SIZE], antialias=antialias), flip)


def validation(fn: Any, types: Any, jpegs: Any, feed: Feed | None, antialias: bool = True) -> Any:
    """Resize the shorter side, crop the centre, normalise."""
    images = fn.decoders.image(jpegs, output_type=types.RGB)
    return dali_normalised(fn, types, fn.resize(images, resize_shorter=SHORTER, antialias=antialias))


def prediction(fn: Any, types: Any, jpegs: Any, feed: Feed | None) -> Any:
    """Resize the whole image by nearest neighbours, normalise."""
    images = fn.decoders.image(jpegs, output_type=types.RGB)
    return dali_normalised(fn, types, fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_NN))
