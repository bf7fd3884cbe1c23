"""Parts of real photographs in place of synthetic ones. Imports no torch, as processes draw them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from tarpeg.datasets.synthetic import Photos
from tarpeg.errors import check_integer


@dataclass(frozen=True)
class FolderPhotos(Photos):
    """Parts of the photographs in a directory, scaled to ``size`` and stored, in place of drawn pictures.

    folder: holds JPEGs or PNGs, also in sub-directories. A part has at least half of the largest height and
    width that its shape allows, and is not enlarged if the photograph is large enough. Labels mean nothing.
    parts: consecutive pictures that are parts of one photograph, which is decoded once for them.
    """

    folder: str = ""
    parts: int = 1
    files: tuple[Path, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("parts", self.parts, 1)
        found = (path for path in Path(self.folder).expanduser().rglob("*") if path.is_file())
        files = tuple(sorted(path for path in found if path.suffix.lower() in (".jpg", ".jpeg", ".png")))
        object.__setattr__(self, "files", files)
        if not files:
            raise ValueError(f"folder={self.folder!r} has no photographs (.jpg, .jpeg, .png)")

    def scene(self, rng: np.random.Generator, index: int, label: int, height: int, width: int) -> Image.Image:
        """Return a random part of the shape of (height, width), scaled to it."""
        path = self.files[index // self.parts % len(self.files)]
        upright = _upright(path, path.stat().st_mtime_ns)
        largest = min(upright.height / height, upright.width / width)
        scale = max(largest * rng.uniform(0.5, 1), min(1.0, largest))
        # Products of fractions may be a rounding error above the size.
        down, across = min(scale * height, upright.height), min(scale * width, upright.width)
        top, left = rng.random() * (upright.height - down), rng.random() * (upright.width - across)
        box = (left, top, min(left + across, upright.width), min(top + down, upright.height))
        return upright.resize((width, height), Image.Resampling.LANCZOS, box, reducing_gap=3.0)


@functools.lru_cache(maxsize=1)
def _upright(path: Path, _mtime_ns: int) -> Image.Image:
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("YCbCr")
    except OSError as error:
        raise ValueError(f"{path} cannot be decoded: {error}. Remove it from the photographs.") from error
