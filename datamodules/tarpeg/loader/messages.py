"""What goes between the consumer and its workers: jobs and answers, and their messages for processes.

Messages are plain dicts with the bytes of arrays: after a batch the processor's caches no longer hold the
code that pickles objects, and it would take 3% of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast, get_args

import numpy as np
import torch

from ..sampling.geometry import View
from ..sampling.rng import Int64
from ..sampling.sampler import Origin, Request
from ..sampling.steps import Steps
from ..targets.protocols import by_name, type_names
from .batch import AnyBatch, FetchResult, Pieces, Shape
from .split import Split


@dataclass(slots=True)
class Job:
    """A batch that is to be fetched.

    Args:
        buffer: Number of the buffer for its images.
        request: The request, or what ``to_request`` makes one of.
    """

    buffer: int
    request: Any


@dataclass(slots=True)
class Answer:
    """A result whose images are in the buffer of its job.

    Args:
        shape: Shape of the images.
        result: The result; the images of its batch are not those that the consumer gets.
    """

    shape: Shape
    result: FetchResult


class OriginMessage(TypedDict):
    """An ``Origin``; arrays are bytes, those of integers in their order."""

    numbers: list[bytes]
    draws: bytes | None


class RequestMessage(TypedDict):
    """A ``Request`` without its views; arrays are bytes."""

    epoch: int
    ids: bytes
    occurrence: bytes | None
    size: tuple[int, int] | None
    origin: OriginMessage | None


class JobMessage(TypedDict):
    """The request for a batch, or what ``to_request`` makes one of, and the number of its buffer."""

    buffer: int
    request: RequestMessage | Any


class ViewMessage(TypedDict):
    """A ``View``; arrays are bytes, of as many rows as the ids have, or as they have ``parts``."""

    sizes: bytes
    boxes: bytes
    flips: bytes
    size: tuple[int, int]
    affine: bytes | None
    places: bytes | None
    drops_by_centre: bool | bytes
    parts: tuple[bytes, bytes] | None
    is_pasted: bool
    steps: tuple[bytes, bytes] | None


class ResultMessage(TypedDict):
    """A ``FetchResult``, whose images are in the buffer.

    Attributes:
        kind: Class of the batch; None for no batch.
        shape: Shape of the images.
        labels: Bytes, shape and numpy's type code of the batch's labels.
        others: Its other fields by name.
        request: The request, if the worker made it itself.
        views: Views of the request.
    """

    kind: str | None
    shape: Shape
    labels: tuple[bytes, tuple[int, ...], str] | None
    others: dict[str, Any]
    request: RequestMessage | None
    views: list[ViewMessage]
    substituted: list[str]
    non_jpeg: str | None
    error: Exception | None
    notes: Sequence[str]
    left_out: Sequence[int]
    nbytes: int
    gathered: Pieces | None


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(AnyBatch)}


def job_message(job: Job) -> JobMessage:
    """Return the message for a job."""
    request = job.request
    if type(request) is not Request:
        return {"buffer": job.buffer, "request": request}
    return {"buffer": job.buffer, "request": _request_message(request)}


def job_of(message: JobMessage) -> Job:
    """Return the job of a message."""
    request = message["request"]
    if type(request) is dict:
        request = _request_of(cast(RequestMessage, request))
    return Job(message["buffer"], request)


def _request_message(request: Request) -> RequestMessage:
    occurrence = request.occurrence
    return {
        "epoch": request.epoch,
        "ids": request.ids.tobytes(),
        "occurrence": None if occurrence is None else occurrence.tobytes(),
        "size": request.size,
        "origin": None if request.origin is None else _origin_message(request.origin),
    }


def _request_of(message: RequestMessage) -> Request:
    """Return the request of a message."""
    occurrence, origin = message["occurrence"], message["origin"]
    return Request(
        epoch=message["epoch"],
        ids=_numbers(message["ids"]),
        occurrence=None if occurrence is None else _numbers(occurrence),
        size=message["size"],
        origin=None if origin is None else _origin_of(origin),
    )


def _origin_message(origin: Origin) -> OriginMessage:
    return {
        "numbers": [column.tobytes() for column in origin[:4]],
        "draws": None if origin.draws is None else origin.draws.tobytes(),
    }


def _origin_of(message: OriginMessage) -> Origin:
    """Return the origin of a message."""
    sources, epochs, ids, occurrence = map(_numbers, message["numbers"])
    draws = message["draws"]
    return Origin(
        sources=sources,
        epochs=epochs,
        ids=ids,
        occurrence=occurrence,
        draws=None if draws is None else np.frombuffer(bytearray(draws)).reshape(len(ids), -1),
    )


def _numbers(content: bytes) -> Int64:
    return np.frombuffer(bytearray(content), np.int64)


def _view_message(view: View) -> ViewMessage:
    affine, places, parts = view.affine, view.places, (view.batch_rows, view.samples)
    steps, drops = view.steps, view.drops_by_centre
    return {
        "sizes": view.sizes.tobytes(),
        "boxes": view.boxes.tobytes(),
        "flips": view.flips.tobytes(),
        "size": view.size,
        "affine": None if affine is None else affine.tobytes(),
        "places": None if places is None else places.tobytes(),
        "drops_by_centre": drops if isinstance(drops, bool) else drops.tobytes(),
        "parts": None if parts[0] is None or parts[1] is None else (parts[0].tobytes(), parts[1].tobytes()),
        "is_pasted": view.is_pasted,
        "steps": None if steps is None else (steps.matrices.tobytes(), steps.is_nearest.tobytes()),
    }


def _view_of(message: ViewMessage) -> View:
    affine, places, parts = message["affine"], message["places"], message["parts"]
    flips = np.frombuffer(bytearray(message["flips"]), np.bool_)
    steps, drops = message["steps"], message["drops_by_centre"]
    return View(
        sizes=np.frombuffer(bytearray(message["sizes"]), np.int32).reshape(-1, 2),
        boxes=np.frombuffer(bytearray(message["boxes"]), np.int32).reshape(-1, 4),
        flips=flips,
        size=message["size"],
        affine=None if affine is None else np.frombuffer(bytearray(affine)).reshape(-1, 2, 3),
        places=None if places is None else np.frombuffer(bytearray(places), np.int32).reshape(-1, 4),
        drops_by_centre=drops if isinstance(drops, bool) else np.frombuffer(bytearray(drops), np.bool_),
        batch_rows=None if parts is None else np.frombuffer(bytearray(parts[0]), np.int64),
        samples=None if parts is None else np.frombuffer(bytearray(parts[1]), np.int64),
        is_pasted=message["is_pasted"],
        steps=None if steps is None else _steps_of(steps, len(flips)),
    )


def _steps_of(message: tuple[bytes, bytes], count: int) -> Steps:
    """Return the steps of a view of so many rows."""
    matrices, is_nearest = (bytearray(each) for each in message)
    if not count:
        return Steps.none(0)
    flags = np.frombuffer(is_nearest, np.bool_).reshape(count, -1)
    return Steps(np.frombuffer(matrices).reshape(*flags.shape, 2, 3), flags)


def answer_message(answer: Answer, job: Job) -> ResultMessage:
    """Return the message for the answer to a job. A request that the worker made itself is in it."""
    result, is_own = answer.result, type(job.request) is not Request
    batch, request = result.batch, result.request
    others: dict[str, Any] = {} if batch is None else batch._asdict()
    others.pop("image", None)
    label = others.pop("label", None)
    numbers = None if label is None else label.numpy()
    return {
        "kind": None if batch is None else type(batch).__name__,
        "shape": answer.shape,
        "labels": None if numbers is None else (numbers.tobytes(), numbers.shape, numbers.dtype.char),
        "others": others,
        "request": _request_message(request) if is_own and request is not None else None,
        "views": [] if request is None else [_view_message(view) for view in request.views],
        "substituted": result.substituted,
        "non_jpeg": result.non_jpeg,
        "error": result.error,
        "notes": result.notes,
        "left_out": result.left_out,
        "nbytes": result.nbytes,
        "gathered": result.gathered,
    }


def values_of_users(message: ResultMessage, split: Split) -> Iterator[tuple[str, int, Any]]:
    """Yield what functions of the user returned, with the name of the argument and the row.

    Args:
        message: The message.
        split: That of the samples; of a mixture that of its first source.
    """
    others = message["others"]
    extra = others.get("extra")
    for row, value in enumerate(extra if isinstance(extra, list) else ()):
        yield "decode=", row, value
    for moved in others.get("targets", ()):
        for name, values in moved.others.items():
            target = type_names(by_name(split.targets)[name])
            for row, value in zip(moved.rows, values, strict=True):
                yield f"move() of targets={target}", row, value


def answer_of(message: ResultMessage, request: Any) -> Answer:
    """Return the answer of a message for the request that was sent. Its batch has no images."""
    batch: AnyBatch | None = None
    if message["kind"] is not None:
        fields = message["others"]
        if message["labels"] is not None:
            content, shape, kind = message["labels"]
            labels = np.frombuffer(bytearray(content), kind).reshape(shape)
            fields["label"] = torch.from_numpy(labels)
        batch = _KINDS[message["kind"]](image=None, **fields)
    own = message["request"]
    if own is not None:
        request = _request_of(own)
    if message["views"]:
        views = tuple(map(_view_of, message["views"]))
        request = Request(  # quicker than _replace()
            epoch=request.epoch,
            ids=request.ids,
            occurrence=request.occurrence,
            views=views,
            size=request.size,
            origin=request.origin,
        )
    result = FetchResult(
        batch=batch,
        substituted=message["substituted"],
        non_jpeg=message["non_jpeg"],
        error=message["error"],
        notes=message["notes"],
        request=request,
        left_out=message["left_out"],
        nbytes=message["nbytes"],
        gathered=message["gathered"],
    )
    return Answer(message["shape"], result)
