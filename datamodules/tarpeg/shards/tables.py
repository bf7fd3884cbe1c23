"""Labels in a table beside the images: a CSV or Parquet file, or a DataFrame."""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..errors import ShardError, similar
from ..files import open_regular
from .urls import is_url, public_url

_DELIMITERS = ",;\t|"


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
    if is_file and is_url(os.fspath(given)):
        raise ShardError(
            f"labels={public_url(os.fspath(given))!r} is not local: copy it, or give what pandas reads, "
            "labels=pandas.read_csv(...)"
        )
    if is_file and os.path.isdir(given := local_path(given)):  # noqa: PTH112 (no error for any name)
        raise ShardError(f"{name} is a folder: give a file, or labels=pandas.read_parquet(...) of it")
    is_text = is_file and not is_parquet(given)
    wanted = [*([] if key is None else [key]), *places]
    if is_text:
        known, read = _csv(name, given)
    elif is_file:
        known, read = _parquet(name, given)
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


def local_path(given: str | os.PathLike[str]) -> Path:
    """Return the path of a file, with "~" for the home folder."""
    return Path(os.path.expanduser(given))  # noqa: PTH111 (no error for "~$labels.csv")


def is_parquet(given: Any) -> bool:
    """Whether a path has the extension of a Parquet file."""
    return Path(given).suffix.lower() in (".parquet", ".pq")


Read = Callable[[Sequence[str]], list[list[Any]]]


def _csv(name: str, path: Path) -> tuple[list[str], Read]:
    try:
        # Excel begins with a byte order mark.
        with io.TextIOWrapper(open_regular(path), newline="", encoding="utf-8-sig") as file:
            named = re.fullmatch(r"sep=(.)\s*", file.readline())  # Excel's
            delimiter = named[1] if named else max(_DELIMITERS, key=partial(_cells, file))
            file.seek(0)
            # A blank before a quote would make the quotes a part of the cell.
            has_blanks = any(f'{delimiter} "' in line for line in file)
            file.seek(0)
            if named:
                file.readline()
            rows = csv.reader(file, delimiter=delimiter, strict=True, skipinitialspace=has_blanks)
            header = [each.strip() for each in next(filter(None, rows), [])]
            cells: list[list[str]] = []
            for row in rows:
                if not row:
                    continue
                line = rows.line_num + (named is not None)
                if row[0].strip() == header[0] and [each.strip() for each in row] == header:
                    raise ShardError(f"{name}, line {line} has the names of the columns again: remove it")
                if len(row) != len(header):
                    remedy = f"Put quotes around cells with {delimiter!r} in them"
                    if len(header) == 1 or header[0].startswith("#"):
                        remedy = "The first line must be the names of the columns"
                    raise ShardError(
                        f"{name}, line {line} has {len(row)} cells, and the "
                        f"first line has {len(header)}: {', '.join(map(repr, row[:4]))}. {remedy}"
                    )
                cells.append(row)
    except (OSError, csv.Error, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise ShardError(
            f"{name} cannot be read as CSV in UTF-8: {reason}. Of other tables give what pandas reads: "
            "labels=pandas.read_excel(...)"
        ) from error

    def read(names: Sequence[str]) -> list[list[Any]]:
        return [[row[header.index(each)] for row in cells] for each in names]

    return header, read


def _cells(file: io.TextIOWrapper, delimiter: str) -> tuple[bool, int]:
    """Return whether the first rows of a table have as many cells, more than one, and how many."""
    file.seek(0)
    try:
        first, *others = itertools.islice(csv.reader(file, delimiter=delimiter, skipinitialspace=True), 2)
    except (csv.Error, ValueError):  # such as a long line without this delimiter; an empty file
        return False, 0
    return len(first) > 1 and all(len(row) in (0, len(first)) for row in others), len(first)


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
    if hasattr(given, "collect_schema") and hasattr(given, "collect"):
        raise ShardError(
            "labels= is a LazyFrame of polars, which has no rows yet: give labels=frame.collect()"
        )
    is_arrow = type(given).__module__.startswith("pyarrow")  # its columns are no names
    known = list(given if isinstance(given, Mapping) else given.column_names if is_arrow else given.columns)

    def read(names: Sequence[str]) -> list[list[Any]]:
        # A cell of a column of lists is a column itself if it is iterated over, in polars.
        found = [given[each] for each in names]
        columns = [_plain(_cells_of(each)) for each in found]
        if len({*map(len, columns)}) > 1:
            raise ShardError(f"labels= has columns of {sorted({*map(len, columns)})} rows")
        return columns

    return known, read


def _cells_of(column: Any) -> Iterable[Any]:
    for name in ("to_list", "to_pylist"):  # of pandas and polars, and of pyarrow
        if hasattr(column, name):
            found: Iterable[Any] = getattr(column, name)()
            return found
    return cast("Iterable[Any]", column)


def is_frame(given: object) -> bool:
    """Whether an object is a table: a DataFrame, or a dict of columns."""
    is_mapping = isinstance(given, Mapping)
    return is_mapping or (hasattr(given, "columns") and hasattr(given, "__getitem__"))


def _plain(cells: Iterable[Any]) -> list[Any]:
    """Return cells as values of Python: those of arrays are numpy's, those of databases decimal numbers."""
    return [_value(cell) for cell in cells]


def _value(cell: Any) -> Any:
    if isinstance(cell, (np.generic, np.ndarray)):
        cell = cell.tolist()
    if isinstance(cell, (list, tuple)):
        return [_value(each) for each in cell]
    if isinstance(cell, Decimal):
        return int(cell) if cell.is_finite() and cell == cell.to_integral_value() else float(cell)
    return cell
