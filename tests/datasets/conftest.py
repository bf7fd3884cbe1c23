"""A folder of small images for the tests of this room."""

from __future__ import annotations

import pytest
from helpers.pictures import jpeg
from PIL import Image


@pytest.fixture
def images(tmp_path):
    """Three classes of 5, 8 and 12 images, some nested, one PNG."""
    root = tmp_path / "images"
    for label, name in enumerate(("ant", "bee", "cat")):
        for index in range(4 * (label + 1)):
            path = root / name / ("deep" if index % 4 == 3 else "") / f"{index}.v1.JPG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg("420", 32, 32, 100 * label + index))
    Image.new("RGB", (8, 8)).save(root / "ant" / "flat.png")
    (root / "ant" / "notes.txt").write_text("no image")
    (root / ".cache").mkdir()
    return root
