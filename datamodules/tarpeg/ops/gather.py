"""Operators that decode where the pixels are needed: ``gather_tiles`` and ``decode_gathered``.

A worker gathers the tiles under the crops of a batch, one copy takes them to the device, and the device
decodes them. What the CPU must decode itself has the status ``NOT_GATHERED``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from . import library
from .checks import checked_size
from .decode import MAX_PIXELS, Fidelity, Interpolation, _call, _check_batch, _check_method, _count_of


class Gathered(NamedTuple):
    """The tiles under the crops of a batch, as ``gather_tiles`` returns them.

    Attributes:
        data: uint8 ``[n]``. Its layout is private to this version of tarpeg: other versions refuse it.
        status: int32 ``[B]``, the ``Status`` of each image: ``NOT_GATHERED`` of those that only
            ``decode_batch`` decodes. Of damaged images some are found here, others by ``decode_gathered``.
        size: (height, width) of the results in pixels.
        channels: 3 for RGB, 1 for gray.
        work: Bytes of memory in which a device decodes, at most 512 MiB unless one image needs more: about
            0.9 MB for each crop of 500 x 375, rounded up to a multiple of 64 MiB. 0 if torch.compile has
            traced ``gather_tiles``: a GPU cannot decode that.
        chunks: First image of each chunk; the images of a chunk are decoded at once.

    Example:
        >>> boxes = torch.tensor([[40, 100, 256, 256]], dtype=torch.int32)
        >>> gathered = tarpeg.gather_tiles([tarpeg.tile_jpeg(jpeg)], boxes, size=224)
        >>> gathered.size, gathered.channels, gathered.data.dtype
        ((224, 224), 3, torch.uint8)
    """

    data: Tensor
    status: Tensor
    size: tuple[int, int]
    channels: int
    work: int
    chunks: tuple[int, ...]


def gather_tiles(
    images: Sequence[Tensor],
    boxes: Tensor,
    size: int | Sequence[int],
    flip: Tensor | None = None,
    *,
    channels: Literal[1, 3] = 3,
    interpolation: Interpolation = "bilinear",
    antialias: bool = True,
    fidelity: Fidelity = "fast",
    max_pixels: int = MAX_PIXELS,
    places: Tensor | None = None,
    out: Tensor | None = None,
    threads: int | None = None,
) -> Gathered:
    """Gather what is needed to decode one box of each tiled JPEG or packed image, without decoding it.

    ``decode_gathered`` makes of it what ``decode_batch`` returns for the same arguments: the same bytes.

    Args:
        images: A list of B uint8 ``[n]``, the bytes of the files. Tiled JPEGs have a restart interval that
            divides the MCUs of a row (``tile_jpeg``, ``build_cache``); those in one scan without restart
            markers, progressive ones, CMYK and PPM are ``NOT_GATHERED``.
        boxes: int32 ``[B, 4]``, (top, left, height, width) in upright pixels, after EXIF orientation.
        size: Size of the results in pixels: (height, width), or an int for a square.
        flip: bool ``[B]``, mirrored left to right if true.
        channels: 3 for RGB, 1 for gray.
        interpolation: As for ``decode_batch``.
        antialias: As for ``decode_batch``.
        fidelity: "fast" or "exact".
        max_pixels: An image with more pixels has the status ``TOO_LARGE``.
        places: int64 ``[3, B]``, for files that are parts of ``images``, such as mapped tars: of each, the
            number of the tensor, the first byte, and the number of bytes.
        out: uint8 ``[n]`` on the CPU, contiguous, at a multiple of 16 bytes: ``data`` will be its beginning
            if it is large enough. Otherwise, and under torch.compile, ``data`` has memory of its own.
        threads: Number of threads, by default ``torch.get_num_threads()``.

    Returns:
        ``Gathered``, on the CPU.

    Raises:
        ValueError: If an argument is wrong, or a box outside its image.

    Example:
        >>> boxes = torch.tensor([[40, 100, 256, 256], [0, 0, 400, 600]], dtype=torch.int32)
        >>> files = [tarpeg.pack_jpeg(jpeg), tarpeg.tile_jpeg(jpeg)]
        >>> gathered = tarpeg.gather_tiles(files, boxes, size=224)
        >>> images, status = tarpeg.decode_gathered(gathered)
        >>> torch.equal(images, tarpeg.decode_batch(files, boxes, size=224)[0])
        True
    """
    height, width = checked_size(size, 1, 65535)
    count = _count_of(images, places)
    _check_method(boxes, count, flip, channels, interpolation, antialias, fidelity, threads)
    method = (interpolation, antialias, fidelity == "exact", max_pixels, threads or 0, channels, _BUDGET)

    def gather() -> Gathered:
        own, flips = boxes.contiguous(), None if flip is None else flip.contiguous()
        spans = None if places is None else places.contiguous()
        arguments = (images, spans, own, height, width, flips, *method)
        if out is not None and not torch.compiler.is_compiling():
            status, numbers = torch.ops.tarpeg.gather_tiles_out(*arguments, out)
            needed = int(numbers[0])
            if needed <= len(out):
                return found(out[:needed], status, numbers)
        return found(*torch.ops.tarpeg.gather_tiles(*arguments))

    def found(data: Tensor, status: Tensor, numbers: Tensor) -> Gathered:
        _, work, *chunks = (0, 0) if torch.compiler.is_compiling() else numbers.tolist()
        return Gathered(data, status, (height, width), channels, work, tuple(chunks))

    def check() -> None:
        _check_batch(images, boxes, flip, name="images", places=places)
        _check_out(out)

    return _call(gather, check)


# Bytes of memory in which a device decodes a chunk: a batch of crops of 500 x 375 is one, and much larger
# photographs, which need gigabytes together, still fill a GPU.
_BUDGET = 1 << 29
ALIGN = 16
"""On the CPU the data of ``decode_gathered`` begin at a multiple of so many bytes."""


def decode_gathered(gathered: Gathered, *, threads: int | None = None) -> tuple[Tensor, Tensor]:
    """Decode what ``gather_tiles`` gathered, on the device where its data are: the bytes of ``decode_batch``.

    On the CPU this is plain code without vectors, 13 to 17 times as slow as ``decode_batch``: it defines
    what a device computes. ``gathered._replace(data=gathered.data.to("cuda"))`` takes the tiles to a GPU; the
    call then waits for nothing.

    Args:
        gathered: What ``gather_tiles`` returned, its ``data`` on any device.
        threads: Number of threads on the CPU, by default ``torch.get_num_threads()``.

    Returns:
        On the device of the data: images, uint8 ``[B, channels, height, width]`` in channels_last order, and
        int32 ``[B]``, the ``Status`` of each. An image that was not gathered, or is damaged, is zeros;
        ``decode_batch`` may still decode such a JPEG, because it leaves what is not regular to libjpeg.

    Raises:
        ValueError: If the data were not made by this version for as many images of that size. On CUDA all
            images are ``CORRUPT`` instead.
        BuildError: If the CUDA operators do not work on the GPU of the data.

    Example:
        >>> boxes = torch.tensor([[40, 100, 256, 256]], dtype=torch.int32)
        >>> images, status = tarpeg.decode_gathered(tarpeg.gather_tiles([jpeg], boxes, size=224))
        >>> tarpeg.Status(int(status[0])).name  # the file has no tiles
        'NOT_GATHERED'
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads!r} must be at least 1")
    (height, width), count = gathered.size, len(gathered.status)
    _check_data(gathered.data)
    if gathered.data.device.type == "cuda" and not torch.compiler.is_compiling():
        library.require_cuda(gathered.data.device)

    def decode() -> tuple[Tensor, Tensor]:
        images, status = torch.ops.tarpeg.decode_gathered(
            gathered.data,
            count,
            height,
            width,
            gathered.channels,
            gathered.work,
            list(gathered.chunks),
            threads or 0,
        )
        return images, status

    return _call(decode, lambda: _check_data(gathered.data))


def _check_out(out: Tensor | None) -> None:
    if out is None:
        return
    if not isinstance(out, Tensor):
        raise ValueError(f"out={out!r} must be a uint8 tensor [n], or None")
    is_plain = out.dtype == torch.uint8 and out.ndim == 1 and out.is_contiguous()
    if not is_plain or out.device.type != "cpu" or out.data_ptr() % ALIGN:
        raise ValueError(
            f"out must be uint8 [n] on the CPU, contiguous, at a multiple of {ALIGN} bytes, got {out.dtype} "
            f"{list(out.shape)} on {out.device}, at {out.data_ptr() % ALIGN} behind one"
        )


def _check_data(data: Tensor) -> None:
    if not isinstance(data, Tensor) or data.dtype != torch.uint8 or data.ndim != 1:
        got = f"{data.dtype} {list(data.shape)}" if isinstance(data, Tensor) else type(data).__name__
        raise ValueError(f"gathered.data must be a tensor of gather_tiles, uint8 [n], got {got}")


@torch.library.register_fake("tarpeg::gather_tiles")  # type: ignore[untyped-decorator]
def _fake_gather_tiles(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    status, numbers = _fake_gather_tiles_out(*arguments)
    data = status.new_empty((torch.library.get_ctx().new_dynamic_size(),), dtype=torch.uint8)
    return data, status, numbers


@torch.library.register_fake("tarpeg::gather_tiles_out")  # type: ignore[untyped-decorator]
def _fake_gather_tiles_out(
    images: Sequence[Tensor],
    places: Tensor | None,
    boxes: Tensor,
    height: int,
    width: int,
    flip: Tensor | None,
    *options: object,
) -> tuple[Tensor, Tensor]:
    _check_batch(images, boxes, flip, name="images", places=places)
    numbers = boxes.new_empty((torch.library.get_ctx().new_dynamic_size(),), dtype=torch.int64)
    return boxes.new_empty((boxes.shape[0],), dtype=torch.int32), numbers


@torch.library.register_fake("tarpeg::decode_gathered")  # type: ignore[untyped-decorator]
def _fake_decode_gathered(
    data: Tensor,
    count: int,
    height: int,
    width: int,
    channels: int,
    work: int,
    chunks: Sequence[int],
    threads: int,
) -> tuple[Tensor, Tensor]:
    images = data.new_empty((count, height, width, channels)).permute(0, 3, 1, 2)
    return images, data.new_empty((count,), dtype=torch.int32)
