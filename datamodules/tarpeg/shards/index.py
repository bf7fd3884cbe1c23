"""Positions of samples in tars: the saved index of one tar, and the joined index of all shards.

A tar is walked once with Python's tarfile; its index is saved beside it and checked on every load.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from ..files import open_regular
from . import saved
from .old_index import read_old
from .pillow import IMAGE_EXTENSIONS, NOT_READ, first_image, image_extension, is_image_name
from .tar import BLOCK, LONGEST_HEADERS, grouped, header_end, is_member, regular_members, warn_of_padding

_VERSION = 1  # to be raised if the same tar has another index
_HEADERS = 10 << 10  # bytes before a member's data that are read first to check its name
# Lengths between members are common if one in so many has them, and they have fewer blocks than that; the
# most others that are read.
_COMMON, _LONG, _MOST_GAPS = 8, 4096, 1000
_MOST_HEADERS = 10_000  # of members between the index's that are read: 0.3 s

_FEW = 31  # extensions of a tar

Int64 = npt.NDArray[np.int64]
Ints = npt.NDArray[np.integer]


@dataclass(frozen=True)
class TarIndex:
    """The samples of one tar that have an image, as saved on disk (S samples, M members).

    Attributes:
        tar_nbytes: Size of the tar.
        tar_mtime_ns: Time of modification of the tar.
        keys: uint8, all keys in UTF-8 (surrogateescape), joined.
        samples: int64 [3, S], rows KEY_END (end of the key in ``keys``), MEMBER_END (one past its last
            member), IMAGE (the member that is its image).
        members: int64 [3, M], rows EXTENSION (an index into ``extensions``), OFFSET and NBYTES (in the tar).
        extensions: Extensions of the members, each once.
        left_out: Number of samples without an image.
        first_left_out: Key of the first of them whose image is elsewhere in the tar, or else of the first; if
            none is left out, the first key that several samples have.
    """

    tar_nbytes: int
    tar_mtime_ns: int
    keys: npt.NDArray[np.uint8]
    samples: Int64
    members: Int64
    extensions: tuple[str, ...]
    left_out: int
    first_left_out: str

    @property
    def apart(self) -> str:
        """A key whose members are not together, or that several samples have; "" for none."""
        key = self.first_left_out.encode("utf-8", "surrogateescape")
        ends = self.samples[KEY_END]
        begins = ends[np.diff(ends, prepend=0) == len(key)] - len(key)
        for place, byte in enumerate(key):
            begins = begins[self.keys[begins + place] == byte]
        return self.first_left_out if len(key) and len(begins) else ""


KEY_END, MEMBER_END, IMAGE = range(3)
EXTENSION, OFFSET, NBYTES = range(3)


def load_or_build(path: Path, *, several: bool = False) -> TarIndex:
    """Index the tar at path: load its saved index if that is still valid, else build and save a new one.

    With ``several``, samples whose images are members such as left.jpg have an image too, see
    ``first_image``: such an index is a file of its own.

    Raises ShardError if the tar is missing, unreadable, compressed, not a tar, truncated or without images.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise ShardError(f"shard {path} cannot be read: {error.strerror}. Check the path.") from error
    if not stat.S_ISREG(found.st_mode):
        raise ShardError(f"shard {path} is not a regular file. Give a .tar file (a folder: its .tar files).")
    nbytes, mtime_ns = found.st_size, found.st_mtime_ns
    places = saved.places(path, _kind(several))
    loaded = (load(place, nbytes, mtime_ns, several=several) for place in places)
    old = () if several else saved.places(path, saved.OLD_INDEX)
    for index in itertools.chain(loaded, (_load_old(place, nbytes, mtime_ns) for place in old)):
        if index is not None and _fits(index, path, several):
            return index
    return rebuild(path, several=several)


def rebuild(path: Path, *, several: bool = False) -> TarIndex:
    """Index the tar at path and save the index in place of an older one. Raises as load_or_build."""
    index = build(path, several=several)
    # If no place is writable, the next process indexes again: not an error.
    any(save(index, place, several=several) for place in saved.places(path, _kind(several)))
    return index


def _kind(several: bool) -> str:
    return saved.SEVERAL if several else saved.INDEX


def _fits(index: TarIndex, path: Path, several: bool) -> bool:
    """Compare the last image's header, and look for members that the index does not have.

    The tar may be another one of the same size and time; an index may have been edited.
    """
    own = ShardIndex.of(index)
    last = len(own) - 1
    extension, offset, nbytes = own.members(last)[int(own.image[last])]
    try:
        with open_regular(path) as file:
            for reach in (_HEADERS, LONGEST_HEADERS):
                start = max(0, offset - reach)
                headers = os.pread(file.fileno(), offset - start, start)
                if is_member(headers, len(headers), nbytes, own.key_bytes(last), header_end(extension)):
                    budget = iter(range(_MOST_HEADERS))
                    return all(
                        _lists_all(own, file, path, budget, sample, begin, end, several)
                        for sample, begin, end in _gaps(index)
                    )
    except (OSError, ShardError):
        pass  # build() reports the reason
    return False


def _gaps(index: TarIndex) -> Iterator[tuple[int, int, int]]:
    """Yield what lies between members and may hold others: the next sample, begin and end in the tar.

    One block is the header of the next member alone. Of the lengths that many gaps have, such as those with
    extended headers, two gaps are taken; of all others at most 1000, so that the time is bounded.
    """
    places, nbytes = index.members[OFFSET:]
    ends = -(-(places + nbytes) // BLOCK) * BLOCK
    begins = np.concatenate(([0], ends[:-1]))
    blocks = np.minimum((places - begins) // BLOCK, _LONG)
    is_common = np.bincount(blocks) * _COMMON >= len(blocks)
    is_common[_LONG:] = False
    odd = np.flatnonzero(~is_common[blocks])
    taken = [odd[np.linspace(0, len(odd) - 1, min(len(odd), _MOST_GAPS), dtype=np.int64)]]
    taken += [np.flatnonzero(blocks == length)[[0, -1]] for length in np.flatnonzero(is_common) if length > 1]
    members = np.unique(np.concatenate(taken))
    samples = np.searchsorted(index.samples[MEMBER_END], members, side="right")
    yield from zip(samples.tolist(), begins[members].tolist(), places[members].tolist(), strict=True)
    yield index.samples.shape[1], int(ends[-1]), index.tar_nbytes


def _lists_all(
    own: ShardIndex,
    file: BinaryIO,
    path: Path,
    budget: Iterator[int],
    sample: int,
    begin: int,
    end: int,
    several: bool,
) -> bool:
    """Check that between two places of a tar no member belongs to the sample, the one before, or another.

    Members beyond the ``budget`` of all gaps are not read: a gap may have millions, of samples without an
    image, and would make each opening as slow as the first.
    """
    if not any(os.pread(file.fileno(), BLOCK, begin)):  # the end of the tar
        warn_of_padding(end - begin - BLOCK, path)
        return sample == len(own)
    file.seek(begin)
    keys = [own.key(one) for one in (sample - 1, sample) if 0 <= one < len(own)]
    members = regular_members(file, path, os.fstat(file.fileno()).st_size)
    between = itertools.takewhile(lambda member: member[1] < end, members)
    names = ((name, None) for (name, _, _), _ in zip(between, budget, strict=False))
    image_of = first_image if several else image_extension
    return not any(key in keys or image_of(found) for key, found in grouped(names, path))


def build(path: Path, *, several: bool = False) -> TarIndex:
    """Read the headers of the tar at path into an index. Raises ShardError as load_or_build does."""
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            if not found.st_size:  # also of files of the kernel, which may have no end
                raise ShardError(f"shard {path} is empty (0 bytes). Write or download it again.")
            return build_from(file, path, found.st_size, found.st_mtime_ns, several=several)
    except OSError as error:
        raise ShardError(f"shard {path} cannot be read: {error}. Check permissions and disk.") from error


def build_from(
    file: BinaryIO, path: object, nbytes: int, mtime_ns: int, *, several: bool = False
) -> TarIndex:
    """Index a tar that is read forwards, with seeks within one block.

    Args:
        file: The tar.
        path: Its name in errors.
        nbytes: Its size.
        mtime_ns: Its time of modification.
        several: See ``load_or_build``.
    """
    image_of = first_image if several else image_extension
    keys: list[bytes] = []
    samples: list[tuple[int, int, int]] = []
    members: list[tuple[int, int, int]] = []
    codes: dict[str, int] = {}
    left_out: list[str] = []
    members_there: list[str] = []  # of the first of them
    key_end = 0
    found = ((name, (offset, length)) for name, offset, length in regular_members(file, path, nbytes))
    for key, sample in grouped(found, path):
        image = image_of(sample)
        if image is None:
            left_out.append(key)
            members_there = members_there or [*sample]
            continue
        keys.append(key.encode("utf-8", "surrogateescape"))
        key_end += len(keys[-1])
        samples.append((key_end, len(members) + len(sample), len(members) + list(sample).index(image)))
        for extension, (offset, length) in sample.items():
            members.append((codes.setdefault(extension, len(codes)), offset, length))
    if not samples:
        seen = "it has no key.extension members at all"
        if left_out:
            seen = f"its first key is {left_out[0]!r}, with the members {members_there}"
        raise ShardError(
            f"shard {path} has no image: {seen}. Images are named KEY.EXTENSION, with an extension of "
            f"{', '.join(IMAGE_EXTENSIONS)}, and the key ends at the first dot of the file name."
            + _remedy(members_there)
            * (not several)
        )
    once = set(keys)
    apart = [key for key in left_out if key.encode("utf-8", "surrogateescape") in once]
    if not left_out and len(once) < len(keys):
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        apart = [twice.decode("utf-8", "surrogateescape")]
    return TarIndex(
        tar_nbytes=nbytes,
        tar_mtime_ns=mtime_ns,
        keys=np.frombuffer(b"".join(keys), np.uint8),
        samples=np.array(samples, np.int64).T.copy(),
        members=np.array(members, np.int64).T.copy(),
        extensions=tuple(codes),
        left_out=len(left_out),
        first_left_out=next(iter([*apart, *left_out]), ""),
    )


def _remedy(members: list[str]) -> str:
    """Return what to do about a sample whose images are members such as left.jpg, or of another format.

    "" for another one.
    """
    if unread := next((name for name in members if name.lower() in NOT_READ), ""):
        return f" {unread.upper()} is not read: convert such images to JPEG or PNG."
    names = list(filter(is_image_name, members))
    return f" For samples with several images, give Split(image={names}), or a pattern." if names else ""


def save(index: TarIndex, place: Path, *, several: bool = False) -> bool:
    """Save the index; return False if it cannot be."""
    texts = json.dumps({"extensions": index.extensions, "first_left_out": index.first_left_out})
    numbers = [index.tar_nbytes, index.tar_mtime_ns, index.left_out]
    text = np.frombuffer(texts.encode("ascii"), np.uint8)
    columns: list[npt.NDArray[Any]] = [index.keys, index.samples, index.members, text]
    return saved.write(place, saved.encoded(_kind(several), _VERSION, numbers, columns))


def load(place: Path, nbytes: int, mtime_ns: int, *, several: bool = False) -> TarIndex | None:
    """Load a saved index; None if there is none, if it is damaged, or if the tar's size or time differ."""
    found = saved.read(place, _kind(several), _VERSION)
    if found is None:
        return None
    try:
        numbers, (keys, samples, members, texts) = found
        arrays = [keys, *(part.view("<i8").reshape(3, -1) for part in (samples, members))]
        return _checked(numbers, arrays, json.loads(texts.tobytes()), nbytes, mtime_ns, several)
    except (ValueError, RecursionError):
        return None


def _load_old(place: Path, nbytes: int, mtime_ns: int) -> TarIndex | None:
    """Load an index that an early version saved."""
    found = read_old(place)
    if found is None:
        return None
    numbers, arrays, texts = found
    return _checked(numbers, arrays, texts, nbytes, mtime_ns, several=False)


def _checked(
    numbers: list[int],
    arrays: list[npt.NDArray[Any]],
    texts: Any,
    nbytes: int,
    mtime_ns: int,
    several: bool,
) -> TarIndex | None:
    """Return an index of what was read, if it is sound and of a tar of that size and time."""
    if len(numbers) != 3 or numbers[:2] != [nbytes, mtime_ns] or numbers[2] < 0:
        return None
    try:
        names, first_left_out = tuple(map(str, texts["extensions"])), str(texts["first_left_out"])
        _ = [header_end(name) for name in names]  # a lone surrogate of JSON is no byte of a tar
    except (TypeError, LookupError, UnicodeEncodeError):
        return None
    keys, samples, members = arrays
    index = TarIndex(
        tar_nbytes=nbytes,
        tar_mtime_ns=mtime_ns,
        keys=keys,
        samples=samples,
        members=members,
        extensions=names,
        left_out=numbers[2],
        first_left_out=first_left_out,
    )
    return index if _is_sound(index, several) else None


def _is_sound(index: TarIndex, several: bool) -> bool:
    """Check that all numbers stay inside the tar and the arrays: they will address memory.

    Differences are not used: of numbers that were made up, they may wrap.
    """
    samples, members, names = index.samples, index.members, index.extensions
    if any(rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[0] != 3 for rows in (samples, members)):
        return False
    if index.keys.dtype != np.uint8 or index.keys.ndim != 1 or samples.shape[1] == 0:
        return False
    if len({*names}) < len(names) or any(name != name.lower() for name in names):
        return False
    ends, key_ends, places, nbytes = samples[MEMBER_END], samples[KEY_END], members[OFFSET], members[NBYTES]
    starts = np.concatenate(([0], ends[:-1]))
    if not (
        key_ends[0] >= 0
        and (key_ends[1:] >= key_ends[:-1]).all()
        and key_ends[-1] == len(index.keys)
        and (ends > starts).all()
        and ends[-1] == members.shape[1]
        and ((members[EXTENSION] >= 0) & (members[EXTENSION] < len(names))).all()
        and (members[OFFSET:] >= 0).all()
        and (places <= index.tar_nbytes - nbytes).all()
    ):
        return False
    # As tars are: each member's header and data begin a block, behind the member before it.
    before = np.concatenate(([0], (places + nbytes)[:-1]))
    if (places % BLOCK).any() or (places < before + BLOCK).any():
        return False
    if _has_one_twice(members[EXTENSION], len(names), starts, ends - starts):
        return False
    images = first_images(names, members[EXTENSION], starts, ends - starts, several=several)
    return bool((samples[IMAGE] == starts + images).all() and (images >= 0).all())


def _has_one_twice(codes: Int64, kinds: int, starts: Int64, counts: Int64) -> bool:
    """Whether a sample has two members of one extension."""
    if counts.max() > kinds:
        return True
    if kinds > _FEW:
        own = np.repeat(np.arange(len(starts)), counts) * kinds + codes
        return len(np.unique(own)) < len(own)
    bits = 1 << codes  # their sum is their union if each is there once, in a tenth of the time
    return bool((np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)).any())


def first_images(
    extensions: Sequence[str], codes: Ints, starts: Int64, counts: Int64, *, several: bool
) -> Int64:
    """Return the place of each sample's image among its members, by IMAGE_EXTENSIONS; -1 without any.

    Args:
        extensions: Extensions of the members.
        codes: An index into ``extensions`` for each member.
        starts: The first member of each sample.
        counts: Number of members of each sample.
        several: Of samples without any, the first that ends in one of them, see ``first_image``.
    """
    ranks = {name: rank for rank, name in enumerate(IMAGE_EXTENSIONS)}
    most = len(ranks) + several
    if several:
        ranks |= {name: most - 1 for name in extensions if is_image_name(name) and name not in ranks}
    rank = np.array([ranks.get(name, most) for name in extensions])[codes]
    place = np.arange(len(rank)) - np.repeat(starts, counts)
    best = np.minimum.reduceat((rank << 32) + place, starts)
    return np.where(best >> 32 < most, best & 0xFFFFFFFF, -1)


@dataclass(frozen=True)
class ShardIndex:
    """The samples of consecutive shards (S samples, M members), compact enough for millions of them.

    Arrays without a type here have the smallest unsigned type for their values.

    Attributes:
        shard: [S], number of the shard, from 0.
        keys: uint8, all keys joined; sample s has ``keys[key_ends[s]:key_ends[s + 1]]``.
        key_ends: int64 [S + 1].
        member_ends: int64 [S + 1]; sample s has the members from ``member_ends[s]`` to ``member_ends[s +
            1]``.
        image: [S], which of its members is the sample's image, from 0.
        extensions: Extensions of the members, each once.
        extension: [M], an index into ``extensions``.
        offset: [M], position in the tar.
        nbytes: [M], bytes in the tar.
    """

    shard: Ints
    keys: npt.NDArray[np.uint8]
    key_ends: Int64
    member_ends: Int64
    image: Ints
    extensions: tuple[str, ...]
    extension: Ints
    offset: Ints
    nbytes: Ints

    def __len__(self) -> int:
        return len(self.shard)

    def key(self, sample: int) -> str:
        """Key of a sample."""
        return self.key_bytes(sample).decode("utf-8", "surrogateescape")

    def key_bytes(self, sample: int) -> bytes:
        """Key of a sample, in UTF-8 (surrogateescape)."""
        start, stop = self.key_ends[sample : sample + 2].tolist()
        return self.keys[start:stop].tobytes()

    def members(self, sample: int) -> list[tuple[str, int, int]]:
        """Return the members of a sample: extension, offset and size (bytes), in the tar's order."""
        start, stop = self.member_ends[sample : sample + 2].tolist()
        names = [self.extensions[code] for code in self.extension[start:stop].tolist()]
        return list(
            zip(names, self.offset[start:stop].tolist(), self.nbytes[start:stop].tolist(), strict=True)
        )

    def difference(
        self, headers: ShardIndex, first: int = 0, stop: int | None = None
    ) -> tuple[str, str] | None:
        """Compare samples first to stop with the headers of their tar: the key where they differ, and how.

        Without members that have no extension, which an .idx does not list.
        """
        stop = len(self) if stop is None else stop
        for row, own in zip(range(len(headers)), range(first, stop), strict=False):
            entry, other = (
                (index.key(place), [member for member in index.members(place) if member[0]])
                for index, place in ((headers, row), (self, own))
            )
            if entry != other:
                return entry[0], f"the index has {other[0]!r} {other[1]}, the tar {entry[1]}"
        if stop - first != len(headers):
            return "", f"the index has {stop - first} samples, the tar {len(headers)}"
        return None

    def shared(self, whole: ShardIndex, first: int) -> ShardIndex:
        """Return this index with the long arrays of one that it was joined to: their copies here are freed.

        Args:
            whole: The joined index.
            first: Its first sample that is of this index.
        """
        rows, own = slice(first, first + len(self)), slice(first, first + len(self) + 1)
        keys, members = whole.key_ends[own][[0, -1]].tolist(), whole.member_ends[own][[0, -1]].tolist()
        has_codes = self.extensions == whole.extensions[: len(self.extensions)]
        return replace(
            self,
            keys=whole.keys[slice(*keys)],
            image=whole.image[rows],
            extension=whole.extension[slice(*members)] if has_codes else self.extension,
            offset=whole.offset[slice(*members)],
            nbytes=whole.nbytes[slice(*members)],
        )

    @classmethod
    def of(cls, index: TarIndex) -> ShardIndex:
        """Convert the index of one tar."""
        member_ends = np.append(0, index.samples[MEMBER_END])
        return cls(
            shard=np.zeros(index.samples.shape[1], np.uint8),
            keys=index.keys,
            key_ends=np.append(0, index.samples[KEY_END]),
            member_ends=member_ends,
            image=compact(index.samples[IMAGE] - member_ends[:-1]),
            extensions=index.extensions,
            extension=compact(index.members[EXTENSION]),
            offset=index.members[OFFSET].copy(),
            nbytes=compact(index.members[NBYTES]),
        )

    @classmethod
    def join(cls, parts: Iterable[ShardIndex], shards: int) -> ShardIndex:
        """Join the indexes of consecutive groups of shards.

        Each part is copied to its final position as it arrives: collecting all first doubles the memory.

        Args:
            parts: The indexes, in order.
            shards: Number of all shards, to estimate the memory.
        """
        codes: dict[str, int] = {}
        columns = {field.name: _Column() for field in fields(cls) if field.name != "extensions"}
        before = 0
        for part in parts:
            count = int(part.shard[-1]) + 1
            renumbered = np.array([codes.setdefault(name, len(codes)) for name in part.extensions])
            first = min(before, 1)  # only the first part's ends begin with the 0
            changed = {
                "shard": compact(part.shard.astype(np.int64) + before),
                "key_ends": part.key_ends[first:] + len(columns["keys"]),
                "member_ends": part.member_ends[first:] + len(columns["offset"]),
                "extension": compact(renumbered[part.extension]),
            }
            for name, column in columns.items():
                column.extend(changed[name] if name in changed else getattr(part, name), count / shards)
            before += count
        return cls(extensions=tuple(codes), **{name: column.values() for name, column in columns.items()})


class _Column:
    """An array that grows. Reserved elements that are never written to take no memory."""

    def __init__(self) -> None:
        self._array: npt.NDArray[Any] = np.empty(0, np.uint8)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, values: npt.NDArray[Any], share: float) -> None:
        """Append values, which are about that share of the final length."""
        stop = self._count + len(values)
        dtype = np.promote_types(self._array.dtype, values.dtype)
        if stop > len(self._array) or dtype != self._array.dtype:
            room = max(stop, int(1.2 * (len(values) / share if not self._count else stop)), len(self._array))
            grown = np.empty(room, dtype)
            grown[: self._count] = self._array[: self._count]
            self._array = grown
        self._array[self._count : stop] = values
        self._count = stop

    def values(self) -> npt.NDArray[Any]:
        return self._array[: self._count]


def compact(values: Ints) -> Ints:
    """Copy non-negative integers into the smallest unsigned type that holds them all."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
