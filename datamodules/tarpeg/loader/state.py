"""The state of a loader: its fields, what they may be, and the data that it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from ..errors import ResumeError
from ..remedies import Message, Setting
from ..sampling.sampler import shown
from ..shards.source import digest
from ..shards.table_labels import OF_SUBSET

State = dict[str, int | str]
"""Integers, and the text ``data``: it is written to JSON and read with ``weights_only=True``."""

VERSION = 1
"""Of states with ``version`` and ``data``; earlier ones have neither, and are read with what they have."""
_SHOWN_FILES = 1000  # of the data that a state holds one by one; of the others a hash
_MOST_SHOWN = 1000  # characters of a file in a message
_MOST_EPOCHS = 2**52  # of a loader that a Trainer begins again and again in one of its epochs
_LARGEST = 2**63 - 1
_BOUNDS = {"epoch": (0, _MOST_EPOCHS), "batches": (0, _LARGEST), "len": (-1, _LARGEST)}
# Of facts: those of an indexed source or of a stream.
_BOUNDS |= {"order": (0, 2**32 - 1), "samples": (1, _LARGEST), "shards": (1, _LARGEST)}
_BOUNDS |= {"global_batch": (1, _LARGEST), "seed": (-(2**128), 2**128)}
# Of batches of several shapes; other states do not have it.
_SHAPES = {"shapes": (1, _LARGEST)}
REMEDY = "Use a checkpoint that a loader of tarpeg wrote."


def data_of(files: Iterable[str]) -> str:
    """Return the identity of data for a state: one line per file, in order; beyond 1000 a hash."""
    lines = [line.replace("\n", "?") for line in files]
    if len(lines) > _SHOWN_FILES:
        rest = lines[_SHOWN_FILES:]
        lines = [*lines[:_SHOWN_FILES], f"{len(rest)} more, {digest(rest)}"]
    return "\n".join(lines)


def checked_state(state: Any, facts: Sequence[str]) -> State:
    """Return a state whose fields are there, of the right type and consistent.

    Args:
        state: As ``Loader.state_dict`` returned it, or read from a file that anyone may have written.
        facts: Names of the fields beside ``epoch``, ``batches`` and ``len``.

    Raises:
        ResumeError: With the field and its value.
    """
    if not isinstance(state, Mapping):
        raise ResumeError(f"the state of the loader is a {type(state).__name__}, not a dict. {REMEDY}")
    version = checked_version(state)
    check_kind(state, is_mixture=False)
    names = ("epoch", "batches", "len", *(name for name in facts if name not in _SHAPES))
    found: State = {name: _integer(state, name, *_BOUNDS[name]) for name in names}
    for name, bounds in _SHAPES.items():
        found[name] = _integer(state, name, *bounds) if name in state else 0
    names = (*names, *_SHAPES)
    _check_count({name: int(found[name]) for name in names})
    if version:
        data = state.get("data")
        if not isinstance(data, str):
            raise ResumeError(f"data={shown(data)} of the loader's state must be a text. {REMEDY}")
        found["data"] = data
    return found


def check_kind(state: Mapping[str, Any], *, is_mixture: bool) -> None:
    """Raise ResumeError for the state of a mixture in a loader of one split, and the other way round."""
    if ("mixture" in state) != is_mixture and "epoch" in state:
        was, now = ("one split", "a mixture") if is_mixture else ("a mixture", "one split")
        raise ResumeError(
            f"the checkpoint is of {was}, and this loader is of {now}, which makes other batches. Give "
            f'{was}; or begin with the weights alone: net.load_state_dict(torch.load(path)["state_dict"])'
        )


def checked_version(state: Mapping[str, Any]) -> int:
    """Return the version of a state, 0 before there were any. Raises ResumeError for a later one."""
    version = _integer(state, "version", 0, _LARGEST) if "version" in state else 0
    if version > VERSION:
        raise ResumeError(
            f"the state of the loader has version={version}, and this tarpeg reads up to {VERSION}: a later "
            "one wrote it. Update tarpeg."
        )
    return version


def checked_position(state: Mapping[str, Any]) -> tuple[int, int]:
    """Return the epoch of a state, and its batches. Raises ResumeError for what is no number of these."""
    epoch, batches = (_integer(state, name, *_BOUNDS[name]) for name in ("epoch", "batches"))
    return epoch, batches


def check_data(state: Mapping[str, int | str], data: str) -> None:
    """Raise ResumeError if ``data``, of ``data_of``, is not that of a checked state; pass one without it.

    Labels of another subset are not compared: that makes other batches within an epoch, and none at its end.
    """
    before = state.get("data", data)
    if before == data:
        return
    old, new = str(before).split("\n"), data.split("\n")
    pairs = enumerate(zip(old, new, strict=False))
    number = next((n for n, pair in pairs if pair[0] != pair[1] and not _of_other_subset(*pair)), None)
    if number is None and len(old) == len(new):
        return
    if number is None:
        number = min(len(old), len(new))
    was, now = (lines[number][:_MOST_SHOWN] if number < len(lines) else "missing" for lines in (old, new))
    counts = f" ({len(old)} files then, {len(new)} now)" * (len(old) != len(new))
    same = " in another order" * (sorted(old) == sorted(new))
    if was.startswith("labels ") and now.startswith("labels "):
        found, parts = f"{was} then, {now} now", "labels"
        reason = " if they were corrected"
    else:
        found = f"file {number}, counted from 0, was {was}, and is {now} now{counts}"
        parts = "files and their order"
        reason = " (a lossless cache of the same samples in the same order makes the same batches)"
    raise ResumeError(
        Message(
            f"the checkpoint is of other data{same}: {found}, which makes other batches. Restore the {parts}"
            f"; or, to go on with these{reason}, give ",
            Setting("ShardDataModule", "allow_other_data", True),
            " (of a tarpeg.Loader: in its config=LoaderConfig(...)).",
        )
    )


def _of_other_subset(was: str, now: str) -> bool:
    """Whether two lines are labels of a table, for other samples of the same shards."""
    of_labels = was.startswith("labels (") and now.startswith("labels (")
    return of_labels and was.partition(OF_SUBSET)[2] != now.partition(OF_SUBSET)[2]


def _check_count(found: Mapping[str, int]) -> None:
    """Raise ResumeError for more batches than an epoch has, by its own numbers."""
    batches, length = found["batches"], found["len"]
    if 0 <= length < batches:
        raise ResumeError(
            f"batches={batches} of the loader's state must be in 0..{length}, its len. {REMEDY}"
        )
    if "global_batch" in found:
        # An incomplete batch may be dropped, or join the one before it.
        low, rest = divmod(found["samples"], found["global_batch"])
        high = low + (rest > 0)
        if found["shapes"]:  # each shape has an incomplete batch, and batches of a size of its own
            low, high = 1, found["samples"]
        if not max(low, 1) <= length <= high:
            raise ResumeError(
                f"len={length} of the loader's state does not fit its samples={found['samples']} and "
                f"global_batch={found['global_batch']}, which are at most {high} batches. {REMEDY}"
            )


def _integer(state: Mapping[str, Any], name: str, low: int, high: int) -> int:
    if name not in state:
        raise ResumeError(
            f"the state of the loader has no field {name!r}, only {sorted(map(str, state))}. {REMEDY}"
        )
    value = state[name]
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise ResumeError(
            f"{name}={shown(value)} of the loader's state must be an integer in {low}..{high}. {REMEDY}"
        )
    return int(value)
