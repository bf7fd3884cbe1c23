"""Folders of images: one sub-directory per class, to pack into shards; or without labels, to predict on."""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from .paths import Source, parts_of
from .pillow import FILE_EXTENSIONS, IMAGE_EXTENSIONS

if TYPE_CHECKING:
    from torch import Tensor

_SPLITS = ("all", "train", "val")


class ImageFile(NamedTuple):
    """One image of a folder: its path, its key in a shard, and its class number."""

    path: str
    key: str
    label: int

    @property
    def extension(self) -> str:
        """Extension of the file, in lower case."""
        return Path(self.path).suffix[1:].lower()

    def read(self) -> bytes:
        """Read the file. ShardError if it cannot be read."""
        try:
            return Path(self.path).read_bytes()
        except OSError as error:
            raise ShardError(f"cannot read {self.path}: {error.strerror}") from error


@dataclass(frozen=True)
class Folder:
    """A directory of images to pack, as torchvision's ImageFolder reads it: each sub-directory is a class.

    Classes are in sorted order; files may be nested; hidden files and directories are left out. split: "all"
    images, or the "train" or "val" part. If root/train and root/val both exist, these are the parts, with
    train's classes; otherwise `val_share` (between 0 and 1) of the images are val, evenly over the classes.
    seed: shuffles the order and draws the val images. Raises ValueError for a value out of range.
    """

    root: str
    seed: int = 0
    split: str = "all"
    val_share: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", str(self.root))
        if self.split not in _SPLITS:
            raise ValueError(f"split={self.split!r} must be one of {', '.join(_SPLITS)}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"seed={self.seed!r} must be an integer")
        share = self.val_share
        if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 < share < 1:
            raise ValueError(f"val_share={share!r} must be between 0 and 1")

    def parts(self) -> dict[str, Folder]:
        """Return {"train": ..., "val": ...} if split is "all" and both directories exist, else {"": self}."""
        if self.split != "all" or not self._is_parted():
            return {"": self}
        return {split: replace(self, split=split) for split in ("train", "val")}

    def directory(self) -> Path:
        """Directory of the class directories of `split`."""
        return self._root(self.split)

    def classes(self) -> dict[str, int]:
        """Class numbers, from 0, by name. ShardError if the directory is missing or has no class."""
        return _classes(self._root("train"))

    def files(self) -> list[ImageFile]:
        """Images in shuffled order. ShardError if there are none."""
        root = self.directory()
        files = _scan(root, self.classes())
        random.Random(f"tarpeg order {self.seed}").shuffle(files)
        if self.split != "all" and not self._is_parted():
            count = round(self.val_share * len(files))
            ranked = _evenly(files)
            chosen = set(ranked[:count] if self.split == "val" else ranked[count:])
            files = [file for file in files if file in chosen]
            if not files:
                raise ShardError(
                    f"val_share={self.val_share} of the {len(ranked)} images of {root} leaves no image for "
                    f"{self.split}. Choose another share, or add images."
                )
        return files

    def contents(self) -> dict[str, Any]:
        """Return the number of images by class directory, and a digest of their names, sizes and dates."""
        parts = self.parts()
        files = sorted(file.path for part in parts.values() for file in part.files())
        digest, counts = hashlib.sha256(), Counter[str]()
        for path in files:
            name = os.path.relpath(path, self.root)
            try:
                found = os.stat(path)  # noqa: PTH116
            except OSError as error:
                raise ShardError(f"image {path} cannot be read: {error.strerror}") from error
            # Whole seconds: not every file system or copy keeps fractions.
            digest.update(os.fsencode(f"{name}\0{found.st_size}\0{int(found.st_mtime)}\n"))
            counts["/".join(Path(name).parts[: 1 if "" in parts else 2])] += 1
        return {"classes": dict(sorted(counts.items())), "digest": digest.hexdigest()}

    def _is_parted(self) -> bool:
        return all((Path(self.root) / part).is_dir() for part in ("train", "val"))

    def _root(self, split: str) -> Path:
        if self.split == "all" or not self._is_parted():
            return Path(self.root)
        return Path(self.root) / split


class UnlabelledImages:
    """The images of a folder, numbered 0..len-1; keys are their paths below the folder, with "/".

    Has the interface of ``Shards``. Labels are -1 and there are no other members. No file is kept open: each
    is read when it is requested. JPEGs and binary PPMs are decoded natively, other formats by Pillow.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        """Keep the names, relative to root, in this order."""
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
                files.append(torch.from_numpy(np.fromfile(os.path.join(self._root, name), np.uint8)))  # noqa: PTH118
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

    def member(self, id: int, extension: str) -> bytes | None:
        """Return None: an image of a folder has no members."""
        return None

    def extensions(self, id: int) -> list[str]:
        """Extension of the image's file."""
        return [self._names[id].rpartition(".")[2].lower()]

    def key(self, id: int) -> str:
        """Path of the image below the folder."""
        return self._names[id].replace(os.sep, "/")

    def shard(self, id: int) -> Path:
        """Path of the folder."""
        return Path(self._root)


def find_images(source: Source) -> UnlabelledImages | None:
    """List the images of a source; None if the source means shards, or does not exist.

    A folder with a .tar in it means shards, any other folder all images in it and below; a glob or a path
    means images if all matching files are images. Sorted; hidden files and folders are left out. Raises
    ShardError if some parts of a list mean images and others do not.
    """
    parts = parts_of(source)
    found = [_found(os.path.expanduser(part)) for part in parts]  # noqa: PTH111
    images = [entry for entry in found if entry is not None]
    if not images:
        return None
    if len(images) < len(found):
        one, other = (parts[[entry is None for entry in found].index(is_other)] for is_other in (False, True))
        raise ShardError(
            f"source={source!r} cannot be read: {one!r} has images and {other!r} has shards, or does not "
            "exist. Give either images or shards."
        )
    roots = [root for root, _ in images]
    root = roots[0] if len(roots) == 1 else Path(os.path.commonpath(roots))
    return UnlabelledImages(root, [os.path.relpath(path, root) for _, paths in images for path in paths])


def _found(text: str) -> tuple[Path, list[str]] | None:
    """Return the root of the keys and the images of one part of a source; None if it does not mean images."""
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
        paths = _below(path, FILE_EXTENSIONS)
        return (path, paths) if paths else None
    if path.is_file():
        return (path.parent, [str(path)]) if _is_image(path.name, FILE_EXTENSIONS) else None
    if not glob.has_magic(text):
        return None
    # Path.glob refuses absolute patterns.
    names = [Path(name) for name in sorted(glob.glob(text, recursive=True)) if Path(name).is_file()]  # noqa: PTH207
    if not names or not all(_is_image(name.name, FILE_EXTENSIONS) for name in names):
        return None
    root = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), path.parts))
    return root, [str(name.absolute()) for name in names]


def _classes(root: Path) -> dict[str, int]:
    if not root.is_dir():
        raise ShardError(f"root={str(root)!r} is not a directory. Give the one with a directory per class.")
    names = sorted(
        entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not names:
        raise ShardError(
            f"root={str(root)!r} has no sub-directory. Put the images into one directory per class."
        )
    return {name: number for number, name in enumerate(names)}


def _scan(root: Path, classes: dict[str, int]) -> list[ImageFile]:
    files, keys = [], set()
    for name in _classes(root):
        if name not in classes:
            raise ShardError(
                f"{root / name} is not one of the {len(classes)} classes of train. Rename or add it."
            )
        for path in _below(root / name, IMAGE_EXTENSIONS):
            relative = os.path.relpath(path, root)
            key = os.path.splitext(relative)[0].replace(os.sep, "/").replace(".", "_")  # noqa: PTH122
            plain, copies = key, 1
            while key in keys:  # a.b.jpg and a_b.jpg, or a.jpg and a.png
                copies += 1
                key = f"{plain}_{copies}"
            keys.add(key)
            _check_name(path, key)
            files.append(ImageFile(path, key, classes[name]))
    if not files:
        kinds = " ".join(sorted(f".{extension}" for extension in IMAGE_EXTENSIONS))
        raise ShardError(f"root={str(root)!r} has no image ({kinds}) in its sub-directories.")
    return files


def _below(folder: Path, extensions: Collection[str]) -> list[str]:
    """Paths of the images in the folder and below, sorted; hidden files and folders are left out."""
    found = []
    # Symbolic links are followed, as by torchvision: data sets are often assembled from them.
    for directory, inner, names in os.walk(folder, followlinks=True):
        inner[:] = [entry for entry in inner if not entry.startswith(".")]
        found += [os.path.join(directory, name) for name in names if _is_image(name, extensions)]  # noqa: PTH118
    return sorted(found)


def _is_image(name: str, extensions: Collection[str]) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower().removeprefix(".") in extensions


def _check_name(path: str, key: str) -> None:
    folder, _, name = f"{key}.jpeg".encode("utf-8", "surrogateescape").rpartition(b"/")
    if len(name) > 100 or len(folder) > 155:
        raise ShardError(f"{path}: names in a tar have at most 100 bytes, their folders 155. Shorten it.")


def _evenly(files: list[ImageFile]) -> list[ImageFile]:
    """Order the files so that every prefix has each class in proportion."""
    counts, seen = Counter(file.label for file in files), Counter[int]()
    ranks = []
    for file in files:
        seen[file.label] += 1
        ranks.append(((seen[file.label] - 0.5) / counts[file.label], file.label, file))
    return [file for _, _, file in sorted(ranks)]
