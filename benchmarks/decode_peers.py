"""Contestants of the crop, resize and views suites: torchvision, Pillow, this library and other decoders.

All of them run in this process on one thread of the CPU. A peer imports its package inside the function that
makes it: a peer that is not installed is left out of the table.
"""

from __future__ import annotations

import functools
import importlib
import io
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tarpeg.ops import decode
from tarpeg.sampling.crops import Crop, RandomResizedCrop
from tarpeg.shards.pillow import as_tensor
from torch import Tensor

from .report import INSTALL_ERRORS, left_out


def _import(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision 0.29 deprecates its decoders; most projects use them
        return importlib.import_module(name)


class _Functional:
    """torchvision.transforms.v2.functional, imported at the first use: seconds in each child process."""

    def __getattr__(self, name: str) -> Any:
        setattr(self, name, value := getattr(_import("torchvision.transforms.v2.functional"), name))
        return value


@functools.cache
def _decoder() -> Callable[[Tensor], Tensor]:
    # A torchvision without decoders recommends TorchCodec's, of equal speed.
    found = getattr(_import("torchvision.io"), "decode_jpeg", None)
    return found or importlib.import_module("torchcodec.decoders").decode_jpeg  # type: ignore[no-any-return]


def decode_jpeg(jpeg: Tensor) -> Tensor:
    """Decode a JPEG with torchvision."""
    return _decoder()(jpeg)


functional: Any = _Functional()
BATCH = 64
"""Images per batch."""
SIZE = 224
"""Side of the output of the resize suite, in pixels."""
VIEWS = (*2 * (RandomResizedCrop(SIZE, scale=(0.4, 1.0)),), *6 * (RandomResizedCrop(96, scale=(0.05, 0.4)),))
"""Crops of each photograph in the views suite, the larger ones first."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GROUPS = {"uint8": "to uint8", "float32": "to float32, flipped and normalised"}
"""Description of each group."""
PIXELS: dict[str, dict[str, Any]] = {
    "uint8": {},
    "float32": {"mean": MEAN, "std": STD, "dtype": torch.float32},
}
"""Options of the decoder for each group."""

KINDS = ("ordinary", "tiled", "packed")
"""Kinds of files that this library decodes."""
TORCHVISIONS = ("bilinear", "bicubic")
"""Interpolations of the resize suite with torchvision v2 as the reference; of the others it is Pillow."""
INTERPOLATIONS = (*TORCHVISIONS, "lanczos", "box")
PEERS_MISSING = "left out: other peers, which suite=resize measures with interpolation=bilinear only"
TORCHVISION_MISSING = (
    "left out: torchvision v2, whose installed version has interpolation={} for PIL images only"
)
FFCV_MISSING = "left out: FFCV (its decoder only reads FFCV's own files; suite=loader measures it)"

Place = tuple[int, int, int, int]
"""Top, left, height and width of a crop in pixels."""
Graph = Callable[..., Any]
"""DALI graph of fn, types, JPEGs and a source of each image's parameters by name; None: DALI draws them."""


class DecodeInput(NamedTuple):
    """At most BATCH photographs in every form that a contestant reads, made before the measurement."""

    jpegs: list[bytes]
    tensors: list[Tensor]  # the same bytes, uint8 [n]
    arrays: list[NDArray[np.uint8]]  # the same bytes
    kinds: dict[str, list[Tensor]]  # the same photographs by KINDS
    alone: list[Tensor]  # each crop stored as a JPEG of its own; empty in the resize suite
    boxes: Tensor  # int32 [B, 4]: top, left, height, width; [B, 8, 4] in the views suite
    places: list[Place]  # the same boxes
    flips: Tensor  # bool [B]; used if the output is normalised


@dataclass(frozen=True)
class InProcessContestant:
    """A function that decodes or augments in this process.

    make: returns the images of a batch at once, or an iterator that makes one at a time, see ``each``.
    group: kind of output; its first contestant is the reference of the others. compared: whether its pixels
    should be those of the reference.
    """

    name: str
    make: Callable[[Any], Iterable[Any]]
    group: str = "uint8"
    compared: bool = True

    def run(self, inputs: Any) -> None:
        """Make all images of a batch and drop them; this call is timed."""
        images = self.make(inputs)
        if isinstance(images, Iterator):
            deque(images, maxlen=0)
        elif isinstance(images, Tensor) and images.is_cuda:
            torch.cuda.synchronize()

    def pixels(self, inputs: Any) -> list[Tensor]:
        """Images of a batch as float32 [3, H, W] in levels of 0 to 255."""
        return [_levels(image) for image in self.make(inputs)]


def each(image: Callable[[DecodeInput, int], Any]) -> Callable[[DecodeInput], Iterator[Any]]:
    """Return a function that makes the images of a batch, each when it is asked for."""
    return lambda inputs: (image(inputs, index) for index in range(len(inputs.jpegs)))


def _levels(image: Any) -> Tensor:
    """Convert uint8 or normalised float, tensor [3, H, W] or array [H, W, 3], to float32 levels [3, H, W]."""
    tensor = image.cpu() if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
    if not isinstance(image, Tensor) and tensor.shape[-1] == 3:
        tensor = tensor.permute(2, 0, 1)
    if not tensor.is_floating_point():
        return tensor.float()
    return (tensor.float() * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255


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
    kinds = {"ordinary": tensors}
    kinds |= {"tiled": [decode.tile_jpeg(tensor, tile) for tensor in tensors]}
    kinds |= {"packed": [decode.pack_jpeg(tensor, tile) for tensor in tensors]}
    alone = [_stored_crop(*pair) for pair in zip(jpegs, places, strict=True)] if stores_crops else []
    return DecodeInput(
        jpegs=jpegs,
        tensors=tensors,
        arrays=arrays,
        kinds=kinds,
        alone=alone,
        boxes=torch.from_numpy(boxes),
        places=places,
        flips=flips,
    )


def _stored_crop(jpeg: bytes, place: Place) -> Tensor:
    """Store the crop as a JPEG of its own, q90 4:2:0: decoding it is the lower bound of the crop's time."""
    stream = io.BytesIO()
    pillow_crop(jpeg, place).save(stream, "JPEG", quality=90, subsampling="4:2:0")
    return as_tensor(stream.getvalue())


def _cropped(decode_jpeg: Callable[[Tensor], Tensor]) -> Callable[[DecodeInput, int], Tensor]:
    """Decode, then crop."""

    def image(inputs: DecodeInput, index: int) -> Tensor:
        top, left, height, width = inputs.places[index]
        return decode_jpeg(inputs.tensors[index])[:, top : top + height, left : left + width]

    return image


def _resized(
    decode_jpeg: Callable[[Tensor], Tensor], interpolation: str = "bilinear"
) -> Callable[[DecodeInput, int], Tensor]:
    """Decode, then crop and resize with torchvision v2."""
    mode = functional.InterpolationMode(interpolation)

    def image(inputs: DecodeInput, index: int) -> Tensor:
        decoded, place = decode_jpeg(inputs.tensors[index]), inputs.places[index]
        resized: Tensor = functional.resized_crop(decoded, *place, [SIZE, SIZE], mode, antialias=True)
        return resized

    return image


def torchvision_resizes(interpolation: str) -> bool:
    """Whether the installed torchvision v2 resizes tensors so: it has no "box", 0.26 no "lanczos" either."""
    mode, image = functional.InterpolationMode(interpolation), torch.zeros((3, 16, 16), dtype=torch.uint8)
    try:
        functional.resize(image, [8, 8], mode, antialias=True)
    except NotImplementedError:
        return False
    return True


def _decode_crop(kind: str, inputs: DecodeInput, index: int) -> Tensor:
    return decode.decode_crop(inputs.kinds[kind][index], *inputs.places[index])


def crop_contestants() -> list[InProcessContestant]:
    """Contestants of the crop suite that are always installed, torchvision first."""

    def bound(inputs: DecodeInput, index: int) -> Tensor:
        return decode.decode_crop(inputs.alone[index], 0, 0, *inputs.places[index][2:])

    images: dict[str, Callable[[DecodeInput, int], Any]] = {
        "torchvision": _cropped(decode_jpeg),
        "Pillow": lambda b, i: np.asarray(pillow_crop(b.jpegs[i], b.places[i])),
        **{f"tarpeg, {kind}": partial(_decode_crop, kind) for kind in KINDS},
        "bound: the crop alone, torchvision": lambda b, i: decode_jpeg(b.alone[i]),
        "bound: the crop alone, tarpeg": bound,
    }
    return [
        InProcessContestant(name, each(image), compared=not name.startswith("bound"))
        for name, image in images.items()
    ]


def resize_contestants(interpolation: decode.Interpolation = "bilinear") -> list[InProcessContestant]:
    """Contestants of the resize suite that are always installed: to uint8, then to normalised float32.

    All resize to SIZE with antialiasing. The reference is Pillow for "lanczos" and "box", otherwise
    torchvision v2, which is left out if it resizes no tensors in this way.
    """
    method = Image.Resampling[interpolation.upper()]

    def pillow(inputs: DecodeInput, index: int) -> NDArray[np.uint8]:
        crop = pillow_crop(inputs.jpegs[index], inputs.places[index])
        return np.asarray(crop.resize((SIZE, SIZE), method))

    def as_image(inputs: DecodeInput, index: int) -> Tensor:
        return torch.from_numpy(np.array(pillow(inputs, index))).permute(2, 0, 1)

    peers: dict[str, Callable[[DecodeInput, int], Any]] = {"Pillow": pillow}
    if torchvision_resizes(interpolation):
        peers["torchvision v2"] = _resized(decode_jpeg, interpolation)
    if interpolation in TORCHVISIONS:
        peers = dict(reversed(peers.items()))
    first = next(iter(peers))
    reference = as_image if first == "Pillow" else peers[first]

    def reference_normalised(inputs: DecodeInput, index: int) -> Tensor:
        image = reference(inputs, index)
        return normalised(functional.horizontal_flip(image) if inputs.flips[index] else image)

    return [
        *(InProcessContestant(name, each(image)) for name, image in peers.items()),
        *_decode_batch("uint8", interpolation),
        InProcessContestant(first, each(reference_normalised), "float32"),
        *_decode_batch("float32", interpolation),
    ]


def views_input(jpegs: list[bytes], tile: int, seed: int) -> DecodeInput:
    """Draw the boxes of VIEWS for each photograph and make all forms of it."""
    inputs, generator = decode_input(jpegs, VIEWS[0], tile, seed, False), np.random.default_rng(seed)
    sizes = decode.image_sizes(inputs.tensors).numpy()
    boxes = [crop.boxes(sizes, generator.random((len(jpegs), crop.draws))) for crop in VIEWS]
    return inputs._replace(boxes=torch.from_numpy(np.stack(boxes, axis=1)))


def views_contestants() -> list[InProcessContestant]:
    """Contestants of the views suite: all crops of a photograph from one call, or each from its own."""

    def separately(kind: str, inputs: DecodeInput) -> Iterator[Tensor]:
        for file, boxes in zip(inputs.kinds[kind], inputs.boxes, strict=True):
            for crop, box in zip(VIEWS, boxes.split(1), strict=True):
                yield decode.decode_batch([file], box, crop.size)[0][0]

    def together(kind: str, inputs: DecodeInput) -> Iterator[Tensor]:
        for file, boxes in zip(inputs.kinds[kind], inputs.boxes, strict=True):
            shapes = [(count, *size, 3) for size, count in Counter(crop.size for crop in VIEWS).items()]
            outs = [torch.empty(shape, dtype=torch.uint8).permute(0, 3, 1, 2) for shape in shapes]
            decode.decode_sizes([file] * len(VIEWS), boxes, None, outs)
            for images in outs:
                yield from images

    def torchvision(inputs: DecodeInput) -> Iterator[Tensor]:
        for file, boxes in zip(inputs.tensors, inputs.boxes.tolist(), strict=True):
            decoded = decode_jpeg(file)
            for crop, box in zip(VIEWS, boxes, strict=True):
                yield functional.resized_crop(decoded, *box, list(crop.size), antialias=True)

    return [
        InProcessContestant("tarpeg, tiled, one by one", partial(separately, "tiled")),
        InProcessContestant("torchvision v2, decoded once", torchvision),
        InProcessContestant("tarpeg, packed, one by one", partial(separately, "packed")),
        *(InProcessContestant(f"tarpeg, {kind}, together", partial(together, kind)) for kind in KINDS),
    ]


def with_buffer(make: Callable[[Any, Tensor | None], Tensor]) -> Callable[[Any], Tensor]:
    """Pass ``make`` one output tensor for all batches; a smaller last batch uses the first part of it."""
    buffer: Tensor | None = None

    def batch(inputs: Any) -> Tensor:
        nonlocal buffer
        count = len(inputs.jpegs)
        reused = None if buffer is None or len(buffer) < count else buffer[:count]
        images = make(inputs, reused)
        buffer = images if reused is None else buffer
        return images

    return batch


def _decode_batch(group: str, interpolation: decode.Interpolation) -> list[InProcessContestant]:
    """decode_batch on each kind of file, at each fidelity, with one output buffer for all batches."""

    def contestant(kind: str, fidelity: decode.Fidelity) -> InProcessContestant:
        def batch(inputs: DecodeInput, out: Tensor | None) -> Tensor:
            flips = inputs.flips if group == "float32" else None
            options = {**PIXELS[group], "out": out, "fidelity": fidelity, "interpolation": interpolation}
            return decode.decode_batch(inputs.kinds[kind], inputs.boxes, SIZE, flips, **options)[0]

        return InProcessContestant(f"tarpeg, {kind}, {fidelity}", with_buffer(batch), group)

    fidelities: tuple[decode.Fidelity, ...] = ("fast", "exact")
    return [contestant(kind, fidelity) for kind in KINDS for fidelity in fidelities]


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


def _cut(image: Any, place: Place) -> Any:
    """Cut a crop out of an array [H, W, 3]."""
    top, left, height, width = place
    return image[top : top + height, left : left + width]


def _opencv_resized(crops: InProcessContestant, name: str) -> InProcessContestant:
    """Contestant of the resize suite that resizes the output of one of the crop suite."""
    cv2 = _opencv()
    return InProcessContestant(
        f"{name} + OpenCV (no antialias)",
        lambda inputs: (cv2.resize(crop, (SIZE, SIZE)) for crop in crops.make(inputs)),
    )


def _opencv() -> ModuleType:
    cv2 = importlib.import_module("cv2")
    cv2.setNumThreads(1)
    return cv2


def _simplejpeg() -> InProcessContestant:
    decode = importlib.import_module("simplejpeg").decode_jpeg
    return InProcessContestant("simplejpeg", each(lambda b, i: _cut(decode(b.jpegs[i]), b.places[i])))


def _torchcodec() -> Callable[[Tensor], Tensor]:
    decode: Callable[[Tensor], Tensor] = importlib.import_module("torchcodec.decoders").decode_jpeg
    return decode


def _opencv_crop() -> InProcessContestant:
    cv2 = _opencv()

    def image(inputs: DecodeInput, index: int) -> Any:
        decoded = cv2.imdecode(inputs.arrays[index], cv2.IMREAD_COLOR)
        return cv2.cvtColor(_cut(decoded, inputs.places[index]), cv2.COLOR_BGR2RGB)

    return InProcessContestant("OpenCV", each(image))


def _turbojpeg() -> InProcessContestant:
    module = importlib.import_module("turbojpeg")
    turbo = module.TurboJPEG()

    def image(inputs: DecodeInput, index: int) -> Any:
        top, left, height, width = inputs.places[index]
        jpeg = inputs.jpegs[index]
        full_width, full_height = turbo.decode_header(jpeg)[:2]
        down, right = top % 16, left % 16  # a lossless crop begins at an MCU
        if left + width > full_width // 16 * 16 or top + height > full_height // 16 * 16:
            # A lossless crop drops an incomplete MCU at the end of a row or column: decode everything.
            down, right = top, left
        else:
            jpeg = turbo.crop(jpeg, left - right, top - down, right + width, down + height)
        return _cut(turbo.decode(jpeg, pixel_format=module.TJPF_RGB), (down, right, height, width))

    return InProcessContestant("PyTurboJPEG, lossless crop", each(image))


def _nvimgcodec() -> InProcessContestant:
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
        return np.asarray(decoder.decode(part))

    return InProcessContestant("nvImageCodec, ROI", each(image))


# Type and number of dimensions of each input of a DALI pipeline, per image.
_DALI_INPUTS = {
    "jpegs": ("UINT8", 1),
    "start": ("INT32", 1),
    "shape": ("INT32", 1),
    "flip": ("INT32", 0),
    "down": ("FLOAT", 0),
    "across": ("FLOAT", 0),
    "mask": ("UINT8", 2),
}


def dali_on_inputs(graph: Graph) -> Callable[..., Any]:
    """Build the graph on one thread; return a function that makes a batch.

    It takes the bytes of the JPEGs, their boxes [B, 4] and flips [B], and further inputs by name.
    """
    dali, fn, types = (importlib.import_module(f"nvidia.dali{name}") for name in ("", ".fn", ".types"))
    options = {"exec_pipelined": False, "exec_async": False, "prefetch_queue_depth": 1}
    pipeline = dali.Pipeline(batch_size=BATCH, num_threads=1, device_id=None, **options)
    names = []

    def feed(name: str) -> Any:
        names.append(name)
        dtype, ndim = _DALI_INPUTS[name]
        return fn.external_source(name=name, dtype=getattr(types, dtype), ndim=ndim)

    with pipeline:
        pipeline.set_outputs(graph(fn, types, feed("jpegs"), feed))
    pipeline.build()

    def run(arrays: list[NDArray[np.uint8]], boxes: Tensor, flips: Tensor, **more: Any) -> Any:
        start, shape = (np.ascontiguousarray(part) for part in np.split(boxes.numpy(), 2, axis=1))
        flip = flips.numpy().astype(np.int32)
        inputs = {"jpegs": arrays, "start": start, "shape": shape, "flip": flip, **more}
        for name in names:
            pipeline.feed_input(name, inputs[name])
        return pipeline.run()[0]

    return run


def dali_normalised(fn: Any, types: Any, images: Any, flip: Any = 0) -> Any:
    """Central SIZE x SIZE of the images, flipped and normalised: float32 CHW."""
    mean, std = ([255 * x for x in values] for values in (MEAN, STD))
    options = {"dtype": types.FLOAT, "output_layout": "CHW", "crop": (SIZE, SIZE)}
    return fn.crop_mirror_normalize(images, mirror=flip, mean=mean, std=std, **options)


def _dali(name: str, group: str, is_resized: bool = True) -> InProcessContestant:
    def graph(fn: Any, types: Any, jpegs: Any, feed: Any) -> Any:
        place = feed("start"), feed("shape")
        images = fn.decoders.image_slice(jpegs, *place, axes=(0, 1), output_type=types.RGB)
        if is_resized:
            images = fn.resize(images, size=[SIZE, SIZE], antialias=True)
        return dali_normalised(fn, types, images, feed("flip")) if group == "float32" else images

    run = dali_on_inputs(graph)
    return InProcessContestant(name, lambda b: run(b.arrays, b.boxes, b.flips), group)


CROP_PEERS: tuple[Peer, ...] = (
    ("torchcodec", lambda: InProcessContestant("TorchCodec", each(_cropped(_torchcodec())))),
    ("simplejpeg", _simplejpeg),
    ("opencv-python-headless", _opencv_crop),
    ("'PyTurboJPEG<2'", _turbojpeg),
    ("nvidia-dali-cuda130", lambda: _dali("DALI, image_slice", "uint8", is_resized=False)),
    ("nvidia-nvimgcodec-cu13", _nvimgcodec),
)
RESIZE_PEERS: tuple[Peer, ...] = (
    ("torchcodec", lambda: InProcessContestant("TorchCodec + torchvision v2", each(_resized(_torchcodec())))),
    ("simplejpeg opencv-python-headless", lambda: _opencv_resized(_simplejpeg(), "simplejpeg")),
    ("nvidia-nvimgcodec-cu13 opencv-python-headless", lambda: _opencv_resized(_nvimgcodec(), "nvImageCodec")),
    ("nvidia-dali-cuda130", lambda: _dali("DALI, image_slice + resize", "uint8")),
    ("nvidia-dali-cuda130", lambda: _dali("DALI, image_slice + resize", "float32")),
)
