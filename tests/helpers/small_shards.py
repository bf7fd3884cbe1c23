"""Small photographs, and the contents of shards."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tarpeg.datasets.synthetic import Photos

SMALL = Photos(size=32)


def tars(folder: str | Path) -> dict[str, bytes]:
    """Return the bytes of each shard by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.tar"))}


def members(tar: Path) -> dict[str, bytes]:
    """Return the bytes of each member by name."""
    with tarfile.open(tar) as file:
        return {member.name: file.extractfile(member).read() for member in file}
