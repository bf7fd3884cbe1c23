"""Labels that are no plain integers: numbers, vectors, names of classes, several classes per image."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NoReturn, Protocol, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ShardError, similar
from .classes import names_of
from .index import Int64
from .labels import LONGEST_JSON, document_of, field_of
from .source import Source, digest, missing, plain, where_of

Kind = Literal["integer", "number", "class", "classes"]
_INTEGER = re.compile(r"[+-]?[0-9]+")
_WHOLE = re.compile(r"[+-]?[0-9]+(\.0*)?")  # pandas writes 3.0 if an integer of the column is missing
# Not what float() reads besides: "15_20", and digits of other scripts.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(inf|infinity|(nan))", re.IGNORECASE)
_NUMBER_ELSEWHERE = re.compile(
    r"[+\N{MINUS SIGN}-]?\d+([\s.,'\N{RIGHT SINGLE QUOTATION MARK}]\d+)*([eE][+-]?\d+|\s?%)?"
    r"|0[xX][0-9a-fA-F]+"
)
"""Texts that other programs read as numbers, or dates: 1,5; 1.000,5; 12%; digits of other scripts."""
_WRAPPER = re.compile(r"(tensor|array|list|tuple|int|float|Decimal|(np|numpy|torch)\.\w+)?([(\[{'\"])")
_LIST = re.compile(r"\s*\[.*\]\s*", re.DOTALL)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_BEFORE = "=\N{ZERO WIDTH NO-BREAK SPACE}"  # Excel's, and of a file that was joined to another
_WITHIN = re.compile(
    r"(tensor|array|Decimal|(np|numpy|torch)\.\w+)\(|,?\s*(dtype|device)=[\w.:']+|[()\[\]{}'\"]"
)
"""What is between the numbers of a text that Python wrote for a tensor, an array or a list."""
_LIMIT = 1 << 63
_LARGEST = float(np.finfo(np.float32).max)
_NO_INTEGER = -1  # a missing label


class CellError(ValueError):
    """A label that is not as it must be.

    Args:
        row: Its row.
        place: The number of its field or column.
        reason: What is wrong with it, as the end of a sentence.
    """

    def __init__(self, row: int, place: int, reason: str) -> None:
        super().__init__(reason)
        self.row, self.place, self.reason = row, place, reason


@dataclass(frozen=True)
class Label:
    """A label that is not one integer, for ``Split(target=...)``: where it is, and what it means.

    The labels of a batch are int64 ``[B]`` for the kinds "integer" and "class", float32 ``[B]`` or ``[B, n]``
    for "number", and float32 ``[B, classes]`` for "classes". Several places add a dimension: ``[B, places]``.

    Args:
        place: A field of a JSON member, "json:age"; the extension of a member with text, "age"; with
            ``Split(labels=...)``, a column. Or a list of these.
        kind: "integer"; "number", a number or a list of always as many numbers; "class", one name; "classes",
            a list of names, or without ``classes``, numbers in 0..1, such as columns of 0 and 1. None: that
            of the first sample, or for a table that of the column; streams need it.
        classes: Names of the classes, whose places are their labels, or a dict from names to labels. Numbers
            are names, too. A table has names without it: those of its columns together, sorted.
        optional: Samples may lack it, by null, an empty cell or a missing field: their labels are NaN, or -1
            for integers, and ``labels.isfinite()`` or ``labels >= 0`` is the mask. Without, this is an error.
        separator: What is between the parts of a text that is a list, such as "|" or " ".

    Raises:
        ValueError: For an argument out of range.

    Example:
        >>> label = tarpeg.Label("json:tags", classes=["cat", "dog", "indoors"])
        >>> split = tarpeg.Split(shards, tarpeg.RandomCrop(96), target=label)
        >>> tarpeg.Label(["age", "height"], kind="number").place  # two columns, float32 [B, 2]
        ['age', 'height']
    """

    place: str | Sequence[str]
    kind: Kind | None = None
    classes: Sequence[str | int] | Mapping[str | int, int] | None = None
    optional: bool = False
    separator: str | None = None

    def __post_init__(self) -> None:
        places = self.places
        if not places or not all(isinstance(each, str) and each for each in places):
            raise ValueError(
                f'place={self.place!r} of Label must be a text, such as "json:age" or a column of labels=, '
                "or a list of such texts"
            )
        if self.kind not in (kinds := (None, *get_args(Kind))):
            near = similar(self.kind, [each for each in kinds if each])
            raise ValueError(f"kind={self.kind!r} of Label must be one of {kinds}{near}")
        if self.separator is not None and not (isinstance(self.separator, str) and self.separator):
            raise ValueError(
                f"separator={self.separator!r} of Label must be a text of at least one character"
            )
        if self.optional not in (True, False):
            raise ValueError(f"optional={self.optional!r} of Label must be True or False")
        if self.classes is None:
            return
        if self.kind in ("integer", "number"):
            raise ValueError(f"classes={self.classes!r} of Label has no use with kind={self.kind!r}")
        if not self.numbers:
            given: Any = self.classes
            has_truths = isinstance(given, (list, tuple, dict)) and {bool} & {*map(type, given)}
            raise ValueError(
                f"classes={self.classes!r} of Label must be a list of different names, or a dict from names "
                "to labels, integers of at least 0"
                + (": the names of false and true are the texts 'False' and 'True'" if has_truths else "")
            )
        if self.kind == "classes" and len(places) > 1:
            raise ValueError(
                f"classes={self.classes!r} of Label has no use with places={places}, each of which is one "
                "class"
            )

    @property
    def places(self) -> list[str]:
        """Places as a list."""
        return [self.place] if isinstance(self.place, str) else list(self.place)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Label of each name; {} for what is no table of classes."""
        return numbers_of(self.classes)

    @property
    def names(self) -> list[str] | None:
        """Names of the classes by label; None if they are unknown."""
        return names_of(self.numbers)


def numbers_of(classes: Any) -> dict[str, int]:
    """Return the label of each name of ``classes=``, a list or dict; {} for anything else."""
    pairs = classes
    if isinstance(classes, Sequence) and not isinstance(classes, (str, bytes)):
        pairs = {_name(name): number for number, name in enumerate(classes)}
    if not isinstance(pairs, Mapping) or not pairs or len(pairs) != len(classes):
        return {}
    names = [*(pairs if pairs is classes else classes)]
    if not {*map(type, names)} <= {str, int} or len({*map(_name, names)}) != len(names):
        return {}
    if not all(type(number) is int and 0 <= number < _LIMIT for number in pairs.values()):
        return {}
    return {_name(name): number for name, number in pairs.items()}


@dataclass(frozen=True)
class Form:
    """What the labels of a split are, after a look at the first of them.

    Args:
        label: As it was given.
        kind: Of the labels.
        width: Numbers in a cell; None for one that is no list.
        numbers: Labels by name of the class.
        is_text: Whether cells are texts, such as those of a CSV file or with separators, of which "7" is a
            number.
    """

    label: Label
    kind: Kind
    width: int | None
    numbers: Mapping[str, int]
    is_text: bool

    @property
    def outputs(self) -> int | None:
        """Numbers that a network returns per image; None if it is not known, for integers."""
        places = 1 if isinstance(self.label.place, str) else len(self.label.place)
        if self.kind == "number":
            return places * (self.width or 1)
        if self.kind == "classes":
            return max(self.numbers.values()) + 1 if self.numbers else places * (self.width or 1)
        return max(self.numbers.values()) + 1 if self.numbers else None

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes by label; None if they are unknown."""
        if self.kind == "classes" and not self.numbers and not isinstance(self.label.place, str):
            return list(self.label.place)
        return names_of(self.numbers)

    @property
    def empty(self) -> float:
        """Label of a sample without."""
        return _NO_INTEGER if self.kind in ("integer", "class") else math.nan

    def array(self, columns: Sequence[Sequence[Any]]) -> npt.NDArray[Any]:
        """Return the labels of some samples from their cells, a list per place: [B], [B, n] or [B, places].

        Raises CellError with the row of a wrong one.
        """
        parts = [self._column(number, cells) for number, cells in enumerate(columns)]
        if isinstance(self.label.place, str):
            return parts[0]
        parts = [part.reshape(len(part), -1) for part in parts]
        return np.concatenate(parts, axis=1)

    def _column(self, place: int, cells: Sequence[Any]) -> npt.NDArray[Any]:
        dtype = np.int64 if self.kind in ("integer", "class") else np.float32
        shape = [len(cells)]
        if self.kind == "classes" and self.numbers:
            shape.append(self.outputs or 0)
        elif self.width is not None:
            shape.append(self.width)
        found = np.full(shape, self.empty, dtype)
        read: Callable[[Any], Any] = getattr(self, f"_{self.kind}")
        for row, cell in enumerate(cells):
            try:
                is_empty = isinstance(cell, str) and not cell
                has_no_class = self.kind == "classes" and is_empty and not self.label.optional
                if has_no_class or not is_missing(cell):
                    found[row] = read(cell)
                elif not self.label.optional:
                    raise ValueError("is missing: give tarpeg.Label(optional=True) if samples may lack it")
            except ValueError as error:
                raise CellError(row, place, str(error)) from None
        return found

    def _integer(self, cell: Any) -> int:
        value = _whole(cell)
        if self.is_text and isinstance(cell, str) and _WHOLE.fullmatch(cell.strip()):
            value = int(cell.partition(".")[0])
        if type(value) not in (int, bool) or not -_LIMIT <= value < _LIMIT:
            _refuse(cell, "not a 64-bit integer")
        if value < 0 and self.label.optional:
            _refuse(cell, "below 0, which would be a missing label: give optional=False, or kind='number'")
        return int(value)

    def _number(self, cell: Any) -> Any:
        cell = self._parts(cell)
        if self.width is None:
            return self._finite(cell)
        if not isinstance(cell, (list, tuple)) or len(cell) != self.width:
            remedy = ": for names of classes give kind='classes' and classes=" * (self.label.kind is None)
            _refuse(cell, f"not a list of {self.width} numbers, as that of the first sample{remedy}")
        return [self._finite(each) for each in cell]

    def _finite(self, cell: Any) -> float:
        value: Any = cell
        if isinstance(cell, (list, tuple)):
            _refuse(
                cell,
                "a list, and not a number as of the first sample; in a stream give a place for each number, "
                'such as ["json:v.0", "json:v.1"]',
            )
        if self.is_text and isinstance(cell, str) and _NUMBER.fullmatch(cell.strip()):
            value = float(cell)
        if type(value) not in (int, float, bool) or not abs(value) <= _LARGEST:
            _refuse(cell, "not a finite number of 32 bits")
        return float(value)

    def _class(self, cell: Any) -> int:
        number = self.numbers.get(_name(cell))
        if number is None and isinstance(cell, bool):
            number = self.numbers.get(str(int(cell)))
        if number is None and self.is_text and isinstance(cell, str) and _WHOLE.fullmatch(cell.strip()):
            number = self.numbers.get(cell.strip().partition(".")[0])
        if number is None:
            some = ", ".join(map(repr, list(self.numbers)[:3]))
            _refuse(cell, f"not one of the {len(self.numbers)} classes= {some} ...")
        return number

    def _classes(self, cell: Any) -> Any:
        if not self.numbers:
            shares = self._number(cell)
            if not all(0 <= share <= 1 for share in (shares if self.width is not None else [shares])):
                is_one = len(self.label.places) == 1
                missing = "leave the cell of an unknown one empty, with optional=True"
                remedy = "give classes= their names" if is_one else missing
                _refuse(cell, f"not between 0 and 1, the shares of the classes: {remedy}")
            return shares
        names = self._parts(cell)
        if isinstance(names, str):
            names = [names] if names else []
        if not isinstance(names, (list, tuple)):
            _refuse(cell, "not a list of names")
        shares = np.zeros(self.outputs or 0, np.float32)
        shares[[self._class(name) for name in names]] = 1
        return shares

    def _parts(self, cell: Any) -> Any:
        """Return the parts of a text with separators; other cells as they are."""
        return parts_of(cell, self.label.separator)


def _whole(cell: Any) -> Any:
    """Return a number without a fraction as an integer: pandas has floats if an integer is missing."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _name(cell: Any) -> str:
    """Return the name of a class: macOS writes letters with accents as two (NFD), most programs do not."""
    return unicodedata.normalize("NFC", str(_whole(cell)).strip())


def is_missing(cell: Any) -> bool:
    """Whether a cell has no label: None, NaN, pandas' NA, or an empty text."""
    return cell is None or cell == "" if isinstance(cell, (str, type(None))) else _is_nan(cell)


def _is_nan(cell: Any) -> bool:
    return cell != cell if isinstance(cell, float) else type(cell).__name__ in ("NAType", "NaTType")


def parts_of(cell: Any, separator: str | None) -> Any:
    """Return the parts of a text with separators, without the spaces around them; lists as they are."""
    if separator is None or isinstance(cell, (list, tuple)):
        return cell
    if not isinstance(cell, str):
        return [cell]
    return [part.strip() for part in cell.split(separator) if part.strip()]


def form_of(label: Label, columns: Sequence[Iterable[Any]], *, is_text: bool) -> Form:
    """Return the form of labels by their cells, a list per place: those of the first sample, or of a table.

    Raises ValueError with what is wrong, as the end of a sentence, if the cells do not determine it.
    """
    is_text = is_text or label.separator is not None
    cells = [parts_of(cell, label.separator) for column in columns for cell in column if not is_missing(cell)]
    if label.kind is None and not cells:
        raise ValueError("is missing: give kind= to tarpeg.Label")
    kind = label.kind or _kind_of(label, cells, is_text=is_text)
    width = None
    if kind == "number" or (kind == "classes" and label.classes is None):
        lists = [cell for cell in cells if isinstance(cell, (list, tuple))]
        first = next(filter(None, lists), [])
        if lists and (kind == "number" or all(_is_number(each, is_text) for each in first)):
            width = len(first)
    numbers = label.numbers
    if kind in ("class", "classes") and not numbers and (kind == "class" or not _are_shares(cells, is_text)):
        if kind == "classes" and len(label.places) > 1:
            name = next(each for each in _flat(cells) if not _is_number(each, is_text))
            _refuse(name, "not a number in 0..1: of several places each is one class")
        given = [cell for column in columns for cell in column if not is_missing(cell)]
        if label.kind != "class" and all(isinstance(each, str) and _LIST.fullmatch(each) for each in given):
            _refuse(
                given[0],
                'a list that was written as a text, as are all others: write it as "cat|dog", with '
                "separator='|', or give a DataFrame with lists; kind='class' takes each text as a name",
            )
        names = {_name(each) for each in _flat(cells) if not is_missing(each)}  # reading these raises
        numbers = {name: number for number, name in enumerate(sorted(names))}
    return Form(label, kind, width, numbers, is_text)


def _are_shares(cells: Sequence[Any], is_text: bool) -> bool:
    return all(_is_number(each, is_text) for each in _flat(cells))


def _flat(cells: Iterable[Any]) -> list[Any]:
    """Return cells, and the items of those that are lists."""
    return [each for cell in cells for each in (cell if isinstance(cell, (list, tuple)) else [cell])]


def _kind_of(label: Label, cells: Sequence[Any], *, is_text: bool) -> Kind:
    are_lists = any(isinstance(cell, (list, tuple)) for cell in cells)
    if label.classes is not None:
        return "classes" if are_lists else "class"
    flat = _flat(cells)
    if all(_is_number(each, is_text) for each in flat):
        are_whole = not are_lists and all(
            isinstance(each, int) or (isinstance(each, str) and _INTEGER.fullmatch(each.strip()))
            for each in flat
        )
        return "integer" if are_whole else "number"
    if wrong := [each for each in flat if not isinstance(each, (str, int))]:
        other = next((each for each in wrong if type(each) is not float), wrong[0])
        _refuse(other, "neither a number nor a name, nor a list of them")
    names = [each for each in flat if not _is_number(each, is_text)]
    if not are_lists and len(names) < len(flat):  # NA, 1,5 or 99% in a column of numbers would be a class
        _refuse(
            names[0],
            "and others are numbers: correct it, leave the cell of a missing one empty (optional=True), or "
            "give tarpeg.Label(kind='class') if all of them are names",
        )
    # "[0" and "1]" are parts of a list that Python wrote.
    parts = (each.strip("[](){}") if are_lists and isinstance(each, str) else each for each in flat)
    pairs = zip(parts, flat, strict=True)
    if flat and all(_looks_like_a_number(part, is_text and part == each) for part, each in pairs):
        _refuse(
            flat[0],
            "as are all others: write numbers with a point and nothing around them, several of them with a "
            "separator or in columns of their own, and in a DataFrame as numbers; or give "
            f"tarpeg.Label(kind={'classes' if are_lists else 'class'!r}) if they are names, whose labels are "
            "their places in sorted order",
        )
    return "classes" if are_lists else "class"


def _looks_like_a_number(cell: Any, is_text: bool) -> bool:
    """Whether a text has digits as numbers have: "1,5"; "10" in a DataFrame; "inf"; "[0. 1.]"."""
    if not isinstance(cell, str):
        return False
    text = cell.strip().lstrip(_BEFORE)
    is_text = is_text and text == cell.strip()
    found = _WRAPPER.match(text)
    if found and text.endswith(_CLOSING.get(found[3], found[3])):
        parts = re.split(r"[\s,;]+", _WITHIN.sub(" ", text[found.end() :]))
        return any(parts) and all(_looks_like_a_number(part, is_text=False) for part in parts if part)
    if _NUMBER.fullmatch(text):
        return math.isinf(float(text)) or not is_text
    if found := _NOT_FINITE.fullmatch(text):
        return not (is_text and found[2])
    return _NUMBER_ELSEWHERE.fullmatch(text) is not None


def _is_number(cell: Any, is_text: bool) -> bool:
    if isinstance(cell, str):
        found = _NUMBER.fullmatch(cell.strip())
        return is_text and found is not None and math.isfinite(float(found[0]))
    return isinstance(cell, (int, float))


def _refuse(cell: Any, reason: str) -> NoReturn:
    text = json.dumps(cell, ensure_ascii=False, default=str)
    raise ValueError(f"is {text if len(text) <= 48 else text[:48] + '...'}, {reason}")


class Labels(Protocol):
    """Labels of the samples of a split that are no plain integers."""

    @property
    def form(self) -> Form:
        """What they are."""

    def read(self, source: Source, ids: Int64) -> Tensor:
        """Read the labels of samples ids [B]: [B] or [B, n]. Raises ShardError for a wrong one."""

    def identity(self) -> str:
        """Return a text that is another one for other labels; "" if these are part of the samples alone."""


@dataclass(frozen=True)
class MemberLabels:
    """Labels in members of the samples: fields of JSON, or texts."""

    form: Form

    def read(self, source: Source, ids: Int64) -> Tensor:  # noqa: D102 (here and below: as in Labels)
        places = self.form.label.places
        try:
            return torch.from_numpy(self.form.array(cells_of(source, ids, self.form.label)))
        except CellError as error:
            raise _explained(source, int(ids[error.row]), places[error.place], error.reason) from None

    def identity(self) -> str:  # noqa: D102
        if self.form.label.classes is None:
            return ""
        numbers = sorted(self.form.numbers.items(), key=lambda item: (item[1], item[0]))
        return f"labels ({len(numbers)} names of classes, {digest(f'{each}' for each in numbers)})"


def labels_in_members(source: Source, first: int, label: Label, *, is_given: bool) -> MemberLabels | None:
    """Return the labels in members, of the form that sample ``first`` has; None for plain integers.

    Args:
        source: The samples.
        first: Number of the sample.
        label: What to read.
        is_given: Whether it is the user's; otherwise it stands for names of members, which are integers, and
            fields, which may be.

    Raises:
        ShardError: For a label that is missing or wrong.
    """
    if not is_given and not any(":" in place for place in label.places):
        return None
    try:
        columns = cells_of(source, np.array([first]), label)
    except ShardError:
        if is_given:
            raise
        return None  # reading it raises
    is_text = not all(":" in place for place in label.places)
    try:
        form = form_of(label, columns, is_text=is_text)
        if not is_given and form.kind == "integer":
            return None
        if form.kind in ("class", "classes") and form.numbers and label.classes is None:
            _refuse(columns[0][0], "a name: give tarpeg.Label(classes=[...]) the names of all classes")
        form.array(columns)
    except ValueError as error:
        place = label.places[getattr(error, "place", 0)]
        raise _explained(source, first, place, str(error)) from None
    return MemberLabels(form)


def given_labels(label: Label) -> MemberLabels:
    """Return the labels of a stream, whose form is that of their arguments."""
    is_text = label.separator is not None or not all(":" in place for place in label.places)
    return MemberLabels(Form(label, label.kind or "integer", None, label.numbers, is_text))


def cells_of(source: Source, ids: Int64, label: Label) -> list[list[Any]]:
    """Read the values at the places of a label, per place; None for a missing one of an optional label."""
    read: dict[tuple[str, bool], list[Any]] = {}
    columns = []
    for place in label.places:
        extension, _, field = place.partition(":")
        kind = extension, bool(field)
        if kind not in read:
            texts = source.members(ids, plain(extension))
            parse = _document if field else _text
            pairs = zip(ids.tolist(), texts, strict=True)
            read[kind] = [None if text is None else parse(source, extension, id, text) for id, text in pairs]
        contents = read[kind]
        cells = [_at(content, field) for content in contents] if field else contents
        for row, cell in enumerate(cells):
            if cell is None and not label.optional:
                if contents[row] is None:
                    raise missing(source, int(ids[row]), extension)
                field_of(source, int(ids[row]), extension, contents[row], field)  # raises, unless it is null
        columns.append(cells)
    return columns


def _at(document: Any, field: str) -> Any:
    for name in field.split("."):
        if isinstance(document, dict):
            document = document.get(name)
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document


def _document(source: Source, extension: str, id: int, text: bytes) -> Any:
    return document_of(source, id, extension, text, LONGEST_JSON, "labels")


def _text(source: Source, extension: str, id: int, text: bytes) -> str:
    if len(text) <= LONGEST_JSON:
        try:
            return text.decode("utf-8").strip()
        except UnicodeDecodeError:
            pass
    raise ShardError(
        f"{where_of(source, id)}: member {plain(extension)!r} must be text in UTF-8 of up to {LONGEST_JSON} "
        "bytes"
    )


def _explained(source: Source, id: int, place: str, reason: str) -> ShardError:
    extension, _, field = place.partition(":")
    name = f"field {field!r} of member {extension!r}" if field else f"member {plain(extension)!r}"
    return ShardError(f"{where_of(source, id)}: {name} {reason}")
