"""Operators on encoded images: decode a crop or a batch, tile or pack a JPEG, read sizes; maps of files.

Importing this module loads the native library and, if there is none yet, compiles it. Every operator has a
fake kernel for ``torch.compile(fullgraph=True)`` and ``torch.export``.

The operators check the memory of their tensors. Python checks the other arguments; tensors only if an
operator refused them, to raise a ``ValueError`` with name and value, or first while tracing.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DecodeError
from ..files import open_regular
from . import library

# This import registers the other fake kernels, too: a traced program may call any operator.
from .augment import scale_and_shift
from .checks import checked_size

MAX_PIXELS = 178_956_970
"""The default bound on the size of an image, in pixels; Pillow refuses larger ones, too."""

Interpolation = Literal["bilinear", "bicubic", "lanczos", "box", "area", "nearest", "nearest-exact"]
Fidelity = Literal["fast", "exact"]
T = TypeVar("T")
Int64 = npt.NDArray[np.int64]

# No operators: a map may be released by the garbage collector, within any of torch's modes.
_native = ctypes.CDLL(str(library.library_path()))
_P, _N = ctypes.c_void_p, ctypes.c_int64
_native.tarpeg_map.argtypes, _native.tarpeg_map.restype = (ctypes.c_int, ctypes.c_size_t, _P), _N
_native.tarpeg_unmap.argtypes, _native.tarpeg_unmap.restype = (_N, ctypes.c_size_t, _P), None
_native.tarpeg_guard.restype = None
_native.tarpeg_first_unusual.argtypes, _native.tarpeg_first_unusual.restype = (_P, _N, _N, _P, _P), _N
_native.tarpeg_read_integers.argtypes, _native.tarpeg_read_integers.restype = (_P, _P, _N, _P), _N
_native.tarpeg_first_changed.argtypes, _native.tarpeg_first_changed.restype = (_P, _P, _P, _N), _N


def decode_crop(
    jpeg: Tensor, top: int, left: int, height: int, width: int, *, max_pixels: int = MAX_PIXELS
) -> Tensor:
    """Decode one box of one JPEG (or binary PPM), identical to decoding everything and cropping.

    Gray, CMYK and YCCK become RGB as Pillow's ``convert("RGB")`` makes them. Inside ``torch.compile`` both
    errors are a ``RuntimeError`` with the same message.

    Args:
        jpeg: uint8 ``[n]``, the bytes of the file.
        top: First row of the box, in upright pixels, after EXIF orientation.
        left: First column of the box.
        height: Rows of the box.
        width: Columns of the box.
        max_pixels: An image with more pixels is an error.

    Returns:
        uint8 ``[3, height, width]``, RGB, in channels_last order.

    Raises:
        ValueError: If the box is outside the image.
        DecodeError: If the image cannot be decoded.

    Example:
        >>> tarpeg.decode_crop(jpeg, top=40, left=100, height=256, width=256).shape
        torch.Size([3, 256, 256])
    """
    if height < 1 or width < 1 or top < 0 or left < 0:
        raise ValueError(f"box (top={top}, left={left}, height={height}, width={width}) is empty or negative")
    if height > 65535 or width > 65535:
        raise ValueError(f"box (height={height}, width={width}) must have at most 65535 rows and columns")
    image: Tensor = _call(
        lambda: torch.ops.tarpeg.decode_crop(jpeg, top, left, height, width, max_pixels),
        lambda: _check_jpeg(jpeg, "jpeg"),
    )
    return image


def tile_jpeg(jpeg: Tensor, tile: int = 32, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Rewrite a JPEG, losslessly, so that a crop of it is decoded without decoding the rest.

    The result is an ordinary baseline JPEG that every decoder decodes to the same pixels as the source.
    Restart markers divide its rows of MCUs, an APP10 segment holds the places of the rows unless the image is
    small, and its Huffman tables are optimised. EXIF, XMP and the ICC profile are kept. Progressive sources
    become baseline.

    A source that cannot be tiled with exactly the same pixels is returned unchanged, and so is one in which
    damage may be hidden (arithmetic coding, padding within a scan).

    Args:
        jpeg: uint8 ``[n]``, the bytes of the file.
        tile: Desired width of the tiles in pixels, 1 to 65535. Narrower tiles waste less around a crop and
            need more bytes.
        max_pixels: An image with more pixels is an error.

    Returns:
        uint8 ``[m]``.

    Raises:
        DecodeError: If the source is damaged: rewriting would hide it.

    Example:
        >>> tiled = tarpeg.tile_jpeg(jpeg)
        >>> crops = [tarpeg.decode_crop(each, 40, 100, 256, 256) for each in (jpeg, tiled)]
        >>> torch.equal(*crops)
        True
    """
    return _in_tiles(torch.ops.tarpeg.tile_jpeg, jpeg, tile, max_pixels)


def pack_jpeg(jpeg: Tensor, tile: int = 32, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Rewrite a JPEG, losslessly, as a packed image: the same coefficients in a form that is faster to read.

    ``decode_crop``, ``decode_batch`` and ``image_sizes`` read it, with the pixels of the JPEG; no other
    program does. ``unpack_jpeg`` makes a JPEG of it. EXIF, XMP and the ICC profile are kept. A source that
    cannot be packed with exactly the same pixels (CMYK, arithmetic coding, padding within a scan) is returned
    as ``tile_jpeg`` returns it, and a packed image unchanged.

    Args:
        jpeg: uint8 ``[n]``, the bytes of the file.
        tile: Width of the tiles in pixels, 1 to 65535; a tile has at most 256 blocks of 8x8 samples.
        max_pixels: An image with more pixels is an error.

    Returns:
        uint8 ``[m]``, 1.25 to 1.5 times as large.

    Raises:
        DecodeError: If the source is damaged: rewriting would hide it.

    Example:
        >>> packed = tarpeg.pack_jpeg(jpeg)
        >>> crops = [tarpeg.decode_crop(each, 40, 100, 256, 256) for each in (jpeg, packed)]
        >>> torch.equal(*crops)
        True
    """
    return _in_tiles(torch.ops.tarpeg.pack_jpeg, jpeg, tile, max_pixels)


def _in_tiles(operator: Callable[..., Tensor], jpeg: Tensor, tile: int, max_pixels: int) -> Tensor:
    if not 1 <= tile <= 65535:
        raise ValueError(f"tile={tile!r} must be from 1 to 65535 pixels")
    result: Tensor = _call(lambda: operator(jpeg, tile, max_pixels), lambda: _check_jpeg(jpeg, "jpeg"))
    return result


def unpack_jpeg(image: Tensor, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Turn a packed image into an ordinary baseline JPEG with the same coefficients.

    A JPEG is returned unchanged.

    Args:
        image: uint8 ``[n]``, the bytes of the packed image.
        max_pixels: An image with more pixels is an error.

    Returns:
        uint8 ``[m]``: optimised Huffman tables, no restart markers, and the EXIF, XMP and ICC profile of the
        JPEG that was packed.

    Raises:
        DecodeError: If the image is damaged: its checksum is compared first.

    Example:
        >>> again = tarpeg.unpack_jpeg(tarpeg.pack_jpeg(jpeg))
        >>> bytes(again[:2]).hex()  # the beginning of every JPEG
        'ffd8'
    """
    jpeg: Tensor = _call(
        lambda: torch.ops.tarpeg.unpack_jpeg(image, max_pixels), lambda: _check_jpeg(image, "image")
    )
    return jpeg


def image_sizes(jpegs: Sequence[Tensor], places: Tensor | None = None) -> Tensor:
    """Read the upright size of every image from its header alone.

    Args:
        jpegs: A list of B uint8 ``[n]``, the bytes of the files.
        places: int64 ``[3, B]``, for files that are parts of ``jpegs``, such as mapped tars: of each, the
            number of the tensor, the first byte, and the number of bytes.

    Returns:
        int32 ``[B, 2]``: (height, width), after EXIF orientation; (0, 0) for an image without a header that
        ``decode_batch`` could use.

    Example:
        >>> tarpeg.image_sizes([jpeg, jpeg[:100]]).tolist()
        [[400, 600], [0, 0]]
    """
    given: Any = jpegs
    if isinstance(given, Tensor):
        raise ValueError("jpegs must be a list of uint8 tensors [n], not one tensor: image_sizes([jpeg])")
    if not jpegs:
        return torch.empty((0, 2), dtype=torch.int32, device="cpu")
    _count_of(jpegs, places)
    own = None if places is None else places.contiguous()
    sizes: Tensor = _call(lambda: torch.ops.tarpeg.image_sizes(jpegs, own), lambda: _check_jpegs(jpegs))
    return sizes


def map_file(path: str, nbytes: int) -> tuple[Tensor, npt.NDArray[np.uint8]]:
    """Map the first nbytes of a regular file, read-only, without keeping it open: uint8 [nbytes].

    A write to it ends the process. The map stays as long as the tensor or a view on it. The second array,
    uint8 [1], becomes 1 when a page cannot be read, because the file is shorter now or its disk fails: from
    that page on the map is zeros. Look at it after reading. Raises OSError, also for a file of fewer bytes.
    """
    torn = np.zeros(1, np.uint8)
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu"), torn
    with open_regular(path) as file:
        address = _native.tarpeg_map(file.fileno(), nbytes, torn.ctypes.data)
    if address < 0:
        raise OSError(-address, os.strerror(-address), path)
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(memory, _unmap, address, nbytes, torn).atexit = False
    return torch.frombuffer(memory, dtype=torch.uint8), torn


def _unmap(address: int, nbytes: int, torn: npt.NDArray[np.uint8]) -> None:
    _native.tarpeg_unmap(address, nbytes, torn.ctypes.data)


def guard_maps() -> None:
    """Install the handler of SIGBUS for all maps again, if another replaced it; in about a microsecond."""
    _native.tarpeg_guard()


def first_unusual(
    columns: Int64, first: int, keys: npt.NDArray[np.uint8], ends: npt.NDArray[np.uint8]
) -> int:
    """First member, from ``first`` on, whose header is not the usual one of KEY.EXTENSION and its size; or B.

    Nothing is checked: all of it must be within the maps and the arrays.

    Args:
        columns: int64 [7, B]: address of the member's data, its offset in the tar, its size; begin and end of
            its key in ``keys``, and of its ``header_end`` in ``ends``.
        first: Number of the first member to compare.
        keys: Keys of the members.
        ends: What follows their keys in a usual header, ``header_end``.
    """
    count = columns.shape[1]
    found: int = _native.tarpeg_first_unusual(
        columns.ctypes.data, count, first, keys.ctypes.data, ends.ctypes.data
    )
    return found


def read_integers(addresses: Int64, sizes: Int64) -> Int64 | None:
    """Read texts of decimal integers with white space around them: int64 [B].

    Nothing is checked: addresses and sizes must be within mapped files.

    Args:
        addresses: int64 [B], address of each text.
        sizes: int64 [B], bytes of each text.

    Returns:
        The numbers; None if one text is anything else, or has more than 18 digits.
    """
    numbers, count = np.empty(len(sizes), np.int64), len(sizes)
    read: int = _native.tarpeg_read_integers(
        addresses.ctypes.data, sizes.ctypes.data, count, numbers.ctypes.data
    )
    return numbers if read == count else None


class Files:
    """Paths of files with the size (bytes) and time of modification (ns) of each, to look for changes."""

    def __init__(self, paths: Sequence[os.PathLike[str]], stats: Sequence[tuple[int, int]]) -> None:
        self._paths: Any = (ctypes.c_char_p * len(paths))(*map(os.fsencode, paths))
        self._stats = np.array(stats, np.int64)

    def are_unchanged(self, numbers: Int64) -> bool:
        """Whether each of these files, numbers from 0, can be read and has its size and time."""
        found: int = _native.tarpeg_first_changed(
            self._paths, self._stats.ctypes.data, numbers.ctypes.data, len(numbers)
        )
        return found == len(numbers)


def native_facts() -> dict[str, str]:
    """Return facts about the native library.

    Returns:
        ``libjpeg_turbo``, the version of its headers; ``libjpeg_file``, the file that its functions came
        from; ``simd``, which is ``AVX-512``, ``AVX2``, ``NEON``, or ``none`` for the portable code.
    """
    return dict(line.split("=", 1) for line in torch.ops.tarpeg.native_facts().splitlines())


def decode_batch(
    jpegs: Sequence[Tensor],
    boxes: Tensor,
    size: int | Sequence[int],
    flip: Tensor | None = None,
    *,
    channels: Literal[1, 3] = 3,
    interpolation: Interpolation = "bilinear",
    antialias: bool = True,
    fidelity: Fidelity = "fast",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.uint8,
    max_pixels: int = MAX_PIXELS,
    out: Tensor | None = None,
    threads: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Decode one box of each JPEG (or binary PPM) and resize it.

    With ``fidelity="exact"`` bilinear and bicubic resizing, antialiased or not, is within one level of
    torchvision v2's on uint8 at every pixel, and lanczos and box of Pillow's; nearest and nearest-exact are
    equal to torchvision's.

    ``"fast"`` differs if resizing is antialiased. Bilinear: Y, Cb and Cr are resampled separately and become
    RGB at ``size``, which differs by 0.2 to 0.35 level on average. If the box is at least 2 (bilinear), 3
    (bicubic, lanczos) or 4 (box) times ``size`` in both directions, means of 2, 4 or 8 samples are resampled:
    0.5 to 1 level on average, depending on the photograph (docs/fidelity.md), and up to 7 pixels next to the
    box contribute; otherwise pixels outside a box never do. Both decode a file and its tiled copy to the same
    pixels.

    Gray images (``channels=1``) of YCbCr and gray JPEGs are decoded from the luma plane alone, which is
    faster: Pillow's ``image.draft("L", image.size)``. They are about a level from ``convert("L")`` of the RGB
    image, and more only in saturated colours, which RGB clips. All other files are ``convert("L")``.

    Args:
        jpegs: A list of B uint8 ``[n]``, the bytes of the files.
        boxes: int32 ``[B, 4]``, (top, left, height, width) in upright pixels, after EXIF orientation.
        size: Size of the results in pixels: (height, width), or an int for a square.
        flip: bool ``[B]``, mirrored left to right if true.
        channels: 3 for RGB, 1 for gray.
        interpolation: "bilinear", "bicubic", "lanczos", "box" (or "area"), "nearest" or "nearest-exact".
        antialias: As torchvision's; False is possible for bilinear and bicubic only.
        fidelity: "fast" or "exact".
        mean: Mean of each channel, for values in 0 to 1; by default 0. Only for floating-point results.
        std: Standard deviation of each channel, for values in 0 to 1; by default 1.
        dtype: torch's uint8, or float32, float16 or bfloat16: (value / 255 - mean) / std.
        max_pixels: An image with more pixels has the status ``TOO_LARGE``.
        out: Tensor of the result's shape and type to write to and return, in channels_last order or, if it is
            floating point, contiguous.
        threads: Number of decoding threads, by default ``torch.get_num_threads()``; they are not torch's and
            sleep between batches.

    Returns:
        Images ``[B, channels, height, width]`` in channels_last order, and int32 ``[B]``, the ``Status`` of
        each: 0 is OK, and a failed image is all zeros.

    Raises:
        ValueError: If a box is outside its image (inside ``torch.compile`` a ``RuntimeError``).

    Example:
        >>> boxes = torch.tensor([[0, 0, 400, 600], [40, 100, 256, 256]], dtype=torch.int32)
        >>> images, status = tarpeg.decode_batch([jpeg, jpeg], boxes, size=224)
        >>> images.shape, status.tolist()
        (torch.Size([2, 3, 224, 224]), [0, 0])
    """
    height, width = checked_size(size, 1, 65535)
    _check_method(boxes, len(jpegs), flip, channels, interpolation, antialias, fidelity, threads)
    numbers = scale_and_shift(mean, std, dtype, channels)
    scale_shift = None if numbers is None else torch.tensor(numbers, dtype=torch.float32, device="cpu")
    if out is not None:
        _check_out(out, (len(jpegs), channels, height, width), dtype)
    elif dtype != torch.uint8:
        shape = (len(jpegs), height, width, channels)
        out = torch.empty(shape, dtype=dtype, device=boxes.device).permute(0, 3, 1, 2)
    method = (interpolation, antialias, fidelity == "exact", max_pixels)

    def decode() -> tuple[Tensor, Tensor]:
        places, flips = boxes.contiguous(), None if flip is None else flip.contiguous()
        op, count = torch.ops.tarpeg, threads or 0
        if out is None:
            images, status = op.decode_batch(jpegs, places, height, width, flips, *method, count, channels)
            return images, status
        return out, op.decode_batch_out(jpegs, places, flips, *method, scale_shift, out, count)

    return _call(decode, lambda: _check_batch(jpegs, boxes, flip))


def decode_sizes(
    jpegs: Sequence[Tensor],
    boxes: Tensor,
    flip: Tensor | None,
    outs: Sequence[Tensor],
    *,
    interpolation: Interpolation = "bilinear",
    antialias: bool = True,
    fidelity: Fidelity = "fast",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    max_pixels: int = MAX_PIXELS,
    threads: int = 1,
    places: Tensor | None = None,
) -> Tensor:
    """Decode boxes to several sizes: ``decode_batch`` into each of ``outs``, which have one type.

    ``outs[0]`` is for the first images, ``outs[1]`` for those that follow, and so on. Boxes of one file,
    which is then several times in ``jpegs``, are decoded together. Returns the status of each, int32 ``[n]``.

    With ``places``, int32 ``[n, 12]``, each box goes to a part of an image instead. The columns are the
    number of that image, counted over all of ``outs``; a cell of it, (top, left, height, width); the part of
    the cell that the box becomes, in the coordinates of the cell; and the colour of the rest of the cell,
    three levels, of which gray images take the first. Cells may not overlap. Nothing else is written.
    """
    numbers = scale_and_shift(mean, std, outs[0].dtype, outs[0].shape[1])
    scale_shift = None if numbers is None else torch.tensor(numbers, dtype=torch.float32, device="cpu")
    method = (interpolation, antialias, fidelity == "exact", max_pixels)

    def decode() -> Tensor:
        status: Tensor = torch.ops.tarpeg.decode_sizes_out(
            jpegs, boxes, flip, *method, scale_shift, list(outs), threads, places
        )
        return status

    return _call(decode, lambda: _check_batch(jpegs, boxes, flip))


def _check_method(
    boxes: Tensor,
    count: int,
    flip: Tensor | None,
    channels: int,
    interpolation: str,
    antialias: bool,
    fidelity: str,
    threads: int | None,
) -> None:
    """Raise ValueError for arguments, other than tensors of a wrong shape, that no operator would take."""
    if not isinstance(boxes, Tensor):
        raise ValueError(
            f"boxes={boxes!r} must be an int32 tensor [{count}, 4], one box for each image: "
            "torch.tensor([[top, left, height, width], ...], dtype=torch.int32)"
        )
    if flip is not None and not isinstance(flip, Tensor):
        raise ValueError(f"flip={flip!r} must be a bool tensor [{count}], or None")
    if interpolation not in (names := get_args(Interpolation)):
        raise ValueError(f"interpolation={interpolation!r} must be one of {', '.join(map(repr, names))}")
    if not antialias and interpolation in ("lanczos", "box", "area"):
        raise ValueError(
            f"antialias=False needs interpolation 'bilinear' or 'bicubic', got {interpolation!r}"
        )
    if fidelity not in ("fast", "exact"):
        raise ValueError(f"fidelity must be 'fast' or 'exact', got {fidelity!r}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads!r} must be at least 1")
    if channels not in (1, 3):
        raise ValueError(f"channels={channels!r} must be 3, RGB, or 1, gray")


def _call(operator: Callable[[], T], check: Callable[[], None]) -> T:
    """Call an operator; raise an error of the right Python type if it refuses its arguments."""
    if torch.compiler.is_compiling():
        check()
        return operator()
    try:
        return operator()
    except RuntimeError as error:
        check()
        raise _translated(error) from None


def _check_batch(
    jpegs: Sequence[Tensor],
    boxes: Tensor,
    flip: Tensor | None,
    *,
    name: str = "jpegs",
    places: Tensor | None = None,
) -> None:
    """Raise ValueError for tensors that do not belong together; ``name`` is that of the list of files."""
    _check_jpegs(jpegs, name)
    count = _count_of(jpegs, places)
    if boxes.ndim != 2 or boxes.shape[0] != count or boxes.shape[1] != 4 or boxes.dtype != torch.int32:
        got = f"{boxes.dtype} {list(boxes.shape)}"
        raise ValueError(f"boxes must be int32 [{count}, 4], one box for each image, got {got}")
    if flip is not None and (flip.ndim != 1 or flip.shape[0] != count or flip.dtype != torch.bool):
        raise ValueError(f"flip must be bool [{count}], got {flip.dtype} {list(flip.shape)}")


def _count_of(jpegs: Sequence[Tensor], places: Tensor | None) -> int:
    """Return the number of files. Raises ValueError for a wrong shape or type of ``places``."""
    if places is None:
        return len(jpegs)
    if not isinstance(places, Tensor):
        raise ValueError(f"places={places!r} must be an int64 tensor [3, n], or None")
    if places.ndim != 2 or places.shape[0] != 3 or places.dtype != torch.int64:
        raise ValueError(f"places must be int64 [3, n], got {places.dtype} {list(places.shape)}")
    return places.shape[1]


def _check_jpegs(jpegs: Sequence[Tensor], name: str = "jpegs") -> None:
    for index, jpeg in enumerate(jpegs):
        _check_jpeg(jpeg, f"{name}[{index}]")


def _check_jpeg(jpeg: Tensor, where: str) -> None:
    got = type(jpeg).__name__
    if isinstance(jpeg, Tensor):
        if jpeg.dtype == torch.uint8 and jpeg.ndim == 1 and jpeg.device.type == "cpu":
            return
        got = f"{jpeg.dtype} {list(jpeg.shape)} on {jpeg.device}"
    raise ValueError(
        f"{where} must be a file's bytes as a uint8 tensor [n] on the CPU, got {got}; "
        "torch.frombuffer(bytearray(data), dtype=torch.uint8) makes one from bytes"
    )


def _check_out(out: Tensor, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    if tuple(out.shape) != shape or out.dtype != dtype:
        raise ValueError(f"out must be {dtype} {list(shape)}, got {out.dtype} {list(out.shape)}")
    if out.is_contiguous(memory_format=torch.channels_last):
        return
    if dtype == torch.uint8 or not out.is_contiguous():
        raise ValueError("out must be channels_last: torch.empty(..., memory_format=torch.channels_last)")


def _translated(error: RuntimeError) -> Exception:
    """Return the error of a native operator with its Python type; the stable ABI has only RuntimeError."""
    message = str(error).partition("\nException raised from")[0]
    if "[decode] " in message:
        return DecodeError(message.partition("[decode] ")[2])
    if "gather_tiles of this version" in message:
        return ValueError(message[max(message.find("chunks has "), message.find("data is not ")) :])
    if "places[:, " in message:
        return ValueError(message[message.find("places[:, ") :])
    if "is outside" in message:
        begin = message.find("boxes[") if "boxes[" in message else message.find("box (")
        return ValueError(message[begin:])
    return error


@torch.library.register_fake("tarpeg::decode_crop")  # type: ignore[untyped-decorator]
def _fake_decode_crop(jpeg: Tensor, top: int, left: int, height: int, width: int, max_pixels: int) -> Tensor:
    _check_jpeg(jpeg, "jpeg")
    return jpeg.new_empty((height, width, 3), dtype=torch.uint8).permute(2, 0, 1)


@torch.library.register_fake("tarpeg::tile_jpeg")  # type: ignore[untyped-decorator]
@torch.library.register_fake("tarpeg::pack_jpeg")  # type: ignore[untyped-decorator]
def _fake_in_tiles(jpeg: Tensor, tile: int, max_pixels: int) -> Tensor:
    _check_jpeg(jpeg, "jpeg")
    return jpeg.new_empty((torch.library.get_ctx().new_dynamic_size(),))


@torch.library.register_fake("tarpeg::unpack_jpeg")  # type: ignore[untyped-decorator]
def _fake_unpack_jpeg(image: Tensor, max_pixels: int) -> Tensor:
    _check_jpeg(image, "image")
    return image.new_empty((torch.library.get_ctx().new_dynamic_size(),))


@torch.library.register_fake("tarpeg::image_sizes")  # type: ignore[untyped-decorator]
def _fake_image_sizes(jpegs: Sequence[Tensor], places: Tensor | None = None) -> Tensor:
    _check_jpegs(jpegs)
    return jpegs[0].new_empty((_count_of(jpegs, places), 2), dtype=torch.int32)


@torch.library.register_fake("tarpeg::decode_batch")  # type: ignore[untyped-decorator]
def _fake_decode_batch(
    jpegs: Sequence[Tensor],
    boxes: Tensor,
    height: int,
    width: int,
    flip: Tensor | None,
    interpolation: str,
    antialias: bool,
    exact: bool,
    max_pixels: int,
    threads: int,
    channels: int = 3,
) -> tuple[Tensor, Tensor]:
    _check_batch(jpegs, boxes, flip)
    images = boxes.new_empty((len(jpegs), height, width, channels), dtype=torch.uint8).permute(0, 3, 1, 2)
    return images, boxes.new_empty((len(jpegs),), dtype=torch.int32)


@torch.library.register_fake("tarpeg::decode_sizes_out")  # type: ignore[untyped-decorator]
@torch.library.register_fake("tarpeg::decode_batch_out")  # type: ignore[untyped-decorator]
def _fake_decode_batch_out(
    jpegs: Sequence[Tensor], boxes: Tensor, flip: Tensor | None, *options: object
) -> Tensor:
    _check_batch(jpegs, boxes, flip)
    return boxes.new_empty((len(jpegs),), dtype=torch.int32)
