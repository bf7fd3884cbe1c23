"""Local shards of a source: a folder, a path, a glob, a brace pattern or a list of these."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from braceexpand import braceexpand

from ..errors import ShardError
from ..remedies import Call, Message
from .manifest import MANIFEST, listed
from .pillow import FILE_EXTENSIONS, IMAGE_EXTENSIONS, NOT_READ
from .saved import SUFFIXES
from .urls import is_url, local_or_url, public_url
from .walk import by_number, matches

# PathLike comes last, because jsonargparse would make a string of anything for it.
Paths = Sequence[str | os.PathLike[str]] | str | os.PathLike[str]

_ARCHIVES = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip")
_SHOWN = 3  # file names of a folder in a message
_MOST_PREFIXES = 16
# Words for a split in names of shards, at their begin or between separators.
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_OF_SPLIT = re.compile(rf"(?:^|[-_.])({'|'.join(_SPLITS)})[-_.\d]", re.IGNORECASE)


def expand(source: Paths, *, is_split: bool = False) -> list[Path]:
    """Expand a source to the paths of its shards.

    A folder means all *.tar in it (not below it), sorted; matches of a glob are sorted too; otherwise the
    order is as given. Braces as in bash: "train-{000..009}.tar". Shards in the manifest of a cache are
    included even if their files are missing. Raises ShardError if a part of the source does not match a local
    file, and for a shard that comes twice.

    ``is_split``: raise ShardError also for a folder with shards of several splits by their names, such as
    train-* and val-*. A glob of all of them is accepted.
    """
    parts = parts_of(source)
    if not parts:
        raise ShardError("shards=[] has no shards. Give a folder, a glob, a brace pattern or paths.")
    paths: list[Path] = []
    for part in parts:
        try:
            found = list(_expand_one(part))
        except ShardError as error:
            if folder := _folder_as_pattern(part):
                raise ShardError(
                    f"shards {part!r} has no match: *, ?, [ ] and {{ }} are read as a pattern, also those "
                    f"in the name of the folder {folder!r}, which is there. Give the folder, or a list of "
                    "the paths of its shards, which are read as they are; or rename it."
                ) from error
            raise
        if is_split and Path(part).expanduser().is_dir():
            refuse_several_splits(part, [path.name for path in found])
        paths += found
    refuse_twice(list(map(str, paths)), source)
    return paths


def refuse_several_splits(folder: str, names: Iterable[str], argument: str = "shards") -> None:
    """Raise ShardError if the names of a folder's shards are those of several splits, as train-* and val-*.

    Args:
        folder: The folder, or its URL.
        names: Names of its shards.
        argument: That was given it.
    """
    given = public_url(folder) if is_url(folder) else folder
    place = given.rstrip("/") if is_url(folder) else str(Path(folder).expanduser())
    patterns: dict[str, str] = {}
    for name in sorted(names):
        if found := _OF_SPLIT.search(name):
            beginning = name[: found.end()].rstrip("0123456789")
            patterns.setdefault(_SPLITS[found[1].lower()], f"{place}/{beginning}*.tar")
    if len(patterns) > 1:
        raise ShardError(
            f"{argument}={given!r} is a folder with shards of {len(patterns)} "
            f"splits, by their names: give {' or '.join(map(repr, patterns.values()))}; for all of them "
            f"together {f'{place}/*.tar'!r}."
        )


def by_prefix(paths: Sequence[Path]) -> list[Sequence[Path]]:
    """Return shards by what was packed at once: those of a folder whose names differ in their number alone.

    All of them together if their names are not numbered.
    """
    found: dict[tuple[Path, str], list[Path]] = {}
    for path in paths:
        found.setdefault((path.parent, path.stem.rstrip("0123456789")), []).append(path)
    return [*found.values()] if len(found) <= _MOST_PREFIXES else [paths]


def parts_of(source: Paths) -> list[str]:
    """Return the source as a list of paths and URLs, a file:// URL as its path.

    ShardError for an empty string, which is no folder, and for a chain of URLs.
    """
    parts = [os.fspath(part) for part in ([source] if isinstance(source, (str, os.PathLike)) else source)]
    if not all(parts):
        raise ShardError(f"{source!r} has no shards. Give a folder, a glob, a brace pattern or paths.")
    return [*map(local_or_url, parts)]


def resolved(name: str) -> str:
    """Return a path without links, to compare it with others; a URL as it is."""
    return name if is_url(name) else os.path.realpath(name)


def identity(name: str) -> object:
    """Return a value that is equal for all links to one file, hard links too; a URL as it is."""
    try:
        found = None if is_url(name) else os.stat(name)  # noqa: PTH116
    except OSError:  # opening it reports the reason
        found = None
    return resolved(name) if found is None or not found.st_ino else (found.st_dev, found.st_ino)


def refuse_twice(names: Sequence[str], source: Paths) -> None:
    """Raise ShardError for a shard that the source has twice, also by a symbolic or hard link."""
    seen: dict[object, str] = {}
    for name in names:
        if (other := seen.get(place := identity(name))) is not None:
            link = f" (also as {other})" if other != name else ""
            raise ShardError(f"shard {name}{link} is there twice in {source!r}. Give each shard once.")
        seen[place] = name


def _expand_one(text: str) -> Iterator[Path]:
    if is_url(text):
        raise ShardError(
            Message(
                f"shards {public_url(text)!r} is not local. Give ",
                Call("tarpeg.Split", {"streaming": True}),
                ", or copy it to a local folder, for which more is guaranteed (see tarpeg.Streaming).",
            )
        )
    if text.startswith("~/"):
        text = str(Path.home() / text[2:])
    # An existing path is taken literally, not as a pattern: folders with brackets or braces do occur.
    if os.path.lexists(text):
        yield from _expand_existing(text)
    elif "{" in text or "}" in text:
        yield from _expand_braces(text)
    elif glob.has_magic(text):
        names = matches(text)
        # A pattern such as "train-*" also matches the indexes beside the shards.
        names = [name for name in names if not name.endswith((*SUFFIXES, ".idx", MANIFEST))]
        found = {path for path in map(Path, names) if not path.is_dir()}
        # A shard that a cache has lost is included, so that opening it is an error.
        expected = {path for folder in {file.parent for file in found} for path in listed(folder)}
        last = Path(text).name
        files = sorted(found | {path for path in expected if fnmatch.fnmatchcase(path.name, last)})
        if not files:
            folder = Path(text).absolute().parent
            has_others = not glob.has_magic(str(folder)) and any(folder.glob("*.tar"))
            every = f" Give {str(folder / '*.tar')!r} for all of its shards." * has_others
            raise ShardError(f"shards {text!r}: no file matches this pattern; {_content(folder)}.{every}")
        yield from files
    else:
        raise ShardError(_missing(text))


def _folder_as_pattern(text: str) -> str:
    """Return the folder of a pattern that is there, if its name is read as a part of the pattern; else ""."""
    folder = str(Path(text).expanduser().parent)
    is_magic = glob.has_magic(folder) or "{" in folder
    return folder if is_magic and Path(folder).is_dir() else ""


def _expand_existing(text: str) -> Iterator[Path]:
    path = Path(text)
    if not path.is_dir():
        yield path
        return
    try:
        # Dot files are left by macOS ("._a.tar") and by unfinished copies.
        tars = (entry for entry in path.iterdir() if entry.suffix == ".tar" and not entry.is_dir())
        found = {entry for entry in tars if not entry.name.startswith(".")}  # opening refuses a FIFO
    except OSError as error:
        raise ShardError(f"shards {text!r}: the folder cannot be read: {error.strerror}.") from error
    files = sorted(found | set(listed(path)))
    if not files:
        kinds = {entry.suffix[1:].lower(): entry.name for entry in path.iterdir()}
        image = next((name for kind, name in kinds.items() if kind in FILE_EXTENSIONS), None)
        other = next((name for kind, name in kinds.items() if kind in NOT_READ), None)
        beside = "no image" if image is None else f"no sub-directory per class, but images such as {image!r}"
        if image is None and other is not None:
            beside += f" but {other!r}, of a format that is not read: convert such files to JPEG or PNG"
        raise ShardError(
            f"shards {text!r}: the folder has no .tar file and {beside}. Expected are .tar files directly in "
            "it; images to predict, in it or below; or, for build_cache and FolderShards only, one "
            "sub-directory per class with its images (one for all if a table has their labels)."
        )
    yield from files


def left_out_beside(source: Paths, *, all_folders: bool = True) -> dict[str, int]:
    """Count by kind what the folders of a source have beside their shards: folders, other archives, images.

    ``all_folders``: also those without a shard in them.
    """
    counts = Counter[str]()
    for folder in (Path(part).expanduser() for part in parts_of(source) if not is_url(part)):
        for entry in os.scandir(folder) if folder.is_dir() else ():
            own = Path(entry.name).suffix
            suffix = own.lower()
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                counts["folders beside the shards"] += all_folders or any(Path(entry.path).glob("*.tar"))
            elif suffix in _ARCHIVES or suffix[1:] in IMAGE_EXTENSIONS or (suffix == ".tar" != own):
                counts[own if suffix == ".tar" else suffix] += 1
    return by_number(counts)


def expand_braces(text: str, shown: str) -> list[str]:
    """Expand braces as in bash; ShardError, with the text to show, if they do not match."""
    try:
        return list(braceexpand(text))
    except ValueError as error:
        raise ShardError(
            f"shards {shown!r}: the braces do not match. Write it like train-{{000..009}}.tar."
        ) from error


def _expand_braces(text: str) -> Iterator[Path]:
    for name in expand_braces(text, text):
        if name == text or "{" in name:
            raise ShardError(_missing(text))
        yield from _expand_one(name)


def _missing(text: str) -> str:
    return f"shard {text} does not exist; {_content(Path(text).absolute().parent)}. Check the path."


def _content(folder: Path) -> str:
    if glob.has_magic(str(folder)):
        return "check each part of it"
    if not folder.is_dir():
        return f"there is no folder {folder}"
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        return f"its folder {folder} cannot be read: {error.strerror}"
    more = f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
    return f"its folder {folder} has {', '.join(names[:_SHOWN]) or 'no files'}{more}"
