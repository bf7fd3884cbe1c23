"""Contestants of the crop and resize suites: torchvision, Pillow, this library and other decoders.

All of them run in this process on one thread of the CPU. A peer imports its package inside the function that
makes it: a peer that is not installed is left out of the table.
"""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..ops import decode
from ..sampling.crops import Crop
from .report import INSTALL_ERRORS, Contestant, left_out

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchvision 0.29 deprecates its decoders; most projects use them
    decode_jpeg: Callable[[Tensor], Tensor] = importlib.import_module("torchvision.io").decode_jpeg
    functional: Any = importlib.import_module("torchvision.transforms.v2.functional")

BATCH = 64
"""Images per batch."""
SIZE = 224
"""Side of the output of the resize suite, in pixels."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GROUPS = {"uint8": "to uint8", "float32": "to float32, flipped and normalised"}
"""Description of each group."""

Place = tuple[int, int, int, int]
"""Top, left, height and width of a crop in pixels."""


class DecodeInput(NamedTuple):
    """At most BATCH photographs in every form that a contestant reads, made before the measurement."""

    jpegs: list[bytes]
    tensors: list[Tensor]  # the same bytes, uint8 [n]
    arrays: list[NDArray[np.uint8]]  # the same bytes
    tiled: list[Tensor]  # the same photographs, tiled
    alone: list[Tensor]  # each crop stored as a JPEG of its own; empty in the resize suite
    boxes: Tensor  # int32 [B, 4]: top, left, height, width
    places: list[Place]  # the same boxes
    flips: Tensor  # bool [B]; used if the output is normalised


@dataclass(frozen=True)
class InProcessContestant(Contestant):
    """A function that decodes or augments in this process: one image, or a whole batch, per call.

    compared: whether its pixels should be those of the reference.
    """

    group: str = "uint8"
    image: Callable[[Any, int], Any] | None = None
    batch: Callable[[Any], Any] | None = None
    compared: bool = True

    def run(self, inputs: Any) -> None:
        """Make all images of a batch and drop them; this call is timed."""
        if self.batch is not None:
            self.batch(inputs)
        elif self.image is not None:
            for index in range(len(inputs.jpegs)):
                self.image(inputs, index)

    def pixels(self, inputs: Any) -> list[Tensor]:
        """Images of a batch as float32 [3, H, W] in levels of 0 to 255."""
        images: Iterable[Any]
        if self.batch is not None:
            images = self.batch(inputs)
        else:
            assert self.image is not None
            images = (self.image(inputs, index) for index in range(len(inputs.jpegs)))
        return [_levels(image) for image in images]


def _levels(image: Any) -> Tensor:
    """Convert uint8 or normalised float, tensor [3, H, W] or array [H, W, 3], to float32 levels [3, H, W]."""
    tensor = image.cpu() if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
    if not isinstance(image, Tensor) and tensor.shape[-1] == 3:
        tensor = tensor.permute(2, 0, 1)
    if not tensor.is_floating_point():
        return tensor.float()
    return (tensor.float() * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255


def jpeg_tensor(jpeg: bytes) -> Tensor:
    """Copy of the bytes as a tensor, uint8 [n]."""
    return torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)


def pillow_crop(jpeg: bytes, place: Place) -> Image.Image:
    """Decode with Pillow, then crop: RGB."""
    top, left, height, width = place
    with Image.open(io.BytesIO(jpeg)) as image:
        return image.convert("RGB").crop((left, top, left + width, top + height))


def normalised(images: Tensor, inplace: bool = False) -> Tensor:
    """Convert uint8 images, or one, to normalised float32 with torchvision v2."""
    values = functional.to_dtype(images, torch.float32, scale=True)
    result: Tensor = functional.normalize(values, list(MEAN), list(STD), inplace=inplace)
    return result


def decode_input(jpegs: list[bytes], crop: Crop, tile: int, seed: int, stores_crops: bool) -> DecodeInput:
    """Draw a box and a flip for each photograph and make all forms of it.

    tile: requested width of tiles in pixels. stores_crops: whether `alone` is made, too.
    """
    arrays = [np.frombuffer(bytearray(jpeg), np.uint8) for jpeg in jpegs]
    tensors = [torch.from_numpy(array) for array in arrays]
    generator = np.random.default_rng(seed)
    boxes = crop.boxes(decode.image_sizes(tensors).numpy(), generator.random((len(jpegs), crop.draws)))
    places = [(int(top), int(left), int(height), int(width)) for top, left, height, width in boxes]
    flips = torch.from_numpy(generator.random(len(jpegs)) < 0.5)
    tiled = [decode.tile_jpeg(tensor, tile) for tensor in tensors]
    alone = [_stored_crop(*pair) for pair in zip(jpegs, places, strict=True)] if stores_crops else []
    return DecodeInput(jpegs, tensors, arrays, tiled, alone, torch.from_numpy(boxes), places, flips)


def _stored_crop(jpeg: bytes, place: Place) -> Tensor:
    """Store the crop as a JPEG of its own, q90 4:2:0: decoding it is the lower bound of the crop's time."""
    stream = io.BytesIO()
    pillow_crop(jpeg, place).save(stream, "JPEG", quality=90, subsampling="4:2:0")
    return jpeg_tensor(stream.getvalue())


def crop_contestants() -> list[InProcessContestant]:
    """Contestants of the crop suite that are always installed, torchvision first."""

    def torchvision(inputs: DecodeInput, index: int) -> Tensor:
        top, left, height, width = inputs.places[index]
        return decode_jpeg(inputs.tensors[index])[:, top : top + height, left : left + width]

    def pillow(inputs: DecodeInput, index: int) -> NDArray[np.uint8]:
        return np.asarray(pillow_crop(inputs.jpegs[index], inputs.places[index]))

    def bound(inputs: DecodeInput, index: int) -> Tensor:
        return decode.decode_crop(inputs.alone[index], 0, 0, *inputs.places[index][2:])

    return [
        InProcessContestant("torchvision", image=torchvision),
        InProcessContestant("Pillow", image=pillow),
        InProcessContestant(
            "tarpeg, ordinary", image=lambda b, i: decode.decode_crop(b.tensors[i], *b.places[i])
        ),
        InProcessContestant("tarpeg, tiled", image=lambda b, i: decode.decode_crop(b.tiled[i], *b.places[i])),
        InProcessContestant(
            "bound: the crop alone, torchvision", image=lambda b, i: decode_jpeg(b.alone[i]), compared=False
        ),
        InProcessContestant("bound: the crop alone, tarpeg", image=bound, compared=False),
    ]


def resize_contestants() -> list[InProcessContestant]:
    """Contestants of the resize suite that are always installed: to uint8, then to normalised float32.

    All resize to SIZE with antialiasing.
    """

    def torchvision(inputs: DecodeInput, index: int) -> Tensor:
        image, place = decode_jpeg(inputs.tensors[index]), inputs.places[index]
        resized: Tensor = functional.resized_crop(image, *place, [SIZE, SIZE], antialias=True)
        return resized

    def torchvision_normalised(inputs: DecodeInput, index: int) -> Tensor:
        image = torchvision(inputs, index)
        return normalised(functional.horizontal_flip(image) if inputs.flips[index] else image)

    def pillow(inputs: DecodeInput, index: int) -> NDArray[np.uint8]:
        crop = pillow_crop(inputs.jpegs[index], inputs.places[index])
        return np.asarray(crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR))

    return [
        InProcessContestant("torchvision v2", image=torchvision),
        InProcessContestant("Pillow", image=pillow),
        *_decode_batch("uint8"),
        InProcessContestant("torchvision v2", "float32", image=torchvision_normalised),
        *_decode_batch("float32"),
    ]


def _decode_batch(group: str) -> list[InProcessContestant]:
    """decode_batch on ordinary and tiled JPEGs, at each fidelity, with one output buffer for all batches."""
    options: dict[str, Any] = {}
    if group == "float32":
        options = {"mean": MEAN, "std": STD, "dtype": torch.float32}

    def contestant(kind: str, fidelity: decode.Fidelity) -> InProcessContestant:
        out: Tensor | None = None

        def batch(inputs: DecodeInput) -> Tensor:
            nonlocal out
            jpegs = inputs.tiled if kind == "tiled" else inputs.tensors
            flips = inputs.flips if group == "float32" else None
            reused = None if out is None or len(out) < len(jpegs) else out[: len(jpegs)]
            images, _ = decode.decode_batch(
                jpegs, inputs.boxes, SIZE, flips, out=reused, fidelity=fidelity, **options
            )
            out = images if reused is None else out
            return images

        return InProcessContestant(f"tarpeg, {kind}, {fidelity}", group, batch=batch)

    fidelities: tuple[decode.Fidelity, ...] = ("fast", "exact")
    return [contestant(kind, fidelity) for kind in ("ordinary", "tiled") for fidelity in fidelities]


Peer = tuple[str, Callable[[], InProcessContestant]]
"""Packages that pip installs for a peer, and the function that makes the contestant."""


def installed(peers: Iterable[Peer]) -> tuple[list[InProcessContestant], tuple[str, ...]]:
    """Contestants whose packages are installed, and a note for each other one."""
    found, missing = [], []
    for packages, make in peers:
        try:
            found.append(make())
        except INSTALL_ERRORS as error:
            missing.append(left_out(error, packages))
    return found, tuple(dict.fromkeys(missing))


def _simplejpeg_crop() -> InProcessContestant:
    decode = importlib.import_module("simplejpeg").decode_jpeg

    def image(inputs: DecodeInput, index: int) -> Any:
        top, left, height, width = inputs.places[index]
        return decode(inputs.jpegs[index])[top : top + height, left : left + width]

    return InProcessContestant("simplejpeg", image=image)


def _simplejpeg_resize() -> InProcessContestant:
    crop, cv2 = _simplejpeg_crop().image, _opencv()
    assert crop is not None
    return InProcessContestant(
        "simplejpeg + OpenCV (no antialias)", image=lambda b, i: cv2.resize(crop(b, i), (SIZE, SIZE))
    )


def _opencv() -> ModuleType:
    cv2 = importlib.import_module("cv2")
    cv2.setNumThreads(1)
    return cv2


def _opencv_crop() -> InProcessContestant:
    cv2 = _opencv()

    def image(inputs: DecodeInput, index: int) -> Any:
        top, left, height, width = inputs.places[index]
        decoded = cv2.imdecode(inputs.arrays[index], cv2.IMREAD_COLOR)
        return cv2.cvtColor(decoded[top : top + height, left : left + width], cv2.COLOR_BGR2RGB)

    return InProcessContestant("OpenCV", image=image)


def _turbojpeg_crop() -> InProcessContestant:
    module = importlib.import_module("turbojpeg")
    turbo = module.TurboJPEG()

    def image(inputs: DecodeInput, index: int) -> Any:
        top, left, height, width = inputs.places[index]
        jpeg = inputs.jpegs[index]
        full_width, full_height = turbo.decode_header(jpeg)[:2]
        if left + width > full_width // 16 * 16 or top + height > full_height // 16 * 16:
            # A lossless crop drops an incomplete MCU at the end of a row or column.
            decoded = turbo.decode(jpeg, pixel_format=module.TJPF_RGB)
            return decoded[top : top + height, left : left + width]
        down, right = top % 16, left % 16  # a lossless crop begins at an MCU
        cut = turbo.crop(jpeg, left - right, top - down, right + width, down + height)
        decoded = turbo.decode(cut, pixel_format=module.TJPF_RGB)
        return decoded[down : down + height, right : right + width]

    return InProcessContestant("PyTurboJPEG, lossless crop", image=image)


def _nvimgcodec(name: str, finish: Callable[[Any], Any]) -> InProcessContestant:
    nv = importlib.import_module("nvidia.nvimgcodec")
    decoder = nv.Decoder(
        device_id=nv.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=1,
        backends=[nv.Backend(nv.CPU_ONLY)],
        options=":fancy_upsampling=1",
    )

    def image(inputs: DecodeInput, index: int) -> Any:
        top, left, height, width = inputs.places[index]
        region = nv.Region(top, left, top + height, left + width)
        part = nv.CodeStream(inputs.jpegs[index]).get_sub_code_stream(region=region)
        return finish(np.asarray(decoder.decode(part)))

    return InProcessContestant(name, image=image)


def _nvimgcodec_crop() -> InProcessContestant:
    return _nvimgcodec("nvImageCodec, ROI", lambda image: image)


def _nvimgcodec_resize() -> InProcessContestant:
    cv2 = _opencv()
    return _nvimgcodec("nvImageCodec + OpenCV (no antialias)", lambda image: cv2.resize(image, (SIZE, SIZE)))


def _dali(
    name: str, group: str, finish: Callable[[ModuleType, ModuleType, Any, Any], Any]
) -> InProcessContestant:
    dali = importlib.import_module("nvidia.dali")
    fn, types = importlib.import_module("nvidia.dali.fn"), importlib.import_module("nvidia.dali.types")
    options = {"exec_pipelined": False, "exec_async": False, "prefetch_queue_depth": 1}
    pipeline = dali.Pipeline(batch_size=BATCH, num_threads=1, device_id=None, **options)
    with pipeline:
        jpegs = fn.external_source(name="jpegs", dtype=types.UINT8, ndim=1)
        start, shape = (fn.external_source(name=n, dtype=types.INT32, ndim=1) for n in ("start", "shape"))
        flip = fn.external_source(name="flip", dtype=types.INT32, ndim=0)
        images = fn.decoders.image_slice(jpegs, start, shape, axes=(0, 1), output_type=types.RGB)
        pipeline.set_outputs(finish(fn, types, images, flip))
    pipeline.build()

    def batch(inputs: DecodeInput) -> Any:
        boxes = inputs.boxes.numpy()
        pipeline.feed_input("jpegs", inputs.arrays)
        pipeline.feed_input("start", np.ascontiguousarray(boxes[:, :2]))
        pipeline.feed_input("shape", np.ascontiguousarray(boxes[:, 2:]))
        if group == "float32":
            pipeline.feed_input("flip", inputs.flips.numpy().astype(np.int32))
        return pipeline.run()[0]

    return InProcessContestant(name, group, batch=batch)


def _dali_crop() -> InProcessContestant:
    return _dali("DALI, image_slice", "uint8", lambda fn, types, images, flip: images)


def _dali_resize() -> InProcessContestant:
    def finish(fn: Any, types: Any, images: Any, flip: Any) -> Any:
        return fn.resize(images, size=[SIZE, SIZE], antialias=True)

    return _dali("DALI, image_slice + resize", "uint8", finish)


def _dali_normalised() -> InProcessContestant:
    def finish(fn: Any, types: Any, images: Any, flip: Any) -> Any:
        small = fn.resize(images, size=[SIZE, SIZE], antialias=True)
        mean, std = ([255 * x for x in values] for values in (MEAN, STD))
        layout = {"dtype": types.FLOAT, "output_layout": "CHW"}
        return fn.crop_mirror_normalize(small, mirror=flip, mean=mean, std=std, **layout)

    return _dali("DALI, image_slice + resize", "float32", finish)


CROP_PEERS: tuple[Peer, ...] = (
    ("simplejpeg", _simplejpeg_crop),
    ("opencv-python-headless", _opencv_crop),
    ("'PyTurboJPEG<2'", _turbojpeg_crop),
    ("nvidia-dali-cuda130", _dali_crop),
    ("nvidia-nvimgcodec-cu13", _nvimgcodec_crop),
)
RESIZE_PEERS: tuple[Peer, ...] = (
    ("simplejpeg opencv-python-headless", _simplejpeg_resize),
    ("nvidia-nvimgcodec-cu13 opencv-python-headless", _nvimgcodec_resize),
    ("nvidia-dali-cuda130", _dali_resize),
    ("nvidia-dali-cuda130", _dali_normalised),
)
FFCV_MISSING = "left out: FFCV (its decoder only reads FFCV's own files; suite=loader measures it)"
