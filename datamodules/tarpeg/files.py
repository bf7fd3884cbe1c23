"""Folders of images as they are, without labels: what one predicts on."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from .errors import ShardError

EXTENSIONS = (
    *("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "dib", "tif", "tiff"),
    *("ppm", "pgm", "pbm", "pnm", "gif"),
)
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def find_pictures(source: Source) -> Pictures | None:
    """List the images that a source means; None where it means shards, or nothing that there is.

    A folder with a .tar in it means shards, any other all images in it and below; a glob means images where
    all files that match are images, and so does a path. Sorted; hidden files and folders are left out.
    Raises ShardError where some of a list's entries mean images and others do not.
    """
    parts = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    found = [_found(os.path.expanduser(os.fspath(part))) for part in parts]  # noqa: PTH111
    pictures = [entry for entry in found if entry is not None]
    if not pictures:
        return None
    if len(pictures) < len(found):
        other = parts[found.index(None)]
        raise ShardError(
            f"source={source!r}: {parts[0]!r} and {other!r} cannot be read together, one means images"
        )
    roots = [root for root, _ in pictures]
    root = roots[0] if len(roots) == 1 else Path(os.path.commonpath(roots))
    return Pictures(root, [os.path.relpath(path, root) for _, paths in pictures for path in paths])


def _found(text: str) -> tuple[Path, list[str]] | None:
    """Name the root of the keys and the images of one source; None where it means something else."""
    if text.endswith(".tar"):
        return None  # a glob of shards need not be searched twice
    path = Path(text).absolute()
    if path.is_dir():
        # Dot files are what macOS ("._a.tar") and unfinished copies leave behind.
        try:
            if any(entry.suffix == ".tar" and not entry.name.startswith(".") for entry in path.iterdir()):
                return None
        except OSError:
            return None  # those who look for shards tell why
        paths = _below(str(path))
        return (path, paths) if paths else None
    if path.is_file():
        return (path.parent, [str(path)]) if _is_image(text) else None
    if not glob.has_magic(text):
        return None
    # Path.glob refuses absolute patterns.
    names = [name for name in sorted(glob.glob(text, recursive=True)) if Path(name).is_file()]  # noqa: PTH207
    if not names or not all(map(_is_image, names)):
        return None
    plain = [part for part in path.parts if not glob.has_magic(part)]
    root = Path(*plain[: next(i for i, part in enumerate(path.parts) if glob.has_magic(part))])
    return root, [str(Path(name).absolute()) for name in names]


def _below(folder: str) -> list[str]:
    found = []
    # Symbolic links are followed, as by make_shards: data sets are often assembled from them.
    for directory, inner, names in os.walk(folder, followlinks=True):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        found += [os.path.join(directory, name) for name in names if _is_image(name)]  # noqa: PTH118
    return sorted(found)


def _is_image(name: str) -> bool:
    base = os.path.basename(name)  # noqa: PTH119
    return not base.startswith(".") and base.rpartition(".")[2].lower() in EXTENSIONS


class Pictures:
    """The images of a folder, numbered 0..len-1; keys are their paths below the folder, with "/".

    Has the interface of ``Shards``. There are no labels (they are -1) and no members. Nothing is kept open:
    a file is read when it is asked for. JPEGs and binary PPMs are decoded natively, the others by Pillow.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        """Take the files with these names below root, in this order."""
        self._root = str(root)
        self._names = list(names)

    def __len__(self) -> int:
        return len(self._names)

    def images(self, ids: npt.ArrayLike) -> list[torch.Tensor]:
        """Read the files of ids [B]: uint8 [n] each. ShardError for one that cannot be read."""
        files = []
        for name in (self._names[id] for id in np.asarray(ids).tolist()):
            try:
                files.append(torch.from_numpy(np.fromfile(os.path.join(self._root, name), np.uint8)))  # noqa: PTH118
            except OSError as error:
                raise ShardError(f"image {name} of {self._root} cannot be read: {error.strerror}") from error
        return files

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> torch.Tensor:
        """Give -1 for each of ids [B]: int64 [B]; ShardError for members other than cls."""
        if extension != "cls":
            raise ShardError(
                f"target={extension!r}: the images of folder {self._root} have no members. Give "
                "target=None, or pack them into shards."
            )
        return torch.full((len(np.asarray(ids)),), -1)

    def member(self, id: int, extension: str) -> bytes | None:
        """Give None: an image of a folder has no members."""
        return None

    def extensions(self, id: int) -> list[str]:
        """List the image's own extension."""
        return [self._names[id].rpartition(".")[2].lower()]

    def key(self, id: int) -> str:
        """Name the image: its path below the folder."""
        return self._names[id].replace(os.sep, "/")

    def shard(self, id: int) -> Path:
        """Name the folder."""
        return Path(self._root)
