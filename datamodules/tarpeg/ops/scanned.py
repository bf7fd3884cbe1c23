"""Fields of the objects of JSON documents, as the operator of ``annotations`` finds them. Loads nothing."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Kind(IntEnum):
    """What a field has: of a row of ``Scanned.cells``, with what the numbers behind it mean."""

    MISSING = 0
    INTEGER = 1  # its value
    NUMBER = 2  # its place in the numbers
    TEXT = 3  # begin and end in the bytes
    NUMBERS = 4  # place of the first number, how many, whether all are integers
    LISTS = 5  # place of the first number, place of the first length, how many lists
    RUNS = 6  # place of height and width; counts: as of NUMBERS (and 0), or of TEXT (and 1)
    TRUE = 7
    FALSE = 8
    OTHER = 9


class Scanned(NamedTuple):
    """Fields of the objects of some documents.

    Args:
        counts: int64 [B], objects of each document.
        image_ids: int64 [B], the number of the image of each, 0 if none was asked for.
        cells: int64 [N, fields, 5], a ``Kind`` and four numbers of each field of each object.
        numbers: float64 [n], those of all lists and all numbers that are no integers.
        lengths: int64 [m], of the lists in lists.
        content: The documents one after another, in which texts are, and a byte.
    """

    counts: npt.NDArray[np.int64]
    image_ids: npt.NDArray[np.int64]
    cells: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    content: bytearray

    def lists(self, field: int, width: int) -> npt.NDArray[np.float64] | None:
        """Return a field that is a list of ``width`` numbers: float64 [N, width]; None if it is not."""
        cells = self.cells[:, field]
        if not (cells[:, 0] == Kind.NUMBERS).all() or not (cells[:, 2] == width).all():
            return None
        found: npt.NDArray[np.float64] = self.numbers[cells[:, 1, None] + np.arange(width)]
        return found

    def numbers_of(self, field: int) -> npt.NDArray[np.float64] | None:
        """Return a field that is a number: float64 [N], NaN for objects without it; None if it is not."""
        kinds, first = self.cells[:, field, 0], self.cells[:, field, 1]
        found = np.where(kinds == Kind.INTEGER, first, np.nan)
        are_numbers = kinds == Kind.NUMBER
        found[are_numbers] = self.numbers[first[are_numbers]]
        return None if ((kinds > Kind.NUMBER) | (kinds < Kind.MISSING)).any() else found

    def integers(self, field: int, *, may_lack: bool = False) -> npt.NDArray[np.int64] | None:
        """Return a field that is an integer: int64 [N]; None if it is not.

        Objects may lack it with ``may_lack``, and have 0.
        """
        kinds = self.cells[:, field, 0]
        are_integers = kinds == Kind.INTEGER
        if may_lack:
            are_integers |= kinds == Kind.MISSING
        return self.cells[:, field, 1] if are_integers.all() else None

    def values(self, field: int) -> list[int | float | str | bool | None] | None:
        """Return a field that is a number, a text or a truth value; None if one is something else.

        Objects without the field have None.
        """
        kinds = self.cells[:, field, 0]
        if len(kinds) and (kinds == kinds[0]).all() and kinds[0] in (Kind.INTEGER, Kind.MISSING):
            return self.cells[:, field, 1].tolist() if kinds[0] else [None] * len(kinds)
        found: list[int | float | str | bool | None] = []
        for kind, begin, end, *_ in self.cells[:, field].tolist():
            if kind == Kind.INTEGER:
                found.append(begin)
            elif kind == Kind.NUMBER:
                found.append(float(self.numbers[begin]))
            elif kind == Kind.TEXT:
                found.append(self.content[begin:end].decode())
            elif kind in (Kind.TRUE, Kind.FALSE):
                found.append(kind == Kind.TRUE)
            elif kind == Kind.MISSING:
                found.append(None)
            else:
                return None
        return found
