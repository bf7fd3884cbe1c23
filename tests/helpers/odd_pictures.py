"""Pictures of odd shapes and formats in memory, with boxes, keypoints, outlines and a mask each."""

from __future__ import annotations

import json

import numpy as np
import tarpeg
from PIL import Image

from helpers.pictures import jpeg, picture, saved

KINDS = ["420", "444", "422", "progressive", "gray22", "cmyk", "411", "440"]
SHAPES = [(37, 52), (80, 33), (48, 64), (120, 90), (20, 21), (64, 200), (1, 1), (55, 70)]


class Pictures(tarpeg.Source):
    """JPEGs of all samplings and odd shapes, PNGs, and one on its side; with objects and a mask each."""

    def __init__(self, broken=()):
        shapes = zip(KINDS, SHAPES, strict=True)
        self.files = [jpeg(kind, *shape, seed) for seed, (kind, shape) in enumerate(shapes)]
        self.files += [picture("PNG", 5, size=(44, 61)), picture("JPEG", 6, size=(44, 61), orientation=6)]
        self.files += [picture("PNG", 7, mode="LA", size=(23, 90))]
        self.sizes_of = [*SHAPES, (44, 61), (61, 44), (23, 90)]
        self.files = [b"broken" if id in broken else file for id, file in enumerate(self.files)]
        self.masks, self.objects = [], []
        for id, (height, width) in enumerate(self.sizes_of):
            rng = np.random.default_rng(id)
            self.masks.append(rng.integers(0, 5, (height, width), np.uint8))
            found = []
            for label in range(3 if min(height, width) > 9 else 0):
                w, h = rng.uniform(4, width), rng.uniform(4, height)
                x, y = rng.uniform(0, width - w), rng.uniform(0, height - h)
                points = [x, y, 2, x + w / 2, y + h / 2, 1]
                corners = [x, y, x + w, y, x + w, y + h, x, y + h]
                found.append({"bbox": [x, y, w, h], "category_id": 10 * id + label, "keypoints": points})
                found[-1]["segmentation"] = [corners]
            self.objects.append(found)

    def __len__(self):
        return len(self.files)

    def keys(self, ids):
        return [str(id) for id in ids]

    def members(self, ids, extension):
        found = []
        for id in ids:
            content = {"jpg": self.files[id], "png": saved(Image.fromarray(self.masks[id]), "PNG")}
            content["json"] = json.dumps({"objects": self.objects[id]}).encode()
            found.append(content.get(extension))
        return found

    def extensions(self, id):
        return ["jpg", "json", "png"]
