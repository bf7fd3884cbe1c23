"""CopyPaste done by hand, object by object: what is pasted, and what is left of the objects behind it."""

from __future__ import annotations

import tarpeg
import torch
from torchvision.ops import masks_to_boxes

from helpers.pictures import tensor


def decoded_alone(source, id, view, fill, **options):
    """The image of one part, at its place in a canvas: uint8 [C, H, W]."""
    canvas, file = (
        torch.full((options.get("channels", 3), *view.size), fill, dtype=torch.uint8),
        source.files[id],
    )
    top, left, height, width = view.places[0].tolist()
    if not file.startswith(b"\xff\xd8"):
        file = tarpeg.shards.pillow.ppm(tarpeg.shards.pillow.open_upright(file, 10**6).convert("RGB"))
    given = [tensor(file)], torch.from_numpy(view.boxes), (height, width), torch.from_numpy(view.flips)
    image, status = tarpeg.decode_batch(*given, **options)
    assert status.tolist() == [0]
    canvas[:, top : top + height, left : left + width] = image[0]
    return canvas


def pasted(own, other, numbers, fills):
    """One image with its targets after the objects ``numbers`` of another are pasted, as by torchvision.

    Args:
        own: Its dict, with ``image``, of targets that drop nothing.
        other: That of the other sample.
        numbers: Of the objects of the other sample.
        fills: Value of each picture that is outside of an image.
    """
    where = other["masks"][numbers].sum(dim=0) > 0
    found = {"image": torch.where(where, other["image"], own["image"])}
    masks = own["masks"] * ~where
    before, after = own["masks"].sum(dim=(1, 2)), masks.sum(dim=(1, 2))
    kept = (after > 0) | (before == 0)
    is_cut = (after < before)[kept]
    boxes = own["boxes"][kept].clone()
    if is_cut.any():  # torchvision counts the last pixel, not its edge
        boxes[is_cut] = masks_to_boxes(masks[kept][is_cut]) + torch.tensor([0.0, 0.0, 1.0, 1.0])
    share = torch.where(before > 0, after / before.clamp(min=1), 1.0)
    points = own["keypoints"].clone()
    for x, y, visibility in points.view(-1, 3):
        row, column = min(int(y), where.shape[0] - 1), min(int(x), where.shape[1] - 1)
        if visibility == 2 and where[row, column]:
            visibility.fill_(1)
    found["masks"] = torch.cat([masks[kept], other["masks"][numbers]])
    found["boxes"] = torch.cat([boxes, other["boxes"][numbers]])
    found["area"] = torch.cat([(own["area"] * share)[kept], other["area"][numbers]])
    for name, first in (("labels", own["labels"]), ("iscrowd", own["iscrowd"]), ("keypoints", points)):
        found[name] = torch.cat([first[kept], other[name][numbers]])
    for name in fills:
        found[name] = torch.where(where, other[name], own[name])
    return found
