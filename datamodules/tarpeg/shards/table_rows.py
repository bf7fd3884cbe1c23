"""Which row of a table is that of which sample: their keys may have other folders, extensions or accents."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import ShardError, warn
from .folder import fitting
from .index import Int64
from .pillow import FILE_EXTENSIONS, MEMBER_OF
from .source import Source, where_of
from .tables import Table

_SHOWN = 3  # keys in a message
_SHORT = 90  # characters of a key that fits into the header of a tar
TWICE, NONE = -2, -1  # in place of a row


def _exact(key: str) -> str:
    return key.replace("\\", "/").removeprefix("./")


def _whole(key: str) -> str:
    """Return a key without white space around it, which the image may not have."""
    return _exact(key.strip())


def _stem(key: str) -> str:
    """Return a key without the extension of an image, and white space before it."""
    key = _whole(key)
    name, dot, extension = key.rpartition(".")
    return (name if dot and extension.lower() in FILE_EXTENSIONS else key).strip()


def _without_dots(key: str) -> str:
    """Return a key without the extension of an image, and without dots, which keys of shards do not have."""
    return _stem(key).replace(".", "_")


def stored(key: str, *, apart: bool = False) -> str:
    """Return the key that ``build_cache`` and ``FolderShards`` give an image: another one for a long name.

    Composed, whichever form of letters with accents it has; the hash of a long name depends on the form.

    Args:
        key: Path of the image.
        apart: Whether its letters with accents were written apart (NFD).
    """
    name = unicodedata.normalize("NFD" if apart else "NFC", _without_dots(key))
    return unicodedata.normalize("NFC", fitting(name))


def _base(key: str) -> str:
    return key.rpartition("/")[2].strip()


@dataclass(frozen=True)
class _Form:
    """A form in which keys of a table and of samples are compared.

    Attributes:
        ways: (keys of the rows, keys of all samples), the strictest first. A row that is one of a sample's in
            one way is of no other sample in the next.
        left_out: 0: nothing, 1: the folders above that of the samples, 2: all folders.
    """

    ways: list[tuple[list[str], list[str]]]
    left_out: int = 0

    def matched(self) -> tuple[Int64, Int64]:
        """Return the row of each sample, NONE or TWICE; and the way by which it was found."""
        found = np.full(len(self.ways[0][1]), NONE)
        way, free = np.zeros(len(found), np.int64), [*range(len(self.ways[0][0]))]
        for number, (table, samples) in enumerate(self.ways):
            rows = by_key([table[row] for row in free])
            numbers = np.array([rows.get(key, NONE) for key in samples], np.int64)
            numbers[numbers >= 0] = np.array([*free, 0])[numbers[numbers >= 0]]
            if number == 1:
                # One row has the name of an image, and another one this name without its extension.
                names = {self.ways[0][0][row] for row in free}
                is_twice = [key in names for key in samples]
                found = np.where((found != NONE) & is_twice, TWICE, found)
            is_new = (found == NONE) & (numbers != NONE)
            way[is_new | (found == TWICE)] = number
            found = np.where(is_new, numbers, found)
            own = {*samples}
            free = [row for row in free if table[row] not in own]
        return found, way


def _forms(
    table: Sequence[str], samples: Sequence[str], folder: str | None, left_out: int
) -> Iterator[_Form]:
    """Yield forms of the keys of a table and of samples, the strictest first.

    Args:
        table: Keys of the rows.
        samples: Keys of the samples.
        folder: Of images; None for shards.
        left_out: As of ``_Form``.
    """
    if left_out == 0:
        yield _Form([([*map(_exact, table)], [*map(_exact, samples)])])
    # macOS writes the names of files with letters and accents apart (NFD), most programs do not.
    if not all(map(str.isascii, table)):
        table, samples = ([unicodedata.normalize("NFC", key) for key in keys] for keys in (table, samples))
    ways = [([*map(of, table)], [*map(of, samples)]) for of in _ways(folder)]
    if left_out == 2:
        ways = [([*map(_base, rows)], [*map(_base, keys)]) for rows, keys in ways]
    if left_out != 1:
        yield _Form(ways if folder is not None else [*ways, *_changed(*ways[0])], left_out)
    elif folder is not None:
        above = [of(f"{folder}/x").split("/")[:-1] for of in _ways(folder)]
        below = [[_below(each, key) for key in keys] for each, (keys, _) in zip(above, ways, strict=True)]
        yield _Form([(keys, way[1]) for keys, way in zip(below, ways, strict=True)], 1)
    elif root := _root(*ways[0]):
        rows, keys = ways[0]
        rows = [key.removeprefix(f"{root}/") for key in rows]
        yield _Form([(rows, keys), *_changed(rows, keys)], 1)


def _changed(rows: list[str], keys: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """Return further ways for samples whose keys a cache had to change: by a hash of what the name was."""
    found = []
    for apart in (False, True):
        # Nearly all keys stay as they are: short ones without "__".
        names = [
            row if row.isascii() and len(row) < _SHORT and "__" not in row else stored(row, apart=apart)
            for row in rows
        ]
        if names != rows and names not in found:
            found.append(names)
    return [(names, [*keys]) for names in found]


def _root(rows: Sequence[str], keys: Sequence[str]) -> str:
    """Return the folder below which the keys of rows are those of samples; "" for none, and for several."""
    own, roots = {*keys}, set[str]()
    for row in rows:
        parts = row.split("/")
        below = (count for count in range(len(parts)) if fitting("/".join(parts[count:])) in own)
        if (count := next(below, None)) is not None:
            roots.add("/".join(parts[:count]))
    return roots.pop() if len(roots) == 1 else ""


def _ways(folder: str | None) -> list[Callable[[str], str]]:
    """Forms of a key: images of a folder may differ in extensions or dots alone, which shards do not have."""
    return [_without_dots] if folder is None else [_whole, _stem, _without_dots]


def _folder_of(source: Source) -> str | None:
    """Return the folder of single images; None for shards, whose keys have no place."""
    folder = source.shard(0)
    if not isinstance(folder, Path) or not folder.is_dir():
        return None
    return str(folder.expanduser().absolute()).replace(os.sep, "/")


def _below(above: Sequence[str], key: str) -> str:
    """Return a key relative to the folder of these parts, if it begins with the last of them."""
    parts = key.split("/")
    for count in range(len(parts) - 1, 0, -1):
        if parts[:count] == above[-count:]:
            return "/".join(parts[count:]).strip()
    return key


def by_key(keys: Sequence[str]) -> dict[str, int]:
    """Return the row of each key; TWICE for one that comes again."""
    rows: dict[str, int] = {}
    for row, key in enumerate(keys):
        rows[key] = TWICE if key in rows else row
    return rows


def rows_of(table: Table, source: Source, ids: Int64, *, is_optional: bool) -> npt.NDArray[np.int64]:
    """Return the row of each sample of ids; -1 for one without, if they are optional. Raises ShardError.

    All samples are compared: the row of one that a ``subset`` leaves out is not that of another.
    """
    keys, folder = source.keys(np.arange(len(source))), _folder_of(source)
    found, way, used = np.full(len(keys), NONE), np.zeros(len(keys), np.int64), _Form([])
    for left_out in range(3):
        for form in _forms(table.keys, keys, folder, left_out):
            numbers, by = form.matched()
            if (numbers != NONE).sum() > (found != NONE).sum():
                found, way, used = numbers, by, form
        if (found != NONE).any():
            break  # the same name in another folder may be another image
    own = found[ids]
    if (own == NONE).all():
        raise ShardError(
            f"{table.name} has no row with the key of an image: its first keys are "
            f"{', '.join(map(repr, table.keys[:_SHOWN]))}, and those of the samples "
            f"{', '.join(repr(keys[id]) for id in ids[:_SHOWN].tolist())}. Give key= the column with the "
            "names of the images"
        )
    if (own == TWICE).any():
        id = int(ids[(own == TWICE).argmax()])
        rows, samples = used.ways[way[id]]
        places = [n for n, key in enumerate(rows) if key == samples[id]]
        one, other = (table.keys[places[each]] for each in (0, -1))
        second = f"; of two images of one name shards have the second as {keys[id] + '_2'!r}" * (
            folder is None
        )
        raise ShardError(
            f"{where_of(source, id)}: rows {places[0] + 1} and {places[-1] + 1} of {table.name} "
            f"have this key, as {one!r} and {other!r}: leave one row per image, or give each split its own "
            f"table{second}"
        )
    lost = ids[own == NONE].tolist()
    if lost and not is_optional:
        raise ShardError(
            f"{table.name} has no row for {len(lost)} of {len(ids)} samples, such as "
            f"{', '.join(repr(keys[id]) for id in lost[:_SHOWN])}. Add them, give subset= the numbers of "
            "the others, or target=tarpeg.Label(..., optional=True) for missing labels"
        )
    _check_shared(table, source, keys, found, ids, "folders" if folder is None else "folders and extensions")
    if used.left_out == 2:
        _check_folders(table, keys, found, way, ids, folder)
    if folder is not None:
        _check_extensions(table, keys, found, ids)
    return own


def _check_shared(
    table: Table, source: Source, keys: Sequence[str], rows: npt.NDArray[np.int64], ids: Int64, parts: str
) -> None:
    """Raise ShardError for a row that two samples have, one of them of ids."""
    taken = Counter(rows[rows >= 0].tolist())
    if max(taken.values()) == 1:
        return
    for id, row in zip(ids.tolist(), rows[ids].tolist(), strict=True):
        if row < 0 or taken[row] == 1:
            continue
        other = next(n for n in np.flatnonzero(rows == row).tolist() if n != id)
        if keys[id] != keys[other]:
            raise ShardError(
                f"{table.name}, key {table.keys[row]!r} is that of the samples {keys[id]!r} and "
                f"{keys[other]!r}: write keys with their {parts}"
            )
        raise key_twice(table.name, where_of(source, id), f"shard {source.shard(other)}")


def key_twice(table: str, where: str, other: str) -> ShardError:
    """Return the error for a row that two samples of one key have."""
    return ShardError(
        f"{where}: {other} has this key too, and {table} one row for both. Write the shards with keys "
        "that differ; repeats= of tarpeg.Split shows samples several times"
    )


def _check_extensions(table: Table, keys: Sequence[str], rows: npt.NDArray[np.int64], ids: Int64) -> None:
    """Warn if the row of an image has the extension of another format: images may have been converted."""
    for id in ids[rows[ids] >= 0].tolist():
        one, two = (_kind(key) for key in (keys[id], table.keys[rows[id]]))
        if two and one != two:
            warn(
                f"{table.name}, key {table.keys[rows[id]]!r} is taken for the image {keys[id]!r}: no row "
                "has its extension. Leave the extensions out if the images were converted"
            )
            return


def _kind(key: str) -> str:
    """Return the extension of an image in one spelling; "" for none."""
    extension = _whole(key).rpartition(".")[2].lower()
    known = {"jpeg": "jpg", **MEMBER_OF}.get(extension, extension)
    return known if extension in FILE_EXTENSIONS else ""


def _check_folders(
    table: Table,
    keys: Sequence[str],
    rows: npt.NDArray[np.int64],
    way: Int64,
    ids: Int64,
    folder: str | None,
) -> None:
    """Warn if rows belong to samples of ids by the names alone, in other folders, or in several."""
    ways, roots = _ways(folder), dict[str, str]()
    for id in ids[rows[ids] >= 0].tolist():
        key, other = keys[id], table.keys[rows[id]]
        of = ways[0] if folder is None else ways[way[id]]
        one, two = of(key), of(other)
        if folder is None:
            is_same = f"/{one}".endswith(f"/{two}") or f"/{two}".endswith(f"/{one}")
            if is_same and len(two) > len(one):
                roots.setdefault(two[: -len(one)], other)
        else:  # the whole path is known
            is_same = of(f"{folder}/{key}").endswith(f"/{two.lstrip('/')}")
        if not is_same:
            warn(
                f"{table.name}, key {other!r} is taken for the sample {key!r}, by the name alone: "
                "no key of the table is that of a sample with its folder. Write keys with the folders of the "
                "samples if it is another image"
            )
            return
    if len(roots) > 1:
        one, two, *_ = roots.values()
        warn(
            f"{table.name}, keys {one!r} and {two!r} are of two folders, and are taken for samples of one, "
            "by their names: give each split its own table if one of them is another image"
        )
