"""Draw docs/fidelity.png: how far decode_batch(fidelity="fast") and "exact" are from torchvision v2.

The photographs are synthetic and everything is measured now: python docs/draw_fidelity.py
"""

from __future__ import annotations

import io
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

from tarpeg import decode_batch
from tarpeg.datasets.synthetic import Photos, photograph
from tarpeg.ops.decode import Fidelity

from benchmarks.decode_peers import decode_jpeg, functional

PHOTOS, COUNT = Photos(size="big"), 12
SIDE = 1440  # of the crops that are measured; offsets that no mean begins at
TOP, LEFT = 31, 277
# From ratio 1 to 24, with the last size before each limit and the first behind it.
SIZES = (
    *(1440, 1300, 1152, 1008, 900, 800, 721, 720, 640, 560, 480, 411, 360, 320, 288, 262, 241),
    *(240, 220, 200, 180, 160, 144, 131, 120, 103, 90, 80, 73, 72, 69, 66, 63, 60),
)
LIMITS = {2: 2, 6: 4, 20: 8}  # ratio: samples that a mean takes from there on
PROMISED = 0.6
SHOWN, TARGET = 1344, 224  # ratio 6, where fast differs most
WIDTH, HEIGHT, DPI = 1200, 690, 100
FAST, EXACT, INK, GRAY = "#e4572e", "#33466e", "#20262d", "#5c6670"
COLOURS: dict[Fidelity, str] = {"fast": FAST, "exact": EXACT}
# The colour of a difference of 0, 1, 2, ... levels.
RAMP = ("#ffffff", "#ffd9a8", "#fba15b", "#e4572e", "#a3243b", "#5b1240", "#220a2c")


def torchvision_v2(image: Tensor, box: tuple[int, int, int, int], size: int) -> Tensor:
    """Crop and resize as torchvision v2 does."""
    resized: Tensor = functional.resized_crop(image, *box, [size, size], antialias=True)
    return resized


def ours(jpeg: Tensor, box: tuple[int, int, int, int], size: int, fidelity: Fidelity) -> Tensor:
    """Decode one box of one photograph."""
    images, status = decode_batch([jpeg], torch.tensor([box], dtype=torch.int32), size, fidelity=fidelity)
    assert status.tolist() == [0]
    return images[0]


def distance(first: Tensor, second: Tensor) -> Tensor:
    """Absolute difference in levels."""
    return (first.int() - second.int()).abs()


def measured(jpegs: list[Tensor], images: list[Tensor]) -> dict[Fidelity, np.ndarray]:
    """Mean and largest difference from torchvision v2 at each of SIZES, over all photographs: ``[n, 2]``."""
    box = (TOP, LEFT, SIDE, SIDE)
    rows: dict[Fidelity, list[tuple[float, int]]] = {"fast": [], "exact": []}
    for size in SIZES:
        expected = [torchvision_v2(image, box, size) for image in images]
        for fidelity, row in rows.items():
            apart = [
                distance(ours(jpeg, box, size, fidelity), want)
                for jpeg, want in zip(jpegs, expected, strict=True)
            ]
            row.append(
                (
                    float(np.mean([x.float().mean().item() for x in apart])),
                    max(int(x.max()) for x in apart),
                )
            )
    return {fidelity: np.array(row) for fidelity, row in rows.items()}


def draw_pictures(figure: Figure, jpeg: Tensor, image: Tensor) -> None:
    """Draw the three results and the two differences, one screen pixel for each of theirs."""
    box = (78, 330, SHOWN, SHOWN)
    expected = torchvision_v2(image, box, TARGET)
    results = {fidelity: ours(jpeg, box, TARGET, fidelity) for fidelity in COLOURS}
    gap = (WIDTH - 5 * TARGET) / 6
    bottom = HEIGHT - 66 - TARGET

    def place(column: int, title: str, colour: str) -> Axes:
        left = round(gap + column * (TARGET + gap))
        axes = figure.add_axes((left / WIDTH, bottom / HEIGHT, TARGET / WIDTH, TARGET / HEIGHT))
        axes.set_axis_off()
        top = (bottom + TARGET + 14) / HEIGHT
        figure.text(left / WIDTH, top, title, fontsize=11.5, color=colour, weight="bold", va="center")
        return axes

    def caption(column: int, text: str) -> None:
        left = round(gap + column * (TARGET + gap))
        figure.text(left / WIDTH, (bottom - 14) / HEIGHT, text, fontsize=9, color=GRAY, va="center")

    shown = {"torchvision v2": (expected, INK), 'fidelity="exact"': (results["exact"], EXACT)}
    shown['fidelity="fast"'] = (results["fast"], FAST)
    for column, (title, (pixels, colour)) in enumerate(shown.items()):
        place(column, title, colour).imshow(pixels.permute(1, 2, 0).numpy(), interpolation="nearest")
    caption(0, f"{SHOWN}x{SHOWN} to {TARGET}x{TARGET}: ratio {SHOWN / TARGET:.0f}")
    caption(1, "within one level at every pixel")
    caption(2, "the default, and the quicker")
    maps: list[tuple[int, Fidelity]] = [(3, "exact"), (4, "fast")]
    for column, fidelity in maps:
        apart = distance(results[fidelity], expected)
        axes = place(column, f"|{fidelity} - torchvision|", COLOURS[fidelity])
        worst = apart.amax(dim=0).numpy()  # of R, G and B
        axes.imshow(worst, cmap=ListedColormap(RAMP), vmin=0, vmax=len(RAMP) - 1, interpolation="nearest")
        frame = Rectangle((0, 0), 1, 1, transform=axes.transAxes, fill=False, edgecolor=GRAY, linewidth=1)
        axes.add_patch(frame)
        caption(column, f"mean {apart.float().mean():.2f} level of 255, at most {int(apart.max())}")

    # The colour scale, above the two maps.
    left, top = round(gap + 3 * (TARGET + gap)), HEIGHT - 22
    figure.text(
        left / WIDTH,
        top / HEIGHT,
        "amplified; levels of 255:",
        fontsize=9,
        color=GRAY,
        va="center",
    )
    for level, colour in enumerate(RAMP):
        x = left + 222 + 33 * level
        swatch = Rectangle((x / WIDTH, (top - 7) / HEIGHT), 14 / WIDTH, 14 / HEIGHT, facecolor=colour)
        swatch.set(edgecolor=GRAY, linewidth=0.6, transform=figure.transFigure)
        figure.add_artist(swatch)
        last = "+" if level == len(RAMP) - 1 else ""
        figure.text((x + 17) / WIDTH, top / HEIGHT, f"{level}{last}", fontsize=9, color=GRAY, va="center")


def draw_lines(axes: Axes, curves: dict[Fidelity, np.ndarray], column: int, title: str, top: float) -> None:
    """Plot one column of the measurements against the ratio; the lines break at the limits."""
    ratios = SIDE / np.array(SIZES)
    for fidelity in ("exact", "fast"):
        edges = [0, *(int(np.searchsorted(ratios, limit)) for limit in LIMITS), len(ratios)]
        style: dict[str, Any] = {"color": COLOURS[fidelity], "linewidth": 2, "marker": "o", "markersize": 3.5}
        if fidelity == "exact":
            axes.plot(ratios, curves[fidelity][:, column], **style, zorder=4)
            continue
        for first, end in itertools.pairwise(edges):
            axes.plot(ratios[first:end], curves[fidelity][first:end, column], **style, zorder=3)
        for edge in edges[1:-1]:
            axes.plot(
                ratios[edge - 1 : edge + 1],
                curves[fidelity][edge - 1 : edge + 1, column],
                color=FAST,
                linewidth=1,
                linestyle=":",
            )
    for limit, samples in LIMITS.items():
        axes.axvline(limit, color=GRAY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        text = f"means of {samples}" if column == 0 else f"{samples}"
        axes.text(limit * 1.025, top * 0.985, text, fontsize=9, color=GRAY, va="top")
    axes.set_xscale("log")
    axes.set_xlim(0.96, 28 if column == 0 else 26)
    axes.set_ylim(0, top)
    ticks = (1, 2, 3, 4, 6, 8, 12, 20, 24) if column == 0 else (1, 2, 4, 6, 12, 20)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("crop / target, in both directions", fontsize=9.5, color=GRAY)
    axes.set_title(title, loc="left", fontsize=11.5, color=INK, weight="bold")
    axes.tick_params(colors=GRAY, labelsize=9)
    axes.grid(axis="y", color="#e6e9ec", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#b9c0c7")


def main() -> None:
    """Measure, draw and write the picture."""
    files = [photograph(PHOTOS, index).jpeg for index in range(COUNT)]
    jpegs = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
    images = [decode_jpeg(jpeg) for jpeg in jpegs]
    curves = measured(jpegs, images)
    for index, size in enumerate(SIZES):
        sys.stdout.write(f"{SIDE / size:6.2f} {curves['fast'][index]} {curves['exact'][index]}\n")

    figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
    draw_pictures(figure, jpegs[4], images[4])
    means = figure.add_axes((0.042, 0.085, 0.575, 0.365))
    draw_lines(
        means, curves, 0, f"Mean difference from torchvision v2, {COUNT} photographs, levels of 255", 0.74
    )
    means.axhline(PROMISED, color=INK, linewidth=1.4, zorder=2)
    means.text(
        1.0,
        PROMISED + 0.012,
        f"synthetic photographs: at most {PROMISED}",
        fontsize=9.5,
        color=INK,
        va="bottom",
    )
    means.text(4.1, 0.30, "fast", fontsize=12, color=FAST, weight="bold")
    means.text(4.1, 0.125, "exact", fontsize=12, color=EXACT, weight="bold")
    means.text(0.99, 0.36, "below 2: whole samples", fontsize=9, color=GRAY)
    largest = figure.add_axes((0.665, 0.085, 0.322, 0.365))
    top = 1.3 * max(curve[:, 1].max() for curve in curves.values())
    draw_lines(largest, curves, 1, "Largest difference of any pixel", top)
    largest.text(2.08, 1.2, "exact: 1 at most", fontsize=9.5, color=EXACT, weight="bold")

    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    # 256 colours, dithered, are enough here, and a fraction of the bytes.
    picture = Image.open(stream).convert("RGB")
    palette = picture.quantize(240)
    flat = ("#ffffff", FAST, EXACT, INK, GRAY, *RAMP)  # these are to stay as they are
    colours = [channel for colour in flat for channel in bytes.fromhex(colour[1:])]
    palette.putpalette(colours + (palette.getpalette() or [])[: 3 * 240])
    path = Path(__file__).with_name("fidelity.png")
    picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)


if __name__ == "__main__":
    main()
