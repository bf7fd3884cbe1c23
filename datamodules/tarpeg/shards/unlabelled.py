"""Images of a folder without labels, to predict on: a source that reads each file when it is requested."""

from __future__ import annotations

import glob
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from ..files import LARGEST_IMAGE, checked_size, open_regular
from .paths import Paths, expand_braces, identity, parts_of
from .pillow import FILE_EXTENSIONS
from .source import Source, digest
from .urls import is_url
from .walk import below, by_number, has_extension, left_out_line, matches

if TYPE_CHECKING:
    from torch import Tensor


class UnlabelledImages(Source):
    """The images of a folder, numbered 0..len-1; keys are their paths below the folder, with "/".

    Labels are -1 and there are no other members. No file is kept open: each is read when it is requested.
    JPEGs, packed images and binary PPMs are decoded natively, others by Pillow.
    """

    def __init__(self, root: Path, names: Sequence[str], left_out: str = "", odd: Sequence[str] = ()) -> None:
        """Keep the names, relative to root, in this order; and texts about files that are left out."""
        self.left_out, self.odd = left_out, [*odd]
        self._root = str(root)
        self._names = list(names)

    def __len__(self) -> int:
        return len(self._names)

    def images(self, ids: npt.ArrayLike) -> list[Tensor]:
        """Read the files of ids [B]: uint8 [n] each. ShardError for a file that cannot be read."""
        import torch  # here, because the torch-free part of the package uses Folder

        files = []
        for name in (self._names[id] for id in np.asarray(ids).tolist()):
            try:
                with open_regular(os.path.join(self._root, name)) as file:  # noqa: PTH118
                    data = np.fromfile(file, np.uint8, checked_size(file, LARGEST_IMAGE))
                files.append(torch.from_numpy(data))
            except OSError as error:
                raise ShardError(f"image {name} of {self._root} cannot be read: {error.strerror}") from error
        return files

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> Tensor:
        """Return -1 for each of ids [B]: int64 [B]; ShardError for members other than cls."""
        import torch

        if extension != "cls":
            raise ShardError(
                f"target={extension!r}: the images of folder {self._root} have no members. Give "
                "target=None, or pack them into shards."
            )
        return torch.full((len(np.asarray(ids)),), -1, device="cpu")

    def members(self, ids: npt.ArrayLike, extension: str) -> list[bytes | None]:
        """Return None for each of ids [B]: an image of a folder has no members."""
        return [None] * len(np.asarray(ids))

    def extensions(self, id: int) -> list[str]:
        """Extension of the image's file."""
        return [self._names[id].rpartition(".")[2].lower()]

    def keys(self, ids: npt.ArrayLike) -> list[str]:
        """Paths of the images of ids [B] below the folder."""
        return [self._names[id].replace(os.sep, "/") for id in np.asarray(ids).tolist()]

    def shard(self, id: int) -> Path:
        """Path of the folder."""
        return Path(self._root)

    @property
    def has_labels(self) -> bool:
        """False: labels are -1."""
        return False

    def identity(self) -> str:
        """Return a hash of all names in their order: asking for the size of each file would take too long."""
        return digest(self._names)

    def identities(self) -> list[str]:
        """Return all names in their order."""
        return self._names

    def paths(self) -> list[str]:
        """Paths of all images, with the folder's links resolved."""
        root = os.path.realpath(self._root)
        return [os.path.join(root, name) for name in self._names]  # noqa: PTH118


def find_images(source: Paths) -> UnlabelledImages | None:
    """List the images of a source; None if the source means shards, or does not exist.

    A folder with a .tar in it means shards, any other folder all images in it and below; a glob or a path
    means images if all matching files are images, hidden ones too. Sorted. Files of a folder that have
    another extension or none, and hidden files and folders, are left out and counted; FIFOs, devices, sockets
    and links to missing files are left out: ``left_out`` and ``odd`` of the result are about both. Raises
    ShardError if some parts of a list mean images and others do not, and for an image of two parts, also by a
    link.
    """
    parts = [one for part in parts_of(source) for one in _without_braces(part)]
    left_out, odd = Counter[str](), list[str]()
    found = [_found(os.path.expanduser(part), left_out, odd) for part in parts]  # noqa: PTH111
    images = [entry for entry in found if entry is not None]
    if not images:
        return None
    if len(images) < len(found):
        one, other = (parts[[entry is None for entry in found].index(is_other)] for is_other in (False, True))
        raise ShardError(
            f"source={source!r} cannot be read: {one!r} has images and {other!r} has shards, or does not "
            "exist. Give either images or shards."
        )
    _refuse_twice(parts, [paths for _, paths in images])
    roots = [root for root, _ in images]
    root = roots[0] if len(roots) == 1 else Path(os.path.commonpath(roots))
    names = [os.path.relpath(path, root) for _, paths in images for path in paths]
    return UnlabelledImages(root, names, left_out_line(by_number(left_out)), odd)


def _without_braces(part: str) -> list[str]:
    """Expand the braces of a part, as those of shards; an existing path and a URL have none."""
    if "{" not in part or is_url(part) or os.path.lexists(os.path.expanduser(part)):  # noqa: PTH111
        return [part]
    return expand_braces(part, part)


def _refuse_twice(parts: Sequence[str], files: Sequence[Sequence[str]]) -> None:
    """Raise ShardError for a file of two parts. Links within a folder are images with names of their own."""
    if len(parts) == 1:
        return  # the time for a look at each file is only for lists
    seen: dict[object, str] = {}
    for part, paths in zip(parts, files, strict=True):
        places = {identity(path): path for path in paths}
        for place, path in places.items():
            if (earlier := seen.get(place)) is None:
                continue
            other = next(one for one, own in zip(parts, files, strict=True) if earlier in own)
            link = f" (also as {earlier})" if earlier != path else ""
            raise ShardError(
                f"image {path}{link} is there twice, by {other!r} and by {part!r}. Give each image once."
            )
        seen |= places


def _found(text: str, left_out: Counter[str], notes: list[str]) -> tuple[Path, list[str]] | None:
    """Return the root of the keys and the images of one part of a source; None if it does not mean images.

    left_out: counts by kind the other files of a folder. notes: gets a text about odd files.
    """
    if text.endswith(".tar"):
        return None  # saves a second search for a glob of shards
    path = Path(text).absolute()
    if path.is_dir():
        # Dot files are left by macOS ("._a.tar") and by unfinished copies.
        try:
            if any(entry.suffix == ".tar" and not entry.name.startswith(".") for entry in path.iterdir()):
                return None
        except OSError:
            return None  # expand() reports the reason
        odd: list[str] = []
        paths = below(path, FILE_EXTENSIONS, odd, left_out)
        notes += _note_of_odd(text, odd)
        return (path, paths) if paths else None
    if path.is_file():
        return (path.parent, [str(path)]) if has_extension(path.name, FILE_EXTENSIONS) else None
    if not glob.has_magic(text):
        return None
    found = [Path(name) for name in sorted(matches(text)) if not Path(name).is_dir()]
    names = [name for name in found if name.is_file()]
    others = [name for name in names if not has_extension(name.name, FILE_EXTENSIONS)]
    if len(others) == len(names):
        return None
    if others:
        image = next(name for name in names if has_extension(name.name, FILE_EXTENSIONS))
        raise ShardError(
            f"shards {text!r}: the pattern matches images such as {image} and other files such as "
            f"{others[0]}. Give a folder, for all images in it and below, or a pattern of images alone, such "
            "as '*.jpg'"
        )
    notes += _note_of_odd(text, [str(name) for name in found if not name.is_file()])
    root = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), path.parts))
    return root, [str(name.absolute()) for name in names]


def _note_of_odd(source: str, odd: Sequence[str]) -> list[str]:
    if not odd:
        return []
    return [
        f"{source!r}: {len(odd)} images are no regular files but FIFOs, devices, sockets or links to "
        f"missing files, and are left out, the first is {min(odd)}"
    ]
