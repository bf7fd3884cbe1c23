"""Scenes in memory: images whose gray level is the number of their sample, and members given by a test."""

from __future__ import annotations

import json

import numpy as np
import tarpeg

from helpers.pictures import jpeg


class Scenes(tarpeg.Source):
    """A source of flat gray images of 48 x 64; sample i has the level 10 * i, and one box at (i, i).

    Args:
        members: By number, members that replace those of a sample; None removes one.
        count: Number of samples.
        size: (height, width) of the images.
    """

    def __init__(self, members=None, count=12, size=(48, 64)):
        self.samples = []
        for number in range(count):
            pixels = np.full((*size, 3), 10 * number, np.uint8)
            annotation = {"bbox": [number, number, 20, 10], "category_id": number, "area": 100, "iscrowd": 0}
            text = json.dumps({"id": 100 + number, "objects": [annotation]}).encode()
            given = (members or {}).get(number, {})
            sample = {"jpg": jpeg("420", *size, rgb=pixels), "json": text, **given}
            self.samples.append({name: content for name, content in sample.items() if content is not None})

    def __len__(self):
        return len(self.samples)

    def keys(self, ids):
        return [f"scene/{id:03d}" for id in np.asarray(ids).tolist()]

    def members(self, ids, extension):
        return [self.samples[id].get(extension) for id in np.asarray(ids).tolist()]

    def extensions(self, id):
        return list(self.samples[id])


def objects(*found, **more):
    """A member of JSON with these objects; numbers stand for the box of an object of category 1."""
    found = [{"bbox": list(each), "category_id": 1} if isinstance(each, tuple) else each for each in found]
    return {"json": json.dumps({"objects": found, **more}).encode()}


def number_of(image):
    """The number of the sample in an image of ``Scenes``."""
    return round(float(image.float().mean()) / 10)
