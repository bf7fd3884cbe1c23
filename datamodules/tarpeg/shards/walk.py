"""The files below a folder: walking through it, which are images, can be read, or are left out."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ..errors import ShardError
from ..files import LARGEST_IMAGE
from .pillow import FILE_EXTENSIONS

REMEDY = "Repair or remove such files; tarpeg.build_cache leaves them out, and lists them."
_LISTED = 10  # files in an error
_SHOWN = 8  # kinds of files in a message


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
            f"{REMEDY}"
        )
    return stats


def left_out_line(counts: Mapping[str, int]) -> str:
    """Format the counts of Folder.left_out in one line; empty without any."""
    one = re.compile("^(image|file|folder|link)s")
    parts = [f"{n} {one.sub(lambda word: word[1], kind) if n == 1 else kind}" for kind, n in counts.items()]
    more = sum(list(counts.values())[_SHOWN:])
    return f"left out: {', '.join(parts[:_SHOWN])}{f', and {more} other files' * bool(more)}" if parts else ""


def by_number(counts: Counter[str]) -> dict[str, int]:
    """Return the counts above 0: those of images first, whatever their number, then the largest first."""
    return dict(sorted((+counts).items(), key=lambda one: (not one[0].startswith("image"), -one[1], one[0])))


def kind_of(directory: str, name: str) -> str:
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


def subdirectories(root: Path) -> list[str]:
    """Names of the directories in root, sorted, without hidden ones; none if root is no directory."""
    if not root.is_dir():
        return []
    try:
        with os.scandir(root) as entries:
            found = [e for e in entries if _is(os.DirEntry.is_dir, e) and not e.name.startswith(".")]
    except OSError as error:
        _refuse(error)
    links = [entry for entry in found if entry.is_symlink()]
    above = _above(root) if links else set()
    loops = {entry.name for entry in links if _place(entry.path) in above}
    return sorted(entry.name for entry in found if entry.name not in loops)


def images_below(folder: Path) -> list[str]:
    """Paths of the images in a folder and below, sorted, without hidden ones."""
    return below(folder, FILE_EXTENSIONS)


def below(
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
    for directory, inner, names in walk(folder, odd=odd):
        if left_out is not None:
            left_out.update(f"{name}/" for name in inner if name.startswith("."))
            left_out.update(kind_of(directory, name) for name in names if not is_image(name, extensions))
        inner[:] = [entry for entry in inner if not entry.startswith(".")]
        found += [os.path.join(directory, name) for name in names if is_image(name, extensions)]  # noqa: PTH118
    if odd is not None:
        odd[:] = [path for path in odd if is_image(Path(path).name, extensions)]
    return sorted(found)


def _refuse(error: OSError) -> NoReturn:
    raise ShardError(
        f"folder {error.filename} cannot be read: {error.strerror}. Repair or remove it."
    ) from error


def walk(
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


def matches(pattern: str) -> list[str]:
    """Paths that a glob matches, folders too; "**" is any number of folders, without those of a link above.

    glob.glob would follow such a link some forty times, and two of them for ever.
    """
    text = re.sub(r"/\*\*(?=/\*\*(/|$))", "", f"/{pattern}")
    head, deep, tail = re.sub(r"/\*\*$", "/**/*", text).partition("/**/")
    if not deep:
        return glob.glob(pattern)  # noqa: PTH207 (Path.glob refuses absolute patterns)
    found: dict[str, None] = {}
    for root in matches(head[1:] or "/") if head else [""]:
        for directory, inner, _ in walk(root or ".", on_error=lambda error: None):
            inner[:] = [name for name in inner if not name.startswith(".")]
            place = glob.escape(directory if root else directory[2:])
            found |= dict.fromkeys(matches(os.path.join(place, tail)))  # noqa: PTH118
    return list(found)


def _is(kind: Callable[[os.DirEntry[str]], bool], entry: os.DirEntry[str]) -> bool:
    try:
        return kind(entry)
    except OSError:  # such as links in a circle
        return False


def _above(folder: str | Path) -> set[tuple[int, int] | None]:
    """Places of a folder and of all folders above it, with and without links."""
    path = Path(folder).absolute()
    by_name = () if ".." in path.parts else path.parents  # those of "a/b/.." have a/b, which is below
    return {_place(one) for one in {path, *by_name, *path.resolve().parents}} - {None}


def _place(path: str | Path) -> tuple[int, int] | None:
    """Device and inode; None if unknown."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None  # listing it reports the reason
    return (found.st_dev, found.st_ino) if found.st_ino else None


def is_image(name: str, extensions: Collection[str]) -> bool:
    """Whether a file is an image by its name: of one of the extensions, and not hidden."""
    return not name.startswith(".") and has_extension(name, extensions)


def has_extension(name: str, extensions: Collection[str]) -> bool:
    """Whether a file, hidden or not, has one of the extensions."""
    return Path(name).suffix.lower().removeprefix(".") in extensions
