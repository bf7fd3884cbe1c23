"""Image formats: their extensions, packed images, and images that are not JPEG, which Pillow decodes."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError, features

from ..errors import DecodeError, Status

if TYPE_CHECKING:
    from torch import Tensor

# In the order of preference: if a sample has several of these members, the first one is its image. "tpj" is
# the first, so that a mask in another format is not taken for the image once that is packed.
# "avif" is one for any Pillow, so that all machines have the same samples; decoding may fail with the remedy.
IMAGE_EXTENSIONS = ("tpj", "jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "ppm", "gif", "avif")
MEMBER_OF = {"jpe": "jpg", "jfif": "jpg", "dib": "bmp", **dict.fromkeys(("pgm", "pbm", "pnm"), "ppm")}
"""Other extensions of image files in folders, and the member that such a file becomes in a shard."""
FILE_EXTENSIONS = (*IMAGE_EXTENSIONS, *MEMBER_OF)
NOT_READ = ("heic", "heif", "jxl", "jp2")
"""Extensions of images that are not read."""
# Pillow's other plugins are unsafe for untrusted data: EPS runs Ghostscript on it.
_ALL_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "TIFF", "PPM", "GIF", "AVIF")
_HAS_AVIF = "avif" in features.modules and features.check("avif")
PILLOW_FORMATS = _ALL_FORMATS if _HAS_AVIF else _ALL_FORMATS[:-1]
# Offset and first bytes of formats, for messages: Pillow opens a file only as one of PILLOW_FORMATS.
_MAGIC = (
    *((0, b"\x89PNG", "PNG"), (0, b"RIFF", "WEBP"), (0, b"BM", "BMP"), (0, b"GIF8", "GIF")),
    *((0, b"II*\0", "TIFF"), (0, b"MM\0*", "TIFF"), *((0, b"P%d" % kind, "PPM") for kind in range(1, 7))),
    *(
        (4, b"ftypavif", "AVIF"),
        (4, b"ftypavis", "AVIF"),
        *((4, b"ftyp" + b, "HEIC") for b in (b"hei", b"hev")),
    ),
    *((4, b"ftypmif1", "HEIC or AVIF"), (4, b"jP  ", "JPEG 2000"), (0, b"\xffO\xffQ", "JPEG 2000")),
    *((4, b"JXL ", "JPEG XL"), (0, b"\xff\n", "JPEG XL"), (0, b"\0\0\1\0", "ICO"), (0, b"8BPS", "Photoshop")),
    *((0, b"%!PS", "PostScript"), (0, b"v/1\1", "OpenEXR"), (0, b"qoif", "QOI"), (0, b"DDS ", "DDS")),
)
JPEG = bytes([0xFF, 0xD8, 0xFF])
"""First bytes of every JPEG."""
PACKED, PACKED_VERSION = b"\x89TPJ", 1
"""First bytes of every packed image, and the version that this tarpeg writes."""
NATIVE = (JPEG, PACKED)
"""First bytes of files that are not decoded by Pillow, even if they are damaged."""
_OTHER_JPEG = (  # as in native/base/status.cpp
    "a kind of JPEG that is not supported, such as 12 bits, lossless, JPEG-LS or two components: convert it "
    "to an ordinary JPEG or PNG"
)
_SIGNED = (
    "its samples are signed, 32-bit or floating-point numbers, whose black and white are not defined: "
    "convert it to 8 or 16 bits"
)
# Tags of TIFF: bits per sample; 1: without compression; 0: 0 is white; 2: the lowest bit is first; 2: a plane
# per channel; 2: signed, 3: floating-point.
_BITS, _COMPRESSION, _WHITE, _FILL_ORDER, _PLANES, _SAMPLE_FORMAT = 258, 259, 262, 266, 284, 339
_WIDTH, _HEIGHT, _YCBCR = 256, 257, 6  # the last is a colour space
_STRIPS, _ROWS, _COUNTS = 273, 278, 279  # places of strips, rows and bytes of each
# The passes of an interlaced PNG: its first column and row, and the steps to the next.
_PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
_PIECE = 1 << 20  # bytes of rows
MAX_PIXELS = 1 << 26
"""Default bound of the loader on images that Pillow decodes whole, with up to 22 bytes per pixel."""
# Also a warning that the user's filters turn into an error.
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)
BROKEN = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError, ArithmeticError, RuntimeError),
    *(AttributeError, AssertionError, MemoryError, BufferError, NameError, ImportError, StopIteration),
    *(struct.error, zlib.error, Warning, *_TOO_LARGE),
)
"""What Pillow raises for images that it cannot decode: damage reaches the internals of its plugins."""


def member_extension(path: str) -> str:
    """Return the extension of an image file in a shard: its own in lower case, or ``jpg`` of a ``.jfif``."""
    own = PurePath(path).suffix[1:].lower()
    return MEMBER_OF.get(own, own)


def image_extension(extensions: Collection[str]) -> str | None:
    """Return the extension of the member that is a sample's image; None without an image."""
    return next((extension for extension in IMAGE_EXTENSIONS if extension in extensions), None)


def is_image_name(extension: str) -> bool:
    """Whether a member with that extension is an image by its name: "jpg", or "left.jpg"."""
    return extension.rpartition(".")[2] in IMAGE_EXTENSIONS


def first_image(extensions: Collection[str]) -> str | None:
    """Return ``image_extension``, or else the first that ends in one, such as "left.jpg"."""
    own = image_extension(extensions)
    return own if own is not None else next(filter(is_image_name, extensions), None)


def as_tensor(content: bytes) -> Tensor:
    """Copy bytes into a tensor, uint8 ``[n]``, that may be written to."""
    import torch  # here, because the torch-free part of the package uses the tables above

    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


class RefusedError(DecodeError):
    """An image that Pillow cannot decode, that is too large, or that does not convert to 8 bits."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(status, reason)  # all arguments, for pickle
        self.status, self.reason = status, reason

    def __str__(self) -> str:
        return self.reason


def too_large(height: int, width: int, max_pixels: int) -> str:
    """Return the reason why an image of that size is refused."""
    return f"{height} x {width} pixels are more than max_pixels={max_pixels}"


def later_version(content: Tensor | bytes | memoryview) -> str:
    """Return the reason why a packed image, uint8 ``[n]`` or bytes, of a later version is refused."""
    version = int(content[4]) + 256 * int(content[5])
    return f"a packed image of version {version}, made by a later tarpeg: update tarpeg"


def native_reason(code: int, content: Tensor | bytes) -> str:
    """Return why the native decoder refuses a file, uint8 ``[n]`` or bytes; "" if the status is all.

    Args:
        code: The ``Status``.
        content: The file.
    """
    if code == Status.LATER_VERSION:
        return later_version(content)
    if code == Status.UNSUPPORTED and bytes(content[: len(JPEG)]) == JPEG:
        return _OTHER_JPEG
    return ""


def check_packed(content: bytes | memoryview) -> None:
    """Raise ``RefusedError`` for a packed image of a later version, or with a wrong checksum."""
    if int.from_bytes(content[4:6], "little") > PACKED_VERSION:
        raise RefusedError(Status.LATER_VERSION, later_version(content))
    if zlib.crc32(content[12:]) != int.from_bytes(content[8:12], "little"):
        raise RefusedError(Status.CORRUPT, "a packed image whose checksum differs: it is damaged")


def unpacked(content: bytes) -> bytes:
    """Return a packed image as an ordinary JPEG; any other file as it is. Raises ``RefusedError``.

    The checksum is compared: a damaged image must not become a clean one.
    """
    if not content.startswith(PACKED):
        return content
    from ..ops import decode  # loads the operators: only for a packed image

    check_packed(content)
    try:
        return decode.unpack_jpeg(as_tensor(content)).numpy().tobytes()
    except DecodeError as error:
        raise RefusedError(Status.CORRUPT, str(error)) from error


def open_upright(content: bytes, max_pixels: int | None = None) -> Image.Image:
    """Decode an image of PILLOW_FORMATS (of several frames the first): upright, at most 8 bits per sample.

    A packed image is decoded as the JPEG of the same coefficients.

    Samples of 16 bits keep the upper 8, as Pillow does by itself if there are several per pixel. Raises
    ``RefusedError``.
    """
    content = unpacked(content)
    with refusing(content), Image.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
        if max_pixels is not None and image.width * image.height > max_pixels:
            raise RefusedError(Status.TOO_LARGE, too_large(image.height, image.width, max_pixels))
        _check_tiff(image)
        if image.format == "PNG":
            _check_rows(content)
            _check_number_of_rows(image, content)
        is_wide = _is_wide(image)
        if image.mode in ("I", "F") and not is_wide:
            raise RefusedError(Status.UNSUPPORTED, _SIGNED)
        ImageOps.exif_transpose(image, in_place=True)
        image.info.pop("transparency", None)  # changes no colour, and Pillow warns of one with levels
        if is_wide:
            return _upper_8_bits(image)
        if image.mode == "La":  # gray, multiplied by its alpha: Pillow converts it to LA only
            return image.convert("LA")
        return to_rgb(image) if image.mode == "LAB" else image  # which becomes gray by RGB only


def open_values(content: bytes) -> np.ndarray:
    """Decode a mask, upright: numbers of its palette or gray levels, [H, W], or colours, [H, W, 3].

    Gray levels of 16 bits are kept. Raises ``RefusedError``.
    """
    with refusing(content), Image.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            raise RefusedError(Status.TOO_LARGE, too_large(image.height, image.width, MAX_PIXELS))
        if image.format in ("JPEG", "AVIF"):
            raise RefusedError(Status.UNSUPPORTED, f"{image.format} changes values, masks must be lossless")
        _check_tiff(image)
        is_wide = _is_wide(image)
        if not is_wide and image.mode not in ("1", "L", "P", "RGB", "RGBA"):
            raise RefusedError(
                Status.UNSUPPORTED, f"its pixels are {image.mode}, neither numbers nor colours"
            )
        if image.format == "PNG":
            _check_rows(content)
        largest = _largest_number(image)
        if image.format == "PNG":
            _check_number_of_rows(image, content)
        ImageOps.exif_transpose(image, in_place=True)
        values = np.asarray(image)
        if largest is not None:
            values = np.rint(values * (largest / (65535 if is_wide else 255)))
        values = values.astype(np.uint16 if is_wide else np.uint8, copy=False)
        return values[..., :3] if values.ndim == 3 else values


def _check_tiff(image: Image.Image) -> None:
    """Raise ``RefusedError`` for a TIFF whose samples Pillow 13 takes for others, or that lacks some."""
    tags = getattr(image, "tag_v2", {})
    if {*tags.get(_SAMPLE_FORMAT, ())} - {1, 4}:  # unsigned, undefined
        raise RefusedError(Status.UNSUPPORTED, _SIGNED)
    is_plain = tags.get(_COMPRESSION, 1) == 1 and tags.get(_PLANES, 1) == 2
    if tags.get(_COMPRESSION, 1) == 1 and _STRIPS in tags:
        # Pillow leaves the rows of strips that are missing at zero, and reads beyond the end of a short one.
        width, height = tags[_WIDTH], tags[_HEIGHT]  # as stored: those of Pillow are upright
        bits, rows = tags.get(_BITS, (1,)), min(tags.get(_ROWS) or height, height)
        strips = -(-height // rows) * (len(bits) if is_plain else 1)
        last = (height - (strips - 1) * rows) * -(-width * sum(bits) // 8)
        has_short = (
            strips > 1
            and not is_plain
            and tags.get(_WHITE) != _YCBCR
            and 0 < tags.get(_COUNTS, (0,))[-1] < last
        )
        if len(tags[_STRIPS]) < strips or has_short:
            raise RefusedError(Status.TRUNCATED, "a TIFF with fewer rows than its header says")
    if is_plain and ({*tags.get(_BITS, (1,))} != {8} or tags.get(_WHITE) == 0 or tags.get(_FILL_ORDER) == 2):
        raise RefusedError(
            Status.UNSUPPORTED,
            "it is a TIFF without compression, in a plane per channel, of other than 8 bits, which Pillow "
            "misreads: compress it, or save the channels together",
        )


def _largest_number(image: Any) -> int | None:
    """Return the largest number that a file may have, if Pillow stretches its numbers to 8 or 16 bits."""
    (decoder, *_, arguments), *_ = image.tile or [("", "")]
    if isinstance(arguments, tuple) and arguments:
        raw, largest = arguments[0], arguments[-1]
    else:
        raw, largest = arguments, arguments
    if decoder not in ("ppm", "ppm_plain") or image.mode == "1":
        return {"L;2": 3, "L;4": 15}.get(str(raw)[:3])
    if image.mode == "RGB" and largest > 255:
        raise RefusedError(Status.UNSUPPORTED, f"its colours have levels up to {largest}, more than 8 bits")
    return int(largest)


def _check_rows(content: bytes) -> None:
    """Raise ``RefusedError`` for a PNG whose rows are damaged: Pillow does not compare their checksums.

    Of all chunks, because a damaged type hides that one has rows.
    """
    for kind, data, checksum in _chunks(content):
        if checksum is not None and zlib.crc32(data, zlib.crc32(kind)) != checksum:
            raise RefusedError(Status.CORRUPT, "a PNG whose checksum differs: it is damaged")


def _check_number_of_rows(image: Image.Image, content: bytes) -> None:
    """Raise ``RefusedError`` for a PNG with fewer rows than its header says, which Pillow leaves at zero.

    Loads the image.
    """
    image.load()
    is_interlaced = bool(image.info.get("interlace"))
    last = image.crop((0, image.height - 1, image.width, image.height))
    if any(last.tobytes()) and not is_interlaced:
        return  # nearly all photographs: to count the rows takes half the time of decoding
    chunks = [*_chunks(content)]
    head = next(data for kind, data, _ in chunks if kind == b"IHDR")
    width, height, depth, colour = struct.unpack_from(">IIBB", head)
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    left, rows = 0, zlib.decompressobj()
    for x, y, across, down in _PASSES if is_interlaced else [(0, 0, 1, 1)]:
        columns, lines = -(-(width - x) // across), -(-(height - y) // down)
        left += lines * (1 + -(-columns * bits // 8)) * (columns > 0 and lines > 0)
    for data in (data for kind, data, _ in chunks if kind == b"IDAT"):
        rest: bytes | memoryview = data
        while len(rest) and left > 0 and not rows.eof:
            left -= len(rows.decompress(rest, _PIECE))
            rest = rows.unconsumed_tail
    # Of rows that are too long, the rest is not decompressed: it may be a million times as large.
    if left > 0 and left > len(rows.flush()):
        raise RefusedError(Status.TRUNCATED, "a PNG with fewer rows than its header says")


def _chunks(content: bytes) -> Iterator[tuple[bytes, memoryview, int | None]]:
    """Yield the chunks of a PNG: type, data and checksum, which is None if the file ends before it."""
    at, view = 8, memoryview(content)
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        kind, end = content[at + 4 : at + 8], at + 8 + length
        is_whole = end + 4 <= len(content)
        yield kind, view[at + 8 : end], struct.unpack_from(">I", content, end)[0] if is_whole else None
        if kind == b"IEND":
            return
        at = end + 4


def _is_wide(image: Image.Image) -> bool:
    """Whether an image is gray of 16 bits, which Pillow opens as I;16 or, by its version, as I."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))


@contextlib.contextmanager
def refusing(content: bytes = b"") -> Iterator[None]:
    """Raise ``RefusedError`` for whatever Pillow raises.

    Args:
        content: The file that is opened.
    """
    try:
        yield
    except RefusedError:
        raise
    except _TOO_LARGE as error:
        raise RefusedError(Status.TOO_LARGE, f"{error} (PIL.Image.MAX_IMAGE_PIXELS)") from error
    except UnidentifiedImageError as error:
        raise RefusedError(*_unidentified(content)) from error
    except BROKEN as error:
        # One line, without addresses: manifests have the reasons, and are the same for every build.
        words = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "it", " ".join(str(error).split())) or type(error).__name__
        raise RefusedError(Status.CORRUPT, f"Pillow cannot decode it: {words[:200]}") from error


def _unidentified(content: bytes) -> tuple[Status, str]:
    """Return status and reason of an image that has none of PILLOW_FORMATS, or a damaged header."""
    name = format_name(content)
    if content.lstrip().startswith(b"<"):
        return Status.NOT_AN_IMAGE, "it looks like HTML or XML (a failed download?)"
    if name is None:
        return Status.NOT_AN_IMAGE, f"it begins with {content[:12]!r}, as no supported format does"
    if name == "TIFF":  # of so many kinds that another one is as likely as damage
        return (
            Status.UNSUPPORTED,
            "it is a TIFF of a kind that Pillow cannot read, or damaged: convert it to PNG",
        )
    if name in PILLOW_FORMATS:
        return Status.CORRUPT, f"its {name} header is damaged"
    if name in _ALL_FORMATS:
        return Status.UNSUPPORTED, "it is AVIF, which this Pillow cannot decode: install pillow>=11.3"
    return Status.UNSUPPORTED, f"it is {name}, which is not supported: convert it to JPEG or PNG"


def format_name(content: bytes) -> str | None:
    """Return the name of a file's format by its first bytes, such as "PNG"; None for JPEG and the unknown."""
    return next((name for offset, magic, name in _MAGIC if content.startswith(magic, offset)), None)


def is_animated(content: bytes) -> bool:
    """Return whether a file, neither JPEG nor packed, has several frames or pages."""
    if content.startswith(NATIVE):
        return False
    try:
        with Image.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
            return bool(getattr(image, "is_animated", False))
    except BROKEN:
        return False  # a damaged second frame is of no interest


def upright_size(content: bytes, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return (height, width), upright, by the header of a file that Pillow decodes; (0, 0) for others."""
    if content.startswith(NATIVE):
        return 0, 0
    try:
        with Image.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
            if image.width * image.height > max_pixels:
                return 0, 0
            if image.getexif().get(0x0112, 1) != 1:
                ImageOps.exif_transpose(image, in_place=True)  # a TIFF may be upright already
            return image.height, image.width
    except BROKEN:
        return 0, 0


def header_sizes(files: Sequence[Tensor]) -> npt.NDArray[np.int32]:
    """Return (height, width), upright, of encoded images by their headers: [B, 2]; (0, 0): unknown."""
    from ..ops.decode import image_sizes  # here, because it loads the operators

    sizes: npt.NDArray[np.int32] = image_sizes(files).numpy()
    for row in np.flatnonzero(sizes[:, 0] == 0).tolist():
        sizes[row] = upright_size(files[row].numpy().tobytes())
    return sizes


def open_rgb(content: bytes) -> Image.Image:
    """Decode an image as ``open_upright``, to RGB, with its metadata in ``info``."""
    return to_rgb(open_upright(content))


def to_rgb(image: Image.Image, *, gray: bool = False) -> Image.Image:
    """Convert to RGB, with the metadata of the source. Raises ``RefusedError``.

    Args:
        image: Decoded by ``open_upright``.
        gray: Convert to gray first.
    """
    with refusing():
        # The only mode whose gray is not that of its RGB pixels, which a cache keeps.
        part = image.convert("RGB") if image.mode == "YCbCr" else image
        if gray:
            part = part.convert("L")
        if part.mode == "RGB":
            return part
        converted = part.convert("RGB")
    converted.info = image.info  # Pillow adds a profile with the time of day to an image that was LAB
    return converted


def of_8_bits(image: Image.Image) -> Image.Image:
    """Return an image that somebody else has opened with 8 bits per sample at most, as ``open_upright``."""
    return _upper_8_bits(image) if _is_wide(image) else image


def _upper_8_bits(image: Image.Image) -> Image.Image:
    tags = getattr(image, "tag_v2", {})
    levels = (np.asarray(image) >> (4 if tags.get(_BITS) == (12,) else 8)).astype(np.uint8)
    return Image.fromarray(255 - levels if tags.get(_WHITE) == 0 else levels)


def ppm(image: Image.Image) -> bytes:
    """Encode an RGB image as a binary PPM."""
    return b"P6 %d %d 255\n" % image.size + image.tobytes()
