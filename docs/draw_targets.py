"""Draw docs/targets.png: how boxes, points and masks follow a crop, and what an affine does to a box.

Everything in it is computed by tarpeg: python docs/draw_targets.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

import tarpeg

SHADE, USED, POINT, INK = "#c9d3ea", "#e4572e", "#1b7f5c", "#20262d"
SOURCE, CROP, SIZE = (6, 8), (1, 2, 4, 6), (8, 12)  # heights and widths; top, left, height, width
BOX, PLACE = (1.0, 2.0, 4.0, 4.0), (3.5, 2.5)


def grid(axes: Axes, size: tuple[int, int], title: str, mask: np.ndarray) -> None:
    """Draw pixels, those of the mask shaded, and the numbers of their edges."""
    height, width = size
    for y, x in np.ndindex(height, width):
        colour = SHADE if mask[y, x] == 1 else "white"
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="#b8bec4", linewidth=0.7))
    axes.set(xlim=(-0.4, width + 0.4), ylim=(height + 0.4, -0.4), aspect="equal")
    axes.set_xticks(range(width + 1))
    axes.set_yticks(range(height + 1))
    axes.tick_params(
        length=0, labelsize=7, colors=INK, top=True, labeltop=True, bottom=False, labelbottom=False
    )
    axes.set_title(title, fontsize=9, color=INK, pad=8)
    for side in axes.spines.values():
        side.set_visible(False)


def mark(axes: Axes, box: np.ndarray, point: np.ndarray) -> None:
    """Draw a box and a point."""
    x1, y1, x2, y2 = box
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=USED, linewidth=2.2))
    axes.plot(*point, "o", color=POINT, markersize=6)


def main() -> None:
    """Compute, draw and write the picture."""
    whole = np.zeros(SOURCE, np.uint8)
    whole[int(BOX[1]) : int(BOX[3]), int(BOX[0]) : int(BOX[2])] = 1
    view = tarpeg.View(np.array([SOURCE]), np.array([CROP]), np.array([True]), SIZE)
    turn, middle = np.radians(20), np.array([SIZE[1] / 2, SIZE[0] / 2])
    linear = 0.9 * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    affine = np.concatenate([linear, (middle - linear @ middle)[:, None]], axis=1)[None]
    figure = Figure(figsize=(10.5, 3.3), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    grid(first, SOURCE, "the source: edges of pixels are whole numbers", whole)
    mark(first, np.array(BOX), np.array(PLACE))
    top, left, height, width = CROP
    first.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=INK, linestyle="--"))
    results = (
        (second, view, "cropped, resized, mirrored"),
        (third, view.then(affine), "and turned by an affine"),
    )
    for axes, each, title in results:
        boxes, _ = each.rectangles([BOX])
        grid(axes, SIZE, title, tarpeg.Masks("png").move(whole, each).numpy())
        mark(axes, boxes[0], each.points([PLACE])[0])
    (cut,), _ = view.rectangles([BOX])
    corners = cut[[[0, 1], [2, 1], [2, 3], [0, 3]]]
    moved = corners @ affine[0, :, :2].T + affine[0, :, 2]
    third.add_patch(Polygon(moved, fill=False, edgecolor=USED, linestyle=":", linewidth=1.4))
    figure.savefig(Path(__file__).parent / "targets.png", dpi=130)


if __name__ == "__main__":
    main()
