"""What stands on a contact sheet, in words."""
# MERGED: A contact sheet of what a network is shown: source and box, the crop, and what augmentation makes of it.

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from ..augment.module import Augment
from ..loader.batch import AnyBatch, augmented, params_of
from ..ops import matrices
from ..sampling.sampler import Request


def captions(numbers: Mapping[str, Tensor], row: int, size: Sequence[int]) -> str:
    """Say what was done to one image, in at most three lines; ``numbers``: of ``Augment.numbers``."""
    if not numbers:
        return "to the network"
    values = {name: float(part[row]) for name, part in numbers.items() if part.ndim == 1}
    moved = ["mirrored"] if values.get("flip") else []
    if "matrix" in numbers:
        moved += _moved(numbers["matrix"][row], size)
    light = [f"{name} {values[name]:.2f}" for name in ("brightness", "contrast") if values.get(name, 1) != 1]
    rest = [f"saturation {values['saturation']:.2f}"] if values.get("saturation", 1) != 1 else []
    if values.get("hue"):
        rest.append(f"hue {360 * values['hue']:+.0f}°")
    if "erase_boxes" in numbers and (numbers["erase_boxes"][row, :, 2:] > 0).any():
        moved.append("erased")
    if "mask" in numbers:
        moved.append(f"{float(numbers['mask'][row].double().mean()):.0%} masked")
    return "\n".join(", ".join(line) for line in (moved, light, rest) if line) or "as it is"


def _moved(matrix: Tensor, size: Sequence[int]) -> list[str]:
    if torch.equal(matrix, matrices.identity()):
        return []
    (a, b, _), (c, d, _) = matrix.tolist()
    height, width = size
    center = torch.tensor([[(width - 1) / 2, (height - 1) / 2]], dtype=torch.float64)
    x, y = (matrices.apply(matrix, center) - center)[0].tolist()
    parts = [f"{math.degrees(math.atan2(-c, a)):+.0f}°", f"x{math.sqrt(abs(a * d - b * c)):.2f}"]
    if max(abs(x), abs(y)) >= 0.5:
        parts.append(f"by {x:+.0f}, {y:+.0f}")
    return parts


def head(data: Any, split: str, epoch: int, count: int) -> list[str]:
    """Name a sheet: a title, what is cropped, and what is done to the crops."""
    known = data.splits[split]
    crops = known.view_crops() if known.views > 1 else known.view_crops()[:1]
    flip = f", flip {known.flip:g}" if known.flip else ""
    augment = data.augment
    if isinstance(augment, Augment):
        parts = []
        if augment.training:
            parts += [f"flip {augment.flip:g}"] if augment.flip else []
            parts += [_short(part) for part in augment.distortions.values()]
            parts += [_short(augment.mix)] if augment.mix is not None else []
        parts += ["YCbCr, shown as RGB"] if augment.space == "ycbcr" else []
        done = "; ".join(parts) or "normalised only"
    else:
        done = "no augmentation" if augment is None else type(augment).__name__
    title = f"What the network sees: {split}, epoch {epoch}, {count} sample{'s' * (count > 1)}"
    return [title, "; ".join(_short(crop) for crop in crops) + flip, done]


def _short(part: Any) -> str:
    """Write a dataclass in few words: without the fields that have their defaults."""
    if not is_dataclass(part) or isinstance(part, type):
        return repr(part)
    fresh = type(part)(**{f.name: getattr(part, f.name) for f in fields(part) if f.default is MISSING})
    given = [
        f.name
        for f in fields(part)
        if f.default is MISSING or getattr(part, f.name) != getattr(fresh, f.name)
    ]
    return " ".join(
        [type(part).__name__, ", ".join(f"{name} {_value(getattr(part, name))}" for name in given)]
    ).strip()


def _value(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(side, int) for side in value):
        return f"{value[0]} x {value[1]}"
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(side, float) for side in value):
        return f"±{value[1]:g}" if value[0] == -value[1] else f"{value[0]:g}..{value[1]:g}"
    return f"{value:g}" if isinstance(value, float) else str(value)


_PAGE, _CARD, _INK, _GRAY, _BOX = "#eef0f3", "#ffffff", "#20262d", "#75808c", "#e4572e"
_SOURCE, _SIDE, _LEAST = (300, 200), 200, 140  # pixels: what a source fits into; others' side
_TITLE, _LINE = 24, 15
_PAD, _GAP, _HEAD = 14, 16, 104
_WASH = 0.62  # how much of its colour a source loses outside of the boxes


@dataclass
class Card:
    """One sample: pictures beside each other, with a caption each."""

    key: str
    label: str
    pictures: list[Image.Image] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def contact_sheet(
    data: Any,
    path: str | os.PathLike[str],
    *,
    split: Literal["train", "val", "test", "predict"] = "train",
    samples: int = 12,
    epoch: int = 0,
    columns: int = 2,
) -> Path:
    """Draw the first samples of an epoch of a ``ShardDataModule`` and write a PNG; returns its path.

    For each sample: the source photograph with the box that is decoded (and those of other views), the crop
    as it is decoded, and what ``augment`` makes of it in that epoch, with its key, label and numbers. What is
    normalised is turned back into colours; erased parts are the mean colour. ``columns``: cards in a row.
    Raises ``ValueError`` for a number below 1, a split that is not there, or one that is streamed.
    """
    for name, value, least in (("samples", samples, 1), ("epoch", epoch, 0), ("columns", columns, 1)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
    if data.splits.get(split) is None:
        there = [name for name, known in data.splits.items() if known is not None]
        raise ValueError(f"split={split!r} is not one of those that the data has: {', '.join(there)}")
    if data.splits[split].streaming:
        raise ValueError(f"the {split} split is streamed: its samples cannot be read twice to be shown")
    loader = getattr(data, f"{split}_dataloader")()
    loader.sampler.set_epoch(epoch)
    if data.augment is not None:
        data.augment.train(split == "train")
    cards: list[Card] = []
    for batch in loader:
        cards += _cards(data.augment, loader, batch, loader.claim(), samples - len(cards))
        if len(cards) >= samples:
            break
    loader.close()
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _page(cards, head(data, split, epoch, len(cards)), columns).save(target, "PNG")
    return target


def _cards(augment: Any, loader: Any, batch: AnyBatch, request: Request, most: int) -> list[Card]:
    fetcher = loader.fetcher
    is_augmented = fetcher.dtype != torch.uint8
    made = (
        batch
        if augment is None
        else augmented(augment, batch, fetcher.seed, request, is_augmented=is_augmented)
    )
    before, after = (image[None] if image.ndim == 4 else image for image in (batch.image, made.image))
    numbers: dict[str, Tensor] = {}
    if isinstance(augment, Augment) and augment.training:
        numbers = params_of(augment, batch.image, fetcher.seed, request)
    cards, count = [], min(most, len(request.ids))
    for row, id in enumerate(request.ids[:count].tolist()):
        card = Card(fetcher.shards.key(id), _label(made.label[row]))
        source = _opened(fetcher.shards.images([id])[0])
        if source is None:
            card.pictures.append(Image.new("RGB", (_SIDE, _SIDE), "#c9ced5"))
            card.texts.append("cannot be decoded: another sample took its place")
            flips = []
        else:
            size = np.array([[source.height, source.width]], np.int32)
            occurrence = None if request.occurrence is None else request.occurrence[[row]]
            boxes, flips = fetcher.boxes_and_flips(
                Request(request.epoch, request.ids[[row]], occurrence), size
            )
            card.pictures.append(_with_boxes(source, [box[0].tolist() for box in boxes]))
            card.texts.append(f"{source.width} x {source.height}")
        for view in range(len(before)):
            card.pictures.append(_fitted(_shown(None, before[view, row])))
            is_flipped = bool(flips and flips[view][0])
            card.texts.append("crop, mirrored" if is_flipped else "crop")
            card.pictures.append(_fitted(_shown(augment, after[view, row])))
            card.texts.append(captions(numbers, view * len(request.ids) + row, before.shape[-2:]))
        cards.append(card)
    return cards


def _opened(content: Tensor) -> Image.Image | None:
    """Decode a whole source, upright; None where Pillow cannot."""
    try:
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(content.numpy().tobytes())))
        return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _with_boxes(source: Image.Image, boxes: list[list[int]]) -> Image.Image:
    """Shrink a source, wash out what is outside of the boxes, and outline them."""
    shown = ImageOps.contain(source, _SOURCE, Image.Resampling.LANCZOS)
    scale = shown.width / source.width
    gray = Image.blend(shown.convert("L").convert("RGB"), Image.new("RGB", shown.size, "white"), 0.45)
    washed = Image.blend(shown, gray, _WASH)
    places = []
    for top, left, height, width in boxes:
        x, y, right, bottom = left * scale, top * scale, (left + width) * scale, (top + height) * scale
        places.append((round(x), round(y), max(round(right), round(x) + 1), max(round(bottom), round(y) + 1)))
        washed.paste(shown.crop(places[-1]), places[-1][:2])
    drawing = ImageDraw.Draw(washed)
    for x, y, right, bottom in places:
        drawing.rectangle((x, y, right - 1, bottom - 1), outline="white", width=3)
        drawing.rectangle((x, y, right - 1, bottom - 1), outline=_BOX, width=2)
    return washed


def _shown(augment: Any, image: Tensor) -> Image.Image:
    """Turn ``[3, H, W]`` into a picture: uint8 as it is, else with the normalisation undone."""
    levels = image.detach().cpu().double()
    if isinstance(augment, Augment):
        levels = augment.denormalise(levels)
    elif image.dtype != torch.uint8:  # of a module that nothing is known of
        low, high = levels.aminmax()
        levels = 255 * (levels - low) / (high - low).clamp(min=1e-9)
    array = levels.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(array)


def _fitted(picture: Image.Image) -> Image.Image:
    """Show the network's own pixels where there are few of them."""
    is_small = max(picture.size) * 2 <= _SIDE
    how = Image.Resampling.NEAREST if is_small else Image.Resampling.LANCZOS
    return ImageOps.contain(picture, (_SIDE, _SIDE), how)


def _label(label: Tensor) -> str:
    if not label.is_floating_point():
        return "label " + ", ".join(str(value) for value in np.atleast_1d(label.numpy()).tolist())
    parts = [(float(share), number) for number, share in enumerate(label) if share > 0.005]
    return "label " + " + ".join(f"{share:.2f} of {number}" for share, number in sorted(parts, reverse=True))


@dataclass(frozen=True)
class _Layout:
    """What all cards of a sheet share, in pixels: the source's width, pictures, and lines below them."""

    source: int
    pictures: int
    lines: int

    @classmethod
    def of(cls, cards: list[Card]) -> _Layout:
        source = max(_LEAST, *(card.pictures[0].width for card in cards))
        lines = max(1 + text.count("\n") for card in cards for text in card.texts)
        return cls(source, max(len(card.pictures) for card in cards), lines)

    @property
    def width(self) -> int:
        return self.source + (self.pictures - 1) * (_SIDE + _GAP)

    @property
    def height(self) -> int:
        return _TITLE + _SIDE + 4 + _LINE * self.lines


def _page(cards: list[Card], lines: list[str], columns: int) -> Image.Image:
    layout, columns = _Layout.of(cards), min(columns, len(cards))
    width, height = layout.width + 2 * _PAD, layout.height + 2 * _PAD
    rows = -(-len(cards) // columns)
    size = (columns * (width + _GAP) + _GAP, _HEAD + rows * (height + _GAP))
    page = Image.new("RGB", size, _PAGE)
    drawing = ImageDraw.Draw(page)
    drawing.text((_GAP + 2, 16), _cut(drawing, lines[0], size[0] - 2 * _GAP, 24), _INK, _font(24))
    for row, line in enumerate(lines[1:]):
        drawing.text((_GAP + 2, 50 + 20 * row), _cut(drawing, line, size[0] - 2 * _GAP, 14), _GRAY, _font(14))
    for place, card in enumerate(cards):
        x = _GAP + place % columns * (width + _GAP)
        y = _HEAD + place // columns * (height + _GAP)
        drawing.rounded_rectangle((x, y, x + width, y + height), 10, _CARD)
        _draw(page, drawing, card, layout, x + _PAD, y + _PAD)
    return page


def _draw(
    page: Image.Image, drawing: ImageDraw.ImageDraw, card: Card, layout: _Layout, x: int, y: int
) -> None:
    label = _cut(drawing, card.label, layout.width // 2, 15)
    drawing.text((x, y - 2), _cut(drawing, card.key, layout.width // 2 - _GAP, 15), _INK, _font(15))
    drawing.text((x + layout.width, y - 2), label, _GRAY, _font(15), anchor="ra")
    for number, (picture, text) in enumerate(zip(card.pictures, card.texts, strict=True)):
        room = layout.source if number == 0 else _SIDE
        page.paste(picture, (x, y + _TITLE + (_SIDE - picture.height) // 2))
        for row, line in enumerate(text.split("\n")):
            place = (x, y + _TITLE + _SIDE + 4 + _LINE * row)
            drawing.text(place, _cut(drawing, line, room, 12), _GRAY, _font(12))
        x += room + _GAP


def _cut(drawing: ImageDraw.ImageDraw, text: str, width: int, size: int) -> str:
    if drawing.textlength(text, _font(size)) <= width:
        return text
    while text and drawing.textlength(text + "...", _font(size)) > width:
        text = text[:-1]
    return text + "..."


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
