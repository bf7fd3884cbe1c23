"""Small data sets in the layouts of COCO and others: images with known boxes, outlines, points and masks."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import tarpeg
from PIL import Image

from helpers.pictures import jpeg, saved

SIZES = [(48, 64), (64, 48), (40, 80), (56, 56)]
CATEGORIES = [{"id": 3, "name": "car"}, {"id": 17, "name": "cat"}, {"id": 90, "name": "brush"}]
VOC_BOXES = [("cat", 1, 1, 20, 30), ("person", 5, 6, 48, 48), ("tvmonitor", 2, 3, 10, 11)]
PART = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
YOLO_LINES = "0 0.5 0.25 0.5 0.25\n\n1 0.25 0.5 0.125 0.5\n"


def picture(number):
    """The JPEG of an image and its size, (height, width)."""
    height, width = SIZES[number % len(SIZES)]
    return jpeg("420", height, width, number), (height, width)


def boxes(number):
    """The boxes of an image, [left, top, width, height]: its number modulo 3 of them."""
    return [[2 + 4.5 * place, 3 + place, 20.5, 10 + number] for place in range(number % 3)]


def coco(place, count=6, folder="images"):
    """Write images and instances.json, with polygons, run lengths and keypoints; return the document."""
    document = {"info": {}, "images": [], "annotations": [], "categories": CATEGORIES}
    (place / folder).mkdir(parents=True)
    for number in range(count):
        data, (height, width) = picture(number)
        name = f"{number:012d}.jpg"
        (place / folder / name).write_bytes(data)
        document["images"].append(
            {"id": 100 + number, "file_name": name, "height": height, "width": width, "license": 1}
        )
        for box, category in zip(boxes(number), CATEGORIES, strict=False):
            left, top, wide, high = box
            counts = [int(left) * height, 7, height * width - int(left) * height - 7]
            corners = [left, top, left + wide, top, left + wide, top + high, left, top + high]
            document["annotations"].append(
                {
                    "id": len(document["annotations"]) + 1,
                    "image_id": 100 + number,
                    "category_id": category["id"],
                    "bbox": box,
                    "area": wide * high / 2,
                    "iscrowd": int(category["id"] == 17),
                    "segmentation": {"size": [height, width], "counts": counts}
                    if category["id"] == 17
                    else [corners],
                    "keypoints": [left + 1, top + 1, 2, 0, 0, 0, left + 2, top + 2, 1],
                    "num_keypoints": 2,
                }
            )
    (place / "instances.json").write_text(json.dumps(document))
    return document


def masks(place, sizes, folder="masks"):
    """Write a mask per name and size, values are palette numbers and 255; return them by name."""
    (place / folder).mkdir(parents=True, exist_ok=True)
    found = {}
    for number, (name, (height, width)) in enumerate(sizes.items()):
        values = np.random.default_rng(number).integers(0, 5, (height, width), np.uint8)
        values[0] = 255
        image = Image.fromarray(values, "P")
        image.putpalette(list(range(256)) * 3)
        (place / folder / f"{name}.png").write_bytes(saved(image, "PNG"))
        found[name] = values
    return found


def xml(size, objects, more=""):
    things = "".join(
        f"<object><name>{name}</name><pose>Left</pose><truncated>1</truncated><difficult>0</difficult>"
        f"<bndbox><xmax>{right}</xmax><xmin>{left}</xmin><ymin>{top}</ymin><ymax>{bottom}</ymax></bndbox>"
        f"{PART}</object>"
        for name, left, top, right, bottom in objects
    )
    shape = f"<size><width>{size[1]}</width><height>{size[0]}</height><depth>3</depth></size>"
    return f"<annotation>{shape}{things}{more}</annotation>"


def devkit(place, count=4):
    """Write VOCdevkit/VOC2012 with masks and lists; return its folder and the values of the masks."""
    root = place / "VOCdevkit" / "VOC2012"
    for part in ("JPEGImages", "Annotations", "ImageSets/Main", "ImageSets/Segmentation"):
        (root / part).mkdir(parents=True)
    sizes = {}
    for number in range(count):
        data, sizes[f"2008_{number}"] = picture(number)
        (root / "JPEGImages" / f"2008_{number}.jpg").write_bytes(data)
        text = xml(sizes[f"2008_{number}"], VOC_BOXES[: number % 4 or 3])
        (root / "Annotations" / f"2008_{number}.xml").write_text(text)
    for part in ("Main", "Segmentation"):
        (root / "ImageSets" / part / "train.txt").write_text("".join(f"{name}\n" for name in sizes))
    return root, masks(root, sizes, "SegmentationClass")


def layout(place, lines=YOLO_LINES, count=3, names="names: {0: cat, 1: dog}", more=""):
    """Write images/train, labels/train and data.yaml; image 2 has no labels."""
    for part in ("images", "labels"):
        (place / part / "train" / "deep").mkdir(parents=True)
    for number in range(count):
        name = f"{'deep/' * (number == 1)}{number}"
        (place / "images" / "train" / f"{name}.jpg").write_bytes(picture(number)[0])
        if number < 2:
            (place / "labels" / "train" / f"{name}.txt").write_text(lines)
    (place / "data.yaml").write_text(f"train: images/train\n{names}\n{more}")
    return place / "data.yaml"


def targets_of(shards, *targets, size=(50, 60)):
    """The targets of whole images, by key."""
    found = list(targets) if len(targets) > 1 else targets[0]
    split = tarpeg.Split(shards / "train-*.tar", tarpeg.Whole(size), target=None, targets=found)
    loader = tarpeg.Loader(split, batch_size=1, workers=0, keys=True)
    with contextlib.closing(loader):
        return {keys[0]: found[0] for _, found, keys in loader}
