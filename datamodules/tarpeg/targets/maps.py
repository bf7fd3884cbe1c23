"""Maps of floats: a number per pixel beside an image, such as its depth."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from ..errors import ShardError, similar
from ..sampling.geometry import Int32, View
from ..sampling.rng import Float64, Int64
from ..shards import pillow
from ..shards.source import Source, missing, plain, read_pictures, where_of
from .lost import lose
from .masks import MODES, places_of, values_in
from .moved import dicts_of
from .protocols import IMAGE_FIELDS, Fields

Values = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
_MODES = ("bilinear", *MODES)


@dataclass(frozen=True)
class FloatMap:
    """A map with a number per pixel, such as depth, moved with its image, for ``Split(targets=...)``.

    A batch is ``(images, maps)``: float32 [B, H, W]. In a dict or list with other targets, the dict of each
    image has it under ``name``, float32 [H, W].

    The member is a PNG with a gray level per pixel, of up to 16 bits (or another lossless format that Pillow
    reads), or an array [H, W] of numpy, ``.npy``, as large as the upright image. The map is the number in the
    file times ``scale``. It is cut out as its image is, and resized as torchvision's ``resize`` does with
    float images, with the same bits. Numbers do not change with the scale of the image, and a flip mirrors
    the map alone. Under an affine of ``Augment`` or of a policy it is interpolated once more, and blended
    with ``fill`` at the edges of the image. What one of several such steps has lost is ``fill``.

    Bilinear interpolation mixes neighbours: a number that stands for a missing measurement, such as a depth
    of 0, spoils those beside it, and NaN makes these NaN too. "nearest-exact" and "nearest", as of ``Masks``,
    do not mix.

    A map of another size than its image, one that cannot be decoded, and one with colours are broken targets:
    ``LoaderConfig(on_error=...)`` decides, as for a broken image.

    Args:
        extension: Of the member: "depth.png", "depth.npy".
        name: Of the map in the dicts of several targets; None: the extension without its last part, "depth",
            or "map".
        scale: By which the numbers in the file are multiplied, such as 1 / 1000 for millimetres.
        fill: Number of the pixels outside of the image, in the unit of the map.
        interpolation: "bilinear", "nearest-exact" or "nearest".
        antialias: Average over all pixels under a pixel of the result, of "bilinear".

    Raises:
        ValueError: For an argument out of range.

    Example:
        >>> import io
        >>> class Scene(tarpeg.Source):
        ...     def __len__(self):
        ...         return 1
        ...     def keys(self, ids):
        ...         return ["scene"] * len(ids)
        ...     def members(self, ids, extension):
        ...         array = io.BytesIO()
        ...         numpy.save(array, numpy.full((400, 600), 2500, numpy.uint16))
        ...         content = {"jpg": jpeg.numpy().tobytes(), "depth.npy": array.getvalue()}
        ...         return [content.get(extension)] * len(ids)
        ...     def extensions(self, id):
        ...         return ["jpg", "depth.npy"]
        >>> depth = tarpeg.FloatMap("depth.npy", scale=1 / 1000)
        >>> split = tarpeg.Split(Scene(), tarpeg.RandomResizedCrop(64), flip=0.5, targets=depth)
        >>> images, maps = next(iter(tarpeg.Loader(split, batch_size=1, workers=0)))
        >>> maps.shape, maps.dtype, maps.unique().tolist()
        (torch.Size([1, 64, 64]), torch.float32, [2.5])
    """

    extension: str
    name: str | None = None
    scale: float = 1.0
    fill: float = 0.0
    interpolation: Literal["bilinear", "nearest-exact", "nearest"] = "bilinear"
    antialias: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.extension, str) or not plain(self.extension) or ":" in self.extension:
            raise ValueError(
                f'extension={self.extension!r} of FloatMap must be one of a member, such as "depth.png"'
            )
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise ValueError(f"name={self.name!r} of FloatMap must be a text, or None")
        if self.fields[0] in IMAGE_FIELDS:
            raise ValueError(
                f"name={self.fields[0]!r} of FloatMap is a field of each image: give another name="
            )
        for name in ("scale", "fill"):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or (name == "scale" and value == 0):
                kind = "a finite number" + " other than 0" * (name == "scale")
                raise ValueError(f"{name}={value!r} of FloatMap must be {kind}")
        if self.interpolation not in _MODES:
            near = similar(self.interpolation, _MODES)
            raise ValueError(
                f"interpolation={self.interpolation!r} of FloatMap must be one of {_MODES}{near}"
            )
        if not isinstance(self.antialias, bool) or (self.antialias and self.interpolation != "bilinear"):
            raise ValueError(
                f"antialias={self.antialias!r} of FloatMap must be True or False, and True is for "
                f"'bilinear', not {self.interpolation!r}"
            )

    @property
    def fields(self) -> Sequence[str]:
        """Name of the map in the dict of an image."""
        return (self.name or plain(self.extension).rpartition(".")[0] or "map",)

    def read(self, source: Source, ids: Int64) -> list[Any]:
        """Read and decode maps of some samples, as the numbers in the file; see ``Target.read``."""
        contents = read_pictures(source, ids, plain(self.extension))
        return [self._read(source, *each) for each in zip(ids.tolist(), contents, strict=True)]

    def _read(self, source: Source, id: int, content: bytes | None) -> Any:
        name = plain(self.extension)
        if content is None:
            return missing(source, id, name, "Give FloatMap(...) the extension of the map.")
        try:
            values = _array_of(content) if name.endswith("npy") else values_in(name, content)
            if values.ndim != 2 or not values.size:
                raise ValueError(f"it is {_shown(values.shape)}, not one number per pixel")
        except (pillow.RefusedError, ValueError) as error:
            reason = error.reason if isinstance(error, pillow.RefusedError) else error
            return ShardError(
                f"{where_of(source, id)}: member {name!r}, a map: {reason}. A map is one number per pixel: a "
                ".npy of floats or integers [H, W], or a PNG of 8 or 16 bits"
            )
        return values

    def misfits(self, values: Sequence[Values], sizes: Int32) -> list[str]:
        """Return a text for each map of another size than its image, "" for the others."""
        return [
            f"member {plain(self.extension)!r}, a map, is {_shown(value.shape)}, and its image {_shown(size)}"
            if size[0] and [*value.shape] != size
            else ""
            for value, size in zip(values, sizes.tolist(), strict=True)
        ]

    def picture_bytes(self, size: tuple[int, int]) -> int:
        """Bytes of the map of one image."""
        return size[0] * size[1] * np.dtype(np.float32).itemsize

    def move_all(self, values: Sequence[Values], view: View) -> Fields:
        """Move the maps of all rows of a view."""
        view.check_known()
        maps = np.full((len(values), *view.size), self.fill, np.float32)
        rows = zip(values, maps, view.boxes.tolist(), view.all_places.tolist(), view.flips, strict=True)
        for value, whole, box, place, is_mirrored in rows:
            part = whole[place[0] : place[0] + place[2], place[1] : place[1] + place[3]]
            resized = self._resized(value, box, (place[2], place[3]))
            part[:] = resized[:, ::-1] if is_mirrored else resized
        if view.affine is not None and len(values):
            maps = self._warped(maps, view.affine)
            lose(maps, view, self.fill)
        return Fields(
            self.fields[0],
            np.zeros(len(view), np.int64),
            np.zeros(0, np.bool_),
            {},
            {},
            view.size,
            {self.fields[0]: maps},
            "float32",
            float(np.float32(self.fill)),
        )

    def _resized(self, value: Values, box: Sequence[int], size: tuple[int, int]) -> Float32:
        """Return what lies under a box, (top, left, height, width), resized."""
        top, left, height, width = box
        scale = np.float32(self.scale)
        if self.interpolation != "bilinear":
            y, x = (
                begin + places_of(length, side, self.interpolation)
                for begin, length, side in ((top, height, size[0]), (left, width, size[1]))
            )
            return value[y[:, None], x].astype(np.float32) * scale
        part = value[top : top + height, left : left + width].astype(np.float32) * scale
        if part.shape == size:
            return part
        given = torch.from_numpy(part)[None, None]
        found: Float32 = interpolate(
            given, size, mode="bilinear", align_corners=False, antialias=self.antialias
        )[0, 0].numpy()
        return found

    def _warped(self, maps: Float32, affine: Float64) -> Float32:
        """Warp maps by matrices of pixel edges; those of the operator count from the centres."""
        from ..ops.augment import warp_affine  # here, because it loads the operators

        shifted = affine.copy()
        shifted[:, :, 2] += affine[:, :, :2].sum(axis=2) * 0.5 - 0.5
        mode: Literal["bilinear", "nearest"] = "bilinear" if self.interpolation == "bilinear" else "nearest"

        def warp(values: Float32, fill: float) -> Float32:
            images, matrices = torch.from_numpy(values)[:, None], torch.from_numpy(shifted)
            found: Float32 = warp_affine(images, matrices, maps.shape[1:], mode, fill)[:, 0].numpy()
            return found

        found, fill = warp(maps, float(self.fill)), np.float32(self.fill)
        if mode == "bilinear" and fill:  # rounded weights do not add up to 1, and users compare with fill
            found[warp((maps != fill).astype(np.float32), 0.0) == 0] = fill
        return found

    def move(self, value: Values, view: View) -> Any:
        """Return the map of one image, [H, W]; see ``Target.move``."""
        return dicts_of([self.move_all([value], view)], 1)[0][self.fields[0]]


_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<type>[<>|](f[248]|[iu][1248]))', "
    rb"'fortran_order': (?P<order>True|False), 'shape': \((?P<shape>\d{1,9},|\d{1,9}(, \d{1,9})+)\), \} *\n",
    re.DOTALL,
)
"""The header of a .npy file as numpy writes it, of plain numbers."""


def _array_of(content: bytes) -> Values:
    """Return the array of a .npy file, without a copy; raises ValueError for one that is broken."""
    file = io.BytesIO(content)
    formats = np.lib.format
    version = formats.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it is of version {version} of numpy's format")
    read = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
    known = _HEADER.match(content)
    if known:  # without Python's parser, which numpy calls: in Python 3.11 it is not safe in several threads
        shape = tuple(int(number) for number in known["shape"].split(b",") if number.strip())
        is_fortran, dtype = known["order"] == b"True", np.dtype(known["type"].decode())
        file.seek(10 + int.from_bytes(content[8:10], "little"))
    else:
        shape, is_fortran, dtype = read(file)
    if dtype.kind not in "fiu":
        raise ValueError(f"its numbers are {dtype}, neither floats nor integers")
    count = math.prod(shape)
    if count * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"it has {len(content) - file.tell()} bytes, not those of {dtype} {_shown(shape)}")
    flat = np.frombuffer(content, dtype, count, file.tell())
    return flat.reshape(shape, order="F" if is_fortran else "C")


def _shown(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"
