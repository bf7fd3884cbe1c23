"""Boxes that become parts of images: the pixels of each box alone, its colour around it, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers import pictures
from tarpeg.ops import decode

MODES = ("bilinear", "bicubic", "lanczos", "nearest", "box")
COUNT = 5


def rectangle(rng, height, width):
    """A random (top, left, height, width) in an area."""
    size = [int(rng.integers(1, side + 1)) for side in (height, width)]
    return [int(rng.integers(0, height - size[0] + 1)), int(rng.integers(0, width - size[1] + 1)), *size]


@pytest.fixture(scope="module")
def files():
    """Of all kinds, tiled, packed, and on their sides."""
    made = [pictures.tensor(pictures.jpeg(kind, 90, 133, i)) for i, kind in enumerate(pictures.KINDS)]
    made += [tarpeg.tile_jpeg(made[0], 32), tarpeg.pack_jpeg(made[1])]
    turned = [pictures.picture("JPEG", 3, size=(90, 133), orientation=each) for each in range(2, 9)]
    return [*made, *map(pictures.tensor, [*turned, pictures.picture("PPM", 3, size=(90, 133))])]


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("is_float", [False, True], ids=["uint8", "float32"])
def test_the_pixels_of_boxes_alone_and_nothing_around_their_cells(files, channels, is_float):
    rng = np.random.default_rng(4)
    sizes = tarpeg.image_sizes(files).tolist()
    dtype, norm = torch.uint8, {}
    if is_float:
        dtype, norm = torch.float32, {"mean": [0.3] * channels, "std": [0.2] * channels}
    for number in range(60):
        options = {"interpolation": MODES[number % 5], "fidelity": ("fast", "exact")[number % 2], **norm}
        chosen = rng.permutation(len(files))[:COUNT].tolist()
        height, width = rng.integers(1, 120, 2).tolist()
        boxes = [rectangle(rng, *sizes[each]) for each in chosen]
        cells = [rectangle(rng, height, width) for _ in chosen]
        parts = [rectangle(rng, *cell[2:]) for cell in cells]
        for box, cell, part in zip(boxes, cells, parts, strict=True):
            if box[2] <= cell[2] and box[3] <= cell[3]:  # copied, not resized
                part[:] = [0, 0, *box[2:]]
        colours = rng.integers(0, 256, (COUNT, 3)).tolist()
        order = rng.permutation(COUNT).tolist()  # of the images
        table = [[order[i], *cells[i], *parts[i], *colours[i]] for i in range(COUNT)]
        flips = torch.from_numpy(rng.random(COUNT) < 0.5)
        memory = torch.full((COUNT + 1, height, width, channels), 77, dtype=dtype)
        out, wanted = (each.permute(0, 3, 1, 2) for each in (memory, memory.clone()))
        given, places = torch.tensor(boxes, dtype=torch.int32), torch.tensor(table, dtype=torch.int32)
        picked = [files[each] for each in chosen]
        outs = [out[:2], out[2:COUNT]]
        status = decode.decode_sizes(picked, given, flips, outs, **options, places=places, threads=2)
        assert not status.any()
        for i in range(COUNT):
            (top, left, rows, columns), (y, x, high, wide) = cells[i], parts[i]
            row = slice(i, i + 1)
            alone, _ = tarpeg.decode_batch(
                picked[row], given[row], (high, wide), flips[row], channels=channels, dtype=dtype, **options
            )
            colour = torch.tensor(colours[i][:channels], dtype=torch.uint8)
            colour = (colour.float() / 255 - 0.3) / 0.2 if is_float else colour
            cell = wanted[order[i], :, top : top + rows, left : left + columns]
            cell[:] = colour[:, None, None]
            cell[:, y : y + high, x : x + wide] = alone[0]
        torch.testing.assert_close(out, wanted, rtol=1e-5 * is_float, atol=1e-5 * is_float)


def test_opcheck(files):
    out = torch.zeros((1, 16, 12, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    box = torch.tensor([[0, 0, 90, 133]], dtype=torch.int32)
    places = torch.tensor([[0, 1, 2, 10, 9, 3, 4, 5, 5, 1, 2, 3]], dtype=torch.int32)
    arguments = ([files[0]], box, None, "bilinear", True, True, decode.MAX_PIXELS, None, [out], 0, places)
    schema = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.tarpeg.decode_sizes_out.default, arguments, test_utils=schema)
