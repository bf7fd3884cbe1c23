"""Steps in Python that move an image and its targets: torchvision's v2 and Albumentations.

Targets are a dict of ``tv_tensors``, as v2 takes them. It imports torchvision: import it where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from .adapters import Albumentations
from .torchvision import Step, is_v2, name_of

Target = dict[str, Any]
"""``boxes``, ``labels``, ``area``, ``iscrowd``; ``keypoints`` [N, K, 2], ``visibility`` [N, K]; ``mask``."""
_OF_OBJECTS = ("boxes", "labels", "area", "iscrowd", "keypoints", "visibility")


def wrapped(given: Mapping[str, Any], size: tuple[int, int]) -> Target:
    """Return the target of an image of (height, width) as v2 takes it.

    Args:
        given: Tensors: ``boxes`` float32 [N, 4] (x1, y1, x2, y2), with ``labels``, ``area`` and ``iscrowd``;
            ``keypoints`` float32 [N, K, 3]; ``mask`` uint8 [H, W].
        size: Of the image.
    """
    found: Target = {}
    if "boxes" in given:
        boxes = given["boxes"].as_subclass(Tensor)
        found["boxes"] = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)
        found |= {name: given[name] for name in ("labels", "area", "iscrowd")}
    if "keypoints" in given:
        points = given["keypoints"]
        found["keypoints"] = tv_tensors.KeyPoints(points[..., :2].contiguous(), canvas_size=size)
        found["visibility"] = points[..., 2]
    if "mask" in given:
        found["mask"] = tv_tensors.Mask(given["mask"].as_subclass(Tensor).to(torch.uint8))
    return found


def unwrapped(target: Target) -> dict[str, Any]:
    """Undo ``wrapped``: boxes are (x1, y1, x2, y2) again, whatever the steps made of them."""
    found = dict(target)
    boxes = found.get("boxes")
    if isinstance(boxes, tv_tensors.BoundingBoxes):
        boxes = functional.convert_bounding_box_format(boxes, new_format="XYXY")
        found["boxes"] = boxes.as_subclass(Tensor)
    if "keypoints" in found:
        points, visibility = found["keypoints"].as_subclass(Tensor), found.pop("visibility")
        found["keypoints"] = torch.cat([points, visibility[..., None]], dim=-1)
    if "mask" in found:
        found["mask"] = found["mask"].as_subclass(Tensor)
    return found


def applied(step: Step, image: Any, target: Target) -> Any:
    """Return the image after a step, and change ``target`` as the step moves it.

    Raises ValueError for results that do not belong together.
    """
    before = {name: target[name] for name in ("boxes",) if name in target}
    counts = {name: len(target[name]) for name in _OF_OBJECTS if name in target}
    if isinstance(step, Albumentations):
        image, moved = _by_albumentations(step, image, target)
    elif name_of(step) == "SanitizeBoundingBoxes" and "boxes" in target:
        moved = _sanitized(step, target)
    elif is_v2(step) and not _is_of_images(step):
        image, moved = step(image, target)  # type: ignore[call-arg]
    else:
        return step(image)
    left = {name: len(moved[name]) for name in counts if name in moved}
    if len(left) < len(counts) or len({*left.values()}) > 1:
        raise ValueError(
            f"it returned {left} objects of {counts}: put v2.SanitizeBoundingBoxes into the list itself, not "
            "within another step, and drop objects from all fields"
        )
    if before and len(before["boxes"]) == left["boxes"]:
        old, new = (_areas(each) for each in (before["boxes"], moved["boxes"]))
        moved["area"] = moved["area"] * torch.where(old > 0, new / old.clamp(min=1e-12), 0.0)
    moved = dict(moved)  # a step that does nothing returns what it got
    target.clear()
    target.update(moved)
    return image


def _is_of_images(step: Any) -> bool:
    """Whether it is a v2.Lambda without types: its function would get boxes and masks, too."""
    return name_of(step) == "Lambda" and tuple(step.types) == (object,)


def _areas(boxes: Any) -> Tensor:
    if isinstance(boxes, tv_tensors.BoundingBoxes):
        boxes = functional.convert_bounding_box_format(boxes, new_format="XYXY").as_subclass(Tensor)
    sides: Tensor = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0)
    return sides.prod(dim=1)


def _sanitized(step: Any, target: Target) -> Target:
    """Drop objects as v2.SanitizeBoundingBoxes does, from all fields: it knows labels alone."""
    boxes, kept = functional.sanitize_bounding_boxes(
        target["boxes"], min_size=step.min_size, min_area=step.min_area
    )
    rest = {name: target[name][kept] for name in _OF_OBJECTS if name in target and name != "boxes"}
    if "keypoints" in rest:
        canvas = target["keypoints"].canvas_size
        rest["keypoints"] = tv_tensors.KeyPoints(rest["keypoints"], canvas_size=canvas)
    return {**target, **rest, "boxes": tv_tensors.wrap(boxes, like=target["boxes"])}


def _by_albumentations(step: Albumentations, image: Tensor, target: Target) -> tuple[Any, Target]:
    """Return image and target after a composition; a last number in each row says which object is left."""
    processors = getattr(step.step, "processors", {})
    given = _given_to_albumentations(processors, image, target)
    found = step.step(**given)
    result = step.image_of(found)
    size = tuple(result.shape[-2:])
    moved = dict(target)
    if "mask" in target:
        moved["mask"] = tv_tensors.Mask(torch.as_tensor(found["mask"]))
    kept: Tensor | None = None
    if "boxes" in target:
        rows = np.array(found["bboxes"], np.float64).reshape(-1, 5)
        kept = torch.from_numpy(rows[:, 4].round().astype(np.int64))
        corners = _corners(rows[:, :4], processors["bboxes"].params.format, size)
        moved |= _left(target, kept, torch.from_numpy(corners).float(), size)
    if "keypoints" in target:
        rows = np.array(found["keypoints"], np.float64).reshape(-1, 3)
        moved |= _points_at(rows, target["visibility"], kept, size)
    return result, moved


def _given_to_albumentations(processors: Mapping[str, Any], image: Tensor, target: Target) -> dict[str, Any]:
    """Return the arguments of a composition: image and target in its formats."""
    array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    given: dict[str, Any] = {"image": array}
    if "boxes" in target:
        params = _params(processors, "bboxes", "bbox_params=A.BboxParams(format='pascal_voc')")
        count = len(target["boxes"])
        rows = np.concatenate([target["boxes"].numpy(), np.arange(count)[:, None]], axis=1)
        given["bboxes"] = _in_format(rows.astype(np.float64), params.format, array.shape[:2])
        given |= {name: target["labels"].tolist() for name in params.label_fields or ()}
    if "keypoints" in target:
        params = _params(processors, "keypoints", "keypoint_params=A.KeypointParams(format='xy')")
        if params.format != "xy" or params.label_fields:
            raise ValueError(
                f"keypoint_params= has format={params.format!r}: give 'xy', without label_fields="
            )
        points, seen = target["keypoints"].numpy(), target["visibility"].numpy()
        where = np.argwhere(seen > 0)
        numbers = np.flatnonzero(seen > 0)[:, None]
        given["keypoints"] = np.concatenate([points[tuple(where.T)], numbers], axis=1)
    if "mask" in target:
        given["mask"] = target["mask"].numpy()
    return given


def _left(target: Target, kept: Tensor, corners: Tensor, size: tuple[int, ...]) -> Target:
    """Return the boxes that a composition has left, at ``corners`` [N, 4], with their other fields."""
    left: Target = {name: target[name][kept] for name in ("labels", "area", "iscrowd")}
    if len(kept) < len(target["boxes"]):  # otherwise the caller does
        old = _areas(target["boxes"])[kept]
        left["area"] = left["area"] * _areas(corners) / old.clamp(min=1e-12)
    left["boxes"] = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=size)
    return left


def _points_at(rows: Any, visibility: Tensor, kept: Tensor | None, size: tuple[int, ...]) -> Target:
    """Return the keypoints of the objects that are left, None for all.

    Args:
        rows: (x, y, number) of each point that a composition has left.
        visibility: Of all points before, [N, K].
        kept: Numbers of the objects that are left.
        size: (height, width) of the result.
    """
    numbers = rows[:, 2].round().astype(np.int64)
    points = np.zeros((visibility.numel(), 2), np.float32)
    points[numbers] = rows[:, :2]
    seen = np.zeros(len(points), np.float32)
    seen[numbers] = visibility.reshape(-1).numpy()[numbers]
    keypoints = torch.from_numpy(points).view(*visibility.shape, 2)
    found = torch.from_numpy(seen).view(visibility.shape)
    if kept is not None:
        keypoints, found = keypoints[kept], found[kept]
    return {"keypoints": tv_tensors.KeyPoints(keypoints, canvas_size=size), "visibility": found}


def _params(processors: Mapping[str, Any], name: str, remedy: str) -> Any:
    if name not in processors:
        raise ValueError(f"it has no {name} to move: give A.Compose([...], {remedy})")
    return processors[name].params


def _in_format(rows: Any, kind: str, size: tuple[int, ...]) -> Any:
    """Return boxes (x1, y1, x2, y2, ...) in a format of Albumentations."""
    found = rows.copy()
    if kind in ("coco", "yolo"):
        found[:, 2:4] = rows[:, 2:4] - rows[:, :2]
    if kind == "yolo":
        found[:, :2] = (rows[:, :2] + rows[:, 2:4]) / 2
    if kind in ("yolo", "albumentations"):
        found[:, :4] /= np.tile(size[1::-1], 2)
    return found


def _corners(rows: Any, kind: str, size: tuple[int, ...]) -> Any:
    """Undo ``_in_format``."""
    found = rows.copy()
    if kind in ("yolo", "albumentations"):
        found *= np.tile(size[1::-1], 2)
    if kind == "yolo":
        found[:, :2] -= found[:, 2:] / 2
    if kind in ("coco", "yolo"):
        found[:, 2:] += found[:, :2]
    return found
