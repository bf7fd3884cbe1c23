"""Draw docs/idea.png: what a crop of an ordinary JPEG decodes, and what a crop of a tiled one does.

The photograph is synthetic and the times are measured on this machine now: python docs/draw_idea.py
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

from tarpeg import decode_crop, tile_jpeg
from tarpeg.datasets.synthetic import Photos, photograph

from benchmarks.decode_peers import decode_jpeg
from benchmarks.report import machine_name

TOP, LEFT, SIDE = 232, 440, 256
MCU = 16  # pixels: 4:2:0
SHADE, USED, INK, GRAY = "#33466e", "#e4572e", "#20262d", "#5c6670"


def timed_us(work: Callable[[], object]) -> float:
    """Time one call of `work`: microseconds of this thread's, so that other work does not count."""
    started = time.thread_time()
    work()
    return 1e6 * (time.thread_time() - started)


def interval_of(jpeg: bytes) -> int:
    """Width of a tile in pixels: the restart interval that the header tells, in MCUs."""
    return int.from_bytes(jpeg[jpeg.index(b"\xff\xdd") + 4 :][:2], "big") * MCU


def washed(image: np.ndarray, strength: float) -> np.ndarray:
    """Take colour and contrast out of what nobody looks at."""
    gray = image.mean(axis=2, keepdims=True)
    pale = 255 - (255 - gray) * 0.35
    faded: np.ndarray = np.clip(image * (1 - strength) + pale * strength, 0, 255).astype(np.uint8)
    return faded


def main() -> None:
    """Measure, draw and write the picture."""
    torch.set_num_threads(1)
    jpeg = photograph(Photos(size="article", classes=3), 0).jpeg
    image = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    height, width = image.shape[:2]
    ordinary = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
    tiled = tile_jpeg(ordinary, 32)
    box = (TOP, LEFT, SIDE, SIDE)
    # In turns, so that a busy machine is unkind to both alike.
    rounds = [
        [
            timed_us(lambda: decode_jpeg(ordinary)[:, TOP : TOP + SIDE, LEFT : LEFT + SIDE]),
            timed_us(lambda: decode_crop(tiled, *box)),
        ]
        for _ in range(500)
    ]
    full_us, tiled_us = np.median(np.array(rounds), axis=0)
    cropped = torch.from_numpy(image[TOP : TOP + SIDE, LEFT : LEFT + SIDE].copy()).permute(2, 0, 1)
    assert torch.equal(decode_crop(tiled, *box), cropped), "not the pixels that Pillow decodes"

    tile = interval_of(tiled.numpy().tobytes())
    # One MCU of margin: chroma is upsampled from its neighbours.
    first, last = (LEFT - 1) // tile * tile, min(-(-(LEFT + SIDE + 1) // tile) * tile, width)
    above, below = (TOP - 1) // MCU * MCU, min(-(-(TOP + SIDE + 1) // MCU) * MCU, height)

    figure = Figure(figsize=(12, 4.85), dpi=100, facecolor="white")
    left, right = (figure.add_axes((x, 0.165, 0.474, 0.75)) for x in (0.015, 0.511))

    left.imshow(image, interpolation="lanczos")
    shade: dict[str, Any] = {"facecolor": SHADE, "alpha": 0.58, "linewidth": 0}
    for x, y, wide, high in (
        (0, 0, width, TOP),
        (0, TOP, LEFT, SIDE),
        (LEFT + SIDE, TOP, width - LEFT - SIDE, SIDE),
        (0, TOP + SIDE, width, height - TOP - SIDE),
    ):
        left.add_patch(Rectangle((x - 0.5, y - 0.5), wide, high, **shade))
    left.text(24, 0.62 * TOP, "decoded for nothing", color="white", fontsize=21, weight="bold", va="center")

    shown = washed(image, 0.9)
    shown[above:below, first:last] = image[above:below, first:last]
    right.imshow(shown, interpolation="lanczos")
    for x in range(tile, width, tile):
        right.axvline(x - 0.5, color=GRAY, linewidth=0.5, alpha=0.35)
    for y in range(MCU, height, MCU):
        right.axhline(y - 0.5, color=GRAY, linewidth=0.5, alpha=0.35)
    lit: dict[str, Any] = {"color": "white", "linewidth": 0.7, "alpha": 0.6}
    right.vlines(np.arange(first + tile, last, tile) - 0.5, above, below, **lit)
    right.hlines(np.arange(above + MCU, below, MCU) - 0.5, first, last, **lit)
    outline = [withStroke(linewidth=5, foreground="white")]
    right.text(
        24, 0.62 * TOP, "skipped", color=GRAY, fontsize=21, weight="bold", va="center", path_effects=outline
    )

    for axes, title, caption, result in (
        (left, "An ordinary JPEG is one long stream", "decode, then crop", full_us),
        (right, "tarpeg: tiles that decode alone", "the same pixels", tiled_us),
    ):
        axes.add_patch(Rectangle((LEFT, TOP), SIDE, SIDE, fill=False, edgecolor="white", linewidth=5))
        axes.add_patch(Rectangle((LEFT, TOP), SIDE, SIDE, fill=False, edgecolor=USED, linewidth=2.5))
        axes.set_axis_off()
        axes.set_xlim(-0.5, width - 0.5)
        axes.set_ylim(height - 0.5, -0.5)
        start = axes.get_position().x0
        figure.text(start, 0.955, title, fontsize=15, color=INK, weight="bold", va="center")
        colour = USED if axes is right else INK
        end = axes.get_position().x1
        figure.text(
            end, 0.115, f"{result:.0f} µs", fontsize=21, color=colour, weight="bold", va="center", ha="right"
        )
        figure.text(start, 0.115, caption, fontsize=14, color=INK, va="center")
    ratio, size = full_us / tiled_us, len(tiled) / len(jpeg)
    claim = (
        f"A {SIDE}x{SIDE} crop of {width}x{height}, one thread: {ratio:.1f} times as fast as torchvision, "
        f"bit for bit what Pillow decodes; still an ordinary JPEG, {size:.2f} times the size."
    )
    figure.text(0.015, 0.035, claim, fontsize=10, color=GRAY, va="center")
    figure.text(0.985, 0.035, machine_name(), fontsize=8, color=GRAY, va="center", ha="right")
    path = Path(__file__).with_name("idea.png")
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    # 256 colours, dithered, are enough here, and a fraction of the bytes.
    picture = Image.open(stream).convert("RGB")
    palette = picture.quantize(256)
    picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)


if __name__ == "__main__":
    main()
