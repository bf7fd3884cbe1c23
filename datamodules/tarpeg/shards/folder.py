"""Folders of images: one sub-directory per class, to pack into shards; or without labels, to predict on."""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import random
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import ShardError, check_integer, similar
from ..files import LARGEST_IMAGE, checked_size, open_regular, read_regular
from .paths import Paths, parts_of
from .pillow import FILE_EXTENSIONS, IMAGE_EXTENSIONS
from .source import Source, digest

if TYPE_CHECKING:
    from torch import Tensor

_SPLITS = {"train": "train", "test": "test", **dict.fromkeys(("val", "valid", "validation", "dev"), "val")}
# Also activities, which are classes beside others, unless they have classes in them.
_WORDS = {"training": "train", "testing": "test", "eval": "val", "evaluation": "val"}
_ALL = _SPLITS | _WORDS
_FEW = 4  # directories: train and three others; among more, train with sub-directories may well be a class
NESTED = "images in sub-directories of a class without other images, which have the label of that class"
SHORTENED = "names that are too long for a tar: the key has their beginning, ~ and a hash"
_DIGITS = 16
_HASHED = re.compile(rf"~[0-9a-f]{{{_DIGITS}}}(_[0-9]+)?(/|$)")
_REMEDY = "Repair or remove such files; tarpeg.build_cache leaves them out, and lists them."
_LISTED = 10  # files in an error
_SHOWN = 8  # kinds of files in a message


class ImageFile(NamedTuple):
    """One image of a folder: its path, its key in a shard, and its class number."""

    path: str
    key: str
    label: int

    @property
    def extension(self) -> str:
        """Extension of the file, in lower case."""
        return Path(self.path).suffix[1:].lower()

    def members(self) -> dict[str, bytes]:
        """Return the members of its sample: the file, then its label. ShardError if it cannot be read."""
        try:
            data = read_regular(self.path, LARGEST_IMAGE)
        except OSError as error:
            raise ShardError(f"cannot read {self.path}: {error.strerror}. {_REMEDY}") from error
        return {self.extension: data, "cls": b"%d" % self.label}


@dataclass(frozen=True)
class Folder:
    """A directory of images to pack, as torchvision's ImageFolder reads it: each sub-directory is a class.

    Classes are in sorted order; files may be nested; hidden files and directories are left out, and so are
    links to a directory above.

    The directories "train" (or "training"), "val" (or "valid", "validation", "dev", "eval", "evaluation") and
    "test" (or "testing"), in upper or lower case, are splits instead, if ``root`` has at least two of these,
    or train with directories in it and nothing else. train has the classes of all.

    Args:
        root: The directory.
        seed: Seed of the order, and of the images of val.
        split: "all" images, or those of "train", "val" or "test".
        val_share: Without a directory for val, the share (between 0 and 1) of train's images that are val,
            drawn evenly over the classes.

    Raises:
        ValueError: For a value out of range.

    Example:
        >>> train = tarpeg.Folder(folder, split="train", val_share=0.25)
        >>> train.classes(), len(train.files())
        ({'cat': 0, 'dog': 1}, 12)
    """

    root: str
    seed: int = 0
    split: str = "all"
    val_share: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", str(self.root))
        if not self.root:
            raise ValueError(f"root={self.root!r} must be a directory")
        if self.split not in (splits := ("all", "train", "val", "test")):
            raise ValueError(
                f"split={self.split!r} must be one of {', '.join(splits)}{similar(self.split, splits)}"
            )
        check_integer("seed", self.seed)
        share = self.val_share
        if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 < share < 1:
            raise ValueError(f"val_share={share!r} must be between 0 and 1")

    def parts(self) -> dict[str, Folder]:
        """Return the splits that are directories, each whole, if split is "all"; {"": self} without any.

        ShardError if the directories cannot be told apart.
        """
        found = self._directories() if self.split == "all" else {}
        names = ["train", "val", "test"]
        parts = {split: replace(self, split=split) for split in names if split in found}
        if "train" in parts:
            parts["train"] = replace(self, root=str(found["train"]))  # nothing of it becomes val
        return parts or {"": self}

    def directory(self) -> Path:
        """Directory of the class directories of `split`. ShardError for a test split that does not exist."""
        found = self._directories()
        if self.split == "test" and "test" not in found:
            raise ShardError(f"root={self.root!r} has no directory test with one sub-directory per class.")
        return Path(self.root) if self.split == "all" or not found else found.get(self.split, found["train"])

    def classes(self) -> dict[str, int]:
        """Class numbers, from 0, by name. ShardError if the directory is missing or has no class."""
        return _classes(self._directories().get("train", Path(self.root)))

    def files(self) -> list[ImageFile]:
        """Images in shuffled order. ShardError if there are none, or none of a class of all or train."""
        root, classes = self.directory(), self.classes()
        files = _scan(root, classes)
        if root == self._directories().get("train", Path(self.root)):
            _refuse_empty(root, classes, files)
        random.Random(f"tarpeg order {self.seed}").shuffle(files)
        if self.split in ("train", "val") and "val" not in self._directories():
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
        for path, found in zip(files, stats_of(files), strict=True):
            name = os.path.relpath(path, self.root)
            # Whole seconds: not every file system or copy keeps fractions.
            digest.update(os.fsencode(f"{name}\0{found.st_size}\0{int(found.st_mtime)}\n"))
            counts["/".join(Path(name).parts[: 1 if "" in parts else 2])] += 1
        return {"classes": dict(sorted(counts.items())), "digest": digest.hexdigest()}

    def left_out(self) -> dict[str, int]:
        """Count the files below root that are no images of `parts`, by kind, most frequent first."""
        is_split = bool(self._directories())
        counts = Counter[str]()
        for directory, inner, names in _walk(
            self.root, lambda _: counts.update(["folders that cannot be read"])
        ):
            place = Path(directory).relative_to(self.root).parts
            counts.update(f"{name}/" for name in inner if name.startswith("."))
            inner[:] = [name for name in inner if not name.startswith(".")]
            if is_split and not place:  # what is beside the splits may be large, or closed
                others = set(inner) - set(self._splits(inner))
                counts.update(f"folder {name}, which is not a split" for name in others)
                inner[:] = [name for name in inner if name not in others]
            images = {name for name in names if _is_image(name, IMAGE_EXTENSIONS)}
            if len(place) <= is_split:
                counts[" in ".join(["images without a class folder", *place])] += len(images)
            counts.update(_kind(directory, name) for name in names if name not in images)
        return _by_number(counts)

    def _splits(self, names: Sequence[str]) -> dict[str, str]:
        """Return the split of each directory of root that has the name of one."""
        found = {name: _SPLITS[name.lower()] for name in names if name.lower() in _SPLITS}
        taken = {*found.values()} if len(found) > 1 else set()
        are_all = all(name.lower() in _ALL for name in names)
        for name in names:
            split = _WORDS.get(name.lower())
            if split and split not in taken and (are_all or _subdirectories(Path(self.root) / name)):
                found[name] = split
        return found

    def _directories(self) -> dict[str, Path]:
        """Return the directories of the splits, with train; {} if root has classes, or does not exist."""
        root = Path(self.root)
        names = _subdirectories(root)
        found = self._splits(names)
        is_only_train = list(found.values()) == ["train"] and len(names) == 1
        if len(found) < 2 and not (is_only_train and _subdirectories(root / names[0])):
            _refuse_hidden_splits(root, names)
            return {}  # a single one is the name of a class
        splits: dict[str, Path] = {}
        for name in found:
            other = splits.setdefault(found[name], root / name).name
            if other != name:
                raise ShardError(
                    f"root={self.root!r} has the directories {other} and {name}, which are both the split "
                    f"{found[name]}. Merge them, or move one away."
                )
            twin = next(
                (one for one in splits.values() if one.name != name and one.samefile(root / name)), None
            )
            if twin is not None:
                raise ShardError(
                    f"root={self.root!r} has the splits {twin.name} and {name}, which are one directory, by "
                    "a link. Remove one of them."
                )
        if "train" not in splits:
            raise ShardError(
                f"root={self.root!r} has the splits {' and '.join(found)}, but no train, which defines the "
                "classes. Give one of these directories, or rename them if they are classes."
            )
        if "test" in splits and not _subdirectories(splits["test"]):
            del splits["test"]  # without labels: reported by left_out()
        return splits


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
    means images if all matching files are images. Sorted. Files of a folder that have another extension or
    none, and hidden files and folders, are left out and counted; FIFOs, devices, sockets and links to missing
    files are left out: ``left_out`` and ``odd`` of the result are about both. Raises ShardError if some parts
    of a list mean images and others do not.
    """
    parts = parts_of(source)
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
    roots = [root for root, _ in images]
    root = roots[0] if len(roots) == 1 else Path(os.path.commonpath(roots))
    names = [os.path.relpath(path, root) for _, paths in images for path in paths]
    return UnlabelledImages(root, names, left_out_line(_by_number(left_out)), odd)


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
        paths = _below(path, FILE_EXTENSIONS, odd, left_out)
        notes += _note_of_odd(text, odd)
        return (path, paths) if paths else None
    if path.is_file():
        return (path.parent, [str(path)]) if _is_image(path.name, FILE_EXTENSIONS) else None
    if not glob.has_magic(text):
        return None
    # Path.glob refuses absolute patterns.
    found = [Path(name) for name in sorted(glob.glob(text, recursive=True)) if not Path(name).is_dir()]  # noqa: PTH207
    names = [name for name in found if name.is_file()]
    if not names or not all(_is_image(name.name, FILE_EXTENSIONS) for name in names):
        return None
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


def look_at(path: str) -> tuple[os.stat_result | None, str]:
    """Return what the system knows of an image's file, and why it cannot be read, "" if it seems to be."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:  # such as a link to a file that was removed
        return None, str(error.strerror)
    if not stat.S_ISREG(found.st_mode):
        return found, "not a regular file"
    if found.st_size > LARGEST_IMAGE:
        return found, f"{found.st_size} bytes are more than {LARGEST_IMAGE}"
    return found, "" if os.access(path, os.R_OK) else "Permission denied"


def stats_of(paths: Sequence[str]) -> list[os.stat_result]:
    """Return what the system knows of each file. ShardError, with all that cannot be read, if there are."""
    stats, odd = [], []
    for path in paths:
        found, reason = look_at(path)
        if found is not None and not reason:
            stats.append(found)
        else:
            odd.append(f"{path}: {reason}")
    if odd:
        more = f"; and {len(odd) - _LISTED} more" * (len(odd) > _LISTED)
        raise ShardError(
            f"{len(odd)} of {len(paths)} images cannot be read: {'; '.join(sorted(odd)[:_LISTED])}{more}. "
            f"{_REMEDY}"
        )
    return stats


def only_nested(files: Sequence[ImageFile]) -> list[ImageFile]:
    """Return the images of classes that have images in sub-directories only: these may be the classes."""
    direct = {file.label for file in files if file.key.count("/") == 1}
    return [file for file in files if file.label not in direct]


def only_shortened(files: Sequence[ImageFile]) -> list[ImageFile]:
    """Return the images whose names are too long for a tar: their keys have a hash."""
    return [file for file in files if _HASHED.search(file.key)]


def left_out_line(counts: Mapping[str, int]) -> str:
    """Format the counts of Folder.left_out in one line; empty without any."""
    one = re.compile("^(image|file|folder|link)s")
    parts = [f"{n} {one.sub(lambda word: word[1], kind) if n == 1 else kind}" for kind, n in counts.items()]
    more = sum(list(counts.values())[_SHOWN:])
    return f"left out: {', '.join(parts[:_SHOWN])}{f', and {more} other files' * bool(more)}" if parts else ""


def _by_number(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted((+counts).items(), key=lambda item: (-item[1], item[0])))


def _kind(directory: str, name: str) -> str:
    """Kind of a file that is left out: its extension, or the name of a hidden file."""
    suffix = Path(name).suffix.lower()
    if name.startswith("."):
        return f"hidden {suffix}" if suffix else name
    path = os.path.join(directory, name)  # noqa: PTH118
    if os.path.islink(path):  # noqa: PTH114
        if not os.path.exists(path):  # noqa: PTH110
            return "links to missing files"
        if os.path.isdir(path):  # noqa: PTH112
            return "links to folders above"
    return suffix or "files without an extension"


def _subdirectories(root: Path) -> list[str]:
    """Names of the directories in root, sorted, without hidden ones; none if root is no directory."""
    if not root.is_dir():
        return []
    try:
        with os.scandir(root) as entries:
            found = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError as error:
        _refuse(error)
    links = [entry for entry in found if entry.is_symlink()]
    above = _above(root) if links else set()
    loops = {entry.name for entry in links if _place(entry.path) in above}
    return sorted(entry.name for entry in found if entry.name not in loops)


def _refuse_hidden_splits(root: Path, names: Sequence[str]) -> None:
    """Raise ShardError for classes named like splits, such as training_set, or that hold splits."""
    is_few = len(names) <= _FEW
    words = {name: re.findall("[a-z]+", name.lower()) for name in names}
    splits = {name: _ALL[word] for name, found in words.items() for word in found if word in _ALL}
    inner = {name: set(_subdirectories(root / name)) for name in names if is_few or name in splits}
    refused: tuple[str, ...] = ()
    for name in inner:
        held = {_ALL[one.lower()] for one in inner[name] if one.lower() in _ALL}
        if (is_few and len(held) > 1) or (len(names) == 1 and name in splits and inner[name]):
            refused = (name,)
        for other in names if name in splits else ():
            is_other = splits.get(other, splits[name]) != splits[name]
            is_same = other != name and not inner[name].isdisjoint(_subdirectories(root / other))
            is_named = is_few and bool(inner[name] or {name.lower(), other.lower()} - _ALL.keys())
            is_train = is_few and _ALL.get(name.lower()) == "train"
            if (is_other and (is_named or is_same)) or (is_train and is_same):
                refused = tuple(sorted((name, other), key=lambda one: splits.get(one) != "train"))
    if refused:
        raise ShardError(
            f"root={str(root)!r} has {' and '.join(refused)}, which would be classes, but look like splits "
            f"or hold them. Give root={str(root / refused[0])!r}, or name the directories of splits train, "
            f"val and test; rename {refused[0]} if it is a class."
        )


def _refuse_empty(root: Path, classes: Mapping[str, int], files: Sequence[ImageFile]) -> None:
    """Raise ShardError for a class without images: the folder may have another meaning."""
    labels = {file.label for file in files}
    empty = [name for name, label in classes.items() if label not in labels]
    if empty:
        more = f" (nor have {len(empty) - 1} more)" * (len(empty) > 1)
        within = [root / name for name in classes if name.lower() in _ALL and _subdirectories(root / name)]
        remedy = f", or give root={str(within[0])!r}" if within else ""
        raise ShardError(
            f"class {empty[0]!r} of root={str(root)!r} has no image{more}: {_kinds()}. Move the folder "
            f"away, or add images{remedy}."
        )


def _kinds() -> str:
    return " ".join(sorted(f".{extension}" for extension in IMAGE_EXTENSIONS))


def _classes(root: Path) -> dict[str, int]:
    if not root.is_dir():
        raise ShardError(f"root={str(root)!r} is not a directory. Give the one with a directory per class.")
    names = _subdirectories(root)
    if not names:
        raise ShardError(
            f"root={str(root)!r} has no sub-directory. Put the images into one directory per class."
        )
    return {name: number for number, name in enumerate(names)}


def _scan(root: Path, classes: dict[str, int]) -> list[ImageFile]:
    files, keys = [], set[str]()
    for name in _classes(root):
        if name not in classes:
            raise ShardError(
                f"{root / name} is not one of the {len(classes)} classes of train. Rename it, add it to "
                "train, or move it away."
            )
        for path in _below(root / name, IMAGE_EXTENSIONS):
            files.append(ImageFile(path, key_of(os.path.relpath(path, root), keys), classes[name]))
    if not files:
        raise ShardError(f"root={str(root)!r} has no image ({_kinds()}) in its sub-directories.")
    loose = sorted(entry.name for entry in os.scandir(root) if _is_image(entry.name, IMAGE_EXTENSIONS))
    if len(loose) > len(files):
        raise ShardError(
            f"root={str(root)!r} has {len(loose)} images without a class folder, such as {loose[0]}, and "
            f"{len(files)} with one. Move them into the folders of their classes, or away."
        )
    return files


def key_of(name: str, taken: set[str]) -> str:
    """Return the key of an image by its path below the folder, and add it to those that are taken."""
    plain, copies = os.path.splitext(name)[0].replace(os.sep, "/").replace(".", "_"), 1  # noqa: PTH122
    key = plain
    while (key := _fitting(key)) in taken:  # a.b.jpg and a_b.jpg, or a.jpg and a.png
        copies += 1
        key = f"{plain}_{copies}"
    taken.add(key)
    return key


def images_below(folder: Path) -> list[str]:
    """Paths of the images in a folder and below, sorted, without hidden ones."""
    return _below(folder, IMAGE_EXTENSIONS)


def _below(
    folder: Path,
    extensions: Collection[str],
    odd: list[str] | None = None,
    left_out: Counter[str] | None = None,
) -> list[str]:
    """Paths of the images in the folder and below, sorted; hidden files and folders are left out.

    Args:
        folder: Where it begins.
        extensions: Those of images.
        odd: Gets the paths of images that are FIFOs, devices, sockets or links to missing files, in place of
            the result.
        left_out: Counts by kind what else is left out.
    """
    found = []
    for directory, inner, names in _walk(folder, odd=odd):
        if left_out is not None:
            left_out.update(f"{name}/" for name in inner if name.startswith("."))
            left_out.update(_kind(directory, name) for name in names if not _is_image(name, extensions))
        inner[:] = [entry for entry in inner if not entry.startswith(".")]
        found += [os.path.join(directory, name) for name in names if _is_image(name, extensions)]  # noqa: PTH118
    if odd is not None:
        odd[:] = [path for path in odd if _is_image(Path(path).name, extensions)]
    return sorted(found)


def _refuse(error: OSError) -> NoReturn:
    raise ShardError(
        f"folder {error.filename} cannot be read: {error.strerror}. Repair or remove it."
    ) from error


def _walk(
    folder: str | Path, on_error: Callable[[OSError], object] = _refuse, odd: list[str] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through a folder as os.walk; links to a folder above, which have no end, are among the files.

    ShardError for a folder that cannot be listed: it may hold images.

    Args:
        folder: Where it begins.
        on_error: Called for a folder that cannot be listed.
        odd: Gets the paths of FIFOs, devices, sockets and links to missing files, which are then not among
            the files.
    """
    todo = [(os.fspath(folder), _above(folder))]
    # Symbolic links are followed, as by torchvision: data sets are often assembled from them.
    while todo:
        directory, seen = todo.pop()
        try:
            with os.scandir(directory) as listed:
                entries = list(listed)  # which know what they are: no file needs a look of its own
        except OSError as error:
            on_error(error)
            continue
        places = {entry.name: _place(entry.path) for entry in entries if _is(os.DirEntry.is_dir, entry)}
        inner = [name for name, place in places.items() if place not in seen]
        others = [entry for entry in entries if entry.name not in places]
        is_file = os.DirEntry.is_file
        if odd is not None and (found := {one.name: one.path for one in others if not _is(is_file, one)}):
            odd += found.values()
            others = [entry for entry in others if entry.name not in found]
        above = [name for name, place in places.items() if place in seen]
        yield directory, inner, above + [entry.name for entry in others]
        todo += [(os.path.join(directory, name), seen | {places[name]}) for name in inner]  # noqa: PTH118


def _is(kind: Callable[[os.DirEntry[str]], bool], entry: os.DirEntry[str]) -> bool:
    try:
        return kind(entry)
    except OSError:  # such as links in a circle
        return False


def _above(folder: str | Path) -> set[tuple[int, int] | None]:
    """Places of a folder and of all folders above it, with and without links."""
    path = Path(folder).absolute()
    return {_place(one) for one in {path, *path.parents, *path.resolve().parents}} - {None}


def _place(path: str | Path) -> tuple[int, int] | None:
    """Device and inode; None if unknown."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None  # listing it reports the reason
    return (found.st_dev, found.st_ino) if found.st_ino else None


def _is_image(name: str, extensions: Collection[str]) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower().removeprefix(".") in extensions


def _fitting(key: str) -> str:
    """Return a key that fits into the header of a tar: names have at most 100 bytes, their folders 155."""
    folder, _, name = key.rpartition("/")
    return f"{_shortened(folder, 155)}/{_shortened(name, 100 - len('.jpeg'))}".removeprefix("/")


def _shortened(text: str, most: int) -> str:
    """Return a text of at most so many bytes: itself, or its beginning and a hash of it."""
    content = text.encode("utf-8", "surrogateescape")
    if len(content) <= most:
        return text
    end = f"~{hashlib.sha256(content).hexdigest()[:_DIGITS]}"
    while len(text.encode("utf-8", "surrogateescape")) > most - len(end):
        text = text[:-1]
    return text + end


def _evenly(files: list[ImageFile]) -> list[ImageFile]:
    """Order the files so that every prefix has each class in proportion."""
    counts, seen = Counter(file.label for file in files), Counter[int]()
    ranks = []
    for file in files:
        seen[file.label] += 1
        ranks.append(((seen[file.label] - 0.5) / counts[file.label], file.label, file))
    return [file for _, _, file in sorted(ranks)]
