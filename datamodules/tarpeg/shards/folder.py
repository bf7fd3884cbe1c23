"""Folders of images, one sub-directory per class, to pack into shards."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ShardError, check_integer, similar
from ..files import LARGEST_IMAGE, read_regular
from .packing import Listing, Reading
from .pillow import FILE_EXTENSIONS, member_extension
from .tar import IGNORED
from .urls import local_images, public_url
from .walk import REMEDY, below, by_number, is_image, kind_of, left_out_line, stats_of, subdirectories, walk

_SPLITS = {"train": "train", "test": "test", **dict.fromkeys(("val", "valid", "validation", "dev"), "val")}
# Also activities, which are classes beside others, unless they have classes in them.
_WORDS = {"training": "train", "testing": "test", "eval": "val", "evaluation": "val"}
_ALL = _SPLITS | _WORDS
_FEW = 4  # directories: train and three others; among more, train with sub-directories may well be a class
NESTED = "images in sub-directories of a class without other images, which have the label of that class"
SHORTENED = "names that are too long for a tar: the key has their beginning, ~ and a hash"
_DIGITS = 16
_SHOWN = 5  # names of empty classes in a message
_HASHED = re.compile(rf"~[0-9a-f]{{{_DIGITS}}}(_[0-9]+)?(/|$)")


class ImageFile(NamedTuple):
    """One image of a folder: its path, its key in a shard, and its class number."""

    path: str
    key: str
    label: int

    @property
    def extension(self) -> str:
        """Extension of its member in a shard: that of the file, in lower case, or ``jpg`` of a ``.jfif``."""
        return member_extension(self.path)

    def read(self) -> Reading:
        """Read the members of its sample: the file, then its label. ShardError if it cannot be read."""
        try:
            data = read_regular(self.path, LARGEST_IMAGE)
        except OSError as error:
            raise ShardError(f"cannot read {self.path}: {error.strerror}. {REMEDY}") from error
        return Reading({self.extension: data, "cls": b"%d" % self.label})


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
            drawn evenly over the classes. If an image is added or removed, most of val are other images, of
            which a network that is trained has seen most: train it again, or make a directory for val.

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
        if "://" in self.root:
            raise ValueError(f"root={public_url(self.root)!r}: {local_images(self.root)}, and give FOLDER")
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

    def place(self) -> str:
        """Path of the directory."""
        return self.root

    def listing(self) -> Listing:
        """List the images to pack. ShardError if the directory has splits, or a file cannot be read."""
        if "" not in (parts := self.parts()):
            raise ShardError(
                f"root={self.root!r} has folders {' and '.join(parts)}, which are not classes: build a "
                "cache of it, which packs each of them (build_cache; in Python FolderShards too), or pack "
                f"one of them alone: root={str(next(iter(parts.values())).directory())!r}"
            )
        files = self.files()
        stats_of([file.path for file in files])  # before hours of packing
        notes = []
        if self.split in ("all", "train"):  # once for all splits
            notes = [left_out_line(self.left_out())]
            notes += [
                f"{kind}: {len(own)}, the first is key {min(file.key for file in own)!r}"
                for kind, own in unusual(files).items()
                if own
            ]
        return Listing(files, self.classes(), notes=[*filter(None, notes)], root=self.directory())

    def contents(self) -> dict[str, Any]:
        """Return the number of images by class directory, and a digest of their names, sizes and dates.

        ``fractions`` is a digest of the fractions of the seconds of the dates; None if there are none.
        """
        parts = self.parts()
        files = sorted(file.path for part in parts.values() for file in part.files())
        digest, fractions, counts = hashlib.sha256(), hashlib.sha256(), Counter[str]()
        has_fractions = False
        for path, found in zip(files, stats_of(files), strict=True):
            name = os.path.relpath(path, self.root)
            seconds, nanoseconds = divmod(found.st_mtime_ns, 10**9)
            digest.update(os.fsencode(f"{name}\0{found.st_size}\0{seconds}\n"))
            fractions.update(b"%d\n" % nanoseconds)
            has_fractions = has_fractions or nanoseconds > 0
            counts["/".join(Path(name).parts[: 1 if "" in parts else 2])] += 1
        return {
            "classes": dict(sorted(counts.items())),
            "digest": digest.hexdigest(),
            "fractions": fractions.hexdigest() if has_fractions else None,
        }

    def left_out(self) -> dict[str, int]:
        """Count the files below root that are no images of `parts`, by kind, in the order of `by_number`."""
        is_split = bool(self._directories())
        counts = Counter[str]()
        for directory, inner, names in walk(
            self.root, lambda _: counts.update(["folders that cannot be read"])
        ):
            place = Path(directory).relative_to(self.root).parts
            counts.update(f"{name}/" for name in inner if name.startswith("."))
            inner[:] = [name for name in inner if not name.startswith(".")]
            if is_split and not place:  # what is beside the splits may be large, or closed
                others = set(inner) - set(self._splits(inner))
                counts.update(f"folder {name}, which is not a split" for name in others)
                inner[:] = [name for name in inner if name not in others]
            images = {name for name in names if is_image(name, FILE_EXTENSIONS)}
            if len(place) <= is_split:
                counts[" in ".join(["images without a class folder", *place])] += len(images)
            counts.update(kind_of(directory, name) for name in names if name not in images)
        return by_number(counts)

    def _splits(self, names: Sequence[str]) -> dict[str, str]:
        """Return the split of each directory of root that has the name of one."""
        found = {name: _SPLITS[name.lower()] for name in names if name.lower() in _SPLITS}
        taken = {*found.values()} if len(found) > 1 else set()
        are_all = all(name.lower() in _ALL for name in names)
        for name in names:
            split = _WORDS.get(name.lower())
            if split and split not in taken and (are_all or subdirectories(Path(self.root) / name)):
                found[name] = split
        return found

    def _directories(self) -> dict[str, Path]:
        """Return the directories of the splits, with train; {} if root has classes, or does not exist."""
        root = Path(self.root)
        names = subdirectories(root)
        found = self._splits(names)
        is_only_train = list(found.values()) == ["train"] and len(names) == 1
        if len(found) < 2 and not (is_only_train and subdirectories(root / names[0])):
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
        if "test" in splits and not subdirectories(splits["test"]):
            del splits["test"]  # without labels: reported by left_out()
        return splits


def unusual(files: Sequence[ImageFile]) -> dict[str, list[ImageFile]]:
    """Return the images that may be a mistake of the folder, by kind."""
    direct = {file.label for file in files if file.key.count("/") == 1}
    return {
        # Of classes that have images in sub-directories only: these may be the classes.
        NESTED: [file for file in files if file.label not in direct],
        SHORTENED: [file for file in files if _HASHED.search(file.key)],
    }


def _refuse_hidden_splits(root: Path, names: Sequence[str]) -> None:
    """Raise ShardError for classes named like splits, such as training_set, or that hold splits."""
    is_few = len(names) <= _FEW
    words = {name: re.findall("[a-z]+", name.lower()) for name in names}
    splits = {name: _ALL[word] for name, found in words.items() for word in found if word in _ALL}
    inner = {name: set(subdirectories(root / name)) for name in names if is_few or name in splits}
    refused: tuple[str, ...] = ()
    for name in inner:
        held = {_ALL[one.lower()] for one in inner[name] if one.lower() in _ALL}
        if (is_few and len(held) > 1) or (len(names) == 1 and name in splits and inner[name]):
            refused = (name,)
        for other in names if name in splits else ():
            is_other = splits.get(other, splits[name]) != splits[name]
            is_same = other != name and not inner[name].isdisjoint(subdirectories(root / other))
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
        more = ""
        if len(empty) > 1:
            rest = f" and {len(empty) - 1 - _SHOWN} more" * (len(empty) - 1 > _SHOWN)
            more = f" (nor have {', '.join(map(repr, empty[1 : 1 + _SHOWN]))}{rest})"
        within = [root / name for name in classes if name.lower() in _ALL and subdirectories(root / name)]
        remedy = f", or give root={str(within[0])!r}" if within else ""
        raise ShardError(
            f"class {empty[0]!r} of root={str(root)!r} has no image{more}: {_kinds()}. Move the folder "
            f"away, or add images{remedy}."
        )


def _kinds() -> str:
    return " ".join(sorted(f".{extension}" for extension in FILE_EXTENSIONS))


def _classes(root: Path) -> dict[str, int]:
    if not root.is_dir():
        raise ShardError(f"root={str(root)!r} is not a directory. Give the one with a directory per class.")
    names = subdirectories(root)
    if not names and (shard := next(root.glob("*.tar"), None)):
        raise ShardError(
            f"root={str(root)!r} has shards, such as {shard.name}, and no images: give it as shards, "
            f"{str(root / '*.tar')!r}; to build caches, give one split after the other."
        )
    if not names:
        raise ShardError(
            f"root={str(root)!r} has no sub-directory. Put the images into one directory per class, or all "
            "into one if a table has their labels."
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
        for path in below(root / name, FILE_EXTENSIONS):
            files.append(ImageFile(path, key_of(os.path.relpath(path, root), keys), classes[name]))
    if not files:
        raise ShardError(f"root={str(root)!r} has no image ({_kinds()}) in its sub-directories.")
    loose = sorted(entry.name for entry in os.scandir(root) if is_image(entry.name, FILE_EXTENSIONS))
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
    while (key := fitting(key)) in taken:  # a.b.jpg and a_b.jpg, or a.jpg and a.png
        copies += 1
        key = f"{plain}_{copies}"
    taken.add(key)
    return key


def fitting(key: str) -> str:
    """Return a key that fits into the header of a tar, and that webdataset does not ignore.

    Names have at most 100 bytes, their folders 155.
    """
    if IGNORED.match(f"{key}.jpg"):
        key = key[1:]
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
