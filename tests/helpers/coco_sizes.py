"""10,000 image sizes distributed as those of COCO: the shares of the commonest, quantiles of the others.

Of the 117,263 sizes that ultralytics/yolov3 lists in data/trainvalno5k.shapes: COCO's images of 2014 for
training and validation but 5,000, photographs of Flickr. Most have a longer side of 640 or 500 pixels. Those
that have neither, 1.6%, are left out unless they are among the commonest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

COMMON = {
    **{(480, 640): 2145, (427, 640): 1238, (640, 480): 704, (426, 640): 453, (375, 500): 439},
    **{(640, 427): 360, (428, 640): 280, (425, 640): 266, (612, 612): 205, (500, 375): 162},
    **{(424, 640): 146, (640, 426): 138, (333, 500): 137, (640, 640): 131, (360, 640): 120},
    **{(478, 640): 83, (429, 640): 79, (640, 428): 77, (640, 425): 74, (500, 333): 57},
    **{(640, 478): 49, (640, 424): 41, (332, 500): 39, (512, 640): 39, (479, 640): 35},
    **{(334, 500): 35, (359, 640): 34, (481, 640): 33, (457, 640): 33, (423, 640): 24},
    **{(361, 640): 22, (500, 500): 22, (400, 640): 19, (400, 500): 19, (458, 640): 19},
    **{(640, 512): 18, (335, 500): 18, (640, 429): 18, (433, 640): 18, (383, 640): 17},
}
"""Images of 10,000 by (height, width): the 40 commonest sizes."""

OTHERS = {
    (640, "wide"): (
        1241,
        *(104, 298, 339, 366, 385, 398, 408, 416, 422, 435, 441),
        *(449, 459, 469, 482, 489, 502, 516, 543, 584, 639),
    ),
    (640, "high"): (
        509,
        *(156, 359, 371, 394, 411, 422, 433, 443, 453, 458, 465),
        *(476, 481, 488, 499, 513, 530, 555, 586, 621, 639),
    ),
    (500, "wide"): (
        248,
        *(102, 263, 281, 299, 314, 325, 331, 337, 343, 349, 357),
        *(364, 372, 376, 378, 385, 399, 416, 439, 473, 499),
    ),
    (500, "high"): (
        156,
        *(164, 309, 328, 332, 332, 334, 334, 335, 338, 346, 356),
        *(364, 374, 378, 389, 400, 412, 433, 459, 487, 499),
    ),
}
"""Of the others, by longer side and orientation: images, and quantiles 0, 0.05, ... 1 of the shorter side."""


def sizes() -> npt.NDArray[np.int64]:
    """Return the sizes (height, width), int64 [10000, 2]: the same each time."""
    found = [np.repeat([size], count, axis=0) for size, count in COMMON.items()]
    for (longer, orientation), (count, *quantiles) in OTHERS.items():
        places = (np.arange(count) + 0.5) / count * (len(quantiles) - 1)
        shorter = np.interp(places, np.arange(len(quantiles)), quantiles).round().astype(np.int64)
        pair = [shorter, np.full(count, longer)]
        found.append(np.stack(pair if orientation == "wide" else pair[::-1], axis=1))
    return np.concatenate(found)
