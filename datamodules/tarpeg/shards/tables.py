"""Labels in a table beside the images: a CSV or Parquet file, or a DataFrame."""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import logging
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ShardError, similar, warn
from ..files import open_regular
from .index import Int64
from .label import CellError, Form, Label, form_of
from .pillow import FILE_EXTENSIONS, MEMBER_OF
from .source import Source, where_of

log = logging.getLogger(__name__)

_DELIMITERS = ",;\t|"
_SHOWN = 3  # keys in a message
_TWICE, _NONE = -2, -1  # in place of a row


@dataclass(frozen=True)
class Table:
    """Some columns of a table.

    Args:
        name: For messages.
        keys: Text of each row's key.
        columns: Cells of the columns with labels, in the order of their places.
        is_text: Whether all cells are texts.
    """

    name: str
    keys: list[str]
    columns: list[list[Any]]
    is_text: bool


def read_table(given: Any, key: str | None, places: Sequence[str]) -> Table:
    """Read the columns of a table. Raises ShardError for a file that cannot be read, or lacks a column.

    Args:
        given: Path of a CSV or Parquet file, with the names of its columns; or a DataFrame or a dict of
            columns.
        key: Column with the names of the images.
        places: Columns with labels.
    """
    is_file = isinstance(given, (str, os.PathLike))
    name = f"labels={os.fspath(given)!r}" if is_file else f"labels= (a {type(given).__name__})"
    is_text = is_file and not is_parquet(given)
    wanted = [*([] if key is None else [key]), *places]
    if is_text:
        known, read = _csv(name, Path(given))
    elif is_file:
        known, read = _parquet(name, Path(given))
    else:
        known, read = _frame(given)
    if key is None or (lost := [each for each in wanted if each not in known]):
        problem = "needs key=" if key is None else f"has no column {lost[0]!r}{similar(lost[0], known)}"
        raise ShardError(
            f"{name} {problem}: its columns are {known[:12]}. Give key= the column with the names of the "
            "images, and target= those with the labels"
        )
    for each in wanted:
        if known.count(each) > 1:
            raise ShardError(f"{name} has two columns {each!r}: rename one")
    columns = read(wanted)
    if not columns[0]:
        raise ShardError(f"{name} has no rows")
    keys = ["" if each is None else str(each) for each in columns[0]]
    labels = columns[1:]
    if is_text:  # white space around a name would make another class of it
        labels = [[cell.strip() for cell in column] for column in labels]
    return Table(name, keys, labels, is_text)


def is_parquet(given: Any) -> bool:
    """Whether a path has the extension of a Parquet file."""
    return Path(given).suffix.lower() in (".parquet", ".pq")


Read = Callable[[Sequence[str]], list[list[Any]]]


def _csv(name: str, path: Path) -> tuple[list[str], Read]:
    try:
        # Excel begins with a byte order mark.
        with io.TextIOWrapper(open_regular(path), newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            delimiter = max(_DELIMITERS, key=first.count)
            file.seek(0)
            rows = csv.reader(file, delimiter=delimiter, strict=True)
            header = [each.strip() for each in next(rows, [])]
            cells: list[list[str]] = []
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ShardError(
                        f"{name}, line {rows.line_num} has {len(row)} cells, and the first line has "
                        f"{len(header)}: {', '.join(map(repr, row[:4]))}. Put quotes around cells with "
                        f"{delimiter!r} in them"
                    )
                cells.append(row)
    except (OSError, csv.Error, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise ShardError(f"{name} cannot be read as CSV in UTF-8: {reason}") from error

    def read(names: Sequence[str]) -> list[list[Any]]:
        return [[row[header.index(each)] for row in cells] for each in names]

    return header, read


def _parquet(name: str, path: Path) -> tuple[list[str], Read]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ShardError(
            f"{name} is read by pyarrow, which is not installed: pip install pyarrow, or write a CSV file"
        ) from error

    @contextmanager
    def named() -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            raise ShardError(f"{name} cannot be read as Parquet: {error}") from error

    def read(names: Sequence[str]) -> list[list[Any]]:
        with named():
            table = parquet.read_table(path, columns=list(dict.fromkeys(names)))
        return [_plain(table[each].to_pylist()) for each in names]

    with named():
        open_regular(path).close()
        return list(parquet.read_schema(path).names), read


def _frame(given: Any) -> tuple[list[str], Read]:
    known = list(given if isinstance(given, Mapping) else given.columns)

    def read(names: Sequence[str]) -> list[list[Any]]:
        columns = [_plain(given[each]) for each in names]
        if len({*map(len, columns)}) > 1:
            raise ShardError(f"labels= has columns of {sorted({*map(len, columns)})} rows")
        return columns

    return known, read


def is_frame(given: object) -> bool:
    """Whether an object is a table: a DataFrame, or a dict of columns."""
    is_mapping = isinstance(given, Mapping)
    return is_mapping or (hasattr(given, "columns") and hasattr(given, "__getitem__"))


def _plain(cells: Iterable[Any]) -> list[Any]:
    """Return cells as values of Python: those of arrays are numpy's."""
    found = [cell.tolist() if isinstance(cell, (np.generic, np.ndarray)) else cell for cell in cells]
    return [int(cell) if isinstance(cell, bool) else cell for cell in found]


@dataclass
class TableLabels:
    """Labels of samples in a table.

    Args:
        form: What they are.
        table: Name of the table, for messages.
        values: Labels by sample; by row for a stream.
        rows: For a stream, rows by key.
        found: Text of ``identity``.
    """

    form: Form
    table: str
    values: npt.NDArray[Any]
    rows: dict[str, int] | None = None
    found: str = field(default="", repr=False)

    def read(self, source: Source, ids: Int64) -> Tensor:
        """Return the labels of samples ids [B]; see ``Labels``."""
        if self.rows is None:
            return torch.from_numpy(self.values[ids])
        numbers = np.array([self._row_of(source, id) for id in ids.tolist()])
        found = self.values[numbers]
        found[numbers < 0] = self.form.empty
        return torch.from_numpy(found)

    def identity(self) -> str:
        """Return the name of the table and a hash of all labels."""
        return self.found

    def _row_of(self, source: Source, id: int) -> int:
        assert self.rows is not None
        (key,) = source.keys([id])
        row = self.rows.get(_without_dots(key), _NONE)
        if row == _TWICE or (row == _NONE and not self.form.label.optional):
            many = "several rows" if row == _TWICE else "no row"
            raise ShardError(f"{where_of(source, id)}: {self.table} has {many} with this key")
        return row


def table_labels(table: Table, label: Label, source: Source, ids: Int64 | None = None) -> TableLabels:
    """Return the labels of the samples of a source.

    Args:
        table: With the columns of the label.
        label: What they mean.
        source: The samples.
        ids: Of the samples that need labels; None for all.

    Raises:
        ShardError: For samples without a row, or with several, and for wrong cells.
    """
    form = _form(table, label)
    wanted = np.arange(len(source)) if ids is None else np.unique(ids)
    rows = _rows_of(table, source, wanted, is_optional=label.optional)
    has_row = rows >= 0
    unused = len(table.keys) - len(np.unique(rows[has_row]))
    log.info("%s: %d of %d rows are of other images", table.name, unused, len(table.keys))
    found = _array(table, form, rows[has_row])
    values = np.full((len(source), *found.shape[1:]), form.empty, found.dtype)
    values[wanted[has_row]] = found
    return TableLabels(form, table.name, values, found=_identity(table, form, values))


def streamed_table_labels(table: Table, label: Label) -> TableLabels:
    """Return the labels of the samples of a stream, by their keys, as ``table_labels``."""
    form, rows = _form(table, label), _by_key([*map(_without_dots, table.keys)])
    values = _array(table, form, np.arange(len(table.keys)))
    return TableLabels(form, table.name, values, rows, _identity(table, form, values))


def class_names(table: Table, label: Label) -> list[str] | None:
    """Return the names of the classes of a table by label; None if it has no classes."""
    return _form(table, label).classes


def _form(table: Table, label: Label) -> Form:
    try:
        return form_of(label, table.columns, is_text=table.is_text)
    except ValueError as error:
        raise ShardError(f"{table.name}, columns {label.places}: a cell {error}") from None


def _array(table: Table, form: Form, rows: Int64) -> npt.NDArray[Any]:
    try:
        return form.array([[column[row] for row in rows.tolist()] for column in table.columns])
    except CellError as error:
        row, place = int(rows[error.row]), form.label.places[error.place]
        raise ShardError(
            f"{table.name}, row {row + 1} after the names of the columns, key {table.keys[row]!r}: "
            f"{place!r} {error.reason}"
        ) from None


def _identity(table: Table, form: Form, values: npt.NDArray[Any]) -> str:
    content = hashlib.sha256(f"{form.kind} {form.classes}\n".encode() + values.tobytes()).hexdigest()[:16]
    return f"labels ({len(values)} of kind {form.kind}, {content})"


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
        """Return the row of each sample, _NONE or _TWICE; and the way by which it was found."""
        found = np.full(len(self.ways[0][1]), _NONE)
        way, free = np.zeros(len(found), np.int64), [*range(len(self.ways[0][0]))]
        for number, (table, samples) in enumerate(self.ways):
            rows = _by_key([table[row] for row in free])
            numbers = np.array([rows.get(key, _NONE) for key in samples], np.int64)
            numbers[numbers >= 0] = np.array([*free, 0])[numbers[numbers >= 0]]
            if number == 1:
                # One row has the name of an image, and another one this name without its extension.
                names = {self.ways[0][0][row] for row in free}
                is_twice = [key in names for key in samples]
                found = np.where((found != _NONE) & is_twice, _TWICE, found)
            is_new = (found == _NONE) & (numbers != _NONE)
            way[is_new | (found == _TWICE)] = number
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
    if left_out == 0:
        yield _Form(ways)
    elif left_out == 2:
        yield _Form([([*map(_base, rows)], [*map(_base, keys)]) for rows, keys in ways], 2)
    elif folder is not None:
        above = [of(f"{folder}/x").split("/")[:-1] for of in _ways(folder)]
        below = [[_below(each, key) for key in keys] for each, (keys, _) in zip(above, ways, strict=True)]
        yield _Form([(keys, way[1]) for keys, way in zip(below, ways, strict=True)], 1)
    elif root := _root(*ways[0]):
        rows, keys = ways[0]
        yield _Form([([key.removeprefix(f"{root}/") for key in rows], keys)], 1)


def _root(rows: Sequence[str], keys: Sequence[str]) -> str:
    """Return the folder below which the keys of rows are those of samples; "" for none, and for several."""
    own, roots = {*keys}, set[str]()
    for row in rows:
        parts = row.split("/")
        below = (count for count in range(len(parts)) if "/".join(parts[count:]) in own)
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


def _by_key(keys: Sequence[str]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for row, key in enumerate(keys):
        rows[key] = _TWICE if key in rows else row
    return rows


def _rows_of(table: Table, source: Source, ids: Int64, *, is_optional: bool) -> npt.NDArray[np.int64]:
    """Return the row of each sample of ids; -1 for one without, if they are optional. Raises ShardError.

    All samples are compared: the row of one that a ``subset`` leaves out is not that of another.
    """
    keys, folder = source.keys(np.arange(len(source))), _folder_of(source)
    found, way, used = np.full(len(keys), _NONE), np.zeros(len(keys), np.int64), _Form([])
    for left_out in range(3):
        for form in _forms(table.keys, keys, folder, left_out):
            numbers, by = form.matched()
            if (numbers != _NONE).sum() > (found != _NONE).sum():
                found, way, used = numbers, by, form
        if (found != _NONE).any():
            break  # the same name in another folder may be another image
    own = found[ids]
    if (own == _NONE).all():
        raise ShardError(
            f"{table.name} has no row with the key of an image: its first keys are "
            f"{', '.join(map(repr, table.keys[:_SHOWN]))}, and those of the samples "
            f"{', '.join(repr(keys[id]) for id in ids[:_SHOWN].tolist())}. Give key= the column with the "
            "names of the images"
        )
    if (own == _TWICE).any():
        id = int(ids[(own == _TWICE).argmax()])
        rows, samples = used.ways[way[id]]
        places = [n for n, key in enumerate(rows) if key == samples[id]]
        one, other = (table.keys[places[each]] for each in (0, -1))
        raise ShardError(
            f"{where_of(source, id)}: rows {places[0] + 1} and {places[-1] + 1} of {table.name} "
            f"have this key, as {one!r} and {other!r}: leave one row per image, or give each split its own "
            "table"
        )
    lost = ids[own == _NONE].tolist()
    if lost and not is_optional:
        raise ShardError(
            f"{table.name} has no row for {len(lost)} of {len(ids)} samples, such as "
            f"{', '.join(repr(keys[id]) for id in lost[:_SHOWN])}. Add them, give subset= the numbers of "
            "the others, or target=tarpeg.Label(..., optional=True) for missing labels"
        )
    _check_shared(table, keys, found, ids, "folders" if folder is None else "folders and extensions")
    if used.left_out == 2:
        _check_folders(table, keys, found, way, ids, folder)
    if folder is not None:
        _check_extensions(table, keys, found, ids)
    return own


def _check_shared(
    table: Table, keys: Sequence[str], rows: npt.NDArray[np.int64], ids: Int64, parts: str
) -> None:
    """Raise ShardError for a row that two samples with different keys have, one of them of ids."""
    taken = Counter(rows[rows >= 0].tolist())
    if max(taken.values()) == 1:
        return
    for id, row in zip(ids.tolist(), rows[ids].tolist(), strict=True):
        if row < 0 or taken[row] == 1:
            continue
        one, other = keys[id], next(keys[n] for n in np.flatnonzero(rows == row).tolist() if n != id)
        if one != other:
            raise ShardError(
                f"{table.name}, key {table.keys[row]!r} is that of the samples {one!r} and {other!r}: write "
                f"keys with their {parts}"
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
        key, other, of = keys[id], table.keys[rows[id]], ways[way[id]]
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
