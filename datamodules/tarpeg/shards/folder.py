"""Folders of images, one class per sub-directory, as torchvision's ImageFolder reads them."""
# MERGED: Folders of images as they are, without labels: what one predicts on.

from __future__ import annotations

import glob
import hashlib
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..errors import ShardError

_EXTENSIONS = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".gif"))
_SPLITS = ("all", "train", "val")


class ImageFile(NamedTuple):
    """One image of a folder: its path, its key in a shard, and its class."""

    path: str
    key: str
    label: int


@dataclass(frozen=True)
class Folder:
    """A directory of images to pack: each sub-directory is a class, in sorted order; files may be nested.

    split: "all" of it, or its "train" or "val" part. Where root/train and root/val both exist these are the
    parts, under train's classes; otherwise `val_share` (between 0 and 1) of the images are val, evenly over
    the classes. seed: shuffles the order and draws the val images. Hidden files and directories are left out.

    Raises:
        ValueError: for a value out of range.
    """

    root: str
    seed: int = 0
    split: str = "all"
    val_share: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", str(self.root))
        if self.split not in _SPLITS:
            raise ValueError(f"split: expected one of {', '.join(_SPLITS)}, got {self.split!r}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"seed: expected an integer, got {self.seed!r}")
        share = self.val_share
        if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 < share < 1:
            raise ValueError(f"val_share: expected a share between 0 and 1, got {share!r}")

    def parts(self) -> dict[str, Folder]:
        """Return its "train" and its "val" where all is meant and both exist; otherwise itself, under ""."""
        if self.split != "all" or not self._is_parted():
            return {"": self}
        return {split: replace(self, split=split) for split in ("train", "val")}

    def directory(self) -> Path:
        """Return where the class directories of `split` are."""
        return self._root(self.split)

    def classes(self) -> dict[str, int]:
        """Return class name -> number, 0 and up. ShardError where there is no such directory, or no class."""
        return _classes(self._root("train"))

    def files(self) -> list[ImageFile]:
        """Return the images in shuffled order. ShardError where there are none."""
        root = self.directory()
        files = _scan(root, self.classes())
        random.Random(f"tarpeg order {self.seed}").shuffle(files)
        if self.split != "all" and not self._is_parted():
            held = round(self.val_share * len(files))
            ranked = _evenly(files)
            chosen = set(ranked[:held] if self.split == "val" else ranked[held:])
            files = [file for file in files if file in chosen]
            if not files:
                raise ShardError(
                    f"val_share: {self.val_share} of the {len(ranked)} images of {root} leaves none for "
                    f"{self.split}; choose another share or add images"
                )
        return files

    def contents(self) -> dict[str, Any]:
        """Tell what it holds: images by class directory, and a digest of their names, sizes and dates."""
        parts = self.parts()
        files = sorted(file.path for part in parts.values() for file in part.files())
        digest, counts = hashlib.sha256(), Counter[str]()
        for path in files:
            name = os.path.relpath(path, self.root)
            try:
                found = os.stat(path)  # noqa: PTH116
            except OSError as error:
                raise ShardError(f"cannot read {path}: {error.strerror}") from error
            # Whole seconds: not every file system, nor every copy, keeps more.
            digest.update(os.fsencode(f"{name}\0{found.st_size}\0{int(found.st_mtime)}\n"))
            counts["/".join(Path(name).parts[: 1 if "" in parts else 2])] += 1
        return {"classes": dict(sorted(counts.items())), "digest": digest.hexdigest()}

    def _is_parted(self) -> bool:
        return all((Path(self.root) / part).is_dir() for part in ("train", "val"))

    def _root(self, split: str) -> Path:
        if self.split == "all" or not self._is_parted():
            return Path(self.root)
        return Path(self.root) / split


def _classes(root: Path) -> dict[str, int]:
    if not root.is_dir():
        raise ShardError(f"root: there is no directory {root}; name the one that holds a directory per class")
    names = sorted(
        entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not names:
        raise ShardError(f"root: {root} holds no sub-directory; images belong in one directory per class")
    return {name: number for number, name in enumerate(names)}


def _scan(root: Path, classes: dict[str, int]) -> list[ImageFile]:
    files, keys = [], set()
    for name in _classes(root):
        if name not in classes:
            raise ShardError(f"{root / name}: no such class in training, which has {len(classes)} others")
        for relative in _images(str(root), name):
            key = os.path.splitext(relative)[0].replace(os.sep, "/").replace(".", "_")  # noqa: PTH122
            plain, copies = key, 1
            while key in keys:  # a.b.jpg beside a_b.jpg, or a.jpg beside a.png
                copies += 1
                key = f"{plain}_{copies}"
            keys.add(key)
            _check_name(root / relative, key)
            files.append(ImageFile(str(root / relative), key, classes[name]))
    if not files:
        kinds = " ".join(sorted(_EXTENSIONS))
        raise ShardError(f"root: no image ({kinds}) in the sub-directories of {root}")
    return files


def _images(root: str, name: str) -> list[str]:
    found = []
    # Symbolic links are followed, as ImageFolder does: data sets are often assembled from them.
    for directory, inner, names in os.walk(Path(root) / name, followlinks=True):
        inner[:] = [entry for entry in inner if not entry.startswith(".")]
        for entry in names:
            if not entry.startswith(".") and Path(entry).suffix.lower() in _EXTENSIONS:
                found.append(os.path.relpath(Path(directory) / entry, root))
    return sorted(found)


def _check_name(path: Path, key: str) -> None:
    folder, _, name = f"{key}.jpeg".encode("utf-8", "surrogateescape").rpartition(b"/")
    if len(name) > 100 or len(folder) > 155:
        raise ShardError(f"{path}: tar takes names of 100 bytes in folders of 155; shorten it")


def _evenly(files: list[ImageFile]) -> list[ImageFile]:
    """Order `files` so that any beginning holds every class in proportion."""
    sizes: dict[int, int] = {}
    for file in files:
        sizes[file.label] = sizes.get(file.label, 0) + 1
    seen = dict.fromkeys(sizes, 0)
    ranks = []
    for file in files:
        seen[file.label] += 1
        ranks.append(((seen[file.label] - 0.5) / sizes[file.label], file.label, file))
    return [file for _, _, file in sorted(ranks)]


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
