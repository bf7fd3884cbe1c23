"""Contestants of the crop and resize suites on a device: bytes on the host become pixels on a GPU.

Each may use the same number of threads on the host. Everything but the peers also works on the CPU as the
device. A peer that is not installed, or cannot decode there, is left out of the table, as in
``decode_peers``.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from tarpeg.ops import decode
from tarpeg.ops.gather import Gathered, decode_gathered, gather_tiles
from tarpeg.shards.pillow import as_tensor
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from .decode_peers import KINDS, DecodeInput, Place, decode_jpeg, functional

BATCH = 256
"""Images per batch: a GPU needs more of them than a core of the CPU."""
TILED = KINDS[1:]
"""Kinds of files that have tiles to gather."""
_SLOTS = 3  # buffers of a contestant: one that is filled, and two whose copies may be under way
_AHEAD = 2  # batches that DALI prepares ahead
_ROOM = 1.25  # of a buffer, beyond what the largest batch so far needed


@dataclass(frozen=True)
class DeviceSetting:
    """What all contestants of one run have in common.

    device: where the pixels shall be. threads: on the host. size: side of the results in pixels. is_resized:
    whether the crops have other sizes.
    """

    device: torch.device
    threads: int
    size: int
    is_resized: bool

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"


def _as_it_is(inputs: DecodeInput) -> DecodeInput:
    return inputs


@dataclass(frozen=True)
class DeviceContestant:
    """A function that makes the images of a batch on a device.

    make: returns them as one tensor [B, 3, H, W], a list of tensors [3, H, W], or DALI's list. flow: makes
    several batches without waiting for one before the next is begun; None: ``make`` does that.
    prepare: turns an input into what ``make`` takes, before the measurement. compared: whether the pixels
    should be those of the reference. is_part: whether it is a part of another contestant.
    """

    name: str
    make: Callable[[Any], Any]
    flow: Callable[[Sequence[Any]], Iterable[Any]] | None = None
    prepare: Callable[[DecodeInput], Any] = _as_it_is
    compared: bool = True
    is_part: bool = False

    def all_of(self, batches: Sequence[Any]) -> Iterable[Any]:
        """Make the batches one after another, without waiting for the device between them."""
        return map(self.make, batches) if self.flow is None else self.flow(batches)

    def pixels(self, inputs: Any) -> Tensor:
        """Images of a batch as uint8 [B, 3, H, W] on the CPU."""
        images = self.make(inputs)
        if isinstance(images, list):
            images = torch.stack(images)
        if not isinstance(images, Tensor):  # of DALI: [H, W, 3] each
            each = [np.asarray(image) for image in images.as_cpu()]
            images = torch.from_numpy(np.stack(each)).permute(0, 3, 1, 2)
        return images.cpu()


class _Pinned:
    """Buffers for copies to the device, each used again when its last copy is done."""

    def __init__(self, setting: DeviceSetting) -> None:
        self._device, self._is_cuda = setting.device, setting.is_cuda
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * _SLOTS
        self._events: list[Any] = [None] * _SLOTS
        self._slot, self._bytes = 0, 0

    def buffer(self, needed: int = 0) -> Tensor:
        """Return the next buffer, with at least as many bytes, and as many as ``grow`` said."""
        self._slot = (self._slot + 1) % _SLOTS
        if (event := self._events[self._slot]) is not None:
            event.synchronize()
        self.grow(needed)
        if len(self._buffers[self._slot]) < self._bytes:
            memory = torch.empty(self._bytes, dtype=torch.uint8, pin_memory=self._is_cuda)
            self._buffers[self._slot] = memory
        return self._buffers[self._slot]

    def grow(self, needed: int) -> None:
        """Let all buffers have at least as many bytes, each at its next use."""
        if needed > self._bytes:
            self._bytes = int(_ROOM * needed)

    def send(self, data: Tensor) -> Tensor:
        """Copy what was written into the last buffer to the device, without waiting for it."""
        sent = data.to(self._device, non_blocking=True)
        if self._is_cuda:
            self._events[self._slot] = torch.cuda.Event()
            self._events[self._slot].record()
        return sent


class _Gathering:
    """The path of ``decode="device"``: tiles gathered on the host, copied and decoded on the device."""

    def __init__(self, setting: DeviceSetting, kind: str, fidelity: decode.Fidelity) -> None:
        self._setting, self._kind, self._fidelity = setting, kind, fidelity
        self._pinned = _Pinned(setting)

    def gather(self, inputs: DecodeInput) -> Gathered:
        """Gather the tiles of a batch in pinned memory."""
        buffer = self._pinned.buffer()
        gathered = gather_tiles(
            inputs.kinds[self._kind],
            inputs.boxes,
            self._setting.size,
            fidelity=self._fidelity,
            out=buffer,
            threads=self._setting.threads,
        )
        self._pinned.grow(len(gathered.data))
        return gathered

    def run(self, inputs: DecodeInput) -> Tensor:
        """Gather, copy and decode."""
        gathered = self.gather(inputs)
        return self.decode(gathered._replace(data=self._pinned.send(gathered.data)))

    def on_device(self, inputs: DecodeInput) -> Gathered:
        """Gather into memory of its own on the device; ValueError if something has no tiles."""
        gathered = self.gather(inputs)
        if bad := int((gathered.status != 0).sum()):
            raise ValueError(f"{bad} of {len(inputs.jpegs)} images as {self._kind} files are not gathered")
        return gathered._replace(data=gathered.data.to(self._setting.device, copy=True))

    def decode(self, gathered: Gathered) -> Tensor:
        """Decode what is on the device."""
        return decode_gathered(gathered, threads=self._setting.threads)[0]


def device_contestants(setting: DeviceSetting) -> list[DeviceContestant]:
    """Contestants that are always installed, the reference first."""
    fidelities: tuple[decode.Fidelity, ...] = ("fast", "exact") if setting.is_resized else ("fast",)
    found = [
        DeviceContestant("torchvision v2 on the CPU", _torchvision_on_cpu(setting)),
        *(DeviceContestant(f"tarpeg, {kind}, on the CPU", _on_cpu(setting, kind)) for kind in TILED),
    ]
    parts = []
    for kind in TILED:
        for fidelity in fidelities:
            path = _Gathering(setting, kind, fidelity)
            name = f"tarpeg, {kind}" + f", {fidelity}" * setting.is_resized
            found.append(DeviceContestant(name, path.run))
            if fidelity == "fast":
                part = partial(DeviceContestant, is_part=True, compared=False)
                parts.append(part(f"{name}: gathering on the host", path.gather))
            parts.append(
                DeviceContestant(f"{name}: decoding", path.decode, prepare=path.on_device, is_part=True)
            )
    return found + parts


def _finished(setting: DeviceSetting, decoded: Tensor, place: Place) -> Tensor:
    """Crop a decoded image, and resize the crop with torchvision v2 where that is asked for."""
    top, left, height, width = place
    if not setting.is_resized:
        return decoded[:, top : top + height, left : left + width]
    size = [setting.size, setting.size]
    result: Tensor = functional.resized_crop(decoded, *place, size, antialias=True)
    return result


def _torchvision_on_cpu(setting: DeviceSetting) -> Callable[[DecodeInput], Tensor]:
    """Decode, crop and resize each image on a thread of the host; send the batch."""
    pool, pinned = ThreadPoolExecutor(setting.threads), _Pinned(setting)

    def run(inputs: DecodeInput) -> Tensor:
        shape = (len(inputs.jpegs), 3, setting.size, setting.size)
        images = _shaped(pinned, shape)

        def image(index: int) -> None:
            images[index] = _finished(setting, decode_jpeg(inputs.tensors[index]), inputs.places[index])

        list(pool.map(image, range(len(images))))
        return pinned.send(images)

    return run


def _on_cpu(setting: DeviceSetting, kind: str) -> Callable[[DecodeInput], Tensor]:
    """``decode_batch`` into pinned memory; send the batch."""
    pinned = _Pinned(setting)

    def run(inputs: DecodeInput) -> Tensor:
        shape = (len(inputs.jpegs), setting.size, setting.size, 3)
        out = _shaped(pinned, shape).permute(0, 3, 1, 2)
        options: dict[str, Any] = {"out": out, "threads": setting.threads}
        return pinned.send(decode.decode_batch(inputs.kinds[kind], inputs.boxes, setting.size, **options)[0])

    return run


def _shaped(pinned: _Pinned, shape: tuple[int, ...]) -> Tensor:
    needed = torch.Size(shape).numel()
    return pinned.buffer(needed)[:needed].view(shape)


DevicePeer = tuple[str, Callable[[DeviceSetting], list[DeviceContestant]]]
"""Packages that pip installs for a peer, and the function that makes its contestants."""


def _with_bound(
    setting: DeviceSetting, name: str, decoded: Callable[[DecodeInput], list[Tensor]], is_cropped: bool
) -> list[DeviceContestant]:
    """Contestant that crops and resizes what a peer decodes, image by image, and the peer's decoding alone.

    is_cropped: whether the peer decodes the crop alone.
    """

    def run(inputs: DecodeInput) -> list[Tensor]:
        images = decoded(inputs)
        if is_cropped and not setting.is_resized:
            return images
        places = [(0, 0, *place[2:]) if is_cropped else place for place in inputs.places]
        return [_finished(setting, *pair) for pair in zip(images, places, strict=True)]

    if not setting.is_resized:
        return [DeviceContestant(name, run)]
    return [
        DeviceContestant(f"{name} + torchvision v2", run),
        DeviceContestant(f"bound: {name}, not resized", decoded, compared=False),
    ]


def _nvjpeg(module: str, label: str, setting: DeviceSetting) -> list[DeviceContestant]:
    """``decode_jpeg`` of torchvision or TorchCodec for a batch: nvJPEG, called by one thread."""
    decode_list: Any = importlib.import_module(module).decode_jpeg
    if module == "torchvision.io":
        mode = importlib.import_module(module).ImageReadMode.RGB
        decode_list = partial(decode_list, mode=mode)

    def decoded(inputs: DecodeInput) -> list[Tensor]:
        images: list[Tensor] = decode_list(inputs.tensors, device=setting.device)
        return images

    decode_list([_small()], device=setting.device)  # an error here leaves it out
    return _with_bound(setting, f"{label}, nvJPEG", decoded, is_cropped=False)


def _small() -> Tensor:
    """Make a JPEG that shows whether a decoder works."""
    stream = io.BytesIO()
    Image.new("RGB", (64, 64), "gray").save(stream, "JPEG")
    return as_tensor(stream.getvalue())


def _nvimgcodec(setting: DeviceSetting) -> list[DeviceContestant]:
    nv = importlib.import_module("nvidia.nvimgcodec")
    if not setting.is_cuda:
        decoder = nv.Decoder(
            device_id=nv.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=setting.threads,
            backends=[nv.Backend(nv.CPU_ONLY)],
        )
        return _with_bound(
            setting, "nvImageCodec, ROI", partial(_regions, nv, decoder, setting.is_cuda), is_cropped=True
        )
    software = [nv.Backend(kind) for kind in (nv.GPU_ONLY, nv.HYBRID_CPU_GPU)]
    variants = {"nvImageCodec, ROI": None, "nvImageCodec, ROI, no hardware": software}
    index, found = setting.device.index or 0, []
    for name, backends in variants.items():
        decoder = nv.Decoder(
            device_id=index,
            max_num_cpu_threads=setting.threads,
            backends=backends,
            # Without it, nvJPEG before 13.2 decodes no crops: their outermost pixels may be wrong.
            options=":enable_roi_fancy_upsampling=1",
        )
        # An error here leaves it out.
        small = nv.CodeStream(_small().numpy().tobytes())
        if decoder.decode(small.get_sub_code_stream(region=nv.Region(0, 0, 8, 8))) is None:
            raise RuntimeError("nvImageCodec decodes no crops of JPEGs here")
        found += _with_bound(setting, name, partial(_regions, nv, decoder, setting.is_cuda), is_cropped=True)
    return found


def _regions(nv: Any, decoder: Any, is_cuda: bool, inputs: DecodeInput) -> list[Tensor]:
    """Decode the crops of a batch with nvImageCodec; its memory is used without a copy."""
    streams = []
    for jpeg, (top, left, height, width) in zip(inputs.jpegs, inputs.places, strict=True):
        region = nv.Region(top, left, top + height, left + width)
        streams.append(nv.CodeStream(jpeg).get_sub_code_stream(region=region))
    if not is_cuda:
        return [torch.from_numpy(np.asarray(image)).permute(2, 0, 1) for image in decoder.decode(streams)]
    images = decoder.decode(streams, cuda_stream=torch.cuda.current_stream().cuda_stream)
    if None in images:
        raise RuntimeError(f"nvImageCodec does not decode {images.count(None)} of {len(images)} crops")
    return [from_dlpack(image).permute(2, 0, 1) for image in images]


class _Dali:
    """DALI's pipelines of one graph: for one batch at a time, and for batches ahead."""

    def __init__(self, setting: DeviceSetting, hardware: float) -> None:
        self._setting, self._hardware = setting, hardware
        self._inputs: Any = None
        self._one = self._pipeline(1, lambda: self._inputs)
        self._following: Iterator[Any] = iter(())
        self._ahead = self._pipeline(1 + _AHEAD, lambda: next(self._following))

    def prepare(self, inputs: DecodeInput) -> Any:
        """Keep files, corners and sizes of the crops, which the pipeline reads without a copy."""
        corners, sizes = (part.contiguous().numpy() for part in inputs.boxes.split(2, dim=1))
        return inputs.arrays, corners, sizes

    def make(self, inputs: Any) -> Any:
        """Make one batch; the pipeline prepares none ahead."""
        self._inputs = inputs
        return self._one.run()[0]

    def flow(self, batches: Sequence[Any]) -> Iterator[Any]:
        """Make the batches, some of them ahead; at the end nothing is under way."""
        self._following = iter(batches)
        self._ahead.reset()
        return (self._ahead.run()[0] for _ in batches)

    def _pipeline(self, depth: int, source: Callable[[], Any]) -> Any:
        dali, fn, types = (importlib.import_module(f"nvidia.dali{name}") for name in ("", ".fn", ".types"))
        setting = self._setting
        index = (setting.device.index or 0) if setting.is_cuda else None
        pipeline = dali.Pipeline(BATCH, setting.threads, device_id=index, prefetch_queue_depth=depth)
        mixed = {"device": "mixed", "hw_decoder_load": self._hardware} if setting.is_cuda else {}
        with pipeline:
            kinds = {"dtype": [types.UINT8, types.INT32, types.INT32], "ndim": [1, 1, 1]}
            jpegs, corner, size = fn.external_source(source, num_outputs=3, no_copy=True, **kinds)
            place = {"axes": (0, 1), "output_type": types.RGB, **mixed}
            images = fn.decoders.image_slice(jpegs, corner, size, **place)
            if setting.is_resized:
                images = fn.resize(images, size=[setting.size] * 2, antialias=True)
            pipeline.set_outputs(images)
        pipeline.build()
        return pipeline


def _dali(setting: DeviceSetting) -> list[DeviceContestant]:
    name, found = "DALI, image_slice" + " + resize" * setting.is_resized, []
    shares = (0.65, 1.0, 0.0) if setting.is_cuda else (0.0,)  # 0.65 is DALI's default
    for share in shares:
        path, label = _Dali(setting, share), f", hw_decoder_load={share:g}" * setting.is_cuda
        found.append(DeviceContestant(f"{name}{label}", path.make, path.flow, path.prepare))
    return found


DEVICE_PEERS: tuple[DevicePeer, ...] = (
    ("torchvision", partial(_nvjpeg, "torchvision.io", "torchvision")),
    ("torchcodec", partial(_nvjpeg, "torchcodec.decoders", "TorchCodec")),
    ("nvidia-nvimgcodec-cu13 nvidia-nvjpeg", _nvimgcodec),
    ("nvidia-dali-cuda130 nvidia-nvjpeg", _dali),
)
