"""Objects of a JSON member: lists of dicts, one per object, and the numbers in their fields."""

from __future__ import annotations

import itertools
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from ..ops.scanned import Scanned
from ..sampling.rng import Float64, Int64
from ..shards.joined import own_numbers
from ..shards.labels import document_of, field_of
from ..shards.source import Source, plain, where_of

MOST_BYTES = 1 << 24
"""Bytes of a JSON member, beyond which it is not parsed."""
MOST_OBJECTS = 100_000
"""Objects of one image, beyond which they are an error."""
FAR = 1e7
"""Pixels beyond which no image reaches; a coordinate that is larger is an error of the data."""
_MOST_KEPT = 1 << 22  # bytes of members whose documents are kept for the next target
_last = threading.local()  # texts and documents of the last batch
_MOST_LABEL = (1 << 63) - 1
_COCO_GAPS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
COCO = {
    category: number + 1 for number, category in enumerate(id for id in range(1, 91) if id not in _COCO_GAPS)
}
"""Labels 1 to 80 of COCO's category ids, which are 80 of the numbers 1 to 90."""

Numbers = npt.NDArray[Any]


class FieldError(ValueError):
    """A field of an object that is not as it must be."""


@dataclass(frozen=True)
class Place:
    """Where the objects of a sample are: ``"json:path.to.list"``, or ``"json"`` for a list at the top.

    Args:
        extension: Of the JSON member.
        path: Of the list in it; "" for the document itself.
    """

    extension: str
    path: str

    @classmethod
    def of(cls, given: Any, owner: str) -> Place:
        """Return the place that an argument gives; raises ValueError."""
        if not isinstance(given, str) or not re.fullmatch(r"[^/:]+(:[^.]+(\.[^.]+)*)?", given):
            raise ValueError(
                f"{owner}({given!r}): the first argument must be the extension of a JSON member and the path "
                'of the list of objects in it, such as "json:objects" or "json:annotation.objects"; "json" '
                "alone is a list at the top"
            )
        extension, _, path = given.partition(":")
        return cls(plain(extension), path)

    def field(self, number: int, name: str) -> str:
        """Format the place of a field, for messages."""
        return ".".join(part for part in (self.path, str(number), name) if part)

    def error(self, source: Source, id: int, reason: str) -> ShardError:
        """Return the error of a sample, with shard, key and member."""
        return ShardError(f"{where_of(source, id)}: member {self.extension!r}, {reason}")


@dataclass(frozen=True)
class Scan:
    """How the operator reads objects: ``scan_objects`` in ``ops/annotations.py``.

    Args:
        fields: Names of the fields that it reads.
        values: Returns the values of samples, as ``parse`` of ``read_objects``; None if that must read them,
            as one is broken, or not plain.
    """

    fields: Sequence[str]
    values: Callable[[Scanned], list[Any] | None]


def read_objects(
    source: Source,
    ids: Int64,
    place: Place,
    image_id: str | None,
    parse: Callable[[list[Any]], list[Any]],
    scan: Scan | None = None,
) -> list[Any]:
    """Read the objects of samples: by an operator, or if one of them is broken or rare by Python's parser.

    That parses all of them together, or one after another if any is broken.

    Args:
        source: The samples.
        ids: Their numbers.
        place: Where the objects are.
        image_id: Field of the document with the number of the image; None: the number of the sample.
        parse: Returns the values of some samples, tuples with an ``image_id``, from the lists of their
            objects; raises FieldError, which has the number of the object if it is called with one sample.
        scan: The same by an operator; None: Python's parser reads all.

    Returns:
        Per sample, its value or a ShardError.
    """
    texts, numbers, own = source.members(ids, place.extension), ids.tolist(), own_numbers(source, ids)
    scanned = None if scan is None else _scanned(texts, own, place, image_id, scan)
    if scanned is not None:
        return scanned
    documents = documents_of(source, numbers, place.extension, texts)
    values = [
        objects_at(source, id, place, document) for id, document in zip(numbers, documents, strict=True)
    ]
    good = [row for row, each in enumerate(values) if not isinstance(each, ShardError)]
    try:
        parts = parse([values[row] for row in good])
    except FieldError:
        parts = []
        for row in good:
            try:
                parts += parse([values[row]])
            except FieldError as error:
                parts.append(place.error(source, numbers[row], str(error)))
    for row, part in zip(good, parts, strict=True):
        values[row] = part
        if not isinstance(part, ShardError):
            number = own[row] if image_id is None else _number_of(documents[row], image_id)
            reason = f"field {image_id!r} is missing or not an integer of 64 bits"
            is_there = number is not None
            values[row] = (
                part._replace(image_id=number) if is_there else place.error(source, numbers[row], reason)
            )
    return values


def _scanned(
    texts: Sequence[bytes | None], ids: list[int], place: Place, image_id: str | None, scan: Scan
) -> list[Any] | None:
    """Return the values of samples as the operator reads them; None if Python must read them."""
    given = [text for text in texts if text is not None and len(text) <= MOST_BYTES]
    if len(given) < max(2, len(texts)):  # of a single sample it would save nothing
        return None
    from ..ops.annotations import scan_objects  # here, because it loads the operators

    path = place.path.split(".") if place.path else []
    scanned = scan_objects(given, path, scan.fields, image_id)
    if scanned is not None and image_id is None:
        scanned = scanned._replace(image_ids=np.array(ids, np.int64))
    return None if scanned is None else scan.values(scanned)


def documents_of(source: Source, ids: list[int], extension: str, texts: list[bytes | None]) -> list[Any]:
    """Return the documents of members, or ShardErrors; parsed once for several targets of the same samples.

    Parsing takes most of the time of targets. The documents may not be changed.
    """
    if texts == getattr(_last, "texts", None):
        found: list[Any] = _last.documents
        return found
    documents = [
        _or_error(document_of, source, id, extension, text, MOST_BYTES, "objects")
        for id, text in zip(ids, texts, strict=True)
    ]
    # Errors name their sample, which others with the same text are not.
    is_kept = not any(isinstance(each, ShardError) for each in documents)
    if is_kept and sum(map(len, filter(None, texts))) <= _MOST_KEPT:
        _last.texts, _last.documents = texts, documents
    return documents


def _number_of(document: Any, name: str) -> int | None:
    number = document.get(name) if isinstance(document, dict) else None
    return number if type(number) is int and -_MOST_LABEL <= number <= _MOST_LABEL else None


def objects_at(source: Source, id: int, place: Place, document: Any) -> Any:
    """Return the list of objects in a document, or a ShardError with shard, key and field."""
    if isinstance(document, ShardError):
        return document
    found = document
    if place.path:
        found = _or_error(field_of, source, id, place.extension, document, place.path)
    if isinstance(found, ShardError):
        return found
    where = f"field {place.path!r}" if place.path else "the document"
    if not isinstance(found, list):
        return place.error(source, id, f"{where} is {as_json(found)}, not a list of objects")
    if len(found) > MOST_OBJECTS:
        return place.error(source, id, f"{where} has {len(found)} objects, more than {MOST_OBJECTS}")
    for number, each in enumerate(found):
        if type(each) is not dict:
            reason = f"item {number} of {where} is {as_json(each)}, not an object with fields"
            return place.error(source, id, reason)
    return found


def slices_of(counts: Iterable[int]) -> list[slice]:
    """Return the places of consecutive parts of these lengths."""
    ends = list(itertools.accumulate(counts))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def joined(parts: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Return the arrays one after another; zeros of that shape if there are none."""
    return np.concatenate(parts) if parts else np.zeros(shape)


def numbers_of(place: Place, objects: list[Any], name: str, width: int) -> Float64:
    """Return the field of each object, a list of ``width`` finite numbers: float64 [N, width]."""
    try:
        rows = [each[name] for each in objects]
        # numpy would take true for 1, and "1" too.
        if {type(number) for row in rows for number in row} <= {int, float}:
            array = np.array(rows, np.float64).reshape(len(objects), -1 if objects else width)
            if array.shape[1] == width and np.isfinite(array).all():
                return array
    except (LookupError, TypeError, ValueError, OverflowError):
        pass
    for number, each in enumerate(objects):
        if name not in each:
            raise _lacking(place, number, name, each)
        value = each[name]
        is_list = isinstance(value, list) and len(value) == width
        if not is_list or not all(map(is_finite, value)):
            raise FieldError(
                f"field {place.field(number, name)!r} is {as_json(value)}, not a list of {width} finite "
                "numbers"
            )
    raise FieldError(f"fields {name!r} are not numbers")


def labels_of_values(values: Sequence[Any], table: dict[Any, int]) -> list[int] | None:
    """Return the labels of these values of a field; None if one is not in the table, see ``labels_of``."""
    labels = [table.get(value) if type(value) in (int, str) else None for value in values]
    found = [label for label in labels if label is not None]
    return found if len(found) == len(labels) else None


def labels_of(place: Place, objects: list[Any], name: str | None, table: dict[Any, int] | None) -> Int64:
    """Return the labels of the objects: int64 [N]; 1 for all without a name."""
    if name is None:
        return np.ones(len(objects), np.int64)
    found = []
    for number, each in enumerate(objects):
        if name not in each:
            raise _lacking(place, number, name, each)
        value = each[name]
        if table is None:
            if type(value) is not int or not 0 <= value <= _MOST_LABEL:
                raise FieldError(
                    f"field {place.field(number, name)!r} is {as_json(value)}, not an integer of at least 0: "
                    "give labels= a table of the labels"
                )
            found.append(value)
        else:
            is_known = type(value) in (int, str) and value in table
            if not is_known:
                raise FieldError(
                    f"field {place.field(number, name)!r} is {as_json(value)}, which is not in labels=, a "
                    f"table of {len(table)} values such as {next(iter(table))!r}"
                )
            found.append(table[value])
    return np.array(found, np.int64)


def is_finite(value: Any) -> bool:
    """Whether a value of JSON is a number that is finite as a float; true and false are not."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def as_json(value: Any) -> str:
    """Format a value of JSON, for messages."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 48 else text[:48] + "..."


def table_of(labels: Any) -> dict[Any, int] | None:
    """Return the label of each value that ``labels=`` lists; raises ValueError."""
    if labels is None:
        return None
    if isinstance(labels, str):
        if labels.lower() == "coco":
            return COCO
    elif isinstance(labels, Sequence) and labels:
        values = list(labels)
        if {*map(type, values)} <= {int, str} and len({*values}) == len(values):
            return {value: number for number, value in enumerate(values, start=1)}
    elif hasattr(labels, "items") and labels:
        table = dict(labels.items())
        if {*map(type, table)} <= {int, str} and all(_is_label(label) for label in table.values()):
            return table
    raise ValueError(
        f"labels={labels!r} must be a dict from the values in the field to labels, integers of at least 0; a "
        'list of the values, which get the labels 1, 2, ...; "coco"; or None: the values are the labels'
    )


def _is_label(label: Any) -> bool:
    return type(label) is int and 0 <= label <= _MOST_LABEL


def _lacking(place: Place, number: int, name: str, found: dict[str, Any]) -> FieldError:
    return FieldError(f"field {place.field(number, name)!r} is missing: the object has {[*found][:12]}")


def _or_error(read: Callable[..., Any], *given: Any) -> Any:
    try:
        return read(*given)
    except ShardError as error:
        return error
