"""Targets in pixels, and caches of reduced images, which they do not fit."""

from __future__ import annotations

from typing import Any

from ..errors import CacheError
from ..shards.manifest import CodecEntry
from .boxes import Boxes
from .instances import InstanceMasks
from .keypoints import Keypoints
from .protocols import by_name

# Pictures, such as those of Masks, have a size of their own, which is compared with that of their image.
_IN_PIXELS = (Boxes, InstanceMasks, Keypoints)


def in_pixels(targets: Any) -> list[str]:
    """Return the types of those targets whose numbers are pixels of their image.

    Without classes derived from tarpeg's that have a ``read`` of their own, which may scale what it reads.
    """
    found = [] if targets is None else by_name(targets).values()
    return [
        type(each).__name__
        for each in found
        if any(isinstance(each, kind) and type(each).read is kind.read for kind in _IN_PIXELS)
    ]


def refuse_reduced(targets: Any, codec: CodecEntry | None, where: str) -> None:
    """Raise CacheError for targets in pixels, if a codec has reduced their images.

    Args:
        targets: As of ``Split``, or None.
        codec: ``Manifest.reducer`` of a cache: None if the images have their size.
        where: The cache, for the message.
    """
    names = in_pixels(targets)
    if names and codec is not None:
        shorter = codec["parameters"].get("shorter")
        raise CacheError(
            f"{where}: its codec {codec['name']}(shorter={shorter!r}) reduces images and no other member, so "
            f"targets={', '.join(names)}, in pixels of the images as they were, would not fit. Build it "
            "without shorter=, as tarpeg.Packed() or tarpeg.Tiled() does."
        )
