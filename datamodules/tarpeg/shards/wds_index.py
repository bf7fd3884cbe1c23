"""The index beside each shard of a cache: the text format v1.2 of DALI's wds2idx.

A line ``v1.2 SAMPLES``, then one line per sample: ``EXTENSION OFFSET SIZE NAME`` for each of its members,
OFFSET being the position of its data in the tar, all separated by single spaces. White space in an extension
or a name would end it: it is written as %20, and % as %25.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.parse import quote, unquote_to_bytes

import numpy as np
import numpy.typing as npt

from ..errors import CacheError
from .index import Int64, Ints, ShardIndex, compact, first_images

_VERSION = "v1.2"
_HEAD = re.compile(rb"v1\.2 ([1-9][0-9]{0,17})\Z")
_ODD = re.compile(r"[\s%]")
_BLOCK = 512
_SPACE, _NEWLINE, _DOT, _ZEROS = 0x20, 0x0A, 0x2E, 0x3030303030303030
# Extensions that are looked for one after the other, in all members at once, and the longest such, in bytes.
_FEW, _WIDE = 64, 64
# Padding before and after the text, for 8-byte words that reach over its ends.
_PAD = bytes(16)

UInt64 = npt.NDArray[np.uint64]


class Component(NamedTuple):
    """A member of a sample: position and length of its data in the tar, in bytes, and its name there."""

    extension: str
    offset: int
    nbytes: int
    name: str


def index_path(shard: Path) -> Path:
    """Path of the index of a shard: NAME.idx for NAME.tar."""
    return shard.with_suffix(".idx")


def index_text(samples: Sequence[Sequence[Component]]) -> bytes:
    """Format the index of one shard. Members without an extension cannot be in it and are left out."""
    lines = [" ".join(_entry(component) for component in sample if component.extension) for sample in samples]
    return "\n".join([f"{_VERSION} {len(samples)}", *lines, ""]).encode("utf-8", "surrogateescape")


def _entry(component: Component) -> str:
    extension, offset, nbytes, name = component
    return f"{_quoted(extension)} {offset} {nbytes} {_quoted(name)}"


def _quoted(text: str) -> str:
    return _ODD.sub(lambda found: quote(found[0]), text)


def parse(texts: Sequence[bytes], paths: Sequence[Path], tar_nbytes: Sequence[int]) -> ShardIndex:
    """Parse the indexes of consecutive shards together: numpy is fastest with arrays of 1 to 2 MB.

    Args:
        texts: The indexes.
        paths: Path of each, for messages.
        tar_nbytes: Sizes of the tars, which bound all members.

    Raises:
        CacheError: With path and line, for any other text and for a sample without an image.
    """
    counts, bodies = [], []
    for text, path in zip(texts, paths, strict=True):
        head, _, body = text.partition(b"\n")
        found = _HEAD.match(head)
        if found is None:
            begin = head[:32]
            raise CacheError(f"{path} is not a v1.2 index: it begins with {begin!r}. Build the cache again.")
        expected = int(found[1])
        if body[-1:] != b"\n" or body.count(b"\n") != expected:
            raise CacheError(
                f"{path} is damaged: exactly {expected} complete lines must follow its first line. Build the "
                "cache again."
            )
        counts.append(expected)
        bodies.append(body)
    return _Parser(b"".join([_PAD, *bodies, _PAD]), np.array(counts), paths, tar_nbytes).parsed()


class _Parser:
    """Parser of joined index lines: T tokens, 4 for each of M members, of S samples."""

    def __init__(self, text: bytes, samples: Int64, paths: Sequence[Path], tar_nbytes: Sequence[int]) -> None:
        self._samples, self._paths, self._tar_nbytes = samples, paths, tar_nbytes
        self._text = text
        self._bytes = np.frombuffer(text, np.uint8)
        # The 8 bytes from each position on, as one little-endian number.
        self._words: UInt64 = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))
        body = self._bytes[: -len(_PAD)]
        stops = np.flatnonzero((body == _SPACE) | (body == _NEWLINE))
        ends = np.flatnonzero(self._bytes[stops] == _NEWLINE)
        tokens = np.diff(ends, prepend=-1)
        self._check(tokens % 4 == 0, "its fields do not come in fours: EXTENSION OFFSET SIZE NAME")
        self._members = tokens // 4
        self._first = np.cumsum(self._members) - self._members
        starts = np.empty_like(stops)
        starts[0] = len(_PAD)
        np.add(stops[:-1], 1, out=starts[1:])
        is_full: npt.NDArray[np.bool_] = (stops > starts).reshape(-1, 4).min(axis=1)
        self._check_members(is_full, "a field is empty")
        self._starts, self._stops = starts.reshape(-1, 4).T, stops.reshape(-1, 4).T

    def parsed(self) -> ShardIndex:
        extensions, extension = self._extensions()
        offset, nbytes = self._integers(1), self._integers(2)
        shard_members = np.add.reduceat(self._members, np.cumsum(self._samples) - self._samples)
        largest = np.repeat(np.array(self._tar_nbytes, np.int64), shard_members) - nbytes
        self._check_members((offset <= largest) & (offset % _BLOCK == 0), "a member is outside of the tar")
        keys, key_ends = self._keys()
        return ShardIndex(
            shard=np.repeat(compact(np.arange(len(self._samples))), self._samples),
            keys=keys,
            key_ends=key_ends,
            member_ends=np.append(self._first, len(extension)),
            image=self._images(extensions, extension),
            extensions=extensions,
            extension=compact(extension),
            offset=offset,
            nbytes=compact(nbytes),
        )

    def _integers(self, column: int) -> Int64:
        """Convert tokens of at most 16 digits to integers, 8 digits at a time."""
        starts, stops = self._starts[column], self._stops[column]
        widths = stops - starts
        self._check_members(widths <= 16, "a number is too long")
        numbers = self._eight_digits(stops, np.minimum(widths, 8))
        if (widths > 8).any():
            numbers += self._eight_digits(stops - 8, np.clip(widths - 8, 0, 8)) * 100_000_000
        return numbers

    def _eight_digits(self, stops: Int64, widths: Int64) -> Int64:
        # The last digit is the highest byte; bytes outside of the token are shifted out, and zeros come in:
        # by two shifts by half, because a shift by 64 does nothing.
        shift = (4 * (8 - widths)).astype(np.uint64)
        digits = ((self._words[stops - 8] ^ np.uint64(_ZEROS)) >> shift >> shift) << shift << shift
        sixes = np.uint64(0x0606060606060606)
        odd = (digits | (digits + sixes)) & np.uint64(0xF0F0F0F0F0F0F0F0)
        self._check_members(odd == 0, "an offset or size is not a number")
        # Join digits to pairs, pairs to fours and fours to eights, for a whole word at once.
        digits = digits * np.uint64(10) + (digits >> np.uint64(8))
        low = (digits & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
        high = ((digits >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
        return ((low + high) >> np.uint64(32)).view(np.int64)

    def _extensions(self) -> tuple[tuple[str, ...], Int64]:
        """Return the different extensions, in lower case, and the index of each member's extension."""
        starts = self._starts[0]
        widths = self._stops[0] - starts
        words = []
        for at in range(0, min(int(widths.max()), _WIDE), 8):
            part = np.clip(widths - at, 0, 8)
            # Drop the bytes after the token, by two shifts by half, because a shift by 64 does nothing.
            shift = (4 * (8 - part)).astype(np.uint64)
            # Positions after a short token may be after the text: their part is empty, so read at 0.
            words.append(self._words[np.where(part > 0, starts + at, 0)] << shift << shift)
        codes: dict[str, int] = {}
        extension = np.full(len(starts), -1)
        todo, rest = np.flatnonzero(widths <= _WIDE), np.flatnonzero(widths > _WIDE)
        for _ in range(_FEW):
            if not len(todo):
                break
            one = todo[0]
            same = widths[todo] == widths[one]
            for word in words:
                same &= word[todo] == word[one]
            extension[todo[same]] = codes.setdefault(self._extension(one), len(codes))
            todo = todo[~same]
        for one in np.concatenate((todo, rest)):
            extension[one] = codes.setdefault(self._extension(one), len(codes))
        return tuple(codes), extension

    def _extension(self, member: int) -> str:
        text = self._text[self._starts[0, member] : self._stops[0, member]]
        return unquote_to_bytes(text).decode("utf-8", "surrogateescape").lower()

    def _keys(self) -> tuple[npt.NDArray[np.uint8], Int64]:
        """Return the keys, joined, and their ends: a key is the name up to the extension."""
        sizes = self._stops[3] - self._starts[3] - (self._stops[0] - self._starts[0]) - 1
        starts, key_sizes = self._starts[3][self._first], sizes[self._first]
        self._check(key_sizes > 0, "a name is not KEY.EXTENSION")
        is_key = (sizes == np.repeat(key_sizes, self._members)) & (
            self._bytes[self._starts[3] + np.maximum(sizes, 0)] == _DOT
        )
        self._check_members(is_key, "a name is not KEY.EXTENSION")
        if b"%" in self._text:
            spans = zip(starts.tolist(), (starts + key_sizes).tolist(), strict=True)
            keys = [unquote_to_bytes(self._text[start:stop]) for start, stop in spans]
            ends = np.cumsum([0, *map(len, keys)])
            return np.frombuffer(b"".join(keys), np.uint8), ends
        ends = np.cumsum(np.append(0, key_sizes))
        places = np.repeat(starts - ends[:-1], key_sizes)
        places += np.arange(len(places))
        return self._bytes[places], ends

    def _images(self, extensions: Sequence[str], extension: Int64) -> Ints:
        """Find each sample's image: see ``first_images``."""
        images = first_images(extensions, extension, self._first, self._members, several=True)
        self._check(images >= 0, "a sample has no image")
        return compact(images)

    def _check_members(self, is_good: npt.NDArray[np.bool_], what: str) -> None:
        if not is_good.all():
            member = int(np.flatnonzero(~is_good)[0])
            self._fail(int(np.searchsorted(self._first, member, side="right")) - 1, what)

    def _check(self, is_good: npt.NDArray[np.bool_], what: str) -> None:
        if not is_good.all():
            self._fail(int(np.flatnonzero(~is_good)[0]), what)

    def _fail(self, sample: int, what: str) -> NoReturn:
        ends = np.cumsum(self._samples)
        number = int(np.searchsorted(ends, sample, side="right"))
        line = sample - int(ends[number] - self._samples[number]) + 2
        raise CacheError(f"{self._paths[number]} is damaged in line {line}: {what}. Build the cache again.")
