"""The codecs of a cache: Tiled, Packed, Resized, Raw, Original. ``decode_batch`` reads all their images.

A codec of your own is a frozen dataclass with ``encode``, see ``Codec``.

Example:
    >>> [name for name in ("Tiled", "Packed", "Resized", "Raw") if hasattr(tarpeg.codecs, name)]
    ['Tiled', 'Packed', 'Resized', 'Raw']
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image

from ..errors import DecodeError, Status, check_integer
from ..shards import pillow

RAW = "stored raw"  # reasons why an image has no tiles
KEPT = "kept as they are"
NOT_PACKED = "tiled JPEGs: CMYK, RGB, or coefficients that do not fit"  # why an image of Packed is not packed
_SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")
_BASELINE = (0xC0, 0xC1)
_OTHER_FRAMES = (0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))
_DRI, _SOS, _APP10 = 0xDD, 0xDA, 0xEA
_INDEX = b"tarpeg\0\1"  # signature and version of the index of rows, see docs/formats.md
_PACKED_HEADER = 40  # bytes


class Encoded(NamedTuple):
    """An image as the cache stores it.

    Attributes:
        data: Bytes of the file.
        extension: Extension of the member, one of tpj, jpg, jpeg, png, webp, bmp, tif, tiff, ppm, gif, avif.
        tile: Width of its tiles in pixels; None if it has none, or is not packed by ``Packed``.
        untiled: Reason, in a few words, if ``tile`` is None.
    """

    data: bytes
    extension: str
    tile: int | None
    untiled: str


class Codec(Protocol):
    """A frozen dataclass of plain values, which go into the manifest and the fingerprint of a cache.

    One that reduces images has a field ``shorter``: caches with it refuse targets in pixels.
    """

    def encode(self, data: bytes, extension: str) -> Encoded:
        """Rewrite one image file of that extension, in lower case, without a dot.

        Raises DecodeError if it cannot be decoded: the sample is left out. Any other error ends the build.
        """


@dataclass(frozen=True)
class Tiled:
    """Rewrite JPEGs losslessly into tiles, see ``tarpeg.tile_jpeg``.

    A JPEG that cannot be tiled with the same pixels is kept as it is. Other formats keep the pixels that a
    loader would see, as binary PPM: upright RGB without alpha, of several frames the first, of 16-bit
    samples the upper 8 bits. PPM has three bytes per pixel and no colour profile.

    Args:
        tile: Desired width of the tiles in pixels.
        quality: JPEG quality, 1 to 100, to which other formats are encoded, with a loss, instead; an RGB
            colour profile is kept.
        subsampling: Chroma subsampling of these: "4:4:4", "4:2:2" or "4:2:0".

    Example:
        >>> report = tarpeg.build_cache(shards, tmp, tarpeg.Tiled(tile=64), executor=0)
        >>> sum(report.tiles.values())
        32
    """

    tile: int = 32
    quality: int | None = None
    subsampling: str = "4:2:0"

    def __post_init__(self) -> None:
        check_integer("tile", self.tile, 1, 65535)
        _check_jpeg_settings(90 if self.quality is None else self.quality, self.subsampling)

    def encode(self, data: bytes, extension: str) -> Encoded:
        """Rewrite one image file. Raises DecodeError if it cannot be decoded."""
        data = pillow.unpacked(data)
        if data.startswith(pillow.JPEG):
            return _tile(data, extension, self.tile)
        image = _decode(data)
        if self.quality is None:
            return Encoded(pillow.ppm(image), "ppm", None, RAW)
        return _tile(_to_jpeg(image, self.quality, self.subsampling), extension, self.tile)


@dataclass(frozen=True)
class Resized:
    """Reduce images to a shorter side of at most ``shorter`` pixels, as tiled JPEGs; never enlarge.

    Pillow reduces the upright image, antialiased (Lanczos, from all of its pixels). Gray stays gray; an RGB
    colour profile is kept, other metadata is dropped. Smaller JPEGs are tiled without loss; smaller images of
    other formats are converted to JPEG. Other members stay as they are, so that loaders refuse targets in
    pixels, such as ``Boxes``.

    Args:
        shorter: Largest shorter side in pixels.
        quality: JPEG quality, 1 to 100.
        tile: Desired width of the tiles in pixels.
        subsampling: Chroma subsampling: "4:4:4", "4:2:2" or "4:2:0".

    Example:
        >>> report = tarpeg.build_cache(shards, tmp, tarpeg.Resized(shorter=96), executor=0)
        >>> report.codec, report.samples
        ('Resized', 32)
    """

    shorter: int
    quality: int = 90
    tile: int = 32
    subsampling: str = "4:2:0"

    def __post_init__(self) -> None:
        check_integer("shorter", self.shorter, 1, 65535)
        check_integer("tile", self.tile, 1, 65535)
        _check_jpeg_settings(self.quality, self.subsampling)

    def encode(self, data: bytes, extension: str) -> Encoded:
        """Rewrite one image file. Raises DecodeError if it cannot be decoded."""
        data = pillow.unpacked(data)
        image = _decode(data)
        reduced = _reduce(image, self.shorter)
        if reduced is image and data.startswith(pillow.JPEG):
            return _tile(data, extension, self.tile)
        return _tile(_to_jpeg(reduced, self.quality, self.subsampling), extension, self.tile)


@dataclass(frozen=True)
class Packed:
    """Store the coefficients of JPEGs without entropy coding, in tiles (``.tpj``): see ``tarpeg.pack_jpeg``.

    Lossless, for 1.3 to 1.5 times the bytes: ``unpack_jpeg`` and ``Tiled`` make ordinary JPEGs of them again.
    A JPEG that cannot be packed exactly is stored as ``Tiled`` stores it, and so are other formats.

    Args:
        shorter: Reduce images to a shorter side of at most that many pixels first, as ``Resized`` does; not
            for targets in pixels, such as ``Boxes``.
        quality: JPEG quality, 1 to 100, of reduced images and other formats before they are packed; None is
            90 with ``shorter``. Without it, None keeps the pixels of other formats, as PPM.
        tile: Desired width of the tiles in pixels.
        subsampling: Chroma subsampling of reduced images and other formats: "4:4:4", "4:2:2" or "4:2:0".

    Example:
        >>> report = tarpeg.build_cache(shards, tmp, tarpeg.Packed(), executor=0)
        >>> report.codec, sum(report.tiles.values())
        ('Packed', 32)
    """

    shorter: int | None = None
    quality: int | None = None
    tile: int = 32
    subsampling: str = "4:2:0"

    def __post_init__(self) -> None:
        if self.shorter is not None:
            check_integer("shorter", self.shorter, 1, 65535)
        check_integer("tile", self.tile, 1, 65535)
        _check_jpeg_settings(90 if self.quality is None else self.quality, self.subsampling)
        if self.shorter is not None and self.quality is None:
            object.__setattr__(self, "quality", 90)  # the manifest has the number

    def encode(self, data: bytes, extension: str) -> Encoded:
        """Rewrite one image file. Raises DecodeError if it cannot be decoded."""
        if self.shorter is not None or not data.startswith(pillow.NATIVE):
            image = _decode(pillow.unpacked(data))
            reduced = image if self.shorter is None else _reduce(image, self.shorter)
            if reduced is not image or not data.startswith(pillow.NATIVE):
                if self.quality is None:
                    return Encoded(pillow.ppm(reduced), "ppm", None, RAW)
                data = _to_jpeg(reduced, self.quality, self.subsampling)
        return _pack(data, extension, self.tile)


@dataclass(frozen=True)
class Raw:
    """Store the pixels, upright RGB, as binary PPM: large files without any decoding.

    PPM cannot contain a colour profile or other metadata.

    Args:
        shorter: Reduce images to a shorter side of at most that many pixels, as ``Resized`` does; not for
            targets in pixels, such as ``Boxes``.

    Example:
        >>> report = tarpeg.build_cache(shards, tmp, tarpeg.Raw(shorter=96), executor=0)
        >>> report.samples
        32
    """

    shorter: int | None = None

    def __post_init__(self) -> None:
        if self.shorter is not None:
            check_integer("shorter", self.shorter, 1, 65535)

    def encode(self, data: bytes, extension: str) -> Encoded:
        """Rewrite one image file. Raises DecodeError if it cannot be decoded."""
        image = _decode(pillow.unpacked(data))
        image = image if self.shorter is None else _reduce(image, self.shorter)
        return Encoded(pillow.ppm(image.convert("RGB")), "ppm", None, RAW)


@dataclass(frozen=True)
class Original:
    """Keep every file as it is: pack a folder, or repack shards, without a change to the images.

    A cache of original files decodes no faster than its source. Files are not decoded while they are packed:
    ``verify_cache`` finds those that are damaged, and ``ShardDataModule(on_error=...)`` applies to them.

    Example:
        >>> report = tarpeg.build_cache(folder, tmp, tarpeg.Original(), executor=0)
        >>> report.samples, report.classes
        (16, ['cat', 'dog'])
    """

    def encode(self, data: bytes, extension: str) -> Encoded:
        """Return the file. Its tiles are counted, if it has some already."""
        tile = tile_width(data)[0] if data.startswith((pillow.JPEG, pillow.PACKED)) else None
        return Encoded(data, extension, tile, "" if tile else KEPT)


def _tile(data: bytes, extension: str, tile: int) -> Encoded:
    from ..ops import decode  # loads the operators: not when a codec is only constructed

    source = pillow.as_tensor(data)
    return _stored(data, source, decode.tile_jpeg(source, tile), extension)


def _pack(data: bytes, extension: str, tile: int) -> Encoded:
    from ..ops import decode

    source = pillow.as_tensor(data)
    if data.startswith(pillow.PACKED):  # it stays as it is, with its own tiles
        pillow.check_packed(data)
        _check_decodes(source)
        return Encoded(data, "tpj", *tile_width(data))
    packed = decode.pack_jpeg(source, tile)
    if bytes(packed[: len(pillow.PACKED)].tolist()) == pillow.PACKED:
        data = packed.numpy().tobytes()
        return Encoded(data, "tpj", *tile_width(data))
    stored = _stored(data, source, packed, extension)
    return stored._replace(tile=None, untiled=stored.untiled or NOT_PACKED)


def _stored(data: bytes, source: torch.Tensor, result: torch.Tensor, extension: str) -> Encoded:
    """Return a JPEG as it is stored: ``result`` of ``tile_jpeg``, which may be the source."""
    content = data if torch.equal(result, source) else result.numpy().tobytes()
    width, untiled = tile_width(content)
    if width is None:
        _check_decodes(source)
    return Encoded(content, extension if extension in ("jpg", "jpeg") else "jpg", width, untiled)


def _check_decodes(jpeg: torch.Tensor) -> None:
    """Raise DecodeError unless the whole image decodes: its pixels were not decoded so far."""
    from ..ops import decode

    height, width = decode.image_sizes([jpeg])[0].tolist()
    if not height:
        decode.decode_crop(jpeg, 0, 0, 1, 1)  # raises the reason
    box = torch.tensor([[0, 0, height, width]], dtype=torch.int32, device="cpu")
    _, status = decode.decode_batch([jpeg], box, 1, interpolation="nearest")
    if int(status):
        plain = f"the image is {Status(int(status)).name.lower().replace('_', ' ')}"
        raise DecodeError(pillow.native_reason(int(status), jpeg) or plain)


def _decode(data: bytes) -> Image.Image:
    """Decode an image: upright, RGB or (for a gray JPEG) L, with its colour profile in ``info``."""
    from ..ops import decode

    if not data:
        raise DecodeError("the file is empty")
    if not data.startswith(pillow.JPEG):
        return pillow.open_rgb(data)
    # Our decoder: the same pixels as Pillow's, but damage that Pillow ignores is an error.
    jpeg = pillow.as_tensor(data)
    height, width = decode.image_sizes([jpeg])[0].tolist()
    if not height:
        _check_decodes(jpeg)
    pixels = decode.decode_crop(jpeg, 0, 0, height, width)
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    gray, profile = False, None
    with (
        contextlib.suppress(*pillow.BROKEN),
        Image.open(io.BytesIO(data), formats=pillow.PILLOW_FORMATS) as header,
    ):
        gray, profile = header.mode == "L", header.info.get("icc_profile")
    image = image.getchannel(0) if gray else image
    image.info = {"icc_profile": profile}
    return image


def _reduce(image: Image.Image, shorter: int) -> Image.Image:
    shortest = min(image.size)
    if shortest <= shorter:
        return image
    width, height = (max(1, round(side * shorter / shortest)) for side in image.size)
    reduced = image.resize((width, height), Image.Resampling.LANCZOS)
    reduced.info = image.info
    return reduced


def _to_jpeg(image: Image.Image, quality: int, subsampling: str) -> bytes:
    profile = image.info.get("icc_profile") or b""
    # The profile of a CMYK or gray source does not describe the RGB that it was converted to.
    keep = image.mode == "RGB" and profile[16:20] == b"RGB "
    buffer = io.BytesIO()
    try:
        options = {"icc_profile": profile if keep else None, "exif": b"", "comment": b""}
        image.save(buffer, "JPEG", quality=quality, subsampling=subsampling, **options)
    except (OSError, ValueError) as error:
        raise DecodeError(f"{image.width} x {image.height} pixels do not fit into a JPEG: {error}") from error
    return buffer.getvalue()


def tile_width(jpeg: bytes) -> tuple[int | None, str]:
    """Return the width of an image's tiles, in pixels, from its header; or None and the reason."""
    if jpeg.startswith(pillow.PACKED) and len(jpeg) > _PACKED_HEADER:
        factors = [sampling >> 4 for sampling in jpeg[21 : 21 + 4 * jpeg[7] : 4]]
        return int.from_bytes(jpeg[16:18], "little") * 8 * (max(factors) if len(factors) > 1 else 1), ""
    interval, columns, across = 0, 0, 0
    for marker, body, _ in _segments(jpeg):
        if marker == _DRI:
            interval = int.from_bytes(body[:2], "big")
        elif marker in _BASELINE:
            width, count = int.from_bytes(body[3:5], "big"), sum(body[5:6])
            factors = [factor >> 4 for factor in body[7 : 7 + 3 * count : 3]]
            if not count or len(factors) < count or not all(factors):
                return None, "its header is damaged"
            across = 8 * max(factors) if count > 1 else 8
            columns = -(-width // across)
        elif marker in _OTHER_FRAMES:
            return None, "arithmetic (which hides damage), or progressive and no baseline file is equal"
    if not interval or not columns or columns % interval:
        return None, "its tables, samplings, coefficients or padding fit into no tiled file"
    return interval * across, ""


def row_index_fits(jpeg: bytes) -> bool:
    """Whether the index of a tiled JPEG's rows holds the places of its restart markers; True without one."""
    start, index = 0, b""
    for marker, body, start in _segments(jpeg):  # noqa: B007
        index = body if marker == _APP10 and body.startswith(_INDEX) else index
    if not index:
        return True
    scan = np.frombuffer(jpeg, np.uint8)[start:]
    codes = np.where(scan[:-1] == 0xFF, scan[1:], 0)
    ends = (codes == 0xD9).nonzero()[0][:1]
    rows = ((codes >= 0xD0) & (codes <= 0xD7)).nonzero()[0] + 2
    found = np.frombuffer(index[len(_INDEX) : len(index) // 4 * 4], ">u4")
    per_row = max(1, (len(rows) + 1) // max(1, len(found)))
    return np.array_equal(found, [*ends, *rows[per_row - 1 :: per_row]])


def _segments(jpeg: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield the marker, the body and the end of each segment of a header, the last one SOS."""
    at, marker = 2, 0
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF and marker != _SOS:
        marker, length = jpeg[at + 1], int.from_bytes(jpeg[at + 2 : at + 4], "big")
        if marker == 0xFF:
            at += 1
            continue
        yield marker, jpeg[at + 4 : at + 2 + length], at + 2 + length
        at += 2 + length


def _check_jpeg_settings(quality: int, subsampling: str) -> None:
    check_integer("quality", quality, 1, 100)
    if subsampling not in _SAMPLINGS:
        raise ValueError(f"subsampling={subsampling!r} must be one of {', '.join(_SAMPLINGS)}")
