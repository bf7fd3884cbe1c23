"""Semantic masks: a class for each pixel, in a PNG beside the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..errors import ShardError, similar
from ..sampling.geometry import Int32, View
from ..sampling.rng import Float64, Int64
from ..shards import pillow
from ..shards.source import Source, missing, plain, read_pictures, where_of
from .lost import lose
from .moved import dicts_of
from .pictures import room_for
from .protocols import Fields

Values = npt.NDArray[np.uint8]
Key = bytes
MODES = ("nearest-exact", "nearest")
_MOST = 1 << 16


class Part(NamedTuple):
    """What views need of a mask.

    Args:
        shape: (height, width) of the whole mask.
        pictures: By what was drawn for a view, its pixels: some of uint8 [B, H, W], and their number.
    """

    shape: tuple[int, int]
    pictures: dict[Key, tuple[Values, int]]


def values_in(name: str, content: bytes) -> npt.NDArray[Any]:
    """Decode a picture of that extension; raises ValueError for one that a cache has taken for an image."""
    if content.startswith(b"P6") and not name.endswith(("ppm", "pnm")):
        raise ValueError(
            "it is a PPM of colours, which a cache makes of the image of a sample. Build the cache with "
            f"masks={name!r}, and with images= if they are neither JPEG nor PNG"
        )
    return pillow.open_values(content)


@dataclass(frozen=True)
class Masks:
    """Semantic masks, a class per pixel, moved with their image, for ``Split(targets=...)``.

    A batch is ``(images, masks)``: uint8 (or int64) [B, H, W], as torch's ``cross_entropy`` takes it. In a
    dict or list with other targets, the dict of each image has it as ``mask``, ``tv_tensors.Mask`` [H, W].

    A mask is a PNG (or another lossless format that Pillow reads) as large as its upright image. Values are
    those in the file: numbers of the palette if it has one, gray levels of up to 16 bits, or colours, which
    need ``labels``. Of a PNG with a byte per pixel, only what the result needs is decoded and checked: in a
    cache whose masks are in bands (``build_cache(masks=...)``) the rows under the box, otherwise those before
    it too.

    The mask is cut out as its image is, and resized by nearest neighbour: "nearest-exact" takes the pixel
    under the centre of the result's pixel, as Pillow's NEAREST and torchvision's NEAREST_EXACT do (of two
    pixels whose border it is on, the right or lower one, where they choose by rounding); "nearest", as
    torchvision's ``Resize`` does with masks, takes the pixel under its corner, up to half a pixel off the
    image. Under an affine of ``Augment`` or of a policy, each pixel is the one nearest to its place before,
    and ``fill`` outside, and where one of several such steps has lost what a later one moves back.

    A mask of another size than its image, one that cannot be decoded and a value that is not in the table
    are broken targets: ``LoaderConfig(on_error=...)`` decides, as for a broken image.

    Args:
        extension: Of the member: "png", or "seg.png" beside an image that is a PNG itself.
        labels: Table of the classes: a dict from the values in the file, integers or colours (red, green,
            blue), to 0..255; None: the values are the classes.
        fill: Class of the pixels outside of the image, 0 to 255; 255 is what losses usually ignore.
        interpolation: "nearest-exact" or "nearest".
        dtype: "uint8", or "int64", which losses of torch take without a conversion.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> class Scene(tarpeg.Source):
        ...     def __len__(self):
        ...         return 1
        ...     def keys(self, ids):
        ...         return ["scene"] * len(ids)
        ...     def members(self, ids, extension):
        ...         png = io.BytesIO()
        ...         Image.new("L", (600, 400), 7).save(png, "PNG")
        ...         content = {"jpg": jpeg.numpy().tobytes(), "png": png.getvalue()}
        ...         return [content.get(extension)] * len(ids)
        ...     def extensions(self, id):
        ...         return ["jpg", "png"]
        >>> masks = tarpeg.Masks("png", labels={7: 1}, dtype="int64")
        >>> split = tarpeg.Split(Scene(), tarpeg.RandomResizedCrop(64), flip=0.5, targets=masks)
        >>> images, masks = next(iter(tarpeg.Loader(split, batch_size=1, workers=0)))
        >>> masks.shape, masks.dtype, masks.unique().tolist()
        (torch.Size([1, 64, 64]), torch.int64, [1])
    """

    extension: str
    labels: Mapping[Any, int] | None = None
    fill: int = 255
    interpolation: Literal["nearest-exact", "nearest"] = "nearest-exact"
    dtype: Literal["uint8", "int64"] = "uint8"

    fields: ClassVar[Sequence[str]] = ("mask",)

    def __post_init__(self) -> None:
        if not isinstance(self.extension, str) or not plain(self.extension) or ":" in self.extension:
            raise ValueError(f'extension={self.extension!r} of Masks must be one of a member, such as "png"')
        if type(self.fill) is not int or not 0 <= self.fill <= 255:
            raise ValueError(f"fill={self.fill!r} of Masks must be an integer in 0..255")
        if self.interpolation not in MODES:
            near = similar(self.interpolation, MODES)
            raise ValueError(f"interpolation={self.interpolation!r} of Masks must be one of {MODES}{near}")
        if self.dtype not in ("uint8", "int64"):
            raise ValueError(f"dtype={self.dtype!r} of Masks must be 'uint8' or 'int64'")
        _ = self._table

    @cached_property
    def _table(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int16]] | None:
        """Sorted values in the file, colours as one number, and the class of each."""
        if self.labels is None:
            return None
        if not isinstance(self.labels, Mapping) or not self.labels:
            raise ValueError(
                f"labels={self.labels!r} of Masks must be a dict with one value at least, or None"
            )
        found = {}
        for value, label in self.labels.items():
            code, pair = _code(value), f"labels={{{value!r}: {label!r}}} of Masks"
            if code is None:
                raise ValueError(
                    f"{pair}: {value!r} must be a value in the file, 0 or more, or (red, green, blue)"
                )
            if type(label) is not int or not 0 <= label <= 255:
                raise ValueError(
                    f"{pair}: {label!r} must be a class in 0..255; for more classes, {self._more_classes}"
                )
            if _is_colour(value) != self._is_of_colours:
                raise ValueError(f"{pair} must be a colour, as others of the table are")
            found[code] = label
        codes = sorted(found)
        return np.array(codes, np.int32), np.array([found[code] for code in codes], np.int16)

    @cached_property
    def _bytes_table(self) -> npt.NDArray[np.int32] | None:
        """The class of each byte, -1 for those without: int32 [256]; None for bytes that are classes."""
        if self._table is None:
            return None
        known, labels = self._table
        table = np.full(256, -1, np.int32)
        is_byte = known < 256
        table[known[is_byte]] = labels[is_byte]
        return table

    @property
    def _more_classes(self) -> str:
        return f"give FloatMap({plain(self.extension)!r}, interpolation='nearest-exact')"

    @property
    def _is_of_colours(self) -> bool:
        return self.labels is not None and any(map(_is_colour, self.labels))

    def read(self, source: Source, ids: Int64) -> list[Any]:
        """Read and decode whole masks of some samples; see ``Target.read``."""
        contents = read_pictures(source, ids, plain(self.extension))
        return [self._whole(source, *each) for each in zip(ids.tolist(), contents, strict=True)]

    def read_views(self, source: Source, ids: Int64, views: Sequence[View], threads: int) -> list[Any]:
        """Read of masks what these views need; see ``FlatTarget.read_views``."""
        from ..ops.masks import read_masks  # here, because it loads the operators

        contents = read_pictures(source, ids, plain(self.extension))
        is_known = np.logical_and.reduce([view.is_known for view in views])
        given = {row: each for row, each in enumerate(contents) if each is not None and is_known[row]}
        parts: dict[int, Part] = {}
        if given and not self._is_of_colours:
            rows, files = [*given], [*given.values()]
            status, found = np.zeros(len(rows), np.int32), []
            for view in (view.rows(rows) for view in views):
                pictures, facts = read_masks(
                    files,
                    view.boxes,
                    view.size,
                    view.flips,
                    view.places,
                    centres=self.interpolation == "nearest-exact",
                    table=self._bytes_table,
                    fill=self.fill,
                    threads=threads,
                    out=room_for((len(rows), *view.size)),
                )
                found.append((keys_of(view), pictures))
                status |= facts[:, 0]
            for number in np.flatnonzero(status == 0).tolist():
                cut = {keys[number]: (pictures, number) for keys, pictures in found}
                parts[rows[number]] = Part((int(facts[number, 1]), int(facts[number, 2])), cut)
        return [
            parts[row] if row in parts else self._whole(source, id, content)
            for row, (id, content) in enumerate(zip(ids.tolist(), contents, strict=True))
        ]

    def _whole(self, source: Source, id: int, content: bytes | None) -> Any:
        """Decode a whole mask by Pillow; a ShardError, with shard and key, for a broken one."""
        name = plain(self.extension)
        if content is None:
            return missing(source, id, name, "Give Masks(...) the extension of the mask.")
        try:
            return self._classes(values_in(name, content))
        except (pillow.RefusedError, ValueError) as error:
            reason = error.reason if isinstance(error, pillow.RefusedError) else error
            return ShardError(f"{where_of(source, id)}: member {name!r}, a mask: {reason}")

    def misfits(self, values: Sequence[Values | Part], sizes: Int32) -> list[str]:
        """Return a text for each mask of another size than its image, "" for the others."""
        reasons = []
        for value, size in zip(values, sizes.tolist(), strict=True):
            found = list(value.shape)
            is_right = found == size or not size[0]
            reasons.append(
                ""
                if is_right
                else f"member {plain(self.extension)!r}, a mask, is {found[0]} x {found[1]}, and its image "
                f"{size[0]} x {size[1]}"
            )
        return reasons

    def picture_bytes(self, size: tuple[int, int]) -> int:
        """Bytes of the mask of one image."""
        return size[0] * size[1]

    def move_all(self, values: Sequence[Values | Part], view: View) -> Fields:
        """Move the masks of all rows of a view."""
        view.check_known()
        masks = self._cut(values, view)
        if view.affine is not None and len(values):
            masks = warped(masks, view.affine, self.fill)
            lose(masks, view, self.fill)
        counts = np.zeros(len(view), np.int64)
        return Fields(
            "mask", counts, np.zeros(0, np.bool_), {}, {}, view.size, {"mask": masks}, self.dtype, self.fill
        )

    def _cut(self, values: Sequence[Values | Part], view: View) -> Values:
        """Return the pixels under the boxes of a view, resized and mirrored: uint8 [B, H, W]."""
        keys = keys_of(view)
        pictures = [
            value.pictures[key] for value, key in zip(values, keys, strict=True) if isinstance(value, Part)
        ]
        if pictures and len(pictures) == len(values) == len(pictures[0][0]):
            first = pictures[0][0]
            if all(each is first and number == row for row, (each, number) in enumerate(pictures)):
                return first  # no copy
        height, width = view.size
        masks = np.full((len(values), height, width), self.fill, np.uint8)
        places = view.all_places.tolist()
        for row, (value, mask, place) in enumerate(zip(values, masks, places, strict=True)):
            if isinstance(value, Part):
                picture, number = value.pictures[keys[row]]
                mask[:] = picture[number]
                continue
            top, left, rows, columns = view.boxes[row].tolist()
            y = top + places_of(rows, place[2], self.interpolation)
            x = left + places_of(columns, place[3], self.interpolation)
            part = mask[place[0] : place[0] + place[2], place[1] : place[1] + place[3]]
            np.take(value[y], x[::-1] if view.flips[row] else x, axis=1, out=part, mode="clip")
        return masks

    def move(self, value: Values, view: View) -> Any:
        """Return the mask of one image, [H, W]; see ``Target.move``."""
        return dicts_of([self.move_all([value], view)], 1)[0]["mask"]

    def _classes(self, values: npt.NDArray[Any]) -> Values:
        """Return the classes of the values of a mask, [H, W] or, of colours, [H, W, 3]; raises ValueError."""
        is_coloured = values.ndim == 3
        if is_coloured != self._is_of_colours:
            wanted = "integers" if is_coloured else "colours"
            has = "colours" if is_coloured else "one number per pixel"
            given = "no labels=" if self.labels is None else f"labels= of {wanted}"
            remedy = "give it a table of them, such as labels={(0, 0, 0): 0, (1, 1, 1): 1}"
            if not is_coloured:
                remedy = "write all masks with three channels, or all with a number per pixel"
            raise ValueError(f"it has {has}, and Masks {given}: {remedy}")
        if is_coloured:
            codes = values.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
        if self._table is None:
            if values.dtype != np.uint8 and values.max() > 255:
                raise ValueError(
                    f"it has the value {values.max()}, above 255: give labels= a table, or "
                    f"for more classes {self._more_classes}"
                )
            return np.ascontiguousarray(values.astype(np.uint8, copy=False))
        known, labels = self._table
        if is_coloured:
            places = np.searchsorted(known, codes).clip(max=len(known) - 1)
            classes = np.where(known[places] == codes, labels[places], -1)
        else:
            table = np.full(256 if values.dtype == np.uint8 else _MOST, -1, np.int16)
            is_there = known < len(table)
            table[known[is_there]] = labels[is_there]
            classes = table[values]
        if classes.min() < 0:
            y, x = np.argwhere(classes < 0)[0].tolist()
            raise ValueError(
                f"the pixel (x, y) = ({x}, {y}) is {values[y, x].tolist()}, which is not in labels=, a "
                f"table of {len(known)} values"
            )
        return np.ascontiguousarray(classes.astype(np.uint8))


def places_of(source: int, result: int, interpolation: str) -> Int64:
    """Return the place in the source of each place in the result."""
    if interpolation == "nearest-exact":
        return (2 * np.arange(result) + 1) * source // (2 * result)
    # In the arithmetic of torch.
    places, scale = np.arange(result, dtype=np.float32), np.float32(source) / np.float32(result)
    nearest: Int64 = np.minimum(np.floor(places * scale).astype(np.int64), source - 1)
    return nearest


def warped(masks: Values, affine: Float64, fill: int) -> Values:
    """Warp masks by matrices of pixel edges; those of the operator count from the centres."""
    from ..ops.augment import warp_affine  # here, because it loads the operators

    rows = np.flatnonzero((affine != np.eye(2, 3)).any(axis=(1, 2)))  # many policies move few images
    shifted = affine[rows]
    shifted[:, :, 2] += shifted[:, :, :2].sum(axis=2) * 0.5 - 0.5
    images, size = torch.from_numpy(masks[rows])[:, None], masks.shape[1:]
    moved = warp_affine(images, torch.from_numpy(shifted), size, "nearest", float(fill))[:, 0].numpy()
    if len(rows) == len(masks):
        return moved
    found = masks.copy()
    found[rows] = moved
    return found


def keys_of(view: View) -> list[Key]:
    """Return for each row what the pixels of its mask depend on, but for the affine."""
    rows = np.empty((len(view), 11), np.int32)
    rows[:, :4], rows[:, 4:8], rows[:, 8], rows[:, 9:] = view.boxes, view.all_places, view.flips, view.size
    content, width = rows.tobytes(), rows.itemsize * rows.shape[1]  # of no row, strides are 0
    return [content[begin : begin + width] for begin in range(0, len(content), width)]


def _is_colour(value: Any) -> bool:
    return isinstance(value, tuple)


def _code(value: Any) -> int | None:
    """Return a value in the file as one number; None if it is not one."""
    if type(value) is int and 0 <= value < _MOST:
        return value
    is_colour = _is_colour(value) and len(value) == 3
    if is_colour and all(type(part) is int and 0 <= part <= 255 for part in value):
        red, green, blue = value
        return int(red << 16 | green << 8 | blue)
    return None
