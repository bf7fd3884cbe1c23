"""Text: captions of the samples, drawn and tokenised."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..errors import ShardError, check_integer, check_probability
from ..sampling.rng import Float64, Int64, uniforms_of
from ..sampling.sampler import Request, shown
from ..shards.labels import DATA_ERRORS, document_of, field_of
from ..shards.marks import mark, mark_sample
from ..shards.source import Source, missing, plain, where_of
from ..targets.annotations import MOST_BYTES, as_json

Choose = Literal["random", "first", "all"]

# Stream of random numbers, beside those of loader.drawing, substitutes, python_steps and augmenting.
_TEXT = 6
_MOST_TEXT = 1 << 20  # bytes of a member that is text, beyond which it is an error
_MOST_CAPTIONS = 1000  # of a sample in one batch, which is as large as its largest sample
_MOST_TOKEN = (1 << 63) - 1
# Of each thread, its copy of a tokenizer.
_copies = threading.local()


@dataclass(frozen=True)
class Text:
    """Captions of the samples, for ``Split(members=...)``: one is drawn per epoch, and tokenised.

    ``extra`` of the ``ExtraBatch`` is what one ``Text`` makes of the batch: a list of B texts, or ``Tokens``
    with a tokenizer. ``members=`` may be a dict of several, which makes a dict by name; those that read the
    same captions draw the same one. A caption that is missing, empty, or not as described here is treated as
    a broken image (``on_error``): image and caption are replaced together. White space around captions is
    removed.

    Args:
        member: The extension of a member that is text in UTF-8, "txt"; or a field of a JSON member,
            "json:caption", with a text or a list of texts; "json" alone is such a list. A name that ends in
            "?", as "txt?", may be missing or empty: the caption is "".
        tokenizer: Called by the worker, see ``Tokens``: a tokenizer of transformers; or a function that
            returns the tokens of a text, as a list or array of integers or a tensor ``[n]`` or ``[1, n]``; or
            a dict of ``input_ids`` and ``attention_mask``, whose padding is kept and masked. It must be one
            that pickles if the worker processes are not forked. None: texts.
        max_length: Tokens of a caption, and the width of the batch. None: all of them, and batches are as
            wide as their longest caption, on each rank.
        dropout: Probability, 0 to 1, of the empty caption in place of all others; in training only.
        choose: "random", a caption of each sample per epoch; "first"; or "all".
        lines: Whether each line of a member that is text is a caption.
        truncate: Whether captions of more than ``max_length`` tokens are cut: by the tokenizer if it is one
            of transformers, otherwise at their end, with an end token that may be there. False: they are
            treated as broken.
        pad_id: Token that fills the rest. None: that of a tokenizer of transformers, otherwise 0.

    Raises:
        ValueError: For an argument out of range.

    Example:
        >>> import json
        >>> class Captioned(tarpeg.Source):
        ...     def __len__(self):
        ...         return 4
        ...     def keys(self, ids):
        ...         return [f"photo{id}" for id in ids]
        ...     def members(self, ids, extension):
        ...         captions = json.dumps({"captions": ["a cat", "a cat on a red chair"]}).encode()
        ...         return [bytes(jpeg.numpy()) if extension == "jpg" else captions for id in ids]
        ...     def extensions(self, id):
        ...         return ["jpg", "json"]
        >>> words = "a cat on red chair".split()
        >>> def tokenize(text):
        ...     return [1 + words.index(word) for word in text.split()]
        >>> text = tarpeg.Text("json:captions", tokenizer=tokenize, max_length=6, choose="first")
        >>> split = tarpeg.Split(Captioned(), tarpeg.RandomCrop(96), target=None, members=text)
        >>> batch = next(iter(tarpeg.Loader(split, batch_size=4, workers=0)))
        >>> batch.extra.input_ids[0].tolist(), batch.extra.attention_mask[0].tolist()
        ([1, 2, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0])
    """

    member: str
    tokenizer: Callable[..., Any] | None = field(default=None, repr=False)
    max_length: int | None = None
    dropout: float = 0.0
    choose: Choose = "random"
    lines: bool = False
    truncate: bool = True
    pad_id: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.member, str) or not re.fullmatch(
            r"[^/:?]+(:[^.]+(\.[^.]+)*)?\??", self.member
        ):
            raise ValueError(
                f"member={self.member!r} of Text must be the extension of a member that is text, such as "
                '"txt", or a field of a JSON member, such as "json:caption"'
            )
        if self.tokenizer is not None and not callable(self.tokenizer):
            raise ValueError(
                f"tokenizer={_shown(self.tokenizer)} of Text must be a tokenizer of transformers, or a "
                "function that returns the tokens of a text; of others give such a method: tokenizer.encode"
            )
        if self.max_length is not None:
            check_integer("max_length", self.max_length, 1, of=self)
        if self.pad_id is not None:
            check_integer("pad_id", self.pad_id, 0, _MOST_TOKEN, of=self)
        if self.tokenizer is None:
            for name in ("max_length", "pad_id"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name}={getattr(self, name)!r} of Text is about tokens: give tokenizer="
                    )
        check_probability("dropout", self.dropout, of=self)
        if self.choose not in get_args(Choose):
            raise ValueError(f"choose={self.choose!r} of Text must be 'random', 'first' or 'all'")
        if self.choose == "all" and self.dropout:
            raise ValueError(f"dropout={self.dropout!r} of Text is for one caption, and choose='all'")
        for name in ("lines", "truncate"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} of Text must be True or False")
        if self.lines and self.is_json:
            raise ValueError(f"lines=True of Text is for members that are text, and member={self.member!r}")

    @property
    def extension(self) -> str:
        """Extension of the member."""
        return plain(self.member.removesuffix("?").partition(":")[0])

    @property
    def path(self) -> str:
        """Path of the field in a JSON member; "" for the document itself."""
        return self.member.removesuffix("?").partition(":")[2]

    @property
    def is_json(self) -> bool:
        """Whether the member is JSON."""
        return ":" in self.member or self.extension == "json"

    @property
    def is_optional(self) -> bool:
        """Whether captions may be missing."""
        return self.member.endswith("?")

    @property
    def form(self) -> tuple[Any, ...]:
        """What has to be equal for the captions of two splits to be in one batch."""
        is_tokens = self.tokenizer is not None
        return is_tokens, self.choose == "all", self.max_length, self.padding if is_tokens else None

    @property
    def padding(self) -> tuple[int, bool]:
        """The token that fills rows, and whether it does on their left."""
        own = getattr(self.tokenizer, "pad_token_id", None)
        pad = own if type(own) is int and own >= 0 else 0
        if self.pad_id is not None:
            pad = self.pad_id
        return pad, getattr(self.tokenizer, "padding_side", "right") == "left"

    def read(self, source: Source, ids: Int64, draws: Float64, *, training: bool) -> list[Any]:
        """Read the captions of some samples.

        Args:
            source: The samples.
            ids: Their numbers, int64 [B].
            draws: [B, 2], in [0, 1): whether the caption is dropped, and which one is taken.
            training: Whether captions are dropped.

        Returns:
            Per sample, a list of its texts, or of int64 arrays of tokens: one, if ``choose`` is not "all". A
            ShardError in place of a broken one.
        """
        found: list[Any] = []
        contents = source.members(ids, self.extension)
        for id, content, (drop, which) in zip(ids.tolist(), contents, draws.tolist(), strict=True):
            try:
                captions = self._captions(source, id, content)
                if self.choose == "all" and len(captions) > _MOST_CAPTIONS:
                    raise self._error(source, id, f"has {len(captions)} captions, more than {_MOST_CAPTIONS}")
            except ShardError as error:
                found.append(error)
                continue
            if self.choose == "random":
                captions = [captions[int(which * len(captions))]]
            elif self.choose == "first":
                captions = captions[:1]
            found.append([""] if training and drop < self.dropout else captions)
        return found if self.tokenizer is None else self._tokenised(source, ids, found)

    def _captions(self, source: Source, id: int, content: bytes | None) -> list[str]:
        """Return the captions of a sample, at least one. Raises ShardError."""
        if content is None:
            if self.is_optional:
                return [""]
            remedy = f"Write its captions there, or give {self.member + '?'!r} if some samples have none."
            raise missing(source, id, self.extension, remedy)
        if self.is_json:
            return self._captions_in_json(source, id, content)
        if len(content) > _MOST_TEXT:
            raise self._error(source, id, f"has {len(content)} bytes, more than {_MOST_TEXT}")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self._error(source, id, f"is not UTF-8: {error}") from error
        captions = [line.strip() for line in (text.split("\n") if self.lines else [text])]
        captions = [caption for caption in captions if caption]
        if not captions and not self.is_optional:
            raise self._error(source, id, f"is empty; give {self.member + '?'!r} if that is a caption")
        return captions or [""]

    def _captions_in_json(self, source: Source, id: int, content: bytes) -> list[str]:
        value = document_of(source, id, self.extension, content, MOST_BYTES, "captions")
        if self.path:
            try:
                value = field_of(source, id, self.extension, value, self.path)
            except ShardError:
                if not self.is_optional:
                    raise
                value = None
        captions = value if isinstance(value, list) else [value]
        if self.is_optional and value in (None, []):
            return [""]
        if not captions or not all(isinstance(each, str) for each in captions):
            raise self._error(source, id, f"is {as_json(value)}, neither a text nor a list of texts")
        captions = [caption.strip() for caption in captions]
        if not (self.is_optional or all(captions)):
            raise self._error(source, id, f"is {as_json(value)}: a caption is empty")
        try:
            "".join(captions).encode()
        except UnicodeEncodeError as error:  # half of a pair, such as "\ud800"
            raise self._error(source, id, f"is not Unicode: {error}") from error
        return captions

    def _error(self, source: Source, id: int, reason: str) -> ShardError:
        """Return the error of a sample, with shard, key and place."""
        place = f"field {self.path!r} of member {self.extension!r}" if self.path else ""
        return ShardError(f"{where_of(source, id)}: {place or f'member {self.extension!r}'} {reason}")

    def _tokenised(self, source: Source, ids: Int64, captions: list[Any]) -> list[Any]:
        """Return the tokens of the captions of each sample; a ShardError in place of those that have none."""
        found, begin = list(captions), 0
        rows = [row for row, each in enumerate(captions) if not isinstance(each, ShardError)]
        tokenizer = _own_copy(self.tokenizer)
        tokens = self._tokens_of_all(tokenizer, [text for row in rows for text in captions[row]])
        for row in rows:
            texts, id = captions[row], int(ids[row])
            mark_sample(source, id)
            try:
                if tokens is None:
                    found[row] = [self._checked(text, self._tokens_of(tokenizer, text)) for text in texts]
                else:
                    given = tokens[begin : begin + len(texts)]
                    found[row] = [self._checked(*pair) for pair in zip(texts, given, strict=True)]
            except _TokenError as error:
                found[row] = self._error(source, id, str(error))
            begin += len(texts)
        mark.set()
        return found

    def _tokens_of_all(self, tokenizer: Any, texts: list[str]) -> Any:
        """Return the tokens of many texts by one call of a tokenizer of transformers, in half the time.

        None for another tokenizer, and if one of the texts makes it fail.
        """
        if not _is_of_transformers(tokenizer) or not texts:
            return None
        try:
            return self._call(tokenizer, texts)["input_ids"]
        except DATA_ERRORS:
            return None

    def _tokens_of(self, tokenizer: Any, text: str) -> Any:
        """Return what a tokenizer makes of a text. Raises _TokenError if it fails."""
        try:
            return self._call(tokenizer, text) if _is_of_transformers(tokenizer) else tokenizer(text)
        except DATA_ERRORS as error:
            reason = f"failed: {type(error).__name__}: {error}"
            raise _TokenError(f"is {as_json(text)}: tokenizer={_shown(tokenizer)} {reason}") from error

    def _call(self, tokenizer: Any, texts: Any) -> Any:
        """Call a tokenizer of transformers, which cuts before it adds its end token."""
        is_cut = self.truncate and self.max_length is not None
        limit = {"truncation": True, "max_length": self.max_length} if is_cut else {"truncation": False}
        return tokenizer(texts, padding=False, return_attention_mask=False, verbose=False, **limit)

    def _checked(self, text: str, found: Any) -> Int64:
        """Return tokens as an array [n], with ~token for padding by the tokenizer itself.

        Raises _TokenError if they are none, or too many.
        """
        mask = None
        if isinstance(found, Mapping) and "input_ids" in found:
            found, mask = found["input_ids"], found.get("attention_mask")
        elif hasattr(found, "ids"):  # an Encoding of tokenizers
            found, mask = found.ids, getattr(found, "attention_mask", None)
        if isinstance(found, Tensor):
            found = found.detach().cpu().numpy()
        array = _row_of(found)
        is_empty = array.ndim == 1 and not array.size
        is_tokens = array.ndim == 1 and array.dtype.kind in "iu"
        if not is_empty and not (is_tokens and array.min() >= 0 and array.max() <= _MOST_TOKEN):
            is_array = isinstance(found, np.ndarray)
            what = f"{found.dtype} {list(found.shape)}" if is_array else shown(found)
            raise _TokenError(
                f"is {as_json(text)}: tokenizer={_shown(self.tokenizer)} returned {what}, not a list of "
                "integers of at least 0"
            )
        array = array.astype(np.int64)
        if mask is not None:
            is_token = _row_of(mask)
            if is_token.shape != array.shape or not np.isin(is_token, (0, 1)).all():
                raise _TokenError(
                    f"is {as_json(text)}: tokenizer={_shown(self.tokenizer)} returned the attention_mask "
                    f"{shown(mask)}, not 1 or 0 for each of its {len(array)} tokens"
                )
            array = np.where(is_token, array, ~array)
        most = self.max_length
        if most is not None and len(array) > most:
            array = array[array >= 0]
        if most is not None and len(array) > most and not self.truncate:
            raise _TokenError(
                f"is {as_json(text)}: it has {len(array)} tokens, more than max_length={most}; truncate=True "
                "cuts it"
            )
        return array[:most]


class Tokens(NamedTuple):
    """Tokens of the captions of a batch, under transformers' names: ``model(**tokens._asdict())``.

    Attributes:
        input_ids: int64 ``[B, L]``; L is ``max_length`` of the ``Text``, or without it the tokens of the
            longest caption. With ``choose="all"`` ``[B, N, L]``, N captions of the sample that has most.
        attention_mask: int64 of the same shape: 1 for a token, 0 for padding, and for captions that a
            sample does not have.

    Example:
        >>> text = tarpeg.Text("cls", tokenizer=lambda text: list(text.encode()), max_length=4)
        >>> split = tarpeg.Split(shards, tarpeg.CenterCrop(96), members=text)
        >>> batch = next(iter(tarpeg.Loader(split, batch_size=8, training=False, workers=0)))
        >>> batch.extra.input_ids.shape, batch.extra.attention_mask.sum().item()
        (torch.Size([8, 4]), 8)
    """

    input_ids: Tensor
    attention_mask: Tensor


class _TokenError(Exception):
    """A text that has no tokens, with the reason."""


def read_texts(
    source: Source, request: Request, seed: int, texts: Mapping[str, Text], *, training: bool
) -> list[Any]:
    """Return, per sample, what each ``Text`` has read by its name; a ShardError if one of them is broken."""
    draws = uniforms_of(request.numbered, seed, 2, _TEXT)
    columns = [text.read(source, request.ids, draws, training=training) for text in texts.values()]
    found: list[Any] = []
    for each in zip(*columns, strict=True):
        error = next((value for value in each if isinstance(value, ShardError)), None)
        found.append(error or dict(zip(texts, each, strict=True)))
    return found


def collated(texts: Mapping[str, Text], values: Sequence[Any]) -> Any:
    """Return the captions of a batch as the consumer gets them, but with arrays in ``Tokens``.

    Args:
        texts: By name; "" for a single one.
        values: Of ``read_texts``; anything but a dict for a sample that has none, and is left out.
    """
    found = {
        name: _column(text, [value[name] if isinstance(value, dict) else [] for value in values])
        for name, text in texts.items()
    }
    return found.get("", found)


def _column(text: Text, rows: list[list[Any]]) -> Any:
    is_all = text.choose == "all"
    if text.tokenizer is None:
        return rows if is_all else [row[0] if row else "" for row in rows]
    most = max([1, *map(len, rows)])
    each = [tokens for row in rows for tokens in row]
    lengths = np.zeros((len(rows), most), np.int64)
    counts = np.array([len(row) for row in rows], np.int64)
    lengths[np.arange(most) < counts[:, None]] = [len(tokens) for tokens in each]
    width = text.max_length or max(1, int(lengths.max(initial=0)))
    pad, is_left = text.padding
    places = np.arange(width)[::-1] if is_left else np.arange(width)
    mask = places < lengths[:, :, None]
    ids = np.full(mask.shape, pad, np.int64)
    if each:
        ids[mask] = np.concatenate(each)
        mask &= ids >= 0
        ids = np.where(ids < 0, ~ids, ids)  # the padding of a tokenizer keeps its token
    arrays: list[Any] = [part if is_all else part[:, 0] for part in (ids, mask.astype(np.int64))]
    return Tokens(arrays[0], arrays[1])


def as_tensors(extra: Any) -> Any:
    """Return what ``collated`` returned with tensors in place of arrays."""
    return _of_tokens(extra, torch.as_tensor)


def rows_of(extra: Any, rows: Int64) -> Any:
    """Return some rows of the captions of a batch; of a list, its items."""
    if isinstance(extra, Mapping):
        return {name: rows_of(each, rows) for name, each in extra.items()}
    if isinstance(extra, Tokens):
        return _of_tokens(extra, lambda part: part[rows])
    return [extra[row] for row in rows]


def tokens_on(extra: Any, device: torch.device | str | None) -> Any:
    """Return the captions of a batch with their tokens on a device."""
    return _of_tokens(extra, lambda part: part.to(device, non_blocking=True))


def _of_tokens(extra: Any, function: Callable[[Any], Tensor]) -> Any:
    """Call a function with the parts of all ``Tokens``."""
    if isinstance(extra, Tokens):
        return Tokens(function(extra.input_ids), function(extra.attention_mask))
    if isinstance(extra, Tensor):  # of SizeAndCrop
        return function(extra)
    if isinstance(extra, Mapping):
        return {name: _of_tokens(each, function) for name, each in extra.items()}
    return extra


def texts_of(members: Any) -> dict[str, Text]:
    """Return the ``Text``s of ``Split(members=...)`` by name: "" for a single one; none for extensions."""
    if isinstance(members, Text):
        return {"": members}
    given = members.items() if isinstance(members, Mapping) else ()
    return {name: text for name, text in given if isinstance(text, Text)}


def check_texts(members: Any, others: type) -> None:
    """Raise ValueError unless a dict ``members=`` has ``Text``s, or ``others``, by name."""
    if isinstance(members, Mapping):
        kinds = (Text, others)
        is_right = all(isinstance(n, str) and n and isinstance(each, kinds) for n, each in members.items())
        if not members or not is_right:
            raise ValueError(
                f"members={shown(members)} must be a tarpeg.Text(...), or a dict of them by name"
            )


def _is_of_transformers(tokenizer: Any) -> bool:
    return all(hasattr(tokenizer, name) for name in ("pad_token_id", "model_max_length", "encode"))


def _row_of(found: Any) -> np.ndarray[Any, Any]:
    """Return what a tokenizer returned as an array, one of [1, n] as [n]."""
    try:
        array = np.asarray(found.detach().cpu() if isinstance(found, Tensor) else found)
    except (ValueError, OverflowError):  # lists of several lengths
        array = np.asarray(None)
    return array[0] if array.ndim == 2 and len(array) == 1 else array


def _own_copy(tokenizer: Any) -> Any:
    """Return the tokenizer, or a copy for this thread.

    Those of transformers have a state that a call changes, how to cut and to pad, and fail in two threads.
    """
    if not _is_of_transformers(tokenizer) or threading.current_thread() is threading.main_thread():
        return tokenizer
    copies = _copies.__dict__.setdefault("by_tokenizer", WeakKeyDictionary())
    if tokenizer not in copies:
        copies[tokenizer] = copy.deepcopy(tokenizer)
    return copies[tokenizer]


def _shown(tokenizer: Any) -> str:
    """Format a tokenizer for messages: those of transformers show all their tokens."""
    return getattr(tokenizer, "__qualname__", type(tokenizer).__name__)
