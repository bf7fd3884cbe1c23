"""A contact sheet of the network's inputs: each photograph with its box, the crop, and the augmented crop.

Drawn with Pillow: torchvision's ``make_grid`` has no captions and needs images of one size.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from ..augment.module import Augment
from ..augment.tables import CODES
from ..errors import DecodeError, check_integer, similar, warn
from ..loader.augmenting import augment_on_arrival, modules_of, moved_views, params_of, uncompiled
from ..loader.batch import TARGET_BATCHES, AnyBatch, RaggedImages, by_size, by_view
from ..loader.checks import kind_of
from ..loader.many_files import read_list, read_pattern
from ..loader.naflex import image_of
from ..loader.text import read_texts
from ..ops import matrices
from ..sampling.crops import CenterCrop, crop_at, levels_of
from ..sampling.geometry import View
from ..sampling.sampler import Request
from ..shards.pillow import open_rgb
from ..shards.urls import local_folder
from ..transforms.pixels import PixelFormat
from .overlays import moved_targets, with_targets

_PAGE, _CARD, _INK, _GRAY, _BOX = "#eef0f3", "#ffffff", "#20262d", "#75808c", "#e4572e"
# In pixels: limits of a source's picture, side of the other pictures, least width of a source's column.
_SOURCE, _SIDE, _MIN_WIDTH = (300, 200), 200, 140
_TITLE, _LINE = 24, 15
_SMALL = 12  # size of the letters below pictures
_MOST_LINES = 3  # of a caption
_MOST_CAPTIONS = 8  # of a sample
_PAD, _GAP, _HEADER = 14, 16, 104
# Looked for by these names in the folders of the system's fonts.
_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "NotoSansCJK-Regular.ttc",
    "Arial Unicode.ttf",
    "Arial.ttf",
)
_AMPLIFIED = 16  # times a difference is shown
_OPERATIONS = [name.lower().replace("_", " ").replace("flip", "mirrored") for name in CODES]
_FADE = 0.62  # share of gray in a source outside of the boxes


def contact_sheet(
    data: Any,
    path: str | os.PathLike[str],
    *,
    split: str = "train",
    samples: int = 12,
    epoch: int = 0,
    columns: int = 2,
) -> Path:
    """Draw the first samples of an epoch of a ``ShardDataModule``; return the path of the picture.

    For each sample: the source photograph with the boxes of its views, the decoded crops, and the crops as
    ``augment`` changes them in that epoch, with key, label and random parameters. Normalisation is undone;
    erased parts have the mean colour. Boxes, masks and keypoints of ``targets=`` are drawn on all of them; if
    steps of ``transform=`` in Python move targets, not on the last.

    Args:
        data: A ``ShardDataModule``.
        path: File to write, in the format of its suffix; a PNG without one.
        split: "train", "val", "test", "predict", or the name of one of several, such as "val/0".
        samples: Number of samples.
        epoch: Epoch, from 0.
        columns: Samples per row.

    Raises:
        ValueError: For a number out of range, and for a split that does not exist or is streamed.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.RandomResizedCrop(96), flip=0.5)
        >>> data = tarpeg.ShardDataModule(train=split, augment=tarpeg.Augment(), workers=0)
        >>> tarpeg.contact_sheet(data, tmp / "sheet.png", samples=4).name
        'sheet.png'
    """
    cards: list[Card] = []
    for loader, batch in _batches(data, split, samples, epoch, columns):
        classes = data.splits[split].classes() or []
        cards += _cards(data.augment, loader, batch, loader.claim(), samples - len(cards), classes)
    return _saved(_page(cards, _header(data, split, epoch, len(cards)), columns), path)


@dataclass(frozen=True)
class Comparison:
    """Differences of crops from torchvision's, in levels of 0 to 255.

    Attributes:
        path: Path of their picture.
        keys: Keys of the samples.
        means: Mean difference over all views of each sample.
        maxima: Largest difference over all views of each sample.
    """

    path: Path
    keys: tuple[str, ...]
    means: tuple[float, ...]
    maxima: tuple[int, ...]

    def __str__(self) -> str:
        """Return the numbers in one line."""
        worst = max(range(len(self.keys)), key=self.means.__getitem__)
        mean = sum(self.means) / len(self.means)
        return (
            f"difference from torchvision v2 over {len(self.keys)} samples, in levels of 0 to 255: mean "
            f"{mean:.2f}, largest {max(self.maxima)}; most in {self.keys[worst]!r}: mean "
            f"{self.means[worst]:.2f}, largest {self.maxima[worst]}"
        )


def comparison_sheet(
    data: Any,
    path: str | os.PathLike[str],
    *,
    split: str = "train",
    samples: int = 12,
    epoch: int = 0,
    columns: int = 2,
) -> Comparison:
    """Draw the first samples of an epoch as torchvision and as this library crops them.

    torchvision v2 crops and resizes the whole image that Pillow decoded, with the same random boxes and flips
    and with the interpolation of the split; a ``CenterCrop`` is torchvision's own ``Resize`` and
    ``CenterCrop``. Each sample has its source, torchvision's crop, ours, and their
    difference, amplified around gray, of the first view of each size. ``augment`` is not compared.

    Args:
        data: A ``ShardDataModule``.
        path: File to write, in the format of its suffix; a PNG without one.
        split: "train", "val", "test", "predict", or the name of one of several, such as "val/0".
        samples: Number of samples.
        epoch: Epoch, from 0.
        columns: Samples per row.

    Returns:
        The differences of each sample: ``means`` and ``maxima``, in levels of 0 to 255, and ``keys``.

    Raises:
        ValueError: For a number out of range, for a split that does not exist or is streamed, and for one
            whose ``transform`` has steps in Python.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.CenterCrop(96), fidelity="exact")
        >>> data = tarpeg.ShardDataModule(val=split, workers=0)
        >>> report = tarpeg.comparison_sheet(data, tmp / "sheet.png", split="val", samples=4)
        >>> max(report.maxima) <= 1
        True
    """
    cards: list[Card] = []
    found: list[tuple[str, float, int]] = []
    for loader, batch in _batches(data, split, samples, epoch, columns):
        request, fetcher = loader.claim(), loader.fetcher
        if loader.split.patches is not None:
            raise ValueError(f"split={split!r} has sequences of patches: contact_sheet draws them")
        if loader.split.image is not None:
            raise ValueError(f"split={split!r} has several images of each sample: contact_sheet draws them")
        views = by_view(batch.image, loader.split.view_groups)
        levels = loader.split.pipelines[0].levels
        if levels and loader.split.is_decoded_only:  # the decoder has rounded them before it normalised
            inverse = Augment(levels.mean, levels.std)
            views = [inverse.denormalise(view).round().clamp(0, 255).to(torch.uint8) for view in views]
        if loader.split.has_parts:
            raise ValueError(f"split={split!r} has images of several samples each: contact_sheet draws them")
        if views[0].dtype != torch.uint8 or not loader.split.is_decoded_only:
            raise ValueError(
                f"split={split!r} must deliver the decoder's crops to be compared: leave out steps of "
                "transform= behind them, in Python or policies; views need one Normalize"
            )
        for row, id in enumerate(request.ids[: samples - len(cards)].tolist()):
            card = Card(fetcher.shards.keys([id])[0], "")
            try:
                results = [(int(part.shape[-2]), int(part.shape[-1])) for part in views]
                source, drawn = _add_source(card, fetcher, request.of_row(row), results)
            except DecodeError:
                continue  # the batch has another sample in its place
            differences = []
            for number, (images, pipeline) in enumerate(zip(views, loader.split.pipelines, strict=True)):
                crop = crop_at(pipeline.crop, epoch)
                view = drawn[number]
                place = None if view.places is None else view.places[0].tolist()
                box, is_flipped = view.boxes[0].tolist(), bool(view.flips[0])
                theirs = _by_torchvision(source, crop, box, is_flipped, images[row], pipeline, place)
                differences.append(images[row].int() - theirs.int())
                if [each.shape for each in differences].count(differences[-1].shape) == 1:
                    _add_comparison(card, theirs, images[row], differences[-1])
            levels = torch.cat([each.flatten() for each in differences]).abs()
            found.append((card.key, float(levels.double().mean()), int(levels.max())))
            cards.append(card)
    if not cards:
        raise ValueError(f"split={split!r}: none of its first samples can be decoded")
    keys, means, maxima = zip(*found, strict=True)
    done = Comparison(path=Path(path), keys=keys, means=means, maxima=maxima)
    words = [
        f"{split}, epoch {epoch}: torchvision, tarpeg, and their difference",
        str(done).partition("; ")[0],
    ]
    _saved(_page(cards, [*words, _header(data, split, epoch, 1)[1]], columns), path)
    return done


def _batches(data: Any, split: str, samples: int, epoch: int, columns: int) -> Iterator[tuple[Any, AnyBatch]]:
    """Yield the loader and the batches of the first samples; raise ValueError as ``contact_sheet``."""
    for name, value, least in (("samples", samples, 1), ("epoch", epoch, 0), ("columns", columns, 1)):
        check_integer(name, value, least)
    if data.splits.get(split) is None:
        names = [name for name, each in data.splits.items() if each is not None]
        raise ValueError(
            f"split={split!r} must be a split of the data: {', '.join(names)}{similar(split, names)}"
        )
    if data.splits[split].streaming:
        raise ValueError(f"split={split!r} must not be streamed: its samples cannot be read a second time")
    loader = data.source_dataloader(split)
    loader.pixels = PixelFormat()  # crops as they are, also of a Trainer's run
    loader.sampler.set_epoch(epoch)
    if data.augment is not None:
        data.augment.train(kind_of(split) == "train")
    seen = 0
    for batch in loader:
        yield loader, batch
        if isinstance(batch.image, RaggedImages):
            seen += len(batch.image.offsets) - 1
        else:
            images = batch.image["patches"] if isinstance(batch.image, dict) else by_size(batch.image)[0]
            seen += images.shape[0 if images.ndim == 3 else -4]
        if seen >= samples:
            break
    loader.close()


def _saved(page: Image.Image, path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    local_folder("path", target.parent)
    kinds = Image.registered_extensions()
    kind = kinds.get(target.suffix.lower(), "") if target.suffix else "PNG"
    if kind not in Image.SAVE:
        raise ValueError(f"path={str(target)!r} must end in .png, .jpg, .webp or .pdf")
    target.parent.mkdir(parents=True, exist_ok=True)
    page.save(target, kind)
    return target


def _by_torchvision(
    source: Image.Image,
    crop: Any,
    box: list[int],
    flip: bool,
    ours: Tensor,
    pipeline: Any,
    place: list[int] | None = None,
) -> Tensor:
    """Crop, resize and pad with torchvision v2 to the size of ``ours``, [C, H, W].

    ``box`` and ``place`` are the random part: a ``CenterCrop`` is torchvision's own, after its ``Resize``.
    """
    from torchvision.transforms.v2 import InterpolationMode, functional

    mode = InterpolationMode({"area": "box"}.get(pipeline.interpolation, pipeline.interpolation))
    picture: Any = source if len(ours) == 3 else source.convert("L")
    if mode not in (InterpolationMode.LANCZOS, InterpolationMode.BOX):  # these two are Pillow's alone
        picture = functional.pil_to_tensor(picture)
    size = list(ours.shape[1:])
    if place is not None:
        top, left, height, width = place
        part = functional.resized_crop(picture, *box, [height, width], mode, antialias=pipeline.antialias)
        part = functional.horizontal_flip(part) if flip else part
        part = part if isinstance(part, Tensor) else functional.pil_to_tensor(part)
        sides = [left, top, size[1] - left - width, size[0] - top - height]
        padded: Tensor = functional.pad(part, sides, fill=levels_of(crop, len(ours)))
        return padded
    if type(crop) is CenterCrop:
        if crop.shorter is not None:
            picture = functional.resize(picture, [crop.shorter], mode, antialias=pipeline.antialias)
        part = functional.center_crop(picture, size)
    else:
        part = functional.resized_crop(picture, *box, size, mode, antialias=pipeline.antialias)
    part = functional.horizontal_flip(part) if flip else part
    result: Tensor = part if isinstance(part, Tensor) else functional.pil_to_tensor(part)
    return result


def _add_comparison(card: Card, theirs: Tensor, ours: Tensor, difference: Tensor) -> None:
    card.add(_fitted(_picture(None, theirs)), "torchvision")
    card.add(_fitted(_picture(None, ours)), "tarpeg")
    shown = (128 + _AMPLIFIED * difference).clamp(0, 255).to(torch.uint8)
    levels = difference.abs()
    text = f"difference x {_AMPLIFIED}: mean {float(levels.double().mean()):.2f}, largest {int(levels.max())}"
    card.add(_fitted(_picture(None, shown)), text)


@dataclass
class Card:
    """One sample: its pictures from left to right, with a text each, and lines below all of them."""

    key: str
    label: str
    pictures: list[Image.Image] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def add(self, picture: Image.Image, text: str) -> None:
        """Append a picture and its text."""
        self.pictures.append(picture)
        self.texts.append(text)


def _cards(
    augment: Any, loader: Any, batch: AnyBatch, request: Request, limit: int, classes: Sequence[str] = ()
) -> list[Card]:
    if loader.split.patches is not None:
        return _cards_of_patches(augment, loader, batch, request, limit, classes)
    if loader.split.image is not None:
        return _cards_of_many(augment, loader, batch, request, limit, classes)
    fetcher, after, views = loader.fetcher, batch, loader.split.view_groups
    if augment is not None:
        options: dict[str, Any] = {"views": views, "repeats": loader.split.repeats}
        options["is_augmented"] = fetcher.dtype != torch.uint8
        after = augment_on_arrival(augment, batch, fetcher.seed, request, **options)
    before, changed = by_view(batch.image, views), by_view(after.image, views)
    modules: list[Any] = [*modules_of(augment)] or [None]
    modules = modules if len(modules) > 1 else modules * len(before)
    params: list[dict[str, Tensor]] = [{} for _ in before]
    for view, (module, images) in enumerate(zip(modules, before, strict=False)):
        if isinstance(module, Augment) and module.training:
            params[view] = params_of(module, images.shape[-2:], fetcher.seed, request, [view])
    cards, targets, after_views = [], loader.split.targets, request.views
    if targets is not None and augment is not None and augment.training:  # the loader moved none for it
        sizes = [images.shape[-2:] for images in before]
        after_views = tuple(moved_views(augment, request.views, sizes, fetcher.seed, request))
    for row, id in enumerate(request.ids[:limit].tolist()):
        label = ""
        if not isinstance(after, TARGET_BATCHES):
            label = _label(after.label[row], classes)
        card = Card(fetcher.shards.keys([id])[0], label)
        drawn = _add_photograph(card, fetcher, request.of_row(row), targets)
        if drawn:
            card.lines += _captions_of(fetcher, batch, request, row)
        for view, (images, results) in enumerate(zip(before, changed, strict=True)):
            pipeline, is_flipped = loader.split.pipelines[view], bool(drawn and drawn[view].flips[0])
            is_crop = not (pipeline.policies or pipeline.runs_python)
            shown = "crop" if is_crop else "after transform="
            pictures = [_fitted(_picture(None, images[row])), _fitted(_picture(modules[view], results[row]))]
            is_carried = pipeline.moves_targets_in_python  # by no known geometry
            if targets is not None and drawn and (is_carried or request.views[view].is_pasted):
                carried: Any = getattr(after, "targets", None)
                found = (carried if len(before) == 1 else carried[view])[row]
                pictures[0] = with_targets(pictures[0], found, images.shape[-2:])
            elif targets is not None and drawn:
                for place, moved in enumerate((request.views, after_views)):
                    found = moved_targets(targets, fetcher.shards, id, moved[view].row(row))
                    pictures[place] = with_targets(pictures[place], found, images.shape[-2:])
            card.add(pictures[0], f"{shown}, mirrored" if is_flipped else shown)
            card.add(pictures[1], _caption(params[view], row, images.shape[-2:]))
        cards.append(card)
    return cards


def _cards_of_patches(
    augment: Any, loader: Any, batch: Any, request: Request, limit: int, classes: Sequence[str]
) -> list[Card]:
    """Draw images as they are put together from their patches."""
    fetcher, cards = loader.fetcher, []
    if augment is not None:
        batch = augment_on_arrival(augment, batch, fetcher.seed, request, is_augmented=False)
    for row, id in enumerate(request.ids[:limit].tolist()):
        card = Card(fetcher.shards.keys([id])[0], _label(batch.label[row], classes))
        if _add_photograph(card, fetcher, request.of_row(row), None):
            card.lines += _captions_of(fetcher, batch, request, row)
        valid, module = batch.image["patch_valid"][row], next(iter(modules_of(augment)), None)
        picture = _picture(module, image_of(batch.image, row))
        card.add(_fitted(picture), f"{int(valid.sum())} patches, of {len(valid)}")
        cards.append(card)
    return cards


def _cards_of_many(
    augment: Any, loader: Any, batch: Any, request: Request, limit: int, classes: Sequence[str]
) -> list[Card]:
    """Draw all images of each sample, and what is made of them."""
    fetcher, cards, split = loader.fetcher, [], loader.split
    if augment is not None:
        options = {"views": split.view_groups, "is_augmented": fetcher.dtype != torch.uint8}
        batch = augment_on_arrival(augment, batch, fetcher.seed, request, **options)
    modules: list[Any] = [*modules_of(augment)] or [None]
    moved: Sequence[View] = ()
    if split.targets is not None:
        moved = fetcher.target_views(request.views)
        if augment is not None and augment.training:  # the loader moved none for it
            sizes = [images.shape[-2:] for images in by_view(batch.image, split.view_groups)]
            moved = moved_views(augment, moved, sizes, fetcher.seed, request)
    for row, id in enumerate(request.ids[:limit].tolist()):
        label = "" if isinstance(batch, TARGET_BATCHES) else _label(batch.label[row], classes)
        card = Card(fetcher.shards.keys([id])[0], label)
        if split.image_pattern is None:
            files = read_list(fetcher.shards, request.ids[row : row + 1], split.image_names)
            results: Sequence[Tensor] = [part[row] for part in by_view(batch.image, split.view_groups)]
            drawn = [view.row(row) for view in request.views]
        else:
            files = read_pattern(fetcher.shards, request.ids[row : row + 1], split.image_pattern)
            begin, end = batch.image.offsets[row : row + 2].tolist()
            results, whole = batch.image.images[begin:end], request.views[0].row(row).parts()
            drawn = [whole.row(number) for number in range(len(whole))]
        names = files.names if len(files.names) == len(drawn) else [""] * len(drawn)
        for number, (view, image) in enumerate(zip(drawn, results, strict=True)):
            name = names[number]
            try:
                source = open_rgb(files.files[number].numpy().tobytes() if name else b"")
                framed = _with_boxes(source, [view.boxes[0].tolist()])
                card.add(framed, f"{name}: {source.width} x {source.height}")
            except DecodeError:
                gray = Image.new("RGB", (_SIDE, _SIDE), "#c9ced5")
                card.add(gray, "cannot be decoded: replaced by another sample")
            shown = _fitted(_picture(modules[number if len(modules) > 1 else 0], image))
            if moved and name:
                found = moved_targets(split.targets, fetcher.shards, id, moved[number].row(row))
                shown = with_targets(shown, found, image.shape[-2:])
            card.add(shown, "crop, mirrored" if view.flips[0] else "crop")
        cards.append(card)
    return cards


def _captions_of(fetcher: Any, batch: Any, request: Request, row: int) -> list[str]:
    """Return each caption of a sample as it was drawn, with its number of tokens; [] without ``Text``."""
    texts = fetcher.split.texts
    plain = {
        name: replace(text, tokenizer=None, max_length=None, pad_id=None) for name, text in texts.items()
    }
    own = request.of_row(row)
    found = read_texts(fetcher.shards, own, fetcher.seed, plain, training=fetcher.training) if texts else [{}]
    if not isinstance(found[0], dict):
        return []  # another sample is in its place
    lines = []
    for name, captions in found[0].items():
        made: Any = batch.extra[name] if name else batch.extra
        for number, caption in enumerate(captions):
            line = f"{name}: " * bool(name) + (" ".join(caption.split()) or "(empty)")
            if texts[name].tokenizer is not None:
                mask = made.attention_mask[row]
                tokens = int((mask[number] if texts[name].choose == "all" else mask).sum())
                line += f" [{tokens} tokens]"
            lines.append(line)
    return lines


def _add_photograph(card: Card, fetcher: Any, request: Request, targets: Any) -> list[View]:
    """Add the photograph of a request of one with its boxes and targets; return what is drawn for its views.

    A gray picture, and nothing that is drawn, for a photograph that cannot be decoded.
    """
    try:
        source, drawn = _add_source(card, fetcher, request)
        if targets is not None:
            size = (source.height, source.width)
            found = moved_targets(targets, fetcher.shards, int(request.ids[0]), View.whole(size, size))
            card.pictures[0] = with_targets(card.pictures[0], found, size)
    except DecodeError:
        gray = Image.new("RGB", (_SIDE, _SIDE), "#c9ced5")
        card.add(gray, "cannot be decoded: replaced by another sample")
        return []
    return drawn


def _add_source(
    card: Card, fetcher: Any, request: Request, results: list[tuple[int, int]] | None = None
) -> tuple[Image.Image, list[View]]:
    """Add the photograph of a request of one to its card; return it, and what is drawn for its views.

    ``results``: (height, width) of the images of each view; by default what the request's views have.
    """
    source = open_rgb(fetcher.shards.images(request.ids)[0].numpy().tobytes())
    if request.views and request.views[0].samples is not None:  # made of several: the first is its own
        if int(request.views[0].samples[0]) != int(request.ids[0]):
            raise DecodeError("another sample is in its place")
        drawn = [request.views[0].parts().row(0)]
    else:
        results = results or [view.size for view in request.views]  # the crop of a bucket is of its shape
        drawn = fetcher.draw_views(request, np.array([[source.height, source.width]], np.int32), results)
    framed = _with_boxes(source, [view.boxes[0].tolist() for view in drawn])
    card.add(framed, f"{source.width} x {source.height}")
    return source, drawn


def _with_boxes(source: Image.Image, boxes: list[list[int]]) -> Image.Image:
    """Shrink a source, fade what is outside of the boxes, and outline them."""
    shown = ImageOps.contain(source, _SOURCE, Image.Resampling.LANCZOS)
    scale = shown.width / source.width
    gray = Image.blend(shown.convert("L").convert("RGB"), Image.new("RGB", shown.size, "white"), 0.45)
    faded = Image.blend(shown, gray, _FADE)
    places = []
    for top, left, height, width in boxes:
        x, y = round(left * scale), round(top * scale)
        right, bottom = round((left + width) * scale), round((top + height) * scale)
        places.append((x, y, max(right, x + 1), max(bottom, y + 1)))
        faded.paste(shown.crop(places[-1]), places[-1][:2])
    drawing = ImageDraw.Draw(faded)
    for x, y, right, bottom in places:
        drawing.rectangle((x, y, right - 1, bottom - 1), outline="white", width=3)
        drawing.rectangle((x, y, right - 1, bottom - 1), outline=_BOX, width=2)
    return faded


def _picture(augment: Any, image: Tensor) -> Image.Image:
    """Convert RGB or gray ``[C, H, W]`` to a picture: uint8 as it is, else with the normalisation undone."""
    levels = image.detach().cpu().double()
    if isinstance(augment, Augment):
        levels = augment.denormalise(levels)
    elif image.dtype != torch.uint8:  # another module, with unknown levels
        low, high = levels.aminmax()
        levels = 255 * (levels - low) / (high - low).clamp(min=1e-9)
    array = levels.round().clamp(0, 255).to(torch.uint8).expand(3, -1, -1).permute(1, 2, 0)
    return Image.fromarray(array.contiguous().numpy())


def _fitted(picture: Image.Image) -> Image.Image:
    """Resize a picture to the sheet's side; small pictures keep their pixels visible."""
    is_small = max(picture.size) * 2 <= _SIDE
    method = Image.Resampling.NEAREST if is_small else Image.Resampling.LANCZOS
    return ImageOps.contain(picture, (_SIDE, _SIDE), method)


def _label(label: Tensor, classes: Sequence[str]) -> str:
    """Format a label or the shares of mixed ones, with the names of the classes if they are known."""
    names = dict(enumerate(classes))
    if not label.is_floating_point():
        values = np.atleast_1d(label.numpy()).tolist()
        return "label " + ", ".join(f"{value} {names.get(value, '')}".strip() for value in values)
    shares = sorted(
        ((float(share), number) for number, share in enumerate(label) if share > 0.005), reverse=True
    )
    return "label " + " + ".join(f"{share:.2f} of {names.get(number, number)}" for share, number in shares)


def _caption(params: Mapping[str, Tensor], row: int, size: Sequence[int]) -> str:
    """Describe the params of one image of that size, of ``Augment.params``, in at most three lines."""
    if not params:
        return "to the network"
    moved = ["mirrored"] if "flip" in params and params["flip"][row] else []
    light: list[str] = []
    rest: list[str] = []
    lines = {"brightness": light, "contrast": light, "saturation": rest, "hue": rest}
    for number in range(len(params)):
        if f"weights{number}" in params:
            moved.append(f"{float(params[f'weights{number}'][row, 0]):.0%} of it, mixed")
        elif f"ops{number}" in params:
            steps = zip(
                params[f"ops{number}"][row, 0].tolist(), params[f"values{number}"][row, 0], strict=True
            )
            for name, value in ((_OPERATIONS[code], float(numbers[0])) for code, numbers in steps if code):
                amount = f" {360 * value:+.0f}°" if name == "hue" else f" {value:.2f}"
                lines.get(name, moved).append(name + amount * (name in lines))
    if "matrix" in params:
        moved += _motion(params["matrix"][row], size)
    if "erase_boxes" in params and (params["erase_boxes"][row, :, 2:] > 0).any():
        moved.append("erased")
    if "mask" in params:
        moved.append(f"{float(params['mask'][row].double().mean()):.0%} masked")
    return "\n".join(", ".join(line) for line in (moved, light, rest) if line) or "unchanged"


def _motion(matrix: Tensor, size: Sequence[int]) -> list[str]:
    (a, b, x), (c, d, y) = matrix.tolist()
    if (a, b, x, c, d, y) == (1, 0, 0, 0, 1, 0):
        return []
    height, width = size
    center = torch.tensor([[(width - 1) / 2, (height - 1) / 2]], dtype=torch.float64, device=matrix.device)
    x, y = (matrices.apply(matrix, center) - center)[0].tolist()
    parts = [f"{math.degrees(math.atan2(-c, a)):+.0f}°", f"x{math.sqrt(abs(a * d - b * c)):.2f}"]
    return parts + ([f"by {x:+.0f}, {y:+.0f}"] if max(abs(x), abs(y)) >= 0.5 else [])


def _header(data: Any, split: str, epoch: int, count: int) -> list[str]:
    """Return a title, the crops, and the augmentation."""
    shown = data.splits[split]
    crops = shown.view_crops()
    flip = f", flip {shown.flip:g}" if shown.flip else ", transform=" * (shown.transform is not None)
    changes = _counted(map(_changes, modules_of(data.augment)[: len(crops)])) or "no augmentation"
    title = f"What the network sees: {split}, epoch {epoch}, {count} sample{'s' * (count > 1)}"
    return [title, _counted(map(_short, crops)) + flip, changes]


def _changes(augment: torch.nn.Module) -> str:
    if not isinstance(augment, Augment):
        return type(uncompiled(augment)).__name__
    parts = []
    if augment.training:
        if augment.flip:
            parts.append(f"flip {augment.flip:g}")
        parts += [_short(part) for part in (*augment.policies, *augment.distortions.values())]
        if augment.mix is not None:
            parts.append(_short(augment.mix))
    if augment.space == "ycbcr":
        parts.append("YCbCr, shown as RGB")
    return "; ".join(parts) or "normalised only"


def _counted(texts: Iterable[str]) -> str:
    """Join texts; equal neighbours once, with their count."""
    runs = [(text, sum(1 for _ in run)) for text, run in groupby(texts)]
    return "; ".join(f"{count} x ({text})" if count > 1 else text for text, count in runs)


def _short(part: Any) -> str:
    """Describe a dataclass by the fields that differ from their defaults."""
    if not is_dataclass(part) or isinstance(part, type):
        return repr(part)
    fresh = type(part)(**{f.name: getattr(part, f.name) for f in fields(part) if f.default is MISSING})
    given = [
        f"{f.name} {_value(getattr(part, f.name))}"
        for f in fields(part)
        if f.default is MISSING or getattr(part, f.name) != getattr(fresh, f.name)
    ]
    return f"{type(part).__name__} {', '.join(given)}".strip()


def _value(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(side, int) for side in value):
        return f"{value[0]} x {value[1]}"
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(side, float) for side in value):
        return f"±{value[1]:g}" if value[0] == -value[1] else f"{value[0]:g}..{value[1]:g}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _page(cards: list[Card], header: list[str], columns: int) -> Image.Image:
    columns, rows = min(columns, len(cards)), -(-len(cards) // min(columns, len(cards)))
    # All cards have one layout: the width of the widest source, the most pictures, the most lines of text.
    source = max(_MIN_WIDTH, *(card.pictures[0].width for card in cards))
    content = source + (max(len(card.pictures) for card in cards) - 1) * (_SIDE + _GAP)
    lines = max(1 + text.count("\n") for card in cards for text in card.texts)
    below = [_wrapped(card.lines, content) for card in cards]
    rest = _LINE * max(map(len, below)) + (4 if any(below) else 0)
    width, height = content + 2 * _PAD, _TITLE + _SIDE + 4 + _LINE * lines + rest + 2 * _PAD
    size = (columns * (width + _GAP) + _GAP, _HEADER + rows * (height + _GAP))
    page = Image.new("RGB", size, _PAGE)
    drawing = ImageDraw.Draw(page)
    _write(drawing, (_GAP + 2, 16), header[0], size[0] - 2 * _GAP, 24, _INK)
    for row, line in enumerate(header[1:]):
        _write(drawing, (_GAP + 2, 50 + 20 * row), line, size[0] - 2 * _GAP, 14)
    for place, card in enumerate(cards):
        x = _GAP + place % columns * (width + _GAP)
        y = _HEADER + place // columns * (height + _GAP)
        drawing.rounded_rectangle((x, y, x + width, y + height), 10, _CARD)
        _draw(page, drawing, card, source, content, x + _PAD, y + _PAD)
        for row, line in enumerate(below[place]):
            top = y + height - _PAD - rest + 4 + _LINE * row
            _write(drawing, (x + _PAD, top), line, content, _SMALL, _INK)
    return page


def _wrapped(texts: Sequence[str], width: int) -> list[str]:
    """Break texts into lines, each into at most ``_MOST_LINES``, of which the last may be too long."""
    lines: list[str] = []
    for text in texts[:_MOST_CAPTIONS]:
        rest = text
        for _ in range(_MOST_LINES - 1):
            line = _beginning(rest, width)
            if line == rest:
                break
            lines.append(line)
            rest = rest[len(line) :].lstrip()
        lines.append(rest)
    more = len(texts) - _MOST_CAPTIONS
    return [*lines, f"and {more} more"] if more > 0 else lines


def _beginning(text: str, width: int) -> str:
    """Return as many words of a text as have room in a line, or as many letters of a longer word."""
    font, _ = _font_of(text, _SMALL)
    end = len(text)
    while end > 1 and ImageDraw.Draw(Image.new("L", (1, 1))).textlength(text[:end], font) > width:
        space = text.rfind(" ", 0, end)
        end = space if space > 0 else end - 1
    return text[:end]


def _draw(
    page: Image.Image, drawing: ImageDraw.ImageDraw, card: Card, source: int, width: int, x: int, y: int
) -> None:
    _write(drawing, (x, y - 2), card.key, width // 2 - _GAP, 15, _INK)
    _write(drawing, (x + width, y - 2), card.label, width // 2, 15, anchor="ra")
    for number, (picture, text) in enumerate(zip(card.pictures, card.texts, strict=True)):
        column = source if number == 0 else _SIDE
        page.paste(picture, (x, y + _TITLE + (_SIDE - picture.height) // 2))
        for row, line in enumerate(text.split("\n")):
            _write(drawing, (x, y + _TITLE + _SIDE + 4 + _LINE * row), line, column, 12)
        x += column + _GAP


@functools.cache
def _fonts(size: int) -> list[ImageFont.FreeTypeFont]:
    """Pillow's own font, which has ASCII only, and those of the system that have more."""
    found = [ImageFont.load_default(size)]
    for name in _FONTS:
        with contextlib.suppress(OSError):
            found.append(ImageFont.truetype(name, size))
    return [font for font in found if isinstance(font, ImageFont.FreeTypeFont)]


@functools.cache
def _has(font: Any, character: str) -> bool:
    """Return whether a font has a glyph: others are drawn as the one of a number that is no character."""
    if "!" <= character <= "~" or character == " ":
        return True
    if not isinstance(font, ImageFont.FreeTypeFont) or not character.isprintable():
        return False
    return bytes(font.getmask(character)) != bytes(font.getmask("\U0010ffff"))


def _font_of(text: str, size: int) -> tuple[Any, str]:
    """Return the font that has most of the text, and the text, with escapes for what the font lacks."""
    fonts: list[Any] = _fonts(size) or [ImageFont.load_default(size)]
    lost = [sum(not _has(font, character) for character in text) for font in fonts]
    font = fonts[lost.index(min(lost))]
    if any(character.isprintable() and not _has(font, character) for character in text):
        warn(
            "no font of this system has all letters of some captions: the others are escaped. Install "
            "fonts-noto-cjk (Chinese, Japanese, Korean) or fonts-dejavu (Greek, Cyrillic and others)."
        )
    shown = (
        character if _has(font, character) else character.encode("unicode_escape").decode()
        for character in text
    )
    return font, "".join(shown)


def _write(
    drawing: ImageDraw.ImageDraw,
    place: tuple[int, int],
    text: str,
    width: int,
    size: int,
    colour: str = _GRAY,
    anchor: str | None = None,
) -> None:
    """Write one line of text, shortened to ``width``."""
    font, text = _font_of(text, size)
    shown = text
    while text and drawing.textlength(shown, font) > width:
        text = text[:-1]
        shown = text + "..."
    drawing.text(place, shown, colour, font, anchor=anchor)
