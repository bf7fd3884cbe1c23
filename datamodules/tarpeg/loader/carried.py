"""Targets that steps of ``transform=`` in Python move: to such a step and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..sampling.geometry import Bool, View, drops_of
from ..shards.source import Source
from ..targets.boxes import Boxes, Objects
from ..targets.keypoints import Keypoints, Points
from ..targets.masks import Masks
from ..targets.moved import dicts_of
from ..targets.protocols import Targets, by_name
from ..targets.steps import move_targets
from ..transforms.pipeline import Pipeline
from ..transforms.torchvision import shown_step


@dataclass(frozen=True)
class Carrier:
    """Carries the targets of one image through the steps in Python.

    Args:
        targets: Of the split: ``Boxes``, ``Keypoints`` and ``Masks``.
        source: The samples, for messages; not for ``example``.
    """

    targets: Targets
    source: Source | None = None

    def start(self, value: Mapping[str, Any], view: View, id: int) -> dict[str, Any]:
        """Return the target as the steps get it: moved by the view of one row, as ``tv_tensors``."""
        from ..transforms.moving import wrapped  # here, because it imports torchvision

        assert self.source is not None
        # Sizes of boxes are those of the result: small ones are dropped behind the steps.
        kept = {
            name: replace(each, min_size=0, min_area=0) if isinstance(each, Boxes) else each
            for name, each in by_name(self.targets).items()
        }
        fields, _ = move_targets(kept, [value], view, self.source, np.array([id], np.int64))
        return wrapped(dicts_of(fields, 1)[0], view.size)

    def finish(self, value: Mapping[str, Any], target: dict[str, Any]) -> dict[str, Any]:
        """Return the value with the targets as the steps left them: in pixels of the result."""
        from ..transforms.moving import unwrapped

        found, arrays = dict(value), {name: each.numpy() for name, each in unwrapped(target).items()}
        for name, each in by_name(self.targets).items():
            if isinstance(each, Boxes):
                parts = (arrays[field] for field in ("boxes", "labels", "area", "iscrowd"))
                boxes, labels, area, iscrowd = parts
                floats = boxes.astype(np.float64), area.astype(np.float64)
                found[name] = Objects(floats[0], labels, floats[1], iscrowd, value[name].image_id)
            elif isinstance(each, Keypoints):
                found[name] = Points(arrays["keypoints"].astype(np.float64), value[name].image_id)
            else:
                found[name] = np.ascontiguousarray(arrays["mask"])
        return found

    def example(self, size: tuple[int, int]) -> dict[str, Any]:
        """Return a target of an image of (height, width) with one object, to see what steps return."""
        from ..transforms.moving import wrapped

        height, width = size
        found: dict[str, Any] = {}
        for each in by_name(self.targets).values():
            if isinstance(each, Boxes):
                found["boxes"] = torch.tensor([[0.0, 0.0, width, height]])
                found |= {
                    "labels": torch.ones(1, dtype=torch.int64),
                    "area": torch.tensor([1.0 * height * width]),
                }
                found["iscrowd"] = torch.zeros(1, dtype=torch.int64)
            elif isinstance(each, Keypoints):
                found["keypoints"] = torch.tensor([[[width / 2, height / 2, 2.0]] * each.count])
            elif isinstance(each, Masks):
                found["mask"] = torch.zeros(height, width, dtype=torch.uint8)
        return wrapped(found, size)


def carrier_of(targets: Targets | None, source: Source | None = None) -> Carrier | None:
    """Return what carries these targets; None if steps in Python cannot move all of them."""
    kinds = (Boxes, Keypoints, Masks)
    if targets is None or not all(isinstance(each, kinds) for each in by_name(targets).values()):
        return None
    return Carrier(targets, source)


def arrived(view: View, rows: Bool) -> View:
    """Return the view of targets of which ``rows`` have values in pixels of the result.

    What the crop drops is dropped before the steps.
    """
    whole = np.array([0, 0, *view.size], np.int32)
    boxes = np.where(rows[:, None], whole, view.boxes)
    places = None if view.places is None else np.where(rows[:, None], whole, view.places)
    drops = drops_of(view.all_drops & ~rows)
    return replace(view, boxes=boxes, places=places, flips=view.flips & ~rows, drops_by_centre=drops)


def check_carried(name: str, pipeline: Pipeline, targets: Targets) -> None:
    """Raise ValueError if steps in Python would move images without their targets."""
    if not pipeline.moves_targets_in_python or carrier_of(targets) is None:
        return
    steps = f"{name} has steps of transform= in Python that move pixels"
    places = {each.objects for each in by_name(targets).values() if isinstance(each, (Boxes, Keypoints))}
    if len(places) > 1:
        raise ValueError(f"{steps}: Boxes and Keypoints must be of the same objects, not {sorted(places)}")
    for step in pipeline.steps_without_targets:
        raise ValueError(
            f"{steps}, and {shown_step(step)} takes no targets: give a step of torchvision.transforms.v2, or "
            "of Albumentations in A.Compose([...], bbox_params=...)"
        )
