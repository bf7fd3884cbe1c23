"""Competitors, measured where they are installed, each on one thread of the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from . import augment
from .contestants import BATCH, MEAN, SIZE, STD, Block, Contestant


def _simplejpeg_crop() -> Contestant:
    decode = importlib.import_module("simplejpeg").decode_jpeg

    def one(block: Block, index: int) -> Any:
        top, left, height, width = block.places[index]
        return decode(block.jpegs[index])[top : top + height, left : left + width]

    return Contestant("simplejpeg", one)


def _simplejpeg_resize() -> Contestant:
    crop, cv2 = _simplejpeg_crop().one, _opencv()
    assert crop is not None
    return Contestant("simplejpeg + OpenCV (no antialias)", lambda b, i: cv2.resize(crop(b, i), (SIZE, SIZE)))


def _opencv() -> ModuleType:
    cv2 = importlib.import_module("cv2")
    cv2.setNumThreads(1)
    return cv2


def _opencv_crop() -> Contestant:
    cv2 = _opencv()

    def one(block: Block, index: int) -> Any:
        top, left, height, width = block.places[index]
        image = cv2.imdecode(block.arrays[index], cv2.IMREAD_COLOR)
        return cv2.cvtColor(image[top : top + height, left : left + width], cv2.COLOR_BGR2RGB)

    return Contestant("OpenCV", one)


def _turbojpeg_crop() -> Contestant:
    module = importlib.import_module("turbojpeg")
    turbo = module.TurboJPEG()

    def one(block: Block, index: int) -> Any:
        top, left, height, width = block.places[index]
        full_width, full_height = turbo.decode_header(block.jpegs[index])[:2]
        if left + width > full_width // 16 * 16 or top + height > full_height // 16 * 16:
            # A lossless crop trims the last MCU of a row or column where it is not whole.
            image = turbo.decode(block.jpegs[index], pixel_format=module.TJPF_RGB)
            return image[top : top + height, left : left + width]
        down, right = top % 16, left % 16  # it starts where an MCU does
        cut = turbo.crop(block.jpegs[index], left - right, top - down, right + width, down + height)
        image = turbo.decode(cut, pixel_format=module.TJPF_RGB)
        return image[down : down + height, right : right + width]

    return Contestant("PyTurboJPEG, lossless crop", one)


def _nvimgcodec(name: str, finish: Callable[[Any], Any]) -> Contestant:
    nv = importlib.import_module("nvidia.nvimgcodec")
    decoder = nv.Decoder(
        device_id=nv.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=1,
        backends=[nv.Backend(nv.CPU_ONLY)],
        options=":fancy_upsampling=1",
    )

    def one(block: Block, index: int) -> Any:
        top, left, height, width = block.places[index]
        region = nv.Region(top, left, top + height, left + width)
        part = nv.CodeStream(block.jpegs[index]).get_sub_code_stream(region=region)
        return finish(np.asarray(decoder.decode(part)))

    return Contestant(name, one)


def _nvimgcodec_crop() -> Contestant:
    return _nvimgcodec("nvImageCodec, ROI", lambda image: image)


def _nvimgcodec_resize() -> Contestant:
    cv2 = _opencv()
    return _nvimgcodec("nvImageCodec + OpenCV (no antialias)", lambda image: cv2.resize(image, (SIZE, SIZE)))


def _dali(name: str, group: str, finish: Callable[[ModuleType, ModuleType, Any, Any], Any]) -> Contestant:
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

    def whole(block: Block) -> Any:
        boxes = block.boxes.numpy()
        pipeline.feed_input("jpegs", block.arrays)
        pipeline.feed_input("start", np.ascontiguousarray(boxes[:, :2]))
        pipeline.feed_input("shape", np.ascontiguousarray(boxes[:, 2:]))
        if group == "float32":
            pipeline.feed_input("flip", block.flips.numpy().astype(np.int32))
        return pipeline.run()[0]

    return Contestant(name, whole=whole, group=group)


def _dali_crop() -> Contestant:
    return _dali("DALI, image_slice", "uint8", lambda fn, types, images, flip: images)


def _dali_resize() -> Contestant:
    def finish(fn: Any, types: Any, images: Any, flip: Any) -> Any:
        return fn.resize(images, size=[SIZE, SIZE], antialias=True)

    return _dali("DALI, image_slice + resize", "uint8", finish)


def _dali_normalised() -> Contestant:
    def finish(fn: Any, types: Any, images: Any, flip: Any) -> Any:
        small = fn.resize(images, size=[SIZE, SIZE], antialias=True)
        mean, std = ([255 * x for x in values] for values in (MEAN, STD))
        layout = {"dtype": types.FLOAT, "output_layout": "CHW"}
        return fn.crop_mirror_normalize(small, mirror=flip, mean=mean, std=std, **layout)

    return _dali("DALI, image_slice + resize", "float32", finish)


_FFCV = "left out: FFCV (no wheel; its decoder is not to be called apart from its own files)"

# Who takes part in which suite: the packages that pip installs for it, and what makes the contestant.
_PEERS: dict[str, tuple[tuple[str, Callable[[], Contestant]], ...]] = {
    "crop": (
        ("simplejpeg", _simplejpeg_crop),
        ("opencv-python-headless", _opencv_crop),
        ("'PyTurboJPEG<2'", _turbojpeg_crop),
        ("nvidia-dali-cuda130", _dali_crop),
        ("nvidia-nvimgcodec-cu13", _nvimgcodec_crop),
    ),
    "resize": (
        ("simplejpeg opencv-python-headless", _simplejpeg_resize),
        ("nvidia-nvimgcodec-cu13 opencv-python-headless", _nvimgcodec_resize),
        ("nvidia-dali-cuda130", _dali_resize),
        ("nvidia-dali-cuda130", _dali_normalised),
    ),
    "augment": (("kornia", augment.kornia_plain), ("kornia", augment.kornia_chain)),
}


def of(suite: str) -> tuple[list[Contestant], tuple[str, ...]]:
    """Who is installed, and a line for each who is not."""
    found, missing = [], []
    for packages, make in _PEERS[suite]:
        try:
            found.append(make())
        except (ImportError, OSError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0]
            missing.append(f"left out: pip install {packages} ({reason})")
    never = () if suite == "augment" else (_FFCV,)
    return found, (*dict.fromkeys(missing), *never)
