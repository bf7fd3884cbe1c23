"""The labels of samples by a table: its rows, and what their cells mean."""

from __future__ import annotations

import hashlib
import logging
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ShardError, warn
from .index import Int64
from .label import CellError, Form, Label, form_of, is_missing
from .source import Source, where_of
from .table_rows import NONE, TWICE, by_key, key_twice, rows_of, stored
from .tables import Table

log = logging.getLogger(__name__)

OF_SUBSET = ", of the subset "
"""In the identity of labels, before a hash of the samples that have them."""
# pandas'
_TRUTHS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}


@dataclass
class TableLabels:
    """Labels of samples in a table.

    Args:
        form: What they are.
        table: Name of the table, for messages.
        values: Labels by sample; by row for a stream.
        rows: For a stream, rows by key.
        found: Text of ``identity``.
        key: The first of the table, for a message of a stream.
        wrong: For a stream, errors by row: it may be that of another image.
    """

    form: Form
    table: str
    values: npt.NDArray[Any]
    rows: dict[str, int] | None = None
    found: str = field(default="", repr=False)
    key: str = ""
    wrong: dict[int, str] = field(default_factory=dict, repr=False)
    # Of a stream, by row: the number of its sample, which is a hash of its place.
    _taken: dict[int, int] = field(default_factory=dict, repr=False)

    def read(self, source: Source, ids: Int64) -> Tensor:
        """Return the labels of samples ids [B]; see ``Labels``."""
        if self.rows is None:
            return torch.from_numpy(self.values[ids])
        numbers = np.array([self._row_of(source, id) for id in ids.tolist()])
        if not self._taken:
            self._taken[NONE] = 0  # once
            warn(f"{where_of(source, int(ids[0]))}, and the next {len(ids) - 1}: {self._no_row()}")
        found = self.values[numbers]
        found[numbers < 0] = self.form.empty
        return torch.from_numpy(found)

    def identity(self) -> str:
        """Return the name of the table and a hash of all labels."""
        return self.found

    def _row_of(self, source: Source, id: int) -> int:
        assert self.rows is not None
        (key,) = source.keys([id])
        row = self.rows.get(stored(key), NONE)
        if row == TWICE or (row == NONE and not self.form.label.optional):
            what = f"{self.table} has several rows with this key" if row == TWICE else self._no_row()
            raise ShardError(f"{where_of(source, id)}: {what}")
        if row in self.wrong:
            raise ShardError(self.wrong[row])
        if row != NONE:
            shard = str(source.shard(id))
            # A command may have another order in each epoch.
            place = zlib.crc32(shard.encode("utf-8", "surrogateescape")) if shard[:5] == "pipe:" else id
            if self._taken.setdefault(row, place) != place:
                raise key_twice(self.table, where_of(source, id), "another sample")
        return row

    def _no_row(self) -> str:
        return (
            f"{self.table} has no row with this key: a stream compares whole keys, with their folders, and "
            f"the first of the table is {self.key!r}"
        )


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
    table = _with_truths(table, label)
    form = _form(table, label)
    wanted = np.arange(len(source)) if ids is None else np.unique(ids)
    rows = rows_of(table, source, wanted, is_optional=label.optional)
    has_row = rows >= 0
    unused = len(table.keys) - len(np.unique(rows[has_row]))
    log.info("%s: %d of %d rows are of other images", table.name, unused, len(table.keys))
    found = _array(table, form, rows[has_row])
    values = np.full((len(source), *found.shape[1:]), form.empty, found.dtype)
    values[wanted[has_row]] = found
    return TableLabels(form, table.name, values, found=_identity(table, form, values, ids))


def streamed_table_labels(table: Table, label: Label) -> TableLabels:
    """Return the labels of the samples of a stream, by their keys, as ``table_labels``."""
    table = _with_truths(table, label)
    form, rows = _form(table, label), by_key([*map(stored, table.keys)])
    for row, key in enumerate(table.keys):
        if not key.isascii():
            rows.setdefault(stored(key, apart=True), row)
    values, wrong = _array_of_any(table, form)
    found = _identity(table, form, values)
    return TableLabels(form, table.name, values, rows, found, key=table.keys[0], wrong=wrong)


def form_of_table(table: Table, label: Label) -> Form:
    """Return what the labels of a table are."""
    return _form(_with_truths(table, label), label)


def _with_truths(table: Table, label: Label) -> Table:
    """Return a table in which True and False of a CSV file are those of a DataFrame.

    But those that are names of classes, or parts of a list.
    """
    if not table.is_text or label.classes is not None or label.kind == "class" or label.separator is not None:
        return table
    columns = [
        [_TRUTHS.get(cell, cell) for cell in column] if not {*_TRUTHS}.isdisjoint(column) else column
        for column in table.columns
    ]
    return replace(table, columns=columns)


def _form(table: Table, label: Label) -> Form:
    try:
        form = form_of(label, table.columns, is_text=table.is_text)
    except ValueError as error:
        raise ShardError(f"{table.name}, columns {label.places}: a cell {error}") from None
    cells = (cell for column in table.columns for cell in column)
    if form.kind == "integer" and all(isinstance(cell, bool) or is_missing(cell) for cell in cells):
        return replace(form, numbers={"False": 0, "True": 1})
    return form


def _array(table: Table, form: Form, rows: Int64) -> npt.NDArray[Any]:
    try:
        return form.array([[column[row] for row in rows.tolist()] for column in table.columns])
    except CellError as error:
        row, place = int(rows[error.row]), form.label.places[error.place]
        raise ShardError(
            f"{table.name}, row {row + 1} after the names of the columns, key {table.keys[row]!r}: "
            f"{place!r} {error.reason}"
        ) from None


def _array_of_any(table: Table, form: Form) -> tuple[npt.NDArray[Any], dict[int, str]]:
    """Return the labels of all rows, and the errors of those that have a wrong one."""
    rows, wrong = np.arange(len(table.keys)), dict[int, str]()
    try:
        return _array(table, form, rows), wrong
    except ShardError:
        for row in rows.tolist():
            try:
                _array(table, form, rows[row : row + 1])
            except ShardError as error:
                wrong[row] = str(error)
    good = np.setdiff1d(rows, [*wrong])
    if not len(good):
        raise ShardError(wrong[0])
    found = _array(table, form, good)
    values = np.full((len(rows), *found.shape[1:]), form.empty, found.dtype)
    values[good] = found
    return values, wrong


def _identity(table: Table, form: Form, values: npt.NDArray[Any], ids: Int64 | None = None) -> str:
    """Return a text with a hash of the labels, and of the samples that have them if these are not all."""
    content = hashlib.sha256(f"{form.kind} {form.classes}\n".encode() + values.tobytes()).hexdigest()[:16]
    subset = "" if ids is None else f"{OF_SUBSET}{hashlib.sha256(np.unique(ids).tobytes()).hexdigest()[:16]}"
    return f"labels ({len(values)} of kind {form.kind}, {content}{subset})"
