"""What stands on a contact sheet, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from . import matrices
from .augment import Augment


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
